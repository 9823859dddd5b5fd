"""What the hooks of all trainers share: names in a log, rows of new points, agreeing to stop.

A hook runs in every process of a training. Points and requests to stop are known to the first one
alone, so whether the processes exchange anything is decided by what all of them know: the step, and
which evals were due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from heldout.errors import InvalidInput
from heldout.training.curve.points import CurvePoint, log_fields
from heldout.training.periodic_eval import PeriodicEval
from heldout.training.ranks import agree, current_ranks

log = logging.getLogger("heldout")

DEFAULT_LABEL, DEFAULT_NAME = "rl_eval", "heldout"
STOP_CHECK_STEPS = 50
"""With several processes: how often they agree on a request to stop while no eval is due."""

RunEval = Callable[[PeriodicEval, int], CurvePoint | None]


class LogRow(msgspec.Struct):
    """What a trainer logs of a point."""

    step: int
    fields: dict[str, float]
    cut: bool = False
    """Whether it covers fewer items than the whole set, or none."""


class TrainerHooks:
    """The evals of one trainer.

    Args:
        evals: The evals, each with a label and a run directory of its own.
        get_model: Returns the model, for evals without a `model_getter`.

    Raises:
        InvalidInput: One of them is no `PeriodicEval`, or two have a name or a directory in common.
    """

    def __init__(self, evals: Iterable[PeriodicEval], get_model: Callable[[], Any]) -> None:
        self.evals = tuple(evals)
        self.names = _names(self.evals)
        """What each eval is called in a trainer's log, by label."""
        self._logged = {periodic.label: len(periodic.history) for periodic in self.evals}
        """How many points of its history existed before or have been logged."""
        self._agreed_after: list[int | None] = []
        """The last step at which each eval was due when processes last agreed whether to stop."""
        self._has_stopped = False
        for periodic in self.evals:
            if periodic.model_getter is None:
                periodic.model_getter = get_model

    @property
    def on(self) -> list[PeriodicEval]:
        """Those that are not turned off."""
        return [periodic for periodic in self.evals if periodic.every_steps > 0]

    def begin(self, step: int) -> None:
        """Begin training; above step 0 it resumes, and curves are continued."""
        for periodic in self.on:
            periodic.begin(step, resume=step > 0)
        self._agreed_after = [periodic.last_due for periodic in self.on]
        self._has_stopped = False

    def run(
        self,
        step: int,
        evals: Iterable[PeriodicEval],
        run: RunEval,
        *,
        if_due: bool,
        log_known: bool = True,
    ) -> tuple[dict[str, LogRow], bool]:
        """Run evals, and return what there is to log.

        Args:
            step: The step.
            evals: Which evals.
            run: Runs one of them.
            if_due: Whether it runs only those that are due.
            log_known: Whether a point that an earlier start of this training has is logged again.

        Returns:
            Rows by label; and whether they are the same in every process. Otherwise only the first
            one has them.
        """
        made: dict[str, LogRow] = {}
        is_shared = current_ranks().world == 1
        for periodic in evals:
            is_shared = is_shared or not if_due or periodic.should_run(step)
            point = run(periodic, step)
            if log_known and point is not None and not any(point is p for p in periodic.history):
                made[periodic.label] = self._row(point)
        for periodic in self.on:
            history, logged = periodic.history, self._logged[periodic.label]
            if len(history) < logged:  # its training has begun again
                logged = 0
            for point in history[logged:]:
                # The result of an asynchronous eval comes late: a row of the trainer's would put it
                # at another step. Loggers of the dispatcher have it at its own.
                if point.step == step or point.lag_steps is None:
                    made[periodic.label] = self._row(point)
            self._logged[periodic.label] = len(history)
        if is_shared:
            made = agree(current_ranks(), made, dict[str, LogRow])
        return made, is_shared

    def _row(self, point: CurvePoint) -> LogRow:
        if point.summary is None:
            cut = point.weights is None  # not even begun: max_overhead left no time for it
        else:
            cut = point.partial is not None or point.asked < point.of
        return LogRow(point.step, log_fields(point, self.names[point.label]), cut)

    def must_stop(self, step: int, *, has_evaluated: bool = False) -> bool:
        """Return whether training should stop, the same in every process; say why, once.

        Args:
            step: The step.
            has_evaluated: Whether all processes know that an eval was made just now.
        """
        ranks = current_ranks()
        # By what every process knows without asking: a collective waits for the device, too.
        before, self._agreed_after = self._agreed_after, [p.last_due for p in self.on]
        is_time = self._agreed_after != before or step % STOP_CHECK_STEPS == 0
        if ranks.world > 1 and not (has_evaluated or is_time):
            return False
        asked = [(periodic, periodic.stop_requested_here) for periodic in self.on]
        reasons = [f"{periodic.label}: {reason}" for periodic, reason in asked if reason]
        # Processes that decide differently deadlock, and the first alone knows of all requests.
        must_stop = bool(agree(ranks, bool(reasons), bool))
        if must_stop and reasons and not self._has_stopped:
            log.warning("heldout: training stops at step %s: %s", step, "; ".join(reasons))
        self._has_stopped = self._has_stopped or must_stop
        return must_stop


def _names(evals: Iterable[PeriodicEval]) -> dict[str, str]:
    """Return names by label; no two evals may write to the same keys or the same curve."""
    names: dict[str, str] = {}
    run_dirs: dict[Any, str] = {}
    for periodic in evals:
        if not isinstance(periodic, PeriodicEval):
            raise InvalidInput(f"a trainer takes PeriodicEvals, got {periodic!r:.100}")
        name = DEFAULT_NAME if periodic.label == DEFAULT_LABEL else periodic.label
        if name in names.values():
            raise InvalidInput(
                f"two evals would log as eval_{name}_…; give each a label of its own"
            )
        run_dir = periodic.run_dir.resolve()
        if run_dir in run_dirs:
            raise InvalidInput(
                f"{run_dirs[run_dir]} and {periodic.label} have the same run_dir, "
                f"{periodic.run_dir}; give each its own"
            )
        names[periodic.label], run_dirs[run_dir] = name, periodic.label
    return names
