"""Which `segments` a chat template allows, found out by trying.

A model is played that writes what the template itself renders for its turn, up to the token that
ends it. Then an environment replies, and what `segments` makes of that is held against what the
template renders for the whole conversation:

suffix      the conversation, rendered again, begins with the tokens so far.
boundary    the segment is what the template ends the conversation in; and all that follows the
            tokens so far, where the template keeps them.

Pure functions over `render`; without `decode`, findings have no texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import get_args

from heldout.errors import RenderMismatch
from heldout.rendering.dialect import write_tool_call
from heldout.rendering.segments import (
    Decode,
    Render,
    Segments,
    Template,
    common_prefix,
    common_suffix,
)
from heldout.types import Message, ToolCall, ToolSpec


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one kind of conversation in one mode."""

    kind: str
    segments: Segments
    ok: bool | None
    """None if the template does not do this kind of conversation at all."""
    why: str | None = None
    """Why it is not ok, in words."""
    position: int | None = None
    """The first token that is not what it should be."""
    so_far: str | None = None
    """What the conversation has there, and ..."""
    rendered: str | None = None
    """... what the template renders there instead."""


@dataclass(frozen=True, slots=True)
class Examination:
    findings: tuple[Finding, ...]
    ends: tuple[int, ...]
    """The tokens that ended the model's turns."""

    def allows(self, segments: Segments) -> bool:
        """Whether this mode does all kinds of conversation that the template does."""
        found = [finding for finding in self.findings if finding.segments == segments]
        return any(f.ok for f in found) and all(f.ok is not False for f in found)

    @property
    def recommended(self) -> Segments | None:
        """`suffix` where it works, since it checks every turn; else `boundary`; None if neither."""
        return next((mode for mode in get_args(Segments) if self.allows(mode)), None)

    @property
    def advice(self) -> str:
        """One line on which mode to use."""
        mode = self.recommended
        if mode == "suffix":
            return "use segments='suffix'"
        if mode == "boundary":
            return f"use segments='boundary': {self._why_not_suffix()}"
        if all(finding.ok is None for finding in self.findings):
            return "neither mode works: the template renders none of these conversations"
        failed = [
            f"{mode} not for {', '.join(f.kind for f in self.findings if _fails(f, mode))}"
            for mode in get_args(Segments)
        ]
        return f"neither mode works for all that the template does: {'; '.join(failed)}"

    def _why_not_suffix(self) -> str:
        failed = [f for f in self.findings if _fails(f, "suffix")]
        if all("reasoning" in f.kind or "think" in (f.so_far or "") for f in failed):
            return "the template drops reasoning of earlier turns"
        if any(f.position is None for f in failed):
            return "the template refuses turns of the model as it wrote them"
        return "the template rewrites earlier turns of the model"


def _fails(finding: Finding, segments: Segments) -> bool:
    return finding.segments == segments and finding.ok is False


# --- The conversations --------------------------------------------------------------------------

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
_ASK = Message("user", "What is two and two?")
_ANSWER = Message("assistant", "It is four.")
_THOUGHTS = "<think>\nTwo and two is four.\n</think>\n\n"
_CALLS = tuple(
    ToolCall(f"call0000{i}", "add", f'{{"a": 2, "b": {b}}}') for i, b in enumerate((2, 3))
)
_RESULTS = tuple(
    Message("tool", text, tool_call_id=call.id)
    for text, call in zip(("The sum: 4", "The sum: 5"), _CALLS, strict=True)
)
_MORE = (Message("user", "And one more?"),)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A kind of conversation: how it opens, the model's turn, and what is replied to it."""

    kind: str
    turn: Message
    reply: tuple[Message, ...]
    opening: tuple[Message, ...] = (_ASK,)
    tools: tuple[ToolSpec, ...] = ()
    cut_off: bool = False


CONVERSATIONS = (
    Conversation("user reply", _ANSWER, _MORE),
    Conversation("user reply with system prompt", _ANSWER, _MORE, (_SYSTEM, _ASK)),
    Conversation(
        "user reply to reasoning", replace(_ANSWER, content=_THOUGHTS + _ANSWER.text), _MORE
    ),
    Conversation("user reply to a turn cut off", _ANSWER, _MORE, cut_off=True),
    Conversation("tool reply", Message("assistant", "", _CALLS[:1]), _RESULTS[:1], (_ASK,), TOOLS),
    Conversation(
        "tool reply with system prompt",
        Message("assistant", "", _CALLS[:1]),
        _RESULTS[:1],
        (_SYSTEM, _ASK),
        TOOLS,
    ),
    Conversation("two tool replies", Message("assistant", "", _CALLS), _RESULTS, (_ASK,), TOOLS),
    Conversation(
        "tool reply to reasoning",
        Message("assistant", _THOUGHTS, _CALLS[:1]),
        _RESULTS[:1],
        (_ASK,),
        TOOLS,
    ),
)


def examine(render: Render, decode: Decode | None = None) -> Examination:
    """Try all kinds of conversation in both modes."""
    findings: list[Finding] = []
    ends: dict[int, None] = {}
    for conversation in CONVERSATIONS:
        try:
            played = _play(Template(render, decode=decode), conversation)
        except _Unsupported as refused:
            why = f"not supported by the template: {refused}"
            findings += [Finding(conversation.kind, mode, None, why) for mode in get_args(Segments)]
            continue
        if not conversation.cut_off:
            ends[played.so_far[-1]] = None
        for mode in get_args(Segments):
            template = Template(render, segments=mode, decode=decode)
            findings.append(_compare(template, conversation, played))
    return Examination(tuple(findings), tuple(ends))


