"""A training curve: its points, what flipped between two, and one sample across steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from heldout._core.format import interval, number
from heldout.errors import InvalidInput
from heldout.reporting.blocks import plain_blocks
from heldout.reporting.curves import (
    CurveRun,
    describe_point,
    find_verdict,
    format_n,
    group_by_label,
    read_curve,
)
from heldout.reporting.flips import compare_steps, describe_flips
from heldout.reporting.names import format_eval_name, select_label
from heldout.store.columns import as_text
from heldout.store.journal import decode_result, lines
from heldout.store.run_dir import RunDir
from heldout.store.runs import describe_model
from heldout.training.curve.curve_file import saved_eval
from heldout.training.curve.points import (
    CurvePoint,
    ItemOutcome,
    is_fewer,
    most_asked,
    sample_rewards,
)
from heldout.types import EvalResult
from heldout.viewer.values import Plain, UnknownRun

ENDS = ("from", "to")
STRIP = 500
"""Samples of a curve that are drawn step by step."""


@lru_cache(8)
def describe_curve(name: str, path: Path, _stamp: str, label: str, metric: str) -> Plain:
    """Describe the curve of a label, or of the first one; `_stamp` says which state is meant.

    Args:
        name: The run's name in the list.
        path: Its directory.
        _stamp: The state of the directory.
        label: The eval; "" is the first one.
        metric: What is drawn; "" is the reward, or the first metric of evals that have none.
    """
    from heldout.training.curve.stored_verdicts import answers, terms_of, with_verdicts

    run = read_curve(path)
    label, points = _points_of(run.points, label)
    config, problem = run.config, None
    try:
        points = with_verdicts(points, terms_of(points, config))
    except InvalidInput as raised:  # rewards that no verdict can be made of
        problem = str(raised)
    results = [point for point in points if point.has_result]
    metrics = measured_metrics(results)
    metric = metric or metrics[0]
    most = most_asked(points)
    labels = list(group_by_label(run.points))
    answer: Plain = {
        "label": label,
        "labels": labels,
        "metric": metric,
        "metrics": metrics,
        "points": [
            _describe_point(point, metric, most)
            | {
                "run": _eval_name(name, labels, point) if saved_eval(path, point) else None,
                "attempt": run.attempts.index(point.session) + 1,
            }
            for point in points
        ],
        "every": config.get("every_steps") if isinstance(config.get("every_steps"), int) else None,
        "model": describe_model(config),
        "superseded": run.superseded,
        "last_skip": run.last_skip,
        "seconds": sum(point.seconds for point in points),
        "path": str(path),
    }
    if results and not any(point.reward is not None for point in results):
        why = "these evals have no reward, and verdicts are on rewards"
        return answer | {"verdict": None, "best": None, "no_verdict": why}
    if problem is not None:
        return answer | {"verdict": None, "best": None, "no_verdict": problem}
    verdict = find_verdict(points)
    if verdict is not None:
        windows = [[verdict.get(f"{end}_{side}") for side in ("first", "last")] for end in ENDS]
        answer["verdict"] = {
            "kind": verdict["kind"],
            "sentence": answers(verdict)[0],
            "since_start": verdict.get("since_start_text"),
            "windows": [] if None in windows[0] else windows,
        }
        if verdict.get("best_step") is not None:
            answer["best"] = {"step": verdict["best_step"], "sentence": verdict["best_text"]}
    return answer


def refuse_unmeasured(answers: Sequence[Plain], metric: str, where: str) -> None:
    """Refuse a metric that no eval of these curves has; one without results may still get it."""
    names = dict.fromkeys(name for answer in answers for name in answer["metrics"])
    has_results = any(point["result"] for answer in answers for point in answer["points"])
    if has_results and metric not in ("reward", "pass_rate", *names):
        known = ", ".join(names)
        raise InvalidInput(f"there is no metric {metric!r:.100} in {where}, only {known}")


def measured_metrics(results: Sequence[CurvePoint]) -> list[str]:
    """Name what evals have values of, the reward first; "reward" where there are no values yet."""
    names = dict.fromkeys(["reward", "pass_rate", *(n for p in results for n in p.metrics())])
    measured = [
        name for name in names if any(p.value_and_interval(name)[0] is not None for p in results)
    ]
    return measured or ["reward"]


def _describe_point(point: CurvePoint, metric: str, most: int) -> Plain:
    from heldout.training.curve.stored_verdicts import stored_kind

    value, bounds = point.value_and_interval(metric)
    errors = point.number("n_errors")
    scored = point.number("mean_scored") if metric == "reward" and errors else None
    return {
        "step": point.step,
        "mean": value,
        "low": bounds and bounds[0],
        "high": bounds and bounds[1],
        "n": format_n(point, metric),
        "errors": None if errors is None else int(errors),
        "mean_scored": scored,
        "text": {
            "mean": number(value),
            "interval": interval(*(bounds or (None, None))),
            "mean_scored": number(scored),
        },
        "fewer": point.has_result and is_fewer(point, most),
        "kind": stored_kind(point),
        "pending": point.pending,
        "result": point.has_result,
        "note": describe_point(point),
        "seconds": point.seconds,
        "time": point.time,
    }


def _eval_name(name: str, labels: Sequence[str], point: CurvePoint) -> str:
    return format_eval_name(name, point.label if len(labels) > 1 else None, point.step)


def _points_of(points: Sequence[CurvePoint], label: str) -> tuple[str, list[CurvePoint]]:
    """Pick the points of a label, or of the first one."""
    label = label or next(iter(group_by_label(points)), "")
    return label, select_label(points, label or None)


def describe_step_flips(path: Path, label: str, from_step: int, to_step: int) -> Plain:
    """Say what changed between two points of a curve."""
    run = read_curve(path)
    _, points = _points_of(run.points, label)
    results = [point for point in points if point.has_result]
    change = compare_steps(results, from_step, to_step, run.pass_threshold)
    listed = {
        kind: {
            "total": len(changed),
            "rows": [
                {
                    "id": flip.id,
                    "text": {"before": number(flip.before), "after": number(flip.after)},
                }
                for flip in changed[:200]
            ],
        }
        for kind, changed in (("gained", change.flips.gained), ("lost", change.flips.lost))
    }
    return {"notes": plain_blocks(describe_flips(change)), **listed}


def describe_strip(path: Path, label: str) -> Plain:
    """Give what became of each sample at each step, those that flipped last first."""
    run = read_curve(path)
    _, points = _points_of(run.points, label)
    points = [point for point in points if point.has_result and point.outcomes][-200:]
    words: dict[str, list[str]] = {}
    for i, point in enumerate(points):
        threshold = _threshold_of(run, point)
        for id, reward in sample_rewards(point).items():
            cells = words.setdefault(id, ["-"] * len(points))
            cells[i] = _name_outcome(reward, threshold)[0]
    rows = [{"id": id, "cells": "".join(cells)} for id, cells in words.items()]
    rows.sort(key=lambda row: -_last_flip(row["cells"]))
    steps = [point.step for point in points]
    return {"steps": steps, "total": len(rows), "rows": rows[:STRIP]}


def describe_history(name: str, path: Path, label: str, id: str) -> Plain:
    """Give one sample at every step of a curve, with its answers where they are saved."""
    run = read_curve(path)
    label, points = _points_of(run.points, label)
    labels = list(group_by_label(run.points))
    steps: list[Plain] = []
    target = question = None
    for point in points:
        outcomes = [outcome for outcome in point.outcomes if outcome.id == id]
        if not outcomes:
            continue
        threshold = _threshold_of(run, point)
        step = _describe_outcomes(outcomes, threshold) | {"step": point.step}
        result = _find_result(path, point, id)
        if result is not None:
            answer = result.trajectory.answer
            step |= {
                "run": _eval_name(name, labels, point),
                "answer": answer,
                "changed": not steps or steps[-1].get("answer") != answer,
            }
            target = as_text(result.sample.ground_truth)
            question = result.question
        steps.append(step)
    if not steps:
        raise UnknownRun(f"no eval of {name} has a sample {id!r:.200}")
    return {"name": name, "id": id, "target": target, "question": question, "steps": steps}


def _last_flip(cells: str) -> int:
    """The place of the last change between passed and failed; -1 where there is none."""
    last, before = -1, ""
    for place, cell in enumerate(cells):
        if cell in "pf":
            if before and cell != before:
                last = place
            before = cell
    return last


def _threshold_of(run: CurveRun, point: CurvePoint) -> float | None:
    """Return the reward that passes; None at a point of returns, which has no pass rate."""
    return None if point.number("pass_rate") is None else run.pass_threshold


def _name_outcome(reward: float | None, threshold: float | None) -> str:
    """Say in a word what became of a sample; its first letter is the cell of a strip."""
    if reward is None:
        return "errored"
    if threshold is None:
        return "scored"
    return "passed" if reward >= threshold else "failed"


def _describe_outcomes(outcomes: Sequence[ItemOutcome], threshold: float | None) -> Plain:
    """Put the repeats of a sample at one step together, as `sample_rewards` does."""
    scored = [o.reward for o in outcomes if o.reward is not None and o.error is None]
    reward = sum(scored) / len(scored) if scored else None
    outcome = _name_outcome(reward, threshold)
    if outcome == "failed" and any(o.truncated for o in outcomes):
        outcome = "truncated"
    error = next((o.error for o in outcomes if o.error), None)
    return {
        "outcome": outcome,
        "reward": reward,
        "text": {"reward": number(reward)},
        "error": error,
        "attempts": len(outcomes),
    }


def _find_result(path: Path, point: CurvePoint, id: str) -> EvalResult | None:
    """Read the last result of a sample's first attempt at a point; None where none is saved."""
    directory = saved_eval(path, point)
    if directory is None:
        return None
    journal = RunDir(directory).journal
    needle = b'"id":' + msgspec.json.encode(id)
    match = None
    for line_number, _, line in lines(journal):
        if needle in line:
            result = decode_result(journal, line_number, line)
            if result.sample_id == id and result.repeat == 0:
                match = result
    return match
