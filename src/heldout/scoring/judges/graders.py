"""The four kinds of judge as parts of a rubric. `Judge.equality()` and the like make them.

Each returns Metrics whose metadata has the judge's reply, what it cost and by which prompt. Where
the model gave no answer (none at all, or it was truncated) the judge is not asked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import fmean, mode, stdev
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from heldout._core.chat.questions import question_of
from heldout._core.format import cut
from heldout._reasoning import without_reasoning
from heldout.errors import InvalidInput
from heldout.scoring.judges.prompts import (
    CRITERIA,
    PAIRWISE,
    Criterion,
    JudgePrompt,
    Question,
    Scope,
    check_criteria,
    make_question,
)
from heldout.scoring.rubric import run_each
from heldout.store.fingerprint import describe_callable
from heldout.types import Message, Metric, Sample, Trajectory

if TYPE_CHECKING:
    from heldout.scoring.judges.judge import Judge, JudgeVerdict

V = TypeVar("V")
TextOf = Callable[[Sample], str]
Criteria = Sequence[Criterion] | Callable[[Sample], Sequence[Criterion]]

MAX_REPLY = 2000
"""Characters of a reply that a metric keeps. The whole of it is in the cache."""


class Case(NamedTuple):
    """What is graded: the last answer, and what else is known."""

    answer: str
    target: Any
    sample: Sample
    trajectory: Trajectory | None


@dataclass(frozen=True, eq=False)
class JudgeGrader:
    """A judge as a part of a rubric; `grade` asks and makes the metrics."""

    judge: Judge
    kind: JudgePrompt
    name: str
    scope: Scope
    question: TextOf | None
    grade: Callable[..., Awaitable[list[Metric]]]
    options: Mapping[str, Any] = field(default_factory=dict)
    repeats: int = 1
    """How often the judge is asked about each answer."""
    draw: int = 0
    """Which of these this one is."""

    def __post_init__(self) -> None:
        if isinstance(self.repeats, bool) or not isinstance(self.repeats, int) or self.repeats < 1:
            raise InvalidInput(f"repeats must be a whole number >= 1, got {self.repeats!r}")
        allowed = ["answer", "trajectory"] + ["turn"] * (self.kind is CRITERIA)
        if self.scope not in allowed:
            raise InvalidInput(
                f"scope must be one of {', '.join(map(repr, allowed))} for this kind of judge, got "
                f"{self.scope!r}"
            )

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def prompt(self) -> str:
        """Kind and version of the prompt: "equality/1"."""
        return self.kind.scoped(self.scope).name

    def identity(self) -> dict[str, Any]:
        """Describe what is asked, and of whom, as a part of a report's identity."""
        options: dict[str, Any] = {"name": self.name}
        for key, value in (*self.options.items(), ("question", self.question)):
            if callable(value):
                options[key] = describe_callable(value)
            elif key == "criteria":
                options[key] = [[c.id, c.description, c.weight, c.required] for c in value]
            elif value is not None:
                options[key] = value
        if self.repeats > 1:
            options["repeats"] = self.repeats
        kind = self.prompt.partition("/")[0]
        judge = self.judge.identity()
        return {"kind": kind, "prompt": self.prompt, "judge": judge, "options": options}

    async def __call__(
        self, answer: str, target: Any, *, sample: Sample, trajectory: Trajectory | None = None
    ) -> list[Metric]:
        """Grade an answer, or with `scope` its trajectory or each of its turns.

        Args:
            answer: The model's last answer.
            target: The sample's ground truth.
            sample: The sample.
            trajectory: The conversation; `scope` may need it.

        Returns:
            The metrics; the first is the one that counts.

        Raises:
            InvalidInput: The sample has nothing that a judge could be shown.
            NoVerdict: No reply of the judge was a verdict.
            EndpointError: The judge did not answer.
        """
        case = Case(answer, target, sample, trajectory)
        if self.repeats == 1:
            return await self.grade(self, case, **self.options)
        drawn: dict[int, list[Metric]] = {}

        async def grade(draw: int) -> None:
            drawn[draw] = await self.grade(replace(self, draw=draw), case, **self.options)

        await run_each(grade, range(self.repeats))
        return combine_draws([drawn[draw] for draw in range(self.repeats)])

    async def ask(self, case: Case, **texts: Any) -> list[JudgeVerdict[Any]]:
        """Judge the answer, the trajectory or each turn; no verdict where there is no answer."""
        judged: list[str] | list[dict[str, str]]
        before: Sequence[Message] | None = None
        if self.scope == "answer":
            judged = [case.answer] if case.answer.strip() else []
        elif case.trajectory is None:
            raise InvalidInput(f"scope={self.scope!r} needs the trajectory: give trajectory=…")
        else:
            before, judged = _judged_texts(case.trajectory, self.scope)
        if not judged:
            return []
        question = self.question_text(case, before)
        return await ask_all(
            self.judge,
            [make_question(self.kind, question, j, scope=self.scope, **texts) for j in judged],
            draw=self.draw,
        )

    def question_text(self, case: Case, messages: Sequence[Message] | None = None) -> str:
        """Render what was asked: the messages before the answer, by default the sample's own.

        Where the sample alone does not say, as `prepare_messages` made the prompt, it is the
        conversation's opening.
        """
        if self.question is not None:
            return _call(self.question, case.sample)
        if messages is None:
            try:
                messages = question_of(case.sample).messages
            except InvalidInput:
                if case.trajectory is None or not case.trajectory.opening:
                    raise
                messages = case.trajectory.opening
        for message in messages:
            _check_is_text(message, "say what it is to read: question=lambda sample: …")
        if len(messages) == 1:
            return messages[0].text
        return "\n\n".join(f"[{message.role}]\n{message.text}" for message in messages)

    def describe(self, verdicts: Sequence[JudgeVerdict[Any]]) -> dict[str, Any]:
        """Return the metadata of a metric; without verdicts there was no answer."""
        metadata: dict[str, Any] = {"judge": self.judge.name, "prompt": self.prompt}
        if not verdicts:
            return metadata | {"note": "no answer"}
        replies = [cut(verdict.reply, MAX_REPLY) for verdict in verdicts]
        metadata |= {
            "reply": replies[0] if len(replies) == 1 else replies,
            "attempts": sum(verdict.attempts for verdict in verdicts),
            "cached": all(verdict.cached for verdict in verdicts),
        }
        # Of several, what those cost that were asked now; of cached ones, what they cost once.
        paid = [verdict for verdict in verdicts if not verdict.cached] or verdicts
        usages = [verdict.usage for verdict in paid if verdict.usage is not None]
        if len(usages) == len(paid):
            metadata["usage"] = {
                "prompt_tokens": sum(usage.prompt_tokens for usage in usages),
                "completion_tokens": sum(usage.completion_tokens for usage in usages),
            }
        return metadata


