"""Reports as rows: what a renderer for the terminal, for Markdown or for a page is given.

    Report(
        [
            Line("A: ", name("before"), "; 60 samples"),
            Table([Column(""), "mean"], [[name("reward"), "0.250"]]),
        ],
        conclusion="B is better.",
    )

Texts are as they are: each renderer escapes them, so that none is ever obeyed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from heldout._core.format import printable

ALWAYS_SHOWN = 7
"""Rank of columns that are never left out."""


class Span(NamedTuple):
    """A piece of text with a rich style for the terminal; `code` sets it as code in Markdown."""

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
    """One line of text, made of plain strings and spans; in Markdown an item of a list.

    Args:
        parts: Strings and spans, in order.
        style: A rich style for the whole line.
        wrap: Whether a terminal wraps it between words; a path or a command is better left whole.
    """

    def __init__(self, *parts: Cell, style: str = "", wrap: bool = True) -> None:
        self.parts, self.style, self.wrap = parts, style, wrap


class Column(NamedTuple):
    """A column of a table; `wrap` lets a terminal fold long text into several lines."""

    heading: Cell
    align: Literal["left", "right"] = "left"
    wrap: bool = False


class Table:
    """Rows of cells, one per column.

    Args:
        columns: The columns; a plain string is the heading of a column of numbers, on the right.
        rows: The rows.
        totals: Rows below a rule, in bold.
    """

    def __init__(
        self,
        columns: Iterable[Column | str],
        rows: Sequence[Sequence[Cell]],
        totals: Sequence[Sequence[Cell]] = (),
    ) -> None:
        self.columns = [Column(c, "right") if isinstance(c, str) else c for c in columns]
        self.rows, self.totals = rows, totals


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title, which Markdown folds away."""

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
        icon: A sign before the conclusion in Markdown.
    """

    blocks: Sequence[Block]
    conclusion: str = ""
    style: str = "bold"
    icon: str = ""


# --- Columns that may be left out ---------------------------------------------------------------


class RankedColumn(NamedTuple):
    """A column with all its cells; where there is no room, those of the highest rank stay."""

    heading: str
    cells: list[str]
    rank: int
    align: Literal["left", "right"] = "right"


def fit_columns(columns: Sequence[RankedColumn], width: int) -> list[RankedColumn]:
    """Choose the columns of the highest rank that fit a width, in their order."""
    from rich.cells import cell_len

    chosen: list[RankedColumn] = []
    for column in sorted(columns, key=lambda column: -column.rank):
        needed = max(cell_len(printable(text)) for text in (column.heading, *column.cells))
        if needed <= width or column.rank >= ALWAYS_SHOWN:
            chosen.append(column)
            width -= needed + 3
        elif column.rank:
            break  # a less important one must not take its place
    return [column for column in columns if column in chosen]


# --- Blocks as plain values ---------------------------------------------------------------------


def plain_blocks(blocks: Iterable[Block]) -> list[dict[str, Any]]:
    """Turn blocks of a report into plain values.

    Returns:
        {"line": text, "style": word} or {"columns": …, "rows": …, "totals": …}, in order.
    """
    plain: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Line):
            only = block.parts[0] if len(block.parts) == 1 else ""
            style = block.style or (only.style if isinstance(only, Span) else "")
            plain.append({"line": "".join(map(_cell_text, block.parts)), "style": style})
        elif isinstance(block, Table):
            columns = [
                {
                    "title": _cell_text(column.heading),
                    "numeric": column.align == "right",
                    "wrap": column.wrap,
                }
                for column in block.columns
            ]
            plain.append(
                {
                    "columns": columns,
                    "rows": [[_cell_text(cell) for cell in row] for row in block.rows[:500]],
                    "totals": [[_cell_text(cell) for cell in row] for row in block.totals],
                }
            )
        else:
            plain += plain_blocks(block.blocks)
    return plain


def _cell_text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Span) else cell
