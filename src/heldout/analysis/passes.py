"""One report: pass@k and pass^k over its attempts, and error bars clustered by a metadata key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from heldout import stats
from heldout.analysis._comparability import refuse_mismatches, unfinished_report
from heldout.analysis._runs import (
    clusters_if_any,
    count_items,
    read_table,
    refuse_without_mean,
)
from heldout.errors import InvalidInput
from heldout.stats import PassRate
from heldout.stats.intervals import bounds_as_dict
from heldout.stats.summary import Summary, has_passed, without_intervals
from heldout.store.columns import summarize_results
from heldout.store.report import EvalReport, ReportOrResults, outcome_selection
from heldout.store.results import Results
from heldout.store.run_config import repeats_of
from heldout.store.tables import ResultTable, group_results, summarize_table
from heldout.types import EvalResult

Estimator = Callable[..., PassRate]

FEW_CLUSTERS = 10
"""Clustered intervals from fewer are rough: the spread between clusters is hardly known."""


# --- pass@k -------------------------------------------------------------------------------------


def pass_at_k(
    results: ReportOrResults,
    k: int,
    *,
    cluster: str | None = None,
    pass_threshold: float | None = None,
    allow: Collection[str] = (),
) -> PassRate:
    """Estimate pass@k: the chance that at least one of k attempts at a sample passes.

    An errored attempt has not passed, and stays an attempt (docs/semantics.md, clause 6).

    Args:
        results: A report, or all results of one: attempts that are missing are refused, as are
            results that `report.where` picked by what came out.
        k: Number of attempts.
        cluster: Metadata key to cluster the error bar by.
        pass_threshold: The reward that passes. None is the report's own, 0.5 for results.
        allow: ["incomplete"] counts the finished part of a report that is not finished.

    Returns:
        The mean over samples with its interval.

    Raises:
        NotComparable: The report is not finished.
        InvalidInput: A sample has fewer than k attempts, nothing has a score, or the results were
            selected by outcome.
    """
    return _estimate(stats.pass_at_k, results, k, cluster, pass_threshold, allow)


def pass_hat_k(
    results: ReportOrResults,
    k: int,
    *,
    cluster: str | None = None,
    pass_threshold: float | None = None,
    allow: Collection[str] = (),
) -> PassRate:
    """Estimate pass^k: the chance that all of k attempts at a sample pass.

    Args:
        results: A report, or all results of one: attempts that are missing are refused, as are
            results that `report.where` picked by what came out.
        k: Number of attempts.
        cluster: Metadata key to cluster the error bar by.
        pass_threshold: The reward that passes. None is the report's own, 0.5 for results.
        allow: ["incomplete"] counts the finished part of a report that is not finished.

    Returns:
        The mean over samples with its interval.

    Raises:
        NotComparable: The report is not finished.
        InvalidInput: A sample has fewer than k attempts, nothing has a score, or the results were
            selected by outcome.
    """
    return _estimate(stats.pass_hat_k, results, k, cluster, pass_threshold, allow)


def _estimate(
    estimator: Estimator,
    results: ReportOrResults,
    k: int,
    cluster: str | None,
    pass_threshold: float | None,
    allow: Collection[str],
) -> PassRate:
    if isinstance(results, EvalReport):
        refuse_without_mean(results)
    table = read_table(results, cluster)
    if isinstance(results, EvalReport):
        name = str(results.config.get("experiment_name") or results.path or "the report")
        unfinished = unfinished_report(results, name, len(table))
        refuse_mismatches(unfinished, allow, f"{name} has no pass rates yet")
    if np.isnan(table.reward).all():
        raise InvalidInput(f"none of {len(table)} items has a score, so none says what passes")
    if not isinstance(results, EvalReport):
        _refuse_missing_attempts(table)
    if pass_threshold is None:
        pass_threshold = results.pass_threshold if isinstance(results, EvalReport) else 0.5
    if pass_threshold is None:
        raise InvalidInput(
            "nothing says which of these rewards pass: give %s", parameters=["pass_threshold"]
        )
    return _count_passes(table, estimator, k, cluster, pass_threshold)


def _refuse_missing_attempts(table: ResultTable) -> None:
    """Refuse results that lack attempts, such as those that errored."""
    made, most = count_items(table), int(table.repeat.max()) + 1
    short = np.flatnonzero(made < most)
    if len(short):
        raise InvalidInput(
            f"sample {table.sample_ids[int(short[0])]!r} has {made[short[0]]} of {most} attempts "
            f"({len(short)} samples have too few): attempts that are left out, such as errored "
            "ones, change what passes. Pass the report, or all of its results"
        )


def _count_passes(
    table: ResultTable, estimator: Estimator, k: int, cluster: str | None, threshold: float
) -> PassRate:
    return estimator(
        count_items(table),
        count_items(table, has_passed(table.reward, threshold)),
        k=k,
        clusters=clusters_if_any(table, cluster),
        names=table.sample_ids,
    )


# --- Summaries ----------------------------------------------------------------------------------


def summarize(
    results: Iterable[EvalResult], *, pass_threshold: float = 0.5, cluster: str | None = None
) -> Summary:
    """Summarize any results as a report does (docs/semantics.md, clauses 1-7).

    Args:
        results: The results.
        pass_threshold: The reward that passes.
        cluster: A metadata key that says which samples belong together (a shared passage): error
            bars are clustered by it, instead of by sample. A sample without a value is a cluster of
            its own.

    Returns:
        The summary; with a cluster, it has `clustered_by`, `n_clusters`, and `n_without_cluster`,
        the number of samples without a value. Of a report's results that are not all there yet it
        has `complete: false`.
    """
    if cluster is None:
        summary = summarize_results(results, pass_threshold)
        summary = without_intervals(summary) if outcome_selection(results) else summary
    else:
        summary = summarize_table(read_table(results, cluster), pass_threshold, cluster)
    if isinstance(results, Results) and not results.is_finished:
        summary["complete"] = False
    return summary


def group_by(
    results: ReportOrResults, key: str | Callable[[EvalResult], Any]
) -> dict[Any, list[EvalResult]]:
    """Group results by the values of a key, as `report.summarize(by=key)` does.

    Args:
        results: A report, or results.
        key: A metadata key, a column such as `truncated`, or a function of a result.

    Returns:
        The results of each value, in sorted order; None stands for results without the key.

    Raises:
        RunDirectoryError: No result has the key; the message names those that there are.
    """
    return group_results(results.results if isinstance(results, EvalReport) else results, key)


def summarize_report(
    report: EvalReport, *, cluster: str | None = None, pass_at: Sequence[int] = ()
) -> Summary:
    """Return a report's summary with pass@k and pass^k, clustered by a key if one is given.

    Args:
        report: The report.
        cluster: Metadata key to cluster error bars by.
        pass_at: Each k; the number of the report's repeats is added.

    Returns:
        The summary with `pass_at_<k>` and `pass_hat_<k>`, each with `_n` (samples), `_stderr`,
        `_ci_low` and `_ci_high`. Where samples of an unfinished report have fewer than k attempts
        these are None, and `pass_at_<k>_short` is the number of those samples.

    Raises:
        InvalidInput: A k of `pass_at` is more than the attempts of a finished report, or results
            picked by what came out are asked for pass@k or clusters.
    """
    repeats = repeats_of(report.config)
    own = [repeats] if repeats > 1 and outcome_selection(report) is None else []
    ks = sorted({*pass_at, *own})
    if cluster is None and not ks:
        return report.summary
    table, threshold = read_table(report, cluster), report.pass_threshold
    summary = dict(report.summary)
    if cluster is not None:
        kept: Summary = {key: summary[key] for key in ("complete", "n_asked") if key in summary}
        summary = {**summarize_table(table, threshold, cluster), **kept}
    for k in ks:
        if threshold is None:
            break  # nothing says which rewards pass
        strict = k in pass_at and summary.get("complete") is not False
        summary |= _summarize_passes(table, k, cluster, threshold, strict=strict)
    return report.mark_selected(summary)


def summarize_passes(results: Sequence[EvalResult], k: int, pass_threshold: float) -> Summary:
    """Return pass@k and pass^k of results with at least k attempts at each sample.

    Args:
        results: The results, errored ones included.
        k: Number of attempts.
        pass_threshold: The reward that passes.

    Returns:
        What `summarize_report` adds to a summary; all None if nothing has a score.

    Raises:
        InvalidInput: A sample has fewer than k attempts.
    """
    return _summarize_passes(read_table(results, None), k, None, pass_threshold, strict=True)


def _summarize_passes(
    table: ResultTable, k: int, cluster: str | None, threshold: float, *, strict: bool
) -> Summary:
    short = int((count_items(table) < k).sum())
    unscored = bool(np.isnan(table.reward).all())
    summary: Summary = {}
    for name, estimator in (("pass_at", stats.pass_at_k), ("pass_hat", stats.pass_hat_k)):
        key, rate = f"{name}_{k}", None
        if not unscored and (strict or not short):
            rate = _count_passes(table, estimator, k, cluster, threshold)
        summary[key] = rate and rate.value
        summary[f"{key}_n"] = rate and rate.questions
        summary[f"{key}_stderr"] = rate and rate.stderr
        summary |= bounds_as_dict(rate.interval if rate else None, f"{key}_ci")
    if short and not strict:
        summary[f"pass_at_{k}_short"] = short
    return summary
