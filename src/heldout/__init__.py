"""heldout tells people who train policies whether the policy is really getting better.

The public names, loaded when they are first used: `import heldout` itself costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core import version
from heldout._core.lazy import lazy

if TYPE_CHECKING:
    from heldout._core.config import EvalConfig as EvalConfig
    from heldout._core.config import Sampling as Sampling
    from heldout._core.config import base_config as base_config
    from heldout._core.prices import Price as Price
    from heldout._evals.engine import evaluate as evaluate
    from heldout._evals.race import arace as arace
    from heldout._evals.race import race as race
    from heldout._evals.racing import Placed as Placed
    from heldout._evals.racing import RaceReport as RaceReport
    from heldout._evals.rescoring import rescore as rescore
    from heldout._evals.rollout import EnvironmentFactory as EnvironmentFactory
    from heldout._evals.rollout import EvalDefinition as EvalDefinition
    from heldout._evals.rollout import PrepareMessages as PrepareMessages
    from heldout._evals.rollout import ScoreFn as ScoreFn
    from heldout._evals.run import run as run
    from heldout.analysis import compare as compare
    from heldout.analysis import gate as gate
    from heldout.environment import Environment as Environment
    from heldout.environment import Reply as Reply
    from heldout.rollouts.data_buffer import DataBuffer as DataBuffer
    from heldout.rollouts.generating import Rollout as Rollout
    from heldout.rollouts.generating import agenerate_rollouts as agenerate_rollouts
    from heldout.rollouts.generating import generate_rollouts as generate_rollouts
    from heldout.rollouts.generating import rollout_batch as rollout_batch
    from heldout.rollouts.generating import rollout_one as rollout_one
    from heldout.store.report import EvalReport as EvalReport
    from heldout.training.periodic_eval import PeriodicEval as PeriodicEval
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

__version__ = version.__version__

__all__, __getattr__, __dir__ = lazy(__name__)
