"""Environments of `verifiers` as heldout evals, and heldout evals as `verifiers` environments.

    await evaluate(from_verifiers(vf_env), config)

    vf_env = to_verifiers(samples, score_fn)

This is about the package's classic stack, which its 0.4 removed. `from_verifiers` makes the calls
of `MultiTurnEnv.rollout` from outside, in its order, with heldout's policy in the place of its
client, and takes the reward that the environment's own rubric gives. What the package would turn
into a quiet 0 (a reward function that raises, a rollout that failed, a NaN) is an error here.
"""

from __future__ import annotations

from heldout.integrations.verifiers.adapt import (
    VerifiersEnvironment,
    from_verifiers,
)
from heldout.integrations.verifiers.export import to_verifiers

__all__ = ["VerifiersEnvironment", "from_verifiers", "to_verifiers"]
