"""An eval's own references must pass, and answers that are none must not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from heldout import EvalDefinition, Message, Sample, ToolCall, Trajectory
from heldout.analysis import check_eval
from heldout.environment import Reply
from heldout.scoring import Rubric, grade_calls, grade_choice, grade_number, part

pytestmark = pytest.mark.anyio


def ask(id: str, question: str, truth: Any, **metadata: Any) -> Sample:
    return Sample(id, {"question": question}, truth, metadata)


def exact(trajectory: Trajectory, sample: Sample) -> float:
    return float(trajectory.answer == str(sample.ground_truth))


async def kinds(definition: EvalDefinition, **arguments: Any) -> list[tuple[str, str]]:
    check = await check_eval(definition, **arguments)
    return [(finding.sample_id, finding.kind) for finding in check.findings]


async def test_references_of_common_graders_pass_and_nothing_else_does() -> None:
    numbers = [ask("n1", "6 * 7?", 42), ask("n2", "1 / 4?", "0.25")]
    letters = [ask("c1", "A) red B) blue. The sky?", "B")]
    for samples, grader in ((numbers, grade_number), (letters, grade_choice)):
        check = await check_eval(EvalDefinition(samples, Rubric(part(grader, name="right"))))
        assert not check.findings
        assert check.n_passed == check.n_answered == len(samples)


@pytest.mark.parametrize(
    "target",
    [
        [{"name": "weather", "arguments": {"city": "Oslo"}}],
        [{"type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}],
        [{"weather": {"city": ["Oslo", "Oslo, Norway"], "unit": ["", "celsius"]}}],
    ],
)
async def test_calls_are_made_as_the_target_has_them(target: Any) -> None:
    score_fn = Rubric(part(grade_calls, name="right call"))
    check = await check_eval(EvalDefinition([ask("a", "Weather in Oslo?", target)], score_fn))
    assert not check.findings


async def test_a_reference_that_fails_or_cannot_be_scored_is_a_problem() -> None:
    def scorer(trajectory: Trajectory, sample: Sample) -> float:
        if sample.id == "broken":
            raise RuntimeError("the grader is broken")
        return exact(trajectory, sample) * (sample.id != "wrong")

    samples = [ask(id, f"{id}?", "x") for id in ("right", "wrong", "broken")]
    check = await check_eval(EvalDefinition(samples, scorer))
    assert [(f.sample_id, f.kind) for f in check.problems] == [
        ("wrong", "reference_fails"),
        ("broken", "reference_errors"),
    ]
    assert "the grader is broken" in check.problems[1].detail
    assert (check.n_passed, check.n_answered, check.n) == (1, 3, 3)


async def test_an_eval_whose_references_all_error_is_reported_and_does_not_raise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def scorer(trajectory: Trajectory, sample: Sample) -> float:
        raise RuntimeError("no grader")

    found = await kinds(EvalDefinition([ask("a", "?", "x")], scorer))
    assert found == [("a", "reference_errors")]
    assert not caplog.text  # nothing of the runs in a temporary folder


async def test_a_text_is_answered_in_the_form_that_the_grader_reads() -> None:
    def boxed(trajectory: Trajectory, sample: Sample) -> float:
        return float(trajectory.answer == f"\\boxed{{{sample.ground_truth}}}")

    check = await check_eval(EvalDefinition([ask("a", "?", "x")], boxed))
    assert check.form == "\\boxed{…}"
    assert not check.findings


async def test_answers_that_are_none_and_pass_are_warnings() -> None:
    def lenient(trajectory: Trajectory, sample: Sample) -> float:
        return float(trajectory.answer != "wrong")

    found = await kinds(EvalDefinition([ask("a", "?", "x")], lenient))
    assert found == [("a", "empty_passes"), ("a", "unrelated_passes")]


async def test_samples_that_measure_nothing_are_warnings() -> None:
    samples = [
        ask("one", "1 + 1?", "2"),
        ask("copy", "1  + 1?", "2"),
        ask("other", "1 + 1?", "3"),
        ask("empty", "  ", "x"),
        ask("silent", "Say anything", None),
    ]
    found = await kinds(EvalDefinition(samples, exact), train=[{"prompt": "Say anything"}])
    assert found == [
        ("copy", "duplicate"),
        ("other", "ambiguous"),
        ("empty", "empty_prompt"),
        ("silent", "overlap"),
        ("silent", "no_reference"),
    ]


class Lookup:
    """An environment with one tool, which knows the answer."""

    tools = ()

    def opening(self) -> Sequence[Message]:
        return ()

    def reply(self, messages: Sequence[Message]) -> Reply:
        calls = messages[-1].tool_calls
        return Reply(tuple(Message("tool", "42", tool_call_id=call.id) for call in calls))

    def close(self) -> None:
        pass


async def test_a_reference_may_take_several_turns() -> None:
    call = Message("assistant", "", tool_calls=(ToolCall("1", "look", "{}"),))

    def called(trajectory: Trajectory, sample: Sample) -> float:
        return float(
            any(m.role == "tool" for m in trajectory.messages) and trajectory.answer == "42"
        )

    definition = EvalDefinition(
        [ask("a", "Look it up.", None)],
        called,
        environment_factory=lambda sample: Lookup(),
        reference=lambda sample: [call, "42"],
    )
    check = await check_eval(definition)
    assert not check.findings
    assert check.n_passed == 1


async def test_a_solution_in_the_metadata_is_the_reference() -> None:
    samples = [ask("a", "Write it.", {"tests": 1}, canonical_solution="print(1)")]

    def has_program(trajectory: Trajectory, sample: Sample) -> float:
        return float("print(1)" in trajectory.answer)

    assert await kinds(EvalDefinition(samples, has_program)) == []
