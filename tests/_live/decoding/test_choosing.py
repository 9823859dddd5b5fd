"""The next token of each row: the likeliest, or one drawn from the row's own stream."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from heldout._live.decoding.choosing import BLOCK, _nucleus, choose_tokens
from heldout._live.decoding.turn import NOT_FINITE, Prompt, Turn
from tests._live.decoding.models import Spelling

pytestmark = pytest.mark.usefixtures("one_thread")


def turn(seed: int | None = 1, temperature: float = 1.0, top_p: float | None = None) -> Turn:
    prompt = Prompt((1,), 9, temperature=temperature, top_p=top_p, seed=seed)
    return Turn(0, prompt, Spelling([]), frozenset())


def random_logits(rows: int, size: int = 3000) -> Any:
    return 3.0 * torch.randn(rows, size, generator=torch.Generator().manual_seed(0))


def test_a_sampled_turn_draws_from_its_own_stream() -> None:
    logits = random_logits(1, 50)
    before = torch.get_rng_state()

    def drawn(seed: int | None) -> list[int]:
        own = turn(seed, 1.5, 0.9)
        return [choose_tokens(logits, [own])[0] for _ in range(20)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(None) != drawn(None)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_row_draws_what_it_draws_alone() -> None:
    logits = random_logits(6)
    settings = [(1, 1.0, None), (2, 0.7, 0.9), (3, 0.0, None), (4, 1.3, 0.5), (5, 1.0, 1.0)]
    together = [turn(*own) for own in settings]
    steps = [choose_tokens(logits[:5], together) for _ in range(10)]
    for row, own in enumerate(settings):
        alone = turn(*own)
        assert [choose_tokens(logits[row : row + 1], [alone])[0] for _ in range(10)] == [
            step[row] for step in steps
        ]
    assert {step[2] for step in steps} == {int(logits[2].argmax())}


def test_a_nucleus_is_that_of_the_row_alone() -> None:
    weights = torch.softmax(random_logits(64, 100 * BLOCK), -1).unflatten(-1, (-1, BLOCK))
    shares = torch.full((64, 1), 0.99999)  # its last tokens weigh as little as rounding does
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # which share one long sum, but not one of many rows
    try:
        alone = torch.cat([_nucleus(weights[n : n + 1], shares[:1]) for n in range(64)])
        assert torch.equal(_nucleus(weights, shares), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("top_p", [None, 0.8])
def test_tokens_come_as_often_as_they_should(top_p: float | None) -> None:
    logits = random_logits(1, 12)
    weights = torch.softmax(logits[0] / 1.5, -1)
    if top_p is not None:
        ordered, order = weights.sort(descending=True)
        weights[order[ordered.cumsum(-1) - ordered >= top_p]] = 0.0
    weights /= weights.sum()
    draws, turns = 4000, [turn(seed, 1.5, top_p) for seed in range(4000)]
    counts = torch.bincount(torch.tensor(choose_tokens(logits.expand(draws, -1), turns)),
        minlength=12) / draws  # fmt: skip
    assert not counts[weights == 0].any()
    assert (counts - weights).abs().max() < 4 * (0.25 / draws) ** 0.5


def test_a_nucleus_is_the_fewest_of_the_likeliest() -> None:
    weights = torch.softmax(random_logits(4), -1)
    shares = torch.tensor([[0.1], [0.5], [0.9], [0.999]])
    blocks = torch.nn.functional.pad(weights, (0, -3000 % BLOCK)).unflatten(-1, (-1, BLOCK))
    kept = _nucleus(blocks, shares).flatten(1)[:, :3000]
    for row, left, share in zip(weights, kept, shares, strict=True):
        ordered, order = row.sort(descending=True)
        outside = order[ordered.cumsum(-1) - ordered >= share]
        assert not left[outside].any()
        assert torch.equal(left > 0, ~torch.isin(torch.arange(len(row)), outside))


def test_what_is_impossible_is_never_drawn() -> None:
    logits = torch.full((1, 5000), float("-inf"))
    logits[0, [3, 4999]] = torch.tensor([0.0, -20.0])
    assert {choose_tokens(logits, [turn(seed)])[0] for seed in range(300)} <= {3, 4999}
    chances = (0.0, 1.0 - 2.0**-24)
    for chance in chances:
        drawing = turn()
        drawing.draw = lambda chance=chance: chance  # type: ignore[method-assign, misc]
        assert choose_tokens(logits, [drawing])[0] in (3, 4999)


def test_rows_without_numbers_have_no_token() -> None:
    logits = random_logits(5, 40)
    logits[0, 7], logits[1, 7], logits[2] = float("nan"), float("inf"), float("-inf")
    logits[3, :30] = float("-inf")  # tokens that there are not
    for temperature in (0.0, 1.0):
        tokens = choose_tokens(logits, [turn(seed, temperature) for seed in range(5)])
        assert tokens[:3] == [NOT_FINITE] * 3
        assert tokens[3] >= 30
        assert tokens[4] >= 0
