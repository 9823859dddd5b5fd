"""From the trainer's prompts to samples, rollouts, and the columns that it takes back."""

from __future__ import annotations

import functools
import json
import re
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any, Literal

from heldout.chat import message_of, messages_of, to_chat_api
from heldout.errors import (
    InvalidInput,
    RenderMismatch,
    SystemicFailure,
)
from heldout.integrations.trl.generation import awake, by_transformers, by_vllm, readable_length
from heldout.integrations.trl.window import MAX_TURNS, Riders, Window
from heldout.items import EnvironmentFactory, EvalDefinition, PrepareMessages, ScoreFn
from heldout.rendering.examine import examine
from heldout.rendering.segments import Render, Segments, Template
from heldout.rollouts import Rollout, rollout_batch
from heldout.samples import distinct
from heldout.training.periodic_eval import PeriodicEval
from heldout.types import Message, Sample

SUPPORTED, TESTED = ">=1.16,<2", "1.16.0"
"""TRL's versions. What another one does with prompts and masks could not be told from outside:
it would train on wrong tokens without a word, so it is refused."""

MAX_LOST = 0.05
"""The share of rollouts that may be dropped because of the chat template."""

RolloutFunc = Callable[[list[Any], Any], dict[str, Any]]
Duplicates = Literal["refuse", "first"] | Callable[[list[Sample]], Sample]


def to_dataset(
    samples: Iterable[Sample] | EvalDefinition, prepare_messages: PrepareMessages | None = None
) -> Any:
    """The samples as a `datasets.Dataset`: `prompt`, the messages they open with, and `sample_id`.

    Give `build_rollout_func` the same samples and the same `prepare_messages`, or the same
    `EvalDefinition`. Where an environment opens the conversation, the prompt is what the sample
    asks, and its first message carries the sample's id.
    """
    from datasets import Dataset

    if isinstance(samples, EvalDefinition):
        given = EvalDefinition.of(samples, None, prepare_messages)
        samples, prepare_messages = given.samples, given.prepare_messages
    items = _items(samples, prepare_messages)
    # Arrow takes text or parts in a column, not both.
    in_parts = any(isinstance(m.content, list) for item in items for m in item.shown)
    rows = []
    for item in items:
        prompt = [_prompt_message(message, in_parts) for message in item.shown]
        if item.opened_later:
            prompt[0]["sample_id"] = item.sample.id
        rows.append({"prompt": prompt, "sample_id": item.sample.id})
    return Dataset.from_list(rows)


