"""Names of models and providers, extra request fields, and streams of chat completions."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import anyio
import pytest

import heldout
from heldout import EvalConfig, Message, Sample, Sampling, ToolSpec
from heldout._core.config import check_endpoint, config_to_dict, result_changing
from heldout._core.providers import COMPATIBLE, SERVERS, runs_here
from heldout.errors import (
    ContextFull,
    EndpointError,
    FatalEndpointError,
    InvalidInput,
    ResumeMismatch,
    TransientError,
)
from heldout.models import open_endpoint
from heldout.models.http import HTTPEndpoint, ServerEndpoint
from heldout.models.requests import open_requests
from heldout.types import Completion, ToolCall, Usage
from tests.faulty_server import KEY, FaultyServer, Request, answer, echo_key, events, raw, status
from tests.models.asking import QUESTION, completing, evaluating

Run = Callable[..., Any]


OTHER_KEY = "gsk-zyxwvutsrqponm9876543"


def asked(
    endpoint: str, sampling: Sampling | None = None, tools: Sequence[ToolSpec] = ()
) -> Callable[[], Any]:
    return completing(open_endpoint(endpoint, max_concurrent=1), QUESTION, sampling, tools)


def opened(endpoint: str) -> ServerEndpoint:
    made = open_endpoint(endpoint, max_concurrent=1)
    assert isinstance(made, ServerEndpoint)
    return made


# --- Names --------------------------------------------------------------------------------------


def test_a_provider_has_its_own_address_and_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, provider in COMPATIBLE.items():
        if provider.key_variable:
            monkeypatch.setenv(provider.key_variable, OTHER_KEY)
        check_endpoint(f"{name}:org/model")
        assert opened(f"{name}:org/model").describe() == {
            "kind": "openai",
            "model": "org/model",
            "base_url": provider.url,
        }
    for name in SERVERS:
        assert opened(f"{name}:m@http://elsewhere/v1").base_url == "http://elsewhere/v1"


def test_a_missing_key_is_named_before_anything_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    needed = {
        "openai:gpt-4o": "OPENAI_API_KEY",
        "openai-responses:gpt-5": "OPENAI_API_KEY",
        "anthropic:claude-opus-4-5": "ANTHROPIC_API_KEY",
        **{f"{name}:m": p.key_variable for name, p in COMPATIBLE.items() if p.key_variable},
    }
    for endpoint, variable in needed.items():
        monkeypatch.delenv(variable, raising=False)
        with pytest.raises(InvalidInput, match=f"needs a key: set {variable}$"):
            open_endpoint(endpoint, max_concurrent=1)


@pytest.mark.parametrize("name", ["groq", "vllm"])
def test_one_provider_never_gets_the_key_of_another(
    run: Run, server: FaultyServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GROQ_API_KEY", OTHER_KEY)
    run(asked(f"{name}:m@{server.url}"))
    expected = f"Bearer {OTHER_KEY}" if name == "groq" else None
    assert server.requests[0].headers.get("authorization") == expected


@pytest.mark.parametrize(
    ("url", "base_url"),
    [("http://gateway", "http://gateway/v1"), ("http://gateway/v1/", "http://gateway/v1")],
)
def test_the_address_of_anthropic_is_written_as_in_its_own_packages(
    url: str, base_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
    assert opened("anthropic:claude").base_url == base_url


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gpt-4o", "write openai:gpt-4o$"),
        ("o3-mini", "write openai:o3-mini$"),
        ("claude-opus-4-5", "write anthropic:claude-opus-4-5$"),
        ("gemini-2.5-flash", "write litellm:gemini/gemini-2.5-flash or openrouter:google/gemini"),
        ("anthropic/claude-opus-4-5", r"did you mean anthropic:claude-opus-4-5\?$"),
        ("antropic:claude", r"did you mean anthropic:claude\?$"),
        ("Qwen/Qwen3-4B", "write hf:Qwen/Qwen3-4B to load it here, or vllm:Qwen/Qwen3-4B or"),
        ("llama3:8b", "write ollama:llama3:8b if"),
        ("openai:", "hf:PATH, vllm:PATH, smollm2$"),
        (".", r"write hf:\. or vllm:\. to load it here$"),
    ],
)
def test_a_name_without_its_provider_is_answered_with_the_form_to_write(
    name: str, hint: str
) -> None:
    with pytest.raises(InvalidInput, match=hint):
        EvalConfig(endpoint=name)


def test_vllm_loads_a_folder_and_asks_a_server_for_any_other_name(tmp_path: Path) -> None:
    here = {str(tmp_path), f"{tmp_path}?dtype=float32", "/nothing/there", "./nothing", "~/nothing"}
    served = {"llama", "org/llama", "llama:70b", f"{tmp_path}@http://localhost:8000/v1"}
    assert {name for name in here | served if runs_here(f"vllm:{name}")} == here
    for name in served:
        assert isinstance(open_endpoint(f"vllm:{name}", max_concurrent=1), HTTPEndpoint)
    with pytest.raises(InvalidInput, match="there is no folder /nothing/there.*@http://localhost"):
        open_endpoint("vllm:/nothing/there", max_concurrent=1)
    if find_spec("vllm") is None:
        with pytest.raises(InvalidInput, match="needs the package vllm: pip install"):
            open_endpoint(f"vllm:{tmp_path}", max_concurrent=1)


def test_whole_requests_go_to_providers_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_requests("vllm:m", [], max_concurrent=1).base_url == COMPATIBLE["vllm"].url
    with pytest.raises(InvalidInput, match="OpenAI-compatible"):
        open_requests("anthropic:m", [], max_concurrent=1)


# --- Extra fields -------------------------------------------------------------------------------


def test_extra_fields_reach_the_server_over_those_of_heldout(
    run: Run, server: FaultyServer
) -> None:
    extra = {"reasoning_effort": "low", "temperature": None, "chat_template_kwargs": {"a": True}}
    run(asked(f"vllm:m@{server.url}", Sampling(extra_body=extra)))
    assert server.requests[0].body == {
        "model": "m",
        "messages": [{"role": "user", "content": "2 + 2?"}],
        "stream": False,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"a": True},
    }


@pytest.mark.parametrize("kind", ["vllm", "anthropic", "openai-responses"])
def test_no_temperature_is_sent_where_it_is_none(
    kind: str, run: Run, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    for temperature in (None, 0.0):
        with suppress(EndpointError):  # its answer is not of this API: what was sent counts
            run(asked(f"{kind}:m@{server.url}", Sampling(temperature=temperature)))
    assert "temperature" not in server.requests[0].body
    assert server.requests[-1].body["temperature"] == 0.0


def test_extra_fields_are_part_of_what_a_run_is_known_by() -> None:
    def identity(**settings: Any) -> dict[str, Any]:
        config = EvalConfig(endpoint="vllm:m", sampling=Sampling(**settings))
        return result_changing(config_to_dict(config, {}))

    assert identity() != identity(extra_body={"a": 1}) != identity(extra_body={"a": 2})
    assert identity() == identity(extra_body={}) == identity(stream=True)
    assert Sampling(extra_body={"a": 1}, seed=1).for_item("s", 0).extra_body == {"a": 1}


def test_extra_fields_that_no_request_can_have_are_refused() -> None:
    odd: list[Any] = [[], "a", {1: 2}, {"a": float("nan")}, {"a": {1, 2}}]
    for extra in odd:
        with pytest.raises(InvalidInput, match=r"sampling\.extra_body"):
            Sampling(extra_body=extra)
    settings: list[Any] = [{"extra_body": {"a": 1}}, {"stream": True}]
    for endpoint, more in product(["smollm2", "hf:folder", lambda messages: "4"], settings):
        with pytest.raises(InvalidInput, match="are for servers"):
            EvalConfig(endpoint=endpoint, sampling=Sampling(**more))
    thinking = Sampling(extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert EvalConfig(endpoint="hf:folder", sampling=thinking).sampling == thinking


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("Unsupported value: 'temperature' does not support 0 with this model.", "temperature"),
        ("Unsupported parameter: 'max_tokens' is not supported with this model.", "max_tokens"),
    ],
)
def test_a_field_that_a_model_does_not_take_ends_the_run_and_says_how_to_leave_it_out(
    run: Run, server: FaultyServer, message: str, name: str
) -> None:
    server.script(status(400, {"error": {"message": message}}))
    with pytest.raises(FatalEndpointError, match=rf"sampling\.extra_body\.{name}=null leaves"):
        run(asked(f"vllm:m@{server.url}"))


# --- Answers that are errors --------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["ERROR", "insufficient_system_resource"])
def test_a_turn_that_the_server_gave_up_is_transient(
    run: Run, server: FaultyServer, reason: str
) -> None:
    server.script(answer("The answ", finish_reason=reason))
    with pytest.raises(TransientError, match="broke off"):
        run(asked(f"vllm:m@{server.url}"))


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (429, TransientError),
        (502, TransientError),
        (401, FatalEndpointError),
        (None, TransientError),
    ],
)
def test_an_error_with_status_200_is_that_error(
    run: Run, server: FaultyServer, code: int | None, raised: type[EndpointError]
) -> None:
    server.script(status(200, {"error": {"message": "It went wrong.", "code": code}}))
    with pytest.raises(raised, match="It went wrong"):
        run(asked(f"vllm:m@{server.url}"))


def test_reasoning_that_comes_as_a_part_of_the_content_is_reasoning(
    run: Run, server: FaultyServer
) -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Two and two."}]}
    parts: Any = [thinking, {"type": "text", "text": "4"}]
    server.script(answer(parts))
    turn = run(asked(f"vllm:m@{server.url}")).message
    assert turn == Message("assistant", "4", reasoning="Two and two.")


# --- Streams ------------------------------------------------------------------------------------


def chunk(finish_reason: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "x", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def call(index: int | None, arguments: str, **more: Any) -> dict[str, Any]:
    name = {"name": more.pop("name")} if "name" in more else {}
    number = {} if index is None else {"index": index}
    return {**number, **more, "function": {**name, "arguments": arguments}}


USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}
CHUNKS = (
    chunk(role="assistant", content=""),
    chunk(reasoning_content="Two "),
    chunk(reasoning_content="and two."),
    chunk(content="I "),
    chunk(content="ädd."),
    chunk(tool_calls=[call(0, "", id="a", type="function", name="add")]),
    chunk(tool_calls=[call(1, '{"y"', id="b", type="function", name="sub")]),
    chunk(tool_calls=[call(0, '{"x": 1}')]),
    chunk(tool_calls=[call(1, ": 2}")]),
    chunk("tool_calls"),
)


def test_a_stream_gives_the_turn_that_would_have_come_whole(run: Run, server: FaultyServer) -> None:
    body = b": a comment\r\n\r\n" + events(*CHUNKS, USAGE, done=True).replace(b"\n", b"\r\n")
    server.script(status(200, body, headers={"content-type": "text/event-stream"}))
    turn = run(asked(f"vllm:m@{server.url}", Sampling(stream=True)))
    calls = (ToolCall("a", "add", '{"x": 1}'), ToolCall("b", "sub", '{"y": 2}'))
    expected = Message("assistant", "I ädd.", calls, reasoning="Two and two.")
    assert turn == Completion(expected, "tool_calls", Usage(5, 3))
    assert server.requests[0].body["stream"] is True
    assert server.requests[0].body["stream_options"] == {"include_usage": True}


def test_calls_that_are_not_numbered_are_told_apart_by_their_ids(
    run: Run, server: FaultyServer
) -> None:
    parts = [
        chunk(tool_calls=[call(None, "{", id="a", name="add")]),
        chunk(tool_calls=[call(None, "}")]),
        chunk("tool_calls", tool_calls=[call(None, "{}", id="b", name="sub")]),
    ]
    server.script(status(200, events(*parts, done=True)))
    turn = run(asked(f"vllm:m@{server.url}", Sampling(stream=True)))
    assert turn.message.tool_calls == (ToolCall("a", "add", "{}"), ToolCall("b", "sub", "{}"))


def test_a_server_that_ignores_the_wish_for_a_stream_is_read_all_the_same(
    run: Run, server: FaultyServer
) -> None:
    server.script(answer("4"))
    assert run(asked(f"vllm:m@{server.url}", Sampling(stream=True))).message.text == "4"


def test_a_refusal_is_an_answer(run: Run, server: FaultyServer) -> None:
    server.script(answer(None, refusal="I cannot."))
    assert run(asked(f"vllm:m@{server.url}")).message.text == "I cannot."


def test_a_stream_that_ends_early_is_transient_and_never_an_answer(
    run: Run, server: FaultyServer
) -> None:
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    whole = events(*CHUNKS)
    cut = [events(*CHUNKS[:end], done=end % 2 == 0) for end in range(len(CHUNKS))]
    for body in (*cut, whole[:-20]):
        server.script(status(200, body))
        with pytest.raises(TransientError, match="broke off"):
            run(asked(f"vllm:m@{server.url}", Sampling(stream=True)))
    server.script(raw(head + b"%x\r\n%s\r\n" % (len(whole), whole)))  # and no last chunk
    with pytest.raises(TransientError):
        run(asked(f"vllm:m@{server.url}", Sampling(stream=True)))


@pytest.mark.parametrize(
    ("event", "raised"),
    [
        ({"error": {"message": "It went wrong.", "code": 502}}, TransientError),
        ({"error": {"message": "It went wrong."}}, TransientError),
        ({"error": {"message": "prompt is too long", "code": 400}}, ContextFull),
        (b"{", TransientError),
    ],
)
def test_an_error_in_a_stream_is_that_error(
    run: Run, server: FaultyServer, event: Any, raised: type[EndpointError]
) -> None:
    server.script(status(200, events(*CHUNKS[:4], event, done=True)))
    with pytest.raises(raised, match="It went wrong|too long|not a reply"):
        run(asked(f"vllm:m@{server.url}", Sampling(stream=True)))


def test_a_stream_can_be_asked_for_in_the_body_as_well(run: Run, server: FaultyServer) -> None:
    server.script(status(200, events(chunk("stop", content="4"), done=True)))
    sampling = Sampling(extra_body={"stream": True})
    assert run(asked(f"vllm:m@{server.url}", sampling)).message.text == "4"


# --- A whole eval -------------------------------------------------------------------------------


def test_a_run_keeps_extra_fields_and_no_key(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)

    def behave(request: Request) -> Any:
        if "broken" in request.text:
            return echo_key(400)
        text = [{"type": "text", "text": f"4 {KEY}"}]
        usage = {"input_tokens": 5, "output_tokens": 3}
        return status(200, {"content": text, "stop_reason": "end_turn", "usage": usage})

    server.behave = behave
    extra = {"top_k": 5, "metadata": {"api_key": "plain", "user": [f"of {KEY}"]}}
    samples = [Sample("a", {"prompt": "2 + 2?"}), Sample("b", {"prompt": "broken"})]
    endpoint, sampling = f"anthropic:claude@{server.url}", Sampling(extra_body=extra)
    report = anyio.run(evaluating(samples, endpoint, tmp_path, sampling=sampling))
    assert (report.summary["n_scored"], report.summary["n_errors"]) == (1, 1)
    stored = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    metadata = {"api_key": "[redacted]", "user": ["of [redacted]"]}
    assert stored["sampling"]["extra_body"] == {"top_k": 5, "metadata": metadata}
    assert stored["endpoint"]["kind"] == "anthropic"
    for file in (tmp_path / "run").iterdir():
        assert KEY.encode() not in file.read_bytes()


# --- litellm ------------------------------------------------------------------------------------


class RateLimitError(Exception):
    status_code = 429
    litellm_response_headers: ClassVar = {"Retry-After": "7"}


class AuthenticationError(Exception):
    status_code = 401


class ContextWindowExceededError(Exception):
    status_code = 400


class BadRequestError(Exception):
    status_code = 400


@pytest.fixture
def litellm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A litellm that notes what it is asked, and answers or raises what it is given."""
    module: Any = ModuleType("litellm")
    module.requests = []
    module.outcome = {
        "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "4"}}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3},
    }

    async def acompletion(**request: Any) -> Any:
        module.requests.append(request)
        if isinstance(module.outcome, Exception):
            raise module.outcome
        return SimpleNamespace(model_dump=lambda: module.outcome)

    def get_llm_provider(*, model: str) -> tuple[str, str, None, None]:
        provider, slash, name = model.partition("/")
        if not slash:
            raise BadRequestError("LLM Provider NOT provided")
        return name, provider, None, None

    module.acompletion, module.api_base = acompletion, None
    module.get_llm_provider = get_llm_provider
    monkeypatch.setitem(sys.modules, "litellm", module)
    return module


