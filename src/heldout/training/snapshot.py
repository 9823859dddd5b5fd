"""Weights as they were at a step, for evals that run while training goes on.

    pool = SnapshotPool()
    snapshot = pool.try_take(model, step=40)        # in the trainer's thread, after the optimizer
    …
    with snapshot.in_use():                         # in the thread that evaluates
        point = measure(snapshot.model)
    snapshot.release()                              # in any thread: its memory can be used again

A snapshot has a model of its own: a copy whose memory is filled anew each time. On a GPU filling it
is only enqueued, in the stream that trains: what the optimizer writes later comes after it, and the
trainer waits for the enqueuing alone. The thread that evaluates has a stream of its own, and waits
for the copy there.

Nothing here draws random numbers or touches what is global to the process, and no bit of the model
in training is written to.
"""

from __future__ import annotations

import copy
import functools
import inspect
import io
import pickle
import sys
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from heldout.decoding.model import unwrap
from heldout.errors import InvalidInput
from heldout.isolation import modules_of, modules_put_back, thread_local_capture_mode
from heldout.weights import (
    Copy,
    checked_copy,
    fingerprint,
    numbers,
    totals,
    why_not_whole,
    writes,
)


class PolicyVersion(NamedTuple):
    """Which weights these were."""

    step: int
    weights: str | None
    """`heldout.weights.fingerprint` of them."""


class WeightSnapshot:
    """The weights of a model as they were at a step, in a model of their own."""

    def __init__(self, copy: _ModelCopy, *, step: int, pool: SnapshotPool) -> None:
        self.step = step
        self._copy: _ModelCopy | None = copy
        self._pool = pool
        self._lock = threading.Lock()
        self._version: PolicyVersion | None = None
        self._settings = _thread_settings(pool._device)

    @property
    def model(self) -> Any:
        """The copy, in eval mode and without gradients.

        Only until the snapshot is released: then its memory is filled with other weights.
        """
        return self._held().model

    def version(self) -> PolicyVersion:
        """Which weights these are, by a hash of the copy that is computed at the first call.

        Returns:
            The step and the hash.
        """
        if self._version is None:
            with self.in_use():
                self._version = PolicyVersion(self.step, fingerprint(self.model))
        return self._version

    def why_changed(self) -> str | None:
        """Why its weights are not those of its step any more.

        Frozen weights are shared with the model in training, or were copied only once. Writing to
        them all the same, as merging adapters does, changes what is measured. Sums of them are kept
        with each snapshot, since torch does not count writes through `.data`.

        Returns:
            The reason; None where they are as they were.
        """
        copy = self._held()
        if not copy.fixed:
            return None
        with self.in_use():
            if copy.is_as_taken():
                return None
        copy.copy_all_again()
        return (
            "frozen weights, which a snapshot shares with the model in training or copies only "
            'once, were written to before its eval was over; SnapshotPool(copy="all") copies them '
            "each time"
        )

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Use the model in here, in the thread that evaluates.

        Without gradients, on the copy's device, in a stream of its own, once the weights are there;
        with the default device and the autocast that the trainer's thread had when it was taken. On
        the way out the device is waited for, and configs and switches of the copy are put back.
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

    def release(self) -> None:
        """Give the memory back to the pool. A second call does nothing."""
        with self._lock:
            copy, self._copy = self._copy, None
        if copy is not None:
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
    """A bounded number of copies of a model, made when they are needed and used again and again."""

    def __init__(self, *, size: int = 1, device: Any = None, copy: Copy = "trainable") -> None:
        """Nothing is copied yet.

        Args:
            size: How many snapshots can be in use at the same time.
            device: Where copies lie; without one, where the model does.
            copy: With "trainable", frozen parameters are shared where they are on the same device
                (for LoRA, a copy takes the memory of the adapters), and copied once to another one.
                With "all", everything is copied each time.

        Raises:
            InvalidInput: One of them is none of these.
        """
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidInput(f"size is a whole number of at least 1, got {size!r}")
        self.size = size
        self._device, self._copy = device, checked_copy(copy)
        self._lock = threading.Lock()
        self._idle: list[_ModelCopy] = []
        self._taken = 0

    @property
    def free(self) -> int:
        """How many snapshots could be taken now."""
        with self._lock:
            return self.size - self._taken

    def try_take(self, model: Any, *, step: int) -> WeightSnapshot | None:
        """Take the weights as they are.

        To be called in the thread, and on a GPU in the stream, that trains, between two writes to
        the weights.

        Args:
            model: The torch module in training.
            step: The step whose weights these are.

        Returns:
            The snapshot; None where `size` of them are in use.

        Raises:
            InvalidInput: No copy can be made of this model.
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
        """Drop the copies that are not in use, and with them their memory."""
        with self._lock:
            self._idle.clear()

    def _filled(self, model: Any) -> _ModelCopy:
        with self._lock:
            copy = self._idle.pop() if self._idle else None
        if copy is not None and copy.original is unwrap(model) and copy.try_fill():
            return copy
        if copy is not None:
            # The others do not fit either, and their memory may be needed for the next.
            copy = None
            self.clear()
        copy = _ModelCopy(model, device=self._device, copy=self._copy)
        copy.try_fill()
        with copy.stream():
            is_same = fingerprint(copy.model) == fingerprint(model)
        if not is_same:
            raise _refusal("", "the weights of a copy are not those of the model")
        return copy

    def _put_back(self, copy: _ModelCopy) -> None:
        with self._lock:
            self._taken -= 1
            self._idle.append(copy)


# --- A copy of a model --------------------------------------------------------------------------


class _NoLongerFits(Exception):
    """The model has other modules or tensors than when its copy was made."""


_Transfer = tuple[Any, Any]
"""A tensor of the model, and that of the copy."""


@dataclass(slots=True)
class _Tensor:
    """A tensor of the copy."""

    target: Any
    layout: tuple[Any, ...]
    """Of the original."""
    is_frozen: bool
    is_shared: bool
    """Frozen weights share the original's memory, or are copied once to another device."""
    content: tuple[int, int] | None = None
    """Where a frozen original was, and how often it had been written to."""


