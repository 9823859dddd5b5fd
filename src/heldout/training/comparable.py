"""One curve, one question: points that could not be compared are not put side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heldout.errors import ResumeMismatch


def check_config(
    path: Path, before: Mapping[str, Any], now: Mapping[str, Any], *, has_results: bool
) -> None:
    """ResumeMismatch where this run directory has the curve of another eval."""
    different = [
        f"{key} was {before.get(key)!r}, is now {now[key]!r}"
        for key in now
        if key != "every_steps" and before.get(key) != now[key]
    ]
    if different and (has_results or before.get("label") != now["label"]):
        raise ResumeMismatch(
            f"{path} has a curve whose points could not be compared with these: "
            + "; ".join(different)
            + ". Undo the change, or use another run_dir"
        )


def check_functions(path: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """ResumeMismatch where the curve was measured or scored in another way."""
    changed = [name for name in now if name not in before or before[name] != now[name]]
    if "settings" in changed:
        old, new = before.get("settings") or {}, now["settings"]
        changed.remove("settings")
        changed += [
            f"{key} (was {old.get(key)!r}, is now {new[key]!r})"
            for key in new
            if old.get(key) != new[key]
        ]
    if changed:
        raise ResumeMismatch(
            f"the curve in {path} was measured with another {' and another '.join(changed)}, so "
            "new points could not be compared with it. Undo the change, or use another run_dir"
        )
