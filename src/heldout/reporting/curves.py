"""Curves of training runs: read, described and laid out as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from heldout._core.format import count, cut, interval, number, printable
from heldout.errors import InvalidInput, RunDirectoryError
from heldout.reporting.blocks import Column, Line, RankedColumn, Span, Table, fit_columns
from heldout.reporting.names import find_curve
from heldout.store.jsonl import has_writer
from heldout.store.run_dir import RunDir, RunInfo
from heldout.store.runs import attempts_of, find_run, temperature_of
from heldout.training.curve.points import CurvePoint, current_points, read_points, stop_requested

NOTE_CHARACTERS = 300
"""Characters of a reason that are shown: a traceback would bury the table."""
NOTE_WIDTH = 16
"""Columns of the terminal that are left for notes."""
VERDICT_STYLES = {
    "improving": "green",
    "regressing": "red",
    "plateau": "yellow",
    "inconclusive": "dim",
}


# --- Reading ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CurveRun:
    """A run directory with a curve in it."""

    path: Path
    points: list[CurvePoint]
    """The current points: without those that a later attempt of the training run superseded."""
    superseded: int
    info: RunInfo | None
    live: bool
    """Whether a process is writing it."""
    last_skip: str | None = None
    """Reason of the last skip, where the last attempt has no results but earlier ones have."""
    attempts: tuple[str, ...] = ()
    """Ids of all attempts of the training run, those that were superseded included, in order."""

    @property
    def config(self) -> dict[str, Any]:
        """The config of its run.json; empty without one."""
        return self.info.config if self.info else {}

    @property
    def pass_threshold(self) -> float | None:
        """The reward that passes; None if nothing says."""
        from heldout.store.run_config import threshold_of

        return threshold_of(self.config)


def open_curve(run: str | Path) -> CurveRun:
    """Read the curve of a training run by its directory, or its name under outputs/evals."""
    path = find_curve(run)
    if path is None:
        path = find_run(run)
        raise RunDirectoryError(
            f"{path} has no curve.jsonl: nothing was evaluated there during training. "
            f"`heldout show {path}` prints an ordinary run"
        )
    return read_curve(path)


def read_curve(path: Path) -> CurveRun:
    """Read the curve in a run directory."""
    run = RunDir(path)
    live = has_writer(run.curve)
    written = read_points(run.curve)
    points = current_points(written)
    results = {(point.label, point.step) for point in written if point.has_result}
    current = {(point.label, point.step) for point in points if point.has_result}
    last_attempt = [p for p in written if p.session == written[-1].session]
    last_skip = None
    if results and not any(point.has_result for point in last_attempt):
        last_skip = last_attempt[-1].skipped
    info = run.read_info() if run.run.exists() else None
    attempts = tuple(dict.fromkeys(point.session for point in written))
    return CurveRun(path, points, len(results - current), info, live, last_skip, attempts)


def group_by_label(points: Iterable[CurvePoint]) -> dict[str, list[CurvePoint]]:
    """Group points by the label of their eval, sorted."""
    groups: dict[str, list[CurvePoint]] = {}
    for point in points:
        groups.setdefault(point.label, []).append(point)
    return dict(sorted(groups.items()))


def check_metric(points: Iterable[CurvePoint], metric: str, name: str = "the curve") -> None:
    """Refuse a metric that no result has; a curve without results may still get it."""
    results = [point for point in points if point.has_result]
    names = dict.fromkeys(["reward", "pass_rate", *(n for p in results for n in p.metrics())])
    if results and metric not in names:
        raise InvalidInput(f"{name} has no metric {metric!r}; it has {', '.join(names)}")


# --- Words --------------------------------------------------------------------------------------


def training_state(run: CurveRun) -> dict[str, Any]:
    """Return whether a training run is alive, finished or stale, as plain values.

    It is alive while a process writes the curve, and stale where it is neither alive nor finished.
    Of a copy of a run at a URL that had not ended it is unknown.
    """
    newest = max((point.time for point in run.points), default=None)
    seconds = None
    with suppress(TypeError, ValueError):  # no point, or one of another program
        age = datetime.now(UTC) - datetime.fromisoformat(newest)  # type: ignore[arg-type]
        seconds = max(0, int(age.total_seconds()))
    status = run.info.status if run.info else "running"
    as_of = RunDir(run.path).copied_at
    state = "finished" if status == "complete" else "stale"
    if run.live:
        state = "alive"
    elif status == "running" and as_of is not None:
        state = "unknown"
    return {
        "state": state,
        "as_of": as_of,
        "reason": run.info.reason if run.info else None,
        "last_point": newest,
        "seconds_since_last_point": seconds,
        "stop_requested": stop_requested(run.path),
    }


def format_age(seconds: int | None) -> str:
    """Return how long ago something was: "40 s ago"."""
    if seconds is None:
        return "at an unknown time"
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def describe_status(run: CurveRun) -> Line:
    """Say whether the training run is alive, finished or gone, and whether a stop was requested."""
    training = training_state(run)
    last = "no point yet"
    if training["last_point"] is not None:
        last = f"the last point came {format_age(training['seconds_since_last_point'])}"
    why = "no process is writing it now"
    if run.info is not None and run.info.status != "running":
        why = run.info.status + (f" ({run.info.reason})" if run.info.reason else "")
    state, style = {
        "alive": ("Live", "green"),
        "finished": ("Finished", "dim"),
        "unknown": (f"Running as of {training['as_of']}, when it was copied here", "green"),
        "stale": (f"Not finished: {why}", "yellow"),
    }[training["state"]]
    parts = [Span(f"{state}; {last}.", style)]
    if training["stop_requested"] is not None:
        request = cut(training["stop_requested"], NOTE_CHARACTERS)
        parts.append(Span(f" Asked to stop: {request}", "red"))
    return Line(*parts)


def sampling_of_newest(points: Sequence[CurvePoint]) -> tuple[float | None, int | None]:
    """Return temperature and attempts of a curve's newest result; None if nothing says."""
    for point in reversed(points):
        if point.has_result:
            attempts = attempts_of(outcome.repeat for outcome in point.outcomes)
            return temperature_of(point.decoding), attempts
    return None, None


