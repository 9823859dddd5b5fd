"""One attempt at a sample: opening messages, turn loop, timeout, score.

    attempt = Attempt(sample, policy, score_fn=score_fn)
    await attempt.run()
    attempt.trajectory, attempt.score, attempt.error

An eval and a training rollout are both made of these. `Attempt.roll_out` is the turn loop, the only
one there is: it knows messages alone, and a policy that works in tokens keeps its own account of
them (training/rollouts.py). `Attempt.run` is the one place where an attempt's errors are caught: a
bad rollout is data, and its neighbours go on.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from heldout._aio import ContainedExit, in_user_code, settle, unwrap_group
from heldout._fingerprint import version_of
from heldout.chat.finish_reasons import LENGTH
from heldout.chat.messages import messages_of
from heldout.config import MAX_TURNS
from heldout.environment import (
    Environment,
    HasOutcome,
    HasSnapshots,
    Reply,
    SeesCompletions,
    check_environment_shape,
    check_has_snapshots,
    check_messages,
    read_snapshot,
    reads_metadata,
)
from heldout.errors import (
    UNREADABLE,
    ContextFull,
    EndpointError,
    EnvironmentFailed,
    HeldoutError,
    InvalidInput,
    RenderMismatch,
    ResumeMismatch,
    RunDirectoryError,
    ScoringFailed,
    SnapshotMismatch,
    printable_error,
)
from heldout.scoring.grades import as_score
from heldout.store.jsonl import MAX_LINE_BYTES, read_whole
from heldout.store.run_dir import replace_file
from heldout.types import (
    Completion,
    Message,
    Sample,
    Score,
    Stop,
    TokenTrace,
    ToolSpec,
    Trajectory,
    Usage,
)

Policy = Callable[[Sequence[Message], Sequence[ToolSpec]], Awaitable[Completion]]
"""One model turn: the conversation and the tools in, the turn out.

It raises `ContextFull` where the conversation has become longer than it can read.
"""
PrepareMessages = Callable[[Sample], list[Message]]
ScoreFn = Callable[[Trajectory, Sample], Score | float | Awaitable[Score | float]]
EnvironmentFactory = Callable[[Sample], Environment | Awaitable[Environment]]

CLOSE_GRACE_SECONDS = 10.0
TURNS_FORMAT, TURNS_VERSION = "heldout.turns", 1


@dataclass(frozen=True, slots=True)
class EvalDefinition:
    """An eval in one object, for every function that takes samples and a score function."""

    samples: Iterable[Sample]
    score_fn: ScoreFn
    prepare_messages: PrepareMessages | None = None
    """Makes the opening messages; without it the sample's input does. One that returns none leaves
    the opening to the environment."""
    environment_factory: EnvironmentFactory | None = None
    max_turns: int | None = None
    """The eval's own limit of model turns, where it has one; one that is passed wins over it."""

    @classmethod
    def of(
        cls,
        samples: Iterable[Sample] | EvalDefinition,
        score_fn: ScoreFn | None = None,
        prepare_messages: PrepareMessages | None = None,
        environment_factory: EnvironmentFactory | None = None,
    ) -> EvalDefinition:
        """Return the definition, or make one of its parts.

        Args:
            samples: A definition, or the samples of one.
            score_fn: Scores a trajectory.
            prepare_messages: Makes a sample's opening messages.
            environment_factory: Makes a sample's environment.

        Raises:
            InvalidInput: There are parts beside a definition, or no score function.
        """
        parts = (score_fn, prepare_messages, environment_factory)
        if isinstance(samples, EvalDefinition):
            if any(part is not None for part in parts):
                raise InvalidInput(
                    "an EvalDefinition has its own score_fn, prepare_messages and "
                    "environment_factory: pass it alone, or dataclasses.replace(it, …)"
                )
            return samples
        return cls(samples, check_score_fn(score_fn), prepare_messages, environment_factory)


def turn_limit(max_turns: int | None, definition: EvalDefinition | None = None) -> int:
    """Return the most model turns of an item: those passed, else the eval's own, else 16.

    Args:
        max_turns: What the user has set; None where nothing was.
        definition: The eval, where there is one.

    Raises:
        InvalidInput: It is below 1.
    """
    if max_turns is None and definition is not None:
        max_turns = definition.max_turns
    limit = MAX_TURNS if max_turns is None else max_turns
    if limit < 1:
        raise InvalidInput(f"max_turns is at least 1, got {limit}")
    return limit


