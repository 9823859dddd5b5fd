"""AsyncEvalDispatcher: evals that run in the background while training goes on.

    with AsyncEvalDispatcher(run_dir="outputs/run1") as evals:
        for step in range(1, …):
            …                                              # train
            if step % 50 == 0:
                client = save_weights(step)                # what is measured must not change
                evals.schedule(partial(evaluate_on, client), step=step)

`schedule` returns at once. A result is a line of `curve.jsonl`, and goes to every logger, at the
step it was scheduled at, whenever it comes and in whatever order (clause 15). What fails, is
dropped or given up on is a skip with its reason, never an exception in training (clause 14).

Async evaluators run in an event loop: the trainer's own (`async with`), or one in a thread. Plain
ones run in daemon threads. So no eval keeps the process from ending.
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
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args

import anyio
import anyio.abc
import msgspec

from heldout._aio import Threads, is_async, settle, waker
from heldout.errors import InvalidInput, RunDirectoryError, printable_error
from heldout.isolation import thread_local_capture_mode
from heldout.training.curve import CurvePoint, pending_points, read_points
from heldout.training.curve_file import CurveFile, leave_curve_file, open_curve_file
from heldout.training.distributed import is_first_process
from heldout.training.event_loop import EventLoop
from heldout.training.loggers import Logger
from heldout.training.loggers.base import Loggers, checked_loggers
from heldout.training.metrics import heartbeat_fields
from heldout.training.results import (
    NOT_FINISHED,
    SAME_WEIGHTS,
    Result,
    pending_point,
    point_of,
    skip_of,
)
from heldout.training.run_eval import Known, describe
from heldout.training.trainer_thread import TrainerThread

log = logging.getLogger("heldout")

EXIT_GRACE_SECONDS = 2.0
"""How long evals in flight are waited for where the process ends and nobody drained."""
QUIET_SECONDS = 5.0
"""How long evals are waited for without a word."""
LOGGER_SECONDS = 60.0
"""How long loggers may take, at the end of training, for what they have not stored yet."""
RETRY_SECONDS = 0.5
"""How often a free snapshot is looked for, while other evals hold them."""

T = TypeVar("T")
WhenFull = Literal["wait", "skip", "newest"]
Evaluator = Callable[..., Result | Known | Awaitable[Result]]


class Snapshot(Protocol):
    """Weights that stay what they are while training goes on (`heldout.training.snapshot`)."""

    def in_use(self) -> AbstractContextManager[Any]:
        """Entered in the thread that evaluates it."""

    def version(self) -> Any:
        """Has `weights`, a hash of their content, or None."""

    def why_changed(self) -> str | None:
        """Why it is not what it was when it was taken, where that can happen."""

    def release(self) -> None:
        """It is not needed any more."""


TakeSnapshot = Callable[[], Snapshot | None]


class Ended(NamedTuple):
    """An eval that ended without a result."""

    name: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """What became of the evals that were pending when `drain` began."""

    finished: list[tuple[str, int]] = field(default_factory=list)
    """(name, step)."""
    skipped: list[Ended] = field(default_factory=list)
    abandoned: list[Ended] = field(default_factory=list)
    """Had not ended when time was up. A result that comes after all is not recorded."""
    seconds: float = 0.0


@dataclass(eq=False)
class Scheduled:
    """A scheduled eval, as `schedule` returns it."""

    step: int
    name: str
    _dispatcher: AsyncEvalDispatcher = field(repr=False)
    point: CurvePoint | None = None
    """Once it has ended."""
    is_new: bool = True
    """Whether that point was measured now; an earlier attempt may have measured it."""
    _done: bool = False

    def done(self) -> bool:
        """Whether it has ended, in a result or in a skip."""
        return self._done

    def result(self, timeout: float | None = None) -> CurvePoint | None:
        """Wait for its point.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Returns:
            The point; None where it has not ended in time.

        Raises:
            InvalidInput: This is the event loop that the eval runs in.
        """
        if not self._done and timeout != 0:
            if self._dispatcher.in_event_loop:
                raise InvalidInput(
                    "result() would wait in the event loop that the eval runs in, for ever; "
                    "`await dispatcher.adrain()` first"
                )
            self._dispatcher.wait_for([self], timeout)
        return self.point


# --- The dispatcher in use --------------------------------------------------------------------

_current: ContextVar[AsyncEvalDispatcher | None] = ContextVar("async_evals", default=None)


def get_async_eval_dispatcher() -> AsyncEvalDispatcher | None:
    """Get the dispatcher that is in use in this context.

    Returns:
        The dispatcher; None where there is none, in a forked child, and in processes of a training
        run that leave evals to the first one. Threads that are started by hand have a context of
        their own.
    """
    dispatcher = _current.get()
    ours = dispatcher is not None and dispatcher.pid == os.getpid() and dispatcher.is_first
    return dispatcher if ours else None


def set_async_eval_dispatcher(
    dispatcher: AsyncEvalDispatcher | None,
) -> Token[AsyncEvalDispatcher | None]:
    """Use a dispatcher in this context. `with AsyncEvalDispatcher():` does so, too.

    Args:
        dispatcher: The dispatcher, or None.

    Returns:
        A token: `token.var.reset(token)` puts back what was there.

    Raises:
        InvalidInput: It is not a dispatcher.
    """
    if dispatcher is not None and not isinstance(dispatcher, AsyncEvalDispatcher):
        raise InvalidInput(f"an AsyncEvalDispatcher, or None, is set, got {dispatcher!r:.100}")
    return _current.set(dispatcher)


def runs_async_evals() -> bool:
    """Whether a dispatcher is in use, also where another process is the one that evaluates."""
    return _current.get() is not None


def pending_evals(run_dir: str | Path) -> list[CurvePoint]:
    """List the evals of a training run that were scheduled and have no result.

    Args:
        run_dir: The run directory.

    Returns:
        Their points by step: in flight, lost with their process, or given up on.
        `AsyncEvalDispatcher.schedule_again` and `PeriodicEval.finish` take them.

    Raises:
        RunDirectoryError: There is no such directory.
    """
    path = Path(run_dir)
    if not path.is_dir():
        raise RunDirectoryError(f"there is no run directory {run_dir}")
    curve = path / "curve.jsonl"
    return pending_points(read_points(curve)) if curve.exists() else []


# --- The queue ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer(Generic[T]):
    """What became of one that wants to join: taken, refused with a reason, or neither: to wait."""

    taken: bool = False
    dropped: T | None = None
    """The one that gave up its place."""
    refused: str | None = None

    @property
    def waits(self) -> bool:
        """Whether it is neither taken nor refused."""
        return not self.taken and self.refused is None


class Queue(Generic[T]):
    """At most `max_running` run, and at most `max_pending` run or wait for their turn."""

    def __init__(self, max_pending: int, max_running: int | None, when_full: WhenFull) -> None:
        if max_running is None:
            # Only what has not started can give way to something newer: one place for that.
            max_running = max(1, max_pending - 1) if when_full == "newest" else max_pending
        for name, value in (("max_pending", max_pending), ("max_running", max_running)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name} is a whole number >= 1, got {value!r}")
        if when_full not in get_args(WhenFull):
            raise InvalidInput(f"when_full is 'wait', 'skip' or 'newest', got {when_full!r}")
        self.max_pending, self.max_running = max_pending, max_running
        self.when_full: WhenFull = when_full
        self._running: list[T] = []
        self._queued: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._running) + len(self._queued)

    def items(self) -> list[T]:
        """List what runs and what is queued."""
        return [*self._running, *self._queued]

    def offer(self, item: T, *, must: bool = False) -> Offer[T]:
        """Let one join. `must`: it waits for its place, and no other gives way to it."""
        dropped = None
        if len(self) >= self.max_pending:
            if self.when_full == "wait" or must:
                return Offer()
            if self.when_full == "skip" or not self._queued:
                return Offer(
                    refused=f"{len(self)} evals were in flight (max_pending={self.max_pending}); "
                    "when_full='wait' has training wait instead"
                )
            dropped = self._queued.popleft()
        self._queued.append(item)
        return Offer(taken=True, dropped=dropped)

    def start(self) -> list[T]:
        """Those that may begin now; from here on they run."""
        room = min(self.max_running - len(self._running), len(self._queued))
        begun = [self._queued.popleft() for _ in range(room)]
        self._running += begun
        return begun

    def oldest(self, which: Callable[[T], bool]) -> T | None:
        """The oldest of those that have not started."""
        return next((item for item in self._queued if which(item)), None)

    def remove(self, item: T) -> None:
        """It ended, or was given up on; nothing to do where it was dropped before."""
        if item in self._running:
            self._running.remove(item)
        elif item in self._queued:
            self._queued.remove(item)


@dataclass(eq=False, slots=True)
class Job:
    """A scheduled eval, as the dispatcher has it."""

    evaluator: Evaluator | None
    pending: CurvePoint
    """Its write-ahead line."""
    handle: Scheduled
    file: CurveFile | None
    take_snapshot: TakeSnapshot | None = None
    snapshot: Snapshot | None = None
    pool: Any = None
    """What its snapshot is taken from: only the same pool can make use of it once released."""
    must: bool = False
    """Whether it waits for a place, whatever the policy is,"""
    until: float = math.inf
    """but no longer than to this time."""
    again: bool = False
    """Whether it was lost before; if it fails, it stays pending."""
    written_ahead: bool = False
    claimed: bool = False
    """Whether its end is being written: it has only one."""
    weights: str | None = None
    """Hash of the snapshot's weights."""
    scope: anyio.CancelScope | None = None
    """While it runs. Only used in its event loop: to cancel one that was left is to cancel what
    comes after it."""

    def cancel(self) -> None:
        """Cancel it, in its event loop."""
        if self.scope is not None:
            self.scope.cancel()

    def release(self) -> None:
        """Release its snapshot."""
        snapshot, self.snapshot = self.snapshot, None
        if snapshot is not None:
            snapshot.release()


