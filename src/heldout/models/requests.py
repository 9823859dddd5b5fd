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

from heldout._core.chat.tool_calls import next_call_number
from heldout._core.config import Sampling
from heldout._core.providers import COMPATIBLE
from heldout.errors import InvalidInput
from heldout.models.base import Complete
from heldout.models.http import HTTPEndpoint
from heldout.types import Completion, Message, ToolSpec

DELIVERY = ("stream", "stream_options")
"""Fields that say how an answer is delivered, not what is asked."""


def open_requests(
    endpoint: str, requests: Sequence[Mapping[str, Any]], *, max_concurrent: int
) -> RequestsEndpoint:
    """Make an endpoint that replays requests, one per sample."""
    kind, _, name = endpoint.partition(":")
    if kind not in ("openai", *COMPATIBLE) or not name:
        raise InvalidInput(
            f"whole requests are answered by an OpenAI-compatible server, openai:MODEL or "
            f"openai:MODEL@http://host/v1; got {endpoint!r}"
        )
    provider = COMPATIBLE.get(kind)
    server = RequestsEndpoint.parse(name, max_connections=max_concurrent, provider=provider)
    server.requests = requests
    return server


def as_sent(request: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Make the body that is sent for a recorded request."""
    body = {key: value for key, value in request.items() if key not in DELIVERY}
    return {**body, "model": model, "messages": with_system(request["messages"]), "stream": False}


def with_system(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rename the role `_input` to `system` in all messages."""
    return [{**m, "role": "system"} if m.get("role") == "_input" else m for m in messages]


class RequestsEndpoint(HTTPEndpoint):
    """A server that answers sample `index` with its reply to `requests[index]`."""

    requests: Sequence[Mapping[str, Any]] = ()
    """Chat-completions bodies, one per sample."""

    def describe(self) -> dict[str, Any]:
        """Describe the server for the report."""
        return {**super().describe(), "asked": "whole requests, with their own sampling"}

    @contextmanager
    def item(self, index: int, repeat: int) -> Iterator[Complete]:
        """Return the completion function of one attempt; see `bind_attempt`."""
        body = as_sent(self.requests[index], self.model)

        async def answer(
            messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
        ) -> Completion:
            # The messages are the request's own, as the trajectory has them.
            return await self.send(body, next_call=next_call_number(messages))

        yield answer