@dataclass(slots=True)
class _Module:
    """A module, by what is in its `__dict__` and in that of its copy."""

    name: str
    original: Any
    structure: tuple[Any, ...]
    """What cannot change without a new copy, since graphs may be captured of this one."""
    held: dict[str, Any]
    own: dict[str, Any]
    tensors: list[tuple[dict[str, Any], dict[str, Any], str, _Tensor | None]] = field(
        default_factory=list
    )
    plain: list[str] = field(default_factory=list)
    flat: list[str] = field(default_factory=list)
    """Attributes that are containers of plain values."""
    others: list[tuple[dict[Any, Any], dict[Any, Any], Any]] = field(default_factory=list)


_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_SWITCHED_OFF = {
    "training": False,
    "gradient_checkpointing": False,
    "_is_full_backward_hook": None,
    "_compiled_call_impl": None,
    # Transformers' handles of a hook that is left out.
    "_require_grads_hook": None,
    "_require_grads_hooks": None,
}


def _refusal(where: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"no copy can be made of this model, because of {where or 'the model itself'}: {why}. "
        "Take that off the model, or evaluate between training steps instead"
    )


class _ModelCopy:
    """A second model of the same modules, with tensors of its own.

    Modules are made without their `__init__`. What they hold besides tensors is copied anew each
    time; gradients, optimizers, hooks for gradients and compiled code are left out.
    """

    def __init__(self, model: Any, *, device: Any = None, copy: Copy = "trainable") -> None:
        import torch

        self.original = unwrap(model)
        self.fixed: list[_Transfer] = []
        """Frozen tensors, and those of the copy that are not filled each time."""
        self._copy = copy
        self._device = None if device is None else torch.empty(0, device=device).device
        self._tensors: dict[int, _Tensor] = {}
        """By the `id` of the original: of those in containers, at later times."""
        self._streams: dict[Any, Any] = {}
        """The stream to evaluate in, of each CUDA device."""
        self._is_new, self._is_stale = True, False
        _check(self.original)
        self._hooks = [name for name in vars(torch.nn.Module()) if "_hooks" in name]
        modules = list(self.original.named_modules())
        compiled = [module for _, module in modules if "_orig_mod" in module._modules]
        modules = [(name, module) for name, module in modules if module not in compiled]
        self._copies = {id(module): object.__new__(type(module)) for _, module in modules}
        for module in compiled:  # the copy is of what was compiled
            self._copies[id(module)] = self._copies[id(module._orig_mod)]
        self._modules = [self._add_module(name, module) for name, module in modules]
        self.model = self._copies[id(self.original)]
        self._filled: list[Any] = []
        self._finished: list[Any] = []
        self._is_read_by_host = False
        self._reference: list[Any] = []
        """Sums of the frozen weights of the original when the copy was filled."""

    # --- Made once ---

    def _add_module(self, name: str, module: Any) -> _Module:
        import torch

        held, own = vars(module), vars(self._copies[id(module)])
        structure = tuple(dict(s) if isinstance(s, dict) else s for s in _structure(module))
        record = _Module(name, module, structure, held, own)
        own["_modules"] = {
            key: None if child is None else self._copies[id(child)]
            for key, child in held["_modules"].items()
        }
        for group in ("_parameters", "_buffers"):
            own[group] = {}
            for key, tensor in held[group].items():
                target = None if tensor is None else self._add_tensor(tensor, _joined(name, key))
                record.tensors.append((held[group], own[group], key, target))
        own |= {group: OrderedDict() for group in self._hooks}
        for group in ("_forward_hooks", "_forward_pre_hooks"):
            for key, hook in held[group].items():
                if self._is_own(hook, name):
                    record.others.append((held[group], own[group], key))
                    for flags in self._hooks:
                        if flags.startswith(f"{group}_") and key in held[flags]:
                            own[flags][key] = True
        for key, value in held.items():
            if key in own:
                continue
            if key in _SWITCHED_OFF:
                own[key] = _SWITCHED_OFF[key]
            elif key == "_hf_hook" and self._device is not None:
                raise _refusal(name, "accelerate has put it on devices of its own choice")
            elif isinstance(value, torch.Tensor):
                target = self._add_tensor(value, _joined(name, key))
                record.tensors.append((held, own, key, target))
            elif type(value) in _PLAIN:
                record.plain.append(key)
            elif _is_flat(value):
                record.flat.append(key)
            else:
                record.others.append((held, own, key))
        return record

    def _is_own(self, hook: Any, where: str) -> bool:
        """Whether a forward hook is the model's; False if it has no effect on a copy."""
        if isinstance(hook, types.MethodType) and id(hook.__self__) in self._copies:
            return True
        name = f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', repr(hook))}"
        if name.startswith("wandb.") or name.endswith(".make_inputs_require_grads"):
            return False
        raise _refusal(where, f"{name} is hooked into its forward pass, to change or to watch it")

    def _add_tensor(self, tensor: Any, where: str) -> _Tensor:
        import torch

        if (tied := self._tensors.get(id(tensor))) is not None:
            return tied
        kind, is_parameter = type(tensor), isinstance(tensor, torch.nn.Parameter)
        is_frozen = is_parameter and not tensor.requires_grad and self._copy == "trainable"
        is_shared = is_frozen and self._device in (None, tensor.device)
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
            target = torch.nn.Parameter(target, False) if is_parameter else target
        else:
            what = f"{kind.__name__}, {tensor.layout}, on {tensor.device}"
            raise _refusal(where, f"its weights cannot be copied ({what})")
        if target.is_cuda and target.device not in self._streams:
            self._streams[target.device] = torch.cuda.Stream(target.device)
        record = _Tensor(target, _layout(tensor), is_frozen, is_shared)
        self._tensors[id(tensor)] = record
        return record

    # --- Each time ---

    def update(self) -> list[_Transfer]:
        """Copy what modules hold besides the content of tensors.

        Returns:
            The tensors whose content is to be copied now.

        Raises:
            _NoLongerFits: Another copy has to be made.
            InvalidInput: No copy can be made.
        """
        known, due = dict(self._copies), list[_Transfer]()
        originals: dict[int, Any] = {}
        in_containers: dict[int, _Tensor] = {}
        self.fixed = []

        def follow(tensor: Any, record: _Tensor) -> Any:
            if id(record) not in originals and id(tensor) not in known:
                originals[id(record)], known[id(tensor)] = tensor, record.target
                self._follow(tensor, record, due)
            elif originals.get(id(record)) is not tensor:
                raise _NoLongerFits  # tied weights were untied, or others are tied now
            return record.target

        def copy_tensor(tensor: Any, where: str) -> Any:
            if not self._is_new and id(tensor) not in self._tensors:
                raise _NoLongerFits
            record = self._add_tensor(tensor, where)
            in_containers[id(tensor)] = record
            return follow(tensor, record)

        for module in self._modules:
            if _structure(module.original) != module.structure:
                raise _NoLongerFits
            for holder, own, key, record in module.tensors:
                tensor = holder.get(key)
                if (record is None) is not (tensor is None):
                    raise _NoLongerFits
                own[key] = None if record is None else follow(tensor, record)
        copier = _AttributeCopier(known, copy_tensor)
        for module in self._modules:
            _update_attributes(module, copier)
        if not self._is_new and in_containers.keys() != self._tensors.keys():
            raise _NoLongerFits
        self._tensors, self._is_new, self._is_stale = in_containers, False, False
        return due

    def _follow(self, tensor: Any, record: _Tensor, due: list[_Transfer]) -> None:
        if not isinstance(tensor, _torch().Tensor) or _layout(tensor) != record.layout:
            raise _NoLongerFits
        if not record.is_frozen:
            due.append((tensor, record.target))
            return
        # Other weights may have been loaded since, or it may be trained now.
        pointer = tensor.data_ptr()
        before, record.content = record.content, (pointer, writes(tensor))
        if tensor.requires_grad or (record.is_shared and record.target.data_ptr() != pointer):
            raise _NoLongerFits
        self.fixed.append((tensor, record.target))
        if not record.is_shared and (self._is_stale or before != record.content):
            due.append((tensor, record.target))

    def copy_all_again(self) -> None:
        """At the next time: frozen weights were written to, and torch has not counted it."""
        self._is_stale = True

    # --- The order of what is written to it and read from it ---

    def try_fill(self) -> bool:
        """Give it the weights that the original has now; on a GPU, enqueue that.

        Returns:
            Whether it still fits the original. If not, another copy has to be made.
        """
        import torch

        try:
            transfers = self.update()
        except _NoLongerFits:
            return False
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
        with torch.no_grad():
            for (_, device, _), group in groups.items():
                sources, targets = zip(*group, strict=True)
                # From the host's memory it must be finished here: the optimizer writes there.
                torch._foreach_copy_(targets, sources, non_blocking=device.type == "cuda")
        self._reference = totals([source for source, _ in self.fixed])
        self._filled = [_recorded(stream) for stream in streams.values()]
        self._is_read_by_host = any(a.type == "cuda" != b.type for _, a, b in groups)
        for device in devices:
            if device.type not in ("cpu", "cuda"):
                getattr(torch, device.type).synchronize()
        return True

    def is_as_taken(self) -> bool:
        """Whether its frozen weights are those that the original had when it was filled."""
        for event in self._filled:
            event.synchronize()
        now = totals([target for _, target in self.fixed])
        return numbers(now) == numbers(self._reference)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """In streams of its own, once it is filled; waits for them at the end."""
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


