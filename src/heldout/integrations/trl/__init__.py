"""A heldout eval as the dataset, the rollout and the reward of TRL's GRPOTrainer.

    trainer = GRPOTrainer(
        model,
        reward_funcs=reward_from_rollout,
        rollout_func=build_rollout_func(samples, score_fn, environment_factory=make_environment),
        train_dataset=to_dataset(samples),
        …
    )

The trainer hands over prompts; each is found again among the samples, rolled out with its
environment on the trainer's own model, and scored. The environment's tokens are masked out of
the loss. While the trainer trains, turns are sampled as its settings say; while it evaluates,
they are greedy.

Held-out samples can ride along: give `build_rollout_func` evals whose runner_builder is made by
`in_rollout_window`. They are run on the same engine while it is open, and training does not notice.

TRL's `rollout_func` is experimental and says little of what it relies on, so other versions than
those named in `SUPPORTED` are refused.
"""

from __future__ import annotations

from heldout.integrations.trl.rollout import (
    SUPPORTED,
    TESTED,
    Duplicates,
    RolloutFunc,
    build_rollout_func,
    reward_from_rollout,
    to_dataset,
    where_scored,
)
from heldout.integrations.trl.window import InRolloutWindow, in_rollout_window

__all__ = [
    "SUPPORTED",
    "TESTED",
    "Duplicates",
    "InRolloutWindow",
    "RolloutFunc",
    "build_rollout_func",
    "in_rollout_window",
    "reward_from_rollout",
    "to_dataset",
    "where_scored",
]
