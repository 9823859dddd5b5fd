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
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple

from heldout.fences import fenced
from heldout.reasoning import lowered as lowered_text
from heldout.reasoning import without_reasoning
from heldout.scoring.announcements import BEFORE, GUARDS, REMARK, SEPARATOR, WORDS, is_not_meant
from heldout.scoring.assertions import (
    denied,
    is_asserted,
    is_plain,
    is_supposed,
    replaces,
    said_instead,
)
from heldout.scoring.boxes import joined_boxes
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


class Statement(NamedTuple):
    value: str | None
    """What was stated, without markup; None where the statement breaks off or is empty."""
    start: int
    kind: Literal["words", "box", "tag", "hashes", "key"]
    weak: bool = False
    """A sentence (`the answer is …`), which may also be a remark about the answer."""
    supposed: bool = False
    """Said under a condition (`if …, the answer is 5`): it counts where nothing else is stated."""


_TRIES = 1000  # how many times a word is looked at before it is taken for babble
_VALUES = 100  # how many times what follows it is read
_TAIL, _MARGIN = 400, 60  # characters at the end that are looked at first, and what they begin with


def last_statement(text: str, words: tuple[str, ...] = WORDS) -> Statement | None:
    """The last statement of an answer in a text without reasoning; None where there is none."""
    if "\n" in text and ("\nQ" in text or _ASKS.search(text)):
        for asked in islice(_NEXT.finditer(text, 1, _FARTHEST), 20):
            if found := _before_question(text[: asked.start()], words):
                return found
    return _last_of(text, words)


_ASKS = re.compile(r"\n[ \t#*>]{0,6}[QPEUH][urxse]")
_NEXT = re.compile(
    r"^[ \t#*>]{0,6}(?:Question|Q|Problem|Exercise|User|Human)\b ?\d{0,3}[*_ ]{0,3}[:：]",
    re.MULTILINE,
)
_NO_ANSWER = re.compile(
    r"\A(?:let|sure|ok|okay|here|first|certainly|understood|i|we)\b|[:!：]\Z", re.I
)
_FARTHEST, _SHORT = 20_000, 60


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
    best = _last_filled_box(searched) if boxes else None
    if angle and (tag := _last_tag(text, lowered_text(searched))):
        best = tag if best is None or tag.start > best.start else best
    if "#" in text and (hashes := _last_hashes(searched)):
        best = hashes if best is None or hashes.start > best.start else best
    floor = best.start + 1 if best else 0
    announced = _announced(text, searched, words, floor)
    if announced and (best is None or _replaces(announced, best)):
        best = announced
    if best is None:
        return None
    if "}" in text and best.kind == "words":
        best = _key_around(text, lowered_text(searched), best) or best
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


def _replaces(later: Statement, earlier: Statement) -> bool:
    if later.supposed and not earlier.supposed:
        return False
    return not later.weak or replaces(later.value, earlier.value, weak=earlier.weak)


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


def _announced(text: str, searched: str, words: tuple[str, ...], floor: int) -> Statement | None:
    """The last statement by words that begins at `floor` or behind it."""
    plain = text.isascii()
    guarded = _guarded(words, plain)
    far = 0 if plain else len(text) - _TAIL
    if far > 0:  # what is not plain is slow to lower, and its end may do
        lowered = " " * far + lowered_text(searched[far:])
        near = far + _MARGIN
        if floor >= near:
            return _last_of_words(text, lowered, guarded, floor)
        if found := _last_of_words(text, lowered, guarded[:1], near):
            return _last_of_words(text, lowered, guarded[1:], found.start + 1) or found
    return _last_of_words(text, lowered_text(searched), guarded, floor)


Guarded = tuple[tuple[str, tuple[str, ...]], ...]


@lru_cache(maxsize=64)
def _guarded(words: tuple[str, ...], plain: bool) -> Guarded:
    """The words that can occur, by a part of them that most texts do not have."""
    groups: dict[str, list[str]] = {}
    for word in words:
        if word.isascii() or not plain:
            guard = next((part for part in GUARDS if part in word), word)
            groups.setdefault(guard, []).append(word)
    return tuple((guard, tuple(group)) for guard, group in groups.items())


