"""Is an eval fit to measure anything? Its own answers must pass, and no answer must not.

    check = await check_eval(definition)
    assert not check.problems, check.findings

The reference of every sample is answered back, by the eval's own turn loop, environment and score
function: a grader that cannot read it, or a wrong label, would cost every model the same points
without a word. An empty answer and an unrelated word are tried as well. No model is asked, other
than judges that the score function has.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from heldout._core.chat.messages import message_of
from heldout._core.chat.questions import likely_question
from heldout._core.config import EvalConfig, Sampling
from heldout._core.format import count
from heldout._core.temporary import TemporaryFolder
from heldout._evals.engine import evaluate
from heldout._evals.rollout import EvalDefinition, own_pass_threshold
from heldout.environment import rates_continuations
from heldout.errors import InvalidInput, SystemicFailure
from heldout.models.base import Complete
from heldout.rollouts.overlap import ColumnsNotCompared, HeldOutPrompts
from heldout.store.report import EvalReport
from heldout.types import (
    Completion,
    EvalResult,
    Message,
    Sample,
    ToolCall,
    ToolSpec,
)

log = logging.getLogger("heldout")

UNRELATED = "zebra"
"""A word that answers no question, one hopes."""
REFERENCE_FIELDS = ("reference", "canonical_solution", "reference_solution", "solution")
"""Fields of a sample's metadata that hold a whole answer, where it is not the ground truth."""
FORMS: Mapping[str, Callable[[str], str]] = {
    "as it is": str,
    "Answer: …": "Answer: {}".format,
    "ANSWER: …": "ANSWER: {}".format,
    "\\boxed{…}": "\\boxed{{{}}}".format,
    "<answer>…</answer>": "<answer>{}</answer>".format,
    "```…```": "```\n{}\n```".format,
}
"""How a text may be answered back: graders read it where their prompt asks for it."""
Kind = Literal[
    "reference_fails",
    "reference_errors",
    "no_reference",
    "empty_passes",
    "unrelated_passes",
    "duplicate",
    "ambiguous",
    "empty_prompt",
    "overlap",
]
MEANINGS: Mapping[Kind, str] = {
    "reference_fails": "the reference answer does not pass",
    "reference_errors": "the reference answer cannot be scored",
    "no_reference": "there is no reference to answer back",
    "empty_passes": "an empty answer passes",
    "unrelated_passes": f"the answer {UNRELATED!r} passes",
    "duplicate": "the same question as another sample",
    "ambiguous": "the same question as another sample, with another truth",
    "empty_prompt": "the prompt is empty",
    "overlap": "the prompt is in the training file",
}
PROBLEMS: frozenset[Kind] = frozenset({"reference_fails", "reference_errors"})
"""What makes an eval unfit; all else is a warning."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a sample.

    Attributes:
        kind: What it is.
        sample_id: Of which sample.
        detail: The answer that was scored, the error, or the other sample.
    """

    kind: Kind
    sample_id: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class EvalCheck:
    """What came of checking an eval.

    Attributes:
        n: Samples of the eval that were looked at.
        n_answered: Those whose reference was answered back.
        n_passed: Those whose reference passed.
        form: How references were answered back, where they passed; the most frequent form.
        pass_threshold: The reward that passes.
        findings: What is wrong, in the order of the samples.
    """

    n: int
    n_answered: int
    n_passed: int
    form: str | None
    pass_threshold: float
    findings: Sequence[Finding]

    @property
    def problems(self) -> list[Finding]:
        """Findings that make the eval unfit: references that fail."""
        return [finding for finding in self.findings if finding.kind in PROBLEMS]

    @property
    def warnings(self) -> list[Finding]:
        """The other findings."""
        return [finding for finding in self.findings if finding.kind not in PROBLEMS]


