"""Environments of `verifiers` as heldout evals, and heldout evals as `verifiers` environments.

    await evaluate(from_verifiers(vf_env), config)

    vf_env = to_verifiers(samples, score_fn)

This is for the package's classic stack, which its 0.4 removed.
"""

from __future__ import annotations

from heldout.integrations.verifiers.export import to_verifiers
from heldout.integrations.verifiers.load import from_verifiers

__all__ = ["from_verifiers", "to_verifiers"]
