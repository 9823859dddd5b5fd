"""How a model turn ended: one table of the words that APIs have for it.

A `Completion` has its finish reason in the words of chat completions, whatever API, server or
stored file it came from: `stop`, `length` (truncated), `tool_calls`. Words that mean none of these
stay as they are; a report names those that are not in this table, since a turn that was truncated
may be behind one.
"""

from __future__ import annotations

STOP, LENGTH, TOOL_CALLS = "stop", "length", "tool_calls"

_SYNONYMS = {
    STOP: "end_turn stop_sequence eos eos_token complete completed",
    LENGTH: (
        "max_tokens max_output_tokens max_completion_tokens max_new_tokens max_length token_limit "
        "model_length model_context_window_exceeded context_window_exceeded context_length_exceeded"
    ),
    TOOL_CALLS: "tool_use tool_call",
}
"""Words of other APIs, in lower case: Anthropic, Responses, Mistral (`model_length`), Gemini,
Cohere, Bedrock, watsonx, text-generation-inference, Together."""

_FILTERS = (
    "content_filter content_filtered refusal safety recitation language blocklist other "
    "prohibited_content spii image_safety image_prohibited_content image_recitation image_other "
    "no_image escalation error_toxic guardrail_intervened sensitive"
)
_OTHERS = (
    "function_call pause_turn compaction incomplete malformed_function_call malformed_response "
    "unexpected_tool_call too_many_tool_calls missing_thought_signature finish_reason_unspecified"
)

BROKEN_OFF = frozenset({"error", "abort", "insufficient_system_resource", "network_error"})
"""Finish reasons of a turn that the server abandoned: OpenRouter and Mistral, vLLM and SGLang,
DeepSeek, Zhipu."""

_NAMES = {word: name for name, words in _SYNONYMS.items() for word in [name, *words.split()]}
_KNOWN = {*_NAMES, *_FILTERS.split(), *_OTHERS.split(), *BROKEN_OFF}


def normalize_finish_reason(reason: str) -> str:
    """Return a finish reason in the words of chat completions; others stay as they are."""
    return _NAMES.get(reason.lower(), reason)


def is_known_finish_reason(reason: str) -> bool:
    """Return whether it is known what a finish reason says of a turn."""
    return reason.lower() in _KNOWN
