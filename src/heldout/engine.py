"""evaluate(): samples x config x score function -> EvalReport.

A fixed pool of workers pulls items from one iterator, so a stream of a million samples is never
held. Every item ends in one journal line, scored or errored; the report is derived from the
journal, which is why a run that was killed and resumed gives the report of one that was not.
The clauses named here are those of docs/semantics.md.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread

from heldout.config import EvalConfig, config_to_dict, describe_callable
from heldout.endpoints import Endpoint, open_endpoint
from heldout.endpoints.base import with_retries
from heldout.environment import Environment
from heldout.errors import (
    EndpointError,
    EvalFailed,
    FatalEndpointError,
    InvalidInput,
    ItemFailed,
    RunDirectoryError,
    SystemicFailure,
    TransientError,
    Unreachable,
)
from heldout.progress import Running, shown
from heldout.store.journal import JournalWriter
from heldout.store.ledger import Ledger
from heldout.store.report import EvalReport, finish
from heldout.store.rundir import RunDir, RunInfo, now, unused_name
from heldout.turns import rollout, settle
from heldout.types import (
    Completion,
    EvalResult,
    Message,
    Sample,
    Score,
    Timing,
    ToolSpec,
    Trajectory,
    messages_of,
)

PrepareMessages = Callable[[Sample], list[Message]]
ScoreFn = Callable[[Trajectory, Sample], Score | Awaitable[Score]]
EnvironmentFactory = Callable[[Sample], Environment | Awaitable[Environment]]

SYNC_SECONDS = 1.0
GIVE_WAY_SECONDS = 0.005
UNREACHABLE_LIMIT = 10
"""So many items that got no answer at all, with none that did, end the run early."""


async def evaluate(
    samples: Iterable[Sample],
    config: EvalConfig,
    score_fn: ScoreFn,
    prepare_messages: PrepareMessages | None = None,
    environment_factory: EnvironmentFactory | None = None,
) -> EvalReport:
    """Run every sample and score what came of it.

    Writes `<output_dir>/<experiment_name>/` as it goes. Raises `SystemicFailure` where there is
    no honest number to report: every item errored, or more than `max_error_rate`. Cancelled or
    interrupted, it leaves a run that `resume=True` goes on with.
    """
    if not callable(score_fn):
        raise InvalidInput(
            f"score_fn is a function (trajectory, sample) -> Score, got {score_fn!r}"
        )
    if not isinstance(samples, Iterable):
        raise InvalidInput(f"samples are a list or another iterable of Sample, got {samples!r}")
    if isinstance(samples, Sized) and len(samples) == 0:
        raise InvalidInput("there are no samples to evaluate")
    endpoint = open_endpoint(config.endpoint, max_concurrent=config.max_concurrent)
    try:
        hooks = Hooks(endpoint, score_fn, prepare_messages, environment_factory)
        return await _Run(samples, config, hooks).run()
    finally:
        if endpoint is not config.endpoint:  # an endpoint object is its owner's to close
            with anyio.CancelScope(shield=True):
                await endpoint.close()


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the user brought besides the samples."""

    endpoint: Endpoint
    score_fn: ScoreFn
    prepare_messages: PrepareMessages | None
    environment_factory: EnvironmentFactory | None


@dataclass(frozen=True, slots=True)
class _Item:
    index: int
    sample: Sample
    repeat: int


