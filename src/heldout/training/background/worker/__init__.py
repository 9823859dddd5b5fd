"""Evals in a separate process.

client          EvalWorker: the training run's side
server          the worker's process
messages        the protocol between the two
weight_buffer   weights in memory that both processes share
"""

from __future__ import annotations

from heldout.training.background.worker.client import EvalWorker

__all__ = ["EvalWorker"]
