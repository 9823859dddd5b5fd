"""Decoding as a loop over the forward pass: any model, any device, greedy and sampled rows.

Prompts are padded on the left. The prefix that all of them share (the system prompt, usually) is
prefilled once, and rows that are done leave the batch. Padding then stands between that prefix and
the rest of a prompt, which is harmless where layers attend to everything before, but would fill a
sliding window: then every row is prefilled whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heldout.decoding.model import device_of, has_full_attention, transformers_model
from heldout.decoding.turn import Callbacks, Turn


def decode(model: Any, turns: list[Turn], callbacks: Callbacks) -> None:
    """Decode all turns together, one token per step, inside `deterministic_inference`."""
    import torch
    from transformers import DynamicCache

    device = device_of(model)
    cache = DynamicCache(config=transformers_model(model).config)
    prompts = [turn.prompt.ids for turn in turns]
    shared = common_prefix(prompts) if len(turns) > 1 and has_full_attention(cache) else 0
    if shared:
        if not callbacks.keep_going():
            return
        model(
            input_ids=torch.tensor([prompts[0][:shared]], device=device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
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
        out = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits = out.logits[:, -1]
        tokens = logits.argmax(-1).tolist()
        remaining = []
        for row, turn in enumerate(turns):
            if not callbacks.wanted(turn.index):
                continue
            if turn.sampled:
                tokens[row] = turn.sample(logits[row])
            generation = turn.add(tokens[row])
            if generation is None:
                remaining.append(row)
            else:
                callbacks.done(turn.index, generation)
        if len(remaining) < len(turns):
            turns = [turns[row] for row in remaining]
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
