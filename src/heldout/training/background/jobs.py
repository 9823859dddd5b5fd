"""The evals of a dispatcher, as one table: which are queued, which run, and how each ends.

    QUEUED -> RUNNING -> ENDING -> ENDED -> JUDGED

An eval joins the table with its slot and its write-ahead line, and leaves it at its end; one of a
`PeriodicEval` stays until it has its verdict. Whoever moves it to ENDING writes its last line, and
nobody else does: a result that comes after that is not recorded.

Each eval has one limit, the slots of its kind. Of an eval of weights these are the snapshots of its
pool, since those are what takes memory; of the user's own functions they are a number,
`max_pending`.

A result goes to the curve as soon as it is there, and to loggers with its verdict.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, Protocol

import anyio
import anyio.abc
import msgspec

from heldout._core.aio import Threads, is_async, settle, start_thread
from heldout._live.isolation import thread_local_capture_mode
from heldout._live.model_copy import NotCopyable
from heldout.errors import InvalidInput
from heldout.training.background.threads import TrainerThread, deadline
from heldout.training.curve.curve_file import CurveFile
from heldout.training.curve.points import SAME_WEIGHTS, CurvePoint, skip_of
from heldout.training.curve.publishing import EvaluatorResult, PointLog, judge_by_default, point_of
from heldout.training.measuring import Known
from heldout.training.reasons import describe

log = logging.getLogger("heldout")

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


class Pool(Protocol):
    """What snapshots are taken from: a `SnapshotPool`, or an `EvalWorker`."""

    size: int
    """How many there are at most."""

    def try_snapshot(self, model: Any, *, step: int) -> Snapshot | None:
        """Copy the weights of a step, in the trainer's thread; None if all snapshots are in use."""
        ...

    def say_full(self) -> str:
        """Say that all snapshots were in use, and which setting has more."""
        ...


# --- One eval -------------------------------------------------------------------------------------


class JobState(IntEnum):
    """How far an eval has come. It only moves forward, with the trainer's lock held."""

    QUEUED = 0
    """It waits to be run; before it has joined the table, for a slot."""
    RUNNING = 1
    ENDING = 2
    """Its last line is being written, by one thread."""
    ENDED = 3
    JUDGED = 4
    """The trainer's thread has added the verdict."""


@dataclass(eq=False, kw_only=True)
class Scheduled:
    """A scheduled eval, as `schedule` returns it: a row of the table."""

    step: int = field(init=False)
    name: str = field(init=False)
    point: CurvePoint | None = None
    """The point, once the eval has ended; that of a `PeriodicEval` gets its verdict later, in the
    trainer's thread."""
    is_new: bool = True
    """Whether the point was measured now, not by an earlier attempt."""
    state: JobState = field(default=JobState.QUEUED, repr=False)
    table: JobTable = field(repr=False)
    evaluator: Evaluator | None = field(repr=False)
    """What runs: a plain or async function; where there is a snapshot, of this and that."""
    pending: CurvePoint = field(repr=False)
    """Its write-ahead line."""
    file: CurveFile | None = field(repr=False)
    pool: Pool | None = field(default=None, repr=False)
    """What its snapshot is taken from, as soon as there is one. A `PeriodicEval` judges its result,
    before loggers get it."""
    model: Any = field(default=None, repr=False)
    """The model in training, until then."""
    snapshot: Snapshot | None = field(default=None, repr=False)
    waits_until: float | None = field(default=None, repr=False)
    """If given, training waits for a slot until then (`time.monotonic`), whatever `when_full`
    is."""
    is_awaited: bool = field(default=False, repr=False)
    """Whether training waits for its result, too: nothing is written ahead, and no eval gives way
    to it."""
    is_retry: bool = field(default=False, repr=False)
    """Whether it was lost earlier and is rerun; if it fails, it stays pending."""

    def __post_init__(self) -> None:
        self.step, self.name = self.pending.step, self.pending.label

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
        if not self.done() and timeout != 0 and self.table.trainer.is_ours("result()"):
            self.table.trainer.check_may_wait("result()")
            self.table.trainer.wait(self.done, deadline(timeout))
        return self.point

    @property
    def eval_key(self) -> tuple[Any, str]:
        """Curve and name, which identify the eval that runs at many steps."""
        return (self.file, self.name)

    def write_ahead(self, point: CurvePoint) -> None:
        """Append a line that is not its result, unless training waits for that."""
        if self.file is not None and not self.is_awaited:
            self.file.append(point)

    def free(self) -> None:
        """Free its memory: the snapshot, and what the evaluator holds."""
        snapshot, self.snapshot = self.snapshot, None
        self.evaluator = self.model = None
        if snapshot is not None:
            snapshot.release()


