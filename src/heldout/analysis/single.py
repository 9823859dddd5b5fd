"""One report: pass@k and pass^k over its repeats, and error bars clustered by a metadata key.

    pass_at_k(report, 4)                        does one of four attempts succeed?
    summary_of(report, cluster="passage")       questions that share a passage stand together

What a success is and what errored items count as is decided in `heldout.stats.summary`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout import stats
from heldout.analysis.opened import cluster_numbers, has_copies
from heldout.errors import InvalidInput
from heldout.stats import Ints, PassRate
from heldout.stats.summary import Batch, Summary, has_passed, summarize_batch
from heldout.store.columns import places_by_code
from heldout.store.report import EvalReport, repeats_of
from heldout.store.table import Table, table_of, table_of_results
from heldout.types import EvalResult

Results = EvalReport | Iterable[EvalResult]

FEW_CLUSTERS = 10
"""Clustered intervals of fewer are rough: the spread between clusters is hardly known."""


# --- pass@k -------------------------------------------------------------------------------------


def pass_at_k(
    results: Results, k: int, *, cluster: str | None = None, pass_threshold: float | None = None
) -> PassRate:
    """The chance that at least one of k attempts at a sample passes, mean over samples.

    An errored attempt has not passed, and stays an attempt (docs/semantics.md, clause 6).
    `pass_threshold` None is the report's own (0.5 for mere results). Samples of fewer than k
    attempts are refused by name.
    """
    return _rate(stats.pass_at_k, results, k, cluster, pass_threshold)


def pass_hat_k(
    results: Results, k: int, *, cluster: str | None = None, pass_threshold: float | None = None
) -> PassRate:
    """pass^k: the chance that all of k attempts pass; its arguments are those of `pass_at_k`."""
    return _rate(stats.pass_hat_k, results, k, cluster, pass_threshold)


def _rate(
    rate: Callable[..., PassRate],
    results: Results,
    k: int,
    cluster: str | None,
    pass_threshold: float | None,
) -> PassRate:
    table, threshold = _read(results, cluster, pass_threshold)
    if np.isnan(table.reward).all():
        raise InvalidInput(f"none of {len(table)} items has a score, so none says what passes")
    return _rate_of(table, rate, k, cluster, threshold)


def _rate_of(
    table: Table, rate: Callable[..., PassRate], k: int, cluster: str | None, threshold: float
) -> PassRate:
    passed = table.sample[has_passed(table.reward, threshold)]
    return rate(
        _attempts(table),
        np.bincount(passed, minlength=len(table.sample_ids)),
        k=k,
        clusters=cluster_numbers(table, cluster)
        if cluster is not None or has_copies(table)
        else None,
        names=table.sample_ids,
    )


def _attempts(table: Table) -> Ints:
    return np.bincount(table.sample, minlength=len(table.sample_ids)).astype(np.int64)


# --- Summaries ----------------------------------------------------------------------------------


def summarize_clustered(
    results: Results, cluster: str, *, pass_threshold: float | None = None
) -> Summary:
    """A summary whose error bars are clustered by a metadata key: samples that share its value
    belong together, with their repeats; one that has none is a cluster of its own.

    Beside what a summary has: `clustered_by`, `n_clusters`, and `n_without_cluster`, the samples
    that have no value.
    """
    table, threshold = _read(results, cluster, pass_threshold)
    return _clustered(table, cluster, threshold)


def summary_of(
    report: EvalReport, *, cluster: str | None = None, pass_at: Sequence[int] = ()
) -> Summary:
    """A report's summary, clustered by a key if one is given, with pass@k and pass^k for each k.

    A report with repeats has those for their number, too. They are `pass_at_<k>` and
    `pass_hat_<k>` with `_n` (samples), `_stderr`, `_ci_low` and `_ci_high`. Where samples of an
    unfinished report have fewer than k attempts they are None, and `pass_at_<k>_short` says how
    many samples those are.
    """
    repeats = repeats_of(report.config)
    asked = sorted({*pass_at, *([repeats] if repeats > 1 else [])})
    if cluster is None and not asked:
        return report.summary
    threshold = report.pass_threshold
    table, _ = _read(report, cluster, threshold)
    summary = dict(report.summary)
    if cluster is not None:
        of_run: Summary = {key: summary[key] for key in ("complete", "n_asked") if key in summary}
        summary = {**_clustered(table, cluster, threshold), **of_run}
    for k in asked:
        # Of a finished report, asking for more attempts than were made is a mistake to be told.
        strict = k in pass_at and summary.get("complete") is not False
        summary.update(_rates(table, k, cluster, threshold, strict=strict))
    return summary


def slices_and_total(
    report: EvalReport, *by: str, cluster: str
) -> tuple[dict[tuple[Any, ...], Summary], Summary]:
    """A summary for each value of these keys (each combination, if several), and that of all, with
    error bars clustered by `cluster`."""
    table = table_of(report, [cluster], item_keys=by)
    numbers = cluster_numbers(table, cluster)
    labels = list(zip(*(table.item_keys[key] for key in by), strict=True))
    known: dict[tuple[Any, ...], int] = {}
    codes = np.array([known.setdefault(label, len(known)) for label in labels], dtype=np.int64)
    names = list(known)
    threshold, batch = report.pass_threshold, _batch(table, numbers)

    def summary(which: NDArray[Any]) -> Summary:
        found = summarize_batch(batch.rows(which), threshold)
        found |= _counted(table, cluster, numbers, np.unique(table.sample[which]))
        if report.summary.get("complete") is False:
            found["complete"] = False
        return found

    slices = {names[code]: summary(which) for code, which in places_by_code(codes)}
    return slices, summary(np.arange(len(table)))


def _clustered(table: Table, cluster: str, threshold: float) -> Summary:
    numbers = cluster_numbers(table, cluster)
    everything = np.arange(len(table.sample_ids))
    return {
        **summarize_batch(_batch(table, numbers), threshold),
        **_counted(table, cluster, numbers, everything),
    }


def _batch(table: Table, numbers: Ints) -> Batch:
    return Batch(
        table.sample,
        numbers[table.sample],
        table.reward,
        table.truncated,
        table.weighted,
        table.metrics,
        table.plain,
    )


def _counted(table: Table, cluster: str, numbers: Ints, samples: Ints) -> Summary:
    values = table.keys[cluster]
    return {
        "clustered_by": cluster,
        "n_clusters": len(np.unique(numbers[samples])),
        "n_without_cluster": int((values.codes[samples] < 0).sum()),
    }


def _rates(table: Table, k: int, cluster: str | None, threshold: float, *, strict: bool) -> Summary:
    short = int((_attempts(table) < k).sum())
    missing = bool(np.isnan(table.reward).all())
    found: Summary = {}
    for name, rate in (("pass_at", stats.pass_at_k), ("pass_hat", stats.pass_hat_k)):
        if missing or (short and not strict):
            fields: list[Any] = [None] * 5
        else:
            made = _rate_of(table, rate, k, cluster, threshold)
            interval = made.interval
            bounds = [interval.low, interval.high] if interval else [None, None]
            fields = [made.value, made.questions, made.stderr, *bounds]
        keys = (f"{name}_{k}{end}" for end in ("", "_n", "_stderr", "_ci_low", "_ci_high"))
        found |= dict(zip(keys, fields, strict=True))
    if short and not strict:
        found[f"pass_at_{k}_short"] = short
    return found


def _read(
    results: Results, cluster: str | None, pass_threshold: float | None
) -> tuple[Table, float]:
    keys = [] if cluster is None else [cluster]
    if isinstance(results, EvalReport):
        own = results.pass_threshold
        return table_of(results, keys), own if pass_threshold is None else pass_threshold
    return table_of_results(results, keys), 0.5 if pass_threshold is None else pass_threshold
