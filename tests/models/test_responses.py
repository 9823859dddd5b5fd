"""OpenAI's Responses API, spoken by a server on loopback, under asyncio and trio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import openai.types.responses
import pytest

from heldout import Message, Sampling, ToolSpec
from heldout.errors import ContextFull, EndpointError, FatalEndpointError, TransientError
from heldout.models.responses import ResponsesEndpoint
from heldout.types import Completion, ToolCall, Usage
from tests.faulty_server import KEY, FaultyServer, echo_key, events, status

Run = Callable[..., Any]
QUESTION = [Message("user", "2 + 2?")]
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"x": {"type": "integer"}}})
REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [
        {"type": "summary_text", "text": "Two and two."},
        {"type": "summary_text", "text": "So four."},
    ],
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "add",
    "arguments": '{"x": 1}',
    "status": "completed",
}


def text(words: str, kind: str = "output_text") -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": words, "annotations": []}
    if kind == "refusal":
        part = {"type": "refusal", "refusal": words}
    head = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    return {**head, "content": [part]}


def response(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A reply as OpenAI documents it, checked by OpenAI's own package."""
    body = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1.0,
        "status": "completed",
        "model": "gpt",
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "usage": {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 8,
        },
        **more,
    }
    openai.types.responses.Response.model_validate(body, strict=True)
    return body


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
        endpoint = ResponsesEndpoint("gpt", server.url)
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
    server.script(status(200, response(text("4"))))
    image = {"type": "image_url", "image_url": {"url": "https://host/cat.png", "detail": "low"}}
    messages = [
        Message("system", "Be brief."),
        Message("user", [{"type": "text", "text": "What is it?"}, image]),
        Message("assistant", "I add.", tool_calls=(ToolCall("a", "add", '{"x": 1}'),)),
        Message("tool", "4", tool_call_id="a"),
    ]
    run(asked(server, messages, Sampling(0.5, 0.9, 16), [ADD]))
    request = server.requests[0]
    assert request.target == "/v1/responses"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "gpt",
        "input": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is it?"},
                    {
                        "type": "input_image",
                        "image_url": "https://host/cat.png",
                        "detail": "low",
                    },
                ],
            },
            {"role": "assistant", "content": "I add."},
            {"type": "function_call", "call_id": "a", "name": "add", "arguments": '{"x": 1}'},
            {"type": "function_call_output", "call_id": "a", "output": "4"},
        ],
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 16,
        "stream": False,
        "tools": [
            {
                "type": "function",
                "name": "add",
                "description": "Adds.",
                "parameters": ADD.parameters,
                "strict": False,
            }
        ],
    }


def test_stop_texts_are_refused_since_the_api_has_none(run: Run, server: FaultyServer) -> None:
    with pytest.raises(FatalEndpointError, match="no stop texts"):
        run(asked(server, sampling=Sampling(stop=("END",))))


def test_items_of_a_turn_with_calls_are_sent_back_as_they_came(
    run: Run, server: FaultyServer
) -> None:
    server.script(status(200, response(REASONING, CALL)), status(200, response(text("4"))))
    result = Message("tool", "4", tool_call_id="call_1")
    assert run(asked(server, tools=[ADD], then=[result])).message.text == "4"
    assert server.requests[1].body["input"][1:] == [
        REASONING,
        CALL,
        {"type": "function_call_output", "call_id": "call_1", "output": "4"},
    ]


@pytest.mark.parametrize("encrypted", [None, "opaque"])
def test_nothing_refers_to_items_that_the_server_does_not_store(
    run: Run, server: FaultyServer, encrypted: str | None
) -> None:
    reasoning = {**REASONING, "encrypted_content": encrypted}
    server.script(status(200, response(reasoning, CALL)), status(200, response(text("4"))))
    result = Message("tool", "4", tool_call_id="call_1")
    run(asked(server, sampling=Sampling(extra_body={"store": False}), tools=[ADD], then=[result]))
    call = {key: value for key, value in CALL.items() if key != "id"}
    expected = [reasoning, call] if encrypted else [call]
    assert server.requests[1].body["input"][1:-1] == expected
    assert server.requests[1].body["store"] is False


# --- Answers ------------------------------------------------------------------------------------


def test_an_answer_is_read_with_its_reasoning_and_usage(run: Run, server: FaultyServer) -> None:
    server.script(status(200, response(REASONING, text("4"))))
    turn = Message("assistant", "4", reasoning="Two and two.\n\nSo four.")
    assert run(asked(server)) == Completion(turn, "stop", Usage(5, 3))


def test_calls_are_read(run: Run, server: FaultyServer) -> None:
    server.script(status(200, response(CALL)))
    turn = run(asked(server, tools=[ADD]))
    assert turn.message == Message("assistant", "", (ToolCall("call_1", "add", '{"x": 1}'),))
    assert turn.finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("reason", "finish_reason"),
    [("max_output_tokens", "length"), ("content_filter", "content_filter")],
)
def test_an_incomplete_response_says_why(
    run: Run, server: FaultyServer, reason: str, finish_reason: str
) -> None:
    more = {"status": "incomplete", "incomplete_details": {"reason": reason}}
    server.script(status(200, response(text("The answer"), **more)))
    turn = run(asked(server))
    assert (turn.message.text, turn.finish_reason) == ("The answer", finish_reason)


