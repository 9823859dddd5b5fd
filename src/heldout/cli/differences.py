"""Differences in words and in rows, for the terminal and for Markdown alike.

What is said is decided here once; `compare` and `gate` only lay it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from heldout._format import interval, number
from heldout.cli.show import describe_model
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

SCORED_ONLY = "scored only"
MOST_SLICES = 5
"""Of those that could not be compared, so many are named."""


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
    if comparison.with_errors is not None:
        readings = [
            (SCORED_ONLY, comparison.overall),
            (errored_as(comparison), comparison.with_errors),
        ]
    return [(name, cells(d, d.interval, d.p_value)) for name, d in readings]


def readings_of_slices(comparison: Comparison) -> list[tuple[str, list[SliceDifference]]]:
    """Each reading's slices, as people order them, and what to call it."""
    if not comparison.slices_with_errors:
        return [("", ordered(comparison.slices))]
    return [
        (SCORED_ONLY, ordered(comparison.slices)),
        (errored_as(comparison), ordered(comparison.slices_with_errors)),
    ]


def errored_as(comparison: Comparison) -> str:
    """What the reading is called that has errored items in it."""
    return f"errored as {comparison.errors_as or 0:g}"


def ordered(slices: Iterable[SliceDifference]) -> list[SliceDifference]:
    of_label: dict[Any, SliceDifference] = {one.label: one for one in slices}
    return [of_label[label] for label in in_order(of_label)]


def label_values(one: SliceDifference) -> tuple[str, ...]:
    values: Any = one.label
    return tuple("–" if value is None else str(value) for value in values)


def slice_cells(one: SliceDifference) -> tuple[str, ...]:
    return cells(one.difference, one.simultaneous_interval, one.adjusted_p_value)


def slices_footer(comparison: Comparison) -> list[str]:
    """How slices were corrected, what of it may surprise, and which there are no numbers of."""
    count = slice_count(comparison)
    lines = [f"{count} slices; p adjusted by Holm, intervals simultaneous."]
    if count == 1:
        lines = ["1 slice, so there is nothing to correct for."]
    alpha = 1 - comparison.confidence
    if any(
        _p_without_interval(one, alpha)
        for _, slices in readings_of_slices(comparison)
        for one in slices
    ):
        lines.append(
            f"A slice can have p below {alpha:.3g} and 0 in its interval: Holm's test is sharper "
            "than intervals that hold all at once can be."
        )
    missing = in_order(comparison.slices_not_compared)
    if missing:
        where = (
            f"Not among those {SCORED_ONLY}" if comparison.slices_with_errors else "Not compared"
        )
        names = [slice_name(comparison.by, label) for label in missing[:MOST_SLICES]]
        if len(missing) > MOST_SLICES:
            names.append(f"{len(missing) - MOST_SLICES} more")
        lines.append(f"{where}, since no sample has a value on both sides: {'; '.join(names)}.")
    return lines


def slice_count(comparison: Comparison) -> int:
    """What is corrected for: those without numbers were looked for, too."""
    return len(comparison.slices) + len(comparison.slices_not_compared)


def _p_without_interval(one: SliceDifference, alpha: float) -> bool:
    p, around = one.adjusted_p_value, one.simultaneous_interval
    return p is not None and around is not None and p < alpha and around.low <= 0 <= around.high


def slice_name(by: Sequence[str], label: Any) -> str:
    values = ("–" if value is None else str(value) for value in label)
    return ", ".join(f"{key}={value}" for key, value in zip(by, values, strict=True))


# --- Sentences ----------------------------------------------------------------------------------


def side_line(letter: str, side: Side, report: EvalReport | None) -> list[Piece]:
    """Who it is: name, endpoint, and what there is of it."""
    line: list[Piece] = [f"{letter}: ", Named(side.name)]
    who = describe_model(report.config) if report is not None else None
    if who is not None:
        line += [", model: ", Named(who)]
    line.append(f"; {counted(side.samples, 'sample')}, {counted(side.items, 'item')}")
    line.append(f", {side.errored} errored")
    return line


def pairing(comparison: Comparison, cluster: str | None = None) -> list[Piece]:
    """By what, how many, and why not all."""
    found = comparison.overall
    line: list[Piece] = [Named(comparison.metric), ", "]
    if isinstance(found, PairedDifference):
        line.append(f"paired by sample: {_paired(comparison, found)}")
        groups = f"{found.clusters}"
    else:
        a, b = comparison.a, comparison.b
        of_a = f" of {a.samples}" if a.left_out else ""
        of_b = f" of {b.samples}" if b.left_out else ""
        samples = "sample" if found.n_a == 1 and not of_a else "samples"
        line.append(
            f"not paired: {found.n_a}{of_a} {samples} of A against {found.n_b}{of_b} of B, so what "
            "makes samples hard does not cancel"
        )
        groups = f"{found.clusters_a} and {found.clusters_b}"
    if cluster is not None:
        line += [f", in {groups} clusters of the same ", Named(cluster)]
    return line


def _paired(comparison: Comparison, found: PairedDifference) -> str:
    a, b = comparison.a, comparison.b
    if not (a.left_out or b.left_out):
        return counted(found.n, "sample")
    what = "score" if comparison.metric in ("reward", "passed") else "value"
    if any(mismatch.kind == "samples" for mismatch in comparison.mismatches):
        return (
            f"{found.n} of {counted(a.samples, 'sample')} of A and {b.samples} of B; the others "
            f"are in one run alone, or have no {what} on one side"
        )
    have = "has" if a.left_out == 1 else "have"
    return f"{found.n} of {counted(a.samples, 'sample')}; {a.left_out} {have} no {what} on one side"


def wins_line(comparison: Comparison) -> str | None:
    found = comparison.overall
    if not isinstance(found, PairedDifference):
        return None
    return (
        f"B wins {counted(found.wins, 'sample')}, loses {found.losses}, and ties {found.ties}. "
        f"Flips (by reward ≥ {comparison.pass_threshold:g}): gained {len(comparison.gained)}, "
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
    found, other = comparison.overall, comparison.with_errors
    if comparison.verdict != "cannot tell":
        return f"B is {comparison.verdict}: {signed(found.difference)} ({between(found.interval)})."
    if found.interval is None:
        return f"Cannot tell: {counted_samples(found)} without a spread to judge by."
    if found.interval.low <= 0 <= found.interval.high or other is None:
        low, high = number(found.interval.low), number(found.interval.high)
        return f"Cannot tell: the difference is between {low} and {high}."
    return (
        f"Cannot tell: it is {signed(found.difference)} ({between(found.interval)}) of what was "
        f"scored, but {signed(other.difference)} ({between(other.interval)}) with errored "
        f"items as {comparison.errors_as or 0:g}."
    )


def counted_samples(found: Difference) -> str:
    if isinstance(found, PairedDifference):
        return counted(found.n, "sample")
    return f"{counted(found.n_a, 'sample')} and {found.n_b}"


# --- For the terminal ---------------------------------------------------------------------------


def print_pieces(console: Console, pieces: Sequence[Piece], style: str = "") -> None:
    from heldout.cli._tables import as_line, as_text

    line = as_text("", style)
    for piece in pieces:
        line.append(as_line(piece.text, "bold") if isinstance(piece, Named) else as_line(piece))
    console.print(line)


def print_slices(console: Console, comparison: Comparison) -> None:
    from heldout.cli._tables import as_line, make_table

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
    for line in slices_footer(comparison):
        console.print(as_line(line))


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
    return [*lines, " ".join(map(text, slices_footer(comparison)))]
