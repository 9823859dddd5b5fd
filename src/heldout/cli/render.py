"""Reports for people: tables and failures. Model output is shown as text, never obeyed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heldout._format import interval as interval
from heldout._format import number as number
from heldout.cli.text import printable, printable_json
from heldout.errors import InvalidInput
from heldout.stats.summary import Summary
from heldout.store.report import EvalReport
from heldout.types import EvalResult, Message

UNBROKEN = 100_000
"""In a pipe there is no width to fit: lines must not break at a guess."""
MANY_ERRORS = 0.1
"""The share of errored items above which a report says so in words."""
LONGEST = 4000
"""Characters of one message that are shown; a model that never stopped would bury the rest."""


def print_json(value: Any) -> None:
    # As bytes: JSON is UTF-8, whatever the terminal is.
    sys.stdout.flush()
    text = printable_json(msgspec.json.encode(value).decode())
    sys.stdout.buffer.write(text.encode() + b"\n")
    sys.stdout.buffer.flush()


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # for run_cli, which knows what to do


def make_console() -> Console:
    if sys.stdout.isatty():
        return _Console(highlight=False)
    return _Console(highlight=False, width=UNBROKEN)


def as_line(value: object, style: str = "") -> Text:
    """On one line: an id or a value with line breaks could pass for rows of the table."""
    return as_text(str(value).replace("\n", "\\n"), style)


def as_text(value: object, style: str = "") -> Text:
    return Text(printable(str(value)), style=style)


def make_table() -> Table:
    return Table(box=SIMPLE_HEAD, pad_edge=False)


# --- A report -----------------------------------------------------------------------------------


def print_report(
    report: EvalReport, reason: str | None = None, *, summary: Summary | None = None
) -> None:
    """`summary` is the report's own, or one that says more of it (`heldout.analysis.single`)."""
    from heldout.analysis.single import summary_of

    console = make_console()
    if summary is None:
        summary = summary_of(report)
    name = as_line(report.config.get("experiment_name") or "report", "bold")
    console.print(name + _who(report) + _parent(report))
    _print_unfinished(console, report, reason)
    table = make_table()
    table.add_column("", overflow="fold")
    table.add_column("mean", justify="right", no_wrap=True)
    table.add_column("95% interval", no_wrap=True)
    table.add_column("items", justify="right", no_wrap=True)
    n = summary["n"]
    table.add_row(
        "reward", number(summary["mean"]), interval(summary["ci_low"], summary["ci_high"]), f"{n}"
    )
    if summary["n_errors"]:
        table.add_row(
            "reward, scored only",
            number(summary["mean_scored"]),
            interval(summary["ci_scored_low"], summary["ci_scored_high"]),
            str(summary["n_scored"]),
        )
    table.add_row(
        f"passed (≥ {report.pass_threshold:g})",
        number(summary["pass_rate"]),
        interval(summary["pass_rate_ci_low"], summary["pass_rate_ci_high"]),
        f"{n}",
    )
    for key, label in _pass_rates(summary):
        table.add_row(
            label,
            number(summary[key]),
            interval(summary[f"{key}_ci_low"], summary[f"{key}_ci_high"]),
            "–" if summary[f"{key}_n"] is None else f"{summary[f'{key}_n']} samples",
        )
    for key in _metric_keys(summary):
        table.add_row(
            as_line(key[len("metric_") :]),
            number(summary[key]),
            interval(summary[f"{key}_ci_low"], summary[f"{key}_ci_high"]),
            str(summary[f"{key}_n"]),
        )
    console.print(table)
    _print_attempts(console, report, summary)
    console.print(_counts(summary))
    _print_clusters(console, summary)
    for note in _notes(summary, report.path):
        console.print(as_text(note, "yellow"))
    if report.path is not None:
        console.print(as_text(f"kept in {report.path}", "dim"), soft_wrap=True)


def _print_attempts(console: Console, report: EvalReport, summary: Summary) -> None:
    """A line for each three-way judge: right, wrong and declined, and F1 over the set."""
    from heldout.analysis.attempts import attempts, three_way_names

    for name in three_way_names(summary):
        try:
            found = attempts(report, name, cluster=summary.get("clustered_by"))
        except InvalidInput:
            continue  # somebody's own metrics, which only have such names
        f1, around = found.f1, found.f1.interval
        ends = "–" if around is None else interval(around.low, around.high)
        line = (
            f"correct {found.correct}, incorrect {found.incorrect}, not attempted "
            f"{found.not_attempted} of {found.n} scored; F1 {number(f1.value)} ({ends})"
        )
        if found.errored:
            line += f"; {found.errored} errored, which are no attempts"
        console.print(as_line(line if name == "correct" else f"{name}: {line}"))


def _who(report: EvalReport) -> Text:
    who = answered_by(report.config)
    return Text("") if who is None else as_text(f", answered by {who}", "not bold dim")


def _parent(report: EvalReport) -> Text:
    parent = report.config.get("parent")
    if not isinstance(parent, Mapping):
        return Text("")
    return as_line(f"; answers of {parent.get('run')!s:.100}, scored again", "not bold dim")


