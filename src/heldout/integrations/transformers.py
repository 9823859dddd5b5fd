"""Evaluation while a transformers or TRL trainer trains, without side effects on training.

    evals = PeriodicEval(samples, live_model(tokenizer, score_fn), every_steps=50)
    trainer = GRPOTrainer(model, …)
    HeldoutCallback(evals).attach(trainer)
    trainer.train()

Trained weights are the same, bit for bit, with the callback and without it, and so are the rows
that the trainer logs. Steps are optimizer steps (`state.global_step`), however many batches are
accumulated for one.

An eval runs in `on_step_end`: after the optimizer has made its step, before the trainer logs and
saves it, so that a checkpoint has the row of its own weights. The last weights are evaluated there
too, since at `on_train_end` the best checkpoint may have been loaded in their place, and reporters
have closed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from heldout.chat.messages import to_chat_api
from heldout.errors import InvalidInput
from heldout.isolation import untouched_random_state
from heldout.overlap import HeldOutPrompts
from heldout.rollout import EvalDefinition
from heldout.training.curve import CurvePoint
from heldout.training.dispatcher import runs_async_evals
from heldout.training.distributed import agree, current_ranks
from heldout.training.metrics import Heartbeat, log_fields
from heldout.training.periodic_eval import PeriodicEval
from heldout.training.runner import EpisodeRunner, RunnerBuilder
from heldout.training.settings import NUM, EnvironmentSettings
from heldout.types import Message, Sample

log = logging.getLogger("heldout")

DEFAULT_LABEL, DEFAULT_NAME = "rl_eval", "heldout"

STOP_CHECK_STEPS = 50
"""With several processes: how often they agree on a request to stop while no eval is due."""


class HeldoutCallback(TrainerCallback):  # type: ignore[misc]
    """Runs evals on their cadence, logs what they find, and stops training where one asks for it.

    With `attach(trainer)` results are logged as the trainer's own rows are: to its `log_history`
    and to its reporters. One that is only in the trainer's `callbacks` does not know its trainer:
    it writes to `log_history` and cannot reach reporters. Rows are `eval_<name>_reward` and so on
    (docs/training.md lists them); the name is the eval's label, or "heldout" for the default one. A
    skip is `eval_<name>_skipped` = 1, and no number that could be taken for a result.

    Without an `eval_strategy`, `metric_for_best_model="eval_heldout_reward"` and
    `save_strategy="best"` save every new best, and `load_best_model_at_end` loads it. With one,
    heldout answers the trainer's `evaluate` while it trains (`EarlyStoppingCallback` needs it): all
    evals, whole, in place of the trainer's own on its `eval_dataset`, which has to be given but is
    not read. A result that was skipped or ended early is not compared: its step is not the best
    one, and does not count for early stopping. Nor is step 0, which has no checkpoint.

    With several processes, all of them stop after the same step. They agree on that when an eval is
    due, and at every 50th step: a step without either costs no communication.

    With an `AsyncEvalDispatcher` results come late: they go to the curve and to the dispatcher's
    loggers at their own step, not into the trainer's rows. The last eval is waited for, and so are
    those that answer the trainer's `evaluate`.

    Args:
        evals: The evals, each with a label and a run directory of its own.
        answer_evaluate: False leaves the trainer its own `evaluate`.
        allow_overlap: Whether training may use prompts of the held-out set. They are looked for
            before training begins.
    """

    def __init__(
        self, *evals: PeriodicEval, answer_evaluate: bool = True, allow_overlap: bool = False
    ) -> None:
        self.evals = evals
        self._allow_overlap, self._has_checked_overlap = allow_overlap, False
        self._names = _names(evals)
        self._answer = answer_evaluate
        self._trainer: Any = None
        self._own_evaluate: Callable[..., Any] | None = None
        self._model: Any = None
        self._logged = {periodic.label: len(periodic.history) for periodic in evals}
        """How many points of its history existed before or have been logged."""
        self._rows: dict[str, _PendingLog] = {}
        """The last row of each eval."""
        self._finished = False
        self._stopped = False
        self._agreed_after: list[int | None] = []
        """The last step at which each eval was due when processes last agreed whether to stop."""
        for periodic in evals:
            if periodic.model_getter is None:
                periodic.model_getter = self._live_model

    @classmethod
    def from_environment(
        cls,
        samples: Iterable[Sample] | EvalDefinition,
        runner_builder: RunnerBuilder,
        heartbeat_fn: Heartbeat | None = None,
        *,
        allow_overlap: bool = False,
        **settings: Any,
    ) -> HeldoutCallback:
        """Make one eval as the HELDOUT_EVAL_* variables say; none if they do not turn it on.

        Without any samples no eval is ever due, and a warning says so: a launch does not fail.

        Args:
            samples: The held-out samples.
            runner_builder: As for `PeriodicEval`, like all further arguments.
            heartbeat_fn: Called with each point.
            allow_overlap: As for the callback.
            **settings: Other arguments of `PeriodicEval`.
        """
        outside = EnvironmentSettings.from_environment()
        if outside.every_steps and outside.num == 0:
            log.warning("heldout: no eval is ever due: %s is 0", NUM)
        if not outside.every_steps or outside.num == 0:
            return cls()
        evals = PeriodicEval(samples, runner_builder, heartbeat_fn=heartbeat_fn, **settings)
        return cls(evals, allow_overlap=allow_overlap)

    def attach(self, trainer: Any) -> HeldoutCallback:
        """Attach to a trainer, and add this to its callbacks.

        Args:
            trainer: The trainer.

        Returns:
            This callback.

        Raises:
            InvalidInput: It is not a trainer, this belongs to another one, or prompts of its
                training dataset are in the held-out set.
        """
        if not isinstance(trainer, Trainer):
            raise InvalidInput(f"attach takes a transformers.Trainer, got {trainer!r:.100}")
        if self._trainer is not None and self._trainer is not trainer:
            raise InvalidInput("this callback is attached to another trainer; make a new one")
        self._check_overlap(trainer.train_dataset, trainer.processing_class)
        self._trainer = trainer
        if not any(callback is self for callback in trainer.callback_handler.callbacks):
            trainer.add_callback(self)
        return self

    def _check_overlap(self, dataset: Any, tokenizer: Any) -> None:
        check_training_prompts(dataset, self._on, tokenizer, allow_overlap=self._allow_overlap)
        self._has_checked_overlap = True

    # --- What the trainer calls ---

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Check the settings, begin the curves, and evaluate step 0 where it is due."""
        if not self._on:
            return
        self._check_best_metric(args)
        self._check_names(state)
        if not self._has_checked_overlap:
            batches = others.get("train_dataloader")
            self._check_overlap(getattr(batches, "dataset", None), others.get("processing_class"))
        tokens = getattr(args, "max_completion_length", None)  # TRL's
        for periodic in self._on:
            if tokens is not None:
                periodic.use_completion_length(tokens)
        if self._trainer is None and args.report_to:
            log.warning(
                "heldout: results go to the trainer's log_history and to the curve, not to %s; "
                "callback.attach(trainer) sends them there, too",
                ", ".join(args.report_to),
            )
        self._model, self._finished, self._stopped = model, False, False
        self._rows.clear()
        if self._answers(args) and self._own_evaluate is None:
            self._own_evaluate = self._trainer.evaluate
            self._trainer.evaluate = self._evaluate
        step = state.global_step
        for periodic in self._on:
            periodic.begin(step, resume=step > 0)
        self._agreed_after = [periodic.last_due for periodic in self._on]
        # A step resumed at that has its point already has its row in the log that was loaded.
        row = self._run(step, self._cadenced, PeriodicEval.maybe_run, log_known=step == 0)
        self._log(row, state, control)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Evaluate if it is due, and pass on a request to stop."""
        if not self._on:
            return
        self._model = model
        row: dict[str, float] = {}
        if not control.should_training_stop:
            # Where the trainer is going to ask for these very results, it has to wait for them.
            asked = control.should_evaluate and self._answers(args)
            checkpoint = str(Path(args.output_dir, f"checkpoint-{state.global_step}").absolute())
            run = partial(
                PeriodicEval.maybe_run,
                wait=asked,
                saved_at=checkpoint if control.should_save else None,
            )
            row = self._run(state.global_step, self._cadenced, run)
            self._stop_if_requested(state, control)
        if control.should_training_stop:
            row |= self._finish(state.global_step)
        self._report(row, args, state, control)

    def on_epoch_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Evaluate the last weights; called after the last step whatever stopped training."""
        if self._on and control.should_training_stop:
            self._model = model
            self._report(self._finish(state.global_step), args, state, control)

    def on_train_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Evaluate the last weights if that was not done, and detach from the trainer."""
        if not self._on:
            return
        self._model = model
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._model = _Replaced(state.best_model_checkpoint)
        row = self._finish(state.global_step)
        self._log(row, state, control, reporters=False)  # they have closed
        if self._own_evaluate is not None:
            self._trainer.evaluate, self._own_evaluate = self._own_evaluate, None

    def _evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Replaces `trainer.evaluate` during training."""
        trainer = self._trainer
        if eval_dataset is not None or metric_key_prefix != "eval" or not trainer.is_in_train:
            assert self._own_evaluate is not None
            return self._own_evaluate(eval_dataset, ignore_keys, metric_key_prefix)  # type: ignore[no-any-return]
        state, control = trainer.state, trainer.control
        step = state.global_step
        missing = []
        for periodic in self._cadenced:
            row = self._rows.get(periodic.label)
            if row is None or row.step != step or row.cut:
                missing.append(periodic)
        self._log(self._run(step, missing, PeriodicEval.run_eval), state, control)
        metrics = self._metrics_at(step)
        trainer.control = trainer.callback_handler.on_evaluate(
            trainer.args, state, control, dict(metrics)
        )
        wanted = _best_metric(trainer.args)
        if wanted is not None and wanted not in metrics:
            log.warning(
                "heldout: there is no %s at step %s, which therefore is not the best", wanted, step
            )
        # One more step would be trained before `on_step_end` is asked again.
        self._stop_if_requested(state, trainer.control, has_evaluated=True)
        return _TrainerMetrics(metrics, self._names.values())

    # --- Evals ---

    @property
    def _on(self) -> list[PeriodicEval]:
        return [periodic for periodic in self.evals if periodic.every_steps > 0]

    @property
    def _cadenced(self) -> list[PeriodicEval]:
        """The evals run by this callback. The others run inside the rollout phase."""
        return [periodic for periodic in self._on if not periodic.in_rollout_phase]

    def _live_model(self) -> Any:
        if isinstance(self._model, _Replaced):
            raise InvalidInput(
                f"the last weights are gone: {self._model.by} has been loaded in their place"
            )
        return self._model

    def _finish(self, step: int) -> dict[str, float]:
        """Evaluate the last weights, once."""
        if self._finished:
            return {}
        self._finished = True

        def last(periodic: PeriodicEval, step: int) -> CurvePoint | None:
            own = periodic.model_getter
            if isinstance(self._model, _Replaced):
                periodic.model_getter = self._live_model
            try:
                return periodic.run_final(step)
            finally:
                periodic.model_getter = own

        return self._run(step, self._on, last)

    def _run(
        self,
        step: int,
        evals: Iterable[PeriodicEval],
        run: Callable[[PeriodicEval, int], CurvePoint | None],
        *,
        log_known: bool = True,
    ) -> dict[str, float]:
        """Run the evals, and return what is new as a log row, the same in every process."""
        made: dict[str, _PendingLog] = {}
        shared = False
        cadenced = getattr(run, "func", run) is PeriodicEval.maybe_run
        for periodic in evals:
            shared = shared or not cadenced or periodic.should_run(step)
            point = run(periodic, step)
            if log_known and point is not None and not any(point is p for p in periodic.history):
                made[periodic.label] = self._row(point)  # an earlier start of this training has it
        for periodic in self._on:
            if len(periodic.history) < self._logged[periodic.label]:  # its training has begun again
                self._logged[periodic.label] = 0
            for point in periodic.history[self._logged[periodic.label] :]:
                # The result of an asynchronous eval comes late: a row of the trainer's would
                # put it at another step. Loggers have it at its own.
                if point.step == step or point.lag_steps is None:
                    made[periodic.label] = self._row(point)
            self._logged[periodic.label] = len(periodic.history)
        if shared:
            made = agree(current_ranks(), made, dict[str, _PendingLog])
        self._rows |= made
        return {key: value for row in made.values() for key, value in row.fields.items()}

    def _row(self, point: CurvePoint) -> _PendingLog:
        if point.summary is None:
            cut = point.weights is None  # not even begun: max_overhead left no time for it
        else:
            cut = point.partial is not None or point.asked < point.of
        return _PendingLog(point.step, log_fields(point, self._names[point.label]), cut)

    def _stop_if_requested(self, state: Any, control: Any, *, has_evaluated: bool = False) -> None:
        ranks = current_ranks()
        is_time = has_evaluated or self._is_time_to_agree(state.global_step)
        if ranks.world > 1 and not is_time:
            return
        asked = [(periodic, periodic.stop_requested_here) for periodic in self._on]
        reasons = [
            f"{periodic.label}: {reason}" for periodic, reason in asked if reason is not None
        ]
        # Processes that decide differently deadlock, and the first alone knows of all requests.
        if agree(ranks, bool(reasons), bool):
            control.should_training_stop = True
            if not self._stopped and reasons:
                log.warning(
                    "heldout: training stops at step %s: %s", state.global_step, "; ".join(reasons)
                )
            self._stopped = True

    def _is_time_to_agree(self, step: int) -> bool:
        """Whether processes exchange their stop requests after this step.

        By what every process knows without asking: a collective waits for the device, too.
        """
        before, self._agreed_after = self._agreed_after, [p.last_due for p in self._on]
        return self._agreed_after != before or step % STOP_CHECK_STEPS == 0

    # --- The trainer's log, and its best model ---

    def _log(
        self, row: dict[str, float], state: Any, control: Any, *, reporters: bool = True
    ) -> None:
        if not row:
            return
        if self._trainer is None or not reporters:
            where = {} if state.epoch is None else {"epoch": state.epoch}
            state.log_history.append({**row, **where, "step": state.global_step})
            return
        try:
            # Not trainer.log: TRL's takes all that it has gathered of the training into the row.
            with _flags_kept(control):
                Trainer.log(self._trainer, dict(row))
        except Exception as problem:
            log.warning("heldout: a result could not be reported", exc_info=problem)

    def _report(self, row: dict[str, float], args: Any, state: Any, control: Any) -> None:
        """Log what is new; if the trainer has no evaluation of its own, act as that."""
        self._log(row, state, control)
        metrics = self._metrics_at(state.global_step) if row else {}
        if not metrics or self._trainer is None or args.eval_strategy != IntervalStrategy.NO:
            return
        with _flags_kept(control):
            self._trainer.callback_handler.on_evaluate(args, state, control, dict(metrics))
        wanted = _best_metric(args)
        if wanted is None or wanted not in metrics:
            return
        best = self._trainer._determine_best_metric(metrics=metrics, trial=None)
        if best and args.save_strategy == SaveStrategy.BEST:
            control.should_save = True

    def _metrics_at(self, step: int) -> dict[str, float]:
        """Return the metrics that a best model may be chosen by.

        A mean of fewer samples is not compared with one of all of them.
        """
        rows = [row.fields for row in self._rows.values() if row.step == step and not row.cut]
        return {key: value for fields in rows for key, value in fields.items()}

    def _answers(self, args: Any) -> bool:
        return (
            self._answer
            and self._trainer is not None
            and args.eval_strategy != IntervalStrategy.NO
            and bool(self._cadenced)
        )

    def _check_names(self, state: Any) -> None:
        """Before training begins: two callbacks that log under one name hide each other's rows."""
        # Callbacks do not know each other, but a training run has one state.
        taken = vars(state).setdefault("_heldout_names", {})
        for name in self._names.values():
            if taken.setdefault(name, id(self)) != id(self):
                raise InvalidInput(
                    f"two HeldoutCallbacks would log as eval_{name}_…; give each PeriodicEval a "
                    "label and a run_dir of its own"
                )

    def _check_best_metric(self, args: Any) -> None:
        """Before training begins. Later the trainer would raise, or never find a best model."""
        wanted = _best_metric(args)
        if wanted is None:
            return
        ours = any(wanted.startswith(f"eval_{name}_") for name in self._names.values())
        if self._answers(args) and not ours:
            known = ", ".join(f"eval_{name}_reward" for name in self._names.values())
            raise InvalidInput(
                f"metric_for_best_model is {wanted!r}, and heldout answers this trainer's "
                f"evaluate(), which has {known} and others; name one of those, or give the "
                "callback answer_evaluate=False"
            )
        if ours and self._trainer is None:
            raise InvalidInput(
                f"metric_for_best_model is {wanted!r}: for that, callback.attach(trainer) is needed"
            )
        if ours and not self._answers(args) and runs_async_evals():
            raise InvalidInput(
                f"metric_for_best_model is {wanted!r}, and evals run asynchronously: when a "
                "checkpoint is saved, its result is not there yet. Train without a dispatcher, or "
                "choose the checkpoint afterwards, from the curve"
            )
        if ours and args.eval_strategy != IntervalStrategy.NO and not self._answers(args):
            raise InvalidInput(
                f"metric_for_best_model is {wanted!r}, which the trainer's own evaluation does not "
                "have; leave out answer_evaluate=False, or set eval_strategy='no'"
            )


