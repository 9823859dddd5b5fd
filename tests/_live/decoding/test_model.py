"""Models as they are in the middle of their training: wrapped, adapted, patched, checkpointed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from heldout import Sample, Sampling
from heldout._live.decoding import Decoder, unwrap
from heldout._live.decoding.model import explain_not_finite
from heldout.errors import InvalidInput
from heldout.training import PeriodicEval, live_model
from tests._live.decoding.models import PROMPTS, generated, ids_of, model_of, tokenizer
from tests.tiny_model import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

BOTH = pytest.mark.parametrize("graphs", [False, True], ids=["eager", "fixed"])


def decoded(
    model: Any, graphs: bool, rows: int = 4
) -> tuple[list[tuple[int, ...]], dict[str, Any]]:
    decoder = Decoder(model, tokenizer(), rows=rows, graphs=graphs)
    return ids_of(decoder.decode(PROMPTS)), decoder.describe()


@BOTH
def test_dropout_is_off_in_eval_mode(graphs: bool) -> None:
    model = model_of("Llama", attention_dropout=0.5)
    found, _ = decoded(model, graphs)
    assert found == decoded(model, graphs)[0] == generated(model, PROMPTS)


@BOTH
def test_the_cache_is_on_whatever_the_config_says(graphs: bool) -> None:
    model = model_of("Llama")
    expected = generated(model, PROMPTS)
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    sizes: list[int] = []
    usual = model.model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        sizes.append(kwargs["input_ids"].shape[1])
        return usual(*args, **kwargs)

    model.model.forward = forward
    assert decoded(model, graphs)[0] == expected
    assert sizes.count(1) > len(sizes) / 2
    assert model.config.use_cache is False


@BOTH
def test_training_goes_on_afterwards(graphs: bool) -> None:
    """Whatever a module made during decoding can take part in a backward pass."""
    model = model_of("Qwen3", head_dim=8)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()
    norm, kept = model.model.norm, list[Any]()
    usual = norm.forward

    def forward(hidden: Any) -> Any:
        if not kept:
            kept.append(torch.ones_like(hidden[:1, :1]))
        return usual(hidden) * kept[0]

    norm.forward = forward
    _, way = decoded(model, graphs)
    assert way["way"] == ("static" if graphs else "eager")
    model.train()
    ids = torch.tensor([[9, 10, 11, 12]])
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert not any(weight.is_inference() for weight in [*model.parameters(), *model.buffers()])


# --- Diverged ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_weight_that_is_not_finite_is_named(value: str) -> None:
    model = model_of("Llama")
    assert explain_not_finite(model) is None
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 5] = float(value)
    why = "the model has diverged: model.layers.1.mlp.up_proj.weight is not finite"
    assert explain_not_finite(model) == why
    with torch.no_grad():
        model.lm_head.weight.fill_(float(value))
    assert explain_not_finite(model) == f"{why} (and others: 2 of 21 weights)"


def test_large_weights_of_any_type_are_finite() -> None:
    model = torch.nn.Linear(64, 64).half()
    with torch.no_grad():
        model.weight.fill_(60_000)
    model.register_parameter(
        "codes", torch.nn.Parameter(torch.zeros(4).byte(), requires_grad=False)
    )
    assert explain_not_finite(model) is None
    assert explain_not_finite(torch.nn.Identity()) is None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_eval_of_a_diverged_model_is_a_skip_and_no_reward(
    temperature: float, tmp_path: Path
) -> None:
    model, words = tiny_model()
    build = live_model(
        words,
        lambda trajectory, sample: 1.0,
        max_new=2,
        sampling=Sampling(temperature=temperature, seed=0),
    )
    evals = PeriodicEval(
        [Sample("a", {"question": "w1"})], build, every_steps=1, run_dir=tmp_path / "run"
    )
    point = evals.maybe_run(1, model)
    assert point is not None
    assert point.reward == 1.0
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    point = evals.maybe_run(2, model)
    assert point is not None
    assert "the model has diverged: " in str(point.skipped)


# --- Wrapped ------------------------------------------------------------------------------------


def lora(model: Any, seed: int = 0) -> Any:
    from peft import LoraConfig, get_peft_model

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapted = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
        with torch.no_grad():
            for name, weight in adapted.named_parameters():
                if "lora_B" in name:
                    weight.normal_()
    return adapted.eval()


@BOTH
def test_adapters_are_active(graphs: bool) -> None:
    model = model_of("Llama")
    before = generated(model, PROMPTS)
    adapted = lora(model)
    expected = generated(adapted.base_model, PROMPTS)
    found, way = decoded(adapted, graphs)
    assert found == expected != before
    assert way["way"] == ("static" if graphs else "eager")
    with adapted.disable_adapter():
        assert decoded(adapted, graphs)[0] == before


def test_switching_adapters_off_is_noticed() -> None:
    adapted = lora(model_of("Llama"))
    decoder = Decoder(adapted, tokenizer(), rows=4, graphs=True)
    with_adapters = decoder.decode(PROMPTS)
    with adapted.disable_adapter():
        without = decoder.decode(PROMPTS)
        assert decoder.describe()["prepared_seconds"] > 0
    assert with_adapters != without
    assert decoder.decode(PROMPTS) == with_adapters


def test_virtual_tokens_are_refused() -> None:
    import peft

    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    adapted = peft.get_peft_model(model_of("Llama"), config)
    with pytest.raises(InvalidInput, match="PromptTuningConfig puts virtual tokens before"):
        Decoder(adapted, tokenizer()).decode(PROMPTS)


@BOTH
def test_a_distributed_model_is_taken_out_of_its_wrapper(graphs: bool, tmp_path: Any) -> None:
    model = model_of("Llama")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        assert unwrap(wrapped) is model
        assert decoded(wrapped, graphs)[0] == generated(model, PROMPTS)
    finally:
        torch.distributed.destroy_process_group()


@BOTH
def test_a_compiled_model_is_not_compiled_for_every_shape(graphs: bool) -> None:
    model = model_of("Llama")
    expected = generated(model, PROMPTS)
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    assert unwrap(torch.compile(model, backend=backend)) is model
    assert decoded(torch.compile(model, backend=backend), graphs)[0] == expected
    model.compile(backend=backend)  # in place: nothing to unwrap
    assert decoded(model, graphs)[0] == expected
    assert compiled == []


@BOTH
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_patches_of_accelerate_stay(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import accelerate

    monkeypatch.setitem(os.environ, "ACCELERATE_USE_CPU", "true")
    # One state a process: a trainer of another test may have made it, in another precision.
    accelerate.state.AcceleratorState._reset_state(True)
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    try:
        model = accelerator.prepare(model_of("Llama"))
        assert "forward" in vars(unwrap(model))
        seen: list[Any] = []
        layer = unwrap(model).model.layers[0].self_attn.q_proj
        usual = layer.forward
        layer.forward = lambda x: (seen.append(out := usual(x)), out)[1]
        found, way = decoded(model, graphs)
        assert {out.dtype for out in seen} == {torch.bfloat16}
        assert way["way"] == ("static" if graphs else "eager")
        if not graphs:
            assert len(found) == len(PROMPTS)
    finally:
        accelerate.state.AcceleratorState._reset_state(True)


# --- Nothing is left behind ---------------------------------------------------------------------


def snapshot(model: Any) -> dict[str, Any]:
    import transformers.models.llama.modeling_llama as home

    return {
        "attention": model.config._attn_implementation,
        "config": model.config.to_dict(),
        "instances": [sorted(vars(module)) for module in model.modules()],
        "rotation": home.apply_rotary_pos_emb,
        "kernels": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
        ),
        "gradients": torch.is_grad_enabled(),
        "training": [module.training for module in model.modules()],
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    weights = zip(a.pop("weights").values(), b.pop("weights").values(), strict=True)
    return all(torch.equal(x, y) for x, y in weights) and a == b


@BOTH
def test_a_model_is_as_it_was(graphs: bool) -> None:
    model = model_of("Llama")
    before = snapshot(model)
    decoder = Decoder(model, tokenizer(), graphs=graphs)
    decoder.decode(PROMPTS)
    assert same(before, snapshot(model))


@BOTH
def test_a_model_is_as_it_was_after_a_failure_too(graphs: bool) -> None:
    for at in (1, 2, 3, 6):
        model, calls = model_of("Llama"), []
        usual = model.model.norm.forward.__func__

        class Breaks(type(model.model.norm)):
            def forward(self, hidden: Any) -> Any:
                calls.append(1)  # noqa: B023
                if len(calls) >= at:  # noqa: B023
                    raise ValueError("broken")
                return usual(self, hidden)  # noqa: B023

        model.model.norm.__class__ = Breaks
        before = snapshot(model)
        with pytest.raises(ValueError, match="broken"):
            Decoder(model, tokenizer(), graphs=graphs).decode(PROMPTS)
        assert same(before, snapshot(model))
