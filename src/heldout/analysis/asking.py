"""Asking a judge about labelled answers: every question once a draw, many at a time.

A question that has no verdict is that item's problem, in words. The asking stops early only where
no further question can do better: the key or the model is refused, nothing ever answered, or no
reply to many questions was a verdict (`heldout.scoring.judges`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heldout.analysis.labels import DIFFERENT, EQUAL, Kind, Label, Labelled
from heldout.errors import (
    FatalEndpointError,
    NoVerdict,
    SystemicFailure,
    Unreachable,
    printable_error,
)
from heldout.types import Usage

if TYPE_CHECKING:
    from heldout.scoring.judges import Judge, Question, Verdict

OnAnswer = Callable[[int, int, int], object]
"""(questions done, of how many, of which without a verdict)"""

SWAPPED = {"first": "second", "second": "first", "tie": "tie"}
"""What is said of two answers in one order, in terms of the other."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one draw said of an item: a verdict, or why there is none."""

    verdict: Label | None
    problem: str | None = None
    replies: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    """Pairwise: what was said in the item's own order, and in the other, as it was said."""


class Asking:
    def __init__(self, judge: Judge, kind: Kind, on_answer: OnAnswer | None, total: int) -> None:
        self._judge, self._kind, self._on_answer, self._total = judge, kind, on_answer, total
        self.opinions: dict[tuple[int, int], Opinion] = {}
        self.verdicts = self.cached = self.errors = 0
        self.usage: Usage | None = Usage()
        self._stopped: Exception | None = None

    async def all(self, todo: Iterator[tuple[Labelled, int, int]], workers: int) -> None:
        import anyio  # here: most of what imports heldout.analysis asks nobody

        async def work() -> None:
            for item, index, draw in todo:
                self.opinions[index, draw] = await self._one(item, draw)
                if self._stopped is not None:
                    group.cancel_scope.cancel()
                    return
                if self._on_answer is not None:
                    self._on_answer(len(self.opinions), self._total, self.errors)

        async with anyio.create_task_group() as group:
            for _ in range(max(1, min(workers, self._total))):
                group.start_soon(work)
        if self._stopped is not None:
            raise SystemicFailure(
                "no further question can do better, so the check was stopped: "
                f"{printable_error(self._stopped)}"
            ) from self._stopped

    async def _one(self, item: Labelled, draw: int) -> Opinion:
        found: list[Verdict[Any]] = []
        try:
            for question in questions_of(item, self._kind):
                found.append(await self._judge.ask(question, draw=draw))
        except Exception as problem:  # noqa: BLE001 - that item has no verdict, and says why
            never = isinstance(problem, Unreachable) and not self.verdicts
            if never or isinstance(problem, FatalEndpointError):
                self._stopped = problem
            self.errors += 1
            if isinstance(problem, NoVerdict):
                self._add(problem.usage)
            said = f"{type(problem).__name__}: {printable_error(problem)}"
            return Opinion(None, said, tuple(one.reply for one in found))
        finally:
            self._count(found)
        replies = tuple(one.reply for one in found)
        if self._kind == "pairwise":
            places = (found[0].value, found[1].value)
            return Opinion(_of_both(*places), None, replies, places)
        value = found[0].value
        if self._kind == "equality":
            value = EQUAL if value else DIFFERENT
        return Opinion(value, None, replies)

    def _count(self, found: Sequence[Verdict[Any]]) -> None:
        for one in found:
            self.verdicts += 1
            if one.cached:
                self.cached += 1
            else:
                self._add(one.usage)

    def _add(self, usage: Usage | None) -> None:
        # Half of it would pass for all of it.
        self.usage = None if self.usage is None or usage is None else self.usage + usage


def questions_of(item: Labelled, kind: Kind) -> list[Question[Any]]:
    """What is asked of an item: one question, or one for each order."""
    from heldout.scoring.judges.questions import (
        criteria_question,
        equality_question,
        pairwise_question,
        three_way_question,
    )

    texts = item.texts
    asked = texts["question"]
    if kind == "pairwise":
        first, second = texts["first"], texts["second"]
        return [pairwise_question(asked, first, second), pairwise_question(asked, second, first)]
    if kind == "criteria":
        return [criteria_question(asked, texts["answer"], item.criteria, texts.get("target"))]
    make = equality_question if kind == "equality" else three_way_question
    return [make(asked, texts["answer"], texts["target"])]


def _of_both(own: str, swapped: str) -> str:
    """What both orders say; a tie where they contradict each other."""
    return own if own == SWAPPED[swapped] else "tie"
