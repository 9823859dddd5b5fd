"""What a function does, as a fingerprint: enough to notice that it is not the one it was."""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import inspect
import json
import re
import sys
import sysconfig
import threading
import tokenize
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar, cast

_T = TypeVar("_T")

_VERSION = "__heldout_version__"


def set_version(function: Callable[..., Any], version: int | str | Callable[[], int | str]) -> None:
    """Make a function known by name and version, whatever its code.

    Args:
        function: The function.
        version: Its version, or a function that finds it, where that takes work.
    """
    setattr(function, _VERSION, version)


def version_of(function: Any) -> int | str | None:
    """Return the version that `set_version` gave a function.

    Args:
        function: Any object.

    Returns:
        The version; None where it has none.
    """
    version = getattr(function, _VERSION, None)
    version = version() if callable(version) else version
    return version if isinstance(version, int | str) else None


def describe_callable(
    function: Callable[..., Any] | None, *, docstrings: bool = False, weights: bool = False
) -> dict[str, Any] | None:
    """Describe a function by name and fingerprint: enough to notice that it is another one.

    The fingerprint covers its source, that of functions and classes that it uses, of the same
    module and of others that are not installed packages, and the constants, so that a changed
    helper or threshold is noticed too. Comments and layout do not count, nor what a function
    rebinds itself, which is a counter or a cache.

    Args:
        function: The function, or an object with `__call__` or `identity()`.
        docstrings: Whether docstrings count: where functions are tools, a model reads them.
        weights: Whether the weights of torch models that it uses count, which are what a function
            that answers is known by.

    Returns:
        `name` and `source`; `unknown` names the weights that cannot be read. None for None.
    """
    if function is None:
        return None
    inner = function.func if isinstance(function, functools.partial) else function
    inner = inspect.unwrap(inner)
    identify = getattr(inner, "identity", None)
    if (
        callable(identify)
        and not inspect.isclass(inner)
        and isinstance(identity := identify(), dict)
    ):
        # It says itself what it is known by, as a rubric does.
        content = json.dumps(
            identity, sort_keys=True, default=lambda value: type(value).__qualname__
        )
        name = identity.get("name", type(inner).__qualname__)
        return {**json.loads(content), "name": name, "source": _digest([content])}
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    walk = _Walk(docstrings, weights, set(), [])
    parts = list(_identity(function, walk))
    description = {"name": name, "source": _digest(parts)} if parts else {"name": name}
    if walk.unknown:
        description["unknown"] = f"the weights of {', '.join(walk.unknown)} cannot be read"
    return description


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Walk:
    """From a function to all that it uses; `seen` ends circles."""

    docstrings: bool
    weights: bool
    seen: set[int]
    unknown: list[str]

    def enters(self, thing: Any) -> bool:
        new = id(thing) not in self.seen
        self.seen.add(id(thing))
        return new


def _identity(value: Any, walk: _Walk) -> Iterator[str]:
    if isinstance(value, functools.partial):
        yield from _identity(value.func, walk)
        home = getattr(value.func, "__module__", None)
        for name, bound in [*enumerate(value.args), *sorted(value.keywords.items())]:
            # A dict that is bound is a table of settings; a list may well be a log.
            is_constant = isinstance(bound, dict)
            parts = list(_use_identity(str(name), bound, home, walk, is_constant=is_constant))
            yield from parts or [f"{name}: {type(bound).__qualname__}"]
        return
    value = inspect.unwrap(value)
    owner = getattr(value, "__self__", None)
    if owner is not None and not inspect.ismodule(owner):  # a method: its class is part of it
        yield from _owner_identity(owner, walk)
    value = getattr(value, "__func__", value)
    if not inspect.isfunction(value):
        yield from _owner_identity(value, walk)
        return
    if (version := version_of(value)) is not None:
        yield f"{value.__module__}.{value.__qualname__} {version}"
        return
    if not walk.enters(value):
        return
    reading = _read_once(value.__code__, walk.docstrings, lambda: _read(value, walk.docstrings))
    yield reading.text
    used = {n: value.__globals__[n] for n in reading.globals if n in value.__globals__}
    for name, module in list(used.items()):
        if inspect.ismodule(module) and _is_of_the_user(module.__name__):
            attributes = [a for a in reading.attributes if a in vars(module)]
            used.update({f"{name}.{a}": vars(module)[a] for a in attributes})
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        if name not in reading.rebound:
            with suppress(ValueError):  # a cell that is not filled yet
                used[name] = cell.cell_contents
    for number, default in enumerate(value.__defaults__ or ()):
        used[f"default {number}"] = default
    used.update({f"default {n}": default for n, default in (value.__kwdefaults__ or {}).items()})
    for name, other in sorted(used.items(), key=lambda item: item[0]):
        yield from _use_identity(name, other, value.__module__, walk)


