"""What stands, in tokens, between two turns of a model, for any chat template.

The environment's words, in the dress of the template, have to become ids, and the ids of earlier
turns must stay exactly as they were sampled, or a trainer would learn from tokens that nobody
wrote. There are two ways, chosen by name:

suffix      Render the whole conversation again. What follows the tokens so far is the
            environment's. If it does not begin with them, that is an error: a mask is never
            guessed.
boundary    Render only what is new, behind a made-up turn, and take what the template puts
            after that turn. For templates that drop or rewrite earlier turns (many do with
            reasoning), and for models that write what their tokenizer would split otherwise. It
            costs the same in the fiftieth turn as in the first.

The template is a function, `render(messages, add_generation_prompt) -> ids`; nothing here knows a
tokenizer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Literal, get_args

import msgspec

from heldout.errors import InvalidInput, RenderMismatch
from heldout.types import Message, ToolCall, ToolSpec

Render = Callable[..., Sequence[int]]
"""`render(messages, add_generation_prompt) -> ids`; one that takes `tools` is given them too."""
Decode = Callable[[Sequence[int]], str]
Parse = Callable[[str], Message]
"""What a model wrote, as the message it meant: its tool calls found."""

Segments = Literal["suffix", "boundary"]

_QUESTION = Message("user", "?")
_MARKS = ("1", "x", ".")
"""Turns of one token, of three kinds: if a template's own text can melt into a turn's last token,
it does so with some of them and not with others."""


class Template:
    """A chat template and how it is read, shared by all rollouts that use it.

    `decode` and `parse` are given here, or are attributes of `render`, as `ChatRenderer` has them.
    """

    def __init__(
        self,
        render: Render,
        *,
        segments: Segments = "suffix",
        decode: Decode | None = None,
        parse: Parse | None = None,
    ) -> None:
        if segments not in get_args(Segments):
            raise InvalidInput(f"segments is 'suffix' or 'boundary', got {segments!r}")
        self.segments: Segments = segments
        self.decode: Decode | None = decode or getattr(render, "decode", None)
        self.parse: Parse | None = parse or getattr(render, "parse", None)
        self._render, self._takes_tools = render, _takes_tools(render)
        self._told: dict[bytes, ToldTemplate] = {}

    def told(self, tools: Sequence[ToolSpec]) -> ToldTemplate:
        """This template for a model that may call these tools."""
        key = msgspec.json.encode(tools)
        if key not in self._told:
            self._told[key] = ToldTemplate(self, tuple(tools))
        return self._told[key]

    def ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        if self._takes_tools:
            return list(self._render(list(messages), True, tools=tools))
        return list(self._render(list(messages), True))

    def read(self, written: str | Message | None, ids: Sequence[int]) -> tuple[Message, Message]:
        """A turn as the message it means, and as the message that renders to what was written."""
        if isinstance(written, Message):
            return written, written
        if written is None:
            if self.decode is None:
                raise InvalidInput(
                    "the engine returned tokens without their text, and there is no `decode` to "
                    "read them with: return Generated(ids, logprobs, text), or pass decode="
                )
            written = self.decode(ids)
        as_written = Message("assistant", written)
        return (self.parse(written) if self.parse is not None else as_written), as_written


class ToldTemplate:
    """A template with its tools, and what has been found out about it."""

    def __init__(self, template: Template, tools: tuple[ToolSpec, ...]) -> None:
        self._template, self._tools = template, tools
        self._known: dict[Any, list[int]] = {}
        """By what is to be rendered: how a made-up turn before it renders."""

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        ids = self._ids(messages)
        if not ids:
            raise RenderMismatch("the opening messages render to no tokens at all")
        return ids

    def segment(
        self, seen: Sequence[Message], new: Sequence[Message], so_far: list[int], meant: Message
    ) -> list[int]:
        """What stands between the model's last turn, which ends `so_far`, and its next one.

        `seen` is the conversation as it was rendered, ending in that turn as it was written;
        `meant` is that turn as it was understood.
        """
        if self._template.segments == "suffix":
            segment = self._suffix([*seen, *new], so_far)
        else:
            segment = self._behind(so_far, self._boundary(meant, new, so_far))
        if not segment:
            roles = ", ".join(message.role for message in new) or "nothing"
            raise RenderMismatch(f"the template renders the reply ({roles}) to no tokens at all")
        return segment

    def _ids(self, messages: Sequence[Message]) -> list[int]:
        return self._template.ids(messages, self._tools)

    # --- suffix ---

    def _suffix(self, conversation: Sequence[Message], so_far: list[int]) -> list[int]:
        full = self._ids(conversation)
        if full[: len(so_far)] != so_far:
            raise RenderMismatch(self._difference(so_far, full))
        return full[len(so_far) :]

    def _difference(self, so_far: list[int], full: list[int]) -> str:
        place = _common_prefix(so_far, full)
        return (
            f"rendered again, the conversation differs from its {len(so_far)} tokens so far at "
            f"position {place}: there they go on {self._excerpt(so_far, place)}, and the template "
            f"{self._excerpt(full, place)}. Either the template rewrites earlier turns, or the "
            "model wrote what its tokenizer would split otherwise. segments='boundary' renders no "
            "turn twice; `heldout doctor` says which of the two modes a template allows"
        )

    def _excerpt(self, ids: list[int], place: int) -> str:
        part = ids[place : place + 8]
        if not part:
            return "nowhere, they end"
        decode = self._template.decode
        return f"with {part}" + (f" ({decode(part)!r})" if decode is not None else "")

    # --- boundary ---

    def _behind(self, so_far: list[int], tail: list[int]) -> list[int]:
        """The tail, without what the model wrote of it itself: the token that ends its turn."""
        for written in (2, 1):
            if tail[:written] == so_far[-written:]:
                return tail[written:]
        return tail

    def _boundary(self, meant: Message, new: Sequence[Message], so_far: list[int]) -> list[int]:
        """What the template puts behind a model turn, the end of that turn included."""
        calls = _answered_calls(meant, new)
        key = (calls, tuple(message.role for message in new))
        if key in self._known:
            before = self._known[key]
            full = self._ids([_QUESTION, _made_up(_MARKS[0], calls), *new])
            if full[: len(before)] == before:
                return full[len(before) :]
        problem: Exception | None = None
        # Some templates render a tool's answer only behind a call of it, others only know text.
        for variant in (calls, ()) if calls else ((),):
            try:
                full, tail = self._vary(variant, new, so_far[-1])
            except Exception as raised:  # noqa: BLE001 - templates raise what they like
                problem = problem or raised
                continue
            if variant == calls:
                if len(self._known) >= 256:  # calls have ids: they are new every time
                    self._known.clear()
                self._known[key] = full[: len(full) - len(tail)]
            return tail
        if isinstance(problem, RenderMismatch):
            raise problem
        raise RenderMismatch(
            "the template cannot render the reply behind a model turn: "
            f"{type(problem).__name__}: {problem}"
        ) from problem

    def _vary(
        self, calls: tuple[ToolCall, ...], new: Sequence[Message], last: int
    ) -> tuple[list[int], list[int]]:
        """Render the reply behind three turns: what is the same after all of them is the tail."""
        renders = [self._ids([_QUESTION, _made_up(mark, calls), *new]) for mark in _MARKS]
        lengths = {_common_suffix(a, b) for a, b in combinations(renders, 2)}
        length = min(lengths)
        if len(lengths) > 1 or length == 0:
            raise RenderMismatch(
                "the template has no boundary of its own behind a model turn: its text melts into "
                "the turn's last token, or it rewrites what it puts there"
            )
        full = renders[0]
        start = len(full) - length
        if calls:
            # Behind the call's argument its brackets come first; the turn ends where the model's
            # did. That must be before the reply begins, which a changed reply shows.
            changed = [replace(message, content="#") for message in new]
            reply = _common_prefix(
                full, self._ids([_QUESTION, _made_up(_MARKS[0], calls), *changed])
            )
            if last not in full[start:reply]:
                raise RenderMismatch(
                    "the model's turn ends in another token than the template's tool calls do"
                )
            start = full.index(last, start)
        return full, full[start:]


def _made_up(mark: str, calls: tuple[ToolCall, ...]) -> Message:
    if not calls:
        return Message("assistant", mark)
    marked = tuple(replace(call, arguments=f'{{"a": "{mark}"}}') for call in calls)
    return Message("assistant", "", tool_calls=marked)


def _answered_calls(meant: Message, new: Sequence[Message]) -> tuple[ToolCall, ...]:
    answered = {message.tool_call_id for message in new if message.role == "tool"}
    return tuple(replace(c, arguments="{}") for c in meant.tool_calls if c.id in answered)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def _common_suffix(a: Sequence[int], b: Sequence[int]) -> int:
    return _common_prefix(a[::-1], b[::-1])


def _takes_tools(render: Render) -> bool:
    try:
        parameters = inspect.signature(render).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    return any(p.name == "tools" or p.kind is p.VAR_KEYWORD for p in parameters)
