"""AsyncEvalDispatcher: evals that run in the background while training goes on.

    with AsyncEvalDispatcher(run_dir="outputs/run1") as evals:
        for step in range(1, …):
            …                                              # train
            if step % 50 == 0:
                client = save_weights(step)                # what is measured must not change
                evals.schedule(partial(evaluate_on, client), step=step)

`schedule` returns at once. A result goes to `curve.jsonl` and to every logger, at the step it was
scheduled at, whenever and in whatever order it comes (clause 15). An eval that fails, is dropped or
is abandoned is a skip with its reason, never an exception in training (clause 14).

Async evaluators run in an event loop: the trainer's own (`async with`), or one in a thread. Plain
evaluators run in daemon threads, so no eval keeps the process alive.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import math
import os
import signal
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import anyio
import anyio.abc
import msgspec

from heldout._aio import Threads, is_async, settle, waker
from heldout.errors import InvalidInput, RunDirectoryError, printable_error
from heldout.isolation import thread_local_capture_mode
from heldout.training.curve import CurvePoint, pending_points, read_points
from heldout.training.curve_file import (
    CurveFile,
    leave_curve_file,
    numbered_names,
    open_curve_file,
)
from heldout.training.distributed import is_first_process
from heldout.training.loggers import Logger
from heldout.training.loggers.base import Loggers, checked_loggers
from heldout.training.metrics import heartbeat_fields
from heldout.training.results import (
    NOT_FINISHED,
    SAME_WEIGHTS,
    EvaluatorResult,
    pending_point,
    point_of,
    skip_of,
)
from heldout.training.run_eval import Known, describe
from heldout.training.threads import EventLoop, TrainerThread

if TYPE_CHECKING:
    from heldout.training.snapshot import WeightSnapshot
    from heldout.training.worker.client import WorkerSnapshot

    Snapshot = WeightSnapshot | WorkerSnapshot

log = logging.getLogger("heldout")

EXIT_GRACE_SECONDS = 2.0
"""How long to wait for evals in flight if the process ends without a drain."""
QUIET_SECONDS = 5.0
"""How long to wait for evals before the log says so."""
LOGGER_SECONDS = 60.0
"""How long loggers may take to store queued results at the end of training."""
RETRY_SECONDS = 0.5
"""How often to look for a free snapshot."""

WAIT = "wait"
"""In place of a reason: the eval has to wait for a slot."""

Waits = Iterator[tuple[int, float | None]]
"""A generator that runs as far as it can, then yields the number of changes seen and a timeout. A
thread or a coroutine resumes it at the next change, or after that many seconds."""
WhenFull = Literal["wait", "skip", "newest"]
Evaluator = Callable[..., EvaluatorResult | Known | Awaitable[EvaluatorResult]]
TakeSnapshot = Callable[[], "Snapshot | None"]


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
    _done: bool = False

    def done(self) -> bool:
        """Whether it has ended, in a result or in a skip."""
        return self._done

    def result(self, timeout: float | None = None) -> CurvePoint | None:
        """Wait for the eval, and return its point.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Returns:
            The point; None if the eval has not ended in time.

        Raises:
            InvalidInput: Called in the event loop that the eval runs in.
        """
        if not self._done and timeout != 0:
            if self.dispatcher.in_event_loop:
                raise InvalidInput(
                    "result() would block the event loop that the eval runs in; "
                    "`await dispatcher.adrain()` first"
                )
            self.dispatcher.wait_for([self], timeout)
        return self.point


@dataclass(eq=False, kw_only=True, repr=False)
class EvalJob(Scheduled):
    """A scheduled eval, with the dispatcher's own state."""

    evaluator: Evaluator | None
    pending: CurvePoint
    """Its write-ahead line."""
    file: CurveFile | None
    take_snapshot: TakeSnapshot | None = None
    snapshot: Snapshot | None = None
    deadline: float | None = None
    """If given, the eval waits for a slot until then, whatever `when_full` is."""
    again: bool = False
    """Whether it was lost earlier and is rerun; if it fails, it stays pending."""
    is_judged: bool = False
    """Whether its result gets a verdict before loggers get it."""
    claimed: bool = False
    """Whether its end is being written, which happens once."""
    weights: str | None = None
    """Hash of the snapshot's weights."""
    scope: anyio.CancelScope | None = None
    """Set while it runs, and only used in its event loop: cancelling a scope after its exit would
    cancel whatever runs next."""

    @property
    def pool(self) -> Any:
        """The pool that its snapshot belongs to: only that pool can reuse it once released."""
        return getattr(getattr(self.take_snapshot, "func", self.take_snapshot), "__self__", None)

    @property
    def eval_key(self) -> tuple[Any, str]:
        """Curve and name, which identify the eval that runs at many steps."""
        return (self.file, self.name)

    def write_ahead(self, point: CurvePoint) -> None:
        """Append a line that is not its result, unless training waits for that."""
        if self.file is not None and self.deadline is None:
            self.file.append(point)

    def cancel(self) -> None:
        """Cancel it, in its event loop."""
        if self.scope is not None:
            self.scope.cancel()

    def release(self) -> None:
        """Release its snapshot."""
        snapshot, self.snapshot = self.snapshot, None
        if snapshot is not None:
            snapshot.release()


