"""Tool calls: whether a response calls the right tools, when it should, with valid arguments.

    read_calls      which tools a response calls, and whether every call validates
    grade_calls     compare the last turn with a target, score_calls validate it
    compare_calls   a set of responses against a reference

The numbers of `compare_calls` are those of the K2 Vendor Verifier (docs/toolcalls.md defines them).
Each rate has its count and its denominator, no value where that is 0, and Wilson's interval over
requests. F1 is a function of TP / (TP + FP + FN), a plain rate J, namely 2J / (1 + J): its interval
is Wilson's of J, sent through the same function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from heldout._core.chat.messages import message_of
from heldout._core.format import cut
from heldout._finish_reasons import TOOL_CALLS
from heldout.errors import InvalidInput
from heldout.scoring.formats import NotJSON, parse_json
from heldout.scoring.grades import Grade, grader
from heldout.scoring.json_schema import compiled
from heldout.stats import Interval, Rate, independent_rate, wilson
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

POSITIVE = TOOL_CALLS
MAX_NAME = 100
"""Characters of a tool's name that a problem or a metric repeats; a model may write any."""
MAX_LISTED = 20
"""Calls, and problems, that a metric lists. The trajectory has them all."""


# --- One response -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResponseCalls:
    """The tool calls of one response.

    Attributes:
        finish_reason: Why it ended.
        calls: The calls.
        problems: What is wrong with its calls, one text for each that does not validate.
    """

    finish_reason: str | None
    calls: tuple[ToolCall, ...]
    problems: tuple[str, ...]

    @property
    def positive(self) -> bool:
        """Whether the response ended in order to call tools."""
        return self.finish_reason == POSITIVE

    @property
    def tools(self) -> tuple[str, ...]:
        """The names called, in order, with repetitions."""
        return tuple(call.name for call in self.calls)

    @property
    def valid(self) -> bool | None:
        """Whether every call validates, and there is one; None where it does not call."""
        return bool(self.calls) and not self.problems if self.positive else None


def read_calls(completion: Completion, tools: Sequence[ToolSpec]) -> ResponseCalls:
    """Check the calls of a response against the tools that it was offered.

    Args:
        completion: The response.
        tools: The tools of the request.

    Returns:
        Its calls, and what is wrong with them.

    Raises:
        InvalidInput: Two different tools share a name, or a schema is invalid.
    """
    schemas: dict[str, dict[str, Any]] = {}
    for tool in tools:
        if schemas.setdefault(tool.name, tool.parameters) != tool.parameters:
            raise InvalidInput(f"two tools are named {tool.name!r:.100}; a call could mean either")
    calls = completion.message.tool_calls
    problems = [
        f"{cut(call.name, MAX_NAME)}: {problem}"
        for call in calls
        if (problem := _find_problem(call, schemas.get(call.name)))
    ]
    return ResponseCalls(completion.finish_reason, calls, tuple(problems))


def _find_problem(call: ToolCall, parameters: dict[str, Any] | None) -> str | None:
    if parameters is None:
        return "no such tool"
    try:
        arguments = parse_json(call.arguments)
    except NotJSON as problem:
        return f"the arguments are not JSON: {problem}"
    schema = compiled(parameters)
    if schema.accepts(arguments):
        return None
    return schema.problem(arguments) or "the schema does not accept the arguments"


def same_calls(ours: Sequence[ToolCall], theirs: Sequence[ToolCall]) -> bool:
    """Return whether both make the same calls with equal arguments, in any order.

    Arguments are equal as JSON values: the order of keys does not count, 1 is 1.0, and true is
    not 1. Arguments that are not JSON equal nothing, not even themselves.
    """

    def comparable(calls: Sequence[ToolCall]) -> Counter[tuple[str, Hashable]]:
        return Counter((c.name, _comparable(parse_json(c.arguments))) for c in calls)

    try:
        return comparable(ours) == comparable(theirs)
    except NotJSON:
        return False


