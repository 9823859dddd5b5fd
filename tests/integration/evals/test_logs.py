"""Logs that the real Inspect, lm-eval and verifiers have written, as runs; and back to Inspect."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import inspect_ai
import pytest
from inspect_ai.dataset import MemoryDataset
from inspect_ai.dataset import Sample as InspectSample
from inspect_ai.log import EvalLog, read_eval_log, read_eval_log_sample_summaries
from inspect_ai.model import (
    ChatMessageSystem,
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import Score as InspectScore
from inspect_ai.scorer import accuracy, match, mean, scorer, stderr, value_to_float
from inspect_ai.solver import generate, solver, use_tools
from inspect_ai.tool import tool

import heldout
from heldout import EvalReport, Message, Metric, Sample, Score, Stop, ToolCall, Trajectory
from heldout._evals.rescoring import rescore
from heldout.adapters.lm_eval import from_lm_eval
from heldout.adapters.logs import export_inspect, find_logs, import_log
from heldout.analysis import compare
from heldout.errors import InvalidInput, NotComparable, ResumeMismatch, SystemicFailure
from heldout.types import EvalResult, OtherUsage, Timing, Usage
from tests.faulty_server import FaultyServer, Request, status

pytestmark = [
    pytest.mark.integration,
    # Inspect leaves streams open, and imports every installed package of tasks.
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:`__get_validators__` is deprecated"),
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated"),
]

PIXEL = "data:image/png;base64," + "iVBORw0KGgo" * 20
ANYTHING = {"max_error_rate": 1.0}


# --- Inspect ------------------------------------------------------------------------------------


@tool
def add() -> Any:
    async def execute(x: int, y: int) -> str:
        """Add.

        Args:
            x: One number.
            y: The other.
        """
        return str(x + y)

    return execute


@scorer(metrics=[mean()])
def grade() -> Any:
    """Does what the id of the sample says."""
    special = {
        "grader-failed": InspectScore.unscored(reason="grader_failed"),
        "refused": InspectScore.unscored(reason="refusal"),
        "word": InspectScore(value="banana"),
        "no-answer": InspectScore(value="N"),
        "yes": InspectScore(value="yes"),
        "text-number": InspectScore(value="0.25"),
    }

    async def score(state: Any, target: Any) -> Any:
        if state.sample_id == "no-score":
            return None
        given = InspectScore(value=0.5, answer="x", explanation="why")
        return special.get(str(state.sample_id), given)

    return score


@scorer(metrics=[{"a": [mean()], "b": [mean()]}])
def two_values() -> Any:
    async def score(state: Any, target: Any) -> Any:
        return InspectScore(value={"a": 1, "b": 0.25})

    return score


@scorer(metrics=[accuracy(to_float=value_to_float(correct=5, incorrect=1)), stderr()])
def rate() -> Any:
    """Rates from 1 to 5, of which the task's metric makes shares."""

    async def score(state: Any, target: Any) -> Any:
        return InspectScore(value=[1, 5][(len(state.sample_id) + state.epoch) % 2])

    return score


@scorer(metrics=[accuracy()])
def by_epoch() -> Any:
    async def score(state: Any, target: Any) -> Any:
        return InspectScore(value="C" if state.epoch == 1 else "I")

    return score


@solver
def ask() -> Any:
    async def solve(state: Any, generate: Any) -> Any:
        if state.sample_id == "raises":
            raise RuntimeError("the solver broke")
        return await generate(state)

    return solve


def answer(messages: list[Any], tools: Any, choice: Any, config: Any) -> ModelOutput:
    if tools and ("endless" in messages[0].text or messages[-1].role == "user"):
        output = ModelOutput.for_tool_call("mockllm/model", "add", {"x": 1, "y": 2})
    else:
        parts = [ContentReasoning(reasoning="hm"), ContentText(text="hello there")]
        output = ModelOutput.from_content("mockllm/model", parts)
    output.usage = ModelUsage(input_tokens=10, output_tokens=5, total_tokens=15)
    output.usage.input_tokens_cache_read = 3
    return output


