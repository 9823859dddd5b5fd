"""heldout tells people who train policies whether the policy is really getting better.

The public names, loaded when they are first used: `import heldout` itself costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._lazy import lazy

if TYPE_CHECKING:
    from heldout._run import run
    from heldout.config import EvalConfig, Sampling, base_config
    from heldout.data_buffer import DataBuffer
    from heldout.engine import evaluate
    from heldout.environment import Environment, Reply
    from heldout.rescoring import rescore
    from heldout.rollout import EvalDefinition
    from heldout.store.report import EvalReport
    from heldout.training.rollouts import (
        Rollout,
        agenerate_rollouts,
        generate_rollouts,
        rollout_batch,
        rollout_one,
    )
    from heldout.types import (
        Completion,
        EvalResult,
        Message,
        Metric,
        Sample,
        Score,
        Stop,
        Timing,
        TokenTrace,
        ToolCall,
        ToolSpec,
        Trajectory,
        Usage,
    )
    from heldout.viewer.notebook import view

__version__ = "0.1.0"

_HOME = {
    "heldout._run": ("run",),
    "heldout.data_buffer": ("DataBuffer",),
    "heldout.config": ("EvalConfig", "Sampling", "base_config"),
    "heldout.environment": ("Environment", "Reply"),
    "heldout.rollout": ("EvalDefinition",),
    "heldout.training.rollouts": (
        "Rollout", "agenerate_rollouts", "generate_rollouts", "rollout_batch", "rollout_one",
    ),
    "heldout.engine": ("evaluate",),
    "heldout.rescoring": ("rescore",),
    "heldout.store.report": ("EvalReport",),
    "heldout.types": (
        "Completion", "EvalResult", "Message", "Metric", "Sample", "Score", "Stop", "Timing",
        "TokenTrace", "ToolCall", "ToolSpec", "Trajectory", "Usage",
    ),
    "heldout.viewer.notebook": ("view",),
}  # fmt: skip
__all__ = [
    "Completion",
    "DataBuffer",
    "Environment",
    "EvalConfig",
    "EvalDefinition",
    "EvalReport",
    "EvalResult",
    "Message",
    "Metric",
    "Reply",
    "Rollout",
    "Sample",
    "Sampling",
    "Score",
    "Stop",
    "Timing",
    "TokenTrace",
    "ToolCall",
    "ToolSpec",
    "Trajectory",
    "Usage",
    "agenerate_rollouts",
    "base_config",
    "evaluate",
    "generate_rollouts",
    "rescore",
    "rollout_batch",
    "rollout_one",
    "run",
    "view",
]


__getattr__, __dir__ = lazy(__name__, _HOME)
