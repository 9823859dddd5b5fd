"""`heldout stop RUN`: ask the training that writes a run to stop."""

from __future__ import annotations

import click


@click.command("stop")
@click.argument("run")
@click.option("--reason", default="heldout stop", metavar="TEXT", help="Why; kept in the curve.")
def command(run: str, reason: str) -> None:
    """Ask the training that writes RUN to stop: a run directory, or a name under outputs/evals.

    It stops when it next looks, which is after an eval or a step. Remove RUN/stop to take it back.
    """
    from heldout.cli.curves import find_curve, open_curve
    from heldout.cli.text import printable
    from heldout.store.jsonl import has_writer
    from heldout.training.curve import CURVE_NAME, STOP_NAME, request_stop

    path = find_curve(run) or open_curve(run).path  # which says what is wrong with it
    request_stop(path, reason)
    click.echo(printable(f"Asked the training that writes {path} to stop."))
    if not has_writer(path / CURVE_NAME):
        # Not refused: some file systems have no locks, and then nobody seems to be there.
        click.echo(
            printable(
                "No training seems to be writing it now. If none is, nothing comes of it: one that "
                f"is started later begins by removing {path / STOP_NAME}."
            ),
            err=True,
        )
