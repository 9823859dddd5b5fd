"""The program of a reply: one rule, which looks at neither the tests nor what they would say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import dedent

import msgspec

from heldout.chat.reasoning import Fenced, fenced
from heldout.errors import InvalidInput
from heldout.scoring.code.tests import check_path

_FILE = re.compile(r"[\w./-]{1,100}\.py", re.ASCII)
LANGUAGES = ("", "python", "python3", "py", "py3")


class Program(msgspec.Struct, frozen=True):
    """What a reply would have run."""

    source: str
    files: dict[str, str] = {}
    """Further files, by path."""


def extract_program(answer: str, text: str, entry_points: Sequence[str] = ()) -> Program | None:
    """Find the program of a reply.

    It is the last Python block that defines an entry point; where none does, or there is none, the
    last Python block; in a reply without blocks all of it. A block that never closes counts where
    it is the only one. A block with a path behind the language (```python tools/shapes.py) is a
    file beside the program.

    Args:
        answer: The reply without its reasoning.
        text: The reply as it was written, from which the indentation of its first line is taken.
        entry_points: Names that the program is to define.

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
    for block in blocks:
        if block.language not in LANGUAGES or (not block.closed and len(blocks) > 1):
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
        defining = [code for code in programs if _defines(code, entry_points)]
        return Program((defining or programs)[-1], files)
    if files:
        return Program(files[[*files][-1]], files)
    return None if blocks else Program(_indented(answer, text))


def _path(answer: str, block: Fenced) -> str | None:
    words = answer[block.start : block.inner].split()
    if len(words) != 2 or not _FILE.fullmatch(words[1]):
        return None
    try:
        check_path(words[1])
    except InvalidInput:
        return None
    return words[1]


def _defines(code: str, entry_points: Sequence[str]) -> bool:
    names = [name.rpartition(".")[2] for name in entry_points]
    return any(
        re.search(
            rf"^[ \t]*(?:async[ \t]+def|def|class)[ \t]+{re.escape(name)}\b", code, re.MULTILINE
        )
        or re.search(rf"^{re.escape(name)}[ \t]*=", code, re.MULTILINE)
        for name in names
    )


def _indented(answer: str, text: str) -> str:
    """Put back the indentation of the first line: the reply may be the body of a function."""
    before, found, _ = text.partition(answer)
    indentation = before.rpartition("\n")[2] if found else ""
    return answer if indentation.strip() else indentation + answer
