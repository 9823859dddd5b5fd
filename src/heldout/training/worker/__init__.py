"""A process of its own that evaluates a model in training.

worker       EvalWorker: what the training has of it
process      the process: its start, its pipes, its end
protocol     what they say to each other
main         the worker's side
shared       a snapshot of weights in memory that both can read
sharedfile   the file that this memory is
"""

from __future__ import annotations

from heldout.training.worker.worker import EvalWorker

__all__ = ["EvalWorker"]
