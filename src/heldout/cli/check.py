"""`heldout check`: is an eval, a judge, a chat template or a sandbox fit for use?"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from heldout._core.config import Sampling
from heldout._core.extras import missing_extra
from heldout._core.format import count, interval, list_some, number, printable
from heldout._core.providers import KINDS, SERVERS
from heldout._live.rendering.chat_templates import ChatRenderer
from heldout._live.rendering.examine import Examination, examine
from heldout.analysis.judge_check import (
    JudgeCheck,
    JudgedAnswer,
    JudgeLabel,
    JudgeTask,
    LabelledAnswer,
    check_judge,
    labels_of_notes,
    read_labels,
)
from heldout.cli._check_eval import eval_command
from heldout.cli._load import describe_error, load_object
from heldout.cli._options import count_option, json_option, parse_value
from heldout.cli._tables import as_line, as_text, decide, make_console, print_json, print_report
from heldout.cli.show import print_labelled, shorten
from heldout.errors import InvalidInput, RenderMismatch
from heldout.reporting.blocks import Block, Cell, Column, Line, Report, Span, Table
from heldout.reporting.names import load_report
from heldout.sandbox.bubblewrap import INSTALL
from heldout.sandbox.probes import BackendStatus, SandboxProbe, find_backends, probe_sandbox
from heldout.scoring.judges import Judge
from heldout.stats import Agreement
from heldout.store.runs import ROOT, describe_model
from heldout.types import Message

FEW_LABELS = 5
"""Labels of a class; with fewer, intervals cover less than they claim (docs/judge-check.md)."""
LISTED = 3
"""Problems, and answers with the same problem, that are listed."""


@click.group("check")
def command() -> None:
    """Check what an eval or a training run depends on."""


command.add_command(eval_command)


# --- check judge --------------------------------------------------------------------------------


@command.command("judge")
@click.argument("labels")
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
@count_option(
    "--epochs",
    "repeats",
    default=2,
    help="How often it is asked about each answer: agreement with itself takes two.",
)
@click.option(
    "--cache", type=click.Path(path_type=Path), metavar="FILE", help="Save verdicts here."
)
@count_option("--max-concurrent", help="Requests in flight at once.  [default: 16]")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    show_default="600",
    metavar="S",
    help="Seconds for one request before it is retried.",
)
@count_option("--max-tokens", help="Longest reply, in tokens.")
@click.option(
    "--extra",
    metavar="JSON",
    help="Fields added to every request to a server: '{\"temperature\": 1}'.",
)
@count_option(
    "--failures", help="N answers on which judge and label differ, with the judge's replies."
)
@json_option
def judge(
    labels: str,
    endpoint: str,
    kind: JudgeTask,
    repeats: int,
    failures: int | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure a judge against human labels, and against itself.

    LABELS has one JSON object per line: {"question", "answer", "ground_truth", "label"}, with label
    true or false; for three-way correct, incorrect or not_attempted. For pairwise there are "first"
    and "second" instead of the answer, and label is first, second or tie; for criteria there are
    "criteria", [{"id", "description"}], and label says true or false of each id. An "id" is
    optional.

    Or LABELS is a run, whose reviewers' notes (heldout view --notes) are the labels: correct,
    incorrect, and for three-way not_attempted.
    """
    items = _read_labels(labels, kind)
    judge = _load_judge(endpoint, {name: v for name, v in settings.items() if v is not None})
    try:
        check = _run_check(judge, items, kind, repeats)
    except KeyboardInterrupt:
        saved = f"Verdicts so far are saved to {judge.cache}; the same command asks for the others."
        if judge.cache is None:
            saved = "Nothing is saved; with --cache FILE verdicts are."
        raise KeyboardInterrupt(saved) from None
    shown = check.differences[: failures or 0]
    if as_json:
        more = {} if failures is None else {"failures": [_judged_as_dict(j) for j in shown]}
        notes = list(make_judge_notes(check))
        plain = {**check.as_dict(), "notes": notes, **more}
        print_json(decide(*_conclude_judge(check), plain), "check judge")
    else:
        print_report(_build_judge_report(check))
        if failures is not None:
            _print_differences(shown, len(check.differences))


