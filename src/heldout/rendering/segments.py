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
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from heldout.errors import InvalidInput, RenderMismatch
from heldout.reasoning import opened_reasoning
from heldout.types import Message, ToolCall, ToolSpec

Render = Callable[..., Sequence[int]]
"""`render(messages, add_generation_prompt) -> ids`; one that takes `tools` is given them too."""
Decode = Callable[[Sequence[int]], str]
Parse = Callable[..., Message]
"""`parse(text)`: what a model wrote, as the message it meant, its tool calls found.

The text begins with the tag that opens its reasoning where the prompt ended in one. A `parse`
that takes `first` is given the number of its first call, so that ids differ throughout a
conversation; one that takes `tools` is given them, and `prompt` the ids that the turn follows.
"""

Segments = Literal["suffix", "boundary"]

TAG_TOKENS = 16
"""The end of a prompt in which a tag is looked for that opens the model's reasoning."""

_QUESTION = Message("user", "?")
_MARKS = ("1", "x", ".")
"""Turns of one token, of three kinds: if a template's own text can melt into a turn's last token,
it does so with some of them and not with others."""


class Template:
    """A chat template and how it is read, shared by all rollouts that use it.

    `decode` and `parse` are given here, or are attributes of `render`, as `ChatRenderer` has them.
    A turn ends with the first of the texts in `stop`, which are no part of its message.
    `render` may also have `ends`, the tokens that end a model turn, which `decode` leaves out, and
    `spell`, which decodes everything.
    """

    def __init__(
        self,
        render: Render,
        *,
        segments: Segments = "suffix",
        decode: Decode | None = None,
        parse: Parse | None = None,
        stop: Sequence[str] = (),
    ) -> None:
        if isinstance(stop, str) or not all(isinstance(text, str) and text for text in stop):
            raise InvalidInput(f"stop is a list of texts, got {stop!r:.100}")
        if segments not in get_args(Segments):
            raise InvalidInput(f"segments is 'suffix' or 'boundary', got {segments!r}")
        self.segments: Segments = segments
        self.decode: Decode | None = decode or getattr(render, "decode", None)
        self.parse: Parse | None = parse or getattr(render, "parse", None)
        self.spell: Decode | None = getattr(render, "spell", self.decode)
        self.stop = tuple(stop)
        self._render, self._takes_tools = render, _takes_tools(render)
        self._parse_takes = _names(self.parse) if self.parse else set()
        self._told: dict[bytes, ToldTemplate] = {}

    def told(self, tools: Sequence[ToolSpec]) -> ToldTemplate:
        """This template for a model that may call these tools."""
        key = msgspec.json.encode(tools)
        if key not in self._told:
            self._told[key] = ToldTemplate(self, tuple(tools))
        return self._told[key]

    @property
    def ends(self) -> frozenset[int]:
        return getattr(self._render, "ends", frozenset())

    def ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        add_generation_prompt: bool = True,
    ) -> list[int]:
        if self._takes_tools:
            return list(self._render(list(messages), add_generation_prompt, tools=tools))
        return list(self._render(list(messages), add_generation_prompt))

    def read(
        self,
        written: str | Message | None,
        ids: Sequence[int],
        *,
        first: int = 0,
        tools: Sequence[ToolSpec] = (),
        prompt: Sequence[int] = (),
    ) -> tuple[Message, Message]:
        """A turn as the message it means, and as the message that renders to what was written.

        `first` is the number of its first tool call, `prompt` the ids it follows.
        """
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
        written = self._opened(prompt) + before_stop(written, self.stop)
        if self.parse is None:
            return Message("assistant", written), as_written
        known = {"first": first, "tools": tools, "prompt": prompt}
        taken = {name: value for name, value in known.items() if name in self._parse_takes}
        return self.parse(written, **taken), as_written

    def ends_early(self, ids: Sequence[int]) -> int | None:
        """How many of the ids it takes for their text to have a stop in it; None: it has none."""
        if not self.stop or self.decode is None or not self._stops(ids):
            return None
        return bisect_left(range(len(ids) + 1), True, key=lambda n: self._stops(ids[:n]))

    def _stops(self, ids: Sequence[int]) -> bool:
        assert self.decode is not None
        text = self.decode(ids)
        return any(stop in text for stop in self.stop)

    def _opened(self, prompt: Sequence[int]) -> str:
        """The tag with which the template opened the model's reasoning, if it did."""
        return opened_reasoning(self.spell(prompt[-TAG_TOKENS:])) if self.spell else ""


