"""The four kinds of judge as parts of a rubric.

Each returns Metrics whose metadata has the judge's reply, what it cost and by which prompt, so that
a person can see why. Where the model gave no answer (none at all, or it was truncated) the judge is
not asked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import anyio

from heldout._fingerprint import describe_callable
from heldout._format import cut
from heldout.chat.messages import messages_of
from heldout.chat.reasoning import without_reasoning
from heldout.errors import InvalidInput
from heldout.scoring.judges.prompts import CRITERIA, EQUALITY, PAIRWISE, THREE_WAY, Prompt, scoped
from heldout.scoring.judges.questions import (
    Blocks,
    Criterion,
    Preferred,
    Question,
    Scope,
    check_criteria,
    criteria_question,
    equality_question,
    pairwise_question,
    three_way_question,
)
from heldout.types import Message, Metric, Sample, Trajectory

if TYPE_CHECKING:
    from heldout.scoring.judges.judge import Judge, Verdict

V = TypeVar("V")
TextOf = Callable[[Sample], str]

MAX_REPLY = 2000
"""Characters of a reply that a metric keeps. The whole of it is in the cache."""


@dataclass(frozen=True, eq=False)
class _Grader:
    judge: Judge
    question: TextOf | None
    name: str
    scope: Scope

    kind: ClassVar[Prompt]
    scopes: ClassVar[Sequence[Scope]] = ("answer", "trajectory")

    def __post_init__(self) -> None:
        if self.scope not in self.scopes:
            raise InvalidInput(
                f"scope is one of {', '.join(map(repr, self.scopes))} for this kind of judge, got "
                f"{self.scope!r}"
            )
        _check_function("question", self.question)

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def prompt(self) -> str:
        """Kind and version of the prompt: "equality/1"."""
        return scoped(self.kind, self.scope).name

    def identity(self) -> dict[str, Any]:
        """Describe what is asked, and of whom, as a part of a report's identity."""
        options = {"name": self.name, **self._options()}
        if self.question is not None:
            options["question"] = describe_callable(self.question)
        kind = self.prompt.partition("/")[0]
        judge = self.judge.identity()
        return {"kind": kind, "prompt": self.prompt, "judge": judge, "options": options}

    def _options(self) -> dict[str, Any]:
        return {}

    async def _ask(
        self,
        make_question: Callable[[str, str | Blocks], Question[V]],
        answer: str,
        sample: Sample,
        trajectory: Trajectory | None,
    ) -> list[Verdict[V]]:
        """Judge the answer, the trajectory or each turn; no verdict where there is no answer."""
        judged: list[str | Blocks] = []
        if self.scope == "answer":
            judged = [answer] if answer.strip() else []
            trajectory = None
        elif trajectory is None:
            raise InvalidInput(f"scope={self.scope!r} needs the trajectory: give trajectory=…")
        elif self.scope == "turn":
            turns = _model_turns(trajectory)
            judged = [_turn_blocks(trajectory, turn, sample) for turn in turns]
        elif _model_turns(trajectory):
            judged = [_trajectory_blocks(trajectory, sample)]
        if not judged:
            return []
        question = self._question_text(sample, trajectory)
        return await _ask_all(self.judge, [make_question(question, text) for text in judged])

    def _question_text(self, sample: Sample, trajectory: Trajectory | None) -> str:
        if self.question is not None:
            return _call(self.question, sample)
        if trajectory is None:
            messages: Sequence[Message] = messages_of(sample.input, f"sample {sample.id!r}: input")
        else:
            messages = trajectory.messages[: _model_turns(trajectory)[0]]
        return _conversation_text(messages, sample)

    def _describe(self, verdicts: Sequence[Verdict[Any]]) -> dict[str, Any]:
        """Return the metadata of a metric; without verdicts there was no answer."""
        name = cut(self.judge.name, MAX_REPLY)
        metadata: dict[str, Any] = {"judge": name, "prompt": self.prompt}
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


class EqualityJudge(_Grader):
    """Made by `Judge.equality`."""

    kind = EQUALITY

    async def __call__(
        self, answer: str, target: Any, *, sample: Sample, trajectory: Trajectory | None = None
    ) -> list[Metric]:
        """Grade an answer, or with `scope` its trajectory."""
        make_question = partial(equality_question, target=_target_text(target, sample))
        verdicts = await self._ask(make_question, answer, sample, trajectory)
        is_equal = any(verdict.value for verdict in verdicts)
        return [Metric(self.name, float(is_equal), 1.0, self._describe(verdicts))]


