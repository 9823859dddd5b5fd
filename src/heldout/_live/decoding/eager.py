"""Decoding as a loop over the forward pass: any model, any device, greedy and sampled rows.

Prompts are padded on the left. The prefix that all of them share (the system prompt, usually) is
prefilled once, and rows that are done leave the batch. Padding then stands between that prefix and
the rest of a prompt, which is harmless where layers attend to everything before, but would fill a
sliding window: then every row is prefilled whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heldout._live.decoding.checking import LogitsChecks, WrongLogits
from heldout._live.decoding.choosing import choose_tokens
from heldout._live.decoding.model import (
    describe_error,
    device_of,
    has_full_attention,
    transformers_model,
)
from heldout._live.decoding.turn import Callbacks, Turn

UNKNOWN_INPUT = (TypeError, ValueError, LookupError, AttributeError, NotImplementedError)
"""What a model raises that wants its cache, mask or positions in another form."""


def decode(model: Any, turns: list[Turn], callbacks: Callbacks, checks: LogitsChecks) -> None:
    """Decode all turns together, one token per step, inside `deterministic_inference`.

    Raises:
        WrongLogits: The model takes masks, positions or a cache otherwise.
    """
    import torch
    from transformers import DynamicCache

    device = device_of(model)
    try:
        cache = DynamicCache(config=transformers_model(model).config)
    except UNKNOWN_INPUT as error:
        raise WrongLogits(f"it has no such cache: {type(error).__name__}: {error}") from error
    prompts = [turn.prompt.ids for turn in turns]
    rows = list(range(len(turns)))
    shared = common_prefix(prompts) if len(turns) > 1 and has_full_attention(cache) else 0
    check = checks.start(model, "eager, sharing" if shared else "eager", prompts)

    def forward(**inputs: Any) -> Any:
        try:
            return model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        except UNKNOWN_INPUT as error:
            if check is None or check.is_over:
                raise
            raise WrongLogits(describe_error(error)) from error

    if shared:
        if not callbacks.keep_going():
            return
        forward(input_ids=torch.tensor([prompts[0][:shared]], device=device))
        cache.batch_repeat_interleave(len(turns))
    width = max(map(len, prompts)) - shared
    rest = [list(prompt[shared:]) for prompt in prompts]
    ids = torch.tensor([[0] * (width - len(part)) + part for part in rest], device=device)
    mask = torch.tensor(
        [[1] * shared + [0] * (width - len(part)) + [1] * len(part) for part in rest],
        device=device,
    )
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, shared:]
    while turns and callbacks.keep_going():
        logits = forward(input_ids=ids, attention_mask=mask, position_ids=positions).logits[:, -1]
        tokens = choose_tokens(logits, turns)
        if check is not None:
            check.compare(logits, tokens, rows)
        remaining = [
            row
            for row, turn in enumerate(turns)
            if callbacks.wanted(turn.index) and callbacks.take(turn, tokens[row])
        ]
        if len(remaining) < len(turns):
            turns = [turns[row] for row in remaining]
            rows = [rows[row] for row in remaining]
            if not turns:
                return
            keep = torch.tensor(remaining, device=device)
            cache.reorder_cache(keep)  # recurrent layers have no other way to select rows
            mask, positions = mask[keep], positions[keep]
        ids = torch.tensor([[tokens[row]] for row in remaining], device=device)
        mask = torch.cat([mask, mask.new_ones(len(turns), 1)], dim=-1)
        positions = positions[:, -1:] + 1


def common_prefix(prompts: Sequence[tuple[int, ...]]) -> int:
    """Count the tokens that all prompts begin with, leaving each at least one of its own."""
    first, last = min(prompts), max(prompts)  # what these two share, all share
    longest = min(map(len, prompts)) - 1
    for position in range(longest):
        if first[position] != last[position]:
            return position
    return longest
