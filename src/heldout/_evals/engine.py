"""evaluate(): samples x config x score function -> EvalReport.

A fixed pool of workers pulls items from one iterator, so a stream of a million samples is never
held. One item reads top to bottom: `EvalRun._work` pulls it, `Evaluation.run_item` makes the
attempt (rollout.py), `EvalRun._record` writes its one journal line, scored or errored. The report
is derived from the journal, which is why a run that was killed and resumed gives the report of one
that was not. The clauses named here are those of docs/semantics.md.
"""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence, Sized
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from heldout._core.aio import ContainedExit, capture, contain_exits, settle, unwrap_outcome, waker
from heldout._core.config import EvalConfig, config_to_dict, count_equal_attempts
from heldout._core.format import describe_weight_versions, printable
from heldout._core.loop_clock import Blocking, loop_clock
from heldout._core.prices import Price
from heldout._core.until import NO_CLAIM
from heldout._evals.baseline import CLAIM_KEYS, open_baseline
from heldout._evals.progress import RunProgress, show_progress
from heldout._evals.rollout import (
    Attempt,
    AttemptState,
    EndpointPolicy,
    EnvironmentFactory,
    EvalDefinition,
    PrepareMessages,
    ScoreFn,
    TurnFile,
    check_questions,
    functions_of,
    merge_sampling,
    own_pass_threshold,
    root_of,
    turn_limit,
)
from heldout._evals.steering import Steering
from heldout._evals.stopping import (
    Prefixes,
    order_for_looks,
    plan_stopping,
    plan_stream,
    refuse_on_stream,
)
from heldout.environment import rates_continuations, reads_metadata
from heldout.errors import (
    EvalFailed,
    FatalEndpointError,
    InvalidInput,
    ItemFailed,
    ModelRefused,
    ResumeMismatch,
    RunDirectoryError,
    SystemicFailure,
    Unreachable,
    printable_error,
)
from heldout.models import Endpoint, open_endpoint
from heldout.models.base import bind_attempt, check_rates, rating_function
from heldout.models.cache import CachedEndpoint
from heldout.models.choice import with_model
from heldout.stats.summary import has_mean
from heldout.store.ahead import AheadJournal, ahead_path
from heldout.store.error_counts import count_errors, explain_no_mean
from heldout.store.fingerprint import PARTS, describe_callable, describe_parts
from heldout.store.journal import JournalWriter, in_order
from heldout.store.report import EvalReport, finish
from heldout.store.resume import Ledger, decode_sample, encode_sample
from heldout.store.run_dir import RunDir, RunInfo, now, unused_name
from heldout.store.settled import Settled
from heldout.store.spent import usage_ahead
from heldout.types import (
    EvalResult,
    Sample,
    Score,
    Stop,
    Trajectory,
)

log = logging.getLogger("heldout")

SYNC_SECONDS = 1.0
YIELD_SECONDS = 0.005
MAX_BLOCKED = 0.1
"""A share of a run that its event loop may be blocked without a word."""
UNREACHABLE_LIMIT = 10
"""The run ends early after this many items without any answer, if none got one."""
SEEDED, AS_READ = "seeded", "as read"
"""Orders of a run that stops: made of the samples' ids, and that of a stream."""
MAX_WEIGHT_VERSIONS = 100
"""So many versions of served weights are named in run.json at most."""


async def evaluate(
    samples: Iterable[Sample] | EvalDefinition,
    config: EvalConfig,
    score_fn: ScoreFn | None = None,
    prepare_messages: PrepareMessages | None = None,
    environment_factory: EnvironmentFactory | None = None,
    *,
    executor: Executor | None = None,
) -> EvalReport:
    """Run and score every sample, into `<output_dir>/<experiment_name>/`.

    Cancelled or interrupted, it leaves a run that `resume=True` goes on with.

    Args:
        samples: The samples, or an `EvalDefinition` in place of samples, score function, messages
            and environments.
        config: How to run them.
        score_fn: Scores a trajectory.
        prepare_messages: Makes a sample's opening messages; without it the sample's input does.
        environment_factory: Makes a sample's environment; without it there is one model turn.
        executor: Runs the items elsewhere, as `heldout.cluster.RayExecutor` does; without it they
            run in this process.

    Returns:
        The report, as it is saved.

    Raises:
        InvalidInput: An argument or a sample is refused.
        RunDirectoryError: The run directory cannot be used: it holds another run, say.
        SystemicFailure: There is no honest number to report: every item errored, or more than
            `max_error_rate`.
        ItemFailed: An item errored under `on_error="raise"`.
    """
    definition = EvalDefinition.of(samples, score_fn, prepare_messages, environment_factory)
    config = prepare_config(definition, config)
    if executor is not None:
        return await executor.evaluate(definition, config)
    async with opened(definition, config) as evaluation:
        return await evaluation.run()


