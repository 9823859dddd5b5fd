"""Does a policy call tools when it should, and properly?

Of one response, `read_calls` says whether it calls, which tools, and whether every call validates;
`same_calls` whether two responses call the same with the same arguments. Of a set, `compare_calls`
gives the numbers of the K2 Vendor Verifier, as it defines them:

    positive          the finish reason is `tool_calls` (calls beside another reason do not count)
    TP, FP, FN        both are positive; the candidate only; the reference only
    precision         TP / (TP + FP)
    recall            TP / (TP + FN)
    F1                2PR / (P + R), which is 2TP / (2TP + FP + FN)
    schema accuracy   responses all of whose calls validate / positive responses;
                      bad JSON, an unknown tool and an empty list of calls do not validate

Two runs of the same weights do not agree fully either (76-84% in practice), so the reference's
agreement with itself stands beside the candidate's, where a second run of it is given.

Each ratio has its numerator and denominator, is None where the denominator is 0, and has an
interval: Wilson's, over requests. F1 is a function of TP / (TP + FP + FN), a plain rate J, namely
2J / (1 + J): its interval is Wilson's of J, sent through the same function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heldout.errors import InvalidInput
from heldout.scoring.formats import NotJSON, parse_json
from heldout.scoring.schemas import compiled
from heldout.stats import CONFIDENCE, Interval, wilson
from heldout.types import Completion, ToolCall, ToolSpec

POSITIVE = "tool_calls"
NO_REASON = "(none)"
"""How a missing finish reason is counted."""


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
            raise InvalidInput(f"two tools are named {tool.name!r}; a call could mean either")
    calls = completion.message.tool_calls
    problems = [found for call in calls if (found := _problem(call, parameters)) is not None]
    return ResponseCalls(completion.finish_reason, calls, tuple(problems))


def _problem(call: ToolCall, parameters: Mapping[str, dict[str, Any]]) -> str | None:
    name = call.name if len(call.name) <= 100 else call.name[:99] + "…"
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


# --- A set of them ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ratio:
    numerator: int
    denominator: int
    interval: Interval | None
    """None exactly where the ratio is."""

    @property
    def value(self) -> float | None:
        return self.numerator / self.denominator if self.denominator else None


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of one set of responses with another, over the requests that both answered."""

    both: int
    only_ours: int
    only_theirs: int
    neither: int
    precision: Ratio
    recall: Ratio
    f1: Ratio
    same: Ratio
    """Of those where both call: the ones with the same calls."""


@dataclass(frozen=True, slots=True)
class CallReport:
    responses: int
    schema_accuracy: Ratio
    """Over all responses of the candidate, also those that the reference has no match for."""
    finish_reasons: Mapping[str, int]
    """The most frequent first."""
    unmatched: int
    """Requests that only one of the two answered: they are in no agreement."""
    trigger: Agreement
    reference_with_itself: Agreement | None
    """What a second run of the reference reaches against the first; None without one."""


def compare_calls(
    candidate: Mapping[str, ResponseCalls],
    reference: Mapping[str, ResponseCalls],
    *,
    reference_again: Mapping[str, ResponseCalls] | None = None,
    ordered: bool = False,
    confidence: float = CONFIDENCE,
) -> CallReport:
    """The numbers over a set, by request id. A request that errored is left out, and is no 0."""
    if not 0 < confidence < 1:
        raise InvalidInput(f"a confidence is between 0 and 1, such as 0.95; got {confidence!r}")
    again = None
    if reference_again is not None:
        again = _agreement(reference_again, reference, ordered, confidence)
    called = [response.valid for response in candidate.values() if response.positive]
    return CallReport(
        responses=len(candidate),
        schema_accuracy=_rate(sum(map(bool, called)), len(called), confidence),
        finish_reasons=finish_reasons(candidate.values()),
        unmatched=len(candidate.keys() ^ reference.keys()),
        trigger=_agreement(candidate, reference, ordered, confidence),
        reference_with_itself=again,
    )


def finish_reasons(responses: Iterable[ResponseCalls]) -> dict[str, int]:
    """How often each occurs, the most frequent first, equals by name."""
    counts = Counter(response.finish_reason or NO_REASON for response in responses)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _agreement(
    ours: Mapping[str, ResponseCalls],
    theirs: Mapping[str, ResponseCalls],
    ordered: bool,
    confidence: float,
) -> Agreement:
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    counts = Counter((mine.positive, other.positive) for mine, other in pairs)
    both, only_ours, only_theirs = counts[True, True], counts[True, False], counts[False, True]
    same = sum(
        same_calls(mine.calls, other.calls, ordered=ordered)
        for mine, other in pairs
        if mine.positive and other.positive
    )
    return Agreement(
        both=both,
        only_ours=only_ours,
        only_theirs=only_theirs,
        neither=counts[False, False],
        precision=_rate(both, both + only_ours, confidence),
        recall=_rate(both, both + only_theirs, confidence),
        f1=_f1(both, both + only_ours + only_theirs, confidence),
        same=_rate(same, both, confidence),
    )


def _rate(numerator: int, denominator: int, confidence: float) -> Ratio:
    interval = wilson(numerator / denominator, denominator, confidence) if denominator else None
    return Ratio(numerator, denominator, interval)


def _f1(both: int, either: int, confidence: float) -> Ratio:
    if not either:
        return Ratio(0, 0, None)
    rate = wilson(both / either, either, confidence)
    low, high = (2 * j / (1 + j) for j in (rate.low, rate.high))
    return Ratio(2 * both, both + either, Interval(low, high))