def build_rollout_func(
    samples: Iterable[Sample] | EvalDefinition,
    score_fn: ScoreFn | None = None,
    *,
    environment_factory: EnvironmentFactory | None = None,
    max_turns: int | None = None,
    per_turn_max_tokens: int | None = None,
    engine_max_len: int | None = None,
    segments: Segments | Literal["auto"] = "auto",
    prepare_messages: PrepareMessages | None = None,
    duplicates: Duplicates = "refuse",
    stop: Sequence[str] = (),
    timeout: float | None = None,
    render: Render | None = None,
    evals: Sequence[PeriodicEval] = (),
) -> RolloutFunc:
    """What GRPOTrainer takes as `rollout_func`.

    `samples` are those of the training and of the evaluation dataset: a prompt is all that the
    trainer hands over, and it is how a sample is found. Samples with equal prompts cannot be told
    apart; `duplicates` refuses them, takes the first, or is a function that chooses. (Where an
    environment opens the conversation, the prompts of `to_dataset` carry the samples' ids.) An
    `EvalDefinition` in the place of the samples brings score function, messages and environments
    along; `max_turns` is its own if it has one, and else 8.

    `per_turn_max_tokens` bounds one model turn, by default to the trainer's
    `max_completion_length`; `engine_max_len` the whole conversation, by default to what the
    engine can read. `render` takes the place of the chat template of the trainer's tokenizer.
    `stop` are texts that end a model turn, as `Sampling.stop` is in an eval: they are no part of
    the message, and their tokens are the model's own.
    `segments="auto"` is `boundary` where the chat template allows it (as `heldout doctor` finds
    out), and else `suffix`. Training stops where more than 5% of the rollouts are lost because the
    template does not render them as they were written.
    `evals` are evaluations that ride along while the engine is open (see `in_rollout_window`).
    The rest is that of `heldout.rollouts.rollout_batch`.
    """
    _check_version()
    given = EvalDefinition.of(samples, score_fn, prepare_messages, environment_factory)
    turns = max_turns if max_turns is not None else given.max_turns or MAX_TURNS
    items = _items(given.samples, given.prepare_messages)
    for item in items:
        _check_text(item)
    by_prompt = _by_prompt(items, duplicates)
    found = {item.sample.id: item for item in by_prompt.values()}
    modes: dict[int, Segments] = {}
    """By trainer: how its conversations are put together."""
    lost = _Lost()
    riders = Riders(evals)

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        _check_trainer(trainer)
        rendering = _renderer(trainer) if render is None else render
        if id(trainer) not in modes:
            _check_reward_functions(trainer)
            _check_datasets(trainer, by_prompt)
            modes[id(trainer)] = _allowed(rendering) if segments == "auto" else segments
        mode = modes[id(trainer)]
        problems: list[BaseException] = []
        chosen = [_find(prompt, by_prompt).sample for prompt in prompts]
        longest = engine_max_len if engine_max_len is not None else readable_length(trainer)
        per_turn = per_turn_max_tokens
        if per_turn is None:
            per_turn = trainer.max_completion_length
        template = Template(rendering, segments=mode, stop=stop)
        window = Window(weakref.ref(trainer), template, per_turn, longest)
        engine = partial(by_vllm, stop=stop) if trainer.use_vllm else by_transformers
        with awake(trainer):
            riders.ride(trainer, window)
            with engine(trainer, greedy=not trainer.model.training) as generate:
                rollouts = rollout_batch(
                    chosen,
                    given.environment_factory,
                    rendering,
                    generate,
                    turns,
                    per_turn,
                    longest,
                    score_fn=given.score_fn,
                    prepare_messages=lambda sample: list(found[sample.id].opening),
                    segments=mode,
                    stop=stop,
                    timeout=timeout,
                    on_problem=problems.append,
                )
        _check_systemic(rollouts, problems, mode)
        lost.count(rollouts)
        if rollouts and all(rollout.error is not None for rollout in rollouts):
            raise SystemicFailure(
                f"all {len(rollouts)} rollouts of this batch failed; the last one: "
                f"{rollouts[-1].error}"
            )

        def stand_in(sample: Sample) -> list[int]:
            """A prompt for a rollout that never came to one: not longer than can be read."""
            try:
                ids = list(rendering(list(found[sample.id].shown), True))
            except Exception:  # noqa: BLE001 - most likely the very thing the rollout failed with
                ids = []
            return ids[-(longest - 1) :] if longest is not None and longest > 1 else ids

        return _columns(rollouts, trainer, stand_in)

    return rollout_func


def _allowed(render: Render) -> Segments:
    """`boundary` where the template allows it: it loses no rollout to a tokenizer that would split
    what the model wrote otherwise."""
    return "boundary" if examine(render).allows("boundary") else "suffix"


def _is_mismatch(error: str | None) -> bool:
    """Whether a rollout failed because the template does not render it as it was written."""
    return error is not None and error.startswith("render: ")


class _Lost:
    """Rollouts that were dropped because of their template, in a batch and altogether."""

    def __init__(self) -> None:
        self._lost = self._rolled = 0

    def count(self, rollouts: list[Rollout]) -> None:
        """Raise where there are too many: what is left is a selection, and would be trained on."""
        failed = [rollout for rollout in rollouts if _is_mismatch(rollout.error)]
        self._lost += len(failed)
        self._rolled += len(rollouts)
        if not failed:
            return
        batch = (len(failed), len(rollouts), "this batch")
        for lost, rolled, where in (batch, (self._lost, self._rolled, "all so far")):
            if lost > 1 and lost > MAX_LOST * rolled:
                raise SystemicFailure(
                    f"{lost} of {rolled} rollouts of {where} were dropped because the chat "
                    "template does not render their conversation as it was written, and those "
                    f"left would be trained on as if they were all; the last: {failed[-1].error}"
                )