@asynccontextmanager
async def opened(definition: EvalDefinition, config: EvalConfig) -> AsyncIterator[Evaluation]:
    """Open the model of an eval; it and the eval's environments are closed at the end.

    Args:
        definition: What is run.
        config: How, as `prepare_config` has completed it.

    Yields:
        The run, which has not begun.
    """
    endpoint = open_endpoint(config.endpoint, max_concurrent=config.max_concurrent)
    if config.cache:
        endpoint = CachedEndpoint(endpoint, config.endpoint, config.cache)
    try:
        yield Evaluation(definition, config, endpoint)
    finally:
        with anyio.CancelScope(shield=True):
            end_run = getattr(definition.environment_factory, "end_run", None)
            if end_run is not None:
                await settle(end_run())
            if endpoint is not config.endpoint:  # an endpoint object is its owner's to close
                await endpoint.close()


def prepare_config(definition: EvalDefinition, config: EvalConfig) -> EvalConfig:
    """Complete a config by what the eval says, and refuse samples that nothing can be asked of.

    Args:
        definition: What is run.
        config: What the user says.

    Raises:
        InvalidInput: There is no model, or there are no samples.
    """
    samples = definition.samples
    if not isinstance(samples, Iterable):
        raise InvalidInput(f"samples must be a list or another iterable of Sample, got {samples!r}")
    if isinstance(samples, Sized) and len(samples) == 0:
        raise InvalidInput("there are no samples to evaluate")
    config = replace(
        with_model(config),
        max_turns=turn_limit(config.max_turns, definition),
        sampling=merge_sampling(config.sampling, definition),
        pass_threshold=own_pass_threshold(config.pass_threshold, definition),
    )
    if isinstance(samples, Sequence):  # before a model is loaded; a stream is checked as it is read
        known = [s for s in islice(samples, config.max_samples) if isinstance(s, Sample)]
        check_questions(known, definition.prepare_messages)
    return config


@dataclass(slots=True)
class Item:
    """One attempt to make: a sample, its position in the dataset, and which repeat of it."""

    index: int
    sample: Sample
    """A copy of its own: the functions may write into it."""
    repeat: int
    content: bytes
    """The sample as JSON, as its line of the journal has it."""
    is_again: bool = False
    """Whether it has errored in this run, and was asked for again (`heldout ctl`)."""
    failed_in_scoring: bool = False
    """Whether the score function was where it errored."""


ItemResult = tuple[EvalResult, BaseException | None]
"""A result, and what was raised where it errored."""


class Executor(Protocol):
    """Runs the items of an eval outside this process."""

    async def evaluate(self, definition: EvalDefinition, config: EvalConfig) -> EvalReport:
        """Run an eval as `evaluate` does."""
        ...


