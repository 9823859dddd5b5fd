"""Which weights were these? A fingerprint of a model's content that is cheap where they lie.

    fingerprint(model)      # '3f0c…', sixteen characters; None where there is nothing to read

Weights stay on their device. Their bits are read as whole numbers, row by row; each number is
multiplied by an odd constant of its place, and the products of a row are added up, modulo 2**64.
That is exact, so it does not depend on the device or on the order of adding. Names, shapes, types
and these sums (8 bytes for 64 KiB of weights) are then hashed. A change of a single word cannot
go unseen (an odd constant times a difference is never 0), nor can two words that changed places,
since the constants differ in their low halves.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput
from heldout.isolation import modules_of

log = logging.getLogger("heldout")

ROW = 2**14
"""Words of 4 bytes that share a sum."""

WIDTH = ROW - 1
"""Numbers in a row of `totals`: odd, so that signs that all change do not cancel out."""

PIECE = 2**24
"""Bytes that are worked on at a time. It takes twice as much memory, for the products."""

_UNREADABLE = (RuntimeError, NotImplementedError, TypeError, ValueError)
"""Tensors of many kinds exist (lazy, fake, quantised, sparse) that have no bits to read."""

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def fingerprint(model: Any) -> str | None:
    """The content of a torch module, or of a list or dict of modules or tensors, as a short text.

    Parameters and persistent buffers: what a state dict holds, and its fingerprint is the same.
    With PEFT also which adapters are in use, disabled or merged, and their scaling: no state dict
    has that, and it changes the policy. Wrapping (DDP, `torch.compile`) does not change it. Of
    sharded weights (DTensor) it is that of this process's part. None where there are no weights, or
    none that can be read: on the meta device, or gathered only for use (ZeRO-3).
    """
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "nn"):
        return None
    try:
        with torch.no_grad():
            named = named_tensors(model)
            return None if named is None else _hashed(torch, named, adapter_states(model))
    except _UNREADABLE as problem:
        log.debug("weights have no fingerprint: %s: %s", type(problem).__name__, problem)
        return None


Copy = Literal["trainable", "all"]
"""Which weights a snapshot has copies of: parameters that require gradients, or all."""


def checked_copy(copy: Any) -> Copy:
    if copy not in get_args(Copy):
        raise InvalidInput(f"copy is 'trainable' or 'all', got {copy!r}")
    return cast(Copy, copy)


class Named(NamedTuple):
    name: str
    tensor: Any


def named_tensors(model: Any) -> list[Named] | None:
    """Parameters and persistent buffers by name, as in the bare model; None if it is no model."""
    found = _found(model, "")
    if found is None:
        return None
    return [Named(_bare(name), tensor) for name, tensor in found]


def _found(model: Any, prefix: str) -> list[Named] | None:
    torch = sys.modules["torch"]
    if isinstance(model, torch.Tensor):
        return [Named(prefix.removesuffix("."), model)]
    if isinstance(model, torch.nn.Module):
        return list(_of_module(model, prefix))
    parts = _parts(model)
    if parts is None:
        return None
    inner = [_found(part, f"{prefix}{key}.") for key, part in parts]
    if all(each is None for each in inner):
        return None
    return [named for each in inner for named in each or ()]


def _parts(model: Any) -> list[tuple[str, Any]] | None:
    """Those of a dict or list of models; None of what is neither."""
    if isinstance(model, Mapping):
        return [(str(key), part) for key, part in model.items()]
    if isinstance(model, list | tuple):
        return [(str(index), part) for index, part in enumerate(model)]
    return None


def _of_module(model: Any, prefix: str) -> Iterator[Named]:
    start = prefix.removesuffix(".")
    for path, module in model.named_modules(prefix=start, remove_duplicate=False):
        passing = getattr(module, "_non_persistent_buffers_set", ())
        held = [*module._parameters.items()]
        held += [(name, value) for name, value in module._buffers.items() if name not in passing]
        for name, tensor in held:
            if tensor is not None:
                yield Named(f"{path}.{name}" if path else name, tensor)


def adapter_states(model: Any, prefix: str = "") -> dict[str, dict[str, Any]]:
    """What PEFT's modules hold besides weights that decides what the model says, by name."""
    torch = sys.modules["torch"]
    if not isinstance(model, torch.nn.Module):
        parts = [adapter_states(part, f"{prefix}{key}.") for key, part in _parts(model) or ()]
        return {name: state for part in parts for name, state in part.items()}
    modules = model.named_modules(prefix=prefix.removesuffix("."), remove_duplicate=False)
    # A wrapper around the whole model is no part of a name.
    states = {_bare(f"{path}.").rstrip("."): _adapter_state(module) for path, module in modules}
    return {name: state for name, state in states.items() if state}


