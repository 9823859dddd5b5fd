"""Fixed shapes, as graphs are captured of, run step by step: the bookkeeping is the same."""

from __future__ import annotations

import gc
import logging
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from heldout._live.decoding import Decoder, Prompt
from heldout._live.decoding.captured import fusing, graphs
from heldout._live.decoding.captured.placing import MAX_BATCHES
from heldout._live.isolation import NeedsTrainerThread, background_thread
from tests._live.decoding.models import PROMPTS, generated, ids_of, model_of, tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

FULL = {
    "Llama": {},
    "Qwen3": {"head_dim": 8},
    "Gemma": {"head_dim": 8},
    "GPT2": {},
    "Cohere": {},
    "Phi3": {},
    "Olmo2": {},
    "Granite": {},
}
SLIDING = {"Mistral": {"sliding_window": 4}, "Qwen2": {"use_sliding_window": True,
    "sliding_window": 4, "max_window_layers": 0}}  # fmt: skip
MIXED = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 8}
RECURRENT: dict[str, Any] = {
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
    "FalconH1": {"head_dim": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_ssm": 64,
        "mamba_d_state": 8},
    "Qwen3Next": {**MIXED, "linear_num_value_heads": 2, "linear_num_key_heads": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16},
}  # fmt: skip


@pytest.mark.parametrize("family", FULL)
def test_every_family_says_what_it_says_by_the_plain_way(family: str) -> None:
    model = model_of(family, **FULL[family])
    decoder = Decoder(model, tokenizer(), rows=4, graphs=True)
    assert ids_of(decoder.decode(PROMPTS)) == generated(model, PROMPTS)
    assert decoder.describe()["way"] == "static"
    plain = Decoder(model, tokenizer(), rows=4, graphs=False)
    assert plain.decode(PROMPTS) == decoder.decode(PROMPTS)


@pytest.mark.parametrize("family", SLIDING)
def test_a_sliding_window_takes_the_plain_way_and_is_right_there(family: str) -> None:
    model = model_of(family, **SLIDING[family])
    decoder = Decoder(model, tokenizer(), rows=4, graphs=True)
    # These prompts begin alike: padding behind the common beginning would fill the window.
    assert ids_of(decoder.decode(PROMPTS)) == generated(model, PROMPTS)
    assert decoder.describe()["why_eager"] == "not all of its layers attend to everything before"


@pytest.mark.parametrize("family", RECURRENT)
def test_a_recurrent_model_goes_on_with_the_rows_that_are_left(family: str) -> None:
    model = model_of(family, **RECURRENT[family])
    decoder = Decoder(model, tokenizer(), rows=4, graphs=True)
    assert ids_of(decoder.decode(PROMPTS)) == generated(model, PROMPTS)
    assert decoder.describe()["way"] == "eager"


def test_a_table_of_positions_is_not_left_by_rows_that_go_on_unheeded() -> None:
    model = model_of("GPT2", n_positions=40)
    asked = [Prompt((9,), max_new=39), Prompt(tuple(range(3, 40)), max_new=3)]
    model.generation_config.eos_token_id = None
    words = tokenizer()
    words.eos_token = None
    decoder = Decoder(model, words, graphs=True)
    assert ids_of(decoder.decode(asked)) == generated(model, asked)


# --- Shapes -------------------------------------------------------------------------------------


def test_the_shape_is_on_record() -> None:
    decoder = Decoder(model_of("Llama"), tokenizer(), rows=6, graphs=True)
    decoder.decode([replace(p, max_new=100) for p in PROMPTS])
    found = decoder.describe()
    assert found.pop("prepared_seconds") > 0
    assert found == {
        "way": "static", "rows": 6, "width": 64, "length": 128, "attention": "sdpa",
        "dtype": "float32", "splits": 0,
    }  # fmt: skip


def test_a_shape_is_prepared_once_and_weights_may_change_under_it() -> None:
    model = model_of("Llama")
    decoder = Decoder(model, tokenizer(), rows=4, graphs=True)
    before = decoder.decode(PROMPTS)
    with torch.no_grad():
        for weight in model.parameters():
            weight.neg_()
            weight[..., 0] += 1
    after = decoder.decode(PROMPTS)
    assert decoder.describe()["prepared_seconds"] == 0
    assert ids_of(after) == generated(model, PROMPTS) != ids_of(before)


def test_weights_that_moved_are_noticed() -> None:
    model = model_of("Llama")
    decoder = Decoder(model, tokenizer(), rows=4, graphs=True)
    decoder.decode(PROMPTS)
    weight = model.model.layers[1].mlp.up_proj.weight
    weight.data = weight.data * -1
    assert ids_of(decoder.decode(PROMPTS)) == generated(model, PROMPTS)
    assert decoder.describe()["prepared_seconds"] > 0


