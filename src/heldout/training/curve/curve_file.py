"""The run directory of a training run: its writer, its attempts, and which curve may be continued.

`CurveFile` is this process' one object for a directory: a `PeriodicEval` and an
`AsyncEvalDispatcher` that share a directory are one attempt of the training run. `EvalHistory` is
the curve of one `PeriodicEval`: points of this attempt and of earlier ones, and whether new results
can be compared with them. Below `steps/` are the conversations of the evals.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from heldout.errors import InvalidInput, ResumeMismatch, RunBusy, RunDirectoryError, RunExists
from heldout.store.fingerprint import PARTS, name_changes
from heldout.store.journal import plain_value
from heldout.store.jsonl import MAX_LINE_BYTES, has_writer, link_error, read_whole, replace_file
from heldout.store.run_dir import RunDir, RunInfo, now
from heldout.training.curve.points import (
    CurvePoint,
    CurveWriter,
    current_points,
    encode_point,
    forget_stop,
    pending_points,
    read_points,
)
from heldout.types import Sample

log = logging.getLogger("heldout")

BARE = {"kind": "midrun"}
"""Config of a run.json without a `PeriodicEval`."""


class CurveFile:
    """A run directory with a curve. Thread-safe. Made by `open_curve_file`."""

    def __init__(self, path: Path) -> None:
        self.run = RunDir(path)
        self.session = ""
        """Id of this attempt of the training run."""
        self.begin_session()
        self.names: set[tuple[str, str, int]] = set()
        """Keys of evals that were scheduled here and did not end in a skip."""
        self.labels: set[str] = set()
        """Labels of the `PeriodicEval`s that write here."""
        self._lock = threading.RLock()
        self._writer: CurveWriter | None = None
        self._unwritten: list[bytes] = []
        self._owners: weakref.WeakSet[Any] = weakref.WeakSet()
        self._periodic_eval: weakref.ref[Any] | None = None
        """The `PeriodicEval` that joined last."""

    # --- Attempts ---

    def enter(self, *, resume: bool) -> None:
        """Lock the curve for as long as this process trains.

        Args:
            resume: Whether to continue an existing curve. A dispatcher and a `PeriodicEval` that
                share a directory continue each other's.

        Raises:
            RunExists: There is a curve, and `resume` is False.
            RunDirectoryError: The directory holds something else, or cannot be written.
        """
        if self.run.exists() and not self.run.curve.exists():
            raise RunDirectoryError(
                f"{self.run.path} holds a run of another kind; use another run_dir"
            )
        if not resume:
            self._refuse_points()
        self.run.make()
        with self._lock:
            writer = self._open()
            self.run.remove_leftovers()
            if not resume:
                self._refuse_points()  # again: only who holds the lock knows that none was added
                if read_points(self.run.curve):
                    # Nothing but skips of a training run that never got a result.
                    failed = self.run.path / "curve.failed.jsonl"
                    replace_file(failed, read_whole(self.run.curve, MAX_LINE_BYTES))
                    writer.lines.clear()

    def _refuse_points(self) -> None:
        if has_points(self.run.path):
            raise RunExists(
                f"{self.run.path} already holds the curve of a training run. Continue it with "
                "resume=True, or use another run_dir for another training run"
            )

    def join(self, periodic_eval: Any, *, resume: bool) -> str:
        """Enter for a `PeriodicEval`, whose points are from now on those of the directory.

        Args:
            periodic_eval: The eval.
            resume: Whether to continue an existing curve, as for `enter`.

        Returns:
            Its attempt: the dispatcher's, if one has opened the directory; a new one for a second
            eval.
        """
        is_dispatchers = self.is_entered and self._periodic_eval is None
        self.enter(resume=resume or is_dispatchers)
        self.labels.add(periodic_eval.label)
        if self.belongs_to(periodic_eval):
            return self.session
        if self._periodic_eval is not None:
            self.begin_session()
        self._periodic_eval = weakref.ref(periodic_eval)
        return self.session

    def belongs_to(self, periodic_eval: Any) -> bool:
        """Whether no other `PeriodicEval` has joined after this one."""
        return self._periodic_eval is not None and self._periodic_eval() is periodic_eval

    @property
    def is_entered(self) -> bool:
        """Whether this process writes to it."""
        return self._writer is not None

    def begin_session(self) -> str:
        """Begin another attempt: training was set up again, or went back to an earlier step."""
        self.session = os.urandom(4).hex()
        return self.session

    # --- The curve ---

    def append(self, point: CurvePoint) -> None:
        """Append a point. A failed write is logged, and retried with the next point.

        Args:
            point: The point. A write-ahead line, or the verdict on a result, is not synced to disk,
                so that training does not wait for it.

        Raises:
            InvalidInput: JSON cannot represent it.
        """
        line = encode_point(point)
        try:
            with self._lock:
                self._unwritten.append(line)
                writer = self._write()
            if not (point.pending or point.adds_verdict):
                writer.lines.sync()  # without the lock: a slow disk would hold up write-ahead lines
        except (RunDirectoryError, OSError) as problem:
            log.error(
                "%s: the point at step %s could not be written to the curve in %s; it is tried "
                "again with the next one",
                point.label,
                point.step,
                self.run.path,
                exc_info=problem,
            )

    def _write(self) -> CurveWriter:
        writer = self._open()
        while self._unwritten:
            writer.append_line(self._unwritten[0])
            del self._unwritten[0]
        return writer

    def _open(self) -> CurveWriter:
        if self._writer is None or not self._writer.lines.is_current:
            self._writer = CurveWriter(self.run.curve)
        return self._writer

    def close(self) -> None:
        """Retry failed writes, and close the file."""
        with self._lock:
            if self._unwritten:
                self._write()
            if self._writer is not None:
                self._writer.close()

    def is_pending(self, point: CurvePoint) -> bool:
        """Whether an eval has no result on the curve."""
        return point.key in {p.key for p in pending_points(read_points(self.run.curve))}

    # --- run.json ---

    def read_config(self) -> RunInfo | None:
        """Read the config that a `PeriodicEval` has written; None without one."""
        if not self.run.run.exists():
            return None
        info = self.run.read_info()
        return None if info.config == BARE else info

    def write_bare_config(self) -> None:
        """Write a run.json, if no `PeriodicEval` does."""
        if self.read_config() is None:
            self.run.write_info(RunInfo.new(BARE, {}))

    def mark_complete(self, *, bare: bool = False) -> None:
        """Mark training as finished.

        Args:
            bare: Only if there is no `PeriodicEval` to do it.
        """
        if not self.run.run.exists() or (bare and self.read_config() is not None):
            return
        info = self.run.read_info()
        info.status, info.finished = "complete", now()
        self.run.write_info(info)


_open_files: weakref.WeakValueDictionary[Path, CurveFile] = weakref.WeakValueDictionary()


def open_curve_file(path: Path, owner: Any) -> CurveFile:
    """Get this process' object for a run directory.

    Args:
        path: The directory.
        owner: The object that writes there. The file stays open as long as one owner lives.

    Returns:
        The open one, or a new one.
    """
    place = path.resolve()
    file = _open_files.get(place)
    if file is None:
        file = _open_files[place] = CurveFile(path)
    file._owners.add(owner)
    return file


def leave_curve_file(file: CurveFile, owner: Any) -> None:
    """Remove an owner. After the last one has left, opening it again begins another attempt."""
    file._owners.discard(owner)
    if not file._owners:
        _open_files.pop(file.run.path.resolve(), None)


def _forget_files() -> None:
    """In a forked child: it must hold neither the locks nor the files of its parent."""
    for file in list(_open_files.values()):
        file._lock = threading.RLock()
        if file._writer is not None:
            file._writer.lines.close_in_child()
    _open_files.clear()


os.register_at_fork(after_in_child=_forget_files)


def has_points(path: Path) -> bool:
    """Whether a run directory has a curve with a result, or an eval that may still get one."""
    curve = RunDir(path).curve
    return curve.exists() and any(p.has_result or p.pending for p in read_points(curve))


def choose_run_dir(base: Path, label: str, *, resume: bool) -> Path:
    """Choose a directory for a training run without a `run_dir`.

    Args:
        base: The first directory; others have -2, -3 … appended.
        label: The eval's name.
        resume: Whether to continue a training run.

    Returns:
        The directory of the only training run, or an unused one.

    Raises:
        InvalidInput: Several could be continued.
    """
    if not resume:
        paths = (base.with_name(name) for name in numbered_names(base.name))
        return next(path for path in paths if not _is_used(path))
    runs = [path for path in numbered_dirs(base) if _label_of(path) == label and _is_used(path)]
    if len(runs) > 1:
        raise InvalidInput(
            "several training runs could be continued: "
            + ", ".join(str(path) for path in runs)
            + "; say which one with run_dir="
        )
    return runs[0] if runs else base


def numbered_names(name: str) -> Iterator[str]:
    """Yield a name, and then that name with -2, -3 … appended."""
    yield name
    yield from (f"{name}-{number}" for number in count(2))


def reserve_name(folder: Path, name: str) -> str:
    """Create a directory of that name, numbered if another eval has it, and return its name."""
    if folder.is_symlink():
        raise link_error(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = numbered_names(name)
    while True:
        free = next(names)
        with suppress(FileExistsError):
            (folder / free).mkdir()
            return free


def numbered_dirs(base: Path) -> list[Path]:
    """List existing directories of that name, with and without a number."""
    pattern = re.compile(re.escape(base.name) + r"(-\d+)?")
    if not base.parent.is_dir():
        return []
    return sorted(path for path in base.parent.iterdir() if pattern.fullmatch(path.name))


def _is_used(path: Path) -> bool:
    """Whether a directory holds a run, or a process writes one there."""
    curve = RunDir(path).curve
    if not curve.exists():
        return RunDir(path).exists()
    try:
        return has_points(path) or has_writer(curve)
    except RunDirectoryError:  # damaged: somebody's, all the same
        return True


def _label_of(path: Path) -> str | None:
    """Read the label of a run directory's eval, if possible."""
    try:
        label = RunDir(path).read_info().config.get("label")
    except RunDirectoryError:
        return None
    return label if isinstance(label, str) else None


