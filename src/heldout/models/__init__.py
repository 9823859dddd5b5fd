"""Who answers: anything with `complete(messages, sampling, tools) -> Completion`.

    function   a plain or async function of the messages (base.py)
    http       an OpenAI-compatible server (http.py)
    local      a transformers model in this process (local.py)
    smollm2    SmolLM2-135M-Instruct from the package index (demo.py)

`open_endpoint` makes one of a config's `endpoint`; heavy packages load only there.
"""

from __future__ import annotations

from typing import Any

from heldout.config import check_endpoint
from heldout.models.base import Endpoint, FunctionEndpoint

__all__ = ["Endpoint", "FunctionEndpoint", "open_endpoint"]


def open_endpoint(given: Any, *, max_concurrent: int) -> Endpoint:
    check_endpoint(given)
    if isinstance(given, str):
        kind, _, rest = given.partition(":")
        if kind == "openai":
            from heldout.models.http import HTTPEndpoint

            return HTTPEndpoint.parse(rest, max_connections=max_concurrent)
        from heldout.models.local import LocalEndpoint

        if kind == "hf":
            return LocalEndpoint.load(rest, max_batch=max_concurrent)
        from heldout.models.demo import weights_folder

        return LocalEndpoint.load(weights_folder(), name="smollm2", max_batch=max_concurrent)
    if callable(getattr(given, "complete", None)):
        return given  # type: ignore[no-any-return]
    return FunctionEndpoint(given)
