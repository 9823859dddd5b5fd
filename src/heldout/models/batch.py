"""Answers in batches, from a function that runs in one thread alone.

For a model in the middle of its training: it belongs to the trainer's thread, and the same weights
must give the same answers, to the byte. So timing must not decide which requests share a batch. The
endpoint waits until every attempt in flight has asked, and then answers all of them in the order of
the dataset: an attempt that talks to a slow tool delays the others, and the batches are always the
same.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio

from heldout._core.aio import CallerThread
from heldout._core.config import Sampling
from heldout._core.current_attempt import Wait, waiting_for_others
from heldout.errors import EndpointError, FatalEndpointError, printable_error
from heldout.models.base import Complete, RatesContinuations
from heldout.types import Completion, Continuation, Message, Rating, ToolSpec


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one model turn, or for the likelihoods of given continuations."""

    messages: tuple[Message, ...]
    sampling: Sampling
    tools: tuple[ToolSpec, ...] = ()
    continuations: tuple[Continuation, ...] = ()
    """What to rate; where there is none, a turn is asked for."""


Answered = Completion | Message | str | Rating | Exception | None
"""A turn or a rating; the error of this request; None if time ran out before it was complete."""
AnswerBatchFn = Callable[[Sequence[Request]], Sequence[Answered]]


@dataclass(eq=False, slots=True)
class _PendingTurn:
    key: tuple[int, int]
    """Index and repeat: batches are sorted by it."""
    request: Request
    ready: anyio.Event
    answer: Answered = None
    wait: Wait = field(default_factory=Wait)


@dataclass(frozen=True, slots=True)
class _BatchedAttempt:
    """What one attempt may ask; see `bind_attempt`."""

    submit: Callable[[Request], Awaitable[Answered]]

    async def __call__(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        answer = await self.submit(Request(tuple(messages), sampling, tuple(tools)))
        assert answer is not None
        assert not isinstance(answer, Rating | Exception)
        return Completion.of(answer)

    async def rate(self, continuations: Sequence[Continuation]) -> Rating:
        answer = await self.submit(Request((), Sampling(), (), tuple(continuations)))
        if not isinstance(answer, Rating):
            raise FatalEndpointError(
                "this eval compares the likelihoods of given texts, and its runner wrote a turn"
            )
        return answer


class BatchEndpoint(RatesContinuations):
    """An endpoint that answers all attempts in flight together.

    Attributes:
        over: Set when time has run out and no attempt can go on.
    """

    def __init__(
        self, answer: AnswerBatchFn, caller_thread: CallerThread, *, items: int, rows: int
    ) -> None:
        """Prepare for one eval of `items` attempts, with `rows` in flight at once.

        `answer` answers a batch, in the order of its requests; `caller_thread` runs it
        in the thread that the model belongs to.
        """
        self._answer, self._caller_thread, self._rows = answer, caller_thread, rows
        self._items = self._left = items
        self._waiting: list[_PendingTurn] = []
        self._unanswered = 0
        self._batch_ready = anyio.Event()
        self.over = anyio.Event()

    @property
    def done(self) -> int:
        """How many attempts have ended."""
        return self._items - self._left

    def describe(self) -> dict[str, Any]:
        """Describe the endpoint for the report; the caller adds which weights answered."""
        return {"kind": "live", "rows": self._rows}

    @contextmanager
    def item(self, index: int, repeat: int) -> Iterator[Complete]:
        """Return the completion function of one attempt; see `bind_attempt`."""
        try:
            yield _BatchedAttempt(partial(self._submit, (index, repeat)))
        finally:
            self._left -= 1
            self._check_batch()

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """Refuse: only attempts of the eval are answered, through `item`."""
        raise EndpointError("a batch endpoint answers attempts of an eval only")

    async def rate(self, continuations: Sequence[Continuation]) -> Rating:
        """Refuse, as `complete` does."""
        raise EndpointError("a batch endpoint answers attempts of an eval only")

    async def close(self) -> None:
        """Do nothing: the model belongs to the caller."""

    async def serve(self) -> None:
        """Answer batch after batch, until cancelled."""
        while True:
            await self._batch_ready.wait()
            self._batch_ready = anyio.Event()
            turns, self._waiting = sorted(self._waiting, key=lambda turn: turn.key), []
            if not turns:
                continue
            requests = [turn.request for turn in turns]
            begun = time.perf_counter()
            for turn in turns:
                turn.wait.served_at = begun
            try:
                answers = list(await self._caller_thread(partial(self._answer, requests)))
                if len(answers) != len(turns):
                    raise EndpointError(f"{len(turns)} requests got {len(answers)} answers")
            except Exception as problem:  # noqa: BLE001 - the error of every request in the batch
                answers = [problem] * len(turns)
            for turn, answer in zip(turns, answers, strict=True):
                if answer is None:
                    self._unanswered += 1  # time has run out: it waits until it is cancelled
                    continue
                turn.answer = answer
                turn.ready.set()
            self._check_batch()

    async def _submit(self, key: tuple[int, int], request: Request) -> Answered:
        turn = _PendingTurn(key, request, anyio.Event())
        self._waiting.append(turn)
        self._check_batch()
        try:
            with waiting_for_others() as turn.wait:
                await turn.ready.wait()
        finally:
            if turn in self._waiting:  # cancelled before its batch began
                self._waiting.remove(turn)
        answer = turn.answer
        if isinstance(answer, Exception) and not isinstance(answer, EndpointError):
            answer = EndpointError(f"{type(answer).__name__}: {printable_error(answer)}")
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _check_batch(self) -> None:
        in_flight = min(self._rows, self._left)
        if self._unanswered:
            if self._unanswered + len(self._waiting) >= in_flight:
                self.over.set()
        elif self._waiting and len(self._waiting) >= in_flight:
            self._batch_ready.set()
