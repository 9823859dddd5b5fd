"""Fingerprints of weights: which model was this, and has anything been written to it?

    fingerprint(model)      # '3f0c…', sixteen characters; None if there is nothing to read

Weights stay on their device. Their bits are read as integers, row by row; each one is multiplied
by an odd constant of its position, and the products of a row are summed modulo 2**64. That is
exact, so it depends neither on the device nor on the order of summation. Names, shapes, types and
these sums (8 bytes for 64 KiB of weights) are then hashed. A change of a single word always shows
(an odd constant times a difference is never 0), and so do two words that were swapped, since the
constants differ in their low halves.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from heldout._live.isolation import modules_of
from heldout._live.packed import Unreadable, parts_of_module, parts_of_tensor
from heldout.errors import InvalidInput

log = logging.getLogger("heldout")

ROW = 2**14
"""Words of 4 bytes that share a sum."""

WIDTH = ROW - 1
"""Numbers in a row of `sum_bits`: odd, so that signs that all change do not cancel out."""

PIECE = 2**24
"""Bytes processed at a time; the products take twice as much memory."""

_UNREADABLE = (RuntimeError, NotImplementedError, TypeError, ValueError)
"""What torch raises for tensors without bits to read: lazy, fake, sparse ones."""

_WRAPPERS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}

Copy = Literal["trainable", "all"]
"""Which weights a snapshot has copies of: parameters that require gradients, or all."""


def checked_copy(copy: Any) -> Copy:
    """Check a user's value for `copy`."""
    if copy not in get_args(Copy):
        raise InvalidInput(f"copy must be 'trainable' or 'all', got {copy!r}")
    return cast(Copy, copy)


def fingerprint(model: Any) -> str | None:
    """Hash the weights of a model.

    Parameters and persistent buffers count: a state dict has the fingerprint of its model. What
    quantised layers hold besides (`heldout._live.packed`) counts, too. With PEFT it also depends on
    which adapters are active, disabled or merged, and on their scaling, which no state dict has and
    which changes the policy. Wrappers (DDP, `torch.compile`) do not change it. Of sharded weights
    (DTensor) it is that of this process's shards.

    Args:
        model: A torch module, or a list or dict of modules or tensors.

    Returns:
        Sixteen hexadecimal characters; None if there are no weights, or some that cannot be read
        (`explain_no_fingerprint`).
    """
    try:
        return _read_fingerprint(model)
    except _UNREADABLE as error:
        log.debug("weights have no fingerprint: %s: %s", type(error).__name__, error)
        return None


def explain_no_fingerprint(model: Any) -> str | None:
    """Explain why weights have no fingerprint; None if they have one."""
    try:
        _read_fingerprint(model)
    except Unreadable as problem:
        return str(problem)
    except _UNREADABLE as problem:
        return f"{type(problem).__name__}: {problem}".splitlines()[0]
    return None


def _read_fingerprint(model: Any) -> str:
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "nn"):
        raise Unreadable("torch is not loaded")
    with torch.no_grad():
        tensors = named_tensors(model)
        if tensors is None:
            raise Unreadable(f"a {type(model).__name__} is no model")
        known = {id(tensor) for _, tensor in tensors}
        return _hash(torch, [*tensors, *_packed(model, known)], adapter_states(model))


def hash_tensors(model: Any) -> dict[str, tuple[str, bool]]:
    """Hash each parameter and persistent buffer; with each, whether it is a buffer."""
    parameters = sys.modules["torch"].nn.Parameter
    found: dict[str, tuple[str, bool]] = {}
    for name, tensor in named_tensors(model) or ():
        found[name] = fingerprint({"": tensor}) or "", not isinstance(tensor, parameters)
    return found


# --- What a model holds -------------------------------------------------------------------------


class Named(NamedTuple):
    """A tensor and its name in the bare model."""

    name: str
    tensor: Any


