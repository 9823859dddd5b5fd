"""Reports as rows, built once and rendered for the terminal, as Markdown or as JSON.

    Report(
        [
            Line("A: ", name("before"), "; 60 samples"),
            Table([Column(""), Column("mean", "right")], [[name("reward"), "0.250"]]),
        ],
        conclusion="B is better.",
    )

Every text is escaped by the renderer, so that a name, a sample id or a model's output is shown as
it is and never obeyed: no terminal escapes, no rich markup, no Markdown, no HTML. JSON is rendered
from values, since its keys are an interface; `print_json` escapes them alike.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from heldout._format import cut, printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    from heldout.cli._load import SampleTexts

PIPE_WIDTH = 100_000
"""Columns where there is no terminal: lines of a pipe or a file are not wrapped."""
MARKDOWN_ROWS = 200
"""Rows of a Markdown table; GitHub takes 1 MiB of summary, and a reader takes less."""
FLIP_CHARACTERS = 120
"""Characters of a question or an answer in a list of flips; twice as many in a wide terminal."""
MARKDOWN_CHARACTERS = 300
"""Characters of one text in Markdown."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of text with a style.

    Attributes:
        text: The text, of any origin.
        style: A rich style for the terminal ("bold", "red").
        code: Whether Markdown sets it as code.
    """

    text: str
    style: str = ""
    code: bool = False


Cell = str | Span


def name(value: object) -> Span:
    """Return a span for a name in a sentence: bold in a terminal, code in Markdown."""
    return Span(str(value), style="bold", code=True)


def code(value: object) -> Span:
    """Return a span for a name in a table: plain in a terminal, code in Markdown."""
    return Span(str(value), code=True)


class Line:
    """One line of text, made of plain strings and spans.

    Args:
        parts: Strings and spans, in order.
        style: A rich style for the whole line.
        bullet: Whether Markdown makes it an item of a list.
        wrap: Whether a terminal wraps it between words; a path or a command is better left whole.
    """

    __slots__ = ("bullet", "parts", "style", "wrap")

    def __init__(
        self, *parts: Cell, style: str = "", bullet: bool = False, wrap: bool = True
    ) -> None:
        self.parts, self.style, self.bullet, self.wrap = parts, style, bullet, wrap


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        heading: Its heading.
        align: Numbers stand on the right.
        wrap: Whether long text may be folded into several lines of a terminal.
    """

    heading: Cell
    align: Literal["left", "right"] = "left"
    wrap: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under headings.

    Attributes:
        columns: The columns.
        rows: One cell per column in each row.
        totals: Rows below a rule, in bold.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    totals: Sequence[Sequence[Cell]] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title, which Markdown folds away.

    Attributes:
        title: What a reader sees before opening it.
        blocks: The content.
    """

    title: str
    blocks: Sequence[Line | Table]


Block = Line | Table | Section


@dataclass(frozen=True, slots=True)
class Report:
    """What a command prints.

    Attributes:
        blocks: The content, from top to bottom.
        conclusion: The one sentence to remember: last in a terminal, first in Markdown.
        style: A rich style for the conclusion.
        title: The heading in Markdown; the conclusion, if empty.
    """

    blocks: Sequence[Block]
    conclusion: str = ""
    style: str = "bold"
    title: str = ""


def print_report(report: Report, *, markdown: bool = False) -> None:
    """Print a report to standard output.

    Args:
        report: The report.
        markdown: Print Markdown for GitHub instead of text for a terminal.
    """
    if markdown:
        import click

        click.echo(render_markdown(report))
        return
    console = make_console()
    for block in report.blocks:
        _print_block(console, block)
    if report.conclusion:
        console.print(as_line(report.conclusion, report.style))


# --- Columns that may be left out ---------------------------------------------------------------

ALWAYS_SHOWN = 7
"""Rank of columns that are never left out."""


@dataclass(slots=True)
class RankedColumn:
    """A column that may be left out.

    Attributes:
        heading: Its heading.
        cells: One per row.
        rank: Where there is no room for all, columns of the highest rank stay.
        align: Numbers stand on the right.
    """

    heading: str
    cells: list[str]
    rank: int
    align: Literal["left", "right"] = "right"
    width: int = field(init=False)

    def __post_init__(self) -> None:
        from rich.cells import cell_len

        self.width = max(cell_len(printable(text)) for text in (self.heading, *self.cells))


def fit_columns(columns: Sequence[RankedColumn], width: int) -> list[RankedColumn]:
    """Choose the columns that fit a width.

    Args:
        columns: All columns.
        width: Columns of the terminal.

    Returns:
        Those of the highest rank, in their order.
    """
    chosen: list[RankedColumn] = []
    for column in sorted(columns, key=lambda column: -column.rank):
        needed = sum(other.width + 3 for other in chosen) + column.width
        if needed <= width or column.rank >= ALWAYS_SHOWN:
            chosen.append(column)
        elif column.rank:
            break  # a less important one must not take its place
    return [column for column in columns if column in chosen]


# --- Flips --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Flip:
    """A sample that passes in one run and fails in the other, with its texts where they are known.

    Attributes:
        kind: "gained" or "lost".
        id: The sample's id.
        rewards: Its rewards in the two runs.
        question: The last message before the model's first turn.
        target: What the answer is compared with.
        answers: The answers in the two runs, of the first attempt each.
    """

    kind: str
    id: str
    rewards: tuple[float, float]
    question: str | None = None
    target: str | None = None
    answers: tuple[str | None, str | None] = (None, None)

    @classmethod
    def make(
        cls,
        kind: str,
        id: str,
        rewards: tuple[float, float],
        texts_a: Mapping[str, SampleTexts],
        texts_b: Mapping[str, SampleTexts],
    ) -> Flip:
        """Make a flip with the texts that two runs have of a sample.

        Args:
            kind: "gained" or "lost".
            id: The sample's id.
            rewards: Its rewards in the two runs.
            texts_a: Texts of samples in the first run, by id.
            texts_b: Texts of samples in the second run, by id.

        Returns:
            The flip.
        """
        of_a, of_b = texts_a.get(id), texts_b.get(id)
        either = of_a or of_b
        return cls(
            kind,
            id,
            rewards,
            either.question if either else None,
            either.target if either else None,
            (of_a.answer if of_a else None, of_b.answer if of_b else None),
        )

    def as_dict(self, a: str, b: str) -> dict[str, Any]:
        """Return plain values for JSON; `a` and `b` are the names of the two rewards."""
        plain: dict[str, Any] = {"id": self.id, a: self.rewards[0], b: self.rewards[1]}
        if self.question is not None:
            plain |= {"question": self.question, "target": self.target}
            plain |= {f"answer_{a}": self.answers[0], f"answer_{b}": self.answers[1]}
        return plain


def build_flips(
    flips: Sequence[Flip], a: str, b: str, *, markdown: bool = False
) -> list[Line | Table]:
    """Lay out samples that flipped: question, target and both answers, each cut to one line.

    Args:
        flips: The samples.
        a: What to call the first run.
        b: What to call the second run.
        markdown: Whether it is for Markdown: one table.

    Returns:
        A table of ids and rewards where no texts are known or for Markdown, else lines.
    """
    styles = {"gained": "green", "lost": "red"}
    has_texts = any(flip.question is not None for flip in flips)
    if not flips:
        return []
    if not has_texts or markdown:
        columns = [Column(""), Column("sample", wrap=True), Column(a, "right"), Column(b, "right")]
        if has_texts:
            headings = ("question", "target", f"answer, {a}", f"answer, {b}")
            columns += [Column(heading) for heading in headings]
        rows: list[list[Cell]] = []
        for flip in flips:
            row: list[Cell] = [Span(flip.kind, styles[flip.kind]), code(flip.id)]
            row += [f"{reward:.3f}" for reward in flip.rewards]
            if has_texts:
                texts = (flip.question, flip.target, *flip.answers)
                row += [cut(_flat(text), FLIP_CHARACTERS) for text in texts]
            rows.append(row)
        return [Table(columns, rows)]
    margin = max(len("question"), len(a), len(b)) + 2
    width = max(40, min(make_console().width, 2 * FLIP_CHARACTERS))
    lines: list[Line | Table] = []
    for flip in flips:
        change = f"  {flip.rewards[0]:.3f} → {flip.rewards[1]:.3f}"
        title = Span(f"{flip.kind} ", styles[flip.kind])
        lines.append(Line(title, Span(flip.id, "bold"), Span(change, "dim"), wrap=False))
        labelled = {"question": flip.question, "target": flip.target}
        labelled |= {a: flip.answers[0], b: flip.answers[1]}
        for label, text in labelled.items():
            content = cut(_flat(text), width - margin)
            lines.append(Line(Span(f"{label:<{margin}}", "dim"), content, wrap=False))
    return lines


def _flat(text: str | None) -> str:
    return "–" if text is None else " ".join(text.split())


# --- JSON ---------------------------------------------------------------------------------------


def print_json(value: Any) -> None:
    """Print a value as one line of JSON, as UTF-8 whatever the terminal's encoding is."""
    import msgspec

    sys.stdout.flush()
    text = printable_json(msgspec.json.encode(value).decode())
    sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.buffer.flush()


