"""Servers: what all of their APIs share, and OpenAI-compatible chat completions.

The key is read from the environment and goes into the request header, nowhere else: it is not part
of the endpoint's description, and is removed from everything that a server sends back. Answers are
not trusted: they are bounded in size and decoded by type, and redirects are not followed (they
would carry the key).

    openai:MODEL                    OPENAI_BASE_URL, or OpenAI itself
    openai:MODEL@http://host/v1     any other server
    openrouter:MODEL and so on      providers in heldout/_providers.py

`ServerEndpoint` is the base class: keys, connections, errors, streams. An API is a subclass that
makes the body of a request and reads the reply: `HTTPEndpoint` here, `AnthropicEndpoint` in
anthropic.py, `ResponsesEndpoint` in responses.py.
"""

from __future__ import annotations

import email.utils
import json
import math
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from heldout._aio import current_loop
from heldout._providers import OPENAI, Provider
from heldout.chat.messages import to_chat_api, tool_to_chat_api
from heldout.chat.tool_calls import call_id, next_call_number
from heldout.config import Sampling
from heldout.errors import (
    UNREADABLE,
    ContextFull,
    EndpointError,
    FatalEndpointError,
    InvalidInput,
    TransientError,
    Unreachable,
)
from heldout.models.transport import Response, Transport, open_transport
from heldout.types import Completion, Message, ToolCall, ToolSpec, Usage

T = TypeVar("T")

TRANSIENT = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
PLACEHOLDER_LENGTH = 12
"""Shorter keys ("EMPTY", "none") are no secret, and may be words of an answer."""
MAX_REMEMBERED_TURNS = 20_000
BROKEN_OFF = {"error", "abort", "insufficient_system_resource"}
"""Finish reasons of a turn that the server gave up in the middle: OpenRouter and Mistral, vLLM and
SGLang, DeepSeek."""


