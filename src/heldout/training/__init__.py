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
    from heldout._fingerprint import set_version as set_version
    from heldout.overlap import check_no_overlap as check_no_overlap
    from heldout.training.curve import CurvePoint as CurvePoint
    from heldout.training.curve import current_points as current_points
    from heldout.training.curve import read_points as read_points
    from heldout.training.dispatcher import AsyncEvalDispatcher as AsyncEvalDispatcher
    from heldout.training.dispatcher import get_async_eval_dispatcher as get_async_eval_dispatcher
    from heldout.training.dispatcher import set_async_eval_dispatcher as set_async_eval_dispatcher
    from heldout.training.periodic_eval import PeriodicEval as PeriodicEval
    from heldout.training.runner import Request as Request
    from heldout.training.runner import Runner as Runner
    from heldout.training.runner import from_functions as from_functions
    from heldout.training.runner import live_model as live_model
    from heldout.training.snapshot import SnapshotPool as SnapshotPool
    from heldout.training.verdicts import CurveMonitor as CurveMonitor
    from heldout.training.verdicts import best_checkpoint as best_checkpoint
    from heldout.training.worker import EvalWorker as EvalWorker

__all__, __getattr__, __dir__ = lazy(__name__)
