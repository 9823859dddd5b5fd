"""A second model built like the first: modules, configs and patches of its own.

    replica = Replica(model)
    replica.model                   # built, and nothing in it yet
    replica.refreshed()             # what has to be copied now; None where another has to be made

Modules are made anew one by one, without their `__init__`: no random numbers are drawn, and only
what a module holds decides what its double holds. Gradients, hooks for gradients and compiled code
are left out. Hooks into the forward pass that are not the model's own are refused: one cannot know
whether they change what it says, or only watch it. At the end all that the double leads to is
searched for parts of the original.
"""

from __future__ import annotations

import inspect
import types
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from heldout.decoding.model import unwrap
from heldout.errors import InvalidInput
from heldout.training.snapshot.attributes import (
    Copier,
    attributes_of,
    described,
    is_constant,
    is_flat,
    is_optimizer,
    reached,
    refilled,
    refusal,
    why_not_searched,
)
from heldout.weights import Copy, why_not_whole, writes

_Way = Literal["each time", "once", "shared"]

_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_FLAGS_OF_HOOKS = (
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
)
_OTHER_HOOKS = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_NOT_COPIED = {
    "training": False,
    "gradient_checkpointing": False,
    "_is_full_backward_hook": None,
    "_compiled_call_impl": None,
    # Transformers' handles of a hook that is left out.
    "_require_grads_hook": None,
    "_require_grads_hooks": None,
}
"""What a double has in the place of these."""
_BY_THEMSELVES = frozenset(
    {"_parameters", "_buffers", "_modules", *_FORWARD_HOOKS, *_FLAGS_OF_HOOKS, *_OTHER_HOOKS}
)


class Transfer(NamedTuple):
    source: Any
    target: Any


class Replica:
    """A model and its double, and whether the one still fits the other."""

    def __init__(self, model: Any, *, device: Any = None, copy: Copy = "trainable") -> None:
        self.original = unwrap(model)
        self.fixed: list[Transfer] = []
        """Frozen tensors of the original, and those of the double that have their content without
        being copied each time."""
        self._once: list[Transfer] = []
        """Still to be copied, and then never again."""
        self._loose: list[Transfer] = []
        """Tensors in containers: the same ones for as long as nothing else changes."""
        self._places: list[_Place] = []
        self._empty: list[tuple[dict[str, Any], str]] = []
        """Where there could be a tensor, and is none."""
        self._parts: list[_Part] = []
        _check(self.original)
        self.model = _Build(self, device, copy).build()

    def refreshed(self) -> list[Transfer] | None:
        """Bring the double's plain values up to date, and say which tensors have to be copied.

        None where the original has changed so that the double cannot follow: other modules, shapes,
        types or devices, parameters that were frozen and are no longer, other hooks or patches,
        another config, other adapters.
        """
        known: dict[int, Any] = {}
        if not all(part.follow(known) for part in self._parts):
            return None
        if any(holder.get(key) is not None for holder, key in self._empty):
            return None
        transfers, self._once = self._once, []
        current: list[Any] = []
        self.fixed = []
        for place in self._places:
            tensor = place.holder.get(place.key)
            current.append(tensor)
            if place.same_as is not None:
                if tensor is not current[place.same_as]:
                    return None
            elif not place.fits(tensor):
                return None
            elif place.is_due(tensor):
                transfers.append(Transfer(tensor, place.target))
            if place.same_as is None and place.way != "each time":
                self.fixed.append(Transfer(tensor, place.target))
            place.own[place.key] = place.target
        if any(source.shape != target.shape for source, target in self._loose):
            return None
        return transfers + self._loose

    def copy_all_again(self) -> None:
        """At the next time: frozen weights were written to, and torch has not counted it."""
        for place in self._places:
            place.version = None


@dataclass(slots=True)
class _Place:
    """Where the original has a tensor, and the double's tensor there."""

    holder: dict[str, Any]
    own: dict[str, Any]
    key: str
    target: Any
    way: _Way
    same_as: int | None
    """An earlier place that has the same tensor: tied weights."""
    kind: Any
    shape: Any
    dtype: Any
    device: Any
    stride: Any
    pointer: int
    version: int | None
    attributes: dict[str, Any] = field(default_factory=dict)
    """What hangs on the tensor itself and is no constant, described."""

    def fits(self, tensor: Any) -> bool:
        if (
            type(tensor) is not self.kind
            or tensor.shape != self.shape
            or tensor.dtype is not self.dtype
            or tensor.device != self.device
            or tensor.stride() != self.stride
            or not self._follows(tensor)
        ):
            return False
        if self.way == "each time":
            return True
        if tensor.requires_grad:
            return False
        return self.way == "once" or self.pointer == tensor.data_ptr()

    def _follows(self, tensor: Any) -> bool:
        held = attributes_of(tensor)
        if self.target is not tensor:
            for name, value in held.items():
                if is_constant(value):
                    vars(self.target)[name] = value
                elif name not in self.attributes or described(value) != self.attributes[name]:
                    return False
        return True

    def is_due(self, tensor: Any) -> bool:
        if self.way != "once":
            return self.way == "each time"
        # It is frozen, but somebody may have loaded other weights since.
        was = self.pointer, self.version
        self.pointer, self.version = tensor.data_ptr(), writes(tensor)
        return was != (self.pointer, self.version)


