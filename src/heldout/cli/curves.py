"""A curve in words: found, read, and laid out as a table that fits the width there is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heldout.cli.render import as_line, interval, make_table, number
from heldout.errors import InvalidInput, RunDirectoryError
from heldout.store.jsonl import has_writer
from heldout.store.report import threshold_of
from heldout.store.run_dir import RunDir, RunInfo, find_run
from heldout.training.curve import (
    CURVE_NAME,
    CurvePoint,
    current_points,
    read_points,
    stop_requested,
)
from heldout.training.verdicts import (
    Best,
    StepVerdict,
    Terms,
    best_as_dict,
    best_checkpoint,
    stored_kind,
    terms_of,
    verdicts,
)

LONGEST_NOTE = 300
"""Characters of a reason that are shown: a traceback would bury the table."""
MOST_METRICS = 3
"""Of a point without a reward, on a line of its own."""
NARROWEST_NOTE = 16
"""Columns below which notes go under the table instead of into it."""
MOST_CANDIDATES = 500
"""Evals up to which the best one is corrected for being picked: beyond that it takes minutes."""
STYLES = {"improving": "green", "regressing": "red", "plateau": "yellow", "inconclusive": "dim"}
"""Of verdicts."""


# --- Finding and reading ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CurveRun:
    """A run directory with a curve in it."""

    path: Path
    points: list[CurvePoint]
    """As the curve stands."""
    left_out: int
    """Results that a restarted training went back on."""
    info: RunInfo | None
    live: bool
    no_results: str | None = None
    """Why the last attempt has none, where all results are of earlier ones."""

    @property
    def pass_threshold(self) -> float:
        return threshold_of(self.info.config if self.info else {})


def find_curve(given: str | Path) -> Path | None:
    """The run directory with a curve that is meant; None: an ordinary run, or there is none."""
    for place in (Path(given), Path("outputs/evals") / given):
        if (place / CURVE_NAME).exists():
            return place
        if RunDir(place).exists():
            return None
    return None


def open_curve(given: str | Path) -> CurveRun:
    path = find_curve(given)
    if path is None:
        path = find_run(given)
        raise RunDirectoryError(
            f"{path} has no {CURVE_NAME}: nothing was evaluated there during training. "
            f"`heldout show {path}` prints an ordinary run"
        )
    return read_curve(path)


def read_curve(path: Path) -> CurveRun:
    live = has_writer(path / CURVE_NAME)
    written = read_points(path / CURVE_NAME)
    run = RunDir(path)
    info = run.read_info() if run.run.exists() else None
    return CurveRun(
        path,
        current_points(written),
        count_left_out(written),
        info,
        live,
        _why_no_results(written),
    )


def _why_no_results(written: Sequence[CurvePoint]) -> str | None:
    """The reason of the last skip, where the last attempt has nothing but skips."""
    last = [p for p in written if p.session == written[-1].session] if written else []
    earlier = any(p.has_result for p in written)
    return last[-1].skipped if earlier and not any(p.has_result for p in last) else None


def count_left_out(written: Sequence[CurvePoint]) -> int:
    """Steps that have a result in the file, but none in the curve as it stands."""
    had = {(p.label, p.step) for p in written if p.has_result}
    return len(had - {(p.label, p.step) for p in current_points(written) if p.has_result})


def by_label(points: Iterable[CurvePoint]) -> dict[str, list[CurvePoint]]:
    labels: dict[str, list[CurvePoint]] = {}
    for point in points:
        labels.setdefault(point.label, []).append(point)
    return dict(sorted(labels.items()))


def check_metric(points: Iterable[CurvePoint], metric: str) -> None:
    """That a result has this metric; a curve without results may still get it."""
    results = [p for p in points if p.has_result]
    names = dict.fromkeys(["reward", "pass_rate", *(n for p in results for n in p.metrics())])
    if results and metric not in names:
        raise InvalidInput(f"the curve has no metric {metric!r}; it has {listed(names)}")


def listed(names: Iterable[str]) -> str:
    return ", ".join(name.replace("\n", "\\n") for name in names)


def named_steps(steps: Iterable[int]) -> str:
    """Steps in a sentence, the middle of a long list left out."""
    found = sorted(set(steps))
    if not found:
        return "no step has a result yet"
    shown = [str(step) for step in found]
    if len(shown) > 12:
        shown = [*shown[:6], "…", *shown[-5:]]
    return f"there are {', '.join(shown)}" if len(found) > 1 else f"there is only {shown[0]}"


# --- Words --------------------------------------------------------------------------------------


def age(point: CurvePoint, now: datetime | None = None) -> str:
    """How long ago it was written: "40 s ago"."""
    try:
        written = datetime.strptime(point.time, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return "at an unknown time"
    seconds = max(0, int(((now or datetime.now(UTC)) - written).total_seconds()))
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def status_text(run: CurveRun, newest: CurvePoint | None = None) -> Text:
    newest = newest or max(run.points, key=lambda p: p.time, default=None)
    last = f"the last point came {age(newest)}" if newest else "no point yet"
    status = run.info.status if run.info else "running"
    if run.live:
        line = as_line(f"Live; {last}.", "green")
    elif status == "complete":
        line = as_line(f"Finished; {last}.", "dim")
    else:
        reason = run.info.reason if run.info else None
        why = f"{status} ({reason})" if reason else status
        gone = "no training is writing it now" if status == "running" else why
        line = as_line(f"Not finished: {gone}; {last}.", "yellow")
    asked = stop_requested(run.path)
    if asked is not None:
        line.append(as_line(f" Asked to stop: {asked[:LONGEST_NOTE]}", "red"))
    return line


def note(point: CurvePoint) -> str:
    """What a reader must know to read the point right."""
    parts = ["final"] if point.final else []
    if not point.has_result:
        word = "pending" if point.pending else "skipped"
        parts.append(f"{word}: {point.skipped or 'no reason given'}")
    if point.partial is not None:
        parts.append(f"partial: {point.partial}")
    elif point.has_result and point.budget is not None and point.asked < point.of:
        parts.append("fewer items, to keep its budget")
    without = point.number("mean_scored")
    if point.number("n_errors") and without is not None:
        parts.append(f"{number(without)} without those that errored")
    put_off = _put_off(point)
    if put_off:
        parts.append(f"{put_off} before it put off, to keep its budget")
    if point.stop is not None:
        parts.append(f"stop: {point.stop}")
    return "; ".join(p if len(p) <= LONGEST_NOTE else p[:LONGEST_NOTE] + "…" for p in parts)


def _put_off(point: CurvePoint) -> int:
    """How many evals that were due by the cadence could not be afforded before this one."""
    budget = point.budget or {}
    since, every = budget.get("steps_since_last"), budget.get("every_steps")
    if not isinstance(since, int) or not isinstance(every, int) or every < 1:
        return 0
    return max(0, -(-since // every) - 1)


def seconds(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 1e7 else f"{value:.3g}"


def items(point: CurvePoint) -> str:
    """How many items its numbers are of: "20 of 32 of 64" are of those asked for, of all."""
    if point.number("n") is None:  # skipped, or numbers of somebody else's
        return "–"
    counts = [point.n]
    for larger in (point.asked, point.of):
        if larger > counts[-1]:
            counts.append(larger)
    return " of ".join(map(str, counts))


def point_line(point: CurvePoint, metric: str = "reward", *, labelled: bool = False) -> Text:
    """A point on a line of its own, for a pipe."""
    words = [point.label] if labelled else []
    words.append(f"step {point.step}")
    if point.has_result:
        value, bounds = point.value_and_interval(metric)
        around = f" ({interval(*bounds)})" if bounds else ""
        errors = int(point.number("n_errors") or 0)
        if value is None and metric == "reward" and point.metrics():  # numbers without a reward
            names = point.metrics()[:MOST_METRICS]
            words += [f"{name} {number(point.number(f'metric_{name}'))}" for name in names]
        else:
            words.append(f"{metric} {number(value)}{around}")
        words.append("n unknown" if items(point) == "–" else f"{items(point)} items")
        words.append(f"{errors} error{'s' * (errors > 1)}" if errors else "")
    words += [f"{seconds(point.seconds)} s", _late(point), _verdict(point), note(point)]
    return as_line("  ".join(word for word in words if word))


def _verdict(point: CurvePoint) -> str:
    return stored_kind(point) or ""


def _late(point: CurvePoint) -> str:
    steps = point.lag_steps or 0
    return f"{steps} step{'s' * (steps != 1)} late" if steps else ""


def point_as_dict(point: CurvePoint, *, outcomes: bool) -> dict[str, Any]:
    """Every field, whether it has its default or not: programs need not know the defaults."""
    plain = msgspec.structs.asdict(point)
    if point.verdict is not None and (kind := stored_kind(point)) is not None:
        plain["verdict"] = {**point.verdict, "kind": kind}
    if outcomes:
        plain["outcomes"] = [msgspec.structs.asdict(outcome) for outcome in point.outcomes]
    else:
        del plain["outcomes"]
    return plain


# --- Verdicts -----------------------------------------------------------------------------------


def asked_terms(
    points: Sequence[CurvePoint], effect: float | None, alpha: float | None, window: int | None
) -> Terms:
    """As given; else those of the curve's last verdict; else the usual ones."""
    known = terms_of(points)
    return Terms(
        known.effect if effect is None else effect,
        known.alpha if alpha is None else alpha,
        known.window if window is None else window,
        known.bounds,
    )


