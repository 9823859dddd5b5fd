"""TRL's `rollout_func`: from the trainer's prompts to samples, rollouts, and the trainer's columns.

The trainer hands over prompts and nothing else, so samples are found by their prompts.
"""

from __future__ import annotations

import functools
import json
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from heldout._core.chat.messages import message_of, to_chat_api
from heldout._core.chat.questions import likely_question, question_of
from heldout._core.checks import check_texts
from heldout._core.versions import check_version
from heldout._evals.rollout import (
    EnvironmentFactory,
    EvalDefinition,
    PrepareMessages,
    ScoreFn,
    define_rollouts,
    turn_limit,
)
from heldout._live.rendering.examine import examine
from heldout._live.rendering.segments import Render, Segments, Template
from heldout.datasets import distinct
from heldout.errors import InvalidInput, SystemicFailure
from heldout.integrations.trl.engines import engine_awake, make_generate, max_context_length
from heldout.integrations.trl.rollout_phase import RolloutPhase, RolloutPhaseEvals
from heldout.rollouts.generating import Rollout, rollout_batch
from heldout.store.resume import as_stored
from heldout.training.periodic_eval import PeriodicEval
from heldout.types import Message, Sample

SUPPORTED = ">=1.16,<2"
MAX_MISMATCHED = 0.05
"""The share of rollouts that may be dropped because of the chat template."""

RolloutFunc = Callable[[list[Any], Any], dict[str, Any]]
Duplicates = Literal["refuse", "first"] | Callable[[list[Sample]], Sample]


