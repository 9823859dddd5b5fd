"""CallableLogger: results to a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heldout.errors import InvalidInput
from heldout.training.loggers import Fields
from heldout.training.loggers.rows import Row


class CallableLogger:
    """`fn(name, step, fields)` with the fields as all loggers have them: `reward`, not
    `eval_reward`, finite, none of them None."""

    def __init__(self, fn: Callable[[str, int, dict[str, float | int | str]], object]) -> None:
        if not callable(fn):
            raise InvalidInput(f"fn is a function (name, step, fields), got {fn!r:.100}")
        self._fn: Callable[..., Any] = fn

    def log(self, name: str, step: int, fields: Fields) -> None:
        row = Row.of(name, step, fields)
        self._fn(row.name, row.step, row.values)

    def close(self) -> None:
        pass
