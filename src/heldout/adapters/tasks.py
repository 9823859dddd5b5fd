"""Evals that other packages have, by name: `heldout run reasoning-gym:chain_sum`.

    load_task("reasoning-gym:chain_sum", size=200)       # an EvalDefinition
    list_tasks("reasoning-gym")                          # what is installed, and what can run here

A package has a prefix, which an entry point of the group `heldout.tasks` registers: those that come
with heldout in its pyproject.toml, and plugins in theirs. What follows it is the package's own name
for a task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heldout._core.plugins import Group, describe_plugin, find_plugins, load_plugin
from heldout.errors import InvalidInput

if TYPE_CHECKING:
    from heldout._evals.rollout import EvalDefinition
    from heldout.adapters.seam import TaskAdapter

GROUP: Group = "heldout.tasks"


@dataclass(frozen=True, slots=True)
class InstalledTask:
    """A task that a package has."""

    name: str
    """With its prefix: what `heldout run` takes."""
    refused: str | None = None
    """Why it cannot run here; None if nothing is known against it."""
    downloads: tuple[str, ...] = ()
    """What it downloads from, as far as that is known and not here already."""


def task_prefixes() -> list[str]:
    """Return the prefixes that are registered."""
    return sorted(find_plugins(GROUP))


def is_task_name(name: str) -> bool:
    """Return whether a name has a prefix that is registered."""
    prefix, colon, task = name.partition(":")
    return bool(colon and task) and prefix in find_plugins(GROUP)


def find_adapter(prefix: str) -> TaskAdapter:
    """Import the adapter of a prefix.

    Raises:
        InvalidInput: There is no such prefix, two packages claim it, or its package is broken.
    """
    from heldout.adapters.seam import TaskAdapter

    registered = find_plugins(GROUP)
    if prefix not in registered:
        raise InvalidInput(
            f"there is no prefix {prefix!r}; there are {', '.join(sorted(registered))}"
        )
    adapter = load_plugin(GROUP, prefix, registered[prefix])
    owner = describe_plugin(registered[prefix][0])
    if not isinstance(adapter, TaskAdapter):
        raise InvalidInput(
            f"the plugin {prefix!r} of {owner} must be a TaskAdapter, got {adapter!r:.200}"
        )
    if adapter.prefix != prefix:
        raise InvalidInput(
            f"the plugin {prefix!r} of {owner} calls itself {adapter.prefix!r}: the entry point "
            "must have the adapter's prefix as its name"
        )
    return adapter


def load_task(name: str, **parameters: Any) -> EvalDefinition:
    """Make an eval of a task.

    Args:
        name: PREFIX:NAME, such as "reasoning-gym:chain_sum".
        **parameters: Parameters of the adapter and of the task.

    Raises:
        InvalidInput: There is no such prefix or task, or it cannot be adapted.
    """
    prefix, colon, task = name.partition(":")
    if not colon or not task:
        raise InvalidInput(
            f"a task must be PREFIX:NAME with {', '.join(task_prefixes())}, got {name!r}"
        )
    return find_adapter(prefix).define(task, **parameters)


def list_tasks(prefix: str) -> Iterator[InstalledTask]:
    """Yield the tasks that a package has.

    Args:
        prefix: One of `task_prefixes`.

    Raises:
        InvalidInput: There is no such prefix, or the package is not installed.
    """
    adapter = find_adapter(prefix)
    adapter.check()
    downloads = adapter.downloads() if adapter.downloads is not None else {}
    for name, refused in adapter.names().items():
        yield InstalledTask(f"{prefix}:{name}", refused, downloads.get(name, ()))


__all__ = [
    "InstalledTask",
    "find_adapter",
    "is_task_name",
    "list_tasks",
    "load_task",
    "task_prefixes",
]