IDS = [
    *("plain", "raises", "endless", "grader-failed", "no-score", "refused", "word", "no-answer"),
    *("yes", "text-number"),
]


def run_inspect(folder: Path, *, format: str = "eval", **task: Any) -> EvalLog:
    questions = [
        InspectSample(id=id, input=f"What is {id}?", target="hello", metadata={"level": "hard"})
        for id in IDS
    ]
    settings: dict[str, Any] = {
        "name": "questions",
        "dataset": MemoryDataset(questions),
        "solver": [use_tools(add()), ask()],
        "scorer": [grade(), match(location="any")],
        "message_limit": 6,
        **task,
    }
    (log,) = inspect_ai.eval(
        inspect_ai.Task(**settings),
        model=get_model("mockllm/model", custom_outputs=answer, memoize=False),
        log_dir=str(folder),
        log_format=format,  # type: ignore[arg-type]
        fail_on_error=False,
        display="none",
        temperature=0.3,
        ctl_server=False,
    )
    return log


@pytest.fixture(scope="module")
def inspect_logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EvalLog]:
    folder = tmp_path_factory.mktemp("inspect")
    return {
        "eval": run_inspect(folder, epochs=2),
        "json": run_inspect(folder, epochs=2, format="json"),
    }


@pytest.mark.parametrize("format", ["eval", "json"])
def test_attempts_of_an_inspect_log_are_scored_strictly(
    inspect_logs: dict[str, EvalLog], format: str, tmp_path: Path
) -> None:
    log = inspect_logs[format]
    report = import_log(log.location, output_dir=tmp_path, **ANYTHING)
    assert [(r.sample_id, r.repeat) for r in report.results] == [
        (i, e) for i in IDS for e in (0, 1)
    ]
    by_id = {result.sample_id: result for result in report.results}
    # (reward, error, whether the model gave no answer)
    expected: dict[str, tuple[float | None, str, float]] = {
        "plain": (0.5, "", 0),
        "raises": (None, "RuntimeError('the solver broke')", 0),
        "endless": (0.5, "", 0),
        "grader-failed": (None, "score_fn: grade: unscored: grader_failed", 0),
        "no-score": (None, "score_fn: grade: the scorer gave no score", 0),
        "refused": (0.0, "", 1),
        "word": (None, "score_fn: grade: the score is 'banana', which is no number", 0),
        "no-answer": (0.0, "", 1),
        "yes": (1.0, "", 0),
        "text-number": (0.25, "", 0),
    }
    for id, (reward, error, no_answer) in expected.items():
        result = by_id[id]
        assert (result.error or "") == error, id
        if reward is not None:
            assert result.score.reward == reward
            assert result.score["grade.noanswer"] == no_answer
    theirs = {sample.id: sample for sample in log.samples or []}
    plain, endless = by_id["plain"], by_id["endless"].trajectory
    assert plain.score["match"] == 1.0
    assert plain.score.metrics[0].metadata == {"extracted": "x", "explanation": "why"}
    assert [m.text for m in endless.messages] == [m.text for m in theirs["endless"].messages]
    assert (endless.stop.ended_by, endless.stop.limit) == ("limit", "message")
    assert plain.trajectory.messages[1].tool_calls[0].arguments == '{"x": 1, "y": 2}'
    assert plain.trajectory.messages[-1].reasoning == "hm"
    assert plain.trajectory.answer == "hello there"
    assert plain.trajectory.usage == Usage(26, 10)
    assert plain.sample == Sample(
        "plain", {"question": "What is plain?"}, "hello", {"level": "hard"}
    )
    config, info = report.config, report.info
    assert info is not None
    assert config["imported"]["format"] == "inspect"
    assert config["imported"]["reward"] == "grade"
    assert (config["endpoint"], config["repeats"]) == ({"model": "mockllm/model"}, 2)
    assert (config["sampling"], config["limits"]) == ({"temperature": 0.3}, {"message_limit": 6})
    # What this process has installed is not what the eval ran with.
    assert set(info.versions) == {"heldout", "inspect_ai"}


