"""Whether the decoding steps of a model can be captured, and computed by the kernels of Triton.

Captured steps rely on more than `decoding/model.py` has: the forward pass must take another
implementation of attention, all of its work must be on one GPU and queued without waiting for it,
and no Python code of others (hooks, autocast) may be part of it. A replayed graph would leave that
out without an error. What cannot be seen from here, a check of the logits or the capture finds.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

from heldout._live.decoding.model import has_full_attention, transformers_model

_HARMLESS_HOOKS = {"make_inputs_require_grads"}
"""Registered by `enable_input_require_grads`; without gradients it has no effect."""


class CaptureError(Exception):
    """The steps of this model cannot be captured."""


def why_no_triton(device: Any) -> str | None:
    """Say why Triton kernels cannot run on a device; None if they can."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return f"Triton does not run on {device.type}"
    return None if find_spec("triton") else "triton is not installed"


def why_not_capturable(model: Any, *, kernels: bool = False) -> str | None:
    """Say why the decoding steps of an unwrapped model cannot be captured; None if they can.

    Args:
        model: The model.
        kernels: Whether there are kernels of Triton: for windows, and in place of any attention.
    """
    import torch
    from transformers import DynamicCache, PreTrainedModel

    base = transformers_model(model)
    if not isinstance(base, PreTrainedModel):
        return f"{type(base).__name__} is not a model of transformers"
    config = base.config
    if config.is_encoder_decoder or config.get_text_config() is not config:
        return f"{type(base).__name__} is more than a decoder of text"
    if not kernels and config._attn_implementation != "sdpa":
        return f"its attention is {config._attn_implementation}, not sdpa"
    if not base._supports_attention_backend:
        return f"{type(base).__name__} takes no other implementation of attention"
    cache = DynamicCache(config=config)
    windows = kernels and getattr(config, "sliding_window", None) and has_windows(cache)
    if not (has_full_attention(cache) or windows):
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
        if any(getattr(hook, "__name__", "") not in _HARMLESS_HOOKS for hook in hooks):
            return f"a replayed graph would not call the forward hook on {name or 'the model'}"
    return None


def has_windows(cache: Any) -> bool:
    """Whether every layer of a DynamicCache attends to all tokens before, or to the last ones."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    kinds = {type(layer) for layer in cache.layers}
    return bool(kinds) and kinds <= {DynamicLayer, DynamicSlidingWindowLayer}


def windowed_layers(config: Any) -> set[int]:
    """Return the numbers of the layers that attend to the last tokens alone."""
    from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer

    layers = enumerate(DynamicCache(config=config).layers)
    return {number for number, layer in layers if type(layer) is DynamicSlidingWindowLayer}