def check_score_fn(score_fn: ScoreFn | None) -> ScoreFn:
    """Refuse a value that is no score function before the model is called."""
    if not callable(score_fn):
        raise InvalidInput(
            "score_fn is a function (trajectory, sample) -> Score, got " + type(score_fn).__name__
        )
    if version_of(score_fn) is not None and "answer" in inspect.signature(score_fn).parameters:
        name = getattr(score_fn, "__name__", "it")
        raise InvalidInput(
            f"{name} is a grader of an answer, not yet a score function: Rubric({name}) makes it "
            "one (heldout.scoring)"
        )
    return score_fn


# --- One attempt --------------------------------------------------------------------------------

_UNFINISHED = Trajectory((), Stop("error"))
_make_stop = lru_cache(Stop)  # few are different


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a sample: what to run, what has happened so far, and what came of it."""

    sample: Sample
    """A copy of its own: the functions may write into it."""
    policy: Policy | None = None
    """Makes the model turns; not needed where `trajectory` is given."""
    prepare_messages: PrepareMessages | None = None
    environment_factory: EnvironmentFactory | None = None
    score_fn: ScoreFn | None = None
    max_turns: int = 1
    token_budget: int | None = None
    """Length of the conversation in tokens (prompt, model and environment, by the policy's usage)
    from which no further turn starts."""
    timeout: float | None = None
    trace: Callable[[], TokenTrace | None] | None = None
    """Returns the rollout in tokens, for a policy that keeps account of them."""
    turn_file: TurnFile | None = None
    """Where the turns are saved as they are made, and a stopped attempt is restored from."""
    trajectory: Trajectory = _UNFINISHED
    """What was rolled out; one that is given is scored as it is."""

    stage: str = "prepare_messages"
    """What is being called, for the words of an error."""
    messages: list[Message] = field(default_factory=list)
    model_turns: list[int] = field(default_factory=list)
    """Positions of the model's own messages."""
    usage: Usage | None = None
    finish_reason: str | None = None
    """How the last model turn ended, in the endpoint's words."""
    requests: int = 0
    """Requests made so far, where the policy counts them, with retries."""
    cached_turns: int = 0
    """Model turns that came from the response cache, without a request."""
    restored_turns: int = 0
    """Model turns that a stopped run had made and saved."""
    seconds_before: float = 0.0
    """What these took."""
    started: float = field(default_factory=time.perf_counter)

    score: Score | None = None
    """None where it errored, or where there is no `score_fn`."""
    error: str | None = None
    problem: BaseException | None = None
    """What was raised, where the error is something that was raised."""
    timed_out: bool = False
    seconds: float = 0.0

    # The time does not run while the attempt waits for its turn: see `waiting_for_others`.
    _scope: anyio.CancelScope = field(init=False)
    _waiting_tasks: int = 0
    _waiting_since: float = 0.0
    _waited: float = 0.0
    _time_left: float = math.inf

    async def run(
        self,
        scope: anyio.CancelScope | None = None,
        clock: Callable[[], float] = anyio.current_time,
    ) -> Self:
        """Roll out and score the sample; whatever goes wrong becomes the attempt's error.

        That the run was cancelled or interrupted does not, and is raised.

        Args:
            scope: An open cancel scope of this task, for the timeout. Many attempts, one after the
                other, may share it (to open one takes a tenth of an attempt) until one has timed
                out, and the scope is cancelled. Its deadline is left as it is, and may pass where
                the task waits between two attempts. Without it the attempt opens its own.
            clock: The event loop's, which a caller with many attempts can look up once.
        """
        if scope is None:
            with anyio.CancelScope() as scope:
                await self.run(scope)
            if self.timed_out:
                await anyio.lowlevel.checkpoint_if_cancelled()
            return self
        self._scope = scope
        if self.timeout is not None:
            due = clock() + self.timeout
            latest = due + self.timeout / 100
            if not due <= scope.deadline <= latest:  # of the attempt before, which saves a timer
                scope.deadline = latest
        outside = in_user_code.set(self)
        try:
            await self._roll_out_and_score()
        # sys.exit() in a tool or a score function ends nothing but its attempt.
        except (Exception, SystemExit, BaseExceptionGroup) as raised:
            if isinstance(raised, BaseExceptionGroup) and raised.subgroup(KeyboardInterrupt):
                raise
            if isinstance(raised, Exception) or not await self._was_cancelled():
                self.problem = _unwrap(raised)
                self.error = _describe_error(self.stage, self.problem)
        except anyio.get_cancelled_exc_class() as stray:
            if not await self._was_cancelled():
                # The user's code let a cancellation of its own get out, which would otherwise end
                # this worker in silence.
                self.error = f"{self.stage}: {type(stray).__name__}: its own code cancelled it"
        finally:
            in_user_code.reset(outside)
        elapsed = time.perf_counter() - self.started
        self.seconds = elapsed + self.seconds_before
        # Code that blocks the event loop cannot be cancelled, but it was too slow all the same.
        if self.timeout is not None and elapsed - self._waited > self.timeout:
            self.timed_out = self.timed_out or self.error is None
        if self.timed_out:
            self.error = f"timeout: not done after {self.timeout:g} s (in {self.stage})"
        if self.error is not None:
            self.score = None
        if self.trajectory is _UNFINISHED:
            stop = Stop("limit", "timeout") if self.timed_out else Stop("error")
            tokens = self.trace() if self.trace is not None else None
            self.trajectory = Trajectory(tuple(self.messages), stop, tokens=tokens)
        if reads_metadata(self.environment_factory):
            self.trajectory = replace(self.trajectory, reads_metadata=True)
        return self

    async def _was_cancelled(self) -> bool:
        """Return whether the timeout cancelled the attempt; raise if the run was cancelled."""
        self.timed_out = self._scope.cancel_called
        if not self.timed_out:
            await anyio.lowlevel.checkpoint_if_cancelled()
        return self.timed_out

    async def _roll_out_and_score(self) -> None:
        sample = self.sample
        if self.trajectory is _UNFINISHED:
            if self.prepare_messages is None:
                opening = messages_of(sample.input, f"sample {sample.id!r}: input")
            else:
                opening = await settle(self.prepare_messages(sample))
                check_messages(opening, "prepare_messages gives Messages")
            environment: Environment | None = None
            if self.environment_factory is not None:
                self.stage = "environment_factory"
                environment = await settle(self.environment_factory(sample))
                if environment is None:
                    raise InvalidInput(
                        "environment_factory returned None, not an environment; is there a return?"
                    )
            trajectory = await self.roll_out(opening, environment)
            if self.trace is not None:
                trajectory = replace(trajectory, tokens=self.trace())
            self.trajectory = trajectory
        if self.score_fn is not None:
            self.stage = "score_fn"
            score = self.score_fn(self.trajectory, sample)
            if not isinstance(score, Score):
                score = as_score(await settle(score), self.score_fn)
            self.score = score

    # --- The turn loop ---

    async def roll_out(
        self, opening: Sequence[Message], environment: Environment | None = None
    ) -> Trajectory:
        """Run the conversation to its end, and close the environment whatever happens.

        Without an environment there is a single model turn.
        """
        if environment is None:
            self.messages.extend(opening)
            await self._take_turn(())
            return self._end("no_reply")
        self.stage = "environment"
        check_environment_shape(environment)
        try:
            trajectory = await self._converse(opening, environment)
        except BaseException as problem:
            try:
                await _close(environment)
            except Exception as second:  # noqa: BLE001 - one that broke often cannot close
                problem.add_note(f"close() failed, too: {type(second).__name__}: {second}")
            raise
        await _close(environment)
        return trajectory

    async def _converse(self, opening: Sequence[Message], environment: Environment) -> Trajectory:
        file = self.turn_file
        if file is not None:
            check_has_snapshots(environment)
        if file is None or not await file.restore(self, environment):
            self.messages.extend(opening)
            messages = await settle(environment.opening())
            check_messages(messages, "an environment's opening() gives Messages")
            self.messages.extend(messages)
        trajectory = await self._take_turns(environment)
        if isinstance(environment, HasOutcome):
            source = f"outcome() of {type(environment).__name__}"
            outcome = await settle(environment.outcome())
            if not isinstance(outcome, dict):
                raise EnvironmentFailed(f"{source} returns a dict, got {outcome!r:.200}")
            # As it will be read back, so that it is scored as it is stored.
            return replace(trajectory, outcome=_through_json(outcome, source))
        return trajectory

    async def _take_turns(self, environment: Environment) -> Trajectory:
        tools = tuple(environment.tools)
        for turn in range(len(self.model_turns), self.max_turns):
            try:
                completion = await self._take_turn(tools)
            except ContextFull:
                if turn == 0:
                    raise  # nothing was said yet, so there is nothing to score
                return self._end("limit", "context")
            if isinstance(environment, SeesCompletions):
                await settle(environment.see_completion(completion))
            # The last turn reaches the environment too: scores on its state must not be stale.
            reply = await settle(environment.reply(tuple(self.messages)))
            if not isinstance(reply, Reply):
                raise TypeError(f"an environment's reply is a Reply, got {reply!r:.200}")
            self.messages.extend(reply.messages)
            if reply.done:
                return self._end("environment")
            if not reply.messages:
                return self._end("no_reply")
            if self.token_budget is not None and _count_tokens(completion) >= self.token_budget:
                return self._end("limit", "token_budget")
            if self.turn_file is not None:
                await self.turn_file.save(self, environment)
        return self._end("limit", "max_turns")

    async def ask(self, tools: Sequence[ToolSpec]) -> Completion:
        """Have the policy make one turn."""
        assert self.policy is not None
        return await self.policy(self.messages, tools)

    async def _take_turn(self, tools: Sequence[ToolSpec]) -> Completion:
        """Add one model turn to the conversation."""
        self.stage = "endpoint"
        completion = await self.ask(tools)
        self.stage = "environment"
        message = completion.message
        if not isinstance(message, Message) or message.role != "assistant":
            raise InvalidInput(f"a policy's turn is an assistant's Message, got {message!r:.200}")
        self.model_turns.append(len(self.messages))
        self.messages.append(message)
        self.finish_reason = completion.finish_reason
        self.cached_turns += completion.cached
        if completion.usage is not None:
            self.usage = completion.usage if self.usage is None else self.usage + completion.usage
        return completion

    def _end(
        self, ended_by: Literal["environment", "limit", "no_reply"], limit: str | None = None
    ) -> Trajectory:
        """Make the trajectory of a conversation that has ended."""
        stop = _make_stop(ended_by, limit, self.finish_reason == LENGTH, self.finish_reason)
        assistants = [i for i, message in enumerate(self.messages) if message.role == "assistant"]
        model_turns = None if assistants == self.model_turns else tuple(self.model_turns)
        return Trajectory(tuple(self.messages), stop, self.usage, model_turns=model_turns)


@contextmanager
def waiting_for_others() -> Iterator[None]:
    """Stop the clock of the current attempt's timeout: what it waits for here is not its fault."""
    attempt = in_user_code.get()
    if not isinstance(attempt, Attempt) or attempt.timeout is None:
        yield
        return
    scope = attempt._scope
    if attempt._waiting_tasks == 0:
        attempt._waiting_since = time.perf_counter()
        attempt._time_left = scope.deadline - anyio.current_time()
        scope.deadline = math.inf
    attempt._waiting_tasks += 1
    try:
        yield
    finally:
        attempt._waiting_tasks -= 1
        if attempt._waiting_tasks == 0:
            attempt._waited += time.perf_counter() - attempt._waiting_since
            scope.deadline = anyio.current_time() + attempt._time_left


def _count_tokens(completion: Completion) -> int:
    """Count the tokens that the conversation has, as of this turn."""
    if completion.usage is None:
        raise InvalidInput(
            "token_budget is set, but the endpoint does not say how many tokens it used; "
            "use max_turns instead"
        )
    return completion.usage.prompt_tokens + completion.usage.completion_tokens


async def _close(environment: Environment) -> None:
    # A cancelled rollout must still get to close; but not for ever.
    with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_GRACE_SECONDS) as grace:
        await settle(environment.close())
    if grace.cancelled_caught:
        raise EnvironmentFailed(f"close() was not done after {CLOSE_GRACE_SECONDS:g} s")


