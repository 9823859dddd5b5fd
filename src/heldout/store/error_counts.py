"""The commonest errors of a run: what every report says where items errored."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from heldout._core.format import cut

KINDS_COUNTED = 10
"""Different errors that are counted apart; the others are the rest of `n_errors`."""
KINDS_SHOWN = 3
ERROR_CHARACTERS = 300


class ErrorCount(msgspec.Struct, frozen=True):
    """One error, and how many items it ended.

    Attributes:
        error: The first line of the error.
        count: Items that ended with it.
    """

    error: str
    count: int


def count_errors(errors: Iterable[tuple[str, str | None]]) -> list[ErrorCount]:
    """Count errors by their first line, the commonest first.

    Lines that differ in the sample's id alone are one error, with `ID` in its place.

    Args:
        errors: The id of each item's sample, and its error; None is an item without one.
    """
    lines = Counter(
        (sample_id, _first_line(error)) for sample_id, error in errors if error is not None
    )
    samples = Counter(line for _, line in lines)
    kinds: Counter[str] = Counter()
    named: dict[str, str] = {}
    for (sample_id, line), number in lines.items():
        # A line that several samples have does not name any of them.
        kind = line if samples[line] > 1 else _without_id(line, sample_id)
        named[kind] = line if kind not in named else kind
        kinds[kind] += number
    return [ErrorCount(named[kind], number) for kind, number in kinds.most_common(KINDS_COUNTED)]


def _without_id(line: str, sample_id: str) -> str:
    if not sample_id:
        return line
    return re.sub(rf"(?<!\w){re.escape(sample_id)}(?!\w)", "ID", line)


def list_errors(counts: Sequence[ErrorCount], n_errors: int) -> list[str]:
    """Return the commonest errors as lines: "25 × score_fn: TypeError: …"; the rest last."""
    shown = counts[:KINDS_SHOWN]
    lines = [f"{kind.count} × {kind.error}" for kind in shown]
    others = n_errors - sum(kind.count for kind in shown)
    return [*lines, f"{others} with other errors"] if others and lines else lines


def explain_no_mean(
    n: int, n_errors: int, counts: Sequence[ErrorCount], max_error_rate: float | None
) -> str:
    """Say why results have no mean (clause 3): too many of them errored, and with what."""
    if n_errors < n:
        reason = f"{n_errors} of {n} items errored, above max_error_rate={max_error_rate:g}"
    else:
        reason = "the only item errored" if n == 1 else f"all {n} items errored"
    return f"{reason}, so there is no mean: {'; '.join(list_errors(counts, n_errors))}"


def _first_line(error: str) -> str:
    lines = error.strip().splitlines()
    return cut(lines[0].strip(), ERROR_CHARACTERS) if lines else ""
