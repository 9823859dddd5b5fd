"""Snapshots of the weights at a step, for evals that run while training goes on.

    pool = SnapshotPool()
    snapshot = pool.try_snapshot(model, step=40)    # in the trainer's thread, after the optimizer
    …
    with snapshot.in_use():                         # in the thread that evaluates
        point = measure(snapshot.model)
    snapshot.release()                              # in any thread: its memory can be reused

A snapshot has its own copy of the model, whose memory is refilled each time. On a GPU the copy is
only enqueued, in the trainer's stream: later writes of the optimizer come after it, and training
does not wait. The thread that evaluates has its own stream, and waits for the copy there. Of a
`Sharded` model the copy is whole, gathered from all processes.

Nothing here draws random numbers, touches global state, or writes to the model in training.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from heldout._core.checks import check_count
from heldout._live.decoding.memory import has_room
from heldout._live.isolation import modules_of, modules_put_back, thread_local_capture_mode
from heldout._live.model_copy import ModelCopy, Sharded, bare_model, refusal
from heldout._live.weights import Copy, checked_copy, fingerprint
from heldout.errors import InvalidInput

DEFAULT_SIZE = 2
"""Snapshots of a pool, where memory allows."""


class WeightSnapshot:
    """The weights of a model at a step, in a copy of the model."""

    def __init__(self, copy: ModelCopy, *, step: int, pool: SnapshotPool) -> None:
        self.step = step
        self._copy: ModelCopy | None = copy
        self._pool = pool
        self._lock = threading.Lock()
        self._settings = _thread_settings(pool._device)

    @property
    def model(self) -> Any:
        """The copy, in eval mode and without gradients.

        Valid until the snapshot is released: then its memory is reused.
        """
        return self._held().model

    @functools.cached_property
    def weights(self) -> str | None:
        """Hash of the weights (`heldout._live.weights.fingerprint`), computed at first use."""
        with self.in_use():
            return fingerprint(self.model)

    def why_changed(self) -> str | None:
        """Return why its weights are no longer those of its step.

        Frozen weights are shared with the model in training, or were copied only once. Writing to
        them, as merging adapters does, changes what is measured. Each snapshot has checksums of
        them, since torch does not count writes through `.data`.

        Returns:
            The reason; None if they have not changed.
        """
        copy = self._held()
        if not copy.fixed:
            return None
        with self.in_use():
            if copy.is_as_taken():
                return None
        copy.original = None  # torch has not counted it, so the next snapshot needs a new copy
        return (
            "frozen weights, which a snapshot shares with the model in training or copies only "
            'once, changed before its eval ended; SnapshotPool(copy="all") copies them each time'
        )

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Use the model inside this context, in the thread that evaluates.

        Disables gradients, enters the copy's device and its own stream, waits for the copy, and
        sets the default device and autocast of the trainer's thread. At the end it waits for the
        device, and restores configs and flags of the copy.
        """
        import torch

        copy = self._held()
        with (
            thread_local_capture_mode(),
            copy.stream(),
            torch.no_grad(),
            _keep_autocast_cache(),
            self._settings(),
            modules_put_back(modules_of(copy.model)),
        ):
            yield

    def release(self, *, empty: bool = False) -> None:
        """Return the memory to the pool. A second call does nothing.

        Args:
            empty: Whether to free the memory that was gathered of a sharded model until the next
                snapshot.
        """
        with self._lock:
            copy, self._copy = self._copy, None
        if copy is not None:
            if empty:
                copy.empty()
            self._pool._put_back(copy)

    def _held(self) -> ModelCopy:
        copy = self._copy
        if copy is None:
            raise InvalidInput(
                f"the snapshot of step {self.step} was released; its memory may hold the weights "
                "of a later step by now"
            )
        return copy


