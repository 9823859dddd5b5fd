"""Rubrics: named functions with weights, as one score function.

    score_fn = Rubric(
        part(grade_number, name="correct", relative=1e-3),
        part(brief, weight=0),                              # tracked only
    )

A function takes what it needs, by name:

    answer    the last model turn without its reasoning; "" where there is none or it was cut off
    text      the last model turn as it was written
    target    sample.ground_truth
    sample, trajectory

and returns a number, a bool or a Grade, which becomes a metric of the part's name and weight; or
Metrics, with names and weights of their own. It may be async; those run at the same time. One that
raises is the item's error, and never a 0 (semantics, clause 5).
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import msgspec

from heldout._core.aio import settle
from heldout._core.current_attempt import calling_part
from heldout.errors import InvalidInput, ScoringFailed, printable_error
from heldout.scoring.answers import final_answer
from heldout.scoring.grades import Grade, check_options, is_number
from heldout.store.fingerprint import describe_callable, version_of
from heldout.types import Metric, Sample, Score, Trajectory

GIVEN = ("answer", "text", "target", "sample", "trajectory")
"""The parameters that a part may have."""


@dataclass(frozen=True, slots=True)
class Part:
    """A function of a rubric. Made by `part`."""

    function: Callable[..., Any]
    name: str
    weight: float | None
    version: int | str | None
    options: Mapping[str, Any]
    asks_for: tuple[str, ...] = field(repr=False)

    def identity(self) -> dict[str, Any]:
        """Describe the function: by its version where it has one, else by its code."""
        identity: dict[str, Any] = {"name": self.name}
        if self.weight is not None:
            identity["weight"] = self.weight
        own = getattr(self.function, "identity", None)
        version = self.version if self.version is not None else version_of(self.function)
        if version is not None:
            identity |= {"function": _name_of(self.function), "version": version}
        elif callable(own):
            identity |= {"function": _name_of(self.function), "identity": own()}
        else:
            known = describe_callable(self.function) or {}
            identity |= {"function": known["name"], "source": known.get("source")}
        if self.options:
            identity["options"] = {key: _describe(value) for key, value in self.options.items()}
        return identity


def part(
    function: Callable[..., Any],
    *,
    weight: float | None = None,
    name: str | None = None,
    version: int | str | None = None,
    **options: Any,
) -> Part:
    """Name and weight a function for a rubric.

    Args:
        function: Takes some of answer, text, target, sample and trajectory, by name.
        weight: Multiplies the weights of Metrics; 0 only tracks. By default a number counts 1, and
            Metrics as they say themselves.
        name: The name of the metric; by default the function's without `grade_`.
        version: Identifies the function instead of its code: raise it when verdicts change.
        **options: Further arguments of the function.

    Raises:
        InvalidInput: The function cannot be called so, or an option is wrong.
    """
    if not callable(function):
        raise InvalidInput(f"a part of a rubric must be a function, got {function!r:.100}")
    own_name = getattr(function, "name", None)  # judges have one
    default = own_name if isinstance(own_name, str) else _name_of(function).removeprefix("grade_")
    name = name or default
    if name == "<lambda>":
        raise InvalidInput("a lambda has no name: part(function, name='correct') names it")
    if isinstance(own_name, str) and name != own_name:
        raise InvalidInput(
            f"part {name!r}: {type(function).__name__} names its metrics itself, {own_name!r}; "
            "name it where it is made (judge.equality(name=…)), not here"
        )
    try:
        if weight is not None and not (math.isfinite(weight) and weight >= 0):
            raise InvalidInput(f"a weight must be a number >= 0, got {weight!r}")
        asks_for = _find_parameters(function, options)
        check_options(function, options)
    except InvalidInput as problem:
        raise InvalidInput(f"part {name!r}: {problem}") from None
    return Part(function, name, weight, version, options, asks_for)


def _find_parameters(function: Callable[..., Any], options: Mapping[str, Any]) -> tuple[str, ...]:
    """Find which of GIVEN a function takes, and check that the options are the rest."""
    name = _name_of(function)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        parameters = None
    if parameters is None or any(p.kind is p.POSITIONAL_ONLY for p in parameters.values()):
        raise InvalidInput(
            f"{name} does not say what it takes by name; wrap it in a function of some of "
            f"{', '.join(GIVEN)}"
        )
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for option in options:
        if option not in parameters and not takes_any:
            taken = ", ".join(parameters) or "nothing"
            raise InvalidInput(f"{name} has no option {option!r}; it takes {taken}")
    for key, p in parameters.items():
        is_required = p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if is_required and key not in {*GIVEN, *options}:
            raise InvalidInput(
                f"{name} asks for {key!r}. A part may ask for {', '.join(GIVEN)}; give anything "
                f"else as an option: part(…, {key}=…)"
            )
    return tuple(key for key in GIVEN if key in parameters and key not in options)


class Rubric:
    """A score function made of parts. Bare functions are parts of weight 1."""

    def __init__(self, *parts: Part | Callable[..., Any]) -> None:
        """Make a rubric.

        Args:
            *parts: Functions, or parts made by `part`.

        Raises:
            InvalidInput: There is none, two have one name, or none counts.
        """
        self.parts = tuple(p if isinstance(p, Part) else part(p) for p in parts)
        if not self.parts:
            raise InvalidInput("a rubric has at least one part")
        name, times = Counter(p.name for p in self.parts).most_common(1)[0]
        if times > 1:
            raise InvalidInput(
                f"two parts are named {name!r}; part(function, name=…) or judge.equality(name=…) "
                "names one otherwise"
            )
        if all(p.weight == 0 for p in self.parts):
            raise InvalidInput("no part counts: all weights are 0, so every reward would be 0")

    def __repr__(self) -> str:
        return f"Rubric({', '.join(p.name for p in self.parts)})"

    def identity(self) -> dict[str, Any]:
        """Describe names, weights and versions, as they are stored with a report and compared."""
        return {"name": "Rubric", "parts": [p.identity() for p in self.parts]}

    def __call__(self, trajectory: Trajectory, sample: Sample) -> Score | Awaitable[Score]:
        """Score a trajectory; without an await where every part is a plain function."""
        turn = trajectory.last_turn
        inputs = {
            "answer": final_answer(trajectory) or "",
            "text": "" if turn is None else turn.text,
            "target": sample.ground_truth,
            "sample": sample,
            "trajectory": trajectory,
        }
        values: list[Any] = []
        try:
            for p in self.parts:
                with calling_part(p.name, p.function):
                    given = {key: inputs[key] for key in p.asks_for}
                    values.append(p.function(**given, **p.options))
        except Exception as problem:
            for value in filter(inspect.iscoroutine, values):
                value.close()  # it will not be awaited
            raise _failure(self.parts[len(values)], problem) from problem
        if any(inspect.isawaitable(value) for value in values):
            return self._settle(values)
        return self._score(values)

    async def _settle(self, values: list[Any]) -> Score:
        async def wait(index: int) -> None:
            try:
                with calling_part(self.parts[index].name, self.parts[index].function):
                    values[index] = await settle(values[index])
            except Exception as problem:
                raise _failure(self.parts[index], problem) from problem

        await run_each(wait, [i for i, v in enumerate(values) if inspect.isawaitable(v)])
        return self._score(values)

    def _score(self, values: Sequence[Any]) -> Score:
        metrics: list[Metric] = []
        for p, value in zip(self.parts, values, strict=True):
            try:
                metrics += _metrics(p, value)
            except (TypeError, ValueError) as problem:
                raise _failure(p, problem) from problem
        return Score(tuple(metrics))


async def run_each(
    function: Callable[[int], Coroutine[Any, Any, None]], indices: Iterable[int]
) -> None:
    """Run a function for each index at the same time; the first failure cancels the others."""
    try:
        async with anyio.create_task_group() as group:
            for index in indices:
                group.start_soon(function, index)
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__


def _failure(part: Part, problem: Exception) -> ScoringFailed:
    """Name the part in what it raised."""
    message = printable_error(problem)
    if not isinstance(problem, InvalidInput | ScoringFailed):
        message = f"{type(problem).__name__}: {message}"
    return ScoringFailed(f"{part.name}: {message}").with_traceback(problem.__traceback__)


def _metrics(part: Part, value: Any) -> Sequence[Metric]:
    weight = 1.0 if part.weight is None else part.weight
    if isinstance(value, Grade):
        return value.metrics(part.name, weight)
    if is_number(value):
        return [Metric(part.name, value, weight)]
    if isinstance(value, Metric):
        value = [value]
    elif isinstance(value, Score):
        value = value.metrics
    if not isinstance(value, list | tuple) or not all(isinstance(m, Metric) for m in value):
        hint = "; is there a return?" if value is None else ""
        raise InvalidInput(
            f"a part returns a number, a bool, a Grade or Metrics, got {value!r:.100}{hint}"
        )
    if len(value) == 1 and not value[0].weight and part.weight is not None:
        return [replace(value[0], weight=weight)]
    if part.weight and value and not any(metric.weight for metric in value):
        raise InvalidInput(
            f"it is to weigh {weight:g}, and none of its {len(value)} metrics has a weight"
        )
    return [replace(m, weight=m.weight * weight) for m in value]


def _name_of(function: Callable[..., Any]) -> str:
    while hasattr(function, "func"):  # a partial
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _describe(value: Any) -> Any:
    """Describe an option as JSON values."""
    own = getattr(value, "identity", None)
    if callable(own):
        return own()
    if callable(value):
        return describe_callable(value)
    with suppress(TypeError):
        return msgspec.json.decode(msgspec.json.encode(value, order="deterministic"))
    return type(value).__qualname__
