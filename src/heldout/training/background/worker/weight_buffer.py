"""Weights of a model in training in memory that another process reads.

    buffer = WeightBuffer()              # its `fd` is inherited by the other process
    buffer.write(model)                  # in the trainer's thread; a GPU copies in the background
    layout = buffer.wait()               # in any thread; the layout is sent in a message
    read_tensors(fd, layout)             # in the other process: tensors by name, without a copy

The memory is an anonymous file (`memfd_create`) without a name in any directory, so nothing is left
of it when the last process that holds it ends, however that happens. It grows in place. Frozen
weights are not copied: their checksums are sent, for the reader to compare with its own.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from heldout._core.memory import available_memory
from heldout._live.weights import (
    Copy,
    Named,
    adapter_states,
    checked_copy,
    explain_sharding,
    named_tensors,
    read_sums,
    readable,
    sum_bits,
)
from heldout.errors import InvalidInput
from heldout.training.sharding import ShardedModel

ALIGNMENT = 64
MARK_BYTES = 512
"""The memory begins with a mark of 8 bytes for each GPU: see `WeightBuffer.wait`."""
COPY_SECONDS = 600.0


class TensorLayout(msgspec.Struct, frozen=True):
    """Where a tensor lies. Names of the same tensor have the same offset."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class BufferLayout(msgspec.Struct, frozen=True):
    """What a buffer holds."""

    tensors: list[TensorLayout]
    frozen: list[str] = []
    """Names of the weights that were not copied, since they are not trained."""
    frozen_checksums: list[int] = []
    adapters: dict[str, Any] = {}
    """What PEFT holds besides weights (`heldout._live.weights.adapter_states`)."""


def read_tensors(fd: int, layout: BufferLayout) -> dict[str, Any]:
    """Map the tensors of a buffer by name. What is written to them stays in this process."""
    import torch

    content = torch.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    tensors = {}
    for spec in layout.tensors:
        dtype = getattr(torch, spec.dtype)
        size = math.prod(spec.shape) * dtype.itemsize
        own = content[spec.offset : spec.offset + size]
        tensors[spec.name] = own.view(dtype).view(spec.shape)
    return tensors


def checksums(tensors: Sequence[Any]) -> list[Any]:
    """A few numbers for each tensor, as tensors on its device. Nothing waits for the device."""
    import torch

    # Of others the numbers would depend on how they lie in memory.
    return sum_bits([t.contiguous() if t.layout is torch.strided else t for t in tensors])


