"""The model behind its wrappers, and forward passes that repeat.

What decoding relies on in a model's forward pass, beside what transformers promises: a row's
logits depend on that row's tokens, mask and positions alone; keys and values are written at the
columns of the cache that the mask numbers, and a column that is masked is never read, whatever it
holds; positions come from `position_ids` and not from the length of the cache; nothing is kept in
the module from one call to the next. A model that breaks one of these gives other logits than its
own forward pass without a cache, which `checking.py` compares before anything is reported.

Nothing here changes the model. Global settings (compiled code off, a fixed choice of attention
kernels) are restored on every exit.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from heldout._live.isolation import NeedsTrainerThread, is_background_thread
from heldout.errors import InvalidInput

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


class HoldsModel:
    """Has a model, or a weak reference to one where it may outlive the model's use.

    What is prepared for the decoding of a model in training, its graphs among them, serves all
    evals. It must not be what keeps the model, or a snapshot of it, in memory after training.
    """

    def __init__(self, model: Any) -> None:
        self._held = model

    @property
    def _model(self) -> Any:
        return self._held() if isinstance(self._held, weakref.ref) else self._held


def transformers_model(model: Any) -> Any:
    """Return the transformers model inside an unwrapped one: it has the config and the modules."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def device_of(model: Any) -> Any:
    """Return the device that a model's parameters are on."""
    return next(model.parameters()).device


def explain_not_finite(model: Any) -> str | None:
    """Name a weight that is not finite, if there is one: a diverged model gives no answers."""
    return explain_not_finite_tensors(model.named_parameters())


def explain_not_finite_tensors(weights: Iterable[tuple[str, Any]]) -> str | None:
    """Name a weight that is not finite, if there is one.

    Sums are checked: they need no memory beside the weights.
    """
    import torch

    sums: dict[str, Any] = {}
    for name, weight in weights:
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


def describe_numerics(model: Any) -> dict[str, str]:
    """Name the implementation of attention and the type of the weights, for the record."""
    name = getattr(transformers_model(model).config, "_attn_implementation", None) or "unknown"
    efficient = name == "sdpa" and device_of(model).type == "cuda"
    return {
        "attention": "efficient" if efficient else str(name),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }


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


def describe_error(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says."""
    reason = (str(error).strip() or "no reason given").splitlines()[0]
    return f"{type(error).__name__}: {reason}"


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


def has_full_attention(cache: Any) -> bool:
    """Whether every layer of a DynamicCache attends to all tokens before."""
    from transformers.cache_utils import DynamicLayer

    return bool(cache.layers) and all(type(layer) is DynamicLayer for layer in cache.layers)


def forward_state(model: Any) -> tuple[object, ...]:
    """Return what a forward pass depends on beside the values of the weights.

    A captured graph, and a check that has passed, are valid only while this stays equal. The values
    are left out on purpose: training changes them in place, and graphs read them where they are.
    """
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
