"""The files of the page: ES modules, and bundles of them.

`bundle.js` is what every page needs. What renders Markdown is half as large again and loaded when
it is asked for; an exported file has it as `markdown_bundle.js`. The bundles are made when the
JavaScript changes (`make bundle`) and are part of the package, so nobody who uses heldout needs
Node. Their first line has the hash of the modules that they were made of. While the modules are
being worked on they are not current: then the server sends the modules one by one, and only an
export waits for new bundles.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
MAIN, BUNDLE = "app.js", "bundle.js"
"""The module that the page begins with, and the script that has it and what it imports."""
MARKDOWN_BUNDLE = "markdown_bundle.js"
BUNDLES = (BUNDLE, MARKDOWN_BUNDLE)


class Asset(NamedTuple):
    """A file of the page."""

    body: bytes
    content_type: str


def read_assets() -> dict[str, Asset]:
    """Read the files of the page by path, "vendor/…" included; the bundles only if current."""
    files = _read_files()
    header = bundle_header(files).encode() + b"\n"
    if not all(files.get(bundle, b"").startswith(header) for bundle in BUNDLES):
        for bundle in BUNDLES:
            files.pop(bundle, None)
        index = files["index.html"]
        files["index.html"] = index.replace(BUNDLE.encode(), MAIN.encode())
    return {path: Asset(body, TYPES[Path(path).suffix]) for path, body in files.items()}


def bundle_header(files: dict[str, bytes] | None = None) -> str:
    """Return the first line of a bundle that is made of these files, or of those that are here."""
    files = _read_files() if files is None else files
    digest = hashlib.sha256()
    for path in sorted(files):
        if path.endswith(".js") and path not in BUNDLES:
            digest.update(f"{path} {len(files[path])}\n".encode() + files[path])
    return (
        f"// heldout's viewer, made of {digest.hexdigest()}; with preact, htm, marked and diff, "
        "whose licences are in vendor/"
    )


def _read_files() -> dict[str, bytes]:
    files: dict[str, bytes] = {}

    def add(folder: Any, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                add(entry, f"{prefix}{entry.name}/")
            elif Path(entry.name).suffix in TYPES:
                files[prefix + entry.name] = entry.read_bytes()

    add(resources.files("heldout.viewer") / "static", "")
    return files
