"""The chat template of a transformers tokenizer, as the function from messages to ids.

    render = ChatRenderer(AutoTokenizer.from_pretrained("…"), enable_thinking=False)
    rollout_batch(samples, make_environment, render, generate, …)

Jinja renders the text of all messages each time, which is cheap; tokenising is not. A tokenizer
matches its added tokens first and tokenises the text between them independently. So a text is cut
before each added token, and the ids of every chunk are cached: a growing conversation costs only
its new turns. The ids are exactly those of tokenising everything.

`Dialect` detects what a template supports of tools, and writes the rest into the messages.
"""

from __future__ import annotations

import json
import re
import threading
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from heldout._core.chat.messages import to_chat_api, tool_to_chat_api
from heldout._core.chat.tool_calls import INVALID, call_id, parse_json, parse_tool_calls
from heldout._live.rendering.segments import common_suffix, refusal
from heldout._reasoning import is_reasoning_tag
from heldout.errors import InvalidInput, RenderMismatch
from heldout.types import Message, ToolCall, ToolSpec

CACHED_CHARACTERS = 16_000_000
"""Text whose ids are cached, for all conversations together: some 50 MB with the ids."""

# gpt-oss marks reasoning and answer by channels, between special tokens.
_CHANNELS = re.compile(
    r"<\|channel\|>(\w+)[^<]*<\|message\|>(.*?)(?=<\|(?:end|return|start)\|>|\Z)", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Which chat template a conversation is rendered with, and what the template is given."""

    template: str | None = None
    """The text of a Jinja template; None: the tokenizer's own."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the template reads besides the messages, such as `enable_thinking`."""

    def has_template(self, tokenizer: Any) -> bool:
        """Whether there is a template at all."""
        return bool(self.template or getattr(tokenizer, "chat_template", None))

    def renderer(self, tokenizer: Any) -> ChatRenderer:
        """Return the renderer; InvalidInput if the template does not read a keyword."""
        return ChatRenderer(tokenizer, chat_template=self.template, **self.kwargs)


class ChatRenderer:
    """Renders conversations as ids, and reads a model's ids as messages, for rollouts.

    One renderer serves all rollouts, from any thread.

    Args:
        tokenizer: A tokenizer of transformers.
        chat_template: The text of a Jinja template to use instead of the tokenizer's own.
        **template_kwargs: What the template reads besides the messages.

    Raises:
        InvalidInput: The tokenizer has no chat template, or the template does not read a keyword.
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
            if not reads_keyword(source, name):
                raise InvalidInput(f"the chat template does not read {name!r} anywhere")
        self.tokenizer = tokenizer
        self._chat_template, self._kwargs = chat_template, template_kwargs
        added = tokenizer.added_tokens_decoder
        self._special = frozenset(id for id, token in added.items() if token.special)
        # Normalized tokens are matched later, in the text between these.
        literal = {id: token for id, token in added.items() if not token.normalized}
        # One that begins with a letter decides whether a single-word token before it is matched.
        self._separators = {
            token.content: id
            for id, token in literal.items()
            if not (token.lstrip or token.rstrip or token.single_word)
            and re.match(r"[^\s\w]", token.content)
            and token.content.strip() == token.content
        }
        splits_special = getattr(tokenizer, "split_special_tokens", False)
        if splits_special or not getattr(tokenizer, "is_fast", False):
            self._separators = {}
        # With all others that may contain a separator, or reach into one.
        first = {content[0] for content in self._separators}
        contents = [token.content for token in literal.values()]
        rivals = [content for content in contents if not first.isdisjoint(content)]
        self._added = re.compile(_match_longest(rivals))
        self._chunks: OrderedDict[str, array[int]] = OrderedDict()
        self._room = CACHED_CHARACTERS
        self._lock = threading.Lock()

    def __call__(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[ToolSpec] = (),
    ) -> list[int]:
        """Render a conversation as ids.

        Args:
            messages: The conversation.
            add_generation_prompt: Whether the next turn is the model's.
            tools: The tools it may call.
        """
        return self._tokenize(self.text(messages, add_generation_prompt, tools))

    def text(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[ToolSpec] = (),
    ) -> str:
        """Render a conversation as text."""
        # Without tools there is nothing to detect, and templates can be slow.
        dialect = self.dialect if _uses_tools(messages, tools) else _WITHOUT_TOOLS
        chat = dialect.convert(messages, tools)
        return self._apply(chat, dialect.convert_tools(tools), add_generation_prompt)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> list[int]:
        """Render the prompt of a turn, with calls and results as text if the template refuses them.

        Not for rollouts: a turn that was rendered natively may be text in the next prompt.
        """
        try:
            return self(messages, True, tools)
        except RenderMismatch:
            # Some templates take one call per turn, or only an object as arguments, or only ids of
            # their own format. As text they take anything.
            if not _uses_tools(messages, tools):
                raise
            chat = self.dialect.text_only().convert(messages, tools)
            return self._tokenize(self._apply(chat, self.dialect.convert_tools(tools), True))

    @cached_property
    def dialect(self) -> Dialect:
        """What the template supports of tools."""
        return Dialect.detect(lambda messages, tools: self._apply(messages, tools, True))

    def _apply(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages,
                tools=tools,
                chat_template=self._chat_template,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **self._kwargs,
            )
        except Exception as error:  # Jinja templates raise anything
            raise refusal(error) from error
        return text

    # --- Text to ids ---

    def _tokenize(self, text: str) -> list[int]:
        if not self._separators:
            [ids] = self._tokenize_chunks([text])
            return ids
        matches = self._added.finditer(text)
        cuts = [match.start() for match in matches if match.group() in self._separators]
        chunks = [text[start:end] for start, end in pairwise([0, *cuts, len(text)]) if start < end]
        with self._lock:
            cached = {chunk: self._chunks[chunk] for chunk in chunks if chunk in self._chunks}
            for chunk in cached:
                self._chunks.move_to_end(chunk)
            missing = [chunk for chunk in dict.fromkeys(chunks) if chunk not in cached]
            for chunk, new in zip(missing, self._tokenize_chunks(missing), strict=True):
                cached[chunk] = self._chunks[chunk] = array("l", new)
                self._room -= len(chunk)
            while self._room < 0:
                self._room += len(self._chunks.popitem(last=False)[0])
        return [id for chunk in chunks for id in cached[chunk]]

    def _tokenize_chunks(self, chunks: list[str]) -> list[list[int]]:
        if not chunks:
            return []
        encoded = self.tokenizer(
            chunks,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    # --- Ids to text ---

    def decode(self, ids: Sequence[int]) -> str:
        """Decode a model's turn, without the tokens that end it and with all others."""
        end = len(ids)
        while end and (ids[end - 1] in self.ends or ids[end - 1] == self.tokenizer.pad_token_id):
            end -= 1
        anchor, prefix = self._anchor
        text = self.spell([*anchor, *ids[:end]])
        return text[len(prefix) :] if text.startswith(prefix) else self.spell(ids[:end])

    @cached_property
    def _anchor(self) -> tuple[list[int], str]:
        """A token to decode before a turn, and its text.

        SentencePiece decoders drop a space at the very start, where a turn never stands.
        """
        for content, id in self._separators.items():
            if self.spell([id]) == content:
                # Some tokenizers add a space after each special token that is not in the text.
                [behind] = self._tokenize_chunks([f"{content}x"])
                spaced = behind[:1] == [id] and self.spell(behind) == f"{content} x"
                return [id], content + " " * spaced
        return [], ""

    def spell(self, ids: Sequence[int]) -> str:
        """Decode ids as text, special tokens included."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end a model's turn: the tokenizer's, and those of the template."""
        ends = {self.tokenizer.eos_token_id} - {None}
        question, result = Message("user", "?"), Message("tool", "#", tool_call_id=call_id(0))
        turns = [Message("assistant", mark) for mark in ("1", "x")]
        with suppress(RenderMismatch):
            for following in ([], [question]):
                a, b = (self([question, turn, *following], False) for turn in turns)
                ends.update(self._first_special(a, common_suffix(a, b)))
        with suppress(RenderMismatch):
            call = Message("assistant", "", (ToolCall(call_id(0), "f", '{"a": "1"}'),))
            text_turn = self([question, turns[0]], False)
            called = self([question, call], False)
            shared = common_suffix(text_turn, called)
            continued = self([question, call, result], False)
            if shared:
                ends.update(self._first_special(called, shared))
            elif called[-1] in self._special:
                ends.add(called[-1])
            elif continued[: len(called)] == called:
                # GLM's turns end in the token that begins the next message.
                ends.update({continued[len(called)]} & self._special)
        return frozenset(ends)

    def _first_special(self, ids: list[int], tail: int) -> list[int]:
        return [id for id in ids[len(ids) - tail :] if id in self._special][:1]

    def parse(
        self, text: str, first: int = 0, *, tools: Sequence[ToolSpec] | None = None
    ) -> Message:
        """Parse the text of a model's turn: tool calls found, special tokens removed.

        A call inside reasoning is not one.

        Args:
            text: What the model wrote.
            first: The number of its first call, so that ids differ throughout a conversation.
            tools: Their schemas tell text from numbers where a call's format does not. An empty
                list finds no calls at all.
        """
        content = text
        calls: tuple[ToolCall, ...] = ()
        if tools is None or tools:
            content, calls = parse_tool_calls(text, first, tools=tools or ())
        reasoning: str | None = None
        if channels := _CHANNELS.findall(content):
            reasoning = "\n".join(text for name, text in channels if name == "analysis") or None
            content = "".join(text for name, text in channels if name != "analysis")
        content = self._special_texts.sub("", content)
        return Message("assistant", content, calls, reasoning=reasoning)

    @cached_property
    def _special_texts(self) -> re.Pattern[str]:
        contents = [self.tokenizer.added_tokens_decoder[id].content for id in self._special]
        # Reasoning tags are special tokens in some families, and have to stay.
        removed = [content for content in contents if content and not is_reasoning_tag(content)]
        return re.compile(_match_longest(removed))


def reads_keyword(template: str, name: str) -> bool:
    """Whether a chat template names a keyword anywhere."""
    return re.search(rf"\b{re.escape(name)}\b", template) is not None


def _match_longest(words: Iterable[str]) -> str:
    """Return a regular expression for the longest of some words, as a trie: there are thousands."""
    suffixes: dict[str, list[str]] = defaultdict(list)
    optional = False
    for word in words:
        if word:
            suffixes[word[0]].append(word[1:])
        else:
            optional = True
    if not suffixes:
        return "" if optional else "(?!)"
    branches = [re.escape(first) + _match_longest(tails) for first, tails in suffixes.items()]
    return f"(?:{'|'.join(branches)})" + ("?" if optional else "")


def _uses_tools(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
    return bool(tools) or any(m.tool_calls or m.role == "tool" for m in messages)


# --- Tools --------------------------------------------------------------------------------------


def describe_tools(tools: Sequence[ToolSpec]) -> str:
    """Describe tools to a model whose chat template does not, in the Hermes format."""
    described = "\n".join(json.dumps(tool_to_chat_api(t), ensure_ascii=False) for t in tools)
    return (
        "# Tools\n\nThese functions are at your service, one a line, each with the JSON schema of "
        f"its arguments:\n<tools>\n{described}\n</tools>\n\n"
        "To call one, write a JSON object with its name and its arguments between <tool_call> and "
        "</tool_call>, once for every call:\n"
        '<tool_call>\n{"name": "the function", "arguments": {"an argument": "its value"}}\n'
        "</tool_call>\nWhat it returns comes back between <tool_response> and </tool_response>."
    )


def write_tool_call(call: ToolCall) -> str:
    """Write a call in the format of `describe_tools`, a malformed one as the model wrote it."""
    malformed = parse_json(call.arguments) is INVALID and call.name in call.arguments
    name = json.dumps(call.name, ensure_ascii=False)
    body = call.arguments if malformed else f'{{"name": {name}, "arguments": {call.arguments}}}'
    return f"<tool_call>\n{body}\n</tool_call>"


ApplyTemplate = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], str]
"""A chat template: messages and tools (or None) in chat-API form to text."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a chat template supports of tools.

    The rest is written into the messages: the tools into the system message, calls into the text
    of the model's turn, results into a user message. If the tools are written there, calls and
    results are too.
    """

    tools: bool
    """It takes the tools besides the messages."""
    calls: Literal["mapping", "text", "written"]
    """How it takes a call's arguments, or that calls have to be written as text."""
    results: bool
    """It takes tool messages."""
    system: bool
    """It takes a system message."""

    @classmethod
    def detect(cls, apply: ApplyTemplate) -> Dialect:
        """Detect the dialect of a template by rendering probes."""
        schema = {"type": "object", "properties": {"probe_x": {"type": "string"}}}
        probe = [tool_to_chat_api(ToolSpec("probe_tool", "A probe.", schema))]
        user = {"role": "user", "content": "probe_question"}
        result = {"role": "tool", "content": "probe_result", "tool_call_id": call_id(0)}

        def try_apply(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
            try:
                return apply(messages, tools)
            except RenderMismatch:
                return ""

        # It need not name the tool: a template may be made for the tools it has.
        tools = try_apply([user], probe) not in ("", try_apply([user], None))

        def shows(messages: list[dict[str, Any]], *words: str) -> bool:
            text = try_apply(messages, probe if tools else None)
            return all(word in text for word in words)

        system = shows([{"role": "system", "content": "probe_system"}, user], "probe_system")
        arguments = {"probe_key": "probe_value"}
        # Most templates take a call's arguments as a dict; DeepSeek's put them into a string.
        forms: list[tuple[Literal["mapping", "text"], Any]] = [
            ("mapping", arguments),
            ("text", json.dumps(arguments)),
        ]
        for calls, value in forms:
            function = {"name": "probe_call", "arguments": value}
            call = {"id": call_id(0), "type": "function", "function": function}
            turn = {"role": "assistant", "content": "", "tool_calls": [call]}
            words = ("probe_call", "probe_key", "probe_value")
            if shows([user, turn, result], *words, "probe_result"):
                return cls(tools, calls, True, system)
            if shows([user, turn], *words):
                return cls(tools, calls, False, system)
        turn = {"role": "assistant", "content": "probe_text"}
        # A template that supports neither tools nor calls renders a tool message like one of any
        # role, which its model has never seen.
        results = tools and shows([user, turn, result], "probe_result")
        return cls(tools, "written", results, system)

    def text_only(self) -> Dialect:
        """Return the dialect with calls and results written as text."""
        return replace(self, calls="written", results=False)

    @property
    def as_text(self) -> tuple[str, ...]:
        """What is written as text if there are tools: of `tools`, `calls` and `results`."""
        if not self.tools:
            return ("tools", "calls", "results")
        flags = {"calls": self.calls == "written", "results": not self.results}
        return tuple(part for part, is_written in flags.items() if is_written)

    def convert_tools(self, tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
        """Convert tools to chat-API form; None if the template does not take any."""
        # Llama's templates explain how to call tools even for an empty list.
        return [tool_to_chat_api(tool) for tool in tools] or None if self.tools else None

    def convert(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[dict[str, Any]]:
        """Convert a conversation to chat-API messages, with what the template lacks as text."""
        if tools and not self.tools and self != self.text_only():
            return self.text_only().convert(messages, tools)
        chat: list[dict[str, Any]] = []
        names: dict[str, str] = {}
        follows_result = False
        for message in messages:
            names |= {call.id: call.name for call in message.tool_calls}  # ids may come again
            body = self._convert_message(message, names)
            joins = follows_result and body["role"] == "user" and isinstance(body["content"], str)
            if joins:
                # Many templates insist that user and assistant alternate.
                chat[-1] = {**chat[-1], "content": f"{chat[-1]['content']}\n{body['content']}"}
            else:
                chat.append(body)
            follows_result = message.role == "tool" and not self.results
        if tools and not self.tools:
            _add_instructions(chat, describe_tools(tools), to_system=self.system)
        return chat

    def _convert_message(self, message: Message, names: Mapping[str, str]) -> dict[str, Any]:
        body = to_chat_api(message)
        if message.reasoning is not None:
            # Two names for one thing: Qwen's, GLM's and NVIDIA's, and OpenAI's and Liquid's.
            body["reasoning_content"] = body["thinking"] = message.reasoning
        if message.role == "tool":
            if not self.results:
                text = f"<tool_response>\n{message.text}\n</tool_response>"
                return {"role": "user", "content": text}
            if name := names.get(message.tool_call_id or ""):
                body["name"] = name
        if message.tool_calls and self.calls == "written":
            del body["tool_calls"]
            calls = "\n".join(write_tool_call(call) for call in message.tool_calls)
            body["content"] = f"{message.text}\n{calls}".strip()
        elif message.tool_calls and self.calls == "mapping":
            for call in body["tool_calls"]:
                arguments = parse_json(call["function"]["arguments"])
                if isinstance(arguments, dict):
                    call["function"]["arguments"] = arguments
        return body


_WITHOUT_TOOLS = Dialect(tools=False, calls="written", results=False, system=True)
"""Without tools in a conversation all dialects are the same."""


def _add_instructions(chat: list[dict[str, Any]], text: str, *, to_system: bool) -> None:
    """Append text to the system message, or put it before the first user message."""
    role = "system" if to_system else "user"
    index = next((i for i, body in enumerate(chat) if body["role"] == role), None)
    if index is None or (to_system and index != 0):
        chat.insert(0, {"role": role, "content": text})
        return
    content = chat[index]["content"]
    added = f"\n\n{text}" if to_system else f"{text}\n\n"
    if not isinstance(content, str):  # a list of parts
        parts, part = list(content), {"type": "text", "text": added}
        content = [*parts, part] if to_system else [part, *parts]
    else:
        content = content + added if to_system else added + content
    chat[index] = {**chat[index], "content": content}
