"""Torch's global settings that change what training computes: by name, how each is read and set.

`isolation` restores them after an eval, `testing.assert_neutral` compares them. Settings that only
print or warn are left out. What a version of torch lacks is not in the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple


class TorchSetting(NamedTuple):
    """How to read a setting and how to set it to what was read."""

    read: Callable[[], Any]
    """Raises RuntimeError where torch refuses: one precision has an old and a new name, and is not
    told by the old one once the new one was used."""
    write: Callable[[Any], object]


_FP32_PRECISIONS = (
    ("generic", "all"),
    ("cuda", "all"),
    ("mkldnn", "all"),
    ("cuda", "matmul"),
    ("cuda", "conv"),
    ("cuda", "rnn"),
    ("mkldnn", "matmul"),
    ("mkldnn", "conv"),
    ("mkldnn", "rnn"),
)
"""Backend and operation. One that is not set reads as the one above it."""

_SWITCHES = {
    "torch.backends.cudnn": (
        "enabled",
        "deterministic",
        "benchmark",
        "benchmark_limit",
        "depthwise_kernel",
    ),
    "torch.backends.mkldnn": ("enabled", "deterministic"),
    "torch.backends.cuda.matmul": ("allow_fp16_accumulation",),
    "torch.backends.opt_einsum": ("enabled", "strategy"),
    "torch.backends.quantized": ("engine",),
    "torch.backends.miopen": ("immediate",),
}
"""Attributes by their owner."""

_PAIRS = {
    # Sums depend on it.
    "torch.get_num_threads": "torch.set_num_threads",
    "torch.get_default_dtype": "torch.set_default_dtype",
    "torch.backends.cuda.flash_sdp_enabled": "torch.backends.cuda.enable_flash_sdp",
    "torch.backends.cuda.mem_efficient_sdp_enabled": "torch.backends.cuda.enable_mem_efficient_sdp",
    "torch.backends.cuda.math_sdp_enabled": "torch.backends.cuda.enable_math_sdp",
    "torch.backends.cuda.cudnn_sdp_enabled": "torch.backends.cuda.enable_cudnn_sdp",
    "torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed": (
        "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp"
    ),
    "torch._C._get_sdp_priority_order": "torch._C._set_sdp_priority_order",
    "torch._C._get_blas_preferred_backend": "torch._C._set_blas_preferred_backend",
    "torch._C._get_linalg_preferred_backend": "torch._C._set_linalg_preferred_backend",
    "torch._C._get_nnpack_enabled": "torch._C._set_nnpack_enabled",
    "torch._C._is_multithreading_enabled": "torch._C._set_multithreading_enabled",
    "torch.backends.mha.get_fastpath_enabled": "torch.backends.mha.set_fastpath_enabled",
}
"""Functions that read a setting, with those that set it."""


def torch_settings(torch: Any) -> dict[str, TorchSetting]:
    """List the settings, in the order in which they have to be restored.

    Args:
        torch: The imported module.

    Returns:
        Each setting by its name.
    """
    settings = {
        # By the old names first: they change what the new ones read.
        "torch.get_float32_matmul_precision": TorchSetting(
            torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
        ),
        **_attributes("torch.backends.cudnn", ("allow_tf32",)),
        **_attributes("torch.backends.mkldnn", ("allow_tf32",)),
    }
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        for backend, operation in _FP32_PRECISIONS:
            settings[f"fp32_precision of {backend} {operation}"] = TorchSetting(
                partial(torch._C._get_fp32_precision_getter, backend, operation),
                partial(torch._C._set_fp32_precision_setter, backend, operation),
            )
    for owner, names in _SWITCHES.items():
        settings |= _attributes(owner, names)
    for kind in ("fp16", "bf16"):
        settings |= _reduction(torch.backends.cuda.matmul, kind)
    for read, write in _PAIRS.items():
        if (reader := _find(read)) is not None and (writer := _find(write)) is not None:
            settings[read] = TorchSetting(reader, writer)
    settings |= {
        "torch.use_deterministic_algorithms": TorchSetting(
            partial(_determinism, torch), lambda was: torch.use_deterministic_algorithms(**was)
        ),
        **_attributes("torch.utils.deterministic", ("fill_uninitialized_memory",)),
        "torch.set_anomaly_enabled": TorchSetting(
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda was: torch.set_anomaly_enabled(*was),
        ),
        "torch.set_default_device": TorchSetting(
            partial(_default_device, torch), torch.set_default_device
        ),
        # Torch does not tell it, but Python computes in the same mode.
        "torch.set_flush_denormal": TorchSetting(
            lambda: sys.float_info.min / 2 == 0.0, torch.set_flush_denormal
        ),
    }
    if torch.cuda.is_initialized():
        settings["torch.cuda.current_device"] = TorchSetting(
            torch.cuda.current_device, torch.cuda.set_device
        )
        settings["torch.cuda.current_stream"] = TorchSetting(
            torch.cuda.current_stream, torch.cuda.set_stream
        )
    return settings


def _attributes(path: str, names: tuple[str, ...]) -> dict[str, TorchSetting]:
    owner = _find(path)
    return {
        f"{path}.{name}": TorchSetting(partial(getattr, owner, name), partial(setattr, owner, name))
        for name in names
        if hasattr(owner, name)
    }


def _reduction(matmul: Any, kind: str) -> dict[str, TorchSetting]:
    """Newer versions of torch have a second switch, which setting the first alone turns on."""
    name = f"allow_{kind}_reduced_precision_reduction"

    def read() -> Any:
        switch, split_k = getattr(matmul, name), f"{name}_split_k"
        return (switch, getattr(matmul, split_k)) if hasattr(matmul, split_k) else switch

    return {
        f"torch.backends.cuda.matmul.{name}": TorchSetting(read, partial(setattr, matmul, name))
    }


def _find(path: str) -> Any:
    """Return what a dotted name stands for; None if this version of torch lacks it."""
    first, *names = path.split(".")
    found: Any = sys.modules[first]
    for name in names:
        found = getattr(found, name, None)
    return found


def _determinism(torch: Any) -> dict[str, bool]:
    return {
        "mode": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
    }


def _default_device(torch: Any) -> Any:
    """Return the device of this thread; None if it was never set, which costs torch nothing."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device
