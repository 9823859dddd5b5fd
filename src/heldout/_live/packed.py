"""Weights that are neither a parameter nor a buffer: those of quantised models.

Each package keeps them somewhere else. torch's own quantised layers hold an object of C++,
bitsandbytes the scales of its blocks beside a parameter, HQQ in a dict, kernels for MXFP4 in
objects of Triton; a parameter of torchao or quanto is a tensor made of others. A hash of parameters
and buffers alone would be the same for models that answer differently.

A module with code of its own for what is saved of it is believed: that is what it is loaded from.
Without such code, tensors in the attributes of a layer count if one of its tensors is packed. In
any other module they are caches, which must not count.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

DEPTH = 5
"""How deep attributes are searched: a tensor of Triton has its data in `storage.data`."""

_PACKED = re.compile(r"torch\.(float[48]|u?int(1|2|3|4|5|6|7|8|16|32)$|bits)")
"""Types that hold numbers of fewer bits. int64 and bool are for indices and masks."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_WRAPPERS = {"FullyShardedDataParallel", "FSDPModule", "DistributedDataParallel"}
"""To save what these hold is a collective."""


class Unreadable(ValueError):
    """Something that a model computes with has no content that can be read; it says what."""


class PackedPart(NamedTuple):
    """A tensor, or anything else as text, and its name."""

    name: str
    value: Any


def parts_of_tensor(tensor: Any, name: str) -> Iterator[PackedPart]:
    """Yield the plain tensors that a tensor is made of, and what else it knows (torchao, quanto).

    Raises:
        Unreadable: It holds something without content.
    """
    if not hasattr(tensor, "__tensor_flatten__"):
        yield PackedPart(name, tensor)
        return
    inner, rest = tensor.__tensor_flatten__()
    for key in inner:
        yield from parts_of_tensor(getattr(tensor, key), f"{name}.{key}")
    yield PackedPart(name, _as_text(rest, name))


def parts_of_module(module: Any, name: str, known: set[int]) -> Iterator[PackedPart]:
    """Yield what a module computes with besides parameters and buffers, but not of its submodules.

    Args:
        module: A module of torch.
        name: Its name.
        known: The ids of the parameters and buffers that are hashed anyway.

    Raises:
        Unreadable: It holds weights that cannot be read.
    """
    if (saved := _saved_state(module)) is not None:
        yield from _walk(saved, name, known, depth=DEPTH)
    elif not any(child._parameters or child._buffers for child in module.children()):
        found = list(_walk(_attributes(module), name, known, depth=DEPTH, attributes=True))
        own = [*module._parameters.values(), *(part.value for part in found)]
        if any(_is_packed(value) for value in own):
            yield from found


def _is_packed(value: Any) -> bool:
    return getattr(value, "ndim", 0) > 1 and _PACKED.match(str(value.dtype)) is not None


def _saved_state(module: Any) -> Any:
    """Return what a module's own code saves of it; None if it has no such code."""
    plain, kind = sys.modules["torch"].nn.Module, type(module)
    if _WRAPPERS & {base.__name__ for base in kind.__mro__}:
        return None
    own = (kind._save_to_state_dict, kind.get_extra_state)
    try:
        if own != (plain._save_to_state_dict, plain.get_extra_state):
            state: dict[str, Any] = {}
            module._save_to_state_dict(state, "", True)
            return state
        # This saves submodules, too, so it is only for what may be quantised.
        if kind.state_dict is not plain.state_dict or _foreign_hooks(module):
            inside = {base.__name__ for part in module.modules() for base in type(part).__mro__}
            tensors = [*module.parameters(), *module.buffers()]
            if not _WRAPPERS & inside and any(map(_is_packed, tensors)):
                return module.state_dict(keep_vars=True)
    except Exception as problem:
        what = f"{type(problem).__name__}: {problem}"
        raise Unreadable(f"{kind.__name__} cannot say what it holds: {what:.200}") from problem
    return None


def _foreign_hooks(module: Any) -> list[Any]:
    """Return the functions that add to what is saved of a module, without those of torch."""
    hooks = list(getattr(module, "_state_dict_hooks", {}).values())
    functions = [hook.func if isinstance(hook, partial) else hook for hook in hooks]
    return [f for f in functions if not str(getattr(f, "__module__", "")).startswith("torch.")]


def _attributes(module: Any) -> dict[str, Any]:
    """Return the attributes of a module, and its buffers that are not saved."""
    own = vars(sys.modules["torch"].nn.Module())
    buffers = {name: module._buffers[name] for name in module._non_persistent_buffers_set}
    return {**{k: v for k, v in vars(module).items() if k not in own}, **buffers}


def _walk(
    value: Any, name: str, known: set[int], *, depth: int, attributes: bool = False
) -> Iterator[PackedPart]:
    """Yield the tensors and values in a state, or only the tensors in attributes."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        if id(value) not in known:
            yield from parts_of_tensor(value, name)
    elif isinstance(value, torch.ScriptObject):
        yield from _walk(_open(value, name), name, known, depth=depth)
    elif (inner := _inside(value, attributes=attributes)) is not None:
        for key, part in inner.items():
            path = f"{name}.{key}" if name else str(key)
            if depth:
                yield from _walk(part, path, known, depth=depth - 1, attributes=attributes)
    elif not attributes:
        yield PackedPart(name, _as_text(value, name))


def _inside(value: Any, *, attributes: bool) -> dict[Any, Any] | None:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    code = (type, FunctionType, MethodType, ModuleType, sys.modules["torch"].nn.Module)
    if not attributes or isinstance(value, code):
        return None
    return getattr(value, "__dict__", None)


def _open(value: Any, name: str) -> Any:
    try:
        return value.__getstate__()
    except Exception as problem:
        raise Unreadable(f"{name} is an object of C++ ({value._type()})") from problem


def _as_text(value: Any, name: str) -> str:
    if callable(getattr(value, "getvalue", None)):  # a file in memory
        value = value.getvalue()
    text = value.hex() if isinstance(value, bytes | bytearray) else repr(value)
    if _ADDRESS.search(text):  # it would be another one in every process
        raise Unreadable(f"{name} is a {type(value).__name__}, whose content cannot be read")
    return text