class ThreeWayJudge(_Grader):
    """Made by `Judge.three_way`.

    Beside the metric of its name: `NAME_incorrect`, `NAME_not_attempted`, and
    `NAME_given_attempted` only for samples that attempted an answer, so that its mean is accuracy
    given attempted.
    """

    kind = THREE_WAY

    async def __call__(
        self, answer: str, target: Any, *, sample: Sample, trajectory: Trajectory | None = None
    ) -> list[Metric]:
        """Grade an answer, or with `scope` its trajectory."""
        make_question = partial(three_way_question, target=_target_text(target, sample))
        verdicts = await self._ask(make_question, answer, sample, trajectory)
        verdict = verdicts[0].value if verdicts else "not_attempted"
        value = float(verdict == "correct")
        metrics = [
            Metric(self.name, value, 1.0, {"verdict": verdict, **self._describe(verdicts)}),
            Metric(f"{self.name}_incorrect", verdict == "incorrect"),
            Metric(f"{self.name}_not_attempted", verdict == "not_attempted"),
        ]
        if verdict != "not_attempted":
            metrics.append(Metric(f"{self.name}_given_attempted", value, rate=True))
        return metrics


@dataclass(frozen=True, eq=False)
class CriteriaJudge(_Grader):
    """Made by `Judge.criteria`.

    With `scope="turn"` every turn of the model is judged by itself; the metric is the mean over the
    turns, `NAME_worst` the lowest of them, and the metadata has each.
    """

    criteria: Sequence[Criterion] | Callable[[Sample], Sequence[Criterion]]
    show_target: bool
    track: bool

    kind = CRITERIA
    scopes = ("answer", "trajectory", "turn")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.criteria):
            check_criteria(self.criteria)

    def _options(self) -> dict[str, Any]:
        if callable(self.criteria):
            criteria: Any = describe_callable(self.criteria)
        else:
            criteria = [[c.id, c.description, c.weight, c.required] for c in self.criteria]
        return {"criteria": criteria, "show_target": self.show_target, "track": self.track}

    async def __call__(
        self, answer: str, target: Any, *, sample: Sample, trajectory: Trajectory | None = None
    ) -> list[Metric]:
        """Grade an answer, or with `scope` its trajectory or each of its turns."""
        criteria = self.criteria(sample) if callable(self.criteria) else self.criteria
        check_criteria(criteria)
        shown = _target_text(target, sample) if self.show_target else None
        make_question = partial(criteria_question, criteria=criteria, target=shown)
        verdicts = await self._ask(make_question, answer, sample, trajectory)
        metadata = self._describe(verdicts)
        met = [verdict.value for verdict in verdicts] or [{c.id: False for c in criteria}]
        scores = [criteria_score(criteria, which) for which in met]
        values = [value for value, _ in scores]
        notes = dict.fromkeys(note for _, note in scores if note)
        if notes and verdicts:
            metadata["note"] = "; ".join(notes)
        mean = math.fsum(values) / len(values)
        if self.scope == "turn":
            turns = [{"value": v, "criteria": m} for v, m in zip(values, met, strict=True)]
            metrics = [
                Metric(self.name, mean, 1.0, {"turns": turns, **metadata}),
                Metric(f"{self.name}_worst", min(values)),
            ]
        else:
            metrics = [Metric(self.name, mean, 1.0, {"criteria": met[0], **metadata})]
        if self.track:
            shares = {id: sum(turn[id] for turn in met) / len(met) for id in met[0]}
            metrics += [Metric(f"{self.name}_{id}", share) for id, share in shares.items()]
        return metrics


def criteria_score(criteria: Sequence[Criterion], met: dict[str, bool]) -> tuple[float, str]:
    """Score criteria: the weight that is met of what could be gained.

    Args:
        criteria: The criteria.
        met: For each id whether it is met.

    Returns:
        The score from 0 to 1, and a note where a required criterion makes it 0.
    """
    failed = [c.id for c in criteria if c.required and not met[c.id]]
    if failed:
        return 0.0, f"required and not met: {', '.join(failed)}"
    gained = math.fsum(c.weight for c in criteria if met[c.id])
    possible = math.fsum(c.weight for c in criteria if c.weight > 0)
    return min(1.0, max(0.0, gained / possible)), ""


@dataclass(frozen=True, eq=False)
class PairwiseJudge(_Grader):
    """Made by `Judge.pairwise`.

    1 where the answer wins in both orders, 0 where it loses in both, else 0.5. `NAME_consistent`
    is 1 where both orders agree: its mean is the share that position does not decide.
    """

    target: TextOf | None

    kind = PAIRWISE
    scopes = ("answer",)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_function("target", self.target)

    def _options(self) -> dict[str, Any]:
        return {} if self.target is None else {"target": describe_callable(self.target)}

    async def __call__(self, answer: str, target: Any, *, sample: Sample) -> list[Metric]:
        """Grade an answer."""
        if self.target is None:
            other = _target_text(target, sample)
        elif not (other := _call(self.target, sample)).strip():
            raise InvalidInput(
                f"sample {sample.id!r}: pairwise(target=…) gave an empty text, and there has "
                "to be an answer to compare with"
            )
        if not answer.strip():
            return [Metric(self.name, 0.0, 1.0, self._describe([]))]
        question = self._question_text(sample, None)
        orders = [(answer, other), (other, answer)]
        verdicts = await _ask_all(
            self.judge, [pairwise_question(question, first, second) for first, second in orders]
        )
        winners = [
            _winner(verdicts[0].value, first="answer", second="target"),
            _winner(verdicts[1].value, first="target", second="answer"),
        ]
        consistent = winners[0] == winners[1]
        value = {"answer": 1.0, "target": 0.0, "tie": 0.5}[winners[0]] if consistent else 0.5
        metadata = {"orders": winners, "consistent": consistent, **self._describe(verdicts)}
        return [
            Metric(self.name, value, 1.0, metadata),
            Metric(f"{self.name}_consistent", consistent),
        ]