# --- The dispatcher -----------------------------------------------------------------------------


class AsyncEvalDispatcher:
    """Runs evals in the background. Entering it (`with`, `async with`) puts it to use.

    A `PeriodicEval` that is called inside the block is evaluated in the background, too. Of several
    processes that train together the first one evaluates; in the others this does nothing.

    Args:
        run_dir: Where the curve of scheduled evals is written. May be left out where nothing but
            `PeriodicEval`s are run, which have their own.
        loggers: What else gets each point; closed with this.
        max_pending: How many evals may be in flight, running or queued.
        when_full: What happens beyond that: `"skip"` the new eval, `"wait"` for a place, or drop
            the oldest that has not started for the `"newest"`.
        max_running: How many run at once; all of them, but for `"newest"`, which keeps a place for
            one that is queued.
        max_seconds: Longest time that one eval may take; then it is a skip.
        drain_timeout: Longest wait for evals in flight at the end of the block.
        handle_sigterm: Whether a SIGTERM that no other handler takes writes down evals in flight as
            skips before it ends the process.
        resume: Whether a curve that is in `run_dir` already is continued.

    Raises:
        InvalidInput: An argument is not what it should be.
        RunExists: `run_dir` has a curve, and `resume` is not set.
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
        if max_seconds is not None and not max_seconds > 0:
            raise InvalidInput(f"max_seconds is a number above 0, or None, got {max_seconds!r}")
        if drain_timeout is not None and not drain_timeout >= 0:
            raise InvalidInput(f"drain_timeout is a number from 0, or None, got {drain_timeout!r}")
        if handle_sigterm and threading.current_thread() is not threading.main_thread():
            raise InvalidInput("handle_sigterm needs the main thread: only there are signals set")
        # Absolute: the working directory may change in the middle of it.
        self.run_dir = Path(run_dir).absolute() if run_dir is not None else None
        self.pid = os.getpid()
        self.is_first = is_first_process()
        """Whether this is the process that evaluates."""
        self.drain_timeout = drain_timeout
        self.latest_step = 0
        """The step that training is at."""
        self._max_seconds = max_seconds
        self._queue: Queue[Job] = Queue(max_pending, max_running, when_full)
        self._changed = threading.Condition()
        """Held while the queue, claims, `_watchers` and `_closed` are looked at or changed."""
        self._watchers: set[Callable[[], None]] = set()
        self._closed = False
        self._names: set[tuple[str, str, int]] = set()
        self._log_paths: dict[str, list[Path | None]] = {}
        """Run directories of each label that loggers were told of."""
        self._collectors: list[weakref.WeakMethod[Callable[[], object]]] = []
        self._tokens: list[Token[AsyncEvalDispatcher | None]] = []
        self._file: CurveFile | None = None
        if self.run_dir is not None and self.is_first:
            file = open_curve_file(self.run_dir, self)
            file.enter(resume=resume or file.is_entered)
            file.write_bare_config()
            self._file = file
        # Last: loggers have threads.
        own = () if isinstance(loggers, Loggers) else checked_loggers(loggers)
        self._loggers = (
            loggers if isinstance(loggers, Loggers) else Loggers(*own if self.is_first else ())
        )
        self._warned_nowhere = self.run_dir is not None or bool(own) or self._loggers is loggers
        # They are closed after the last skips; and a forked child, which has none of their
        # threads, must not wait for them when it ends.
        atexit.unregister(self._loggers.close)
        self._trainer = TrainerThread(self._notify)
        self._threads = Threads()
        self._loop: EventLoop[Job] = EventLoop(self._run, self._abandon_all)
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
        snapshot: TakeSnapshot | None = None,
    ) -> Scheduled:
        """Run an eval in the background. Its result is that of `step`.

        Waits only where `when_full="wait"` and it is full; in the event loop that evals run in,
        where that would be for ever, the eval is a skip: there, use `aschedule`.

        Args:
            evaluator: A function, plain or async, that returns a report, a point, or numbers by
                name. With `snapshot`, a plain function of the snapshot.
            step: The step of its point.
            name: Its name on the curve. A second eval of one name and step is numbered (`eval-2`).
            weights: Hash of the weights that it measures.
            saved_at: Where those weights can be loaded from, for `pending_evals` after a crash.
            snapshot: Takes a snapshot of the weights, in this thread, as soon as there is a place
                for the eval: `partial(pool.try_take, model, step=step)`. None of them free is as
                good as full.

        Returns:
            The scheduled eval.

        Raises:
            InvalidInput: An argument is not what it should be.
        """
        return self._join(self._new_job(evaluator, step, name, weights, saved_at, snapshot))

    async def aschedule(
        self,
        evaluator: Evaluator,
        *,
        step: int,
        name: str = "eval",
        weights: str | None = None,
        saved_at: str | Path | None = None,
        snapshot: TakeSnapshot | None = None,
    ) -> Scheduled:
        """`schedule` for coroutines: where it waits, the event loop goes on."""
        return await self._ajoin(self._new_job(evaluator, step, name, weights, saved_at, snapshot))

    def schedule_again(self, evaluator: Evaluator, pending: CurvePoint) -> Scheduled:
        """Run one of `pending_evals`, on the weights that it was to measure.

        Args:
            evaluator: A function, as for `schedule`.
            pending: The eval. Its point belongs to the attempt that scheduled it: as one of this
                attempt, it would say that training went back to that step.

        Returns:
            The scheduled eval.
        """
        return self._join(self._again(evaluator, pending))

    def schedule_on(
        self,
        file: CurveFile,
        evaluator: Evaluator,
        pending: CurvePoint,
        *,
        snapshot: TakeSnapshot,
        deadline: float | None = None,
    ) -> Scheduled:
        """Run the eval of a `PeriodicEval`, which has a curve of its own.

        Args:
            file: Its curve.
            evaluator: A function of the snapshot.
            pending: Its write-ahead line.
            snapshot: Takes the snapshot.
            deadline: If given, it waits for a place whatever the policy is, until that time
                (`time.monotonic`), and training waits for it.

        Returns:
            The scheduled eval.
        """
        job = self._job(evaluator, pending, file, snapshot)
        if deadline is not None:
            job.must, job.until = True, deadline
        return self._join(job)

    def _new_job(
        self,
        evaluator: Evaluator,
        step: int,
        name: str,
        weights: str | None,
        saved_at: str | Path | None,
        snapshot: TakeSnapshot | None,
    ) -> Job:
        if snapshot is not None and is_async(evaluator):
            raise InvalidInput(
                "an evaluator on a snapshot is a plain function: it has a thread of its own"
            )
        session = self._file.session if self._file is not None else ""
        pending = pending_point(name, step, session, weights=weights, saved_at=saved_at)
        pending = msgspec.structs.replace(pending, label=self._distinct_name(pending))
        job = self._job(evaluator, pending, self._file, snapshot)
        self._used_names.add(pending.key)
        return job

    def _again(self, evaluator: Evaluator, pending: CurvePoint) -> Job:
        if self._file is None and self.is_first:
            raise InvalidInput(
                "schedule_again needs a dispatcher with the run_dir that the eval was lost in"
            )
        pending = skip_of(pending, NOT_FINISHED, retry=True)
        job = self._job(evaluator, pending, self._file)
        job.again = True
        return job

    def _job(
        self,
        evaluator: Evaluator,
        pending: CurvePoint,
        file: CurveFile | None,
        snapshot: TakeSnapshot | None = None,
    ) -> Job:
        if inspect.iscoroutine(evaluator):
            evaluator.close()
            raise InvalidInput("an evaluator is a function, not its call: leave out the brackets")
        if not callable(evaluator):
            raise InvalidInput(f"an evaluator is a function, got {evaluator!r:.100}")
        handle = Scheduled(pending.step, pending.label, self)
        pool = getattr(getattr(snapshot, "func", snapshot), "__self__", None)
        return Job(evaluator, pending, handle, file, snapshot, pool=pool)

    @property
    def _used_names(self) -> set[tuple[str, str, int]]:
        """Keys in use: those of the run directory, whichever dispatcher has it."""
        return self._names if self._file is None else self._file.names

    def _distinct_name(self, pending: CurvePoint) -> str:
        """Name an eval on the curve.

        A second eval of a step is numbered, since one result would hide the other. One that is
        tried again after a skip keeps its name.
        """
        name, number = pending.label, 1
        labels = set() if self._file is None else self._file.labels
        while name in labels or (pending.session, name, pending.step) in self._used_names:
            number += 1
            name = f"{pending.label}-{number}"
        if number > 1:
            log.warning(
                "two evals called %r were scheduled at step %s; this one is %r on the curve. Give "
                "each a name= of its own",
                pending.label,
                pending.step,
                name,
            )
        return name

    # --- Joining the queue ---

    def _join(self, job: Job) -> Scheduled:
        if not self._is_ours("schedule"):
            job.handle._done = True
            return job.handle
        self._warn_nowhere(job)
        self._loop.start_thread()
        logged = False
        while True:
            with self._changed:
                offer = self._offer(job)
                if offer.waits and self._loop.is_here:
                    offer = Offer(
                        refused=f"{len(self._queue)} evals were pending, and a plain call cannot "
                        "wait in the event loop that they run in (where you call it yourself, "
                        "use `await aschedule(…)`)"
                    )
                elif offer.waits and not self._trainer.has_calls:
                    if not logged:
                        logged = True
                        log.info("schedule waits: %s evals are pending", len(self._queue))
                    retries = job.take_snapshot is not None or job.until < math.inf
                    self._changed.wait(RETRY_SECONDS if retries else None)
            if not offer.waits:
                self._settle_offer(job, offer)
                return job.handle
            self._trainer.run_calls(job.until)

    async def _ajoin(self, job: Job) -> Scheduled:
        if not self._is_ours("aschedule"):
            job.handle._done = True
            return job.handle
        self._warn_nowhere(job)
        self._loop.start_thread()
        while True:
            with self._watch() as changed:
                self._trainer.run_calls()
                with self._changed:
                    offer = self._offer(job)
                if not offer.waits:
                    self._settle_offer(job, offer)
                    return job.handle
                retries = job.take_snapshot is not None
                with anyio.move_on_after(RETRY_SECONDS if retries else None):
                    await changed.wait()

    def _offer(self, job: Job) -> Offer[Job]:
        """Holding the lock: what gets a place has its snapshot before it can start."""
        if job.file is None or job.pending.session == job.file.session:
            self.latest_step = max(self.latest_step, job.pending.step)
        if self._closed:
            return Offer(refused="the dispatcher was closed")
        if not self._loop.is_open:
            return Offer(refused="no event loop could be started for it")
        offer = self._queue.offer(job, must=job.must)
        if offer.dropped is not None:
            offer.dropped.release()
        try:
            if offer.taken and job.take_snapshot is not None:
                offer = self._with_snapshot(job, job.take_snapshot, offer)
            if offer.taken and job.file is not None:
                job.file.in_flight.add(job.pending.key)
                if not job.must:  # training waits for it, and has no line before its end
                    job.file.append(job.pending)
                    job.written_ahead = True
        except BaseException:  # Ctrl-C: nothing would ever take it out again
            self._queue.remove(job)
            job.release()
            if offer.dropped is not None:
                self._skip(offer.dropped, "gave way to an eval that was interrupted (when_full)")
            raise
        if offer.waits and time.monotonic() >= job.until:
            return Offer(refused="there was no place for it in time")
        return offer

    def _with_snapshot(self, job: Job, take: TakeSnapshot, offer: Offer[Job]) -> Offer[Job]:
        dropped, refused = offer.dropped, "all snapshots were in use"
        try:
            job.snapshot = take()
            newest = self._queue.when_full == "newest" and not job.must
            if job.snapshot is None and newest and job.pool is not None and dropped is None:
                dropped = self._queue.oldest(lambda j: j.pool is job.pool and j is not job)
                if dropped is not None:
                    self._queue.remove(dropped)
                    dropped.release()
                    job.snapshot = take()
        except Exception as problem:  # noqa: BLE001 - the reason of the skip
            refused = f"snapshot: {describe(problem)}"
        else:
            if job.snapshot is not None:
                return Offer(taken=True, dropped=dropped)
            others = [j for j in self._queue.items() if j.pool is job.pool and j is not job]
            if job.pool is not None and not others:
                refused = "all snapshots were in use, by no eval that is in flight here"
            elif self._queue.when_full == "wait" or job.must:
                refused = ""
        self._queue.remove(job)
        return Offer(dropped=dropped, refused=refused or None)

    def _settle_offer(self, job: Job, offer: Offer[Job]) -> None:
        if offer.refused is not None:
            self._skip(job, offer.refused)
        if offer.dropped is not None:
            reason = f"gave way to the eval of step {job.pending.step} (when_full)"
            self._skip(offer.dropped, reason)
        if offer.taken:
            self._start_next()

    def _start_next(self) -> None:
        with self._changed:
            jobs = self._queue.start()
        for job in jobs:
            self._loop.spawn(job)

    def _warn_nowhere(self, job: Job) -> None:
        if job.file is None and not self._warned_nowhere:
            log.warning(
                "eval %r of step %s: this AsyncEvalDispatcher has neither run_dir nor loggers, so "
                "that results are nowhere but in what schedule() returns",
                job.pending.label,
                job.pending.step,
            )
        self._warned_nowhere = True

    # --- Running ---

    async def _run(self, job: Job) -> None:
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
                log.error("eval %r of step %s", job.handle.name, job.handle.step, exc_info=broken)
            else:  # no thread can be started: the process ends
                self._finish(job, result, problem, seconds)
        finally:
            result = problem = None  # else it and its traceback hold each other, and the weights

    def _evaluate_snapshot(self, job: Job, evaluator: Evaluator) -> Any:
        """In a thread. One that is given up on keeps the snapshot: it is still being read."""
        with self._changed:
            snapshot, job.snapshot = job.snapshot, None
        if snapshot is None:
            raise InvalidInput("its snapshot was given back before it began")
        try:
            with snapshot.in_use():
                job.weights = snapshot.version().weights
                if job.written_ahead and job.file is not None and job.weights is not None:
                    # So that `finish` can tell whether it is given the same weights.
                    job.file.append(msgspec.structs.replace(job.pending, weights=job.weights))
                result = evaluator(snapshot)
                if (reason := snapshot.why_changed()) is not None:
                    raise InvalidInput(reason)
                return result
        finally:
            snapshot.release()
            self._notify()

    # --- The end of an eval ---

    def _finish(self, job: Job, result: Any, problem: BaseException | None, seconds: float) -> None:
        if not self._claim(job):
            return
        point: CurvePoint | None = None
        is_new = not isinstance(result, Known)
        try:
            if isinstance(result, Known):
                point = result.point
                if job.written_ahead and job.file is not None:
                    job.file.append(skip_of(job.pending, SAME_WEIGHTS, seconds))
            else:
                point, problem = self._append_end(job, result, problem, seconds)
        finally:
            self._close_job(job, point, is_new=is_new)
        # After its line: a log handler may raise.
        name, step = job.pending.label, job.pending.step
        if problem is not None:
            log.warning("eval %r of step %s failed", name, step, exc_info=problem)
        elif is_new and point is not None and point.skipped is not None:
            log.warning("eval %r of step %s is skipped: %s", name, step, point.skipped)

    def _append_end(
        self, job: Job, result: Any, problem: BaseException | None, seconds: float
    ) -> tuple[CurvePoint, BaseException | None]:
        """Write what an evaluator returned; where that is no result, a skip that says why."""
        if problem is None:
            run_dir = None if job.file is None else job.file.run.path
            try:
                point = point_of(result, job.pending, seconds, run_dir)
                return self._append(job, point), None
            except Exception as raised:  # noqa: BLE001 - what it returned is the user's
                problem = raised.with_traceback(None)
        skip = skip_of(job.pending, describe(problem), seconds, retry=job.again)
        return self._append(job, skip), problem

    def _skip(self, job: Job, reason: str) -> None:
        if self._claim(job):
            self._close_job(job, self._append(job, skip_of(job.pending, reason, retry=job.again)))
            name, step = job.pending.label, job.pending.step
            log.warning("eval %r of step %s is skipped: %s", name, step, reason)

    def _abandon(self, jobs: list[Job], reason: str) -> list[Job]:
        """Those that nothing else brings to an end become skips, and stay pending."""
        ours = [job for job in jobs if self._claim(job)]
        for job in ours:
            self._loop.call(job.cancel)
            point = self._append(job, skip_of(job.pending, reason, retry=True))
            self._close_job(job, point)
        for job in ours:
            name, step = job.pending.label, job.pending.step
            log.warning("eval %r of step %s is abandoned: %s", name, step, reason)
        return ours

    def _abandon_all(self) -> None:
        self._abandon(self._pending(), "the event loop that it ran in is gone")

    def _claim(self, job: Job) -> bool:
        with self._changed:
            first, job.claimed = not job.claimed, True
        return first

    def _append(self, job: Job, point: CurvePoint) -> CurvePoint:
        """Write the point of an eval, and tell the loggers. InvalidInput: no line can hold it."""
        lag = max(0, self.latest_step - point.step)
        weights = point.weights or job.weights
        point = msgspec.structs.replace(point, lag_steps=lag, weights=weights)
        if job.file is not None:
            job.file.append(point)
            if self._closed:
                job.file.close()
        self.log_point(point, job.file)
        return point

    def _close_job(self, job: Job, point: CurvePoint | None, *, is_new: bool = True) -> None:
        with self._changed:
            job.release()
            job.evaluator = None
            self._queue.remove(job)
            if job.file is not None:
                job.file.in_flight.discard(job.pending.key)
            if point is None or not point.has_result:
                self._used_names.discard(job.pending.key)
            job.handle.point, job.handle.is_new, job.handle._done = point, is_new, True
            self._notify()
        self._start_next()

    def log_point(self, point: CurvePoint, file: CurveFile | None) -> None:
        """Tell the loggers of a point that is written already.

        Args:
            point: The point.
            file: Its curve. Two curves of one label are two names to a logger: one would overwrite
                the other.
        """
        if not self._is_ours("log_point"):
            return
        path, label = None if file is None else file.run.path, point.label
        paths = self._log_paths.setdefault(label, [path])
        number = paths.index(path) + 1 if path in paths else len(paths) + 1
        name = label if number == 1 else f"{label}-{number}"
        if path not in paths:
            paths.append(path)
            log.warning(
                "%s and %s are both called %r; loggers get the second as %r",
                paths[0],
                path,
                label,
                name,
            )
        fields = {key: v for key, v in heartbeat_fields(point).items() if v is not None}
        self._loggers.log(name, point.step, fields)

    # --- The trainer's thread ---

    def call_in_trainer(self, function: Callable[[], T], is_given_up: Callable[[], bool]) -> T:
        """`TrainerThread.call`, for an eval in a thread."""
        return self._trainer.call(function, is_given_up)

    def poll(self, step: int | None = None) -> None:
        """Run what evals need run in the trainer's thread. To be called there, at every step.

        Args:
            step: Where training is, so that results can say how many steps they lag behind.
        """
        if self._is_ours("poll"):
            if step is not None:
                self.latest_step = step
            self._trainer.adopt_current()
            self._poll()

    def _poll(self) -> None:
        if self._trainer.is_current:
            self._trainer.run_calls()
            for collector in self._collectors:
                if (collect := collector()) is not None:
                    collect()

    def on_poll(self, collect: Callable[[], object]) -> None:
        """Have a method called in the trainer's thread, at every poll and after a drain."""
        method = weakref.WeakMethod(collect)
        if method not in self._collectors:
            self._collectors = [m for m in self._collectors if m() is not None] + [method]

    # --- Waiting ---

    @property
    def in_event_loop(self) -> bool:
        """Whether to wait here would be for ever: evals run in the event loop of this thread."""
        return self._loop.is_here

    def wait_for(self, handles: Sequence[Scheduled], timeout: float | None) -> None:
        """Wait for evals, and run meanwhile what they need run in this thread.

        Args:
            handles: The evals.
            timeout: Seconds to wait at most; None for no limit.
        """
        if not self._is_ours("a wait"):
            return
        until = math.inf if timeout is None else time.monotonic() + timeout

        def is_over() -> bool:
            return self._trainer.has_calls or all(handle.done() for handle in handles)

        while not all(handle.done() for handle in handles):
            left = until - time.monotonic()
            if left <= 0:
                return
            with self._changed:
                self._changed.wait_for(is_over, None if left == math.inf else left)
            self._trainer.run_calls(until)

    async def _await_jobs(self, jobs: list[Job]) -> None:
        while True:
            with self._watch() as changed:
                self._trainer.run_calls()
                if all(job.handle.done() for job in jobs):
                    return
                await changed.wait()

    @contextmanager
    def _watch(self) -> Iterator[anyio.Event]:
        """An event that is set when anything changes, for coroutines in whichever loop."""
        event, post = anyio.Event(), waker()

        def watcher() -> None:
            post(event.set)

        with self._changed:
            self._watchers.add(watcher)
        try:
            yield event
        finally:
            with self._changed:
                self._watchers.discard(watcher)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
            for watcher in self._watchers:
                watcher()

    def _pending(self) -> list[Job]:
        with self._changed:
            return self._queue.items()

    # --- Draining ---

    def drain(self, timeout: float | None = 600.0) -> Drained:
        """Wait for what is pending now. What has not ended in time is given up on, and is a skip.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Returns:
            What was finished, skipped and abandoned.

        Raises:
            InvalidInput: This is the event loop that the evals run in.
        """
        if not self._is_ours("drain"):
            return Drained()
        self._check_no_loop("drain()")
        return self._drain(timeout, f"not finished after {timeout} s of waiting for it (drain)")

    async def adrain(self, timeout: float | None = 600.0) -> Drained:
        """`drain` for coroutines."""
        if not self._is_ours("adrain"):
            return Drained()
        return await self._adrain(
            timeout, f"not finished after {timeout} s of waiting for it (adrain)"
        )

    def _check_no_loop(self, what: str) -> None:
        if self.in_event_loop:
            raise InvalidInput(
                f"{what} would wait in the event loop that the evals run in, for ever; there, use "
                "`await adrain()`, and `async with`"
            )

    def _drain(self, timeout: float | None, reason: str) -> Drained:
        began, jobs = time.monotonic(), self._pending()
        handles = [job.handle for job in jobs]
        try:
            if timeout is None or timeout > QUIET_SECONDS:
                self.wait_for(handles, QUIET_SECONDS)
                _log_wait(handles, timeout)
                timeout = None if timeout is None else timeout - QUIET_SECONDS
            self.wait_for(handles, timeout)
        except BaseException:
            reason = "the wait for it was interrupted"
            raise
        finally:
            abandoned = self._abandon(jobs, reason)
            # Others may be writing their lines.
            self.wait_for(handles, EXIT_GRACE_SECONDS)
        self._poll()
        return _drained(jobs, abandoned, time.monotonic() - began)

    async def _adrain(self, timeout: float | None, reason: str) -> Drained:
        began, jobs = time.monotonic(), self._pending()
        try:
            with anyio.move_on_after(timeout):
                await self._await_jobs(jobs)
        except BaseException:
            reason = "the wait for it was interrupted"
            raise
        finally:
            abandoned = self._abandon(jobs, reason)
            with anyio.move_on_after(EXIT_GRACE_SECONDS, shield=True):
                await self._await_jobs(jobs)
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
        timeout = self._timeout_after(problem)
        if isinstance(problem, Exception):
            # It will not be seen before the wait is over.
            ended = f"training ended by {type(problem).__name__}: {printable_error(problem)[:200]}"
            _log_wait([job.handle for job in self._pending()], timeout, because=f"{ended}; ")
        self._close(timeout, _logger_seconds(problem), complete=problem is None)

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
        timeout = self._timeout_after(problem)
        try:
            await self._adrain(timeout, f"not finished {timeout} s after the end of training")
        finally:
            if self._stop():
                close = partial(
                    self._close_files, _logger_seconds(problem), complete=problem is None
                )
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
        """Drain, then close threads, files and loggers. What is scheduled later is a skip.

        Args:
            timeout: Seconds to wait for evals at most; None for no limit.

        Returns:
            What was finished, skipped and abandoned.
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
        """Close this where the process ends and it was not closed."""
        if os.getpid() == self.pid:
            reason = "the process ended before it was finished"
            self._close(EXIT_GRACE_SECONDS, EXIT_GRACE_SECONDS, complete=False, reason=reason)

    def _timeout_after(self, problem: BaseException | None) -> float | None:
        return EXIT_GRACE_SECONDS if _is_interruption(problem) else self.drain_timeout

    def _stop(self) -> bool:
        """Let no eval join any more. False where it was stopped before."""
        _living.discard(self)
        atexit.unregister(self.end_with_process)
        with self._changed:
            if self._closed:
                return False
            self._closed = True
        self._trainer.close()
        self._notify()
        self._loop.close(EXIT_GRACE_SECONDS)
        return True

    def _close_files(self, logger_seconds: float, *, complete: bool) -> None:
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
        """A forked child has neither the threads nor the locks of what it finds here."""
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
    """In a thread: CUDA graphs that training captures meanwhile must not notice."""
    with thread_local_capture_mode():
        return evaluator()


def _log_wait(handles: Sequence[Scheduled], timeout: float | None, *, because: str = "") -> None:
    left = [handle for handle in handles if not handle.done()]
    if left:
        log.warning(
            "%swaiting %s for evals: %s; Ctrl-C gives them up",
            because,
            "without bound" if timeout is None else f"up to {timeout:g} s",
            ", ".join(f"{handle.name} of step {handle.step}" for handle in left[:5]),
        )


def _drained(jobs: list[Job], abandoned: list[Job], seconds: float) -> Drained:
    drained = Drained(seconds=seconds)
    for job in jobs:
        name, step, point = job.pending.label, job.pending.step, job.handle.point
        if not job.handle.done():
            drained.abandoned.append(Ended(name, step, "its line is being written"))
        elif job in abandoned:
            drained.abandoned.append(Ended(name, step, (point and point.skipped) or ""))
        elif point is not None and point.summary is None:
            drained.skipped.append(Ended(name, step, point.skipped or ""))
        else:
            drained.finished.append((name, step))
    return drained


def _is_interruption(problem: BaseException | None) -> bool:
    """Whoever presses Ctrl-C, or cancels a training run, does not want to wait for evals."""
    return problem is not None and not isinstance(problem, Exception | SystemExit)


def _logger_seconds(problem: BaseException | None) -> float:
    return EXIT_GRACE_SECONDS if _is_interruption(problem) else LOGGER_SECONDS


# --- SIGTERM ------------------------------------------------------------------------------------

_living: set[AsyncEvalDispatcher] = set()
"""Dispatchers that are open."""


def _handle_sigterm(seconds: float) -> None:
    """Install a SIGTERM handler, unless ours is installed."""
    before: Any = signal.getsignal(signal.SIGTERM)
    if getattr(before, "is_heldouts", False):
        return
    if before is None:
        log.warning("handle_sigterm: there is a handler that is not Python's; it is left alone")
        return
    entered = False

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        """Close dispatchers before the default handler ends the process.

        Where there is another handler, that one decides whether and how the process ends.
        """
        nonlocal entered
        if entered:  # by one that was set after ours, and calls it, and is called by it
            return
        entered = True
        try:
            if callable(before):
                before(number, frame)
            elif before == signal.SIG_DFL:
                _close_all(seconds)
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
        finally:
            entered = False

    on_sigterm.is_heldouts = True  # type: ignore[attr-defined]
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
