"""Several training runs on several tasks: one number for all, that few lucky runs do not make.

    aggregate(score_matrix([seed_0, seed_1, seed_2], tasks="game", metric="return"))

A score is what one run is worth on one task: the mean over its items there, as `heldout.summary`
has it. What is said of the matrix of scores, and its intervals, is R. Agarwal et al. (2021), "Deep
Reinforcement Learning at the Edge of the Statistical Precipice", arXiv 2108.13264.

Runs of one task answer one question: the same samples, scored the same way, to the end. What does
not is refused, unless one says that it is meant (`heldout.analysis.comparable`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.analysis.comparable import (
    Mismatch,
    in_common,
    mismatches,
    refuse,
    shared_samples,
    unfinished,
)
from heldout.analysis.measures import PASSED, REWARD, Measure
from heldout.analysis.opened import Comparable, Opened, opened
from heldout.errors import InvalidInput
from heldout.stats import (
    BootstrapEstimate,
    Floats,
    Ints,
    Moments,
    Statistic,
    bootstrap,
    bootstrap_improvement,
)
from heldout.stats.resampling import REPETITIONS
from heldout.store.report import EvalReport
from heldout.store.table import Labels

FEW_RUNS = 5
"""Percentile intervals of fewer runs are too narrow: three cannot show how far others would be."""
FEW_RUNS_FOR_MEDIAN = 50
"""Those of a median over tasks are so with more of them (docs/statistics.md has the coverage)."""
MOST_MEANS = 100_000_000
"""So many means of a task in a resample are held at a time: 0.8 GB."""
SINGLE = "all"
"""The task of reports that are not divided into tasks."""
RUN, TASK = "run", "task"
"""What the keys of runs and tasks are called in tables here, whatever they are in metadata."""


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """The items of one run on one task; `run` and `task` are places, as names may repeat."""

    run: int
    task: int
    of: Opened
    rows: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What a matrix was made of: another one is held against it."""

    reports: tuple[EvalReport, ...]
    first: tuple[_Cell, ...]
    """Of each task, the items of its first run."""
    ids_tell: bool
    """Whether runs of a task have the same ids; not so for several runs in one report."""


@dataclass(frozen=True, slots=True, eq=False)
class ScoreMatrix:
    """What each run is worth on each task."""

    scores: Floats
    """A row for each run, a column for each task."""
    runs: tuple[str, ...]
    tasks: tuple[str, ...]
    metric: str
    items: int
    """Items behind all scores together."""
    errored: int
    """Of these, items without a score: 0 in a mean reward, in no mean of a metric (clause 2)."""
    notes: tuple[str, ...] = ()
    source: Source | None = field(default=None, repr=False)
    """None for scores that did not come from reports: nothing is known of their samples."""


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
    known = {_identity(report) for report in ours.reports}
    for report in theirs.reports:
        if _identity(report) in known:
            where = repr(report) if report.path is None else report.path
            raise InvalidInput(f"{where} is on both sides; every run is on one")
    check = _Check(allow, matrix.metric)
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


# --- What keeps runs apart ----------------------------------------------------------------------


def _identity(report: EvalReport) -> object:
    return id(report) if report.path is None else report.path.resolve()