def test_two_logs_of_a_task_pair_up_and_the_same_log_is_not_imported_twice(
    inspect_logs: dict[str, EvalLog], tmp_path: Path
) -> None:
    paths = [log.location for log in inspect_logs.values()]
    a, b = (import_log(path, output_dir=tmp_path, **ANYTHING) for path in paths)
    comparison = compare(a, b)
    assert comparison.paired
    assert comparison.mismatches == ()
    assert comparison.changed_settings == {}
    assert import_log(paths[0], output_dir=tmp_path).path == a.path
    other = import_log(paths[0], output_dir=tmp_path, score="match", **ANYTHING)
    assert other.path != a.path
    assert other.results[0].score.reward == 1.0
    with pytest.raises(NotComparable, match="inspect:grade' and 'inspect:match'"):
        compare(a, other)


def test_a_log_pairs_with_heldouts_own_run_of_the_same_questions(
    inspect_logs: dict[str, EvalLog], tmp_path: Path
) -> None:
    imported = import_log(inspect_logs["eval"].location, output_dir=tmp_path, **ANYTHING)
    own = run_own(IDS, "own", tmp_path)
    with pytest.raises(NotComparable) as refused:
        compare(imported, own)
    assert refused.value.kinds == ("scorer",)  # the questions are the same
    assert compare(imported, own, allow=["scorer"]).paired


def run_own(ids: list[str], name: str, folder: Path, *, resume: bool = False) -> EvalReport:
    samples = [Sample(i, {"question": f"What is {i}?"}, "hello", {"level": "hard"}) for i in ids]
    return heldout.run(
        samples,
        exact,
        endpoint=lambda _: "hello",
        experiment_name=name,
        output_dir=str(folder),
        resume=resume,
    )


def exact(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("exact", trajectory.answer == sample.ground_truth, weight=1.0),))


def test_a_headline_that_the_values_do_not_give_is_said(tmp_path: Path) -> None:
    epochs = inspect_ai.Epochs(2, "max")
    log = run_inspect(tmp_path / "logs", scorer=rate(), solver=generate(), epochs=epochs)
    report = import_log(log.location, output_dir=tmp_path)
    assert log.results is not None
    theirs = log.results.scores[0].metrics["accuracy"].value
    assert (theirs, report.summary["mean"]) == (1.0, 3.0)
    (differ,) = report.config["imported"]["own_results"]["differ"]
    assert (differ["log"], differ["run"]) == (1.0, 3.0)
    assert "accuracy(to_float=to_float), which cannot be applied to its values" in differ["why"]


def test_inspects_own_numbers_are_the_runs_where_both_count_alike(tmp_path: Path) -> None:
    data = MemoryDataset([InspectSample(id=i, input="Hi", target="hello") for i in range(3)])
    for reducer, compared, differs in (("mean", 2, []), ("max", 1, ["by_epoch accuracy (max)"])):
        log = run_inspect(
            tmp_path / reducer,
            dataset=data,
            solver=generate(),
            scorer=[by_epoch(), grade()],
            epochs=inspect_ai.Epochs(2, reducer),
        )
        own = import_log(log.location, output_dir=tmp_path).config["imported"]["own_results"]
        assert own["compared"] == compared
        assert [differ["name"] for differ in own["differ"]] == differs
        assert all("takes the max" in differ["why"] for differ in own["differ"])


def test_what_inspect_did_not_score_is_scored_by_rescoring(
    inspect_logs: dict[str, EvalLog], tmp_path: Path
) -> None:
    report = import_log(inspect_logs["eval"].location, output_dir=tmp_path, **ANYTHING)
    rescored = asyncio.run(
        rescore(
            report,
            lambda trajectory, sample: Score((Metric("h", "hello" in trajectory.answer, 1.0),)),
        )
    )
    by_id = {result.sample_id: result for result in rescored.results}
    assert by_id["raises"].error == "RuntimeError('the solver broke')"
    assert by_id["word"].score.reward == 1.0


