"""Evals in a training loop of one's own, on any number of processes: what its hooks share.

`heldout.integrations.accelerate` and `heldout.integrations.lightning` add where results are logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from heldout._live.isolation import untouched_random_state
from heldout.errors import InvalidInput
from heldout.training.curve.points import CurvePoint
from heldout.training.periodic_eval import PeriodicEval
from heldout.training.ranks import is_first_process
from heldout.training.trainer_hooks import RunEval, TrainerHooks


class LoopEvals:
    """Runs evals at the steps of a training loop. Every process calls every method.

    Args:
        evals: The evals, each with a label and a run directory of its own.
        get_model: Returns the model, for evals without a `model_getter`.
        log: Called in the first process with the numbers of new points, and the step.
        autocast: Makes the context that the training's forward passes run in.
        share: Called in every process with the same numbers, where the trainer decides by them.

    Raises:
        InvalidInput: There are no evals, or two would log under one name.
    """

    def __init__(
        self,
        evals: tuple[PeriodicEval, ...],
        get_model: Callable[[], Any],
        log: Callable[[Mapping[str, float], int], object],
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        share: Callable[[Mapping[str, float]], object] | None = None,
    ) -> None:
        if not evals:
            raise InvalidInput("one or more PeriodicEvals are needed, got none")
        self.evals = evals
        self._hooks = TrainerHooks(evals, get_model)
        self._log, self._autocast, self._share = log, autocast, share

    def begin(self, step: int = 0) -> None:
        """Begin training, and evaluate step 0 where that is asked for.

        Args:
            step: The step that training begins at; above 0 it resumes, and curves are continued.
        """
        self._hooks.begin(step)
        # A step resumed at that has its point already has its row in the trainer's log.
        self._run(step, PeriodicEval.maybe_run, if_due=True, log_known=step == 0)

    def step(self, step: int) -> bool:
        """Evaluate what is due after an optimizer step.

        Args:
            step: Optimizer steps so far.

        Returns:
            Whether training should stop: the same in every process. They agree on it where an eval
            is due, and at every 50th step; other steps cost no communication.
        """
        self._run(step, PeriodicEval.maybe_run, if_due=True)
        return self._hooks.must_stop(step)

    def finish(self, step: int) -> None:
        """Evaluate the last weights."""
        self._run(step, PeriodicEval.run_final, if_due=False)

    def _run(self, step: int, run: RunEval, *, if_due: bool, log_known: bool = True) -> None:
        """Run what is due, and log it."""

        def run_one(periodic: PeriodicEval, step: int) -> CurvePoint | None:
            with self._autocast():
                return run(periodic, step)

        rows, is_shared = self._hooks.run(
            step, self.evals, run_one, if_due=if_due, log_known=log_known
        )
        fields = {key: value for row in rows.values() for key, value in row.fields.items()}
        if fields and is_first_process():
            with untouched_random_state():
                self._log(fields, step)
        # Only the first process has the points, and processes that decide by them differently would
        # wait for each other for ever.
        if self._share is not None and is_shared:
            self._share(fields)
