"""`heldout gate RUN`: may it replace the baseline? For CI: the exit code is the verdict.

0 passes, 1 fails, 3 cannot tell at this n; 2 is no verdict at all (see `cli/main.py`). With
--markdown no verdict is said in Markdown, too, or the job summary of a refused run would be empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from heldout.cli.compare import measured

if TYPE_CHECKING:
    from heldout.analysis import Check, Gate
    from heldout.cli.differences import Piece
    from heldout.store.report import EvalReport

SIGNS = {
    "pass": ("✓", "green"),
    "fail": ("✗", "red"),
    "errored": ("!", "yellow"),
    "cannot tell": ("?", "yellow"),
}
HEADINGS = {
    "pass": "✅ Passes",
    "fail": "❌ Fails",
    "errored": "❗ No verdict",
    "cannot tell": "❔ Cannot tell",
}
CORRECTED, OTHERWISE = "†", "‡"
"""Behind an interval that is corrected for all slices, and behind one that would say another thing
with the items that errored. An asterisk would be Markdown."""
NARROW = 90
"""Columns below which the head of the table is short, for the sake of the names in it."""
MOST_NAMED = 3
"""Checks that the last line names."""


class _Gate(click.Command):
    """Says in Markdown that there is no verdict, where Markdown was asked for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _refusing_in_markdown(wanted="--markdown" in args and "--json" not in args):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        wanted = ctx.params["as_markdown"] and not ctx.params["as_json"]
        with _refusing_in_markdown(wanted=wanted):
            return super().invoke(ctx)


@contextmanager
def _refusing_in_markdown(*, wanted: bool) -> Iterator[None]:
    from heldout.cli.markdown import LONGEST_REFUSAL, text
    from heldout.errors import HeldoutError

    try:
        yield
    except click.exceptions.Exit:
        raise
    except Exception as problem:
        if wanted:
            why = "an error of heldout's own, which the log has"
            if isinstance(problem, click.ClickException):
                why = problem.format_message()
            elif isinstance(problem, HeldoutError):
                why = str(problem)
            with suppress(OSError):  # the problem may be that nothing can be written
                click.echo(f"### No verdict\n\n{text(why, longest=LONGEST_REFUSAL)}")
        raise


@click.command("gate", cls=_Gate)
@click.argument("run")
@click.option("--baseline", metavar="RUN", help="What it is held against.")
@click.option(
    "--no-worse-than",
    type=float,
    metavar="LOSS",
    help="How much worse than the baseline is tolerated; 0.01, say.",
)
@click.option("--min-mean", type=float, metavar="MEAN", help="The least mean.")
@click.option("--max-mean", type=float, metavar="MEAN", help="The largest mean.")
@click.option("--lower-is-better", is_flag=True, help="Of a metric such as a loss: more is worse.")
@click.option(
    "--slice", "by", multiple=True, metavar="KEY", help="Nor in any slice; several keys combine."
)
@click.option(
    "--slice-no-worse-than",
    type=float,
    metavar="LOSS",
    help="What is tolerated in a slice.  [default: as for all]",
)
@measured
@click.option("--allow", multiple=True, metavar="KIND", help="What may differ, as for compare.")
@click.option(
    "--flips",
    type=click.IntRange(1),
    metavar="N",
    help="With --json or --markdown: so many samples gained, and lost.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown for GitHub.")
