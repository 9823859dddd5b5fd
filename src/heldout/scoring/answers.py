"""What a model answered: its last words without its reasoning, and in them the LAST statement.

    answer_text      a reply without its reasoning; None where it never got out of it
    final_answer     the same of a trajectory; None where the last turn was cut off
    last_statement   the last `Answer: X`, `\\boxed{X}`, `<answer>X</answer>`, `{"answer": X}`
                     or `#### 7` in it
    stated_answer    what that states

Nothing is guessed: a text without a statement has none, and a statement that breaks off (a box
that never closes) has no value, although an earlier one would. Remarks about an answer (`the
answer is easy to see`) are no statements, nor is what a program would print. All scans go once
over the text or are bounded, whatever is in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from heldout.fences import fenced
from heldout.reasoning import lowered as lowered_text
from heldout.reasoning import without_reasoning
from heldout.scoring.announcements import BEFORE, REMARK, SEPARATOR, WORDS, is_not_meant
from heldout.scoring.boxes import last_box
from heldout.scoring.values import LONGEST, json_value_at, shown, tidied, value_at
from heldout.types import Trajectory

__all__ = [
    "WORDS",
    "Statement",
    "answer_text",
    "final_answer",
    "last_statement",
    "shown",
    "stated_answer",
    "tidied",
]

# --- The answer ---------------------------------------------------------------------------------


def answer_text(text: str | None) -> str | None:
    """What a reply says after its reasoning; None where it says nothing."""
    return (without_reasoning(text) or None) if text is not None else None


def final_answer(trajectory: Trajectory) -> str | None:
    """The last model turn's answer; None where that turn was cut off or only reasoned.

    Reasoning in a field of its own is never read, not even where there is no other text.
    """
    for message in reversed(trajectory.messages):
        if message.role == "assistant":
            return None if trajectory.stop.truncated else answer_text(message.text)
    return None


# --- Statements ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statement:
    value: str | None
    """What was stated, without markup; None where the statement breaks off or is empty."""
    start: int
    kind: Literal["words", "box", "tag", "hashes", "key"]


_TRIES = 1000  # how many times a word is looked at before it is taken for babble


def last_statement(text: str, words: tuple[str, ...] = WORDS) -> Statement | None:
    """The last statement of an answer in a text without reasoning; None where there is none."""
    # The searches for one character are much faster than what they spare.
    searched = _without_programs(text) if "`" in text or "~" in text else text
    lowered = lowered_text(searched)
    boxes = "\\" in text or "{" in text or "\b" in text
    best = _last_filled_box(searched) if boxes else None
    if "<" in text and (tag := _last_tag(text, lowered)):
        best = tag if best is None or tag.start > best.start else best
    if "#" in text and (hashes := _last_hashes(searched)):
        best = hashes if best is None or hashes.start > best.start else best
    floor = best.start + 1 if best else 0
    for word, rare in _with_rare(words, text.isascii()):
        if (rare and rare not in lowered) or lowered.rfind(word, floor) < 0:
            continue
        if found := _last_words(text, lowered, word, floor):
            best, floor = found, found.start + 1
    if best and "}" in text and best.kind == "words" and (key := _key_around(text, lowered, best)):
        return key
    return best


def stated_answer(text: str, words: tuple[str, ...] = WORDS) -> str | None:
    """The value of the last statement, or None."""
    statement = last_statement(text, words)
    return statement.value if statement else None


@lru_cache(maxsize=64)
def _with_rare(words: tuple[str, ...], ascii_only: bool) -> tuple[tuple[str, str], ...]:
    """Each word that can occur, with a letter of it that most texts do not have, if it has one."""
    return tuple(
        (word, next((c for c in word if not c.isascii() or c in "jqx"), ""))
        for word in words
        if word.isascii() or not ascii_only
    )


_PROSE = frozenset(
    (
        "",
        "json",
        "text",
        "txt",
        "plaintext",
        "markdown",
        "md",
        "latex",
        "tex",
        "math",
        "xml",
        "yaml",
    )
)


def _without_programs(text: str) -> str:
    """Programs in code blocks blanked out: `print("Answer:", x)` states nothing."""
    if "```" not in text and "~~~" not in text:
        return text
    parts: list[str] = []
    at = 0
    for block in fenced(text):
        if block.language not in _PROSE:
            parts += (text[at : block.inner], " " * (block.inner_end - block.inner))
            at = block.inner_end
    return "".join((*parts, text[at:])) if at else text


def _last_words(text: str, lowered: str, word: str, floor: int) -> Statement | None:
    end = len(text)
    for _ in range(_TRIES):
        at = lowered.rfind(word, floor, end)
        if at < 0:
            return None
        end = at + len(word) - 1
        if word[0] < "\u0500" and at and lowered[at - 1].isalnum():
            continue  # inside another word
        said = SEPARATOR.match(text, at + len(word))
        if not said or is_not_meant(lowered[max(0, at - 40) : at]):
            continue
        kind = said.lastgroup
        if kind == "dash" and not said["markup"]:
            continue  # answer-dependent
        if kind in ("dash", "heading", "bare", "cell") and (word.isascii() or kind != "dash"):
            line = text.rfind("\n", max(0, at - 80), at) + 1
            if not BEFORE.match(text[max(line, at - 80) : at]):
                continue
        if kind == "colon" and said["markup"][:1] in ('"', "'"):
            is_key, value = json_value_at(text, said.end())
            if is_key:
                return Statement(value, at, "key")
        close = text.find("|", said.end(), said.end() + LONGEST) if kind == "cell" else -1
        value = tidied(text[said.end() : close]) if close >= 0 else value_at(text, said.end())
        if value and not (kind == "is" and REMARK.match(value) and not _is_all(text, at, value)):
            return Statement(value, at, "words")
    return None


def _is_all(text: str, at: int, value: str) -> bool:
    """Whether a text is nothing but `The answer is X`, so that X is no remark, whatever it is."""
    end = text.rstrip(' .!*_`"').endswith(value.rstrip(".!"))
    return end and at < 80 and BEFORE.match(text[:at]) is not None


def _key_around(text: str, lowered: str, found: Statement) -> Statement | None:
    """The `"answer"` of the JSON object whose other keys a statement was found in, if any."""
    if text[:1] == "{" and text[-1:] == "}":
        start, end = 0, len(text)
    else:
        for block in fenced(text):
            if block.inner <= found.start < block.inner_end:
                start, end = block.inner, block.inner_end
                break
        else:
            return None
    for _ in range(_TRIES):
        at = lowered.rfind('answer"', start, end)
        if at < 0:
            return None
        end = at
        said = SEPARATOR.match(text, at + len("answer"))
        if said and said.lastgroup == "colon":
            is_key, value = json_value_at(text, said.end())
            if is_key:
                return Statement(value, at, "key")
    return None


def _last_filled_box(text: str) -> Statement | None:
    end = len(text)
    for _ in range(_TRIES):
        box = last_box(text, end)
        if box is None:
            return None
        if box.inside is None:
            return Statement(None, box.start, "box")
        if value := tidied(box.inside):
            return Statement(value, box.start, "box")
        end = box.start
    return None


_TAG_NAMES = ("<answer>", "<final_answer>", "<final-answer>", "<finalanswer>")


def _last_tag(text: str, lowered: str) -> Statement | None:
    end = len(text)
    for _ in range(_TRIES):
        behind = lowered.rfind("answer>", 0, end)
        if behind < 0:
            return None
        end = behind
        start = behind + len("answer>")
        at = lowered.rfind("<", max(0, start - 16), start)
        if at < 0 or lowered[at:start] not in _TAG_NAMES:
            continue
        close = lowered.find(f"</{lowered[at + 1 : start]}", start)
        # An open tag at the very end: generation was stopped at the closing one.
        inside = text[start:close] if close >= 0 else text[start : start + LONGEST]
        if value := tidied(inside):
            return Statement(value, at, "tag")
    return None


_HASHES = re.compile(r"####[ \t]{0,4}([-+−$€£]{0,2}\d[\d.,/ ]{0,60}%?(?<![. ]))[. \t]*(?=\n|\Z)")


def _last_hashes(text: str) -> Statement | None:
    at = text.rfind("####")
    if at < 0 or (at and text[at - 1] != "\n"):
        return None
    found = _HASHES.match(text, at)
    return Statement(found[1], at, "hashes") if found else None
