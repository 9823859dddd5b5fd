"""`heldout tasks`: evals that other packages have, which `heldout run` takes by name."""

from __future__ import annotations

from collections import Counter

import click

from heldout._core.format import count, list_some
from heldout.adapters.tasks import InstalledTask, find_adapter, list_tasks, task_prefixes
from heldout.cli._load import user_code
from heldout.cli._tables import decide, print_json, print_report
from heldout.errors import InvalidInput
from heldout.reporting.blocks import Cell, Column, Line, Report, Table, code

ADDRESSES_SHOWN = 2


@click.command("tasks")
@click.argument("prefix", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per task.")
def command(prefix: str | None, as_json: bool) -> None:
    """List evals of other packages that can be run: `heldout run reasoning-gym:chain_sum`.

    Without PREFIX, say which packages are installed and how many tasks each has. A plugin that
    cannot be loaded is named, and the others are listed.
    """
    if prefix is not None:
        tasks = _find_tasks(prefix.rstrip(":"))
        if as_json:
            _print_as_json(tasks)
        else:
            print_report(_build_list(tasks))
        return
    rows: list[list[Cell]] = []
    for name in task_prefixes():
        try:
            tasks = _find_tasks(name)
        except InvalidInput as problem:
            rows.append([code(name), "", str(problem)])
            if as_json:
                click.echo(f"{name}: {problem}", err=True)
            continue
        if as_json:
            _print_as_json(tasks)
        rows.append(
            [code(name), str(len(tasks)), f"{find_adapter(name).package}: {_count_states(tasks)}"]
        )
    if not as_json:
        print_report(Report([Table([Column("prefix"), "tasks", Column("", wrap=True)], rows)]))


def _find_tasks(prefix: str) -> list[InstalledTask]:
    with user_code(f"the tasks of {prefix} could not be listed"):
        return list(list_tasks(prefix))


def _judge(task: InstalledTask) -> tuple[str, str]:
    """Return whether a task can run here, as one word and in words."""
    if task.refused is not None:
        return "refused", f"cannot run here: {task.refused}"
    if task.downloads:
        some = list_some(task.downloads, ADDRESSES_SHOWN, ", ")
        return "may_download", f"may download {some}"
    return "can_run", "can run here"


def _count_states(tasks: list[InstalledTask]) -> str:
    states = Counter(_judge(task)[0] for task in tasks)
    text = f"{states['can_run']} of {count(len(tasks), 'task')} can run here"
    if states["may_download"]:
        text += f", {states['may_download']} more may download their data first"
    return text


def _print_as_json(tasks: list[InstalledTask]) -> None:
    for task in tasks:
        decision, text = _judge(task)
        about = {"name": task.name, "refused": task.refused, "downloads": list(task.downloads)}
        print_json(decide(decision, f"{task.name} {text}.", about), "tasks")


def _build_list(tasks: list[InstalledTask]) -> Report:
    rows: list[list[Cell]] = []
    for task in tasks:
        decision, text = _judge(task)
        rows.append([code(task.name), "" if decision == "can_run" else text])
    return Report(
        [
            Table([Column("task"), Column("whether it can run here", wrap=True)], rows),
            Line(f"{_count_states(tasks)}."),
        ]
    )
