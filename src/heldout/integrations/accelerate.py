"""Evals in a loop that accelerate has prepared, on one or several processes.

    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    evals = AccelerateEvals(accelerator, model, PeriodicEval(…, every_steps=50))
    evals.begin()
    for batch in batches:
        …                                   # forward, accelerator.backward, optimizer.step
        if accelerator.sync_gradients:      # an optimizer step, not a micro-batch
            step += 1
            if evals.step(step):
                break
    evals.finish(step)

Trained weights are the same, bit for bit, with the evals and without them, whatever accelerate has
made of the model: DDP, FSDP, DeepSpeed. Results go to the trackers of `accelerator.log`, too.
"""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator

from heldout.errors import InvalidInput
from heldout.integrations.loops import LoopEvals
from heldout.training.periodic_eval import PeriodicEval


class AccelerateEvals(LoopEvals):
    """Runs evals at the steps of a loop; every process calls every method.

    Args:
        accelerator: The accelerator.
        model: The model as `prepare` returned it.
        evals: The evals, each with a label and a run directory of its own.

    Raises:
        InvalidInput: An argument is invalid.
    """

    def __init__(self, accelerator: Accelerator, model: Any, *evals: PeriodicEval) -> None:
        if not isinstance(accelerator, Accelerator):
            raise InvalidInput(
                f"accelerator must be an accelerate.Accelerator, got {accelerator!r:.100}"
            )
        # `prepare` has put its autocast around the model's own forward pass.
        super().__init__(evals, lambda: model, lambda row, step: accelerator.log(dict(row), step))


__all__ = [
    "AccelerateEvals",
]
