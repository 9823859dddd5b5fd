"""What a score function may return."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy
import pytest

from heldout.scoring.grades import Grade, as_score
from heldout.types import Metric, Score


def brief(trajectory: object, sample: object) -> bool:
    return True


class Grader:
    def __call__(self, trajectory: object, sample: object) -> float:
        return 0.5


@pytest.mark.parametrize(
    ("value", "function", "metric"),
    [
        (True, brief, Metric("brief", 1.0, 1.0)),
        (0.25, partial(brief, sample=None), Metric("brief", 0.25, 1.0)),
        (3, Grader(), Metric("Grader", 3.0, 1.0)),
        (numpy.float32(0.5), lambda *_: 0.5, Metric("score", 0.5, 1.0)),
        (Grade(0.5, "x"), brief, Metric("brief", 0.5, 1.0, {"extracted": "x"})),
    ],
)
def test_a_number_is_one_metric_named_after_the_function(
    value: Any, function: Any, metric: Metric
) -> None:
    assert as_score(value, function) == Score((metric,))


def test_a_bool_is_a_rate() -> None:
    assert as_score(False, brief).metrics[0].rate
    assert not as_score(0.0, brief).metrics[0].rate


def test_a_score_stays_as_it_is() -> None:
    score = Score((Metric("x", 1.0, 0.0), Metric("y", 2.0, 1.0)))
    assert as_score(score, brief) is score


@pytest.mark.parametrize("value", [None, "1", [1.0], {"x": 1.0}])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="a Score, a number or a bool"):
        as_score(value, brief)
