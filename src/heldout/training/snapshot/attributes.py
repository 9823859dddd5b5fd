"""What hangs on a module beside its tensors: copied by kind, compared, and searched.

`copy.deepcopy` will not do. It takes functions for constants, and trainers put functions on models:
accelerate's `forward` holds one `torch.autocast` object, which two threads must not enter at once,
and others hold the model itself, so that a copy would run the weights that are being trained. So
functions are opened here, and what cannot be copied faithfully is refused, with its name.
"""

from __future__ import annotations

import copy
import dis
import enum
import functools
import gc
import logging
import random
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from heldout.errors import InvalidInput

_PLAIN = frozenset({type(None), bool, int, float, str})
_CONSTANT: tuple[type, ...] = (
    *(bool, int, float, complex, str, bytes, range, slice, enum.Enum, type(...), type),
    *(types.ModuleType, types.CodeType, logging.Logger),
)


def refusal(where: str, why: str) -> InvalidInput:
    return InvalidInput(
        f"no shadow can be made of this model, because of {where or 'the model itself'}: {why}. "
        "Take that off the model, or evaluate between training steps instead"
    )


def is_constant(value: Any) -> bool:
    """Whether a copy of it would be no different from itself."""
    if type(value) in _PLAIN:  # nearly all there is, many times at each snapshot
        return True
    import torch

    if isinstance(value, types.BuiltinFunctionType):  # `append` of some list is none
        return isinstance(value.__self__, types.ModuleType | type | None)
    return isinstance(value, (*_CONSTANT, torch.dtype, torch.device, torch.Size))


def is_flat(value: Any) -> bool:
    """Whether it is a container of constants alone."""
    if type(value) is dict:
        return all(map(is_constant, value.values()))
    return type(value) in (list, tuple, set, frozenset) and all(map(is_constant, value))


def is_optimizer(value: Any) -> bool:
    import torch

    return isinstance(value, torch.optim.Optimizer)


def attributes_of(tensor: Any) -> dict[str, Any]:
    """What somebody has hung on a tensor, but for what belongs to its training."""
    held = getattr(tensor, "__dict__", None)
    if not held:
        return {}
    return {
        name: value
        for name, value in held.items()
        if "grad" not in name and "optim" not in name and not is_optimizer(value)
    }


def refilled(container: Any, content: Any) -> Any:
    """The flat container with this content: the same one, where it can be; others may have it."""
    if type(container) is not type(content) or isinstance(content, tuple | frozenset):
        return type(content)(content)
    container.clear()
    if isinstance(container, list):
        container += content
    else:
        container.update(content)
    return container


# --- Copying ------------------------------------------------------------------------------------


class Copier:
    """Copies values. `memo` has what is copied already (modules and tensors of the model, to begin
    with) by `id`; `tensor(tensor, where)` copies others."""

    def __init__(self, memo: dict[int, Any], tensor: Callable[[Any, str], Any]) -> None:
        self._memo, self._tensor = memo, tensor
        self._kept: list[Any] = []
        """Originals: while they live, nothing else has their id."""

    def __call__(self, value: Any, where: str) -> Any:
        if is_constant(value):
            return value
        if id(value) not in self._memo:
            self._kept.append(value)
            self._memo[id(value)] = self._made(value, where)
        return self._memo[id(value)]

    def _made(self, value: Any, where: str) -> Any:
        import torch

        kind = type(value)
        if isinstance(value, torch.nn.Module):
            raise refusal(where, f"it leads to a {kind.__name__} that is no part of the model")
        if isinstance(value, torch.Tensor):
            return self._tensor(value, where)
        if (why := _why_not(torch, value)) is not None:
            raise refusal(where, why)
        if kind in (list, set, frozenset, deque):
            return kind([self(each, f"{where}[{n}]") for n, each in enumerate(value)])
        if isinstance(value, tuple):
            items = [self(each, f"{where}[{n}]") for n, each in enumerate(value)]
            return kind(*items) if hasattr(kind, "_fields") else kind(items)
        if kind in (dict, OrderedDict):
            return kind((key, self(each, f"{where}[{key!r}]")) for key, each in value.items())
        if kind is types.MethodType:
            function, owner = value.__func__, value.__self__
            if getattr(type(owner), function.__name__, None) is not function:
                function = self(function, where)
            return types.MethodType(function, self(owner, where))
        if kind is types.BuiltinFunctionType:
            return getattr(self(value.__self__, where), value.__name__)
        if kind is types.FunctionType:
            return self._function(value, where)
        if kind is functools.partial:
            arguments, named = self(value.args, where), self(value.keywords, where)
            made = functools.partial(self(value.func, where), *arguments, **named)
            vars(made).update(self(vars(value), where))
            return made
        if kind is weakref.ref:
            found = self._memo.get(id(value()))
            return value if found is None else weakref.ref(found)
        return self._object(value, where)

    def _function(self, function: Any, where: str) -> Any:
        """One with cells of its own: who has the original's may put something else into them."""
        if (compiled := getattr(function, "_torchdynamo_orig_callable", None)) is not None:
            return self(compiled, where)
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        made = types.FunctionType(function.__code__, function.__globals__, closure=cells)
        self._memo[id(function)] = made  # it may lead to itself
        other = bool(cells)
        for cell, of in zip(cells, function.__closure__ or (), strict=True):
            try:
                content = of.cell_contents
            except ValueError:
                continue  # it is empty
            cell.cell_contents = self(content, f"{where}: what its function encloses")
        for part in ("__defaults__", "__kwdefaults__", "__dict__"):
            held = getattr(function, part)
            items = held.items() if isinstance(held, dict) else enumerate(held or ())
            copies = {name: self(each, f"{where}: {part} of its function") for name, each in items}
            other = other or any(copies[name] is not held[name] for name in copies)
            if held:
                setattr(made, part, copies if isinstance(held, dict) else tuple(copies.values()))
        if not other:
            return function
        for name in ("__name__", "__qualname__", "__module__", "__doc__", "__annotations__"):
            setattr(made, name, getattr(function, name))
        return made

    def _object(self, value: Any, where: str) -> Any:
        if _is_simple(value):
            made = self._memo[id(value)] = object.__new__(type(value))
            for name, each in vars(value).items():
                vars(made)[name] = self(each, f"{where}.{name}")
            return made
        import torch

        kind = type(value).__name__
        for each in reached(value, set(self._memo)):  # else the training would be copied with it
            if (why := _why_not(torch, each)) is not None:
                raise refusal(where, why)
        try:
            return copy.deepcopy(value, self._memo)
        except Exception as problem:
            raise refusal(where, f"a {kind} cannot be copied ({problem})") from problem