def answered_by(config: Mapping[str, Any]) -> str | None:
    """The model, or what stands for it, and where; None where a report does not say."""
    endpoint = config.get("endpoint")
    if not isinstance(endpoint, Mapping):
        return None
    who = endpoint.get("model") or endpoint.get("name") or endpoint.get("kind")
    where = f" at {endpoint['base_url']}" if endpoint.get("base_url") else ""
    return f"{who}{where}" if who else None


def _print_unfinished(console: Console, report: EvalReport, reason: str | None) -> None:
    summary = report.summary
    if summary.get("complete") is not False:
        return
    asked = summary.get("n_asked")
    items = f"{summary['n']} of {asked} items" if asked is not None else f"{summary['n']} items"
    said = {
        "running": f"Still running: {items} so far",
        "complete": f"Its journal is not the one it was finished with: {items}",
    }.get(report.status, f"Not finished: {report.status} after {items}")
    why = f" ({reason})" if reason else ""
    numbers = "the numbers are of these"
    if not summary["n_scored"]:
        numbers = "none of them has a score" if summary["n"] else "there are no numbers yet"
    console.print(as_text(f"{said}{why}; {numbers}.", "yellow"))


def _counts(summary: Summary) -> Text:
    line = Text(f"{summary['n']} items: {summary['n_scored']} scored, ")
    line.append(f"{summary['n_errors']} errored", "red" if summary["n_errors"] else "")
    line.append(", ")
    line.append(f"{summary['n_truncated']} cut off", "yellow" if summary["n_truncated"] else "")
    return line


def _notes(summary: Summary, path: Path | None) -> list[str]:
    """What a reader of the table must know to read it right."""
    notes = []
    if summary.get("n_unweighted"):
        notes.append(
            f"{summary['n_unweighted']} items have no metric with a weight above 0, so their "
            "reward is 0 by definition, not by measurement"
        )
    if summary["n_errors"] > MANY_ERRORS * summary["n"] and summary["n_scored"]:
        notes.append(
            f"{summary['n_errors']} of {summary['n']} items errored, too many for either mean to "
            "say much of the policy: the first reads them as 0, the other leaves them out"
        )
    if summary["n_errors"] and (summary["min"] or 0) < 0:
        notes.append(
            "errored items count as 0 in the reward, which is more than some items scored: "
            "read the scored only"
        )
    for key, label in _pass_rates(summary):
        if short := summary.get(f"{key}_short"):
            attempts = key.rpartition("_")[2]
            samples = "1 sample has" if short == 1 else f"{short} samples have"
            notes.append(
                f"no {label} and pass^{attempts} yet: {samples} fewer than {attempts} attempts"
            )
    if summary["n_errors"]:
        run = "RUN" if path is None else shlex.quote(str(path))
        notes.append(f"`heldout show {run} --failures 5` says why items errored")
    return notes


def _pass_rates(summary: Summary) -> list[tuple[str, str]]:
    """(key, label) of each pass@k and pass^k in a summary."""
    found = [(re.fullmatch(r"pass_(at|hat)_([0-9]+)", key), key) for key in summary]
    return [(key, f"pass{'@' if m[1] == 'at' else '^'}{m[2]}") for m, key in found if m]


def _print_clusters(console: Console, summary: Summary, fewest: int | None = None) -> None:
    """By what error bars are clustered, where it is not by sample; `fewest` in any slice."""
    from heldout.analysis.single import FEW_CLUSTERS

    if "clustered_by" not in summary:
        if (count := summary.get("n_clusters")) is not None:
            text = (
                f"{count} distinct: samples of equal input and ground truth are one cluster. Where "
                "they differ in metadata alone, --cluster KEY clusters by that instead"
            )
            console.print(as_line(text, "yellow"))
        return
    key, count, alone = (summary[k] for k in ("clustered_by", "n_clusters", "n_without_cluster"))
    text = f"error bars clustered by {key}: {count} cluster{'s' * (count != 1)}"
    if alone:
        text += f", {alone} of them samples without {key}, each on its own"
    console.print(as_line(text))
    least = count if fewest is None else fewest
    if least < FEW_CLUSTERS:
        as_few = "as few as " if least < count else ""
        note = f"intervals from {as_few}{least} clusters are rough"
        if least == 1:
            note = "one cluster does not show how clusters differ: intervals from it are a guess"
        console.print(as_line(note, "yellow"))


def _metric_keys(summary: Summary) -> list[str]:
    keys = [key for key in summary if key.startswith(("metric_", "metric."))]
    parts = ("n", "stderr", "ci_low", "ci_high")
    return [key for key in keys if all(f"{key}_{part}" in summary for part in parts)]


# --- Slices -------------------------------------------------------------------------------------


