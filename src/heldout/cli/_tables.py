"""Reports rendered for the terminal and as Markdown, and values printed as JSON.

Every text is escaped here, so that a name, a sample id or a model's output is shown as it is and
never obeyed: no terminal escapes, no rich markup, no Markdown, no HTML. JSON is rendered from
values, since its keys are an interface; `print_json` escapes them alike.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from heldout._core.format import cut, printable, printable_json
from heldout.errors import HeldoutError
from heldout.reporting.blocks import Block, Cell, Line, Report, Span, Table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text


PIPE_WIDTH = 100_000
"""Columns where there is no terminal: lines of a pipe or a file are not wrapped."""
MARKDOWN_ROWS = 200
"""Rows of a Markdown table; GitHub takes 1 MiB of summary, and a reader takes less."""
MARKDOWN_CHARACTERS = 300
"""Characters of one text in Markdown."""


def print_report(report: Report, *, markdown: bool = False) -> None:
    """Print a report to standard output, as text for a terminal or as Markdown for GitHub."""
    if markdown:
        import click

        click.echo(render_markdown(report))
        return
    console = make_console()
    _print_blocks(console, report.blocks)
    if report.conclusion:
        console.print(as_line(report.conclusion, report.style))


def print_json(value: Any, output: str | None) -> None:
    """Print a value as one line of JSON, as UTF-8 whatever the terminal's encoding is.

    Args:
        value: What to print.
        output: The name of its schema, a key of `heldout.cli.outputs.OUTPUTS`; None: it has none.

    Raises:
        HeldoutError: The value does not keep to that schema.
    """
    import msgspec

    from heldout.cli.outputs import OUTPUTS

    encoded = msgspec.json.Encoder(decimal_format="number").encode(value)
    try:
        kind = Any if output is None else OUTPUTS[output]
        msgspec.json.decode(encoded, type=kind, dec_hook=lambda part, text: part(text))
    except msgspec.ValidationError as problem:
        raise HeldoutError(
            f"this cannot be printed as JSON that keeps to its schema: {problem}. Either a file of "
            "the run is damaged, or this is a defect of heldout; without --json it is shown"
        ) from None
    sys.stdout.flush()
    sys.stdout.buffer.write(printable_json(encoded.decode()).encode() + b"\n")
    sys.stdout.buffer.flush()


def decide(decision: str, sentence: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return values for JSON behind what a program acts on.

    Args:
        decision: One word, or a few joined by underscores.
        sentence: The same in a sentence for people, with its numbers.
        value: Everything else.
    """
    return {"decision": decision, "sentence": sentence, **value}


def pick(value: object, *names: str) -> dict[str, Any]:
    """Return attributes of a value by name, for JSON."""
    return {name: getattr(value, name) for name in names}


# --- Terminal -----------------------------------------------------------------------------------


def make_console() -> Console:
    """Return a console on standard output that wraps lines only in a terminal."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # run_cli knows what to do

    return PipeConsole(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def as_text(value: object, style: str = "") -> Text:
    """Return a value as rich text that is shown and never obeyed."""
    from rich.text import Text

    return Text(printable(str(value)), style=style)


def as_line(value: object, style: str = "") -> Text:
    """Return a value as rich text on one line: a line break could pass for a row of a table."""
    return as_text(str(value).replace("\n", "\\n"), style)


def _as_span(cell: Cell) -> Span:
    return cell if isinstance(cell, Span) else Span(cell)


def _cell_text(cell: Cell) -> Text:
    span = _as_span(cell)
    return as_line(span.text, span.style)


def _print_blocks(console: Console, blocks: Sequence[Block]) -> None:
    for block in blocks:
        if isinstance(block, Line):
            console.print(render_line(block), soft_wrap=not block.wrap)
        elif isinstance(block, Table):
            console.print(render_table(block))
        else:
            console.print(as_line(block.title))
            _print_blocks(console, block.blocks)


def render_line(line: Line) -> Text:
    """Return a line as rich text."""
    text = as_text("", line.style)
    for part in line.parts:
        text.append_text(_cell_text(part))
    return text


def render_table(table: Table) -> RichTable:
    """Return a table as a rich table."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable

    rich_table = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for heading, align, wrap in table.columns:
        rich_table.add_column(
            _cell_text(heading),
            justify=align,
            no_wrap=not wrap,
            overflow="fold" if wrap else "ellipsis",
        )
    for row in table.rows:
        rich_table.add_row(*map(_cell_text, row))
    if table.totals:
        rich_table.add_section()
    for row in table.totals:
        rich_table.add_row(*map(_cell_text, row), style="bold")
    return rich_table


