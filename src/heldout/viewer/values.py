"""Plain values that several pages have, and texts in the digits and words of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from heldout._core.format import cut_middle, interval, number
from heldout.errors import HeldoutError
from heldout.store.columns import as_text
from heldout.types import EvalResult

Plain = dict[str, Any]
LONGEST_CELL = 300


class UnknownRun(HeldoutError):
    """There is no run, or no sample, of this name."""


def numbers(summary: Mapping[str, Any]) -> Plain:
    """Give a mean with all that belongs to it: both readings, intervals and counts.

    Charts draw the numbers; what is read is `text`, in the digits of the command line.
    """
    keys = {
        "n": "n",
        "mean": "mean",
        "low": "ci_low",
        "high": "ci_high",
        "errors": "n_errors",
        "mean_scored": "mean_scored",
        "low_scored": "ci_scored_low",
        "high_scored": "ci_scored_high",
        "pass_rate": "pass_rate",
        "min": "min",
        "max": "max",
    }
    values = {name: summary.get(key) for name, key in keys.items()}
    text = {name: number(values[name]) for name in ("mean", "mean_scored", "pass_rate")}
    text["interval"] = interval(values["low"], values["high"])
    text["interval_scored"] = interval(values["low_scored"], values["high_scored"])
    return {**values, "text": text}


def reward_values(result: EvalResult) -> Plain:
    """Give the reward of a result; a dash where it errored."""
    reward = result.score.reward if result.ok else None
    return {"reward": reward, "text": {"reward": number(reward)}}


def extracted(result: EvalResult) -> Plain:
    """Give what the first grader that extracts anything extracted."""
    for metric in result.score.metrics:
        if "extracted" in metric.metadata:
            extracted = metric.metadata["extracted"]
            return {"extracted": None if extracted is None else cut_text(str(extracted))}
    return {}


def question_text(result: EvalResult, longest: int) -> str | None:
    """Return what a sample asks; its input, where there is no conversation."""
    text = result.question or as_text(result.sample.input)
    return text and cut_middle(" ".join(text.split()), longest)


def filter_text(value: Any) -> str:
    """A slice's value as a filter has to have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def text_or_none(value: Any) -> str | None:
    """Return a value as text: JSON where it is none."""
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def cut_text(text: str | None) -> str | None:
    """Shorten a text for a cell of a table."""
    return text if text is None or len(text) <= LONGEST_CELL else text[:LONGEST_CELL] + "…"