def _winner(verdict: Preferred, *, first: str, second: str) -> str:
    return {"first": first, "second": second, "tie": "tie"}[verdict]


async def _ask_all(judge: Judge, questions: Sequence[Question[V]]) -> list[Verdict[V]]:
    """Ask at the same time; what goes wrong is raised as it is, not as a group."""
    verdicts: dict[int, Verdict[V]] = {}
    problems: list[Exception] = []

    async def ask(index: int) -> None:
        try:
            verdicts[index] = await judge.ask(questions[index])
        except Exception as problem:  # noqa: BLE001 - raised below
            problems.append(problem)
            group.cancel_scope.cancel()  # the others' requests would be paid for nothing

    async with anyio.create_task_group() as group:
        for index in range(len(questions)):
            group.start_soon(ask, index)
    if problems:
        raise problems[0]
    return [verdicts[index] for index in range(len(questions))]


# --- What a judge is shown ------------------------------------------------------------------------


def _target_text(target: Any, sample: Sample) -> str:
    """Render a target: text as it is, anything else as JSON."""
    try:
        text = target if isinstance(target, str) else json.dumps(target, ensure_ascii=False)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"sample {sample.id!r}: its ground truth is text or JSON values for a judge, got "
            f"{type(target).__name__}"
        ) from None
    if target is None or not text.strip():
        raise InvalidInput(
            f"sample {sample.id!r} has no ground truth, which the judge is to compare with"
        )
    return text


def _call(function: TextOf, sample: Sample) -> str:
    text = function(sample)
    if not isinstance(text, str):
        raise InvalidInput(
            f"sample {sample.id!r}: a function that gives a judge a text returned "
            f"{type(text).__name__}"
        )
    return text


def _check_function(name: str, function: object) -> None:
    if function is not None and not callable(function):
        raise InvalidInput(f"{name} is a function of the sample, got {function!r:.100}")


def _conversation_text(messages: Sequence[Message], sample: Sample) -> str:
    for message in messages:
        _check_is_text(message, sample, "say what it is to read: question=lambda sample: …")
    if len(messages) == 1:
        return messages[0].text
    return "\n\n".join(f"[{message.role}]\n{message.text}" for message in messages)


def _model_turns(trajectory: Trajectory) -> tuple[int, ...]:
    """List the indices of the model's turns in `trajectory.messages`."""
    if trajectory.model_turns is not None:
        return trajectory.model_turns
    roles = enumerate(message.role for message in trajectory.messages)
    return tuple(index for index, role in roles if role == "assistant")


def _trajectory_blocks(trajectory: Trajectory, sample: Sample) -> Blocks:
    """Show everything from the model's first turn on: messages, tool calls and their results."""
    texts: dict[str, str] = {}
    first = _model_turns(trajectory)[0]
    for number, index in enumerate(range(first, len(trajectory.messages)), 1):
        texts |= _message_texts(trajectory, sample, index, f"message {number}")
    return Blocks("trajectory", texts)


def _turn_blocks(trajectory: Trajectory, turn: int, sample: Sample) -> Blocks:
    """Show one turn and its calls, after the messages between the question and the turn."""
    texts: dict[str, str] = {}
    for number, index in enumerate(range(_model_turns(trajectory)[0], turn), 1):
        texts |= _message_texts(trajectory, sample, index, f"before {number}")
    own = _message_texts(trajectory, sample, turn, "turn")
    texts |= {"turn calls" if label == "turn calls" else "turn": own[label] for label in own}
    return Blocks("turn", texts)


def _message_texts(
    trajectory: Trajectory, sample: Sample, index: int, label: str
) -> dict[str, str]:
    message = trajectory.messages[index]
    _check_is_text(message, sample, "such a trajectory can only be judged by its last answer")
    text = without_reasoning(message.text) if message.role == "assistant" else message.text
    texts: dict[str, str] = {}
    if text.strip() or not message.tool_calls:
        is_cut = trajectory.stop.truncated and message is trajectory.last_turn
        texts[f"{label} {message.role}{' cut off' if is_cut else ''}"] = text
    if message.tool_calls:
        calls = [{"name": c.name, "arguments": c.arguments} for c in message.tool_calls]
        texts[f"{label} calls"] = json.dumps(calls, ensure_ascii=False)
    return texts


def _check_is_text(message: Message, sample: Sample, remedy: str) -> None:
    if not isinstance(message.content, str) and any(
        part.get("type") != "text" for part in message.content
    ):
        raise InvalidInput(
            f"sample {sample.id!r}: a message is more than text, and a judge would see the text "
            f"alone; {remedy}"
        )