def _check(model: Any) -> None:
    import torch

    if not isinstance(model, torch.nn.Module):
        raise InvalidInput(f"a snapshot is taken of a torch module, got {type(model).__name__}")
    if why := why_not_whole(model):
        raise InvalidInput(why)
    kinds: dict[type, str] = {}
    for name, module in model.named_modules():
        kinds.setdefault(type(module), name)
    for kind, name in kinds.items():
        if issubclass(kind, torch.jit.ScriptModule):
            raise _refusal(name, f"the code of a {kind.__name__} holds its own weights")
        if kind.__name__ in ("DistributedDataParallel", "DataParallel"):
            raise _refusal(name, f"the forward pass of {kind.__name__} talks to other processes")
        for method in vars(kind).values():
            if isinstance(method, types.FunctionType):
                _check_globals(inspect.unwrap(method), name, may_be_modules=True)


def _structure(module: Any) -> tuple[Any, ...]:
    """What cannot change without a new copy, since graphs may be captured of the one there is."""
    held = vars(module)
    hooks = held["_forward_hooks"], held["_forward_pre_hooks"]
    sizes = len(held), len(held["_parameters"]), len(held["_buffers"])
    return type(module), held.get("forward"), held["_modules"], *hooks, sizes


def _layout(tensor: Any) -> tuple[Any, ...]:
    strides = tensor.stride() if tensor.layout is _torch().strided else None
    return type(tensor), tensor.shape, tensor.dtype, tensor.device, strides


