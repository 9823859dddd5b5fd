"""Scores rollouts of classic verifiers environments by their own rubrics, without silent zeros."""

from __future__ import annotations

import functools
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from heldout.adapters.verifiers.scores import finite, number_names
from heldout.errors import EnvironmentFailed


class RewardCall(NamedTuple):
    """What a reward function returned, with its weight in the rubric."""

    name: str
    value: Any
    weight: float | None


def strict_rubric(vf: Any, rubric: Any, calls: list[RewardCall]) -> Any:
    """Return a rubric that raises what its reward functions raise, and records what they return.

    Rubrics turn an exception in a reward function into 0.0. The rubric belongs to the user and may
    be scoring other rollouts at the same time, so it is not changed: the strict one shares its
    attributes.
    """
    kind: Any = type(rubric)
    strict = object.__new__(_strict_class(vf, kind))
    object.__setattr__(strict, "__dict__", rubric.__dict__)
    object.__setattr__(strict, "_heldout_calls", calls)
    return strict


@functools.cache
def _strict_class(vf: Any, kind: Any) -> Any:
    call_function = import_module("verifiers.utils.async_utils").maybe_call_with_named_args

    class StrictRubric(kind):  # type: ignore[misc]
        __slots__ = ("_heldout_calls",)

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name == "rubrics":
                return [strict_rubric(vf, rubric, self._heldout_calls) for rubric in value]
            if isinstance(value, vf.Rubric):
                return strict_rubric(vf, value, self._heldout_calls)
            return value

        async def _call_individual_reward_func(self, func: Any, state: Any) -> float:
            name = function_name(func)
            try:
                value = await call_function(func, **self.score_objects(state))
            except Exception as problem:
                raise EnvironmentFailed(
                    f"reward function {name!r} raised {error_chain(problem)}"
                ) from problem
            try:
                number = float(value)
            except (TypeError, ValueError):
                raise EnvironmentFailed(
                    f"reward function {name!r} returned {value!r:.100}, which is no number"
                ) from None
            pairs = zip(self.funcs, self.weights, strict=False)
            weight = next((weight for function, weight in pairs if function is func), None)
            self._heldout_calls.append(RewardCall(name, number, weight))
            return number

    StrictRubric.__name__, StrictRubric.__qualname__ = kind.__name__, kind.__qualname__
    return StrictRubric


def rubric_result(state: Any, calls: list[RewardCall]) -> dict[str, Any]:
    """Return the reward and the metrics that the rubric put into the state, if they are finite."""
    metrics: list[RewardCall] = []
    for name, value in (state.get("metrics") or {}).items():
        same = [call for call in calls if call.name == name]
        if len(same) > 1:  # verifiers keeps the last, or the sum
            metrics += same
        else:
            metrics.append(RewardCall(name, value, same[0].weight if same else None))
    names = number_names([metric.name for metric in metrics])
    return {
        "reward": finite("reward", state.get("reward")),
        "metrics": {n: finite(m.name, m.value) for n, m in zip(names, metrics, strict=True)},
        "weights": {n: m.weight for n, m in zip(names, metrics, strict=True)},
    }


def function_name(function: Any) -> str:
    """Name a reward function."""
    return str(getattr(function, "__name__", type(function).__name__))


def error_chain(problem: BaseException) -> str:
    """Describe an exception and its causes, with the line of the last one."""
    described = []
    cause: BaseException | None = problem
    while cause is not None:
        text = str(cause)
        described.append(f"{type(cause).__name__}: {text}" if text else type(cause).__name__)
        last, cause = cause, cause.__cause__
    frames = traceback.extract_tb(last.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return " from ".join(described) + where
