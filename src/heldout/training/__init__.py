"""Evaluation in the middle of training: on a cadence, on the trainer's own weights, neutral.

periodic         PeriodicEval: cadence and heartbeats
run_eval         one eval: the model, isolated, through `heldout.evaluate`
runners          how the policy is run and scored: `live_model`, `functions`
distributed      training in several processes
budget           how much of its time training may spend on evals, and has spent
curve            curve.jsonl: one line per point
curve_file       the run directory: who writes it, earlier attempts, which curve may be continued
verdicts         improving, regressing, plateau or cannot tell; the best eval
monitor          CurveMonitor: verdicts as the curve grows, and advice to stop
metrics          a point as flat fields
flips, plot      two points compared; the curve as a picture
settings         the HELDOUT_EVAL_* variables

dispatcher       AsyncEvalDispatcher: evals in the background
running          how each of them starts, runs and ends
pending          which are in flight, in memory and on the disk
results          what an evaluator returns, as a point
evalloop         the event loop they run in
trainer_thread   what must run in the trainer's thread
installed        the dispatcher in use
ending           the end of the process
beside           the evals of a `PeriodicEval` that are in flight
shadows          snapshots of the weights
worker           EvalWorker: a process that evaluates
loggers            loggers: JSONL, wandb, trackio, TensorBoard, MLflow
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout.lazy import lazy

if TYPE_CHECKING:
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
    from heldout.training.verdicts import Best, StepVerdict, best_checkpoint
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
    "heldout.training.verdicts": ("Best", "StepVerdict", "best_checkpoint"),
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
