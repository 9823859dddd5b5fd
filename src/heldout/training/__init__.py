"""Evals while a policy trains: on a cadence, on the trainer's own weights, bit-neutral.

periodic_eval    PeriodicEval: what is due runs now, or in the background
budget           which steps are due, and how much of its time training may spend on evals
settings         settings of a PeriodicEval, and the HELDOUT_EVAL_* variables
measuring        one eval of one model, isolated, through `heldout.evaluate`; the point that it is
runner           how the policy is run and scored: `live_model`, `from_functions`
ranks            training in several processes
sharding         models whose weights are spread over them
trainer_hooks    what the hooks of all trainers share

curve/           the points, the file they are in, verdicts
background/      AsyncEvalDispatcher, snapshots of the weights, EvalWorker
checkpoints/     follow_checkpoints: the curve of a trainer that only saves checkpoints
loggers/         wandb, trackio, TensorBoard, MLflow, functions

A model in training and held-out samples go in; points of a curve come out, and a training that is
bit for bit what it would have been. One eval is run by `_evals/`; what a trainer calls is in
`integrations/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core.lazy import lazy

if TYPE_CHECKING:
    from heldout._live.snapshots import SnapshotPool as SnapshotPool
    from heldout._live.weights import fingerprint as fingerprint
    from heldout.store.fingerprint import set_version as set_version
    from heldout.training.background.dispatcher import AsyncEvalDispatcher as AsyncEvalDispatcher
    from heldout.training.background.dispatcher import (
        get_async_eval_dispatcher as get_async_eval_dispatcher,
    )
    from heldout.training.background.dispatcher import pending_evals as pending_evals
    from heldout.training.background.dispatcher import (
        set_async_eval_dispatcher as set_async_eval_dispatcher,
    )
    from heldout.training.background.worker import EvalWorker as EvalWorker
    from heldout.training.checkpoints import follow_checkpoints as follow_checkpoints
    from heldout.training.curve.points import CurvePoint as CurvePoint
    from heldout.training.curve.points import current_points as current_points
    from heldout.training.curve.points import read_points as read_points
    from heldout.training.curve.verdicts import CurveMonitor as CurveMonitor
    from heldout.training.curve.verdicts import best_checkpoint as best_checkpoint
    from heldout.training.curve.verdicts import judge_points as judge_points
    from heldout.training.periodic_eval import PeriodicEval as PeriodicEval
    from heldout.training.runner import Request as Request
    from heldout.training.runner import Runner as Runner
    from heldout.training.runner import from_functions as from_functions
    from heldout.training.runner import live_model as live_model

__all__, __getattr__, __dir__ = lazy(__name__)
