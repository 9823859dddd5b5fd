"""Which run is meant: RUN is a directory or a name under outputs/evals, RUN@STEP and RUN@last an
eval of a curve; RUN@LABEL:STEP and RUN@LABEL:last, where several evals share a run directory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.store.run_dir import RunDir, find_run

if TYPE_CHECKING:
    from heldout.cli.curves import CurveRun
    from heldout.store.report import EvalReport
    from heldout.training.curve import CurvePoint

LAST = "last"


def find_named(given: str) -> Path:
    """The run directory that RUN, RUN@STEP or RUN@last means."""
    from heldout.cli.curves import find_curve, read_curve

    # A directory may have an @ in its name; then the name is all there is to it.
    if "@" not in given or any(p.exists() for p in (Path(given), Path("outputs/evals") / given)):
        curve = find_curve(given)
        if curve is None:
            return find_run(given)
        steps = steps_of(read_curve(curve))
        raise InvalidInput(
            f"{curve} is a curve of many evals. Name one by its step, {given}@STEP, or the last, "
            f"{given}@{LAST}: {steps}"
        )
    name, which = _split(given)
    curve = find_curve(name)
    if curve is None:
        path = find_run(name)
        raise InvalidInput(f"{path} has no curve.jsonl, so there is no @{which} of it")
    label, colon, step = which.rpartition(":")
    if re.fullmatch(r"[0-9]{1,20}", step, re.ASCII):
        return step_directory(curve, int(step), label=label if colon else None)
    if step != LAST:
        raise InvalidInput(
            f"after the @ of {given} comes a step, or {LAST}; got {which!r}: "
            f"{steps_of(read_curve(curve))}"
        )
    points = _of_label(curve, read_curve(curve).points, label if colon else None)
    with_result = [point for point in points if point.has_result]
    if not with_result:
        raise RunDirectoryError(f"{curve} has no last eval: no step has a result yet")
    _refuse_several(with_result, LAST, f"{curve} has several evals")
    newest = max(with_result, key=lambda point: point.step)
    return step_directory(curve, newest.step, label=newest.label)


def load_named(given: str) -> EvalReport:
    """The report of that run. One of a curve is named as it was given: its own name is the number
    of its step, which does not say of which curve."""
    from heldout.store.report import EvalReport

    path = find_named(given)
    report = EvalReport.load(path)
    if path.parent.name != "steps":
        return report
    return replace(report, config={**report.config, "experiment_name": given})


def _split(given: str) -> tuple[str, str]:
    """At the last @ before which there is a curve: labels may have one, too."""
    from heldout.cli.curves import find_curve

    places = [i for i, character in enumerate(given) if character == "@"]
    place = next((i for i in reversed(places) if find_curve(given[:i])), places[-1])
    return given[:place], given[place + 1 :]


# --- The evals of a curve -----------------------------------------------------------------------


def step_directory(path: Path, step: int, *, label: str | None = None) -> Path:
    """Where the eval is kept that the curve has at this step.

    The curve says which of the directories under steps/ it is. It may come from anywhere, so that
    what it says is looked up among those, and is never a path to follow.
    """
    from heldout.training.curve import CURVE_NAME, current_points, read_points

    written = read_points(path / CURVE_NAME)
    kept = {directory.name: directory for directory in _directories(path, step)}
    current = _of_label(path, current_points(written), label)
    points = [point for point in current if point.step == step]
    _refuse_several(points, str(step), f"{path} has several evals at step {step}")
    if not points:
        left = [p for p in _of_label(path, written, label) if p.step == step and p.has_result]
        raise _not_on_the_curve(path, step, current, left, [*kept])
    point = points[0]
    name = _directory_name(point)
    if point.has_result and point.run is None:
        # Where nothing was noted, it is the latest that is no other point's.
        others = {_directory_name(other) for other in written}
        name = next((name for name in reversed(kept) if name not in others), None)
    if name in kept:
        return kept[name]
    why = f", it was skipped: {point.skipped}" if point.skipped else ""
    raise RunDirectoryError(
        f"there is no {path / 'steps'}/{name or f'{step:08d}'}: of step {step} no conversations "
        f"were kept{why}"
    )


def steps_of(run: CurveRun) -> str:
    """Those with a result, in a sentence."""
    from heldout.cli.curves import named_steps

    return named_steps(point.step for point in run.points if point.has_result)


def _directories(path: Path, step: int) -> list[Path]:
    """All attempts at a step, in the order in which they were made."""
    steps, found = path / "steps", []
    for directory in steps.iterdir() if steps.is_dir() else ():
        name = re.fullmatch(r"([0-9]{1,20})(?:-([0-9]{1,20}))?", directory.name, re.ASCII)
        if name and int(name[1]) == step and RunDir(directory).exists():
            found.append((int(name[2] or 0), directory))
    return [directory for _, directory in sorted(found)]


def _directory_name(point: CurvePoint) -> str | None:
    """As `heldout.training` names them; None for anything else that a curve may say."""
    name = re.fullmatch(r"steps/([0-9]{1,20}(?:-[0-9]{1,20})?)", point.run or "", re.ASCII)
    return name[1] if name else None


def _of_label(path: Path, points: Iterable[CurvePoint], label: str | None) -> list[CurvePoint]:
    points = list(points)
    known = dict.fromkeys(point.label for point in points)
    if label is not None and label not in known:
        there = f"there is {', '.join(map(repr, known))}" if known else "there is none yet"
        raise InvalidInput(f"{path} has no eval of the label {label!r}; {there}")
    return [point for point in points if label in (None, point.label)]


def _refuse_several(points: Iterable[CurvePoint], which: str, what: str) -> None:
    labels = sorted({point.label for point in points})
    if len(labels) > 1:
        names = ", ".join(f"RUN@{label}:{which}" for label in labels)
        raise InvalidInput(f"{what}: name the one that is meant, {names}")


def _not_on_the_curve(
    path: Path,
    step: int,
    current: Iterable[CurvePoint],
    left: Sequence[CurvePoint],
    kept: Sequence[str],
) -> RunDirectoryError:
    """`left` are results that a restarted training went back on."""
    from heldout.cli.curves import named_steps

    if left:
        name = _directory_name(left[-1])
        where = f"; its eval is steps/{name}" if name in kept else ""
        return RunDirectoryError(
            f"step {step} of {path} was left behind when the training was restarted{where}"
        )
    there = named_steps(point.step for point in current if point.has_result)
    begun = f"; steps/{kept[-1]} was begun, and is not on the curve" if kept else ""
    return RunDirectoryError(f"{path} has no eval at step {step}; {there}{begun}")
