"""curve.jsonl: one line per evaluation point, written while the policy trains.

Lines are only appended, by the one process that holds the file. An eval that runs in the background
has a write-ahead line ("scheduled, not finished") from the moment it is scheduled; its result
supersedes that line, and after a `kill -9` the line is what remains. Which points make up the curve
is decided when it is read (`current_points`): a training run that was restarted from a checkpoint
leaves points behind that a later attempt supersedes. A file `stop` in the same directory asks the
training to stop.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec

from heldout.errors import HeldoutError, InvalidInput
from heldout.store.journal import UNENCODABLE, cluster_of, plain_value
from heldout.store.jsonl import LineFormat, LineWriter, lines, open_to_read
from heldout.store.jsonl import repair as repair_lines
from heldout.store.run_dir import now, replace_file, sync_directory
from heldout.types import EvalResult

CURVE = LineFormat(
    "heldout.curve",
    1,
    noun="curve",
    line="point",
    if_busy="wait for it, or use another run directory",
)
CURVE_NAME, STOP_NAME = "curve.jsonl", "stop"

LAST_STEP = 2**53
"""Larger ones are no steps, and would not fit the floats of a plot."""
Step = Annotated[int, msgspec.Meta(ge=0, le=LAST_STEP)]


def check_step(step: Any) -> int:
    """The step as an int: a counter may be a numpy integer, or a float without a fraction."""
    try:
        number = int(step)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if number != step or not 0 <= number <= LAST_STEP:
        raise InvalidInput(f"step is a whole number, from 0, got {step!r:.100}")
    return number


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one item."""

    id: str
    reward: float | None = None
    """None: the item errored, it has no score."""
    repeat: int = 0
    error: str | None = None
    truncated: bool = False
    copy_of: str | None = None
    """The first sample of the same content, where this one is a copy: they are one cluster."""


def outcomes_of(results: Iterable[EvalResult]) -> tuple[Outcome, ...]:
    """The outcomes of an eval's results, in their order."""
    first: dict[int, str] = {}
    outcomes = []
    for result in results:
        id = result.sample_id
        original = first.setdefault(cluster_of(result.sample), id)
        outcomes.append(
            Outcome(
                id,
                result.score.reward if result.ok else None,
                result.repeat,
                None if result.error is None else result.error[:300],
                result.trajectory.stop.truncated,
                None if original == id else original,
            )
        )
    return tuple(outcomes)


class CurvePoint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One evaluation that was due: its numbers, or why there are none."""

    label: str
    """The eval's name."""
    step: Step
    session: str
    """Which start of the training wrote it."""
    time: str
    """When it was written, UTC."""
    seconds: float
    """What the eval took."""
    summary: dict[str, int | float | bool | None] | None = None
    """As `heldout.stats.summary` gives it; None: skipped."""
    skipped: str | None = None
    """Why there is no summary."""
    partial: str | None = None
    """Why it ended before all that were asked for; the summary is of a complete prefix of the
    fixed order."""
    outcomes: tuple[Outcome, ...] = ()
    asked: int = 0
    """Items that were to be run."""
    of: int = 0
    """Items in the whole held-out set."""
    weights: str | None = None
    """Content hash of the weights that were measured."""
    budget: dict[str, Any] | None = None
    decoding: dict[str, Any] | None = None
    stop: str | None = None
    """Why the monitor asked the training to stop."""
    run: str | None = None
    """The directory, below the run's, that has the conversations. Never followed: only shown."""
    final: bool = False
    lag_steps: int | None = None
    """How many steps training had gone on when the result was there; None: it waited."""
    verdict: dict[str, Any] | None = None
    """What the curve up to here allows one to say (`heldout.training.verdicts`); None: it was not
    judged, or only after this line was written."""
    pending: bool = False
    """There is no result yet, but there may be one: the eval is in flight, or was lost with its
    process, or was given up on. `skipped` says so to readers that do not know of this."""
    saved_at: str | None = None
    """Where the weights of a pending eval were saved. Never followed here."""

    @property
    def key(self) -> tuple[str, str, int]:
        """Attempt, label and step: what tells one eval from another."""
        return (self.session, self.label, self.step)

    @property
    def has_result(self) -> bool:
        """Whether this eval has numbers."""
        return self.summary is not None

    @property
    def reward(self) -> float | None:
        """The mean reward; None where there is none."""
        return self.number("mean")

    @property
    def ci(self) -> tuple[float, float] | None:
        """The 95% interval of the reward."""
        return self.value_and_interval("reward")[1]

    @property
    def n(self) -> int:
        """Items that the summary is of."""
        return int(self.number("n") or 0)

    def number(self, key: str) -> float | None:
        """A number of the summary. A curve may come from anywhere: what is none, is None."""
        value = (self.summary or {}).get(key)
        if value is None or isinstance(value, bool):
            return None
        try:
            value = float(value)
        except OverflowError:
            return None
        return value if math.isfinite(value) else None

    def value_and_interval(self, metric: str) -> tuple[float | None, tuple[float, float] | None]:
        """Of "reward", "pass_rate", or a metric that the score function gives."""
        keys = {"reward": ("mean", "ci"), "pass_rate": ("pass_rate", "pass_rate_ci")}
        value, interval = keys.get(metric, (f"metric_{metric}", f"metric_{metric}_ci"))
        low, high = self.number(f"{interval}_low"), self.number(f"{interval}_high")
        known = low is not None and high is not None and low <= high
        return self.number(value), (low, high) if known else None  # type: ignore[return-value]

    def metrics(self) -> list[str]:
        """Names of the metrics that its summary has, in its order."""
        summary = self.summary or {}
        names = (key.removeprefix("metric_") for key in summary if key.startswith("metric_"))
        return [n for n in names if {f"metric_{n}_n", f"metric_{n}_stderr"} <= {*summary}]


