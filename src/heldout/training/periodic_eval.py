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

import inspect
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from heldout._core.checks import check_count, check_flag, refuse_unknown
from heldout._core.html import as_html
from heldout._evals.rollout import EvalDefinition
from heldout._live.decoding.memory import give_back_if_tight
from heldout._live.isolation import modules_of, untouched_random_state
from heldout._live.weights import fingerprint, sharding_way
from heldout.datasets import ordered_by_id
from heldout.errors import InvalidInput
from heldout.training.background.dispatcher import (
    AsyncEvalDispatcher,
    dispatcher_in_use,
    get_async_eval_dispatcher,
)
from heldout.training.background.jobs import Scheduled
from heldout.training.background.snapshot_evals import SnapshotEvals
from heldout.training.budget import EvalCadence, Spending
from heldout.training.curve.curve_file import (
    EvalHistory,
    curve_config,
    has_points,
    numbered_dirs,
    open_history,
)
from heldout.training.curve.points import SAME_WEIGHTS, CurvePoint, check_step, skip_of
from heldout.training.curve.publishing import Heartbeat, Monitor, PointPublisher
from heldout.training.measuring import Known, Measured, PolicyEval, Task, measure
from heldout.training.ranks import (
    Alone,
    Ranks,
    RanksApart,
    TimeLimit,
    agree,
    current_ranks,
    is_first_process,
    launcher_rank,
)
from heldout.training.reasons import describe
from heldout.training.runner import (
    KnownBuilder,
    LivePolicy,
    RunnerBuilder,
    check_runner,
    check_same_eval,
    check_samples,
    describe_builder,
    find_threshold,
)
from heldout.training.settings import NUM, SMALLEST, EvalSettings, TrainerSettings
from heldout.training.sharding import ShardedModel, find_sharded
from heldout.types import Sample

if TYPE_CHECKING:
    from heldout._live.snapshots import SnapshotPool
    from heldout.training.background.worker import EvalWorker

log = logging.getLogger("heldout")


_OTHER_NAMES = {
    "examples": "samples",
    "score_one_builder": "runner_builder",
    "engine_getter": "model_getter",
    "model": "model_getter",
    "max_samples": "num",
}
"""What other tools call settings."""


