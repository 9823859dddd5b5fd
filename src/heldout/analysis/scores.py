"""Reports to a matrix of scores, runs x tasks.

A score is what one run is worth on one task: the mean over its items there, as
`heldout.stats.summary` has it. Runs of one task answer one question: the same samples, scored the same way, to the end.
What does not is refused, unless one says that it is meant (`heldout.analysis.comparable`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

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
    Floats,
    Ints,
    Moments,
)
from heldout.store.report import EvalReport
from heldout.store.table import Labels

SINGLE = "all"
"""The task of reports that are not divided into tasks."""
RUN, TASK = "run", "task"
"""What the keys of runs and tasks are called in tables here, whatever they are in metadata."""


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """The items of one run on one task; `run` and `task` are places, as names may repeat."""

    run: int
    task: int
    of: Opened
    rows: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What a matrix was made of: another one is held against it."""

    reports: tuple[EvalReport, ...]
    first: tuple[Cell, ...]
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


# --- What keeps runs apart ----------------------------------------------------------------------


def identity_of(report: EvalReport) -> object:
    return id(report) if report.path is None else report.path.resolve()


class RunCheck:
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

    def content(self, one: Cell, other: Cell, names: tuple[str, str], task: str) -> None:
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


def _content(cell: Cell) -> NDArray[np.uint64]:
    """Of its samples, in an order that does not depend on them."""
    table = cell.of.table
    return np.sort(table.content[np.unique(table.sample[cell.rows])])


# --- Reports to a matrix ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Which items are of which run and which task."""

    runs: tuple[str, ...]
    tasks: tuple[str, ...]
    cells: list[Cell]
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
    check = RunCheck(allow, metric)
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
        if identity_of(one.report) in known:
            raise InvalidInput(f"{one.report.path or one.name} was given twice; a run counts once")
        known.add(identity_of(one.report))
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
        Cell(run, task, one, np.arange(len(one.table)))
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
            cells.append(Cell(place[0], place[1], one, rows))
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


def _score(cell: Cell, values: Floats, *, as_zero: bool) -> float | None:
    """The mean, by the denominators of `heldout.stats.summary`; None where no item has a value."""
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
