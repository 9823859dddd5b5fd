"""Held-out prompts that ride along with the trainer's rollouts.

    held_out = PeriodicEval(samples, in_rollout_window(score_fn), every_steps=50, run_dir="outputs")
    rollout_func = build_rollout_func(training_samples, score_fn, evals=[held_out])

An engine that TRL runs beside the model (vLLM) is awake, and has the weights of now, only while the
trainer asks for rollouts; driven at another time, by a callback, it makes training hang. So the
eval is run there, greedily and before the rollouts, on the engine that makes them. A rollout at
step s shows the weights after s steps; where one batch of rollouts serves several steps, an eval
comes with the first one after it was due.

The last weights have no rollouts after them. They are measured when training has ended, by the
trainer's own transformers model, and `decoding` of that point says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from heldout.config import Sampling
from heldout.endpoints.batch import Answered, Request
from heldout.errors import InvalidInput
from heldout.fingerprints import describe_tokenizer
from heldout.integrations.trl.generation import by_transformers, by_vllm, cut
from heldout.items import EnvironmentFactory, EvalDefinition, PrepareMessages, ScoreFn
from heldout.reasoning import without_reasoning
from heldout.rendering.segments import Template
from heldout.tokens import Generated, Transcript
from heldout.training.periodic_eval import PeriodicEval
from heldout.training.runner import (
    AnswerFilter,
    KeepGoing,
    Runner,
    no_model,
)
from heldout.training.settings import Settings
from heldout.types import Message

VLLM_ROWS, TRANSFORMERS_ROWS = 256, 32
MAX_TURNS = 8
"""Model turns of a conversation, where neither the caller nor the eval says."""

Engine = Callable[[list[list[int]], list[int], KeepGoing], Sequence[Generated | Exception | None]]
"""`engine(prompts, max_tokens, keep_going)`: None for what was not finished."""


def in_rollout_window(
    score_fn: ScoreFn | EvalDefinition,
    *,
    environment_factory: EnvironmentFactory | None = None,
    prepare_messages: PrepareMessages | None = None,
    answer_filter: AnswerFilter | None = without_reasoning,
    max_turns: int | None = None,
    max_new: int | None = None,
    rows: int | None = None,
    timeout: float | None = 600.0,
) -> InRolloutWindow:
    """A runner builder for a `PeriodicEval` that is given to `build_rollout_func(evals=[…])`.

    Conversations are put into tokens as those of the training are. `max_new` bounds a turn, by
    default as HELDOUT_EVAL_MAX_NEW says, or else as in the training; `rows` are the conversations
    under way at once, by default 256 with vLLM and 32 without. An `EvalDefinition` in the place of
    the score function brings its messages, environments and turn limit along.
    """
    if isinstance(score_fn, EvalDefinition):
        given = EvalDefinition.of(score_fn, None, prepare_messages, environment_factory)
        score_fn, prepare_messages = given.score_fn, given.prepare_messages
        environment_factory = given.environment_factory
        max_turns = given.max_turns if max_turns is None else max_turns
    max_turns = MAX_TURNS if max_turns is None else max_turns
    for name, value in (("max_turns", max_turns), ("max_new", max_new), ("rows", rows)):
        if value is not None and value < 1:
            raise InvalidInput(f"{name} is at least 1, got {value}")
    max_new = Settings.from_environment().max_new or max_new
    prototype = Runner(
        no_model,
        score_fn,
        sampling=Sampling(max_tokens=max_new),
        prepare_messages=prepare_messages,
        environment_factory=environment_factory,
        answer_filter=answer_filter,
        max_turns=max_turns,
        timeout=timeout,
    )
    return InRolloutWindow(prototype, max_new, rows)


@dataclass(frozen=True, slots=True)
class Window:
    """A trainer as its rollout function sees it."""

    trainer: Callable[[], Any]
    """None when it is gone: an eval's curve may be kept for longer than a trainer."""
    template: Template
    per_turn: int
    longest: int | None


