"""Evals in trainings of several processes: real ones, that talk through torch.distributed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from heldout import EvalReport
from heldout.datasets import ordered_by_id
from heldout.training import PeriodicEval
from heldout.training.ranks import Alone, RanksApart, TorchRanks, current_ranks
from tests.training import rank_worker, toys

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
LONGEST_SECONDS = 600
"""After which processes that wait for one another are ended."""


def run_ranks(
    world: int,
    home: Path,
    *names: str,
    fewest: int | None = None,
    module: str = "tests.training.rank_worker",
) -> list[Any]:
    """What each rank saw. None of the processes outlives this."""
    processes, logs = [], []
    deadline = time.monotonic() + LONGEST_SECONDS
    try:
        for rank in range(world):
            log = (home / f"{rank}.log").open("w+")
            logs.append(log)
            command = [sys.executable, "-m", module, str(home), *names]
            environment = {
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            }
            processes.append(
                subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
                )
            )
        for process in processes:
            process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for log in logs:
            log.close()
    codes = [process.returncode for process in processes]
    if codes.count(0) < (world if fewest is None else fewest):
        said = [(home / f"{rank}.log").read_text()[-3000:] for rank in range(world)]
        pytest.fail(f"the processes ended with {codes}:\n" + "\n---\n".join(said))
    found = [home / f"{rank}.json" for rank in range(world)]
    return [json.loads(path.read_text()) if path.exists() else None for path in found]


def run_scenarios(world: int, home: Path, *more: str) -> SimpleNamespace:
    ranks = run_ranks(world, home, *rank_worker.RULES, *more)

    def scenario(name: str) -> SimpleNamespace:
        own = [rank[name] for rank in ranks]
        return SimpleNamespace(
            home=home / name,
            ranks=own,
            point=own[0]["point"],
            answered=[each["answered"] for each in own],
        )

    return SimpleNamespace(world=world, raw=ranks, scenario=scenario)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """Every scenario, in one start of two processes."""
    return run_scenarios(2, tmp_path_factory.mktemp("two"), "trainer_callback", "training")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    return run_scenarios(3, tmp_path_factory.mktemp("three"))


@pytest.fixture(params=["two", "three"])
def seen(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def alone(
    tmp_path: Path, count: int = 10, model: toys.Model | None = None, **settings: Any
) -> dict[str, Any]:
    """The same eval in this process."""
    evals = PeriodicEval(
        toys.questions(count),
        toys.builder(rows=2, **settings),
        every_steps=1,
        model_getter=lambda: model or toys.Model(knows=6),
        run_dir=tmp_path,
    )
    point: dict[str, Any] = json.loads(msgspec.json.encode(evals.maybe_run(1)))
    return point


def assert_same_result(point: dict[str, Any], other: dict[str, Any]) -> None:
    for key in ("summary", "outcomes", "asked", "of", "partial", "skipped"):
        assert json.dumps(point.get(key)) == json.dumps(other.get(key))
    assert point["summary"] is not None


# --- Every rank its part ------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "count"),
    [("ten_samples", 10), ("seven_samples", 7), ("one_sample", 1), ("one_rank_slower", 10)],
)
def test_each_sample_is_run_once_and_the_point_is_that_of_one_process(
    name: str, count: int, seen: Any, tmp_path: Path
) -> None:
    found = seen.scenario(name)
    assert_same_result(found.point, alone(tmp_path, count))
    everything = [prompt for own in found.answered for prompt in own]
    assert sorted(everything, key=int) == [str(i) for i in range(count)]
    shares = [len(own) for own in found.answered]
    assert max(shares) - min(shares) <= 1


@pytest.mark.heavy
def test_repeats_and_errors_are_those_of_one_process(seen: Any, tmp_path: Path) -> None:
    found = seen.scenario("repeats_and_errors")
    by_one = alone(tmp_path, 7, toys.Model(knows=3, fails=["2", "5"]), repeats=2)
    assert_same_result(found.point, by_one)
    assert found.point["summary"]["n_errors"] == 4


@pytest.mark.heavy
def test_only_the_first_rank_writes_and_returns_a_point(seen: Any) -> None:
    found = seen.scenario("ten_samples")
    assert [each["point"] is None for each in found.ranks] == [False] + [True] * (seen.world - 1)
    assert [path.name for path in found.home.iterdir()] == ["rank0"]
    run = found.home / "rank0" / found.point["run"]
    assert len(EvalReport.load(run).results) == 10


@pytest.mark.heavy
def test_across_first_leaves_the_others_alone(seen: Any, tmp_path: Path) -> None:
    found = seen.scenario("first_only")
    assert_same_result(found.point, alone(tmp_path))
    assert [len(own) for own in found.answered] == [10] + [0] * (seen.world - 1)
    assert [each["point"] for each in found.ranks[1:]] == [None] * (seen.world - 1)
    assert [path.name for path in found.home.iterdir()] == ["rank0"]


# --- One that fails -----------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("builder_raises_on_one", "rank 1: runner_builder: RuntimeError: this one cannot"),
        ("getter_raises_on_one", "rank 1: model: RuntimeError: this one cannot"),
        ("no_model_on_one", "rank 1: there is no model"),
        ("what_one_says_cannot_be_sent", "rank 1: "),
        ("one_cannot_be_put_back", "rank 1: RuntimeError: a flag is not what it was"),
        ("scoring_is_not_admitted", "rank 0: the curve in "),
        ("first_cannot_decide", "rank 0: RuntimeError: this one cannot"),
    ],
)
def test_what_fails_on_one_rank_is_a_skip_that_says_where(name: str, why: str, seen: Any) -> None:
    found = seen.scenario(name)
    assert found.point["skipped"].startswith(why)
    assert "summary" not in found.point
    assert [each["point"] for each in found.ranks[1:]] == [None] * (seen.world - 1)
    assert [path.name for path in found.home.iterdir()] == ["rank0"]


@pytest.mark.heavy
def test_ranks_with_different_weights_are_a_skip_that_says_what_differs(seen: Any) -> None:
    found = seen.scenario("weights_differ")
    assert found.point["skipped"] == (
        "rank 1 has other weights than rank 0: knows. across='first' evaluates those of rank 0"
    )
    assert "summary" not in found.point
    assert found.answered == [[]] * seen.world
    found = seen.scenario("buffers_differ")
    assert found.point["skipped"].startswith(
        "rank 1 has other weights than rank 0: norm.running_mean and 1 more. These are buffers, "
        "which DistributedDataParallel makes equal only when a forward pass begins"
    )
    assert seen.scenario("buffers_made_equal").point["summary"]["n"] == 10


def test_when_a_rank_dies_the_others_get_a_skip_and_no_exception(tmp_path: Path) -> None:
    first, second = run_ranks(2, tmp_path, "one_dies", fewest=1)
    assert second is None
    said = first["one_dies"]["point"]["skipped"]
    assert said.startswith("the processes cannot reach each other: ")


def test_a_collective_that_fails_says_so() -> None:
    class Broken:
        group = SimpleNamespace(WORLD=SimpleNamespace(_device_types=[SimpleNamespace(type="cpu")]))

        def is_gloo_available(self) -> bool:
            return False

        def get_rank(self) -> int:
            return 1

        def get_world_size(self) -> int:
            return 2

        def all_gather(self, into: Any, own: Any, group: Any) -> None:
            raise RuntimeError("timed out")

    with pytest.raises(RanksApart, match="cannot reach each other: RuntimeError: timed out"):
        TorchRanks(Broken()).broadcast(b"")


@pytest.mark.parametrize(("timeout", "patience"), [(1800, 1740), (240, 180), (20, 15)])
def test_processes_wait_for_one_another_a_minute_less_than_their_timeout(
    timeout: float, patience: float, tmp_path: Path
) -> None:
    from torch import distributed

    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(str(tmp_path / "store"), 1),
        rank=0,
        world_size=1,
        timeout=timedelta(seconds=timeout),
    )
    try:
        assert TorchRanks(distributed).patience == patience
    finally:
        distributed.destroy_process_group()


# --- Time and budget ----------------------------------------------------------------------------


@pytest.mark.heavy
def test_when_time_is_up_on_one_rank_the_point_is_a_complete_beginning(seen: Any) -> None:
    point = seen.scenario("time_is_up_on_one").point
    assert point["partial"].startswith("max_seconds=2.5: time was up after ")
    ids = [outcome["id"] for outcome in point["outcomes"]]
    order = [sample.id for sample in ordered_by_id(toys.questions(24), 0)]
    # Rank 1 came to at least two of its own, and to three at most.
    assert 2 * seen.world + 1 <= len(ids) <= 3 * seen.world + 1
    assert ids == order[: len(ids)]
    assert point["asked"] == 24


@pytest.mark.heavy
def test_the_first_rank_decides_how_much_is_run_and_all_follow(seen: Any) -> None:
    by_rank = [rank["budget_of_the_first"] for rank in seen.raw]
    # The smallest part, to find out what it costs; nothing; a half; all.
    assert [asked for asked, _ in by_rank[0]] == [4, 0, 8, 16]
    for step, together in enumerate((4, 0, 8, 16)):
        assert sum(rank[step][1] for rank in by_rank) == together


# --- A trainer's callback -----------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("what", "talked", "points"),
    [
        # The monitor of the first rank asks to stop after the second eval; a final one follows.
        ("monitor", [7, 14], [[7, False], [14, False], [14, False]]),
        # Written at step 9 for the first rank alone; both stop at the next step they agree at.
        ("stop file", [50], [[50, False]]),
        # The second eval is more than the first rank can afford; the other one could.
        ("budget", [40, 50, 80, 100], [[40, False], [80, True]]),
    ],
)
def test_ranks_communicate_only_where_they_all_know_that_they_will(
    what: str, talked: list[int], points: list[Any], two: SimpleNamespace
) -> None:
    """Steps without an eval cost no collective, and what one rank knows holds for all."""
    first, second = (rank["trainer_callback"][what] for rank in two.raw)
    assert first["talked"] == second["talked"] == talked
    assert first["ended"] == second["ended"] == talked[-1]
    assert first["points"] == points
    assert second["points"] == []
    assert first["rows"] == second["rows"] == sorted({step for step, _ in points})


# --- Training -----------------------------------------------------------------------------------


@pytest.mark.heavy
def test_training_in_two_processes_ends_in_the_same_weights_with_evals(
    two: SimpleNamespace,
) -> None:
    ranks = [rank["training"] for rank in two.raw]
    for rank in ranks:
        assert rank["all"]["weights"] == rank["first"]["weights"] == rank["None"]["weights"]
        assert rank["all"]["draws"] == rank["first"]["draws"] == rank["None"]["draws"]
    assert ranks[0]["None"]["weights"] == ranks[1]["None"]["weights"]
    assert ranks[0]["None"]["draws"] != ranks[1]["None"]["draws"]
    for across in ("all", "first"):
        points = ranks[0][across]["points"]
        assert [point[:2] for point in points] == [[2, 5], [4, 5]]
        assert [point[3] for point in points] == [None, None]
        assert points[1][2] == ranks[0]["None"]["weights"]
        assert ranks[1][across]["points"] == []


# --- One process --------------------------------------------------------------------------------


def test_without_a_process_group_there_is_one_rank() -> None:
    ranks = current_ranks()
    assert ranks == Alone()
    assert ranks.all_gather(b"a") == [b"a"]
    assert ranks.broadcast(b"a") == b"a"
