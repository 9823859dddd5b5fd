"""`heldout cache`: what the response cache holds, and how to empty it."""

from __future__ import annotations

import time
from pathlib import Path

import click

from heldout._core.format import count
from heldout.cli._options import json_option
from heldout.cli._tables import decide, print_json
from heldout.models.cache import ResponseCache, default_path

DAY = 86400.0


@click.group("cache", invoke_without_command=True)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Show or empty the cache of model turns that `heldout run --cache` uses.

    Without COMMAND, show the default cache file.
    """
    if context.invoked_subcommand is None:
        context.invoke(show, as_json=as_json)
    elif as_json:
        context.default_map = {"show": {"as_json": True}, "clear": {"as_json": True}}


@command.command("show", short_help="Print size, entries and age of cache files.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per file.")
def show(paths: tuple[Path, ...] = (), as_json: bool = False) -> None:
    """Print size, entries and age of cache files: the default one, or those at PATH."""
    for path in paths or (default_path(),):
        if not path.exists():
            if as_json:
                nothing = {"path": str(path), "entries": 0, "bytes": 0}
                print_json(decide("none", f"There is no cache at {path}.", nothing), "cache show")
            else:
                click.echo(f"{path}: no cache yet; `heldout run --cache` makes one")
            continue
        with ResponseCache(path) as cache:
            info = cache.info()
        line = f"{path}: {count(info.entries, 'turn')}, {info.bytes / 1e6:.1f} MB"
        if info.oldest is not None and info.newest is not None:
            oldest, newest = ((time.time() - when) / DAY for when in (info.oldest, info.newest))
            line += f", stored {oldest:.1f} to {newest:.1f} days ago"
        if as_json:
            plain = {"path": str(path), **info._asdict()}
            print_json(decide("cached" if info.entries else "empty", line, plain), "cache show")
        else:
            click.echo(line)


@command.command("clear")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="DAYS",
    help="Only turns that were stored at least so many days ago.",
)
@json_option
def clear(path: Path | None, older_than: float, as_json: bool) -> None:
    """Remove the turns in the default cache file, or in the one at PATH."""
    path = path or default_path()
    removed = 0
    if path.exists():
        with ResponseCache(path) as cache:
            removed = cache.clear(older_than=older_than * DAY)
    text = f"{path}: removed {count(removed, 'turn')}"
    if as_json:
        decision = "removed" if removed else "unchanged"
        print_json(decide(decision, text, {"path": str(path), "removed": removed}), "cache clear")
    else:
        click.echo(text)