class ToldTemplate:
    """A template with its tools, and what has been found out about it."""

    def __init__(self, template: Template, tools: tuple[ToolSpec, ...]) -> None:
        self._template, self.tools = template, tools
        self._known: dict[Any, _Behind] = {}
        """By what is to be rendered: how it renders behind a made-up turn."""
        self._shown: set[tuple[str, ...]] = set()
        """The roles of replies that the template is known to show."""
        self._closing: list[int] | None = None

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        ids = self._ids(messages)
        if not ids:
            raise RenderMismatch("the opening messages render to no tokens at all")
        return ids

    def segment(
        self,
        seen: Sequence[Message],
        new: Sequence[Message],
        so_far: list[int],
        meant: Message,
        *,
        cut_off: bool = False,
    ) -> list[int]:
        """What stands between the model's last turn, which ends `so_far`, and its next one.

        `seen` is the conversation as it was rendered, ending in that turn as it was written;
        `meant` is that turn as it was understood; `cut_off` that the model did not end it.
        """
        if self._template.segments == "suffix":
            segment = self._suffix(seen, new, so_far)
        else:
            ends = self._template.ends
            unended = cut_off or (bool(ends) and so_far[-1] not in ends)
            segment = self._boundary(meant, new, so_far, unended)
        if not segment:
            roles = ", ".join(message.role for message in new) or "nothing"
            raise RenderMismatch(f"the template renders the reply ({roles}) to no tokens at all")
        return segment

    def _ids(self, messages: Sequence[Message]) -> list[int]:
        return self._template.ids(messages, self.tools)

    def _check_shown(
        self, before: Sequence[Message], new: Sequence[Message], full: list[int]
    ) -> None:
        """That the reply is in what was rendered: some templates pass over tool messages."""
        roles = tuple(message.role for message in new)
        if roles in self._shown:
            return
        for place, message in enumerate(new):
            changed = [*before, *new[:place], _changed(message), *new[place + 1 :]]
            if self._ids(changed) == full:
                raise RenderMismatch(
                    f"the template leaves {message.role} messages out, so the model would not "
                    "see the reply: give it as a user message"
                )
        self._shown.add(roles)

    # --- suffix ---

    def _suffix(
        self, seen: Sequence[Message], new: Sequence[Message], so_far: list[int]
    ) -> list[int]:
        try:
            full = self._ids([*seen, *new])
        except Exception as problem:
            raise RenderMismatch(
                "the template refuses the conversation with the model's turns as they were "
                f"written: {type(problem).__name__}: {problem}. segments='boundary' renders no "
                "turn twice"
            ) from problem
        if full[: len(so_far)] != so_far:
            raise RenderMismatch(self._difference(so_far, full))
        segment = full[len(so_far) :]
        if segment:
            if segment[0] == so_far[-1] and so_far[-1] in self._template.ends:
                raise RenderMismatch(
                    "the model's turn as text holds the token that ends it, so that it would end "
                    "twice: leave it out of Generated.message, or of what decode gives"
                )
            self._check_shown(seen, new, full)
        return segment

    def _difference(self, so_far: list[int], full: list[int]) -> str:
        place = common_prefix(so_far, full)
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
        spell = self._template.spell
        return f"with {part}" + (f" ({spell(part)!r})" if spell is not None else "")

    # --- boundary ---

    def _boundary(
        self, meant: Message, new: Sequence[Message], so_far: list[int], unended: bool
    ) -> list[int]:
        """What the template puts behind a model turn, less what the model wrote of it itself."""
        # Where a call breaks off, its last token is anything: it does not show where a turn ends.
        calls = () if unended else _answered_calls(meant, new)
        ending = tuple(so_far[-4:]) if calls else ()
        # Without their ids, which are new in every turn and which few templates show.
        names = tuple(call.name for call in calls)
        key = (names, ending, tuple(message.role for message in new))
        if key in self._known:
            known = self._known[key]
            full = self._ids([_QUESTION, _made_up(_MARKS[0], calls), *new])
            if full[: len(known.before)] == known.before:
                return self._behind(so_far, full[len(known.before) :], known.header)
        problem: Exception | None = None
        # Some templates render a tool's answer only behind a call of it, others only know text.
        for variant in (calls, ()) if calls else ((),):
            try:
                known, tail = self._vary(variant, new, so_far)
            except Exception as raised:  # noqa: BLE001 - templates raise what they like
                if problem is None or isinstance(problem, _LeftOut):
                    problem = raised
                continue
            if variant == calls:
                if len(self._known) >= 256:  # the endings of calls differ
                    self._known.clear()
                self._known[key] = known
            return self._behind(so_far, tail, known.header)
        if isinstance(problem, RenderMismatch):
            raise problem
        raise RenderMismatch(
            "the template cannot render the reply behind a model turn: "
            f"{type(problem).__name__}: {problem}"
        ) from problem

    def _vary(
        self, calls: tuple[ToolCall, ...], new: Sequence[Message], so_far: list[int]
    ) -> tuple[_Behind, list[int]]:
        """Render the reply behind three turns: what is the same after all of them is the tail."""
        renders = [self._ids([_QUESTION, _made_up(mark, calls), *new]) for mark in _MARKS]
        full = renders[0]
        if full in renders[1:]:
            raise _LeftOut("the template leaves out what the model's turn says")
        lengths = {common_suffix(a, b) for a, b in combinations(renders, 2)}
        length = min(lengths)
        if len(lengths) > 1 or length == 0:
            raise RenderMismatch(
                "the template has no boundary of its own behind a model turn: its text melts into "
                "the turn's last token, or it rewrites what it puts there"
            )
        before = [_QUESTION, _made_up(_MARKS[0], calls)]
        self._check_shown(before, new, full)
        start = len(full) - length
        # The template's own part of the tail ends where the reply begins, which a changed one
        # shows.
        reply = common_prefix(full, self._ids([*before, *map(_changed, new)]))
        if calls:
            # Behind the call's argument its brackets come first. The turn ends where the model's
            # did: in the same token, and of several with the most before it in common.
            places = [place for place in range(start, reply) if full[place] == so_far[-1]]
            if not places:
                raise RenderMismatch(
                    "the model's turn ends in another token than the template's tool calls do"
                )
            start = max(places, key=lambda place: common_suffix(full[: place + 1], so_far))
        return _Behind(full[:start], max(0, reply - start)), full[start:]

    def _behind(self, so_far: list[int], tail: list[int], header: int) -> list[int]:
        """The tail, without what the model wrote of it itself: the tokens that end its turn."""
        for written in (2, 1):
            if tail[:written] == so_far[-written:]:
                return tail[written:]
        last = so_far[-1]
        if last in self._template.ends:
            if last in tail[:header]:  # the template puts something before it: a space, a marker
                return tail[tail.index(last) + 1 :]
            if last in self._close()[:1]:
                # It closes the last turn of a conversation otherwise than those before: gpt-oss.
                return tail[1:]
        return tail

    def _close(self) -> list[int]:
        """What the template puts behind a model turn that ends the conversation."""
        if self._closing is None:
            turns = [[_QUESTION, _made_up(mark, ())] for mark in _MARKS]
            renders = [self._template.ids(turn, self.tools, False) for turn in turns]
            length = min(common_suffix(a, b) for a, b in combinations(renders, 2))
            self._closing = renders[0][len(renders[0]) - length :]
        return self._closing