def _comparable(value: Any, ignore_case: bool = False) -> Hashable:
    """Make equal JSON values equal. Python compares 1 and 1.0 as JSON does, but not True and 1."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, str):
        return value.casefold() if ignore_case else value
    if isinstance(value, list):
        return ("list", *(_comparable(item, ignore_case) for item in value))
    if isinstance(value, dict):
        items = ((key, _comparable(item, ignore_case)) for key, item in value.items())
        return ("object", frozenset(items))
    return value  # type: ignore[no-any-return]


# --- As a score and as a grade ------------------------------------------------------------------


def tools_of(request: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """Read the tools of a chat-completions request. One without parameters takes any object."""
    listed = request.get("tools") or ()
    if not isinstance(listed, list | tuple):
        raise InvalidInput(f"tools must be a list, got {type(listed).__name__}")
    tools: list[ToolSpec] = []
    for i, tool in enumerate(listed):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidInput(
                f"tools[{i}] is no function with a name, such as "
                '{"type": "function", "function": {"name": "weather", "parameters": {…}}}; '
                "calls of other tools cannot be checked"
            )
        parameters = function.get("parameters")
        if parameters is None:
            parameters = {"type": "object"}
        description = str(function.get("description") or "")
        tools.append(ToolSpec(function["name"], description, parameters))
    return tuple(tools)


def response_of(trajectory: Trajectory, tools: Sequence[ToolSpec]) -> ResponseCalls:
    """Check the calls of the last model turn of a trajectory."""
    last = _last_turn(trajectory)
    return read_calls(Completion(last, trajectory.stop.finish_reason), tools)


def _last_turn(trajectory: Trajectory) -> Message:
    if (turn := trajectory.last_turn) is None:
        raise InvalidInput("the trajectory has no model turn, so there are no calls to look at")
    return turn


@grader(version=1)
def score_calls(trajectory: Trajectory, sample: Sample) -> Score:
    """Score the answer to a whole request, which is the sample's input.

    calls   its finish reason is `tool_calls`
    valid   every call validates; reported only if the response calls tools, so its mean is the
            schema accuracy
    sound   it calls nothing, or every call validates. This is the reward, since every response
            has it

    Args:
        trajectory: The trajectory.
        sample: The sample, whose input has the tools.

    Returns:
        The three metrics.

    Raises:
        InvalidInput: The trajectory has no model turn, or the request no readable tools.
    """
    response = response_of(trajectory, tools_of(sample.input))
    listed = [cut(name, MAX_NAME) for name in response.tools[:MAX_LISTED]]
    metadata = {"finish_reason": response.finish_reason, "tools": listed}
    metrics = [Metric("calls", response.positive, metadata=metadata)]
    if response.valid is not None:
        note = "; ".join(response.problems[:MAX_LISTED]) or "it calls nothing"
        metrics.append(
            Metric("valid", response.valid, metadata={} if response.valid else {"note": note})
        )
    metrics.append(Metric("sound", response.valid is not False, weight=1.0))
    return Score(tuple(metrics))


@grader(version=5)
def grade_calls(
    trajectory: Trajectory, target: Any, *, ordered: bool = False, ignore_case: bool = False
) -> Grade:
    """Grade 1 if the last model turn makes exactly the target's calls.

    The target is a list of calls, or a message with `tool_calls`; an empty list means that the turn
    must not call a tool. A call has the form of chat APIs ({"function": {"name", "arguments"}}) or
    a short one ({"name", "arguments"}), with arguments as JSON text or as values; they are compared
    as JSON values. If several values are correct, use BFCL's form: {"weather": {"city": ["Oslo",
    "Oslo, Norway"], "days": [1, ""]}} lists the values that each argument may have. "" marks an
    argument that may be left out; an object among the values holds such lists in turn, or plain
    values. An argument that the target does not name is wrong.

    Args:
        trajectory: The trajectory.
        target: The expected calls.
        ordered: Whether the order of the calls counts.
        ignore_case: Whether `Oslo` equals `oslo` in arguments. Names of tools are compared exactly.

    Returns:
        The grade, with the calls of the turn.

    Raises:
        InvalidInput: The target is no list of calls or lists no value for an argument, or the
            trajectory has no model turn.
    """
    expected = _expected_calls(target)
    calls = _last_turn(trajectory).tool_calls
    extracted = cut("; ".join(map(_render, calls[:MAX_LISTED])), 500) if calls else None
    fits = [[_fits(call, other, ignore_case) for other in expected] for call in calls]
    if len(calls) == len(expected) and (
        all(fits[i][i] for i in range(len(calls))) if ordered else _can_be_matched(fits)
    ):
        return Grade(1.0, extracted)
    if sorted(call.name for call in calls) == sorted(call.name for call in expected):
        return Grade(0.0, extracted, "the same tools, with other arguments or in another order")
    names = ", ".join(cut(call.name, MAX_NAME) for call in expected[:MAX_LISTED])
    return Grade(0.0, extracted, f"other tools: the target calls {names or 'nothing'}")


class _Expected(NamedTuple):
    """A call of the target."""

    name: str
    arguments: Any
    lists_values: bool
    """Whether the arguments are lists of accepted values, as in BFCL."""


def _fits(call: ToolCall, expected: _Expected, ignore_case: bool) -> bool:
    if call.name != expected.name:
        return False
    try:
        arguments = parse_json(call.arguments)
    except NotJSON:
        return False
    if expected.lists_values:
        return _is_accepted(arguments, expected.arguments, ignore_case)
    return _comparable(arguments, ignore_case) == _comparable(expected.arguments, ignore_case)


def _is_accepted(value: Any, accepted: Any, ignore_case: bool) -> bool:
    """Compare a value with one of BFCL's, whose objects hold lists of values, "" for none."""
    if isinstance(accepted, Mapping):
        return isinstance(value, dict) and all(
            any(_is_accepted(value[key], option, ignore_case) for option in accepted.get(key, ()))
            if key in value
            else "" in accepted[key]
            for key in value.keys() | accepted.keys()
        )
    if isinstance(accepted, list) and isinstance(value, list) and len(value) == len(accepted):
        return all(_is_accepted(*pair, ignore_case) for pair in zip(value, accepted, strict=True))
    return _comparable(value, ignore_case) == _comparable(accepted, ignore_case)


