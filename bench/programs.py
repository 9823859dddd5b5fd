"""Programs against tests in sandboxes, beside program and tests in one plain process.

    python bench/programs.py [--quick]

Both grade the same programs with the same three tests, as many at a time as there are cores; rounds
alternate, and the best of each counts. The plain process is what most harnesses have: any program
that calls `os._exit(0)` passes in it. It is here for what isolation costs, and is no alternative.
How long the event loop was not free for others is asked of a clock that ticks in it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from common import emit, options
from heldout import Sample
from heldout._core.memory import available_cores
from heldout.scoring import CallTest, PythonTests, RunTest, grade_python

PROGRAM = "def area(a, b):\n    return a * b\n"
WHOLE = "a, b = map(int, input().split())\nprint(a * b)\n"
PAIRS = [(2, 3), (0, 5), (7, 7)]
CODE = [f"assert area({a}, {b}) == {a * b}" for a, b in PAIRS]
SUITES = {
    "assertions": (PROGRAM, PythonTests(code=tuple(CODE))),
    "calls": (
        PROGRAM,
        PythonTests(calls=tuple(CallTest([a, b], a * b) for a, b in PAIRS), entry_point="area"),
    ),
    "stdin and stdout": (
        WHOLE,
        PythonTests(runs=tuple(RunTest(f"{a} {b}\n", f"{a * b}\n") for a, b in PAIRS)),
    ),
}
TICK = 0.001


async def in_sandboxes(kind: str, sample: Sample) -> None:
    program, tests = SUITES[kind]
    assert (await grade_python(program, sample, tests=tests)).value == 1.0


async def in_one_process(sample: Sample) -> None:
    code = "\n".join([PROGRAM, *CODE])
    result = await anyio.run_process([sys.executable, "-I", "-c", code], check=False)
    assert result.returncode == 0


async def programs_per_second(grade: Callable[[Sample], Awaitable[None]], count: int) -> float:
    limiter = anyio.CapacityLimiter(available_cores())

    async def one(number: int) -> None:
        async with limiter:
            await grade(Sample(str(number), {"question": "?"}))

    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(one, number)
    return count / (time.perf_counter() - began)


async def longest_wait(work: Callable[[], Awaitable[float]]) -> float:
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            began = time.perf_counter()
            await anyio.sleep(TICK)
            longest = max(longest, time.perf_counter() - began - TICK)

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await work()
        group.cancel_scope.cancel()
    return longest


async def main(count: int, rounds: int) -> None:
    ways = {kind: partial(in_sandboxes, kind) for kind in SUITES}
    ways["plain"] = in_one_process
    best = dict.fromkeys(ways, 0.0)
    for grade in ways.values():
        await programs_per_second(grade, 2)
    for _ in range(rounds):
        for name, grade in ways.items():
            best[name] = max(best[name], await programs_per_second(grade, count))
    for name, value in best.items():
        where = "all in one plain process" if name == "plain" else f"{name}, in sandboxes"
        emit(f"programs of 3 tests: {where}", value, "/s", ratio=best["plain"] / value)
    wait = await longest_wait(partial(programs_per_second, ways["assertions"], count))
    emit("longest wait of the event loop", 1000 * wait, "ms")


if __name__ == "__main__":
    quick = options(__doc__).parse_args().quick
    anyio.run(main, 4 if quick else 40, 1 if quick else 3)
