"""Evaluation while a transformers or TRL trainer trains, without side effects on training.

    evals = PeriodicEval(samples, live_model(tokenizer, score_fn), every_steps=50)
    trainer = GRPOTrainer(model, …)
    HeldoutCallback(evals).attach(trainer)
    trainer.train()

Trained weights are the same, bit for bit, with the callback and without it, and so are the rows
that the trainer logs. Steps are optimizer steps (`state.global_step`), however many batches are
accumulated for one.

An eval runs in `on_step_end`: after the optimizer has made its step, before the trainer logs and
saves it, so that a checkpoint has the row of its own weights. With `after_save=True` it waits for
the checkpoint of its step, if one is due. The last weights are evaluated there too, since at
`on_train_end` the best checkpoint may have been loaded in their place, and reporters have closed.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from heldout._core.chat.messages import message_of
from heldout._core.checks import check_flag
from heldout._evals.rollout import EvalDefinition
from heldout._live.isolation import untouched_random_state
from heldout._live.rendering.chat_templates import ChatFormat, reads_keyword
from heldout._live.rendering.segments import common_prefix, shared_tail
from heldout.errors import InvalidInput
from heldout.rollouts.overlap import HeldOutPrompts
from heldout.training.background.dispatcher import dispatcher_in_use
from heldout.training.curve.points import CurvePoint
from heldout.training.curve.publishing import Heartbeat
from heldout.training.periodic_eval import PeriodicEval
from heldout.training.reasons import describe
from heldout.training.runner import EpisodeRunner, KnownBuilder, RunnerBuilder
from heldout.training.settings import NUM, EnvironmentSettings, TrainerSettings
from heldout.training.trainer_hooks import DEFAULT_NAME, LogRow, RunEval, TrainerHooks
from heldout.types import Message, Sample

log = logging.getLogger("heldout")


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
        after_save: At steps that are saved, whether to evaluate once the checkpoint is written: an
            eval that ends the process (out of memory, an assertion on the GPU) then costs no step.
            The checkpoint's own `log_history` lacks the row, and no best checkpoint can be chosen
            by it.
        allow_overlap: Whether training may use prompts of the held-out set. They are looked for
            before training begins.
        columns: The columns of the training dataset that make a prompt; None: `prompt`, `messages`
            or `question`.
    """

    def __init__(
        self,
        *evals: PeriodicEval,
        answer_evaluate: bool = True,
        after_save: bool = False,
        allow_overlap: bool = False,
        columns: Sequence[str] | None = None,
    ) -> None:
        check_flag("after_save", after_save)
        self.evals = evals
        self._columns = columns
        self._allow_overlap, self._has_checked_overlap = allow_overlap, False
        self._hooks = TrainerHooks(evals, self._live_model)
        self._answer = answer_evaluate
        self._trainer: Any = None
        self._own_evaluate: Callable[..., Any] | None = None
        self._model: Any = None
        self._rows: dict[str, LogRow] = {}
        """The last row of each eval."""
        self._finished = False
        self._after_save = after_save
        self._is_put_off = False
        """Whether the evals of this step wait for its checkpoint."""

    @classmethod
    def from_environment(
        cls,
        samples: Iterable[Sample] | EvalDefinition,
        runner_builder: RunnerBuilder,
        heartbeat_fn: Heartbeat | None = None,
        *,
        after_save: bool = False,
        allow_overlap: bool = False,
        columns: Sequence[str] | None = None,
        **settings: Any,
    ) -> HeldoutCallback:
        """Make one eval as the HELDOUT_EVAL_* variables say; none if they do not turn it on.

        Without any samples no eval is ever due, and a warning says so: a launch does not fail.

        Args:
            samples: The held-out samples.
            runner_builder: As for `PeriodicEval`, like all further arguments.
            heartbeat_fn: Called with each point.
            after_save: As for the callback.
            allow_overlap: As for the callback.
            columns: As for the callback.
            **settings: Other arguments of `PeriodicEval`.
        """
        outside = EnvironmentSettings.from_environment()
        if outside.every_steps and outside.num == 0:
            log.warning("heldout: no eval is ever due: %s is 0", NUM)
        if not outside.every_steps or outside.num == 0:
            return cls()
        evals = PeriodicEval(samples, runner_builder, heartbeat_fn=heartbeat_fn, **settings)
        return cls(evals, after_save=after_save, allow_overlap=allow_overlap, columns=columns)

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
        check_training_prompts(
            dataset,
            self._on,
            tokenizer,
            columns=self._columns,
            allow_overlap=self._allow_overlap,
        )
        self._has_checked_overlap = True

    # --- What the trainer calls ---

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Check the settings, begin the curves, and evaluate step 0 where it is due."""
        if not self._on:
            _check_metric_without_evals(args, self._hooks.names.values())
            return
        self._check_best_metric(args)
        self._check_names(state)
        if not self._has_checked_overlap:
            batches = others.get("train_dataloader")
            self._check_overlap(getattr(batches, "dataset", None), others.get("processing_class"))
        processing = others.get("processing_class")
        settings = trainer_settings(self._trainer, args, processing)
        for periodic in self._on:
            periodic.use_trainer(settings)
            if self._trainer is not None:
                _compare_prompts(self._trainer, periodic)
        if self._trainer is None and args.report_to:
            log.warning(
                "heldout: results go to the trainer's log_history and to the curve, not to %s; "
                "callback.attach(trainer) sends them there, too",
                ", ".join(args.report_to),
            )
        self._model, self._finished, self._is_put_off = model, False, False
        self._rows.clear()
        if self._answers(args) and self._own_evaluate is None:
            self._own_evaluate = self._trainer.evaluate
            self._trainer.evaluate = self._evaluate
        step = state.global_step
        self._hooks.begin(step)
        # A step resumed at that has its point already has its row in the log that was loaded.
        run = PeriodicEval.maybe_run
        row = self._run(step, self._cadenced, run, if_due=True, log_known=step == 0)
        self._log(row, state, control)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Evaluate if it is due, and pass on a request to stop."""
        if not self._on:
            return
        # Here, and so before the trainer saves: the state of the checkpoint then has the row of the
        # eval of its own weights, as with the trainer's evals. After the save, a job killed in
        # between leaves a checkpoint whose history lacks its eval; before it, an eval that ends the
        # process takes the step with it. That is for the user to weigh.
        self._model = model
        self._is_put_off = self._after_save and control.should_save
        if not self._is_put_off:
            self._evaluate_step(args, state, control)

    def on_save(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Evaluate what has waited for the checkpoint of this step."""
        self._catch_up(args, state, control, model, is_saved=True)

    def on_step_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Evaluate what has waited for a checkpoint that another callback called off."""
        self._catch_up(args, state, control, model, is_saved=False)

    def _catch_up(self, args: Any, state: Any, control: Any, model: Any, *, is_saved: bool) -> None:
        if self._on and self._is_put_off:
            self._is_put_off, self._model = False, model
            self._evaluate_step(args, state, control, is_saved=is_saved)

    def _evaluate_step(
        self, args: Any, state: Any, control: Any, *, is_saved: bool = False
    ) -> None:
        row: dict[str, float] = {}
        if not control.should_training_stop:
            # Where the trainer is going to ask for these very results, it has to wait for them.
            asked = control.should_evaluate and self._answers(args)
            checkpoint = str(Path(args.output_dir, f"checkpoint-{state.global_step}").absolute())
            run = partial(
                PeriodicEval.maybe_run,
                wait=asked,
                saved_at=checkpoint if is_saved or control.should_save else None,
            )
            row = self._run(state.global_step, self._cadenced, run, if_due=True)
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
            # At the end of an epoch the trainer may be about to save, too.
            self._is_put_off = self._is_put_off or (self._after_save and control.should_save)
            if not self._is_put_off:
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
        is_asked = eval_dataset is None and metric_key_prefix == "eval"
        if not is_asked or not _is_training(trainer):
            assert self._own_evaluate is not None
            return self._own_evaluate(eval_dataset, ignore_keys, metric_key_prefix)  # type: ignore[no-any-return]
        state, control = trainer.state, trainer.control
        step = state.global_step
        missing = []
        for periodic in self._cadenced:
            known = self._rows.get(periodic.label)
            if known is None or known.step != step or known.cut:
                missing.append(periodic)
        row = self._run(step, missing, PeriodicEval.run_eval, if_due=False)
        self._log(row, state, control)
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
        return _TrainerMetrics(metrics, self._hooks.names.values())

    # --- Evals ---

    @property
    def _on(self) -> list[PeriodicEval]:
        return self._hooks.on

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

        return self._run(step, self._on, last, if_due=False)

    def _run(
        self,
        step: int,
        evals: Iterable[PeriodicEval],
        run: RunEval,
        *,
        if_due: bool,
        log_known: bool = True,
    ) -> dict[str, float]:
        """Run the evals, and return what is new as a row of the log."""
        made, _ = self._hooks.run(step, evals, run, if_due=if_due, log_known=log_known)
        self._rows |= made
        return {key: value for row in made.values() for key, value in row.fields.items()}

    def _stop_if_requested(self, state: Any, control: Any, *, has_evaluated: bool = False) -> None:
        if self._hooks.must_stop(state.global_step, has_evaluated=has_evaluated):
            control.should_training_stop = True

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
        for name in self._hooks.names.values():
            if taken.setdefault(name, id(self)) != id(self):
                raise InvalidInput(
                    f"two HeldoutCallbacks would log as eval_{name}_…; give each PeriodicEval a "
                    "label and a run_dir of its own"
                )

    def _check_best_metric(self, args: Any) -> None:
        """Before training begins. Later the trainer would raise, or never find a best model."""
        if self._after_save and self._answers(args):
            raise InvalidInput(
                "after_save=True evaluates after the trainer has saved, and this trainer evaluates "
                "before it does: leave after_save out, or give the callback answer_evaluate=False"
            )
        wanted = _best_metric(args)
        if wanted is None:
            return
        ours = any(wanted.startswith(f"eval_{name}_") for name in self._hooks.names.values())
        if self._answers(args) and not ours:
            known = ", ".join(f"eval_{name}_reward" for name in self._hooks.names.values())
            raise InvalidInput(
                f"metric_for_best_model is {wanted!r}, and heldout answers this trainer's "
                f"evaluate(), which has {known} and others; name one of those, or give the "
                "callback answer_evaluate=False"
            )
        if ours and self._after_save:
            raise InvalidInput(
                f"metric_for_best_model is {wanted!r}: when a checkpoint is saved, its result is "
                "not there yet. Leave out after_save=True"
            )
        if ours and self._trainer is None:
            raise InvalidInput(
                f"metric_for_best_model is {wanted!r}: for that, callback.attach(trainer) is needed"
            )
        if ours and not self._answers(args) and dispatcher_in_use.get() is not None:
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


def trainer_settings(trainer: Any, args: Any, processing: Any) -> TrainerSettings:
    """Read from a trainer how its model answers: chat template, its keywords, and the longest turn.

    Args:
        trainer: The trainer; None where only the others are known.
        args: Its arguments.
        processing: Its tokenizer or processor.
    """
    tokens = getattr(args, "max_completion_length", None)  # TRL's names
    if tokens is None:
        tokens = getattr(args, "max_new_tokens", None)
    return TrainerSettings(tokens, trainer_format(trainer, args, processing))


def trainer_format(trainer: Any, args: Any, processing: Any) -> ChatFormat:
    """Read from a trainer how it renders prompts.

    Args:
        trainer: The trainer; None where only the others are known.
        args: Its arguments.
        processing: Its tokenizer or processor.
    """
    template = getattr(trainer, "chat_template", None) or getattr(processing, "chat_template", None)
    kwargs = getattr(trainer, "chat_template_kwargs", None)
    if kwargs is None:
        kwargs = getattr(args, "chat_template_kwargs", None) or {}
    # Rendering ignores what the template does not read, and so does training.
    kwargs = {name: value for name, value in kwargs.items() if reads_keyword(str(template), name)}
    # Of several templates by name, the tokenizer chooses.
    return ChatFormat(template if isinstance(template, str) else None, kwargs)


def _compare_prompts(trainer: Any, periodic: PeriodicEval) -> None:
    """Warn where a prompt of the training set would be another prompt in an eval."""
    builder = periodic.runner_builder
    tokenize = getattr(trainer, "_tokenize_prompts", None)  # TRL's: what its model is shown
    # Rollout functions and tools make prompts of their own.
    own = ("rollout_func", "tools", "environment_factories")
    if tokenize is None or any(getattr(trainer, name, None) for name in own):
        return
    if not isinstance(builder, KnownBuilder) or builder.encode is None:
        return
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
    try:
        with untouched_random_state():
            prompt = _first_prompt(trainer.train_dataset)
            if prompt is None:
                return
            trained = _ids_of(tokenize([prompt]))
            evaluated = _encode_for_eval(partial(builder.encode, chat=builder.format), prompt)
    except Exception as problem:  # noqa: BLE001 - templates raise what they like
        why = describe(problem)
        log.warning("%s: prompts of training and eval were not compared: %s", periodic.label, why)
        return
    # Of a text nothing is known but what a template would put behind it.
    is_text = isinstance(prompt, str)
    same = trained[-len(evaluated) :] == evaluated if is_text else trained == evaluated
    if same or not evaluated:
        return
    start = 0 if is_text else max(0, common_prefix(trained, evaluated) - 10)
    parts = trained[-50:] if is_text else trained[start : start + 50], evaluated[start:][:50]
    log.warning(
        "%s: an eval does not show the model what training shows it. The first prompt of the "
        "training set is, in training, …%r; the eval's chat template makes …%r. Where live_model "
        "has neither chat_template nor chat_template_kwargs, it takes the trainer's",
        periodic.label,
        *(str(tokenizer.decode(part)) for part in parts),
    )


def _encode_for_eval(encode: Callable[[Sequence[Message]], list[int]], prompt: Any) -> list[int]:
    """Return the tokens of an eval's prompt; of a text only those behind any question."""
    if isinstance(prompt, str):
        return shared_tail([encode([Message("user", word)]) for word in ("1", "x")])
    return encode([message_of(message, "the training set's prompt") for message in prompt])


def _ids_of(tokenized: Any) -> list[int]:
    """Return the ids of the one prompt that a trainer has tokenized."""
    [ids] = tokenized[0] if isinstance(tokenized, tuple) else tokenized
    return [int(id) for id in ids]


def _first_prompt(dataset: Any) -> Any:
    """Return the first prompt of a dataset; None if it has none, or only for reading it once."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or not len(dataset):
        return None
    row = dataset[0]
    return row.get("prompt") if isinstance(row, Mapping) else None


def check_training_prompts(
    dataset: Any,
    evals: Iterable[PeriodicEval],
    tokenizer: Any,
    *,
    columns: Sequence[str] | None = None,
    allow_overlap: bool,
) -> None:
    """Refuse a trainer's dataset that shares prompts with the held-out sets of evals.

    What cannot be compared, such as a stream or token ids, is a warning.

    Args:
        dataset: The training dataset.
        evals: The evals.
        tokenizer: The trainer's tokenizer, whose chat template a dataset of texts may have applied.
        columns: The columns that make a prompt; None: `prompt`, `messages` or `question`.
        allow_overlap: Whether to warn instead.

    Raises:
        InvalidInput: They share some, or the dataset has text in columns that are not compared,
            and `allow_overlap` is False.
    """
    prompts = HeldOutPrompts(columns)
    with untouched_random_state():
        for periodic in evals:
            runner = getattr(periodic.runner_builder, "prototype", None)
            if not isinstance(runner, EpisodeRunner):
                prompts.add(periodic.samples, getattr(runner, "prepare_messages", None), tokenizer)
    prompts.check_dataset(dataset, allow_overlap=allow_overlap)


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


def _is_training(trainer: Any) -> bool:
    """Whether this is called while the trainer trains.

    Not by `is_in_train`: after a Ctrl-C that a notebook survives, it stays True.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "train" and frame.f_locals.get("self") is trainer:
            return True
        frame = frame.f_back
    return False


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


def _check_metric_without_evals(args: Any, names: Iterable[str]) -> None:
    """Before training begins: the trainer would ask its own evaluation for a metric of ours."""
    wanted = _best_metric(args)
    ours = tuple(f"eval_{name}_" for name in {DEFAULT_NAME, *names})
    if wanted is not None and wanted.startswith(ours) and args.eval_strategy != IntervalStrategy.NO:
        raise InvalidInput(
            f"metric_for_best_model is {wanted!r}, and heldout's evals are off: turn them on "
            "(every_steps, or HELDOUT_EVAL_EVERY_STEPS), or leave out metric_for_best_model, "
            "load_best_model_at_end and eval_strategy"
        )


__all__ = [
    "HeldoutCallback",
    "check_training_prompts",
]
