"""Measure a judge: its verdicts against human labels, and against its own second opinion.

    labels = read_labels("labels.jsonl", "equality")
    check = await check_judge(Judge("openai:gpt-5-mini"), labels)

docs/judge-check.md has the format of labels. Each answer is judged `repeats` times, each time anew.
The first verdict is compared with the label, since that is how a judge is used. An answer without a
verdict is neither right nor wrong. Pairs are judged in both orders, and a contradiction is a tie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from heldout.datasets import jsonl_rows
from heldout.errors import (
    FatalEndpointError,
    InvalidInput,
    NoVerdict,
    SystemicFailure,
    printable_error,
)
from heldout.stats import Agreement, Rate, agreement_of, rate_of
from heldout.types import Usage

if TYPE_CHECKING:
    from heldout.scoring.judges import Criterion, Judge, JudgeVerdict, Question
    from heldout.store.report import EvalReport

JudgeTask = Literal["equality", "three-way", "criteria", "pairwise"]
JUDGE_TASKS: tuple[JudgeTask, ...] = get_args(JudgeTask)
EQUAL, DIFFERENT, MET, NOT_MET = "equal", "different", "met", "not met"
CATEGORIES: dict[JudgeTask, tuple[str, ...]] = {
    "equality": (EQUAL, DIFFERENT),
    "three-way": ("correct", "incorrect", "not_attempted"),
    "criteria": (MET, NOT_MET),
    "pairwise": ("first", "second", "tie"),
}
_TEXTS: dict[JudgeTask, tuple[str, ...]] = {
    "equality": ("question", "answer", "ground_truth"),
    "three-way": ("question", "answer", "ground_truth"),
    "criteria": ("question", "answer"),
    "pairwise": ("question", "first", "second"),
}
JudgeLabel = str | dict[str, bool]
OnProgress = Callable[[int, int, int], object]
"""Called with the number of questions done, of all, and of those without a verdict."""

_SWAPPED = {"first": "second", "second": "first", "tie": "tie"}
_TASKS = 64
"""Questions waited for at once; how many requests are in flight is the judge's to limit."""


# --- Labels -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LabelledAnswer:
    """An answer, or two for pairwise, and a person's label.

    Attributes:
        id: Names it in reports.
        kind: What the judge is asked.
        texts: question, answer, ground_truth, first, second: those of the kind.
        label: One of CATEGORIES; for criteria, whether each is met.
        criteria: For criteria.
    """

    id: str
    kind: JudgeTask
    texts: dict[str, str]
    label: JudgeLabel
    criteria: tuple[Criterion, ...] = ()


def read_labels(path: str | Path, kind: JudgeTask) -> list[LabelledAnswer]:
    """Read a file of labelled answers.

    Args:
        path: JSON lines.
        kind: What the judge is asked.

    Raises:
        InvalidInput: The file cannot be read, or lines are wrong; the message names them.
    """
    answers = parse_labels(jsonl_rows(path), kind)
    if not answers:
        raise InvalidInput(f"{path} has no lines; each is a labelled answer, as JSON")
    return answers


def parse_labels(rows: Iterable[tuple[str, Any]], kind: JudgeTask) -> list[LabelledAnswer]:
    """Parse labelled answers, all before anything is asked; each row with where it is from."""
    if kind not in JUDGE_TASKS:
        raise InvalidInput(f"kind must be {', '.join(JUDGE_TASKS)}; got {kind!r}")
    answers: dict[str, LabelledAnswer] = {}
    problems: list[str] = []
    for where, row in rows:
        try:
            answer = _parse_label(where, row, kind)
            if answer.id in answers:
                raise InvalidInput(f"the id {answer.id!r} is that of another answer, too")
            answers[answer.id] = answer
        except InvalidInput as problem:
            problems.append(f"{where}: {problem}")
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise InvalidInput("; ".join(problems[:5]) + more)
    return list(answers.values())


