"""`heldout tool-calls FILE --model M`: does a server call tools as it should?

The requests run on the engine like any eval, into a run directory that `show` and
`compare` read. What is printed is made from that directory alone, so a complete run prints the same
again and does not call the model.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from heldout._core.config import EvalConfig
from heldout._core.format import count, cut, interval, list_some, number
from heldout.cli._options import SettingOption, count_option, json_option
from heldout.cli._tables import decide, print_json, print_report
from heldout.errors import ResumeMismatch, RunDirectoryError
from heldout.reporting.blocks import Column, Line, Report, Span, Table
from heldout.reporting.summaries import describe_report

if TYPE_CHECKING:
    from heldout.analysis.tool_calls import CallSet
    from heldout.models.requests import RequestsEndpoint
    from heldout.store.report import EvalReport
    from heldout.types import Sample

MAX_NAME = 150
"""Characters of a run's name that is made up here."""
LISTED = 10
"""Finish reasons, and problems, that are listed."""
TRIGGER_ROWS = {
    "precision": "trigger precision",
    "recall": "trigger recall",
    "f1": "trigger F1",
    "same_calls": "same calls",
    "tp": "both call (TP)",
    "fp": "only this run (FP)",
    "fn": "only the reference (FN)",
    "tn": "neither (TN)",
    "unmatched": "unmatched",
}


@click.command("tool-calls")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--model",
    "endpoint",
    cls=SettingOption,
    required=True,
    metavar="M",
    help="openai:MODEL or openai:MODEL@http://host/v1. MODEL replaces the model of each request.",
)
@click.option(
    "--baseline",
    "references",
    multiple=True,
    metavar="RESULTS",
    help="The reference: a run of this command, or a JSONL of results. A second one is "
    "another run of the reference, which shows how far it agrees with itself.",
)
@click.option(
    "--name",
    cls=SettingOption,
    metavar="NAME",
    help="Name of the run.  [default: made of FILE, model and server]",
)
@click.option(
    "--output-dir",
    default="outputs/evals",
    show_default=True,
    metavar="D",
    help="Where the run directory is made.",
)
@count_option("-n", "--limit", "max_samples", cls=SettingOption, help="Only the first N lines.")
@click.option(
    "--max-concurrent",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    metavar="N",
    help="Requests in flight at once.",
)
@click.option("--resume", is_flag=True, help="Continue a run, and fail if there is none.")
@json_option
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
    """Send the requests in FILE, and report how well the responses call tools.

    FILE has one chat-completions request per line: model, messages, tools, temperature and any
    other field. Each is sent as it is, except for model, for the role _input, which becomes system,
    and for stream, which becomes false.

    The same command again continues where it stopped: responses are kept, errored requests are sent
    again, and for a complete run nothing is sent and nothing changes.
    """
    from heldout.analysis.tool_calls import (
        load_call_sets,
        load_requests,
        read_reference,
        unanswered,
    )
    from heldout.models.requests import open_requests

    if len(references) > 2:
        raise click.UsageError("--baseline is given once, or twice: the reference run again")
    # Whatever can be refused is refused before the first request is paid for.
    samples = load_requests(file, limit=max_samples)
    server = open_requests(endpoint, [s.input for s in samples], max_concurrent=max_concurrent)
    name = name or _make_name(file, server)
    run_dir = Path(output_dir) / name
    for reference in references:
        if reference == name or realpath(reference) == realpath(run_dir):
            raise click.UsageError(
                f"the run {name!r} is compared with itself; --baseline is another one"
            )
    loaded = [read_reference(reference) for reference in references]
    # The second repeat of a single reference is the reference again.
    reference_sets = loaded[0][:2] if len(loaded) == 1 else [sets[0] for sets in loaded]
    _compare_with_reference(unanswered(str(file), samples), reference_sets)
    config = EvalConfig(
        max_error_rate=1,  # errored requests are counted, and part of no rate
        endpoint=server,
        experiment_name=name,
        output_dir=output_dir,
        max_concurrent=max_concurrent,
        resume=True,
    )
    report = _send_requests(samples, server, config, run_dir, resume=resume)
    calls = _describe_calls(report, load_call_sets(report)[0], reference_sets)
    if as_json:
        accuracy = _format_rate(calls["schema_accuracy"])
        text = (
            f"{count(calls['requests'], 'request')}: {calls['answered']} answered, "
            f"{calls['errored']} errored; schema accuracy {accuracy}."
        )
        print_json(decide("errored" if calls["errored"] else "complete", text, calls), "tool-calls")
    else:
        print_report(_build_report(report, calls))


def _compare_with_reference(
    candidate: CallSet, references: Sequence[CallSet]
) -> list[dict[str, Any]]:
    """Compare a candidate with the reference, and then the reference run again."""
    from heldout.analysis.tool_calls import compare_call_sets

    if not references:
        return []
    first, *again = references
    return [compare_call_sets(calls, first).as_dict() for calls in (candidate, *again)]


def _make_name(file: Path, server: RequestsEndpoint) -> str:
    """Make a name of file, model and server, so that the same command finds its run again."""
    stem = file.name.partition(".")[0] or file.name
    text = f"{stem}-{server.model}@{urlsplit(server.base_url).netloc}"
    return re.sub(r"[^A-Za-z0-9._+=@-]+", "-", text)[-MAX_NAME:].lstrip("._+=@-")


