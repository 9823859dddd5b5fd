"""`heldout gate RUN`: may it replace the baseline? For CI: the exit code is the verdict.

0 passes, 1 fails, 3 cannot tell at this n; 2 is no verdict at all (see `cli/main.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from heldout.analysis import Check, Gate
    from heldout.cli.differences import Piece
    from heldout.store.report import EvalReport

SIGNS = {"pass": ("✓", "green"), "fail": ("✗", "red"), "cannot tell": ("?", "yellow")}
HEADINGS = {"pass": "✅ Passes", "fail": "❌ Fails", "cannot tell": "❔ Cannot tell"}
MOST_NAMED = 3
"""Checks that the last line names."""


@click.command("gate")
@click.argument("run")
@click.option("--baseline", metavar="RUN", help="What it is held against.")
@click.option(
    "--no-worse-than",
    type=float,
    metavar="LOSS",
    help="How much less than the baseline is tolerated; 0.01, say.",
)
@click.option("--min-mean", type=float, metavar="MEAN", help="The least mean.")
@click.option(
    "--slice", "by", multiple=True, metavar="KEY", help="Nor in any slice; several keys combine."
)
@click.option(
    "--slice-no-worse-than",
    type=float,
    metavar="LOSS",
    help="What is tolerated in a slice.  [default: as for all]",
)
@click.option(
    "--metric", default="reward", show_default=True, help="Or passed, or the name of a metric."
)
@click.option("--cluster", metavar="KEY", help="Samples that share its value belong together.")
@click.option("--allow", multiple=True, metavar="KIND", help="What may differ, as for compare.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown for GitHub.")
def command(
    run: str,
    baseline: str | None,
    no_worse_than: float | None,
    min_mean: float | None,
    by: tuple[str, ...],
    slice_no_worse_than: float | None,
    metric: str,
    cluster: str | None,
    allow: tuple[str, ...],
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Hold RUN against a baseline, or a least mean, or both.

    A run is a directory, a name under outputs/evals, or an eval of a curve: RUN@STEP, RUN@last.

    Exits 0: passes. 1: fails. 3: cannot tell, there are too few samples. 2: there is no verdict,
    since the command was not understood, or the runs cannot be read or compared.
    """
    from heldout.analysis import gate
    from heldout.cli.compare import allowing_by_option, refuse_both
    from heldout.cli.main import forget_stdout
    from heldout.cli.named import load_named

    refuse_both(as_json=as_json, as_markdown=as_markdown)
    _check_options(baseline, no_worse_than, min_mean, by, slice_no_worse_than)
    reports = [] if baseline is None else [load_named(baseline)]
    reports.append(load_named(run))
    with allowing_by_option():
        found = gate(
            reports[-1],
            None if baseline is None else reports[0],
            no_worse_than=no_worse_than,
            min_mean=min_mean,
            by=by,
            slice_no_worse_than=slice_no_worse_than,
            metric=metric,
            cluster=cluster,
            allow=allow,
        )
    try:
        _report(found, reports, cluster, as_json=as_json, as_markdown=as_markdown)
        sys.stdout.flush()
    except BrokenPipeError:
        forget_stdout()  # the verdict stands, whoever reads
    raise click.exceptions.Exit(found.exit_code)


def _check_options(
    baseline: str | None,
    no_worse_than: float | None,
    min_mean: float | None,
    by: Sequence[str],
    slice_no_worse_than: float | None,
) -> None:
    """What the library would say too, in the words of the command line."""
    if no_worse_than is not None and baseline is None:
        raise click.UsageError("--no-worse-than which run? Add --baseline RUN")
    if baseline is not None and no_worse_than is None:
        raise click.UsageError("--baseline needs --no-worse-than LOSS: 0.01, say")
    if no_worse_than is None and min_mean is None:
        raise click.UsageError(
            "against what? --no-worse-than LOSS with --baseline RUN, --min-mean MEAN, or both"
        )
    if by and no_worse_than is None:
        raise click.UsageError("--slice needs --no-worse-than, with the --baseline to hold it to")
    if slice_no_worse_than is not None and not by:
        raise click.UsageError("--slice-no-worse-than needs --slice KEY")


def _report(
    found: Gate,
    reports: Sequence[EvalReport],
    cluster: str | None,
    *,
    as_json: bool,
    as_markdown: bool,
) -> None:
    from heldout.cli.render import print_json

    if as_json:
        print_json(found.as_dict())
    elif as_markdown:
        click.echo("\n".join(_markdown(found, reports, cluster)))
    else:
        _print(found, reports, cluster)