def to_dataset(
    samples: Iterable[Sample] | EvalDefinition, prepare_messages: PrepareMessages | None = None
) -> Any:
    """Make the trainer's dataset of samples.

    Give `build_rollout_func` the same samples and the same `prepare_messages`, or the same
    `EvalDefinition`.

    Args:
        samples: The samples, or an `EvalDefinition`.
        prepare_messages: Makes a sample's opening messages; it cannot be async.

    Returns:
        A `datasets.Dataset` with the columns `prompt`, the opening messages, and `sample_id`. Where
        an environment opens the conversation, the prompt is the sample's input, and its first
        message carries the sample's id.
    """
    from datasets import Dataset

    items = _prepare_items(define_rollouts(samples, prepare_messages=prepare_messages))
    # Arrow takes text or parts in a column, not both.
    in_parts = any(isinstance(m.content, list) for item in items for m in item.prompt)
    rows = []
    for item in items:
        prompt = [_prompt_message(message, in_parts) for message in item.prompt]
        if not item.opening:
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
    stop: str | Sequence[str] | None = None,
    timeout: float | None = None,
    render: Render | None = None,
    evals: Sequence[PeriodicEval] = (),
    allow_overlap: bool = False,
) -> RolloutFunc:
    """Make the `rollout_func` of a GRPOTrainer.

    Training stops where more than 5% of the rollouts are lost because the chat template does not
    render them as they were written, and where all rollouts of a batch fail.

    Args:
        samples: The samples of the training and of the evaluation dataset; or an `EvalDefinition`,
            which has a score function, messages and environments of its own.
        score_fn: Scores a finished rollout.
        environment_factory: Makes a sample's environment; None makes rollouts one turn.
        max_turns: The most model turns of a rollout; by default the eval's own limit, or 16.
        per_turn_max_tokens: The most tokens of a model turn; by default the trainer's
            `max_completion_length`.
        engine_max_len: The most tokens of a whole conversation; by default what the engine can
            read.
        segments: How replies are put into tokens; `auto` is what `heldout check template`
            recommends, and `suffix` where it recommends neither.
        prepare_messages: Makes a sample's opening messages; it cannot be async.
        duplicates: What to do with samples that share a prompt, which cannot be told apart:
            `refuse` them, use the `first`, or a function that chooses one.
        stop: Texts that end a model turn, or one text, as `Sampling.stop` in an eval: they are no
            part of the message, and their tokens are the model's own.
        timeout: Seconds for one rollout.
        render: Used in place of the chat template of the trainer's tokenizer.
        evals: Evals that run inside the rollout phase; see `in_rollout_phase`.
        allow_overlap: Whether the training dataset may have prompts of these evals, which is
            otherwise an error before the first step.

    Raises:
        InvalidInput: An argument, or the installed version of TRL, is not supported.
    """
    # What another version does with prompts and masks cannot be seen from outside: it would train
    # on wrong tokens without a word.
    why = "rollout_func is experimental, and this was tested with 1.16.0"
    check_version("trl", SUPPORTED, why=why)
    definition = EvalDefinition.of(samples, score_fn, prepare_messages, environment_factory)
    turns, stops = turn_limit(max_turns, definition), check_texts("stop", stop)
    items = _prepare_items(definition)
    for item in items:
        _check_text(item)
    by_prompt = _index_by_prompt(items, duplicates)
    openings = {item.sample.id: item.opening for item in by_prompt.values()}
    # As the dataset has them: made once, so that a prompt and its rollout agree.
    definition = replace(definition, prepare_messages=lambda sample: list(openings[sample.id]))
    modes: weakref.WeakKeyDictionary[Any, Segments] = weakref.WeakKeyDictionary()
    mismatches = _MismatchCounter()
    phase_evals = RolloutPhaseEvals(evals)

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        _check_trainer(trainer)
        renderer = _make_renderer(trainer) if render is None else render
        if trainer not in modes:
            _check_reward_functions(trainer)
            _check_datasets(trainer, by_prompt)
            if evals:
                from heldout.integrations.transformers import check_training_prompts

                check_training_prompts(
                    trainer.train_dataset, evals, trainer._tokenizer, allow_overlap=allow_overlap
                )
            modes[trainer] = examine(renderer).chosen if segments == "auto" else segments
        per_turn, max_length = per_turn_max_tokens, engine_max_len
        if per_turn is None:
            per_turn = trainer.max_completion_length
        if max_length is None:
            max_length = max_context_length(trainer)
        template = Template(renderer, segments=modes[trainer], stop=stops)
        phase = RolloutPhase(weakref.ref(trainer), template, per_turn, max_length)
        with engine_awake(trainer):
            phase_evals.run_due(trainer, phase)
            samples = [_find_item(prompt, by_prompt).sample for prompt in prompts]
            rollouts = rollout_batch(
                replace(definition, samples=samples),
                None,
                renderer,
                make_generate(trainer, greedy=not trainer.model.training, stop=stops),
                turns,
                per_turn,
                max_length,
                segments=modes[trainer],
                stop=stops,
                timeout=timeout,
            )
        _check_rollouts(rollouts, modes[trainer])
        mismatches.add(rollouts)
        if rollouts and all(rollout.error is not None for rollout in rollouts):
            raise SystemicFailure(
                f"all {len(rollouts)} rollouts of this batch failed; the last one: "
                f"{rollouts[-1].error}"
            )
        return _make_columns(rollouts, trainer)

    return rollout_func


