"""One item, from its sample to its score: what an eval and a training rollout have in common.

Whatever goes wrong on the way is caught here and becomes the item's error: a bad rollout is
data, and its neighbours go on.
"""

from __future__ import annotations

import inspect
import math
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import anyio.lowlevel

from heldout._aio import Stray, in_user_code, settle, was_interrupted
from heldout._fingerprint import version_of
from heldout.chat.messages import messages_of
from heldout.datasets import copy_sample
from heldout.environment import Environment, check_messages
from heldout.errors import (
    EndpointError,
    EnvironmentFailed,
    HeldoutError,
    InvalidInput,
    RenderMismatch,
    ScoringFailed,
    printable_error,
)
from heldout.turns import Policy, rollout
from heldout.types import (
    Completion,
    Message,
    Sample,
    Score,
    Stop,
    TokenTrace,
    ToolSpec,
    Trajectory,
)

PrepareMessages = Callable[[Sample], list[Message]]
ScoreFn = Callable[[Trajectory, Sample], Score | Awaitable[Score]]
EnvironmentFactory = Callable[[Sample], Environment | Awaitable[Environment]]


@dataclass(frozen=True, slots=True)
class EvalDefinition:
    """An eval in one object, for every function that takes samples and a score function."""

    samples: Iterable[Sample]
    score_fn: ScoreFn
    prepare_messages: PrepareMessages | None = None
    """What opens a conversation; without it the sample's input does. One that gives no messages
    leaves it to the environment."""
    environment_factory: EnvironmentFactory | None = None
    max_turns: int | None = None
    """The environments' own limit of model turns, where they have one."""

    @classmethod
    def of(
        cls,
        samples: Iterable[Sample] | EvalDefinition,
        score_fn: ScoreFn | None = None,
        prepare_messages: PrepareMessages | None = None,
        environment_factory: EnvironmentFactory | None = None,
    ) -> EvalDefinition:
        """The definition that was given, or one made of its parts."""
        parts = (score_fn, prepare_messages, environment_factory)
        if isinstance(samples, EvalDefinition):
            if any(part is not None for part in parts):
                raise InvalidInput(
                    "an EvalDefinition has its own score_fn, prepare_messages and "
                    "environment_factory: pass it alone, or dataclasses.replace(it, …)"
                )
            return samples
        check_score_fn(score_fn)
        assert score_fn is not None
        return cls(samples, score_fn, prepare_messages, environment_factory)


@dataclass(eq=False, slots=True)
class _Clock:
    """An item's time, which does not run while it waits for its turn."""

    timeout: float | None
    scope: anyio.CancelScope
    waited: float = 0.0
    waiting: int = 0
    """How many of its tasks wait at once; the time stands while any does."""
    began: float = 0.0
    left: float = math.inf


_clock: ContextVar[_Clock | None] = ContextVar("heldout_item_clock", default=None)


