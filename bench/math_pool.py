"""Time math equivalence in its pool of processes, for scoring.py.

Beside it, plain loops over the same answers, one process for each core, all at once: what the cores
can do where nothing is killable and nobody waits. Rounds alternate, so that what else the machine
does hits both, and the best of each count. How long the event loop was not free for others is asked
of a clock that ticks in it, in rounds of their own, as the clock takes time as well; the longest
wait of all rounds counts. Beside it, the same where the loop has nothing else to do and plain loops
keep the cores busy: what the scheduler, and whoever else is on the machine, make of it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import anyio.to_thread

from common import options
from heldout._core.memory import available_cores
from heldout.scoring.answers import answer_text
from heldout.scoring.math import decide, grade_math, math_pool, prepare, stated_expressions
from heldout.scoring.process_pool import Pool

ITEMS, ROUNDS = 240, 5
AT_ONCE = 64
TICK = 0.001
REASONING = "We look at the terms one after the other, and see that they add up to more. " * 12


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--case", choices=["loop", "asyncio", "trio"], required=True)
    parser.add_argument("--number", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.case == "loop":
        plain_loop(chosen.number)
    else:
        print(json.dumps(compare(chosen.case, 1 if chosen.quick else ROUNDS)))


def items(round_number: int) -> list[tuple[str, str]]:
    """Answers of about 1 KB and their golds: numbers, fractions, forms, sets; a third are wrong.
    Other ones in each round, since both sides have caches."""
    made = []
    first = round_number * ITEMS + 1
    for n in range(first, first + ITEMS):
        kinds = (
            (rf"\boxed{{{n}}}", f"{n + (n % 3 == 0)}"),
            (f"The answer is {n}/7.", rf"\frac{{{n}}}{{7}}"),
            (rf"\boxed{{\frac{{{n}}}{{\sqrt{{3}}}}}}", rf"\frac{{{n}\sqrt{{3}}}}{{3}}"),
            (rf"\boxed{{{n}, {n + 1}}}", rf"\{{{n + 1}, {n}\}}"),
            (rf"\boxed{{{n}x + 1}}", f"{n}x - 1"),
            (f"Answer: ${n}.50", f"{n}.5"),
        )
        answer, gold = kinds[n % len(kinds)]
        made.append((REASONING + answer, gold))
    random.Random(round_number).shuffle(made)
    return made


def plain_loop(number: int) -> None:
    """A round for each line of input, its share of the answers; says how long it took."""
    prepare()
    print("ready", flush=True)
    for line in sys.stdin:
        pairs = items(int(line))[number :: available_cores()]
        started = time.perf_counter()
        for answer, gold in pairs:
            stated = stated_expressions(answer_text(answer) or "", last=False)
            decide(gold, stated, [6, True])
        print(time.perf_counter() - started, flush=True)


class Loops:
    """A plain loop for each core."""

    def __init__(self) -> None:
        # As the workers have it: sympy's speed depends on the order of its sets, and the share of a
        # busy machine on sessions.
        self._running = [
            subprocess.Popen(
                [sys.executable, __file__, "--case", "loop", "--number", str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONHASHSEED": "0"},
                start_new_session=True,
            )
            for number in range(available_cores())
        ]
        self._lines()

    def seconds(self, round_number: int) -> float:
        """What one of them took, on average."""
        for process in self._running:
            assert process.stdin is not None
            print(round_number, file=process.stdin, flush=True)
        return sum(map(float, self._lines())) / len(self._running)

    def _lines(self) -> list[str]:
        lines = [process.stdout.readline() for process in self._running if process.stdout]
        return lines if all(lines) else sys.exit("benchmark failed: a plain loop ended")

    def close(self) -> None:
        for process in self._running:
            process.communicate()


def compare(backend: str, rounds: int) -> dict[str, float]:
    loops = Loops()
    anyio.run(ready, math_pool(), backend=backend)
    plain, pool, blocked, idle = [], [], [], []
    for number in range(rounds):
        plain.append(loops.seconds(number))
        pool.append(anyio.run(pooled, items(number), backend=backend))
    for number in range(rounds, 2 * rounds):
        waiting = partial(anyio.to_thread.run_sync, loops.seconds, number)
        idle.append(anyio.run(longest_wait, waiting, backend=backend))
        working = partial(pooled, items(number))
        blocked.append(anyio.run(longest_wait, working, backend=backend))
    loops.close()
    return {
        "loops": min(plain) / ITEMS,
        "pool": min(pool) / ITEMS,
        "blocked": max(blocked),
        "idle": max(idle),
    }


async def pooled(pairs: list[tuple[str, str]]) -> float:
    waiting = iter(pairs)

    async def grade() -> None:
        for answer, gold in waiting:
            await grade_math(answer, gold, seconds=30.0)

    started = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(grade)
    return time.perf_counter() - started


async def longest_wait(beside: Callable[[], Awaitable[object]]) -> float:
    """The longest that a task which only wants to sleep a little had to wait beyond that."""
    longest = 0.0

    async def clock() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await anyio.sleep(TICK)
            longest = max(longest, time.perf_counter() - before - TICK)

    async with anyio.create_task_group() as group:
        group.start_soon(clock)
        await beside()
        group.cancel_scope.cancel()
    return longest


async def ready(pool: Pool) -> None:
    """Until all have answered: a worker takes no task before it is prepared."""
    found: set[int] = set()

    async def ask() -> None:
        found.add(await pool.run("os:getpid", seconds=30.0))
        await pool.run("time:sleep", 0.02, seconds=30.0)

    while len(found) < available_cores():
        async with anyio.create_task_group() as group:
            for _ in range(2 * available_cores()):
                group.start_soon(ask)


if __name__ == "__main__":
    main()
