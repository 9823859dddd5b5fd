"""StdoutLogger: a line to read for each result."""

from __future__ import annotations

import sys
from typing import TextIO

from heldout.training.loggers import Fields
from heldout.training.loggers.rows import Row, one_line

_FIRST = ("reward", "reward_ci_low", "reward_ci_high", "pass_rate", "n")


class StdoutLogger:
    """`stream` is where to; None is standard output, whatever it is by then.

    A reason may quote a model's text, so what a terminal would obey is spelled out.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def log(self, name: str, step: int, fields: Fields) -> None:
        stream = self._stream or sys.stdout
        line = as_line(Row.of(name, step, fields)) + "\n"
        encoding = getattr(stream, "encoding", None) or "utf-8"
        # One write: the trainer prints, too.
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()

    def close(self) -> None:
        pass


def as_line(row: Row) -> str:
    """`rl_eval step 30: reward 0.75, n 24`, or `rl_eval step 30: SKIPPED, reason: no model`."""
    numbers = {key: row.numbers[key] for key in _FIRST if key in row.numbers} | row.numbers
    said = ["SKIPPED"] if numbers.pop("skipped", None) else []
    said += [f"{key} {value:.6g}" for key, value in numbers.items()]
    said += [f"{key}: {value}" for key, value in row.texts.items()]
    return one_line(f"{row.name} step {row.step}: {', '.join(said) or 'nothing'}")