class _Check:
    """Refuses the first thing that differs and may not; keeps what may."""

    def __init__(self, allow: Collection[str], metric: str) -> None:
        refuse((), allow, "")  # a kind that does not exist is said whether or not it is needed
        self.allow, self.metric = allow, metric
        self.found: dict[Mismatch, None] = {}
        self.unknown = False

    def one(self, report: Opened) -> None:
        self._take(unfinished(report), f"{report.name} cannot be aggregated")

    def reports(self, a: Opened, b: Opened, cannot: str, *, settled: Collection[str] = ()) -> None:
        """`settled` are kinds that are looked at elsewhere."""
        differ = mismatches(
            *(a, b, shared_samples(a, b)),
            keys=[TASK] if TASK in a.table.keys and TASK in b.table.keys else [],
            threshold_matters=self.metric == PASSED,
        )
        differ = [one for one in differ if one.kind not in settled]
        self._take(differ, f"{a.name} and {b.name} {cannot}")

    def content(self, one: _Cell, other: _Cell, names: tuple[str, str], task: str) -> None:
        """Where ids cannot tell: as many samples, of the same inputs and ground truths."""
        a, b = _content(one), _content(other)
        if np.array_equal(a, b):
            return
        both = f"{names[0]} and {names[1]}"
        if len(a) != len(b):
            text = f"{both} have {len(a)} and {len(b)} samples of task {task!r}"
        elif not set(a.tolist()).isdisjoint(b.tolist()):
            text = f"inputs or ground truths of task {task!r} are not the same in both"
        else:
            self.unknown = True
            return
        self._take([Mismatch("samples", text)], f"{both} cannot be aggregated as runs of one task")

    def _take(self, differ: Iterable[Mismatch], what: str) -> None:
        differ = list(differ)
        refuse(differ, self.allow, what)
        self.found |= dict.fromkeys(differ)

    def notes(self) -> list[str]:
        kinds: dict[str, list[str]] = {}
        for mismatch in self.found:
            kinds.setdefault(mismatch.kind, []).append(mismatch.text)
        notes = []
        for kind, texts in kinds.items():
            more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
            notes.append(f"allowed to differ: {kind}: {texts[0]}{more}")
        if self.unknown:
            # An input may name its run, so this alone is no reason to refuse.
            notes.append("runs in one report share no input, so their samples may differ")
        return notes


def _content(cell: _Cell) -> NDArray[np.uint64]:
    """Of its samples, in an order that does not depend on them."""
    table = cell.of.table
    return np.sort(table.content[np.unique(table.sample[cell.rows])])


# --- Reports to a matrix ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Which items are of which run and which task."""

    runs: tuple[str, ...]
    tasks: tuple[str, ...]
    cells: list[_Cell]
    groups: list[list[Opened]]
    """Reports that are runs of the same tasks."""
    ids_tell: bool = True


def score_matrix(
    reports: Comparable | Sequence[Comparable] | Mapping[str, Sequence[Comparable]],
    *,
    runs: str | None = None,
    tasks: str | None = None,
    metric: str = REWARD,
    allow: Collection[str] = (),
) -> ScoreMatrix:
    """Runs x tasks, from reports or the paths of run directories.

    One report whose samples say of which training run they are (`runs`) and of which task
    (`tasks`), both metadata keys; several reports, each of one run; or {task: reports, one a run}.
    Without `tasks` all is one task, but that runs of episodes in different environments are told
    apart by these. A run without items of some task is refused, and so are runs of one task that
    differ in more than their policy; `allow` names what may: some of "samples", "scorer",
    "environment", "threshold", "incomplete". `metric` is "reward", "passed" or a metric's name.
    """
    if Measure(metric, 0).k is not None:
        raise InvalidInput(
            f"{metric} is of the repeats of one report; what is aggregated is {REWARD}, {PASSED} "
            "or a metric by its name"
        )
    check = _Check(allow, metric)
    if isinstance(reports, Mapping):
        if runs is not None or tasks is not None:
            raise InvalidInput("the mapping says which task a report is of: leave out the keys")
        by_task = {task: list(some) for task, some in reports.items()}
        every = iter(_opened([report for some in by_task.values() for report in some]))
        layout = _by_task({task: [next(every) for _ in some] for task, some in by_task.items()})
    else:
        given = [reports] if isinstance(reports, EvalReport | str | Path) else list(reports)
        if runs is not None and len(given) > 1:
            raise InvalidInput(
                f"runs={runs!r} is for one report that holds several runs; {len(given)} were "
                "given, each of which is a run by itself"
            )
        some = _opened(given, runs=runs, tasks=tasks)
        environments = _by_environment(some)
        if tasks is None and len(environments) > 1:
            layout = _by_task(environments)
        else:
            layout = _by_keys(some, single=next(iter(environments)))
    _refuse_missing(layout)
    for report, *others in layout.groups:
        check.one(report)
        for other in others:
            check.reports(report, other, "cannot be aggregated as runs of one task")
    firsts = {cell.task: cell for cell in reversed(layout.cells)}
    if not layout.ids_tell:
        for cell in layout.cells:
            first = firsts[cell.task]
            names = f"run {layout.runs[first.run]!r}", f"run {layout.runs[cell.run]!r}"
            check.content(first, cell, names, layout.tasks[cell.task])
    source = Source(
        tuple(one.report for group in layout.groups for one in group),
        tuple(firsts[task] for task in range(len(layout.tasks))),
        layout.ids_tell,
    )
    return _matrix(layout, metric, check.notes(), source)


