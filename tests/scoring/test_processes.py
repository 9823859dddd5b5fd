"""Tasks that a worker has ahead: not lost, not done twice, and given back until they are begun."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any

import pytest

from heldout.errors import TaskTimeout, WorkerDied, WorkerError
from heldout.scoring import processes
from heldout.scoring.processes import Task
from heldout.scoring.workers import Pool

pytestmark = pytest.mark.integration
TASKS = "tests.scoring.pool_tasks"


@pytest.fixture
def alone() -> Iterator[Pool]:
    """One worker, so that it is known who has which task."""
    alone = Pool(1)
    alone.run_sync("math:sqrt", 4, seconds=10)
    yield alone
    alone.close()


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < until
        os.sched_yield()


def one_behind_another(
    pool: Pool, folder: Path, behind: str | None = None
) -> tuple[Future[Any], Future[Any]]:
    """A task that runs until `release` is there, and one that its worker has got meanwhile."""
    # A worker that becomes free gets all it may have; one that is waited for gets nothing more.
    before = pool.submit(f"{TASKS}:hold", str(folder / "before"), str(folder / "go"), seconds=60)
    wait_for((folder / "before").exists)
    running = pool.submit(
        f"{TASKS}:hold", str(folder / "running"), str(folder / "release"), seconds=60
    )
    if behind is None:
        following = pool.submit(f"{TASKS}:hold", str(folder / "behind"), seconds=60)
    else:
        following = pool.submit(behind, seconds=60)
    (folder / "go").touch()
    before.result(60)
    wait_for((folder / "running").exists)
    wait_for(lambda: isinstance(following, Task) and following.ahead_at is not None)
    return running, following


def test_a_task_that_was_sent_ahead_is_done_by_the_same_worker(alone: Pool, tmp_path: Path) -> None:
    running, behind = one_behind_another(alone, tmp_path)
    assert not (tmp_path / "behind").exists()
    (tmp_path / "release").touch()
    assert running.result(60) == behind.result(60)


def test_a_task_whose_worker_dies_of_the_one_before_is_given_to_another(
    alone: Pool, tmp_path: Path
) -> None:
    running, behind = one_behind_another(alone, tmp_path)
    (killed,) = alone.pids()
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        running.result(60)
    assert behind.result(60) != killed


def test_a_worker_that_dies_between_two_tasks_costs_none(alone: Pool) -> None:
    (killed,) = alone.pids()
    os.kill(killed, signal.SIGKILL)
    assert alone.run_sync("os:getpid", seconds=60) != killed


def test_a_task_that_no_worker_lives_to_take_up_is_an_error_in_the_end(
    alone: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(processes.Worker, "send", lambda worker, task: worker.process.kill())
        with pytest.raises(WorkerDied, match="SIGKILL"):
            alone.submit("math:sqrt", 4, seconds=60).result(60)
    assert alone.run_sync("math:sqrt", 4, seconds=60) == 2


def test_time_runs_from_where_a_task_is_taken_up(alone: Pool, tmp_path: Path) -> None:
    """The task says how much of its 60 s is left: what it lacks was not lost while it waited."""
    _, behind = one_behind_another(alone, tmp_path, f"{TASKS}:time_left")
    waiting = time.monotonic()
    wait_for(lambda: time.monotonic() > waiting + 0.5)
    released = time.monotonic()
    (tmp_path / "release").touch()
    left = behind.result(60)
    rounding = 0.02
    assert 60 - left <= time.monotonic() - released + rounding


def test_what_a_worker_says_unasked_is_nobodys_result(alone: Pool) -> None:
    (forger,) = alone.pids()
    with pytest.raises(WorkerDied, match="not asked"):
        alone.run_sync(f"{TASKS}:forge", seconds=60)
    for number in range(4):
        assert alone.run_sync("math:sqrt", number * number, seconds=60) == number
    assert forger not in alone.pids()


def test_a_reply_that_comes_twice_is_not_the_next_tasks(alone: Pool) -> None:
    (stutterer,) = alone.pids()
    assert alone.run_sync(f"{TASKS}:stutter", seconds=60) is None
    assert alone.run_sync("os:getpid", seconds=60) != stutterer


def test_a_reply_that_comes_twice_is_not_the_result_of_a_task_sent_ahead(
    alone: Pool, tmp_path: Path
) -> None:
    """It has begun by then, perhaps: an error, if not a result of its own."""
    stuttering, behind = one_behind_another(alone, tmp_path, f"{TASKS}:stutter")
    following = [alone.submit("os:getpid", seconds=60) for _ in range(3)]
    (stutterer,) = alone.pids()
    (tmp_path / "release").touch()
    assert stuttering.result(60) == stutterer
    assert behind.result(60) is None
    for task in following:
        if not isinstance(task.exception(60), WorkerError):
            assert task.result(60) != stutterer


def test_a_task_that_a_worker_skips_though_it_was_not_taken_back_is_given_to_another(
    alone: Pool,
) -> None:
    (refusing,) = alone.pids()
    alone.run_sync(f"{TASKS}:refuse", seconds=60)
    assert alone.submit("os:getpid", seconds=60).result(60) != refusing


def test_a_task_that_its_holder_has_settled_costs_no_worker(alone: Pool, tmp_path: Path) -> None:
    settled = alone.submit(
        f"{TASKS}:hold", str(tmp_path / "begun"), str(tmp_path / "never"), seconds=60
    )
    wait_for((tmp_path / "begun").exists)
    settled.set_result("by hand")
    (killed,) = alone.pids()
    os.kill(killed, signal.SIGKILL)
    assert alone.submit("math:sqrt", 4, seconds=60).result(60) == 2


def test_a_task_that_was_sent_ahead_and_is_cancelled_is_never_begun(
    alone: Pool, tmp_path: Path
) -> None:
    running, behind = one_behind_another(alone, tmp_path)
    assert behind.cancel()
    assert not running.cancel()
    after = alone.submit(f"{TASKS}:hold", str(tmp_path / "after"), seconds=60)
    (tmp_path / "release").touch()
    assert running.result(60) == after.result(60)
    assert not (tmp_path / "behind").exists()


def test_a_worker_with_nothing_to_do_takes_what_waits_behind_another(tmp_path: Path) -> None:
    two = Pool(2)
    two.start(1)
    running, behind = one_behind_another(two, tmp_path)
    assert behind.result(60) in two.pids()
    assert not running.done()
    (tmp_path / "release").touch()
    assert running.result(60) != behind.result(60)
    two.close()


def test_a_closed_pool_fails_what_was_sent_ahead(alone: Pool, tmp_path: Path) -> None:
    both = one_behind_another(alone, tmp_path)
    alone.close()
    for task in both:
        with pytest.raises(WorkerDied):
            task.result(60)
    assert not (tmp_path / "behind").exists()


def test_a_large_task_is_not_sent_ahead(alone: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not fit into the kernel's buffer, and nobody would watch the one before it."""
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.3)
    blocker = alone.submit(f"{TASKS}:deaf", seconds=0.1)
    large = alone.submit("builtins:len", "x" * 2**22, seconds=60)
    with pytest.raises(TaskTimeout):
        blocker.result(60)
    assert large.result(60) == 2**22


def test_under_kills_and_cancels_nothing_is_lost_and_nothing_is_done_twice(
    tmp_path: Path,
) -> None:
    chance = Random(0)
    busy = Pool(2)
    kills = cancelled = died = 0
    tasks: list[Future[Any]] = []
    for number in range(300):
        tasks.append(busy.submit("os:mkdir", str(tmp_path / str(number)), seconds=60))
        if chance.random() < 0.3:
            chance.choice(tasks[-20:]).cancel()
        if number % 60 == 30:
            next(task for task in reversed(tasks) if not task.cancelled()).exception(60)
            for pid in busy.pids():
                os.kill(pid, signal.SIGKILL)
                kills += 1
    for number, task in enumerate(tasks):
        if task.cancelled():
            cancelled += 1
            assert not (tmp_path / str(number)).exists()
        elif isinstance(task.exception(60), WorkerDied):
            died += 1
        else:
            assert task.result(60) is None  # a second mkdir would have failed
    assert died <= kills
    assert cancelled
    busy.close()
