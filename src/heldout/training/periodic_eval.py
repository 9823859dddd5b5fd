"""PeriodicEval: an eval of the policy every N training steps.

    evals = PeriodicEval(samples, live_model(tokenizer, score_fn), every_steps=50,
                         heartbeat_fn=print, model_getter=lambda: model, run_dir="outputs/run1")
    for step in range(1, …):
        …                          # train
        evals.maybe_run(step)      # evaluates if it is due
    evals.run_final(step)          # the last weights, on or off cadence

It adds cadence, isolation, budget and curve to `heldout.evaluate`. Evals have no side effects on
training (clause 13) and never interrupt it: each ends in a result or in a skip with its reason, as
a line of `curve.jsonl` (clause 14).

Inside `with AsyncEvalDispatcher():`, `maybe_run` takes a snapshot of the weights and returns None.
The eval runs in the background, and its point has the step it was due at. The user's functions
(heartbeat, monitor) are still called in the trainer's thread.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from heldout.datasets import ordered_by_id
from heldout.errors import EvalFailed, InvalidInput, RunBusy
from heldout.isolation import is_background_thread, modules_of, untouched_random_state
from heldout.rollout import EvalDefinition
from heldout.store.run_dir import now
from heldout.training.budget import SMALLEST, Budget, Spending
from heldout.training.curve import (
    CurvePoint,
    check_step,
    outcomes_of,
    stop_requested,
)
from heldout.training.curve_file import EvalHistory, choose_run_dir, has_points, numbered_dirs
from heldout.training.dispatcher import (
    AsyncEvalDispatcher,
    Scheduled,
    get_async_eval_dispatcher,
)
from heldout.training.distributed import (
    Alone,
    RanksApart,
    agree,
    current_ranks,
    is_first_process,
)
from heldout.training.metrics import Heartbeat
from heldout.training.publishing import Monitor, PointPublisher
from heldout.training.results import SAME_WEIGHTS, pending_point, skip_of
from heldout.training.run_eval import (
    Known,
    Measured,
    Task,
    check_samples,
    describe,
    hash_samples,
    measure,
)
from heldout.training.runner import (
    EpisodeRunner,
    KnownBuilder,
    RunnerBuilder,
    check_same_eval,
    describe_builder,
)
from heldout.training.settings import (
    DEFAULT_NUM,
    DEFAULT_PASS_THRESHOLD,
    NUM,
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
    from heldout.training.worker import EvalWorker

log = logging.getLogger("heldout")

GetModel = Callable[[], Any]


class PeriodicEval:
    """Evaluates the policy on held-out samples while it trains.

    Args:
        samples: The held-out set, or an `EvalDefinition`.
        runner_builder: Makes the runner of a model: `live_model(…)`, `from_functions(…)`, or your
            own function `(model) -> Runner`. None with `worker`.
        worker: An `EvalWorker`, a process that runs and scores the model.
        every_steps: Steps between evals; 0 turns them off.
        heartbeat_fn: Called with `(name, fields)` at each point, and for progress.
        model_getter: Returns the model. May be set later, and is called at each eval.
        pass_threshold: Reward from which an item passes; 0.5 by default.
        label: The eval's name in heartbeats, logs and the curve.
        run_dir: Directory of the curve; by default `outputs/evals/<label>`, or `<label>-2`, `-3` …
            if that has one.
        resume: Whether to continue an existing curve in `run_dir`. Trainers that resume from a
            checkpoint set it themselves.
        num: How many of the samples to use, at most.
        seed: Determines, with the samples' ids, their fixed order. Smaller subsets are nested in
            larger ones.
        at_start: Whether to evaluate step 0, too.
        max_overhead: Share of training time that evals may take.
        min_samples: Smallest number of samples that `max_overhead` may choose.
        max_seconds: Time limit of an eval, which then ends as a partial.
        monitor: Called with the curve at each result. The default, a `CurveMonitor`, gives a
            verdict and never asks to stop.
        progress_seconds: Seconds between heartbeats of a long eval.
        across: Which of several training processes evaluate: the `"first"`, or `"all"`, each a
            part of the samples.
        on_error: `"raise"` raises instead of a skip or an errored item, for debugging.
        snapshots: Copies of the weights for evals in the background; by default one, on the model's
            device.

    Raises:
        InvalidInput: An argument is invalid.
        RunExists: `run_dir` is given, has a curve, and `resume` is False. If `resume` is None, the
            first call of `maybe_run` raises it.
        ResumeMismatch: The curve to be continued is that of another eval.
    """

    _clock = staticmethod(time.monotonic)
    _current_ranks = staticmethod(current_ranks)

    def __init__(
        self,
        samples: Iterable[Sample] | EvalDefinition,
        runner_builder: RunnerBuilder | None = None,
        *,
        worker: EvalWorker | None = None,
        every_steps: int | None = None,
        heartbeat_fn: Heartbeat | None = None,
        model_getter: GetModel | None = None,
        pass_threshold: float | None = None,
        label: str = "rl_eval",
        run_dir: str | Path | None = None,
        resume: bool | None = None,
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
        snapshots: SnapshotPool | None = None,
    ) -> None:
        outside = Settings.from_environment()
        # A launch must not fail where its variables, and not the code, turn an eval on or off.
        set_outside = outside.num == 0 or (bool(outside.every_steps) and every_steps is None)
        if outside.every_steps is not None and every_steps is None and num is None:
            num = DEFAULT_NUM
        every_steps = first_set(outside.every_steps, every_steps, 0)
        num = first_set(outside.num, num)
        if outside.num == 0:
            num = None
        pass_threshold = first_set(outside.pass_threshold, pass_threshold, DEFAULT_PASS_THRESHOLD)
        check_counts(every_steps=every_steps, min_samples=min_samples, num=num, seed=seed)
        check_threshold(pass_threshold)
        check_seconds(
            max_overhead=max_overhead, max_seconds=max_seconds, progress_seconds=progress_seconds
        )
        if across not in ("first", "all"):
            raise InvalidInput(f"across is 'first' or 'all', got {across!r}")
        if on_error not in ("skip", "raise"):
            raise InvalidInput(f"on_error is 'skip' or 'raise', got {on_error!r}")
        _check_runner(runner_builder, worker)
        if isinstance(samples, EvalDefinition):
            check_same_eval(samples, runner_builder)
        if across == "all" and worker is not None:
            raise InvalidInput("across='all' does not work with an EvalWorker")
        if not isinstance(label, str) or not label.replace("_", "").replace("-", "").isalnum():
            raise InvalidInput(f"label is letters, digits, _ and -, got {label!r}")
        if snapshots is not None and not hasattr(snapshots, "try_take"):
            raise InvalidInput(f"snapshots is a SnapshotPool, got {snapshots!r:.100}")
        if modules_of(model_getter):
            raise InvalidInput("model_getter is a function: `lambda: model`, not the model itself")
        self._publisher = PointPublisher(label, monitor, heartbeat_fn)
        self.every_steps: int = every_steps
        self.label = label
        self.model_getter = model_getter
        self.in_rollout_phase = False
        """Whether it runs only inside the rollout phase of a trainer."""
        held_out = check_samples(samples, may_be_empty=set_outside)
        self.samples = ordered_by_id(held_out, seed)[:num]
        """The samples that are evaluated, in the fixed order."""
        if outside.num == 0 or not held_out:
            self.every_steps = 0
            log.warning(
                "%s: no eval is ever due: %s",
                label,
                f"{NUM} is 0" if outside.num == 0 else "there are no held-out samples",
            )
        self.runner_builder, self.worker = runner_builder, worker
        self._threshold, self._seed, self._at_start = pass_threshold, seed, at_start
        self._across, self._on_error = across, on_error
        self._max_seconds, self._progress_seconds = max_seconds, progress_seconds
        total = len(self.samples)
        budget = None if max_overhead is None else Budget(max_overhead, total, smallest=min_samples)
        self._spending = Spending(budget, total, self._clock)
        self._seen: int | None = None
        self._handled: int | None = None
        """The last step that `maybe_run` found due."""
        self._finishing = False
        self._agreed_stop: str | None = None
        """The last stop reason of the first process, with `across="all"`."""
        # In the background.
        self._snapshots = snapshots
        self._copied: int | None = None
        """Id of the model that could be copied."""
        self._scheduled: list[Scheduled] = []
        self._progress: deque[Callable[[], object]] = deque()
        """Heartbeats of background evals, to be called in the trainer's thread."""
        self._warned: set[str] = set()
        """What was logged once, and is not logged again."""
        # Absolute: the working directory may change in the middle of it.
        self._base_dir = Path(run_dir or Path("outputs/evals") / label).absolute()
        self._is_named = run_dir is not None
        self._resume = resume
        self._history: EvalHistory | None = None
        # A trainer may still say that it resumes, where there is something to resume.
        if resume is not None or not self._has_predecessor():
            self._enter_first()

    # --- Cadence ---

    def should_run(self, step: int) -> bool:
        """Whether an eval is due, by the cadence alone.

        Args:
            step: The step. If the counter jumps, an eval is due once it has passed a multiple of
                `every_steps` since the last call of `maybe_run`. A step for which `maybe_run` has
                found one due is not due again, in several micro-batches say.

        Returns:
            Whether it is due.
        """
        if self.every_steps <= 0 or step < 0 or step == self._handled:
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
        """Evaluate if it is due and the budget allows it.

        Args:
            step: The training step.
            model: The model; by default that of `model_getter`.
            wait: Whether to wait for the result even if there is a dispatcher.
            saved_at: Where these weights can be loaded from, if the process ends before an eval in
                the background does.

        Returns:
            The point; None if no eval is due, or if it runs in the background.
        """
        self.begin()
        step = check_step(step)
        self._begin_at(step, follows=max(0, step - 1))
        dispatcher = self._poll_dispatcher(step)
        due = self.should_run(step)
        self._seen = step
        if not due:
            return None
        self._handled = step
        get_model = self._model_getter(model)
        # Where others take part the first one says so to all of them, further down.
        if self._across == "first" and self._spending.affordable == 0:
            return self._skip_unaffordable(step)
        if dispatcher is not None and not wait:
            live = self._copyable_model(get_model)
            if live is not None:
                self._schedule(dispatcher, step, live, saved_at=saved_at)
                return None
        point = self._run(step, get_model, size=self._spending.affordable)
        self._agree_to_stop()
        return point

    def run_eval(self, step: int, model: Any = None) -> CurvePoint | None:
        """Evaluate all samples now.

        Args:
            step: The step of the point.
            model: The model; by default that of `model_getter`.

        Returns:
            The point; None if another process evaluates, or if there are no samples.
        """
        step = check_step(step)
        if not self.samples:
            return None
        return self._run(step, self._model_getter(model))

    def run_final(self, step: int, model: Any = None) -> CurvePoint | None:
        """Evaluate the last weights on all samples (clause 17).

        Reuses the point of this step if it has one. Waits for evals in the background, up to the
        dispatcher's `drain_timeout`.

        Args:
            step: The last step.
            model: The model; by default that of `model_getter`.

        Returns:
            The point; None if another process evaluates, or if evals are off.
        """
        if self.every_steps <= 0:
            return None
        self.begin()
        step = check_step(step)
        get_model = self._model_getter(model)
        dispatcher, point = self._poll_dispatcher(step), None
        self.collect()
        live = None if dispatcher is None else self._copyable_model(get_model)
        if dispatcher is not None and live is not None and not dispatcher.in_event_loop:
            timeout, began = dispatcher.drain_timeout, time.monotonic()
            dispatcher.wait_for(self._scheduled, timeout)
            self.collect()
            deadline = math.inf if timeout is None else began + timeout
            handle = self._schedule(dispatcher, step, live, final=True, deadline=deadline)
            if handle is not None:
                left = max(0.0, deadline - time.monotonic())
                handle.result(None if left == math.inf else left)
            self.collect()
            point = None if handle is None else handle.point  # with its verdict
        elif not any(handle.step == step for handle in self._scheduled):
            point = self._run(step, get_model, final=True)
        self._finishing = True
        if self._history is None:
            return point
        if not self._scheduled:
            self._history.mark_complete()
        return point or self._history.last_at(step)

    def finish(self, pending: CurvePoint, model: Any) -> CurvePoint | None:
        """Run one of `pending_evals` now, on its weights.

        Args:
            pending: The eval. Its point belongs to the attempt that scheduled it.
            model: A model with the weights of that step.

        Raises:
            InvalidInput: The eval has another label, is not pending, or has other weights.
        """
        self.begin()
        if pending.label != self.label:
            raise InvalidInput(
                f"the eval of step {pending.step} has the label {pending.label!r}, not "
                f"{self.label!r}"
            )
        if not self.curve.file.is_pending(pending):
            raise InvalidInput(f"the eval of step {pending.step} is not pending: {pending!r:.200}")
        weights = fingerprint(model)
        if None not in (weights, pending.weights) and weights != pending.weights:
            raise InvalidInput(
                f"the eval of step {pending.step} is for the weights {pending.weights}, "
                f"and these are {weights}"
            )
        return self._run(pending.step, lambda: model, instead_of=pending)

    def use_completion_length(self, tokens: int) -> None:
        """Limit model turns to the trainer's completion length, unless another limit is set.

        Args:
            tokens: The trainer's maximum completion length.

        Raises:
            ResumeMismatch: The curve in the run directory was measured with another limit.
        """
        builder = self.runner_builder
        if isinstance(builder, KnownBuilder):
            builder.use_completion_length(tokens)
            if self._history is not None:
                self._history.check_functions(describe_builder(builder))

    # --- The curve ---

    def begin(self, step: int | None = None, *, resume: bool = False) -> None:
        """Begin training. The first call of `maybe_run` does this, too.

        Args:
            step: The step that training begins at, with the weights as they are now, if known;
                evals before it are not due.
            resume: Whether the trainer resumes from a checkpoint, so that the curve is continued.

        Raises:
            RunExists: `run_dir` is given and has a curve, and training does not resume.
            ResumeMismatch: The curve to be continued is that of another eval.
        """
        if resume and self._resume is None:
            self._resume = True
        self._enter_first()
        if step is not None:
            self._begin_at(step, follows=step)
            self._seen = step
        self._spending.begin()

    def _begin_at(self, step: int, *, follows: int) -> None:
        """Note where an attempt begins: this one, or the next if the step counter went back.

        `follows` is the last step whose weights earlier attempts have, too.
        """
        if self._seen is not None and step < self._seen:
            self._handled = None
            if self._history is not None:
                self._history.begin_attempt()
        if self._history is not None and self._history.follows is None:
            self._history.follow(follows)

    @property
    def run_dir(self) -> Path:
        """Directory of the curve."""
        if self._history is not None:
            return self._history.file.run.path
        return self._base_dir

    @property
    def curve(self) -> EvalHistory:
        """Points of this eval, and its curve file."""
        if self._history is None:
            self._enter()
        assert self._history is not None
        return self._history

    @property
    def history(self) -> list[CurvePoint]:
        """Points of this attempt of the training run; `points` includes earlier attempts."""
        return [] if self._history is None else self._history.attempt

    def _repr_html_(self) -> str:
        from heldout.viewer.notebook import curve_html

        return curve_html(self.points, self.label, self.run_dir if self.points else None)

    @property
    def points(self) -> list[CurvePoint]:
        """The current curve, by step, earlier attempts included."""
        return [] if self._history is None else self._history.points

    def _has_predecessor(self) -> bool:
        """Whether there is a curve that a trainer might continue."""
        if self._is_named:
            return has_points(self._base_dir)
        return bool(numbered_dirs(self._base_dir))

    def _enter_first(self) -> None:
        """Enter the run directory, once, in the process that writes there."""
        if self._history is None and self.every_steps and is_first_process(self._current_ranks()):
            self._enter()

    def _enter(self) -> None:
        config = {
            "kind": "midrun",
            "label": self.label,
            "n": len(self.samples),
            "samples": hash_samples(self.samples),
            "seed": self._seed,
            "pass_threshold": self._threshold,
            "every_steps": self.every_steps,
            "monitor": self._publisher.settings,
        }
        # A worker says what it runs once it runs.
        builder = self.runner_builder
        functions = {} if builder is None else describe_builder(builder)
        resume, history = bool(self._resume), None
        while history is None:
            run_dir = self._base_dir
            if not self._is_named:
                run_dir = choose_run_dir(self._base_dir, self.label, resume=resume)
            try:
                history = EvalHistory(self, run_dir, config, functions, resume=resume)
            except RunBusy:  # another training run has begun there since it was chosen
                if self._is_named or resume:
                    raise
        self._spending.take_over(history.earlier)
        if run_dir != self._base_dir:
            log.warning(
                "%s: the curve of this training run is in %s; %s has another one",
                self.label,
                run_dir,
                self._base_dir,
            )
        self._history = history

    # --- Stopping ---

    @property
    def stop_requested(self) -> str | None:
        """Why training should stop, if the monitor or `heldout curve stop` asked for it.

        With `across="all"` it is the same in every process after an eval. Otherwise only the first
        process knows what its monitor returned: with several processes, your own loop must
        broadcast it before it breaks, or the others hang.
        """
        return self._agreed_stop if self._is_shared else self.stop_requested_here

    @property
    def stop_requested_here(self) -> str | None:
        """`stop_requested`, as far as this process knows."""
        if self._publisher.stop is None:
            self._publisher.stop = stop_requested(self.run_dir)
        return self._publisher.stop

    @property
    def _is_shared(self) -> bool:
        return self._across == "all" and self._current_ranks().world > 1

    def _agree_to_stop(self) -> None:
        """Broadcast the stop reason to all processes: they hang if only some stop."""
        if not self._is_shared:
            return
        try:
            ranks = self._current_ranks()
            mine = self.stop_requested_here if ranks.rank == 0 else None
            self._agreed_stop = agree(ranks, mine, str | None)
        except RanksApart as problem:
            log.warning(
                "%s: the processes could not agree whether to stop", self.label, exc_info=problem
            )

    # --- One eval, while training waits ---

    def _run(
        self,
        step: int,
        get_model: GetModel,
        *,
        size: int | None = None,
        final: bool = False,
        instead_of: CurvePoint | None = None,
    ) -> CurvePoint | None:
        """Run an eval; never raises an Exception, since it is called in the middle of training.

        `size` is None for the whole held-out set, and `instead_of` the pending eval, of an earlier
        attempt maybe, that this finishes.
        """
        self.begin()
        began = self._clock()
        measured: Measured | Known | None
        try:
            ranks = self._current_ranks()
            if self._across == "first":
                if not is_first_process(ranks):
                    return None
                ranks = Alone()
            if ranks.rank == 0:
                self.curve.check_current()
            task = self._task(step, began, size=size, final=final, rank=ranks.rank)
            if self.worker is not None:
                measured = self._measure_in_worker(task, get_model)
            else:
                measured = measure(task, get_model, ranks)
            if ranks.rank != 0:
                return None
            if measured is None:
                measured = Measured(0, skipped=self._spending.why_not)
            if isinstance(measured, Known):
                if instead_of is not None:
                    self.curve.file.append(skip_of(instead_of, SAME_WEIGHTS))
                if measured.point is None:
                    return None
                return self._publisher.reuse(measured.point, self.curve)
        except Exception as problem:
            log.warning("%s at step %s", self.label, step, exc_info=problem)
            measured = Measured(0, skipped=describe(problem))
        finally:
            self._spending.evaluated(self._clock() - began)
        measured_at = self._clock()
        point = self._point(step, measured, measured_at - began, final=final)
        if instead_of is not None:
            point = msgspec.structs.replace(
                point, session=instead_of.session, follows=instead_of.follows
            )
            if not point.has_result:  # it stays pending
                saved_at = instead_of.saved_at
                point = msgspec.structs.replace(point, pending=True, saved_at=saved_at)
        # A monitor may draw random numbers, and takes its time, too.
        with untouched_random_state():
            point = self._publisher.publish(point, self.curve)
        self._spending.waited(self._clock() - measured_at)
        self._raise_if_asked(point)
        return point

    def _task(
        self,
        step: int,
        began: float,
        *,
        size: int | None,
        final: bool,
        rank: int = 0,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> Task:
        return Task(
            step=step,
            samples=self.samples,
            size=len(self.samples) if size is None else size,
            runner_builder=self.runner_builder,
            run_dir=self.run_dir,
            pass_threshold=self._threshold,
            seed=self._seed,
            keep_going=self._keep_going(step, began, beats=rank == 0, is_given_up=is_given_up),
            history=self.curve if rank == 0 else None,
            whole=size is None,
            final=final,
        )

    def _measure_in_worker(self, task: Task, get_model: GetModel) -> Measured | Known:
        assert self.worker is not None
        try:
            with untouched_random_state():
                snapshot = self.worker.try_snapshot(get_model(), step=task.step)
        except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
            return Measured(0, skipped=f"model: {describe(problem)}")
        if snapshot is None:
            return Measured(0, skipped="all snapshots were in use")
        try:
            return self.worker.measure(task, snapshot)
        finally:
            snapshot.release()

    def _keep_going(
        self, step: int, began: float, *, beats: bool, is_given_up: Callable[[], bool]
    ) -> Callable[[int, int], bool]:
        """Make the callback of a running eval: it gives heartbeats and says when time is up."""
        last_beat = began

        def keep_going(done: int, total: int) -> bool:
            nonlocal last_beat
            time_now = self._clock()
            if beats and time_now - last_beat >= self._progress_seconds:
                last_beat = time_now
                fields = {"eval_done": done, "eval_total": total, "eval_seconds": time_now - began}
                name = f"{self.label}_progress"
                beat = partial(self._publisher.beat, name, {"step": step, **fields})
                if is_background_thread():
                    self._progress.append(beat)
                else:
                    beat()
            in_time = self._max_seconds is None or time_now - began < self._max_seconds
            return in_time and not is_given_up()

        return keep_going

    def _skip_unaffordable(self, step: int) -> CurvePoint | None:
        """Publish a skip: `max_overhead` leaves no time for an eval that is due."""
        if not is_first_process(self._current_ranks()):
            return None
        began = self._clock()
        skip = Measured(0, skipped=self._spending.why_not)
        with untouched_random_state():
            point = self._point(step, skip, 0.0, final=False, charged=False)
            point = self._publisher.publish(point, self.curve)
        self._spending.evaluated(self._clock() - began)  # not charged: it would starve evals
        return point

    def _raise_if_asked(self, point: CurvePoint) -> None:
        """Raise a skip, or an item's error, with `on_error="raise"`."""
        if self._on_error != "raise":
            return
        errors = [f"sample {item.id!r}: {item.error}" for item in point.outcomes if item.error]
        reason = point.skipped or "; ".join(errors[:1])
        if reason:
            raise EvalFailed(f"{self.label} at step {point.step}: {reason} (on_error='raise')")

    def _model_getter(self, model: Any) -> GetModel:
        if model is not None:
            return lambda: model
        return self.model_getter or (lambda: None)

    # --- One eval in the background ---

    def _poll_dispatcher(self, step: int) -> AsyncEvalDispatcher | None:
        """Return the dispatcher, if any, after running what evals need in this thread."""
        dispatcher = get_async_eval_dispatcher()
        if dispatcher is None or self.in_rollout_phase:
            return None
        if self._is_shared:
            self._warn_once("across='all' does not work in the background")
            return None
        dispatcher.on_poll(self.collect)
        dispatcher.poll(step)
        return dispatcher

    def _copyable_model(self, get_model: GetModel) -> Any:
        """Return the model if it can be copied; None if it has to be evaluated inline."""
        try:
            with untouched_random_state():
                model = get_model()
        except Exception:  # noqa: BLE001 - it is asked again, and the reason becomes a skip
            return None
        if model is None:
            return None
        if isinstance(getattr(self.runner_builder, "prototype", None), EpisodeRunner):
            self._warn_once("episodes are played in the trainer's thread")
            return None
        if not modules_of(model):
            self._warn_once(f"a {type(model).__name__} cannot be copied: it is not a torch module")
            return None
        if self.worker is None and self._copied != id(model):
            try:
                snapshot = self._pool().try_take(model, step=0)
            except InvalidInput as problem:
                self._warn_once(f"the model cannot be copied: {problem}")
                return None
            except Exception as problem:
                log.debug("no snapshot yet; the next try says why", exc_info=problem)
                return model
            if snapshot is not None:
                snapshot.release()
            self._copied = id(model)
        return model

    def _pool(self) -> SnapshotPool:
        if self._snapshots is None:
            from heldout.training.snapshot import SnapshotPool

            self._snapshots = SnapshotPool()
        return self._snapshots

    def _warn_once(self, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            log.warning("%s: training waits for evals: %s", self.label, reason)

    def _schedule(
        self,
        dispatcher: AsyncEvalDispatcher,
        step: int,
        model: Any,
        *,
        final: bool = False,
        saved_at: str | Path | None = None,
        deadline: float | None = None,
    ) -> Scheduled | None:
        """Schedule an eval in the background; never raises an Exception either.

        Training waits for the snapshot, and for a free slot.
        """
        began = self._clock()
        try:
            if not is_first_process(self._current_ranks()):
                return None
            self.curve.check_current()
            take = self._pool().try_take if self.worker is None else self.worker.try_snapshot
            handle = dispatcher.schedule_on(
                self.curve.file,
                partial(self._run_snapshot, dispatcher, final),
                pending_point(
                    self.label,
                    step,
                    self.curve.session,
                    saved_at=saved_at,
                    follows=self.curve.follows,
                ),
                snapshot=partial(take, model, step=step),
                deadline=deadline,
            )
            self._scheduled.append(handle)
            return handle
        except Exception as problem:
            log.warning("%s at step %s", self.label, step, exc_info=problem)
            skip = Measured(0, skipped=describe(problem))
            with untouched_random_state():
                point = self._point(step, skip, self._clock() - began, final=final)
                point = self._publisher.publish(point, self.curve)
            self._raise_if_asked(point)
            return None
        finally:
            self._spending.waited(self._clock() - began)

    def _run_snapshot(
        self, dispatcher: AsyncEvalDispatcher, final: bool, scheduled: Scheduled, snapshot: Any
    ) -> CurvePoint | Known:
        """Evaluate a snapshot, in a thread."""
        step, began = scheduled.step, self._clock()
        # Off the last step a result of a part will do, if these weights have one.
        size = None if final else len(self.samples)
        task = self._task(step, began, size=size, final=final, is_given_up=scheduled.done)
        measured: Measured | Known | None
        if self.worker is not None:
            measured = self.worker.measure(task, snapshot)
        else:
            run_in_trainer = partial(dispatcher.trainer.call, is_given_up=scheduled.done)
            measured = measure(task, lambda: snapshot.model, Alone(), snapshot, run_in_trainer)
            assert measured is not None
        if isinstance(measured, Known):
            return measured
        return self._point(step, measured, self._clock() - began, final=final, charged=False)

    def collect(self) -> None:
        """Process results of background evals, in the trainer's thread.

        `maybe_run` calls it, and the dispatcher when it drains.
        """
        ended = [handle for handle in self._scheduled if handle.done()]
        if not ended and not self._progress:
            return
        with untouched_random_state():
            while self._progress:
                self._progress.popleft()()
            for handle in ended:
                self._scheduled.remove(handle)
                if handle.point is None:
                    continue
                if not handle.is_new:
                    self._publisher.reuse(handle.point, self.curve)
                    continue
                point = self._publisher.publish_stored(handle, self.curve)
                self._raise_if_asked(point)
        if self._finishing and not self._scheduled:
            self.curve.mark_complete()

    def _point(
        self, step: int, measured: Measured, seconds: float, *, final: bool, charged: bool = True
    ) -> CurvePoint:
        budget = None
        if charged:
            budget = self._spending.spend(step, measured, seconds, self.every_steps)
        partial_reason = measured.partial
        if partial_reason is not None and self._max_seconds is not None:
            partial_reason = f"max_seconds={self._max_seconds:g}: {partial_reason}"
        return CurvePoint(
            label=self.label,
            step=step,
            session=self.curve.session,
            time=now(),
            seconds=seconds,
            summary=measured.summary,
            skipped=measured.skipped,
            partial=partial_reason,
            outcomes=outcomes_of(measured.results),
            asked=measured.asked,
            of=len(self.samples) * measured.repeats,
            weights=measured.weights,
            budget=budget,
            decoding=measured.decoding,
            run=measured.run,
            final=final,
            follows=self.curve.follows,
        )


def _check_runner(runner_builder: Any, worker: Any) -> None:
    if worker is not None:
        if runner_builder is not None:
            raise InvalidInput("an EvalWorker has its own runner: leave out runner_builder")
        if not hasattr(worker, "try_snapshot"):
            raise InvalidInput(f"worker is an EvalWorker, got {worker!r:.100}")
    elif hasattr(runner_builder, "try_snapshot"):
        raise InvalidInput("pass an EvalWorker as worker=, without a runner_builder")
    elif not callable(runner_builder):
        raise InvalidInput(
            f"runner_builder is a function (model) -> Runner, got {runner_builder!r:.100}"
        )
