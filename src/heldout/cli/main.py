"""Entry point: finds the command, and turns what went wrong into a message and an exit code.

0    done
1    the command was not understood, or its input is bad; nothing ran
2    the eval could not run: there is no honest number to report
130  interrupted; what was done is kept
"""

from __future__ import annotations

import sys
from importlib import import_module

import click

from heldout.errors import EvalFailed, HeldoutError

COMMANDS = {
    "run": ("heldout.cli.run", "Run an eval file and print its report."),
    "show": ("heldout.cli.show", "Print the report of a run."),
    "slice": ("heldout.cli.slice", "Print a run's report for each value of a metadata key."),
}


class LazyGroup(click.Group):
    """Knows its commands' names and one-line helps without loading them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = import_module(COMMANDS[name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="heldout", message="heldout %(version)s")
def cli() -> None:
    """heldout tells you whether a policy is really getting better."""


def main() -> None:
    sys.exit(run_cli(sys.argv[1:]))


def run_cli(arguments: list[str]) -> int:
    try:
        cli.main(arguments, prog_name="heldout", standalone_mode=False)
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message())
        return 0
    except click.ClickException as problem:
        problem.show()
        return 1
    except EvalFailed as problem:
        where = f"\nWhat was done is kept in {problem.run_dir}" if problem.run_dir else ""
        click.echo(f"Eval failed: {printable(str(problem))}{where}", err=True)
        return 2
    except HeldoutError as problem:
        click.echo(f"Error: {printable(str(problem))}", err=True)
        return 1
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted. What was done is kept; --resume goes on with it.", err=True)
        return 130
    except BrokenPipeError:
        # `heldout show … | head`: nobody reads on, which is no error.
        sys.stderr.close()
        return 0
    return 0


def printable(text: str) -> str:
    """Text of unknown origin without what a terminal would obey: escapes, controls, bidi marks."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


if __name__ == "__main__":
    main()
