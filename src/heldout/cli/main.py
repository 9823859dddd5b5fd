"""Entry point: finds the command, and turns what went wrong into a message and an exit code.

With --json standard output is JSON whatever happens: an error is {"error": {"kind", "message",
"hint"}}. The message goes to standard error, too.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from io import BufferedWriter, FileIO, TextIOWrapper
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import click

from heldout._core.format import printable
from heldout.errors import (
    EvalFailed,
    HeldoutError,
    InvalidInput,
    RunDirectoryError,
    StorageFull,
)

GROUPS = {
    "Run and look": {
        "run": ("run", "Run an eval file and print its report."),
        "rescore": ("rescore", "Score the saved trajectories of a run with another scorer."),
        "tasks": ("tasks", "List evals of other packages that `heldout run` takes by name."),
        "list": ("list", "List runs: model, mean with interval, tokens, status, commit."),
        "show": ("show", "Print the report of a run, its slices, or a training curve."),
        "view": ("view", "Look at runs, comparisons and live curves in a browser."),
        "ctl": ("ctl", "Steer a run while it runs: pause it, slow it down, retry errors."),
        "sql": ("sql", "Query the results of a run in SQL."),
    },
    "Compare and decide": {
        "compare": ("compare", "Compare two runs: is one better than the other?"),
        "gate": ("gate", "Pass or fail a run against a baseline, for CI."),
        "race": ("race", "Run several models until the best is known; losers stop costing."),
        "power": ("power", "Plan how many samples it takes to detect a difference."),
        "aggregate": ("aggregate", "Aggregate training runs (seeds) over tasks, with intervals."),
    },
    "Training": {
        "curve": ("curve", "Watch or plot a training curve, list its flips, stop the run."),
        "agent": ("agent", "Evaluate an agent over a fixed number of episodes."),
    },
    "Judges and tools": {
        "check": (
            "check",
            "Check an eval, a judge, a chat template, or the sandbox.",
        ),
        "tool-calls": ("tool_calls", "Send a file of requests, and check the tool calls."),
    },
    "Housekeeping": {
        "import": ("import_:import_command", "Make runs of logs of Inspect, lm-eval or verifiers."),
        "export": ("import_:export_command", "Write a run as a log of Inspect."),
        "cache": ("cache", "Show or empty the cache of model turns."),
        "repair": ("list:repair", "Move damaged lines of a run aside."),
        "rm": ("list:remove", "Remove runs."),
        "schema": ("schema", "Print the JSON schema of what a command prints with --json."),
    },
}
"""By what they are for, the module of each command in this package, with the function's name unless
it is `command`, and its help on one line: the module is imported when the command runs."""
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}
EXIT_CODES = {
    0: "fine",
    1: "the answer is no: the gate fails, the check does not pass",
    2: "usage or bad input; nothing ran",
    3: "inconclusive: too few samples",
    4: "could not run: there is no number to report",
    130: "interrupted; results so far are saved",
}
OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EBADF)
"""Errors of standard output: a full disk, or a stream that was closed."""


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
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, COMMANDS, n=1)
            if name.endswith(".py"):
                near = [f"run {printable(name)}"]
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
            ctx.fail(f"there is no command {printable(name)!r}; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, and what exit codes mean."""
        widest = max(map(len, COMMANDS))  # so that the texts of all groups are aligned
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(widest), text) for name, (_, text) in commands.items()]
                )
        with formatter.section("Exit codes of all commands"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="heldout", message="heldout %(version)s")
def cli() -> None:
    """Tell whether a policy is really getting better.

    RUN is a run directory or a name under outputs/evals: `capitals` is the latest run of that name,
    `capitals@3` the third, `capitals@2026-11-15` the latest of that day, and `rl@200` the eval at
    step 200 of a training curve. With --json a command prints JSON, errors included.
    """


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


class _Failure(NamedTuple):
    """Why a command failed."""

    code: int
    kind: str
    """What scripts know it by, such as invalid_input."""
    message: str
    hint: str | None = None
    lines: Sequence[str] | None = None
    """What standard error says; None for "Error: " and the message."""
    about: Mapping[str, Any] = MappingProxyType({})
    """Further fields."""


