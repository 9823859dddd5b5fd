"""Whether it is worth asking a judge at all: one that never was of any use stops whoever asks.

One bad question is the error of its item. But where nothing ever answered, or where no reply to any
question was a verdict, all further ones end the same way, and cost time or money.
"""

from __future__ import annotations

from heldout.errors import FatalEndpointError, NoVerdict, TransientError, Unreachable

QUESTIONS_IN_VAIN = 10
"""From the so manieth question on that ended without an answer, or without a verdict, while none
ever had one, the error is one that stops a run."""


class Standing:
    """What has come from a judge so far."""

    def __init__(self) -> None:
        self._answered = self._gave_verdict = False
        self._unanswered = self._without_verdict = 0

    def has_answered(self) -> None:
        self._answered = True

    def has_given_verdict(self) -> None:
        self._gave_verdict = True

    def too_late(self, who: str, seconds: float) -> TransientError:
        """A request that took too long; a judge that only ever does is none that is there."""
        kind = TransientError if self._answered else Unreachable
        return kind(f"judge {who}: no answer within {seconds:g} s")

    def after_silence(self, who: str, problem: Unreachable) -> Exception:
        """What a question ends in that nobody answered."""
        if self._answered:
            return problem
        self._unanswered += 1
        if self._unanswered < QUESTIONS_IN_VAIN:
            return problem
        return FatalEndpointError(
            f"judge {who}: nothing has answered in {self._unanswered} questions: {problem}"
        )

    def after_no_verdict(self, who: str, problem: NoVerdict) -> Exception:
        """What a question ends in to which no reply was a verdict."""
        self._without_verdict += 1
        if self._gave_verdict or self._without_verdict < QUESTIONS_IN_VAIN:
            return problem
        return FatalEndpointError(
            f"judge {who} has given no verdict in any of {self._without_verdict} questions, so it "
            f"is asked no more; the last: {problem}"
        )
