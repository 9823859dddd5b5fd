"""Differences in words and in rows, for the terminal and for Markdown alike.

What is said is decided here once; `compare` and `gate` only lay it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from heldout.cli.render import answered_by, interval, number
from heldout.cli.slice import in_order
from heldout.stats import PairedDifference

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from heldout.analysis.comparison import Comparison, Difference, Side
    from heldout.stats import Interval, SliceDifference
    from heldout.store.report import EvalReport


class Named(NamedTuple):
    """A piece of a line that somebody else wrote, to be set apart from what is said of it."""

    text: str


Piece = str | Named


# --- Numbers ------------------------------------------------------------------------------------


def signed(value: float | None) -> str:
    """A difference: +0.060."""
    return number(value) if value is None or value <= 0 else f"+{number(value)}"


def between(found: Interval | None) -> str:
    return interval(None, None) if found is None else interval(found.low, found.high)


def p_text(p: float | None) -> str:
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def percent(confidence: float) -> str:
    return f"{100 * confidence:g}%"


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


# --- Rows ---------------------------------------------------------------------------------------


def head(comparison: Comparison) -> tuple[str, ...]:
    return ("A", "B", "B - A", f"{percent(comparison.confidence)} interval", "p", "samples")


def cells(
    difference: Difference, interval_shown: Interval | None, p_value: float | None
) -> tuple[str, ...]:
    """A row under `head`."""
    if isinstance(difference, PairedDifference):
        samples = f"{difference.n}"
    else:
        samples = f"{difference.n_a}, {difference.n_b}"
    return (
        number(difference.mean_a),
        number(difference.mean_b),
        signed(difference.difference),
        between(interval_shown),
        p_text(p_value),
        samples,
    )


def overall_rows(comparison: Comparison) -> list[tuple[str, tuple[str, ...]]]:
    readings = [(comparison.metric, comparison.overall)]
    if comparison.errors_as_zero is not None:
        readings = [
            ("scored only", comparison.overall),
            ("errored as 0", comparison.errors_as_zero),
        ]
    return [(name, cells(d, d.interval, d.p_value)) for name, d in readings]


def readings_of_slices(comparison: Comparison) -> list[tuple[str, list[SliceDifference]]]:
    """Each reading's slices, as people order them, and what to call it."""
    if not comparison.slices_errors_as_zero:
        return [("", ordered(comparison.slices))]
    return [
        ("scored only", ordered(comparison.slices)),
        ("errored as 0", ordered(comparison.slices_errors_as_zero)),
    ]


def ordered(slices: Iterable[SliceDifference]) -> list[SliceDifference]:
    of_label: dict[Any, SliceDifference] = {one.label: one for one in slices}
    return [of_label[label] for label in in_order(of_label)]


def label_values(one: SliceDifference) -> tuple[str, ...]:
    values: Any = one.label
    return tuple("–" if value is None else str(value) for value in values)


def slice_cells(one: SliceDifference) -> tuple[str, ...]:
    return cells(one.difference, one.simultaneous_interval, one.adjusted_p_value)


def correction(comparison: Comparison) -> str:
    if len(comparison.slices) == 1:
        return "1 slice, so there is nothing to correct for"
    return f"{len(comparison.slices)} slices; p adjusted by Holm, intervals simultaneous"


# --- Sentences ----------------------------------------------------------------------------------


def side_line(letter: str, side: Side, report: EvalReport | None) -> list[Piece]:
    """Who it is: name, endpoint, and what there is of it."""
    line: list[Piece] = [f"{letter}: ", Named(side.name)]
    who = answered_by(report.config) if report is not None else None
    if who is not None:
        line += [", answered by ", Named(who)]
    line.append(f"; {counted(side.samples, 'sample')}, {counted(side.items, 'item')}")
    line.append(f", {side.errored} errored")
    if side.left_out:
        line.append(f"; {counted(side.left_out, 'sample')} not compared")
    return line


