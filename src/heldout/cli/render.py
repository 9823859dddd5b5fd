"""Reports for people: tables and failures. Model output is shown as text, never obeyed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heldout.cli.text import printable
from heldout.store.report import EvalReport
from heldout.summary import Summary
from heldout.types import EvalResult, Message

UNBROKEN = 100_000
"""In a pipe there is no width to fit: lines must not break at a guess."""
LONGEST = 4000
"""Characters of one message that are shown; a model that never stopped would bury the rest."""


def print_json(value: Any) -> None:
    # As bytes: JSON is UTF-8, whatever the terminal is.
    sys.stdout.flush()
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
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


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.3f}"
    return f"{value:.3g}"


def interval(low: float | None, high: float | None) -> str:
    return "–" if low is None else f"{number(low)} … {number(high)}"


def make_table() -> Table:
    return Table(box=SIMPLE_HEAD, pad_edge=False)


# --- A report -----------------------------------------------------------------------------------


def print_report(report: EvalReport, reason: str | None = None) -> None:
    console, summary = make_console(), report.summary
    name = as_line(report.config.get("experiment_name") or "report", "bold")
    console.print(name + _who(report))
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
    for name_of_metric in _metric_names(summary):
        table.add_row(
            as_line(name_of_metric),
            number(summary[f"metric_{name_of_metric}"]),
            interval(
                summary[f"metric_{name_of_metric}_ci_low"],
                summary[f"metric_{name_of_metric}_ci_high"],
            ),
            str(summary[f"metric_{name_of_metric}_n"]),
        )
    console.print(table)
    console.print(_counts(summary))
    for note in _notes(summary):
        console.print(as_text(note, "yellow"))
    if report.path is not None:
        console.print(as_text(f"kept in {report.path}", "dim"), soft_wrap=True)


def _who(report: EvalReport) -> Text:
    endpoint = report.config.get("endpoint")
    if not isinstance(endpoint, Mapping):
        return Text("")
    who = endpoint.get("model") or endpoint.get("name") or endpoint.get("kind")
    where = f" at {endpoint['base_url']}" if endpoint.get("base_url") else ""
    return as_text(f", answered by {who}{where}", "not bold dim")


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
    console.print(as_text(f"{said}{why}; the numbers are of these.", "yellow"))


def _counts(summary: Summary) -> Text:
    line = Text(f"{summary['n']} items: {summary['n_scored']} scored, ")
    line.append(f"{summary['n_errors']} errored", "red" if summary["n_errors"] else "")
    line.append(", ")
    line.append(f"{summary['n_truncated']} cut off", "yellow" if summary["n_truncated"] else "")
    return line


def _notes(summary: Summary) -> list[str]:
    """What a reader of the table must know to read it right."""
    notes = []
    if summary.get("n_unweighted"):
        notes.append(
            f"{summary['n_unweighted']} items have no metric with a weight above 0, so their "
            "reward is 0 by definition, not by measurement"
        )
    if summary["n_errors"] and (summary["min"] or 0) < 0:
        notes.append(
            "errored items count as 0 in the reward, which is more than some items scored: "
            "read the scored only"
        )
    if summary["n_errors"]:
        notes.append("`heldout show RUN --failures 5` says why items errored")
    return notes


def _metric_names(summary: Summary) -> list[str]:
    names = [key.removeprefix("metric_") for key in summary if key.startswith("metric_")]
    return [n for n in names if f"metric_{n}_n" in summary and f"metric_{n}_stderr" in summary]


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
    for name in ("items", "mean", "95% interval", "passed", "errors"):
        side = "left" if name == "95% interval" else "right"
        table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
    rows = [*slices.items(), (("all", *[""] * (len(by) - 1)), total)]
    for i, (values, summary) in enumerate(rows):
        table.add_row(
            *(as_line("–" if value is None else value) for value in values),
            str(summary["n"]),
            number(summary["mean"]),
            interval(summary["ci_low"], summary["ci_high"]),
            number(summary["pass_rate"]),
            str(summary["n_errors"]),
            style="bold" if i == len(slices) else None,
            end_section=i == len(slices) - 1,
        )
    console.print(table)


# --- Failures -----------------------------------------------------------------------------------


def print_failures(results: Sequence[EvalResult], report: EvalReport) -> None:
    console = make_console()
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
            _print_block(console, as_text("error", "bold red"), as_text(result.error, "red"))
        else:
            _print_block(console, as_text("reward", "bold"), _score(result))
        for message in result.trajectory.messages:
            for label, content in _message_blocks(message):
                _print_block(console, as_text(label, "bold cyan"), content)
        if result.sample.ground_truth is not None:
            truth = as_text(_shortened(result.sample.ground_truth))
            _print_block(console, as_text("truth", "bold green"), truth)
        if result.trajectory.stop.truncated:
            _print_block(console, Text(""), as_text("The last turn was cut off.", "yellow"))


def _score(result: EvalResult) -> Text:
    line = Text(number(result.score.reward))
    for m in result.score.metrics:
        weight = f" × {m.weight:g}" if m.weight else ""
        line.append(printable(f"   {m.name} {number(m.value)}{weight}"), "dim")
    return line


def _message_blocks(message: Message) -> Iterator[tuple[str, Text]]:
    """A message as labelled texts: its reasoning, what it says, the tools it calls."""
    if message.reasoning:
        yield "thinks", as_text(_shortened(message.reasoning), "dim")
    if message.text or not message.tool_calls:
        yield message.role, as_text(_shortened(message.text))
    for call in message.tool_calls:
        yield "calls", as_text(_shortened(f"{call.name}({call.arguments})"))


def _shortened(value: object) -> str:
    text = str(value)
    if len(text) <= LONGEST:
        return text
    left_out = len(text) - LONGEST
    half = LONGEST // 2
    return f"{text[:half]}\n… {left_out} characters left out; --json has all …\n{text[-half:]}"


_INDENT = 11


def _print_block(console: Console, label: Text, content: Text) -> None:
    """A label, and beside it the text, which keeps to its own column."""
    label.pad_right(_INDENT - len(label))
    lines = content.split("\n", allow_blank=True)
    if console.width < UNBROKEN:
        lines = content.wrap(console, max(20, console.width - _INDENT))
    for line in lines:
        line.rstrip()
        console.print(label + line, soft_wrap=True)
        label = Text(" " * _INDENT)


def result_as_dict(result: EvalResult) -> dict[str, Any]:
    plain = msgspec.to_builtins(result)
    assert isinstance(plain, dict)
    return {**plain, "reward": result.score.reward if result.ok else None}
