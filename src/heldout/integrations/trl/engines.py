"""The engine that a trainer makes its rollouts with: transformers, or vLLM here or on a server."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from heldout._core.checks import check_texts
from heldout._live.decoding import unwrap
from heldout._live.decoding.checking import LogitsChecks, WrongLogits
from heldout._live.decoding.own_generate import refuse_wrong_generate
from heldout.errors import EndpointError, FatalEndpointError
from heldout.rollouts.generating import Generate, Generated

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
"""Settings that mean nothing to a greedy turn."""


def make_generate(trainer: Any, *, greedy: bool, stop: Sequence[str] = ()) -> Generate:
    """Return a `generate` of the engine that the trainer makes its rollouts with.

    vLLM ends a turn at a `stop` text. transformers writes on, and the rest is dropped.
    """
    if trainer.use_vllm and is_server(trainer):
        return _server_generate(trainer, greedy=greedy, stop=stop)
    if trainer.use_vllm:
        return _vllm_generate(trainer, greedy=greedy, stop=stop)
    return _transformers_generate(trainer, greedy=greedy)


def _transformers_generate(trainer: Any, *, greedy: bool) -> Generate:
    """Call the trainer's model as `GRPOTrainer._generate_single_turn` does.

    Sampled turns draw from torch's global generator, like TRL's; greedy ones draw nothing.
    """
    import torch
    from transformers import LogitsProcessorList
    from trl.models.utils import unwrap_model_for_generation

    tokenizer, end_ids = trainer._tokenizer, set(trainer.eos_token_ids)
    max_length = max_context_length(trainer)
    checks = LogitsChecks()
    sharded = trainer._dist.is_zero3 or trainer._dist.is_fsdp
    config = copy.deepcopy(trainer.generation_config)
    if greedy:
        config.do_sample = False
        for name in _SAMPLING:
            setattr(config, name, None)

    def generate_rows(prompts: list[list[int]], max_new: int) -> list[list[int]]:
        width = max(map(len, prompts))
        padding = [width - len(ids) for ids in prompts]
        rows = [[tokenizer.pad_token_id] * n + ids for n, ids in zip(padding, prompts, strict=True)]
        mask = [[0] * n + [1] * (width - n) for n in padding]
        config.max_new_tokens = max_new
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
            # Each process has other prompts, and a sharded model would have all of them check.
            if greedy and not sharded and not model.training:
                _refuse_wrong_generate(model, tokenizer, prompts, checks)
            out = model.generate(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
                generation_config=config,
                logits_processor=LogitsProcessorList([_refuse_not_finite]),
            )
        return [list(map(int, row)) for row in out[:, width:].tolist()]

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[Generated]:
        turns: dict[int, Generated] = {}
        waiting = sorted(range(len(prompts)), key=lambda i: -max_tokens[i])
        while waiting:
            # All rows are generated as long as the one with the largest limit. A row that is
            # almost full would run past the model's last position, so it waits for a shorter call.
            max_new = max_tokens[waiting[0]]
            batch = [
                i
                for i in sorted(waiting)
                if i == waiting[0] or max_length is None or len(prompts[i]) + max_new <= max_length
            ]
            waiting = [i for i in waiting if i not in batch]
            rows = generate_rows([prompts[i] for i in batch], max_new)
            for i, row in zip(batch, rows, strict=True):
                turns[i] = cut_at_end(row[: max_tokens[i]], end_ids)
        return [turns[i] for i in range(len(prompts))]

    return generate


def _refuse_wrong_generate(
    model: Any, tokenizer: Any, prompts: list[list[int]], checks: LogitsChecks
) -> None:
    try:
        refuse_wrong_generate(unwrap(model), tokenizer, prompts, checks)
    except WrongLogits as error:
        raise FatalEndpointError(
            f"the trainer's generate does not give the logits of this model's own forward pass: "
            f"{error}"
        ) from None


def _refuse_not_finite(_: Any, scores: Any) -> Any:
    """Raise where the next token would be chosen from no numbers; greedily, it would be some."""
    if not bool((scores.amax(-1).abs() < float("inf")).all()):
        raise EndpointError("the model's logits are not finite: it has diverged, or they overflow")
    return scores


def cut_at_end(ids: list[int], end_ids: set[int]) -> Generated:
    """Return a generated row up to the token that ends its turn, that one included."""
    for position, token in enumerate(ids):
        if token in end_ids:
            return Generated(ids[: position + 1], finish_reason="stop")
    return Generated(ids, finish_reason="length")


@contextmanager
def engine_awake(trainer: Any) -> Iterator[None]:
    """Wake a colocated vLLM engine that sleeps between rollouts, once for all turns."""
    engine = trainer.vllm_generation if trainer.use_vllm else None
    if engine is None or engine.mode == "server" or not engine.enable_sleep_mode:
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


def reset_prefix_cache(trainer: Any) -> None:
    """Have vLLM forget the prefixes that it has read."""
    if not is_server(trainer):
        trainer.vllm_generation.llm.reset_prefix_cache()
    elif trainer.accelerator.is_main_process:
        server_client(trainer).reset_prefix_cache()


def _vllm_generate(trainer: Any, *, greedy: bool, stop: Sequence[str]) -> Generate:
    """Call the colocated engine, inside `engine_awake`."""
    from vllm import SamplingParams

    engine = trainer.vllm_generation
    settings = _vllm_settings(engine, greedy=greedy, stop=stop)
    outputs = settings.get("structured_outputs")
    if engine.structured_outputs_regex is not None:
        outputs = {"regex": engine.structured_outputs_regex}
    if isinstance(outputs, dict):
        from vllm.sampling_params import StructuredOutputsParams

        settings["structured_outputs"] = StructuredOutputsParams(**outputs)

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[Any]:
        answers = engine.llm.generate(
            [{"prompt_token_ids": ids} for ids in prompts],
            sampling_params=[SamplingParams(**settings, max_tokens=n) for n in max_tokens],
            use_tqdm=False,
        )
        return [_read_vllm_output(answer.outputs[0]) for answer in answers]

    return generate


def _vllm_settings(engine: Any, *, greedy: bool, stop: Sequence[str]) -> dict[str, Any]:
    """Return what TRL samples with; greedy, without what means nothing then."""
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
    if stop:
        own = check_texts("generation_kwargs['stop']", settings.get("stop"))
        settings["stop"] = [*own, *stop]
    return settings | {"n": 1, "logprobs": 0}  # 0 besides that of the sampled token


def _read_vllm_output(output: Any) -> Generated | EndpointError:
    ids = list(output.token_ids)
    if not ids or output.logprobs is None:
        return EndpointError(
            f"vLLM ended a turn ({output.finish_reason}) with {len(ids)} tokens and "
            f"{'no' if output.logprobs is None else 'their'} logprobs"
        )
    logprobs = [step[token].logprob for token, step in zip(ids, output.logprobs, strict=True)]
    return Generated(ids, logprobs, finish_reason=output.finish_reason)


# --- A server -----------------------------------------------------------------------------------


def is_server(trainer: Any) -> bool:
    """Return whether rollouts are made by a vLLM server (`vllm_mode="server"`)."""
    return bool(trainer.vllm_generation.mode == "server")


_clients: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""Connections of processes other than the first, by engine."""


