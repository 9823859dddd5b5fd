"""Anthropic's Messages API and OpenAI's Responses API, spoken by a server on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import anthropic.types
import anyio
import openai.types.responses
import pytest

from heldout import Message, Sample, Sampling, ToolSpec
from heldout._evals.rollout import Attempt, TurnFile
from heldout.environment import Reply, make_snapshot
from heldout.errors import ContextFull, EndpointError, FatalEndpointError, TransientError
from heldout.models.anthropic import DEFAULT_MAX_TOKENS, AnthropicEndpoint
from heldout.models.http import ServerEndpoint
from heldout.models.responses import ResponsesEndpoint
from heldout.store.jsonl import decode, encode
from heldout.types import Completion, ToolCall, Usage
from tests.faulty_server import KEY, FaultyServer, echo_key, events, status

Body = dict[str, Any]
QUESTION = [Message("user", "2 + 2?")]
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"x": {"type": "integer"}}})
STREAMED = Sampling(stream=True)


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


def ask(
    endpoint: ServerEndpoint,
    messages: Sequence[Message] = QUESTION,
    sampling: Sampling | None = None,
    tools: Sequence[ToolSpec] = (),
    *,
    then: Sequence[Message] = (),
) -> Completion:
    """Asks once; with `then` once more, with the answer and these messages added."""

    async def main() -> Completion:
        try:
            with anyio.fail_after(20):
                turn = await endpoint.complete(messages, sampling or Sampling(), tools)
                if then:
                    longer = [*messages, turn.message, *then]
                    turn = await endpoint.complete(longer, sampling or Sampling(), tools)
                return turn
        finally:
            await endpoint.close()

    return anyio.run(main)


# --- Replies as they are documented -------------------------------------------------------------

USAGE = {
    "input_tokens": 5,
    "output_tokens": 3,
    "cache_creation_input_tokens": 20,
    "cache_read_input_tokens": 100,
}
THINKING = {"type": "thinking", "thinking": "Two and two.", "signature": "c2lnbmVk"}
REDACTED = {"type": "redacted_thinking", "data": "b3BhcXVl"}
TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"x": 1}}


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


def anthropic_text(words: str) -> Body:
    return {"type": "text", "text": words, "citations": None}


def message_events() -> list[Body]:
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
            {**TOOL_USE, "input": {}},
            [
                {"type": "input_json_delta", "partial_json": ""},
                {"type": "input_json_delta", "partial_json": '{"x"'},
                {"type": "input_json_delta", "partial_json": ": 1}"},
            ],
        ),
        ({**TOOL_USE, "id": "toolu_2", "input": {}}, []),
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
    return parts


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


def openai_text(words: str, kind: str = "output_text") -> dict[str, Any]:
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


class Api(NamedTuple):
    """An API, and what a server says in it: an answer, a call, the events of a stream."""

    endpoint: Callable[[str], ServerEndpoint]
    answer: Callable[[str], Body]
    calling: Callable[[str], Body]
    """A turn with reasoning and a call, both with this text in them."""
    events: list[Body]


def calling_anthropic(words: str) -> Body:
    thinking = {**THINKING, "thinking": words}
    return message(thinking, {**TOOL_USE, "input": {"x": words}}, stop_reason="tool_use")


def calling_openai(words: str) -> Body:
    reasoning = {**REASONING, "summary": [{"type": "summary_text", "text": words}]}
    return response(reasoning, {**CALL, "arguments": json.dumps({"x": words})})


WHOLE = response(REASONING, openai_text("4"), CALL)
APIS = {
    "anthropic": Api(
        lambda url: AnthropicEndpoint("claude", url),
        lambda words: message(anthropic_text(words)),
        calling_anthropic,
        message_events(),
    ),
    "responses": Api(
        lambda url: ResponsesEndpoint("gpt", url),
        lambda words: response(openai_text(words)),
        calling_openai,
        [
            {"type": "response.created", "response": response(status="in_progress", usage=None)},
            {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "4"},
            {"type": "response.completed", "response": WHOLE},
        ],
    ),
}


def turn_of(reply: Body) -> list[Body]:
    """The turn in a reply, as it is to be sent back."""
    turn: list[Body] = reply.get("output") or reply["content"]
    return turn


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> Api:
    return APIS[request.param]


def claude(server: FaultyServer) -> ServerEndpoint:
    return APIS["anthropic"].endpoint(server.url)


def gpt(server: FaultyServer) -> ServerEndpoint:
    return APIS["responses"].endpoint(server.url)


# --- Both -----------------------------------------------------------------------------------------


class Weather:
    """Answers the one call of a conversation."""

    tools = (ADD,)
    env_kind, version = "weather", "1.0"

    def opening(self) -> list[Message]:
        return []

    async def reply(self, messages: Sequence[Message]) -> Reply:
        calls = messages[-1].tool_calls
        return Reply([Message("tool", "Sunny.", tool_call_id=c.id) for c in calls])

    def snapshot(self) -> dict[str, Any]:
        return make_snapshot(self, {})

    def restore(self, snapshot: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


async def converse(endpoint: ServerEndpoint, file: TurnFile) -> None:
    """Asks for the weather in Rome, with a call in between."""

    async def policy(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Completion:
        return await endpoint.complete(messages, Sampling(), tools)

    sample = Sample("Rome", {"question": "Rome"})
    attempt = Attempt(sample, policy, max_turns=2, turn_file=file)
    with anyio.fail_after(20):
        await attempt.roll_out([Message("user", "Rome")], Weather())


def turns_sent_back(server: FaultyServer) -> dict[str, Any]:
    """The question of each second request, and the model turn that came back with it."""
    found = {}
    for request in server.requests:
        sent = request.body.get("input") or request.body["messages"]
        if len(sent) > 1:
            question, turn = sent[0]["content"], sent[1:-1]
            if isinstance(question, list):
                question, turn = question[0]["text"], sent[1]["content"]
            found[question] = turn
    return found


def test_a_conversation_that_goes_on_in_another_process_keeps_its_signed_reasoning(
    server: FaultyServer, api: Api, tmp_path: Path
) -> None:
    server.script(
        status(200, api.calling("Rome")), status(401, "no"), status(200, api.answer("Sunny."))
    )
    file = TurnFile(tmp_path / "0-0.json", "run", Sample("Rome", {"question": "Rome"}))

    async def main() -> None:
        endpoint = api.endpoint(server.url)
        try:
            await converse(endpoint, file)
        finally:
            await endpoint.close()

    with pytest.raises(FatalEndpointError):
        anyio.run(main)
    server.requests.clear()
    anyio.run(main)
    assert len(server.requests) == 1
    assert turns_sent_back(server) == {"Rome": turn_of(api.calling("Rome"))}


@pytest.mark.parametrize(
    "changed",
    [
        {"content": "I look it up."},
        {"reasoning": "Oslo"},
        {"tool_calls": (ToolCall("toolu_1", "add", '{"x": "Oslo"}'),)},
        {"api_turn": {"api": "another", "turn": []}},
        {"api_turn": {"api": "anthropic", "turn": [1]}},
        {"api_turn": {"api": "openai-responses", "turn": [{"type": "message", "content": [1]}]}},
    ],
)
def test_a_turn_that_says_something_else_by_now_is_sent_as_the_conversation_has_it(
    server: FaultyServer, api: Api, changed: dict[str, Any]
) -> None:
    server.script(status(200, api.calling("Rome")))
    turn = replace(ask(api.endpoint(server.url), tools=[ADD]).message, **changed)
    ask(api.endpoint(server.url), [*QUESTION, turn], tools=[ADD])
    plain = replace(turn, api_turn=None)
    ask(api.endpoint(server.url), [*QUESTION, plain], tools=[ADD])
    assert server.requests[1].body == server.requests[2].body


def test_a_turn_that_was_stored_in_a_journal_is_still_sent_back_as_it_came(
    server: FaultyServer, api: Api
) -> None:
    # Whose keys are sorted: those of the arguments, too.
    reply = api.calling("Rome")
    for part in turn_of(reply):
        if "arguments" in part:
            part["arguments"] = '{"x": "Rome", "a": 1}'
        if "input" in part:
            part["input"] = {"x": "Rome", "a": 1}
    server.script(status(200, reply))
    completion = ask(api.endpoint(server.url), tools=[ADD])
    turn = completion.message
    [call] = turn.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("add", {"x": "Rome", "a": 1})
    assert (turn.reasoning, completion.finish_reason) == ("Rome", "tool_calls")
    stored = decode(encode(turn, "a turn", "x"), Message)
    assert stored == turn
    ask(api.endpoint(server.url), [*QUESTION, stored, Message("tool", "Sunny.")], tools=[ADD])
    assert [*turns_sent_back(server).values()] == [turn_of(reply)]


def test_a_stream_that_ends_early_is_transient_and_never_an_answer(
    server: FaultyServer, api: Api
) -> None:
    for until in range(len(api.events)):
        cut = status(200, events(*api.events[:until], name=True))
        server.script(status(200, api.answer("I am there.")), cut)
        with pytest.raises(TransientError, match="broke off|is not a "):
            ask(api.endpoint(server.url), sampling=STREAMED, then=QUESTION)


@pytest.mark.parametrize(
    ("name", "event", "raised"),
    [
        ("anthropic", {"error": {"type": "overloaded_error"}}, TransientError),
        ("anthropic", {"error": {"type": "invalid_request_error"}}, EndpointError),
        ("anthropic", {"error": {"type": "authentication_error"}}, FatalEndpointError),
        ("responses", {"code": "server_error", "message": "It went wrong."}, TransientError),
        ("responses", {"error": {"type": "server_error"}}, TransientError),
    ],
)
def test_an_error_in_a_stream_is_that_error(
    server: FaultyServer, name: str, event: Body, raised: type[EndpointError]
) -> None:
    if "error" in event:
        event = {"error": {**event["error"], "message": "It went wrong."}}
    parts = [*APIS[name].events[:2], {"type": "error", **event}]
    server.script(status(200, events(*parts, name=True)))
    with pytest.raises(raised, match="It went wrong") as caught:
        ask(APIS[name].endpoint(server.url), sampling=STREAMED)
    assert isinstance(caught.value, TransientError) == (raised is TransientError)


@pytest.mark.parametrize(
    ("name", "code", "error", "raised"),
    [
        ("anthropic", 400, "messages: too few", EndpointError),
        ("anthropic", 400, "prompt is too long: 9 tokens > 8 maximum", ContextFull),
        ("anthropic", 400, "`temperature` is deprecated for this model.", FatalEndpointError),
        ("anthropic", 401, "invalid x-api-key", FatalEndpointError),
        ("anthropic", 529, "Overloaded", TransientError),
        ("responses", 400, "context_length_exceeded", ContextFull),
        ("responses", 401, "Incorrect API key", FatalEndpointError),
        ("responses", 500, "The server had an error", TransientError),
    ],
)
def test_errors_are_told_apart(
    server: FaultyServer, name: str, code: int, error: str, raised: type[EndpointError]
) -> None:
    body = {"type": "error", "error": {"type": "some_error", "message": error}}
    server.script(status(code, body, headers={"retry-after": "7"}))
    with pytest.raises(EndpointError, match=error) as caught:
        ask(APIS[name].endpoint(server.url))
    assert raised in (type(caught.value), *type(caught.value).__bases__)
    if isinstance(caught.value, TransientError):
        assert caught.value.retry_after == 7.0
    if "temperature" in error:
        assert "sampling.extra_body.temperature=null" in str(caught.value)


def test_malformed_answers_are_transient(server: FaultyServer, api: Api) -> None:
    for body in ("{", "[]", '{"content": "4", "output": "4"}', '{"content": [1], "output": [1]}'):
        server.script(status(200, body))
        with pytest.raises(TransientError):
            ask(api.endpoint(server.url))


def test_a_key_that_comes_back_is_removed_even_from_what_is_remembered(
    server: FaultyServer, api: Api
) -> None:
    for code in (400, 401, 429, 500):
        server.script(echo_key(code))
        with pytest.raises(EndpointError, match=r"bad key: (Bearer )?\[key\]"):
            ask(api.endpoint(server.url))
    leak = api.calling(f"The key is {KEY}.")
    server.script(status(200, leak))
    result = Message("tool", "4", tool_call_id="toolu_1")
    turn = ask(api.endpoint(server.url), tools=[ADD], then=[result]).message
    assert turn.reasoning == "The key is [key]."
    assert json.loads(turn.tool_calls[0].arguments) == {"x": "The key is [key]."}
    assert KEY not in server.requests[-1].raw.decode()


# --- Anthropic ------------------------------------------------------------------------------------


def test_the_request_has_the_documented_form(server: FaultyServer) -> None:
    server.script(status(200, message(anthropic_text("4"))))
    messages = [Message("system", "Be brief."), Message("system", "Be right."), *QUESTION]
    sampling = Sampling(0.5, 0.9, 10, ("END",), 7)
    ask(claude(server), messages, sampling, [ADD])
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
    server: FaultyServer,
) -> None:
    server.script(status(200, message(anthropic_text("4"))))
    ask(claude(server))
    thinking = {"type": "enabled", "budget_tokens": 1024}
    ask(claude(server), sampling=Sampling(extra_body={"thinking": thinking, "temperature": None}))
    plain, thoughtful = (request.body for request in server.requests)
    assert plain["max_tokens"] == DEFAULT_MAX_TOKENS
    assert thoughtful["max_tokens"] == DEFAULT_MAX_TOKENS + 1024
    assert thoughtful["thinking"] == thinking
    assert "temperature" not in thoughtful  # null leaves a field out
    assert AnthropicEndpoint("claude").describe()["default_max_tokens"] == DEFAULT_MAX_TOKENS


def test_images_become_blocks(server: FaultyServer) -> None:
    server.script(status(200, message(anthropic_text("a cat"))))
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "image_url", "image_url": {"url": "https://host/cat.png", "detail": "low"}},
    ]
    ask(claude(server), [Message("user", parts)])
    base64 = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    assert server.requests[0].body["messages"][0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image", "source": base64},
        {"type": "image", "source": {"type": "url", "url": "https://host/cat.png"}},
    ]


def test_calls_and_results_of_another_model_are_converted(server: FaultyServer) -> None:
    server.script(status(200, message(anthropic_text("4"))))
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
    ask(claude(server), messages, tools=[ADD])
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


def test_an_answer_is_read_with_its_thinking_and_all_of_its_tokens(server: FaultyServer) -> None:
    server.script(
        status(200, message(THINKING, REDACTED, anthropic_text("It is "), anthropic_text("4.")))
    )
    turn = Message("assistant", "It is 4.", reasoning="Two and two.")
    assert ask(claude(server)) == Completion(turn, "stop", Usage(125, 3))


def test_stop_reasons_have_the_names_of_chat_completions(server: FaultyServer) -> None:
    reasons = {
        "end_turn": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
        "refusal": "refusal",
        "pause_turn": "pause_turn",
    }
    for stop_reason, finish_reason in reasons.items():
        server.script(status(200, message(anthropic_text("I"), stop_reason=stop_reason)))
        assert ask(claude(server)).finish_reason == finish_reason


def test_a_stream_gives_the_turn_that_would_have_come_whole(server: FaultyServer) -> None:
    result = Message("tool", "4", tool_call_id="toolu_1")
    server.script(status(200, events(*message_events(), name=True)))
    turn = ask(claude(server), sampling=STREAMED, tools=[ADD], then=[result])
    calls = (ToolCall("toolu_1", "add", '{"x": 1}'), ToolCall("toolu_2", "add", "{}"))
    expected = Message("assistant", "I ädd.", tool_calls=calls, reasoning="Two and two.")
    assert turn == Completion(expected, "tool_calls", Usage(125, 3))
    assert server.requests[0].body["stream"] is True
    assert server.requests[1].body["messages"][1]["content"][0] == THINKING


@pytest.mark.parametrize("cut", ['{"x": "Ro', '"Rome"'])
def test_a_call_that_a_stream_cuts_off_is_a_truncated_turn_with_what_was_written(
    server: FaultyServer, cut: str
) -> None:
    *parts, ending, stop = message_events()
    for part in parts:
        if part.get("delta", {}).get("partial_json"):
            part["delta"]["partial_json"] = ""
    last = {"type": "input_json_delta", "partial_json": cut}
    parts.append({"type": "content_block_delta", "index": 3, "delta": last})
    ending["delta"]["stop_reason"] = "max_tokens"
    server.script(status(200, events(*parts, ending, stop, name=True)))
    result = Message("tool", "no such city", tool_call_id="toolu_2")
    turn = ask(claude(server), sampling=STREAMED, tools=[ADD], then=[result])
    assert turn.finish_reason == "length"
    assert [call.arguments for call in turn.message.tool_calls] == ["{}", cut]
    thinking, *_, call = server.requests[1].body["messages"][1]["content"]
    assert thinking == THINKING
    assert call["input"] == {"arguments": "Rome" if cut == '"Rome"' else cut}


# --- Responses ------------------------------------------------------------------------------------


def test_the_request_of_a_response_has_the_documented_form(server: FaultyServer) -> None:
    server.script(status(200, response(openai_text("4"))))
    image = {"type": "image_url", "image_url": {"url": "https://host/cat.png", "detail": "low"}}
    messages = [
        Message("system", "Be brief."),
        Message("user", [{"type": "text", "text": "What is it?"}, image]),
        Message("assistant", "I add.", tool_calls=(ToolCall("a", "add", '{"x": 1}'),)),
        Message("tool", "4", tool_call_id="a"),
    ]
    ask(gpt(server), messages, Sampling(0.5, 0.9, 16), [ADD])
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
                    {"type": "input_image", "image_url": "https://host/cat.png", "detail": "low"},
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


def test_stop_texts_are_refused_since_the_api_has_none(server: FaultyServer) -> None:
    with pytest.raises(FatalEndpointError, match="no stop texts"):
        ask(gpt(server), sampling=Sampling(stop=("END",)))


@pytest.mark.parametrize("encrypted", [None, "opaque"])
def test_nothing_refers_to_items_that_the_server_does_not_store(
    server: FaultyServer, encrypted: str | None
) -> None:
    reasoning = {**REASONING, "encrypted_content": encrypted}
    server.script(status(200, response(reasoning, CALL)), status(200, response(openai_text("4"))))
    result = Message("tool", "4", tool_call_id="call_1")
    ask(gpt(server), sampling=Sampling(extra_body={"store": False}), tools=[ADD], then=[result])
    call = {key: value for key, value in CALL.items() if key != "id"}
    expected = [reasoning, call] if encrypted else [call]
    assert server.requests[1].body["input"][1:-1] == expected
    assert server.requests[1].body["store"] is False


def test_an_answer_is_read_with_its_reasoning_and_usage(server: FaultyServer) -> None:
    server.script(status(200, response(REASONING, openai_text("4"))))
    turn = Message("assistant", "4", reasoning="Two and two.\n\nSo four.")
    assert ask(gpt(server)) == Completion(turn, "stop", Usage(5, 3))


def test_a_response_says_why_it_ended(server: FaultyServer) -> None:
    for reason, finish_reason in (
        ("max_output_tokens", "length"),
        ("content_filter", "content_filter"),
    ):
        more = {"status": "incomplete", "incomplete_details": {"reason": reason}}
        server.script(status(200, response(openai_text("The answer"), **more)))
        turn = ask(gpt(server))
        assert (turn.message.text, turn.finish_reason) == ("The answer", finish_reason)
    server.script(status(200, response(openai_text("I cannot.", "refusal"))))
    turn = ask(gpt(server))
    assert (turn.message.text, turn.finish_reason) == ("I cannot.", "refusal")
    server.script(status(200, response(openai_text("The"), status="in_progress")))
    with pytest.raises(EndpointError, match="in_progress"):
        ask(gpt(server))


@pytest.mark.parametrize(
    ("code", "raised"), [("server_error", TransientError), ("invalid_prompt", EndpointError)]
)
def test_a_failed_response_is_an_error(
    server: FaultyServer, code: str, raised: type[EndpointError]
) -> None:
    error = {"code": code, "message": "It went wrong."}
    server.script(status(200, response(status="failed", error=error)))
    with pytest.raises(raised, match="It went wrong") as caught:
        ask(gpt(server))
    assert isinstance(caught.value, TransientError) == (raised is TransientError)


def test_a_stream_of_a_response_gives_the_same_turn(server: FaultyServer) -> None:
    server.script(status(200, events(*APIS["responses"].events, name=True)))
    streamed = ask(gpt(server), sampling=STREAMED)
    server.script(status(200, WHOLE))
    assert streamed == ask(gpt(server))
    assert [request.body["stream"] for request in server.requests] == [True, False]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_response_that_ends_at_the_limit_says_so_whatever_is_cut_off(
    server: FaultyServer, streamed: bool
) -> None:
    more = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    cut = {**CALL, "arguments": '{"x": "Ro', "status": "incomplete"}
    whole = response(openai_text("4"), cut, **more)
    ending = events({"type": "response.incomplete", "response": whole}, name=True)
    server.script(status(200, ending if streamed else whole))
    turn = ask(gpt(server), sampling=Sampling(stream=streamed))
    assert (turn.finish_reason, turn.message.tool_calls[0].arguments) == ("length", '{"x": "Ro')