def _can_be_matched(fits: Sequence[Sequence[bool]]) -> bool:
    """Find a call of the target for each call (augmenting paths, after Kuhn)."""
    owner: dict[int, int] = {}

    def find_target(call: int, tried: set[int]) -> bool:
        for target, does_fit in enumerate(fits[call]):
            if does_fit and target not in tried:
                tried.add(target)
                if target not in owner or find_target(owner[target], tried):
                    owner[target] = call
                    return True
        return False

    return all(find_target(call, set()) for call in range(len(fits)))


def _expected_calls(target: Any) -> list[_Expected]:
    if isinstance(target, Message):
        target = target.tool_calls
    elif isinstance(target, Mapping) and "tool_calls" in target:
        target = target["tool_calls"] or []
    if not isinstance(target, list | tuple):
        raise InvalidInput(
            "the target of calls is a list of them, such as "
            f'[{{"name": "weather", "arguments": {{"city": "Oslo"}}}}]; got {target!r:.200}'
        )
    return [_expected_call(call) for call in target]


_CALL_KEYS = {"id", "index", "type", "function", "name", "arguments"}


def _expected_call(call: Any) -> _Expected:
    if isinstance(call, Mapping) and len(call) == 1 and not call.keys() & {"function", "arguments"}:
        ((name, accepted),) = call.items()
        if isinstance(accepted, Mapping) and all(isinstance(v, list) for v in accepted.values()):
            return _Expected(name, _with_lists(accepted, name), lists_values=True)
    if isinstance(call, Mapping) and not call.keys() <= _CALL_KEYS:
        raise InvalidInput(
            "a call of the target has a name and arguments, or for its arguments lists of values "
            f'such as {{"weather": {{"city": ["Oslo", "Oslo, Norway"]}}}}; got {call!r:.200}'
        )
    if not isinstance(call, ToolCall):
        message = message_of({"role": "assistant", "tool_calls": [call]}, "the target")
        (call,) = message.tool_calls
    try:
        return _Expected(call.name, parse_json(call.arguments), lists_values=False)
    except NotJSON:  # it would equal nothing, however right the answer
        raise InvalidInput(f"the target's arguments are not JSON: {_render(call)}") from None


