"""`heldout tasks`: evals that other packages have, which `heldout run` takes by name."""

from __future__ import annotations

import click

from heldout._format import count
from heldout.cli._load import user_code
from heldout.cli._tables import print_json, print_report
from heldout.errors import InvalidInput
from heldout.integrations.tasks import SOURCES, InstalledTask, list_tasks
from heldout.reporting.blocks import Cell, Column, Line, Report, Table, code


@click.command("tasks")
@click.argument("prefix", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per task.")
def command(prefix: str | None, as_json: bool) -> None:
    """List evals of other packages that can be run: `heldout run reasoning-gym:chain_sum`.

    Without PREFIX, say which packages are installed and how many tasks each has.
    """
    if prefix is not None:
        tasks = _find_tasks(prefix.rstrip(":"))
        if as_json:
            _print_as_json(tasks)
        else:
            print_report(_build_list(tasks))
        return
    rows: list[list[Cell]] = []
    for name, source in SOURCES.items():
        try:
            tasks = _find_tasks(name)
        except InvalidInput as problem:
            rows.append([code(name), "", str(problem)])
            continue
        if as_json:
            _print_as_json(tasks)
        can_run = sum(task.refused is None for task in tasks)
        state = f"{source.package}: {count(can_run, 'task')} of {len(tasks)} can run here"
        rows.append([code(name), str(len(tasks)), state])
    if not as_json:
        print_report(Report([Table([Column("prefix"), "tasks", Column("", wrap=True)], rows)]))


def _find_tasks(prefix: str) -> list[InstalledTask]:
    with user_code(f"the tasks of {prefix} could not be listed"):
        return list(list_tasks(prefix))


def _print_as_json(tasks: list[InstalledTask]) -> None:
    for task in tasks:
        print_json({"name": task.name, "refused": task.refused}, "tasks")


def _build_list(tasks: list[InstalledTask]) -> Report:
    rows: list[list[Cell]] = [[code(task.name), task.refused or ""] for task in tasks]
    can_run = sum(task.refused is None for task in tasks)
    return Report(
        [
            Table([Column("task"), Column("why it cannot run here", wrap=True)], rows),
            Line(f"{can_run} of {count(len(tasks), 'task')} can run here."),
        ]
    )
