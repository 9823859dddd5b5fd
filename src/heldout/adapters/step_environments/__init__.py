"""Environments with reset and step as heldout evals: Gymnasium's text environments, GEM, SkyRL-gym.

    from_step_env(make_env, seeds("guess", range(50)))            # in this process
    from_step_env("my_envs:make_env", seeds("guess", range(50)))  # in worker processes

The observation of reset opens the conversation, a model turn is an action, and the next observation
is the reply. The reward is the environment's, bit for bit: the sum of an episode's rewards, or the
last one. A reward that is None was not given, which is an error and not 0.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from heldout._core.aio import settle
from heldout._core.chat.messages import message_of, to_chat_api
from heldout._core.chat.questions import likely_question, list_question_fields
from heldout._evals.rollout import EvalDefinition
from heldout._live.isolation import is_background_thread
from heldout._reasoning import without_reasoning
from heldout.adapters.step_environments.episode import ActionRefused, EpisodeStep, StepEpisode
from heldout.environment import Reply, make_snapshot, read_snapshot
from heldout.errors import EnvironmentFailed, InvalidInput, ScoringFailed, WorkerError
from heldout.scoring.process_pool import Pool
from heldout.store.fingerprint import describe_callable
from heldout.types import Message, Metric, Sample, Score, ToolSpec, Trajectory

WORKER = "heldout.adapters.step_environments.worker"
RewardOf = Literal["sum", "last"]
"""Which of an episode's rewards count."""
_pool: Pool | None = None
_creating = threading.Lock()


def worker_pool() -> Pool:
    """Return the workers that all evals of this process share."""
    global _pool
    with _creating:
        if _pool is None:
            _pool = Pool(memory=4 * 2**30)
        return _pool


def seeds(
    name: str, numbers: Iterable[int], config: Mapping[str, Any] | None = None
) -> list[Sample]:
    """Make a sample for each seed of an environment.

    Args:
        name: The environment's name.
        numbers: The seeds.
        config: Settings of the environment; `make_env` finds them in the input.

    Returns:
        Samples whose input is `name`, `seed` and `config`, with ids of all three.
    """
    config = dict(config or {})
    text = json.dumps(config, sort_keys=True)
    suffix = f"-{hashlib.sha256(text.encode()).hexdigest()[:6]}" if config else ""
    samples = []
    for seed in numbers:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise InvalidInput(f"a seed must be a whole number, got {seed!r}")
        about = {"name": name, "seed": seed, "config": config}
        samples.append(Sample(f"{name}{suffix}-{seed}", about))
    return samples


def text_action(turn: Message) -> str:
    """Return a model turn as an action: its text, without reasoning."""
    return without_reasoning(turn.text)


def observed_messages(observation: Any) -> list[Message]:
    """Convert an observation to messages: a text, or messages as chat APIs have them.

    Raises:
        EnvironmentFailed: It is neither.
    """
    if isinstance(observation, str):
        return [Message("user", observation)] if observation else []
    if isinstance(observation, list | tuple) and all(isinstance(m, Mapping) for m in observation):
        return [message_of(message, "an observation") for message in observation]
    raise EnvironmentFailed(
        "an observation must be a text, or messages with role and content; make one with "
        f"`observe`, a function of the observation. Got {observation!r:.200}"
    )


def from_step_env(
    make_env: Callable[[Sample], Any] | str,
    samples: Iterable[Sample],
    *,
    reward: RewardOf = "sum",
    act: Callable[[Message], Any] = text_action,
    observe: Callable[[Any], Any] | None = None,
    system_prompt: str | None = None,
    metrics: Sequence[str] = (),
    max_turns: int | None = None,
    seconds: float = 60.0,
    package: str | None = None,
) -> EvalDefinition:
    """Make an eval of an environment with reset and step.

    Args:
        make_env: A function that makes the environment of a sample: in this process, in its event
            loop. As a text, "module:function", it is called in worker processes.
        samples: The samples; `seeds` makes some. A `seed` in a sample's input goes to `reset`. An
            environment with `init(prompt)` (SkyRL-gym) gets the sample's messages instead.
        reward: "sum" of the rewards of all steps, or the "last" one.
        act: Makes an action of a model turn; its text without reasoning by default.
        observe: Makes a text, or messages, of an observation that is neither.
        system_prompt: A system message before the first observation.
        metrics: Numbers in the last step's info to report as metrics of weight 0.
        max_turns: The eval's own limit of model turns.
        seconds: Time limit of a step in a worker process.
        package: The package that the environment comes from, as pip knows it: a run is not resumed
            with another version of it.

    Raises:
        InvalidInput: An argument is wrong, or the function cannot be imported.
    """
    if isinstance(make_env, str):
        if act is not text_action:
            raise InvalidInput(
                "act is for environments in this process: actions are texts in others"
            )
        try:
            worker_pool().run_sync(f"{WORKER}:check", make_env, seconds=120)
        except WorkerError as problem:
            raise InvalidInput(
                f"make_env is a function or 'module:function', and {make_env!r} cannot be "
                f"imported: {problem}"
            ) from None
    elif not callable(make_env):
        raise InvalidInput(f"make_env must be a function of the sample, got {make_env!r:.200}")
    version = None if package is None else f"{package} {importlib.metadata.version(package)}"
    factory = StepEnvironments(make_env, act, observe, system_prompt, version, seconds=seconds)
    return define(factory, samples, reward, metrics, max_turns)


