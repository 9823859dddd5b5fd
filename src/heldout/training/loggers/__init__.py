"""Where results of evals go that finish late, and out of order.

An eval of step 30 may finish when the trainer is at step 50, after that of step 40. A logger puts
each result at its own step, and costs the trainer none of its points. A skip is to be seen, and is
never a score. Each tracker needs its own way; the file of each says which, and why.

rows          a result as every logger sees it: numbers, texts, and nothing else
guarded       Loggers: several of them, none of which holds up training or another
lane          one of those: its queue, its thread, and what it got
function      CallableLogger: a function of your own
jsonl         JsonlLogger: a file, a line a result, on the disk when it returns
stdout        StdoutLogger: a line to read
wandb         WandbLogger: a run of its own; WandbRowLogger: inside the trainer's rows
trackio       TrackioLogger: in the trainer's run
tensorboard   TensorboardLogger: a run of its own, beside the trainer's
mlflow        MlflowLogger: in the trainer's run

    loggers = Loggers(JsonlLogger("outputs/evals.jsonl"), WandbLogger())
    loggers.log("rl_eval", 30, {"eval_reward": 0.75, "eval_n": 24, "lag_steps": 20})
    print(loggers.close(timeout=30))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from heldout.lazy import lazy

if TYPE_CHECKING:
    from heldout.training.loggers.function import CallableLogger
    from heldout.training.loggers.guarded import LoggerReport, Loggers, LoggersReport
    from heldout.training.loggers.jsonl import JsonlLogger, Logged, read_logged
    from heldout.training.loggers.mlflow import MlflowLogger
    from heldout.training.loggers.rows import Row
    from heldout.training.loggers.stdout import StdoutLogger
    from heldout.training.loggers.tensorboard import TensorboardLogger
    from heldout.training.loggers.trackio import TrackioLogger
    from heldout.training.loggers.wandb import WandbLogger, WandbRowLogger

Fields = Mapping[str, float | int | bool | str | None]
"""A point as `heartbeat_fields` gives it, and whatever else is to be logged of it."""


class Logger(Protocol):
    """Where results go."""

    def log(self, name: str, step: int, fields: Fields) -> None:
        """One result or skip of the eval `name`, at its own step. Steps come in any order, and
        from one thread. May raise, and may take its time: `Loggers` sees to both."""

    def close(self) -> None:
        """Everything is where it belongs when this returns. Called once, after the last result."""


_HOME = {
    "heldout.training.loggers.function": ("CallableLogger",),
    "heldout.training.loggers.guarded": ("LoggerReport", "Loggers", "LoggersReport"),
    "heldout.training.loggers.jsonl": ("JsonlLogger", "Logged", "read_logged"),
    "heldout.training.loggers.mlflow": ("MlflowLogger",),
    "heldout.training.loggers.rows": ("Row",),
    "heldout.training.loggers.stdout": ("StdoutLogger",),
    "heldout.training.loggers.tensorboard": ("TensorboardLogger",),
    "heldout.training.loggers.trackio": ("TrackioLogger",),
    "heldout.training.loggers.wandb": ("WandbRowLogger", "WandbLogger"),
}
__all__ = [
    "CallableLogger",
    "Fields",
    "JsonlLogger",
    "Logged",
    "Logger",
    "LoggerReport",
    "Loggers",
    "LoggersReport",
    "MlflowLogger",
    "Row",
    "StdoutLogger",
    "TensorboardLogger",
    "TrackioLogger",
    "WandbLogger",
    "WandbRowLogger",
    "read_logged",
]


__getattr__, __dir__ = lazy(__name__, _HOME)
