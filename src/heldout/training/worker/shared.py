"""Weights of a model in training for another process: a snapshot in shared memory.

    weights = SharedWeights()
    weights.write(model, step=50)        # in the thread that trains; copies go on in the background
    path = weights.seal()                # in any thread: waits for them
    read_snapshot(path).tensors          # in the other process: by name, nothing is copied

A file is a length (8 bytes, 0 while it is being written), a header in JSON and raw bytes. The
header says of each tensor its name, type, shape and place. Of the weights that are not trained only
names and a fingerprint are in it, so that the reader can tell whether its own are the same.
"""

from __future__ import annotations

import math
import os
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from heldout.errors import InvalidInput
from heldout.training.worker.sharedfile import SharedFile, open_shared
from heldout.weights import (
    Copy,
    Named,
    adapter_states,
    checked_copy,
    fingerprint,
    named_tensors,
    readable,
    totals,
    why_not_whole,
    writes,
)

FORMAT, VERSION = "heldout.weights", 1
ALIGNMENT = 64
LENGTH = 8
HEADER_LIMIT = 2**28
DEVICES = 64
COPY_SECONDS = 600.0
END_SECONDS = 10.0

DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    "float4_e2m1fn_x2",
)


# --- The format ---------------------------------------------------------------------------------


class Form(msgspec.Struct, frozen=True):
    """A tensor without its content."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Piece(Form, frozen=True):
    offset: int
    """From the beginning of the file. Names of one tensor have one place."""
    bytes: int


class Header(msgspec.Struct, frozen=True):
    step: int
    tensors: tuple[Piece, ...]
    frozen: tuple[Form, ...] = ()
    """What the model has besides, and was not copied."""
    frozen_weights: str | None = None
    """Fingerprint of those; None where there are none, or none that can be read."""
    adapters: dict[str, Any] = {}
    """What PEFT holds besides weights (`heldout.weights.adapter_states`)."""
    format: str = FORMAT
    version: int = VERSION


class Snapshot(NamedTuple):
    header: Header
    tensors: dict[str, Any]


def read_snapshot(path: str | Path) -> Snapshot:
    """Nothing in the file is taken at its word."""
    import torch

    path = Path(path)
    mapping = open_shared(path)
    size = len(mapping)
    length = int.from_bytes(mapping[:LENGTH], "little")
    if not 0 < length <= min(HEADER_LIMIT, size - LENGTH):
        raise InvalidInput(f"{path}: not a whole snapshot of weights")
    try:
        header = msgspec.json.decode(mapping[LENGTH : LENGTH + length], type=Header)
    except msgspec.MsgspecError as problem:
        raise InvalidInput(f"{path}: not a snapshot of weights: {problem}") from None
    if (header.format, header.version) != (FORMAT, VERSION):
        raise InvalidInput(
            f"{path}: {header.format!r} of version {header.version}, and this is {VERSION}: both "
            "processes need the same heldout"
        )
    content = torch.frombuffer(mapping, dtype=torch.uint8)
    tensors: dict[str, Any] = {}
    for piece in header.tensors:
        if piece.name in tensors:
            raise InvalidInput(f"{path}: {piece.name} is there twice")
        _check(piece, path, start=LENGTH + length, size=size)
        own = content[piece.offset : piece.offset + piece.bytes]
        tensors[piece.name] = own.view(getattr(torch, piece.dtype)).view(piece.shape)
    return Snapshot(header, tensors)


def _check(piece: Piece, path: Path, *, start: int, size: int) -> None:
    import torch

    dtype = getattr(torch, piece.dtype, None) if piece.dtype in DTYPES else None
    where = f"{path}: {piece.name}"
    if dtype is None:
        raise InvalidInput(f"{where}: unknown type {piece.dtype!r:.50}")
    if any(n < 0 for n in piece.shape) or piece.bytes != math.prod(piece.shape) * dtype.itemsize:
        raise InvalidInput(f"{where}: {piece.bytes} bytes are not {piece.shape} of {piece.dtype}")
    if piece.offset < start or piece.offset % ALIGNMENT or piece.offset + piece.bytes > size:
        raise InvalidInput(f"{where}: its place ({piece.offset}) is not inside the file")


# --- What is in a model -------------------------------------------------------------------------


class Parts(NamedTuple):
    copied: list[Named]
    frozen: list[Named]


def parts(model: Any, copy: Copy) -> Parts:
    """Parameters that are trained and buffers, or everything; and the rest."""
    import torch

    if (reason := why_not_whole(model)) is not None:
        raise InvalidInput(reason)
    named = named_tensors(model)
    if not named:
        raise InvalidInput(f"a model with weights is needed for a snapshot, got {model!r:.100}")
    seen: dict[str, Any] = {}
    found = Parts([], [])
    for each in named:
        if seen.setdefault(each.name, each.tensor) is not each.tensor:
            raise InvalidInput(f"two tensors of the model are named {each.name}")
        fixed = isinstance(each.tensor, torch.nn.Parameter) and not each.tensor.requires_grad
        (found.frozen if fixed and copy == "trainable" else found.copied).append(each)
    return found


def _form(named: Named) -> tuple[str, str, tuple[int, ...]]:
    return named.name, str(named.tensor.dtype).removeprefix("torch."), tuple(named.tensor.shape)


def _bits(named: Named) -> Any:
    """The tensor's content where it lies, as flat bytes."""
    import torch

    local = readable(named.tensor)
    if local is None:
        raise InvalidInput(f"{named.name} has no content here (meta device, or spread by ZeRO-3)")
    known = str(named.tensor.dtype).removeprefix("torch.") in DTYPES
    # A tensor that is made of others (torchao's) has no bytes of its own.
    if not known or local.layout is not torch.strided or hasattr(local, "__tensor_flatten__"):
        raise InvalidInput(
            f"{named.name} ({type(named.tensor).__name__}, {named.tensor.dtype}) is of a kind that "
            "cannot be copied as bytes"
        )
    return local.contiguous().reshape(-1).view(torch.uint8)