def test_litellm_answers_with_its_own_form_of_the_name(litellm: Any) -> None:
    sampling = Sampling(max_tokens=5, extra_body={"api_base": "http://host", "temperature": None})
    turn = anyio.run(asked("litellm:gemini/gemini-2.5-flash", sampling, [ToolSpec("add")]))
    assert turn == Completion(Message("assistant", "4"), "stop", Usage(5, 3))
    request = litellm.requests[0]
    assert request["model"] == "gemini/gemini-2.5-flash"
    assert request["messages"] == [{"role": "user", "content": "2 + 2?"}]
    assert request["tools"][0]["function"]["name"] == "add"
    assert request["max_tokens"] == 5
    assert request["api_base"] == "http://host"
    assert not {"temperature", "top_p", "seed", "stop"} & set(request)


@pytest.mark.parametrize("native", ["model_length", "MAX_TOKENS"])
def test_a_finish_reason_that_litellm_replaces_is_the_providers_own(
    litellm: Any, native: str
) -> None:
    litellm.outcome["choices"][0]["provider_specific_fields"] = {"native_finish_reason": native}
    assert anyio.run(asked("litellm:m")).finish_reason == "length"


def test_tokens_that_litellm_does_not_know_are_not_zero(litellm: Any) -> None:
    litellm.outcome["usage"] = {"prompt_tokens": 0, "completion_tokens": 0}
    assert anyio.run(asked("litellm:m")).usage is None


