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
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from heldout.errors import InvalidInput
from heldout.weights import (
    Copy,
    Named,
    adapter_states,
    checked_copy,
    named_tensors,
    readable,
    totals,
    why_not_whole,
)

ALIGNMENT = 64
MAX_DEVICES = 64
MARK_BYTES = 8 * MAX_DEVICES
"""The memory begins with one number for each GPU: see `_Memory`."""
COPY_SECONDS = 600.0
RELEASE_SECONDS = 10.0


class TensorLayout(msgspec.Struct, frozen=True):
    """Where a tensor lies. Names of the same tensor have the same offset."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class Layout(msgspec.Struct, frozen=True):
    """What a buffer holds."""

    tensors: list[TensorLayout]
    frozen: list[str] = []
    """Names of the weights that were not copied, since they are not trained."""
    frozen_checksums: list[int] = []
    """`checksums` of those."""
    adapters: dict[str, Any] = {}
    """What PEFT holds besides weights (`heldout.weights.adapter_states`)."""


def read_tensors(fd: int, layout: Layout) -> dict[str, Any]:
    """Map the tensors of a buffer.

    Args:
        fd: The file descriptor of the buffer.
        layout: What `WeightBuffer.wait` has returned.

    Returns:
        Tensors by name. What is written to them stays in this process.
    """
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
    return totals([t.contiguous() if t.layout is torch.strided else t for t in tensors])


class WeightBuffer:
    """Memory for one snapshot of weights at a time; the next one is written over it.

    Args:
        copy: "trainable" copies parameters that require gradients, and buffers; "all" copies all.
    """

    def __init__(self, *, copy: Copy = "trainable") -> None:
        self._copy = checked_copy(copy)
        self._memory = _Memory()
        self.fd = self._memory.fd
        self._layout: Layout | None = None
        self._checksum_offsets = range(0)
        self.close = weakref.finalize(self, self._memory.release)
        self.close.atexit = False  # then the system frees it

    def write(self, model: Any) -> None:
        """Copy the weights, in the trainer's thread.

        Copies from a GPU are enqueued in its current stream, and this returns before they are
        done: what training does next waits for them on the GPU, not this thread.

        Args:
            model: The model in training.

        Raises:
            InvalidInput: Its weights cannot be copied, or there is no memory for them.
        """
        import torch

        self._layout = None
        with torch.inference_mode(False), torch.no_grad():
            copied, frozen = _split_weights(model, self._copy)
            layout, end = _plan_layout(copied, frozen, adapter_states(model))
            sums = checksums([named.tensor for named in frozen])
            self._memory.reserve(end + 8 * len(sums))
            sources = {
                id(named.tensor): (spec.offset, named)
                for spec, named in zip(layout.tensors, copied, strict=True)
            }
            try:
                for offset, named in sources.values():
                    self._memory.copy(offset, _as_bytes(named))
                if sums:
                    together = torch.stack([each.to(sums[0].device) for each in sums])
                    self._memory.copy(end, together.view(torch.uint8))
                self._checksum_offsets = range(end, end + 8 * len(sums), 8)
            finally:
                self._memory.mark()
        self._layout = layout

    def wait(self) -> Layout:
        """Wait until the last `write` is complete. In any thread.

        Returns:
            What is in the buffer.

        Raises:
            InvalidInput: There is no snapshot, or the GPU has not copied it in time.
        """
        if self._layout is None:
            raise InvalidInput("there is no snapshot of the weights: none was written to its end")
        self._memory.wait()
        sums = [self._memory.read_number(offset) for offset in self._checksum_offsets]
        return msgspec.structs.replace(self._layout, frozen_checksums=sums)


# --- What is in a model -------------------------------------------------------------------------


def _split_weights(model: Any, copy: Copy) -> tuple[list[Named], list[Named]]:
    """The tensors to copy, and the frozen ones."""
    import torch

    if (reason := why_not_whole(model)) is not None:
        raise InvalidInput(reason)
    tensors = named_tensors(model)
    if not tensors:
        raise InvalidInput(f"a model with weights is needed for a snapshot, got {model!r:.100}")
    by_name: dict[str, Any] = {}
    copied: list[Named] = []
    frozen: list[Named] = []
    for named in tensors:
        if by_name.setdefault(named.name, named.tensor) is not named.tensor:
            raise InvalidInput(f"two tensors of the model are named {named.name}")
        fixed = isinstance(named.tensor, torch.nn.Parameter) and not named.tensor.requires_grad
        (frozen if fixed and copy == "trainable" else copied).append(named)
    return copied, frozen


def _plan_layout(
    copied: Sequence[Named], frozen: Sequence[Named], adapters: dict[str, Any]
) -> tuple[Layout, int]:
    """The layout, and where its last tensor ends."""
    end = MARK_BYTES
    offsets: dict[int, int] = {}
    specs = []
    for name, tensor in copied:
        if id(tensor) not in offsets:
            offsets[id(tensor)] = end
            end = _align(end + tensor.numel() * tensor.element_size())
        dtype = str(tensor.dtype).removeprefix("torch.")
        specs.append(TensorLayout(name, dtype, tuple(tensor.shape), offsets[id(tensor)]))
    return Layout(specs, [named.name for named in frozen], adapters=adapters), end


def _align(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


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


# --- Memory -------------------------------------------------------------------------------------


class _Memory:
    """Shared memory as torch sees it, and the copies into it that a GPU has yet to make.

    After its copies each GPU writes a mark, a number that grows with every snapshot, and `wait`
    polls for it. Waiting for a CUDA event instead would break a CUDA graph that the trainer's
    thread may be capturing at that moment.
    """

    def __init__(self) -> None:
        self.fd = _create_file()
        self._content: Any = None
        self._pinned: bool | None = None
        self._devices: set[Any] = set()
        self._mark = 0
        self._expected_marks: dict[int, int] = {}
        self._owner = os.getpid()

    def reserve(self, size: int) -> None:
        """Wait for earlier copies and grow to at least this size."""
        import torch

        self.wait()
        if self._content is None or size > len(self._content):
            self._unpin()
            _allocate(self.fd, size)
            self._content = torch.frombuffer(mmap.mmap(self.fd, size), dtype=torch.uint8)

    def copy(self, offset: int, source: Any) -> None:
        enqueue = source.is_cuda and self._pin(source.device)
        if enqueue:
            self._devices.add(source.device)
        self._content[offset : offset + len(source)].copy_(source, non_blocking=enqueue)

    def mark(self) -> None:
        """Have each GPU write a mark after what it was to copy."""
        import torch

        self._mark += 1
        for device in self._devices:
            mark = torch.full((1,), self._mark, dtype=torch.int64, device=device)
            offset = 8 * device.index
            self._content[offset : offset + 8].copy_(mark.view(torch.uint8), non_blocking=True)
            self._expected_marks[offset] = self._mark
        self._devices.clear()

    def wait(self) -> None:
        if not self._marks_arrive(COPY_SECONDS):
            raise InvalidInput(f"the weights had not left the GPU after {COPY_SECONDS:g} s")

    def read_number(self, offset: int) -> int:
        import torch

        return int(self._content[offset : offset + 8].view(torch.int64))

    def release(self) -> None:
        """Free the memory, but for what a forked child shares with its parent."""
        if os.getpid() == self._owner:
            self._unpin()
            self._content = None
            os.close(self.fd)

    def _marks_arrive(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        for offset, mark in list(self._expected_marks.items()):
            while self.read_number(offset) != mark:
                if time.monotonic() > deadline:
                    return False
                time.sleep(0.001)
            self._expected_marks.pop(offset, None)
        return True

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
        return self._pinned and device.index < MAX_DEVICES

    def _unpin(self) -> None:
        if self._pinned:
            import torch

            if self._marks_arrive(RELEASE_SECONDS):
                torch.cuda.cudart().cudaHostUnregister(self._content.data_ptr())
            else:
                _still_written.append(self._content)
        self._pinned = None


_still_written: list[Any] = []
"""Memory that a GPU may still write to, and that is never freed."""


def _create_file() -> int:
    if sys.platform == "linux":
        return os.memfd_create("heldout-weights", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix="heldout-weights-") as file:
        return os.dup(file.fileno())


def _allocate(fd: int, size: int) -> None:
    """Allocate all of it now: training would be killed where memory ran out in a later write."""
    if sys.platform != "linux":
        os.ftruncate(fd, size)
        return
    missing, available = size - os.fstat(fd).st_size, _available_memory()
    if missing > available:
        raise InvalidInput(
            f"there is no room for {size / 2**20:,.0f} MiB of weights in shared memory: "
            f"{available / 2**20:,.0f} MiB of memory are available"
        )
    os.posix_fallocate(fd, 0, size)


def _available_memory() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


__all__ = ["Layout", "WeightBuffer", "checksums", "read_tensors"]