# --- All of them ----------------------------------------------------------------------------------

WhenFull = Literal["wait", "skip", "newest"]

WAIT = "wait"
"""In place of a reason: the eval has to wait for a slot."""


class JobTable:
    """The evals of one dispatcher, and how they end. Thread-safe.

    Args:
        trainer: Its lock is held while the table is read or changed.
        points: Sends points to loggers.
        names: Keys in use: those of the run directory, whichever dispatcher has it.
        max_pending: How many evals without a snapshot may be in flight, running or queued.
        when_full: As for `AsyncEvalDispatcher`.
        max_running: How many run at once, of all evals; None for no limit beyond those.
    """

    def __init__(
        self,
        trainer: TrainerThread,
        points: PointLog,
        names: set[tuple[str, str, int]],
        *,
        max_pending: int,
        when_full: WhenFull,
        max_running: int | None,
    ) -> None:
        self.trainer, self.points, self.names = trainer, points, names
        self._max_pending, self._max_running = max_pending, max_running
        self._when_full: WhenFull = when_full
        self.latest_step = 0
        """The current training step."""
        self.is_closed = False
        self._jobs: list[Scheduled] = []
        """Those in flight, and those that wait for their verdict, in the order they came in."""
        self.started: deque[Scheduled] = deque()
        """Those that are to be run now, by the event loop."""
        self._replaced: deque[tuple[Scheduled, str]] = deque()
        """Those that gave way to a newer one, and why. Their lines are written once the lock is not
        held any more: a disk may be slow."""

    @property
    def waits(self) -> bool:
        """Whether an eval waits for a slot if there is none."""
        return self._when_full == "wait"

    @property
    def in_flight(self) -> list[Scheduled]:
        """Those that run, then those that are queued."""
        with self.trainer.lock:
            jobs = [job for job in self._jobs if not job.done()]
        return sorted(jobs, key=lambda job: job.state == JobState.QUEUED)

    @property
    def _queued(self) -> list[Scheduled]:
        return [job for job in self._jobs if job.state == JobState.QUEUED]

    # --- Queued: with a slot, and a line on the curve ---

    def try_to_join(self, job: Scheduled, *, may_wait: bool = True) -> bool:
        """Queue an eval with its slot and its write-ahead line, or end it as a skip.

        Args:
            job: The eval.
            may_wait: Whether this thread may wait for a slot; that of the event loop must not.

        Returns:
            Whether that is done; False if it waits for a slot: try again after the next change.

        Raises:
            NotCopyable: There can be no snapshot of its model.
        """
        try:
            with self.trainer.lock:
                reason = self._join(job)
        finally:
            while self._replaced:
                self.skip(*self._replaced.popleft())
        if reason == WAIT:
            if may_wait:
                return False
            reason = (
                f"{len(self.in_flight)} evals were pending, and a plain call cannot wait in the "
                "event loop that they run in (if you schedule it yourself, use "
                "`await aschedule(…)`)"
            )
        if reason is not None:
            self.skip(job, reason)
        return True

    def _join(self, job: Scheduled) -> str | None:
        """Queue an eval; return WAIT if it has to wait for a slot, or why it gets none."""
        if job.file is None or job.pending.session == job.file.session:
            self.latest_step = max(self.latest_step, job.step)
        if self.is_closed:
            return "the dispatcher was closed"
        if self.trainer.loop_thread is None:
            return "no event loop could be started for it"
        try:
            if (reason := self._take_slot(job)) is not None:
                return reason
            self._jobs.append(job)
            job.write_ahead(job.pending)
        except BaseException:  # Ctrl-C: nothing else would ever take it out
            self._leave(job)
            raise
        self._start_next()
        return None

    def _take_slot(self, job: Scheduled) -> str | None:
        try:
            if self._find_slot(job) or self._take_from_older(job):
                return None
        except NotCopyable:
            raise
        except Exception as problem:  # noqa: BLE001 - the reason of the skip
            return f"snapshot: {describe(problem)}"
        return self._why_full(job)

    def _find_slot(self, job: Scheduled) -> bool:
        if job.pool is None:
            return sum(other.pool is None for other in self.in_flight) < self._max_pending
        job.snapshot = job.pool.try_snapshot(job.model, step=job.step)
        return job.snapshot is not None

    def _take_from_older(self, job: Scheduled) -> bool:
        """Have a queued eval give way, if there is one; return whether there is a slot now."""
        if self._when_full != "newest" or job.is_awaited:
            return False
        # A number can be exceeded: what stays queued is the newest of another eval.
        may_exceed = job.pool is None and any(other.pool is None for other in self._queued)
        older, newer_step = self._find_older(job)
        if older is None:
            return may_exceed
        self._leave(older)
        self._replaced.append((older, f"replaced by the eval of step {newer_step} (when_full)"))
        return self._find_slot(job) or may_exceed

    def _find_older(self, job: Scheduled) -> tuple[Scheduled | None, int]:
        """Find the oldest queued eval of the same limit that has a newer one, maybe this.

        Returns:
            The eval, and the step of the newest one of its name and curve.
        """
        newest = {other.eval_key: other for other in (*self._queued, job)}
        for other in self._queued:
            newer = newest[other.eval_key]
            if newer is not other and other.pool is job.pool:
                return other, newer.step
        return None, job.step

    def _why_full(self, job: Scheduled) -> str:
        """Return WAIT, or why an eval has no slot and what would give it one."""
        if not any(other.pool is job.pool for other in self.in_flight):
            return "all snapshots were in use, but by no eval in flight here"
        may_wait = self.waits or job.waits_until is not None
        if may_wait and (job.waits_until is None or time.monotonic() < job.waits_until):
            return WAIT
        if self.waits or job.is_awaited:
            return "there was no free slot for it in time"
        what = f"{self._max_pending} evals were in flight (max_pending={self._max_pending})"
        if job.pool is not None:
            what = job.pool.say_full()
        return f'{what}; with AsyncEvalDispatcher(when_full="wait") training waits instead'

    # --- Running ---

    def _start_next(self) -> None:
        """Have the queued evals run that there is room for."""
        with self.trainer.lock:
            for job in self._queued:
                if self._may_start(job):
                    job.state = JobState.RUNNING
                    self.started.append(job)
            self.trainer.notify()

    def _may_start(self, job: Scheduled) -> bool:
        running = [other for other in self.in_flight if other.state != JobState.QUEUED]
        if self._max_running is not None and len(running) >= self._max_running:
            return False
        if self._when_full != "newest":
            return True
        # Only what has not started can give way to something newer: one slot is for that.
        limit = self._max_pending if job.pool is None else job.pool.size
        return sum(other.pool is job.pool for other in running) < max(1, limit - 1)

    # --- Ended: with a point, which is its last line ---

    def claim(self, job: Scheduled) -> bool:
        """Let the caller, and nobody else, write how an eval ends; False if another one does."""
        with self.trainer.lock:
            if job.state >= JobState.ENDING:
                return False
            job.state = JobState.ENDING
            return True

    def finish(
        self, job: Scheduled, result: Any, problem: BaseException | None, seconds: float
    ) -> None:
        """End an eval with what its evaluator returned or raised.

        Args:
            job: The eval.
            result: What it returned.
            problem: What it raised, if it did.
            seconds: Duration of the eval.
        """
        if not self.claim(job):
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
        self, job: Scheduled, result: Any, problem: BaseException | None, seconds: float
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

    def skip(self, job: Scheduled, reason: str) -> None:
        """End an eval that does not run."""
        self._skip([job], "skipped", reason, stays_pending=job.is_retry)

    def abandon(self, jobs: Sequence[Scheduled], reason: str) -> list[Scheduled]:
        """Turn unfinished evals into skips that stay pending; return those that were unfinished."""
        return self._skip(jobs, "abandoned", reason, stays_pending=True)

    def _skip(
        self, jobs: Sequence[Scheduled], what: str, reason: str, *, stays_pending: bool
    ) -> list[Scheduled]:
        ours = [job for job in jobs if self.claim(job)]
        for job in ours:
            self._end(job, self._append(job, skip_of(job.pending, reason, retry=stays_pending)))
        for job in ours:  # after their lines: a log handler may raise
            log.warning("eval %r of step %s is %s: %s", job.name, job.step, what, reason)
        return ours

    def _append(self, job: Scheduled, point: CurvePoint) -> CurvePoint:
        """Write the point of an eval, and log it unless a verdict is still to come."""
        point = msgspec.structs.replace(point, lag_steps=max(0, self.latest_step - point.step))
        if job.file is not None:
            if job.pool is None:
                point = judge_by_default(point, job.file)
            job.file.append(point)
            if self.is_closed:
                job.file.close()
        if job.pool is None or not point.has_result:
            self.points.log(point, job.file)
        return point

    def _end(self, job: Scheduled, point: CurvePoint | None, *, is_new: bool = True) -> None:
        """Note how an eval has ended, once its line is written."""
        with self.trainer.lock:
            has_result = point is not None and point.has_result
            if not has_result:
                self.names.discard(job.pending.key)
            job.point, job.is_new, job.state = point, is_new, JobState.ENDED
            if job.pool is not None and is_new and has_result:
                job.free()
            else:
                self._leave(job)
            self._start_next()

    def _leave(self, job: Scheduled) -> None:
        self._jobs = [other for other in self._jobs if other is not job]
        job.free()

    # --- Judged ---

    def judge(self, job: Scheduled, point: CurvePoint) -> None:
        """Set the point of an eval to one with its verdict, and send that to the loggers.

        Args:
            job: An eval of a `PeriodicEval` that has ended.
            point: Its point, whose verdict is on the curve.
        """
        with self.trainer.lock:
            job.point, job.state = point, JobState.JUDGED
            is_to_be_logged = job in self._jobs
            self._leave(job)
        if is_to_be_logged:
            self.points.log(point, job.file)

    def close(self, logger_seconds: float) -> None:
        """Send loggers what still waits for a verdict, and close them."""
        with self.trainer.lock:
            ended = [job for job in self._jobs if job.state == JobState.ENDED]
            self._jobs = [job for job in self._jobs if job not in ended]
        for job in ended:  # the trainer's thread has not come back for them
            if job.point is not None:
                self.points.log(job.point, job.file)
        self.points.close(logger_seconds)


