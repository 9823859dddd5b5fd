"""curve.jsonl: one line per evaluation point, written while the policy trains.

Lines are only appended, by the one process that holds the file. An eval that runs in the background
has a write-ahead line ("scheduled, not finished") from the moment it is scheduled. Its result
supersedes that line; after a `kill -9` the line remains. The verdict on such a result is a line of
its own, since it is made later, in the trainer's thread. Which points make up the curve is decided
when it is read (`current_points`): a training run that is restarted from a checkpoint supersedes
points of earlier attempts. A file `stop` in the same directory asks training to stop.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from heldout._core.format import pass_rate_keys
from heldout.errors import UNENCODABLE, HeldoutError, InvalidInput
from heldout.store.journal import cluster_of, plain_value
from heldout.store.jsonl import (
    LineFormat,
    LineWriter,
    lines,
    open_to_read,
    replace_file,
    sync_directory,
)
from heldout.store.jsonl import repair as repair_lines
from heldout.store.run_dir import now
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
"""Largest step: larger integers do not fit the floats of a plot."""
StepNumber = Annotated[int, msgspec.Meta(ge=0, le=LAST_STEP)]


def check_step(step: Any) -> int:
    """Return the step as an int; a counter may be a numpy integer or a float such as 10.0."""
    try:
        number = int(step)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if number != step or not 0 <= number <= LAST_STEP:
        raise InvalidInput(f"step must be a whole number, from 0, got {step!r:.100}")
    return number


class ItemOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one item."""

    id: str
    reward: float | None = None
    """None: the item errored."""
    repeat: int = 0
    error: str | None = None
    truncated: bool = False
    copy_of: str | None = None
    """Id of the first sample of its cluster (clause 7), if this one is a copy."""


