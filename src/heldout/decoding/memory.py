"""What decoding may keep of a GPU's memory from one eval to the next."""

from __future__ import annotations

import gc
import logging
from typing import Any, Literal
from weakref import WeakKeyDictionary

from heldout.errors import InvalidInput

log = logging.getLogger("heldout")

KeepCache = bool | Literal["auto"]
SPARE_SHARE = 0.1
"""Of the memory that this process may use, left free beside what training has needed so far."""


class GpuMemory:
    """The memory of a device around an eval: what training needs, and what decoding may keep.

    Args:
        device: Of the model; on others than GPUs nothing is kept or given back.
        keep: Whether to keep graphs and caches: True, False, or "auto" while training has room.

    Raises:
        InvalidInput: `keep` is something else.
    """

    def __init__(self, device: Any, keep: KeepCache) -> None:
        if keep not in (True, False, "auto"):
            raise InvalidInput(f'keep_cache is True, False or "auto", got {keep!r}')
        self._device, self._keep = device, keep
        self._needed = 0
        """The most that training, or an eval, has had beyond what it has between steps."""
        self._retries = 0
        self._private = 0
        """Memory that only graphs can use again, ours or the trainer's."""
        if self._keep == "auto" and device.type == "cuda":
            self._read()

    def give_back(self, decoder: Any) -> None:
        """Free what a decoder keeps, unless it may be kept; at the end of an eval."""
        if self._device.type != "cuda" or self._keep is True:
            return
        if self._keep == "auto":
            import torch

            self._retries = self._read()["num_alloc_retries"]
            segments = torch.cuda.memory_snapshot()
            private = [s for s in segments if tuple(s["segment_pool_id"]) != (0, 0)]
            self._private = sum(s["total_size"] - s["allocated_size"] for s in private)
            if not self.is_tight():
                _KEEPING[decoder] = self
                return
        _release(decoder)

    def is_tight(self) -> bool:
        """Whether training might run out of memory beside what is kept."""
        import torch

        numbers = self._read()
        if numbers["num_alloc_retries"] > self._retries:  # it did not fit without emptying caches
            return True
        reserved = numbers["reserved_bytes.all.current"]
        free, total = torch.cuda.mem_get_info(self._device)
        limit = torch.cuda.get_per_process_memory_fraction(self._device) * total
        reusable = reserved - numbers["allocated_bytes.all.current"] - self._private
        return bool(min(free, limit - reserved) + reusable < self._needed + SPARE_SHARE * limit)

    def _read(self) -> dict[str, int]:
        """Read the allocator's numbers, and from them what training needs."""
        import torch

        numbers: dict[str, int] = torch.cuda.memory_stats(self._device)
        beyond = numbers["allocated_bytes.all.peak"] - numbers["allocated_bytes.all.current"]
        self._needed = max(self._needed, beyond)
        return numbers


_KEEPING: WeakKeyDictionary[Any, GpuMemory] = WeakKeyDictionary()
"""Decoders that keep something while training has room."""


def give_back_if_tight() -> None:
    """Free what decoders keep if training needs the room; between training steps."""
    for decoder, memory in list(_KEEPING.items()):
        if memory.is_tight():
            log.info("memory is tight: the next eval captures its graphs anew")
            _release(decoder)


def _release(decoder: Any) -> None:
    import torch

    _KEEPING.pop(decoder, None)
    decoder.release()
    gc.collect()  # graphs that are still referred to would keep their memory
    torch.cuda.empty_cache()
