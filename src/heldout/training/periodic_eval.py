"""PeriodicEval: an eval every so many steps of somebody else's training.

    evals = PeriodicEval(samples, live_model(tokenizer, score_fn), every_steps=50,
                         heartbeat_fn=print, model_getter=lambda: model, run_dir="outputs/run1")
    for step in range(1, …):
        …                          # train
        evals.maybe_run(step)      # evaluates if it is due
    evals.run_final(step)          # the last weights, on or off cadence

This is cadence, isolation, budget and curve around `heldout.evaluate`; there is no second engine.
Training does not notice (clause 13) and is never interrupted: an eval ends in a result or in a skip
with its reason, and both are lines of `curve.jsonl` (clause 14).

Where an `AsyncEvalDispatcher` is installed, `maybe_run` takes a snapshot of the weights, returns
None, and the eval runs beside the training; its point is that of the step it was due at.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from heldout.errors import EvalFailed, InvalidInput
from heldout.isolation import is_beside_training, modules_of, untouched_random_state
from heldout.items import EvalDefinition
from heldout.store.rundir import now
from heldout.training.beside import Beside
from heldout.training.budget import SMALLEST, Budget, Spending
from heldout.training.curve import (
    CurvePoint,
    encode_point,
    outcomes_of,
    request_stop,
    stop_requested,
)
from heldout.training.curve_file import Trail
from heldout.training.dispatcher import AsyncEvalDispatcher, get_async_eval_dispatcher
from heldout.training.distributed import Alone, Ranks, current_ranks, is_first_process
from heldout.training.metrics import Heartbeat, checked_heartbeat, heartbeat_fields
from heldout.training.monitor import CurveMonitor, Judgement
from heldout.training.pending import PendingEval, Scheduled, checked_place, checked_step
from heldout.training.results import Known
from heldout.training.run_eval import Elsewhere, Measured, Task, describe, measure
from heldout.training.runner import KnownBuilder, RunnerBuilder, describe_builder
from heldout.training.samples import checked, digest, fixed_order
from heldout.training.settings import (
    DEFAULT_NUM,
    DEFAULT_PASS_THRESHOLD,
    Settings,
    check_counts,
    check_seconds,
    check_threshold,
    first_set,
)
from heldout.types import Sample
from heldout.weights import fingerprint

if TYPE_CHECKING:
    from heldout.training.snapshot import SnapshotPool

log = logging.getLogger("heldout")

Monitor = Callable[[Sequence[CurvePoint]], str | Judgement | None]
"""Given the curve so far, by step: why training should stop, or None; or a verdict of its own, with
such a reason or without."""


class PeriodicEval:
    """`label` names the eval in heartbeats, logs and the curve; `run_dir` is where that curve is.

    `model_getter` may be set later, and is asked anew each time. `num` takes only so many of the
    samples; which ones, and in which order, depends on `seed` and their ids alone, so that every
    smaller part lies inside every larger one. `at_start` evaluates step 0 too. `max_overhead` is
    the share of training time that evals may take (`min_samples` are the fewest it goes down to);
    `max_seconds` ends an eval early, as a partial, so that nothing holds up training for ever.
    `monitor` is asked at every result; without one a `CurveMonitor` says what the curve allows one
    to say, and never asks to stop. `across` says who evaluates where training runs in several
    processes: the first one, or all of them, each its part. `shadows` are where evals that run
    beside the training keep their weights: one copy on the same device, unless given.
    """

    def __init__(
        self,
        samples: Iterable[Sample] | EvalDefinition,
        runner_builder: RunnerBuilder | Elsewhere,
        every_steps: int | None = None,
        heartbeat_fn: Heartbeat | None = None,
        model_getter: Callable[[], Any] | None = None,
        pass_threshold: float | None = None,
        label: str = "rl_eval",
        *,
        run_dir: str | Path | None = None,
        num: int | None = None,
        seed: int = 0,
        at_start: bool = False,
        max_overhead: float | None = None,
        min_samples: int = SMALLEST,
        max_seconds: float | None = 3600.0,
        monitor: Monitor | None = None,
        progress_seconds: float = 10.0,
        across: Literal["first", "all"] = "first",
        on_error: Literal["skip", "raise"] = "skip",
        shadows: SnapshotPool | None = None,
        ranks: Ranks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        outside = Settings.from_environment()
        if outside.every_steps is not None and every_steps is None and num is None:
            num = DEFAULT_NUM
        every_steps = first_set(outside.every_steps, every_steps, 0)
        num = first_set(outside.num, num)
        if outside.num == 0:
            every_steps, num = 0, None
        pass_threshold = first_set(outside.pass_threshold, pass_threshold, DEFAULT_PASS_THRESHOLD)
        check_counts(every_steps=every_steps, min_samples=min_samples, num=num, seed=seed)
        check_threshold(pass_threshold)
        self.every_steps: int = every_steps
        check_seconds(
            max_overhead=max_overhead, max_seconds=max_seconds, progress_seconds=progress_seconds
        )
        if across not in ("first", "all"):
            raise InvalidInput(f"across is 'first' or 'all', got {across!r}")
        if on_error not in ("skip", "raise"):
            raise InvalidInput(f"on_error is 'skip' or 'raise', got {on_error!r}")
        if not callable(runner_builder) and not isinstance(runner_builder, Elsewhere):
            raise InvalidInput(
                "runner_builder is a function (model) -> Runner, or an EvalWorker, got "
                f"{runner_builder!r:.100}"
            )
        if across == "all" and isinstance(runner_builder, Elsewhere):
            raise InvalidInput("an EvalWorker evaluates alone; across='all' is for functions")
        if not isinstance(label, str) or not label.replace("_", "").replace("-", "").isalnum():
            raise InvalidInput(f"label is a name: letters, digits, _ and -, got {label!r}")
        if shadows is not None and not hasattr(shadows, "try_take"):
            raise InvalidInput(f"shadows is a heldout.training.SnapshotPool, got {shadows!r:.100}")
        if modules_of(model_getter):
            raise InvalidInput("model_getter is a function: `lambda: model`, not the model itself")
        _check_monitor(monitor)
        self.label = label
        self.model_getter = model_getter
        # Absolute: somebody may change the working directory in the middle of it.
        self.run_dir = Path(run_dir or Path("outputs/evals") / label).absolute()
        self.rides_window = False
        """Whether it runs inside the rollouts of a trainer, and nowhere else."""
        self.samples = fixed_order(checked(samples), seed)[:num]
        """Those that are evaluated, in the fixed order."""
        self.runner_builder, self._monitor = runner_builder, monitor
        self._heartbeat = checked_heartbeat(heartbeat_fn)
        self._curve_monitor = CurveMonitor()
        self._threshold = pass_threshold
        self._seed, self._at_start, self._across = seed, at_start, across
        self._on_error = on_error
        self._max_seconds, self._progress_seconds = max_seconds, progress_seconds
        self._clock, self._ranks = clock, ranks
        self._trail = Trail(label, self.run_dir, self)
        total = len(self.samples)
        budget = None if max_overhead is None else Budget(max_overhead, total, smallest=min_samples)
        self._spending = Spending(budget, total, clock)
        self._seen: int | None = None
        self._reused = False
        elsewhere = runner_builder if isinstance(runner_builder, Elsewhere) else None
        self._finishing = False
        self._beside = Beside(label, shadows, elsewhere)
        self._stop: str | None = None
        self._agreed_stop: str | None = None
        """What the first process said last, where all of them evaluate."""
        self._failed: set[int] = set()
        """Monitors whose traceback is in the log."""
        if self.every_steps and is_first_process(ranks):
            self._enter()

    # --- Cadence ---

    def should_run(self, step: int) -> bool:
        """Whether an eval is due at this step, by the cadence alone.

        A counter that jumps is due where it has passed a multiple since `maybe_run` last saw it.
        """
        if self.every_steps <= 0 or step < 0:
            return False
        if step == 0:
            return self._at_start
        seen = step - 1 if self._seen is None or self._seen >= step else self._seen
        return step // self.every_steps > seen // self.every_steps

    def maybe_run(
        self,
        step: int,
        model: Any = None,
        *,
        wait: bool = False,
        saved_at: str | Path | None = None,
    ) -> CurvePoint | None:
        """Evaluate if it is due and the budget allows it; None otherwise.

        None, too, where the eval runs beside the training from here on, unless it is to `wait`.
        `saved_at` is then where these weights can be had again, should the process die before the
        eval's end.
        """
        self.begin()
        if self._seen is not None and step < self._seen:
            self._trail.start_again()
        dispatcher = self._visited(step)
        due = self.should_run(step)
        self._seen = step
        if due and dispatcher is not None and not wait:
            live = self._beside.copyable(self._model(model))
            if live is not None:
                if self._spending.affordable:
                    self._schedule(dispatcher, step, live, saved_at=saved_at)
                else:
                    self._skip_unaffordable(step)
                return None
        if not due:
            return None
        # Where others take part the first one says so to all of them, further down.
        if self._across == "first" and self._spending.affordable == 0:
            return self._skip_unaffordable(step)
        point = self._run(step, model, lambda weights: self._spending.afford())
        self._agree_to_stop()
        return point

    def run_eval(self, step: int, model: Any = None) -> CurvePoint | None:
        """Evaluate all samples now, as step `step`. None where another process does it."""
        return self._run(step, model, lambda weights: len(self.samples), whole=True)

    def run_final(self, step: int, model: Any = None) -> CurvePoint | None:
        """The point of the last weights, on all samples, measured now unless it is there already
        (clause 17). None where another process does it, or where evals are off.

        Waits for evals that run beside the training, as long as their dispatcher does at its end.
        """
        if self.every_steps <= 0:
            return None
        dispatcher, point = self._visited(step), None
        live = None if dispatcher is None else self._beside.copyable(self._model(model))
        self._finishing = True
        if dispatcher is not None and live is not None and not dispatcher.waits_for_ever:
            dispatcher.wait_for(self._beside.under_way, dispatcher.drain_timeout)
            self.collect()
            handle = self._schedule(dispatcher, step, live, final=True)
            if handle is not None:
                point = handle.result(dispatcher.drain_timeout)
            self.collect()
        elif not any(handle.step == step for handle in self._beside.under_way):
            point = self._run(step, model, partial(self._missing, step), final=True, whole=True)
        self._trail.say_complete()
        return point or self._trail.last_at(step)

    def finish(self, pending: PendingEval, model: Any) -> CurvePoint | None:
        """One of `pending_evals`, now, on the weights that it was to measure.

        Its point belongs to the start of the training that scheduled it.
        """
        if pending.name != self.label:
            raise InvalidInput(
                f"the eval of step {pending.step} is one of {pending.name!r}, not of {self.label!r}"
            )
        if not self._trail.home.is_left(pending):
            raise InvalidInput(f"the eval of step {pending.step} is not pending: {pending!r:.200}")
        found = fingerprint(model)
        if None not in (found, pending.weights) and found != pending.weights:
            raise InvalidInput(
                f"the eval of step {pending.step} was to measure the weights {pending.weights}, "
                f"and these are {found}"
            )
        return self._run(
            pending.step,
            model,
            lambda weights: len(self.samples),
            whole=True,
            instead_of=pending,
        )

    def use_completion_length(self, tokens: int) -> None:
        """Let model turns be as long as the training's completions, unless a limit was set.

        Args:
            tokens: Longest completion of the training run.

        Raises:
            ResumeMismatch: The curve in the run directory was measured with another limit.
        """
        builder = self.runner_builder
        if isinstance(builder, KnownBuilder):
            builder.use_completion_length(tokens)
            self._trail.check_functions(describe_builder(builder))

    def _missing(self, step: int, weights: str | None) -> int:
        """How many samples the last weights still need. Asked of the first process alone: the
        others have no history."""
        return 0 if self._trail.is_settled(step, weights) else len(self.samples)

    def begin(self) -> None:
        """Training starts now, as far as the budget is concerned; the first step says so, too."""
        self._spending.begin()

    @property
    def history(self) -> list[CurvePoint]:
        """Points of this start of the training; `points` has those before it, too."""
        return self._trail.history

    @property
    def points(self) -> list[CurvePoint]:
        """The curve as it stands, by step, earlier starts of this training included."""
        return self._trail.points

    @property
    def stop_requested(self) -> str | None:
        """Why training should stop, if the monitor or `heldout stop` said so.

        With `across="all"` it is the same in every process, as of the last eval that was due.
        Otherwise the first process alone knows what its monitor said: where several train, a loop
        of one's own has to agree on the break, or the others wait for it for ever.
        """
        return self._agreed_stop if self._is_together else self.stop_requested_here

    @property
    def stop_requested_here(self) -> str | None:
        """As far as this process knows, for whoever asks the others, too."""
        if self._stop is None:
            self._stop = stop_requested(self.run_dir)
        return self._stop

    @property
    def _is_together(self) -> bool:
        return self._across == "all" and (self._ranks or current_ranks()).world > 1

    def _agree_to_stop(self) -> None:
        """Processes of which one breaks off its loop, and another does not, wait for ever."""
        if not self._is_together:
            return
        try:
            ranks = self._ranks or current_ranks()
            mine = self.stop_requested_here if ranks.rank == 0 else None
            said = ranks.from_first(msgspec.json.encode(mine))
            self._agreed_stop = msgspec.json.decode(said, type=str | None)
        except Exception as problem:
            log.warning("%s: no word on whether to stop", self.label, exc_info=problem)

    # --- One eval ---

    def _run(
        self,
        step: int,
        model: Any,
        affordable: Callable[[str | None], int],
        *,
        final: bool = False,
        whole: bool = False,
        instead_of: PendingEval | None = None,
    ) -> CurvePoint | None:
        """No Exception gets out of here: this is called in the middle of a training."""
        self.begin()
        began = self._clock()
        known: list[CurvePoint] = []
        try:
            ranks = self._ranks or current_ranks()
            if self._across == "first":
                if ranks.rank != 0:
                    return None
                ranks = Alone()
            if ranks.rank == 0:
                self._trail.check_current()
            task = self._task(step, self._model(model), began, alive=ranks.rank == 0)
            decide = partial(self._decide, step, affordable, known, whole=whole)
            measured = measure(replace(task, decide=decide), ranks)
            if known:
                return self._reuse(known[0])
            if measured is None or ranks.rank != 0:
                return None
        except Exception as problem:
            log.warning("%s at step %s", self.label, step, exc_info=problem)
            measured = Measured(0, skipped=describe(problem))
        finally:
            self._spending.evaluated(self._clock() - began)
        measured_at = self._clock()
        point = self._point(step, measured, measured_at - began, final=final)
        # What watches may draw random numbers, and takes its time, too.
        with untouched_random_state():
            point = self._publish(point, instead_of)
        self._spending.waited(self._clock() - measured_at)
        self._raise_if_asked(point)
        return point

    def _skip_unaffordable(self, step: int) -> CurvePoint | None:
        """The line of an eval that is due and that `max_overhead` leaves no time for."""
        if (self._ranks or current_ranks()).rank != 0:
            return None
        began = self._clock()
        skip = Measured(0, skipped=self._spending.why_not)
        with untouched_random_state():
            point = self._publish(self._point(step, skip, 0.0, final=False, charged=False))
        self._spending.evaluated(self._clock() - began)  # not charged: it would starve evals
        return point

    def _raise_if_asked(self, point: CurvePoint) -> None:
        """For debugging: what would be a skip, or errors among the items, ends the training."""
        if self._on_error != "raise":
            return
        errors = [f"sample {each.id!r}: {each.error}" for each in point.outcomes if each.error]
        reason = point.skipped or "; ".join(errors[:1])
        if reason:
            raise EvalFailed(f"{self.label} at step {point.step}: {reason} (on_error='raise')")

    def _task(
        self, step: int, getter: Callable[[], Any], began: float, *, alive: bool = True
    ) -> Task:
        return Task(
            step=step,
            samples=self.samples,
            builder=self.runner_builder,
            getter=getter,
            home=self.run_dir,
            pass_threshold=self._threshold,
            seed=self._seed,
            decide=lambda weights: len(self.samples),
            admit=self._trail.admit,
            keep_going=self._pulse(step, began, alive=alive),
        )

    def _decide(
        self,
        step: int,
        affordable: Callable[[str | None], int],
        known: list[CurvePoint],
        weights: str | None,
        *,
        whole: bool,
    ) -> int:
        """How many samples these weights need; a point that they have already goes to `known`."""
        if not self._trail.entered:
            self._enter()
        found = self._trail.known_at(step, weights, whole=whole)
        if found is not None:
            known.append(found)
        return affordable(weights) if found is None else 0

    # --- Beside the training ---

    def _visited(self, step: int) -> AsyncEvalDispatcher | None:
        """The dispatcher that is in use, if any."""
        if self.rides_window:
            return None
        return self._beside.dispatcher(step, self.collect, self._is_together)

    def _schedule(
        self,
        dispatcher: AsyncEvalDispatcher,
        step: int,
        live: Any,
        *,
        final: bool = False,
        saved_at: str | Path | None = None,
    ) -> Scheduled | None:
        """No Exception gets out of here, either. What it costs the training is the snapshot, and
        the wait for a place."""
        began = self._clock()
        try:
            if (self._ranks or current_ranks()).rank != 0:
                return None
            if not self._trail.entered:
                self._enter()
            self._trail.check_current()
            return self._beside.schedule(
                dispatcher,
                self._trail.home,
                partial(self._measure_beside, dispatcher, step, final),
                PendingEval(
                    self.label,
                    checked_step(step),
                    self._trail.session,
                    None,
                    checked_place(saved_at),
                ),
                live,
                must=final,
            )
        except Exception as problem:
            log.warning("%s at step %s", self.label, step, exc_info=problem)
            skip = Measured(0, skipped=describe(problem))
            with untouched_random_state():
                point = self._publish(self._point(step, skip, self._clock() - began, final=final))
            self._raise_if_asked(point)
            return None
        finally:
            self._spending.waited(self._clock() - began)

    def _measure_beside(
        self,
        dispatcher: AsyncEvalDispatcher,
        step: int,
        final: bool,
        snapshot: Any,
        given_up: Callable[[], bool],
    ) -> CurvePoint | Known:
        """In a thread of its own."""
        began = self._clock()
        known: list[CurvePoint] = []
        missing = partial(self._missing, step) if final else lambda weights: len(self.samples)
        task = replace(
            self._task(step, lambda: snapshot.model, began),
            decide=partial(self._decide, step, missing, known, whole=final),
            version=lambda model: snapshot.version().weights,
            keep_going=self._pulse(step, began, given_up=given_up),
            ask_trainer=partial(dispatcher.ask_trainer, given_up=given_up),
        )
        if isinstance(self.runner_builder, Elsewhere):
            measured = self.runner_builder.measure(task, snapshot)
        else:
            measured = measure(task, Alone())
        if known or measured is None:
            return Known(known[0] if known else None)
        seconds = self._clock() - began
        return self._point(step, measured, seconds, final=final, charged=False)

    def collect(self) -> None:
        """In the thread that trains: take in what evals beside it have come to. `maybe_run` does
        so, and the dispatcher where it drains."""
        if not self._beside.has_news:
            return
        with untouched_random_state():
            for ended in self._beside.collect():
                if ended.point is None:
                    continue
                if not ended.is_new:
                    self._reuse(ended.point)
                    continue
                try:
                    point = self._watch(ended.point)
                except BaseException:
                    self._trail.add(ended.point)
                    raise
                if point.stop is not None:
                    self._ask_to_stop(point.stop)
                self._take_in(point)
                self._raise_if_asked(point)
        if self._finishing and not self._beside.under_way:
            self._trail.say_complete()

    def _ask_to_stop(self, reason: str) -> None:
        """Where `heldout watch` looks, too: the line of the point is written already."""
        try:
            request_stop(self.run_dir, reason[:2000])
        except Exception as problem:
            log.warning("%s: the wish to stop is not on disk", self.label, exc_info=problem)

    def _reuse(self, point: CurvePoint) -> CurvePoint:
        """An earlier start of this training has that point already."""
        if not self._reused:
            self._reused = True
            log.warning(
                "%s: points from step %s on are on the curve in %s already, and are not measured "
                "again as long as the weights are the same; another training needs another run_dir",
                self.label,
                point.step,
                self.run_dir,
            )
        if point.stop:
            self._stop = point.stop
        with untouched_random_state():
            self._beat(self.label, {**heartbeat_fields(point), "eval_reused": True})
        return point

    def _model(self, given: Any) -> Callable[[], Any]:
        if given is not None:
            return lambda: given
        return self.model_getter or (lambda: None)

    def _pulse(
        self,
        step: int,
        began: float,
        *,
        alive: bool = True,
        given_up: Callable[[], bool] = lambda: False,
    ) -> Callable[[int, int], bool]:
        """Asked all the time while an eval runs: gives signs of life, and says when time is up."""
        spoke = began

        def keep_going(done: int, total: int) -> bool:
            nonlocal spoke
            now = self._clock()
            if alive and now - spoke >= self._progress_seconds:
                spoke = now
                said = {"eval_done": done, "eval_total": total, "eval_seconds": now - began}
                beat = partial(self._beat, f"{self.label}_progress", {"step": step, **said})
                if is_beside_training():
                    self._beside.say(beat)
                else:
                    beat()
            in_time = self._max_seconds is None or now - began < self._max_seconds
            return in_time and not given_up()

        return keep_going

    def _point(
        self, step: int, measured: Measured, seconds: float, *, final: bool, charged: bool = True
    ) -> CurvePoint:
        budget = None
        if charged:
            budget = self._spending.spend(step, measured, seconds, self.every_steps)
        cut = measured.partial
        if cut is not None and self._max_seconds is not None:
            cut = f"max_seconds={self._max_seconds:g}: {cut}"
        return CurvePoint(
            label=self.label,
            step=step,
            session=self._trail.session,
            time=now(),
            seconds=seconds,
            summary=measured.summary,
            skipped=measured.skipped,
            partial=cut,
            outcomes=outcomes_of(measured.results),
            asked=measured.asked,
            of=len(self.samples) * measured.repeats,
            weights=measured.weights,
            budget=budget,
            decoding=measured.decoding,
            run=measured.run,
            final=final,
        )

    def _publish(self, point: CurvePoint, instead_of: PendingEval | None = None) -> CurvePoint:
        if instead_of is not None:
            point = msgspec.structs.replace(point, session=instead_of.session)
            self._trail.home.begun(instead_of)
        try:
            judged = self._watch(point)
        except BaseException:  # Ctrl-C in a slow monitor: the eval itself has been paid for
            self._record(point, instead_of)
            self._trail.add(point)
            raise
        self._record(judged, instead_of)
        if (dispatcher := get_async_eval_dispatcher()) is not None:
            dispatcher.tell(judged, self._trail.home)
        self._take_in(judged)
        return judged

    def _record(self, point: CurvePoint, instead_of: PendingEval | None) -> None:
        self._trail.home.record(point)
        if instead_of is not None:
            self._trail.home.ended(instead_of, has_result=point.has_result)

    def _watch(self, point: CurvePoint) -> CurvePoint:
        """With what is to be said of it: by the default monitor, so that the user's can read it,
        and then by that one."""
        if point.summary is None:
            return point
        judged = point
        if not isinstance(self._monitor, CurveMonitor):
            judged = self._asked(self._curve_monitor, judged)
        if self._monitor is not None:
            judged = self._asked(self._monitor, judged)
        judged = self._writable(judged)
        if judged.stop:
            self._stop = judged.stop
        return judged

    def _asked(self, monitor: Monitor, point: CurvePoint) -> CurvePoint:
        try:
            said = monitor(self._trail.points_with(point))
            if not isinstance(said, Judgement):
                return msgspec.structs.replace(point, stop=_reason(said))
            # What is said of a later step, because this result came late, is not about this one.
            about = said.verdict is not None and said.verdict.step == point.step
            verdict = said.as_dict() if about else point.verdict
            return msgspec.structs.replace(point, stop=_reason(said.stop), verdict=verdict)
        except Exception as problem:
            # Once with all there is to it: what fails at one point mostly fails at all of them.
            trace = None if id(monitor) in self._failed else problem
            self._failed.add(id(monitor))
            log.warning(
                "%s: the monitor failed at step %s: %s",
                self.label,
                point.step,
                describe(problem),
                exc_info=trace,
            )
            return point

    def _writable(self, point: CurvePoint) -> CurvePoint:
        """Without a verdict that no line could hold: the point would be lost with it."""
        try:
            encode_point(msgspec.structs.replace(point, outcomes=()))
        except Exception as problem:
            log.warning("%s: a verdict that cannot be kept", self.label, exc_info=problem)
            return msgspec.structs.replace(point, verdict=None)
        return point

    def _take_in(self, point: CurvePoint) -> None:
        told = point.lag_steps is not None  # by the dispatcher
        if point.skipped and not told and not (self.history and self.history[-1].skipped):
            log.warning("%s at step %s is skipped: %s", self.label, point.step, point.skipped)
        self._trail.add(point)
        self._beat(self.label, heartbeat_fields(point))

    def _beat(self, name: str, fields: dict[str, Any]) -> None:
        if self._heartbeat is None:
            return
        try:
            self._heartbeat(name, fields)
        except Exception as problem:
            log.warning("%s: heartbeat_fn failed", self.label, exc_info=problem)

    def _enter(self) -> None:
        config = {
            "kind": "midrun",
            "label": self.label,
            "n": len(self.samples),
            "samples": digest(self.samples),
            "seed": self._seed,
            "pass_threshold": self._threshold,
            "every_steps": self.every_steps,
        }
        builder = self.runner_builder
        # A worker says what it runs once it runs.
        functions = {} if isinstance(builder, Elsewhere) else describe_builder(builder)
        self._spending.take_over(self._trail.enter(config, functions))


def _check_monitor(monitor: Any) -> None:
    """Before training: a monitor that fails is only a line in a log."""
    if isinstance(monitor, type):
        raise InvalidInput(
            f"monitor is a {monitor.__name__}, not the class: monitor={monitor.__name__}(…)"
        )
    if monitor is not None and not callable(monitor):
        raise InvalidInput(
            f"monitor is a function of the curve so far, or a CurveMonitor, got {monitor!r:.100}"
        )


def _reason(said: Any) -> str | None:
    """As text that a line can hold."""
    return str(said).encode("utf-8", "replace").decode() if said else None
