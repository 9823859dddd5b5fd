"""Training in several processes: who evaluates what.

`Alone` is the one process of a plain script; `TorchRanks` those of torch.distributed. What passes
between them is bytes.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec


class RanksApart(Exception):
    """The processes could not be brought together: one is gone, or came too late."""


class Ranks(Protocol):
    """The processes that train together."""

    @property
    def rank(self) -> int:
        """Index of this process."""

    @property
    def world(self) -> int:
        """Number of processes."""

    def gather(self, mine: bytes) -> list[bytes]:
        """Give every rank what each of them brought, in their order."""
        ...

    def from_first(self, mine: bytes) -> bytes:
        """Give every rank what rank 0 brought."""
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """A single process."""

    rank: int = 0
    world: int = 1

    def gather(self, mine: bytes) -> list[bytes]:
        """Return what this process brought."""
        return [mine]

    def from_first(self, mine: bytes) -> bytes:
        """Return what this process brought."""
        return mine


class TorchRanks:
    """The processes of torch.distributed's default group."""

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        self.rank: int = distributed.get_rank()
        self.world: int = distributed.get_world_size()

    def gather(self, mine: bytes) -> list[bytes]:
        """Gather bytes; RanksApart where a process does not answer."""
        try:
            return self._gather(mine)
        except Exception as problem:
            # A rank that has died, or torch's timeout. The training will notice for itself.
            raise RanksApart(
                f"the processes do not reach each other: {type(problem).__name__}: {problem}"
            ) from problem

    def _gather(self, mine: bytes) -> list[bytes]:
        import torch

        # As bytes, not by all_gather_object, which would pickle them.
        device = self._device()
        sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self.world)]
        own = torch.tensor([len(mine)], dtype=torch.int64, device=device)
        self._distributed.all_gather(sizes, own)
        longest = max(1, *(int(size) for size in sizes))
        padded = torch.zeros(longest, dtype=torch.uint8, device=device)
        if mine:
            padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device)
        rows = [torch.zeros_like(padded) for _ in range(self.world)]
        self._distributed.all_gather(rows, padded)
        whole = [row.cpu().numpy().tobytes() for row in rows]
        return [row[: int(size)] for row, size in zip(whole, sizes, strict=True)]

    def from_first(self, mine: bytes) -> bytes:
        """Give every rank what rank 0 brought."""
        return self.gather(mine if self.rank == 0 else b"")[0]

    def _device(self) -> str:
        """Return where bytes are sent from: memory, where the group can do that (gloo)."""
        kinds = [device.type for device in self._distributed.group.WORLD._device_types]
        return "cpu" if "cpu" in kinds or not kinds else str(kinds[0])


def current_ranks() -> Ranks:
    """Return the processes of torch.distributed, where it is initialised."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Alone()
    return TorchRanks(distributed) if distributed.get_world_size() > 1 else Alone()


def agree(ranks: Ranks, mine: Any, kind: Any) -> Any:
    """Return what the first process brought, in every process.

    Args:
        ranks: The processes, each of which calls this.
        mine: What this process brought, a value that JSON holds.
        kind: Its type.
    """
    if ranks.world == 1:
        return mine
    return msgspec.json.decode(ranks.from_first(msgspec.json.encode(mine)), type=kind)


def is_first_process(ranks: Ranks | None = None) -> bool:
    """Return whether this process is the one that writes.

    Args:
        ranks: The processes. Before they have met, the variable RANK says which this is.
    """
    return os.environ.get("RANK", "0") == "0" and (ranks or current_ranks()).rank == 0
