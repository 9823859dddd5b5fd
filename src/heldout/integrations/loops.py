"""Evals in a training loop of one's own, on any number of processes: what its hooks share.

`heldout.integrations.accelerate` and `heldout.integrations.lightning` add where results are logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from heldout.errors import InvalidInput
from heldout.isolation import untouched_random_state
from heldout.training.curve import CurvePoint
from heldout.training.distributed import agree, current_ranks
from heldout.training.metrics import log_fields
from heldout.training.periodic_eval import PeriodicEval

STOP_CHECK_STEPS = 50
"""With several processes: how often they agree on a request to stop while no eval is due."""


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
        if not evals or not all(isinstance(periodic, PeriodicEval) for periodic in evals):
            raise InvalidInput(f"one or more PeriodicEvals are needed, got {evals!r:.100}")
        labels = [periodic.label for periodic in evals]
        if len(set(labels)) < len(labels):
            raise InvalidInput(f"each PeriodicEval needs a label of its own, got {labels}")
        self.evals = evals
        self._log, self._autocast, self._share = log, autocast, share
        self._logged = {periodic.label: len(periodic.history) for periodic in evals}
        for periodic in evals:
            if periodic.model_getter is None:
                periodic.model_getter = get_model

    def begin(self, step: int = 0) -> None:
        """Begin training, and evaluate step 0 where that is asked for.

        Args:
            step: The step that training begins at; above 0 it resumes, and curves are continued.
        """
        for periodic in self.evals:
            periodic.begin(step, resume=step > 0)
        self._run(step, PeriodicEval.maybe_run, together=True)

    def step(self, step: int) -> bool:
        """Evaluate what is due after an optimizer step.

        Args:
            step: Optimizer steps so far.

        Returns:
            Whether training should stop: the same in every process. They agree on it where an eval
            is due, and at every 50th step; other steps cost no communication.
        """
        is_due = any(periodic.should_run(step) for periodic in self.evals)
        self._run(step, PeriodicEval.maybe_run, together=is_due)
        ranks = current_ranks()
        if ranks.world > 1 and not is_due and step % STOP_CHECK_STEPS:
            return False
        asked = any(periodic.stop_requested_here for periodic in self.evals)
        return bool(agree(ranks, asked, bool))

    def finish(self, step: int) -> None:
        """Evaluate the last weights."""
        self._run(step, PeriodicEval.run_final, together=True)

    def _run(
        self,
        step: int,
        run: Callable[[PeriodicEval, int], CurvePoint | None],
        *,
        together: bool,
    ) -> None:
        """Run what is due, and log it; `together` says that every process is at this point."""
        fields: dict[str, float] = {}
        for periodic in self.evals:
            with self._autocast():
                run(periodic, step)
            name = "heldout" if periodic.label == "rl_eval" else periodic.label
            for point in periodic.history[self._logged[periodic.label] :]:
                # An eval in the background ends late: loggers of the dispatcher have its step.
                if point.step == step:
                    fields |= log_fields(point, name)
            self._logged[periodic.label] = len(periodic.history)
        if fields:
            with untouched_random_state():
                self._log(fields, step)
        ranks = current_ranks()
        if self._share is not None and (together or ranks.world == 1):
            # Only the first process has the points, and processes that decide by them differently
            # would wait for each other for ever.
            self._share(agree(ranks, fields, dict[str, float]))