def planned(found: Parts, adapters: dict[str, Any]) -> Header:
    """Where everything goes; the step and the fingerprint are not known yet."""
    forms = tuple(Form(*_form(each)) for each in found.frozen)
    # With the longest numbers there are, so that the header never runs into the content.
    far = 2**62
    longest = tuple(Piece(*_form(each), far, far) for each in found.copied)
    room = len(msgspec.json.encode(Header(-far, longest, forms, "0" * 16, adapters)))
    offset = _aligned(LENGTH + room)
    placed: dict[int, Piece] = {}
    pieces = []
    for each in found.copied:
        known = placed.get(id(each.tensor))
        if known is None:
            size = each.tensor.numel() * each.tensor.element_size()
            known = placed[id(each.tensor)] = Piece(*_form(each), offset, size)
            offset = _aligned(offset + size)
        pieces.append(msgspec.structs.replace(known, name=each.name))
    return Header(0, tuple(pieces), forms, adapters=adapters)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


# --- Writing ------------------------------------------------------------------------------------


class SharedWeights:
    """Room in shared memory for one snapshot at a time; the next one is written over it.

    `copy`: "trainable" are parameters that require gradients, and buffers; "all" is all.
    """

    def __init__(self, *, copy: Copy = "trainable", folder: str | Path | None = None) -> None:
        self._copy = checked_copy(copy)
        self._folder = None if folder is None else Path(folder)
        self._room: _Room | None = None
        self._header: Header | None = None
        self._known = _Frozen()
        self._totals = slice(0)
        self._maker = os.getpid()

    def write(self, model: Any, step: int) -> None:
        """In the thread that trains. From a GPU this is in the order of its current stream, and
        returns before it is done: what training does next waits, not this thread."""
        import torch

        if os.getpid() != self._maker:
            raise InvalidInput("a snapshot is written by the process that made room for it")
        with torch.inference_mode(False), torch.no_grad():
            found = parts(model, self._copy)
            header = planned(found, adapter_states(model))
            end = _aligned(max((p.offset + p.bytes for p in header.tensors), default=ALIGNMENT))
            sums = totals([each.tensor for each in found.frozen])
            size = end + LENGTH * len(sums)
            if self._room is None or self._room.size < size:
                self.close()
                self._room = _Room(size, self._folder)
            self._room.open()
            self._header = None
            sources = {p.offset: each for p, each in zip(header.tensors, found.copied, strict=True)}
            try:
                for piece in header.tensors:
                    if (each := sources.pop(piece.offset, None)) is not None:
                        self._room.put(piece.offset, _bits(each))
                self._totals = self._room.put_totals(end, sums)
            finally:
                self._room.mark()
            weights = self._frozen(found.frozen)
            self._header = msgspec.structs.replace(header, step=step, frozen_weights=weights)

    def seal(self) -> Path:
        """Where the snapshot is, once it is whole. In any thread; waits for copies under way.

        Raises InvalidInput where weights that are not trained were written to since their
        fingerprint was taken, without torch counting it: the next one has it taken anew.
        """
        if self._room is None or self._header is None:
            raise InvalidInput(
                "there is no snapshot of weights: none was written, or not to its end"
            )
        self._room.wait()
        said = self._room.said(self._totals)
        if self._known.totals not in (None, said):
            self._known, self._header = _Frozen(), None
            raise InvalidInput(
                "weights that are not trained were written to (through `.data`, as merging "
                "adapters does), so this snapshot was given up; EvalWorker(…, copy='all') hands "
                "them over each time"
            )
        self._known = self._known._replace(totals=said)
        self._room.seal(msgspec.json.encode(self._header))
        return self._room.path

    def close(self) -> None:
        if self._room is not None:
            self._room.end()
            self._room = self._header = None

    def _frozen(self, frozen: Sequence[Named]) -> str | None:
        """Taken again only where one of them is another tensor, or was written to.

        What a GPU adds up is not here yet: that is looked at by `seal`.
        """
        assert self._room is not None
        here = all(_on_host(each.tensor) for each in frozen)
        said = self._room.said(self._totals) if here else None
        now = [(each.name, id(each.tensor), writes(each.tensor)) for each in frozen]
        if now != self._known.tensors or (here and said != self._known.totals):
            self._known = _Frozen(now, said, fingerprint(dict(frozen)) if frozen else None)
        return self._known.weights


