"""Whether a worker's copy of a function equals the driver's, and where it differs.

Workers import the file; the driver has run it. A dict that the script fills after its import, or an
option that it sets, is empty or another one on the workers, whose scores would then not be those of
the function that the report names. So each side describes its copy part by part, and a worker whose
parts differ is not used.

What the functions change themselves is a cache or a log, and is not compared.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from heldout.store.fingerprint import _Search, identity_of

CODE = "its code, or a constant that it uses"
_CHANGES = {
    "add", "append", "clear", "discard", "extend", "insert", "pop", "popitem", "remove",
    "setdefault", "update",
}  # fmt: skip
"""Methods that change a dict, list or set."""
_MAX_DEPTH = 20


def describe_copies(functions: Mapping[str, Any], folder: Path | None) -> dict[str, dict[str, str]]:
    """Describe this process's copies of an eval's functions.

    Args:
        functions: The functions, by what they are to the eval; None is one that it does not have.
        folder: Where the file that defines them is, which is elsewhere on another machine.

    Returns:
        For each function, part to digest: the code with its constants, and each dict, list or set
        that it reads.
    """
    return {
        role: _describe_copy(function, folder)
        for role, function in functions.items()
        # An endpoint object is described by itself, and compared between workers.
        if function is not None and (role != "endpoint" or inspect.isroutine(function))
    }


def _describe_copy(function: Any, folder: Path | None) -> dict[str, str]:
    search = _CopySearch()
    search.add_object(function)
    parts = {CODE: "\0".join(search.parts)}
    for name, value in search.containers.items():
        if name.rpartition(".")[2] not in search.changed:
            kind = type(value).__name__
            parts[f"the {kind} {name}"] = f"{len(value)} values {_describe_value(value)}"
    own_folder = {str(folder), str(folder.resolve())} if folder is not None else set[str]()
    return {name: _digest(text, own_folder) for name, text in parts.items()}


def name_difference(own: Mapping[str, Mapping[str, str]], others: Mapping[str, Any]) -> str | None:
    """Name the first function whose copies differ, and in what.

    Args:
        own: The driver's copies, by what they are to the eval.
        others: A worker's.

    Returns:
        The difference; None where there is none.
    """
    for role, parts in own.items():
        there = others.get(role, {})
        if parts != there:
            both = [name for name in parts if name != CODE and name in there]
            names = [name for name in both if parts[name] != there[name]] or [CODE]
            return (
                f"its {role} is not that of this process: {', '.join(names)} differs. Workers "
                "import the file as it is: set what it uses at the top level of the file, or "
                "within the function, and have the same packages there"
            )
    return None


class _CopySearch(_Search):
    """Collects, besides the code, the containers that it reads and the names that it changes."""

    def __init__(self) -> None:
        super().__init__(docstrings=True, weights=False)
        self.containers: dict[str, Any] = {}
        self.changed: set[str] = set()

    def add_object(self, value: Any) -> None:
        inner = value.func if isinstance(value, functools.partial) else value
        identity = identity_of(inner)
        if identity is None:
            self.add_callable(value)
            return
        self.parts.append(identity)
        for part in getattr(inner, "parts", ()):  # of a rubric
            self.add_object(part.function)

    def _add_function(self, function: FunctionType) -> None:
        self.changed |= _changed_names(function)
        super()._add_function(function)

    def _add_used(self, name: str, value: Any, home: str | None, **options: Any) -> None:
        if isinstance(value, dict | list | set) and not name.startswith("default "):
            self.containers[name] = value
        super()._add_used(name, value, home, **options)


def _changed_names(function: FunctionType) -> set[str]:
    """Find the variables and attributes whose contents a function changes."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, ValueError):
        return set()
    changed: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=owner, ctx=ast.Store() | ast.Del()):
                changed.append(owner)
            case ast.AugAssign(target=owner):
                changed.append(owner)
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _CHANGES:
                changed.append(owner)
    return {ast.unparse(owner).rpartition(".")[2] for owner in changed}


def _describe_value(value: Any, depth: int = 0) -> str:
    """Describe a plain value by itself, and anything else by its type."""
    if isinstance(value, str | bytes | int | float | complex | None):
        return repr(value)
    if hasattr(value, "tobytes"):  # an array
        return hashlib.sha256(value.tobytes()).hexdigest()
    if depth < _MAX_DEPTH and isinstance(value, dict | list | tuple | set | frozenset):
        items = [*value.items()] if isinstance(value, dict) else [*value]
        texts = [_describe_value(item, depth + 1) for item in items]
        if isinstance(value, set | frozenset):
            texts.sort()
        return f"{type(value).__name__}({', '.join(texts)})"
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _digest(text: str, folder_names: set[str]) -> str:
    for name in folder_names:
        text = text.replace(name, "folder")
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]
