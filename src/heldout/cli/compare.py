"""`heldout compare A B`: whether B is better than A, and how sure that is.

A report, not a judgement: it exits with 0 whatever the verdict. `heldout gate` passes and fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from heldout._format import count, interval, number, p_value, percent, printable
from heldout.cli._load import read_texts
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
    print_json,
    print_report,
)
from heldout.cli.show import describe_usage, in_order, usage_as_dict
from heldout.store.runs import describe_model

if TYPE_CHECKING:
    from heldout.analysis import Comparison, Side
    from heldout.analysis.comparison import Difference
    from heldout.stats import Interval, SliceDifference

Command = TypeVar("Command", bound=Callable[..., Any])

MARKDOWN_FLIPS = 10
"""Samples each way that Markdown lists by default; they are folded away."""
JSON_FLIPS = 100
"""Samples each way that JSON lists by default, next to the number of all."""
VERDICT_STYLES = {"b_better": "green", "a_better": "red", "inconclusive": "yellow"}
"""Of a metric, heldout does not know which way is better."""
SLICES_NAMED = 5
"""Slices without a comparison that are named."""


def measure_options(command: Command) -> Command:
    """Add the options that say what is compared, and with what confidence."""
    options = (
        click.option(
            "--metric",
            default="reward",
            show_default=True,
            help="reward, passed, pass@K, pass^K, or the name of a metric.",
        ),
        click.option(
            "--cluster", metavar="KEY", help="Cluster standard errors by this metadata key."
        ),
        click.option(
            "--pass-threshold",
            type=float,
            metavar="REWARD",
            help="The reward that passes.  [default: that of the runs]",
        ),
        click.option(
            "--confidence",
            type=float,
            default=0.95,
            show_default=True,
            help="Confidence level of the intervals.",
        ),
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
@measure_options
@click.option("--allow", multiple=True, metavar="KIND", help="What may differ; see above.")
@click.option("--where", metavar="SQL", help="Only results that meet a condition; see heldout sql.")
@click.option("--unpaired", is_flag=True, help="Do not pair the samples that both have.")
@click.option(
    "--flips",
    type=click.IntRange(1),
    metavar="N",
    help="List N samples gained, and N lost, with question, target and both answers.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown for GitHub.")
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
    by: tuple[str, ...],
    metric: str,
    cluster: str | None,
    allow: tuple[str, ...],
    where: str | None,
    unpaired: bool,
    flips: int | None,
    pass_threshold: float | None,
    confidence: float,
    as_json: bool,
    as_markdown: bool,
    plot: Path | None,
) -> None:
    """Compare run B with run A by the samples that both have: is B better?

    A run is a directory, a name under outputs/evals (the latest run of that name; NAME@3 the
    third), or an eval of a curve: RUN@STEP, RUN@last (RUN@LABEL:STEP, where a run has curves of
    several labels). `heldout compare B --baseline A` is the same.

    What is not comparable is refused unless --allow names it: samples, scorer, environment,
    threshold or incomplete.

    Exits with 0 whatever the verdict; `heldout gate` is the command that passes or fails.
    """
    from heldout._plotting import format_of
    from heldout.analysis import compare
    from heldout.cli._load import describe_selection, load_report, select_results

    refuse_json_and_markdown(as_json, as_markdown)
    if (b is None) == (baseline is None):
        raise click.UsageError("which two runs? heldout compare A B, or compare B --baseline A")
    a, b = (a, b) if b is not None else (str(baseline), a)
    format = None if plot is None else format_of(plot)  # refused before anything is read
    reports = [select_results(load_report(name), where, "compare") for name in (a, b)]
    with name_options_in_errors(allow, by, "--by"):
        comparison = compare(
            *reports,
            by=by,
            metric=metric,
            cluster=cluster,
            allow=allow,
            paired=not unpaired,
            pass_threshold=pass_threshold,
            confidence=confidence,
        )
    if plot is not None and format is not None:
        from heldout.analysis.plot import plot_comparison
        from heldout.store.run_dir import replace_file

        order = [part.label for part in sort_slices(comparison.slices)]
        replace_file(plot, plot_comparison(comparison, order=order, format=format))
        click.echo(printable(f"Wrote {plot}."), err=True)
    if as_json:
        selected = [report.summary["n_of"] for report in reports if report.selection]
        condition = {"where": where, "n_of": selected} if selected else {}
        print_json(comparison_json(comparison, flips) | condition)
    else:
        report = build_comparison(comparison, flips, markdown=as_markdown)
        lines = [
            Line(f"{side}: {describe_selection(picked)}", style="yellow")
            for side, picked in zip("AB", reports, strict=True)
            if picked.selection is not None
        ]
        report = replace(report, blocks=[*lines, *report.blocks])
        print_report(report, markdown=as_markdown)


def refuse_json_and_markdown(as_json: bool, as_markdown: bool) -> None:
    """Raise a usage error where both formats are asked for."""
    if as_json and as_markdown:
        raise click.UsageError("--json or --markdown, not both")


@contextmanager
def name_options_in_errors(
    allow: Sequence[str], keys: Sequence[str] = (), option: str = "--by"
) -> Iterator[None]:
    """Name the option to use in the errors of an analysis; `option` is the one of `keys`."""
    from heldout.errors import HeldoutError, InvalidInput, NotComparable

    try:
        yield
    except NotComparable as refusal:
        options = " ".join(f"--allow {kind}" for kind in refusal.kinds)
        raise NotComparable(f"{refusal} ({options})", refusal.kinds) from None
    except HeldoutError as problem:
        for values, flag, noun in ((allow, "--allow", "kind"), (keys, option, "key")):
            if any("," in value and repr(value) in str(problem) for value in values):
                raise InvalidInput(f"{problem}; give {flag} once for each {noun}") from None
        raise


def build_comparison(
    comparison: Comparison, flips: int | None = None, *, markdown: bool = False
) -> Report:
    """Build what `heldout compare` prints.

    Args:
        comparison: The comparison.
        flips: Samples that flipped to list each way; None lists some in Markdown alone.
        markdown: Whether it is for Markdown.

    Returns:
        The report in rows.
    """
    blocks: list[Block] = [
        side_line("A", comparison.a),
        side_line("B", comparison.b),
        pairing_line(comparison),
        _overall_table(comparison),
        *_wins_lines(comparison),
        Line(_detectable_text(comparison)),
    ]
    if comparison.by:
        blocks += slice_blocks(comparison)
    blocks += [*flip_blocks(comparison, flips, markdown=markdown), *remark_lines(comparison)]
    style = f"bold {VERDICT_STYLES.get(comparison.verdict, '')}".rstrip()
    return Report(blocks, conclusion=_verdict_text(comparison), style=style)


# --- Numbers ------------------------------------------------------------------------------------


def interval_text(around: Interval | None) -> str:
    """Format an interval; a dash where there is none."""
    return "–" if around is None else interval(around.low, around.high)


def _number_columns(comparison: Comparison) -> list[Column]:
    return [
        *(Column(heading, "right") for heading in ("A", "B", "B - A")),
        Column(f"{percent(comparison.confidence)} interval"),
        *(Column(heading, "right") for heading in ("p", "samples")),
    ]


def _number_cells(
    difference: Difference, around: Interval | None, p: float | None
) -> tuple[Cell, ...]:
    return (
        number(difference.mean_a),
        number(difference.mean_b),
        number(difference.difference, sign=True),
        interval_text(around),
        p_value(p),
        samples_text(difference),
    )


def samples_text(difference: Difference) -> str:
    """Format the samples of a difference: one number of pairs, or one of each run."""
    from heldout.stats import PairedDifference

    if isinstance(difference, PairedDifference):
        return f"{difference.n}"
    return f"{difference.n_a}, {difference.n_b}"


def _overall_table(comparison: Comparison) -> Table:
    readings = [(comparison.metric, comparison.overall)]
    if comparison.with_errors is not None:
        readings = [
            ("scored only", comparison.overall),
            (_errors_counted_as(comparison), comparison.with_errors),
        ]
    rows: list[tuple[Cell, ...]] = [
        (code(label), *_number_cells(difference, difference.interval, difference.p_value))
        for label, difference in readings
    ]
    return Table([Column("", wrap=True), *_number_columns(comparison)], rows)


def _errors_counted_as(comparison: Comparison) -> str:
    return f"errored as {comparison.errors_as or 0:g}"


# --- Slices -------------------------------------------------------------------------------------


def sort_slices(slices: Iterable[SliceDifference]) -> list[SliceDifference]:
    """Sort slices by their labels as people do: easy before hard, 2 before 10."""
    by_label: dict[Any, SliceDifference] = {part.label: part for part in slices}
    return [by_label[label] for label in in_order(by_label)]


def slice_name(by: Sequence[str], label: Any) -> str:
    """Name a slice by its keys and values: level=easy, topic=–."""
    return ", ".join(f"{key}={_value_text(value)}" for key, value in zip(by, label, strict=True))


def _value_text(value: Any) -> str:
    return "–" if value is None else str(value)


def slice_count(comparison: Comparison) -> int:
    """Count the slices that are corrected for: those without numbers were looked at, too."""
    return len(comparison.slices) + len(comparison.slices_not_compared)


def slice_blocks(comparison: Comparison) -> list[Line | Table]:
    """Build the tables of slices, one per reading of errored items, and what to know of them."""
    readings = [("", sort_slices(comparison.slices))]
    if comparison.slices_with_errors:
        readings = [
            ("scored only", readings[0][1]),
            (_errors_counted_as(comparison), sort_slices(comparison.slices_with_errors)),
        ]
    columns = [
        *(Column(code(key), wrap=True) for key in comparison.by),
        *_number_columns(comparison),
    ]
    blocks: list[Line | Table] = []
    for reading, slices in readings:
        if reading:
            blocks.append(Line(f"Slices, {reading}:"))
        rows: list[tuple[Cell, ...]] = []
        for part in slices:
            label: Any = part.label
            numbers = _number_cells(
                part.difference, part.simultaneous_interval, part.adjusted_p_value
            )
            rows.append((*(code(_value_text(value)) for value in label), *numbers))
        blocks.append(Table(columns, rows))
    shown = [part for _, slices in readings for part in slices]
    return [*blocks, *map(Line, _slice_notes(comparison, shown))]


def _slice_notes(comparison: Comparison, slices: Sequence[SliceDifference]) -> list[str]:
    total = slice_count(comparison)
    lines = [f"{total} slices; p adjusted by Holm, intervals simultaneous."]
    if total == 1:
        lines = ["1 slice, so there is nothing to correct for."]
    alpha = 1 - comparison.confidence
    if any(_differs_by_p_alone(part, alpha) for part in slices):
        lines.append(
            f"A slice can have p below {alpha:.3g} and 0 in its interval: Holm's test is sharper "
            "than simultaneous intervals can be."
        )
    missing = in_order(comparison.slices_not_compared)
    if missing:
        where = "Not among those scored only" if comparison.slices_with_errors else "Not compared"
        names = [slice_name(comparison.by, label) for label in missing[:SLICES_NAMED]]
        if len(missing) > SLICES_NAMED:
            names.append(f"{len(missing) - SLICES_NAMED} more")
        lines.append(f"{where}, since no sample has a value on both sides: {'; '.join(names)}.")
    return lines


def _differs_by_p_alone(part: SliceDifference, alpha: float) -> bool:
    p, around = part.adjusted_p_value, part.simultaneous_interval
    return p is not None and around is not None and p < alpha and around.low <= 0 <= around.high


# --- Flips --------------------------------------------------------------------------------------


def flip_blocks(comparison: Comparison, flips: int | None, *, markdown: bool) -> list[Block]:
    """List the first samples that flipped each way; in a terminal only those asked for."""
    if flips is not None and not comparison.paired:
        return [Line("There are no flips to list: the samples are not paired.")]
    shown = flips or (MARKDOWN_FLIPS if markdown else 0)
    listed = list_flips(comparison, shown)
    if not listed:
        return []
    title = f"Flips: gained {len(comparison.gained)}, lost {len(comparison.lost)}"
    return [Section(title, build_flips(listed, "A", "B", markdown=markdown))]


def list_flips(comparison: Comparison, most: int, *, texts: bool = True) -> list[Flip]:
    """List the first samples that flipped each way.

    Args:
        comparison: The comparison.
        most: Samples each way.
        texts: Whether to read their questions and answers.

    Returns:
        Those gained, then those lost.
    """
    changes = {"gained": comparison.gained[:most], "lost": comparison.lost[:most]}
    ids = {change.id for changed in changes.values() for change in changed} if texts else set()
    texts_a, texts_b = (read_texts(side.report, ids) for side in (comparison.a, comparison.b))
    return [
        Flip.make(kind, change.id, (change.a, change.b), texts_a, texts_b)
        for kind, changed in changes.items()
        for change in changed
    ]


# --- Sentences ----------------------------------------------------------------------------------


def side_line(label: str, side: Side) -> Line:
    """Name a run, its model, how much there is of it, and what it took."""
    model = describe_model(side.report.config)
    parts: list[Cell] = [f"{label}: ", name(side.name)]
    if model is not None:
        parts += [" (model: ", name(model), ")"]
    counts = f"{count(side.samples, 'sample')}, {count(side.items, 'item')}"
    tokens = describe_usage(side.report)
    usage = f"; {tokens}" if tokens else ""
    return Line(*parts, f"; {counts}, {side.errored} errored{usage}", bullet=True)


def pairing_line(comparison: Comparison) -> Line:
    """Say what is compared, by how many samples, and why not by all."""
    from heldout.stats import PairedDifference

    overall = comparison.overall
    if isinstance(overall, PairedDifference):
        text = f"paired by sample: {_paired_samples(comparison, overall.n)}"
        clusters = f"{overall.clusters}"
    else:
        a, b = comparison.a, comparison.b
        of_a = f" of {a.samples}" if a.left_out else ""
        of_b = f" of {b.samples}" if b.left_out else ""
        noun = "sample" if overall.n_a == 1 and not of_a else "samples"
        text = (
            f"not paired: {overall.n_a}{of_a} {noun} of A with {overall.n_b}{of_b} of B, so what "
            "makes samples hard does not cancel"
        )
        clusters = f"{overall.clusters_a} and {overall.clusters_b}"
    parts: list[Cell] = [name(comparison.metric), f", {text}"]
    if comparison.cluster is not None:
        parts += [f", in {clusters} clusters by ", name(comparison.cluster)]
    return Line(*parts, bullet=True)


def _paired_samples(comparison: Comparison, n: int) -> str:
    a, b = comparison.a, comparison.b
    if not (a.left_out or b.left_out):
        return count(n, "sample")
    noun = "score" if comparison.metric in ("reward", "passed") else "value"
    if any(mismatch.kind == "samples" for mismatch in comparison.mismatches):
        return (
            f"{n} of {count(a.samples, 'sample')} of A and {b.samples} of B; the others are in "
            f"one run alone, or have no {noun} on one side"
        )
    have = "has" if a.left_out == 1 else "have"
    return f"{n} of {count(a.samples, 'sample')}; {a.left_out} {have} no {noun} on one side"


def _wins_lines(comparison: Comparison) -> list[Line]:
    from heldout.stats import PairedDifference

    overall = comparison.overall
    if not isinstance(overall, PairedDifference):
        return []
    text = (
        f"B wins {count(overall.wins, 'sample')}, loses {overall.losses}, and ties {overall.ties}. "
        f"Flips (by reward ≥ {comparison.pass_threshold:g}): gained {len(comparison.gained)}, "
        f"lost {len(comparison.lost)}."
    )
    return [Line(text)]


def _detectable_text(comparison: Comparison) -> str:
    effect = comparison.minimum_detectable
    if effect is None:
        return "The minimum detectable effect is unknown: there is no spread."
    return f"Minimum detectable effect: {number(effect)} at 80% power."


def _verdict_text(comparison: Comparison) -> str:
    """The verdict in one sentence; none says "no difference", which cannot be shown."""
    words = {"b_better": "better", "a_better": "worse", "b_higher": "higher", "a_higher": "lower"}
    overall, counted = comparison.overall, comparison.with_errors
    difference = f"{number(overall.difference, sign=True)} ({interval_text(overall.interval)})"
    if comparison.verdict != "inconclusive":
        return f"B is {words[comparison.verdict]}: {difference}."
    around = overall.interval
    if around is None:
        n = " and ".join(samples_text(overall).split(", "))
        noun = "sample" if n == "1" else "samples"
        return f"Inconclusive: {n} {noun} without a spread to judge by."
    if around.low <= 0 <= around.high or counted is None:
        return (
            f"Inconclusive: the difference is between {number(around.low)} and "
            f"{number(around.high)}."
        )
    return (
        f"Inconclusive: it is {difference} of what was scored, but "
        f"{number(counted.difference, sign=True)} ({interval_text(counted.interval)}) with errored "
        f"items as {comparison.errors_as or 0:g}."
    )


def remark_lines(comparison: Comparison) -> list[Line]:
    """List what was allowed to differ, and what else limits the comparison."""
    allowed = [
        Line(f"allowed to differ: {mismatch.kind}: {mismatch.text}", style="yellow", bullet=True)
        for mismatch in comparison.mismatches
    ]
    return [*allowed, *(Line(f"note: {note}", bullet=True) for note in notes(comparison))]


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
    if comparison.unknown_scorers:
        verb = "were" if len(comparison.unknown_scorers) > 1 else "was"
        runs = " and ".join(comparison.unknown_scorers)
        lines.append(f"how {runs} {verb} scored is unknown: it may differ")
    thresholds = a.report.pass_threshold, b.report.pass_threshold
    if comparison.pass_threshold == thresholds[0] != thresholds[1]:
        lines.append(
            f"pass_threshold is {thresholds[0]:g} and {thresholds[1]:g}; flips are by the first"
        )
    if comparison.duplicates:
        lines.append("samples of equal input and ground truth are one cluster")
    return [*lines, *_pairing_notes(comparison)]


def _pairing_notes(comparison: Comparison) -> list[str]:
    shared = comparison.shared_samples
    if comparison.paired and shared < max(comparison.a.samples, comparison.b.samples):
        return [
            f"paired on the {shared} samples that both have; unpaired, all would count, with less "
            "certainty"
        ]
    if comparison.paired:
        return []
    if comparison.unseeded:
        runs = " and ".join(comparison.unseeded)
        return [f"not paired: the episodes of {runs} had no seeds, so they differ from run to run"]
    if shared == 0:
        return [
            "not paired: no sample is in both, so what makes samples hard does not cancel; a "
            "paired comparison would be far more certain"
        ]
    return []


# --- JSON ---------------------------------------------------------------------------------------


def comparison_json(comparison: Comparison, flips: int | None) -> dict[str, Any]:
    """Return a comparison as JSON has it, with the first flips each way and the number of all."""
    by = comparison.by
    listed = list_flips(comparison, flips or JSON_FLIPS, texts=flips is not None)
    return {
        "verdict": comparison.verdict,
        "metric": comparison.metric,
        "pass_threshold": comparison.pass_threshold,
        "confidence": comparison.confidence,
        "paired": comparison.paired,
        "a": side_json(comparison.a),
        "b": side_json(comparison.b),
        "errors_as": comparison.errors_as,
        "overall": _difference_json(comparison.overall),
        "with_errors": comparison.with_errors and _difference_json(comparison.with_errors),
        "minimum_detectable": comparison.minimum_detectable,
        "by": list(by),
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
    }


def side_json(side: Side) -> dict[str, Any]:
    """Return a run of a comparison as JSON has it."""
    return {
        "name": side.name,
        "path": None if side.path is None else str(side.path),
        "samples": side.samples,
        "items": side.items,
        "errored": side.errored,
        "left_out": side.left_out,
        "mean": side.report.summary["mean"],
        "ci_low": side.report.summary["ci_low"],
        "ci_high": side.report.summary["ci_high"],
        "usage": usage_as_dict(side.report),
    }


def _difference_json(difference: Difference) -> dict[str, Any]:
    hidden = {"evidence", "sides", "interval", "confidence"}
    names = [field.name for field in fields(difference) if field.name not in hidden]
    around = difference.interval
    return {
        **{name: getattr(difference, name) for name in names},
        "ci_low": around and around.low,
        "ci_high": around and around.high,
    }


def _slice_json(by: Sequence[str], part: SliceDifference) -> dict[str, Any]:
    label: Any = part.label
    around = part.simultaneous_interval
    return {
        "slice": dict(zip(by, label, strict=True)),
        **_difference_json(part.difference),
        "adjusted_p_value": part.adjusted_p_value,
        "simultaneous_ci_low": around and around.low,
        "simultaneous_ci_high": around and around.high,
    }
