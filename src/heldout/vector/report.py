"""What an evaluation of episodes reports: every number with its denominator and error bar.

Clauses 9 to 11 of docs/semantics.md. A report that is saved is read like that of any other eval:
an episode is a sample, its reward is its success or its return, and return, steps and distance
are metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

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


class EpisodeTable(Sequence[Episode]):
    """All episodes, by index, in a few bytes each.

    Args:
        episodes: How many there are.
    """

    def __init__(self, episodes: int) -> None:
        self.ret = np.zeros(episodes)
        self.dist = np.full(episodes, np.nan)
        self.steps = np.zeros(episodes, dtype=np.int64)
        self.seed = np.full(episodes, -1, dtype=np.int64)
        self.success = np.zeros(episodes, dtype=np.bool_)
        self.terminated = np.zeros(episodes, dtype=np.bool_)
        self.truncated = np.zeros(episodes, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.ret)

    @overload
    def __getitem__(self, index: int) -> Episode: ...
    @overload
    def __getitem__(self, index: slice) -> list[Episode]: ...
    def __getitem__(self, index: int | slice) -> Episode | list[Episode]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        seed, dist = int(self.seed[index]), float(self.dist[index])
        return Episode(
            index,
            None if seed < 0 else seed,
            int(self.steps[index]),
            float(self.ret[index]),
            bool(self.success[index]),
            bool(self.terminated[index]),
            bool(self.truncated[index]),
            None if np.isnan(dist) else dist,
        )

    def __iter__(self) -> Iterator[Episode]:
        return (self[i] for i in range(len(self)))


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
        table = EpisodeTable(len(saved.results))
        try:
            for index, result in enumerate(saved.results):
                _read_result(table, index, result)
            summary, notes = summarize(table, config), tuple(config["notes"])
        except (KeyError, TypeError, ValueError, OverflowError) as problem:
            raise RunDirectoryError(f"{path} is no run of episodes: {problem!r}") from problem
        return cls(summary, table, config, notes)


def episode_sample(index: int, seed: int | None, env: str | None = None) -> Sample:
    """Make the sample of an episode: the same at every evaluation that plays it.

    Args:
        index: Which episode it is. No two samples are of equal content, also where the environment
            cannot be seeded.
        seed: What it is reset with.
        env: The environment's name, where it is known.

    Returns:
        The sample, named `episode-<index>`.
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


def _read_result(table: EpisodeTable, index: int, result: EvalResult) -> None:
    """The reverse of `_as_result`."""
    values = {metric.name: metric.value for metric in result.score.metrics}
    seed = result.sample.input["seed"]
    table.seed[index] = -1 if seed is None else seed
    table.ret[index], table.steps[index] = values["return"], int(values["steps"])
    table.dist[index] = values.get("dist_at_end", np.nan)
    table.success[index] = result.metadata["success"]
    table.terminated[index] = terminated = result.metadata["ended"] == "terminated"
    table.truncated[index] = not terminated or result.metadata.get("truncated", False)


def summarize(table: EpisodeTable, config: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the summary (clause 10).

    Args:
        table: The episodes. All that were asked for were played, so denominators are their number.
        config: What else the summary repeats: num_envs, seed, seeded, success_is and notes.

    Returns:
        The numbers, always under the same keys in the same order.
    """
    n, successes = len(table), int(table.success.sum())
    # Where a time limit ended it, the steps are the limit's: they are no way to a goal.
    to_goal = table.steps[table.success & table.terminated]
    returns = _moments(table.ret)
    dist = table.dist[~np.isnan(table.dist)]
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
        "steps": int(table.steps.sum()),
        "terminated": int(table.terminated.sum()),
        "truncated": int((table.truncated & ~table.terminated).sum()),
        "return_mean_success": _moments(table.ret[table.success]).mean,
        "return_mean_fail": _moments(table.ret[~table.success]).mean,
        "steps_p50_success": _median(table.steps[table.success]),
        "dist_at_end_p50": _median(dist),
        "dist_n": len(dist),
        "num_envs": config["num_envs"],
        "seed": config["seed"],
        "seeded": config["seeded"],
        "success_is": config["success_is"],
        "notes": list(config["notes"]),
    }


def _moments(values: NDArray[np.float64]) -> Moments:
    moments = Moments()
    moments.add(values, np.arange(len(values)))
    return moments


def _median(values: NDArray[Any]) -> float | None:
    return float(np.median(values)) if len(values) else None


def _bounds(name: str, interval: Interval | None) -> dict[str, Any]:
    return {
        f"{name}_ci_low": interval.low if interval else None,
        f"{name}_ci_high": interval.high if interval else None,
    }
