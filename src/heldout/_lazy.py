"""Packages that offer names from modules which are imported only when a name is asked for.

    if TYPE_CHECKING:
        from heldout.engine import evaluate as evaluate

    __all__, __getattr__, __dir__ = lazy(__name__)

The imports that type checkers read are the only list of names: it is read from the source.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package, of its imports `X as X`."""
    module: Any = sys.modules[package]
    module_of = {}
    # Read and split by hand: `inspect` and `ast` would take longer than all of `import heldout`.
    source = module.__loader__.get_data(module.__file__).decode()
    for line in source.splitlines():
        match line.split():
            case "from", home, "import", name, "as", alias if name == alias:
                module_of[name] = home

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(module, name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(module), *module_of})

    return sorted(module_of), find, names