def _check_systemic(
    rollouts: list[Rollout], problems: list[BaseException], segments: Segments
) -> None:
    """Stop where training on would only be training on the wrong thing."""
    if segments == "boundary":
        for problem in problems:
            if isinstance(problem, RenderMismatch):
                # A property of the template: all rollouts with such a reply will fail, and those
                # that avoid it (that use no tool, say) would be what is trained on.
                raise SystemicFailure(
                    f"{problem}. This template does not do with segments='boundary'; use 'suffix', "
                    "and see `heldout doctor` on its tokenizer"
                ) from problem
    scores = [rollout.score for rollout in rollouts if rollout.score is not None]
    names = sorted({metric.name for score in scores for metric in score.metrics})
    if names and not any(metric.weight for score in scores for metric in score.metrics):
        raise InvalidInput(
            f"no metric of the score ({', '.join(names)}) has a weight above 0, so every "
            "reward would be 0: give one weight=1.0"
        )


def where_scored(reward_func: Callable[..., Any]) -> Callable[..., Any]:
    """A reward function of yours beside `reward_from_rollout`, without a say in failed rollouts.

    TRL adds up what reward functions return: one that gives a failed rollout a number would make
    the missing reward a 0.
    """

    @functools.wraps(reward_func)
    def scored(*args: Any, **columns: Any) -> list[float | None]:
        rewards = reward_func(*args, **columns)
        errors = columns.get("heldout_error") or [None] * len(rewards)
        both = zip(rewards, errors, strict=True)
        return [None if error is not None else reward for reward, error in both]

    _KEEPS_OUT.add(scored)
    return scored


_KEEPS_OUT: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
"""Reward functions that say nothing of failed rollouts."""


def reward_from_rollout(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Any],
    heldout_reward: Sequence[float | None] | None = None,
    heldout_metrics: Sequence[Mapping[str, float]] = (),
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """The reward function that goes with `build_rollout_func`: hands over what was scored there.

    Logs each metric as `metric_<name>/batch_mean`, averaged over the rollouts of a batch that have
    it, and `rollouts/n_errors`, `rollouts/mismatched` and `rollouts/truncated`: how many failed,
    the share dropped because the template does not render them as they were written, and the
    share of those that did not fail whose last turn was truncated. TRL averages batches, each
    counting the same, so these are not the means of an eval. (A plain name could be one of the
    trainer's own.)
    """
    if heldout_reward is None:
        raise InvalidInput(
            "reward_from_rollout hands over the rewards of build_rollout_func: pass "
            "rollout_func=build_rollout_func(…) to the trainer too"
        )
    if log_metric is not None:
        # One call a value, not one a mean: TRL sums and counts them over all processes.
        for metrics in heldout_metrics:
            for name, value in metrics.items():
                log_metric(f"metric_{name}/batch_mean", value)
        errors = columns.get("heldout_error", [None] * len(heldout_reward))
        log_metric("rollouts/n_errors", float(sum(error is not None for error in errors)))
        for error in errors:
            log_metric("rollouts/mismatched", float(_is_mismatch(error)))
        for error, truncated in zip(errors, columns.get("heldout_truncated", ()), strict=False):
            if error is None:
                log_metric("rollouts/truncated", float(truncated))
    return list(heldout_reward)


# --- Samples and prompts ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Item:
    sample: Sample
    opening: list[Message]
    shown: list[Message]
    """The prompt in the dataset: the opening, or what the sample asks where it is opened later."""

    @property
    def opened_later(self) -> bool:
        """Whether the environment opens it, which a dataset cannot wait for."""
        return not self.opening


def _items(samples: Iterable[Sample], prepare_messages: PrepareMessages | None) -> list[_Item]:
    """The samples with their opening messages, which are made once: dataset and rollout agree."""
    items: list[_Item] = []
    for sample in distinct(samples, wanted="a rollout starts from a Sample"):
        if prepare_messages is None:
            opening = messages_of(sample.input, f"sample {sample.id!r}: input")
        else:
            opening = prepare_messages(sample)
            if not isinstance(opening, list | tuple):
                raise InvalidInput(
                    f"sample {sample.id!r}: prepare_messages returns a list of messages, got "
                    f"{type(opening).__name__}; for a trainer it cannot be async"
                )
        items.append(_Item(sample, list(opening), list(opening) or _asked(sample)))
    if not items:
        raise InvalidInput("there are no samples to train on")
    return items


def _asked(sample: Sample) -> list[Message]:
    try:
        return messages_of(sample.input)
    except InvalidInput:  # any input will do for an environment that reads it itself
        return [Message("user", "")]