# --- Several draws ------------------------------------------------------------------------------


def combine_draws(draws: Sequence[Sequence[Metric]]) -> list[Metric]:
    """Combine the metrics of a judge that was asked several times about one answer.

    Args:
        draws: The metrics of each time; the first of each is the one that counts.

    Returns:
        The means, each over the draws that have the metric. Behind the first, `NAME_spread` is the
        standard deviation of its values, and `NAME_agreement` the share of pairs of draws with the
        same verdict.
    """
    firsts = [metrics[0] for metrics in draws]
    first, values = firsts[0], [metric.value for metric in firsts]
    verdicts = [metric.metadata.get("verdict", metric.value) for metric in firsts]
    pairs = [a == b for a, b in combinations(verdicts, 2)]
    metadata: dict[str, Any] = {}
    for key in dict.fromkeys(key for metric in firsts for key in metric.metadata):
        found = [metric.metadata.get(key) for metric in firsts]
        is_same = all(value == found[0] for value in found)
        metadata[key] = found[0] if is_same and key != "reply" else found
    if "verdict" in metadata:
        metadata["verdict"] = mode(verdicts)  # of several as frequent, the first
    metadata["draws"] = values
    metadata["cached"] = all(metric.metadata.get("cached") for metric in firsts)
    metadata["attempts"] = sum(metric.metadata.get("attempts", 0) for metric in firsts)
    usages = [metric.metadata["usage"] for metric in firsts if "usage" in metric.metadata]
    if len(usages) == len(firsts):
        metadata["usage"] = {key: sum(usage[key] for usage in usages) for key in usages[0]}
    combined = [
        Metric(first.name, fmean(values), first.weight, metadata, rate=True),
        Metric(f"{first.name}_spread", stdev(values)),
        Metric(f"{first.name}_agreement", fmean(pairs), rate=True),
    ]
    others: dict[str, list[float]] = {}
    for metrics in draws:
        for metric in metrics[1:]:
            others.setdefault(metric.name, []).append(metric.value)
    return combined + [Metric(name, fmean(found), rate=True) for name, found in others.items()]


