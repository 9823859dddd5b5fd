"""Where results of evals go: your function, standard output, or a tracker.

A background eval of step 30 may finish when training is at step 50. A logger records each result
at its own step, without costing the trainer any of its points. A skip is shown, never as a score.

base          Loggers: a thread and a bounded queue for each logger; CallableLogger, StdoutLogger
wandb         WandbLogger: in a second run, in the trainer's group
trackio       TrackioLogger: in the trainer's run
tensorboard   TensorboardLogger: in a run next to the trainer's
mlflow        MlflowLogger: in the trainer's run

    dispatcher = AsyncEvalDispatcher(loggers=[StdoutLogger(), WandbLogger()])
"""

from heldout.training.loggers.base import (
    CallableLogger,
    Fields,
    Logger,
    LoggerReport,
    Loggers,
    LoggersReport,
    LogsMetrics,
    MetricsLogger,
    StdoutLogger,
)
from heldout.training.loggers.mlflow import MlflowLogger
from heldout.training.loggers.tensorboard import TensorboardLogger
from heldout.training.loggers.trackio import TrackioLogger
from heldout.training.loggers.wandb import WandbLogger

__all__ = [
    "CallableLogger",
    "Fields",
    "Logger",
    "LoggerReport",
    "Loggers",
    "LoggersReport",
    "LogsMetrics",
    "MetricsLogger",
    "MlflowLogger",
    "StdoutLogger",
    "TensorboardLogger",
    "TrackioLogger",
    "WandbLogger",
]