def _conclude_judge(check: JudgeCheck) -> tuple[str, str]:
    """Return whether every answer got a verdict, and how far the judge agrees with labels."""
    found = check.against_labels.agreement
    bounds = found.interval
    around = interval(bounds.low, bounds.high) if bounds else "no interval"
    text = f"Agrees with {found.count} of {found.n} labels: {number(found.value)} ({around})"
    if missing := len(check.no_verdict):
        return "without_verdict", f"{text}; {count(missing, 'answer')} without a verdict."
    return "judged", f"{text}."


def _read_labels(labels: str, kind: JudgeTask) -> list[LabelledAnswer]:
    """Read a file of labels, or the notes of a run."""
    name = labels.partition("@")[0]
    if Path(labels).is_file() or not (Path(name).is_dir() or (Path(ROOT) / name).is_dir()):
        return read_labels(labels, kind)
    items, left_out = labels_of_notes(load_report(labels), kind)
    if left_out:
        notes = f"{count(left_out, 'note')} of {labels} left out"
        why = "they have another label or none, or are about an earlier answer"
        click.echo(printable(f"{notes}: {why}."), err=True)
    return items


def _load_judge(name: str, settings: dict[str, Any]) -> Judge:
    endpoint: Any = name
    scheme, colon, _ = name.partition(":")
    if colon and scheme not in KINDS:
        endpoint = load_object(name, "--judge")
        if endpoint is None:
            raise InvalidInput(f"--judge: there is no {name}")
    if isinstance(endpoint, Judge):
        for option in settings:
            option = f"--{option.replace('_', '-')}"
            raise InvalidInput(f"{name} is a Judge with settings of its own; leave out {option}")
        return endpoint
    extra = settings.pop("extra", None)
    if extra is not None and scheme not in (*SERVERS, "litellm"):
        raise InvalidInput("--extra goes to a server: --judge openai:MODEL or openai:MODEL@URL")
    sampling = Sampling(
        max_tokens=settings.pop("max_tokens", None),
        extra_body=None if extra is None else parse_value(extra),
    )
    return Judge(endpoint, sampling=sampling, **settings)


def _run_check(
    judge: Judge, items: Sequence[LabelledAnswer], kind: JudgeTask, repeats: int
) -> JudgeCheck:
    console = Console(stderr=True)
    progress = Progress(console=console, transient=True, disable=not sys.stderr.isatty())
    task = progress.add_task("judging", total=len(items) * repeats)

    def update(done: int, total: int, errors: int) -> None:
        description = f"judging, {count(errors, 'error')}" if errors else "judging"
        progress.update(task, completed=done, description=description)

    async def run() -> JudgeCheck:
        try:
            return await check_judge(judge, items, kind=kind, repeats=repeats, on_progress=update)
        finally:
            await judge.close()

    with progress:
        return asyncio.run(run())


def _build_judge_report(check: JudgeCheck) -> Report:
    times = {1: "once", 2: "twice"}.get(check.repeats, f"{check.repeats} times")
    orders = " in each order" if check.kind == "pairwise" else ""
    about = f", {check.kind}: {count(len(check.judged), 'answer')}, each judged {times}{orders}"
    blocks: list[Block] = [
        Line(Span(describe_model(check.judge) or "judge", "bold", code=True), about),
        _build_agreement_table(check),
        *_build_class_tables(check.against_labels),
        *_describe_missing_verdicts(check),
        *(Line(f"note: {note}", style="yellow") for note in make_judge_notes(check)),
        Line(_describe_usage(check), style="dim"),
    ]
    return Report(blocks)


