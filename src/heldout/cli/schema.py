"""`heldout schema [COMMAND]`: the JSON that commands print, as JSON Schema.

Where JSON is a type of heldout, its schema is derived from that. Other fields are written here as
"TYPE description", where ? allows null and [TYPE] is a list. Documented fields are always there;
others may be added in later versions.
"""

from __future__ import annotations

from types import UnionType
from typing import Any

import click
import msgspec

from heldout.analysis import Plan
from heldout.cli._tables import print_json
from heldout.errors import InvalidInput
from heldout.store.columns import RunUsage
from heldout.store.run_dir import GitState
from heldout.store.runs import RunEntry
from heldout.training.curve import CurvePoint
from heldout.types import EvalResult

Fields = dict[str, Any]

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
    "usage": RunUsage | None,
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
RUN: Fields = {**SUMMARY, "path": "string the run directory", "usage": RunUsage | None}
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
        (RunEntry, {"id": "string the name that commands take: capitals@3"}),
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
            "usage": RunUsage | None,
            "started": "string",
            "finished": "string?",
            "git": GitState | None,
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
            "points": [CurvePoint],
        },
    ),
    "show-items": (
        "One object per line and item, with --failures, --passes or --sample",
        (EvalResult, {"reward": "number? null where it errored"}),
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
    "power": ("One object", (Plan, {"notes": "[string]"})),
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
    "curve watch": ("One object per line and point; the last line is {'training': …}", CurvePoint),
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
    """Build the JSON Schema of a command, a key of SCHEMAS."""
    description, fields = SCHEMAS[name]
    draft = "https://json-schema.org/draft/2020-12/schema"
    types: dict[str, Any] = {}
    schema = {"$schema": draft, "title": name, "description": description, **_build(fields, types)}
    return {**schema, "$defs": types} if types else schema


def _build(field: Any, types: dict[str, Any]) -> dict[str, Any]:
    """Build the schema of a field, and collect those of types that it refers to."""
    if isinstance(field, type | UnionType):
        return _derive(field, types)
    if isinstance(field, tuple):
        return {"allOf": [_build(part, types) for part in field]}
    if isinstance(field, list):
        return {"type": "array", "items": _build(field[0], types)}
    if isinstance(field, dict):
        if "?" in field:
            return {"anyOf": [_build(field["?"], types), {"type": "null"}]}
        properties = {key: _build(value, types) for key, value in field.items()}
        return {"type": "object", "properties": properties, "required": list(field)}
    kind, _, description = field.partition(" ")
    bare = kind.rstrip("?")
    schema: dict[str, Any] = {"type": bare}
    if bare.startswith("["):
        schema = {"type": "array", "items": {"type": bare.strip("[]")}}
    if kind.endswith("?"):
        schema["type"] = [schema["type"], "null"]
    return {**schema, "description": description} if description else schema


def _derive(kind: type | UnionType, types: dict[str, Any]) -> dict[str, Any]:
    (schema,), components = msgspec.json.schema_components(
        [kind], schema_hook=lambda _: {"type": "string"}, ref_template="#/$defs/{name}"
    )
    optional = {"outcomes"}  # of a point, with --outcomes
    for component in components.values():
        component["required"] = [key for key in component["properties"] if key not in optional]
    types |= components
    return schema
