"""What names a published task of Inspect in its logs and in runs here alike.

A log has names and options of what ran, not the code. But the code of a task that an installed
package has is known by the package's version: where that is the same on both sides, with
everything that a caller may change, an imported log and a run here are of one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import Distribution
from typing import Any

from heldout._core.versions import is_editable

LIMITS = (
    *("message_limit", "token_limit", "token_limit_type", "turn_limit"),
    *("time_limit", "working_limit", "cost_limit"),
)


def describe_published(
    task: str | None,
    *,
    packages: Mapping[str, str],
    arguments: Mapping[str, Any],
    limits: Mapping[str, Any],
    sandbox: str | None,
    solvers: Iterable[str],
    scorers: Iterable[str],
    roles: Mapping[str, str],
    rewards: Iterable[str],
) -> dict[str, Any] | None:
    """Return what both sides must share; None where no package has the task.

    Args:
        task: Its name in Inspect's registry: PACKAGE/NAME.
        packages: Versions of Inspect and of the package.
        arguments: What the task was called with; defaults are the package's own.
        limits: LIMITS, by name.
        sandbox: The kind of sandbox; None for none.
        solvers: Names of the solvers, in order.
        scorers: Names of the scorers.
        roles: The models that the task asks for by role.
        rewards: The score that is the reward, in all of its forms.
    """
    if task is None or "/" not in task or len(packages) < 2:
        return None
    unused = {"token_limit_type"} if limits.get("token_limit") is None else set()
    given = [name for name in LIMITS if limits.get(name) is not None and name not in unused]
    return {
        "task": task,
        "packages": {name.replace("-", "_").lower(): packages[name] for name in packages},
        "arguments": {name: repr(arguments[name]) for name in sorted(arguments)},
        "limits": {name: limits[name] for name in given},
        "sandbox": sandbox,
        "solvers": [_short(name) for name in solvers],
        "scorers": sorted(map(_short, scorers)),
        "roles": dict(roles),
        "rewards": [*rewards],
    }


def _short(name: str) -> str:
    return name.rpartition("/")[2]


def describe_task(
    name: Any,
    task: Any,
    packages: Sequence[Distribution],
    parameters: Mapping[str, Any],
    roles: Mapping[str, Any],
    scorers: Iterable[str],
    reward: str,
) -> dict[str, Any] | None:
    """Return what names a task that runs here as its logs do; None where nothing does.

    Args:
        name: What the caller gave. Only a task by name is as its package makes it: a `Task` may
            have been changed since.
        task: The task, as it runs.
        packages: The installed packages that register tasks under its owner's name.
        parameters: What it was made with.
        roles: The models that it asks for by role.
        scorers: Their names.
        reward: The score that is the reward.
    """
    if not isinstance(name, str) or len(packages) != 1 or is_editable(packages[0]):
        return None
    from importlib.metadata import version

    return describe_published(
        task.registry_name,
        packages={"inspect_ai": version("inspect-ai"), packages[0].name: packages[0].version},
        arguments=parameters,
        limits={limit: getattr(task, limit, None) for limit in LIMITS},
        sandbox=task.sandbox and task.sandbox.type,
        solvers=[*_names([*_listed(task.setup), *_listed(task.solver)])],
        scorers=scorers,
        roles={role: str(model) for role, model in roles.items()},
        rewards=[reward],
    )


def _listed(solver: Any) -> list[Any]:
    solver = getattr(solver, "steps", solver)  # of a plan
    return [] if solver is None else [*solver] if isinstance(solver, Sequence) else [solver]


def _names(solvers: Iterable[Any]) -> Iterable[str]:
    for solver in solvers:
        if isinstance(solver, Sequence):  # a chain
            yield from _names(solver)
        else:
            info = getattr(solver, "__registry_info__", None)
            yield "?" if info is None else info.name
