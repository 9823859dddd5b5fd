"""Answers that are made to break graders: huge, deep, broken, explosive.

Whatever a model writes, a grader gives a grade or says in an `InvalidInput` what it refuses, in
bounded time and memory. Long texts are graded in a child process with limits on its memory and CPU
time, each of them by itself: a scan that is quadratic in 60 KB takes more than the limit.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout import Sample
from heldout.errors import InvalidInput
from heldout.scoring import (
    Grade,
    Rubric,
    grade_captured,
    grade_choice,
    grade_exact,
    grade_f1,
    grade_includes,
    grade_json,
    grade_list,
    grade_match,
    grade_number,
    grade_pattern,
    grade_rouge_l,
    grade_set,
    grade_spans,
    has_boxed,
    has_code_block,
    has_length,
    has_tags,
    is_json,
    is_one_line,
    last_code_block,
    part,
    read_calls,
    same_calls,
)
from heldout.scoring.answers import answer_text, statements, visible
from heldout.scoring.grades import LONGEST_KEPT
from heldout.types import Completion, Message, ToolCall, ToolSpec
from tests.conftest import RunEval

ROOT = Path(__file__).parents[2]
CPU_SECONDS = 5  # a case, of which most take milliseconds
MEMORY = 2**31

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "array", "items": {"pattern": "^(a+)+$"}}},
    "additionalProperties": {"$ref": "#"},
}

GRADERS: dict[str, Callable[[str], Any]] = {
    "choice": partial(grade_choice, target="C", options=("red", "green", "blue", "7")),
    "number": partial(grade_number, target=7),
    "last number": partial(grade_number, target=7, last=True, relative=0.1),
    "decimal comma": partial(grade_number, target=7, decimal=","),
    "exact": partial(grade_exact, target="a b"),
    "match": partial(grade_match, target="a b", read="whole"),
    "includes": partial(grade_includes, target="a b 7"),
    "f1": partial(grade_f1, target="a b c", read="whole"),
    "rouge": partial(grade_rouge_l, target="a b c " * 100),
    "list": partial(grade_list, target=["a b", "1"], partial=True),
    "set": partial(grade_set, target=["a b", "1"]),
    "spans": partial(grade_spans, target=[["a b", "1"] * 16, ["c"]]),
    "pattern": partial(grade_pattern, pattern=r"((?:a+)+b|(?:\d+)+x)"),
    "captured": partial(grade_captured, target="7", pattern=r"(?:Answer: )*(\w+)"),
    "json": partial(grade_json, schema=SCHEMA),
    "is json": is_json,
    "code block": has_code_block,
    "boxed": has_boxed,
    "one line": is_one_line,
    "length": partial(has_length, unit="words", at_most=100),
    "tags": partial(has_tags, tags=["think", "answer"]),
}
READERS: dict[str, Callable[[str], Any]] = {
    "answer": answer_text,
    "statement": lambda text: statements(visible(text)),
    "last code block": last_code_block,
    "calls": lambda text: called(text).problems,
    "same calls": lambda text: same_calls([call(text)], [call(text)]),
}

REPEATED = (
    *("Answer: ", "the answer is not ", "#### 7\n", "\\boxed{", "boxed{", "\\boxed{}"),
    *("\\frac{1}{", "(", '{"a":', "<", "1", "1,", "1/", "-", "½", "=x,"),
    *("<think></think>", "<think>", "</think>", "<answer>1", "<|channel|>final<|message|>"),
    *("```\n", " and ", "\0", "\ud800", "\u0301", "\u0301\u0316", "\u200d", "ﷺ"),
    *("a", "a ", "C or ", "A)\n", "A is correct ", "<!--"),
    *("Wait, no, ", "no, it ", "No\n", "| A | correct |\n", "1 a (", "7? ", "option a "),
)
"""What a long text is made of."""

PIECES = (
    *REPEATED,
    *("答案", "[1,", "1 000 ", "1^", "```json\n", "- a\n", "\u202e", "İ", "u.s.", "\r\n", '"'),
    *("answer", "Answer", "ANSWER:\n", "####", "}", "\\sqrt{", "$", "\\", "\\text{", ")", "[", "{"),
    *("<<", "</", ">", "1, ", "1 ", "1.", "- ", "1e", "٣", "1:", "$1", "=", "<think>\n"),
    *("<answer>", "option is "),
    *("</answer>", "<|channel|>", "<answer></answer>", "[THINK]", "◁think▷", "```", "~~~\n", "`"),
    *("\n```x", "*", "**", "_", "1. ", "\udfff\ud800", "\u200f", "\ufeff", "\u2028", "e\u0301"),
    *("👩‍👩‍👧", "ß", "क्", "a, ", "A) ", "(A) ", "c+ ", " ", "\n", "\t", "\x85", "\xa0", "'", "’"),
    *(";", "correct ", "7", "C", "a b", "x"),
)
"""What small texts are made of."""

SEPARATORS = (
    *(" ", "\n", "\t", "\u00a0", "0", ",", ".", "'", '"', "*", "_", "=", "/", "^", "|", "("),
    *("\\", "$", "\u0301\u0316", "\u200b", "1,", "1 ", "- ", "= ", "'ll ", " and", "of "),
    *("five ", "≈1", "♭", "5歳", "A- ", "\\text{", "万", "1:", "(seven) "),
)
"""What stands between two words, twenty thousand characters of it."""

READ_ALIKE = (
    *("last number", "decimal comma", "exact", "list", "captured", "is json", "one line"),
    *("length", "code block", "spans"),
)
"""Graders that read a long text in no way that others do not."""

LONG = 60_000


def long_texts() -> Iterator[tuple[str, str]]:
    for piece in REPEATED:
        yield repr(piece), piece * (LONG // len(piece))
    for piece in SEPARATORS:
        between = piece * (LONG // 5 // len(piece))
        yield f"between: {piece!r}", f"a{between}b"
        yield f"stated: {piece!r}", f"Answer: 7{between}7"
    half = LONG // 2
    yield "brackets that close", "(" * half + ")" * half
    yield "JSON that closes", "[" * half + "]" * half
    yield "a huge integer in JSON", f'{{"x": {"9" * LONG}}}'
    yield "one key many times", "{" + ",".join(['"a":1'] * (LONG // 6)) + "}"
    yield "an explosive value in JSON", json.dumps({"x": ["a" * LONG + "b"]})
    yield "a stated list", "Answer: " + "1 " * half
    yield "a stated line", "Answer: " + "a" * LONG
    yield "a box", "\\boxed{" + "{1}" * (LONG // 3) + "}"
    yield "a tag", "<answer>" + "1, " * (LONG // 3) + "</answer>"
    yield "a block that closes", "```json\n" + "[1]," * (LONG // 4) + "\n```"
    yield "a block that does not", "```json\n" + "[1]," * (LONG // 4)
    yield "tags in turn", "<think>a</think>b" * (LONG // 16)
    yield "tags that nest", "<think>" * (LONG // 14) + "</think>" * (LONG // 14)


def call(arguments: str) -> ToolCall:
    return ToolCall("call_1", "look", arguments)


def called(arguments: str) -> Any:
    message = Message("assistant", "", (call(arguments),))
    return read_calls(Completion(message, "tool_calls"), [ToolSpec("look", parameters=SCHEMA)])


def check(name: str, text: str) -> None:
    """A grade that makes sense, or a refusal that says what it refuses."""
    try:
        grade = GRADERS[name](text)
    except InvalidInput as refused:
        grade = Grade(0.0, None, str(refused))
        if not grade.note:
            raise
    assert isinstance(grade, Grade)
    assert 0.0 <= grade.value <= 1.0
    assert math.isfinite(grade.value)
    assert len(grade.note) < 2000
    assert grade.value == 0.0 or grade.extracted is not None
    kept = grade.metric(name).metadata["extracted"]
    assert kept is None or len(kept) <= LONGEST_KEPT


def allow_more_time() -> None:
    """CPU_SECONDS from now on; the system ends the process that takes more."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + CPU_SECONDS, hard))


