"""Evals of models that are sharded over real processes, which talk through gloo."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard

from heldout._live.snapshots import SnapshotPool
from heldout._live.weights import fingerprint
from heldout.errors import InvalidInput
from heldout.training import AsyncEvalDispatcher, sharding
from heldout.training.ranks import Alone, TimeLimit
from tests.training import toys
from tests.training.shard_worker import MODES, OTHERS
from tests.training.test_ranks import run_ranks

pytestmark = pytest.mark.integration

WORKER = "tests.training.shard_worker"
WAYS = ["fsdp2", "fsdp1", "lora"]
if importlib.util.find_spec("deepspeed"):  # compiles on first use, so it is no part of [dev]
    WAYS.append("zero3")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run_ranks(2, tmp_path_factory.mktemp("two"), *WAYS, *OTHERS, module=WORKER)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run_ranks(3, tmp_path_factory.mktemp("three"), "fsdp2", module=WORKER)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("world", "way", "mode"),
    [("two", way, mode) for way in WAYS for mode in MODES[way][1:]]
    + [("three", "fsdp2", mode) for mode in MODES["fsdp2"][1:]],
)
def test_training_is_the_same_to_the_bit_and_points_are_of_the_whole_weights(
    world: str, way: str, mode: str, request: pytest.FixtureRequest
) -> None:
    """With gradients in flight, random draws and the optimizer's state."""
    ranks = request.getfixturevalue(world)
    for rank in ranks:
        without, with_evals = rank[way]["off"], rank[way][mode]
        for kept in ("part", "optimizer", "draws", "whole"):
            assert with_evals[kept] == without[kept]
    first = ranks[0][way]
    points = first[mode]["points"]
    assert [(step, n, skipped) for step, n, _, skipped in points] == [
        (2, 5, None),
        (4, 5, None),
        (4, 5, None),  # the last weights: the eval before was made between two micro-steps
    ]
    assert points[-1][2] == first["off"]["whole"]
    assert points == first["inline"]["points"]
    assert first[mode]["answers"] == first["inline"]["answers"]
    assert all(rank[way][mode]["points"] == [] for rank in ranks[1:])


@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["background", "worker"])
def test_adapters_alone_are_gathered_once_the_frozen_weights_are_known(
    mode: str, two: list[Any]
) -> None:
    inline = two[0]["lora"]["inline"]["gathered"]
    assert inline[0] == inline[1] == inline[2]  # the copy is freed after each eval
    for rank in two:
        first, *later = rank["lora"][mode]["gathered"]
        assert first == inline[0]
        assert later == [448, 448]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        *(
            ("cannot_be_copied", mode, ["this model cannot be copied, because of model.norm"] * 3)
            for mode in ("inline", "all", "background")
        ),
        ("one_has_no_model", "inline", ["", *["rank 1: RuntimeError: this one cannot"] * 2]),
        ("no_time", "inline", ["", "max_overhead=", ""]),
        ("no_time", "all", ["", "max_overhead=", ""]),
    ],
)
def test_what_one_process_cannot_do_is_a_skip_and_nobody_waits_for_it(
    name: str, mode: str, expected: list[str], two: list[Any]
) -> None:
    said = [skipped or "" for *_, skipped in two[0][name][mode]["points"]]
    assert len(said) == len(expected)
    for text, part in zip(said, expected, strict=True):
        assert part in text if part else text == ""
    # What has no time is not gathered either.
    gathered = [rank[name][mode]["gathered"] for rank in two]
    assert [len(g) for g in gathered] == [expected.count("")] * 2
    assert two[0][name][mode]["whole"] == two[0]["fsdp2"]["off"]["whole"]


@pytest.mark.heavy
def test_a_trainer_of_trl_that_accelerate_has_sharded_is_evaluated(two: list[Any]) -> None:
    first = two[0]["trl"]
    assert {run["way"] for rank in two for run in rank["trl"].values()} == {"FSDP"}
    for mode in ("inline", "background"):
        assert first[mode]["whole"] == first["off"]["whole"]
        assert first[mode]["loss"] == first["off"]["loss"]
        points = first[mode]["points"]
        assert [(step, n, skipped) for step, n, _, skipped in points] == [
            (2, 5, None),
            (4, 5, None),
        ]
        assert points[-1][2] == first["off"]["whole"]


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "way"), [("ddp", None), ("fsdp2", "FSDP")])
def test_a_loop_with_accelerate_is_the_same_and_stops_in_all_processes(
    name: str, way: str | None, two: list[Any]
) -> None:
    for rank, seen in enumerate(two):
        runs = seen["accelerate"][name]
        assert {run["way"] for run in runs.values()} == {way}
        assert runs["on"]["part"] == runs["off"]["part"]
        assert [runs[run]["step"] for run in ("off", "on", "stopped")] == [4, 4, 2]
        expected = [[2, 5, None], [4, 5, None]] if rank == 0 else []
        assert runs["on"]["points"] == expected


