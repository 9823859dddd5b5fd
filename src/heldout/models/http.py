"""Servers: what all of their APIs share, and OpenAI-compatible chat completions.

The key is read from the environment and goes into the request header, nowhere else: it is not part
of the endpoint's description, and is removed from everything that a server sends back. Answers are
not trusted: they are bounded in size and decoded by type, and redirects are not followed (they
would carry the key).

    openai:MODEL                    OPENAI_BASE_URL, or OpenAI itself
    openai:MODEL@http://host/v1     any other server
    openrouter:MODEL and so on      providers in heldout/_providers.py

`ServerEndpoint` is the client: keys, connections, errors, streams. An API is a subclass that makes
the body of a request, joins the events of a stream and reads the reply: `HTTPEndpoint` here,
`AnthropicEndpoint` in anthropic.py, `ResponsesEndpoint` in responses.py.
"""

from __future__ import annotations

import email.utils
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
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
STATUS_OF_ERROR = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""The HTTP status of an error that comes without one, by its name with OpenAI or Anthropic."""
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
    reply_name: ClassVar[str]
    reply_decoder: ClassVar[msgspec.json.Decoder[Any]]

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
        self._turns: dict[str, Any] = {}
        """Turns as the server sent them, by the id of their first tool call."""

    @classmethod
    def parse(cls, text: str, *, max_connections: int, provider: Provider | None = None) -> Self:
        """Make the endpoint of MODEL or MODEL@URL.

        Args:
            text: The model, whose name may contain an @, and the address.
            max_connections: How many connections are open at once.
            provider: Where the model is, without an address; the API's own provider by default.

        Raises:
            InvalidInput: If there is no model, the address cannot be one, or the provider's key
                is missing.
        """
        # The @ before a scheme, not the last one: that may be behind a password in the address,
        # which must be refused as an address and not become part of the model's name.
        at = re.search(r"@(?=[a-z][a-z0-9+.-]*://)", text, re.IGNORECASE)
        model, url = (text[: at.start()], text[at.end() :]) if at else (text, "")
        if not at and (schemeless := re.search(r"@(|localhost.*|[^@]*:[^@]*)$", text)):
            raise InvalidInput(
                f"the endpoint's address {schemeless[1]!r} does not start with http:// or "
                "https://, as in openai:MODEL@http://localhost:8000/v1"
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
        """Make the body of a request: the API's fields, and `extra` and `sampling.extra_body`.

        A field that is None is left out.
        """
        extra = {**self._extra, **(sampling.extra_body or {})}
        body = {**self._fields(messages, sampling, tools, extra), **extra}
        return {key: value for key, value in body.items() if value is not None}

    async def send(self, request: Mapping[str, Any], *, next_call: int = 0) -> Completion:
        """Send a request body as it is; calls without an id are numbered from `next_call`.

        Raises:
            EndpointError: If there is no answer; its type says whether a retry may help.
        """
        loop = current_loop()
        if self._transport is None or self._loop is not loop:
            # Connections belong to the event loop they were made in.
            self._transport, self._loop = open_transport(self._url, self._max_connections), loop
        accept = "text/event-stream" if request.get("stream") else "application/json"
        headers = {"content-type": "application/json", "accept": accept, **self._key_headers()}
        body = msgspec.json.encode(request)
        try:
            response = await self._transport.post(body, headers)
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

    def _join_events(self, events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        """Join the events of a stream into the reply that would have come whole; None if cut."""
        raise NotImplementedError

    def _to_completion(self, reply: Any, response: Response, next_call: int) -> Completion:
        """Convert a decoded reply."""
        raise NotImplementedError

    # --- Replies ---

    def _read(self, response: Response, next_call: int) -> Completion:
        """Read an answer with status 200, whole or as a stream."""
        body = response.body
        # By its content: some servers ignore `stream`.
        if body.lstrip().startswith((b"data:", b"event:", b"id:", b"retry:", b":")):
            try:
                reply = self._join_events(self._events(response))
            except (KeyError, TypeError, ValueError, AttributeError) as problem:
                raise self._broken_stream(f"{type(problem).__name__}: {problem}") from None
            if reply is None:
                raise self._broken_stream("it ended before the turn was complete")
            body = msgspec.json.encode(reply)
        decoded = self._decode(body, self.reply_decoder, response)
        return self._to_completion(self._without_echoed_key(decoded), response, next_call)

    def _events(self, response: Response) -> Iterator[dict[str, Any]]:
        """Decode the server-sent events that ended with an empty line."""
        data: list[bytes] = []
        for line in response.body.splitlines():
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                content, data = b"\n".join(data), []
                if content == b"[DONE]":
                    return
                part = Response(200, response.headers, content)
                event = self._decode(content, _event_decoder, part)
                if event.get("type") == "error" or event.get("error"):
                    raise self._error_of(event.get("error") or event, part)
                yield event

    def _decode(self, body: bytes, decoder: msgspec.json.Decoder[T], response: Response) -> T:
        try:
            return decoder.decode(body)
        except UNREADABLE as problem:
            # With some gateways a 200 that is no answer is an error.
            if error := _read_error(response.body):
                raise self._error_of(error, response) from None
            raise TransientError(
                f"{self._url} answered 200 with something that is not {self.reply_name} "
                f"({problem}): {self._excerpt(response)}"
            ) from None

    def _without_echoed_key(self, reply: T) -> T:
        """Keep a reply as it is, unless a text of it contains the request's own key."""
        if len(self._key) < PLACEHOLDER_LENGTH:
            return reply
        text = msgspec.json.encode(reply).decode()
        return msgspec.json.decode(self._without_key(text), type=type(reply))

    # --- Turns that must be sent back as they came ---

    def recall(self, message: Message) -> Any:
        """Find a turn with tool calls as the server sent it, with its signed reasoning."""
        key = message.tool_calls[0].id if message.tool_calls else ""
        return self._turns.get(key)

    def remember(self, message: Message, turn: Any) -> None:
        """Keep a turn with tool calls as the server sent it, for the next request."""
        if message.tool_calls and turn is not None:
            self._turns[message.tool_calls[0].id] = turn
            if len(self._turns) > MAX_REMEMBERED_TURNS:
                del self._turns[next(iter(self._turns))]

    # --- Errors ---

    def _error_for(self, response: Response) -> EndpointError:
        """Tell errors of this request, of its length, of the moment and of the whole run apart."""
        status, text = response.status, response.body[:2000].decode("utf-8", "replace").lower()
        what = f"{self._url} answered {status}: {self._excerpt(response)}"
        if status in (400, 413, 422, 500) and _TOO_LONG.search(text):
            return ContextFull(what)
        # A 403 is about the key until a request was allowed; after that, about this request.
        if status == 401 or (status == 403 and not self._has_completed):
            key = f"the key in {self._key_variable}" if self._key else f"no {self._key_variable}"
            return FatalEndpointError(f"{what} (sent {key if self._key_variable else 'no key'})")
        if status == 404 or (status in (400, 422) and _names_unknown_model(text, self.model)):
            return FatalEndpointError(f"{what} (model {self.model!r}; is it served there?)")
        if status in (400, 422) and (name := _find_refused_field(text)):
            return FatalEndpointError(
                f"{what} (sampling.extra_body.{name}=null leaves {name} out of the request)"
            )
        if status in TRANSIENT:
            return TransientError(what, retry_after=retry_after(response.headers))
        if 300 <= status < 400:
            return FatalEndpointError(
                f"{what} (a redirect, which is not followed: it would carry the key along; "
                "give the final address)"
            )
        return EndpointError(what)

    def _error_of(
        self, error: dict[str, Any] | str, response: Response, default: int = 500
    ) -> EndpointError:
        """Make the error that came with the status 200, or in a stream."""
        names = () if isinstance(error, str) else (str(error.get(key)) for key in ("code", "type"))
        status = default
        for name in names:
            if name.isdecimal() or name in STATUS_OF_ERROR:
                status = STATUS_OF_ERROR.get(name) or int(name)
                break
        body = msgspec.json.encode({"error": error})
        return self._error_for(Response(status, response.headers, body))

    def _broken_stream(self, why: str) -> TransientError:
        return TransientError(f"{self._url} broke off its stream: {why}")

    def _excerpt(self, response: Response) -> str:
        error = _read_error(response.body)
        text = response.body.decode("utf-8", "replace")
        if isinstance(error, str):
            text = error
        elif error is not None and isinstance(error.get("message"), str):
            text = error["message"]
        # The key goes before the text is cut, which could leave half of it.
        return self._without_key(text)[:500].strip() or "(empty body)"

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