def test_only_the_latest_shapes_are_kept_and_released_without_a_collection() -> None:
    model = model_of("Llama", max_position_embeddings=4096)
    decoder = Decoder(model, tokenizer(), rows=1, graphs=True)
    made: list[weakref.ref[Any]] = []
    usual = graphs.StaticBatch.capture

    def capture(self: Any, *args: Any) -> Any:
        made.append(weakref.ref(self))
        return usual(self, *args)

    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(graphs.StaticBatch, "capture", capture)
            for width in (1, 2, 3, 4, 5, 1):
                decoder.decode([Prompt((9,) * 64 * width, max_new=2)])
        assert [shape() is not None for shape in made] == [False] * 2 + [True] * MAX_BATCHES
        decoder.release()
        assert [shape() for shape in made] == [None] * 6
    finally:
        gc.enable()


def test_what_a_diverged_model_left_does_not_spoil_the_next_eval() -> None:
    model = model_of("Llama")
    decoder = Decoder(model, tokenizer(), rows=4, graphs=True)
    expected = decoder.decode(PROMPTS)
    weight = model.model.layers[0].self_attn.v_proj.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
        decoder.decode([replace(prompt, max_new=60) for prompt in PROMPTS])
        weight.copy_(kept)
    assert decoder.decode(PROMPTS) == expected


# --- What does not fit --------------------------------------------------------------------------


def test_a_model_that_is_off_with_fixed_shapes_falls_back_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usual = fusing._attention
    monkeypatch.setattr(fusing, "_attention", lambda *a, **k: (usual(*a, **k)[0] * 2, None))
    model = model_of("Llama")
    decoder = Decoder(model, tokenizer(), rows=4, graphs=True)
    with caplog.at_level(logging.WARNING):
        assert ids_of(decoder.decode(PROMPTS)) == generated(model, PROMPTS)
        assert ids_of(decoder.decode(PROMPTS)) == generated(model, PROMPTS)
    [line] = caplog.records
    assert "steps are not captured" in line.getMessage()
    assert "% off" in line.getMessage()
    assert decoder.describe()["way"] == "eager"
    assert "% off" in decoder.describe()["why_eager"]


def test_a_failing_preparation_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("attention with loggers\nand more")

    monkeypatch.setattr(fusing, "_attention", fails)
    model = model_of("Llama")
    decoder = Decoder(model, tokenizer(), rows=4, graphs=True)
    assert ids_of(decoder.decode(PROMPTS)) == generated(model, PROMPTS)
    assert decoder.describe()["why_eager"] == "NotImplementedError: attention with loggers"
    assert model.config._attn_implementation == "sdpa"


# --- Fewer kernels ------------------------------------------------------------------------------


def test_norms_and_rotations_are_replaced_where_they_are_the_same() -> None:
    import transformers.models.cohere.modeling_cohere as cohere
    import transformers.models.qwen3.modeling_qwen3 as qwen3

    def fused(model: Any) -> list[str]:
        return [type(m).__name__ for m in model.modules() if "forward" in vars(m)]

    model = model_of("Qwen3", head_dim=8)
    usual = qwen3.apply_rotary_pos_emb
    with torch.no_grad(), fusing.fused_kernels(model):
        assert fused(model) == ["Qwen3RMSNorm"] * 9
        assert qwen3.apply_rotary_pos_emb is not usual
    assert fused(model) == []
    assert qwen3.apply_rotary_pos_emb is usual
    gemma = model_of("Gemma", head_dim=8)  # adds one to its weights
    with torch.no_grad(), fusing.fused_kernels(gemma):
        assert fused(gemma) == []
    usual = cohere.apply_rotary_pos_emb  # rotates neighbours, not halves
    with torch.no_grad(), fusing.fused_kernels(model_of("Cohere")):
        assert cohere.apply_rotary_pos_emb is usual


def test_beside_a_training_nothing_is_patched_or_switched_for_other_threads() -> None:
    import transformers.models.llama.modeling_llama as home

    model = model_of("Llama")
    usual = home.apply_rotary_pos_emb
    decoder = Decoder(model, tokenizer(), rows=4, graphs=True)
    with background_thread(), pytest.raises(NeedsTrainerThread, match="not captured yet"):
        decoder.decode(PROMPTS)
    decoder.decode(PROMPTS)
    # What is not a graph needs its patches again at every step.
    with background_thread(), pytest.raises(NeedsTrainerThread, match="not captured yet"):
        decoder.decode(PROMPTS)
    assert home.apply_rotary_pos_emb is usual
    plain = Decoder(model, tokenizer(), rows=4)
    with background_thread():
        assert ids_of(plain.decode(PROMPTS)) == generated(model, PROMPTS)


def test_compiled_code_is_not_switched_off_beside_a_training() -> None:
    model = model_of("Llama")
    model.compile(backend="eager")
    with background_thread(), pytest.raises(NeedsTrainerThread, match="compiled"):
        Decoder(model, tokenizer(), rows=4).decode(PROMPTS)
    assert ids_of(Decoder(model, tokenizer(), rows=4).decode(PROMPTS))