class SnapshotPool:
    """A bounded number of copies of a model, made when needed and reused."""

    def __init__(
        self, *, size: int | None = None, device: Any = None, copy: Copy = "trainable"
    ) -> None:
        """Make an empty pool; nothing is copied yet.

        Args:
            size: How many snapshots can be in use at the same time. By default two, so that an
                eval that takes a little longer than the cadence loses no point; only one where a
                second copy would leave training too little memory.
            device: Device of the copies; by default the model's.
            copy: With "trainable", frozen parameters are shared on the same device (a copy of a
                LoRA model takes only the memory of its adapters), and copied once to another
                device. With "all", everything is copied each time.

        Raises:
            InvalidInput: An argument is invalid.
        """
        check_count("size", size, low=1, optional=True)
        self.size: int = DEFAULT_SIZE if size is None else size
        """How many snapshots there are at most."""
        self._must_fit = size is None
        self._is_tight = False
        """Whether there was no memory for the last snapshot that was asked for."""
        self._copy_bytes = 0
        """What a copy of the model takes."""
        self._device, self._copy = device, checked_copy(copy)
        self._lock = threading.Lock()
        self._idle: list[ModelCopy] = []
        self._taken = 0

    @property
    def free(self) -> int:
        """Number of snapshots that can be taken now."""
        with self._lock:
            return self.size - self._taken

    def try_snapshot(self, model: Any, *, step: int) -> WeightSnapshot | None:
        """Take a snapshot of the current weights.

        Call it in the trainer's thread (and stream, on a GPU), between two writes to the weights.

        Args:
            model: The torch module in training, or a `Sharded` one: then the other processes
                take part.
            step: The step of these weights.

        Returns:
            The snapshot; None if all `size` of them are in use, or if there is no memory for
            another one and no `size` was asked for.

        Raises:
            NotCopyable: There can be no copy of this model.
        """
        with self._lock:
            if self._taken == self.size:
                return None
            needs_copy = self._taken > 0 and not self._idle
            self._is_tight = needs_copy and self._must_fit and not self._fits_another(model)
            if self._is_tight:
                return None
            self._taken += 1
        import torch

        try:
            with torch.inference_mode(False):  # else nothing could be written to it outside of one
                return WeightSnapshot(self._filled(model), step=step, pool=self)
        except BaseException as problem:
            with self._lock:
                self._taken -= 1
            if isinstance(model, Sharded):
                model.decline(problem)
            raise

    def say_full(self) -> str:
        """Say that all snapshots were in use, and which setting has more."""
        if self._is_tight:
            return (
                "the snapshot of the weights was in use, and memory is tight for a second one of "
                f"{self._copy_bytes / 2**30:.1f} GiB (snapshots=2 takes it all the same)"
            )
        were = "the snapshot" if self.size == 1 else f"all {self.size} snapshots"
        verb = "was" if self.size == 1 else "were"
        return f"{were} of the weights {verb} in use (snapshots={self.size + 1} has one more)"

    def clear(self) -> None:
        """Free the copies that are not in use."""
        with self._lock:
            self._idle.clear()

    def _fits_another(self, model: Any) -> bool:
        device = self._device
        if device is None:
            module = model.model if isinstance(model, Sharded) else model
            device = next((tensor.device for tensor in module.parameters()), "cpu")
        return has_room(device, self._copy_bytes)

    def _filled(self, model: Any) -> ModelCopy:
        with self._lock:
            copy = self._idle.pop() if self._idle else None
        sharded = model if isinstance(model, Sharded) else None
        model = model if sharded is None else sharded.model
        if copy is not None and copy.original is bare_model(model) and copy.try_fill(sharded):
            return copy
        if copy is not None:
            # The others do not fit either, and their memory may be needed for the next.
            copy = None
            self.clear()
        copy = ModelCopy(model, sharded=sharded, device=self._device, copy=self._copy)
        copy.try_fill(sharded)
        self._copy_bytes = copy.own_bytes
        if sharded is not None:
            return copy
        with copy.stream():
            is_same = fingerprint(copy.model) == fingerprint(model)
        if not is_same:
            raise refusal("", "the weights of the copy differ from those of the model")
        return copy

    def _put_back(self, copy: ModelCopy) -> None:
        with self._lock:
            self._taken -= 1
            self._idle.append(copy)


# --- The thread that evaluates ----------------------------------------------------------------


def _thread_settings(device: Any) -> Callable[[], ExitStack]:
    """The default device and autocast of this thread, to be entered in another one."""
    import torch

    default = torch.get_default_device()
    if device is not None and default.type != "cpu":
        default = torch.device(device)
    kept = torch.is_autocast_cache_enabled()
    kinds = [kind for kind in ("cpu", "cuda", "xpu") if torch.is_autocast_enabled(kind)]
    types = {kind: torch.get_autocast_dtype(kind) for kind in kinds}

    def enter() -> ExitStack:
        stack = ExitStack()
        if torch.get_default_device() != default:  # it costs each call of torch a little
            stack.enter_context(default)
        for kind, dtype in types.items():
            stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=kept))
        return stack

    return enter


@contextmanager
def _keep_autocast_cache() -> Iterator[None]:
    """Keep autocast's cache from being emptied under the training.

    It holds casts of weights for all threads, and the outermost region of any thread empties it at
    its end: a weight that training uses twice would be cast twice, and its gradients added up in
    another precision. Inside a region that never ends none is the outermost.
    """
    import torch

    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()


__all__ = ["SnapshotPool", "WeightSnapshot"]
