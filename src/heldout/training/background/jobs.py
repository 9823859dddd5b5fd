"""The evals of a dispatcher, as one table: which are queued, which run, and how each ends.

    QUEUED -> RUNNING -> ENDING -> ENDED -> JUDGED

An eval joins the table with its write-ahead line and leaves it at its end; one of a `PeriodicEval`
stays until it has its verdict. Whoever moves it to ENDING writes its last line, and nobody else
does: a result that comes after that is not recorded.

Each eval has one limit. An eval of weights is limited by the snapshots of its pool, since those are
what takes memory; the evals of the user's own functions share `max_pending` slots.

Async evaluators run in an event loop, plain ones and snapshots in daemon threads. A result goes to
the curve as soon as it is there, and to loggers with its verdict.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

import anyio
import msgspec

from heldout._core.aio import Threads, is_async, settle
from heldout._core.checks import check_count
from heldout._live.isolation import thread_local_capture_mode
from heldout.errors import InvalidInput
from heldout.training.background.threads import ChangeCounter, EventLoop, TrainerThread, Waits
from heldout.training.curve.curve_file import CurveFile
from heldout.training.curve.points import SAME_WEIGHTS, CurvePoint, skip_of
from heldout.training.curve.publishing import EvaluatorResult, PointLog, judge_by_default, point_of
from heldout.training.measuring import Known
from heldout.training.reasons import describe

if TYPE_CHECKING:
    from heldout.training.background.dispatcher import AsyncEvalDispatcher

log = logging.getLogger("heldout")

RETRY_SECONDS = 0.5
"""How often to look for a free snapshot."""

Evaluator = Callable[..., EvaluatorResult | Known | Awaitable[EvaluatorResult]]


class Snapshot(Protocol):
    """Weights of a step: a `WeightSnapshot`, or those sent to a worker."""

    @property
    def weights(self) -> str | None:
        """Hash of the weights, if it is known here."""

    def in_use(self) -> AbstractContextManager[None]:
        """Use it inside this context."""
        ...

    def why_changed(self) -> str | None:
        """Return why its weights are no longer those of its step, if they are not."""

    def release(self) -> None:
        """Free its memory."""


TakeSnapshot = Callable[[], Snapshot | None]


class Pool(Protocol):
    """What snapshots are taken from: a `SnapshotPool`, or an `EvalWorker`."""

    size: int
    """How many there are at most."""

    def say_full(self) -> str:
        """Say that all snapshots were in use, and which setting has more."""
        ...


class NotCopyable(InvalidInput):
    """A model has no snapshots, so it is evaluated while training waits."""


# --- One eval -------------------------------------------------------------------------------------


class JobState(IntEnum):
    """How far an eval has come. It only moves forward, with the table's lock held."""

    NEW = 0
    """It waits for a slot."""
    QUEUED = 1
    RUNNING = 2
    ENDING = 3
    """Its last line is being written, by one thread."""
    ENDED = 4
    JUDGED = 5
    """The trainer's thread has added the verdict."""


@dataclass(eq=False, kw_only=True)
class Scheduled:
    """A scheduled eval, as `schedule` returns it."""

    step: int
    name: str
    point: CurvePoint | None = None
    """The point, once the eval has ended; that of a `PeriodicEval` gets its verdict later, in the
    trainer's thread."""
    is_new: bool = True
    """Whether the point was measured now, not by an earlier attempt."""
    dispatcher: AsyncEvalDispatcher = field(repr=False)
    """Whoever runs it."""
    state: JobState = field(default=JobState.NEW, repr=False)

    def done(self) -> bool:
        """Whether it has ended, in a result or in a skip."""
        return self.state >= JobState.ENDED

    def result(self, timeout: float | None = None) -> CurvePoint | None:
        """Wait for the eval, and return its point.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Returns:
            The point; None if the eval has not ended in time.

        Raises:
            InvalidInput: Called in the event loop that the eval runs in.
        """
        if not self.done() and timeout != 0:
            if self.dispatcher.in_event_loop:
                raise InvalidInput(
                    "result() would block the event loop that the eval runs in; "
                    "`await dispatcher.adrain()` first"
                )
            self.dispatcher.wait_for([self], timeout)
        return self.point


