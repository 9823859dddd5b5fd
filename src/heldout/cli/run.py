"""`heldout run FILE`: what the file's own main block does, with settings from outside."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from heldout.cli.evalfile import load_eval_file, settable, with_settings
from heldout.config import EvalConfig, Sampling
from heldout.evaluate import evaluate
from heldout.store.journal import repair as repair_journal
from heldout.store.rundir import RunDir

_keys = [*settable(EvalConfig), *(f"sampling.{name}" for name in settable(Sampling))]


@click.command(
    "run",
    epilog="FILE defines load_dataset() and score_fn(trajectory, sample), and may define config, "
    "prepare_messages and environment_factory. Settings: " + ", ".join(_keys) + ".",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--max-samples", type=int, metavar="N", help="Only the first N samples.")
@click.option("--max-concurrent", type=int, metavar="N", help="Items under way at once.")
@click.option(
    "--endpoint",
    metavar="E",
    help="openai:MODEL, openai:MODEL@http://host/v1, hf:PATH or smollm2.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any other setting.")
@click.option("--resume", is_flag=True, help="Go on with an unfinished run of this name.")
@click.option("--repair", is_flag=True, help="With --resume: move damaged journal lines aside.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one line of JSON.")
def command(
    file: Path,
    max_samples: int | None,
    max_concurrent: int | None,
    endpoint: str | None,
    settings: tuple[str, ...],
    resume: bool,
    repair: bool,
    as_json: bool,
) -> None:
    """Run the eval in FILE, and print its report and where it is kept."""
    from heldout.cli.render import print_json, print_report

    eval_file = load_eval_file(file)
    config = with_settings(eval_file.config, settings)
    given: dict[str, Any] = {
        "max_samples": max_samples,
        "max_concurrent": max_concurrent,
        "endpoint": endpoint,
        "resume": resume or None,
    }
    config = replace(config, **{k: v for k, v in given.items() if v is not None})
    if repair:
        if not config.resume:
            raise click.UsageError("--repair goes with --resume: moved lines have to be run again")
        assert config.experiment_name is not None
        journal = RunDir(Path(config.output_dir) / config.experiment_name).journal
        if journal.exists():
            report_repair(repair_journal(journal), journal)
    report = asyncio.run(
        evaluate(
            eval_file.load_dataset(),
            config,
            eval_file.score_fn,
            eval_file.prepare_messages,
            eval_file.environment_factory,
        )
    )
    if as_json:
        print_json(report.summary)
    else:
        print_report(report)


def report_repair(moved: list[int], journal: Path) -> None:
    if not moved:
        click.echo(f"{journal} has no damaged line.", err=True)
        return
    numbers = ", ".join(map(str, moved))
    click.echo(f"Moved damaged lines {numbers} to {journal.with_suffix('.damaged')}.", err=True)
