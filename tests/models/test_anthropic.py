"""Anthropic's Messages API, spoken by a server on loopback, under asyncio and trio."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import anthropic.types
import anyio
import pytest

from heldout import Message, Sampling, ToolSpec
from heldout.errors import ContextFull, EndpointError, FatalEndpointError, TransientError
from heldout.models.anthropic import DEFAULT_MAX_TOKENS, AnthropicEndpoint
from heldout.types import Completion, ToolCall, Usage
from tests.faulty_server import (
    KEY,
    Action,
    FaultyServer,
    Request,
    echo_key,
    events,
    raw,
    status,
)

Run = Callable[..., Any]
QUESTION = [Message("user", "2 + 2?")]
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"x": {"type": "integer"}}})
USAGE = {
    "input_tokens": 5,
    "output_tokens": 3,
    "cache_creation_input_tokens": 20,
    "cache_read_input_tokens": 100,
}
THINKING = {"type": "thinking", "thinking": "Two and two.", "signature": "c2lnbmVk"}
REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"x": 1}}


@pytest.fixture(autouse=True)
def own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_API_KEY")


def message(*content: dict[str, Any], stop_reason: str = "end_turn") -> dict[str, Any]:
    """A reply as Anthropic documents it, checked by Anthropic's own package."""
    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": list(content),
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": USAGE,
    }
    anthropic.types.Message.model_validate(body, strict=True)
    return body


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words, "citations": None}


def error(kind: str, words: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": words}, "request_id": "req_1"}


def asked(
    server: FaultyServer,
    messages: Sequence[Message] = QUESTION,
    sampling: Sampling | None = None,
    tools: Sequence[ToolSpec] = (),
    *,
    then: Sequence[Message] = (),
) -> Callable[[], Any]:
    """Asks once; with `then` once more, with the answer and these messages added."""

    async def main() -> Completion:
        endpoint = AnthropicEndpoint("claude", server.url)
        try:
            with anyio.fail_after(20):
                turn = await endpoint.complete(messages, sampling or Sampling(), tools)
                if then:
                    longer = [*messages, turn.message, *then]
                    turn = await endpoint.complete(longer, sampling or Sampling(), tools)
                return turn
        finally:
            await endpoint.close()

    return main


# --- Requests -----------------------------------------------------------------------------------


def test_the_request_has_the_documented_form(run: Run, server: FaultyServer) -> None:
    server.script(status(200, message(text("4"))))
    messages = [Message("system", "Be brief."), Message("system", "Be right."), *QUESTION]
    sampling = Sampling(0.5, 0.9, 10, ("END",), 7)
    run(asked(server, messages, sampling, [ADD]))
    request = server.requests[0]
    assert request.target == "/v1/messages"
    assert request.headers["x-api-key"] == KEY
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert "authorization" not in request.headers
    assert request.body == {
        "model": "claude",
        "max_tokens": 10,
        "system": "Be brief.\n\nBe right.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}],
        "temperature": 0.5,
        "top_p": 0.9,
        "stop_sequences": ["END"],
        "stream": False,
        "tools": [{"name": "add", "description": "Adds.", "input_schema": ADD.parameters}],
    }


def test_the_limit_that_the_api_demands_has_a_default_beyond_the_thinking_budget(
    run: Run, server: FaultyServer
) -> None:
    server.script(status(200, message(text("4"))))
    run(asked(server))
    thinking = {"type": "enabled", "budget_tokens": 1024}
    run(asked(server, sampling=Sampling(extra_body={"thinking": thinking, "temperature": None})))
    plain, thoughtful = (request.body for request in server.requests)
    assert plain["max_tokens"] == DEFAULT_MAX_TOKENS
    assert thoughtful["max_tokens"] == DEFAULT_MAX_TOKENS + 1024
    assert thoughtful["thinking"] == thinking
    assert "temperature" not in thoughtful  # null leaves a field out
    assert AnthropicEndpoint("claude").describe()["default_max_tokens"] == DEFAULT_MAX_TOKENS


def test_images_become_blocks(run: Run, server: FaultyServer) -> None:
    server.script(status(200, message(text("a cat"))))
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "image_url", "image_url": {"url": "https://host/cat.png", "detail": "low"}},
    ]
    run(asked(server, [Message("user", parts)]))
    base64 = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    assert server.requests[0].body["messages"][0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image", "source": base64},
        {"type": "image", "source": {"type": "url", "url": "https://host/cat.png"}},
    ]


def test_audio_is_refused_before_it_is_sent(run: Run, server: FaultyServer) -> None:
    with pytest.raises(EndpointError, match="takes no audio"):
        run(asked(server, [Message("user", [{"type": "input_audio", "input_audio": {}}])]))
    assert not server.requests


