"""Which endpoint a text, a function or an object stands for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import cast

from heldout._core.config import check_endpoint
from heldout._core.plugins import describe_plugin, find_plugins, load_plugin
from heldout._core.providers import COMPATIBLE, KINDS, SERVERS, runs_here
from heldout.errors import InvalidInput
from heldout.models.base import AnswerFn, Endpoint, FunctionEndpoint


def open_endpoint(model: str | AnswerFn | Endpoint, *, max_concurrent: int) -> Endpoint:
    """Make the endpoint that a config names, which the caller closes.

    Heavy packages are imported only here; one that is not installed is an `InvalidInput`.
    """
    check_endpoint(model)
    if not isinstance(model, str):
        is_endpoint = callable(getattr(model, "complete", None))
        return cast(Endpoint, model) if is_endpoint else FunctionEndpoint(cast(AnswerFn, model))
    kind, _, name = model.partition(":")
    if claims := find_plugins("heldout.models").get(kind):
        return _open_plugin(kind, name, claims, max_concurrent=max_concurrent)
    if kind == "anthropic":
        from heldout.models.anthropic import AnthropicEndpoint

        return AnthropicEndpoint.parse(name, max_connections=max_concurrent)
    if kind == "openai-responses":
        from heldout.models.responses import ResponsesEndpoint

        return ResponsesEndpoint.parse(name, max_connections=max_concurrent)
    if kind == "vllm" and runs_here(model):
        from heldout.models.vllm import VLLMEndpoint

        return VLLMEndpoint.parse(name)
    if kind in SERVERS:
        from heldout.models.http import HTTPEndpoint

        provider = COMPATIBLE.get(kind)
        return HTTPEndpoint.parse(name, max_connections=max_concurrent, provider=provider)
    if kind == "litellm":
        from heldout.models.litellm import LiteLLMEndpoint

        return LiteLLMEndpoint(name)
    from heldout.models.local import LocalEndpoint

    if kind == "hf":
        return LocalEndpoint.load(name, max_batch=max_concurrent)
    from heldout.models.demo import MAX_TOKENS, weights_folder

    return LocalEndpoint.load(
        weights_folder(), name="smollm2", max_batch=max_concurrent, default_max_tokens=MAX_TOKENS
    )


def _open_plugin(
    kind: str, name: str, claims: Sequence[EntryPoint], *, max_concurrent: int
) -> Endpoint:
    """Have a plugin open a model of its prefix: it registers open(name, max_concurrent=…)."""
    if kind in KINDS:
        packages = " and ".join(map(describe_plugin, claims))
        raise InvalidInput(
            f"{packages} registers {kind!r} in heldout.models, which is heldout's own prefix: "
            "uninstall it, or have it take another one"
        )
    endpoint = load_plugin("heldout.models", kind, claims)(name, max_concurrent=max_concurrent)
    if not callable(getattr(endpoint, "complete", None)):
        raise InvalidInput(
            f"the plugin {kind!r} of {describe_plugin(claims[0])} must open an endpoint, with "
            f"complete, describe and close; got {endpoint!r:.200}"
        )
    return cast(Endpoint, endpoint)
