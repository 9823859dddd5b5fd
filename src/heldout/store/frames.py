"""Results as a data frame: one row per attempt, in dataset order.

Columns are `sample_id`, `repeat`, `question`, `answer`, `ground_truth`, `extracted`, `reward`,
`passed`, one `metric.NAME` per metric, `prompt_tokens`, `completion_tokens`, `seconds`,
`truncated`, `error`, and one `metadata.KEY` per key of the samples. What an attempt does not have
is missing: an errored one has no reward, rather than 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from heldout._core.extras import install_hint
from heldout.errors import InvalidInput
from heldout.store.columns import METADATA, METRIC, as_text
from heldout.types import EvalResult

FrameColumns = dict[str, list[Any]]


def import_package(name: str) -> Any:
    """Import a package that has frames; InvalidInput, which says how to install it, without it."""
    try:
        return import_module(name)
    except ImportError:
        hint = install_hint("frames", only=name)
        raise InvalidInput(f"a frame of {name} needs the package: {hint}") from None


def make_columns(results: Iterable[EvalResult], threshold: float | None) -> FrameColumns:
    """Put results into columns of one type each: texts, where one has several.

    Rewards from the threshold on have passed; None says nothing of that.
    """
    opening: dict[str, Callable[[EvalResult], Any]] = {
        "sample_id": lambda r: r.sample_id,
        "repeat": lambda r: r.repeat,
        "question": lambda r: r.question or None,
        "answer": lambda r: r.trajectory.answer if r.trajectory.last_turn is not None else None,
        "ground_truth": lambda r: r.sample.ground_truth,
        "extracted": extracted_of,
        "reward": lambda r: r.score.reward if r.ok else None,
        "passed": lambda r: r.score.reward >= threshold if r.ok and threshold is not None else None,
    }
    closing: dict[str, Callable[[EvalResult], Any]] = {
        "prompt_tokens": lambda r: r.trajectory.usage and r.trajectory.usage.prompt_tokens,
        "completion_tokens": lambda r: r.trajectory.usage and r.trajectory.usage.completion_tokens,
        "seconds": lambda r: r.trajectory.timing and r.trajectory.timing.seconds,
        "truncated": lambda r: r.trajectory.stop.truncated,
        "error": lambda r: r.error,
    }
    read = opening | closing
    values: FrameColumns = {name: [] for name in read}
    metrics: list[dict[str, float]] = []
    metadata: list[dict[str, Any]] = []
    for result in results:  # decoded one by one: only what a column takes is held
        for name, read_value in read.items():
            values[name].append(read_value(result))
        metrics.append({metric.name: metric.value for metric in result.score.metrics})
        metadata.append(result.metadata)
    columns = {name: values[name] for name in opening}
    columns |= {METRIC + name: [row.get(name) for row in metrics] for name in _keys(metrics)}
    columns |= {name: values[name] for name in closing}
    columns |= {METADATA + key: [row.get(key) for row in metadata] for key in _keys(metadata)}
    return {name: _of_one_type(column) for name, column in columns.items()}


def _keys(rows: list[dict[str, Any]]) -> list[str]:
    return [*dict.fromkeys(key for row in rows for key in row)]


def _of_one_type(values: list[Any]) -> list[Any]:
    """Turn values of several types, or of types that a frame has no column for, into texts."""
    types = {type(value) for value in values if value is not None}
    if types <= {int, float} or (len(types) == 1 and types <= {str, bool}):
        return values
    return [as_text(value) for value in values]


def extracted_of(result: EvalResult) -> str | None:
    """Return what the first grader that reports it extracted; graders with a weight come first."""
    for metric in sorted(result.score.metrics, key=lambda metric: metric.weight == 0):
        extracted = metric.metadata.get("extracted")
        if extracted is not None:
            return str(extracted)
    return None
