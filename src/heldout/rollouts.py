"""Training rollouts: the turn loop over a policy that works in tokens, one or many at a time.

    rollouts = rollout_batch(samples, make_environment, render, generate,
                             max_turns=6, per_turn_max_tokens=256, score_fn=score)

`generate(prompts, max_tokens)` is given every conversation that waits for the model, whatever
turn it is in, and is always called in the thread that called this; the conversations themselves,
their environments and their tools live in an event loop in a thread of its own. So an engine that
is tied to its thread (a CUDA device, a trainer's contexts) is not surprised, tools run while it
works, and none of it minds being called from a notebook's running loop.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import anyio

from heldout.concurrency import Here, in_own_thread, is_async, run_beside, settle
from heldout.environment import Environment
from heldout.errors import EndpointError, InvalidInput
from heldout.items import (
    EnvironmentFactory,
    EvalDefinition,
    PrepareMessages,
    ScoreFn,
    attempt,
)
from heldout.rendering.segments import Decode, Parse, Render, Segments, Template
from heldout.tokens import Generated, Transcript
from heldout.types import Completion, Message, Sample, Score, ToolSpec, Trajectory

Generate = Callable[[list[list[int]], list[int]], Any]
"""`generate(prompts, max_tokens)`: ids to go on from, and how many tokens each may add.

Returns, in order, a `Generated` for each (or a tuple like one), or the exception that a single
one failed with. Plain or async. What it raises itself ends all rollouts.
"""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished rollout: its tokens for a trainer, its reward and metrics, or its error.

    One that failed has no reward: None, never 0. What it had come to by then is in `trajectory`.
    """

    sample: Sample
    trajectory: Trajectory
    score: Score | None = None
    error: str | None = None

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        return self.trajectory.tokens.prompt_ids if self.trajectory.tokens else ()

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """Everything after the prompt: the model's turns and, between them, the environment's."""
        return self.trajectory.tokens.completion_ids if self.trajectory.tokens else ()

    @property
    def logprobs(self) -> tuple[float, ...] | None:
        return self.trajectory.tokens.logprobs if self.trajectory.tokens else ()

    @property
    def env_mask(self) -> tuple[int, ...]:
        """1 for the model's own tokens, 0 for the environment's."""
        return self.trajectory.tokens.env_mask if self.trajectory.tokens else ()

    @property
    def reward(self) -> float | None:
        return None if self.score is None else self.score.reward

    @property
    def metrics(self) -> dict[str, float]:
        return {} if self.score is None else {m.name: m.value for m in self.score.metrics}


def rollout_one(
    example: Sample,
    env: Environment | None,
    render: Render,
    generate: Generate,
    max_turns: int,
    per_turn_max_tokens: int,
    engine_max_len: int | None = None,
    *,
    score_fn: ScoreFn | None = None,
    prepare_messages: PrepareMessages | None = None,
    segments: Segments = "suffix",
    decode: Decode | None = None,
    parse: Parse | None = None,
    stop: Sequence[str] = (),
    timeout: float | None = None,
    backend: Literal["asyncio", "trio"] = "asyncio",
) -> Rollout:
    """Roll out one sample with its environment; one that fails has an error, as in a batch.

    `score_fn` is the environment's own `score` where it has one and none is given.
    """
    unused = [env] if env is not None else []

    def hand_over(sample: Sample) -> Environment:
        return unused.pop()

    [rollout] = rollout_batch(
        [example],
        hand_over if unused else None,
        render,
        generate,
        max_turns,
        per_turn_max_tokens,
        engine_max_len,
        score_fn=score_fn or getattr(env, "score", None),
        prepare_messages=prepare_messages,
        segments=segments,
        decode=decode,
        parse=parse,
        stop=stop,
        timeout=timeout,
        backend=backend,
    )
    for environment in unused:  # it never came to that, and an environment is always closed
        in_own_thread(partial(anyio.run, _close, environment, backend=backend)).join()
    return rollout


