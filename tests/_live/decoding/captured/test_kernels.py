"""The kernels of Triton in its interpreter, each beside the same in plain torch.

They need no GPU and a while. `make test` runs them where triton is installed; bench/gpu has the
tests on a real one.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch

from heldout._live.decoding import Decoder, Prompt
from heldout._live.decoding.captured.batch_plan import RowState
from tests._live.decoding.models import PROMPTS, generated, ids_of, model_of, tokenizer

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip(
        "needs triton and TRITON_INTERPRET=1, as make test-kernels has", allow_module_level=True
    )

from heldout._live.decoding.captured import kernels
from tests.tolerances import assert_close

# numpy, which the interpreter computes with, warns of -inf - -inf in what is masked afterwards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

ROWS, HEADS, SHARED, SIZE, LENGTH = 3, 4, 2, 8, 41
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 5},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "all": {"window": 20, "softcap": 3.0, "sinks": torch.tensor([0.0, 1.0, -2.0, 3.0])},
}


def numbers(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def attended(
    query: Any, keys: Any, values: Any, last: int, head: int, **variant: Any
) -> torch.Tensor:
    """One query head, [size], over the keys of one row up to its last position."""
    first = max(0, last + 1 - variant.get("window", LENGTH))
    shared = head // (HEADS // SHARED)
    scores = keys[shared, first : last + 1] @ query / SIZE**0.5
    if cap := variant.get("softcap"):
        scores = cap * torch.tanh(scores / cap)
    if (sinks := variant.get("sinks")) is not None:
        scores = torch.cat([scores, sinks[head : head + 1]])
    weights = torch.softmax(scores, 0)[: last + 1 - first]
    return weights @ values[shared, first : last + 1]


def state_of(**known: Any) -> RowState:
    given = {name: torch.tensor(values) for name, values in known.items()}
    empty = torch.zeros(ROWS, dtype=torch.long)
    return RowState(**{"known": empty, "position": empty, "end": empty, **given})


@pytest.mark.parametrize("name", VARIANTS)
def test_a_step_attends_to_what_a_row_has_and_to_nothing_once_it_ended(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "KEYS_PER_PART", 16)  # so that there are several
    monkeypatch.setattr(kernels, "KEYS_PER_BLOCK", 16)
    query, variant = numbers(ROWS, HEADS, 1, SIZE), VARIANTS[name]
    keys, values = (numbers(ROWS, SHARED, LENGTH, SIZE, seed=seed) for seed in (1, 2))
    state = state_of(position=[0, 38, 20], end=[40, 40, 20])
    for tensor in (keys, values):
        tensor[1, :, 39:] = float("nan")  # what is not there yet is not read
    found = kernels.attend(query, keys, values, state, kernels.Scoring(SIZE**-0.5, **variant))
    for row, last in ((0, 0), (1, 38)):
        for head in range(HEADS):
            expected = attended(query[row, head, 0], keys[row], values[row], last, head, **variant)
            assert_close(found[row, 0, head], expected)
    assert not found[2].any()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_chunk_of_prompts_attends_to_all_before_each_token(name: str) -> None:
    chunk, variant = 19, VARIANTS[name]
    query = numbers(ROWS, HEADS, chunk, SIZE)
    keys, values = (numbers(ROWS, SHARED, LENGTH, SIZE, seed=seed) for seed in (1, 2))
    begins, known = [-4, 0, 20], [0, 0, 26]
    state = state_of(begin=begins, known=known)
    found = kernels.attend(query, keys, values, state, kernels.Scoring(SIZE**-0.5, **variant))
    assert found.isfinite().all()
    for row, begin in enumerate(begins):
        for token in range(max(0, known[row] - begin), chunk):
            if begin + token < 0:
                continue
            for head in range(HEADS):
                expected = attended(
                    query[row, head, token], keys[row], values[row], begin + token, head, **variant
                )
                assert_close(found[row, token, head], expected)


def test_keys_and_values_of_a_pass_are_written_into_their_columns() -> None:
    keys, values = numbers(ROWS, SHARED, 4, SIZE), numbers(ROWS, SHARED, 4, 12, seed=1)
    kept_keys, kept_values = torch.zeros(ROWS, SHARED, 9, SIZE), torch.zeros(ROWS, SHARED, 9, 12)
    columns = torch.tensor([[0, 1, 2, 3], [8, 8, 4, 5], [2, 3, 4, 5]])
    kernels.cache(keys, values, kept_keys, kept_values, columns)
    for row in range(ROWS):
        for token, column in enumerate(columns[row].tolist()):
            if column < 8:  # the last one takes what is thrown away
                assert torch.equal(kept_keys[row, :, column], keys[row, :, token])
                assert torch.equal(kept_values[row, :, column], values[row, :, token])
    assert not kept_keys[0, :, 4:].any()


@pytest.mark.parametrize("normed", [False, True])
def test_a_new_token_is_normalised_rotated_and_cached(normed: bool) -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

    query, key, value = (
        numbers(ROWS, count * SIZE, seed=seed) for seed, count in enumerate((HEADS, SHARED, SHARED))
    )
    angles = numbers(ROWS, SIZE // 2, seed=3).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    kept_keys, kept_values = (torch.zeros(ROWS, SHARED, 9, SIZE) for _ in range(2))
    columns = torch.tensor([[0], [5], [8]])
    norms = [Qwen3RMSNorm(SIZE, 1e-6) for _ in range(2)]
    with torch.no_grad():
        for seed, norm in enumerate(norms):
            norm.weight.copy_(numbers(SIZE, seed=seed))
    weights = {"query_norm": norms[0].weight, "key_norm": norms[1].weight} if normed else {}
    found = kernels.rotate_and_cache(
        query, key, value, cos, sin, kept_keys, kept_values, columns, **weights, eps=1e-6
    )
    heads = query.view(ROWS, HEADS, 1, SIZE), key.view(ROWS, SHARED, 1, SIZE)
    with torch.no_grad():
        if normed:
            heads = norms[0](heads[0]), norms[1](heads[1])
        expected = apply_rotary_pos_emb(*heads, cos[:, None], sin[:, None])
    assert_close(found, expected[0])
    for row, column in enumerate(columns.flatten().tolist()):
        assert_close(kept_keys[row, :, column], expected[1][row, :, 0])
        assert torch.equal(kept_values[row, :, column].flatten(), value[row])


def test_a_sum_and_its_norm() -> None:
    hidden, residual, weight = numbers(ROWS, 1, 48), numbers(ROWS, 1, 48, seed=1), numbers(48)
    total, normed = kernels.add_and_normalise(hidden, residual, weight, 1e-5)
    assert torch.equal(total, hidden + residual)
    assert_close(normed, torch.nn.functional.rms_norm(total, (48,), weight, 1e-5))


@pytest.mark.parametrize("biased", [False, True])
def test_products_with_the_same_input(biased: bool) -> None:
    hidden = numbers(ROWS, 128, dtype=torch.float16)
    outs = (128, 64, 64)
    weights = [numbers(out, 128, seed=n, dtype=torch.float16) for n, out in enumerate(outs)]
    biases = [numbers(out, seed=n, dtype=torch.float16) for n, out in enumerate(outs)]
    assert kernels.can_project(weights)
    assert not kernels.can_project([weights[0][:100], *weights[1:]])
    found = kernels.project(hidden, weights, biases if biased else None)
    expected = [hidden.float() @ weight.float().T for weight in weights]
    if biased:
        expected = [e + bias.float() for e, bias in zip(expected, biases, strict=True)]
    assert_close(found, torch.cat(expected, -1), half=True)


def test_a_gate_and_what_it_lets_through() -> None:
    hidden = numbers(ROWS, 64, dtype=torch.float16)
    gate, up = (numbers(96, 64, seed=seed, dtype=torch.float16) for seed in (1, 2))
    found = kernels.project_gated(hidden, gate, up)
    gates, ups = (hidden.float() @ weight.float().T for weight in (gate, up))
    expected = torch.nn.functional.silu(gates) * ups
    assert_close(found, expected, half=True)


def test_a_sampled_token_depends_on_its_own_seed_and_count_alone() -> None:
    logits = numbers(1, 50).expand(64, -1).contiguous()
    warm, made = torch.ones(64), torch.tensor([3])
    seeds = torch.arange(64) * 977
    found = kernels.choose(logits, warm, seeds, made)
    assert len(found.unique()) > 5
    assert torch.equal(kernels.choose(logits, warm, seeds.flip(0), made).flip(0), found)
    assert torch.equal(kernels.choose(logits[:7], warm[:7], seeds[:7], made), found[:7])
    assert not torch.equal(kernels.choose(logits, warm, seeds, made + 1), found)
    greedy = kernels.choose(logits, torch.zeros(64), seeds, made)
    assert torch.equal(greedy, logits.argmax(-1))


@pytest.mark.parametrize("share", [None, 0.6])
def test_sampled_tokens_have_the_probabilities_of_the_logits(share: float | None) -> None:
    count = 800
    logits = numbers(1, 12).expand(count, -1).contiguous()
    temperatures, made = torch.full((count,), 0.7), torch.tensor([0])
    least = None
    if share is not None:
        least = kernels.find_nucleus(logits[:1], temperatures[:1], torch.tensor([share]))
        least = least.expand(count).contiguous()
    found = kernels.choose(logits, temperatures, torch.arange(count), made, least)
    expected = torch.softmax(logits[0] / 0.7, -1)
    if share is not None:
        ordered, order = expected.sort(descending=True)
        expected[order[ordered.cumsum(-1) - ordered >= share]] = 0
        expected /= expected.sum()
    shares = torch.bincount(found, minlength=12) / count
    assert not shares[expected == 0].any()
    assert bool(((shares - expected).abs() <= 5 * (expected * (1 - expected) / count).sqrt()).all())


FEW = [Prompt(p.ids, max_new=3) for p in PROMPTS[1:3]]
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {"head_dim": 8},
    "Mistral": {"sliding_window": 4},
    "Gemma2": {"head_dim": 8, "sliding_window": 4},
    "GptOss": {"head_dim": 8, "sliding_window": 4},
    "Phi": {"partial_rotary_factor": 0.5},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_says_what_generate_says(family: str) -> None:
    model = model_of(family, **FAMILIES[family])
    decoder = Decoder(model, tokenizer(), rows=2, graphs=True)
    found = ids_of(decoder.decode(FEW))
    assert decoder.describe()["way"] == "static", decoder.describe()
    assert decoder._cache is not None
    assert decoder._cache.why_no_kernels is None
    assert found == generated(model, FEW)
    # The conversations go on from what their rows hold.
    longer = [
        Prompt((*p.ids, *ids, *range(8, 40), *range(8, 40)), max_new=2, continued=True)
        for p, ids in zip(FEW, found, strict=True)
    ]
    assert ids_of(decoder.decode(longer, same_weights=True)) == generated(model, longer)
    again = [replace(p, ids=(*p.ids, 9, 10)) for p in longer]
    assert ids_of(decoder.decode(again, same_weights=True)) == generated(model, again)
    assert decoder.describe()["known_tokens"] > 2 * 64


def test_any_implementation_of_attention_is_replaced() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register("another", sdpa_attention_forward)
    AttentionMaskInterface.register("another", sdpa_mask)
    model = model_of("Llama")
    expected = generated(model, FEW)
    model.set_attn_implementation("another")
    decoder = Decoder(model, tokenizer(), rows=2, graphs=True)
    assert ids_of(decoder.decode(FEW)) == expected
    assert (decoder.describe()["way"], decoder.describe()["attention"]) == ("static", "another")
    assert model.config._attn_implementation == "another"
    assert generated(model, FEW) == expected


def test_a_window_that_only_a_mask_has_is_not_taken_for_none() -> None:
    model = model_of("Phimoe", sliding_window=8, num_local_experts=4)
    decoder = Decoder(model, tokenizer(), rows=1, graphs=True)
    decoder.decode([Prompt((8, 9), 2)])  # shorter than the window: the logits are right
    why = "NotImplementedError: attention with a window that only its mask has"
    assert why in decoder.describe()["why_eager"]
    long = Prompt(tuple(range(8, 48)), 8)
    assert ids_of(decoder.decode([long])) == generated(model, [long])


def test_without_kernels_a_model_with_windows_is_decoded_eagerly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "attend", lambda query, *args, **kwargs: query.transpose(1, 2))
    model = model_of("Mistral", sliding_window=8)
    decoder = Decoder(model, tokenizer(), rows=1, graphs=True)
    decoder.decode([Prompt((8, 9), 2)])
    why = decoder.describe()["why_eager"]
    assert why.endswith(
        "% off, and without kernels not all of its layers attend to everything before"
    )
    long = Prompt(tuple(range(8, 48)), 8)
    assert ids_of(decoder.decode([long])) == generated(model, [long])


def test_a_prompt_as_long_as_an_odd_context_is_read_to_its_end() -> None:
    model = model_of("Llama", max_position_embeddings=200, num_hidden_layers=1)
    decoder = Decoder(model, tokenizer(), rows=1, graphs=True)
    ids = tuple(8 + n * n % 53 for n in range(197))
    decoder.decode([Prompt(ids, 2)])  # a chunk of 256 is checked now
    decoder.release()
    decoder.decode([Prompt(ids[:140], 2, continued=True)])
    assert ids_of(decoder.decode([Prompt(ids, 2)])) == generated(model, [Prompt(ids, 2)])
    assert decoder.describe()["way"] == "static"


def test_sampled_turns_do_not_depend_on_the_batch() -> None:
    decoder = Decoder(model_of("Llama"), tokenizer(), rows=2, graphs=True)
    hot = [Prompt(p.ids, 3, temperature=1.0, seed=i) for i, p in enumerate(FEW)]
    found = ids_of(decoder.decode(hot))
    assert decoder.describe()["way"] == "static"
    assert ids_of(decoder.decode(hot[::-1])) == found[::-1]
    alone = Decoder(model_of("Llama"), tokenizer(), rows=1, graphs=True)
    assert ids_of(alone.decode(hot)) == found
