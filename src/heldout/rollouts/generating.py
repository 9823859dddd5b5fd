"""Training rollouts: the turn loop of an eval, over an engine that works in tokens.

    rollouts = rollout_batch(samples, make_environment, render, generate,
                             max_turns=6, per_turn_max_tokens=256, score_fn=score)

`generate(prompts, max_tokens)` gets every conversation that waits for the model, whatever turn it
is in, and is always called in the caller's thread. Conversations, environments and tools run in an
event loop in another thread. So an engine that is tied to its thread (a CUDA device, a trainer's
contexts) works as usual, tools run while it generates, and all of it works in a notebook's running
loop.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import anyio

from heldout._core.aio import (
    CallerThread,
    is_async,
    run_in_loop_thread,
    settle,
    start_thread,
    unwrap_group,
)
from heldout._core.chat.tool_calls import next_call_number
from heldout._core.config import EvalConfig, Sampling
from heldout._evals.progress import RunProgress
from heldout._evals.rollout import (
    Attempt,
    AttemptResult,
    AttemptState,
    EndpointPolicy,
    EnvironmentFactory,
    EvalDefinition,
    PrepareMessages,
    ScoreFn,
    check_questions,
    define_rollouts,
    merge_sampling,
    root_of,
    turn_limit,
)
from heldout._finish_reasons import LENGTH, STOP
from heldout._live.rendering.segments import (
    Decode,
    Parse,
    Render,
    Segments,
    Template,
    TemplateWithTools,
)
from heldout.datasets import copy_sample
from heldout.environment import Environment
from heldout.errors import (
    ContextFull,
    EndpointError,
    FatalEndpointError,
    InvalidInput,
    SystemicFailure,
)
from heldout.models import AnswerFn, Endpoint, open_endpoint
from heldout.models.base import bind_attempt
from heldout.store.error_counts import count_errors, list_errors
from heldout.store.resume import as_stored
from heldout.types import (
    Completion,
    Message,
    Sample,
    Score,
    TokenTrace,
    ToolSpec,
    Trajectory,
    Usage,
)

log = logging.getLogger("heldout")

Generate = Callable[[list[list[int]], list[int]], Any]
"""`generate(prompts, max_tokens)`: the ids to continue, and how many tokens each may add.

Returns, in order, a `Generated` for each prompt (or such a tuple), or the exception that this one
failed with. Plain or async. What it raises itself ends all rollouts.
"""


class Generated(NamedTuple):
    """A model turn of an engine; a plain tuple (ids, logprobs) works, too."""

    ids: Sequence[int]
    """The tokens of the turn, including its end token."""
    logprobs: Sequence[float] | None = None
    """One per id; None if the engine does not report them."""
    message: str | Message | None = None
    """The turn as text, or as a parsed message; None: the ids are decoded."""
    finish_reason: str | None = None
    """`stop`, `length`, …; None: `length` if the turn used all its tokens and does not end in a
    known end token."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished rollout: its tokens for a trainer, and its reward and metrics, or its error.

    A failed rollout has no reward: None, never 0. Its `trajectory` ends where it failed.
    """

    sample: Sample
    trajectory: Trajectory
    score: Score | None = None
    error: str | None = None
    error_stage: str | None = None
    """What was being called when it failed; "render": the template gave other tokens back."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation; of a failed rollout, up to where it failed."""
        return self.trajectory.messages

    @property
    def answer(self) -> str:
        """The last model turn without its reasoning, as score functions read it."""
        return self.trajectory.answer

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The tokens that the first turn was generated from."""
        return self.trajectory.tokens.prompt_ids if self.trajectory.tokens else ()

    @property
    def completion_ids(self) -> tuple[int, ...]:
        """Everything after the prompt: the model's turns and, between them, the environment's."""
        return self.trajectory.tokens.completion_ids if self.trajectory.tokens else ()

    @property
    def logprobs(self) -> tuple[float, ...] | None:
        """Logprobs of the model's tokens, 0.0 at the environment's; None if not reported."""
        return self.trajectory.tokens.logprobs if self.trajectory.tokens else ()

    @property
    def env_mask(self) -> tuple[int, ...]:
        """1 for the model's own tokens, 0 for the environment's."""
        return self.trajectory.tokens.env_mask if self.trajectory.tokens else ()

    @property
    def reward(self) -> float | None:
        """The score's reward; None without a score."""
        return None if self.score is None else self.score.reward

    @property
    def metrics(self) -> dict[str, float]:
        """The score's metrics by name."""
        return {} if self.score is None else {m.name: m.value for m in self.score.metrics}


