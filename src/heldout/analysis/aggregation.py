"""Several training runs on several tasks in one number, robust to a few lucky runs.

    aggregate(score_matrix([seed_0, seed_1, seed_2], tasks="game", metric="return"))

A score is the mean of one run on one task. Runs of one task answer one question: the same samples,
scored in the same way, to the end; what does not is refused, unless it is allowed by name.
Estimates are those of R. Agarwal et al. (2021), arXiv 2108.13264.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path
from typing import Any, get_args

import numpy as np

from heldout.analysis._comparability import (
    Mismatch,
    find_mismatches,
    find_unfinished,
    merge_labels,
    refuse_mismatches,
)
from heldout.analysis._runs import PASSED, REWARD, LoadedRun, Measure, ReportOrPath, load_run
from heldout.errors import InvalidInput
from heldout.stats import (
    BootstrapEstimate,
    Moments,
    Statistic,
    bootstrap,
    bootstrap_difference,
    bootstrap_improvement,
)
from heldout.stats.intervals import Floats, Ints, bounds_as_dict
from heldout.stats.resampling import REPETITIONS
from heldout.stats.summary import value_of_errors
from heldout.store.report import EvalReport
from heldout.store.tables import places_by_code

Reports = ReportOrPath | Sequence[ReportOrPath] | Mapping[str, Sequence[ReportOrPath]]

SINGLE_TASK = "all"
"""The task of reports that are not divided into tasks."""
SAME_TASK = "aggregated as runs of one task"


# --- Scores -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ScoreMatrix:
    """The score of each run on each task.

    Attributes:
        scores: One row per run, one column per task.
        runs: Names of the runs.
        tasks: Names of the tasks.
        metric: What the scores are means of.
        items: Results behind all scores together.
        errored: Results without a score: in no mean of a metric, otherwise as `errors_as`.
        errors_as: What an errored item counts as on each task (clause 2); empty of a metric.
        allowed: What differs between runs and was allowed to.
        may_differ: Whether runs in one report share no input, so that their samples may differ.
        layout: The results behind the scores; None for scores that did not come from reports.
    """

    scores: Floats
    runs: tuple[str, ...]
    tasks: tuple[str, ...]
    metric: str
    items: int
    errored: int
    errors_as: tuple[float, ...] = ()
    allowed: tuple[Mismatch, ...] = ()
    may_differ: bool = False
    layout: RunTaskLayout | None = field(default=None, repr=False)

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


def score_matrix(
    reports: Reports,
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
    check = _DifferenceCheck(allow, metric)
    check.compare_runs(layout)
    values = _read_values(layout, metric)
    errors_as = _errors_by_task([(layout, values)], metric)
    rows = [rows for _, rows in layout.cells.values()]
    errored = sum(
        int(np.isnan(source.table.reward[rows]).sum()) for source, rows in layout.cells.values()
    )
    return ScoreMatrix(
        _score_cells(layout, values, errors_as),
        layout.runs,
        layout.tasks,
        metric,
        sum(map(len, rows)),
        errored,
        tuple(errors_as.values()),
        tuple(check.allowed),
        check.may_differ,
        layout,
    )


def _read_values(layout: RunTaskLayout, metric: str) -> CellValues:
    """Return the values behind each score; NaN where an item has none."""
    of_source: dict[str, Floats] = {}
    values: CellValues = {}
    for (run, task), (source, rows) in layout.cells.items():
        if source.name not in of_source:
            measure = Measure(metric, source.report.pass_threshold)
            of_source[source.name] = measure.item_values(source)
        values[run, task] = of_source[source.name][rows]
        if np.isnan(values[run, task]).all():
            raise InvalidInput(
                f"run {layout.runs[run]!r} has no {metric} on task {layout.tasks[task]!r}: none of "
                f"its {len(rows)} results there has one"
            )
    return values


def _errors_by_task(
    sides: Sequence[tuple[RunTaskLayout, CellValues]], metric: str
) -> dict[str, float]:
    """Return what an errored item counts as on each task, over all runs of all sides.

    Each task has a scale of its own. Of a metric the result is empty: an errored item has none, so
    it is in no mean (clause 4).
    """
    if metric not in (REWARD, PASSED):
        return {}
    of_task: dict[str, list[Floats]] = {}
    for layout, values in sides:
        for (_, task), numbers in values.items():
            of_task.setdefault(layout.tasks[task], []).append(numbers)
    return {task: value_of_errors(*of_task[task]) for task in sides[0][0].tasks}


def _score_cells(
    layout: RunTaskLayout, values: CellValues, errors_as: Mapping[str, float]
) -> Floats:
    """Return the mean of each cell, with errored items counted where a task says as what."""
    scores = np.full((len(layout.runs), len(layout.tasks)), np.nan)
    for (run, task), numbers in values.items():
        known = ~np.isnan(numbers)
        worth = errors_as.get(layout.tasks[task])
        counted = numbers[known] if worth is None else np.where(known, numbers, worth)
        scores[run, task] = Moments.of(counted).mean
    return scores


def _count_errors_alike(ours: ScoreMatrix, theirs: ScoreMatrix) -> tuple[ScoreMatrix, ScoreMatrix]:
    """Count errored items of both sides as the worst value that either side has on a task."""
    if ours.layout is None or theirs.layout is None or not ours.errored + theirs.errored:
        return ours, theirs
    layouts = (ours.layout, theirs.layout)
    sides = [(layout, _read_values(layout, ours.metric)) for layout in layouts]
    errors_as = _errors_by_task(sides, ours.metric)

    def recount(matrix: ScoreMatrix, layout: RunTaskLayout, values: CellValues) -> ScoreMatrix:
        counted = tuple(errors_as[task] for task in matrix.tasks) if errors_as else ()
        return replace(matrix, scores=_score_cells(layout, values, errors_as), errors_as=counted)

    return recount(ours, *sides[0]), recount(theirs, *sides[1])


# --- The run and the task of each result ---------------------------------------------------------

CellValues = dict[tuple[int, int], Floats]
"""The values of the items of each run on each task, by (index of the run, index of the task)."""
RunTaskRows = tuple[LoadedRun, Ints]
"""A report, and the rows of its table that are of one run and one task."""


@dataclass(frozen=True, slots=True, eq=False)
class RunTaskLayout:
    """The run and the task of each result."""

    runs: tuple[str, ...]
    tasks: tuple[str, ...]
    # By (index of the run, index of the task).
    cells: dict[tuple[int, int], RunTaskRows]
    # Metadata keys; runs that are told apart by one have no sample ids in common.
    runs_key: str | None = None
    tasks_key: str | None = None

    def __post_init__(self) -> None:
        for r, run in enumerate(self.runs):
            for t, task in enumerate(self.tasks):
                if (r, t) not in self.cells:
                    raise InvalidInput(
                        f"run {run!r} has no results on task {task!r}; every run needs every task: "
                        "leave out the run or the task, or evaluate it"
                    )

    @property
    def reports(self) -> list[EvalReport]:
        """The reports of all cells."""
        return [run.report for run, _ in self.cells.values()]

    @property
    def key_list(self) -> list[str]:
        """The metadata key of tasks, if there is one."""
        return [] if self.tasks_key is None else [self.tasks_key]


def _lay_out(reports: Reports, runs: str | None, tasks: str | None) -> RunTaskLayout:
    if isinstance(reports, Mapping):
        if runs is not None or tasks is not None:
            raise InvalidInput("the mapping says which task a report is of: leave out the keys")
        loaded = iter(_load_runs([*chain.from_iterable(reports.values())]))
        return _by_task({task: [next(loaded) for _ in group] for task, group in reports.items()})
    several = [reports] if isinstance(reports, EvalReport | str | Path) else list(reports)
    if runs is not None and len(several) > 1:
        raise InvalidInput(
            f"runs={runs!r} is for one report that holds several runs; {len(several)} were "
            "given, each of which is a run by itself"
        )
    loaded_runs = _load_runs(several, [key for key in (runs, tasks) if key is not None])
    environments = _by_environment(loaded_runs)
    if tasks is None and len(environments) > 1:
        return _by_task(environments)
    return _by_keys(loaded_runs, runs, tasks, single_task=next(iter(environments)))


def _load_runs(reports: Sequence[ReportOrPath], keys: Sequence[str] = ()) -> list[LoadedRun]:
    """Load each report under a name of its own; every sample has a value of these keys."""
    if not reports:
        raise InvalidInput("there is no report to aggregate")
    loaded: dict[object, LoadedRun] = {}
    for number, report in enumerate(reports, start=1):
        run = load_run(report, keys, name=f"run {number}")
        if _identify(run.report) in loaded:
            raise InvalidInput(f"{run.report.path or run.name} was given twice; a run counts once")
        for key in keys:
            for missing in np.flatnonzero(run.table.keys[key].codes < 0)[:1].tolist():
                raise InvalidInput(
                    f"sample {run.table.sample_ids[missing]!r} of {run.name} has no {key!r}; every "
                    "sample needs one"
                )
        loaded[_identify(run.report)] = run
    names = _make_distinct(run.name for run in loaded.values())
    return [replace(run, name=name) for run, name in zip(loaded.values(), names, strict=True)]


def _identify(report: EvalReport) -> object:
    return id(report) if report.path is None else report.path.resolve()


def _make_distinct(names: Iterable[object]) -> tuple[str, ...]:
    """Number repeated names, so that every name is unique."""
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


def _by_task(tasks: Mapping[str, list[LoadedRun]]) -> RunTaskLayout:
    """Make each report a cell; the first reports of all tasks form the first run, and so on."""
    cells = {
        (i, task): (run, np.arange(len(run.table)))
        for task, reports in enumerate(tasks.values())
        for i, run in enumerate(reports)
    }
    most = max(len(reports) for reports in tasks.values())
    runs = tuple(f"run {number}" for number in range(1, most + 1))
    return RunTaskLayout(runs, _make_distinct(tasks), cells)


def _by_keys(
    loaded: list[LoadedRun], runs_key: str | None, tasks_key: str | None, *, single_task: str
) -> RunTaskLayout:
    """Divide results by task, and by run where one report holds several."""
    run_codes = [np.full(run.table.samples, i) for i, run in enumerate(loaded)]
    runs = tuple(run.name for run in loaded)
    if runs_key is not None:
        run_codes, runs = _index_values(loaded, runs_key)
    task_codes = [np.zeros_like(codes) for codes in run_codes]
    tasks: tuple[str, ...] = (single_task,)
    if tasks_key is not None:
        task_codes, tasks = _index_values(loaded, tasks_key)
    cells: dict[tuple[int, int], RunTaskRows] = {}
    for run, of_run, of_task in zip(loaded, run_codes, task_codes, strict=True):
        codes = (of_run * len(tasks) + of_task)[run.table.sample]
        for code, rows in places_by_code(codes):
            cells[divmod(code, len(tasks))] = run, rows
    return RunTaskLayout(runs, tasks, cells, runs_key, tasks_key)


def _index_values(loaded: Sequence[LoadedRun], key: str) -> tuple[list[Ints], tuple[str, ...]]:
    """Number the values of each sample in order of first appearance, and name the values."""
    codes, values = merge_labels(*(run.table.keys[key] for run in loaded))
    present, first = np.unique(np.concatenate(codes), return_index=True)
    present = present[np.argsort(first)]
    indexes = np.empty(len(values), dtype=np.int64)
    indexes[present] = np.arange(len(present))
    names = _make_distinct(values[i] for i in present.tolist())
    return [indexes[column] for column in codes], names


# --- What keeps runs from being aggregated ------------------------------------------------------


class _DifferenceCheck:
    """Refuses the first difference that is not allowed, and keeps those that are."""

    def __init__(self, allow: Collection[str], metric: str) -> None:
        refuse_mismatches((), allow, "")  # an unknown kind is refused in any case
        self.allow, self.metric = allow, metric
        self.allowed: dict[Mismatch, None] = {}
        self.may_differ = False
        self._compared: set[tuple[str, str]] = set()

    def compare_runs(self, layout: RunTaskLayout) -> None:
        """Compare the runs of each task with the first."""
        for t, task in enumerate(layout.tasks):
            first, *others = (layout.cells[r, t] for r in range(len(layout.runs)))
            self._accept(find_unfinished(first[0]), f"{first[0].name} cannot be aggregated")
            for name, other in zip(layout.runs[1:], others, strict=True):
                if layout.runs_key is None:
                    self._compare_by_id(first[0], other[0], layout.key_list, SAME_TASK)
                else:
                    names = f"run {layout.runs[0]!r} and run {name!r}"
                    self._compare_content(first, other, names, task)

    def compare_sides(self, ours: RunTaskLayout, theirs: RunTaskLayout) -> None:
        """Compare the first runs of both sides, task by task."""
        identities = {_identify(report) for report in ours.reports}
        for report in theirs.reports:
            if _identify(report) in identities:
                where = repr(report) if report.path is None else report.path
                raise InvalidInput(f"{where} is on both sides; every run is on one")
        by_id = ours.runs_key is None and theirs.runs_key is None
        keys = ours.key_list if ours.tasks_key == theirs.tasks_key else []
        # Each matrix was checked for unfinished runs.
        ignored = {"incomplete"} if by_id else {"incomplete", "samples"}
        for t, task in enumerate(ours.tasks):
            cell, other = ours.cells[0, t], theirs.cells[0, theirs.tasks.index(task)]
            against = replace(other[0], name=f"{other[0].name} (against)")
            self._compare_by_id(cell[0], against, keys, "compared", ignored)
            if not by_id:
                self._compare_content(cell, other, f"{cell[0].name} and {against.name}", task)

    def _accept(self, differences: Collection[Mismatch], what: str) -> None:
        refuse_mismatches(differences, self.allow, what)
        self.allowed |= dict.fromkeys(differences)

    def _compare_by_id(
        self,
        a: LoadedRun,
        b: LoadedRun,
        keys: list[str],
        verb: str,
        ignored: Collection[str] = (),
    ) -> None:
        if (a.name, b.name) in self._compared:
            return
        self._compared.add((a.name, b.name))
        passed = self.metric == PASSED
        _, differences = find_mismatches(a, b, keys=keys, threshold_matters=passed)
        kept = [difference for difference in differences if difference.kind not in ignored]
        self._accept(kept, f"{a.name} and {b.name} cannot be {verb}")

    def _compare_content(self, a: RunTaskRows, b: RunTaskRows, names: str, task: str) -> None:
        """Compare samples without ids: the same number, with the same inputs and targets."""
        content_a, content_b = (
            np.sort(run.table.content[np.unique(run.table.sample[rows])]) for run, rows in (a, b)
        )
        if np.array_equal(content_a, content_b):
            return
        if len(content_a) != len(content_b):
            text = f"{names} have {len(content_a)} and {len(content_b)} samples of task {task!r}"
        elif not set(content_a.tolist()).isdisjoint(content_b.tolist()):
            text = f"inputs or targets of task {task!r} are not the same in both"
        else:
            self.may_differ = True  # an input may name its run: no reason to refuse
            return
        self._accept([Mismatch("samples", text)], f"{names} cannot be {SAME_TASK}")


# --- Aggregates ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Aggregates:
    """Estimates over a score matrix.

    Attributes:
        matrix: The scores.
        against: Those of the runs to beat.
        optimum: The score that the optimality gap is to.
        estimates: Interquartile mean, mean, median and optimality gap with their intervals.
        against_estimates: Those of the runs to beat; empty without any.
        differences: What each estimate is above that of the runs to beat; empty without any.
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
    against_estimates: Mapping[Statistic, BootstrapEstimate] = field(default_factory=dict)
    differences: Mapping[Statistic, BootstrapEstimate] = field(default_factory=dict)
    allowed: tuple[Mismatch, ...] = ()
    may_differ: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        estimates = {str(name): estimate for name, estimate in self.estimates.items()}
        if self.improvement is not None:
            estimates["improvement_probability"] = self.improvement
        estimates |= {f"{name}_difference": found for name, found in self.differences.items()}
        plain: dict[str, Any] = self.matrix.as_dict()
        if self.against is not None:
            against = {str(name): found for name, found in self.against_estimates.items()}
            plain["against"] = self.against.as_dict() | _estimates_as_dict(against)
        plain |= _estimates_as_dict(estimates)
        mean = self.estimates["mean"]
        settings = {"repetitions": mean.repetitions, "seed": mean.seed}
        return {**plain, "optimum": self.optimum, **settings, "confidence": mean.confidence}


