"""AsyncEvalDispatcher: evals that overlap with the training that goes on.

    with AsyncEvalDispatcher(run_dir="outputs/run1") as evals:
        for step in range(1, …):
            …                                              # train
            if step % 50 == 0:
                client = save_weights(step)                # what is measured must not change
                evals.schedule(partial(evaluate_on, client), step=step)

`schedule` returns at once. A result is a line of `curve.jsonl`, and goes to every sink, at the step
it was scheduled at, whenever it comes and in whatever order (clause 15); what fails, is dropped or
given up on is a skip with its reason, never an exception in the training (clause 14).

Async evaluators run in an event loop: the trainer's own (`async with`), or one in a thread beside
it. Plain ones run in daemon threads. So no eval keeps the process from ending.
"""

from __future__ import annotations

import atexit
import logging
import math
import operator
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import anyio
import msgspec

from heldout.concurrency import Threads, is_async, settle, waker
from heldout.errors import InvalidInput
from heldout.midrun.curve import CurvePoint, encode_point
from heldout.midrun.evalloop import EvalLoop
from heldout.midrun.measure import describe
from heldout.midrun.pending import (
    Drained,
    Ended,
    Left,
    Offer,
    PendingEval,
    Queue,
    Scheduled,
    WhenFull,
    left_evals,
    pending_evals,
    write_pending,
)
from heldout.midrun.recorder import Recorder, Result, point_of, skip_of
from heldout.midrun.sinks import Sink
from heldout.midrun.sinks.guarded import Sinks

log = logging.getLogger("heldout")

__all__ = [
    "AsyncEvalDispatcher",
    "Drained",
    "Ended",
    "Evaluator",
    "PendingEval",
    "Result",
    "Scheduled",
    "get_async_eval_dispatcher",
    "pending_evals",
    "set_async_eval_dispatcher",
    "use_async_eval_dispatcher",
]

EXIT_GRACE_SECONDS = 2.0
"""How long evals under way are waited for where the process ends and nobody drained."""
SINK_SECONDS = 60.0
"""How long sinks may take, at the end of training, for what they have not stored yet."""

Evaluator = Callable[[], Result | Awaitable[Result]]


@dataclass(eq=False, slots=True)
class _Job:
    evaluator: Evaluator | None
    eval: PendingEval
    handle: Scheduled
    claimed: bool = False
    """Whether somebody has taken it upon himself to write its line: there is only one."""
    scope: anyio.CancelScope | None = None
    """While it runs. Only looked at in its event loop: to cancel one that was left is to cancel
    what comes after it."""

    @property
    def gone(self) -> bool:
        return self.handle.done()

    def cancel(self) -> None:
        if self.scope is not None:
            self.scope.cancel()


