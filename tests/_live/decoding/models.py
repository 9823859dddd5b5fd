"""Small models with random weights, large ones so that greedy choices are not close calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from heldout._live.decoding import Generation, Prompt
from tests.tiny_model import tiny_model

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 1.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def model_of(family: str, **settings: Any) -> Any:
    import transformers

    if family == "GPT2":
        sizes: dict[str, Any] = {
            "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 256,
            "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.5,
        }  # fmt: skip
        config = transformers.GPT2Config(**{**sizes, **settings})
        kind = transformers.GPT2LMHeadModel
    else:
        name = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
        config = getattr(transformers, name)(**{**SIZES, **settings})
        kind = getattr(transformers, f"{family}ForCausalLM")
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return kind(config).eval()


def tokenizer() -> Any:
    return tiny_model()[1]


PROMPTS = [Prompt(tuple(range(8, 9 + (i * 7) % 13)), max_new=10 + i) for i in range(9)]


def ids_of(results: Sequence[Any]) -> list[tuple[int, ...]]:
    assert all(isinstance(result, Generation) for result in results)
    return [result.ids for result in results]


def generated(model: Any, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
    """What transformers itself makes of them, one at a time."""
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt.ids], device=model.device)
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=prompt.max_new,
            use_cache=True,
            pad_token_id=0,
        )
        found.append(tuple(out[0, len(prompt.ids) :].tolist()))
    return found


class Spelling:
    """A tokenizer of given pieces, spelled as they stand; one that begins with < is special."""

    eos_token_id = None

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces, self.decoded = list(pieces), 0

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        self.decoded += len(ids)
        pieces = [self.pieces[i] for i in ids]
        return "".join(p for p in pieces if not (skip_special_tokens and p.startswith("<")))


class Says:
    """Makes a model say given tokens, whatever it is asked, by a hook that is taken off again."""

    def __init__(self, model: Any, script: Sequence[int]) -> None:
        self._script, self.sizes = list(script), list[int]()
        self._hook = model.register_forward_hook(self._say, with_kwargs=True)
        self._seen = 0

    def _say(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        self.sizes.append(len(kwargs["input_ids"]))
        output.logits[:] = 0.0
        output.logits[..., self._script[min(self._seen, len(self._script) - 1)]] = 1e4
        self._seen += 1

    def __enter__(self) -> Says:
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()
