"""Other people's evals, environments and logs, as evals and runs of heldout.

In go the tasks, scorers and log files of another package; out come samples, environments and
scores that the engine runs and stores as any others. A task's number is the one that its own
package gives, or it says why not. Each is adapted on one seam (`seam.py`), which plugins fill as
well. Trainers are in `heldout.integrations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core.lazy import lazy

if TYPE_CHECKING:
    from heldout.adapters.inspect import from_inspect as from_inspect
    from heldout.adapters.lm_eval import from_lm_eval as from_lm_eval
    from heldout.adapters.logs import export_inspect as export_inspect
    from heldout.adapters.logs import import_log as import_log
    from heldout.adapters.reasoning_gym import from_reasoning_gym as from_reasoning_gym
    from heldout.adapters.seam import AdaptedEval as AdaptedEval
    from heldout.adapters.seam import Conversation as Conversation
    from heldout.adapters.seam import Converses as Converses
    from heldout.adapters.seam import Rates as Rates
    from heldout.adapters.seam import Replies as Replies
    from heldout.adapters.seam import Row as Row
    from heldout.adapters.seam import Steps as Steps
    from heldout.adapters.seam import TaskAdapter as TaskAdapter
    from heldout.adapters.step_environments import from_step_env as from_step_env
    from heldout.adapters.step_environments import seeds as seeds
    from heldout.adapters.step_environments.openenv import from_openenv as from_openenv
    from heldout.adapters.step_environments.textarena import from_textarena as from_textarena
    from heldout.adapters.tasks import list_tasks as list_tasks
    from heldout.adapters.tasks import load_task as load_task
    from heldout.adapters.verifiers import from_verifiers as from_verifiers
    from heldout.adapters.verifiers import to_verifiers as to_verifiers
    from heldout.environments.stepped import StepSettings as StepSettings
    from heldout.environments.stepped import score_rewards as score_rewards

__all__, __getattr__, __dir__ = lazy(__name__)
