"""Samples as `lm_eval --log_samples --output_path` saves them, read without lm-eval.

`samples_TASK_TIME.jsonl` has a line for each document and filter; `results_TIME.json` beside it has
the task's config, the model and the versions. Metrics that lm-eval takes of all documents together
(bleu, perplexity) have no value for one document, and are left out, by name.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from heldout._core.chat.messages import message_of, to_chat_api
from heldout.adapters.lm_eval.published import describe_published
from heldout.adapters.lm_eval.score import metric_name
from heldout.adapters.logs.archive import JsonLines, decode_json, read_bounded
from heldout.adapters.logs.logged import Attempts, LoggedEval, commit_of, errored, utc
from heldout.adapters.logs.own_results import OwnResult
from heldout.errors import InvalidInput, ScoringFailed
from heldout.store.jsonl import open_to_read
from heldout.types import EvalResult, Message, Metric, Sample, Score, Stop, Trajectory

FILE = re.compile(
    r"samples_(?P<task>.+)_(?P<time>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?)\.jsonl", re.DOTALL
)
OF_THE_LINE = {
    *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"),
    *("doc_hash", "prompt_hash", "target_hash", "schema_version"),
}
"""Keys of a line that are no metric, for logs that do not list their metrics."""
OVER_ALL = {
    *("perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "weighted_perplexity"),
    *("bleu", "chrf", "ter", "f1", "mcc", "matthews_corrcoef", "brier_score", "bypass", "median"),
}
"""Metrics, and aggregations, over all documents together."""
MEANS = ("mean", "nanmean", None)
Line = dict[str, Any]


def read_lm_eval_log(path: Path, *, score: str | None = None) -> LoggedEval:
    """Open the samples of one task.

    Args:
        path: The file samples_TASK_TIME.jsonl.
        score: The metric that is the reward: NAME, or NAME,FILTER. By default the first metric of
            the task for which more is better, with its first filter.

    Raises:
        InvalidInput: It is not such a file, or has no such metric.
    """
    match = FILE.fullmatch(path.name)
    task = match["task"] if match else path.stem
    results = _read_results(path.with_name(f"results_{match['time']}.json")) if match else {}
    config = _part(results, "configs", task)
    file_lines = JsonLines(path)
    lines = _index_lines(file_lines)
    if not lines:
        raise file_lines.refuse_empty()
    with open_to_read(path) as file:
        first = [_read_line(file, path, offset) for offset in next(iter(lines.values()))]
    names = _Metrics.of(path, first, config, _part(results, "higher_is_better", task), score)
    document = _Document(task, config, names, rendered=bool(results.get("chat_template")))
    effective = _part(results, "n-samples", task).get("effective")

    def read_attempts() -> Attempts:
        taken: Counter[str] = Counter()
        with open_to_read(path) as file:
            for index, offsets in enumerate(lines.values()):
                found = [_read_line(file, path, offset) for offset in offsets]
                yield index, document.convert(found, taken)

    version = results.get("lm_eval_version")
    versions = {"lm-eval": version, "transformers": results.get("transformers_version")}
    return LoggedEval(
        "lm-eval",
        path,
        task,
        read_attempts,
        model=_name_model(results),
        reward=names.reward,
        asked=effective if isinstance(effective, int) else None,
        settings=_read_settings(results, config, task),
        own_results=names.find_own_results(_part(results, "results", task)),
        unfinished=file_lines.cut,
        functions=_describe_functions(results, config, task, names),
        versions={name: v for name, v in versions.items() if isinstance(v, str)},
        about={
            "task_version": _part(results, "versions").get(task),
            "left_out": list(names.left_out) or None,
            "published": _describe_published(results, config, task, names.reward),
        },
        started=utc(results.get("date")),
        git=commit_of(results.get("git_hash"), None),
    )


def _read_results(path: Path) -> dict[str, Any]:
    """Read the results beside the samples; {} where they are gone: then less is known."""
    try:
        return decode_json(read_bounded(path), dict[str, Any], str(path))
    except FileNotFoundError:
        return {}


def _part(results: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    value: Any = results
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, dict) else {}


def _index_lines(lines: JsonLines) -> dict[str, list[int]]:
    """Find the lines of each document, one for each filter, by their place in the file."""
    found: dict[str, list[int]] = {}
    for _, offset, head in lines.read(_LineHead):
        found.setdefault(str(head.doc_id), []).append(offset)
    return found


class _LineHead(msgspec.Struct):
    doc_id: int | str


def _read_line(file: BufferedReader, path: Path, offset: int) -> Line:
    file.seek(offset)
    return decode_json(file.readline(), dict[str, Any], f"{path}, byte {offset}")


def _name_model(results: Mapping[str, Any]) -> str | None:
    for name in (results.get("model_name"), _part(results, "config").get("model")):
        if isinstance(name, str) and name:
            return name
    return None


def _read_settings(
    results: Mapping[str, Any], config: Mapping[str, Any], task: str
) -> dict[str, Any]:
    """Return settings that change results, as far as the log says them."""
    generation = _part(config, "generation_kwargs")
    names = {"temperature": "temperature", "top_p": "top_p", "max_gen_toks": "max_tokens"}
    sampling = {ours: generation[theirs] for theirs, ours in names.items() if theirs in generation}
    if generation.get("until"):
        sampling["stop"] = generation["until"]
    run = _part(results, "config")
    settings = {
        "num_fewshot": _part(results, "n-shot").get(task),
        "sampling": sampling or None,
        "system_instruction": results.get("system_instruction"),
        "chat_template": results.get("chat_template_sha"),
        "seeds": {key: run[key] for key in run if key.endswith("_seed")} or None,
        "model_args": run.get("model_args"),
    }
    return {key: value for key, value in settings.items() if value is not None}


def _describe_functions(
    results: Mapping[str, Any], config: Mapping[str, Any], task: str, names: _Metrics
) -> dict[str, Any]:
    """Identify scoring and prompts by the task's config, which is not all of their code."""
    if not config:
        return {}
    scoring = [config.get(key) for key in ("output_type", "metric_list", "filter_list", "repeats")]
    scoring += [config.get("process_results"), _part(results, "versions").get(task)]
    prompt = [config.get(key) for key in ("doc_to_text", "doc_to_target", "doc_to_choice")]
    prompt += [config.get(key) for key in ("description", "target_delimiter", "num_fewshot")]
    return {
        "score_fn": {"name": f"lm-eval:{task},{names.reward}", "source": _digest(scoring)},
        "prepare_messages": {"name": f"lm-eval:{task}", "source": _digest(prompt)},
    }