def test_calls_and_results_of_another_model_are_converted(run: Run, server: FaultyServer) -> None:
    server.script(status(200, message(text("4"))))
    calls = (ToolCall("a", "add", '{"x": 1}'), ToolCall("b", "add", "[1"))
    messages = [
        *QUESTION,
        Message("assistant", "", tool_calls=calls),
        Message("tool", "1", tool_call_id="a"),
        Message("tool", "not JSON", tool_call_id="b"),
        Message("user", "And?"),
        Message("assistant", ""),
        Message("user", "Well?"),
    ]
    run(asked(server, messages, tools=[ADD]))
    _, turn, results = server.requests[0].body["messages"]
    assert turn == {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": "a", "name": "add", "input": {"x": 1}},
            {"type": "tool_use", "id": "b", "name": "add", "input": {"arguments": "[1"}},
        ],
    }
    # All results of a turn stand in one message of the user, before anything else.
    assert results["role"] == "user"
    assert [block["type"] for block in results["content"]] == [
        "tool_result", "tool_result", "text", "text",
    ]  # fmt: skip
    assert results["content"][0] == {
        "type": "tool_result",
        "tool_use_id": "a",
        "content": [{"type": "text", "text": "1"}],
    }


# --- Answers ------------------------------------------------------------------------------------


def test_an_answer_is_read_with_its_thinking_and_all_of_its_tokens(
    run: Run, server: FaultyServer
) -> None:
    server.script(status(200, message(THINKING, REDACTED, text("It is "), text("4."))))
    turn = Message("assistant", "It is 4.", reasoning="Two and two.")
    assert run(asked(server)) == Completion(turn, "stop", Usage(125, 3))


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
    ],
)
def test_stop_reasons_have_the_names_of_chat_completions(
    run: Run, server: FaultyServer, stop_reason: str, finish_reason: str
) -> None:
    server.script(status(200, message(text("I"), stop_reason=stop_reason)))
    assert run(asked(server)).finish_reason == finish_reason


def test_a_turn_with_calls_is_sent_back_with_its_signed_thinking(
    run: Run, server: FaultyServer
) -> None:
    content = [THINKING, REDACTED, text("I add."), CALL]
    server.script(
        status(200, message(*content, stop_reason="tool_use")), status(200, message(text("4")))
    )
    result = Message("tool", "4", tool_call_id="toolu_1")
    assert run(asked(server, tools=[ADD], then=[result])).message.text == "4"
    assert server.requests[1].body["messages"][1] == {"role": "assistant", "content": content}


def test_a_call_keeps_its_arguments_as_json_text(run: Run, server: FaultyServer) -> None:
    server.script(status(200, message(CALL, stop_reason="tool_use")))
    turn = run(asked(server, tools=[ADD]))
    assert turn.message.tool_calls == (ToolCall("toolu_1", "add", '{"x": 1}'),)
    assert turn.finish_reason == "tool_calls"


# --- Streams ------------------------------------------------------------------------------------


def stream(*, until: int | None = None, ending: Sequence[dict[str, Any]] = ()) -> bytes:
    """The documented events of one message with thinking, text and a call."""
    start = message()
    start["stop_reason"] = None
    start["usage"] = {**USAGE, "output_tokens": 1}
    parts: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [
                {"type": "thinking_delta", "thinking": "Two "},
                {"type": "thinking_delta", "thinking": "and two."},
                {"type": "signature_delta", "signature": "c2lnbmVk"},
            ],
        ),
        (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": "I "}, {"type": "text_delta", "text": "ädd."}],
        ),
        (
            {**CALL, "input": {}},
            [
                {"type": "input_json_delta", "partial_json": ""},
                {"type": "input_json_delta", "partial_json": '{"x"'},
                {"type": "input_json_delta", "partial_json": ": 1}"},
            ],
        ),
        ({**CALL, "id": "toolu_2", "input": {}}, []),
    ]
    for index, (block, deltas) in enumerate(blocks):
        parts.append({"type": "content_block_start", "index": index, "content_block": block})
        parts += [{"type": "content_block_delta", "index": index, "delta": d} for d in deltas]
        parts.append({"type": "content_block_stop", "index": index})
    parts += [
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 3},
        },
        {"type": "message_stop"},
    ]
    return events(*parts[:until], *ending, name=True)


def test_a_stream_gives_the_same_turn_and_is_remembered(run: Run, server: FaultyServer) -> None:
    server.script(status(200, stream()), status(200, message(text("4"))))
    streamed = Sampling(stream=True)
    turn = run(asked(server, sampling=streamed, tools=[ADD]))
    calls = (ToolCall("toolu_1", "add", '{"x": 1}'), ToolCall("toolu_2", "add", "{}"))
    expected = Message("assistant", "I ädd.", tool_calls=calls, reasoning="Two and two.")
    assert turn == Completion(expected, "tool_calls", Usage(125, 3))
    assert server.requests[0].body["stream"] is True

    server.script(status(200, stream()), status(200, message(text("4"))))
    result = Message("tool", "4", tool_call_id="toolu_1")
    run(asked(server, sampling=streamed, tools=[ADD], then=[result]))
    assert server.requests[-1].body["messages"][1]["content"][0] == THINKING