def describe_point(point: CurvePoint) -> str:
    """Return what a reader must know to read a point right; empty if nothing."""
    notes = ["final"] if point.final else []
    if not point.has_result:
        state = "pending" if point.pending else "skipped"
        notes.append(f"{state}: {point.skipped or 'no reason given'}")
    if point.partial is not None:
        notes.append(f"partial: {point.partial}")
    elif point.has_result and point.budget is not None and point.asked < point.of:
        notes.append("fewer items, to keep its budget")
    scored = point.number("mean_scored")
    if point.number("n_errors") and scored is not None:
        notes.append(f"{number(scored)} without errored items")
    if point.stop is not None:
        notes.append(f"stop: {point.stop}")
    return "; ".join(cut(text, NOTE_CHARACTERS) for text in notes)


def format_n(point: CurvePoint, metric: str = "reward") -> str:
    """Return the denominator: "20 of 32 of 64" is scored, requested, and in the held-out set.

    A metric that not all items have says how many do, and pass@k of how many samples it is.
    """
    if point.number("n") is None:  # skipped, or from an evaluator that does not say
        return "–"
    key = point.summary_key(metric)
    own = point.number(f"{key}_n")
    if key.startswith("pass_") and own is not None:
        return count(int(own), "sample")
    if own is not None and own != point.n:
        return f"{own:.0f} of {point.n}"
    counts = [point.n]
    for larger in (point.asked, point.of):
        if larger > counts[-1]:
            counts.append(larger)
    return " of ".join(map(str, counts))


