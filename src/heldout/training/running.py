"""Evals that run beside a training: they join, run, end as points, and may be given up on.

What `AsyncEvalDispatcher` schedules is run here, each of them once, whoever brings it to its end:
its own thread or task, a drain whose time is up, or the next one that takes its place.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import anyio
import msgspec

from heldout.concurrency import Threads, is_async, settle, waker
from heldout.errors import InvalidInput
from heldout.training.curve import CurvePoint, encode_point
from heldout.training.curve_file import Home
from heldout.training.evalloop import EvalLoop
from heldout.training.loggers.base import Loggers
from heldout.training.metrics import heartbeat_fields
from heldout.training.pending import Offer, PendingEval, Queue, Scheduled
from heldout.training.results import Known, Result, point_of, skip_of
from heldout.training.run_eval import describe
from heldout.training.trainer_thread import Errands

log = logging.getLogger("heldout")

LOOK_AGAIN_SECONDS = 0.5
"""How often it is looked for a free snapshot, which others may hold."""

Evaluator = Callable[..., Result | Known | Awaitable[Result]]


class Snapshot(Protocol):
    """Weights that stay what they are while training goes on (`heldout.training.snapshot`)."""

    def in_use(self) -> AbstractContextManager[Any]:
        """Entered in the thread that evaluates on it."""

    def version(self) -> Any:
        """Has `weights`, a hash of their content, or None."""

    def why_changed(self) -> str | None:
        """Why it is not what it was when it was taken, where that can happen."""

    def release(self) -> None:
        """Nobody needs it any more."""


@dataclass(eq=False, slots=True)
class Job:
    evaluator: Evaluator | None
    eval: PendingEval
    handle: Scheduled
    home: Home | None
    take: Callable[[], Snapshot | None] | None = None
    held: Snapshot | None = None
    source: Any = None
    """Who its snapshot comes from: only the same one can make use of it when it is given back."""
    must: bool = False
    """Waits for its place, whatever the policy is,"""
    until: float = math.inf
    """but no longer than to this time."""
    claimed: bool = False
    """Whether somebody has taken it upon himself to write its line: there is only one."""
    weights: str | None = None
    """Those of the snapshot."""
    names: set[tuple[str, str, int]] = field(default_factory=set)
    """Names in use; its own is free again where it ends in a skip."""
    scope: anyio.CancelScope | None = None
    """While it runs. Only looked at in its event loop: to cancel one that was left is to cancel
    what comes after it."""

    def cancel(self) -> None:
        if self.scope is not None:
            self.scope.cancel()

    def release(self) -> None:
        held, self.held = self.held, None
        if held is not None:
            held.release()


class Running:
    """`max_seconds` is the longest that one of them may take; `loggers` get to know of every point,
    and the home of each gets its line."""

    def __init__(
        self,
        queue: Queue[Job],
        loggers: Loggers,
        *,
        max_seconds: float | None,
        clock: Callable[[], float],
    ) -> None:
        self.queue, self.loggers = queue, loggers
        self._max_seconds, self._clock = max_seconds, clock
        self._changed = threading.Condition()
        """Held while any of these is looked at or changed: the queue and the next three."""
        self._paths: dict[str, list[Path | None]] = {}
        """Run directories of each label that loggers were told of."""
        self.latest = 0
        """The step that training is at."""
        self._watchers: set[Callable[[], None]] = set()
        self.closed = False
        self.errands = Errands(self._notify)
        self.loop: EvalLoop[Job] = EvalLoop(self._start, self._run, self._loop_is_gone)
        self.threads = Threads()

    def stop(self, wait: float) -> bool:
        """Nothing joins any more. False where it was stopped before."""
        with self._changed:
            if self.closed:
                return False
            self.closed = True
        self.errands.close()
        self._notify()
        self.loop.close(wait)
        return True

    # --- Joining ---

    def schedule(self, job: Job) -> None:
        self.loop.start_beside()
        said = False
        while True:
            with self._changed:
                offer = self._offer(job)
                if offer.waits and self.loop.is_here:
                    offer = Offer(
                        refused=f"{len(self.queue)} evals were pending, and a plain call cannot "
                        "wait in the event loop that they run in (where you call it yourself, "
                        "use `await aschedule(…)`)"
                    )
                elif offer.waits and not self.errands.due:
                    if not said:
                        said = True
                        log.info("schedule waits: %s evals are pending", len(self.queue))
                    looks = job.take is not None or job.until < math.inf
                    self._changed.wait(LOOK_AGAIN_SECONDS if looks else None)
            if not offer.waits:
                self._settle_offer(job, offer)
                return
            self.errands.run_all(job.until)

    async def aschedule(self, job: Job) -> None:
        self.loop.start_beside()
        while True:
            with self._watched() as changed:
                self.errands.run_all()
                with self._changed:
                    offer = self._offer(job)
                if not offer.waits:
                    self._settle_offer(job, offer)
                    return
                with anyio.move_on_after(None if job.take is None else LOOK_AGAIN_SECONDS):
                    await changed.wait()

    def _offer(self, job: Job) -> Offer[Job]:
        """Holding the lock: whoever gets a place has his snapshot before he can start."""
        if job.home is None or job.eval.session == job.home.session:
            self.latest = max(self.latest, job.eval.step)
        if self.closed:
            return Offer(refused="the dispatcher was closed")
        if not self.loop.is_open:
            return Offer(refused="no event loop could be started for it")
        offer = self.queue.offer(job, must=job.must)
        if offer.dropped is not None:
            offer.dropped.release()
        try:
            if offer.taken and job.take is not None:
                offer = self._with_snapshot(job, offer)
            if offer.taken and job.home is not None:
                job.home.begun(job.eval)
        except BaseException:  # Ctrl-C: nobody would ever take it out again
            self.queue.remove(job)
            job.release()
            raise
        if offer.waits and time.monotonic() >= job.until:
            return Offer(refused="there was no place for it in time")
        return offer

    def _with_snapshot(self, job: Job, offer: Offer[Job]) -> Offer[Job]:
        assert job.take is not None
        dropped, refused = offer.dropped, "all snapshots were in use"
        try:
            job.held = job.take()
            newest = self.queue.when_full == "newest" and not job.must
            if job.held is None and newest and job.source is not None:
                found = self.queue.oldest(lambda other: other.source is job.source)
                if found is not None and found is not job and dropped is None:
                    dropped = found
                    self.queue.remove(dropped)
                    dropped.release()
                    job.held = job.take()
        except Exception as problem:  # noqa: BLE001 - the reason of the skip
            refused = f"snapshot: {describe(problem)}"
        else:
            if job.held is not None:
                return Offer(taken=True, dropped=dropped)
            others = [j for j in self.queue.items() if j.source is job.source and j is not job]
            if job.source is not None and not others:
                refused = "all snapshots were in use, by none that is under way here"
            elif self.queue.when_full == "wait" or job.must:
                refused = ""
        self.queue.remove(job)
        return Offer(dropped=dropped, refused=refused or None)

    def _settle_offer(self, job: Job, offer: Offer[Job]) -> None:
        if offer.refused is not None:
            self._skip(job, offer.refused)
        if offer.dropped is not None:
            self._skip(offer.dropped, f"gave way to the eval of step {job.eval.step} (when_full)")
        if offer.taken:
            self.loop.wake()

    # --- Running ---

    def _start(self) -> list[Job]:
        with self._changed:
            return self.queue.start()

    def _loop_is_gone(self) -> None:
        self.abandon(self.pending(), "the event loop that it ran in is gone")

    async def _run(self, job: Job) -> None:
        began, result = self._clock(), None
        problem: BaseException | None = None
        evaluator, job.evaluator = job.evaluator, None  # it may hold weights; no longer than needed
        try:
            with anyio.move_on_after(self._max_seconds) as limit:
                job.scope = limit
                if job.claimed or evaluator is None:
                    return
                if job.held is not None:
                    result = await self.threads.run(self._on_snapshot, job, evaluator)
                elif is_async(evaluator):
                    result = await settle(evaluator())
                else:
                    result = await settle(await self.threads.run(evaluator))
            if limit.cancelled_caught:
                problem = InvalidInput(f"not finished after max_seconds={self._max_seconds}")
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                self.abandon([job], "it was cancelled")
                raise
            # Not by us: something that it awaited was. To raise that would end its siblings, too.
            problem = InvalidInput("something that it waited for was cancelled")
        except KeyboardInterrupt as interrupted:
            if not self.loop.is_beside:
                raise  # it is the trainer's
            problem = interrupted
        except BaseException as raised:  # noqa: BLE001 - the reason of the skip
            problem = raised
        finally:
            job.scope = None
        if _no_threads_any_more(problem):
            self.abandon([job], "the process ended before it was finished")
            return
        del evaluator
        # In a thread: the disk, loggers and large reports would hold up the loop, and the trainer.
        seconds = self._clock() - began
        try:
            await self.threads.run(self._finish, job, result, problem, seconds)
        except Exception as broken:
            if not _no_threads_any_more(broken):
                log.error("eval %r of step %s", job.eval.name, job.eval.step, exc_info=broken)
            self._finish(job, result, problem, seconds)  # where there was no thread to be had
        finally:
            result = problem = None  # else it and its traceback hold each other, and the weights

    def _on_snapshot(self, job: Job, evaluator: Evaluator) -> Any:
        """In a thread. One that is given up on keeps the snapshot: it is still being read."""
        with self._changed:
            held, job.held = job.held, None
        if held is None:
            raise InvalidInput("its snapshot was given back before it began")
        try:
            with held.in_use():
                job.weights = held.version().weights
                if job.home is not None and job.weights is not None:
                    job.home.identify(job.eval, job.weights)
                result = evaluator(held)
                if (why := held.why_changed()) is not None:
                    raise InvalidInput(why)
                return result
        finally:
            held.release()
            self._notify()

    # --- Waiting ---

    def pending(self) -> list[Job]:
        with self._changed:
            return self.queue.items()

    def wait_for(self, handles: Sequence[Scheduled], timeout: float | None) -> None:
        """Until they have ended, or so many seconds; does what evals need done here meanwhile."""
        until = math.inf if timeout is None else time.monotonic() + timeout

        def over() -> bool:
            return self.errands.due or all(handle.done() for handle in handles)

        while not all(handle.done() for handle in handles):
            left = until - time.monotonic()
            if left <= 0:
                return
            with self._changed:
                self._changed.wait_for(over, None if left == math.inf else left)
            self.errands.run_all(until)

    async def await_all(self, jobs: list[Job]) -> None:
        while True:
            with self._watched() as changed:
                self.errands.run_all()
                if all(job.handle.done() for job in jobs):
                    return
                await changed.wait()

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

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
            for watcher in self._watchers:
                watcher()

    # --- Ending ---

    def _finish(self, job: Job, result: Any, problem: BaseException | None, seconds: float) -> None:
        with self._changed:
            if not self._claim(job):
                return
        if isinstance(result, Known):
            self._close_job(job, result.point, is_new=False)
            return
        point = None
        try:
            if problem is None:
                place = None if job.home is None else job.home.run.path
                point = point_of(result, job.eval, seconds, place)
                encode_point(point)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - the reason of the skip
            problem = raised.with_traceback(None)
        if problem is not None:
            point = skip_of(job.eval, describe(problem), seconds)
        assert point is not None
        self._close_job(job, point)
        # After its line: who hears of it may raise.
        name, step = job.eval.name, job.eval.step
        if problem is not None:
            log.warning("eval %r of step %s failed", name, step, exc_info=problem)
        elif point.skipped is not None:
            log.warning("eval %r of step %s is skipped: %s", name, step, point.skipped)

    def _skip(self, job: Job, why: str) -> None:
        with self._changed:
            if not self._claim(job):
                return
        self._close_job(job, skip_of(job.eval, why))
        log.warning("eval %r of step %s is skipped: %s", job.eval.name, job.eval.step, why)

    def abandon(self, jobs: list[Job], why: str) -> list[Job]:
        """Those that nobody else brings to an end become skips, and stay in pending.json."""
        with self._changed:
            ours = [job for job in jobs if self._claim(job)]
            for job in ours:
                self.queue.remove(job)
        for job in ours:
            if job.home is not None:
                job.home.lost(job.eval)
            self.loop.call(job.cancel)
            self._close_job(job, skip_of(job.eval, why))
        for job in ours:
            log.warning("eval %r of step %s is abandoned: %s", job.eval.name, job.eval.step, why)
        return ours

    def _claim(self, job: Job) -> bool:
        first, job.claimed = not job.claimed, True
        return first

    def _close_job(self, job: Job, point: CurvePoint | None, *, is_new: bool = True) -> None:
        """Whoever has claimed it: its line, the loggers, and its place is free."""
        if is_new and point is not None:
            point = self._record(job, point)
        if job.home is not None:
            job.home.ended(job.eval, has_result=point is not None and point.has_result)
        with self._changed:
            job.release()
            job.evaluator = None
            self.queue.remove(job)
            if point is None or not point.has_result:
                job.names.discard(job.eval.key)
            job.handle.end(point, is_new=is_new)
            self._notify()
        self.loop.wake()

    def _record(self, job: Job, point: CurvePoint) -> CurvePoint:
        """The point as it was written. Nothing that goes wrong in here is raised."""
        lag = max(0, self.latest - point.step)
        weights = point.weights or job.weights
        point = msgspec.structs.replace(point, lag_steps=lag, weights=weights)
        try:
            if job.home is not None:
                job.home.record(point)
                if self.closed:
                    job.home.close()
        except Exception as problem:
            log.error("eval %r of step %s", point.label, point.step, exc_info=problem)
        self.tell(point, job.home)
        return point

    def tell(self, point: CurvePoint, home: Home | None) -> None:
        """The loggers, of a point that is written already."""
        try:
            fields = {key: v for key, v in heartbeat_fields(point).items() if v is not None}
            self.loggers.log(self._logged_as(point.label, home), point.step, fields)
        except Exception as problem:
            log.error("eval %r of step %s", point.label, point.step, exc_info=problem)

    def _logged_as(self, label: str, home: Home | None) -> str:
        """Two curves of one label are two names to a logger: one would overwrite the other."""
        path = None if home is None else home.run.path
        paths = self._paths.setdefault(label, [path])
        if path not in paths:
            paths.append(path)
            log.warning(
                "%s and %s are both called %r; loggers get the second as %r",
                paths[0],
                path,
                label,
                f"{label}-{len(paths)}",
            )
        number = paths.index(path) + 1
        return label if number == 1 else f"{label}-{number}"


def _no_threads_any_more(problem: BaseException | None) -> bool:
    """What Python, from 3.12 on, says where a thread is to be started as it ends."""
    return isinstance(problem, RuntimeError) and "interpreter shutdown" in str(problem)