# --- Running them ---------------------------------------------------------------------------------


class EvalLoop:
    """Runs the evals of a table, in the event loop of the trainer or in one of its own.

    Async evaluators are tasks of the loop, plain ones and snapshots run in daemon threads.
    In an `anyio.from_thread.BlockingPortal` each call waits for the loop; a trainer must not wait
    for an evaluator that blocks it.

    Args:
        table: The evals.
        max_seconds: Time limit of one eval.
    """

    def __init__(self, table: JobTable, max_seconds: float | None) -> None:
        self._table, self._trainer, self._max_seconds = table, table.trainer, max_seconds
        self.threads = Threads()
        self._scopes: dict[Scheduled, anyio.CancelScope] = {}
        """Of evals that run. Cancelled after its exit, a scope would cancel whatever runs next."""
        self._group: anyio.abc.TaskGroup | None = None
        self._thread: threading.Thread | None = None

    # --- The loop ---

    async def enter(self) -> None:
        """Run in the loop of this task, which must be the one to leave it."""
        if self._trainer.loop_thread is None:
            self._group = anyio.create_task_group()
            await self._group.__aenter__()
            self._trainer.loop_thread = threading.get_ident()
            self._group.start_soon(self._serve, self._group)

    async def leave(self) -> None:
        """Leave the loop of this task, cancelling what runs."""
        if self._group is not None:
            self._trainer.loop_thread = None
            self._group.cancel_scope.cancel()
            # Not told of any exception, which it would wrap in a group.
            await self._group.__aexit__(None, None, None)

    def start_thread(self) -> None:
        """Start a loop in a thread, unless one runs already or the table was closed."""
        with self._trainer.lock:
            if self._trainer.loop_thread is not None or self._table.is_closed:
                return
            ready = threading.Event()
            try:
                self._thread = start_thread(lambda: self._live(ready))
            except RuntimeError as problem:  # the interpreter is on its way out
                log.warning("no thread could be started for evals: %s", problem)
                return
            ready.wait()

    def _live(self, ready: threading.Event) -> None:
        async def main() -> None:
            self._trainer.loop_thread = threading.get_ident()
            ready.set()
            async with anyio.create_task_group() as group:
                await self._serve(group)
                group.cancel_scope.cancel()

        try:
            anyio.run(main)
        except BaseException as problem:
            log.error("the event loop of evals broke down", exc_info=problem)
        finally:
            self._trainer.loop_thread = None
            ready.set()
            if not self._table.is_closed:
                self._table.abandon(self._table.in_flight, "its event loop has ended")

    async def _serve(self, group: anyio.abc.TaskGroup) -> None:
        """Run what is to be run, and cancel what was given up on, until the table is closed.

        A task of the loop does that: whoever schedules or abandons an eval may be another thread,
        or run under another kind of event loop.
        """
        while not self._table.is_closed:
            seen = self._trainer.count
            while self._table.started:
                group.start_soon(self._run, self._table.started.popleft())
            for job, scope in self._scopes.items():
                if job.state >= JobState.ENDING:
                    scope.cancel()
            await self._trainer.next_change(seen)

    def close(self, seconds: float) -> None:
        """End the threads, once the table is closed; wait for that of the loop."""
        if self._thread is not None:
            self._thread.join(seconds)
        self.threads.close()

    # --- One eval ---

    async def _run(self, job: Scheduled) -> None:
        began, result = time.monotonic(), None
        problem: BaseException | None = None
        evaluator, job.evaluator = job.evaluator, None  # it may hold weights; no longer than needed
        try:
            with anyio.move_on_after(self._max_seconds) as limit:
                self._scopes[job] = limit
                if job.state >= JobState.ENDING or evaluator is None:  # abandoned before it began
                    return
                if job.pool is None and is_async(evaluator):
                    result = await settle(evaluator())
                else:
                    result = await settle(await self.threads.run(self._call, job, evaluator))
            if limit.cancelled_caught:
                problem = InvalidInput(f"not finished after max_seconds={self._max_seconds}")
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                self._table.abandon([job], "it was cancelled")
                raise
            # Not by us: something that it awaited was. To raise that would end its siblings, too.
            problem = InvalidInput("something that it waited for was cancelled")
        except KeyboardInterrupt as interrupted:
            if self._thread is None:
                raise  # it is the trainer's
            problem = interrupted
        except BaseException as raised:  # noqa: BLE001 - the reason of the skip
            problem = raised
        finally:
            self._scopes.pop(job, None)
        del evaluator
        # In a thread: the disk, loggers and large reports would hold up the loop, and the trainer.
        seconds = time.monotonic() - began
        try:
            await self.threads.run(self._table.finish, job, result, problem, seconds)
        except Exception as broken:
            if job.state >= JobState.ENDING:  # its line is written, or could not be
                log.error("eval %r of step %s", job.name, job.step, exc_info=broken)
            else:  # no thread can be started: the process ends
                self._table.finish(job, result, problem, seconds)
        finally:
            result = problem = None  # else it and its traceback hold each other, and the weights

    def _call(self, job: Scheduled, evaluator: Evaluator) -> Any:
        """Call an evaluator in a thread. A snapshot is released only then, by whoever reads it."""
        if job.pool is None:
            with thread_local_capture_mode():  # training may capture CUDA graphs
                return evaluator()
        with self._trainer.lock:
            snapshot, job.snapshot = job.snapshot, None
        if snapshot is None:
            raise InvalidInput("its snapshot was released before it began")
        try:
            with snapshot.in_use():
                if snapshot.weights is not None:
                    # So that `finish` can tell whether it is given the same weights.
                    job.pending = msgspec.structs.replace(job.pending, weights=snapshot.weights)
                    job.write_ahead(job.pending)
                result = evaluator(job, snapshot)
                if (reason := snapshot.why_changed()) is not None:
                    raise InvalidInput(reason)
                return result
        finally:
            snapshot.release()
            self._trainer.notify()
