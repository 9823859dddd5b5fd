"""What packages put around modules and into them: torch.compile, FSDP, DeepSpeed.

Torch and DeepSpeed are not imported to find out: what they have added is known by its name.
"""

from __future__ import annotations

from typing import Any

_SHARDING_CODE = ("torch.distributed.fsdp.", "torch.distributed._composable.", "deepspeed.")


def is_fsdp1(module: Any) -> bool:
    """Whether a module is the wrapper `FullyShardedDataParallel`."""
    return type(module).__name__ == "FullyShardedDataParallel"


def is_fsdp2(module: Any) -> bool:
    """Whether `fully_shard` was applied to a module."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def plain_class(module: Any) -> type:
    """Return the class of a module without what `fully_shard` has added to it."""
    kind = type(module)
    # (FSDPLinear, FSDPModule, Linear, …)
    return kind.__mro__[2] if is_fsdp2(module) else kind


def wrapped_module(module: Any) -> Any:
    """Return what a wrapper wraps, such as FSDP1's; None for a module that is no wrapper."""
    for name in ("_orig_mod", "_fsdp_wrapped_module"):
        if name in module._modules:
            return module._modules[name]
    return module.module if type(module).__name__ == "DeepSpeedEngine" else None


def is_sharding_hook(name: str) -> bool:
    """Whether a forward hook, by module and name, gathers weights, which a whole copy has."""
    return name.startswith(_SHARDING_CODE)


def is_sharding_state(key: str) -> bool:
    """Whether an attribute of a module belongs to what shards it."""
    return key.startswith(("__composable_api", "_is_fsdp_", "_fsdp_", "ds_", "_ds_"))
