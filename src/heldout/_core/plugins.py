"""What installed packages add to heldout: the entry points of a group, by name.

    [project.entry-points."heldout.tasks"]
    spelling = "spelling_bee:ADAPTER"

Names are read from the packages' metadata, so that listing them runs nobody's code. A plugin is
imported when its name is asked for: one that breaks is an error of its own name, and of no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from heldout.errors import InvalidInput, printable_error

Group = Literal["heldout.tasks", "heldout.models", "heldout.loggers"]


def find_plugins(group: Group) -> dict[str, list[EntryPoint]]:
    """Return the entry points of a group by name; several where packages claim the same one."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group):
        claims = found.setdefault(entry.name, [])
        # A package that is found twice on the path, as a checkout and installed, is one.
        if describe_plugin(entry) not in map(describe_plugin, claims):
            claims.append(entry)
    return found


def load_plugin(group: Group, name: str, claims: Sequence[EntryPoint]) -> Any:
    """Import what a plugin registers.

    Args:
        group: Its group.
        name: The name that it registers.
        claims: The entry points of that name, as `find_plugins` gives them.

    Raises:
        InvalidInput: Several packages claim the name, or the plugin cannot be imported.
    """
    if len(claims) > 1:
        packages = " and ".join(sorted(map(describe_plugin, claims)))
        raise InvalidInput(
            f"{packages} both register {name!r} in {group}: uninstall one of them, since which is "
            "meant cannot be told"
        )
    [entry] = claims
    try:
        return entry.load()
    except Exception as problem:
        raise InvalidInput(
            f"the plugin {name!r} of {describe_plugin(entry)} cannot be loaded ({entry.value}): "
            f"{type(problem).__name__}: {printable_error(problem)[:500]}"
        ) from problem


def describe_plugin(entry: EntryPoint) -> str:
    """Name the package that an entry point comes from."""
    owner = entry.dist
    return f"{owner.name} ({entry.value})" if owner is not None else entry.value


__all__ = ["Group", "describe_plugin", "find_plugins", "load_plugin"]
