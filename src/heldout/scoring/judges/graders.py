"""The four kinds of judge as parts of a rubric: async callables of (answer, target, sample).

Each returns Metrics with what the judge replied, what it cost and by which prompt, so that a person
can see why. Where there is no answer (none was given, or generation was cut off) nobody is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from heldout._fingerprint import describe_callable
from heldout._format import cut
from heldout.errors import InvalidInput
from heldout.scoring.judges.prompts import CRITERIA, EQUALITY, PAIRWISE, THREE_WAY
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
from heldout.scoring.judges.samples import TextOf, asked_text, given_text, target_text
from heldout.types import Metric, Sample

if TYPE_CHECKING:
    from heldout.scoring.judges.judge import Judge, Verdict

V = TypeVar("V")

NO_ANSWER = "no answer"
LONGEST_SHOWN = 2000
"""Characters of a reply that a metric keeps. The whole of it is in the cache."""


@dataclass(frozen=True, eq=False)
class _Grader:
    judge: Judge
    question: TextOf | None
    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInput(f"a judge's metric has a name, got {self.name!r}")
        if self.question is not None and not callable(self.question):
            raise InvalidInput(f"question is a function of the sample, got {self.question!r:.100}")

    @property
    def __name__(self) -> str:
        return self.name

    def _identity(self, prompt: str, **options: Any) -> dict[str, Any]:
        if self.question is not None:
            options["question"] = describe_callable(self.question)
        return {
            "kind": prompt.partition("/")[0],
            "prompt": prompt,
            "judge": self.judge.identity(),
            "options": {"name": self.name, **options},
        }

    def _asked(self, sample: Sample) -> str:
        return asked_text(sample, self.question)

    def _seen(self, *verdicts: Verdict[Any]) -> dict[str, Any]:
        """A verdict, or two, as a metric keeps them."""
        replies = [_shown(verdict.reply) for verdict in verdicts]
        seen: dict[str, Any] = {
            "judge": _shown(self.judge.name),
            "prompt": verdicts[0].prompt,
            "reply": replies[0] if len(replies) == 1 else replies,
            "attempts": sum(verdict.attempts for verdict in verdicts),
            "cached": all(verdict.cached for verdict in verdicts),
        }
        # Of a pair, what one order cost now; of cached verdicts alone, what they cost once.
        paid = [verdict for verdict in verdicts if not verdict.cached] or verdicts
        used = [verdict.usage for verdict in paid if verdict.usage is not None]
        if len(used) == len(paid):
            seen["usage"] = {
                "prompt_tokens": sum(usage.prompt_tokens for usage in used),
                "completion_tokens": sum(usage.completion_tokens for usage in used),
            }
        return seen

    def _unasked(self, prompt: str) -> dict[str, Any]:
        return {"judge": _shown(self.judge.name), "prompt": prompt, "note": NO_ANSWER}


class EqualityJudge(_Grader):
    """Made by `Judge.equality`."""

    def identity(self) -> dict[str, Any]:
        return self._identity(EQUALITY.name)

    async def __call__(self, answer: str, target: Any, *, sample: Sample) -> list[Metric]:
        wanted = target_text(target, sample)
        if not answer.strip():
            return [Metric(self.name, 0.0, 1.0, self._unasked(EQUALITY.name))]
        verdict = await self.judge.ask(equality_question(self._asked(sample), answer, wanted))
        return [Metric(self.name, float(verdict.value), 1.0, self._seen(verdict))]


class ThreeWayJudge(_Grader):
    """Made by `Judge.three_way`.

    Beside the metric of its name: `NAME_incorrect`, `NAME_not_attempted`, and
    `NAME_given_attempted` for items that attempted an answer and for no others, so that its mean
    is accuracy given attempted.
    """

    def identity(self) -> dict[str, Any]:
        return self._identity(THREE_WAY.name)

    async def __call__(self, answer: str, target: Any, *, sample: Sample) -> list[Metric]:
        wanted = target_text(target, sample)
        if not answer.strip():
            return self._metrics("not_attempted", self._unasked(THREE_WAY.name))
        verdict = await self.judge.ask(three_way_question(self._asked(sample), answer, wanted))
        return self._metrics(verdict.value, self._seen(verdict))

    def _metrics(self, said: str, seen: dict[str, Any]) -> list[Metric]:
        correct = float(said == "correct")
        metrics = [
            Metric(self.name, correct, 1.0, {"verdict": said, **seen}),
            Metric(f"{self.name}_incorrect", said == "incorrect"),
            Metric(f"{self.name}_not_attempted", said == "not_attempted"),
        ]
        if said != "not_attempted":
            metrics.append(Metric(f"{self.name}_given_attempted", correct, rate=True))
        return metrics


@dataclass(frozen=True, eq=False)
class CriteriaJudge(_Grader):
    """Made by `Judge.criteria`."""

    criteria: Sequence[Criterion] | Callable[[Sample], Sequence[Criterion]]
    show_target: bool
    track: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.criteria):
            check_criteria(self.criteria)

    def identity(self) -> dict[str, Any]:
        if callable(self.criteria):
            criteria: Any = describe_callable(self.criteria)
        else:
            criteria = [[c.id, c.description, c.weight, c.required] for c in self.criteria]
        return self._identity(
            CRITERIA.name, criteria=criteria, show_target=self.show_target, track=self.track
        )

    async def __call__(self, answer: str, target: Any, *, sample: Sample) -> list[Metric]:
        criteria = self.criteria(sample) if callable(self.criteria) else self.criteria
        check_criteria(criteria)
        if not answer.strip():
            seen, met = self._unasked(CRITERIA.name), {c.id: False for c in criteria}
            return self._metrics(0.0, met, seen)
        wanted = target_text(target, sample) if self.show_target else None
        verdict = await self.judge.ask(
            criteria_question(self._asked(sample), answer, criteria, wanted)
        )
        value, note = criteria_score(criteria, verdict.value)
        seen = self._seen(verdict) | ({"note": note} if note else {})
        return self._metrics(value, verdict.value, seen)

    def _metrics(self, value: float, met: dict[str, bool], seen: dict[str, Any]) -> list[Metric]:
        metrics = [Metric(self.name, value, 1.0, {"criteria": met, **seen})]
        if self.track:
            metrics += [Metric(f"{self.name}_{id}", was) for id, was in met.items()]
        return metrics


def criteria_score(criteria: Sequence[Criterion], met: dict[str, bool]) -> tuple[float, str]:
    """The weight of what is met, of the weight that could be gained; and why, where it is 0 since
    something required is not met."""
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
    is 1 where both orders say the same: its mean is what place does not decide.
    """

    target: TextOf | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target is not None and not callable(self.target):
            raise InvalidInput(f"target is a function of the sample, got {self.target!r:.100}")

    def identity(self) -> dict[str, Any]:
        own = {} if self.target is None else {"target": describe_callable(self.target)}
        return self._identity(PAIRWISE.name, **own)

    async def __call__(self, answer: str, target: Any, *, sample: Sample) -> list[Metric]:
        if self.target is None:
            other = target_text(target, sample)
        else:
            other = given_text(self.target, sample)
            if not other.strip():
                raise InvalidInput(
                    f"sample {sample.id!r}: pairwise(target=…) gave an empty text, and there has "
                    "to be an answer to compare with"
                )
        if not answer.strip():
            return [Metric(self.name, 0.0, 1.0, self._unasked(PAIRWISE.name))]
        asked = self._asked(sample)
        one, two = await _both(
            self.judge,
            pairwise_question(asked, answer, other),
            pairwise_question(asked, other, answer),
        )
        says = _winner(one.value, first="answer"), _winner(two.value, first="target")
        consistent = says[0] == says[1]
        value = {"answer": 1.0, "target": 0.0, "tie": 0.5}[says[0]] if consistent else 0.5
        seen = {"orders": [*says], "consistent": consistent, **self._seen(one, two)}
        return [
            Metric(self.name, value, 1.0, seen),
            Metric(f"{self.name}_consistent", consistent),
        ]


def _winner(said: Preferred, *, first: str) -> str:
    if said == "tie":
        return said
    second = "target" if first == "answer" else "answer"
    return first if said == "first" else second


async def _both(judge: Judge, one: Question[V], two: Question[V]) -> tuple[Verdict[V], Verdict[V]]:
    """Asked at the same time; what goes wrong comes out as it is, not as a group."""
    verdicts: dict[int, Verdict[V]] = {}
    problems: list[Exception] = []

    async def ask(place: int, question: Question[V]) -> None:
        try:
            verdicts[place] = await judge.ask(question)
        except Exception as problem:  # noqa: BLE001 - raised below
            problems.append(problem)
            group.cancel_scope.cancel()  # what the other costs would be for nothing

    async with anyio.create_task_group() as group:
        group.start_soon(ask, 0, one)
        group.start_soon(ask, 1, two)
    if problems:
        raise problems[0]
    return verdicts[0], verdicts[1]


def _shown(text: str) -> str:
    return cut(text, LONGEST_SHOWN)
