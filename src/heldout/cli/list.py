"""`heldout list`, `heldout rm` and `heldout repair`: the runs of an output directory."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click

from heldout._core.format import count, cut, interval, number, printable
from heldout.cli._options import json_option
from heldout.cli._tables import decide, make_console, print_json, print_report
from heldout.errors import HeldoutError, RunBusy
from heldout.reporting.blocks import (
    Block,
    Column,
    Line,
    RankedColumn,
    Report,
    Span,
    Table,
    fit_columns,
)
from heldout.reporting.names import explain_empty, find_curve, find_run_directory
from heldout.reporting.summaries import format_cost
from heldout.store.ahead import ahead_path
from heldout.store.journal import repair as repair_journal
from heldout.store.jsonl import has_writer
from heldout.store.notes import repair_notes
from heldout.store.numbers import TIMESTAMP, number_runs
from heldout.store.run_dir import RunDir, now
from heldout.store.runs import (
    ROOT,
    RunEntry,
    describe_samplings,
    find_run,
    list_history,
    list_runs,
    read_entry,
)
from heldout.training.curve.points import repair_curve

STATUS_STYLES = {
    "running": "cyan",
    "finished": "",
    "stopped": "",
    "failed": "red",
    "interrupted": "yellow",
    "newer": "yellow",
    "damaged": "red",
}
SORT_KEYS = ("when", "name", "model", "mean", "n", "errors", "tokens", "cost", "status")
RUN_FILES = (
    *("run.json", "results.jsonl", "results.jsonl.gz", "results.parquet", "summary.json"),
    *("ahead.jsonl", "curve.jsonl"),
    *("notes.jsonl", "tools.jsonl", "stop"),
)
"""Files that a run directory has of its own; with `*.damaged`, `steps/` and `turns/`."""


@click.command("list")
@click.argument("pattern", required=False)
@click.option("--tag", "tags", multiple=True, metavar="WORD", help="Only runs with this tag.")
@click.option("--model", metavar="TEXT", help="Only runs whose model has this in its name.")
@click.option("--status", type=click.Choice([*STATUS_STYLES]), help="Only runs of this status.")
@click.option("--kind", type=click.Choice(["run", "curve", "episodes"]), help="Only this kind.")
@click.option(
    "--sort",
    "key",
    type=click.Choice(SORT_KEYS),
    default="when",
    show_default=True,
    help="What to sort by; numbers and times from the largest.",
)
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Only the first N.")
@click.option(
    "--output-dir", default=ROOT, show_default=True, metavar="DIR", help="Where the runs are."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per run.")
def command(
    pattern: str | None,
    tags: tuple[str, ...],
    model: str | None,
    status: str | None,
    kind: str | None,
    key: str,
    limit: int | None,
    output_dir: str,
    as_json: bool,
) -> None:
    """List runs, the latest first.

    PATTERN picks runs by name: `capitals`, or `cap*`. Numbers are read from what a run has saved:
    one that failed or was stopped has counts and no mean, one that is running has none yet. Times
    are in UTC; * marks a commit with changes.
    """
    runs = list_runs(output_dir)
    entries = [
        entry
        for entry in runs
        if any(fnmatch(text, pattern or "*") for text in (entry.name, entry.name.split("/")[0]))
        and {*tags} <= {*entry.tags}
        and (model or "").lower() in (entry.endpoint or "").lower()
        and status in (None, entry.status)
        and kind in (None, entry.kind)
    ]
    entries = _sort_entries(entries, key)[:limit]
    names = _shorten_names(entries)
    if as_json:
        for entry in entries:
            id = names[entry.path]
            listed = {**asdict(entry), "path": str(entry.path), "id": id}
            listed["verdict"] = _verdict_on(entry)
            print_json(decide(entry.status, _describe_entry(id, entry), listed), "list")
    elif entries:
        print_report(_build_list(entries, names))
    else:
        others = f"No run matches ({len(runs)} in {output_dir})."
        click.echo(printable(others if runs else explain_empty(output_dir)))


def _describe_entry(id: str, entry: RunEntry) -> str:
    """Say how far a run came, in a sentence."""
    text = f"{id}: {entry.kind}, {entry.status}"
    if entry.step is not None:
        text += f", step {entry.step}"
    if entry.mean is None:
        return f"{text}, no mean."
    of = "" if entry.n is None else f", n {entry.n}"
    return f"{text}, mean {number(entry.mean)} ({interval(entry.ci_low, entry.ci_high)}){of}."


def _verdict_on(entry: RunEntry) -> str | None:
    """Say the verdict on a curve in a word or two; of several evals, the worst, with its name."""
    if entry.kind != "curve":
        return None
    # Here, since they load numpy: a list without curves takes less than half the time.
    from heldout.reporting.curves import list_verdicts, read_curve
    from heldout.training.curve.stored_verdicts import short_verdict

    with suppress(HeldoutError):  # what is damaged says so in its status
        verdicts = list_verdicts(read_curve(entry.path))
        for label, verdict in verdicts[:1]:
            short = "no verdict" if verdict is None else short_verdict(verdict)
            return short if len(verdicts) == 1 else f"{label}: {short}"
    return None


def _sort_entries(entries: Sequence[RunEntry], key: str) -> list[RunEntry]:
    def value(entry: RunEntry) -> Any:
        if key == "tokens":
            return _tokens(entry)
        return entry.endpoint if key == "model" else getattr(entry, key)

    newest_first = sorted(entries, key=lambda entry: entry.when or "", reverse=True)
    known = [entry for entry in newest_first if value(entry) is not None]
    known.sort(key=value, reverse=key not in ("name", "model", "status"))
    return [*known, *(entry for entry in newest_first if value(entry) is None)]


def _tokens(entry: RunEntry) -> int | None:
    if entry.prompt_tokens is None or entry.completion_tokens is None:
        return None
    return entry.prompt_tokens + entry.completion_tokens


def _shorten_names(entries: Sequence[RunEntry]) -> dict[Path, str]:
    """Return names as commands take them, by path: capitals@3 for capitals/2026-11-15T22-08-31."""
    names = {entry.path: entry.name for entry in entries}
    for directory in dict.fromkeys(path.parent for path in names if TIMESTAMP.fullmatch(path.name)):
        numbers = number_runs(list_history(directory))
        times = Counter(numbers.values())  # a run that was copied here may have another's number
        for path, its_number in numbers.items():
            if "/" in names.get(path, "") and times[its_number] == 1:
                names[path] = f"{names[path].rpartition('/')[0]}@{its_number}"
    return names


def _build_list(entries: Sequence[RunEntry], names: Mapping[Path, str]) -> Report:
    tokens = [_tokens(e) for e in entries]
    steps = ["" if e.step is None else f", step {e.step}" for e in entries]
    statuses = [e.status + step for e, step in zip(entries, steps, strict=True)]
    commits = [_or_dash(e.commit and e.commit[:7] + "*" * bool(e.dirty)) for e in entries]
    columns = [
        RankedColumn("run", [names[e.path] for e in entries], 9, "left"),
        RankedColumn("model", [cut(e.endpoint or "–", 28) for e in entries], 4, "left"),
        RankedColumn("environment", [cut(e.environment or "–", 28) for e in entries], 4, "left"),
        RankedColumn("mean", [number(e.mean) for e in entries], 8),
        RankedColumn("95% interval", [interval(e.ci_low, e.ci_high) for e in entries], 7, "left"),
        RankedColumn("n", [_or_dash(e.n) for e in entries], 6),
        RankedColumn("errors", [_or_dash(e.errors) for e in entries], 5),
        RankedColumn("tokens", ["–" if t is None else f"{t:,}" for t in tokens], 1),
        RankedColumn("cost", ["–" if e.cost is None else format_cost(e.cost) for e in entries], 1),
        RankedColumn("when", [_format_time(e.when) for e in entries], 6, "left"),
        *_sampling_columns(entries),
        RankedColumn("status", statuses, 6, "left"),
        RankedColumn("verdict", [_or_dash(_verdict_on(e)) for e in entries], 4, "left"),
        RankedColumn("tags", [", ".join(e.tags) for e in entries], 3, "left"),
        RankedColumn("commit", commits, 2, "left"),
        RankedColumn("note", [cut(e.note or "", 40) for e in entries], 0, "left"),
    ]
    columns = [c for c in columns if c.rank > 4 or any(cell not in ("–", "") for cell in c.cells)]
    shown = fit_columns(columns, make_console().width)
    rows = [
        [
            Span(column.cells[i], STATUS_STYLES[entry.status] if column.heading == "status" else "")
            for column in shown
        ]
        for i, entry in enumerate(entries)
    ]
    blocks: list[Block] = [Table([Column(c.heading, c.align) for c in shown], rows)]
    hidden = [column.heading for column in columns if column not in shown]
    for entry in entries:
        if entry.status == "newer":
            blocks.append(Line(f"{names[entry.path]}: {entry.reason}", style="yellow"))
        if entry.status == "stopped":  # its mean alone would be taken for that of the set
            blocks.append(Line(f"{names[entry.path]}: {entry.reason}", style="dim"))
    if hidden:
        blocks.append(Line(f"No room for {', '.join(hidden)}; --json has all.", style="dim"))
    return Report(blocks)


def _sampling_columns(entries: Sequence[RunEntry]) -> list[RankedColumn]:
    """Return the column of how answers were sampled, where that is not the same in all runs."""
    texts = describe_samplings([(entry.temperature, entry.attempts) for entry in entries])
    if not any(texts):
        return []
    return [RankedColumn("sampling", [text or "–" for text in texts], 5, "left")]


def _or_dash(value: object) -> str:
    return "–" if value is None else str(value)


def _format_time(time: str | None) -> str:
    return "–" if time is None else time[:16].replace("T", " ")


# --- rm -----------------------------------------------------------------------------------------


@click.command("rm")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--all", "every", is_flag=True, help="All runs of that name, not only the latest.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
def remove(runs: tuple[str, ...], every: bool, yes: bool, as_json: bool) -> None:
    """Remove runs: what heldout wrote, and nothing else that lies in their directories.

    NAME is the latest run of that name, NAME@3 the one with that number. The others keep theirs.
    """
    paths: dict[Path, None] = {}
    for run in runs:
        path = find_curve(run) or find_run(run)
        history = list_history(path.parent) if TIMESTAMP.fullmatch(path.name) else []
        paths |= dict.fromkeys(history if every and history else [path])
    for path in paths:
        _refuse_busy(path)
    if not yes:
        if as_json or not sys.stdin.isatty():
            raise click.UsageError("cannot ask for confirmation without a terminal: add --yes")
        for path in paths:
            entry = read_entry(path)
            mean = "" if entry.mean is None else f", mean {number(entry.mean)} of {entry.n}"
            about = f"{entry.kind} of {_format_time(entry.when)}, {entry.status}{mean}"
            click.echo(printable(f"{path}: {about}"))
        click.confirm(f"Remove {count(len(paths), 'run')}?", abort=True)
    remaining = {str(path): remove_run(path) for path in paths}
    if as_json:
        left = {path: files for path, files in remaining.items() if files}
        text = f"Removed {count(len(remaining), 'run')}."
        print_json(decide("removed", text, {"removed": [*remaining], "left": left}), "rm")
        return
    for name, files in remaining.items():
        others = f"; {count(len(files), 'file')} not of the run stay there" if files else ""
        click.echo(printable(f"Removed {name}{others}."))


def _refuse_busy(path: Path) -> None:
    run = RunDir(path)
    if has_writer(run.curve if run.curve.exists() else run.journal):
        raise RunBusy(f"{path} is being written by another process; stop that first")


def remove_run(path: Path) -> list[str]:
    """Remove the files of a run, and its directory if nothing else is in it.

    Returns:
        Names of other files, which stay.
    """
    _refuse_busy(path)
    for name in RUN_FILES:
        (path / name).unlink(missing_ok=True)
    for file in path.glob("*.damaged"):
        file.unlink()
    RunDir(path).remove_leftovers()
    for name in ("steps", "turns"):
        if (path / name).is_symlink():
            (path / name).unlink()
        elif (path / name).is_dir():
            shutil.rmtree(path / name)
    remaining = sorted(file.name for file in path.iterdir())
    for directory in (path, path.parent):
        with suppress(OSError):  # it holds something else
            directory.rmdir()
    return remaining


# --- repair -------------------------------------------------------------------------------------


@click.command("repair")
@click.argument("run")
@json_option
def repair(run: str, as_json: bool) -> None:
    """Move damaged lines of RUN aside, to results.damaged, or that of another file of lines.

    `heldout run FILE --resume` then runs their items again. A last line that was cut short is what
    a killed process leaves behind; it is ignored anyway.
    """
    path = find_curve(run) or find_run_directory(run)
    directory = RunDir(path)
    file = directory.journal

    def mark_interrupted(damaged: list[int]) -> None:
        info = directory.read_info()
        info.status, info.finished = "interrupted", now()
        info.reason = f"{count(len(damaged), 'damaged journal line')} moved aside"
        directory.write_info(info)

    if directory.curve.exists():
        file = directory.curve
        moved = repair_curve(file)
    else:
        moved = repair_journal(file, mark_interrupted) if file.exists() else []
    text = _describe_repair(file, moved)
    click.echo(printable(text), err=True)
    ahead = ahead_path(directory.journal)
    if ahead.exists():  # of a run that stops; its numbers have no part in it
        of_ahead = _describe_repair(ahead, repair_journal(ahead, lambda damaged: None))
        click.echo(printable(of_ahead), err=True)
    if directory.notes.exists():
        of_notes = _describe_repair(directory.notes, repair_notes(directory.notes))
        click.echo(printable(of_notes), err=True)
    if as_json:
        decision = "repaired" if moved else "unchanged"
        print_json(decide(decision, text, {"path": str(path), "moved": moved}), "repair")


def _describe_repair(file: Path, moved: list[int]) -> str:
    if not moved:
        return f"{file} has no damaged line."
    lines = f"line{'s' * (len(moved) > 1)} {', '.join(map(str, moved))}"
    return f"Moved damaged {lines} of {file} to {file.with_suffix('.damaged').name}."