# --- Words --------------------------------------------------------------------------------------


def last_line(found: Gate) -> str:
    """The verdict, and which checks are to blame for it."""
    if found.outcome == "pass":
        return "Passes."
    blamed = [check for check in ordered_checks(found) if check.outcome == found.outcome]
    names = [check.name for check in blamed[:MOST_NAMED]]
    if len(blamed) > MOST_NAMED:
        names.append(f"{len(blamed) - MOST_NAMED} more")
    if found.outcome == "fail":
        return f"Fails: {'; '.join(names)}."
    needed = [check.needed for check in blamed]
    line = f"Cannot tell at this n: {'; '.join(names)}"
    known = [n for n in needed if n is not None]
    if not known or len(known) < len(needed):
        return f"{line}; how many samples would is not known."
    return f"{line}; about {max(known):,} samples would."


def why(check: Check) -> str:
    if check.needed is None:
        return check.why
    return f"{check.why}; about {check.needed:,} samples would tell"


def _rows(found: Gate) -> list[tuple[Check, tuple[str, ...]]]:
    """Each check with its numbers, in the order in which people read slices."""
    from heldout.cli.differences import between, signed
    from heldout.cli.render import number

    differences = 0 if found.comparison is None else 1 + len(found.comparison.slices)
    rows: list[tuple[Check, tuple[str, ...]]] = []
    for i, check in enumerate(ordered_checks(found)):
        estimate = signed(check.estimate) if i < differences else number(check.estimate)
        rows.append((check, (estimate, between(check.interval), number(check.bound), f"{check.n}")))
    return rows


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
    """The slices as people order them: they follow the check of all, in the comparison's order."""
    from heldout.cli.differences import ordered

    checks = [*found.checks]
    if found.comparison is not None and found.comparison.slices:
        slices = found.comparison.slices
        of_label = dict(zip((one.label for one in slices), checks[1:], strict=False))
        checks[1 : 1 + len(slices)] = [of_label[one.label] for one in ordered(slices)]
    return checks


# --- For the terminal ---------------------------------------------------------------------------


def _print(found: Gate, reports: Sequence[EvalReport], cluster: str | None) -> None:
    from heldout.cli import differences as said
    from heldout.cli.render import as_line, make_console, make_table

    console = make_console()
    for pieces in _who(found, reports, cluster):
        said.print_pieces(console, pieces)
    table = make_table()
    table.add_column("", no_wrap=True)
    table.add_column("check", overflow="fold")
    for name in _head(found):
        table.add_column(name, justify="left" if "interval" in name else "right", no_wrap=True)
    rows = _rows(found)
    for check, cells in rows:
        sign, colour = SIGNS[check.outcome]
        table.add_row(as_line(f"{sign} {check.outcome}", colour), as_line(check.name), *cells)
    console.print(table)
    for check, _ in rows:
        if check.outcome != "pass":
            console.print(as_line(f"{check.name}: {why(check)}"))
    if found.comparison is not None:
        for mismatch in found.comparison.mismatches:
            console.print(as_line(f"allowed to differ: {mismatch.kind}: {mismatch.text}", "yellow"))
        for note in found.comparison.notes:
            console.print(as_line(f"note: {note}"))
    console.print(as_line(last_line(found), f"bold {SIGNS[found.outcome][1]}"))


# --- For Markdown -------------------------------------------------------------------------------


def _markdown(found: Gate, reports: Sequence[EvalReport], cluster: str | None) -> list[str]:
    from heldout.cli import differences as said
    from heldout.cli.compare import MARKDOWN_FLIPS, markdown_flips, markdown_remarks
    from heldout.cli.markdown import code, details, table, text

    lines = [f"### {HEADINGS[found.outcome]}", ""]
    lines += [] if found.outcome == "pass" else [text(last_line(found)), ""]
    lines += [f"- {said.as_markdown(pieces)}" for pieces in _who(found, reports, cluster)]
    rows = [
        (
            " ".join((SIGNS[check.outcome][0], check.outcome)),
            code(check.name),
            *map(text, cells),
            text(why(check)),
        )
        for check, cells in _rows(found)
    ]
    lines += ["", *table(["", "check", *_head(found), "why"], rows, words=(0, 1, 6)), ""]
    comparison = found.comparison
    if comparison is not None:
        if comparison.by:
            title = f"Slices: {said.counted(len(comparison.slices), 'slice')}"
            lines += [*details(title, said.markdown_slices(comparison)), ""]
        lines += [*markdown_flips(comparison, MARKDOWN_FLIPS), *markdown_remarks(comparison)]
    return lines