def _build_agreement_table(check: JudgeCheck) -> Table:
    noun = "criterion" if check.kind == "criteria" else "answer"
    labels, itself, position = check.against_labels, check.against_itself, check.position
    estimates: list[tuple[str, Any, str]] = [
        ("agrees with labels", labels.agreement, noun),
        ("kappa", labels.kappa, ""),
        ("balanced F1", labels.balanced_f1, ""),
    ]
    if itself is not None:
        compared = noun if check.repeats == 2 else "pair"
        estimates.append(("agrees with itself", itself.agreement, compared))
        estimates.append(("kappa with itself", itself.kappa, ""))
    if position is not None:
        estimates.append(("same in both orders", position.same, "pair"))
        estimates.append(("prefers the first position", position.first, "pair"))
        estimates.append(("prefers the second position", position.second, "pair"))
    rows = []
    for label, estimate, noun in estimates:
        bounds, of = estimate.interval, ""
        if noun:
            items = count(estimate.n, noun).replace("criterions", "criteria")
            of = f"{estimate.count} of {items}"
        around = interval(bounds.low, bounds.high) if bounds else "–"
        rows.append([label, number(estimate.value), around, of])
    columns = [Column(""), Column("value", "right"), Column("95% interval"), Column("of")]
    return Table(columns, rows)


def _build_class_tables(agreement: Agreement) -> Iterator[Table]:
    """Lay out precision and recall of each class, and how labels and verdicts meet."""
    headings = ("precision", "of verdicts", "recall", "of labels", "F1")
    rows = []
    for category in agreement.classes:
        precision, recall = category.precision, category.recall
        row = [str(category.name), number(precision.value), f"{precision.count} of {precision.n}"]
        row += [number(recall.value), f"{recall.count} of {recall.n}", number(category.f1)]
        rows.append(row)
    yield Table([Column("class"), *(Column(heading, "right") for heading in headings)], rows)
    names = [str(category) for category in agreement.categories]
    counts = [[name, *map(str, row)] for name, row in zip(names, agreement.table, strict=True)]
    yield Table([Column("label ↓  verdict →"), *(Column(name, "right") for name in names)], counts)


def _describe_missing_verdicts(check: JudgeCheck) -> Iterator[Line]:
    missing = check.no_verdict
    if missing:
        yield Line(
            f"no verdict: {len(missing)} of {count(len(check.judged), 'answer')}, which count "
            "neither as right nor as wrong. Agreement with labels would be "
            f"{number(check.agreement_at_least)} if the judge were wrong on all of them, "
            f"{number(check.agreement_at_most)} if right.",
            style="yellow",
        )
    by_problem: dict[str, list[str]] = {}
    for answer in missing:
        by_problem.setdefault(str(answer.draws[0].problem), []).append(answer.item.id)
    for problem, ids in list(by_problem.items())[:LISTED]:
        yield Line(f"  {list_some(ids, LISTED, ', ')}: {problem}")
    if len(by_problem) > LISTED:
        yield Line(f"  and {count(len(by_problem) - LISTED, 'other problem')}; --json has all")
    if check.later_without:
        yield Line(
            f"no verdict in later draws: {check.later_without}, which have no part in how far the "
            "judge agrees with itself.",
            style="yellow",
        )


def make_judge_notes(check: JudgeCheck) -> Iterator[str]:
    """Yield what a reader of the numbers must know to read them right."""
    agreement: Agreement = check.against_labels
    labels = [category.name for category in agreement.classes if category.recall.n]
    verdicts = [category.name for category in agreement.classes if category.precision.n]
    if len(labels) == 1:
        yield (
            f"every label is {labels[0]!r}: how the judge does on others is not seen, and kappa "
            "and balanced F1 say nothing about it. Add labels of the other kind"
        )
    for category in agreement.classes:
        n = category.recall.n
        if 0 < n < FEW_LABELS:
            yield (
                f"{n} of {agreement.n} labels {'is' if n == 1 else 'are'} {category.name!r}: with "
                f"fewer than {FEW_LABELS} of a class, intervals of kappa and balanced F1 are too "
                "short"
            )
    if len(labels) > 1 and len(verdicts) == 1:
        yield f"the judge says {verdicts[0]!r} of everything: it tells nothing apart"


def _describe_usage(check: JudgeCheck) -> str:
    line = f"{count(check.verdicts, 'verdict')}, {check.cached} of them from the cache"
    if check.verdicts == check.cached:
        return line
    if check.usage is None:
        return f"{line}; the endpoint does not report token usage"
    line += f"; tokens: {check.usage.prompt_tokens:,} in, {check.usage.completion_tokens:,} out"
    failed = any(draw.problem for answer in check.judged for draw in answer.draws)
    return line + ", with those of replies that were no verdict" * failed


