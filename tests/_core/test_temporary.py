"""Temporary folders: gone with their process, or with the next one where it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from heldout._core.temporary import SUFFIX, TemporaryFolder, remove_abandoned

HOLD = """
import sys
from heldout._core.temporary import TemporaryFolder
folder = TemporaryFolder("test")
print(folder.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary ones, here and in processes that tests start."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    remove_abandoned.cache_clear()
    yield tmp_path
    remove_abandoned.cache_clear()


def start() -> tuple[subprocess.Popen[str], Path]:
    """Start a process that holds a temporary folder until its input ends."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_removed_with_its_block(folder: Path) -> None:
    with TemporaryFolder("test") as name:
        assert Path(name).parent == folder
        (Path(name) / "file").touch()
    assert not [*folder.iterdir()]


def test_the_folder_of_a_killed_process_is_removed_and_no_other(folder: Path) -> None:
    living, used = start()
    killed, left = start()
    (left / "file").touch()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").touch()
    (folder / f"heldout-link{SUFFIX}").symlink_to(elsewhere)
    (folder / "heldout-other").mkdir()
    assert left.exists()
    with TemporaryFolder("test") as name:
        assert not left.exists()
        assert used.exists()
        assert Path(name).exists()
    assert (elsewhere / "file").exists()
    assert (folder / "heldout-other").exists()
    living.communicate("")
    assert living.returncode == 0
    assert not used.exists()


def test_a_child_keeps_the_folder_of_its_parent(folder: Path) -> None:
    with TemporaryFolder("test") as name:
        child = os.fork()
        if child == 0:
            remove_abandoned.cache_clear()
            remove_abandoned()
            os._exit(0 if Path(name).exists() else 1)
        assert os.waitpid(child, 0)[1] == 0
