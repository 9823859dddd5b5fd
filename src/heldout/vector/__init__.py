"""Agents in environments: an evaluation that cannot lie about its episodes.

A vectorised environment and a policy go in; a report of whole episodes comes out, each counted
once, whichever ended first. Training loops and their callbacks are in `integrations/`.
"""

from __future__ import annotations

from heldout.vector.evaluation import evaluate_env
from heldout.vector.report import Episode, VectorReport
from heldout.vector.training import EvalEvery, EvalPoint

__all__ = [
    "Episode",
    "EvalEvery",
    "EvalPoint",
    "VectorReport",
    "evaluate_env",
]
