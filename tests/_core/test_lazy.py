"""Public names where there is no source to read them from."""

from __future__ import annotations

import py_compile
import subprocess
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

import heldout

PACKAGE = Path(heldout.__file__).parent
SITE = Path(msgspec.__file__).parents[1]
SCRIPT = """
import sys
sys.path[:0] = sys.argv[1:]
import heldout
assert heldout.__file__.startswith(sys.argv[1]), heldout.__file__
print(" ".join(heldout.__all__))
print(heldout.Sample("a", {}).id)
"""


@pytest.mark.parametrize("compiled", [False, True])
def test_the_package_is_imported_from_a_zip_with_and_without_sources(
    tmp_path: Path, compiled: bool
) -> None:
    archive = tmp_path / "heldout.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in PACKAGE.rglob("*.py"):
            name = path.relative_to(PACKAGE.parent)
            if not compiled:
                file.write(path, name)
            elif len(name.parts) == 2 or name.parts[1] == "_core":  # a Sample's
                made = py_compile.compile(str(path), cfile=str(tmp_path / "made.pyc"), doraise=True)
                file.write(str(made), name.with_suffix(".pyc"))
    done = subprocess.run(
        # Without the site: its editable install would be found first.
        [sys.executable, "-IS", "-c", SCRIPT, str(archive), str(SITE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split() == [*heldout.__all__, "a"]
