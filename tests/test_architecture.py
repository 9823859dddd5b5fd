"""The layers of docs/architecture.md: no module imports one above it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "heldout"

EXCEPTIONS = {
    ("store.report", "viewer.notebook"): "in `_repr_html_`, when a notebook calls it",
    ("analysis.comparison", "viewer.notebook"): "in `_repr_html_`",
    ("training.periodic_eval", "viewer.notebook"): "in `_repr_html_`",
    ("examples.capitals", ""): "an eval file, written against the public names",
}

VERSION = "heldout.__version__"
"""The one name that the package itself holds: it is there before anything is loaded."""


def read_layers() -> list[str]:
    """The modules and packages of the table, from the lowest to the highest."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = re.search(r"```text\n(\d .*?)```", page, re.DOTALL)
    assert table is not None
    rows = [re.split(r"\s{2,}", line)[2:] for line in table[1].replace("\n   ", "  ").splitlines()]
    return [name.rstrip("/") for row in reversed(rows) for name in reversed(row)]


def layer_of(module: str, layers: list[str]) -> int:
    """The position of a module in the table: by its own name, or its package's."""
    while module and module not in layers:
        module = module.rpartition(".")[0]
    return layers.index(module) if module else -1


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] == "__main__" or parts == ("__init__",):
            continue  # the command, and the public names, which belong to the layers they are from
        yield ".".join(parts).removesuffix(".__init__"), path


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and module of every import that runs, those in functions included.

    Imports for annotations (`if TYPE_CHECKING`) never run: they load nothing, and make no cycle.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                path = PACKAGE.parent / name.replace(".", "/")
                is_module = path.is_dir() or path.with_suffix(".py").exists()
                yield node.lineno, name if is_module or name == VERSION else node.module
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        yield from imports(node)


def test_no_import_points_up() -> None:
    layers = read_layers()
    above: list[str] = []
    unused = dict(EXCEPTIONS)
    for module, path in modules():
        own = layer_of(module, layers)
        assert own >= 0, f"{module} is in no row of docs/architecture.md"
        for line, name in imports(ast.parse(path.read_text())):
            if name.partition(".")[0] != "heldout":
                continue
            target = name.removeprefix("heldout").lstrip(".")
            if 0 <= layer_of(target, layers) <= own:
                continue
            known = [key for key in EXCEPTIONS if module == key[0] and is_in(target, key[1])]
            for key in known:
                unused.pop(key, None)
            if not known and name != VERSION:
                above.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not above, "\n".join(above)
    assert not unused, "exceptions that are no more"
