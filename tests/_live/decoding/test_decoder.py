"""Batches of prompts on a model in memory, by the plain way and that of fixed shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from heldout._live.decoding import Decoder, Generation, Prompt
from heldout.errors import EndpointError, InvalidInput
from tests._live.decoding.models import (
    PROMPTS,
    Says,
    Spelling,
    generated,
    ids_of,
    model_of,
    tokenizer,
)

pytestmark = pytest.mark.usefixtures("one_thread")

BOTH = pytest.mark.parametrize("graphs", [False, True], ids=["eager", "fixed"])


@pytest.fixture
def model() -> Any:
    return model_of("Llama")


# --- What comes out -----------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("rows", [1, 4, 32])
def test_generations_are_those_of_transformers_in_the_order_asked(
    model: Any, graphs: bool, rows: int
) -> None:
    words, before = tokenizer(), torch.get_rng_state()
    decoder = Decoder(model, words, rows=rows, graphs=graphs)
    results = decoder.decode(PROMPTS)
    assert ids_of(results) == generated(model, PROMPTS)
    assert [r.text for r in results] == [
        words.decode(list(ids), skip_special_tokens=True) for ids in ids_of(results)
    ]
    assert decoder.decode(PROMPTS[::-1]) == results[::-1]
    assert torch.equal(torch.get_rng_state(), before)
    # The comparison means something: rows differ in length and in how they end.
    assert {r.finish for r in results} == {"stop", "length"}
    assert len({len(ids) for ids in ids_of(results)}) > 4


@BOTH
def test_each_row_has_its_own_limit_and_stops(model: Any, graphs: bool) -> None:
    words = tokenizer()
    whole = max(ids_of(Decoder(model, words).decode(PROMPTS)), key=len)
    prompt = next(
        p for p, ids in zip(PROMPTS, generated(model, PROMPTS), strict=True) if ids == whole
    )
    word = words.decode([whole[5]])
    asked = [replace(prompt, max_new=3), replace(prompt, stops=("no", word)), prompt]
    short, stopped, free = Decoder(model, words, graphs=graphs).decode(asked)
    assert (short, free) == (
        Generation(whole[:3], "length", words.decode(list(whole[:3]), skip_special_tokens=True)),
        Generation(whole, free.finish, words.decode(list(whole), skip_special_tokens=True)),
    )
    assert isinstance(stopped, Generation)
    end = whole.index(whole[5]) + 1
    assert (stopped.ids, stopped.finish) == (whole[:end], "stop")
    assert stopped.text.endswith(word)


@BOTH
def test_a_long_answer_is_read_in_pieces_and_ends_where_it_should(model: Any, graphs: bool) -> None:
    long = [replace(prompt, max_new=150) for prompt in PROMPTS]
    model.generation_config.eos_token_id = [60, 61]
    found = ids_of(Decoder(model, Spelling(["x"] * 64), graphs=graphs).decode(long))
    assert found == generated(model, long)
    assert max(map(len, found)) > 40


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_sampled_rows_have_streams_of_their_own(model: Any, rows: int) -> None:
    def asked(first: int) -> list[Prompt]:
        hot = [
            replace(p, temperature=2.0, top_p=0.95, seed=first + i) for i, p in enumerate(PROMPTS)
        ]
        return [*hot[:5], *PROMPTS[5:]]

    before = torch.get_rng_state()
    words = tokenizer()
    found = ids_of(Decoder(model, words, rows=rows, graphs=True).decode(asked(0)))
    assert found == ids_of(Decoder(model, words, rows=5).decode(asked(0)))
    assert found[:5] != ids_of(Decoder(model, words, rows=5).decode(asked(100)))[:5]
    assert found[5:] == generated(model, PROMPTS[5:])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_prompt_of_nothing_or_without_room_is_refused(model: Any) -> None:
    for prompt in (Prompt((), 1), Prompt((1,), 0)):
        with pytest.raises(InvalidInput, match="at least one token"):
            Decoder(model, tokenizer()).decode([prompt])
    assert Decoder(model, tokenizer()).decode([]) == []


# --- Coming and going ---------------------------------------------------------------------------


@BOTH
def test_results_are_told_as_they_come(model: Any, graphs: bool) -> None:
    told: dict[int, Any] = {}
    model.generation_config.eos_token_id = None
    asked = [Prompt((9,), max_new=most) for most in (60, 20, 1, 40, 1)]
    decoder = Decoder(model, Spelling(["x"] * 64), rows=4, graphs=graphs)
    results = decoder.decode(asked, on_done=lambda i, g: told.update({i: g}))
    assert list(told) == [2, 1, 3, 0, 4]  # the short ones of a batch first
    assert [told[i] for i in range(5)] == results


@BOTH
def test_what_is_not_wanted_is_dropped_or_leaves_and_the_rest_is_as_before(
    model: Any, graphs: bool
) -> None:
    asked = [replace(prompt, max_new=60) for prompt in PROMPTS]
    model.generation_config.eos_token_id = None
    decoder = Decoder(model, Spelling(["x"] * 64), rows=4, graphs=graphs)
    everything, calls = decoder.decode(asked), []

    def wanted(i: int) -> bool:
        if i == 1:  # no longer, after a while
            calls.append(1)
        return i != 6 and len(calls) <= 3 * (i == 1) + 1000 * (i != 1)

    found = decoder.decode(asked, wanted=wanted)
    assert found == [None if i in (1, 6) else r for i, r in enumerate(everything)]
    assert len(calls) > 3


@BOTH
def test_told_not_to_go_on_it_gives_what_is_done(model: Any, graphs: bool) -> None:
    asked = [replace(prompt, max_new=2 if i < 2 else 100) for i, prompt in enumerate(PROMPTS)]
    model.generation_config.eos_token_id = None
    done: list[int] = []
    decoder = Decoder(model, Spelling(["x"] * 64), rows=4, graphs=graphs)
    found = decoder.decode(
        asked, keep_going=lambda: len(done) < 2, on_done=lambda i, g: done.append(i)
    )
    assert [isinstance(result, Generation) for result in found] == [True] * 2 + [False] * 7
    assert found[2:] == [None] * 7
    assert decoder.decode(asked, keep_going=lambda: False) == [None] * 9


@BOTH
def test_it_says_it_is_alive_all_along(model: Any, graphs: bool) -> None:
    calls: list[int] = []
    asked = [Prompt((9,), max_new=100)]
    model.generation_config.eos_token_id = None
    decoder = Decoder(model, Spelling(["x"] * 64), graphs=graphs)
    decoder.decode(asked, keep_going=lambda: not calls.append(1))
    assert len(calls) >= (7 if graphs else 100)


def test_rows_leave_when_they_are_done_and_a_common_beginning_is_read_once(model: Any) -> None:
    with Says(model, [9]) as says:
        asked = [Prompt((8, 9, 10 + i), max_new=i + 1) for i in range(4)]
        decoder = Decoder(model, tokenizer(), graphs=True)  # a hook: so the plain way
        decoder.decode(asked)  # which is checked the first time
        says.sizes.clear()
        decoder.decode(asked)
    assert says.sizes == [1, 4, 3, 2, 1]


# --- Memory -------------------------------------------------------------------------------------


class Full:
    """A machine on which a batch of more than so many rows does not fit."""

    def __init__(
        self, model: Any, most: int, problem: type[Exception] = torch.OutOfMemoryError
    ) -> None:
        self.sizes: list[int] = []
        usual = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            rows = kwargs["input_ids"].shape[0]
            self.sizes.append(rows)
            if rows > most:
                raise problem("[enforce fail] DefaultCPUAllocator: can't allocate memory: no")
            return usual(*args, **kwargs)

        model.forward = forward


@BOTH
@pytest.mark.parametrize("problem", [torch.OutOfMemoryError, RuntimeError])
def test_a_batch_that_does_not_fit_is_halved_until_it_does(
    model: Any, graphs: bool, problem: type[Exception]
) -> None:
    expected = generated(model, PROMPTS)
    full = Full(model, 2, problem)
    decoder = Decoder(model, tokenizer(), rows=8, graphs=graphs)
    told: list[int] = []
    assert ids_of(decoder.decode(PROMPTS, on_done=lambda i, g: told.append(i))) == expected
    assert sorted(told) == list(range(9))  # each once
    assert decoder.describe()["splits"] >= 3
    assert decoder.describe()["rows"] == 2
    # The next eval begins with what fitted.
    full.sizes.clear()
    assert ids_of(decoder.decode(PROMPTS)) == expected
    assert max(full.sizes) == 2
    assert decoder.describe()["splits"] == 0


def test_memory_that_runs_out_in_the_middle_costs_only_what_was_not_done(model: Any) -> None:
    asked = [Prompt((9 + i,), max_new=3 if i == 0 else 12) for i in range(4)]
    expected = generated(model, asked)
    usual, steps = model.forward, 0

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 6:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return usual(*args, **kwargs)

    model.forward = forward
    told: list[int] = []
    found = Decoder(model, tokenizer(), graphs=False).decode(
        asked, on_done=lambda i, g: told.append(i)
    )
    assert ids_of(found) == expected
    assert sorted(told) == [0, 1, 2, 3]


@BOTH
def test_a_prompt_that_does_not_fit_alone_is_that_prompts_error(model: Any, graphs: bool) -> None:
    asked = [*PROMPTS[:3], Prompt(tuple(range(3, 60)) * 2, max_new=5), *PROMPTS[3:6]]
    expected = generated(model, asked)
    usual = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if kwargs["input_ids"].shape[1] > 64:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried\nmore")
        return usual(*args, **kwargs)

    model.forward = forward
    found = Decoder(model, tokenizer(), rows=4, graphs=graphs).decode(asked)
    assert ids_of([*found[:3], *found[4:]]) == [*expected[:3], *expected[4:]]
    assert isinstance(found[3], EndpointError)
    assert str(found[3]) == (
        "a prompt of 114 tokens and up to 5 new ones does not fit into memory, even alone: "
        "CUDA out of memory. Tried"
    )


@BOTH
def test_what_is_not_memory_is_raised(model: Any, graphs: bool) -> None:
    def forward(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("some other trouble")

    model.forward = forward
    with pytest.raises(RuntimeError, match="some other trouble"):
        Decoder(model, tokenizer(), graphs=graphs).decode(PROMPTS)
