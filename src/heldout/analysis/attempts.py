"""A set of answers that may also decline: how many are right, of all and of those attempted.

Where a model may say that it does not know, one number is not enough: answering everything and
answering only what is safe are both easy. So three are given:

    accuracy                    correct / n
    accuracy given attempted    correct / (correct + incorrect)
    F1                          their harmonic mean, 2 correct / (n + attempted)

J. Wei et al. (2024), "Measuring short-form factuality in large language models" (SimpleQA, arXiv
2411.04368), section 3. `n` is the items that were scored: one that errored, a judge without a
verdict for example, is no attempt and no refusal, and is counted apart.

All three are means, F1 too: of "correct" over every item once and every attempt once more. So they
have the error bars that means have, with repeats clustered by sample (`heldout.stats.Moments`). In
simulations with 30 to 500 samples these cover 92% to 98%, and less in corners: F1 90% with 30
samples of which a tenth is attempted; accuracy given attempted 90% with 100 of which 99% are, and
99% of those correct; F1 89% at these rates with 4 repeats that are nearly always alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.analysis._runs import sample_clusters
from heldout.errors import InvalidInput
from heldout.stats import CONFIDENCE, Moments, Rate
from heldout.store.report import EvalReport
from heldout.store.table import Table, table_of, table_of_results
from heldout.types import EvalResult

INCORRECT, NOT_ATTEMPTED = "_incorrect", "_not_attempted"
"""Behind a metric's name: how a three-way judge calls the other two verdicts."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """`n` = correct + incorrect + not_attempted."""

    name: str
    n: int
    correct: int
    incorrect: int
    not_attempted: int
    errored: int
    without: int
    """Scored, but not by a three-way judge of this name."""
    samples: int
    accuracy: Rate
    accuracy_given_attempted: Rate
    f1: Rate

    @property
    def attempted(self) -> int:
        return self.correct + self.incorrect

    def as_dict(self) -> dict[str, Any]:
        rates = ("accuracy", "accuracy_given_attempted", "f1")
        return asdict(self) | {name: getattr(self, name).as_dict() for name in rates}


def attempts(
    results: EvalReport | Iterable[EvalResult],
    name: str = "correct",
    *,
    cluster: str | None = None,
    confidence: float = CONFIDENCE,
) -> Attempts:
    """Of results that a three-way judge scored: metrics `name`, `name`_incorrect and
    `name`_not_attempted, one of which is 1. `cluster` is a metadata key that says which samples
    belong together."""
    keys = [] if cluster is None else [cluster]
    if isinstance(results, EvalReport):
        table = table_of(results, keys)
    else:
        table = table_of_results(results, keys)
    verdicts = _verdicts(table, name)
    scored = ~np.isnan(table.reward)
    judged = scored & ~np.isnan(verdicts).any(axis=0)
    if not judged.any():
        raise InvalidInput(
            f"none of {len(table)} items has a verdict {name!r}: {int((~scored).sum())} errored"
        )
    correct, incorrect, not_attempted = verdicts[:, judged]
    _check(verdicts, judged, table, name)
    groups = sample_clusters(table, cluster)[table.sample]
    groups, tried = groups[judged], not_attempted == 0

    def rate(values: NDArray[Any], which: NDArray[Any]) -> Rate:
        moments = Moments.of(values, which)
        found = moments.interval(confidence, bounded=True) if len(values) else None
        return Rate(int(values.sum()), len(values), found, moments.stderr)

    return Attempts(
        name=name,
        n=int(judged.sum()),
        correct=int(correct.sum()),
        incorrect=int(incorrect.sum()),
        not_attempted=int(not_attempted.sum()),
        errored=int((~scored).sum()),
        without=int((scored & ~judged).sum()),
        samples=len(np.unique(table.sample[judged])),
        accuracy=rate(correct, groups),
        accuracy_given_attempted=rate(correct[tried], groups[tried]),
        f1=rate(np.concatenate([correct, correct[tried]]), np.concatenate([groups, groups[tried]])),
    )


def three_way_names(summary: Mapping[str, Any]) -> list[str]:
    """The names of three-way judges, by the metrics that a summary has."""
    return [
        name
        for key in summary
        if key.startswith("metric_") and key.endswith(NOT_ATTEMPTED)
        for name in [key.removeprefix("metric_").removesuffix(NOT_ATTEMPTED)]
        if f"metric_{name}" in summary and f"metric_{name}{INCORRECT}" in summary
    ]


def _verdicts(table: Table, name: str) -> NDArray[np.float64]:
    names = (name, name + INCORRECT, name + NOT_ATTEMPTED)
    missing = [each for each in names if each not in table.metrics]
    if missing:
        there = ", ".join(sorted(table.metrics)) or "none"
        raise InvalidInput(
            f"there is no metric {missing[0]!r}; a three-way judge named {name!r} gives "
            f"{', '.join(names)}. Metrics here: {there:.300}"
        )
    return np.stack([table.metrics[each] for each in names])


def _check(
    verdicts: NDArray[np.float64], judged: NDArray[np.bool_], table: Table, name: str
) -> None:
    binary = ((verdicts == 0) | (verdicts == 1)).all(axis=0)
    wrong = np.flatnonzero(judged & ~(binary & (verdicts.sum(axis=0) == 1)))
    if len(wrong):
        item = int(wrong[0])
        raise InvalidInput(
            f"sample {table.sample_ids[table.sample[item]]!r}: {name}, {name}{INCORRECT} and "
            f"{name}{NOT_ATTEMPTED} are {verdicts[:, item].tolist()}; exactly one of them is 1 "
            f"where a three-way judge has given them ({len(wrong)} such items)"
        )