class AsyncEvalDispatcher:
    """`run_dir` is where the curve is, `sinks` what else is told; they are closed with this.

    `max_pending` bounds what runs and waits for its turn, together; `max_running` how many run at
    once: all of them, unless `when_full="newest"`, which keeps one place for waiting. Where it is
    full, `schedule` waits, or the new eval is skipped, or the oldest that has not started gives way
    to it. An eval that takes more than `max_seconds` is a skip. `drain_timeout` bounds the wait at
    the end of a `with` block. With `handle_sigterm`, a SIGTERM that nobody else handles still ends
    the process, but evals under way are written down as skips first. `session` names this start of
    the training; whoever else writes points of it to the same curve must have the same.
    """

    def __init__(
        self,
        *,
        run_dir: str | Path | None = None,
        sinks: Sequence[Sink] | Sinks = (),
        max_pending: int = 4,
        when_full: WhenFull = "wait",
        max_running: int | None = None,
        max_seconds: float | None = None,
        drain_timeout: float | None = 600.0,
        handle_sigterm: bool = False,
        session: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_seconds is not None and not max_seconds > 0:
            raise InvalidInput(f"max_seconds is a number above 0, or None, got {max_seconds!r}")
        if handle_sigterm and threading.current_thread() is not threading.main_thread():
            raise InvalidInput("handle_sigterm needs the main thread: only there are signals set")
        self.run_dir = Path(run_dir) if run_dir is not None else None
        self._clock = clock
        self._max_seconds, self._drain_timeout = max_seconds, drain_timeout
        self._pid, self._session = os.getpid(), session or os.urandom(4).hex()
        self._changed = threading.Condition()
        """Held while any of the next five is looked at or changed, and pending.json replaced."""
        self._queue: Queue[_Job] = Queue(max_pending, max_running, when_full)
        self._left: list[PendingEval] = []
        self._latest = 0
        self._watchers: set[Callable[[], None]] = set()
        self._closed = False
        self._loop: EvalLoop[_Job] = EvalLoop(self._start, self._run, self._loop_is_gone)
        self._threads = Threads()
        left = left_evals(self.run_dir) if self.run_dir is not None else []
        self._recorder = Recorder(self.run_dir, sinks, shared=session is not None)
        self._take_over(left)
        _living.add(self)
        atexit.register(self._end_with_process)
        if handle_sigterm:
            _handle_sigterm()

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
        """Have it run while training goes on; its result is that of `step`.

        `weights` is a hash of those it measures, `saved_at` where they can be had again, for
        `pending_evals` after a crash. Waits only where `when_full="wait"` and it is full; in the
        event loop that evals run in, where waiting would be for ever, that is a skip instead:
        there, use `aschedule`.
        """
        return self._schedule(self._job(evaluator, step, name, weights, saved_at))

    async def aschedule(
        self,
        evaluator: Evaluator,
        *,
        step: int,
        name: str = "eval",
        weights: str | None = None,
        saved_at: str | Path | None = None,
    ) -> Scheduled:
        """`schedule` for coroutines: where it waits, the event loop goes on."""
        return await self._aschedule(self._job(evaluator, step, name, weights, saved_at))

    def schedule_again(self, evaluator: Evaluator, pending: PendingEval) -> Scheduled:
        """One of `pending_evals`, on the weights that it was to measure.

        Its point belongs to the start of the training that scheduled it. As a point of this one,
        it would say that training went back to that step, and what came after would not count.
        """
        return self._schedule(self._new_job(evaluator, pending))

    async def aschedule_again(self, evaluator: Evaluator, pending: PendingEval) -> Scheduled:
        return await self._aschedule(self._new_job(evaluator, pending))

    def note_step(self, step: int) -> None:
        """Where training is, so that results can say how far behind it they are."""
        if self._is_ours("note_step"):
            with self._changed:
                self._latest = max(self._latest, step)

    def _job(
        self,
        evaluator: Evaluator,
        step: int,
        name: str,
        weights: str | None,
        saved_at: str | Path | None,
    ) -> _Job:
        try:
            step = operator.index(step)
        except TypeError:
            step = -1
        if not 0 <= step <= 2**53:
            raise InvalidInput("step is a whole number, from 0")
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise InvalidInput(f"name is what the eval is called on the curve, got {name!r}")
        place = None if saved_at is None else os.fspath(saved_at)
        return self._new_job(evaluator, PendingEval(name, step, self._session, weights, place))

    def _new_job(self, evaluator: Evaluator, pending: PendingEval) -> _Job:
        if not callable(evaluator):
            raise InvalidInput(f"an evaluator is a function without arguments, got {evaluator!r}")
        handle = Scheduled(pending.step, pending.name, lambda: self._loop.is_here)
        return _Job(evaluator, pending, handle)

    def _schedule(self, job: _Job) -> Scheduled:
        if not self._is_ours("schedule"):
            job.handle._done.set()
            return job.handle
        self._loop.start_beside()
        with self._changed:
            while (offer := self._offer(job)) == Offer():
                if self._loop.is_here:
                    offer = Offer(
                        refused=f"{len(self._queue)} evals were pending, and schedule() cannot wait"
                        " in the event loop that they run in; use `await aschedule(…)`"
                    )
                    break
                log.info("schedule waits: %s evals are pending", len(self._queue))
                self._changed.wait()
        return self._settle_offer(job, offer)

    async def _aschedule(self, job: _Job) -> Scheduled:
        if not self._is_ours("aschedule"):
            job.handle._done.set()
            return job.handle
        self._loop.start_beside()
        while True:
            with self._watched() as changed:
                with self._changed:
                    offer = self._offer(job)
                if offer != Offer():
                    return self._settle_offer(job, offer)
                await changed.wait()

    def _offer(self, job: _Job) -> Offer[_Job]:
        ours = job.eval.session == self._session
        if ours:
            self._latest = max(self._latest, job.eval.step)
        if self._closed:
            return Offer(refused="the dispatcher was closed")
        if not self._loop.is_open:
            return Offer(refused="no event loop could be started for it")
        offer = self._queue.offer(job)
        if offer.taken:
            # A training that is at this step again has gone back: what earlier starts of it left
            # at later steps is of weights that are no more.
            place = (job.eval.name, job.eval.step, job.eval.session)
            self._left = [
                left
                for left in self._left
                if (left.name, left.step, left.session) != place
                and not (ours and left.session != self._session and left.step >= job.eval.step)
            ]
        return offer

    def _settle_offer(self, job: _Job, offer: Offer[_Job]) -> Scheduled:
        if offer.refused is not None:
            self._skip(job, offer.refused)
        if offer.dropped is not None:
            why = f"gave way to the eval of step {job.eval.step}: "
            self._skip(offer.dropped, f"{why}{self._queue.max_pending} were pending (max_pending)")
        if offer.taken:
            with self._changed:
                self._write_pending()
            self._loop.wake()
        return job.handle

    # --- Draining ---

    def drain(self, timeout: float | None = 600.0) -> Drained:
        """Wait for what is pending now, `timeout` seconds at most (None: without bound). What has
        not ended by then is given up on, and is a skip."""
        if not self._is_ours("drain"):
            return Drained()
        self._check_elsewhere("drain()")
        return self._drain(timeout, f"not finished after {timeout} s of waiting for it (drain)")

    async def adrain(self, timeout: float | None = 600.0) -> Drained:
        """`drain` for coroutines."""
        if not self._is_ours("adrain"):
            return Drained()
        return await self._adrain(
            timeout, f"not finished after {timeout} s of waiting for it (adrain)"
        )

    def _check_elsewhere(self, what: str) -> None:
        if self._loop.is_here:
            raise InvalidInput(
                f"{what} would wait in the event loop that the evals run in, for ever; there, use "
                "`await adrain()`, and `async with`"
            )

    def _drain(self, timeout: float | None, why: str) -> Drained:
        began, jobs = self._clock(), self._pending()
        try:
            self._wait_for(jobs, timeout)
        except BaseException:
            why = "the wait for it was interrupted"
            raise
        finally:
            given_up = self._abandon(jobs, why)
            self._wait_for(jobs, EXIT_GRACE_SECONDS)  # somebody is writing their lines
        return self._drained(jobs, given_up, began)

    async def _adrain(self, timeout: float | None, why: str) -> Drained:
        began, jobs = self._clock(), self._pending()
        try:
            with anyio.move_on_after(timeout):
                await self._await_all(jobs)
        except BaseException:
            why = "the wait for it was interrupted"
            raise
        finally:
            given_up = self._abandon(jobs, why)
            with anyio.move_on_after(EXIT_GRACE_SECONDS, shield=True):
                await self._await_all(jobs)
        return self._drained(jobs, given_up, began)

    def _pending(self) -> list[_Job]:
        with self._changed:
            return self._queue.items()

    def _wait_for(self, jobs: list[_Job], timeout: float | None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: all(job.gone for job in jobs), timeout)

    async def _await_all(self, jobs: list[_Job]) -> None:
        while True:
            with self._watched() as changed:
                if all(job.gone for job in jobs):
                    return
                await changed.wait()

    def _abandon(self, jobs: list[_Job], why: str) -> list[_Job]:
        """Those that nobody else brings to an end become skips, and stay in pending.json."""
        with self._changed:
            ours = [job for job in jobs if self._claim(job)]
            # Before their lines are written: a skip without this mark would be a failed eval.
            for job in ours:
                self._queue.remove(job)
                self._left.append(msgspec.structs.replace(job.eval, lost=True))
            if ours:
                self._write_pending()
        for job in ours:
            self._loop.call(job.cancel)
            log.warning("eval %r of step %s is abandoned: %s", job.eval.name, job.eval.step, why)
            self._close_job(job, skip_of(job.eval, why))
        return ours

    def _drained(self, jobs: list[_Job], given_up: list[_Job], began: float) -> Drained:
        drained = Drained(seconds=self._clock() - began)
        for job in jobs:
            place, point = (job.eval.name, job.eval.step), job.handle._point
            if point is None:
                drained.abandoned.append(Ended(*place, "its line is being written"))
            elif job in given_up:
                drained.abandoned.append(Ended(*place, point.skipped or ""))
            elif point.summary is None:
                drained.skipped.append(Ended(*place, point.skipped or ""))
            else:
                drained.finished.append(place)
        return drained

    # --- The end ---

    def __enter__(self) -> AsyncEvalDispatcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        seconds = EXIT_GRACE_SECONDS if _is_interruption(problem) else SINK_SECONDS
        self._close(self._timeout_after(problem), seconds, complete=problem is None)

    async def __aenter__(self) -> AsyncEvalDispatcher:
        if self._is_ours("async with"):
            await self._loop.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_ours("async with"):
            return
        timeout = self._timeout_after(problem)
        try:
            await self._adrain(timeout, f"not finished {timeout} s after the end of training")
        finally:
            if self._stop():
                seconds = EXIT_GRACE_SECONDS if _is_interruption(problem) else SINK_SECONDS
                close = partial(self._recorder.close, seconds, complete=problem is None)
                with anyio.CancelScope(shield=True):
                    await self._threads.run(close)
                self._threads.close()
            await self._loop.leave()

    def close(self, timeout: float | None = 600.0) -> Drained:
        """Drain, then give back threads, files and sinks. What is scheduled later is a skip."""
        self._check_elsewhere("close()")
        return self._close(timeout, SINK_SECONDS, complete=True)

    def _close(
        self,
        timeout: float | None,
        sink_seconds: float,
        *,
        complete: bool,
        why: str | None = None,
    ) -> Drained:
        if not self._is_ours("close"):
            return Drained()
        try:
            return self._drain(
                timeout, why or f"not finished {timeout} s after the end of training"
            )
        finally:
            if self._stop():
                self._recorder.close(sink_seconds, complete=complete)
                self._threads.close()

    def _end_with_process(self) -> None:
        if os.getpid() == self._pid:
            why = "the process ended before it was finished"
            self._close(EXIT_GRACE_SECONDS, EXIT_GRACE_SECONDS, complete=False, why=why)

    def _timeout_after(self, problem: BaseException | None) -> float | None:
        return EXIT_GRACE_SECONDS if _is_interruption(problem) else self._drain_timeout

    def _stop(self) -> bool:
        """False where it was stopped before."""
        _living.discard(self)
        atexit.unregister(self._end_with_process)
        with self._changed:
            if self._closed:
                return False
            self._closed = True
            self._changed.notify_all()
            for watcher in self._watchers:
                watcher()
        self._loop.close(EXIT_GRACE_SECONDS)
        return True

    # --- Running ---

    def _is_ours(self, what: str) -> bool:
        """A forked child has neither the threads nor the locks of what it finds here."""
        if os.getpid() == self._pid:
            return True
        log.error(
            "%s: this AsyncEvalDispatcher belongs to process %s, and does nothing in its forked "
            "child %s; make another one here, with another run_dir",
            what,
            self._pid,
            os.getpid(),
        )
        return False

    def _start(self) -> list[_Job]:
        with self._changed:
            return self._queue.start()

    def _loop_is_gone(self) -> None:
        self._abandon(self._pending(), "the event loop that it ran in is gone")

    @contextmanager
    def _watched(self) -> Iterator[anyio.Event]:
        """An event that is set when anything changes, for coroutines in whichever loop."""
        event, wake = anyio.Event(), waker()

        def watcher() -> None:
            wake(event.set)

        with self._changed:
            self._watchers.add(watcher)
        try:
            yield event
        finally:
            with self._changed:
                self._watchers.discard(watcher)

    async def _run(self, job: _Job) -> None:
        began, result = self._clock(), None
        problem: BaseException | None = None
        evaluator, job.evaluator = job.evaluator, None  # it may hold weights; no longer than needed
        try:
            with anyio.move_on_after(self._max_seconds) as limit:
                job.scope = limit
                if job.claimed or evaluator is None:
                    return
                if is_async(evaluator):
                    result = await settle(evaluator())
                else:
                    result = await settle(await self._threads.run(evaluator))
            if limit.cancelled_caught:
                problem = InvalidInput(f"not finished after max_seconds={self._max_seconds}")
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                self._abandon([job], "it was cancelled")
                raise
            # Not by us: something that it awaited was. To raise that would end its siblings, too.
            problem = InvalidInput("something that it waited for was cancelled")
        except KeyboardInterrupt as interrupted:
            if not self._loop.is_beside:
                raise  # it is the trainer's
            problem = interrupted
        except BaseException as raised:  # noqa: BLE001 - the reason of the skip
            problem = raised
        finally:
            job.scope = None
        del evaluator
        # In a thread: the disk, sinks and large reports would hold up the loop, and the trainer.
        seconds = self._clock() - began
        try:
            await self._threads.run(self._finish, job, result, problem, seconds)
        except Exception as broken:
            log.error("eval %r of step %s", job.eval.name, job.eval.step, exc_info=broken)
            self._finish(job, result, problem, seconds)  # where there was no thread to be had
        finally:
            result = problem = None  # else it and its traceback hold each other, and the weights

    # --- Results ---

    def _finish(
        self, job: _Job, result: Any, problem: BaseException | None, seconds: float
    ) -> None:
        with self._changed:
            if not self._claim(job):
                return
        point = None
        try:
            if problem is None:
                point = point_of(result, job.eval, seconds, self.run_dir)
                encode_point(point)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - the reason of the skip
            problem = raised.with_traceback(None)
        if problem is not None:
            name, step = job.eval.name, job.eval.step
            log.warning("eval %r of step %s failed", name, step, exc_info=problem)
            point = skip_of(job.eval, describe(problem), seconds)
        assert point is not None
        self._close_job(job, point)

    def _skip(self, job: _Job, why: str) -> None:
        with self._changed:
            if not self._claim(job):
                return
        log.warning("eval %r of step %s is skipped: %s", job.eval.name, job.eval.step, why)
        self._close_job(job, skip_of(job.eval, why))

    def _claim(self, job: _Job) -> bool:
        first, job.claimed = not job.claimed, True
        return first

    def _close_job(self, job: _Job, point: CurvePoint) -> None:
        """Whoever has claimed it: its line, the sinks, and its place is free."""
        point = self._recorder.record(point, max(0, self._latest - point.step))
        with self._changed:
            job.handle._point = point
            job.handle._done.set()
            job.evaluator = None
            self._queue.remove(job)
            self._write_pending()
            self._changed.notify_all()
            for watcher in self._watchers:
                watcher()
        self._loop.wake()

    # --- The run directory ---

    def _take_over(self, unfinished: Iterable[Left]) -> None:
        """What earlier starts of the training have left."""
        for left in unfinished:
            lost = msgspec.structs.replace(left.eval, lost=True)
            self._left.append(lost)
            if not left.on_curve:
                # So that every eval that was scheduled has a line, and earlier starts of the
                # training come before this one on the curve, whatever is finished late.
                why = "the process ended before it was finished"
                self._recorder.record(skip_of(lost, why), lag_steps=0)
        self._write_pending()

    def _write_pending(self) -> None:
        if self.run_dir is None:
            return
        try:
            write_pending(self.run_dir, [*self._left, *(job.eval for job in self._queue.items())])
        except Exception as problem:
            log.warning("evals under way could not be written down", exc_info=problem)


def _is_interruption(problem: BaseException | None) -> bool:
    """Who presses Ctrl-C, or cancels a training, does not want to wait for evals."""
    return problem is not None and not isinstance(problem, Exception | SystemExit)


# --- The one that is installed ------------------------------------------------------------------

_installed: ContextVar[AsyncEvalDispatcher | None] = ContextVar("async_evals", default=None)


def get_async_eval_dispatcher() -> AsyncEvalDispatcher | None:
    """The one that was installed in this context; none of a process that this one was forked from.

    Threads have contexts of their own: those that are started by hand do not see it.
    """
    found = _installed.get()
    return found if found is not None and found._pid == os.getpid() else None


def set_async_eval_dispatcher(
    dispatcher: AsyncEvalDispatcher | None,
) -> Token[AsyncEvalDispatcher | None]:
    """Install it. The token's `var.reset(token)` puts back what was there."""
    return _installed.set(dispatcher)


@contextmanager
def use_async_eval_dispatcher(dispatcher: AsyncEvalDispatcher) -> Iterator[AsyncEvalDispatcher]:
    """Installed inside the block; opens and drains nothing."""
    token = _installed.set(dispatcher)
    try:
        yield dispatcher
    finally:
        _installed.reset(token)


# --- The end of the process ---------------------------------------------------------------------

_living: set[AsyncEvalDispatcher] = set()
_before_sigterm: Any = None


def _close_all() -> None:
    for dispatcher in list(_living):
        dispatcher._end_with_process()


def _handle_sigterm() -> None:
    """Once: who sets a handler after that may call ours, and must not be called by it in turn."""
    global _before_sigterm
    if _before_sigterm is not None:
        return
    _before_sigterm = signal.getsignal(signal.SIGTERM)
    if _before_sigterm is None:
        log.warning("handle_sigterm: there is a handler that is not Python's; it is left alone")
    else:
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    """Where somebody else has a handler, the end will be an orderly one, if it is to be the end:
    that handler decides. Only the default, which is to die at once, is put off."""
    if callable(_before_sigterm):
        _before_sigterm(number, frame)
    elif _before_sigterm == signal.SIG_DFL:
        # In another thread, because this one may have been interrupted while it held a lock; then
        # this gives up, and pending.json still has what the next start of the training needs.
        closing = threading.Thread(target=_close_all, daemon=True)
        closing.start()
        closing.join(4 * EXIT_GRACE_SECONDS + 1)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
