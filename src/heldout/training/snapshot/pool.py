"""Weights as they were at a step, held fast while training goes on: shadows of a model.

    shadows = SnapshotPool()
    snapshot = shadows.try_take(model, step=40)     # in the trainer's thread, after the optimizer
    …
    with snapshot.in_use():                         # in the thread that evaluates
        point = measure(snapshot.model)
    snapshot.release()                              # from there, too: the shadow is free again

A shadow is a model of its own (`replica.py`) into whose memory weights are copied. On
a GPU the copy is only enqueued, in the stream that trains: what the optimizer writes later comes
after it, and the trainer is held up for the enqueuing alone. Who evaluates waits for the copy, in a
stream of its own.

Nothing here draws random numbers or touches what is global to the process, and no bit of the model
in training is written to.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from heldout.decoding.model import unwrap
from heldout.errors import InvalidInput
from heldout.isolation import modules_of, modules_put_back, thread_local_capture_mode
from heldout.training.snapshot.replica import Replica, Transfer
from heldout.weights import Copy, checked_copy, fingerprint, numbers, totals


class PolicyVersion(NamedTuple):
    """Which weights these were."""

    step: int
    weights: str | None
    """`heldout.weights.fingerprint` of them."""


class WeightSnapshot:
    """The weights of a model as they were at a step, in a model of their own: a shadow."""

    def __init__(self, shadow: _Shadow, *, step: int, pool: SnapshotPool) -> None:
        self.step = step
        self._shadow: _Shadow | None = shadow
        self._pool = pool
        self._lock = threading.Lock()
        self._version: PolicyVersion | None = None
        self._setting = _Setting.of_this_thread(pool._device)

    @property
    def model(self) -> Any:
        """In eval mode, without gradients. Only until the snapshot is released: then its memory
        is filled with other weights."""
        return self._held().replica.model

    def version(self) -> PolicyVersion:
        """Computed when first asked for, of the shadow: to be asked where it is evaluated."""
        if self._version is None:
            with self.in_use():
                self._version = PolicyVersion(self.step, fingerprint(self.model))
        return self._version

    def why_changed(self) -> str | None:
        """Why its weights are not those of its step; None where they are.

        Frozen weights are shared with the model in training, or were copied only once. Who writes
        to them all the same, as merging adapters into them does, changes what is measured. What
        they add up to is kept at each snapshot, since torch does not count writes through `.data`.
        """
        shadow = self._held()
        if not shadow.replica.fixed:
            return None
        with self.in_use():
            if shadow.is_as_taken():
                return None
        shadow.replica.copy_all_again()
        return (
            "frozen weights, which a shadow shares with the model in training or copies only once, "
            'were written to before its eval was over; SnapshotPool(copy="all") copies them '
            "each time"
        )

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Around what uses the shadow, in the thread that does: without gradients, on the shadow's
        device, in a stream of its own, once the copy is there; with the default device and the
        autocast that the trainer's thread had when it was taken.

        On the way out it is waited for until the device has done all of it, and configs and
        switches of the shadow are put back as they were.
        """
        import torch

        shadow = self._held()
        kept = modules_put_back(modules_of(shadow.replica.model))
        with thread_local_capture_mode(), shadow.current(), torch.no_grad(), _casts_kept(torch), self._setting.entered(), kept:
            yield

    def release(self) -> None:
        """Give the shadow back to its pool. A second time does nothing."""
        with self._lock:
            shadow, self._shadow = self._shadow, None
        if shadow is not None:
            self._pool._put_back(shadow)

    def _held(self) -> _Shadow:
        shadow = self._shadow
        if shadow is None:
            raise InvalidInput(
                f"the snapshot of step {self.step} was released; its memory may hold the weights "
                "of a later step by now"
            )
        return shadow


class SnapshotPool:
    """A bounded number of shadows, made when they are needed and used again and again.

    With `copy="trainable"` frozen parameters are not copied but shared, where they are on the
    shadow's device: for LoRA a shadow costs the memory of the adapters. On another device they are
    copied once. With `copy="all"` everything is copied, each time. Without a `device` a shadow lies
    where the model does.
    """

    def __init__(self, *, size: int = 1, device: Any = None, copy: Copy = "trainable") -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidInput(f"size is a whole number of at least 1, got {size!r}")
        self.size = size
        self._device, self._copy = device, checked_copy(copy)
        self._lock = threading.Lock()
        self._idle: list[_Shadow] = []
        self._taken = 0

    @property
    def free(self) -> int:
        """How many snapshots could be taken now."""
        with self._lock:
            return self.size - self._taken

    def try_take(self, model: Any, *, step: int) -> WeightSnapshot | None:
        """The weights as they are; None where all shadows are in use.

        To be called in the thread, and on a GPU in the stream, that trains, between two writes to
        the weights. Raises InvalidInput where no shadow can be made of this model.
        """
        with self._lock:
            if self._taken == self.size:
                return None
            self._taken += 1
        import torch

        try:
            with torch.inference_mode(False):  # else nothing could be written to it outside of one
                return WeightSnapshot(self._filled(model), step=step, pool=self)
        except BaseException:
            with self._lock:
                self._taken -= 1
            raise

    def clear(self) -> None:
        """Drop the shadows that are idle, and with them their memory."""
        with self._lock:
            self._idle.clear()

    def _filled(self, model: Any) -> _Shadow:
        with self._lock:
            shadow = self._idle.pop() if self._idle else None
        if shadow is not None:
            if shadow.replica.original is unwrap(model):
                transfers = shadow.replica.refreshed()
                if transfers is not None:
                    shadow.fill(transfers)
                    return shadow
            # The others do not fit either, and their memory may be needed for the next.
            shadow = None
            self.clear()
        replica = Replica(model, device=self._device, copy=self._copy)
        transfers = replica.refreshed()
        assert transfers is not None
        shadow = _Shadow(replica)
        shadow.fill(transfers)
        return shadow

    def _put_back(self, shadow: _Shadow) -> None:
        with self._lock:
            self._taken -= 1
            self._idle.append(shadow)