# --- The dispatcher in use --------------------------------------------------------------------

_current: ContextVar[AsyncEvalDispatcher | None] = ContextVar("async_evals", default=None)


def get_async_eval_dispatcher() -> AsyncEvalDispatcher | None:
    """Return the dispatcher of this context.

    Returns:
        The dispatcher; None if there is none, in a forked child, and in all but the first process
        of a training run. Threads that you start have their own context.
    """
    dispatcher = _current.get()
    ours = dispatcher is not None and dispatcher.pid == os.getpid() and dispatcher.is_first
    return dispatcher if ours else None


def set_async_eval_dispatcher(
    dispatcher: AsyncEvalDispatcher | None,
) -> Token[AsyncEvalDispatcher | None]:
    """Set the dispatcher of this context, as `with AsyncEvalDispatcher():` does.

    Args:
        dispatcher: The dispatcher, or None.

    Returns:
        A token: `token.var.reset(token)` restores the previous dispatcher.

    Raises:
        InvalidInput: It is not a dispatcher.
    """
    if dispatcher is not None and not isinstance(dispatcher, AsyncEvalDispatcher):
        raise InvalidInput(f"dispatcher is an AsyncEvalDispatcher or None, got {dispatcher!r:.100}")
    return _current.set(dispatcher)


def runs_async_evals() -> bool:
    """Whether a dispatcher is set, even if another process evaluates."""
    return _current.get() is not None


def pending_evals(run_dir: str | Path) -> list[CurvePoint]:
    """List the evals of a training run that were scheduled and have no result.

    Args:
        run_dir: The run directory.

    Returns:
        Their points by step: in flight, abandoned, or lost with their process.
        `AsyncEvalDispatcher.schedule_again` and `PeriodicEval.finish` take them.

    Raises:
        RunDirectoryError: There is no such directory.
    """
    path = Path(run_dir)
    if not path.is_dir():
        raise RunDirectoryError(f"there is no run directory {run_dir}")
    curve = path / "curve.jsonl"
    return pending_points(read_points(curve)) if curve.exists() else []


# --- The dispatcher -----------------------------------------------------------------------------


