"""Evals that are scheduled and not finished: who may join them, and what the disk knows of them.

`Queue` is the policy, without threads or clocks. `pending.json` names what is under way, so that
a training that was killed can tell, when it is started again, which results are missing, and finish
them where their weights were saved (`pending_evals`). It is replaced as a whole, but not forced to
the disk: a killed process loses nothing of it, and scheduling an eval stays cheap.
"""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar, get_args

import msgspec

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.store.lines import UNREADABLE, read_whole, refuse_unknown, storage_error
from heldout.training.curve import CURVE_NAME, CurvePoint, Step, read_points

WhenFull = Literal["wait", "skip", "newest"]
T = TypeVar("T")


# --- What whoever schedules gets ----------------------------------------------------------------


class Ended(NamedTuple):
    name: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """What became of the evals that were pending when `drain` began."""

    finished: list[tuple[str, int]] = field(default_factory=list)
    """(name, step)."""
    skipped: list[Ended] = field(default_factory=list)
    abandoned: list[Ended] = field(default_factory=list)
    """Had not ended when time was up. A result that comes after all is not recorded."""
    seconds: float = 0.0


@dataclass(eq=False)
class Scheduled:
    """One eval on its way. Held by nobody but whoever called `schedule`."""

    step: int
    name: str
    _in_loop: Callable[[], bool] = field(repr=False)
    _wait: Callable[[Sequence[Scheduled], float | None], None] = field(repr=False)
    point: CurvePoint | None = None
    """Once it has ended."""
    is_new: bool = True
    """Whether that point was measured now; an earlier start of the training may have had it."""
    _done: bool = False

    def done(self) -> bool:
        """Whether it has ended, as a result or as a skip."""
        return self._done

    def end(self, point: CurvePoint | None, *, is_new: bool = True) -> None:
        """By whoever runs it."""
        self.point, self.is_new, self._done = point, is_new, True

    def result(self, timeout: float | None = None) -> CurvePoint | None:
        """Its point, waited for; None where it has not ended in time."""
        if not self.done() and timeout != 0:
            if self._in_loop():
                raise InvalidInput(
                    "result() would wait in the event loop that the eval runs in, for ever; "
                    "`await dispatcher.adrain()` first"
                )
            self._wait([self], timeout)
        return self.point


# --- The queue ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Offer(Generic[T]):
    """What became of one that wants to join: taken, refused with a reason, or neither: to wait."""

    taken: bool = False
    dropped: T | None = None
    """The one that gave up its place."""
    refused: str | None = None

    @property
    def waits(self) -> bool:
        return not self.taken and self.refused is None


class Queue(Generic[T]):
    """At most `max_running` run, and at most `max_pending` run or wait for their turn."""

    def __init__(self, max_pending: int, max_running: int | None, when_full: WhenFull) -> None:
        if max_running is None:
            # Only what has not started can give way to something newer: one place for that.
            max_running = max(1, max_pending - 1) if when_full == "newest" else max_pending
        for name, value in (("max_pending", max_pending), ("max_running", max_running)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name} is a whole number >= 1, got {value!r}")
        if when_full not in get_args(WhenFull):
            raise InvalidInput(f"when_full is 'wait', 'skip' or 'newest', got {when_full!r}")
        self.max_pending, self.max_running = max_pending, max_running
        self.when_full: WhenFull = when_full
        self._running: list[T] = []
        self._queued: deque[T] = deque()

    def __len__(self) -> int:
        return len(self._running) + len(self._queued)

    def items(self) -> list[T]:
        return [*self._running, *self._queued]

    def offer(self, item: T, *, must: bool = False) -> Offer[T]:
        """`must`: it waits for its place, and nobody gives way to it."""
        dropped = None
        if len(self) >= self.max_pending:
            if self.when_full == "wait" or must:
                return Offer()
            if self.when_full == "skip" or not self._queued:
                return Offer(
                    refused=f"{len(self)} evals were in flight (max_pending={self.max_pending}); "
                    "when_full='wait' has training wait instead"
                )
            dropped = self._queued.popleft()
        self._queued.append(item)
        return Offer(taken=True, dropped=dropped)

    def start(self) -> list[T]:
        """Those that may begin now; from here on they run."""
        room = min(self.max_running - len(self._running), len(self._queued))
        begun = [self._queued.popleft() for _ in range(room)]
        self._running += begun
        return begun

    def oldest(self, which: Callable[[T], bool]) -> T | None:
        """Of those that have not started."""
        return next((item for item in self._queued if which(item)), None)

    def remove(self, item: T) -> None:
        """Finished, or given up on; nothing to do where it was dropped before."""
        if item in self._running:
            self._running.remove(item)
        elif item in self._queued:
            self._queued.remove(item)


