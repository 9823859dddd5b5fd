"""The list of runs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from heldout.errors import DamagedJournal, HeldoutError, RunDirectoryError
from heldout.reporting.curves import group_by_label, list_verdicts, read_curve
from heldout.stats.summary import EMPTY_SUMMARY
from heldout.store.report import EvalReport
from heldout.store.run_config import threshold_of
from heldout.store.run_dir import RunDir
from heldout.store.runs import read_files
from heldout.viewer.growing import GrowingSummary
from heldout.viewer.values import Plain, cut_text, numbers

OTHER_THAN_SETTINGS = (
    "experiment_name",
    "output_dir",
    "resume",
    "progress",
    "tags",
    "note",
    "kind",
)
MOST_SETTINGS = 40


@lru_cache(2_000)
def describe_entry(name: str, path: Path, _stamp: str, _live: bool) -> Plain:
    """Describe a run in a line; `_stamp` and `_live` say which state of it is meant."""
    entry, info, summary = read_files(path, name)
    config = {} if info is None else info.config
    row: Plain = {
        "name": name,
        "kind": entry.kind,
        "status": entry.status,
        "model": entry.endpoint,
        "asked": entry.asked,
        "started": entry.when,
        "tags": list(entry.tags),
        "note": entry.note,
        "eval": str(config.get("experiment_name") or name.partition("/")[0]),
        "settings": _flatten(config),
    }
    try:
        if entry.status == "damaged":
            raise RunDirectoryError(entry.reason or "it cannot be read")
        if entry.kind == "curve":
            return row | _curve_row(path)
        if entry.status == "running":
            summary = _growing(path, info and info.id).update(threshold_of(config))
            return row | numbers(summary) | {"unfinished": True}
        if summary is None or not {*EMPTY_SUMMARY} <= {*summary}:
            summary = EvalReport.load(path).summary
        unfinished = summary.get("complete") is False
        if unfinished and entry.status in ("finished", "stopped"):
            row["status"] = "incomplete"  # lines of its journal are lost
        return row | numbers(summary) | {"unfinished": unfinished}
    except HeldoutError as problem:
        repair = f"heldout repair {path}" if isinstance(problem, DamagedJournal) else None
        return row | {"problem": str(problem), "repair": repair}


def _flatten(config: Plain) -> Plain:
    """Give the settings of a run that are plain values, those of `sampling` and others included."""
    settings: Plain = {}
    for key, value in config.items():
        if key in OTHER_THAN_SETTINGS:
            continue
        parts = {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {}
        for name, plain in (parts or {key: value}).items():
            if isinstance(plain, str | int | float) and len(settings) < MOST_SETTINGS:
                settings[name] = cut_text(str(plain))
    return settings


@lru_cache(64)
def _growing(path: Path, _id: str | None) -> GrowingSummary:
    return GrowingSummary(RunDir(path).journal)


def _curve_row(path: Path) -> Plain:
    """Give one verdict per eval of a curve, the worst first, and the numbers of that one."""
    from heldout.training.curve.stored_verdicts import answers, short_verdict

    run = read_curve(path)
    results = [point for point in run.points if point.has_result]
    groups = group_by_label(results)
    verdicts: list[Plain] = []
    for label, verdict in list_verdicts(run):
        verdicts.append({"label": label, "kind": verdict and verdict["kind"]})
        if verdict is not None:
            verdicts[-1] |= {"short": short_verdict(verdict), "answers": answers(verdict)}
    first = groups[str(verdicts[0]["label"])] if verdicts else []
    spark = [
        (point.step, point.reward, *(point.ci or (None, None)))
        for point in first
        if point.reward is not None
    ]
    return {
        "step": first[-1].step if first else None,
        "verdicts": verdicts or [{"label": "", "kind": None}],
        "spark": spark[:: max(1, len(spark) // 120)],
        **numbers((first[-1].summary if first else None) or {}),
    }
