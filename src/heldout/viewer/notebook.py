"""Reports, comparisons and curves in notebooks: tables and pictures without script.

`_repr_html_` of `EvalReport`, `Comparison` and `PeriodicEval` is made here: the tables and
sentences of the command line and a small SVG, which also show where a notebook is not trusted.
`heldout.view` gives the whole viewer in a sandboxed frame, with no port and no server.
"""

from __future__ import annotations

import html
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heldout._format import number, printable
from heldout.viewer.pages import plain_blocks

if TYPE_CHECKING:
    from heldout.analysis import Comparison
    from heldout.store.report import EvalReport
    from heldout.training.curve import CurvePoint

WIDTH = 640
BLUE = "#0072b2"

Mark = tuple[str, float | None, float | None, float | None]
"""A label, a value, and the two ends of its interval."""


def report_html(report: EvalReport) -> str:
    """Render a report as `heldout show` prints it.

    Args:
        report: The report, on disk or in memory.

    Returns:
        HTML without script.
    """
    from heldout.cli.show import build_report

    return _blocks(plain_blocks(build_report(report).blocks))


def comparison_html(comparison: Comparison) -> str:
    """Render a comparison as `heldout compare` prints it, with its differences as a picture.

    Args:
        comparison: The comparison.

    Returns:
        HTML without script.
    """
    from heldout.cli.compare import build_comparison, slice_name, sort_slices

    report = build_comparison(comparison)
    marks: list[Mark] = []
    for part in sort_slices(comparison.slices):
        around = part.simultaneous_interval
        ends = (around.low, around.high) if around else (None, None)
        marks.append((slice_name(comparison.by, part.label), part.difference.difference, *ends))
    readings = {"errored counted": comparison.with_errors, "B - A": comparison.overall}
    for label, reading in readings.items():
        if reading is not None:
            around = reading.interval
            ends = (around.low, around.high) if around else (None, None)
            marks.append((label, reading.difference, *ends))
    sentence = f"<p><b>{_escape(report.conclusion)}</b></p>"
    return sentence + forest_svg(marks) + _blocks(plain_blocks(report.blocks))


def curve_html(points: Sequence[CurvePoint]) -> str:
    """Render the curve of a training run, with its verdict.

    Args:
        points: The points of one label, by step.

    Returns:
        HTML without script.
    """
    from heldout.cli._curves import build_curve_table, judge_curve

    judged, lines = judge_curve(points, {})
    table = build_curve_table(judged, 10_000).table
    return _blocks(plain_blocks(lines)) + curve_svg(points) + _blocks(plain_blocks([table]))


def _escape(text: object) -> str:
    return html.escape(printable(str(text)))


def _blocks(blocks: Iterable[dict[str, Any]]) -> str:
    return "".join(_block(block) for block in blocks)


def _block(block: dict[str, Any]) -> str:
    if "line" in block:
        return f"<p>{_escape(block['line'])}</p>"
    sides = ["right" if column["numeric"] else "left" for column in block["columns"]]
    rows = [[column["title"] for column in block["columns"]], *block["rows"], *block["totals"]]
    lines = []
    for place, row in enumerate(rows):
        tag = "td" if place else "th"
        cells = [
            f'<{tag} align="{side}">{_escape(cell)}</{tag}>'
            for side, cell in zip(sides, row, strict=True)
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>"


# --- Pictures -----------------------------------------------------------------------------------


def _scale(values: Sequence[float], start: float, end: float) -> tuple[float, float, float]:
    """Give the least value, a factor and an offset that map values between two pixels."""
    low, high = min(values), max(values)
    pad = 0.08 * (high - low or 0.1)
    low, high = low - pad, high + pad
    return low, (end - start) / (high - low), start


def _svg(height: int, parts: Iterable[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif" font-size="12" '
        f'fill="currentColor">{"".join(parts)}</svg>'
    )


def forest_svg(marks: Sequence[Mark]) -> str:
    """Draw intervals one below the other, with a line at 0.

    Args:
        marks: What to draw.

    Returns:
        SVG.
    """
    values = [value for _, *numbers in marks for value in numbers if value is not None]
    low, factor, start = _scale([*values, 0.0], 160, WIDTH - 60)

    def x(value: float) -> str:
        return f"{start + (value - low) * factor:.1f}"

    height = 24 * len(marks) + 12
    parts = [
        f'<line x1="{x(0)}" x2="{x(0)}" y1="4" y2="{height - 4}" stroke="currentColor" '
        'stroke-dasharray="4 3" opacity="0.5"/>'
    ]
    for place, (label, value, left, right) in enumerate(marks):
        y = 18 + 24 * place
        parts.append(f'<text x="150" y="{y + 4}" text-anchor="end">{_escape(label[:22])}</text>')
        if left is not None and right is not None:
            parts.append(
                f'<line x1="{x(left)}" x2="{x(right)}" y1="{y}" y2="{y}" stroke="{BLUE}" '
                'stroke-width="2"/>'
            )
        if value is not None:
            parts.append(f'<circle cx="{x(value)}" cy="{y}" r="4" fill="{BLUE}"/>')
            parts.append(f'<text x="{WIDTH - 4}" y="{y + 4}" text-anchor="end">')
            parts.append(f"{number(value, sign=True)}</text>")
    return _svg(height, parts)


def curve_svg(points: Sequence[CurvePoint]) -> str:
    """Draw a curve with the 95% interval of each point.

    Args:
        points: The points of one label, by step.

    Returns:
        SVG; "" where no point has a reward.
    """
    known = [(p.step, p.reward, p.ci) for p in points if p.reward is not None]
    if not known:
        return ""
    heights = [value for _, reward, ci in known for value in (reward, *(ci or ()))]
    first, across, left = _scale([float(step) for step, _, _ in known], 56, WIDTH - 10)
    low, up, bottom = _scale(heights, 190, 10)

    def place(step: int, value: float) -> str:
        return f"{left + (step - first) * across:.1f},{bottom + (value - low) * up:.1f}"

    parts = []
    for value in (min(heights), max(heights)):
        y = bottom + (value - low) * up
        parts.append(f'<text x="48" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')
    for step in dict.fromkeys((known[0][0], known[-1][0])):
        x = left + (step - first) * across
        parts.append(f'<text x="{x:.1f}" y="208" text-anchor="middle">{step}</text>')
    for step, _, ci in known:
        if ci is not None:
            ends = " ".join(place(step, value) for value in ci)
            parts.append(f'<polyline points="{ends}" stroke="{BLUE}" stroke-width="2"/>')
    line = " ".join(place(step, reward) for step, reward, _ in known)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{BLUE}" opacity="0.7"/>')
    for step, reward, _ in known:
        across_at, up_at = place(step, reward).split(",")
        parts.append(f'<circle cx="{across_at}" cy="{up_at}" r="3" fill="{BLUE}"/>')
    return _svg(216, parts)


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

    with tempfile.TemporaryDirectory(prefix="heldout-view-") as folder:
        roots = []
        for place, run in enumerate(runs):
            if isinstance(run, str | Path):
                roots.append(Path(run) if Path(run).is_dir() else find_run(run))
            elif run.path is not None and run.selection is None:
                roots.append(run.path)
            else:
                name = str(run.config.get("experiment_name") or f"report {place + 1}")
                roots.append(Path(folder) / name.replace("/", "_"))
                run.save(roots[-1])
        return Frame(export_runs(roots, samples=samples).decode(), height)
