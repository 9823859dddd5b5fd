"""The JSON that commands print: a type for each, of which `heldout schema` derives the schema.

`print_json(value, NAME)` refuses to print what is not of its type, so the two cannot differ.
Documented fields are always there; commands may print others beside them, as a summary has its
metrics, and later versions may add some.
"""

from __future__ import annotations

from typing import Annotated, Any, get_type_hints

import msgspec

from heldout.analysis import Plan
from heldout.store.error_counts import ErrorCount
from heldout.store.run_dir import GitState, RunUsage
from heldout.store.runs import RunEntry
from heldout.training.curve import CurvePoint
from heldout.types import EvalResult


def about(description: str) -> msgspec.Meta:
    """Return the description of a field."""
    return msgspec.Meta(description=description)


def extend(base: type, name: str, doc: str, **more: Any) -> type[msgspec.Struct]:
    """Return a type with the fields of another and more, all of them required."""
    fields = [*get_type_hints(base, include_extras=True).items(), *more.items()]
    return msgspec.defstruct(name, fields, namespace={"__doc__": doc}, module=__name__)


# --- Parts of several outputs -------------------------------------------------------------------


class ErrorOutput(msgspec.Struct):
    """Why a command failed."""

    kind: Annotated[str, about("usage_error, invalid_input, run_directory_error, eval_failed, …")]
    message: str
    hint: Annotated[str | None, about("what to do")]


class SummaryOutput(msgspec.Struct):
    """Numbers over items; each metric has fields of its own beside them."""

    n: Annotated[int, about("items, the denominator of mean")]
    n_scored: Annotated[int, about("items with a score, the denominator of mean_scored")]
    n_errors: Annotated[int, about("items that errored: they have no score")]
    n_truncated: Annotated[int, about("items whose last turn was truncated")]
    mean: Annotated[float | None, about("mean reward, errored items as 0")]
    ci_low: Annotated[float | None, about("lower end of its 95% interval")]
    ci_high: Annotated[float | None, about("upper end of its 95% interval")]
    mean_scored: Annotated[float | None, about("mean reward of the scored items")]
    stderr: Annotated[float | None, about("standard error of mean")]
    pass_rate: Annotated[float | None, about("share of items that passed")]


class SideOutput(msgspec.Struct):
    """One of the runs of a comparison."""

    name: str
    path: Annotated[str | None, about("the run directory")]
    samples: int
    items: int
    errored: int
    left_out: Annotated[int, about("samples without a value to compare")]
    cached: Annotated[int, about("items all of whose model turns came from the response cache")]
    measured_nothing: Annotated[bool, about("whether all items with a score are such items")]
    mean: Annotated[float | None, about("the mean reward, as heldout show prints it")]
    ci_low: float | None
    ci_high: float | None
    usage: RunUsage | None


class DifferenceOutput(msgspec.Struct):
    """B - A."""

    mean_a: float
    mean_b: float
    difference: Annotated[float, about("B - A")]
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    p_value: Annotated[float | None, about("two-sided, of no difference")]


class SliceDifferenceOutput(DifferenceOutput):
    """B - A in a slice."""

    slice: Annotated[dict[str, Any], about("values by key")]
    adjusted_p_value: float | None
    simultaneous_ci_low: float | None
    simultaneous_ci_high: float | None


class FlipOutput(msgspec.Struct):
    """A sample that passes in one run only; with question and answers where they are asked for."""

    id: Annotated[str, about("the sample")]
    a: Annotated[float, about("its reward in A")]
    b: Annotated[float, about("its reward in B")]


class StepFlipOutput(msgspec.Struct):
    """A sample that passes at one of two steps only."""

    id: Annotated[str, about("the sample")]
    before: float
    after: float


class TrainingOutput(msgspec.Struct):
    """What is known of a training run."""

    state: Annotated[
        str,
        about(
            "alive, finished, stale (neither finished nor written by a process), or unknown: a "
            "copy of a run at a URL that had not ended"
        ),
    ]
    as_of: Annotated[str | None, about("when the copy of a run at a URL was made, UTC")]
    reason: Annotated[str | None, about("why it did not finish")]
    last_point: Annotated[str | None, about("time of the newest point, UTC")]
    seconds_since_last_point: int | None
    stop_requested: Annotated[str | None, about("the reason of a request to stop")]


class GateCheckOutput(msgspec.Struct):
    """One check of a gate."""

    kind: Annotated[str, about("overall, slice, min_mean or max_mean")]
    name: str
    outcome: str
    why: str
    slice: dict[str, Any] | None
    estimate: float | None
    ci_low: float | None
    ci_high: float | None
    bound: float
    n: Annotated[int, about("samples")]
    needed: Annotated[
        int | None, about("samples that would decide at 80% power, if the estimate is right")
    ]
    needed_if_equal: Annotated[int | None, about("the same if there is no difference")]
    needed_is_least: Annotated[bool, about("nothing varied, so at least as many")]