def outcomes_of(results: Iterable[EvalResult]) -> tuple[ItemOutcome, ...]:
    """Return the outcomes of an eval's results, in their order."""
    first: dict[int, str] = {}
    outcomes = []
    for result in results:
        id = result.sample_id
        original = first.setdefault(cluster_of(result), id)
        outcomes.append(
            ItemOutcome(
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
    """One eval that was due: its result, or a skip with its reason."""

    label: str
    """The eval's name."""
    step: StepNumber
    session: str
    """Id of the attempt of the training run that wrote it."""
    time: str
    """When it was written, UTC."""
    seconds: float
    """Duration of the eval."""
    summary: dict[str, int | float | bool | None] | None = None
    """Summary of `heldout.stats.summary`; None: skipped."""
    skipped: str | None = None
    """Why there is no summary."""
    partial: str | None = None
    """Why it ended early; the summary is then over a complete prefix of the fixed order."""
    outcomes: tuple[ItemOutcome, ...] = ()
    asked: int = 0
    """Items that were requested."""
    of: int = 0
    """Items in the whole held-out set."""
    weights: str | None = None
    """Hash of the weights that were measured."""
    budget: dict[str, Any] | None = None
    decoding: dict[str, Any] | None = None
    prompt: str | None = None
    """The rendered prompt of the first sample; None: unknown, or that of the point before."""
    stop: str | None = None
    """Why the monitor asked training to stop."""
    run: str | None = None
    """Directory of the conversations, relative to the run directory. Only shown, never opened."""
    final: bool = False
    lag_steps: int | None = None
    """Steps that training was ahead when the result came; None: training waited."""
    verdict: dict[str, Any] | None = None
    """Verdict on the curve up to here (`heldout.training.curve.verdicts`); None: not judged."""
    pending: bool = False
    """Whether a result may still come: the eval is in flight, was abandoned, or was lost with its
    process. `skipped` has the reason, for readers that do not know this field."""
    saved_at: str | None = None
    """Where the weights of a pending eval were saved. Never opened here."""
    follows: StepNumber | None = None
    """Last step at which its attempt is known to have had the weights of earlier attempts: the one
    it resumed from, or the last at which it met their hash. None: unknown, or there are none."""
    adds_verdict: bool = False
    """Whether the line only adds `verdict` and `stop` to the result of the same key, time and
    seconds. `skipped` says so, for readers that do not know this field."""

    @property
    def key(self) -> tuple[str, str, int]:
        """Attempt, label and step, which identify an eval."""
        return (self.session, self.label, self.step)

    @property
    def has_result(self) -> bool:
        """Whether this eval has numbers."""
        return self.summary is not None

    @property
    def reward(self) -> float | None:
        """The mean reward; None without a result."""
        return self.number("mean")

    @property
    def ci(self) -> tuple[float, float] | None:
        """The 95% interval of the reward."""
        return self.value_and_interval("reward")[1]

    @property
    def n(self) -> int:
        """Items in the summary."""
        return int(self.number("n") or 0)

    def number(self, key: str) -> float | None:
        """Return a number of the summary; None if it is not a number."""
        value = (self.summary or {}).get(key)
        if value is None or isinstance(value, bool):
            return None
        try:
            value = float(value)
        except OverflowError:
            return None
        return value if math.isfinite(value) else None

    def value_and_interval(self, metric: str) -> tuple[float | None, tuple[float, float] | None]:
        """Return value and interval of "reward", "pass_rate" or one of `metrics`."""
        key = self.summary_key(metric)
        interval = "ci" if key == "mean" else f"{key}_ci"
        low, high = self.number(f"{interval}_low"), self.number(f"{interval}_high")
        known = low is not None and high is not None and low <= high
        return self.number(key), (low, high) if known else None  # type: ignore[return-value]

    def summary_key(self, metric: str) -> str:
        """Return the key of "reward", "pass_rate" or one of `metrics` in the summary."""
        keys = self._own_keys()
        if metric in keys:
            return keys[metric]
        own = f"metric_{metric}"
        taken = metric.removeprefix("metric_") in keys and own not in (self.summary or {})
        return metric if taken else own

    def metrics(self) -> list[str]:
        """Names of the score function's metrics in the summary, then pass@k and pass^k.

        A metric named as one of the summary's own numbers keeps its prefix: `metric_reward`.
        """
        summary, taken = self.summary or {}, self._own_keys()
        names = [key.removeprefix("metric_") for key in summary if key.startswith("metric_")]
        names = [n for n in names if {f"metric_{n}_n", f"metric_{n}_stderr"} <= {*summary}]
        names = [f"metric_{name}" if name in taken else name for name in names]
        return [*names, *pass_rate_keys(summary)]

    def _own_keys(self) -> dict[str, str]:
        """Return the keys of what is no metric of the score function, by its name."""
        own = {"reward": "mean", "pass_rate": "pass_rate"}
        return own | pass_rate_keys(self.summary or {})


# --- Points without a result --------------------------------------------------------------------

NOT_FINISHED = "scheduled, not finished"
SAME_WEIGHTS = "the same weights have a point already"


def pending_point(
    name: str,
    step: int,
    session: str = "",
    *,
    weights: str | None = None,
    saved_at: str | os.PathLike[str] | None = None,
    follows: int | None = None,
) -> CurvePoint:
    """Make the write-ahead line of an eval.

    Args:
        name: The eval's name on the curve.
        step: The step of its point.
        session: The attempt it belongs to.
        weights: Hash of the weights it measures, if it is known.
        saved_at: Where those weights were saved.
        follows: See `CurvePoint`.

    Returns:
        A point without a result.

    Raises:
        InvalidInput: An argument is invalid.
    """
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise InvalidInput(f"name must be the eval's name on the curve, got {name!r}")
    if weights is not None and not (isinstance(weights, str) and weights.isprintable()):
        raise InvalidInput(f"weights must be a hash, as a string, got {weights!r:.100}")
    path = None if saved_at is None else os.fspath(saved_at)
    try:
        if path is not None:
            path.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidInput(
            f"saved_at must be a path that can be written down, got {path!a}"
        ) from None
    return CurvePoint(
        label=name,
        step=check_step(step),
        session=session,
        time=now(),
        seconds=0.0,
        skipped=NOT_FINISHED,
        weights=weights,
        pending=True,
        saved_at=path,
        follows=follows,
    )


def skip_of(
    pending: CurvePoint, reason: str, seconds: float = 0.0, *, retry: bool = False
) -> CurvePoint:
    """Make the skip of a scheduled eval.

    Args:
        pending: Its write-ahead line.
        reason: Why it has no result.
        seconds: Its duration.
        retry: Whether it stays pending, so that it can be measured later.
    """
    return msgspec.structs.replace(
        pending,
        time=now(),
        seconds=seconds,
        skipped=reason,
        pending=retry,
        saved_at=pending.saved_at if retry else None,
    )


# --- The file -----------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder(enc_hook=plain_value, order="deterministic")
_decoder = msgspec.json.Decoder(CurvePoint)


LineKind = Literal["result", "skip", "pending", "verdict"]
"""What the field `line` says. A later line of the same session, label and step supersedes a pending
one; a verdict only adds `verdict` and `stop` to a result."""


class CurveWriter:
    """Appends points to a curve, and holds its lock.

    Args:
        path: The file, created if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.lines = LineWriter(path, CURVE)
        self.lines.sync()
        sync_directory(path.parent)
        weakref.finalize(self, self.lines.close)

    def append(self, point: CurvePoint) -> None:
        """Append a point, and sync it to disk."""
        self.append_line(encode_point(point))
        self.lines.sync()

    def append_line(self, line: bytes) -> None:
        """Append a line made by `encode_point`."""
        self.lines.append_line(line)

    def close(self) -> None:
        """Close the file."""
        self.lines.close()


def encode_point(point: CurvePoint) -> bytes:
    """Encode a point as a line.

    Args:
        point: The point.

    Raises:
        InvalidInput: It holds a value that JSON cannot represent, or that cannot be read back.
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
        # What the line is, for readers that are not heldout. No field of a point: it follows from
        # the others, and a point in memory would differ from the same one read back.
        line = b'{"line":"%b",%b\n' % (_kind_of_line(point).encode(), _encoder.encode(point)[1:])
    except UNENCODABLE as problem:
        raise InvalidInput(f"{where} holds a value that JSON cannot represent: {problem}") from None
    try:
        # One line that cannot be read would make the whole curve damaged.
        _decoder.decode(line)
    except msgspec.MsgspecError as problem:
        raise InvalidInput(f"{where} could not be read back: {problem}") from None
    return line


def _kind_of_line(point: CurvePoint) -> LineKind:
    if point.adds_verdict:
        return "verdict"
    if point.pending:
        return "pending"
    return "result" if point.has_result else "skip"


def verdict_line(judged: CurvePoint) -> CurvePoint:
    """Make the line that adds the verdict on a result, and the reason to stop, to the curve.

    Args:
        judged: The result, whose own line was written without them.

    Returns:
        The line, which `settled` merges with the result.
    """
    return CurvePoint(
        label=judged.label,
        step=judged.step,
        session=judged.session,
        time=judged.time,
        seconds=judged.seconds,
        skipped="the verdict on the result of this step",
        verdict=judged.verdict,
        stop=judged.stop,
        adds_verdict=True,
    )


def read_points(path: Path) -> list[CurvePoint]:
    """Read every point of a curve.

    Args:
        path: curve.jsonl.

    Returns:
        One point per eval, in the order of their first lines; evals without a result are `pending`.
        `current_points` selects those that make up the curve.
    """
    return settled(
        CURVE.decode(path, number, line, CurvePoint) for number, _, line in lines(path, CURVE)
    )


def settled(points: Iterable[CurvePoint]) -> list[CurvePoint]:
    """Replace write-ahead lines with the results of their evals, and add verdicts to results.

    Args:
        points: Lines in the order written.

    Returns:
        One point per eval.
    """
    ordered: list[CurvePoint] = []
    open_lines: dict[tuple[str, str, int], int] = {}
    results: dict[tuple[tuple[str, str, int], str, float], int] = {}
    for point in points:
        if point.adds_verdict:
            if (place := results.get((point.key, point.time, point.seconds))) is not None:
                ordered[place] = msgspec.structs.replace(
                    ordered[place], verdict=point.verdict, stop=point.stop
                )
            continue
        place = open_lines.pop(point.key, None)
        if place is None:
            place = len(ordered)
            ordered.append(point)
        else:
            ordered[place] = point
        if point.pending:
            open_lines[point.key] = place
        if point.has_result:
            results[point.key, point.time, point.seconds] = place
    return ordered


def pending_points(points: Iterable[CurvePoint]) -> list[CurvePoint]:
    """List evals that were scheduled and have no result.

    Args:
        points: Points of a curve, as `read_points` gives them.

    Returns:
        Pending points by step, without those whose weights have a result anyway, and those that a
        later attempt supersedes.
    """
    points = list(points)
    superseded_from = _superseded_from(points, lambda p: p.has_result or p.pending)
    measured = {(p.label, p.step, p.weights) for p in points if p.has_result and p.weights}
    left = [
        p
        for p in points
        if p.pending
        and p.step < superseded_from[p.session]
        and (p.label, p.step, p.weights) not in measured
    ]
    return sorted(left, key=lambda p: (p.step, p.label))


def repair_curve(path: Path) -> list[int]:
    """Move damaged lines to `curve.damaged`, and return their numbers."""
    return repair_lines(path, CURVE, CurvePoint)


# --- The curve ----------------------------------------------------------------------------------


def current_points(points: Iterable[CurvePoint]) -> list[CurvePoint]:
    """Select the points that make up the curve, by step.

    Each label has one point per step: the last result, or the last skip if there is no result. A
    later attempt (`session`) supersedes points of earlier ones, whatever their label: those beyond
    the step it resumed from (`follows`), its own skips included, and those from the step of its
    first result on. An attempt without a result, now or in a later one, supersedes nothing: it may
    have been a launch that never worked. Within an attempt, steps may come in any order.
    """
    points = list(points)
    superseded_from = _superseded_from(points, lambda p: p.has_result)
    kept: dict[tuple[int, str], CurvePoint] = {}
    for point in points:
        if point.step >= superseded_from[point.session]:
            continue
        place = (point.step, point.label)
        if point.has_result or not (place in kept and kept[place].has_result):
            kept[place] = point
    return [kept[place] for place in sorted(kept)]


def sample_rewards(point: CurvePoint) -> dict[str, float | None]:
    """Mean reward of each sample over its scored repeats; None if all of them errored."""
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
    """Return whether a point has fewer items than `most`, the largest eval of its curve.

    Such a point is noisier, and shown differently.
    """
    return point.partial is not None or point.asked < most


def _superseded_from(
    points: Sequence[CurvePoint], counts: Callable[[CurvePoint], bool]
) -> dict[str, float]:
    """Return, for each attempt, the step from which later attempts supersede its points.

    `counts` says which points show that an attempt produced something.

    For example: attempt A evaluated steps 0, 100, 200 and 300, and was killed. B resumed from the
    checkpoint of step 200 (`follows`), and evaluated 300 and 400. C resumed from 400, and has no
    result yet. From the last to the first: C supersedes nothing, since nothing came of it; B keeps
    all it has; of A, steps from 201 on are superseded. So the curve is A's 0, 100 and 200, then
    B's 300 and 400. Had B begun at 0 again, its first result would have superseded all of A.
    """
    attempts: dict[str, list[CurvePoint]] = {}
    for point in points:
        attempts.setdefault(point.session, []).append(point)
    later: dict[str, float] = {}
    least, came_to_something = math.inf, False
    for session, own in reversed(attempts.items()):
        later[session] = least
        evaluated = [point.step for point in own if counts(point)]
        came_to_something = came_to_something or bool(evaluated)
        least = min(least, *evaluated, math.inf)
        followed = [point.follows for point in own if point.follows is not None]
        if followed and came_to_something:
            least = min(least, max(followed) + 1)
    return later


# --- A point as flat fields ----------------------------------------------------------------------
# The names are the same everywhere; each consumer adds its own prefix:
#
#     heartbeats              eval_reward               (`step` and `lag_steps` have no prefix)
#     a trainer's log         eval_<name>_reward        numbers only, with `eval_<name>_step`
#     loggers                 <name>/reward             of `heldout.training.loggers`
#     tinker-cookbook's log   heldout/<name>/reward     numbers only

_FROM_SUMMARY = {
    "reward": "mean",
    "reward_ci_low": "ci_low",
    "reward_ci_high": "ci_high",
    "reward_stderr": "stderr",
    "n": "n",
    "n_errors": "n_errors",
    "n_truncated": "n_truncated",
    "reward_scored": "mean_scored",
    "n_scored": "n_scored",
    "pass_rate": "pass_rate",
    "pass_rate_ci_low": "pass_rate_ci_low",
    "pass_rate_ci_high": "pass_rate_ci_high",
}
"""Field of a point: key of its summary."""
_FROM_VERDICT = {
    "verdict": "kind",
    "verdict_text": "text",
    "verdict_since": "since",
    "verdict_n": "n",
    "gain": "gain",
    "gain_ci_low": "ci_low",
    "gain_ci_high": "ci_high",
    "minimum_detectable": "minimum_detectable",
    "effect": "effect",
    "since_start": "since_start",
    "since_start_gain": "since_start_gain",
    "since_start_ci_low": "since_start_ci_low",
    "since_start_ci_high": "since_start_ci_high",
    "since_start_text": "since_start_text",
    "best_step": "best_step",
    "best_estimate": "best_estimate",
    "best_ci_low": "best_ci_low",
    "best_ci_high": "best_ci_high",
    "best_text": "best_text",
}
"""Field of a point: key of its verdict."""
VERDICTS = {"improving": 1.0, "plateau": 0.0, "regressing": -1.0}
"""Verdicts as numbers; inconclusive has none."""


def point_fields(point: CurvePoint) -> dict[str, Any]:
    """Flatten a point into numbers, texts and flags by name, without its step.

    Unknown numbers are None. A skip has `skipped`, `reason` and `seconds`, and no score.
    """
    fields: dict[str, Any] = {"seconds": point.seconds}
    if point.lag_steps is not None:
        fields["lag_steps"] = point.lag_steps
    summary = point.summary
    if summary is None:
        return {**fields, "skipped": True, "reason": point.skipped}
    fields |= {name: summary.get(key) for name, key in _FROM_SUMMARY.items()}
    # The mean counts an errored item as 0, and so do these.
    rewards = [value for value in (summary.get("min"), summary.get("max")) if value is not None]
    if fields["n_errors"]:
        rewards.append(0.0)
    fields |= {"reward_min": min(rewards, default=None), "reward_max": max(rewards, default=None)}
    extra = ("metric_", *pass_rate_keys(summary).values())
    fields |= {key: value for key, value in summary.items() if key.startswith(extra)}
    if point.final:
        fields["final"] = True
    if point.partial is not None:
        fields["partial"] = point.partial
    if point.asked < point.of:
        fields["of"] = point.of
    if point.verdict is not None:
        fields |= {name: point.verdict.get(key) for name, key in _FROM_VERDICT.items()}
    if point.stop is not None:
        fields["stop"] = point.stop
    return fields


def number_fields(point: CurvePoint, prefix: str = "") -> dict[str, float]:
    """Return the finite numbers of `point_fields`, with a prefix, for logs of numbers.

    `skipped`, `final` and `partial` are 1 if they apply, and `verdict` is one of `VERDICTS`.
    """
    fields = point_fields(point)
    if "partial" in fields:
        fields["partial"] = 1.0
    if "verdict" in fields:
        fields["verdict"] = VERDICTS.get(str(fields["verdict"]))
    return {
        f"{prefix}{key}": float(value)
        for key, value in fields.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def heartbeat_fields(point: CurvePoint) -> dict[str, Any]:
    """Return `point_fields` with the prefix `eval_` (not on `lag_steps`), and `step`."""
    fields = {f"eval_{key}": value for key, value in point_fields(point).items()}
    if "eval_lag_steps" in fields:
        fields["lag_steps"] = fields.pop("eval_lag_steps")
    return {"step": point.step, **fields}


def log_fields(point: CurvePoint, name: str) -> dict[str, float]:
    """Return a row of a trainer's log: `number_fields` and `step` with prefix `eval_<name>_`."""
    prefix = f"eval_{name}_"
    return {f"{prefix}step": point.step, **number_fields(point, prefix)}


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
    """Ask the training run that writes to this directory to stop."""
    request = StopRequest(STOP_FORMAT, STOP_VERSION, reason, now())
    try:
        content = msgspec.json.encode(request) + b"\n"
    except UNENCODABLE as problem:
        raise InvalidInput(f"the reason to stop is not text: {problem}") from None
    if len(content) > LONGEST_STOP:
        raise InvalidInput(f"the reason to stop has {len(reason)} characters; use one line")
    replace_file(run / STOP_NAME, content)


def forget_stop(run: Path) -> None:
    """Remove a stop request that was meant for an earlier attempt."""
    (run / STOP_NAME).unlink(missing_ok=True)


def stop_requested(run: Path) -> str | None:
    """Return why training should stop; None without a request.

    A file named `stop` is a request even if it is empty or unreadable (`touch stop`).
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
