"""The files of the page: those of others as they were published, and a bundle that is current."""

from __future__ import annotations

import hashlib
import tomllib
from importlib import resources
from pathlib import Path

import pytest

from heldout.errors import HeldoutError
from heldout.viewer import assets
from heldout.viewer.assets import BUNDLE, MAIN, read_assets
from heldout.viewer.export import export_runs

STATIC = resources.files("heldout.viewer") / "static"
VENDOR = STATIC / "vendor"


def test_vendored_files_are_as_they_were_published() -> None:
    listed = tomllib.loads((VENDOR / "VENDOR.toml").read_text())["file"]
    for file in listed:
        content = (VENDOR / file["path"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == file["sha256"]
        assert file["version"]
        assert file["tarball_sha256"]
        for license in file["license_files"]:
            assert len((VENDOR / license).read_text()) > 500
    named = {name for file in listed for name in (file["path"], *file["license_files"])}
    assert {entry.name for entry in VENDOR.iterdir()} == named | {"VENDOR.toml"}


def test_the_bundle_is_made_of_the_modules_that_are_here() -> None:
    assert BUNDLE in read_assets(), "the JavaScript has changed: run `make bundle`"


def test_without_a_current_bundle_the_modules_are_sent_and_nothing_is_exported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = assets._read_files()
    changed = {**files, "text.js": files["text.js"] + b"// changed"}
    monkeypatch.setattr(assets, "_read_files", lambda: dict(changed))
    served = read_assets()
    assert BUNDLE not in served
    assert f'src="{MAIN}"' in served["index.html"].body.decode()
    with pytest.raises(HeldoutError, match="run `make bundle`"):
        export_runs([folder / "arithmetic"])


def test_lines_of_the_modules_fit_a_screen() -> None:
    modules = [entry for entry in STATIC.iterdir() if entry.name.endswith(".js")]
    assert [
        f"{entry.name}: {line}"
        for entry in modules
        if entry.name not in assets.BUNDLES
        for line in entry.read_text().splitlines()
        if len(line) >= 110
    ] == []
