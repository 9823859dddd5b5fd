"""What decoding may keep of a GPU's memory from one eval to the next."""

from __future__ import annotations

import gc
from typing import Any, Literal

from heldout.errors import InvalidInput

KeepCache = bool | Literal["auto"]
SPARE_SHARE = 0.05
"""Of the GPU's memory, left free beside what training has needed so far."""


class GpuMemory:
    """The memory of a device at the start of an eval, to be compared with that at its end.

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
        if self._keep == "auto" and device.type == "cuda":
            import torch

            numbers = torch.cuda.memory_stats(device)
            now = numbers["allocated_bytes.all.current"]
            # At its highest, training (or an eval) had this much more than it has between steps.
            self._needed = numbers["allocated_bytes.all.peak"] - now
            self._reusable = numbers["reserved_bytes.all.current"] - now

    def give_back(self, decoder: Any) -> None:
        """Free what a decoder keeps, unless it may be kept; at the end of an eval."""
        if self._device.type != "cuda" or self._keep is True:
            return
        import torch

        if self._keep == "auto":
            free, total = torch.cuda.mem_get_info(self._device)
            share = torch.cuda.get_per_process_memory_fraction(self._device)
            free = min(free, share * total - torch.cuda.memory_reserved(self._device))
            if free + self._reusable >= self._needed + SPARE_SHARE * total:
                return
        decoder.release()
        gc.collect()  # graphs that are still referred to would keep their memory
        torch.cuda.empty_cache()
