"""The pool of killable workers: what kills one is one task's error, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout.errors import InvalidInput, TaskFailed, TaskTimeout, WorkerDied
from heldout.scoring.process_pool import Pool
from tests.conftest import both_loops
from tests.sandbox.stall import below

pytestmark = pytest.mark.integration
TASKS = "tests.scoring.pool_tasks"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    pool = Pool(2, prepare=f"{TASKS}:prepare", memory=2**28)
    yield pool
    pool.close()


def is_gone(pid: int) -> bool:
    """Neither running nor a zombie."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z" and _parent(pid) != os.getpid():
            return True  # init's to reap, which a container may lack
        os.sched_yield()
    return False


def wait_for(path: Path) -> None:
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        os.sched_yield()


def start_python(*arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


# --- Results and errors -------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False)
        # UTF-8 has no bytes for surrogates.
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=8,
    )
)
def test_plain_values_go_there_and_back_as_they_are(pool: Pool, value: object) -> None:
    assert pool.run_sync("copy:copy", value, seconds=10) == value


@pytest.mark.parametrize(
    ("function", "arguments", "kind"),
    [
        ("math:sqrt", [-1], "ValueError"),
        (f"{TASKS}:unsendable", [], "TypeError"),
        (f"{TASKS}:surrogate", [], "ValueError"),
        ("builtins:bytearray", [2**30], "MemoryError"),
    ],
    ids=["raised", "a result that is not plain", "a message too long", "too much memory"],
)
def test_what_a_task_raises_is_named_and_the_worker_lives_on(
    pool: Pool, function: str, arguments: list[Any], kind: str
) -> None:
    pool.run_sync("math:sqrt", 4, seconds=10)
    before = set(pool.pids())
    with pytest.raises(TaskFailed) as caught:
        pool.run_sync(function, *arguments, seconds=10)
    assert caught.value.kind == kind
    assert len(str(caught.value)) < 3000
    assert before <= set(pool.pids())


def test_a_worker_of_a_large_process_is_used_again() -> None:
    """The maximum memory of a process is inherited from the one that started it."""
    large = b"x" * 2**28
    small = Pool(1, memory=2**28)
    assert len({small.run_sync("os:getpid", seconds=60) for _ in range(3)}) == 1
    small.close()
    del large


@pytest.mark.parametrize("seconds", [0, float("inf"), float("nan"), 86_401])
def test_there_is_no_task_without_a_sane_limit(pool: Pool, seconds: float) -> None:
    with pytest.raises(InvalidInput, match="seconds"):
        pool.submit("math:sqrt", 1, seconds=seconds)


def test_workers_are_prepared_and_have_a_fixed_hash_seed(pool: Pool) -> None:
    assert pool.run_sync("os:getenv", "PREPARED", seconds=10) == "yes"
    assert pool.run_sync("os:getenv", "PYTHONHASHSEED", seconds=10) == "0"


def test_a_pool_that_cannot_be_prepared_says_why_for_every_task(pool: Pool) -> None:
    broken = Pool(1, prepare=f"{TASKS}:ill")
    for _ in range(2):
        with pytest.raises(WorkerDied, match="sympy is not here"):
            broken.run_sync("math:sqrt", 1, seconds=10)
    broken.close()


# --- Ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "arguments"),
    [("builtins:pow", [7, 10**9]), (f"{TASKS}:deaf", [])],
    ids=["in the middle of a bignum", "that handles no signal"],
)
def test_a_task_over_its_time_is_killed(pool: Pool, function: str, arguments: list[Any]) -> None:
    with pytest.raises(TaskTimeout):
        pool.submit(function, *arguments, seconds=0.2).result(60)
    assert pool.run_sync("math:sqrt", 4, seconds=10) == 2


STALLED = """
import sys
from heldout.scoring.process_pool import Pool

pool = Pool(1)
pool.run_sync("math:sqrt", 4, seconds=60)
print(pool.run_sync("tests.scoring.pool_tasks:wait_twice", sys.argv[1], seconds=3))
"""


