"""An eval that is stopped when a claim about it is settled."""

from pathlib import Path

import anyio

from heldout import EvalConfig, Sample, Trajectory

HOLD = Path("hold")
"""While it is there, one answer does not come."""


def load_dataset() -> list[Sample]:
    return [Sample(f"q{i}", {"question": f"{i}?"}, "yes", {"half": i % 2}) for i in range(24)]


def score_fn(trajectory: Trajectory, sample: Sample) -> bool:
    return trajectory.answer == sample.ground_truth


async def answer(messages: list) -> str:
    number = int(messages[-1].text.removesuffix("?"))
    while number == 1 and HOLD.exists():
        await anyio.sleep(0.01)
    return "no" if number % 12 == 0 else "yes"


config = EvalConfig(endpoint=answer, max_concurrent=4)
