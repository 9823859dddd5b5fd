"""Tokens so far stay as they were, the mask says whose they are, and what must align does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout import Message, ToolCall, ToolSpec
from heldout._core.chat.tool_calls import call_id
from heldout._live.rendering.segments import Template
from heldout.errors import ContextFull, EndpointError, InvalidInput, RenderMismatch
from heldout.rollouts.generating import Generated, Transcript
from tests.toy import END, ROLES, decode, encode, forgetful, parse, plain, render

ASK = [Message("user", "q")]


def transcript(
    render: Any = render,
    *,
    segments: Any = "suffix",
    per_turn: int = 50,
    longest: int | None = None,
    **how: Any,
) -> Transcript:
    how = {"decode": plain, "parse": parse, **how}
    template = Template(render, segments=segments, **how)
    return Transcript(template, per_turn_max_tokens=per_turn, engine_max_len=longest)


def asked(*given: Any, **settings: Any) -> Transcript:
    """A transcript whose prompt has been rendered."""
    account = transcript(*given, **settings)
    account.add_messages(ASK, ())
    return account


def talk(account: Transcript, said: list[str], replies: list[Message]) -> list[Message]:
    """A whole conversation; the messages of it."""
    messages = list(ASK)
    for turn, text in enumerate(said):
        account.add_messages(messages, ())
        ids = [*encode(text), END]
        messages.append(account.add_turn(Generated(ids, [-0.5] * len(ids))).message)
        messages += replies[turn : turn + 1]
    return messages


@pytest.mark.parametrize("segments", ["suffix", "boundary"])
def test_the_models_tokens_and_the_environments_are_told_apart(segments: str) -> None:
    account = transcript(segments=segments)
    talk(account, ["a", "bc"], [Message("user", "go")])
    trace = account.trace()
    assert decode(trace.prompt_ids) == "<user>q<end><assistant>"
    assert decode(trace.completion_ids) == "a<end><user>go<end><assistant>bc<end>"
    assert "".join(map(str, trace.env_mask)) == "11" + "00000" + "111"
    assert trace.logprobs == (-0.5,) * 2 + (0.0,) * 5 + (-0.5,) * 3


@pytest.mark.parametrize("segments", ["suffix", "boundary"])
def test_a_cut_off_turn_is_closed_by_the_environments_tokens(segments: str) -> None:
    account = asked(segments=segments)
    message = account.add_turn(Generated(encode("abc"), None, None, "length")).message
    account.add_messages([*ASK, message, Message("user", "go")], ())
    account.add_turn(Generated([END]))
    trace = account.trace()
    assert decode(trace.completion_ids) == "abc<end><user>go<end><assistant><end>"
    assert "".join(map(str, trace.env_mask)) == "111" + "000000" + "1"
    assert trace.logprobs is None


def test_a_template_that_rewrites_earlier_turns_is_refused_with_place_and_both_readings() -> None:
    account = asked(forgetful, decode=decode, parse=None)
    message = account.add_turn(Generated([*encode("thought/a"), END], None, "thought/a")).message
    with pytest.raises(RenderMismatch) as refused:
        account.add_messages([*ASK, message, Message("user", "go")], ())
    said = str(refused.value)
    assert "position 4" in said
    assert "'thought/'" in said
    assert "'a<end><user>go<end><assistant>'" in said
    assert "segments='boundary'" in said


def test_the_boundary_mode_leaves_the_thoughts_where_the_model_put_them() -> None:
    account = transcript(forgetful, segments="boundary")
    talk(account, ["thought/a", "b"], [Message("user", "go")])
    trace = account.trace()
    expected = "thought/a<end><user>go<end><assistant>b<end>"
    assert decode(trace.completion_ids) == expected
    assert sum(trace.env_mask) == len("thought/a") + 1 + 2


def test_tokens_that_their_tokenizer_would_split_otherwise_are_refused_or_kept() -> None:
    # "ab" as one token of the model's own: it reads the same, and renders to two.
    odd = [9999, END]

    def read(ids: Sequence[int]) -> str:
        return plain([i for i in ids if i != 9999]) + ("ab" if 9999 in ids else "")

    strict = asked(decode=read)
    said = [*ASK, strict.add_turn(Generated(odd)).message, Message("user", "go")]
    with pytest.raises(RenderMismatch, match="position 4"):
        strict.add_messages(said, ())
    kept = asked(decode=read, segments="boundary")
    kept.add_turn(Generated(odd))
    ids = kept.add_messages(said, ())
    assert ids[4:6] == odd
    assert decode(ids[6:]) == "<user>go<end><assistant>"


def test_a_reply_that_would_overflow_the_engine_ends_it_before_the_engine_sees_it() -> None:
    account = transcript(longest=12)
    assert len(account.add_messages(ASK, ())) == 4
    assert account.max_turn_tokens == 8
    message = account.add_turn(Generated([*encode("abc"), END])).message
    said = [*ASK, message, Message("user", "tell me more")]
    with pytest.raises(ContextFull, match="23 tokens, and the engine takes 12"):
        account.add_messages(said, ())
    trace = account.trace()
    assert decode(trace.completion_ids) == "abc<end>"
    # A prompt that leaves no room for a single token is refused in the same way.
    with pytest.raises(ContextFull):
        transcript(longest=4).add_messages(ASK, ())


def test_a_turn_may_use_what_is_left_and_no_more() -> None:
    account = asked(longest=9, per_turn=50)
    assert account.max_turn_tokens == 5
    with pytest.raises(EndpointError, match="returned 6 tokens, where 1 to 5"):
        account.add_turn(Generated(encode("abcdef")))
    assert account.add_turn(Generated(encode("abcde"))).finish_reason == "length"


@pytest.mark.parametrize(
    ("generated", "said"),
    [
        (Generated([]), "returned 0 tokens"),
        (Generated([END], [-1.0, -2.0]), "1 tokens and 2 logprobs"),
        (Generated(["a"]), "not numbers"),
        (Generated([END], [None]), "not numbers"),
    ],
)
def test_what_does_not_align_is_refused_where_it_is_made(generated: Generated, said: str) -> None:
    account = asked()
    with pytest.raises(EndpointError, match=said):
        account.add_turn(generated)
    assert account.trace() is None


def test_a_template_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'suffix' or 'boundary', got 'guess'"):
        transcript(segments="guess")
    for stop in (3, [""], [3], ""):
        with pytest.raises(
            InvalidInput, match="^(each of )?stop must be (text|a list of texts), got"
        ):
            transcript(stop=stop)


@pytest.mark.parametrize(
    ("stop", "written"), [(None, "ab#c"), ((), "ab#c"), ("#", "ab"), (["#"], "ab"), ("#c", "ab")]
)
def test_no_stop_is_none_and_one_stop_is_its_text(stop: Any, written: str) -> None:
    account = asked(stop=stop)
    assert account.add_turn(Generated([*encode("ab#c"), END])).message.text == written


def test_numbers_come_out_of_arrays_as_numbers() -> None:
    account = asked()
    account.add_turn(Generated(np.array([*encode("a"), END]), np.array([-0.5, -0.25])))
    trace = account.trace()
    assert [type(i) for i in trace.completion_ids] == [int, int]
    assert trace.logprobs == (-0.5, -0.25)


def test_a_turn_that_would_end_twice_is_refused() -> None:
    def doubling(messages: Sequence[Message], prompt: bool) -> list[int]:
        """Where the text of a turn holds the end token, it is there once more."""
        ids: list[int] = []
        for message in messages:
            text = message.text
            own = [END] if text.endswith("<end>") else []
            ids += [ROLES[message.role], *encode(text.removesuffix("<end>")), *own, END]
        return [*ids, ROLES["assistant"]] if prompt else ids

    doubling.ends = frozenset({END})
    account = asked(doubling, decode=decode, parse=None)
    message = account.add_turn(Generated([*encode("a"), END])).message
    assert message.text == "a<end>"
    with pytest.raises(RenderMismatch, match="would end twice"):
        account.add_messages([*ASK, message, Message("user", "go")], ())


def test_a_turn_that_fills_its_room_and_ends_is_not_cut_off() -> None:
    def ended(messages: Sequence[Message], prompt: bool) -> list[int]:
        return render(messages, prompt)

    ended.ends = frozenset({END})
    account = asked(ended, per_turn=2)
    assert account.add_turn(Generated([*encode("a"), END])).finish_reason == "stop"


@pytest.mark.parametrize("segments", ["suffix", "boundary"])
def test_a_turn_ends_with_the_first_token_that_completes_a_stop(segments: Any) -> None:
    account = asked(segments=segments, stop=["xy", "z"])
    written = encode("abxycz")
    completion = account.add_turn(Generated(written, [-0.5] * len(written)))
    assert completion.message == Message("assistant", "ab")
    assert completion.finish_reason == "stop"
    account.add_messages([*ASK, completion.message, Message("user", "go")], ())
    account.add_turn(Generated([*encode("c"), END], [-0.5, -0.5]))
    trace = account.trace()
    assert decode(trace.completion_ids) == "abxy<end><user>go<end><assistant>c<end>"
    own = [i for i, mine in zip(trace.completion_ids, trace.env_mask, strict=True) if mine]
    assert decode(own) == "abxyc<end>"
    assert trace.logprobs.count(-0.5) == len(own)


def test_logprobs_for_some_turns_only_are_refused() -> None:
    account = asked()
    message = account.add_turn(Generated([*encode("a"), END], [-1.0, -1.0])).message
    account.add_messages([*ASK, message, Message("user", "go")], ())
    with pytest.raises(EndpointError, match="some turns and none for others"):
        account.add_turn(Generated([END]))


def test_words_that_no_turn_followed_are_not_in_the_trace() -> None:
    account = transcript()
    messages = talk(account, ["a"], [Message("user", "go")])
    account.add_messages(messages, ())  # and then, say, the engine failed
    trace = account.trace()
    assert decode(trace.completion_ids) == "a<end>"


def test_tokens_without_text_and_without_a_way_to_read_them_are_refused() -> None:
    account = asked(decode=None, parse=None)
    with pytest.raises(InvalidInput, match="pass decode="):
        account.add_turn(Generated([END]))


def test_a_render_that_takes_tools_is_told_of_them() -> None:
    told: list[Any] = []

    def with_tools(messages: Any, prompt: bool, tools: Any = ()) -> list[int]:
        told.append(tools)
        return render(messages, prompt)

    account = transcript(with_tools)
    account.add_messages(ASK, [ToolSpec("add")])
    assert told == [(ToolSpec("add"),)]


def test_the_models_turn_is_rendered_as_it_was_written_not_as_it_was_understood() -> None:
    def tidy(text: str) -> Message:
        return Message("assistant", text.strip().upper())

    account = transcript(parse=tidy)
    messages = talk(account, ["  a ", "b"], [Message("user", "go")])
    assert [m.text for m in messages if m.role == "assistant"] == ["A", "B"]
    trace = account.trace()
    assert decode(trace.completion_ids) == "  a <end><user>go<end><assistant>b<end>"


def test_calls_are_numbered_through_the_conversation() -> None:
    def numbered(text: str, first: int) -> Message:
        calls = [ToolCall(call_id(first + i), name, "{}") for i, name in enumerate(text)]
        return Message("assistant", "", tuple(calls))

    account = transcript(parse=numbered)
    messages = talk(account, ["ab", "", "c"], [Message("user", "go")] * 2)
    ids = [call.id for message in messages for call in message.tool_calls]
    assert ids == ["call00000", "call00001", "call00002"]
    # What the opening has is not used again either.
    account = transcript(parse=numbered)
    opening = [*ASK, numbered("xy", 3), *ASK]
    account.add_messages(opening, ())
    [call] = account.add_turn(Generated([*encode("a"), END])).message.tool_calls
    assert call.id == "call00005"


def test_a_parse_is_given_what_it_takes() -> None:
    tools = (ToolSpec("add"),)
    given: list[Any] = []

    def by_name(text: str, *, tools: Any, prompt: Any) -> Message:
        given.append((tools, plain(prompt)))
        return Message("assistant", text)

    def anything(text: str, **others: Any) -> Message:
        given.append(others)
        return Message("assistant", text)

    def by_place(text: str, first: Any = None, /) -> Message:
        given.append(first)
        return Message("assistant", text)

    for reader in (by_name, anything, by_place, partial(Message, "assistant")):
        account = transcript(parse=reader)
        account.add_messages(ASK, tools)
        assert account.add_turn(Generated([*encode("a"), END])).message == Message("assistant", "a")
    assert given == [(tools, "<user>q<assistant>"), {}, None]


def test_the_ids_of_calls_do_not_make_a_boundary_be_found_anew() -> None:
    renders: list[int] = []

    def counted(messages: Sequence[Message], prompt: bool) -> list[int]:
        renders.append(len(messages))
        return render(messages, prompt)

    def numbered(text: str, first: int) -> Message:
        return Message("assistant", "", (ToolCall(call_id(first), "add", "{}"),))

    account = transcript(counted, segments="boundary", parse=numbered)
    messages = list(ASK)
    counts = []
    for turn in range(4):
        renders.clear()
        account.add_messages(messages, ())
        counts.append(len(renders))
        messages.append(account.add_turn(Generated([*encode("!add {}"), END])).message)
        answer = Message("tool", "2", tool_call_id=call_id(turn))
        messages.append(answer)
    assert counts[1] > 1
    assert counts[2:] == [1, 1]


def test_a_boundary_that_depends_on_the_reply_is_found_anew() -> None:
    def counting(messages: Sequence[Message], prompt: bool) -> list[int]:
        return [100] * len(messages[-1].text) + render(messages, prompt)

    account = transcript(counting, segments="boundary")
    talk(account, ["a", "b", "c"], [Message("user", "go"), Message("user", "go on")])
    trace = account.trace()
    expected = "a<end><user>go<end><assistant>b<end><user>go on<end><assistant>c<end>"
    assert decode(trace.completion_ids) == expected


def test_a_template_that_renders_nothing_for_a_reply_is_refused() -> None:
    def deaf(messages: Sequence[Message], prompt: bool) -> list[int]:
        heard = [m for m in messages if m.role != "tool"]
        return render(heard, prompt and len(heard) == len(messages))

    account = asked(deaf)
    message = account.add_turn(Generated([*encode("a"), END])).message
    with pytest.raises(RenderMismatch, match=r"the reply \(tool\) to no tokens"):
        account.add_messages([*ASK, message, Message("tool", "x", tool_call_id="1")], ())


# --- Boundaries of awkward templates ---


def test_a_template_whose_text_melts_into_the_turn_has_no_boundary() -> None:
    def melting(messages: Sequence[Message], prompt: bool) -> list[int]:
        ids: list[int] = []
        for message in messages:
            text = message.text + "\n"
            # As a tokenizer may do: punctuation and the newline after it are one token.
            ids += [ROLES[message.role], *encode(text[:-2])]
            ids += [7000 + ord(text[-2])] if text[-2:-1] == "." else encode(text[-2:])
        return [*ids, ROLES["assistant"]] if prompt else ids

    account = asked(melting, segments="boundary")
    message = account.add_turn(Generated(encode("a"))).message
    with pytest.raises(RenderMismatch, match="no boundary of its own"):
        account.add_messages([*ASK, message, Message("user", "go")], ())


def test_a_template_that_wants_the_call_before_a_tools_answer_gets_it() -> None:
    call_end = 8

    def strict(messages: Sequence[Message], prompt: bool) -> list[int]:
        ids: list[int] = []
        for before, message in zip([None, *messages], messages, strict=False):
            if message.role == "tool" and not (before and before.tool_calls):
                raise ValueError("a tool's answer without a call")
            text = message.text + "".join(f"!{c.name} {c.arguments}" for c in message.tool_calls)
            name = before.tool_calls[0].name if message.role == "tool" and before else ""
            end = call_end if message.tool_calls else END
            ids += [ROLES[message.role], *encode(name + text), end]
        return [*ids, ROLES["assistant"]] if prompt else ids

    def read(ids: Sequence[int]) -> str:
        return decode([i for i in ids if i not in (END, call_end)])

    account = asked(strict, segments="boundary", decode=read)
    written = '!add {"by": 2}'
    message = account.add_turn(Generated([*encode(written), call_end])).message
    assert message.tool_calls == (ToolCall("call00000", "add", '{"by": 2}'),)
    for _ in range(2):  # the second time from what was found out the first time
        answer = Message("tool", "total 2", tool_call_id="call00000")
        ids = account.add_messages([*ASK, message, answer], ())
        assert decode(ids[4 + len(written) + 1 :]) == "<tool>addtotal 2<end><assistant>"
        account = transcript(strict, segments="boundary", decode=read)
        account.add_messages(ASK, ())
        account.add_turn(Generated([*encode(written), call_end]))


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="ascii", exclude_characters="!"), max_size=8),
            st.sampled_from(["user", "tool", "system"]),
            st.text(st.characters(codec="ascii"), max_size=8),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_both_modes_give_the_same_tokens_where_a_template_allows_both(
    turns: list[tuple[str, Any, str, bool]],
) -> None:
    traces = []
    for segments in ("suffix", "boundary"):
        account = transcript(segments=segments)
        messages = list(ASK)
        for text, role, reply, cut in turns:
            account.add_messages(messages, ())
            ids = encode(text) if cut and text else [*encode(text), END]
            messages.append(account.add_turn(Generated(ids, [-0.25] * len(ids))).message)
            messages.append(Message(role, reply))
        traces.append(account.trace())
    assert traces[0] == traces[1]
    [trace, _] = traces
    whole = [*trace.prompt_ids, *trace.completion_ids]
    assert render(messages[:-1], False)[: len(whole)] == whole
