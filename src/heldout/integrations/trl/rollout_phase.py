"""Evals inside the trainer's rollout phase.

    held_out = PeriodicEval(samples, in_rollout_phase(score_fn), every_steps=50, run_dir="outputs")
    rollout_func = build_rollout_func(training_samples, score_fn, evals=[held_out])

A vLLM engine has the current weights, and a colocated one is awake, only while the trainer asks for
rollouts; called at another time it makes training hang. So the eval runs there, greedily and just
before the rollouts. A rollout at step s is made with the weights after s steps; where one batch of
rollouts serves several steps, an eval comes with the first batch after it was due.

The last weights have no rollouts after them. They are evaluated when training has ended, by the
trainer's own transformers model, and `decoding` of that point says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from heldout._core.config import MAX_ERROR_RATE, Sampling
from heldout._evals.rollout import (
    EnvironmentFactory,
    EvalDefinition,
    PrepareMessages,
    ScoreFn,
    turn_limit,
)
from heldout._live.decoding.model import explain_not_finite
from heldout._live.rendering.segments import Template
from heldout._live.weights import explain_sharding
from heldout._reasoning import without_reasoning
from heldout.errors import InvalidInput
from heldout.integrations.trl.engines import cut_at_end, make_generate, reset_prefix_cache
from heldout.models.batch import Answered, Request
from heldout.rollouts.generating import Generated, Transcript
from heldout.store.fingerprint import describe_tokenizer
from heldout.training.periodic_eval import PeriodicEval
from heldout.training.runner import AnswerFilter, KeepGoing, Runner, no_model, threshold_of
from heldout.training.settings import EnvironmentSettings
from heldout.types import Completion, Message

VLLM_ROWS, TRANSFORMERS_ROWS = 256, 32

Engine = Callable[[list[list[int]], list[int], KeepGoing], Sequence[Generated | Exception | None]]
"""`engine(prompts, max_tokens, keep_going)`: None for what was not finished."""


def in_rollout_phase(
    score_fn: ScoreFn | EvalDefinition,
    *,
    environment_factory: EnvironmentFactory | None = None,
    prepare_messages: PrepareMessages | None = None,
    answer_filter: AnswerFilter | None = without_reasoning,
    max_turns: int | None = None,
    max_new: int | None = None,
    rows: int | None = None,
    timeout: float | None = 600.0,
    max_error_rate: float | None = MAX_ERROR_RATE,
) -> RolloutPhaseBuilder:
    """Make the runner builder of a `PeriodicEval` for `build_rollout_func(evals=[…])`.

    Conversations are put into tokens as those of the training are.

    Args:
        score_fn: Scores an answer; or an `EvalDefinition`, which has messages, environments and a
            turn limit of its own.
        environment_factory: Makes a sample's environment.
        prepare_messages: Makes a sample's opening messages.
        answer_filter: What the score function sees of the model's last turn.
        max_turns: The most model turns of a conversation; by default the eval's own limit, or 16.
        max_new: The most tokens of a model turn; by default as in the training.
            HELDOUT_EVAL_MAX_NEW overrides it.
        rows: Conversations in flight at once; by default 256 with vLLM and 32 without.
        timeout: Seconds for one sample, without waiting for the model.
        max_error_rate: Above this share of errored samples an eval is a skip; 1 accepts any.
    """
    threshold = threshold_of(score_fn)
    if isinstance(score_fn, EvalDefinition):
        definition = EvalDefinition.of(score_fn, None, prepare_messages, environment_factory)
        score_fn, prepare_messages = definition.score_fn, definition.prepare_messages
        environment_factory = definition.environment_factory
        max_turns = turn_limit(max_turns, definition)
    for name, value in (("max_new", max_new), ("rows", rows)):
        if value is not None and value < 1:
            raise InvalidInput(f"{name} must be at least 1, got {value}")
    max_new = EnvironmentSettings.from_environment().max_new or max_new
    prototype = Runner(
        no_model,
        score_fn,
        sampling=Sampling(max_tokens=max_new),
        prepare_messages=prepare_messages,
        environment_factory=environment_factory,
        answer_filter=answer_filter,
        max_turns=turn_limit(max_turns),
        timeout=timeout,
        max_error_rate=max_error_rate,
    )
    return RolloutPhaseBuilder(prototype, max_new, rows, pass_threshold=threshold)


@dataclass(eq=False, slots=True)
class RolloutPhase:
    """One rollout phase of a trainer, and how it puts conversations into tokens."""

    trainer: Callable[[], Any]
    """None once it is garbage collected: a curve may outlive its trainer."""
    template: Template
    per_turn_max_tokens: int
    engine_max_len: int | None
    active: bool = False
    """Whether it is in progress, so that the engine is awake."""


@dataclass(eq=False, slots=True)
class RolloutPhaseBuilder:
    """The runner builder that `in_rollout_phase` makes; a rollout function sets its phase."""

    prototype: Runner
    """The runner without its trainer."""
    max_new: int | None
    rows: int | None
    phase: RolloutPhase | None = None
    """The latest one, which may be over."""
    pass_threshold: float | None = None
    """The reward that passes, of the `EvalDefinition` that it was made of; None without one."""
    _decoder: tuple[Any, Any] | None = field(default=None, repr=False)
    """The model and its decoder, kept from one eval to the next."""

    def __call__(self, model: Any) -> Runner:
        """Build the runner that generates with the trainer's engine."""
        phase = self.phase
        if phase is None:
            raise InvalidInput(
                "this eval runs inside the rollout phase, and there was none: give it to "
                "build_rollout_func(evals=[…]), and that to the trainer"
            )
        trainer = phase.trainer()
        if trainer is None:
            raise InvalidInput("this eval runs inside the rollout phase, and its trainer is gone")
        if model is not trainer.model:
            raise InvalidInput(
                "this eval runs inside the rollout phase, with the model of that trainer only"
            )
        if explain_sharding(model) is None and (reason := explain_not_finite(model)) is not None:
            raise InvalidInput(reason)
        max_new = phase.per_turn_max_tokens if self.max_new is None else self.max_new
        with_vllm = trainer.use_vllm and phase.active
        rows = self.rows or (VLLM_ROWS if with_vllm else TRANSFORMERS_ROWS)
        name = "vllm" if with_vllm else "transformers"
        decoding: dict[str, Any] = {"max_new": max_new, "engine": name, "rows": rows}
        reason = None if with_vllm else _check_own_model(trainer, phase)
        if reason is not None:
            decoding |= {"way": "generate", "why_generate": reason}
        if with_vllm or reason is not None:
            engine = _trainer_engine(trainer, phase.template.stop)
        else:
            decoder = self._find_decoder(trainer, rows, keep=phase.active)
            engine = _decoder_engine(decoder, trainer, decoding)
        from heldout.integrations.transformers import trainer_format

        conversations = _TokenConversations(phase, max_new, engine)
        chat = trainer_format(trainer, trainer.args, trainer.processing_class)
        return replace(
            self.prototype,
            answer=conversations.answer,
            sampling=Sampling(max_tokens=max_new, stop=phase.template.stop),
            rows=rows,
            describe=lambda: {**decoding, **conversations.describe()},
            identity=describe_tokenizer(trainer._tokenizer, chat.template, chat.kwargs),
        )

    def _find_decoder(self, trainer: Any, rows: int, *, keep: bool) -> Any:
        from heldout._live.decoding import Decoder

        if self._decoder is not None and self._decoder[0] is trainer.model:
            decoder = self._decoder[1]
        else:
            decoder = Decoder(trainer.model, trainer._tokenizer, rows=rows)
        # Not kept after training: it holds the model.
        self._decoder = (trainer.model, decoder) if keep else None
        return decoder


