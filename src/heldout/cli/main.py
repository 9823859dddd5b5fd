"""Entry point: finds the command, and turns what went wrong into a message and an exit code.

0    done
1    the options were not understood, or the input is bad; nothing ran
2    the eval could not run: there is no honest number to report; or there is no such command
130  interrupted; results so far are saved

Scripts go by the exit code of `heldout gate`, so there 1 means one thing only:

0    passes
1    fails
2    no verdict: whatever is 1 elsewhere, an error in heldout itself, or what errored items count
     as decides
3    inconclusive: too few samples

Where it is not known which command was meant (`heldout gat`), the exit code is 2.
"""

from __future__ import annotations

import difflib
import errno
import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import NoReturn

import click

from heldout._format import printable
from heldout.errors import EvalFailed, HeldoutError, InvalidQuery, StorageFull

COMMANDS = {
    "run": ("run", "Run an eval file and print its report."),
    "show": ("show", "Print the report of a run, or the curve of a training run."),
    "slice": ("slice", "Print a run's report for each value of a metadata key."),
    "sql": ("sql", "Query the results of a run in SQL."),
    "compare": ("compare", "Compare two runs: is one better than the other?"),
    "rescore": ("rescore", "Score a run's saved trajectories with another grader."),
    "gate": ("gate", "Pass or fail a run against a baseline, for CI."),
    "power": ("power", "Say how many samples it takes to detect a difference."),
    "aggregate": ("aggregate", "Aggregate training runs over tasks, with intervals."),
    "view": ("view", "Look at runs, comparisons and live curves in a browser."),
    "watch": ("watch", "Draw the curve of a training run while it grows."),
    "flips": ("flips", "Print which samples changed between two steps of a curve."),
    "plot": ("curve:plot", "Plot curves into a picture."),
    "stop": ("curve:stop", "Ask a live training run to stop."),
    "env": ("agent", "Evaluate an agent over a fixed number of episodes."),
    "toolcalls": ("tool_calls", "Send a file of requests, and compare the tool calls."),
    "judge-check": ("check:judge", "Measure a judge against human labels."),
    "cache": ("cache", "Show or empty the cache of model turns."),
    "doctor": ("check:template", "Say which segments a tokenizer's chat template allows."),
}
"""The module of each command in this package, with the function's name unless it is `command`, and
its help on one line: the module is imported when the command runs."""
OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EBADF, errno.EIO)
"""Errors of standard output: a full disk, or a stream that was closed."""
VERDICT_COMMANDS = ("gate",)
"""Commands whose exit code is a verdict: 1 means "fails", so any error exits with 2."""


class LazyGroup(click.Group):
    """A group that knows its commands' names and helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a command; None if there is none of that name."""
        if name not in COMMANDS:
            return None
        module, _, function = COMMANDS[name][0].partition(":")
        command = getattr(import_module(f"heldout.cli.{module}"), function or "command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command in the arguments, or fail with the nearest name."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
            ctx.fail(f"there is no command {printable(args[0])!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="heldout", message="heldout %(version)s")
def cli() -> None:
    """Tell whether a policy is really getting better."""


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    if sys.stdout is None:  # closed by `>&-`: this stream fails when it is written to
        unwritable = FileIO(os.open(os.devnull, os.O_RDONLY), "w", closefd=False)
        sys.stdout = TextIOWrapper(BufferedWriter(unwritable), encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not Unicode gets a ? for what it lacks, not a traceback.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(run_cli(sys.argv[1:]))


def run_cli(arguments: list[str]) -> int:
    """Run a command line.

    Args:
        arguments: What follows `heldout`.

    Returns:
        The exit code.
    """
    context: click.Context | None = None
    try:
        if "_HELDOUT_COMPLETE" in os.environ:  # a shell asks for completions
            cli.main(arguments, prog_name="heldout")
        # Not by cli.main, which handles broken pipes and interrupts in its own way.
        code = 0
        try:
            with cli.make_context("heldout", arguments) as context:
                cli.invoke(context)
        except click.exceptions.Exit as exit:
            code = exit.exit_code
        sys.stdout.flush()
        return code
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message())
        return 0
    except click.ClickException as problem:
        problem.show()
        return _input_error_code(context, unknown=2)
    except (EvalFailed, StorageFull) as problem:
        _print_error(f"Eval failed: {problem}")
        if isinstance(problem, EvalFailed) and problem.run_dir:
            _print_error(f"Results so far are saved to {problem.run_dir}")
        return 2
    except InvalidQuery as problem:
        _print_error(f"Error: {problem}")
        return 2
    except HeldoutError as problem:
        _print_error(f"Error: {problem}")
        return _input_error_code(context)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return 130
    except BrokenPipeError:  # `heldout show … | head`
        forget_stdout()
        return 0
    except OSError as problem:
        text = str(problem)
        if problem.filename:  # it was named, or is in a run directory
            text = f"cannot use {problem.filename}: {problem.strerror}"
        elif problem.errno in OUTPUT_ERRORS:
            forget_stdout()
            text = f"cannot write the output: {problem.strerror}"
        _print_error(f"Error: {text}")
        return _input_error_code(context)
    except Exception:
        if _input_error_code(context) == 1:
            raise
        # The interpreter would exit with 1, which here means "fails".
        click.echo(printable(traceback.format_exc()), err=True)
        return 2


def _print_error(message: str) -> None:
    # On one line: a name from a file could pass for a message of its own.
    click.echo(printable(message.replace("\n", "\\n")), err=True)


def _input_error_code(context: click.Context | None, unknown: int = 1) -> int:
    """Return the exit code of bad input; `unknown` where no command was recognized."""
    if context is None or context.invoked_subcommand is None:
        return unknown
    return 2 if context.invoked_subcommand in VERDICT_COMMANDS else 1


def forget_stdout() -> None:
    """Discard what is still buffered: the interpreter would fail to write it at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
