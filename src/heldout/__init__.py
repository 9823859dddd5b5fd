"""heldout tells people who train policies whether the policy is really getting better.

The public names, loaded when they are first used: `import heldout` itself costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._lazy import lazy

if TYPE_CHECKING:
    from heldout._run import run as run
    from heldout.config import EvalConfig as EvalConfig
    from heldout.config import Sampling as Sampling
    from heldout.config import base_config as base_config
    from heldout.data_buffer import DataBuffer as DataBuffer
    from heldout.engine import evaluate as evaluate
    from heldout.environment import Environment as Environment
    from heldout.environment import Reply as Reply
    from heldout.rescoring import rescore as rescore
    from heldout.rollout import EvalDefinition as EvalDefinition
    from heldout.store.report import EvalReport as EvalReport
    from heldout.training.rollouts import Rollout as Rollout
    from heldout.training.rollouts import agenerate_rollouts as agenerate_rollouts
    from heldout.training.rollouts import generate_rollouts as generate_rollouts
    from heldout.training.rollouts import rollout_batch as rollout_batch
    from heldout.training.rollouts import rollout_one as rollout_one
    from heldout.types import Completion as Completion
    from heldout.types import EvalResult as EvalResult
    from heldout.types import Message as Message
    from heldout.types import Metric as Metric
    from heldout.types import Sample as Sample
    from heldout.types import Score as Score
    from heldout.types import Stop as Stop
    from heldout.types import Timing as Timing
    from heldout.types import TokenTrace as TokenTrace
    from heldout.types import ToolCall as ToolCall
    from heldout.types import ToolSpec as ToolSpec
    from heldout.types import Trajectory as Trajectory
    from heldout.types import Usage as Usage
    from heldout.viewer.notebook import view as view

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = lazy(__name__)
