"""Answers to whole chat-completions requests, which are replayed as they were recorded.

An eval usually makes the request: from messages, sampling and tools. Here the requests are the
data, with all their fields, and every sample has its own. Only this changes on the way (`as_sent`):

    model             becomes the endpoint's
    role `_input`     becomes `system`
    stream            becomes false, and `stream_options` go: replies are read whole
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from heldout._providers import COMPATIBLE
from heldout.chat.tool_calls import next_call_number
from heldout.config import Sampling
from heldout.errors import EndpointError, InvalidInput
from heldout.models.base import ItemEndpoint
from heldout.models.http import HTTPEndpoint
from heldout.types import Completion, Message, ToolSpec

DELIVERY = ("stream", "stream_options")
"""Fields that say how an answer is delivered, not what is asked."""


def open_requests(
    endpoint: str, requests: Sequence[Mapping[str, Any]], *, max_concurrent: int
) -> RequestsEndpoint:
    """Make an endpoint that replays requests.

    Args:
        endpoint: openai:MODEL, openai:MODEL@URL, or a compatible provider's model.
        requests: Chat-completions bodies, one per sample.
        max_concurrent: How many may be in flight at once.

    Returns:
        The endpoint.

    Raises:
        InvalidInput: If `endpoint` is no server.
    """
    kind, _, name = endpoint.partition(":")
    if kind not in ("openai", *COMPATIBLE) or not name:
        raise InvalidInput(
            f"whole requests are answered by an OpenAI-compatible server, openai:MODEL or "
            f"openai:MODEL@http://host/v1; got {endpoint!r}"
        )
    provider = COMPATIBLE.get(kind)
    server = HTTPEndpoint.parse(name, max_connections=max_concurrent, provider=provider)
    return RequestsEndpoint(server, requests)


def as_sent(request: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Make the body that is sent for a recorded request.

    Args:
        request: The recorded body.
        model: The model to ask.

    Returns:
        The new body.
    """
    body = {key: value for key, value in request.items() if key not in DELIVERY}
    return {**body, "model": model, "messages": with_system(request["messages"]), "stream": False}


def with_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rename the role `_input` to `system` in all messages."""
    return [{**m, "role": "system"} if m.get("role") == "_input" else m for m in messages]


class RequestsEndpoint:
    """An endpoint that answers sample `index` with the server's reply to `requests[index]`."""

    def __init__(self, server: HTTPEndpoint, requests: Sequence[Mapping[str, Any]]) -> None:
        """Join a server and the requests.

        Args:
            server: The server, which is closed with this endpoint.
            requests: Chat-completions bodies, one per sample.
        """
        self._server, self._requests = server, requests

    @property
    def model(self) -> str:
        """The name of the model."""
        return self._server.model

    @property
    def base_url(self) -> str:
        """The address of the server."""
        return self._server.base_url

    def describe(self) -> dict[str, Any]:
        """Describe the server for the report."""
        return {**self._server.describe(), "asked": "whole requests, with their own sampling"}

    @contextmanager
    def item(self, index: int, repeat: int) -> Iterator[ItemEndpoint]:
        """Give the endpoint of one attempt; see `KnowsItems`."""
        body = as_sent(self._requests[index], self._server.model)

        async def answer(
            messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
        ) -> Completion:
            # The messages are the request's own, as the trajectory has them.
            return await self._server.send(body, next_call=next_call_number(messages))

        yield ItemEndpoint(self, answer)

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """Refuse: only attempts of the eval are answered, through `item`."""
        raise EndpointError("an endpoint of whole requests answers attempts of an eval only")

    async def close(self) -> None:
        """Close the server's connections."""
        await self._server.close()
