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
`ShardedModel` the copy is whole, gathered from all processes.

Nothing here draws random numbers, touches global state, or writes to the model in training.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from heldout._core.checks import check_count
from heldout._core.memory import available_memory
from heldout._live.decoding.memory import has_room
from heldout._live.decoding.model import unwrap
from heldout._live.isolation import modules_of, modules_put_back, thread_local_capture_mode
from heldout._live.weights import (
    Copy,
    checked_copy,
    explain_sharding,
    fingerprint,
    read_sums,
    sum_bits,
    writes,
)
from heldout.errors import InvalidInput
from heldout.training.background.jobs import NotCopyable
from heldout.training.reasons import describe
from heldout.training.sharding import (
    ShardedModel,
    is_sharding_hook,
    is_sharding_state,
    plain_class,
    wrapped_module,
)

DEFAULT_SIZE = 2
"""Snapshots of a pool, where memory allows."""


class WeightSnapshot:
    """The weights of a model at a step, in a copy of the model."""

    def __init__(self, copy: _ModelCopy, *, step: int, pool: SnapshotPool) -> None:
        self.step = step
        self._copy: _ModelCopy | None = copy
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

    def _held(self) -> _ModelCopy:
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
        self._idle: list[_ModelCopy] = []
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
            model: The torch module in training, or a `ShardedModel`: then the other processes
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
            if isinstance(model, ShardedModel):
                model.decline(describe(problem))
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
            module = model.model if isinstance(model, ShardedModel) else model
            device = next((tensor.device for tensor in module.parameters()), "cpu")
        return has_room(device, self._copy_bytes)

    def _filled(self, model: Any) -> _ModelCopy:
        with self._lock:
            copy = self._idle.pop() if self._idle else None
        sharded = model if isinstance(model, ShardedModel) else None
        if copy is not None and copy.original is _bare(model) and copy.try_fill(sharded):
            return copy
        if copy is not None:
            # The others do not fit either, and their memory may be needed for the next.
            copy = None
            self.clear()
        copy = _ModelCopy(model, device=self._device, copy=self._copy)
        copy.try_fill(sharded)
        self._copy_bytes = copy.own_bytes
        if sharded is not None:
            return copy
        with copy.stream():
            is_same = fingerprint(copy.model) == fingerprint(model)
        if not is_same:
            raise _refusal("", "the weights of the copy differ from those of the model")
        return copy

    def _put_back(self, copy: _ModelCopy) -> None:
        with self._lock:
            self._taken -= 1
            self._idle.append(copy)


# --- A copy of a model --------------------------------------------------------------------------


class _NoLongerFits(Exception):
    """The model has other modules or tensors than when its copy was made."""


_Transfer = tuple[Any, Any]
"""A tensor of the model, and its copy."""

_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_SWITCHED_OFF = {
    "training": False,
    "gradient_checkpointing": False,
    "_is_full_backward_hook": None,
    "_compiled_call_impl": None,
    # Transformers' handles of a hook that is left out.
    "_require_grads_hook": None,
    "_require_grads_hooks": None,
}


