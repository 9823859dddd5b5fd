"""HeldoutEvaluator: a heldout eval that the loops of tinker-cookbook can call.

With a dispatcher in use it is scheduled on the sampling client it was given, which stays bound
to its weights, and the loop goes on. Without one the loop waits, and gets the numbers.

It never raises into the loop, where one failing evaluator takes the others with it. An eval that
could not run is a skip with its reason on the curve, and `…/skipped` in the metrics: never a 0.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import anyio.to_thread
import msgspec
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator

from heldout._core.config import MAX_ERROR_RATE, EvalConfig, Sampling
from heldout._core.temporary import TemporaryFolder
from heldout._evals.engine import Evaluation
from heldout._evals.rollout import (
    EnvironmentFactory,
    EvalDefinition,
    PrepareMessages,
    ScoreFn,
    own_pass_threshold,
    turn_limit,
)
from heldout.errors import InvalidInput
from heldout.integrations.tinker.endpoint import TinkerEndpoint, stop_sequences, without_key
from heldout.integrations.tinker.loops import (
    PASSED_OVER,
    Cadence,
    LoopStep,
    fail,
    may_have_result,
    running_step,
    sampler_path,
    schedule,
    scheduled_metrics,
)
from heldout.store.columns import PARQUET_FROM
from heldout.store.run_dir import RunDir
from heldout.training.background.dispatcher import get_async_eval_dispatcher
from heldout.training.background.jobs import Scheduled
from heldout.training.curve.curve_file import CurveFile, open_curve_file, reserve_name
from heldout.training.curve.points import (
    CurvePoint,
    number_fields,
    pending_point,
    read_points,
    skip_of,
)
from heldout.training.curve.publishing import judge_by_default, point_of
from heldout.training.reasons import describe
from heldout.training.runner import check_samples
from heldout.types import Sample

log = logging.getLogger("heldout")

_names: WeakKeyDictionary[Any, WeakValueDictionary[str, HeldoutEvaluator]] = WeakKeyDictionary()
"""Evaluators that have measured a client, by name: the loop keeps one result of each name."""
_latest: WeakKeyDictionary[CurveFile, dict[str, int]] = WeakKeyDictionary()
"""The step that each eval of a run directory has reached. All evaluators of one directory write as
one attempt of the training: else each would take the points of the others for superseded ones."""


class HeldoutEvaluator(SamplingClientEvaluator):  # type: ignore[misc]
    """A heldout eval as an evaluator of tinker-cookbook.

    Args:
        samples: The held-out samples; or an `EvalDefinition`, with None as its score function.
        score_fn: As for `evaluate`.
        renderer: A renderer of the package, for the model that trains.
        name: The eval's name: its metrics are `heldout/<name>/…`, its points on the curve have it
            as their label.
        max_tokens: The longest turn.
        prepare_messages: As for `evaluate`.
        environment_factory: As for `evaluate`.
        sampling: How turns are sampled; greedy by default.
        context_window: Tokens of prompt and turn together; turns are shortened to fit.
        max_concurrent: As for `EvalConfig`, like all up to `pass_threshold`.
        repeats: Attempts of each sample.
        max_turns: Model turns of one conversation; by default the eval's own limit, or 16.
        token_budget: Tokens of one conversation.
        timeout: Seconds of one conversation.
        retries: Further tries of a request that failed.
        max_error_rate: The part of the samples that may error before the eval is a skip.
        pass_threshold: The reward from which on a sample passes.
        run_dir: Where the curve and the conversations go. `with_heldout` sets it where it is left
            out; that of the dispatcher in use takes precedence.
        step: Gives the step of the next call, for a training loop of your own.

    Raises:
        InvalidInput: A setting is invalid: now, and not at the first eval of a long training.
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
        max_turns: int | None = None,
        token_budget: int | None = None,
        timeout: float | None = 600.0,
        retries: int = 4,
        max_error_rate: float | None = MAX_ERROR_RATE,
        pass_threshold: float | None = None,
        run_dir: str | Path | None = None,
        step: Callable[[], int] | None = None,
    ) -> None:
        if not isinstance(name, str) or not name.replace("_", "").replace("-", "").isalnum():
            raise InvalidInput(f"name must be letters, digits, _ and -, got {name!r}")
        if not hasattr(renderer, "build_generation_prompt"):
            raise InvalidInput(
                f"renderer must be one of tinker_cookbook.renderers, got {renderer!r:.100}"
            )
        if context_window is not None and context_window < 1:
            raise InvalidInput(f"context_window must be a number of tokens, got {context_window!r}")
        definition = EvalDefinition.of(samples, score_fn, prepare_messages, environment_factory)
        sampling = replace(sampling or Sampling(), max_tokens=max_tokens)
        if sampling.temperature and sampling.seed is None:
            sampling = replace(sampling, seed=0)  # the same weights, the same summary
        if sampling.extra_body or sampling.stream:
            raise InvalidInput("sampling.extra_body and sampling.stream are for servers")
        stop_sequences(renderer, sampling)
        self._config = EvalConfig(
            sampling=sampling,
            progress=False,
            max_concurrent=max_concurrent,
            repeats=repeats,
            max_turns=turn_limit(max_turns, definition),
            token_budget=token_budget,
            timeout=timeout,
            retries=retries,
            max_error_rate=max_error_rate,
            pass_threshold=own_pass_threshold(pass_threshold, definition),
        )
        self._definition = replace(definition, samples=tuple(check_samples(definition)))
        self._endpoint = partial(
            TinkerEndpoint, renderer=renderer, max_tokens=max_tokens, context_window=context_window
        )
        self.name, self.prefix = name, f"heldout/{name}"
        self.run_dir = None if run_dir is None else Path(run_dir).absolute()
        self._given_step = step
        self._cadence: Cadence | None = None
        self._log_path: str | None = None
        self._file: CurveFile | None = None
        self._measured: dict[int, Scheduled | bool] = {}
        """By step: what has been scheduled, or whether there was a result."""
        self._previous: int | None = None
        self._warned = False

    # --- Called by the loop ---

    async def __call__(self, sampling_client: Any) -> dict[str, float]:
        """Measure the weights that a sampling client is bound to.

        Args:
            sampling_client: The client, as the loop has it.

        Returns:
            The metrics; `…/scheduled` where they come later, `…/skipped` where there are none.
        """
        try:
            step = self._next_step()
            self._claim_name(sampling_client)
            if step is None:
                return await self._measure_without_step(sampling_client)
            await self.skip_missed(step.number)
            return await self.measure(sampling_client, step)
        except Exception as problem:
            log.warning("eval %r failed", self.name, exc_info=problem)
            return {f"{self.prefix}/skipped": 1.0}

    def begin(self, config: Any) -> None:
        """Begin a training run; refuse it if its points could not be written."""
        self._cadence, self._log_path = Cadence.of(config), config.log_path
        self._previous, self._measured = None, {}
        if get_async_eval_dispatcher() is None:
            self._enter_run_dir()

    def _next_step(self) -> LoopStep | None:
        if self._given_step is not None:
            return LoopStep(self._given_step(), "given")
        return running_step() if self._cadence is None else self._cadence.next_step()

    def _claim_name(self, client: Any) -> None:
        names = _names.setdefault(client, WeakValueDictionary())
        if names.setdefault(self.name, self) is not self:
            raise InvalidInput(
                f"another evaluator is called {self.name!r}, too, and measured these weights: one "
                "of the two results would be lost. Give them different names"
            )

    async def skip_missed(self, step: int) -> None:
        """Record a skip for every due step that the loop passed over before this one."""
        previous, self._previous = self._previous, step
        if self._cadence is not None and not self._cadence.counted:
            for missed in self._cadence.missed(previous, step):
                await self.skip(missed, PASSED_OVER)

    # --- One eval ---

    async def measure(
        self, client: Any, step: LoopStep, *, final: bool = False, saved_at: str | None = None
    ) -> dict[str, float]:
        """Measure weights of a known step, here or on the dispatcher in use."""
        if saved_at is None and self._log_path is not None:
            saved_at = sampler_path(self._log_path, step.number)
        # An eval that runs later is not in the context that the dispatcher is in use in.
        directory = self._directory()
        work = partial(self._point, client, step, directory, final=final, saved_at=saved_at)
        outcome = await self._run(work, step.number, saved_at)
        if isinstance(outcome, Scheduled):
            self._measured[step.number] = outcome
            return scheduled_metrics(self.name, outcome)
        self._measured[step.number] = outcome.has_result
        return self._metrics(outcome)

    async def skip(self, step: int, reason: str) -> dict[str, float]:
        """Record that a step has no result, and why."""
        await self._run(partial(fail, reason), step)
        return {f"{self.prefix}/skipped": 1.0}

    def has_measured(self, step: int, saved_at: str) -> bool:
        """Return whether a step has a result or will have one.

        Args:
            step: The training step.
            saved_at: Path of its weights. A result of an earlier attempt counts if it is of weights
                that are saved at the same path.
        """
        measured = self._measured.get(step, False)
        if may_have_result(measured) if isinstance(measured, Scheduled) else measured:
            return True
        directory = self._directory()
        if directory is None or not RunDir(directory).curve.exists():
            return False
        return any(
            point.has_result and (point.decoding or {}).get("sampler_path") == saved_at
            for point in read_points(RunDir(directory).curve)
            if (point.label, point.step) == (self.name, step)
        )

    async def _run(
        self, work: Callable[[], Any], step: int, saved_at: str | None = None
    ) -> CurvePoint | Scheduled:
        """Run an eval here, or schedule it on the dispatcher in use."""
        if get_async_eval_dispatcher() is not None:
            return await schedule(
                work, name=self.name, step=step, saved_at=saved_at, metrics_of=self._metrics
            )
        if self._file is None:
            self._enter_run_dir()
        began = time.monotonic()
        try:
            point: CurvePoint = await work()
        except Exception as problem:
            log.warning("eval %r of step %s failed", self.name, step, exc_info=problem)
            pending = pending_point(self.name, step)
            reason = without_key(describe(problem))
            point = skip_of(pending, reason, time.monotonic() - began)
        return point if self._file is None else _record(self._file, point)

    def _enter_run_dir(self) -> None:
        """Keep the curve open for the lifetime of this evaluator."""
        if self.run_dir is None:
            return
        self._file = open_curve_file(self.run_dir, self)
        self._file.enter(resume=True)  # the loop says which run it continues
        self._file.write_bare_config()

    def _metrics(self, point: CurvePoint) -> dict[str, float]:
        return number_fields(point, f"{self.prefix}/")

    async def _measure_without_step(self, client: Any) -> dict[str, float]:
        """Measure without a curve point: the loop knows the step, and this evaluator does not."""
        if not self._warned:
            self._warned = True
            log.warning(
                "eval %r: nothing says which step the weights are of, so it has no curve and is "
                "not scheduled: the training waits, and logs it. Use with_heldout, or step=…",
                self.name,
            )
        return self._metrics(await self._point(client, None, self._directory()))

    async def _point(
        self,
        client: Any,
        step: LoopStep | None,
        directory: Path | None,
        *,
        final: bool = False,
        saved_at: str | None = None,
    ) -> CurvePoint:
        began, sampling = time.monotonic(), self._config.sampling
        about = {
            "step": step and step.number,
            "step_from": step and step.source,
            "sampler_path": saved_at,
            "sampling_session": getattr(client, "_sampling_session_id", None),
        }
        about = {key: value for key, value in about.items() if value is not None}
        prefix = "unplaced" if step is None else f"{step.number:08d}"
        pending = pending_point(self.name, 0 if step is None else step.number)
        if directory is None:
            parent: Any = TemporaryFolder("eval")
        else:
            parent = nullcontext(directory / "steps")
        with parent as output_dir:
            endpoint = self._endpoint(client, about=about)
            config = replace(
                self._config,
                endpoint=endpoint,
                experiment_name=reserve_name(Path(output_dir), f"{prefix}-{self.name}"),
                output_dir=str(output_dir),
            )
            report = await Evaluation(
                self._definition, config, endpoint, parquet_from=PARQUET_FROM
            ).run()
            # In a thread: a large report would hold up the loop, and the training in it.
            point = await anyio.to_thread.run_sync(
                point_of, report, pending, time.monotonic() - began, directory
            )
        decoding = {
            "way": "tinker",
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_new": sampling.max_tokens,
            **about,
        }
        return msgspec.structs.replace(point, decoding=decoding, final=final)

    def _directory(self) -> Path | None:
        dispatcher = get_async_eval_dispatcher()
        if dispatcher is not None and dispatcher.run_dir is not None:
            return dispatcher.run_dir.absolute()
        return self.run_dir


def _record(file: CurveFile, point: CurvePoint) -> CurvePoint:
    """Write a point; if its step went back, it begins a new attempt of the training run."""
    latest = _latest.setdefault(file, {})
    if point.step < latest.get(point.label, 0):
        latest.clear()
        file.begin_session()
    latest[point.label] = point.step
    point = judge_by_default(msgspec.structs.replace(point, session=file.session), file)
    file.append(point)
    return point
