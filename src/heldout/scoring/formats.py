r"""Checks of an answer's form, which say nothing about whether it is right.

Each returns a `Grade` of 1.0 or 0.0 with what it saw and, for a 0.0, why. No answer follows no
format, not even "at most 10 words": a truncated generation must not earn a reward for being short.
Reasoning is left aside, as in every grader; `has_tags`, which is about the tags of the reasoning
too, takes the turn's whole text (`text` in a rubric). All are single scans.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, get_args

import msgspec

from heldout.errors import InvalidInput
from heldout.scoring.answers import answer_text, code_blocks, last_box
from heldout.scoring.grades import NO_ANSWER, Grade, grader

DEEPEST = 128  # levels of nesting in JSON that is still read
_decode = msgspec.json.Decoder().decode
_NOTHING = re.compile(r"[\s{}~\u200b\ufeff]|\\(?:q?quad|text|[,;:! ])")  # in a box, shows nothing


# --- JSON ---------------------------------------------------------------------------------------


class NotJSON(ValueError):
    """The text is not JSON, or nested too deeply; the message says what is wrong."""


def parse_json(text: str) -> Any:
    """Parse JSON strictly: no NaN, no trailing comma, no comment, and nothing around the value.

    Raises:
        NotJSON: The text is not JSON, or nested too deeply.
    """
    try:
        value = _decode(text)
        is_deep = text.count("[") + text.count("{") > DEEPEST and _depth(value) > DEEPEST
    except msgspec.DecodeError as problem:
        raise NotJSON(str(problem)) from None
    except UnicodeEncodeError:
        raise NotJSON("half of a surrogate pair, which is not text") from None
    except RecursionError:
        is_deep = True
    if is_deep:
        raise NotJSON(f"nested deeper than {DEEPEST} levels")
    return value


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, inner), default=0)


Kind = Literal["any", "object", "list"]


def _check_kind(*, kind: str = "any") -> None:
    if kind not in get_args(Kind):
        raise InvalidInput(f"kind is any, object or list, got {kind!r}")


@grader(version=1, check=_check_kind)
def is_json(answer: str | None, *, kind: Kind = "any") -> Grade:
    """Grade 1 where the whole answer is one JSON value.

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
    if kind != "any" and not isinstance(value, dict if kind == "object" else list):
        return Grade(0.0, text, f"JSON, but not {'an object' if kind == 'object' else 'a list'}")
    return Grade(1.0, text)


# --- Text --------------------------------------------------------------------------------------


@grader(version=1)
def has_code_block(answer: str | None, *, language: str | None = None) -> Grade:
    """Grade 1 where there is a fenced code block that closes and is not empty.

    Args:
        answer: The reply; its reasoning is not read.
        language: The language that the block names; any by default.

    Returns:
        The grade, with the code of the last such block.
    """
    text = answer_text(answer)
    if text is None:
        return NO_ANSWER
    blocks = code_blocks(text)
    for block in reversed(blocks):
        if not (block.closed and block.code.strip()):
            continue
        if language is None or block.language == language.lower():
            return Grade(1.0, block.code)
    if not blocks:
        return Grade(0.0, None, "no code block")
    if not blocks[-1].closed:
        return Grade(0.0, None, "the last code block never closes")
    of = f" of {language!r}" if language is not None else ""
    return Grade(0.0, None, f"no code block{of} that has anything in it")


@grader(version=1)
def has_boxed(answer: str | None) -> Grade:
    r"""Grade 1 where the last `\boxed{…}` closes and is not empty.

    Args:
        answer: The reply; its reasoning is not read.

    Returns:
        The grade, with what is in the box.
    """
    text = answer_text(answer)
    if text is None:
        return NO_ANSWER
    box = last_box(text)
    if box is None:
        return Grade(0.0, None, r"no \boxed{}")
    inside, _ = box
    if inside is None:
        return Grade(0.0, None, r"the last \boxed{} never closes")
    if not _NOTHING.sub("", inside):
        return Grade(0.0, None, r"the last \boxed{} is empty")
    return Grade(1.0, inside)


@grader(version=1)
def is_one_line(answer: str | None) -> Grade:
    """Grade 1 where the answer is one line of text, whatever blank space is around it.

    Args:
        answer: The reply; its reasoning is not read.

    Returns:
        The grade, with the text.
    """
    text = answer_text(answer)
    if text is None:
        return NO_ANSWER
    lines = len(text.splitlines())
    return Grade(1.0, text) if lines == 1 else Grade(0.0, text, f"{lines} lines")


Unit = Literal["characters", "words", "lines"]


def _check_length(
    *, unit: str = "characters", at_least: int = 1, at_most: int | None = None
) -> None:
    if unit not in get_args(Unit):
        raise InvalidInput(f"unit is characters, words or lines, got {unit!r}")
    if at_least < 0 or (at_most is not None and at_most < at_least):
        raise InvalidInput(f"no length is at least {at_least} and at most {at_most}")


@grader(version=1, check=_check_length)
def has_length(
    answer: str | None, *, unit: Unit = "characters", at_least: int = 1, at_most: int | None = None
) -> Grade:
    """Grade 1 where the answer is as long as asked for.

    Blank space around it and blank lines do not count.

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
        raise InvalidInput(f"tags are names such as ['think', 'answer'], got {tags!r:.100}")


@grader(version=1, check=_check_tags)
def has_tags(text: str | None, *, tags: Sequence[str], nothing_else: bool = False) -> Grade:
    """Grade 1 where each of the tags opens and closes exactly once, in this order.

    Args:
        text: The whole text of the turn, reasoning included.
        tags: Names of tags, such as ["think", "answer"].
        nothing_else: Whether only blank space may stand outside of them.

    Returns:
        The grade, with what is inside the last tag.
    """
    _check_tags(tags=tags)
    if text is None or not text.strip():
        return NO_ANSWER
    place, inside, outside = 0, "", []
    for tag in tags:
        opener, closer = f"<{tag}>", f"</{tag}>"
        for mark in (opener, closer):
            if (count := text.count(mark)) != 1:
                return Grade(0.0, None, f"{mark} {count} times")
        start, end = text.find(opener, place), text.find(closer, place)
        if start < 0 or end < start:
            return Grade(0.0, None, f"<{tag}> is not where it belongs")
        outside.append(text[place:start])
        inside, place = text[start + len(opener) : end].strip(), end + len(closer)
    outside.append(text[place:])
    if nothing_else and "".join(outside).strip():
        return Grade(0.0, inside, "text outside of the tags")
    return Grade(1.0, inside)