class _LeftOut(RenderMismatch):
    pass


class _Behind(NamedTuple):
    """A reply behind a made-up turn."""

    before: list[int]
    header: int
    """How many tokens of what follows are the template's own, before the reply's."""


def _changed(message: Message) -> Message:
    """The same message saying something else, from the first character on."""
    return replace(message, content="%" if message.text.lstrip().startswith("#") else "#")


def _made_up(mark: str, calls: tuple[ToolCall, ...]) -> Message:
    if not calls:
        return Message("assistant", mark)
    marked = tuple(replace(call, arguments=f'{{"a": "{mark}"}}') for call in calls)
    return Message("assistant", "", tool_calls=marked)


def _answered_calls(meant: Message, new: Sequence[Message]) -> tuple[ToolCall, ...]:
    answered = {message.tool_call_id for message in new if message.role == "tool"}
    return tuple(replace(c, arguments="{}") for c in meant.tool_calls if c.id in answered)


def before_stop(text: str, stops: Sequence[str]) -> str:
    """The text up to the first stop in it."""
    return text[: min((p for s in stops if (p := text.find(s)) >= 0), default=len(text))]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def common_suffix(a: Sequence[int], b: Sequence[int]) -> int:
    return common_prefix(a[::-1], b[::-1])


def _takes_tools(render: Render) -> bool:
    return any(p.name == "tools" or p.kind is p.VAR_KEYWORD for p in _parameters(render))


def _names(function: Callable[..., object]) -> set[str]:
    """What it takes by name."""
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in _parameters(function) if p.kind in by_name}


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return []
