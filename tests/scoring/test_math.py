"""Math equivalence: the table of examples, what is an error, and input that is out to hurt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout import Message, Sample, Score, Trajectory
from heldout._core.aio import settle
from heldout.errors import InvalidInput, TaskFailed, TaskTimeout, WorkerDied, WorkerError
from heldout.scoring import math as grader_of_math
from heldout.scoring.grades import Grade
from heldout.scoring.math import (
    MAX_LENGTH,
    grade_math,
    grade_math_sync,
    math_identity,
    stated_expressions,
)
from heldout.scoring.process_pool import Pool
from heldout.scoring.rubric import Rubric, part
from heldout.store.fingerprint import describe_callable, version_of
from tests.conftest import both_loops
from tests.scoring.examples import wrong_rows
from tests.scoring.examples.math import EXAMPLES, LAST

pytestmark = pytest.mark.integration
BOMB = r"\boxed{9^{9^{9^{9}}}}"


def test_examples_come_out_as_the_docs_say() -> None:
    # More than the default time: what is shown here is what is right, on a busy machine, too.
    assert wrong_rows(EXAMPLES, partial(grade_math_sync, seconds=60)) == []


def test_with_last_the_last_expression_counts_where_nothing_is_stated() -> None:
    assert wrong_rows(LAST, partial(grade_math_sync, last=True)) == []


@pytest.mark.parametrize(
    ("answer", "target", "note"),
    [
        ("So it is 5.", "5", "no answer is stated (last=True looks for the last expression)"),
        ("Answer: Tuesday", "5", "could not be read as mathematics"),
        (
            r"\boxed{a>b>c}",
            "b > a > c",
            "the target cannot be read: only what is written alike equals it",
        ),
        (r"\boxed{\sum_{k=1}^{8} k}", "36", "not carried out: sum"),
        (r"\boxed{2x=14}", "14", "an equation, and not a value"),
        (r"\boxed{(2,1)}", r"\{1,2\}", "in order, where the target is a set"),
    ],
)
def test_what_is_not_decided_says_why(answer: str, target: str, note: str) -> None:
    grade = grade_math_sync(answer, target)
    assert (grade.value, grade.note) == (0.0, note)


@pytest.mark.parametrize("options", [{"seconds": 0}, {"decimals": -1}])
def test_options_that_nothing_can_be_graded_with_are_refused_when_a_part_is_made(
    options: dict[str, Any],
) -> None:
    with pytest.raises(InvalidInput):
        part(grade_math, **options)


# --- Golds and answers that are none --------------------------------------------------------------


@pytest.mark.parametrize("gold", ["", "  ", r"\frac{", r"\boxed{5", "The total number is 5"])
def test_a_gold_that_is_no_expression_is_an_error_that_quotes_it(gold: str) -> None:
    for answer in (r"\boxed{5}", ""):
        with pytest.raises(InvalidInput) as caught:
            grade_math_sync(answer, gold)
        assert repr(gold.strip()) in str(caught.value)


@pytest.mark.parametrize("gold", ["???", "b > a > c", "12:00", r"\{x|-2\leq x<1\}", "7 h 30 min"])
def test_no_gold_is_refused_that_an_answer_repeats(gold: str) -> None:
    """One that cannot be read equals nothing else: an error would leave only right answers."""
    assert grade_math_sync(rf"\boxed{{{gold}}}", gold).value == 1.0
    assert grade_math_sync(r"\boxed{5}", gold).value == 0.0


def test_a_gold_is_an_expression_or_a_number() -> None:
    assert grade_math_sync("0.25", 0.25).value == 1.0
    assert grade_math_sync("7", 7).value == 1.0
    for wrong in (True, ["1"], None):
        with pytest.raises(InvalidInput):
            grade_math_sync("1", wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", ["", " \n", "<think>so it is 4", "<think>4</think>"])
def test_no_answer_is_a_0_that_no_worker_is_asked_for(answer: str) -> None:
    nobody = Pool(1)
    nobody.close()
    assert grade_math_sync(answer, "4", pool=nobody) == Grade(0.0, None, "no answer")
    assert anyio.run(lambda: grade_math(answer, "4", pool=nobody)) == Grade(0.0, None, "no answer")


def test_names_of_variables_matter_unless_told_otherwise() -> None:
    assert grade_math_sync(r"\boxed{y+1}", "x+1").value == 0.0
    assert grade_math_sync(r"\boxed{y+1}", "x+1", strict=False).value == 1.0


def test_decimals_say_how_near_is_equal() -> None:
    assert grade_math_sync("0.33", "1/3", decimals=2).value == 1.0
    assert grade_math_sync("0.33", "1/3").value == 0.0


# --- Identity ------------------------------------------------------------------------------------


@pytest.mark.parametrize("grader", [grade_math, grade_math_sync])
def test_the_identity_names_every_version_that_decides(
    grader: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = str(version_of(grader))
    for package in ("math-verify", "latex2sympy2_extended", "sympy"):
        assert f"{package} {version(package)}" in identity
    before = describe_callable(grader)
    monkeypatch.setattr(grader_of_math, "version", lambda name: "99")
    assert describe_callable(grader) != before


def test_without_math_verify_the_module_is_imported_and_its_graders_name_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grader_of_math, "_pool", None)
    monkeypatch.setattr(grader_of_math, "find_spec", lambda name: None)
    for asked in (lambda: grade_math_sync("1", "1"), math_identity, lambda: version_of(grade_math)):
        with pytest.raises(InvalidInput, match="pip install 'math-verify>="):
            asked()


def test_importing_it_loads_neither_sympy_nor_math_verify() -> None:
    check = "import sys, heldout.scoring.math as m; m.math_identity()\n"
    check += "assert not {'sympy', 'math_verify'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


@both_loops
def test_in_a_rubric_it_is_a_metric_with_what_was_extracted(backend: str) -> None:
    rubric = Rubric(part(grade_math, name="equal", decimals=3), part(grade_math_sync, weight=0))
    trajectory = Trajectory((Message("assistant", r"<think>\boxed{3}</think>\boxed{1/2}"),))

    async def main() -> Score:
        return await settle(rubric(trajectory, Sample("s", {"question": "?"}, "0.5")))

    equal, tracked = anyio.run(main, backend=backend).metrics
    assert (equal.name, equal.value, equal.weight) == ("equal", 1.0, 1.0)
    assert equal.metadata == {"extracted": "1/2"}
    assert (tracked.name, tracked.value, tracked.weight) == ("math_sync", 1.0, 0.0)
    assert "sympy" in str(rubric.identity())


# --- Threads, event loops, workers that die ------------------------------------------------------


def test_threads_may_ask_at_the_same_time() -> None:
    """math-verify itself raises in every thread but the first, unless its timeouts are off."""
    grades: list[float] = []
    threads = [
        threading.Thread(target=lambda n=n: grades.append(grade_math_sync(f"{n}/2", n / 2).value))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert grades == [1.0] * 8


def test_others_go_on_beside_a_bomb_until_its_worker_is_killed() -> None:
    own = Pool(2, prepare="heldout.scoring.math:prepare")
    grades: list[Grade] = []

    async def bomb() -> None:
        with pytest.raises(WorkerDied):
            await grade_math(BOMB, "5", seconds=120, pool=own)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(bomb)
            await anyio.lowlevel.checkpoint()
            for number in range(10):
                grades.append(await grade_math(f"${number}$", number, pool=own))
            for pid in own.pids():
                os.kill(pid, signal.SIGKILL)
            own.close()

    anyio.run(main)
    assert [grade.value for grade in grades] == [1.0] * 10


# --- Who is to blame ------------------------------------------------------------------------------


class Scripted(Pool):
    """What comes of each task is given to it; it writes down which answers it was asked for."""

    def __init__(self, *outcomes: WorkerError | float) -> None:
        super().__init__(1)
        self.outcomes, self.asked = list(outcomes), list[str]()

    def run_sync(self, function: str, *arguments: Any, seconds: float) -> Any:
        self.asked.append(arguments[1][0][0])
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, WorkerError):
            raise outcome
        return [outcome, "x", ""]

    async def run(self, function: str, *arguments: Any, seconds: float) -> Any:
        return self.run_sync(function, *arguments, seconds=seconds)


def scripted(*outcomes: WorkerError | float) -> tuple[Grade, list[str]]:
    """What both say, which is the same."""
    first, second = Scripted(*outcomes), Scripted(*outcomes)
    said = grade_math_sync("Answer: 7x", "5", seconds=3, pool=first)
    assert anyio.run(lambda: grade_math("Answer: 7x", "5", seconds=3, pool=second)) == said
    assert first.asked == second.asked
    assert not first.outcomes
    return said, first.asked


def test_an_answer_that_takes_too_long_is_a_0_where_the_target_is_readable_in_time() -> None:
    grade, asked = scripted(TaskTimeout("late"), 0.0)
    assert grade == Grade(0.0, "7x", "could not be decided within 3 s")
    assert asked == ["7x", "1"]


def test_an_answer_that_takes_too_much_memory_is_a_0_that_says_so() -> None:
    grade, _ = scripted(TaskFailed("MemoryError", "too much"), 0.0)
    assert grade == Grade(0.0, "7x", "could not be decided: MemoryError: too much")


def test_an_answer_whose_process_dies_has_a_second_try() -> None:
    assert scripted(WorkerDied("killed"), 1.0)[0].value == 1.0
    grade, asked = scripted(WorkerDied("killed"), WorkerDied("a crash"), 0.0)
    assert grade == Grade(0.0, "7x", "could not be decided: a crash")
    assert asked == ["7x", "7x", "1"]


@pytest.mark.parametrize(
    "outcomes",
    [
        (TaskTimeout("late"), TaskTimeout("late")),
        (WorkerDied("no worker"), WorkerDied("no worker"), WorkerDied("no worker")),
    ],
)
def test_where_a_harmless_answer_fares_no_better_it_is_an_error(
    outcomes: tuple[WorkerError, ...],
) -> None:
    with pytest.raises(type(outcomes[-1])):
        scripted(*outcomes)


def test_a_target_that_takes_too_long_is_an_error_and_an_answer_a_0() -> None:
    with pytest.raises(TaskTimeout):
        grade_math_sync("7", r"9^{9^{9^{9}}}", seconds=0.3)
    grade = grade_math_sync(BOMB, "5", seconds=0.3)
    assert (grade.value, grade.note) == (0.0, "could not be decided within 0.3 s")
    assert grade_math_sync("1", "1").value == 1.0


# --- Hostile text -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bomb",
    [
        r"\boxed{" + r"\frac{1}{" * 2000 + "1" + "}" * 2000 + "}",
        r"\boxed{" + "(" * 1500 + "1" + ")" * 1500 + "}",
        r"\boxed{\sum_{k=1}^{10^{12}} k^{k}}",
        "Answer: " + "7" * 1900,
        "\\boxed{\x00\u202e\ud800}",
    ],
    ids=lambda bomb: f"{bomb[:24]!a} of {len(bomb)}",
)
def test_what_is_out_to_hurt_has_a_grade_of_0(bomb: str) -> None:
    grade = grade_math_sync(bomb, "5", seconds=0.3)
    assert grade.value == 0.0
    assert len(grade.extracted or "") <= 500


PIECES = ["\\boxed", "{", "}", "\\", "$", "1", "x", " ", "and", ",", "%", "\ud800", "\n", "\\{"]


@given(st.text(alphabet="x1+ ", min_size=1, max_size=20).filter(lambda t: t.strip("+ ")))
def test_a_corrected_box_counts_whatever_stands_before_it(content: str) -> None:
    stated = stated_expressions("\\boxed{1}. Wait, \\boxed{" + content + "} done", last=False)
    assert stated == [[content.strip()]]


def test_a_megabyte_is_read_in_bounded_steps() -> None:
    for text in (
        *("\\boxed{" * 150_000, "\\boxed{1}, " * 100_000, "{" * 10**6, "$" * 10**6, "\\" * 10**6),
        *("1" * 10**6, "\\boxed" * 10**5, "\\boxed{" + "{" * 10**6, "\\boxed" + " " * 10**6),
        *("the answer is so " * 60_000, "answer: word " * 80_000),
    ):
        stated = [each for group in stated_expressions(text, last=True) for each in group]
        assert len(stated) <= 8, text[:12]
        assert all(len(each) <= MAX_LENGTH + 50 for each in stated), text[:12]


def test_a_megabyte_before_the_box_does_not_matter() -> None:
    assert grade_math_sync("so it goes " * 10**5 + r"\boxed{5}", "5").value == 1.0


@settings(max_examples=40)
@given(st.lists(st.sampled_from([*PIECES, "\\frac", "^", "(", "answer is "]), max_size=12))
def test_any_text_has_a_grade(pieces: list[str]) -> None:
    grade = grade_math_sync("".join(pieces), "12345", seconds=5)
    assert grade.value == 0.0
    assert grade.extracted is None or "12345" not in grade.extracted
