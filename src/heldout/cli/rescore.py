"""`heldout rescore RUN --with module:score_fn`: another grader, the same answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from heldout._format import printable


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
@click.option("--max-concurrent", type=int, metavar="N", help="Items under way at once.")
@click.option("--timeout", type=float, metavar="S", help="Seconds one item may take.")
@click.option("--resume", is_flag=True, help="Go on with an unfinished run of this name.")
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
    """Score the saved trajectories of RUN again, into a new run beside it that names its parent.

    No model is asked, unless F asks one. `heldout compare RUN RUN-rescored` then shows what the
    grader changed.
    """
    import asyncio
    import sys
    from contextlib import nullcontext, redirect_stdout

    from heldout.cli.imported import imported
    from heldout.cli.named import find_named
    from heldout.cli.render import print_json, print_report
    from heldout.config import base_config
    from heldout.errors import RunExists
    from heldout.rescoring import rescore

    parent = find_named(run)
    beside = parent.parent if parent.parent.name != "steps" else Path(base_config.output_dir)
    name = name or _default_name(parent, run)
    given: dict[str, Any] = {
        "experiment_name": name,
        "max_concurrent": max_concurrent,
        "timeout": timeout,
        "output_dir": str(beside),
        "resume": resume or None,
    }
    config = replace(base_config, **{k: v for k, v in given.items() if v is not None})
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        function = imported(score_fn, "--with")
        try:
            report = asyncio.run(rescore(parent, function, config))
        except RunExists as taken:
            raise RunExists(
                f"{beside / name} already holds a run. Go on with it (--resume), or choose "
                "another --name"
            ) from taken
        except KeyboardInterrupt:
            click.echo(
                printable(
                    f"Interrupted. What was done is kept in {beside / name}; go on with --resume."
                ),
                err=True,
            )
            raise click.exceptions.Exit(130) from None
    if as_json:
        print_json(report.summary)
    else:
        print_report(report)


def _default_name(parent: Path, given: str) -> str:
    """After the run; of an eval of a curve, after how it was named: its own name is a number."""
    name = parent.name if parent.parent.name != "steps" else Path(given).name
    return f"{name.replace(':', '-')}-rescored"
