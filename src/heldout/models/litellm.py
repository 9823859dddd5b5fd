"""Models through the package litellm: `litellm:MODEL`, for providers that heldout does not know.

MODEL is in litellm's own form, such as `gemini/gemini-2.5-flash`. litellm reads keys and addresses
from the environment; `sampling.extra_body` goes to `litellm.acompletion` as keyword arguments.
Every value of a variable whose name says that it is a secret is removed from what comes back.

The address of the server is part of the model: another one has other answers. An `api_base` in
`extra_body` is part of the settings, and what the environment or `litellm.api_base` says of the
model's provider is in the description.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
import sniffio

from heldout._core.extras import missing_extra
from heldout._core.secrets import (
    PLACEHOLDER_LENGTH,
    environment_secrets,
    remove_secret,
    remove_secrets,
)
from heldout.errors import ContextFull, FatalEndpointError
from heldout.models.http import HTTPEndpoint, Response

ADDRESSES = ("_API_BASE", "_BASE_URL", "_ENDPOINT", "_URL")
"""How names of variables with addresses end; the provider's name is before it."""


class LiteLLMEndpoint(HTTPEndpoint):
    """A model that litellm reaches, in place of heldout's own client."""

    kind = "litellm"
    rate = None  # type: ignore[assignment]  # litellm has no likelihoods of given texts

    def __init__(self, model: str) -> None:
        try:
            import litellm
        except ImportError as missing:
            raise missing_extra(
                f"litellm:{model} needs the package litellm ({missing})", "litellm"
            ) from None
        super().__init__(model, "http://litellm", key_variable=None)
        self._url = f"litellm:{model}"
        self._litellm: Any = litellm
        litellm.suppress_debug_info = True  # it would print advice with every error

    def describe(self) -> dict[str, Any]:
        """Describe the model for the report, with the addresses that litellm is told."""
        described = {"kind": self.kind, "model": self.model}
        addresses = _find_addresses(self._provider_name())
        if address := getattr(self._litellm, "api_base", None):
            addresses["litellm.api_base"] = _public_address(str(address))
        return {**described, "addresses": addresses} if addresses else described

    def _provider_name(self) -> str | None:
        """Ask litellm who the model's provider is; None if it does not know."""
        try:
            return str(self._litellm.get_llm_provider(model=self.model)[1])
        except Exception:  # noqa: BLE001 - of no documented type; `complete` will say what is wrong
            return None

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
            if status == 401 or (status == 403 and not self._is_available):
                raise FatalEndpointError(f"{self._url}: {text[:500]}") from None
            headers = getattr(problem, "litellm_response_headers", None) or {}
            return Response(status, {k.lower(): v for k, v in headers.items()}, text.encode())
        return Response(200, {}, self._redact(msgspec.json.encode(reply.model_dump())))

    def _redact(self, content: bytes) -> bytes:
        for value in environment_secrets(PLACEHOLDER_LENGTH):
            content = remove_secret(content, value, b"[key]")
        return content


def _find_addresses(provider: str | None) -> dict[str, str]:
    """Find the variables with addresses of a provider; of an unknown one, all that could be."""
    addresses = {}
    for name, value in sorted(os.environ.items()):
        suffix = next((end for end in ADDRESSES if name.endswith(end)), None)
        if suffix is None or not value:
            continue
        # OLLAMA_API_BASE is also for ollama_chat, PERPLEXITYAI_API_BASE for perplexity.
        owner, wanted = (_letters(n) for n in (name.removesuffix(suffix), provider or ""))
        is_any = provider is None and suffix in ADDRESSES[:2]
        if is_any or (wanted and owner and (owner in wanted or wanted in owner)):
            addresses[name] = _public_address(value)
    return addresses


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


def _public_address(address: str) -> str:
    """Leave out the user, password and query of an address, and any key: it is stored."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "not an address"
    host = parts.netloc.rpartition("@")[2]
    return _without_secrets(f"{parts.scheme}://{host}{parts.path}".rstrip("/"))


def _without_secrets(text: str) -> str:
    return remove_secrets(text, environment_secrets(PLACEHOLDER_LENGTH), "[key]")
