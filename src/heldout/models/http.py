"""An OpenAI-compatible server: chat completions over HTTP.

The key is read from the environment and goes into the request header, nowhere else: it is not part
of the endpoint's description, and is removed from everything that a server sends back. Answers are
not trusted: they are bounded in size and decoded by type, and redirects are not followed (they
would carry the key).

    openai:MODEL                    OPENAI_BASE_URL, or OpenAI itself
    openai:MODEL@http://host/v1     any other server
"""

from __future__ import annotations

import email.utils
import json
import math
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from heldout._aio import current_loop
from heldout.chat.messages import to_chat_api, tool_to_chat_api
from heldout.chat.tool_calls import call_id, next_call_number
from heldout.config import Sampling
from heldout.errors import (
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

DEFAULT_BASE_URL = "https://api.openai.com/v1"
TRANSIENT = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
PLACEHOLDER_LENGTH = 12
"""Shorter keys ("EMPTY", "none") are no secret, and may be words of an answer."""


class HTTPEndpoint:
    """A model of an OpenAI-compatible server.

    Attributes:
        model: The name of the model.
        base_url: The address of the server.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        key_variable: str = "OPENAI_API_KEY",
        max_connections: int = 512,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare requests; connections are opened when they are needed.

        Args:
            model: The name of the model.
            base_url: The address, such as http://localhost:8000/v1; None for OPENAI_BASE_URL, or
                OpenAI's own.
            key_variable: The environment variable with the key.
            max_connections: How many connections are open at once.
            extra: Further fields of every request body, such as {"reasoning_effort": "low"}.

        Raises:
            InvalidInput: If the address or the key cannot be one.
        """
        base_url = (base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL).rstrip("/")
        key = (os.environ.get(key_variable) or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise InvalidInput(f"{key_variable} holds characters that no key has")
        _check_address(base_url, key_variable, key)
        self.model, self.base_url = model, base_url
        self._url = base_url + "/chat/completions"
        self._key_variable, self._key = key_variable, key
        self._extra = dict(extra or {})
        self._max_connections = max_connections
        self._transport: Transport | None = None
        self._loop: Any = None
        self._has_completed = False
        """Whether the server has answered a request with 200."""
        self._has_replied = False
        """Whether the server has sent anything but failures of its own (5xx)."""
        self._reasoning_field: str | None = None
        """The server's name for reasoning, once it has sent some."""

    @classmethod
    def parse(cls, text: str, *, max_connections: int) -> Self:
        """Make the endpoint of MODEL or MODEL@URL.

        Args:
            text: The model, whose name may contain an @, and the address.
            max_connections: How many connections are open at once.

        Returns:
            The endpoint.

        Raises:
            InvalidInput: If there is no model, or the address cannot be one.
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
        return cls(model, url or None, max_connections=max_connections)

    def describe(self) -> dict[str, Any]:
        """Describe the model for the report: its name, its address and `extra`."""
        extra = {"extra": self._extra} if self._extra else {}
        return {"kind": "openai", "model": self.model, "base_url": self.base_url, **extra}

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """Take one model turn; see `Endpoint`."""
        body = self._body(messages, sampling, tools)
        return await self.send(body, next_call=next_call_number(messages))

    async def send(self, request: Mapping[str, Any], *, next_call: int = 0) -> Completion:
        """Send a request body as it is.

        Args:
            request: A chat-completions body.
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
        headers = {"content-type": "application/json", "accept": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        body = msgspec.json.encode(request)
        try:
            response = await self._transport.post(self._url, body, headers)
            if response.status < 500:
                self._has_replied = True
            if response.status != 200:
                raise self._error_for(response)
            completion = self._read_completion(response, next_call)
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

    def _body(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [self._message(m) for m in messages],
            "temperature": sampling.temperature,
            "stream": False,
        }
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
        return {**body, **self._extra}

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

    def _read_completion(self, response: Response, next_call: int) -> Completion:
        try:
            reply = _decode(response.body, _reply_decoder)
        except ValueError as problem:
            raise TransientError(
                f"{self._url} answered 200 with something that is not a chat completion "
                f"({problem}): {self._excerpt(response)}"
            ) from None
        if not reply.choices:
            raise EndpointError(f"{self._url} answered without choices: {self._excerpt(response)}")
        message = reply.choices[0].message
        if (message.reasoning_content or message.reasoning) is not None:
            self._reasoning_field = (
                "reasoning_content" if message.reasoning_content else "reasoning"
            )
        return _to_completion(reply, next_call, self._without_echoed_key)

    def _error_for(self, response: Response) -> EndpointError:
        """Tell errors of this request, of its length, of the moment and of the whole run apart."""
        what = f"{self._url} answered {response.status}: {self._excerpt(response)}"
        if response.status in (400, 413, 422, 500) and _says_too_long(response.body):
            return ContextFull(what)
        # A 403 is about the key until a request was allowed; after that, about this request.
        if response.status == 401 or (response.status == 403 and not self._has_completed):
            key = f"the key in {self._key_variable}" if self._key else f"no {self._key_variable}"
            return FatalEndpointError(f"{what} (sent {key})")
        if response.status == 404 or (
            response.status in (400, 422) and _names_unknown_model(response.body, self.model)
        ):
            return FatalEndpointError(f"{what} (model {self.model!r}; is it served there?)")
        if response.status in TRANSIENT:
            return TransientError(what, retry_after=retry_after(response.headers))
        if 300 <= response.status < 400:
            return FatalEndpointError(
                f"{what} (a redirect, which is not followed: it would carry the key along; "
                "give the final address)"
            )
        return EndpointError(what)

    def _excerpt(self, response: Response) -> str:
        try:
            error = _decode(response.body, _failure_decoder).error
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


def _check_address(url: str, key_variable: str, key: str) -> None:
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
            f"there, since it is stored with the report. Set {key_variable} instead"
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
    reasoning = choice.message.reasoning_content or choice.message.reasoning
    message = Message(
        "assistant",
        clean(choice.message.content or ""),
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
    content: str | None = None
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


class _Error(msgspec.Struct):
    message: str


class _Failure(msgspec.Struct):
    error: _Error | str


_reply_decoder = msgspec.json.Decoder(_Reply)
_failure_decoder = msgspec.json.Decoder(_Failure)


def _decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as problem:
        raise ValueError(str(problem)) from None