class ServerEndpoint:
    """A model behind an HTTP API; subclasses know the API.

    Attributes:
        model: The name of the model.
        base_url: The address of the server.
    """

    kind: ClassVar[str]
    """The form's name, for the description."""
    path: ClassVar[str]
    """Where requests go, below the base URL."""
    provider: ClassVar[Provider]
    """The default address and key."""
    address_variable: ClassVar[str]
    """The environment variable with another address."""

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        key_variable: str | None = "",
        max_connections: int = 512,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare requests; connections are opened when they are needed.

        Args:
            model: The name of the model.
            base_url: The address, such as http://localhost:8000/v1; None for the one in the
                environment (OPENAI_BASE_URL, ANTHROPIC_BASE_URL), or the provider's own.
            key_variable: The environment variable with the key; "" for the provider's own, None
                for no key.
            max_connections: How many connections are open at once.
            extra: Further fields of every request body, such as {"reasoning_effort": "low"}.

        Raises:
            InvalidInput: If the address or the key cannot be one.
        """
        base_url = (base_url or self._default_url()).rstrip("/")
        if key_variable == "":
            key_variable = self.provider.key_variable
        key = (os.environ.get(key_variable) or "").strip() if key_variable else ""
        if not (key.isascii() and key.isprintable()):
            raise InvalidInput(f"{key_variable} holds characters that no key has")
        _check_address(base_url, key_variable, key)
        self.model, self.base_url = model, base_url
        self._url = base_url + self.path
        self._key_variable, self._key = key_variable, key
        self._extra = dict(extra or {})
        self._max_connections = max_connections
        self._transport: Transport | None = None
        self._loop: Any = None
        self._has_completed = False
        """Whether the server has answered a request with 200."""
        self._has_replied = False
        """Whether the server has sent anything but failures of its own (5xx)."""
        self._turns: OrderedDict[str, Any] = OrderedDict()
        """Turns as the server sent them, by the id of their first tool call."""

    @classmethod
    def parse(cls, text: str, *, max_connections: int, provider: Provider | None = None) -> Self:
        """Make the endpoint of MODEL or MODEL@URL.

        Args:
            text: The model, whose name may contain an @, and the address.
            max_connections: How many connections are open at once.
            provider: Where the model is, without an address; the API's own provider by default.

        Returns:
            The endpoint.

        Raises:
            InvalidInput: If there is no model, the address cannot be one, or the provider's key
                is missing.
        """
        # The @ before a scheme, not the last one: that may be behind a password in the address,
        # which must be refused as an address and not become part of the model's name.
        at = re.search(r"@(?=[a-z][a-z0-9+.-]*://)", text, re.IGNORECASE)
        model, url = (text[: at.start()], text[at.end() :]) if at else (text, "")
        suffix = text.rpartition("@")[2] if "@" in text and not at else None
        if suffix is not None and (not suffix or ":" in suffix or suffix.startswith("localhost")):
            raise InvalidInput(
                f"the endpoint's address {suffix!r} does not start with http:// or https://, as in "
                "openai:MODEL@http://localhost:8000/v1"
            )
        if not model:
            raise InvalidInput("the endpoint names no model; it is openai:MODEL@URL")
        url = url or (provider.url if provider is not None else cls._default_url())
        provider = provider or cls.provider
        variable = provider.key_variable
        if url == provider.url and variable and not os.environ.get(variable, "").strip():
            raise InvalidInput(f"{model!r} at {url} needs a key: set {variable}")
        return cls(model, url, key_variable=variable, max_connections=max_connections)

    @classmethod
    def _default_url(cls) -> str:
        return os.environ.get(cls.address_variable) or cls.provider.url

    def describe(self) -> dict[str, Any]:
        """Describe the model for the report: its name, its address and `extra`."""
        extra = {"extra": self._extra} if self._extra else {}
        return {"kind": self.kind, "model": self.model, "base_url": self.base_url, **extra}

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """Take one model turn; see `Endpoint`."""
        body = self.body(messages, sampling, tools)
        return await self.send(body, next_call=next_call_number(messages))

    def body(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> dict[str, Any]:
        """Make the body of a request.

        Args:
            messages: The conversation so far.
            sampling: How to sample.
            tools: What the model may call.

        Returns:
            The body: the API's fields, with those of `extra` and `sampling.extra_body` over them.
            A field that is None is left out.
        """
        extra = {**self._extra, **(sampling.extra_body or {})}
        body = {**self._fields(messages, sampling, tools, extra), **extra}
        return {key: value for key, value in body.items() if extra.get(key, value) is not None}

    async def send(self, request: Mapping[str, Any], *, next_call: int = 0) -> Completion:
        """Send a request body as it is.

        Args:
            request: A body of this API.
            next_call: The number of the first tool call that comes without an id.

        Returns:
            The server's answer.

        Raises:
            EndpointError: If there is none; its type says whether a retry may help.
        """
        loop = current_loop()
        if self._transport is None or self._loop is not loop:
            # Connections belong to the event loop they were made in.
            self._transport, self._loop = open_transport(self._max_connections), loop
        accept = "text/event-stream" if request.get("stream") else "application/json"
        headers = {"content-type": "application/json", "accept": accept, **self._key_headers()}
        body = msgspec.json.encode(request)
        try:
            response = await self._transport.post(self._url, body, headers)
            if response.status < 500:
                self._has_replied = True
            if response.status != 200:
                raise self._error_for(response)
            completion = self._read(response, next_call)
            self._has_completed = True
            return completion
        except TransientError as problem:
            # The HTTP library quotes a line that it could not parse, which may be the key.
            problem.args = (self._without_key(str(problem)),)
            if self._has_replied or isinstance(problem, Unreachable):
                raise
            # Some servers do not say what is wrong: `transformers serve` answers 500 for a model
            # that it cannot load. So a server that has only ever failed counts as unreachable.
            raise Unreachable(
                f"{problem} (the server has answered nothing else yet; is {self.model!r} served?)",
                retry_after=problem.retry_after,
            ) from None

    async def close(self) -> None:
        """Close the connections."""
        if self._transport is not None:
            transport, self._transport = self._transport, None
            if self._loop is current_loop():
                await transport.close()

    # --- What an API is ---

    def _key_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"} if self._key else {}

    def _fields(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        tools: Sequence[ToolSpec],
        extra: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Make the API's own fields of a body; `extra` will be put over them."""
        raise NotImplementedError

    def _read(self, response: Response, next_call: int) -> Completion:
        """Read an answer with status 200, whole or as a stream."""
        raise NotImplementedError

    # --- Turns that must be sent back as they came ---

    def recall(self, message: Message) -> Any:
        """Find a turn with tool calls as the server sent it, with its signed reasoning.

        Args:
            message: The turn.

        Returns:
            Its parts in the API's own form; None if they are not known.
        """
        key = message.tool_calls[0].id if message.tool_calls else ""
        if key not in self._turns:
            return None
        self._turns.move_to_end(key)
        return self._turns[key]

    def remember(self, message: Message, turn: Any) -> None:
        """Keep a turn with tool calls as the server sent it, for the next request.

        Args:
            message: The turn.
            turn: Its parts in the API's own form.
        """
        if message.tool_calls and turn is not None:
            self._turns[message.tool_calls[0].id] = turn
            while len(self._turns) > MAX_REMEMBERED_TURNS:
                self._turns.popitem(last=False)

    # --- Errors ---

    def _error_for(self, response: Response) -> EndpointError:
        """Tell errors of this request, of its length, of the moment and of the whole run apart."""
        what = f"{self._url} answered {response.status}: {self._excerpt(response)}"
        if response.status in (400, 413, 422, 500) and _says_too_long(response.body):
            return ContextFull(what)
        # A 403 is about the key until a request was allowed; after that, about this request.
        if response.status == 401 or (response.status == 403 and not self._has_completed):
            key = f"the key in {self._key_variable}" if self._key else f"no {self._key_variable}"
            return FatalEndpointError(f"{what} (sent {key if self._key_variable else 'no key'})")
        if response.status == 404 or (
            response.status in (400, 422) and _names_unknown_model(response.body, self.model)
        ):
            return FatalEndpointError(f"{what} (model {self.model!r}; is it served there?)")
        if response.status in (400, 422) and (name := _find_refused_field(response.body)):
            return FatalEndpointError(
                f"{what} (sampling.extra_body.{name}=null leaves {name} out of the request)"
            )
        if response.status in TRANSIENT:
            return TransientError(what, retry_after=retry_after(response.headers))
        if 300 <= response.status < 400:
            return FatalEndpointError(
                f"{what} (a redirect, which is not followed: it would carry the key along; "
                "give the final address)"
            )
        return EndpointError(what)

    def _unreadable(self, response: Response, problem: object) -> EndpointError:
        """Make the error of a 200 that is no answer: with some gateways it is an error itself."""
        try:
            failure = decode_body(response.body, _failure_decoder).error
        except ValueError:
            return TransientError(
                f"{self._url} answered 200 with something that is not {self._reply_name} "
                f"({problem}): {self._excerpt(response)}"
            )
        code = "" if isinstance(failure, str) else str(failure.code)
        status = int(code) if code.isdecimal() else 500
        return self._error_for(Response(status, response.headers, response.body))

    _reply_name: ClassVar[str]

    def _broken_stream(self, why: str) -> TransientError:
        return TransientError(f"{self._url} broke off its stream: {why}")

    def _decode_event(self, data: bytes) -> dict[str, Any]:
        try:
            return decode_body(data, _event_decoder)
        except ValueError as problem:
            raise self._broken_stream(f"an event cannot be read ({problem})") from None

    def _excerpt(self, response: Response) -> str:
        try:
            error = decode_body(response.body, _failure_decoder).error
            text = error if isinstance(error, str) else error.message
        except ValueError:  # not the usual form of an error
            text = response.body.decode("utf-8", "replace")
        # The key goes before the text is cut, which could leave half of it.
        return self._without_key(text)[:500].strip() or "(empty body)"

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text

    def _without_echoed_key(self, text: str) -> str:
        """Keep an answer as it is, unless it contains the request's own key."""
        return text if len(self._key) < PLACEHOLDER_LENGTH else self._without_key(text)

    def _clean(self, value: T) -> T:
        """Remove the key from every text of a JSON value."""
        return msgspec.json.decode(
            self._without_echoed_key(msgspec.json.encode(value).decode()), type=type(value)
        )


