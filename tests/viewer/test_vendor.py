"""What other projects wrote is here byte for byte as they published it, with its licences."""

from __future__ import annotations

import hashlib
import tomllib
from importlib import resources

VENDOR = resources.files("heldout.viewer") / "static" / "vendor"


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