_MAKING = ("__new__", "__reduce__", "__reduce_ex__")


def _is_simple(value: Any) -> bool:
    """Whether all there is to an object is what is in its `__dict__`."""
    kind: Any = type(value)
    return (
        hasattr(value, "__dict__")
        and all(getattr(kind, name) is getattr(object, name) for name in _MAKING)
        and not hasattr(kind, "__deepcopy__")
        and not hasattr(kind, "__setstate__")
        and not any(vars(base).get("__slots__") for base in kind.__mro__)
    )


def _why_not(torch: Any, value: Any) -> str | None:
    named = type(value).__name__
    if isinstance(value, torch.optim.Optimizer):
        return f"it leads to an optimizer ({named}), so to the training itself"
    if isinstance(value, torch.utils.data.DataLoader | torch.utils.data.Dataset):
        return f"it leads to the data of the training ({named})"
    if isinstance(value, torch.Generator | _GENERATORS):
        return "it holds a random generator, whose numbers two models cannot both draw"
    if isinstance(value, Iterator):
        return f"it holds a {named}, which can be read only once"
    if hasattr(type(value), "__del__"):
        return f"a {named} does something when it ends (__del__), and a copy would do it too"
    return None


_GENERATORS = np.random.Generator | np.random.RandomState | random.Random


# --- Comparing ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Identity:
    """Equal to itself alone."""

    of: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.of is other.of

    def __hash__(self) -> int:
        return id(self.of)


def described(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """A value by its content, to be compared: containers and objects opened, the rest itself."""
    import torch

    if is_constant(value):
        return value
    if id(value) in inside:
        return None
    inside = (*inside, id(value))
    kind = type(value)
    if isinstance(value, dict):
        return kind, [(key, described(each, inside)) for key, each in value.items()]
    if isinstance(value, list | tuple | deque):
        return kind, [described(each, inside) for each in value]
    if isinstance(value, set | frozenset):
        return kind, {each if is_constant(each) else _Identity(each) for each in value}
    if isinstance(value, torch.nn.Module | torch.Tensor):
        return _Identity(value)
    if isinstance(value, np.ndarray):
        content = value.tolist() if value.dtype.hasobject else value.tobytes()
        return kind, value.dtype.str, value.shape, content
    if isinstance(value, types.MethodType | types.BuiltinFunctionType):
        function = getattr(value, "__func__", value.__name__)
        return kind, described(function, inside), described(value.__self__, inside)
    if isinstance(value, functools.partial):
        return kind, described([value.func, value.args, value.keywords, vars(value)], inside)
    if isinstance(value, types.FunctionType):
        held = [_content(cell) for cell in value.__closure__ or ()]
        held += [value.__defaults__, value.__kwdefaults__, vars(value)]
        return _Identity(value), described(held, inside)
    names = [name for base in kind.__mro__ for name in _slots(base) if hasattr(value, name)]
    if not names and not hasattr(value, "__dict__"):
        return _Identity(value)
    own = {**{name: getattr(value, name) for name in names}, **getattr(value, "__dict__", {})}
    return kind, [(name, described(each, inside)) for name, each in own.items()]


def _slots(kind: type) -> list[str]:
    names = vars(kind).get("__slots__", ())
    names = (names,) if isinstance(names, str) else names
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # it is empty


# --- Searching ----------------------------------------------------------------------------------


def reached(root: Any, seen: set[int]) -> Iterator[Any]:
    """A value and all that can be reached from it, but for constants and what is in `seen` (ids).

    What was reached is added there.
    """
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or is_constant(value):
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, types.FunctionType):
            waiting += _globals_of(value)
            waiting += [value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value)]
        elif isinstance(value, weakref.ref):
            waiting.append(value())
        else:
            waiting += gc.get_referents(value)


def why_not_searched(value: Any) -> str | None:
    """Why no double may lead there, though it is no part of the original."""
    if not isinstance(value, types.FunctionType) or getattr(value, "_torchdynamo_disable", False):
        return None
    if getattr(value, "_torchdynamo_orig_callable", None) is None:
        return None
    return (
        f"it leads to {value.__qualname__}, which is compiled by torch.compile, and compiling sets "
        "random state that is the training's"
    )


def _globals_of(function: Any) -> list[Any]:
    """What its code reads of its module: the names alone would have those of attributes, too."""
    waiting, names = [function.__code__], set()
    while waiting:
        code = waiting.pop()
        names |= {
            each.argval for each in dis.get_instructions(code) if each.opname in _READS_GLOBALS
        }
        waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return [function.__globals__[name] for name in names if name in function.__globals__]


_READS_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