def is_stream(body: bytes) -> bool:
    """Tell a stream of events from anything else: some servers ignore `stream`."""
    return body.lstrip().startswith((b"data:", b"event:", b"id:", b"retry:", b":"))


def read_events(body: bytes) -> Iterator[bytes]:
    """Split a body of server-sent events.

    Args:
        body: The body of a response of the type text/event-stream.

    Yields:
        The data of each event that ended with an empty line.
    """
    data: list[bytes] = []
    for line in body.splitlines():
        if not line:
            if data:
                yield b"\n".join(data)
            data = []
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))


# --- Chat completions ---------------------------------------------------------------------------


class HTTPEndpoint(ServerEndpoint):
    """A model of an OpenAI-compatible server."""

    kind = "openai"
    path = "/chat/completions"
    provider = OPENAI
    address_variable = "OPENAI_BASE_URL"
    _reply_name = "a chat completion"

    _reasoning_field: str | None = None
    """The server's name for reasoning, once it has sent some."""

    def _fields(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        tools: Sequence[ToolSpec],
        extra: Mapping[str, Any],
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [self._message(m) for m in messages],
            "temperature": sampling.temperature,
            "stream": sampling.stream,
        }
        if sampling.stream:
            body["stream_options"] = {"include_usage": True}
        if sampling.top_p is not None:
            body["top_p"] = sampling.top_p
        if sampling.max_tokens is not None:
            body["max_tokens"] = sampling.max_tokens
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if tools:
            body["tools"] = [tool_to_chat_api(tool) for tool in tools]
        return body

    def recall(self, message: Message) -> Any:
        """Return the server's name for the reasoning of a turn, which the next request needs."""
        return self._reasoning_field if message.reasoning is not None else None

    def remember(self, message: Message, turn: Any) -> None:
        """Use a name for reasoning that `recall` returned."""
        self._reasoning_field = turn or self._reasoning_field

    def _message(self, message: Message) -> dict[str, Any]:
        body = to_chat_api(message)
        if message.tool_calls:
            if message.content == "":
                body["content"] = None  # as it came; some servers refuse an empty text
            # Models that reason between calls continue their reasoning. It is sent only to a
            # server that has sent some: others refuse the field.
            if message.reasoning is not None and self._reasoning_field is not None:
                body[self._reasoning_field] = message.reasoning
        return body

    def _read(self, response: Response, next_call: int) -> Completion:
        if is_stream(response.body):
            reply = self._join_chunks(response)
        else:
            try:
                reply = decode_body(response.body, _reply_decoder)
            except ValueError as problem:
                raise self._unreadable(response, problem) from None
        if not reply.choices:
            raise EndpointError(f"{self._url} answered without choices: {self._excerpt(response)}")
        choice = reply.choices[0]
        if choice.finish_reason in BROKEN_OFF:
            raise TransientError(
                f"{self._url} broke off its answer (finish reason {choice.finish_reason!r})"
            )
        message = choice.message
        if (message.reasoning_content or message.reasoning) is not None:
            self._reasoning_field = (
                "reasoning_content" if message.reasoning_content else "reasoning"
            )
        return _to_completion(reply, next_call, self._without_echoed_key)

    def _join_chunks(self, response: Response) -> _Reply:
        """Join the chunks of a stream into the reply that would have come without one."""
        message, usage = _Message(), None
        calls: dict[int, _Call] = {}
        finish_reason: str | None = None
        for data in read_events(response.body):
            if data == b"[DONE]":
                break
            try:
                chunk = decode_body(data, _chunk_decoder)
            except ValueError as problem:
                raise self._unreadable(Response(200, response.headers, data), problem) from None
            usage = chunk.usage or usage
            for choice in chunk.choices[:1]:
                finish_reason = choice.finish_reason or finish_reason
                _add_delta(message, calls, choice.delta)
        if finish_reason is None:
            raise self._broken_stream("it ended without a finish reason")
        message.tool_calls = [calls[index] for index in sorted(calls)]
        return _Reply([_Choice(message, finish_reason)], usage)


