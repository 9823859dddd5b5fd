"""What it costs to start a program in a sandbox, beside plain processes, bubblewrap and Docker.

    python bench/sandbox.py             JSON lines, as bench/run.py takes them
    python bench/sandbox.py --table     the same as a table

Every way starts the same program, as many at a time as there are cores. Rounds alternate, and the
median of each counts. A sandbox is taken fresh from a pool for every program. Peak memory is that
of a process that runs a thousand programs, and of the largest process below it.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import anyio

from common import HERE, child, emit, machine, options
from heldout._core.memory import available_cores
from heldout.sandbox import SandboxPool
from heldout.sandbox.containers import describe_missing_engine, split_backend

TRUE = ["/bin/true"]
PYTHON = ["-I", "-S", "-c", "print(sum(range(1000)))"]
BUBBLEWRAP = "bwrap --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/bin /bin --proc /proc"
BUBBLEWRAP += " --dev /dev --tmpfs /tmp --unshare-all --die-with-parent --new-session"


def run_plain(command: list[str], n: int) -> float:
    with ThreadPoolExecutor(available_cores()) as threads:
        started = time.perf_counter()
        for done in threads.map(lambda _: subprocess.run(command, capture_output=True), range(n)):
            assert done.returncode == 0, done
        return (time.perf_counter() - started) / n * 1000


def run_pool(command: list[str], n: int) -> float:
    async def main() -> float:
        pool = SandboxPool()

        async def run_one(program: list[str]) -> None:
            async with pool.sandbox() as sandbox:
                outcome = await sandbox.run(program, timeout=60)
                assert outcome.exit == 0, outcome

        async with anyio.create_task_group() as group:  # the supervisors are started ahead
            for _ in range(pool.size):
                group.start_soon(run_one, TRUE)
        started = time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(n):
                group.start_soon(run_one, command)
        seconds = time.perf_counter() - started
        await pool.close()
        return seconds / n * 1000

    return anyio.run(main)


def measure_memory(n: int) -> None:
    """A child process: run programs, and print what it took."""
    milliseconds = run_pool(["python", *PYTHON], n)
    line = {"milliseconds": milliseconds}
    for name in ("SELF", "CHILDREN"):
        usage = resource.getrusage(getattr(resource, f"RUSAGE_{name}"))
        line[name] = usage.ru_maxrss / 1024
    print(json.dumps(line))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--memory", type=int, default=0, help="run this many programs, once")
    chosen = parser.parse_args()
    if chosen.memory:
        measure_memory(chosen.memory)
    elif chosen.table:
        arguments = ["--quick"] if chosen.quick else []
        command = [sys.executable, str(HERE / Path(__file__).name), *arguments]
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        print("| | | against heldout |\n|---|---:|---:|")
        for line in map(json.loads, lines.splitlines()):
            ratio = "" if line["ratio"] is None else f"{line['ratio']:.2f}x"
            print(f"| {line['what']} | {line['value']:.3g} {line['unit']} | {ratio} |")
        print(f"\n{machine()}")
    else:
        compare(quick=chosen.quick)


def compare(*, quick: bool) -> None:
    n, rounds = (20, 1) if quick else (200, 5)
    cores = available_cores()
    for name, inside, outside in (
        ("`true`", TRUE, TRUE),
        ("Python", ["python", *PYTHON], [sys.executable, *PYTHON]),
    ):
        ways = {
            "sandbox of a pool": lambda inside=inside: run_pool(inside, n),
            "plain process": lambda outside=outside: run_plain(outside, n),
        }
        if name == "`true`" and shutil.which("bwrap"):
            ways["bubblewrap alone"] = lambda: run_plain([*BUBBLEWRAP.split(), *TRUE], n)
        if describe_missing_engine("docker") is None:
            start = ["docker", "run", "--rm", "--network", "none", split_backend("docker")[1]]
            words = [*start, *(inside if inside is TRUE else ["python3", *inside[1:]])]
            ways["docker run"] = lambda words=words: run_plain(words, max(4, n // 20))
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, run in ways.items():
                times[way].append(run())
        own = median(times["sandbox of a pool"])
        for way in ways:
            value = median(times[way])
            ratio = None if way == "sandbox of a pool" else value / own
            target = 15.0 if ratio is None and inside is TRUE else None
            emit(f"{name} in a {way}, wall per start", value, "ms", ratio=ratio, target=target)
        emit(f"{name}: starts a second", 1000 / own, "")
        emit(f"{name}: starts a second and core", 1000 / own / cores, "")
    programs = 50 if quick else 1000
    line = child(sys.executable, HERE / Path(__file__).name, "--memory", str(programs))
    seconds = line["milliseconds"] * programs / 1000
    emit(f"{programs:,} Python programs, {cores} cores, wall", seconds, "s")
    emit("the same, peak memory of the process", line["SELF"], "MiB")
    emit("the same, peak memory of a supervisor or program", line["CHILDREN"], "MiB")


if __name__ == "__main__":
    main()