# --- The conversations of its evals ---------------------------------------------------------------
# They take the room of a curve. The curve itself keeps the rewards of every sample at every step,
# so verdicts, flips and plots do not need them. What is gone without them: reading answers,
# `RUN@STEP`, comparing two steps, scoring again.


def saved_eval(path: Path, point: CurvePoint) -> Path | None:
    """Find the directory of a point's eval; None where its conversations are not there.

    A curve file may come from anywhere, so what it names is one of the directories under steps/, or
    nothing.
    """
    name = re.fullmatch(f"steps/({point.step:08d}(?:-[0-9]+)?)", point.run or "")
    directory = path / "steps" / name[1] if name else None
    return directory if directory is not None and RunDir(directory).exists() else None


def remove_steps(path: Path, points: Sequence[CurvePoint], keep: int) -> None:
    """Remove conversations until only those of `keep` evals are left.

    Kept are those of the first eval, of the best and of the last one, and then of the newest.

    Args:
        path: The run directory.
        points: The curve of one eval, by step; the last one has a verdict, which names the best.
        keep: How many to keep, 3 at least.

    Raises:
        OSError: A directory cannot be removed.
    """
    found = [(point, saved_eval(path, point)) for point in points]
    saved = [(point.step, directory) for point, directory in found if directory is not None]
    if len(saved) <= keep:
        return
    best = next((p.verdict.get("best_step") for p in reversed(points) if p.verdict), None)
    wanted = [saved[0], saved[-1], *(own for own in saved if own[0] == best), *reversed(saved)]
    kept = [*dict.fromkeys(directory for _, directory in wanted)][:keep]
    for directory in dict.fromkeys(directory for _, directory in saved):
        if directory not in kept:
            shutil.rmtree(directory)


