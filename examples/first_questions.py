"""A hundred short questions for a small model. The eval that `make demo` runs.

heldout run examples/first_questions.py
heldout run examples/first_questions.py --endpoint openai:gpt-4o-mini --set experiment_name=4o
"""

import re
from dataclasses import replace
from pathlib import Path

import trio

from heldout import Metric, Sample, Sampling, Score, Trajectory, base_config, evaluate
from heldout.datasets import load_jsonl
from heldout.types import Message

config = replace(
    base_config,
    experiment_name="first_questions",
    max_concurrent=100,
    sampling=Sampling(max_tokens=32),
)


def load_dataset() -> list[Sample]:
    return load_jsonl(
        Path(__file__).parent / "questions.jsonl",
        ground_truth="answer",
        metadata=["difficulty", "topic", "kind"],
    )


def prepare_messages(sample: Sample) -> list[Message]:
    return [
        Message("system", "Answer as briefly as you can: a word, a name or a number."),
        Message("user", sample.input["question"]),
    ]


def score_fn(trajectory: Trajectory, sample: Sample) -> Score:
    answer = trajectory.answer
    return Score(
        (
            Metric("correct", is_correct(answer, sample), weight=1.0),
            Metric("words", len(answer.split())),
        )
    )


def is_correct(answer: str, sample: Sample) -> bool:
    truth = sample.ground_truth
    match sample.metadata["kind"]:
        case "number":
            # The last number: replies like to repeat the question's own first.
            numbers = re.findall(r"-?\d+(?:\.\d+)?", answer.replace(",", ""))
            return bool(numbers) and float(numbers[-1]) == float(truth)
        case "choice":
            letters = re.findall(r"\b([A-D])\b", answer)
            return bool(letters) and letters[-1] == truth
        case "yes_no":
            words = re.findall(r"\b(yes|no)\b", answer.lower())
            return bool(words) and words[0] == truth
        case _:
            accepted = [truth, *sample.input["accept"]]
            return any(re.search(rf"\b{re.escape(a)}\b", answer, re.IGNORECASE) for a in accepted)


if __name__ == "__main__":
    report = trio.run(evaluate, load_dataset(), config, score_fn, prepare_messages)
    print(f"mean {report.summary['mean']:.3f}, saved to {report.path}")