@dataclass(eq=False, slots=True)
class InRolloutWindow:
    """The builder; `in_rollout_window` makes it, and a rollout function opens it."""

    prototype: Runner
    """The runner without its trainer."""
    _max_new: int | None
    _rows: int | None
    _window: Window | None = None
    _open: bool = False
    _kept: tuple[Any, Any] | None = field(default=None, repr=False)
    """A model and its decoder."""

    def knows(self, window: Window) -> None:
        """The newest window; that it is open, only `opened` says."""
        self._window = window

    @contextmanager
    def opened(self) -> Iterator[None]:
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def __call__(self, model: Any) -> Runner:
        window = self._window
        if window is None:
            raise InvalidInput(
                "this eval rides the rollout window, and there was none: give it to "
                "build_rollout_func(evals=[…]), and that to the trainer"
            )
        trainer = window.trainer()
        if trainer is None:
            raise InvalidInput("this eval rides the rollout window, and its trainer is gone")
        if model is not trainer.model:
            raise InvalidInput(
                "this eval rides the rollout window, and measures the model of that trainer only"
            )
        limit = window.per_turn if self._max_new is None else self._max_new
        said: dict[str, Any] = {"max_new": limit}
        if trainer.use_vllm and self._open:
            rows = self._rows or VLLM_ROWS
            engine = _vllm_engine(trainer)
            said |= {"engine": "vllm", "rows": rows}
        else:
            rows = self._rows or TRANSFORMERS_ROWS
            engine = self._transformers_engine(trainer, rows, said)
        answer = _InTokens(window, limit, engine).answer
        return replace(
            self.prototype,
            answer=answer,
            sampling=Sampling(max_tokens=limit, stop=window.template.stop),
            rows=rows,
            describe=lambda: dict(said),
            identity=describe_tokenizer(trainer._tokenizer),
        )

    def _transformers_engine(self, trainer: Any, rows: int, said: dict[str, Any]) -> Engine:
        """The trainer's own model: in the window where it makes the rollouts, or at the end."""
        if not self._open and trainer.is_in_train and not trainer.control.should_training_stop:
            raise InvalidInput(
                "this eval rides the rollout window, which is closed: its engine is the trainer's "
                "own until the trainer asks for rollouts again"
            )
        if trainer._dist.is_zero3 or trainer._dist.is_fsdp:
            raise InvalidInput(
                "there is no rollout window after the last step, and the trainer's own model is "
                "sharded (FSDP, DeepSpeed ZeRO-3), so it answers only if all processes ask; "
                "evaluate the saved weights instead"
            )
        said |= {"engine": "transformers", "rows": rows}
        why = _not_plain(trainer)
        if why is None:
            from heldout.decoding import Decoder

            kept = self._kept if self._kept is not None and self._kept[0] is trainer.model else None
            decoder = kept[1] if kept else Decoder(trainer.model, trainer._tokenizer, rows=rows)
            # From one eval to the next, and not for longer: it holds the model.
            self._kept = (trainer.model, decoder) if self._open else None
            return _decoder_engine(decoder, trainer, said)
        if trainer.use_vllm:
            raise InvalidInput(
                "there is no rollout window after the last step, and the trainer's own model would "
                f"answer otherwise than vLLM did: {why}; evaluate the saved weights instead"
            )
        said |= {"way": "generate", "why_generate": why}
        return _generate_engine(trainer, rows)


# --- Riding -------------------------------------------------------------------------------------


class Riders:
    """The evals of one rollout function."""

    def __init__(self, evals: Sequence[PeriodicEval]) -> None:
        self._evals: list[tuple[PeriodicEval, InRolloutWindow]] = []
        self._seen: tuple[Callable[[], Any], int] | None = None
        for each in evals:
            if not isinstance(each, PeriodicEval):
                raise InvalidInput(f"evals are PeriodicEvals, got {each!r:.100}")
            builder = each.runner_builder
            if not isinstance(builder, InRolloutWindow):
                raise InvalidInput(
                    f"the eval {each.label!r} is to ride the rollout window: make its "
                    "runner_builder with in_rollout_window(score_fn, …)"
                )
            if any(builder is other for _, other in self._evals):
                raise InvalidInput(
                    f"the eval {each.label!r} shares its in_rollout_window(…) with another: "
                    "each has one of its own"
                )
            self._evals.append((each, builder))
        for each, _ in self._evals:
            each.rides_window = True  # a callback leaves its cadence alone

    def ride(self, trainer: Any, window: Window) -> None:
        """Run what is due. The engine is open, and left as it was."""
        for each, builder in self._evals:
            builder.knows(window)
            if each.model_getter is None:
                each.model_getter = lambda: getattr(window.trainer(), "model", None)
        step = trainer.state.global_step
        # Several batches of rollouts may go into one step: the weights are the same ones.
        if not trainer.model.training or self._seen == (window.trainer, step):
            return
        self._seen = window.trainer, step
        ran = False
        for each, builder in self._evals:
            with builder.opened():
                ran |= each.maybe_run(step, model=trainer.model) is not None
        if ran and trainer.use_vllm:
            # What the eval left there would be found by rollouts with the same beginning, and a
            # beginning that is found is not worked out in the same batch as one that is not.
            trainer.vllm_generation.llm.reset_prefix_cache()


