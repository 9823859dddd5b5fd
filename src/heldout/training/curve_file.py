"""A run directory with a curve, as this process has it: one object for all who write there.

`Home` is the directory; `Trail` decides which points of earlier attempts an eval has already, and
refuses a curve of another eval.

A `PeriodicEval` and an `AsyncEvalDispatcher` may share a directory. They then are one start of the
training, one session: results of another would say that training went back to their step.
Points come from any thread.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from heldout.errors import InvalidInput, ResumeMismatch, RunDirectoryError
from heldout.store.rundir import RunDir, RunInfo, now
from heldout.training.curve import (
    CurvePoint,
    CurveWriter,
    current_points,
    curve_writer,
    encode_point,
    forget_stop,
    read_points,
)
from heldout.training.pending import PendingEval, left_evals, write_pending
from heldout.training.results import skip_of

log = logging.getLogger("heldout")

BARE = {"kind": "midrun"}
"""The config of a run.json that says nothing of an eval; a `PeriodicEval` says more."""


class Home:
    """Made by `home_of`."""

    def __init__(self, path: Path) -> None:
        self.run = RunDir(path)
        self.session = os.urandom(4).hex()
        """This start of the training."""
        self._writing = threading.RLock()
        """Held while lines are written, and made sure of: a slow disk holds it for long."""
        self._listing = threading.RLock()
        """Held while evals under way are looked at, and pending.json is replaced."""
        self.names: set[tuple[str, str, int]] = set()
        """Session, name and step of evals that were scheduled here and did not end in a skip."""
        self.labels: set[str] = set()
        """Of the `PeriodicEval`s that write here."""
        self._eval: weakref.ref[Any] | None = None
        """The `PeriodicEval` that was set up here last."""
        self._curve: CurveWriter | None = None
        self._unwritten: list[CurvePoint] = []
        self._under_way: list[PendingEval] = []
        self._with_skip: set[tuple[str, int, str]] = set()
        """Of those under way, which have a skip on the curve already."""
        self._hashes: dict[tuple[str, int, str], str] = {}
        """Weights of those under way, once they are known."""
        self._left: list[PendingEval] = []
        self._took_over = False
        self._on_curve: set[str] = set()
        """Sessions that this process has written a line of."""
        self._owners: weakref.WeakSet[Any] = weakref.WeakSet()

    def join(self, periodic: Any) -> str:
        """The session of a `PeriodicEval` that is set up here: that of the dispatcher, if one was
        here before; a new one, if it is a second start of the training in one process."""
        self.labels.add(periodic.label)
        if self.is_of(periodic):
            return self.session
        first, self._eval = self._eval is None, weakref.ref(periodic)
        return self.session if first else self.begin_session()

    def is_of(self, periodic: Any) -> bool:
        """Whether no other was set up here after it."""
        return self._eval is not None and self._eval() is periodic

    def begin_session(self) -> str:
        """Another start of the training: set up anew, or gone back to an earlier step."""
        with self._listing:
            first = [p for p in self._under_way if p.session == self.session][:1]
            if first and self.session not in self._on_curve:
                # Sessions come in the order of their first lines: were its result the first, this
                # one would seem to be the later one. It stays in pending.json, as one that has a
                # skip and may yet have a result.
                self._with_skip.add(_place(first[0]))
                self._write_pending()
                self.record(skip_of(first[0], "training went back before it was finished"))
            self.session = os.urandom(4).hex()
        return self.session

    def enter(self) -> None:
        """Hold the curve for as long as this training lives: two of them would make a wrong one."""
        if self.run.exists() and not self.run.curve.exists():
            raise RunDirectoryError(
                f"{self.run.path} holds a run of another kind; use another run_dir"
            )
        self.run.make()
        with self._writing:
            self._curve = curve_writer(self.run.curve)

    # --- The curve ---

    def record(self, point: CurvePoint) -> None:
        """Append it. What goes wrong is said in the log, and tried again with the next point."""
        try:
            encode_point(point)
        except InvalidInput as problem:
            log.error("%s", problem)
            return
        if point.has_result and point.session == self.session:
            with self._listing:
                if self._forget_beyond(point.step):
                    self._write_pending()
        with self._writing:
            self._unwritten.append(point)
            try:
                self._write()
            except Exception as problem:
                log.error(
                    "%s: the point at step %s could not be written to the curve in %s; it is "
                    "tried again with the next one",
                    point.label,
                    point.step,
                    self.run.path,
                    exc_info=problem,
                )

    def _write(self) -> None:
        self._curve = curve_writer(self.run.curve)
        while self._unwritten:
            self._curve.append(self._unwritten[0])
            self._on_curve.add(self._unwritten[0].session)
            del self._unwritten[0]

    def close(self) -> None:
        with self._writing:
            if self._unwritten:
                self._write()
            if self._curve is not None:
                self._curve.close()

    # --- run.json ---

    def read_config(self) -> RunInfo | None:
        """What a `PeriodicEval` has written; None where none was here."""
        if not self.run.run.exists():
            return None
        info = self.run.read_info()
        return None if info.config == BARE else info

    def write_bare_config(self) -> None:
        if self.read_config() is None:
            self.run.write_info(RunInfo.new(BARE, {}))

    def say_complete(self, *, bare: bool = False) -> None:
        """Training has come to its end. `bare`: only where no `PeriodicEval` is to say so."""
        if not self.run.run.exists() or (bare and self.read_config() is not None):
            return
        info = self.run.read_info()
        info.status, info.finished = "complete", now()
        self.run.write_info(info)

    # --- Evals under way ---

    def take_over(self) -> None:
        """What earlier starts of the training have left, once."""
        if self._took_over:
            return
        unfinished = left_evals(self.run.path)
        self._took_over = True
        if not unfinished:
            return
        with self._listing:
            self._left += [msgspec.structs.replace(left.eval, lost=True) for left in unfinished]
            self._write_pending()  # before their lines: a skip without this mark is a failure
        for left in unfinished:
            if not left.on_curve:
                # So that every eval that was scheduled has a line, and earlier starts of the
                # training come before this one on the curve, whatever is finished late.
                self.record(skip_of(left.eval, "the process ended before it was finished"))

    def begun(self, pending: PendingEval) -> None:
        """It is under way."""
        with self._listing:
            self._left = [left for left in self._left if _place(left) != _place(pending)]
            if pending.session == self.session:
                self._forget_beyond(pending.step)
            self._under_way.append(pending)
            self._write_pending()

    def _forget_beyond(self, step: int) -> bool:
        """A training that is at this step again has gone back: what earlier starts of it left at
        later steps is of weights that are no more."""
        kept = [p for p in self._left if p.session == self.session or p.step < step]
        forgotten = len(kept) < len(self._left)
        self._left = kept
        return forgotten

    def identify(self, pending: PendingEval, weights: str) -> None:
        """Those are the weights that it measures."""
        with self._listing:
            if pending in self._under_way:
                self._hashes[_place(pending)] = weights
                self._write_pending()

    def is_left(self, pending: PendingEval) -> bool:
        """Whether it still has no result, and nobody is at it."""
        with self._listing:
            return any(_place(left) == _place(pending) for left in self._left)

    def lost(self, pending: PendingEval) -> None:
        """It is given up on. Before its line is written: a skip without this mark is a failure."""
        with self._listing:
            if pending in self._under_way:
                self._under_way.remove(pending)
                self._left.append(self._known(pending, lost=True))
                self._write_pending()

    def ended(self, pending: PendingEval, *, has_result: bool) -> None:
        """Its line is written, if it is to have one. What was lost before, and failed again, may
        be tried once more."""
        with self._listing:
            if pending in self._under_way:
                self._under_way.remove(pending)
                if pending.lost and not has_result:
                    self._left.append(pending)
                self._hashes.pop(_place(pending), None)
                self._write_pending()

    def _known(self, pending: PendingEval, *, lost: bool) -> PendingEval:
        weights = pending.weights or self._hashes.get(_place(pending))
        return msgspec.structs.replace(pending, lost=pending.lost or lost, weights=weights)

    def _write_pending(self) -> None:
        under_way = [
            self._known(each, lost=_place(each) in self._with_skip) for each in self._under_way
        ]
        try:
            write_pending(self.run.path, [*self._left, *under_way])
        except Exception as problem:
            log.warning("evals under way could not be written down", exc_info=problem)


def _place(pending: PendingEval) -> tuple[str, int, str]:
    return pending.name, pending.step, pending.session


_homes: weakref.WeakValueDictionary[Path, Home] = weakref.WeakValueDictionary()


def home_of(path: Path, owner: Any) -> Home:
    """The one that somebody in this process has, or a new one."""
    place = path.resolve()
    home = _homes.get(place)
    if home is None:
        home = _homes[place] = Home(path)
    home._owners.add(owner)
    return home


def leave(home: Home, owner: Any) -> None:
    """Whoever comes after its last owner is another start of the training."""
    home._owners.discard(owner)
    if not home._owners:
        _homes.pop(home.run.path.resolve(), None)


def _forget() -> None:
    """In a forked child: another thread of the parent may have held these locks."""
    for home in list(_homes.values()):
        home._writing, home._listing = threading.RLock(), threading.RLock()
    _homes.clear()


os.register_at_fork(after_in_child=_forget)


# --- The points of one eval: those of this start of its training, and of earlier ones -------------

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


# --- One curve, one question: points that could not be compared are not put side by s -------------


def check_config(
    path: Path, before: Mapping[str, Any], now: Mapping[str, Any], *, has_results: bool
) -> None:
    """ResumeMismatch where this run directory has the curve of another eval."""
    different = [
        f"{key} was {before.get(key)!r}, is now {now[key]!r}"
        for key in now
        if key != "every_steps" and before.get(key) != now[key]
    ]
    if different and (has_results or before.get("label") != now["label"]):
        raise ResumeMismatch(
            f"{path} has a curve whose points could not be compared with these: "
            + "; ".join(different)
            + ". Undo the change, or use another run_dir"
        )


def check_functions(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """ResumeMismatch where the curve was measured or scored in another way."""
    changed = [name for name in now if name not in before or before[name] != now[name]]
    if "settings" in changed:
        old, new = before.get("settings") or {}, now["settings"]
        changed.remove("settings")
        changed += [
            f"{key} (was {old.get(key)!r}, is now {new[key]!r})"
            for key in new
            if old.get(key) != new[key]
        ]
    if changed:
        raise ResumeMismatch(
            f"the curve in {path} was measured with another {' and another '.join(changed)}, so "
            "new points could not be compared with it. Undo the change, or use another run_dir. (A "
            "function that differs from launch to launch in what changes no number, a port or a "
            "path, can be given a version: heldout.fingerprints.set_version)"
        )
