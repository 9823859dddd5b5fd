"""The training loops of tinker-cookbook: the step of an eval, and evals that run asynchronously.

An evaluator is not given its step, which is the number of updates that the weights have had. It is
read from what the loop shows of itself, and recorded with where it was read (docs/tinker.md).

The loops wait for their evaluators. For a config of `with_heldout(…, async_eval=True)` an evaluator
is scheduled on the dispatcher in use instead, with the sampling client of its step, and its metrics
are logged later with the loop's own logger. The package has no hook for that, so three of its
functions are replaced, once per process; for other trainings they do what they did before:

    utils.ml_log.setup_logging      its logger stays open until the dispatcher has drained
    rl.train.run_single_evaluation  every evaluator of the RL loops, that of the test set included
    supervised.train.run_evals      the same for the supervised loop

The loops of distillation have no such function: there, the evaluators of the config are wrapped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache, partial, wraps
from typing import Any
from weakref import WeakKeyDictionary

import chz
from tinker_cookbook import checkpoint_utils
from tinker_cookbook.eval.evaluators import SamplingClientEvaluator, TrainingClientEvaluator
from tinker_cookbook.utils import ml_log, trace

from heldout.errors import InvalidInput
from heldout.training.background.dispatcher import AsyncEvalDispatcher, get_async_eval_dispatcher
from heldout.training.background.jobs import Scheduled
from heldout.training.curve.curve_file import numbered_names

log = logging.getLogger("heldout")

# --- Steps --------------------------------------------------------------------------------------

COUNTED = (
    "tinker_cookbook.supervised.train",
    "tinker_cookbook.distillation.train_on_policy",
    "tinker_cookbook.distillation.train_off_policy",
    "tinker_cookbook.distillation.sdft",
)
"""Loops that evaluate at every multiple of `eval_every` and at no other step, one after the other.
The RL loops do not, and need not be counted; that of DPO adds its last step."""


@dataclass(frozen=True, slots=True)
class LoopStep:
    """A training step, and how it is known."""

    number: int
    source: str
    """`task`, `trace`, `count`, `checkpoint` or `given`."""


@dataclass(slots=True)
class Cadence:
    """When a training loop calls its evaluators, and how often it has."""

    every: int
    """Steps from one eval to the next; 0: none."""
    start: int | None = 0
    """The step that training begins at; None: not known."""
    counted: bool = False
    """Whether the loop evaluates at every multiple, none left out."""
    calls: int = 0

    @classmethod
    def of(cls, config: Any) -> Cadence:
        """Read the cadence from a training config."""
        return cls(config.eval_every, first_step(config.log_path), is_counted(type(config)))

    @property
    def first(self) -> int | None:
        """First step that is due; None where that is not known."""
        if self.start is None or self.every < 1:
            return None
        return -(-self.start // self.every) * self.every

    def next_step(self) -> LoopStep | None:
        """The step that the call in progress is about; None where it is not known."""
        calls, self.calls = self.calls, self.calls + 1
        step = running_step()
        if step is None and self.counted and self.first is not None:
            step = LoopStep(self.first + calls * self.every, "count")
        return step

    def missed(self, previous: int | None, step: int) -> list[int]:
        """The steps between two calls, or before the first one, at which an eval was due."""
        if self.first is None:
            return []
        begin = self.first if previous is None else (previous // self.every + 1) * self.every
        return list(range(max(begin, self.first), step, self.every))


def is_counted(config_type: type) -> bool:
    """Whether the number of calls tells the step, in the loop of such a config."""
    return any(base.__module__ in COUNTED for base in config_type.__mro__)


def running_step() -> LoopStep | None:
    """The step that the running task or its trace scope names."""
    task = asyncio.current_task()
    name = re.fullmatch(r"eval_.*_iteration_(\d+)", task.get_name(), re.S) if task else None
    if name is not None:
        return LoopStep(int(name[1]), "task")
    # Scopes of many kinds have a step; the one around an evaluator has its name, too.
    attributes = getattr(trace.trace_context.get(None), "attributes", None) or {}
    if "evaluator_name" in attributes and "step" in attributes:
        return LoopStep(attributes["step"], "trace")
    return None


def first_step(log_path: str) -> int | None:
    """The step that a training of this log_path begins at; None where that cannot be known."""
    last = checkpoint_utils.get_last_checkpoint(log_path)
    if last is None:
        return 0
    if last.epoch is None:
        batch: int | None = last.batch
        return batch
    # The supervised loop counts batches within an epoch, but names its checkpoints by step.
    return int(last.name) if last.name.isdecimal() else None


def sampler_path(log_path: str, step: int) -> str | None:
    """Where an RL loop has saved the weights of a step; None where it has not."""
    records = checkpoint_utils.load_checkpoints_file(log_path)
    # The supervised loop numbers batches within an epoch, and saves while updates are in flight.
    paths = [r.sampler_path for r in records if r.batch == step and r.epoch is None]
    return next((path for path in reversed(paths) if path is not None), None)


# --- Configs whose evaluators run asynchronously ------------------------------------------------


class AsyncEvals:
    """Marks the types of configs whose evaluators run asynchronously.

    `chz.replace` keeps the type, whatever list of builders it is given.
    """


def with_async_evals(config: Any) -> Any:
    """The config, as one whose evaluators run asynchronously."""
    _replace_functions()
    values = {f.logical_name: getattr(config, f.x_name) for f in config.__chz_fields__.values()}
    config_type: Any = type(config)
    return _async_type(config_type)(**values)


@cache
def _async_type(config_type: Any) -> Any:
    if issubclass(config_type, AsyncEvals):
        return config_type
    namespace: dict[str, Any] = {
        "__module__": config_type.__module__,
        "__qualname__": config_type.__qualname__,
        "__annotations__": {},
    }
    for field in ("evaluator_builders", "infrequent_evaluator_builders"):
        if field in config_type.__chz_fields__:
            namespace["__annotations__"][field] = list[Any]
            namespace[field] = chz.field(default_factory=list, munger=_async_builders)
    return chz.chz(type(config_type.__name__, (AsyncEvals, config_type), namespace))


def _is_distillation(config_type: type) -> bool:
    return any(b.__module__.startswith("tinker_cookbook.distillation") for b in config_type.__mro__)


def _async_builders(config: Any, builders: list[Any]) -> list[Any]:
    originals = [b.builder if isinstance(b, AsyncBuilder) else b for b in builders]
    return [
        b.made_async() if hasattr(b, "evaluator") else AsyncBuilder(b, config) for b in originals
    ]


class AsyncBuilder:
    """A builder of an asynchronous config; called once, as a training begins."""

    def __init__(self, builder: Any, config: Any) -> None:
        self.builder, self._config = builder, config

    def to_dict(self) -> Any:
        """What the package logs of it, with the rest of the config."""
        return ml_log.dump_config(self.builder)

    def __deepcopy__(self, memo: dict[int, Any]) -> AsyncBuilder:
        return self

    def __call__(self) -> Any:
        """Build the evaluator, wrapped where nothing of its loop is replaced to schedule it."""
        evaluator = self.builder()
        if not _is_schedulable(evaluator):
            return evaluator
        if current_training() is None:
            warn_of_inline(self._config.log_path)
        if not _is_distillation(type(self._config)):
            return evaluator
        return AsyncEvaluator(evaluator, Cadence.of(self._config).next_step)


class AsyncEvaluator(SamplingClientEvaluator):  # type: ignore[misc]
    """An evaluator that is scheduled where the loop calls it, if the step is known."""

    def __init__(self, evaluator: Any, next_step: Callable[[], LoopStep | None]) -> None:
        self._evaluator, self._next_step = evaluator, next_step

    async def __call__(self, sampling_client: Any) -> Any:
        """Schedule the evaluator.

        Where there is no dispatcher, or the step is unknown, it runs at once.
        """
        training, step = current_training(), self._next_step()
        run = partial(self._evaluator, sampling_client)
        if training is None or step is None:
            return await run()
        return await training.schedule(self._evaluator, run, step.number)


def _is_schedulable(evaluator: Any) -> bool:
    """Return whether an evaluator can run later.

    One of the training client cannot, whose weights change. A HeldoutEvaluator schedules itself.
    """
    return not (
        isinstance(evaluator, TrainingClientEvaluator)
        or getattr(evaluator, "schedules_itself", False)
    )


_warned_of_inline: set[str] = set()


def warn_of_inline(log_path: str) -> None:
    """Say, once for a training, that its evaluators run inline though they were to be asynchronous.

    The package's own loops do what is missing, or are refused; a loop of the user's may not.
    """
    if log_path in _warned_of_inline:
        return
    _warned_of_inline.add(log_path)
    missing = "the training loop has not called ml_log.setup_logging(config=config) before"
    if get_async_eval_dispatcher() is None:
        missing = "there is no `async with AsyncEvalDispatcher(run_dir=…):` around the training"
    log.warning(
        "async_eval=True, but %s: evaluators of %s run inline, and training waits for them",
        missing,
        log_path,
    )


# --- A training whose evals are asynchronous ----------------------------------------------------

PASSED_OVER = (
    "the training loop did not ask for it: its evaluation loop was still waiting for an earlier "
    "eval. A dispatcher with room for more (max_pending) lets it go on"
)


async def fail(reason: str) -> Any:
    """Stands in for an eval that cannot run, so that the curve shows the gap and the reason."""
    raise InvalidInput(reason)


async def schedule(
    run: Callable[[], Awaitable[Any]],
    *,
    name: str,
    step: int,
    saved_at: str | None = None,
    metrics_of: Callable[[Any], dict[str, float]] = lambda result: result,
) -> Scheduled:
    """Schedule an eval on the dispatcher in use.

    Where the training's evals are asynchronous, `metrics_of` what `run` returns is logged with the
    training's own logger.
    """
    dispatcher, training = get_async_eval_dispatcher(), current_training()
    assert dispatcher is not None
    if training is None:
        return await dispatcher.aschedule(run, step=step, name=name, saved_at=saved_at)

    async def run_and_log() -> Any:
        try:
            result = await run()
        except Exception:
            training.log({f"heldout/{name}/skipped": 1.0}, step)
            raise
        training.log(metrics_of(result), step)
        return result

    scheduled = await dispatcher.aschedule(run_and_log, step=step, name=name, saved_at=saved_at)
    training.keep_open_for(scheduled)
    return scheduled


def scheduled_metrics(name: str, scheduled: Scheduled) -> dict[str, float]:
    """What the loop logs for a scheduled eval; a skip if there was no free slot."""
    return {f"heldout/{name}/{'scheduled' if may_have_result(scheduled) else 'skipped'}": 1.0}


def may_have_result(scheduled: Scheduled) -> bool:
    """Whether an eval has a result, or has not ended."""
    point = scheduled.result(0)
    return not scheduled.done() or (point is not None and point.has_result)


class TrainingLog:
    """The loop's own logger, for evals that end after their step, and maybe after the training.

    `prefix` is what the loop puts before the metrics of its evaluators, `names` are those taken.
    """

    def __init__(self, logger: Any, prefix: str, names: list[str]) -> None:
        self._logger, self._prefix = logger, prefix
        self._scheduled: list[Scheduled] = []
        self._names: dict[int, tuple[Any, str]] = {}
        self._taken = set(names)
        self._previous: dict[str, int] = {}
        self._loop_has_ended = self._closed = False
        self._context = copy_context()  # where trackio finds the run that the training began
        self._close = logger.close
        logger.close = self._end_loop

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Log metrics at their step. A logger that fails loses the row, and harms nothing else."""
        if self._closed:
            log.warning("metrics of step %s came after the training's logger was closed", step)
            return
        try:
            prefixed = {f"{self._prefix}{key}": value for key, value in metrics.items()}
            self._context.run(self._logger.log_metrics, prefixed, step=step)
        except Exception as problem:
            log.warning("metrics of step %s could not be logged", step, exc_info=problem)

    def keep_open_for(self, scheduled: Scheduled) -> None:
        """Keep the logger open until this eval has ended."""
        self._scheduled = [s for s in self._scheduled if not s.done()] + [scheduled]

    async def schedule(
        self,
        evaluator: Any,
        run: Callable[[], Any],
        step: int,
        *,
        cadence: Cadence | None = None,
        saved_at: str | None = None,
    ) -> dict[str, float]:
        """Schedule an evaluator, and a skip for every step that was due since its last one.

        Args:
            evaluator: An evaluator of the package or of the user.
            run: Runs it.
            step: The training step.
            cadence: When the loop calls it; None where no step can have been passed over.
            saved_at: Path of the weights.

        Returns:
            What the loop logs now.
        """
        name, context = self._name(evaluator), copy_context()

        async def run_in_context() -> Any:
            # The package keeps its rollout executor in the loop's context.
            return await asyncio.create_task(run(), context=context)

        previous, self._previous[name] = self._previous.get(name), step
        if cadence is not None and previous is not None:
            for missed in cadence.missed(previous, step):
                await schedule(partial(fail, PASSED_OVER), name=name, step=missed)
        scheduled = await schedule(run_in_context, name=name, step=step, saved_at=saved_at)
        return scheduled_metrics(name, scheduled)

    def _name(self, evaluator: Any) -> str:
        """The evaluator's name on the curve, made unique."""
        if id(evaluator) not in self._names:
            own = getattr(evaluator, "name", None)
            base = own if isinstance(own, str) and own.strip() else type(evaluator).__name__
            name = next(name for name in numbered_names(base) if name not in self._taken)
            self._taken.add(name)
            self._names[id(evaluator)] = (evaluator, name)
        return self._names[id(evaluator)][1]

    def _end_loop(self) -> None:
        """Replaces the logger's `close`, which the loop calls after its last row."""
        self._loop_has_ended = True

    def close_when_drained(self) -> None:
        """Called by the dispatcher after a drain."""
        if self._loop_has_ended and all(s.done() for s in self._scheduled):
            self.close()

    def close(self) -> None:
        """Close the training's own logger."""
        if self._closed:
            return
        self._closed = True
        self._scheduled, self._names = [], {}
        try:
            self._context.run(self._close)
        except Exception as problem:
            log.warning("the training's logger could not be closed", exc_info=problem)


