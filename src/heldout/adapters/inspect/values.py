"""Inspect's scores as heldout's, strictly: what has no number is an error, never 0.

Inspect's own `value_to_float` makes 0.0 of whatever it cannot read, with a warning. Where a metric
of the task has a rule of its own, what that made of a value is stored beside it (metrics.py).

Scores are read from a trajectory's outcome, in which they are stored as the scorers gave them. So
a saved run can be scored again without Inspect.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from heldout.errors import ScoringFailed
from heldout.types import Metric, Score, Trajectory

LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Correct, incorrect, partial, and no answer."""
WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
MODEL_REASONS = frozenset({"refusal", "no_response", "invalid_response_format"})
"""Why a score has no value where the model is to blame: it counts as no answer. For every other
reason it is an error."""


def score_outcome(trajectory: Trajectory, *, reward: str) -> Score:
    """Return the scores that Inspect's scorers gave.

    Args:
        trajectory: What the policy did; its outcome has the scores.
        reward: The metric that is the reward: SCORER, or SCORER.KEY where its value is a dict.

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
    about = {"extracted": given["answer"], "explanation": given["explanation"]}
    about = {key: text for key, text in about.items() if text is not None}
    unanswered = False
    numbers = given.get("numbers", {})
    parts = [*split_values(scorer, given["value"], required=reward)]
    if scorer in numbers and scorer not in dict(parts):  # one number of several values
        parts.append((scorer, given["value"]))
    for name, part in parts:
        own = numbers.get(name, {"value": part})
        try:
            if "problem" in own:
                raise ScoringFailed(own["problem"])
            number = to_number(own["value"], given["reason"])
        except ScoringFailed as problem:
            raise ScoringFailed(f"scorer {name}: {problem}") from None
        if number.no_answer and own["value"] != "N":
            about["reason"] = given["reason"]
        unanswered = unanswered or number.no_answer
        is_reward = name == reward
        kept = about if is_reward else {}
        yield Metric(name, number.value, float(is_reward), kept, rate=number.is_rate)
    yield Metric(f"{scorer}.noanswer", unanswered)


class ScoreNumber(NamedTuple):
    """A value of a score as a number."""

    value: float
    is_rate: bool
    """Whether it is 0, 1 or between by nature."""
    no_answer: bool = False
    """Whether the model gave no answer."""


def to_number(value: Any, reason: str | None = None) -> ScoreNumber:
    """Convert the value of a score.

    Args:
        value: One value: a letter (C, I, P, N), a number, a bool, or a text such as "yes" or "0.5".
        reason: Why the score is abnormal, where it says so.

    Raises:
        ScoringFailed: It has no number.
    """
    if isinstance(value, bool):
        return ScoreNumber(float(value), True)
    if isinstance(value, str):
        if value in LETTERS:
            return ScoreNumber(LETTERS[value], True, value == "N")
        if value.lower() in WORDS:
            return ScoreNumber(WORDS[value.lower()], True)
        if value.isascii() and value.strip() == value and "_" not in value:
            try:
                value = float(value)
            except ValueError:
                pass
    if isinstance(value, int | float):
        if math.isfinite(value):
            return ScoreNumber(float(value), False)
        if math.isnan(value):
            if reason in MODEL_REASONS:
                return ScoreNumber(0.0, True, True)
            raise ScoringFailed(f"unscored: {reason or 'the scorer gives no reason'}")
    raise ScoringFailed(f"the score is {value!r:.100}, which is no number")


def split_values(name: str, value: Any, required: str | None = None) -> Iterator[tuple[str, Any]]:
    """Yield a score's values by name: NAME, or NAME.KEY for each value of a dict or list.

    None is left out, as what does not apply to a sample, unless it is the one that is required.
    """
    if isinstance(value, Mapping):
        parts: Any = value.items()
    elif isinstance(value, Sequence) and not isinstance(value, str):
        parts = enumerate(value)
    else:
        yield name, value
        return
    for key, part in parts:
        if part is not None or f"{name}.{key}" == required:
            yield f"{name}.{key}", part
