"""The curve of a trainer that knows nothing of heldout: its checkpoints, evaluated as they come.

following         follow_checkpoints: watches a folder, and evaluates each checkpoint once
checkpoint_model  how a checkpoint is loaded and asked
finding           which checkpoints a folder has, their steps, and which are still being written
formats           what a checkpoint holds, what is missing of it, and what is needed to read it
holding           hard links: its trainer may remove a checkpoint while it is evaluated
converting        a checkpoint as a folder that transformers loads, and the hash of its weights
commands          commands of the user: one that converts a checkpoint, one that serves it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core.lazy import lazy

if TYPE_CHECKING:
    from heldout.training.checkpoints.following import follow_checkpoints as follow_checkpoints

__all__, __getattr__, __dir__ = lazy(__name__)