def _check_own_model(trainer: Any, phase: RolloutPhase) -> str | None:
    """Check that the trainer's own transformers model can be used now.

    Returns why it needs its own `generate` instead of heldout's decoder, or None.
    """
    if not phase.active and trainer.is_in_train and not trainer.control.should_training_stop:
        raise InvalidInput(
            "this eval runs inside the rollout phase, which is over: the engine is the "
            "trainer's own until it asks for rollouts again"
        )
    if trainer._dist.is_zero3 or trainer._dist.is_fsdp:
        raise InvalidInput(
            "there is no rollout phase after the last step, and the trainer's own model is "
            "sharded (FSDP, DeepSpeed ZeRO-3), so it answers only if all processes ask; "
            "evaluate the saved weights instead"
        )
    reason = None
    if trainer.repetition_penalty not in (None, 1.0):
        reason = f"repetition_penalty={trainer.repetition_penalty}"
    elif trainer.args.generation_kwargs:
        reason = f"generation_kwargs={trainer.args.generation_kwargs}"
    elif trainer.use_vllm and trainer.vllm_generation.structured_outputs_regex is not None:
        reason = f"vllm_structured_outputs_regex={trainer.args.vllm_structured_outputs_regex!r}"
    if reason is not None and trainer.use_vllm:
        raise InvalidInput(
            "there is no rollout phase after the last step, and the trainer's own model would "
            f"answer otherwise than vLLM did: {reason}; evaluate the saved weights instead"
        )
    return reason


