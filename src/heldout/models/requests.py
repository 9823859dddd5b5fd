"""Answers to whole requests: what is sent is a chat-completions body as somebody wrote it.

An eval usually makes the request: from messages, a sampling and tools. Here the requests are the
data, with all they hold, and each item of the eval has its own. Of a request only this changes on
its way (`as_sent`):

    model             is the endpoint's
    role `_input`     is `system`
    stream            is false, and `stream_options` are left out: replies are read whole
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from heldout.chat.tool_calls import next_call_number
from heldout.config import Sampling
from heldout.errors import EndpointError, InvalidInput
from heldout.models.http import HTTPEndpoint
from heldout.types import Completion, Message, ToolSpec

DELIVERY = ("stream", "stream_options")
"""Fields that say how an answer comes, and not what is asked."""


def open_requests(
    endpoint: str, requests: Sequence[Mapping[str, Any]], *, max_concurrent: int
) -> RequestsEndpoint:
    """Who answers them: openai:MODEL or openai:MODEL@URL."""
    kind, _, rest = endpoint.partition(":")
    if kind != "openai" or not rest:
        raise InvalidInput(
            f"whole requests are answered by an OpenAI-compatible server, openai:MODEL or "
            f"openai:MODEL@http://host/v1; got {endpoint!r}"
        )
    return RequestsEndpoint(HTTPEndpoint.parse(rest, max_connections=max_concurrent), requests)


def as_sent(request: Mapping[str, Any], model: str) -> dict[str, Any]:
    """The body that is sent for it."""
    body = {key: value for key, value in request.items() if key not in DELIVERY}
    return {**body, "model": model, "messages": with_system(request["messages"]), "stream": False}


def with_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with the role `_input` called `system`."""
    return [{**m, "role": "system"} if m.get("role") == "_input" else m for m in messages]


class RequestsEndpoint:
    """Item `index` of an eval is answered with what the server says to `requests[index]`."""

    def __init__(self, server: HTTPEndpoint, requests: Sequence[Mapping[str, Any]]) -> None:
        self._server, self._requests = server, requests

    @property
    def model(self) -> str:
        return self._server.model

    @property
    def base_url(self) -> str:
        return self._server.base_url

    def describe(self) -> dict[str, Any]:
        return {**self._server.describe(), "asked": "whole requests, with their own sampling"}

    @contextmanager
    def item(self, index: int, repeat: int) -> Iterator[_OneRequest]:
        yield _OneRequest(self._server, self._requests[index])

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        raise EndpointError(
            "this endpoint answers items of an eval by their requests, not messages"
        )

    async def close(self) -> None:
        await self._server.close()


@dataclass(frozen=True, slots=True)
class _OneRequest:
    """The endpoint as one item sees it."""

    server: HTTPEndpoint
    request: Mapping[str, Any]

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """The messages are the request's own, as the trajectory has them; it is sent itself."""
        body = as_sent(self.request, self.server.model)
        return await self.server.send(body, next_call=next_call_number(messages))

    def describe(self) -> dict[str, Any]:
        return self.server.describe()

    async def close(self) -> None:
        pass
