"""Where the result of a scheduled eval goes: into a line of the curve, and to every sink.

`point_of` says what a result is as a point. `Recorder` writes points that come from any thread.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.midrun.curve import CurvePoint, CurveWriter, Outcome, curve_writer
from heldout.midrun.pending import PendingEval
from heldout.midrun.heartbeats import heartbeat_fields
from heldout.midrun.sinks import Sink
from heldout.midrun.sinks.guarded import Sinks
from heldout.store.report import EvalReport
from heldout.store.rundir import RunDir, RunInfo, now
from heldout.summary import EMPTY_SUMMARY

log = logging.getLogger("heldout")

Result = CurvePoint | EvalReport | Mapping[str, float]

CONFIG = {"kind": "midrun"}
"""Of run.json, where it is ours; a `PeriodicEval` that shares the directory says more."""


class Recorder:
    """Safe to be called by several threads. Nothing that goes wrong in here is raised, except in
    the making: a training that cannot be recorded should not begin."""

    def __init__(
        self, run_dir: Path | None, sinks: Sequence[Sink] | Sinks, *, shared: bool
    ) -> None:
        """`shared`: a `PeriodicEval` of the same session may write the curve, too."""
        self._run_dir = run_dir
        self._writing = threading.Lock()
        self._curve: CurveWriter | None = None
        self._closed = False
        if run_dir is not None:
            self._enter(run_dir, shared=shared)
        # Last: it has threads.
        self._sinks = sinks if isinstance(sinks, Sinks) else Sinks(*sinks)
        # They are closed by `close`, after the last skips; and a forked child, which has none of
        # their threads, must not wait for them when it ends.
        atexit.unregister(self._sinks.close)

    def _enter(self, run_dir: Path, *, shared: bool) -> None:
        run = RunDir(run_dir)
        if run.exists() and not run.curve.exists():
            raise RunDirectoryError(f"{run_dir} holds a run of another kind; use another run_dir")
        run.make()
        # Held for as long as this training lives: two of them would make one wrong curve.
        self._curve = curve_writer(run.curve)
        if not run.run.exists() or run.read_info().config == CONFIG:
            run.write_info(RunInfo.new(CONFIG, {}))
        elif not shared:
            # Results of another session would say that training went back to their step, and hide
            # what the other one has from there on.
            raise RunDirectoryError(
                f"{run_dir} has the curve of a PeriodicEval; use another run_dir, or give its "
                "session"
            )

    def record(self, point: CurvePoint, lag_steps: int) -> CurvePoint:
        """The point as it was written."""
        point = _with_lag(point, lag_steps)
        if self._run_dir is not None:
            try:
                with self._writing:
                    self._curve = curve_writer(RunDir(self._run_dir).curve)
                    self._curve.append(point)
                    if self._closed:
                        self._curve.close()
            except Exception as problem:
                what = "eval %r of step %s could not be written to the curve in %s"
                log.error(what, point.label, point.step, self._run_dir, exc_info=problem)
        try:
            fields = {key: v for key, v in heartbeat_fields(point).items() if v is not None}
            self._sinks.log(point.label, point.step, {**fields, "lag_steps": lag_steps})
        except Exception as problem:
            log.error("eval %r of step %s", point.label, point.step, exc_info=problem)
        return point

    def close(self, sink_seconds: float, *, complete: bool) -> None:
        """Sinks may take so long for what they have not stored yet. `complete`: training has come
        to its end."""
        self._closed = True
        self._sinks.close(sink_seconds)
        try:
            with self._writing:
                if self._curve is not None:
                    self._curve.close()
            if complete and self._run_dir is not None:
                run = RunDir(self._run_dir)
                info = run.read_info()
                if info.config == CONFIG:
                    info.status, info.finished = "complete", now()
                    run.write_info(info)
        except Exception as problem:
            log.warning("the curve in %s could not be closed", self._run_dir, exc_info=problem)


# --- A result as a point ------------------------------------------------------------------------


def skip_of(pending: PendingEval, why: str, seconds: float = 0.0) -> CurvePoint:
    return CurvePoint(
        label=pending.name,
        step=pending.step,
        session=pending.session,
        time=now(),
        seconds=seconds,
        skipped=why,
        weights=pending.weights,
    )


def _with_lag(point: CurvePoint, lag: int) -> CurvePoint:
    return msgspec.structs.replace(point, lag_steps=lag)


UNKNOWN: dict[str, int | float | bool | None] = dict.fromkeys(EMPTY_SUMMARY)
"""A summary of which nothing is known, not even of how many items it is."""


def point_of(result: Any, pending: PendingEval, seconds: float, run_dir: Path | None) -> CurvePoint:
    """A result as a point of the eval, step, session and weights it was scheduled as.

    A mapping of metrics says neither what it is of nor which of them is the reward: each becomes
    a metric without denominator or error bar, and there is no reward. One that has all the keys of
    a heldout summary is that summary. A report is its summary and outcomes; of one that is not
    complete the items are those that were quick, and their mean is another one: InvalidInput.
    """
    point = skip_of(pending, "", seconds)
    if isinstance(result, CurvePoint):
        return msgspec.structs.replace(
            result,
            label=pending.name,
            step=pending.step,
            session=pending.session,
            weights=pending.weights or result.weights,
            summary=None if result.summary is None else {**UNKNOWN, **result.summary},
        )
    if isinstance(result, EvalReport):
        return _point_of_report(result, point, run_dir)
    if isinstance(result, Mapping):
        return msgspec.structs.replace(point, summary=_summary_of(result), skipped=None)
    raise InvalidInput(
        "an evaluator returns a CurvePoint, an EvalReport or a mapping of metrics to numbers, "
        f"got {result!r:.200}"
    )


def _point_of_report(report: EvalReport, point: CurvePoint, run_dir: Path | None) -> CurvePoint:
    summary, n = report.summary, report.summary["n"]
    if summary.get("complete") is False:
        asked = summary.get("n_asked")
        raise InvalidInput(f"the report is of {n} of {asked} items: those that finished first")
    if not summary["n_scored"]:
        raise InvalidInput(f"all {n} items errored, so there is no mean")
    run = None
    if report.path is not None and run_dir is not None:
        with suppress(ValueError):  # somewhere else
            run = str(report.path.resolve().relative_to(run_dir.resolve()))
    outcomes = tuple(
        Outcome(
            r.sample_id,
            r.score.reward if r.ok else None,
            r.repeat,
            None if r.error is None else r.error[:300],
            r.trajectory.stop.truncated,
        )
        for r in report.results
    )
    return msgspec.structs.replace(
        point, summary=summary, skipped=None, outcomes=outcomes, asked=n, of=n, run=run
    )


def _summary_of(metrics: Mapping[str, Any]) -> dict[str, int | float | bool | None]:
    if not metrics:
        raise InvalidInput("the evaluator returned a mapping without metrics")
    numbers: dict[str, float | None] = {}
    for name, value in metrics.items():
        try:
            number = None if value is None or isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        if not isinstance(name, str) or (number is None and value is not None):
            raise InvalidInput(f"metrics are numbers by name, got {name!r}: {value!r:.100}")
        if number is not None and not math.isfinite(number):
            log.warning("metric %r is %s, and is left unknown", name, number)
            number = None
        numbers[name] = number
    if set(EMPTY_SUMMARY) <= set(metrics):
        return dict(metrics)
    summary = dict(UNKNOWN)
    for name in numbers:
        ends = ("", "_n", "_stderr", "_ci_low", "_ci_high")
        summary |= dict.fromkeys(f"metric_{name}{end}" for end in ends)
    return summary | {f"metric_{name}": number for name, number in numbers.items()}
