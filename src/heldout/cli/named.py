"""Which run is meant: RUN is a directory or a name under outputs/evals, RUN@STEP and RUN@last an
eval of a curve."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.store.rundir import RunDir, find_run

if TYPE_CHECKING:
    from heldout.cli.curves import CurveRun
    from heldout.store.report import EvalReport

LAST = "last"


def find_named(given: str) -> Path:
    """The run directory that RUN, RUN@STEP or RUN@last means."""
    from heldout.cli.curves import find_curve, read_curve

    name, sign, which = given.rpartition("@")
    # A directory may have an @ in its name; then the name is all there is to it.
    if not sign or any(place.exists() for place in (Path(given), Path("outputs/evals") / given)):
        curve = find_curve(given)
        if curve is None:
            return find_run(given)
        steps = steps_of(read_curve(curve))
        raise InvalidInput(
            f"{curve} is a curve of many evals. Name one by its step, {given}@STEP, or the last, "
            f"{given}@{LAST}: {steps}"
        )
    curve = find_curve(name)
    if curve is None:
        path = find_run(name)
        raise InvalidInput(f"{path} has no curve.jsonl, so there is no @{which} of it")
    if re.fullmatch(r"[0-9]{1,20}", which, re.ASCII):
        return step_directory(curve, int(which))
    run = read_curve(curve)
    if which != LAST:
        raise InvalidInput(
            f"after the @ of {given} comes a step, or {LAST}; got {which!r}: {steps_of(run)}"
        )
    with_result = [point.step for point in run.points if point.has_result]
    if not with_result:
        raise RunDirectoryError(f"{curve} has no last eval: no step has a result yet")
    return step_directory(curve, max(with_result))


def load_named(given: str) -> EvalReport:
    """The report of that run. One of a curve is named as it was given: its own name is the number
    of its step, which does not say of which curve."""
    from heldout.store.report import EvalReport

    path = find_named(given)
    report = EvalReport.load(path)
    if path.parent.name != "steps":
        return report
    return replace(report, config={**report.config, "experiment_name": given})


# --- The evals of a curve -----------------------------------------------------------------------


def step_directory(path: Path, step: int) -> Path:
    """Where the eval at this step is kept: its latest attempt. The curve has no say in it."""
    from heldout.cli.curves import read_curve

    steps = path / "steps"
    attempts = []
    for directory in steps.iterdir() if steps.is_dir() else ():
        name = re.fullmatch(r"([0-9]{1,20})(?:-([0-9]{1,20}))?", directory.name, re.ASCII)
        if name and int(name[1]) == step and RunDir(directory).exists():
            attempts.append((int(name[2] or 0), directory))
    if attempts:
        return max(attempts)[1]
    run = read_curve(path)
    for point in run.points:
        if point.step == step:
            why = f", it was skipped: {point.skipped}" if point.skipped else ""
            raise RunDirectoryError(
                f"there is no {steps}/{step:08d}: of step {step} no conversations were kept{why}"
            )
    raise RunDirectoryError(f"{path} has no eval at step {step}; {steps_of(run)}")


def steps_of(run: CurveRun) -> str:
    """Those with a result, in a sentence."""
    from heldout.cli.curves import named_steps

    return named_steps(point.step for point in run.points if point.has_result)
