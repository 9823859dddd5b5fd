"""Decoding as a loop over the forward pass: any model, any device, greedy and sampled rows.

Prompts are padded on the left. What all of them begin with (the system prompt, usually) is read
once, and rows that are done leave the batch. Padding then stands between that beginning and a
prompt's own part, which is no matter where a layer sees everything before, but takes room in a
sliding window: then every row is read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from heldout.decoding.model import device_of, transformers_model
from heldout.decoding.turn import Generation, Turn


def decode(
    model: Any,
    turns: list[Turn],
    *,
    keep_going: Callable[[], bool],
    wanted: Callable[[int], bool],
    done: Callable[[int, Generation], None],
) -> None:
    """All turns together, one token a step. To be called inside `steady`."""
    import torch
    from transformers import DynamicCache

    device = device_of(model)
    cache = DynamicCache(config=transformers_model(model).config)
    prompts = [turn.prompt.ids for turn in turns]
    shared = common_prefix(prompts) if len(turns) > 1 and attends_to_all(cache) else 0
    if shared:
        if not keep_going():
            return
        model(
            input_ids=torch.tensor([prompts[0][:shared]], device=device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache.batch_repeat_interleave(len(turns))
    # Then each one's own part; what is masked may hold any token.
    width = max(map(len, prompts)) - shared
    own = [list(prompt[shared:]) for prompt in prompts]
    ids = torch.tensor([[0] * (width - len(part)) + part for part in own], device=device)
    mask = torch.tensor(
        [[1] * shared + [0] * (width - len(part)) + [1] * len(part) for part in own],
        device=device,
    )
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, shared:]
    while turns and keep_going():
        out = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits = out.logits[:, -1]
        chosen = logits.argmax(-1).tolist()
        staying = []
        for row, turn in enumerate(turns):
            if not wanted(turn.index):
                continue
            if turn.sampled:
                chosen[row] = turn.sample(logits[row])
            generation = turn.take(chosen[row])
            if generation is None:
                staying.append(row)
            else:
                done(turn.index, generation)
        if len(staying) < len(turns):
            turns = [turns[row] for row in staying]
            if not turns:
                return
            keep = torch.tensor(staying, device=device)
            cache.batch_select_indices(keep)
            mask, positions = mask[keep], positions[keep]
        ids = torch.tensor([[chosen[row]] for row in staying], device=device)
        mask = torch.cat([mask, mask.new_ones(len(turns), 1)], dim=-1)
        positions = positions[:, -1:] + 1


def attends_to_all(cache: Any) -> bool:
    """Whether every layer sees all that went before."""
    from transformers.cache_utils import DynamicLayer

    return bool(cache.layers) and all(type(layer) is DynamicLayer for layer in cache.layers)


def common_prefix(prompts: Sequence[Sequence[int]]) -> int:
    """How many tokens all prompts share at their start, leaving each at least one of its own."""
    longest = min(map(len, prompts)) - 1
    for place in range(longest):
        if len({prompt[place] for prompt in prompts}) > 1:
            return place
    return longest
