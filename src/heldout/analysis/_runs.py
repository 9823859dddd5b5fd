"""Runs that are compared, and the value that each of their items and samples has.

What is compared is a `Measure`. Its value for a sample is the mean over the sample's repeats. Items
that errored have no value; counted as `errors_as`, they give a second reading (docs/semantics.md,
clause 22).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.stats._input import UNIT_ROUNDING
from heldout.stats.intervals import Floats, Ints
from heldout.stats.pass_rates import pass_at_k_by_question, pass_hat_k_by_question
from heldout.stats.summary import has_passed
from heldout.store.columns import has_duplicates
from heldout.store.report import EvalReport, ReportOrResults, refuse_selected
from heldout.store.run_dir import RunDir
from heldout.store.tables import ResultTable, table_of

REWARD, PASSED = "reward", "passed"
METRIC_PREFIX = "metric."
"""Reaches a metric whose own name is that of a built-in measure: metric.passed."""


# --- Runs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A report that has been read to be compared: its name, its table, where it comes from."""

    name: str
    report: EvalReport
    table: ResultTable
    origin: dict[str, Any] | None = None
    """The run whose trajectories these are (`heldout rescore`); None if unknown."""

    @property
    def functions(self) -> dict[str, Any]:
        """Names and fingerprints in run.json of what prepared and scored; {} if unknown."""
        info = self.report.info
        return {} if info is None or self.report.path is None else info.functions

    @property
    def config(self) -> dict[str, Any]:
        return self.report.config

    @property
    def complete(self) -> bool:
        return self.report.summary.get("complete") is not False

    @property
    def errored(self) -> int:
        return int(np.isnan(self.table.reward).sum())

    @property
    def measured_nothing(self) -> bool:
        """Whether every model turn behind its scores came from the response cache."""
        return bool(self.table.cached[~np.isnan(self.table.reward)].all())


ReportOrPath = EvalReport | str | Path
"""A report, or the path of a run directory."""
RunOrPath = ReportOrPath | LoadedRun


def load_run(report: RunOrPath, keys: Sequence[str] = (), *, name: str) -> LoadedRun:
    """Load the items of a report, at least one of them scored, with the values of these keys.

    `name` is what to call a report that has no name of its own.
    """
    if isinstance(report, LoadedRun):
        return report
    if isinstance(report, str | Path):
        path = Path(report)
        if RunDir(path).curve.exists():
            raise RunDirectoryError(
                f"{path} is a curve; one of the evals in {path / 'steps'} is what can be compared"
            )
        report = EvalReport.load(report)
    if not isinstance(report, EvalReport):
        raise InvalidInput(
            f"a report, or the path of a run directory, is compared; got {report!r:.100}"
        )
    refuse_without_mean(report)
    origin: dict[str, Any] | None = None
    if report.path is not None and report.info is not None:
        origin = RunDir(report.path).origin(report.info)
    name = str(report.config.get("experiment_name") or (report.path.name if report.path else name))
    refuse_selected(report, name)
    table = table_of(report.results, [*dict.fromkeys(keys)])
    if len(table.reward) == 0:
        raise InvalidInput(f"{name} has no results: there is nothing to compare")
    if np.isnan(table.reward).all():
        again = "Run it again (--resume)"
        if report.is_imported:
            again = "`heldout rescore` can score the answers that it has"
        raise InvalidInput(
            f"{name} has no score: all of its {len(table.reward)} items errored. {again}, or see "
            "why: heldout show --failures"
        )
    return LoadedRun(name, report, table, origin)


def refuse_without_mean(report: EvalReport) -> None:
    """Refuse a run that failed because too many of its items errored (clause 3)."""
    n, errors = report.summary["n"], report.summary["n_errors"]
    if report.lacks_mean and errors < n:
        again = "Run them again (--resume; with --set max_error_rate=1 to accept errors)"
        if report.is_imported:
            again = "Import it with --max-error-rate 1 to accept errors"
        raise InvalidInput(
            f"{report.path} failed: {errors} of its {n} items errored, so it has no mean to "
            f"compare. {again}, or see why: heldout show"
        )


def read_table(results: ReportOrResults, cluster: str | None) -> ResultTable:
    """Return the items of a report, or of results in memory, with the values of a cluster key."""
    refuse_selected(results)
    keys = [] if cluster is None else [cluster]
    return table_of(results.results if isinstance(results, EvalReport) else results, keys)


