"""One pass of an environment's own rubric, with what it would swallow seen."""

from __future__ import annotations

import functools
import inspect
import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.types import (
    METRIC_SUFFIXES,
    Metric,
    Sample,
    Score,
    Trajectory,
)

REWARD = "reward"
"""The metric that carries the rubric's weighted sum."""


def score_outcome(trajectory: Trajectory, sample: Sample, *, rubric: str) -> Score:
    """The rubric's result, which the environment has left in the trajectory's outcome."""
    outcome = trajectory.outcome
    if outcome is None or not {"reward", "metrics", "weights"} <= set(outcome):
        raise InvalidInput(
            "this trajectory holds no result of a verifiers rubric; run it with "
            "environment_factory=ev.environment_factory"
        )
    tracked = (
        Metric(name, value, metadata={"weight": outcome["weights"][name]})
        for name, value in outcome["metrics"].items()
    )
    return Score((Metric(REWARD, outcome["reward"], weight=1.0), *tracked))


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    value: float
    weight: float | None


class Watch:
    """One scoring pass: what each reward function gave, and what it raised.

    Rubrics turn an exception in a reward function into 0.0. The rubric is the user's, and others
    may be scoring with it at the same moment, so it stays as it is: `over` gives a twin that
    shares its attributes, and of which only the functions are wrapped.
    """

    def __init__(self, rubric_class: Any) -> None:
        self._rubric_class = rubric_class
        self._calls: list[_Call] = []
        self._failures: list[str] = []

    def over(self, rubric: Any) -> Any:
        kind: Any = type(rubric)
        twin = object.__new__(_twin_class(kind, self._rubric_class))
        object.__setattr__(twin, "__dict__", rubric.__dict__)
        object.__setattr__(twin, "_heldout_watch", self)
        return twin

    def wrapped(self, functions: Sequence[Any], weights: Sequence[float], *, plain: bool) -> Any:
        pairs = zip_longest(functions, weights[: len(functions)])
        return [self._wrapped(function, weight, plain) for function, weight in pairs]

    def _wrapped(self, function: Any, weight: float | None, plain: bool) -> Any:
        name = function_name(function)

        def failed(problem: Exception) -> None:
            self._failures.append(f"reward function {name!r} raised {error_chain(problem)}")

        def took(value: Any) -> Any:
            try:
                self._calls.append(_Call(name, float(value), weight))
            except (TypeError, ValueError):
                if plain:  # else the rubric has a way of its own to read it
                    self._failures.append(
                        f"reward function {name!r} returned {value!r:.100}, which is no number"
                    )
            return value

        async def awaited(value: Any) -> Any:
            try:
                value = await value
            except Exception as problem:
                failed(problem)
                raise
            return took(value)

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                value = function(*args, **kwargs)
            except Exception as problem:
                failed(problem)
                raise
            return awaited(value) if inspect.isawaitable(value) else took(value)

        watched.__name__ = name
        return watched

    def result(self, state: Any) -> dict[str, Any]:
        """The reward and the metrics that the rubric has put into the state, if they are real."""
        if self._failures:
            more = len(self._failures) - 1
            raise EnvironmentFailed(self._failures[0] + (f" (and {more} more)" if more else ""))
        metrics: list[tuple[str, Any, float | None]] = []
        for name, value in (state.get("metrics") or {}).items():
            calls = [call for call in self._calls if call.name == name]
            if len(calls) > 1:  # of which verifiers keeps the last, or the sum
                metrics += [(name, call.value, call.weight) for call in calls]
            else:
                metrics.append((name, value, calls[0].weight if calls else None))
        names = _distinct([name for name, _, _ in metrics])
        return {
            "reward": _finite("reward", state.get("reward")),
            "metrics": {n: _finite(*m[:2]) for n, m in zip(names, metrics, strict=True)},
            "weights": {n: m[2] for n, m in zip(names, metrics, strict=True)},
        }


def _finite(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise EnvironmentFailed(f"the rubric's {name!r} is {value!r:.100}, which is no score")
    return number


@functools.cache
def _twin_class(kind: Any, rubric_class: Any) -> Any:
    plain = kind.score_rollout is rubric_class.score_rollout

    class Twin(kind):  # type: ignore[misc]
        __slots__ = ("_heldout_watch",)

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name == "funcs":
                watch: Watch = super().__getattribute__("_heldout_watch")
                return watch.wrapped(value, super().__getattribute__("weights"), plain=plain)
            if name == "rubrics":
                return [super(Twin, self).__getattribute__("_heldout_watch").over(r) for r in value]
            if isinstance(value, rubric_class):
                return super().__getattribute__("_heldout_watch").over(value)
            return value

    Twin.__name__, Twin.__qualname__ = kind.__name__, kind.__qualname__
    return Twin


def _distinct(names: Sequence[str]) -> list[str]:
    """The names with a number behind those that are taken, or that a summary would misread."""
    given: list[str] = [REWARD]

    def free(name: str) -> bool:
        others = {*given, *names} - {name}
        stem = any(name.endswith(s) and name.removesuffix(s) in others for s in METRIC_SUFFIXES)
        return name not in given and not stem

    for name in names:
        numbered = (f"{name}_{n}" for n in count(2))
        given.append(
            name if free(name) else next(n for n in numbered if free(n) and n not in names)
        )
    return given[1:]


def function_name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def error_chain(problem: BaseException) -> str:
    """An exception and what caused it, with the line of the last."""
    said = []
    cause: BaseException | None = problem
    while cause is not None:
        text = str(cause)
        said.append(f"{type(cause).__name__}: {text}" if text else type(cause).__name__)
        last, cause = cause, cause.__cause__
    frames = traceback.extract_tb(last.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return " from ".join(said) + where
