"""A hold has what a checkpoint had, whatever becomes of the checkpoint."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from heldout.training.checkpoints.finding import Checkpoint, FolderState, read_state
from heldout.training.checkpoints.formats import Weights
from heldout.training.checkpoints.holding import Hold, take_hold


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    path = tmp_path / "ckpt" / "checkpoint-7"
    (path / "actor" / "empty").mkdir(parents=True)
    (path / "actor" / "model.safetensors").write_bytes(b"weights")
    (path / "config.json").write_text("{}")
    return Checkpoint(7, path)


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder in another file system, where nothing can be linked."""
    path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


def state_of(checkpoint: Checkpoint) -> FolderState:
    state = read_state(checkpoint.path)
    assert state is not None
    return state


def held(checkpoint: Checkpoint, *places: Path) -> Hold:
    hold = take_hold(checkpoint, state_of(checkpoint), places)
    assert hold is not None
    return hold


def asked() -> bool:
    raise AssertionError("nothing has happened to it")


def test_it_outlives_the_checkpoint_and_takes_no_room(checkpoint: Checkpoint) -> None:
    place = checkpoint.path.parent.parent / "run" / "held"
    hold = held(checkpoint, place)
    one, other = (path / "actor" / "model.safetensors" for path in (checkpoint.path, hold.path))
    assert one.samefile(other)
    assert hold.is_unchanged(asked)
    assert (hold.path / "actor" / "empty").is_dir()
    shutil.rmtree(checkpoint.path)
    assert hold.is_unchanged(lambda: True)  # its times have changed, so it is hashed again
    assert hold.is_unchanged(asked)
    assert other.read_bytes() == b"weights"
    hold.release()
    assert not place.exists()


@pytest.mark.parametrize("name", ["actor/model.safetensors", "config.json"])
def test_a_write_to_a_linked_file_is_noticed_by_its_content(
    name: str, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    hold = held(checkpoint, tmp_path / "held")
    path = checkpoint.path / name
    times = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert hold.is_unchanged(lambda: name == "config.json") is False
    assert hold.overwritten
    hold.release()


def test_it_is_where_files_can_be_linked_and_else_a_copy(
    checkpoint: Checkpoint, elsewhere: Path, tmp_path: Path
) -> None:
    hold = held(checkpoint, elsewhere / "held", tmp_path / "near")
    assert hold.path == tmp_path / "near" / "7" / "checkpoint-7"
    hold.release()
    hold = held(checkpoint, elsewhere / "held")
    (checkpoint.path / "actor" / "model.safetensors").write_bytes(b"others!")
    assert hold.is_unchanged(asked)
    assert (hold.path / "actor" / "model.safetensors").read_bytes() == b"weights"
    hold.release()


def test_links_in_a_checkpoint_lead_where_they_led(checkpoint: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "tokenizer.json").write_text("{}")
    (checkpoint.path / "base").symlink_to("../../base")
    (checkpoint.path / "last").symlink_to("gone")
    (checkpoint.path / "own.json").symlink_to("config.json")
    hold = held(checkpoint, tmp_path / "held")
    assert (hold.path / "base" / "tokenizer.json").read_text() == "{}"
    assert (hold.path / "own.json").read_text() == "{}"
    assert not (hold.path / "last").exists()
    hold.release()
    assert (tmp_path / "base" / "tokenizer.json").exists()


def test_what_was_written_to_or_removed_meanwhile_is_not_held(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    state = state_of(checkpoint)
    (checkpoint.path / "config.json").write_text("{ }")
    assert take_hold(checkpoint, state, [tmp_path / "held"]) is None
    state = state_of(checkpoint)
    (checkpoint.path / "config.json").unlink()
    assert take_hold(checkpoint, state, [tmp_path / "held"]) is None
    assert not (tmp_path / "held").exists()


def test_a_tokenizer_beside_the_checkpoint_is_still_found(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    hold = held(checkpoint, tmp_path / "held")
    (checkpoint.path.parent / "tokenizer.json").write_text("{}")
    found = hold.relocate(Weights("transformers", checkpoint.path))
    assert found.path == hold.path
    assert found.config == hold.path
    tokenizer = found.tokenizer
    assert tokenizer is not None
    assert (tokenizer / "tokenizer.json").samefile(checkpoint.path.parent / "tokenizer.json")
    hold.release()