def check_training_prompts(
    dataset: Any, evals: Iterable[PeriodicEval], tokenizer: Any, *, allow_overlap: bool
) -> None:
    """Refuse a trainer's dataset that shares prompts with the held-out sets of evals.

    What cannot be compared, such as a stream or token ids, is a warning.

    Args:
        dataset: The training dataset.
        evals: The evals.
        tokenizer: The trainer's tokenizer, whose chat template a dataset of texts may have applied.
        allow_overlap: Whether to warn instead.

    Raises:
        InvalidInput: They share some, and `allow_overlap` is False.
    """
    prompts = HeldOutPrompts()
    render = None
    if getattr(tokenizer, "chat_template", None):
        render = partial(_render_text, tokenizer)
    with untouched_random_state():
        for periodic in evals:
            runner = getattr(periodic.runner_builder, "prototype", None)
            if not isinstance(runner, EpisodeRunner):
                prompts.add(periodic.samples, getattr(runner, "prepare_messages", None), render)
    prompts.check_dataset(dataset, allow_overlap=allow_overlap)


def _render_text(tokenizer: Any, messages: list[Message]) -> str:
    try:
        chat = [to_chat_api(message) for message in messages]
        return str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    except Exception as problem:  # templates raise what they like
        log.debug("a held-out prompt does not fit the chat template", exc_info=problem)
        return ""


