"""Capitals of a hundred countries: `heldout run heldout.examples.capitals`."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

from heldout import Sample, Sampling, Trajectory, base_config
from heldout.datasets import read_jsonl, to_samples

config = replace(
    base_config,
    endpoint="smollm2",
    max_concurrent=50,
    sampling=Sampling(max_tokens=32),
    timeout=None,  # fifty answers at a time take a busy CPU minutes, and nothing else can hang
)


def load_dataset() -> list[Sample]:
    """Load the questions.

    Returns:
        A sample per country, with its difficulty as metadata.
    """
    rows = read_jsonl(Path(__file__).with_name("capitals.jsonl"))
    return to_samples(rows, ground_truth="answer", metadata=["difficulty"])


def score_fn(trajectory: Trajectory, sample: Sample) -> bool:
    """Return whether an answer names the capital, with or without its accents.

    Args:
        trajectory: The conversation.
        sample: The question, with the capital as its ground truth.

    Returns:
        Whether it does.
    """
    return fold(sample.ground_truth) in fold(trajectory.answer)


def fold(text: str) -> str:
    """Drop accents, the form of apostrophes, and case.

    Args:
        text: A text, such as "Bogotá".

    Returns:
        The text to compare by, such as "bogota".
    """
    letters = unicodedata.normalize("NFKD", text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
    return "".join(letter for letter in letters if not unicodedata.combining(letter)).casefold()