def test_a_log_without_scores_is_refused_as_a_mean_and_kept_for_rescoring(tmp_path: Path) -> None:
    log = run_inspect(tmp_path / "logs", scorer=None)
    with pytest.raises(SystemicFailure, match="all 10 items errored.*heldout rescore") as refused:
        import_log(log.location, output_dir=tmp_path)
    kept = EvalReport.load(refused.value.run_dir or "")
    assert (kept.status, kept.summary["mean"], kept.summary["n_errors"]) == ("failed", None, 10)


def test_a_score_with_several_values_needs_one_that_is_the_reward(tmp_path: Path) -> None:
    one = MemoryDataset([InspectSample(id=7, input="Hi", target="x")])
    log = run_inspect(tmp_path / "logs", dataset=one, scorer=two_values(), solver=generate())
    (result,) = import_log(log.location, output_dir=tmp_path).results
    assert result.sample_id == "7"
    assert {m.name: (m.value, m.weight) for m in result.score.metrics} == {
        "two_values.a": (1, 1),
        "two_values.b": (0.25, 0),
        "two_values.noanswer": (0, 0),
    }
    (other,) = import_log(log.location, output_dir=tmp_path, score="two_values.b").results
    assert other.score.reward == 0.25
    with pytest.raises(SystemicFailure, match="no score 'c' of this attempt; it has two_values"):
        import_log(log.location, output_dir=tmp_path, score="c")


def test_images_and_messages_of_the_input_survive(tmp_path: Path) -> None:
    asked = [
        ChatMessageSystem(content="Be brief."),
        ChatMessageUser(content=[ContentText(text="What?"), ContentImage(image=PIXEL)]),
    ]
    data = MemoryDataset([InspectSample(id="a", input=asked, target=["x", "y"])])
    log = run_inspect(tmp_path / "logs", dataset=data, solver=generate(), scorer=match())
    a = import_log(log.location, output_dir=tmp_path)
    image = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "auto"}}
    content = [{"type": "text", "text": "What?"}, image]
    assert a.results[0].trajectory.messages[1].content == content
    system = {"role": "system", "content": "Be brief."}
    # Without the ids of messages, which are random: two logs have the same samples.
    messages = [system, {"role": "user", "content": content}]
    assert a.results[0].sample.input == {"messages": messages}
    assert a.results[0].sample.ground_truth == ["x", "y"]


def test_a_stopped_eval_says_what_is_missing_and_cannot_be_resumed(
    inspect_logs: dict[str, EvalLog], tmp_path: Path
) -> None:
    log = inspect_logs["eval"].model_copy()
    log.samples = (log.samples or [])[:8]
    log.status = "cancelled"
    path = tmp_path / "stopped.eval"
    inspect_ai.log.write_eval_log(log, str(path))
    report = import_log(path, output_dir=tmp_path, **ANYTHING)
    assert (report.status, report.summary["n"], report.summary["n_asked"]) == ("interrupted", 8, 20)
    assert report.info is not None
    assert report.info.reason == "Inspect ended the eval with status 'cancelled'"
    name = report.config["experiment_name"]
    with pytest.raises(ResumeMismatch, match=r"imported from stopped\.eval"):
        run_own(["plain"], name, tmp_path, resume=True)