# --- Terminal -----------------------------------------------------------------------------------


def make_console() -> Console:
    """Return a console on standard output that wraps lines only in a terminal."""
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # run_cli knows what to do

    if sys.stdout.isatty():
        return PipeConsole(highlight=False)
    return PipeConsole(highlight=False, width=PIPE_WIDTH)


def as_text(value: object, style: str = "") -> Text:
    """Return a value as rich text that is shown and never obeyed."""
    from rich.text import Text

    return Text(printable(str(value)), style=style)


def as_line(value: object, style: str = "") -> Text:
    """Return a value as rich text on one line: a line break could pass for a row of a table."""
    return as_text(str(value).replace("\n", "\\n"), style)


def _cell_text(cell: Cell) -> Text:
    return as_line(cell.text, cell.style) if isinstance(cell, Span) else as_line(cell)


def _print_block(console: Console, block: Block) -> None:
    if isinstance(block, Line):
        console.print(render_line(block), soft_wrap=not block.wrap)
    elif isinstance(block, Table):
        console.print(render_table(block))
    else:
        console.print(as_line(block.title))
        for inner in block.blocks:
            _print_block(console, inner)


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

    made = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for column in table.columns:
        made.add_column(
            _cell_text(column.heading),
            justify=column.align,
            no_wrap=not column.wrap,
            overflow="fold" if column.wrap else "ellipsis",
        )
    for i, row in enumerate(table.rows, 1):
        rule = bool(table.totals) and i == len(table.rows)
        made.add_row(*map(_cell_text, row), end_section=rule)
    for row in table.totals:
        made.add_row(*map(_cell_text, row), style="bold")
    return made


