"""An eval whose samples say the same key in numbers and in words."""

from heldout import EvalConfig, Sample, Trajectory

SIZES = (1, 10, 2.5, "2", "ten", True, None, 10)


def load_dataset() -> list[Sample]:
    return [
        Sample(f"word-{i}", {"question": f"Say word {i}."}, f"word {i}", {"size": size})
        for i, size in enumerate(SIZES)
    ]


def score_fn(trajectory: Trajectory, sample: Sample) -> bool:
    return trajectory.answer == sample.ground_truth


def answer(messages: list) -> str:
    number = int(messages[-1].text.removesuffix(".").split()[-1])
    return "nothing" if number % 3 == 0 else f"word {number}"


config = EvalConfig(endpoint=answer)
