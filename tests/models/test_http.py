"""The HTTP endpoint against a real server that misbehaves.

Under trio the same client runs in a thread, so only what waits, fails to connect or is cancelled
is tested under both event loops.
"""

from __future__ import annotations

import base64
import email.utils
import gc
import gzip
import json
import logging
import re
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import heldout.models.retries as retries
from heldout import EvalReport, Message, Sample, Sampling, ToolSpec
from heldout._core.config import check_endpoint
from heldout.errors import (
    ContextFull,
    EndpointError,
    EvalFailed,
    FatalEndpointError,
    InvalidInput,
    SystemicFailure,
    TransientError,
    Unreachable,
)
from heldout.models import http
from heldout.models.http import HTTPEndpoint
from heldout.models.retries import with_retries
from heldout.reporting.blocks import Line
from heldout.reporting.summaries import build_report
from heldout.types import Completion, Stop, ToolCall, Usage
from tests import faulty_server as faulty
from tests.conftest import both_loops
from tests.faulty_server import Action, FaultyServer, Request, answer, closed_port, drop, status
from tests.models.asking import QUESTION, Tool, completing, evaluating, right

Run = Callable[..., Any]


GREEDY = Sampling()


async def ask(endpoint: HTTPEndpoint, text: str = "2 + 2?", **more: Any) -> Completion:
    with anyio.fail_after(20):
        return await endpoint.complete([Message("user", text)], GREEDY, more.get("tools", ()))


def asked_once(url: str, **more: Any) -> Callable[[], Any]:
    return completing(HTTPEndpoint("m", url, **more))


