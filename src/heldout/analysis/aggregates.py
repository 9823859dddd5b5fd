"""Several training runs on several tasks: one number for all, that few lucky runs do not make.

    aggregate(score_matrix([seed_0, seed_1, seed_2], tasks="game", metric="return"))

A score is what one run is worth on one task: the mean over its items there, as `heldout.summary`
has it. What is said of the matrix of scores, and its intervals, is R. Agarwal et al. (2021), "Deep
Reinforcement Learning at the Edge of the Statistical Precipice", arXiv 2108.13264.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput
from heldout.stats import BootstrapEstimate, Floats, Statistic, bootstrap, bootstrap_improvement
from heldout.stats.resampling import REPETITIONS
from heldout.store.report import EvalReport
from heldout.store.table import Table, table_of
from heldout.summary import Batch, summarize_batch

FEW_RUNS = 5
"""Percentile intervals of fewer runs are too narrow: three cannot show how far others would be."""
REWARD = "reward"
SINGLE = "all"
"""The task of reports that are not divided into tasks."""

Report = EvalReport | str | Path


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
) -> Aggregates:
    """Interquartile mean, mean, median and optimality gap with 95% intervals; with `against`, the
    probability that a run of `matrix` beats one of `against` on the same task.

    The same seed gives the same intervals. They speak for other runs on the same tasks.
    """
    names: tuple[Statistic, ...] = ("interquartile_mean", "mean", "median", "optimality_gap")
    scores = matrix.scores
    estimates = {
        name: bootstrap(scores, name, seed=seed, repetitions=repetitions, optimum=optimum)
        for name in names
    }
    improvement = None
    if against is not None:
        theirs = _same_tasks(matrix, against)
        improvement = bootstrap_improvement(scores, theirs, seed=seed, repetitions=repetitions)
    notes = _notes(matrix)
    if against is not None:
        notes += [f"against: {note}" for note in _notes(against)]
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


def _notes(matrix: ScoreMatrix) -> list[str]:
    notes = [*matrix.notes]
    if matrix.errored:
        counted = "count as 0" if matrix.metric == REWARD else "are in no mean"
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
    return against.scores[:, [against.tasks.index(task) for task in matrix.tasks]]


# --- Reports to a matrix ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cell:
    """The items of one run on one task."""

    run: str
    task: str
    table: Table
    rows: NDArray[Any]


def score_matrix(
    reports: Report | Sequence[Report] | Mapping[str, Sequence[Report]],
    *,
    runs: str | None = None,
    tasks: str | None = None,
    metric: str = REWARD,
) -> ScoreMatrix:
    """Runs x tasks, from reports or the paths of run directories.

    One report whose samples say of which training run they are (`runs`) and of which task
    (`tasks`), both metadata keys; several reports, each of one run; or {task: reports, one a run}.
    Without `tasks` all is one task, but that runs of episodes in different environments are told
    apart by these. A run without items of some task is refused.
    """
    notes: list[str] = []
    if isinstance(reports, Mapping):
        if runs is not None or tasks is not None:
            raise InvalidInput("the mapping says which task a report is of: leave out the keys")
        cells = _cells_by_task({name: _opened(some, notes) for name, some in reports.items()})
    else:
        some = [reports] if isinstance(reports, EvalReport | str | Path) else reports
        opened = _opened(some, notes)
        environments = _by_environment(opened)
        if runs is not None:
            cells = _cells_by_keys(opened, runs, tasks, single=next(iter(environments)))
        elif tasks is None and len(environments) > 1:
            cells = _cells_by_task(environments)
        else:
            cells = _cells_by_report(opened, tasks, single=next(iter(environments)))
    return _matrix(cells, metric, notes)


def _opened(reports: Iterable[Report], notes: list[str]) -> list[tuple[str, EvalReport]]:
    found: list[tuple[str, EvalReport]] = []
    places = set()
    for given in reports:
        report = EvalReport.load(given) if isinstance(given, str | Path) else given
        if not isinstance(report, EvalReport):
            raise InvalidInput(f"a report, or the path of a run directory, not {report!r:.100}")
        if report.path is not None and report.path.resolve() in places:
            raise InvalidInput(f"{report.path} was given twice; every run counts once")
        places |= {report.path.resolve()} if report.path is not None else set()
        if report.summary["n"] == 0:
            raise InvalidInput(f"{report!r} has no results: there is nothing to aggregate")
        own = report.config.get("experiment_name") or (report.path and report.path.name)
        name = str(own or f"run {len(found) + 1}")
        taken = [known for known, _ in found]
        if name in taken:
            name = f"{name} ({len(found) + 1})"
        if report.summary.get("complete") is False:
            notes.append(f"{name} is not finished: its scores are of {report.summary['n']} items")
        found.append((name, report))
    if not found:
        raise InvalidInput("there is no report to aggregate")
    return found


def _by_environment(
    opened: list[tuple[str, EvalReport]],
) -> dict[str, list[tuple[str, EvalReport]]]:
    """Runs of episodes (`evaluate_env`) say in which environment; of others, all are one group."""
    groups: dict[str, list[tuple[str, EvalReport]]] = {}
    for name, report in opened:
        episodes = report.config.get("kind") == "episodes"
        task = str(report.config.get("env")) if episodes else SINGLE
        groups.setdefault(task, []).append((name, report))
    if SINGLE in groups and len(groups) > 1:
        raise InvalidInput(
            f"{groups[SINGLE][0][0]} is of samples, others are of episodes: they share no task"
        )
    return groups


def _cells_by_task(tasks: Mapping[str, list[tuple[str, EvalReport]]]) -> list[_Cell]:
    """A report is a cell; the first reports of all tasks are the first run, and so on."""
    counts = {task: len(reports) for task, reports in tasks.items()}
    most = max(counts.values(), default=0)
    for task, count in counts.items():
        if count < most:
            raise InvalidInput(
                f"task {task!r} has {count} runs where another has {most}: run {count + 1} of it "
                "is missing"
            )
    return [
        _Cell(f"run {number}", str(task), table, np.arange(len(table)))
        for task, reports in tasks.items()
        for number, table in enumerate((table_of(r) for _, r in reports), start=1)
    ]


def _cells_by_report(
    opened: list[tuple[str, EvalReport]], tasks: str | None, *, single: str
) -> list[_Cell]:
    tables = {name: table_of(report, [tasks] if tasks else []) for name, report in opened}
    if tasks is None:
        _refuse_other_samples(opened, tables)
    cells = []
    for name, table in tables.items():
        every = len(table.sample_ids)
        cells += _cells_of(table, [name] * every, _values(table, tasks, name, single))
    return cells


def _cells_by_keys(
    opened: list[tuple[str, EvalReport]], runs: str, tasks: str | None, *, single: str
) -> list[_Cell]:
    if len(opened) > 1:
        raise InvalidInput(
            f"runs={runs!r} is for one report that holds several runs; {len(opened)} were given, "
            "each of which is a run by itself"
        )
    name, report = opened[0]
    table = table_of(report, [runs, *([tasks] if tasks else [])])
    of_runs, of_tasks = (_values(table, key, name, single) for key in (runs, tasks))
    return _cells_of(table, of_runs, of_tasks)


def _cells_of(table: Table, runs: list[str], tasks: list[str]) -> list[_Cell]:
    """Items by the run and the task of their sample."""
    known: dict[tuple[str, str], int] = {}
    numbers = [known.setdefault(pair, len(known)) for pair in zip(runs, tasks, strict=True)]
    codes = np.array(numbers, dtype=np.int64)[table.sample]
    return [_Cell(*pair, table, np.flatnonzero(codes == i)) for pair, i in known.items()]


def _values(table: Table, key: str | None, report: str, single: str) -> list[str]:
    """Of each sample; `single` is that of all where there is no key."""
    if key is None:
        return [single] * len(table.sample_ids)
    for id, value in zip(table.sample_ids, table.keys[key], strict=True):
        if value is None:
            raise InvalidInput(f"sample {id!r} of {report} has no {key!r}; every sample needs one")
    return [str(value) for value in table.keys[key]]


def _refuse_other_samples(
    opened: list[tuple[str, EvalReport]], tables: Mapping[str, Table]
) -> None:
    """Other samples are another task. (Episodes are told apart by their environment.)"""
    first = next(iter(tables))
    expected = set(tables[first].sample_ids)
    for name, report in opened[1:]:
        odd = sorted(expected ^ set(tables[name].sample_ids))
        if odd and report.config.get("kind") != "episodes":
            raise InvalidInput(
                f"{first} and {name} are not of the same samples ({odd[0]!r} is in one of them "
                "alone), so they are no two runs of one task; name the metadata key of the task"
            )


def _matrix(cells: Sequence[_Cell], metric: str, notes: Sequence[str]) -> ScoreMatrix:
    runs = tuple(dict.fromkeys(cell.run for cell in cells))
    tasks = tuple(dict.fromkeys(cell.task for cell in cells))
    scores = np.full((len(runs), len(tasks)), np.nan)
    items = errored = 0
    for cell in cells:
        reward = cell.table.reward[cell.rows]
        items, errored = items + len(reward), errored + int(np.isnan(reward).sum())
        scores[runs.index(cell.run), tasks.index(cell.task)] = _score(cell, metric)
    for run, task in np.argwhere(np.isnan(scores)).tolist():
        raise InvalidInput(
            f"run {runs[run]!r} has no items of task {tasks[task]!r}; every run needs every task: "
            "leave out the run or the task, or evaluate it"
        )
    return ScoreMatrix(scores, runs, tasks, metric, items, errored, tuple(notes))


def _score(cell: _Cell, metric: str) -> float:
    table, rows = cell.table, cell.rows
    if metric != REWARD and metric not in table.metrics:
        known = ", ".join([REWARD, *table.metrics])
        raise InvalidInput(f"run {cell.run!r} has no metric {metric!r}; it has {known}")
    batch = Batch(table.sample, table.reward, table.truncated, table.weighted, table.metrics)
    summary = summarize_batch(batch.rows(rows))
    score = summary["mean" if metric == REWARD else f"metric_{metric}"] if len(rows) else None
    if score is None:
        raise InvalidInput(
            f"run {cell.run!r} has no {metric} on task {cell.task!r}: none of its {len(rows)} "
            "items there has one"
        )
    return float(score)
