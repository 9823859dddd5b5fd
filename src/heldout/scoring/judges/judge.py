"""`Judge`: a model that gives verdicts, through any endpoint.

If a reply is not a verdict, the judge is asked again and told what was wrong; after `attempts`
replies the question has no verdict, which is an error and never a 0. Equal questions are asked once
and cached. A verdict's key is everything it depends on: the endpoint's description, the sampling,
the text of the prompt, the messages, and the number of the draw. The description of a model in this
process includes its weights, which may change between two questions, so it is made for each one.
Failures are not cached. A judge that has never replied stops the run: no other question could do
better.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
import msgspec

from heldout._core.aio import current_loop
from heldout._core.config import Sampling, check_endpoint
from heldout._core.current_attempt import add_other_usage, waiting_for_others
from heldout._core.format import cut, printable
from heldout._core.providers import model_name
from heldout._finish_reasons import LENGTH
from heldout._reasoning import without_reasoning
from heldout.errors import FatalEndpointError, InvalidInput, NoVerdict, TransientError
from heldout.models import Endpoint
from heldout.models.cache import ResponseCache
from heldout.models.retries import with_retries
from heldout.models.shared import LoopEndpoints
from heldout.scoring.judges.graders import (
    Criteria,
    JudgeGrader,
    TextOf,
    grade_criteria,
    grade_equality,
    grade_pairwise,
    grade_three_way,
)
from heldout.scoring.judges.prompts import (
    AGAIN,
    CRITERIA,
    EQUALITY,
    NO_REPLY,
    PAIRWISE,
    THREE_WAY,
    Malformed,
    Question,
    Scope,
    check_criteria,
)
from heldout.types import Completion, Message, Usage

log = logging.getLogger("heldout")

V = TypeVar("V")

MAX_FAILURES = 10
"""Questions without a verdict after which a judge that never gave one stops the run."""
MAX_IN_MEMORY = 16_384
"""Verdicts that are kept in memory."""
MAX_REPLY = 100_000
"""Characters. Verdicts are kept; whatever is longer is no verdict."""
_QUOTED = 300
_SENT_BACK = 4000
"""Characters of a malformed reply that the judge is shown again."""


@dataclass(frozen=True, slots=True)
class JudgeVerdict(Generic[V]):
    """What a judge decided.

    Attributes:
        value: The verdict.
        reply: As the judge wrote it, with lone surrogates escaped.
        usage: Of all attempts together; None where the endpoint does not report it. Of a cached
            verdict: what it cost originally.
        attempts: How often the question was asked.
        cached: Whether it came from the cache.
        prompt: Kind and version of the prompt.
    """

    value: V
    reply: str
    usage: Usage | None
    attempts: int
    cached: bool
    prompt: str


class Judge:
    """A model that is asked for verdicts. It needs no closing, and serves any number of loops."""

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
    ) -> None:
        """Make a judge. Nothing is sent yet.

        Args:
            endpoint: What `EvalConfig.endpoint` takes.
            sampling: How the judge samples.
            attempts: Maximum number of times a question is asked until a reply is a verdict.
            retries: Maximum number of retries of a request after a transient failure.
            cache: An SQLite file for verdicts; in memory by default.
            max_concurrent: Requests in flight at once, in one event loop.
            timeout: Seconds for one request; more is a transient failure. None for no limit.

        Raises:
            InvalidInput: A setting is out of range, or the cache cannot be used.
        """
        check_endpoint(endpoint)
        for name, value, least in (
            ("attempts", attempts, 1),
            ("retries", retries, 0),
            ("max_concurrent", max_concurrent, 1),
        ):
            if value < least:
                raise InvalidInput(f"{name} must be a whole number >= {least}, got {value!r}")
        if timeout is not None and not 0 < timeout < inf:
            raise InvalidInput(f"timeout must be seconds > 0, or None, got {timeout!r}")
        self._sampling, self._attempts = sampling, attempts
        self._retries, self._timeout = retries, timeout
        self._cache = VerdictCache(None if cache is None else Path(cache))
        self._endpoints = LoopEndpoints(endpoint, max_concurrent)
        self._locks: WeakValueDictionary[tuple[Any, bytes], anyio.Lock] = WeakValueDictionary()
        self._latest: tuple[float, dict[str, Any]] = -inf, {}
        self._has_warned = False
        self._has_given_verdict = False
        self._failures = 0

    # --- Identity ---

    @cached_property
    def _description(self) -> dict[str, Any]:
        return self._read_description(self._endpoints.open())

    def _read_description(self, endpoint: Endpoint) -> dict[str, Any]:
        described = endpoint.describe()
        if "unknown" in described and self.cache is not None and not self._has_warned:
            self._has_warned = True
            log.warning(
                "verdicts are not reused, since nothing tells whether the same judge gave them: %s",
                described["unknown"],
            )
        # How many rows are decoded together is no property of the judge.
        return {name: value for name, value in described.items() if name != "max_batch"}

    async def _describe_now(self) -> dict[str, Any]:
        """Describe the judge as it is now; one that is named by a text stays as it is.

        Torch does not count every write to weights, so they are hashed. Questions of one event loop
        that wait for that share the next description.
        """
        if self._endpoints.is_named:
            return self._description
        asked = time.monotonic()
        endpoint = (await self._endpoints.here()).endpoint
        lock = self._locks.setdefault((current_loop(), b"description"), anyio.Lock())
        with waiting_for_others():
            await lock.acquire()
        try:
            begun, description = self._latest
            if begun < asked:
                begun = time.monotonic()
                description = await anyio.to_thread.run_sync(self._read_description, endpoint)
                self._latest = begun, description
            return description
        finally:
            lock.release()

    @property
    def name(self) -> str:
        """The model's name, or the function's."""
        names = (self._description.get(key) for key in ("model", "name", "kind"))
        return str(next(filter(None, names), "judge"))

    @property
    def cache(self) -> Path | None:
        """The file that verdicts are kept in."""
        return self._cache.path

    def identity(self) -> dict[str, Any]:
        """Describe the judge and its settings: what two reports must share to be compared.

        Called at the start of each eval; the weights of a model in memory are hashed again.

        Returns:
            Plain JSON values.
        """
        self.__dict__.pop("_description", None)
        return {
            "endpoint": dict(self._description),
            "sampling": self._sampling.to_dict(),
            "attempts": self._attempts,
        }

    def _key(self, description: dict[str, Any], question: Question[Any], draw: int) -> bytes:
        """Hash all that decides a verdict, as its key in the cache."""
        request = {
            "endpoint": description,
            "sampling": self._sampling.to_dict(),
            "prompt": question.prompt,
            "messages": [[message.role, message.content] for message in question.messages],
            "inputs": question.inputs,
            "draw": draw,
        }
        # In ASCII: a lone surrogate has no bytes, but an escape.
        encoded = json.dumps(request, sort_keys=True, ensure_ascii=True).encode()
        return hashlib.blake2b(encoded, digest_size=16).digest()

    # --- Asking ---

    async def ask(self, question: Question[V], *, draw: int = 0) -> JudgeVerdict[V]:
        """Ask a question, or look its verdict up.

        Args:
            question: The question.
            draw: Another number is another draw from the same judge, with its own seed if
                `sampling` has one.

        Raises:
            NoVerdict: No reply was a verdict.
            EndpointError: A request was not answered, or no further one will be.
        """
        description = await self._describe_now()
        key = self._key(description, question, draw)
        is_known = "unknown" not in description
        # Equal questions of one event loop wait for the first one's verdict.
        lock = self._locks.setdefault((current_loop(), key), anyio.Lock())
        with waiting_for_others():
            await lock.acquire()
        try:
            verdict = await self._look_up(question, key) if is_known else None
            if verdict is None:
                verdict = await self._converse(question, key, draw)
                # Weights that changed meanwhile may have given it.
                if is_known and await self._describe_now() == description:
                    await self._cache.put(key, (verdict.reply, verdict.attempts, verdict.usage))
        except (NoVerdict, TransientError) as problem:
            if isinstance(problem, NoVerdict):
                add_other_usage("judge", model_name(description) or self.name, problem.usage)
            self._failures += 1
            if self._has_given_verdict or self._failures < MAX_FAILURES:
                raise
            raise FatalEndpointError(
                f"judge {self.name} has given no verdict in any of {self._failures} questions, so "
                f"it is asked no more; the last: {problem}"
            ) from problem
        finally:
            lock.release()
        self._has_given_verdict = True
        add_other_usage("judge", model_name(description) or self.name, verdict.usage)
        return verdict

    async def _look_up(self, question: Question[V], key: bytes) -> JudgeVerdict[V] | None:
        cached = await self._cache.get(key)
        if cached is None:
            return None
        reply, attempts, usage = cached
        with suppress(Malformed):  # `read` has become stricter: ask again
            value = question.read(json_object(reply, judged=question.inputs.values()))
            return JudgeVerdict(value, reply, usage, attempts, True, question.prompt)
        return None

    async def _converse(self, question: Question[V], key: bytes, draw: int) -> JudgeVerdict[V]:
        """Ask until a reply is a verdict."""
        sampling = self._sampling.for_item(f"{question.prompt} {key.hex()}", draw)
        messages = question.messages
        usage: Usage | None = Usage()
        problem, reply = "", ""
        for attempt in range(self._attempts):
            completion = await self._complete(messages, sampling.for_turn(attempt))
            # A part of it would pass for all of it.
            usage = usage and completion.usage and usage + completion.usage
            reply = completion.message.text.encode("utf-8", "backslashreplace").decode()
            judged = question.inputs.values()
            try:
                value = question.read(json_object(reply, completion.finish_reason, judged=judged))
            except Malformed as malformed:
                problem = _one_line(str(malformed), 2 * _QUOTED)
                sent_back = Message("assistant", reply[:_SENT_BACK].strip() or NO_REPLY)
                again = Message("user", AGAIN.format(problem=problem))
                messages = (*question.messages, sent_back, again)
            else:
                return JudgeVerdict(value, reply, usage, attempt + 1, False, question.prompt)
        times = "one attempt" if self._attempts == 1 else f"{self._attempts} attempts"
        raise NoVerdict(
            f"judge {self.name} gave no verdict in {times} ({question.prompt}): {problem} Its last "
            f"reply: {_one_line(reply, _QUOTED) or NO_REPLY}",
            usage=usage,
        )

    async def _complete(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        here = await self._endpoints.here()

        async def request() -> Completion:
            with waiting_for_others():
                await here.slots.acquire()  # not held while waiting for another try
            try:
                with anyio.move_on_after(self._timeout):
                    return await here.endpoint.complete(messages, sampling, ())
            finally:
                here.slots.release()
            raise TransientError(f"judge {self.name}: no answer within {self._timeout:g} s")

        try:
            return await with_retries(request, self._retries)
        except FatalEndpointError as problem:
            raise type(problem)(f"judge {self.name}: {problem}") from problem

    async def close(self) -> None:
        """Close what this judge opened for this event loop. It can be used again."""
        await self._endpoints.close()
        self.__dict__.pop("_description", None)  # another model may be opened next

    # --- Graders for a rubric ---

    def equality(
        self,
        *,
        question: TextOf | None = None,
        name: str = "correct",
        scope: Scope = "answer",
        repeats: int = 1,
    ) -> JudgeGrader:
        """Grade 1 if the answer means the same as the sample's ground truth, else 0.

        Args:
            question: Returns the question as text; by default it is the sample's own messages.
            name: The name of the metric.
            scope: What is judged: the last "answer", or the whole "trajectory".
            repeats: How often the judge is asked about each answer. The metric is then the mean,
                with `NAME_spread` and `NAME_agreement` beside it.

        Returns:
            A part for a rubric.
        """
        return JudgeGrader(self, EQUALITY, name, scope, question, grade_equality, repeats=repeats)

    def three_way(
        self,
        *,
        question: TextOf | None = None,
        name: str = "correct",
        scope: Scope = "answer",
        repeats: int = 1,
    ) -> JudgeGrader:
        """Grade correct, incorrect or not attempted, by the sample's ground truth.

        Args:
            question: Returns the question as text; by default it is the sample's own messages.
            name: The name of the metric, and what the others begin with.
            scope: What is judged: the last "answer", or the whole "trajectory".
            repeats: How often the judge is asked about each answer. The metric is then the mean,
                with `NAME_spread` and `NAME_agreement` beside it.

        Returns:
            A part for a rubric.
        """
        return JudgeGrader(self, THREE_WAY, name, scope, question, grade_three_way, repeats=repeats)

    def criteria(
        self,
        criteria: Criteria,
        *,
        question: TextOf | None = None,
        name: str = "criteria",
        scope: Scope = "answer",
        show_target: bool = False,
        track: bool = False,
        repeats: int = 1,
    ) -> JudgeGrader:
        """Grade the weight of the criteria met, as a share of the maximum, from 0 to 1.

        Args:
            criteria: The criteria, or a function of the sample that returns them.
            question: Returns the question as text; by default it is the sample's own messages.
            name: The name of the metric.
            scope: What is judged: the last "answer", the whole "trajectory", or each "turn" of the
                model by itself; the metric is their mean.
            show_target: Show the judge the sample's ground truth, as a good answer.
            track: Add a metric of weight 0 for each criterion.
            repeats: How often the judge is asked about each answer. The metric is then the mean,
                with `NAME_spread` and `NAME_agreement` beside it.

        Returns:
            A part for a rubric.
        """
        if not callable(criteria):
            check_criteria(criteria)
        options = {"criteria": criteria, "show_target": show_target, "track": track}
        return JudgeGrader(self, CRITERIA, name, scope, question, grade_criteria, options, repeats)

    def pairwise(
        self,
        *,
        question: TextOf | None = None,
        target: TextOf | None = None,
        name: str = "preferred",
        repeats: int = 1,
    ) -> JudgeGrader:
        """Grade whether the answer is better than another one, in both orders.

        Args:
            question: Returns the question as text; by default it is the sample's own messages.
            target: Returns the other answer; by default the sample's ground truth.
            name: The name of the metric.
            repeats: How often the judge is asked about each answer. The metric is then the mean,
                with `NAME_spread` and `NAME_agreement` beside it.

        Returns:
            A part for a rubric.
        """
        options = {"target": target}
        return JudgeGrader(
            self, PAIRWISE, name, "answer", question, grade_pairwise, options, repeats
        )


def _one_line(text: str, limit: int) -> str:
    return cut(printable(" ".join(text[: limit + 1].split())), limit)


# --- Replies --------------------------------------------------------------------------------------
# A reply is one JSON object, or one fenced block with it, behind reasoning or not. No verdict is
# fished out of prose beside it: not the A in "CORRECT: A…", not a block that the judge quotes from
# the answer to say that it does not follow it.
#
# Reasoning is a block that opens at the very start and closes. Where only its close is there (the
# chat template has opened it), what stands before is believed only if nothing in what was judged
# could have been quoted there: a close of reasoning, or a key of the object. Which verdict it is
# has no part in that.

_FENCED = re.compile(r"(`{3,}|~{3,})[ \t]*(?:json)?\s*(\{.*\})\s*\1", re.DOTALL | re.IGNORECASE)
_END_MARKS = re.compile(r"(?:\s*<[^<>\s]{1,30}>)*\s*")
"""What a server may leave behind the last word: <|im_end|>, </s>."""
_REASONING_OPENS = ("<", "[", "◁", "Here is my thought process:")
_CLOSES = re.compile(
    r"< ?/(?:seed:)?(?:think|thought|reason|reflect|scratch|analys|longcat)|[\[◁] ?/think"
    r"|< ?\|(?:end_of_thought|end_thinking|inner_suffix|channel)|< ?channel\||assistantfinal",
    re.IGNORECASE,
)
"""What could be quoted as the end of reasoning, by its first letters."""
_NOT_ALONE = "it is not one JSON object: there is text beside it, or no object at all."


def json_object(
    reply: str, finish_reason: str | None = None, *, judged: Iterable[str] = ()
) -> dict[str, Any]:
    """Parse the object that a reply consists of.

    Args:
        reply: The judge's reply.
        finish_reason: Why it ended; "length" is malformed.
        judged: The texts that it could quote.

    Raises:
        Malformed: The reply is anything else.
    """
    if finish_reason == LENGTH:
        raise Malformed("it was cut off at the length limit before it ended. Be shorter.")
    if len(reply) > MAX_REPLY:
        raise Malformed(f"it has {len(reply)} characters; at most {MAX_REPLY} are read.")
    whole = reply.strip().removeprefix("\ufeff").strip()
    with suppress(Malformed):  # before anything is taken out: a reason may well quote a <think> tag
        return _decode_object(whole)
    answer = without_reasoning(whole)
    if not answer:
        ended = f" (finish reason {finish_reason})" if finish_reason not in (None, "stop") else ""
        what = "reasoning that never ended, or nothing after it" if whole else "no text"
        raise Malformed(f"there was {what}{ended}.")
    parsed = _decode_object(answer)
    start = whole.rfind(answer)
    if start < 0 or not _END_MARKS.fullmatch(whole, start + len(answer)):
        raise Malformed(_NOT_ALONE)
    before = whole[:start].rstrip()
    if before and not _is_reasoning(before) and _could_be_quoted(parsed, judged):
        raise Malformed(
            "there is text before the JSON object, and what was judged has such an object, too. "
            "The object must be all there is."
        )
    return parsed


def _is_reasoning(before: str) -> bool:
    """Return whether it is blocks that open and close, and nothing else.

    Less its last character, the last block is one that never closes, and then nothing is left. A
    close alone is text without it.
    """
    opens = "<|" if "<|channel|>" in before else _REASONING_OPENS
    return before.startswith(opens) and not without_reasoning(before[:-1])


def _could_be_quoted(parsed: dict[str, Any], judged: Iterable[str]) -> bool:
    keys = [re.escape(json.dumps(key, ensure_ascii=False)[1:-1]) for key in parsed]
    quoted_key = re.compile(f"[\"'](?:{'|'.join(keys)})")
    return any(_CLOSES.search(text) or quoted_key.search(text) for text in judged)


def _decode_object(text: str) -> dict[str, Any]:
    """Decode an object that is the whole text, or all that is in its only fence."""
    fenced = _FENCED.fullmatch(text)
    text = fenced[2] if fenced else text
    if not (text.startswith("{") and text.endswith("}")):
        raise Malformed(_NOT_ALONE)
    try:
        value: dict[str, Any] = json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as problem:
        raise Malformed(f"it is not a JSON object: {problem}.") from None
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Python takes the last of two equal keys: {"verdict": …, "verdict": …} would be a guess.
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("the same key twice")
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


# --- Cache ----------------------------------------------------------------------------------------


CachedReply = tuple[str, int, Usage | None]
"""A reply that was a verdict, attempts and usage. Neither question nor answer is stored."""


class VerdictCache:
    """Replies by key: in memory, or in a `ResponseCache` that threads and processes share.

    The file is opened for each access, in a thread, and closed again: a file that was removed or
    replaced is simply the one that is opened next, and a forked process shares no connection. Where
    it cannot be read or written later on, verdicts are kept in memory, and one warning says so.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Open a cache: a file, which is made where it is missing, or memory alone."""
        self.path = path
        self._memory: dict[bytes, bytes] = {}
        self._has_warned = False
        if path is not None:
            _open_file(path).close()

    async def get(self, key: bytes) -> CachedReply | None:
        """Look up a reply; None where there is none, or the file cannot be read now."""
        content = self._memory.get(key) or await self._use_file(lambda file: file.get(key))
        with suppress(msgspec.ValidationError):  # an earlier version may have stored it
            return None if content is None else msgspec.json.decode(content, type=CachedReply)
        return None

    async def put(self, key: bytes, reply: CachedReply) -> None:
        """Keep a reply; of those in memory the oldest go when there are too many."""
        content = msgspec.json.encode(reply)

        def store(file: ResponseCache) -> bytes:
            file.put(key, content)
            return content

        if await self._use_file(store) is None:
            self._memory[key] = content
            if len(self._memory) > MAX_IN_MEMORY:
                del self._memory[next(iter(self._memory))]

    async def _use_file(self, function: Callable[[ResponseCache], bytes | None]) -> bytes | None:
        """Call a function with the open file; None where there is no file, or it fails."""
        path = self.path
        if path is None:
            return None

        def call() -> bytes | None:
            with _open_file(path) as file:
                return function(file)

        try:
            return await anyio.to_thread.run_sync(call)
        except (InvalidInput, sqlite3.Error) as problem:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"verdicts of a judge cannot be kept in {path}: {problem}. They are used, and "
                    "remembered as long as this process lives",
                    RuntimeWarning,
                    stacklevel=2,
                )
            return None


def _open_file(path: Path) -> ResponseCache:
    # Verdicts were paid for: they do not expire, and survive a power failure.
    return ResponseCache(path, permanent=True)
