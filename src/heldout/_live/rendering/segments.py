"""The tokens between two turns of a model, for any chat template.

The environment's reply has to become ids in the format of the template, and the ids of earlier
turns must stay exactly as they were sampled, or a trainer would learn from tokens that the model
never wrote. There are two modes:

suffix      Render the whole conversation again. What follows the tokens so far is the segment. If
            it does not begin with them, that is an error: a mask is never guessed.
boundary    Render only the reply, behind a placeholder turn, and take what the template puts
            after that turn. For templates that drop or rewrite earlier turns (many do with
            reasoning), and for models that write what their tokenizer would split otherwise. It
            costs the same in the fiftieth turn as in the first.

The template is a function, `render(messages, add_generation_prompt) -> ids`; nothing here knows a
tokenizer.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from heldout._core.checks import check_texts
from heldout._reasoning import opened_reasoning
from heldout.errors import InvalidInput, RenderMismatch
from heldout.types import Message, ToolCall, ToolSpec

Render = Callable[..., Sequence[int]]
"""`render(messages, add_generation_prompt) -> ids`; called with `tools` too if it takes them."""
Decode = Callable[[Sequence[int]], str]
Parse = Callable[..., Message]
"""`parse(text)`: the text of a model's turn, with the tag that opens its reasoning even if the
prompt ended in it, to a message with its tool calls. Called with `first`, `tools` and `prompt` too
if it takes them."""

Segments = Literal["suffix", "boundary"]

TAG_TOKENS = 16
"""Tokens at the end of a prompt that are searched for a tag that opens reasoning."""
MAX_BOUNDARIES = 256

_QUESTION = Message("user", "?")
_MARKS = ("1", "x", ".")
"""Turns of one token, of three kinds: if text of the template can merge into a turn's last token,
it does so with some of them and not with others."""


class Template:
    """A chat template and how its turns are read, shared by all rollouts that use it.

    Args:
        render: The template. As attributes it may have `decode` and `parse`, as `ChatRenderer` has
            them; `ends`, the tokens that end a model's turn, which `decode` leaves out; and
            `spell`, which decodes everything.
        segments: How the tokens between two turns are made.
        decode: Ids to text; None takes the attribute of `render`.
        parse: Text to a message; None takes the attribute of `render`.
        stop: Texts that end a turn and are no part of its message; one text, or None for none.

    Raises:
        InvalidInput: `stop` is no list of texts, or `segments` no mode.
    """

    def __init__(
        self,
        render: Render,
        *,
        segments: Segments = "suffix",
        decode: Decode | None = None,
        parse: Parse | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> None:
        if segments not in get_args(Segments):
            raise InvalidInput(f"segments must be 'suffix' or 'boundary', got {segments!r}")
        self.segments: Segments = segments
        self.decode: Decode | None = decode or getattr(render, "decode", None)
        self.parse: Parse | None = parse or getattr(render, "parse", None)
        self.spell: Decode | None = getattr(render, "spell", self.decode)
        self.stop = check_texts("stop", stop)
        self._render = render
        self._takes_tools = not {"tools", "**"}.isdisjoint(_keywords(render))
        self._parse_keywords = _keywords(self.parse) if self.parse else set()
        self._by_tools: dict[bytes, TemplateWithTools] = {}

    def with_tools(self, tools: Sequence[ToolSpec]) -> TemplateWithTools:
        """Bind this template to tools: always the same object for the same tools."""
        key = msgspec.json.encode(tools)
        if key not in self._by_tools:
            self._by_tools[key] = TemplateWithTools(self, tuple(tools))
        return self._by_tools[key]

    @property
    def ends(self) -> frozenset[int]:
        """The tokens known to end a model's turn."""
        return getattr(self._render, "ends", frozenset())

    def ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Render a conversation, with a generation prompt if the next turn is the model's."""
        keywords = {"tools": tools} if self._takes_tools else {}
        try:
            return list(self._render(list(messages), add_generation_prompt, **keywords))
        except RenderMismatch:
            raise
        except Exception as error:  # a user's template
            raise refusal(error) from error

    def read(
        self,
        turn: str | Message | None,
        ids: Sequence[int],
        *,
        first: int = 0,
        tools: Sequence[ToolSpec] = (),
        prompt: Sequence[int] = (),
    ) -> tuple[Message, Message]:
        """Parse a model's turn: a message, its text, or None to decode its ids.

        The first call has the number `first`; `prompt` are the ids that the turn follows.

        Returns:
            The parsed message, and the message that renders to the turn as it was written.
        """
        if isinstance(turn, Message):
            return turn, turn
        if turn is None:
            if self.decode is None:
                raise InvalidInput(
                    "the engine returned tokens without their text, and there is no `decode` to "
                    "read them with: return Generated(ids, logprobs, text), or pass decode="
                )
            turn = self.decode(ids)
        raw = Message("assistant", turn)
        tag = opened_reasoning(self.spell(prompt[-TAG_TOKENS:])) if self.spell else ""
        text = tag + before_stop(turn, self.stop)
        if self.parse is None:
            return Message("assistant", text), raw
        keywords = {"first": first, "tools": tools, "prompt": prompt}
        keywords = {name: keywords[name] for name in keywords if name in self._parse_keywords}
        return self.parse(text, **keywords), raw

    def ends_early(self, ids: Sequence[int]) -> int | None:
        """Return how many ids it takes for their text to contain a stop; None if it does not."""
        if not self.stop or self.decode is None or not self._has_stop(ids):
            return None
        return bisect_left(range(len(ids) + 1), True, key=lambda n: self._has_stop(ids[:n]))

    def _has_stop(self, ids: Sequence[int]) -> bool:
        assert self.decode is not None
        text = self.decode(ids)
        return any(stop in text for stop in self.stop)


