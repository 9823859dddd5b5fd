"""Which tasksets and environments of verifiers are installed.

The package keeps no list: an id is the name of a module. What can be listed are its own tasksets
and the packages that depend on it.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import distributions
from importlib.util import find_spec
from typing import Any

from heldout.errors import InvalidInput

NEEDS = {"openenv": "openenv"}
"""Packages that tasksets of verifiers import when they run."""


def list_v1() -> dict[str, str | None]:
    """Return the installed tasksets, with the reason where one cannot be an eval here."""
    own: Any = import_module("verifiers.v1.tasksets")
    ids = [module.name.replace("_", "-") for module in pkgutil.iter_modules(own.__path__)]
    listed = {id: _why_not_v1(id) for id in ids}
    for id in _dependent_modules():
        module = _import(id)
        if isinstance(module, str) or _exports_taskset(module):
            listed[id] = module if isinstance(module, str) else _why_not_v1(id)
    return dict(sorted(listed.items()))


def list_classic() -> dict[str, str | None]:
    """Return the installed environments; whether one can be an eval is seen when it is loaded."""
    listed: dict[str, str | None] = {}
    for id in _dependent_modules():
        module = _import(id)
        if isinstance(module, str):
            listed[id] = module
        elif callable(getattr(module, "load_environment", None)):
            listed[id] = None
    return listed


def _dependent_modules() -> Iterator[str]:
    """Yield the ids of packages that depend on verifiers and have a module of their name."""
    seen = set()
    for distribution in distributions():
        needs = distribution.requires or ()
        # Extras of larger packages, such as heldout's own, are no environments.
        if any(re.match(r"verifiers\b(?!-)(?!.*extra\s*==)", need) for need in needs):
            seen.add(distribution.metadata["Name"].lower().replace("_", "-"))
    for id in sorted(seen):
        if find_spec(id.replace("-", "_")) is not None:
            yield id


def _import(id: str) -> Any:
    """Import the module of an id; the reason, where that fails."""
    try:
        return import_module(id.replace("-", "_"))
    except Exception as problem:  # noqa: BLE001 - other people's module: listed with its reason
        return f"it cannot be imported: {type(problem).__name__}: {problem}"


def _exports_taskset(module: Any) -> bool:
    vf: Any = import_module("verifiers.v1")
    exported = [getattr(module, name, None) for name in getattr(module, "__all__", ())]
    return any(isinstance(thing, type) and issubclass(thing, vf.Taskset) for thing in exported)


def _why_not_v1(id: str) -> str | None:
    """Return why a taskset cannot be an eval here, as far as its classes tell."""
    if (package := NEEDS.get(id)) and find_spec(package) is None:
        return f"it needs the package {package}"
    from heldout.adapters.verifiers.v1 import check_classes

    try:
        check_classes(id)
    except InvalidInput as problem:
        return str(problem)
    return None
