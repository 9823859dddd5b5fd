"""What is known of a prompt is not computed again: long prompts, conversations, beginnings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from heldout._live.decoding import Decoder, Generation, Prompt
from heldout._live.decoding.captured import batch_plan, graphs, placing
from heldout._live.isolation import NeedsTrainerThread, background_thread
from tests._live.decoding.models import generated, ids_of, model_of, tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_plan, "MOST_PER_PASS", 1)  # so a pass has 64 tokens of each row
    monkeypatch.setattr(placing, "WORTH_SHARING", 100)
    monkeypatch.setattr(placing, "WORTH_KEEPING", 4)


def small_model() -> Any:
    model = model_of("Llama", max_position_embeddings=1024).to(DEVICE)
    model.generation_config.eos_token_id = None
    return model


def decoder_of(model: Any, rows: int = 4) -> Decoder:
    words = tokenizer()
    words.eos_token = None
    return Decoder(model, words, rows=rows, graphs=True)


def prompt_of(seed: int, length: int, max_new: int = 8) -> Prompt:
    return Prompt(tuple(random.Random(seed).choices(range(3, 64), k=length)), max_new)


def gone_on(prompt: Prompt, found: Any, seed: int, more: int = 9) -> Prompt:
    """The next turn of a conversation: the answer is part of its prompt."""
    assert isinstance(found, Generation)
    ids = prompt.ids + found.ids + prompt_of(seed, more).ids
    return Prompt(ids, prompt.max_new, continued=True)


def test_prompts_longer_than_a_pass_are_read_in_several() -> None:
    model = small_model()
    asked = [prompt_of(i, length) for i, length in enumerate((1, 64, 65, 200, 300))]
    decoder = decoder_of(model)
    assert ids_of(decoder.decode(asked)) == generated(model, asked)
    assert decoder.describe()["width"] == 64
    assert ids_of(decoder.decode(asked[::-1])) == generated(model, asked)[::-1]


def test_a_conversation_goes_on_from_what_its_row_holds() -> None:
    model = small_model()
    decoder = decoder_of(model)
    asked = [prompt_of(i, 20 + 30 * i) for i in range(4)]
    for turn in range(4):
        found = decoder.decode(asked, same_weights=turn > 0)
        assert ids_of(found) == generated(model, asked)
        # All but the last token of each answer, and nothing in the first turn.
        known = sum(len(p.ids) - 9 - 1 for p in asked) if turn else 0
        assert decoder.describe().get("known_tokens", 0) == known
        asked = [gone_on(p, f, 100 + turn) for p, f in zip(asked, found, strict=True)]


def test_other_weights_are_never_asked_for_what_the_old_ones_knew() -> None:
    model = small_model()
    decoder = decoder_of(model)
    asked = [prompt_of(i, 40) for i in range(4)]
    again = [gone_on(p, f, 7) for p, f in zip(asked, decoder.decode(asked), strict=True)]
    with torch.no_grad():
        for weight in model.parameters():
            weight.neg_()
            weight[..., 0] += 1
    assert ids_of(decoder.decode(again)) == generated(model, again)
    assert "known_tokens" not in decoder.describe()


def test_what_all_prompts_begin_with_is_computed_once() -> None:
    model = small_model()
    beginning = prompt_of(0, 150).ids
    asked = [Prompt(beginning + prompt_of(i, 3 + 11 * i).ids, 8) for i in range(8)]
    decoder = decoder_of(model)
    assert ids_of(decoder.decode(asked)) == generated(model, asked)
    assert decoder.describe()["known_tokens"] >= 8 * 150
    assert ids_of(decoder.decode(asked[::-1], same_weights=True)) == generated(model, asked)[::-1]


@pytest.mark.parametrize("seed", range(4))
def test_conversations_that_come_and_go_say_what_they_say_alone(seed: int) -> None:
    numbers, model = random.Random(seed), small_model()
    decoder = decoder_of(model, rows=3)
    beginning = prompt_of(0, 60).ids
    waiting: list[Prompt] = []
    for turn in range(5):
        new = numbers.randint(0, 4)
        begun = [
            Prompt(
                beginning[: numbers.choice((0, 60))] + prompt_of(10 * turn + i, 5 + 20 * i).ids, 6
            )
            for i in range(new)
        ]
        asked: Sequence[Prompt] = [*waiting, *begun]
        numbers.shuffle(asked)  # type: ignore[arg-type]
        found = decoder.decode(asked, same_weights=turn > 0)
        assert ids_of(found) == generated(model, asked)
        pairs = list(zip(asked, found, strict=True))
        waiting = [gone_on(p, f, turn) for p, f in pairs if numbers.random() < 0.7]


def test_a_conversation_that_goes_on_keeps_its_batch() -> None:
    model = small_model()
    decoder = decoder_of(model)
    asked = [replace(prompt_of(i, 150), continued=True) for i in range(3)]
    prepared = []
    for turn in range(4):
        found = decoder.decode(asked, same_weights=turn > 0)
        assert ids_of(found) == generated(model, asked)
        assert decoder._cache is not None
        prepared.append(len(decoder._cache._batches))
        asked = [gone_on(p, f, turn) for p, f in zip(asked, found, strict=True)]
    assert prepared == [1, 1, 1, 1]


def test_a_row_that_was_copied_to_in_vain_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = graphs.StaticBatch.__init__

    def make(batch: Any, *args: Any, **settings: Any) -> None:
        """Stand in for captured graphs, which the background may use."""
        made(batch, *args, **settings)
        batch.way = "captured"

    monkeypatch.setattr(graphs.StaticBatch, "__init__", make)
    monkeypatch.setattr(batch_plan, "MOST_PER_PASS", 1 << 14)
    model = small_model()
    decoder = decoder_of(model, rows=2)
    other, a, b = (prompt_of(seed, 100) for seed in range(3))
    decoder.decode([prompt_of(9, 20)] * 2)
    decoder.release()
    decoder.decode([other, other])
    asked = [a, b, a, a]
    # The second batch has a's beginning copied, and then needs a pass that is not captured.
    with background_thread(), pytest.raises(NeedsTrainerThread):
        decoder.decode(asked, same_weights=True)
    assert ids_of(decoder.decode(asked, same_weights=True)) == generated(model, asked)


def test_a_batch_that_was_stopped_is_not_taken_for_more_than_it_holds() -> None:
    model = small_model()
    decoder = decoder_of(model)
    asked = [prompt_of(i, 70, max_new=60) for i in range(3)]
    polls = iter([True] * 4 + [False] * 100)
    assert decoder.decode(asked, keep_going=lambda: next(polls)) == [None] * 3
    assert ids_of(decoder.decode(asked, same_weights=True)) == generated(model, asked)
    assert decoder.describe()["known_tokens"] == 3 * 69
