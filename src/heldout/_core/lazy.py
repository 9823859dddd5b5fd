"""Packages that offer names from modules which are imported only when a name is asked for.

    if TYPE_CHECKING:
        from heldout._evals.engine import evaluate as evaluate

    __all__, __getattr__, __dir__ = lazy(__name__)

The imports that type checkers read are the only list of names: it is read from the source.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any


def lazy(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package, of its imports `X as X`."""
    module: Any = sys.modules[package]
    try:
        # Split by hand: `inspect` and `ast` would take longer than all of `import heldout`.
        source = module.__loader__.get_data(module.__file__).decode()
    except (AttributeError, OSError, UnicodeError):  # only compiled: frozen, or a zip of .pyc
        module_of = dict(_read_compiled(module))
    else:
        module_of = dict(_read_source(source))

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module_of[name]), name)
        setattr(module, name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(module), *module_of})

    return sorted(module_of), find, names


def _read_source(source: str) -> Iterator[tuple[str, str]]:
    home = ""
    for line in source.splitlines():
        match line.split():
            case "from", home, "import", name, "as", alias if name == alias:
                yield name, home
            case "from", home, "import", "(":  # a long name has a line of its own
                pass
            case name, "as", alias if alias == f"{name},":
                yield name, home


def _read_compiled(module: Any) -> Iterator[tuple[str, str]]:
    """Read the imports from the code: those that did not run are the ones for type checkers."""
    import dis

    home = ""
    for step in dis.get_instructions(module.__spec__.loader.get_code(module.__name__)):
        if step.opname == "IMPORT_NAME":
            home = str(step.argval)
        elif step.opname == "IMPORT_FROM" and step.argval not in vars(module):
            yield str(step.argval), home