@dataclass(eq=False, kw_only=True, repr=False)
class EvalJob(Scheduled):
    """A scheduled eval, with what the dispatcher needs of it."""

    evaluator: Evaluator | None
    pending: CurvePoint
    """Its write-ahead line."""
    file: CurveFile | None
    take_snapshot: TakeSnapshot | None = None
    pool: Pool | None = None
    """The pool that its snapshot belongs to: only that pool can reuse it once released."""
    snapshot: Snapshot | None = None
    waits_until: float | None = None
    """If given, training waits for a slot until then (`time.monotonic`), whatever `when_full`
    is."""
    is_awaited: bool = False
    """Whether training waits for its result, too: nothing is written ahead, and no eval gives way
    to it."""
    is_retry: bool = False
    """Whether it was lost earlier and is rerun; if it fails, it stays pending."""
    awaits_verdict: bool = False
    """Whether a `PeriodicEval` judges its result, before loggers get it."""
    weights: str | None = None
    """Hash of the snapshot's weights."""
    scope: anyio.CancelScope | None = None
    """Set while it runs, and only used in its event loop: cancelling a scope after its exit would
    cancel whatever runs next."""

    @property
    def is_in_flight(self) -> bool:
        """Whether it has joined the table and has not ended."""
        return JobState.QUEUED <= self.state < JobState.ENDED

    @property
    def eval_key(self) -> tuple[Any, str]:
        """Curve and name, which identify the eval that runs at many steps."""
        return (self.file, self.name)

    def write_ahead(self, point: CurvePoint) -> None:
        """Append a line that is not its result, unless training waits for that."""
        if self.file is not None and not self.is_awaited:
            self.file.append(point)

    def cancel(self) -> None:
        """Cancel it, in its event loop."""
        if self.scope is not None:
            self.scope.cancel()

    def free(self) -> None:
        """Free its memory: the snapshot, and what the evaluator holds."""
        snapshot, self.snapshot = self.snapshot, None
        self.evaluator = self.take_snapshot = None
        if snapshot is not None:
            snapshot.release()


# --- All of them ----------------------------------------------------------------------------------

WhenFull = Literal["wait", "skip", "newest"]

WAIT = "wait"
"""In place of a reason: the eval has to wait for a slot."""