def _judged_as_dict(answer: JudgedAnswer) -> dict[str, Any]:
    return {
        "id": answer.item.id,
        **answer.item.texts,
        "label": answer.item.label,
        "draws": [
            {
                "verdict": draw.verdict,
                "problem": draw.problem,
                "replies": [part.reply for part in draw.parts],
            }
            for draw in answer.draws
        ],
    }


def _print_differences(shown: Sequence[JudgedAnswer], total: int) -> None:
    console = make_console()
    if not shown:
        console.print("No differences: every verdict is the label.")
        return
    console.print(f"{len(shown)} of {total} on which judge and label differ:")
    for answer in shown:
        console.print(Text("── ", "dim") + as_line(answer.item.id, "bold"), soft_wrap=True)
        for name, text in answer.item.texts.items():
            print_labelled(console, name, as_text(shorten(text)), "bold cyan")
        print_labelled(console, "label", _format_label(answer.item.label), "bold green")
        for draw in answer.draws:
            if draw.verdict is None:
                print_labelled(console, "no verdict", as_text(draw.problem), "bold red")
                continue
            print_labelled(console, "judge", _format_label(draw.verdict), "bold red")
            for part in draw.parts:
                print_labelled(console, "", as_text(shorten(part.reply), "dim"))


def _format_label(label: JudgeLabel) -> Text:
    if isinstance(label, str):
        return as_text(label)
    return as_text(", ".join(f"{id}: {'met' if met else 'not met'}" for id, met in label.items()))


# --- check template -----------------------------------------------------------------------------


@command.command("template", short_help="Find the rollout modes that a chat template allows.")
@click.argument("tokenizer")
@click.option("--template", metavar="FILE", help="A Jinja chat template to use instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every finding in full.")
def template(tokenizer: str, template: str | None, as_json: bool) -> None:
    """Say which `segments` of a training rollout the chat template of TOKENIZER allows.

    TOKENIZER is a directory, or a name on the Hugging Face hub that has been downloaded before.
    Exits with 1 if no mode supports all kinds of conversation that the template does.
    """
    try:
        text = None if template is None else Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(f"cannot read the template {template}: {problem}") from None
    render = ChatRenderer(_load_tokenizer(tokenizer), chat_template=text)
    try:
        render([Message("user", "?")], True)
    except RenderMismatch as problem:
        raise InvalidInput(
            f"{template or tokenizer} cannot render a user's question: {problem}"
        ) from None
    examination = examine(render, render.decode)
    if as_json:
        print_json(
            decide(
                "supported" if examination.recommended else "unsupported",
                examination.advice,
                {
                    "tokenizer": tokenizer,
                    "end_of_turn": [render.spell([end]) for end in examination.ends],
                    "as_text": render.dialect.as_text,
                    "recommended": examination.recommended,
                    "advice": examination.advice,
                    "findings": examination.findings,
                },
            ),
            "check template",
        )
    else:
        print_report(_build_template_report(tokenizer, examination, render))
    if examination.recommended is None:
        raise click.exceptions.Exit(1)