def labels_of_notes(report: EvalReport, kind: JudgeTask) -> tuple[list[LabelledAnswer], int]:
    """Take the notes of a run's reviewers as labels.

    Those labelled correct, incorrect or not_attempted are labels for "three-way", the first two for
    "equality".

    Args:
        report: A run with notes.
        kind: What the judge is asked.

    Returns:
        The labelled answers, and how many notes are left out: they have another label or none, are
        about an earlier answer, or the sample has no ground truth.

    Raises:
        InvalidInput: There is no such kind, or no note is a label for it.
    """
    from heldout.store.notes import read_notes
    from heldout.store.run_dir import RunDir

    labels: dict[str, Any] = {"correct": True, "incorrect": False}
    if kind == "three-way":
        labels = {label: label for label in CATEGORIES[kind]}
    elif kind != "equality":
        raise InvalidInput(f"notes label one answer each: for {kind} give a file of labels")
    notes = {} if report.path is None else read_notes(RunDir(report.path))
    rows: list[tuple[str, dict[str, Any]]] = []
    for result in report.results if notes else ():
        note = notes.get((result.sample_id, result.repeat))
        if note is None or note.label not in labels or not note.is_about(result):
            continue
        truth = result.sample.ground_truth
        if not result.ok or truth is None:
            continue
        name = result.sample_id + (f" #{result.repeat + 1}" if result.repeat else "")
        row = {"question": result.question, "answer": result.trajectory.answer}
        rows.append((name, {"id": name, **row, "ground_truth": truth, "label": labels[note.label]}))
    if not rows:
        raise InvalidInput(
            f"{report.path} has no note that labels an answer {' or '.join(labels)}: "
            "`heldout view --notes` writes them"
        )
    return parse_labels(rows, kind), len(notes) - len(rows)


def _parse_label(where: str, row: Any, kind: JudgeTask) -> LabelledAnswer:
    if isinstance(row, LabelledAnswer):
        if row.kind != kind:
            raise InvalidInput(f"it was read for kind={row.kind!r}, not for kind={kind!r}")
        return row
    if not isinstance(row, Mapping):
        raise InvalidInput(f"it must be an object with keys, got {type(row).__name__}")
    if "target" in row:
        raise InvalidInput("the right answer is 'ground_truth', not 'target'")
    names = [*_TEXTS[kind]]
    if kind == "criteria" and row.get("ground_truth") is not None:
        names.append("ground_truth")
    texts = {name: _parse_text(row, name) for name in names}
    id = where.rpartition(", ")[2] if row.get("id") is None else str(row["id"])
    label = row.get("label")
    if kind == "criteria":
        criteria = _parse_criteria(row)
        ids = [criterion.id for criterion in criteria]
        if not isinstance(label, dict) or not all(isinstance(v, bool) for v in label.values()):
            raise InvalidInput(f"'label' says true or false of each criterion, got {label!r:.100}")
        if odd := sorted({*label} ^ {*ids}):
            raise InvalidInput(f"'label' and 'criteria' differ in {', '.join(map(repr, odd)):.200}")
        return LabelledAnswer(id, kind, texts, {id: label[id] for id in ids}, criteria)
    if kind == "equality" and isinstance(label, bool):
        label = EQUAL if label else DIFFERENT
    if label not in CATEGORIES[kind]:
        options = "true or false" if kind == "equality" else ", ".join(CATEGORIES[kind])
        raise InvalidInput(f"'label' must be {options}; got {label!r:.100}")
    return LabelledAnswer(id, kind, texts, label)


def _parse_text(row: Mapping[str, Any], name: str) -> str:
    """Return a text as it is, and a number, list or object as its JSON."""
    if name not in row:
        raise InvalidInput(f"{name!r} is missing; there are {sorted(map(str, row))!r:.200}")
    value = row[name]
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    # An empty answer is one that people may have labelled.
    if value is None or (not text.strip() and name in ("question", "ground_truth")):
        raise InvalidInput(f"{name!r} is empty")
    return text