def _through_json(value: Any, source: str) -> Any:
    try:
        # Strictly: a NaN would come back as nothing, a set as a list in any order.
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as problem:
        raise EnvironmentFailed(f"{source} returned what JSON cannot hold: {problem}") from None


# --- Saved turns --------------------------------------------------------------------------------


class SavedTurns(msgspec.Struct):
    """An attempt between two turns, as its file has it."""

    format: str
    version: int
    run: str
    """The run's id: turns of another run, or of other settings, are not gone on from."""
    sample: Sample
    messages: list[Message]
    model_turns: list[int]
    usage: Usage | None
    finish_reason: str | None
    requests: int
    seconds: float
    environment: dict[str, Any]
    cached_turns: int = 0


@dataclass(frozen=True, slots=True)
class TurnFile:
    """The file of one attempt that has not ended yet."""

    path: Path
    run: str
    sample: Sample

    async def save(self, attempt: Attempt, environment: Environment) -> None:
        """Save the current state, while it is the policy's turn."""
        assert isinstance(environment, HasSnapshots)
        snapshot = await settle(environment.snapshot())
        source = f"snapshot() of {type(environment).__name__}"
        if _through_json(snapshot, source) != snapshot or not isinstance(snapshot, dict):
            raise EnvironmentFailed(
                f"{source} returns a dict of plain JSON values (lists, no tuples; keys "
                f"are texts), got {snapshot!r:.200}"
            )
        try:
            read_snapshot(environment, snapshot)
        except SnapshotMismatch as problem:
            raise EnvironmentFailed(
                f"{source}: {problem}; heldout.environment.make_snapshot makes one"
            ) from None
        saved = SavedTurns(
            TURNS_FORMAT,
            TURNS_VERSION,
            self.run,
            self.sample,
            attempt.messages,
            attempt.model_turns,
            attempt.usage,
            attempt.finish_reason,
            attempt.requests,
            time.perf_counter() - attempt.started + attempt.seconds_before,
            snapshot,
            attempt.cached_turns,
        )
        await anyio.to_thread.run_sync(replace_file, self.path, msgspec.json.encode(saved))

    async def restore(self, attempt: Attempt, environment: Environment) -> bool:
        """Restore an attempt and its environment from what a stopped run saved.

        False where there is nothing to go on from: no file, one that cannot be read, or one of
        another sample or run.

        Raises:
            ResumeMismatch: The snapshot is of another environment, or of another major version.
        """
        assert isinstance(environment, HasSnapshots)
        try:
            saved = msgspec.json.decode(read_whole(self.path, MAX_LINE_BYTES), type=SavedTurns)
        except (FileNotFoundError, RunDirectoryError, *UNREADABLE):
            return False
        if (saved.format, saved.version) != (TURNS_FORMAT, TURNS_VERSION):
            return False
        if saved.run != self.run or saved.sample != self.sample:
            return False
        try:
            # Here too, as a restore() may not look.
            read_snapshot(environment, saved.environment)
            await settle(environment.restore(saved.environment))
        except SnapshotMismatch as problem:
            raise ResumeMismatch(
                f"the episode of sample {self.sample.id!r} cannot go on: {problem}. Resume with "
                "the environment that saved it, or run everything again under another name; "
                f"without {self.path} the episode begins anew"
            ) from problem
        attempt.messages.extend(saved.messages)
        attempt.model_turns.extend(saved.model_turns)
        attempt.usage, attempt.finish_reason = saved.usage, saved.finish_reason
        attempt.requests, attempt.seconds_before = saved.requests, saved.seconds
        attempt.cached_turns = saved.cached_turns
        attempt.restored_turns = len(saved.model_turns)
        return True

    def remove(self) -> None:
        """Remove the file of an attempt that has ended."""
        self.path.unlink(missing_ok=True)


