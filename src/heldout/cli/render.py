"""Reports for people: tables and failures. Model output is shown as text, never obeyed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heldout.cli.main import printable
from heldout.store.report import EvalReport
from heldout.summary import Summary
from heldout.types import EvalResult


def print_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def _console() -> Console:
    # In a pipe there is no width to fit: lines must not break at a guess.
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def _text(value: object, style: str = "") -> Text:
    return Text(printable(str(value)), style=style)


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.3f}"
    return f"{value:.3g}"


def interval(low: float | None, high: float | None) -> str:
    return "–" if low is None else f"{number(low)} … {number(high)}"


def print_report(report: EvalReport) -> None:
    console, summary = _console(), report.summary
    console.print(_text(report.config.get("experiment_name") or "report", "bold"), _who(report))
    if summary.get("complete") is False:
        asked = summary["n_asked"]
        console.print(
            _text(
                f"{report.status}: {summary['n']} of {asked if asked is not None else '?'} items "
                "so far; numbers are of these",
                "yellow",
            )
        )
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, side in (
        ("", "left"),
        ("mean", "right"),
        ("95% interval", "left"),
        ("over", "right"),
    ):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    n = summary["n"]
    table.add_row(
        "reward", number(summary["mean"]), interval(summary["ci_low"], summary["ci_high"]), f"{n}"
    )
    if summary["n_errors"]:
        table.add_row(
            "reward, scored only",
            number(summary["mean_scored"]),
            _plus_minus(summary["stderr_scored"]),
            str(summary["n_scored"]),
        )
    table.add_row(
        f"passed (≥ {report.config.get('pass_threshold', 0.5):g})",
        number(summary["pass_rate"]),
        interval(summary["pass_rate_ci_low"], summary["pass_rate_ci_high"]),
        f"{n}",
    )
    for name in _metric_names(summary):
        table.add_row(
            _text(name),
            number(summary[f"metric_{name}"]),
            _plus_minus(summary[f"metric_{name}_stderr"]),
            str(summary[f"metric_{name}_n"]),
        )
    console.print(table)
    console.print(
        f"{n} items: {summary['n_scored']} scored, {summary['n_errors']} errored, "
        f"{summary['n_truncated']} cut off"
    )
    if report.path is not None:
        console.print(_text(f"kept in {report.path}", "dim"))


def _who(report: EvalReport) -> Text:
    endpoint = report.config.get("endpoint")
    if not isinstance(endpoint, Mapping):
        return Text("")
    who = endpoint.get("model") or endpoint.get("name") or endpoint.get("kind")
    where = f" at {endpoint['base_url']}" if endpoint.get("base_url") else ""
    return _text(f"answered by {who}{where}", "dim")


def _plus_minus(stderr: float | None) -> str:
    return "–" if stderr is None else f"± {number(1.96 * stderr)}"


def _metric_names(summary: Summary) -> list[str]:
    names = [key.removeprefix("metric_") for key in summary if key.startswith("metric_")]
    return [n for n in names if f"metric_{n}_n" in summary and f"metric_{n}_stderr" in summary]


def print_slices(
    by: Sequence[str], slices: Mapping[tuple[Any, ...], Summary], report: EvalReport
) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for key in by:
        table.add_column(_text(key))
    for name in ("n", "mean", "95% interval", "passed", "errors"):
        table.add_column(name, justify="left" if name == "95% interval" else "right")
    rows = [*slices.items(), (("all", *[""] * (len(by) - 1)), report.summary)]
    for values, summary in rows:
        table.add_row(
            *(_text("–" if value is None else value) for value in values),
            str(summary["n"]),
            number(summary["mean"]),
            interval(summary["ci_low"], summary["ci_high"]),
            number(summary["pass_rate"]),
            str(summary["n_errors"]),
            style="bold" if summary is report.summary else None,
        )
    _console().print(table)


def print_failures(results: Sequence[EvalResult], threshold: float) -> None:
    console = _console()
    if not results:
        console.print(f"No failures: every item is scored and has reward >= {threshold:g}.")
        return
    for result in results:
        console.rule(_text(f"{result.sample_id}  repeat {result.repeat}"), align="left")
        if result.error is not None:
            console.print(_text(f"error: {result.error}", "red"))
        else:
            metrics = ", ".join(
                f"{m.name}={number(m.value)} (weight {m.weight:g})" for m in result.score.metrics
            )
            console.print(_text(f"reward {number(result.score.reward)}: {metrics}"))
        for message in result.trajectory.messages:
            console.print(_text(message.role, "bold cyan"), _text(message.text))
        if result.sample.ground_truth is not None:
            console.print(_text("truth", "bold green"), _text(result.sample.ground_truth))
        if result.trajectory.stop.truncated:
            console.print(_text("the last turn was cut off", "yellow"))


def result_as_dict(result: EvalResult) -> dict[str, Any]:
    plain = msgspec.to_builtins(result)
    assert isinstance(plain, dict)
    return {**plain, "reward": result.score.reward if result.ok else None}
