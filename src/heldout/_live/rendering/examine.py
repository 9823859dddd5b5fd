"""Which `segments` modes a chat template allows, determined by probing.

A model is simulated that writes what the template itself renders for its turn, up to the token
that ends it. Then an environment replies, and the segment of each mode is compared with what the
template renders for the whole conversation:

suffix      the conversation, rendered again, begins with the tokens so far.
boundary    the segment is what the template ends the conversation in; and all that follows the
            tokens so far, where the template keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import get_args

from heldout._live.rendering.chat_templates import write_tool_call
from heldout._live.rendering.segments import (
    Decode,
    Render,
    Segments,
    Template,
    common_prefix,
    common_suffix,
    shared_tail,
)
from heldout.errors import RenderMismatch
from heldout.types import Message, ToolCall, ToolSpec

_PREFERRED: tuple[Segments, ...] = ("boundary", "suffix")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one kind of conversation in one mode."""

    kind: str
    segments: Segments
    ok: bool | None
    """None if the template does not support this kind of conversation at all."""
    why: str | None = None
    """Why it is not ok."""
    position: int | None = None
    """The first token that differs."""
    so_far: str | None = None
    """The text of the conversation from there; None without `decode`."""
    rendered: str | None = None
    """What the template renders there instead; None without `decode`."""


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings for all kinds of conversation in both modes."""

    findings: tuple[Finding, ...]
    ends: tuple[int, ...]
    """The tokens that ended the model's turns."""

    def allows(self, segments: Segments) -> bool:
        """Return whether a mode works for all kinds of conversation that the template supports."""
        results = [finding.ok for finding in self.findings if finding.segments == segments]
        return True in results and False not in results

    @property
    def recommended(self) -> Segments | None:
        """The mode to use; None if neither works for all kinds of conversation.

        `boundary` where it works, since it loses no rollout to a tokenizer that would split the
        model's text otherwise; else `suffix`, which checks every turn.
        """
        return next((mode for mode in _PREFERRED if self.allows(mode)), None)

    @property
    def chosen(self) -> Segments:
        """What `segments="auto"` is: the mode recommended, or `suffix`, which checks each turn."""
        return self.recommended or "suffix"

    @property
    def advice(self) -> str:
        """One line on which mode to use."""
        mode = self.recommended
        if mode == "boundary":
            return f"use segments='boundary': {self._why_not_suffix()}"
        if mode == "suffix":
            return f"use segments='suffix': {self._list_failures('boundary')}"
        if all(finding.ok is None for finding in self.findings):
            return "neither mode works: the template renders none of these conversations"
        failed = "; ".join(map(self._list_failures, _PREFERRED))
        return (
            f"neither mode works for all that the template does: {failed}. segments='auto' is "
            f"{self.chosen!r}, which refuses a turn that is rendered otherwise"
        )

    def _why_not_suffix(self) -> str:
        failures = self._failures("suffix")
        if not failures:
            return (
                "both modes work, and it also takes turns that the tokenizer would split otherwise"
            )
        if all("reasoning" in f.kind or "think" in (f.so_far or "") for f in failures):
            return "the template drops reasoning of earlier turns"
        if any(f.position is None for f in failures):
            return "the template refuses turns of the model as it wrote them"
        return "the template rewrites earlier turns of the model"

    def _list_failures(self, segments: Segments) -> str:
        kinds = ", ".join(finding.kind for finding in self._failures(segments))
        return f"{segments} does not work for {kinds}"

    def _failures(self, segments: Segments) -> list[Finding]:
        return [f for f in self.findings if f.segments == segments and f.ok is False]


# --- Conversations ------------------------------------------------------------------------------

TOOLS = (
    ToolSpec(
        "add",
        "Adds two numbers.",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    ),
)
_SYSTEM = Message("system", "Be brief.")
_QUESTION = Message("user", "What is two and two?")
_ANSWER = Message("assistant", "It is four.")
_REASONING = "<think>\nTwo and two is four.\n</think>\n\n"
_CALLS = (
    ToolCall("call00000", "add", '{"a": 2, "b": 2}'),
    ToolCall("call00001", "add", '{"a": 2, "b": 3}'),
)
_CALL = Message("assistant", "", _CALLS[:1])
_RESULTS = (
    Message("tool", "The sum: 4", tool_call_id="call00000"),
    Message("tool", "The sum: 5", tool_call_id="call00001"),
)
_FOLLOW_UP = (Message("user", "And one more?"),)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A kind of conversation: how it opens, the model's turn, and the reply to it."""

    kind: str
    turn: Message
    reply: tuple[Message, ...]
    opening: tuple[Message, ...] = (_QUESTION,)
    tools: tuple[ToolSpec, ...] = ()
    truncated: bool = False


CONVERSATIONS = (
    Conversation("user reply", _ANSWER, _FOLLOW_UP),
    Conversation("user reply with system prompt", _ANSWER, _FOLLOW_UP, (_SYSTEM, _QUESTION)),
    Conversation(
        "user reply to reasoning", Message("assistant", _REASONING + _ANSWER.text), _FOLLOW_UP
    ),
    Conversation("user reply to a turn cut off", _ANSWER, _FOLLOW_UP, truncated=True),
    Conversation("tool reply", _CALL, _RESULTS[:1], tools=TOOLS),
    Conversation("tool reply with system prompt", _CALL, _RESULTS[:1], (_SYSTEM, _QUESTION), TOOLS),
    Conversation("two tool replies", Message("assistant", "", _CALLS), _RESULTS, tools=TOOLS),
    Conversation(
        "tool reply to reasoning", replace(_CALL, content=_REASONING), _RESULTS[:1], tools=TOOLS
    ),
)


