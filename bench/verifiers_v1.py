"""A rollout of verifiers 0.4 under heldout, beside the package's own runner.

    .venv-evals/bin/python bench/verifiers_v1.py

The same taskset, whose answers are one turn, and both save every rollout. `heldout` has a function
as its policy. The package's runner calls a model over HTTP: a server in a process of its own, whose
time does not count. Its harness is once the one that heldout takes, in the same process, and once
its own `null`, which starts a program per rollout (as if `uv` had installed it before).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
from verifiers.v1.runtimes.subprocess import SubprocessRuntime
from verifiers.v1.utils.trace_store import append_episode

from common import HERE, child, emit, middle, options, say, scratch
from heldout import EvalConfig, evaluate
from heldout.adapters.verifiers import from_verifiers
from heldout.adapters.verifiers.v1_chat import ChatHarness

__all__ = ["InProcess", "Sums"]

IN_FLIGHT = 32


class Data(vf.TaskData):
    answer: str


class Sum(vf.Task[Data]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)


class Config(vf.TasksetConfig):
    n: int = 1


class Sums(vf.Taskset[Sum, Config]):
    def load(self) -> Iterator[Sum]:
        for i in range(self.config.n):
            yield Sum(Data(prompt=f"What is {i} + {50 - i}?", answer="Fifty."), self.config.task)


class InProcess(ChatHarness):
    """The harness that verifiers finds with this taskset."""


async def run_heldout(n: int, folder: Path) -> float:
    async def answer(messages: Any) -> str:
        return "Fifty."

    definition = from_verifiers("verifiers_v1", n=n)
    settings: Any = {"endpoint": answer, "output_dir": str(folder), "max_concurrent": IN_FLIGHT}
    before = cpu_seconds()
    report = await evaluate(definition, EvalConfig(**settings))
    assert report.summary["mean"] == 1.0
    return cpu_seconds() - before


async def run_verifiers(n: int, folder: Path, harness: str, port: int) -> float:
    client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{port}/v1", api_key_var="NO_KEY")
    seat = {"harness": {"id": harness}, "runtime": {"type": "subprocess"}}
    settings = {"taskset": {"id": "verifiers_v1", "n": n}, "agent": seat}
    env = vf.load_environment(vf.resolve_env_config(settings))
    ctx = vf.ModelContext(model="bench", client=client)
    limit, lock = asyncio.Semaphore(IN_FLIGHT), asyncio.Lock()

    async def save(episode: Any) -> None:
        await append_episode(folder, episode, lock)

    before = cpu_seconds()
    async with env.serving():
        slots = [slot for task in env.taskset for slot in env.slots(task)]
        episodes = await asyncio.gather(*(env.run_slot(s, ctx, limit, save) for s in slots))
    assert [episode.traces[0].reward for episode in episodes] == [1.0] * n
    return cpu_seconds() - before


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def install_chat_program(folder: Path) -> None:
    name = f"{hashlib.sha256(CHAT_PROGRAM_SOURCE.encode()).hexdigest()}.py"
    (folder / name).write_text(CHAT_PROGRAM_SOURCE)
    SubprocessRuntime.scripts_dir = str(folder)
    SubprocessRuntime._interpreters[str(folder / name)] = sys.executable


def measure(case: str, n: int) -> None:
    folder = scratch("verifiers-v1")
    if case == "heldout":
        seconds = asyncio.run(run_heldout(n, folder))
    else:
        install_chat_program(folder)
        server = subprocess.Popen(
            [sys.executable, HERE / "server.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        port = int(server.stdout.readline())
        harness = "verifiers_v1" if case == "verifiers" else "null"
        seconds = asyncio.run(run_verifiers(n, folder, harness, port))
        server.communicate()
    print(json.dumps({"ms": 1000 * seconds / n}))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--case", choices=["heldout", "verifiers", "null"])
    parser.add_argument("--n", type=int, default=1000)
    given = parser.parse_args()
    if given.case:
        measure(given.case, given.n)
    else:
        compare(quick=given.quick, n=50 if given.quick else given.n)


def compare(*, quick: bool, n: int) -> None:
    sizes = {"heldout": n, "verifiers": n, "null": 4 if quick else 20}
    rounds: dict[str, list[dict[str, Any]]] = {case: [] for case in sizes}
    for number in range(1 if quick else 3):
        for case, size in sizes.items():
            if case != "null" or number == 0:
                say(f"round {number + 1}: {case}")
                command = (sys.executable, __file__, "--case", case, "--n", str(size))
                rounds[case].append(child(*command))
    own = middle(rounds["heldout"], "ms")
    emit(f"heldout: CPU a rollout, {n} rollouts", own, "ms")
    for case, what in [
        ("verifiers", "verifiers 0.4.0: CPU a rollout, the same harness"),
        ("null", "verifiers 0.4.0: CPU a rollout, its null harness"),
    ]:
        value = middle(rounds[case], "ms")
        emit(what, value, "ms", ratio=value / own)


if __name__ == "__main__":
    main()
