"""Rollouts over the chat templates of real model families: what each allows, and that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import pytest

from heldout import Message, Reply, Sample
from heldout._core.chat.messages import to_chat_api
from heldout._live.rendering.chat_templates import ChatRenderer
from heldout._live.rendering.examine import CONVERSATIONS, TOOLS, Examination, examine
from heldout._live.rendering.segments import Segments, Template
from heldout.rollouts.generating import Generated, Rollout, rollout_batch
from heldout.types import ToolCall, ToolSpec
from tests._live.rendering.families import FAMILIES, family

KINDS = [conversation.kind for conversation in CONVERSATIONS]

# Of each kind of conversation, in the order of KINDS: Y allowed, n not, - the template has none.
ALLOWED = {
    #                       user reply            tool reply
    #                       plain system think cut  one system two think
    "qwen3": ("nnnn nnnY", "YYYY YYYY"),
    "qwen2_5": ("YYYY YYYY", "YYYY YYYY"),
    "qwen3_instruct_2507": ("YYYY YYYY", "YYYY YYYY"),
    "llama3": ("YYYY YYYY", "YYYY YYYY"),
    "llama3_1": ("YYYY YY-Y", "YYYY YY-Y"),
    "llama3_2": ("YYYY YY-Y", "YYYY YY-Y"),
    "gemma": ("Y-YY Y-YY", "Y-YY Y-YY"),
    "gemma3": ("YYYY YYYY", "YYYY YYYY"),
    "gemma4": ("YYYY nnnn", "YYYY YYYY"),
    "phi3": ("YYYY YYYY", "YYYY YYYY"),
    "phi3_5": ("YYYY YYYY", "YYYY YYYY"),
    "deepseekv3": ("nnnn nnnn", "YYYY YYYY"),
    "deepseek_r1_distill": ("nnnn nnnn", "YYYY YYYY"),
    "glm4moe": ("YYnY YYYY", "YYYY YYYY"),
    "gptoss": ("nnnn nnnn", "YYYY YYYY"),
    "cohere": ("YYYY YYYY", "YYYY YYYY"),
    "cohere2": ("YYYY YYYY", "YYYY YYYY"),
    "lfm2_v2": ("YYYY YYYY", "YYYY YYYY"),
    "nemotron_3_nano": ("nnnn nnnn", "YYYY YYYY"),
}


# Those whose templates list no tools: tools, calls and results are written as text.
AS_TEXT = [
    *("llama3", "gemma", "gemma3", "phi3", "phi3_5", "cohere", "cohere2"),
    *("deepseekv3", "deepseek_r1_distill"),
]


def test_the_table_has_all_families() -> None:
    assert list(ALLOWED) == list(FAMILIES)
    assert len(KINDS) == 8


@pytest.mark.parametrize("name", FAMILIES)
def test_a_template_is_found_to_be_what_the_table_says(name: str) -> None:
    """The modes it allows, what is written as text, and both readings of what it does not allow."""
    found = examined(name)
    modes: tuple[Segments, Segments] = ("suffix", "boundary")
    for mode, expected in zip(modes, ALLOWED[name], strict=True):
        letters = {True: "Y", False: "n", None: "-"}
        row = {f.kind: letters[f.ok] for f in found.findings if f.segments == mode}
        assert "".join(row[kind] for kind in KINDS) == expected.replace(" ", "")
        assert found.allows(mode) == ("n" not in expected)
    assert examine(ChatRenderer(family(name))).chosen == found.recommended == "boundary"
    as_text = ("tools", "calls", "results") if name in AS_TEXT else ()
    assert ChatRenderer(family(name)).dialect.as_text == as_text
    for finding in found.findings:
        if finding.ok is False and finding.position is not None:
            assert finding.so_far != finding.rendered
            assert finding.so_far
            assert finding.rendered
        elif finding.ok is False:
            assert finding.why is not None
            assert "refuses the conversation" in finding.why


@cache
def examined(name: str) -> Examination:
    render = ChatRenderer(family(name))
    return examine(render, render.decode)


# --- Rollouts -----------------------------------------------------------------------------------

HERMES = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call>'
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
    '{"a": 2, "b": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
GLM = (
    "\n<think></think>\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>2</arg_value>\n"
    "<arg_key>b</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
)
THOUGHTS = "<think>\nLet me think.\n</think>\n\n"


class Habits(NamedTuple):
    """How models of a family write."""

    answer: str
    call: str | None = None
    """None if it is in a convention of its own."""


def habits(end: str, thoughts: str = "", call: str = HERMES) -> Habits:
    return Habits(f"{thoughts}It is four.{end}", f"{thoughts}{call}{end}")


LLAMA = '{"name": "add", "parameters": {"a": 2, "b": 2}}'
WRITTEN = {
    "qwen3": habits("<|im_end|>", THOUGHTS),
    "qwen2_5": habits("<|im_end|>"),
    "qwen3_instruct_2507": habits("<|im_end|>"),
    "llama3": habits("<|eot_id|>"),
    "llama3_1": habits("<|eot_id|>", call=LLAMA),
    "llama3_2": habits("<|eot_id|>", call=LLAMA),
    "gemma": habits("<end_of_turn>"),
    "gemma3": habits("<end_of_turn>"),
    "gemma4": Habits("It is four.<turn|>"),
    "phi3": habits("<|end|>"),
    "phi3_5": habits("<|end|>"),
    "deepseekv3": habits("<｜end▁of▁sentence｜>", "Let me think.\n</think>\n\n", DEEPSEEK),
    "deepseek_r1_distill": habits("<｜end▁of▁sentence｜>", "Let me think.\n</think>\n\n", DEEPSEEK),
    "glm4moe": Habits(
        "\n<think>Let me think.</think>\nIt is four.<|user|>", f"{GLM}<|observation|>"
    ),
    "gptoss": Habits(
        "<|channel|>analysis<|message|>Let me think.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>It is four.<|return|>",
        ' to=functions.add<|channel|>commentary json<|message|>{"a": 2, "b": 2}<|call|>',
    ),
    "cohere": habits("<|END_OF_TURN_TOKEN|>"),
    "cohere2": habits("<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"),
    "lfm2_v2": habits("<|im_end|>"),
    "nemotron_3_nano": habits("<|im_end|>", "Let me think.\n</think>\n"),
}


class Adder:
    """Answers calls as a tool and words as the user."""

    def __init__(self, tools: Sequence[ToolSpec] = ()) -> None:
        self.tools = tools

    def opening(self) -> list[Message]:
        return []

    def reply(self, messages: Sequence[Message]) -> Reply:
        calls = messages[-1].tool_calls
        number = sum(message.role == "assistant" for message in messages)
        if calls:
            sums = (Message("tool", f"The sum: {number}", tool_call_id=c.id) for c in calls)
            return Reply(tuple(sums))
        return Reply((Message("user", f"And {number} more?"),))

    def close(self) -> None:
        pass


class Engine:
    """Goes on from each prompt with the next of its texts. It knows what it wrote before."""

    def __init__(self, render: ChatRenderer, *texts: str) -> None:
        self._tokenizer, self._texts = render.tokenizer, texts
        self.sampled: list[list[list[int]]] = []
        self._so_far: list[list[int]] = []

    def __call__(self, prompts: list[list[int]], room: list[int]) -> list[Generated]:
        return [self._go_on(prompt) for prompt in prompts]

    def _go_on(self, prompt: list[int]) -> Generated:
        known = [i for i, so_far in enumerate(self._so_far) if prompt[: len(so_far)] == so_far]
        place = known[0] if known else len(self._so_far)
        if not known:
            self.sampled.append([])
            self._so_far.append([])
        ids = self._written(self._texts[len(self.sampled[place])])
        self.sampled[place].append(ids)
        self._so_far[place] = prompt + ids
        return Generated(ids, [-1.0] * len(ids))

    def _written(self, text: str) -> list[int]:
        """Its tokens where it follows other text; at the very start some would get a space."""
        before = self._tokenizer.bos_token or self._tokenizer.eos_token
        ids = self._tokenizer(before + text, add_special_tokens=False)["input_ids"]
        return list(ids[1:])


def roll_out(
    render: ChatRenderer,
    texts: Sequence[str],
    mode: Segments,
    tools: Sequence[ToolSpec] = (),
    **how: Any,
) -> tuple[list[Rollout], Engine]:
    samples = [Sample(f"{i}", {"question": f"What is {i} and two?"}) for i in range(3)]
    engine = Engine(render, *texts)
    rollouts = rollout_batch(
        samples, lambda sample: Adder(tools), render, engine, len(texts), 400, segments=mode, **how
    )
    return rollouts, engine


def parts(rollout: Rollout) -> tuple[list[list[int]], list[list[int]]]:
    """The model's turns and, between them, the environment's, as the mask has them."""
    turns: list[list[int]] = []
    segments: list[list[int]] = []
    before = 0
    for id, ours in zip(rollout.completion_ids, rollout.env_mask, strict=True):
        found = turns if ours else segments
        if ours != before:
            found.append([])
        found[-1].append(id)
        before = ours
    return turns, segments


def check(rollouts: list[Rollout], engine: Engine, render: ChatRenderer) -> None:
    for rollout, sampled in zip(rollouts, engine.sampled, strict=True):
        assert rollout.error is None
        turns, segments = parts(rollout)
        assert turns == sampled
        replies = [m for m in rollout.trajectory.messages[1:-1] if m.role in ("user", "tool")]
        assert len(replies) == len(segments) == len(turns) - 1
        for reply, segment in zip(replies, segments, strict=True):
            assert reply.text in render.spell(segment)


RECOMMENDED: dict[str, Segments] = {
    name: "suffix" if "n" not in suffix else "boundary" for name, (suffix, _) in ALLOWED.items()
}


@pytest.mark.parametrize("name", WRITTEN)
def test_replies_of_tools_and_users_stand_between_exactly_what_was_sampled(name: str) -> None:
    render, (answer, call) = ChatRenderer(family(name)), WRITTEN[name]
    texts = [call or answer, answer, call or answer, answer]
    rollouts, engine = roll_out(render, texts, RECOMMENDED[name], TOOLS if call else ())
    for rollout in rollouts:
        roles = ["tool", "user", "tool", "user"] if call else ["user"] * 4
        assert [message.role for message in rollout.trajectory.messages[2::2]] == roles
        said = rollout.trajectory.messages[1::2]
        ids = [made.id for message in said for made in message.tool_calls]
        assert ids == (["call00000", "call00001"] if call else [])
    check(rollouts, engine, render)


@pytest.mark.parametrize("name", [name for name in AS_TEXT if "n" not in ALLOWED[name][0]])
def test_two_results_told_as_text_are_one_message_of_the_user(name: str) -> None:
    render, (answer, call) = ChatRenderer(family(name)), WRITTEN[name]
    assert call is not None
    texts = [call.replace(HERMES, f"{HERMES}\n{HERMES}"), answer, answer]
    modes: tuple[Segments, Segments] = ("suffix", "boundary")
    for mode in modes:
        [rollout, *_], engine = roll_out(render, texts, mode, TOOLS)
        assert rollout.error is None
        turns, segments = parts(rollout)
        assert turns == engine.sampled[0]
        result = "<tool_response>\nThe sum: 1\n</tool_response>"
        assert f"{result}\n{result}" in render.spell(segments[0])


LLAMA_HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"


@pytest.mark.parametrize(
    ("name", "tool", "user"),
    [
        (
            "qwen3",
            "\n<|im_start|>user\n<tool_response>\nThe sum: 1\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n",
            "\n<|im_start|>user\nAnd 2 more?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama3_1",
            f'{LLAMA_HEADER.format("ipython")}"The sum: 1"<|eot_id|>'
            + LLAMA_HEADER.format("assistant"),
            f"{LLAMA_HEADER.format('user')}And 2 more?<|eot_id|>"
            + LLAMA_HEADER.format("assistant"),
        ),
        (
            "gemma",
            "\n<start_of_turn>user\n<tool_response>\nThe sum: 1\n</tool_response><end_of_turn>\n"
            "<start_of_turn>model\n",
            "\n<start_of_turn>user\nAnd 2 more?<end_of_turn>\n<start_of_turn>model\n",
        ),
        (  # it lists no tools, so they are described, and results are as was said there
            "deepseekv3",
            "<｜User｜><tool_response>\nThe sum: 1\n</tool_response><｜Assistant｜><think>\n",
            "<｜User｜>And 2 more?<｜Assistant｜><think>\n",
        ),
        (  # its models write the header of the reply themselves, to end their turn
            "glm4moe",
            "\n<tool_response>\nThe sum: 1\n</tool_response><|assistant|>",
            "\nAnd 2 more?<|assistant|>",
        ),
        (  # its models end in <|return|> where the template has <|end|>
            "gptoss",
            "<|start|>functions.add to=assistant<|channel|>commentary<|message|>"
            '"The sum: 1"<|end|><|start|>assistant',
            "<|start|>user<|message|>And 2 more?<|end|><|start|>assistant",
        ),
    ],
)
def test_a_segment_is_what_the_template_puts_between_turns(name: str, tool: str, user: str) -> None:
    render, habits = ChatRenderer(family(name)), WRITTEN[name]
    assert habits.call is not None
    texts = [habits.call, habits.answer, habits.answer]
    [rollout, *_], _ = roll_out(render, texts, RECOMMENDED[name], TOOLS)
    _, segments = parts(rollout)
    assert [render.spell(segment) for segment in segments] == [tool, user]


def test_results_of_tools_that_were_described_elsewhere_are_told_natively() -> None:
    render, habits = ChatRenderer(family("deepseekv3")), WRITTEN["deepseekv3"]
    assert habits.call is not None
    # Calls of tools that nobody declared are looked for only by a parse of one's own.
    how = {"parse": lambda text: render.parse(text)}
    [rollout, *_], _ = roll_out(render, [habits.call, habits.answer], "boundary", **how)
    _, [segment] = parts(rollout)
    # Its turns after a tool's answer have no header.
    assert render.spell(segment) == (
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>The sum: 1<｜tool▁output▁end｜>"
        "<｜tool▁outputs▁end｜>"
    )


@pytest.mark.parametrize("name", ["qwen3", "glm4moe", "nemotron_3_nano", "llama3_1", "qwen2_5"])
def test_a_call_that_was_cut_off_anywhere_is_closed_by_the_template(name: str) -> None:
    """Whatever the model's last token was: the segment ends the turn and holds the reply."""
    render, habits = ChatRenderer(family(name)), WRITTEN[name]
    assert habits.call is not None
    call = Message("assistant", "", (ToolCall("call00000", "add", "{"),))
    reply = Message("tool", "the reply", tool_call_id="call00000")
    template = Template(render, segments="boundary").with_tools(TOOLS)
    question = [Message("user", "?")]
    prompt = template.prompt(question)
    whole = render.tokenizer(habits.call, add_special_tokens=False)["input_ids"]
    segments = set()
    for cut in range(1, len(whole)):
        so_far = [*prompt, *whole[:cut]]
        if so_far[-1] in render.ends:
            continue
        written = Message("assistant", render.decode(whole[:cut]))
        seen = [*question, written]
        segment = template.segment(seen, [reply], so_far, call, truncated=True)
        segments.add(render.spell(segment))
    # One and the same, wherever it was cut, and the whole of it.
    assert len(segments) == 1
    [text] = segments
    assert "the reply" in text
    assert any(text.startswith(render.spell([end])) for end in render.ends)