class JobTable:
    """The evals of one dispatcher. Thread-safe.

    Args:
        changes: Its lock is held while the table is read or changed. `join` is called with it
            held, since whether there is a slot, and who gives way, is decided in one go.
        max_pending: How many evals without a snapshot may be in flight, running or queued.
        when_full: As for `AsyncEvalDispatcher`.
        max_running: How many run at once, of all evals; None for no limit beyond those.

    Raises:
        InvalidInput: An argument is invalid.
    """

    def __init__(
        self,
        changes: ChangeCounter,
        max_pending: int,
        when_full: WhenFull,
        max_running: int | None,
    ) -> None:
        if when_full not in get_args(WhenFull):
            raise InvalidInput(f"when_full must be 'wait', 'skip' or 'newest', got {when_full!r}")
        check_count("max_pending", max_pending, low=1)
        check_count("max_running", max_running, low=1, optional=True)
        self._changes = changes
        self._max_pending, self._max_running = max_pending, max_running
        self._when_full: WhenFull = when_full
        self._jobs: list[EvalJob] = []
        """Those in flight, and those that wait for their verdict, in the order they came in."""

    @property
    def waits(self) -> bool:
        """Whether an eval waits for a slot if there is none."""
        return self._when_full == "wait"

    @property
    def in_flight(self) -> list[EvalJob]:
        """Those that run, then those that are queued."""
        with self._changes.lock:
            jobs = [job for job in self._jobs if job.is_in_flight]
        return sorted(jobs, key=lambda job: job.state == JobState.QUEUED)

    @property
    def _queued(self) -> list[EvalJob]:
        return [job for job in self._jobs if job.state == JobState.QUEUED]

    # --- From one state to the next ---

    def join(self, job: EvalJob, dropped: list[tuple[EvalJob, int]]) -> str | None:
        """Queue an eval with its snapshot and its write-ahead line, if there is a slot.

        Args:
            job: The eval.
            dropped: Those that give way are added here, claimed, with the step of the newer one of
                their name.

        Returns:
            None if it has a slot; WAIT if it has to wait for one; otherwise why it gets none.

        Raises:
            NotCopyable: There can be no snapshot of its model.
        """
        try:
            reason = self._why_no_slot(job)
            if reason is None and job.take_snapshot is not None:
                reason = self._take_snapshot(job, job.take_snapshot, dropped)
            if reason is None:
                # Not before it is sure to be queued: else both would be lost.
                if job.pool is None and self._is_full:
                    self._drop(self._replaceable(job), dropped)
                self._jobs.append(job)
                job.state = JobState.QUEUED
                job.write_ahead(job.pending)
        except BaseException:  # Ctrl-C: nothing else would ever take it out
            self._leave(job)
            raise
        if reason == WAIT and job.waits_until is not None and time.monotonic() >= job.waits_until:
            if job.is_awaited or self.waits:
                return "there was no free slot for it in time"
            return self._say_full(job)
        return reason

    def start_next(self) -> list[EvalJob]:
        """Return the evals that are to run now."""
        with self._changes.lock:
            return [job for job in self._queued if self._try_to_start(job)]

    def claim(self, job: EvalJob) -> bool:
        """Let the caller, and nobody else, write how an eval ends; False if another one does."""
        with self._changes.lock:
            if job.state >= JobState.ENDING:
                return False
            job.state = JobState.ENDING
            return True

    def end(self, job: EvalJob, point: CurvePoint | None, *, is_new: bool = True) -> None:
        """Note how an eval has ended, once its line is written."""
        with self._changes.lock:
            job.point, job.is_new, job.state = point, is_new, JobState.ENDED
            if job.awaits_verdict and is_new and point is not None and point.has_result:
                job.free()
            else:
                self._leave(job)
            self._changes.notify()

    def judge(self, job: Scheduled, point: CurvePoint) -> bool:
        """Note the verdict on an eval that has ended; False if it was not waited for."""
        with self._changes.lock:
            job.point, job.state = point, JobState.JUDGED
            was_awaited = job in self._jobs
            self._jobs = [other for other in self._jobs if other is not job]
            return was_awaited

    def take_unjudged(self) -> list[EvalJob]:
        """Remove the evals whose verdict is not waited for any longer, and return them."""
        with self._changes.lock:
            ended = [job for job in self._jobs if job.state == JobState.ENDED]
            self._jobs = [job for job in self._jobs if job not in ended]
            return ended

    def _leave(self, job: EvalJob) -> None:
        self._jobs = [other for other in self._jobs if other is not job]
        job.free()

    def _try_to_start(self, job: EvalJob) -> bool:
        running = [other for other in self.in_flight if other.state != JobState.QUEUED]
        if self._max_running is not None and len(running) >= self._max_running:
            return False
        if self._when_full == "newest":
            # Only what has not started can give way to something newer: one slot is for that.
            limit = self._max_pending if job.pool is None else job.pool.size
            if sum(other.pool is job.pool for other in running) >= max(1, limit - 1):
                return False
        job.state = JobState.RUNNING
        return True

    # --- Slots ---

    @property
    def _is_full(self) -> bool:
        """Whether there is no slot for another eval without a snapshot."""
        return sum(job.pool is None for job in self.in_flight) >= self._max_pending

    def _why_no_slot(self, job: EvalJob) -> str | None:
        if job.pool is not None or not self._is_full:
            return None
        if self._waits_for(job):
            return WAIT
        if self._when_full == "newest" and any(other.pool is None for other in self._queued):
            return None  # what is queued gives way, or is the newest of another eval and stays
        return self._say_full(job)

    def _waits_for(self, job: EvalJob) -> bool:
        return self._when_full == "wait" or job.waits_until is not None

    def _say_full(self, job: EvalJob) -> str:
        """Say why an eval has no slot, and what would give it one."""
        what = f"{self._max_pending} evals were in flight (max_pending={self._max_pending})"
        if job.pool is not None:
            what = job.pool.say_full()
        return f'{what}; with AsyncEvalDispatcher(when_full="wait") training waits instead'

    def _replaceable(self, job: EvalJob) -> tuple[EvalJob, int] | None:
        """Find the oldest queued job with the same limit that has a newer one of its eval.

        Args:
            job: The job that is being queued, which may be that newer one.

        Returns:
            The job, and the step of the newest job of its eval.
        """
        newest = {other.eval_key: other for other in (*self._queued, job)}
        for other in self._queued:
            newer = newest[other.eval_key]
            if newer is not other and other.pool is job.pool:
                return other, newer.step
        return None

    def _take_snapshot(
        self, job: EvalJob, take: TakeSnapshot, dropped: list[tuple[EvalJob, int]]
    ) -> str | None:
        try:
            job.snapshot = take()
            if job.snapshot is None and self._when_full == "newest" and not job.is_awaited:
                self._drop(self._replaceable(job), dropped)
                job.snapshot = take() if dropped else None
        except NotCopyable:
            raise
        except Exception as problem:  # noqa: BLE001 - the reason of the skip
            return f"snapshot: {describe(problem)}"
        if job.snapshot is not None:
            return None
        if not any(other.pool is job.pool for other in self.in_flight):
            return "all snapshots were in use, but by no eval in flight here"
        return WAIT if self._waits_for(job) else self._say_full(job)

    def _drop(
        self,
        replaceable: tuple[EvalJob, int] | None,
        dropped: list[tuple[EvalJob, int]],
    ) -> None:
        if replaceable is not None:
            dropped.append(replaceable)
            self.claim(replaceable[0])
            self._leave(replaceable[0])


