"""`heldout show RUN`: the report of a run, its slices and conversations, or a training curve."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from heldout._core.format import count, number
from heldout.cli._load import select_results
from heldout.cli._options import format_options
from heldout.cli._tables import (
    PIPE_WIDTH,
    as_text,
    decide,
    make_console,
    pick,
    print_json,
    print_report,
    render_line,
)
from heldout.errors import InvalidInput
from heldout.reporting import curves
from heldout.reporting.blocks import Block, Column, Line, Report, Span, Table, name
from heldout.reporting.names import find_curve, find_run_directory, find_step, list_result_steps
from heldout.reporting.summaries import (
    build_report,
    build_slices,
    conclude_report,
    conclude_summary,
    in_order,
)
from heldout.store.remote import lasting_name
from heldout.store.runs import describe_samplings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from heldout.store.notes import Notes
    from heldout.store.report import EvalReport
    from heldout.training.curve.points import CurvePoint
    from heldout.types import EvalResult

MESSAGE_CHARACTERS = 4000
"""Characters of a message that are shown; a model that never stopped would bury the rest."""
LABEL_WIDTH = 11
LABEL_STYLES = {"error": "bold red", "reward": "bold", "target": "bold green"}
TEXT_STYLES = {"error": "red", "extracted": "dim", "judge": "dim", "reasoning": "dim"}


@click.command("show", short_help="Print the report of a run, or a training curve.")
@click.argument("run")
@click.option(
    "--by",
    multiple=True,
    metavar="KEY",
    help="One row per value of a metadata key; several combine.",
)
@click.option(
    "--failures",
    type=click.IntRange(1),
    metavar="N",
    help="N items that did not pass, those that errored first.",
)
@click.option("--passes", type=click.IntRange(1), metavar="N", help="N items that passed.")
@click.option("--sample", "samples", multiple=True, metavar="ID", help="The items of this sample.")
@click.option(
    "--pass-at",
    type=click.IntRange(1),
    multiple=True,
    metavar="K",
    help="Add pass@K and pass^K: one of K attempts passes, all of K do. Several are allowed.",
)
@click.option("--cluster", metavar="KEY", help="Cluster error bars by this key, such as sample_id.")
@click.option("--where", metavar="SQL", help="Only results that meet a condition; see heldout sql.")
@click.option(
    "--time", "of_time", is_flag=True, help="Where time, tokens and money went, by stage."
)
@format_options
@click.option("--step", type=click.IntRange(0), metavar="N", help="Of a curve: the eval at step N.")
@click.option("--effect", type=float, help="Of a curve: the smallest gain worth having.")
@click.option(
    "--alpha", type=float, help="Of a curve: the false verdict rate over the whole curve."
)
@click.option(
    "--window",
    type=int,
    metavar="EVALS",
    help="Of a curve: how many of the latest evals the verdict uses.",
)
def command(
    run: str,
    by: tuple[str, ...],
    failures: int | None,
    passes: int | None,
    samples: tuple[str, ...],
    pass_at: tuple[int, ...],
    cluster: str | None,
    where: str | None,
    of_time: bool,
    format: str | None,
    step: int | None,
    **terms: float | None,
) -> None:
    """Print the report of RUN: a run directory, or a name under outputs/evals.

    NAME is the latest run of that name, NAME@3 the third, NAME@2026-11-15 the latest of that day.

    For a training run, that is its curve, one line per point, and its verdict; --step prints the
    whole report of one point, as RUN@STEP does.
    """
    from heldout.store.report import EvalReport

    verdicts = {key: value for key, value in terms.items() if value is not None}
    items = {"--failures": failures, "--passes": passes, "--sample": samples}
    given = {**items, "--by": by, "--pass-at": pass_at, "--time": of_time}
    modes = [option for option, value in given.items() if value]
    if len(modes) > 1 or (cluster is not None and any(items.values())):
        raise click.UsageError(f"{' and '.join([*modes, '--cluster'][:2])} do not go together")
    curve = find_curve(run)
    if curve is not None and step is None:
        others = {"--cluster": cluster, "--where": where}
        modes += [option for option, value in others.items() if value is not None]
        _show_curve(curve, modes, verdicts, format)
        return
    path = find_run_directory(run) if curve is None else find_step(curve, step)
    of_curve = [*(["step"] if step is not None else []), *verdicts]
    if curve is None and of_curve:
        raise InvalidInput(f"{path} has no curve.jsonl, so --{of_curve[0]} does not apply to it")
    if of_time and (where is not None or cluster is not None):
        raise click.UsageError("--time is of a whole run: it takes neither --where nor --cluster")
    report = select_results(EvalReport.load(path), where)
    if of_time:
        _show_time(report, format)
    elif any(items.values()):
        _show_items(_select_items(report, failures, passes, samples), report, format)
    elif by:
        _show_slices(report, by, cluster, format)
    else:
        _show_report(report, path, pass_at, cluster, format)
    if report.status == "failed":
        raise click.exceptions.Exit(4)  # as `heldout run` did: a script must not go on


def _show_report(
    report: EvalReport,
    path: Path,
    pass_at: tuple[int, ...],
    cluster: str | None,
    format: str | None,
) -> None:
    from heldout.analysis.passes import summarize_report
    from heldout.store.run_dir import RunDir

    info = RunDir(path).read_info()
    summary = report.mark_selected(summarize_report(report, cluster=cluster, pass_at=pass_at))
    if format != "json":
        print_report(build_report(report, summary, info=info), markdown=format == "markdown")
        return
    print_json(
        decide(
            report.status,
            conclude_report(report, summary),
            {
                "kind": "run",
                "path": lasting_name(path),
                **pick(report, "status", "config"),
                "summary": summary,
                "errors": report.errors,
                "usage": usage_as_dict(report),
                "finish_reasons": report.finish_reasons,
                "limits": report.limits,
                "settled": report.settled,
                "usage_ahead": report.usage_ahead,
                **pick(info, "reason", "started", "finished", "git", "command", "versions"),
            },
        ),
        "show",
    )


def _show_slices(
    report: EvalReport, by: tuple[str, ...], cluster: str | None, format: str | None
) -> None:
    slices, total = report.slices_and_total(*by, cluster=cluster)
    slices = {values: slices[values] for values in in_order(slices)}
    if format != "json":
        print_report(build_slices(by, slices, total, report), markdown=format == "markdown")
        return
    for values, summary in slices.items():
        named = dict(zip(by, values, strict=True))
        label = ", ".join(f"{key} {'–' if v is None else v}" for key, v in named.items())
        text = conclude_summary(label, summary)
        print_json(decide(report.status, text, {"slice": named, **summary}), "show-slices")


def _show_time(report: EvalReport, format: str | None) -> None:
    from heldout.analysis.time_use import time_use
    from heldout.reporting.time_report import build_time_report, conclude_time

    use = time_use(report)
    if format == "json":
        text = conclude_time(use)
        print_json(decide(report.status, text, msgspec.to_builtins(use)), "show-time")
    else:
        print_report(build_time_report(use), markdown=format == "markdown")


# --- Report -------------------------------------------------------------------------------------


def usage_as_dict(report: EvalReport) -> dict[str, Any] | None:
    """Return tokens and cost of a run for JSON; None where no item reported its tokens."""
    return msgspec.to_builtins(report.usage) if report.usage.n else None


# --- Conversations ------------------------------------------------------------------------------


def _select_items(
    report: EvalReport, failures: int | None, passes: int | None, ids: tuple[str, ...]
) -> list[EvalResult]:
    if not (passes or failures):
        return _find_items(report, ids)
    threshold = report.pass_threshold
    if threshold is None:
        raise InvalidInput(
            f"nothing says which episodes of {report.path} passed: their reward is the return. "
            "--sample ID shows one; say what success is (success=, --success) when you evaluate"
        )
    if passes:
        passed = (r for r in report.results if r.ok and r.score.reward >= threshold)
        return [*islice(passed, passes)]
    # Errored items come first: they say nothing about the policy until they are repaired.
    errored = islice((r for r in report.results if not r.ok), report.summary["n_errors"])
    wrong = (r for r in report.results if r.ok and r.score.reward < threshold)
    return [*islice(chain(errored, wrong), failures)]


def _find_items(report: EvalReport, ids: tuple[str, ...]) -> list[EvalResult]:
    """Find the items of samples, in the order of their ids."""
    results = [result for result in report.results if result.sample_id in ids]
    missing = {*ids} - {result.sample_id for result in results}
    if missing:
        known = list(dict.fromkeys(result.sample_id for result in report.results))
        id = min(missing, key=ids.index)
        near = difflib.get_close_matches(id, known[:10_000], n=1)
        if near:
            hint = f"did you mean {near[0]!r}?"
            raise InvalidInput(f"{report.path} has no sample {id!r}", hint=hint)
        raise InvalidInput(
            f"{report.path} has no sample {id!r}; there is {', '.join(known[:3])}, …"
        )
    return sorted(results, key=lambda result: ids.index(result.sample_id))


def _show_items(results: Sequence[EvalResult], report: EvalReport, format: str | None) -> None:
    """Print conversations with their scores, what graders extracted, and reviewers' notes."""
    from heldout.store.notes import read_notes
    from heldout.store.run_dir import RunDir

    notes = {} if report.path is None else read_notes(RunDir(report.path))
    if format == "json":
        for result in results:
            reward = result.score.reward if result.ok else None
            note = _note_on(result, notes)
            plain = {**msgspec.to_builtins(result), "reward": reward, "note": note}
            print_json(decide(*_conclude_item(result, report), plain), "show-items")
        return
    if not results:
        so_far = " so far" if report.summary.get("complete") is False else ""
        items = count(report.summary["n"], "item")
        passed = f"passed: reward ≥ {report.pass_threshold:g}"
        none = Line(f"There is none among {items}{so_far} ({passed}).")
        print_report(Report([none]), markdown=format == "markdown")
    repeats = [
        f", repeat {r.repeat}" if r.repeat or report.config.get("repeats") != 1 else ""
        for r in results
    ]
    if format == "markdown":
        blocks: list[Block] = []
        for result, repeat in zip(results, repeats, strict=True):
            rows = [[label, shorten(text)] for label, text in _describe_result(result, notes)]
            blocks += [Line(name(result.sample_id), repeat), Table([Column(""), Column("")], rows)]
        print_report(Report(blocks), markdown=True)
        return
    console = make_console()
    for i, (result, repeat) in enumerate(zip(results, repeats, strict=True)):
        if i:
            console.print()
        title = Line(Span("── ", "dim"), Span(result.sample_id, "bold"), repeat)
        console.print(render_line(title), soft_wrap=True)
        for label, text in _describe_result(result, notes):
            content = as_text(shorten(text), TEXT_STYLES.get(label, ""))
            print_labelled(console, label, content, LABEL_STYLES.get(label, "bold cyan"))