class _ModelCopy:
    """A second model of the same modules, with its own tensors.

    Modules are made without their `__init__`. What they hold apart from tensors is copied each time
    by `copy.deepcopy`, whose memo has the copies of modules and tensors. `deepcopy` shares
    functions: those that a module holds are made again, other closures are refused. Gradients,
    optimizers, hooks for gradients and compiled code are left out.
    """

    def __init__(self, model: Any, *, device: Any = None, copy: Copy = "trainable") -> None:
        import torch

        self.original = _bare(model)
        self._sharded: ShardedModel | None = None
        if isinstance(model, ShardedModel):
            self._sharded = model
        _check(self.original, is_gathered=self._sharded is not None)
        self._gathered: dict[int, Any] = {}
        """The copies of sharded tensors, by the identity of these."""
        self._has_frozen: list[str] | None = None
        """Hashes of the frozen weights that were gathered: they are not gathered again."""
        self.fixed: list[_Transfer] = []
        """Frozen tensors, and those of the copy that are not filled each time."""
        self._due: list[_Transfer] = []
        """The tensors to fill now."""
        self._memo: dict[int, Any] = {}
        self._seen: set[int] = set()
        self._copy = copy
        self._device = None if device is None else torch.empty(0, device=device).device
        self._streams: dict[Any, Any] = {}
        """The stream to evaluate in, of each CUDA device."""
        modules = list(self.original.named_modules())
        wrappers = [module for _, module in modules if wrapped_module(module) is not None]
        modules = [(name, module) for name, module in modules if module not in wrappers]
        self._copies: dict[int, Any] = {
            id(module): object.__new__(plain_class(module)) for _, module in modules
        }
        for module in reversed(wrappers):  # the copy is of what was compiled, or wrapped
            self._copies[id(module)] = self._copies[id(wrapped_module(module))]
        self._structures = [(module, _structure(module)) for _, module in modules]
        self._attributes: list[tuple[dict[Any, Any], dict[Any, Any], Any, str]] = []
        """Where modules hold something, where their copies do, its key, and a name for it."""
        for name, module in modules:
            self._add_module(name, module)
        self.model = self._copies[id(self.original)]
        self._tensors: list[tuple[tuple[Any, ...], Any]] = []
        """Layouts of the model's tensors, and the copy's, in the order in which they are met."""
        self.own_bytes = 0
        """What its tensors take that are not shared with the original."""
        self._count, self._is_new = 0, True
        self._filled: list[Any] = []
        self._finished: list[Any] = []
        self._is_read_by_host = False
        self._reference: list[Any] = []
        """Sums of the frozen weights of the original when the copy was filled."""

    def _add_module(self, name: str, module: Any) -> None:
        import torch

        held, own = vars(module), vars(self._copies[id(module)])
        prefix, standard = f"{name}." if name else "", vars(torch.nn.Module())
        own["_modules"] = {key: self._copies.get(id(m)) for key, m in held["_modules"].items()}
        for key, value in held.items():
            if key in ("_parameters", "_buffers"):
                own[key] = {}
                self._attributes += [(value, own[key], inner, prefix + inner) for inner in value]
            elif key in ("_forward_hooks", "_forward_pre_hooks"):
                own[key] = OrderedDict()
                hooks = [number for number, hook in value.items() if self._is_own(hook, name)]
                self._attributes += [(value, own[key], number, name) for number in hooks]
            elif key in _SWITCHED_OFF:
                own[key] = _SWITCHED_OFF[key]
            elif key in standard:
                own.setdefault(key, OrderedDict() if key.endswith("_hooks") else copy.copy(value))
            elif is_sharding_state(key):
                continue
            elif key == "_hf_hook" and self._device is not None:
                raise _refusal(name, "accelerate has spread it over devices")
            else:
                self._attributes.append((held, own, key, prefix + key))

    def _is_own(self, hook: Any, where: str) -> bool:
        """Whether a forward hook is the model's; False if it has no effect on a copy."""
        if isinstance(hook, types.MethodType) and id(hook.__self__) in self._copies:
            return True
        name = f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', repr(hook))}"
        if name.startswith("wandb.") or name.endswith(".make_inputs_require_grads"):
            return False
        if is_sharding_hook(name):
            return False
        raise _refusal(where, f"{name} is a hook of its forward pass")

    def update(self) -> list[_Transfer]:
        """Copy what modules hold, apart from the content of tensors.

        Returns:
            The tensors whose content has to be copied now.

        Raises:
            _NoLongerFits: Another copy has to be made.
            InvalidInput: The model cannot be copied.
        """
        import torch

        for module, before in self._structures:
            if _structure(module) != before:
                raise _NoLongerFits
        self._memo, self._seen, self._count = dict(self._copies), set(), 0
        self._due, self.fixed = [], []
        for holder, own, key, where in self._attributes:
            if key not in holder:
                raise _NoLongerFits
            value = holder[key]
            kind = type(value)
            if kind in _PLAIN:
                own[key] = value
            elif issubclass(kind, torch.Tensor):
                own[key] = self._copy_tensor(value, where)
            elif id(value) in self._memo:
                own[key] = self._memo[id(value)]
            elif not (_is_flat(value) and _is_flat(own.get(key)) and own[key] == value):
                own[key] = self._copy_attribute(value, where)
        if self._count != len(self._tensors):
            raise _NoLongerFits
        if any(isinstance(copied, torch.Tensor) for copied in self._memo.get(id(self._memo), ())):
            raise _refusal("", "an object in it holds a tensor in a way that hides it")
        self._is_new, self._memo = False, {}
        return self._due

    def _copy_tensor(self, tensor: Any, where: str) -> Any:
        """Return the copy's tensor; its content is copied later."""
        import torch

        if id(tensor) in self._memo:
            return self._memo[id(tensor)]
        if self._sharded is not None and self._sharded.shape_of(tensor) is not None:
            return self._copy_sharded(self._sharded, tensor)
        may_be_shared = self._copy == "trainable" and not tensor.requires_grad
        is_frozen = may_be_shared and isinstance(tensor, torch.nn.Parameter)
        # Frozen weights share the original's memory, or are copied once to another device.
        is_shared = is_frozen and self._device in (None, tensor.device)
        strides = tensor.stride() if tensor.layout is torch.strided else None
        layout: tuple[Any, ...] = type(tensor), tensor.shape, tensor.dtype, tensor.device, strides
        if is_frozen:  # other weights may have been loaded since
            layout += tensor.data_ptr(), None if is_shared else writes(tensor)
        if self._is_new:
            self._tensors.append((layout, self._new_tensor(tensor, is_shared, where)))
        if self._count == len(self._tensors) or self._tensors[self._count][0] != layout:
            raise _NoLongerFits
        _, target = self._tensors[self._count]
        self._count += 1
        self._memo[id(tensor)] = target
        if is_frozen:
            self.fixed.append((tensor, target))
        if not is_frozen or (self._is_new and not is_shared):
            self._due.append((tensor, target))
        return target

    def _copy_sharded(self, sharded: ShardedModel, tensor: Any) -> Any:
        """Return the copy's whole tensor for a sharded one; its content is gathered later."""
        import torch

        primary = sharded.primary(tensor)
        if id(primary) not in self._memo:
            layout: tuple[Any, ...] = sharded.shape_of(primary), primary.dtype, primary.device
            if self._is_new:
                device = self._device or primary.device
                pin = device.type == "cpu" and primary.device.type == "cuda"
                whole = torch.empty(layout[0], dtype=primary.dtype, device=device, pin_memory=pin)
                is_parameter = isinstance(primary, torch.nn.Parameter)
                target = torch.nn.Parameter(whole, False) if is_parameter else whole
                self.own_bytes += whole.numel() * whole.element_size()
                self._tensors.append((layout, target))
                if target.is_cuda and target.device not in self._streams:
                    self._streams[target.device] = torch.cuda.Stream(target.device)
            if self._count == len(self._tensors) or self._tensors[self._count][0] != layout:
                raise _NoLongerFits
            self._gathered[id(primary)] = self._memo[id(primary)] = self._tensors[self._count][1]
            self._count += 1
        self._memo[id(tensor)] = self._memo[id(primary)]
        return self._memo[id(tensor)]

    def _new_tensor(self, tensor: Any, is_shared: bool, where: str) -> Any:
        import torch

        kind = type(tensor)
        is_plain = kind in (torch.Tensor, torch.nn.Parameter)
        if is_shared:
            # A parameter of its own over the same memory: it stays frozen, and stays where it is,
            # if the original's is trained or put elsewhere one day.
            target = torch.nn.Parameter(tensor.detach(), False) if is_plain else tensor
        elif is_plain and tensor.layout is torch.strided and tensor.device.type != "meta":
            device = self._device or tensor.device
            # Copies to the host go on without it only if its memory is pinned.
            pinned = {"pin_memory": True} if (device.type, tensor.is_cuda) == ("cpu", True) else {}
            target = torch.empty_like(tensor.detach(), device=device, **pinned)
            self.own_bytes += target.numel() * target.element_size()
            target = torch.nn.Parameter(target, False) if kind is torch.nn.Parameter else target
        else:
            what = f"{kind.__name__}, {tensor.layout}, on {tensor.device}"
            raise _refusal(where, f"its weights cannot be copied ({what})")
        if target.is_cuda and target.device not in self._streams:
            self._streams[target.device] = torch.cuda.Stream(target.device)
        return target

    def _copy_attribute(self, value: Any, where: str) -> Any:
        if id(value) in self._memo:
            return self._memo[id(value)]
        if isinstance(value, types.MethodType):
            function = self._copy_attribute(value.__func__, where)
            return types.MethodType(function, self._copy_attribute(value.__self__, where))
        if isinstance(value, types.FunctionType):
            return self._copy_function(value, where)
        if type(value).__name__ == "ConvertOutputsToFp32":  # accelerate's: it refuses to be copied
            self._memo[id(value)] = converter = object.__new__(type(value))
            vars(converter).update(self._copy_all(vars(value), where))
            return converter
        self._prepare(value, where)
        try:
            return copy.deepcopy(value, self._memo)
        except Exception as problem:  # objects have code of their own to be copied by
            why = f"a {type(value).__name__} cannot be copied ({problem})"
            raise _refusal(where, why) from problem

    def _copy_all(self, values: dict[str, Any], where: str) -> dict[str, Any]:
        return {name: self._copy_attribute(value, where) for name, value in values.items()}

    def _copy_function(self, function: Any, where: str) -> Any:
        """Make a function anew if it encloses something; `deepcopy` would share it.

        TRL and accelerate put such functions around `forward`. One encloses a `torch.autocast`,
        which keeps what it has to put back: two threads must not enter the same one.
        """
        if (plain := _compiled_from(function)) is not None:
            return self._copy_attribute(plain, where)
        if why := _why_not_globals(function):
            raise _refusal(where, why)
        if not _enclosed(function):
            return function
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        new = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, closure=cells
        )
        self._memo[id(function)] = new
        for cell, original in zip(cells, function.__closure__ or (), strict=True):
            cell.cell_contents = self._copy_attribute(original.cell_contents, where)
        new.__defaults__ = tuple(
            self._copy_attribute(v, where) for v in function.__defaults__ or ()
        )
        new.__kwdefaults__ = self._copy_all(function.__kwdefaults__ or {}, where)
        new.__qualname__, new.__module__ = function.__qualname__, function.__module__
        vars(new).update(self._copy_all(vars(function), where))
        return new

    def _prepare(self, value: Any, where: str) -> None:
        """Add to the memo what `deepcopy` must not copy itself, and refuse what it cannot."""
        import torch

        pending = [value]
        while pending:
            value = pending.pop()
            kind = type(value)
            if kind in _PLAIN or id(value) in self._seen:
                continue
            if id(value) in self._memo and kind is not types.FunctionType:
                continue  # Python 3.14's `deepcopy` does not look functions up
            self._seen.add(id(value))
            if why := _why_not(value):
                raise _refusal(where, why)
            if issubclass(kind, torch.Tensor):
                self._copy_tensor(value, where)
            elif issubclass(kind, torch.optim.Optimizer):
                self._memo[id(value)] = None
            elif issubclass(kind, torch.Generator):
                self._memo[id(value)] = value.clone_state()
            elif issubclass(kind, weakref.ref) and value() is not None:  # torch's LSTM has them
                self._memo[id(value)] = weakref.ref(self._copy_tensor(value(), where))
            elif issubclass(kind, types.MethodType):
                pending += [value.__func__, value.__self__]
            elif issubclass(kind, functools.partial):
                pending += [value.func, value.args, value.keywords, vars(value)]
            elif not issubclass(kind, type | types.FunctionType):
                if issubclass(kind, _CONTAINERS):
                    pending += value.values() if isinstance(value, dict) else value
                pending += getattr(value, "__dict__", {}).values()

    # --- The order of what is written to it and read from it ---

    def try_fill(self, sharded: ShardedModel | None = None) -> bool:
        """Copy the original's current weights; on a GPU, enqueue the copies.

        Args:
            sharded: The original, where it is sharded. The processes agree in here.

        Returns:
            Whether it still fits the original. If not, another copy has to be made.
        """
        import torch

        self._sharded, self._gathered = sharded, {}
        try:
            transfers = self.update()
        except _NoLongerFits:
            return False
        if sharded is not None:
            self._check_memory()
        groups: dict[tuple[Any, ...], list[_Transfer]] = {}
        for source, target in transfers:  # what one kernel can copy together
            key = source.dtype, source.device, target.device
            groups.setdefault(key, []).append((source, target))
        devices = {device for _, *pair in groups for device in pair}
        on_cuda = [device for device in (*devices, *self._streams) if device.type == "cuda"]
        streams = {device: torch.cuda.current_stream(device) for device in on_cuda}
        for stream in streams.values():
            for event in self._finished:
                stream.wait_event(event)
        if sharded is not None:
            self._gather(sharded)
        with torch.no_grad():
            for (_, device, _), group in groups.items():
                sources, targets = zip(*group, strict=True)
                # From the host's memory it must be finished here: the optimizer writes there.
                torch._foreach_copy_(targets, sources, non_blocking=device.type == "cuda")
        self._reference = sum_bits([source for source, _ in self.fixed])
        self._filled = [_recorded(stream) for stream in streams.values()]
        self._is_read_by_host = any(a.type == "cuda" != b.type for _, a, b in groups)
        if sharded is not None:
            self._is_read_by_host |= any(t.is_pinned() for t in self._gathered.values())
            self._sharded = None  # it holds the processes' group
        for device in devices:
            if device.type not in ("cpu", "cuda"):
                getattr(torch, device.type).synchronize()
        return True

    def _check_memory(self) -> None:
        """Make sure that there is memory for the whole weights, before others rely on it."""
        for target in self._gathered.values():
            size = target.numel() * target.element_size()
            storage = target.untyped_storage()
            if storage.nbytes() < size:
                storage.resize_(size)
        sizes = [t.numel() * t.element_size() for t in self._gathered.values() if not t.is_cuda]
        if self._has_frozen is None and sum(sizes) > available_memory():
            raise NotCopyable(
                f"the whole weights take {sum(sizes) / 2**30:.1f} GiB of memory, and there are "
                f"{available_memory() / 2**30:.1f}"
            )

    def _gather(self, sharded: ShardedModel) -> None:
        """Gather the weights from all processes."""
        needs_all = self._has_frozen is None or self._copy == "all"
        decision = sharded.agree(needs_all=needs_all, known_frozen=self._has_frozen)
        self._has_frozen = None

        def receive(tensor: Any, whole: Any) -> None:
            self._gathered[id(tensor)].copy_(whole, non_blocking=True)

        sharded.gather(receive, everything=decision.everything)
        self._has_frozen = decision.frozen

    def empty(self) -> None:
        """Free the memory of what was gathered, until the next fill."""
        for target in self._gathered.values():
            if not target.is_pinned():
                target.untyped_storage().resize_(0)
        self._has_frozen = None

    def is_as_taken(self) -> bool:
        """Whether its frozen weights still equal the original's at the time it was filled."""
        for event in self._filled:
            event.synchronize()
        now = sum_bits([target for _, target in self.fixed])
        return read_sums(now) == read_sums(self._reference)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Run in its own streams, once it is filled; waits for them at the end."""
        import torch

        if self._is_read_by_host:
            for event in self._filled:
                event.synchronize()
        with ExitStack() as stack:
            for stream in reversed(self._streams.values()):  # the first one's device stays current
                stack.enter_context(torch.cuda.stream(stream))
                for event in self._filled:
                    stream.wait_event(event)
            try:
                yield
            finally:
                self._finished = [_recorded(stream) for stream in self._streams.values()]
                for event in self._finished:
                    event.synchronize()


def _refusal(where: str, why: str) -> NotCopyable:
    return NotCopyable(
        f"this model cannot be copied, because of {where or 'the model itself'}: {why}. "
        "Remove that from the model, or evaluate it inline, which a sharded one cannot be"
    )


def _bare(model: Any) -> Any:
    """Return the module that a model in training wraps."""
    model = unwrap(model.model if isinstance(model, ShardedModel) else model)
    inner = model
    while hasattr(inner, "_modules") and (inner := wrapped_module(inner)) is not None:
        model = inner
    return model


def _check(model: Any, *, is_gathered: bool) -> None:
    import torch

    if not isinstance(model, torch.nn.Module):
        raise NotCopyable(f"model must be a torch module, got {type(model).__name__}")
    if not is_gathered and (why := explain_sharding(model)):
        raise NotCopyable(why)
    for kind, name in {type(module): name for name, module in model.named_modules()}.items():
        if issubclass(kind, torch.jit.ScriptModule):
            raise _refusal(name, f"the code of a {kind.__name__} holds its own weights")
        if kind.__name__ in ("DistributedDataParallel", "DataParallel"):
            raise _refusal(name, f"the forward pass of {kind.__name__} talks to other processes")
        methods = [value for value in vars(kind).values() if isinstance(value, types.FunctionType)]
        for method in methods:
            if why := _why_not_globals(inspect.unwrap(method), may_be_modules=True):
                raise _refusal(name, why)


def _structure(module: Any) -> tuple[Any, ...]:
    """What cannot change without a new copy, since graphs may be captured of the one there is."""
    held = vars(module)
    hooks = tuple(held["_forward_hooks"]), tuple(held["_forward_pre_hooks"])  # numbers
    sizes = len(held), len(held["_parameters"]), len(held["_buffers"])
    return type(module), held.get("forward"), tuple(held["_modules"].items()), *hooks, sizes


def _is_flat(value: Any) -> bool:
    """Whether it is a container of plain values."""
    items = value.values() if type(value) is dict else value
    return type(value) in _CONTAINERS and all(type(item) in _PLAIN for item in items)


def _why_not(value: Any) -> str | None:
    """Say why a value cannot be copied, or None. Functions are not copied by `deepcopy`."""
    import torch

    kind, data = type(value), torch.utils.data
    if issubclass(kind, types.FunctionType):
        for enclosed in _enclosed(value):
            if type(enclosed) not in _PLAIN and not isinstance(enclosed, type):
                what = f"{value.__qualname__} encloses a {type(enclosed).__name__}"
                return f"{what}, and functions in containers are not copied"
        return _why_not_globals(value)
    is_shared = issubclass(kind, functools._lru_cache_wrapper)
    if issubclass(kind, types.BuiltinFunctionType):
        is_shared = not isinstance(value.__self__, type | types.ModuleType | None)
    elif issubclass(kind, weakref.ref):
        is_shared = not isinstance(value(), torch.Tensor | None)
    if is_shared:
        return f"a copy would share its {kind.__name__} with the model in training"
    if issubclass(kind, torch.nn.Module):
        return f"it leads to a {kind.__name__} that is no part of the model"
    if issubclass(kind, data.DataLoader | data.Dataset):
        return f"it leads to the data of the training ({kind.__name__})"
    if hasattr(kind, "__del__"):
        return f"a {kind.__name__} does something when it ends (__del__), and a copy would, too"
    return None


def _enclosed(function: Any) -> list[Any]:
    """Yield what a function holds that may belong to the model; nothing if it can be imported."""
    target: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        target = getattr(target, name, None)
    if target is function and function.__module__ != "__main__":
        return []
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    values += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return [*values, *vars(function).values()]


def _compiled_from(function: Any) -> Any:
    """Return what a function was compiled from by `torch.compile`, or None."""
    if getattr(function, "_torchdynamo_disable", False):
        return None
    return getattr(function, "_torchdynamo_orig_callable", None)


def _why_not_globals(function: Any, *, may_be_modules: bool = False) -> str | None:
    """Say where a function uses the model in training, or compiled code, by a global name.

    As in a notebook: `old = model.forward`, which the new one calls.
    """
    import torch

    codes = [function.__code__]
    for code in codes:
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    names = {name for code in codes for name in code.co_names} & function.__globals__.keys()
    for name in sorted(names):
        value = function.__globals__[name]
        owner = getattr(value, "__self__", value)
        reads = f"{function.__qualname__} reads the global {name}, which is"
        if isinstance(value, types.FunctionType) and _compiled_from(value) is not None:
            return f"{reads} compiled, and compiling sets random state of the training"
        if isinstance(owner, torch.nn.Module) and not may_be_modules:
            return f"{reads} the {type(owner).__name__} in training, or a method of it"
    return None


# --- Devices and threads ------------------------------------------------------------------------


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


def _recorded(stream: Any) -> Any:
    import torch

    event = torch.cuda.Event(blocking=True)  # waiting for it takes no core from the trainer
    event.record(stream)
    return event


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
