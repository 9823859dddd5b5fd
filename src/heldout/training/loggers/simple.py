"""CallableLogger and StdoutLogger: results to a function, or as lines to read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

from heldout.errors import InvalidInput
from heldout.training.loggers.base import Fields, one_line, split_fields

_FIRST = ("reward", "reward_ci_low", "reward_ci_high", "pass_rate", "n")


class CallableLogger:
    """Calls a function with each result.

    Args:
        fn: Called as `fn(name, step, fields)`, with finite numbers and texts: `reward`, `n`…

    Raises:
        InvalidInput: `fn` is not callable.
    """

    def __init__(self, fn: Callable[[str, int, dict[str, float | int | str]], object]) -> None:
        if not callable(fn):
            raise InvalidInput(f"fn is a function (name, step, fields), got {fn!r:.100}")
        self._fn = fn

    def log(self, name: str, step: int, fields: Fields) -> None:
        """Call the function."""
        numbers, texts = split_fields(fields)
        self._fn(name, step, {**numbers, **texts})

    def close(self) -> None:
        """Nothing to do."""


class StdoutLogger:
    """Prints `rl_eval step 30: reward 0.75, n 24` or `rl_eval step 40: SKIPPED, reason: …`.

    Args:
        stream: A text stream; None is what `sys.stdout` is when a result comes.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def log(self, name: str, step: int, fields: Fields) -> None:
        """Print one line, in one write: the trainer prints, too."""
        numbers, texts = split_fields(fields)
        parts = ["SKIPPED"] if numbers.pop("skipped", None) else []
        first = {key: numbers[key] for key in _FIRST if key in numbers}
        parts += [f"{key} {value:.6g}" for key, value in (first | numbers).items()]
        parts += [f"{key}: {text}" for key, text in texts.items()]
        line = one_line(f"{name} step {step}: {', '.join(parts) or 'nothing'}")
        stream = self._stream or sys.stdout
        stream.write(f"{line}\n")
        stream.flush()

    def close(self) -> None:
        """Nothing to do: the stream is the caller's."""
