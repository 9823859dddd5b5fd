"""`heldout check`: is a judge, or a chat template, fit for use?"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heldout._format import count, interval, number
from heldout.cli._load import load_object
from heldout.cli._options import json_option, renamed_option
from heldout.cli._tables import (
    Block,
    Column,
    Line,
    Report,
    Span,
    Table,
    as_line,
    as_text,
    make_console,
    print_json,
    print_report,
)
from heldout.cli.show import print_labelled, shorten
from heldout.errors import InvalidInput, RenderMismatch
from heldout.store.runs import describe_model

if TYPE_CHECKING:
    from heldout.analysis.judge_check import JudgeCheck, JudgedAnswer, Kind, Label, LabelledAnswer
    from heldout.rendering.chat_templates import ChatRenderer
    from heldout.rendering.examine import Examination
    from heldout.scoring.judges import Judge
    from heldout.stats import Agreement, Estimate, Interval, Rate

FEW_LABELS = 5
"""Labels of a class; with fewer, intervals cover less than they claim (docs/judge-check.md)."""
LISTED = 3
"""Problems, and answers with the same problem, that are listed."""


@click.group("check")
def command() -> None:
    """Check what an eval or a training run depends on."""


# --- check judge --------------------------------------------------------------------------------


@command.command("judge")
@click.argument("labels", type=click.Path(path_type=Path))
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
@renamed_option(
    "--epochs",
    "repeats",
    formerly=["--repeats"],
    type=click.IntRange(1),
    default=2,
    show_default=True,
    metavar="N",
    help="How often it is asked about each answer: agreement with itself takes two.",
)
@click.option(
    "--cache", type=click.Path(path_type=Path), metavar="FILE", help="Save verdicts here."
)
@click.option(
    "--max-concurrent",
    type=click.IntRange(1),
    show_default="16",
    metavar="N",
    help="Requests in flight at once.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    show_default="600",
    metavar="S",
    help="Seconds for one request before it is retried.",
)
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Longest reply, in tokens.")
@click.option(
    "--extra",
    metavar="JSON",
    help="Fields added to every request to a server: '{\"temperature\": 1}'.",
)
@click.option(
    "--failures",
    type=click.IntRange(1),
    metavar="N",
    help="N answers on which judge and label differ, with the judge's replies.",
)
@json_option
def judge(
    labels: Path,
    endpoint: str,
    kind: Kind,
    repeats: int,
    failures: int | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure a judge against human labels, and against itself.

    LABELS has one JSON object per line: {"question", "answer", "target", "label"}, with label true
    or false; for three-way correct, incorrect or not_attempted. For pairwise there are "first" and
    "second" instead of the answer, and label is first, second or tie; for criteria there are
    "criteria", [{"id", "description"}], and label says true or false of each id. An "id" is
    optional.
    """
    from heldout.analysis.judge_check import read_labels

    items = read_labels(labels, kind)
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
        print_json({**check.as_dict(), "notes": list(make_judge_notes(check)), **more})
    else:
        print_report(_build_judge_report(check))
        if failures is not None:
            _print_differences(shown, len(check.differences))


def _load_judge(name: str, settings: dict[str, Any]) -> Judge:
    from heldout._providers import KINDS, SERVERS
    from heldout.config import Sampling
    from heldout.scoring.judges import Judge

    endpoint: Any = name
    scheme, colon, _ = name.partition(":")
    if colon and scheme not in KINDS:
        endpoint = load_object(name, "--judge")
        if endpoint is None:
            raise InvalidInput(f"--judge: there is no {name}")
    if isinstance(endpoint, Judge):
        if settings:
            option = f"--{next(iter(settings)).replace('_', '-')}"
            raise InvalidInput(f"{name} is a Judge with settings of its own; leave out {option}")
        return endpoint
    extra, max_tokens = settings.pop("extra", None), settings.pop("max_tokens", None)
    if extra is not None:
        if scheme not in (*SERVERS, "litellm"):
            raise InvalidInput("--extra goes to a server: --judge openai:MODEL or openai:MODEL@URL")
        extra = _parse_extra(extra)
    return Judge(endpoint, sampling=Sampling(max_tokens=max_tokens, extra_body=extra), **settings)


def _parse_extra(text: str) -> dict[str, Any]:
    import msgspec

    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as problem:
        raise InvalidInput(f"--extra is a JSON object, got {text!r}: {problem}") from None


