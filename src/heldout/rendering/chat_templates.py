"""The chat template of a transformers tokenizer, as the function from messages to ids.

    render = ChatRenderer(AutoTokenizer.from_pretrained("…"), enable_thinking=False)
    rollout_batch(samples, make_environment, render, generate, …)

Jinja makes text of all messages each time, which is cheap; tokenising is not, so only what is new
of the text is tokenised. A tokenizer looks for its added tokens first and tokenises the pieces
between them apart from each other. So where an added token stands, the ids before it do not
depend on what follows, nor those after it on what went before: what an earlier text and a new one
share up to there is known already. The ids are exactly those of tokenising everything.
"""

from __future__ import annotations

import re
import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from heldout.errors import InvalidInput
from heldout.reasoning import is_reasoning_tag
from heldout.rendering.dialect import Dialect
from heldout.rendering.segments import common_suffix
from heldout.toolcalls import parse_tool_calls
from heldout.types import Message, ToolCall, ToolSpec

KNOWN_CHARACTERS = 16_000_000
"""How much rendered text is kept, for all conversations together: some 50 MB with its ids."""


class ChatRenderer:
    """`render(messages, add_generation_prompt, tools) -> ids`, `decode` and `parse` for rollouts.

    `chat_template` is a template to use instead of the tokenizer's own; further keywords are what
    the template reads beside the messages. One renderer serves all rollouts, from any thread.
    """

    def __init__(
        self, tokenizer: Any, *, chat_template: str | None = None, **template_kwargs: Any
    ) -> None:
        if not hasattr(tokenizer, "get_chat_template"):
            raise InvalidInput(
                f"ChatRenderer takes a tokenizer of transformers, got {tokenizer!r:.100}: "
                "AutoTokenizer.from_pretrained(…) loads one"
            )
        try:
            source = tokenizer.get_chat_template(chat_template)
        except ValueError:
            raise InvalidInput(
                f"the tokenizer {getattr(tokenizer, 'name_or_path', '') or ''!r} has no chat "
                "template: pass chat_template=, the text of a Jinja template"
            ) from None
        for name in template_kwargs:
            if not re.search(rf"\b{re.escape(name)}\b", source):
                raise InvalidInput(f"the chat template does not read {name!r} anywhere")
        self.tokenizer = tokenizer
        self._chat_template, self._kwargs = chat_template, template_kwargs
        self._known = _Known(KNOWN_CHARACTERS)
        self._lock = threading.Lock()
        added = tokenizer.added_tokens_decoder
        self._special = frozenset(id for id, token in added.items() if token.special)
        whole = {i: token for i, token in added.items() if not token.normalized}
        # Slow tokenizers do not say where in the text a token stands.
        by_place = getattr(tokenizer, "is_fast", False) and not getattr(
            tokenizer, "split_special_tokens", False
        )
        self._separators = {
            id: token.content
            for id, token in whole.items()
            if by_place
            and not (token.lstrip or token.rstrip or token.single_word)
            and token.content.strip() == token.content
        }
        self._longest = max((len(token.content) for token in whole.values()), default=0)

    def __call__(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[ToolSpec] = (),
    ) -> list[int]:
        text = self.text(messages, add_generation_prompt, tools)
        with self._lock:
            return self._ids(text)

    def text(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[ToolSpec] = (),
    ) -> str:
        """What the template makes of the conversation, before it is tokenised."""
        # Without tools there is nothing to find out, and templates can be slow.
        dialect = self.dialect if _with_tools(messages, tools) else _WITHOUT_TOOLS
        told = dialect.told(messages, tools)
        return self._apply(told, dialect.given(tools), add_generation_prompt)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """What a model goes on from; calls and results as text where the template refuses them.

        Not for rollouts: a turn that was told natively may be text in the next prompt.
        """
        try:
            return self(messages, True, tools)
        except Exception:
            # Some templates take one call at a turn, or only arguments that are an object, or
            # only ids of their own kind. As text they take anything. If not, the template's first
            # objection is the one to tell.
            with suppress(Exception):
                if _with_tools(messages, tools):
                    told = self.dialect.written().told(messages, tools)
                    text = self._apply(told, self.dialect.given(tools), True)
                    with self._lock:
                        return self._ids(text)
            raise

    @cached_property
    def dialect(self) -> Dialect:
        """What the template can be told of tools."""
        return Dialect.of(lambda messages, tools: self._apply(messages, tools, True))

    def _apply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        text = self.tokenizer.apply_chat_template(
            messages,
            tools=tools,
            chat_template=self._chat_template,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **self._kwargs,
        )
        assert isinstance(text, str)
        return text

    # --- Text to ids ---

    def _ids(self, text: str) -> list[int]:
        if not self._separators:
            return self._tokenised(text)["input_ids"]  # type: ignore[no-any-return]
        keys = _blocks(text)
        known = self._known.nearest(keys)
        at = count = points = 0
        if known is not None:
            points = known.shared_with(text, self._longest)
            if points:
                points -= 1  # the tail begins with this one
                at, count = known.places[points], known.counts[points]
        tail = self._tokenised(text[at:], return_offsets_mapping=True)
        places = array("l", known.places[:points]) if known is not None else array("l")
        counts = array("l", known.counts[:points]) if known is not None else array("l")
        ids: list[int] = tail["input_ids"]
        for i, (id, (start, end)) in enumerate(zip(ids, tail["offset_mapping"], strict=True)):
            # A token can have the id of an added one without being it, spelled otherwise.
            if id in self._separators and text[at + start : at + end] == self._separators[id]:
                places.append(at + start)
                counts.append(count + i)
        whole = array("l", ids) if known is None else known.ids[:count] + array("l", ids)
        self._known.add(_Rendered(text, whole, places, counts, keys), extends=known)
        return whole.tolist()

    def _tokenised(self, text: str, **options: bool) -> Any:
        return self.tokenizer(
            text,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
            **options,
        )

    # --- Ids to text ---

    def decode(self, ids: Sequence[int]) -> str:
        """A model turn as text: without the tokens that end it, with all others."""
        end = len(ids)
        while end and (ids[end - 1] in self.ends or ids[end - 1] == self.tokenizer.pad_token_id):
            end -= 1
        anchor, prefix = self._anchor
        text = self.spell([*anchor, *ids[:end]])
        return text[len(prefix) :] if text.startswith(prefix) else self.spell(ids[:end])

    @cached_property
    def _anchor(self) -> tuple[list[int], str]:
        """What stands before the ids while they are decoded, and the text of it that goes again.

        SentencePiece decoders drop a space at the very start, and there a turn does not stand.
        """
        for id, content in self._separators.items():
            if self.spell([id]) == content:
                # Some put a space behind each special token when they tokenise: not in the text.
                behind = self._tokenised(f"{content}x")["input_ids"]
                spaced = behind[:1] == [id] and self.spell(behind) == f"{content} x"
                return [id], content + " " * spaced
        return [], ""

    def spell(self, ids: Sequence[int]) -> str:
        """The ids as text, whatever they are."""
        text = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a model turn: the tokenizer's, and what the template puts there."""
        found = {self.tokenizer.eos_token_id} - {None}
        question, reply = Message("user", "?"), Message("tool", "#", tool_call_id="call00000")
        texts = [Message("assistant", mark) for mark in ("1", "x")]
        with suppress(Exception):  # templates raise what they like
            for last in ([], [question]):
                a, b = (self([question, turn, *last], False) for turn in texts)
                found.update(self._first_special(a, common_suffix(a, b)))
        with suppress(Exception):
            call = Message("assistant", "", (ToolCall("call00000", "f", '{"a": "1"}'),))
            text = self([question, texts[0]], False)
            final = self([question, call], False)
            shared = common_suffix(text, final)
            whole = self([question, call, reply], False)
            if shared:
                found.update(self._first_special(final, shared))
            elif final[-1] in self._special:
                found.add(final[-1])
            elif whole[: len(final)] == final:
                # Turns of GLM's end in what begins the next message.
                found.update({whole[len(final)]} & self._special)
        return frozenset(found)

    def _first_special(self, ids: list[int], tail: int) -> list[int]:
        return [id for id in ids[len(ids) - tail :] if id in self._special][:1]

    def parse(
        self,
        text: str,
        first: int = 0,
        *,
        tools: Sequence[ToolSpec] | None = None,
    ) -> Message:
        """What a model wrote, as the message it meant: calls found, special tokens left out.

        `first` numbers the calls, where those of earlier turns have to be told from them; `tools`
        tell text from numbers where a convention does not, and without any (an empty list) there
        are no calls, whatever the text looks like. A call in reasoning is none.
        """
        content = text
        calls: tuple[ToolCall, ...] = ()
        if tools is None or tools:
            content, calls = parse_tool_calls(text, first, tools=tools or ())
        reasoning: str | None = None
        if channels := _CHANNELS.findall(content):
            thoughts = [said for channel, said in channels if channel == "analysis"]
            reasoning = "\n".join(thoughts) or None
            content = "".join(said for channel, said in channels if channel != "analysis")
        content = self._special_texts.sub("", content)
        return Message("assistant", content, calls, reasoning=reasoning)

    @cached_property
    def _special_texts(self) -> re.Pattern[str]:
        contents = [self.tokenizer.added_tokens_decoder[id].content for id in self._special]
        # Tags of reasoning are special tokens in some families: they say what is no answer.
        left_out = [text for text in contents if text and not is_reasoning_tag(text)]
        longest_first = sorted(left_out, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


# gpt-oss says in words, between special tokens, what is thought and what is said.
_CHANNELS = re.compile(
    r"<\|channel\|>(\w+)[^<]*<\|message\|>(.*?)(?=<\|(?:end|return|start)\|>|\Z)", re.DOTALL
)


# Where there are no tools, all dialects say the same.
_WITHOUT_TOOLS = Dialect(tools=False, calls="written", results=False, system=True)


def _with_tools(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
    return bool(tools) or any(m.tool_calls or m.role == "tool" for m in messages)


# --- What is known ------------------------------------------------------------------------------

BLOCK = 512
"""Characters; texts are found by how many such blocks they have in common from the start."""


def _blocks(text: str) -> list[int]:
    """A key for each block, which stands for all of the text up to its end."""
    keys, key = [], 0
    for start in range(0, len(text) - BLOCK + 1, BLOCK):
        key = hash((key, text[start : start + BLOCK]))
        keys.append(key)
    return keys


@dataclass(eq=False, slots=True)
class _Rendered:
    """A text and its ids, and where in both the added tokens stand."""

    text: str
    ids: array[int]
    places: array[int]
    counts: array[int]
    """How many ids there are before the added token at the place of the same number."""
    keys: list[int]

    def shared_with(self, text: str, longest: int) -> int:
        """How many of the places are the same in another text.

        A place counts if no added token that starts there, or before, could reach beyond what the
        two have in common: a longer one might be found instead.
        """
        known = self.text

        def differs(place: int) -> bool:
            end = place + longest
            return end > len(known) or not text.startswith(known[:end])

        return bisect_left(self.places, True, key=differs)


class _Known:
    """The latest renderings, up to so many characters in all."""

    def __init__(self, characters: int) -> None:
        self._limit = self._room = characters
        self._all: OrderedDict[int, _Rendered] = OrderedDict()
        self._by_key: dict[int, _Rendered] = {}

    def nearest(self, keys: list[int]) -> _Rendered | None:
        """One that has the most blocks in common with the text of these keys."""
        for key in reversed(keys):
            if key in self._by_key:
                found = self._by_key[key]
                self._all.move_to_end(id(found))
                return found
        return None

    def add(self, rendered: _Rendered, *, extends: _Rendered | None) -> None:
        if not rendered.keys or len(rendered.text) > self._limit:
            return
        if extends is not None and rendered.text.startswith(extends.text):
            self._drop(extends)  # all of it is in this one
        self._by_key.update(dict.fromkeys(rendered.keys, rendered))
        self._all[id(rendered)] = rendered
        self._room -= len(rendered.text)
        while self._room < 0:
            self._drop(next(iter(self._all.values())))

    def _drop(self, rendered: _Rendered) -> None:
        del self._all[id(rendered)]
        self._room += len(rendered.text)
        for key in rendered.keys:
            if self._by_key.get(key) is rendered:
                del self._by_key[key]