# --- Markdown -----------------------------------------------------------------------------------

# What Markdown reads becomes a character reference, which is never markup. What GitHub looks for in
# the finished page (mentions, issues, links, emoji, formulas) is found in spite of references; an
# element of its own breaks the pattern.
_SYNTAX = re.compile(
    r"(?P<github>[@#$]|:(?=\S)|(?<=www)\.|(?<=gh)-)|[&<>|\\`*_\[\]~\t]", re.IGNORECASE
)
# At the beginning of a line also what makes a list, a rule or a block of code.
_LINE_START = re.compile(r"^\s|^[-+=](?=[-+=\s]|$)|^\d(?=\d*[.)](?:\s|$))")


def escape_markdown(
    value: object, *, longest: int = MARKDOWN_CHARACTERS, line_start: bool = True
) -> str:
    """Escape text so that GitHub renders it as itself, on one line.

    Args:
        value: Text of any origin.
        longest: Characters that are kept.
        line_start: Whether it may stand at the beginning of a line.
    """

    def escape(match: re.Match[str]) -> str:
        reference = f"&#{ord(match[0])};"
        return f"<span>{reference}</span>" if match.lastgroup == "github" else reference

    line = cut(printable(str(value)).replace("\n", "\\n"), longest)
    escaped = _SYNTAX.sub(escape, line)
    return _LINE_START.sub(escape, escaped) if line_start else escaped


def render_markdown(report: Report) -> str:
    """Return a report as Markdown that GitHub renders in summaries and comments."""
    title = escape_markdown(f"{report.icon} {report.conclusion}".strip())
    heading = [f"### {title}"] if title else []
    return "\n\n".join([*heading, *_render_blocks(report.blocks)])


def _render_blocks(blocks: Sequence[Block]) -> list[str]:
    """Return a paragraph for each block; lines that follow one another are one list."""
    paragraphs: list[str] = []
    previous: Block | None = None
    for block in blocks:
        if isinstance(block, Line):
            parts = (_render_cell(part, line_start=i == 0) for i, part in enumerate(block.parts))
            item = f"- {''.join(parts)}"
            if isinstance(previous, Line):
                item = f"{paragraphs.pop()}\n{item}"
            paragraphs.append(item)
        elif isinstance(block, Table):
            paragraphs += _render_rows(block)
        else:
            summary = f"<summary>{escape_markdown(block.title)}</summary>"
            paragraphs += [f"<details>\n{summary}", *_render_blocks(block.blocks), "</details>"]
        previous = block
    return paragraphs


def _render_cell(cell: Cell, *, line_start: bool = True) -> str:
    span = _as_span(cell)
    text = escape_markdown(span.text, line_start=line_start)
    return f"<code>{text}</code>" if span.code else text


def _render_rows(table: Table) -> list[str]:
    rows = [*table.rows, *table.totals]
    head = [_render_cell(column.heading) for column in table.columns]
    rule = [":--" if column.align == "left" else "--:" for column in table.columns]
    cells = [head, rule, *(map(_render_cell, row) for row in rows[:MARKDOWN_ROWS])]
    paragraphs = ["\n".join(f"| {' | '.join(row)} |" for row in cells)]
    if len(rows) > MARKDOWN_ROWS:
        paragraphs.append(f"… and {len(rows) - MARKDOWN_ROWS} more; `--json` has all.")
    return paragraphs
