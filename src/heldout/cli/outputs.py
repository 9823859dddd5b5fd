"""The JSON that commands print: a type for each; `heldout schema` derives schemas from them.

`print_json(value, NAME)` refuses to print what is not of its type, so the two cannot differ.
Documented fields are always there; commands may print others beside them, as a summary has its
metrics, and later versions may add some. What a value of the library has under the same name is
taken from its class (`fields_of`): type and description are written there, and only there.
"""

from __future__ import annotations

import inspect
import re
from types import GenericAlias
from typing import Annotated, Any, get_type_hints

import msgspec

from heldout.analysis import (
    Check,
    Comparison,
    EvalCheck,
    Finding,
    Gate,
    RankedRun,
    RunRanking,
    SampleAttempts,
    SamplePlan,
    Side,
)
from heldout.analysis.comparison import Change
from heldout.analysis.time_use import SlowAttempt, StageUse, TimeUse
from heldout.sandbox.probes import BackendStatus, SandboxProbe
from heldout.stats.differences import PairedDifference, SliceDifference
from heldout.store.control import RunControl
from heldout.store.error_counts import ErrorCount
from heldout.store.run_dir import GitState, RunUsage
from heldout.store.runs import RunEntry
from heldout.store.settled import Settled
from heldout.training.curve.points import CurvePoint
from heldout.types import EvalResult


def about(description: str) -> msgspec.Meta:
    """Return the description of a field."""
    return msgspec.Meta(description=description)


def define(name: str, doc: str, fields: dict[str, Any], /, **more: Any) -> type[msgspec.Struct]:
    """Return a type with these fields, all of them required."""
    named = [*(fields | more).items()]
    return msgspec.defstruct(name, named, namespace={"__doc__": doc}, module=__name__)


def list_of(kind: type) -> Any:
    """Return the type of a list of a defined type, which mypy takes for a variable."""
    return GenericAlias(list, (kind,))


def fields_of(base: type, *names: str) -> dict[str, Any]:
    """Return the types of a class's fields and properties, with what it says of each.

    Args:
        base: The class: its docstring describes fields under "Attributes:".
        names: Those to return; all fields if there are none.
    """
    types = get_type_hints(base, include_extras=True)
    said = _read_attributes(base)
    for name, value in inspect.getmembers(base, lambda value: isinstance(value, property)):
        if name in names:
            types[name] = get_type_hints(value.fget)["return"]
            said[name] = " ".join((value.__doc__ or "").split())
    return {
        name: Annotated[types[name], about(said[name])] if said.get(name) else types[name]
        for name in names or types
    }


