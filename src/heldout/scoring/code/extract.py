"""The program of a reply: one rule, which looks at neither the tests nor what they would say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import dedent

import msgspec

from heldout._reasoning import Fenced, fenced
from heldout.errors import InvalidInput
from heldout.scoring.code.tests import check_path

_FILE = re.compile(r"[\w./-]{1,100}\.py", re.ASCII)
LANGUAGES = ("python", "python3", "py", "py3")
_BLANK = r"(?:[ \t]*+(?:\#[^\n]*+)?\n)*+"
_FUTURE = re.compile(
    rf"""{_BLANK}(?>(?P<quotes>"{{3}}|'{{3}}).*?(?P=quotes)[ \t]*\n)?{_BLANK}"""
    r"(?P<imports>(?:from[ \t]+__future__[ \t]+import[ \t]+(?:\([^)]*\)|[^\n(]*)(?:\n\s*+|\Z))+)",
    re.DOTALL,
)
"""Imports from __future__, behind comments and a docstring. It is linear: models write the text."""


class ExtractedProgram(msgspec.Struct, frozen=True):
    """What a reply would have run."""

    source: str
    files: dict[str, str] = {}
    """Further files, by path."""


def extract_program(
    answer: str, text: str, entry_points: Sequence[str] = (), *, completes: bool = False
) -> ExtractedProgram | None:
    """Find the program of a reply.

    It is the last Python block of those that define most entry points; where none defines any, the
    last that is the body of a function, where one is to be completed; else the last. Blocks without
    a language count where none has one. In a reply without blocks it is all of it. A block that
    never closes counts where it is the only one. A block with a path behind the language
    (```python tools/shapes.py) is a file beside the program.

    Args:
        answer: The reply without its reasoning.
        text: The reply as it was written, from which the indentation of its first line is taken.
        entry_points: Names that the program is to define.
        completes: Whether the program goes on after a prompt.

    Returns:
        The program; None for an empty reply.
    """
    # Half of a surrogate pair is no character that a program could have.
    answer, text = (part.encode("utf-8", "backslashreplace").decode() for part in (answer, text))
    if not answer.strip():
        return None
    programs: list[str] = []
    files: dict[str, str] = {}
    blocks = list(fenced(answer))
    languages = LANGUAGES if any(block.language in LANGUAGES for block in blocks) else ("",)
    for block in blocks:
        if block.language not in languages or (not block.closed and len(blocks) > 1):
            continue
        code = answer[block.inner : block.inner_end]
        if answer[block.start].isspace():  # a block in a list
            code = dedent(code)
        path = _path(answer, block)
        if path is None:
            programs.append(code)
        else:
            files[path] = code
    if programs:
        defined = [_count_defined(code, entry_points) for code in programs]
        if any(defined):
            programs = [
                code for code, n in zip(programs, defined, strict=True) if n == max(defined)
            ]
        elif completes:
            programs = [code for code in programs if _is_body(code)] or programs
        return ExtractedProgram(programs[-1], files)
    if files:
        return ExtractedProgram(files[[*files][-1]], files)
    return None if blocks else ExtractedProgram(_indented(answer, text))


def _path(answer: str, block: Fenced) -> str | None:
    words = answer[block.start : block.inner].split()
    if len(words) != 2 or not _FILE.fullmatch(words[1]):
        return None
    try:
        check_path(words[1])
    except InvalidInput:
        return None
    return words[1]


def join_program(prompt: str, source: str) -> str:
    """Put a prompt before a program, whose imports from __future__ have to come first."""
    found = _FUTURE.match(source)
    if found is None:
        return f"{prompt}\n{source}"
    imports, rest = found["imports"].rstrip(), source[found.end("imports") :]
    return f"{imports}\n{prompt}\n{source[: found.start('imports')]}\n{rest}"


def _is_body(code: str) -> bool:
    return code.strip("\r\n")[:1] in (" ", "\t")


def _count_defined(code: str, entry_points: Sequence[str]) -> int:
    names = [name.rpartition(".")[2] for name in entry_points]
    return sum(
        1
        for name in names
        if re.search(
            rf"^[ \t]*(?:async[ \t]+def|def|class)[ \t]+{re.escape(name)}\b", code, re.MULTILINE
        )
        or re.search(rf"^{re.escape(name)}[ \t]*=", code, re.MULTILINE)
    )


def _indented(answer: str, text: str) -> str:
    """Put back the indentation of the first line: the reply may be the body of a function."""
    before, found, _ = text.partition(answer)
    indentation = before.rpartition("\n")[2] if found else ""
    return answer if indentation.strip() else indentation + answer