def _conclude_item(result: EvalResult, report: EvalReport) -> tuple[str, str]:
    """Return what came of an item in a word, and in a sentence."""
    item = f"{result.sample_id}, repeat {result.repeat}"
    if not result.ok:
        return "errored", f"{item}: errored, {result.error}"
    text = f"{item}: reward {number(result.score.reward)}"
    if report.pass_threshold is None:
        return "scored", f"{text}."
    decision = "passed" if result.score.reward >= report.pass_threshold else "failed"
    return decision, f"{text}, {decision}."


def _note_on(result: EvalResult, notes: Notes) -> dict[str, Any] | None:
    """Return a reviewer's note as plain values, and whether it is about this answer."""
    note = notes.get((result.sample_id, result.repeat))
    if note is None:
        return None
    return {**pick(note, "label", "remark", "time"), "is_current": note.is_about(result)}


def _describe_result(result: EvalResult, notes: Notes) -> Iterator[tuple[str, str]]:
    """Yield the score, what graders extracted and judges wrote, the conversation and the target."""
    said = notes.get((result.sample_id, result.repeat))
    if said is not None:
        yield "note", said.text + ("" if said.is_about(result) else " (about an earlier answer)")
    if result.error is not None:
        yield "error", result.error
    else:
        values = [number(result.score.reward)]
        for metric in result.score.metrics:
            weight = f" (weight {metric.weight:g})" if metric.weight else ""
            values.append(f"{metric.name} {number(metric.value)}{weight}")
        yield "reward", "   ".join(values)
    for metric in result.score.metrics:
        metadata = metric.metadata
        if "extracted" in metadata or "note" in metadata:
            extracted = metadata.get("extracted")
            value = "nothing" if extracted is None else repr(shorten(extracted))
            note = f" ({metadata['note']})" if metadata.get("note") else ""
            yield "extracted", f"{metric.name}: {value}{note}"
        if isinstance(metadata.get("reply"), str):
            yield "judge", f"{metric.name}: {metadata['reply']}"
    for message in result.trajectory.messages:
        if message.reasoning:
            yield "reasoning", message.reasoning
        if message.text or not message.tool_calls:
            yield message.role, message.text
        for call in message.tool_calls:
            yield "tool call", f"{call.name}({call.arguments})"
    if result.sample.ground_truth is not None:
        yield "target", str(result.sample.ground_truth)
    if result.trajectory.stop.truncated:
        what = "last turn" if result.trajectory.messages else "episode"
        yield "", f"The {what} was truncated."