def with_waits(url: str, retries: int = 4, *, heard: bool = False) -> Callable[[], Any]:
    """Asks with retries; the waits between them are noted instead of waited."""

    async def main() -> tuple[Completion | EndpointError, list[float]]:
        waits: list[float] = []

        async def sleep(seconds: float) -> None:
            waits.append(seconds)

        endpoint = HTTPEndpoint("m", url)
        try:
            if heard:
                await ask(endpoint, "are you there?")
            with anyio.fail_after(20):
                completion = await with_retries(
                    lambda: endpoint.complete(QUESTION, GREEDY, ()), retries, sleep=sleep
                )
                return completion, waits
        except EndpointError as problem:
            return problem, waits
        finally:
            await endpoint.close()

    return main


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backoff in hundredths of what it is."""
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.005)


def samples(number: int) -> list[Sample]:
    return [Sample(f"s{i}", {"prompt": f"item {i}"}, f"re: item {i}") for i in range(number)]


def evaluated(
    asked: Sequence[Sample], url: str, folder: Path, **settings: Any
) -> Callable[[], Any]:
    settings = {"timeout": 10.0, "retries": 2, "max_concurrent": 4, **settings}
    return evaluating(asked, f"openai:m@{url}", folder, **settings)


REPEATED = answer(lambda request: f"re: {request.text}")


# --- An answer ----------------------------------------------------------------------------------


@both_loops
def test_an_answer_is_read_with_its_finish_reason_and_usage(run: Run, server: FaultyServer) -> None:
    server.script(
        answer(
            "fö", finish_reason="length", usage={"prompt_tokens": 7, "completion_tokens": 3, "x": 1}
        )
    )
    completion = run(asked_once(server.url))
    assert completion == Completion(Message("assistant", "fö"), "length", Usage(7, 3))


def test_tool_calls_come_without_content_and_keep_their_arguments_as_text(
    run: Run, server: FaultyServer
) -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}},
        {"type": "function", "function": {"name": "now"}},
    ]
    server.script(answer(None, finish_reason="tool_calls", tool_calls=calls))
    message = run(asked_once(server.url)).message
    assert message.content == ""
    assert message.tool_calls == (ToolCall("a", "add", '{"x": 1}'), ToolCall("call00001", "now"))


def test_the_request_carries_everything_that_was_asked_for(
    run: Run, server: FaultyServer, key: str
) -> None:
    messages = [
        Message("system", "Be brief."),
        Message("assistant", "", tool_calls=(ToolCall("a", "add", '{"x": 1}'),)),
        Message("tool", "1", tool_call_id="a"),
        Message("user", [{"type": "text", "text": "And?"}]),
    ]
    extra = {"reasoning_effort": "low"}
    sampling = Sampling(0.7, top_p=0.9, max_tokens=12, stop=("\n", "END"), seed=5, extra_body=extra)
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}

    tools = [ToolSpec("add", "Adds.", schema)]
    run(completing(HTTPEndpoint("org/m", server.url + "/"), messages, sampling, tools))
    [request] = server.requests
    assert (request.method, request.target) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == f"Bearer {key}"
    assert request.headers["content-type"] == "application/json"
    function = {"name": "add", "description": "Adds.", "parameters": schema}
    called = {"name": "add", "arguments": '{"x": 1}'}
    assert request.body == {
        "model": "org/m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "a", "type": "function", "function": called}],
            },
            {"role": "tool", "content": "1", "tool_call_id": "a"},
            {"role": "user", "content": [{"type": "text", "text": "And?"}]},
        ],
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 12,
        "stop": ["\n", "END"],
        "seed": 5,
        "stream": False,
        "tools": [{"type": "function", "function": function}],
        "reasoning_effort": "low",
    }


def test_a_conversation_with_tools_comes_back_to_the_server_as_it_was(
    run: Run, server: FaultyServer, tmp_path: Path
) -> None:
    field = "reasoning_content"
    called = {"type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    server.script(
        answer(None, tool_calls=[called], **{field: "I add."}),
        answer("Again.", tool_calls=[called, called]),
        answer("2", **{field: "done"}),
    )
    asked = [Sample("a", {"prompt": "1 + 1?"}, "2")]
    hooks = right, None, lambda _: Tool()
    report = run(evaluating(asked, f"openai:m@{server.url}", tmp_path, *hooks))
    assert report.results[0].trajectory.stop == Stop("environment", finish_reason="stop")
    assert report.results[0].trajectory.messages[-1].reasoning == "done"
    assert report.summary["mean"] == 1.0
    first, second, third = [request.body for request in server.requests]
    assert first["tools"] == second["tools"] == third["tools"]
    assert second["messages"] == [
        {"role": "user", "content": "1 + 1?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call00000", **called}],
            field: "I add.",
        },
        {"role": "tool", "content": "0", "tool_call_id": "call00000"},
    ]
    # What the server gave no ids is numbered on, and each result names its call.
    assert third["messages"][:3] == second["messages"]
    assert third["messages"][3] == {
        "role": "assistant",
        "content": "Again.",
        "tool_calls": [{"id": "call00001", **called}, {"id": "call00002", **called}],
    }
    assert [m["tool_call_id"] for m in third["messages"][4:]] == ["call00001", "call00002"]


def test_reasoning_goes_back_under_the_name_that_it_came_with_whatever_other_turns_had(
    run: Run, server: FaultyServer
) -> None:
    # As with a gateway that has several engines behind it.
    called = {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    server.script(
        answer(None, tool_calls=[called], reasoning_content="I add."),
        answer(None, tool_calls=[called], reasoning="I add, too."),
        answer("2"),
    )

    async def main() -> None:
        endpoint = HTTPEndpoint("m", server.url)
        with anyio.fail_after(20):
            turns = [(await ask(endpoint)).message for _ in range(2)]
            for turn in turns:
                await endpoint.complete([turn], GREEDY, ())
        await endpoint.close()

    run(main)
    sent = [request.body["messages"][0] for request in server.requests[2:]]
    names = [sorted(name for name in message if "reasoning" in name) for message in sent]
    assert names == [["reasoning_content"], ["reasoning"]]


def test_reasoning_is_not_sent_to_a_server_that_sends_none(run: Run, server: FaultyServer) -> None:
    calls = (ToolCall("a", "f"),)
    messages = [
        Message("user", "x"),
        Message("assistant", "", tool_calls=calls, reasoning="hm"),
        Message("tool", "1", tool_call_id="a"),
    ]

    run(completing(HTTPEndpoint("m", server.url), messages))
    assert sorted(server.requests[0].body["messages"][1]) == ["content", "role", "tool_calls"]


def test_what_was_not_set_is_left_to_the_server(
    run: Run, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    run(asked_once(server.url))
    [request] = server.requests
    assert sorted(request.body) == ["messages", "model", "stream", "temperature"]
    assert "authorization" not in request.headers


def test_a_compressed_answer_is_unpacked(server: FaultyServer) -> None:
    body = gzip.compress(json.dumps({"choices": [{"message": {"content": "4"}}]}).encode())
    server.script(status(200, body, headers={"content-encoding": "gzip"}))
    assert anyio.run(asked_once(server.url)).message.content == "4"


# --- What is tried again ------------------------------------------------------------------------

TRANSIENT: dict[str, Action] = {
    "408": status(408),
    "429": status(429, {"error": {"message": "slow down"}}),
    "503": status(503, {"error": "loading"}),
    "529": status(529),
    "dropped before the headers": drop("before_headers"),
    "dropped in the headers": drop("in_headers"),
    "dropped in a chunk": drop("mid_chunks"),
    "not HTTP": faulty.raw(b"220 mail.example ESMTP ready\r\n"),
    "not JSON": status(200, "<html>welcome</html>"),
    "nothing at all": status(200, ""),
    "not UTF-8": status(200, b'{"choices": [{"message": {"content": "\xff"}}]}'),
    "JSON of another shape": status(200, {"choices": {"message": 4}}),
    "an error as 200": status(200, {"error": {"message": "overloaded"}}),
    "a text that is no text": status(200, {"choices": [{"message": {"content": 4}}]}),
    "half of a gzip": status(
        200, gzip.compress(b"{}" * 100)[:-9], headers={"content-encoding": "gzip"}
    ),
    "more tokens than there can be": answer(usage={"prompt_tokens": 2**63, "completion_tokens": 1}),
    "fewer tokens than none": answer(usage={"prompt_tokens": 5, "completion_tokens": -1}),
    "a whole reply in a gzip without its end": status(
        200,
        gzip.compress(b'{"choices": [{"message": {"content": "4"}}]}')[:-8],
        headers={"content-encoding": "gzip"},
    ),
    "a compression that was not asked for": status(
        200, b"\x0b\x02", headers={"content-encoding": "br"}
    ),
    "not the compression it says": status(
        200, b"plainly not gzip", headers={"content-encoding": "gzip"}
    ),
}


@pytest.mark.parametrize("fault", TRANSIENT)
def test_a_transient_fault_is_tried_again_after_growing_waits_and_given_up_in_the_end(
    run: Run, server: FaultyServer, fault: str
) -> None:
    server.script(TRANSIENT[fault], TRANSIENT[fault], answer("4"))
    completion, waits = run(with_waits(server.url))
    assert isinstance(completion, Completion), completion
    assert completion.message.content == "4"
    assert len(server.requests) == 3
    assert len(waits) == 2
    assert 0.25 <= waits[0] <= 0.5 <= waits[1] <= 1.0

    server.script(answer(), TRANSIENT[fault])
    problem, waits = run(with_waits(server.url, retries=3, heard=True))
    assert type(problem) is TransientError
    assert len(waits) == 3
    assert len(server.requests) == 3 + 1 + 4
    assert str(problem).startswith(server.url)
    assert len(str(problem)) < 1000


def test_an_item_that_stays_faulty_is_that_items_error_alone(
    run: Run, server: FaultyServer, tmp_path: Path, quick: None
) -> None:
    bad = {f"item {2 * i + 1}": action for i, action in enumerate(TRANSIENT.values())}
    server.behave = lambda request: bad.get(request.text, REPEATED)
    report = run(evaluated(samples(2 * len(bad)), server.url, tmp_path))
    assert (report.summary["n_scored"], report.summary["n_errors"]) == (len(bad), len(bad))
    assert report.summary["mean"] == 0.5
    assert report.summary["mean_scored"] == 1.0
    for result in report.results[1::2]:
        assert str(result.error).startswith(f"endpoint: {server.url}")
        assert result.trajectory.timing.requests == 3


def test_the_waits_stop_growing_at_a_minute(run: Run) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def fail() -> None:
        raise TransientError("busy")

    with pytest.raises(TransientError):
        run(partial(with_retries, fail, 1030, sleep=sleep))  # 2**1024 is no float
    assert len(waits) == 1030
    assert max(waits) <= 60.0
    assert all(wait >= 30.0 for wait in waits[-5:])


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({"Retry-After": "7"}, 7.0, 7.0),
        ({"Retry-After": "1.5"}, 1.5, 1.5),
        ({"retry-after-ms": "2500", "retry-after": "9"}, 2.5, 2.5),
        ({"Retry-After": "DATE"}, 27.0, 30.0),
        ({"Retry-After": "0"}, 0.25, 0.5),
        ({"Retry-After": "soon"}, 0.25, 0.5),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.25, 0.5),
    ],
)
def test_the_wait_the_server_asks_for_is_kept(
    run: Run, server: FaultyServer, headers: dict[str, str], low: float, high: float
) -> None:
    date = email.utils.formatdate(time.time() + 30, usegmt=True)
    given = {name: value.replace("DATE", date) for name, value in headers.items()}
    server.script(status(429, headers=given), answer())
    _, waits = run(with_waits(server.url))
    assert len(waits) == 1
    assert low <= waits[0] <= high


# --- What ends one item -------------------------------------------------------------------------

OF_THE_ITEM: dict[str, tuple[Action, str]] = {
    "400": (status(400, {"error": {"message": "the image was not found"}}), "image was not found"),
    "413": (status(413), "413: (empty body)"),
    "422": (status(422, {"detail": "no"}), '422: {"detail": "no"}'),
    "no choices": (status(200, {"choices": []}), "without choices"),
}


@pytest.mark.parametrize("fault", OF_THE_ITEM)
def test_what_another_try_cannot_help_is_not_tried_again(
    run: Run, server: FaultyServer, tmp_path: Path, fault: str
) -> None:
    bad, reason = OF_THE_ITEM[fault]
    server.behave = lambda request: bad if request.text == "item 1" else REPEATED
    report = run(evaluated(samples(4), server.url, tmp_path))
    assert reason in str(report.results[1].error)
    assert report.summary["n_errors"] == 1
    assert len(server.requests) == 4


BLANKS = b" " * 2**24
EVENT = b'data: {"choices": [{"delta": {"content": "xxxxxxxx"}}]}\n\n' * 1000
TOO_LARGE: dict[str, Callable[[list[int]], Action]] = {
    "a body": lambda sent: faulty.endless(sent=sent),
    "a stream": lambda sent: faulty.endless(EVENT, sent=sent),
    "a gzip": lambda sent: status(200, gzip.compress(BLANKS), headers={"content-encoding": "gzip"}),
    "the body of an error": lambda sent: status(500, BLANKS),
}


@pytest.mark.parametrize("what", TOO_LARGE)
def test_a_reply_above_the_limit_is_not_read_on_and_is_the_items_error(
    run: Run, server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(http, "MAX_REPLY_BYTES", 1_000_000)
    sent: list[int] = []
    bad = TOO_LARGE[what](sent)
    server.behave = lambda request: bad if request.text == "item 1" else REPEATED
    report = run(evaluated(samples(3), server.url, tmp_path))
    error = str(report.results[1].error)
    assert "more than 1 MB" in error
    assert "MAX_REPLY_BYTES" in error
    assert report.summary["n_errors"] == 1
    assert len(server.requests) == 3
    assert sum(sent) < 20_000_000  # what fits into the buffers of sockets, which Linux lets grow


def test_a_reply_is_64_megabytes_at_most_unless_set() -> None:
    assert http.MAX_REPLY_BYTES == 64_000_000


OPENAI = "This model's maximum context length is 8192 tokens. However, you requested 9000."
TOO_LONG: dict[str, Action] = {
    "OpenAI": status(400, {"error": {"message": "no", "code": "context_length_exceeded"}}),
    "OpenAI's words": status(400, {"error": {"message": OPENAI}}),
    "vLLM": status(
        400,
        {"error": {"message": "The decoder prompt (length 9) is longer than the maximum model "
                   "length of 8. Make sure that `max_model_len` is no smaller."}},
    ),
    "older vLLM": status(400, {"object": "error", "message": OPENAI, "code": 400}),
    "SGLang": status(
        400,
        {"object": "error", "message": "The input (61709 tokens) is longer than the model's "
         "context length (40960 tokens)."},
    ),
    "llama.cpp": status(
        400,
        {"error": {"code": 400, "message": "request (4390 tokens) exceeds the available context "
                   "size (4096 tokens), try increasing it", "type": "exceed_context_size_error"}},
    ),
    "llama.cpp, on the way": status(
        500, {"error": {"message": "Context size has been exceeded.", "type": "server_error"}}
    ),
    "TGI": status(422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 1"}),
    "Anthropic": status(400, {"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}}),
    "Gemini": status(
        400,
        {"error": {"message": "The input token count (9) exceeds the maximum number of tokens"}},
    ),
    "xAI": status(400, {"error": "This model's maximum prompt length is 8 but the request has 9"}),
}  # fmt: skip


def test_a_conversation_that_is_too_long_is_told_by_what_the_server_says(
    run: Run, server: FaultyServer
) -> None:
    for who, answered in TOO_LONG.items():
        server.script(answered)
        problem, waits = run(with_waits(server.url))
        assert type(problem) is ContextFull, who
        assert str(problem).startswith(server.url)
        assert waits == []


@both_loops
def test_a_server_that_hangs_costs_the_item_its_timeout(
    run: Run, server: FaultyServer, tmp_path: Path
) -> None:
    stuck = {"item 1": faulty.hang("before_headers"), "item 2": faulty.hang("after_headers")}
    server.behave = lambda request: stuck.get(request.text, REPEATED)
    report = run(evaluated(samples(6), server.url, tmp_path, timeout=1.0))
    errors = [result.error for result in report.results]
    timeout = "timeout: not done after 1 s (in endpoint)"
    assert errors == [None, timeout, timeout, None, None, None]
    assert len(server.requests) == 6


def test_a_timeout_says_what_the_server_had_answered_before(
    run: Run, server: FaultyServer, tmp_path: Path
) -> None:
    busy = status(429, {"error": {"message": "busy"}}, headers={"retry-after": "3600"})
    server.behave = lambda request: busy if request.text == "item 1" else REPEATED
    report = run(evaluated(samples(3), server.url, tmp_path, timeout=1.0))
    error = str(report.results[1].error)
    assert error.startswith("timeout: not done after 1 s (in endpoint); the last answer was: ")
    assert error.endswith("answered 429: busy")


def test_a_trickle_without_end_stops_at_the_timeout(
    run: Run, server: FaultyServer, tmp_path: Path, quick: None
) -> None:
    endless = {"item 1": faulty.endless(b" ", pause=0.01), "item 2": faulty.endless_headers()}
    server.behave = lambda request: endless.get(request.text, REPEATED)
    report = run(evaluated(samples(4), server.url, tmp_path, timeout=1.0))
    errors = [result.error for result in report.results]
    assert (errors[0], errors[3]) == (None, None)
    assert errors[1] == "timeout: not done after 1 s (in endpoint)"
    # Headers have a bound of their own in one of the libraries.
    assert re.match(r"timeout: not done|endpoint: ", str(errors[2]))


# --- What ends the run --------------------------------------------------------------------------

FATAL: dict[str, tuple[Action, str]] = {
    "401": (status(401, {"error": {"message": "who?"}}), "who? (sent the key in OPENAI_API_KEY)"),
    "403": (status(403, "no"), "403: no"),
    "404": (status(404, {"error": {"message": "no model"}}), "(model 'm'; is it served there?)"),
    "400 for the model": (
        status(400, {"error": {"message": "The model `m` does not exist"}}),
        "(model 'm'; is it served there?)",
    ),
    "400 by code": (
        status(400, {"message": "Invalid", "type": "invalid_model"}),
        "(model 'm'; is it served there?)",
    ),
    "302": (status(302, headers={"location": "http://elsewhere.invalid/"}), "a redirect"),
    "308": (status(308, headers={"location": "/v2/chat/completions"}), "a redirect"),
}


@pytest.mark.parametrize("fault", FATAL)
def test_a_refusal_of_everything_ends_the_run_at_once(
    run: Run, server: FaultyServer, tmp_path: Path, fault: str
) -> None:
    refusal, reason = FATAL[fault]
    server.script(refusal)
    with pytest.raises(SystemicFailure, match=re.escape(reason)) as caught:
        run(evaluated(samples(200), server.url, tmp_path, max_concurrent=3))
    assert 1 <= len(server.requests) <= 3
    assert caught.value.run_dir == tmp_path / "run"
    assert isinstance(caught.value.__cause__, FatalEndpointError)


def test_a_403_after_something_was_allowed_is_the_items_own(
    run: Run, server: FaultyServer, tmp_path: Path
) -> None:
    flagged = status(403, {"error": {"message": "flagged by moderation"}})
    server.behave = lambda request: flagged if request.text == "item 3" else REPEATED
    report = run(evaluated(samples(6), server.url, tmp_path, max_concurrent=1))
    assert [r.ok for r in report.results] == [True, True, True, False, True, True]
    assert "flagged by moderation" in str(report.results[3].error)


REFUSALS: dict[str, Action] = {
    "404": status(404, {"error": {"message": "No endpoints found that support image input"}}),
    "400 for the model": status(400, {"error": {"message": "model not found for this input"}}),
    "422 for a field": status(422, {"error": {"message": "Unsupported value: 'temperature'"}}),
}


@pytest.mark.parametrize("fault", REFUSALS)
def test_what_is_refused_after_an_answer_is_the_items_own_error(
    run: Run, server: FaultyServer, tmp_path: Path, fault: str
) -> None:
    refusal = REFUSALS[fault]
    server.behave = lambda request: refusal if request.text == "item 3" else REPEATED
    report = run(evaluated(samples(6), server.url, tmp_path, max_concurrent=1))
    assert [r.ok for r in report.results] == [True, True, True, False, True, True]
    # Resumed, the refused item is the first that is asked.
    report = run(evaluated(samples(6), server.url, tmp_path, max_concurrent=1, resume=True))
    assert [r.ok for r in report.results] == [True, True, True, False, True, True]
    assert [request.text for request in server.requests[6:]] == ["item 3"]


def test_a_model_that_only_fails_after_its_first_answers_is_said(
    run: Run, server: FaultyServer, tmp_path: Path
) -> None:
    server.script(REPEATED, REPEATED, then=FATAL["404"][0])
    with pytest.raises(SystemicFailure, match=r"is it served there\?") as caught:
        run(evaluated(samples(9), server.url, tmp_path, max_concurrent=1, max_error_rate=0.1))
    assert "7 of 9" in str(caught.value)


def test_a_long_reply_is_redacted_and_read_in_a_thread(run: Run, server: FaultyServer) -> None:
    threads: list[int] = []

    class Watched(HTTPEndpoint):
        def _redact(self, content: bytes) -> bytes:
            threads.append(threading.get_ident())
            return super()._redact(content)

    text = "\\" * 1_000_000
    server.script(answer(text), answer("short"))
    assert run(completing(Watched("m", server.url))).message.content == text
    assert run(completing(Watched("m", server.url))).message.content == "short"
    assert [thread == threading.get_ident() for thread in threads] == [False, True]


def test_an_address_nobody_answers_at_ends_the_run_early(
    run: Run, tmp_path: Path, quick: None
) -> None:
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}/v1"
        with pytest.raises(SystemicFailure, match="nothing answers at") as caught:
            run(evaluated(samples(500), url, tmp_path, retries=1))
    assert isinstance(caught.value.__cause__, Unreachable)
    lines = (tmp_path / "run" / "results.jsonl").read_bytes().splitlines()
    assert len(lines) < 30


@pytest.mark.parametrize("fault", ["503", "not HTTP"])
def test_a_server_that_never_answered_anything_ends_the_run_early(
    run: Run, server: FaultyServer, tmp_path: Path, quick: None, fault: str
) -> None:
    server.script(TRANSIENT[fault])
    with pytest.raises(SystemicFailure, match="the server has answered nothing else yet; is 'm'"):
        run(evaluated(samples(500), server.url, tmp_path, retries=1))
    assert len(server.requests) <= (10 + 4) * 2


def test_a_server_that_answered_once_is_not_given_up_on(
    run: Run, server: FaultyServer, tmp_path: Path, quick: None
) -> None:
    server.script(REPEATED, status(500))
    report = run(evaluated(samples(30), server.url, tmp_path, retries=1, max_concurrent=1))
    assert (report.summary["n"], report.summary["n_errors"]) == (30, 29)


# --- Connections --------------------------------------------------------------------------------


@both_loops
def test_connections_are_used_again(run: Run, server: FaultyServer, tmp_path: Path) -> None:
    server.behave = lambda request: REPEATED
    run(evaluated(samples(100), server.url, tmp_path, max_concurrent=8))
    assert len(server.requests) == 100
    assert server.connections <= 8


@both_loops
def test_more_requests_are_in_flight_at_once_than_clients_allow_by_default(
    run: Run, server: FaultyServer, tmp_path: Path
) -> None:
    held = faulty.together(120, REPEATED)
    server.behave = lambda request: held
    report = run(evaluated(samples(120), server.url, tmp_path, max_concurrent=120, timeout=60.0))
    assert (report.summary["n_scored"], report.summary["mean"]) == (120, 1.0)
    assert server.connections == 120


def test_an_endpoint_left_open_by_one_event_loop_works_in_the_next(server: FaultyServer) -> None:
    endpoint = HTTPEndpoint("m", server.url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it was left open, after all
        for backend in ("asyncio", "trio", "asyncio"):
            assert anyio.run(ask, endpoint, backend=backend).message.content == "ok"
        anyio.run(endpoint.close, backend="trio")
        gc.collect()


def test_a_proxy_from_the_environment_is_used(
    run: Run, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url.removesuffix("/v1"))
    run(asked_once("http://model.invalid/v1"))
    [request] = server.requests
    assert request.target == "http://model.invalid/v1/chat/completions"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_password_of_a_proxy_stays_out_of_messages(
    run: Run, server: FaultyServer, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    proxy = server.url.removesuffix("/v1").replace("http://", "http://alice:s3cretpassword@")
    monkeypatch.setenv(f"{scheme}_proxy", proxy)
    server.script(status(407, "who are you?"))
    with pytest.raises(EndpointError) as caught:
        run(asked_once(f"{scheme}://nowhere.invalid/v1"))
    assert "407" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert "proxy-authorization" in server.requests[0].headers


def test_no_proxy_keeps_the_proxy_out(
    run: Run, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed_port() as port:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        run(asked_once(server.url))
    assert server.requests[0].target == "/v1/chat/completions"


def test_a_netrc_does_not_stand_against_the_key(
    run: Run, server: FaultyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password other\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    run(asked_once(server.url))
    assert server.requests[0].headers["authorization"] == f"Bearer {key}"


# --- The key ------------------------------------------------------------------------------------


def everything_in(folder: Path) -> str:
    """All that a run left behind, packed columns unpacked."""
    import pyarrow.parquet as pq

    texts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            texts.append(path.read_bytes().decode("utf-8", "replace"))
        if path.suffix == ".parquet":
            texts.append(repr(pq.read_table(path).to_pylist()))
    return "\n".join(texts)


def echo(where: str) -> Action:
    def sent(request: Request) -> str:
        return f"you sent {request.headers['authorization']}"

    def body(request: Request) -> dict[str, Any]:
        call = {"id": sent(request), "function": {"name": "f", "arguments": sent(request)}}
        fields = {"reasoning_content": {"reasoning_content": sent(request)}}
        fields |= {"content": {"content": sent(request)}, "tool_calls": {"tool_calls": [call]}}
        return {"choices": [{"message": fields[where]}]}

    return status(200, body)


def escape(text: str) -> str:
    return "".join(f"\\u{ord(character):04X}" for character in text)


def echo_escaped(code: int, template: str, backslash: str = "\\") -> Action:
    """A body in which the key has the place of KEY, with every character escaped."""

    def body(request: Request) -> str:
        key = request.headers["authorization"]
        return template.replace("KEY", escape(key).replace("\\", backslash))

    return status(code, body)


def echo_in_parts(request: Request) -> bytes:
    key = request.headers["authorization"]
    parts = [{"choices": [{"delta": {"content": part}}]} for part in (key[:20], key[20:])]
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    return faulty.events(*parts, end, done=True)


def echo_as(code: int, change: Callable[[str], str]) -> Action:
    """An error with the key that was sent, in another form."""

    def body(request: Request) -> dict[str, Any]:
        return {"error": {"message": f"bad: {change(request.headers['authorization'][7:])}."}}

    return status(code, body)


def percent(text: str) -> str:
    return "".join(f"%{ord(character):02X}" for character in text)


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


CALL = '{"choices": [{"message": {"tool_calls": [{"id": "1", "function": {"name": "f", '
LEAKS: dict[str, Action] = {
    "an escaped error message": echo_escaped(400, '{"error": {"message": "KEY"}}'),
    "an escaped body that is no JSON": echo_escaped(400, "KEY"),
    "an error in a stream": echo_escaped(200, 'data: {"error": {"message": "KEY"}}\n\n'),
    "escaped content": echo_escaped(200, '{"choices": [{"message": {"content": "KEY"}}]}'),
    "arguments that are escaped twice": echo_escaped(
        200, CALL + '"arguments": "{\\"x\\": \\"KEY\\"}"}}]}}]}', "\\\\"
    ),
    "parts of a stream": status(200, echo_in_parts),
    "an error message": faulty.echo_key(400),
    "a body of text": status(400, lambda request: str(request.headers)),
    "a body where the cut goes through the key": status(
        400, lambda request: "x" * 480 + request.headers["authorization"]
    ),
    "an answer that cannot be read": status(
        200, lambda request: {"choices": request.headers["authorization"]}
    ),
    "a transient error": faulty.echo_key(500),
    "a refusal": faulty.echo_key(401),
    "all but the last character": echo_as(400, lambda key: key[:-1]),
    "all but the first": echo_as(500, lambda key: key[1:]),
    "percent-encoded": echo_as(400, percent),
    "in base64": echo_as(400, in_base64),
    "in base64, after a name": echo_as(400, lambda key: in_base64(f"user:{key}")),
    "a redirect": faulty.echo_key(302),
    "the content": echo("content"),
    "the reasoning": echo("reasoning_content"),
    "a tool call": echo("tool_calls"),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_key_that_comes_back_is_nowhere_to_be_found(
    run: Run,
    server: FaultyServer,
    tmp_path: Path,
    quick: None,
    key: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    leak: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    server.behave = lambda request: LEAKS[leak] if request.text == "item 1" else REPEATED
    try:
        said = repr(list(run(evaluated(samples(3), server.url, tmp_path)).results))
    except SystemicFailure as problem:
        said = f"item 1: {problem!r} {problem.__cause__!r}"
    assert server.requests[0].headers["authorization"] == f"Bearer {key}"
    left = everything_in(tmp_path) + said + caplog.text
    left += "".join(capfd.readouterr())
    assert "item 1" in left
    # Half a key is a leak too: what is cut must not be cut in the middle.
    assert key[:12] not in left
    assert key[-16:] not in left
    assert percent(key[:16]) not in left
    assert not any(in_base64(before + key)[8:24] in left for before in ("", "u", "user:"))
    assert escape(key)[:60] not in left.replace("\\\\", "\\")


@pytest.mark.parametrize("before", ["Bearer ", "HTTP/1.1 200 OK\r\ncontent-encoding: "])
def test_a_key_that_comes_back_as_no_http_or_in_a_header_is_cut_out(
    run: Run, server: FaultyServer, key: str, before: str
) -> None:
    server.script(faulty.raw(f"{before}{key}\r\n\r\n".encode()))
    problem, _ = run(with_waits(server.url, retries=0))
    assert isinstance(problem, TransientError)
    assert key[:12].lower() not in f"{problem} {problem!r}".lower()


def test_a_placeholder_key_does_not_change_answers(
    run: Run, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "EMPTY")
    server.script(answer("the set is EMPTY"))
    assert run(asked_once(server.url)).message.content == "the set is EMPTY"


def test_the_description_and_the_representation_hold_no_key(key: str) -> None:
    endpoint = HTTPEndpoint("m", "http://host/v1")
    assert endpoint.describe() == {"kind": "openai", "model": "m", "base_url": "http://host/v1"}
    assert key not in repr(endpoint)


def test_a_missing_key_is_named(
    run: Run, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    server.script(status(401))
    with pytest.raises(FatalEndpointError, match=r"\(sent no OPENAI_API_KEY\)"):
        run(asked_once(server.url))


def test_a_newline_after_the_key_is_not_part_of_it(
    run: Run, server: FaultyServer, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key + "\n")
    run(asked_once(server.url))
    assert server.requests[0].headers["authorization"] == f"Bearer {key}"


def test_the_address_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://elsewhere/v1/")
    assert HTTPEndpoint.parse("m", max_connections=1).base_url == "http://elsewhere/v1"


def test_cookies_are_not_kept(run: Run, server: FaultyServer) -> None:
    server.script(status(500, headers={"set-cookie": "who=me; Path=/"}), answer())
    run(with_waits(server.url))
    assert [request.headers.get("cookie") for request in server.requests] == [None, None]


@pytest.mark.parametrize("given", ["abc\r\nx-injected: 1", "schlüssel", "a\x00b"])
def test_a_key_that_cannot_be_one_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setattr("os.environ", {"OPENAI_API_KEY": given})
    with pytest.raises(InvalidInput, match="OPENAI_API_KEY holds characters") as caught:
        HTTPEndpoint("m", "http://host/v1")
    assert given not in str(caught.value)


# --- Addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "model", "url"),
    [
        ("m", "m", "https://api.openai.com/v1"),
        ("m@http://h:1/v1", "m", "http://h:1/v1"),
        ("m@http://h:1/v1/", "m", "http://h:1/v1"),
        ("org/m@main@https://h/v1", "org/m@main", "https://h/v1"),
        ("org/m@main", "org/m@main", "https://api.openai.com/v1"),
        ("ft:gpt:org::id", "ft:gpt:org::id", "https://api.openai.com/v1"),
        ("/models/a b@http://[::1]:8/v1", "/models/a b", "http://[::1]:8/v1"),
    ],
)
def test_model_and_address_are_told_apart(text: str, model: str, url: str) -> None:
    check_endpoint(f"openai:{text}")
    endpoint = HTTPEndpoint.parse(text, max_connections=1)
    assert (endpoint.model, endpoint.base_url) == (model, url)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/v1",
        "file:///etc/passwd",
        "http://",
        "http://h:99999/v1",
        "http://[::1/v1",
        "http://h/v1\nhost: x",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="http://host:8000/v1"):
        HTTPEndpoint("m", url)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@h/v1",
        "http://hunter2@h/v1",
        "http://h/v1?key=hunter2",
        "http://h/v1#hunter2",
        "https://h/sk-test-0123456789abcdefghij/v1",
        "ftp://user:hunter2@h/v1",
    ],
)
def test_an_address_that_holds_a_secret_is_refused_without_showing_it(url: str, key: str) -> None:
    for make in (
        lambda: HTTPEndpoint("m", url),
        lambda: HTTPEndpoint.parse(f"m@{url}", max_connections=1),
        lambda: HTTPEndpoint.parse(f"m@main@{url}", max_connections=1),
        lambda: HTTPEndpoint.parse(f"@{url}", max_connections=1),
    ):
        with pytest.raises(InvalidInput) as caught:
            make()
        assert "hunter2" not in str(caught.value)
        assert key not in str(caught.value)


def test_an_address_without_a_scheme_is_not_taken_for_a_model_of_openais() -> None:
    for text in ("m@localhost:8000", "m@http:/localhost:8000/v1", "m@"):
        with pytest.raises(InvalidInput, match="does not start with http://"):
            HTTPEndpoint.parse(text, max_connections=1)
    with pytest.raises(InvalidInput, match="names no model"):
        HTTPEndpoint.parse("@http://h/v1", max_connections=1)
    assert HTTPEndpoint.parse("claude@20250101", max_connections=1).model == "claude@20250101"


# --- Versions of weights ------------------------------------------------------------------------


def of_weights(version: Any) -> Action:
    """A reply as SGLang sends it: with the version of its weights in `metadata`."""

    def body(request: Request) -> dict[str, Any]:
        message = {"role": "assistant", "content": f"re: {request.text}"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"choices": [choice], "metadata": {"weight_version": version}}

    return status(200, body)


def test_answers_of_several_versions_of_the_weights_are_said_to_be(
    server: FaultyServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def evaluate(name: str, limit: int, **more: Any) -> EvalReport:
        settings = {"max_concurrent": 1, "retries": 0, "experiment_name": name, **more}
        report: EvalReport = anyio.run(evaluated(samples(limit), server.url, tmp_path, **settings))
        assert report.path is not None
        return EvalReport.load(report.path)

    def notes(report: EvalReport) -> list[str]:
        lines = [block.parts for block in build_report(report).blocks if isinstance(block, Line)]
        return [str(part) for parts in lines for part in parts if "versions of its w" in str(part)]

    server.script(of_weights("step-1"))
    one = evaluate("one", 4)
    assert one.info is not None
    assert (one.info.weight_versions, notes(one), caplog.text) == (["step-1"], [], "")
    server.script(of_weights("step-1"), of_weights("step-1"), then=of_weights("step-2"))
    two = evaluate("two", 4)
    assert two.info is not None
    assert two.info.weight_versions == ["step-1", "step-2"]
    (note,) = notes(two)
    assert note.startswith("the server answered with 2 versions of its weights ('step-1', 'st")
    assert caplog.text.count(note) == 1
    # A run that is resumed after an update has both, though each process saw one.
    server.script(of_weights(7), of_weights(7), status(400, "no"))
    with pytest.raises(EvalFailed):
        evaluate("stopped", 4, on_error="raise")
    server.script(of_weights(8))
    resumed = evaluate("stopped", 4, resume=True)
    assert resumed.info is not None
    assert resumed.info.weight_versions == ["7", "8"]
    assert len(notes(resumed)) == 1
    # What is no version is none; and a server that names another each time fills no file.
    server.script(of_weights({"a": 1}), of_weights(True), of_weights(None), of_weights(""))
    silent = evaluate("silent", 4)
    assert silent.info is not None
    assert silent.info.weight_versions == []
    server.script(*(of_weights(f"request-{i}") for i in range(120)))
    many = evaluate("many", 120)
    assert many.info is not None
    assert len(many.info.weight_versions) == 100


def test_a_stream_tells_the_version_of_the_weights_too(server: FaultyServer) -> None:
    lines = [
        {"choices": [{"index": 0, "delta": {"content": "ok"}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "metadata": {"weight_version": "step-3"}},
    ]
    kind = {"content-type": "text/event-stream"}
    server.script(status(200, faulty.events(*lines, done=True), headers=kind))
    completion = anyio.run(
        completing(HTTPEndpoint("m", server.url), sampling=Sampling(stream=True))
    )
    assert (completion.message.text, completion.weight_version) == ("ok", "step-3")