def _run_check(
    judge: Judge, items: Sequence[LabelledAnswer], kind: Kind, repeats: int
) -> JudgeCheck:
    import asyncio

    from rich.console import Console
    from rich.progress import Progress

    from heldout.analysis.judge_check import check_judge

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
        _build_class_table(check.against_labels),
        _build_confusion_table(check.against_labels),
        *_describe_missing_verdicts(check),
        *(Line(f"note: {note}", style="yellow") for note in make_judge_notes(check)),
        Line(_describe_usage(check), style="dim"),
    ]
    return Report(blocks)


def _build_agreement_table(check: JudgeCheck) -> Table:
    rows: list[list[str]] = []

    def add(label: str, estimate: Rate | Estimate, of: str = "") -> None:
        bounds: Interval | None = estimate.interval
        text = interval(bounds.low, bounds.high) if bounds else "–"
        rows.append([label, number(estimate.value), text, of])

    def add_rate(label: str, rate: Rate, noun: str) -> None:
        plural = "criteria" if noun == "criterion" else f"{noun}s"
        add(label, rate, f"{rate.count} of {rate.n} {noun if rate.n == 1 else plural}")

    noun = "criterion" if check.kind == "criteria" else "answer"
    labels, itself, position = check.against_labels, check.against_itself, check.position
    add_rate("agrees with labels", labels.agreement, noun)
    add("kappa", labels.kappa)
    add("balanced F1", labels.balanced_f1)
    if itself is not None:
        add_rate("agrees with itself", itself.agreement, noun if check.repeats == 2 else "pair")
        add("kappa with itself", itself.kappa)
    if position is not None:
        add_rate("same in both orders", position.same, "pair")
        add_rate("prefers the first position", position.first, "pair")
        add_rate("prefers the second position", position.second, "pair")
    columns = [Column(""), Column("value", "right"), Column("95% interval"), Column("of")]
    return Table(columns, rows)


def _build_class_table(agreement: Agreement) -> Table:
    headings = ("precision", "of verdicts", "recall", "of labels", "F1")
    rows = []
    for category in agreement.classes:
        precision, recall = category.precision, category.recall
        row = [str(category.name), number(precision.value), f"{precision.count} of {precision.n}"]
        row += [number(recall.value), f"{recall.count} of {recall.n}", number(category.f1)]
        rows.append(row)
    return Table([Column("class"), *(Column(heading, "right") for heading in headings)], rows)


def _build_confusion_table(agreement: Agreement) -> Table:
    names = [str(category) for category in agreement.categories]
    rows = [[name, *map(str, row)] for name, row in zip(names, agreement.table, strict=True)]
    columns = [Column("label ↓  verdict →"), *(Column(name, "right") for name in names)]
    return Table(columns, rows)


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
        more = f" and {len(ids) - LISTED} more" if len(ids) > LISTED else ""
        yield Line(f"  {', '.join(ids[:LISTED])}{more}: {problem}")
    if rest := sum(len(ids) for ids in list(by_problem.values())[LISTED:]):
        yield Line(f"  and {rest} more")
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
    from rich.text import Text

    console = make_console()
    if not shown:
        console.print("No differences: every verdict is the label.")
        return
    console.print(f"{len(shown)} of {total} on which judge and label differ:")
    for answer in shown:
        console.print(Text("── ", "dim") + as_line(answer.item.id, "bold"), soft_wrap=True)
        for name, text in answer.item.texts.items():
            print_labelled(console, name, as_text(shorten(text)), "bold cyan")
        disputed = _disputed_criteria(answer)
        label = as_text(_format_label(answer.item.label, disputed))
        print_labelled(console, "label", label, "bold green")
        for draw in answer.draws:
            if draw.verdict is None:
                print_labelled(console, "no verdict", as_text(draw.problem), "bold red")
                continue
            verdict = as_text(_format_label(draw.verdict, disputed))
            print_labelled(console, "judge", verdict, "bold red")
            for part in draw.parts:
                print_labelled(console, "", as_text(shorten(part.reply), "dim"))


def _disputed_criteria(answer: JudgedAnswer) -> list[str]:
    """Return the criteria on which label and verdicts are not all alike."""
    labels = [answer.item.label, *(draw.verdict for draw in answer.draws)]
    known = [label for label in labels if isinstance(label, dict)]
    return [c.id for c in answer.item.criteria if len({label[c.id] for label in known}) > 1]