@contextmanager
def waiting_for_others() -> Iterator[None]:
    """What an item waits for in here is no fault of its own, and not counted in its timeout."""
    clock = _clock.get()
    if clock is None or clock.timeout is None:
        yield
        return
    if clock.waiting == 0:
        clock.began, clock.left = time.perf_counter(), clock.scope.deadline - anyio.current_time()
        clock.scope.deadline = math.inf
    clock.waiting += 1
    try:
        yield
    finally:
        clock.waiting -= 1
        if clock.waiting == 0:
            clock.waited += time.perf_counter() - clock.began
            clock.scope.deadline = anyio.current_time() + clock.left


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of an item: a score, or an error; neither where nobody was to score it."""

    trajectory: Trajectory
    seconds: float
    score: Score | None = None
    error: str | None = None
    problem: BaseException | None = None
    """What was raised, where the error is something that was raised."""


async def attempt(
    sample: Sample,
    policy: Policy,
    *,
    prepare_messages: PrepareMessages | None = None,
    environment_factory: EnvironmentFactory | None = None,
    score_fn: ScoreFn | None = None,
    max_turns: int = 1,
    token_budget: int | None = None,
    timeout: float | None = None,
    tokens: Callable[[], TokenTrace | None] | None = None,
    waiting: Callable[[], str] | None = None,
) -> Attempt:
    """Roll out and score one sample.

    `tokens` gives the rollout in tokens, for a policy that keeps account of them; `waiting` what
    there is to add to a timeout's message.
    """
    said: list[Message] = []
    sample = copy_sample(sample)  # what its functions write into it is not the dataset's
    stage = _Stage("prepare_messages")
    trajectory: Trajectory | None = None
    score: Score | None = None

    async def watched(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Completion:
        stage.name = "endpoint"
        completion = await policy(messages, tools)
        stage.name = "environment"
        return completion

    async def work() -> None:
        nonlocal trajectory, score
        prepare = prepare_messages or _default_messages
        opening = await settle(prepare(sample))
        check_messages(opening, "prepare_messages gives Messages")
        environment: Environment | None = None
        if environment_factory is not None:
            stage.name = "environment_factory"
            environment = await settle(environment_factory(sample))
            if environment is None:
                raise InvalidInput(
                    "environment_factory returned None, not an environment; is there a return?"
                )
        stage.name = "environment"
        trajectory = await rollout(
            watched,
            opening,
            environment,
            max_turns=max_turns,
            token_budget=token_budget,
            record=said,
        )
        if tokens is not None:
            trajectory = replace(trajectory, tokens=tokens())
        if score_fn is not None:
            score = await _scored(score_fn, trajectory, sample, stage)

    end = await _to_an_end(work, stage, timeout, waiting)
    if trajectory is None:
        made = tokens() if tokens is not None else None
        stop = Stop("limit", "timeout") if end.timed_out else Stop("error")
        trajectory = Trajectory(tuple(said), stop, tokens=made)
    return Attempt(trajectory, end.seconds, score if end.ok else None, end.error, end.problem)


async def score_again(
    trajectory: Trajectory, sample: Sample, score_fn: ScoreFn, *, timeout: float | None = None
) -> Attempt:
    """Score what was rolled out before; the policy is not asked."""
    stage = _Stage("score_fn")
    score: Score | None = None
    own = copy_sample(sample)

    async def work() -> None:
        nonlocal score
        score = await _scored(score_fn, trajectory, own, stage)

    end = await _to_an_end(work, stage, timeout, None)
    return Attempt(trajectory, end.seconds, score if end.ok else None, end.error, end.problem)


def check_score_fn(score_fn: object) -> None:
    """Refuse what is no score function before anybody is asked anything."""
    if not callable(score_fn):
        raise InvalidInput(
            f"score_fn is a function (trajectory, sample) -> Score, got {score_fn!r}"
        )
    if version_of(score_fn) is not None and "answer" in inspect.signature(score_fn).parameters:
        name = getattr(score_fn, "__name__", "it")
        raise InvalidInput(
            f"{name} is a grader of an answer, not yet a score function: Rubric({name}) makes it "
            "one (heldout.scoring)"
        )


_LATE_IN_SCORING = re.compile(r"timeout: not done after \S+ s \(in score_fn\)")


def failed_in_scoring(error: str) -> bool:
    """Whether an item's error is the score function's, so that there is a whole trajectory."""
    return error.startswith("score_fn: ") or _LATE_IN_SCORING.match(error) is not None


def root_of(problem: BaseException | None) -> BaseException | None:
    """What a part of a rubric raised, under what the rubric says of it."""
    while isinstance(problem, ScoringFailed) and problem.__cause__ is not None:
        problem = problem.__cause__
    return problem


async def _scored(
    score_fn: ScoreFn, trajectory: Trajectory, sample: Sample, stage: _Stage
) -> Score:
    stage.name = "score_fn"
    given = await settle(score_fn(trajectory, sample))
    if not isinstance(given, Score):
        raise TypeError(f"score_fn returns a Score, got {given!r}")
    return given


@dataclass(slots=True)
class _Stage:
    """What an item is at, for the words of its error."""

    name: str


@dataclass(frozen=True, slots=True)
class _End:
    """How an item's work ended, and after how long."""

    seconds: float
    error: str | None
    problem: BaseException | None
    timed_out: bool

    @property
    def ok(self) -> bool:
        return self.error is None