# --- The four kinds -------------------------------------------------------------------------------


async def grade_equality(grader: JudgeGrader, case: Case) -> list[Metric]:
    """Grade 1 if the answer means the same as the target."""
    verdicts = await grader.ask(case, target=_target_text(case.target))
    is_equal = any(verdict.value == "equal" for verdict in verdicts)
    return [Metric(grader.name, is_equal, 1.0, grader.describe(verdicts))]


async def grade_three_way(grader: JudgeGrader, case: Case) -> list[Metric]:
    """Grade correct, incorrect or not attempted.

    `NAME_given_attempted` is there only for samples that attempted an answer, so that its mean is
    accuracy given attempted.
    """
    verdicts = await grader.ask(case, target=_target_text(case.target))
    verdict = verdicts[0].value if verdicts else "not_attempted"
    value = verdict == "correct"
    metrics = [
        Metric(grader.name, value, 1.0, {"verdict": verdict, **grader.describe(verdicts)}),
        Metric(f"{grader.name}_incorrect", verdict == "incorrect"),
        Metric(f"{grader.name}_not_attempted", verdict == "not_attempted"),
    ]
    if verdict != "not_attempted":
        metrics.append(Metric(f"{grader.name}_given_attempted", value))
    return metrics


async def grade_criteria(
    grader: JudgeGrader, case: Case, *, criteria: Criteria, show_target: bool, track: bool
) -> list[Metric]:
    """Grade the weight of the criteria met; for several turns, the mean and the minimum."""
    listed = criteria(case.sample) if callable(criteria) else criteria
    check_criteria(listed)
    target = _target_text(case.target) if show_target else None
    verdicts = await grader.ask(case, criteria=listed, target=target)
    metadata = grader.describe(verdicts)
    met = [verdict.value for verdict in verdicts] or [{c.id: False for c in listed}]
    values = [criteria_score(listed, which) for which in met]
    failed = [c.id for c in listed if c.required and not all(which[c.id] for which in met)]
    if failed and verdicts:
        metadata["note"] = f"required and not met: {', '.join(failed)}"
    mean = math.fsum(values) / len(values)
    if grader.scope == "turn":
        turns = [{"value": v, "criteria": m} for v, m in zip(values, met, strict=True)]
        metrics = [
            Metric(grader.name, mean, 1.0, {"turns": turns, **metadata}, rate=True),
            Metric(f"{grader.name}_worst", min(values), rate=True),
        ]
    else:
        metrics = [Metric(grader.name, mean, 1.0, {"criteria": met[0], **metadata}, rate=True)]
    if track:
        shares = {id: sum(turn[id] for turn in met) / len(met) for id in met[0]}
        metrics += [Metric(f"{grader.name}_{id}", share, rate=True) for id, share in shares.items()]
    return metrics


def criteria_score(criteria: Sequence[Criterion], met: Mapping[str, bool]) -> float:
    """Score criteria by the weight that is met; 0 where a required one is not."""
    if any(c.required and not met[c.id] for c in criteria):
        return 0.0
    gained = math.fsum(c.weight for c in criteria if met[c.id])
    possible = math.fsum(c.weight for c in criteria if c.weight > 0)
    return min(1.0, max(0.0, gained / possible))