def _parse_criteria(row: Mapping[str, Any]) -> tuple[Criterion, ...]:
    from heldout.scoring.judges.prompts import Criterion, check_criteria

    try:
        criteria = msgspec.convert(row.get("criteria"), tuple[Criterion, ...])
    except msgspec.ValidationError as problem:
        raise InvalidInput(
            f"'criteria' must be a list of {{id, description, weight?, required?}}: {problem}"
        ) from None
    check_criteria(criteria)
    return criteria


# --- The check ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JudgeDraw:
    """What the judge said about an answer in one draw.

    Attributes:
        verdict: The verdict; None if there is none.
        parts: What was replied to the question; for pairwise in the order given, and in the other.
        error: Why there is no verdict.
    """

    verdict: JudgeLabel | None
    parts: tuple[JudgeVerdict[Any], ...]
    error: Exception | None = None

    @property
    def problem(self) -> str | None:
        """Why there is no verdict, in words."""
        if self.error is None:
            return None
        return f"{type(self.error).__name__}: {printable_error(self.error)}"


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """A labelled answer with the judge's verdict in each repeat."""

    item: LabelledAnswer
    draws: tuple[JudgeDraw, ...]

    @property
    def differs(self) -> bool:
        """Whether the first verdict is not the label."""
        return self.draws[0].verdict is not None and self.draws[0].verdict != self.item.label


@dataclass(frozen=True, slots=True)
class PositionBias:
    """Verdicts on pairs in both orders, over all draws, clustered by pair.

    Attributes:
        same: The same answer was preferred, or it was a tie, in both orders.
        first: The first answer was preferred in both orders.
        second: The second answer was preferred in both orders.
    """

    same: Rate
    first: Rate
    second: Rate


@dataclass(frozen=True, slots=True)
class JudgeCheck:
    """How far a judge agrees with labels and with itself.

    Attributes:
        kind: What the judge was asked.
        judge: The judge's identity.
        repeats: How often each answer was judged.
        judged: The answers.
        against_labels: First verdicts against labels.
        against_itself: Every two verdicts on an answer; None where no answer has two.
        position: For pairwise.
        agreement_at_least: Agreement with labels if every missing verdict were wrong.
        agreement_at_most: Agreement with labels if every missing verdict were right.
    """

    kind: JudgeTask
    judge: dict[str, Any]
    repeats: int
    judged: tuple[JudgedAnswer, ...]
    against_labels: Agreement
    against_itself: Agreement | None
    position: PositionBias | None
    agreement_at_least: float
    agreement_at_most: float

    @property
    def usage(self) -> Usage | None:
        """Tokens of all replies that were not cached; None where the endpoint does not say."""
        total: Usage | None = Usage()
        for draw in (draw for answer in self.judged for draw in answer.draws):
            usages = [part.usage for part in draw.parts if not part.cached]
            if isinstance(draw.error, NoVerdict):
                usages.append(draw.error.usage)
            for usage in usages:
                total = total and usage and total + usage  # a part of it would pass for all of it
        return total

    @property
    def verdicts(self) -> int:
        """Number of verdicts."""
        return sum(len(draw.parts) for answer in self.judged for draw in answer.draws)

    @property
    def cached(self) -> int:
        """Number of verdicts that came from the cache."""
        draws = (draw for answer in self.judged for draw in answer.draws)
        return sum(part.cached for draw in draws for part in draw.parts)

    @property
    def no_verdict(self) -> tuple[JudgedAnswer, ...]:
        """Answers whose first draw has no verdict."""
        return tuple(answer for answer in self.judged if answer.draws[0].verdict is None)

    @property
    def later_without(self) -> int:
        """Number of later draws without a verdict."""
        return sum(draw.verdict is None for answer in self.judged for draw in answer.draws[1:])

    @property
    def differences(self) -> tuple[JudgedAnswer, ...]:
        """Answers on which judge and label differ, those wrong in most draws first."""

        def count_wrong(answer: JudgedAnswer) -> int:
            return sum(draw.verdict not in (None, answer.item.label) for draw in answer.draws)

        differing = [answer for answer in self.judged if answer.differs]
        return tuple(sorted(differing, key=count_wrong, reverse=True))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        position = self.position
        return {
            "kind": self.kind,
            "judge": self.judge,
            "items": len(self.judged),
            "repeats": self.repeats,
            "against_labels": _agreement_as_dict(self.against_labels),
            "agreement_at_least": self.agreement_at_least,
            "agreement_at_most": self.agreement_at_most,
            "against_itself": self.against_itself and _agreement_as_dict(self.against_itself),
            "position": position
            and {name: getattr(position, name).as_dict() for name in ("same", "first", "second")},
            "no_verdict": [
                {"id": answer.item.id, "problem": answer.draws[0].problem}
                for answer in self.no_verdict
            ],
            "later_draws_without_verdict": self.later_without,
            "usage": self.usage and asdict(self.usage),
            "verdicts": self.verdicts,
            "cached": self.cached,
        }