def _use_identity(
    name: str, value: Any, home: str | None, walk: _Walk, *, is_constant: bool = False
) -> Iterator[str]:
    # By convention: a list in capitals is a constant, any other a cache or a log as often as not.
    room = _Room(_MOST_VALUES) if is_constant or name.isupper() else None
    constant = _constant(value, room)
    if constant is not None:
        yield f"{name}={constant}"
    elif inspect.isfunction(value) and (version := version_of(value)) is not None:
        yield f"{name}: {value.__module__}.{value.__qualname__} {version}"
    elif inspect.isfunction(value) or inspect.isclass(value):
        if value.__module__ == home or _is_of_the_user(value.__module__):
            yield f"{name}:"
            yield from _identity(value, walk)
    elif not inspect.ismodule(value):
        yield from _weights(name, value, walk)


def _weights(name: str, value: Any, walk: _Walk) -> Iterator[str]:
    """Of a torch model, or of those that lists, dicts and objects hold, a few levels down."""
    torch: Any = sys.modules.get("torch")
    if not walk.weights or not hasattr(torch, "nn"):
        return
    from heldout.weights import fingerprint

    models = dict(_models(value, (torch.nn.Module, torch.Tensor)))
    if not models:
        return
    version = fingerprint(models)
    if version is None:
        walk.unknown.append(name)
    yield f"{name}: weights {version}"


@functools.cache
def _is_of_the_user(module: str | None) -> bool:
    """Whether a module is the user's own: neither Python's, nor installed, nor heldout's."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    if file is None or str(module).partition(".")[0] == "heldout":
        return False
    installed = (
        sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")
    )
    path = Path(file).resolve()
    return not any(path.is_relative_to(Path(folder).resolve()) for folder in installed)


_DEEPEST_MODEL, _MOST_PARTS = 4, 1000


def _models(value: Any, kinds: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The models in a value, and in what its lists, dicts and objects hold."""
    if isinstance(value, kinds):
        yield name, value
        return
    if isinstance(value, list | tuple):
        parts: Any = dict(enumerate(value))
    else:
        parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    is_code = inspect.ismodule(value) or inspect.isclass(value) or inspect.isfunction(value)
    if is_code or depth == _DEEPEST_MODEL or len(parts) > _MOST_PARTS:
        return
    for key, part in list(parts.items()):
        yield from _models(part, kinds, f"{name}.{key}" if name else str(key), depth + 1)


def _owner_identity(owner: Any, walk: _Walk) -> Iterator[str]:
    """A class; or an object: its class, and what it was made with."""
    if inspect.isclass(owner):
        yield from _class_identity(owner, walk)
        return
    yield from _class_identity(type(owner), walk)
    yield from _weights("self", owner, walk)
    kinds = [kind for kind in type(owner).__mro__ if kind is not object]
    functions = [
        member
        for kind in kinds
        for name, member in vars(kind).items()
        if inspect.isfunction(member) and name not in ("__init__", "__post_init__", "__new__")
    ]
    # What other methods assign is a counter or a cache.
    rebound = frozenset().union(*(_attributes_assigned(f.__code__) for f in functions))
    names = {*getattr(owner, "__dict__", {})}
    names |= {slot for kind in kinds for slot in getattr(kind, "__slots__", ())}
    for name in sorted(names - rebound):
        with suppress(AttributeError):  # a slot that is not filled
            yield from _use_identity(name, getattr(owner, name), type(owner).__module__, walk)


def _attributes_assigned(code: CodeType) -> frozenset[str]:
    return frozenset(
        step.argval
        for part in _codes(code)
        for step in dis.get_instructions(part)
        if step.opname in ("STORE_ATTR", "DELETE_ATTR")
    )


def _class_identity(kind: type, walk: _Walk) -> Iterator[str]:
    if not walk.enters(kind):
        return
    yield from _read_once(kind, walk.docstrings, lambda: _class_source(kind, walk.docstrings))
    for member in vars(kind).values():
        function = getattr(member, "__func__", member)
        if inspect.isfunction(function) and function.__module__ == kind.__module__:
            yield from _identity(function, walk)
    for base in kind.__bases__:
        if base.__module__ == kind.__module__:
            yield from _class_identity(base, walk)


_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_MOST_VALUES = 1000
_DEEPEST = 20


@dataclass(slots=True)
class _Room:
    """How many values lists, dicts and sets may still hold: what is large is data."""

    left: int