class _Frozen(NamedTuple):
    """The weights that are not trained, when their fingerprint was taken."""

    tensors: Sequence[Any] = ()
    totals: bytes | None = None
    """What they add up to (`heldout.weights.totals`): torch does not count all writes."""
    weights: str | None = None


def _on_host(tensor: Any) -> bool:
    return bool(tensor.device.type == "cpu")


class _Room:
    """A shared file as torch sees it, and the copies into it that are under way.

    Behind its copies a device puts a mark, and whoever waits looks for that. Asking CUDA instead
    would break a graph that the training may be capturing at that moment.
    """

    def __init__(self, size: int, folder: Path | None) -> None:
        import torch

        self._marks = _aligned(size)
        self._file = SharedFile(self._marks + ALIGNMENT * DEVICES, folder)
        self.size, self.path = size, self._file.path
        self._content = torch.frombuffer(self._file.mapping, dtype=torch.uint8)
        self._pinned: list[bool] = []
        self._devices: set[Any] = set()
        self._round = 0
        self._awaited: dict[int, int] = {}
        held = (self._file, self._content, self._pinned, self._awaited, os.getpid())
        self.end = weakref.finalize(self, _end, *held)

    def open(self) -> None:
        self.wait()
        self._file.mapping[:LENGTH] = bytes(LENGTH)

    def put(self, offset: int, bits: Any) -> None:
        beside = bits.is_cuda and self._pin(bits.device)
        if beside:
            self._devices.add(bits.device)
        self._content[offset : offset + len(bits)].copy_(bits, non_blocking=beside)

    def put_totals(self, offset: int, sums: Sequence[Any]) -> slice:
        """Whole numbers of 64 bits, device by device; where they are."""
        import torch

        start = offset
        for device in dict.fromkeys(each.device for each in sums):
            own = torch.stack([each for each in sums if each.device == device]).view(torch.uint8)
            self.put(offset, own)
            offset += len(own)
        return slice(start, offset)

    def mark(self) -> None:
        """Behind everything that was put."""
        import torch

        self._round += 1
        for device in self._devices:
            place = self._marks + ALIGNMENT * device.index
            mark = torch.full((1,), self._round, dtype=torch.int64, device=device)
            self._content[place : place + LENGTH].copy_(mark.view(torch.uint8), non_blocking=True)
            self._awaited[place] = self._round
        self._devices.clear()

    def said(self, part: slice) -> bytes:
        return bytes(self._file.mapping[part])

    def seal(self, header: bytes) -> None:
        """Once everything is there."""
        self._file.mapping[LENGTH : LENGTH + len(header)] = header
        self._file.mapping[:LENGTH] = len(header).to_bytes(LENGTH, "little")

    def wait(self) -> None:
        if not _arrived(self._file, self._awaited, COPY_SECONDS):
            raise InvalidInput(f"the weights had not left the GPU after {COPY_SECONDS:g} s")

    def _pin(self, device: Any) -> bool:
        """Whether a GPU can write to it on its own."""
        import torch

        if not self._pinned:
            address, size = self._content.data_ptr(), len(self._content)
            failed = int(torch.cuda.cudart().cudaHostRegister(address, size, 0))
            self._pinned.append(failed == 0)
            if failed:
                # CUDA keeps an error until somebody asks, and that would be the training.
                try:
                    torch.zeros(1, device=device)
                except RuntimeError:
                    pass
        return self._pinned[0] and device.index < DEVICES


def _arrived(file: SharedFile, awaited: dict[int, int], seconds: float) -> bool:
    until = time.monotonic() + seconds
    for place, mark in list(awaited.items()):
        while file.mapping[place : place + LENGTH] != mark.to_bytes(LENGTH, sys.byteorder):
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        awaited.pop(place, None)
    return True


_never_freed: list[Any] = []


def _end(
    file: SharedFile, content: Any, pinned: list[bool], awaited: dict[int, int], maker: int
) -> None:
    if os.getpid() == maker and pinned and pinned[0]:
        import torch

        if _arrived(file, awaited, END_SECONDS):
            torch.cuda.cudart().cudaHostUnregister(content.data_ptr())
        else:
            _never_freed.append(content)  # a GPU may still write there
    file.close()
