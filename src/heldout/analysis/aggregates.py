"""Several training runs on several tasks: one number for all, that few lucky runs do not make.

    aggregate(score_matrix([seed_0, seed_1, seed_2], tasks="game", metric="return"))

What is said of the matrix of scores (`scores.py`), and its intervals, is R. Agarwal et al. (2021),
"Deep Reinforcement Learning at the Edge of the Statistical Precipice", arXiv 2108.13264.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heldout.analysis._runs import PASSED, REWARD
from heldout.analysis.scores import RunCheck, ScoreMatrix, identity_of
from heldout.errors import InvalidInput
from heldout.stats import (
    BootstrapEstimate,
    Floats,
    Statistic,
    bootstrap,
    bootstrap_improvement,
)
from heldout.stats.resampling import REPETITIONS

FEW_RUNS = 5
"""Percentile intervals of fewer runs are too narrow: three cannot show how far others would be."""
FEW_RUNS_FOR_MEDIAN = 50
"""Those of a median over tasks are so with more of them (docs/statistics.md has the coverage)."""
MOST_MEANS = 100_000_000
"""So many means of a task in a resample are held at a time: 0.8 GB."""


@dataclass(frozen=True, slots=True, eq=False)
class Aggregates:
    """Of a score matrix; `improvement` is over the runs of another one."""

    matrix: ScoreMatrix
    against: ScoreMatrix | None
    optimum: float
    estimates: Mapping[Statistic, BootstrapEstimate]
    improvement: BootstrapEstimate | None
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: plain values, stable keys."""
        estimates = [(str(name), estimate) for name, estimate in self.estimates.items()]
        if self.improvement is not None:
            estimates.append(("improvement_probability", self.improvement))
        found: dict[str, Any] = _matrix_as_dict(self.matrix)
        if self.against is not None:
            found["against"] = _matrix_as_dict(self.against)
        for name, estimate in estimates:
            found[name] = estimate.value
            found[f"{name}_ci_low"] = estimate.interval.low if estimate.interval else None
            found[f"{name}_ci_high"] = estimate.interval.high if estimate.interval else None
        one = self.estimates["interquartile_mean"]
        settings = {"repetitions": one.repetitions, "seed": one.seed, "confidence": one.confidence}
        return {**found, "optimum": self.optimum, **settings, "notes": list(self.notes)}


def _matrix_as_dict(matrix: ScoreMatrix) -> dict[str, Any]:
    return {
        "metric": matrix.metric,
        "n_runs": len(matrix.runs),
        "n_tasks": len(matrix.tasks),
        "n": matrix.items,
        "n_errors": matrix.errored,
        "runs": list(matrix.runs),
        "tasks": list(matrix.tasks),
        "scores": matrix.scores.tolist(),
    }


def aggregate(
    matrix: ScoreMatrix,
    against: ScoreMatrix | None = None,
    *,
    optimum: float = 1.0,
    seed: int = 0,
    repetitions: int = REPETITIONS,
    allow: Collection[str] = (),
) -> Aggregates:
    """Interquartile mean, mean, median and optimality gap with 95% intervals; with `against`, the
    probability that a run of `matrix` beats one of `against` on the same task.

    The same seed gives the same intervals. They speak for other runs on the same tasks. `allow`
    names what may differ between the two sides, as in `score_matrix`.
    """
    _check_settings(matrix, optimum, seed, repetitions)
    theirs = None if against is None else _same_tasks(matrix, against)
    notes = _notes(matrix)
    if against is not None:
        notes += [f"against: {note}" for note in _notes(against)]
        notes += _between(matrix, against, allow)
    names: tuple[Statistic, ...] = ("interquartile_mean", "mean", "median", "optimality_gap")
    scores = matrix.scores
    estimates = {
        name: bootstrap(scores, name, seed=seed, repetitions=repetitions, optimum=optimum)
        for name in names
    }
    improvement = None
    if theirs is not None:
        improvement = bootstrap_improvement(scores, theirs, seed=seed, repetitions=repetitions)
    few = len(matrix.runs) < FEW_RUNS_FOR_MEDIAN and estimates["median"].interval is not None
    if few and len(matrix.tasks) > 2:  # of one or two means the median is the mean
        notes.append(
            "the interval of a median over tasks is far too narrow for few runs "
            f"({len(matrix.runs)} here): prefer the interquartile mean"
        )
    if improvement is not None and improvement.value in (0, 1):
        # Every resample says the same, which is no reason to be certain of other runs.
        improvement = replace(improvement, interval=None)
        who = "beats" if improvement.value else "loses to"
        notes.append(
            f"every run {who} every one of those against, so how sure that is cannot be told"
        )
    if scores.min() >= optimum:
        notes.append(f"no score is below {optimum:g}, so there is no gap to it to speak of")
    return Aggregates(matrix, against, optimum, estimates, improvement, tuple(notes))


