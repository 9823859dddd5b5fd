"""`heldout schema [COMMAND]`: the JSON that commands print, as JSON Schema.

Fields are written here as "TYPE description", where ? allows null and [TYPE] is a list. Documented
fields are always there; others may be added in later versions.
"""

from __future__ import annotations

from typing import Any

import click

from heldout.cli._tables import print_json
from heldout.errors import InvalidInput

Fields = dict[str, Any]

USAGE: Fields = {
    "n": "integer items that reported their tokens",
    "prompt_tokens": "integer tokens that the model read",
    "completion_tokens": "integer tokens that it wrote",
    "cost": "number? by the prices that you set; null without one",
}
SUMMARY: Fields = {
    "n": "integer items, the denominator of mean",
    "n_scored": "integer items with a score, the denominator of mean_scored",
    "n_errors": "integer items that errored: they have no score",
    "n_truncated": "integer items whose last turn was truncated",
    "mean": "number? mean reward, errored items as 0",
    "ci_low": "number? lower end of its 95% interval",
    "ci_high": "number? upper end",
    "mean_scored": "number? mean reward of the scored items",
    "stderr": "number? standard error of mean",
    "pass_rate": "number? share of items that passed",
}
SIDE: Fields = {
    "name": "string",
    "path": "string? the run directory",
    "samples": "integer",
    "items": "integer",
    "errored": "integer",
    "left_out": "integer samples without a value to compare",
    "mean": "number? the mean reward, as heldout show prints it",
    "usage": {"?": USAGE},
}
DIFFERENCE: Fields = {
    "mean_a": "number",
    "mean_b": "number",
    "difference": "number B - A",
    "stderr": "number?",
    "p_value": "number? two-sided, of no difference",
    "ci_low": "number?",
    "ci_high": "number?",
}
FLIP: Fields = {"id": "string the sample", "a": "number its reward in A", "b": "number in B"}
COMPARISON: Fields = {
    "verdict": "string b_better, a_better, inconclusive; b_higher or a_higher of a metric",
    "metric": "string",
    "paired": "boolean whether samples were paired",
    "a": SIDE,
    "b": SIDE,
    "overall": DIFFERENCE,
    "with_errors": {"?": DIFFERENCE},
    "minimum_detectable": "number? at 80% power",
    "slices": [{"slice": "object values by key", **DIFFERENCE, "adjusted_p_value": "number?"}],
    "gained": [FLIP],
    "lost": [FLIP],
    "gained_total": "integer",
    "lost_total": "integer",
    "mismatches": "[object] what was allowed to differ",
    "notes": "[string]",
}
TRAINING: Fields = {
    "state": "string alive, finished or stale: neither finished nor written by a process",
    "reason": "string? why it did not finish",
    "last_point": "string? time of the newest point, UTC",
    "seconds_since_last_point": "integer?",
    "stop_requested": "string? the reason of a request to stop",
}
POINT: Fields = {
    "label": "string the eval",
    "step": "integer",
    "time": "string when it was written, UTC",
    "seconds": "number what the eval took",
    "summary": "object? null where it was skipped",
    "skipped": "string? why there is no summary",
    "partial": "string? why it ended early",
    "weights": "string? content hash of the weights",
    "verdict": "object?",
}
RUN: Fields = {**SUMMARY, "path": "string the run directory", "usage": {"?": USAGE}}
SCHEMAS: dict[str, tuple[str, Any]] = {
    "error": (
        "What any command prints on standard output where it fails, with --json",
        {
            "error": {
                "kind": "string usage_error, invalid_input, run_directory_error, eval_failed, …",
                "message": "string",
                "hint": "string? what to do",
            }
        },
    ),
    "run": ("One object", RUN),
    "rescore": ("One object", RUN),
    "list": (
        "One object per line and run",
        {
            "id": "string the name that commands take: capitals@3",
            "name": "string the path below the output directory",
            "path": "string",
            "kind": "string run, curve or episodes",
            "status": "string running, finished, failed, interrupted or damaged",
            "model": "string?",
            "mean": "number? of a curve, that of its last result",
            "ci_low": "number?",
            "ci_high": "number?",
            "n": "integer?",
            "asked": "integer? items that were asked for",
            "errors": "integer?",
            "step": "integer? of a curve",
            "prompt_tokens": "integer?",
            "completion_tokens": "integer?",
            "cost": "number?",
            "when": "string? start, UTC",
            "finished": "string? end, UTC",
            "tags": "[string]",
            "note": "string?",
            "commit": "string? git commit",
            "dirty": "boolean? whether its files had been changed",
            "reason": "string?",
        },
    ),
    "show": (
        "One object for a run; see also show-curve, show-items, show-slices",
        {
            "kind": "string run",
            "path": "string",
            "status": "string running, complete, interrupted or failed",
            "reason": "string?",
            "config": "object",
            "summary": SUMMARY,
            "usage": {"?": USAGE},
            "started": "string",
            "finished": "string?",
            "git": {"?": {"commit": "string", "dirty": "boolean?"}},
            "command": "[string]? without keys",
            "versions": "object",
        },
    ),
    "show-curve": (
        "One object for a training run",
        {
            "kind": "string curve",
            "path": "string",
            "training": TRAINING,
            "verdicts": "object the newest verdict by label, with step and best eval so far",
            "points": [POINT],
        },
    ),
    "show-items": (
        "One object per line and item, with --failures, --passes or --sample",
        {
            "sample_id": "string",
            "repeat": "integer which attempt, from 0",
            "sample": "object",
            "trajectory": "object",
            "score": "object",
            "reward": "number? null where it errored",
            "error": "string?",
        },
    ),
    "show-slices": (
        "One object per line and slice, with --by",
        {"slice": "object values by key", **SUMMARY},
    ),
    "sql": ("One object per line and row: values by column", {}),
    "compare": ("One object", COMPARISON),
    "gate": (
        "One object; the exit code is exit_code",
        {
            "outcome": "string pass, fail, inconclusive or errored",
            "exit_code": "integer 0, 1, 3 or 4",
            "metric": "string",
            "confidence": "number",
            "run": SIDE,
            "checks": [
                {
                    "kind": "string overall, slice, min_mean or max_mean",
                    "name": "string",
                    "slice": "object?",
                    "outcome": "string",
                    "estimate": "number?",
                    "ci_low": "number?",
                    "ci_high": "number?",
                    "bound": "number",
                    "n": "integer samples",
                    "needed": "integer? samples that would decide at 80% power",
                    "why": "string",
                }
            ],
            "comparison": {"?": COMPARISON},
        },
    ),
    "power": (
        "One object",
        {
            "name": "string",
            "metric": "string",
            "samples": "integer",
            "detect": "number",
            "power": "number",
            "alpha": "number",
            "detectable": "number? minimum detectable effect of these samples",
            "rows": [
                {
                    "repeats": "integer attempts of each sample",
                    "samples": "integer that are enough",
                    "at_least": "integer fewer never are",
                    "answers": "integer samples times attempts",
                }
            ],
            "notes": "[string]",
        },
    ),
    "aggregate": (
        "One object",
        {
            "metric": "string",
            "n_runs": "integer",
            "n_tasks": "integer",
            "interquartile_mean": "number",
            "interquartile_mean_ci_low": "number?",
            "interquartile_mean_ci_high": "number?",
            "mean": "number",
            "median": "number",
            "optimality_gap": "number",
            "notes": "[string]",
        },
    ),
    "curve watch": ("One object per line and point; the last line is {'training': …}", POINT),
    "curve flips": (
        "One object",
        {
            "label": "string",
            "from": "integer step",
            "to": "integer step",
            "compared": "integer samples",
            "difference": "number?",
            "ci_low": "number?",
            "ci_high": "number?",
            "gained": [{"id": "string", "before": "number", "after": "number"}],
            "lost": [{"id": "string", "before": "number", "after": "number"}],
        },
    ),
    "curve plot": ("One object", {"path": "string", "format": "string", "runs": "[string]"}),
    "curve stop": ("One object", {"path": "string", "reason": "string", "alive": "boolean"}),
    "agent": (
        "One object, or {'skipped': reason} with --skip-missing",
        {
            "env": "string",
            "policy": "string",
            "episodes": "integer",
            "success_rate": "number?",
            "mean_return": "number?",
        },
    ),
    "tool-calls": (
        "One object",
        {
            "run": "string the run directory",
            "requests": "integer",
            "answered": "integer",
            "errored": "integer",
            "finish_reasons": "object",
            "schema_accuracy": "object",
            "problems": "object",
        },
    ),
    "check judge": ("One object", {"kind": "string", "notes": "[string]"}),
    "check template": (
        "One object; exit code 1 where recommended is null",
        {"tokenizer": "string", "recommended": "string?", "advice": "string"},
    ),
    "cache show": ("One object per line and file", {"path": "string", "entries": "integer"}),
    "cache clear": ("One object", {"path": "string", "removed": "integer turns"}),
    "repair": ("One object", {"path": "string", "moved": "[integer] line numbers"}),
    "rm": ("One object", {"removed": "[string]", "left": "object files not of a run, by path"}),
}


