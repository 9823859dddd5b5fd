"""Past one machine, on Ray: evals on a cluster, scripts run remotely, eval workers on other nodes.

executor   RayExecutor: the items of an eval on the workers of a cluster
worker     what runs an item there
packaging  which code is sent to the workers, and how it is loaded there
copies     whether a worker has the same functions as the driver
remote     run_remote, attach_remote: a script as a Ray job, and its run directories fetched
node       RayNode: an EvalWorker on another node
_ray       connecting, and what a cluster has

The items of an eval, or a script, go in; results come back as if run here. What an item is, and
what is stored, is decided in `_evals/` and `store/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core.lazy import lazy

if TYPE_CHECKING:
    from heldout.cluster.executor import RayExecutor as RayExecutor
    from heldout.cluster.node import RayNode as RayNode
    from heldout.cluster.remote import attach_remote as attach_remote
    from heldout.cluster.remote import run_remote as run_remote

__all__, __getattr__, __dir__ = lazy(__name__)
