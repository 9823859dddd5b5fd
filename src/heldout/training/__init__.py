"""Evaluation in the middle of training: on a cadence, on the trainer's own weights, neutral.

periodic     PeriodicEval: cadence and heartbeats
trail        its points, those of earlier starts of the training included
run_eval     one measurement: the model, isolated, through `heldout.evaluate`
runners      how the policy is run and scored: `live_model`, `functions`
budget       how much evaluating the training can bear
spending     how much of its time training and evals have taken
curve        curve.jsonl: a line a point
looks        its points as tables, errors left out or counted
verdicts     improving, regressing, plateau or cannot tell
best         the best eval, corrected for having been picked
monitor      CurveMonitor: those, as the curve grows, and advice to stop
comparable   which points may stand side by side
home         the run directory, for all who write to it
settings     the HELDOUT_EVAL_* variables

dispatcher   AsyncEvalDispatcher: evals that overlap with the training that goes on
running      how each of them joins, runs and ends
pending      which are under way, in memory and on the disk
results      what an evaluator returns, as a point
evalloop     the event loop they run in
trainer_thread   what they need done in the thread that trains
installed    the dispatcher that is in use here
ending       the end of the process
beside       the evals of a `PeriodicEval` that are under way
shadows      copies of the weights, to be measured while training goes on
worker       EvalWorker: a process that evaluates
sinks        where results go: JSONL, wandb, trackio, TensorBoard, MLflow
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout.lazy import lazy

if TYPE_CHECKING:
    from heldout.training.best import Best, best_checkpoint
    from heldout.training.curve import (
        CurvePoint,
        Outcome,
        current_points,
        read_points,
    )
    from heldout.training.dispatcher import (
        AsyncEvalDispatcher,
        Drained,
        PendingEval,
        Scheduled,
        pending_evals,
    )
    from heldout.training.installed import (
        get_async_eval_dispatcher,
        set_async_eval_dispatcher,
        use_async_eval_dispatcher,
    )
    from heldout.training.monitor import (
        CurveMonitor,
        Judgement,
    )
    from heldout.training.periodic import (
        PeriodicEval,
    )
    from heldout.training.runners import (
        Request,
        Runner,
        functions,
        live_model,
        score_answer,
    )
    from heldout.training.settings import (
        Settings,
    )
    from heldout.training.shadows import (
        PolicyVersion,
        Shadows,
        WeightSnapshot,
    )
    from heldout.training.verdicts import StepVerdict
    from heldout.training.worker import (
        EvalWorker,
    )

_HOME = {
    "heldout.training.curve": ("CurvePoint", "Outcome", "current_points", "read_points"),
    "heldout.training.dispatcher": (
        "AsyncEvalDispatcher",
        "Drained",
        "PendingEval",
        "Scheduled",
        "pending_evals",
    ),
    "heldout.training.installed": (
        "get_async_eval_dispatcher",
        "set_async_eval_dispatcher",
        "use_async_eval_dispatcher",
    ),
    "heldout.training.monitor": ("CurveMonitor", "Judgement"),
    "heldout.training.periodic": ("PeriodicEval",),
    "heldout.training.runners": ("Request", "Runner", "functions", "live_model", "score_answer"),
    "heldout.training.settings": ("Settings",),
    "heldout.training.shadows": ("PolicyVersion", "Shadows", "WeightSnapshot"),
    "heldout.training.best": ("Best", "best_checkpoint"),
    "heldout.training.verdicts": ("StepVerdict",),
    "heldout.training.worker": ("EvalWorker",),
}

__all__ = [
    "AsyncEvalDispatcher",
    "Best",
    "CurveMonitor",
    "CurvePoint",
    "Drained",
    "EvalWorker",
    "Judgement",
    "Outcome",
    "PendingEval",
    "PeriodicEval",
    "PolicyVersion",
    "Request",
    "Runner",
    "Scheduled",
    "Settings",
    "Shadows",
    "StepVerdict",
    "WeightSnapshot",
    "best_checkpoint",
    "current_points",
    "functions",
    "get_async_eval_dispatcher",
    "live_model",
    "pending_evals",
    "read_points",
    "score_answer",
    "set_async_eval_dispatcher",
    "use_async_eval_dispatcher",
]

__getattr__, __dir__ = lazy(__name__, _HOME)
