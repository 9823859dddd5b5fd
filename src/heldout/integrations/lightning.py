"""Evals while Lightning trains: a callback for its Trainer, and hooks for loops with Fabric.

    evals = PeriodicEval(samples, live_model(tokenizer, score_fn), every_steps=50)
    trainer = Trainer(callbacks=[HeldoutCallback(evals, model=lambda module: module.policy)])

    evals = FabricEvals(fabric, model, PeriodicEval(…))     # model as fabric.setup returned it
    evals.begin()
    …                                                       # as for any loop: evals.step(step)
    evals.finish(step)

Trained weights are the same, bit for bit, with the evals and without them. Steps are optimizer
steps (`trainer.global_step`), however many batches are accumulated for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricModule
from lightning.pytorch import Callback

from heldout.errors import InvalidInput
from heldout.integrations.loops import LoopEvals
from heldout.training.periodic_eval import PeriodicEval


class HeldoutCallback(Callback):  # type: ignore[misc]
    """Runs evals on their cadence, logs what they find, and stops training where one asks for it.

    Results go to the trainer's loggers and to `trainer.callback_metrics`, as `eval_heldout_reward`
    and so on, in every process, so that a `ModelCheckpoint` can monitor them.

    Args:
        evals: The evals, each with a label and a run directory of its own.
        model: Returns the model to evaluate, of the LightningModule; by default its `model`.
    """

    def __init__(
        self, *evals: PeriodicEval, model: Callable[[Any], Any] = lambda module: module.model
    ) -> None:
        self._trainer: Any = None
        self._module: Any = None
        self._loop = LoopEvals(
            evals,
            lambda: model(self._module),
            self._log,
            lambda: self._forward_context(),
            self._share,
        )

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the curves, and evaluate step 0 where it is due."""
        self._trainer, self._module = trainer, pl_module
        self._loop.begin(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any) -> None:
        """Evaluate if it is due after an optimizer step."""
        if self._loop.step(trainer.global_step):
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Evaluate the last weights."""
        self._loop.finish(trainer.global_step)
        self._trainer = self._module = None

    def _forward_context(self) -> Any:
        return self._trainer.precision_plugin.forward_context()

    def _share(self, row: Mapping[str, float]) -> None:
        import torch

        self._trainer.callback_metrics.update({k: torch.tensor(float(v)) for k, v in row.items()})

    def _log(self, row: Mapping[str, float], step: int) -> None:
        for logger in self._trainer.loggers:
            logger.log_metrics(dict(row), step)


class FabricEvals(LoopEvals):
    """Runs evals at the steps of a loop with Fabric; every process calls every method.

    Args:
        fabric: The Fabric.
        model: The model as `fabric.setup` returned it.
        evals: The evals, each with a label and a run directory of its own.

    Raises:
        InvalidInput: An argument is invalid.
    """

    def __init__(self, fabric: Fabric, model: Any, *evals: PeriodicEval) -> None:
        if not isinstance(fabric, Fabric):
            raise InvalidInput(f"fabric must be a lightning Fabric, got {fabric!r:.100}")
        if not isinstance(model, _FabricModule):
            raise InvalidInput("model is what fabric.setup returned")
        super().__init__(
            evals,
            lambda: model._forward_module,  # what the strategy has made of it: DDP, FSDP
            lambda row, step: fabric.log_dict(dict(row), step),
            fabric.autocast,
        )


__all__ = [
    "FabricEvals",
    "HeldoutCallback",
]
