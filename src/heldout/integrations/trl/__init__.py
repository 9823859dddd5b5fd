"""A heldout eval as the dataset, the rollout function and the reward of TRL's GRPOTrainer.

    trainer = GRPOTrainer(
        model,
        reward_funcs=reward_from_rollout,
        rollout_func=build_rollout_func(samples, score_fn, environment_factory=make_environment),
        train_dataset=to_dataset(samples),
        …
    )

Each prompt is matched with its sample, rolled out with its environment on the trainer's own model,
and scored; the environment's tokens are masked out of the loss. Held-out samples can be evaluated
inside the rollout phase, on the same engine: see `in_rollout_phase`.
"""

from __future__ import annotations

from heldout.integrations.trl.rollout_func import (
    build_rollout_func,
    reward_from_rollout,
    to_dataset,
    where_scored,
)
from heldout.integrations.trl.rollout_phase import in_rollout_phase

__all__ = [
    "build_rollout_func",
    "in_rollout_phase",
    "reward_from_rollout",
    "to_dataset",
    "where_scored",
]