def format_point(point: CurvePoint, *, labelled: bool = False) -> str:
    """Return a point as a line for a pipe: what the table has, each with its heading."""
    columns = _make_columns([point])
    columns.append(RankedColumn("note", [describe_point(point) or "–"], 1))
    columns.sort(key=lambda column: column.rank == 0)  # metrics last: a screen may cut them off
    texts = [f"{column.heading} {column.cells[0]}" for column in columns if column.cells[0] != "–"]
    line = "  ".join([point.label, *texts] if labelled else texts)
    return printable(line.replace("\n", "\\n"))


def point_as_dict(point: CurvePoint) -> dict[str, Any]:
    """Return every field of a point for JSON, but the rewards of its samples."""
    from heldout.training.curve.stored_verdicts import stored_kind

    plain = msgspec.structs.asdict(point)
    del plain["outcomes"]
    if point.verdict is not None and (kind := stored_kind(point)) is not None:
        plain["verdict"] = {**point.verdict, "kind": kind}
    return plain


def conclude_point(point: CurvePoint) -> tuple[str, str]:
    """Return the verdict at a point, or its state where it has none; and its line."""
    from heldout.training.curve.stored_verdicts import stored_kind

    if not point.has_result:
        return ("pending" if point.pending else "skipped"), format_point(point, labelled=True)
    return stored_kind(point) or "no_verdict", format_point(point, labelled=True)


def conclude_curve(run: CurveRun, points: Sequence[CurvePoint]) -> tuple[str, str]:
    """Return the newest verdict of a curve; of several evals, that of the one judged last."""
    from heldout.training.curve.stored_verdicts import answers, stored_kind

    judged = [(p.time, p.step, p) for p in points if p.has_result and stored_kind(p)]
    if not judged:
        results = sum(point.has_result for point in points)
        return "no_verdict", f"{run.path.name}: no verdict from {count(results, 'result')}."
    newest = max(judged, key=lambda entry: entry[:2])[2]
    kind, texts = stored_kind(newest), answers(newest.verdict or {})
    return str(kind), f"{newest.label}, step {newest.step}: {'. '.join(texts) or kind}"


# --- Verdicts -----------------------------------------------------------------------------------

WORST_FIRST = ("regressing", "plateau", "inconclusive", None, "improving")
"""Verdicts on the evals of a curve, as lists order them; None is an eval that has none."""


def latest_verdicts(run: CurveRun) -> dict[str, dict[str, Any]]:
    """Return the last verdict of each label that has one; `heldout show` explains the others."""
    latest: dict[str, dict[str, Any]] = {}
    for label, group in group_by_label(run.points).items():
        points, _ = judge_curve(group, {}, run.config)
        if (verdict := find_verdict(points)) is not None:
            latest[label] = verdict
    return latest


def list_verdicts(run: CurveRun) -> list[tuple[str, dict[str, Any] | None]]:
    """Return each eval of a curve that has results, with its last verdict; the worst first."""
    latest = latest_verdicts(run)
    labels = group_by_label([point for point in run.points if point.has_result])
    verdicts = [(label, latest.get(label)) for label in labels]
    return sorted(verdicts, key=lambda each: WORST_FIRST.index((each[1] or {}).get("kind")))


def find_verdict(points: Sequence[CurvePoint]) -> dict[str, Any] | None:
    """Return the last verdict of a curve of one label; None without one."""
    judged = [point for point in points if point.has_result and point.outcomes]
    return judged[-1].verdict if judged else None


