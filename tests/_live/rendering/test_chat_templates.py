"""ChatRenderer: exactly the ids of tokenising everything, for less; and text that renders again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from heldout._core.chat.messages import to_chat_api
from heldout._live.rendering import chat_templates
from heldout._live.rendering.chat_templates import (
    ChatRenderer,
    Dialect,
    describe_tools,
    write_tool_call,
)
from heldout.errors import InvalidInput
from heldout.types import Message, ToolCall, ToolSpec
from tests._live.rendering.families import (
    byte_level,
    family,
    gemma_like,
    legacy_metaspace,
    metaspace,
    tokenizer_of,
)

CHATML = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{{ message['content'] }}{{ eos_token }}{% else %}[INST] {{ message['content'] }} [/INST]"
    "{% endif %}{% endfor %}"
)
PLAIN = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"

# Tokens that contain, begin or continue each other, or take in the text around them.
AWKWARD: list[AddedToken | str] = [
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|im_end|>\n<|",
    "a<|im_start|>b",
    "[INST]",
    "[/INST]",
    AddedToken("<left>", special=True, normalized=False, lstrip=True),
    AddedToken("<right>", special=True, normalized=False, rstrip=True),
    AddedToken("<word>", special=True, normalized=False, single_word=True),
    AddedToken("<plain>", special=True, normalized=True),
    AddedToken("  ", special=True, normalized=False),
]
PIECES = [
    *("<|im_start|>", "<|im_end|>", "<|im_end|>\n<|", "a<|im_start|>b", "[INST]", "[/INST]"),
    *("</s>", "<left>", "<right>", "<word>", "<plain>", "<|im_", "end|>", "<think>", "</think>"),
    *(
        "\n",
        "\n\n",
        " ",
        "  ",
        "\t",
        "a",
        "b",
        "the sum",
        "It is five.",
        ".",
        "é",
        "漢字",
        "🙂",
        "",
    ),
]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=6).map("".join)
messages = st.builds(Message, st.sampled_from(["user", "assistant", "system"]), texts)


def tokenised(tokenizer: Any, messages: Sequence[Message], prompt: bool) -> list[int]:
    ids = tokenizer.apply_chat_template(
        [to_chat_api(message) for message in messages],
        add_generation_prompt=prompt,
        return_dict=False,
    )
    assert isinstance(ids, list)
    return ids


def awkward(kind: Callable[[], str], template: str) -> Any:
    return tokenizer_of(
        kind,
        AWKWARD,
        ["<think>", "</think>"],
        bos_token="<s>",
        eos_token="</s>",
        chat_template=template,
    )


TOKENIZERS = {
    "bytes": (byte_level, CHATML),
    "bytes, plain": (byte_level, PLAIN),
    "metaspace": (metaspace, LLAMA_2),
    "legacy metaspace": (legacy_metaspace, LLAMA_2),
    "gemma": (gemma_like, CHATML),
}


# --- Ids ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [byte_level, metaspace, legacy_metaspace, gemma_like])
def test_the_ids_of_a_text_are_those_of_tokenising_all_of_it(kind: Callable[[], str]) -> None:
    tokenizer = awkward(kind, "{{ messages[0]['content'] }}")

    @settings(max_examples=60)
    @given(texts, st.lists(st.tuples(st.integers(0, 60), texts), min_size=1, max_size=6))
    def check(text: str, steps: list[tuple[int, str]]) -> None:
        render = ChatRenderer(tokenizer)
        for cut, more in [(0, text), *steps]:
            # It goes on from anywhere in the last one, in the middle of a token too.
            text = text[:cut] + more if cut < 50 else text + more
            expected = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert render([Message("user", text)], True) == expected

    check()


@pytest.mark.parametrize("kind", [byte_level, metaspace, legacy_metaspace, gemma_like])
def test_a_token_that_must_stand_alone_is_none_before_a_token_that_begins_with_a_letter(
    kind: Callable[[], str],
) -> None:
    tokenizer = awkward(kind, "{{ messages[0]['content'] }}")
    render = ChatRenderer(tokenizer)
    for text in ("<|im_end|><word>a<|im_start|>b.", "<word><|im_start|>b", "<word>"):
        expected = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert render([Message("user", text)], True) == expected


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_ids_of_a_conversation_are_those_of_its_template(name: str) -> None:
    tokenizer = awkward(*TOKENIZERS[name])

    @settings(max_examples=10)
    @given(
        st.lists(messages, min_size=1, max_size=4),
        st.lists(st.tuples(st.integers(0, 9), st.lists(messages, max_size=3)), max_size=4),
    )
    def check(opening: list[Message], steps: list[tuple[int, list[Message]]]) -> None:
        render = ChatRenderer(tokenizer)
        conversations = [opening]
        for place, more in steps:
            # One goes on, or is taken up again somewhere in the middle.
            earlier = conversations[place % len(conversations)]
            conversations.append([*earlier[: 1 + place], *more])
        for conversation in conversations:
            for prompt in (True, False):
                assert render(conversation, prompt) == tokenised(tokenizer, conversation, prompt)

    check()


class Counting:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.characters = tokenizer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, texts: list[str], **options: Any) -> Any:
        self.characters += sum(map(len, texts))
        return self._tokenizer(texts, **options)


def talk(turns: int, topic: str = "") -> list[Message]:
    said = [Message("user", f"{topic} What is the sum of two and {i}?" * 20) for i in range(turns)]
    return [m for ask in said for m in (ask, Message("assistant", "It is five. " * 20))]


def test_only_what_is_new_is_tokenised_in_conversations_that_take_turns() -> None:
    tokenizer = Counting(awkward(byte_level, CHATML))
    render = ChatRenderer(tokenizer)
    conversations = [talk(10, topic) for topic in ("a", "b", "c", "d")]
    longest = max(len(render.text(c[-2:], True)) for c in conversations)
    for turn in range(10):
        for conversation in conversations:
            tokenizer.characters = 0
            render(conversation[: 2 * turn + 1], True)
            # The last turn and its reply, and the one before it at most.
            assert tokenizer.characters < 2 * longest


def test_what_is_kept_of_earlier_texts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = awkward(byte_level, CHATML)
    render = ChatRenderer(tokenizer)
    for turns in range(1, 6):  # one that grows is kept once
        render(talk(turns)[:-1], True)
    assert sum(map(len, render._chunks)) <= len(render.text(talk(5)[:-1], True))
    monkeypatch.setattr(chat_templates, "CACHED_CHARACTERS", 10_000)
    render = ChatRenderer(tokenizer)
    for turns in (1, 3, 2, 20, 2):  # the fourth has more than all that may be kept
        for topic in ("a", "b", "c", "d"):
            conversation = talk(turns, topic)
            assert render(conversation, True) == tokenised(tokenizer, conversation, True)
            assert sum(map(len, render._chunks)) <= 10_000


def test_special_tokens_that_are_to_be_split_are_split() -> None:
    tokenizer = awkward(byte_level, CHATML)
    tokenizer.split_special_tokens = True
    render = ChatRenderer(tokenizer)
    for turns in (2, 3):
        assert render(talk(turns), True) == tokenised(tokenizer, talk(turns), True)


def test_one_renderer_serves_many_threads() -> None:
    tokenizer = awkward(byte_level, CHATML)
    render = ChatRenderer(tokenizer)
    wrong: list[str] = []

    def go(topic: str) -> None:
        for turns in range(1, 6):
            if render(talk(turns, topic), True) != expected[topic, turns]:
                wrong.append(topic)

    expected = {
        (topic, turns): tokenised(tokenizer, talk(turns, topic), True)
        for topic in "abcd"
        for turns in range(1, 6)
    }
    threads = [threading.Thread(target=go, args=(topic,)) for topic in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- What the template is told ------------------------------------------------------------------

CALL = ToolCall("call00000", "add", '{"a": 2}')
CALLING = (
    "{{ tools or '' }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or () %}"
    "ONE{% endfor %}{% endfor %}"
)


def calling(one: str) -> ChatRenderer:
    """A template that lists tools and renders a call `c` like this."""
    return ChatRenderer(awkward(byte_level, CALLING.replace("ONE", one)))


def test_a_template_without_tools_is_told_none_instead_of_an_empty_list() -> None:
    render = ChatRenderer(awkward(byte_level, "{{ tools is none }} {{ tools }}"))
    assert render.text([Message("user", "x")], True) == "True None"
    assert render.text([Message("user", "x")], True, [ToolSpec("add")]).startswith("False [{")


ONE_AT_A_TIME = (
    "{% if m.tool_calls | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}"
    "{{ c.function }}"
)


def test_what_a_template_refuses_is_told_as_text_in_prompts_alone() -> None:
    render = calling(ONE_AT_A_TIME)
    other = ToolCall("call00001", "add", '{"a": 3}')
    talk = [Message("user", "?"), Message("assistant", "", (CALL, other))]
    with pytest.raises(Exception, match="one at a time"):
        render(talk, True)  # a rollout's earlier turns must not change
    written = (write_tool_call(call) for call in (CALL, other))
    assert render.spell(render.prompt(talk)) == "?" + "\n".join(written)
    assert render.prompt(talk[:1]) == render(talk[:1], True)


def test_what_a_template_knows_of_tools_is_found_out_once_and_only_if_there_are_any() -> None:
    class Listening(Counting):
        told = 0

        def apply_chat_template(self, *args: Any, **settings: Any) -> Any:
            self.told += 1
            return self._tokenizer.apply_chat_template(*args, **settings)

    tokenizer = Listening(awkward(byte_level, CHATML))
    render = ChatRenderer(tokenizer)
    render(talk(2), True)
    assert tokenizer.told == 1
    render(talk(2), True, [ToolSpec("add")])
    probed = tokenizer.told
    assert probed > 2
    render(talk(3), True, [ToolSpec("add")])
    assert tokenizer.told == probed + 1


def test_a_template_that_knows_no_tools_has_them_in_its_texts() -> None:
    render = ChatRenderer(awkward(byte_level, CHATML))
    said = [
        Message("user", "1 + 1?"),
        Message("assistant", "", (CALL,)),
        Message("tool", "two", tool_call_id="call00000"),
    ]
    assert render.text(said, True, [ToolSpec("add")]) == (
        f"<s><|im_start|>system\n{describe_tools([ToolSpec('add')])}<|im_end|>\n"
        "<|im_start|>user\n1 + 1?<|im_end|>\n"
        f"<|im_start|>assistant\n{write_tool_call(CALL)}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\ntwo\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_result_has_the_name_of_the_last_call_of_its_id() -> None:
    said = [
        message
        for name in ("add", "multiply")
        for message in (
            Message("assistant", "", (ToolCall("call00000", name),)),
            Message("tool", "4", tool_call_id="call00000"),
        )
    ]
    converted = Dialect(True, "mapping", True, True).convert(said, ())
    assert [m["name"] for m in converted if m["role"] == "tool"] == ["add", "multiply"]


def test_further_keywords_reach_the_template_if_it_reads_them() -> None:
    render = ChatRenderer(family("qwen3"), enable_thinking=False)
    assert render.text([Message("user", "x")], True).endswith("<think>\n\n</think>\n\n")
    with pytest.raises(InvalidInput, match="does not read 'enable_thinkin'"):
        ChatRenderer(family("qwen3"), enable_thinkin=False)


def test_a_tokenizer_without_a_template_needs_one() -> None:
    tokenizer = tokenizer_of(byte_level, ["<s>"])
    with pytest.raises(InvalidInput, match="has no chat template: pass chat_template="):
        ChatRenderer(tokenizer)
    assert ChatRenderer(tokenizer, chat_template="<s>").text([Message("user", "x")], True) == "<s>"


# --- Back to text -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3", "<think>\nhm\n</think>\n\n It is <|im_start|> five.  "),
        ("gemma3", "It is  five.\n\nA"),
        ("phi3", "It is five."),
        ("phi3_5", " It is five."),
        ("llama3_1", '<|python_tag|>{"name": "add"}'),
        ("glm4moe", "\n<think></think>\n\nIt is 漢字 🙂"),
    ],
)
def test_a_decoded_turn_renders_to_the_tokens_it_was_made_of(name: str, text: str) -> None:
    tokenizer = family(name)
    special = tokenizer.bos_token or tokenizer.eos_token
    template = special + "{{ messages[0].content }}" + special
    render = ChatRenderer(tokenizer, chat_template=template)
    ids = render([Message("assistant", text)], False)
    assert render([Message("assistant", render.decode(ids[1:-1]))], False) == ids


@pytest.mark.parametrize(
    ("name", "written", "text"),
    [
        ("qwen3", "It<|im_end|>", "It"),
        ("phi3_5", "It<|end|><|endoftext|><|endoftext|>", "It"),
        ("gemma3", "It<end_of_turn>", "It"),
        ("glm4moe", "It<|observation|>", "It"),
        ("glm4moe", "It<|user|>", "It"),
        ("cohere2", "It<|END_RESPONSE|><|END_OF_TURN_TOKEN|>", "It"),
        ("gptoss", "<|channel|>final<|message|>It<|return|>", "<|channel|>final<|message|>It"),
        ("qwen3", "It<|im_end|><tool_call>", "It<|im_end|><tool_call>"),
        ("qwen3", "<|im_end|>", ""),
    ],
)
def test_decode_leaves_out_what_ends_a_turn_and_nothing_else(
    name: str, written: str, text: str
) -> None:
    render = ChatRenderer(family(name))
    before = render.tokenizer.eos_token
    ids = render.tokenizer(before + written, add_special_tokens=False)["input_ids"]
    assert render.decode(ids[1:]) == text


DRAFT = write_tool_call(CALL)
PAIR = "<arg_key>{}</arg_key><arg_value>2</arg_value>"


@pytest.mark.parametrize(
    ("name", "written", "meant"),
    [
        ("llama3_1", '<|python_tag|>{"name": "add", "parameters": {"a": 2}}', ("", (CALL,))),
        ("llama3_1", "It <|eot_id|>is", ("It is",)),
        ("deepseekv3", f"hm {DRAFT}", ("hm", (CALL,))),
        ("deepseekv3", f"<think>\nhm {DRAFT}", (f"<think>\nhm {DRAFT}",)),
        ("deepseekv3", f"<think>\n{DRAFT}</think>{DRAFT}", (f"<think>\n{DRAFT}</think>", (CALL,))),
        (  # the schema of a tool tells text from numbers
            "glm4moe",
            f"<tool_call>add{PAIR.format('a')}{PAIR.format('b')}</tool_call>",
            ("", (ToolCall("call00000", "add", '{"a": 2, "b": "2"}'),)),
        ),
        (
            "gptoss",
            "<|channel|>analysis<|message|>Let me think.<|end|><|start|>assistant"
            "<|channel|>final<|message|>It is four.",
            ("It is four.", (), None, "Let me think."),
        ),
    ],
)
def test_what_was_written_is_parsed_into_thoughts_calls_and_words(
    name: str, written: str, meant: tuple[Any, ...]
) -> None:
    tool = ToolSpec("add", "", {"properties": {"b": {"type": "string"}}})
    render = ChatRenderer(family(name))
    assert render.parse(written, tools=[tool]) == Message("assistant", *meant)
    assert [call.id for call in render.parse(DRAFT, first=3).tool_calls] == ["call00003"]