@pytest.mark.parametrize("until", [0, 1, 4, 9, -2, -1])
def test_a_stream_that_ends_early_is_transient_and_never_an_answer(
    run: Run, server: FaultyServer, until: int
) -> None:
    server.script(status(200, message(text("I am there."))), status(200, stream(until=until)))
    with pytest.raises(TransientError, match="broke off|is not a message"):
        run(asked(server, sampling=Sampling(stream=True), then=QUESTION))


def test_a_stream_whose_connection_breaks_is_transient(run: Run, server: FaultyServer) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    whole = stream()
    server.script(raw(head + b"%x\r\n%s\r\n" % (len(whole), whole)))  # and no last chunk
    with pytest.raises(TransientError):
        run(asked(server, sampling=Sampling(stream=True)))


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("overloaded_error", TransientError),
        ("api_error", TransientError),
        ("rate_limit_error", TransientError),
        ("invalid_request_error", EndpointError),
        ("authentication_error", FatalEndpointError),
    ],
)
def test_an_error_in_a_stream_is_that_error(
    run: Run, server: FaultyServer, kind: str, raised: type[EndpointError]
) -> None:
    server.script(status(200, stream(until=6, ending=[error(kind, "It went wrong.")])))
    with pytest.raises(raised, match="It went wrong") as caught:
        run(asked(server, sampling=Sampling(stream=True)))
    assert isinstance(caught.value, TransientError) == (raised is TransientError)


# --- Errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "words", "raised"),
    [
        (400, "invalid_request_error", "messages: too few", EndpointError),
        (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", ContextFull),
        (401, "authentication_error", "invalid x-api-key", FatalEndpointError),
        (403, "permission_error", "no access", FatalEndpointError),
        (404, "not_found_error", "model: claude", FatalEndpointError),
        (413, "request_too_large", "Request exceeds the maximum size", EndpointError),
        (429, "rate_limit_error", "slow down", TransientError),
        (500, "api_error", "Internal server error", TransientError),
        (529, "overloaded_error", "Overloaded", TransientError),
    ],
)
def test_errors_are_told_apart(
    run: Run,
    server: FaultyServer,
    code: int,
    kind: str,
    words: str,
    raised: type[EndpointError],
) -> None:
    server.script(status(code, error(kind, words)))
    with pytest.raises(raised, match=words) as caught:
        run(asked(server))
    if raised is EndpointError:
        assert type(caught.value) is EndpointError


@pytest.mark.parametrize("code", [429, 529])
def test_the_server_says_how_long_to_wait(run: Run, server: FaultyServer, code: int) -> None:
    server.script(status(code, error("overloaded_error", "x"), headers={"retry-after": "7"}))
    with pytest.raises(TransientError) as caught:
        run(asked(server))
    assert caught.value.retry_after == 7.0


def test_a_model_without_temperature_says_how_to_leave_it_out(
    run: Run, server: FaultyServer
) -> None:
    words = "`temperature` is deprecated for this model."
    server.script(status(400, error("invalid_request_error", words)))
    with pytest.raises(FatalEndpointError, match=r"sampling\.extra_body\.temperature=null"):
        run(asked(server))


@pytest.mark.parametrize("body", ["{", "[]", '{"content": "4"}', '{"content": [1]}', "<html>"])
def test_malformed_answers_are_transient(run: Run, server: FaultyServer, body: str) -> None:
    server.script(status(200, body))
    with pytest.raises(TransientError):
        run(asked(server))


@pytest.mark.parametrize("code", [400, 401, 429, 500])
def test_a_key_that_comes_back_in_an_error_is_removed(
    run: Run, server: FaultyServer, code: int
) -> None:
    server.script(echo_key(code))
    with pytest.raises(EndpointError, match=r"bad key: \[key\]"):
        run(asked(server))


def test_a_key_that_comes_back_in_an_answer_is_removed_from_what_is_remembered(
    run: Run, server: FaultyServer
) -> None:
    def leak(request: Request) -> Action:
        thinking = {**THINKING, "thinking": f"The key is {KEY}."}
        call = {**CALL, "input": {"x": KEY}}
        body = json.dumps(message(thinking, call, stop_reason="tool_use")).replace(
            "sk-", "sk\\u002d"
        )
        return status(200, body)

    server.behave = leak
    result = Message("tool", "4", tool_call_id="toolu_1")
    turn = run(asked(server, tools=[ADD], then=[result]))
    assert turn.message.reasoning == "The key is [key]."
    assert turn.message.tool_calls[0].arguments == '{"x": "[key]"}'
    assert KEY not in server.requests[1].raw.decode()