def _read_attributes(base: type) -> dict[str, str]:
    """Read what the docstring of a class says of its fields."""
    _, _, section = (inspect.getdoc(base) or "").partition("\nAttributes:\n")
    section = re.split(r"^(?=\S)", section, maxsplit=1, flags=re.MULTILINE)[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


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


SideOutput = define(
    "SideOutput",
    "One of the runs of a comparison.",
    fields_of(
        Side,
        *("name", "path", "samples", "items", "errored", "left_out", "cached", "measured_nothing"),
    ),
    mean=Annotated[float | None, about("the mean reward, as heldout show prints it")],
    ci_low=float | None,
    ci_high=float | None,
    usage=RunUsage | None,
)


_DIFFERENCE = {
    **fields_of(PairedDifference, "mean_a", "mean_b", "difference", "stderr", "p_value"),
    "ci_low": float | None,
    "ci_high": float | None,
}
DifferenceOutput = define("DifferenceOutput", "B - A.", _DIFFERENCE)
SliceDifferenceOutput = define(
    "SliceDifferenceOutput",
    "B - A in a slice.",
    _DIFFERENCE | fields_of(SliceDifference, "adjusted_p_value"),
    slice=Annotated[dict[str, Any], about("values by key")],
    simultaneous_ci_low=float | None,
    simultaneous_ci_high=float | None,
)
FlipOutput = define(
    "FlipOutput",
    "A sample that passes in one run only; with question and answers where they are asked for.",
    fields_of(Change, "id", "a", "b"),
)


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


SampleAttemptsOutput = define(
    "SampleAttemptsOutput",
    "A sample that does not pass often enough.",
    fields_of(SampleAttempts, *("sample_id", "passed", "errored", "attempts")),
)

GateCheckOutput = define(
    "GateCheckOutput",
    "One check of a gate.",
    fields_of(
        Check,
        *("kind", "outcome", "slice", "estimate", "bound", "n", "errors_as"),
        *("needed", "needed_if_equal", "needed_is_least"),
    ),
    name=str,
    why=str,
    ci_low=float | None,
    ci_high=float | None,
    below=list_of(SampleAttemptsOutput),
)


class PlaceOutput(ErrorOutput):
    """Why an environment, policy or success function failed, and where."""

    env: str
    policy: str
    seed: int
    env_args: Annotated[dict[str, Any] | None, about("null where they could not be parsed")]
    success: Annotated[str | None, about("what --success says")]
    episodes: Annotated[int, about("how many were asked for")]
    num_envs: int
    max_steps: int | None
    vec_normalize: str | None
    device: str
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


class FailedEvalOutput(msgspec.Struct):
    """An eval that could not be run."""

    file: str
    kind: Annotated[str, about("the class of the error")]
    message: str


class RunSeveralOutput(msgspec.Struct):
    """One object, where several evals are run."""

    runs: Annotated[list[RunOutput], about("of each eval that ran, what is printed of one")]
    failures: list[FailedEvalOutput]


RunUntilOutput = define(
    "RunUntilOutput",
    "One object, of a run with --until: the summary of the items that it stopped at, and what was "
    "settled. The exit code says the same: 0 true, 1 false, 3 inconclusive.",
    {**get_type_hints(RunOutput, include_extras=True)},
    **{
        name: kind
        for name, kind in fields_of(Settled).items()
        if name not in ("decision", "sentence", "mean")
    },
    usage_ahead=Annotated[
        RunUsage | None, about("tokens and cost of what was run beyond the stop, not in usage")
    ],
)


class RacerOutput(msgspec.Struct):
    """A model of a race: those that are left come first."""

    model: str
    path: Annotated[str | None, about("its run directory")]
    mean: Annotated[float, about("over the items that it was judged on, errored ones as 0")]
    interval: Annotated[
        list[float] | None, about("of its mean, simultaneous for all models and looks")
    ]
    n_decided: Annotated[int, about("items that it was judged on")]
    beaten_by: Annotated[str | None, about("the model shown to be better; null where none was")]
    difference: Annotated[float | None, about("its mean less that of the model that beat it")]
    difference_interval: Annotated[list[float] | None, about("simultaneous for all pairs, looks")]


class RaceOutput(msgspec.Struct):
    """One object; the exit code is exit_code."""

    models: list[RacerOutput]
    level: Annotated[float, about("how often a best model is dropped, at most")]
    looks_used: int
    looks_planned: int
    n_asked: Annotated[int, about("items of the set, for one model")]
    n_spent: Annotated[int, about("items that were run, of all models")]
    scope: Annotated[str, about("what the intervals hold for, in a sentence")]
    exit_code: int


ListOutput = define(
    "ListOutput",
    "One object per line and run.",
    fields_of(RunEntry),
    id=Annotated[str, about("the name that commands take: capitals@3")],
    verdict=Annotated[str | None, about("on a curve, in short: of several evals the worst")],
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
    limits: Annotated[dict[str, int], about("how many items ended at which limit")]
    settled: Annotated[Settled | None, about("what a run with --until settled")]
    usage_ahead: Annotated[
        RunUsage | None, about("tokens and cost of what was run beyond its stop, not in usage")
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


ShowItemsOutput = define(
    "ShowItemsOutput",
    "One object per line and item, with --failures, --passes or --sample.",
    fields_of(EvalResult),
    reward=Annotated[float | None, about("null where it errored")],
    note=NoteOutput | None,
)


class ShowSlicesOutput(SummaryOutput):
    """One object per line and slice, with --by."""

    slice: Annotated[dict[str, Any], about("values by key")]


ShowTimeOutput = define(
    "ShowTimeOutput",
    "One object, with --time.",
    fields_of(TimeUse),
    stages=list_of(define("StageOutput", "What a stage took.", fields_of(StageUse))),
    slowest=list_of(define("SlowAttemptOutput", "A slow attempt.", fields_of(SlowAttempt))),
)
CompareOutput = define(
    "CompareOutput",
    "One object.",
    fields_of(
        Comparison,
        *("verdict", "metric", "lower_is_better", "paired", "confidence", "minimum_detectable"),
    ),
    a=SideOutput,
    b=SideOutput,
    overall=DifferenceOutput,
    with_errors=DifferenceOutput | None,
    by=list[str],
    slices=list_of(SliceDifferenceOutput),
    slices_with_errors=list_of(SliceDifferenceOutput),
    gained=list_of(FlipOutput),
    lost=list_of(FlipOutput),
    gained_total=int,
    lost_total=int,
    both_fail=Annotated[list[str], about("ids of samples that fail in both; as many as of lost")],
    both_fail_total=int,
    mismatches=Annotated[list[dict[str, Any]], about("what was allowed to differ")],
    notes=list[str],
)
RankedRunOutput = define(
    "RankedRunOutput",
    "One of several runs, the highest mean first.",
    {
        **fields_of(Side, "name", "path", "samples", "items", "errored", "left_out"),
        **fields_of(RankedRun, "mean", "highest", "lowest"),
    },
    ci_low=float | None,
    ci_high=float | None,
)


class WinnerOutput(msgspec.Struct):
    """The mean of the first run, corrected for having been picked."""

    name: str
    raw: Annotated[float, about("as measured, which is too high")]
    estimate: float
    ci_low: float | None
    ci_high: float | None


CompareRanksOutput = define(
    "CompareRanksOutput",
    "One object, of three runs or more.",
    fields_of(RunRanking, "metric", "confidence", "samples", "errors_as"),
    runs=list_of(RankedRunOutput),
    best=Annotated[list[str], about("runs that may be the best")],
    winner=WinnerOutput,
    mismatches=Annotated[list[dict[str, Any]], about("what was allowed to differ")],
)
GateOutput = define(
    "GateOutput",
    "One object; the exit code is exit_code.",
    fields_of(Gate, "outcome", "exit_code", "metric", "confidence", "settled"),
    scope=Annotated[str | None, about("with a baseline: that the level is that of one comparison")],
    run=SideOutput,
    checks=list_of(GateCheckOutput),
    comparison=CompareOutput | None,
)
PowerOutput = define("PowerOutput", "One object.", fields_of(SamplePlan), notes=list[str])


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


class CurveFollowOutput(CurvePoint, frozen=True):
    """One object per line and point."""


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
    both_fail: Annotated[list[str], about("ids of samples that fail at both steps")]


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


class CheckSandboxOutput(msgspec.Struct):
    """One object."""

    backends: list[BackendStatus]
    backend: Annotated[str | None, about("the one that was probed; null if there is none")]
    probes: list[SandboxProbe]


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
    downloads: Annotated[list[str], about("where data come from that are not here, if known")]


class ImportOutput(RunOutput):
    """One object per line and log."""

    log: Annotated[str, about("the file")]
    is_new: Annotated[bool, about("false where it was imported before")]
    own_results: Annotated[
        dict[str, Any] | None,
        about("numbers of the log's own: how many were compared, and which differ here and why"),
    ]


class ExportOutput(msgspec.Struct):
    """One object."""

    path: str


CheckEvalOutput = define(
    "CheckEvalOutput",
    "One object; the exit code is 1 if a reference does not pass.",
    fields_of(EvalCheck),
    findings=list_of(define("FindingOutput", "What is wrong with a sample.", fields_of(Finding))),
)
CtlOutput = define(
    "CtlOutput",
    "One object.",
    fields_of(RunControl, "paused", "max_concurrent", "retries"),
    path=Annotated[str, about("the run directory")],
)
UNDECIDED = ("error", "agent-error", "sql")
"""Outputs without a decision: why there is none, and rows of columns that a query names."""
_PRINTED: dict[str, Any] = {
    "error": FailureOutput,
    "ctl": CtlOutput,
    "run": RunOutput,
    "run-several": RunSeveralOutput,
    "run-until": RunUntilOutput,
    "race": RaceOutput,
    "tasks": TasksOutput,
    "import": ImportOutput,
    "export": ExportOutput,
    "rescore": RunOutput,
    "list": ListOutput,
    "show": ShowOutput,
    "show-curve": ShowCurveOutput,
    "show-items": ShowItemsOutput,
    "show-slices": ShowSlicesOutput,
    "show-time": ShowTimeOutput,
    "sql": Annotated[dict[str, Any], about("One object per line and row: values by column.")],
    "compare": CompareOutput,
    "compare-ranks": CompareRanksOutput,
    "gate": GateOutput,
    "power": PowerOutput,
    "aggregate": AggregateOutput,
    "curve watch": CurveWatchOutput,
    "curve watch-end": CurveWatchEndOutput,
    "curve follow": CurveFollowOutput,
    "curve flips": CurveFlipsOutput,
    "curve plot": CurvePlotOutput,
    "curve stop": CurveStopOutput,
    "agent": AgentOutput,
    "agent-skipped": AgentSkippedOutput,
    "agent-error": AgentFailureOutput,
    "tool-calls": ToolCallsOutput,
    "check eval": CheckEvalOutput,
    "check judge": CheckJudgeOutput,
    "check template": CheckTemplateOutput,
    "check sandbox": CheckSandboxOutput,
    "cache show": CacheShowOutput,
    "cache clear": CacheClearOutput,
    "repair": RepairOutput,
    "rm": RmOutput,
}


def _add_decision(output: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return a type with `decision` and `sentence` beside its own fields."""
    return msgspec.defstruct(
        output.__name__,
        [
            ("decision", Annotated[str, about("what a program acts on, in a word")]),
            ("sentence", Annotated[str, about("the decision in a sentence, for people")]),
        ],
        bases=(output,),
        namespace={"__doc__": output.__doc__},
        module=__name__,
        kw_only=True,
        frozen=output.__struct_config__.frozen,
    )


OUTPUTS: dict[str, Any] = {
    name: output if name in UNDECIDED else _add_decision(output)
    for name, output in _PRINTED.items()
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