def _describe_published(
    results: Mapping[str, Any], config: Mapping[str, Any], task: str, reward: str
) -> dict[str, Any] | None:
    """Return what names the task here, too; None where the log lacks something of it."""
    version, system = results.get("lm_eval_version"), results.get("system_instruction")
    return describe_published(
        task,
        version=version if isinstance(version, str) else None,
        config=config,
        fewshot_seed=_part(results, "config").get("fewshot_seed"),
        chat=bool(results.get("chat_template")),
        multiturn=results.get("fewshot_as_multiturn"),
        system_prompt=system if isinstance(system, str) else None,
        rewards=[reward],
    )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# --- Metrics ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Metrics:
    """Which metrics a log has for each document, and which of them is the reward."""

    reward: str
    left_out: tuple[str, ...]
    means: tuple[str, ...] = ()
    """Those whose number in the results is the mean over the documents."""

    def find_own_results(self, results: Mapping[str, Any]) -> tuple[OwnResult, ...]:
        """Find the means in lm-eval's own results of the task; the reward's is the run's mean."""
        found = []
        for name in self.means:
            full = name if "," in name else f"{name},none"
            value = results.get(full, results.get(name))
            if isinstance(value, int | float) and not isinstance(value, bool):
                found.append(OwnResult(full, value, () if name == self.reward else (name,)))
        return tuple(found)

    @classmethod
    def of(
        cls,
        path: Path,
        lines: Sequence[Line],
        config: Mapping[str, Any],
        higher: Mapping[str, Any],
        wanted: str | None,
    ) -> _Metrics:
        aggregated = {
            str(entry.get("metric")): entry.get("aggregation")
            for entry in config.get("metric_list") or ()
            if isinstance(entry, dict)
        }
        found: dict[str, str] = {}
        left_out: list[str] = []
        for line in lines:
            for metric in metrics_of(line):
                name = metric_name(metric, str(line.get("filter", "none")))
                how = aggregated.get(metric)
                over_all = how not in MEANS or (how is None and metric in OVER_ALL)
                if over_all or isinstance(line.get(metric), list | dict):
                    left_out.append(name)
                else:
                    found[name] = metric
        if not found:
            raise InvalidInput(
                f"{path} has no metric with a value for each document; {', '.join(left_out)} "
                "are of all documents together"
            )
        rewards = [name for name, metric in found.items() if higher.get(metric) is not False]
        if wanted is None:
            if not rewards:
                raise InvalidInput(f"{path}: of {', '.join(found)} less is better: no reward")
            return cls(rewards[0], tuple(left_out), tuple(found))
        short = wanted.removesuffix(",none")
        match = next((n for n in found if short in (n, found[n])), None)
        if match is None:
            raise InvalidInput(f"{path} has no metric {wanted!r}; it has {', '.join(found)}")
        if match not in rewards:
            raise InvalidInput(f"{path}: of {wanted} less is better, so it is no reward")
        return cls(match, tuple(left_out), tuple(found))


