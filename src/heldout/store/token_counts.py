"""The tokens that attempts took: those of the policy, of each judge and each simulated user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from heldout.errors import UNREADABLE, RunDirectoryError
from heldout.store.run_dir import ModelUsage, RunUsage
from heldout.types import MOST_TOKENS, OtherUsage

TOKENS = ("prompt_tokens", "completion_tokens", "other_usage")
"""Columns that tokens are counted from."""


def count_tokens(columns: Mapping[str, NDArray[Any]]) -> RunUsage:
    """Add up the tokens of attempts, whose columns are TOKENS.

    Counts of the policy's that are masked, or cannot be any, are unknown.
    """
    # In floats, which are exact up to 2^53: a sum of integers could turn negative.
    counts = np.ma.stack([columns[name] for name in TOKENS[:2]]).astype(np.float64)
    known = np.ma.filled((counts >= 0) & (counts <= MOST_TOKENS), False).all(axis=0)
    prompt, completion = np.ma.filled(counts, 0)[:, known].sum(axis=1)
    policy = _add(ModelUsage("policy"), int(known.sum()), int(prompt), int(completion))
    others: dict[tuple[str, str], ModelUsage] = {}
    texts = columns["other_usage"]
    for text in texts.tolist() if len(texts) and np.ma.count(texts) else ():
        for part in _decode(text) if text is not None else ():
            key = part.role, part.model
            before = others.get(key) or ModelUsage(part.role, part.model)
            if part.usage is None:
                others[key] = msgspec.structs.replace(before, unknown=before.unknown + 1)
            else:
                tokens = part.usage.prompt_tokens, part.usage.completion_tokens
                others[key] = _add(before, 1, *tokens)
    return RunUsage.of([policy, *(others[key] for key in sorted(others))])


def _decode(text: str) -> tuple[OtherUsage, ...]:
    try:
        return _decoder.decode(text)
    except UNREADABLE:
        raise RunDirectoryError(
            "results.parquet has tokens that are none; without it the journal is read"
        ) from None


_decoder = msgspec.json.Decoder(tuple[OtherUsage, ...])


def _add(usage: ModelUsage, n: int, prompt: int, completion: int) -> ModelUsage:
    return msgspec.structs.replace(
        usage,
        n=usage.n + n,
        prompt_tokens=usage.prompt_tokens + prompt,
        completion_tokens=usage.completion_tokens + completion,
    )
