"""What a release says of each change: one file, which towncrier puts into CHANGELOG.md."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = [
    kind["directory"]
    for kind in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]["type"]
]


def test_every_change_is_of_a_kind_and_says_something() -> None:
    files = [path for path in (ROOT / "changes").iterdir() if path.name != "template.jinja"]
    for path in files:
        words, _, kind = path.name.removesuffix(".md").rpartition(".")
        assert path.suffix == ".md", path
        # Numbers are the order of the first release; what came later has words, and stands behind.
        assert words.isdigit() or words.startswith("+"), f"{path.name}: words begin with +"
        assert kind in KINDS, f"{path.name}: {kind} is none of {', '.join(KINDS)}"
        text = path.read_text()
        assert text.strip(), f"{path.name} is empty"
        assert not text.startswith(("-", "#", " ")), f"{path.name}: it becomes an item of a list"
