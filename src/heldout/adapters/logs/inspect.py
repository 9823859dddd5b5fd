"""Logs of Inspect, read without it: `.eval` (a zip of JSON, one entry per attempt) and `.json`.

An attempt that errored there is an error here, also where Inspect scored it. The reward is the
headline score; other scores are tracked, and one that has no number is left out of its metric, with
the reason in the result's metadata.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from heldout._finish_reasons import LENGTH, normalize_finish_reason
from heldout.adapters.inspect.published import describe_published
from heldout.adapters.inspect.values import split_values, to_number
from heldout.adapters.logs.archive import Archive, decode_json, read_bounded
from heldout.adapters.logs.inspect_messages import (
    LoggedMessage,
    to_message,
    to_plain_dict,
)
from heldout.adapters.logs.logged import Attempts, LoggedEval, commit_of, errored, utc
from heldout.adapters.logs.own_results import OwnResult
from heldout.errors import InvalidInput, ScoringFailed
from heldout.store.jsonl import decode
from heldout.types import (
    EvalResult,
    Metric,
    OtherUsage,
    Sample,
    Score,
    Stop,
    Timing,
    Trajectory,
    Usage,
)

LIMITS = (
    *("message_limit", "token_limit", "turn_limit", "time_limit", "working_limit", "cost_limit"),
)
MEANS = ("accuracy", "mean")
"""Metrics of Inspect that are means of a score's values."""
SAMPLING = ("temperature", "top_p", "max_tokens", "seed")
ATTACHMENT = "attachment://"
"""In place of a long text: the key of it in the sample's attachments."""
ENTRY = re.compile(r"samples/(.*)_epoch_(\d{1,9})\.json", re.DOTALL)
CHUNK = re.compile(r"samples/(.*)_epoch_(\d{1,9})/sample\.json", re.DOTALL)
_VERSION = 2


# --- The log ------------------------------------------------------------------------------------


class LoggedScore(msgspec.Struct):
    """What a scorer said."""

    value: Any = None
    answer: str | None = None
    explanation: str | None = None
    reason: str | None = None
    metadata: dict[str, Any] | None = None

    def find_reason(self) -> str | None:
        """Return why the score is abnormal, which older logs have in its metadata."""
        reason = self.reason or (self.metadata or {}).get("unscored_reason")
        return reason if isinstance(reason, str) else None

    def describe(self, value: Any) -> dict[str, Any]:
        """Return what goes with one of its values: the text of it, the answer, and why."""
        about = {
            "value": value if isinstance(value, str) else None,
            "extracted": self.answer,
            "explanation": self.explanation,
            "reason": self.find_reason(),
            "metadata": self.metadata or None,
        }
        return {key: part for key, part in about.items() if part is not None}


class LoggedError(msgspec.Struct):
    """An error."""

    message: str = ""


class LoggedLimit(msgspec.Struct):
    """The limit that ended an attempt."""

    type: str
    limit: float | None = None


class LoggedUsage(msgspec.Struct):
    """Tokens; what was read from a provider's cache is counted apart."""

    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_cache_write: int | None = None
    input_tokens_cache_read: int | None = None

    def to_usage(self) -> Usage:
        """Return the tokens, cached ones included."""
        cached = (self.input_tokens_cache_write or 0) + (self.input_tokens_cache_read or 0)
        return Usage(self.input_tokens + cached, self.output_tokens)


class LoggedChoice(msgspec.Struct):
    """One of the answers in a model output."""

    stop_reason: str | None = None


class LoggedOutput(msgspec.Struct):
    """The last model output."""

    choices: list[LoggedChoice] = []


class LoggedSample(msgspec.Struct):
    """One attempt. Its events, by far the most of it, are passed over."""

    id: int | str
    epoch: int = 1
    input: str | list[LoggedMessage] = ""
    target: str | list[str] = ""
    choices: list[str] | None = None
    messages: list[LoggedMessage] = []
    output: LoggedOutput = msgspec.field(default_factory=LoggedOutput)
    scores: dict[str, LoggedScore] | None = None
    score: LoggedScore | None = None
    """In place of `scores`, in the oldest logs."""
    metadata: dict[str, Any] = {}
    store: dict[str, Any] = {}
    model_usage: dict[str, LoggedUsage] = {}
    role_usage: dict[str, Any] = {}
    total_time: float | None = None
    turn_count: int | None = None
    invalidation: dict[str, Any] | None = None
    error: LoggedError | None = None
    limit: LoggedLimit | None = None
    attachments: dict[str, str] = {}