# --- Errors -------------------------------------------------------------------------------------

_LATE_IN_SCORING = re.compile(r"timeout: not done after \S+ s \(in score_fn\)")


def failed_in_scoring(error: str) -> bool:
    """Return whether an error is the score function's, so that the trajectory is complete."""
    return error.startswith("score_fn: ") or _LATE_IN_SCORING.match(error) is not None


def root_of(problem: BaseException | None) -> BaseException | None:
    """Return the exception of a rubric's part that the rubric's own exception wraps."""
    while isinstance(problem, ScoringFailed) and problem.__cause__ is not None:
        problem = problem.__cause__
    return problem


def _unwrap(problem: BaseException) -> BaseException:
    """Unwrap an exception from the groups and tasks that it passed through."""
    problem = unwrap_group(problem)
    if isinstance(problem, ContainedExit) and problem.__cause__ is not None:
        return problem.__cause__
    return problem


def _describe_error(stage: str, problem: BaseException) -> str:
    """Describe an error: its stage, its type and message, and the line in user code."""
    if isinstance(problem, RenderMismatch):
        stage = "render"  # it is the policy that renders, but no server that is broken
    message = printable_error(problem)
    own_errors = EndpointError | InvalidInput | EnvironmentFailed | RenderMismatch
    if isinstance(problem, own_errors) and stage != "score_fn":
        return f"{stage}: {message}"[:2000]
    package = Path(__file__).parent
    frames = [
        frame
        for frame in traceback.extract_tb(problem.__traceback__)
        if package not in Path(frame.filename).parents and not frame.filename.startswith("<")
    ]
    # Where heldout itself raised it inside a rubric, no line of the user's is to blame.
    root = root_of(problem)
    is_own = root is not problem and isinstance(root, HeldoutError)
    line = ""
    if frames and not is_own:
        line = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    # A rubric has named the part already, and what it raised.
    kind = "" if isinstance(problem, ScoringFailed) else f"{type(problem).__name__}: "
    return f"{stage}: {kind}{message}{line}"[:2000]
