"""Which models' steps can be captured, and what must not change once they are."""

from __future__ import annotations

from typing import Any

from heldout.decoding.eager import attends_to_all
from heldout.decoding.model import transformers_model

# Registered by `enable_input_require_grads`; without gradients it has no effect.
HARMLESS_HOOKS = {"make_inputs_require_grads"}


class Unsuitable(Exception):
    """This model, or this machine, has to be decoded the plain way."""


def unsuitable(model: Any) -> str | None:
    """Why the model's steps cannot be captured; None if nothing speaks against it."""
    import torch
    from transformers import DynamicCache, PreTrainedModel

    base = transformers_model(model)
    if not isinstance(base, PreTrainedModel):
        return f"{type(base).__name__} is not a model of transformers"
    config = base.config
    if config.is_encoder_decoder or config.get_text_config() is not config:
        return f"{type(base).__name__} is more than a decoder of text"
    if config._attn_implementation != "sdpa" or not base._supports_attention_backend:
        return f"its attention is {config._attn_implementation}, not sdpa"
    if not attends_to_all(DynamicCache(config=config)):
        return "not all of its layers attend to everything before"
    if base.training:
        return "it is in training mode"
    weights = list(model.parameters())
    if len({weight.device for weight in weights}) > 1:
        return "it is spread over several devices"
    if any(hasattr(weight, "device_mesh") for weight in weights):
        return "its weights are sharded"
    if torch.is_autocast_enabled(weights[0].device.type):
        return "autocast is on around it, and keeps copies of weights"
    for name, module in model.named_modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        if any(getattr(hook, "__name__", "") not in HARMLESS_HOOKS for hook in hooks):
            return f"a replayed graph would not call the forward hook on {name or 'the model'}"
    return None


def state_of(model: Any) -> tuple[object, ...]:
    """What must be as it was when the graphs were captured."""
    import torch

    places = [
        (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        for tensors in (model.parameters(), model.buffers())
        for tensor in tensors
    ]
    adapters = [
        (module.disable_adapters, *module.active_adapters, *module.merged_adapters, str(scaling))
        for module in model.modules()
        if (scaling := getattr(module, "scaling", None)) is not None
        and hasattr(module, "merged_adapters")
    ]
    switches = (
        # Its older spelling raises where somebody has used this one.
        getattr(torch.backends.cuda.matmul, "fp32_precision", None),
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        torch.are_deterministic_algorithms_enabled(),
        transformers_model(model).config._attn_implementation,
    )
    return id(model), tuple(places), tuple(adapters), switches
