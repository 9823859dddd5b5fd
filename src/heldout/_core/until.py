"""What `until` says: a claim about a run, as people type it.

    mean>0.8                      the mean reward is above 0.8
    mean<0.2                      the mean reward is below 0.2
    ±0.02                         the mean is known to two points either way (+-0.02 for keyboards)
    better than quiz@1            the mean is above that of an earlier run on the same samples
    not worse than quiz@1 by 0.02 the mean is not below that of an earlier run by 0.02 or more

This is text and numbers alone; what settles a claim is in `stats/` and `_evals/stopping.py`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from heldout.errors import InvalidInput

UntilKind = Literal["mean", "precision", "better", "not_worse"]

NO_CLAIM = "none"
"""What `until` says to finish the set of a run that a claim had stopped."""

GRAMMAR = (
    '"mean>0.8", "mean<0.2", "±0.02", "better than RUN", "not worse than RUN by 0.02", or "none"'
)

_NUMBER = r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)"
_FORMS: dict[UntilKind, re.Pattern[str]] = {
    "mean": re.compile(rf"mean\s*([<>])\s*(-?){_NUMBER}", re.IGNORECASE),
    "precision": re.compile(rf"(?:±|\+/?-)\s*{_NUMBER}", re.IGNORECASE),
    "not_worse": re.compile(rf"not worse than\s+(\S.*?)\s+by\s+{_NUMBER}", re.IGNORECASE),
    "better": re.compile(r"better than\s+(\S.*)", re.IGNORECASE),
}


@dataclass(frozen=True, slots=True)
class Until:
    """What an eval is to settle.

    Attributes:
        kind: The form that it has.
        bound: The mean that is compared with, the half-width, or the margin; 0 of "better than".
        above: Whether it says that the mean is above the bound.
        baseline: The run that is compared with, as it was typed; None where there is none.
    """

    kind: UntilKind
    bound: float = 0.0
    above: bool = True
    baseline: str | None = None

    def __str__(self) -> str:
        """Write the claim in the one way in which it is stored."""
        match self.kind:
            case "mean":
                return f"mean{'>' if self.above else '<'}{self.bound!r}"
            case "precision":
                return f"±{self.bound!r}"
            case "better":
                return f"better than {self.baseline}"
            case "not_worse":
                return f"not worse than {self.baseline} by {self.bound!r}"


def parse_until(text: str) -> Until | None:
    """Read a claim.

    Args:
        text: What `until` says.

    Returns:
        The claim; None of "none".

    Raises:
        InvalidInput: It is none; the message has the grammar.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"until takes a text, one of {GRAMMAR}; got {text!r:.200}")
    said = " ".join(text.split())
    if said.lower() == NO_CLAIM:
        return None
    for kind, form in _FORMS.items():
        if match := form.fullmatch(said):
            return _make_claim(kind, match, text)
    raise InvalidInput(f"until={text!r:.200} is no claim; it takes {GRAMMAR}")


def _make_claim(kind: UntilKind, match: re.Match[str], text: str) -> Until:
    match kind:
        case "mean":
            sign, bound = match[2], float(match[3])
            if sign or not 0 <= bound <= 1:
                raise InvalidInput(
                    f"until={text!r}: rewards must lie between 0 and 1 with until, and so must "
                    "their mean"
                )
            if bound in (0.0, 1.0):
                raise InvalidInput(
                    f"until={text!r}: no sample settles that, since no mean lies beyond {bound:g}"
                )
            return Until("mean", bound, above=match[1] == ">")
        case "precision":
            bound = float(match[1])
            if not 0 < bound < 0.5:
                raise InvalidInput(
                    f"until={text!r}: the half-width must be above 0 and below 0.5, as of a mean "
                    "between 0 and 1"
                )
            return Until("precision", bound)
        case "better":
            return Until("better", baseline=match[1])
        case "not_worse":
            bound = float(match[2])
            if not (math.isfinite(bound) and 0 < bound < 1):
                raise InvalidInput(
                    f"until={text!r}: the margin is the loss that is tolerated, above 0 and below 1"
                    + (f"; is {bound / 100:g} meant?" if bound >= 1 else "")
                )
            return Until("not_worse", bound, baseline=match[1])