def _update_attributes(module: _Module, copier: _AttributeCopier) -> None:
    held, own = module.held, module.own
    for name in module.plain:
        value = held.get(name, module)
        if type(value) not in _PLAIN:
            raise _NoLongerFits
        own[name] = value
    for name in module.flat:
        value = held.get(name)
        if type(value) is not type(own.get(name)) or value != own[name]:
            if not _is_flat(value):
                raise _NoLongerFits
            own[name] = copy.copy(value)
    for holder, target, key in module.others:
        target[key] = copier.copy(holder.get(key), _joined(module.name, str(key)))


def _is_flat(value: Any) -> bool:
    """Whether it is a container of plain values."""
    if type(value) is dict:
        return all(type(each) in _PLAIN for each in value.values())
    is_container = type(value) in (list, tuple, set, frozenset)
    return is_container and all(type(each) in _PLAIN for each in value)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# --- Attributes ---------------------------------------------------------------------------------


class _AttributeCopier(pickle.Pickler):
    """Copies attributes of modules by pickling them in memory.

    `copy.deepcopy` will not do: it shares functions, and what they enclose is often the model
    itself, or a `torch.autocast` (accelerate puts one around `forward`), which two threads must not
    enter at once. A pickler asks about each object, so such functions are made anew here.
    """

    def __init__(self, known: dict[int, Any], copy_tensor: Callable[[Any, str], Any]) -> None:
        """Nothing is copied yet.

        Args:
            known: Copies of modules and tensors, by the `id` of their originals.
            copy_tensor: Copies other tensors.
        """
        self._pickled = io.BytesIO()
        super().__init__(self._pickled)
        self._references: list[Any] = []
        self._reader = _AttributeReader(self._pickled, self._references)
        self._known, self._copy_tensor = known, copy_tensor
        self._where = ""

    def copy(self, value: Any, where: str) -> Any:
        if id(value) not in self._known:
            self._where, start = where, self._pickled.tell()
            try:
                self.dump(value)
                self._pickled.seek(start)
                self._known[id(value)] = self._reader.load()
            except (InvalidInput, _NoLongerFits):
                raise
            except Exception as problem:  # objects have code of their own to be pickled by
                why = f"a {type(value).__name__} cannot be copied ({problem})"
                raise _refusal(where, why) from problem
        return self._known[id(value)]

    def persistent_id(self, value: Any) -> int | None:
        """A number for what is not pickled, but passed on: copies that are known, and what a copy
        would not differ from."""
        torch, kind = _torch(), type(value)
        if kind in _PLAIN:
            return None
        if id(value) in self._known:
            result = self._known[id(value)]
        elif issubclass(kind, torch.Tensor):
            result = self._copy_tensor(value, self._where)
        elif issubclass(kind, torch.optim.Optimizer):
            result = None
        elif issubclass(kind, torch.Generator):
            result = value.clone_state()
        elif issubclass(kind, weakref.ref):
            target = self._known.get(id(value()))
            result = value if target is None else weakref.ref(target)
        elif kind is _Reference:
            result = value.to
        elif _is_same(value):
            result = value
        else:
            if why := _why_not(kind):
                raise _refusal(self._where, why)
            return None
        if kind is types.FunctionType:
            _check_globals(value, self._where)
        self._references.append(result)
        return len(self._references) - 1

    def reducer_override(self, value: Any) -> Any:
        """How functions, methods and accelerate's wrapper of `forward` are made anew."""
        if isinstance(value, types.MethodType):  # by its name it may be another one by now
            return types.MethodType, (value.__func__, value.__self__)
        if isinstance(value, types.FunctionType):
            _check_globals(value, self._where)
            if (plain := _compiled_from(value)) is not None:
                return functools.partial, (plain,)
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            state = cells, value.__defaults__, value.__kwdefaults__, vars(value)
            return _new_function, (_Reference(value),), state, None, None, _fill_function
        if type(value).__name__ == "ConvertOutputsToFp32":  # it refuses to be pickled
            return object.__new__, (type(value),), vars(value)
        return NotImplemented