def run_cli(arguments: list[str]) -> int:
    """Run what follows `heldout` on a command line, and return the exit code."""
    if "_HELDOUT_COMPLETE" in os.environ:  # a shell asks for completions
        cli.main(arguments, prog_name="heldout")
    try:
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
    except BrokenPipeError:  # `heldout show … | head`
        forget_stdout()
        return 0
    except BaseException as problem:  # noqa: BLE001 - each becomes a message and an exit code
        failure = _explain(problem, arguments)
        if isinstance(problem, HeldoutError):
            failure = failure._replace(about=problem.about)
    lines = [f"Error: {failure.message}"] if failure.lines is None else failure.lines
    for line in lines:  # a line break in a name could pass for a message of its own
        click.echo(printable(line.replace("\n", "\\n")), err=True)
    with suppress(OSError, ValueError):  # the problem may be that nothing can be written
        if "--json" in arguments or arguments[:1] == ["agent"]:  # which always prints JSON
            from heldout.cli._tables import print_json

            error = {"kind": failure.kind, "message": failure.message, "hint": failure.hint}
            print_json({"error": {**error, **failure.about}}, "error")
        elif "--markdown" in arguments and arguments[0] == "gate":
            _print_refusal(failure)
    return failure.code


def _explain(problem: BaseException, arguments: list[str]) -> _Failure:
    text = str(problem)
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(problem).__name__).lower()
    hint = problem.hint if isinstance(problem, HeldoutError) else None
    match problem:
        case click.exceptions.Abort() | KeyboardInterrupt():
            message = f"Interrupted. {text}".rstrip()
            return _Failure(130, "interrupted", message, lines=[message])
        case click.ClickException():
            return _explain_usage(problem, kind)
        case EvalFailed() | StorageFull():
            noun = "Check" if arguments[0] == "check" else "Eval"
            run_dir = problem.run_dir if isinstance(problem, EvalFailed) else None
            saved = [f"Results so far are saved to {run_dir}"] if run_dir else []
            return _Failure(
                4, kind, text, saved[0] if saved else hint, [f"{noun} failed: {text}", *saved]
            )
        case InvalidInput() | RunDirectoryError():
            return _Failure(2, kind, text, hint)
        case HeldoutError():
            return _Failure(4, kind, text, hint)
        case OSError() if problem.filename:  # it was named, or is in a run directory
            return _Failure(2, "os_error", f"cannot use {problem.filename}: {problem.strerror}")
        case OSError():
            if problem.errno in OUTPUT_ERRORS or (problem.errno == errno.EIO and _is_output_gone()):
                forget_stdout()
                text = f"cannot write the output: {problem.strerror}"
            return _Failure(4, "os_error", text)
        case SystemExit():
            # Let through, it could end with 0, as if all were well.
            from heldout.cli._load import describe_error

            text = f"user code left the program, so there is no report: {describe_error(problem)}"
            return _Failure(4, "eval_failed", text)
    # The interpreter would exit with 1, which means "the answer is no".
    trace = "".join(traceback.format_exception(problem)).splitlines()
    message = f"{type(problem).__name__}: {text}"
    return _Failure(4, "internal_error", message, "an error in heldout: report it", trace)


def _explain_usage(problem: click.ClickException, kind: str) -> _Failure:
    context = problem.ctx if isinstance(problem, click.UsageError) else None
    if isinstance(problem, click.NoSuchOption) and context and context.info_name == "run":
        from heldout.cli.run import SHOWN, setting_types

        name = problem.option_name.lstrip("-").replace("-", "_")
        if {name, f"sampling.{name}"} & setting_types().keys():
            key = SHOWN.get(name, name)
            text = f"there is no option {problem.option_name}: write --set {key}=VALUE"
            problem = click.UsageError(text, context)
    problem.show()
    kind = "no_such_option" if kind == "no_such_option" else "usage_error"
    hint = f"see `{context.command_path} --help`" if context else None
    return _Failure(2, kind, problem.format_message(), hint, [])


def _print_refusal(failure: _Failure) -> None:
    """Say in Markdown that there is no verdict, or the job summary of a refused run is empty."""
    from heldout.cli._tables import escape_markdown

    reason = failure.message
    if failure.kind == "internal_error":
        reason = "an internal error of heldout, which the log has"
    click.echo(f"### No verdict\n\n{escape_markdown(reason, longest=3000)}")


def _is_output_gone() -> bool:
    """Return whether standard output is a terminal that was closed: a disk has the same error."""
    try:
        os.write(sys.stdout.fileno(), b"")
    except (OSError, ValueError):
        return True
    return False


def forget_stdout() -> None:
    """Discard what is still buffered: the interpreter would fail to write it at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