# --- Turns in tokens ----------------------------------------------------------------------------


class _InTokens:
    """Conversations in messages, each with its account in tokens, as a training rollout keeps it.

    A request is told by the model's last turn, which is the very object that was answered.
    """

    def __init__(self, window: Window, max_new: int, engine: Engine) -> None:
        self._window, self._max_new, self._engine = window, max_new, engine
        self._under_way: dict[int, tuple[Message, Transcript]] = {}

    def answer(self, requests: Sequence[Request], keep_going: KeepGoing) -> Sequence[Answered]:
        answers: list[Answered] = [None] * len(requests)
        asked: list[tuple[int, Transcript, list[int]]] = []
        for place, request in enumerate(requests):
            try:
                transcript = self._transcript(request)
                ids = transcript.advance(request.messages, request.tools)
                asked.append((place, transcript, ids))
            except Exception as problem:  # noqa: BLE001 - the error of this item
                answers[place] = problem
        if not asked or not keep_going():
            return answers
        rows = self._engine([ids for *_, ids in asked], [t.room for _, t, _ in asked], keep_going)
        for (place, transcript, _), row in zip(asked, rows, strict=True):
            if row is None or isinstance(row, Exception):
                answers[place] = row
                continue
            try:
                completion = transcript.accept(row)
            except Exception as problem:  # noqa: BLE001 - the error of this item
                answers[place] = problem
                continue
            self._under_way[id(completion.message)] = completion.message, transcript
            answers[place] = completion
        return answers

    def _transcript(self, request: Request) -> Transcript:
        for message in reversed(request.messages):
            if id(message) in self._under_way:
                return self._under_way.pop(id(message))[1]
        return Transcript(
            self._window.template,
            per_turn_max_tokens=self._max_new,
            engine_max_len=self._window.longest,
        )


# --- Engines ------------------------------------------------------------------------------------


def _vllm_engine(trainer: Any) -> Engine:
    def engine(
        prompts: list[list[int]], max_tokens: list[int], keep_going: KeepGoing
    ) -> list[Generated | Exception | None]:
        with by_vllm(trainer, greedy=True) as generate:
            return list(generate(prompts, max_tokens))

    return engine


def _generate_engine(trainer: Any, rows: int) -> Engine:
    def engine(
        prompts: list[list[int]], max_tokens: list[int], keep_going: KeepGoing
    ) -> list[Generated | Exception | None]:
        answers: list[Generated | Exception | None] = []
        with by_transformers(trainer, greedy=True) as generate:
            for start in range(0, len(prompts), rows):
                if not keep_going():
                    return answers + [None] * (len(prompts) - start)
                part = slice(start, start + rows)
                answers += generate(prompts[part], max_tokens[part])
        return answers

    return engine


def _decoder_engine(decoder: Any, trainer: Any, said: dict[str, Any]) -> Engine:
    from heldout.decoding import Prompt

    ends = set(trainer.eos_token_ids)

    def engine(
        prompts: list[list[int]], max_tokens: list[int], keep_going: KeepGoing
    ) -> list[Generated | Exception | None]:
        turns = [Prompt(tuple(ids), new) for ids, new in zip(prompts, max_tokens, strict=True)]
        made = decoder.decode(turns, keep_going=keep_going)
        said.update(decoder.describe())
        return [
            turn if turn is None or isinstance(turn, Exception) else cut(list(turn.ids), ends)
            for turn in made
        ]

    return engine


def _not_plain(trainer: Any) -> str | None:
    """What turns are made of beside the weights: settings that greedy ones obey, too."""
    if trainer.repetition_penalty not in (None, 1.0):
        return f"repetition_penalty={trainer.repetition_penalty}"
    if trainer.args.generation_kwargs:
        return f"generation_kwargs={trainer.args.generation_kwargs}"
    if trainer.use_vllm and trainer.vllm_generation.structured_outputs_regex is not None:
        return f"vllm_structured_outputs_regex={trainer.args.vllm_structured_outputs_regex!r}"
    return None