class PlaceOutput(ErrorOutput):
    """Why an environment, policy or success function failed, and where."""

    env: str
    policy: str
    seed: int
    episode: Annotated[int | None, about("the one that failed, where that is known")]
    episodes_in_flight: list[int]


# --- Outputs ------------------------------------------------------------------------------------


class FailureOutput(msgspec.Struct):
    """What any command prints on standard output where it fails, with --json."""

    error: ErrorOutput


class RunOutput(SummaryOutput):
    """One object: the summary of the run."""

    path: Annotated[str, about("the run directory")]
    errors: list[ErrorCount]
    usage: RunUsage | None


ListOutput = extend(
    RunEntry,
    "ListOutput",
    "One object per line and run.",
    id=Annotated[str, about("the name that commands take: capitals@3")],
)


class ShowOutput(msgspec.Struct):
    """One object for a run; see also show-curve, show-items, show-slices."""

    kind: Annotated[str, about("run")]
    path: str
    started: str
    status: Annotated[str, about("running, complete, interrupted or failed")]
    reason: str | None
    finished: str | None
    config: dict[str, Any]
    versions: dict[str, Any]
    summary: SummaryOutput
    errors: list[ErrorCount]
    usage: RunUsage | None
    finish_reasons: Annotated[
        dict[str, Any], about("how many items' last turns ended in which way")
    ]
    git: GitState | None
    command: Annotated[list[str] | None, about("without keys")]


class ShowCurveOutput(msgspec.Struct):
    """One object for a training run."""

    kind: Annotated[str, about("curve")]
    path: str
    training: TrainingOutput
    superseded: Annotated[int, about("results left out: superseded by a later attempt")]
    verdicts: Annotated[
        dict[str, Any], about("the newest verdict by label, with step and best eval so far")
    ]
    points: list[CurvePoint]


class NoteOutput(msgspec.Struct):
    """What a reviewer says of an answer."""

    label: Annotated[str, about("correct, incorrect, not_attempted, or another text")]
    remark: str
    time: str
    is_current: Annotated[bool, about("false where the item was answered anew since")]


ShowItemsOutput = extend(
    EvalResult,
    "ShowItemsOutput",
    "One object per line and item, with --failures, --passes or --sample.",
    reward=Annotated[float | None, about("null where it errored")],
    note=NoteOutput | None,
)


class ShowSlicesOutput(SummaryOutput):
    """One object per line and slice, with --by."""

    slice: Annotated[dict[str, Any], about("values by key")]


class CompareOutput(msgspec.Struct):
    """One object."""

    verdict: Annotated[
        str, about("b_better, a_better, inconclusive; b_higher or a_higher of a metric")
    ]
    metric: str
    paired: Annotated[bool, about("whether samples were paired")]
    confidence: float
    a: SideOutput
    b: SideOutput
    overall: DifferenceOutput
    with_errors: DifferenceOutput | None
    minimum_detectable: Annotated[float | None, about("at 80% power")]
    by: list[str]
    slices: list[SliceDifferenceOutput]
    slices_with_errors: list[SliceDifferenceOutput]
    gained: list[FlipOutput]
    lost: list[FlipOutput]
    gained_total: int
    lost_total: int
    mismatches: Annotated[list[dict[str, Any]], about("what was allowed to differ")]
    notes: list[str]


class GateOutput(msgspec.Struct):
    """One object; the exit code is exit_code."""

    outcome: Annotated[str, about("pass, fail, inconclusive or errored")]
    exit_code: Annotated[int, about("0, 1, 3 or 4")]
    metric: str
    confidence: float
    run: SideOutput
    checks: list[GateCheckOutput]
    comparison: CompareOutput | None


PowerOutput = extend(Plan, "PowerOutput", "One object.", notes=list[str])


class AggregateOutput(msgspec.Struct):
    """One object; each statistic has its interval beside it."""

    metric: str
    n_runs: int
    n_tasks: int
    interquartile_mean: float
    interquartile_mean_ci_low: float | None
    interquartile_mean_ci_high: float | None
    mean: float
    median: float
    optimality_gap: float
    notes: list[str]


class CurveWatchOutput(CurvePoint, frozen=True):
    """One object per line and point; the last line is that of `curve watch-end`."""


class CurveWatchEndOutput(msgspec.Struct):
    """The last line of curve watch."""

    training: TrainingOutput


class CurveFlipsOutput(msgspec.Struct):
    """One object."""

    label: str
    first: Annotated[int, about("step")] = msgspec.field(name="from")
    last: Annotated[int, about("step")] = msgspec.field(name="to")
    compared: Annotated[int, about("samples")]
    difference: float | None
    ci_low: float | None
    ci_high: float | None
    gained: list[StepFlipOutput]
    lost: list[StepFlipOutput]


