"""Every evaluator of a training on the installed dispatcher: the package's own and users', too.

The loops call an evaluator and wait for it. For a config of `with_heldout(…, async_eval=True)` the
evaluator is scheduled instead, with the sampling client of its step; the loop goes on, and the
metrics are logged with the loop's own logger, at that step, when they are there.

The package has no hook for that, so three of its functions are replaced, once per process. They do
what they did before, unless the training asked for this:

    utils.ml_log.setup_logging         its logger stays open until the dispatcher has drained
    rl.train.run_evaluations_parallel  all evaluators of the RL loops, that of the test set included
    supervised.train.run_evals         the same for the supervised loop

The loops of distillation call evaluators in their midst: there, those of the config are wrapped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import cache, partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

from heldout.errors import InvalidInput
from heldout.integrations.tinker.package import cookbook
from heldout.integrations.tinker.steps import Cadence, current_step, sampler_path
from heldout.training.dispatcher import AsyncEvalDispatcher
from heldout.training.installed import get_async_eval_dispatcher
from heldout.training.pending import Scheduled

log = logging.getLogger("heldout")

SamplingClientEvaluator: Any = cookbook("eval.evaluators").SamplingClientEvaluator

PASSED_OVER = (
    "the training loop did not ask for it: its evaluation loop was still waiting for an earlier "
    "eval. A dispatcher with room for more (max_pending) lets it go on"
)


class AsyncBuilders(list[Any]):
    """`evaluator_builders` of a config whose evaluators are to run asynchronously."""


def is_distillation(config_type: type) -> bool:
    return any(b.__module__.startswith("tinker_cookbook.distillation") for b in config_type.__mro__)


# --- The logger of a training -------------------------------------------------------------------


class TrainingLog:
    """The loop's own logger, for evals that end after their step, and maybe after the training."""

    def __init__(self, logger: Any, prefix: str, names: list[str]) -> None:
        self._logger, self._prefix = logger, prefix
        self._scheduled: list[Scheduled] = []
        self._names: dict[int, tuple[Any, str]] = {}
        self._taken = set(names)
        self._closing = self._closed = False
        self.previous: int | None = None
        """The step of the last evals."""
        self._context = copy_context()  # where trackio finds the run that the training began
        self._close = logger.close
        logger.close = self.close

    def log(self, metrics: Any, step: int) -> None:
        """What goes wrong here costs the logger its row, and nothing else."""
        if self._closed:
            log.warning("metrics of step %s came after the training's logger was closed", step)
            return
        try:
            named = {f"{self._prefix}{key}": value for key, value in metrics.items()}
            self._context.run(self._logger.log_metrics, named, step=step)
        except Exception as problem:
            log.warning("metrics of step %s could not be logged", step, exc_info=problem)

    def add(self, scheduled: Scheduled) -> None:
        self._scheduled = [each for each in self._scheduled if not each.done()] + [scheduled]

    def name_of(self, evaluator: Any) -> str:
        """What an evaluator is called on the curve, where two of one name would be one."""
        if id(evaluator) not in self._names:
            own = getattr(evaluator, "name", None)
            base = own if isinstance(own, str) and own.strip() else type(evaluator).__name__
            name, number = base, 2
            while name in self._taken:
                name, number = f"{base}-{number}", number + 1
            self._taken.add(name)
            self._names[id(evaluator)] = (evaluator, name)
        return self._names[id(evaluator)][1]

    def close(self) -> None:
        """Called by the loop when it has logged its last row. Evals have not."""
        self._closing = True

    def close_when_drained(self) -> None:
        """Called by the dispatcher after a drain."""
        if self._closing and all(each.done() for each in self._scheduled):
            self.close_now()

    def close_now(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._scheduled, self._names = [], {}
        try:
            self._context.run(self._close)
        except Exception as problem:
            log.warning("the training's logger could not be closed", exc_info=problem)


_logs: WeakKeyDictionary[AsyncEvalDispatcher, TrainingLog] = WeakKeyDictionary()
"""The training that runs under each dispatcher, where it asked for this."""


def training_log() -> TrainingLog | None:
    """That of the training in this context; None where it did not ask for async evals."""
    dispatcher = get_async_eval_dispatcher()
    return None if dispatcher is None else _logs.get(dispatcher)


async def logged(
    training: TrainingLog,
    run: Callable[[], Awaitable[Any]],
    step: int,
    prefix: str,
    metrics_of: Callable[[Any], Any] = lambda metrics: metrics,
) -> Any:
    """What `run` returns, once its metrics have been logged at their step; one that fails is
    logged as skipped."""
    try:
        result = await run()
    except Exception:
        training.log({f"{prefix}/skipped": 1.0}, step)
        raise
    training.log(metrics_of(result), step)
    return result


# --- One evaluator ------------------------------------------------------------------------------


def schedules_itself(evaluator: Any) -> bool:
    return bool(getattr(type(evaluator), "schedules_itself", False))


async def schedule(
    training: TrainingLog,
    evaluator: Any,
    run: Callable[[], Awaitable[Any]],
    step: int,
    saved_at: str | None = None,
) -> dict[str, float]:
    """Have the evaluator run on the dispatcher, as an eval of this step; returns what the loop is
    to log now."""
    dispatcher = get_async_eval_dispatcher()
    assert dispatcher is not None
    name, context = training.name_of(evaluator), copy_context()

    def task() -> asyncio.Task[Any]:
        # In the loop's context: the package keeps its rollout executor there.
        return asyncio.create_task(_call(run), name=f"eval_{name}_step_{step}", context=context)

    work = partial(logged, training, task, step, f"heldout/{name}")
    scheduled = await dispatcher.aschedule(work, step=step, name=name, saved_at=saved_at)
    training.add(scheduled)
    point = scheduled.result(0)
    # Where there was no place for it, it has ended already.
    refused = scheduled.done() and (point is None or not point.has_result)
    return {f"heldout/{name}/{'skipped' if refused else 'scheduled'}": 1.0}


async def _call(run: Callable[[], Awaitable[Any]]) -> Any:
    return await run()


class AsyncEvaluator(SamplingClientEvaluator):  # type: ignore[misc]
    """An evaluator that is scheduled where the loop calls it; `step` says which step that is of,
    None where nobody knows. Then the loop waits, as it always did."""

    def __init__(self, evaluator: Any, step: Callable[[], int | None]) -> None:
        self._evaluator, self._step = evaluator, step

    async def __call__(self, sampling_client: Any) -> Any:
        training, step = training_log(), self._step()
        run = partial(self._evaluator, sampling_client)
        if training is None or step is None:
            return await run()
        return await schedule(training, self._evaluator, run, step)


class AsyncBuilder:
    """A builder of a config whose loop counts its evals; called once, as a training begins."""

    def __init__(self, builder: Any, cadence: Callable[[], Cadence]) -> None:
        self._builder, self._cadence = builder, cadence

    def to_dict(self) -> Any:
        return cookbook("utils.ml_log").dump_config(self._builder)

    def __deepcopy__(self, memo: dict[int, Any]) -> AsyncBuilder:
        return self

    def __call__(self) -> Any:
        evaluator, cadence = self._builder(), self._cadence()

        def next_step() -> int | None:
            nonlocal cadence
            found, cadence = current_step(cadence), cadence.after_call()
            return None if found is None else found.number

        return AsyncEvaluator(evaluator, next_step) if _is_schedulable(evaluator) else evaluator


def _is_schedulable(evaluator: Any) -> bool:
    """Not one of the training client, whose weights change under it."""
    return isinstance(evaluator, SamplingClientEvaluator) and not schedules_itself(evaluator)


# --- The functions of the package ---------------------------------------------------------------


@cache
def install() -> None:
    """Replace them, once."""
    ml_log, rl = cookbook("utils.ml_log"), cookbook("rl.train")
    supervised = cookbook("supervised.train")
    ml_log.setup_logging = _with_late_rows(ml_log.setup_logging)
    rl.run_evaluations_parallel = _scheduling_rl(rl.run_evaluations_parallel, rl)
    supervised.run_evals = _scheduling_supervised(supervised.run_evals)


def _with_late_rows(setup_logging: Any) -> Any:
    @wraps(setup_logging)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        config, dispatcher = kwargs.get("config"), get_async_eval_dispatcher()
        if dispatcher is not None and (previous := _logs.pop(dispatcher, None)) is not None:
            previous.close_now()  # before the next training begins a run of a tracker
        builders = getattr(config, "evaluator_builders", None)
        if not isinstance(builders, AsyncBuilders):
            return setup_logging(*args, **kwargs)
        if dispatcher is None:
            raise InvalidInput(
                "async_eval=True needs a dispatcher: `async with AsyncEvalDispatcher(run_dir=…) as "
                "evals:` and `with use_async_eval_dispatcher(evals):` around the training"
            )
        made = setup_logging(*args, **kwargs)
        names = [b.evaluator.name for b in builders if hasattr(b, "evaluator")]
        training = TrainingLog(made, "test/" if is_distillation(type(config)) else "", names)
        _logs[dispatcher] = training
        dispatcher.on_visit(training.close_when_drained)
        return made

    return replaced


def _scheduling_rl(run_evaluations_parallel: Any, rl: Any) -> Any:
    @wraps(run_evaluations_parallel)
    async def replaced(
        evaluators: list[Any], sampling_client: Any, config: Any, i_batch: int, store: Any = None
    ) -> dict[str, Any]:
        training = training_log()
        if training is None:
            found: dict[str, Any] = await run_evaluations_parallel(
                evaluators, sampling_client, config, i_batch, store=store
            )
            return found
        saved_at = sampler_path(config.log_path, i_batch)
        previous, training.previous = training.previous, i_batch
        missed = [] if previous is None else Cadence(config.eval_every).missed(previous, i_batch)
        metrics: dict[str, Any] = {}
        for number, evaluator in enumerate(evaluators):
            # As the package has it: the label names files, and the task tells the step.
            label = rl._sanitize_filename_component(
                rl._get_evaluator_name(evaluator) or str(number)
            )
            run = partial(
                rl.run_single_evaluation,
                evaluator,
                config,
                i_batch,
                sampling_client,
                label,
                store=store,
            )
            if schedules_itself(evaluator):
                task = f"eval_{label}_iteration_{i_batch:06d}"
                metrics |= await asyncio.create_task(run(), name=task)
                continue
            for step in missed:
                await schedule(training, evaluator, _passed_over, step)
            metrics |= await schedule(training, evaluator, run, i_batch, saved_at)
        return metrics

    return replaced


async def _passed_over() -> Any:
    raise InvalidInput(PASSED_OVER)


def _scheduling_supervised(run_evals: Any) -> Any:
    @wraps(run_evals)
    async def replaced(evaluators: list[Any], training_client: Any, step: int) -> Any:
        if training_log() is not None:
            evaluators = [
                AsyncEvaluator(each, lambda: step) if _is_schedulable(each) else each
                for each in evaluators
            ]
        return await run_evals(evaluators, training_client, step)

    return replaced
