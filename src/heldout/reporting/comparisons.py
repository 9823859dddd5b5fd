"""Two runs compared, in tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from heldout._core.format import count, interval, list_some, number, p_value, percent
from heldout.analysis import Comparison, Side
from heldout.analysis.comparison import Difference
from heldout.reporting.blocks import Block, Cell, Column, Line, Report, Section, Table, code, name
from heldout.reporting.flips import FLIP_CHARACTERS, OF_REPEATS, Flip, build_flips, read_texts
from heldout.reporting.summaries import (
    describe_selection,
    describe_usage,
    in_order,
    label_order,
    label_text,
)
from heldout.stats import Interval, PairedDifference, SliceDifference
from heldout.store.report import EvalReport
from heldout.store.runs import describe_model

MARKDOWN_FLIPS = 10
"""Samples each way that Markdown lists by default; they are folded away."""
VERDICT_STYLES = {"b_better": "green", "a_better": "red", "inconclusive": "yellow"}
"""Of a metric, heldout does not know which way is better."""
SLICES_NAMED = 5
"""Slices without a comparison that are named."""


def build_comparison(
    comparison: Comparison,
    flips: int | None = None,
    *,
    markdown: bool = False,
    width: int = FLIP_CHARACTERS,
) -> Report:
    """Build what `heldout compare` prints; without `flips` Markdown alone lists samples."""
    sides = {"A": comparison.a, "B": comparison.b}
    rows = [
        ([code(reading or comparison.metric)], whole, whole.interval, whole.p_value)
        for reading, (whole, _) in _readings(comparison).items()
    ]
    blocks: list[Block] = [
        *(
            Line(f"{label}: {describe_selection(side.report)}", style="yellow")
            for label, side in sides.items()
            if side.report.selection is not None
        ),
        *(side_line(label, side) for label, side in sides.items()),
        pairing_line(comparison),
        _build_table(comparison, [Column("", wrap=True)], rows),
    ]
    overall, effect = comparison.overall, comparison.minimum_detectable
    if isinstance(overall, PairedDifference):
        wins = f"B wins {count(overall.wins, 'sample')}, loses {overall.losses}"
        text = f"{wins}, and ties {overall.ties}."
        if comparison.pass_threshold is not None:
            gained, lost = len(comparison.gained), len(comparison.lost)
            by = f"reward ≥ {comparison.pass_threshold:g}"
            text += f" Flips (by {by}): gained {gained}, lost {lost}."
        blocks.append(Line(text))
    detectable = "unknown, there is no spread"
    if effect is not None:
        detectable = f"{number(effect)} at 80% power and p < {1 - comparison.confidence:.2g}"
    blocks.append(Line(f"Minimum detectable effect: {detectable}."))
    if comparison.by:
        blocks += slice_blocks(comparison)
    blocks += [*flip_blocks(comparison, flips, markdown, width), *remark_lines(comparison)]
    style = f"bold {VERDICT_STYLES.get(comparison.verdict, '')}".rstrip()
    return Report(blocks, conclusion=verdict_text(comparison), style=style)


def interval_text(around: Interval | None) -> str:
    """Format an interval; a dash where there is none."""
    return "–" if around is None else interval(around.low, around.high)


def _build_table(
    comparison: Comparison,
    labels: Sequence[Column],
    rows: Iterable[tuple[Sequence[Cell], Difference, Interval | None, float | None]],
) -> Table:
    bounds = Column(f"{percent(comparison.confidence)} interval")
    cells = [
        [
            *label,
            number(difference.mean_a),
            number(difference.mean_b),
            number(difference.difference, sign=True),
            interval_text(around),
            p_value(p),
            _count_samples(difference),
        ]
        for label, difference, around, p in rows
    ]
    return Table([*labels, "A", "B", "B - A", bounds, "p", "samples"], cells)


def _count_samples(difference: Difference) -> str:
    if isinstance(difference, PairedDifference):
        return f"{difference.n}"
    return f"{difference.n_a}, {difference.n_b}"


def _readings(
    comparison: Comparison,
) -> dict[str, tuple[Difference, Sequence[SliceDifference]]]:
    """Return the difference and those of slices, without and with errored items."""
    scored = (comparison.overall, comparison.slices)
    if comparison.with_errors is None:
        return {"": scored}
    counted = (comparison.with_errors, comparison.slices_with_errors)
    return {comparison.scored_samples: scored, f"errored as {comparison.errors_as or 0:g}": counted}


def sort_slices(slices: Iterable[SliceDifference]) -> list[SliceDifference]:
    """Sort slices by their labels as people do: easy before hard, 2 before 10."""
    return sorted(slices, key=lambda part: label_order(part.label))


def slice_name(by: Iterable[str], label: Any) -> str:
    """Name a slice by its keys and values: level=easy, topic=–."""
    return ", ".join(f"{key}={label_text(value)}" for key, value in zip(by, label, strict=True))


def slice_count(comparison: Comparison) -> int:
    """Count the slices that are corrected for: those without numbers were looked at, too."""
    return len(comparison.slices) + len(comparison.slices_not_compared)


def slice_blocks(comparison: Comparison) -> list[Line | Table]:
    """Build the tables of slices, one per reading of errored items, and what to know of them."""
    keys = [Column(code(key), wrap=True) for key in comparison.by]
    blocks: list[Line | Table] = []
    for reading, (_, slices) in _readings(comparison).items():
        if reading:
            blocks.append(Line(f"Slices, {reading}:"))
        rows = []
        labels: list[Any] = [part.label for part in slices]
        of_key = [[label[i] for label in labels] for i in range(len(comparison.by))]
        for part in sort_slices(slices):
            label: Any = part.label
            values = [code(label_text(v, others)) for v, others in zip(label, of_key, strict=True)]
            rows.append(
                (values, part.difference, part.simultaneous_interval, part.adjusted_p_value)
            )
        blocks.append(_build_table(comparison, keys, rows))
    total = count(slice_count(comparison), "slice")
    blocks.append(Line(f"{total}; p adjusted by Holm, intervals simultaneous."))
    if missing := in_order(comparison.slices_not_compared):
        among = f"Not among those {comparison.scored_samples}"
        where = among if comparison.slices_with_errors else "Not compared"
        names = [slice_name(comparison.by, label) for label in missing]
        listed = list_some(names, SLICES_NAMED)
        blocks.append(Line(f"{where}, since no sample has a value on both sides: {listed}."))
    return blocks


def flip_blocks(
    comparison: Comparison, flips: int | None, markdown: bool, width: int
) -> list[Block]:
    """List the first samples that flipped each way; in a terminal only those asked for."""
    if flips is not None and not comparison.paired:
        return [Line("There are no flips to list: the samples are not paired.")]
    listed = list_flips(comparison, flips or (MARKDOWN_FLIPS if markdown else 0))
    if not listed:
        return []
    title = f"Flips: gained {len(comparison.gained)}, lost {len(comparison.lost)}"
    lines = build_flips(listed, "A", "B", width)
    if any(side.items > side.samples for side in (comparison.a, comparison.b)):
        lines.append(Line(OF_REPEATS, style="dim"))
    return [Section(title, lines)]


def list_flips(comparison: Comparison, most: int, *, with_texts: bool = True) -> list[Flip]:
    """List the first samples that flipped each way: those gained, then those lost."""
    changes = [
        *(("gained", change) for change in comparison.gained[:most]),
        *(("lost", change) for change in comparison.lost[:most]),
    ]
    ids = {change.id for _, change in changes} if with_texts else set()
    of_a, of_b = (read_texts(side.report, ids) for side in (comparison.a, comparison.b))
    return [
        Flip(kind, change.id, (change.a, change.b), (of_a.get(change.id), of_b.get(change.id)))
        for kind, change in changes
    ]


def side_line(label: str, side: Side) -> Line:
    """Name a run, its model, how much there is of it, and what it took."""
    counts = f"{count(side.samples, 'sample')}, {count(side.items, 'item')}"
    tokens = describe_usage(side.report)
    usage = f"; {tokens}" if tokens else ""
    cached = f", {side.cached} from the response cache" if side.cached else ""
    run = name_with_model(side.name, side.report)
    return Line(f"{label}: ", *run, f"; {counts}, {side.errored} errored{cached}{usage}")


def name_with_model(run: str, report: EvalReport) -> list[Cell]:
    """Name a run, and its model where that is known."""
    model = describe_model(report.config)
    return [name(run)] if model is None else [name(run), " (model: ", name(model), ")"]


def pairing_line(comparison: Comparison) -> Line:
    """Say what is compared, by how many samples, and why not by all."""
    a, b, overall = comparison.a, comparison.b, comparison.overall
    if isinstance(overall, PairedDifference):
        text, clusters = f"paired by sample: {count(overall.n, 'sample')}", f"{overall.clusters}"
        if a.left_out or b.left_out:
            text = (
                f"paired by sample: {overall.n} of {count(a.samples, 'sample')} of A and "
                f"{b.samples} of B; the others have no value on one side"
            )
    else:
        text = (
            f"not paired: {overall.n_a} samples of A with {overall.n_b} of B, so what makes "
            "samples hard does not cancel"
        )
        clusters = f"{overall.clusters_a} and {overall.clusters_b}"
    parts: list[Cell] = [name(comparison.metric), f", {text}"]
    if comparison.cluster is not None:
        parts += [f", in {clusters} clusters by ", name(comparison.cluster)]
    return Line(*parts)


def verdict_text(comparison: Comparison, *, with_names: bool = False) -> str:
    """Return the verdict in one sentence; none says "no difference", which cannot be shown.

    Args:
        comparison: The comparison.
        with_names: Name the runs; otherwise they are A and B, as above the tables.
    """
    words = {"b_better": "better", "a_better": "worse", "b_higher": "higher", "a_higher": "lower"}
    overall, with_errors = comparison.overall, comparison.with_errors
    around = overall.interval
    difference = f"{number(overall.difference, sign=True)} ({interval_text(around)})"
    if comparison.verdict != "inconclusive":
        a, b = comparison.a.name, comparison.b.name
        word = words[comparison.verdict]
        said = f"{b} is {word} than {a}" if with_names else f"B is {word}"
        return f"{said}: {difference}."
    if around is None:
        return "Inconclusive: there is no spread to judge by."
    if around.low <= 0 <= around.high or with_errors is None:
        bounds = f"{number(around.low)} and {number(around.high)}"
        return f"Inconclusive: the difference is between {bounds}."
    other = f"{number(with_errors.difference, sign=True)} ({interval_text(with_errors.interval)})"
    return (
        f"Inconclusive: it is {difference} of what was scored, but {other} with errored items as "
        f"{comparison.errors_as or 0:g}."
    )


def remark_lines(comparison: Comparison) -> list[Line]:
    """List what was allowed to differ, and what else limits the comparison."""
    allowed = [
        Line(f"allowed to differ: {mismatch.kind}: {mismatch.text}", style="yellow")
        for mismatch in comparison.mismatches
    ]
    return [*allowed, *(Line(f"note: {note}") for note in notes(comparison))]


def nothing_new(run: str) -> str:
    """Say that a run is no new measurement."""
    return f"{run} measured nothing new: all of its model turns came from the response cache"


def notes(comparison: Comparison) -> list[str]:
    """Say what else differs, or limits what a comparison says."""
    a, b = comparison.a, comparison.b
    lines = []
    if comparison.changed_settings:
        changes = [
            f"{setting} (A: {value_a!r:.60}, B: {value_b!r:.60})"
            for setting, (value_a, value_b) in comparison.changed_settings.items()
        ]
        lines.append(f"settings differ, too: {'; '.join(changes)}")
    if comparison.model_versions is not None:
        model, *versions = comparison.model_versions
        of_a, of_b = (version or "unknown" for version in versions)
        lines.append(
            f"{model} is not the same model in both: version {of_a} in {a.name}, {of_b} in {b.name}"
        )
    if comparison.same_answers:
        change = comparison.scorer_change or "score_fn is the same"
        lines.append(f"the same answers, scored twice: a difference is the scorer's ({change})")
    lines += [nothing_new(side.name) for side in (a, b) if side.measured_nothing]
    if comparison.errors_as:
        end = "highest" if comparison.lower_is_better else "lowest"
        is_bound = comparison.lower_is_better and comparison.errors_as == 1
        why = "the worst there is" if is_bound else f"the {end} of both runs"
        lines.append(f"errored items, where they count, count as {comparison.errors_as:g}: {why}")
    if comparison.unknown_scorers:
        verb = "were" if len(comparison.unknown_scorers) > 1 else "was"
        runs = " and ".join(comparison.unknown_scorers)
        lines.append(f"how {runs} {verb} scored is unknown: it may differ")
    thresholds = a.report.pass_threshold, b.report.pass_threshold
    if comparison.pass_threshold == thresholds[0] != thresholds[1]:
        lines.append(
            f"pass_threshold is {thresholds[0]} and {thresholds[1]}; flips are by the first"
        )
    if comparison.duplicates:
        lines.append(
            "samples of equal input and ground truth are one cluster; if they are not copies, "
            "--cluster sample_id takes each for itself"
        )
    if comparison.unseeded:
        runs = " and ".join(comparison.unseeded)
        lines.append(
            f"not paired: the episodes of {runs} had no seeds, so they differ from run to run"
        )
    elif comparison.shared_samples == 0:
        lines.append("not paired: no sample is in both; a paired comparison is far more certain")
    return lines
