"""`heldout run FILE`: what the file's own main block does, with settings from outside."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heldout.cli.text import printable
from heldout.errors import EvalFailed

if TYPE_CHECKING:
    from heldout.store.report import EvalReport


class _WithSettings(click.Command):
    """Lists the settings in its help. They are looked up there, and not on the way to a run."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from heldout.cli.settings import help_rows

        with formatter.section("Settings (--set KEY=VALUE)"):
            formatter.write_dl(help_rows())
        super().format_epilog(ctx, formatter)


@click.command(
    "run",
    cls=_WithSettings,
    epilog="Options of their own, such as --max-samples, win over --set, and both over the config "
    "in FILE. sampling.stop takes texts with commas between them, or a JSON list of texts.",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--max-samples", type=int, metavar="N", help="Only the first N samples.")
@click.option("--max-concurrent", type=int, metavar="N", help="Items under way at once.")
@click.option(
    "--endpoint",
    metavar="E",
    help="openai:MODEL, openai:MODEL@http://host/v1, PROVIDER:MODEL, hf:PATH or smollm2.",
)
@click.option("--cache", is_flag=True, help="Take model turns from the cache (docs/models.md).")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting (below).")
@click.option("--resume", is_flag=True, help="Go on with an unfinished run of this name.")
@click.option("--repair", is_flag=True, help="With --resume: move damaged journal lines aside.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one line of JSON.")
def command(
    file: Path,
    max_samples: int | None,
    max_concurrent: int | None,
    endpoint: str | None,
    cache: bool,
    settings: tuple[str, ...],
    resume: bool,
    repair: bool,
    as_json: bool,
) -> None:
    """Run the eval in FILE, and print its report and where it is kept.

    FILE is Python. It defines load_dataset() and score_fn(trajectory, sample), and may define
    config, prepare_messages and environment_factory. Or it has a definition: an EvalDefinition,
    such as from_verifiers(...) gives.
    """
    import asyncio

    from heldout.cli.evalfile import load_eval_file
    from heldout.cli.render import print_json, print_report
    from heldout.cli.settings import with_settings
    from heldout.engine import evaluate

    given: dict[str, Any] = {
        "max_samples": max_samples,
        "max_concurrent": max_concurrent,
        "endpoint": endpoint,
        "cache": cache or None,
        "resume": resume or None,
    }
    # What the eval file prints must not get between a program and its line of JSON.
    aside: AbstractContextManager[Any] = redirect_stdout(sys.stderr) if as_json else nullcontext()
    with aside, _exits_named(file):
        eval_file = load_eval_file(file)
        config = with_settings(
            eval_file.config, settings, {k: v for k, v in given.items() if v is not None}
        )
        run_dir = Path(config.output_dir) / (config.experiment_name or "")
        if repair:
            if not config.resume:
                raise click.UsageError("--repair goes with --resume, which runs moved lines again")
            repair_run(run_dir)
        samples = eval_file.samples()
        try:
            report = asyncio.run(
                evaluate(
                    samples,
                    config,
                    eval_file.score_fn,
                    eval_file.prepare_messages,
                    eval_file.environment_factory,
                )
            )
        except KeyboardInterrupt:
            kept = f" What was done is kept in {run_dir}; go on with --resume."
            begun = config.experiment_name is not None and run_dir.is_dir()
            click.echo("Interrupted." + printable(kept) * begun, err=True)
            raise click.exceptions.Exit(130) from None
    if config.cache:
        print_cache_use(report)
    if as_json:
        print_json(report.summary)
    else:
        print_report(report)


def print_cache_use(report: EvalReport) -> None:
    """Say on standard error how many model turns of a run came from the response cache."""
    from heldout.models.cache import count_turns

    cached, sent = count_turns(report.results)
    click.echo(f"{cached} model turns came from the cache; {sent} requests were sent.", err=True)


@contextmanager
def _exits_named(file: Path) -> Iterator[None]:
    """An exit of the eval file's own is no exit of this command: it would say that all is well."""
    try:
        yield
    except SystemExit as left:
        raise EvalFailed(
            f"code of {file} ended the process (SystemExit: {left}); there is no report"
        ) from left


def repair_run(path: Path) -> int:
    """Move damaged journal lines aside and say so; returns how many there were."""
    from heldout.store.journal import repair
    from heldout.store.run_dir import RunDir

    journal = RunDir(path).journal
    moved = repair(journal) if journal.exists() else []
    if moved:
        which = f"line{'s' * (len(moved) > 1)} {', '.join(map(str, moved))}"
        text = f"Moved damaged {which} of {journal} to {journal.with_suffix('.damaged').name}."
    else:
        text = f"{journal} has no damaged line."
    click.echo(printable(text), err=True)
    return len(moved)