def reward_from_rollout(
    prompts: Sequence[Any],
    completions: Sequence[Any],
    completion_ids: Sequence[Any],
    heldout_reward: Sequence[float | None] | None = None,
    heldout_metrics: Sequence[Mapping[str, float]] = (),
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """Return the rewards of `build_rollout_func`: the trainer's reward function.

    Logs each metric as `metric_<name>/batch_mean`, averaged over the rollouts of a batch that have
    it, and `rollouts/n_errors`, `rollouts/mismatched` and `rollouts/truncated`: how many failed,
    the share dropped because the template does not render them as they were written, and the share
    of the rest whose last turn was truncated. TRL averages batches, each counting the same, so
    these are not the means of an eval.

    Args:
        prompts: From the trainer; not used, like the next two.
        completions: From the trainer.
        completion_ids: From the trainer.
        heldout_reward: The rewards, from the rollout function.
        heldout_metrics: The metrics, from the rollout function.
        log_metric: The trainer's function that logs a value.
        **columns: The other columns of the dataset and the rollout function.

    Returns:
        A reward for each rollout; None for one that failed.
    """
    if heldout_reward is None:
        raise InvalidInput(
            "reward_from_rollout hands over the rewards of build_rollout_func: pass "
            "rollout_func=build_rollout_func(…) to the trainer too"
        )
    if log_metric is not None:
        # One call per value, not one per mean: TRL sums and counts them over all processes.
        for metrics in heldout_metrics:
            for name, value in metrics.items():
                log_metric(f"metric_{name}/batch_mean", value)
        errors = columns.get("heldout_error", [None] * len(heldout_reward))
        log_metric("rollouts/n_errors", float(sum(error is not None for error in errors)))
        for mismatched in columns.get("heldout_mismatched", [False] * len(heldout_reward)):
            log_metric("rollouts/mismatched", float(mismatched))
        for error, truncated in zip(errors, columns.get("heldout_truncated", ()), strict=False):
            if error is None:
                log_metric("rollouts/truncated", float(truncated))
    return list(heldout_reward)


def where_scored(reward_func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a reward function that is used next to `reward_from_rollout`.

    TRL adds up what reward functions return: one that gives a failed rollout a number would make
    its missing reward a 0.

    Args:
        reward_func: The reward function.

    Returns:
        The same function, with no reward for rollouts that failed.
    """

    @functools.wraps(reward_func)
    def skip_failed(*args: Any, **columns: Any) -> list[float | None]:
        rewards = reward_func(*args, **columns)
        errors = columns.get("heldout_error") or [None] * len(rewards)
        pairs = zip(rewards, errors, strict=True)
        return [None if error is not None else reward for reward, error in pairs]

    _SKIP_FAILED.add(skip_failed)
    return skip_failed


_SKIP_FAILED: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
"""Reward functions that give failed rollouts no reward."""


# --- Samples and prompts ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _DatasetItem:
    sample: Sample
    opening: list[Message]
    """Empty where the environment opens the conversation, which a dataset cannot wait for."""
    prompt: list[Message]
    """The prompt in the dataset: the opening, or the sample's input where there is none."""


def _prepare_items(definition: EvalDefinition) -> list[_DatasetItem]:
    """Make the opening messages of all samples, once, so that dataset and rollouts agree."""
    items: list[_DatasetItem] = []
    for sample in distinct(definition.samples, wanted="a rollout starts from a Sample"):
        as_stored(sample)
        if definition.prepare_messages is None:
            opening = question_of(sample).messages
        else:
            opening = definition.prepare_messages(sample)
            if not isinstance(opening, list | tuple):
                raise InvalidInput(
                    f"sample {sample.id!r}: prepare_messages returns a list of messages, got "
                    f"{type(opening).__name__}; for a trainer it cannot be async"
                )
        prompt = list(opening)
        if not prompt:
            # Any input will do for an environment that reads it itself.
            prompt = likely_question(sample) or [Message("user", "")]
        items.append(_DatasetItem(sample, list(opening), prompt))
    if not items:
        raise InvalidInput("there are no samples to train on")
    return items


def _check_text(item: _DatasetItem) -> None:
    for message in item.prompt:
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


def _index_by_prompt(items: list[_DatasetItem], duplicates: Duplicates) -> dict[str, _DatasetItem]:
    groups: dict[str, list[_DatasetItem]] = {}
    for item in items:
        key = _prompt_key(item.opening) if item.opening else _id_key(item.sample.id)
        groups.setdefault(key, []).append(item)
    if callable(duplicates):
        return {key: _choose_item(group, duplicates) for key, group in groups.items()}
    if duplicates not in ("refuse", "first"):
        raise InvalidInput(
            f"duplicates must be 'refuse', 'first' or a function that chooses, got {duplicates!r}"
        )
    shared = [group for group in groups.values() if len(group) > 1]
    if shared:
        ids = [item.sample.id for group in shared for item in group]
        problem = (
            f"{len(shared)} prompt{'s are' if len(shared) > 1 else ' is'} shared by {len(ids)} "
            f"samples ({', '.join(map(repr, ids[:6]))}{', …' if len(ids) > 6 else ''})"
        )
        if duplicates == "refuse":
            raise InvalidInput(
                f"{problem}. The trainer hands over prompts only, so these samples cannot be told "
                "apart: drop some, make their prompts differ, or pass duplicates='first' or a "
                "function that chooses among them"
            )
        warnings.warn(
            f"{problem}: the first of each is used for all, {len(ids) - len(shared)} never are",
            stacklevel=3,
        )
    return {key: group[0] for key, group in groups.items()}


def _choose_item(
    group: list[_DatasetItem], choose: Callable[[list[Sample]], Sample]
) -> _DatasetItem:
    if len(group) == 1:
        return group[0]
    chosen = choose([item.sample for item in group])
    for item in group:
        if item.sample is chosen:
            return item
    raise InvalidInput(
        f"duplicates returns one of the samples it is given, got {chosen!r:.200} for "
        f"{[item.sample.id for item in group]}"
    )


def _find_item(prompt: Any, by_prompt: dict[str, _DatasetItem]) -> _DatasetItem:
    try:
        return by_prompt[_prompt_key(prompt)]
    except KeyError:
        raise InvalidInput(
            f"no sample has the prompt {prompt!r:.300}. The trainer's datasets, the one for "
            "evaluation included, are made by to_dataset of samples that build_rollout_func was "
            "given too, with the same prepare_messages"
        ) from None


def _prompt_key(prompt: Any) -> str:
    """Return a prompt as text that is the same before and after Arrow, which fills in fields."""
    if isinstance(prompt, str):
        prompt = [Message("user", prompt)]
    first = prompt[0] if len(prompt) else None
    if isinstance(first, Mapping) and first.get("sample_id") is not None:
        return _id_key(first["sample_id"])
    canonical = []
    for raw in prompt:
        message = message_of(raw, "the trainer's prompt")
        content = message.content
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        calls = [[c.id, c.name, _parse_json(c.arguments)] for c in message.tool_calls]
        canonical.append([message.role, content, calls, message.tool_call_id, message.reasoning])
    return json.dumps(_without_none(canonical), sort_keys=True)


def _id_key(sample_id: str) -> str:
    return json.dumps({"sample_id": sample_id})


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _without_none(value: Any) -> Any:
    """Leave out the fields that are None, at any depth."""
    if isinstance(value, Mapping):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [_without_none(v) for v in value]
    return value


# --- Rollouts -----------------------------------------------------------------------------------


def _check_rollouts(rollouts: list[Rollout], segments: Segments) -> None:
    """Raise where further training would be on the wrong thing."""
    for rollout in rollouts:
        if segments == "boundary" and rollout.error_stage == "render":
            # A property of the template: all rollouts with such a reply will fail, and those that
            # avoid it (that use no tool, say) would be what is trained on.
            raise SystemicFailure(
                f"{rollout.error}. This template does not work with segments='boundary'; use "
                "'suffix', and see `heldout check template` on its tokenizer"
            )
    scores = [rollout.score for rollout in rollouts if rollout.score is not None]
    metrics = [metric for score in scores for metric in score.metrics]
    if metrics and not any(metric.weight for metric in metrics):
        names = sorted({metric.name for metric in metrics})
        raise InvalidInput(
            f"no metric of the score ({', '.join(names)}) has a weight above 0, so every "
            "reward would be 0: give one weight=1.0"
        )


class _MismatchCounter:
    """Counts rollouts that were dropped because of their template, over all batches."""

    def __init__(self) -> None:
        self._dropped = self._total = 0

    def add(self, rollouts: list[Rollout]) -> None:
        """Add a batch, and raise where too many were dropped: the rest would be a selection."""
        dropped = [rollout for rollout in rollouts if rollout.error_stage == "render"]
        self._dropped += len(dropped)
        self._total += len(rollouts)
        if not dropped:
            return
        batch = (len(dropped), len(rollouts), "this batch")
        for count, total, where in (batch, (self._dropped, self._total, "all so far")):
            if count > 1 and count > MAX_MISMATCHED * total:
                raise SystemicFailure(
                    f"{count} of {total} rollouts of {where} were dropped because the chat "
                    "template does not render their conversation as it was written, and those "
                    f"left would be trained on as if they were all; the last: {dropped[-1].error}"
                )


def _make_columns(rollouts: list[Rollout], trainer: Any) -> dict[str, Any]:
    """Make TRL's columns. No token of a rollout that failed is trained on."""
    # TRL wants at least one token, also of a rollout that never got to any.
    end = trainer._tokenizer.eos_token_id
    if end is None:
        end = trainer._tokenizer.pad_token_id
    completion_ids = [list(rollout.completion_ids) or [end] for rollout in rollouts]
    masks = [
        list(rollout.env_mask) if rollout.error is None else [0] * len(ids)
        for rollout, ids in zip(rollouts, completion_ids, strict=True)
    ]
    logprobs: list[list[float]] | None = None
    if all(rollout.logprobs is not None for rollout in rollouts):
        logprobs = [list(rollout.logprobs or [0.0]) for rollout in rollouts]
    return {
        "prompt_ids": [list(rollout.prompt_ids) or [end] for rollout in rollouts],
        "completion_ids": completion_ids,
        "logprobs": logprobs,
        "env_mask": masks,
        "heldout_reward": [rollout.reward for rollout in rollouts],
        "heldout_metrics": [rollout.metrics for rollout in rollouts],
        "heldout_error": [rollout.error for rollout in rollouts],
        "heldout_mismatched": [rollout.error_stage == "render" for rollout in rollouts],
        "heldout_truncated": [rollout.trajectory.stop.truncated for rollout in rollouts],
    }


# --- The trainer --------------------------------------------------------------------------------


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
    if engine.mode == "colocate" and engine.tensor_parallel_size > 1:
        raise InvalidInput(
            f"vllm_tensor_parallel_size={engine.tensor_parallel_size}: the processes of a group "
            "generate together, and their conversations take different numbers of turns: they "
            "would wait for each other for ever. Use vllm_tensor_parallel_size=1"
        )


def _check_reward_functions(trainer: Any) -> None:
    functions = trainer.reward_funcs
    if reward_from_rollout not in functions:
        return
    for function in functions:
        if function is not reward_from_rollout and function not in _SKIP_FAILED:
            name = getattr(function, "__name__", type(function).__name__)
            raise InvalidInput(
                f"the reward function {name} is used next to reward_from_rollout, and would give a "
                "failed rollout a reward, to which TRL adds a 0 for the missing one: pass "
                f"where_scored({name})"
            )


def _check_datasets(trainer: Any, by_prompt: dict[str, _DatasetItem]) -> None:
    """Look up the evaluation prompts before the first step: an unknown one would end training."""
    if str(getattr(trainer.args.eval_strategy, "value", trainer.args.eval_strategy)) == "no":
        return
    held_out: Any = trainer.eval_dataset
    for dataset in held_out.values() if isinstance(held_out, dict) else [held_out]:
        # A stream cannot be looked through without being used up.
        if hasattr(dataset, "__len__") and "prompt" in (getattr(dataset, "column_names", ()) or ()):
            for prompt in dataset["prompt"]:
                _find_item(prompt, by_prompt)


def _make_renderer(trainer: Any) -> Render:
    from heldout.integrations.transformers import trainer_format

    chat = trainer_format(trainer, trainer.args, trainer.processing_class)
    return chat.renderer(trainer._tokenizer)
