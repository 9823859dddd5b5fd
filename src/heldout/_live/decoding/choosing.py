"""The next token of each row of a batch: the likeliest, or one drawn by chance.

A row draws one number a step from a generator of its own on the host; everything else is computed
where the logits are, for all rows together. So a token depends neither on the rest of the batch nor
on the device's generator, and a step costs one transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heldout._live.decoding.turn import NOT_FINITE, Turn

BLOCK = 1024
"""Tokens that are summed up before one of them is looked for: the sums are short, and so exact."""


def choose_tokens(logits: Any, turns: Sequence[Turn]) -> list[int]:
    """Choose a token in each row; NOT_FINITE where the logits say nothing.

    Args:
        logits: [rows, vocabulary]. -inf is a token that is never chosen.
        turns: The turn of each row.
    """
    import torch

    highest, tokens = logits.max(-1)  # NaN counts as the highest
    sampled = [row for row, turn in enumerate(turns) if turn.sampled]
    if sampled:
        rows: Any = sampled if len(sampled) < len(turns) else slice(None)
        tokens[rows] = _draw(logits[rows], tokens[rows], [turns[row] for row in sampled])
    chosen: list[int] = torch.where(highest.abs() < float("inf"), tokens, NOT_FINITE).tolist()
    return chosen


def _draw(logits: Any, likeliest: Any, turns: Sequence[Turn]) -> Any:
    """Draw a token in each row, at the row's temperature and from its nucleus."""
    import torch

    settings = [
        [turn.prompt.temperature, 1.0 if turn.prompt.top_p is None else turn.prompt.top_p]
        for turn in turns
    ]
    numbers = torch.tensor(
        [[*own, turn.draw()] for own, turn in zip(settings, turns, strict=True)],
        dtype=torch.float32,
    )
    temperatures, shares, chances = numbers.to(logits.device).T[..., None]
    weights = torch.softmax(logits.float() / temperatures, dim=-1)
    # Two short sums instead of one over the vocabulary: the order in which a long one is added up
    # depends on timing on a GPU, and on the number of rows on a CPU.
    missing = -weights.shape[-1] % BLOCK
    blocks = torch.nn.functional.pad(weights, (0, missing)).unflatten(-1, (-1, BLOCK))
    limited = [row for row, (_, share) in enumerate(settings) if share < 1]
    if limited:
        rows: Any = limited if len(limited) < len(turns) else slice(None)
        blocks[rows] = _nucleus(blocks[rows], shares[rows])
    sums = blocks.sum(-1)
    ends = sums.cumsum(-1)
    wanted = chances * ends[:, -1:]
    block = (ends <= wanted).sum(-1, keepdim=True).clamp(max=ends.shape[-1] - 1)
    wanted = wanted - (ends.gather(-1, block) - sums.gather(-1, block))
    inside = blocks.take_along_dim(block[..., None], 1)[:, 0]
    place = (inside.cumsum(-1) <= wanted).sum(-1, keepdim=True).clamp(max=BLOCK - 1)
    # Rounding may end at a token that is impossible.
    possible = inside.gather(-1, place) > 0
    return torch.where(possible, block * BLOCK + place, likeliest[:, None])[:, 0]


def _nucleus(blocks: Any, shares: Any) -> Any:
    """Leave the fewest of the likeliest tokens that have a share of the whole; others get 0.

    The least of them is found by halving, since sorting a vocabulary takes five times as long. The
    bits of positive floats are ordered as the numbers are, so 31 steps find it exactly.

    Args:
        blocks: [rows, blocks, BLOCK], what each token weighs.
        shares: [rows, 1], the share of each row's nucleus.
    """
    import torch

    bits = blocks.view(torch.int32)
    wanted = shares * blocks.sum(-1).sum(-1, keepdim=True)
    low = torch.zeros_like(bits[:, 0, :1])  # all tokens are enough
    high = bits.amax((1, 2))[:, None] + 1  # none is not
    for _ in range(31):
        middle = low + (high - low) // 2
        likely = torch.where(bits >= middle[..., None], blocks, 0.0)
        enough = likely.sum(-1).sum(-1, keepdim=True) >= wanted
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return torch.where(bits >= low[..., None], blocks, 0.0)
