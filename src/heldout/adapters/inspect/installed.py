"""Which tasks of Inspect are installed, and what is known of them without running their code."""

from __future__ import annotations

import ast
import functools
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from heldout.integrations.hub import address_of_dataset, is_cached, is_offline

PIP = "pip_install_git"


def owners_of(task: str | None) -> list[Any]:
    """Return the entry points of the packages that a task PACKAGE/NAME is of."""
    owner, slash, _ = (task or "").partition("/")
    return [entry for entry in _packages() if slash and entry.name == owner]


def _packages() -> Any:
    return entry_points(group="inspect_ai")


def list_inspect_tasks() -> dict[str, str | None]:
    """Return the tasks of installed packages, with the reason where one cannot run here.

    A package that describes its tasks in files called eval.yaml, as inspect_evals does, is not
    imported; of others the source is searched for `@task`.
    """
    tasks: dict[str, str | None] = {}
    for package, folder, described in _find_described():
        if described:
            why = {name: _why_not_here(about) for name, about in described.items()}
        else:
            why = dict.fromkeys(_decorated(folder))
        tasks |= {f"{package}/{name}": reason for name, reason in why.items()}
    return tasks


def list_inspect_downloads() -> dict[str, tuple[str, ...]]:
    """Return what tasks of installed packages download and is not known to be here, by task."""
    return {
        f"{package}/{name}": tuple(_addresses(about))
        for package, _, described in _find_described()
        for name, about in described.items()
    }


@functools.cache
def _find_described() -> list[tuple[str, Path, dict[str, Mapping[str, Any]]]]:
    """Find packages of tasks, their folder, and what their files say of each task."""
    yaml: Any = import_module("yaml")  # which Inspect depends on
    # The files are long, and the parser in C is ten times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = []
    for entry in _packages():
        spec = find_spec(entry.name)
        for folder in map(Path, (spec and spec.submodule_search_locations) or ()):
            described: dict[str, Mapping[str, Any]] = {}
            for file in sorted(folder.glob("*/eval.yaml")):
                about = yaml.load(file.read_text(encoding="utf-8"), loader)
                described |= {task["name"]: about for task in about.get("tasks", ())}
            found.append((entry.name, folder, described))
    return found


def _why_not_here(about: Mapping[str, Any]) -> str | None:
    if (about.get("metadata") or {}).get("sandbox") and not has_docker():
        return "it runs in a sandbox, and there is no docker that runs here"
    for asset in (about.get("external_assets") or ()) if is_offline() else ():
        if asset["type"] == "huggingface" and not is_cached(asset["source"]):
            return f"it needs {asset['source']} from the hub, and HF_HUB_OFFLINE is set"
    return None


def _addresses(about: Mapping[str, Any]) -> Iterator[str]:
    """Yield where a task's data come from; code that pip installs is not among them.

    Whether the task has them in a cache of its own is not known without running its code.
    """
    for asset in about.get("external_assets") or ():
        kind, source = asset["type"], str(asset["source"])
        if kind == "huggingface":
            if not is_cached(source):
                yield address_of_dataset(source)
        elif kind in ("direct_url", "git_clone") and asset.get("fetch_method") != PIP:
            yield source


def _decorated(folder: Path) -> Iterator[str]:
    """Yield the names of functions that `@task` decorates."""
    for file in sorted(folder.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if "@task" in source else ():
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(decorator).partition("(")[0] in ("task", "inspect_ai.task")
                for decorator in node.decorator_list
            ):
                yield node.name


@functools.cache
def has_docker() -> bool:
    """Return whether there is a docker that runs here."""
    if shutil.which("docker") is None:
        return False
    try:
        asked = subprocess.run(["docker", "info"], capture_output=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0
