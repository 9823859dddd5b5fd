"""What is read of a golden set: what commands print, and what Python gives.

By public names and the command line alone: the modules behind them may move, the numbers may not.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import math
import re
import shlex
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest.mock import patch

from heldout import EvalReport, EvalResult, Message
from heldout.training import best_checkpoint, current_points, read_points
from heldout.vector import VectorReport

PROSE = frozenset({"text", "best_text", "sentence", "note", "notes", "message", "hint", "title"})
"""Keys of sentences for people, which may be worded otherwise."""
OF_TODAY = frozenset({"seconds_since_last_point"})
"""Keys of what depends on when it is read."""
OF_A_SLICE = ("n", "n_errors", "n_clusters", "mean", "mean_scored", "ci_low", "ci_high")
OF_A_POINT = ("ci_low", "pass_at_2", "pass_hat_2", "pass_at_2_ci_high")
ON_A_PAGE = {
    "run": ("status", "summary", "outcomes", "tokens"),
    "rows": ("total", "of", "mean"),
    "notes": ("total", "counts"),
    "compare": ("verdict", "difference", "low", "high", "wins", "losses", "gained", "lost"),
    "curve": ("superseded", "points"),
}
"""What is kept of what the viewer answers to its page, by request."""
SLICED_BY = ("level", "far", "continent", "parity", "success", "repeat")


def copy_set(folder: Path, target: Path) -> None:
    """Copy a set to where it can be changed: its files, and its runs as outputs/evals."""
    shutil.copytree(folder / "runs", target / "outputs" / "evals")
    for entry in folder.iterdir():
        if entry.suffix == ".py":
            shutil.copy(entry, target)
    if (folder / "logs").exists():
        shutil.copytree(folder / "logs", target / "logs")


def run_command(command: str) -> dict[str, Any]:
    """Run a command line of `heldout` in this process; returns its exit code and its JSON.

    Words behind a # are the only keys of its JSON that are kept.
    """
    [script] = entry_points(group="console_scripts", name="heldout")
    main, code, out = script.load(), None, io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with (
        patch.object(sys, "argv", ["heldout", *shlex.split(command, comments=True)]),
        redirect_stdout(out),
        redirect_stderr(io.StringIO()),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    out.seek(0)
    lines = [json.loads(line) for line in out.read().splitlines() if line.startswith("{")]
    if "#" in command:
        kept = command.partition("#")[2].split()
        lines = [{key: line[key] for key in kept} for line in lines]
    return {"code": code, "out": without_prose(lines)}


def without_prose(value: Any) -> Any:
    """Drop what is said to people, and what depends on the time."""
    if isinstance(value, dict):
        return {
            key: without_prose(part)
            for key, part in value.items()
            if key not in OF_TODAY and not (key in PROSE and isinstance(part, str | list))
        }
    return [without_prose(part) for part in value] if isinstance(value, list) else value


def observe(runs: Path) -> dict[str, Any]:
    """Read every run and curve with Python; returns what was found, by its path."""
    found: dict[str, Any] = {}
    for file in sorted(runs.rglob("run.json")):
        name = str(file.parent.relative_to(runs))
        is_curve = (file.parent / "curve.jsonl").exists()
        found[name] = observe_curve(file.parent) if is_curve else observe_run(file.parent)
    return json.loads(json.dumps(found))


def observe_run(path: Path) -> dict[str, Any]:
    report = EvalReport.load(path)
    results = list(report.results)
    keys = [k for k in SLICED_BY if k in {"repeat", *results[0].metadata}]
    failed = report.where("not passed")
    usage = report.usage
    found = {
        "status": report.status,
        "repeats": report.repeats,
        "threshold": report.pass_threshold,
        "errors": sum(error.count for error in report.errors),
        "usage": [usage.n, usage.prompt_tokens, usage.completion_tokens, usage.cost],
        "summary": dict(report.summary),
        "slices": {key: pick(report, key) for key in keys},
        "failed": [failed.summary["n"], failed.summary["n_of"]],
        "results": [describe(result) for result in results],
    }
    if report.config.get("kind") == "episodes":
        found["agent"] = VectorReport.load(path).summary
    return found


def pick(report: EvalReport, key: str) -> dict[str, list[Any]]:
    slices = report.summarize(by=key)
    return {str(v): [part.get(name) for name in OF_A_SLICE] for v, part in slices.items()}


def describe(result: EvalResult) -> list[Any]:
    """Everything that a result holds, texts as a hash of them."""
    trajectory, timing = result.trajectory, result.trajectory.timing
    stop = trajectory.stop
    return [
        result.sample_id,
        result.repeat,
        result.score.reward if result.ok else None,
        {metric.name: metric.value for metric in result.score.metrics},
        [result.error_stage, stop.ended_by, stop.limit, stop.truncated, stop.finish_reason],
        len(trajectory.messages),
        [len(result.tools), timing.restored_turns if timing else None],
        hash_of(
            [message_as_list(message) for message in trajectory.messages],
            [trajectory.answer, trajectory.outcome, result.error, result.metadata],
            [result.sample.input, result.sample.ground_truth, result.sample.metadata],
            [[metric.metadata, metric.weight] for metric in result.score.metrics],
            [[tool.name, tool.description, tool.parameters] for tool in result.tools],
        ),
    ]


def message_as_list(message: Message) -> list[Any]:
    calls = [[call.id, call.name, call.arguments] for call in message.tool_calls]
    return [message.role, message.content, calls, message.tool_call_id, message.reasoning]


def hash_of(*parts: Any) -> str:
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def observe_curve(path: Path) -> dict[str, Any]:
    lines = read_points(path / "curve.jsonl")
    points = current_points(lines)
    attempts = list(dict.fromkeys(point.session for point in lines))
    best = best_checkpoint(points)
    return {
        "lines": len(lines),
        "attempts": len(attempts),
        "best": best and [best.step, best.n, best.raw, best.estimate],
        "best_interval": best and best.interval and [best.interval.low, best.interval.high],
        "points": [
            [
                [point.label, point.step, point.final, attempts.index(point.session)],
                [point.n, point.reward, point.asked, point.of],
                [point.number(name) for name in OF_A_POINT if point.has_result],
                [point.skipped, point.partial, point.weights, point.run],
                (point.verdict or {}).get("kind"),
                hash_of([[o.id, o.repeat, o.reward, o.error] for o in point.outcomes]),
            ]
            for point in points
        ],
    }


def read_page(names: list[str]) -> dict[str, Any]:
    """Export runs of outputs/evals as a page, and return the numbers that are in it."""
    folders = " ".join(f"outputs/evals/{name}" for name in names)
    assert run_command(f"view {folders} --export page.html")["code"] == 0
    packed = re.search(r'id="data">([^<]*)<', Path("page.html").read_text())
    assert packed is not None
    answers = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    found = {}
    for request, answer in answers.items():
        kind, *arguments = request.split("\n")
        if kind in ON_A_PAGE and not any(a.startswith(("by=", "metric=")) for a in arguments):
            found[request] = {key: answer[key] for key in ON_A_PAGE[kind]}
    return dict(without_prose(found))


def differences(found: Any, expected: Any, place: str = "") -> list[str]:
    """Say where something expected is not there; whatever else was found may be there.

    Numbers may differ in their last digits: sums of another library are rounded otherwise.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        lost = [f"{place}/{key} is gone" for key in expected if key not in found]
        return lost + [
            text
            for key in expected
            if key in found
            for text in differences(found[key], expected[key], f"{place}/{key}")
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(found, expected, strict=True))
        return [text for i, (a, b) in pairs for text in differences(a, b, f"{place}/{i}")]
    if isinstance(expected, float) and isinstance(found, int | float):
        if math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12):
            return []
    elif found == expected and type(found) is type(expected):
        return []
    return [f"{place} was {expected!r:.200}, is {found!r:.200}"]