def _check_text(item: _Item) -> None:
    for message in item.shown:
        for part in message.content if isinstance(message.content, list) else ():
            if part.get("type") != "text":
                raise InvalidInput(
                    f"sample {item.sample.id!r} has a part of type {part.get('type')!r} in its "
                    "prompt; a rollout for TRL is text only: the model would be shown the words "
                    "around a picture and not the picture"
                )


def _prompt_message(message: Message, in_parts: bool) -> dict[str, Any]:
    body = to_chat_api(message)
    if in_parts and isinstance(message.content, str):
        body["content"] = [{"type": "text", "text": message.content}]
    if message.reasoning is not None:
        body["reasoning_content"] = message.reasoning
    return body


def _by_prompt(items: list[_Item], duplicates: Duplicates) -> dict[str, _Item]:
    groups: dict[str, list[_Item]] = {}
    for item in items:
        key = _key_of_id(item.sample.id) if item.opened_later else _key(item.shown)
        groups.setdefault(key, []).append(item)
    shared = [group for group in groups.values() if len(group) > 1]
    if callable(duplicates):
        return {key: _choice(group, duplicates) for key, group in groups.items()}
    if duplicates not in ("refuse", "first"):
        raise InvalidInput(
            f"duplicates is 'refuse', 'first' or a function that chooses, got {duplicates!r}"
        )
    if shared:
        ids = [item.sample.id for group in shared for item in group]
        found = (
            f"{len(shared)} prompt{'s are' if len(shared) > 1 else ' is'} shared by {len(ids)} "
            f"samples ({', '.join(map(repr, ids[:6]))}{', …' if len(ids) > 6 else ''})"
        )
        if duplicates == "refuse":
            raise InvalidInput(
                f"{found}. The trainer hands over prompts only, so these samples cannot be told "
                "apart: drop some, make their prompts differ, or pass duplicates='first' or a "
                "function that chooses among them"
            )
        warnings.warn(
            f"{found}: the first of each is used for all, {len(ids) - len(shared)} never are",
            stacklevel=3,
        )
    return {key: group[0] for key, group in groups.items()}


def _choice(group: list[_Item], choose: Callable[[list[Sample]], Sample]) -> _Item:
    if len(group) == 1:
        return group[0]
    given = choose([item.sample for item in group])
    for item in group:
        if item.sample is given:
            return item
    raise InvalidInput(
        f"duplicates returns one of the samples it is given, got {given!r:.200} for "
        f"{[item.sample.id for item in group]}"
    )


def _find(prompt: Any, by_prompt: dict[str, _Item]) -> _Item:
    try:
        return by_prompt[_key(prompt)]
    except KeyError:
        raise InvalidInput(
            f"no sample has the prompt {prompt!r:.300}. The trainer's datasets, the one for "
            "evaluation included, are made by to_dataset of samples that build_rollout_func was "
            "given too, with the same prepare_messages"
        ) from None


def _key(prompt: Any) -> str:
    """A prompt as text that is the same before and after Arrow, which gives all rows all fields."""
    if isinstance(prompt, str):
        prompt = [Message("user", prompt)]
    first = prompt[0] if len(prompt) else None
    if isinstance(first, Mapping) and first.get("sample_id") is not None:
        return _key_of_id(first["sample_id"])
    messages = [message_of(message, "the trainer's prompt") for message in prompt]
    canonical = [
        {
            "role": message.role,
            "content": [{"type": "text", "text": message.content}]
            if isinstance(message.content, str)
            else message.content,
            "calls": [[c.id, c.name, _arguments(c.arguments)] for c in message.tool_calls],
            "answers": message.tool_call_id,
            "reasoning": message.reasoning,
        }
        for message in messages
    ]
    return json.dumps(_without_none(canonical), sort_keys=True)


def _key_of_id(sample_id: str) -> str:
    return json.dumps({"sample_id": sample_id})


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    return value


# --- The trainer --------------------------------------------------------------------------------


def _check_version() -> None:
    try:
        version = metadata.version("trl")
    except metadata.PackageNotFoundError:
        raise InvalidInput("this needs TRL: pip install 'heldout[trl]'") from None
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or not (1, 16) <= tuple(map(int, numbers.groups())) < (2, 0):
        raise InvalidInput(
            f"trl {version} is installed; rollout_func is experimental, so heldout takes no more "
            f"than trl{SUPPORTED} (tested with {TESTED}): pip install 'trl{SUPPORTED}'"
        )