async def check_judge(
    judge: Judge,
    labels: Iterable[LabelledAnswer | Mapping[str, Any]],
    *,
    kind: JudgeTask = "equality",
    repeats: int = 2,
    max_concurrent: int = _TASKS,
    on_progress: OnProgress | None = None,
) -> JudgeCheck:
    """Ask a judge about every labelled answer and measure how far it agrees.

    Args:
        judge: The judge.
        labels: Those of `read_labels`, or dicts like its lines.
        kind: What the judge is asked.
        repeats: How often it is asked about each answer.
        max_concurrent: Questions waited for at once.
        on_progress: Called after each question.

    Returns:
        The agreement with labels and with itself, and every verdict.

    Raises:
        InvalidInput: Labels are wrong, or there are none.
        SystemicFailure: There is no verdict at all, or no further question can get one.
    """
    import anyio

    if repeats < 1:
        raise InvalidInput(f"repeats must be 1 or more, got {repeats!r}")
    items = parse_labels(((f"item {i}", row) for i, row in enumerate(labels)), kind)
    if not items:
        raise InvalidInput("no labels: there is nothing to measure the judge against")
    todo = iter([(i, repeat) for i in range(len(items)) for repeat in range(repeats)])
    draws: dict[tuple[int, int], JudgeDraw] = {}
    errors: list[Exception] = []

    async def work() -> None:
        for i, repeat in todo:
            draw = draws[i, repeat] = await _ask(judge, items[i], repeat)
            if draw.error is not None:
                errors.append(draw.error)
            if isinstance(draw.error, FatalEndpointError):
                group.cancel_scope.cancel()
            if on_progress is not None:
                on_progress(len(draws), len(items) * repeats, len(errors))

    async with anyio.create_task_group() as group:
        for _ in range(max(1, min(max_concurrent, len(items) * repeats))):
            group.start_soon(work)
    fatal = next((error for error in errors if isinstance(error, FatalEndpointError)), None)
    if fatal is not None:
        raise SystemicFailure(
            "no further question can get a verdict, so the check was stopped: "
            f"{printable_error(fatal)}"
        ) from fatal
    judged = tuple(
        JudgedAnswer(item, tuple(draws[i, repeat] for repeat in range(repeats)))
        for i, item in enumerate(items)
    )
    return _measure(judged, kind, repeats, judge.identity())


async def _ask(judge: Judge, item: LabelledAnswer, repeat: int) -> JudgeDraw:
    parts: list[JudgeVerdict[Any]] = []
    try:
        for question in _make_questions(item):
            parts.append(await judge.ask(question, draw=repeat))
    except Exception as error:  # noqa: BLE001 - one answer has no verdict; the others go on
        return JudgeDraw(None, tuple(parts), error)
    verdict = parts[0].value
    if item.kind == "pairwise" and verdict != _SWAPPED[parts[1].value]:
        verdict = "tie"
    return JudgeDraw(verdict, tuple(parts))