def test_a_refusal_is_an_answer_that_says_so(run: Run, server: FaultyServer) -> None:
    server.script(status(200, response(text("I cannot.", "refusal"))))
    turn = run(asked(server))
    assert (turn.message.text, turn.finish_reason) == ("I cannot.", "refusal")


@pytest.mark.parametrize(
    ("code", "raised"),
    [("server_error", TransientError), ("rate_limit_exceeded", TransientError),
     ("invalid_prompt", EndpointError)],
)  # fmt: skip
def test_a_failed_response_is_an_error(
    run: Run, server: FaultyServer, code: str, raised: type[EndpointError]
) -> None:
    error = {"code": code, "message": "It went wrong."}
    server.script(status(200, response(status="failed", error=error)))
    with pytest.raises(raised, match="It went wrong") as caught:
        run(asked(server))
    assert isinstance(caught.value, TransientError) == (raised is TransientError)


@pytest.mark.parametrize("state", ["cancelled", "queued", "in_progress"])
def test_a_response_that_has_not_ended_is_an_error(
    run: Run, server: FaultyServer, state: str
) -> None:
    server.script(status(200, response(text("The"), status=state)))
    with pytest.raises(EndpointError, match=state):
        run(asked(server))


# --- Streams ------------------------------------------------------------------------------------


def stream(ending: dict[str, Any] | None) -> bytes:
    started = response(status="in_progress", usage=None)
    parts = [
        {"type": "response.created", "response": started},
        {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "4"},
    ]
    return events(*parts, *([ending] if ending else []), name=True)


def test_a_stream_gives_the_same_turn(run: Run, server: FaultyServer) -> None:
    whole = response(REASONING, text("4"), CALL)
    server.script(status(200, stream({"type": "response.completed", "response": whole})))
    streamed = run(asked(server, sampling=Sampling(stream=True)))
    server.script(status(200, whole))
    assert streamed == run(asked(server))
    assert [request.body["stream"] for request in server.requests] == [True, False]


def test_a_stream_that_ends_at_the_limit_says_so(run: Run, server: FaultyServer) -> None:
    more = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    body = stream({"type": "response.incomplete", "response": response(text("4"), **more)})
    server.script(status(200, body))
    assert run(asked(server, sampling=Sampling(stream=True))).finish_reason == "length"


def test_a_stream_that_ends_early_is_transient_and_never_an_answer(
    run: Run, server: FaultyServer
) -> None:
    server.script(status(200, stream(None)))
    with pytest.raises(TransientError, match="broke off"):
        run(asked(server, sampling=Sampling(stream=True)))


@pytest.mark.parametrize(
    "ending",
    [
        {"type": "error", "code": "server_error", "message": "It went wrong.", "param": None},
        {"type": "error", "error": {"type": "server_error", "message": "It went wrong."}},
    ],
)
def test_an_error_in_a_stream_is_that_error(
    run: Run, server: FaultyServer, ending: dict[str, Any]
) -> None:
    server.script(status(200, stream(ending)))
    with pytest.raises(TransientError, match="It went wrong"):
        run(asked(server, sampling=Sampling(stream=True)))


# --- Errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "error", "raised"),
    [
        (400, {"message": "too long", "code": "context_length_exceeded"}, ContextFull),
        (401, {"message": "Incorrect API key"}, FatalEndpointError),
        (404, {"message": "The model does not exist"}, FatalEndpointError),
        (429, {"message": "Rate limit reached"}, TransientError),
        (500, {"message": "The server had an error"}, TransientError),
    ],
)
def test_errors_are_told_apart(
    run: Run, server: FaultyServer, code: int, error: dict[str, Any], raised: type[EndpointError]
) -> None:
    server.script(status(code, {"error": error}, headers={"retry-after": "3"}))
    with pytest.raises(raised) as caught:
        run(asked(server))
    if isinstance(caught.value, TransientError):
        assert caught.value.retry_after == 3.0


@pytest.mark.parametrize("body", ["{", '{"output": "4"}', "<html>"])
def test_malformed_answers_are_transient(run: Run, server: FaultyServer, body: str) -> None:
    server.script(status(200, body))
    with pytest.raises(TransientError):
        run(asked(server))


def test_a_key_that_comes_back_is_removed(run: Run, server: FaultyServer) -> None:
    server.script(echo_key(400))
    with pytest.raises(EndpointError, match=r"bad key: Bearer \[key\]"):
        run(asked(server))
    server.script(status(200, response(text(f"The key is {KEY}."))))
    assert run(asked(server)).message.text == "The key is [key]."
