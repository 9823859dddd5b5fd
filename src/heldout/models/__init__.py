"""Models that answer: anything with `complete(messages, sampling, tools) -> Completion`.

`EvalConfig.endpoint`, a judge's `endpoint` and `heldout run --model` take one of these forms:

    openai:MODEL                  a model of OpenAI, or of the server in OPENAI_BASE_URL (http.py)
    openai:MODEL@http://host/v1   a model of any OpenAI-compatible server (http.py)
    openrouter:MODEL, vllm:MODEL  … of one whose address is known (heldout/_core/providers.py)
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

A conversation, sampling settings and tools go in; one turn comes out with its tokens, or an error
that says whether asking again could help. When to ask and what a turn is worth is decided above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core.lazy import lazy

if TYPE_CHECKING:
    from heldout.models.base import AnswerFn as AnswerFn
    from heldout.models.base import Endpoint as Endpoint
    from heldout.models.base import FunctionEndpoint as FunctionEndpoint
    from heldout.models.demo import weights_folder as weights_folder
    from heldout.models.http import HTTPEndpoint as HTTPEndpoint
    from heldout.models.local import LocalEndpoint as LocalEndpoint
    from heldout.models.opening import open_endpoint as open_endpoint
    from heldout.models.vllm import VLLMEndpoint as VLLMEndpoint

__all__, __getattr__, __dir__ = lazy(__name__)
