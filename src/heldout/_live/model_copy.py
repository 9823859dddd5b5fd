"""A second model of the same modules as the one in training, with its own tensors.

    copy = ModelCopy(model)
    copy.try_fill()             # in the trainer's thread: its weights are the model's now
    with copy.stream():         # in the thread that evaluates
        copy.model(...)

It is made once and filled again for each eval, because graphs are captured of its addresses. What
cannot be copied is refused by name, since a copy that shares something with the model in training
would be written to by one of them and read by the other.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, runtime_checkable

from heldout._core.memory import available_memory
from heldout._live.decoding.model import unwrap
from heldout._live.weights import Copy, explain_sharding, read_sums, sum_bits, writes
from heldout._live.wrappers import (
    is_sharding_hook,
    is_sharding_state,
    plain_class,
    wrapped_module,
)
from heldout.errors import InvalidInput


class NotCopyable(InvalidInput):
    """There can be no copy of a model, so it is evaluated while training waits."""


class _NoLongerFits(Exception):
    """The model has other modules or tensors than when its copy was made."""


@runtime_checkable
class Sharded(Protocol):
    """A model of which this process has only a part, and which gathers the rest."""

    @property
    def model(self) -> Any:
        """The torch module."""

    def shape_of(self, tensor: Any) -> Any:
        """Return the whole shape of a tensor; None for one that is not sharded."""

    def primary(self, tensor: Any) -> Any:
        """Return the tensor that a tied one is gathered with; by default itself."""

    def gather_weights(
        self,
        receive: Callable[[Any, Any], object],
        *,
        needs_all: bool,
        known_frozen: list[str] | None,
    ) -> list[str]:
        """Gather the weights in all processes, once they have agreed to.

        Args:
            receive: Gets each tensor and its whole content.
            needs_all: Whether this process needs frozen weights, too.
            known_frozen: The hashes of the frozen weights that it has; others are gathered again.

        Returns:
            The hashes of the frozen weights, by process.

        Raises:
            InvalidInput: One of the processes cannot take part.
        """
        ...

    def decline(self, problem: BaseException) -> None:
        """Have the processes gather nothing, where they have not agreed yet.

        Args:
            problem: Why this one cannot take part.
        """


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


class ModelCopy:
    """A second model of the same modules, with its own tensors.

    Modules are made without their `__init__`. What they hold apart from tensors is copied each time
    by `copy.deepcopy`, whose memo has the copies of modules and tensors. `deepcopy` shares
    functions: those that a module holds are made again, other closures are refused. Gradients,
    optimizers, hooks for gradients and compiled code are left out.
    """

    def __init__(
        self,
        model: Any,
        *,
        sharded: Sharded | None = None,
        device: Any = None,
        copy: Copy = "trainable",
    ) -> None:
        import torch

        self.original = bare_model(model)
        self._sharded = sharded
        _check(self.original, is_gathered=sharded is not None)
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
                raise refusal(name, "accelerate has spread it over devices")
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
        raise refusal(where, f"{name} is a hook of its forward pass")

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
            raise refusal("", "an object in it holds a tensor in a way that hides it")
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

    def _copy_sharded(self, sharded: Sharded, tensor: Any) -> Any:
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
            raise refusal(where, f"its weights cannot be copied ({what})")
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
            raise refusal(where, why) from problem

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
            raise refusal(where, why)
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
                raise refusal(where, why)
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

    def try_fill(self, sharded: Sharded | None = None) -> bool:
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

    def _gather(self, sharded: Sharded) -> None:
        """Gather the weights from all processes."""
        known, self._has_frozen = self._has_frozen, None

        def receive(tensor: Any, whole: Any) -> None:
            self._gathered[id(tensor)].copy_(whole, non_blocking=True)

        self._has_frozen = sharded.gather_weights(
            receive, needs_all=known is None or self._copy == "all", known_frozen=known
        )

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


def refusal(where: str, why: str) -> NotCopyable:
    """Make the error that says why a model has no copy, and what can be done."""
    return NotCopyable(
        f"this model cannot be copied, because of {where or 'the model itself'}: {why}. "
        "Remove that from the model; one that is not sharded can be evaluated inline instead"
    )


def bare_model(model: Any) -> Any:
    """Return the module that a model in training wraps."""
    model = inner = unwrap(model)
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
            raise refusal(name, f"the code of a {kind.__name__} holds its own weights")
        if kind.__name__ in ("DistributedDataParallel", "DataParallel"):
            raise refusal(name, f"the forward pass of {kind.__name__} talks to other processes")
        methods = [value for value in vars(kind).values() if isinstance(value, types.FunctionType)]
        for method in methods:
            if why := _why_not_globals(inspect.unwrap(method), may_be_modules=True):
                raise refusal(name, why)


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


def _recorded(stream: Any) -> Any:
    import torch

    event = torch.cuda.Event(blocking=True)  # waiting for it takes no core from the trainer
    event.record(stream)
    return event
