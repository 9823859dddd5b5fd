"""Models through the package litellm: `litellm:MODEL`, for providers that heldout does not know.

MODEL is in litellm's own form, such as `gemini/gemini-2.5-flash`. litellm reads keys from the
environment; `sampling.extra_body` goes to `litellm.acompletion` as keyword arguments. Every value
of a variable whose name says that it is a secret is removed from error messages.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sniffio

from heldout.config import Sampling
from heldout.errors import (
    ContextFull,
    EndpointError,
    FatalEndpointError,
    InvalidInput,
    TransientError,
)
from heldout.models.http import (
    PLACEHOLDER_LENGTH,
    TRANSIENT,
    chat_fields,
    chat_message,
    completion_of,
    retry_after,
)
from heldout.types import Completion, Message, ToolSpec, Usage

SECRETS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""How names of variables with secrets end."""


class LiteLLMEndpoint:
    """A model that litellm reaches."""

    def __init__(self, model: str) -> None:
        try:
            import litellm
        except ImportError as missing:
            raise InvalidInput(
                f"litellm:{model} needs the package litellm ({missing}): "
                "pip install 'heldout[litellm]'"
            ) from None
        self.model = model
        self._litellm: Any = litellm
        litellm.suppress_debug_info = True  # it would print advice with every error

    def describe(self) -> dict[str, Any]:
        """Describe the model for the report."""
        return {"kind": "litellm", "model": self.model}

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """Take one model turn; see `Endpoint`."""
        if sniffio.current_async_library() != "asyncio":
            raise FatalEndpointError("litellm runs under asyncio only")
        options = {**chat_fields(sampling, tools), **(sampling.extra_body or {})}
        if sampling.stream or options.get("stream"):
            raise FatalEndpointError("litellm:MODEL is not streamed; leave out sampling.stream")
        try:
            reply = await self._litellm.acompletion(
                model=self.model,
                messages=[chat_message(message) for message in messages],
                num_retries=0,
                **{name: value for name, value in options.items() if value is not None},
            )
        except Exception as problem:  # noqa: BLE001 - of any provider; the request has no answer
            raise self._error_for(problem) from None
        try:
            completion = completion_of(reply.model_dump())
        except InvalidInput as problem:
            raise TransientError(f"litellm: {problem}") from None
        # litellm writes zeros where a server does not say.
        return replace(completion, usage=None) if completion.usage == Usage() else completion

    async def close(self) -> None:
        """Do nothing: connections are litellm's own."""

    def _error_for(self, problem: Exception) -> EndpointError:
        """Tell errors apart by the status that litellm gives all of its exceptions."""
        name, status = type(problem).__name__, getattr(problem, "status_code", None)
        what = f"litellm, {self.model}: {name}: {_without_secrets(str(problem))[:500]}"
        if name == "ContextWindowExceededError":
            return ContextFull(what)
        if status in (401, 403, 404):
            return FatalEndpointError(what)
        if status in TRANSIENT:
            headers = getattr(problem, "litellm_response_headers", None) or {}
            waits = retry_after({key.lower(): value for key, value in headers.items()})
            return TransientError(what, retry_after=waits)
        return EndpointError(what)


def _without_secrets(text: str) -> str:
    for name, value in os.environ.items():
        if name.upper().endswith(SECRETS) and len(value) >= PLACEHOLDER_LENGTH:
            text = text.replace(value, "[key]")
    return text
