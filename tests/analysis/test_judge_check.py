"""A judge against labels and against itself: what is asked, and what is said of the replies."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from heldout import Message
from heldout.analysis import JudgeCheck, check_judge, read_labels
from heldout.analysis.judge_check import JUDGE_TASKS, JudgeTask, parse_labels
from heldout.cli.check import make_judge_notes
from heldout.errors import FatalEndpointError, InvalidInput, SystemicFailure, Unreachable
from heldout.scoring.judges import Judge
from heldout.types import Completion, Usage

Answer = Callable[[list[Message]], Any]


@pytest.fixture
def check() -> Callable[..., JudgeCheck]:
    def run(answer: Answer, rows: list[dict[str, Any]], **asked: Any) -> JudgeCheck:
        async def main() -> JudgeCheck:
            judge = Judge(answer, cache=asked.pop("cache", None), retries=0)
            try:
                return await check_judge(judge, rows, **asked)
            finally:
                await judge.close()

        return anyio.run(main)

    return run


def part(messages: list[Message], name: str) -> str:
    """A text as the judge is shown it."""
    found = re.search(
        rf"--- BEGIN {name} \w+ ---\n(.*?)\n--- END {name} ", messages[1].text, re.DOTALL
    )
    assert found, messages[1].text
    return found[1]


def says(verdict: Any, reasoning: str = "since") -> str:
    return json.dumps({"reasoning": reasoning, "verdict": verdict})


def compares(messages: list[Message]) -> str:
    """A good judge of equality."""
    return says("equal" if part(messages, "ANSWER") == part(messages, "TARGET") else "different")


def row(number: int, right: bool, label: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "id": f"q{number}",
        "question": f"What is {number}?",
        "answer": f"{number if right else number + 1}",
        "ground_truth": f"{number}",
        "label": right if label is None else label,
        **more,
    }


ROWS = [row(i, i % 4 > 0) for i in range(40)]


# --- Against labels -----------------------------------------------------------------------------


def test_a_judge_that_only_ever_says_yes_does_not_look_good(check: Any) -> None:
    mostly_right = [row(i, i % 10 > 0) for i in range(100)]
    found = check(lambda messages: says("equal"), mostly_right).against_labels
    assert found.agreement.value == 0.9
    assert found.kappa.value == 0.0
    assert found.balanced_f1.value < 0.5
    assert found.classes[1].recall.value == 0.0
    [note] = make_judge_notes(check(lambda messages: says("equal"), mostly_right))
    assert note == "the judge says 'equal' of everything: it tells nothing apart"


def test_labels_of_one_kind_only_are_said_to_be_no_measure(check: Any) -> None:
    found = check(compares, [row(i, True) for i in range(5)])
    assert found.against_labels.kappa.value is None
    assert "every label is 'equal'" in next(make_judge_notes(found))


def test_a_class_of_few_labels_is_said_to_be_too_few(check: Any) -> None:
    rows = [row(i, i > 3) for i in range(20)]
    assert [*make_judge_notes(check(compares, rows))] == [
        "4 of 20 labels are 'different': with fewer than 5 of a class, intervals of kappa and "
        "balanced F1 are too short"
    ]
    assert [*make_judge_notes(check(compares, [*rows, row(20, False)]))] == []


def test_rows_of_the_table_are_labels(check: Any) -> None:
    rows = [row(0, True, label=False), row(1, True), row(2, False), row(3, True)]
    found = check(compares, rows)
    assert found.against_labels.categories == ("equal", "different")
    assert found.against_labels.table == ((2, 0), (1, 1))
    assert [one.item.id for one in found.differences] == ["q0"]


def test_three_way_verdicts_are_compared_by_name(check: Any) -> None:
    labels = ["correct", "incorrect", "not_attempted"] * 3

    def judge(messages: list[Message]) -> str:
        number = int(part(messages, "TARGET"))
        return says("incorrect" if number == 2 else labels[number])

    rows = [row(i, True, label=label) for i, label in enumerate(labels)]
    found = check(judge, rows, kind="three-way")
    assert found.against_labels.table == ((3, 0, 0), (0, 3, 0), (0, 1, 2))


def test_criteria_are_counted_each_and_clustered_by_item(check: Any) -> None:
    criteria = [{"id": "a", "description": "is short"}, {"id": "b", "description": "is rude"}]
    rows = [row(i, True, criteria=criteria, label={"a": True, "b": i % 2 == 0}) for i in range(10)]

    def judge(messages: list[Message]) -> str:
        asked = json.loads(part(messages, "CRITERIA"))
        return json.dumps({"criteria": [{"id": c["id"], "met": c["id"] == "a"} for c in asked]})

    found = check(judge, rows, kind="criteria")
    assert (found.against_labels.n, found.against_labels.clusters) == (20, 10)
    assert found.against_labels.agreement.count == 15
    assert len(found.differences) == 5


# --- Against itself -----------------------------------------------------------------------------


def test_the_second_opinion_is_asked_for_and_not_the_first_one_remembered(check: Any) -> None:
    asked: Counter[str] = Counter()

    def wavers(messages: list[Message]) -> str:
        question = part(messages, "QUESTION")
        asked[question] += 1
        return says("equal" if asked[question] == 1 else "different")

    rows = [row(i, True) for i in range(6)] + [row(6, False)]
    found = check(wavers, rows, max_concurrent=1)
    assert set(asked.values()) == {2}
    assert found.against_labels.agreement.count == 6
    assert found.against_itself.agreement.count == 0
    assert found.against_itself.n == 7


def test_a_cache_keeps_both_opinions_apart(check: Any, tmp_path: Path) -> None:
    asked: list[str] = []

    def counts(messages: list[Message]) -> str:
        asked.append("")
        return says("equal" if len(asked) % 2 else "different")

    once = check(counts, ROWS[:5], cache=tmp_path / "verdicts.db", max_concurrent=1)
    assert len(asked) == 10
    again = check(counts, ROWS[:5], cache=tmp_path / "verdicts.db")
    assert len(asked) == 10
    assert (again.verdicts, again.cached) == (10, 10)
    assert again.against_labels == once.against_labels
    assert again.against_itself == once.against_itself
    assert again.against_itself.agreement.count == 0


def test_asked_three_times_every_two_verdicts_are_compared_clustered_by_item(check: Any) -> None:
    found = check(compares, ROWS, repeats=3).against_itself
    assert (found.n, found.clusters) == (120, 40)


def test_what_a_judge_gets_wrong_every_time_comes_before_what_it_wavers_on(check: Any) -> None:
    asked: Counter[str] = Counter()

    def judge(messages: list[Message]) -> str:
        number = part(messages, "TARGET")
        asked[number] += 1
        return says("equal" if number == "0" and asked[number] > 1 else "different")

    found = check(judge, [row(i, True) for i in range(3)], max_concurrent=1)
    assert [one.item.id for one in found.differences] == ["q1", "q2", "q0"]


# --- Without a verdict --------------------------------------------------------------------------


def test_an_item_without_a_verdict_is_named_and_counts_neither_way(check: Any) -> None:
    def sometimes(messages: list[Message]) -> str:
        if part(messages, "TARGET") == "5":
            raise ValueError("it broke")
        return "Well, A." if part(messages, "TARGET") == "3" else compares(messages)

    rows = [row(0, True, label=False), *ROWS[1:10]]
    found = check(sometimes, rows)
    assert [one.item.id for one in found.no_verdict] == ["q3", "q5"]
    assert "NoVerdict" in found.no_verdict[0].draws[0].problem
    assert found.no_verdict[1].draws[0].problem == "ValueError: it broke"
    assert (found.against_labels.agreement.count, found.against_labels.n) == (7, 8)
    assert found.agreement_at_least == pytest.approx(7 / 10)
    assert found.agreement_at_most == pytest.approx(9 / 10)
    assert found.against_itself.n == 8


def test_a_judge_that_never_gives_a_verdict_is_not_paid_for_all_items(check: Any) -> None:
    asked: list[str] = []

    def mumbles(messages: list[Message]) -> str:
        asked.append("")
        return "A"

    with pytest.raises(SystemicFailure, match="stopped: .* no verdict in any of 10 questions"):
        check(mumbles, ROWS, max_concurrent=1)
    assert len(asked) == 30


def test_later_draws_without_a_verdict_are_counted(check: Any) -> None:
    asked: Counter[str] = Counter()

    def once(messages: list[Message]) -> str:
        number = part(messages, "TARGET")
        asked[number] += 1
        return "A" if number in ("3", "4") and asked[number] > 1 else compares(messages)

    told: list[tuple[int, int, int]] = []
    found = check(once, ROWS[:6], max_concurrent=1, on_progress=lambda *n: told.append(n))
    assert (found.later_without, found.no_verdict) == (2, ())
    assert found.as_dict()["later_draws_without_verdict"] == 2
    assert found.against_itself.n == 4
    assert told[-1] == (12, 12, 2)


@pytest.mark.parametrize(
    ("problem", "most"), [(FatalEndpointError("no such key"), 3), (Unreachable("refused"), 12)]
)
def test_where_nothing_can_be_asked_the_check_stops(
    check: Any, problem: Exception, most: int
) -> None:
    asked: list[str] = []

    def refuses(messages: list[Message]) -> str:
        asked.append("")
        raise problem

    with pytest.raises(SystemicFailure, match=f"so the check was stopped: .*{problem}"):
        check(refuses, ROWS, max_concurrent=2)
    assert len(asked) <= most


# --- Pairs --------------------------------------------------------------------------------------


def pair(number: int, label: str) -> dict[str, Any]:
    return {"question": f"{number}?", "first": f"good {number}", "second": "bad", "label": label}


def test_a_judge_that_prefers_a_place_is_found_out(check: Any) -> None:
    found = check(
        lambda messages: says("first"), [pair(i, "first") for i in range(10)], kind="pairwise"
    )
    assert found.position.same.count == 0
    assert (found.position.first.count, found.position.first.n) == (20, 20)
    assert found.position.second.count == 0
    # What contradicts itself is a tie, as in scoring.
    assert found.against_labels.agreement.count == 0
    assert found.judged[0].draws[0].verdict == "tie"


def test_a_judge_that_prefers_an_answer_says_the_same_in_both_orders(check: Any) -> None:
    def judge(messages: list[Message]) -> str:
        return says("first" if part(messages, "FIRST").startswith("good") else "second")

    rows = [pair(i, "first") for i in range(9)] + [pair(9, "tie")]
    found = check(judge, rows, kind="pairwise")
    assert (found.position.same.count, found.position.same.n) == (20, 20)
    assert found.against_labels.agreement.count == 9
    assert [part.value for part in found.judged[0].draws[0].parts] == ["first", "second"]
    assert found.verdicts == 40


# --- What it cost -------------------------------------------------------------------------------


def test_tokens_are_those_of_replies_that_were_asked_for(check: Any, tmp_path: Path) -> None:
    class Counting:
        async def complete(self, messages: Any, sampling: Any, tools: Any) -> Completion:
            number = part(messages, "TARGET")
            said = "A" if number == "4" else compares(messages)  # no verdict, three times
            return Completion(Message("assistant", said), "stop", Usage(100, 7))

        def describe(self) -> dict[str, Any]:
            return {"kind": "counted"}

        async def close(self) -> None: ...

    cache = tmp_path / "verdicts.db"
    assert check(Counting(), ROWS[:4], cache=cache).usage == Usage(800, 56)
    assert check(Counting(), ROWS[:4], cache=cache).usage == Usage(0, 0)
    assert check(Counting(), ROWS[:5], repeats=1).usage == Usage(100 * 7, 7 * 7)
    assert check(compares, ROWS[:5]).usage is None


def test_everything_said_of_a_judge_is_plain_json(check: Any) -> None:
    found = check(compares, ROWS)
    plain = json.loads(json.dumps(found.as_dict()))
    assert plain["against_labels"]["agreement"] == {
        "value": 1.0,
        "count": 40,
        "n": 40,
        "ci_low": pytest.approx(0.912, abs=1e-3),
        "ci_high": 1.0,
    }
    assert plain["judge"]["endpoint"]["kind"] == "function"
    assert found.against_labels.kappa.value == found.against_itself.agreement.value == 1.0
    assert (found.differences, found.no_verdict) == ((), ())
    assert (found.verdicts, found.cached) == (80, 0)
    assert found.agreement_at_least == found.agreement_at_most == 1.0
    assert check(compares, ROWS, repeats=1).against_itself is None


# --- Labels -------------------------------------------------------------------------------------


GOOD: dict[JudgeTask, dict[str, Any]] = {
    "equality": row(1, True),
    "three-way": row(1, True, label="correct"),
    "criteria": row(
        1, True, criteria=[{"id": "a", "description": "d", "required": True}], label={"a": False}
    ),
    "pairwise": pair(1, "tie"),
}


@pytest.mark.parametrize("kind", JUDGE_TASKS)
def test_every_kind_has_its_shape(kind: JudgeTask, tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text("\ufeff" + json.dumps(GOOD[kind]) + "\n\n")
    assert len(read_labels(file, kind)) == 1


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("equality", {"label": "maybe"}, "'label' must be true or false; got 'maybe'"),
        ("equality", {"label": 1}, "'label' must be true or false; got 1"),
        ("equality", {"label": True}, "the id 'q1' is that of another answer"),
        ("equality", {"ground_truth": ""}, "'ground_truth' is empty"),
        ("criteria", {"target": "4"}, "the right answer is 'ground_truth', not 'target'"),
        ("equality", {"answer": None}, "'answer' is empty"),
        (
            "three-way",
            {"label": True},
            "'label' must be correct, incorrect, not_attempted",
        ),
        ("pairwise", {"label": "1"}, "'label' must be first, second, tie; got '1'"),
        ("pairwise", {"first": None}, "'first' is empty"),
        ("criteria", {"criteria": None}, "'criteria' must be a list"),
        ("criteria", {"criteria": [{"id": "a"}]}, "missing required field `description`"),
        ("criteria", {"criteria": []}, "no criterion has a weight above 0"),
        ("criteria", {"label": {"b": True}}, "'label' and 'criteria' differ in 'a', 'b'"),
        ("criteria", {"label": {"a": "yes"}}, "says true or false of each criterion"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(
    kind: JudgeTask, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text("\n".join(json.dumps(each) for each in (GOOD[kind], GOOD[kind] | change)))
    with pytest.raises(InvalidInput, match=re.escape(message)) as refused:
        read_labels(file, kind)
    assert f"{file}, line 2: " in str(refused.value)


def test_all_bad_lines_are_found_at_once(tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    lines = [json.dumps(row(1, True)), '"text"', json.dumps({"question": "?"})] + ["[]"] * 5
    file.write_text("\n".join(lines))
    with pytest.raises(InvalidInput) as refused:
        read_labels(file, "equality")
    said = str(refused.value)
    assert "line 2: it must be an object with keys, got str" in said
    assert "line 3: 'answer' is missing; there are ['question']" in said
    assert said.endswith("and 2 more")


def test_nothing_is_asked_where_a_label_is_bad(check: Any) -> None:
    with pytest.raises(InvalidInput, match="item 1: 'label' must be"):
        check(lambda messages: pytest.fail("was asked"), [row(0, True), row(1, True, label="x")])
    with pytest.raises(InvalidInput, match="no labels"):
        check(compares, [])
    with pytest.raises(InvalidInput, match="kind must be equality"):
        check(compares, ROWS, kind="yes-no")
    with pytest.raises(InvalidInput, match="repeats must be 1 or more"):
        check(compares, ROWS, repeats=0)


def test_labels_that_were_made_for_another_kind_are_refused_before_anything_is_asked(
    check: Any,
) -> None:
    def none(messages: list[Message]) -> str:
        return pytest.fail("was asked")

    three_way = parse_labels([("a", row(1, True, label="correct"))], "three-way")
    equality = parse_labels([("a", row(1, True))], "equality")
    pairs = parse_labels([("a", pair(1, "first"))], "pairwise")
    for made, kind in ((three_way, "equality"), (equality, "criteria"), (pairs, "equality")):
        with pytest.raises(InvalidInput, match=f"item 0: it was read for kind='{made[0].kind}'"):
            check(none, made, kind=kind)