def test_a_machine_that_stood_still_is_no_task_over_its_time(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with start_python("-c", STALLED, str(begun)) as host:
        wait_for(begun)
        stopped = sorted({host.pid} | below(host.pid))
        assert len(stopped) == 2
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in stopped:
                os.kill(pid, number)
            time.sleep(5.0 if number == signal.SIGSTOP else 0)
        assert host.communicate()[0] == "True\n"


@pytest.mark.parametrize(
    ("function", "argument", "said"),
    [("signal:raise_signal", int(signal.SIGSEGV), "SIGSEGV"), ("os:_exit", 3, "exit code 3")],
)
def test_a_crash_is_that_tasks_error(pool: Pool, function: str, argument: int, said: str) -> None:
    with pytest.raises(WorkerDied, match=said):
        pool.run_sync(function, argument, seconds=10)
    assert pool.run_sync("math:sqrt", 4, seconds=10) == 2


def test_while_one_task_hangs_the_others_go_on(pool: Pool, tmp_path: Path) -> None:
    begun, release = tmp_path / "begun", tmp_path / "release"
    hanging = pool.submit(f"{TASKS}:hold", str(begun), str(release), seconds=600)
    wait_for(begun)
    for _ in range(20):
        assert pool.submit("math:sqrt", 4, seconds=60).result(60) == 2
    assert not hanging.done()
    release.touch()
    assert hanging.result(60) in pool.pids()


# --- Starts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("executable", ["", "/no/such/python"])
def test_where_no_worker_can_be_started_every_task_says_so(
    executable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Pool(1)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", executable)
        for _ in range(2):
            with pytest.raises(WorkerDied, match="no worker could be started"):
                alone.submit("math:sqrt", 4, seconds=60).result(60)
    with suppress(WorkerDied):  # a start that failed is the error of one task
        alone.submit("math:sqrt", 4, seconds=60).result(60)
    assert alone.submit("math:sqrt", 4, seconds=60).result(60) == 2
    alone.close()


# --- Tasks that wait ----------------------------------------------------------------------------


@pytest.fixture
def alone() -> Iterator[Pool]:
    alone = Pool(1)
    alone.run_sync("math:sqrt", 4, seconds=10)
    yield alone
    alone.close()


def test_a_task_outlives_the_worker_that_dies_of_the_one_before(
    alone: Pool, tmp_path: Path
) -> None:
    running = alone.submit(
        f"{TASKS}:hold", str(tmp_path / "begun"), str(tmp_path / "never"), seconds=60
    )
    waiting = alone.submit("os:getpid", seconds=60)
    wait_for(tmp_path / "begun")
    (killed,) = alone.pids()
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        running.result(60)
    assert waiting.result(60) != killed


def test_a_worker_that_dies_between_two_tasks_costs_none(alone: Pool) -> None:
    (killed,) = alone.pids()
    os.kill(killed, signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    assert alone.run_sync("os:getpid", seconds=60) != killed


def test_under_kills_and_cancels_nothing_is_lost_and_nothing_is_done_twice(
    tmp_path: Path,
) -> None:
    chance = Random(0)
    busy = Pool(2)
    kills = cancelled = died = 0
    tasks: list[Future[Any]] = []
    for number in range(120):
        tasks.append(busy.submit("os:mkdir", str(tmp_path / str(number)), seconds=60))
        if chance.random() < 0.3:
            chance.choice(tasks[-20:]).cancel()
        if number % 40 == 20:
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


# --- Nothing is left behind ---------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_closed_pool_leaves_no_process_and_no_waiting_task() -> None:
    pool = Pool(2)
    futures = [pool.submit("time:sleep", 60, seconds=60) for _ in range(4)]
    until = time.monotonic() + 10
    while len(pids := pool.pids()) < 2 and time.monotonic() < until:
        os.sched_yield()
    pool.close()
    for future in futures:
        with pytest.raises(WorkerDied, match="the pool was closed"):
            future.result(timeout=60)
    assert all(is_gone(pid) for pid in pids)
    with pytest.raises(WorkerDied, match="closed"):
        pool.run_sync("math:sqrt", 1, seconds=1)


PARENT = """
import os, sys
from heldout.scoring.process_pool import Pool
pool = Pool(2)
pool.run_sync("math:sqrt", 4, seconds=60)
pool.submit("builtins:pow", 7, 10**9, seconds=300)
pool.run_sync("math:sqrt", 4, seconds=60)
print(*pool.pids(), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize("how", ["kill -9", "exit"])
def test_workers_end_with_their_parent_even_in_the_middle_of_a_task(how: str) -> None:
    with start_python("-c", PARENT) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        if how == "kill -9":
            parent.kill()
        parent.communicate(timeout=30)
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


FORK = """
import os, warnings
warnings.simplefilter("ignore")  # of a fork beside threads, which is what this is about
from heldout.scoring.process_pool import Pool
pool = Pool(1)
theirs = pool.run_sync("os:getpid", seconds=60)
child = os.fork()
if child == 0:
    try:
        own = pool.run_sync("os:getppid", seconds=60) == os.getpid()
        pool.close()
        os._exit(0 if own else 1)
    finally:
        os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert pool.run_sync("os:getpid", seconds=60) == theirs
"""


def test_a_forked_child_has_workers_of_its_own_and_leaves_the_parents_alone() -> None:
    with start_python("-c", FORK) as parent:
        assert parent.wait(60) == 0


UNGUARDED = """
from heldout.scoring.process_pool import Pool
pool = Pool(1)
print(pool.run_sync("math:sqrt", 4, seconds=60))
"""


def test_a_script_without_a_main_guard_is_not_imported_by_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    with start_python(str(script)) as process:
        assert process.communicate(timeout=60)[0] == "2.0\n"


# --- Threads and event loops ---------------------------------------------------------------------


@both_loops
def test_event_loops_wait_without_being_blocked(pool: Pool, backend: str, tmp_path: Path) -> None:
    """The task ends only if the loop goes on while it is waited for."""
    begun, release = tmp_path / "begun", tmp_path / "release"

    async def let_it_end() -> None:
        while not begun.exists():
            await anyio.sleep(0)
        release.touch()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(let_it_end)
            assert await pool.run(f"{TASKS}:hold", str(begun), str(release), seconds=60)
        with pytest.raises(TaskTimeout):
            await pool.run("time:sleep", 60, seconds=0.2)
        assert await pool.run("math:sqrt", 4, seconds=10) == 2

    anyio.run(main, backend=backend)


@both_loops
def test_a_cancelled_wait_ends_at_once_and_unstarted_work_is_never_done(
    backend: str, tmp_path: Path
) -> None:
    alone = Pool(1)
    begun, release = tmp_path / "begun", tmp_path / "release"
    hanging = alone.submit(f"{TASKS}:hold", str(begun), str(release), seconds=60)
    wait_for(begun)
    names = [tmp_path / name for name in "abc"]

    async def cancelled() -> None:
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(lambda path: alone.run("os:mkdir", path, seconds=60), str(name))
            await anyio.wait_all_tasks_blocked()
            group.cancel_scope.cancel()
        assert not hanging.done()

    anyio.run(cancelled, backend=backend)
    release.touch()
    alone.run_sync("math:sqrt", 4, seconds=60)
    assert not any(name.exists() for name in names)
    alone.close()


def test_threads_with_event_loops_of_their_own_share_a_pool(pool: Pool) -> None:
    results: list[float] = []

    async def main() -> None:
        for number in range(10):
            results.append(await pool.run("math:sqrt", number * number, seconds=10))

    threads = [
        threading.Thread(target=anyio.run, args=(main,), kwargs={"backend": backend})
        for backend in ("asyncio", "trio", "asyncio")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted([*map(float, range(10))] * 3)


def test_workers_start_as_tasks_ask_for_them() -> None:
    lazy = Pool(4)
    assert lazy.pids() == []
    for _ in range(5):
        lazy.run_sync("math:sqrt", 4, seconds=10)
    assert len(lazy.pids()) == 1
    lazy.close()


def test_workers_get_what_an_interpreter_needs_and_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = ["OPENAI_API_KEY", "hf_token", "DB_PASSWORD", "GOOGLE_APPLICATION_CREDENTIALS"]
    secret += ["DATABASE_URL", "SENTRY_DSN", "SSH_AUTH_SOCK", "PYTHON_KEYRING_PASSWORD"]
    plain = ["TZ", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONNODEBUGRANGES"]
    for name in secret + plain:
        monkeypatch.setenv(name, "value")
    alone = Pool(1)
    seen = alone.run_sync(f"{TASKS}:environment", seconds=60)
    alone.close()
    assert not [name for name in secret if name in seen]
    assert not [name for name in plain if seen.get(name) != "value"]