def _add_delta(message: _Message, calls: dict[int, _Call], delta: _Delta) -> None:
    for name in ("content", "refusal", "reasoning_content", "reasoning"):
        if (text := getattr(delta, name)) is not None:
            setattr(message, name, (getattr(message, name) or "") + text)
    for part in delta.tool_calls or ():
        # Where a server does not number its calls, a new id begins the next one.
        index = part.index if part.index is not None else len(calls) - (part.id is None)
        call = calls.setdefault(index, _Call(_Function("", "")))
        call.id = call.id or part.id
        call.function.name += part.function.name or ""
        call.function.arguments += part.function.arguments or ""


def _check_address(url: str, key_variable: str | None, key: str) -> None:
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not close
        is_address = False
    if not is_address or not url.isprintable() or " " in url:
        # There may be a password before an @.
        shown = "one with an @ in it" if "@" in url else repr(url)
        raise InvalidInput(
            f"an endpoint's address is like http://host:8000/v1 or https://host/v1, got {shown}"
        )
    holds_key = len(key) >= PLACEHOLDER_LENGTH and key in url
    if "@" in parts.netloc or parts.query or parts.fragment or holds_key:
        raise InvalidInput(
            "the endpoint's address holds a user, password, key or query; keys do not belong "
            "there, since it is stored with the report. "
            f"Set {key_variable or OPENAI.key_variable} instead"
        )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read how long a server asks to wait: in milliseconds, in seconds, or until a date.

    Args:
        headers: The headers of its answer, with names in lower case.

    Returns:
        Seconds; None if it does not say, or not readably.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue  # a date, or nothing readable
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        # A date without a zone ("-0000") is in UTC.
        return max(0.0, date.replace(tzinfo=date.tzinfo or UTC).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _names_unknown_model(body: bytes, model: str) -> bool:
    """Tell whether a 400 is about the model instead of this one request."""
    text = body[:2000].decode("utf-8", "replace").lower()
    if "model_not_found" in text or "invalid_model" in text:
        return True
    names_it = re.search(rf"(?<!\w){re.escape(model.lower())}(?!\w)", text)
    return names_it is not None and any(
        phrase in text
        for phrase in ("not exist", "not found", "unknown model", "invalid model",
                       "not a valid model", "no such model")
    )  # fmt: skip


_REFUSED_FIELD = re.compile(
    r"(?:unsupported|unrecognized|unknown|extra inputs?|extra_forbidden|not supported"
    r"|does not support|deprecated|removed|may only be set|not permitted|not allowed)"
)
_OWN_FIELDS = ("temperature", "top_p", "max_tokens", "seed", "stop", "stream_options")


def _find_refused_field(body: bytes) -> str | None:
    """Find which of the fields that heldout sends a model does not take, if an error says so."""
    text = body[:2000].decode("utf-8", "replace").lower()
    if _REFUSED_FIELD.search(text) is None:
        return None
    named = (re.search(rf"[`'\"\\]{name}[`'\"\\]", text) for name in _OWN_FIELDS)
    return next((match[0][1:-1] for match in named if match), None)


# How servers say that the conversation does not fit: OpenAI and most others; vLLM; SGLang;
# llama.cpp; llama-cpp-python; text-generation-inference; Anthropic and Bedrock; Gemini; xAI.
_TOO_LONG = re.compile(
    r"context_length_exceeded|maximum context length|longer than the maximum model length"
    r"|longer than the model's context length|exceed_context_size|exceeds? the available context"
    r"|context size has been exceeded|exceed context window|tokens \+ `?max_new_tokens`? must be <="
    r"|(?:prompt|input) is too long|input token count .{0,40}exceeds the maximum"
    r"|maximum prompt length"
)


def _says_too_long(body: bytes) -> bool:
    return _TOO_LONG.search(body[:2000].decode("utf-8", "replace").lower()) is not None


def completion_of(reply: Any) -> Completion:
    """Read a chat completion that was stored.

    Args:
        reply: The decoded JSON of the server's answer.

    Returns:
        The completion.

    Raises:
        InvalidInput: If it is none.
    """
    try:
        parsed = msgspec.convert(reply, _Reply)
    except msgspec.ValidationError as problem:
        raise InvalidInput(f"not a chat completion: {problem}") from None
    if not parsed.choices:
        raise InvalidInput("a chat completion without choices")
    return _to_completion(parsed, 0, str)


def _to_completion(reply: _Reply, next_call: int, clean: Callable[[str], str]) -> Completion:
    """Convert a reply; every text of it goes through `clean`."""
    choice = reply.choices[0]
    content, thinking = _split_content(choice.message.content)
    reasoning = choice.message.reasoning_content or choice.message.reasoning or thinking
    message = Message(
        "assistant",
        clean(content or choice.message.refusal or ""),
        tool_calls=tuple(
            ToolCall(
                clean(call.id or call_id(next_call + i)),
                clean(call.function.name),
                clean(_as_text(call.function.arguments)),
            )
            for i, call in enumerate(choice.message.tool_calls or ())
        ),
        reasoning=reasoning if reasoning is None else clean(reasoning),
    )
    usage = None
    if reply.usage is not None:
        prompt, completion = reply.usage.prompt_tokens, reply.usage.completion_tokens
        if prompt is not None and completion is not None:  # half of it would count as 0
            usage = Usage(prompt, completion)
    return Completion(message, choice.finish_reason, usage)


def _split_content(content: str | list[dict[str, Any]] | None) -> tuple[str, str | None]:
    """Return text and reasoning; Mistral's reasoning models send both as parts of the content."""
    if not isinstance(content, list):
        return content or "", None
    texts = [str(part.get("text", "")) for part in content if part.get("type") == "text"]
    thinking = [
        inner["text"] if isinstance(inner, dict) and "text" in inner else str(inner)
        for part in content
        if part.get("type") == "thinking"
        for inner in (part.get("thinking") or ())
    ]
    return "".join(texts), "".join(thinking) or None


def _as_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False)


# --- The parts of an answer that are read --------------------------------------------------------


class _Function(msgspec.Struct):
    name: str
    arguments: Any = None
    """JSON in a text; some servers send the value itself."""


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Message(msgspec.Struct):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


class _FunctionPart(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _CallPart(msgspec.Struct):
    function: _FunctionPart = msgspec.field(default_factory=_FunctionPart)
    index: int | None = None
    id: str | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_CallPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _ChunkChoice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_ChunkChoice]
    usage: _Usage | None = None


class _Error(msgspec.Struct):
    message: str
    code: int | str | None = None


class _Failure(msgspec.Struct):
    error: _Error | str


_reply_decoder = msgspec.json.Decoder(_Reply)
_chunk_decoder = msgspec.json.Decoder(_Chunk)
_failure_decoder = msgspec.json.Decoder(_Failure)
_event_decoder = msgspec.json.Decoder(dict[str, Any])


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode what a server sent.

    Args:
        body: JSON.
        decoder: Says what it should be.

    Returns:
        The value.

    Raises:
        ValueError: It is not that.
    """
    try:
        return decoder.decode(body)
    except UNREADABLE as problem:
        raise ValueError(str(problem)) from None
