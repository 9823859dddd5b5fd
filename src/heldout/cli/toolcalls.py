"""`heldout toolcalls FILE --endpoint E`: does a server call tools as it should?

The requests run on the engine like any eval, into a run directory that `show`, `slice` and
`compare` read. What is printed is made of that directory alone, so that a run which is complete
prints the same again and asks nothing.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from heldout.cli.text import printable

if TYPE_CHECKING:
    from heldout.callsets import CallSet
    from heldout.endpoints.requests import RequestsEndpoint
    from heldout.scoring.calls import Agreement, CallReport, Ratio
    from heldout.store.report import EvalReport
    from heldout.types import Sample

LONGEST_NAME = 150
"""Characters of a run's name that is made up here."""
LONGEST_REASON = 40
"""Characters of a finish reason that are shown; a server may send any."""
SHOWN = 10
"""Finish reasons, and problems, that are shown."""


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
    from heldout.callsets import (
        answers_of,
        check_comparable,
        compare_sets,
        load_requests,
        read_reference,
    )
    from heldout.cli.main import writing
    from heldout.cli.render import print_json
    from heldout.endpoints.requests import open_requests

    if len(references) > 2:
        raise click.UsageError("--reference is given once, or twice: the reference run again")
    # Whatever can be refused is refused before the first request is paid for.
    samples = load_requests(file, most=max_samples)
    requests = [sample.input for sample in samples]
    server = open_requests(endpoint, requests, max_concurrent=max_concurrent)
    name = name or _name(file, server)
    for given in references:
        if given == name or Path(given).resolve() == (Path(output_dir) / name).resolve():
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
            print_json(_as_dict(report, candidate, sets, compared))
        else:
            _print(report, candidate, sets, compared)


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

    from heldout.callsets import opening_messages
    from heldout.config import EvalConfig
    from heldout.engine import evaluate
    from heldout.errors import ResumeMismatch, RunDirectoryError
    from heldout.scoring.calls import score_calls
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
        said = said.replace("the dataset", "FILE").replace("sample", "request")
        raise ResumeMismatch(f"{said}. {path} may go on with lines added at the end") from None
    except KeyboardInterrupt:
        kept = f" What was answered is kept in {path}; the same command goes on."
        click.echo("Interrupted." + printable(kept) * RunDir(path).exists(), err=True)
        raise click.exceptions.Exit(130) from None


# --- What is printed ----------------------------------------------------------------------------


def _print(
    report: EvalReport,
    candidate: CallSet,
    references: Sequence[CallSet],
    compared: CallReport | None,
) -> None:
    from heldout.callsets import problems_of
    from heldout.cli.render import answered_by, as_line, make_console, make_table
    from heldout.scoring.calls import finish_reasons, schema_accuracy

    console = make_console()
    title = as_line(report.config.get("experiment_name") or "report", "bold")
    console.print(title + as_line(f", answered by {answered_by(report.config)}", "not bold dim"))
    table = make_table()
    table.add_column("with 95% interval", overflow="fold")
    table.add_column("this run", overflow="fold")
    if compared is not None and compared.reference_with_itself is not None:
        table.add_column("the reference with itself", overflow="fold")
    accuracy = schema_accuracy(candidate.responses)
    table.add_row("schema accuracy", _ratio(accuracy), end_section=compared is not None)
    if compared is not None:
        for row in _agreement_rows(compared):
            table.add_row(*row)
    console.print(table)
    answered = len(candidate.responses)
    console.print(
        as_line(f"{len(candidate.answers)} requests: {answered} answered, ")
        + as_line(f"{candidate.errored} errored", "red" if candidate.errored else "")
    )
    counts = finish_reasons(candidate.responses)
    said = [f"{_cut(reason)} {count}" for reason, count in [*counts.items()][:SHOWN]]
    said += [f"{len(counts) - SHOWN} others {sum([*counts.values()][SHOWN:])}"] * (
        len(counts) > SHOWN
    )
    console.print(as_line("finish reasons: " + ", ".join(said)), soft_wrap=True)
    problems = problems_of(candidate.responses)
    for problem, count in problems[:SHOWN]:
        console.print(as_line(f"invalid, {count}×: {problem}", "yellow"), soft_wrap=True)
    if len(problems) > SHOWN:
        console.print(as_line(f"… and {len(problems) - SHOWN} other problems", "yellow"))
    for note in _notes(report, candidate, references):
        console.print(as_line(note, "yellow"), soft_wrap=True)
    for place, reference in enumerate(references):
        which = "reference" if place == 0 else "reference again"
        text = (
            f"{which}: {reference.name}, {len(reference.answers)} requests, "
            f"{reference.errored} errored"
        )
        console.print(as_line(text, "dim"), soft_wrap=True)
    console.print(as_line(f"kept in {report.path}", "dim"), soft_wrap=True)


