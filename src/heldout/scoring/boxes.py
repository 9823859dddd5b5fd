r"""The last `\boxed{…}`, with braces inside braces and escaped ones."""

from __future__ import annotations

import re
from dataclasses import dataclass

# `\b` is what a careless JSON reader makes of the beginning, and others drop the backslash.
_BOX = re.compile(r"(?:\\?b|\x08)oxed|\\fbox")
_OPENED = re.compile(r"\s{0,3}(?:\{|(?<=[\sd])([^\W_])(?![\w}]))")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_TRIES = 1000  # how many places that only look like a box are passed over


@dataclass(frozen=True, slots=True)
class Box:
    inside: str | None
    """As written, blank space around it aside; None where the box never closes."""
    start: int


def last_box(text: str, end: int | None = None, *, exactly: bool = False) -> Box | None:
    r"""The last box that opens before `end`. `\fbox{5}` is one, too, where not `exactly` \boxed."""
    end = len(text) if end is None else end
    for _ in range(_TRIES):
        at = max(text.rfind("oxed", 0, end), text.rfind("fbox", 0, end))
        if at < 1:
            return None
        end = at
        found = _BOX.match(text, at - 2) if at > 1 else None
        found = found or _BOX.match(text, at - 1)
        if exactly and found and not found[0].startswith("\\boxed"):
            continue
        opened = _OPENED.match(text, found.end()) if found else None
        # Without a backslash, `boxed a gift` is no box.
        if found and opened and (not opened[1] or text[found.start()] in "\\\b"):
            return Box(opened[1] or _braced(text, opened.end()), found.start())
    return None


def _braced(text: str, start: int) -> str | None:
    """The text up to the brace that closes the one before `start`; None where none does."""
    depth = 1
    for brace in _BRACES.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if not depth:
            return text[start : brace.start()].strip()
    return None