def clusters_if_any(table: ResultTable, key: str | None) -> Ints | None:
    """Number the cluster of each sample; None if every sample is independent."""
    if key is None and not has_duplicates(table.sample_cluster):
        return None
    return table.clusters_by(key)


# --- Values -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured: "reward", "passed", "pass@k", "pass^k", or the name of a metric."""

    name: str
    pass_threshold: float | None

    @property
    def k(self) -> int | None:
        """Attempts of pass@k and pass^k; None for other measures."""
        match = re.fullmatch(r"pass[@^]([1-9][0-9]{0,8})", self.name)
        return int(match[1]) if match else None

    @property
    def counts_passes(self) -> bool:
        return self.name == PASSED or self.k is not None

    @property
    def metric(self) -> str | None:
        """The name of a metric, for which more need not be better; None for other measures."""
        if self.name == REWARD or self.counts_passes:
            return None
        return self.name.removeprefix(METRIC_PREFIX)

    def item_values(self, run: LoadedRun) -> Floats:
        """Return the value of each item; NaN where it errored or did not report the metric."""
        table = run.table
        if self.name == REWARD:
            return table.reward
        if self.counts_passes:
            if self.pass_threshold is None:
                raise InvalidInput(
                    f"nothing says which rewards of {run.name} pass: they are returns. Compare "
                    "the reward, or give the return that passes (%s)",
                    parameters=["pass_threshold"],
                )
            passed = has_passed(table.reward, self.pass_threshold)
            return np.asarray(np.where(np.isnan(table.reward), np.nan, passed))
        if self.metric is not None and self.metric in table.metrics:
            return table.metrics[self.metric]
        known = ", ".join([REWARD, PASSED, "pass@K", "pass^K", *table.metrics])
        raise InvalidInput(f"{run.name} has no metric {self.name!r}; it has {known}")

    def sample_values(self, run: LoadedRun, *, errors_as: float | None = None) -> Floats:
        """Return the value of each sample; NaN where it has none.

        An errored item has the value `errors_as`; None leaves it out.
        """
        table, values = run.table, self.item_values(run)
        if errors_as is not None:
            values = np.asarray(np.where(np.isnan(table.reward), errors_as, values))
        if self.k is None:
            return sample_means(table, values)
        made = count_items(table)
        short = np.flatnonzero(made < self.k)
        if len(short):
            raise InvalidInput(
                f"{self.name} needs {self.k} attempts at each sample; {run.name} has "
                f"{made[short[0]]} at {table.sample_ids[int(short[0])]!r} ({len(short)} samples "
                "have too few)"
            )
        attempts = count_items(table, ~np.isnan(values))
        successes = count_items(table, values == 1)
        by_sample = pass_at_k_by_question if self.name[4] == "@" else pass_hat_k_by_question
        rates = np.full(len(attempts), np.nan)
        enough = attempts >= self.k
        if enough.any():
            rates[enough] = by_sample(attempts[enough], successes[enough], k=self.k)
        return rates


def count_items(table: ResultTable, which: NDArray[np.bool_] | None = None) -> Ints:
    """Return how many items each sample has, or how many of these."""
    items = table.sample if which is None else table.sample[which]
    return np.bincount(items, minlength=table.samples).astype(np.int64)


def sample_means(table: ResultTable, values: Floats) -> Floats:
    """Return each sample's mean over the items that have a value; NaN where none has."""
    if len(values) == table.samples:
        return values  # one item per sample
    present = ~np.isnan(values)
    return group_means(table.sample[present], values[present], table.samples)


def group_means(groups: Ints, values: Floats, count: int) -> Floats:
    """Return the mean of each of `count` groups; NaN of an empty one."""
    counts = np.bincount(groups, minlength=count)
    sums = np.bincount(groups, weights=values, minlength=count)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))


def within_unit(*values: Floats) -> bool:
    """Return whether all values lie between 0 and 1; NaN is ignored."""
    return all(
        bool(((v >= -UNIT_ROUNDING) & (v <= 1 + UNIT_ROUNDING))[~np.isnan(v)].all()) for v in values
    )


def is_binary(*values: Floats) -> bool:
    """Return whether all values are 0 or 1; NaN is ignored."""
    return all(bool(((v == 0) | (v == 1))[~np.isnan(v)].all()) for v in values)
