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
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, get_args

import anyio
import msgspec

from heldout._core.checks import check_count
from heldout.errors import InvalidInput, RunDirectoryError, printable_error
from heldout.training.background.jobs import (
    EvalLoop,
    Evaluator,
    JobState,
    JobTable,
    Scheduled,
    WhenFull,
)
from heldout.training.background.sigterm import close_at_sigterm, open_dispatchers
from heldout.training.background.threads import TrainerThread, deadline
from heldout.training.curve.curve_file import (
    CurveFile,
    leave_curve_file,
    numbered_names,
    open_curve_file,
)
from heldout.training.curve.points import (
    NOT_FINISHED,
    CurvePoint,
    pending_point,
    pending_points,
    read_points,
    skip_of,
)
from heldout.training.curve.publishing import PointLog
from heldout.training.loggers import Logger, LogsMetrics
from heldout.training.loggers.base import CLOSE_SECONDS, Loggers, checked_loggers
from heldout.training.ranks import is_first_process

log = logging.getLogger("heldout")

EXIT_GRACE_SECONDS = 2.0
"""How long to wait for evals in flight if the process ends without a drain."""
QUIET_SECONDS = 5.0
"""How long to wait for evals before the log says so."""


# --- The dispatcher in use --------------------------------------------------------------------

dispatcher_in_use: ContextVar[AsyncEvalDispatcher | None] = ContextVar("async_evals", default=None)


def get_async_eval_dispatcher() -> AsyncEvalDispatcher | None:
    """Return the dispatcher of this context.

    Returns:
        The dispatcher; None if there is none, in a forked child, and in all but the first process
        of a training run. Threads that you start have their own context.
    """
    dispatcher = dispatcher_in_use.get()
    ours = dispatcher is not None and dispatcher.trainer.pid == os.getpid() and dispatcher.is_first
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
        raise InvalidInput(
            f"dispatcher must be an AsyncEvalDispatcher or None, got {dispatcher!r:.100}"
        )
    return dispatcher_in_use.set(dispatcher)


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


def _have_ended(jobs: Sequence[Scheduled]) -> bool:
    return all(job.done() for job in jobs)


def _log_wait(jobs: Sequence[Scheduled], timeout: float | None, *, because: str = "") -> None:
    """Log that training waits for evals, if it does."""
    left = [job for job in jobs if not job.done()]
    if left:
        log.warning(
            "%swaiting %s for evals: %s; Ctrl-C abandons them",
            because,
            "without limit" if timeout is None else f"up to {timeout:g} s",
            ", ".join(f"{job.name} of step {job.step}" for job in left[:5]),
        )


def _sum_up_drain(
    jobs: Sequence[Scheduled], abandoned: Sequence[Scheduled], seconds: float
) -> Drained:
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


# --- The dispatcher -----------------------------------------------------------------------------


