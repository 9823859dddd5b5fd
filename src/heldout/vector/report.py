"""What an evaluation of episodes reports: every number with its denominator and error bar.

Clauses 9 to 11 of docs/semantics.md. A report that is saved is read like that of any other eval:
an episode is a sample, its reward is its success or its return, and return, steps and distance
are metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.stats import Interval, Moments, median_interval, wilson
from heldout.store.report import EvalReport
from heldout.types import EvalResult, Metric, Sample, Score, Stop, Trajectory

Reward = Literal["success", "return"]


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode that was played to its end."""

    index: int
    seed: int | None
    """What it was reset with; None where the environment cannot be seeded."""
    steps: int
    ret: float
    success: bool
    terminated: bool
    truncated: bool
    dist: float | None = None
    """Distance to its goal at the end, where the environment says so."""


@dataclass(frozen=True, slots=True)
class VectorReport:
    """The result of an evaluation."""

    summary: dict[str, Any]
    """Numbers under stable keys in a stable order."""
    episodes: Sequence[Episode]
    config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What the environments cannot do, and what else a reader should know."""

    def __repr__(self) -> str:
        keys = ("episodes", "success_rate", "median_steps_to_goal", "mean_return")
        numbers = {key: self.summary.get(key) for key in keys}
        return f"VectorReport({numbers}, env={self.config.get('env')!r})"

    def as_eval(self, reward: Reward = "success") -> EvalReport:
        """Convert to a report of samples, one per episode, named `episode-<index>`.

        Args:
            reward: What the reward of a sample is: 1 for a success and 0 otherwise, or the
                episode's return. The return is a metric either way; success is one too where
                `success` or the environment said what it is.

        Returns:
            The same episodes as `EvalResult`s, for whatever reads those.
        """
        from heldout.store.columns import summarize_results

        results = [_as_result(episode, self.config, reward) for episode in self.episodes]
        return EvalReport(results, summarize_results(results), dict(self.config))

    def save(self, path: str | Path) -> None:
        """Write a run directory that `heldout show` and the other commands read.

        Args:
            path: A directory that holds no run.

        Raises:
            RunExists: It holds one.
        """
        report = self.as_eval()
        report.config["experiment_name"] = Path(path).name
        report.save(path)

    @classmethod
    def load(cls, path: str | Path) -> VectorReport:
        """Read a report that `save` wrote.

        Args:
            path: Its run directory.

        Returns:
            The report, computed again from the results of its episodes.

        Raises:
            InvalidInput: The run is one of samples.
            RunDirectoryError: The run is damaged.
        """
        saved = EvalReport.load(path)
        config = {key: value for key, value in saved.config.items() if key != "experiment_name"}
        if config.get("kind") != "episodes":
            raise InvalidInput(
                f"{path} holds the results of samples, not of episodes; EvalReport.load reads it"
            )
        try:
            episodes = [_read_result(index, result) for index, result in enumerate(saved.results)]
            return cls(summarize(episodes, config), episodes, config, tuple(config["notes"]))
        except (KeyError, TypeError, ValueError) as problem:
            raise RunDirectoryError(f"{path} is no run of episodes: {problem!r}") from problem


def episode_sample(index: int, seed: int | None, env: str | None = None) -> Sample:
    """Make the sample of an episode: the same at every evaluation that plays it.

    The index is part of its input, so that no two are equal where nothing can be seeded.
    """
    return Sample(f"episode-{index}", {"env": env, "index": index, "seed": seed})


def _as_result(episode: Episode, config: Mapping[str, Any], reward: Reward) -> EvalResult:
    sample = episode_sample(episode.index, episode.seed, config.get("env"))
    metadata: dict[str, Any] = {
        "success": episode.success,
        "ended": "terminated" if episode.terminated else "truncated",
    }
    if episode.terminated and episode.truncated:
        metadata["truncated"] = True
    stop = Stop("environment") if episode.terminated else Stop("limit", "steps")
    metrics = [Metric("return", episode.ret, weight=float(reward == "return"))]
    if reward == "success" or config.get("success_is") != "terminated":
        # Not where nothing said what success is: in CartPole a pole that fell has terminated.
        metrics.insert(0, Metric("success", episode.success, weight=float(reward == "success")))
    metrics.append(Metric("steps", episode.steps))
    if episode.dist is not None:
        metrics.append(Metric("dist_at_end", episode.dist))
    return EvalResult(sample.id, sample, Trajectory((), stop), Score(tuple(metrics)), metadata)


def _read_result(index: int, result: EvalResult) -> Episode:
    values = {metric.name: metric.value for metric in result.score.metrics}
    terminated = result.metadata["ended"] == "terminated"
    return Episode(
        index,
        result.sample.input["seed"],
        int(values["steps"]),
        float(values["return"]),
        result.metadata["success"],
        terminated,
        not terminated or result.metadata.get("truncated", False),
        values.get("dist_at_end"),
    )


def summarize(episodes: Sequence[Episode], config: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the summary (clause 10) of all episodes that were asked for."""
    ret = np.array([episode.ret for episode in episodes])
    steps = np.array([episode.steps for episode in episodes])
    success = np.array([episode.success for episode in episodes])
    terminated = np.array([episode.terminated for episode in episodes])
    dist = np.array([episode.dist for episode in episodes if episode.dist is not None])
    n, successes = len(episodes), int(success.sum())
    # Where a time limit ended it, the steps are the limit's: they are no way to a goal.
    to_goal = steps[success & terminated]
    returns = Moments.of(ret)
    return {
        "episodes": n,
        "successes": successes,
        "success_rate": successes / n,
        **_bounds("success_rate", wilson(successes / n, n)),
        "median_steps_to_goal": _median(to_goal),
        **_bounds("median_steps_to_goal", median_interval(to_goal)),
        "median_steps_to_goal_n": len(to_goal),
        "mean_return": returns.mean,
        "mean_return_stderr": returns.stderr,
        # A return is no rate, even where all that were seen lie between 0 and 1.
        **_bounds("mean_return", returns.interval(bounded=False)),
        "steps": int(steps.sum()),
        "terminated": int(terminated.sum()),
        "truncated": n - int(terminated.sum()),
        "return_mean_success": Moments.of(ret[success]).mean,
        "return_mean_fail": Moments.of(ret[~success]).mean,
        "steps_p50_success": _median(steps[success]),
        "dist_at_end_p50": _median(dist),
        "dist_n": len(dist),
        "num_envs": config["num_envs"],
        "seed": config["seed"],
        "seeded": config["seeded"],
        "success_is": config["success_is"],
        "notes": list(config["notes"]),
    }


def _median(values: NDArray[Any]) -> float | None:
    return float(np.median(values)) if len(values) else None


def _bounds(name: str, interval: Interval | None) -> dict[str, Any]:
    return {
        f"{name}_ci_low": interval.low if interval else None,
        f"{name}_ci_high": interval.high if interval else None,
    }
