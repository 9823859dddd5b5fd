"""Math equivalence: the table of examples, what is an error, and input that is out to hurt."""

from __future__ import annotations

import threading
import time

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.scoring.grades import Grade
from heldout.scoring.mathematics import (
    LONGEST,
    math_equal,
    math_equal_async,
    math_identity,
    math_pool,
    stated,
)
from heldout.scoring.workers import TaskTimeout, WorkerError
from tests.scoring.examples import Example
from tests.scoring.examples.mathematics import EXAMPLES

pytest.importorskip("math_verify")
pytestmark = pytest.mark.integration


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.answer[:40]} | {e.target}")
def test_examples_come_out_as_the_docs_say(example: Example) -> None:
    grade = math_equal(example.answer, example.target)
    assert (grade.extracted, grade.value) == (example.extracted, example.value)


@pytest.mark.parametrize("gold", ["", "  ", "???", r"\frac{", r"\boxed{5", "The answer is 5"])
def test_a_gold_that_cannot_be_read_is_an_error_that_quotes_it(gold: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        math_equal(r"\boxed{5}", gold)
    assert repr(gold) in str(caught.value)


def test_a_gold_is_an_expression_or_a_number() -> None:
    assert math_equal("0.25", 0.25).value == 1.0
    assert math_equal("7", 7).value == 1.0
    with pytest.raises(InvalidInput):
        math_equal("1", True)
    with pytest.raises(InvalidInput):
        math_equal("1", ["1"])  # type: ignore[arg-type]


def test_a_gold_is_read_before_an_empty_answer_is_wrong() -> None:
    with pytest.raises(InvalidInput):
        math_equal("", "???")


@pytest.mark.parametrize(
    "bomb",
    [r"\boxed{9^{9^{9^{9}}}}", "9**9**9**9", r"\boxed{100000000!}"],
)
def test_a_bomb_is_that_items_error_and_others_go_on(bomb: str) -> None:
    math_equal("1", "1")
    started = time.monotonic()
    with pytest.raises(TaskTimeout):
        math_equal(bomb, "5", seconds=0.5)
    assert time.monotonic() - started < 10
    assert math_equal("1", "1").value == 1.0


def test_a_bomb_does_not_hold_up_others_in_an_event_loop() -> None:
    grades: list[Grade] = []
    order: list[str] = []

    async def bomb() -> None:
        with pytest.raises(WorkerError):
            await math_equal_async(r"\boxed{9^{9^{9^{9}}}}", "5", seconds=3)
        order.append("bomb")

    async def others() -> None:
        for number in range(10):
            grades.append(await math_equal_async(f"${number}$", number))
        order.append("others")

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(bomb)
            group.start_soon(others)

    math_pool().start(2)
    math_equal("1", "1")
    anyio.run(main)
    assert [grade.value for grade in grades] == [1.0] * 10
    if len(math_pool().pids()) > 1:
        assert order == ["others", "bomb"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_it_is_the_same_under_both_event_loops(backend: str) -> None:
    async def main() -> list[Grade]:
        return [await math_equal_async(r"\boxed{1/2}", "0.5"), await math_equal_async("3", "4")]

    grades = anyio.run(main, backend=backend)
    assert [grade.value for grade in grades] == [1.0, 0.0]


def test_it_works_in_a_thread() -> None:
    grades: list[Grade] = []
    thread = threading.Thread(target=lambda: grades.append(math_equal("1/2", "0.5")))
    thread.start()
    thread.join()
    assert grades[0].value == 1.0


def test_names_of_variables_matter_unless_told_otherwise() -> None:
    assert math_equal(r"\boxed{y+1}", "x+1").value == 0.0
    assert math_equal(r"\boxed{y+1}", "x+1", strict=False).value == 1.0


def test_decimals_say_how_near_is_equal() -> None:
    assert math_equal("0.33", "1/3", decimals=2).value == 1.0
    assert math_equal("0.33", "1/3").value == 0.0


def test_the_identity_names_every_version_that_decides() -> None:
    assert set(math_identity()) == {"math_equal", "math-verify", "latex2sympy2_extended", "sympy"}


# --- Hostile text -------------------------------------------------------------------------------

PIECES = ["\\boxed", "{", "}", "\\", "$", "1", "x", " ", "and", ",", "%", "\ud800", "\n", "\\{"]


@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join))
def test_what_is_in_a_box_is_part_of_the_text(text: str) -> None:
    inside, tail, note = stated(text)
    assert (inside is None) or not (tail or note)
    if inside is None and not note:
        assert tail == text[-LONGEST:]
    if inside is not None and "," not in inside:
        assert inside.removesuffix("\\%") in text


@given(st.text(alphabet="x1+ {", max_size=20).filter(lambda t: t.strip() and "{" not in t))
def test_the_last_box_counts_whatever_stands_before_it(content: str) -> None:
    assert stated("\\boxed{1} then \\boxed{" + content + "} done")[0] == content.strip()


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 150_000,
        "\\boxed{1}, " * 100_000,
        "{" * 10**6,
        "$" * 10**6,
        "\\" * 10**6,
        "1" * 10**6,
        "\\boxed" * 10**5,
        "\\boxed{" + "{" * 10**6,
        "\\boxed" + " " * 10**6,
    ],
    ids=lambda text: text[:12],
)
def test_a_megabyte_is_read_in_milliseconds(text: str) -> None:
    started = time.perf_counter()
    stated(text)
    assert time.perf_counter() - started < 0.2


def test_a_megabyte_before_the_box_does_not_matter() -> None:
    assert math_equal("so it goes " * 10**5 + r"\boxed{5}", "5").value == 1.0


@settings(max_examples=40)
@given(st.lists(st.sampled_from([*PIECES, "\\frac", "^", "(", "answer is "]), max_size=12))
def test_any_text_has_a_grade_or_an_error(pieces: list[str]) -> None:
    try:
        grade = math_equal("".join(pieces), "12345", seconds=5)
    except WorkerError:
        return
    assert grade.value == 0.0
    assert grade.extracted is None or "12345" not in grade.extracted
