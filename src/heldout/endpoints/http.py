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
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from heldout.config import Sampling
from heldout.endpoints.transport import Response, Transport, open_transport
from heldout.errors import EndpointError, FatalEndpointError, InvalidInput, TransientError
from heldout.types import Completion, Message, ToolCall, ToolSpec, Usage

DEFAULT_BASE_URL = "https://api.openai.com/v1"
TRANSIENT = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}


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
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(
                f"the endpoint's address starts with http:// or https://, got {base_url!r}"
            )
        if parts.username or parts.password or parts.query:
            raise InvalidInput(
                "the endpoint's address holds a user, password or query; keys do not belong "
                f"there, since it is stored with the report. Set {key_variable} instead"
            )
        self.model, self.base_url = model, base_url
        self._key_variable = key_variable
        self._key = os.environ.get(key_variable)
        self._extra = dict(extra or {})
        self._max_connections = max_connections
        self._transport: Transport | None = None
        self._url = base_url + "/chat/completions"

    @classmethod
    def parse(cls, text: str, *, max_connections: int) -> Self:
        """MODEL or MODEL@URL; a model name may hold an @ of its own."""
        model, at, url = text.rpartition("@")
        if not at or "://" not in url:
            model, url = text, ""
        if not model:
            raise InvalidInput(f"endpoint openai:{text} names no model: openai:MODEL@URL")
        return cls(model, url or None, max_connections=max_connections)

    def describe(self) -> dict[str, Any]:
        extra = {"extra": self._extra} if self._extra else {}
        return {"kind": "openai", "model": self.model, "base_url": self.base_url, **extra}

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        if self._transport is None:
            self._transport = open_transport(self._max_connections)
        headers = {"content-type": "application/json", "accept": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        body = msgspec.json.encode(self._body(messages, sampling, tools))
        try:
            response = await self._transport.post(self._url, body, headers)
        except EndpointError as problem:
            problem.args = (self._without_key(str(problem)),)
            raise
        if response.status != 200:
            raise self._problem(response)
        return self._completion(response)

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.close()
            self._transport = None

    def _body(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [to_chat_api(m) for m in messages],
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
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for tool in tools
            ]
        return {**body, **self._extra}

    # --- What comes back ---

    def _completion(self, response: Response) -> Completion:
        try:
            answer = _answer_decoder.decode(response.body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as problem:
            raise TransientError(
                f"{self._url} answered 200 with something that is not a chat completion "
                f"({problem}): {self._excerpt(response)}"
            ) from None
        if not answer.choices:
            raise EndpointError(f"{self._url} answered without choices: {self._excerpt(response)}")
        choice = answer.choices[0]
        message = Message(
            "assistant",
            choice.message.content or "",
            tool_calls=tuple(
                ToolCall(call.id or f"call_{i}", call.function.name, call.function.arguments)
                for i, call in enumerate(choice.message.tool_calls or ())
            ),
            reasoning=choice.message.reasoning_content or choice.message.reasoning,
        )
        usage = None
        if answer.usage is not None:
            used = answer.usage
            usage = Usage(used.prompt_tokens or 0, used.completion_tokens or 0)
        return Completion(message, choice.finish_reason, usage)

    def _problem(self, response: Response) -> EndpointError:
        """Which of three: this item's, worth another try, or everybody's."""
        said = self._excerpt(response)
        what = f"{self._url} answered {response.status}: {said}"
        if response.status in (401, 403):
            key = f"the key in {self._key_variable}" if self._key else f"no {self._key_variable}"
            return FatalEndpointError(f"{what} (sent {key})")
        if response.status == 404 or (
            response.status in (400, 422) and _names_unknown_model(response.body)
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
        text = response.body[:2000].decode("utf-8", "replace")
        try:
            error = json.loads(response.body)["error"]
            text = error["message"] if isinstance(error, dict) else str(error)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass  # not the usual shape: the raw text says it as well
        return self._without_key(str(text)[:500].strip() or "(empty body)")

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


def to_chat_api(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        body["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    return body


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The wait a server asked for, in seconds: milliseconds, seconds, or a date."""
    if milliseconds := headers.get("retry-after-ms"):
        try:
            return max(0.0, float(milliseconds) / 1000)
        except ValueError:
            return None
    value = headers.get("retry-after")
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass  # then it is a date, or nothing readable
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _names_unknown_model(body: bytes) -> bool:
    text = body[:2000].lower()
    return b"model" in text and any(
        phrase in text
        for phrase in (b"not exist", b"not found", b"model_not_found", b"unknown model",
                       b"not a valid model", b"no such model")
    )  # fmt: skip


# --- The shape of an answer, as far as it is read -----------------------------------------------


class _Function(msgspec.Struct):
    name: str
    arguments: str = "{}"


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
