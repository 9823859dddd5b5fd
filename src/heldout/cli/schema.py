"""`heldout schema [COMMAND]`: the JSON that commands print, as JSON Schema."""

from __future__ import annotations

import click

from heldout.cli._tables import print_json
from heldout.cli.outputs import OUTPUTS, build_schema
from heldout.errors import InvalidInput


@click.command("schema")
@click.argument("names", nargs=-1, metavar="[COMMAND]")
@click.option("--json", "as_json", is_flag=True, hidden=True)
@click.option("--all", "every", is_flag=True, help="The schemas of all commands, by name.")
def command(names: tuple[str, ...], as_json: bool, every: bool) -> None:
    """Print the JSON Schema of what COMMAND prints with --json; without COMMAND, their names.

    `heldout schema error` is that of errors, `heldout schema curve watch` that of a subcommand.
    """
    name = {"curve show": "show-curve"}.get(" ".join(names), " ".join(names))
    if every:
        print_json({known: build_schema(known) for known in OUTPUTS}, None)
        return
    if not name:
        print_json([*OUTPUTS], None)
        return
    if name not in OUTPUTS:
        raise InvalidInput(f"there is no schema {name!r}; there are {', '.join(OUTPUTS)}")
    print_json(build_schema(name), None)