def judge_curve(
    points: Sequence[CurvePoint],
    options: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
) -> tuple[list[CurvePoint], list[Line]]:
    """Fill in the verdicts of a curve of one label, and say its answers as of the last one.

    With `options`, the effect, alpha or window to judge by, stored verdicts are replaced, too.
    `config` is that of its run.json.
    """
    from heldout.training.curve.stored_verdicts import answers, terms_of, with_verdicts

    terms = replace(terms_of(points, config), **options)
    try:
        filled = with_verdicts(points, terms, anew=bool(options))
    except InvalidInput as problem:  # rewards that no verdict can be made of
        return list(points), [Line(f"no verdict: {problem}", style="yellow")]
    verdict = find_verdict(filled) or {}
    lines = [Line(text) for text in answers(verdict)]
    if lines:
        lines[0] = Line(answers(verdict)[0], style=VERDICT_STYLES.get(str(verdict["kind"]), ""))
    return filled, lines


# --- Tables -------------------------------------------------------------------------------------


def build_curve_table(points: Sequence[CurvePoint], width: int) -> list[Table | Line]:
    """Lay out points as a table that fits a width, without metrics that it has no room for."""
    notes = [describe_point(point) for point in points]
    columns = _make_columns(points)
    shown = fit_columns(columns, width - (NOTE_WIDTH + 3 if any(notes) else 0))
    headings = [Column(column.heading, column.align) for column in shown]
    if any(notes):
        headings.append(Column("note", wrap=True))
    rows = []
    for i, point in enumerate(points):
        cells = [column.cells[i] for column in shown] + ([notes[i]] if any(notes) else [])
        rows.append([Span(text, "" if point.has_result else "dim") for text in cells])
    table = Table(headings, rows)
    hidden = [column.heading for column in columns if column.rank == 0 and column not in shown]
    if not hidden:
        return [table]
    return [table, Line(f"No room for {', '.join(hidden)}; --json has all.", style="dim")]


def _make_columns(points: Sequence[CurvePoint]) -> list[RankedColumn]:
    from heldout.training.curve.stored_verdicts import stored_kind

    errors = [point.number("n_errors") for point in points]
    intervals = [interval(*(point.ci or (None, None))) for point in points]
    results = [point for point in points if point.has_result]
    columns = [RankedColumn("step", [str(p.step) for p in points], 9)]
    if not results or any(point.number("n") is not None for point in results):
        # Else they are metrics of an evaluator that gives no reward and no denominator.
        columns += [
            RankedColumn("reward", [number(p.reward) for p in points], 8),
            RankedColumn("95% interval", intervals, 7, "left"),
            RankedColumn("passed", [number(p.number("pass_rate")) for p in points], 3),
            RankedColumn("n", [format_n(p) for p in points], 5),
            RankedColumn("errors", ["–" if e is None else f"{e:.0f}" for e in errors], 4),
        ]
    columns.append(RankedColumn("seconds", [f"{p.seconds:.1f}" for p in points], 2))
    kinds = [stored_kind(point) for point in points]
    if any(kinds):
        columns.append(RankedColumn("verdict", [kind or "–" for kind in kinds], 1, "left"))
    if any(point.lag_steps for point in points):
        lags = ["–" if p.lag_steps is None else str(p.lag_steps) for p in points]
        columns.append(RankedColumn("steps late", lags, 1))
    if len({point.label for point in points}) > 1:
        columns.insert(0, RankedColumn("eval", [cut(p.label, 24) for p in points], 10, "left"))
    names = dict.fromkeys(name for point in points for name in point.metrics())
    values = {name: [p.value_and_interval(name)[0] for p in points] for name in names}
    # A metric that is all there is to the reward says nothing new: it comes last.
    scored = [point.number("mean_scored") for point in points]
    for name in sorted(names, key=lambda name: values[name] == scored):
        cells = [_format_metric(point, name) for point in points]
        columns.append(RankedColumn(name, cells, 0))
    return columns


def _format_metric(point: CurvePoint, name: str) -> str:
    """Return a metric's mean, with its number of values where that is not the reward's."""
    key = point.summary_key(name)
    value, n = point.number(key), point.number(f"{key}_n")
    if value is None or n is None or n == point.n:
        return number(value)
    return f"{number(value)} of {n:.0f}"