def named_tensors(model: Any, prefix: str = "") -> list[Named] | None:
    """List parameters and persistent buffers by each of their names in the bare model.

    None if it is no module, tensor, or list or dict of them.
    """
    torch = sys.modules["torch"]
    if isinstance(model, torch.Tensor):
        return [Named(_bare_name(prefix.removesuffix(".")), model)]
    if isinstance(model, torch.nn.Module):
        return list(_module_tensors(model, prefix))
    parts = [named_tensors(part, f"{prefix}{key}.") for key, part in _parts(model)]
    if all(part is None for part in parts):
        return None
    return [pair for part in parts for pair in part or ()]


def _module_tensors(model: Any, prefix: str) -> Iterator[Named]:
    start = prefix.removesuffix(".")
    for path, module in model.named_modules(prefix=start, remove_duplicate=False):
        skipped = getattr(module, "_non_persistent_buffers_set", ())
        buffers = {name: value for name, value in module._buffers.items() if name not in skipped}
        for name, tensor in [*module._parameters.items(), *buffers.items()]:
            if tensor is not None:
                yield Named(_bare_name(f"{path}.{name}" if path else name), tensor)


def _parts(model: Any) -> list[tuple[str, Any]]:
    """Return the parts of a dict or list of models, and nothing for anything else."""
    if isinstance(model, Mapping):
        return [(str(key), part) for key, part in model.items()]
    if isinstance(model, list | tuple):
        return [(str(index), part) for index, part in enumerate(model)]
    return []


def _packed(model: Any, known: set[int], prefix: str = "") -> Iterator[Named]:
    """Yield what quantised layers hold besides parameters and buffers: tensors and texts."""
    torch = sys.modules["torch"]
    if not isinstance(model, torch.nn.Module):
        for key, part in _parts(model):
            yield from _packed(part, known, f"{prefix}{key}.")
        return
    for path, module in model.named_modules(prefix=prefix.removesuffix(".")):
        for name, value in parts_of_module(module, path, known):
            yield Named(_bare_name(name), value)


def adapter_states(model: Any, prefix: str = "") -> dict[str, dict[str, Any]]:
    """Return what PEFT's modules hold besides weights that changes the model's output.

    Plain values, by the name of their module.
    """
    torch = sys.modules["torch"]
    if not isinstance(model, torch.nn.Module):
        parts = [adapter_states(part, f"{prefix}{key}.") for key, part in _parts(model)]
        return {name: state for part in parts for name, state in part.items()}
    modules = model.named_modules(prefix=prefix.removesuffix("."), remove_duplicate=False)
    # With a dot, so that a wrapper around the whole model is no part of the name either.
    states = {_bare_name(f"{path}.").rstrip("."): _adapter_state(m) for path, m in modules}
    return {name: state for name, state in states.items() if state}