class _Boundary(NamedTuple):
    """Where a template's own text begins behind a placeholder turn."""

    before: list[int]
    """The ids up to there."""
    header: int
    """How many ids follow before those of the reply."""


class TemplateWithTools:
    """A template with its tools, and the boundaries of its turns."""

    def __init__(self, template: Template, tools: tuple[ToolSpec, ...]) -> None:
        self._template, self.tools = template, tools
        self._boundaries: dict[Any, _Boundary] = {}
        """By the kind of turn and reply."""
        self._shown: set[tuple[str, ...]] = set()
        """The roles of replies that the template is known to render."""

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Render the opening of a conversation, up to the model's first turn."""
        ids = self._ids(messages)
        if not ids:
            raise RenderMismatch("the opening messages render to no tokens at all")
        return ids

    def segment(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        so_far: list[int],
        parsed: Message,
        *,
        truncated: bool = False,
    ) -> list[int]:
        """Make the ids between a model's turn and its next one, without guessing.

        `history` ends in that turn as it was written and `so_far` in its ids; `parsed` is that
        turn, `new` the environment's reply to it.
        """
        if self._template.segments == "suffix":
            segment = self._suffix(history, new, so_far)
        else:
            ends = self._template.ends
            truncated = truncated or (bool(ends) and so_far[-1] not in ends)
            segment = self._boundary(parsed, new, so_far, truncated)
        if not segment:
            roles = ", ".join(message.role for message in new) or "nothing"
            raise RenderMismatch(f"the template renders the reply ({roles}) to no tokens at all")
        return segment

    def _ids(self, messages: Sequence[Message]) -> list[int]:
        return self._template.ids(messages, self.tools)

    def check_shown(
        self, before: Sequence[Message], new: Sequence[Message], full: list[int]
    ) -> None:
        """Check that the reply is part of what was rendered: some templates skip tool messages."""
        roles = tuple(message.role for message in new)
        if roles in self._shown:
            return
        for index, message in enumerate(new):
            changed = [*before, *new[:index], _changed(message), *new[index + 1 :]]
            if self._ids(changed) == full:
                raise RenderMismatch(
                    f"the template leaves {message.role} messages out, so the model would not "
                    "see the reply: give it as a user message"
                )
        self._shown.add(roles)

    # --- suffix ---

    def _suffix(
        self, history: Sequence[Message], new: Sequence[Message], so_far: list[int]
    ) -> list[int]:
        full = self._ids([*history, *new])
        if full[: len(so_far)] != so_far:
            position = common_prefix(so_far, full)
            raise RenderMismatch(
                f"rendered again, the conversation differs from its {len(so_far)} tokens so far at "
                f"position {position}: there they go on {self._excerpt(so_far, position)}, and the "
                f"template {self._excerpt(full, position)}. Either the template rewrites earlier "
                "turns, or the model wrote what its tokenizer would split otherwise. "
                "segments='boundary' renders no turn twice; `heldout check template` says which of "
                "the two modes a template allows"
            )
        segment = full[len(so_far) :]
        if segment:
            if segment[0] == so_far[-1] and so_far[-1] in self._template.ends:
                raise RenderMismatch(
                    "the model's turn as text holds the token that ends it, so that it would end "
                    "twice: leave it out of Generated.message, or of what decode gives"
                )
            self.check_shown(history, new, full)
        return segment

    def _excerpt(self, ids: list[int], position: int) -> str:
        part = ids[position : position + 8]
        if not part:
            return "nowhere, they end"
        spell = self._template.spell
        return f"with {part}" + (f" ({spell(part)!r})" if spell is not None else "")

    # --- boundary ---

    def _boundary(
        self, parsed: Message, new: Sequence[Message], so_far: list[int], truncated: bool
    ) -> list[int]:
        """Return what the template puts behind a turn, less what the model wrote of it itself."""
        # The last token of a truncated call is an arbitrary one: it does not show the turn's end.
        calls = () if truncated else _answered_calls(parsed, new)
        ending = tuple(so_far[-4:]) if calls else ()
        # Not by call ids, which are new in every turn and which few templates render.
        names = tuple(call.name for call in calls)
        key = (names, ending, tuple(message.role for message in new))
        if key in self._boundaries:
            boundary = self._boundaries[key]
            full = self._ids([_QUESTION, _placeholder(_MARKS[0], calls), *new])
            if full[: len(boundary.before)] == boundary.before:
                return self._without_end(so_far, full[len(boundary.before) :], boundary.header)
        try:
            boundary, tail = self._find_boundary(calls, new, so_far)
        except RenderMismatch:
            if not calls:
                raise
            # Some templates render a tool message only behind a call of it, others only know text.
            boundary, tail = self._find_boundary((), new, so_far)
        else:
            if len(self._boundaries) >= MAX_BOUNDARIES:  # calls end in ever new tokens
                self._boundaries.clear()
            self._boundaries[key] = boundary
        return self._without_end(so_far, tail, boundary.header)

    def _find_boundary(
        self, calls: tuple[ToolCall, ...], new: Sequence[Message], so_far: list[int]
    ) -> tuple[_Boundary, list[int]]:
        """Render the reply behind three placeholders: the tail is what all three share."""
        renders = [self._ids([_QUESTION, _placeholder(mark, calls), *new]) for mark in _MARKS]
        full = renders[0]
        if full in renders[1:]:
            raise RenderMismatch("the template leaves out what the model's turn says")
        lengths = {common_suffix(a, b) for a, b in combinations(renders, 2)}
        length = min(lengths)
        if len(lengths) > 1 or length == 0:
            raise RenderMismatch(
                "the template has no boundary of its own behind a model turn: its text melts into "
                "the turn's last token, or it rewrites what it puts there"
            )
        before = [_QUESTION, _placeholder(_MARKS[0], calls)]
        self.check_shown(before, new, full)
        start = len(full) - length
        # The template's own part of the tail ends where a changed reply makes a difference.
        reply = common_prefix(full, self._ids([*before, *map(_changed, new)]))
        if calls:
            # The brackets of the call's arguments come first. The turn ends where the model's did:
            # in the same token, and of several in the one with the most before it in common.
            positions = [
                position for position in range(start, reply) if full[position] == so_far[-1]
            ]
            if not positions:
                raise RenderMismatch(
                    "the model's turn ends in another token than the template's tool calls do"
                )
            start = max(positions, key=lambda position: common_suffix(full[: position + 1], so_far))
        return _Boundary(full[:start], max(0, reply - start)), full[start:]

    def _without_end(self, so_far: list[int], tail: list[int], header: int) -> list[int]:
        """Drop the tokens from the tail with which the model ended its turn itself."""
        for count in (2, 1):
            if tail[:count] == so_far[-count:]:
                return tail[count:]
        last = so_far[-1]
        if last in self._template.ends:
            if last in tail[:header]:  # the template puts something before it: a space, a marker
                return tail[tail.index(last) + 1 :]
            if last in self._closing[:1]:
                # gpt-oss closes the last turn of a conversation otherwise than those before.
                return tail[1:]
        return tail

    @cached_property
    def _closing(self) -> list[int]:
        """What the template puts behind a model's turn that ends the conversation."""
        turns = [[_QUESTION, _placeholder(mark, ())] for mark in _MARKS]
        return shared_tail([self._template.ids(turn, self.tools, False) for turn in turns])