def test_json_is_an_answer_and_no_call_where_there_are_no_tools() -> None:
    render = ChatRenderer(family("llama3_1"))
    text = '{"name": "Ann", "parameters": {"age": 3}}'
    [rollout, *_], _ = roll_out(render, [text], "suffix")
    assert rollout.trajectory.answer == text
    assert render.parse(text).tool_calls, "asked without saying which tools there are, it may be"


def test_a_call_in_thoughts_that_were_cut_off_is_none() -> None:
    render, habits = ChatRenderer(family("nemotron_3_nano")), WRITTEN["nemotron_3_nano"]
    texts = [f"Perhaps {HERMES}", habits.answer]  # the prompt began to think for it
    [rollout, *_], _ = roll_out(render, texts, "boundary", TOOLS)
    assert rollout.error is None
    assert rollout.trajectory.messages[1] == Message("assistant", f"<think>\n{texts[0]}")
    assert rollout.trajectory.messages[2].role == "user"
    [rollout, *_], _ = roll_out(render, ["It is four."], "boundary")
    assert rollout.trajectory.answer == "", "it never got out of its reasoning"


@pytest.mark.parametrize("mode", ["suffix", "boundary"])
def test_a_reply_that_the_template_would_leave_out_is_an_error(mode: Segments) -> None:
    chat = ChatRenderer(family("phi3"))

    def render(messages: Sequence[Message], prompt: bool) -> list[int]:
        """The template itself, which passes over tool messages."""
        told = [to_chat_api(message) for message in messages]
        text = chat.tokenizer.apply_chat_template(
            told, add_generation_prompt=prompt, tokenize=False
        )
        return list(chat.tokenizer(text, add_special_tokens=False)["input_ids"])

    engine = Engine(chat, *[f"{HERMES}<|end|>"] * 2)
    [rollout] = rollout_batch(
        [Sample("0", {"question": "What is two and two?"})],
        lambda sample: Adder(TOOLS),
        render,
        engine,
        2,
        400,
        segments=mode,
        decode=chat.decode,
        parse=chat.parse,
    )
    assert rollout.error is not None
    assert "leaves tool messages out" in rollout.error
    assert list(rollout.completion_ids) == engine.sampled[0][0]


