"""Chat messages in the forms of chat APIs and datasets."""

from __future__ import annotations

import pytest

from heldout import Message, ToolCall
from heldout.chat.messages import messages_of
from heldout.errors import InvalidInput


@pytest.mark.parametrize("key", ["prompt", "question"])
def test_a_prompt_or_question_becomes_the_users_message(key: str) -> None:
    assert messages_of({key: "hello"}) == [Message("user", "hello")]


@pytest.mark.parametrize(
    "input", [{"problem": "hello"}, {"text": "hello", "id": 3, "choices": ["a"], "prompt": None}]
)
def test_the_only_text_of_an_input_is_the_question_whatever_its_name(
    input: dict[str, object],
) -> None:
    assert messages_of(input) == [Message("user", "hello")]


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
    assert messages_of({"messages": chat}) == expected
    assert messages_of({"prompt": chat}) == expected


@pytest.mark.parametrize(
    ("input", "message"),
    [
        ({}, "has no 'prompt'"),
        ({"id": 1, "tags": ["a"]}, r"has no 'prompt'.*\['id', 'tags'\]. Add one"),
        (
            {"problem": "2 + 2", "level": "easy"},
            r"'problem', 'level' are all texts.*\{'question': row\['problem'\]\}, or pass prepare",
        ),
        ({"messages": [], "text": "hello"}, "has no 'prompt'"),
        ({"messages": []}, "has no 'prompt'"),
        ({"messages": ["hi"]}, "message"),
        ({"prompt": 3}, r"input\['prompt'\] is a text or a list of messages, got int"),
    ],
)
def test_an_input_without_anything_to_ask_is_refused(
    input: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        messages_of(input)