def define(
    factory: StepEnvironments,
    samples: Iterable[Sample],
    reward: RewardOf,
    metrics: Sequence[str],
    max_turns: int | None,
) -> EvalDefinition:
    """Put an eval together of what makes its environments; see `from_step_env`."""
    if reward not in ("sum", "last"):
        raise InvalidInput(
            f"reward must be 'sum' or 'last' of an episode's rewards, got {reward!r}"
        )
    score_fn = functools.partial(score_rewards, reward=reward, metrics=tuple(metrics))
    return EvalDefinition(samples, score_fn, _no_messages, factory, max_turns)


def _no_messages(sample: Sample) -> list[Message]:
    return []


def score_rewards(
    trajectory: Trajectory, sample: Sample, *, reward: RewardOf, metrics: Sequence[str] = ()
) -> Score:
    """Score an episode by the rewards that its environment gave.

    Raises:
        ScoringFailed: A reward that counts was not given.
    """
    outcome = trajectory.outcome or {}
    rewards: list[float | None] = outcome.get("rewards") or []
    counted = rewards if reward == "sum" else rewards[-1:]
    known = [value for value in counted if value is not None]
    if not counted or len(known) < len(counted):
        over = "" if outcome.get("done") else "; it was not over when its turns were used up"
        hint = "" if reward == "last" or rewards[-1:] == [None] else '; reward="last" takes that'
        raise ScoringFailed(
            f"the environment gave no reward for {len(counted) - len(known)} of {len(counted)} "
            f"steps that count, which is not a reward of 0{over}{hint}"
        )
    numbers = outcome.get("numbers") or {}
    if missing := [name for name in metrics if name not in numbers]:
        raise ScoringFailed(f"the last step's info has no number {missing[0]!r}")
    return Score(
        (
            Metric("reward", sum(known), 1.0),
            Metric("steps", len(rewards)),
            *(Metric(name, numbers[name]) for name in metrics),
        )
    )


@dataclass(frozen=True, slots=True)
class StepEnvironments:
    """Makes the environment of an attempt."""

    make_env: Callable[[Sample], Any] | str
    act: Callable[[Message], Any]
    observe: Callable[[Any], Any] | None
    system_prompt: str | None
    version: str | None
    """Of the package that the environment comes from."""
    seconds: float = 60.0
    passes_input: bool = False
    """Whether `reset` gets the whole input as arguments."""
    is_elsewhere: bool = False
    """Whether the environment runs on a server, and draws nothing in this process."""

    def __call__(self, sample: Sample) -> StepEnvironment:
        """Make an environment that has not begun."""
        return StepEnvironment(self, sample)

    def identity(self) -> dict[str, Any]:
        """Describe the functions and settings: what a resumed run must share."""
        env = self.make_env
        return {
            "name": "from_step_env",
            "make_env": env if isinstance(env, str) else describe_callable(env, docstrings=True),
            "act": describe_callable(self.act),
            "observe": describe_callable(self.observe),
            "system_prompt": self.system_prompt,
            "version": self.version,
        }