async def grade_pairwise(grader: JudgeGrader, case: Case, *, target: TextOf | None) -> list[Metric]:
    """Grade 1 if the answer wins in both orders, 0 if it loses in both, else 0.5."""
    other = _target_text(case.target if target is None else _call(target, case.sample))
    if not case.answer.strip():
        return [Metric(grader.name, 0.0, 1.0, grader.describe([]), rate=True)]
    question = grader.question_text(case)
    orders = ({"first": case.answer, "second": other}, {"first": other, "second": case.answer})
    questions = [make_question(PAIRWISE, question, order) for order in orders]
    verdicts = await ask_all(grader.judge, questions, draw=grader.draw)
    winners = [
        {"first": "answer", "second": "target", "tie": "tie"}[verdicts[0].value],
        {"first": "target", "second": "answer", "tie": "tie"}[verdicts[1].value],
    ]
    consistent = winners[0] == winners[1]
    value = {"answer": 1.0, "target": 0.0, "tie": 0.5}[winners[0]] if consistent else 0.5
    metadata = {"orders": winners, "consistent": consistent, **grader.describe(verdicts)}
    return [
        Metric(grader.name, value, 1.0, metadata, rate=True),
        Metric(f"{grader.name}_consistent", consistent),
    ]


async def ask_all(
    judge: Judge, questions: Sequence[Question[V]], *, draw: int = 0
) -> list[JudgeVerdict[V]]:
    """Ask concurrently; if one fails, cancel the others, whose cost would be wasted."""
    verdicts: dict[int, JudgeVerdict[V]] = {}

    async def ask(index: int) -> None:
        verdicts[index] = await judge.ask(questions[index], draw=draw)

    await run_each(ask, range(len(questions)))
    return [verdicts[index] for index in range(len(questions))]


# --- What a judge is shown ------------------------------------------------------------------------


def _target_text(target: Any) -> str:
    """Render a target: text as it is, anything else as JSON."""
    text = target if isinstance(target, str) else json.dumps(target, ensure_ascii=False)
    if target is None or not text.strip():
        raise InvalidInput("there is no ground truth (or target), which the judge compares with")
    return text


def _call(function: TextOf, sample: Sample) -> str:
    text = function(sample) if callable(function) else function
    if not callable(function) or not isinstance(text, str):
        raise InvalidInput(
            f"question and target must be functions of the sample that return a text, "
            f"got {text!r:.100}"
        )
    return text


def _judged_texts(
    trajectory: Trajectory, scope: Scope
) -> tuple[Sequence[Message], list[dict[str, str]]]:
    """Return the messages before the model's first turn, and the texts of the rest or of turns."""
    messages, turns = trajectory.messages, trajectory.model_turns
    if turns is None:
        turns = tuple(i for i, message in enumerate(messages) if message.role == "assistant")
    if not turns:
        return messages, []
    start = turns[0]
    if scope == "trajectory":
        return messages[:start], [_conversation(trajectory, start, len(messages), "message")]
    return messages[:start], [
        _conversation(trajectory, start, turn, "before")
        | _message_texts(trajectory, messages[turn], "turn", "turn calls")
        for turn in turns
    ]


def _conversation(trajectory: Trajectory, start: int, end: int, label: str) -> dict[str, str]:
    """Show messages, tool calls and their results, each with its number."""
    texts: dict[str, str] = {}
    for number, message in enumerate(trajectory.messages[start:end], 1):
        labels = f"{label} {number} {message.role}", f"{label} {number} calls"
        texts |= _message_texts(trajectory, message, *labels)
    return texts


def _message_texts(
    trajectory: Trajectory, message: Message, label: str, calls_label: str
) -> dict[str, str]:
    _check_is_text(message, "such a trajectory can only be judged by its last answer")
    text = without_reasoning(message.text) if message.role == "assistant" else message.text
    texts: dict[str, str] = {}
    if text.strip() or not message.tool_calls:
        is_cut = trajectory.stop.truncated and message is trajectory.last_turn
        texts[f"{label} cut off" if is_cut else label] = text
    if message.tool_calls:
        calls = [{"name": c.name, "arguments": c.arguments} for c in message.tool_calls]
        texts[calls_label] = json.dumps(calls, ensure_ascii=False)
    return texts


def _check_is_text(message: Message, remedy: str) -> None:
    if not isinstance(message.content, str) and any(
        part.get("type") != "text" for part in message.content
    ):
        raise InvalidInput(
            f"a message is more than text, and a judge would see the text alone; {remedy}"
        )
