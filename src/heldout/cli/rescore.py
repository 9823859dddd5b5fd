"""`heldout rescore RUN --with module:score_fn`: score saved trajectories with another grader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from heldout.cli._load import find_run_directory, load_function
from heldout.cli.run import print_run, report_interrupt, stdout_for_json
from heldout.config import base_config
from heldout.errors import RunExists


@click.command("rescore")
@click.argument("run")
@click.option(
    "--with",
    "score_fn",
    required=True,
    metavar="F",
    help="module:score_fn or file.py:score_fn, a function (trajectory, sample) -> Score. Loading "
    "it runs its code.",
)
@click.option("--name", metavar="NAME", help="Name of the new run.  [default: RUN-rescored]")
@click.option("--max-concurrent", type=int, metavar="N", help="Items in flight at once.")
@click.option("--timeout", type=float, metavar="S", help="Seconds one item may take.")
@click.option("--resume", is_flag=True, help="Continue an unfinished run of this name.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one line of JSON.")
def command(
    run: str,
    score_fn: str,
    name: str | None,
    max_concurrent: int | None,
    timeout: float | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Score the saved trajectories of RUN again, into a new run that names its parent.

    Does not call the model, unless F calls one. `heldout compare RUN RUN-rescored` then shows what
    the grader changed.
    """
    import asyncio

    from heldout.rescoring import rescore

    parent = find_run_directory(run)
    is_step = parent.parent.name == "steps"
    output_dir = Path(base_config.output_dir) if is_step else parent.parent
    if name is None:
        # An eval of a curve is named as it was given: its directory is named by the step.
        name = f"{(Path(run) if is_step else parent).name.replace(':', '-')}-rescored"
    run_dir = output_dir / name
    options: dict[str, Any] = {
        "experiment_name": name,
        "max_concurrent": max_concurrent,
        "timeout": timeout,
        "output_dir": str(output_dir),
        "resume": resume or None,
    }
    config = replace(base_config, **{k: v for k, v in options.items() if v is not None})
    with stdout_for_json(as_json):
        function = load_function(score_fn, "--with")
        try:
            report = asyncio.run(rescore(parent, function, config))
        except RunExists as problem:
            raise RunExists(
                f"{run_dir} already holds a run. Continue it (--resume), or choose another --name"
            ) from problem
        except KeyboardInterrupt:
            report_interrupt(run_dir)
            raise click.exceptions.Exit(130) from None
    print_run(report, as_json)
