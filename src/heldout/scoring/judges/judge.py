"""`Judge`: a model that is asked for verdicts, through any endpoint.

A reply that is no verdict is asked for again, with what was wrong; after so many attempts the
question has no verdict, which is an error and never a 0. Equal questions are asked once: those
under way are waited for, those answered are remembered, in a file where one is named. The key of a
verdict is all that decides it: the judge with its sampling, the words of the prompt, what was put
in, and which draw it is. Failures are not remembered; a judge that never was of use stops whoever
asks (`standing`).
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio

from heldout._aio import current_loop
from heldout.config import Sampling, check_endpoint
from heldout.errors import (
    FatalEndpointError,
    InvalidInput,
    NoVerdict,
    ScoringFailed,
    Unreachable,
    printable_error,
)
from heldout.models.base import with_retries
from heldout.rollout import waiting_for_others
from heldout.scoring.judges.cache import FileVerdicts, Kept, MemoryVerdicts, Verdicts
from heldout.scoring.judges.delimited import one_line, readable
from heldout.scoring.judges.graders import (
    CriteriaJudge,
    EqualityJudge,
    PairwiseJudge,
    ThreeWayJudge,
)
from heldout.scoring.judges.loops import EndpointByLoop
from heldout.scoring.judges.prompts import AGAIN, NO_REPLY, PROMPTS
from heldout.scoring.judges.questions import Criterion, Malformed, Question
from heldout.scoring.judges.replies import json_object
from heldout.scoring.judges.samples import TextOf
from heldout.scoring.judges.standing import Standing
from heldout.types import Completion, Message, Sample, Usage

log = logging.getLogger("heldout")

V = TypeVar("V")

_QUOTED = 300
_SENT_BACK = 4000
"""Characters of a malformed reply that the judge is shown again."""


@dataclass(frozen=True, slots=True)
class Verdict(Generic[V]):
    value: V
    reply: str
    """As the judge wrote it; what UTF-8 has no bytes for is spelled out."""
    usage: Usage | None
    """Of all attempts together; None where the endpoint does not say. Of a cached verdict: what it
    cost when it was asked for."""
    attempts: int
    cached: bool
    prompt: str


@dataclass(eq=False, slots=True)
class _Flight:
    """A question under way, for those who ask the same meanwhile."""

    begun: anyio.Event
    """Whether it is its turn, among all that is asked."""
    landed: anyio.Event
    kept: Kept | None = None
    problem: Exception | None = None


class Judge:
    def __init__(
        self,
        endpoint: Any,
        *,
        sampling: Sampling = Sampling(),  # noqa: B008 - frozen
        attempts: int = 3,
        retries: int = 4,
        cache: str | Path | None = None,
        max_concurrent: int = 16,
        timeout: float | None = 600.0,
        longest: int = 100_000,
    ) -> None:
        """`endpoint` is what `EvalConfig.endpoint` takes.

        `attempts` bounds how often one question is asked until the reply is a verdict; `retries`
        how often one request is tried again after a transient failure. `timeout` is how many
        seconds one request may take; what takes longer is such a failure (None: no limit).
        `longest` is the length of a text as it is sent, in characters, beyond which it is refused:
        it is never cut.
        """
        check_endpoint(endpoint)
        if not isinstance(sampling, Sampling):
            raise InvalidInput(f"sampling is a heldout.Sampling, got {sampling!r}")
        for name, given, least in (
            ("attempts", attempts, 1),
            ("retries", retries, 0),
            ("max_concurrent", max_concurrent, 1),
            ("longest", longest, 1),
        ):
            if isinstance(given, bool) or not isinstance(given, int) or given < least:
                raise InvalidInput(f"{name} is a whole number >= {least}, got {given!r}")
        if timeout is not None and (
            isinstance(timeout, bool)
            or not isinstance(timeout, int | float)
            or not 0 < timeout < math.inf
        ):
            raise InvalidInput(f"timeout is seconds > 0, or None, got {timeout!r}")
        self._sampling, self._attempts = sampling, attempts
        self._retries, self._timeout, self._longest = retries, timeout, longest
        self._kept: Verdicts = MemoryVerdicts() if cache is None else FileVerdicts(Path(cache))
        self._endpoints = EndpointByLoop(endpoint, max_concurrent, at_the_end=self._kept.close)
        self._standing = Standing()
        self._flights: dict[tuple[Any, str], _Flight] = {}

    # --- Who judges ---

    @cached_property
    def _description(self) -> dict[str, Any]:
        described = self._endpoints.describe()
        if "unknown" in described and self.cache is not None:
            log.warning(
                "verdicts are not reused, since nothing tells whether the same judge gave them: %s",
                described["unknown"],
            )
        # How many rows are decoded together is no property of the judge.
        return {name: value for name, value in described.items() if name != "max_batch"}

    @property
    def _is_known(self) -> bool:
        """Whether verdicts may be reused: they are this judge's and no other's."""
        return "unknown" not in self._description

    @property
    def name(self) -> str:
        """The model's name, or the function's."""
        said = self._description
        return str(said.get("model") or said.get("name") or said.get("kind") or "judge")

    @property
    def cache(self) -> Path | None:
        """The file that verdicts are kept in."""
        return self._kept.path if isinstance(self._kept, FileVerdicts) else None

    @property
    def _who(self) -> str:
        return one_line(self.name, 100)

    def identity(self) -> dict[str, Any]:
        """Who judges, and with which settings: what two reports must share to be compared.

        Asked for at the start of each eval: the weights of a model in memory are looked at again.
        """
        self.__dict__.pop("_description", None)
        return {
            "endpoint": dict(self._description),
            "sampling": self._sampling.to_dict(),
            "attempts": self._attempts,
            "longest": self._longest,
        }

    def key(self, question: Question[Any], *, draw: int = 0) -> str:
        """What a verdict is kept under."""
        known = PROMPTS.get(question.prompt)
        decides = {
            "endpoint": self._description,
            "sampling": self._sampling.to_dict(),
            "prompt": question.prompt,
            "words": known.text if known is not None else "",
            "messages": [[message.role, message.content] for message in question.messages],
            "inputs": question.inputs,
            "draw": draw,
        }
        try:
            # In ASCII: half a surrogate pair has no bytes, but an escape.
            encoded = json.dumps(decides, sort_keys=True, ensure_ascii=True).encode()
        except (TypeError, ValueError, RecursionError) as problem:
            raise InvalidInput(
                f"the inputs of a question to a judge, and the endpoint's description of itself, "
                f"are plain JSON values: {problem}"
            ) from None
        return hashlib.blake2b(encoded, digest_size=16).hexdigest()

    # --- Asking ---

    async def ask(self, question: Question[V], *, draw: int = 0) -> Verdict[V]:
        """The judge's verdict; NoVerdict where it gives none. Another `draw` is another opinion of
        the same judge, with a seed of its own where `sampling` has one."""
        if isinstance(draw, bool) or not isinstance(draw, int) or draw < 0:
            raise InvalidInput(f"draw is a whole number >= 0, got {draw!r}")
        self._check_length(question)
        key = self.key(question, draw=draw)
        while True:
            kept = self._kept.get(key) if self._is_known else None
            if (verdict := _remembered(question, kept)) is not None:
                self._standing.has_given_verdict()
                return verdict
            # Another event loop cannot be waited for from this one.
            flight = self._flights.get((current_loop(), key))
            if flight is None:
                return await self._lead(key, question, draw)
            with waiting_for_others():
                await flight.begun.wait()
            await flight.landed.wait()
            if flight.problem is not None:
                # One of their own: an exception that is raised again and again grows each time.
                raise _anew(flight.problem) from flight.problem.__cause__
            if (verdict := _remembered(question, flight.kept)) is not None:
                return verdict
            # Whoever asked was cancelled, or reads replies otherwise: now it is for us to ask.

    async def _lead(self, key: str, question: Question[V], draw: int) -> Verdict[V]:
        place = (current_loop(), key)
        flight = self._flights[place] = _Flight(anyio.Event(), anyio.Event())
        try:
            verdict = await self._converse(key, question, draw, flight)
            flight.kept = Kept(
                key, question.prompt, self.name, verdict.reply, verdict.attempts, verdict.usage
            )
            if self._is_known:
                self._kept.put(flight.kept)
            return verdict
        except Exception as problem:
            if flight.kept is None:
                flight.problem = problem
            raise
        finally:
            del self._flights[place]
            flight.begun.set()
            flight.landed.set()

    async def _converse(
        self, key: str, question: Question[V], draw: int, flight: _Flight
    ) -> Verdict[V]:
        sampling = self._sampling.for_item(f"{question.prompt} {key}", draw)
        messages, judged = question.messages, _judged(question)
        used: list[Usage | None] = []
        problem, reply = "", ""
        for attempt in range(self._attempts):
            completion = await self._complete(messages, sampling.for_turn(attempt), flight)
            used.append(completion.usage)
            reply = completion.message.text.encode("utf-8", "backslashreplace").decode()
            try:
                value = question.read(json_object(reply, completion.finish_reason, judged=judged))
            except Malformed as malformed:
                problem = one_line(str(malformed), 2 * _QUOTED)
                again = Message("user", AGAIN.format(problem=problem))
                said = Message("assistant", reply[:_SENT_BACK].strip() or NO_REPLY)
                messages = (*question.messages, said, again)
                continue
            self._standing.has_given_verdict()
            return Verdict(value, reply, _sum(used), attempt + 1, False, question.prompt)
        times = f"{self._attempts} attempts" if self._attempts > 1 else "one attempt"
        quoted = one_line(reply, _QUOTED) or "(no text)"
        none = NoVerdict(
            f"judge {self._who} gave no verdict in {times} ({question.prompt}): "
            f"{problem} Its last reply: {quoted}",
            usage=_sum(used),
        )
        raise self._standing.after_no_verdict(self._who, none)

    async def _complete(
        self, messages: Sequence[Message], sampling: Sampling, flight: _Flight
    ) -> Completion:
        here = await self._endpoints.here()

        async def request() -> Completion:
            with waiting_for_others():
                await here.places.acquire()  # not held while waiting for another try
            try:
                flight.begun.set()
                with anyio.move_on_after(self._timeout):
                    completion = await here.endpoint.complete(messages, sampling, ())
                    self._standing.has_answered()
                    return completion
            finally:
                here.places.release()
            assert self._timeout is not None
            raise self._standing.too_late(self._who, self._timeout)

        try:
            return await with_retries(request, self._retries)
        except FatalEndpointError as problem:
            raise FatalEndpointError(f"judge {self._who}: {problem}") from problem
        except Unreachable as problem:
            raise self._standing.after_silence(self._who, problem) from problem.__cause__

    def _check_length(self, question: Question[Any]) -> None:
        for label, text in question.inputs.items():
            if not isinstance(text, str):
                continue
            # What cannot be seen is spelled out, and grows.
            length = len(text) if len(text) > self._longest else len(readable(text))
            if length > self._longest:
                as_sent = "" if length == len(text) else " as it is sent"
                raise InvalidInput(
                    f"the {label} has {length} characters{as_sent}, and the judge is given at most "
                    f"{self._longest} of one text (it is never cut): Judge(longest=…) allows more"
                )

    async def close(self) -> None:
        """Closes what this judge opened itself, for this event loop. It can be used again."""
        await self._endpoints.close()
        self._kept.close()
        self.__dict__.pop("_description", None)  # another model may be opened next

    # --- Graders for a rubric ---

    def equality(self, *, question: TextOf | None = None, name: str = "correct") -> EqualityJudge:
        """1 where the answer means the same as the sample's ground truth, else 0.

        `question` says what was asked; by default it is the sample's own messages.
        """
        return EqualityJudge(self, question, name)

    def three_way(self, *, question: TextOf | None = None, name: str = "correct") -> ThreeWayJudge:
        """Correct, incorrect or not attempted, by the sample's ground truth."""
        return ThreeWayJudge(self, question, name)

    def criteria(
        self,
        criteria: Sequence[Criterion] | Callable[[Sample], Sequence[Criterion]],
        *,
        question: TextOf | None = None,
        name: str = "criteria",
        show_target: bool = False,
        track: bool = False,
    ) -> CriteriaJudge:
        """The weight of the criteria that are met, of what could be gained, from 0 to 1.

        `show_target` shows the judge the sample's ground truth, as a good answer. `track` adds a
        metric of weight 0 for each criterion.
        """
        return CriteriaJudge(self, question, name, criteria, show_target, track)

    def pairwise(
        self,
        *,
        question: TextOf | None = None,
        target: TextOf | None = None,
        name: str = "preferred",
    ) -> PairwiseJudge:
        """Is it better than the sample's ground truth, or than what `target` gives? In both
        orders."""
        return PairwiseJudge(self, question, name, target)


def _remembered(question: Question[V], kept: Kept | None) -> Verdict[V] | None:
    if kept is None:
        return None
    with suppress(Malformed):  # a file that somebody edited: it is asked again
        value = question.read(json_object(kept.reply, judged=_judged(question)))
        return Verdict(value, kept.reply, kept.usage, kept.attempts, True, question.prompt)
    return None


def _judged(question: Question[Any]) -> list[str]:
    """The texts that a reply might quote."""
    return [
        text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
        for text in question.inputs.values()
    ]


def _anew(problem: Exception) -> Exception:
    """The same exception, without the way it has come."""
    try:
        fresh = copy.copy(problem)
    except Exception:  # noqa: BLE001 - somebody's own class, which cannot be made of its arguments
        fresh = None
    if type(fresh) is type(problem):
        return fresh
    return ScoringFailed(f"{type(problem).__name__}: {printable_error(problem)}")


def _sum(used: Sequence[Usage | None]) -> Usage | None:
    total = Usage()
    for each in used:
        if each is None:
            return None  # half of it would pass for all of it
        total += each
    return total
