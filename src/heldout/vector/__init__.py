"""Agents in environments: an evaluation that cannot lie about its episodes."""

from __future__ import annotations

from heldout.isolation import untouched_random_state
from heldout.vector.evaluation import evaluate_env
from heldout.vector.report import Episode, VectorReport
from heldout.vector.training import EvalEvery, EvalPoint

__all__ = [
    "Episode",
    "EvalEvery",
    "EvalPoint",
    "VectorReport",
    "evaluate_env",
    "untouched_random_state",
]