# --- Chat completions ---------------------------------------------------------------------------


class HTTPEndpoint(ServerEndpoint):
    """A model of an OpenAI-compatible server."""

    kind = "openai"
    path = "/chat/completions"
    provider = OPENAI
    address_variable = "OPENAI_BASE_URL"
    reply_name = "a chat completion"

    _reasoning_field: str | None = None
    """The server's name for reasoning, once it has sent some."""

    def _fields(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        tools: Sequence[ToolSpec],
        extra: Mapping[str, Any],
    ) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [self._message(m) for m in messages],
            "stream": sampling.stream,
            "stream_options": {"include_usage": True} if sampling.stream else None,
            **chat_fields(sampling, tools),
        }

    def recall(self, message: Message) -> Any:
        """Return the server's name for the reasoning of a turn, which the next request needs."""
        return self._reasoning_field if message.reasoning is not None else None

    def remember(self, message: Message, turn: Any) -> None:
        """Use a name for reasoning that `recall` returned."""
        self._reasoning_field = turn or self._reasoning_field

    def _message(self, message: Message) -> dict[str, Any]:
        body = chat_message(message)
        # Models that reason between calls continue their reasoning. It is sent only to a server
        # that has sent some: others refuse the field.
        if message.tool_calls and message.reasoning is not None and self._reasoning_field:
            body[self._reasoning_field] = message.reasoning
        return body

    def _join_events(self, events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        message: dict[str, Any] = {}
        calls: dict[int, dict[str, Any]] = {}
        finish_reason = usage = None
        for event in events:
            usage = event.get("usage") or usage
            for choice in (event.get("choices") or ())[:1]:
                finish_reason = choice.get("finish_reason") or finish_reason
                delta = choice.get("delta") or {}
                for name in ("content", "refusal", "reasoning_content", "reasoning"):
                    if delta.get(name) is not None:
                        message[name] = message.get(name, "") + delta[name]
                for part in delta.get("tool_calls") or ():
                    _add_call_part(calls, part)
        if finish_reason is None:
            return None
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
        choice = {"message": message, "finish_reason": finish_reason}
        return {"choices": [choice], "usage": usage}

    def _to_completion(self, reply: _Reply, response: Response, next_call: int) -> Completion:
        if not reply.choices:
            raise EndpointError(f"{self._url} answered without choices: {self._excerpt(response)}")
        choice = reply.choices[0]
        if choice.finish_reason in BROKEN_OFF:
            raise TransientError(
                f"{self._url} broke off its answer (finish reason {choice.finish_reason!r})"
            )
        for name in ("reasoning", "reasoning_content"):
            if getattr(choice.message, name):
                self._reasoning_field = name
        return _to_completion(reply, next_call)


def chat_fields(sampling: Sampling, tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """Make the fields of a request that say how to sample; None stands for those left out."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop) or None,
        "seed": sampling.seed,
        "tools": [tool_to_chat_api(tool) for tool in tools] or None,
    }


def chat_message(message: Message) -> dict[str, Any]:
    """Convert a message; where there are calls alone, some servers refuse an empty text."""
    body = to_chat_api(message)
    return {**body, "content": None} if message.tool_calls and message.content == "" else body


def _add_call_part(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    # Where a server does not number its calls, a new id begins the next one.
    index = part.get("index")
    if index is None:
        index = len(calls) - (part.get("id") is None)
    call = calls.setdefault(index, {"id": None, "function": {"name": "", "arguments": ""}})
    call["id"] = call["id"] or part.get("id")
    for name, text in (part.get("function") or {}).items():
        if name in call["function"]:
            call["function"][name] += text or ""


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
    """Read how many seconds a server asks to wait, in headers with names in lower case."""
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


def _names_unknown_model(text: str, model: str) -> bool:
    """Tell whether a 400 is about the model instead of this one request."""
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
_OWN_FIELD = re.compile(r"[`'\"\\](temperature|top_p|max_tokens|seed|stop|stream_options)[`'\"\\]")


def _find_refused_field(text: str) -> str | None:
    """Find which of the fields that heldout sends a model does not take, if an error says so."""
    match = _OWN_FIELD.search(text) if _REFUSED_FIELD.search(text) else None
    return match[1] if match else None


# How servers say that the conversation does not fit: OpenAI and most others; vLLM; SGLang;
# llama.cpp; llama-cpp-python; text-generation-inference; Anthropic and Bedrock; Gemini; xAI.
_TOO_LONG = re.compile(
    r"context_length_exceeded|maximum context length|longer than the maximum model length"
    r"|longer than the model's context length|exceed_context_size|exceeds? the available context"
    r"|context size has been exceeded|exceed context window|tokens \+ `?max_new_tokens`? must be <="
    r"|(?:prompt|input) is too long|input token count .{0,40}exceeds the maximum"
    r"|maximum prompt length"
)


def _read_error(body: bytes) -> dict[str, Any] | str | None:
    """Find the error in a body that has the usual form of one."""
    try:
        error = _event_decoder.decode(body).get("error")
    except UNREADABLE:
        return None
    return error if isinstance(error, dict | str) else None


def completion_of(reply: Any) -> Completion:
    """Read a chat completion that was stored, as decoded JSON.

    Raises:
        InvalidInput: If it is none.
    """
    try:
        parsed = msgspec.convert(reply, _Reply)
    except msgspec.ValidationError as problem:
        raise InvalidInput(f"not a chat completion: {problem}") from None
    if not parsed.choices:
        raise InvalidInput("a chat completion without choices")
    return _to_completion(parsed, 0)


def _to_completion(reply: _Reply, next_call: int) -> Completion:
    choice = reply.choices[0]
    content, thinking = _split_content(choice.message.content)
    calls = [
        ToolCall(
            call.id or call_id(next_call + i),
            call.function.name,
            _as_text(call.function.arguments),
        )
        for i, call in enumerate(choice.message.tool_calls or ())
    ]
    message = Message(
        "assistant",
        content or choice.message.refusal or "",
        tool_calls=tuple(calls),
        reasoning=choice.message.reasoning_content or choice.message.reasoning or thinking,
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


HTTPEndpoint.reply_decoder = msgspec.json.Decoder(_Reply)
_event_decoder = msgspec.json.Decoder(dict[str, Any])
