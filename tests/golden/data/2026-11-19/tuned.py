"""The same eval of a better model."""

from dataclasses import replace

from shop import (
    Assistant,
    config,
    environment_factory,
    load_dataset,
    prepare_messages,
    score_fn,
)

__all__ = ["environment_factory", "load_dataset", "prepare_messages", "score_fn"]

config = replace(
    config, endpoint=Assistant("shop-2", 0.85), experiment_name="tuned", tags=(), note=None
)
