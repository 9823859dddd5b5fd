"""The files of the page, and its modules joined to one script."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
MAIN, BUNDLE = "app.js", "bundle.js"
"""The module that the page begins with, and the script that all of them are joined to."""

_IMPORT = re.compile(
    r'^import (?:\* as (?P<all>\w+)|\{(?P<names>[^}]*)\}) from "\./(?P<from>[^"]+)";$', re.M
)
_EXPORT = re.compile(r"^export (?:async )?(?:function|class|const|let) (\w+)", re.M)
_EXPORT_LIST = re.compile(r"export\s*\{([^}]*)\};?")


class Asset(NamedTuple):
    """A file of the page."""

    body: bytes
    content_type: str


def read_assets() -> dict[str, Asset]:
    """Read the files of the page by path, "vendor/…" and the joined script included."""
    files: dict[str, bytes] = {}

    def add(folder: Any, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                add(entry, f"{prefix}{entry.name}/")
            elif Path(entry.name).suffix in TYPES:
                files[prefix + entry.name] = entry.read_bytes()

    add(resources.files("heldout.viewer") / "static", "")
    modules = {path: body.decode() for path, body in files.items() if path.endswith(".js")}
    files[BUNDLE] = join_modules(modules, MAIN).encode()
    return {path: Asset(body, TYPES[Path(path).suffix]) for path, body in files.items()}


def join_modules(sources: dict[str, str], main: str) -> str:
    """Join ES modules to one script: one request instead of twenty, or none in an export.

    Args:
        sources: The text of each module, by path. Modules import names from each other, and export
            declarations or one list of names.
        main: The module that the page begins with; it may wait at its top level.
    """
    order: list[str] = []

    def visit(path: str) -> None:
        if path in order:
            return
        folder = path.rpartition("/")[0]
        for imported in _IMPORT.finditer(sources[path]):
            visit(f"{folder}/{imported['from']}" if folder else imported["from"])
        order.append(path)

    visit(main)
    parts = ["const modules = {};"]
    for path in order:
        body = _IMPORT.sub(_as_constant, sources[path])
        names = {name: name for name in _EXPORT.findall(body)}
        body = _EXPORT.sub(lambda match: match[0].removeprefix("export "), body)
        for listed in _EXPORT_LIST.findall(body):
            pairs = [pair.split(" as ") for pair in listed.split(",")]
            names |= {pair[-1].strip(): pair[0].strip() for pair in pairs}
        body = _EXPORT_LIST.sub("", body)
        exported = ", ".join(f"{name}: {local}" for name, local in names.items())
        wait = "async " if path == main else ""
        parts.append(
            f'modules["{path}"] = ({wait}() => {{\n{body}\nreturn {{ {exported} }};\n}})();'
        )
    return "\n".join(parts)


def _as_constant(match: re.Match[str]) -> str:
    names = match["all"] or "{" + match["names"].replace(" as ", ": ") + "}"
    return f'const {names} = modules["{match["from"]}"];'