class _AttributeReader(pickle.Unpickler):
    def __init__(self, pickled: io.BytesIO, references: Sequence[Any]) -> None:
        super().__init__(pickled)
        self._references = references

    def persistent_load(self, number: int) -> Any:
        return self._references[number]


class _Reference(NamedTuple):
    """Marks what is to be passed on as it is."""

    to: Any


def _is_same(value: Any) -> bool:
    """Whether a copy of it would be no different from itself."""
    torch, kind = _torch(), type(value)
    if kind is types.BuiltinFunctionType:  # `append` of a list is none
        return isinstance(value.__self__, types.ModuleType | type | None)
    if kind is types.FunctionType:
        held = value.__closure__ or value.__defaults__ or value.__kwdefaults__
        return _compiled_from(value) is None and (not held or _is_importable(value))
    return issubclass(kind, type | types.ModuleType | torch.dtype | torch.device)


def _is_importable(function: Any) -> bool:
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _why_not(kind: type) -> str | None:
    data = _torch().utils.data
    if issubclass(kind, _torch().nn.Module):
        return f"it leads to a {kind.__name__} that is no part of the model"
    if issubclass(kind, data.DataLoader | data.Dataset):
        return f"it leads to the data of the training ({kind.__name__})"
    if hasattr(kind, "__del__"):
        return f"a {kind.__name__} does something when it ends (__del__), and a copy would, too"
    return None