def metrics_of(line: Line) -> list[str]:
    """Name the metrics of a line."""
    listed = line.get("metrics")
    if isinstance(listed, list):
        return [name for name in listed if isinstance(name, str) and name in line]
    return [name for name in line if name not in OF_THE_LINE]


# --- Documents ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Document:
    """Converts the lines of a document."""

    task: str
    config: Mapping[str, Any]
    names: _Metrics
    rendered: bool
    """Whether prompts are text of the model's chat template: then they differ between models."""

    def convert(self, lines: Sequence[Line], taken: Counter[str]) -> EvalResult:
        """Make the result of a document; `taken` counts the ids so far."""
        line = lines[0]
        requests = _read_requests(line)
        continuations = [text for _, text in requests if isinstance(text, str)]
        id = self._name(line, taken)
        sample = Sample(
            id,
            self._make_input(line, requests, continuations),
            self._find_target(line, continuations),
            {"task": self.task, "doc_id": line.get("doc_id")},
        )
        prompts = [prompt for prompt, _ in requests]
        opening: list[Message] = []
        for position, prompt in enumerate(prompts):
            if prompt and prompt not in prompts[:position]:
                opening += _read_prompt(prompt)
        responses = _read_responses(line)
        outcome: dict[str, Any] | None = None
        if continuations:
            outcome = {"likelihoods": _read_likelihoods(responses, continuations)}
        elif len(responses) > 1:
            outcome = {"responses": responses}
        elif responses and isinstance(responses[0], str):
            opening.append(Message("assistant", responses[0]))
        # An assistant's message before it is a few-shot example.
        turns = (len(opening) - 1,) if opening and opening[-1].role == "assistant" else None
        examples = sum(message.role == "assistant" for message in opening) > 1
        trajectory = Trajectory(
            tuple(opening),
            Stop(),
            outcome=outcome,
            model_turns=turns if examples and not continuations else None,
        )
        result = EvalResult(id, sample, trajectory)
        try:
            self._refuse_wrong_gold(line, continuations)
            if not continuations and not any(isinstance(r, str) for r in responses):
                return errored(result, "log: the model gave no response", "log")
            return EvalResult(id, sample, trajectory, self._make_score(lines))
        except (ScoringFailed, InvalidInput) as problem:
            return errored(result, f"score_fn: {problem}", "score_fn")

    def _name(self, line: Line, taken: Counter[str]) -> str:
        """Name a document by its content: its number changes with `--samples`."""
        document = json.dumps(line.get("doc"), sort_keys=True)
        content = hashlib.sha256(document.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        taken[content] += 1
        return f"{self.task}-{content}" + (f"-{taken[content]}" if taken[content] > 1 else "")

    def _make_input(
        self, line: Line, requests: Sequence[tuple[Any, Any]], continuations: Sequence[str]
    ) -> dict[str, Any]:
        shown = {"continuations": list(continuations)} if continuations else {}
        prompts = [_plain_prompt(prompt) for prompt, _ in requests]
        if not prompts or (self.rendered and isinstance(prompts[0], str)):
            return {"doc": line.get("doc"), **shown}
        if all(prompt == prompts[0] for prompt in prompts):
            return {"prompt": prompts[0], **shown}
        return {"prompts": prompts, **shown}

    def _choices(self, continuations: Sequence[str]) -> list[str]:
        delimiter = self.config.get("target_delimiter", " ")
        prefix = delimiter if isinstance(delimiter, str) else ""
        return [text.removeprefix(prefix) for text in continuations]

    def _find_gold(self, line: Line, choices: Sequence[str]) -> int | None:
        """Return the position of the right choice; None where it is not said by position.

        The log has it as text, be it the choice or its position: the document says which, where
        the target is one of its fields.
        """
        target, name = line.get("target"), self.config.get("doc_to_target")
        document = line.get("doc")
        given = document.get(name) if isinstance(document, dict) and isinstance(name, str) else None
        if isinstance(given, int) and not isinstance(given, bool):
            return given
        if not isinstance(target, str) or given is not None or target in choices:
            return None
        return int(target) if re.fullmatch(r"-?\d{1,9}", target) else None

    def _find_target(self, line: Line, continuations: Sequence[str]) -> Any:
        choices = self._choices(continuations)
        if self.config.get("output_type") == "multiple_choice" and choices:
            gold = self._find_gold(line, choices)
            if gold is not None and 0 <= gold < len(choices):
                return choices[gold]
        return line.get("target")

    def _refuse_wrong_gold(self, line: Line, continuations: Sequence[str]) -> None:
        """Refuse a right answer that is none of the choices, which lm-eval scores 0."""
        if self.config.get("output_type") != "multiple_choice" or not continuations:
            return
        count, gold = len(continuations), self._find_gold(line, self._choices(continuations))
        if "acc_mutual_info" in metrics_of(line):
            count //= 2  # each choice is rated twice
        if gold is not None and not 0 <= gold < count:
            raise ScoringFailed(
                f"the right answer is {gold}, and there are {count} choices; lm-eval scores such a "
                "document 0"
            )

    def _make_score(self, lines: Sequence[Line]) -> Score:
        metrics = []
        for line in lines:
            filter_name = str(line.get("filter", "none"))
            for metric in metrics_of(line):
                name, value = metric_name(metric, filter_name), line[metric]
                if name in self.names.left_out:
                    continue
                is_reward = name == self.names.reward
                if not isinstance(value, bool | int | float) or not math.isfinite(value):
                    if is_reward:
                        raise ScoringFailed(f"{name} is {value!r:.100}, which is no number")
                    continue
                filtered = line.get("filtered_resps")
                extracted = filtered[0] if isinstance(filtered, list) and filtered else None
                shown = {"extracted": extracted[:500]} if isinstance(extracted, str) else {}
                metrics.append(Metric(name, value, float(is_reward), shown))
        if self.names.reward not in [metric.name for metric in metrics]:
            raise ScoringFailed(f"the log has no {self.names.reward} of this document")
        return Score(tuple(metrics))


def _read_requests(line: Line) -> list[tuple[Any, Any]]:
    """Return prompt and continuation, or settings, of each request about a document."""
    arguments = line.get("arguments")
    if isinstance(arguments, dict):
        ordered = sorted(arguments, key=lambda key: int(re.sub(r"\D", "", key) or 0))
        parts = [arguments[key] for key in ordered]
        return [(p.get("arg_0"), p.get("arg_1")) for p in parts if isinstance(p, dict)]
    if isinstance(arguments, list):  # of earlier versions
        pairs = [part for part in arguments if isinstance(part, list)]
        return [(part[0] if part else None, part[1] if len(part) > 1 else None) for part in pairs]
    return []


def _plain_prompt(prompt: Any) -> Any:
    """Return the messages of a prompt that was sent as such, or its text."""
    if isinstance(prompt, str) and prompt.startswith('[{"role"'):
        return [to_chat_api(message) for message in _read_prompt(prompt)]
    return prompt


def _read_prompt(prompt: Any) -> list[Message]:
    if not isinstance(prompt, str):
        return []
    if prompt.startswith('[{"role"'):
        try:
            return [message_of(part, "prompt") for part in json.loads(prompt)]
        except (ValueError, RecursionError, TypeError):  # a text that looks like it
            pass
    return [Message("user", prompt)]


def _read_responses(line: Line) -> list[Any]:
    """Return what the model gave: texts, or for each continuation its log-likelihood."""
    responses = line.get("resps")
    if not isinstance(responses, list):
        return []
    return [part for group in responses for part in (group if isinstance(group, list) else [group])]


def _read_likelihoods(responses: Sequence[Any], texts: Sequence[str]) -> list[dict[str, Any]]:
    rated = []
    for text, response in zip(texts, responses, strict=False):
        values = response if isinstance(response, list) else []
        logprob, greedy, *_ = *values, None, None
        rated.append({"text": text, "logprob": _number(logprob), "greedy": str(greedy) == "True"})
    return rated


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
