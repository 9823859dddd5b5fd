"""Evals while a policy trains: on a cadence, on the trainer's own weights, bit-neutral.

periodic_eval    PeriodicEval: puts the following together, and owns the curve
cadence          which steps are due
budget           how much of its time training may spend on evals, and has spent
measuring        what is measured, inline or of a snapshot, and the point that comes of it
judging          the verdict on a point
publishing       where a point goes: its line, loggers, heartbeat
background       what a PeriodicEval schedules with the dispatcher, and publishes when it has ended
settings         settings of a PeriodicEval, and the HELDOUT_EVAL_* variables
run_eval         one eval of one model, isolated, through `heldout.evaluate`
runner           how the policy is run and scored: `live_model`, `from_functions`
distributed      training in several processes

curve            curve.jsonl: one line per evaluation point
curve_file       the run directory: its writer, earlier attempts, which curve may be continued
metrics          a point as flat fields
verdicts         improving, regressing, plateau or inconclusive; the best eval so far; CurveMonitor
flips, plot      two points compared; the curve as a picture

dispatcher       AsyncEvalDispatcher: evals in the background
scheduled        a scheduled eval: its handle, and its state
eval_queue       which are queued and which run; what gives way when there is no slot
eval_runner      runs them, and writes how each ends
threads          the event loop of async evaluators; what must run in the trainer's thread; waiting
sigterm          evals in flight are recorded before SIGTERM ends the process
results          what an evaluator returned, as a point
snapshot         SnapshotPool: copies of the weights
worker           EvalWorker: a process that evaluates
checkpoints      follow_checkpoints: the curve of a trainer that only saves checkpoints
loggers          wandb, trackio, TensorBoard, MLflow, functions
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._lazy import lazy

if TYPE_CHECKING:
    from heldout._fingerprint import set_version as set_version
    from heldout.overlap import check_no_overlap as check_no_overlap
    from heldout.training.checkpoints import follow_checkpoints as follow_checkpoints
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