def _opened(
    reports: Sequence[Comparable], *, runs: str | None = None, tasks: str | None = None
) -> list[Opened]:
    """Each under a name of its own, with its keys as RUN and TASK."""
    keys = {name: key for name, key in ((RUN, runs), (TASK, tasks)) if key is not None}
    found = []
    known = set()
    for number, given in enumerate(reports, start=1):
        one = opened(given, [*keys.values()], name=f"run {number}")
        if _identity(one.report) in known:
            raise InvalidInput(f"{one.report.path or one.name} was given twice; a run counts once")
        known.add(_identity(one.report))
        labels = {name: one.table.keys[key] for name, key in keys.items()}
        for name, key in keys.items():
            for missing in np.flatnonzero(labels[name].codes < 0)[:1].tolist():
                id = one.table.sample_ids[missing]
                raise InvalidInput(
                    f"sample {id!r} of {one.name} has no {key!r}; every sample needs one"
                )
        found.append(replace(one, table=replace(one.table, keys=labels)))
    if not found:
        raise InvalidInput("there is no report to aggregate")
    names = _distinct(one.name for one in found)
    return [replace(one, name=name) for one, name in zip(found, names, strict=True)]


def _distinct(names: Iterable[object]) -> tuple[str, ...]:
    """As they are shown: a number after one that is there already, and that no other name has."""
    given = [str(name) for name in names]
    own = set(given)
    shown: dict[str, None] = {}
    for place, name in enumerate(given, start=1):
        numbered = (f"{name} ({number})" for number in count(place))
        free = (each for each in numbered if each not in own and each not in shown)
        shown[next(free) if name in shown else name] = None
    return tuple(shown)


def _by_environment(some: list[Opened]) -> dict[str, list[Opened]]:
    """Runs of episodes (`evaluate_env`) say in which environment; of others, all are one group."""
    of_samples = [one for one in some if one.config.get("kind") != "episodes"]
    if 0 < len(of_samples) < len(some):
        raise InvalidInput(
            f"{of_samples[0].name} is of samples, others are of episodes: they share no task"
        )
    groups: dict[str, list[Opened]] = {}
    for one in some:
        groups.setdefault(SINGLE if of_samples else str(one.config.get("env")), []).append(one)
    return groups


def _by_task(tasks: Mapping[str, list[Opened]]) -> _Layout:
    """A report is a cell; the first reports of all tasks are the first run, and so on."""
    most = max(len(reports) for reports in tasks.values())
    for task, reports in tasks.items():
        if len(reports) < most:
            raise InvalidInput(
                f"task {task!r} has {len(reports)} runs where another has {most}: run "
                f"{len(reports) + 1} of it is missing"
            )
    cells = [
        _Cell(run, task, one, np.arange(len(one.table)))
        for task, reports in enumerate(tasks.values())
        for run, one in enumerate(reports)
    ]
    runs = tuple(f"run {number}" for number in range(1, most + 1))
    return _Layout(runs, _distinct(tasks), cells, [*tasks.values()])


