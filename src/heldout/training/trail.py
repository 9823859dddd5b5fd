"""The points of one eval: those of this start of its training, and of earlier ones.

What they are in is a run directory (`home.py`); here it is decided which of them a training has
already, and which could not stand beside its own.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.store.rundir import RunInfo
from heldout.training.comparable import check_config, check_functions
from heldout.training.curve import CurvePoint, current_points, forget_stop, read_points
from heldout.training.home import home_of

log = logging.getLogger("heldout")


class Trail:
    """`owner` is the `PeriodicEval` whose points these are."""

    def __init__(self, label: str, run_dir: Path, owner: Any) -> None:
        self.history: list[CurvePoint] = []
        """Points of this start of the training."""
        self.home = home_of(run_dir, owner)
        self.session = self.home.session
        self.entered = False
        self._label, self._run_dir, self._owner = label, run_dir, owner
        self._earlier: list[CurvePoint] = []
        self._functions: dict[str, Any] = {}
        self._has_results = False

    # --- Which points there are ---

    @property
    def points(self) -> list[CurvePoint]:
        """The curve as it stands, by step."""
        return current_points([*self._earlier, *self.history])

    def points_with(self, point: CurvePoint) -> list[CurvePoint]:
        """The curve as it will stand with this one."""
        if self._is_late(point):
            return current_points([*self._earlier, point, *self.history])
        return current_points([*self._earlier, *self.history, point])

    def add(self, point: CurvePoint) -> None:
        (self._earlier if self._is_late(point) else self.history).append(point)

    def _is_late(self, point: CurvePoint) -> bool:
        """Of an earlier start: among the points of this one it would seem to be later."""
        return point.session != self.session

    def start_again(self) -> None:
        """The counter went back: another training, or this one from a checkpoint."""
        self._earlier += self.history
        self.history.clear()
        self.session = self.home.begin_session()

    def known_at(self, step: int, weights: str | None, *, whole: bool) -> CurvePoint | None:
        """A result of an earlier start that need not be repeated: same step, same weights."""
        for point in self.points:
            if (
                point.step == step
                and point.session != self.session
                and point.has_result
                and point.partial is None
                and (_is_whole(point) or not whole)
                and _same(point.weights, weights)
            ):
                return point
        return None

    def is_settled(self, step: int, weights: str | None) -> bool:
        """Whether these last weights need no further eval: the last line of the step is theirs."""
        point = self.last_at(step)
        if point is None or not _same(point.weights, weights):
            return False
        if not point.has_result:
            # The same weights would be skipped for the same reason. In the background the reason
            # may have been that there was no time, or no room.
            return point.lag_steps is None
        return _is_whole(point) or point.partial is not None

    def last_at(self, step: int) -> CurvePoint | None:
        """The last line of this attempt at a step; None where there is none."""
        return next((p for p in reversed(self.history) if p.step == step), None)

    # --- The run directory ---

    def enter(self, config: dict[str, Any], functions: dict[str, Any]) -> list[CurvePoint]:
        """Continue the curve in the run directory, or begin one.

        Args:
            config: What is evaluated.
            functions: What is known, before training, of how it is run and scored.

        Returns:
            Points of earlier attempts.

        Raises:
            ResumeMismatch: The curve is of something else.
        """
        run = self.home.run
        self.home.enter()
        self.session = self.home.join(self._owner)
        has_results = any(p.has_result for p in self._own_points())
        info = self.home.read_config()
        if info is not None:
            check_config(run.path, info.config, config, has_results=has_results)
            if has_results:
                check_functions(run.path, info.functions, functions)
                functions = info.functions
        self._functions = functions
        self._has_results = has_results
        self.home.take_over()
        self._earlier = self._own_points()
        self.entered = True
        run.write_info(RunInfo.new(config, self._functions))
        forget_stop(run.path)
        return self._earlier

    def _own_points(self) -> list[CurvePoint]:
        return [p for p in read_points(self.home.run.curve) if p.label == self._label]

    def admit(self, functions: dict[str, Any]) -> None:
        """Let a runner's results onto the curve; ResumeMismatch where they do not belong there."""
        if self._has_results:
            self.check_functions(functions)
            return
        self._has_results = True  # all that follow are held to this one
        self._functions = {**self._functions, **functions}
        run = self.home.run
        if run.run.exists():
            info = run.read_info()
            info.functions = self._functions
            run.write_info(info)

    def check_functions(self, functions: dict[str, Any]) -> None:
        """ResumeMismatch where the curve has results that were measured in another way."""
        if self._has_results:
            check_functions(self._run_dir, self._functions, functions)

    def check_current(self) -> None:
        """InvalidInput where another `PeriodicEval` has taken over the run directory: the points
        of one would hide those of the other."""
        if self.entered and not self.home.is_of(self._owner):
            raise InvalidInput(
                f"another PeriodicEval was set up on {self._run_dir} after this one; give each a "
                "label and a run_dir of its own"
            )

    def say_complete(self) -> None:
        try:
            if self.history:
                self.home.say_complete()
            self.home.close()
        except (RunDirectoryError, OSError) as problem:
            log.warning("%s: %s", self._label, problem)


def _is_whole(point: CurvePoint) -> bool:
    """Whether it is of the whole held-out set."""
    return point.has_result and point.partial is None and point.asked == point.of


def _same(before: str | None, now: str | None) -> bool:
    """Whether these are known to be the same weights. Unknown ones never are."""
    return before is not None and before == now
