"""Rollouts for training: prompts in, episodes out, in the tokens that the policy read and wrote.

In go samples and an engine's `generate`; out come token ids, masks and rewards that a trainer can
use. What is done with them is the trainer's. Evals of a policy in training are in `training/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core.lazy import lazy

if TYPE_CHECKING:
    from heldout._live.rendering.chat_templates import ChatRenderer as ChatRenderer
    from heldout.rollouts.data_buffer import DataBuffer as DataBuffer
    from heldout.rollouts.data_buffer import rewards_differ as rewards_differ
    from heldout.rollouts.generating import Generated as Generated
    from heldout.rollouts.generating import Rollout as Rollout
    from heldout.rollouts.generating import agenerate_rollouts as agenerate_rollouts
    from heldout.rollouts.generating import generate_rollouts as generate_rollouts
    from heldout.rollouts.generating import rollout_batch as rollout_batch
    from heldout.rollouts.generating import rollout_one as rollout_one
    from heldout.rollouts.overlap import check_no_overlap as check_no_overlap

__all__, __getattr__, __dir__ = lazy(__name__)