class EvalRun:
    """Runs every item, records it in the journal, and derives the report from that.

    Subclasses define how an item is run: `run_item`.
    """

    reads_metadata = False
    """Whether samples that differ in metadata alone are different tasks, to an environment."""

    def __init__(
        self,
        samples: Iterable[Sample],
        config: EvalConfig,
        described: dict[str, Any],
        functions: dict[str, Any],
        *,
        parquet_from: int = 0,
    ) -> None:
        """Make a run that has not begun; config and functions are described as run.json has them.

        `parquet_from`: results from which there is a results.parquet, which takes DuckDB a tenth of
        a second. Of fewer it is made when a query needs it.
        """
        name = config.experiment_name or unused_name(Path(config.output_dir))
        self.dir = RunDir(Path(config.output_dir) / name)
        self.samples, self.config = samples, config
        self.described = {**described, "experiment_name": name}
        self.functions = functions
        price = described.get("price")
        self.progress = RunProgress(config.repeats, Price(**price) if price else None)
        self.shows_progress = config.progress
        self.ledger = Ledger()
        self.item_count = 0
        """Items so far, those of an earlier attempt at this run included."""
        self.errors_in_scoring = 0
        self.unreachable: int | None = 0
        """Items without any answer so far; None once an item has got one."""
        self._is_numbered = False
        """Whether the run was given its number, which its first answer gives it."""
        self.exhausted = False
        """Whether the last sample has been pulled."""
        self.previous: RunInfo | None = None
        """What run.json said before this run was resumed."""
        self.journal: JournalWriter
        self.info: RunInfo
        self.steering: Steering[Item] = Steering(self.dir.path)
        """What `heldout ctl` asks of the run."""
        self._question_fields: dict[str, None] = {}
        """Fields of the samples' inputs that the questions are taken from."""
        self._parquet_from = parquet_from
        self.make_stopping: Callable[[Sequence[Sample] | None], Prefixes] | None = None
        """Plans the looks of a run that stops, given its samples, or None for a stream; None of an
        ordinary run."""
        self._cluster: str | None = None
        """The metadata key whose clusters are one step of a run that stops."""
        self.stopping: Prefixes | None = None
        """Decides when the run has shown what it is to show; None of an ordinary run."""
        self.ahead: AheadJournal | None = None
        """Writes the journal of a run that may stop."""
        self.inherited: Settled | None = None
        """How the run was stopped whose trajectories these are."""
        self._read_before: list[tuple[int, float]] = []
        """Index and reward of what a killed process finished."""
        self._yielded_at = time.perf_counter()
        if config.settles is not None:
            self._stop_by_claim(config.settles.baseline)

    def _stop_by_claim(self, baseline_name: str | None) -> None:
        baseline = None
        if baseline_name is not None:
            baseline = open_baseline(baseline_name, self.config.experiment_name, self.functions)
            self.described["baseline"] = {"run": baseline_name, "id": baseline.id}

        def plan(samples: Sequence[Sample] | None) -> Prefixes:
            if samples is None:
                return plan_stream(self.config)
            return plan_stopping(samples, self.config, baseline, whole=self.reads_metadata)

        if self._is_stream:
            refuse_on_stream(self.config, baseline)
        self.stop_by(plan, cluster=self.config.cluster)

    @property
    def _is_stream(self) -> bool:
        """Whether nobody knows how many samples there are."""
        return not isinstance(self.samples, Sequence) and self.config.max_samples is None

    def stop_by(
        self,
        make_stopping: Callable[[Sequence[Sample] | None], Prefixes],
        *,
        cluster: str | None = None,
        **says: Any,
    ) -> None:
        """Have the run stop, before it begins.

        Args:
            make_stopping: Plans its looks, given the samples in their order; None stands for a
                stream, which has the order in which it is read.
            cluster: The metadata key whose clusters run as one step; None takes equal content.
            **says: What run.json's config says of it.
        """
        self.make_stopping, self._cluster = make_stopping, cluster
        self.described |= {"order": AS_READ if self._is_stream else SEEDED, **says}
        if cluster is not None:
            self.described["cluster"] = cluster

    def run_item(self, item: Item) -> Awaitable[ItemResult]:
        """Run one item."""
        raise NotImplementedError

    def check_question(self, sample: Sample) -> Sequence[str]:
        """Refuse a sample whose question cannot be read; return the field of its question."""
        return ()

    async def run(self) -> EvalReport:
        """Run all items and derive the report, which is saved; raise as `evaluate` does."""
        resumes = self.dir.exists() and (self.config.resume or self.dir.holds_no_result())
        try:
            # First the lock, then everything else: no other process may come in between.
            self.journal = JournalWriter(self.dir.journal) if resumes else self.dir.claim()
            with closing(self.journal), ExitStack() as self._closing:
                self.steering.begin()
                try:
                    self._enter(resumes)
                except BaseException:
                    if not resumes:
                        self.dir.remove_empty()
                    raise
                contain_exits()
                try:
                    await self._run()
                except BaseException as problem:
                    self._stop(problem)
                    raise
                return EvalReport.load(self.dir.path)
        finally:
            self.ledger.close()

    # --- The run directory ---

    def _enter(self, resumes: bool) -> None:
        """Describe the run in its directory; refusals happen here."""
        if resumes:
            self.dir.remove_leftovers()
            self._read_finished()
        self._order_samples()
        self._check_samples()
        self._describe_questions()
        if not self.ledger.finished:
            self.journal.clear()  # of errors only, which are run again
        self._plan_stopping()
        self.info = RunInfo.new(self.described, self.functions, self.progress.total)
        if self.previous is not None:
            self.info.keep_origin(self.previous)
        self.dir.write_info(self.info)
        if self.config.save_turns:
            self.dir.make_turns()

    def _read_finished(self) -> None:
        """Read what a stopped run finished, if the resumed run may continue it."""
        for journal in (self.dir.journal, ahead_path(self.dir.journal)):
            for index, reward in self.ledger.read_journal(journal) if journal.exists() else ():
                self.progress.add(index, reward)
                if self.make_stopping is not None:
                    self._read_before.append((index, reward))
        has_results = self.ledger.finished or self.dir.has_saved_turns()
        if not self.config.resume:
            if has_results:  # of a process that came in between
                raise self.dir.refusal()
            log.warning("%s: replaced, as no item of the run there had an answer", self.dir.path)
        if has_results:
            self.previous = self.dir.read_info()
            before = self.previous
            if self.config.until == NO_CLAIM and "order" in before.config:
                # Its set is finished in the order in which it was begun.
                self.described["order"] = before.config["order"]
                self._cluster = before.config.get("cluster")
                kept = {k: v for k, v in before.config.items() if k not in CLAIM_KEYS}
                before = msgspec.structs.replace(before, config=kept)
            self.dir.check_resumable(before, self.described, self.functions)
        else:  # nothing to keep, so nothing that could fail to belong together
            self.ledger.close()
            self.ledger = Ledger()

    def _order_samples(self) -> None:
        """Put the samples of a run that stops into the order of which each prefix is a sample."""
        if self.described.get("order") == SEEDED:
            samples = list(islice(self.samples, self.config.max_samples))
            self.samples = order_for_looks(
                samples, whole=self.reads_metadata, cluster=self._cluster
            )

    def _plan_stopping(self) -> None:
        """Prepare the looks of a run that stops, and make those that it had made before."""
        if "order" not in self.described:
            return
        limit = sys.maxsize
        if self.make_stopping is not None:
            known = self.samples if isinstance(self.samples, Sequence) else None
            self.stopping = self.make_stopping(known)
            self.stopping.add_known(self._read_before)
            self.progress.describe_looks = self.stopping.describe
            limit = self.stopping.samples_of_look
        self.ahead = AheadJournal(self.journal, limit)
        self._closing.callback(self.ahead.close)
        if not self.ledger.finished:
            self.ahead.clear()
        self.ahead.let_in(limit)

    def _check_samples(self) -> None:
        """Refuse bad samples before anything runs, unless they are a stream."""
        limit = self.config.max_samples
        if isinstance(self.samples, Sequence):
            for _ in self._admit_samples():
                pass
            self.ledger.check_all_seen()
            self.progress.total = len(self.samples[:limit]) * self.config.repeats
        elif limit is not None:
            self.progress.total = limit * self.config.repeats

    def _describe_questions(self) -> None:
        """Describe which fields were taken as questions, unless that is `question` alone."""
        fields = [*self._question_fields]
        if any(field.lower() != "question" for field in fields):
            self.described["question_fields"] = sorted(fields)

    async def _run(self) -> None:
        name = self.described["experiment_name"].partition("/")[0]
        shown = show_progress(self.progress, name, wanted=self.shows_progress)
        with shown, self._naming_what_blocks():
            await self._run_pool()
        self.steering.end()
        if self.item_count == 0:
            raise InvalidInput("there are no samples to evaluate")
        self.ledger.check_all_seen()
        if self.stopping is not None and self.stopping.is_over:
            self.item_count = self.stopping.items
        elif not self.exhausted or self.progress.done != self.item_count:
            raise EvalFailed(
                f"only {self.progress.done} items came to an end; the run is not complete, "
                "and can be resumed"
            )
        self._check_errors()
        if self.stopping is not None:
            self.info.settled = self.stopping.settle(spent=self.progress.done)
            assert self.ahead is not None
            self.ahead.let_in(self.stopping.samples_of_look)
            self.ahead.end_at(self.stopping.samples_of_look)
        if self.inherited is not None:
            self.info.settled = self.inherited
        if self.ahead is not None:
            self.ahead.close()
        self.info.usage_ahead = usage_ahead(self.dir.journal, self.info.config)
        self.journal.sync()
        self._describe_questions()  # of a stream they are known only now
        arguments = self.dir, self.info, self.item_count, self._parquet_from
        await _run_in_thread_to_end(finish, *arguments)
        before = self.previous
        if (
            before is not None
            and before.status == "complete"
            and (before.settled is None) == (self.info.settled is None)
            and self.journal.written == 0
            and before.journal_bytes == self.info.journal_bytes
            and before.journal_hash in (None, self.info.journal_hash)  # None: of an older version
            and before.config.get("pass_threshold") == self.config.pass_threshold
        ):
            self.dir.write_info(before)  # there was nothing left to do: then no byte changes
        shutil.rmtree(self.dir.turns, ignore_errors=True)

    def _stop(self, problem: BaseException) -> None:
        """Record why the run stopped, so that it can be resumed."""
        self.steering.end()
        if self.item_count == 0 and not self.ledger.finished:
            self.dir.remove_empty()  # there was not even a first sample
            return
        if isinstance(problem, EvalFailed):
            problem.run_dir = self.dir.path
        info = self.info
        if self.previous is not None and self.journal.written == 0:
            info = self.previous  # nothing was added to it: it is what it was
        else:
            kind = "" if isinstance(problem, SystemicFailure) else f"{type(problem).__name__}: "
            reason = f"{kind}{printable_error(problem)}"[:2000]
            failed = isinstance(problem, Exception)
            info.status, info.reason = ("failed", reason) if failed else ("interrupted", None)
            info.asked, info.finished = self.progress.total, now()
            info.ended, info.errors = self.progress.done, self.progress.errors
        # A full disk may refuse this too. The journal, which is what counts, is whole anyway.
        with suppress(RunDirectoryError):
            self.dir.write_info(info)

    def _check_errors(self) -> None:
        """Refuse to report a mean where there is none (clause 3)."""
        errors, limit = self.progress.errors, self.config.max_error_rate
        if self.stopping is not None:
            errors = self.stopping.errors  # those ahead of the look are no part of the number
        if has_mean(self.item_count, errors, limit):
            return
        rows = in_order(self.dir.journal, self.config.repeats)
        counts = count_errors((row.sample.id, row.error) for row in rows)
        ways = "Mend the cause, then run the errored items again (--resume, resume=True)"
        if self.errors_in_scoring == errors:
            ways += (
                ", or have `heldout rescore` score the saved answers with a fixed score function, "
                "without calling the model"
            )
        if errors < self.item_count:
            ways += "; or accept the errors (--set max_error_rate=1, max_error_rate=1)"
        raise SystemicFailure(f"{explain_no_mean(self.item_count, errors, counts, limit)}. {ways}")

    # --- The pool ---

    async def _run_pool(self) -> None:
        items = self._items()
        workers = self.config.max_concurrent
        if self.progress.total is not None:
            workers = min(workers, self.progress.total)
        failure: BaseException | None = None
        try:
            async with anyio.create_task_group() as background:
                background.start_soon(self._sync)
                left = items
                while True:
                    async with anyio.create_task_group() as pool:
                        pool.start_soon(self._work, left, pool, workers - 1)
                    # Errors that were asked for again while the last items ran. What a look has
                    # settled does not depend on them any more.
                    self.steering.poll()
                    is_over = self.stopping is not None and self.stopping.is_over
                    if is_over or not self.steering.has_again():
                        break
                    left, self.exhausted = self._items_again(), False
                background.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            failure = group
            while isinstance(failure, BaseExceptionGroup):
                failure = failure.exceptions[0]
        if isinstance(failure, ContainedExit):
            failure = failure.__cause__
        if failure is not None:
            raise failure  # out here, so that it is as if there were no group
        # A stream that a look stopped is read on as far as the journal has samples of it.
        while not self.ledger.has_all_seen and next(items, None) is not None:
            pass

    @contextmanager
    def _naming_what_blocks(self) -> Iterator[None]:
        """Name the function that kept the event loop for more than a tenth of the run."""
        clock, begun = loop_clock(), time.perf_counter()
        before = {name: replace(spent) for name, spent in clock.by_function.items()}
        try:
            yield
        finally:
            whole = time.perf_counter() - begun
            spent = {
                name: Blocking(after.seconds - old.seconds, after.steps - old.steps)
                for name, after in clock.by_function.items()
                for old in (before.get(name, Blocking()),)
            }
            blocked = sum(part.seconds for part in spent.values())
            # Once may be an import; and what takes a moment only keeps nobody waiting.
            if spent and blocked > max(whole * MAX_BLOCKED, 1.0):
                worst, most = max(spent.items(), key=lambda item: item[1].seconds)
                if most.steps > 1:
                    log.warning(
                        "%s: the event loop was blocked for %.0f%% of the run (%.1f of %.1f s), "
                        "%.1f s of it by %s, in %d steps. Meanwhile no other item goes on; none is "
                        "charged with it. Make the function async, and await its slow part in a "
                        "process (anyio.to_process.run_sync) or, if it may run outside the main "
                        "thread, in a thread (anyio.to_thread.run_sync)",
                        self.dir.path,
                        *(100 * blocked / whole, blocked, whole, most.seconds, worst, most.steps),
                    )

    async def _sync(self) -> None:
        while True:
            await anyio.sleep(SYNC_SECONDS)
            await anyio.to_thread.run_sync(self.journal.sync)
            if self.ahead is not None:
                await anyio.to_thread.run_sync(self.ahead.sync)
            self.steering.poll()
            self.progress.held_back = self.steering.describe()

    async def _work(self, items: Iterator[Item], pool: TaskGroup, remaining: int) -> None:
        if remaining and not self.exhausted:  # one starts the next, if anything is left for it
            pool.start_soon(self._work, items, pool, remaining - 1)
        stopping = self.stopping
        try:
            for item in items:
                if stopping is not None and not await stopping.admits(item):
                    return
                # After that: who waits for a look must not keep an item of it from beginning.
                await self.steering.admit()
                if stopping is not None and stopping.is_over:  # it ended while this was held back
                    self.steering.release()
                    return
                self.progress.in_flight += 1
                result, problem = await self.run_item(item)
                self.progress.in_flight -= 1
                self.steering.release()
                self._record(item, result, problem)
                # A policy that never waits would starve the event loop: no Ctrl-C, no fsync, and
                # every timeout that was ever set kept in memory.
                if time.perf_counter() - self._yielded_at > YIELD_SECONDS:
                    await anyio.lowlevel.checkpoint()
                    self._yielded_at = time.perf_counter()
        except (KeyboardInterrupt, SystemExit) as problem:
            raise ContainedExit.of(problem) from problem  # asyncio would end the loop with it

    def _admit_samples(self) -> Iterator[tuple[int, bytes]]:
        refuses_copies = self.stopping is not None and self._is_stream
        for index, sample in enumerate(islice(self.samples, self.config.max_samples)):
            content = self.ledger.admit(index, sample)
            self._question_fields.update(dict.fromkeys(self.check_question(sample)))
            if refuses_copies or (self.shows_progress and not self.progress.has_copies):
                whole = self.reads_metadata
                self.progress.has_copies = self.ledger.is_copy(sample, whole=whole)
                if refuses_copies and self.progress.has_copies:
                    raise InvalidInput(
                        f"sample {sample.id!r} of the stream has the content of an earlier one, "
                        "and such samples must be one step of a run that stops: give a limit "
                        "(--limit, max_samples), so that they run side by side, or leave out copies"
                    )
            yield index, content

    def _items(self) -> Iterator[Item]:
        """Yield the items that are left. All workers pull from this one generator."""
        if isinstance(self.samples, Sequence):  # all are admitted already
            contents: Iterable[tuple[int, bytes]] = enumerate(
                map(encode_sample, islice(self.samples, self.config.max_samples))
            )
        else:
            contents = self._admit_samples()
        samples = 0
        for index, content in contents:
            samples = index + 1
            yield from self._take_again()
            for repeat in range(self.config.repeats):
                self.item_count += 1
                sample = decode_sample(content)
                if not self.ledger.is_finished(sample.id, repeat):
                    yield Item(index, sample, repeat, content)
        yield from self._items_again()
        self.progress.total = self.item_count  # known at last, where it was not
        if self.stopping is not None:
            self.stopping.use_up(samples)

    def _items_again(self) -> Iterator[Item]:
        """Yield what is to be run again once nothing else is left."""
        yield from self._take_again()
        self.exhausted = True

    def _take_again(self) -> Iterator[Item]:
        """Yield the items that have errored and were asked for again."""
        while (again := self.steering.take_again()) is not None:
            yield replace(again, sample=decode_sample(again.content), is_again=True)

    def turn_file(self, item: Item) -> TurnFile:
        """Name the file that holds an item's turns until its line is in the journal."""
        path = self.dir.turns / f"{item.index}-{item.repeat}.json"
        return TurnFile(path, self.info.id or "", decode_sample(item.content))

    def _record_weight_versions(self) -> None:
        """Write a version of the served weights to run.json when it is first seen.

        Before the item's line: a process that is killed later must not leave answers of two
        versions that look like those of one.
        """
        known = self.info.weight_versions
        new = [name for name in self.progress.weight_versions if name not in known]
        # A server that says another one each time would have run.json written for each item.
        if not new or len(known) >= MAX_WEIGHT_VERSIONS:
            return
        known += new[: MAX_WEIGHT_VERSIONS - len(known)]
        self.dir.write_info(self.info)
        if len(known) > 1:
            log.warning("%s: %s", self.dir.path, describe_weight_versions(known))

    def _record(self, item: Item, result: EvalResult, problem: BaseException | None) -> None:
        """Write the item's line, count it, and end the run if no further item can succeed."""
        self._record_weight_versions()
        if isinstance(problem, ResumeMismatch):
            raise problem  # without a line: its saved turns are kept for the right environment
        journal = self.journal if self.ahead is None else self.ahead
        try:
            journal.append(item.index, result, item.content)
        except InvalidInput as refused:  # what JSON cannot hold: an error of this item
            problem = refused
            result = error_result(item, "store", printable_error(refused))
            journal.append(item.index, result, item.content)
        if self.config.save_turns:
            self.turn_file(item).remove()
        if item.is_again:
            self.progress.mend(result.score.reward, ok=result.ok)
            self.errors_in_scoring -= item.failed_in_scoring
        else:
            self.progress.add(item.index, result.score.reward, ok=result.ok)
        self.progress.add_others(result.other_usage)
        if self.stopping is not None and self.ahead is not None:
            self.stopping.add(item.index, result.score.reward if result.ok else None)
            self.ahead.let_in(self.stopping.samples_of_look)
        if result.error is None:
            self.unreachable = None
            if not self._is_numbered:
                self._is_numbered = True
                if self.dir.draw_number(self.info):
                    self.dir.write_info(self.info)
            return
        error = f"sample {item.sample.id!r}: {result.error}"
        if self.progress.errors == 1:
            line = printable(error.replace("\n", "\\n"))
            log.warning("%s: the first item that errored: %s", self.dir.path, line)
        self.errors_in_scoring += result.error_stage == "score_fn"
        in_scoring = result.error_stage == "score_fn"
        if "order" not in self.described:  # a look has counted it, and cannot count it anew
            self.steering.keep_errored(replace(item, failed_in_scoring=in_scoring))
        if self._is_fatal(problem):
            raise SystemicFailure(
                f"the model cannot answer any request, so the eval was stopped: {problem}"
            ) from problem
        if self._is_fatal(root_of(problem)):
            raise SystemicFailure(
                "the model that the score function calls cannot answer any request, so the eval "
                f"was stopped: {problem}"
            ) from problem
        if self.config.on_error == "raise":
            text = f"{error} (on_error='raise' stops at the first error)"
            raise ItemFailed(text, stage=result.error_stage) from problem
        if not isinstance(problem, Unreachable):
            self.unreachable = None
        elif self.unreachable is not None:
            self.unreachable += 1
            if self.unreachable >= UNREACHABLE_LIMIT:
                raise SystemicFailure(
                    f"no item got an answer from the endpoint, so the eval was stopped after "
                    f"{self.unreachable}: {problem}"
                ) from problem

    def _is_fatal(self, problem: BaseException | None) -> bool:
        """Return whether no other request will be answered either."""
        # An endpoint may not know that the model has answered: before the run was resumed, or
        # another worker's.
        has_answer = self.progress.done > self.progress.errors
        return isinstance(problem, FatalEndpointError) and not (
            has_answer and isinstance(problem, ModelRefused)
        )


