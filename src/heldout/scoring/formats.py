r"""Checks of an answer's format, not of its correctness.

Each returns a `Grade` of 1.0 or 0.0 with what it found and, for a 0.0, why. A missing answer fails
every check, even "at most 10 words": a truncated generation must not be rewarded for being short.
Reasoning is ignored, as in every grader; `has_tags`, which is about the tags of the reasoning
too, takes the turn's whole text (`text` in a rubric). All are single scans.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from heldout._reasoning import fenced
from heldout.errors import InvalidInput
from heldout.scoring.answers import BOX, answer_text, read_box
from heldout.scoring.grades import NO_ANSWER, Grade, grader

_decode = msgspec.json.Decoder().decode
_NOTHING = re.compile(r"[\s{}~\u200b\ufeff]|\\(?:q?quad|text|[,;:! ])")  # in a box, shows nothing


class NotJSON(ValueError):
    """The text is not JSON, or nested too deeply; the message says what is wrong."""


def parse_json(text: str) -> Any:
    """Parse JSON strictly: no NaN, no trailing comma, no comment, and nothing around the value.

    Raises:
        NotJSON: The text is not JSON, or nested too deeply.
    """
    try:
        return _decode(text)
    except msgspec.DecodeError as problem:
        raise NotJSON(str(problem)) from None
    except UnicodeEncodeError:
        raise NotJSON("half of a surrogate pair, which is not text") from None
    except RecursionError:
        raise NotJSON("nested too deeply") from None


_KINDS = {"any": (object, "anything"), "object": (dict, "an object"), "list": (list, "a list")}


def _check_kind(*, kind: str = "any") -> None:
    if kind not in _KINDS:
        raise InvalidInput(f"kind must be any, object or list, got {kind!r}")


@grader(version=1, check=_check_kind)
def is_json(answer: str | None, *, kind: Literal["any", "object", "list"] = "any") -> Grade:
    """Grade 1 if the whole answer is one JSON value.

    Args:
        answer: The reply; its reasoning is not read.
        kind: "any" value, an "object" or a "list".

    Returns:
        The grade, with the JSON text.
    """
    _check_kind(kind=kind)
    text = answer_text(answer)
    if text is None:
        return NO_ANSWER
    try:
        value = parse_json(text)
    except NotJSON as problem:
        return Grade(0.0, None, str(problem))
    expected, name = _KINDS[kind]
    fits = isinstance(value, expected)
    return Grade(float(fits), text, "" if fits else f"JSON, but not {name}")


@grader(version=1)
def has_code_block(answer: str | None, *, language: str | None = None) -> Grade:
    """Grade 1 if the answer has a fenced code block that is closed and not empty.

    Args:
        answer: The reply; its reasoning is not read.
        language: The language that the block must name; by default any.

    Returns:
        The grade, with the code of the last such block.
    """
    text = answer_text(answer)
    if text is None:
        return NO_ANSWER
    blocks = list(fenced(text))
    for block in reversed(blocks):
        code = text[block.inner : block.inner_end]
        is_asked_for = language is None or block.language == language.lower()
        if block.closed and code.strip() and is_asked_for:
            return Grade(1.0, code)
    if blocks and not blocks[-1].closed:
        return Grade(0.0, None, "the last code block never closes")
    of = f" of {language!r}" if language else ""
    return Grade(
        0.0, None, f"no code block{of} that has anything in it" if blocks else "no code block"
    )


@grader(version=1)
def has_boxed(answer: str | None) -> Grade:
    r"""Grade 1 if the last `\boxed{…}` is closed and not empty.

    Args:
        answer: The reply; its reasoning is not read.

    Returns:
        The grade, with what is in the box.
    """
    text = answer_text(answer)
    if text is None:
        return NO_ANSWER
    boxes = list(BOX.finditer(text))
    if not boxes:
        return Grade(0.0, None, r"no \boxed{}")
    inside, _ = read_box(text, boxes[-1])
    if inside is None:
        return Grade(0.0, None, r"the last \boxed{} never closes")
    if not _NOTHING.sub("", inside):
        return Grade(0.0, None, r"the last \boxed{} is empty")
    return Grade(1.0, inside)


@grader(version=1)
def is_one_line(answer: str | None) -> Grade:
    """Grade 1 if the answer is one line of text, surrounding whitespace aside.

    Args:
        answer: The reply; its reasoning is not read.

    Returns:
        The grade, with the text.
    """
    text = answer_text(answer)
    if text is None:
        return NO_ANSWER
    lines = len(text.splitlines())
    return Grade(float(lines == 1), text, "" if lines == 1 else f"{lines} lines")


def _check_length(
    *, unit: str = "characters", at_least: int = 1, at_most: int | None = None
) -> None:
    if unit not in ("characters", "words", "lines"):
        raise InvalidInput(f"unit must be characters, words or lines, got {unit!r}")
    if at_least < 0 or (at_most is not None and at_most < at_least):
        raise InvalidInput(f"no length is at least {at_least} and at most {at_most}")


@grader(version=1, check=_check_length)
def has_length(
    answer: str | None,
    *,
    unit: Literal["characters", "words", "lines"] = "characters",
    at_least: int = 1,
    at_most: int | None = None,
) -> Grade:
    """Grade 1 if the answer's length is within bounds.

    Surrounding whitespace and blank lines do not count.

    Args:
        answer: The reply; its reasoning is not read.
        unit: "characters", "words" or "lines".
        at_least: The minimum.
        at_most: The maximum; none by default.

    Returns:
        The grade, with the length.
    """
    _check_length(unit=unit, at_least=at_least, at_most=at_most)
    text = answer_text(answer)
    if text is None:
        return NO_ANSWER
    if unit == "characters":
        length = len(text)
    elif unit == "words":
        length = len(text.split())
    else:
        length = sum(1 for line in text.splitlines() if line.strip())
    fits = at_least <= length and (at_most is None or length <= at_most)
    return Grade(float(fits), str(length), "" if fits else f"{length} {unit}")


def _check_tags(*, tags: Sequence[str] = ("answer",), nothing_else: bool = False) -> None:
    if isinstance(tags, str) or not tags or not all(re.fullmatch(r"[\w.:-]+", tag) for tag in tags):
        raise InvalidInput(f"tags must be names such as ['think', 'answer'], got {tags!r:.100}")


@grader(version=1, check=_check_tags)
def has_tags(text: str | None, *, tags: Sequence[str], nothing_else: bool = False) -> Grade:
    """Grade 1 if each tag opens and closes exactly once, in this order.

    Args:
        text: The whole text of the turn, reasoning included.
        tags: Names of tags, such as ["think", "answer"].
        nothing_else: Whether only whitespace may be outside of them.

    Returns:
        The grade, with what is inside the last tag.
    """
    _check_tags(tags=tags)
    if text is None or not text.strip():
        return NO_ANSWER
    rest, inside, outside = text, "", ""
    for tag in tags:
        for mark in (f"<{tag}>", f"</{tag}>"):
            if (count := text.count(mark)) != 1:
                return Grade(0.0, None, f"{mark} {count} times")
        before, opened, behind = rest.partition(f"<{tag}>")
        inside, closed, rest = behind.partition(f"</{tag}>")
        if not (opened and closed):
            return Grade(0.0, None, f"<{tag}> is not where it belongs")
        outside += before
    if nothing_else and (outside + rest).strip():
        return Grade(0.0, inside.strip(), "text outside of the tags")
    return Grade(1.0, inside.strip())
