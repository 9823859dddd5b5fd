"""Reports, comparisons and curves in notebooks.

`_repr_html_` of `EvalReport`, `Comparison` and `PeriodicEval` is made here: the tables and
sentences of the command line, without script, which also show where a notebook is not trusted.
`heldout.view` gives the whole viewer in a sandboxed frame, with no port and no server; a curve is
drawn by it.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from heldout._core.format import number, printable
from heldout._core.temporary import TemporaryFolder
from heldout.errors import InvalidInput
from heldout.reporting.blocks import plain_blocks

if TYPE_CHECKING:
    from heldout.analysis import Comparison
    from heldout.reporting.blocks import Block
    from heldout.stats import Interval
    from heldout.store.report import EvalReport
    from heldout.training.curve.points import CurvePoint

WIDTH = 640
BLUE = "#0072b2"

Mark = tuple[str, float, "Interval | None"]
"""A label, a value, and its interval."""


def report_html(report: EvalReport) -> str:
    """Render a report as `heldout show` prints it, as HTML without script."""
    from heldout.reporting.summaries import build_report

    return _blocks(build_report(report).blocks)


def comparison_html(comparison: Comparison) -> str:
    """Render a comparison as `heldout compare` prints it, with its differences as a picture."""
    from heldout.reporting.comparisons import build_comparison, slice_name, sort_slices

    report = build_comparison(comparison)
    marks: list[Mark] = []
    for part in sort_slices(comparison.slices):
        label = slice_name(comparison.by, part.label)
        marks.append((label, part.difference.difference, part.simultaneous_interval))
    if comparison.with_errors is not None:
        counted = comparison.with_errors
        marks.append(("errored counted", counted.difference, counted.interval))
    marks.append(("B - A", comparison.overall.difference, comparison.overall.interval))
    return f"<p><b>{_escape(report.conclusion)}</b></p>{forest_svg(marks)}{_blocks(report.blocks)}"


def curve_html(points: Sequence[CurvePoint], label: str, run_dir: Path | None) -> str:
    """Render a curve as `heldout show` prints it, and draw it in the viewer.

    Args:
        points: The points in its directory.
        label: The eval that is shown.
        run_dir: The directory; None if nothing was evaluated yet.
    """
    from heldout.reporting.curves import build_curve_table, judge_curve

    judged, lines = judge_curve([point for point in points if point.label == label], {})
    text = _blocks(lines) + _blocks(build_curve_table(judged, 10_000))
    if run_dir is None:
        return text
    try:
        frame = view(run_dir, samples="0", height=520)
    except InvalidInput as problem:  # something in it looks like a key, say
        return f"{text}<p>{_escape(f'The curve is not drawn: {problem}')}</p>"
    address = f"#/curve/{quote(run_dir.name, safe='')}"
    if any(point.label != label for point in points):
        address += f"?label={quote(label, safe='')}"
    opened = frame.page.replace("<html ", f'<html data-start="{address}" ', 1)
    return text + replace(frame, page=opened)._repr_html_()


def _escape(text: object) -> str:
    return html.escape(printable(str(text)))


def _blocks(blocks: Iterable[Block]) -> str:
    return "".join(render_block(block) for block in plain_blocks(blocks))


def render_block(block: dict[str, Any]) -> str:
    """Render a block of `plain_blocks` as HTML."""
    if "line" in block:
        return f"<p>{_escape(block['line'])}</p>"
    sides = ["right" if column["numeric"] else "left" for column in block["columns"]]
    rows = [[column["title"] for column in block["columns"]], *block["rows"], *block["totals"]]
    lines = []
    for i, row in enumerate(rows):
        tag = "td" if i else "th"
        cells = [
            f'<{tag} align="{side}">{_escape(cell)}</{tag}>'
            for side, cell in zip(sides, row, strict=True)
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


# --- Pictures -----------------------------------------------------------------------------------


def _make_scale(values: Sequence[float], start: float, end: float) -> Callable[[float], str]:
    """Map values to pixels, with some room at both ends."""
    low, high = min(values), max(values)
    pad = 0.08 * (high - low or 0.1)
    factor = (end - start) / (high - low + 2 * pad)
    return lambda value: f"{start + (value - low + pad) * factor:.1f}"


def _svg(height: int, parts: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif" font-size="12" '
        f'fill="currentColor">{"".join(parts)}</svg>'
    )


def _text(x: object, y: object, text: str, anchor: str = "end") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{_escape(text)}</text>'


def forest_svg(marks: Sequence[Mark]) -> str:
    """Draw intervals one below the other, with a line at 0."""
    ends = [end for _, _, around in marks if around for end in (around.low, around.high)]
    x = _make_scale([0.0, *(value for _, value, _ in marks), *ends], 160, WIDTH - 60)
    height = 24 * len(marks) + 12
    parts = [
        f'<line x1="{x(0)}" x2="{x(0)}" y1="4" y2="{height - 4}" stroke="currentColor" '
        'stroke-dasharray="4 3" opacity="0.5"/>'
    ]
    for i, (label, value, around) in enumerate(marks):
        y = 18 + 24 * i
        parts += [_text(150, y + 4, label[:22]), _text(WIDTH - 4, y + 4, number(value, sign=True))]
        if around is not None:
            parts.append(
                f'<line x1="{x(around.low)}" x2="{x(around.high)}" y1="{y}" y2="{y}" '
                f'stroke="{BLUE}" stroke-width="2"/>'
            )
        parts.append(f'<circle cx="{x(value)}" cy="{y}" r="4" fill="{BLUE}"/>')
    return _svg(height, parts)


# --- The viewer in a frame ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """The viewer with some runs in it, for a notebook to show."""

    page: str
    """The exported file."""
    height: int

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts" width="100%" height="{self.height}" '
            f'style="border:1px solid #8888" srcdoc="{html.escape(self.page)}"></iframe>'
        )


def view(*runs: EvalReport | str | Path, samples: str = "failures", height: int = 640) -> Frame:
    """Show runs in a notebook: all pages of `heldout view`, in a frame without a server.

    Args:
        runs: Reports, run directories, or names under outputs/evals.
        samples: Whose conversations are inside: "all", "failures", or a number as text.
        height: Of the frame, in pixels.

    Returns:
        What a notebook shows; `page` is the HTML file, as `heldout view --export` writes it.

    Raises:
        InvalidInput: There is no run, the page would be too large, or something in it looks like a
            key.
    """
    from heldout.store.runs import find_run
    from heldout.viewer.export import export_runs

    with TemporaryFolder("view") as folder:
        roots = []
        for i, run in enumerate(runs, 1):
            if isinstance(run, str | Path):
                roots.append(Path(run) if Path(run).is_dir() else find_run(run))
            elif run.path is not None and run.selection is None:
                roots.append(run.path)
            else:
                name = str(run.config.get("experiment_name") or f"report {i}")
                roots.append(Path(folder) / name.replace("/", "_"))
                run.save(roots[-1])
        return Frame(export_runs(roots, samples=samples).decode(), height)
