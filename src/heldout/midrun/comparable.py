"""One curve, one question: points that could not be compared are not put side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heldout.errors import InvalidInput, ResumeMismatch
from heldout.fingerprints import describe_callable
from heldout.midrun.runners import Runner


def describe_runner(runner: Runner) -> dict[str, Any]:
    """What of a runner would change results if it changed."""
    return {
        "score_fn": describe_callable(runner.score_fn),
        "prepare_messages": describe_callable(runner.prepare_messages),
        "environment_factory": describe_callable(runner.environment_factory, docstrings=True),
        "answer_filter": describe_callable(runner.answer_filter),
        "settings": {
            "repeats": runner.repeats,
            "max_turns": runner.max_turns,
            "token_budget": runner.token_budget,
            "temperature": runner.sampling.temperature,
            "top_p": runner.sampling.top_p,
            "max_tokens": runner.sampling.max_tokens,
            "stop": list(runner.sampling.stop),
        },
    }


def check_config(
    path: Path, before: Mapping[str, Any], now: Mapping[str, Any], *, has_points: bool
) -> None:
    """ResumeMismatch where this run directory has the curve of another eval."""
    different = [
        f"{key} was {before.get(key)!r}, is now {now[key]!r}"
        for key in now
        if key != "every_steps" and before.get(key) != now[key]
    ]
    if different and (has_points or before.get("label") != now["label"]):
        raise ResumeMismatch(
            f"{path} has a curve whose points could not be compared with these: "
            + "; ".join(different)
            + ". Undo the change, or use another run_dir"
        )


def check_functions(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        raise InvalidInput(
            f"{' and '.join(changed)}: not what it was when the curve in {path} began, so its "
            "points could not be compared; use another run_dir"
        )
