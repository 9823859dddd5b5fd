"""Weights in shared memory: what is in them, who may read them, and that nothing is left."""

from __future__ import annotations

import gc
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from heldout.errors import InvalidInput
from heldout.training.worker import shared, sharedfile
from heldout.training.worker.shared import ALIGNMENT, LENGTH, SharedWeights, read_snapshot
from heldout.training.worker.sharedfile import SharedFile, open_shared, remove_abandoned
from heldout.weights import fingerprint, numbers, totals

EVERY = ["float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "bool"]
EVERY += ["uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "complex64"]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(5, 3)
        self.fixed = torch.nn.Linear(2, 2)
        self.fixed.requires_grad_(False)
        self.tied = torch.nn.Linear(5, 3, bias=False)
        self.tied.weight = self.inner.weight
        self.scalar = torch.nn.Parameter(torch.tensor(2.5))
        self.register_buffer("count", torch.tensor([3, 4]))
        self.register_buffer("passing", torch.ones(2), persistent=False)


@pytest.fixture
def weights(tmp_path: Path) -> Any:
    made = SharedWeights(folder=tmp_path)
    yield made
    made.close()


def read(path: Path) -> dict[str, Any]:
    return read_snapshot(path).tensors


def sealed(weights: SharedWeights, model: Any, step: int = 1) -> Path:
    weights.write(model, step)
    return weights.seal()


# --- What is in it ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", EVERY)
def test_every_type_comes_back_bit_for_bit(weights: SharedWeights, dtype: str) -> None:
    kind = getattr(torch, dtype)
    raw = torch.arange(24 * kind.itemsize, dtype=torch.uint8).clamp(
        max=1 if dtype == "bool" else 255
    )
    model = {"a": raw.view(kind).view(2, 3, 4), "b": raw.view(kind)[:0], "c": raw.view(kind)[7]}
    found = read(sealed(weights, model))
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {
        name: (t.dtype, t.shape) for name, t in model.items()
    }
    assert fingerprint(found) == fingerprint(model)


def test_what_is_trained_and_buffers_are_copied_and_the_rest_is_named(
    weights: SharedWeights,
) -> None:
    model = Net()
    header, tensors = read_snapshot(sealed(weights, model, 7))
    assert set(tensors) == {"inner.weight", "inner.bias", "tied.weight", "scalar", "count"}
    assert {form.name for form in header.frozen} == {"fixed.weight", "fixed.bias"}
    assert header.frozen_weights == fingerprint(
        {"fixed.weight": model.fixed.weight, "fixed.bias": model.fixed.bias}
    )
    assert header.step == 7


def test_all_is_all(tmp_path: Path) -> None:
    weights = SharedWeights(copy="all", folder=tmp_path)
    model = Net()
    header, tensors = read_snapshot(sealed(weights, model))
    assert fingerprint(tensors) == fingerprint(model)
    assert (header.frozen, header.frozen_weights) == ((), None)
    weights.close()


def test_tied_weights_are_there_once(weights: SharedWeights) -> None:
    header = read_snapshot(sealed(weights, Net())).header
    place = {piece.name: piece.offset for piece in header.tensors}
    assert place["inner.weight"] == place["tied.weight"]
    assert len(set(place.values())) == len(place) - 1
    assert all(offset % ALIGNMENT == 0 for offset in place.values())


def test_views_that_are_not_contiguous_are_written_in_order(weights: SharedWeights) -> None:
    model = {"a": torch.arange(12.0).view(3, 4).t(), "b": torch.arange(10)[::3]}
    found = read(sealed(weights, model))
    assert all(torch.equal(found[name], model[name]) for name in model)


def test_names_are_those_of_the_bare_model(weights: SharedWeights) -> None:
    wrapped = torch.nn.ModuleDict({"module": Net()})
    assert set(read(sealed(weights, wrapped))) == set(read(sealed(weights, Net())))


def test_a_fingerprint_of_what_is_not_trained_is_taken_anew_when_it_was_written_to(
    weights: SharedWeights,
) -> None:
    model = Net()
    before = read_snapshot(sealed(weights, model)).header.frozen_weights
    with torch.no_grad():
        model.fixed.weight.add_(1)
    assert read_snapshot(sealed(weights, model)).header.frozen_weights != before


def test_writes_that_torch_does_not_count_are_noticed(weights: SharedWeights) -> None:
    model = Net()
    before = read_snapshot(sealed(weights, model)).header.frozen_weights
    model.fixed.weight.data += 1
    after = read_snapshot(sealed(weights, model)).header.frozen_weights
    assert after == fingerprint(
        {"fixed.weight": model.fixed.weight, "fixed.bias": model.fixed.bias}
    )
    assert after != before


def test_where_they_are_known_only_later_one_snapshot_is_given_up(
    weights: SharedWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, which is not waited for in the thread that trains."""
    monkeypatch.setattr(shared, "_on_host", lambda tensor: False)
    model = Net()
    sealed(weights, model, 1)
    model.fixed.weight.data += 1
    weights.write(model, 2)
    with pytest.raises(InvalidInput, match=r"written to \(through `.data`"):
        weights.seal()
    with pytest.raises(InvalidInput, match="no snapshot"):
        weights.seal()
    assert read_snapshot(sealed(weights, model, 3)).header.frozen_weights == fingerprint(
        {"fixed.weight": model.fixed.weight, "fixed.bias": model.fixed.bias}
    )


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("length", [1, 7, 8, 9, 24])
def test_the_total_of_a_tensor_changes_with_each_of_its_bytes(dtype: str, length: int) -> None:
    size = getattr(torch, dtype).itemsize
    bits = torch.zeros((length + 1) * size, dtype=torch.uint8)
    flat = bits.view(getattr(torch, dtype))
    views = [flat, flat[1:], flat[: length // 2 * 2].view(2, -1).t()]
    before = [numbers(totals([each])) for each in views]
    for place in range(size, length // 2 * 2 * size):  # what all of them have
        bits[place] = 1
        assert all(numbers(totals([each])) != was for each, was in zip(views, before, strict=True))
        bits[place] = 0


@pytest.mark.parametrize("dtype", [kind for kind in EVERY if kind != "bool"])
@pytest.mark.parametrize(("one", "other"), [(0, 1), (3, 70_000), (5, 5 + 2**14), (9, 9 + 2**16)])
def test_the_total_of_a_tensor_changes_where_two_elements_change_places(
    dtype: str, one: int, other: int
) -> None:
    size = getattr(torch, dtype).itemsize
    bits = torch.arange(80_000 * size, dtype=torch.int64).mul(7).remainder(251).to(torch.uint8)
    rows = bits.view(-1, size)
    rows[one, 0] = 255 - rows[other, 0]
    tensor = bits.view(getattr(torch, dtype))
    before = numbers(totals([tensor]))
    rows[[one, other]] = rows[[other, one]]
    assert numbers(totals([tensor])) != before


def test_totals_of_what_has_no_bits_are_left_out() -> None:
    found = totals([torch.empty(3, device="meta"), torch.empty(0), torch.eye(2).to_sparse()])
    assert numbers(found) == []


def test_what_is_first_written_in_inference_mode_can_be_written_again(
    weights: SharedWeights,
) -> None:
    model = Net()
    with torch.inference_mode():
        model.register_buffer("made", torch.ones(2))
        sealed(weights, model, 1)
    assert read_snapshot(sealed(weights, model, 2)).header.step == 2


def test_a_snapshot_stays_as_it_was_while_training_goes_on(weights: SharedWeights) -> None:
    model = Net()
    before = fingerprint(model.inner)
    path = sealed(weights, model)
    with torch.no_grad():
        model.inner.weight.add_(1)
    found = read(path)
    assert fingerprint({"weight": found["inner.weight"], "bias": found["inner.bias"]}) == before


def test_the_same_memory_serves_the_next_snapshot(weights: SharedWeights) -> None:
    model = Net()
    first = sealed(weights, model)
    with torch.no_grad():
        model.scalar.fill_(9)
    assert sealed(weights, model, 10**12) == first
    header, tensors = read_snapshot(first)
    assert (header.step, float(tensors["scalar"])) == (10**12, 9.0)


def test_a_model_that_has_grown_gets_a_larger_file(weights: SharedWeights) -> None:
    size = len(open_shared(sealed(weights, Net())))
    model = torch.nn.Linear(300, 300)
    second = sealed(weights, model)
    assert fingerprint(read(second)) == fingerprint(model)
    assert len(open_shared(second)) > size


def test_drawing_random_numbers_is_left_to_the_training(weights: SharedWeights) -> None:
    model = Net()
    before = torch.get_rng_state()
    sealed(weights, model)
    assert torch.equal(torch.get_rng_state(), before)


# --- What cannot be copied ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (None, "a model with weights"),
        (lambda: 1, "a model with weights"),
        ({"a": torch.empty(2, device="meta")}, "a has no content here"),
        ({"a": torch.eye(2).to_sparse()}, "a .* cannot be copied as bytes"),
    ],
)
def test_what_has_no_bytes_is_refused_by_name(
    weights: SharedWeights, model: Any, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        weights.write(model, 1)
    with pytest.raises(InvalidInput, match="there is no snapshot"):
        weights.seal()


def test_a_write_that_failed_leaves_nothing_to_be_read(weights: SharedWeights) -> None:
    path = sealed(weights, {"a": torch.ones(64), "b": torch.ones(64)})
    with pytest.raises(InvalidInput):
        weights.write({"a": torch.zeros(64), "b": torch.zeros(64).to_sparse()}, 2)
    with pytest.raises(InvalidInput, match="not a whole snapshot"):
        read(path)


# --- What is read is checked --------------------------------------------------------------------


def damaged(path: Path, **changes: Any) -> None:
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:LENGTH], "little")
    header = json.loads(content[LENGTH : LENGTH + length])
    first = {key: changes.pop(key) for key in list(changes) if key in header["tensors"][0]}
    header["tensors"][0].update(first)
    header.update(changes)
    new = json.dumps(header, separators=(",", ":")).encode()
    content[: LENGTH + len(new)] = len(new).to_bytes(LENGTH, "little") + new
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"offset": 2**40}, "not inside the file"),
        ({"offset": -64}, "not inside the file"),
        ({"offset": 0}, "not inside the file"),
        ({"offset": 1025}, "not inside the file"),
        ({"bytes": 2**40}, "are not"),
        ({"shape": [-1, -60]}, "are not"),
        ({"shape": [2**40, 2**40]}, "are not"),
        ({"dtype": "load"}, "unknown type"),
        ({"dtype": "qint8"}, "unknown type"),
        ({"name": "inner.bias"}, "there twice"),
        ({"version": 2}, "the same heldout"),
        ({"format": "else"}, "the same heldout"),
        ({"step": "x"}, "not a snapshot"),
    ],
)
def test_a_header_is_not_taken_at_its_word(
    weights: SharedWeights, changes: dict[str, Any], said: str
) -> None:
    path = sealed(weights, Net())
    read(path)
    damaged(path, **changes)
    with pytest.raises(InvalidInput, match=said):
        read(path)


@pytest.mark.parametrize("content", [b"", b"abc", bytes(200), b"\xff" * 200, b"\x01" + bytes(99)])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(InvalidInput):
        read(path)


def test_a_link_and_a_folder_are_not_followed(weights: SharedWeights, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(sealed(weights, Net()))
    with pytest.raises(OSError):
        read(link)
    with pytest.raises(InvalidInput, match="no file of this user's"):
        read(tmp_path)


def test_what_a_reader_writes_stays_with_it(weights: SharedWeights) -> None:
    path = sealed(weights, {"a": torch.ones(3)})
    read(path)["a"].fill_(7)
    assert read(path)["a"].tolist() == [1, 1, 1]


# --- The file -----------------------------------------------------------------------------------


def test_the_file_is_this_users_alone_and_goes_when_it_is_closed(tmp_path: Path) -> None:
    weights = SharedWeights(folder=tmp_path)
    path = sealed(weights, Net())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    weights.close()
    assert not path.exists()
    weights.close()


def test_it_goes_with_its_object(tmp_path: Path) -> None:
    weights = SharedWeights(folder=tmp_path)
    sealed(weights, Net())
    del weights
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_it_goes_when_python_ends(tmp_path: Path) -> None:
    script = (
        "import sys, torch; from heldout.training.worker.shared import SharedWeights\n"
        "weights = SharedWeights(folder=sys.argv[1]); weights.write({'a': torch.ones(3)}, 1)\n"
        "assert weights.seal().exists()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script, str(tmp_path)], check=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_it_alone(tmp_path: Path) -> None:
    weights = SharedWeights(folder=tmp_path)
    path = sealed(weights, Net())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                weights.write(Net(), 2)
            except InvalidInput:
                code = 0
            weights.close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert read_snapshot(path).header.step == 1
    weights.close()


def test_it_has_no_name_that_could_be_left_behind(tmp_path: Path) -> None:
    weights = SharedWeights(folder=tmp_path)
    assert sealed(weights, Net()).exists()
    assert list(tmp_path.iterdir()) == []
    weights.close()


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where files without a name cannot be made."""
    monkeypatch.setattr(sharedfile, "_NAMELESS", 0)


@pytest.mark.usefixtures("named")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_keep_it_from_being_abandoned(tmp_path: Path) -> None:
    file = SharedFile(100, tmp_path)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writes)
        os.read(reads, 1)  # until the parent closes it
        os._exit(0)
    os.close(reads)
    assert not remove_abandoned(file.path)
    os.close(file._fd)  # as when it is killed
    file._fd = -1
    until = time.monotonic() + 60.0  # the child may only just have begun
    while not remove_abandoned(file.path) and time.monotonic() < until:
        time.sleep(0.01)
    assert not file.path.exists()
    os.close(writes)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.usefixtures("named")
def test_a_file_that_nobody_holds_is_removed_by_the_next(tmp_path: Path) -> None:
    held = SharedFile(100, tmp_path)
    left, other = tmp_path / f"{sharedfile.PREFIX}left", tmp_path / "other"
    for path in (left, other):
        path.write_bytes(b"x")
    SharedFile(100, tmp_path).close()
    assert set(tmp_path.iterdir()) == {held.path, other}
    assert not remove_abandoned(held.path)
    held.close()
    assert remove_abandoned(held.path)


@pytest.mark.usefixtures("named")
def test_where_there_is_no_room_it_is_refused_and_not_killed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="no room for .* MiB of weights"):
        SharedFile(2**60, tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(sharedfile, "MEMORY", tmp_path / "none")
    monkeypatch.setattr(sharedfile.tempfile, "gettempdir", lambda: str(tmp_path))
    made = SharedFile(100)
    assert made.path.parent == tmp_path
    assert len(open_shared(made.path)) == 100
    made.close()