class RolloutPhaseEvals:
    """The evals of one rollout function."""

    def __init__(self, evals: Sequence[PeriodicEval]) -> None:
        self._evals: list[tuple[PeriodicEval, RolloutPhaseBuilder]] = []
        for periodic in evals:
            if not isinstance(periodic, PeriodicEval):
                raise InvalidInput(f"evals must be PeriodicEvals, got {periodic!r:.100}")
            builder = periodic.runner_builder
            if not isinstance(builder, RolloutPhaseBuilder):
                raise InvalidInput(
                    f"the eval {periodic.label!r} is to run inside the rollout phase: make its "
                    "runner_builder with in_rollout_phase(score_fn, …)"
                )
            self._evals.append((periodic, builder))
        for periodic, _ in self._evals:
            periodic.in_rollout_phase = True  # a callback leaves its cadence alone

    def run_due(self, trainer: Any, phase: RolloutPhase) -> None:
        """Run the evals that are due, on an engine that is awake."""
        for periodic, builder in self._evals:
            builder.phase = phase
            if periodic.model_getter is None:
                periodic.model_getter = lambda: getattr(phase.trainer(), "model", None)
        if not trainer.model.training:
            return
        step = trainer.state.global_step
        phase.active = True
        try:
            points = [periodic.maybe_run(step, model=trainer.model) for periodic, _ in self._evals]
        finally:
            phase.active = False
        if trainer.use_vllm and any(point is not None for point in points):
            # Rollouts would find the eval's prefixes in the cache, and a prefix that is found is
            # not computed in the same batch as one that is not: the tokens could differ.
            reset_prefix_cache(trainer)


class _TokenConversations:
    """Answers requests in messages, and keeps each conversation in tokens as a rollout does.

    A conversation is found again by the model's last turn: the very object that was returned.
    """

    def __init__(self, phase: RolloutPhase, max_new: int, engine: Engine) -> None:
        self._phase, self._max_new, self._engine = phase, max_new, engine
        self._transcripts: dict[int, tuple[Message, Transcript]] = {}
        self._first_prompt: list[int] = []

    def describe(self) -> dict[str, Any]:
        """Return the rendered prompt of the first sample, if it is known."""
        spell = self._phase.template.spell
        return {"prompt": spell(self._first_prompt)} if self._first_prompt and spell else {}

    def answer(self, requests: Sequence[Request], keep_going: KeepGoing) -> Sequence[Answered]:
        transcripts = [self._find_transcript(request) for request in requests]
        prompts = [
            _result_or_error(transcript.add_messages, request.messages, request.tools)
            for transcript, request in zip(transcripts, requests, strict=True)
        ]
        answers: list[Answered] = [p if isinstance(p, Exception) else None for p in prompts]
        asked = [i for i, answer in enumerate(answers) if answer is None]
        if not self._first_prompt and 0 in asked:
            self._first_prompt = list(prompts[0])
        if not asked or not keep_going():
            return answers
        max_tokens = [transcripts[i].max_turn_tokens for i in asked]
        rows = self._engine([prompts[i] for i in asked], max_tokens, keep_going)
        for i, row in zip(asked, rows, strict=True):
            if row is None or isinstance(row, Exception):
                answers[i] = row
                continue
            answer = _result_or_error(transcripts[i].add_turn, row)
            if isinstance(answer, Completion):
                self._transcripts[id(answer.message)] = answer.message, transcripts[i]
            answers[i] = answer
        return answers

    def _find_transcript(self, request: Request) -> Transcript:
        for message in reversed(request.messages):
            if id(message) in self._transcripts:
                return self._transcripts.pop(id(message))[1]
        return Transcript(
            self._phase.template,
            per_turn_max_tokens=self._max_new,
            engine_max_len=self._phase.engine_max_len,
        )


def _result_or_error(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that renders or parses one conversation, and return what it raises."""
    try:
        return function(*args)
    except Exception as problem:  # noqa: BLE001 - templates raise what they like
        return problem


def _trainer_engine(trainer: Any, stop: Sequence[str]) -> Engine:
    generate = make_generate(trainer, greedy=True, stop=stop)
    return lambda prompts, max_tokens, keep_going: generate(prompts, max_tokens)


def _decoder_engine(decoder: Any, trainer: Any, decoding: dict[str, Any]) -> Engine:
    from heldout._live.decoding import Prompt

    end_ids = set(trainer.eos_token_ids)

    def engine(
        prompts: list[list[int]], max_tokens: list[int], keep_going: KeepGoing
    ) -> list[Generated | Exception | None]:
        turns = [Prompt(tuple(ids), new) for ids, new in zip(prompts, max_tokens, strict=True)]
        results = decoder.decode(turns, keep_going=keep_going)
        decoding.update(decoder.describe())
        return [
            turn
            if turn is None or isinstance(turn, Exception)
            else cut_at_end(list(turn.ids), end_ids)
            for turn in results
        ]

    return engine
