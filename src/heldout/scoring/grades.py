"""What a grader returns, and what a score function may return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any, TypeVar

import msgspec

from heldout._core.format import cut
from heldout.store.fingerprint import set_version
from heldout.types import Metric, Score

LONGEST_KEPT = 500  # characters of what was extracted that a metric keeps

F = TypeVar("F", bound=Callable[..., Any])


class Grade(msgspec.Struct, frozen=True):
    """The verdict of a grader, with what it was based on."""

    value: float
    extracted: str | None
    """What was taken for the answer; None where there was none."""
    note: str = ""
    """Why, where the value alone does not say it."""
    details: dict[str, Any] = {}
    """What else is kept in the metadata, as plain JSON values of bounded size."""
    tracked: tuple[Metric, ...] = ()
    """Metrics of weight 0 that come with the grade; the grade's name is put before theirs."""

    def metric(self, name: str, weight: float = 0.0) -> Metric:
        """Return the grade as a metric, with what it was based on as its metadata."""
        extracted = None if self.extracted is None else cut(self.extracted, LONGEST_KEPT)
        metadata = {"extracted": extracted} | ({"note": self.note} if self.note else {})
        metadata |= self.details
        return Metric(name, self.value, weight, metadata, rate=0 <= self.value <= 1)

    def metrics(self, name: str, weight: float = 0.0) -> tuple[Metric, ...]:
        """Return the grade as a metric, and those that are tracked with it."""
        tracked = (replace(metric, name=f"{name}_{metric.name}") for metric in self.tracked)
        return self.metric(name, weight), *tracked


NO_ANSWER = Grade(0.0, None, "no answer")
"""What every grader returns where there is nothing to grade."""


def as_score(value: Any, function: Callable[..., Any]) -> Score:
    """Turn what a score function returned into a Score.

    A number, a bool or a Grade is one metric of weight 1, named after the function.

    Raises:
        TypeError: The value is none of these.
    """
    if isinstance(value, Score):
        return value
    function = inspect.unwrap(function)
    while hasattr(function, "func"):  # a partial
        function = function.func
    name = getattr(function, "__name__", type(function).__name__)
    name = name if name.isidentifier() else "score"  # a lambda
    if isinstance(value, Grade):
        return Score(value.metrics(name, 1.0))
    if is_number(value):
        return Score((Metric(name, value, 1.0),))
    hint = "; is there a return?" if value is None else ""
    raise TypeError(f"score_fn returns a Score, a number or a bool, got {value!r:.200}{hint}")


def is_number(value: Any) -> bool:
    """Return whether a value is a number or a bool of Python, numpy or torch."""
    # numpy's and torch's scalars have no type in common.
    return isinstance(value, Real) or getattr(value, "shape", None) == ()


_CHECK = "__heldout_check__"


def grader(
    version: int | str | Callable[[], int | str], *, check: Callable[..., object] | None = None
) -> Callable[[F], F]:
    """Mark a function as a ready-made grader.

    Args:
        version: Raise it with every change in what the grader extracts or treats as equal: reports
            of different versions are not compared. Other changes keep reports comparable.
        check: Gets the options that are known when the rubric is made, and raises if they are
            invalid.
    """

    def mark(function: F) -> F:
        set_version(function, version)
        if check is not None:
            setattr(function, _CHECK, check)
        return function

    return mark


def check_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Run a grader's own check of its options, before anything runs."""
    check = getattr(function, _CHECK, None)
    if check is not None:
        check(**options)