def verdict_line(said: StepVerdict, width: int | None = None) -> Text:
    """The sentence; in a narrow place as much of it as is whole, rather than half a number."""
    sentence = said.sentence()
    for words in (sentence, sentence.partition(", paired on")[0], said.short()):
        line = as_line(words, STYLES[said.kind])
        if width is None or line.cell_len <= width:
            break
    return line


@dataclass(frozen=True, slots=True)
class JudgedCurve:
    """One curve, and what it allows one to say."""

    points: list[CurvePoint]
    """With verdicts: those that were given, and those that were not given but can be."""
    lines: list[Text]
    """The last verdict and the best eval; none where there are no rewards."""


def judged(points: Sequence[CurvePoint], terms: Terms, *, anew: bool) -> JudgedCurve:
    """`anew`: with other verdicts than were given, too. Points of evals beside the training have
    none: their lines were written before they were judged."""
    try:
        said = verdicts(
            points,
            effect=terms.effect,
            alpha=terms.alpha,
            window=terms.window,
            bounds=terms.bounds,
        )
        best = best_checkpoint(points, bounds=terms.bounds, most=MOST_CANDIDATES)
    except InvalidInput as problem:
        return JudgedCurve(list(points), [as_line(f"no verdict: {problem}", "yellow")])
    lines = [verdict_line(said[-1])] if said else []
    lines += [as_line(best.sentence())] if best else []
    return JudgedCurve(_filled(points, said, best, anew=anew), lines)