# --- Markdown -----------------------------------------------------------------------------------

# What Markdown reads becomes a character reference, which is never markup; at the beginning of a
# line also what makes a list, a rule or a block of code.
_MARKDOWN_SYNTAX = re.compile(r"[&<>|\\`*_\[\]~\t]")
_LINE_START = re.compile(r"^\s|^[-+=](?=[-+=\s]|$)|^\d(?=\d*[.)](?:\s|$))")
# What GitHub looks for in the finished page (mentions, issues, links, emoji, formulas) is found in
# spite of references; an element of its own breaks the pattern.
_GITHUB_SYNTAX = re.compile(r"[@#$]|:(?=\S)|(?<=www)\.|(?<=gh)-", re.IGNORECASE)


def escape_markdown(
    value: object, *, longest: int = MARKDOWN_CHARACTERS, line_start: bool = True
) -> str:
    """Escape text so that GitHub renders it as itself, on one line.

    Args:
        value: Text of any origin.
        longest: Characters that are kept.
        line_start: Whether it may stand at the beginning of a line.
    """
    line = cut(printable(str(value)).replace("\n", "\\n"), longest)
    parts: list[str] = []
    end = 0
    for match in _GITHUB_SYNTAX.finditer(line):
        parts += [line[end : match.start()], f"<span>{_reference(match)}</span>"]
        end = match.end()
    parts.append(line[end:])
    parts[::2] = [_MARKDOWN_SYNTAX.sub(_reference, part) for part in parts[::2]]
    escaped = "".join(parts)
    return _LINE_START.sub(_reference, escaped) if line_start else escaped


def render_markdown(report: Report) -> str:
    """Return a report as Markdown that GitHub renders in summaries and comments."""
    paragraphs: list[str] = []
    title = report.title or report.conclusion
    if title:
        paragraphs.append(f"### {escape_markdown(title)}")
    if report.conclusion and not title.endswith(report.conclusion):
        paragraphs.append(escape_markdown(report.conclusion))
    return "\n\n".join([*paragraphs, *_markdown_paragraphs(report.blocks)])


def _reference(match: re.Match[str]) -> str:
    return f"&#{ord(match[0])};"


def _markdown_cell(cell: Cell, *, line_start: bool = True) -> str:
    text = escape_markdown(cell.text if isinstance(cell, Span) else cell, line_start=line_start)
    return f"<code>{text}</code>" if isinstance(cell, Span) and cell.code else text


def _markdown_paragraphs(blocks: Sequence[Block]) -> list[str]:
    paragraphs: list[str] = []
    previous: Block | None = None
    for block in blocks:
        if isinstance(block, Line):
            parts = [_markdown_cell(p, line_start=i == 0) for i, p in enumerate(block.parts)]
            text = ("- " if block.bullet else "") + "".join(parts)
            if isinstance(previous, Line) and previous.bullet == block.bullet:
                paragraphs[-1] += f"\n{text}"
            else:
                paragraphs.append(text)
        elif isinstance(block, Table):
            paragraphs += _markdown_table(block)
        else:
            summary = f"<summary>{escape_markdown(block.title)}</summary>"
            inner = _markdown_paragraphs(block.blocks)
            paragraphs += [f"<details>\n{summary}", *inner, "</details>"]
        previous = block
    return paragraphs


def _markdown_table(table: Table) -> list[str]:
    rows = [*table.rows, *table.totals]
    head = [_markdown_cell(column.heading) for column in table.columns]
    rule = [":--" if column.align == "left" else "--:" for column in table.columns]
    cells = [head, rule, *(map(_markdown_cell, row) for row in rows[:MARKDOWN_ROWS])]
    paragraphs = ["\n".join(f"| {' | '.join(row)} |" for row in cells)]
    if len(rows) > MARKDOWN_ROWS:
        paragraphs.append(f"… and {len(rows) - MARKDOWN_ROWS} more; `--json` has all.")
    return paragraphs
