"""Inspect's scores as heldout's, strictly: what Inspect counts as 0 with a warning is an error.

Scores are read from a trajectory's outcome, in which they are stored as the scorers gave them. So
a saved run can be scored again without Inspect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from heldout.errors import ScoringFailed
from heldout.types import Metric, Sample, Score, Trajectory

GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Correct, partial, incorrect, no answer."""
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
THE_MODELS = ("refusal", "no_response", "invalid_response_format")
"""Reasons of a score without a value that are the evaluated model's."""


def score_outcome(trajectory: Trajectory, sample: Sample, *, reward: str, task: str) -> Score:
    """Return the scores that Inspect's scorers gave.

    Args:
        trajectory: What the policy did; its outcome has the scores.
        sample: The sample.
        reward: The metric that is the reward: SCORER, or SCORER.KEY where its value is a dict.
        task: Fingerprint of the task, whose results belong together.

    Raises:
        ScoringFailed: A scorer gave no score, or one that is no number.
    """
    outcome = trajectory.outcome
    if outcome is None or "scores" not in outcome:
        raise ScoringFailed("this trajectory holds no scores of Inspect's")
    metrics = [
        metric
        for scorer, given in outcome["scores"].items()
        for metric in _read_score(scorer, given, reward)
    ]
    if reward not in [metric.name for metric in metrics]:
        names = ", ".join(metric.name for metric in metrics)
        raise ScoringFailed(
            f"there is no score {reward!r} to be the reward; there are {names}. Name one: reward="
        )
    return Score(tuple(metrics))


def _read_score(scorer: str, given: Mapping[str, Any] | None, reward: str) -> Iterator[Metric]:
    if given is None:
        raise ScoringFailed(f"scorer {scorer} gave no score")
    value = given["value"]
    about = {"extracted": given["answer"], "explanation": given["explanation"]}
    about = {key: text for key, text in about.items() if text is not None}
    unanswered = value == "N" or (isinstance(value, Mapping) and "N" in value.values())
    if value == "nan":
        reason = given["reason"]
        if reason not in THE_MODELS:
            raise ScoringFailed(f"scorer {scorer} could not score: {reason or 'no reason given'}")
        unanswered, value, about["reason"] = True, 0.0, reason
    if isinstance(value, Mapping):
        for key, part in value.items():
            name = f"{scorer}.{key}"
            if part is not None or name == reward:  # None: it does not apply to this sample
                yield _metric(name, part, reward, about)
    else:
        yield _metric(scorer, value, reward, about)
    yield Metric(f"{scorer}.noanswer", unanswered)


def _metric(name: str, value: Any, reward: str, about: dict[str, Any]) -> Metric:
    number = to_number(value)
    if number is None:
        raise ScoringFailed(
            f"scorer {name} gave {value!r:.100}, which is no number; Inspect would count it as 0"
        )
    is_rate = isinstance(value, str | bool) and 0 <= number <= 1
    is_reward = name == reward
    return Metric(name, number, float(is_reward), about if is_reward else {}, rate=is_rate)


def to_number(value: Any) -> float | None:
    """Read a value as Inspect's `value_to_float` does; None for what it makes 0 with a warning."""
    if isinstance(value, str):
        if value in GRADES:
            return GRADES[value]
        if value.lower() in _WORDS:
            return _WORDS[value.lower()]
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None
