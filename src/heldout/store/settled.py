"""What a run with `until` settled: the part of run.json that says how it was stopped.

The run's journal holds the samples of its last look alone (`ahead.py` has the others), so every
reader's n is the prefix that decided. What the ordinary formulas would say of how sure its means
are is wrong, since the run was stopped because of what came out: `mark_stopped` (report.py) takes
it away, and the interval that holds is in here. No numpy: every command reads run.json.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Decision = Literal["true", "false", "inconclusive"]
RACE = "best of a race"
"""How the claim of a run in a race begins."""


class Settled(msgspec.Struct, frozen=True):
    """How the claim of a run was settled.

    Attributes:
        claim: The claim, as `until` has it; in a race, being its best.
        decision: "true", "false", or "inconclusive" where the set was used up before either.
        sentence: The same in a sentence, with its numbers.
        rule: The rule that decided, in words.
        level: The two-sided error rate of the rule.
        looks_used: Looks that were made.
        looks_planned: Looks that there could have been; null of a stream, which has no last one.
        n_decided: Items that the decision is about: `n` of the summary.
        n_asked: Items of the whole set: what `n` of an ordinary run counts. Null of a stream that
            was stopped: nobody knows.
        n_spent: Items that were run, those in flight at the stop included.
        estimate: The mean, or the difference from the baseline, corrected for having stopped here.
        interval: The interval that goes with it, low and high; null where there is none.
        mean: The plain mean of the items that were decided on, errored ones as 0.
        difference: The plain mean difference from the baseline over these; null without one. Where
            the run stopped early, what it was decided on is too far from the bound.
        this_set: Whether this is about the mean over this set of samples, not over ones like them.
        baseline: The run that it was compared with; null where there is none.
        scope: What the level and the interval hold for, in a sentence, where that is a comparison
            or a race.
    """

    claim: str
    decision: Decision
    sentence: str
    rule: str
    level: float
    looks_used: int
    looks_planned: int | None
    n_decided: int
    n_asked: int | None
    n_spent: int
    estimate: float | None
    interval: tuple[float, float] | None
    mean: float | None
    difference: float | None = None
    this_set: bool = False
    baseline: str | None = None
    scope: str | None = None

    @property
    def is_early(self) -> bool:
        """Whether the run stopped before its set was used up."""
        return self.n_asked is None or self.n_decided < self.n_asked

    @property
    def part(self) -> str:
        """The items that were decided on, for a message: "200 of 400 items"."""
        of = "items of a stream" if self.n_asked is None else f"of {self.n_asked:,} items"
        return f"{self.n_decided:,} {of}"

    @property
    def stopped_by(self) -> str:
        """What stopped the run, for a message."""
        return "a race" if self.claim.startswith(RACE) else f"until={self.claim!r}"

    @property
    def exit_code(self) -> int:
        """0 where the claim is true, 1 where it is false, 3 where neither was shown."""
        return EXIT_CODES[self.decision]


RACE_SCOPE = (
    "Intervals hold for all models and all looks together, so that of the winner is corrected for "
    "having been picked."
)


def one_comparison(baseline: str) -> str:
    """Say that a comparison is not corrected for others with the same baseline.

    Args:
        baseline: What to call it.
    """
    return (
        "The error rate is that of this one comparison: where several runs are compared with "
        f"{baseline}, each may err so."
    )


EXIT_CODES: dict[Decision, int] = {"true": 0, "false": 1, "inconclusive": 3}
