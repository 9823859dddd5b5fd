"""What a statement of an answer is, which of two counts, and those that a mark makes.

\\boxed{7}   <answer>7</answer>   #### 7
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from heldout.scoring.assertions import is_plain, replaces
from heldout.scoring.boxes import joined_boxes
from heldout.scoring.values import LONGEST, tidied


class Statement(NamedTuple):
    value: str | None
    """What was stated, without markup; None where the statement breaks off or is empty."""
    start: int
    kind: Literal["words", "box", "tag", "hashes", "key"]
    weak: bool = False
    """A sentence (`the answer is …`), which may also be a remark about the answer."""
    supposed: bool = False
    """Said under a condition (`if …, the answer is 5`): it counts where nothing else is stated."""


TRIES = 1000  # how many times a word is looked at before it is taken for babble


def outdoes(later: Statement, earlier: Statement) -> bool:
    if later.supposed and not earlier.supposed:
        return False
    return not later.weak or replaces(later.value, earlier.value, weak=earlier.weak)


def settles(found: Statement) -> bool:
    """Whether nothing that is stated before it could be what is meant."""
    return not found.weak or (not found.supposed and is_plain(found.value))


# --- By a mark ----------------------------------------------------------------------------------


def last_filled_box(text: str) -> Statement | None:
    """The last box; where others are joined to it (`\\boxed{1} or \\boxed{2}`), all of them."""
    for boxes in joined_boxes(text):
        last = boxes[-1]
        if last.inside is None:
            return Statement(None, last.start, "box")
        if len(boxes) == 1:
            if value := tidied(last.inside):
                return Statement(value, last.start, "box")
            continue
        values = dict.fromkeys(value for box in boxes if (value := tidied(box.inside or "")))
        if values:
            return Statement(", ".join(values), last.start, "box")
    return None


_TAG_NAMES = ("<answer>", "<final_answer>", "<final-answer>", "<finalanswer>")


def last_tag(text: str, lowered: str) -> Statement | None:
    end = len(text)
    closes: dict[str, tuple[int, int]] = {}  # by tag: from where its close was sought, and where
    for _ in range(TRIES):
        behind = lowered.rfind("answer>", 0, end)
        if behind < 0:
            return None
        end = behind
        start = behind + len("answer>")
        at = lowered.rfind("<", max(0, start - 16), start)
        if at < 0 or lowered[at:start] not in _TAG_NAMES:
            continue
        closing = f"</{lowered[at + 1 : start]}"
        sought, close = closes.get(closing, (len(text), -1))
        nearer = lowered.find(closing, start, sought + len(closing))
        close = nearer if nearer >= 0 else close
        closes[closing] = start, close
        # An open tag at the very end: generation was stopped at the closing one.
        inside = text[start:close] if close >= 0 else text[start : start + LONGEST]
        if value := tidied(inside):
            return Statement(value, at, "tag")
    return None


_HASHES = re.compile(r"####[ \t]{0,4}([-+−$€£]{0,2}\d[\d.,/ ]{0,60}%?(?<![. ]))[. \t]*(?=\n|\Z)")


def last_hashes(text: str) -> Statement | None:
    at = text.rfind("####")
    if at < 0 or (at and text[at - 1] != "\n"):
        return None
    found = _HASHES.match(text, at)
    return Statement(found[1], at, "hashes") if found else None