def shorten(value: object) -> str:
    """Return a value as text, with the middle of a very long one left out."""
    text = str(value)
    omitted, half = len(text) - MESSAGE_CHARACTERS, MESSAGE_CHARACTERS // 2
    if omitted <= 0:
        return text
    return f"{text[:half]}\n… {omitted} characters left out; --json has all …\n{text[-half:]}"


def print_labelled(console: Console, label: str, content: Text, style: str = "bold") -> None:
    """Print text with a label on its left, wrapped in a column of its own."""
    from rich.text import Text

    lines = content.split("\n", allow_blank=True)
    if console.width < PIPE_WIDTH:
        lines = content.wrap(console, max(20, console.width - LABEL_WIDTH))
    margin = as_text(f"{label:<{LABEL_WIDTH}}", style)
    for line in lines:
        line.rstrip()
        console.print(Text.assemble(margin, line), soft_wrap=True)
        margin = Text(" " * LABEL_WIDTH)


# --- Curves -------------------------------------------------------------------------------------


def _show_curve(
    path: Path, of_one_eval: Sequence[str], options: Mapping[str, Any], format: str | None
) -> None:
    run = curves.read_curve(path)
    if of_one_eval:
        steps = list_result_steps(run.points)
        raise InvalidInput(
            f"{of_one_eval[0]} of which eval? {path} is a curve of many: add --step N; {steps}"
        )
    groups = curves.group_by_label(run.points)
    judged: dict[str, tuple[Sequence[CurvePoint], Sequence[Line]]] = {}
    for label, points in groups.items():
        judged[label] = curves.judge_curve(points, options, run.config)
    if format != "json":
        print_report(_build_curve_report(run, judged, format), markdown=format == "markdown")
        return
    shown = [point for points, _ in judged.values() for point in points]
    print_json(
        decide(
            *curves.conclude_curve(run, shown),
            {
                "kind": "curve",
                "path": lasting_name(path),
                "training": curves.training_state(run),
                "superseded": run.superseded,
                "verdicts": {p.label: {"step": p.step, **p.verdict} for p in shown if p.verdict},
                "points": [curves.point_as_dict(point) for point in shown],
            },
        ),
        "show-curve",
    )