def _agreement_rows(compared: CallReport) -> list[list[str]]:
    columns = [compared.trigger]
    if compared.reference_with_itself is not None:
        columns.append(compared.reference_with_itself)

    def row(label: str, cells: list[str]) -> list[str]:
        return [label, *cells]

    return [
        row("trigger precision", [_ratio(one.precision) for one in columns]),
        row("trigger recall", [_ratio(one.recall) for one in columns]),
        row("trigger F1", [_ratio(one.f1) for one in columns]),
        row("same calls", [_ratio(one.same) for one in columns]),
        row("both call (TP)", [str(one.both) for one in columns]),
        row("only ours (FP)", [str(one.only_ours) for one in columns]),
        row("only theirs (FN)", [str(one.only_theirs) for one in columns]),
        row("neither (TN)", [str(one.neither) for one in columns]),
        row("unmatched", [str(one.unmatched) for one in columns]),
    ]


def _ratio(ratio: Ratio) -> str:
    from heldout.words import interval, number

    if ratio.interval is None:
        return f"–  {ratio.numerator}/{ratio.denominator}"
    around = interval(ratio.interval.low, ratio.interval.high)
    return f"{number(ratio.value)}  {around}  {ratio.numerator}/{ratio.denominator}"


def _notes(report: EvalReport, candidate: CallSet, references: Sequence[CallSet]) -> list[str]:
    """What a reader of the table must know to read it right."""
    notes = []
    if candidate.errored:
        run = shlex.quote(str(report.path))
        notes.append(
            "errored requests are in none of these numbers; the same command asks them again, and "
            f"`heldout show {run} --failures 5` says why"
        )
    notes += [
        f"{one.name} is not complete: it has {len(one.answers)} requests so far"
        for one in references
        if not one.complete
    ]
    return notes


def _cut(reason: str) -> str:
    return reason if len(reason) <= LONGEST_REASON else reason[: LONGEST_REASON - 1] + "…"


def _as_dict(
    report: EvalReport,
    candidate: CallSet,
    references: Sequence[CallSet],
    compared: CallReport | None,
) -> dict[str, Any]:
    from heldout.callsets import problems_of
    from heldout.scoring.calls import finish_reasons, schema_accuracy

    found: dict[str, Any] = {
        "run": str(report.path),
        "endpoint": report.config.get("endpoint"),
        "requests": len(candidate.answers),
        "answered": len(candidate.responses),
        "errored": candidate.errored,
        "finish_reasons": finish_reasons(candidate.responses),
        "schema_accuracy": _ratio_dict(schema_accuracy(candidate.responses)),
        "problems": dict(problems_of(candidate.responses)),
    }
    if compared is not None:
        found["references"] = [
            {
                "name": one.name,
                "requests": len(one.answers),
                "errored": one.errored,
                "complete": one.complete,
            }
            for one in references
        ]
        found["trigger"] = _agreement_dict(compared.trigger)
        again = compared.reference_with_itself
        found["reference_with_itself"] = None if again is None else _agreement_dict(again)
    return found


def _agreement_dict(one: Agreement) -> dict[str, Any]:
    return {
        "matched": one.matched,
        "unmatched": one.unmatched,
        "tp": one.both,
        "fp": one.only_ours,
        "fn": one.only_theirs,
        "tn": one.neither,
        "precision": _ratio_dict(one.precision),
        "recall": _ratio_dict(one.recall),
        "f1": _ratio_dict(one.f1),
        "same_calls": _ratio_dict(one.same),
    }


def _ratio_dict(ratio: Ratio) -> dict[str, Any]:
    low, high = (
        (None, None) if ratio.interval is None else (ratio.interval.low, ratio.interval.high)
    )
    return {
        "value": ratio.value,
        "numerator": ratio.numerator,
        "denominator": ratio.denominator,
        "ci_low": low,
        "ci_high": high,
    }
