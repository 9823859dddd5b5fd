"""The model behind its wrappers, forward passes that repeat, and whether steps can be captured.

Nothing here changes the model. Global settings (compiled code off, a fixed choice of attention
kernels) are restored on every exit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from heldout.errors import InvalidInput
from heldout.isolation import NeedsTrainerThread, is_background_thread

_HARMLESS_HOOKS = {"make_inputs_require_grads"}
"""Registered by `enable_input_require_grads`; without gradients it has no effect."""

_OUT_OF_MEMORY = ("can't allocate memory", "CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def unwrap(model: Any) -> Any:
    """Remove the wrappers that a forward pass must not go through.

    DistributedDataParallel would synchronise with other processes, `torch.compile` would compile
    anew for every shape. A PEFT model stays as it is, and so do accelerate's patches.

    Args:
        model: A model as a trainer holds it.

    Returns:
        The module to call for a forward pass.

    Raises:
        InvalidInput: The model uses prompt learning, which decoding with a cache cannot do.
    """
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if inner is None:
            break
        model = inner
    peft = getattr(model, "active_peft_config", None)
    if peft is not None and peft.is_prompt_learning:
        raise InvalidInput(
            f"{type(peft).__name__} puts virtual tokens before every forward pass, which decoding "
            "with a cache cannot do; LoRA and other adapters inside the layers work"
        )
    return model


def transformers_model(model: Any) -> Any:
    """Return the transformers model inside an unwrapped one: it has the config and the modules."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def device_of(model: Any) -> Any:
    """Return the device that a model's parameters are on."""
    return next(model.parameters()).device


def explain_not_finite(model: Any) -> str | None:
    """Name a weight that is not finite, if there is one: what a diverged model says is no answer.

    Sums are checked: they need no memory beside the weights.
    """
    import torch

    sums: dict[str, Any] = {}
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and weight.element_size() > 1 and not weight.is_meta:
            wide = torch.promote_types(weight.dtype, torch.float32)  # half precision may overflow
            sums[name] = weight.detach().sum(dtype=wide)
    if not sums:
        return None
    device = next(iter(sums.values())).device
    finite = torch.stack([total.double().to(device) for total in sums.values()]).isfinite().tolist()
    bad = [name for name, is_finite in zip(sums, finite, strict=True) if not is_finite]
    if not bad:
        return None
    others = f" (and others: {len(bad)} of {len(sums)} weights)" if len(bad) > 1 else ""
    return f"the model has diverged: {bad[0]} is not finite{others}"


def describe_attention(model: Any) -> str:
    """Name the attention implementation for the record."""
    name = getattr(transformers_model(model).config, "_attn_implementation", None) or "unknown"
    return "efficient" if name == "sdpa" and device_of(model).type == "cuda" else str(name)


@contextmanager
def deterministic_inference(model: Any) -> Iterator[None]:
    """Run forward passes without gradients and with the same kernels for the same shapes.

    In the background of a training run only captured graphs are replayed on a GPU, and their
    kernels are fixed already: the settings changed here are global to all threads.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with ExitStack() as stack:
        # Not inference_mode: tensors that modules keep from such a pass would break training.
        stack.enter_context(torch.no_grad())
        if any(module._compiled_call_impl is not None for module in model.modules()):
            if is_background_thread():
                raise NeedsTrainerThread("compiled code is switched off for all threads")
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if (device := device_of(model)).type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            if not is_background_thread():
                # Left to choose, CUDA takes kernels whose sums depend on timing: 3-6% of greedy
                # tokens differed between two runs of the same batch.
                stack.enter_context(sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]))
        yield


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, is about memory.

    A capture that runs out of memory raises a second, unspecific error when it ends.
    """
    import torch

    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


# --- Capturing ----------------------------------------------------------------------------------


class CaptureError(Exception):
    """The steps of this model cannot be captured; it is decoded eagerly."""


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


def has_full_attention(cache: Any) -> bool:
    """Whether every layer of a DynamicCache attends to all tokens before."""
    from transformers.cache_utils import DynamicLayer

    return bool(cache.layers) and all(type(layer) is DynamicLayer for layer in cache.layers)


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


def capture_state(model: Any) -> tuple[object, ...]:
    """Return what must be equal to when the graphs were captured for them to be valid."""
    import torch

    addresses = [
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
    settings = (
        # The older name of this setting raises once the newer one has been used.
        getattr(torch.backends.cuda.matmul, "fp32_precision", None),
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        torch.are_deterministic_algorithms_enabled(),
        transformers_model(model).config._attn_implementation,
    )
    return id(model), tuple(addresses), tuple(adapters), settings