async def _to_an_end(
    work: Callable[[], Awaitable[None]],
    stage: _Stage,
    timeout: float | None,
    waiting: Callable[[], str] | None,
) -> _End:
    error: str | None = None
    problem: BaseException | None = None
    started = time.perf_counter()
    with anyio.move_on_after(timeout) as scope:
        clock = _Clock(timeout, scope)
        _clock.set(clock)
        outside = in_user_code.set(True)
        try:
            await work()
        # Kept as the item's error: sys.exit() in a tool or a score function ends nobody's run.
        except (Exception, SystemExit, KeyboardInterrupt, BaseExceptionGroup) as raised:
            if was_interrupted(raised):
                raise
            if not isinstance(raised, Exception):  # a group may hold this item's cancellation
                await anyio.lowlevel.checkpoint_if_cancelled()
            problem = _alone(raised)
            error = _describe(stage.name, problem)
        except anyio.get_cancelled_exc_class() as stray:
            # Goes on if this item or the run was cancelled. If not, the user's code let a
            # cancellation of its own get out, which would otherwise end this worker in silence.
            await anyio.lowlevel.checkpoint_if_cancelled()
            error = f"{stage.name}: {type(stray).__name__}: its own code cancelled it"
        finally:
            in_user_code.reset(outside)
    seconds = time.perf_counter() - started
    # Code that blocks the event loop cannot be cancelled, but it was too slow all the same.
    late = error is None and timeout is not None and seconds - clock.waited > timeout
    timed_out = scope.cancelled_caught or late
    if timed_out:
        added = waiting() if waiting is not None else ""
        error = f"timeout: not done after {timeout:g} s (in {stage.name}){added}"
    return _End(seconds, error, problem, timed_out)


def _alone(problem: BaseException) -> BaseException:
    """What was raised, out of the groups and tasks that it came through."""
    while True:
        if isinstance(problem, BaseExceptionGroup) and len(problem.exceptions) == 1:
            problem = problem.exceptions[0]
        elif isinstance(problem, Stray) and problem.__cause__ is not None:
            problem = problem.__cause__
        else:
            return problem


def _default_messages(sample: Sample) -> list[Message]:
    return messages_of(sample.input, f"sample {sample.id!r}: input")


def _describe(stage: str, problem: BaseException) -> str:
    """An item's error: where, what, and for the user's own code the line."""
    if isinstance(problem, RenderMismatch):
        stage = "render"  # it is the policy that renders, but no server that is broken
    said = printable_error(problem)
    ours_to_say = EndpointError | InvalidInput | EnvironmentFailed | RenderMismatch
    if isinstance(problem, ours_to_say) and stage != "score_fn":
        return f"{stage}: {said}"[:2000]
    ours = Path(__file__).parent
    theirs = [
        frame
        for frame in traceback.extract_tb(problem.__traceback__)
        if ours not in Path(frame.filename).parents and not frame.filename.startswith("<")
    ]
    last = theirs[-1] if theirs else None
    # Where it is heldout's own to say, no line of the user's is to blame.
    ours_alone = problem is not (root := root_of(problem)) and isinstance(root, HeldoutError)
    where = f" ({Path(last.filename).name}, line {last.lineno})" if last and not ours_alone else ""
    # A rubric has named the part already, and what it raised.
    kind = "" if isinstance(problem, ScoringFailed) else f"{type(problem).__name__}: "
    return f"{stage}: {kind}{said}{where}"[:2000]
