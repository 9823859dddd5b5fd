"""What a `PeriodicEval` measures: its samples, run and scored on the policy of a step.

Inline on the model in training, in the background on a snapshot of it, or in an `EvalWorker`. All
three end in a `Measured`, and that in a point, by `make_point`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from heldout._live.isolation import is_background_thread, untouched_random_state
from heldout.errors import InvalidInput
from heldout.store.run_dir import now
from heldout.training.budget import Spending
from heldout.training.curve.curve_file import EvalHistory
from heldout.training.curve.points import CurvePoint, outcomes_of
from heldout.training.curve.publishing import PointPublisher
from heldout.training.ranks import Alone, Ranks
from heldout.training.reasons import describe
from heldout.training.run_eval import (
    KeepEvaluating,
    Known,
    Measured,
    RunInTrainer,
    Task,
    measure,
)
from heldout.training.runner import RunnerBuilder
from heldout.training.settings import EvalSettings
from heldout.training.sharding import ShardedModel
from heldout.types import Sample

if TYPE_CHECKING:
    from pathlib import Path

    from heldout.training.background.snapshot import SnapshotPool
    from heldout.training.background.worker import EvalWorker

log = logging.getLogger("heldout")

LONGEST_PROMPT = 20_000
"""Characters of a rendered prompt in the curve. A longer one loses its middle."""

GetModel = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """How long an eval may take."""

    seconds: float | None
    text: str
    """The limit and who has set it, for a partial result."""


class PolicyMeasurer:
    """Measures a policy on the held-out samples of one eval.

    Args:
        settings: The settings of the eval.
        samples: The samples, in the fixed order.
        runner_builder: Makes the runner of a model; None with a worker.
        worker: The process that evaluates, if there is one.
        snapshots: Copies of the weights, or how many.
        publisher: Gets the progress of a long eval.
        spending: Charged for each point.
        clock: The clock.
    """

    def __init__(
        self,
        settings: EvalSettings,
        samples: Sequence[Sample],
        runner_builder: RunnerBuilder | None,
        worker: EvalWorker | None,
        snapshots: SnapshotPool | int | None,
        publisher: PointPublisher,
        spending: Spending,
        clock: Callable[[], float],
    ) -> None:
        self.runner_builder, self.worker = runner_builder, worker
        self._settings, self._samples, self._snapshots = settings, samples, snapshots
        self._publisher, self._spending, self._clock = publisher, spending, clock
        self._progress: deque[Callable[[], object]] = deque()
        """Heartbeats of background evals, to be called in the trainer's thread."""
        self._has_warned = False

    # --- Measuring ---

    def find_pool(self) -> SnapshotPool:
        """Return the pool of snapshots, made at first use."""
        if self._snapshots is None or isinstance(self._snapshots, int):
            from heldout.training.background.snapshot import SnapshotPool

            self._snapshots = SnapshotPool(size=self._snapshots)
        return self._snapshots

    def time_limit(self, ranks: Ranks) -> TimeLimit:
        """Return how long an eval may take that other processes wait for."""
        longest, patience = self._settings.max_seconds, ranks.patience
        if patience is None or (longest is not None and longest <= patience):
            return TimeLimit(longest, f"max_seconds={longest:g}" if longest is not None else "")
        asked = "max_seconds=None" if longest is None else f"max_seconds={longest:g}"
        text = f"{asked}, cut to {patience:g} s by the timeout of the process group"
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: %s: other processes wait while this one evaluates. Set a smaller max_seconds, "
                "or a longer timeout in init_process_group",
                self._settings.label,
                text,
            )
        return TimeLimit(patience, text)

    def measure_live(
        self,
        step: int,
        get_model: GetModel,
        ranks: Ranks,
        *,
        run_dir: Path,
        history: EvalHistory | None,
        size: int | None,
        final: bool,
        limit: TimeLimit,
    ) -> Measured | Known | None:
        """Measure the model in training, which waits.

        Args:
            step: The step of the point.
            get_model: Returns the model.
            ranks: The processes that evaluate.
            run_dir: The run directory.
            history: The curve, in the first process.
            size: How many samples to use; None for the whole set, on the last weights say.
            final: Whether these are the last weights.
            limit: How long it may take.

        Returns:
            As `run_eval.measure`.
        """
        task = self._task(
            step,
            run_dir,
            history,
            size=size,
            final=final,
            beats=ranks.rank == 0,
            seconds=limit.seconds,
        )
        if self.worker is None:
            with self._whole(step, get_model, ranks, is_due=size != 0) as get_whole:
                return measure(task, get_whole, ranks)
        try:
            with untouched_random_state():
                model = get_model()
                if isinstance(model, ShardedModel):
                    model.inline = True
                snapshot = self.worker.try_snapshot(model, step=step)
        except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
            return Measured(0, skipped=f"model: {describe(problem)}")
        if snapshot is None:
            return Measured(0, skipped=self.worker.say_full())
        try:
            return self.worker.measure(task, snapshot)
        finally:
            snapshot.release()

    @contextmanager
    def _whole(
        self, step: int, get_model: GetModel, ranks: Ranks, *, is_due: bool
    ) -> Iterator[GetModel]:
        """Have a sharded model gathered into a copy when it is asked for, until the block ends."""
        taken: list[Any] = []

        def get_whole() -> Any:
            model = get_model()
            if not isinstance(model, ShardedModel):
                return model
            model.inline = ranks.world == 1  # else all of them evaluate, and end together
            if ranks.rank == 0 and not is_due:
                model.decline()
            taken.append(self.find_pool().try_snapshot(model, step=step))
            if taken[-1] is None:
                raise InvalidInput(self.find_pool().say_full())
            return taken[-1].model

        try:
            yield get_whole
        finally:
            for snapshot in taken:
                if snapshot is not None:
                    snapshot.release(empty=True)

    def measure_snapshot(
        self,
        step: int,
        snapshot: Any,
        curve: EvalHistory,
        *,
        final: bool,
        is_given_up: Callable[[], bool],
        run_in_trainer: RunInTrainer,
    ) -> CurvePoint | Known:
        """Measure a snapshot in a thread, and return its point."""
        began = self._clock()
        # Off the last step a result of a part will do, if these weights have one.
        size = None if final else len(self._samples)
        task = self._task(
            step,
            curve.file.run.path,
            curve,
            size=size,
            final=final,
            is_given_up=is_given_up,
            seconds=self._settings.max_seconds,
        )
        measured: Measured | Known | None
        if self.worker is not None:
            measured = self.worker.measure(task, snapshot)
        else:
            measured = measure(task, lambda: snapshot.model, Alone(), snapshot, run_in_trainer)
            assert measured is not None
        if isinstance(measured, Known):
            return measured
        seconds = self._clock() - began
        return self.make_point(step, measured, seconds, curve, final=final, charged=False)

    def _task(
        self,
        step: int,
        run_dir: Path,
        history: EvalHistory | None,
        *,
        size: int | None,
        final: bool,
        seconds: float | None,
        beats: bool = True,
        is_given_up: Callable[[], bool] = lambda: False,
    ) -> Task:
        return Task(
            step=step,
            samples=self._samples,
            size=len(self._samples) if size is None else size,
            runner_builder=self.runner_builder,
            run_dir=run_dir,
            pass_threshold=self._settings.pass_threshold,
            seed=self._settings.seed,
            keep_going=self._keep_going(
                step, seconds=seconds, beats=beats, is_given_up=is_given_up
            ),
            history=history,
            whole=size is None,
            final=final,
        )

    # --- Progress ---

    def _keep_going(
        self, step: int, *, seconds: float | None, beats: bool, is_given_up: Callable[[], bool]
    ) -> KeepEvaluating:
        """Make the callback of a running eval: it gives heartbeats and says when time is up."""
        settings = self._settings
        began = last_beat = self._clock()

        def keep_going(done: int, total: int) -> bool:
            nonlocal last_beat
            time_now = self._clock()
            if beats and time_now - last_beat >= settings.progress_seconds:
                last_beat = time_now
                fields = {"eval_done": done, "eval_total": total, "eval_seconds": time_now - began}
                name = f"{settings.label}_progress"
                beat = partial(self._publisher.beat, name, {"step": step, **fields})
                if is_background_thread():
                    self._progress.append(beat)
                else:
                    beat()
            in_time = seconds is None or time_now - began < seconds
            return in_time and not is_given_up()

        return keep_going

    @property
    def has_progress(self) -> bool:
        """Whether background evals have heartbeats to give."""
        return bool(self._progress)

    def beat_progress(self) -> None:
        """Give the heartbeats of background evals, in the trainer's thread."""
        while self._progress:
            self._progress.popleft()()

    # --- The point ---

    def make_point(
        self,
        step: int,
        measured: Measured,
        seconds: float,
        curve: EvalHistory,
        *,
        final: bool,
        charged: bool = True,
        limit: TimeLimit | None = None,
    ) -> CurvePoint:
        """Make the point of a result or a skip.

        Args:
            step: Its step.
            measured: The result, or why there is none.
            seconds: How long it took.
            curve: The curve that it belongs to.
            final: Whether it is of the last weights.
            charged: Whether training waited for it, which the budget is charged for.
            limit: How long it might take; by default `max_seconds`.
        """
        settings, budget = self._settings, None
        decoding = dict(measured.decoding or {})
        prompt = decoding.pop("prompt", None)
        if prompt is not None and len(prompt) > LONGEST_PROMPT:
            prompt = f"{prompt[: LONGEST_PROMPT // 2]} … {prompt[-LONGEST_PROMPT // 2 :]}"
        if charged:
            budget = self._spending.spend(step, measured, seconds, settings.every_steps)
        partial_reason = measured.partial
        limit = limit or self.time_limit(Alone())
        if partial_reason is not None and limit.text:
            partial_reason = f"{limit.text}: {partial_reason}"
        return CurvePoint(
            label=settings.label,
            step=step,
            session=curve.session,
            time=now(),
            seconds=seconds,
            summary=self._publisher.within_bounds(measured.summary),
            skipped=measured.skipped,
            partial=partial_reason,
            outcomes=outcomes_of(measured.results),
            asked=measured.asked,
            of=len(self._samples) * measured.repeats,
            weights=measured.weights,
            budget=budget,
            decoding=decoding or None,
            prompt=None if prompt == curve.last_prompt else prompt,
            run=measured.run,
            final=final,
            follows=curve.follows,
        )