# --- Devices ------------------------------------------------------------------------------------


class _Shadow:
    """A replica, and the order of what is written to it and read from it."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._streams: dict[Any, Any] = {}
        """Of each CUDA device that it lies on, the one to evaluate in."""
        self._copied: list[Any] = []
        self._finished: list[Any] = []
        self._host_reads = False
        self._reference: list[Any] = []
        """What the frozen weights of the original added up to when it was filled."""
        for tensor in (*replica.model.parameters(), *replica.model.buffers()):
            if tensor.is_cuda and tensor.device not in self._streams:
                import torch

                self._streams[tensor.device] = torch.cuda.Stream(tensor.device)

    def fill(self, transfers: Sequence[Transfer]) -> None:
        import torch

        groups = _grouped(transfers)
        devices = {device for group in groups for device in (group.source, group.target)}
        on_cuda = [device for device in (*devices, *self._streams) if device.type == "cuda"]
        streams = {device: torch.cuda.current_stream(device) for device in on_cuda}
        for stream in streams.values():
            for event in self._finished:
                stream.wait_event(event)
        with torch.no_grad():
            for group, (sources, targets) in groups.items():
                _copy(torch, sources, targets, from_device=group.source.type == "cuda")
        self._reference = totals([source for source, _ in self.replica.fixed])
        self._copied = [_recorded(torch, stream) for stream in streams.values()]
        self._host_reads = any(g.source.type == "cuda" != g.target.type for g in groups)
        for device in devices:
            if device.type not in ("cpu", "cuda"):
                getattr(torch, device.type).synchronize()

    def is_as_taken(self) -> bool:
        """Whether its frozen weights are still the original's, as they were when it was filled."""
        for event in self._copied:
            event.synchronize()
        now = totals([target for _, target in self.replica.fixed])
        return numbers(now) == numbers(self._reference)

    @contextmanager
    def current(self) -> Iterator[None]:
        import torch

        if self._host_reads:
            for event in self._copied:
                event.synchronize()
        with ExitStack() as stack:
            for stream in reversed(self._streams.values()):  # the first one's device stays current
                stack.enter_context(torch.cuda.stream(stream))
                for event in self._copied:
                    stream.wait_event(event)
            try:
                yield
            finally:
                self._finished = [_recorded(torch, s) for s in self._streams.values()]
                for event in self._finished:
                    event.synchronize()


class _Setting(NamedTuple):
    """What torch keeps for each thread and a forward pass depends on."""

    device: Any
    """Where tensors are made."""
    casts: tuple[tuple[str, Any, bool], ...]
    """Kinds of devices with autocast, its type, and whether casts are kept."""

    @classmethod
    def of_this_thread(cls, device: Any) -> _Setting:
        import torch

        default = torch.get_default_device()
        if device is not None and default.type != "cpu":
            default = torch.device(device)
        kept = torch.is_autocast_cache_enabled()
        kinds = [kind for kind in _KINDS if torch.is_autocast_enabled(kind)]
        return cls(default, tuple((k, torch.get_autocast_dtype(k), kept) for k in kinds))

    @contextmanager
    def entered(self) -> Iterator[None]:
        import torch

        with ExitStack() as stack:
            if torch.get_default_device() != self.device:  # it costs each call of torch a little
                stack.enter_context(self.device)
            for kind, dtype, kept in self.casts:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=kept))
            yield


_KINDS = ("cpu", "cuda", "xpu")


def _recorded(torch: Any, stream: Any) -> Any:
    event = torch.cuda.Event(blocking=True)  # who waits sleeps, and takes no core from the trainer
    event.record(stream)
    return event


class _Group(NamedTuple):
    """What tensors have in common that one kernel can copy together."""

    dtype: Any
    source: Any
    target: Any


def _grouped(transfers: Sequence[Transfer]) -> dict[_Group, tuple[list[Any], list[Any]]]:
    groups: dict[_Group, tuple[list[Any], list[Any]]] = {}
    for source, target in transfers:
        group = _Group(source.dtype, source.device, target.device)
        sources, targets = groups.setdefault(group, ([], []))
        sources.append(source)
        targets.append(target)
    return groups


def _copy(torch: Any, sources: list[Any], targets: list[Any], *, from_device: bool) -> None:
    # From the host's memory it must be finished here: the optimizer writes there at once.
    together = getattr(torch, "_foreach_copy_", None)
    if together is not None:
        together(targets, sources, non_blocking=from_device)
    else:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source, non_blocking=from_device)


@contextmanager
def _casts_kept(torch: Any) -> Iterator[None]:
    """Autocast keeps casts of weights in one place for all threads, and the outermost region of any
    thread empties it at its end: a weight that training uses twice would be cast twice, and its
    gradients added up in another precision. Inside a region that never ends none is the outermost.
    """
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()


__all__ = ["PolicyVersion", "SnapshotPool", "WeightSnapshot"]
