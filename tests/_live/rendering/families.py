"""Chat templates of real model families, each with a tokenizer of its kind, trained here.

The templates are those that trl ships. Their added tokens are found in them by their looks; what
a family's own tokenizer does with text (bytes, or words with a space in front) is in `KINDS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "system user assistant tool model What is the sum of two and three? It is five. ",
    'You are a helpful assistant. {"name": "add", "arguments": {"a": 1, "b": 2}} The result is 3. ',
    "Let me think about it.\n\nI should call the function.\n\nThen I answer. äöü 漢字 🙂 one two ",
]
# As Qwen and Llama 3 split text: a word has its space, punctuation the line breaks after it.
WORDS = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def byte_level() -> str:
    """GPT-2, Qwen, Llama 3, DeepSeek, GLM, gpt-oss, Cohere."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(WORDS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, show_progress=False, special_tokens=[]
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return str(tokenizer.to_str())


def _sentence_piece() -> Tokenizer:
    """Whole words with a space in front, and bytes for what it has not seen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(vocab_size=240, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    learned = json.loads(tokenizer.to_str())["model"]
    words = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), *learned["vocab"]]
    tokenizer = Tokenizer(
        models.BPE(
            {word: i for i, word in enumerate(words)},
            [tuple(merge) for merge in learned["merges"]],
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<unk>",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


@cache
def metaspace() -> str:
    """Mistral, Llama 2 without its old habits: a space before the text, but not behind tokens."""
    tokenizer = _sentence_piece()
    tokenizer.decoder = _sentence_piece_decoder(strip=1)
    return str(tokenizer.to_str())


@cache
def legacy_metaspace() -> str:
    """Llama 2 and Phi 3 as they came: a space before each piece of text."""
    tokenizer = _sentence_piece()
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = _sentence_piece_decoder(strip=1)
    return str(tokenizer.to_str())


@cache
def gemma_like() -> str:
    tokenizer = _sentence_piece()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = _sentence_piece_decoder(strip=0)
    return str(tokenizer.to_str())


def _sentence_piece_decoder(strip: int) -> Any:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, decoders.Strip(" ", strip, 0)] if strip else steps)


class Family(NamedTuple):
    kind: Callable[[], str]
    eos: str
    bos: str | None = None
    rstrip: bool = False
    """Phi 3's special tokens swallow the white space behind them."""


FAMILIES = {
    "qwen3": Family(byte_level, "<|im_end|>"),
    "qwen2_5": Family(byte_level, "<|im_end|>"),
    "qwen3_instruct_2507": Family(byte_level, "<|im_end|>"),
    "llama3": Family(byte_level, "<|eot_id|>", "<|begin_of_text|>"),
    "llama3_1": Family(byte_level, "<|eot_id|>", "<|begin_of_text|>"),
    "llama3_2": Family(byte_level, "<|eot_id|>", "<|begin_of_text|>"),
    "gemma": Family(gemma_like, "<eos>", "<bos>"),
    "gemma3": Family(gemma_like, "<eos>", "<bos>"),
    "gemma4": Family(gemma_like, "<turn|>", "<bos>"),
    "phi3": Family(legacy_metaspace, "<|endoftext|>", "<s>", rstrip=True),
    "phi3_5": Family(metaspace, "<|endoftext|>", "<s>"),
    "deepseekv3": Family(byte_level, "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
    "deepseek_r1_distill": Family(byte_level, "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
    "glm4moe": Family(byte_level, "<|endoftext|>"),
    "gptoss": Family(byte_level, "<|return|>", "<|startoftext|>"),
    "cohere": Family(byte_level, "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>"),
    "cohere2": Family(byte_level, "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>"),
    "lfm2_v2": Family(byte_level, "<|im_end|>", "<|startoftext|>"),
    "nemotron_3_nano": Family(byte_level, "<|im_end|>"),
}

_SPECIAL = re.compile(
    r"<\|\w+\|>|<\|[\w\"]+>|<[\w\"]+\|>|<｜end▁of▁sentence｜>|<(?:start|end)_of_turn>|\[gMASK\]|<sop>"
)
_NOT_SPECIAL = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>|<｜[^｜]+｜>")


def template_of(name: str) -> str:
    found = find_spec("trl")  # its files are all that is needed, and importing it takes seconds
    assert found is not None
    assert found.submodule_search_locations is not None
    [folder] = found.submodule_search_locations
    return (Path(folder) / "chat_templates" / f"{name}.jinja").read_text()


def tokenizer_of(
    kind: Callable[[], str],
    special: list[AddedToken | str],
    added: list[AddedToken | str] = [],  # noqa: B006 - not changed
    **settings: Any,
) -> Any:
    backend = Tokenizer.from_str(kind())
    backend.add_special_tokens(
        [
            AddedToken(t, special=True, normalized=False) if isinstance(t, str) else t
            for t in special
        ]
    )
    backend.add_tokens(
        [AddedToken(t, normalized=False) if isinstance(t, str) else t for t in added]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, **settings)


@cache
def family(name: str) -> Any:
    """The tokenizer of a family, with its template."""
    kind, eos, bos, rstrip = FAMILIES[name]
    template = template_of(name)
    special = dict.fromkeys([*filter(None, (bos, eos)), *_SPECIAL.findall(template)])
    added = [t for t in dict.fromkeys(_NOT_SPECIAL.findall(template)) if t not in special]
    return tokenizer_of(
        kind,
        [
            AddedToken(t, special=True, normalized=False, rstrip=rstrip and t != bos)
            for t in special
        ],
        [*added],
        eos_token=eos,
        bos_token=bos,
        pad_token=eos,
        chat_template=template,
    )
