"""A rubric: named functions with weights, as one score function."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import torch

from heldout import EvalConfig, Message, Metric, Sample, Score, Stop, Trajectory, evaluate
from heldout.analysis import compare
from heldout.errors import (
    FatalEndpointError,
    InvalidInput,
    NotComparable,
    ResumeMismatch,
    ScoringFailed,
    SystemicFailure,
)
from heldout.scoring import (
    Grade,
    Rubric,
    grade_captured,
    grade_json,
    grade_number,
    grade_pattern,
    grader,
    has_length,
    has_tags,
    is_json,
    part,
)
from heldout.store.fingerprint import describe_callable
from tests.conftest import RunEval, both_loops, make_samples

SAMPLE = Sample("s", {"question": "2 + 2?"}, 4, {"level": "easy"})


def said(text: str, *, truncated: bool = False) -> Trajectory:
    return Trajectory(
        (Message("user", "2 + 2?"), Message("assistant", text)), Stop(truncated=truncated)
    )


def score(rubric: Rubric, text: str = "Answer: 4", **how: Any) -> Score:
    given = rubric(said(text, **how), SAMPLE)
    assert isinstance(given, Score)
    return given


@pytest.fixture
def wait(backend: str) -> Callable[..., Any]:
    def run(rubric: Rubric, text: str = "Answer: 4") -> Any:
        async def settled() -> Any:
            given = rubric(said(text), SAMPLE)
            assert inspect.isawaitable(given)
            return await given

        return anyio.run(settled, backend=backend)

    return run


# --- What a part is given, and what it gives ----------------------------------------------------


def test_a_part_takes_what_it_needs_by_name() -> None:
    seen: dict[str, Any] = {}

    def all_of_it(trajectory: Any, target: Any, text: Any, sample: Any, answer: Any) -> bool:
        seen.update(trajectory=trajectory, target=target, text=text, sample=sample, answer=answer)
        return True

    def nothing() -> bool:
        return True

    score(Rubric(all_of_it, nothing), "<think>hm</think> Four ")
    assert seen["answer"] == "Four"
    assert seen["text"] == "<think>hm</think> Four "
    assert seen["target"] == 4
    assert seen["sample"] is SAMPLE
    assert seen["trajectory"].messages[0].text == "2 + 2?"


@pytest.mark.parametrize(
    ("text", "truncated"), [("<think>Answer: 4", False), ("Answer: 4", True), ("", False)]
)
def test_reasoning_that_never_ends_and_a_cut_off_turn_are_an_empty_answer(
    text: str, truncated: bool
) -> None:
    answers = []
    score(Rubric(part(lambda answer: answers.append(answer) or 0.0, name="x")), text,
          truncated=truncated)  # fmt: skip
    assert answers == [""]
    assert score(Rubric(grade_number), text, truncated=truncated).reward == 0.0


def test_a_conversation_without_a_model_turn_has_an_empty_answer() -> None:
    rubric = Rubric(part(lambda answer, text: (answer, text) == ("", ""), name="empty"))
    given = rubric(Trajectory((Message("user", "hm"),)), SAMPLE)
    assert isinstance(given, Score)
    assert given.reward == 1.0


@pytest.mark.parametrize(
    "value", [True, 1, 1.0, Fraction(1), np.float32(1), np.bool_(True), np.int64(1), np.array(1.0),
     torch.tensor(1.0)],
    ids=repr,
)  # fmt: skip
def test_a_number_or_a_bool_is_a_metric_of_the_parts_name_and_weight(value: Any) -> None:
    [metric] = score(Rubric(part(lambda: value, name="right", weight=2))).metrics
    assert metric == Metric("right", 1.0, 2.0)


@pytest.mark.parametrize(
    "value", [None, "1", b"1", [1], {}, [True, Metric("a", 1)], np.array([1.0]), 1j, math.nan,
     Decimal(1)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_anything_else_is_refused_with_the_name_of_the_part(value: Any) -> None:
    with pytest.raises(ScoringFailed, match="^right: "):
        score(Rubric(part(lambda: value, name="right")))


def test_metrics_keep_names_and_weights_of_their_own() -> None:
    two = (Metric("a", 1.0, 3.0), Metric("b", 0.5))
    for given in (two, list(two), Score(two)):
        assert score(Rubric(part(lambda given=given: given, name="x"))).metrics == two
    assert score(Rubric(part(lambda: two[0], name="x"))).metrics == two[:1]
    nothing = part(lambda: (), name="x")  # to measure
    assert score(Rubric(nothing, part(lambda: two[0], name="y"))).metrics == two[:1]


def test_a_weight_multiplies_those_of_metrics_and_0_only_tracks() -> None:
    def two() -> list[Metric]:
        return [Metric("a", 1.0, 3.0, {"why": "so"}), Metric("b", 0.5)]

    assert score(Rubric(part(two, weight=2))).metrics == (
        Metric("a", 1.0, 6.0, {"why": "so"}),
        Metric("b", 0.5),
    )
    tracked = score(Rubric(part(two, weight=0), part(lambda: 0.25, name="c")))
    assert tracked.reward == 0.25
    assert [metric.weight for metric in tracked.metrics] == [0.0, 0.0, 1.0]


def test_a_weight_is_not_lost_on_metrics_that_have_none() -> None:
    [metric] = score(Rubric(part(lambda: Metric("a", 1.0), name="x", weight=2))).metrics
    assert metric.weight == 2.0
    unclear = [Metric("a", 1.0), Metric("b", 1.0)]
    with pytest.raises(ScoringFailed, match="x: it is to weigh 2, and none of its 2 metrics"):
        score(Rubric(part(lambda: unclear, name="x", weight=2)))
    assert score(Rubric(part(lambda: unclear, name="x"))).metrics == tuple(unclear)


def test_options_are_handed_to_the_function() -> None:
    assert score(Rubric(part(grade_number, relative=0.1)), "Answer: 4.2").reward == 1.0
    assert score(Rubric(part(grade_number, relative=0.01)), "Answer: 4.2").reward == 0.0
    bound = part(lambda answer, target: answer == target, name="x", target="Answer: 4")
    assert score(Rubric(bound)).reward == 1.0


# --- What cannot be meant -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Rubric(), "at least one part"),
        (lambda: Rubric(3), "must be a function, got 3"),  # type: ignore[arg-type]
        (
            lambda: Rubric(part(len, weight=0, name="a", obj="x")),
            "does not say what it takes by name",
        ),
        (lambda: part(lambda a, b: 1, name="x"), "asks for 'a'. A part may ask for answer, text"),
        (lambda: part(lambda: 1), "part(function, name='correct') names it"),
        (lambda: part(grade_number, tolerance=1), "no option 'tolerance'; it takes answer, target"),
        (lambda: part(grade_number, weight=-1), "weight must be a number >= 0, got -1"),
        (lambda: part(grade_number, weight=math.nan), "weight must be a number >= 0"),
        (lambda: Rubric(grade_number, grade_number), "two parts are named 'number'"),
        (lambda: Rubric(part(grade_number, weight=0)), "no part counts"),
        (lambda: part(dict, name="x"), "does not say what it takes"),
        (lambda: part(grade_pattern, pattern="(?<=a)b("), "part 'pattern': pattern '(?<=a)b('"),
        (lambda: part(grade_captured, pattern="("), "part 'captured': pattern '('"),
        (lambda: part(grade_json, schema={"type": "objekt"}), "part 'json': "),
        (lambda: part(has_length, unit="word"), "unit must be characters, words or lines"),
        (lambda: part(is_json, kind="dict"), "kind must be any, object or list"),
        (lambda: part(has_tags, tags="answer"), "tags must be names such as"),
    ],
)
def test_a_rubric_that_cannot_be_meant_is_refused_when_it_is_made(
    make: Callable[[], Any], match: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        make()
    assert match in str(refused.value)


# --- Async parts --------------------------------------------------------------------------------


@both_loops
def test_async_parts_run_at_the_same_time(wait: Callable[..., Any]) -> None:
    under_way, most = 0, 0

    async def slow() -> float:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        under_way -= 1
        return 1.0

    rubric = Rubric(part(slow, name="a"), part(lambda: 0, name="p"), part(slow, name="b"))
    given = wait(rubric)
    assert [(m.name, m.value) for m in given.metrics] == [("a", 1.0), ("p", 0.0), ("b", 1.0)]
    assert most == 2


def test_a_plain_function_may_return_something_to_await(wait: Callable[..., Any]) -> None:
    async def later() -> Grade:
        return Grade(1.0, "4")

    assert wait(Rubric(part(lambda: later(), name="a"))).metrics[0].metadata == {"extracted": "4"}


@both_loops
def test_one_that_raises_is_the_error_and_the_others_are_given_up(
    wait: Callable[..., Any],
) -> None:
    finished = []

    async def breaks() -> float:
        await anyio.lowlevel.checkpoint()
        raise ValueError("no")

    async def slow() -> float:
        await anyio.sleep(60)
        finished.append(1)
        return 1.0

    with pytest.raises(ScoringFailed, match="^b: ValueError: no$") as failed:
        wait(Rubric(part(slow, name="a"), part(breaks, name="b")))
    assert isinstance(failed.value.__cause__, ValueError)
    assert finished == []


def test_a_plain_part_that_raises_leaves_nothing_unawaited(wait: Callable[..., Any]) -> None:
    async def never() -> float:
        return 1.0

    rubric = Rubric(part(never, name="a"), part(lambda: 1 / 0, name="b"))
    with pytest.raises(ScoringFailed, match="^b: ZeroDivisionError: division by zero$"):
        rubric(said("x"), SAMPLE)  # warnings are errors: a coroutine left over would be one


def test_sys_exit_is_not_swallowed() -> None:
    with pytest.raises(SystemExit):
        score(Rubric(part(lambda: exit(3), name="a")))


# --- In an eval ---------------------------------------------------------------------------------


def test_a_part_that_raises_is_that_items_error_with_name_and_line(run_eval: RunEval) -> None:
    def picky(answer: str) -> float:
        if answer == "2":
            raise LookupError("not two")
        return 1.0

    report = run_eval(make_samples(4), Rubric(picky, part(len_of, weight=0)))
    assert report.summary["n_errors"] == 1
    error = report.results[2].error
    assert error is not None
    assert error.startswith("score_fn: picky: LookupError: not two (test_rubric.py, line ")
    assert report.results[1].score["picky"] == 1.0


def len_of(answer: str) -> int:
    return len(answer)


def test_a_judge_that_refuses_every_request_stops_the_run_and_a_users_own_error_does_not(
    run_eval: RunEval,
) -> None:
    async def judge() -> float:
        raise FatalEndpointError("401: no such key")

    inner = Rubric(part(judge, name="judge"))
    outer = Rubric(part(lambda trajectory, sample: inner(trajectory, sample), name="outer"))
    for name, rubric, path in (("inner", inner, "judge: "), ("outer", outer, "outer: judge: ")):
        said = f"the score function calls cannot answer any request.*{path}.*401"
        with pytest.raises(SystemicFailure, match=said):
            run_eval(make_samples(50), rubric, max_concurrent=1, experiment_name=name)

    def own(answer: str) -> float:
        if answer == "1":
            raise ValueError("my own") from FatalEndpointError("401")
        return 1.0

    report = run_eval(make_samples(3), Rubric(own), experiment_name="own")
    assert report.summary["n_errors"] == 1


# --- Identity -----------------------------------------------------------------------------------


def identity(*parts: Any) -> Any:
    return describe_callable(Rubric(*parts))


def test_what_a_rubric_is_known_by_is_stored_with_the_report(run_eval: RunEval) -> None:
    rubric = Rubric(part(grade_number, name="correct", weight=2, relative=0.5), len_of)
    report = run_eval(make_samples(2), rubric)
    assert report.path is not None
    from heldout.store.run_dir import RunDir

    stored = RunDir(report.path).read_info().functions["score_fn"]
    assert stored["name"] == "Rubric"
    correct, length = stored["parts"]
    assert correct == {
        "name": "correct",
        "weight": 2,
        "function": "grade_number",
        "version": 7,
        "options": {"relative": 0.5},
    }
    assert (length["name"], length["function"]) == ("len_of", "len_of")
    assert len(length["source"]) == 16


def test_another_name_weight_option_version_or_code_is_another_rubric() -> None:
    def one(answer: str) -> float:
        return 1.0

    def two(answer: str) -> float:
        return 2.0

    kinds = [
        identity(part(one, name="a")),
        identity(part(one, name="b")),
        identity(part(one, name="a", weight=2)),
        identity(part(two, name="a")),
        identity(part(one, name="a", version=1)),
        identity(part(one, name="a", version=2)),
        identity(part(grade_number, name="a")),
        identity(part(grade_number, name="a", relative=0.1)),
        identity(part(functools.partial(grade_number, relative=0.1), name="a")),
        identity(part(one, name="a"), part(two, name="b")),
    ]
    sources = [kind["source"] for kind in kinds]
    assert len({*sources}) == len(sources)


def test_a_ready_made_grader_is_known_by_its_version_and_not_its_code() -> None:
    def make(version: int, value: float) -> Callable[..., float]:
        @grader(version)
        def grade_it(answer: str) -> float:
            return value

        return grade_it

    assert identity(make(1, 0.5))["source"] == identity(make(1, 0.7))["source"]
    assert identity(make(1, 0.5))["source"] != identity(make(2, 0.5))["source"]


def test_a_score_function_that_uses_a_grader_is_another_with_another_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def by_hand(trajectory: Trajectory, sample: Sample) -> Score:
        return Score((grade_number(trajectory.answer, 4).metric("n", 1.0),))

    before = describe_callable(by_hand)
    monkeypatch.setattr(grade_number, "__heldout_version__", 99)
    assert describe_callable(by_hand) != before


def test_a_part_that_says_what_it_is_known_by_is_believed() -> None:
    class Judge:
        name = "equal"

        def __init__(self, model: str) -> None:
            self.model = model

        def identity(self) -> dict[str, Any]:
            return {"model": self.model}

        async def __call__(self, answer: str) -> float:
            return 1.0

    [stored] = identity(Judge("a"))["parts"]
    assert stored == {"name": "equal", "function": "Judge", "identity": {"model": "a"}}
    assert identity(Judge("a"))["source"] != identity(Judge("b"))["source"]
    with pytest.raises(InvalidInput, match="names its metrics itself, 'equal'; name it where"):
        part(Judge("a"), name="other")


def test_reports_scored_by_different_rubrics_are_not_compared_by_accident(
    tmp_path: Path,
) -> None:
    def run(name: str, *parts: Any) -> Path:
        config = EvalConfig(
            endpoint=lambda messages: "Answer: 1", experiment_name=name, output_dir=str(tmp_path)
        )
        anyio.run(evaluate, make_samples(6), config, Rubric(*parts))
        return tmp_path / name

    one = run("one", part(grade_number, name="correct"), part(len_of, weight=0))
    same = run("same", part(grade_number, name="correct"), part(len_of, weight=0))
    assert compare(one, same).overall.difference == 0.0
    heavier = run("heavier", part(grade_number, name="correct", weight=3), len_of)
    with pytest.raises(NotComparable) as refused:
        compare(one, heavier)
    assert "'correct': weight is None and 3; 'len_of': weight is 0 and None" in str(refused.value)
    other = run("other", part(grade_number, name="right"), part(len_of, weight=0))
    with pytest.raises(NotComparable, match="'correct' is in one only; 'right' is in one only"):
        compare(one, other)
    swapped = run("swapped", part(len_of, weight=0), part(grade_number, name="correct"))
    with pytest.raises(NotComparable, match="its parts are in another order"):
        compare(one, swapped)
    config = EvalConfig(
        endpoint=lambda messages: "Answer: 1",
        experiment_name="one",
        output_dir=str(tmp_path),
        resume=True,
    )
    with pytest.raises(ResumeMismatch, match="score_fn"):
        anyio.run(evaluate, make_samples(6), config, Rubric(part(grade_number, name="correct")))