def grade_long_texts() -> None:
    """In the child: every text by every grader; what is under way is the last line printed."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for kind, text in long_texts():
        for name in GRADERS.keys() - READ_ALIKE:
            print(ascii(f"{name}: {kind}"), flush=True)
            allow_more_time()
            check(name, text)
        print(ascii(f"calls: {kind}"), flush=True)
        allow_more_time()
        called(text)
        same_calls([call(text)], [call(text)])
    print("done", flush=True)


def test_long_texts_of_anything_are_graded_in_bounded_time_and_memory() -> None:
    code = "from tests.scoring.test_hostile import grade_long_texts as g; g()"
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    last = child.stdout.splitlines()[-1] if child.stdout else "nothing was graded"
    assert (child.returncode, last) == (0, "done"), child.stderr[-2000:]


# --- Small, and broken in every way -------------------------------------------------------------

BROKEN = st.one_of(
    st.text(st.characters(exclude_categories=()), max_size=60),
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
)


@settings(max_examples=200)
@given(text=BROKEN)
def test_every_text_is_graded_or_refused(text: str) -> None:
    for name in GRADERS:
        check(name, text)
    for read in READERS.values():
        read(text)


@pytest.mark.parametrize(("opens", "closes"), [("[", "]"), ('{"x":', "}"), ("(", ")"), ("{", "}")])
def test_nesting_of_any_depth_is_a_grade(opens: str, closes: str) -> None:
    for depth in (100, 10_000):
        text = f"{opens * depth}1{closes * depth}"
        for name in GRADERS:
            check(name, text)
            check(name, f"Answer: \\boxed{{{text}}}")
        for read in READERS.values():
            read(text)


@pytest.mark.parametrize(
    "arguments",
    ["", "null", "7", "[]", '"x"', "{", '{"x": 1} {}', "NaN", '{"x": 1e999}', "9" * 5000, "\ud800"],
)
def test_arguments_that_are_no_object_are_a_problem_of_that_call(arguments: str) -> None:
    seen = called(arguments)
    assert seen.valid is False
    assert len(seen.problems) == 1
    assert not same_calls([call(arguments)], [call("{}")])


def test_a_key_that_stands_twice_is_read_one_way_only() -> None:
    twice = '{"x": [], "x": 5}'
    assert grade_json(twice, schema=SCHEMA).value == grade_json('{"x": 5}', schema=SCHEMA).value
    assert same_calls([call(twice)], [call('{"x": 5}')])


def test_schemas_that_cannot_be_used_are_refused() -> None:
    for schema in ({"$ref": "http://127.0.0.1:1/"}, {"pattern": "("}):
        with pytest.raises(InvalidInput):
            grade_json('"x"', schema=schema)


def test_patterns_that_explode_elsewhere_are_graded_or_refused() -> None:
    text = "a" * 100_000 + "!"
    for pattern in ("(a+)+$", "^(a|a)*$", "(a|aa)+$", "(.*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$"):
        assert grade_pattern(text, pattern=pattern).value == 0.0
    for pattern in ("a{1000}{1000}", "(?=a)a", r"(a)\1", "(" * 1000 + ")" * 1000, "(" * 5000):
        with pytest.raises(InvalidInput):
            grade_pattern(text, pattern=pattern)


# --- A whole run --------------------------------------------------------------------------------

ANSWERS = {
    "fine": ("Answer: 7", "7"),
    "huge": ("Answer: " * 50_000, "7"),
    "digits": ("7" * 400_000, "7"),
    "deep": ("[" * 200_000, "7"),
    "box": ("\\boxed{" * 20_000, "7"),
    "marks": ("Answer: 7" + "\u0301" * 100_000, "7"),
    "nul": ("Answer: 7\0\0", "7"),
    "right to left": ("\u202eAnswer: 7\u202c", "7"),
    "thinking": ("<think>" * 20_000, "7"),
    "half": ("Answer: 7 \ud800", "7"),
    "no number": ("Answer: 7", "many"),
    "no target": ("Answer: 7", None),
    "a list": ("Answer: 7", [7]),
}
UNFIT = {
    "half": "store: ",  # half a character is no text, and cannot be kept as one
    "no number": "correct: the target 'many' is not a number",
    "no target": "correct: the target (ground_truth) must be a number",
    "a list": "correct: the target (ground_truth) must be a number",
}


def test_a_run_over_hostile_answers_loses_nothing_but_what_cannot_be_graded(
    run_eval: RunEval,
) -> None:
    async def hostile(messages: list[Any]) -> str:
        return ANSWERS[messages[-1].text][0]

    rubric = Rubric(
        part(grade_number, name="correct"),
        part(is_one_line, weight=0),
        part(grade_json, weight=0, schema=SCHEMA),
        part(grade_pattern, weight=0, pattern=r"(\d+)+"),
        part(has_tags, weight=0, tags=["think"]),
    )
    samples = [Sample(name, {"question": name}, target) for name, (_, target) in ANSWERS.items()]
    report = run_eval(samples, rubric, endpoint=hostile)
    results = {result.sample_id: result for result in report.results}
    assert list(results) == list(ANSWERS)
    for name, result in results.items():
        if name in UNFIT:
            assert result.error is not None
            assert UNFIT[name] in result.error
        else:
            assert result.error is None, result.error
            assert result.score.metrics[0].name == "correct"
            assert len(result.score.metrics) == len(rubric.parts)
    assert results["fine"].score.metrics[0].value == 1.0
    assert report.summary["n_errors"] == len(UNFIT)
