"""Several training runs on several tasks, in one number that few lucky runs do not make.

    aggregate(score_matrix([seed_0, seed_1, seed_2], tasks="game", metric="return"))

A score is the mean of one run on one task, as `heldout.stats.summary` computes it. Runs of one task
answer one question: the same samples, scored in the same way, to the end. What does not is refused,
unless it is allowed by name. Estimates and intervals over the matrix of scores are those of R.
Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice", arXiv
2108.13264.
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

from heldout.analysis._comparability import (
    Mismatch,
    find_mismatches,
    find_shared_samples,
    find_unfinished,
    merge_labels,
    refuse_mismatches,
)
from heldout.analysis._runs import PASSED, REWARD, LoadedRun, Measure, ReportOrPath, load_run
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
from heldout.store.columns import Labels
from heldout.store.report import EvalReport

SINGLE_TASK = "all"
"""The task of reports that are not divided into tasks."""
RUN, TASK = "run", "task"
"""Names of the keys of runs and tasks in tables here, whatever they are in metadata."""
MEANS_IN_MEMORY = 100_000_000
"""Means of a task in a resample that are held at a time: 0.8 GB."""
STATISTICS: tuple[Statistic, ...] = ("interquartile_mean", "mean", "median", "optimality_gap")


# --- Scores -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """The results of one run on one task.

    Attributes:
        run: Index of the run.
        task: Index of the task.
        of: The report they are in.
        rows: Their rows in its table.
    """

    run: int
    task: int
    of: LoadedRun
    rows: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The reports that a matrix was made of, to compare another matrix with.

    Attributes:
        reports: The reports.
        first: The cell of the first run on each task.
        ids_match: Whether runs of a task share sample ids; several runs in one report do not.
    """

    reports: tuple[EvalReport, ...]
    first: tuple[Cell, ...]
    ids_match: bool