@dataclass(slots=True)
class _Part:
    """A module and its double: all that is no tensor."""

    module: Any
    kind: type
    held: dict[str, Any]
    own: dict[str, Any]
    size: int
    tensors: int
    children: dict[str, Any]
    hooks: dict[Any, Any]
    pre_hooks: dict[Any, Any]
    plain: list[str] = field(default_factory=list)
    """Attributes that are constants: they are handed on each time."""
    flat: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Containers of constants, and as they were: a list of losses grows at each step."""
    deep: list[tuple[str, Any]] = field(default_factory=list)
    """All others, described."""
    optimizers: list[str] = field(default_factory=list)
    """Left out."""

    def follow(self, known: dict[int, Any]) -> bool:
        """`known` has, by `id`, what was compared already: many modules have the same config."""
        held, own = self.held, self.own
        if (
            len(held) != self.size
            or type(self.module) is not self.kind
            or len(held["_parameters"]) + len(held["_buffers"]) != self.tensors
            or held["_modules"] != self.children
            or held["_forward_hooks"] != self.hooks
            or held["_forward_pre_hooks"] != self.pre_hooks
        ):
            return False
        for name in self.plain:
            value = held.get(name, self)
            if not is_constant(value):
                return False
            own[name] = value
        for name, (container, was) in self.flat.items():
            value = held.get(name)
            if type(value) is not type(was) or not is_flat(value):
                return False
            if value is not container or value != was:
                own[name] = refilled(own.get(name) if value is container else None, value)
                self.flat[name] = value, refilled(None, value)
        if not all(is_optimizer(held.get(name)) for name in self.optimizers):
            return False
        for name, was in self.deep:
            value = held.get(name)
            if known.get(id(value)) is not was:
                if described(value) != was:
                    return False
                known[id(value)] = was
        return True


# --- Building -----------------------------------------------------------------------------------


def _check(model: Any) -> None:
    import torch

    if not isinstance(model, torch.nn.Module):
        raise InvalidInput(f"a shadow is made of a torch module, got {type(model).__name__}")
    if why := why_not_whole(model):
        raise InvalidInput(why)
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, torch.jit.ScriptModule):
            raise refusal(name, f"it is a {kind}, whose code holds its own weights")
        if kind in ("DistributedDataParallel", "DataParallel"):
            raise refusal(name, f"it is a {kind}, whose forward pass talks to other processes")


class _Build:
    def __init__(self, replica: Replica, device: Any, copy: Copy) -> None:
        import torch

        self.torch, self.replica, self.copy = torch, replica, copy
        self.device = None if device is None else torch.empty(0, device=device).device
        self.memo: dict[int, Any] = {}
        """The doubles of modules and tensors, by `id`."""
        self.first: dict[int, int] = {}
        """The first place of a tensor, by `id`."""
        self.descriptions: dict[int, Any] = {}
        self.copied = Copier(self.memo, self._loose)

    def build(self) -> Any:
        original, memo = self.replica.original, self.memo
        named = [(name, m) for name, m in original.named_modules() if not _is_compiled(m)]
        for _, module in named:
            memo[id(module)] = object.__new__(type(module))
        for module in original.modules():
            if _is_compiled(module):
                memo[id(module)] = memo[id(module._orig_mod)]
        for name, module in named:
            self._tensors(name, module)
        for place in self.replica._places:
            self._attributes(place)
        for name, module in named:
            self._module(name, module)
        self._search(named)
        return memo[id(original)]

    def _search(self, named: list[tuple[str, Any]]) -> None:
        """Raise where anything that the double holds leads to a part of the original."""
        replica = self.replica
        live = {id(module) for module in replica.original.modules()}
        live |= {id(p.holder[p.key]) for p in replica._places if p.way != "shared"}
        live |= {id(source) for source, _ in replica._loose}
        seen = {id(self.memo[id(module)]) for _, module in named}
        for path, module in named:
            double = self.memo[id(module)]
            roots = [(key, value) for key, value in vars(double).items() if key != "_modules"]
            roots.append(("forward", inspect.getattr_static(type(double), "forward", None)))
            for key, root in roots:
                for value in reached(root, seen):
                    if id(value) in live:
                        why = f"it still leads to the {type(value).__name__} in training"
                        raise refusal(_joined(path, key), why)
                    if (reason := why_not_searched(value)) is not None:
                        raise refusal(_joined(path, key), reason)

    # --- Tensors ---

    def _tensors(self, path: str, module: Any) -> None:
        held, own = vars(module), vars(self.memo[id(module)])
        for group in ("_parameters", "_buffers"):
            own[group] = dict(held[group])
            for key, tensor in held[group].items():
                if tensor is None:
                    self.replica._empty.append((held[group], key))
                else:
                    self._place(tensor, held[group], own[group], key, _joined(path, key))
        for key, value in held.items():
            if isinstance(value, self.torch.Tensor):
                self._place(value, held, own, key, _joined(path, key))

    def _place(self, tensor: Any, holder: Any, own: Any, key: str, where: str) -> None:
        places = self.replica._places
        same_as = self.first.get(id(tensor))
        if same_as is None:
            target, way = self._target(tensor, where)
            self.memo[id(tensor)] = target
            self.first[id(tensor)] = len(places)
        else:
            target, way = places[same_as].target, places[same_as].way
        own[key] = target
        build = type(tensor), tensor.shape, tensor.dtype, tensor.device, tensor.stride()
        content = tensor.data_ptr(), writes(tensor)
        places.append(_Place(holder, own, key, target, way, same_as, *build, *content))

    def _attributes(self, place: _Place) -> None:
        tensor = place.holder[place.key]
        if place.same_as is not None or place.target is tensor:
            return
        for name, value in attributes_of(tensor).items():
            vars(place.target)[name] = self.copied(value, f"{place.key}.{name}")
            if not is_constant(value):
                place.attributes[name] = described(value)

    def _loose(self, tensor: Any, where: str) -> Any:
        target, way = self._target(tensor, where)
        if way == "each time":
            self.replica._loose.append(Transfer(tensor, target))
        return target

    def _target(self, tensor: Any, where: str) -> tuple[Any, _Way]:
        torch = self.torch
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        is_frozen = is_parameter and not tensor.requires_grad and self.copy == "trainable"
        device = self.device or tensor.device
        if is_frozen and device == tensor.device:
            # A parameter of its own over the same memory: it stays frozen, and stays where it is,
            # if the original's is trained or put elsewhere one day.
            target = torch.nn.Parameter(tensor.detach(), False) if is_plain else tensor
            return target, "shared"
        if not is_plain or tensor.layout is not torch.strided or tensor.device.type == "meta":
            what = f"{type(tensor).__name__}, {tensor.layout}, on {tensor.device}"
            raise refusal(where, f"its weights cannot be copied ({what})")
        # Copies to the host go on without it only if its memory is pinned.
        pinned = {"pin_memory": True} if (device.type, tensor.is_cuda) == ("cpu", True) else {}
        target = torch.empty_like(tensor.detach(), device=device, **pinned)
        if is_parameter:
            target = torch.nn.Parameter(target, False)
        if is_frozen:
            self.replica._once.append(Transfer(tensor, target))
        return target, "once" if is_frozen else "each time"

    # --- All else ---

    def _module(self, path: str, module: Any) -> None:
        held, own = vars(module), vars(self.memo[id(module)])
        part = _Part(
            module,
            type(module),
            held,
            own,
            len(held),
            len(held["_parameters"]) + len(held["_buffers"]),
            dict(held["_modules"]),
            dict(held["_forward_hooks"]),
            dict(held["_forward_pre_hooks"]),
        )
        self.replica._parts.append(part)
        own["_modules"] = {
            name: None if child is None else self.memo[id(child)]
            for name, child in held["_modules"].items()
        }
        for name in (*_FORWARD_HOOKS, *_FLAGS_OF_HOOKS, *_OTHER_HOOKS):
            own[name] = OrderedDict()
        for name in _FORWARD_HOOKS:
            for key, hook in held[name].items():
                self._hook(path, module, name, key, hook)
        for name, value in held.items():
            where = _joined(path, name)
            if name in _BY_THEMSELVES or isinstance(value, self.torch.Tensor):
                continue
            if name in _NOT_COPIED:
                own[name] = _NOT_COPIED[name]
            elif is_constant(value):
                own[name] = value
                part.plain.append(name)
            elif is_optimizer(value):  # as in stable-baselines3
                own[name] = None
                part.optimizers.append(name)
            elif name == "_hf_hook" and self.device is not None:
                raise refusal(where, "accelerate has put it on devices of its own choice")
            else:
                own[name] = self.copied(value, where)
                if is_flat(value):
                    part.flat[name] = value, refilled(None, value)
                else:
                    self.descriptions.setdefault(id(value), described(value))
                    part.deep.append((name, self.descriptions[id(value)]))

    def _hook(self, path: str, module: Any, group: str, key: int, hook: Any) -> None:
        held, own = vars(module), vars(self.memo[id(module)])
        if isinstance(hook, types.MethodType) and id(hook.__self__) in self.memo:
            own[group][key] = self.copied(hook, path)
            for flags in _FLAGS_OF_HOOKS:
                if flags.startswith(group) and key in held[flags]:
                    own[flags][key] = True
            return
        named = f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', repr(hook))}"
        if not named.startswith("wandb.") and not named.endswith(".make_inputs_require_grads"):
            raise refusal(
                path, f"{named} is hooked into its forward pass, to change or to watch it"
            )


def _is_compiled(module: Any) -> bool:
    """A compiled part: its double is that of what was compiled, as it was written."""
    return "_orig_mod" in module._modules


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