def test_a_turn_that_ends_in_the_last_of_several_tokens_is_not_ended_again() -> None:
    render = ChatRenderer(family("cohere2"))  # <|END_RESPONSE|> is missing
    [rollout, *_], _ = roll_out(render, ["It is four.<|END_OF_TURN_TOKEN|>"] * 2, "boundary")
    _, [segment] = parts(rollout)
    assert render.spell(segment).startswith("<|START_OF_TURN_TOKEN|><|USER_TOKEN|>And 1 more?")


def test_a_turn_that_was_cut_off_is_closed_by_the_template() -> None:
    render = ChatRenderer(family("qwen2_5"))
    modes: tuple[Segments, Segments] = ("suffix", "boundary")
    for mode in modes:
        [rollout, *_], _ = roll_out(render, ["It is", "It is four.<|im_end|>"], mode)
        _, [segment] = parts(rollout)
        assert render.spell(segment) == (
            "<|im_end|>\n<|im_start|>user\nAnd 1 more?<|im_end|>\n<|im_start|>assistant\n"
        )


@pytest.mark.parametrize("name", [name for name, mode in RECOMMENDED.items() if mode == "suffix"])
def test_where_both_modes_are_allowed_they_give_the_same_tokens_and_lose_none(name: str) -> None:
    render, (answer, call) = ChatRenderer(family(name)), WRITTEN[name]
    texts, tools = [call or answer, answer], TOOLS if call else ()
    rollouts, engine = roll_out(render, texts, "suffix", tools)
    others, _ = roll_out(render, texts, "boundary", tools)
    for rollout, other, sampled in zip(rollouts, others, engine.sampled, strict=True):
        assert rollout.error is None
        assert rollout.completion_ids == other.completion_ids
        assert rollout.env_mask == other.env_mask
        written = iter(sampled)
        said = [
            Message("assistant", render.decode(next(written))) if m.role == "assistant" else m
            for m in rollout.trajectory.messages[:-1]  # the last reply was never answered
        ]
        ids = [*rollout.prompt_ids, *rollout.completion_ids]
        assert render(said, False, tools)[: len(ids)] == ids
        if name != "phi3":  # its tokens swallow line breaks, which their text then lacks
            assert render.text(said, False, tools).startswith(render.spell(ids))


@pytest.mark.parametrize("name", [name for name, mode in RECOMMENDED.items() if mode != "suffix"])
def test_a_mode_that_is_not_allowed_says_so_and_makes_no_mask(name: str) -> None:
    render, habits = ChatRenderer(family(name)), WRITTEN[name]
    if name == "gemma4":
        texts = ["<|tool_call>call:add{a:2,b:2}<tool_call|><|tool_response>"] * 2
    else:
        texts = [habits.answer] * 2
    rollouts, engine = roll_out(render, texts, "suffix", TOOLS if name == "gemma4" else ())
    for rollout, sampled in zip(rollouts, engine.sampled, strict=True):
        assert rollout.error is not None
        if name == "gptoss":
            assert "the chat template refuses the conversation" in rollout.error
        else:
            assert "differs from its" in rollout.error
            assert "tokens so far at position" in rollout.error
            assert rollout.error.count("('") == 2 or rollout.error.count('("') >= 1
        assert list(rollout.completion_ids) == sampled[0]
        assert set(rollout.env_mask) == {1}
