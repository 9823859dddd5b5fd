"""Names of models: which providers there are, their addresses, and the variables with their keys.

This is data that `config` checks and `models` uses; nothing here opens a connection.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from heldout._core.plugins import find_plugins
from heldout.errors import InvalidInput


class Provider(NamedTuple):
    """Where a provider's API is.

    Attributes:
        url: The base URL.
        key_variable: The environment variable with the key; None if it takes none.
        url_variable: The environment variable with another base URL.
    """

    url: str
    key_variable: str | None
    url_variable: str = ""


OPENAI = Provider("https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL")
ANTHROPIC = Provider("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")

COMPATIBLE = {
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "together": Provider("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "fireworks": Provider("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "ollama": Provider("http://localhost:11434/v1", None),
    "vllm": Provider("http://localhost:8000/v1", None),
    "sglang": Provider("http://localhost:30000/v1", None),
    "lmstudio": Provider("http://localhost:1234/v1", None),
}
"""Providers of OpenAI-compatible chat completions."""

SERVERS = ("openai", "openai-responses", "anthropic", *COMPATIBLE)
"""Forms whose requests heldout sends itself."""
KINDS = (*SERVERS, "litellm", "hf", "smollm2")
"""Everything that may precede the colon."""

_FAMILIES = (
    (re.compile(r"gpt-|o\d|chatgpt", re.IGNORECASE), "openai:{0}"),
    (re.compile(r"claude", re.IGNORECASE), "anthropic:{0}"),
    (re.compile(r"mistral|codestral|magistral", re.IGNORECASE), "mistral:{0}"),
    (re.compile(r"deepseek", re.IGNORECASE), "deepseek:{0}"),
    (re.compile(r"gemini", re.IGNORECASE), "litellm:gemini/{0} or openrouter:google/{0}"),
)
"""How models of well-known names are written in full."""


def check_model_name(name: str) -> None:
    """Refuse text that does not name a model, and say which form is expected."""
    kind, _, model = name.partition(":")
    if (kind in KINDS and model and kind != "smollm2") or name == "smollm2":
        return
    if model and kind not in KINDS and kind in find_plugins("heldout.models"):
        return
    raise InvalidInput(
        f"model {name!r} is not one of openai:MODEL, openai:MODEL@http://host/v1, "
        f"PROVIDER:MODEL ({', '.join(SERVERS[1:])}, litellm), hf:PATH, vllm:PATH, smollm2",
        hint=_suggest(name, kind, model),
    )


def split_settings(text: str) -> tuple[str, str]:
    """Split PATH?SETTINGS of `vllm:` into the two; a folder may have a ? in its name."""
    if Path(text).expanduser().is_dir():
        return text, ""
    path, _, settings = text.partition("?")
    return path, settings


def runs_here(model: str) -> bool:
    """Return whether a model is loaded by the process that asks it.

    `vllm:` does so for a folder, and for what can be nothing else; other names are a server's.
    """
    kind, _, name = model.partition(":")
    if kind != "vllm":
        return kind in ("hf", "smollm2")
    path = split_settings(name)[0]
    has_address = re.search(r"@[a-z]+://", name, re.IGNORECASE) is not None
    is_path = path.startswith(("/", "./", "../", "~")) or Path(path).is_dir()
    return is_path and not has_address


def model_name(endpoint: Mapping[str, Any]) -> str | None:
    """Name the model of an endpoint's description as `--model` takes it; None if it has no name."""
    kind, model, url = (endpoint.get(key) for key in ("kind", "model", "base_url"))
    if not isinstance(kind, str) or not isinstance(model, str):
        return None
    if kind == "local":
        return model if model == "smollm2" else f"hf:{model}"
    known = {"openai": OPENAI, "openai-responses": OPENAI, "anthropic": ANTHROPIC}
    if url is None or (kind in known and known[kind].url == url):
        return f"{kind}:{model}"
    names = [name for name, provider in COMPATIBLE.items() if provider.url == url]
    return f"{names[0]}:{model}" if names else f"{kind}:{model}@{url}"


def _suggest(name: str, kind: str, model: str) -> str | None:
    if kind in KINDS:  # openai: without a model, smollm2:x
        return None
    if kind.endswith(".py"):  # as --scorer takes a function
        return "set a function in the eval file: config = EvalConfig(endpoint=FUNCTION)"
    is_tag = re.search(r"\d", kind) is not None  # llama3:8b, which is near to "ollama"
    if model and not is_tag and (near := difflib.get_close_matches(kind, KINDS, n=1, cutoff=0.75)):
        return f"did you mean {near[0]}:{model}?"
    prefix, slash, rest = name.partition("/")
    if slash and prefix in KINDS and rest:  # as Inspect and LiteLLM write it
        return f"did you mean {prefix}:{rest}?"
    for pattern, form in _FAMILIES:
        if pattern.match(name):
            return f"write {form.format(name)}"
    if name and Path(name).is_dir():
        return f"write hf:{name} or vllm:{name} to load it here"
    if slash:
        return f"write hf:{name} to load it here, or vllm:{name} or openrouter:{name} for a server"
    if model:
        return f"write ollama:{name} if that is an Ollama model"
    return None