def _check_settings(matrix: ScoreMatrix, optimum: float, seed: int, repetitions: int) -> None:
    if not math.isfinite(optimum * matrix.scores.size):
        raise InvalidInput(f"optimum is a finite number, the best score there is; got {optimum!r}")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidInput(f"seed is a whole number, 0 or more; got {seed!r}")
    tasks = len(matrix.tasks)
    most = MOST_MEANS // max(1, tasks)
    if not isinstance(repetitions, int | np.integer) or not 1 <= repetitions <= most:
        raise InvalidInput(
            f"repetitions is a whole number from 1 to {most:,} (for {tasks} "
            f"task{'s' * (tasks != 1)}); got {repetitions!r}"
        )


def _notes(matrix: ScoreMatrix) -> list[str]:
    notes = [*matrix.notes]
    if matrix.errored:
        counted = "count as 0" if matrix.metric in (REWARD, PASSED) else "are in no mean"
        notes.append(f"{matrix.errored} of {matrix.items} items errored and {counted}")
    count = len(matrix.runs)
    if count > 1 and (matrix.scores == matrix.scores[0]).all():
        notes.append("on each task all runs scored the same, so there is no interval")
    if count == 1:
        notes.append("one run does not show how runs differ: an interval needs several")
    elif count < FEW_RUNS:
        notes.append(f"intervals from {count} runs are too narrow: have {FEW_RUNS} at least")
    return notes


def _same_tasks(matrix: ScoreMatrix, against: ScoreMatrix) -> Floats:
    if matrix.metric != against.metric:
        raise InvalidInput(f"scores are of {matrix.metric!r} here and of {against.metric!r} there")
    odd = sorted({*matrix.tasks} ^ {*against.tasks})
    if odd:
        raise InvalidInput(
            f"both sides need the same tasks; only one of them has {', '.join(map(repr, odd))}"
        )
    place = {task: number for number, task in enumerate(against.tasks)}
    return against.scores[:, [place[task] for task in matrix.tasks]]


def _between(matrix: ScoreMatrix, against: ScoreMatrix, allow: Collection[str]) -> list[str]:
    """NotComparable where the sides were not asked the same; what was allowed, as notes."""
    ours, theirs = matrix.source, against.source
    if ours is None or theirs is None:
        return []
    known = {identity_of(report) for report in ours.reports}
    for report in theirs.reports:
        if identity_of(report) in known:
            where = repr(report) if report.path is None else report.path
            raise InvalidInput(f"{where} is on both sides; every run is on one")
    check = RunCheck(allow, matrix.metric)
    by_id = ours.ids_tell and theirs.ids_tell
    # Whether runs that did not finish may be here, their matrices have settled.
    settled = {"incomplete"} if by_id else {"incomplete", "samples"}
    first_of = dict(zip(against.tasks, theirs.first, strict=True))
    seen = set()
    for task, one in zip(matrix.tasks, ours.first, strict=True):
        other = first_of[task]
        names = one.of.name, f"{other.of.name} (against)"
        if names not in seen:
            seen.add(names)
            named = replace(other.of, name=names[1])
            check.reports(one.of, named, "cannot be compared", settled=settled)
        if not by_id:
            check.content(one, other, names, task)
    return check.notes()
