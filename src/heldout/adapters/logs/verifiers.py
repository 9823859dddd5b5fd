"""Results that verifiers has saved, read without it.

Two formats: the classic `vf-eval --save-results` (up to 0.3: results.jsonl with metadata.json), a
line for each rollout; and traces.jsonl of v1, a line for each episode. Rollouts of one example are
repeats. A classic log does not tell a reward function that raised from one that returned 0.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from heldout._core.chat.messages import message_of
from heldout._finish_reasons import LENGTH
from heldout.adapters.logs.archive import JsonLines, decode_json, read_bounded
from heldout.adapters.logs.logged import Attempts, LoggedEval, commit_of, errored, utc
from heldout.adapters.logs.own_results import OwnResult
from heldout.adapters.verifiers.scores import FAILED_STAGES, REWARD, number_names
from heldout.errors import InvalidInput, ScoringFailed
from heldout.types import (
    MOST_TOKENS,
    EvalResult,
    Message,
    Metric,
    Sample,
    Score,
    Stop,
    Timing,
    Trajectory,
    Usage,
)

CLASSIC, METADATA = "results.jsonl", "metadata.json"
TRACES = "traces.jsonl"
LIMITS = {
    "max_turns_reached": "max_turns",
    "prompt_too_long": "context",
    "timeout_reached": "timeout",
    "agent_timeout": "timeout",
}
"""Stop conditions that are limits; so are those that begin with max_."""
DEFAULTS: dict[str, Any] = {
    "skills": [],
    "network_allow": ["*"],
    "network_block": [],
    "artifacts": [],
    "timeout": {},
    "resources": {},
}
"""Fields of every v1 task with values that say nothing of it."""


# --- What both formats share --------------------------------------------------------------------


def _make_score(reward: Any, metrics: Mapping[str, Any], weights: Mapping[str, Any]) -> Score:
    """Make the score; the reward is the package's own number, the rest is tracked."""
    known = [name for name, value in metrics.items() if name and value is not None]
    made = [Metric(REWARD, _finite(REWARD, reward), 1.0)]
    for name, free in zip(known, number_names(known), strict=True):
        about = {"weight": weights[name]} if name in weights else {}
        made.append(Metric(free, _finite(name, metrics[name]), metadata=about))
    return Score(tuple(made))


def _finite(name: str, value: Any) -> float:
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    raise ScoringFailed(f"its {name!r} is {value!r:.100}, which is no score")


def _make_stop(condition: Any, *, truncated: bool, finish: str | None, failed: bool) -> Stop:
    if failed:
        return Stop("error", None, truncated, finish)
    if isinstance(condition, str):
        limit = condition if condition.startswith("max_") else None
        limit = LIMITS.get(condition, limit)
        if limit is not None:
            return Stop("limit", limit, truncated, finish)
        return Stop("environment", None, truncated, finish)
    return Stop("no_reply", None, truncated, finish)


def _read_messages(value: Any, role: str, where: str) -> list[Message]:
    if value is None:
        return []
    if isinstance(value, str):
        return [Message(role, value)] if value else []  # type: ignore[arg-type]
    if not isinstance(value, list):
        raise InvalidInput(f"{where}: messages must be a list, got {type(value).__name__}")
    return [message_of(_with_calls(part), where) for part in value]


def _with_calls(message: Any) -> Any:
    """Decode tool calls that a log has as JSON texts."""
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list) or not any(isinstance(call, str) for call in calls):
        return message
    decoded = [
        decode_json(call.encode(), dict[str, Any], "a tool call") if isinstance(call, str) else call
        for call in calls
    ]
    return {**message, "tool_calls": decoded}


class _Repeats:
    """Numbers rollouts of one example, and tells examples of one name but other content apart."""

    def __init__(self) -> None:
        self._contents: dict[str, dict[bytes, str]] = {}
        self._made: Counter[str] = Counter()
        self._places: dict[str, int] = {}

    def number(self, name: str, content: Any) -> tuple[str, int, int]:
        """Return the sample's id, its place, and which attempt this is."""
        text = msgspec.json.encode(content, order="deterministic")
        digest = hashlib.blake2b(text, digest_size=16).digest()
        known = self._contents.setdefault(name, {})
        if digest not in known:
            known[digest] = f"{name}#{len(known) + 1}" if known else name
        id = known[digest]
        self._made[id] += 1
        return id, self._places.setdefault(id, len(self._places)), self._made[id] - 1


