"""What is said of tool calls, in a table or as JSON. Names and reasons are text, never obeyed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from heldout._format import cut, interval, number
from heldout.analysis.tool_calls import CallSet, problems_of
from heldout.cli.render import answered_by, as_line, make_console, make_table
from heldout.scoring.tool_calls import (
    CallReport,
    TriggerAgreement,
    finish_reasons,
    schema_accuracy,
)
from heldout.stats import Rate
from heldout.store.report import EvalReport

LONGEST_REASON = 40
"""Characters of a finish reason that are shown; a server may send any."""
SHOWN = 10
"""Finish reasons, and problems, that are shown."""


def print_calls(
    report: EvalReport,
    candidate: CallSet,
    references: Sequence[CallSet],
    compared: CallReport | None,
) -> None:
    console = make_console()
    title = as_line(report.config.get("experiment_name") or "report", "bold")
    console.print(title + as_line(f", answered by {answered_by(report.config)}", "not bold dim"))
    table = make_table()
    table.add_column("with 95% interval", overflow="fold")
    table.add_column("this run", overflow="fold")
    if compared is not None and compared.reference_with_itself is not None:
        table.add_column("the reference with itself", overflow="fold")
    accuracy = schema_accuracy(candidate.responses)
    table.add_row("schema accuracy", _rate(accuracy), end_section=compared is not None)
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
    said = [f"{cut(reason, LONGEST_REASON)} {count}" for reason, count in [*counts.items()][:SHOWN]]
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
        row("trigger precision", [_rate(one.precision) for one in columns]),
        row("trigger recall", [_rate(one.recall) for one in columns]),
        row("trigger F1", [_rate(one.f1) for one in columns]),
        row("same calls", [_rate(one.same) for one in columns]),
        row("both call (TP)", [str(one.both) for one in columns]),
        row("only ours (FP)", [str(one.only_ours) for one in columns]),
        row("only theirs (FN)", [str(one.only_theirs) for one in columns]),
        row("neither (TN)", [str(one.neither) for one in columns]),
        row("unmatched", [str(one.unmatched) for one in columns]),
    ]


def _rate(rate: Rate) -> str:
    if rate.interval is None:
        return f"–  {rate.count}/{rate.n}"
    around = interval(rate.interval.low, rate.interval.high)
    return f"{number(rate.value)}  {around}  {rate.count}/{rate.n}"


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


def calls_as_dict(
    report: EvalReport,
    candidate: CallSet,
    references: Sequence[CallSet],
    compared: CallReport | None,
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "run": str(report.path),
        "endpoint": report.config.get("endpoint"),
        "requests": len(candidate.answers),
        "answered": len(candidate.responses),
        "errored": candidate.errored,
        "finish_reasons": finish_reasons(candidate.responses),
        "schema_accuracy": schema_accuracy(candidate.responses).as_dict(),
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


def _agreement_dict(one: TriggerAgreement) -> dict[str, Any]:
    return {
        "matched": one.matched,
        "unmatched": one.unmatched,
        "tp": one.both,
        "fp": one.only_ours,
        "fn": one.only_theirs,
        "tn": one.neither,
        "precision": one.precision.as_dict(),
        "recall": one.recall.as_dict(),
        "f1": one.f1.as_dict(),
        "same_calls": one.same.as_dict(),
    }
