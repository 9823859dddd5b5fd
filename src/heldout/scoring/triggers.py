"""Over a set of responses: do they call tools where a reference does, and properly?

The numbers of the K2 Vendor Verifier, as it defines them:

    positive          the finish reason is `tool_calls` (calls beside another reason do not count)
    TP, FP, FN        both are positive; the candidate only; the reference only
    precision         TP / (TP + FP)
    recall            TP / (TP + FN)
    F1                2PR / (P + R), which is 2TP / (2TP + FP + FN)
    schema accuracy   responses all of whose calls validate / positive responses;
                      bad JSON, an unknown tool and an empty list of calls do not validate

Two runs of the same weights do not agree fully either (76-84% in practice), so the reference's
agreement with itself stands beside the candidate's, where a second run of it is given.

Each rate has its count and its denominator, no value where that is 0, and an interval: Wilson's,
over requests. F1 is a function of TP / (TP + FP + FN), a plain rate J, namely 2J / (1 + J): its
interval is Wilson's of J, sent through the same function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from heldout.errors import InvalidInput
from heldout.scoring.calls import ResponseCalls, same_calls
from heldout.stats import CONFIDENCE, Interval, Rate, independent_rate, wilson

NO_REASON = "(none)"
"""How a missing finish reason is counted."""


@dataclass(frozen=True, slots=True)
class TriggerAgreement:
    """Of one set of responses with another, over the requests that both answered."""

    both: int
    only_ours: int
    only_theirs: int
    neither: int
    precision: Rate
    recall: Rate
    f1: Rate
    same: Rate
    """Of those where both call: the ones with the same calls."""
    unmatched: int
    """Requests that only one of the two answered: they are in no number above."""

    @property
    def matched(self) -> int:
        return self.both + self.only_ours + self.only_theirs + self.neither


@dataclass(frozen=True, slots=True)
class CallReport:
    responses: int
    schema_accuracy: Rate
    """Over all responses of the candidate, also those that the reference has no match for."""
    finish_reasons: Mapping[str, int]
    """The most frequent first."""
    trigger: TriggerAgreement
    reference_with_itself: TriggerAgreement | None
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
    return CallReport(
        responses=len(candidate),
        schema_accuracy=schema_accuracy(candidate.values(), confidence=confidence),
        finish_reasons=finish_reasons(candidate.values()),
        trigger=_agreement(candidate, reference, ordered, confidence),
        reference_with_itself=again,
    )


def schema_accuracy(responses: Iterable[ResponseCalls], *, confidence: float = CONFIDENCE) -> Rate:
    """Of the responses that call: those all of whose calls validate."""
    called = [response.valid for response in responses if response.positive]
    return independent_rate(sum(map(bool, called)), len(called), confidence)


def finish_reasons(responses: Iterable[ResponseCalls]) -> dict[str, int]:
    """How often each occurs, the most frequent first, equals by name."""
    counts = Counter(response.finish_reason or NO_REASON for response in responses)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _agreement(
    ours: Mapping[str, ResponseCalls],
    theirs: Mapping[str, ResponseCalls],
    ordered: bool,
    confidence: float,
) -> TriggerAgreement:
    pairs = [(ours[key], theirs[key]) for key in ours if key in theirs]
    counts = Counter((mine.positive, other.positive) for mine, other in pairs)
    both, only_ours, only_theirs = counts[True, True], counts[True, False], counts[False, True]
    same = sum(
        same_calls(mine.calls, other.calls, ordered=ordered)
        for mine, other in pairs
        if mine.positive and other.positive
    )
    return TriggerAgreement(
        both=both,
        only_ours=only_ours,
        only_theirs=only_theirs,
        neither=counts[False, False],
        precision=independent_rate(both, both + only_ours, confidence),
        recall=independent_rate(both, both + only_theirs, confidence),
        f1=_f1(both, both + only_ours + only_theirs, confidence),
        same=independent_rate(same, both, confidence),
        unmatched=len(ours.keys() ^ theirs.keys()),
    )


def _f1(both: int, either: int, confidence: float) -> Rate:
    if not either:
        return Rate(0, 0, None)
    rate = wilson(both / either, either, confidence)
    low, high = (2 * j / (1 + j) for j in (rate.low, rate.high))
    return Rate(2 * both, both + either, Interval(low, high))