def _count_rollouts(lines: JsonLines) -> int:
    """Return the largest number of rollouts that an example has."""
    made = Counter(str(row.get("example_id")) for _, _, row in lines.read(dict[str, Any]))
    return max(made.values(), default=1)


# --- Classic ------------------------------------------------------------------------------------


def read_classic_results(path: Path, *, score: str | None = None) -> LoggedEval:
    """Open what `vf-eval --save-results` saved: results.jsonl, with metadata.json beside it.

    Args:
        path: The file results.jsonl.
        score: A metric to be the reward in place of the environment's own.

    Raises:
        InvalidInput: It is not such a file.
    """
    beside = path.with_name(METADATA)
    try:
        about = decode_json(read_bounded(beside), dict[str, Any], str(beside))
    except FileNotFoundError:
        about = {}
    lines = JsonLines(path)
    rollouts, examples = about.get("rollouts_per_example"), about.get("num_examples")
    if not isinstance(rollouts, int) or rollouts < 1:
        rollouts = _count_rollouts(lines)
    asked = None
    if isinstance(examples, int) and examples > 0:
        asked = examples * rollouts
    env = about.get("env_id")
    task = env if isinstance(env, str) and env else path.parent.name
    sampling = _known(about.get("sampling_args"))
    versions = about.get("version_info")
    versions = versions if isinstance(versions, dict) else {}

    def read_attempts() -> Attempts:
        repeats = _Repeats()
        for where, _, row in lines.read(dict[str, Any]):
            yield _convert_rollout(row, repeats, score, where)

    threshold = about.get("pass_threshold")
    settings: dict[str, Any] = {"env_args": about.get("env_args"), "sampling": sampling}
    if isinstance(threshold, int | float) and not isinstance(threshold, bool):
        settings["pass_threshold"] = threshold
    reward = score or REWARD
    return LoggedEval(
        "verifiers",
        path,
        task,
        read_attempts,
        model=about.get("model") if isinstance(about.get("model"), str) else None,
        reward=reward,
        repeats=rollouts,
        asked=asked,
        settings={key: value for key, value in settings.items() if value},
        own_results=_find_own_results(about, reward),
        unfinished=lines.cut,
        functions=_identify(f"verifiers:{task},{reward}", about.get("env_args"), about),
        versions={"verifiers": v} if isinstance(v := versions.get("vf_version"), str) else {},
        git=commit_of(versions.get("env_commit"), None),
        started=utc(about.get("date")),
    )


def _find_own_results(about: Mapping[str, Any], reward: str) -> tuple[OwnResult, ...]:
    """Find the means of metadata.json; that of the score which is the reward is the run's mean."""
    metrics = about.get("avg_metrics")
    means = {REWARD: about.get("avg_reward"), **(metrics if isinstance(metrics, dict) else {})}
    return tuple(
        OwnResult(f"avg_{name}", value, () if name == reward else (name,))
        for name, value in means.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        # Where another score is the reward, verifiers' own is none of the run's metrics.
        and (name != REWARD or reward == REWARD)
    )


def _known(values: Any) -> dict[str, Any]:
    values = values if isinstance(values, dict) else {}
    names = ("temperature", "top_p", "max_tokens", "seed", "stop")
    return {name: values[name] for name in names if values.get(name) is not None}


