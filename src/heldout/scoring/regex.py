r"""Regexes as graders, on an engine with linear time.

Python's `re` backtracks and has no timeout: `(a+)+$` on thirty letters takes minutes. So patterns
run on RE2 (`google-re2`, the extra `patterns`), and there is no fallback to `re`: the same pattern
would mean two things. What differs (https://github.com/google/re2/wiki/Syntax): no look-around and
no back-references; the end of the text is `\z`, and `$` without `(?m)` means just that; `\d`, `\w`,
`\s` and `\b` are ASCII (`\p{L}` is any letter, `\p{Nd}` any digit).

The LAST match counts: models think aloud before they answer.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from importlib import import_module
from typing import Any

from heldout._core.extras import missing_extra
from heldout.errors import InvalidInput
from heldout.scoring.answers import answer_text
from heldout.scoring.grades import NO_ANSWER, Grade, grader

MAX_STEPS = 100_000_000  # instructions of the compiled pattern times bytes of text
MAX_SECONDS = 2.0  # for finding the last match: one search is linear, each match takes another
_MEMORY = 2**21  # of a compiled pattern, and of what it caches while it runs
_HALVES = re.compile("[\ud800-\udfff]")


def _check(*, pattern: str | None = None, ignore_case: bool = False, **_: object) -> None:
    if pattern is not None:
        _compiled(pattern, ignore_case)


@grader(version=1, check=_check)
def grade_pattern(
    answer: str | None, *, pattern: str, whole: bool = False, ignore_case: bool = False
) -> Grade:
    """Grade 1 if the pattern matches somewhere in the answer.

    `extracted` is the last match: its first group, if the pattern has one.

    Args:
        answer: The reply; its reasoning is not searched.
        pattern: A pattern in RE2's syntax.
        whole: Whether the pattern must match the whole answer.
        ignore_case: Whether to ignore case.

    Returns:
        The grade, with what the pattern matched.

    Raises:
        InvalidInput: The pattern is invalid, or takes too long on this answer.
    """
    expression = _compiled(pattern, ignore_case)
    text = answer_text(answer)
    if text is None:
        return NO_ANSWER
    encoded = _HALVES.sub("\ufffd", text).encode()
    if expression.programsize * len(encoded) > MAX_STEPS:
        raise InvalidInput(
            f"pattern {pattern[:200]!r} on {len(encoded)} bytes takes more than {MAX_STEPS} steps "
            "at worst; smaller counts in {…} and fewer \\p{…} make a pattern smaller"
        )
    match = expression.fullmatch(encoded) if whole else _last(expression, encoded)
    if match is None:
        return Grade(0.0, None, "the pattern does not match")
    group = (match.groups() or (match.group(),))[0]
    return Grade(1.0, None if group is None else group.decode("utf-8", "replace"))


@grader(version=1, check=_check)
def grade_captured(
    answer: str | None, target: str | float, *, pattern: str, ignore_case: bool = False
) -> Grade:
    """Grade 1 if what the pattern extracts equals the target.

    The pattern extracts the first group of its last match, or the whole match if it has no group.
    Surrounding whitespace is ignored, in the target too.

    Args:
        answer: The reply; its reasoning is not searched.
        target: The text that should be extracted.
        pattern: A pattern in RE2's syntax.
        ignore_case: Whether to ignore case, in the target too.

    Returns:
        The grade, with what the pattern extracted.

    Raises:
        InvalidInput: The pattern is invalid or takes too long, or the target is empty.
    """
    is_text = isinstance(target, str | int | float) and not isinstance(target, bool)
    if not is_text or not str(target).strip():
        raise InvalidInput(
            f"the target (ground_truth) must be a text, not empty, or a number, got {target!r:.100}"
        )
    grade = grade_pattern(answer, pattern=pattern, ignore_case=ignore_case)
    if grade.value == 0.0:
        return grade
    if grade.extracted is None:
        return Grade(0.0, None, "the pattern matches, but its first group took no part")
    seen, wanted = grade.extracted.strip(), str(target).strip()
    if ignore_case:
        seen, wanted = seen.casefold(), wanted.casefold()
    return Grade(float(seen == wanted), grade.extracted)


@lru_cache(maxsize=64)
def _compiled(pattern: str, ignore_case: bool) -> Any:
    try:
        re2 = import_module("re2")  # without types of its own
    except ImportError as problem:
        raise missing_extra(
            f"regexes run on the package google-re2 ({problem})", "patterns"
        ) from None
    options = re2.Options()
    options.log_errors = False  # on stderr
    options.case_sensitive = not ignore_case
    options.max_mem = _MEMORY
    try:
        return re2.compile(_HALVES.sub("\ufffd", pattern), options)
    except re2.error as problem:
        why = problem.args[0]
        why = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise InvalidInput(
            f"pattern {pattern[:200]!r}: {why}; RE2 has no look-around and no back-references, and "
            "the end of the text is \\z"
        ) from None


def _last(expression: Any, text: bytes) -> Any:
    """Find the last match, within a time: `a.*b|a` reads to the end for every single a."""
    deadline = time.monotonic() + MAX_SECONDS
    last = None
    for match in expression.finditer(text):
        last = match
        if time.monotonic() > deadline:
            raise InvalidInput(
                f"the last match of {expression.pattern[:200]!r} in {len(text)} bytes was not "
                f"found within {MAX_SECONDS:g} s"
            )
    return last