class _Run:
    """One call of evaluate: the state that its workers share."""

    def __init__(self, samples: Iterable[Sample], config: EvalConfig, hooks: Hooks) -> None:
        name = config.experiment_name or unused_name(Path(config.output_dir))
        self.dir = RunDir(Path(config.output_dir) / name)
        self.samples, self.config, self.hooks = samples, config, hooks
        self.running = Running(config.repeats)
        self.ledger = Ledger()
        self.asked = 0
        self.last_error: str | None = None
        self.unreachable: int | None = 0
        """Items that got no answer at all, while none has; None once one has."""
        self.failure: BaseException | None = None
        self.gave_way = time.perf_counter()

    async def run(self) -> EvalReport:
        try:
            info, journal = self._enter()
            try:
                return await self._run(info, journal)
            finally:
                journal.close()
        finally:
            self.ledger.close()

    def _enter(self) -> tuple[RunInfo, JournalWriter]:
        """Into the run directory: a new one, or one to go on with. Refusals happen here."""
        hooks = self.hooks
        config = config_to_dict(self.config, hooks.endpoint.describe())
        config["experiment_name"] = self.dir.path.name
        functions = {
            "score_fn": describe_callable(hooks.score_fn),
            "prepare_messages": describe_callable(hooks.prepare_messages),
            "environment_factory": describe_callable(hooks.environment_factory),
        }
        if not (self.config.resume and self.dir.exists()):
            self.dir.refuse_existing()
            self._look_ahead()
            info = self.dir.create(config, functions, self.running.total)
            return info, JournalWriter(self.dir.journal)
        journal = JournalWriter(self.dir.journal)  # first the lock, then the reading
        try:
            for index, reward in self.ledger.read_journal(self.dir.journal):
                self.running.add(index, reward)
                self.running.trim()
            if self.ledger.finished:
                self.dir.check_resumable(config, functions)
            else:  # nothing to keep, so nothing that could fail to belong together
                self.ledger.close()
                self.ledger = Ledger()
                journal.clear()
            self._look_ahead()
            return self.dir.create(config, functions, self.running.total), journal
        except BaseException:
            journal.close()
            raise

    def _look_ahead(self) -> None:
        """Where all samples are at hand, refuse bad ones before anything runs."""
        limit = self.config.max_samples
        if isinstance(self.samples, Sequence):
            for _ in self._admitted():
                pass
            self.ledger.check_all_seen()
            self.running.total = len(self.samples[:limit]) * self.config.repeats
        elif limit is not None:
            self.running.total = limit * self.config.repeats

    async def _run(self, info: RunInfo, journal: JournalWriter) -> EvalReport:
        try:
            with shown(self.running, self.dir.path.name, wanted=self.config.progress):
                await self._work(journal)
            if self.failure is not None:
                raise self.failure
            if self.asked == 0:
                raise InvalidInput("there are no samples to evaluate")
            self.ledger.check_all_seen()
            self._check_errors()
            journal.sync()
            await anyio.to_thread.run_sync(finish, self.dir, info)
        except BaseException as problem:
            self._stop(info, problem)
            raise
        report = EvalReport.load(self.dir.path)
        if report.summary["n"] != self.asked:
            raise RunDirectoryError(
                f"{self.dir.journal} has {report.summary['n']} results where {self.asked} were "
                "asked for: it was changed from outside while the eval ran"
            )
        return report

    def _stop(self, info: RunInfo, problem: BaseException) -> None:
        """Leave behind a run that says what happened and can be resumed."""
        if self.asked == 0 and not self.ledger.finished:
            self.dir.remove_empty()  # there was not even a first sample
            return
        failed = isinstance(problem, Exception)
        info.status = "failed" if failed else "interrupted"
        info.reason = f"{type(problem).__name__}: {problem}"[:2000] if failed else None
        info.asked = self.running.total
        info.finished = now()
        if isinstance(problem, EvalFailed):
            problem.run_dir = self.dir.path
        # A full disk may refuse this too. The journal, which is what counts, is whole anyway.
        with suppress(RunDirectoryError):
            self.dir.write_info(info)

    # --- The pool ---

    async def _work(self, journal: JournalWriter) -> None:
        items = self._items()
        workers = self.config.max_concurrent
        if self.running.total is not None:
            workers = min(workers, self.running.total)

        @contextmanager
        def failing_together() -> Iterator[None]:
            """One that fails ends all; and out of here alone, not wrapped in a group of one."""
            try:
                yield
            except Exception as problem:  # noqa: BLE001 - raised again by _run
                self.failure = self.failure or problem
                scope.cancel()

        async def worker() -> None:
            with failing_together():
                for item in items:
                    await self._one(item, journal)
                    await self._give_way()

        async def sync() -> None:
            with failing_together():
                while True:
                    await anyio.sleep(SYNC_SECONDS)
                    await anyio.to_thread.run_sync(journal.sync)

        try:
            async with anyio.create_task_group() as background:
                with anyio.CancelScope() as scope:
                    background.start_soon(sync)
                    async with anyio.create_task_group() as pool:
                        for _ in range(workers):
                            pool.start_soon(worker)
                background.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            if group.subgroup(KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise

    async def _give_way(self) -> None:
        """Let the event loop have a turn, now and then.

        A policy that never waits would starve it: no Ctrl-C, no fsync, and every timeout that
        was ever set kept in memory.
        """
        if time.perf_counter() - self.gave_way > GIVE_WAY_SECONDS:
            await anyio.lowlevel.checkpoint()
            self.gave_way = time.perf_counter()

    def _admitted(self) -> Iterator[tuple[int, Sample]]:
        for index, sample in enumerate(islice(self.samples, self.config.max_samples)):
            self.ledger.admit(index, sample)
            yield index, sample

    def _items(self) -> Iterator[_Item]:
        """What is left to do. All workers pull from this one generator."""
        checked = isinstance(self.samples, Sequence)
        stream = enumerate(islice(self.samples, self.config.max_samples))
        for index, sample in stream if checked else self._admitted():
            for repeat in range(self.config.repeats):
                self.asked += 1
                if not self.ledger.is_finished(sample.id, repeat):
                    yield _Item(index, sample, repeat)
        self.running.total = self.asked  # known at last, where it was not

    async def _one(self, item: _Item, journal: JournalWriter) -> None:
        result, problem = await run_item(item.sample, item.repeat, self.config, self.hooks)
        journal.append(item.index, result)
        self.running.add(item.index, result.score.reward, ok=result.ok)
        self.running.trim()
        if result.ok:
            self.unreachable = None
            return
        self.last_error = f"sample {item.sample.id!r}: {result.error}"
        if isinstance(problem, FatalEndpointError):
            raise SystemicFailure(
                f"the endpoint refuses every request, so the eval was stopped: {problem}"
            ) from problem
        if self.config.on_error == "raise":
            raise ItemFailed(
                f"{self.last_error} (on_error='raise' stops at the first error)"
            ) from problem
        if not isinstance(problem, Unreachable):
            self.unreachable = None
        elif self.unreachable is not None:
            self.unreachable += 1
            if self.unreachable >= UNREACHABLE_LIMIT:
                raise SystemicFailure(
                    f"no item got an answer from the endpoint, so the eval was stopped after "
                    f"{self.unreachable}: {problem}"
                ) from problem

    def _check_errors(self) -> None:
        """Clause 3: no number where there is none to be had."""
        errors, limit = self.running.errors, self.config.max_error_rate
        if errors == self.asked:
            raise SystemicFailure(
                f"all {errors} items errored, so there is no mean; the last: {self.last_error}"
            )
        if limit is not None and errors > limit * self.asked:
            raise SystemicFailure(
                f"{errors} of {self.asked} items errored, above max_error_rate={limit}; the last: "
                f"{self.last_error}"
            )


# --- One item -----------------------------------------------------------------------------------


async def run_item(
    sample: Sample, repeat: int, config: EvalConfig, hooks: Hooks
) -> tuple[EvalResult, Exception | None]:
    """Roll out and score one item. Whatever goes wrong becomes the item's error (clause 5)."""
    said: list[Message] = []
    stage = "prepare_messages"
    requests = 0
    retried: Exception | None = None
    trajectory: Trajectory | None = None
    score = Score()
    error: str | None = None
    problem: Exception | None = None
    sampling = config.sampling.for_item(sample.id, repeat)

    async def policy(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Completion:
        nonlocal stage, requests, retried
        outer, stage = stage, "endpoint"

        async def request() -> Completion:
            nonlocal requests, retried
            requests += 1
            try:
                return await hooks.endpoint.complete(messages, sampling, tools)
            except TransientError as transient:
                retried = transient
                raise

        completion, _ = await with_retries(request, config.retries)
        stage = outer
        return completion

    started = time.perf_counter()
    with anyio.move_on_after(config.timeout) as scope:
        try:
            prepare = hooks.prepare_messages or _default_messages
            opening = await settle(prepare(sample))
            environment: Environment | None = None
            if hooks.environment_factory is not None:
                stage = "environment_factory"
                environment = await settle(hooks.environment_factory(sample))
            stage = "environment"
            trajectory = await rollout(
                policy, opening, environment, max_turns=config.max_turns, record=said
            )
            stage = "score_fn"
            score = await settle(hooks.score_fn(trajectory, sample))
            if not isinstance(score, Score):
                given, score = score, Score()
                raise TypeError(f"score_fn returns a Score, got {given!r}")
        except Exception as raised:  # noqa: BLE001 - kept as the item's error
            problem = raised
            error = _describe(stage, raised)
    if scope.cancelled_caught:
        waiting = f"; the last answer was: {retried}" if retried is not None else ""
        error = f"timeout: not done after {config.timeout:g} s (in {stage}){waiting}"
        score = Score()
    timing = Timing(time.perf_counter() - started, requests)
    trajectory = trajectory or Trajectory(tuple(said))
    done = Trajectory(
        trajectory.messages, trajectory.stop, trajectory.usage, trajectory.tokens, timing
    )
    return EvalResult(sample.id, sample, done, score, {}, repeat, error), problem


def _default_messages(sample: Sample) -> list[Message]:
    return messages_of(sample.input, f"sample {sample.id!r}: input")


def _describe(stage: str, problem: Exception) -> str:
    """An item's error: where, what, and for the user's own code the line."""
    if isinstance(problem, EndpointError | InvalidInput) and stage != "score_fn":
        return f"{stage}: {problem}"[:2000]
    ours = Path(__file__).parent
    theirs = [
        frame
        for frame in traceback.extract_tb(problem.__traceback__)
        if ours not in Path(frame.filename).parents and not frame.filename.startswith("<")
    ]
    last = theirs[-1] if theirs else None
    where = f" ({Path(last.filename).name}, line {last.lineno})" if last else ""
    return f"{stage}: {type(problem).__name__}: {problem}{where}"[:2000]


__all__ = ["EnvironmentFactory", "PrepareMessages", "ScoreFn", "evaluate"]