# --- Running them, and how they end ---------------------------------------------------------------


class JobRunner:
    """Runs the evals of a table.

    Args:
        changes: Its lock is held while the table is read or changed.
        table: The evals.
        points: Sends points to loggers.
        names: Keys in use: those of the run directory, whichever dispatcher has it.
        max_seconds: Time limit of one eval.
    """

    def __init__(
        self,
        changes: ChangeCounter,
        table: JobTable,
        points: PointLog,
        names: set[tuple[str, str, int]],
        max_seconds: float | None,
    ) -> None:
        self._changes, self._table, self._max_seconds = changes, table, max_seconds
        self.points, self.names = points, names
        self.threads = Threads()
        self.loop: EventLoop[EvalJob] = EventLoop(self._run, self._on_breakdown)
        self.latest_step = 0
        """The current training step."""
        self.is_closed = False

    def _start_next(self) -> None:
        """Run the queued evals that there is room for."""
        for job in self._table.start_next():
            self.loop.spawn(job)

    def queue_when_free(self, job: EvalJob, trainer: TrainerThread, *, is_sync: bool) -> Waits:
        """Queue a job once there is a slot; without one, it is a skip.

        Args:
            job: The job.
            trainer: Runs what evals need in the trainer's thread, meanwhile.
            is_sync: Whether this thread waits, which must not be that of the event loop.
        """
        self.loop.start_thread()
        retries = job.take_snapshot is not None or job.waits_until is not None
        until = math.inf if job.waits_until is None else job.waits_until
        dropped: list[tuple[EvalJob, int]] = []
        while True:
            seen = self._changes.count
            reason = self._try_to_queue(job, dropped)
            if reason != WAIT:
                break
            if is_sync and self.loop.is_here:
                pending = len(self._table.in_flight)
                reason = (
                    f"{pending} evals were pending, and a plain call cannot wait in the event loop "
                    "that they run in (if you schedule it yourself, use "
                    "`await aschedule(…)`)"
                )
                break
            trainer.run_calls(until)
            yield seen, RETRY_SECONDS if retries else None
        if reason is not None:
            self.skip(job, reason)
        for other, step in dropped:
            self._end_dropped(other, f"replaced by the eval of step {step} (when_full)")
        self._start_next()

    def _try_to_queue(self, job: EvalJob, dropped: list[tuple[EvalJob, int]]) -> str | None:
        with self._changes.lock:
            if job.file is None or job.pending.session == job.file.session:
                self.latest_step = max(self.latest_step, job.step)
            if self.is_closed:
                return "the dispatcher was closed"
            if not self.loop.is_open:
                return "no event loop could be started for it"
            try:
                return self._table.join(job, dropped)
            except BaseException:
                reason = "replaced by an eval that was interrupted (when_full)"
                for other, _ in dropped:
                    self._end_dropped(other, reason)
                raise

    async def _run(self, job: EvalJob) -> None:
        began, result = time.monotonic(), None
        problem: BaseException | None = None
        evaluator, job.evaluator = job.evaluator, None  # it may hold weights; no longer than needed
        try:
            with anyio.move_on_after(self._max_seconds) as limit:
                job.scope = limit
                if job.state >= JobState.ENDING or evaluator is None:  # abandoned before it began
                    return
                if job.snapshot is not None:
                    result = await self.threads.run(self._evaluate_snapshot, job, evaluator)
                elif is_async(evaluator):
                    result = await settle(evaluator())
                else:
                    result = await settle(await self.threads.run(_call_plain, evaluator))
            if limit.cancelled_caught:
                problem = InvalidInput(f"not finished after max_seconds={self._max_seconds}")
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                self.abandon([job], "it was cancelled")
                raise
            # Not by us: something that it awaited was. To raise that would end its siblings, too.
            problem = InvalidInput("something that it waited for was cancelled")
        except KeyboardInterrupt as interrupted:
            if not self.loop.has_thread:
                raise  # it is the trainer's
            problem = interrupted
        except BaseException as raised:  # noqa: BLE001 - the reason of the skip
            problem = raised
        finally:
            job.scope = None
        del evaluator
        # In a thread: the disk, loggers and large reports would hold up the loop, and the trainer.
        seconds = time.monotonic() - began
        try:
            await self.threads.run(self._finish, job, result, problem, seconds)
        except Exception as broken:
            if job.state >= JobState.ENDING:  # its line is written, or could not be
                log.error("eval %r of step %s", job.name, job.step, exc_info=broken)
            else:  # no thread can be started: the process ends
                self._finish(job, result, problem, seconds)
        finally:
            result = problem = None  # else it and its traceback hold each other, and the weights

    def _evaluate_snapshot(self, job: EvalJob, evaluator: Evaluator) -> Any:
        """Evaluate a snapshot in a thread. An abandoned eval keeps it: it is still being read."""
        with self._changes.lock:
            snapshot, job.snapshot = job.snapshot, None
        if snapshot is None:
            raise InvalidInput("its snapshot was released before it began")
        try:
            with snapshot.in_use():
                job.weights = snapshot.weights
                if job.weights is not None:
                    # So that `finish` can tell whether it is given the same weights.
                    job.write_ahead(msgspec.structs.replace(job.pending, weights=job.weights))
                result = evaluator(snapshot)
                if (reason := snapshot.why_changed()) is not None:
                    raise InvalidInput(reason)
                return result
        finally:
            snapshot.release()
            self._changes.notify()

    # --- The end of an eval ---

    def _finish(
        self, job: EvalJob, result: Any, problem: BaseException | None, seconds: float
    ) -> None:
        if not self._table.claim(job):
            return
        point: CurvePoint | None = None
        is_new = not isinstance(result, Known)
        try:
            if isinstance(result, Known):
                point = result.point
                follows = job.pending.follows if point is None else job.step
                skip = skip_of(job.pending, SAME_WEIGHTS, seconds)
                job.write_ahead(msgspec.structs.replace(skip, follows=follows))
            else:
                point, problem = self._append_end(job, result, problem, seconds)
        finally:
            self._end(job, point, is_new=is_new)
        # After its line: a log handler may raise.
        if problem is not None:
            log.warning("eval %r of step %s failed", job.name, job.step, exc_info=problem)
        elif is_new and point is not None and point.skipped is not None:
            log.warning("eval %r of step %s is skipped: %s", job.name, job.step, point.skipped)

    def _append_end(
        self, job: EvalJob, result: Any, problem: BaseException | None, seconds: float
    ) -> tuple[CurvePoint, BaseException | None]:
        """Write what an evaluator returned; a skip with the reason if it is not a result."""
        if problem is None:
            run_dir = None if job.file is None else job.file.run.path
            try:
                point = point_of(result, job.pending, seconds, run_dir)
                return self._append(job, point), None
            except Exception as raised:  # noqa: BLE001 - what it returned is the user's
                problem = raised.with_traceback(None)
        skip = skip_of(job.pending, describe(problem), seconds, retry=job.is_retry)
        return self._append(job, skip), problem

    def skip(self, job: EvalJob, reason: str) -> None:
        """End an eval that does not run."""
        if self._table.claim(job):
            self._end_dropped(job, reason)

    def _end_dropped(self, job: EvalJob, reason: str) -> None:
        """End an eval that was claimed when it gave way to another one."""
        skip = skip_of(job.pending, reason, retry=job.is_retry)
        self._end(job, self._append(job, skip))
        log.warning("eval %r of step %s is skipped: %s", job.name, job.step, reason)

    def abandon(self, jobs: Sequence[EvalJob], reason: str) -> list[EvalJob]:
        """Turn unfinished evals into skips that stay pending."""
        ours = [job for job in jobs if self._table.claim(job)]
        for job in ours:
            self.loop.call(job.cancel)
            self._end(job, self._append(job, skip_of(job.pending, reason, retry=True)))
        for job in ours:
            log.warning("eval %r of step %s is abandoned: %s", job.name, job.step, reason)
        return ours

    def _on_breakdown(self) -> None:
        self.abandon(self._table.in_flight, "its event loop has ended")

    def _append(self, job: EvalJob, point: CurvePoint) -> CurvePoint:
        """Write the point of an eval, and log it unless a verdict is still to come."""
        lag = max(0, self.latest_step - point.step)
        weights = point.weights or job.weights
        point = msgspec.structs.replace(point, lag_steps=lag, weights=weights)
        if job.file is not None:
            if not job.awaits_verdict:
                point = judge_by_default(point, job.file)
            job.file.append(point)
            if self.is_closed:
                job.file.close()
        if not (job.awaits_verdict and point.has_result):
            self.points.log(point, job.file)
        return point

    def _end(self, job: EvalJob, point: CurvePoint | None, *, is_new: bool = True) -> None:
        if point is None or not point.has_result:
            with self._changes.lock:
                self.names.discard(job.pending.key)
        self._table.end(job, point, is_new=is_new)
        self._start_next()

    def close(self, logger_seconds: float) -> None:
        """Send loggers what still waits for a verdict, and close them."""
        for job in self._table.take_unjudged():  # the trainer's thread has not come back for them
            if job.point is not None:
                self.points.log(job.point, job.file)
        self.points.close(logger_seconds)


