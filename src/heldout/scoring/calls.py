"""Does a response call tools when it should, and properly?

`read_calls` says whether it calls, which tools, and whether every call validates; `same_calls`
whether two responses call the same with the same arguments; `grade_calls` and `score_calls` make
scores of that. What is said of a set of them is in triggers.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heldout._format import cut
from heldout.chat.messages import message_of
from heldout.errors import InvalidInput
from heldout.scoring.formats import NotJSON, parse_json
from heldout.scoring.grades import Grade, grader
from heldout.scoring.schemas import compiled
from heldout.types import (
    Completion,
    Message,
    Metric,
    Sample,
    Score,
    ToolCall,
    ToolSpec,
    Trajectory,
)

POSITIVE = "tool_calls"
LONGEST_NAME = 100
"""Characters of a tool's name that a problem or a metric repeats; a model may write any."""
MOST_LISTED = 20
"""Calls, and problems, that a metric lists. The trajectory has them all."""


# --- One response -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResponseCalls:
    """What one response does about tools."""

    finish_reason: str | None
    calls: tuple[ToolCall, ...]
    problems: tuple[str, ...]
    """What is wrong with its calls, one text for each that does not validate."""

    @property
    def positive(self) -> bool:
        return self.finish_reason == POSITIVE

    @property
    def tools(self) -> tuple[str, ...]:
        """The names called, in order, with repetitions."""
        return tuple(call.name for call in self.calls)

    @property
    def valid(self) -> bool | None:
        """Every call validates, and there is one; None where the response does not call."""
        return bool(self.calls) and not self.problems if self.positive else None


def read_calls(completion: Completion, tools: Sequence[ToolSpec]) -> ResponseCalls:
    """What the response calls, checked against the tools that it was offered."""
    parameters: dict[str, dict[str, Any]] = {}
    for tool in tools:
        if parameters.setdefault(tool.name, tool.parameters) != tool.parameters:
            raise InvalidInput(f"two tools are named {tool.name!r:.100}; a call could mean either")
    calls = completion.message.tool_calls
    problems = [found for call in calls if (found := _problem(call, parameters)) is not None]
    return ResponseCalls(completion.finish_reason, calls, tuple(problems))


def _problem(call: ToolCall, parameters: Mapping[str, dict[str, Any]]) -> str | None:
    name = cut(call.name, LONGEST_NAME)
    if call.name not in parameters:
        return f"{name}: no such tool"
    try:
        arguments = parse_json(call.arguments)
    except NotJSON as problem:
        return f"{name}: the arguments are not JSON: {problem}"
    schema = compiled(parameters[call.name])
    if schema.accepts(arguments):
        return None
    return f"{name}: {schema.problem(arguments) or 'the schema does not accept the arguments'}"


def same_calls(
    ours: Sequence[ToolCall], theirs: Sequence[ToolCall], *, ordered: bool = False
) -> bool:
    """The same tools with equal arguments, as often; in the same order only if `ordered`.

    Arguments are equal as JSON values: the order of keys does not count, 1 is 1.0, and true is
    not 1. Arguments that are not JSON equal nothing, not even themselves.
    """
    if len(ours) != len(theirs):
        return False
    left, right = [_canonical(call) for call in ours], [_canonical(call) for call in theirs]
    if None in left or None in right:
        return False
    return left == right if ordered else Counter(left) == Counter(right)


def _canonical(call: ToolCall) -> tuple[str, Hashable] | None:
    try:
        return call.name, _comparable(parse_json(call.arguments))
    except NotJSON:
        return None


def _comparable(value: Any) -> Hashable:
    """Equal for equal JSON values. Python compares 1 and 1.0 as JSON does, but not True and 1."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, list):
        return ("list", *map(_comparable, value))
    if isinstance(value, dict):
        return ("object", frozenset((key, _comparable(item)) for key, item in value.items()))
    return value  # type: ignore[no-any-return]


# --- As a score and as a grade ------------------------------------------------------------------


def tools_of(request: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The tools of a chat-completions request. One without parameters takes any object."""
    given = request.get("tools") or ()
    if not isinstance(given, list | tuple):
        raise InvalidInput(f"tools are a list, got {type(given).__name__}")
    return tuple(_tool(tool, place) for place, tool in enumerate(given))


