"""What of a model is called for a forward pass, and how it is called so that results repeat.

Nothing here changes the model. What is switched (compiled code off, one attention kernel instead
of whichever is fastest today) is switched back on every way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from heldout.errors import InvalidInput
from heldout.isolation import NotBeside, is_beside_training


def unwrap(model: Any) -> Any:
    """The module to call for a forward pass, adapters active and accelerate's patches in place.

    DistributedDataParallel is taken off, since its forward pass talks to the other processes, and
    so is `torch.compile`, since it would compile anew for every shape. A PEFT model stays as it
    is.
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
    """The transformers model inside what `unwrap` gives: where its config and its modules are."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def steady(model: Any) -> Iterator[None]:
    """Forward passes without gradients and with the same kernels for the same shapes.

    Beside a training only graphs are replayed on a GPU, and their kernels were chosen before: what
    is switched here is switched for all threads.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with ExitStack() as stack:
        # Not inference_mode: what modules keep of a pass in it would break training later.
        stack.enter_context(torch.no_grad())
        if any(module._compiled_call_impl is not None for module in model.modules()):
            if is_beside_training():
                raise NotBeside("compiled code is switched off for all threads")
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if (device := device_of(model)).type == "cuda":
            stack.enter_context(torch.cuda.device(device))
            if not is_beside_training():
                # Left to choose, CUDA takes kernels whose sums depend on timing: 3-6% of greedy
                # tokens differed between two runs of the same thing.
                stack.enter_context(sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]))
        yield


def device_of(model: Any) -> Any:
    return next(model.parameters()).device


def attention_of(model: Any) -> str:
    """In words, for the record."""
    name = getattr(transformers_model(model).config, "_attn_implementation", None) or "unknown"
    return "efficient" if name == "sdpa" and device_of(model).type == "cuda" else str(name)


def out_of_memory(problem: BaseException | None) -> bool:
    """Also if it was only the first of several: a capture that fails raises again at its end."""
    import torch

    while problem is not None:
        if isinstance(problem, torch.OutOfMemoryError | MemoryError):
            return True
        said = str(problem) if isinstance(problem, RuntimeError) else ""
        if any(sign in said for sign in _SIGNS):
            return True
        problem = problem.__cause__ or problem.__context__
    return False


_SIGNS = ("can't allocate memory", "CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
