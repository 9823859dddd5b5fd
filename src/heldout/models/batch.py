"""Answers that are made in batches, by a function that is called in one thread alone.

For a model in the middle of its training: it belongs to the trainer's thread, and the same weights
must give the same answers, to the byte. So who is in a batch is not left to timing. All items that
are under way are waited for, and then answered together in the order of the dataset: an item that
talks to a slow tool holds up the others, and the batches are always the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio

from heldout._aio import Here
from heldout.config import Sampling
from heldout.errors import EndpointError, printable_error
from heldout.rollout import waiting_for_others
from heldout.types import Completion, Message, ToolSpec


@dataclass(frozen=True, slots=True)
class Request:
    """One model turn that is asked for."""

    messages: tuple[Message, ...]
    sampling: Sampling
    tools: tuple[ToolSpec, ...] = ()


Answered = Completion | Message | str | Exception | None
"""A turn; what went wrong with this one; None where time ran out before it was finished."""
Answer = Callable[[Sequence[Request]], Sequence[Answered]]


@dataclass(eq=False, slots=True)
class _Turn:
    place: tuple[int, int]
    request: Request
    ready: anyio.Event
    outcome: Completion | Exception | None = None


class BatchEndpoint:
    """`rows` items are under way at once, of `items` in all; `serve` answers them."""

    def __init__(self, answer: Answer, here: Here, *, items: int, rows: int) -> None:
        self._answer, self._here, self._rows = answer, here, rows
        self._items = self._left = items
        self._waiting: list[_Turn] = []
        self._unanswered = 0
        self._everyone = anyio.Event()
        self.over = anyio.Event()
        """Set when time has run out, and all that was answered before has been made use of."""

    @property
    def done(self) -> int:
        return self._items - self._left

    def describe(self) -> dict[str, Any]:
        return {"kind": "live", "rows": self._rows}

    @contextmanager
    def item(self, index: int, repeat: int) -> Iterator[_Seat]:
        try:
            yield _Seat(self, (index, repeat))
        finally:
            self._left -= 1
            self._look()

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        raise EndpointError("a batch endpoint answers items of an eval, and this is none")

    async def close(self) -> None:
        pass

    async def serve(self) -> None:
        """Answer batch after batch, for as long as this runs."""
        while True:
            await self._everyone.wait()
            self._everyone = anyio.Event()
            turns, self._waiting = sorted(self._waiting, key=lambda turn: turn.place), []
            requests = [turn.request for turn in turns]
            if not requests:
                continue
            try:
                given = list(await self._here(partial(self._answer, requests)))
                if len(given) != len(turns):
                    raise EndpointError(f"{len(turns)} turns were asked for, {len(given)} given")
            except Exception as problem:  # noqa: BLE001 - it is the error of everyone in the batch
                given = [problem] * len(turns)
            for turn, answer in zip(turns, given, strict=True):
                if answer is None:
                    self._unanswered += 1  # time has run out: it waits until all are cancelled
                    continue
                turn.outcome = _outcome(answer)
                turn.ready.set()
            self._look()

    async def turn(self, place: tuple[int, int], request: Request) -> Completion:
        turn = _Turn(place, request, anyio.Event())
        self._waiting.append(turn)
        self._look()
        try:
            with waiting_for_others():
                await turn.ready.wait()
        finally:
            if turn in self._waiting:  # cancelled before it was its turn
                self._waiting.remove(turn)
        if isinstance(turn.outcome, Exception):
            raise turn.outcome
        assert turn.outcome is not None
        return turn.outcome

    def _look(self) -> None:
        under_way = min(self._rows, self._left)
        if self._unanswered:
            if self._unanswered + len(self._waiting) >= under_way:
                self.over.set()
        elif self._waiting and len(self._waiting) >= under_way:
            self._everyone.set()


def _outcome(answer: Completion | Message | str | Exception) -> Completion | Exception:
    if isinstance(answer, Exception):
        if isinstance(answer, EndpointError):
            return answer
        return EndpointError(f"{type(answer).__name__}: {printable_error(answer)}")
    try:
        return answer if isinstance(answer, Completion) else Completion.of(answer)
    except Exception as problem:  # noqa: BLE001 - the error of this item
        return EndpointError(str(problem))


@dataclass(frozen=True, slots=True)
class _Seat:
    """The endpoint as one item sees it."""

    endpoint: BatchEndpoint
    place: tuple[int, int]

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        request = Request(tuple(messages), sampling, tuple(tools))
        return await self.endpoint.turn(self.place, request)

    def describe(self) -> dict[str, Any]:
        return self.endpoint.describe()

    async def close(self) -> None:
        pass