class LoggedDataset(msgspec.Struct):
    """The samples of a task."""

    samples: int | None = None
    sample_ids: list[int | str] | None = None


class LoggedScorer(msgspec.Struct):
    """A scorer of a task."""

    name: str
    options: Any = None


class LoggedRevision(msgspec.Struct):
    """The commit."""

    commit: str | None = None
    dirty: bool | None = None


class LoggedSpec(msgspec.Struct):
    """What was evaluated."""

    task: str
    model: str
    created: str | None = None
    task_version: Any = None
    task_registry_name: str | None = None
    task_args: dict[str, Any] = {}
    task_args_passed: dict[str, Any] = {}
    solver: Any = None
    sandbox: dict[str, Any] | None = None
    dataset: LoggedDataset = msgspec.field(default_factory=LoggedDataset)
    config: dict[str, Any] = {}
    model_generate_config: dict[str, Any] = {}
    model_roles: dict[str, Any] | None = None
    packages: dict[str, str] = {}
    revision: LoggedRevision | None = None
    scorers: list[LoggedScorer] | None = None


class LoggedHeadline(msgspec.Struct):
    """The score that Inspect reports first."""

    scorer: str | None = None
    score: str | None = None
    metric: str | None = None
    reducer: str | None = None


class LoggedMetric(msgspec.Struct):
    """One number over all samples."""

    value: Any = None
    group: str | None = None
    params: dict[str, Any] | None = None


class LoggedScoreSummary(msgspec.Struct):
    """The metrics of one score; of a score with several values, one of these has them."""

    name: str | None = None
    scorer: str | None = None
    reducer: str | None = None
    metrics: dict[str, LoggedMetric] = {}

    def list_names(self) -> tuple[str, ...]:
        """List the forms in which an attempt may have the score."""
        # Of a score with several values Inspect names the key alone.
        names = [self.name, f"{self.scorer}.{self.name}" if self.scorer else None, self.scorer]
        return (*dict.fromkeys(n.rpartition("/")[2] for n in names if n),)


class LoggedEarlyStopping(msgspec.Struct):
    """Which attempts were not made, as others had told enough."""

    manager: str = ""
    early_stops: list[Any] = []


class LoggedResults(msgspec.Struct):
    """Inspect's own report."""

    scores: list[LoggedScoreSummary] = []
    headline: LoggedHeadline | None = None
    early_stopping: LoggedEarlyStopping | None = None

    @property
    def first(self) -> LoggedScoreSummary:
        """The score that is the headline where none is named."""
        return next((score for score in self.scores if score.metrics), self.scores[0])


class LoggedHeader(msgspec.Struct):
    """Everything but the attempts."""

    eval: LoggedSpec
    version: int = _VERSION
    status: str = "started"
    plan: dict[str, Any] = {}
    results: LoggedResults | None = None
    stats: dict[str, Any] = {}
    error: LoggedError | None = None


class _JsonLog(LoggedHeader):
    """A whole log in one JSON text."""

    samples: list[msgspec.Raw] | None = None


class _JsonLogInMemory(LoggedHeader):
    """The same, where its numbers are not all JSON's."""

    samples: list[LoggedSample] | None = None


# --- Reading ------------------------------------------------------------------------------------


def read_inspect_log(path: Path, *, score: str | None = None) -> LoggedEval:
    """Open a log of Inspect.

    Args:
        path: The file, .eval or .json.
        score: The score that is the reward: NAME, or NAME.KEY of a score with several values.
            By default Inspect's headline, or else the first one.

    Raises:
        InvalidInput: It is not such a log, or has no such score.
    """
    if path.suffix == ".json":
        raw = read_bounded(path, hint="`inspect log convert --to eval` makes one that is streamed")
        log: _JsonLog | _JsonLogInMemory
        try:
            log = decode(raw, _JsonLog)
        except InvalidInput:
            log = decode_json(raw, _JsonLogInMemory, str(path))
        header: LoggedHeader = log
        repeated: list[str] = []

        def read_samples() -> Iterator[LoggedSample]:
            samples: Sequence[msgspec.Raw | LoggedSample] = log.samples or []
            for number, sample in enumerate(samples, start=1):
                if isinstance(sample, LoggedSample):
                    yield sample
                else:
                    yield decode_json(bytes(sample), LoggedSample, f"{path}, sample {number}")

    else:
        with Archive(path) as archive:
            header = _read_header(archive)
            entries = _find_entries(archive, header)
            repeated = [name for name in entries if name in archive.replaced]

        def read_samples() -> Iterator[LoggedSample]:
            with Archive(path) as archive:
                for name in entries:
                    where = f"{path}, entry {name!r}"
                    yield decode_json(archive.read(name), LoggedSample, where)

    return _describe(path, header, read_samples, score, repeated)


