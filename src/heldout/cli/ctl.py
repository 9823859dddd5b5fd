"""`heldout ctl RUN`: steer a run that is running."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from heldout._core.format import count
from heldout.cli._options import count_option, json_option
from heldout.cli._tables import decide, print_json, print_report
from heldout.errors import InvalidInput
from heldout.reporting.blocks import Line, Report
from heldout.reporting.names import find_run_directory
from heldout.store.control import RunControl, read_control, write_control
from heldout.store.run_dir import RunDir


@click.command("ctl")
@click.argument("run")
@count_option("--max-concurrent", help="At most N items in flight from now on.")
@click.option("--pause", is_flag=True, help="Begin no further item; those in flight go on.")
@click.option("--go-on", is_flag=True, help="End a pause.")
@click.option("--retry-errors", is_flag=True, help="Run the items again that have errored so far.")
@json_option
def command(
    run: str,
    max_concurrent: int | None,
    pause: bool,
    go_on: bool,
    retry_errors: bool,
    as_json: bool,
) -> None:
    """Steer RUN while it runs. Without an option, say how it is steered.

    The run looks at what is asked once a second. Its report is the same as without: items are held
    back, and none is left out. What was asked ends with the run: one that was stopped, and is
    resumed, is not held back.
    """
    if pause and go_on:
        raise click.UsageError("--pause and --go-on do not go together")
    path = find_run_directory(run)
    directory = RunDir(path)
    info = directory.read_info()
    before = read_control(path)
    wanted = any((max_concurrent is not None, pause, go_on, retry_errors))
    if wanted and (info.status != "running" or not directory.may_be_running()):
        status = "interrupted" if info.status == "running" else info.status
        raise InvalidInput(
            f"{path} does not run, it is {status}: there is nothing to steer",
            hint=None if status == "complete" else "heldout run … --resume goes on with it",
        )
    if retry_errors and "order" in info.config:
        raise InvalidInput(
            f"--retry-errors: {path} stops when its claim is settled (--until), and its looks have "
            "counted the items that errored"
        )
    begun_with = info.config.get("max_concurrent")
    if max_concurrent is not None and isinstance(begun_with, int) and max_concurrent > begun_with:
        raise InvalidInput(
            f"--max-concurrent {max_concurrent}: {path} was begun with {begun_with}, which is the "
            "most it can have; stop it, and resume it with more"
        )
    control = msgspec.structs.replace(
        before,
        paused=(before.paused or pause) and not go_on,
        max_concurrent=before.max_concurrent if max_concurrent is None else max_concurrent,
        retries=before.retries + retry_errors,
    )
    if wanted:
        write_control(path, control)
    said = _conclude(control, retried=retry_errors)
    if as_json:
        plain: dict[str, Any] = {"path": str(path), **msgspec.to_builtins(control)}
        print_json(decide(*said, plain), "ctl")
    else:
        print_report(Report([Line(said[1])]))


def _conclude(control: RunControl, *, retried: bool) -> tuple[str, str]:
    again = " Items that have errored are run again." if retried else ""
    if control.paused:
        return "paused", f"Paused: no further item begins until --go-on.{again}"
    if control.max_concurrent is not None:
        return "limited", f"At most {count(control.max_concurrent, 'item')} in flight.{again}"
    return "running", f"The run is not held back.{again}"
