"""`heldout plot RUN…`: curves as a picture for a paper or a page."""

from __future__ import annotations

from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from heldout.training.plot import NamedCurve


@click.command("plot")
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default="curve.png",
    show_default=True,
    metavar="FILE",
    help="What to write; .png, .svg or .pdf.",
)
@click.option("--metric", default="reward", show_default=True, help="Or pass_rate, or a metric.")
@click.option("--pass-rate", is_flag=True, help="Add a panel with the share that passed.")
def command(runs: tuple[str, ...], output: Path, metric: str, pass_rate: bool) -> None:
    """Draw the curves of one RUN or several, over each other, into a picture."""
    from heldout._plotting import format_of
    from heldout.cli.text import printable
    from heldout.store.run_dir import replace_file
    from heldout.training.plot import plot

    format = format_of(output)
    picture = plot(
        _curves(runs, metric),
        metric,
        pass_rate=pass_rate and metric != "pass_rate",
        format=format,
    )
    replace_file(output, picture)
    click.echo(printable(f"Wrote {output}."))


def _curves(runs: tuple[str, ...], metric: str) -> list[NamedCurve]:
    from heldout.cli.curves import by_label, check_metric, listed, open_curve
    from heldout.cli.text import printable
    from heldout.errors import InvalidInput
    from heldout.training.plot import NamedCurve

    found = []
    names = [Path(realpath(run)).name for run in runs]
    for run, name in zip(runs, names, strict=True):
        points = open_curve(run).points
        if not any(point.has_result for point in points):
            raise InvalidInput(f"{run} has no result yet: there is nothing to draw")
        check_metric(points, metric)
        labels = by_label(points)
        for label, of_label in labels.items():
            # Whatever it takes to tell them apart, and no more.
            said = [run if names.count(name) > 1 else name] if len(runs) > 1 else []
            said += [label] if len(labels) > 1 or not said else []
            found.append(NamedCurve(printable(listed([" ".join(said)])), of_label))
    return found