def _adapter_state(module: Any) -> dict[str, Any]:
    names: tuple[str, ...] = ()
    if hasattr(module, "_active_adapter"):  # a layer with adapters
        names = ("active_adapters", "_disable_adapters", "merged_adapters")
        names += tuple(module.other_param_names)  # ranks, scaling: tensors and modules, too
    elif hasattr(module, "_adapters_disabled"):  # the model: all there is with prompt tuning
        names = ("active_adapters", "_adapters_disabled")
    values = {name: _plain_value(getattr(module, name, None)) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _plain_value(value: Any) -> Any:
    """Return a value made of texts and numbers as JSON takes it; None for any other."""
    if isinstance(value, dict):
        value = {key: _plain_value(inner) for key, inner in value.items()}
    elif getattr(value, "ndim", None) == 0:  # a number of numpy or torch
        value = value.item()
    inner = list(value.values()) if isinstance(value, dict) else value
    items = inner if isinstance(inner, list) else [inner]
    return value if all(isinstance(item, str | int | float) for item in items) else None


def _bare_name(name: str) -> str:
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while len(parts) > 1 and parts[0] == "module":
        parts = parts[1:]
    return ".".join(parts)


def readable(tensor: Any) -> Any:
    """Return the plain tensor that holds the bits in this process; None if there is none."""
    if hasattr(tensor, "ds_id") and tensor.numel() == 0:
        return None  # DeepSpeed's ZeRO-3: gathered only for use
    if callable(getattr(tensor, "to_local", None)):
        tensor = tensor.to_local()
    if tensor.device.type == "meta":
        return None
    if tensor.is_quantized:
        return tensor.detach().dequantize()  # a view of its bits would crash the process
    # A lazily conjugated or negated tensor has other bits in memory.
    return tensor.detach().resolve_conj().resolve_neg()


def sharding_way(model: Any) -> str | None:
    """Name what has left this process only a part of the weights; None if it has all of them."""
    for module in modules_of(model):
        kinds = {kind.__name__ for kind in type(module).__mro__}
        if kinds & {"FullyShardedDataParallel", "FSDPModule"}:
            return "FSDP"
        if getattr(module, "_is_fsdp_managed_module", False):
            return "FSDP"  # the wrapper is outside of it
        for parameter in module._parameters.values():
            if hasattr(parameter, "ds_id") and parameter.numel() == 0:
                return "DeepSpeed ZeRO-3"
            if not all(p.is_replicate() for p in getattr(parameter, "placements", ())):
                return "FSDP or tensor parallelism"
    return None


def explain_sharding(model: Any) -> str | None:
    """Explain why this process has only part of the weights; None if it has all of them."""
    if (way := sharding_way(model)) is None:
        return None
    return (
        f"the weights are spread over several processes by {way}, and this one cannot "
        "answer with its part of them; evaluate saved checkpoints instead"
    )


# --- Hashing ------------------------------------------------------------------------------------


def _hash(torch: Any, values: list[Named], states: Mapping[str, Any]) -> str:
    headers: list[tuple[str, list[int], str, int]] = []
    texts: list[tuple[str, str]] = []
    sums: list[Any] = []
    owners: list[int] = []
    hashed: set[int] = set()
    for name, value in sorted(_plain_values(values), key=lambda item: item.name):
        if isinstance(value, str):
            texts.append((name, value))
            continue
        local = readable(value)
        if local is None:
            raise Unreadable(f"{name} is on the meta device, or gathered only for use (ZeRO-3)")
        if id(value) not in hashed:  # tied weights have several names
            hashed.add(id(value))
            factors = _constants_on(local.device)
            parts = [_row_sums(torch, piece, factors) for piece in _pieces(local)]
            sums += parts
            owners += [id(value)] * len(parts)
        headers.append((name, list(local.shape), str(value.dtype), id(value)))
    contents: dict[int, bytes] = defaultdict(bytes)
    for owner, part in zip(owners, _to_host(torch, sums), strict=True):
        contents[owner] += part.tobytes()
    digest = hashlib.blake2b(digest_size=8)
    for name, shape, dtype, owner in headers:
        header = json.dumps([name, shape, dtype, len(contents[owner])])
        digest.update(header.encode() + b"\n" + contents[owner])
    for other in (states, texts):
        if other:
            digest.update(json.dumps(other, sort_keys=True).encode())
    return digest.hexdigest()


def _plain_values(values: Sequence[Named]) -> list[Named]:
    """Replace each tensor that is made of others by these, and by what else it says as text.

    All are held here, since tied weights are told by the identity of their tensors.
    """
    plain: list[Named] = []
    for name, value in values:
        if isinstance(value, str) or callable(getattr(value, "to_local", None)):
            plain.append(Named(name, value))  # of a shard `readable` makes a plain tensor
        else:
            plain += [Named(*part) for part in parts_of_tensor(value, name)]
    return plain


def _to_host(torch: Any, vectors: Sequence[Any]) -> list[NDArray[np.int64]]:
    """Copy vectors to the host, in one transfer per device: each one waits for the device."""
    by_device: dict[Any, list[int]] = defaultdict(list)
    for index, vector in enumerate(vectors):
        by_device[vector.device].append(index)
    arrays: dict[int, NDArray[np.int64]] = {}
    for indices in by_device.values():
        together = torch.cat([vectors[index] for index in indices]).cpu().numpy()
        ends = np.cumsum([len(vectors[index]) for index in indices])
        arrays.update(zip(indices, np.split(together, ends[:-1]), strict=True))
    return [arrays[index] for index in range(len(vectors))]


def _pieces(tensor: Any) -> Iterator[Any]:
    """Yield the elements in order, as flat tensors of limited size.

    The cuts depend on the shape alone. Of a tensor that is not contiguous, one piece at a time is
    copied.
    """
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
            yield from _pieces(part)


def _row_sums(torch: Any, piece: Any, factors: Any) -> Any:
    words = _words(torch, piece)
    full = len(words) // ROW * ROW
    sums = []
    if full:
        sums.append((words[:full].view(-1, ROW) * factors).sum(1))
    if full < len(words):
        sums.append((words[full:] * factors[: len(words) - full]).sum().view(1))
    return torch.cat(sums) if len(sums) > 1 else sums[0]


def _words(torch: Any, piece: Any) -> Any:
    """View the bits as 32-bit integers, padded with zeros."""
    if piece.is_complex():
        piece = torch.view_as_real(piece).view(-1)
    size = piece.element_size()
    missing = -len(piece) * size % 4
    if missing:
        piece = torch.nn.functional.pad(piece.view(torch.uint8), (0, missing))
    elif piece.storage_offset() * size % 4:
        piece = piece.clone()  # a view of larger words has to be aligned
    return piece.view(torch.int32)


def _constants() -> NDArray[np.int64]:
    """Return odd 64-bit integers that look random (splitmix64), one for each position in a row."""
    with np.errstate(over="ignore"):
        mixed = np.arange(1, ROW + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return ((mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)).view(np.int64)


@cache
def _constants_on(device: Any) -> Any:
    """Keep the constants on each device: copying them to a GPU would wait for all its work."""
    import torch

    with torch.inference_mode(False):
        return torch.from_numpy(_constants()).to(device)


# --- Unchanged? ---------------------------------------------------------------------------------


def writes(tensor: Any) -> int:
    """Return how many writes torch has counted.

    It counts none through `.data`, and none at all to tensors made in inference mode.
    """
    try:
        return int(tensor._version)
    except RuntimeError:
        return -1


def sum_bits(tensors: Sequence[Any]) -> list[Any]:
    """Sum up tensors so that any write to them changes a sum, also one that moves elements.

    Bits are read as 64-bit integers, laid out as a table, and summed by row and by column; these
    sums are then weighted by position. That reads a tensor twice and takes no memory. On a GPU it
    is enqueued in the current stream, and nothing waits for it. Tensors without bits to read are
    skipped.
    """
    torch: Any = sys.modules["torch"]
    sums: list[Any] = []
    with torch.no_grad():
        for tensor in tensors:
            try:
                sums += _totals(torch, tensor)
            except _UNREADABLE as error:
                log.debug("weights have no total: %s: %s", type(error).__name__, error)
    return sums


def _totals(torch: Any, tensor: Any) -> list[Any]:
    local = readable(tensor)
    if local is None or not local.numel():
        return []
    factors = _constants_on(local.device)
    sums = []
    for piece in [local.view(-1)] if local.is_contiguous() else _pieces(local):
        bits = (torch.view_as_real(piece) if piece.is_complex() else piece).view(-1)
        bits = bits.view(torch.uint8)
        if bits.storage_offset() % 8:
            bits = bits.clone()  # a view of larger words has to be aligned
        full = len(bits) // 8 * 8
        lines = [bits[full:].to(torch.int64)]
        for words in bits[:full].view(torch.int64).split(WIDTH * ROW):
            table_size = len(words) // WIDTH * WIDTH
            lines.append(words[table_size:])
            if table_size:
                table = words[:table_size].view(-1, WIDTH)
                lines += [table.sum(1), table.sum(0)]
        # The highest bit is a sign. An even number of odd multiples of it is 0, so it is spread.
        mixed = [line ^ (line >> 29) for line in lines if len(line)]
        sums += [(line * factors[: len(line)]).sum() for line in mixed]
    return sums


def read_sums(totals: Sequence[Any]) -> list[int]:
    """Wait for what `sum_bits` returned, and return its values."""
    torch: Any = sys.modules["torch"]
    return [int(value) for [value] in _to_host(torch, [total.view(1) for total in totals])]
