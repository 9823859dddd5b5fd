"""Results as a data frame: one row per attempt, in dataset order.

Columns are `id`, `repeat`, `question`, `answer`, `target`, `extracted`, `reward`, `passed`, one
`metric.NAME` per metric, `prompt_tokens`, `completion_tokens`, `seconds`, `truncated`, `error`, and
one `metadata.KEY` per key of the samples. What an attempt does not have is missing: an errored one
has no reward, rather than 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from heldout.errors import InvalidInput
from heldout.store.columns import METADATA, METRIC, as_text
from heldout.types import EvalResult, Trajectory

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from heldout.store.report import EvalReport

Columns = dict[str, list[Any]]


def to_pandas(report: EvalReport) -> pandas.DataFrame:
    """Make a pandas DataFrame of a report.

    Args:
        report: The report.

    Returns:
        A row per attempt.

    Raises:
        InvalidInput: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise _missing("pandas") from None
    return pandas.DataFrame(make_columns(report))


def to_polars(report: EvalReport) -> polars.DataFrame:
    """Make a polars DataFrame of a report.

    Args:
        report: The report.

    Returns:
        A row per attempt.

    Raises:
        InvalidInput: polars is not installed.
    """
    try:
        import polars
    except ImportError:
        raise _missing("polars") from None
    return polars.DataFrame(make_columns(report), infer_schema_length=None)


def to_arrow(report: EvalReport) -> pyarrow.Table:
    """Make a pyarrow Table of a report.

    Args:
        report: The report.

    Returns:
        A row per attempt.

    Raises:
        InvalidInput: pyarrow is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise _missing("pyarrow") from None
    return pyarrow.table(make_columns(report))


def _missing(package: str) -> InvalidInput:
    return InvalidInput(f"a frame of {package} needs the package: pip install {package}")


def make_columns(report: EvalReport) -> Columns:
    """Put the results of a report into columns.

    Args:
        report: The report.

    Returns:
        The values by column, those of a column of one type: texts, where they are of several.
    """
    fixed: dict[str, Callable[[EvalResult], Any]] = {
        "id": lambda r: r.sample_id,
        "repeat": lambda r: r.repeat,
        "question": lambda r: question_of(r.trajectory),
        "answer": lambda r: r.trajectory.answer if r.trajectory.last_turn is not None else None,
        "target": lambda r: r.sample.ground_truth,
        "extracted": extracted_of,
        "reward": lambda r: r.score.reward if r.ok else None,
        "passed": lambda r: r.score.reward >= report.pass_threshold if r.ok else None,
        "prompt_tokens": lambda r: r.trajectory.usage and r.trajectory.usage.prompt_tokens,
        "completion_tokens": lambda r: r.trajectory.usage and r.trajectory.usage.completion_tokens,
        "seconds": lambda r: r.trajectory.timing and r.trajectory.timing.seconds,
        "truncated": lambda r: r.trajectory.stop.truncated,
        "error": lambda r: r.error,
    }
    columns: Columns = {name: [] for name in fixed}
    metrics: list[dict[str, float]] = []
    metadata: list[dict[str, Any]] = []
    for result in report.results:  # decoded one by one: only what a column takes is held
        for name, read in fixed.items():
            columns[name].append(read(result))
        metrics.append({metric.name: metric.value for metric in result.score.metrics})
        metadata.append(result.metadata)
    named = {METRIC + name: [row.get(name) for row in metrics] for name in _keys(metrics)}
    keyed = {METADATA + key: [row.get(key) for row in metadata] for key in _keys(metadata)}
    before = [*fixed][: [*fixed].index("prompt_tokens")]
    ordered = {name: columns.pop(name) for name in before} | named | columns | keyed
    return {name: _of_one_type(values) for name, values in ordered.items()}


def _keys(rows: list[dict[str, Any]]) -> list[str]:
    return [*dict.fromkeys(key for row in rows for key in row)]


def _of_one_type(values: list[Any]) -> list[Any]:
    """Turn values of several types, or of types that a frame has no column for, into texts."""
    types = {type(value) for value in values if value is not None}
    if types <= {int, float} or (len(types) == 1 and types <= {str, bool}):
        return values
    return [as_text(value, mixed=False) for value in values]


def question_of(trajectory: Trajectory) -> str | None:
    """Give what the model was asked.

    Args:
        trajectory: The conversation.

    Returns:
        The text of the messages before the first of the model, without those of the system; None
        where there are none.
    """
    turns = trajectory.model_turns
    places = [i for i, message in enumerate(trajectory.messages) if message.role == "assistant"]
    first = [*(places if turns is None else turns), len(trajectory.messages)][0]
    opening = [m.text for m in trajectory.messages[:first] if m.role != "system"]
    return "\n\n".join(opening) or None


def extracted_of(result: EvalResult) -> str | None:
    """Give what a grader read in an answer.

    Args:
        result: A result.

    Returns:
        The text that the first grader with one extracted, those that count before those that are
        only tracked; None where there is none.
    """
    for metric in sorted(result.score.metrics, key=lambda metric: metric.weight == 0):
        extracted = metric.metadata.get("extracted")
        if extracted is not None:
            return str(extracted)
    return None


__all__ = ["make_columns", "to_arrow", "to_pandas", "to_polars"]