def command(
    run: str,
    baseline: str | None,
    no_worse_than: float | None,
    min_mean: float | None,
    max_mean: float | None,
    lower_is_better: bool,
    by: tuple[str, ...],
    slice_no_worse_than: float | None,
    metric: str,
    cluster: str | None,
    allow: tuple[str, ...],
    pass_threshold: float | None,
    confidence: float,
    flips: int | None,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Hold RUN against a baseline, or a least or largest mean, or all of them.

    A run is a directory, a name under outputs/evals, or an eval of a curve: RUN@STEP, RUN@last
    (RUN@LABEL:STEP, where a run has curves of several labels).

    Exits 0: passes. 1: fails. 3: cannot tell, there are too few samples. 2: there is no verdict,
    since the command was not understood, or the runs cannot be read or compared, or it depends on
    what errored items count as.
    """
    from heldout.analysis import gate
    from heldout.cli._load import load_report
    from heldout.cli.compare import in_words_of_options, refuse_both
    from heldout.cli.main import forget_stdout, writing

    refuse_both(as_json=as_json, as_markdown=as_markdown)
    means = min_mean is not None or max_mean is not None
    _check_options(baseline, no_worse_than, by, slice_no_worse_than, means=means)
    reports = [] if baseline is None else [load_report(baseline)]
    reports.append(load_report(run))
    with in_words_of_options(allow, by, "--slice"):
        found = gate(
            reports[-1],
            baseline=None if baseline is None else reports[0],
            no_worse_than=no_worse_than,
            min_mean=min_mean,
            max_mean=max_mean,
            lower_is_better=lower_is_better,
            by=by,
            slice_no_worse_than=slice_no_worse_than,
            metric=metric,
            cluster=cluster,
            allow=allow,
            pass_threshold=pass_threshold,
            confidence=confidence,
        )
    try:
        with writing():
            if as_json:
                _print_json(found, flips)
            elif as_markdown:
                click.echo("\n".join(_markdown(found, reports, cluster, flips)))
            else:
                _print(found, reports, cluster)
    except BrokenPipeError:
        forget_stdout()  # the verdict stands, whoever reads
    raise click.exceptions.Exit(found.exit_code)


def _check_options(
    baseline: str | None,
    no_worse_than: float | None,
    by: Sequence[str],
    slice_no_worse_than: float | None,
    *,
    means: bool,
) -> None:
    """What the library would say too, in the words of the command line."""
    if no_worse_than is not None and baseline is None:
        raise click.UsageError("--no-worse-than which run? Add --baseline RUN")
    if baseline is not None and no_worse_than is None:
        raise click.UsageError("--baseline needs --no-worse-than LOSS: 0.01, say")
    if no_worse_than is None and not means:
        raise click.UsageError(
            "against what? --no-worse-than LOSS with --baseline RUN, --min-mean MEAN, "
            "--max-mean MEAN, or several"
        )
    if by and no_worse_than is None:
        raise click.UsageError("--slice needs --no-worse-than, with the --baseline to hold it to")
    if slice_no_worse_than is not None and not by:
        raise click.UsageError("--slice-no-worse-than needs --slice KEY")


def _print_json(found: Gate, flips: int | None) -> None:
    from heldout.cli._tables import print_json
    from heldout.cli.compare import comparison_as_dict

    compared = found.comparison and comparison_as_dict(found.comparison, flips)
    print_json({**replace(found, comparison=None).as_dict(), "comparison": compared})


# --- Words --------------------------------------------------------------------------------------


def last_line(found: Gate) -> str:
    """The verdict, and which checks are to blame for it."""
    if found.outcome == "pass":
        return "Passes."
    blamed = [check for check in ordered_checks(found) if check.outcome == found.outcome]
    names = "; ".join(check.name for check in blamed[:MOST_NAMED])
    if len(blamed) > MOST_NAMED:
        names += f"; {len(blamed) - MOST_NAMED} more"
    if found.outcome == "fail":
        return f"Fails: {names}."
    if found.outcome == "errored":
        return f"No verdict: {_no_verdict(found, names)}."
    line = f"Cannot tell at this n: {names}; {_would_tell(blamed)}."
    if any(check.other is not None for check in blamed):
        line += " To run the errored items again (--resume) may help."
    return line


def _would_tell(blamed: Sequence[Check]) -> str:
    # Of the same samples, the check that needs most needs enough for all.
    most: dict[str, int] = {}
    for check in blamed:
        if check.needed is not None:
            most[_of(check)] = max(check.needed, most.get(_of(check), 0))
    if not most:
        return "how many samples would is not known"
    said = [f"{needed:,} samples{of}" for of, needed in most.items()]
    line = f"about {' and '.join(said[:MOST_NAMED])} would, four times in five"
    if len(said) > MOST_NAMED:
        line += f", and more for {len(said) - MOST_NAMED} others"
    if any(check.needed is None for check in blamed):
        line += "; not all are known"
    return line


def _of(check: Check) -> str:
    return f" of {check.name}" if check.kind == "slice" else ""


def _no_verdict(found: Gate, names: str) -> str:
    compared = found.comparison
    count = found.run.errored if compared is None else compared.a.errored + compared.b.errored
    if count == 0:  # slices that one run lacks
        return f"there is no value on both sides: {names}"
    if count == 1:
        return f"what the errored item counts as decides: {names}. Run it again (--resume)"
    what = f"what the {count:,} errored items count as decides"
    return f"{what}: {names}. Run them again (--resume)"


def why(check: Check, found: Gate) -> str:
    """What decided, or why nothing did; which interval that was, and how many samples would."""
    from heldout.cli.differences import slice_count

    line = check.why
    if found.comparison is not None and _is_corrected(check, found):
        slices = slice_count(found.comparison)
        line = line.replace("interval", f"interval that is corrected for {slices} slices", 1)
    if check.other is not None:
        with_them = "; with errored items: " if check.estimate is None else ", "
        line += f"{with_them}{check.other}"
    if check.needed is None:
        return line
    of = " of that slice" if check.kind == "slice" else ""
    return f"{line}; about {check.needed:,} samples{of} would tell, four times in five"


def _is_corrected(check: Check, found: Gate) -> bool:
    """Of a single slice the correction is none."""
    from heldout.cli.differences import slice_count

    several = found.comparison is not None and slice_count(found.comparison) > 1
    return several and check.corrected and check.interval is not None


def _rows(found: Gate) -> list[tuple[Check, tuple[str, ...]]]:
    """Each check with its numbers, in the order in which people read slices."""
    from heldout._format import number
    from heldout.cli.differences import between, signed

    rows: list[tuple[Check, tuple[str, ...]]] = []
    for check in ordered_checks(found):
        estimate = (number if check.kind == "mean" else signed)(check.estimate)
        marks = CORRECTED * _is_corrected(check, found) + OTHERWISE * _is_otherwise(check)
        around = f"{between(check.interval)} {marks}".rstrip()
        rows.append((check, (estimate, around, number(check.bound), f"{check.n}")))
    return rows


def _is_otherwise(check: Check) -> bool:
    return check.other is not None and check.estimate is not None


def _footnotes(found: Gate) -> list[str]:
    """What the table does not say of itself: which interval, and which reading."""
    from heldout.cli.differences import slice_count

    lines = []
    if found.comparison is not None and any(_is_corrected(c, found) for c in found.checks):
        slices = slice_count(found.comparison)
        lines.append(f"{CORRECTED} corrected for looking at {slices} slices.")
    if any(_is_otherwise(check) for check in found.checks):
        lines.append(f"{OTHERWISE} with the items that errored, the answer is another one.")
    compared = found.comparison
    if found.run.errored or (compared is not None and compared.a.errored):
        lines.append("The numbers are of what was scored, without the items that errored.")
    if compared is None and any(c.n < found.run.samples for c in found.checks if c.n is not None):
        lines.append(
            f"Of {found.run.samples} samples, those of one cluster (of equal input and ground "
            "truth, unless --cluster names another) count once."
        )
    return lines


def _head(found: Gate) -> tuple[str, ...]:
    from heldout.cli.differences import percent

    return "found", f"{percent(found.confidence)} interval", "bound", "samples"


def _who(found: Gate, reports: Sequence[EvalReport], cluster: str | None) -> list[list[Piece]]:
    from heldout.cli import differences as said

    if found.comparison is None:
        return [said.side_line("the run", found.run, reports[-1])]
    sides = (found.comparison.a, found.comparison.b)
    lines = [
        said.side_line(name, side, report)
        for name, side, report in zip(
            ("A, the baseline", "B, the run"), sides, reports, strict=True
        )
    ]
    return [*lines, said.pairing(found.comparison, cluster)]


def ordered_checks(found: Gate) -> list[Check]:
    """The slices as people order them, where the first of them was."""
    from heldout.cli.slice import in_order

    slices = {tuple(check.slice.values()): check for check in found.checks if check.slice}
    sorted_slices = [slices[label] for label in in_order(slices)] if slices else []
    before = [check for check in found.checks if check.kind == "overall"]
    after = [check for check in found.checks if check.kind == "mean"]
    return [*before, *sorted_slices, *after]


# --- For the terminal ---------------------------------------------------------------------------


def _print(found: Gate, reports: Sequence[EvalReport], cluster: str | None) -> None:
    from heldout.cli import differences as said
    from heldout.cli._tables import as_line, make_console, make_table

    console = make_console()
    for pieces in _who(found, reports, cluster):
        said.print_pieces(console, pieces)
    table = make_table()
    table.add_column("", no_wrap=True)
    table.add_column("check", overflow="fold")
    head = _head(found)
    if console.width < NARROW:
        head = (*head[:-1], "n")
    for name in head:
        table.add_column(name, justify="left" if "interval" in name else "right", no_wrap=True)
    rows = _rows(found)
    for check, cells in rows:
        sign, colour = SIGNS[check.outcome]
        table.add_row(as_line(f"{sign} {check.outcome}", colour), as_line(check.name), *cells)
    console.print(table)
    for line in _footnotes(found):
        console.print(line)
    for check, _ in rows:
        if check.outcome != "pass":
            console.print(as_line(f"{check.name}: {why(check, found)}"))
    if found.comparison is not None:
        for mismatch in found.comparison.mismatches:
            console.print(as_line(f"allowed to differ: {mismatch.kind}: {mismatch.text}", "yellow"))
        for note in found.comparison.notes:
            console.print(as_line(f"note: {note}"))
    console.print(as_line(last_line(found), f"bold {SIGNS[found.outcome][1]}"))


# --- For Markdown -------------------------------------------------------------------------------


def _markdown(
    found: Gate, reports: Sequence[EvalReport], cluster: str | None, flips: int | None
) -> list[str]:
    from heldout.cli import differences as said
    from heldout.cli.compare import markdown_flips, markdown_remarks
    from heldout.cli.markdown import code, details, table, text

    lines = [f"### {HEADINGS[found.outcome]}", ""]
    lines += [] if found.outcome == "pass" else [text(last_line(found)), ""]
    lines += [f"- {said.as_markdown(pieces)}" for pieces in _who(found, reports, cluster)]
    rows = [
        (
            " ".join((SIGNS[check.outcome][0], check.outcome)),
            code(check.name),
            *map(text, cells),
            text(why(check, found)),
        )
        for check, cells in _rows(found)
    ]
    lines += ["", *table(["", "check", *_head(found), "why"], rows, words=(0, 1, 6)), ""]
    lines += [" ".join(_footnotes(found)), ""] if _footnotes(found) else []
    comparison = found.comparison
    if comparison is not None:
        if comparison.by:
            title = f"Slices: {said.counted(len(comparison.slices), 'slice')}"
            lines += [*details(title, said.markdown_slices(comparison)), ""]
        lines += [*markdown_flips(comparison, flips), *markdown_remarks(comparison)]
    return lines