def _constant(value: Any, room: _Room | None, depth: int = 0) -> str | None:
    """The value as text; None if it is no constant. Without room, whatever can grow is none."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, re.Pattern):
        return f"re {value.pattern!r} {value.flags}"
    fixed = isinstance(value, tuple | frozenset)
    if depth == _DEEPEST or not (fixed or (room and isinstance(value, list | dict | set))):
        return None
    values = [x for pair in [*value.items()] for x in pair] if isinstance(value, dict) else [*value]
    if room and not fixed:
        room.left -= len(values)
        if room.left < 0:
            return None
    texts = []
    for inner in values:
        text = _constant(inner, room, depth + 1)
        if text is None:
            return None
        texts.append(text)
    if isinstance(value, set | frozenset):
        texts.sort()
    kind = next(k for k in (tuple, frozenset, list, dict, set) if isinstance(value, k))
    return f"{kind.__name__}({', '.join(texts)})"


@dataclass(frozen=True, slots=True)
class _Reading:
    """What the code of a function says, whatever values it finds."""

    text: str
    globals: frozenset[str]
    rebound: frozenset[str]
    """Variables of enclosing functions that it assigns."""
    attributes: frozenset[str]
    """Names that it reads of objects and modules."""


# What every module has, different in each.
_OF_MODULES = {"__name__", "__file__", "__doc__", "__package__", "__spec__", "__cached__"}


def _read(function: Any, docstrings: bool) -> _Reading:
    loaded, stored, attributes = set[str](), set(_OF_MODULES), set[str]()
    for code in _codes(function.__code__):
        for step in dis.get_instructions(code):
            # LOAD_NAME is the body of a class; the last one, from 3.12 on, of an annotation.
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                loaded.add(step.argval)
            elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                stored.add(step.argval)
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                attributes.add(step.argval)
    return _Reading(
        _text(function, docstrings),
        frozenset(loaded - stored),
        _rebound(function.__code__),
        frozenset(attributes),
    )


def _rebound(code: CodeType) -> frozenset[str]:
    own = {
        step.argval
        for step in dis.get_instructions(code)
        if step.opname in ("STORE_DEREF", "DELETE_DEREF")
    }
    nested = [_rebound(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    # A nested function may well have assigned a variable of this one.
    return frozenset(own.union(*nested) & {*code.co_freevars})


# The last two: the file was edited since, and is no longer Python.
_NO_SOURCE = (OSError, TypeError, SyntaxError, tokenize.TokenError)


def _text(function: Any, docstrings: bool) -> str:
    if function.__code__.co_name != "<lambda>":
        with suppress(*_NO_SOURCE):
            return _normal(inspect.getsource(function), docstrings)
    # The source of a lambda is the line it stands in, whatever else is there.
    lines = []
    for code in _codes(function.__code__):
        constants = [_constant(c, None) for c in code.co_consts]
        lines.append(f"{code.co_code.hex()} {code.co_names!r} {constants!r}")
    return "\n".join(lines)


def _class_source(kind: type, docstrings: bool) -> list[str]:
    with suppress(*_NO_SOURCE):  # built in, or typed at a prompt: then only its name
        return [_normal(inspect.getsource(kind), docstrings)]
    return []


def _normal(source: str, docstrings: bool) -> str:
    """The source as every layout of it comes out; as it is where it cannot be parsed."""
    indented = source[:1].isspace()
    try:
        with warnings.catch_warnings(action="ignore"):  # said when the module was compiled
            # Not dedented, which would change what is in strings of many lines.
            tree = ast.parse(f"if True:\n{source}" if indented else source)
    except (SyntaxError, ValueError):
        return source
    for node in ast.walk(tree):
        if not docstrings and isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ):
            node.body = [s for s in node.body if not _is_text(s)] or [ast.Pass()]
    statements = tree.body
    if indented and isinstance(statements[0], ast.If):
        statements = statements[0].body
    return "\n".join(map(ast.unparse, statements))


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


_readings: dict[tuple[int, bool], tuple[weakref.ref[Any], Any]] = {}
_reading = threading.RLock()
"""Held while source is parsed: `ast` of Python 3.11 counts its recursion once for all threads, and
raises SystemError where two of them parse at a time."""


def _read_once(thing: Any, docstrings: bool, read: Callable[[], _T]) -> _T:
    """Reading takes milliseconds, and must not see a file that was edited after its import.

    Kept by identity: code objects are equal to others that differ in their decorators.
    """
    key = (id(thing), docstrings)
    known = _readings.get(key)
    if known is None or known[0]() is not thing:
        gone = weakref.ref(thing, lambda _: _readings.pop(key, None))
        with _reading:
            known = _readings[key] = (gone, read())
    return cast("_T", known[1])


def describe_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Hash what decides which prompt a conversation becomes.

    Args:
        tokenizer: As transformers has them.

    Returns:
        Hashes of `chat_template` and `tokenizer`.
    """
    template = getattr(tokenizer, "chat_template", None)
    vocabulary = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    special = getattr(tokenizer, "special_tokens_map", None)
    return {
        "chat_template": _digest([json.dumps(template, sort_keys=True, default=str)]),
        "tokenizer": _digest([json.dumps([sorted(vocabulary.items()), special], default=str)]),
    }
