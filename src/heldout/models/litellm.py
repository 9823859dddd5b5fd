"""Models through the package litellm: `litellm:MODEL`, for providers that heldout does not know.

MODEL is in litellm's own form, such as `gemini/gemini-2.5-flash`. litellm reads keys from the
environment; `sampling.extra_body` goes to `litellm.acompletion` as keyword arguments. Every value
of a variable whose name says that it is a secret is removed from error messages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec
import sniffio

from heldout.errors import ContextFull, FatalEndpointError, InvalidInput
from heldout.models.http import PLACEHOLDER_LENGTH, HTTPEndpoint, Response

SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""How names of variables with secrets end."""


class LiteLLMEndpoint(HTTPEndpoint):
    """A model that litellm reaches, in place of heldout's own client."""

    kind = "litellm"

    def __init__(self, model: str) -> None:
        try:
            import litellm
        except ImportError as missing:
            raise InvalidInput(
                f"litellm:{model} needs the package litellm ({missing}): "
                "pip install 'heldout[litellm]'"
            ) from None
        super().__init__(model, "http://litellm", key_variable=None)
        self._url = f"litellm:{model}"
        self._litellm: Any = litellm
        litellm.suppress_debug_info = True  # it would print advice with every error

    def describe(self) -> dict[str, Any]:
        """Describe the model for the report."""
        return {"kind": self.kind, "model": self.model}

    async def _post(self, request: Mapping[str, Any]) -> Response:
        if sniffio.current_async_library() != "asyncio":
            raise FatalEndpointError("litellm runs under asyncio only")
        if request.get("stream"):
            raise FatalEndpointError("litellm:MODEL is not streamed; leave out sampling.stream")
        try:
            reply = await self._litellm.acompletion(num_retries=0, **request)
        except Exception as problem:  # noqa: BLE001 - of any provider; the request has no answer
            name, status = type(problem).__name__, getattr(problem, "status_code", None) or 400
            text = f"{name}: {_without_secrets(str(problem))}"
            if name == "ContextWindowExceededError":
                raise ContextFull(f"{self._url}: {text[:500]}") from None
            if status in (401, 403):
                raise FatalEndpointError(f"{self._url}: {text[:500]}") from None
            headers = getattr(problem, "litellm_response_headers", None) or {}
            return Response(status, {k.lower(): v for k, v in headers.items()}, text.encode())
        return Response(200, {}, msgspec.json.encode(reply.model_dump()))


def _without_secrets(text: str) -> str:
    for name, value in os.environ.items():
        if name.upper().endswith(SECRETS) and len(value) >= PLACEHOLDER_LENGTH:
            text = text.replace(value, "[key]")
    return text