class PeriodicEval:
    """Evaluates the policy on held-out samples while it trains.

    Args:
        samples: The held-out set, or an `EvalDefinition`.
        runner_builder: Makes the runner of a model: `live_model(…)`, `from_functions(…)`, or your
            own function `(model) -> Runner`. None with `worker`.
        worker: An `EvalWorker`, a process that runs and scores the model.
        every_steps: Steps between evals; 0 turns them off.
        heartbeat_fn: Called with `(name, **fields)`, or `(name, fields)` if it takes no other
            keywords, at each point and for progress.
        model_getter: Returns the model. May be set later, and is called at each eval.
        pass_threshold: Reward from which an item passes; by default that of the `EvalDefinition`
            that the samples or the runner builder come from,
            or else 0.5.
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
        snapshots: How many copies of the weights evals in the background may hold, or a
            `SnapshotPool`. By default two where memory allows, else one, on the model's device.
        keep_steps: Of how many evals to keep the answers, below `steps/`: of the first, the best
            and the last one, and of the newest. By default of all.

    Raises:
        InvalidInput: An argument is invalid.
        RunExists: `run_dir` is given, has a curve, and `resume` is False. If `resume` is None, the
            first call of `maybe_run` raises it.
        ResumeMismatch: The curve to be continued is that of another eval.
    """

    _clock = staticmethod(time.monotonic)
    _current_ranks = staticmethod(current_ranks)

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Refuse a setting that does not exist, and name the one that is meant."""
        known = inspect.signature(cls.__init__).parameters
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            for name in settings:
                if name not in known:
                    names = [*known][1:]
                    refuse_unknown(name, names, function=cls.__name__, other_names=_OTHER_NAMES)
        return super().__new__(cls)

    def __init__(
        self,
        samples: Iterable[Sample] | EvalDefinition,
        runner_builder: RunnerBuilder | None = None,
        *,
        worker: EvalWorker | None = None,
        every_steps: int | None = None,
        heartbeat_fn: Heartbeat | None = None,
        model_getter: Callable[[], Any] | None = None,
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
        snapshots: SnapshotPool | int | None = None,
        keep_steps: int | None = None,
    ) -> None:
        check_runner(runner_builder, worker)
        if resume is not None:
            check_flag("resume", resume)
        if isinstance(samples, EvalDefinition):
            check_same_eval(samples, runner_builder)
        if across == "all" and worker is not None:
            raise InvalidInput("across='all' does not work with an EvalWorker")
        if worker is not None and snapshots is not None:
            raise InvalidInput("an EvalWorker has its own snapshots: EvalWorker(…, snapshots=…)")
        if isinstance(snapshots, int) and not isinstance(snapshots, bool):
            check_count("snapshots", snapshots, low=1)
        elif snapshots is not None and not hasattr(snapshots, "try_snapshot"):
            raise InvalidInput(
                f"snapshots must be a number or a SnapshotPool, got {snapshots!r:.100}"
            )
        if modules_of(model_getter):
            raise InvalidInput("model_getter is a function: `lambda: model`, not the model itself")
        self._settings = settings = EvalSettings.with_environment(
            label=label,
            every_steps=every_steps,
            num=num,
            seed=seed,
            pass_threshold=pass_threshold,
            own_threshold=find_threshold(samples, runner_builder),
            at_start=at_start,
            max_overhead=max_overhead,
            min_samples=min_samples,
            max_seconds=max_seconds,
            progress_seconds=progress_seconds,
            across=across,
            on_error=on_error,
        )
        self.label = label
        self.model_getter = model_getter
        self.in_rollout_phase = False
        """Whether it runs only inside the rollout phase of a trainer."""
        held_out = check_samples(samples, runner_builder, may_be_empty=settings.is_set_at_launch)
        self.samples = ordered_by_id(held_out, seed)[: settings.num]
        """The samples that are evaluated, in the fixed order."""
        is_off = settings.is_off_at_launch or not held_out
        if is_off:
            why = f"{NUM} is 0" if settings.is_off_at_launch else "there are no held-out samples"
            log.warning("%s: no eval is ever due: %s", label, why)
        self._cadence = EvalCadence(0 if is_off else settings.every_steps, at_start=at_start)
        self.runner_builder, self.worker = runner_builder, worker
        self._spending = Spending(settings, len(self.samples), self._clock)
        check_count("keep_steps", keep_steps, low=3, optional=True)
        self._publisher = PointPublisher(
            label,
            monitor,
            heartbeat_fn,
            on_error=on_error,
            keep_steps=keep_steps,
        )
        is_bounded = getattr(runner_builder, "is_bounded", True)
        self._publisher.warn_of_plateau(len(self.samples), is_bounded=is_bounded)
        self._evals = PolicyEval(
            settings, self.samples, runner_builder, self._publisher, self._clock
        )
        self._background = SnapshotEvals(
            self._evals, self._publisher, worker, snapshots, self._clock
        )
        self._was_sharded = False
        self._agreed_stop: str | None = None
        """The last stop reason of the first process, with `across="all"`."""
        # Absolute: the working directory may change in the middle of it.
        self._base_dir = Path(run_dir or Path("outputs/evals") / label).absolute()
        self._is_named = run_dir is not None
        self._resume = resume
        self._history: EvalHistory | None = None
        # A trainer may still say that it resumes, where there is something to resume.
        if resume is not None or not self._has_predecessor():
            self._enter_first()

    # --- Cadence ---

    @property
    def every_steps(self) -> int:
        """Steps between evals; 0 if evals are off."""
        return self._cadence.every_steps

    @property
    def last_due(self) -> int | None:
        """The last step at which `maybe_run` found an eval due: the same in every process."""
        return self._cadence.last_due

    def should_run(self, step: int) -> bool:
        """Whether an eval is due, by the cadence alone.

        Args:
            step: The step. If the counter jumps, an eval is due once it has passed a multiple of
                `every_steps` since the last call of `maybe_run`. A step for which `maybe_run` has
                found one due is not due again, in several micro-batches say.

        Returns:
            Whether it is due.
        """
        return self._cadence.is_due(step)

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
        if not self._cadence.reach(step):
            give_back_if_tight()
            return None
        with self._taking_part(model) as policy:
            if policy is None:
                return None
            # Where others take part the first one says so to all of them, further down.
            if self._settings.across == "first" and self._spending.affordable == 0:
                return self._skip_unaffordable(step)
            if dispatcher is not None and not wait and self._background.can_copy(policy):
                is_scheduled, _ = self._schedule(dispatcher, step, policy.model, saved_at=saved_at)
                if is_scheduled:
                    return None
            point = self._run(step, policy, size=self._spending.affordable)
            self._broadcast_stop()
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
        with self._taking_part(model) as policy:
            return None if policy is None else self._run(step, policy)

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
        dispatcher = self._poll_dispatcher(step)
        self._background.collect()
        with self._taking_part(model) as policy:
            return None if policy is None else self._run_last(step, dispatcher, policy)

    def _run_last(
        self, step: int, dispatcher: AsyncEvalDispatcher | None, policy: LivePolicy
    ) -> CurvePoint | None:
        point, is_scheduled = None, False
        in_background = dispatcher is not None and self._background.can_copy(policy)
        if dispatcher is not None and in_background and not dispatcher.trainer.in_event_loop:
            model = policy.model
            deadline = self._background.wait_for_all(dispatcher, model)
            self._background.collect()
            is_scheduled, handle = self._schedule(
                dispatcher, step, model, final=True, deadline=deadline
            )
            if handle is not None:
                left = max(0.0, deadline - time.monotonic())
                handle.result(None if left == math.inf else left)
                self._background.collect()
                point = handle.point  # with its verdict
        if not is_scheduled and all(h.step != step for h in self._background.scheduled):
            point = self._run(step, policy, final=True)
        if self._history is None:
            return point
        self._background.finish(self._history)
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
        file, dispatcher = self.curve.file, self._find_dispatcher()
        in_flight = dispatcher is not None and dispatcher.has_in_flight(file, pending.key)
        if in_flight or not file.is_pending(pending):
            raise InvalidInput(f"the eval of step {pending.step} is not pending: {pending!r:.200}")
        # The hash of a sharded model is known once it is gathered.
        _check_weights(pending, None if sharding_way(model) else fingerprint(model))
        with self._taking_part(model) as policy:
            if policy is None:
                return None
            return self._run(pending.step, policy, instead_of=pending)

    def use_trainer(self, trainer: TrainerSettings) -> None:
        """Have the model answer as in training, where the code of the eval says nothing else.

        Args:
            trainer: How the trainer has it answer.

        Raises:
            ResumeMismatch: The curve in the run directory was measured in another way.
        """
        if self.worker is not None:
            self.worker.trainer = trainer
        builder = self.runner_builder
        if isinstance(builder, KnownBuilder):
            builder.use_trainer(trainer)
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
            self._cadence.begin(step)
        self._spending.begin()

    def _begin_at(self, step: int, *, follows: int) -> None:
        """Note where an attempt begins: this one, or the next if the step counter went back.

        `follows` is the last step whose weights earlier attempts have, too.
        """
        if self._cadence.go_back(step) and self._history is not None:
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
        return as_html("curve", self.points, self.label, self.run_dir if self.points else None)

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
        # A worker says what it runs once it runs.
        builder = self.runner_builder
        self._history = open_history(
            self,
            self._base_dir,
            curve_config(
                self.label,
                self.samples,
                seed=self._settings.seed,
                pass_threshold=self._settings.pass_threshold,
                monitor=self._publisher.settings,
                every_steps=self.every_steps,
            ),
            {} if builder is None else describe_builder(builder),
            is_named=self._is_named,
            resume=bool(self._resume),
        )
        self._spending.take_over(self._history.earlier)

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
        return self._publisher.find_stop(self.run_dir)

    @property
    def _is_shared(self) -> bool:
        return self._settings.across == "all" and self._current_ranks().world > 1

    def _broadcast_stop(self) -> None:
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
        policy: LivePolicy,
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
        began, ranks = self._clock(), self._current_ranks()
        limit = TimeLimit.of(self._settings.max_seconds, ranks)
        if self._settings.across == "first":
            if not is_first_process(ranks):
                return None
            ranks = Alone()
        is_first = ranks.rank == 0
        task = self._evals.task(
            step,
            self.run_dir,
            self.curve if is_first else None,
            size=size,
            final=final,
            limit=limit,
            beats=is_first,
        )
        try:
            measured = self._measure(task, policy, ranks)
            if instead_of is not None and isinstance(measured, Measured):
                _check_weights(instead_of, measured.weights)
        except Exception as problem:
            log.warning("%s at step %s", self.label, step, exc_info=problem)
            measured = Measured(0, skipped=describe(problem))
        finally:
            self._spending.add_eval_time(self._clock() - began)
        if not is_first:
            return None
        if isinstance(measured, Known):
            if instead_of is not None:
                self.curve.file.append(skip_of(instead_of, SAME_WEIGHTS))
            if measured.point is None:
                return None
            return self._publisher.reuse(measured.point, self.curve)
        measured = measured or Measured(0, skipped=self._spending.why_not)
        measured_at = self._clock()
        seconds = measured_at - began
        budget = self._spending.spend(step, measured, seconds)
        point = self._evals.make_point(task, measured, seconds, budget=budget)
        if instead_of is not None:
            point = msgspec.structs.replace(
                point, session=instead_of.session, follows=instead_of.follows
            )
            if not point.has_result:  # it stays pending
                saved_at = instead_of.saved_at
                point = msgspec.structs.replace(point, pending=True, saved_at=saved_at)
        point = self._publish(point)
        self._spending.add_eval_time(self._clock() - measured_at, charge=True)
        self._publisher.raise_if_asked(point)
        return point

    def _publish(self, point: CurvePoint) -> CurvePoint:
        dispatcher = self._find_dispatcher()
        # A monitor may draw random numbers, and takes its time, too.
        with untouched_random_state():
            point_log = None if dispatcher is None else dispatcher.jobs.points
            return self._publisher.publish(point, self.curve, point_log)

    def _measure(self, task: Task, policy: LivePolicy, ranks: Ranks) -> Measured | Known | None:
        """Measure the model in training, of a sharded one a whole copy."""
        if task.history is not None:
            task.history.check_current()
        if task.limit.is_cut:
            self._evals.warn_once(
                f"{task.limit.text}: other processes wait while this one evaluates. Set a smaller "
                "max_seconds, or a longer timeout in init_process_group"
            )
        if self.worker is not None:
            return self._background.measure_in_worker(task, policy)
        with ExitStack() as stack:
            model, problem = None, None
            try:
                model = policy.model
                if isinstance(model, ShardedModel):
                    model.inline = ranks.world == 1  # else all of them evaluate, and end together
                    if ranks.rank == 0 and task.size == 0:
                        model.decline()
                    model = stack.enter_context(self._background.gathered(model, task.step))
            except Exception as raised:  # noqa: BLE001 - kept as the reason of the skip
                model, problem = None, f"model: {describe(raised)}"
            return measure(task, model, ranks, no_model=problem)

    def _skip_unaffordable(self, step: int) -> CurvePoint | None:
        """Publish a skip: `max_overhead` leaves no time for an eval that is due."""
        if not is_first_process(self._current_ranks()):
            return None
        began = self._clock()
        point = self._skip(step, Measured(0, skipped=self._spending.why_not), 0.0)
        self._spending.add_eval_time(self._clock() - began)  # charged, it would starve evals
        return point

    def _skip(
        self,
        step: int,
        skip: Measured,
        seconds: float,
        *,
        final: bool = False,
        budget: dict[str, Any] | None = None,
    ) -> CurvePoint:
        """Publish a skip of an eval that was not begun."""
        task = self._evals.task(step, self.run_dir, self.curve, final=final)
        return self._publish(self._evals.make_point(task, skip, seconds, budget=budget))

    @contextmanager
    def _taking_part(self, model: Any) -> Iterator[LivePolicy | None]:
        """Give the policy of an eval that this process runs; None where another one does.

        Of a sharded model, the processes that do not evaluate take part in gathering its weights.
        """
        get_model = self.model_getter or (lambda: None)
        if model is not None:
            get_model = lambda: model  # noqa: E731
        ranks = self._current_ranks()
        self._warn_of_launcher(ranks)
        # In the rollout phase, the engine that answers there has whole weights.
        if self.in_rollout_phase or ranks.world == 1:
            yield LivePolicy(get_model, None if self.in_rollout_phase else ranks)
            return
        sharded = find_sharded(get_model, ranks, was_sharded=self._was_sharded)
        self._was_sharded = sharded is not None
        if sharded is None:
            yield LivePolicy(get_model)
            return
        if self._settings.across == "first" and not is_first_process(ranks):
            sharded.take_part()
            yield None
            return
        with closing(sharded):
            yield LivePolicy(get_model if sharded.model is None else lambda: sharded)

    def _warn_of_launcher(self, ranks: Ranks) -> None:
        """Say why an eval is left to others, where nobody has seen these others."""
        if ranks.world == 1 and (said := launcher_rank()):
            self._evals.warn_once(
                f"{said}, so this process is not the first and evaluates nothing, but "
                "torch.distributed is not initialised. Initialise it before the first eval; where "
                "this process trains alone, unset these variables"
            )

    # --- One eval in the background ---

    def _find_dispatcher(self) -> AsyncEvalDispatcher | None:
        """Return the dispatcher in use. Most trainings have none, and do not enter background/."""
        return get_async_eval_dispatcher() if dispatcher_in_use.get() is not None else None

    def _poll_dispatcher(self, step: int) -> AsyncEvalDispatcher | None:
        """Return the dispatcher, if any, after running what evals need in this thread."""
        dispatcher = self._find_dispatcher()
        if dispatcher is None or self.in_rollout_phase:
            return None
        if self._is_shared:
            self._background.warn_once("across='all' does not work in the background")
            return None
        dispatcher.on_poll(self._background.collect)
        dispatcher.poll(step)
        return dispatcher

    def _schedule(
        self,
        dispatcher: AsyncEvalDispatcher,
        step: int,
        model: Any,
        *,
        final: bool = False,
        saved_at: str | Path | None = None,
        deadline: float | None = None,
    ) -> tuple[bool, Scheduled | None]:
        """Schedule an eval in the background; never raises an Exception either.

        Returns:
            Whether it needs no eval inline, and what was scheduled.
        """
        began = self._clock()
        try:
            if not is_first_process(self._current_ranks()):
                return True, None
            self.curve.check_current()
            handle = self._background.schedule(
                dispatcher,
                step,
                model,
                self.curve,
                final=final,
                saved_at=saved_at,
                deadline=deadline,
            )
            return handle is not None, handle
        except Exception as problem:
            log.warning("%s at step %s", self.label, step, exc_info=problem)
            skip, seconds = Measured(0, skipped=describe(problem)), self._clock() - began
            budget = self._spending.spend(step, skip, seconds)
            point = self._skip(step, skip, seconds, final=final, budget=budget)
            self._publisher.raise_if_asked(point)
            return True, None
        finally:
            self._spending.add_eval_time(self._clock() - began, charge=True)


def _check_weights(pending: CurvePoint, weights: str | None) -> None:
    """Refuse other weights than those of a pending eval, where both are known."""
    if None not in (pending.weights, weights) and weights != pending.weights:
        raise InvalidInput(
            f"the eval of step {pending.step} is for the weights {pending.weights}, "
            f"and these are {weights}"
        )