def make_results() -> list[EvalResult]:
    """Results with everything that a run may hold."""
    calls = (ToolCall("1", "f", '{ "a":1}'), ToolCall("2", "g", "not JSON"))
    messages = (
        Message("system", "S"),
        Message("user", [{"type": "text", "text": "Q"}, {"type": "input_audio", "audio": "x"}]),
        Message("assistant", "an example"),
        Message("assistant", "", calls, reasoning="because"),
        Message("tool", "3", tool_call_id="1"),
        Message("assistant", "<b>4</b>"),
    )
    sample = Sample("s/1 é", {"question": "Q", "extra": [1]}, {"n": 4}, {"level": "hard"})
    trajectory = Trajectory(
        messages,
        Stop("limit", "max_turns", True, "length"),
        Usage(3, 4),
        timing=Timing(1.5, 2),
        outcome={"state": [1, None]},
        model_turns=(3, 5),
    )
    score = Score((Metric("a", True, 2.0), Metric("b", 0.25, 1.0, {"why": "x"}), Metric("c", -7)))
    judge = (OtherUsage("judge", "j", Usage(1, 1)),)
    scored = EvalResult(sample.id, sample, trajectory, score, {"own": 1}, other_usage=judge)
    failed = replace(scored, repeat=1, score=Score(), error="endpoint: 503", error_stage="endpoint")
    plain = Sample("2", {"prompt": "P"})
    bare = EvalResult("2", plain, Trajectory((Message("user", "P"), Message("assistant", "A"))))
    again = replace(bare, repeat=1)
    return [scored, failed, bare, again]


def test_an_exported_run_is_a_log_of_inspects_and_comes_back_the_same(tmp_path: Path) -> None:
    results = make_results()
    report = save(results, tmp_path)
    path = tmp_path / "run.eval"
    export_inspect(report, path)
    log = read_eval_log(str(path))  # which validates
    assert log.samples is not None
    assert (log.status, len(log.samples)) == ("success", len(results))
    assert log.results is not None
    means = {score.name: score.metrics["mean"].value for score in log.results.scores}
    assert means["reward"] == report.summary["mean_scored"]
    first = next(s for s in log.samples if s.id == "s/1 é" and s.epoch == 1)
    assert first.scores is not None
    assert {n: s.value for n, s in first.scores.items()} == {
        "reward": 0.75,
        "a": 1,
        "b": 0.25,
        "c": -7,
    }
    assert (first.limit and first.limit.type, first.messages[-1].text) == ("turn", "<b>4</b>")
    summaries = read_eval_log_sample_summaries(str(path))
    assert [s.error for s in summaries] == [None, "endpoint: 503", None, None]
    rescored = inspect_ai.score(log, match(), action="overwrite", display="none")
    assert len(rescored.samples or []) == len(results)

    back = import_log(path, output_dir=tmp_path / "back", **ANYTHING)
    assert list(back.results) == list(report.results)
    assert [r.trajectory.stop for r in back.results] == [r.trajectory.stop for r in results]
    assert back.summary == report.summary
    inspect_ai.log.write_eval_log(rescored, str(tmp_path / "rescored.eval"))
    scored_there = import_log(tmp_path / "rescored.eval", output_dir=tmp_path / "re", **ANYTHING)
    assert scored_there.results[0].score.metrics[0].name == "match"
    with pytest.raises(InvalidInput, match="exists already"):
        export_inspect(report, path)


