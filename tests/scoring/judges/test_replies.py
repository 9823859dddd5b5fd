from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.scoring.judges.replies import LONGEST_REPLY, Malformed, json_object

RIGHT = '{"verdict": "correct"}'


@pytest.mark.parametrize(
    "reply",
    [
        RIGHT,
        f"\n  {RIGHT}\n",
        f"```json\n{RIGHT}\n```",
        f"```\n{RIGHT}\n```",
        f"It is \\frac{{1}}{{2}}, so:\n\n```json\n{RIGHT}\n```\nThat is all.",
        f"First some code:\n```python\nprint(1)\n```\nand so\n```json\n{RIGHT}\n```",
        f'<think>perhaps {{"verdict": "incorrect"}}?</think>\n{RIGHT}',
        f'perhaps {{"verdict": "incorrect"}}?</think>{RIGHT}',
        f"<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>{RIGHT}",
    ],
)
def test_a_reply_is_one_object_or_has_one_fenced_block(reply: str) -> None:
    assert json_object(reply) == {"verdict": "correct"}


def test_a_reason_may_quote_reasoning_tags() -> None:
    said = '{"reasoning": "it begins with <think> and never ends", "verdict": "incorrect"}'
    assert json_object(said)["verdict"] == "incorrect"


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("", "no text"),
        ("  \n", "no text"),
        ("<think>it is", "never ended"),
        ("CORRECT: A capital city", "not one JSON object"),
        ("A", "not one JSON object"),
        ("correct", "not one JSON object"),
        (f"Sure! {RIGHT}", "text beside it"),
        (f"{RIGHT} is my verdict.", "text beside it"),
        (f'{RIGHT}\n{{"verdict": "incorrect"}}', "not a JSON object"),
        (f"[{RIGHT}]", "not one JSON object"),
        ('"correct"', "not one JSON object"),
        ('{"verdict": "correct", "verdict": "incorrect"}', "same key twice"),
        ('{"a": [{"b": 1, "b": 2}]}', "same key twice"),
        ("{'verdict': 'correct'}", "not a JSON object"),
        ('{"verdict": "correct",}', "not a JSON object"),
        ('{"verdict": NaN}', "not a JSON object"),
        (f"```json\n{RIGHT}\n```\n```json\n{RIGHT}\n```", "several code blocks"),
        (f'```json\n{RIGHT}\n```\nor {{"verdict": "incorrect"}}', "another JSON object"),
        (f"```python\n{RIGHT}\n```", "no object at all"),
        (f"```json\n{RIGHT}", "never ends"),
        ("{" * 50_000, "not one JSON object"),
        ('{"a":' * 9_000 + "1" + "}" * 9_000, "not a JSON object"),
        (" " * LONGEST_REPLY + RIGHT, "at most"),
    ],
)
def test_anything_else_is_malformed_and_says_why(reply: str, problem: str) -> None:
    with pytest.raises(Malformed, match=problem):
        json_object(reply)


def test_a_reply_that_was_cut_off_is_malformed_even_where_it_reads_well() -> None:
    with pytest.raises(Malformed, match="cut off at the length limit"):
        json_object(RIGHT, "length")


def test_an_empty_reply_names_an_unusual_finish_reason() -> None:
    with pytest.raises(Malformed, match="content_filter"):
        json_object("", "content_filter")


@pytest.mark.parametrize(
    "reply",
    [
        "{" + ",".join(f'"{i}":1' for i in range(9_000)) + "}",
        '{"a":' + "1" * 90_000 + "}",
        "```\n" * 20_000,
        '{ "' * 30_000,
        "<think>" * 14_000,
    ],
)
def test_a_hostile_reply_takes_no_time(reply: str) -> None:
    began = time.process_time()
    with suppress(Malformed):
        json_object(reply)
    assert time.process_time() - began < 60  # a hang guard: these take milliseconds


@given(st.text())
def test_whatever_a_judge_says_is_an_object_or_malformed(reply: str) -> None:
    with suppress(Malformed):
        assert isinstance(json_object(reply), dict)