def _identify(name: str, arguments: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    """Identify the environment by its name and arguments, which is not its code."""
    versions = about.get("version_info")
    parts = versions if isinstance(versions, dict) else {}
    text = json.dumps([arguments, parts.get("env_version")], sort_keys=True, default=str)
    return {"score_fn": {"name": name, "source": hashlib.sha256(text.encode()).hexdigest()[:16]}}


def _convert_rollout(
    row: Mapping[str, Any], repeats: _Repeats, score: str | None, where: str
) -> tuple[int, EvalResult]:
    if "example_id" not in row and "reward" not in row:
        raise InvalidInput(f"{where}: not a rollout of verifiers: it has no example_id")
    input = {
        key: row[key] for key in ("prompt", "answer", "info") if row.get(key) not in (None, "")
    }
    id, place, attempt = repeats.number(str(row.get("example_id")), input)
    sample = Sample(id, input, row.get("answer"), {"example_id": row.get("example_id")})
    prompt = _read_messages(row.get("prompt"), "user", where)
    completion = _read_messages(row.get("completion"), "assistant", where)
    turns = [i for i, m in enumerate(completion, start=len(prompt)) if m.role == "assistant"]
    error = row.get("error")
    truncated = row.get("is_truncated") is True
    trajectory = Trajectory(
        (*prompt, *completion),
        _make_stop(
            row.get("stop_condition"),
            truncated=truncated,
            finish=LENGTH if truncated else None,
            failed=bool(error),
        ),
        _classic_usage(row.get("token_usage")),
        timing=_classic_timing(row.get("timing"), len(turns)),
        model_turns=tuple(turns) if any(m.role == "assistant" for m in prompt) else None,
    )
    result = EvalResult(id, sample, trajectory, repeat=attempt)
    if error:
        return place, errored(result, f"log: {_describe_error(error)}", "log")
    if row.get("is_completed") is False:
        return place, errored(result, "log: the rollout did not complete", "log")
    metrics = row.get("metrics")
    metrics = dict(metrics) if isinstance(metrics, dict) else {}
    reward = row.get(REWARD)
    if score not in (None, REWARD):
        reward = metrics.pop(score, None)
    try:
        return place, EvalResult(
            id, sample, trajectory, _make_score(reward, metrics, {}), repeat=attempt
        )
    except (ScoringFailed, InvalidInput) as problem:
        return place, errored(result, f"score_fn: {problem}", "score_fn")


def _describe_error(error: Any) -> str:
    if isinstance(error, dict):
        for key in ("error_chain_repr", "message", "error", "type"):
            if isinstance(error.get(key), str) and error[key]:
                return str(error[key])
    return str(error)


def _classic_usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    counts = [usage.get("input_tokens"), usage.get("output_tokens")]
    known = [int(n) for n in counts if isinstance(n, int | float) and 0 <= n <= MOST_TOKENS]
    return Usage(*known) if len(known) == len(counts) else None


def _classic_timing(timing: Any, turns: int) -> Timing | None:
    if not isinstance(timing, dict):
        return None
    seconds = timing.get("total")
    if seconds is None and isinstance(timing.get("total_ms"), int | float):
        seconds = timing["total_ms"] / 1000
    if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        return None
    return Timing(float(seconds), turns)


# --- v1 -----------------------------------------------------------------------------------------


class LoggedReward(msgspec.Struct):
    """A reward of a trace."""

    score: float
    weight: float = 1.0


class LoggedFailure(msgspec.Struct):
    """An error of a trace."""

    type: str = ""
    message: str = ""


class LoggedNode(msgspec.Struct):
    """A message in the graph."""

    message: dict[str, Any]
    parent: int | None = None
    sampled: bool = False


class LoggedModelCall(msgspec.Struct):
    """A model call."""

    model: str | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    error: LoggedFailure | None = None


class LoggedTask(msgspec.Struct):
    """The task of a trace."""

    data: dict[str, Any]
    type: str = ""
    key: str | None = None


class LoggedAgent(msgspec.Struct):
    """Who solved it."""

    config: dict[str, Any] = {}
    trainable: bool = True


class LoggedTrace(msgspec.Struct):
    """One agent's rollout."""

    task: LoggedTask
    agent: LoggedAgent = msgspec.field(default_factory=LoggedAgent)
    verifiers: dict[str, Any] = {}
    nodes: list[LoggedNode] = []
    calls: list[LoggedModelCall] = []
    rewards: dict[str, LoggedReward | None] = {}
    metrics: dict[str, Any] = {}
    ok: bool = False
    stop_condition: str | None = None
    errors: list[LoggedFailure] = []
    timing: dict[str, Any] = {}


class LoggedEpisode(msgspec.Struct):
    """One rollout of an environment."""

    task: LoggedTask
    env: dict[str, Any] = {}
    ok: bool = False
    errors: list[LoggedFailure] = []
    traces: list[LoggedTrace] = []


def read_traces(path: Path, *, score: str | None = None) -> LoggedEval:
    """Open the traces that an eval of verifiers v1 has saved.

    Args:
        path: The file traces.jsonl.
        score: A reward or metric to be the reward in place of the weighted sum.

    Raises:
        InvalidInput: It is not such a file, or an episode has several policies.
    """
    lines = JsonLines(path)
    first: LoggedEpisode | None = None
    made: Counter[str] = Counter()
    for where, _, episode in lines.read(LoggedEpisode):
        made[_task_name(episode.task)] += 1
        first = first or episode
        _find_trace(episode, where)
    if first is None:
        raise lines.refuse_empty()
    config = _read_resolved(path.parent)
    trace = first.traces[0] if first.traces else None
    rollouts = config.get("num_rollouts")
    if not isinstance(rollouts, int) or rollouts < max(made.values()):
        rollouts = max(made.values())
    env = first.env.get("name") or first.env.get("id")
    task = str(env) if env else path.parent.name
    model = config.get("model")
    if not isinstance(model, str):
        called = [call.model for call in trace.calls if call.model] if trace else []
        model = called[0] if called else None
    version = trace.verifiers.get("version") if trace else None
    settings = {"sampling": _known(config.get("sampling"))}
    reward = score or REWARD

    def read_attempts() -> Attempts:
        repeats = _Repeats()
        for where, _, episode in lines.read(LoggedEpisode):
            yield _convert_episode(episode, repeats, score, where)

    short = sum(rollouts - n for n in made.values())
    return LoggedEval(
        "verifiers",
        path,
        task,
        read_attempts,
        model=model,
        reward=reward,
        repeats=rollouts,
        asked=len(made) * rollouts if short else None,
        settings={key: value for key, value in settings.items() if value},
        unfinished=lines.cut,
        functions=_identify(f"verifiers:{task},{reward}", config.get("env"), {}),
        versions={"verifiers": version} if isinstance(version, str) else {},
        started=utc(trace.timing.get("start")) if trace else None,
    )


def _read_resolved(directory: Path) -> dict[str, Any]:
    """Read the config that the runner saved beside its traces; {} where there is none."""
    path = directory / "configs" / "resolved" / "eval.json"
    try:
        return decode_json(read_bounded(path, 2**24), dict[str, Any], str(path))
    except FileNotFoundError:
        return {}


def _task_data(task: LoggedTask) -> dict[str, Any]:
    """Return what a task asks: without its number, and fields that say nothing."""
    data = {key: value for key, value in task.data.items() if key != "idx"}
    for name, default in DEFAULTS.items():
        if data.get(name) == default:
            del data[name]
    data.pop("artifact_max_bytes", None)
    return data


def _task_name(task: LoggedTask) -> str:
    name = task.data.get("id") or task.data.get("name")
    if name:
        return str(name)
    content = json.dumps(_task_data(task), sort_keys=True).encode()
    return f"task-{hashlib.sha256(content).hexdigest()[:12]}"


def _find_trace(episode: LoggedEpisode, where: str) -> LoggedTrace | None:
    """Find the policy's trace; None where the episode failed before there was one."""
    policies = [trace for trace in episode.traces if trace.agent.trainable]
    if len(policies) > 1:
        raise InvalidInput(
            f"{where}: an episode of {len(policies)} trainable agents, which is no trajectory of "
            "one policy; heldout does not import it"
        )
    return policies[0] if policies else None


def _convert_episode(
    episode: LoggedEpisode, repeats: _Repeats, score: str | None, where: str
) -> tuple[int, EvalResult]:
    data = _task_data(episode.task)
    id, place, attempt = repeats.number(_task_name(episode.task), data)
    sample = Sample(id, data, data.get("answer"), {"idx": episode.task.data.get("idx")})
    trace = _find_trace(episode, where)
    if trace is None:
        result = EvalResult(id, sample, Trajectory((), Stop("error")), repeat=attempt)
        return place, errored(result, f"log: {_failure(episode.errors, 'no trace')}", "log")
    answered = [call for call in trace.calls if call.error is None]
    # A harness may swallow the errors of its model calls: then verifiers scores a silent model.
    refused = [call.error for call in trace.calls if call.error is not None and not answered]
    failed = not (trace.ok and episode.ok and not refused) or trace.stop_condition in FAILED_STAGES
    path = _last_branch(trace.nodes, where)
    messages = tuple(message_of(trace.nodes[i].message, where) for i in path)
    sampled = tuple(i for i, node in enumerate(path) if trace.nodes[node].sampled)
    assistants = tuple(i for i, m in enumerate(messages) if m.role == "assistant")
    finish = answered[-1].finish_reason if answered else None
    truncated = finish == LENGTH
    stop = _make_stop(trace.stop_condition, truncated=truncated, finish=finish, failed=failed)
    trajectory = Trajectory(
        messages,
        stop,
        _sum_usage(trace.calls),
        timing=_trace_timing(trace),
        model_turns=None if sampled == assistants else sampled,
    )
    result = EvalResult(id, sample, trajectory, repeat=attempt)
    if failed:
        why = f"it ended by {trace.stop_condition}"
        return place, errored(
            result, f"log: {_failure([*refused, *episode.errors, *trace.errors], why)}", "log"
        )
    try:
        return place, EvalResult(id, sample, trajectory, _trace_score(trace, score), repeat=attempt)
    except (ScoringFailed, InvalidInput) as problem:
        return place, errored(result, f"score_fn: {problem}", "score_fn")


def _failure(errors: Sequence[LoggedFailure], otherwise: str) -> str:
    return f"{errors[-1].type}: {errors[-1].message}" if errors else otherwise


def _last_branch(nodes: Sequence[LoggedNode], where: str) -> list[int]:
    """Return the nodes of the final conversation, from its root."""
    parents = {node.parent for node in nodes}
    leaves = [i for i in range(len(nodes)) if i not in parents]
    path: list[int] = []
    node: int | None = leaves[-1] if leaves else None
    while node is not None:
        if not 0 <= node < len(nodes) or len(path) > len(nodes):
            raise InvalidInput(f"{where}: its messages refer to messages that are not there")
        path.append(node)
        node = nodes[node].parent
    return path[::-1]


def _sum_usage(calls: Sequence[LoggedModelCall]) -> Usage | None:
    total: Usage | None = None
    for call in calls:
        if call.usage is None:
            continue
        names = ("prompt_tokens", "cached_input_tokens", "completion_tokens")
        counts = [call.usage.get(name) or 0 for name in names]
        if not all(isinstance(n, int) and n >= 0 for n in counts):
            return None
        usage = Usage(counts[0] + counts[1], counts[2])
        total = usage if total is None else total + usage
    return total


def _trace_timing(trace: LoggedTrace) -> Timing | None:
    start, ends = trace.timing.get("start"), []
    for stage in ("agent", "finalize", "scoring"):
        span = trace.timing.get(stage)
        if isinstance(span, dict) and isinstance(span.get("end"), int | float):
            ends.append(span["end"])
    if not isinstance(start, int | float) or not ends or max(ends) <= start:
        return None
    return Timing(float(max(ends) - start), len(trace.calls))


def _trace_score(trace: LoggedTrace, score: str | None) -> Score:
    """Make the score as verifiers adds it up; a reward without a value is an error, not 0."""
    missing = [name for name, reward in trace.rewards.items() if reward is None]
    if missing:
        raise ScoringFailed(f"no value was recorded for {', '.join(missing)}")
    if not trace.rewards:
        raise ScoringFailed("no reward was recorded")
    if trace.metrics.get("mask_sample"):
        raise ScoringFailed("the environment says that this rollout does not count (mask_sample)")
    rewards = {name: reward for name, reward in trace.rewards.items() if reward is not None}
    metrics: dict[str, Any] = {name: reward.score for name, reward in rewards.items()}
    metrics |= {name: v for name, v in trace.metrics.items() if name not in metrics}
    total: Any = sum(reward.score * reward.weight for reward in rewards.values())
    if score not in (None, REWARD):
        total = metrics.pop(score, None)
    return _make_score(total, metrics, {name: r.weight for name, r in rewards.items()})