def explain_missing(path: Path, points: Sequence[CurvePoint], point: CurvePoint) -> str | None:
    """Say that the conversations of a point were saved and are gone, and which are there.

    Args:
        path: The run directory.
        points: The curve that the point is of.
        point: The point.

    Returns:
        The sentence; None where they are there, or never were.
    """
    if point.run is None or saved_eval(path, point) is not None:
        return None
    steps = sorted({p.step for p in points if saved_eval(path, p) is not None})
    there = f"those of {', '.join(map(str, steps))} are there" if steps else "none are there"
    return (
        f"the answers of step {point.step} are no longer in steps/ (keep_steps= removes all but "
        f"the first, the best and the last ones); {there}"
    )


# --- What one eval knows of its curve -------------------------------------------------------------


class EvalHistory:
    """Points of one `PeriodicEval`: those of this attempt, and of earlier ones.

    Making it begins a curve in the run directory, or continues an existing one.

    Args:
        owner: The `PeriodicEval`.
        run_dir: The run directory.
        config: What is evaluated.
        functions: How it is run and scored, as far as known before training.
        resume: Whether to continue an existing curve.

    Raises:
        RunExists: There is a curve, and `resume` is False.
        ResumeMismatch: The curve is that of another eval.
    """

    def __init__(
        self,
        owner: Any,
        run_dir: Path,
        config: dict[str, Any],
        functions: dict[str, Any],
        *,
        resume: bool,
    ) -> None:
        self._owner = owner
        self.file = file = open_curve_file(run_dir, owner)
        self.session = file.join(owner, resume=resume)
        """Its attempt. That of the file is a newer one once another `PeriodicEval` was set up on
        the directory: what this one still writes must not be taken for a point of that."""
        self.all_points = [p for p in read_points(file.run.curve) if p.label == owner.label]
        """Those of all attempts, superseded ones too, in the order of the attempts."""
        self.follows: int | None = None
        """Last step at which this attempt is known to have had the weights of earlier ones; None:
        it has not begun, or there is no earlier one."""
        self._has_results = any(p.has_result for p in self.all_points)
        info = file.read_config()
        if info is not None:
            _check_config(run_dir, info.config, config, has_results=self._has_results)
            if self._has_results:
                _check_functions(run_dir, info.functions, functions)
                functions = info.functions
        self._functions = functions
        file.run.write_info(RunInfo.new(config, functions))
        forget_stop(run_dir)

    @property
    def points(self) -> list[CurvePoint]:
        """The current points of the curve, by step."""
        return current_points(self.all_points)

    @property
    def attempt(self) -> list[CurvePoint]:
        """Points of this attempt."""
        return [point for point in self.all_points if point.session == self.session]

    @property
    def earlier(self) -> list[CurvePoint]:
        """Points of earlier attempts."""
        return [point for point in self.all_points if point.session != self.session]

    def points_with(self, point: CurvePoint) -> list[CurvePoint]:
        """Return the curve with this point added."""
        return current_points(self._added(point))

    def add(self, point: CurvePoint) -> None:
        """Add a point, of this attempt or of an earlier one."""
        self.all_points = self._added(point)

    def _added(self, point: CurvePoint) -> list[CurvePoint]:
        """Return all points with this one behind those of its attempt."""
        own = [i for i, known in enumerate(self.all_points) if known.session == point.session]
        place = own[-1] + 1 if own else len(self.all_points)
        return [*self.all_points[:place], point, *self.all_points[place:]]

    def drop_pending(self, key: tuple[str, str, int]) -> None:
        """Drop the write-ahead line of an eval that has ended, or that another line replaces."""
        self.all_points = [p for p in self.all_points if not (p.pending and p.key == key)]

    def begin_attempt(self) -> None:
        """Begin another attempt, because the step counter went back."""
        self.follows = None
        self.session = self.file.begin_session()

    def continue_attempt(self) -> None:
        """Continue the last attempt on the curve: this process follows training from outside."""
        if self.all_points:
            self.session = self.file.session = self.all_points[-1].session
            self.follows = next((point.follows for point in reversed(self.attempt)), None)

    def follow(self, step: int) -> None:
        """Note that at this step the attempt has the weights of earlier ones, if there are any."""
        if self.earlier:
            self.follows = max(self.follows or 0, step)

    def known_at(self, step: int, weights: str | None, *, whole: bool) -> CurvePoint | None:
        """Find the result of an earlier attempt on the same weights.

        Args:
            step: The step.
            weights: Hash of the weights; None never matches.
            whole: Whether it must be over the whole held-out set.

        Returns:
            The point with that step and hash, or None.
        """
        for point in self.points:
            if (
                point.step == step
                and point.session != self.session
                and point.has_result
                and point.partial is None
                and (is_whole(point) or not whole)
                and weights is not None
                and point.weights == weights
            ):
                return point
        return None

    def is_settled(self, step: int, weights: str | None) -> bool:
        """Whether the last weights need no further eval: the last point of the step is theirs."""
        point = self.last_at(step)
        if point is None or weights is None or point.weights != weights:
            return False
        if not point.has_result:
            # The same weights would be skipped for the same reason. In the background the reason
            # may have been that there was no time, or no room.
            return point.lag_steps is None
        return is_whole(point) or point.partial is not None

    @property
    def last_prompt(self) -> str | None:
        """The rendered prompt of the first sample, as this attempt has last stored it."""
        return next((p.prompt for p in reversed(self.attempt) if p.prompt is not None), None)

    def last_at(self, step: int) -> CurvePoint | None:
        """Return the last point of this attempt at a step, or None."""
        return next((p for p in reversed(self.attempt) if p.step == step), None)

    # --- The run directory ---

    def admit(self, functions: dict[str, Any]) -> None:
        """Compare a runner with run.json; the first one is recorded there.

        Args:
            functions: `describe_runner` of the runner.

        Raises:
            ResumeMismatch: They cannot.
        """
        if self._has_results:
            self.check_functions(functions)
            return
        self._has_results = True  # all that follow are held to this one
        self._functions = {**self._functions, **functions}
        run = self.file.run
        if run.run.exists():
            info = run.read_info()
            info.functions = self._functions
            run.write_info(info)

    def check_functions(self, functions: dict[str, Any]) -> None:
        """Raise ResumeMismatch if the curve's results were measured in another way."""
        if self._has_results:
            _check_functions(self.file.run.path, self._functions, functions)

    def check_current(self) -> None:
        """Check that no other `PeriodicEval` has taken over the run directory.

        Raises:
            InvalidInput: One has: its points would hide those of the other.
        """
        if not self.file.belongs_to(self._owner):
            raise InvalidInput(
                f"another PeriodicEval was set up on {self.file.run.path} after this one; give "
                "each its own label and run_dir"
            )

    def mark_complete(self) -> None:
        """Mark training as finished in run.json, and close the curve."""
        try:
            if self.points:  # of earlier attempts, too: all may have been measured before a kill
                self.file.mark_complete()
            self.file.close()
        except (RunDirectoryError, OSError) as problem:
            log.warning("%s: %s", self._owner.label, problem)


