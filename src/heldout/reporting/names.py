"""Which run a name means: the one grammar of the command line and the viewer.

RUN              a run directory, or a name under outputs/evals: the latest run of that name
RUN@3            the third run of that name; RUN@2026-11-15 the latest of that day
RUN@STEP         the eval of a curve at this step; RUN@last is the last one
RUN@LABEL:STEP   the same, where evals of several labels share a run directory
URL              a run directory that fsspec reads, such as s3://bucket/run
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.store.numbers import TIMESTAMP
from heldout.store.remote import fetch_run
from heldout.store.run_dir import RunDir
from heldout.store.runs import ROOT, find_run
from heldout.training.curve.curve_file import explain_missing, saved_eval
from heldout.training.curve.points import CurvePoint, current_points, read_points

if TYPE_CHECKING:
    from heldout.store.report import EvalReport

LAST = "last"


def explain_empty(*folders: str | Path) -> str:
    """Say that no folder has a run, and how to make one."""
    from heldout.models.demo import DOWNLOAD

    return (
        f"There is no run in {', '.join(map(str, folders))} yet. "
        f"`heldout run heldout.examples.capitals` makes one with a small model on this machine "
        f"({DOWNLOAD} to download); `heldout run FILE --model MODEL` runs an eval of yours."
    )


def load_report(run: str) -> EvalReport:
    """Load the report of RUN, RUN@3, RUN@STEP or RUN@last.

    An eval of a curve, or one of several runs of a name, is named as it was given: its own
    directory is named by a step, or a time.
    """
    from heldout.store.report import EvalReport

    path = find_run_directory(run)
    report = EvalReport.load(path)
    if path.parent.name != "steps" and not TIMESTAMP.fullmatch(path.name):
        return report
    name = str(Path(run).relative_to(ROOT)) if Path(run).is_relative_to(ROOT) else run
    return replace(report, config={**report.config, "experiment_name": name})


def find_run_directory(run: str) -> Path:
    """Find the directory of RUN, RUN@3, RUN@STEP or RUN@last."""
    run = _to_local(run)
    # A directory may have an @ in its name.
    exists = Path(run).exists() or (Path(ROOT) / run).exists()
    one = None if exists else parse_eval_name(run, lambda name: find_curve(name) is not None)
    name = one.curve if one else run if exists else run.partition("@")[0]
    curve = find_curve(name)
    if curve is None:
        return find_run(run)
    if one is not None:
        return find_step(curve, one.step, label=one.label)
    steps = list_result_steps(current_points(read_points(curve / "curve.jsonl")))
    raise InvalidInput(
        f"{curve} is a curve of many evals. Name one by its step, {name}@STEP, or the last, "
        f"{name}@{LAST}: {steps}"
    )


class EvalName(NamedTuple):
    """One eval of a curve, as RUN@STEP or RUN@LABEL:STEP names it."""

    curve: str
    label: str | None
    """None: the only one there is."""
    step: int | None
    """None: the last one with a result."""


def parse_eval_name(text: str, is_curve: Callable[[str], bool]) -> EvalName | None:
    """Read the name of one eval of a curve; None if it is none.

    Args:
        text: The name. Runs and labels may have an @ of their own.
        is_curve: Says whether there is a curve of a name.
    """
    for at in re.finditer("@", text):
        selector = re.fullmatch(
            f"(?:(?P<label>.*):)?(?:(?P<step>[0-9]{{1,16}})|{LAST})", text[at.end() :], re.S
        )
        if selector is not None and is_curve(text[: at.start()]):
            step = selector["step"]
            return EvalName(text[: at.start()], selector["label"], int(step) if step else None)
    return None


def format_eval_name(curve: str, label: str | None, step: int) -> str:
    """Name one eval of a curve; with a label where the curve has several."""
    return f"{curve}@{step}" if label is None else f"{curve}@{label}:{step}"


def find_curve(run: str | Path) -> Path | None:
    """Find the directory of a training run; None for an ordinary run, or none at all."""
    run = _to_local(str(run))
    for path in (Path(run), Path(ROOT) / run):
        if RunDir(path).curve.exists():
            return path
        if RunDir(path).exists():
            return None
    return None


def _to_local(run: str) -> str:
    """Copy a run that is named by a URL to this machine; RUN@STEP stays as it is."""
    if "://" not in run:
        return run
    folder, _, last = run.rstrip("/").rpartition("/")
    name, at, selector = last.partition("@")
    return f"{fetch_run(f'{folder}/{name}')}{at}{selector}"


def find_step(path: Path, step: int | None, *, label: str | None = None) -> Path:
    """Find where the eval at a step of a curve is saved; None is the last step with a result."""
    written = read_points(path / "curve.jsonl")
    points = select_label(current_points(written), label)
    matches = [point for point in points if point.step == step]
    if step is None:
        matches = [point for point in points if point.has_result]
        if not matches:
            raise RunDirectoryError(f"{path} has no last eval: no step has a result yet")
    if not matches:
        if any(point.step == step and point.has_result for point in select_label(written, label)):
            raise RunDirectoryError(
                f"step {step} of {path} was superseded by a later attempt of the training run"
            )
        raise RunDirectoryError(f"{path} has no eval at step {step}; {list_result_steps(points)}")
    labels = sorted({point.label for point in matches})
    if len(labels) > 1:
        names = ", ".join(f"RUN@{label}:{LAST if step is None else step}" for label in labels)
        raise InvalidInput(f"{path} has several evals: name one of them, {names}")
    point = max(matches, key=lambda point: point.step)
    directory = saved_eval(path, point)
    if directory is None:
        if (missing := explain_missing(path, points, point)) is not None:
            raise RunDirectoryError(f"{path}: {missing}")
        why = f"; it was skipped: {point.skipped}" if point.skipped else ""
        raise RunDirectoryError(
            f"there is no {path / 'steps'}/{point.step:08d}: the conversations of step "
            f"{point.step} were not saved{why}"
        )
    return directory


def list_result_steps(points: Iterable[CurvePoint]) -> str:
    """Return the steps with a result as the end of a sentence, a long list without its middle."""
    steps = [str(step) for step in sorted({p.step for p in points if p.has_result})]
    if len(steps) < 2:
        return f"there is only {steps[0]}" if steps else "no step has a result yet"
    if len(steps) > 12:
        steps = [*steps[:6], "…", *steps[-5:]]
    return f"there are {', '.join(steps)}"


def select_label(points: Sequence[CurvePoint], label: str | None) -> list[CurvePoint]:
    """Pick the points of one label; all of them, if it is None."""
    labels = sorted({point.label for point in points})
    if label is not None and label not in labels:
        known = ", ".join(labels) or "none yet"
        raise InvalidInput(f"the curve has no eval {label!r:.100}; it has {known}")
    return [point for point in points if label in (None, point.label)]
