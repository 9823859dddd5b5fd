"""A run as a log that Inspect reads: `inspect view`, `inspect_ai.log.read_eval_log`.

What Inspect has no field for (the sample as it is, why a trajectory ended, weights of metrics) goes
into a sample's store and a score's metadata under the key `heldout`, so that importing the log
gives the run back. Samples are written one by one. The tokens of a trajectory are left out.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from heldout._core.chat.questions import question_of
from heldout._core.version import __version__
from heldout.adapters.inspect.values import to_number
from heldout.adapters.logs.inspect import EXPORTED, ExportedAttempt
from heldout.adapters.logs.inspect_messages import to_logged
from heldout.errors import InvalidInput, ScoringFailed
from heldout.store.jsonl import encode, storage_error, temporary_name
from heldout.store.report import EvalReport
from heldout.types import EvalResult, Message, Metric, Usage

STATUS = {"complete": "success", "failed": "error", "interrupted": "cancelled"}
LIMITS = {"max_turns": "turn", "token_budget": "token", "timeout": "time", "context": "context"}
_INSPECT_LIMITS = {
    *("context", "time", "working", "message", "token", "turn", "cost", "operator", "custom"),
}
STOP_REASONS = {"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls"}
REWARD = "reward"


def export_inspect(report: EvalReport | str | Path, path: str | Path) -> None:
    """Write a run as a log of Inspect.

    Args:
        report: The run, or where it is.
        path: The file to make, which ends in .eval.

    Raises:
        InvalidInput: The file exists, has another ending, or the run has no results.
        RunDirectoryError: There is no such run, or the file cannot be written.
    """
    target = Path(path)
    if target.suffix != ".eval":
        raise InvalidInput(f"{target}: a log of Inspect ends in .eval")
    if target.exists():
        raise InvalidInput(f"{target} exists already; name another file, or remove it")
    if not isinstance(report, EvalReport):
        report = EvalReport.load(report)
    if report.config.get("kind") == "episodes":
        raise InvalidInput("episodes of an environment keep no conversation to export")
    temporary = temporary_name(target)
    try:
        with temporary.open("xb") as file:
            _Export(report).write(file)
        temporary.replace(target)
    except OSError as problem:
        raise storage_error(target, problem) from problem
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


class _Export:
    """Writes one run."""

    def __init__(self, report: EvalReport) -> None:
        self.report = report
        endpoint = _dict(report.config.get("endpoint"))
        kind, model = endpoint.get("kind"), endpoint.get("model")
        # Inspect names models PROVIDER/MODEL, and one that there is none of as here.
        self.model = f"{kind}/{model}" if kind and model else str(model or "none/none")
        self.id = (report.info.id if report.info else None) or "heldout"
        self.ids: dict[str, None] = {}
        self.metrics: dict[str, Metric] = {}
        self.errors = self.written = 0

    def write(self, file: IO[bytes]) -> None:
        compression = zipfile.ZIP_DEFLATED
        with (
            zipfile.ZipFile(file, "w", compression, compresslevel=6) as archive,
            tempfile.TemporaryFile() as summaries,
        ):
            for result in self.report.results:
                sample = self.describe(result)
                content = encode(sample, "sample", result.sample_id)
                name = f"samples/{result.sample_id}_epoch_{result.repeat + 1}.json"
                archive.writestr(_entry(name), content, compression)
                summaries.write(b",\n" if self.written else b"[")
                summaries.write(encode(_summarize(sample), "sample", result.sample_id))
                self.written += 1
            if not self.written:
                raise InvalidInput("the run has no results to export")
            summaries.write(b"]")
            summaries.seek(0)
            with archive.open(_entry("summaries.json"), "w") as entry:
                while block := summaries.read(2**20):
                    entry.write(block)
            header = encode(self.describe_run(), "run", self.id)
            archive.writestr(_entry("header.json"), header, compression)

    # --- Attempts ---

    def describe(self, result: EvalResult) -> dict[str, Any]:
        """Return an attempt as a sample of a log."""
        self.ids[result.sample_id] = None
        self.errors += not result.ok
        trajectory = result.trajectory
        turns = trajectory.model_turns
        messages = []
        for position, message in enumerate(trajectory.messages):
            generated = message.role == "assistant" if turns is None else position in turns
            logged = to_logged(message, generated=generated, model=self.model)
            messages.append({"id": f"{self.id}-{self.written}-{position}", **logged})
        usage = _usage(trajectory.usage)
        sample: dict[str, Any] = {
            "id": result.sample_id,
            "epoch": result.repeat + 1,
            "input": self._make_input(result),
            "target": _make_target(result.sample.ground_truth),
            "messages": messages,
            "output": self._make_output(result, messages, usage),
            "scores": self._make_scores(result) if result.ok else {},
            "metadata": result.metadata,
            "store": {EXPORTED: _keep(result)},
            "events": [],
            "model_usage": {self.model: usage} if usage else {},
            "uuid": f"{self.id}-{self.written}",
            "attachments": {},
        }
        if trajectory.timing is not None:
            sample["total_time"] = trajectory.timing.seconds
        if not result.ok:
            sample["error"] = {"message": result.error, "traceback": "", "traceback_ansi": ""}
        if trajectory.stop.ended_by == "limit":
            sample["limit"] = self._make_limit(trajectory.stop.limit)
        return sample

    def _make_input(self, result: EvalResult) -> str | list[dict[str, Any]]:
        try:
            opening = question_of(result.sample).messages
        except InvalidInput:
            opening = [*result.trajectory.opening]
        match opening:
            case [Message("user", str(text), tool_calls=())]:
                return text
            case []:
                return encode(result.sample.input, "sample", result.sample_id).decode()
        return [to_logged(message, generated=False, model=self.model) for message in opening]

    def _make_output(
        self, result: EvalResult, messages: list[dict[str, Any]], usage: dict[str, int] | None
    ) -> dict[str, Any]:
        turns = result.trajectory.model_turns
        if turns is None:
            turns = tuple(i for i, m in enumerate(messages) if m["role"] == "assistant")
        output: dict[str, Any] = {"model": self.model, "choices": []}
        if turns:
            reason = result.trajectory.stop.finish_reason
            stop = STOP_REASONS.get(reason or "", "unknown")
            output["choices"] = [{"message": messages[turns[-1]], "stop_reason": stop}]
            output["completion"] = result.trajectory.messages[turns[-1]].text
        if usage:
            output["usage"] = usage
        return output

    def _make_limit(self, name: str | None) -> dict[str, Any]:
        known = name if name in _INSPECT_LIMITS else LIMITS.get(name or "", "custom")
        limits = self.report.config.get("limits")
        limits = limits if isinstance(limits, Mapping) else {}
        value = self.report.config.get(name or "", limits.get(f"{name}_limit"))
        number = float(value) if isinstance(value, int | float) else 0.0
        return {"type": known, "limit": number, "reason": name}

    def _make_scores(self, result: EvalResult) -> dict[str, Any]:
        scores: dict[str, Any] = {}
        weighted = [metric for metric in result.score.metrics if metric.weight]
        if len(weighted) != 1 and REWARD not in [m.name for m in result.score.metrics]:
            about = {EXPORTED: {"derived": True}}
            scores[REWARD] = {"value": result.score.reward, "metadata": about}
        for metric in (*weighted, *(m for m in result.score.metrics if not m.weight)):
            self.metrics.setdefault(metric.name, metric)
            scores[metric.name] = _make_score(metric)
        return scores

    # --- The run ---

    def describe_run(self) -> dict[str, Any]:
        """Return the header of the log."""
        report, info = self.report, self.report.info
        config, summary = report.config, report.summary
        name = str(config.get("experiment_name") or "heldout").partition("/")[0]
        started = info.started if info else "1970-01-01T00:00:00Z"
        sampling = config.get("sampling")
        known = {key: value for key, value in _dict(sampling).items() if key in _SAMPLING}
        scores = [*self._summarize_scores()]
        status = STATUS.get(report.status, "started")
        settled = {} if report.settled is None else {"until": msgspec.to_builtins(report.settled)}
        header: dict[str, Any] = {
            "version": 2,
            "status": status,
            "eval": {
                "eval_id": self.id,
                "run_id": self.id,
                "task_id": self.id,
                "created": started,
                "task": name,
                "dataset": {
                    "name": name,
                    "samples": len(self.ids),
                    "sample_ids": [*self.ids],
                    "shuffled": False,
                },
                "model": self.model,
                "model_generate_config": known,
                "config": {"epochs": report.repeats},
                "packages": {"heldout": __version__},
                "scorers": [{"name": score["name"], "options": {}} for score in scores],
                "metadata": {
                    EXPORTED: {"run": config.get("experiment_name"), "id": self.id} | settled
                },
            },
            "plan": {"name": "plan", "steps": [], "config": known},
            "results": {
                "total_samples": summary.get("n_asked") or self.written,
                "completed_samples": self.written - self.errors,
                "scores": scores,
            },
            "stats": {
                "started_at": started,
                "completed_at": (info.finished if info else None) or "",
                "model_usage": {},
            },
        }
        if scores:
            first = scores[0]["name"]
            header["results"]["headline"] = {"scorer": first, "score": first, "metric": "mean"}
        if status == "error":
            why = (info.reason if info else None) or "the run failed"
            header["error"] = {"message": why, "traceback": "", "traceback_ansi": ""}
        return header

    def _summarize_scores(self) -> Iterator[dict[str, Any]]:
        summary = self.report.summary
        weighted = [name for name, metric in self.metrics.items() if metric.weight]
        if len(weighted) != 1 and self.metrics and REWARD not in self.metrics:
            yield _score_summary(REWARD, summary.get("mean_scored"))
        for name in (*weighted, *(name for name in self.metrics if name not in weighted)):
            yield _score_summary(name, summary.get(f"metric_{name}"))


_SAMPLING = ("temperature", "top_p", "max_tokens", "seed")


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _entry(name: str) -> zipfile.ZipInfo:
    """Make an entry without a time, so that one run gives one file."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"an entry of an archive cannot be named {name!r}") from None
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    return entry