def _check_trainer(trainer: Any) -> None:
    if trainer.tools or trainer.environment_factories is not None:
        raise InvalidInput(
            "the trainer has tools or an environment_factory of its own. TRL then ignores the "
            "env_mask of a rollout_func, and the environment's tokens would be trained on: give "
            "them to build_rollout_func instead, as environment_factory"
        )
    if not trainer.use_vllm:
        sharded = trainer._dist.is_zero3 or trainer._dist.is_fsdp
        if sharded and trainer.accelerator.num_processes > 1:
            raise InvalidInput(
                "a model that is sharded over several processes (FSDP, DeepSpeed ZeRO-3) generates "
                "only if all of them do, and conversations take different numbers of turns: they "
                "would wait for each other for ever. Use plain data parallelism, ZeRO-2, or "
                "colocated vLLM"
            )
        return
    engine = trainer.vllm_generation
    if engine.mode != "colocate":
        raise InvalidInput(
            f"vllm_mode={engine.mode!r}: TRL gathers the prompts of all processes for each call "
            "to the server, and conversations take different numbers of turns: they would wait "
            "for each other for ever. Use vllm_mode='colocate'"
        )
    if engine.tensor_parallel_size > 1:
        raise InvalidInput(
            f"vllm_tensor_parallel_size={engine.tensor_parallel_size}: the processes of a group "
            "generate together, and their conversations take different numbers of turns: they "
            "would wait for each other for ever. Use vllm_tensor_parallel_size=1"
        )


def _check_reward_functions(trainer: Any) -> None:
    functions = getattr(trainer, "reward_funcs", [])
    if reward_from_rollout not in functions:
        return
    for function in functions:
        if function is not reward_from_rollout and function not in _KEEPS_OUT:
            name = getattr(function, "__name__", type(function).__name__)
            raise InvalidInput(
                f"the reward function {name} stands beside reward_from_rollout, and would give a "
                "failed rollout a reward, to which TRL adds a 0 for the missing one: pass "
                f"where_scored({name})"
            )


def _check_datasets(trainer: Any, by_prompt: dict[str, _Item]) -> None:
    """Before the first step: a prompt that nobody knows would end training at the first eval."""
    if str(getattr(trainer.args.eval_strategy, "value", trainer.args.eval_strategy)) == "no":
        return
    held_out: Any = trainer.eval_dataset
    for dataset in held_out.values() if isinstance(held_out, dict) else [held_out]:
        # A stream cannot be looked through without being used up.
        if hasattr(dataset, "__len__") and "prompt" in (getattr(dataset, "column_names", ()) or ()):
            for prompt in dataset["prompt"]:
                _find(prompt, by_prompt)


def _renderer(trainer: Any) -> Render:
    from heldout.rendering.chat_templates import ChatRenderer

    tokenizer = trainer._tokenizer
    template = trainer.chat_template
    if template is None and not tokenizer.chat_template:
        template = getattr(trainer.processing_class, "chat_template", None)
    return ChatRenderer(tokenizer, chat_template=template, **trainer.chat_template_kwargs)


def _columns(
    rollouts: list[Rollout], trainer: Any, stand_in: Callable[[Sample], list[int]]
) -> dict[str, Any]:
    """The rollouts as TRL takes them: a list for each column.

    One that failed has no reward, and no token of it is trained on. TRL wants at least one.
    """
    end = trainer._tokenizer.eos_token_id
    if end is None:
        end = trainer._tokenizer.pad_token_id
    prompt_ids, completion_ids, masks = [], [], []
    logprobs: list[list[float]] | None = []
    for rollout in rollouts:
        tokens = list(rollout.completion_ids)
        prompt_ids.append(list(rollout.prompt_ids) or stand_in(rollout.sample) or [end])
        completion_ids.append(tokens or [end])
        failed = rollout.error is not None
        masks.append([0] * max(1, len(tokens)) if failed else list(rollout.env_mask))
        if rollout.logprobs is None:
            logprobs = None
        elif logprobs is not None:
            logprobs.append(list(rollout.logprobs) or [0.0])
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": logprobs,
        "env_mask": masks,
        "heldout_reward": [rollout.reward for rollout in rollouts],
        "heldout_metrics": [rollout.metrics for rollout in rollouts],
        "heldout_error": [rollout.error for rollout in rollouts],
        "heldout_truncated": [rollout.trajectory.stop.truncated for rollout in rollouts],
    }
