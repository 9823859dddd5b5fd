"""An OpenAI-compatible server: chat completions over HTTP.

The key comes from the environment and goes into the request header, nowhere else: it is not part
of the endpoint's description, and is cut out of whatever a server sends back. Answers are
untrusted: bounded in size, decoded by type, redirects not followed (they would carry the key).

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
from typing import Any, Self
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

DEFAULT_BASE_URL = "https://api.openai.com/v1"
TRANSIENT = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
PLACEHOLDER_LENGTH = 12
"""Shorter keys ("EMPTY", "none") are no secret, and may well be words of an answer."""


class HTTPEndpoint:
    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        key_variable: str = "OPENAI_API_KEY",
        max_connections: int = 512,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """`extra` goes into every request body as it is ({"reasoning_effort": "low"}, say)."""
        base_url = (base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL).rstrip("/")
        key = (os.environ.get(key_variable) or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise InvalidInput(f"{key_variable} holds characters that no key has")
        _check_address(base_url, key_variable, key)
        self.model, self.base_url = model, base_url
        self._key_variable, self._key = key_variable, key
        self._extra = dict(extra or {})
        self._max_connections = max_connections
        self._transport: Transport | None = None
        self._loop: Any = None
        self._answered = False
        self._heard = False
        """Whether the server ever answered with something of its own."""
        self._reasoning_field: str | None = None
        """What the server calls reasoning, once it has sent some."""
        self._url = base_url + "/chat/completions"

    @classmethod
    def parse(cls, text: str, *, max_connections: int) -> Self:
        """MODEL or MODEL@URL; a model name may hold an @ of its own."""
        # The @ before a scheme, not the last: a password in the address has one after it, and
        # is refused with the address instead of becoming part of a model's name.
        at = re.search(r"@(?=[a-z][a-z0-9+.-]*://)", text, re.IGNORECASE)
        model, url = (text[: at.start()], text[at.end() :]) if at else (text, "")
        meant = text.rpartition("@")[2] if "@" in text and not at else None
        if meant is not None and (not meant or ":" in meant or meant.startswith("localhost")):
            raise InvalidInput(
                f"the endpoint's address {meant!r} does not start with http:// or https://, as in "
                "openai:MODEL@http://localhost:8000/v1"
            )
        if not model:
            raise InvalidInput("the endpoint names no model; it is openai:MODEL@URL")
        return cls(model, url or None, max_connections=max_connections)

    def describe(self) -> dict[str, Any]:
        extra = {"extra": self._extra} if self._extra else {}
        return {"kind": "openai", "model": self.model, "base_url": self.base_url, **extra}

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        body = self._body(messages, sampling, tools)
        return await self.send(body, next_call=next_call_number(messages))

    async def send(self, request: Mapping[str, Any], *, next_call: int = 0) -> Completion:
        """The answer to a body that is ready to be sent; `next_call` numbers calls without ids."""
        loop = current_loop()
        if self._transport is None or self._loop is not loop:
            # Connections belong to the loop they were made in; those of a past one are of no use.
            self._transport, self._loop = open_transport(self._max_connections), loop
        headers = {"content-type": "application/json", "accept": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        body = msgspec.json.encode(request)
        try:
            response = await self._transport.post(self._url, body, headers)
            if response.status < 500:
                self._heard = True
            if response.status != 200:
                raise self._problem(response)
            completion = self._completion(response, next_call)
            self._answered = True
            return completion
        except TransientError as problem:
            # A line that is no HTTP is quoted by whoever could not read it, key and all.
            problem.args = (self._without_key(str(problem)),)
            if self._heard or isinstance(problem, Unreachable):
                raise
            # Some servers do not say what is wrong: `transformers serve` answers 500 to a model
            # it cannot load. So one that never did anything but fail is no better than none.
            raise Unreachable(
                f"{problem} (nothing else has come from there yet; is {self.model!r} served?)",
                retry_after=problem.retry_after,
            ) from None

    async def close(self) -> None:
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
                body["content"] = None  # as it came; some servers refuse a text that is empty
            # Models that think between calls go on from what they thought. Only a server that
            # sends reasoning is sent it back: others refuse the field.
            if message.reasoning is not None and self._reasoning_field is not None:
                body[self._reasoning_field] = message.reasoning
        return body

    # --- What comes back ---

    def _completion(self, response: Response, next_call: int) -> Completion:
        try:
            answer = _answer_decoder.decode(response.body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
            raise TransientError(
                f"{self._url} answered 200 with something that is not a chat completion "
                f"({problem}): {self._excerpt(response)}"
            ) from None
        if not answer.choices:
            raise EndpointError(f"{self._url} answered without choices: {self._excerpt(response)}")
        said = answer.choices[0].message
        if (said.reasoning_content or said.reasoning) is not None:
            named = "reasoning_content" if said.reasoning_content else "reasoning"
            self._reasoning_field = named
        return _completion(answer, next_call, self._unechoed)

    def _problem(self, response: Response) -> EndpointError:
        """Which of four: this item's, its length, worth another try, or everybody's."""
        said = self._excerpt(response)
        what = f"{self._url} answered {response.status}: {said}"
        if response.status in (400, 413, 422, 500) and _says_too_long(response.body):
            return ContextFull(what)
        # A 403 is about the key until something was allowed; after that, about this one request.
        if response.status == 401 or (response.status == 403 and not self._answered):
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
        text = response.body.decode("utf-8", "replace")
        try:
            error = json.loads(response.body)["error"]
            text = error["message"] if isinstance(error, dict) else str(error)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass  # not the usual shape: the raw text says it as well
        # The key goes first: a cut through the middle of it would leave the half that is kept.
        return self._without_key(str(text))[:500].strip() or "(empty body)"

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text

    def _unechoed(self, text: str) -> str:
        """An answer is kept as it is, unless it is the request's own header come back."""
        return text if len(self._key) < PLACEHOLDER_LENGTH else self._without_key(text)