# --- One of them --------------------------------------------------------------------------------


class _Unsupported(Exception):
    pass


@dataclass(frozen=True, slots=True)
class _Played:
    so_far: list[int]
    turn: Message
    """The model's turn as the template is told it."""
    truth: list[int]
    """What the template renders for the whole conversation, the reply included."""
    thoughtless: list[int]
    """The same without reasoning, which is none of the reply's business."""


def _play(template: Template, conversation: Conversation) -> _Played:
    """The conversation up to the end of the model's turn, in tokens."""
    opening, turn, reply = conversation.opening, conversation.turn, conversation.reply

    def ids(messages: Sequence[Message], prompt: bool) -> list[int]:
        return template.ids([*opening, *messages], conversation.tools, prompt)

    try:
        if turn.tool_calls:
            renamed = tuple(replace(call, name="subtract") for call in turn.tool_calls)
            other = replace(turn, tool_calls=renamed)
            if ids([turn, *reply], True) == ids([other, *reply], True):
                # Where calls are left out, models are told to write them as text.
                calls = "".join(map(write_tool_call, turn.tool_calls))
                turn = replace(turn, content=turn.text + calls, tool_calls=())
        truth = ids([turn, *reply], True)
        for place, message in enumerate(reply):
            changed = [*reply]
            changed[place] = replace(message, content="#")
            if ids([turn, *changed], True) == truth:
                raise _Unsupported(f"it leaves {message.role} messages out")
        thoughtless = ids([_thoughtless(turn), *reply], True)
        written, end = _turn(ids, turn, reply)
    except _Unsupported:
        raise
    except Exception as problem:
        # Templates raise what they like for what they do not do.
        raise _Unsupported(str(problem) or type(problem).__name__) from problem
    so_far = ids([], True) + written + ([] if conversation.cut_off else end)
    return _Played(so_far, turn, truth, thoughtless)


def _thoughtless(turn: Message) -> Message:
    return replace(turn, content=turn.text.removeprefix(_THOUGHTS))


def _turn(
    ids: Callable[[Sequence[Message], bool], list[int]], turn: Message, reply: Sequence[Message]
) -> tuple[list[int], list[int]]:
    """What the template renders for a model turn, and the token that ends it."""
    prompt, final = ids([], True), ids([turn], False)
    written = final[common_prefix(prompt, final) :]
    if turn != _thoughtless(turn) and final == ids([_thoughtless(turn)], False):
        # It drops reasoning at once. The model has written it all the same, and as the user's
        # words it can be had in tokens.
        said, other = (ids([turn, Message("user", t)], False) for t in (_THOUGHTS, "?"))
        tail = common_suffix(said, other)
        written = said[common_prefix(said, other) : len(said) - tail] + written
    # What follows a turn is what follows turns of any words.
    closes = _behind([ids([Message("assistant", mark)], False) for mark in ("1", "x", ".")])
    if not closes:
        # Turns of GLM's end in what begins the next message.
        replied = [ids([Message("assistant", mark), *reply], False) for mark in ("1", "x", ".")]
        return written, _behind(replied)[:1]
    if written[-len(closes) :] == closes:
        return written[: -len(closes)], closes[:1]
    return written[:-1], written[-1:]  # a call that ends otherwise than words do


def _behind(renders: list[list[int]]) -> list[int]:
    length = min(common_suffix(a, b) for a, b in combinations(renders, 2))
    return renders[0][len(renders[0]) - length :]


def _compare(template: Template, conversation: Conversation, played: _Played) -> Finding:
    """One mode's segment against the truth."""
    so_far, truth = played.so_far, played.truth
    kind, mode = conversation.kind, template.segments
    spell = template.spell
    text = None
    if template.decode is not None:
        text = template.decode(
            so_far[len(template.ids(conversation.opening, conversation.tools)) :]
        )
    as_written = played.turn if text is None else Message("assistant", text)

    def differs(why: str, place: int, ours: list[int], theirs: list[int]) -> Finding:
        spelled = [spell(ids[place : place + 8]) if spell else None for ids in (ours, theirs)]
        return Finding(kind, mode, False, why, place, *spelled)

    seen = [*conversation.opening, as_written]
    told = template.told(conversation.tools)
    try:
        segment = told.segment(seen, conversation.reply, so_far, conversation.turn)
    except RenderMismatch as mismatch:
        if mode == "suffix":
            try:
                again = template.ids([*seen, *conversation.reply], conversation.tools)
            except Exception:  # noqa: BLE001 - templates raise what they like
                return Finding(kind, mode, False, str(mismatch))
            place = common_prefix(so_far, again)
            return differs("an earlier turn is rendered otherwise", place, so_far, again)
        return Finding(kind, mode, False, str(mismatch))
    ours = so_far + segment
    if truth[: len(so_far)] == so_far and ours != truth:
        place = common_prefix(ours, truth)
        return differs("the reply is rendered otherwise", place, ours, truth)
    if segment not in (truth[-len(segment) :], played.thoughtless[-len(segment) :]):
        # What went before may have another length there, so the two are laid end to end.
        ending = [*so_far, *truth[-len(segment) :]]
        place = len(ours) - 1 - common_suffix(segment, truth)
        return differs("the reply is rendered otherwise", place, ours, ending)
    return Finding(kind, mode, True)
