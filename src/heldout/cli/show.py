"""`heldout show RUN`: the report of a run, its slices and conversations, or a training curve."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from heldout._format import count, cut, interval, list_some, number
from heldout.chat.finish_reasons import is_known_finish_reason
from heldout.cli import _curves, _load
from heldout.cli._options import format_options
from heldout.cli._tables import (
    PIPE_WIDTH,
    Block,
    Column,
    Line,
    Report,
    Span,
    Table,
    as_text,
    code,
    make_console,
    name,
    pick,
    print_json,
    print_report,
    render_line,
)
from heldout.config import MAX_ERROR_RATE
from heldout.errors import InvalidInput
from heldout.store.error_counts import list_errors
from heldout.store.remote import lasting_name
from heldout.store.runs import describe_model

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from heldout.stats.summary import Summary
    from heldout.store.report import EvalReport
    from heldout.store.run_dir import ModelUsage, RunInfo
    from heldout.training.curve import CurvePoint
    from heldout.types import EvalResult

REASONS_NAMED = 3
"""Unknown finish reasons that are named."""
MESSAGE_CHARACTERS = 4000
"""Characters of a message that are shown; a model that never stopped would bury the rest."""
LABEL_WIDTH = 11
LABEL_STYLES = {"error": "bold red", "reward": "bold", "target": "bold green"}
TEXT_STYLES = {"error": "red", "extracted": "dim", "judge": "dim", "reasoning": "dim"}
# Words that have an order, though not that of the alphabet.
SCALE = (
    *("trivial", "tiny", "beginner", "very-easy", "very-low", "very-short"),
    *("easy", "low", "small", "short", "intermediate", "medium", "hard", "high", "large", "long"),
    *("advanced", "very-hard", "very-high", "very-long", "huge", "expert"),
)


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
@format_options
@click.option("--step", type=click.IntRange(0), metavar="N", help="Of a curve: the eval at step N.")
@click.option("--effect", type=float, help="Of a curve: the smallest gain worth having.")
@click.option("--alpha", type=float, help="Of a curve: false verdict rate, over all of it.")
@click.option(
    "--window", type=int, metavar="EVALS", help="Of a curve: evals that a verdict looks back."
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
    modes = [o for o, value in {**items, "--by": by, "--pass-at": pass_at}.items() if value]
    if len(modes) > 1 or (cluster is not None and any(items.values())):
        raise click.UsageError(f"{' and '.join([*modes, '--cluster'][:2])} do not go together")
    curve = _load.find_curve(run)
    if curve is not None and step is None:
        others = {"--cluster": cluster, "--where": where}
        modes += [option for option, value in others.items() if value is not None]
        _show_curve(curve, modes, verdicts, format)
        return
    path = _load.find_run_directory(run) if curve is None else _load.find_step(curve, step)
    of_curve = [*(["step"] if step is not None else []), *verdicts]
    if curve is None and of_curve:
        raise InvalidInput(f"{path} has no curve.jsonl, so --{of_curve[0]} does not apply to it")
    report = _load.select_results(EvalReport.load(path), where)
    if any(items.values()):
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
        {
            "kind": "run",
            "path": lasting_name(path),
            **pick(report, "status", "config"),
            "summary": summary,
            "errors": report.errors,
            "usage": usage_as_dict(report),
            "finish_reasons": report.finish_reasons,
            **pick(info, "reason", "started", "finished", "git", "command", "versions"),
        },
        "show",
    )


def _show_slices(
    report: EvalReport, by: tuple[str, ...], cluster: str | None, format: str | None
) -> None:
    from heldout.analysis.passes import slices_and_total

    if cluster is None:
        slices, total = report.slices_and_total(*by)
    else:
        slices, total = slices_and_total(report, *by, cluster=cluster)
        slices = {values: report.mark_selected(part) for values, part in slices.items()}
    slices = {values: slices[values] for values in in_order(slices)}
    if format != "json":
        print_report(build_slices(by, slices, total, report), markdown=format == "markdown")
        return
    for values, summary in slices.items():
        print_json({"slice": dict(zip(by, values, strict=True)), **summary}, "show-slices")


# --- Report -------------------------------------------------------------------------------------


def usage_as_dict(report: EvalReport) -> dict[str, Any] | None:
    """Return tokens and cost of a run for JSON; None where no item reported its tokens."""
    return msgspec.to_builtins(report.usage) if report.usage.n else None


def describe_usage(report: EvalReport) -> str | None:
    """Return tokens and cost of a run in words; None where no item reported its tokens."""
    usage = report.usage
    if not usage.n:
        return None
    text = f"tokens: {usage.prompt_tokens:,} in, {usage.completion_tokens:,} out"
    if len(usage.models) == 1 and usage.models[0].role == "policy":
        if usage.n < report.summary["n"]:
            text += f" ({usage.n} of {count(report.summary['n'], 'item')} report them)"
        return text if usage.cost is None else f"{text}; cost: {format_cost(usage.cost)}"
    if usage.cost is not None:
        text += f"; cost: {format_cost(usage.cost)}"
    return f"{text} ({'; '.join(_describe_share(model) for model in usage.models)})"


def _describe_share(model: ModelUsage) -> str:
    """Return what one of several models took in words."""
    named = model.role if model.model is None else f"{model.role} {model.model}"
    if not model.n:
        return f"{named}: not reported"
    text = f"{named}: {model.prompt_tokens:,} in, {model.completion_tokens:,} out"
    if model.unknown:
        text += f", {model.n} of {count(model.n + model.unknown, 'item')} report them"
    return f"{text}, {'no price' if model.cost is None else f'cost {format_cost(model.cost)}'}"


def format_cost(cost: float) -> str:
    """Return a cost with two decimals, or more where it is small; prices name no currency."""
    return f"{cost:,.2f}" if cost >= 1 or cost == 0 else f"{cost:.3g}"


def describe_report(report: EvalReport) -> Line:
    """Return the title of a report: its name, its model, and the run it is a rescoring of."""
    title = [name(report.config.get("experiment_name") or "report")]
    environment = report.config.get("env")
    if isinstance(environment, str):
        title.append(Span(f", environment: {environment}", "dim"))
    model = describe_model(report.config)
    if model is not None:
        title.append(Span(f", model: {model}", "dim"))
    parent = report.config.get("parent")
    if isinstance(parent, Mapping):
        title.append(Span(f"; trajectories of {parent.get('run')}, scored again", "dim"))
    return Line(*title)


def build_report(
    report: EvalReport, summary: Summary | None = None, *, info: RunInfo | None = None
) -> Report:
    """Build what `heldout show` prints of a run.

    Args:
        report: The run.
        summary: One that says more than the report's own (`heldout.analysis.passes`).
        info: Its run.json: when and at which commit it was made, and why it ended early.
    """
    from heldout.analysis.passes import summarize_report

    if summary is None:
        summary = summarize_report(report)
    errors = summary["n_errors"]
    blocks: list[Block] = [
        describe_report(report),
        *_describe_state(report, info.reason if info else None),
        _build_summary_table(summary, report.pass_threshold),
        *_describe_three_way(report, summary),
        Line(
            f"{count(summary['n'], 'item')}: {summary['n_scored']} scored, ",
            Span(f"{errors} errored", "red" if errors else ""),
            f", {summary['n_truncated']} truncated",
        ),
        *_describe_clusters(summary),
        *(Line(note, style="yellow") for note in _make_notes(summary)),
        *(Line(note, style="yellow") for note in _describe_finish_reasons(report)),
    ]
    blocks += [Line(line, style="red") for line in list_errors(report.errors, errors)]
    if errors:
        run = "RUN" if report.path is None else shlex.quote(lasting_name(report.path))
        hint = f"`heldout show {run} --failures 5` shows why items errored"
        blocks.append(Line(hint, style="yellow", wrap=False))
    if tokens := describe_usage(report):
        blocks.append(Line(tokens, style="dim"))
    if info is not None:
        blocks.append(Line(_describe_origin(info), style="dim"))
    if report.path is not None:
        blocks.append(Line(f"saved to {lasting_name(report.path)}", style="dim", wrap=False))
    return Report(blocks)


def _describe_origin(info: RunInfo) -> str:
    """Say when, at which commit and with which tags and note a run was made."""
    parts = [info.started.replace("T", " ").removesuffix("Z") + " UTC"]
    if info.git is not None:
        parts.append(f"commit {info.git.commit[:9]}" + ", with changes" * bool(info.git.dirty))
    if info.config.get("tags"):
        parts.append(f"tags: {', '.join(info.config['tags'])}")
    if info.config.get("note") is not None:
        parts.append(f"note: {info.config['note']}")
    return "; ".join(parts)


def _build_summary_table(summary: Summary, pass_threshold: float | None) -> Table:
    # Label, key of the mean, prefix of the interval's keys, and what it is the mean of.
    rows = [("reward", "mean", "ci", str(summary["n"]))]
    if summary["n_errors"]:
        rows.append(("reward, scored only", "mean_scored", "ci_scored", str(summary["n_scored"])))
    if pass_threshold is not None:
        passed = f"passed (≥ {pass_threshold:g})"
        rows.append((passed, "pass_rate", "pass_rate_ci", str(summary["n"])))
    for key in summary:
        is_metric = key.startswith(("metric_", "metric."))
        if is_metric and f"{key}_n" in summary and f"{key}_ci_low" in summary:
            rows.append((key[len("metric_") :], key, f"{key}_ci", str(summary[f"{key}_n"])))
    for key, label in _pass_rates(summary):
        n = summary[f"{key}_n"]
        rows.append((label, key, f"{key}_ci", "–" if n is None else count(n, "sample")))
    # A reward that is 0 or 1 is also the pass rate and its only metric: one row says so.
    labels: dict[tuple[str, str, str], list[str]] = {}
    for label, key, prefix, of in rows:
        bounds = interval(summary[f"{prefix}_low"], summary[f"{prefix}_high"])
        labels.setdefault((number(summary[key]), bounds, of), []).append(label)
    cells = [[" = ".join(names), *numbers] for numbers, names in labels.items()]
    return Table([Column("", wrap=True), "mean", Column("95% interval"), "n"], cells)


def _pass_rates(summary: Summary) -> list[tuple[str, str]]:
    """Return key and label of each pass@k and pass^k in a summary."""
    matches = [(key, re.fullmatch("pass_(at|hat)_([0-9]+)", key)) for key in summary]
    return [(key, f"pass{'@' if m[1] == 'at' else '^'}{m[2]}") for key, m in matches if m]


def _describe_state(report: EvalReport, reason: str | None) -> Iterator[Line]:
    """Say whether a run is not finished, and whether its results are a selection."""
    summary = report.summary
    asked = summary.get("n_asked")
    if report.lacks_mean and summary["n_scored"] and summary["n"] == asked:
        why = reason or "too many items errored for a mean"
        yield Line(f"Failed: {why}.", style="yellow")
    elif summary.get("complete") is False:
        done = f"{summary['n']} of {count(asked, 'item')}" if asked else count(summary["n"], "item")
        as_of = None if report.run_dir is None else report.run_dir.copied_at
        states = {
            "running": f"Running as of {as_of}: {done}"
            if as_of
            else f"Still running: {done} so far",
            "complete": f"Its journal is not the one it was finished with: {done}",
        }
        state = states.get(report.status, f"Not finished: {report.status} after {done}")
        why = f" ({reason})" if reason else ""
        numbers = "the numbers are of these"
        if not summary["n_scored"]:
            numbers = "none of them has a score" if summary["n"] else "there are no numbers yet"
        elif report.lacks_mean:
            numbers = "too many of these errored for a mean"
        yield Line(f"{state}{why}; {numbers}.", style="yellow")
    if report.selection is not None:
        yield Line(_load.describe_selection(report), style="yellow")


def _describe_three_way(report: EvalReport, summary: Summary) -> Iterator[Line]:
    from heldout.analysis.three_way import count_three_way, three_way_names

    for metric in three_way_names(summary):
        try:
            counts = count_three_way(report, metric, cluster=summary.get("clustered_by"))
        except InvalidInput:
            continue  # metrics of another origin that only have such names
        f1 = counts.f1
        bounds = interval(f1.interval.low, f1.interval.high) if f1.interval else "–"
        text = "" if metric == "correct" else f"{metric}: "
        text += (
            f"correct {counts.correct}, incorrect {counts.incorrect}, not attempted "
            f"{counts.not_attempted} of {counts.n} scored; F1 {number(f1.value)} ({bounds})"
        )
        if counts.errored:
            text += f"; {counts.errored} errored, which are no attempts"
        yield Line(text)


def _make_notes(summary: Summary) -> Iterator[str]:
    """Yield what a reader of the table must know to read it right."""
    n, errors = summary["n"], summary["n_errors"]
    if unweighted := summary.get("n_unweighted"):
        yield (
            f"{count(unweighted, 'item')} without a metric of a weight above 0: their reward is 0 "
            "by definition, not by measurement"
        )
    if turns := summary.get("cached_turns"):
        cached = summary["n_cached"]
        items = "no item" if cached == n else f"{n - cached} of {count(n, 'item')}"
        yield (
            f"{count(turns, 'model turn')} came from the response cache: {items} "
            f"{'has' if cached == n or n - cached == 1 else 'have'} a new one"
        )
    if errors > MAX_ERROR_RATE * n and summary["mean"] is not None:
        yield (
            f"{errors} of {count(n, 'item')} errored, too many for either mean to say much about "
            "the policy: the first counts them as 0, the second leaves them out"
        )
    if errors and (summary["min"] or 0) < 0:
        yield (
            "errored items count as 0 in the reward, which is more than others scored: "
            "read the scored only"
        )
    for key, label in _pass_rates(summary):
        if short := summary.get(f"{key}_short"):
            k = key.rpartition("_")[2]
            have = "has" if short == 1 else "have"
            samples = f"{count(short, 'sample')} {have} fewer than {k} attempts"
            yield f"no {label} and pass^{k} yet: {samples}"


def _describe_finish_reasons(report: EvalReport) -> Iterator[str]:
    """Name the finish reasons of which it is not known whether they mean a truncated turn."""
    reasons = report.finish_reasons.items()
    unknown = [f"{cut(r, 40)!r} ({n})" for r, n in reasons if not is_known_finish_reason(r)]
    if unknown:
        listed = list_some(unknown, REASONS_NAMED, ", ")
        yield (
            f"finish reasons that heldout does not know: {listed}; it is not known whether those "
            "turns were truncated, and they are not counted as such"
        )


def _describe_clusters(summary: Summary, fewest: int | None = None) -> Iterator[Line]:
    """Say by what error bars are clustered, where it is not by sample; `fewest` in any slice."""
    from heldout.analysis.passes import FEW_CLUSTERS

    if "clustered_by" in summary:
        key, n, alone = (summary[k] for k in ("clustered_by", "n_clusters", "n_without_cluster"))
        of_alone = f", {alone} of them samples without {key}, each on its own" if alone else ""
        yield Line(f"error bars clustered by {key}: {count(n, 'cluster')}{of_alone}")
        least = n if fewest is None else fewest
        if least == 1:
            text = "one cluster does not show how clusters differ: intervals from it are a guess"
            yield Line(text, style="yellow")
        elif least < FEW_CLUSTERS:
            as_few = "as few as " if least < n else ""
            yield Line(f"intervals from {as_few}{least} clusters are rough", style="yellow")
    elif (distinct := summary.get("n_clusters")) is not None:
        text = (
            f"{distinct} distinct: samples of equal input and target are one cluster. If they are "
            "not copies, --cluster sample_id takes each for itself"
        )
        yield Line(text, style="yellow")


def build_slices(
    by: Sequence[str],
    slices: Mapping[tuple[Any, ...], Summary],
    total: Summary,
    report: EvalReport,
) -> Report:
    """Build what `heldout show --by` prints: a row for each combination of values, and for all."""
    clusters = ["clusters"] if "clustered_by" in total else []
    keys = [Column(code(key), wrap=True) for key in by]
    labelled = [*slices.items(), (("all", *[""] * (len(by) - 1)), total)]
    rows = [
        [
            *("–" if value is None else str(value) for value in values),
            str(summary["n"]),
            *(str(summary["n_clusters"]) for _ in clusters),
            number(summary["mean"]),
            interval(summary["ci_low"], summary["ci_high"]),
            number(summary["pass_rate"]),
            str(summary["n_errors"]),
        ]
        for values, summary in labelled
    ]
    fewest = min(summary["n_clusters"] for _, summary in labelled) if clusters else None
    table = Table(
        [*keys, "n", *clusters, "mean", Column("95% interval"), "passed", "errors"],
        rows[:-1],
        totals=rows[-1:],
    )
    return Report([*_describe_state(report, None), table, *_describe_clusters(total, fewest)])


def in_order(labels: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Sort labels of slices as people do: easy before hard, level 2 before level 10."""
    return sorted(labels, key=label_order)


