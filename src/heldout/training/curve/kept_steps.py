"""What is kept of the evals below `steps/`: their conversations, which take the room of a curve.

The curve itself keeps the rewards of every sample at every step, so verdicts, flips and plots do
not need them. What is gone without them: reading answers, `RUN@STEP`, comparing two steps, scoring
again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from heldout.store.run_dir import RunDir
from heldout.training.curve.points import CurvePoint


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