def _filled(
    points: Sequence[CurvePoint], said: Sequence[StepVerdict], best: Best | None, *, anew: bool
) -> list[CurvePoint]:
    by_step = {one.step: one for one in said}
    filled = []
    for point in points:
        one = by_step.get(point.step) if point.has_result else None
        if anew or (point.verdict is None and one is not None):
            # Which one was best as of earlier steps nobody has worked out.
            picked = best_as_dict(best if one is said[-1] else None)
            verdict = None if one is None else {**one.as_dict(), **picked}
            point = msgspec.structs.replace(point, verdict=verdict)
        filled.append(point)
    return filled


# --- Tables -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Column:
    name: str
    cells: list[str]
    wanted: int
    """Which columns go first where there is no room for all: the largest number."""
    left: bool = False
    width: int = field(init=False)

    def __post_init__(self) -> None:
        self.width = max(as_line(text).cell_len for text in (self.name, *self.cells))


@dataclass(frozen=True, slots=True)
class CurveTable:
    table: Table
    below: list[Text]
    """Notes that the table has no room for."""
    hidden: list[str]
    """Metrics that it has no room for."""

    def print(self, console: Console) -> None:
        console.print(self.table)
        for line in self.below:
            console.print(line)
        if self.hidden:
            text = f"No room for {', '.join(self.hidden)}; --json has all."
            console.print(as_line(text, "dim"))