@contextmanager
def _flags_kept(control: Any) -> Iterator[None]:
    """Restore the trainer's flags afterwards.

    Logging and evaluating reset them, and the training's own row of that step would be missing.
    """
    flags = control.should_log, control.should_evaluate
    try:
        yield
    finally:
        control.should_log, control.should_evaluate = flags


class _PendingLog(msgspec.Struct):
    step: int
    fields: dict[str, float]
    cut: bool = False
    """Whether it covers fewer items than the whole set, or none."""


class _Replaced:
    """Stands in for a model whose weights are no longer those of the last step."""

    def __init__(self, by: str) -> None:
        self.by = by


class _TrainerMetrics(dict[str, float]):
    """Metrics for the trainer, with NaN for heldout metrics that a skip left out.

    NaN never counts as better and is not logged. A KeyError would end the training.
    """

    def __init__(self, metrics: dict[str, float], names: Iterable[str]) -> None:
        super().__init__(metrics)
        self._prefixes = tuple(f"eval_{name}_" for name in names)

    def __missing__(self, key: str) -> float:
        if key.startswith(self._prefixes):
            return math.nan
        raise KeyError(key)


def _best_metric(args: Any) -> str | None:
    name = args.metric_for_best_model
    return name if name is None or name.startswith("eval_") else f"eval_{name}"


def _names(evals: Iterable[PeriodicEval]) -> dict[str, str]:
    """Return names by label; no two evals may write to the same keys or the same curve."""
    names: dict[str, str] = {}
    run_dirs: dict[Any, str] = {}
    for periodic in evals:
        if not isinstance(periodic, PeriodicEval):
            raise InvalidInput(f"HeldoutCallback takes PeriodicEvals, got {periodic!r:.100}")
        name = DEFAULT_NAME if periodic.label == DEFAULT_LABEL else periodic.label
        if name in names.values():
            raise InvalidInput(
                f"two evals would log as eval_{name}_…; give each a label of its own"
            )
        run_dir = periodic.run_dir.resolve()
        if run_dir in run_dirs:
            raise InvalidInput(
                f"{run_dirs[run_dir]} and {periodic.label} have the same run_dir, "
                f"{periodic.run_dir}; give each its own"
            )
        names[periodic.label], run_dirs[run_dir] = name, periodic.label
    return names
