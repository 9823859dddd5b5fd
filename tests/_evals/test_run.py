"""`heldout.run`: an eval as a plain call."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import heldout
from heldout import (
    Completion,
    EvalConfig,
    EvalDefinition,
    EvalReport,
    Message,
    Sample,
    Sampling,
    Trajectory,
    evaluate,
)
from heldout.datasets import to_samples
from heldout.errors import InvalidInput, SystemicFailure
from heldout.reporting.blocks import Span
from heldout.reporting.summaries import describe_report

SAMPLES = [Sample(f"q{i}", {"question": f"Is {i} even?"}, str(i % 2 == 0)) for i in range(4)]


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def yes(messages: list[Message]) -> str:
    return "True"


def no(messages: list[Message]) -> str:
    return "False"


def is_right(trajectory: Trajectory, sample: Sample) -> bool:
    return trajectory.answer == sample.ground_truth


def test_a_plain_call_gives_a_report() -> None:
    report = heldout.run(SAMPLES, is_right, endpoint=yes)
    assert report.summary["mean"] == 0.5
    assert report.summary["n"] == 4
    assert report.status == "complete"


def test_it_works_where_an_event_loop_is_running() -> None:
    async def notebook_cell() -> EvalReport:
        return heldout.run(SAMPLES, is_right, endpoint=yes)

    assert asyncio.run(notebook_cell()).summary["mean"] == 0.5


def test_every_call_has_a_directory_of_its_own_and_the_name_means_the_latest() -> None:
    first = heldout.run(SAMPLES, is_right, endpoint=yes, experiment_name="parity")
    second = heldout.run(SAMPLES, lambda t, s: 1.0, endpoint=yes, experiment_name="parity")
    assert first.path.parent == second.path.parent == Path("outputs/evals/parity")
    assert EvalReport.load("parity").summary["mean"] == 1.0
    assert EvalReport.load("parity@1").path == first.path
    assert EvalReport.load(first.path).summary == first.summary


MATH = [
    {
        "problem": f"What is {n} + {n}?",
        "solution": f"We add: {2 * n}.",
        "answer": f"{2 * n}",
        "subject": "Prealgebra",
        "level": 1,
        "unique_id": f"test/{n}.json",
    }
    for n in range(3)
]
"""Rows as MATH-500 has them."""


def test_rows_of_math_are_asked_as_they_are_and_the_report_says_which_field(
    tmp_path: Path,
) -> None:
    asked: list[str] = []

    def model(messages: Any) -> str:
        asked.append(messages[-1].text)
        return "4"

    def right(trajectory: Trajectory, sample: Sample) -> bool:
        return trajectory.answer == sample.input["answer"]

    samples = [Sample(row["unique_id"], row) for row in MATH]
    for given in (samples, iter(samples)):
        report = heldout.run(given, right, endpoint=model, max_concurrent=1)
        assert asked == [row["problem"] for row in MATH]
        assert report.summary["mean"] == 1 / 3
        assert report.config["question_fields"] == ["problem"]
        assert describe_report(report).parts[-1] == Span(", question from problem", "dim")
        asked.clear()
    plain = heldout.run(SAMPLES, is_right, endpoint=yes)
    assert "question_fields" not in plain.config


@pytest.mark.parametrize("is_stream", [False, True])
def test_rows_whose_question_cannot_be_told_are_refused_once_before_the_first_call(
    tmp_path: Path, is_stream: bool
) -> None:
    asked: list[Any] = []
    rows = [{key: row[key] for key in ("solution", "answer")} for row in MATH]
    samples = to_samples(rows, ground_truth="answer")
    given = iter(samples) if is_stream else samples
    with pytest.raises(InvalidInput) as refused:
        heldout.run(given, is_right, endpoint=asked.append)
    assert "sample '0': input has no question" in str(refused.value)
    assert "row['" not in str(refused.value), "an answer was proposed as the question"
    assert asked == []
    assert not list(tmp_path.glob("outputs/evals/*"))


def test_a_run_that_is_resumed_by_its_path_reports_itself_and_no_later_run() -> None:
    config = EvalConfig(endpoint=yes, experiment_name="quiz", resume=True, progress=False)
    own = asyncio.run(evaluate(SAMPLES, config, is_right))
    later = heldout.run(SAMPLES, lambda t, s: 1.0, endpoint=yes, experiment_name="quiz")
    assert own.summary["mean"] == 0.5
    assert later.summary["mean"] == 1.0
    again = asyncio.run(evaluate(SAMPLES, config, is_right))
    assert (again.path, again.summary) == (own.path, own.summary)


def test_settings_go_by_their_plain_names() -> None:
    report = heldout.run(
        SAMPLES, is_right, endpoint=yes, max_samples=2, repeats=3, max_tokens=7, temperature=0.5
    )
    assert report.summary["n"] == 6
    assert report.config["sampling"]["max_tokens"] == 7
    assert report.config["sampling"]["temperature"] == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_sample": 2}, "there is no setting 'max_sample'; did you mean max_samples?"),
        ({"limit": 2, "max_samples": 2}, "run: limit and max_samples are one setting, and both"),
        (
            {"repeats": 2, "epochs": 2},
            "run: repeats and epochs are one setting, and both are given",
        ),
        ({"model": yes}, "run: endpoint and model are one setting, and both are given; give one"),
        ({"experiment_name": "run", "name": "mine"}, "experiment_name and name are one setting"),
        ({"scorer": is_right}, "did you mean score_fn?"),
        ({"zzz": 2}, "there is no setting 'zzz'; there are cache,"),
        ({"max_tokens": 0}, "sampling.max_tokens must be a whole number >= 1"),
        ({"experiment_name": "a/b"}, "the name a/b: @ and / are for a run that exists"),
        ({"experiment_name": "a@2"}, "the name a@2: @ and / are for a run that exists"),
        ({"experiment_name": "?"}, "experiment_name becomes a directory"),
        (
            {"score_fn": SAMPLES},
            "score_fn must be a function (trajectory, sample) -> Score, got list",
        ),
        ({"samples": [{"question": "?"}]}, "heldout.datasets.to_samples makes them"),
        ({"endpoint": ""}, "hf:PATH, vllm:PATH, smollm2"),
    ],
)
def test_what_is_no_setting_is_refused_before_anything_is_made(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as refused:
        heldout.run(**{"samples": SAMPLES, "score_fn": is_right, "endpoint": yes, **settings})
    assert message in str(refused.value)
    assert not list(tmp_path.glob("outputs/evals/*"))


def test_settings_are_taken_by_their_names_on_the_command_line_too() -> None:
    report = heldout.run(SAMPLES, is_right, model=yes, name="mine", limit=1, epochs=2)
    stored = report.config
    assert (stored["max_samples"], stored["repeats"]) == (1, 2)
    assert stored["experiment_name"].startswith("mine/")
    assert stored["endpoint"]["name"] == "yes"


def test_a_score_function_that_always_raises_leaves_answers_to_rescore() -> None:
    def broken(trajectory: Trajectory, sample: Sample) -> bool:
        raise ValueError("a bug")

    with pytest.raises(SystemicFailure, match="4 × score_fn: ValueError: a bug.*`heldout rescore`"):
        heldout.run(SAMPLES, broken, endpoint=yes)


def test_resume_goes_on_with_the_latest_run_of_the_name() -> None:
    working: list[bool] = []

    def flaky(messages: list[Message]) -> str:
        if not working and "3" in messages[-1].text:
            raise OSError("down")
        return "True"

    with pytest.raises(SystemicFailure) as first:
        heldout.run(SAMPLES, is_right, endpoint=flaky, experiment_name="flaky")
    working.append(True)
    resumed = heldout.run(SAMPLES, is_right, endpoint=flaky, experiment_name="flaky", resume=True)
    assert resumed.path == first.value.run_dir
    assert resumed.summary["n_errors"] == 0
    fresh = heldout.run(SAMPLES, is_right, endpoint=flaky, experiment_name="other", resume=True)
    assert fresh.summary["n"] == 4


def test_an_executor_runs_the_items_elsewhere() -> None:
    class ClusterOptions:
        async def evaluate(self, definition: EvalDefinition, config: EvalConfig) -> EvalReport:
            assert config.max_turns == 3  # workers get the config, and not the definition
            return await evaluate(definition, replace(config, note="elsewhere"))

    definition = EvalDefinition(SAMPLES, is_right, max_turns=3)
    report = heldout.run(definition, endpoint=yes, executor=ClusterOptions())
    assert report.config["note"] == "elsewhere"


def test_a_refusal_is_not_hidden_by_the_frames_of_the_engine() -> None:
    with pytest.raises(InvalidInput, match="already used") as refused:
        heldout.run([*SAMPLES, SAMPLES[0]], is_right, endpoint=yes)
    assert not [*Path().glob("outputs/evals/*")]
    assert [frame.name for frame in refused.traceback] == [
        "test_a_refusal_is_not_hidden_by_the_frames_of_the_engine", "run",
    ]  # fmt: skip


# The system may hand a signal to any thread that does not block it. Python's handler runs in the
# main thread, which then sleeps on: as where a Ctrl-C comes just before it falls asleep.
TO_ANOTHER_THREAD = """
import signal, threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
"""


@pytest.mark.parametrize("before", ["", TO_ANOTHER_THREAD], ids=["", "that wakes nobody"])
def test_ctrl_c_ends_it_and_leaves_a_run_to_resume(tmp_path: Path, before: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        before
        + textwrap.dedent(
            """
            import anyio, sys, heldout
            async def answer(messages):
                if "2" in messages[-1].text:
                    print("waiting", flush=True)
                    await anyio.sleep_forever()
                return "yes"
            samples = [heldout.Sample(str(i), {"question": str(i)}) for i in range(4)]
            try:
                heldout.run(samples, lambda t, s: True, endpoint=answer, max_concurrent=1)
            except KeyboardInterrupt:
                print("interrupted")
            """
        )
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waiting\n"
    os.kill(process.pid, signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "interrupted\n"
    report = EvalReport.load("run")
    assert report.status == "interrupted"
    assert report.summary["n"] == 2


def test_loading_a_file_says_which_directory_to_load() -> None:
    report = heldout.run(SAMPLES, is_right, endpoint=yes)
    with pytest.raises(InvalidInput, match=f"is a file; .* the run directory, {report.path}$"):
        EvalReport.load(report.path / "results.jsonl")


def test_a_temperature_of_0_is_given_though_it_is_the_default(tmp_path: Path) -> None:
    asked: list[float | None] = []

    class Greedy:
        async def complete(self, messages: Any, sampling: Sampling, tools: Any) -> Completion:
            asked.append(sampling.temperature)
            return Completion(Message("assistant", "yes"))

        def describe(self) -> dict[str, Any]:
            return {"kind": "greedy"}

        async def close(self) -> None: ...

    own = EvalDefinition(SAMPLES[:1], is_right, sampling=Sampling(temperature=0.7))
    for given in ({}, {"temperature": 0}, {"sampling": Sampling(temperature=0.0)}, {"seed": 1}):
        heldout.run(own, endpoint=Greedy(), output_dir=tmp_path, progress=False, **given)
    assert asked == [0.7, 0, 0, 0.7]
