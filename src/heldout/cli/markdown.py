"""Markdown for GitHub, of names and texts that anybody may have written.

Whatever a run, a slice or a sample is called renders as that text and as nothing else: no markup,
no HTML, no link, no mention, no issue, no emoji, no formula. What Markdown reads is written as
character references, which never are markup. What GitHub looks for in the finished page (@, #, …)
would be found all the same; it stands in an element of its own, which no pattern reaches across.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence

from heldout._format import printable

LONGEST = 300
"""Characters of one text: GitHub takes 1 MiB of summary, and a reader takes less."""
LONGEST_REFUSAL = 3000
"""What is all that there is to say may be longer: its end says what to do."""
MOST_ROWS = 200
"""Of a table."""

# At the beginning of a line also what makes a list, a rule, or a block of code.
_READ_BY_MARKDOWN = re.compile(r"[&<>|\\`*_\[\]~\t]|^\s|^[-+=](?=[-+=\s]|$)|^\d(?=\d*[.)](?:\s|$))")
_READ_BY_GITHUB = re.compile(r"[@#$]|:(?=\S)|(?<=www)\.|(?<=gh)-", re.IGNORECASE)


def text(value: object, *, longest: int = LONGEST) -> str:
    """The text itself, on one line, wherever a sentence may stand."""
    line = printable(str(value)).replace("\n", "\\n")
    if len(line) > longest:
        line = line[: longest - 1] + "…"
    parts, end = [], 0
    for found in _READ_BY_GITHUB.finditer(line):
        parts += [line[end : found.start()], f"<span>{_reference(found[0])}</span>"]
        end = found.end()
    parts.append(line[end:])
    # Every other part is ours by now.
    parts[::2] = [_READ_BY_MARKDOWN.sub(lambda m: _reference(m[0]), part) for part in parts[::2]]
    return "".join(parts)


def code(value: object) -> str:
    """A name or a value, set apart from the words around it."""
    return f"<code>{text(value)}</code>"


def _reference(character: str) -> str:
    return f"&#{ord(character)};"


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, words: Container[int] = (0,)
) -> list[str]:
    """Lines of a table; its cells are Markdown already. `words` are columns that are no numbers."""
    every = [*rows]
    lines = [head, [":--" if i in words else "--:" for i in range(len(head))], *every[:MOST_ROWS]]
    written = [f"| {' | '.join(cells)} |" for cells in lines]
    if len(every) > MOST_ROWS:
        written += ["", f"… and {len(every) - MOST_ROWS} more; `--json` has all."]
    return written


def details(summary: str, lines: Sequence[str]) -> list[str]:
    """A block that opens when it is clicked."""
    return ["<details>", f"<summary>{summary}</summary>", "", *lines, "", "</details>"]
