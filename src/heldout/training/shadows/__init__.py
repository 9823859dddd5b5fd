"""Weights as they were at a step, held fast while training goes on.

pool         Shadows and WeightSnapshot: a bounded number of copies, taken and given back
replica      a second model built like the first
attributes   what else modules hold, and which of it can have a double
"""

from __future__ import annotations

from heldout.training.shadows.pool import PolicyVersion, Shadows, WeightSnapshot

__all__ = ["PolicyVersion", "Shadows", "WeightSnapshot"]
