"""Where results of evals go that finish late, and out of order.

An eval of step 30 may finish when the trainer is at step 50, after that of step 40. A sink puts
each result at its own step, and costs the trainer none of its points. A skip is to be seen, and is
never a score. Each tracker needs its own way; the file of each says which, and why.

rows          a result as every sink sees it: numbers, texts, and nothing else
guarded       Sinks: several of them, none of which holds up training or another
lane          one of those: its queue, its thread, and what it got
function      CallableSink: a function of your own
jsonl         JsonlSink: a file, a line a result, on the disk when it returns
stdout        StdoutSink: a line to read
wandb         WandbSink: a run of its own; WandbRowSink: inside the trainer's rows
trackio       TrackioSink: in the trainer's run
tensorboard   TensorboardSink: a run of its own, beside the trainer's
mlflow        MlflowSink: in the trainer's run

    sinks = Sinks(JsonlSink("outputs/evals.jsonl"), WandbSink())
    sinks.log("rl_eval", 30, {"eval_reward": 0.75, "eval_n": 24, "lag_steps": 20})
    print(sinks.close(timeout=30))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from heldout.lazy import lazy

if TYPE_CHECKING:
    from heldout.training.sinks.function import CallableSink
    from heldout.training.sinks.guarded import SinkReport, Sinks, SinksReport
    from heldout.training.sinks.jsonl import JsonlSink, Logged, read_logged
    from heldout.training.sinks.mlflow import MlflowSink
    from heldout.training.sinks.rows import Row
    from heldout.training.sinks.stdout import StdoutSink
    from heldout.training.sinks.tensorboard import TensorboardSink
    from heldout.training.sinks.trackio import TrackioSink
    from heldout.training.sinks.wandb import WandbRowSink, WandbSink

Fields = Mapping[str, float | int | bool | str | None]
"""A point as `heartbeat_fields` gives it, and whatever else is to be logged of it."""


class Sink(Protocol):
    """Where results go."""

    def log(self, name: str, step: int, fields: Fields) -> None:
        """One result or skip of the eval `name`, at its own step. Steps come in any order, and
        from one thread. May raise, and may take its time: `Sinks` sees to both."""

    def close(self) -> None:
        """Everything is where it belongs when this returns. Called once, after the last result."""


_HOME = {
    "heldout.training.sinks.function": ("CallableSink",),
    "heldout.training.sinks.guarded": ("SinkReport", "Sinks", "SinksReport"),
    "heldout.training.sinks.jsonl": ("JsonlSink", "Logged", "read_logged"),
    "heldout.training.sinks.mlflow": ("MlflowSink",),
    "heldout.training.sinks.rows": ("Row",),
    "heldout.training.sinks.stdout": ("StdoutSink",),
    "heldout.training.sinks.tensorboard": ("TensorboardSink",),
    "heldout.training.sinks.trackio": ("TrackioSink",),
    "heldout.training.sinks.wandb": ("WandbRowSink", "WandbSink"),
}
__all__ = [
    "CallableSink",
    "Fields",
    "JsonlSink",
    "Logged",
    "MlflowSink",
    "Row",
    "Sink",
    "SinkReport",
    "Sinks",
    "SinksReport",
    "StdoutSink",
    "TensorboardSink",
    "TrackioSink",
    "WandbRowSink",
    "WandbSink",
    "read_logged",
]


__getattr__, __dir__ = lazy(__name__, _HOME)
