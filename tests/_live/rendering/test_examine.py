"""examine: what it says of templates that are made to go wrong in one way each."""

from __future__ import annotations

from collections.abc import Sequence

from heldout._core.chat.messages import to_chat_api
from heldout._live.rendering.chat_templates import ChatRenderer
from heldout._live.rendering.examine import Examination, Finding, examine
from heldout.types import Message, ToolSpec
from tests._live.rendering.families import byte_level, tokenizer_of

TURN = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHATML = "{% for m in messages %}" + TURN + "{% endfor %}" + PROMPT

THOUGHTLESS = CHATML.replace(
    "m['content']",
    "m['content'].split('</think>')[-1].lstrip() if m['role'] == 'assistant' else m['content']",
)


def renderer(template: str) -> ChatRenderer:
    tokenizer = tokenizer_of(
        byte_level, ["<|im_start|>", "<|im_end|>"], eos_token="<|im_end|>", chat_template=template
    )
    return ChatRenderer(tokenizer)


def examined(template: str) -> Examination:
    render = renderer(template)
    return examine(render, render.decode)


def finding(found: Examination, kind: str, segments: str) -> Finding:
    [one] = [f for f in found.findings if (f.kind, f.segments) == (kind, segments)]
    return one


def test_a_template_that_keeps_everything_allows_both_modes() -> None:
    found = examined(CHATML)
    assert all(finding.ok for finding in found.findings)
    assert found.recommended == found.chosen == "boundary"
    assert found.advice == (
        "use segments='boundary': both modes work, and it also takes turns that the tokenizer "
        "would split otherwise"
    )


def test_the_token_that_ends_a_turn_is_found() -> None:
    render = renderer(CHATML)
    assert [render.spell([end]) for end in examine(render).ends] == ["<|im_end|>"]


def test_without_decode_the_findings_are_the_same_but_for_their_texts() -> None:
    render = renderer(THOUGHTLESS)

    def bare(messages: Sequence[Message], prompt: bool, tools: Sequence[ToolSpec]) -> list[int]:
        return render(messages, prompt, tools)

    for one, other in zip(
        examine(bare).findings, examine(render, render.decode).findings, strict=True
    ):
        assert (one.kind, one.segments, one.ok, one.position) == (
            (other.kind, other.segments, other.ok, other.position)
        )
        assert one.so_far is None


def test_dropped_reasoning_is_named_with_its_place_and_both_texts() -> None:
    found = examined(THOUGHTLESS)
    assert found.advice == "use segments='boundary': the template drops reasoning of earlier turns"
    one = finding(found, "user reply to reasoning", "suffix")
    render = renderer(THOUGHTLESS)
    assert one.position == len(render([Message("user", "What is two and two?")], True))
    assert one.so_far is not None
    assert one.so_far.startswith("<think>\nT")
    assert one.rendered is not None
    assert one.rendered.startswith("It is four.")
    assert finding(found, "user reply", "suffix").ok


def test_turns_that_are_rewritten_in_other_ways_are_called_that() -> None:
    shortened = "m['content'][:5] if m['role'] == 'assistant' and not loop.last else m['content']"
    found = examined(CHATML.replace("m['content']", shortened))
    assert finding(found, "user reply", "suffix").ok is False
    assert finding(found, "user reply", "suffix").so_far == " four.<|im_end|>"
    assert found.advice == (
        "use segments='boundary': the template rewrites earlier turns of the model"
    )


def test_a_template_that_refuses_a_kind_of_message_is_no_failure() -> None:
    refusing = (
        "{% if m['role'] in ('system', 'tool') %}{{ raise_exception('not here') }}{% endif %}"
    )
    found = examined(CHATML.replace(TURN, refusing + TURN))
    for kind in ("user reply with system prompt", "tool reply with system prompt"):
        assert finding(found, kind, "suffix") == Finding(
            kind,
            "suffix",
            None,
            "the chat template refuses the conversation: TemplateError: not here",
        )
    # Tools are told as text.
    for kind in ("user reply", "tool reply", "two tool replies"):
        assert finding(found, kind, "boundary").ok
    assert found.recommended == "boundary"


PASSING_OVER = CHATML.replace(TURN, "{% if m['role'] != 'tool' %}" + TURN + "{% endif %}")