def rollout_one(
    sample: Sample,
    environment: Environment | None,
    render: Render,
    generate: Generate,
    max_turns: int,
    per_turn_max_tokens: int,
    engine_max_len: int | None = None,
    *,
    score_fn: ScoreFn | None = None,
    **settings: Any,
) -> Rollout:
    """Roll out one sample with its environment.

    Args:
        sample: The sample.
        environment: Its environment, which is always closed; None for a single turn.
        render: The chat template, as in `rollout_batch`.
        generate: The engine.
        max_turns: Maximum number of model turns.
        per_turn_max_tokens: Maximum tokens of a model turn.
        engine_max_len: Maximum tokens that the engine can read.
        score_fn: Scores the rollout; by default the environment's own `score`, if it has one.
        **settings: The other arguments of `rollout_batch`.

    Returns:
        The rollout; it has an error if it failed.

    Raises:
        InvalidInput: An argument or the sample is refused; the environment is closed all the same.
    """
    unused = [] if environment is None else [environment]
    try:
        [rollout] = rollout_batch(
            [sample],
            (lambda sample: unused.pop()) if unused else None,
            render,
            generate,
            max_turns,
            per_turn_max_tokens,
            engine_max_len,
            score_fn=score_fn or getattr(environment, "score", None),
            **settings,
        )
    finally:
        for never_opened in unused:
            start_thread(partial(anyio.run, _close, never_opened)).join()
    return rollout


async def _close(environment: Environment) -> None:
    await settle(environment.close())