def _last_of_words(text: str, lowered: str, guarded: Guarded, floor: int) -> Statement | None:
    best = None
    for guard, words in guarded:
        if guard not in lowered if len(guard) == 1 else lowered.rfind(guard, floor) < 0:
            continue
        for word in words:
            if lowered.rfind(word, floor) < 0:
                continue
            found = _last_words(text, lowered, word, floor)
            if found and best and found.start < best.start:
                best = best if _replaces(best, found) else found
            else:
                best = found or best
            if best and (not best.weak or (is_plain(best.value) and not best.supposed)):
                floor = best.start + 1
    return best


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
    """The last statement by one word; a remark behind another statement is none."""
    end, values = len(text), 0
    later = None
    for _ in range(_TRIES):
        at = lowered.rfind(word, floor, end)
        if at < 0 or values == _VALUES:
            break
        end = at + len(word) - 1
        if said := _said_by(text, lowered, word, at):
            values += 1
            if found := _read(text, lowered, at, said):
                if found.kind != "key":
                    found = _with_sentence(text, lowered, word, found)
                later = later if later and _replaces(later, found) else found
                if not found.weak or (is_plain(found.value) and not found.supposed):
                    break  # nothing before it could be what is meant
    return later


def _said_by(text: str, lowered: str, word: str, at: int) -> re.Match[str] | None:
    """What separates a word from its value; None where the word announces none."""
    inside = word[0] < "\u0500" and at > 0 and lowered[at - 1].isalnum()
    if inside and not lowered.endswith(('"final', '"correct'), 0, at):
        return None  # inside another word
    if lowered.startswith((">", "wer"), at + len(word)):
        return None  # a tag, or `ans` in `answer`, as is seen sooner than by the pattern
    said = SEPARATOR.match(text, at + len(word))
    if not said or is_not_meant(lowered[max(0, at - 40) : at]):
        return None
    kind = said.lastgroup
    if kind == "dash" and not said["markup"]:
        return None  # answer-dependent
    if kind in ("dash", "heading", "bare", "cell") and (word.isascii() or kind != "dash"):
        line = text.rfind("\n", max(0, at - 80), at) + 1
        if not BEFORE.match(text[max(line, at - 80) : at]):
            return None
    before = lowered[max(0, at - 120) : at]
    return said if is_asserted(before, is_colon=kind == "colon") else None


_KEY_NAMES = frozenset(("", "final", "correct"))


def _read(text: str, lowered: str, at: int, said: re.Match[str]) -> Statement | None:
    """What is stated behind an announcing word; None for denials, questions and remarks."""
    kind = said.lastgroup
    if kind == "colon" and said["markup"][:1] in ('"', "'"):
        is_key, value = json_value_at(text, said.end())
        if is_key:
            name = lowered[max(0, at - 40) : at].rpartition(said["markup"][0])[2].rstrip(" _-")
            plain = name in _KEY_NAMES and said.start("markup") == said.start()
            return Statement(value, at, "key") if plain else None
    close = text.find("|", said.end(), said.end() + LONGEST) if kind == "cell" else -1
    value = tidied(text[said.end() : close]) if close >= 0 else value_at(text, said.end())
    weak = kind in ("is", "particle", "copula")
    if not value or denied(value, weak=weak):
        return None
    if kind == "is" and REMARK.match(value) and not _is_all(text, at, value):
        return None
    supposed = weak and is_supposed(lowered[max(0, at - 120) : at], said[0])
    return Statement(value, at, "words", weak, supposed)


def _with_sentence(text: str, lowered: str, word: str, found: Statement) -> Statement:
    """A statement inside the sentence of another is part of that: `Answer: A or answer: B`."""
    for _ in range(4):
        at = found.start
        line = text.rfind("\n", max(0, at - 300), at) + 1 or max(0, at - 300)
        before = lowered.rfind(word, line, at)
        if before < 0 or not (said := _said_by(text, lowered, word, before)):
            return found
        around = _read(text, lowered, before, said)
        if not around or not around.value or BEFORE.fullmatch(text[said.end() : at]):
            return found
        place = text.find(around.value, said.end())
        if not place <= at < place + len(around.value):
            return found
        found = around
    return found


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
        key = _read(text, lowered, at, said) if said and said.lastgroup == "colon" else None
        if key and key.kind == "key":
            return key
    return None


def _last_filled_box(text: str) -> Statement | None:
    """The last box; where others are joined to it (`\\boxed{1} or \\boxed{2}`), all of them."""
    for boxes in joined_boxes(text):
        last = boxes[-1]
        if last.inside is None:
            return Statement(None, last.start, "box")
        values = dict.fromkeys(value for box in boxes if (value := tidied(box.inside or "")))
        if values:
            return Statement(", ".join(values), last.start, "box")
    return None


_TAG_NAMES = ("<answer>", "<final_answer>", "<final-answer>", "<finalanswer>")


def _last_tag(text: str, lowered: str) -> Statement | None:
    end = len(text)
    closes: dict[str, tuple[int, int]] = {}  # by tag: from where its close was sought, and where
    for _ in range(_TRIES):
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


def _last_hashes(text: str) -> Statement | None:
    at = text.rfind("####")
    if at < 0 or (at and text[at - 1] != "\n"):
        return None
    found = _HASHES.match(text, at)
    return Statement(found[1], at, "hashes") if found else None