def _by_keys(some: list[Opened], *, single: str) -> _Layout:
    """Samples say of which task they are, and of which run where one report holds several."""
    several = RUN in some[0].table.keys
    if several:
        of_runs, runs = _places([one.table.keys[RUN] for one in some])
    else:
        of_runs = [np.full(len(one.table.sample_ids), run) for run, one in enumerate(some)]
        runs = tuple(one.name for one in some)
    if TASK in some[0].table.keys:
        of_tasks, tasks = _places([one.table.keys[TASK] for one in some])
    else:
        of_tasks, tasks = [np.zeros_like(codes) for codes in of_runs], (single,)
    cells = []
    for one, run, task in zip(some, of_runs, of_tasks, strict=True):
        codes = (run * len(tasks) + task)[one.table.sample]
        order = np.argsort(codes, kind="stable")
        present, starts = np.unique(codes[order], return_index=True)
        parts = np.split(order, starts[1:])
        for code, rows in zip(present.tolist(), parts, strict=True):
            place = divmod(code, len(tasks))
            cells.append(_Cell(place[0], place[1], one, rows))
    return _Layout(runs, tasks, cells, [some], ids_tell=not several)


def _places(labels: Sequence[Labels]) -> tuple[list[Ints], tuple[str, ...]]:
    """Of each sample the place of its value, by which came first, and what values are called."""
    codes, values = in_common(*labels)
    present, first = np.unique(np.concatenate(codes), return_index=True)
    present = present[np.argsort(first)]
    places = np.empty(len(values), dtype=np.int64)
    places[present] = np.arange(len(present))
    return [places[some] for some in codes], _distinct(values[i] for i in present.tolist())


def _refuse_missing(layout: _Layout) -> None:
    if len(layout.cells) == len(layout.runs) * len(layout.tasks):
        return
    known = {(cell.run, cell.task) for cell in layout.cells}
    every = ((r, t) for r in range(len(layout.runs)) for t in range(len(layout.tasks)))
    run, task = next(place for place in every if place not in known)
    raise InvalidInput(
        f"run {layout.runs[run]!r} has no items of task {layout.tasks[task]!r}; every run needs "
        "every task: leave out the run or the task, or evaluate it"
    )


def _matrix(
    layout: _Layout, metric: str, notes: Sequence[str], source: Source | None
) -> ScoreMatrix:
    scores = np.empty((len(layout.runs), len(layout.tasks)))
    items = errored = 0
    values: dict[str, Floats] = {}
    for cell in layout.cells:
        one = cell.of
        if one.name not in values:
            measure = Measure(metric, one.report.pass_threshold)
            values[one.name] = measure.items(one.table, one.name)
        failed = np.isnan(one.table.reward[cell.rows])
        items, errored = items + len(failed), errored + int(failed.sum())
        score = _score(cell, values[one.name][cell.rows], as_zero=metric in (REWARD, PASSED))
        if score is None:
            raise InvalidInput(
                f"run {layout.runs[cell.run]!r} has no {metric} on task "
                f"{layout.tasks[cell.task]!r}: none of its {len(failed)} items there has one"
            )
        scores[cell.run, cell.task] = score
    return ScoreMatrix(
        scores, layout.runs, layout.tasks, metric, items, errored, tuple(notes), source
    )


def _score(cell: _Cell, values: Floats, *, as_zero: bool) -> float | None:
    """The mean, by the denominators of `heldout.summary`; None where no item has a value."""
    there = ~np.isnan(values)
    if not there.any():
        return None
    clusters = cell.of.table.sample[cell.rows]
    mean = Moments()
    if as_zero:
        mean.add(np.where(there, values, 0.0), clusters)
    else:
        mean.add(values[there], clusters[there])
    return mean.mean
