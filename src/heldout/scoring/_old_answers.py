"""What a model answered: its last words without its reasoning, and in them the LAST statement.

    answer_text      a reply without its reasoning; None where it never got out of it
    final_answer     the same of a trajectory; None where the last turn was cut off
    last_statement   the last `Answer: X`, `\\boxed{X}`, `<answer>X</answer>`, `{"answer": X}`
                     or `#### 7` in it
    stated_answer    what that states

Nothing is guessed: a text without a statement has none, and a statement that breaks off (a box
that never closes) has no value, although an earlier one would. What is denied, asked, supposed,
reported of others, struck out or printed by a program is no statement. A remark (`the answer is
unique`) takes no statement back; a correction (`No wait, it is 5`) does. Where a text goes on with
a next question, it ends there. All scans go once over the text or are bounded, whatever is in it.
"""

from __future__ import annotations

import re
from itertools import islice

from heldout.chat.fences import fenced
from heldout.chat.reasoning import lowered as lowered_text
from heldout.chat.reasoning import without_reasoning
from heldout.scoring.announcements import WORDS
from heldout.scoring.assertions import said_instead
from heldout.scoring.statements import (
    Statement,
    last_filled_box,
    last_hashes,
    last_tag,
    outdoes,
)
from heldout.scoring.values import LONGEST, shown, tidied
from heldout.scoring.wordings import announced_in, key_around
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
    turn = trajectory.last_turn
    return None if turn is None or trajectory.stop.truncated else answer_text(turn.text)


# --- Statements ---------------------------------------------------------------------------------


def last_statement(text: str, words: tuple[str, ...] = WORDS) -> Statement | None:
    """The last statement of an answer in a text without reasoning; None where there is none."""
    if "\n" in text and _may_ask(text):
        for asked in islice(_NEXT.finditer(text, 1, _FARTHEST), 20):
            if found := _before_question(text[: asked.start()], words):
                return found
    return _last_of(text, words)


_ASKS = re.compile(r"\n(?:Q|[ \t#*>]{0,6}[QPEUH][urxse])")
_NEXT = re.compile(
    r"^[ \t#*>]{0,6}(?:Question|Q|Problem|Exercise|User|Human)\b ?\d{0,3}[*_ ]{0,3}[:：]",
    re.MULTILINE,
)
_NO_ANSWER = re.compile(
    r"\A(?:let|sure|ok|okay|here|first|certainly|understood|i|we)\b|[:!：]\Z", re.I
)
_FARTHEST, _SHORT = 20_000, 60


def _may_ask(text: str) -> bool:
    for letter in "QPEUH":
        if letter in text:
            return _ASKS.search(text) is not None
    return False


def _before_question(text: str, words: tuple[str, ...]) -> Statement | None:
    """What was answered before a next question: a statement, or a few words and nothing else."""
    said = text.strip()
    if not said:
        return None
    if len(said) <= _SHORT and "\n" not in said and not _NO_ANSWER.search(said):
        return _last_of(text, words) or Statement(tidied(said) or None, 0, "words")
    return _last_of(text, words)


def _last_of(text: str, words: tuple[str, ...]) -> Statement | None:
    # The searches for one character are much faster than what they spare.
    tilde, angle = "~" in text, "<" in text
    if (tilde and "~~" in text) or (angle and "<!--" in text):
        visible = _visible(text)
        if visible != text:
            if found := _last_of(visible, words):
                return found
            # What is struck out is not stated, and a number in it is not the answer either.
            struck = _last_of(text.replace("~~", "~ ").replace("<!--", "<-- "), words)
            return struck and struck._replace(value=None)
    searched = _without_programs(text) if tilde or "`" in text else text
    boxes = "\\" in text or "{" in text or "\b" in text
    best = last_filled_box(searched) if boxes else None
    if angle and (tag := last_tag(text, lowered_text(searched))):
        best = tag if best is None or tag.start > best.start else best
    if "#" in text and (hashes := last_hashes(searched)):
        best = hashes if best is None or hashes.start > best.start else best
    floor = best.start + 1 if best else 0
    announced = announced_in(text, searched, words, floor)
    if announced and (best is None or outdoes(announced, best)):
        best = announced
    if best is None:
        return None
    if "}" in text and best.kind == "words":
        best = key_around(text, lowered_text(searched), best) or best
    return best if best.kind == "key" else _corrected(text, best)


_STRUCK = re.compile(r"(?<!~)~~(?![\s~])[^~\n]{1,400}(?<!\s)~~(?!~)")


def _visible(text: str) -> str:
    """What is struck out or a comment blanked out, every other character at its place."""
    text = _STRUCK.sub(lambda found: " " * len(found[0]), text)
    parts: list[str] = []
    at = 0
    while (start := text.find("<!--", at)) >= 0 and (end := text.find("-->", start)) >= 0:
        parts += (text[at:start], " " * (end + 3 - start))
        at = end + 3
    return "".join((*parts, text[at:]))


def end_of(text: str, value: str, start: int) -> int:
    """Behind a value that was stated at `start`."""
    at = start
    while (at := text.find(value[:200], at)) >= 0:
        if not (text[at - 1 : at].isalnum() and value[0].isalnum()) and (
            len(value) > 1 or not text[at + 1 : at + 2].isalnum()
        ):
            return at + len(value)
        at += 1
        if at > start + LONGEST:
            break
    end = text.find("\n", start)
    return end if end >= 0 else len(text)


def _corrected(text: str, found: Statement) -> Statement:
    """What is said instead, where a statement is taken back behind it."""
    value = found.value
    if not value:
        return found
    end = end_of(text, value, found.start)
    if end >= len(text) - 2:
        return found
    instead = said_instead(text[end : end + _FARTHEST], value)
    return found if instead is None else Statement(instead or None, found.start, "words")


def stated_answer(text: str, words: tuple[str, ...] = WORDS) -> str | None:
    """The value of the last statement, or None."""
    statement = last_statement(text, words)
    return statement.value if statement else None


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