def _read_header(archive: Archive) -> LoggedHeader:
    # Of an eval that was killed, or is running, there is only what was known at its start.
    for name in ("header.json", "_journal/start.json"):
        if name in archive:
            return decode_json(archive.read(name), LoggedHeader, f"{archive.path}, entry {name!r}")
    raise InvalidInput(
        f"{archive.path} is a zip archive, but no log of Inspect: it has no header.json"
    )


def _find_entries(archive: Archive, header: LoggedHeader) -> list[str]:
    """List the entries of attempts, in dataset order."""
    ids = header.eval.dataset.sample_ids or []
    place = {str(id): position for position, id in enumerate(ids)}
    found: list[tuple[int, int, str]] = []
    for name in archive:
        if match := ENTRY.fullmatch(name):
            found.append((place.get(match[1], len(place)), int(match[2]), name))
        elif CHUNK.fullmatch(name):
            raise InvalidInput(
                f"{archive.path} has samples in chunks ({name!r}), which this heldout does not read"
            )
    return [name for _, _, name in sorted(found, key=lambda entry: entry[:2])]


def _describe(
    path: Path,
    header: LoggedHeader,
    read_samples: Callable[[], Iterator[LoggedSample]],
    score: str | None,
    repeated: list[str],
) -> LoggedEval:
    spec = header.eval
    if header.version > _VERSION:
        raise InvalidInput(
            f"{path} is a log of Inspect in version {header.version}; this heldout reads up to "
            f"version {_VERSION}"
        )
    epochs = spec.config.get("epochs")
    repeats = epochs if isinstance(epochs, int) and epochs > 0 else 1
    ids = spec.dataset.sample_ids
    count = len(ids) if ids is not None else spec.dataset.samples
    generate = {**spec.model_generate_config, **_dict(header.plan.get("config"))}
    sampling = {key: generate[key] for key in SAMPLING if generate.get(key) is not None}
    if generate.get("stop_seqs"):
        sampling["stop"] = generate["stop_seqs"]
    limits = {key: spec.config[key] for key in LIMITS if spec.config.get(key) is not None}
    settings: dict[str, Any] = {"packages": spec.packages}
    for key, values in (("sampling", sampling), ("limits", limits), ("task_args", spec.task_args)):
        if values:
            settings[key] = values
    conversion = _Conversion(header, _reward_names(header, score))
    return LoggedEval(
        "inspect",
        path,
        spec.task.rpartition("/")[2] or "inspect",
        lambda: conversion.convert_all(read_samples()),
        model=spec.model,
        reward=conversion.reward_names[0] if conversion.reward_names else None,
        repeats=repeats,
        asked=None if count is None else count * repeats,
        settings=settings,
        functions=_describe_functions(header, conversion.reward_names),
        versions=spec.packages,
        about={
            "eval": spec.task,
            "task_version": spec.task_version,
            "created": spec.created,
            "repeated_entries": repeated or None,
            "published": _describe_published(header, conversion.reward_names),
        },
        own_results=_find_own_results(header.results, conversion.reward_names),
        unfinished=_why_unfinished(header),
        started=utc(header.stats.get("started_at")) or utc(spec.created),
        finished=utc(header.stats.get("completed_at")),
        git=commit_of(spec.revision.commit, spec.revision.dirty) if spec.revision else None,
    )


def _why_unfinished(header: LoggedHeader) -> str | None:
    stopping = header.results.early_stopping if header.results else None
    if stopping is not None and stopping.early_stops:
        count = len(stopping.early_stops)
        return (
            f"Inspect stopped early ({stopping.manager!r:.100}): {count} "
            f"{'attempt was' if count == 1 else 'attempts were'} not made"
        )
    if header.status == "success":
        return None
    why = f": {header.error.message}" if header.error else ""
    return f"Inspect ended the eval with status {header.status!r}{why}"[:2000]