class WeightBuffer:
    """Memory for one snapshot of weights at a time; the next one is written over it."""

    fd = -1
    """The file descriptor of the memory; -1 where it is closed."""

    def __init__(self, *, copy: Copy = "trainable") -> None:
        self._copy = checked_copy(copy)
        self.fd = create_memory()
        self._layout: BufferLayout | None = None
        self._checksum_offsets = range(0)
        self._frozen_sums: dict[int, list[int]] = {}
        """Of a sharded model: the checksums of frozen tensors, by their identity."""
        self._has_frozen: list[str] | None = None
        """Of a sharded model: hashes of the frozen weights that those are of."""
        self._content: Any = None
        """The memory as a tensor of bytes."""
        self._pinned: bool | None = None
        self._mark = 0
        self._expected_marks: dict[int, int] = {}

    def __del__(self) -> None:
        if not sys.is_finalizing():  # else the system frees it
            self.close()

    @property
    def size(self) -> int:
        """Bytes that it takes; 0 before the first snapshot."""
        return 0 if self.fd < 0 else os.fstat(self.fd).st_size

    def close(self) -> None:
        """Free the memory."""
        if self.fd >= 0:
            self._unpin()
            self._content = None
            os.close(self.fd)
            self.fd = -1

    def write(self, model: Any) -> None:
        """Copy the weights, in the trainer's thread; InvalidInput where they cannot be copied.

        Copies from a GPU are enqueued in its current stream, and this returns before they are
        done: what training does next waits for them on the GPU, not this thread. The weights of a
        `ShardedModel` are gathered here, tensor by tensor.
        """
        import torch

        self._layout = None
        if isinstance(model, ShardedModel):
            with torch.inference_mode(False), torch.no_grad():
                self._layout = self._gather(model)
            return
        if (reason := explain_sharding(model)) is not None:
            raise InvalidInput(reason)
        with torch.inference_mode(False), torch.no_grad():
            layout, copied, frozen, end = _plan_layout(model, self._copy)
            sums = checksums(frozen)
            self._checksum_offsets = range(end, end + 8 * len(sums), 8)
            self._reserve(end + 8 * len(sums))
            devices: set[Any] = set()
            try:
                for offset, named in copied.items():
                    self._copy_bytes(offset, _as_bytes(named), devices)
                if sums:
                    together = torch.stack([total.to(sums[0].device) for total in sums])
                    self._copy_bytes(end, together.view(torch.uint8), devices)
            finally:
                self._mark_copies(devices)
        self._layout = layout

    def _gather(self, sharded: ShardedModel) -> BufferLayout:
        """Gather the weights of a sharded model, and those that are frozen only for checksums."""
        try:
            layout, copied, frozen, end = _plan_layout(sharded.model, self._copy, sharded)
            self._reserve(end)
        except BaseException as problem:
            sharded.decline(problem)
            raise
        needs_all = self._copy == "all" or self._has_frozen is None
        known, self._has_frozen = self._has_frozen, None
        offsets = {id(named.tensor): offset for offset, named in copied.items()}
        names = {id(named.tensor): named.name for named in copied.values()}
        devices: set[Any] = set()

        def receive(tensor: Any, whole: Any) -> None:
            if id(tensor) in offsets:
                content = _as_bytes(Named(names[id(tensor)], whole))
                self._copy_bytes(offsets[id(tensor)], content, devices)
            else:
                self._frozen_sums[id(tensor)] = read_sums(checksums([whole]))

        try:
            has_frozen = sharded.gather_weights(receive, needs_all=needs_all, known_frozen=known)
            for offset, named in copied.items():
                if sharded.shape_of(named.tensor) is None:
                    self._copy_bytes(offset, _as_bytes(named), devices)
        finally:
            self._mark_copies(devices)
        sums: list[int] = []
        for tensor in frozen:
            is_sharded = sharded.shape_of(tensor) is not None
            whole = self._frozen_sums[id(sharded.primary(tensor))] if is_sharded else None
            sums += read_sums(checksums([tensor])) if whole is None else whole
        self._checksum_offsets = range(0)
        self._has_frozen = has_frozen
        return msgspec.structs.replace(layout, frozen_checksums=sums)

    def wait(self) -> BufferLayout:
        """Wait, in any thread, until the last `write` is complete, and say what it wrote."""
        if self._layout is None:
            raise InvalidInput("there is no snapshot of the weights: none was written to its end")
        self._wait_for_marks()
        sums = [self._read_number(offset) for offset in self._checksum_offsets]
        sums = sums or self._layout.frozen_checksums
        return msgspec.structs.replace(self._layout, frozen_checksums=sums)

    def content(self) -> Any:
        """What the last `write` has written, as a NumPy array of bytes, without a copy."""
        return self._content.numpy()

    def _reserve(self, size: int) -> None:
        import torch

        self._wait_for_marks()
        if self._content is None or size > len(self._content):
            self._unpin()
            _allocate(self.fd, size)
            self._content = torch.frombuffer(mmap.mmap(self.fd, size), dtype=torch.uint8)

    def _copy_bytes(self, offset: int, source: Any, devices: set[Any]) -> None:
        enqueue = source.is_cuda and self._pin(source.device)
        if enqueue:
            devices.add(source.device)
        self._content[offset : offset + len(source)].copy_(source, non_blocking=enqueue)

    def _mark_copies(self, devices: set[Any]) -> None:
        """Have each GPU write a number after what it was to copy.

        Waiting for a CUDA event instead would break a CUDA graph that the trainer's thread may be
        capturing at that moment.
        """
        import torch

        self._mark += 1
        for device in devices:
            mark = torch.full((1,), self._mark, dtype=torch.int64, device=device)
            offset = 8 * device.index
            self._content[offset : offset + 8].copy_(mark.view(torch.uint8), non_blocking=True)
            self._expected_marks[offset] = self._mark

    def _wait_for_marks(self) -> None:
        deadline = time.monotonic() + COPY_SECONDS
        for offset, mark in list(self._expected_marks.items()):
            while self._read_number(offset) != mark:
                if time.monotonic() > deadline:
                    raise InvalidInput(f"the weights had not left the GPU after {COPY_SECONDS:g} s")
                time.sleep(0.001)
            self._expected_marks.pop(offset, None)

    def _read_number(self, offset: int) -> int:
        import torch

        return int(self._content[offset : offset + 8].view(torch.int64))

    def _pin(self, device: Any) -> bool:
        """Whether a GPU can write to it on its own."""
        import torch

        if self._pinned is None:
            address, size = self._content.data_ptr(), len(self._content)
            error = int(torch.cuda.cudart().cudaHostRegister(address, size, 0))
            self._pinned = error == 0
            if error:
                # CUDA keeps an error until the next call asks, which would be the training's.
                with suppress(RuntimeError):
                    torch.zeros(1, device=device)
        return self._pinned

    def _unpin(self) -> None:
        if self._pinned:
            import torch

            self._wait_for_marks()
            torch.cuda.cudart().cudaHostUnregister(self._content.data_ptr())
        self._pinned = None


