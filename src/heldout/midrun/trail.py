"""The points of one eval: those of this start of its training, and of earlier ones.

What they are in is a run directory (`home.py`); here it is decided which of them a training has
already, and which could not stand beside its own.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from heldout.errors import RunDirectoryError
from heldout.midrun.comparable import check_config, check_functions
from heldout.midrun.curve import CurvePoint, current_points, forget_stop, read_points
from heldout.midrun.home import home_of
from heldout.store.rundir import RunInfo

log = logging.getLogger("heldout")


class Trail:
    """`owner` is the `PeriodicEval` whose points these are."""

    def __init__(self, label: str, run_dir: Path, owner: Any) -> None:
        self.history: list[CurvePoint] = []
        """Points of this start of the training."""
        self.home = home_of(run_dir, owner)
        self.session = self.home.join(owner)
        self.entered = False
        self._label, self._run_dir, self._owner = label, run_dir, owner
        self._earlier: list[CurvePoint] = []
        self._functions: dict[str, Any] | None = None
        self._said_not_alone = False

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
        """Whether these last weights need no further eval."""
        for point in self.history:
            if point.step != step:
                continue
            # The same weights would be skipped for the same reason, or cut at the same limit;
            # beside a training the reason may have been that there was no time or no place.
            if not point.has_result and None not in (weights, point.weights):
                known = point.lag_steps is None
            else:
                known = _is_whole(point) or point.partial is not None
            if known and _same(point.weights, weights):
                return True
        return False

    def result_at(self, step: int) -> CurvePoint | None:
        results = [p for p in self.history if p.step == step and p.has_result]
        return results[-1] if results else None

    # --- The run directory ---

    def enter(self, config: dict[str, Any]) -> list[CurvePoint]:
        """Points of earlier starts. A curve of something else is refused, before training
        begins."""
        run = self.home.run
        self.home.enter()
        earlier = self._own_points()
        info = self.home.read_config()
        if info is not None:
            check_config(run.path, info.config, config, has_points=bool(earlier))
            self._functions = info.functions if earlier else None
        self.home.take_over()
        self._earlier = self._own_points()
        self.entered = True
        run.write_info(RunInfo.new(config, self._functions or {}))
        forget_stop(run.path)
        return self._earlier

    def _own_points(self) -> list[CurvePoint]:
        return [p for p in read_points(self.home.run.curve) if p.label == self._label]

    def admit(self, functions: dict[str, Any]) -> None:
        """One curve, one scorer."""
        if self._functions:
            check_functions(self._run_dir, self._functions, functions)
            return
        self._functions = functions
        run = self.home.run
        if run.run.exists():
            info = run.read_info()
            info.functions = functions
            run.write_info(info)

    def check_alone(self) -> None:
        """Two trainings, or one that was set up twice by mistake."""
        if not self._said_not_alone and not self.home.is_of(self._owner):
            self._said_not_alone = True
            log.warning(
                "%s: another PeriodicEval of this process was set up on %s after this one, and "
                "points of one hide those of the other; each needs a run_dir of its own",
                self._label,
                self._run_dir,
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
    """Whether these are the same weights, as far as can be told."""
    return before is None or now is None or before == now