def _compiled_from(function: Any) -> Any:
    """What a function of `torch.compile`'s was compiled from; None if it is none."""
    if getattr(function, "_torchdynamo_disable", False):
        return None
    return getattr(function, "_torchdynamo_orig_callable", None)


def _check_globals(function: Any, where: str, *, may_be_modules: bool = False) -> None:
    """Raise where a function reads what no copy can have of it by a global name.

    As in a notebook: `old = model.forward`, which the new one calls.
    """
    codes = [function.__code__]
    for code in codes:
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    names = {name for code in codes for name in code.co_names} & function.__globals__.keys()
    for name in sorted(names):
        value = function.__globals__[name]
        if isinstance(value, types.FunctionType) and _compiled_from(value) is not None:
            why = "is compiled by torch.compile, and compiling sets random state of the training"
        elif not may_be_modules and isinstance(
            owner := getattr(value, "__self__", value), _torch().nn.Module
        ):
            why = f"is the {type(owner).__name__} in training, or a method of it"
        else:
            continue
        raise _refusal(where, f"{function.__qualname__} reads the global {name}, which {why}")


def _new_function(function: Any) -> Any:
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    code, names = function.__code__, function.__globals__
    new = types.FunctionType(code, names, function.__name__, closure=cells)
    new.__qualname__, new.__module__ = function.__qualname__, function.__module__
    return new


def _fill_function(function: Any, state: tuple[Any, ...]) -> None:
    contents, function.__defaults__, function.__kwdefaults__, attributes = state
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        cell.cell_contents = content
    vars(function).update(attributes)


# --- Devices and threads ------------------------------------------------------------------------


def _thread_settings(device: Any) -> Callable[[], ExitStack]:
    """The default device and autocast of this thread, to be entered in another one."""
    torch = _torch()
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
    """Autocast keeps casts of weights in one place for all threads, and the outermost region of any
    thread empties it at its end: a weight that training uses twice would be cast twice, and its
    gradients added up in another precision. Inside a region that never ends none is the outermost.
    """
    import torch

    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()


def _torch() -> Any:
    """It has been imported by whoever has a model."""
    return sys.modules["torch"]


__all__ = ["PolicyVersion", "SnapshotPool", "WeightSnapshot"]
