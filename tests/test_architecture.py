"""The rooms of the house: no import points up, and documents name what is public."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "heldout"

ROOMS = [
    *("_finish_reasons", "_reasoning", "errors", "types", "_core", "environment", "stats"),
    *("_live", "store", "datasets", "sandbox", "models", "scoring"),
    *("_evals", "environments", "testing", "rollouts", "analysis", "training"),
    *("vector", "cluster", "reporting", "viewer", "integrations"),
    *("adapters", "cli", "examples"),
]
"""From the ground up: a room imports those before it, for annotations and in functions, too."""


TRAINING = [
    *("reasons", "ranks", "sharding", "settings", "loggers", "curve", "runner"),
    *("measuring", "budget", "background", "periodic_eval", "trainer_hooks"),
    "checkpoints",
]
"""The same inside of training/, which is the largest."""


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] == "__main__" or parts == ("__init__",):
            continue  # the command, and the public names, which are those of the rooms
        yield ".".join(parts).removesuffix(".__init__"), path


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and module of every import; of `from heldout import x` it is x."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                path = PACKAGE.parent / name.replace(".", "/")
                is_module = path.is_dir() or path.with_suffix(".py").exists()
                yield node.lineno, name if is_module else node.module
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)


def test_no_import_points_up() -> None:
    above: list[str] = []
    for module, path in modules():
        room = module.partition(".")[0]
        assert room in ROOMS, f"{module} is in no room of this test's list"
        for line, name in imports(ast.parse(path.read_text())):
            top, _, inner = name.partition(".")
            if top != "heldout" or room == "examples":  # examples use the public names
                continue
            target = inner.partition(".")[0]
            if target not in ROOMS or ROOMS.index(target) > ROOMS.index(room):
                above.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not above, "\n".join(above)


def test_no_import_of_training_points_up() -> None:
    above: list[str] = []
    for module, path in modules():
        room, _, inner = module.partition(".")
        if room != "training" or not inner:
            continue
        own = inner.partition(".")[0]
        for line, name in imports(ast.parse(path.read_text())):
            target = name.removeprefix("heldout.training.").partition(".")[0]
            if not name.startswith("heldout.training.") or target == own:
                continue
            if TRAINING.index(target) > TRAINING.index(own):
                above.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not above, "\n".join(above)


def test_it_is_said_where_every_module_is_tested() -> None:
    """By a test file of its name, or by those that tests/README.md names for it."""
    tests = ROOT / "tests"
    named = {path.stem.removeprefix("test_") for path in tests.rglob("test_*.py")}
    modules_of = {
        path.relative_to(PACKAGE).as_posix()
        for _, path in modules()
        if path.stem != "__init__" and path.stem.strip("_") not in named
    }
    listed: list[str] = []
    for line in (tests / "README.md").read_text().splitlines():
        _, left, right, *_ = [*line.split("|"), "", ""]
        if line.startswith("| `"):
            listed += re.findall("`(.+?)`", left)
            files = re.findall("`(.+?)`", right)
            assert files, line
            assert all((tests / file).is_file() for file in files), line
    assert modules_of <= set(listed)  # two modules of one name: the other one may be listed, too
    assert len(listed) == len(set(listed))
    assert [module for module in listed if not (PACKAGE / module).is_file()] == []