def label_order(label: Any) -> list[tuple[Any, ...]]:
    """Return what the label of a slice sorts by; missing values come last."""
    return [_value_order(value) for value in label]


def _value_order(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (3,)
    if not isinstance(value, str):
        return (0, value)
    word = re.sub(r"[\s_-]+", "-", value.lower())
    if word in SCALE:
        return (1, SCALE.index(word), value)
    pieces = re.split(r"([0-9]+)", value.lower())  # texts and numbers in turn
    return (2, [int(piece) if i % 2 else piece for i, piece in enumerate(pieces)], value)


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
    """Print conversations with their scores and what graders extracted."""
    if format == "json":
        for result in results:
            reward = result.score.reward if result.ok else None
            print_json({**msgspec.to_builtins(result), "reward": reward}, "show-items")
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
            rows = [[label, shorten(text)] for label, text in _describe_result(result)]
            blocks += [Line(name(result.sample_id), repeat), Table([Column(""), Column("")], rows)]
        print_report(Report(blocks), markdown=True)
        return
    console = make_console()
    for i, (result, repeat) in enumerate(zip(results, repeats, strict=True)):
        if i:
            console.print()
        title = Line(Span("── ", "dim"), Span(result.sample_id, "bold"), repeat)
        console.print(render_line(title), soft_wrap=True)
        for label, text in _describe_result(result):
            content = as_text(shorten(text), TEXT_STYLES.get(label, ""))
            print_labelled(console, label, content, LABEL_STYLES.get(label, "bold cyan"))


def _describe_result(result: EvalResult) -> Iterator[tuple[str, str]]:
    """Yield the score, what graders extracted and judges wrote, the conversation and the target."""
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
    run = _curves.read_curve(path)
    if of_one_eval:
        steps = _load.list_result_steps(run.points)
        raise InvalidInput(
            f"{of_one_eval[0]} of which eval? {path} is a curve of many: add --step N; {steps}"
        )
    groups = _curves.group_by_label(run.points)
    judged: dict[str, tuple[Sequence[CurvePoint], Sequence[Line]]] = {}
    for label, points in groups.items():
        stored = all(point.verdict is not None for point in points if point.has_result)
        is_judged = format == "json" and stored and not options  # judging takes time
        judged[label] = (
            (points, []) if is_judged else _curves.judge_curve(points, options, run.config)
        )
    if format != "json":
        print_report(_build_curve_report(run, judged, format), markdown=format == "markdown")
        return
    shown = [point for points, _ in judged.values() for point in points]
    print_json(
        {
            "kind": "curve",
            "path": lasting_name(path),
            "training": _curves.training_state(run),
            "superseded": run.superseded,
            "verdicts": {p.label: {"step": p.step, **p.verdict} for p in shown if p.verdict},
            "points": [_curves.point_as_dict(point) for point in shown],
        },
        "show-curve",
    )


def _build_curve_report(
    run: _curves.CurveRun,
    judged: Mapping[str, tuple[Sequence[CurvePoint], Sequence[Line]]],
    format: str | None,
) -> Report:
    config = run.info.config if run.info else {}
    width = PIPE_WIDTH if format == "markdown" else make_console().width
    blocks: list[Block] = []
    for label, (points, conclusions) in judged.items():
        title = [name(label)]
        if run.path.name not in judged:
            title.append(Span(f" in {run.path.name}"))
        if config.get("every_steps") and label == config.get("label"):
            title.append(Span(f", every {config['every_steps']} steps", "dim"))
        blocks += [Line(*title), *_curves.build_curve_table(points, width), *conclusions]
    if run.last_skip is not None:
        text = "the last attempt has no results; these are of earlier ones. Its last skip: "
        blocks.append(Line(text + run.last_skip, style="yellow", wrap=False))
    if run.superseded:
        text = f"{count(run.superseded, 'result')} left out: superseded by a later attempt."
        blocks.append(Line(text, style="yellow"))
    saved = Line(f"saved to {lasting_name(run.path)}", style="dim", wrap=False)
    blocks += [_curves.describe_status(run), saved]
    return Report(blocks)