def test_where_tool_messages_are_passed_over_they_are_the_users() -> None:
    found = examined(PASSING_OVER)
    assert all(finding.ok for finding in found.findings)


def test_a_function_that_passes_over_tool_messages_does_not_support_them() -> None:
    chat = renderer(PASSING_OVER)

    def bare(messages: Sequence[Message], prompt: bool) -> list[int]:
        ids = chat.tokenizer.apply_chat_template(
            [to_chat_api(message) for message in messages],
            add_generation_prompt=prompt,
            return_dict=False,
        )
        return list(ids)

    one = finding(examine(bare), "tool reply", "suffix")
    assert one.ok is None
    assert "leaves tool messages out" in str(one.why)


def test_a_template_whose_text_melts_into_turns_and_that_rewrites_them_allows_neither() -> None:
    template = (
        "{% for m in messages %}{{ m['role'] }}: "
        "{{ m['content'] if loop.last else m['content'] | upper }}\n\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    found = examined(template)
    assert (found.recommended, found.chosen) == (None, "suffix")
    assert found.advice.startswith("neither mode works for all that the template does: boundary ")
    assert found.advice.endswith(
        "segments='auto' is 'suffix', which refuses a turn that is rendered otherwise"
    )
    assert "melts" in str(finding(found, "user reply", "boundary").why)


def test_where_a_reply_depends_on_the_question_suffix_alone_works() -> None:
    by_user = "m['role'] == 'user' and messages[0]['content'] | length > 3"
    marked = "{% if " + by_user + " %}the {% endif %}"
    found = examined(CHATML.replace("<|im_start|>{{", "<|im_start|>" + marked + "{{"))
    assert found.recommended == found.chosen == "suffix"
    assert found.advice.startswith("use segments='suffix': boundary does not work for user reply")


def test_a_reply_that_is_rendered_otherwise_behind_a_made_up_turn_fails_boundary() -> None:
    # How it renders a reply depends on the words of the question, which boundary makes up.
    template = CHATML.replace(
        "<|im_start|>{{ m['role'] }}",
        "<|im_start|>{% if messages | length > 2 and messages[0]['content'] | length > 3 %}"
        "the {% endif %}{{ m['role'] }}",
    )
    found = examined(template)
    one = finding(found, "user reply", "boundary")
    assert one.ok is False
    assert one.why == "the reply is rendered otherwise"
    assert one.so_far is not None
    assert one.so_far.startswith("user")
    assert one.rendered is not None
    assert one.rendered.startswith(" user")


def test_a_template_that_renders_nothing_at_all_allows_neither() -> None:
    found = examined("{{ raise_exception('closed') }}")
    assert found.recommended is None
    assert found.advice.endswith("the template renders none of these conversations")
    assert found.ends == ()


LISTED = "{% if tools %}<|im_start|>{{ tools | tojson }}<|im_end|>\n{% endif %}" + CHATML
CALLS = (
    "{% for c in m.tool_calls %}({{ c.function.name }} {{ c.function.arguments | tojson }}"
    "CLOSED{% endfor %}"
)


def test_the_end_of_a_call_is_not_taken_for_the_end_of_the_turn() -> None:
    called = CALLS.replace("CLOSED", "<|im_end|>)")
    found = examined(LISTED.replace(TURN, TURN.replace("<|im_end|>", called + "<|im_end|>")))
    for kind in ("tool reply", "two tool replies"):
        assert finding(found, kind, "boundary").ok


def test_a_reply_that_is_rendered_otherwise_behind_a_written_call_fails_suffix() -> None:
    # It says something behind a turn with calls, and does not see them where they are text.
    called = CALLS.replace("CLOSED", ")")
    note = "{% if m.tool_calls and not loop.last %}<|im_start|>called<|im_end|>\n{% endif %}"
    turn = TURN.replace("<|im_end|>\n", called + "<|im_end|>\n" + note)
    found = examined(LISTED.replace(TURN, turn))
    one = finding(found, "tool reply", "suffix")
    assert one.ok is False
    assert one.why == "the reply is rendered otherwise"
    assert finding(found, "tool reply", "boundary").ok
    assert found.recommended == "boundary"
