"""The four kinds of judge as parts of a rubric.

Each returns Metrics whose metadata has the judge's reply, what it cost and by which prompt, so that
a person can see why. Where the model gave no answer (none at all, or it was truncated) the judge is
not asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import anyio

from heldout._fingerprint import describe_callable
from heldout._format import cut
from heldout.errors import InvalidInput
from heldout.scoring.judges.prompts import CRITERIA, EQUALITY, PAIRWISE, THREE_WAY, Prompt, scoped
from heldout.scoring.judges.questions import (
    Criterion,
    Preferred,
    Question,
    check_criteria,
    criteria_question,
    equality_question,
    pairwise_question,
    three_way_question,
)
from heldout.scoring.judges.texts import (
    Blocks,
    Scope,
    TextOf,
    asked_text,
    model_turns,
    target_text,
    text_from,
    trajectory_blocks,
    turn_blocks,
)
from heldout.types import Metric, Sample, Trajectory

if TYPE_CHECKING:
    from heldout.scoring.judges.judge import Judge, Verdict

V = TypeVar("V")

NO_ANSWER = "no answer"
MAX_SHOWN = 2000
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
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInput(f"a judge's metric has a name, got {self.name!r}")
        if self.question is not None and not callable(self.question):
            raise InvalidInput(f"question is a function of the sample, got {self.question!r:.100}")
        if self.scope not in self.scopes:
            raise InvalidInput(
                f"scope is one of {', '.join(map(repr, self.scopes))} for this kind of judge, got "
                f"{self.scope!r}"
            )

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

    def _answers(
        self, answer: str, sample: Sample, trajectory: Trajectory | None
    ) -> Sequence[str | Blocks]:
        """What is judged, in one question each; nothing where there is no answer."""
        if self.scope == "answer":
            return [answer] if answer.strip() else []
        if trajectory is None:
            raise InvalidInput(f"scope={self.scope!r} needs the trajectory: give trajectory=…")
        turns = model_turns(trajectory)
        if not turns:
            return []
        if self.scope == "trajectory":
            return [trajectory_blocks(trajectory, sample)]
        return [turn_blocks(trajectory, turn, sample) for turn in turns]

    def _asked(self, sample: Sample, trajectory: Trajectory | None) -> str:
        if self.question is not None:
            return text_from(self.question, sample)
        if self.scope == "answer" or trajectory is None:
            return asked_text(sample)
        return asked_text(sample, trajectory.messages[: model_turns(trajectory)[0]])

    def _describe(self, *verdicts: Verdict[Any]) -> dict[str, Any]:
        """Metadata of a metric that rests on these verdicts; on none, without an answer."""
        described: dict[str, Any] = {"judge": _shorten(self.judge.name), "prompt": self.prompt}
        if not verdicts:
            return described | {"note": NO_ANSWER}
        replies = [_shorten(verdict.reply) for verdict in verdicts]
        described |= {
            "reply": replies[0] if len(replies) == 1 else replies,
            "attempts": sum(verdict.attempts for verdict in verdicts),
            "cached": all(verdict.cached for verdict in verdicts),
        }
        # Of several, what those cost that were asked now; of cached ones, what they cost once.
        paid = [verdict for verdict in verdicts if not verdict.cached] or verdicts
        usages = [verdict.usage for verdict in paid if verdict.usage is not None]
        if len(usages) == len(paid):
            described["usage"] = {
                "prompt_tokens": sum(usage.prompt_tokens for usage in usages),
                "completion_tokens": sum(usage.completion_tokens for usage in usages),
            }
        return described


class EqualityJudge(_Grader):
    """Made by `Judge.equality`."""

    kind = EQUALITY

    async def __call__(
        self, answer: str, target: Any, *, sample: Sample, trajectory: Trajectory | None = None
    ) -> list[Metric]:
        """Grade an answer, or with `scope` its trajectory."""
        target = target_text(target, sample)
        judged = self._answers(answer, sample, trajectory)
        if not judged:
            return [Metric(self.name, 0.0, 1.0, self._describe())]
        question = equality_question(self._asked(sample, trajectory), judged[0], target)
        verdict = await self.judge.ask(question)
        return [Metric(self.name, float(verdict.value), 1.0, self._describe(verdict))]


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
        target = target_text(target, sample)
        judged = self._answers(answer, sample, trajectory)
        if not judged:
            return self._metrics("not_attempted", self._describe())
        question = three_way_question(self._asked(sample, trajectory), judged[0], target)
        verdict = await self.judge.ask(question)
        return self._metrics(verdict.value, self._describe(verdict))

    def _metrics(self, verdict: str, description: dict[str, Any]) -> list[Metric]:
        correct = float(verdict == "correct")
        metrics = [
            Metric(self.name, correct, 1.0, {"verdict": verdict, **description}),
            Metric(f"{self.name}_incorrect", verdict == "incorrect"),
            Metric(f"{self.name}_not_attempted", verdict == "not_attempted"),
        ]
        if verdict != "not_attempted":
            metrics.append(Metric(f"{self.name}_given_attempted", correct, rate=True))
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
        judged = self._answers(answer, sample, trajectory)
        if not judged:
            return self._metrics([0.0], [{c.id: False for c in criteria}], self._describe())
        asked = self._asked(sample, trajectory)
        shown = target_text(target, sample) if self.show_target else None
        verdicts = await _ask_all(
            self.judge, [criteria_question(asked, each, criteria, shown) for each in judged]
        )
        scores = [criteria_score(criteria, verdict.value) for verdict in verdicts]
        description = self._describe(*verdicts)
        if notes := [note for _, note in scores if note]:
            description["note"] = "; ".join(dict.fromkeys(notes))
        met = [verdict.value for verdict in verdicts]
        return self._metrics([value for value, _ in scores], met, description)

    def _metrics(
        self, values: list[float], met: list[dict[str, bool]], description: dict[str, Any]
    ) -> list[Metric]:
        count = len(values)
        if self.scope == "turn":
            turns = [{"value": v, "criteria": m} for v, m in zip(values, met, strict=True)]
            metadata = {"turns": turns, **description}
        else:
            metadata = {"criteria": met[0], **description}
        metrics = [Metric(self.name, math.fsum(values) / count, 1.0, metadata)]
        if self.scope == "turn":
            metrics.append(Metric(f"{self.name}_worst", min(values)))
        if self.track:
            shares = {id: sum(each[id] for each in met) / count for id in met[0]}
            metrics += [Metric(f"{self.name}_{id}", share) for id, share in shares.items()]
        return metrics


def criteria_score(criteria: Sequence[Criterion], met: dict[str, bool]) -> tuple[float, str]:
    """Return the weight met of what could be gained; and why, where a required one fails it."""
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
        if self.target is not None and not callable(self.target):
            raise InvalidInput(f"target is a function of the sample, got {self.target!r:.100}")

    def _options(self) -> dict[str, Any]:
        return {} if self.target is None else {"target": describe_callable(self.target)}

    async def __call__(self, answer: str, target: Any, *, sample: Sample) -> list[Metric]:
        """Grade an answer."""
        if self.target is None:
            other = target_text(target, sample)
        else:
            other = text_from(self.target, sample)
            if not other.strip():
                raise InvalidInput(
                    f"sample {sample.id!r}: pairwise(target=…) gave an empty text, and there has "
                    "to be an answer to compare with"
                )
        if not answer.strip():
            return [Metric(self.name, 0.0, 1.0, self._describe())]
        asked = self._asked(sample, None)
        one, two = await _ask_all(
            self.judge,
            [pairwise_question(asked, answer, other), pairwise_question(asked, other, answer)],
        )
        winners = [_winner(one.value, first="answer"), _winner(two.value, first="target")]
        consistent = winners[0] == winners[1]
        value = {"answer": 1.0, "target": 0.0, "tie": 0.5}[winners[0]] if consistent else 0.5
        metadata = {"orders": winners, "consistent": consistent, **self._describe(one, two)}
        return [
            Metric(self.name, value, 1.0, metadata),
            Metric(f"{self.name}_consistent", consistent),
        ]


def _winner(verdict: Preferred, *, first: str) -> str:
    if verdict == "tie":
        return verdict
    second = "target" if first == "answer" else "answer"
    return first if verdict == "first" else second


async def _ask_all(judge: Judge, questions: Sequence[Question[V]]) -> list[Verdict[V]]:
    """Ask at the same time; what goes wrong is raised as it is, not as a group."""
    verdicts: dict[int, Verdict[V]] = {}
    problems: list[Exception] = []

    async def ask(place: int) -> None:
        try:
            verdicts[place] = await judge.ask(questions[place])
        except Exception as problem:  # noqa: BLE001 - raised below
            problems.append(problem)
            group.cancel_scope.cancel()  # the others' requests would be paid for nothing

    async with anyio.create_task_group() as group:
        for place in range(len(questions)):
            group.start_soon(ask, place)
    if problems:
        raise problems[0]
    return [verdicts[place] for place in range(len(questions))]


def _shorten(text: str) -> str:
    return cut(text, MAX_SHOWN)