def _format_label(label: Label, disputed: Sequence[str]) -> str:
    if isinstance(label, str):
        return label
    return ", ".join(f"{id}: {'met' if label[id] else 'not met'}" for id in disputed)


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
    from heldout.rendering.chat_templates import ChatRenderer
    from heldout.rendering.examine import examine
    from heldout.types import Message

    render = ChatRenderer(_load_tokenizer(tokenizer), chat_template=_read_template(template))
    try:
        render([Message("user", "?")], True)
    except RenderMismatch as problem:
        raise InvalidInput(
            f"{template or tokenizer} cannot render a user's question: {problem}"
        ) from None
    examination = examine(render, render.decode)
    if as_json:
        print_json(
            {
                "tokenizer": tokenizer,
                "end_of_turn": [render.spell([end]) for end in examination.ends],
                "as_text": render.dialect.as_text,
                "recommended": examination.recommended,
                "advice": examination.advice,
                "findings": examination.findings,
            }
        )
    else:
        print_report(_build_template_report(tokenizer, examination, render))
    if examination.recommended is None:
        raise click.exceptions.Exit(1)


def _load_tokenizer(name: str) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as missing:
        raise InvalidInput(
            f"reading a tokenizer needs transformers ({missing.name} is missing): "
            "pip install 'heldout[local]'"
        ) from None
    try:
        # Local files alone: this command does not download gigabytes.
        return AutoTokenizer.from_pretrained(name, local_files_only=True)
    except Exception as problem:  # noqa: BLE001 - transformers raises many kinds of errors
        if Path(name).is_dir():
            first = (str(problem).strip() or type(problem).__name__).splitlines()[0]
            raise InvalidInput(f"cannot load a tokenizer from {name}: {first}") from None
        if Path(name).exists() or name.startswith(("/", ".", "~")):
            raise InvalidInput(f"there is no directory with a tokenizer at {name}") from None
        raise InvalidInput(
            f"{name!r} is no directory, and no tokenizer of that name has been downloaded: "
            f"`hf download {name}` downloads it, if it is on the Hugging Face hub"
        ) from None


def _read_template(template: str | None) -> str | None:
    if template is None:
        return None
    try:
        return Path(template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(f"cannot read the template {template}: {problem}") from None


def _build_template_report(
    tokenizer: str, examination: Examination, render: ChatRenderer
) -> Report:
    modes = ("suffix", "boundary")
    states = {
        True: Span("works", "green"),
        False: Span("does not", "red"),
        None: Span("not supported", "dim"),
    }
    rows: list[list[str | Span]] = []
    for kind in dict.fromkeys(finding.kind for finding in examination.findings):
        states_by_mode = {
            str(f.segments): states[f.ok] for f in examination.findings if f.kind == kind
        }
        rows.append([kind, *(states_by_mode[mode] for mode in modes)])
    ends = " or ".join(render.spell([end]) for end in examination.ends)
    blocks: list[Block] = [
        Line(tokenizer, style="bold", wrap=False),
        Table([Column("", wrap=True), *map(Column, modes)], rows),
        Line(f"A turn ends in {ends or 'nothing that could be detected'}"),
    ]
    if any(end != render.tokenizer.eos_token_id for end in examination.ends):
        text = "Generation has to stop there; the tokenizer's own end token is "
        blocks.append(Line(f"{text}{render.tokenizer.eos_token}", style="yellow"))
    if render.dialect.as_text:
        parts = ", ".join(render.dialect.as_text)
        blocks.append(Line(f"Written as text, not by the template: {parts}"))
    reasons: dict[str, dict[str, None]] = {}
    for finding in examination.findings:
        if not finding.ok:
            mode = f"{finding.segments}: " if finding.ok is False else ""
            change = f", {finding.so_far!r} becomes {finding.rendered!r}"
            reason = f"{mode}{finding.why}{change if finding.position is not None else ''}"
            reasons.setdefault(reason, {})[finding.kind] = None
    for reason, kinds in reasons.items():
        blocks.append(Line(f"{reason} ({', '.join(kinds)})", style="dim", wrap=False))
    style = "bold" if examination.recommended else "bold red"
    blocks.append(Line(examination.advice, style=style, wrap=False))
    return Report(blocks)