def _tool(given: Any, place: int) -> ToolSpec:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidInput(
            f"tools[{place}] is no function with a name, such as "
            '{"type": "function", "function": {"name": "weather", "parameters": {…}}}; '
            "calls of other tools cannot be checked"
        )
    parameters = function.get("parameters")
    return ToolSpec(
        function["name"],
        str(function.get("description") or ""),
        {"type": "object"} if parameters is None else parameters,
    )


def response_of(trajectory: Trajectory, tools: Sequence[ToolSpec]) -> ResponseCalls:
    """The last model turn of a trajectory, as a response."""
    last = _last_turn(trajectory)
    return read_calls(Completion(last, trajectory.stop.finish_reason), tools)


def _last_turn(trajectory: Trajectory) -> Message:
    if (turn := trajectory.last_turn) is None:
        raise InvalidInput("the trajectory has no model turn, so there are no calls to look at")
    return turn


@grader(version=1)
def score_calls(trajectory: Trajectory, sample: Sample) -> Score:
    """The score of an answer to a whole request, which is the sample's input.

    calls   its finish reason is `tool_calls`
    valid   every call validates; only of responses that call, so that its mean over those that
            report it is the schema accuracy
    sound   nothing is wrong with what it calls: it calls nothing, or every call validates. This
            is the reward, since it is the one that every response has
    """
    response = response_of(trajectory, tools_of(sample.input))
    listed = [cut(name, LONGEST_NAME) for name in response.tools[:MOST_LISTED]]
    seen = {"finish_reason": response.finish_reason, "tools": listed}
    metrics = [Metric("calls", response.positive, metadata=seen)]
    if response.valid is not None:
        problems = [*response.problems[:MOST_LISTED]] or ["it calls nothing"] * (not response.valid)
        found = {"note": "; ".join(problems)} if problems else {}
        metrics.append(Metric("valid", response.valid, metadata=found))
    metrics.append(Metric("sound", response.valid is not False, weight=1.0))
    return Score(tuple(metrics))


@grader(version=1)
def grade_calls(trajectory: Trajectory, target: Any, *, ordered: bool = False) -> Grade:
    """The last model turn calls what the target calls, with equal arguments.

    The target is a list of calls, as chat APIs have them ({"function": {"name", "arguments"}}) or
    shorter ({"name", "arguments"}), with arguments as JSON text or as the value itself, or a
    message with `tool_calls`. An empty list: it must not call.
    """
    theirs = _target_calls(target)
    ours = _last_turn(trajectory).tool_calls
    shown = "; ".join(_written(call) for call in ours[:MOST_LISTED])
    extracted = cut(shown, 500) if ours else None
    if same_calls(ours, theirs, ordered=ordered):
        return Grade(1.0, extracted)
    return Grade(0.0, extracted, _difference(ours, theirs))


def _target_calls(target: Any) -> tuple[ToolCall, ...]:
    if isinstance(target, Message):
        return target.tool_calls
    if isinstance(target, Mapping) and "tool_calls" in target:
        target = target["tool_calls"] or []
    if not isinstance(target, list | tuple):
        raise InvalidInput(
            "the target of calls is a list of them, such as "
            f'[{{"name": "weather", "arguments": {{"city": "Oslo"}}}}]; got {target!r:.200}'
        )
    if all(isinstance(call, ToolCall) for call in target):
        calls = tuple(target)
    else:
        calls = message_of({"role": "assistant", "tool_calls": target}, "the target").tool_calls
    for call in calls:
        if _canonical(call) is None:  # it would equal nothing, however right the answer
            raise InvalidInput(f"the target's arguments are not JSON: {_written(call)}")
    return calls


def _difference(ours: Sequence[ToolCall], theirs: Sequence[ToolCall]) -> str:
    if sorted(call.name for call in ours) == sorted(call.name for call in theirs):
        return "the same tools, with other arguments or in another order"
    wanted = ", ".join(cut(call.name, LONGEST_NAME) for call in theirs[:MOST_LISTED])
    return f"other tools: the target calls {wanted or 'nothing'}"


def _written(call: ToolCall) -> str:
    return f"{cut(call.name, LONGEST_NAME)}({cut(call.arguments, 200)})"