def rollout_batch(
    examples: Sequence[Sample] | EvalDefinition,
    environment_factory: EnvironmentFactory | None,
    render: Render,
    generate: Generate,
    max_turns: int,
    per_turn_max_tokens: int,
    engine_max_len: int | None = None,
    *,
    score_fn: ScoreFn | None = None,
    prepare_messages: PrepareMessages | None = None,
    segments: Segments = "suffix",
    decode: Decode | None = None,
    parse: Parse | None = None,
    stop: Sequence[str] = (),
    timeout: float | None = None,
    backend: Literal["asyncio", "trio"] = "asyncio",
    on_problem: Callable[[BaseException], object] | None = None,
) -> list[Rollout]:
    """Roll out many samples together, each with an environment of its own; results in their order.

    All advance at once: a slow tool holds up its own conversation only, and one that fails is a
    `Rollout` with an error. `timeout` bounds one rollout in seconds; `engine_max_len` is the
    length, prompt and reply included, that the engine can read: a conversation that would get
    longer ends with the limit `context`. A turn ends with the first token that completes one of the
    texts in `stop`; what the engine wrote after it is dropped. With a deterministic engine the
    tokens are those of running them one by one. An `EvalDefinition` in the place of the samples
    brings its score function, messages and environments along.
    """
    if isinstance(examples, EvalDefinition):
        given = EvalDefinition.of(examples, score_fn, prepare_messages, environment_factory)
        examples, score_fn = list(given.samples), given.score_fn
        prepare_messages = given.prepare_messages
        environment_factory = given.environment_factory
    for name, value in (("max_turns", max_turns), ("per_turn_max_tokens", per_turn_max_tokens)):
        if value < 1:
            raise InvalidInput(f"{name} is at least 1, got {value}")
    if timeout is not None and timeout <= 0:
        raise InvalidInput(f"timeout is above 0 seconds, or None, got {timeout}")
    for example in examples:
        if not isinstance(example, Sample):
            raise InvalidInput(f"a rollout starts from a Sample, got {example!r:.200}")
    if not examples:
        return []
    template = Template(render, segments=segments, decode=decode, parse=parse, stop=stop)

    async def one(example: Sample, engine: _Engine) -> Rollout:
        transcript = Transcript(
            template, per_turn_max_tokens=per_turn_max_tokens, engine_max_len=engine_max_len
        )

        async def policy(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Completion:
            ids = transcript.advance(messages, tools)
            return transcript.accept(await engine.turn(ids, transcript.room))

        item = await attempt(
            example,
            policy,
            prepare_messages=prepare_messages,
            environment_factory=environment_factory,
            score_fn=score_fn,
            max_turns=max_turns,
            timeout=timeout,
            tokens=transcript.trace,
        )
        if item.problem is not None and on_problem is not None:
            on_problem(item.problem)
        return Rollout(example, item.trajectory, item.score, item.error)

    return _Together(examples, one, generate, backend).run()


async def _close(environment: Environment) -> None:
    await settle(environment.close())


# --- The engine's side --------------------------------------------------------------------------

LINGER_SHARE = 0.1
LONGEST_LINGER_SECONDS = 0.05
"""How long a call waits for conversations that are about to ask: a share of what the last call
took, counted from the last one that came."""


@dataclass(eq=False, slots=True)
class _Turn:
    ids: list[int]
    max_tokens: int
    ready: anyio.Event
    outcome: Generated | BaseException | None = None


class _Engine:
    """Collects the turns that wait and has them generated together, in the event loop's thread."""

    def __init__(self, call: Callable[[list[_Turn]], Awaitable[None]], active: int) -> None:
        self._call = call
        self._waiting: list[_Turn] = []
        self._active = active
        self._someone, self._everyone = anyio.Event(), anyio.Event()
        self._linger = 0.002

    async def turn(self, ids: list[int], max_tokens: int) -> Generated:
        turn = _Turn(ids, max_tokens, anyio.Event())
        self._waiting.append(turn)
        self._look()
        try:
            await turn.ready.wait()
        finally:
            if turn.outcome is None and turn in self._waiting:  # cancelled before it was its turn
                self._waiting.remove(turn)
        if isinstance(turn.outcome, BaseException):
            raise turn.outcome
        assert turn.outcome is not None
        return turn.outcome

    def finished(self) -> None:
        """One conversation less that could ask."""
        self._active -= 1
        self._look()

    def _look(self) -> None:
        if len(self._waiting) >= self._active:
            self._someone.set()
            self._everyone.set()
        elif len(self._waiting) == 1:
            self._someone.set()

    async def serve(self) -> None:
        """Generate for whoever waits, as long as there is anyone who might."""
        while self._active:
            await self._someone.wait()
            waiting = 0
            while waiting != len(self._waiting) < self._active:
                # Others are still with their tools. If they are just coming, one call does for
                # all; two that alternate would never find together again.
                waiting = len(self._waiting)
                with anyio.move_on_after(self._linger):
                    await self._everyone.wait()
            turns, self._waiting = self._waiting, []
            self._someone, self._everyone = anyio.Event(), anyio.Event()
            if turns:
                started = time.perf_counter()
                await self._call(turns)
                took = time.perf_counter() - started
                self._linger = min(LINGER_SHARE * took, LONGEST_LINGER_SECONDS)
                for turn in turns:
                    turn.ready.set()


class _Together:
    """The two threads: the caller's, which generates, and the conversations'."""

    def __init__(
        self,
        examples: Sequence[Sample],
        one: Callable[[Sample, _Engine], Awaitable[Rollout]],
        generate: Generate,
        backend: str,
    ) -> None:
        self._examples, self._one, self._generate, self._backend = examples, one, generate, backend
        self._rollouts: list[Rollout | None] = [None] * len(examples)
        self._problem: BaseException | None = None

    def run(self) -> list[Rollout]:
        try:
            run_beside(self._main, backend=self._backend)
        except Exception:
            if self._problem is None:
                raise
        if self._problem is not None:
            raise self._problem  # by itself, not in the group that it came in
        return [rollout for rollout in self._rollouts if rollout is not None]

    async def _main(self, here: Here) -> None:
        async def call(turns: list[_Turn]) -> None:
            generate = partial(
                self._generate, [t.ids for t in turns], [t.max_tokens for t in turns]
            )
            try:
                _hand_out(turns, await (generate() if is_async(self._generate) else here(generate)))
            except Exception as problem:
                self._problem = problem
                raise

        engine = _Engine(call, len(self._examples))

        async def one(place: int) -> None:
            try:
                self._rollouts[place] = await self._one(self._examples[place], engine)
            finally:
                engine.finished()

        async with anyio.create_task_group() as group:
            for place in range(len(self._examples)):
                group.start_soon(one, place)
            group.start_soon(engine.serve)


def _hand_out(turns: list[_Turn], rows: Any) -> None:
    if not isinstance(rows, Iterable):
        raise EndpointError(f"generate returns a list, a row for each prompt, got {rows!r:.100}")
    rows = list(rows)
    if len(rows) != len(turns):
        raise EndpointError(
            f"generate was given {len(turns)} prompts and returned {len(rows)} rows"
        )
    for turn, row in zip(turns, rows, strict=True):
        turn.outcome = row if isinstance(row, BaseException) else _generated(row)


def _generated(row: Any) -> Generated:
    ids = row[0] if isinstance(row, tuple) and 0 < len(row) <= 4 else None
    if not isinstance(ids, Iterable) or isinstance(ids, str):
        raise EndpointError(
            "generate returns, for each prompt, Generated(ids, logprobs, …) or a tuple "
            f"(ids, logprobs), got {row!r:.100}"
        )
    return row if isinstance(row, Generated) else Generated(*row)
