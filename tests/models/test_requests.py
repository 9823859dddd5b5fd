"""Whole requests to a real server, under asyncio and trio."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from heldout import EvalConfig, EvalReport, Metric, Sample, Sampling, Score, evaluate
from heldout.errors import EndpointError, FatalEndpointError, InvalidInput, TransientError
from heldout.models.http import completion_of
from heldout.models.requests import RequestsEndpoint, as_sent, open_requests
from heldout.types import Completion, Message, ToolCall, Usage
from tests.faulty_server import FaultyServer, answer, echo_key, status

Run = Callable[..., Any]


ASKED = {
    "model": "theirs",
    "messages": [
        {"role": "_input", "content": "Be brief.", "name": "x"},
        {"role": "user", "content": "2 + 2?"},
    ],
    "temperature": 1,
    "top_k": 5,
    "big": 2**70,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def item_of(endpoint: RequestsEndpoint, index: int) -> Callable[[], Any]:
    async def main() -> Completion:
        try:
            with anyio.fail_after(20), endpoint.item(index, 0) as own:
                return await own([Message("user", "unused")], Sampling(), ())
        finally:
            await endpoint.close()

    return main


def test_only_model_role_and_stream_change_on_the_way() -> None:
    given = copy.deepcopy(ASKED)
    sent = as_sent(given, "ours")
    assert sent == {
        "model": "ours",
        "messages": [
            {"role": "system", "content": "Be brief.", "name": "x"},
            {"role": "user", "content": "2 + 2?"},
        ],
        "temperature": 1,
        "top_k": 5,
        "big": 2**70,
        "stream": False,
    }
    assert given == ASKED  # and is as it was


def test_each_item_is_answered_by_its_own_request(run: Run, server: FaultyServer) -> None:
    other = {"messages": [{"role": "user", "content": "3 + 3?"}]}
    endpoint = open_requests(f"openai:m@{server.url}", [ASKED, other], max_concurrent=2)
    server.behave = lambda request: answer(lambda r: r.text)
    assert run(item_of(endpoint, 1)).message.text == "3 + 3?"
    assert run(item_of(endpoint, 0)).message.text == "2 + 2?"
    assert [r.body["model"] for r in server.requests] == ["m", "m"]
    assert "temperature" not in server.requests[0].body  # which is not ours to set


def test_failures_are_those_of_any_request_and_the_key_stays_out_of_them(
    run: Run, server: FaultyServer, key: str
) -> None:
    endpoint = open_requests(f"openai:m@{server.url}", [ASKED], max_concurrent=1)
    for code, kind in ((429, TransientError), (400, EndpointError), (401, FatalEndpointError)):
        server.script(echo_key(code))
        with pytest.raises(kind) as caught:
            run(item_of(endpoint, 0))
        assert key not in str(caught.value)


def test_an_eval_of_requests_runs_like_any_other(
    run: Run, server: FaultyServer, tmp_path: Any
) -> None:
    samples = [Sample(str(i), {"messages": [{"role": "user", "content": str(i)}]}) for i in (0, 1)]
    server.behave = lambda r: status(400, "no") if r.text == "1" else answer("yes")

    async def main() -> EvalReport:
        requests = [sample.input for sample in samples]
        endpoint = open_requests(f"openai:m@{server.url}", requests, max_concurrent=2)
        config = EvalConfig(endpoint, "run", output_dir=str(tmp_path), max_error_rate=1)
        try:
            return await evaluate(
                samples, config, lambda t, s: Score((Metric("yes", t.answer == "yes", 1.0),))
            )
        finally:
            await endpoint.close()

    report = run(main)
    assert (report.summary["n_scored"], report.summary["n_errors"]) == (1, 1)
    assert report.config["endpoint"] == {
        "kind": "openai",
        "model": "m",
        "base_url": server.url,
        "asked": "whole requests, with their own sampling",
    }


@pytest.mark.parametrize("given", ["smollm2", "hf:folder", "openai:", "gpt", ""])
def test_only_servers_answer_whole_requests(given: str) -> None:
    with pytest.raises(InvalidInput, match="openai:MODEL@http://host/v1; got"):
        open_requests(given, [], max_concurrent=1)


def test_a_stored_reply_is_read_as_one_from_the_wire() -> None:
    call = {"id": None, "function": {"name": "f", "arguments": {"a": 1}}}
    message = {"content": None, "tool_calls": [call, {"function": {"name": "g"}}]}
    reply = {
        "choices": [{"finish_reason": "tool_calls", "message": message}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    calls = (ToolCall("call00000", "f", '{"a": 1}'), ToolCall("call00001", "g", "{}"))
    assert completion_of(reply) == Completion(
        Message("assistant", "", calls), "tool_calls", Usage(3, 4)
    )


@pytest.mark.parametrize("reply", [None, {}, {"choices": []}, {"choices": [{}]}, {"error": "x"}])
def test_what_is_no_chat_completion_is_refused(reply: Any) -> None:
    with pytest.raises(InvalidInput, match="a chat completion"):
        completion_of(reply)


def test_arguments_that_are_no_object_reach_whoever_judges_them(
    run: Run, server: FaultyServer
) -> None:
    calls = [{"function": {"name": "f", "arguments": given}} for given in (["a"], [], 7, None)]
    server.script(answer(None, finish_reason="tool_calls", tool_calls=calls))
    endpoint = open_requests(f"openai:m@{server.url}", [ASKED], max_concurrent=1)
    message = run(item_of(endpoint, 0)).message
    assert [call.arguments for call in message.tool_calls] == ['["a"]', "[]", "7", "{}"]
