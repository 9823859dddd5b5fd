"""What an evaluation of episodes reports: every number with its denominator and error bar.

Clauses 9 to 11 of docs/semantics.md. A report is read like that of any other eval once it is
saved: an episode is an item, its reward is its success, and return, steps and distance are
metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.stats import Interval, Moments, median_interval, wilson
from heldout.store.report import EvalReport
from heldout.summary import Summary
from heldout.types import EvalResult, Metric, Sample, Score, Stop, Trajectory


@dataclass(frozen=True, slots=True)
class Episode:
    index: int
    seed: int | None
    """What it was reset with; None where the environment could not be told."""
    steps: int
    ret: float
    success: bool
    terminated: bool
    truncated: bool
    dist: float | None = None
    """How far from its goal it ended, where the environment says so."""


class Books(Sequence[Episode]):
    """All episodes, by index, in a few bytes each."""

    def __init__(self, requested: int) -> None:
        self.ret = np.zeros(requested)
        self.dist = np.full(requested, np.nan)
        self.steps = np.zeros(requested, dtype=np.int64)
        self.seed = np.full(requested, -1, dtype=np.int64)
        self.success = np.zeros(requested, dtype=np.bool_)
        self.terminated = np.zeros(requested, dtype=np.bool_)
        self.truncated = np.zeros(requested, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.ret)

    @overload
    def __getitem__(self, place: int) -> Episode: ...
    @overload
    def __getitem__(self, place: slice) -> list[Episode]: ...
    def __getitem__(self, place: int | slice) -> Episode | list[Episode]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        index = range(len(self))[place]
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
    """`summary` has stable keys in a stable order; `notes` say what the environments cannot do."""

    summary: dict[str, Any]
    episodes: Sequence[Episode]
    config: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        keys = ("episodes", "success_rate", "median_steps_to_goal", "mean_return")
        numbers = {key: self.summary.get(key) for key in keys}
        return f"VectorReport({numbers}, env={self.config.get('env')!r})"

    def as_eval(self) -> EvalReport:
        """The same as a report of items, for `save`, `slice` and whatever reads reports."""
        from heldout.summary import summarize_results

        results = [_result(episode, self.config) for episode in self.episodes]
        summary: Summary = summarize_results(results)
        return EvalReport(results, summary, dict(self.config))

    def save(self, path: str | Path) -> None:
        """Write a run directory that `heldout show` and the other commands read."""
        name = Path(path).name
        report = self.as_eval()
        report.config["experiment_name"] = name
        report.save(path)

    @classmethod
    def load(cls, path: str | Path) -> VectorReport:
        """What `save` wrote, made again from its records of episodes."""
        saved = EvalReport.load(path)
        config = {key: value for key, value in saved.config.items() if key != "experiment_name"}
        if config.get("kind") != "episodes":
            raise InvalidInput(
                f"{path} holds the results of samples, not of episodes; EvalReport.load reads it"
            )
        books = Books(len(saved.results))
        try:
            for index, result in enumerate(saved.results):
                _enter(books, index, result)
            notes = tuple(config["notes"])
            summary = summarize(
                books, num_envs=config["num_envs"], seed=config["seed"], seeded=config["seeded"]
            )
            summary["success_is"], summary["notes"] = config["success_is"], list(notes)
        except (KeyError, TypeError, ValueError, OverflowError) as problem:
            raise RunDirectoryError(f"{path} is no run of episodes: {problem!r}") from problem
        return cls(summary, books, config, notes)


def _result(episode: Episode, config: Mapping[str, Any]) -> EvalResult:
    sample = Sample(
        f"episode-{episode.index}",
        {"env": config.get("env"), "index": episode.index, "seed": episode.seed},
        metadata={
            "success": episode.success,
            "ended": "terminated" if episode.terminated else "truncated",
        },
    )
    both = {"truncated": True} if episode.terminated and episode.truncated else {}
    stop = Stop("environment") if episode.terminated else Stop("limit", "steps")
    metrics = [
        Metric("success", episode.success, weight=1.0),
        Metric("return", episode.ret),
        Metric("steps", episode.steps),
    ]
    if episode.dist is not None:
        metrics.append(Metric("dist_at_end", episode.dist))
    return EvalResult(sample.id, sample, Trajectory((), stop), Score(tuple(metrics)), both)


def _enter(books: Books, index: int, result: EvalResult) -> None:
    """The reverse of `_result`."""
    values = {metric.name: metric.value for metric in result.score.metrics}
    seed = result.sample.input["seed"]
    books.seed[index] = -1 if seed is None else seed
    books.ret[index], books.steps[index] = values["return"], int(values["steps"])
    books.dist[index] = values.get("dist_at_end", np.nan)
    books.success[index] = values["success"] == 1.0
    books.terminated[index] = terminated = result.metadata["ended"] == "terminated"
    books.truncated[index] = not terminated or result.metadata.get("truncated", False)


# --- Numbers ------------------------------------------------------------------------------------


def summarize(books: Books, *, num_envs: int, seed: int, seeded: bool) -> dict[str, Any]:
    """Clause 10. Denominators are the episodes asked for, which are the episodes played."""
    n, successes = len(books), int(books.success.sum())
    # Where a time limit ended it, the steps are the limit's: they are no way to a goal.
    to_goal = books.steps[books.success & books.terminated]
    returns = _moments(books.ret)
    middle = median_interval(to_goal)
    dist = books.dist[~np.isnan(books.dist)]
    return {
        "episodes": n,
        "successes": successes,
        "success_rate": successes / n,
        **_bounds("success_rate", wilson(successes / n, n)),
        "median_steps_to_goal": _median(to_goal),
        **_bounds("median_steps_to_goal", middle),
        "median_steps_to_goal_n": len(to_goal),
        "mean_return": returns.mean,
        "mean_return_stderr": returns.stderr,
        # A return is no rate, even where all that were seen lie between 0 and 1.
        **_bounds("mean_return", returns.interval(bounded=False)),
        "steps": int(books.steps.sum()),
        "terminated": int(books.terminated.sum()),
        "truncated": int((books.truncated & ~books.terminated).sum()),
        "return_mean_success": _moments(books.ret[books.success]).mean,
        "return_mean_fail": _moments(books.ret[~books.success]).mean,
        "steps_p50_success": _median(books.steps[books.success]),
        "dist_at_end_p50": _median(dist),
        "dist_n": len(dist),
        "num_envs": num_envs,
        "seed": seed,
        "seeded": seeded,
    }


def _moments(values: NDArray[np.float64]) -> Moments:
    moments = Moments()
    moments.add(values, np.arange(len(values)))
    return moments


def _median(values: NDArray[Any]) -> float | None:
    """The mean of the two middle values where their number is even; None of none."""
    return float(np.median(values)) if len(values) else None


def _bounds(name: str, interval: Interval | None) -> dict[str, Any]:
    return {
        f"{name}_ci_low": interval.low if interval else None,
        f"{name}_ci_high": interval.high if interval else None,
    }
