"""Models that answer: anything with `complete(messages, sampling, tools) -> Completion`.

`EvalConfig.endpoint`, a judge's `endpoint` and `heldout run --model` take one of these forms:

    openai:MODEL                  a model of OpenAI, or of the server in OPENAI_BASE_URL (http.py)
    openai:MODEL@http://host/v1   a model of any OpenAI-compatible server (http.py)
    openrouter:MODEL, vllm:MODEL  … of one whose address is known (heldout/_providers.py)
    vllm:PATH                     a folder that vLLM loads in this process (vllm.py)
    openai-responses:MODEL        OpenAI's Responses API (responses.py)
    anthropic:MODEL               Anthropic's Messages API (anthropic.py)
    litellm:MODEL                 anything that the package litellm knows (litellm.py)
    hf:PATH                       a folder or a hub name that transformers can load (local.py)
    smollm2                       SmolLM2-135M-Instruct from the package index (demo.py)
    a function                    of (messages) or (messages, tools), plain or async (base.py)
    an object                     with `complete`, `describe` and `close` (base.py)

Two more are made by heldout itself: `batch.py` for a policy that answers in the trainer's thread,
`requests.py` for chat-completions requests that are replayed whole.
"""

from __future__ import annotations

from typing import cast

from heldout._providers import COMPATIBLE, SERVERS, runs_here
from heldout.config import check_endpoint
from heldout.models.base import AnswerFn, Endpoint, FunctionEndpoint

__all__ = ["AnswerFn", "Endpoint", "FunctionEndpoint", "open_endpoint"]


def open_endpoint(model: str | AnswerFn | Endpoint, *, max_concurrent: int) -> Endpoint:
    """Make the endpoint that a config names, which the caller closes.

    Heavy packages are imported only here; one that is not installed is an `InvalidInput`.
    """
    check_endpoint(model)
    if not isinstance(model, str):
        is_endpoint = callable(getattr(model, "complete", None))
        return cast(Endpoint, model) if is_endpoint else FunctionEndpoint(cast(AnswerFn, model))
    kind, _, name = model.partition(":")
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
