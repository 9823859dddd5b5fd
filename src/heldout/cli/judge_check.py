"""`heldout judge-check LABELS --judge E`: is a model fit to be a judge?"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from heldout.analysis.asking import OnAnswer
    from heldout.analysis.judging import JudgeCheck
    from heldout.analysis.labels import Kind
    from heldout.scoring.judges import Judge

OF_A_JUDGE = ("cache", "max_concurrent", "timeout", "max_tokens", "extra")
"""Options that a Judge has settings for."""


@click.command("judge-check")
@click.argument("labels", type=click.Path(path_type=Path))
@click.option(
    "--judge",
    "endpoint",
    required=True,
    metavar="E",
    help="openai:MODEL, openai:MODEL@http://host/v1, hf:PATH or smollm2; or module:name, "
    "file.py:name of a Judge, an endpoint or a function of the messages.",
)
@click.option(
    "--kind",
    type=click.Choice(["equality", "three-way", "criteria", "pairwise"]),
    default="equality",
    show_default=True,
    help="What the judge is asked.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    metavar="N",
    help="How often it is asked about each item: agreement with itself takes two.",
)
@click.option(
    "--cache", type=click.Path(path_type=Path), metavar="FILE", help="Keep verdicts here."
)
@click.option(
    "--max-concurrent",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    metavar="N",
    help="Requests under way at once.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Seconds for one request, which is tried again then.",
)
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Of a reply, at most.")
@click.option(
    "--extra",
    metavar="JSON",
    help="Goes into every request to a server as it is: '{\"temperature\": 1}'.",
)
@click.option(
    "--failures",
    type=click.IntRange(1),
    metavar="N",
    help="N items on which judge and label differ, with the judge's reasons.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")
@click.pass_context
def command(
    context: click.Context,
    labels: Path,
    endpoint: str,
    kind: Kind,
    repeats: int,
    cache: Path | None,
    max_concurrent: int,
    timeout: float,
    max_tokens: int | None,
    extra: str | None,
    failures: int | None,
    as_json: bool,
) -> None:
    """Measure a judge against people's labels, and against itself.

    LABELS has a line of JSON for each answer: {"question", "answer", "target", "label"}, with label
    true or false; for three-way correct, incorrect or not_attempted. For pairwise there are "first"
    and "second" instead of the answer, and label is first, second or tie; for criteria there are
    "criteria", [{"id", "description"}], and label says true or false of each id. An "id" may be
    given.
    """
    from heldout.analysis.labels import read_labels
    from heldout.cli.judge_report import as_dict, print_check, print_failures
    from heldout.cli.main import writing
    from heldout.cli.render import print_json
    from heldout.cli.text import printable
    from heldout.errors import SystemicFailure

    items = read_labels(labels, kind)
    given = {
        name: value
        for name, value in context.params.items()
        if name in OF_A_JUDGE
        and context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    judge, opened = _judge(endpoint, given, max_concurrent=max_concurrent, timeout=timeout)
    asked = {"kind": kind, "repeats": repeats, "max_concurrent": max_concurrent}
    try:
        check = _run(judge, items, opened, **asked)
    except SystemicFailure as problem:
        click.echo(f"Check failed: {printable(str(problem))}", err=True)
        raise click.exceptions.Exit(2) from None
    except KeyboardInterrupt:
        kept = f"Verdicts so far are kept in {judge.cache}; the same command asks for the others."
        if judge.cache is None:
            kept = "Nothing is kept; with --cache FILE verdicts are."
        click.echo(f"Interrupted. {printable(kept)}", err=True)
        raise click.exceptions.Exit(130) from None
    shown = check.differences[: failures or 0]
    with writing():
        if as_json:
            more = {} if failures is None else {"failures": [as_dict(one) for one in shown]}
            print_json(check.as_dict() | more)
        else:
            print_check(check)
            if failures is not None:
                print_failures(shown, len(check.differences))


def _judge(
    named: str, given: Mapping[str, Any], *, max_concurrent: int, timeout: float
) -> tuple[Judge, Any]:
    """The judge of this name, with the options that were given; and what was opened for it."""
    from heldout._providers import KINDS
    from heldout.cli.imported import imported_object
    from heldout.config import Sampling, check_endpoint
    from heldout.errors import InvalidInput
    from heldout.scoring.judges import Judge

    endpoint: Any = named
    opened = None
    scheme = named.partition(":")[0]
    if ":" in named and scheme not in KINDS:
        endpoint = imported_object(named, "--judge")
        if isinstance(endpoint, Judge):
            if given:
                option = f"--{next(iter(given)).replace('_', '-')}"
                raise InvalidInput(
                    f"{named} is a Judge with settings of its own; leave out {option}"
                )
            return endpoint, None
        if endpoint is None:
            raise InvalidInput(f"--judge: there is no {named}")
    check_endpoint(endpoint)
    if "extra" in given:
        if scheme != "openai":
            raise InvalidInput("--extra goes to a server: --judge openai:MODEL or openai:MODEL@URL")
        from heldout.models.http import HTTPEndpoint

        plain = HTTPEndpoint.parse(named.partition(":")[2], max_connections=max_concurrent)
        endpoint = opened = HTTPEndpoint(
            plain.model,
            plain.base_url,
            max_connections=max_concurrent,
            extra=_extra(given["extra"]),
        )
    judge = Judge(
        endpoint,
        sampling=Sampling(max_tokens=given.get("max_tokens")),
        cache=given.get("cache"),
        max_concurrent=max_concurrent,
        timeout=timeout,
    )
    return judge, opened


def _extra(text: str) -> dict[str, Any]:
    import json

    from heldout.errors import InvalidInput

    try:
        extra = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise InvalidInput(f"--extra is no JSON: {problem}") from None
    if not isinstance(extra, dict):
        raise InvalidInput(f"--extra is a JSON object, got {text!r:.100}")
    return extra


def _run(judge: Judge, items: Sequence[Any], opened: Any, **asked: Any) -> JudgeCheck:
    import asyncio

    from heldout.analysis import check_judge

    async def run() -> JudgeCheck:
        try:
            return await check_judge(judge, items, on_answer=_progress(), **asked)
        finally:
            await judge.close()
            if opened is not None:
                await opened.close()

    try:
        return asyncio.run(run())
    finally:
        if sys.stderr.isatty():
            click.echo("\r\x1b[K", err=True, nl=False)


def _progress() -> OnAnswer | None:
    """On a terminal, how far it is."""
    if not sys.stderr.isatty():
        return None
    began = time.monotonic()

    def show(done: int, of: int, errors: int) -> None:
        line = progress_line(done, of, errors, time.monotonic() - began)
        click.echo(f"\r\x1b[K{line}", err=True, nl=False)

    return show


def progress_line(done: int, of: int, errors: int, seconds: float) -> str:
    from heldout.cli.differences import counted

    wrong = f", {counted(errors, 'error')}" if errors else ""
    minutes, rest = divmod(int(seconds), 60)
    return f"asked {done} of {of}{wrong}, {minutes}:{rest:02d}"