async def check_eval(
    definition: EvalDefinition,
    *,
    train: Iterable[Any] = (),
    max_samples: int | None = None,
    max_concurrent: int = 16,
    timeout: float | None = 600.0,
) -> EvalCheck:
    """Answer an eval's references back, and look for samples that measure nothing.

    Args:
        definition: The eval. Its `reference` gives a sample's answer: a text, a `Message`, or a
            list of these, one for each model turn. Without it that is `reference`,
            `canonical_solution` or `solution` of the metadata, else the ground truth.
        train: Training prompts, to look for in the eval.
        max_samples: Only the first so many samples.
        max_concurrent: Samples that are scored at once.
        timeout: Seconds for one sample.

    Returns:
        What was found.
    """
    samples = list(definition.samples)[:max_samples]
    if not samples:
        raise InvalidInput("there are no samples to check")
    definition = replace(definition, samples=samples)
    threshold = own_pass_threshold(None, definition)
    findings = [*_find_copies(samples), *_find_empty(definition), *_find_overlap(definition, train)]
    answers: dict[str, Sequence[str | Message]] = {}
    if not rates_continuations(definition.environment_factory):
        for sample in samples:
            found = _reference_of(definition, sample)
            if found is None:
                findings.append(Finding("no_reference", sample.id))
            else:
                answers[sample.id] = found
    settings = {"max_concurrent": max_concurrent, "timeout": timeout}
    forms: dict[str, int] = defaultdict(int)
    passed: set[str] = set()
    failed: dict[str, EvalResult] = {}
    for form, render in FORMS.items():
        left = [sample for sample in samples if sample.id in answers and sample.id not in passed]
        if form != "as it is":
            # Of several turns, or calls, each is what it is.
            left = [s for s in left if all(isinstance(turn, str) for turn in answers[s.id][:1])]
        if not left:
            continue
        given = {s.id: [_rendered(turn, render) for turn in answers[s.id]] for s in left}
        for result in await _answer(replace(definition, samples=left), [given], settings):
            if result.error is None and result.score.reward >= threshold:
                passed.add(result.sample_id)
                forms[form] += 1
            else:
                failed.setdefault(result.sample_id, result)
    findings += [_describe_failure(r) for id, r in failed.items() if id not in passed]
    if not rates_continuations(definition.environment_factory):
        findings += await _probe(definition, settings, threshold)
    order = {sample.id: number for number, sample in enumerate(samples)}
    findings.sort(key=lambda finding: (finding.kind not in PROBLEMS, order[finding.sample_id]))
    usual = max(forms, key=forms.__getitem__) if forms else None
    return EvalCheck(len(samples), len(answers), len(passed), usual, threshold, findings)


# --- Answers given back ---------------------------------------------------------------------------


def _reference_of(definition: EvalDefinition, sample: Sample) -> Sequence[str | Message] | None:
    """Return the model turns that answer a sample rightly; None where there are none."""
    if definition.reference is not None:
        given = definition.reference(sample)
        return None if given is None else _as_turns(given, sample)
    for name in REFERENCE_FIELDS:
        if sample.metadata.get(name):
            return _as_turns(sample.metadata[name], sample)
    truth = sample.ground_truth
    if truth is None or truth in ("", [], {}):
        return None
    if (calls := _read_calls(truth)) is not None:
        return [calls]
    if isinstance(truth, bool):
        return [str(truth).lower()]
    if isinstance(truth, list | tuple):  # of answers that are right, the first
        return [truth[0] if isinstance(truth[0], str) else json.dumps(list(truth))]
    return [json.dumps(truth) if isinstance(truth, dict) else str(truth)]


def _read_calls(truth: Any) -> Message | None:
    """Return a turn that makes the calls of a target, as `grade_calls` reads them."""
    if isinstance(truth, Message):
        return truth
    if isinstance(truth, Mapping) and "tool_calls" in truth:
        truth = truth["tool_calls"]
    if not isinstance(truth, list | tuple) or not all(isinstance(call, Mapping) for call in truth):
        return None
    calls = []
    for number, call in enumerate(truth):
        function = call.get("function", call)
        if isinstance(function, Mapping) and "name" in function:
            name, arguments = function["name"], function.get("arguments", {})
        elif len(call) == 1:  # of each argument the values that are accepted, "" for none
            ((name, accepted),) = call.items()
            if not isinstance(accepted, Mapping):
                return None
            firsts = {key: values[0] for key, values in accepted.items() if values}
            arguments = {key: value for key, value in firsts.items() if value != ""}
        else:
            return None
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append(ToolCall(f"call_{number}", str(name), text))
    return Message("assistant", "", tool_calls=tuple(calls)) if calls else None


def _as_turns(given: Any, sample: Sample) -> list[str | Message]:
    turns = list(given) if isinstance(given, list | tuple) else [given]
    made: list[str | Message] = []
    for turn in turns:
        if isinstance(turn, Mapping):
            turn = message_of({"role": "assistant", **turn}, "a turn of reference(sample)")
        if not isinstance(turn, str | Message):
            raise InvalidInput(
                f"sample {sample.id!r}: reference(sample) returns a text, a Message or a list of "
                f"these, one for each model turn; got {turn!r:.200}"
            )
        made.append(turn)
    return made


def _rendered(turn: str | Message, render: Callable[[str], str]) -> str | Message:
    return render(turn) if isinstance(turn, str) else turn


class _Scripted:
    """An endpoint that answers each sample with turns that are given, and repeats the last text."""

    def __init__(
        self, ids: Sequence[str], scripts: Sequence[Mapping[str, Sequence[str | Message]]]
    ) -> None:
        self._ids, self._scripts = ids, scripts

    @contextmanager
    def item(self, index: int, repeat: int) -> Iterator[Complete]:
        turns = iter(self._scripts[repeat][self._ids[index]])
        last = "Done."

        async def complete(
            messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
        ) -> Completion:
            nonlocal last
            turn = next(turns, last)
            last = turn if isinstance(turn, str) else last
            return Completion.of(turn)

        yield complete

    async def complete(self, *_: Any) -> Completion:
        raise AssertionError("an item is answered")

    def describe(self) -> dict[str, Any]:
        return {"kind": "function", "name": "check_eval"}

    async def close(self) -> None:
        pass