_trainings: WeakKeyDictionary[AsyncEvalDispatcher, TrainingLog] = WeakKeyDictionary()
"""The training under each dispatcher whose evals are asynchronous."""


def current_training() -> TrainingLog | None:
    """The training in this context; None where its evals are not asynchronous."""
    dispatcher = get_async_eval_dispatcher()
    return None if dispatcher is None else _trainings.get(dispatcher)


# --- The functions of the package that are replaced ---------------------------------------------


@cache
def _replace_functions() -> None:
    from tinker_cookbook.rl import train as rl
    from tinker_cookbook.supervised import train as supervised

    ml_log.setup_logging = _keep_logger_open(ml_log.setup_logging)
    rl.run_single_evaluation = _schedule_rl(rl.run_single_evaluation)
    supervised.run_evals = _schedule_supervised(supervised.run_evals)


def _keep_logger_open(setup_logging: Any) -> Any:
    signature = inspect.signature(setup_logging)

    @wraps(setup_logging)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        config = signature.bind(*args, **kwargs).arguments.get("config")
        dispatcher = get_async_eval_dispatcher()
        if dispatcher is not None and (previous := _trainings.pop(dispatcher, None)) is not None:
            previous.close()  # before the next training begins a run of a tracker
        if not isinstance(config, AsyncEvals):
            return setup_logging(*args, **kwargs)
        if dispatcher is None:
            raise InvalidInput(
                "async_eval=True needs a dispatcher: `async with AsyncEvalDispatcher(run_dir=…):` "
                "around the training"
            )
        logger = setup_logging(*args, **kwargs)
        builders: list[Any] = config.evaluator_builders  # type: ignore[attr-defined]
        names = [b.evaluator.name for b in builders if hasattr(b, "evaluator")]
        training = TrainingLog(logger, "test/" if _is_distillation(type(config)) else "", names)
        _trainings[dispatcher] = training
        dispatcher.on_poll(training.close_when_drained)
        return logger

    return replacement


def _schedule_rl(run_single_evaluation: Any) -> Any:
    @wraps(run_single_evaluation)
    async def replacement(
        evaluator: Any, config: Any, i_batch: int, *args: Any, **kwargs: Any
    ) -> Any:
        training = current_training()
        if training is None and isinstance(config, AsyncEvals):
            warn_of_inline(config.log_path)  # type: ignore[attr-defined]
        run = partial(run_single_evaluation, evaluator, config, i_batch, *args, **kwargs)
        if training is None or not _is_schedulable(evaluator):
            return await run()
        saved_at = sampler_path(config.log_path, i_batch)
        cadence = Cadence(config.eval_every)
        return await training.schedule(evaluator, run, i_batch, cadence=cadence, saved_at=saved_at)

    return replacement


def _schedule_supervised(run_evals: Any) -> Any:
    @wraps(run_evals)
    async def replacement(evaluators: list[Any], training_client: Any, step: int) -> Any:
        if current_training() is not None:
            evaluators = [
                AsyncEvaluator(evaluator, lambda: LoopStep(step, "given"))
                if _is_schedulable(evaluator)
                else evaluator
                for evaluator in evaluators
            ]
        return await run_evals(evaluators, training_client, step)

    return replacement