def _plan_layout(
    model: Any, copy: Copy, sharded: ShardedModel | None = None
) -> tuple[BufferLayout, dict[int, Named], list[Any], int]:
    """The layout, what to copy to which offset, the frozen tensors, and where the last one ends."""
    import torch

    tensors = named_tensors(model)
    if not tensors:
        raise InvalidInput(f"a model with weights is needed for a snapshot, got {model!r:.100}")
    layout = BufferLayout([], [], adapters=adapter_states(model))
    frozen: list[Any] = []
    offsets: dict[int, int] = {}
    copied: dict[int, Named] = {}
    end = MARK_BYTES
    for name, tensor in tensors:
        shape = tensor.shape
        if sharded is not None and sharded.shape_of(tensor) is not None:
            tensor, shape = sharded.primary(tensor), sharded.shape_of(tensor)
        fixed = isinstance(tensor, torch.nn.Parameter) and not tensor.requires_grad
        if fixed and copy == "trainable":
            layout.frozen.append(name)
            frozen.append(tensor)
            continue
        if id(tensor) not in offsets:  # tied weights have several names
            offsets[id(tensor)] = end
            copied[end] = Named(name, tensor)
            end += math.ceil(math.prod(shape) * tensor.element_size() / ALIGNMENT) * ALIGNMENT
        dtype = str(tensor.dtype).removeprefix("torch.")
        layout.tensors.append(TensorLayout(name, dtype, tuple(shape), offsets[id(tensor)]))
    return layout, copied, frozen, end


def _as_bytes(named: Named) -> Any:
    """The content of a tensor where it lies, as flat bytes."""
    import torch

    name, tensor = named
    local = readable(tensor)
    if local is None:
        raise InvalidInput(f"{name} has no content here (meta device, or spread by ZeRO-3)")
    # A tensor that is made of others (torchao's) has no bytes of its own.
    composed = hasattr(local, "__tensor_flatten__")
    if tensor.is_quantized or composed or local.layout is not torch.strided:
        raise InvalidInput(
            f"{name} ({type(tensor).__name__}, {tensor.dtype}) is of a kind that cannot be copied "
            "as bytes"
        )
    return local.contiguous().reshape(-1).view(torch.uint8)


def fill(fd: int, content: Any) -> None:
    """Replace what a buffer's memory holds with an array of bytes."""
    import torch

    _allocate(fd, len(content))
    with mmap.mmap(fd, len(content)) as memory:
        torch.frombuffer(memory, dtype=torch.uint8).copy_(torch.from_numpy(content))


def create_memory() -> int:
    """Create memory that other processes can share by its file descriptor."""
    if sys.platform == "linux":
        return os.memfd_create("heldout-weights", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix="heldout-weights-") as file:
        return os.dup(file.fileno())


def _allocate(fd: int, size: int) -> None:
    """Allocate all of it now: training would be killed where memory ran out in a later write."""
    if sys.platform != "linux":
        os.ftruncate(fd, size)
        return
    missing, available = size - os.fstat(fd).st_size, available_memory()
    if missing > available:
        raise InvalidInput(
            f"there is no room for {size / 2**20:,.0f} MiB of weights in shared memory: "
            f"{available / 2**20:,.0f} MiB of memory are available"
        )
    os.posix_fallocate(fd, 0, size)