def open_history(
    owner: Any,
    base: Path,
    config: dict[str, Any],
    functions: dict[str, Any],
    *,
    is_named: bool,
    resume: bool,
) -> EvalHistory:
    """Begin or continue the curve of a `PeriodicEval`.

    Args:
        owner: The `PeriodicEval`.
        base: The run directory; without a name of the user's, the first of those to choose from.
        config: What is evaluated, as `curve_config` makes it.
        functions: How it is run and scored.
        is_named: Whether the user has named the run directory.
        resume: Whether to continue an existing curve.

    Raises:
        RunExists: As for `EvalHistory`.
        ResumeMismatch: As for `EvalHistory`.
    """
    while True:
        run_dir = base if is_named else choose_run_dir(base, owner.label, resume=resume)
        try:
            history = EvalHistory(owner, run_dir, config, functions, resume=resume)
        except RunBusy:  # another training run has begun there since it was chosen
            if is_named or resume:
                raise
            continue
        if run_dir != base:
            log.warning(
                "%s: the curve of this training run is in %s; %s has another one",
                owner.label,
                run_dir,
                base,
            )
        return history


def curve_config(label: str, samples: Sequence[Sample], **settings: Any) -> dict[str, Any]:
    """Make the config of a curve: what is evaluated, which other points are compared by."""
    return {
        "kind": "midrun",
        "label": label,
        "n": len(samples),
        "samples": hash_samples(samples),
        **settings,
    }