# --- The file -----------------------------------------------------------------------------------

PENDING_NAME = "pending.json"
FORMAT, VERSION = "heldout.pending", 1


class PendingEval(msgspec.Struct, frozen=True, omit_defaults=True):
    """An eval that was scheduled, and has no result."""

    name: str
    step: Step
    session: str
    """The start of the training that it belongs to, and whose point its result will be."""
    weights: str | None = None
    saved_at: str | None = None
    """Where its weights were saved, in the words of whoever scheduled it. Never followed here."""
    lost: bool = False
    """Whether it was given up on, if only once: it has a skip on the curve, and may yet have a
    result."""

    @property
    def key(self) -> tuple[str, str, int]:
        return (self.session, self.name, self.step)


def checked_step(step: int) -> int:
    try:
        found = operator.index(step)
    except TypeError:
        found = -1
    if not 0 <= found <= 2**53:
        raise InvalidInput(f"step is a whole number, from 0, got {step!r:.100}")
    return found


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise InvalidInput(f"name is what the eval is called on the curve, got {name!r}")
    return name


def checked_place(saved_at: str | os.PathLike[str] | None) -> str | None:
    place = None if saved_at is None else os.fspath(saved_at)
    try:
        if place is not None:
            place.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidInput(f"saved_at is a path that can be written down, got {place!a}") from None
    return place


def checked_weights(weights: str | None) -> str | None:
    if weights is not None and not (isinstance(weights, str) and weights.isprintable()):
        raise InvalidInput(f"weights is a hash of them, as a text, got {weights!r:.100}")
    return weights


class PendingFile(msgspec.Struct):
    """pending.json."""

    format: str
    version: int
    evals: list[PendingEval]


def write_pending(run: Path, evals: Iterable[PendingEval]) -> None:
    path = run / PENDING_NAME
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    content = msgspec.json.encode(PendingFile(FORMAT, VERSION, list(evals))) + b"\n"
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as problem:
        raise storage_error(path, problem) from problem


def pending_evals(run_dir: str | Path) -> list[PendingEval]:
    """Evals of this run that have no result, by step: under way, or lost with their process.

    `AsyncEvalDispatcher.schedule_again` takes one of them.
    """
    if not Path(run_dir).is_dir():
        raise RunDirectoryError(f"there is no run directory {run_dir}")
    return [left.eval for left in left_evals(Path(run_dir))]


@dataclass(frozen=True, slots=True)
class Left:
    eval: PendingEval
    on_curve: bool
    """Whether the curve has a line, a skip, for it."""


def left_evals(run: Path) -> list[Left]:
    """The process may have died after the line and before pending.json: the curve decides."""
    evals = _read(run / PENDING_NAME)
    curve = run / CURVE_NAME
    points = read_points(curve) if evals and curve.exists() else []
    lines = {(p.session, p.label, p.step) for p in points}
    results = {(p.session, p.label, p.step) for p in points if p.has_result}
    left = []
    for pending in sorted(evals, key=lambda e: (e.step, e.name)):
        place = (pending.session, pending.name, pending.step)
        if place not in (results if pending.lost else lines):
            left.append(Left(pending, place in lines))
    return left


def _read(path: Path) -> list[PendingEval]:
    try:
        raw = read_whole(path)
    except FileNotFoundError:
        return []
    if not raw:
        return []  # the machine went down before it was on the disk
    refuse_unknown(path, raw, FORMAT, VERSION)
    try:
        return msgspec.json.decode(raw, type=PendingFile).evals
    except UNREADABLE as problem:
        raise RunDirectoryError(
            f"{path} cannot be read: {problem}; remove it, and only the evals it names are lost"
        ) from None