def _with_lists(accepted: Any, where: str) -> Any:
    """List the values that each key of an object accepts; a plain value in an object is the one."""
    if isinstance(accepted, list):
        return [_with_lists(option, where) for option in accepted]
    if not isinstance(accepted, Mapping):
        return accepted
    lists = {key: value if isinstance(value, list) else [value] for key, value in accepted.items()}
    if empty := [key for key, options in lists.items() if not options]:
        raise InvalidInput(
            f"the target accepts no value for {cut(f'{where}.{empty[0]}', 200)}, so no call could "
            'be right; [""] is for an argument that is left out, [[]] for an empty list'
        )
    return {key: _with_lists(options, f"{where}.{key}") for key, options in lists.items()}


def _render(call: ToolCall) -> str:
    return f"{cut(call.name, MAX_NAME)}({cut(call.arguments, 200)})"


# --- Many responses -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TriggerAgreement:
    """The agreement of two sets of responses, over the requests that both answered."""

    both: int
    only_ours: int
    only_theirs: int
    neither: int
    precision: Rate
    recall: Rate
    f1: Rate
    same: Rate
    """The same calls, of the requests where both call."""
    unmatched: int
    """Requests that only one of the two answered; no number above counts them."""

    @property
    def matched(self) -> int:
        """Requests that both answered."""
        return self.both + self.only_ours + self.only_theirs + self.neither

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "matched": self.matched,
            "unmatched": self.unmatched,
            "tp": self.both,
            "fp": self.only_ours,
            "fn": self.only_theirs,
            "tn": self.neither,
            "precision": self.precision.as_dict(),
            "recall": self.recall.as_dict(),
            "f1": self.f1.as_dict(),
            "same_calls": self.same.as_dict(),
        }


def compare_calls(
    ours: Mapping[str, ResponseCalls], theirs: Mapping[str, ResponseCalls]
) -> TriggerAgreement:
    """Compare responses with a reference. Requests that errored are left out, not counted as 0.

    Args:
        ours: Responses by request id.
        theirs: Those of the reference.

    Returns:
        Counts and rates, with 95% intervals.
    """
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    counts = Counter((mine.positive, other.positive) for mine, other in pairs)
    both, only_ours, only_theirs = counts[True, True], counts[True, False], counts[False, True]
    same = sum(
        same_calls(mine.calls, other.calls)
        for mine, other in pairs
        if mine.positive and other.positive
    )
    return TriggerAgreement(
        both=both,
        only_ours=only_ours,
        only_theirs=only_theirs,
        neither=counts[False, False],
        precision=independent_rate(both, both + only_ours),
        recall=independent_rate(both, both + only_theirs),
        f1=_f1(both, both + only_ours + only_theirs),
        same=independent_rate(same, both),
        unmatched=len(ours.keys() ^ theirs.keys()),
    )


def _f1(both: int, either: int) -> Rate:
    if not either:
        return Rate(0, 0, None)
    rate = wilson(both / either, either)
    low, high = (2 * j / (1 + j) for j in (rate.low, rate.high))
    return Rate(2 * both, both + either, Interval(low, high))


def schema_accuracy(responses: Iterable[ResponseCalls]) -> Rate:
    """Return the share of responses all of whose calls validate, of those that call."""
    valid = [response.valid for response in responses if response.positive]
    return independent_rate(sum(map(bool, valid)), len(valid))


def finish_reasons(responses: Iterable[ResponseCalls]) -> dict[str, int]:
    """Count the finish reasons, the most frequent first, equals by name."""
    counts = Counter(response.finish_reason or "(none)" for response in responses)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