async def _answer(
    definition: EvalDefinition,
    scripts: Sequence[Mapping[str, Sequence[str | Message]]],
    settings: Mapping[str, Any],
) -> list[EvalResult]:
    """Run the eval with given answers, one attempt of each sample for each script."""
    ids = [sample.id for sample in definition.samples]
    with TemporaryFolder("check") as folder:
        config = EvalConfig(
            endpoint=_Scripted(ids, scripts),
            output_dir=folder,
            experiment_name="check",
            repeats=len(scripts),
            max_error_rate=1.0,
            progress=False,
            **settings,
        )
        try:
            with _silenced(folder):
                report = await evaluate(definition, config)
        except SystemicFailure as failure:  # all errored, which is what is to be told
            if failure.run_dir is None:
                raise
            report = EvalReport.load(failure.run_dir)
        return list(report.results)


@contextmanager
def _silenced(folder: str) -> Iterator[None]:
    """Leave out what is logged of runs in a folder that is soon gone: the findings say it."""

    def is_about_others(record: logging.LogRecord) -> bool:
        return folder not in record.getMessage()

    log.addFilter(is_about_others)
    try:
        yield
    finally:
        log.removeFilter(is_about_others)


def _describe_failure(result: EvalResult) -> Finding:
    if result.error is not None:
        return Finding("reference_errors", result.sample_id, result.error[:500])
    answer = result.trajectory.answer or json.dumps(
        [call.name for message in result.trajectory.messages for call in message.tool_calls]
    )
    return Finding(
        "reference_fails", result.sample_id, f"{answer!r:.200} gets {result.score.reward:g}"
    )


async def _probe(
    definition: EvalDefinition, settings: Mapping[str, Any], threshold: float
) -> list[Finding]:
    """Try answers that must not pass. One that cannot be scored does not pass either."""
    kinds: tuple[Kind, Kind] = ("empty_passes", "unrelated_passes")
    scripts = [{s.id: [text] for s in definition.samples} for text in ("", UNRELATED)]
    results = await _answer(definition, scripts, settings)
    return [
        Finding(kinds[result.repeat], result.sample_id, f"reward {result.score.reward:g}")
        for result in results
        if result.error is None and result.score.reward >= threshold
    ]


# --- Samples ------------------------------------------------------------------------------------


def _find_copies(samples: Sequence[Sample]) -> Iterator[Finding]:
    seen: dict[str, Sample] = {}
    for sample in samples:
        text = json.dumps(sample.input, sort_keys=True, default=str).casefold()
        first = seen.setdefault(" ".join(text.split()), sample)
        if first is sample:
            continue
        kind: Kind = "duplicate" if first.ground_truth == sample.ground_truth else "ambiguous"
        truths = f": {first.ground_truth!r:.80} and {sample.ground_truth!r:.80}"
        yield Finding(kind, sample.id, f"as {first.id!r}" + (truths if kind == "ambiguous" else ""))


def _find_empty(definition: EvalDefinition) -> Iterator[Finding]:
    prepare = definition.prepare_messages
    for sample in definition.samples:
        if prepare is None:
            messages = list(likely_question(sample))
        else:
            messages = prepare(sample)
            if not messages and definition.environment_factory is not None:
                continue  # the environment opens the conversation
        asked = [m for m in messages if m.role != "system"]
        if not any(m.text.strip() or not isinstance(m.content, str) for m in asked):
            yield Finding("empty_prompt", sample.id)


def _find_overlap(definition: EvalDefinition, train: Iterable[Any]) -> Iterator[Finding]:
    prompts: HeldOutPrompts | None = None
    found: dict[str, None] = {}
    for row in train:
        if prompts is None:
            prompts = HeldOutPrompts()
            prompts.add(definition)
        with suppress(ColumnsNotCompared):
            if (id := prompts.find(row)) is not None:
                found[id] = None
    yield from (Finding("overlap", id) for id in found)


def conclude_check(check: EvalCheck) -> tuple[str, str]:
    """Return whether an eval is fit, in a word and in a sentence."""
    answered = f"{check.n_passed} of {check.n_answered} references pass"
    if check.problems:
        return "unfit", f"{answered}: mend the grader or the labels before a model is asked."
    if check.warnings:
        return "warned", f"{answered}; {count(len(check.warnings), 'warning')}."
    return "fit", f"{answered}, and nothing else was found in {count(check.n, 'sample')}."


__all__ = ["MEANINGS", "PROBLEMS", "EvalCheck", "Finding", "check_eval", "conclude_check"]