def save(results: list[EvalResult], tmp_path: Path) -> EvalReport:
    from heldout.store.journal import JournalWriter
    from heldout.store.report import finish
    from heldout.store.run_dir import RunDir, RunInfo

    run = RunDir(tmp_path / "saved")
    run.make()
    writer = JournalWriter(run.journal)
    for place, result in enumerate(results):
        writer.append(place // 2, result)
    writer.close()
    finish(run, RunInfo.new({"experiment_name": "saved", "repeats": 2}, {}), len(results))
    return EvalReport.load(run.path)


def test_an_imported_log_is_exported_with_inspects_own_values(
    inspect_logs: dict[str, EvalLog], tmp_path: Path
) -> None:
    report = import_log(inspect_logs["eval"].location, output_dir=tmp_path, **ANYTHING)
    export_inspect(report, tmp_path / "again.eval")
    theirs = {(s.id, s.epoch): s for s in inspect_logs["eval"].samples or []}
    for sample in read_eval_log(str(tmp_path / "again.eval")).samples or []:
        before = theirs[sample.id, sample.epoch]
        assert [m.text for m in sample.messages] == [m.text for m in before.messages]
        if sample.error is None:
            assert sample.scores is not None
            assert before.scores is not None
            assert sample.scores["match"].value == before.scores["match"].value
            assert sample.scores["match"].answer == before.scores["match"].answer


# --- lm-eval ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lm_eval_logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    class Shortest(LM):  # type: ignore[misc]
        def loglikelihood(self, requests: Any, **_: Any) -> Any:
            return [(-float(len(request.args[1])), False) for request in requests]

        def loglikelihood_rolling(self, requests: Any, **_: Any) -> Any:
            raise NotImplementedError

        def generate_until(self, requests: Any, **_: Any) -> Any:
            return [f"It is {i}" if i % 2 else str(2 * i) for i, _ in enumerate(requests)]

    folder = tmp_path_factory.mktemp("lm-eval")
    golds = [0, 1, 2, 9]
    rows = [
        {"q": f"{i}+{i}", "a": str(2 * i), "choices": ["1", "22", "333"], "gold": golds[i]}
        for i in range(4)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {
            "data_files": {"test": str(folder / "rows.jsonl")},
            "cache_dir": str(folder / "cache"),
        },
        "test_split": "test",
        "doc_to_text": "{{q}}=",
    }
    mean_of = {"aggregation": "mean", "higher_is_better": True}
    tasks = [
        {
            **common,
            "task": "sums",
            "output_type": "generate_until",
            "doc_to_target": "{{a}}",
            "generation_kwargs": {"until": ["\n"], "temperature": 0.5, "max_gen_toks": 9},
            "metric_list": [{"metric": "bleu"}, {"metric": "exact_match", **mean_of}],
            "filter_list": [
                {"name": "strict", "filter": [{"function": "take_first"}]},
                {
                    "name": "flex",
                    "filter": [
                        {"function": "regex", "regex_pattern": r"(\d+)"},
                        {"function": "take_first"},
                    ],
                },
            ],
        },
        {
            **common,
            "task": "choices",
            "output_type": "multiple_choice",
            "doc_to_target": "gold",
            "doc_to_choice": "choices",
            "metric_list": [{"metric": "acc", **mean_of}, {"metric": "acc_norm", **mean_of}],
        },
    ]
    tracker = EvaluationTracker(output_path=str(folder / "out"))
    results = lm_eval.simple_evaluate(
        model=Shortest(),
        tasks=tasks,
        log_samples=True,
        task_manager=TaskManager(include_defaults=False),
        evaluation_tracker=tracker,
        bootstrap_iters=0,
    )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for task in results["configs"]:
        tracker.save_results_samples(task_name=task, samples=samples[task])
    return folder / "out", results


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_lm_eval_samples_become_runs_without_the_metrics_over_all_documents(
    lm_eval_logs: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, theirs = lm_eval_logs
    logs = find_logs([folder])
    choices, sums = (import_log(log.path, output_dir=tmp_path, **ANYTHING) for log in logs)
    assert sums.config["imported"]["left_out"] == ["bleu,strict", "bleu,flex"]
    assert sums.config["sampling"] == {"temperature": 0.5, "max_tokens": 9, "stop": ["\n"]}
    first, second, *_ = sums.results
    assert [m.text for m in first.trajectory.messages] == ["0+0=", "0"]
    assert (first.sample.input, first.sample.ground_truth) == ({"prompt": "0+0="}, "0")
    for name in ("exact_match,strict", "exact_match,flex"):
        assert sums.summary[f"metric_{name}"] == theirs["results"]["sums"][name]
    assert second.score.metrics[1].metadata == {"extracted": "1"}
    assert choices.results[0].trajectory.outcome == {
        "likelihoods": [
            {"text": " 1", "logprob": -2.0, "greedy": False},
            {"text": " 22", "logprob": -3.0, "greedy": False},
            {"text": " 333", "logprob": -4.0, "greedy": False},
        ]
    }
    assert choices.results[1].sample.ground_truth == "22"
    assert [r.score.reward for r in choices.results if r.ok] == [1.0, 0.0, 0.0]
    # lm-eval counts a right answer that is none of the choices as 0.
    assert choices.results[3].error == (
        "score_fn: the right answer is 9, and there are 3 choices; lm-eval scores such a document 0"
    )
    norm = import_log(logs[0].path, output_dir=tmp_path, score="acc_norm", **ANYTHING)
    assert norm.config["imported"]["reward"] == "acc_norm"
    assert sums.config["imported"]["own_results"] == {"compared": 2, "differ": []}
    own = choices.config["imported"]["own_results"]  # its mean, too, counts the error as 0
    assert [(d["name"], d["log"], d["run"]) for d in own["differ"]] == [
        ("acc_norm,none", 0.25, 1 / 3)
    ]
    with pytest.raises(InvalidInput, match="has no metric 'f1'; it has acc, acc_norm"):
        import_log(logs[0].path, output_dir=tmp_path, score="f1")
    refuse_to_lose_a_line(logs[0].path, tmp_path)


SUMS: dict[str, Any] = {
    "task": "sums",
    "dataset_path": "json",
    "test_split": "test",
    "doc_to_text": "{{q}}=",
    "doc_to_target": "{{a}}",
    "output_type": "generate_until",
    "generation_kwargs": {"until": ["\n"], "max_gen_toks": 9, "do_sample": False},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    "filter_list": [
        {"name": name, "filter": [{"function": "take_first"}]} for name in ("strict", "flex")
    ],
}


def with_functions(task: dict[str, Any]) -> dict[str, Any]:
    return {**task, "process_results": lambda doc, answers: {"exact_match": len(answers[0])}}


def log_with_lm_eval(task: dict[str, Any], folder: Path, **settings: Any) -> Path:
    """A log that lm-eval writes of a model which adds up right where the sum is even."""
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    class Adder(LM):  # type: ignore[misc]
        def loglikelihood(self, requests: Any, **_: Any) -> Any:
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

        def generate_until(self, requests: Any, **_: Any) -> Any:
            return [add_up(request.args[0]) for request in requests]

    tracker = EvaluationTracker(output_path=str(folder / "out"))
    results = lm_eval.simple_evaluate(
        model=Adder(),
        tasks=[deepcopy(task)],
        log_samples=True,
        task_manager=TaskManager(include_defaults=False),
        evaluation_tracker=tracker,
        bootstrap_iters=0,
        **settings,
    )
    assert results is not None
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    tracker.save_results_samples(task_name="sums", samples=samples["sums"])
    (log,) = find_logs([folder / "out"])
    return log.path


def add_up(prompt: str) -> str:
    first, second = re.findall(r"(\d+)\+(\d+)=$", prompt)[0]
    return str(int(first) + int(second) + int(first) % 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("unlike", "ours", "theirs"),
    [
        (None, {}, {}),
        (None, {"num_fewshot": 2, "metric": "exact_match,flex"}, {"num_fewshot": 2}),
        (
            "scorer",
            {
                "config": {
                    "output_type": "generate_until",
                }
            },
            {},
        ),
        ("scorer", {"system_prompt": "Add up."}, {}),
        ("scorer", {"fewshot_seed": 7}, {}),
        ("scorer", {"functions": True}, {}),
        ("scorer", {"installed": "0.4.12"}, {}),
    ],
)
def test_a_log_of_lm_eval_is_compared_with_a_run_of_the_same_task_here(
    unlike: str | None,
    ours: dict[str, Any],
    theirs: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [{"q": f"{i}+{i}", "a": str(2 * i)} for i in range(6)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "shots.jsonl").write_text('{"q": "7+1", "a": "8"}\n{"q": "8+1", "a": "9"}')
    files = {"test": str(tmp_path / "rows.jsonl"), "train": str(tmp_path / "shots.jsonl")}
    kwargs = {"data_files": files, "cache_dir": str(tmp_path / "cache")}
    task: dict[str, Any] = {**SUMS, "dataset_kwargs": kwargs, "training_split": "train"}
    functions, installed = ours.pop("functions", False), ours.pop("installed", None)
    own_task = {**task, "metadata": {"version": 2}} if ours.pop("config", None) else task
    if functions:
        task = own_task = with_functions(task)
    log = log_with_lm_eval(task, tmp_path, **theirs)
    metric = ours.get("metric", "exact_match,strict")
    imported = import_log(log, output_dir=tmp_path, score=metric, **ANYTHING)
    if installed is not None:
        imported.config["imported"]["published"]["packages"]["lm_eval"] = installed
    report = heldout.run(
        from_lm_eval(own_task, **ours),
        endpoint=lambda messages: add_up(messages[-1].text),
        output_dir=str(tmp_path / "own"),
    )
    if unlike is None:
        for comparison in (compare(imported, report), compare(report, imported)):
            assert (comparison.paired, comparison.mismatches) == (True, ())
            assert comparison.overall.difference == 0
            assert "prepare_messages" not in comparison.changed_settings
        assert 0 < report.summary["mean"] < 1
        return
    with pytest.raises(NotComparable) as refused:
        compare(imported, report, allow=["samples"])
    assert {*refused.value.kinds} == {unlike}


def refuse_to_lose_a_line(path: Path, folder: Path) -> None:
    """A file that was cut off in its last line is an interrupted run, whatever is beside it."""
    whole = import_log(path, output_dir=folder / "whole", **ANYTHING)
    assert whole.status == "complete"
    path.write_bytes(path.read_bytes()[:-20])
    cut = import_log(path, output_dir=folder / "cut", **ANYTHING)
    assert (cut.status, cut.summary["n"]) == ("interrupted", whole.summary["n"] - 1)
    assert cut.info is not None
    assert "is cut off" in (cut.info.reason or "")


# --- verifiers ----------------------------------------------------------------------------------


def chat_completion(request: Request) -> dict[str, Any]:
    if "no-model" in request.text:
        return {"error": {"message": "the model is gone"}}
    message = {"role": "assistant", "content": "0"}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    made = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return {**made, "choices": [choice], "usage": usage}


def test_traces_of_verifiers_become_a_run_in_which_failures_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "log_packages")
    monkeypatch.setenv("LOG_TEST_KEY", "none")
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig

    with FaultyServer() as server:
        server.script(then=status(200, chat_completion))
        agent = {"harness": {"id": "vf_log_sums"}, "runtime": {"type": "subprocess"}}
        config = EvalConfig.model_validate(
            {
                "env": {"taskset": {"id": "vf_log_sums"}, "agent": agent},
                "model": "m",
                "client": {"base_url": server.url, "api_key_var": "LOG_TEST_KEY"},
                "num_rollouts": 2,
                "rich": None,
                "push": False,
                "output_dir": tmp_path / "out",
                "run": {"dir": "sums"},
                "sampling": {"temperature": 0.5},
            }
        )
        episodes = asyncio.run(run_eval(config))
    sys.modules.pop("vf_log_sums", None)
    called_ok = {e.traces[0].task.data.id for e in episodes if e.traces[0].ok}
    assert called_ok == {"right", "wrong", "slow-grader", "no-model"}  # as verifiers sees it
    report = import_log(tmp_path / "out", output_dir=tmp_path / "runs", **ANYTHING)
    assert (report.config["repeats"], report.config["endpoint"]) == (2, {"model": "m"})
    assert report.config["sampling"] == {"temperature": 0.5}
    results = {result.sample_id: result for result in report.results}
    assert {id: r.score.reward for id, r in results.items() if r.ok} == {"right": 0.7, "wrong": 0}
    assert results["right"].score["words"] == 1
    assert [m.text for m in results["right"].trajectory.messages] == ["right: 0 + 0?", "0"]
    assert results["right"].trajectory.usage == Usage(5, 1)
    errors = {id: result.error for id, result in results.items() if not result.ok}
    assert errors["slow-grader"] == "log: it ended by scoring_timeout"
    assert "the grader broke" in (errors["broken-grader"] or "")
    assert "ProviderError" in (errors["no-model"] or "")
    refuse_to_lose_a_line(next((tmp_path / "out").rglob("traces.jsonl")), tmp_path)
