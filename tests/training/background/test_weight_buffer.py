"""Weights in shared memory: what is in it, and that nothing is left of it."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from heldout._core.memory import available_memory
from heldout._live.weights import fingerprint, read_sums, sum_bits
from heldout.errors import InvalidInput
from heldout.training.background.worker import weight_buffer
from heldout.training.background.worker.weight_buffer import (
    ALIGNMENT,
    BufferLayout,
    WeightBuffer,
    checksums,
    read_tensors,
)

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
def buffer() -> Iterator[WeightBuffer]:
    made = WeightBuffer()
    yield made
    made.close()


def written(buffer: WeightBuffer, model: Any) -> BufferLayout:
    buffer.write(model)
    return buffer.wait()


def read(buffer: WeightBuffer, model: Any) -> dict[str, Any]:
    return read_tensors(buffer.fd, written(buffer, model))


# --- What is in it ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", EVERY)
def test_every_type_comes_back_bit_for_bit(buffer: WeightBuffer, dtype: str) -> None:
    kind = getattr(torch, dtype)
    raw = torch.arange(24 * kind.itemsize, dtype=torch.uint8).clamp(
        max=1 if dtype == "bool" else 255
    )
    model = {"a": raw.view(kind).view(2, 3, 4), "b": raw.view(kind)[:0], "c": raw.view(kind)[7]}
    found = read(buffer, model)
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {
        name: (t.dtype, t.shape) for name, t in model.items()
    }
    assert fingerprint(found) == fingerprint(model)


def test_what_is_trained_and_buffers_are_copied_and_the_rest_is_named(
    buffer: WeightBuffer,
) -> None:
    model = Net()
    layout = written(buffer, model)
    tensors = read_tensors(buffer.fd, layout)
    assert set(tensors) == {"inner.weight", "inner.bias", "tied.weight", "scalar", "count"}
    assert layout.frozen == ["fixed.weight", "fixed.bias"]
    assert layout.frozen_checksums == read_sums(checksums([model.fixed.weight, model.fixed.bias]))


def test_all_is_all() -> None:
    buffer = WeightBuffer(copy="all")
    model = Net()
    layout = written(buffer, model)
    assert fingerprint(read_tensors(buffer.fd, layout)) == fingerprint(model)
    assert (layout.frozen, layout.frozen_checksums) == ([], [])
    buffer.close()


def test_tied_weights_are_there_once(buffer: WeightBuffer) -> None:
    place = {spec.name: spec.offset for spec in written(buffer, Net()).tensors}
    assert place["inner.weight"] == place["tied.weight"]
    assert len(set(place.values())) == len(place) - 1
    assert all(offset % ALIGNMENT == 0 for offset in place.values())


def test_views_that_are_not_contiguous_are_written_in_order(buffer: WeightBuffer) -> None:
    model = {"a": torch.arange(12.0).view(3, 4).t(), "b": torch.arange(10)[::3]}
    found = read(buffer, model)
    assert all(torch.equal(found[name], model[name]) for name in model)


def test_names_are_those_of_the_bare_model(buffer: WeightBuffer) -> None:
    wrapped = torch.nn.ModuleDict({"module": Net()})
    assert set(read(buffer, wrapped)) == set(read(buffer, Net()))


def test_checksums_of_what_is_not_trained_change_with_it_though_torch_counts_no_write(
    buffer: WeightBuffer,
) -> None:
    model = Net()
    before = written(buffer, model).frozen_checksums
    model.fixed.weight.data += 1
    after = written(buffer, model).frozen_checksums
    assert after != before
    model.fixed.weight.data, model.fixed.bias.data = torch.ones(2, 2), torch.zeros(2)
    assert written(buffer, model).frozen_checksums not in (before, after)


def test_checksums_do_not_depend_on_how_a_tensor_lies_in_memory() -> None:
    tensor = torch.randn(2000, 3000).t()
    assert read_sums(checksums([tensor])) == read_sums(checksums([tensor.contiguous()]))
    assert read_sums(checksums([tensor])) != read_sums(checksums([tensor.t()]))


SIZES = ["uint8", "bfloat16", "float32", "complex64"]  # how wide elements are is what counts


@pytest.mark.parametrize("dtype", SIZES)
def test_the_total_of_a_tensor_changes_with_each_of_its_bytes(dtype: str) -> None:
    size = getattr(torch, dtype).itemsize
    for length in (1, 7, 8, 9, 24):
        bits = torch.zeros((length + 1) * size, dtype=torch.uint8)
        flat = bits.view(getattr(torch, dtype))
        views = [flat, flat[1:], flat[: length // 2 * 2].view(2, -1).t()]
        before = [read_sums(sum_bits([each])) for each in views]
        for place in range(size, length // 2 * 2 * size):  # what all of them have
            bits[place] = 1
            now = [read_sums(sum_bits([each])) for each in views]
            assert all(total != was for total, was in zip(now, before, strict=True))
            bits[place] = 0


@pytest.mark.parametrize("dtype", SIZES)
def test_the_total_of_a_tensor_changes_where_two_elements_change_places(dtype: str) -> None:
    size = getattr(torch, dtype).itemsize
    for one, other in ((0, 1), (3, 70_000), (5, 5 + 2**14), (9, 9 + 2**16)):
        bits = torch.arange(80_000 * size, dtype=torch.int64).mul(7).remainder(251).to(torch.uint8)
        rows = bits.view(-1, size)
        rows[one, 0] = 255 - rows[other, 0]
        tensor = bits.view(getattr(torch, dtype))
        before = read_sums(sum_bits([tensor]))
        rows[[one, other]] = rows[[other, one]]
        assert read_sums(sum_bits([tensor])) != before


def test_totals_of_what_has_no_bits_are_left_out() -> None:
    found = sum_bits([torch.empty(3, device="meta"), torch.empty(0), torch.eye(2).to_sparse()])
    assert read_sums(found) == []


def test_what_is_first_written_in_inference_mode_can_be_written_again(
    buffer: WeightBuffer,
) -> None:
    model = Net()
    with torch.inference_mode():
        model.register_buffer("made", torch.ones(2))
        written(buffer, model)
        model.made.fill_(2)
    assert read(buffer, model)["made"].tolist() == [2, 2]


def test_a_snapshot_stays_as_it_was_until_the_next_one_is_written_over_it(
    buffer: WeightBuffer,
) -> None:
    model = Net()
    layout = written(buffer, model)
    with torch.no_grad():
        model.scalar.fill_(9)
    assert float(read_tensors(buffer.fd, layout)["scalar"]) == 2.5
    assert written(buffer, model) == layout
    assert float(read_tensors(buffer.fd, layout)["scalar"]) == 9.0


def test_it_grows_in_place_with_the_model(buffer: WeightBuffer) -> None:
    read(buffer, Net())
    fd, size = buffer.fd, os.fstat(buffer.fd).st_size
    model = torch.nn.Linear(300, 300)
    assert fingerprint(read(buffer, model)) == fingerprint(model)
    assert buffer.fd == fd
    assert os.fstat(fd).st_size > size
    small = Net()
    assert torch.equal(read(buffer, small)["inner.weight"], small.inner.weight)


def test_drawing_random_numbers_is_left_to_the_training(buffer: WeightBuffer) -> None:
    model = Net()
    before = torch.get_rng_state()
    written(buffer, model)
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
def test_what_has_no_bytes_is_refused_by_name(buffer: WeightBuffer, model: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        buffer.write(model)
    with pytest.raises(InvalidInput, match="there is no snapshot"):
        buffer.wait()


def test_a_write_that_failed_leaves_nothing_to_be_read(buffer: WeightBuffer) -> None:
    written(buffer, {"a": torch.ones(64), "b": torch.ones(64)})
    with pytest.raises(InvalidInput):
        buffer.write({"a": torch.zeros(64), "b": torch.zeros(64).to_sparse()})
    with pytest.raises(InvalidInput, match="there is no snapshot"):
        buffer.wait()


def test_where_there_is_no_memory_it_is_refused_and_not_killed_later(
    buffer: WeightBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read(buffer, Net())["scalar"]
    with monkeypatch.context() as patch:
        patch.setattr(weight_buffer, "available_memory", lambda: 2**20)
        with pytest.raises(InvalidInput, match=r"no room for 4 MiB .* 1 MiB of memory are"):
            buffer.write({"a": torch.ones(2**20)})
    assert weight_buffer.available_memory() > 2**20
    assert read(buffer, Net())["scalar"] == before


def test_what_a_reader_writes_stays_with_it(buffer: WeightBuffer) -> None:
    layout = written(buffer, {"a": torch.ones(3)})
    read_tensors(buffer.fd, layout)["a"].fill_(7)
    assert read_tensors(buffer.fd, layout)["a"].tolist() == [1, 1, 1]


# --- The memory ---------------------------------------------------------------------------------


def is_open(fd: int) -> bool:
    return Path(f"/proc/self/fd/{fd}").exists()


def mapped() -> bool:
    return "heldout-weights" in Path("/proc/self/maps").read_text()


def test_it_goes_when_it_is_closed() -> None:
    buffer = WeightBuffer()
    written(buffer, Net())
    assert is_open(buffer.fd)
    assert not os.get_inheritable(buffer.fd)
    buffer.close()
    assert not is_open(buffer.fd)
    buffer.close()


def test_it_goes_with_its_object() -> None:
    buffer = WeightBuffer()
    written(buffer, Net())
    assert mapped()
    fd = buffer.fd
    del buffer
    gc.collect()
    assert not is_open(fd)
    assert not mapped()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_it_alone(buffer: WeightBuffer) -> None:
    model = Net()
    layout = written(buffer, model)
    child = os.fork()
    if child == 0:
        buffer.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = read_tensors(buffer.fd, layout)
    assert torch.equal(found["inner.weight"], model.inner.weight)


MIB = 2**20


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, 800 * MIB),
        (  # version 2, in a container with a name space of its own
            {
                "/proc/self/cgroup": "0::/\n",
                "/sys/fs/cgroup/memory.max": f"{512 * MIB}\n",
                "/sys/fs/cgroup/memory.current": f"{300 * MIB}\n",
                "/sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {100 * MIB}\n",
            },
            312 * MIB,
        ),
        (  # a job without a limit inside of a slice with one
            {
                "/proc/self/cgroup": "0::/slurm/job\n",
                "/sys/fs/cgroup/slurm/job/memory.max": "max\n",
                "/sys/fs/cgroup/slurm/job/memory.current": "0\n",
                "/sys/fs/cgroup/slurm/memory.max": f"{64 * MIB}\n",
                "/sys/fs/cgroup/slurm/memory.current": "0\n",
            },
            64 * MIB,
        ),
        (  # version 1 in Docker: the path is the host's
            {
                "/proc/self/cgroup": "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/docker/1\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": f"{128 * MIB}\n",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": f"{130 * MIB}\n",
                "/sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {10 * MIB}\n",
            },
            8 * MIB,
        ),
        (  # no limit, as version 1 writes it
            {
                "/proc/self/cgroup": "4:memory:/\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
            },
            800 * MIB,
        ),
        (  # full
            {
                "/proc/self/cgroup": "0::/\n",
                "/sys/fs/cgroup/memory.max": "100\n",
                "/sys/fs/cgroup/memory.current": "200\n",
            },
            0,
        ),
    ],
)
def test_the_memory_that_is_left_is_the_smallest_of_machine_and_container(
    files: dict[str, str], available: int
) -> None:
    files = {"/proc/meminfo": "MemTotal: 9999999 kB\nMemAvailable: 819200 kB\n", **files}
    assert available_memory(files.get) == available
