"""HeldoutEvaluator: a heldout eval that the loops of tinker-cookbook can call.

With a dispatcher installed it is scheduled on the sampling client it was given, which stays bound
to its weights, and the loop goes on. Without one the loop waits, and gets the numbers.

It never raises into the loop, where one failing evaluator takes the others with it. An eval that
could not run is a skip with its reason on the curve, and `…/skipped` in the metrics: never a 0.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, ref

from heldout.config import Sampling
from heldout.errors import InvalidInput
from heldout.integrations.tinker.asynchronous import PASSED_OVER, logged, training_log
from heldout.integrations.tinker.curve import entered, metrics_of, points_at, record
from heldout.integrations.tinker.endpoint import without_key
from heldout.integrations.tinker.measurement import Measurement
from heldout.integrations.tinker.package import cookbook
from heldout.integrations.tinker.steps import Cadence, Step, current_step, sampler_path
from heldout.items import EnvironmentFactory, EvalDefinition, PrepareMessages, ScoreFn
from heldout.training.curve import CurvePoint
from heldout.training.curve_file import Home
from heldout.training.dispatcher import AsyncEvalDispatcher
from heldout.training.installed import get_async_eval_dispatcher
from heldout.training.pending import PendingEval, Scheduled
from heldout.training.results import skip_of
from heldout.training.run_eval import describe
from heldout.types import Sample

log = logging.getLogger("heldout")

SamplingClientEvaluator: Any = cookbook("eval.evaluators").SamplingClientEvaluator

_names: WeakKeyDictionary[Any, dict[str, ref[HeldoutEvaluator]]] = WeakKeyDictionary()
"""Who has measured a client, by name: of two that share one, the loop would keep one result."""


class HeldoutEvaluator(SamplingClientEvaluator):  # type: ignore[misc]
    """An `EvalDefinition` is given as `samples`, with None as its score function.

    `name` is what the eval is called: its metrics are `heldout/<name>/…`, its points on the
    curve have it as their label. `renderer` is one of the package, for the model that trains;
    `max_tokens` is the longest turn. Greedy unless `sampling` says otherwise.

    `run_dir` is where the curve and the conversations go: `with_heldout` sets it where it is left
    out, and that of an installed dispatcher comes first. `step` may be set for a loop of your own,
    to a function that says which step the next call is about. The rest is `EvalConfig`'s.
    """

    schedules_itself = True

    def __init__(
        self,
        samples: Iterable[Sample] | EvalDefinition,
        score_fn: ScoreFn | None,
        renderer: Any,
        *,
        name: str,
        max_tokens: int,
        prepare_messages: PrepareMessages | None = None,
        environment_factory: EnvironmentFactory | None = None,
        sampling: Sampling | None = None,
        context_window: int | None = None,
        max_concurrent: int = 64,
        repeats: int = 1,
        max_turns: int = 16,
        token_budget: int | None = None,
        timeout: float | None = 600.0,
        retries: int = 4,
        max_error_rate: float | None = None,
        pass_threshold: float = 0.5,
        run_dir: str | Path | None = None,
        step: Callable[[], int] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name.replace("_", "").replace("-", "").isalnum():
            raise InvalidInput(f"name is letters, digits, _ and -, got {name!r}")
        self.name = name
        self.run_dir = None if run_dir is None else Path(run_dir).absolute()
        self.cadence: Cadence | None = None
        """What is known of the loop; `with_heldout` says it."""
        given = EvalDefinition.of(samples, score_fn, prepare_messages, environment_factory)
        self._measurement = Measurement(
            name,
            given.samples,
            (given.score_fn, given.prepare_messages, given.environment_factory),
            renderer,
            max_tokens=max_tokens,
            sampling=sampling,
            context_window=context_window,
            max_concurrent=max_concurrent,
            repeats=repeats,
            max_turns=max_turns,
            token_budget=token_budget,
            timeout=timeout,
            retries=retries,
            max_error_rate=max_error_rate,
            pass_threshold=pass_threshold,
        )
        self._given_step = step
        self._home: Home | None = None
        self._measured: dict[int, Scheduled | bool] = {}
        """By step: what has been scheduled, or whether there was a result."""
        self._previous: int | None = None
        self._log_path: str | None = None
        self._warned = False

    @property
    def prefix(self) -> str:
        return f"heldout/{self.name}"

    # --- Called by the loop ---

    async def __call__(self, sampling_client: Any) -> dict[str, float]:
        try:
            step = self._current_step()
            if self.cadence is not None:
                self.cadence = self.cadence.after_call()
            self._claim(sampling_client)
            if step is not None:
                await self.note_missed(step)
            return await self.measure(sampling_client, step)
        except Exception as problem:
            log.warning("eval %r failed", self.name, exc_info=problem)
            return {f"{self.prefix}/skipped": 1.0}

    def begin(self, cadence: Cadence, log_path: str) -> None:
        """A training begins, in the way that `cadence` says; its checkpoints are in `log_path`.
        Where its points could not be written, it does not begin."""
        self.cadence, self._log_path = cadence, log_path
        self._previous, self._measured = None, {}
        dispatcher = get_async_eval_dispatcher()
        if self.run_dir is not None and dispatcher is None:
            self._home = entered(self.run_dir, self)

    def _current_step(self) -> Step | None:
        if self._given_step is not None:
            return Step(self._given_step(), "given")
        return current_step(self.cadence)

    def _claim(self, client: Any) -> None:
        try:
            mine = _names.setdefault(client, {}).setdefault(self.name, ref(self))
        except TypeError:  # no weak references to it
            return
        other = mine()
        if other is not None and other is not self:
            raise InvalidInput(
                f"another evaluator is called {self.name!r}, too, and measured these weights: one "
                "of the two results would be lost. Give them different names"
            )
        _names[client][self.name] = ref(self)

    async def note_missed(self, step: Step) -> None:
        """Points that the loop has passed over become skips, so that the curve shows the gap."""
        previous, self._previous = self._previous, step.number
        if self.cadence is None or self.cadence.counted:
            return
        for missed in self.cadence.missed(previous, step.number):
            await self.skip(missed, PASSED_OVER)

    # --- One measurement ---

    async def measure(
        self,
        client: Any,
        step: Step | None,
        *,
        final: bool = False,
        saved_at: str | None = None,
    ) -> dict[str, float]:
        """Measure the weights that `client` is bound to, now or on the installed dispatcher."""
        dispatcher = get_async_eval_dispatcher()
        if step is None:
            return await self._measure_nowhere(client)
        if saved_at is None and self._log_path is not None:
            saved_at = sampler_path(self._log_path, step.number)
        directory = self._directory(dispatcher)
        work = partial(
            self._measurement.point, client, step, directory, final=final, saved_at=saved_at
        )
        if dispatcher is None:
            point = await self._here(work, step)
            self._measured[step.number] = point.has_result
            return metrics_of(point.summary, self.prefix)
        training = training_log()
        if training is not None:
            metrics = partial(_metrics_of_point, prefix=self.prefix)
            work = partial(logged, training, work, step.number, self.prefix, metrics)
        scheduled = await dispatcher.aschedule(
            work, step=step.number, name=self.name, saved_at=saved_at
        )
        if training is not None:
            training.add(scheduled)
        self._measured[step.number] = scheduled
        # Where there was no place for it, it has ended already.
        refused = scheduled.done() and not self.has_measured(step.number)
        return {f"{self.prefix}/{'skipped' if refused else 'scheduled'}": 1.0}

    async def skip(self, step: int, why: str) -> dict[str, float]:
        """There is to be no result for this step."""

        async def work() -> CurvePoint:
            raise InvalidInput(why)

        dispatcher = get_async_eval_dispatcher()
        if dispatcher is None:
            await self._here(work, Step(step, "given"))
        else:
            await dispatcher.aschedule(work, step=step, name=self.name)
        return {f"{self.prefix}/skipped": 1.0}

    def has_measured(self, step: int, saved_at: str | None = None) -> bool:
        """Whether this step has a result or will have one: of this training, or, where they were
        saved in the same place, of these weights."""
        found = self._measured.get(step, False)
        if isinstance(found, Scheduled):
            point = found.result(0)
            found = not found.done() or (point is not None and point.has_result)
        if found:
            return True
        directory = self._directory(get_async_eval_dispatcher())
        if saved_at is None or directory is None:
            return False
        return any(
            point.has_result and (point.decoding or {}).get("sampler_path") == saved_at
            for point in points_at(directory, self.name, step)
        )

    def _directory(self, dispatcher: AsyncEvalDispatcher | None) -> Path | None:
        """Where the curve is, and so its conversations."""
        if dispatcher is not None and dispatcher.run_dir is not None:
            return dispatcher.run_dir.absolute()
        return self.run_dir

    async def _here(self, work: Callable[[], Any], step: Step) -> CurvePoint:
        began = time.monotonic()
        try:
            point: CurvePoint = await work()
        except Exception as problem:
            log.warning("eval %r of step %s failed", self.name, step.number, exc_info=problem)
            why = without_key(describe(problem))
            pending = PendingEval(self.name, step.number, "")
            point = skip_of(pending, why, time.monotonic() - began)
        if self.run_dir is None:
            return point
        try:
            if self._home is None:
                self._home = entered(self.run_dir, self)
            return record(self._home, point)
        except Exception as problem:
            what = "eval %r of step %s could not be written to the curve in %s"
            log.error(what, self.name, step.number, self.run_dir, exc_info=problem)
            return point

    async def _measure_nowhere(self, client: Any) -> dict[str, float]:
        """The loop knows its step, and logs what it gets at it. The curve would need it, too."""
        if not self._warned:
            self._warned = True
            log.warning(
                "eval %r: nothing says which step the weights are of, so it has no curve and is "
                "not scheduled: the training waits, and logs it. Use with_heldout, or step=…",
                self.name,
            )
        try:
            directory = self._directory(get_async_eval_dispatcher())
            report = await self._measurement.report(client, directory)
        except Exception as problem:
            log.warning("eval %r failed", self.name, exc_info=problem)
            return {f"{self.prefix}/skipped": 1.0}
        return metrics_of(report.summary, self.prefix)


def _metrics_of_point(point: CurvePoint, prefix: str) -> dict[str, float]:
    return metrics_of(point.summary, prefix)