def _reward_names(header: LoggedHeader, score: str | None) -> tuple[str, ...]:
    """Name the score that is the reward, in the forms in which an attempt may have it."""
    if score is not None:
        return (score,)
    results, scorers = header.results, header.eval.scorers
    if results and results.headline:
        scored = LoggedScoreSummary(results.headline.score, results.headline.scorer)
    elif results and results.scores:
        scored = results.first
    else:
        scored = LoggedScoreSummary(scorers[0].name if scorers else None)
    return scored.list_names()


def _find_own_results(
    results: LoggedResults | None, reward_names: tuple[str, ...]
) -> tuple[OwnResult, ...]:
    """Find the headline, and the means of all scores, in Inspect's own results."""
    if results is None or not results.scores:
        return ()
    headline = results.headline or LoggedHeadline(
        metric=next(iter(results.first.metrics), None), reducer=results.first.reducer
    )
    found = []
    for scored in results.scores:
        names = scored.list_names()
        is_reward = not {*names[:2]}.isdisjoint(reward_names)
        for key, metric in scored.metrics.items():
            is_headline = is_reward and (key, scored.reducer) == (headline.metric, headline.reducer)
            is_mean = key in MEANS and metric.group is None and scored.reducer in (None, "mean")
            value = metric.value
            if not isinstance(value, int | float) or isinstance(value, bool):
                continue
            # Other metrics are numbers of their own; of the headline it is said that it is one.
            if not (is_headline or is_mean):
                continue
            unlike = None
            if metric.params:
                given = ", ".join(f"{name}={v}" for name, v in metric.params.items())[:200]
                unlike = f"the log's is {key}({given}), which cannot be applied to its values"
            elif key not in MEANS:
                unlike = f"the log's {key!r} is a number over all samples, which may be no mean"
            reduced = f" ({scored.reducer})" if scored.reducer else ""
            name = f"{names[0] if names else 'score'} {key}{reduced}"
            metrics = () if is_reward else names
            found.append(OwnResult(name, value, metrics, scored.reducer, unlike))
    return tuple(found)


def _describe_functions(header: LoggedHeader, names: tuple[str, ...]) -> dict[str, Any]:
    """Identify scorer and solvers by what the log says of them, which is not their code."""
    spec, functions = header.eval, {}
    if names:
        scorers = {s.name.rpartition("/")[2]: s.options for s in spec.scorers or []}
        options = next((scorers[n] for n in names if n in scorers), None)
        about = [spec.task, spec.task_version, options]
        functions["score_fn"] = {"name": f"inspect:{names[0]}", "source": _hash(about)}
    if steps := header.plan.get("steps"):
        solvers = [s.get("solver") for s in steps if isinstance(s, dict)]
        name = "+".join(str(solver).rpartition("/")[2] for solver in solvers)
        functions["prepare_messages"] = {"name": f"inspect:{name}", "source": _hash(steps)}
    return functions


def _describe_published(header: LoggedHeader, rewards: tuple[str, ...]) -> dict[str, Any] | None:
    """Return what names a published task here, too; None where the log is of another."""
    spec = header.eval
    if spec.solver is not None:  # another one than the task's
        return None
    roles = (spec.model_roles or {}).items()
    steps = [str(_dict(step).get("solver")) for step in header.plan.get("steps") or ()]
    return describe_published(
        spec.task_registry_name,
        packages=spec.packages,
        arguments=spec.task_args_passed,
        limits=spec.config,
        sandbox=(spec.sandbox or {}).get("type"),
        solvers=steps,
        scorers=[scorer.name for scorer in spec.scorers or ()],
        roles={role: str(_dict(model).get("model")) for role, model in roles},
        rewards=rewards,
    )


def _hash(value: Any) -> str:
    text = msgspec.json.encode(value, order="deterministic")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# --- Attempts -----------------------------------------------------------------------------------


class ExportedAttempt(msgspec.Struct, omit_defaults=True):
    """What `heldout export` puts into a sample's store, and Inspect has no field for."""

    input: dict[str, Any]
    ground_truth: Any = None
    metadata: dict[str, Any] = {}
    own_metadata: dict[str, Any] = {}
    stop: Stop = msgspec.field(default_factory=Stop)
    usage: Usage | None = None
    timing: Timing | None = None
    outcome: dict[str, Any] | None = None
    model_turns: tuple[int, ...] | None = None
    reads_metadata: bool = False
    error_stage: str | None = None
    other_usage: tuple[OtherUsage, ...] = ()


EXPORTED = "heldout"
"""The key of what `heldout export` adds to a sample's store, and to the metadata of scores."""