class AsyncEvalDispatcher:
    """Runs evals in the background, inside a `with` or `async with` block.

    Inside the block a `PeriodicEval` runs in the background, too. If several processes train
    together, only the first one evaluates; in the others this does nothing.

    Args:
        run_dir: Run directory for the curve of scheduled evals. Not needed if only `PeriodicEval`s
            run, which have their own.
        loggers: Loggers that also get each point; closed with the dispatcher. One that has only
            `log_metrics(metrics, step)`, as trainers' own have, gets the numbers and is left open.
            Pass a `Loggers` to set the size of its queues.
        max_pending: How many evals of your own functions (`schedule`) may be in flight, running or
            queued. The limit of a `PeriodicEval` is its `snapshots`.
        when_full: What happens beyond that: `"skip"` the new eval, `"wait"` for a slot, or keep the
            `"newest"` of each name: the oldest that has not started gives way to a newer one of its
            own name, and the last one of each name stays queued, even beyond `max_pending`.
        max_running: How many evals run at once; by default all, except with `"newest"`, which keeps
            one slot, or one snapshot, for a queued eval.
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
        loggers: Sequence[Logger | LogsMetrics | str] | Loggers = (),
        max_pending: int = 8,
        when_full: WhenFull = "skip",
        max_running: int | None = None,
        max_seconds: float | None = None,
        drain_timeout: float | None = 600.0,
        handle_sigterm: bool = False,
        resume: bool = False,
    ) -> None:
        if when_full not in get_args(WhenFull):
            raise InvalidInput(f"when_full must be 'wait', 'skip' or 'newest', got {when_full!r}")
        check_count("max_pending", max_pending, low=1)
        check_count("max_running", max_running, low=1, optional=True)
        if max_seconds is not None and not max_seconds > 0:
            raise InvalidInput(
                f"max_seconds must be a number above 0, or None, got {max_seconds!r}"
            )
        if drain_timeout is not None and not drain_timeout >= 0:
            raise InvalidInput(
                f"drain_timeout must be a number >= 0, or None, got {drain_timeout!r}"
            )
        if handle_sigterm and threading.current_thread() is not threading.main_thread():
            raise InvalidInput("handle_sigterm works only in the main thread")
        # Absolute: the working directory may change in the middle of it.
        self.run_dir = Path(run_dir).absolute() if run_dir is not None else None
        self.is_first = is_first_process()
        """Whether this is the process that evaluates."""
        self.drain_timeout = drain_timeout
        self._collectors: list[weakref.WeakMethod[Callable[[], object]]] = []
        self._tokens: list[Token[AsyncEvalDispatcher | None]] = []
        self._file: CurveFile | None = None
        if self.run_dir is not None and self.is_first:
            file = open_curve_file(self.run_dir, self)
            file.enter(resume=resume or file.is_entered)
            file.write_bare_config()
            self._file = file
        # Last: loggers have threads.
        if isinstance(loggers, Loggers):
            is_logged = True
        else:
            own = checked_loggers(loggers)
            loggers, is_logged = Loggers(*own if self.is_first else ()), bool(own)
        self._warned_nowhere = self.run_dir is not None or is_logged
        # They are closed after the last skips; and a forked child, which has none of their
        # threads, must not wait for them when it ends.
        atexit.unregister(loggers.close)
        self.trainer = TrainerThread()
        """Runs what evals need in the trainer's thread."""
        self.jobs = JobTable(
            self.trainer,
            PointLog(loggers),
            set() if self._file is None else self._file.names,
            max_pending=max_pending,
            when_full=when_full,
            max_running=max_running,
        )
        """All evals that it was given, and how they end."""
        self._loop = EvalLoop(self.jobs, max_seconds)
        if self.is_first:
            open_dispatchers.add(self.end_with_process)
            atexit.register(self.end_with_process)
        if handle_sigterm:
            close_at_sigterm(4 * EXIT_GRACE_SECONDS + 1)

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
        return self.queue(self._new_job(evaluator, step, name, weights, saved_at))

    async def aschedule(self, evaluator: Evaluator, *, step: int, **options: Any) -> Scheduled:
        """Schedule an eval as `schedule` does, without blocking the event loop.

        Args:
            evaluator: A function, as for `schedule`.
            step: The step of its point.
            **options: The other arguments of `schedule`.
        """
        job = self._new_job(evaluator, step, **options)
        await self.trainer.wait_async(self._joining(job))
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
        lost = skip_of(pending, NOT_FINISHED, retry=True)
        job = self._job(evaluator, lost)
        job.is_retry = True
        return self.queue(job)

    def _new_job(
        self,
        evaluator: Evaluator,
        step: int,
        name: str = "eval",
        weights: str | None = None,
        saved_at: str | Path | None = None,
    ) -> Scheduled:
        session = self._file.session if self._file is not None else ""
        pending = pending_point(name, step, session, weights=weights, saved_at=saved_at)
        pending = msgspec.structs.replace(pending, label=self._distinct_name(pending))
        job = self._job(evaluator, pending)
        self.jobs.names.add(pending.key)
        return job

    def _job(self, evaluator: Evaluator, pending: CurvePoint) -> Scheduled:
        if inspect.iscoroutine(evaluator):
            evaluator.close()
            raise InvalidInput("evaluator is a function, not its call: leave out the parentheses")
        if not callable(evaluator):
            raise InvalidInput(f"evaluator must be a function, got {evaluator!r:.100}")
        return Scheduled(table=self.jobs, evaluator=evaluator, pending=pending, file=self._file)

    def _distinct_name(self, pending: CurvePoint) -> str:
        """Name an eval on the curve.

        A second eval of a step is numbered, since one result would hide the other. One that is
        tried again after a skip keeps its name.
        """
        labels = set() if self._file is None else self._file.labels
        name = next(
            name
            for name in numbered_names(pending.label)
            if name not in labels and (pending.session, name, pending.step) not in self.jobs.names
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

    def queue(self, job: Scheduled) -> Scheduled:
        """Queue an eval as soon as there is a slot, or end it as a skip.

        Args:
            job: The eval.

        Returns:
            The same.

        Raises:
            NotCopyable: There can be no snapshot of its model.
        """
        until = math.inf if job.waits_until is None else job.waits_until
        self.trainer.wait(self._joining(job, may_wait=not self.trainer.in_event_loop), until)
        return job

    def _joining(self, job: Scheduled, *, may_wait: bool = True) -> Callable[[], bool]:
        """Return what queues an eval, or ends it as a skip; False where it has to be asked again.

        Args:
            job: The eval.
            may_wait: As for `JobTable.try_to_join`.
        """
        if not self._is_ours("schedule"):
            job.state = JobState.ENDED
            return job.done
        self._warn_nowhere(job)
        self._loop.start_thread()
        return partial(self.jobs.try_to_join, job, may_wait=may_wait)

    def _warn_nowhere(self, job: Scheduled) -> None:
        if job.file is None and not self._warned_nowhere:
            log.warning(
                "eval %r of step %s: this AsyncEvalDispatcher has neither run_dir nor loggers, so "
                "results are only in what schedule() returns",
                job.name,
                job.step,
            )
        self._warned_nowhere = True

    def has_in_flight(self, file: CurveFile, key: tuple[str, str, int]) -> bool:
        """Whether an eval of a curve, by its key, is queued or runs here."""
        jobs = self.jobs.in_flight
        return any(job.file is file and job.pending.key == key for job in jobs)

    # --- The trainer's thread ---

    def poll(self, step: int | None = None) -> None:
        """Run what evals need in the trainer's thread. Call it there, at every step.

        Args:
            step: The current training step, for the `lag_steps` of results.
        """
        if self._is_ours("poll"):
            if step is not None:
                self.jobs.latest_step = step
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

    def wait_for(self, jobs: Sequence[Scheduled], timeout: float | None) -> None:
        """Wait for evals, and run what they need in this thread meanwhile.

        Args:
            jobs: The evals.
            timeout: Seconds to wait at most; None for no limit.
        """
        if self._is_ours("a wait"):
            self.trainer.wait(partial(_have_ended, jobs), deadline(timeout))

    # --- Draining ---

    def drain(self, timeout: float | None = 600.0) -> Drained:
        """Wait for pending evals. Those that have not ended in time are abandoned, as skips.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Returns:
            Which evals were finished, skipped and abandoned. In the event loop that the evals run
            in, where this cannot wait, it must be awaited: `await dispatcher.drain()`.
        """
        if not self._is_ours("drain"):
            return Drained()
        if self.trainer.in_event_loop:
            return DrainToAwait(self.adrain(timeout))
        return self._drain(timeout, f"not finished after waiting {timeout} s (drain)")

    async def adrain(self, timeout: float | None = 600.0) -> Drained:
        """Drain as `drain` does, without blocking whichever event loop this is called in."""
        if not self._is_ours("adrain"):
            return Drained()
        return await self._adrain(timeout, f"not finished after waiting {timeout} s (adrain)")

    def _drain(self, timeout: float | None, reason: str) -> Drained:
        began, jobs = time.monotonic(), self.jobs.in_flight
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
            abandoned = self.jobs.abandon(jobs, reason)
            # Others may be writing their lines.
            self.wait_for(jobs, EXIT_GRACE_SECONDS)
        self._poll()
        return _sum_up_drain(jobs, abandoned, time.monotonic() - began)

    async def _adrain(self, timeout: float | None, reason: str) -> Drained:
        began, jobs = time.monotonic(), self.jobs.in_flight
        try:
            await self.trainer.wait_async(partial(_have_ended, jobs), deadline(timeout))
        except BaseException:
            reason = "the wait for it was interrupted"
            raise
        finally:
            abandoned = self.jobs.abandon(jobs, reason)
            with anyio.CancelScope(shield=True):
                until = deadline(EXIT_GRACE_SECONDS)
                await self.trainer.wait_async(partial(_have_ended, jobs), until)
        self._poll()
        return _sum_up_drain(jobs, abandoned, time.monotonic() - began)

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
        if isinstance(problem, Exception) and os.getpid() == self.trainer.pid:
            # It will not be seen before the wait is over.
            ended = f"training ended by {type(problem).__name__}: {printable_error(problem)[:200]}"
            _log_wait(self.jobs.in_flight, timeout, because=f"{ended}; ")
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
            with anyio.CancelScope(shield=True):
                await self._loop.threads.run(self._stop, logger_seconds, problem is None)
            await self._loop.leave()

    def _leave_context(self) -> None:
        try:
            dispatcher_in_use.reset(self._tokens.pop())
        except ValueError:  # left in another task or thread than it was entered in
            if dispatcher_in_use.get() is self:
                dispatcher_in_use.set(None)

    def close(self, timeout: float | None = 600.0) -> Drained:
        """Drain, then close threads, files and loggers. Evals scheduled later are skips.

        Args:
            timeout: Seconds to wait for evals at most; None for no limit.

        Returns:
            Which evals were finished, skipped and abandoned.
        """
        self.trainer.check_may_wait("close()")
        return self._close(timeout, CLOSE_SECONDS, complete=True)

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
            reason = reason or f"not finished {timeout} s after the end of training"
            return self._drain(timeout, reason)
        finally:
            self._stop(logger_seconds, complete)

    def end_with_process(self) -> None:
        """Close this at the end of the process, if it was not closed before."""
        if os.getpid() == self.trainer.pid:
            reason = "the process ended before it was finished"
            self._close(EXIT_GRACE_SECONDS, EXIT_GRACE_SECONDS, complete=False, reason=reason)

    def _limits_after(self, problem: BaseException | None) -> tuple[float | None, float]:
        """Return how long to wait for evals and loggers: briefly after Ctrl-C or a cancellation."""
        if problem is None or isinstance(problem, Exception | SystemExit):
            return self.drain_timeout, CLOSE_SECONDS
        return EXIT_GRACE_SECONDS, EXIT_GRACE_SECONDS

    def _stop(self, logger_seconds: float, complete: bool) -> None:
        """Accept no more evals, and close threads, files and loggers, once."""
        open_dispatchers.discard(self.end_with_process)
        atexit.unregister(self.end_with_process)
        with self.trainer.lock:
            if self.jobs.is_closed:
                return
            self.jobs.is_closed = True
        self.trainer.close()
        self._loop.close(EXIT_GRACE_SECONDS)
        self.jobs.close(logger_seconds)
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
        """Whether this process evaluates; a forked child, where nothing works, is told."""
        return self.trainer.is_ours(what) and self.is_first