def _make_questions(item: LabelledAnswer) -> Iterator[Question[Any]]:
    """Yield one question, or one for each order of a pair."""
    from heldout.scoring.judges import CRITERIA, EQUALITY, PAIRWISE, THREE_WAY, make_question

    texts = dict(item.texts)
    question, target = texts.pop("question"), texts.pop("ground_truth", None)
    if item.kind == "pairwise":
        yield make_question(PAIRWISE, question, texts)
        yield make_question(
            PAIRWISE, question, {"first": texts["second"], "second": texts["first"]}
        )
    else:
        prompts = {"equality": EQUALITY, "three-way": THREE_WAY, "criteria": CRITERIA}
        yield make_question(
            prompts[item.kind], question, texts["answer"], target=target, criteria=item.criteria
        )


# --- Counting -----------------------------------------------------------------------------------


def _measure(
    judged: tuple[JudgedAnswer, ...], kind: JudgeTask, repeats: int, identity: dict[str, Any]
) -> JudgeCheck:
    missing = [answer for answer in judged if answer.draws[0].verdict is None]
    if len(missing) == len(judged):
        first = judged[0]
        raise SystemicFailure(
            f"the judge gave no verdict on any of {len(judged)} answers; on {first.item.id!r}: "
            f"{first.draws[0].problem}"
        )
    with_labels, with_itself = [], []
    for answer in judged:
        verdicts = [draw.verdict for draw in answer.draws]
        with_labels += _pair_up(answer, answer.item.label, verdicts[0])
        for a, b in combinations(verdicts, 2):
            with_itself += _pair_up(answer, a, b)
    against_labels = _measure_agreement(with_labels, kind)
    unknown = sum(len(answer.item.criteria) or 1 for answer in missing)
    agreeing, n = against_labels.agreement.count, against_labels.n
    return JudgeCheck(
        kind=kind,
        judge=identity,
        repeats=repeats,
        judged=judged,
        against_labels=against_labels,
        against_itself=_measure_agreement(with_itself, kind) if with_itself else None,
        position=_measure_position(judged) if kind == "pairwise" else None,
        agreement_at_least=agreeing / (n + unknown),
        agreement_at_most=(agreeing + unknown) / (n + unknown),
    )


def _pair_up(
    answer: JudgedAnswer, a: JudgeLabel | None, b: JudgeLabel | None
) -> list[tuple[str, str, str]]:
    """Pair categories, one for each criterion, after the answer's id; none where one is missing."""
    if isinstance(a, dict) and isinstance(b, dict):
        names = {True: MET, False: NOT_MET}
        return [(answer.item.id, names[met], names[b[id]]) for id, met in a.items()]
    return [(answer.item.id, a, b)] if isinstance(a, str) and isinstance(b, str) else []


def _measure_agreement(pairs: Sequence[tuple[str, str, str]], kind: JudgeTask) -> Agreement:
    ids, rows, columns = zip(*pairs, strict=True)
    return agreement_of(rows, columns, categories=CATEGORIES[kind], clusters=ids)


def _measure_position(judged: Sequence[JudgedAnswer]) -> PositionBias:
    pairs = [
        (answer.item.id, *(part.value for part in draw.parts))
        for answer in judged
        for draw in answer.draws
        if draw.verdict is not None
    ]
    ids = [id for id, _, _ in pairs]

    def rate(outcomes: Iterable[bool]) -> Rate:
        return rate_of(list(outcomes), clusters=ids)

    return PositionBias(
        same=rate(own == _SWAPPED[other] for _, own, other in pairs),
        first=rate(own == other == "first" for _, own, other in pairs),
        second=rate(own == other == "second" for _, own, other in pairs),
    )


def _agreement_as_dict(agreement: Agreement) -> dict[str, Any]:
    return asdict(agreement) | {
        "agreement": agreement.agreement.as_dict(),
        "kappa": agreement.kappa.as_dict(),
        "balanced_f1": agreement.balanced_f1.as_dict(),
        "classes": [
            asdict(category)
            | {"precision": category.precision.as_dict(), "recall": category.recall.as_dict()}
            for category in agreement.classes
        ],
    }
