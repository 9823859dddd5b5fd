"""Evals while a policy trains: on a cadence, on the trainer's own weights, bit-neutral.

periodic_eval    PeriodicEval: cadence, budget, background
publishing       the verdict on a point; its line, loggers, heartbeat
run_eval         one eval of one model, isolated, through `heldout.evaluate`
runner           how the policy is run and scored: `live_model`, `from_functions`
distributed      training in several processes
budget           how much of its time training may spend on evals, and has spent
settings         the HELDOUT_EVAL_* variables

curve            curve.jsonl: one line per evaluation point
curve_file       the run directory: its writer, earlier attempts, which curve may be continued
metrics          a point as flat fields
verdicts         improving, regressing, plateau or inconclusive; the best eval so far; CurveMonitor
flips, plot      two points compared; the curve as a picture

dispatcher       AsyncEvalDispatcher: evals in the background
threads          the event loop of async evaluators; what must run in the trainer's thread
results          what an evaluator returned, as a point
snapshot         SnapshotPool: copies of the weights
worker           EvalWorker: a process that evaluates
loggers          wandb, trackio, TensorBoard, MLflow, functions
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._lazy import lazy

if TYPE_CHECKING:
    from heldout._fingerprint import set_version
    from heldout.overlap import check_no_overlap
    from heldout.training.curve import CurvePoint, current_points, read_points
    from heldout.training.dispatcher import (
        AsyncEvalDispatcher,
        get_async_eval_dispatcher,
        set_async_eval_dispatcher,
    )
    from heldout.training.periodic_eval import PeriodicEval
    from heldout.training.runner import Request, Runner, from_functions, live_model
    from heldout.training.snapshot import SnapshotPool
    from heldout.training.verdicts import CurveMonitor, best_checkpoint
    from heldout.training.worker import EvalWorker

_MODULES = {
    "heldout._fingerprint": ("set_version",),
    "heldout.overlap": ("check_no_overlap",),
    "heldout.training.curve": (
        "CurvePoint",
        "current_points",
        "read_points",
    ),
    "heldout.training.dispatcher": (
        "AsyncEvalDispatcher",
        "get_async_eval_dispatcher",
        "set_async_eval_dispatcher",
    ),
    "heldout.training.periodic_eval": ("PeriodicEval",),
    "heldout.training.runner": (
        "Request",
        "Runner",
        "from_functions",
        "live_model",
    ),
    "heldout.training.snapshot": ("SnapshotPool",),
    "heldout.training.verdicts": ("CurveMonitor", "best_checkpoint"),
    "heldout.training.worker": ("EvalWorker",),
}

__all__ = [
    "AsyncEvalDispatcher",
    "CurveMonitor",
    "CurvePoint",
    "EvalWorker",
    "PeriodicEval",
    "Request",
    "Runner",
    "SnapshotPool",
    "best_checkpoint",
    "check_no_overlap",
    "current_points",
    "from_functions",
    "get_async_eval_dispatcher",
    "live_model",
    "read_points",
    "set_async_eval_dispatcher",
    "set_version",
]

__getattr__, __dir__ = lazy(__name__, _MODULES)
