"""Sandboxes of a pool: bounded, fresh every time, shared by loops and threads."""

from __future__ import annotations

import os
import pickle
import threading

import anyio
import pytest

from heldout.errors import InvalidInput
from heldout.sandbox import SandboxLimits, SandboxPool

pytestmark = pytest.mark.integration


def test_a_sandbox_is_fresh_every_time_and_there_are_never_more_than_allowed(
    pool: SandboxPool,
) -> None:
    busy = most = 0
    seen: set[int] = set()

    async def use_one(number: int) -> None:
        nonlocal busy, most
        async with pool.sandbox() as sandbox:
            busy += 1
            most = max(most, busy)
            seen.add(sandbox._supervisor._process.pid)
            script = "ls -A /work /tmp /dev/shm; ls -d /proc/[0-9]* | wc -l; touch /tmp/a /work/b"
            await sandbox.start(["sleep", "1000"])
            outcome = await sandbox.run(["bash", "-c", f"{script} /dev/shm/c; mkdir -m 0 /work/d"])
            busy -= 1
        *listing, count = outcome.stdout.decode().split()
        assert listing == ["/dev/shm:", "/tmp:", "/work:"]
        assert int(count) <= 4

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for number in range(12):
                group.start_soon(use_one, number)

    anyio.run(main)
    assert most == 2
    anyio.run(main, backend="trio")
    assert len(seen) == 2


def test_loops_in_several_threads_share_a_pool(pool: SandboxPool) -> None:
    outcomes = []

    async def main() -> None:
        for _ in range(5):
            async with pool.sandbox() as sandbox:
                outcomes.append((await sandbox.run(["true"])).exit)

    threads = [threading.Thread(target=anyio.run, args=(main,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [0] * 15


def test_whoever_gives_up_waiting_leaves_the_sandbox_to_the_next(pool: SandboxPool) -> None:
    async def main() -> None:
        async with pool.sandbox(), pool.sandbox():
            with anyio.move_on_after(0.02) as scope:
                async with pool.sandbox():
                    pass
            assert scope.cancelled_caught
        for _ in range(3):
            async with pool.sandbox(), pool.sandbox():
                pass

    anyio.run(main)


def test_the_event_loop_goes_on_while_programs_run(pool: SandboxPool) -> None:
    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await anyio.sleep(0.005)
                ticks += 1

        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            async with pool.sandbox() as sandbox:
                before = ticks
                await sandbox.run(["bash", "-c", "sleep 1; cat"], stdin=b"x" * 1_000_000)
                assert ticks > before + 10
            group.cancel_scope.cancel()

    anyio.run(main)


def test_a_copy_in_another_process_has_sandboxes_of_its_own(pool: SandboxPool) -> None:
    async def find_supervisor(pool: SandboxPool) -> int:
        async with pool.sandbox() as sandbox:
            assert (await sandbox.run(["true"])).exit == 0
            return sandbox._supervisor._process.pid

    async def use_and_close(pool: SandboxPool) -> int:
        pid = await find_supervisor(pool)
        await pool.close()
        return pid

    first = anyio.run(find_supervisor, pool)
    copy = pickle.loads(pickle.dumps(pool))  # noqa: S301 - as Ray does
    assert (copy.size, copy.settings) == (pool.size, pool.settings)
    assert anyio.run(use_and_close, copy) != first
    child = os.fork()
    if child == 0:
        os._exit(0 if anyio.run(use_and_close, pool) != first else 1)
    assert os.waitpid(child, 0)[1] == 0
    anyio.run(find_supervisor, pool)  # the parent's still work


def test_a_pool_has_at_least_one_sandbox() -> None:
    for size in (0, -1, True, 1.5):
        with pytest.raises(InvalidInput, match="the size of a sandbox pool"):
            SandboxPool(size)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="processes of a sandbox must be a positive whole"):
        SandboxLimits(processes=0)
