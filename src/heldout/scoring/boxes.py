r"""The last `\boxed{…}`, with braces inside braces and escaped ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# `\b` is what a careless JSON reader makes of the beginning, and others drop the backslash.
_BOX = re.compile(r"(?:\\?b|\x08)oxed|\\fbox")
_OPENED = re.compile(r"\s{0,3}(?:\{|(?<=[\sd])([^\W_])(?![\w}]))")
_BRACES = re.compile(r"[{}]|\\.", re.DOTALL)
_TRIES = 1000  # how many places that only look like a box are passed over
_LONGEST = 20_000  # characters of a box; a longer one is taken for one that never closes


class Box(NamedTuple):
    inside: str | None
    """As written, blank space around it aside; None where the box never closes."""
    start: int
    end: int = 0
    """Behind it, where it closes."""


def last_box(text: str, end: int | None = None, *, exactly: bool = False) -> Box | None:
    r"""The last box that opens before `end`. `\fbox{5}` is one, too, where not `exactly` \boxed."""
    return next(boxes_from_end(text, end, exactly=exactly), None)


def boxes_from_end(text: str, end: int | None = None, *, exactly: bool = False) -> Iterator[Box]:
    """All boxes that open before `end`, the last one first."""
    end = len(text) if end is None else end
    boxed = text.rfind("oxed", 0, end)
    framed = text.rfind("fbox", max(0, boxed), end)
    for _ in range(_TRIES):
        at = boxed if boxed > framed else framed
        if at < 1:
            return
        found = _BOX.match(text, at - 2) if at > 1 else None
        found = found or _BOX.match(text, at - 1)
        if found and not (exactly and not found[0].startswith("\\boxed")):
            opened = _OPENED.match(text, found.end())
            # Without a backslash, `boxed a gift` is no box.
            if opened and (not opened[1] or text[found.start()] in "\\\b"):
                inside, behind = opened[1], opened.end()
                if not inside:
                    inside, behind = _braced(text, behind)
                yield Box(inside, found.start(), behind)
                at = found.start()
        # Looked for anew only where it was passed; and the other one only behind it.
        if boxed > at - 4:
            boxed = text.rfind("oxed", 0, at)
        framed = text.rfind("fbox", max(0, boxed), at)


_JOINED = re.compile(
    r"(?:[\s$]|\\[()])*(?:[,;/|]|\\(?:quad|lor)|,?\s*(?:and|or|\\text\{\s*(?:and|or)\s*\})"
    r"(?:\s(?:maybe|possibly|perhaps|also))?)(?:[\s$]|\\[()])*",
    re.IGNORECASE,
)
_MOST, _GAP = 16, 40  # boxes that are joined, and characters between two of them


def joined_boxes(text: str) -> Iterator[list[Box]]:
    r"""Boxes from the end on, those in one that are joined: `$\boxed{1}$ and $\boxed{2}$`."""
    group: list[Box] = []
    for box in boxes_from_end(text):
        if group:
            behind = group[0].start
            near = box.inside is not None and 0 < behind - box.end <= _GAP
            if near and len(group) < _MOST and _JOINED.fullmatch(text, box.end, behind):
                group.insert(0, box)
            else:
                yield group
                group = [box]
        else:
            group = [box]
        # The next box may be far away: it is only looked for where it could be joined.
        gap = text[max(0, group[0].start - _GAP - 20) : group[0].start]
        if "}" not in gap and "ox" not in gap:
            yield group
            group = []
    if group:
        yield group


def _braced(text: str, start: int) -> tuple[str | None, int]:
    """The text up to the brace that closes the one before `start`, and where; None: none does."""
    depth = 1
    for brace in _BRACES.finditer(text, start, start + _LONGEST):
        mark = brace[0]
        if mark == "}":
            depth -= 1
            if not depth:
                return text[start : brace.start()].strip(), brace.end()
        elif mark == "{":
            depth += 1
    return None, start
