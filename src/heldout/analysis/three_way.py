"""Answers that may decline: how many are correct, of all and of those attempted.

    accuracy                    correct / n
    accuracy given attempted    correct / (correct + incorrect)
    F1                          their harmonic mean, 2 correct / (n + attempted)

J. Wei et al. (2024), "Measuring short-form factuality in large language models" (SimpleQA, arXiv
2411.04368), section 3. `n` counts what was scored; what errored is no attempt and no refusal.

All three are means with clustered errors, F1 too: of "correct" over everything scored and
everything attempted, so that an attempt counts twice. In simulations with 30 to 500 samples
intervals cover 92% to 98%, and 89% or 90% where hardly anything or nearly everything is attempted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.analysis._runs import read_table
from heldout.errors import InvalidInput
from heldout.stats import Moments, Rate
from heldout.stats.intervals import Floats
from heldout.store.report import EvalReport, ReportOrResults
from heldout.store.tables import ResultTable

INCORRECT, NOT_ATTEMPTED = "_incorrect", "_not_attempted"
"""Suffixes of the metrics that a three-way judge gives for the other two verdicts."""


@dataclass(frozen=True, slots=True)
class ThreeWayCounts:
    """Verdicts of a three-way judge; n = correct + incorrect + not_attempted.

    Attributes:
        name: The judge's metric.
        n: Results with a verdict.
        correct: Those that are correct.
        incorrect: Those that are not.
        not_attempted: Those that declined.
        errored: Results without a score.
        without: Results that were scored, but not by a judge of this name.
        samples: Samples with a verdict.
        accuracy: correct / n.
        accuracy_given_attempted: correct / (correct + incorrect).
        f1: The harmonic mean of the two.
        complete: False of a run that is not finished: the counts are of what has finished.
    """

    name: str
    n: int
    correct: int
    incorrect: int
    not_attempted: int
    errored: int
    without: int
    samples: int
    accuracy: Rate
    accuracy_given_attempted: Rate
    f1: Rate
    complete: bool = True

    @property
    def attempted(self) -> int:
        """Number of results that are correct or incorrect."""
        return self.correct + self.incorrect

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rates = ("accuracy", "accuracy_given_attempted", "f1")
        return asdict(self) | {name: getattr(self, name).as_dict() for name in rates}


def count_three_way(
    results: ReportOrResults,
    name: str = "correct",
    *,
    cluster: str | None = None,
) -> ThreeWayCounts:
    """Count the verdicts of a three-way judge.

    Args:
        results: A report, or results.
        name: The judge's metric. There are also `name`_incorrect and `name`_not_attempted, and
            exactly one of the three is 1.
        cluster: Metadata key to cluster error bars by.

    Returns:
        The counts and rates, with 95% intervals.

    Raises:
        InvalidInput: There are no such metrics, or not one of them is 1 everywhere.
    """
    table = read_table(results, cluster)
    names = (name, name + INCORRECT, name + NOT_ATTEMPTED)
    missing = [metric for metric in names if metric not in table.metrics]
    if missing:
        known = ", ".join(sorted(table.metrics)) or "none"
        raise InvalidInput(
            f"there is no metric {missing[0]!r}; a three-way judge named {name!r} gives "
            f"{', '.join(names)}. Metrics here: {known}"
        )
    verdicts = np.stack([table.metrics[metric] for metric in names])
    scored = ~np.isnan(table.reward)
    judged = scored & ~np.isnan(verdicts).any(axis=0)
    _check_verdicts(table, names, verdicts, judged)
    correct, incorrect, not_attempted = verdicts[:, judged]
    groups = table.clusters_by(cluster)[table.sample][judged]
    attempted = not_attempted == 0

    def rate(*parts: NDArray[np.bool_]) -> Rate:
        values = np.concatenate([correct[part] for part in parts])
        moments = Moments.of(values, np.concatenate([groups[part] for part in parts]))
        interval = moments.interval(bounded=True)
        return Rate(int(values.sum()), moments.n, interval, moments.stderr)

    everything = np.ones(len(correct), dtype=np.bool_)
    return ThreeWayCounts(
        name=name,
        n=len(correct),
        correct=int(correct.sum()),
        incorrect=int(incorrect.sum()),
        not_attempted=int(not_attempted.sum()),
        errored=int((~scored).sum()),
        without=int((scored & ~judged).sum()),
        samples=len(np.unique(table.sample[judged])),
        accuracy=rate(everything),
        accuracy_given_attempted=rate(attempted),
        f1=rate(everything, attempted),
        complete=not isinstance(results, EvalReport) or results.is_finished,
    )


def _check_verdicts(
    table: ResultTable, names: Sequence[str], verdicts: Floats, judged: NDArray[np.bool_]
) -> None:
    if not judged.any():
        errored = int(np.isnan(table.reward).sum())
        raise InvalidInput(
            f"none of {len(table)} results has a verdict {names[0]!r}: {errored} errored"
        )
    binary = ((verdicts == 0) | (verdicts == 1)).all(axis=0)
    wrong = np.flatnonzero(judged & ~(binary & (verdicts.sum(axis=0) == 1)))
    if len(wrong):
        row = int(wrong[0])
        raise InvalidInput(
            f"sample {table.sample_ids[table.sample[row]]!r}: {', '.join(names)} are "
            f"{verdicts[:, row].tolist()}; a three-way judge makes exactly one of them 1 "
            f"({len(wrong)} such results)"
        )


def three_way_names(summary: Mapping[str, Any]) -> list[str]:
    """Return the metrics of three-way judges in the summary of a report."""
    names = [
        key.removeprefix("metric_").removesuffix(NOT_ATTEMPTED)
        for key in summary
        if key.startswith("metric_") and key.endswith(NOT_ATTEMPTED)
    ]
    return [n for n in names if f"metric_{n}" in summary and f"metric_{n}{INCORRECT}" in summary]
