"""Weights as they were at a step, held fast while training goes on.

pool         SnapshotPool and WeightSnapshot: a bounded number of copies, taken and given back
replica      a second model built like the first
attributes   what else modules hold, and which of it can have a double
"""

from __future__ import annotations

from heldout.training.snapshot.pool import PolicyVersion, SnapshotPool, WeightSnapshot

__all__ = ["PolicyVersion", "SnapshotPool", "WeightSnapshot"]