class Evaluation(EvalRun):
    """A run in which an endpoint answers: what `evaluate` makes."""

    def __init__(
        self,
        definition: EvalDefinition,
        config: EvalConfig,
        endpoint: Endpoint,
        *,
        parquet_from: int = 0,
    ) -> None:
        """Make a run that has not begun."""
        self.definition, self.endpoint = definition, endpoint
        factory = definition.environment_factory
        self.reads_metadata = reads_metadata(factory)
        if rates_continuations(factory):
            check_rates(endpoint)
        own, documented = functions_of(definition), ["environment_factory"]
        functions: dict[str, Any] = {
            name: describe_callable(function, docstrings=name in documented)
            for name, function in own.items()
        }
        functions[PARTS] = describe_parts(own, docstrings=documented)
        described = config_to_dict(config, endpoint.describe())
        if equal := count_equal_attempts(described, functions):
            log.warning(
                "%s attempts at each sample are the same request, made again: at temperature 0 "
                "nothing else differs, so pass@%s and pass^%s say no more than one attempt; set "
                "sampling.temperature",
                *(equal, equal, equal),
            )
        super().__init__(
            definition.samples, config, described, functions, parquet_from=parquet_from
        )

    def check_question(self, sample: Sample) -> Sequence[str]:
        """Refuse a sample that nothing can be asked of; return the field of its question."""
        return check_questions([sample], self.definition.prepare_messages)

    def run_item(self, item: Item) -> Awaitable[ItemResult]:
        """Roll out and score one item. Whatever goes wrong becomes its error (clause 5)."""
        return attempt_item(
            item,
            self.definition,
            self.config,
            self.endpoint,
            self.progress,
            turn_file=self.turn_file(item) if self.config.save_turns else None,
        )


