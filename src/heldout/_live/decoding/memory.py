"""What decoding may keep of a GPU's memory from one eval to the next."""

from __future__ import annotations

import gc
import logging
from typing import Any, Literal
from weakref import WeakSet

from heldout._core.memory import available_memory
from heldout._live.decoding.model import HoldsModel, device_of
from heldout.errors import InvalidInput

log = logging.getLogger("heldout")

KeepCache = bool | Literal["auto"]
SPARE_SHARE = 0.1
"""Of the memory that this process may use, left free beside what training has needed so far."""


class KeptMemory(HoldsModel):
    """What a decoder keeps on a GPU between the evals of a model in training.

    Args:
        decoder: The decoder.
        model: Its model; elsewhere than on a GPU nothing is given back.
        keep: Whether to keep graphs and caches: True, False, or "auto" while training has room.
    """

    def __init__(self, decoder: Any, model: Any, keep: KeepCache) -> None:
        super().__init__(model)
        self._decoder, self._keep = decoder, keep
        self._evals = 0
        self._needed = 0
        """The most that training, or an eval, has had beyond what there is between steps."""
        self._retries = 0
        self._private = 0
        """Bytes that are free, but only for graphs: ours or the trainer's."""

    @property
    def _device(self) -> Any:
        return device_of(self._model)

    def begin_eval(self) -> None:
        """Note what training has needed so far."""
        if self._device.type == "cuda" and self._keep == "auto":
            self._read()

    def end_eval(self) -> None:
        """Give the memory back, unless it may be kept."""
        if self._device.type != "cuda" or self._keep is True:
            return
        if self._keep == "auto":
            self._evals += 1
            self._retries = self._read()["num_alloc_retries"]
            self._private = _count_private_bytes(self._device)
            # Before the first eval there may have been no training whose need could be known.
            if self._evals > 1 and not self.is_tight():
                _KEEPING.add(self)
                return
        self.give_back()

    def is_tight(self) -> bool:
        """Whether training might run out of memory beside what is kept."""
        numbers = self._read()
        if numbers["num_alloc_retries"] > self._retries:  # it did not fit without emptying caches
            return True
        return bool(_spare_bytes(self._device, numbers, self._private) < self._needed)

    def give_back(self) -> None:
        """Free what the decoder keeps."""
        import torch

        _KEEPING.discard(self)
        self._decoder.release()
        gc.collect()  # graphs that are still referred to would keep their memory
        torch.cuda.empty_cache()

    def _read(self) -> dict[str, int]:
        """Read the allocator's numbers, and from them what training needs."""
        import torch

        numbers: dict[str, int] = torch.cuda.memory_stats(self._device)
        beyond = numbers["allocated_bytes.all.peak"] - numbers["allocated_bytes.all.current"]
        self._needed = max(self._needed, beyond)
        return numbers


def has_room(device: Any, size: int) -> bool:
    """Whether so many bytes can be kept on a device without taking what training needs.

    Args:
        device: The device.
        size: Bytes that are not allocated yet.
    """
    import torch

    if torch.device(device).type != "cuda":
        return 2 * size <= available_memory()
    numbers = torch.cuda.memory_stats(device)
    needed = numbers["allocated_bytes.all.peak"] - numbers["allocated_bytes.all.current"]
    return bool(_spare_bytes(device, numbers) >= needed + size)


def _spare_bytes(device: Any, numbers: dict[str, int], private: int = 0) -> float:
    """Return what can be allocated on a GPU, less a share that stays free in any case."""
    import torch

    reserved = numbers["reserved_bytes.all.current"]
    free, total = torch.cuda.mem_get_info(device)
    limit = torch.cuda.get_per_process_memory_fraction(device) * total
    reusable = reserved - numbers["allocated_bytes.all.current"] - private
    return float(min(free, limit - reserved) + reusable - SPARE_SHARE * limit)


_KEEPING: WeakSet[KeptMemory] = WeakSet()
"""What is kept while training has room."""


def give_back_if_tight() -> None:
    """Free what is kept beside training if it needs the room; between training steps."""
    for memory in list(_KEEPING):
        if memory.is_tight():
            log.info("GPU memory is tight: the next eval captures its graphs anew")
            memory.give_back()


def check_keep_cache(keep: object) -> None:
    """Refuse what is no value of `keep_cache`."""
    if keep not in (True, False, "auto"):
        raise InvalidInput(f'keep_cache is True, False or "auto", got {keep!r}')


def _count_private_bytes(device: Any) -> int:
    import torch

    private = (
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot()
        if segment["device"] == device.index and tuple(segment["segment_pool_id"]) != (0, 0)
    )
    return sum(private)
