"""What a sample asks, for rows as they are published, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from heldout import Message, Sample, ToolCall
from heldout._core.chat.questions import likely_question, question_of
from heldout.datasets import to_samples
from heldout.errors import InvalidInput

MATH = {
    "problem": "Evaluate $1 + 2$.",
    "solution": "We add them: $\\boxed{3}$.",
    "answer": "3",
    "subject": "Prealgebra",
    "level": 1,
    "unique_id": "test/prealgebra/1.json",
}
HUMAN_EVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def two():\n    """Return 2."""\n',
    "entry_point": "two",
    "canonical_solution": "    return 2\n",
    "test": "def check(candidate):\n    assert candidate() == 2\n",
}
GSM8K = {"question": "Two and two?", "answer": "2 + 2 = 4\n#### 4"}
MBPP = {
    "text": "Write a function to add.",
    "code": "def add(a, b):\r\n    return a + b",
    "task_id": 11,
    "test_setup_code": "",
    "test_list": ["assert add(1, 2) == 3"],
}
SANITIZED_MBPP = {
    "source_file": "b.json",
    "task_id": 11,
    "prompt": "Write a function to add.",
    "code": "def add(a, b): return a + b",
    "test_imports": [],
    "test_list": ["assert add(1, 2) == 3"],
}
ALPACA = {"instruction": "Translate to German.", "input": "Good day.", "output": "Guten Tag."}
APPS = {
    "problem_id": 1,
    "question": "Add two numbers.",
    "solutions": "[]",
    "input_output": "",
    "difficulty": "interview",
    "url": "https://example.org",
    "starter_code": "",
}
DAPO = {
    "prompt": [{"role": "user", "content": "1 + 1?"}],
    "reward_model": {"ground_truth": "2", "style": "rule"},
    "ability": "MATH",
}
ARC = {
    "id": "Mercury_1",
    "question": "What is hot?",
    "choices": {"text": ["ice", "fire"], "label": ["A", "B"]},
    "answerKey": "B",
}


def field_of(input: dict[str, Any], target: Any = None, **metadata: Any) -> str:
    return question_of(Sample("a", input, target, metadata)).field


@pytest.mark.parametrize(
    ("row", "field"),
    [
        (MATH, "problem"),
        (HUMAN_EVAL, "prompt"),
        (GSM8K, "question"),
        (SANITIZED_MBPP, "prompt"),
        ({**ALPACA, "input": ""}, "instruction"),
        (APPS, "question"),
        (DAPO, "prompt"),
        ({"query": "2 + 2?", "response": "4"}, "query"),
        ({"Problem": "1 + 1?", "Solution": "It is 2.", "Answer": 2}, "Problem"),  # AIME
        ({"prompt": None, "question": "1?", "problem": ""}, "question"),
    ],
)
def test_rows_ask_their_question_as_they_are_published(row: dict[str, Any], field: str) -> None:
    question = question_of(Sample("a", row))
    asked = row[field] if isinstance(row[field], str) else row[field][0]["content"]
    assert question == (field, [Message("user", asked)])


def test_messages_are_taken_as_chat_datasets_have_them() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    chat = [
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    expected = [
        Message("system", "be brief"),
        Message("assistant", "", (ToolCall("1", "f", '{"x": 1}'),)),
    ]
    for field in ("messages", "prompt"):
        assert question_of(Sample("a", {field: chat})).messages == expected


@pytest.mark.parametrize(
    "input", [{"text": "hello"}, {"input": "hello"}, {"text": "hello", "n": 3, "prompt": None}]
)
def test_the_only_text_of_an_input_is_the_question_under_another_name(
    input: dict[str, Any],
) -> None:
    assert question_of(Sample("a", input, "bye")).messages == [Message("user", "hello")]


@pytest.mark.parametrize(
    "name",
    [
        *("answer", "solution", "target", "label", "canonical_solution", "ground_truth", "output"),
        *("reference", "response", "answerKey", "Final Answer", "GroundTruth", "gold_label"),
        *("expected_output", "code", "completion", "unique_id", "task_id"),
    ],
)
def test_a_field_that_is_named_as_an_answer_is_never_asked(name: str) -> None:
    with pytest.raises(InvalidInput, match="named as an answer or an id"):
        question_of(Sample("a", {name: "4"}))
    # Nor is it proposed.
    with pytest.raises(InvalidInput, match=r"row\['text'\]"):
        question_of(Sample("a", {name: "4", "text": "2 + 2?"}))


@pytest.mark.parametrize("target", ["4", " 4\n", 4, ["four", "4"]])
def test_a_field_that_equals_the_target_is_neither_asked_nor_proposed(target: Any) -> None:
    with pytest.raises(InvalidInput, match="equal to the target"):
        question_of(Sample("a", {"value": "4"}, target))
    with pytest.raises(InvalidInput, match=r"row\['text'\]"):
        question_of(Sample("a", {"value": "4", "text": "2 + 2?"}, target))
    assert field_of({"question": "4"}, target) == "question"  # a policy that is to repeat it


def test_two_questions_are_refused_by_name() -> None:
    for row in (
        {"question": "1?", "prompt": "2?"},
        {"messages": DAPO["prompt"], "Question": "2?"},
        {"problem": "1?", "query": "2?", "text": "3"},
    ):
        first, second = [*row][:2]
        with pytest.raises(InvalidInput, match=f"several questions: '{first}' and '{second}'"):
            question_of(Sample("a", row))


@pytest.mark.parametrize(
    ("row", "missing"),
    [
        (ALPACA, "input"),
        ({"question": "Who?", "context": "Ada wrote it."}, "context"),
        ({"question": "Who?", "Passage": "Ada wrote it."}, "Passage"),
        ({"question": "Which?", "options": ["ice", "fire"]}, "options"),
        (ARC, "choices"),
        ({"question": "Who?", "context": {"title": ["Ada"], "sentences": [["She."]]}}, "context"),
        ({**APPS, "starter_code": "def add(a, b):"}, "starter_code"),
        ({"text": "Which?", "choices": ["ice", "fire"]}, "choices"),
    ],
)
def test_a_question_without_the_text_that_it_needs_is_refused(
    row: dict[str, Any], missing: str
) -> None:
    with pytest.raises(InvalidInput, match=f"'{missing}' beside .* alone.*prepare_messages"):
        question_of(Sample("a", row))


def test_what_a_question_needs_may_be_in_it_already() -> None:
    choices = ["ice", "fire"]
    asked = "Which is hot?\nA. ice\nB. fire"
    assert field_of({"question": asked, "choices": choices, "context": "", "options": []})
    messages = [{"role": "system", "content": "Ada."}, {"role": "user", "content": "Who?"}]
    assert field_of({"messages": messages, "context": "Ada."}) == "messages"
    assert field_of({"question": "Which is hot?"}, choices=choices) == "question"


def test_what_is_not_asked_as_it_stands_is_read_without_a_refusal() -> None:
    def likely(input: dict[str, Any]) -> list[str]:
        return [message.text for message in likely_question(Sample("a", input))]

    assert likely({"question": "2?", "prompt": "1?"}) == ["1?"]
    assert likely({"Query": "2?", "question": "1?"}) == ["1?"]
    assert likely({"question": "Who?", "context": "Ada."}) == ["Who?"]
    assert likely({"prompt": 3, "question": "1?"}) == ["1?"]
    assert likely({"text": "1?"}) == ["1?"]
    assert likely({"solution": "4"}) == likely({"messages": []}) == likely({}) == []


def test_metadata_that_take_the_question_away_are_named() -> None:
    columns = ["prompt", "entry_point", "test"]
    [sample] = to_samples([HUMAN_EVAL], id="task_id", metadata=columns)
    with pytest.raises(InvalidInput, match=r"in its metadata alone.*input=\['prompt'\]"):
        question_of(sample)
    [sample] = to_samples([HUMAN_EVAL], id="task_id", input=["prompt"], metadata=columns)
    assert question_of(sample).field == "prompt"
    with pytest.raises(InvalidInput, match="'query' is in its metadata alone"):
        question_of(Sample("a", {"text": "another text"}, metadata={"query": "2 + 2?"}))


@pytest.mark.parametrize(
    ("input", "message"),
    [
        ({}, r"'a': input has no question \(messages, prompt.*Add one"),
        ({"n": 1, "tags": ["a"]}, r"has no question.*\['n', 'tags'\]. Add one"),
        (
            {"stem": "2 + 2", "level": "easy"},
            r"'stem' and 'level' are all texts.*\{'question': row\['stem'\]\}, or pass prepare",
        ),
        (MBPP, r"\{'question': row\['text'\]\}"),
        ({"messages": [], "text": "hello"}, "messages'] must be a text or a list.*an empty list"),
        ({"messages": []}, "got an empty list"),
        ({"messages": ["hi"]}, "message"),
        ({"prompt": 3}, r"input\['prompt'\] must be a text or a list of messages, got int"),
    ],
)
def test_an_input_without_anything_to_ask_is_refused(
    input: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        question_of(Sample("a", input))
