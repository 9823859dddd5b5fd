"""Import the user's code by name: from a module, or from a Python file by its path."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from heldout.errors import EvalFileError

PREFIX = "heldout_eval_"
"""Prefix of modules loaded from files: a json.py under its plain name would shadow the real one."""


def import_file(path: Path) -> ModuleType:
    """Run a Python file as a module, not as `__main__`: its main block does not run.

    Its own directory comes first in sys.path, as for a script.
    """
    if not path.is_file():
        problem = "is a directory, not a Python file" if path.is_dir() else "does not exist"
        example = "" if path.suffix else "; name a file, or a module: heldout.examples.capitals"
        raise EvalFileError(f"{path} {problem}{example}")
    name = PREFIX + path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise EvalFileError(f"{path} is not a Python file: its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    directory = str(path.resolve().parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def import_object(source: str, name: str) -> Any:
    """Import an object from a module or a file by its dotted name; None if there is none."""
    if source.endswith(".py"):
        return find_attribute(import_file(Path(source)), name)
    return find_attribute(importlib.import_module(source), name)


def find_attribute(value: Any, name: str) -> Any:
    """Follow a dotted name; None if there is none."""
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def place_of(function: Any) -> str:
    """Name a function and where it is defined: `grade (quiz.py:12)`; by its type without code."""
    while hasattr(function, "func"):  # a partial
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    code = getattr(function, "__code__", None)
    return f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else str(name)