def pairing(comparison: Comparison, cluster: str | None = None) -> list[Piece]:
    found = comparison.overall
    line: list[Piece] = [Named(comparison.metric), ", "]
    if isinstance(found, PairedDifference):
        line.append(f"paired by sample: {counted(found.n, 'sample')}")
        groups = f"{found.clusters}"
    else:
        line.append(
            f"not paired: {counted(found.n_a, 'sample')} of A against {found.n_b} of B, so what "
            "makes samples hard does not cancel"
        )
        groups = f"{found.clusters_a} and {found.clusters_b}"
    if cluster is not None:
        line += [f", in {groups} clusters of the same ", Named(cluster)]
    return line


def wins_line(comparison: Comparison) -> str | None:
    found = comparison.overall
    if not isinstance(found, PairedDifference):
        return None
    return (
        f"B wins {counted(found.wins, 'sample')}, loses {found.losses}, and ties {found.ties}. "
        f"Flips (passed: ≥ {comparison.pass_threshold:g}): gained {len(comparison.gained)}, "
        f"lost {len(comparison.lost)}."
    )


def detectable_line(comparison: Comparison) -> str:
    if comparison.minimum_detectable is None:
        return "How large a difference would have been seen is not known: there is no spread."
    return (
        f"A true difference of {number(comparison.minimum_detectable)} would have been seen four "
        "times in five."
    )


def verdict_line(comparison: Comparison) -> str:
    """One plain sentence. There is none that says "no difference": that cannot be seen."""
    found, as_zero = comparison.overall, comparison.errors_as_zero
    if comparison.verdict != "cannot tell":
        return f"B is {comparison.verdict}: {signed(found.difference)} ({between(found.interval)})."
    if found.interval is None:
        return f"Cannot tell: {counted_samples(found)} without a spread to judge by."
    if found.interval.low <= 0 <= found.interval.high or as_zero is None:
        low, high = number(found.interval.low), number(found.interval.high)
        return f"Cannot tell: the difference is between {low} and {high}."
    return (
        f"Cannot tell: it is {signed(found.difference)} ({between(found.interval)}) of what was "
        f"scored, but {signed(as_zero.difference)} ({between(as_zero.interval)}) with errored "
        "items as 0."
    )


def counted_samples(found: Difference) -> str:
    if isinstance(found, PairedDifference):
        return counted(found.n, "sample")
    return f"{counted(found.n_a, 'sample')} and {found.n_b}"


# --- For the terminal ---------------------------------------------------------------------------


def print_pieces(console: Console, pieces: Sequence[Piece], style: str = "") -> None:
    from heldout.cli.render import as_line, as_text

    line = as_text("", style)
    for piece in pieces:
        line.append(as_line(piece.text, "bold") if isinstance(piece, Named) else as_line(piece))
    console.print(line)


def print_slices(console: Console, comparison: Comparison) -> None:
    from heldout.cli.render import as_line, make_table

    for reading, slices in readings_of_slices(comparison):
        if reading:
            console.print(f"Slices, {reading}:")
        table = make_table()
        for key in comparison.by:
            table.add_column(as_line(key), overflow="fold")
        add_number_columns(table, comparison)
        for one in slices:
            table.add_row(*(as_line(value) for value in label_values(one)), *slice_cells(one))
        console.print(table)
    console.print(f"{correction(comparison)}.")


def add_number_columns(table: Table, comparison: Comparison) -> None:
    for name in head(comparison):
        table.add_column(name, justify="left" if "interval" in name else "right", no_wrap=True)


# --- For Markdown -------------------------------------------------------------------------------


def as_markdown(pieces: Sequence[Piece]) -> str:
    from heldout.cli.markdown import code

    return "".join(code(p.text) if isinstance(p, Named) else p for p in pieces)


def markdown_slices(comparison: Comparison) -> list[str]:
    from heldout.cli.markdown import code, table, text

    lines: list[str] = []
    for reading, slices in readings_of_slices(comparison):
        lines += [f"Slices, {reading}:", ""] if reading else []
        rows = [(*map(code, label_values(one)), *map(text, slice_cells(one))) for one in slices]
        keys = [code(key) for key in comparison.by]
        lines += [*table([*keys, *head(comparison)], rows, words=range(len(keys))), ""]
    return [*lines, f"{correction(comparison)}."]