@dataclass(slots=True)
class _Conversion:
    """Converts the attempts of one log."""

    header: LoggedHeader
    reward_names: tuple[str, ...]
    places: dict[str, int] = field(default_factory=dict)

    def convert_all(self, samples: Iterator[LoggedSample]) -> Attempts:
        ids = self.header.eval.dataset.sample_ids or []
        self.places = {str(id): position for position, id in enumerate(ids)}
        for sample in samples:
            index = self.places.setdefault(str(sample.id), len(self.places))
            yield index, self.convert(sample)

    def convert(self, logged: LoggedSample) -> EvalResult:
        """Make the result of an attempt."""
        exported = self._find_exported(logged)
        if logged.attachments:
            _resolve_attachments(logged)
        result = EvalResult(
            str(logged.id),
            self._make_sample(logged, exported),
            self._make_trajectory(logged, exported),
            metadata={} if exported is None else exported.own_metadata,
            repeat=max(0, logged.epoch - 1),
            other_usage=self._find_other_usage(logged)
            if exported is None
            else exported.other_usage,
        )
        stage = "log" if exported is None else exported.error_stage or "log"
        if logged.error is not None:
            return errored(result, logged.error.message or "an error without a message", stage)
        if logged.invalidation is not None:
            reason = logged.invalidation.get("reason")
            return errored(result, f"invalidated in Inspect: {reason or 'no reason given'}", "log")
        try:
            score, left_out = self._make_score(logged)
        except (ScoringFailed, InvalidInput) as problem:
            return errored(result, f"score_fn: {problem}", "score_fn")
        about = {"unscored": left_out} if left_out else {}
        return replace(result, score=score, metadata={**result.metadata, **about})

    def _find_exported(self, logged: LoggedSample) -> ExportedAttempt | None:
        part = logged.store.get(EXPORTED)
        if part is None:
            return None
        try:
            return msgspec.convert(part, ExportedAttempt)
        except (msgspec.ValidationError, InvalidInput):  # another's use of the name
            return None

    def _make_sample(self, logged: LoggedSample, exported: ExportedAttempt | None) -> Sample:
        id = str(logged.id) or "-"
        if exported is not None:
            return Sample(id, exported.input, exported.ground_truth, exported.metadata)
        if isinstance(logged.input, str):
            input: dict[str, Any] = {"question": logged.input}
        else:
            input = {"messages": [to_plain_dict(message) for message in logged.input]}
        if logged.choices:
            input["choices"] = logged.choices
        return Sample(id, input, logged.target, logged.metadata)

    def _make_trajectory(
        self, logged: LoggedSample, exported: ExportedAttempt | None
    ) -> Trajectory:
        messages = tuple(map(to_message, logged.messages))
        if exported is not None:
            return Trajectory(
                messages,
                exported.stop,
                exported.usage,
                timing=exported.timing,
                outcome=exported.outcome,
                model_turns=exported.model_turns,
                reads_metadata=exported.reads_metadata,
            )
        reason = logged.output.choices[0].stop_reason if logged.output.choices else None
        if reason is not None:
            reason = None if reason == "unknown" else normalize_finish_reason(reason)
        stop = Stop(truncated=reason == LENGTH, finish_reason=reason)
        if logged.error is not None:
            stop = Stop("error", None, stop.truncated, reason)
        elif logged.limit is not None:
            stop = Stop("limit", logged.limit.type, stop.truncated, reason)
        turns = [i for i, m in enumerate(logged.messages) if m.role == "assistant"]
        made = [i for i in turns if logged.messages[i].source == "generate"]
        timing = None
        if logged.total_time is not None:
            timing = Timing(logged.total_time, logged.turn_count or len(made) or len(turns))
        return Trajectory(
            messages,
            stop,
            self._find_usage(logged),
            timing=timing,
            # Solvers add assistant's messages that no model wrote; the oldest logs do not say.
            model_turns=tuple(made) if made and made != turns else None,
            # Files and sandboxes are chosen by metadata: samples of one question may differ there.
            reads_metadata=True,
        )

    def _find_usage(self, logged: LoggedSample) -> Usage | None:
        spec = self.header.eval
        usage = logged.model_usage.get(spec.model)
        if usage is None or (logged.role_usage and self._role_models().get(spec.model)):
            return None  # not known: a role that the same model plays is counted with the policy
        return usage.to_usage()

    def _role_models(self) -> dict[str, str]:
        """Name the models of roles, with their role."""
        models = {}
        for role, configured in (self.header.eval.model_roles or {}).items():
            for model in configured if isinstance(configured, list) else [configured]:
                if isinstance(model, dict) and isinstance(model.get("model"), str):
                    models[model["model"]] = role
        return models

    def _find_other_usage(self, logged: LoggedSample) -> tuple[OtherUsage, ...]:
        roles, policy = self._role_models(), self.header.eval.model
        return OtherUsage.merge(
            OtherUsage("user" if roles.get(model) == "user" else "judge", model, usage.to_usage())
            for model, usage in logged.model_usage.items()
            if model != policy
        )

    # --- Scores ---

    def _make_score(self, logged: LoggedSample) -> tuple[Score, dict[str, str]]:
        """Make the score, and the reasons of scores that have no number."""
        scores = logged.scores
        if scores is None and logged.score is not None:
            scores = {(self.reward_names or ("score",))[0]: logged.score}
        if not scores:
            raise ScoringFailed("the log has no score of this attempt")
        metrics: dict[str, Metric] = {}
        left_out: dict[str, str] = {}
        is_exported = False
        for name, score in scores.items():
            if exported := _dict((score.metadata or {}).get(EXPORTED)):
                is_exported = True
                if exported.get("derived") is not True:
                    metrics[name] = _restore_metric(name, score, exported)
                continue
            no_answer = False
            for part, value in split_values(name, score.value):
                try:
                    number = to_number(value, score.find_reason())
                except ScoringFailed as problem:
                    left_out[part] = str(problem)
                    continue
                no_answer |= number.no_answer
                about = score.describe(value)
                metrics[part] = Metric(part, number.value, metadata=about, rate=number.is_rate)
            if not any(part in left_out for part, _ in split_values(name, score.value)):
                metrics[f"{name}.noanswer"] = Metric(f"{name}.noanswer", no_answer)
        for scorer in [] if is_exported else self.header.eval.scorers or []:
            if (name := scorer.name.rpartition("/")[2]) not in scores:
                left_out.setdefault(name, "the scorer gave no score")
        if not is_exported and not any(metric.weight for metric in metrics.values()):
            self._weigh_reward(metrics, left_out, scores)
        return Score(tuple(metrics.values())), left_out

    def _weigh_reward(
        self, metrics: dict[str, Metric], left_out: dict[str, str], scores: Mapping[str, Any]
    ) -> None:
        names = self.reward_names or tuple(scores)[:1]
        for name in names:
            if name in left_out:
                raise ScoringFailed(f"{name}: {left_out[name]}")
            if metric := metrics.get(name):
                metrics[name] = Metric(name, metric.value, 1.0, metric.metadata, metric.rate)
                return
        several = [name for name in metrics if name.startswith(tuple(f"{n}." for n in names))]
        if several:
            raise ScoringFailed(
                f"the score has several values; name the one that is the reward (--score): "
                f"{', '.join(several[:8])}"
            )
        raise ScoringFailed(
            f"the log has no score {names[0]!r} of this attempt; it has {', '.join(scores)}"
        )


