"""`heldout schema [COMMAND]`: the JSON that commands print, as JSON Schema.

Where JSON is a type of heldout, its schema is derived from that. Other fields are written here as
"TYPE description", where ? allows null and [TYPE] is a list; fields of one type may share a key.
Documented fields are always there; later versions may add others.
"""

from __future__ import annotations

from types import UnionType
from typing import Any

import click
import msgspec

from heldout.analysis import Plan
from heldout.cli._tables import print_json
from heldout.errors import InvalidInput
from heldout.store.error_counts import ErrorCount
from heldout.store.run_dir import GitState, RunUsage
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
    "ci_low ci_high": "number? its 95% interval",
    "mean_scored": "number? mean reward of the scored items",
    "stderr": "number? standard error of mean",
    "pass_rate": "number? share of items that passed",
}
SIDE: Fields = {
    "name": "string",
    "path": "string? the run directory",
    "samples items errored": "integer",
    "left_out": "integer samples without a value to compare",
    "cached": "integer items all of whose model turns came from the response cache",
    "measured_nothing": "boolean whether all items with a score are such items",
    "mean": "number? the mean reward, as heldout show prints it",
    "usage": RunUsage | None,
}
DIFFERENCE: Fields = {
    "mean_a mean_b": "number",
    "difference": "number B - A",
    "stderr ci_low ci_high": "number?",
    "p_value": "number? two-sided, of no difference",
}
FLIP: Fields = {"id": "string the sample", "a": "number its reward in A", "b": "number in B"}
COMPARISON: Fields = {
    "verdict": "string b_better, a_better, inconclusive; b_higher or a_higher of a metric",
    "metric": "string",
    "paired": "boolean whether samples were paired",
    "a b": SIDE,
    "overall": DIFFERENCE,
    "with_errors": {"?": DIFFERENCE},
    "minimum_detectable": "number? at 80% power",
    "slices": [{"slice": "object values by key", **DIFFERENCE, "adjusted_p_value": "number?"}],
    "gained lost": [FLIP],
    "gained_total lost_total": "integer",
    "mismatches": "[object] what was allowed to differ",
    "notes": "[string]",
}
CHECK: Fields = {
    "kind": "string overall, slice, min_mean or max_mean",
    "name outcome why": "string",
    "slice": "object?",
    "estimate ci_low ci_high": "number?",
    "bound": "number",
    "n": "integer samples",
    "needed": "integer? samples that would decide at 80% power, if the estimate is right",
    "needed_if_equal": "integer? the same if there is no difference",
    "needed_is_least": "boolean nothing varied, so at least as many",
}
TRAINING: Fields = {
    "state": "string alive, finished, stale (neither finished nor written by a process), or "
    "unknown: a copy of a run at a URL that had not ended",
    "as_of": "string? when the copy of a run at a URL was made, UTC",
    "reason": "string? why it did not finish",
    "last_point": "string? time of the newest point, UTC",
    "seconds_since_last_point": "integer?",
    "stop_requested": "string? the reason of a request to stop",
}
RUN: Fields = {
    **SUMMARY,
    "path": "string the run directory",
    "errors": [ErrorCount],
    "usage": RunUsage | None,
}
ERROR: Fields = {
    "kind": "string usage_error, invalid_input, run_directory_error, eval_failed, …",
    "message": "string",
    "hint": "string? what to do",
}
SCHEMAS: dict[str, Any] = {
    "error": {"error": ERROR},
    "run": RUN,
    "rescore": RUN,
    "list": (RunEntry, {"id": "string the name that commands take: capitals@3"}),
    "show": {
        "kind": "string run",
        "path started": "string",
        "status": "string running, complete, interrupted or failed",
        "reason finished": "string?",
        "config versions": "object",
        "summary": SUMMARY,
        "errors": [ErrorCount],
        "usage": RunUsage | None,
        "finish_reasons": "object how many items' last turns ended in which way",
        "git": GitState | None,
        "command": "[string]? without keys",
    },
    "show-curve": {
        "kind": "string curve",
        "path": "string",
        "training": TRAINING,
        "verdicts": "object the newest verdict by label, with step and best eval so far",
        "points": [CurvePoint],
    },
    "show-items": (EvalResult, {"reward": "number? null where it errored"}),
    "show-slices": {"slice": "object values by key", **SUMMARY},
    "sql": {},
    "compare": COMPARISON,
    "gate": {
        "outcome": "string pass, fail, inconclusive or errored",
        "exit_code": "integer 0, 1, 3 or 4",
        "metric": "string",
        "confidence": "number",
        "run": SIDE,
        "checks": [CHECK],
        "comparison": {"?": COMPARISON},
    },
    "power": (Plan, {"notes": "[string]"}),
    "aggregate": {
        "metric": "string",
        "n_runs n_tasks": "integer",
        "interquartile_mean mean median optimality_gap": "number",
        "interquartile_mean_ci_low interquartile_mean_ci_high": "number?",
        "notes": "[string]",
    },
    "curve watch": CurvePoint,
    "curve flips": {
        "label": "string",
        "from to": "integer step",
        "compared": "integer samples",
        "difference ci_low ci_high": "number?",
        "gained lost": [{"id": "string", "before after": "number"}],
    },
    "curve plot": {"path format": "string", "runs": "[string]"},
    "curve stop": {"path reason": "string", "alive": "boolean"},
    "agent": {
        "env policy": "string",
        "episodes": "integer",
        "success_rate mean_return": "number?",
    },
    "agent-error": {
        "error": {
            **ERROR,
            "env policy": "string",
            "seed": "integer",
            "episode": "integer? the one that failed, where that is known",
            "episodes_in_flight": "[integer]",
        }
    },
    "tool-calls": {
        "run": "string the run directory",
        "requests answered errored": "integer",
        "finish_reasons schema_accuracy problems": "object",
    },
    "check judge": {"kind": "string", "notes": "[string]"},
    "check template": {"tokenizer advice": "string", "recommended": "string?"},
    "cache show": {"path": "string", "entries": "integer"},
    "cache clear": {"path": "string", "removed": "integer turns"},
    "repair": {"path": "string", "moved": "[integer] line numbers"},
    "rm": {"removed": "[string]", "left": "object files not of a run, by path"},
}
DESCRIPTIONS = {
    "error": "What any command prints on standard output where it fails, with --json",
    "list": "One object per line and run",
    "show": "One object for a run; see also show-curve, show-items, show-slices",
    "show-curve": "One object for a training run",
    "show-items": "One object per line and item, with --failures, --passes or --sample",
    "show-slices": "One object per line and slice, with --by",
    "sql": "One object per line and row: values by column",
    "gate": "One object; the exit code is exit_code",
    "curve watch": "One object per line and point; the last line is {'training': …}",
    "agent": "One object, or {'skipped': reason} with --skip-missing; see also agent-error",
    "agent-error": "What agent prints where an environment, policy or success function fails",
    "check template": "One object; exit code 1 where recommended is null",
    "cache show": "One object per line and file",
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
    types: dict[str, Any] = {}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "description": DESCRIPTIONS.get(name, "One object"),
        **_build(SCHEMAS[name], types),
    }
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
        named = {name: value for names, value in field.items() for name in names.split()}
        properties = {name: _build(value, types) for name, value in named.items()}
        return {"type": "object", "properties": properties, "required": [*named]}
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
    optional = {"outcomes"}  # of a point: left out here
    for component in components.values():
        component["required"] = [key for key in component["properties"] if key not in optional]
    types |= components
    return schema
