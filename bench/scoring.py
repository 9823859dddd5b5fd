"""Time math equivalence in the pool of workers beside plain loops over the same answers.

The loops call math-verify in one process for each core, all at once: what the cores can do where
nothing is killable and nobody waits. The pool is used from an event loop in which a clock ticks;
what it says is the longest that the loop was not free for others. Answers differ from each other,
since both sides have caches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import anyio

from common import child, emit, middle, options, say
from heldout.scoring import mathematics
from heldout.scoring.workers import Pool, available_cores

AT_ONCE = 64
TICK = 0.001
ROUNDS = 3


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--case", choices=["loop", "asyncio", "trio"])
    parser.add_argument("--items", type=int, default=600)
    chosen = parser.parse_args()
    if chosen.case == "loop":
        print(json.dumps(plain_loop(items(chosen.items))))
    elif chosen.case is not None:
        print(json.dumps(anyio.run(pooled, items(chosen.items), backend=chosen.case)))
    else:
        compare(200 if chosen.quick else chosen.items, 1 if chosen.quick else ROUNDS)


def compare(count: int, rounds: int) -> None:
    """Rounds alternate, so that what else the machine does hits all of them."""
    cores, this = available_cores(), Path(__file__)
    runs: dict[str, list[dict[str, float]]] = {"loop": [], "asyncio": [], "trio": []}
    for number in range(rounds):
        say(f"math equivalence, round {number + 1} of {rounds}")
        runs["loop"].append(loops_at_once(cores, count // cores))
        for backend in ("asyncio", "trio"):
            runs[backend].append(
                child(sys.executable, this, "--case", backend, "--items", str(count))
            )
    single = middle(runs["loop"], "seconds") / (count // cores)
    emit("math: a plain loop", single * 1e6, "µs an item")
    for backend in ("asyncio", "trio"):
        each = middle(runs[backend], "seconds") / count
        emit(f"math: the pool, {backend}", each * 1e6, "µs an item", ratio=each * cores / single)
        emit(
            f"math: cores' time an item in the pool, {backend}, over a plain loop's",
            each * cores / single,
            "times",
            target=1 / 0.9,
        )
        work = middle(runs[backend], "cpu") / count
        plain = middle(runs["loop"], "cpu") / (count // cores)
        emit(
            f"math: CPU time an item with the pool, {backend}, over a plain loop's",
            work / plain,
            "times",
            target=1 / 0.9,
        )
        blocked = middle(runs[backend], "blocked")
        emit(f"math: longest the {backend} loop was blocked", blocked * 1e3, "ms", target=20.0)


def items(count: int) -> list[tuple[str, str]]:
    """Answers of about 1 KB and their golds: numbers, fractions, forms, sets; a third are wrong."""
    reasoning = "We look at the terms one after the other, and see that they add up. " * 14
    made = []
    for n in range(1, count + 1):
        kinds = (
            (rf"\boxed{{{n}}}", f"{n + (n % 3 == 0)}"),
            (f"The answer is {n}/7.", rf"\frac{{{n}}}{{7}}"),
            (rf"\boxed{{\frac{{{n}}}{{\sqrt{{3}}}}}}", rf"\frac{{{n}\sqrt{{3}}}}{{3}}"),
            (rf"\boxed{{{n}, {n + 1}}}", rf"\{{{n + 1}, {n}\}}"),
            (rf"\boxed{{{n}x + 1}}", f"{n}x - 1"),
            (f"So it costs ${n}.50", f"{n}.5"),
        )
        answer, gold = kinds[n % len(kinds)]
        made.append((reasoning + answer, gold))
    return made


def plain_loop(pairs: list[tuple[str, str]]) -> dict[str, float]:
    mathematics._prepare()
    started, cpu = time.perf_counter(), time.process_time()
    for answer, gold in pairs:
        mathematics._decide(*mathematics._arguments(answer, gold, 6, True))
    return {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}


def loops_at_once(cores: int, count: int) -> dict[str, float]:
    """What one of them took, on average."""
    # As the workers have it: sympy's speed depends on the order of its sets, and the share of a
    # busy machine on sessions.
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    command = [sys.executable, __file__, "--case", "loop", "--items", str(count)]
    running = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        for _ in range(cores)
    ]
    outputs = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        sys.exit("benchmark failed: a plain loop ended with an error")
    lines = [json.loads(output) for output in outputs]
    return {key: sum(float(line[key]) for line in lines) / cores for key in ("seconds", "cpu")}


async def pooled(pairs: list[tuple[str, str]]) -> dict[str, float]:
    pool = mathematics.math_pool()
    blocked = 0.0

    async def clock() -> None:
        nonlocal blocked
        while True:
            before = time.perf_counter()
            await anyio.sleep(TICK)
            blocked = max(blocked, time.perf_counter() - before - TICK)

    waiting = iter(pairs)

    async def grade() -> None:
        for answer, gold in waiting:
            await mathematics.math_equal_async(answer, gold, seconds=30.0)

    async def grade_all() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(AT_ONCE):
                group.start_soon(grade)

    async with anyio.create_task_group() as group:
        group.start_soon(clock)
        pool.start()
        while len(set(await ready(pool))) < available_cores():
            await anyio.sleep(TICK)
        started, cpu = time.perf_counter(), cpu_seconds(pool)
        await grade_all()
        seconds, cpu = time.perf_counter() - started, cpu_seconds(pool) - cpu
        group.cancel_scope.cancel()
    return {"seconds": seconds, "cpu": cpu, "blocked": blocked}


def cpu_seconds(pool: Pool) -> float:
    """Of this process and the workers."""
    total = time.process_time()
    for pid in pool.pids():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


async def ready(pool: Pool) -> list[int]:
    """Who answers where each has to take one: a worker takes no task before it is prepared."""
    found: list[int] = []

    async def ask() -> None:
        found.append(await pool.run("os:getpid", seconds=30.0))
        await pool.run("time:sleep", 0.02, seconds=30.0)

    async with anyio.create_task_group() as group:
        for _ in range(2 * available_cores()):
            group.start_soon(ask)
    return found


if __name__ == "__main__":
    main()