def error_result(item: Item, stage: str, message: str) -> EvalResult:
    """Make the result of an item that has nothing left but its error."""
    return EvalResult(
        item.sample.id,
        item.sample,
        Trajectory((), Stop("error")),
        repeat=item.repeat,
        error=f"{stage}: {message}",
        error_stage=stage,
    )


async def attempt_item(
    item: Item,
    definition: EvalDefinition,
    config: EvalConfig,
    endpoint: Endpoint,
    progress: RunProgress,
    *,
    turn_file: TurnFile | None = None,
) -> ItemResult:
    """Roll out and score one item, in whatever process it runs."""
    sample, state = item.sample, AttemptState()
    assert config.max_turns is not None  # whoever makes the run has asked `turn_limit`
    with bind_attempt(endpoint, item.index, item.repeat) as complete:
        sampling = config.sampling.for_item(sample.id, item.repeat)
        rates = rating_function(endpoint, complete)
        policy = EndpointPolicy(complete, sampling, config.retries, progress, state, rates)
        attempt = await Attempt(
            sample,
            policy,
            definition,
            config.max_turns,
            config.token_budget,
            config.timeout,
            turn_file=turn_file,
            state=state,
        ).run()
    error = attempt.error
    if attempt.timed_out and policy.last_failure is not None:
        error = f"{error}; the last answer was: {policy.last_failure}"
    trajectory = replace(attempt.trajectory, timing=attempt.timing)
    score = attempt.score if attempt.score is not None else Score()
    result = EvalResult(
        sample.id,
        sample,
        trajectory,
        score,
        {},
        item.repeat,
        error,
        attempt.error_stage,
        attempt.other_usage,
        state.tools,
    )
    return result, attempt.problem


async def _run_in_thread_to_end(function: Callable[..., object], *args: Any) -> None:
    """Run in a thread and wait for it even if cancelled: it must not write after this returns.

    anyio's shield does not hold off asyncio's own `task.cancel()`, which is what Ctrl-C does there.
    """
    outcome: list[tuple[object, BaseException | None]] = []
    done, wake = anyio.Event(), waker()

    def work() -> None:
        outcome.append(capture(partial(function, *args), BaseException))
        wake(done.set)

    thread = threading.Thread(target=work, name="heldout-finish")
    interruption: BaseException | None = None
    with anyio.CancelScope(shield=True):
        while not done.is_set():
            try:
                # Under trio Ctrl-C may be raised in the middle of `start`, which has started it.
                if thread.ident is None and thread not in threading.enumerate():
                    thread.start()
                await done.wait()
            except (KeyboardInterrupt, anyio.get_cancelled_exc_class()) as raised:
                interruption = raised
    unwrap_outcome(outcome)
    if interruption is not None:
        raise interruption


__all__ = ["EnvironmentFactory", "PrepareMessages", "ScoreFn", "evaluate"]