def hash_samples(samples: Sequence[Sample]) -> str:
    """Hash the content of samples, the same after a restart."""
    content = hashlib.sha256()
    for sample in samples:
        content.update(msgspec.json.encode(sample, enc_hook=plain_value) + b"\n")
    return content.hexdigest()[:16]


def is_whole(point: CurvePoint) -> bool:
    """Whether a result is over the whole held-out set."""
    return point.has_result and point.partial is None and point.asked == point.of


# --- One curve, one eval --------------------------------------------------------------------------


def _check_config(
    path: Path, before: Mapping[str, Any], now: Mapping[str, Any], *, has_results: bool
) -> None:
    different = [
        f"{key} was {before.get(key)!r}, is now {now[key]!r}"
        for key in now
        if key not in ("every_steps", "monitor") and before.get(key) != now[key]
    ]
    if different and (has_results or before.get("label") != now["label"]):
        raise ResumeMismatch(
            f"{path} has a curve whose points cannot be compared with these: "
            + "; ".join(different)
            + ". Undo the change, or use another run_dir"
        )


def _check_functions(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changed = [name for name in now if name != PARTS and before.get(name) != now[name]]
    parts = before.get(PARTS) or {}, now.get(PARTS) or {}
    if "settings" in changed:
        old, new = before.get("settings") or {}, now["settings"]
        changed.remove("settings")
        changed += [
            f"{key} (was {old.get(key)!r}, is now {new[key]!r})"
            for key in new
            if old.get(key) != new[key]
        ]
    if changed:
        told = []
        for name in changed:
            changes = name_changes(parts[0].get(name), parts[1].get(name))
            told.append(f"{name} (changed: {changes})" if changes else name)
        raise ResumeMismatch(
            f"the curve in {path} was measured with another {' and another '.join(told)}, so "
            "new points cannot be compared with it. Undo the change, or use another run_dir. (If a "
            "function changes between launches without changing results, by a port or a path, give "
            "it a version: heldout.training.set_version)"
        )
