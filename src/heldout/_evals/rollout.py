"""One attempt at a sample: opening messages, turn loop, timeout, score.

    result = await Attempt(sample, policy, definition).run()
    result.trajectory, result.score, result.error

An eval and a training rollout are both made of these. `Attempt.roll_out` is the turn loop, the only
one there is: it knows messages alone, and a policy that works in tokens keeps its own account of
them (training/rollouts.py). `Attempt.run` is the one place where an attempt's errors are caught: a
bad rollout is data, and its neighbours go on.
"""

from __future__ import annotations

import inspect
import json
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from heldout._core.aio import ContainedExit, in_user_code, settle, unwrap_group
from heldout._core.chat.questions import question_of
from heldout._core.checks import check_number
from heldout._core.code import place_of
from heldout._core.config import DEFAULT_PASS_THRESHOLD, MAX_TURNS, MERGED, Sampling
from heldout._core.current_attempt import CurrentAttempt
from heldout._core.loop_clock import loop_clock
from heldout._core.secrets import PLACEHOLDER_LENGTH, environment_secrets, remove_secrets
from heldout._evals.progress import RunProgress
from heldout._finish_reasons import LENGTH
from heldout.environment import (
    Environment,
    HasContinuations,
    HasOutcome,
    Reply,
    SeesCompletions,
    check_environment_shape,
    check_has_snapshots,
    check_messages,
    read_snapshot,
    reads_metadata,
    restore_snapshot,
    snapshot_methods,
    take_snapshot,
)
from heldout.errors import (
    UNREADABLE,
    ContextFull,
    EndpointError,
    EnvironmentFailed,
    FatalEndpointError,
    HeldoutError,
    InvalidInput,
    RenderMismatch,
    ResumeMismatch,
    RunDirectoryError,
    ScoringFailed,
    SnapshotMismatch,
    TransientError,
    printable_error,
)
from heldout.models.base import Complete, Rate
from heldout.models.retries import Replied, with_retries
from heldout.scoring.grades import as_score
from heldout.store.fingerprint import version_of
from heldout.store.jsonl import MAX_LINE_BYTES, read_whole, replace_file
from heldout.types import (
    Completion,
    Continuation,
    Message,
    OtherUsage,
    Rating,
    Sample,
    Score,
    Stop,
    Timing,
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
"""The messages that a rollout of a sample begins with."""
ScoreFn = Callable[[Trajectory, Sample], Score | float | Awaitable[Score | float]]
"""What a trajectory of a sample was worth."""
EnvironmentFactory = Callable[[Sample], Environment | Awaitable[Environment]]
"""Makes the environment of one rollout of a sample."""

CLOSE_GRACE_SECONDS = 10.0
TURNS_FORMAT, TURNS_VERSION = "heldout.turns", 1
TIMED_STAGES = {"endpoint": "model", "environment": "environment", "score_fn": "scoring"}
"""Where time in a queue is counted, by the stage of an attempt; "other" for the rest."""


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
    sampling: Sampling | None = None
    """How the eval itself has turns sampled, where it says: what is passed wins over it."""
    pass_threshold: float | None = None
    """The reward from which an item of this eval passes, where it says; what is passed wins."""
    reference: Callable[[Sample], Any] | None = None
    """Gives a sample's right answer, which `check_eval` answers back; without it, that is the
    ground truth."""

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


FUNCTIONS = ("score_fn", "prepare_messages", "environment_factory")
"""The functions of a definition: fields of it, parameters of `evaluate`, and keys in run.json."""


def functions_of(definition: EvalDefinition) -> dict[str, Callable[..., Any] | None]:
    """Return the functions of a definition by what they are for; None where it has none."""
    return {name: getattr(definition, name) for name in FUNCTIONS}


def unscored(_trajectory: Trajectory, _sample: Sample) -> Score:
    """Stand for the score function where rollouts are not scored; an `Attempt` never calls it."""
    return Score()


def define_rollouts(
    samples: Iterable[Sample] | EvalDefinition,
    score_fn: ScoreFn | None = None,
    prepare_messages: PrepareMessages | None = None,
    environment_factory: EnvironmentFactory | None = None,
) -> EvalDefinition:
    """Return the definition, as `EvalDefinition.of` does; rollouts need no score function."""
    if score_fn is None and not isinstance(samples, EvalDefinition):
        score_fn = unscored
    return EvalDefinition.of(samples, score_fn, prepare_messages, environment_factory)


def turn_limit(max_turns: int | None, definition: EvalDefinition | None = None) -> int:
    """Return the most model turns of an item: those passed, else the eval's own, else 16.

    Args:
        max_turns: What the user has set; None if nothing was.
        definition: The eval, where there is one.

    Raises:
        InvalidInput: It is below 1.
    """
    if max_turns is None and definition is not None:
        max_turns = definition.max_turns
    limit = MAX_TURNS if max_turns is None else max_turns
    if limit < 1:
        raise InvalidInput(f"max_turns must be at least 1, got {limit}")
    return limit


def own_pass_threshold(threshold: float | None, definition: EvalDefinition | None = None) -> float:
    """Return the reward that passes: what is passed, else the eval's own, else 0.5.

    Args:
        threshold: What the user has set; None if nothing was.
        definition: The eval, where there is one.

    Raises:
        InvalidInput: It is no finite number.
    """
    if threshold is None and definition is not None:
        threshold = definition.pass_threshold
    check_number("pass_threshold", threshold, optional=True)
    return DEFAULT_PASS_THRESHOLD if threshold is None else threshold


def merge_sampling(sampling: Sampling, definition: EvalDefinition) -> Sampling:
    """Return the sampling of an eval: what the user has set, and its own where that is unset.

    Args:
        sampling: The user's, which knows what was given: 0 is no word less than 0.7.
        definition: The eval.
    """
    own = definition.sampling
    if own is None:
        return sampling
    unset = [name for name in MERGED if name not in (sampling.given or ())]
    return replace(sampling, **{name: getattr(own, name) for name in unset})


def check_questions(
    samples: Iterable[Sample], prepare_messages: PrepareMessages | None
) -> list[str]:
    """Refuse samples without a question, once and before the first call.

    Args:
        samples: The samples.
        prepare_messages: Makes their opening messages; then nothing is refused.

    Returns:
        The fields of their input that the questions are taken from, each once; none with
        `prepare_messages`.

    Raises:
        InvalidInput: A sample's question cannot be read.
    """
    if prepare_messages is not None:
        return []
    return [*dict.fromkeys(question_of(sample).field for sample in samples)]


def check_score_fn(score_fn: ScoreFn | None) -> ScoreFn:
    """Refuse a value that is no score function before the model is called."""
    if not callable(score_fn):
        raise InvalidInput(
            "score_fn must be a function (trajectory, sample) -> Score, got "
            + type(score_fn).__name__
        )
    if version_of(score_fn) is not None and "answer" in inspect.signature(score_fn).parameters:
        name = getattr(score_fn, "__name__", "it")
        raise InvalidInput(
            f"{name} is a grader of an answer, not yet a score function: Rubric({name}) makes it "
            "one (heldout.scoring)"
        )
    return score_fn


# --- One attempt --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class AttemptState:
    """What has happened in an attempt so far."""

    stage: str = "prepare_messages"
    """The current stage, or the one that failed."""
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
    other_usage: list[OtherUsage] = field(default_factory=list)
    """What judges and simulated users took so far."""
    tools: tuple[ToolSpec, ...] = ()
    """What the policy may call."""
    turn_seconds: list[float | None] = field(default_factory=list)
    """Of each model turn; None where a stopped run did not save it."""
    reply_seconds: list[float | None] = field(default_factory=list)
    """Of the environment's reply to each."""
    retry_seconds: float = 0.0
    """What requests that failed and were made again took, with the waits."""
    score_seconds: float | None = None
    """What the score function took."""
    queue_seconds: dict[str, float] = field(default_factory=dict)
    """What waiting for a slot took, by the stage that it is part of."""
    restored_turns: int = 0
    """Model turns that a stopped run had made and saved."""
    seconds_before: float = 0.0
    """What these took."""
    started: float = field(default_factory=time.perf_counter)

    def enter(self, stage: str) -> None:
        """Go on to another stage; what went before was the last one's time."""
        loop_clock().split()
        self.stage = stage

    @property
    def seconds(self) -> float:
        """Wall seconds so far, with those of restored turns."""
        return time.perf_counter() - self.started + self.seconds_before

    def add_queued(self, seconds: float) -> None:
        """Count time in a queue, as a part of the current stage."""
        stage = TIMED_STAGES.get(self.stage, "other")
        self.queue_seconds[stage] = round(self.queue_seconds.get(stage, 0.0) + seconds, 6)

    def add_turn(self, completion: Completion, seconds: float) -> None:
        """Add a model turn to the conversation."""
        self.turn_seconds.append(seconds)
        self.model_turns.append(len(self.messages))
        self.messages.append(completion.message)
        self.finish_reason = completion.finish_reason
        self.cached_turns += completion.cached
        if completion.usage is not None:
            self.usage = completion.usage if self.usage is None else self.usage + completion.usage

    def end(
        self, ended_by: Literal["environment", "limit", "no_reply"], limit: str | None = None
    ) -> Trajectory:
        """Make the trajectory of a conversation that has ended."""
        stop = Stop(ended_by, limit, self.finish_reason == LENGTH, self.finish_reason)
        assistants = [i for i, message in enumerate(self.messages) if message.role == "assistant"]
        model_turns = None if assistants == self.model_turns else tuple(self.model_turns)
        return Trajectory(tuple(self.messages), stop, self.usage, model_turns=model_turns)


@dataclass(frozen=True, slots=True, eq=False)
class AttemptResult:
    """What came of an attempt."""

    trajectory: Trajectory
    timing: Timing
    score: Score | None = None
    """None where it errored, or where rollouts are not scored."""
    error: str | None = None
    error_stage: str | None = None
    """What was being called when it errored; None where it did not."""
    problem: BaseException | None = None
    """What was raised, where the error is something that was raised."""
    timed_out: bool = False
    other_usage: tuple[OtherUsage, ...] = ()
    """What judges and simulated users took."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at a sample: what to run."""

    sample: Sample
    """A copy of its own: the functions may write into it."""
    policy: Policy | None = None
    """Makes the model turns; not needed where `trajectory` is given."""
    definition: EvalDefinition = EvalDefinition((), unscored)
    """Its functions: the samples are those of all attempts."""
    max_turns: int = 1
    token_budget: int | None = None
    """Length of the conversation in tokens (prompt, model and environment, by the policy's usage)
    from which no further turn starts."""
    timeout: float | None = None
    trace: Callable[[], TokenTrace | None] | None = None
    """Returns the rollout in tokens, for a policy that keeps account of them."""
    turn_file: TurnFile | None = None
    """Where the turns are saved as they are made, and a stopped attempt is restored from."""
    trajectory: Trajectory | None = None
    """A trajectory to score, in place of rolling one out."""
    stored: Score | None = None
    """Its score of before."""
    state: AttemptState = field(default_factory=AttemptState)

    async def run(self) -> AttemptResult:
        """Roll out and score the sample; whatever goes wrong becomes the attempt's error.

        That the run was cancelled or interrupted does not, and is raised.
        """
        # Whose time counts: that of the attempt's own steps and of what it waits for. Time in which
        # the code of another attempt kept the event loop does not, or one slow score function would
        # time out everything beside it; nor does waiting on purpose, for a turn in a batch say. So
        # the deadline moves while the attempt runs (`CurrentAttempt.put_off`), and what counted is
        # measured once more at the end, for code that never gave the event loop a chance to cancel.
        deadline = inf if self.timeout is None else anyio.current_time() + self.timeout
        with anyio.CancelScope(deadline=deadline) as scope:
            current = CurrentAttempt(
                self.timeout,
                scope,
                self.state.other_usage,
                self.stored,
                self._name_called,
                self.state.add_queued,
            )
            result = await current.limited(self._run(current))
        if result.timed_out:
            await anyio.lowlevel.checkpoint_if_cancelled()  # if the run was cancelled, too
        return result

    def _name_called(self) -> str:
        stage = self.state.stage
        functions = functions_of(self.definition)
        function = functions.get("environment_factory" if stage == "environment" else stage)
        return stage if function is None else f"{stage} {place_of(function)}"

    async def _run(self, current: CurrentAttempt) -> AttemptResult:
        state, trajectory = self.state, self.trajectory
        score: Score | None = None
        error: str | None = None
        problem: BaseException | None = None
        timed_out = False
        outside = in_user_code.set(current)
        try:
            if trajectory is None:
                trajectory = await self._roll_out_sample()
            begun = time.perf_counter()
            try:
                score = await self._score(trajectory)
            finally:
                state.score_seconds = _seconds_since(begun)
        # sys.exit() in a tool or a score function ends nothing but its attempt.
        except (Exception, SystemExit, BaseExceptionGroup) as raised:
            if isinstance(raised, BaseExceptionGroup) and raised.subgroup(KeyboardInterrupt):
                raise
            timed_out = not isinstance(raised, Exception) and await _has_timed_out(current)
            if not timed_out:
                problem = _unwrap(raised)
                if isinstance(problem, RenderMismatch):
                    state.stage = "render"  # it is the policy that renders: no server is broken
                error = _describe_error(state.stage, problem)
        except anyio.get_cancelled_exc_class() as cancelled:
            timed_out = await _has_timed_out(current)
            if not timed_out:
                # The user's code let a cancellation of its own get out, which would otherwise end
                # this worker in silence.
                error = f"{state.stage}: {type(cancelled).__name__}: its own code cancelled it"
        finally:
            in_user_code.reset(outside)
        seconds = state.seconds
        # Code that blocks the event loop cannot be cancelled, but it was too slow all the same.
        if error is None and self.timeout is not None and current.charged() > self.timeout:
            timed_out = True
        if timed_out:
            error = f"timeout: not done after {self.timeout:g} s (in {state.stage})"
        if trajectory is None:
            stop = Stop("limit", "timeout") if timed_out else Stop("error")
            tokens = self.trace() if self.trace is not None else None
            trajectory = Trajectory(tuple(state.messages), stop, tokens=tokens)
        if reads_metadata(self.definition.environment_factory):
            trajectory = replace(trajectory, reads_metadata=True)
        timing = Timing(
            seconds,
            state.requests,
            state.restored_turns,
            state.cached_turns,
            tuple(state.turn_seconds),
            tuple(state.reply_seconds),
            round(state.retry_seconds, 6),
            state.score_seconds,
            state.queue_seconds,
        )
        score = score if error is None else None
        stage = None if error is None else state.stage
        others = OtherUsage.merge(state.other_usage)
        return AttemptResult(trajectory, timing, score, error, stage, problem, timed_out, others)

    async def _roll_out_sample(self) -> Trajectory:
        sample, state, definition = self.sample, self.state, self.definition
        if definition.prepare_messages is None:
            opening = question_of(sample).messages
        else:
            opening = await settle(definition.prepare_messages(sample))
            check_messages(opening, "prepare_messages gives Messages")
        environment: Environment | None = None
        if definition.environment_factory is not None:
            state.enter("environment_factory")
            environment = await settle(definition.environment_factory(sample))
            if environment is None:
                raise InvalidInput(
                    "environment_factory returned None, not an environment; is there a return?"
                )
        trajectory = await self.roll_out(opening, environment)
        if self.trace is not None:
            trajectory = replace(trajectory, tokens=self.trace())
        return trajectory

    async def _score(self, trajectory: Trajectory) -> Score | None:
        score_fn = self.definition.score_fn
        if score_fn is unscored:
            return None
        self.state.enter("score_fn")
        score = score_fn(trajectory, self.sample)
        if not isinstance(score, Score):
            score = as_score(await settle(score), score_fn)
        return score

    # --- The turn loop ---

    async def roll_out(
        self, opening: Sequence[Message], environment: Environment | None = None
    ) -> Trajectory:
        """Run the conversation to its end, and close the environment whatever happens.

        Without an environment there is a single model turn.
        """
        state = self.state
        if environment is None:
            state.messages.extend(opening)
            await self._take_turn(())
            return state.end("no_reply")
        state.enter("environment")
        check_environment_shape(environment)
        try:
            if isinstance(environment, HasContinuations):
                trajectory = await self._rate(opening, environment)
            else:
                restored = await self._restore(environment)
                if restored is not None and restored is not environment:
                    # From here on it is the restored one that is closed on every way out.
                    replaced, environment = environment, restored
                    await _close(replaced)
                trajectory = await self._converse(opening, environment, is_new=restored is None)
        except BaseException as problem:
            try:
                await _close(environment)
            except Exception as second:  # noqa: BLE001 - a broken one often cannot be closed
                problem.add_note(f"close() failed, too: {type(second).__name__}: {second}")
            raise
        await _close(environment)
        return trajectory

    async def _restore(self, environment: Environment) -> Environment | None:
        """Return the environment of a stopped attempt; None where there is none to go on with."""
        if self.turn_file is None:
            return None
        check_has_snapshots(environment)
        return await self.turn_file.restore(self.state, environment)

    async def _converse(
        self, opening: Sequence[Message], environment: Environment, *, is_new: bool
    ) -> Trajectory:
        state = self.state
        if is_new:
            state.messages.extend(opening)
            messages = await settle(environment.opening())
            check_messages(messages, "an environment's opening() gives Messages")
            state.messages.extend(messages)
        trajectory = await self._take_turns(environment)
        if isinstance(environment, HasOutcome):
            source = f"outcome() of {type(environment).__name__}"
            outcome = await settle(environment.outcome())
            if not isinstance(outcome, dict):
                raise EnvironmentFailed(f"{source} returns a dict, got {outcome!r:.200}")
            # As it will be read back, so that it is scored as it is stored.
            return replace(trajectory, outcome=_through_json(outcome, source))
        return trajectory

    async def _rate(self, opening: Sequence[Message], environment: Environment) -> Trajectory:
        """Have the policy rate the environment's continuations: there is no turn."""
        assert isinstance(environment, HasContinuations)
        state = self.state
        state.messages.extend(opening)
        messages = await settle(environment.opening())
        check_messages(messages, "an environment's opening() gives Messages")
        state.messages.extend(messages)
        continuations = environment.continuations()
        rate: Rate | None = getattr(self.policy, "rate", None)
        if rate is None:
            raise InvalidInput(
                "this environment has given texts rated, and this policy writes turns only; an "
                "eval on an endpoint that rates texts can run it"
            )
        state.enter("endpoint")
        rating = await rate(continuations)
        state.enter("environment")
        state.usage = rating.usage
        likelihoods = [asdict(likelihood) for likelihood in rating.likelihoods]
        outcome = _through_json({"likelihoods": likelihoods}, "the likelihoods of continuations")
        return replace(state.end("no_reply"), outcome=outcome)

    async def _take_turns(self, environment: Environment) -> Trajectory:
        state = self.state
        state.tools = tuple(environment.tools)
        for turn in range(len(state.model_turns), self.max_turns):
            try:
                completion = await self._take_turn(state.tools)
            except ContextFull:
                if turn == 0:
                    raise  # nothing was said yet, so there is nothing to score
                return state.end("limit", "context")
            if isinstance(environment, SeesCompletions):
                await settle(environment.see_completion(completion))
            # The last turn reaches the environment too: scores on its state must not be stale.
            begun = time.perf_counter()
            reply = await settle(environment.reply(tuple(state.messages)))
            state.reply_seconds.append(_seconds_since(begun))
            if not isinstance(reply, Reply):
                raise TypeError(f"an environment's reply must be a Reply, got {reply!r:.200}")
            state.messages.extend(reply.messages)
            if reply.done:
                return state.end("environment")
            if not reply.messages:
                return state.end("no_reply")
            if self.token_budget is not None and _count_tokens(completion) >= self.token_budget:
                return state.end("limit", "token_budget")
            if self.turn_file is not None:
                await self.turn_file.save(state, environment)
        return state.end("limit", "max_turns")

    async def _take_turn(self, tools: Sequence[ToolSpec]) -> Completion:
        """Have the policy make one turn, and add it to the conversation."""
        assert self.policy is not None
        self.state.enter("endpoint")
        begun = time.perf_counter()
        completion = await self.policy(self.state.messages, tools)
        seconds = _seconds_since(begun)
        self.state.enter("environment")
        message = completion.message
        if not isinstance(message, Message) or message.role != "assistant":
            raise InvalidInput(
                f"a policy's turn must be an assistant's Message, got {message!r:.200}"
            )
        self.state.add_turn(completion, seconds)
        return completion


def _seconds_since(begun: float) -> float:
    """Return the seconds since then, to a tenth of a millisecond."""
    return round(time.perf_counter() - begun, 4)


async def _has_timed_out(current: CurrentAttempt) -> bool:
    """Return whether the time limit cancelled the attempt; raise if the run was cancelled."""
    if current.scope.cancel_called:
        return True
    await anyio.lowlevel.checkpoint_if_cancelled()
    return False


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


# --- An endpoint as the policy ------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class EndpointPolicy:
    """A policy whose turns an endpoint makes: a seed for every turn, and retries."""

    complete: Complete
    sampling: Sampling
    retries: int
    progress: RunProgress
    """The run's, where tokens are counted."""
    state: AttemptState
    """Of the attempt that it makes the turns of: requests are counted there."""
    rates: Rate | None = None
    """Rates given continuations, where the endpoint can."""
    last_failure: TransientError | None = None
    _asked_at: float | None = None
    """When the last request of this turn was made; None before the first."""

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Completion:
        """Make one model turn, with retries."""
        sampling = self.sampling.for_turn(len(self.state.model_turns))
        self._asked_at = None
        request = partial(self._count, lambda: self.complete(messages, sampling, tools))
        completion = await with_retries(request, self.retries)
        self.state.requests -= completion.cached  # then there was none
        self.progress.add_turn(completion.usage)
        if completion.weight_version is not None:
            self.progress.weight_versions[completion.weight_version] = None
        return completion

    async def rate(self, continuations: Sequence[Continuation]) -> Rating:
        """Rate given continuations, with retries."""
        rates = self.rates
        if rates is None:
            raise FatalEndpointError("this endpoint does not tell the likelihood of given texts")
        self._asked_at = None
        request = partial(self._count, lambda: rates(continuations))
        rating = await with_retries(request, self.retries)
        if len(rating.likelihoods) != len(continuations):
            raise EndpointError(
                f"{len(continuations)} continuations got {len(rating.likelihoods)} likelihoods"
            )
        self.progress.add_turn(rating.usage)
        return rating

    async def _count(self, request: Callable[[], Awaitable[Replied]]) -> Replied:
        """Make a request, count it, and remember its failure."""
        now = time.perf_counter()
        if self._asked_at is not None:  # it was made before, and failed
            self.state.retry_seconds += now - self._asked_at
        self._asked_at = now
        self.state.requests += 1
        try:
            return await request()
        except TransientError as problem:
            self.last_failure = problem
            raise


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
    other_usage: list[OtherUsage] = []
    turn_seconds: list[float | None] = []
    """Empty where an earlier version saved it, and so are those of replies."""
    reply_seconds: list[float | None] = []
    queue_seconds: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class TurnFile:
    """The file of one attempt that has not ended yet."""

    path: Path
    run: str
    sample: Sample

    async def save(self, state: AttemptState, environment: Environment) -> None:
        """Save the current state, while it is the policy's turn."""
        snapshot = await take_snapshot(environment)
        source = f"{snapshot_methods(environment)[0]}() of {type(environment).__name__}"
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
            state.messages,
            state.model_turns,
            state.usage,
            state.finish_reason,
            state.requests,
            state.seconds,
            snapshot,
            state.cached_turns,
            state.other_usage,
            state.turn_seconds,
            state.reply_seconds,
            state.queue_seconds,
        )
        await anyio.to_thread.run_sync(replace_file, self.path, msgspec.json.encode(saved))

    async def restore(self, state: AttemptState, environment: Environment) -> Environment | None:
        """Restore the state of an attempt and its environment from what a stopped run saved.

        Args:
            state: Of the attempt.
            environment: What the factory made.

        Returns:
            The environment to go on with, which may be another one; None where there is nothing to
            go on from: no file, one that cannot be read, or one of another sample or run.

        Raises:
            ResumeMismatch: The snapshot is of another environment, or of another major version.
        """
        try:
            saved = msgspec.json.decode(read_whole(self.path, MAX_LINE_BYTES), type=SavedTurns)
        except (FileNotFoundError, RunDirectoryError, *UNREADABLE):
            return None
        if (saved.format, saved.version) != (TURNS_FORMAT, TURNS_VERSION):
            return None
        if saved.run != self.run or saved.sample != self.sample:
            return None
        try:
            restored = await restore_snapshot(environment, saved.environment)
        except SnapshotMismatch as problem:
            raise ResumeMismatch(
                f"the episode of sample {self.sample.id!r} cannot go on: {problem}. Resume with "
                "the environment that saved it, or run everything again under another name; "
                f"without {self.path} the episode begins anew"
            ) from problem
        state.messages.extend(saved.messages)
        state.model_turns.extend(saved.model_turns)
        state.usage, state.finish_reason = saved.usage, saved.finish_reason
        state.requests, state.seconds_before = saved.requests, saved.seconds
        state.cached_turns = saved.cached_turns
        state.other_usage.extend(saved.other_usage)
        state.restored_turns = len(saved.model_turns)
        unknown = [None] * state.restored_turns
        state.turn_seconds.extend(saved.turn_seconds or unknown)
        state.reply_seconds.extend(saved.reply_seconds or unknown)
        state.queue_seconds.update(saved.queue_seconds)
        return restored

    def remove(self) -> None:
        """Remove the file of an attempt that has ended."""
        self.path.unlink(missing_ok=True)


# --- Errors -------------------------------------------------------------------------------------


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
    # A user's own client may quote the key that it sent.
    secrets = environment_secrets(PLACEHOLDER_LENGTH)
    message = remove_secrets(printable_error(problem), secrets, "[key]")
    own_errors = EndpointError | InvalidInput | EnvironmentFailed | RenderMismatch
    if isinstance(problem, own_errors) and stage != "score_fn":
        return f"{stage}: {message}"[:2000]
    package = Path(__file__).parents[1]
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
