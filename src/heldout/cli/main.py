"""Entry point: finds the command, and turns what went wrong into a message and an exit code.

0    done
1    the command's options were not understood, or its input is bad; nothing ran
2    the eval could not run: there is no honest number to report; or there is no such command
130  interrupted; what was done is kept

`heldout gate` is for scripts that go by its exit code, so there 1 means one thing only:

0    passes
1    fails
2    no verdict: whatever would be 1 elsewhere, or an error of heldout's own; or what errored items
     count as decides
3    cannot tell: too few samples

Where it is not known which command was meant (`heldout gat`), it may have been that one: 2.
"""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import NoReturn

import click

from heldout.cli.text import printable
from heldout.errors import EvalFailed, HeldoutError, StorageFull

COMMANDS = {
    "run": ("heldout.cli.run", "Run an eval file and print its report."),
    "show": ("heldout.cli.show", "Print the report of a run."),
    "slice": ("heldout.cli.slice", "Print a run's report for each value of a metadata key."),
    "compare": ("heldout.cli.compare", "Say whether one run is better than another."),
    "rescore": ("heldout.cli.rescore", "Score a run's saved answers again with another grader."),
    "gate": ("heldout.cli.gate", "Pass or fail a run against a baseline, for CI."),
    "power": ("heldout.cli.power", "Say how many samples it takes to see a difference."),
    "aggregate": ("heldout.cli.aggregate", "Sum up training runs over tasks, with intervals."),
    "watch": ("heldout.cli.watch", "Draw the curve of a training while it grows."),
    "flips": ("heldout.cli.flips", "Print which samples changed between two steps of a curve."),
    "plot": ("heldout.cli.plot", "Draw curves into a picture."),
    "stop": ("heldout.cli.stop", "Ask a live training to stop."),
    "env": ("heldout.cli.env", "Evaluate an agent over exactly so many episodes."),
    "toolcalls": ("heldout.cli.toolcalls", "Ask a file of requests, and compare the tool calls."),
    "judge-check": ("heldout.cli.judge_check", "Measure a judge against people's labels."),
    "cache": ("heldout.cli.cache", "Show or empty the cache of model turns."),
    "doctor": ("heldout.cli.doctor", "Say which segments a tokenizer's chat template allows."),
}
VERDICTS = ("gate",)
"""Commands whose exit code is a verdict. 1 means "fails", so what is none exits 2."""


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
            ctx.fail(f"there is no command {printable(args[0])!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="heldout", message="heldout %(version)s")
def cli() -> None:
    """heldout tells you whether a policy is really getting better."""


def main() -> NoReturn:
    if sys.stdout is None:  # `>&-`; a stream that takes nothing says so when it is written to
        unwritable = FileIO(os.open(os.devnull, os.O_RDONLY), "w", closefd=False)
        sys.stdout = TextIOWrapper(BufferedWriter(unwritable), encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not Unicode gets a ? for what it lacks, not a traceback.
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(run_cli(sys.argv[1:]))


def run_cli(arguments: list[str]) -> int:
    context: click.Context | None = None
    try:
        if "_HELDOUT_COMPLETE" in os.environ:  # a shell asks what could come next
            cli.main(arguments, prog_name="heldout")
        # Not by cli.main, which has views of its own on broken pipes and interrupts.
        with cli.make_context("heldout", arguments) as context:
            cli.invoke(context)
        with writing():
            return 0
    except click.exceptions.Exit as left:
        return left.exit_code
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message())
        return 0
    except click.ClickException as problem:
        problem.show()
        return _refused(context, unknown=2)
    except (EvalFailed, StorageFull) as problem:
        _say(f"Eval failed: {problem}")
        if isinstance(problem, EvalFailed) and problem.run_dir:
            _say(f"What was done is kept in {problem.run_dir}")
        return 2
    except HeldoutError as problem:
        _say(f"Error: {problem}")
        return _refused(context)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return 130
    except BrokenPipeError:
        # `heldout show … | head`: nobody reads on, which is no error.
        forget_stdout()
        return 0
    except OSError as problem:  # of a file that was named, or that is in a run directory
        said = f"cannot use {problem.filename}: {problem.strerror}"
        _say(f"Error: {said if problem.filename else problem}")
        return _refused(context)
    except Exception:
        if _refused(context) == 1:
            raise
        # The interpreter would exit 1, which here means "fails".
        click.echo(printable(traceback.format_exc()), err=True)
        return 2


def _say(message: str) -> None:
    """On one line: what a file has put into a message could pass for a message of its own."""
    click.echo(printable(message.replace("\n", "\\n")), err=True)


def _refused(context: click.Context | None, unknown: int = 1) -> int:
    """The exit code of what was not understood, or has bad input; `unknown` is that of a command
    line that names no command."""
    if context is None or context.invoked_subcommand is None:
        return unknown
    return 2 if context.invoked_subcommand in VERDICTS else 1


@contextmanager
def writing() -> Iterator[None]:
    """What is printed within is out at the end, or the command says that it could not be."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as problem:
        forget_stdout()
        raise click.ClickException(f"cannot write the output: {problem.strerror}") from None


def forget_stdout() -> None:
    """What is still in the buffer goes nowhere, or the interpreter would trip over it on its way
    out."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
