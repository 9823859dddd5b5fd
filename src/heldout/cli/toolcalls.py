"""`heldout toolcalls FILE --endpoint E`: does a server call tools as it should?

The requests run on the engine like any eval, into a run directory that `show`, `slice` and
`compare` read. What is printed is made of that directory alone, so that a run which is complete
prints the same again and asks nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from heldout.cli.text import printable

if TYPE_CHECKING:
    from heldout.models.requests import RequestsEndpoint
    from heldout.store.report import EvalReport
    from heldout.types import Sample

LONGEST_NAME = 150
"""Characters of a run's name that is made up here."""


@click.command("toolcalls")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--endpoint",
    required=True,
    metavar="E",
    help="openai:MODEL or openai:MODEL@http://host/v1. MODEL takes the place of each request's "
    "own model.",
)
@click.option(
    "--reference",
    "references",
    multiple=True,
    metavar="RESULTS",
    help="A run of this command, or a JSONL of results. Given twice, the second is the reference "
    "run again, and shows how far it agrees with itself.",
)
@click.option(
    "--name", metavar="NAME", help="Of the run.  [default: made of FILE, model and server]"
)
@click.option(
    "--output-dir",
    default="outputs/evals",
    show_default=True,
    metavar="D",
    help="Where the run directory is made.",
)
@click.option("--max-samples", type=click.IntRange(1), metavar="N", help="Only the first N lines.")
@click.option(
    "--max-concurrent",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    metavar="N",
    help="Requests under way at once.",
)
@click.option("--resume", is_flag=True, help="Only go on with a run; never begin one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")
def command(
    file: Path,
    endpoint: str,
    references: tuple[str, ...],
    name: str | None,
    output_dir: str,
    max_samples: int | None,
    max_concurrent: int,
    resume: bool,
    as_json: bool,
) -> None:
    """Send the requests in FILE, and say how well their answers call tools.

    FILE has a chat-completions request a line: model, messages, tools, temperature and whatever
    else. Each is sent as it is, but for model, for the role _input, which becomes system, and for
    stream, which becomes false.

    The same command again goes on where it stopped: what is answered is kept, what errored is
    asked again, and of a complete run nothing is asked and nothing changes.
    """
    from heldout.analysis.tool_calls import (
        answers_of,
        check_comparable,
        compare_sets,
        load_requests,
        read_reference,
    )
    from heldout.cli.calls import calls_as_dict, print_calls
    from heldout.cli.main import writing
    from heldout.cli.render import print_json
    from heldout.models.requests import open_requests

    if len(references) > 2:
        raise click.UsageError("--reference is given once, or twice: the reference run again")
    # Whatever can be refused is refused before the first request is paid for.
    samples = load_requests(file, most=max_samples)
    requests = [sample.input for sample in samples]
    server = open_requests(endpoint, requests, max_concurrent=max_concurrent)
    name = name or _name(file, server)
    for given in references:
        if given == name or realpath(given) == realpath(Path(output_dir) / name):
            raise click.UsageError(
                f"the run {name!r} is compared with itself; --reference is another one"
            )
    read = [read_reference(given) for given in references]
    # Of one reference with repeats, the second repeat is the reference again.
    sets = [one[0] for one in read] if len(read) > 1 else [one for sets in read for one in sets[:2]]
    if sets:
        check_comparable(samples, str(file), *sets)
    report = _asked(
        samples,
        server,
        name,
        output_dir=output_dir,
        max_concurrent=max_concurrent,
        resume=resume,
    )
    candidate = answers_of(report)[0]
    compared = compare_sets(candidate, *sets) if sets else None
    with writing():
        if as_json:
            print_json(calls_as_dict(report, candidate, sets, compared))
        else:
            print_calls(report, candidate, sets, compared)


def _name(file: Path, server: RequestsEndpoint) -> str:
    """One for each file, model and server, so that the same command finds its run again."""
    stem = file.name.partition(".")[0] or file.name
    where = urlsplit(server.base_url).netloc
    whole = f"{stem}-{server.model}@{where}"
    name = re.sub(r"[^A-Za-z0-9._+=@-]+", "-", whole).lstrip("._+=@-") or "toolcalls"
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"
    return name


def _asked(
    samples: Sequence[Sample],
    server: RequestsEndpoint,
    name: str,
    *,
    output_dir: str,
    max_concurrent: int,
    resume: bool,
) -> EvalReport:
    import asyncio

    from heldout.analysis.tool_calls import opening_messages
    from heldout.config import EvalConfig
    from heldout.engine import evaluate
    from heldout.errors import ResumeMismatch, RunDirectoryError
    from heldout.scoring.tool_calls import score_calls
    from heldout.store.rundir import RunDir

    config = EvalConfig(
        endpoint=server,
        experiment_name=name,
        output_dir=output_dir,
        max_concurrent=max_concurrent,
        resume=True,
    )
    path = Path(output_dir) / name
    if resume and not RunDir(path).exists():
        raise RunDirectoryError(f"there is no run at {path} to go on with; --resume begins none")

    async def ask() -> EvalReport:
        try:
            return await evaluate(samples, config, score_calls, opening_messages)
        finally:
            await server.close()

    try:
        return asyncio.run(ask())
    except ResumeMismatch as mismatch:
        said = str(mismatch).replace("another experiment_name", "another --name")
        raise ResumeMismatch(
            f"{said}. A sample is a line of FILE; {path} may go on with lines added at the end"
        ) from None
    except KeyboardInterrupt:
        kept = f" What was answered is kept in {path}; the same command goes on."
        click.echo("Interrupted." + printable(kept) * RunDir(path).exists(), err=True)
        raise click.exceptions.Exit(130) from None