def print_slices(
    by: Sequence[str],
    slices: Mapping[tuple[Any, ...], Summary],
    total: Summary,
    report: EvalReport,
) -> None:
    console = make_console()
    _print_unfinished(console, report, None)
    table = make_table()
    for key in by:
        table.add_column(as_line(key), overflow="fold")
    clustered = ("clusters",) if "clustered_by" in total else ()
    for name in ("items", *clustered, "mean", "95% interval", "passed", "errors"):
        side = "left" if name == "95% interval" else "right"
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    rows = [*slices.items(), (("all", *[""] * (len(by) - 1)), total)]
    for i, (values, summary) in enumerate(rows):
        table.add_row(
            *(as_line("–" if value is None else value) for value in values),
            str(summary["n"]),
            *(str(summary["n_clusters"]) for _ in clustered),
            number(summary["mean"]),
            interval(summary["ci_low"], summary["ci_high"]),
            number(summary["pass_rate"]),
            str(summary["n_errors"]),
            style="bold" if i == len(slices) else None,
            end_section=i == len(slices) - 1,
        )
    console.print(table)
    fewest = min(s["n_clusters"] for _, s in rows) if clustered else None
    _print_clusters(console, total, fewest)


# --- Items --------------------------------------------------------------------------------------


def print_items(results: Sequence[EvalResult], report: EvalReport, *, passed: bool = False) -> None:
    """Conversations, with what graders read in them. `passed`: they are what passed, else they
    are what failed, or what was asked for by name."""
    console = make_console()
    if not results and passed:
        console.print(f"No item has reward ≥ {report.pass_threshold:g}.")
        return
    if not results:
        threshold, done = report.pass_threshold, report.summary["n"]
        every = "every item"
        if report.summary.get("complete") is False:
            if not done:
                console.print("No failures, since no item is done.")
                return
            every = f"each of the {done} items done so far"
        console.print(f"No failures: {every} is scored and has reward ≥ {threshold:g}.")
        return
    for i, result in enumerate(results):
        if i:
            console.print()
        title = as_line(result.sample_id, "bold")
        if result.repeat or report.config.get("repeats") != 1:
            title.append(f", repeat {result.repeat}")
        console.print(Text("── ", "dim") + title, soft_wrap=True)
        if result.error is not None:
            print_block(console, as_text("error", "bold red"), as_text(result.error, "red"))
        else:
            print_block(console, as_text("reward", "bold"), _score(result))
            for label, content in _why(result):
                print_block(console, as_text(label, "bold"), content)
        for message in result.trajectory.messages:
            for label, content in _message_blocks(message):
                print_block(console, as_text(label, "bold cyan"), content)
        if result.sample.ground_truth is not None:
            truth = as_text(shortened(result.sample.ground_truth))
            print_block(console, as_text("truth", "bold green"), truth)
        if result.trajectory.stop.truncated:
            print_block(console, Text(""), as_text("The last turn was cut off.", "yellow"))


def _score(result: EvalResult) -> Text:
    line = Text(number(result.score.reward))
    for m in result.score.metrics:
        weight = f" × {m.weight:g}" if m.weight else ""
        line.append(printable(f"   {m.name} {number(m.value)}{weight}"), "dim")
    return line


def _why(result: EvalResult) -> Iterator[tuple[str, Text]]:
    """What graders read the answer to be, and what judges wrote: so that a person sees why."""
    for metric in result.score.metrics:
        seen = metric.metadata
        if "extracted" in seen or "note" in seen:
            read = seen.get("extracted")
            said = "nothing" if read is None else repr(shortened(read))
            note = f" ({seen['note']})" if seen.get("note") else ""
            yield "read", as_text(f"{metric.name}: {said}{note}", "dim")
        if isinstance(seen.get("reply"), str):
            yield "judge", as_text(f"{metric.name}: {shortened(seen['reply'])}", "dim")


def _message_blocks(message: Message) -> Iterator[tuple[str, Text]]:
    """A message as labelled texts: its reasoning, what it says, the tools it calls."""
    if message.reasoning:
        yield "thinks", as_text(shortened(message.reasoning), "dim")
    if message.text or not message.tool_calls:
        yield message.role, as_text(shortened(message.text))
    for call in message.tool_calls:
        yield "calls", as_text(shortened(f"{call.name}({call.arguments})"))


def shortened(value: object) -> str:
    text = str(value)
    if len(text) <= LONGEST:
        return text
    left_out = len(text) - LONGEST
    half = LONGEST // 2
    return f"{text[:half]}\n… {left_out} characters left out; --json has all …\n{text[-half:]}"


_INDENT = 11


def print_block(console: Console, label: Text, content: Text) -> None:
    """A label, and beside it the text, which keeps to its own column."""
    label.pad_right(_INDENT - len(label))
    lines = content.split("\n", allow_blank=True)
    if console.width < UNBROKEN:
        lines = content.wrap(console, max(20, console.width - _INDENT))
    for line in lines:
        line.rstrip()
        console.print(Text.assemble(label, line), soft_wrap=True)
        label = Text(" " * _INDENT)


def result_as_dict(result: EvalResult) -> dict[str, Any]:
    plain = msgspec.to_builtins(result)
    assert isinstance(plain, dict)
    return {**plain, "reward": result.score.reward if result.ok else None}