@pytest.mark.parametrize(
    ("problem", "raised"),
    [
        (RateLimitError("slow down"), TransientError),
        (AuthenticationError("no"), FatalEndpointError),
        (ContextWindowExceededError("too long"), ContextFull),
        (BadRequestError("no"), EndpointError),
        (RuntimeError("no"), EndpointError),
    ],
)
def test_errors_of_litellm_are_told_apart(
    litellm: Any, problem: Exception, raised: type[EndpointError]
) -> None:
    litellm.outcome = problem
    with pytest.raises(raised, match=type(problem).__name__) as caught:
        anyio.run(asked("litellm:m"))
    if isinstance(caught.value, TransientError):
        assert caught.value.retry_after == 7.0


def test_keys_are_removed_from_errors_of_litellm(
    litellm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", OTHER_KEY)
    litellm.outcome = AuthenticationError(f"https://host?key={OTHER_KEY}")
    with pytest.raises(FatalEndpointError, match=r"key=\[key\]"):
        anyio.run(asked("litellm:m"))


def test_keys_are_removed_from_replies_of_litellm(
    litellm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", OTHER_KEY)
    litellm.outcome["choices"][0]["message"]["content"] = f"you sent {OTHER_KEY[:-1]}"
    assert anyio.run(asked("litellm:m")).message.content == "you sent [key]"


def test_litellm_is_named_with_its_command_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(InvalidInput, match="pip install 'litellm>=1.60' 'mcp>=1.0'$"):
        open_endpoint("litellm:m", max_concurrent=1)


@pytest.mark.parametrize(
    ("model", "variable", "address", "described"),
    [
        ("openai/gpt", "OPENAI_API_BASE", "http://one/v1/", "http://one/v1"),
        ("ollama_chat/m", "OLLAMA_API_BASE", "http://one:11434", "http://one:11434"),
        ("together_ai/m", "TOGETHERAI_API_BASE", "https://one", "https://one"),
        ("unknown", "SOME_API_BASE", "https://one", "https://one"),
        ("openai/gpt", "OPENAI_API_BASE", f"http://me:{KEY}@one:1/v1?key={KEY}", "http://one:1/v1"),
        ("openai/gpt", "OPENAI_API_BASE", f"http://one/{KEY}/v1", "http://one/[key]/v1"),
        ("openai/gpt", "OPENAI_API_BASE", "http://[one", "not an address"),
        ("openai/gpt", "MISTRAL_API_BASE", "http://one", None),
        ("openai/gpt", "OPENAI_API_BASE", "", None),
    ],
)
def test_the_address_that_litellm_is_told_is_part_of_the_model(
    litellm: Any,
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    variable: str,
    address: str,
    described: str | None,
) -> None:
    monkeypatch.setenv(variable, address)
    expected = {"kind": "litellm", "model": model}
    if described is not None:
        expected |= {"addresses": {variable: described}}
    assert opened(f"litellm:{model}").describe() == expected


@pytest.mark.parametrize("where", ["environment", "api_base", "litellm.api_base"])
def test_answers_of_another_server_are_not_taken_for_those_of_a_model_through_litellm(
    litellm: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    def run_at(address: str, **settings: Any) -> Any:
        sampling = Sampling()
        if where == "environment":
            monkeypatch.setenv("OPENAI_API_BASE", address)
        elif where == "api_base":
            sampling = Sampling(extra_body={"api_base": address})
        else:
            litellm.api_base = address
        config = EvalConfig(
            endpoint="litellm:openai/gpt",
            output_dir=str(tmp_path),
            progress=False,
            sampling=sampling,
            cache=str(tmp_path / "cache"),
            **settings,
        )
        samples = [Sample("a", {"prompt": "2 + 2?"})]
        return anyio.run(heldout.evaluate, samples, config, lambda t, s: 1.0)

    run_at("http://one", experiment_name="run")
    run_at("http://one")
    assert len(litellm.requests) == 1
    run_at("http://two")
    assert len(litellm.requests) == 2
    with pytest.raises(ResumeMismatch, match="http://one"):
        run_at("http://two", experiment_name="run", resume=True)


def test_litellm_says_what_it_cannot_do(litellm: Any) -> None:
    with pytest.raises(FatalEndpointError, match="asyncio only"):
        anyio.run(asked("litellm:m"), backend="trio")
    with pytest.raises(FatalEndpointError, match="not streamed"):
        anyio.run(asked("litellm:m", Sampling(stream=True)))
