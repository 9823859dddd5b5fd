"""Which models are captured, said from their configuration alone."""

from __future__ import annotations

import pytest
import torch

from heldout._live.decoding.captured.capturable import why_not_capturable
from tests._live.decoding.models import model_of

pytestmark = pytest.mark.usefixtures("one_thread")


def test_what_cannot_be_captured_is_told_apart() -> None:
    model = model_of("Llama")
    assert why_not_capturable(model) is None
    hook = model.model.register_forward_hook(lambda *_: None)
    assert why_not_capturable(model) == "a replayed graph would not call the forward hook on model"
    hook.remove()
    with torch.autocast("cpu", torch.bfloat16):
        assert "autocast" in str(why_not_capturable(model))
    model.set_attn_implementation("eager")
    assert why_not_capturable(model) == "its attention is eager, not sdpa"
    assert why_not_capturable(model, kernels=True) is None
    why = "StableLmForCausalLM takes no other implementation of attention"
    assert why_not_capturable(model_of("StableLm")) == why
    assert why_not_capturable(model_of("Llama").train()) == "it is in training mode"
    assert "not a model of transformers" in str(why_not_capturable(torch.nn.Linear(2, 2)))