def _load_tokenizer(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as missing:
        raise missing_extra(
            f"reading a tokenizer needs transformers ({missing.name} is missing)", "local"
        ) from None
    try:
        # Local files alone: this command does not download gigabytes.
        return AutoTokenizer.from_pretrained(name, local_files_only=True)
    except Exception as problem:  # noqa: BLE001 - transformers raises many kinds of errors
        if Path(name).exists():
            raise InvalidInput(
                f"cannot load a tokenizer from {name}: {describe_error(problem)}"
            ) from None
        raise InvalidInput(
            f"{name!r} is no directory, and no tokenizer of that name has been downloaded: "
            f"`hf download {name}` downloads it, if it is on the Hugging Face hub"
        ) from None


def _build_template_report(
    tokenizer: str, examination: Examination, render: ChatRenderer
) -> Report:
    states = {
        True: Span("works", "green"),
        False: Span("does not", "red"),
        None: Span("not supported", "dim"),
    }
    rows: dict[str, list[str | Span]] = {}
    for finding in examination.findings:  # of each kind: suffix, then boundary
        rows.setdefault(finding.kind, [finding.kind]).append(states[finding.ok])
    reasons: dict[str, dict[str, None]] = {}
    for finding in examination.findings:
        if not finding.ok:
            mode = f"{finding.segments}: " if finding.ok is False else ""
            change = f", {finding.so_far!r} becomes {finding.rendered!r}"
            reason = f"{mode}{finding.why}{change if finding.position is not None else ''}"
            reasons.setdefault(reason, {})[finding.kind] = None
    ends = " or ".join(render.spell([end]) for end in examination.ends)
    blocks: list[Block] = [
        Line(tokenizer, style="bold", wrap=False),
        Table([Column("", wrap=True), Column("suffix"), Column("boundary")], [*rows.values()]),
        Line(f"A turn ends in {ends or 'nothing that could be detected'}"),
    ]
    if any(end != render.tokenizer.eos_token_id for end in examination.ends):
        text = "Generation has to stop there; the tokenizer's own end token is "
        blocks.append(Line(f"{text}{render.tokenizer.eos_token}", style="yellow"))
    if render.dialect.as_text:
        parts = ", ".join(render.dialect.as_text)
        blocks.append(Line(f"Written as text, not by the template: {parts}"))
    for reason, kinds in reasons.items():
        blocks.append(Line(f"{reason} ({', '.join(kinds)})", style="dim", wrap=False))
    style = "bold" if examination.recommended else "bold red"
    blocks.append(Line(examination.advice, style=style, wrap=False))
    return Report(blocks)


# --- check sandbox ------------------------------------------------------------------------------


@command.command("sandbox", short_help="Say what programs can be run in, and whether it holds.")
@click.option("--backend", metavar="B", help="bubblewrap, docker, podman or docker:IMAGE.")
@json_option
def sandbox(backend: str | None, as_json: bool) -> None:
    """Say which sandboxes there are for programs that models wrote, and try to get out of one.

    Exits with 1 if there is none, or if a probe fails.
    """
    statuses = asyncio.run(find_backends())
    usable = [status.name for status in statuses if status.problem is None]
    chosen = backend if backend is not None else next(iter(usable), None)
    probes = [] if chosen is None else asyncio.run(probe_sandbox(chosen))
    if as_json:
        print_json(
            decide(
                *_conclude_sandbox(chosen, probes),
                {
                    "backends": [asdict(status) for status in statuses],
                    "backend": chosen,
                    "probes": [asdict(probe) for probe in probes],
                },
            ),
            "check sandbox",
        )
    else:
        print_report(_build_sandbox_report(statuses, chosen, probes))
    if chosen is None or not all(probe.ok for probe in probes):
        raise click.exceptions.Exit(1)


def _conclude_sandbox(chosen: str | None, probes: Sequence[SandboxProbe]) -> tuple[str, str]:
    """Return whether models' programs can be run here, and why not."""
    if chosen is None:
        return "no_sandbox", f"No sandbox: {INSTALL}."
    failed = sum(not probe.ok for probe in probes)
    if failed:
        text = f"{count(failed, 'probe')} of {len(probes)} failed"
        return "unsafe", f"{text}: do not run models' programs here."
    return "safe", f"All {len(probes)} probes hold."


def _build_sandbox_report(
    statuses: Sequence[BackendStatus], chosen: str | None, probes: Sequence[SandboxProbe]
) -> Report:
    here = {True: Span("here", "green"), False: Span("not here", "dim")}
    rows: list[list[Cell]] = [[s.name, here[s.problem is None], s.problem or ""] for s in statuses]
    blocks: list[Block] = [Table([Column("backend"), Column(""), Column("", wrap=True)], rows)]
    if chosen is None:
        return Report([*blocks, Line(_conclude_sandbox(None, [])[1], style="bold red")])
    states = {True: Span("yes", "green"), False: Span("NO", "bold red")}
    found: list[list[Cell]] = [[probe.name, states[probe.ok], probe.detail] for probe in probes]
    blocks.append(Table([Column(f"in {chosen}"), Column(""), Column("", wrap=True)], found))
    decision, text = _conclude_sandbox(chosen, probes)
    return Report([*blocks, Line(text, style="bold" if decision == "safe" else "bold red")])
