"""The trainer's own model as an engine: transformers, or vLLM in the same process."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from heldout.errors import EndpointError
from heldout.rollouts import Generate
from heldout.tokens import Generated

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
"""Settings that mean nothing to a greedy turn."""


@contextmanager
def by_transformers(trainer: Any, *, greedy: bool) -> Iterator[Generate]:
    """The trainer's own model, as `GRPOTrainer._generate_single_turn` calls it.

    Sampled turns draw from torch's global generator, like TRL's; greedy ones draw nothing.
    """
    import torch
    from trl.models.utils import unwrap_model_for_generation

    tokenizer, ends = trainer._tokenizer, set(trainer.eos_token_ids)
    readable = readable_length(trainer)
    config = copy.deepcopy(trainer.generation_config)
    if greedy:
        config.do_sample = False
        for name in _SAMPLING:
            setattr(config, name, None)

    def together(prompts: list[list[int]], new: int) -> list[list[int]]:
        width = max(map(len, prompts))
        padding = [width - len(ids) for ids in prompts]
        rows = [[tokenizer.pad_token_id] * n + ids for n, ids in zip(padding, prompts, strict=True)]
        mask = [[0] * n + [1] * (width - n) for n in padding]
        config.max_new_tokens = new
        with (
            unwrap_model_for_generation(
                trainer.model_wrapped,
                trainer.accelerator,
                gather_deepspeed3_params=trainer.args.ds3_gather_for_generation,
                generation_kwargs=trainer.generation_kwargs,
                gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
            ) as model,
            torch.no_grad(),
            trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False),
        ):
            device = trainer.accelerator.device
            out = model.generate(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
                generation_config=config,
            )
        return [list(map(int, row)) for row in out[:, width:].tolist()]

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[Generated]:
        turns: dict[int, Generated] = {}
        waiting = sorted(range(len(prompts)), key=lambda i: -max_tokens[i])
        while waiting:
            # All rows go on as long as the one that may write most. A row that is almost full
            # would be taken past the model's last position by that, so it waits for a shorter go.
            new = max_tokens[waiting[0]]
            fits = {i for i in waiting if readable is None or len(prompts[i]) + new <= readable}
            now = sorted(fits | {waiting[0]})
            waiting = [i for i in waiting if i not in now]
            for i, row in zip(now, together([prompts[i] for i in now], new), strict=True):
                turns[i] = cut(row[: max_tokens[i]], ends)
        return [turns[i] for i in range(len(prompts))]

    yield generate


def cut(ids: list[int], ends: set[int]) -> Generated:
    """A row up to the token that ends its turn, that one included."""
    for place, token in enumerate(ids):
        if token in ends:
            return Generated(ids[: place + 1], finish_reason="stop")
    return Generated(ids, finish_reason="length")


@contextmanager
def awake(trainer: Any) -> Iterator[None]:
    """The engine that TRL runs next to the model, woken once for all turns where it sleeps."""
    engine = trainer.vllm_generation if trainer.use_vllm else None
    if engine is None or not engine.enable_sleep_mode:
        yield
        return
    if engine._llm_weights_sleeping:
        engine.sync_weights()  # sleep of level 2 has discarded them
    engine.llm.wake_up(tags=["kv_cache"])
    try:
        yield
    finally:
        engine.llm.sleep(level=2)
        engine._llm_weights_sleeping = True


@contextmanager
def by_vllm(trainer: Any, *, greedy: bool, stop: Sequence[str] = ()) -> Iterator[Generate]:
    """That engine, inside of `awake`."""
    from vllm import SamplingParams

    engine = trainer.vllm_generation
    settings: dict[str, Any] = {
        "temperature": engine.temperature,
        "top_p": engine.top_p,
        "top_k": engine.top_k,
        "min_p": 0.0 if engine.min_p is None else engine.min_p,
        "repetition_penalty": engine.repetition_penalty,
        **engine.generation_kwargs,
    }
    if greedy:
        settings = {k: v for k, v in settings.items() if k not in _SAMPLING} | {"temperature": 0.0}
    outputs = settings.get("structured_outputs")
    if engine.structured_outputs_regex is not None:
        outputs = {"regex": engine.structured_outputs_regex}
    if isinstance(outputs, dict):
        from vllm.sampling_params import StructuredOutputsParams

        settings["structured_outputs"] = StructuredOutputsParams(**outputs)
    if stop:
        settings["stop"] = [*(settings.get("stop") or []), *stop]
    # 0 more than that of the token that was sampled.
    settings |= {"n": 1, "logprobs": 0}

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[Any]:
        answers = engine.llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts],
            sampling_params=[SamplingParams(**settings, max_tokens=n) for n in max_tokens],
            use_tqdm=False,
        )
        return [_sampled(answer.outputs[0]) for answer in answers]

    yield generate


def _sampled(output: Any) -> Generated | EndpointError:
    ids = list(output.token_ids)
    if not ids or output.logprobs is None:
        return EndpointError(
            f"vLLM ended a turn ({output.finish_reason}) with {len(ids)} tokens and "
            f"{'no' if output.logprobs is None else 'their'} logprobs"
        )
    logprobs = [step[token].logprob for token, step in zip(ids, output.logprobs, strict=True)]
    return Generated(ids, logprobs, finish_reason=output.finish_reason)


def readable_length(trainer: Any) -> int | None:
    """How many tokens the engine can read; None if it does not say."""
    if trainer.use_vllm:
        engine = trainer.vllm_generation
        config = getattr(getattr(engine.llm, "llm_engine", None), "model_config", None)
        longest = getattr(config, "max_model_len", None) or engine.max_model_length
    else:
        config = trainer.accelerator.unwrap_model(trainer.model_wrapped).config.get_text_config()
        longest = getattr(config, "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest > 0 else None