# --- The file -----------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder(enc_hook=plain_value, order="deterministic")
_decoder = msgspec.json.Decoder(CurvePoint)


class CurveWriter:
    """Appends lines to one curve. Holds a lock: two training runs would make one wrong curve.

    Args:
        path: The file, which is made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.lines = LineWriter(path, CURVE)
        self.lines.sync()
        sync_directory(path.parent)
        weakref.finalize(self, self.lines.close)

    def append(self, point: CurvePoint) -> None:
        """Append a point. It is on the disk when this returns."""
        self.append_line(encode_point(point))
        self.lines.sync()

    def append_line(self, line: bytes) -> None:
        """Append a line of `encode_point`."""
        self.lines.append_line(line)

    def close(self) -> None:
        """Close the file."""
        self.lines.close()


def encode_point(point: CurvePoint) -> bytes:
    """Encode a point as a line.

    Args:
        point: The point.

    Returns:
        The line.

    Raises:
        InvalidInput: It holds something that a line cannot, or that would not be read back.
    """
    where = f"the point of {point.label!r} at step {point.step}"
    for outcome in point.outcomes:
        # JSON would turn it into null, which says that the item errored.
        if outcome.reward is not None and not math.isfinite(outcome.reward):
            raise InvalidInput(
                f"{where} has the reward {outcome.reward} for sample {outcome.id!r}; rewards are "
                "finite, or None where the item errored"
            )
    try:
        line = _encoder.encode(point) + b"\n"
    except UNENCODABLE as problem:
        raise InvalidInput(f"{where} holds a value that JSON cannot: {problem}") from None
    try:
        # One line that cannot be read would make the whole curve damaged.
        _decoder.decode(line)
    except msgspec.MsgspecError as problem:
        raise InvalidInput(f"{where} could not be read back: {problem}") from None
    return line


def decode_point(path: Path, number: int, line: bytes) -> CurvePoint:
    """Line `number` of the curve at `path`; DamagedJournal where it is not a point."""
    return CURVE.decoded(_decoder.decode, path, number, line)


def read_points(path: Path) -> list[CurvePoint]:
    """Read every point of a curve.

    Args:
        path: curve.jsonl.

    Returns:
        Points in the order in which their evals were written down first, each once; those of evals
        without a result are `pending`. `current_points` says which of them make up the curve.
    """
    return settled(decode_point(path, number, line) for number, _, line in lines(path, CURVE))


def settled(points: Iterable[CurvePoint]) -> list[CurvePoint]:
    """Put what an eval ended in where its write-ahead line is.

    Args:
        points: Lines in the order written.

    Returns:
        The points without write-ahead lines of evals that have ended.
    """
    ordered: list[CurvePoint] = []
    open_lines: dict[tuple[str, str, int], int] = {}
    for point in points:
        place = open_lines.pop(point.key, None)
        if place is None:
            place = len(ordered)
            ordered.append(point)
        else:
            ordered[place] = point
        if point.pending:
            open_lines[point.key] = place
    return ordered


def pending_points(points: Iterable[CurvePoint]) -> list[CurvePoint]:
    """Evals that were scheduled and have no result.

    Args:
        points: Points of a curve, as `read_points` gives them.

    Returns:
        Pending points by step, without those whose weights have a result all the same, and those
        that a later attempt supersedes: it went back to before their step.
    """
    points = list(points)
    order = {session: i for i, session in enumerate(dict.fromkeys(p.session for p in points))}
    evaluated = [p for p in points if p.has_result or p.pending]
    went_back_to = _first_steps_of_later_sessions(evaluated, order)
    measured = {(p.label, p.step, p.weights) for p in points if p.has_result and p.weights}
    left = [
        p
        for p in points
        if p.pending
        and p.step < went_back_to[order[p.session]]
        and (p.label, p.step, p.weights) not in measured
    ]
    return sorted(left, key=lambda p: (p.step, p.label))


def repair_curve(path: Path) -> list[int]:
    """Move lines that cannot be read to `curve.damaged`; returns their numbers."""
    return repair_lines(path, CURVE, _decoder.decode)


# --- The curve ----------------------------------------------------------------------------------


def current_points(points: Iterable[CurvePoint]) -> list[CurvePoint]:
    """The curve as it stands, by step, from every point in the order written.

    Of each label there is one point a step, the last result, or the last skip where there is no
    result. A result from a later session shows that the training went back to before its step:
    what earlier sessions have at that step and beyond is of weights that are no more, and is left
    out, whichever label it has. Within a session, steps may come in any order.
    """
    points = list(points)
    order = {session: i for i, session in enumerate(dict.fromkeys(p.session for p in points))}
    went_back_to = _first_steps_of_later_sessions([p for p in points if p.has_result], order)
    kept: dict[tuple[int, str], CurvePoint] = {}
    for point in points:
        if point.step >= went_back_to[order[point.session]]:
            continue
        place = (point.step, point.label)
        if point.has_result or not (place in kept and kept[place].has_result):
            kept[place] = point
    return [kept[place] for place in sorted(kept)]


def sample_rewards(point: CurvePoint) -> dict[str, float | None]:
    """Mean reward of each sample over its scored repeats; None where all of them errored."""
    scores: dict[str, list[float]] = {}
    for outcome in point.outcomes:
        scored = scores.setdefault(outcome.id, [])
        if outcome.reward is not None and outcome.error is None:
            scored.append(outcome.reward)
    return {id: sum(s) / len(s) if s else None for id, s in scores.items()}


def most_asked(points: Iterable[CurvePoint]) -> int:
    """Items of the largest eval."""
    return max((p.asked for p in points if p.has_result), default=0)


def is_fewer(point: CurvePoint, most: int) -> bool:
    """Return whether a point has fewer items than `most`, those of the largest eval of its curve.

    It is a partial eval, or one that a budget cut down: noisier, and shown apart.
    """
    return point.partial is not None or point.asked < most


def _first_steps_of_later_sessions(points: list[CurvePoint], order: dict[str, int]) -> list[float]:
    """For each session, the least step at which any session after it has a point."""
    first = [math.inf] * len(order)
    for point in points:
        session = order[point.session]
        first[session] = min(first[session], point.step)
    later, least = [math.inf] * len(order), math.inf
    for session in reversed(range(len(order))):
        later[session] = least
        least = min(least, first[session])
    return later


# --- Asking a training to stop ------------------------------------------------------------------

STOP_FORMAT, STOP_VERSION = "heldout.stop", 1
LONGEST_STOP = 65_536
"""Bytes of a stop file that are read."""


class StopRequest(msgspec.Struct):
    """The file `stop`."""

    format: str
    version: int
    reason: str
    time: str


def request_stop(run: Path, reason: str) -> None:
    """Ask the training that writes this run to stop at its next opportunity."""
    request = StopRequest(STOP_FORMAT, STOP_VERSION, reason, now())
    try:
        content = msgspec.json.encode(request) + b"\n"
    except UNENCODABLE as problem:
        raise InvalidInput(f"the reason to stop is not text: {problem}") from None
    if len(content) > LONGEST_STOP:
        raise InvalidInput(f"the reason to stop has {len(reason)} characters; say it in a line")
    replace_file(run / STOP_NAME, content)


def forget_stop(run: Path) -> None:
    """A training that begins does not heed what was asked of the one before it."""
    (run / STOP_NAME).unlink(missing_ok=True)


def stop_requested(run: Path) -> str | None:
    """Why the training is to stop; None where nobody asked it to.

    Whatever is there by that name asks for it, readable or not (`touch stop` does, too).
    """
    path = run / STOP_NAME
    if not os.path.lexists(path):
        return None
    # Nothing about the content may keep a training from stopping.
    with suppress(OSError, HeldoutError, msgspec.MsgspecError, RecursionError, ValueError):
        with open_to_read(path) as file:
            raw = file.read(LONGEST_STOP)
        return msgspec.json.decode(raw, type=StopRequest).reason or "stop file"
    return "stop file"