def refusal(error: Exception) -> RenderMismatch:
    """Make the error of a template that does not render a conversation: Jinja's raise anything."""
    return RenderMismatch(
        f"the chat template refuses the conversation: {type(error).__name__}: {error}"
    )


def _changed(message: Message) -> Message:
    """Return the message with other content, from the first character on."""
    return replace(message, content="%" if message.text.lstrip().startswith("#") else "#")


def _placeholder(mark: str, calls: tuple[ToolCall, ...]) -> Message:
    if not calls:
        return Message("assistant", mark)
    marked = tuple(replace(call, arguments=f'{{"a": "{mark}"}}') for call in calls)
    return Message("assistant", "", tool_calls=marked)


def _answered_calls(turn: Message, reply: Sequence[Message]) -> tuple[ToolCall, ...]:
    answered_ids = {message.tool_call_id for message in reply if message.role == "tool"}
    return tuple(replace(c, arguments="{}") for c in turn.tool_calls if c.id in answered_ids)


def before_stop(text: str, stops: Sequence[str]) -> str:
    """Cut a text off before the first of some stops in it."""
    return text[: min((p for s in stops if (p := text.find(s)) >= 0), default=len(text))]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Count the ids that two sequences have in common at their start."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def common_suffix(a: Sequence[int], b: Sequence[int]) -> int:
    """Count the ids that two sequences have in common at their end."""
    return common_prefix(a[::-1], b[::-1])


def shared_tail(renders: Sequence[list[int]]) -> list[int]:
    """Return the ids that all of some sequences end with."""
    length = min(common_suffix(a, b) for a, b in combinations(renders, 2))
    return renders[0][len(renders[0]) - length :]


def _keywords(function: Callable[..., object]) -> set[str]:
    """Return the names that a function takes as keywords, with `**` if it takes any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return set()
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return names | {"**" for p in parameters if p.kind is p.VAR_KEYWORD}