def examine(render: Render, decode: Decode | None = None) -> Examination:
    """Try all kinds of conversation in both modes; without `decode` findings have no texts."""
    findings: list[Finding] = []
    ends: dict[int, None] = {}
    for conversation in CONVERSATIONS:
        try:
            simulated = _simulate(Template(render, decode=decode), conversation)
        except RenderMismatch as error:
            findings += [
                Finding(conversation.kind, mode, None, str(error)) for mode in get_args(Segments)
            ]
            continue
        if not conversation.truncated:
            ends[simulated.so_far[-1]] = None
        for mode in get_args(Segments):
            template = Template(render, segments=mode, decode=decode)
            findings.append(_compare(template, conversation, simulated))
    return Examination(tuple(findings), tuple(ends))


# --- One of them --------------------------------------------------------------------------------

_RenderIds = Callable[[Sequence[Message], bool], list[int]]
"""Renders messages behind the opening of a conversation, with or without a generation prompt."""


@dataclass(frozen=True, slots=True)
class _Simulated:
    """A conversation up to the end of the model's turn, and the whole as the template renders it.

    `turn` is the model's turn as the template is given it, `without_reasoning` the whole without
    reasoning, which does not concern the reply.
    """

    so_far: list[int]
    turn: Message
    full: list[int]
    without_reasoning: list[int]


def _simulate(template: Template, conversation: Conversation) -> _Simulated:
    turn, reply = conversation.turn, conversation.reply

    def ids(messages: Sequence[Message], prompt: bool) -> list[int]:
        return template.ids([*conversation.opening, *messages], conversation.tools, prompt)

    if turn.tool_calls:
        renamed = tuple(replace(call, name="subtract") for call in turn.tool_calls)
        renamed_turn = replace(turn, tool_calls=renamed)
        if ids([turn, *reply], True) == ids([renamed_turn, *reply], True):
            # Where calls are left out, models are told to write them as text.
            calls = "".join(map(write_tool_call, turn.tool_calls))
            turn = replace(turn, content=turn.text + calls, tool_calls=())
    full = ids([turn, *reply], True)
    with_tools = template.with_tools(conversation.tools)
    with_tools.check_shown([*conversation.opening, turn], reply, full)
    without_reasoning = ids([_without_reasoning(turn), *reply], True)
    turn_ids, end = _render_turn(ids, turn, reply)
    so_far = ids([], True) + turn_ids + ([] if conversation.truncated else end)
    return _Simulated(so_far, turn, full, without_reasoning)


def _without_reasoning(turn: Message) -> Message:
    return replace(turn, content=turn.text.removeprefix(_REASONING))


def _render_turn(
    ids: _RenderIds, turn: Message, reply: Sequence[Message]
) -> tuple[list[int], list[int]]:
    """Return what the template renders for a model's turn, and the token that ends it."""
    prompt, final = ids([], True), ids([turn], False)
    turn_ids = final[common_prefix(prompt, final) :]
    if turn != _without_reasoning(turn) and final == ids([_without_reasoning(turn)], False):
        # It drops reasoning at once. The model has written it all the same, and its tokens can be
        # had as the text of a user.
        quoted, quoted_mark = (ids([turn, Message("user", t)], False) for t in (_REASONING, "?"))
        tail = common_suffix(quoted, quoted_mark)
        turn_ids = quoted[common_prefix(quoted, quoted_mark) : len(quoted) - tail] + turn_ids
    # What follows a turn follows turns of any text.
    marks = [Message("assistant", mark) for mark in ("1", "x", ".")]
    closing = shared_tail([ids([mark], False) for mark in marks])
    if not closing:
        # GLM's turns end in the token that begins the next message.
        return turn_ids, shared_tail([ids([mark, *reply], False) for mark in marks])[:1]
    if turn_ids[-len(closing) :] == closing:
        return turn_ids[: -len(closing)], closing[:1]
    return turn_ids[:-1], turn_ids[-1:]  # a call that ends otherwise than text does


def _compare(template: Template, conversation: Conversation, simulated: _Simulated) -> Finding:
    """Compare the segment of one mode with what the template renders."""
    so_far, full = simulated.so_far, simulated.full
    kind, mode, spell = conversation.kind, template.segments, template.spell

    def differs(why: str, position: int, ours: list[int], theirs: list[int]) -> Finding:
        texts = [spell(ids[position : position + 8]) if spell else None for ids in (ours, theirs)]
        return Finding(kind, mode, False, why, position, *texts)

    turn = simulated.turn
    if template.decode is not None:
        prompt = template.ids(conversation.opening, conversation.tools)
        turn = Message("assistant", template.decode(so_far[len(prompt) :]))
    history = [*conversation.opening, turn]
    with_tools = template.with_tools(conversation.tools)
    try:
        segment = with_tools.segment(history, conversation.reply, so_far, conversation.turn)
    except RenderMismatch as mismatch:
        if mode == "suffix":
            with suppress(RenderMismatch):
                rendered = template.ids([*history, *conversation.reply], conversation.tools)
                position = common_prefix(so_far, rendered)
                return differs("an earlier turn is rendered otherwise", position, so_far, rendered)
        return Finding(kind, mode, False, str(mismatch))
    ours = so_far + segment
    if full[: len(so_far)] == so_far and ours != full:
        position = common_prefix(ours, full)
        return differs("the reply is rendered otherwise", position, ours, full)
    if segment not in (full[-len(segment) :], simulated.without_reasoning[-len(segment) :]):
        # What precedes may have another length there, so the two are aligned at their ends.
        position = len(ours) - 1 - common_suffix(segment, full)
        expected = [*so_far, *full[-len(segment) :]]
        return differs("the reply is rendered otherwise", position, ours, expected)
    return Finding(kind, mode, True)
