"""evaluate(): samples x config x score function -> EvalReport.

A fixed pool of workers pulls items from one iterator, so a stream of a million samples is never
held. Every item ends in one journal line, scored or errored; the report is derived from the
journal, which is why a run that was killed and resumed gives the report of one that was not.
The clauses named here are those of docs/semantics.md.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from heldout._aio import exits_contained
from heldout._fingerprint import describe_callable
from heldout._progress import Running, shown
from heldout.config import EvalConfig, config_to_dict
from heldout.errors import (
    EvalFailed,
    FatalEndpointError,
    InvalidInput,
    ItemFailed,
    RunDirectoryError,
    SystemicFailure,
    TransientError,
    Unreachable,
    printable_error,
)
from heldout.models import Endpoint, open_endpoint
from heldout.models.base import taking_part, with_retries
from heldout.rollout import (
    EnvironmentFactory,
    EvalDefinition,
    PrepareMessages,
    ScoreFn,
    attempt,
    failed_in_scoring,
    root_of,
)
from heldout.store.journal import JournalWriter
from heldout.store.report import EvalReport, finish
from heldout.store.resume import Ledger, as_stored
from heldout.store.run_dir import RunDir, RunInfo, now, unused_name
from heldout.types import (
    Completion,
    EvalResult,
    Message,
    Sample,
    Score,
    Stop,
    Timing,
    ToolSpec,
    Trajectory,
)

SYNC_SECONDS = 1.0
GIVE_WAY_SECONDS = 0.005
UNREACHABLE_LIMIT = 10
"""So many items that got no answer at all, with none that did, end the run early."""


async def evaluate(
    samples: Iterable[Sample] | EvalDefinition,
    config: EvalConfig,
    score_fn: ScoreFn | None = None,
    prepare_messages: PrepareMessages | None = None,
    environment_factory: EnvironmentFactory | None = None,
) -> EvalReport:
    """Run every sample and score what came of it.

    An `EvalDefinition` takes the place of samples, score function, messages and environments.
    Writes `<output_dir>/<experiment_name>/` as it goes. Raises `SystemicFailure` where there is
    no honest number to report: every item errored, or more than `max_error_rate`. Cancelled or
    interrupted, it leaves a run that `resume=True` goes on with.
    """
    given = EvalDefinition.of(samples, score_fn, prepare_messages, environment_factory)
    samples = given.samples
    if not isinstance(samples, Iterable):
        raise InvalidInput(f"samples are a list or another iterable of Sample, got {samples!r}")
    if isinstance(samples, Sized) and len(samples) == 0:
        raise InvalidInput("there are no samples to evaluate")
    endpoint = open_endpoint(config.endpoint, max_concurrent=config.max_concurrent)
    try:
        hooks = Hooks(endpoint, given.score_fn, given.prepare_messages, given.environment_factory)

        async def one(item: Item) -> Outcome:
            with taking_part(endpoint, item.index, item.repeat) as its_own:
                return await run_item(
                    item.sample, item.repeat, config, replace(hooks, endpoint=its_own)
                )

        described = config_to_dict(config, endpoint.describe())
        return await Run(samples, config, one, described, hooks.described()).run()
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

    def described(self) -> dict[str, Any]:
        """What run.json says of the functions whose change would change results."""
        return {
            "score_fn": describe_callable(self.score_fn),
            "prepare_messages": describe_callable(self.prepare_messages),
            "environment_factory": describe_callable(self.environment_factory, docstrings=True),
        }


@dataclass(frozen=True, slots=True)
class Item:
    index: int
    sample: Sample
    repeat: int


Outcome = tuple[EvalResult, BaseException | None]
"""A result, and what was raised where it errored."""


class Run:
    """Every item to a line of the journal, and that to a report: the state its workers share.

    `one` is what is done with an item. `described` is the config and `functions` the functions
    as run.json has them.
    """

    def __init__(
        self,
        samples: Iterable[Sample],
        config: EvalConfig,
        one: Callable[[Item], Awaitable[Outcome]],
        described: dict[str, Any],
        functions: dict[str, Any],
    ) -> None:
        name = config.experiment_name or unused_name(Path(config.output_dir))
        self.dir = RunDir(Path(config.output_dir) / name)
        self.samples, self.config, self.one = samples, config, one
        self.described = {**described, "experiment_name": self.dir.path.name}
        self.functions = functions
        self.running = Running(config.repeats)
        self.ledger = Ledger()
        self.asked = 0
        self.last_error: str | None = None
        self.errors_in_scoring = 0
        self.unreachable: int | None = 0
        """Items that got no answer at all, while none has; None once one has."""
        self.failure: BaseException | None = None
        self.gave_way = time.perf_counter()
        self.exhausted = False
        """Whether the last sample has been handed out."""
        self.previous: RunInfo | None = None
        """What run.json said before this run went on with it."""

    async def run(self) -> EvalReport:
        try:
            info, journal = self._enter()
            try:
                with exits_contained():
                    return await self._run(info, journal)
            finally:
                journal.close()
        finally:
            self.ledger.close()

    def _enter(self) -> tuple[RunInfo, JournalWriter]:
        """Into the run directory: a new one, or one to go on with. Refusals happen here."""
        config, functions = self.described, self.functions
        going_on = self.config.resume and self.dir.exists()
        # First the lock, then everything else: nobody else may come in between.
        journal = JournalWriter(self.dir.journal) if going_on else self.dir.claim()
        try:
            if going_on:
                self._take_over(config, functions)
            self._look_ahead()
            if not self.ledger.finished:
                journal.clear()  # of errors only, which are run again
            info = self.dir.create(config, functions, self.running.total)
            if self.previous is not None:
                info.started, info.id = self.previous.started, self.previous.id
            return info, journal
        except BaseException:
            journal.close()
            if not going_on:
                self.dir.remove_empty()
            raise

    def _take_over(self, config: dict[str, Any], functions: dict[str, Any]) -> None:
        """What a stopped run finished, if it belongs together with what is to come."""
        for index, reward in self.ledger.read_journal(self.dir.journal):
            self.running.add(index, reward)
            self.running.trim()
        if self.ledger.finished:
            self.previous = self.dir.read_info()
            self.dir.check_resumable(self.previous, config, functions)
        else:  # nothing to keep, so nothing that could fail to belong together
            self.ledger.close()
            self.ledger = Ledger()

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
            if not self.exhausted or self.running.done != self.asked:
                raise EvalFailed(
                    f"only {self.running.done} items came to an end; the run is not complete, "
                    "and can be resumed"
                )
            self._check_errors()
            journal.sync()
            await _in_thread_to_the_end(finish, self.dir, info, self.asked)
            if self._is_as_it_was(info):
                assert self.previous is not None
                self.dir.write_info(self.previous)
        except BaseException as problem:
            self._stop(info, journal, problem)
            raise
        return EvalReport.load(self.dir.path)

    def _is_as_it_was(self, info: RunInfo) -> bool:
        """Whether a complete run was resumed, and nothing was left to do: it changes in no byte,
        since what was derived again is what there was."""
        return (
            self.previous is not None
            and self.previous.status == "complete"
            and self.previous.journal_bytes == info.journal_bytes
            and self.previous.config.get("pass_threshold") == self.config.pass_threshold
        )

    def _stop(self, info: RunInfo, journal: JournalWriter, problem: BaseException) -> None:
        """Leave behind a run that says what happened and can be resumed."""
        if self.asked == 0 and not self.ledger.finished:
            self.dir.remove_empty()  # there was not even a first sample
            return
        if isinstance(problem, EvalFailed):
            problem.run_dir = self.dir.path
        if self.previous is not None and journal.written == 0:
            info = self.previous  # nothing was added to it: it is what it was
        else:
            failed = isinstance(problem, Exception)
            said = f"{type(problem).__name__}: {printable_error(problem)}"[:2000]
            info.status, info.reason = ("failed", said) if failed else ("interrupted", None)
            info.asked, info.finished = self.running.total, now()
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
            # Raised again by _run.
            except (Exception, KeyboardInterrupt, SystemExit) as problem:  # noqa: BLE001
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
            # Ctrl-C under trio: as if there were no group.
            problem: BaseException = group
            while isinstance(problem, BaseExceptionGroup) and len(problem.exceptions) == 1:
                problem = problem.exceptions[0]
            raise problem from None

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
            self.running.has_copies = self.ledger.copies > 0
            yield index, sample

    def _items(self) -> Iterator[Item]:
        """What is left to do. All workers pull from this one generator."""
        checked = isinstance(self.samples, Sequence)
        stream = enumerate(islice(self.samples, self.config.max_samples))
        for index, sample in stream if checked else self._admitted():
            stored = as_stored(sample)
            for repeat in range(self.config.repeats):
                self.asked += 1
                if not self.ledger.is_finished(sample.id, repeat):
                    yield Item(index, stored, repeat)
        self.exhausted = True
        self.running.total = self.asked  # known at last, where it was not

    async def _one(self, item: Item, journal: JournalWriter) -> None:
        self.running.under_way += 1
        result, problem = await self.one(item)
        self.running.under_way -= 1
        try:
            journal.append(item.index, result)
        except InvalidInput as refused:  # what JSON cannot hold: an error of this item
            problem = refused
            result = EvalResult(
                item.sample.id,
                item.sample,
                Trajectory((), Stop("error")),
                repeat=item.repeat,
                error=f"store: {printable_error(refused)}",
            )
            journal.append(item.index, result)
        self.running.add(item.index, result.score.reward, ok=result.ok)
        self.running.trim()
        if result.ok:
            self.unreachable = None
            return
        self.last_error = f"sample {item.sample.id!r}: {result.error}"
        self.errors_in_scoring += failed_in_scoring(result.error or "")
        if isinstance(problem, FatalEndpointError):
            raise SystemicFailure(
                f"the endpoint refuses every request, so the eval was stopped: {problem}"
            ) from problem
        if isinstance(root_of(problem), FatalEndpointError):
            raise SystemicFailure(
                f"what the score function asks can answer nothing, so the eval was stopped: "
                f"{problem}"
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
            every = "the only item" if errors == 1 else f"all {errors} items"
            kept = ""
            if self.errors_in_scoring == errors:
                kept = (
                    ". The answers are kept: `heldout rescore` scores them with a mended score "
                    "function, and asks nobody again"
                )
            raise SystemicFailure(
                f"{every} errored, so there is no mean; the last: {self.last_error}{kept}"
            )
        if limit is not None and errors > limit * self.asked:
            raise SystemicFailure(
                f"{errors} of {self.asked} items errored, above max_error_rate={limit}; the last: "
                f"{self.last_error}"
            )


# --- One item -----------------------------------------------------------------------------------


async def run_item(sample: Sample, repeat: int, config: EvalConfig, hooks: Hooks) -> Outcome:
    """Roll out and score one item. Whatever goes wrong becomes the item's error (clause 5)."""
    requests = turns = 0
    retried: Exception | None = None
    own = config.sampling.for_item(sample.id, repeat)

    async def policy(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Completion:
        nonlocal turns
        sampling = own.for_turn(turns)
        turns += 1

        async def request() -> Completion:
            nonlocal requests, retried
            requests += 1
            try:
                return await hooks.endpoint.complete(messages, sampling, tools)
            except TransientError as transient:
                retried = transient
                raise

        return await with_retries(request, config.retries)

    def waiting() -> str:
        return f"; the last answer was: {retried}" if retried is not None else ""

    item = await attempt(
        sample,
        policy,
        prepare_messages=hooks.prepare_messages,
        environment_factory=hooks.environment_factory,
        score_fn=hooks.score_fn,
        max_turns=config.max_turns,
        token_budget=config.token_budget,
        timeout=config.timeout,
        waiting=waiting,
    )
    timing = Timing(item.seconds, requests)
    trajectory = replace(item.trajectory, timing=timing)
    score = item.score or Score()
    return EvalResult(sample.id, sample, trajectory, score, {}, repeat, item.error), item.problem


async def _in_thread_to_the_end(function: Callable[..., Any], *args: Any) -> None:
    """Run in a thread and wait for it, even if cancelled: it must not write after we are gone.

    asyncio's own `task.cancel()`, which is what Ctrl-C does, reaches through anyio's shield.
    """
    problem: list[BaseException] = []

    def work() -> None:
        try:
            function(*args)
        except BaseException as raised:  # noqa: BLE001 - raised where it is awaited
            problem.append(raised)

    thread = threading.Thread(target=work, name="heldout-finish")
    thread.start()
    cancelled: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while thread.is_alive():
            try:
                await anyio.sleep(0.002)
            except anyio.get_cancelled_exc_class() as stray:
                cancelled = stray
    if problem:
        raise problem[0]
    if cancelled is not None:
        raise cancelled


__all__ = ["EnvironmentFactory", "PrepareMessages", "ScoreFn", "evaluate"]