def _keep(result: EvalResult) -> Any:
    """Return what Inspect has no field for."""
    sample, trajectory = result.sample, result.trajectory
    own = {k: v for k, v in result.metadata.items() if k not in sample.metadata}
    return ExportedAttempt(
        sample.input,
        sample.ground_truth,
        sample.metadata,
        own,
        trajectory.stop,
        trajectory.usage,
        trajectory.timing,
        trajectory.outcome,
        trajectory.model_turns,
        trajectory.reads_metadata,
        result.error_stage,
        result.other_usage,
    )


def _make_target(truth: Any) -> str | list[str]:
    if truth is None:
        return ""
    if isinstance(truth, str):
        return truth
    if isinstance(truth, list) and all(isinstance(part, str) for part in truth):
        return truth
    return encode(truth, "target", "of a sample").decode()


def _make_score(metric: Metric) -> dict[str, Any]:
    about = metric.metadata
    value: Any = metric.value
    text = about.get("value")  # the letter of a score that was imported
    if isinstance(text, str):
        with suppress(ScoringFailed):
            reason = about.get("reason")
            value = text if to_number(text, reason).value == metric.value else value
    kept = {"weight": metric.weight, "rate": metric.rate, "metadata": about}
    score: dict[str, Any] = {"value": value, "metadata": {EXPORTED: kept}}
    for key, name in (("extracted", "answer"), ("explanation", "explanation")):
        if isinstance(about.get(key), str):
            score[name] = about[key]
    return score


def _score_summary(name: str, mean: Any) -> dict[str, Any]:
    metrics = {}
    if isinstance(mean, int | float):
        metrics = {"mean": {"name": "mean", "value": mean}}
    return {"name": name, "scorer": name, "metrics": metrics}


def _usage(usage: Usage | None) -> dict[str, int] | None:
    if usage is None:
        return None
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _summarize(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a log's list of samples has of one."""
    names = ("id", "epoch", "input", "target", "model_usage", "uuid", "total_time")
    summary = {name: sample[name] for name in names if name in sample}
    summary["scores"] = {
        name: {key: score[key] for key in ("value", "answer") if key in score}
        for name, score in sample["scores"].items()
    }
    summary |= {"completed": True, "message_count": len(sample["messages"])}
    if "error" in sample:
        summary["error"] = sample["error"]["message"]
    if "limit" in sample:
        summary["limit"] = sample["limit"]["type"]
    return summary
