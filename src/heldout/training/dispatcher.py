"""AsyncEvalDispatcher: evals that overlap with the training that goes on.

    with AsyncEvalDispatcher(run_dir="outputs/run1") as evals:
        for step in range(1, …):
            …                                              # train
            if step % 50 == 0:
                client = save_weights(step)                # what is measured must not change
                evals.schedule(partial(evaluate_on, client), step=step)

`schedule` returns at once. A result is a line of `curve.jsonl`, and goes to every logger, at the
step it was scheduled at, whenever it comes and in whatever order (clause 15); what fails, is
dropped or given up on is a skip with its reason, never an exception in the training (clause 14).

Async evaluators run in an event loop: the trainer's own (`async with`), or one in a thread beside
it. Plain ones run in daemon threads. So no eval keeps the process from ending.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import anyio

from heldout.concurrency import is_async
from heldout.errors import InvalidInput, printable_error
from heldout.training import ending
from heldout.training.curve import CurvePoint
from heldout.training.curve_file import Home, home_of, leave
from heldout.training.distributed import is_first_process
from heldout.training.installed import (
    get_async_eval_dispatcher,
    set_async_eval_dispatcher,
    use_async_eval_dispatcher,
)
from heldout.training.loggers import Logger
from heldout.training.loggers.base import Loggers, checked_loggers
from heldout.training.pending import (
    Drained,
    Ended,
    PendingEval,
    Queue,
    Scheduled,
    WhenFull,
    checked_name,
    checked_place,
    checked_step,
    checked_weights,
    pending_evals,
)
from heldout.training.results import Result
from heldout.training.running import Evaluator, Job, Running, Snapshot

log = logging.getLogger("heldout")

__all__ = [
    "AsyncEvalDispatcher",
    "Drained",
    "Ended",
    "Evaluator",
    "PendingEval",
    "Result",
    "Scheduled",
    "Snapshot",
    "get_async_eval_dispatcher",
    "pending_evals",
    "set_async_eval_dispatcher",
    "use_async_eval_dispatcher",
]

EXIT_GRACE_SECONDS = 2.0
"""How long evals under way are waited for where the process ends and nobody drained."""
QUIET_SECONDS = 5.0
"""How long evals are waited for without a word."""
LOGGER_SECONDS = 60.0
"""How long loggers may take, at the end of training, for what they have not stored yet."""
T = TypeVar("T")


class AsyncEvalDispatcher:
    """`run_dir` is where the curve is, `loggers` what else is told; they are closed with this.

    `max_pending` bounds what runs and waits for its turn, together; `max_running` how many run at
    once: all of them, unless `when_full="newest"`, which keeps one place for waiting. Where it is
    full, the new eval is a skip that says so and training goes on, or `schedule` waits, or the
    oldest that has not started gives way to it. An eval that takes more than `max_seconds` is a
    skip. `drain_timeout` bounds the wait at the end of a `with` block. With `handle_sigterm`, a
    SIGTERM that nobody else handles still ends the process, but evals under way are written down
    as skips first.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_seconds is not None and not max_seconds > 0:
            raise InvalidInput(f"max_seconds is a number above 0, or None, got {max_seconds!r}")
        if drain_timeout is not None and not drain_timeout >= 0:
            raise InvalidInput(f"drain_timeout is a number from 0, or None, got {drain_timeout!r}")
        if handle_sigterm and threading.current_thread() is not threading.main_thread():
            raise InvalidInput("handle_sigterm needs the main thread: only there are signals set")
        # Absolute: somebody may change the working directory in the middle of it.
        self.run_dir = Path(run_dir).absolute() if run_dir is not None else None
        self.pid = os.getpid()
        self.is_first = is_first_process()
        """Of several processes that train together only one evaluates; in the others this does
        nothing."""
        self.drain_timeout = drain_timeout
        self._clock = clock
        self._names: set[tuple[str, str, int]] = set()
        self._visitors: list[weakref.WeakMethod[Callable[[], object]]] = []
        queue: Queue[Job] = Queue(max_pending, max_running, when_full)
        self._home: Home | None = None
        if self.run_dir is not None and self.is_first:
            self._home = _entered(self.run_dir, self)
        # Last: they have threads.
        own = () if isinstance(loggers, Loggers) else checked_loggers(loggers)
        guarded = (
            loggers if isinstance(loggers, Loggers) else Loggers(*own if self.is_first else ())
        )
        self._nowhere = self.run_dir is None and not own and guarded is not loggers
        self.has_scheduled = False
        # They are closed after the last skips; and a forked child, which has none of their
        # threads, must not wait for them when it ends.
        atexit.unregister(guarded.close)
        self._running = Running(queue, guarded, max_seconds=max_seconds, clock=clock)
        if self.is_first:
            ending.living.add(self)
            atexit.register(self.end_with_process)
        if handle_sigterm:
            ending.handle_sigterm(4 * EXIT_GRACE_SECONDS + 1)

    # --- Scheduling ---

    def schedule(
        self,
        evaluator: Evaluator,
        *,
        step: int,
        name: str = "eval",
        weights: str | None = None,
        saved_at: str | Path | None = None,
        snapshot: Callable[[], Snapshot | None] | None = None,
    ) -> Scheduled:
        """Have it run while training goes on; its result is that of `step`. A second eval of one
        name and step is numbered (`eval-2`).

        `weights` is a hash of those it measures, `saved_at` where they can be had again, for
        `pending_evals` after a crash. Waits only where `when_full="wait"` and it is full; in the
        event loop that evals run in, where waiting would be for ever, that is a skip instead:
        there, use `aschedule`.

        With `snapshot`, the evaluator is a plain function of a snapshot of the weights, which is
        taken here, in the caller's thread, as soon as there is a place for the eval:
        `snapshot=partial(shadows.try_take, model, step=step)`. None of them free is as good as
        full.
        """
        return self._joined(self._job(evaluator, step, name, weights, saved_at, snapshot))

    async def aschedule(
        self,
        evaluator: Evaluator,
        *,
        step: int,
        name: str = "eval",
        weights: str | None = None,
        saved_at: str | Path | None = None,
        snapshot: Callable[[], Snapshot | None] | None = None,
    ) -> Scheduled:
        """`schedule` for coroutines: where it waits, the event loop goes on."""
        job = self._job(evaluator, step, name, weights, saved_at, snapshot)
        return await self._ajoined(job)

    def schedule_again(self, evaluator: Evaluator, pending: PendingEval) -> Scheduled:
        """One of `pending_evals`, on the weights that it was to measure.

        Its point belongs to the start of the training that scheduled it. As a point of this one,
        it would say that training went back to that step, and what came after would not count.
        """
        return self._joined(self._again(evaluator, pending))

    async def aschedule_again(self, evaluator: Evaluator, pending: PendingEval) -> Scheduled:
        """`schedule_again` for coroutines."""
        return await self._ajoined(self._again(evaluator, pending))

    def _again(self, evaluator: Evaluator, pending: PendingEval) -> Job:
        if self._home is None and self.is_first:
            raise InvalidInput(
                "schedule_again needs a dispatcher with the run_dir that the eval was lost in"
            )
        return self._new_job(evaluator, pending, self._home)

    def schedule_at(
        self,
        home: Home,
        evaluator: Evaluator,
        pending: PendingEval,
        *,
        snapshot: Callable[[], Snapshot | None],
        must: bool,
    ) -> Scheduled:
        """For whoever has a run directory of his own: his line goes there. `must`: waits for a
        place, whatever the policy is, as long as a drain would."""
        job = self._new_job(evaluator, pending, home, snapshot)
        job.must = must
        if must and self.drain_timeout is not None:
            job.until = time.monotonic() + self.drain_timeout
        return self._joined(job)

    def note_step(self, step: int) -> None:
        """Where training is, so that results can say how far behind it they are."""
        if self._is_ours("note_step"):
            self._running.latest = step

    def _job(
        self,
        evaluator: Evaluator,
        step: int,
        name: str,
        weights: str | None,
        saved_at: str | Path | None,
        snapshot: Callable[[], Snapshot | None] | None,
    ) -> Job:
        if snapshot is not None and is_async(evaluator):
            raise InvalidInput(
                "an evaluator on a snapshot is a plain function: it has a thread of its own"
            )
        session = self._home.session if self._home is not None else ""
        pending = PendingEval(
            self._distinct(checked_name(name), checked_step(step), session),
            checked_step(step),
            session,
            checked_weights(weights),
            checked_place(saved_at),
        )
        job = self._new_job(evaluator, pending, self._home, snapshot)
        job.names = self._known
        job.names.add(pending.key)
        return job

    @property
    def _known(self) -> set[tuple[str, str, int]]:
        """Names in use: those of the run directory, whichever dispatcher has it."""
        return self._names if self._home is None else self._home.names

    def _distinct(self, name: str, step: int, session: str) -> str:
        """The name that an eval has on the curve: a second one of a step is numbered, since one
        result would hide the other. One that is tried again after a skip keeps its name."""
        found, number = name, 1
        labels = set() if self._home is None else self._home.labels
        while found in labels or (session, found, step) in self._known:
            number += 1
            found = f"{name}-{number}"
        if number > 1:
            log.warning(
                "two evals called %r were scheduled at step %s; this one is %r on the curve. Give "
                "each a name= of its own",
                name,
                step,
                found,
            )
        return found

    def _new_job(
        self,
        evaluator: Evaluator,
        pending: PendingEval,
        home: Home | None,
        snapshot: Callable[[], Snapshot | None] | None = None,
    ) -> Job:
        if inspect.iscoroutine(evaluator):
            evaluator.close()
            raise InvalidInput("an evaluator is a function, not its call: leave out the brackets")
        if not callable(evaluator):
            raise InvalidInput(f"an evaluator is a function, got {evaluator!r:.100}")
        handle = Scheduled(pending.step, pending.name, lambda: self.waits_for_ever, self.wait_for)
        source = getattr(getattr(snapshot, "func", snapshot), "__self__", None)
        return Job(evaluator, pending, handle, home, snapshot, source=source)

    def _joined(self, job: Job) -> Scheduled:
        if self._is_ours("schedule"):
            self._check_somewhere(job)
            self._running.schedule(job)
        else:
            job.handle.end(None)
        return job.handle

    async def _ajoined(self, job: Job) -> Scheduled:
        if self._is_ours("aschedule"):
            self._check_somewhere(job)
            await self._running.aschedule(job)
        else:
            job.handle.end(None)
        return job.handle

    def _check_somewhere(self, job: Job) -> None:
        if job.home is None and self._nowhere and not self.has_scheduled:
            log.warning(
                "eval %r of step %s: this AsyncEvalDispatcher has neither run_dir nor loggers, so "
                "that results are nowhere but in what schedule() returns",
                job.eval.name,
                job.eval.step,
            )
        self.has_scheduled = True

    # --- The thread that trains ---

    def ask_trainer(self, work: Callable[[], T], given_up: Callable[[], bool]) -> T:
        """For an eval in a thread: have it done in the thread that trains, and wait for it."""
        return self._running.errands.ask(work, given_up)

    def visit(self) -> None:
        """To be called in the thread that trains, now and then: does what evals need done there."""
        if self._is_ours("visit"):
            self._running.errands.trainer_is_here()
            self._visit()

    def _visit(self) -> None:
        """Nothing, in another thread."""
        if self._running.errands.is_trainer_here():
            self._running.errands.run_all()
            for visitor in self._visitors:
                if (call := visitor()) is not None:
                    call()

    def tell(self, point: CurvePoint, home: Home) -> None:
        """Loggers of a point that was measured while training waited, and is written already."""
        if self._is_ours("tell"):
            self._running.tell(point, home)

    def on_visit(self, visitor: Callable[[], object]) -> None:
        """A method to be called at every visit of the thread that trains, and after a drain."""
        known = weakref.WeakMethod(visitor)
        if known not in self._visitors:
            self._visitors = [v for v in self._visitors if v() is not None] + [known]

    def wait_for(self, handles: Sequence[Scheduled], timeout: float | None) -> None:
        """Until they have ended, or so many seconds; does what evals need done here meanwhile."""
        if self._is_ours("a wait"):
            self._running.wait_for(handles, timeout)

    @property
    def waits_for_ever(self) -> bool:
        """Whether to wait here would be for ever: evals run in the event loop of this thread."""
        return self._running.loop.is_here

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
        if self.waits_for_ever:
            raise InvalidInput(
                f"{what} would wait in the event loop that the evals run in, for ever; there, use "
                "`await adrain()`, and `async with`"
            )

    def _drain(self, timeout: float | None, why: str) -> Drained:
        began, jobs = self._clock(), self._running.pending()
        handles = [job.handle for job in jobs]
        try:
            if timeout is None or timeout > QUIET_SECONDS:
                self.wait_for(handles, QUIET_SECONDS)
                _say_what_is_waited_for(handles, timeout)
                timeout = None if timeout is None else timeout - QUIET_SECONDS
            self.wait_for(handles, timeout)
        except BaseException:
            why = "the wait for it was interrupted"
            raise
        finally:
            given_up = self._running.abandon(jobs, why)
            # Somebody is writing their lines.
            self.wait_for(handles, EXIT_GRACE_SECONDS)
        self._visit()
        return _drained(jobs, given_up, self._clock() - began)

    async def _adrain(self, timeout: float | None, why: str) -> Drained:
        began, jobs = self._clock(), self._running.pending()
        try:
            with anyio.move_on_after(timeout):
                await self._running.await_all(jobs)
        except BaseException:
            why = "the wait for it was interrupted"
            raise
        finally:
            given_up = self._running.abandon(jobs, why)
            with anyio.move_on_after(EXIT_GRACE_SECONDS, shield=True):
                await self._running.await_all(jobs)
        self._visit()
        return _drained(jobs, given_up, self._clock() - began)

    # --- The end ---

    def __enter__(self) -> AsyncEvalDispatcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        seconds = EXIT_GRACE_SECONDS if _is_interruption(problem) else LOGGER_SECONDS
        timeout = self._timeout_after(problem)
        if isinstance(problem, Exception):
            # It will not be seen before the wait is over.
            said = f"training ended by {type(problem).__name__}: {printable_error(problem)[:200]}"
            waiting = [job.handle for job in self._running.pending()]
            _say_what_is_waited_for(waiting, timeout, because=f"{said}; ")
        self._close(timeout, seconds, complete=problem is None)

    async def __aenter__(self) -> AsyncEvalDispatcher:
        if self._is_ours("async with"):
            await self._running.loop.enter()
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
                seconds = EXIT_GRACE_SECONDS if _is_interruption(problem) else LOGGER_SECONDS
                close = partial(self._close_files, seconds, complete=problem is None)
                with anyio.CancelScope(shield=True):
                    await self._running.threads.run(close)
                self._running.threads.close()
            await self._running.loop.leave()

    def close(self, timeout: float | None = 600.0) -> Drained:
        """Drain, then give back threads, files and loggers. What is scheduled later is a skip."""
        self._check_elsewhere("close()")
        return self._close(timeout, LOGGER_SECONDS, complete=True)

    def _close(
        self,
        timeout: float | None,
        logger_seconds: float,
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
                self._close_files(logger_seconds, complete=complete)
                self._running.threads.close()

    def end_with_process(self) -> None:
        """Called where the process ends and nobody has closed this."""
        if os.getpid() == self.pid:
            why = "the process ended before it was finished"
            self._close(EXIT_GRACE_SECONDS, EXIT_GRACE_SECONDS, complete=False, why=why)

    def _timeout_after(self, problem: BaseException | None) -> float | None:
        return EXIT_GRACE_SECONDS if _is_interruption(problem) else self.drain_timeout

    def _stop(self) -> bool:
        """False where it was stopped before."""
        ending.living.discard(self)
        atexit.unregister(self.end_with_process)
        return self._running.stop(EXIT_GRACE_SECONDS)

    def _close_files(self, logger_seconds: float, *, complete: bool) -> None:
        """Loggers may take so long for what they have not stored yet."""
        self._running.loggers.close(logger_seconds)
        if self._home is None:
            return
        try:
            self._home.close()
            if complete:
                self._home.say_complete(bare=True)
        except Exception as problem:
            log.warning("the curve in %s could not be closed", self.run_dir, exc_info=problem)
        leave(self._home, self)

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


def _entered(run_dir: Path, owner: AsyncEvalDispatcher) -> Home:
    home = home_of(run_dir, owner)
    home.enter()
    home.write_bare_config()
    home.take_over()
    return home


def _say_what_is_waited_for(
    handles: Sequence[Scheduled], timeout: float | None, *, because: str = ""
) -> None:
    left = [handle for handle in handles if not handle.done()]
    if left:
        log.warning(
            "%swaiting %s for evals: %s; Ctrl-C gives them up",
            because,
            "without bound" if timeout is None else f"up to {timeout:g} s",
            ", ".join(f"{handle.name} of step {handle.step}" for handle in left[:5]),
        )


def _drained(jobs: list[Job], given_up: list[Job], seconds: float) -> Drained:
    drained = Drained(seconds=seconds)
    for job in jobs:
        place, point = (job.eval.name, job.eval.step), job.handle.point
        if not job.handle.done():
            drained.abandoned.append(Ended(*place, "its line is being written"))
        elif job in given_up:
            drained.abandoned.append(Ended(*place, (point and point.skipped) or ""))
        elif point is not None and point.summary is None:
            drained.skipped.append(Ended(*place, point.skipped or ""))
        else:
            drained.finished.append(place)
    return drained


def _is_interruption(problem: BaseException | None) -> bool:
    """Who presses Ctrl-C, or cancels a training, does not want to wait for evals."""
    return problem is not None and not isinstance(problem, Exception | SystemExit)