class AsyncEvalDispatcher:
    """Runs evals in the background, inside a `with` or `async with` block.

    Inside the block a `PeriodicEval` runs in the background, too. If several processes train
    together, only the first one evaluates; in the others this does nothing.

    Args:
        run_dir: Run directory for the curve of scheduled evals. Not needed if only `PeriodicEval`s
            run, which have their own.
        loggers: Loggers that also get each point; closed with the dispatcher. Pass a `Loggers` to
            set the size of its queues.
        max_pending: How many evals may be in flight, running or queued.
        when_full: What happens beyond that: `"skip"` the new eval, `"wait"` for a slot, or keep the
            `"newest"` of each name: the oldest that has not started gives way to a newer one of its
            own name, and the last one of each name stays queued, even beyond `max_pending`.
        max_running: How many evals run at once; by default all, except with `"newest"`, which keeps
            one slot for a queued eval.
        max_seconds: Time limit of one eval; beyond it the eval is a skip.
        drain_timeout: Seconds to wait for evals in flight at the end of the block; None for no
            limit.
        handle_sigterm: Whether to record evals in flight as skips at a SIGTERM, if no other handler
            takes it.
        resume: Whether to continue an existing curve in `run_dir`.

    Raises:
        InvalidInput: An argument is invalid.
        RunExists: `run_dir` has a curve, and `resume` is False.
    """

    def __init__(
        self,
        *,
        run_dir: str | Path | None = None,
        loggers: Sequence[Logger] | Loggers = (),
        max_pending: int = 8,
        when_full: WhenFull = "skip",
        max_running: int | None = None,
        max_seconds: float | None = None,
        drain_timeout: float | None = 600.0,
        handle_sigterm: bool = False,
        resume: bool = False,
    ) -> None:
        if when_full not in get_args(WhenFull):
            raise InvalidInput(f"when_full is 'wait', 'skip' or 'newest', got {when_full!r}")
        if max_running is None:
            # Only what has not started can give way to something newer: one place for that.
            max_running = max(1, max_pending - 1) if when_full == "newest" else max_pending
        for name, value in (("max_pending", max_pending), ("max_running", max_running)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name} is a whole number >= 1, got {value!r}")
        if max_seconds is not None and not max_seconds > 0:
            raise InvalidInput(f"max_seconds is a number above 0, or None, got {max_seconds!r}")
        if drain_timeout is not None and not drain_timeout >= 0:
            raise InvalidInput(f"drain_timeout is a number >= 0, or None, got {drain_timeout!r}")
        if handle_sigterm and threading.current_thread() is not threading.main_thread():
            raise InvalidInput("handle_sigterm works only in the main thread")
        # Absolute: the working directory may change in the middle of it.
        self.run_dir = Path(run_dir).absolute() if run_dir is not None else None
        self.pid = os.getpid()
        self.is_first = is_first_process()
        """Whether this is the process that evaluates."""
        self.drain_timeout = drain_timeout
        self.latest_step = 0
        """The current training step."""
        self._max_seconds = max_seconds
        self._max_pending, self._max_running = max_pending, max_running
        self._when_full: WhenFull = when_full
        self._running: list[EvalJob] = []
        self._queued: list[EvalJob] = []
        self._unlogged: list[EvalJob] = []
        """Evals with a result that waits for its verdict before loggers get it."""
        self._changed = threading.Condition()
        """Held while jobs, claims, `_watchers` and `_closed` are read or changed."""
        self._changes = 0
        self._watchers: set[Callable[[], object]] = set()
        self._closed = False
        self._names: set[tuple[str, str, int]] = set()
        """Keys in use: those of the run directory, whichever dispatcher has it."""
        self._log_names: dict[str, dict[Path | None, str]] = {}
        """By label and run directory: what loggers know a curve as."""
        self._collectors: list[weakref.WeakMethod[Callable[[], object]]] = []
        self._tokens: list[Token[AsyncEvalDispatcher | None]] = []
        self._file: CurveFile | None = None
        if self.run_dir is not None and self.is_first:
            file = open_curve_file(self.run_dir, self)
            file.enter(resume=resume or file.is_entered)
            file.write_bare_config()
            self._file, self._names = file, file.names
        # Last: loggers have threads.
        if isinstance(loggers, Loggers):
            self._loggers, is_logged = loggers, True
        else:
            own = checked_loggers(loggers)
            self._loggers, is_logged = Loggers(*own if self.is_first else ()), bool(own)
        self._warned_nowhere = self.run_dir is not None or is_logged
        # They are closed after the last skips; and a forked child, which has none of their
        # threads, must not wait for them when it ends.
        atexit.unregister(self._loggers.close)
        self.trainer = TrainerThread(self._notify)
        """Runs what evals need in the trainer's thread."""
        self._threads = Threads()
        self._loop: EventLoop[EvalJob] = EventLoop(self._run, self._on_breakdown)
        if self.is_first:
            _living.add(self)
            atexit.register(self.end_with_process)
        if handle_sigterm:
            _handle_sigterm(4 * EXIT_GRACE_SECONDS + 1)

    # --- Scheduling ---

    def schedule(
        self,
        evaluator: Evaluator,
        *,
        step: int,
        name: str = "eval",
        weights: str | None = None,
        saved_at: str | Path | None = None,
    ) -> Scheduled:
        """Run an eval in the background. Its point gets this step.

        Waits only with `when_full="wait"`, if the dispatcher is full. In the event loop that evals
        run in it cannot wait, and the eval is a skip: use `aschedule` there.

        Args:
            evaluator: A function, plain or async, that returns a report, a point, or a dict of
                numbers.
            step: The step of its point.
            name: Its name on the curve. A second eval with the same name and step gets a number
                (`eval-2`).
            weights: Hash of the weights that it measures.
            saved_at: Where those weights can be loaded from, for `pending_evals` after a crash.

        Raises:
            InvalidInput: An argument is invalid.
        """
        job = self._new_job(evaluator, step, name, weights, saved_at)
        self._wait(self._queue_when_free(job, is_sync=True))
        return job

    async def aschedule(self, evaluator: Evaluator, *, step: int, **options: Any) -> Scheduled:
        """Schedule an eval as `schedule` does, without blocking the event loop.

        Args:
            evaluator: A function, as for `schedule`.
            step: The step of its point.
            **options: The other arguments of `schedule`.
        """
        job = self._new_job(evaluator, step, **options)
        await self._await(self._queue_when_free(job))
        return job

    def schedule_again(self, evaluator: Evaluator, pending: CurvePoint) -> Scheduled:
        """Run one of `pending_evals`, on its weights.

        Args:
            evaluator: A function, as for `schedule`.
            pending: The eval. Its point belongs to the attempt that scheduled it.
        """
        if self._file is None and self.is_first:
            raise InvalidInput(
                "schedule_again needs a dispatcher with the run_dir of the pending eval"
            )
        job = self._job(evaluator, skip_of(pending, NOT_FINISHED, retry=True), self._file)
        job.again = True
        self._wait(self._queue_when_free(job, is_sync=True))
        return job

    def schedule_on(
        self,
        file: CurveFile,
        evaluator: Callable[[Scheduled, Any], CurvePoint | Known],
        pending: CurvePoint,
        *,
        snapshot: TakeSnapshot,
        deadline: float | None = None,
    ) -> Scheduled:
        """Run the eval of a `PeriodicEval` in the background.

        Its result is on the curve as soon as it is there. Loggers get it with its verdict, which
        `publish_judged` adds.

        Args:
            file: Its curve.
            evaluator: A function of the scheduled eval and the snapshot.
            pending: Its write-ahead line.
            snapshot: Takes the snapshot, in this thread, as soon as there is a slot for the eval.
                If none is free, the dispatcher counts as full.
            deadline: If given, training waits for a slot and for the result until then
                (`time.monotonic`), whatever `when_full` is.
        """
        job = self._job(evaluator, pending, file, snapshot)
        job.evaluator, job.deadline = partial(evaluator, job), deadline
        job.is_judged = True
        self._wait(self._queue_when_free(job, is_sync=True))
        return job

    def _new_job(
        self,
        evaluator: Evaluator,
        step: int,
        name: str = "eval",
        weights: str | None = None,
        saved_at: str | Path | None = None,
    ) -> EvalJob:
        session = self._file.session if self._file is not None else ""
        pending = pending_point(name, step, session, weights=weights, saved_at=saved_at)
        pending = msgspec.structs.replace(pending, label=self._distinct_name(pending))
        job = self._job(evaluator, pending, self._file)
        self._names.add(pending.key)
        return job

    def _job(
        self,
        evaluator: Evaluator,
        pending: CurvePoint,
        file: CurveFile | None,
        snapshot: TakeSnapshot | None = None,
    ) -> EvalJob:
        if inspect.iscoroutine(evaluator):
            evaluator.close()
            raise InvalidInput("evaluator is a function, not its call: leave out the parentheses")
        if not callable(evaluator):
            raise InvalidInput(f"evaluator is a function, got {evaluator!r:.100}")
        return EvalJob(
            step=pending.step,
            name=pending.label,
            dispatcher=self,
            evaluator=evaluator,
            pending=pending,
            file=file,
            take_snapshot=snapshot,
        )

    def _distinct_name(self, pending: CurvePoint) -> str:
        """Name an eval on the curve.

        A second eval of a step is numbered, since one result would hide the other. One that is
        tried again after a skip keeps its name.
        """
        labels = set() if self._file is None else self._file.labels
        name = next(
            name
            for name in numbered_names(pending.label)
            if name not in labels and (pending.session, name, pending.step) not in self._names
        )
        if name != pending.label:
            log.warning(
                "two evals called %r were scheduled at step %s; this one is %r on the curve. Give "
                "each its own name=",
                pending.label,
                pending.step,
                name,
            )
        return name

    # --- Joining the queue ---

    def _queue_when_free(self, job: EvalJob, *, is_sync: bool = False) -> Waits:
        """Queue a job once there is a slot; without one, it is a skip."""
        if not self._is_ours("schedule"):
            job._done = True
            return
        self._warn_nowhere(job)
        self._loop.start_thread()
        retries = job.take_snapshot is not None or job.deadline is not None
        dropped: list[tuple[EvalJob, int]] = []
        while True:
            seen = self._changes
            with self._changed:
                reason = self._try_to_queue(job, dropped)
            if reason != WAIT:
                break
            if is_sync and self._loop.is_here:
                reason = (
                    f"{len(self._pending())} evals were pending, and a plain call cannot wait in "
                    "the event loop that they run in (if you schedule it yourself, use "
                    "`await aschedule(…)`)"
                )
                break
            self.trainer.run_calls(math.inf if job.deadline is None else job.deadline)
            yield seen, RETRY_SECONDS if retries else None
        if reason is not None:
            self._skip(job, reason)
        for other, step in dropped:
            self._skip(other, f"replaced by the eval of step {step} (when_full)")
        self._start_next()

    def _try_to_queue(self, job: EvalJob, dropped: list[tuple[EvalJob, int]]) -> str | None:
        """Queue a job, holding the lock, with its snapshot and its write-ahead line.

        Returns:
            None if it has a slot; WAIT if it has to wait for one; otherwise why it gets none. A job
            that is replaced is added to `dropped`, with the step of the newer job of its eval.
        """
        if job.file is None or job.pending.session == job.file.session:
            self.latest_step = max(self.latest_step, job.step)
        if self._closed:
            return "the dispatcher was closed"
        if not self._loop.is_open:
            return "no event loop could be started for it"
        try:
            reason = self._why_no_slot(job)
            if reason is None and job.take_snapshot is not None:
                reason = self._take_snapshot(job, job.take_snapshot, dropped)
            if reason is None:
                # Not before it is sure to be queued: else both would be lost.
                if len(self._pending()) >= self._max_pending and not dropped:
                    self._drop(self._replaceable(job), dropped)
                self._queued.append(job)
                if job.file is not None:
                    job.file.in_flight.add(job.pending.key)
                    job.write_ahead(job.pending)
        except BaseException:  # Ctrl-C: nothing would ever take it out again
            self._remove(job)
            for other, _ in dropped:
                self._skip(other, "replaced by an eval that was interrupted (when_full)")
            raise
        if reason == WAIT and job.deadline is not None and time.monotonic() >= job.deadline:
            return "there was no free slot for it in time"
        return reason

    def _why_no_slot(self, job: EvalJob) -> str | None:
        pending = len(self._pending())
        if pending < self._max_pending:
            return None
        if job.deadline is not None or self._when_full == "wait":
            return WAIT
        if self._when_full == "newest" and self._queued:
            return None  # what is queued gives way, or is the newest of another eval and stays
        return (
            f"{pending} evals were in flight (max_pending={self._max_pending}); "
            "with when_full='wait' training waits instead"
        )

    def _replaceable(self, job: EvalJob, pool: Any = None) -> tuple[EvalJob, int] | None:
        """Find the oldest queued job that has a newer one of its eval, queued or this one.

        Args:
            job: The job that is being queued.
            pool: If given, only evals with a snapshot of this pool.

        Returns:
            The job, and the step of the newest job of its eval.
        """
        newest = {other.eval_key: other for other in (*self._queued, job)}
        for other in self._queued:
            newer = newest[other.eval_key]
            if newer is not other and (pool is None or other.pool is pool):
                return other, newer.step
        return None

    def _take_snapshot(
        self, job: EvalJob, take: TakeSnapshot, dropped: list[tuple[EvalJob, int]]
    ) -> str | None:
        pool, waits = job.pool, job.deadline is not None
        try:
            job.snapshot = take()
            may_drop = self._when_full == "newest" and pool is not None and not waits
            if job.snapshot is None and may_drop:
                self._drop(self._replaceable(job, pool), dropped)
                job.snapshot = take() if dropped else None
        except Exception as problem:  # noqa: BLE001 - the reason of the skip
            return f"snapshot: {describe(problem)}"
        if job.snapshot is not None:
            return None
        if pool is not None and not any(j.pool is pool for j in self._pending()):
            return "all snapshots were in use, but by no eval in flight here"
        return WAIT if waits or self._when_full == "wait" else "all snapshots were in use"

    def _drop(
        self, replaceable: tuple[EvalJob, int] | None, dropped: list[tuple[EvalJob, int]]
    ) -> None:
        if replaceable is not None:
            dropped.append(replaceable)
            self._queued.remove(replaceable[0])
            replaceable[0].release()

    def _remove(self, job: EvalJob) -> None:
        """Remove a job, holding the lock, and free its memory."""
        for jobs in (self._running, self._queued):
            if job in jobs:
                jobs.remove(job)
        if job.file is not None:
            job.file.in_flight.discard(job.pending.key)
        job.release()
        job.evaluator = job.take_snapshot = None

    def _start_next(self) -> None:
        with self._changed:
            room = self._max_running - len(self._running)
            jobs, self._queued = self._queued[:room], self._queued[room:]
            self._running += jobs
        for job in jobs:
            self._loop.spawn(job)

    def _warn_nowhere(self, job: EvalJob) -> None:
        if job.file is None and not self._warned_nowhere:
            log.warning(
                "eval %r of step %s: this AsyncEvalDispatcher has neither run_dir nor loggers, so "
                "results are only in what schedule() returns",
                job.name,
                job.step,
            )
        self._warned_nowhere = True

    # --- Running ---

    async def _run(self, job: EvalJob) -> None:
        began, result = time.monotonic(), None
        problem: BaseException | None = None
        evaluator, job.evaluator = job.evaluator, None  # it may hold weights; no longer than needed
        try:
            with anyio.move_on_after(self._max_seconds) as limit:
                job.scope = limit
                if job.claimed or evaluator is None:
                    return
                if job.snapshot is not None:
                    result = await self._threads.run(self._evaluate_snapshot, job, evaluator)
                elif is_async(evaluator):
                    result = await settle(evaluator())
                else:
                    result = await settle(await self._threads.run(_call_plain, evaluator))
            if limit.cancelled_caught:
                problem = InvalidInput(f"not finished after max_seconds={self._max_seconds}")
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                self._abandon([job], "it was cancelled")
                raise
            # Not by us: something that it awaited was. To raise that would end its siblings, too.
            problem = InvalidInput("something that it waited for was cancelled")
        except KeyboardInterrupt as interrupted:
            if not self._loop.has_thread:
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
            await self._threads.run(self._finish, job, result, problem, seconds)
        except Exception as broken:
            if job.claimed:  # its line is written, or could not be
                log.error("eval %r of step %s", job.name, job.step, exc_info=broken)
            else:  # no thread can be started: the process ends
                self._finish(job, result, problem, seconds)
        finally:
            result = problem = None  # else it and its traceback hold each other, and the weights

    def _evaluate_snapshot(self, job: EvalJob, evaluator: Evaluator) -> Any:
        """Evaluate a snapshot in a thread. An abandoned eval keeps it: it is still being read."""
        with self._changed:
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
            self._notify()

    # --- The end of an eval ---

    def _finish(
        self, job: EvalJob, result: Any, problem: BaseException | None, seconds: float
    ) -> None:
        if not self._claim(job):
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
            self._close_job(job, point, is_new=is_new)
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
        skip = skip_of(job.pending, describe(problem), seconds, retry=job.again)
        return self._append(job, skip), problem

    def _skip(self, job: EvalJob, reason: str) -> None:
        if self._claim(job):
            self._close_job(job, self._append(job, skip_of(job.pending, reason, retry=job.again)))
            log.warning("eval %r of step %s is skipped: %s", job.name, job.step, reason)

    def _abandon(self, jobs: list[EvalJob], reason: str) -> list[EvalJob]:
        """Turn unfinished evals into skips that stay pending."""
        ours = [job for job in jobs if self._claim(job)]
        for job in ours:
            self._loop.call(job.cancel)
            point = self._append(job, skip_of(job.pending, reason, retry=True))
            self._close_job(job, point)
        for job in ours:
            log.warning("eval %r of step %s is abandoned: %s", job.name, job.step, reason)
        return ours

    def _on_breakdown(self) -> None:
        self._abandon(self._pending(), "its event loop has ended")

    def _claim(self, job: EvalJob) -> bool:
        with self._changed:
            first, job.claimed = not job.claimed, True
        return first

    def _append(self, job: EvalJob, point: CurvePoint) -> CurvePoint:
        """Write the point of an eval, and log it unless a verdict is still to come."""
        lag = max(0, self.latest_step - point.step)
        weights = point.weights or job.weights
        point = msgspec.structs.replace(point, lag_steps=lag, weights=weights)
        if job.file is not None:
            job.file.append(point)
            if self._closed:
                job.file.close()
        if job.is_judged and point.has_result:
            with self._changed:
                self._unlogged.append(job)
        else:
            self.log_point(point, job.file)
        return point

    def publish_judged(self, scheduled: Scheduled, point: CurvePoint) -> None:
        """Set the point of an eval to one with its verdict, and send that to the loggers.

        Args:
            scheduled: An eval of `schedule_on` that has ended.
            point: Its point, whose verdict is on the curve.
        """
        with self._changed:
            scheduled.point = point
            jobs = [job for job in self._unlogged if job is scheduled]
            self._unlogged = [job for job in self._unlogged if job is not scheduled]
        for job in jobs:
            self.log_point(point, job.file)

    def _close_job(self, job: EvalJob, point: CurvePoint | None, *, is_new: bool = True) -> None:
        with self._changed:
            self._remove(job)
            if point is None or not point.has_result:
                self._names.discard(job.pending.key)
            job.point, job.is_new, job._done = point, is_new, True
            self._notify()
        self._start_next()

    def log_point(self, point: CurvePoint, file: CurveFile | None) -> None:
        """Send a point that is on the curve already to the loggers.

        Args:
            point: The point.
            file: Its curve. Two curves with the same label get different names in loggers.
        """
        if not self._is_ours("log_point"):
            return
        path, label = None if file is None else file.run.path, point.label
        names = self._log_names.setdefault(label, {})
        if path not in names:
            names[path] = name = f"{label}-{len(names) + 1}" if names else label
            if name != label:
                message = "%s and %s are both called %r; loggers get the second as %r"
                log.warning(message, next(iter(names)), path, label, name)
        fields = {key: v for key, v in heartbeat_fields(point).items() if v is not None}
        self._loggers.log(names[path], point.step, fields)

    # --- The trainer's thread ---

    def poll(self, step: int | None = None) -> None:
        """Run what evals need in the trainer's thread. Call it there, at every step.

        Args:
            step: The current training step, for the `lag_steps` of results.
        """
        if self._is_ours("poll"):
            if step is not None:
                self.latest_step = step
            self.trainer.adopt_current()
            self._poll()

    def _poll(self) -> None:
        if self.trainer.is_current:
            self.trainer.run_calls()
            for collector in self._collectors:
                if (collect := collector()) is not None:
                    collect()

    def on_poll(self, collect: Callable[[], object]) -> None:
        """Register a method to call in the trainer's thread, at each poll and after a drain."""
        method = weakref.WeakMethod(collect)
        if method not in self._collectors:
            self._collectors = [m for m in self._collectors if m() is not None] + [method]

    # --- Waiting ---

    @property
    def in_event_loop(self) -> bool:
        """Whether evals run in the event loop of this thread, so that waiting would deadlock."""
        return self._loop.is_here

    def wait_for(self, handles: Sequence[Scheduled], timeout: float | None) -> None:
        """Wait for evals, and run what they need in this thread meanwhile.

        Args:
            handles: The evals.
            timeout: Seconds to wait at most; None for no limit.
        """
        if self._is_ours("a wait"):
            self._wait(self._ending(handles, timeout))

    def _ending(self, handles: Sequence[Scheduled], timeout: float | None) -> Waits:
        """Wait for evals to end, and run what they need in this thread meanwhile."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            seen = self._changes
            if all(handle.done() for handle in handles) or time.monotonic() >= until:
                return
            self.trainer.run_calls(until)
            yield seen, None if timeout is None else until - time.monotonic()

    def _wait(self, waits: Waits) -> None:
        for seen, timeout in waits:
            with self._changed:
                if self._changes == seen:
                    self._changed.wait(timeout)

    async def _await(self, waits: Waits) -> None:
        for seen, timeout in waits:
            event, post = anyio.Event(), waker()
            watcher = partial(post, event.set)
            with self._changed:
                if self._changes != seen:
                    continue
                self._watchers.add(watcher)
            try:
                with anyio.move_on_after(timeout):
                    await event.wait()
            finally:
                with self._changed:
                    self._watchers.discard(watcher)

    def _notify(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()
            for watcher in self._watchers:
                watcher()

    def _pending(self) -> list[EvalJob]:
        with self._changed:
            return [*self._running, *self._queued]

    # --- Draining ---

    def drain(self, timeout: float | None = 600.0) -> Drained:
        """Wait for pending evals. Those that have not ended in time are abandoned, as skips.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Returns:
            Which evals were finished, skipped and abandoned.

        Raises:
            InvalidInput: Called in the event loop that the evals run in.
        """
        if not self._is_ours("drain"):
            return Drained()
        self._check_no_loop("drain()")
        return self._drain(timeout, f"not finished after waiting {timeout} s (drain)")

    async def adrain(self, timeout: float | None = 600.0) -> Drained:
        """Drain as `drain` does, without blocking the event loop."""
        if not self._is_ours("adrain"):
            return Drained()
        return await self._adrain(timeout, f"not finished after waiting {timeout} s (adrain)")

    def _check_no_loop(self, what: str) -> None:
        if self.in_event_loop:
            raise InvalidInput(
                f"{what} would block the event loop that the evals run in; there, use "
                "`await adrain()` and `async with`"
            )

    def _drain(self, timeout: float | None, reason: str) -> Drained:
        began, jobs = time.monotonic(), self._pending()
        try:
            if timeout is None or timeout > QUIET_SECONDS:
                self.wait_for(jobs, QUIET_SECONDS)
                _log_wait(jobs, timeout)
                timeout = None if timeout is None else timeout - QUIET_SECONDS
            self.wait_for(jobs, timeout)
        except BaseException:
            reason = "the wait for it was interrupted"
            raise
        finally:
            abandoned = self._abandon(jobs, reason)
            # Others may be writing their lines.
            self.wait_for(jobs, EXIT_GRACE_SECONDS)
        self._poll()
        return _drained(jobs, abandoned, time.monotonic() - began)

    async def _adrain(self, timeout: float | None, reason: str) -> Drained:
        began, jobs = time.monotonic(), self._pending()
        try:
            await self._await(self._ending(jobs, timeout))
        except BaseException:
            reason = "the wait for it was interrupted"
            raise
        finally:
            abandoned = self._abandon(jobs, reason)
            with anyio.CancelScope(shield=True):
                await self._await(self._ending(jobs, EXIT_GRACE_SECONDS))
        self._poll()
        return _drained(jobs, abandoned, time.monotonic() - began)

    # --- Entering and leaving ---

    def __enter__(self) -> AsyncEvalDispatcher:
        self._tokens.append(set_async_eval_dispatcher(self))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave_context()
        timeout, logger_seconds = self._limits_after(problem)
        if isinstance(problem, Exception):
            # It will not be seen before the wait is over.
            ended = f"training ended by {type(problem).__name__}: {printable_error(problem)[:200]}"
            _log_wait(self._pending(), timeout, because=f"{ended}; ")
        self._close(timeout, logger_seconds, complete=problem is None)

    async def __aenter__(self) -> AsyncEvalDispatcher:
        if self._is_ours("async with"):
            await self._loop.enter()
        self._tokens.append(set_async_eval_dispatcher(self))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave_context()
        if not self._is_ours("async with"):
            return
        timeout, logger_seconds = self._limits_after(problem)
        try:
            await self._adrain(timeout, f"not finished {timeout} s after the end of training")
        finally:
            if self._stop():
                close = partial(self._close_files, logger_seconds, complete=problem is None)
                with anyio.CancelScope(shield=True):
                    await self._threads.run(close)
                self._threads.close()
            await self._loop.leave()

    def _leave_context(self) -> None:
        try:
            _current.reset(self._tokens.pop())
        except ValueError:  # left in another task or thread than it was entered in
            if _current.get() is self:
                _current.set(None)

    def close(self, timeout: float | None = 600.0) -> Drained:
        """Drain, then close threads, files and loggers. Evals scheduled later are skips.

        Args:
            timeout: Seconds to wait for evals at most; None for no limit.

        Returns:
            Which evals were finished, skipped and abandoned.
        """
        self._check_no_loop("close()")
        return self._close(timeout, LOGGER_SECONDS, complete=True)

    def _close(
        self,
        timeout: float | None,
        logger_seconds: float,
        *,
        complete: bool,
        reason: str | None = None,
    ) -> Drained:
        if not self._is_ours("close"):
            return Drained()
        try:
            return self._drain(
                timeout, reason or f"not finished {timeout} s after the end of training"
            )
        finally:
            if self._stop():
                self._close_files(logger_seconds, complete=complete)
                self._threads.close()

    def end_with_process(self) -> None:
        """Close this at the end of the process, if it was not closed before."""
        if os.getpid() == self.pid:
            reason = "the process ended before it was finished"
            self._close(EXIT_GRACE_SECONDS, EXIT_GRACE_SECONDS, complete=False, reason=reason)

    def _limits_after(self, problem: BaseException | None) -> tuple[float | None, float]:
        """Return how long to wait for evals and loggers: briefly after Ctrl-C or a cancellation."""
        if problem is None or isinstance(problem, Exception | SystemExit):
            return self.drain_timeout, LOGGER_SECONDS
        return EXIT_GRACE_SECONDS, EXIT_GRACE_SECONDS

    def _stop(self) -> bool:
        """Accept no more evals; False if it was stopped before."""
        _living.discard(self)
        atexit.unregister(self.end_with_process)
        with self._changed:
            if self._closed:
                return False
            self._closed = True
        self.trainer.close()
        self._notify()
        self._loop.close(EXIT_GRACE_SECONDS)
        return True

    def _close_files(self, logger_seconds: float, *, complete: bool) -> None:
        with self._changed:
            unjudged, self._unlogged = self._unlogged, []
        for job in unjudged:  # the trainer's thread has not come back for them
            if job.point is not None:
                self.log_point(job.point, job.file)
        self._loggers.close(logger_seconds)
        if self._file is None:
            return
        try:
            self._file.close()
            if complete:
                self._file.mark_complete(bare=True)
        except (RunDirectoryError, OSError) as problem:
            log.warning("the curve in %s could not be closed", self.run_dir, exc_info=problem)
        leave_curve_file(self._file, self)

    def _is_ours(self, what: str) -> bool:
        """Return False in a forked child, which has neither the threads nor the locks."""
        if os.getpid() == self.pid:
            return self.is_first
        log.error(
            "%s: this AsyncEvalDispatcher belongs to process %s, and does nothing in its forked "
            "child %s; make another one here, with another run_dir",
            what,
            self.pid,
            os.getpid(),
        )
        return False


def _call_plain(evaluator: Evaluator) -> Any:
    """Call a plain evaluator in a thread, without disturbing CUDA graph captures of training."""
    with thread_local_capture_mode():
        return evaluator()


def _log_wait(jobs: Sequence[EvalJob], timeout: float | None, *, because: str = "") -> None:
    left = [job for job in jobs if not job.done()]
    if left:
        log.warning(
            "%swaiting %s for evals: %s; Ctrl-C abandons them",
            because,
            "without bound" if timeout is None else f"up to {timeout:g} s",
            ", ".join(f"{job.name} of step {job.step}" for job in left[:5]),
        )


def _drained(jobs: list[EvalJob], abandoned: list[EvalJob], seconds: float) -> Drained:
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


# --- SIGTERM ------------------------------------------------------------------------------------

_living: set[AsyncEvalDispatcher] = set()
"""Dispatchers that are open."""


def _handle_sigterm(seconds: float) -> None:
    """Close dispatchers at SIGTERM, and end the process.

    Another handler, if set, decides whether and how the process ends.
    """

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        _close_all(seconds)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, on_sigterm)


def _close_all(seconds: float) -> None:
    """Close all dispatchers in another thread.

    This one may have been interrupted while it held a lock. Then this gives up, and the write-ahead
    lines still say what is missing.
    """

    def close_all() -> None:
        for dispatcher in list(_living):
            dispatcher.end_with_process()

    thread = threading.Thread(target=close_all, daemon=True)
    thread.start()
    thread.join(seconds)