@click.command("schema")
@click.argument("names", nargs=-1, metavar="[COMMAND]")
@click.option("--json", "as_json", is_flag=True, hidden=True)
def command(names: tuple[str, ...], as_json: bool) -> None:
    """Print the JSON Schema of what COMMAND prints with --json; of all commands without COMMAND.

    `heldout schema error` is that of errors, `heldout schema curve watch` that of a subcommand.
    """
    name = {"curve show": "show-curve"}.get(" ".join(names), " ".join(names))
    if not name:
        print_json({known: build_schema(known) for known in SCHEMAS})
        return
    if name not in SCHEMAS:
        raise InvalidInput(f"there is no schema {name!r}; there are {', '.join(SCHEMAS)}")
    print_json(build_schema(name))


def build_schema(name: str) -> dict[str, Any]:
    """Build the JSON Schema of a command.

    Args:
        name: The command, a key of SCHEMAS.

    Returns:
        The schema.
    """
    description, fields = SCHEMAS[name]
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": name, "description": description, **_build(fields)}


def _build(field: Any) -> dict[str, Any]:
    if isinstance(field, list):
        return {"type": "array", "items": _build(field[0])}
    if isinstance(field, dict):
        if "?" in field:
            return {"anyOf": [_build(field["?"]), {"type": "null"}]}
        properties = {key: _build(value) for key, value in field.items()}
        return {"type": "object", "properties": properties, "required": list(field)}
    kind, _, description = field.partition(" ")
    bare = kind.rstrip("?")
    schema: dict[str, Any] = {"type": bare}
    if bare.startswith("["):
        schema = {"type": "array", "items": {"type": bare.strip("[]")}}
    if kind.endswith("?"):
        schema["type"] = [schema["type"], "null"]
    return {**schema, "description": description} if description else schema