def _check_address(url: str, key_variable: str, key: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not close
        usable = False
    if not usable or not url.isprintable() or " " in url:
        # What follows an @ that cannot be read may have a password before it.
        given = "one with an @ in it" if "@" in url else repr(url)
        raise InvalidInput(
            f"an endpoint's address is like http://host:8000/v1 or https://host/v1, got {given}"
        )
    holds_key = len(key) >= PLACEHOLDER_LENGTH and key in url
    if "@" in parts.netloc or parts.query or parts.fragment or holds_key:
        raise InvalidInput(
            "the endpoint's address holds a user, password, key or query; keys do not belong "
            f"there, since it is stored with the report. Set {key_variable} instead"
        )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The wait a server asked for, in seconds: milliseconds, seconds, or a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue  # then it is a date, or nothing readable
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        # A date of no zone, which "-0000" makes, is in UTC.
        return max(0.0, date.replace(tzinfo=date.tzinfo or UTC).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _names_unknown_model(body: bytes, model: str) -> bool:
    """Whether a 400 is about the model and not about this one request."""
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
    """A chat completion as somebody stored it, already decoded; InvalidInput where it is none."""
    try:
        answer = msgspec.convert(reply, _Answer)
    except (msgspec.MsgspecError, RecursionError) as problem:
        raise InvalidInput(f"not a chat completion: {problem}") from None
    if not answer.choices:
        raise InvalidInput("a chat completion without choices")
    return _completion(answer, 0, str)


def _completion(answer: _Answer, next_call: int, kept: Callable[[str], str]) -> Completion:
    """What is read of a reply; every text of it goes through `kept`."""
    choice = answer.choices[0]
    reasoning = choice.message.reasoning_content or choice.message.reasoning
    message = Message(
        "assistant",
        kept(choice.message.content or ""),
        tool_calls=tuple(
            ToolCall(
                kept(call.id or call_id(next_call + i)),
                kept(call.function.name),
                kept(_as_text(call.function.arguments)),
            )
            for i, call in enumerate(choice.message.tool_calls or ())
        ),
        reasoning=reasoning if reasoning is None else kept(reasoning),
    )
    usage = None
    used = answer.usage
    if used is not None:
        counts = used.prompt_tokens, used.completion_tokens
        if counts[0] is not None and counts[1] is not None:  # half of it would count as 0
            usage = Usage(counts[0], counts[1])
    return Completion(message, choice.finish_reason, usage)


def _as_text(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False)


# --- The shape of an answer, as far as it is read -----------------------------------------------


class _Function(msgspec.Struct):
    name: str
    arguments: Any = None
    """JSON as text; some servers send it as it is, and a model may have written no object."""


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


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None


_answer_decoder = msgspec.json.Decoder(_Answer)