def server_client(trainer: Any) -> Any:
    """Return this process's own connection to the vLLM server.

    TRL's is the first process's alone, and its `generate` gathers the prompts of all processes for
    each call. Conversations take different numbers of turns, so they would wait for each other for
    ever. The weights are the server's, and TRL has sent them before it asks for rollouts.
    """
    engine = trainer.vllm_generation
    client = getattr(engine, "vllm_client", None) or _clients.get(engine)
    if client is None:
        from trl.generation.vllm_client import VLLMClient

        url = engine.server_base_url or f"http://{engine.server_host}:{engine.server_port}"
        client = VLLMClient(base_url=url, connection_timeout=engine.server_timeout)
        _clients[engine] = client
    return client


def _server_generate(trainer: Any, *, greedy: bool, stop: Sequence[str]) -> Generate:
    """Ask the server's completions for tokens, as TRL's client does."""
    engine, client = trainer.vllm_generation, server_client(trainer)
    settings = _vllm_settings(engine, greedy=greedy, stop=stop)
    if engine.structured_outputs_regex is not None:
        settings["structured_outputs"] = {"regex": engine.structured_outputs_regex}

    def ask(prompts: list[list[int]], max_new: int) -> list[Any]:
        """Continue prompts that share a limit, which is a setting of a request."""
        reply = client._post(
            f"{client.base_url}/v1/completions",
            json={
                "model": client.model,
                "prompt": prompts,
                "return_token_ids": True,
                **settings,
                "max_tokens": max_new,
            },
        )
        choices = sorted(reply["choices"], key=lambda choice: choice["index"])
        if len(choices) != len(prompts):
            raise EndpointError(
                f"the vLLM server answered {len(prompts)} prompts with {len(choices)} turns"
            )
        return [_read_choice(choice) for choice in choices]

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[Any]:
        turns: dict[int, Any] = {}
        for max_new in sorted(set(max_tokens)):
            batch = [i for i, limit in enumerate(max_tokens) if limit == max_new]
            turns.update(zip(batch, ask([prompts[i] for i in batch], max_new), strict=True))
        return [turns[i] for i in range(len(prompts))]

    return generate


def _read_choice(choice: Any) -> Generated | EndpointError:
    ids, logprobs = choice.get("token_ids"), (choice.get("logprobs") or {}).get("token_logprobs")
    finish = choice.get("finish_reason")
    if finish not in ("stop", "length") or not ids or not logprobs or len(ids) != len(logprobs):
        return EndpointError(
            f"the vLLM server ended a turn ({finish}) with {len(ids or ())} tokens and "
            f"{len(logprobs or ())} logprobs"
        )
    return Generated(list(ids), list(logprobs), finish_reason=finish)


def max_context_length(trainer: Any) -> int | None:
    """Return how many tokens the engine can read; None if it does not say."""
    if trainer.use_vllm and is_server(trainer):
        client = server_client(trainer)
        [model, *_] = client._get(f"{client.base_url}/v1/models")["data"]
        length = model.get("max_model_len")
    elif trainer.use_vllm:
        engine = trainer.vllm_generation
        config = getattr(getattr(engine.llm, "llm_engine", None), "model_config", None)
        length = getattr(config, "max_model_len", None) or engine.max_model_length
    else:
        config = trainer.accelerator.unwrap_model(trainer.model_wrapped).config.get_text_config()
        length = getattr(config, "max_position_embeddings", None)
    return length if isinstance(length, int) and length > 0 else None