def curve_table(
    points: Sequence[CurvePoint], width: int, *, metric: str | None = None
) -> CurveTable:
    """A row a point. Columns that do not fit are left out, metrics other than `metric` first."""
    notes = [note(point) for point in points]
    columns = _columns(points, metric)
    fitting = _fitting(columns, width)
    used = sum(column.width + 3 for column in fitting)
    within = any(notes) and width - used >= min(NARROWEST_NOTE, max(map(len, notes)))
    if any(notes) and not within:
        # Numbers about the eval itself make room for the notes before the notes leave the table.
        slim = _fitting(columns, width - NARROWEST_NOTE - 3)
        if {c.name for c in slim} >= {"step", "reward", "95% interval", "items"}:
            fitting, within = slim, True
    table = make_table()
    for column in fitting:
        table.add_column(
            as_line(column.name), justify="left" if column.left else "right", no_wrap=True
        )
    if within:
        # A long note that must not wrap would take its room from the numbers.
        room = width - sum(column.width + 3 for column in fitting)
        table.add_column("note", overflow="fold", max_width=max(1, room))
    for i, point in enumerate(points):
        cells = [as_line(column.cells[i]) for column in fitting]
        style = None if point.has_result else "dim"
        table.add_row(*cells, *([as_line(notes[i])] if within else []), style=style)
    below = (
        []
        if within
        else [
            as_line(f"step {p.step}: {text}", "yellow")
            for p, text in zip(points, notes, strict=True)
            if text
        ]
    )
    hidden = [c.name for c in columns if c.wanted == 0 and c not in fitting]
    return CurveTable(table, below, hidden)


def _columns(points: Sequence[CurvePoint], metric: str | None) -> list[Column]:
    def bounds(point: CurvePoint) -> str:
        return interval(*point.ci) if point.ci else "–"

    def count(point: CurvePoint) -> str:
        errors = point.number("n_errors")
        return "–" if errors is None else f"{errors:.0f}"

    columns = [
        Column("step", [str(p.step) for p in points], 9),
        Column("reward", [number(p.reward) for p in points], 8),
        Column("95% interval", [bounds(p) for p in points], 7, left=True),
        Column("passed", [number(p.number("pass_rate")) for p in points], 3),
        Column("items", [items(p) for p in points], 5),
        Column("errors", [count(p) for p in points], 4),
        Column("seconds", [seconds(p.seconds) for p in points], 2),
    ]
    results = [p for p in points if p.has_result]
    if results and all(p.number("n") is None for p in results):
        # Numbers of somebody else's, without a reward and without a denominator.
        columns = [c for c in columns if c.name in ("step", "seconds")]
    if any(map(_verdict, points)):
        columns.append(Column("verdict", [_verdict(p) or "–" for p in points], 1, left=True))
    if any(p.lag_steps for p in points):
        lags = ["–" if p.lag_steps is None else str(p.lag_steps) for p in points]
        columns.append(Column("steps late", lags, 1))
    if len({p.label for p in points}) > 1:
        columns.insert(0, Column("eval", [p.label[:24] for p in points], 10, left=True))
    names = dict.fromkeys(name for p in points for name in p.metrics())
    values = {name: [p.value_and_interval(name)[0] for p in points] for name in names}
    # One metric that is all there is to the reward says nothing new: it comes last.
    scored = [p.number("mean_scored") for p in points]
    for name in sorted(names, key=lambda name: values[name] == scored):
        cells = [_metric_cell(point, name) for point in points]
        columns.append(Column(name, cells, 6 * (name == metric)))
    return columns


def _metric_cell(point: CurvePoint, name: str) -> str:
    """A metric's mean; with the number of its items, where that is another than the reward's."""
    value, count = point.number(f"metric_{name}"), point.number(f"metric_{name}_n")
    if value is None or count is None or count == point.n:
        return number(value)
    return f"{number(value)} of {count:.0f}"


def _fitting(columns: Sequence[Column], width: int) -> list[Column]:
    chosen: list[Column] = []
    for column in sorted(columns, key=lambda c: -c.wanted):
        needed = sum(c.width + 3 for c in chosen) + column.width
        if needed <= width:
            chosen.append(column)
        elif column.wanted:
            break  # a less important one must not take its place
    return [column for column in columns if column in chosen]
