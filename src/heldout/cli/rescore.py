"""`heldout rescore RUN --scorer module:score_fn`: score saved trajectories with another scorer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from heldout._core.config import base_config
from heldout.cli._load import load_function
from heldout.cli._options import SettingOption
from heldout.cli.run import print_run, run_directory, stdout_for_json
from heldout.reporting.names import find_run_directory
from heldout.store.numbers import TIMESTAMP


@click.command("rescore")
@click.argument("run")
@click.option(
    "--scorer",
    "score_fn",
    required=True,
    metavar="F",
    help="module:score_fn or file.py:score_fn, a function (trajectory, sample) -> Score. Loading "
    "it runs its code.",
)
@click.option(
    "--name",
    cls=SettingOption,
    metavar="NAME",
    help="Name of the new run.  [default: RUN-rescored]",
)
@click.option("--max-concurrent", type=int, metavar="N", help="Items in flight at once.")
@click.option("--timeout", type=float, metavar="S", help="Seconds one item may take.")
@click.option("--resume", is_flag=True, help="Continue the latest run of this name.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one line of JSON.")
def command(
    run: str, score_fn: str, name: str | None, resume: bool, as_json: bool, **limits: Any
) -> None:
    """Score the saved trajectories of RUN again, into a new run that names its parent.

    Does not call the model, unless F calls one. `heldout compare RUN RUN-rescored` then shows what
    the scorer changed.
    """
    import asyncio

    from heldout._evals.rescoring import rescore

    parent = find_run_directory(run)
    output_dir, default = parent.parent, parent.name
    if parent.parent.name == "steps":
        # An eval of a curve is named as it was given: its directory is named by the step.
        output_dir, default = Path(base_config.output_dir), Path(run).name.replace(":", "-")
    elif TIMESTAMP.fullmatch(parent.name):
        # One of several runs of a name: its directory is named by the time.
        output_dir, default = parent.parent.parent, parent.parent.name
    config = replace(
        base_config,
        experiment_name=name or f"{default}-rescored",
        output_dir=str(output_dir),
        resume=resume,
        **{option: value for option, value in limits.items() if value is not None},
    )
    with stdout_for_json(as_json):
        function = load_function(score_fn, "--scorer")
        with run_directory(config) as config:
            report = asyncio.run(rescore(parent, function, config))
    print_run(report, as_json)
