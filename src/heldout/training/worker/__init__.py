"""Evals in a process of their own.

client          EvalWorker: what the training run holds of it
server          the worker's process
messages        the protocol between the two
weight_buffer   weights in memory that both processes share
"""

from __future__ import annotations

from heldout.training.worker.client import EvalWorker

__all__ = ["EvalWorker"]
