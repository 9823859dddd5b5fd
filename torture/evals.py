"""An eval to be killed: what it answers is a function of the question, and it takes a moment."""

from __future__ import annotations

import time
from typing import Any

import anyio

from heldout import EvalConfig, Message, Metric, Sample, Score, Trajectory

COUNT = 40
SLOW = 1000
"""Samples that take a moment; further ones take none."""


async def answer(messages: list[Message]) -> str:
    """The last word, or another one for each seventh."""
    word = messages[-1].text.split()[-1]
    number = int(word.removeprefix("word"))
    if number < SLOW:
        await anyio.sleep(0.004 * (1 + number % 5) * (30 if "slowly" in messages[-1].text else 1))
    return "another" if number % 7 == 3 else word


def load_dataset(count: int = COUNT, how: str = "") -> list[Sample]:
    return [
        Sample(f"q{i}", {"question": f"say {how} word{i}"}, f"word{i}", {"topic": f"topic {i % 3}"})
        for i in range(count)
    ]


def score_fn(trajectory: Trajectory, sample: Sample) -> Score:
    right = trajectory.answer == sample.ground_truth
    return Score((Metric("right", right, weight=1.0), Metric("length", len(trajectory.answer))))


def slow_score(trajectory: Trajectory, sample: Sample) -> Score:
    time.sleep(0.004)
    return score_fn(trajectory, sample)


def act(observations: Any) -> Any:
    """Push the pole of CartPole to the side that it leans to."""
    return (observations[:, 2] + observations[:, 3] > 0).astype(int)


config = EvalConfig(endpoint=answer, max_concurrent=4, repeats=2)
