"""Environments with reset and step as heldout evals: Gymnasium's text environments, GEM, SkyRL-gym.

    from_step_env(make_env, seeds("guess", range(50)))            # in this process
    from_step_env("my_envs:make_env", seeds("guess", range(50)))  # in worker processes

The observation of reset opens the conversation, a model turn is an action, and the next observation
is the reply. The reward is the environment's, bit for bit: the sum of an episode's rewards, or the
last one. A reward that is None was not given, which is an error and not 0.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from heldout._evals.rollout import EvalDefinition
from heldout.adapters.seam import AdaptedEval, Row
from heldout.environments.episodes import ActionRefused
from heldout.environments.stepped import (
    WORKER,
    RewardOf,
    StepEnvironment,
    StepSettings,
    observed_messages,
    score_rewards,
    text_action,
    worker_pool,
)
from heldout.errors import InvalidInput, WorkerError
from heldout.store.fingerprint import describe_callable
from heldout.types import Message, Sample, Score, Trajectory


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
    settings = StepSettings(
        act, observe, system_prompt, make_env if isinstance(make_env, str) else None, seconds
    )
    made = StepEval(make_env, samples, settings, reward, metrics, max_turns, package)
    return made.definition()


class GivenSamples(AdaptedEval):
    """An eval of the user's own samples, with the ids that they have."""

    reads_metadata = True

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples = samples  # type: ignore[assignment]

    def rows(self) -> Iterable[Row]:
        """Return nothing: the samples are there."""
        return ()


class StepEval(GivenSamples):
    """An eval of environments with reset and step."""

    name = "from_step_env"

    def __init__(
        self,
        make_env: Callable[[Sample], Any] | str,
        samples: Iterable[Sample],
        settings: StepSettings,
        reward: RewardOf,
        metrics: Sequence[str] = (),
        max_turns: int | None = None,
        package: str | None = None,
    ) -> None:
        """Make the eval; see `from_step_env`."""
        if reward not in ("sum", "last"):
            raise InvalidInput(
                f"reward must be 'sum' or 'last' of an episode's rewards, got {reward!r}"
            )
        if package is not None:
            importlib.metadata.version(package)  # which raises where it is not installed
        super().__init__(samples)
        self._env, self._settings = make_env, settings
        self._reward, self._metrics = reward, tuple(metrics)
        self.max_turns, self.package = max_turns, package

    def make_env(self, sample: Sample) -> Any:
        """Make the environment of a sample, in this process."""
        assert callable(self._env)
        return self._env(sample)

    def step_settings(self) -> StepSettings:
        """Return how its turns become actions."""
        return self._settings

    def score(self, trajectory: Trajectory, sample: Sample) -> Score:
        """Score an episode by the rewards that its environment gave."""
        return score_rewards(trajectory, sample, reward=self._reward, metrics=self._metrics)

    def identity(self) -> dict[str, Any]:
        """Describe the functions and settings: what a resumed run must share."""
        env, settings = self._env, self._settings
        return {
            "make_env": env if isinstance(env, str) else describe_callable(env, docstrings=True),
            "act": describe_callable(settings.act),
            "observe": describe_callable(settings.observe),
            "system_prompt": settings.system_prompt,
            "reward": self._reward,
            "metrics": list(self._metrics),
        }


__all__ = [
    "ActionRefused",
    "StepEnvironment",
    "StepEval",
    "StepSettings",
    "from_step_env",
    "observed_messages",
    "score_rewards",
    "seeds",
    "worker_pool",
]
