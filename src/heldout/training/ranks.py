"""Training in several processes: exchanging bytes between them.

`Alone` is the single process of a plain script; `TorchRanks` are those of torch.distributed. They
talk over a gloo group of their own: a collective of NCCL would keep the GPU busy while it waits,
and end the process where it waits too long.
"""

from __future__ import annotations

import os
import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import msgspec


class RanksApart(Exception):
    """The processes could not communicate: one has ended, or was too late."""


class Ranks(Protocol):
    """The processes that train together."""

    @property
    def rank(self) -> int:
        """Index of this process."""

    @property
    def world(self) -> int:
        """Number of processes."""

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Return the bytes of all ranks, in order."""
        ...

    def broadcast(self, mine: bytes) -> bytes:
        """Return the bytes of rank 0."""
        ...

    @property
    def patience(self) -> float | None:
        """Seconds that a process may let the others wait; None for no limit."""


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """How long an eval may take."""

    seconds: float | None = None
    text: str = ""
    """The limit and who has set it, for a partial result."""
    is_cut: bool = False
    """Whether the other processes do not wait for as long as was asked."""

    @classmethod
    def of(cls, max_seconds: float | None, ranks: Ranks) -> TimeLimit:
        """Return how long an eval may take that other processes wait for.

        Args:
            max_seconds: As for `PeriodicEval`.
            ranks: The processes.
        """
        asked = "max_seconds=None" if max_seconds is None else f"max_seconds={max_seconds:g}"
        patience = ranks.patience
        if patience is None or (max_seconds is not None and max_seconds <= patience):
            return cls(max_seconds, "" if max_seconds is None else asked)
        text = f"{asked}, cut to {patience:g} s by the timeout of the process group"
        return cls(patience, text, is_cut=True)


NO_LIMIT = TimeLimit()


@dataclass(frozen=True, slots=True)
class Alone:
    """A single process."""

    rank: int = 0
    world: int = 1
    patience: float | None = None

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Return the bytes of this process."""
        return [mine]

    def broadcast(self, mine: bytes) -> bytes:
        """Return the bytes of this process."""
        return mine


class TorchRanks:
    """The processes of torch.distributed's default group."""

    def __init__(self, distributed: Any) -> None:
        self._distributed = distributed
        self.rank: int = distributed.get_rank()
        self.world: int = distributed.get_world_size()

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Return the bytes of all ranks; RanksApart if a process does not answer."""
        try:
            return self._gather(mine)
        except Exception as problem:
            # A rank that has died, or torch's timeout. The training will notice for itself.
            raise RanksApart(
                f"the processes cannot reach each other: {type(problem).__name__}: {problem}"
            ) from problem

    def _gather(self, mine: bytes) -> list[bytes]:
        import torch

        # As bytes, not by all_gather_object, which would pickle them.
        group, device = self._find_group()
        sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self.world)]
        own = torch.tensor([len(mine)], dtype=torch.int64, device=device)
        self._distributed.all_gather(sizes, own, group=group)
        longest = max(1, *(int(size) for size in sizes))
        padded = torch.zeros(longest, dtype=torch.uint8, device=device)
        if mine:
            padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device)
        rows = [torch.zeros_like(padded) for _ in range(self.world)]
        self._distributed.all_gather(rows, padded, group=group)
        whole = [row.cpu().numpy().tobytes() for row in rows]
        return [row[: int(size)] for row, size in zip(whole, sizes, strict=True)]

    def broadcast(self, mine: bytes) -> bytes:
        """Return the bytes of rank 0."""
        return self.all_gather(mine if self.rank == 0 else b"")[0]

    @property
    def patience(self) -> float | None:
        """Seconds that a process may let the others wait: less than the process group's timeout."""
        seconds = self._timeout().total_seconds()
        return seconds - min(60.0, seconds / 4)

    def _timeout(self) -> timedelta:
        """Return the shortest timeout of the default group's backends."""
        import torch

        world = self._distributed.group.WORLD
        kinds = [torch.device(device.type) for device in getattr(world, "_device_types", ())]
        limits: list[timedelta] = []
        for kind in kinds:
            with suppress(AttributeError, RuntimeError):  # a backend that does not say (MPI)
                limits.append(world._get_backend(kind).options._timeout)
        return min(limits, default=self._distributed.default_pg_timeout)

    def _find_group(self) -> tuple[Any, str]:
        """Return the group to talk in, and the device that bytes are sent from."""
        distributed = self._distributed
        world = distributed.group.WORLD
        if not distributed.is_gloo_available():
            return world, str(world._device_types[0].type)
        if (group := _own_groups.get(world)) is None:
            # A collective, too: every process is here for the first time. It would wait for one
            # that has ended until the timeout, which gloo notices at once.
            if distributed.get_backend() == "gloo":
                distributed.barrier()
            group = distributed.new_group(backend="gloo", timeout=self._timeout())
            _own_groups[world] = group
        return group, "cpu"


_own_groups: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""The gloo group that heldout talks in, by the default group that it belongs to."""


def current_ranks() -> Ranks:
    """Return the processes of torch.distributed, if it is initialised, else `Alone`."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return Alone()
    return TorchRanks(distributed) if distributed.get_world_size() > 1 else Alone()


def agree(ranks: Ranks, mine: Any, kind: Any) -> Any:
    """Return the value of the first process, in every process.

    Args:
        ranks: The processes, each of which calls this.
        mine: The value of this process, which JSON can represent.
        kind: Its type.
    """
    if ranks.world == 1:
        return mine
    return msgspec.json.decode(ranks.broadcast(msgspec.json.encode(mine)), type=kind)


def exchange(ranks: Ranks, mine: Any, kind: Any) -> list[Any]:
    """Return the values of all processes, in order.

    Args:
        ranks: The processes, each of which calls this.
        mine: The value of this process, which JSON can represent.
        kind: Its type.
    """
    if ranks.world == 1:
        return [mine]
    return [
        msgspec.json.decode(raw, type=kind) for raw in ranks.all_gather(msgspec.json.encode(mine))
    ]


def is_first_process(ranks: Ranks | None = None) -> bool:
    """Return whether this process is the one that writes.

    Args:
        ranks: The processes. Before torch.distributed is initialised, the launcher's variables
            decide.
    """
    return not launcher_rank() and (ranks or current_ranks()).rank == 0


def launcher_rank() -> str:
    """Return the variables by which a launcher says that this process is not the first; "" if none.

    Launchers that set RANK for torch set WORLD_SIZE, too: RANK alone is what a job array gives its
    jobs, each of which trains alone. Lightning's own launcher sets LOCAL_RANK and NODE_RANK, which
    may be all there is where processes are started by hand.
    """
    environ = os.environ
    if "RANK" in environ:
        names = ["RANK", "WORLD_SIZE"] if environ.get("WORLD_SIZE", "1") != "1" else []
        is_other = bool(names) and environ["RANK"] != "0"
    else:
        names = [name for name in ("LOCAL_RANK", "NODE_RANK") if name in environ]
        is_other = any(environ[name] != "0" for name in names)
    return " and ".join(f"{name}={environ[name]}" for name in names) if is_other else ""