def _adapter_state(module: Any) -> dict[str, Any]:
    names: tuple[str, ...] = ()
    if hasattr(module, "_active_adapter"):  # a layer with adapters
        names = ("active_adapters", "_disable_adapters", "merged_adapters")
        names += tuple(module.other_param_names)  # ranks, scaling: other tensors and modules, too
    elif hasattr(module, "_adapters_disabled"):  # the model: all there is with prompt tuning
        names = ("active_adapters", "_adapters_disabled")
    held = {name: _plain(getattr(module, name, None)) for name in names}
    return {name: value for name, value in held.items() if value is not None and _is_plain(value)}


def _plain(value: Any) -> Any:
    """Numbers of numpy and torch as Python's."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return all(isinstance(inner, str | int | float) for inner in value)
    return isinstance(value, str | int | float)


def _bare(name: str) -> str:
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


# --- Hashing ------------------------------------------------------------------------------------


def _hashed(torch: Any, named: list[Named], states: Mapping[str, Any]) -> str | None:
    sums: dict[int, list[Any]] = {}
    """Of each tensor, once: tied weights have several names."""
    headers: list[tuple[str, list[int], str, int]] = []
    devices = set()
    for name, tensor in sorted(named, key=lambda each: each.name):
        local = readable(tensor)
        if local is None:
            return None
        if id(tensor) not in sums:
            devices.add(local.device)
            factors = _constants_on(local.device)
            sums[id(tensor)] = [_sums(torch, piece, factors) for piece in _pieces(torch, local)]
        headers.append((name, list(local.shape), str(tensor.dtype), id(tensor)))
    # One transfer a device, at the end: each one waits for the device.
    on_host = {}
    for device in devices:
        own = {key: parts for key, parts in sums.items() if parts and parts[0].device == device}
        flat = torch.cat([part for parts in own.values() for part in parts] or [torch.empty(0)])
        values, start = flat.cpu().numpy(), 0
        for key, parts in own.items():
            length = sum(len(part) for part in parts)
            on_host[key] = values[start : start + length].tobytes()
            start += length
    digest = hashlib.blake2b(digest_size=8)
    for name, shape, dtype, key in headers:
        content = on_host.get(key, b"")
        header = json.dumps([name, shape, dtype, len(content)])
        digest.update(header.encode() + b"\n" + content)
    if states:
        digest.update(json.dumps(states, sort_keys=True).encode())
    return digest.hexdigest()


def readable(tensor: Any) -> Any:
    """The plain tensor that holds the bits on this process (of a quantised one, its values); None
    where there is none."""
    if hasattr(tensor, "ds_id") and tensor.numel() == 0:
        return None  # DeepSpeed's ZeRO-3: elsewhere, until it is used
    if callable(getattr(tensor, "to_local", None)):
        tensor = tensor.to_local()
    if tensor.device.type == "meta":
        return None
    if tensor.is_quantized:
        return tensor.detach().dequantize()  # a view of its bits would crash the process
    # A conjugate or negative that is only marked as such has other bits in memory.
    return tensor.detach().resolve_conj().resolve_neg()


def _pieces(torch: Any, tensor: Any) -> Iterator[Any]:
    """Its elements in order, as flat pieces of limited size: where they are cut depends on the
    shape alone, and where the tensor is not contiguous, only a piece at a time is copied."""
    if tensor.numel() * tensor.element_size() <= PIECE:
        if tensor.numel():
            yield tensor.reshape(-1).contiguous()
        return
    rows = PIECE // (tensor[0].numel() * tensor.element_size())
    if rows:
        for part in tensor.split(rows):
            yield part.reshape(-1).contiguous()
    else:
        for part in tensor:
            yield from _pieces(torch, part)


def _sums(torch: Any, piece: Any, factors: Any) -> Any:
    words = _words(torch, piece)
    full = len(words) // ROW * ROW
    found = []
    if full:
        found.append((words[:full].view(-1, ROW) * factors).sum(1))
    if full < len(words):
        found.append((words[full:] * factors[: len(words) - full]).sum().view(1))
    return torch.cat(found) if len(found) > 1 else found[0]


def _words(torch: Any, piece: Any) -> Any:
    """The bits as 32-bit numbers; zeros behind, where there are too few."""
    if piece.is_complex():
        piece = torch.view_as_real(piece).view(-1)
    size = piece.element_size()
    missing = -len(piece) * size % 4
    if missing:
        piece = torch.nn.functional.pad(piece.view(torch.uint8), (0, missing))
    elif piece.storage_offset() * size % 4:
        piece = piece.clone()  # a view of larger words has to begin where one begins
    return piece.view(torch.int32)


def _constants() -> NDArray[np.int64]:
    """Odd numbers of 64 bits that look random (splitmix64), one for each place in a row."""
    with np.errstate(over="ignore"):
        mixed = np.arange(1, ROW + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return ((mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)).view(np.int64)


@cache
def _constants_on(device: Any) -> Any:
    """Kept: to bring them to a GPU would wait for all that it has been asked to do."""
    import torch

    with torch.inference_mode(False):
        return torch.from_numpy(_constants()).to(device)


# --- Were they written to? ----------------------------------------------------------------------


def writes(tensor: Any) -> int:
    """How often torch has seen it written to. Writes through `.data` are not counted, nor any to
    tensors that were made in inference mode."""
    try:
        return int(tensor._version)
    except RuntimeError:
        return -1


def totals(tensors: Sequence[Any]) -> list[Any]:
    """A few sums for each tensor that tell whether it was written to, its elements moved included.

    Bits are read as numbers of 64 bits, laid out as a table, and added up by row and by column;
    the sums are then weighted by their place. That reads a tensor twice, and takes no memory. On a
    GPU it is enqueued in the current stream, and nothing waits for it.

    Args:
        tensors: What is watched. Those that have no bits to read are passed over.

    Returns:
        The sums, as tensors where they were made.
    """
    torch: Any = sys.modules["torch"]
    found: list[Any] = []
    with torch.no_grad():
        for tensor in tensors:
            try:
                found += _totals(torch, tensor)
            except _UNREADABLE as problem:
                log.debug("weights have no total: %s: %s", type(problem).__name__, problem)
    return found


def _totals(torch: Any, tensor: Any) -> list[Any]:
    local = readable(tensor)
    if local is None or not local.numel():
        return []
    factors = _constants_on(local.device)
    found = []
    for piece in [local.view(-1)] if local.is_contiguous() else _pieces(torch, local):
        bits = (torch.view_as_real(piece) if piece.is_complex() else piece).view(-1)
        bits = bits.view(torch.uint8)
        if bits.storage_offset() % 8:
            bits = bits.clone()  # a view of larger numbers has to begin where one begins
        full = len(bits) // 8 * 8
        lines = [bits[full:].to(torch.int64)]
        for words in bits[:full].view(torch.int64).split(WIDTH * ROW):
            whole = len(words) // WIDTH * WIDTH
            lines.append(words[whole:])
            if whole:
                table = words[:whole].view(-1, WIDTH)
                lines += [table.sum(1), table.sum(0)]
        # The highest bit is a sign. An even number of odd multiples of it is 0, so it is spread.
        mixed = [line ^ (line >> 29) for line in lines if len(line)]
        found += [(line * factors[: len(line)]).sum() for line in mixed]
    return found


def numbers(totals: Sequence[Any]) -> list[int]:
    """The totals, once their devices have them: one transfer for each device."""
    torch: Any = sys.modules["torch"]
    by_device: dict[Any, list[int]] = {}
    for place, total in enumerate(totals):
        by_device.setdefault(total.device, []).append(place)
    found = [0] * len(totals)
    for places in by_device.values():
        together = torch.stack([totals[place] for place in places]).tolist()
        for place, number in zip(places, together, strict=True):
            found[place] = number
    return found


# --- All of them? -------------------------------------------------------------------------------


def why_not_whole(model: Any) -> str | None:
    """Why this process has only a part of the model's weights; None where it has all of them."""
    way = None
    for module in modules_of(model):
        if type(module).__name__ == "FullyShardedDataParallel":
            way = "FSDP"
        for parameter in module.parameters(recurse=False):
            if hasattr(parameter, "ds_id") and parameter.numel() == 0:
                way = "DeepSpeed ZeRO-3"
            elif not all(p.is_replicate() for p in getattr(parameter, "placements", ())):
                way = "FSDP or tensor parallelism"
        if way is not None:
            return (
                f"the weights are spread over several processes by {way}, and this one cannot "
                "answer with its part of them; evaluate saved checkpoints instead"
            )
    return None
