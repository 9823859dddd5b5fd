"""One table of finish reasons, for whatever makes a completion."""

from __future__ import annotations

import pytest

from heldout._finish_reasons import is_known_finish_reason
from heldout.types import Completion, Message


@pytest.mark.parametrize(
    ("reasons", "name"),
    [
        ("stop end_turn stop_sequence STOP COMPLETE eos eos_token", "stop"),
        ("length max_tokens MAX_TOKENS max_output_tokens model_length", "length"),
        ("model_context_window_exceeded context_length_exceeded token_limit", "length"),
        ("tool_calls tool_use TOOL_CALL", "tool_calls"),
        ("content_filter", "content_filter"),
        ("SAFETY", "SAFETY"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
    ],
)
def test_a_reason_has_the_name_of_chat_completions_or_its_own(reasons: str, name: str) -> None:
    for reason in reasons.split():
        assert Completion(Message("assistant", ""), reason).finish_reason == name
        assert is_known_finish_reason(reason)


def test_an_unknown_reason_is_kept_and_told_apart() -> None:
    assert Completion(Message("assistant", ""), "Some_New_Limit").finish_reason == "Some_New_Limit"
    assert not is_known_finish_reason("Some_New_Limit")