def _build_curve_report(
    run: curves.CurveRun,
    judged: Mapping[str, tuple[Sequence[CurvePoint], Sequence[Line]]],
    format: str | None,
) -> Report:
    config = run.info.config if run.info else {}
    width = PIPE_WIDTH if format == "markdown" else make_console().width
    blocks: list[Block] = []
    samplings = [curves.sampling_of_newest(points) for points, _ in judged.values()]
    sampled = dict(zip(judged, describe_samplings(samplings), strict=True))
    for label, (points, conclusions) in judged.items():
        title = [name(label)]
        if run.path.name not in judged:
            title.append(Span(f" in {run.path.name}"))
        if config.get("every_steps") and label == config.get("label"):
            title.append(Span(f", every {config['every_steps']} steps", "dim"))
        if sampled[label]:
            title.append(Span(f", {sampled[label]}", "dim"))
        blocks += [Line(*title), *curves.build_curve_table(points, width), *conclusions]
    if run.last_skip is not None:
        text = "the last attempt has no results; these are of earlier ones. Its last skip: "
        blocks.append(Line(text + run.last_skip, style="yellow", wrap=False))
    if run.superseded:
        text = f"{count(run.superseded, 'result')} left out: superseded by a later attempt."
        blocks.append(Line(text, style="yellow"))
    saved = Line(f"saved to {lasting_name(run.path)}", style="dim", wrap=False)
    blocks += [curves.describe_status(run), saved]
    return Report(blocks)
