"""An environment with reset and step, which replies to a policy: here, or in a worker process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from heldout._core.aio import settle
from heldout._core.chat.messages import message_of, to_chat_api
from heldout._core.chat.questions import likely_question, list_question_fields
from heldout._live.isolation import is_background_thread
from heldout._reasoning import without_reasoning
from heldout.environment import Reply, make_snapshot, read_snapshot
from heldout.environments.episodes import ActionRefused, EpisodeStep, StepEpisode
from heldout.errors import EnvironmentFailed, ScoringFailed, WorkerError
from heldout.scoring.process_pool import Pool
from heldout.types import Message, Metric, Sample, Score, ToolSpec, Trajectory

WORKER = "heldout.environments.episode_worker"
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


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How an environment with reset and step becomes a conversation.

    Attributes:
        act: Makes an action of a model turn; its text without reasoning by default.
        observe: Makes a text, or messages, of an observation that is neither.
        system_prompt: A system message before the first observation.
        worker: "module:function", which makes the environment in worker processes, instead of
            `make_env` in this one.
        seconds: Time limit of a step in a worker process.
        passes_input: Whether `reset` gets the whole input as arguments.
        is_elsewhere: Whether the environment runs on a server, and draws nothing in this process.
    """

    act: Callable[[Message], Any] = text_action
    observe: Callable[[Any], Any] | None = None
    system_prompt: str | None = None
    worker: str | None = None
    seconds: float = 60.0
    passes_input: bool = False
    is_elsewhere: bool = False


class StepEnvironment:
    """An environment with reset and step, which replies to a policy."""

    env_kind = "step_environment"
    version = "1.0"
    tools: Sequence[ToolSpec] = ()

    def __init__(
        self, make_env: Callable[[Sample], Any], settings: StepSettings, sample: Sample
    ) -> None:
        self._make_env, self._settings, self._sample = make_env, settings, sample
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
        if self._settings.worker is not None:  # a worker plays it again, when asked
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
        if self._settings.worker is not None:
            return await self._play([])
        if is_background_thread() and not self._settings.is_elsewhere:
            raise EnvironmentFailed(
                "while another thread trains, an environment may not have the random state of "
                "this process: give make_env as 'module:function', which plays in worker "
                "processes, or evaluate inline"
            )
        passes_input = self._settings.passes_input
        self._episode = StepEpisode(
            self._make_env, self._sample, self._prompt, passes_input=passes_input
        )
        return await settle(self._episode.begin())

    async def _step(self, action: Any) -> EpisodeStep:
        if self._episode is None:
            return await self._play([*self._actions, action])
        return await settle(self._episode.step(action))

    async def _play(self, actions: list[Any]) -> EpisodeStep:
        sample = self._sample
        fields = {"id": sample.id, "input": sample.input, "ground_truth": sample.ground_truth}
        arguments = self._settings.worker, fields, self._prompt, actions, self._went
        try:
            step, self._went = await worker_pool().run(
                f"{WORKER}:play", *arguments, seconds=self._settings.seconds
            )
        except WorkerError as problem:
            raise EnvironmentFailed(f"{self._settings.worker}: {problem}") from problem
        return EpisodeStep(*step)

    def _observe(self, observation: Any) -> list[Message]:
        if self._settings.observe is not None:
            observation = self._settings.observe(observation)
        return observed_messages(observation)


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


__all__ = [
    "RewardOf",
    "StepEnvironment",
    "StepSettings",
    "observed_messages",
    "score_rewards",
    "text_action",
    "worker_pool",
]
