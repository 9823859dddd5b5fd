"""`heldout compare A B`: whether B is better than A, and how sure one can be of it.

A report, not a judgement of the command's own: it exits 0 whatever the verdict. `heldout gate` is
the one that passes and fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from heldout.analysis.comparison import Change, Comparison
    from heldout.store.report import EvalReport

Command = TypeVar("Command", bound=Callable[..., Any])

MARKDOWN_FLIPS = 10
"""Samples each way that Markdown lists unless told otherwise: they are folded away."""
JSON_FLIPS = 100
"""... and JSON: of a million samples many may flip. How many there are stands beside them."""


def measured(command: Command) -> Command:
    """The options that say what is compared, and how surely."""
    options = (
        click.option(
            "--metric",
            default="reward",
            show_default=True,
            help="Or passed, pass@K, pass^K, or the name of a metric.",
        ),
        click.option(
            "--cluster", metavar="KEY", help="Samples that share its value belong together."
        ),
        click.option(
            "--pass-threshold",
            type=float,
            metavar="REWARD",
            help="The reward that passes.  [default: that of the runs]",
        ),
        click.option(
            "--confidence", type=float, default=0.95, show_default=True, help="Of the intervals."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command("compare")
@click.argument("a")
@click.argument("b")
@click.option(
    "--by", multiple=True, metavar="KEY", help="Metadata key to slice by; several combine."
)
@measured
@click.option("--allow", multiple=True, metavar="KIND", help="What may differ, as said above.")
@click.option("--unpaired", is_flag=True, help="Compare all with all, though samples are shared.")
@click.option(
    "--flips", type=click.IntRange(1), metavar="N", help="List N samples gained, and N lost."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown for GitHub.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw it, too; .png, .svg or .pdf.",
)
def command(
    a: str,
    b: str,
    by: tuple[str, ...],
    metric: str,
    cluster: str | None,
    allow: tuple[str, ...],
    unpaired: bool,
    flips: int | None,
    pass_threshold: float | None,
    confidence: float,
    as_json: bool,
    as_markdown: bool,
    plot: Path | None,
) -> None:
    """Say whether run B is better than run A, by the samples that both have.

    A run is a directory, a name under outputs/evals, or an eval of a curve: RUN@STEP, RUN@last
    (RUN@LABEL:STEP, where a run has curves of several labels).

    What is not comparable is refused, unless --allow says that it is meant: samples, scorer,
    environment, threshold or incomplete.
    """
    from heldout._plotting import format_of
    from heldout.analysis import compare
    from heldout.cli.main import writing
    from heldout.cli.named import load_named
    from heldout.cli.render import print_json

    refuse_both(as_json=as_json, as_markdown=as_markdown)
    format = None if plot is None else format_of(plot)  # said before anything is read
    reports = (load_named(a), load_named(b))
    with in_words_of_options(allow, by, "--by"):
        found = compare(
            *reports,
            by=by,
            metric=metric,
            cluster=cluster,
            allow=allow,
            paired=False if unpaired else None,
            pass_threshold=pass_threshold,
            confidence=confidence,
        )
    if plot is not None and format is not None:
        from heldout.analysis.plot import plot_comparison
        from heldout.cli.differences import ordered
        from heldout.cli.text import printable
        from heldout.store.run_dir import replace_file

        order = [one.label for one in ordered(found.slices)]
        replace_file(plot, plot_comparison(found, order=order, format=format))
        click.echo(printable(f"Wrote {plot}."), err=True)
    with writing():
        if as_json:
            print_json(comparison_as_dict(found, flips))
        elif as_markdown:
            click.echo("\n".join(markdown_lines(found, reports, cluster, flips)))
        else:
            _print(found, reports, cluster, flips)


def refuse_both(*, as_json: bool, as_markdown: bool) -> None:
    if as_json and as_markdown:
        raise click.UsageError("--json or --markdown, not both")


@contextmanager
def in_words_of_options(
    allow: Sequence[str], keys: Sequence[str] = (), option: str = "--by"
) -> Iterator[None]:
    """A refusal says which option makes it an answer; `option` is the one of the keys."""
    from heldout.errors import HeldoutError, InvalidInput, NotComparable

    try:
        yield
    except NotComparable as refusal:
        options = " ".join(f"--allow {kind}" for kind in refusal.kinds)
        raise NotComparable(f"{refusal} ({options})", refusal.kinds) from None
    except HeldoutError as problem:
        for given, name, one in ((allow, "--allow", "kind"), (keys, option, "key")):
            if any("," in value and repr(value) in str(problem) for value in given):
                raise InvalidInput(f"{problem}; give {name} once for each {one}") from None
        raise


def comparison_as_dict(found: Comparison, flips: int | None) -> dict[str, Any]:
    """As JSON has it, with the first flips each way and the number of all."""
    count = flips or JSON_FLIPS
    first = replace(found, gained=found.gained[:count], lost=found.lost[:count])
    totals = {"gained_total": len(found.gained), "lost_total": len(found.lost)}
    return {**first.as_dict(), **totals}


# --- For the terminal ---------------------------------------------------------------------------


def _print(
    found: Comparison, reports: Sequence[EvalReport], cluster: str | None, flips: int | None
) -> None:
    from heldout.cli import differences as said
    from heldout.cli.render import as_line, make_console, make_table

    console = make_console()
    for letter, side, report in zip("AB", (found.a, found.b), reports, strict=True):
        said.print_pieces(console, said.side_line(letter, side, report))
    said.print_pieces(console, said.pairing(found, cluster))
    table = make_table()
    table.add_column("", overflow="fold")
    said.add_number_columns(table, found)
    for name, cells in said.overall_rows(found):
        table.add_row(as_line(name), *cells)
    console.print(table)
    for line in (said.wins_line(found), said.detectable_line(found)):
        if line:
            console.print(line)
    if flips is not None and not found.paired:
        console.print("There are no flips to list: the samples are not paired.")
    elif flips is not None:
        table = make_table()
        table.add_column("")
        table.add_column("sample", overflow="fold")
        table.add_column("A", justify="right", no_wrap=True)
        table.add_column("B", justify="right", no_wrap=True)
        for way, colour, change in _first_flips(found, flips):
            table.add_row(as_line(way, colour), as_line(change.id), *_rewards(change))
        if table.row_count:
            console.print(table)
    if found.by:
        said.print_slices(console, found)
    for mismatch in found.mismatches:
        console.print(as_line(f"allowed to differ: {mismatch.kind}: {mismatch.text}", "yellow"))
    for note in found.notes:
        console.print(as_line(f"note: {note}"))
    console.print(as_line(said.verdict_line(found), "bold"))


def _first_flips(found: Comparison, count: int) -> list[tuple[str, str, Change]]:
    ways = (("gained", "green", found.gained), ("lost", "red", found.lost))
    return [(way, colour, change) for way, colour, all in ways for change in all[:count]]


def _rewards(change: Change) -> tuple[str, str]:
    from heldout.cli.render import number

    return number(change.a), number(change.b)


# --- For Markdown -------------------------------------------------------------------------------


def markdown_lines(
    found: Comparison, reports: Sequence[EvalReport], cluster: str | None, flips: int | None
) -> list[str]:
    from heldout.cli import differences as said

    lines = [f"### {said.verdict_line(found)}", ""]
    lines += [*markdown_overall(found, reports, cluster), ""]
    if found.by:
        lines += [*said.markdown_slices(found), ""]
    lines += markdown_flips(found, flips)
    return [*lines, *markdown_remarks(found)]


def markdown_overall(
    found: Comparison, reports: Sequence[EvalReport], cluster: str | None
) -> list[str]:
    from heldout.cli import differences as said
    from heldout.cli.markdown import code, table, text

    sides = zip("AB", (found.a, found.b), reports, strict=True)
    lines = [f"- {said.as_markdown(said.side_line(*side))}" for side in sides]
    lines += [f"- {said.as_markdown(said.pairing(found, cluster))}", ""]
    lines += table(
        ["", *said.head(found)],
        [(code(name), *map(text, cells)) for name, cells in said.overall_rows(found)],
    )
    more = [line for line in (said.wins_line(found), said.detectable_line(found)) if line]
    return [*lines, "", " ".join(more)]


def markdown_flips(found: Comparison, count: int | None) -> list[str]:
    from heldout.cli.markdown import code, details, table

    if count is not None and not found.paired:
        return ["There are no flips to list: the samples are not paired.", ""]
    shown = _first_flips(found, count or MARKDOWN_FLIPS)
    if not shown:
        return []
    rows = [(way, code(change.id), *_rewards(change)) for way, _, change in shown]
    title = f"Flips: gained {len(found.gained)}, lost {len(found.lost)}"
    lines = table(["", "sample", "A", "B"], rows, words=(0, 1))
    return [*details(title, lines), ""]


def markdown_remarks(found: Comparison) -> list[str]:
    from heldout.cli.markdown import text

    remarks = [f"allowed to differ: {one.kind}: {one.text}" for one in found.mismatches]
    return [f"- {text(remark)}" for remark in (*remarks, *found.notes)]
