"""A language model small enough for tests: random weights, sixty words, a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

CONTEXT = 64
WORDS = [f"w{i}" for i in range(56)]
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "system", "user", "assistant", "tool"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['content'] == 'forbidden' %}{{ raise_exception('no such word') }}{% endif %}"
    " {{ message['role'] }} {{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %} assistant{% endif %}"
)


def tiny_model(**settings: Any) -> tuple[Any, Any]:
    """(model, tokenizer). Random weights, but large: greedy choices are not close calls.

    vLLM's kernels for a CPU want `head_dim=32`.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        chat_template=TEMPLATE,
    )
    defaults: dict[str, Any] = {"vocab_size": len(vocabulary), "max_position_embeddings": CONTEXT}
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=1.0,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **{**defaults, **settings},
    )
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = LlamaForCausalLM(config).eval()
    return model, tokenizer


def save_tiny_model(folder: Path, **settings: Any) -> str:
    from transformers.utils import logging

    logging.disable_progress_bar()
    for part in tiny_model(**settings):
        part.save_pretrained(folder)
    return str(folder)
