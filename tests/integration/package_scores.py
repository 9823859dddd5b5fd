"""Compares a run with what a package itself made of the same answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from heldout import EvalReport


def check_same_scores(report: EvalReport, theirs: Sequence[float], mean: float) -> None:
    """Compare sample by sample, to the last bit, and on average.

    Args:
        report: The run, in which no item errored.
        theirs: The package's own score of each sample, in the dataset's order.
        mean: The package's own mean, where it reports one.
    """
    assert [result.error for result in report.results] == [None] * len(theirs)
    assert [r.score.reward.hex() for r in report.results] == [float(s).hex() for s in theirs]
    # Packages add up from left to right; heldout rounds a sum once.
    assert report.summary["mean"] == pytest.approx(mean, rel=1e-12)
    assert report.summary["n_scored"] == report.summary["n"] == len(theirs) > 0