def _restore_metric(name: str, score: LoggedScore, exported: Mapping[str, Any]) -> Metric:
    """Make the metric that `heldout export` has written as a score, whose value may be edited."""
    number = to_number(score.value, score.find_reason())
    weight, about = exported.get("weight", 0.0), _dict(exported.get("metadata"))
    return Metric(name, number.value, weight, about, exported.get("rate") is True)


def _resolve_attachments(logged: LoggedSample) -> None:
    """Put long texts back to where the log has only their keys."""
    texts = logged.attachments

    def resolve(value: Any) -> Any:
        if isinstance(value, str):
            if not value.startswith(ATTACHMENT):
                return value
            return texts.get(value[len(ATTACHMENT) :], value)
        if isinstance(value, list):
            return [resolve(part) for part in value]
        if isinstance(value, dict):
            return {key: resolve(part) for key, part in value.items()}
        return value

    try:
        if isinstance(logged.input, str):
            logged.input = resolve(logged.input)
        inputs = [] if isinstance(logged.input, str) else logged.input
        for message in (*inputs, *logged.messages):
            message.content = resolve(message.content)
            for call in message.tool_calls or []:
                call.arguments = resolve(call.arguments)
    except RecursionError:
        raise InvalidInput(f"sample {logged.id!r} is nested too deeply") from None