def _call_plain(evaluator: Evaluator) -> Any:
    """Call a plain evaluator in a thread, without disturbing CUDA graph captures of training."""
    with thread_local_capture_mode():
        return evaluator()


# --- What became of those that were waited for ----------------------------------------------------


class UnfinishedEval(NamedTuple):
    """An eval that ended without a result."""

    name: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """What happened to the evals that were pending when `drain` began."""

    finished: list[tuple[str, int]] = field(default_factory=list)
    """(name, step)."""
    skipped: list[UnfinishedEval] = field(default_factory=list)
    abandoned: list[UnfinishedEval] = field(default_factory=list)
    """Evals that had not ended in time. A result that comes later is not recorded."""
    seconds: float = 0.0

    def __await__(self) -> Generator[Any, None, Drained]:
        """Return it at once, so that `await dispatcher.drain()` may be written in any loop."""

        async def itself() -> Drained:
            return self

        return itself().__await__()


class DrainToAwait(Drained):
    """What `drain` returns in the event loop that evals run in, where it cannot wait by itself."""

    __slots__ = ("_drain",)
    _drain: Coroutine[Any, Any, Drained]

    def __init__(self, drain: Coroutine[Any, Any, Drained]) -> None:
        object.__setattr__(self, "_drain", drain)  # Drained is frozen

    def __await__(self) -> Generator[Any, None, Drained]:
        """Wait for the evals, without blocking the loop."""
        return self._drain.__await__()

    def __getattr__(self, name: str) -> Any:
        if name not in Drained.__dataclass_fields__:
            raise AttributeError(name)
        self._drain.close()
        raise InvalidInput(
            "drain() would block the event loop that the evals run in; there, it must be awaited: "
            "`await dispatcher.drain()`"
        )


def log_wait(jobs: Sequence[EvalJob], timeout: float | None, *, because: str = "") -> None:
    """Log that training waits for evals, if it does."""
    left = [job for job in jobs if not job.done()]
    if left:
        log.warning(
            "%swaiting %s for evals: %s; Ctrl-C abandons them",
            because,
            "without limit" if timeout is None else f"up to {timeout:g} s",
            ", ".join(f"{job.name} of step {job.step}" for job in left[:5]),
        )


def sum_up_drain(jobs: Sequence[EvalJob], abandoned: Sequence[EvalJob], seconds: float) -> Drained:
    """Say what became of evals that were waited for."""
    drained = Drained(seconds=seconds)
    for job in jobs:
        reason = "" if job.point is None else job.point.skipped or ""
        if not job.done():
            drained.abandoned.append(
                UnfinishedEval(job.name, job.step, "its line is being written")
            )
        elif job in abandoned:
            drained.abandoned.append(UnfinishedEval(job.name, job.step, reason))
        elif job.point is not None and job.point.summary is None:
            drained.skipped.append(UnfinishedEval(job.name, job.step, reason))
        else:
            drained.finished.append((job.name, job.step))
    return drained
