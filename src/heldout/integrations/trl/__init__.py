"""A heldout eval as the dataset, the rollout function and the reward of TRL's GRPOTrainer.

    trainer = GRPOTrainer(
        model,
        reward_funcs=reward_from_rollout,
        rollout_func=build_rollout_func(samples, score_fn, environment_factory=make_environment),
        train_dataset=to_dataset(samples),
        …
    )

The trainer hands over prompts; each is matched with its sample, rolled out with its environment on
the trainer's own model, and scored. The environment's tokens are masked out of the loss. While the
trainer trains, turns are sampled as its settings say; while it evaluates, they are greedy.

Held-out samples can be evaluated inside the rollout phase: give `build_rollout_func` evals whose
runner builder is made by `in_rollout_phase`. They run on the same engine while it is awake, and
have no side effects on training.
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