class StepEnvironment:
    """An environment with reset and step, which replies to a policy."""

    env_kind = "step_environment"
    version = "1.0"
    tools: Sequence[ToolSpec] = ()

    def __init__(self, settings: StepEnvironments, sample: Sample) -> None:
        self._settings, self._sample = settings, sample
        self._prompt: list[dict[str, Any]] = []
        if any(sample.input[field] for field in list_question_fields(sample)):
            self._prompt = [to_chat_api(m) for m in likely_question(sample)]
        self._episode: StepEpisode | None = None
        self._actions: list[Any] = []
        self._rewards: list[float | None] = []
        self._last = EpisodeStep(None)
        self._went = ""
        """In a worker, a hash of how the episode went."""

    async def opening(self) -> Sequence[Message]:
        """Reset the environment, and return its first observation."""
        step = self._last = await self._begin()
        if step.done:
            raise EnvironmentFailed("the episode was over before the first turn")
        prompt = self._settings.system_prompt
        system = [] if prompt is None else [Message("system", prompt)]
        observed = self._observe(step.observation)
        if not observed:
            raise EnvironmentFailed("the first observation is empty, so there is nothing to ask")
        return [*system, *observed]

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Take the model's turn as an action, and return the next observation."""
        turn = messages[-1]
        if turn.tool_calls:  # every call needs an answer, though none was offered
            text = "Error: there are no tools here; write your action"
            return Reply(tuple(Message("tool", text, tool_call_id=c.id) for c in turn.tool_calls))
        action = self._settings.act(turn)
        try:
            step = self._last = await self._step(action)
        except ActionRefused as problem:
            return Reply((Message("user", f"This is no valid action: {problem}"[:2000]),))
        self._actions.append(action)
        self._rewards.append(step.reward)
        observed = self._observe(step.observation)
        if not observed and not step.done:
            raise EnvironmentFailed("an observation is empty though the episode goes on")
        return Reply(tuple(observed), step.done)

    def outcome(self) -> dict[str, Any]:
        """Return the rewards, whether the episode is over, and the numbers of the last info."""
        return {
            "rewards": self._rewards,
            "done": self._last.done,
            "truncated": self._last.truncated,
            "numbers": dict(self._last.numbers),
        }

    async def close(self) -> None:
        """Close the environment; what a worker keeps is dropped there in its time."""
        if self._episode is not None:
            await settle(self._episode.close())

    def snapshot(self) -> dict[str, Any]:
        """Return the actions so far: an episode is its seed and its actions."""
        return make_snapshot(
            self,
            {
                "actions": [*self._actions],
                "rewards": [*self._rewards],
                "numbers": dict(self._last.numbers),
                "went": self._went,
            },
        )

    async def restore(self, snapshot: dict[str, Any]) -> None:
        """Play the episode again up to where it was."""
        state = read_snapshot(self, snapshot)
        self._rewards, self._went = [*state["rewards"]], state["went"]
        if isinstance(self._settings.make_env, str):  # a worker plays it again, when asked
            self._actions = [*state["actions"]]
            self._last = EpisodeStep(None, numbers=state["numbers"])
            return
        await self._begin()
        for action, reward in zip(state["actions"], state["rewards"], strict=True):
            step = self._last = await self._step(action)
            self._actions.append(action)
            if step.reward != reward:
                raise EnvironmentFailed("the episode went another way when it was played again")

    # --- Here, or in a worker ---

    async def _begin(self) -> EpisodeStep:
        make_env = self._settings.make_env
        if isinstance(make_env, str):
            return await self._play([])
        if is_background_thread() and not self._settings.is_elsewhere:
            raise EnvironmentFailed(
                "while another thread trains, an environment may not have the random state of "
                "this process: give make_env as 'module:function', which plays in worker "
                "processes, or evaluate inline"
            )
        passes_input = self._settings.passes_input
        self._episode = StepEpisode(make_env, self._sample, self._prompt, passes_input=passes_input)
        return await settle(self._episode.begin())

    async def _step(self, action: Any) -> EpisodeStep:
        if self._episode is None:
            return await self._play([*self._actions, action])
        return await settle(self._episode.step(action))

    async def _play(self, actions: list[Any]) -> EpisodeStep:
        sample = self._sample
        fields = {"id": sample.id, "input": sample.input, "ground_truth": sample.ground_truth}
        arguments = self._settings.make_env, fields, self._prompt, actions, self._went
        try:
            step, self._went = await worker_pool().run(
                f"{WORKER}:play", *arguments, seconds=self._settings.seconds
            )
        except WorkerError as problem:
            raise EnvironmentFailed(f"{self._settings.make_env}: {problem}") from problem
        return EpisodeStep(*step)

    def _observe(self, observation: Any) -> list[Message]:
        if self._settings.observe is not None:
            observation = self._settings.observe(observation)
        return observed_messages(observation)


__all__ = [
    "ActionRefused",
    "StepEnvironment",
    "from_step_env",
    "observed_messages",
    "score_rewards",
    "seeds",
]