@dataclass(frozen=True, slots=True, eq=False)
class ScoreMatrix:
    """The score of each run on each task.

    Attributes:
        scores: One row per run, one column per task.
        runs: Names of the runs.
        tasks: Names of the tasks.
        metric: What the scores are means of.
        items: Results behind all scores together.
        errored: Results without a score: 0 in a mean reward, in no mean of a metric (clause 2).
        allowed: What differs between runs and was allowed to.
        may_differ: Whether runs in one report share no input, so that their samples may differ.
        source: None for scores that did not come from reports.
    """

    scores: Floats
    runs: tuple[str, ...]
    tasks: tuple[str, ...]
    metric: str
    items: int
    errored: int
    allowed: tuple[Mismatch, ...] = ()
    may_differ: bool = False
    source: Source | None = field(default=None, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "metric": self.metric,
            "n_runs": len(self.runs),
            "n_tasks": len(self.tasks),
            "n": self.items,
            "n_errors": self.errored,
            "runs": list(self.runs),
            "tasks": list(self.tasks),
            "scores": self.scores.tolist(),
        }


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Which results are of which run and which task.

    Attributes:
        runs: Names of the runs.
        tasks: Names of the tasks.
        cells: One per run and task.
        groups: Reports that are runs of the same tasks.
        ids_match: Whether runs of a task share sample ids.
    """

    runs: tuple[str, ...]
    tasks: tuple[str, ...]
    cells: list[Cell]
    groups: list[list[LoadedRun]]
    ids_match: bool = True


def score_matrix(
    reports: ReportOrPath | Sequence[ReportOrPath] | Mapping[str, Sequence[ReportOrPath]],
    *,
    runs: str | None = None,
    tasks: str | None = None,
    metric: str = REWARD,
    allow: Collection[str] = (),
) -> ScoreMatrix:
    """Compute the score of each run on each task.

    Args:
        reports: One report whose samples name their training run and task in metadata; several
            reports, each of one run; or {task: reports, one per run}. A path of a run directory
            will do for a report. Runs of episodes in different environments are different tasks.
        runs: Metadata key of the training run, for one report.
        tasks: Metadata key of the task; None is one task.
        metric: "reward", "passed" or the name of a metric.
        allow: What may differ between runs of one task: some of "samples", "scorer",
            "environment", "threshold", "incomplete".

    Returns:
        The matrix.

    Raises:
        InvalidInput: A run has no results on a task, or arguments contradict each other.
        NotComparable: Runs of one task differ in more than their policy.
    """
    if Measure(metric, 0).k is not None:
        raise InvalidInput(
            f"{metric} is over the repeats of one report; what is aggregated is {REWARD}, {PASSED} "
            "or a metric by its name"
        )
    layout = _lay_out(reports, runs, tasks)
    _refuse_missing(layout)
    check = _Check(allow, metric)
    for report, *others in layout.groups:
        check.accept(find_unfinished(report), f"{report.name} cannot be aggregated")
        for other in others:
            check.compare(report, other, "cannot be aggregated as runs of one task")
    first = {cell.task: cell for cell in reversed(layout.cells)}
    if not layout.ids_match:
        for cell in layout.cells:
            names = [f"run {layout.runs[c.run]!r}" for c in (first[cell.task], cell)]
            check.compare_content(first[cell.task], cell, names, layout.tasks[cell.task])
    source = Source(
        tuple(run.report for group in layout.groups for run in group),
        tuple(first[task] for task in range(len(layout.tasks))),
        layout.ids_match,
    )
    scores = np.empty((len(layout.runs), len(layout.tasks)))
    items = errored = 0
    values: dict[str, Floats] = {}
    for cell in layout.cells:
        run = cell.of
        if run.name not in values:
            values[run.name] = Measure(metric, run.report.pass_threshold).item_values(run)
        failed = np.isnan(run.table.reward[cell.rows])
        items, errored = items + len(failed), errored + int(failed.sum())
        score = _mean(cell, values[run.name][cell.rows], as_zero=metric in (REWARD, PASSED))
        if score is None:
            raise InvalidInput(
                f"run {layout.runs[cell.run]!r} has no {metric} on task "
                f"{layout.tasks[cell.task]!r}: none of its {len(failed)} results there has one"
            )
        scores[cell.run, cell.task] = score
    return ScoreMatrix(
        scores,
        layout.runs,
        layout.tasks,
        metric,
        items,
        errored,
        tuple(check.allowed),
        check.may_differ,
        source,
    )


def _mean(cell: Cell, values: Floats, *, as_zero: bool) -> float | None:
    """Return the mean by the denominators of the summary; None where nothing has a value."""
    known = ~np.isnan(values)
    if not known.any():
        return None
    samples = cell.of.table.sample[cell.rows]
    moments = Moments()
    if as_zero:
        moments.add(np.where(known, values, 0.0), samples)
    else:
        moments.add(values[known], samples[known])
    return moments.mean


# --- Which results are of which run and task ----------------------------------------------------


def _lay_out(
    reports: ReportOrPath | Sequence[ReportOrPath] | Mapping[str, Sequence[ReportOrPath]],
    runs: str | None,
    tasks: str | None,
) -> _Layout:
    if isinstance(reports, Mapping):
        if runs is not None or tasks is not None:
            raise InvalidInput("the mapping says which task a report is of: leave out the keys")
        by_task = {task: list(group) for task, group in reports.items()}
        loaded = iter(_load_runs([report for group in by_task.values() for report in group]))
        return _by_task({task: [next(loaded) for _ in group] for task, group in by_task.items()})
    several = [reports] if isinstance(reports, EvalReport | str | Path) else list(reports)
    if runs is not None and len(several) > 1:
        raise InvalidInput(
            f"runs={runs!r} is for one report that holds several runs; {len(several)} were "
            "given, each of which is a run by itself"
        )
    loaded_runs = _load_runs(several, runs=runs, tasks=tasks)
    environments = _by_environment(loaded_runs)
    if tasks is None and len(environments) > 1:
        return _by_task(environments)
    return _by_keys(loaded_runs, single=next(iter(environments)))


def _load_runs(
    reports: Sequence[ReportOrPath], *, runs: str | None = None, tasks: str | None = None
) -> list[LoadedRun]:
    """Load each report under a name of its own, with its keys as RUN and TASK."""
    keys = {name: key for name, key in ((RUN, runs), (TASK, tasks)) if key is not None}
    loaded: list[LoadedRun] = []
    identities = set()
    for number, report in enumerate(reports, start=1):
        run = load_run(report, [*keys.values()], name=f"run {number}")
        identity = _identify(run.report)
        if identity in identities:
            raise InvalidInput(f"{run.report.path or run.name} was given twice; a run counts once")
        identities.add(identity)
        labels = {name: run.table.keys[key] for name, key in keys.items()}
        for name, key in keys.items():
            for missing in np.flatnonzero(labels[name].codes < 0)[:1].tolist():
                id = run.table.sample_ids[missing]
                raise InvalidInput(
                    f"sample {id!r} of {run.name} has no {key!r}; every sample needs one"
                )
        loaded.append(replace(run, table=replace(run.table, keys=labels)))
    if not loaded:
        raise InvalidInput("there is no report to aggregate")
    names = _make_distinct(run.name for run in loaded)
    return [replace(run, name=name) for run, name in zip(loaded, names, strict=True)]


def _identify(report: EvalReport) -> object:
    return id(report) if report.path is None else report.path.resolve()


def _make_distinct(names: Iterable[object]) -> tuple[str, ...]:
    """Add a number to names that come again, such that no other name has it."""
    texts = [str(name) for name in names]
    distinct: dict[str, None] = {}
    for position, name in enumerate(texts, start=1):
        if name in distinct:
            numbered = (f"{name} ({number})" for number in count(position))
            name = next(n for n in numbered if n not in texts and n not in distinct)
        distinct[name] = None
    return tuple(distinct)


def _by_environment(runs: list[LoadedRun]) -> dict[str, list[LoadedRun]]:
    """Group runs of episodes (`evaluate_env`) by environment; runs of samples are one group."""
    of_samples = [run for run in runs if run.config.get("kind") != "episodes"]
    if 0 < len(of_samples) < len(runs):
        raise InvalidInput(
            f"{of_samples[0].name} is of samples, others are of episodes: they share no task"
        )
    groups: dict[str, list[LoadedRun]] = {}
    for run in runs:
        task = SINGLE_TASK if of_samples else str(run.config.get("env"))
        groups.setdefault(task, []).append(run)
    return groups


def _by_task(tasks: Mapping[str, list[LoadedRun]]) -> _Layout:
    """Make a report a cell; the first reports of all tasks are the first run, and so on."""
    most = max(len(reports) for reports in tasks.values())
    for task, reports in tasks.items():
        if len(reports) < most:
            raise InvalidInput(
                f"task {task!r} has {len(reports)} runs where another has {most}: run "
                f"{len(reports) + 1} of it is missing"
            )
    cells = [
        Cell(i, task, run, np.arange(len(run.table)))
        for task, reports in enumerate(tasks.values())
        for i, run in enumerate(reports)
    ]
    runs = tuple(f"run {number}" for number in range(1, most + 1))
    return _Layout(runs, _make_distinct(tasks), cells, [*tasks.values()])


def _by_keys(loaded: list[LoadedRun], *, single: str) -> _Layout:
    """Divide results by task, and by run where one report holds several."""
    several = RUN in loaded[0].table.keys
    if several:
        run_codes, runs = _index_values([run.table.keys[RUN] for run in loaded])
    else:
        run_codes = [np.full(len(run.table.sample_ids), i) for i, run in enumerate(loaded)]
        runs = tuple(run.name for run in loaded)
    if TASK in loaded[0].table.keys:
        task_codes, tasks = _index_values([run.table.keys[TASK] for run in loaded])
    else:
        task_codes, tasks = [np.zeros_like(codes) for codes in run_codes], (single,)
    cells = []
    for run, of_run, of_task in zip(loaded, run_codes, task_codes, strict=True):
        codes = (of_run * len(tasks) + of_task)[run.table.sample]
        order = np.argsort(codes, kind="stable")
        present, starts = np.unique(codes[order], return_index=True)
        parts = np.split(order, starts[1:])
        for code, rows in zip(present.tolist(), parts, strict=True):
            cells.append(Cell(code // len(tasks), code % len(tasks), run, rows))
    return _Layout(runs, tasks, cells, [loaded], ids_match=not several)


def _index_values(labels: Sequence[Labels]) -> tuple[list[Ints], tuple[str, ...]]:
    """Number the values of each sample in order of first appearance, and name the values."""
    codes, values = merge_labels(*labels)
    present, first = np.unique(np.concatenate(codes), return_index=True)
    present = present[np.argsort(first)]
    indexes = np.empty(len(values), dtype=np.int64)
    indexes[present] = np.arange(len(present))
    return [indexes[column] for column in codes], _make_distinct(
        values[i] for i in present.tolist()
    )


def _refuse_missing(layout: _Layout) -> None:
    known = {(cell.run, cell.task) for cell in layout.cells}
    for r, run in enumerate(layout.runs):
        for t, task in enumerate(layout.tasks):
            if (r, t) not in known:
                raise InvalidInput(
                    f"run {run!r} has no results on task {task!r}; every run needs every task: "
                    "leave out the run or the task, or evaluate it"
                )


# --- What keeps runs from being aggregated ------------------------------------------------------


class _Check:
    """Refuses the first difference that is not allowed, and keeps those that are."""

    def __init__(self, allow: Collection[str], metric: str) -> None:
        refuse_mismatches((), allow, "")  # an unknown kind is refused in any case
        self.allow, self.metric = allow, metric
        self.allowed: dict[Mismatch, None] = {}
        self.may_differ = False

    def accept(self, differences: Iterable[Mismatch], what: str) -> None:
        differences = list(differences)
        refuse_mismatches(differences, self.allow, what)
        self.allowed |= dict.fromkeys(differences)

    def compare(
        self, a: LoadedRun, b: LoadedRun, what: str, *, ignore: Collection[str] = ()
    ) -> None:
        """Compare two reports, but for kinds that are looked at elsewhere."""
        differences = find_mismatches(
            a,
            b,
            find_shared_samples(a, b),
            keys=[TASK] if TASK in a.table.keys and TASK in b.table.keys else [],
            threshold_matters=self.metric == PASSED,
        )
        kept = [difference for difference in differences if difference.kind not in ignore]
        self.accept(kept, f"{a.name} and {b.name} {what}")

    def compare_content(self, a: Cell, b: Cell, names: Sequence[str], task: str) -> None:
        """Compare samples without ids: as many, of the same inputs and targets."""
        content_a, content_b = _sorted_content(a), _sorted_content(b)
        if np.array_equal(content_a, content_b):
            return
        both = f"{names[0]} and {names[1]}"
        if len(content_a) != len(content_b):
            text = f"{both} have {len(content_a)} and {len(content_b)} samples of task {task!r}"
        elif not set(content_a.tolist()).isdisjoint(content_b.tolist()):
            text = f"inputs or targets of task {task!r} are not the same in both"
        else:
            self.may_differ = True  # an input may name its run: no reason to refuse
            return
        self.accept([Mismatch("samples", text)], f"{both} cannot be aggregated as runs of one task")


def _sorted_content(cell: Cell) -> NDArray[np.uint64]:
    table = cell.of.table
    return np.sort(table.content[np.unique(table.sample[cell.rows])])


# --- Aggregates ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Aggregates:
    """Estimates over a score matrix.

    Attributes:
        matrix: The scores.
        against: Those of the runs to beat.
        optimum: The score that the optimality gap is to.
        estimates: Interquartile mean, mean, median and optimality gap with their intervals.
        improvement: The probability that a run of `matrix` beats one of `against`. It has no
            interval where every run does, or none: resampling such runs shows no uncertainty.
        allowed: What differs between the two sides and was allowed to.
        may_differ: Whether the sides share no input, so that their samples may differ.
    """

    matrix: ScoreMatrix
    against: ScoreMatrix | None
    optimum: float
    estimates: Mapping[Statistic, BootstrapEstimate]
    improvement: BootstrapEstimate | None
    allowed: tuple[Mismatch, ...] = ()
    may_differ: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        estimates = {str(name): estimate for name, estimate in self.estimates.items()}
        if self.improvement is not None:
            estimates["improvement_probability"] = self.improvement
        plain: dict[str, Any] = self.matrix.as_dict()
        if self.against is not None:
            plain["against"] = self.against.as_dict()
        for name, estimate in estimates.items():
            plain[name] = estimate.value
            plain[f"{name}_ci_low"] = estimate.interval.low if estimate.interval else None
            plain[f"{name}_ci_high"] = estimate.interval.high if estimate.interval else None
        mean = self.estimates["mean"]
        settings = {"repetitions": mean.repetitions, "seed": mean.seed}
        return {**plain, "optimum": self.optimum, **settings, "confidence": mean.confidence}


def aggregate(
    matrix: ScoreMatrix,
    against: ScoreMatrix | None = None,
    *,
    optimum: float = 1.0,
    seed: int = 0,
    repetitions: int = REPETITIONS,
    allow: Collection[str] = (),
) -> Aggregates:
    """Estimate interquartile mean, mean, median and optimality gap with 95% intervals.

    The same seed gives the same intervals. They generalize to other runs on the same tasks.

    Args:
        matrix: The scores.
        against: Scores of other runs on the same tasks; adds the probability of improvement.
        optimum: The score that the optimality gap is to.
        seed: Of the resampling.
        repetitions: Number of resamples.
        allow: What may differ between the two sides, as in `score_matrix`.

    Returns:
        The estimates.

    Raises:
        InvalidInput: An argument is out of range, or the sides have other tasks or metrics.
        NotComparable: The sides differ in more than their policy.
    """
    if not math.isfinite(optimum):
        raise InvalidInput(f"optimum is a finite number, the best score there is; got {optimum!r}")
    if seed < 0:
        raise InvalidInput(f"seed is 0 or more; got {seed!r}")
    most = MEANS_IN_MEMORY // len(matrix.tasks)
    if not 1 <= repetitions <= most:
        raise InvalidInput(
            f"repetitions is from 1 to {most:,} for this number of tasks; got {repetitions!r}"
        )
    check = _Check(allow, matrix.metric)
    estimates = {
        name: bootstrap(matrix.scores, name, seed=seed, repetitions=repetitions, optimum=optimum)
        for name in STATISTICS
    }
    improvement = None
    if against is not None:
        scores = _align_tasks(matrix, against)
        _compare_sides(matrix, against, check)
        improvement = bootstrap_improvement(
            matrix.scores, scores, seed=seed, repetitions=repetitions
        )
        if improvement.value in (0, 1):
            improvement = replace(improvement, interval=None)
    return Aggregates(
        matrix,
        against,
        optimum,
        estimates,
        improvement,
        tuple(check.allowed),
        check.may_differ,
    )


def _align_tasks(matrix: ScoreMatrix, against: ScoreMatrix) -> Floats:
    if matrix.metric != against.metric:
        raise InvalidInput(
            f"one side has scores of {matrix.metric!r}, the other of {against.metric!r}"
        )
    odd = sorted({*matrix.tasks} ^ {*against.tasks})
    if odd:
        raise InvalidInput(
            f"both sides need the same tasks; only one of them has {', '.join(map(repr, odd))}"
        )
    return against.scores[:, [against.tasks.index(task) for task in matrix.tasks]]


def _compare_sides(matrix: ScoreMatrix, against: ScoreMatrix, check: _Check) -> None:
    ours, theirs = matrix.source, against.source
    if ours is None or theirs is None:
        return
    identities = {_identify(report) for report in ours.reports}
    for report in theirs.reports:
        if _identify(report) in identities:
            where = repr(report) if report.path is None else report.path
            raise InvalidInput(f"{where} is on both sides; every run is on one")
    by_id = ours.ids_match and theirs.ids_match
    # Each matrix was checked for unfinished runs.
    ignore = {"incomplete"} if by_id else {"incomplete", "samples"}
    cells = dict(zip(against.tasks, theirs.first, strict=True))
    compared = set()
    for task, cell in zip(matrix.tasks, ours.first, strict=True):
        other = cells[task]
        names = cell.of.name, f"{other.of.name} (against)"
        if names not in compared:
            compared.add(names)
            run = replace(other.of, name=names[1])
            check.compare(cell.of, run, "cannot be compared", ignore=ignore)
        if not by_id:
            check.compare_content(cell, other, names, task)
