"""What `heldout judge-check` says of a judge: its numbers, what has no verdict, and differences."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from heldout.analysis.judging import JudgeCheck, Judged
    from heldout.stats import Agreement, Estimate, Interval, Rate

NAMED = 3
"""So many problems, and items with the same, are named; the rest is a number."""


def print_check(check: JudgeCheck) -> None:
    from heldout._format import count as counted
    from heldout.cli.render import answered_by, as_line, make_console

    console = make_console()
    who = answered_by(check.judge) or "judge"
    times = {1: "once", 2: "twice"}.get(check.repeats, f"{check.repeats} times")
    orders = " in each order" if check.kind == "pairwise" else ""
    about = (
        f", {check.kind}: {counted(len(check.judged), 'item')}, each asked about {times}{orders}"
    )
    console.print(as_line(who, "bold") + as_line(about, "not bold"))
    console.print(_numbers(check))
    _print_classes(console, check.against_labels)
    _print_unanswered(console, check)
    for note in check.notes:
        console.print(as_line(f"note: {note}", "yellow"))
    console.print(as_line(_spent(check), "dim"))


def _numbers(check: JudgeCheck) -> Table:
    from heldout.cli.render import make_table, number

    what = "criterion" if check.kind == "criteria" else "item"
    table = make_table()
    table.add_column("")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("95% interval", no_wrap=True)
    table.add_column("of", no_wrap=True)

    def rate(name: str, found: Rate, of: str) -> None:
        counts = f"{found.count} of {_counted(found.n, of)}"
        table.add_row(name, number(found.value), _between(found.interval), counts)

    def estimate(name: str, found: Estimate, end: bool = False) -> None:
        table.add_row(name, number(found.value), _between(found.interval), "", end_section=end)

    labels, itself, place = check.against_labels, check.against_itself, check.position
    rate("agrees with labels", labels.agreement, what)
    estimate("kappa", labels.kappa)
    estimate("balanced F1", labels.balanced_f1, end=itself is not None or place is not None)
    if itself is not None:
        rate("agrees with itself", itself.agreement, what if check.repeats == 2 else "pair")
        estimate("kappa with itself", itself.kappa, end=place is not None)
    if place is not None:
        rate("same in both orders", place.same, "pair")
        rate("prefers the first place", place.first, "pair")
        rate("prefers the second place", place.second, "pair")
    return table


def _counted(count: int, what: str) -> str:
    from heldout._format import count as counted

    if what == "criterion" and count != 1:
        return f"{count} criteria"
    return counted(count, what)


def _between(found: Interval | None) -> str:
    from heldout.cli.compare import interval_text as between

    return between(found)


def _print_classes(console: Console, found: Agreement) -> None:
    from heldout.cli.render import as_line, make_table, number

    table = make_table()
    table.add_column("class")
    for name in ("precision", "of verdicts", "recall", "of labels", "F1"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in found.classes:
        precision, recall = one.precision, one.recall
        table.add_row(
            as_line(one.name),
            number(precision.value),
            f"{precision.count} of {precision.n}",
            number(recall.value),
            f"{recall.count} of {recall.n}",
            number(one.f1),
        )
    console.print(table)
    confusion = make_table()
    confusion.add_column("label ↓  verdict →")
    for category in found.categories:
        confusion.add_column(as_line(category), justify="right", no_wrap=True)
    for category, row in zip(found.categories, found.table, strict=True):
        confusion.add_row(as_line(category), *map(str, row))
    console.print(confusion)


def _print_unanswered(console: Console, check: JudgeCheck) -> None:
    from heldout._format import count as counted
    from heldout.cli.render import as_line, number

    missing = check.no_verdict
    if missing:
        counts = "has no verdict, and counts" if len(missing) == 1 else "have no verdict, and count"
        wrong, right = "all of these were", "all were"
        if len(missing) == 1:
            wrong = right = "it was"
        console.print(
            as_line(
                f"{len(missing)} of {counted(len(check.judged), 'item')} {counts} neither as right "
                "nor as wrong. Agreement with labels would be "
                f"{number(check.agreement_at_least)} if {wrong} wrong, and "
                f"{number(check.agreement_at_most)} if {right} right.",
                "yellow",
            )
        )
    alike: dict[str, list[str]] = {}
    for one in missing:
        alike.setdefault(str(one.draws[0].problem), []).append(one.item.id)
    for problem, ids in [*alike.items()][:NAMED]:
        who = ", ".join(ids[:NAMED])
        if len(ids) > NAMED:
            who += f" and {len(ids) - NAMED} more"
        console.print(as_line(f"  {who}: {problem}"))
    if len(alike) > NAMED:
        rest = sum(len(ids) for ids in [*alike.values()][NAMED:])
        console.print(as_line(f"  and {rest} more"))
    if later := check.later_without:
        have = "has" if later == 1 else "have"
        console.print(
            as_line(
                f"{counted(later, 'later draw')} {have} no verdict, and {have} no part in how far "
                "the judge agrees with itself.",
                "yellow",
            )
        )


def _spent(check: JudgeCheck) -> str:
    asked = check.verdicts - check.cached
    line = f"{check.verdicts} verdicts, {check.cached} of them from the cache"
    if not asked:
        return line
    if check.usage is None:
        return f"{line}; the endpoint does not say how many tokens it took"
    used = check.usage
    line += f"; tokens: {used.prompt_tokens:,} read, {used.completion_tokens:,} written"
    failed = any(draw.problem for one in check.judged for draw in one.draws)
    return line + ", with those of replies that were no verdict" * failed


# --- Differences --------------------------------------------------------------------------------


def as_dict(one: Judged) -> dict[str, Any]:
    return {
        "id": one.item.id,
        **one.item.texts,
        "label": one.item.label,
        "draws": [
            {"verdict": draw.verdict, "problem": draw.problem, "replies": list(draw.replies)}
            for draw in one.draws
        ],
    }


def print_failures(shown: Sequence[Judged], of: int) -> None:
    from rich.text import Text

    from heldout.cli.render import as_line, as_text, make_console, print_block, shortened

    console = make_console()
    if not shown:
        console.print("No differences: every verdict is the label.")
        return
    console.print(as_line(f"{len(shown)} of {of} on which judge and label differ:"))
    for one in shown:
        console.print(Text("── ", "dim") + as_line(one.item.id, "bold"), soft_wrap=True)
        for name, text in one.item.texts.items():
            print_block(console, as_text(name, "bold cyan"), as_text(shortened(text)))
        label = as_text(_in_words(one, one.item.label))
        print_block(console, as_text("label", "bold green"), label)
        for draw in one.draws:
            if draw.verdict is None:
                print_block(console, as_text("no verdict", "bold red"), as_text(draw.problem))
                continue
            verdict = as_text(_in_words(one, draw.verdict))
            print_block(console, as_text("judge", "bold red"), verdict)
            orders = zip(("in this order", "the other way round"), draw.places, strict=False)
            places = [f"{order}: {said}. " for order, said in orders]
            for place, reply in zip_longest(places, draw.replies, fillvalue=""):
                reason = place + _reason(reply, _wavering(one))
                print_block(console, Text(""), as_text(shortened(reason), "dim"))


def _wavering(one: Judged) -> list[str]:
    """The criteria of which label and verdicts are not all alike."""
    said = [one.item.label, *(draw.verdict for draw in one.draws)]
    known = [each for each in said if isinstance(each, dict)]
    return [c.id for c in one.item.criteria if len({each[c.id] for each in known}) > 1]


def _in_words(one: Judged, said: str | dict[str, bool]) -> str:
    if isinstance(said, str):
        return said
    return ", ".join(f"{id}: {'met' if said[id] else 'not met'}" for id in _wavering(one))


def _reason(reply: str, criteria: Sequence[str]) -> str:
    """What the judge gave as its reason (of these criteria), or all that it wrote."""
    from heldout.scoring.judges.replies import Malformed, json_object

    try:
        said = json_object(reply)
    except Malformed:
        return reply
    reasons = [said.get("reasoning")]
    if criteria and isinstance(said.get("criteria"), list):
        parts = [each for each in said["criteria"] if isinstance(each, dict)]
        reasons = [
            f"{each['id']}: {each['reasoning']}"
            for each in parts
            if each.get("id") in criteria and each.get("reasoning")
        ]
    return "\n".join(str(reason) for reason in reasons if reason) or reply
