"""Evals that other packages have, by name: `heldout run reasoning-gym:chain_sum`.

    load_task("reasoning-gym:chain_sum", size=200)       # an EvalDefinition
    list_tasks("reasoning-gym")                          # what is installed, and what can run here

A package has a prefix. What follows it is the package's own name for a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from heldout.errors import InvalidInput

if TYPE_CHECKING:
    from heldout._evals.rollout import EvalDefinition


@dataclass(frozen=True, slots=True)
class TaskSource:
    """A package with tasks, and the module here that adapts them."""

    package: str
    """Its name, as pip knows it."""
    module: str
    adapt: str
    """The function that makes an eval of a name and parameters."""
    names: str
    """The function that returns the installed names, with the reason where one cannot run."""
    downloads: str | None = None
    """The function that returns what tasks download, by name; None where that is not known."""


SOURCES: Mapping[str, TaskSource] = {
    "reasoning-gym": TaskSource(
        "reasoning-gym",
        "heldout.adapters.reasoning_gym",
        "from_reasoning_gym",
        "families",
    ),
    "lm-eval": TaskSource(
        "lm-eval",
        "heldout.adapters.lm_eval",
        "from_lm_eval",
        "task_names",
        "task_downloads",
    ),
    "inspect": TaskSource(
        "inspect-ai",
        "heldout.adapters.inspect",
        "from_inspect",
        "list_inspect_tasks",
        "list_inspect_downloads",
    ),
    "textarena": TaskSource(
        "textarena",
        "heldout.adapters.step_environments.textarena",
        "from_textarena",
        "games",
    ),
    "openenv": TaskSource(
        "openenv",
        "heldout.adapters.step_environments.openenv",
        "from_openenv",
        "servers",
    ),
    "verifiers": TaskSource(
        "verifiers", "heldout.adapters.verifiers", "from_verifiers", "installed_ids"
    ),
}
"""By prefix."""


@dataclass(frozen=True, slots=True)
class InstalledTask:
    """A task that a package has."""

    name: str
    """With its prefix: what `heldout run` takes."""
    refused: str | None = None
    """Why it cannot run here; None if nothing is known against it."""
    downloads: tuple[str, ...] = ()
    """What it downloads from, as far as that is known and not here already."""


def task_source(name: str) -> TaskSource | None:
    """Return the source of a task's name; None where it has no known prefix."""
    prefix, colon, task = name.partition(":")
    return SOURCES.get(prefix) if colon and task else None


def load_task(name: str, **parameters: Any) -> EvalDefinition:
    """Make an eval of a task.

    Args:
        name: PREFIX:NAME, such as "reasoning-gym:chain_sum".
        **parameters: Parameters of the adapter and of the task.

    Raises:
        InvalidInput: There is no such prefix or task, or it cannot be adapted.
    """
    source = task_source(name)
    if source is None:
        raise InvalidInput(f"a task must be PREFIX:NAME with {', '.join(SOURCES)}, got {name!r}")
    adapt = getattr(import_module(source.module), source.adapt)
    return adapt(name.partition(":")[2], **parameters)  # type: ignore[no-any-return]


def list_tasks(prefix: str) -> Iterator[InstalledTask]:
    """Yield the tasks that a package has.

    Args:
        prefix: One of `SOURCES`.

    Raises:
        InvalidInput: There is no such prefix, or the package is not installed.
    """
    if prefix not in SOURCES:
        raise InvalidInput(f"there is no prefix {prefix!r}; there are {', '.join(SOURCES)}")
    source = SOURCES[prefix]
    module = import_module(source.module)
    names: Mapping[str, str | None] = getattr(module, source.names)()
    downloads: Mapping[str, tuple[str, ...]] = {}
    if source.downloads is not None:
        downloads = getattr(module, source.downloads)()
    for name, refused in names.items():
        yield InstalledTask(f"{prefix}:{name}", refused, downloads.get(name, ()))


__all__ = ["SOURCES", "InstalledTask", "TaskSource", "list_tasks", "load_task", "task_source"]
