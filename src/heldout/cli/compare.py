"""`heldout compare A B`: whether B is better than A, and how sure that is.

A report, not a judgement: it exits with 0 whatever the verdict. `heldout gate` passes and fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from heldout._format import count, interval, list_some, number, p_value, percent, printable
from heldout._plotting import format_of
from heldout.analysis import Comparison, Side, compare
from heldout.analysis.comparison import Difference
from heldout.cli._load import describe_selection, load_report, read_texts, select_results
from heldout.cli._options import Command, format_options
from heldout.cli._tables import (
    Block,
    Cell,
    Column,
    Flip,
    Line,
    Report,
    Section,
    Table,
    build_flips,
    code,
    name,
    pick,
    print_json,
    print_report,
)
from heldout.cli.show import describe_usage, in_order, label_order, usage_as_dict
from heldout.errors import InvalidInput, NotComparable
from heldout.stats import Interval, PairedDifference, SliceDifference
from heldout.store.report import EvalReport
from heldout.store.run_dir import replace_file
from heldout.store.runs import describe_model

MARKDOWN_FLIPS = 10
"""Samples each way that Markdown lists by default; they are folded away."""
JSON_FLIPS = 100
"""Samples each way that JSON lists by default, next to the number of all."""
VERDICT_STYLES = {"b_better": "green", "a_better": "red", "inconclusive": "yellow"}
"""Of a metric, heldout does not know which way is better."""
SLICES_NAMED = 5
"""Slices without a comparison that are named."""


def comparison_options(command: Command) -> Command:
    """Add the options that `compare` and `gate` share."""
    options = (
        click.option(
            "--metric",
            default="reward",
            show_default=True,
            help="reward, passed, pass@K, pass^K, or the name of a metric.",
        ),
        click.option(
            "--cluster",
            metavar="KEY",
            help="Cluster standard errors by this key, such as sample_id.",
        ),
        click.option(
            "--pass-threshold",
            type=float,
            metavar="REWARD",
            help="The reward that passes.  [default: that of the runs]",
        ),
        click.option("--confidence", default=0.95, show_default=True, help="Of the intervals."),
        click.option(
            "--allow",
            multiple=True,
            metavar="KIND",
            help="What may differ: samples, scorer, environment, threshold or incomplete; for gate "
            "also cached: model turns that all came from the response cache.",
        ),
        click.option(
            "--flips",
            type=click.IntRange(1),
            metavar="N",
            help="List N samples gained, and N lost, with question, target and both answers.",
        ),
        format_options,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command("compare")
@click.argument("a")
@click.argument("b", required=False)
@click.option("--baseline", metavar="A", help="Run A, where only B is an argument.")
@click.option(
    "--by", multiple=True, metavar="KEY", help="Metadata key to slice by; several combine."
)
@comparison_options
@click.option("--where", metavar="SQL", help="Only results that meet a condition; see heldout sql.")
@click.option("--unpaired", is_flag=True, help="Do not pair the samples that both have.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Plot it, too; .png, .svg or .pdf.",
)
def command(
    a: str,
    b: str | None,
    baseline: str | None,
    where: str | None,
    unpaired: bool,
    flips: int | None,
    format: str | None,
    plot: Path | None,
    **settings: Any,
) -> None:
    """Compare run B with run A by the samples that both have: is B better?

    A run is a directory, a name under outputs/evals (the latest run of that name; NAME@3 the
    third), or an eval of a curve: RUN@STEP, RUN@last (RUN@LABEL:STEP, where a run has curves of
    several labels). `heldout compare B --baseline A` is the same.

    What is not comparable is refused unless --allow names it.

    Exits with 0 whatever the verdict; `heldout gate` is the command that passes or fails.
    """
    if (b is None) == (baseline is None):
        raise click.UsageError("which two runs? heldout compare A B, or compare B --baseline A")
    names = (a, b) if b is not None else (str(baseline), a)
    image = None if plot is None else format_of(plot)  # refused before anything is read
    reports = [select_results(load_report(run), where) for run in names]
    with options_in_errors():
        comparison = compare(*reports, paired=not unpaired, **settings)
    if plot is not None and image is not None:
        from heldout.analysis.plot import plot_comparison

        order = [part.label for part in sort_slices(comparison.slices)]
        replace_file(plot, plot_comparison(comparison, order=order, format=image))
        click.echo(printable(f"Wrote {plot}."), err=True)
    if format == "json":
        print_json(comparison_json(comparison, flips), "compare")
    else:
        markdown = format == "markdown"
        print_report(build_comparison(comparison, flips, markdown=markdown), markdown=markdown)


@contextmanager
def options_in_errors() -> Iterator[None]:
    """Speak of options where an analysis refuses its parameters."""
    try:
        yield
    except NotComparable as refusal:
        options = " ".join(f"--allow {kind}" for kind in refusal.kinds)
        raise NotComparable(f"{refusal} ({options})", refusal.kinds) from None
    except InvalidInput as problem:
        problem.parameters = tuple(f"--{name.replace('_', '-')}" for name in problem.parameters)
        raise


def build_comparison(
    comparison: Comparison, flips: int | None = None, *, markdown: bool = False
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
    blocks += [*flip_blocks(comparison, flips, markdown=markdown), *remark_lines(comparison)]
    style = f"bold {VERDICT_STYLES.get(comparison.verdict, '')}".rstrip()
    return Report(blocks, conclusion=_verdict_text(comparison), style=style)


# --- Tables -------------------------------------------------------------------------------------


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
    return ", ".join(f"{key}={_value_text(value)}" for key, value in zip(by, label, strict=True))


def _value_text(value: Any) -> str:
    return "–" if value is None else str(value)


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
        for part in sort_slices(slices):
            label: Any = part.label
            values = [code(_value_text(value)) for value in label]
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


# --- Flips --------------------------------------------------------------------------------------


def flip_blocks(comparison: Comparison, flips: int | None, *, markdown: bool) -> list[Block]:
    """List the first samples that flipped each way; in a terminal only those asked for."""
    if flips is not None and not comparison.paired:
        return [Line("There are no flips to list: the samples are not paired.")]
    listed = _list_flips(comparison, flips or (MARKDOWN_FLIPS if markdown else 0))
    if not listed:
        return []
    title = f"Flips: gained {len(comparison.gained)}, lost {len(comparison.lost)}"
    return [Section(title, build_flips(listed, "A", "B"))]


def _list_flips(comparison: Comparison, most: int, *, with_texts: bool = True) -> list[Flip]:
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


# --- Sentences ----------------------------------------------------------------------------------


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


def _verdict_text(comparison: Comparison) -> str:
    """The verdict in one sentence; none says "no difference", which cannot be shown."""
    words = {"b_better": "better", "a_better": "worse", "b_higher": "higher", "a_higher": "lower"}
    overall, with_errors = comparison.overall, comparison.with_errors
    around = overall.interval
    difference = f"{number(overall.difference, sign=True)} ({interval_text(around)})"
    if comparison.verdict != "inconclusive":
        return f"B is {words[comparison.verdict]}: {difference}."
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
            f"{setting} is {value_a!r:.60} and {value_b!r:.60}"
            for setting, (value_a, value_b) in comparison.changed_settings.items()
        ]
        lines.append(f"not the policy alone differs: {'; '.join(changes)}")
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


# --- JSON ---------------------------------------------------------------------------------------


def interval_json(around: Interval | None, prefix: str = "") -> dict[str, float | None]:
    """Return the two ends of an interval as JSON has them."""
    low, high = (around.low, around.high) if around else (None, None)
    return {f"{prefix}ci_low": low, f"{prefix}ci_high": high}


def comparison_json(comparison: Comparison, flips: int | None) -> dict[str, Any]:
    """Return a comparison as JSON has it, with the first flips each way and the number of all."""
    by = comparison.by
    listed = _list_flips(comparison, flips or JSON_FLIPS, with_texts=flips is not None)
    selections = [side.report.selection for side in (comparison.a, comparison.b)]
    picked = [selection for selection in selections if selection is not None]
    condition = {"where": picked[0].condition, "n_of": [s.of for s in picked]} if picked else {}
    return {
        **pick(comparison, "verdict", "metric", "pass_threshold", "confidence", "paired"),
        **pick(comparison, "errors_as", "minimum_detectable"),
        "by": list(by),
        "a": side_json(comparison.a),
        "b": side_json(comparison.b),
        "overall": _difference_json(comparison.overall),
        "with_errors": comparison.with_errors and _difference_json(comparison.with_errors),
        "slices": [_slice_json(by, part) for part in comparison.slices],
        "slices_with_errors": [_slice_json(by, part) for part in comparison.slices_with_errors],
        "slices_not_compared": [
            dict(zip(by, label, strict=True)) for label in comparison.slices_not_compared
        ],
        "gained": [flip.as_dict("a", "b") for flip in listed if flip.kind == "gained"],
        "lost": [flip.as_dict("a", "b") for flip in listed if flip.kind == "lost"],
        "mismatches": [asdict(mismatch) for mismatch in comparison.mismatches],
        "notes": notes(comparison),
        "gained_total": len(comparison.gained),
        "lost_total": len(comparison.lost),
        **condition,
    }


def side_json(side: Side) -> dict[str, Any]:
    """Return a run of a comparison as JSON has it."""
    return {
        "path": None if side.path is None else str(side.path),
        **pick(side, "name", "samples", "items", "errored", "left_out"),
        **pick(side, "cached", "measured_nothing"),
        **{key: side.report.summary[key] for key in ("mean", "ci_low", "ci_high")},
        "usage": usage_as_dict(side.report),
    }


def _difference_json(difference: Difference) -> dict[str, Any]:
    hidden = {"evidence", "sides", "interval", "confidence"}
    names = [field.name for field in fields(difference) if field.name not in hidden]
    return pick(difference, *names) | interval_json(difference.interval)


def _slice_json(by: Sequence[str], part: SliceDifference) -> dict[str, Any]:
    label: Any = part.label
    return {
        "slice": dict(zip(by, label, strict=True)),
        **_difference_json(part.difference),
        "adjusted_p_value": part.adjusted_p_value,
        **interval_json(part.simultaneous_interval, "simultaneous_"),
    }
