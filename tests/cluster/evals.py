"""Functions of evals whose items run on the workers of a cluster."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import anyio
import neighbour  # in the same folder: it is sent with this file

from heldout import EvalDefinition, Message, Metric, Reply, Sample, Score, Trajectory
from heldout.errors import FatalEndpointError


def make_samples(count: int, **metadata: Any) -> list[Sample]:
    return [
        Sample(f"s{i}", {"question": f"what is {i}?"}, str(i), {**metadata, "half": i % 2})
        for i in range(count)
    ]


async def answer(messages: list[Message]) -> str:
    return neighbour.last_word(messages[-1].text)


def exact(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("correct", trajectory.answer == sample.ground_truth, weight=1.0),))


rewards: dict[str, float] = {}


def look_up(trajectory: Trajectory, sample: Sample) -> float:
    return rewards.get(sample.id, 0.0)


async def slow_answer(messages: list[Message]) -> str:
    await anyio.sleep(0.02)
    return neighbour.last_word(messages[-1].text)


def _log(sample: Sample, event: str) -> None:
    """Append to the file that a sample names: one write, so that lines of processes never mix."""
    fd = os.open(sample.metadata["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{event} {sample.id} {os.getpid()}\n".encode())
    os.close(fd)


class Logged:
    """An environment that logs when it is opened, answered and closed."""

    tools = ()

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def opening(self) -> list[Message]:
        _log(self._sample, "open")
        return []

    def reply(self, messages: tuple[Message, ...]) -> Reply:
        return Reply(done=True)

    def close(self) -> None:
        _log(self._sample, "close")


def logged(sample: Sample) -> Logged:
    return Logged(sample)


async def met(sample: Sample) -> Logged:
    """Wait, with the environment open, until three workers have opened one."""
    environment = Logged(sample)
    environment.opening()
    log = Path(sample.metadata["log"])
    while len({line.split()[2] for line in log.read_text().splitlines()}) < 3:
        await anyio.sleep(0.01)
    environment.opening = list
    return environment


async def deadly_answer(messages: list[Message]) -> str:
    """Kills its process when it is asked for 3."""
    number = neighbour.last_word(messages[-1].text)
    await anyio.sleep(0.02)
    if number == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    return number


async def endless_answer(messages: list[Message]) -> str:
    await anyio.sleep(600)
    return ""


async def late_answer(messages: list[Message]) -> str:
    """Never answers when it is asked for 1."""
    number = neighbour.last_word(messages[-1].text)
    if number == "1":
        await anyio.sleep(600)
    return number


async def refusing_answer(messages: list[Message]) -> str:
    raise FatalEndpointError("401: no such key")


def unstorable(trajectory: Trajectory, sample: Sample) -> Score:
    value: Any = object() if sample.ground_truth == "2" else "fine"
    return Score((Metric("correct", 1.0, weight=1.0, metadata={"value": value}),))


def make_score() -> Any:
    def score(trajectory: Trajectory, sample: Sample) -> Score:
        return Score(())

    return score


anonymous = make_score()
definition = EvalDefinition(make_samples(4), exact, lambda sample: [Message("user", "say 1")])


def wait_for(path: Path, lines: int) -> list[str]:
    """Wait until a log has so many lines."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        content = path.read_text().splitlines() if path.exists() else []
        if len(content) >= lines:
            return content
        time.sleep(0.02)
    raise AssertionError(f"{path} has not got {lines} lines")


def mixed(trajectory: Trajectory, sample: Sample) -> Score:
    """Right for most, an error for each tenth, another reward for odd ones."""
    number = int(sample.ground_truth)
    if number % 10 == 3:
        raise ValueError("no number of mine")
    return Score((Metric("correct", 0.1 * (number % 7), weight=1.0), Metric("n", number)))