def rollout_batch(
    samples: Sequence[Sample] | EvalDefinition,
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
    stop: str | Sequence[str] | None = None,
    timeout: float | None = None,
) -> list[Rollout]:
    """Roll out many samples together, each with its own environment.

    A slow tool delays only its own conversation. A rollout that fails has an error. With a
    deterministic engine the tokens are the same as if samples ran one by one.

    Args:
        samples: The samples, or an `EvalDefinition` with samples, score function, messages and
            environments.
        environment_factory: Makes a sample's environment; None for single turns.
        render: `render(messages, add_generation_prompt) -> ids`: the chat template.
        generate: The engine; see `Generate`.
        max_turns: Maximum number of model turns.
        per_turn_max_tokens: Maximum tokens of a model turn.
        engine_max_len: Maximum tokens that the engine can read, prompt and turn together. A longer
            conversation ends with the limit `context`.
        score_fn: Scores a finished rollout.
        prepare_messages: Makes a sample's opening messages.
        segments: How an environment's reply is tokenized: `suffix` or `boundary`.
        decode: Turns ids into text, if neither the engine nor `render` does.
        parse: Turns text into a message with its tool calls.
        stop: Texts that end a turn with the first token that completes one of them; or one text.
        timeout: Seconds for one rollout.

    Returns:
        The rollouts in the order of the samples.

    Raises:
        InvalidInput: An argument or a sample is refused, as by `evaluate`; nothing has run.
        EndpointError: `generate` did not return one row for each prompt.
    """
    definition = define_rollouts(samples, score_fn, prepare_messages, environment_factory)
    samples = list(definition.samples)
    for name, value in (("max_turns", max_turns), ("per_turn_max_tokens", per_turn_max_tokens)):
        if value < 1:
            raise InvalidInput(f"{name} must be at least 1, got {value}")
    if timeout is not None and timeout <= 0:
        raise InvalidInput(f"timeout must be greater than 0, got {timeout}; use None for no limit")
    _check_samples(samples, definition.prepare_messages)
    template = Template(render, segments=segments, decode=decode, parse=parse, stop=stop)
    rollouts: dict[int, Rollout] = {}

    async def run_one(index: int, engine: _BatchedEngine) -> None:
        transcript = Transcript(
            template, per_turn_max_tokens=per_turn_max_tokens, engine_max_len=engine_max_len
        )

        async def policy(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Completion:
            ids = transcript.add_messages(messages, tools)
            return transcript.add_turn(await engine.generate(ids, transcript.max_turn_tokens))

        try:
            attempt = await Attempt(
                copy_sample(samples[index]),
                policy,
                definition,
                max_turns=max_turns,
                timeout=timeout,
                trace=transcript.trace,
            ).run()
        finally:
            engine.remove_conversation()
        rollouts[index] = _make_rollout(samples[index], attempt)

    async def run_all(caller_thread: CallerThread) -> None:
        async def call(prompts: list[list[int]], max_tokens: list[int]) -> Any:
            if is_async(generate):
                return await generate(prompts, max_tokens)
            return await caller_thread(partial(generate, prompts, max_tokens))

        engine = _BatchedEngine(call, len(samples))
        async with anyio.create_task_group() as group:
            for index in range(len(samples)):
                group.start_soon(run_one, index, engine)
            group.start_soon(engine.serve)

    if samples:
        run_in_loop_thread(run_all)
    return [rollouts[index] for index in range(len(samples))]


class Rollouts(list[Rollout]):
    """What `generate_rollouts` returns: a list, which `await` gives back as it is."""

    def __await__(self) -> Generator[Any, Any, list[Rollout]]:
        """Return the list: it is done, and was paid for."""
        yield from ()
        return self


def generate_rollouts(
    samples: Sequence[Sample] | EvalDefinition,
    endpoint: str | AnswerFn | Endpoint,
    environment_factory: EnvironmentFactory | None = None,
    *,
    score_fn: ScoreFn | None = None,
    prepare_messages: PrepareMessages | None = None,
    repeats: int = 1,
    sampling: Sampling | None = None,
    max_turns: int | None = None,
    max_concurrent: int = 16,
    retries: int = 4,
    timeout: float | None = 600.0,
) -> Rollouts:
    """Roll out samples with a model that answers messages: trajectories, and no run directory.

    For a training loop of one's own over a server or a function. Tokens, masks and logprobs are
    `rollout_batch`'s, which has an engine that works in tokens. Async code awaits
    `agenerate_rollouts`: this call would block its event loop to the end.

    Args:
        samples: The samples, or an `EvalDefinition` in place of samples, score function, messages
            and environments.
        endpoint: A model such as "vllm:MODEL", a function of the messages, or an endpoint object.
        environment_factory: Makes a sample's environment; without it there is one model turn.
        score_fn: Scores a finished rollout.
        prepare_messages: Makes a sample's opening messages; without it the sample's input does.
        repeats: Rollouts of each sample: the group of GRPO.
        sampling: How tokens are drawn; by default as the eval's own sampling says, else at
            temperature 1, as training explores.
        max_turns: The most model turns of a rollout, where an environment replies; by default the
            eval's own limit, or 16.
        max_concurrent: Rollouts in flight at once.
        retries: Times a request is tried again after a transient failure.
        timeout: Seconds for one rollout; None is no limit.

    Returns:
        The rollouts in the order of the samples, those of one sample next to each other. One that
        failed has an error and no reward.

    Raises:
        InvalidInput: An argument or a sample is refused, as by `evaluate`, before anything runs.
        SystemicFailure: Every rollout failed. Where some did, a warning says how many, and of what.
    """

    async def main(caller_thread: CallerThread) -> list[Rollout]:
        return await agenerate_rollouts(
            samples,
            endpoint,
            environment_factory,
            score_fn=score_fn,
            prepare_messages=prepare_messages,
            repeats=repeats,
            sampling=sampling,
            max_turns=max_turns,
            max_concurrent=max_concurrent,
            retries=retries,
            timeout=timeout,
        )

    rollouts = run_in_loop_thread(main)
    assert rollouts is not None  # None is for what was cancelled, and Ctrl-C has been raised
    return Rollouts(rollouts)


async def agenerate_rollouts(
    samples: Sequence[Sample] | EvalDefinition,
    endpoint: str | AnswerFn | Endpoint,
    environment_factory: EnvironmentFactory | None = None,
    *,
    score_fn: ScoreFn | None = None,
    prepare_messages: PrepareMessages | None = None,
    repeats: int = 1,
    sampling: Sampling | None = None,
    max_turns: int | None = None,
    max_concurrent: int = 16,
    retries: int = 4,
    timeout: float | None = 600.0,
) -> list[Rollout]:
    """Roll out samples in the running event loop, under asyncio or trio.

    It takes and returns what `generate_rollouts` does. Cancelled, it closes the environments first.
    """
    definition = define_rollouts(samples, score_fn, prepare_messages, environment_factory)
    samples = list(definition.samples)
    turns = turn_limit(max_turns, definition)
    _check_samples(samples, definition.prepare_messages)
    config = EvalConfig(
        endpoint=endpoint,
        max_concurrent=max_concurrent,
        repeats=repeats,
        max_turns=turns,
        retries=retries,
        timeout=timeout,
        sampling=_exploring(sampling, definition),
    )
    items = [(sample, repeat) for sample in samples for repeat in range(repeats)]
    rollouts: dict[int, Rollout] = {}

    async def run_one(index: int, model: Endpoint) -> None:
        sample, repeat = items[index]
        with bind_attempt(model, index // repeats, repeat) as complete:
            state, seeded = AttemptState(), config.sampling.for_item(sample.id, repeat)
            attempt = await Attempt(
                sample,
                EndpointPolicy(complete, seeded, retries, RunProgress(repeats), state),
                definition,
                max_turns=turns,
                timeout=timeout,
                state=state,
            ).run()
        fatal = root_of(attempt.problem)
        if isinstance(fatal, FatalEndpointError) and all(r.error for r in rollouts.values()):
            raise SystemicFailure(
                f"the model cannot answer any request, so the rollouts were stopped: {fatal}"
            ) from fatal
        rollouts[index] = _make_rollout(sample, attempt)

    if not items:
        return []
    model = open_endpoint(endpoint, max_concurrent=max_concurrent)
    remaining = iter(range(len(items)))

    async def work() -> None:
        for index in remaining:
            await run_one(index, model)

    try:
        async with anyio.create_task_group() as group:
            for _ in range(min(max_concurrent, len(items))):
                group.start_soon(work)
    except BaseExceptionGroup as problem:
        # Several workers may have found at once that the model refuses everything.
        first: BaseException = problem.subgroup(SystemicFailure) or unwrap_group(problem)
        while isinstance(first, BaseExceptionGroup) and first is not problem:
            first = first.exceptions[0]
        raise first from None
    finally:
        if model is not endpoint:  # an endpoint object is its owner's to close
            with anyio.CancelScope(shield=True):
                await model.close()
    return _checked([rollouts[index] for index in range(len(items))])


def _exploring(sampling: Sampling | None, definition: EvalDefinition) -> Sampling:
    """Return the sampling of rollouts: what is given, else the eval's own, else temperature 1."""
    sampling = merge_sampling(Sampling() if sampling is None else sampling, definition)
    if "temperature" not in (sampling.given or ()):
        return sampling.having(temperature=1.0)
    return sampling


def _checked(rollouts: list[Rollout]) -> list[Rollout]:
    """Say how many rollouts failed; raise if all did."""
    failed = [(rollout.sample.id, rollout.error) for rollout in rollouts if rollout.error]
    if failed:
        causes = "; ".join(list_errors(count_errors(failed), len(failed)))
        if len(failed) == len(rollouts):
            raise SystemicFailure(f"all {len(rollouts)} rollouts failed: {causes}")
        log.warning(
            "%d of %d rollouts failed, and have no reward: %s", len(failed), len(rollouts), causes
        )
    return rollouts


def _make_rollout(sample: Sample, attempt: AttemptResult) -> Rollout:
    return Rollout(sample, attempt.trajectory, attempt.score, attempt.error, attempt.error_stage)


def _check_samples(samples: Iterable[Sample], prepare_messages: PrepareMessages | None) -> None:
    """Refuse what `evaluate` refuses: what is no sample, what JSON cannot hold, no question."""
    for sample in samples:
        if not isinstance(sample, Sample):
            raise InvalidInput(f"a rollout starts from a Sample, got {sample!r:.200}")
        as_stored(sample)
    check_questions(samples, prepare_messages)


# --- Batches ------------------------------------------------------------------------------------

WAIT_SHARE = 0.1
MAX_WAIT_SECONDS = 0.05
"""How long a batch waits for conversations that are about to ask: a share of the time that the
last call took, counted from the last request."""


@dataclass(eq=False, slots=True)
class _GenerateRequest:
    ids: list[int]
    max_tokens: int
    ready: anyio.Event
    outcome: Generated | BaseException | None = None


class _BatchedEngine:
    """Collects the turns that conversations ask for, and has them generated together."""

    def __init__(
        self, call: Callable[[list[list[int]], list[int]], Awaitable[Any]], conversations: int
    ) -> None:
        self._call = call
        self._waiting: list[_GenerateRequest] = []
        self._conversations = conversations
        self._any_waiting, self._all_waiting = anyio.Event(), anyio.Event()
        self._wait = 0.002

    async def generate(self, ids: list[int], max_tokens: int) -> Generated:
        request = _GenerateRequest(ids, max_tokens, anyio.Event())
        self._waiting.append(request)
        self._notify()
        try:
            await request.ready.wait()
        finally:
            if request.outcome is None and request in self._waiting:  # cancelled before its batch
                self._waiting.remove(request)
        if isinstance(request.outcome, BaseException):
            raise request.outcome
        assert request.outcome is not None
        return request.outcome

    def remove_conversation(self) -> None:
        self._conversations -= 1
        self._notify()

    def _notify(self) -> None:
        if len(self._waiting) >= self._conversations:
            self._any_waiting.set()
            self._all_waiting.set()
        elif len(self._waiting) == 1:
            self._any_waiting.set()

    async def serve(self) -> None:
        """Generate batch after batch, until no conversation is left."""
        while self._conversations:
            await self._any_waiting.wait()
            known = 0
            while known != len(self._waiting) < self._conversations:
                # The others are busy with their tools. If they ask within a moment, one call does
                # for all; two groups that alternate would never find together again.
                known = len(self._waiting)
                with anyio.move_on_after(self._wait):
                    await self._all_waiting.wait()
            batch, self._waiting = self._waiting, []
            self._any_waiting, self._all_waiting = anyio.Event(), anyio.Event()
            if batch:
                started = time.perf_counter()
                rows = await self._call([r.ids for r in batch], [r.max_tokens for r in batch])
                seconds = time.perf_counter() - started
                self._wait = min(WAIT_SHARE * seconds, MAX_WAIT_SECONDS)
                for request, outcome in zip(batch, _check_rows(rows, len(batch)), strict=True):
                    request.outcome = outcome
                    request.ready.set()


def _check_rows(rows: Any, count: int) -> list[Generated | BaseException]:
    """Check the engine's rows, and return one turn or exception for each prompt."""
    if not isinstance(rows, Iterable):
        raise EndpointError(f"generate returns a list with one row per prompt, got {rows!r:.100}")
    checked: list[Generated | BaseException] = []
    for row in rows:
        ids = row[0] if isinstance(row, tuple) and 0 < len(row) <= 4 else None
        if isinstance(row, BaseException):
            checked.append(row)
        elif isinstance(ids, Iterable) and not isinstance(ids, str):
            checked.append(row if isinstance(row, Generated) else Generated(*row))
        else:
            raise EndpointError(
                "generate returns, for each prompt, Generated(ids, logprobs, …) or a tuple "
                f"(ids, logprobs), got {row!r:.100}"
            )
    if len(checked) != count:
        raise EndpointError(f"generate got {count} prompts and returned {len(checked)} rows")
    return checked


# --- A rollout in tokens ------------------------------------------------------------------------


class Transcript:
    """The tokens of one rollout so far, and which of them are the model's.

    A model turn has at most `per_turn_max_tokens`; `engine_max_len` limits everything that the
    engine reads, including the next turn.
    """

    def __init__(
        self, template: Template, *, per_turn_max_tokens: int, engine_max_len: int | None = None
    ) -> None:
        self._template = template
        self._with_tools: TemplateWithTools | None = None
        self._per_turn, self._max_length = per_turn_max_tokens, engine_max_len
        self._messages: list[Message] = []
        """The conversation as it is rendered, with the raw text of the model's turns."""
        self._last_turn = Message("assistant", "")
        """The model's last turn, parsed."""
        self._truncated = False
        """Whether that turn was truncated."""
        self._next_call = 0
        """Number of the next tool call; ids are unique in a conversation."""
        self._prompt_length = 0
        self._ids: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] | None = None
        self.max_turn_tokens = 0
        """Maximum tokens of the model's next turn."""

    def add_messages(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Add new messages, and return all tokens so far for the engine.

        Raises:
            ContextFull: The conversation is too long for the engine; nothing was added.
            RenderMismatch: The template cannot render the messages after the tokens so far.
        """
        new = messages[len(self._messages) :]
        if self._with_tools is None:
            self._with_tools = self._template.with_tools(tools)
            segment = self._with_tools.prompt(new)
        else:
            segment = self._with_tools.segment(
                self._messages, new, self._ids, self._last_turn, truncated=self._truncated
            )
        length = len(self._ids) + len(segment)
        max_tokens = self._per_turn
        if self._max_length is not None:
            max_tokens = min(max_tokens, self._max_length - length)
            if max_tokens < 1:
                raise ContextFull(
                    f"the conversation has {length} tokens, and the engine takes "
                    f"{self._max_length}, the next turn included"
                )
        if not self._ids:
            self._prompt_length = length
        else:
            self._mask += [0] * len(segment)
            if self._logprobs is not None:
                self._logprobs += [0.0] * len(segment)
        self._messages += new
        self._next_call = max(self._next_call, next_call_number(new))
        self._ids += segment
        self.max_turn_tokens = max_tokens
        return list(self._ids)

    def add_turn(self, generated: Generated) -> Completion:
        """Add a turn of the model, up to a stop text, and return it as a parsed message.

        Raises:
            EndpointError: The engine returned too many tokens, or logprobs that do not align.
        """
        ids, logprobs = _read_numbers(generated)
        if not 0 < len(ids) <= self.max_turn_tokens:
            raise EndpointError(
                f"the engine returned {len(ids)} tokens, where 1 to {self.max_turn_tokens} were "
                "asked for"
            )
        if logprobs is not None and len(logprobs) != len(ids):
            raise EndpointError(
                f"the engine returned {len(ids)} tokens and {len(logprobs)} logprobs: one each "
                "is needed"
            )
        if not self._mask:
            self._logprobs = None if logprobs is None else []
        if (logprobs is None) != (self._logprobs is None):
            raise EndpointError("the engine returned logprobs for some turns and none for others")
        filled = len(ids) == self.max_turn_tokens and ids[-1] not in self._template.ends
        finish_reason = generated.finish_reason or (LENGTH if filled else STOP)
        stop = self._template.ends_early(ids)
        if stop is not None:
            ids, finish_reason = ids[:stop], STOP
        message, as_written = self._template.read(
            generated.message,
            ids,
            first=self._next_call,
            tools=self._with_tools.tools if self._with_tools is not None else (),
            prompt=self._ids,
        )
        usage = Usage(len(self._ids), len(ids))
        completion = Completion(message, finish_reason, usage)
        self._last_turn, self._truncated = message, completion.finish_reason == LENGTH
        self._next_call = max(self._next_call, next_call_number([message]))
        self._messages.append(as_written)
        self._ids += ids
        self._mask += [1] * len(ids)
        if self._logprobs is not None and logprobs is not None:
            self._logprobs += logprobs[: len(ids)]
        return completion

    def trace(self) -> TokenTrace | None:
        """Return the rollout up to the model's last token; None if it has written none.

        Later replies of the environment are left out: the model never read them.
        """
        if not self._mask:
            return None
        end = len(self._mask)
        while not self._mask[end - 1]:
            end -= 1
        start = self._prompt_length
        return TokenTrace(
            tuple(self._ids[:start]),
            tuple(self._ids[start : start + end]),
            None if self._logprobs is None else tuple(self._logprobs[:end]),
            tuple(self._mask[:end]),
        )


def _read_numbers(generated: Generated) -> tuple[list[int], list[float] | None]:
    """Convert ids and logprobs from tensors or arrays to plain numbers."""
    try:
        ids = [int(i) for i in generated.ids]
        if generated.logprobs is None:
            return ids, None
        logprobs = [float(logprob) for logprob in generated.logprobs]
    except (TypeError, ValueError) as problem:
        raise EndpointError(
            f"the engine returned ids or logprobs that are not numbers: {problem}"
        ) from None
    # Of a diverged model, greedy decoding still returns tokens.
    if not all(math.isfinite(logprob) for logprob in logprobs):
        raise EndpointError("the engine returned logprobs that are not finite: NaN or infinite")
    return ids, logprobs