def _estimates_as_dict(estimates: Mapping[str, BootstrapEstimate]) -> dict[str, float | None]:
    plain: dict[str, float | None] = {}
    for name, estimate in estimates.items():
        plain |= {name: estimate.value, **bounds_as_dict(estimate.interval, f"{name}_ci")}
    return plain


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

    Args:
        matrix: The scores.
        against: Scores of other runs on the same tasks; adds their estimates, the differences and
            the probability of improvement.
        optimum: The score that the optimality gap is to.
        seed: Of the resampling; the same seed gives the same intervals.
        repetitions: Number of resamples.
        allow: What may differ between the two sides, as in `score_matrix`.

    Raises:
        InvalidInput: An argument is out of range, or the sides have other tasks or metrics.
        NotComparable: The sides differ in more than their policy.
    """
    if seed < 0:
        raise InvalidInput(f"seed must be 0 or more; got {seed!r}")
    if not np.isfinite(optimum):
        raise InvalidInput(
            f"optimum must be a finite number, the best score there is; got {optimum!r}"
        )
    check = _DifferenceCheck(allow, matrix.metric)
    if against is not None:
        _check_alike(matrix, against)
        matrix, against = _count_errors_alike(matrix, against)
    settings: Any = {"seed": seed, "repetitions": repetitions, "optimum": optimum}
    names: tuple[Statistic, ...] = get_args(Statistic)
    estimates = {name: bootstrap(matrix.scores, name, **settings) for name in names}
    of_against: dict[Statistic, BootstrapEstimate] = {}
    differences: dict[Statistic, BootstrapEstimate] = {}
    improvement = None
    if against is not None:
        scores = against.scores[:, [against.tasks.index(task) for task in matrix.tasks]]
        of_against = {name: bootstrap(scores, name, **settings) for name in names}
        differences = {
            name: bootstrap_difference(matrix.scores, scores, name, **settings) for name in names
        }
        if matrix.layout is not None and against.layout is not None:
            check.compare_sides(matrix.layout, against.layout)
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
        of_against,
        differences,
        tuple(check.allowed),
        check.may_differ,
    )


def _check_alike(matrix: ScoreMatrix, against: ScoreMatrix) -> None:
    """Refuse two sides with other metrics or tasks."""
    if matrix.metric != against.metric:
        raise InvalidInput(
            f"one side has scores of {matrix.metric!r}, the other of {against.metric!r}"
        )
    odd = sorted({*matrix.tasks} ^ {*against.tasks})
    if odd:
        raise InvalidInput(
            f"both sides need the same tasks; only one of them has {', '.join(map(repr, odd))}"
        )