@pytest.mark.heavy
def test_what_is_not_sharded_is_copied_as_it_is(two: list[Any]) -> None:
    assert [rank["partly_sharded"] for rank in two] == [True, True]


def test_evals_that_others_wait_for_end_before_the_process_groups_timeout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for longest, patience, expected in [
        (3600.0, 540.0, "max_seconds=3600, cut to 540 s by the timeout of the process group"),
        (None, 540.0, "max_seconds=None, cut to 540 s by the timeout of the process group"),
        (60.0, 540.0, "max_seconds=60"),
        (None, None, ""),
    ]:
        limit = TimeLimit.of(longest, Alone(patience=patience))
        assert limit.text == expected
        assert limit.seconds == (longest if patience is None else min(longest or 3600, patience))
    evals = toys.periodic(tmp_path, every_steps=1, ranks=Alone(patience=540.0))
    with caplog.at_level(logging.WARNING):
        evals.maybe_run(1)
        evals.maybe_run(2)
    said = [record.getMessage() for record in caplog.records]
    assert ["max_seconds=3600, cut to 540 s" in line for line in said] == [True]  # once


@pytest.fixture
def one_process(tmp_path: Path) -> Any:
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_memory_of_a_gathered_copy_is_freed_and_filled_again(one_process: None) -> None:
    model = fully_shard(torch.nn.Linear(64, 64))
    pool = SnapshotPool()
    hashes = []
    for _ in range(2):
        with torch.no_grad():
            model.weight.add_(1)
        snapshot = pool.try_snapshot(sharding.ShardedModel(model, Alone()), step=1)
        assert snapshot is not None
        copy = snapshot.model
        assert type(copy) is torch.nn.Linear
        whole = {"weight": model.weight.full_tensor(), "bias": model.bias.full_tensor()}
        assert snapshot.weights == fingerprint(whole)
        hashes.append(snapshot.weights)
        snapshot.release(empty=True)
        assert copy.weight.untyped_storage().nbytes() == 0
    assert hashes[0] != hashes[1]


def test_memory_that_is_not_there_is_a_reason(
    one_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout._live.model_copy.available_memory", lambda: 1000)
    model = sharding.ShardedModel(fully_shard(torch.nn.Linear(64, 64)), Alone())
    with pytest.raises(Exception, match=r"the whole weights take 0\.0 GiB of memory"):
        SnapshotPool().try_snapshot(model, step=1)


def test_a_model_that_tensor_parallelism_has_split_is_a_skip_that_says_why(
    one_process: None, tmp_path: Path
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    parallelize_module(model, init_device_mesh("cpu", (1,)), {"0": ColwiseParallel()})
    with AsyncEvalDispatcher(when_full="wait"):
        for name in ("background", "inline"):
            evals = toys.periodic(tmp_path / name, model)
            evals.maybe_run(10, wait=name == "inline")
    for name in ("background", "inline"):
        [point] = toys.points_of(tmp_path / name / "run")
        assert "this model cannot be copied, because of 0: " in str(point.skipped)
        assert "is a hook of its forward pass" in str(point.skipped)


def test_a_process_that_takes_no_part_is_named_and_nothing_is_gathered(one_process: None) -> None:
    class Two(Alone):
        world = 2

        def all_gather(self, mine: bytes) -> list[bytes]:
            return [mine, msgspec.json.encode(sharding.GatherVote(gathers=False))]

        def broadcast(self, mine: bytes) -> bytes:
            return mine

    model = sharding.ShardedModel(fully_shard(torch.nn.Linear(64, 64)), Two())
    with pytest.raises(InvalidInput, match="rank 1: it takes no part in this eval"):
        model.agree(needs_all=True, known_frozen=None)