def _send_requests(
    samples: Sequence[Sample],
    server: RequestsEndpoint,
    config: EvalConfig,
    run_dir: Path,
    *,
    resume: bool,
) -> EvalReport:
    import asyncio

    from heldout._evals.engine import evaluate
    from heldout.analysis.tool_calls import opening_messages
    from heldout.scoring.tool_calls import score_calls
    from heldout.store.run_dir import RunDir

    if resume and not RunDir(run_dir).exists():
        raise RunDirectoryError(f"there is no run at {run_dir} to continue; --resume begins none")

    async def send() -> EvalReport:
        try:
            return await evaluate(samples, config, score_calls, opening_messages)
        finally:
            await server.close()

    try:
        return asyncio.run(send())
    except ResumeMismatch as mismatch:
        mismatch.offer("choose another --name")
        raise ResumeMismatch(
            f"{mismatch}. A sample is a line of FILE; {run_dir} may continue with lines added at "
            "the end"
        ) from None
    except KeyboardInterrupt:
        saved = f"Responses so far are saved to {run_dir}; the same command continues."
        raise KeyboardInterrupt(saved if RunDir(run_dir).exists() else "") from None


# --- Report -------------------------------------------------------------------------------------


def _describe_calls(
    report: EvalReport, candidate: CallSet, references: Sequence[CallSet]
) -> dict[str, Any]:
    """Return what --json prints, and the table is made of."""
    from heldout.analysis.tool_calls import count_problems
    from heldout.scoring.tool_calls import finish_reasons, schema_accuracy

    calls: dict[str, Any] = {
        "run": str(report.path),
        "endpoint": report.config.get("endpoint"),
        "requests": len(candidate.answers),
        "answered": len(candidate.responses),
        "errored": candidate.errored,
        "finish_reasons": finish_reasons(candidate.responses),
        "schema_accuracy": schema_accuracy(candidate.responses).as_dict(),
        "problems": dict(count_problems(candidate.responses)),
    }
    if agreements := _compare_with_reference(candidate, references):
        calls |= {
            "references": [
                {
                    "name": reference.name,
                    "requests": len(reference.answers),
                    "errored": reference.errored,
                    "complete": reference.complete,
                }
                for reference in references
            ],
            "trigger": agreements[0],
            "reference_with_itself": agreements[1] if len(agreements) > 1 else None,
        }
    return calls


def _build_report(report: EvalReport, calls: Mapping[str, Any]) -> Report:
    reasons = [f"{cut(reason, 40)} {n}" for reason, n in calls["finish_reasons"].items()]
    problems = [*calls["problems"].items()]
    notes = [f"invalid, {n}×: {problem}" for problem, n in problems[:LISTED]]
    if len(problems) > LISTED:
        notes.append(f"… and {len(problems) - LISTED} other problems")
    errored = calls["errored"]
    if errored:
        notes.append(
            "errored requests are in none of these numbers; the same command sends them again, and "
            f"`heldout show {shlex.quote(str(report.path))} --failures 5` shows why"
        )
    sources: list[str] = []
    references = calls.get("references", [])
    for label, reference in zip(("reference", "reference again"), references, strict=False):
        source, requests = reference["name"], reference["requests"]
        if not reference["complete"]:
            notes.append(f"{source} is not complete: it has {requests} requests so far")
        sources.append(f"{label}: {source}, {requests} requests, {reference['errored']} errored")
    return Report(
        [
            describe_report(report),
            _build_table(calls),
            Line(
                f"{count(calls['requests'], 'request')}: {calls['answered']} answered, ",
                Span(f"{errored} errored", "red" if errored else ""),
            ),
            Line(f"finish reasons: {list_some(reasons, LISTED, ', ')}", wrap=False),
            *(Line(note, style="yellow", wrap=False) for note in notes),
            *(Line(line, style="dim", wrap=False) for line in sources),
            Line(f"saved to {report.path}", style="dim", wrap=False),
        ]
    )


def _build_table(calls: Mapping[str, Any]) -> Table:
    columns = {"this run": calls.get("trigger")}
    if calls.get("reference_with_itself"):
        columns["the reference with itself"] = calls["reference_with_itself"]
    accuracy = ["schema accuracy", _format_rate(calls["schema_accuracy"])]
    rows = [[*accuracy, *[""] * (len(columns) - 1)]]
    for key, label in TRIGGER_ROWS.items() if columns["this run"] else ():
        values = [agreement[key] for agreement in columns.values() if agreement]
        rows.append([label, *(_format_rate(v) if isinstance(v, dict) else str(v) for v in values)])
    return Table([Column(h, wrap=True) for h in ("with 95% interval", *columns)], rows)


def _format_rate(rate: Mapping[str, Any]) -> str:
    share = f"{rate['count']}/{rate['n']}"
    if rate["ci_low"] is None:
        return f"–  {share}"
    return f"{number(rate['value'])}  {interval(rate['ci_low'], rate['ci_high'])}  {share}"