class CurvePlotOutput(msgspec.Struct):
    """One object."""

    path: str
    format: str
    runs: list[str]


class CurveStopOutput(msgspec.Struct):
    """One object."""

    path: str
    reason: str
    alive: bool


class AgentOutput(msgspec.Struct):
    """One object; see also agent-skipped and agent-error."""

    env: str
    policy: str
    episodes: int
    success_rate: float | None
    mean_return: float | None


class AgentSkippedOutput(msgspec.Struct):
    """What agent prints with --skip-missing where a package is missing."""

    skipped: Annotated[str, about("the reason")]


class AgentFailureOutput(msgspec.Struct):
    """What agent prints where an environment, policy or success function fails."""

    error: PlaceOutput


class ToolCallsOutput(msgspec.Struct):
    """One object."""

    run: Annotated[str, about("the run directory")]
    requests: int
    answered: int
    errored: int
    finish_reasons: dict[str, Any]
    schema_accuracy: dict[str, Any]
    problems: dict[str, Any]


class CheckJudgeOutput(msgspec.Struct):
    """One object."""

    kind: str
    notes: list[str]


class BackendOutput(msgspec.Struct):
    """What programs might be run in."""

    name: str
    problem: Annotated[str | None, about("why it cannot be used here")]


class ProbeOutput(msgspec.Struct):
    """What a sandbox must do or prevent."""

    name: str
    ok: bool
    detail: str


class CheckSandboxOutput(msgspec.Struct):
    """One object."""

    backends: list[BackendOutput]
    backend: Annotated[str | None, about("the one that was probed; null if there is none")]
    probes: list[ProbeOutput]


class CheckTemplateOutput(msgspec.Struct):
    """One object; exit code 1 where recommended is null."""

    tokenizer: str
    advice: str
    recommended: str | None


class CacheShowOutput(msgspec.Struct):
    """One object per line and file."""

    path: str
    entries: int
    bytes: int


class CacheClearOutput(msgspec.Struct):
    """One object."""

    path: str
    removed: Annotated[int, about("turns")]


class RepairOutput(msgspec.Struct):
    """One object."""

    path: str
    moved: Annotated[list[int], about("line numbers")]


class RmOutput(msgspec.Struct):
    """One object."""

    removed: list[str]
    left: Annotated[dict[str, Any], about("files not of a run, by path")]


class TasksOutput(msgspec.Struct):
    """One object per line and task."""

    name: Annotated[str, about("what `heldout run` takes")]
    refused: Annotated[str | None, about("why it cannot run here")]


class ImportOutput(RunOutput):
    """One object per line and log."""

    log: Annotated[str, about("the file")]
    is_new: Annotated[bool, about("false where it was imported before")]


class ExportOutput(msgspec.Struct):
    """One object."""

    path: str


OUTPUTS: dict[str, Any] = {
    "error": FailureOutput,
    "run": RunOutput,
    "tasks": TasksOutput,
    "import": ImportOutput,
    "export": ExportOutput,
    "rescore": RunOutput,
    "list": ListOutput,
    "show": ShowOutput,
    "show-curve": ShowCurveOutput,
    "show-items": ShowItemsOutput,
    "show-slices": ShowSlicesOutput,
    "sql": Annotated[dict[str, Any], about("One object per line and row: values by column.")],
    "compare": CompareOutput,
    "gate": GateOutput,
    "power": PowerOutput,
    "aggregate": AggregateOutput,
    "curve watch": CurveWatchOutput,
    "curve watch-end": CurveWatchEndOutput,
    "curve flips": CurveFlipsOutput,
    "curve plot": CurvePlotOutput,
    "curve stop": CurveStopOutput,
    "agent": AgentOutput,
    "agent-skipped": AgentSkippedOutput,
    "agent-error": AgentFailureOutput,
    "tool-calls": ToolCallsOutput,
    "check judge": CheckJudgeOutput,
    "check template": CheckTemplateOutput,
    "check sandbox": CheckSandboxOutput,
    "cache show": CacheShowOutput,
    "cache clear": CacheClearOutput,
    "repair": RepairOutput,
    "rm": RmOutput,
}
"""What `heldout schema NAME` describes."""


def build_schema(name: str) -> dict[str, Any]:
    """Build the JSON Schema of what a command prints, a key of OUTPUTS."""
    (schema,), parts = msgspec.json.schema_components(
        [OUTPUTS[name]], schema_hook=lambda _: {"type": "string"}, ref_template="#/$defs/{name}"
    )
    for part in parts.values():  # printed with their defaults, but for the outcomes of a point
        part["required"] = [key for key in part["properties"] if key != "outcomes"]
    root = parts.pop(schema["$ref"].rpartition("/")[2]) if "$ref" in schema else schema
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, **root, "title": name, **({"$defs": parts} if parts else {})}
