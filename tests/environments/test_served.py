"""Agents in other processes, which ask the policy over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import textwrap
from collections.abc import Callable
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch

from heldout import (
    Completion,
    EvalConfig,
    EvalReport,
    Message,
    Sample,
    ToolCall,
    ToolSpec,
    Usage,
    evaluate,
)
from heldout.environments import served
from heldout.environments.served import PolicyAccess, serve_policy
from heldout.errors import EvalFailed, InvalidInput, ResumeMismatch
from heldout.testing.neutral import assert_neutral
from heldout.training import AsyncEvalDispatcher, PeriodicEval, live_model
from heldout.types import EvalResult
from tests.processes import wait_until_ended
from tests.tiny_model import tiny_model

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

AGENTS = Path(__file__).parent / "agents"
QUESTION = Sample("a", {"question": "2 + 2?"}, "4", {"level": 1})
ASK = {"model": "policy", "messages": [{"role": "user", "content": "2 + 2?"}]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def four(messages: list[Message]) -> str:
    return "4"


async def run(
    agent: Any, tmp_path: Path, samples: Any = (QUESTION,), *, endpoint: Any = four, **more: Any
) -> EvalReport:
    names = ("score_fn", "model", "tolerate", "env", "cwd")
    own = {name: more.pop(name) for name in names if name in more}
    where = {"experiment_name": "eval", "output_dir": str(tmp_path)}
    settings = {**where, "max_error_rate": 1, "timeout": 60, **more}
    try:
        definition = serve_policy(list(samples), agent, **own)
        return await evaluate(definition, EvalConfig(endpoint=endpoint, **settings))
    except EvalFailed:  # its only item errored
        return EvalReport.load(tmp_path / "eval")
    finally:
        assert not served._servers, "a server outlives its attempts"


async def one(agent: Any, tmp_path: Path, **settings: Any) -> EvalResult:
    [result] = (await run(agent, tmp_path, **settings)).results
    return result


def script(tmp_path: Path, code: str) -> list[str]:
    """A command that runs an agent in Python without packages; `ask(body)` is there already."""
    helper = """
        import json, os, signal, subprocess, sys, threading, time, urllib.error, urllib.request
        def ask(body, **headers):
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], **headers}
            url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
            request = urllib.request.Request(url, body, headers)
            with urllib.request.urlopen(request) as response:
                return json.load(response)["choices"][0]["message"]["content"]
        BODY = {"model": "policy", "messages": [{"role": "user", "content": "2 + 2?"}]}
    """
    path = tmp_path / "agent.py"
    path.write_text(textwrap.dedent(helper) + textwrap.dedent(code))
    return [sys.executable, str(path)]


# --- Agents -------------------------------------------------------------------------------------


@pytest.mark.needs("Node")
async def test_an_agent_in_another_language_is_evaluated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    samples = [Sample(f"s{n}", {"question": f"{n} + 2?"}) for n in range(3)]
    asked = []

    async def policy(messages: list[Message]) -> str:
        asked.append([m.text for m in messages])
        return "4" if messages[0].text == "2 + 2?" else "5"

    report = await run(["node", str(AGENTS / "agent.js")], tmp_path, samples, endpoint=policy)
    assert [r.score.reward for r in report.results] == [0, 0, 1]
    assert [r.score["turns"] for r in report.results] == [2, 2, 2]
    [_, _, last] = report.results
    assert [m.text for m in last.trajectory.messages] == ["2 + 2?", "4", "Sure?", "4"]
    assert last.trajectory.outcome == {
        "report": {"score": 1, "turns": 2},
        "exit_code": 0,
        "requests": 2,
        "not_honoured": {"temperature": 0.7},
    }
    said = [r.getMessage() for r in caplog.records if "not honoured" in r.getMessage()]
    assert said == ["agents send 'temperature', which is recorded and not honoured"]


async def test_an_agent_that_exits_is_an_error_at_once(tmp_path: Path) -> None:
    async def agent(access: PolicyAccess, sample: Sample) -> dict[str, Any]:
        sys.exit("no license")

    result = await one(agent, tmp_path, timeout=20)
    assert str(result.error).startswith("environment: SystemExit: no license")


async def test_an_agent_ends_by_itself_unless_a_limit_is_set(tmp_path: Path) -> None:
    code = """
        talk = [{"role": "user", "content": "0"}]
        for turn in range(1, 41):
            said = ask({"model": "policy", "messages": talk})
            talk += [{"role": "assistant", "content": said}, {"role": "user", "content": str(turn)}]
        print(json.dumps({"score": 1.0}))
    """
    result = await one(script(tmp_path, code), tmp_path, endpoint=lambda messages: "Go on.")
    turns = sum(message.role == "assistant" for message in result.trajectory.messages)
    assert (result.error, turns, result.score.reward) == (None, 40, 1.0)


async def test_openai_s_client_gets_whole_and_streamed_turns_tools_and_the_limit(
    tmp_path: Path,
) -> None:
    offered = []

    async def policy(messages: list[Message], tools: list[ToolSpec]) -> Completion:
        offered.append(tools)
        if messages[-1].role != "tool":
            calls = (ToolCall("call00000", "double", '{"a": 2}'),)
            return Completion(Message("assistant", "", calls), "tool_calls", Usage(3, 2))
        return Completion(Message("assistant", messages[-1].text), "stop", Usage(5, 1))

    command = [sys.executable, str(AGENTS / "openai_client.py")]
    result = await one(command, tmp_path, endpoint=policy, max_turns=2)
    assert result.error is None
    assert result.score.reward == 1.0
    assert result.trajectory.stop.limit == "max_turns"
    roles = [m.role for m in result.trajectory.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert offered[0][0].parameters["properties"] == {"a": {"type": "integer"}}
    assert result.trajectory.outcome is not None
    assert result.trajectory.outcome["report"]["limit"] == "turn_limit_reached"
    assert result.trajectory.outcome["not_honoured"] == {"max_tokens": 9}
    # The agent has printed its key, which reaches no file.
    assert result.trajectory.outcome["report"]["key"] == "[redacted]"
    assert not any(b"heldout-" in f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())


async def test_the_environment_has_no_keys_but_the_agent_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "x" * 20)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # where nobody listens
    code = """
        text = ask(BODY)
        sample = json.load(sys.stdin)
        names = [n for n in os.environ if n.endswith("_KEY")]
        print(json.dumps({"score": 1, "keys": sorted(names), "sample": sample, "in": os.getcwd()}))
    """
    command = script(tmp_path, code)
    settings = {"env": {"SEARCH_KEY": "y" * 20}, "cwd": tmp_path}
    result = await one(command, tmp_path, **settings)
    assert result.trajectory.outcome is not None
    report = result.trajectory.outcome["report"]
    assert report["keys"] == ["OPENAI_API_KEY", "SEARCH_KEY"]
    assert report["sample"] == {"id": "a", "input": QUESTION.input, "metadata": {"level": 1}}
    assert report["in"] == str(tmp_path)
    assert "y" * 20 not in (tmp_path / "eval" / "run.json").read_text()


# Each is started, goes wrong, and must be an error with its reason, whatever it reports.
FAILURES = {
    "crashes": ("ask(BODY); print('{\"score\": 1}'); sys.exit('no disk')", "exit code 1: no disk"),
    "crashes before it asks": ("1 / 0", "ZeroDivisionError"),
    "is killed": ("ask(BODY); os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
    "never asks": ("print('{\"score\": 1}')", "without asking the model"),
    "reports nothing": ("ask(BODY)", "reported no score"),
    "reports no number": ('ask(BODY); print(\'{"score": "high"}\')', "reported no score"),
    "asks twice at once": (
        """
        def flood():
            try: ask(BODY)
            except urllib.error.HTTPError: open("go", "w").close()
        threads = [threading.Thread(target=flood) for _ in range(30)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print('{"score": 1}')
        """,
        "second turn while",
    ),
    "asks the same again": ("ask(BODY); ask(BODY); print('{\"score\": 1}')", "it branches"),
    "swallows a refusal": (
        """
        try: ask({**BODY, "n": 2})
        except urllib.error.HTTPError: print('{"score": 0}')
        """,
        "n is not honoured",
    ),
    "gives up on the model": (
        """
        import socket
        from urllib.parse import urlsplit
        url = urlsplit(os.environ["OPENAI_BASE_URL"])
        body = json.dumps(BODY)
        with socket.create_connection((url.hostname, url.port)) as s:
            s.sendall((f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: {url.netloc}\\r\\n"
                f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\\r\\n"
                f"Content-Length: {len(body)}\\r\\n\\r\\n{body}").encode())
            while not os.path.exists("asked"): time.sleep(0.01)
        open("go", "w").close()
        print('{"score": 0}')
        """,
        "without waiting for the model's turn",
    ),
    "goes on after the limit": (
        """
        for n in range(300):
            try: ask(BODY)
            except urllib.error.HTTPError: pass
            BODY["messages"] += [{"role": "assistant", "content": ""}, BODY["messages"][0]]
        """,
        "goes on asking",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_an_agent_that_fails_is_an_error_with_its_reason(case: str, tmp_path: Path) -> None:
    code, reason = FAILURES[case]

    async def policy(messages: list[Message]) -> str:
        (tmp_path / "asked").touch()
        while case in ("asks twice at once", "gives up on the model"):
            await asyncio.sleep(0.01)
            if (tmp_path / "go").exists():
                break
        return "4"

    turns = 1 if "limit" in case else 9
    command = script(tmp_path, code)
    result = await one(command, tmp_path, endpoint=policy, max_turns=turns, cwd=tmp_path)
    assert reason in str(result.error)
    assert result.error_stage == ("score_fn" if "reported" in reason else "environment")


async def test_an_agent_that_hangs_is_ended_with_all_its_processes(tmp_path: Path) -> None:
    code = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "600"])
        print(json.dumps({"pids": [os.getpid(), child.pid]}), file=open("pids", "w"), flush=True)
        sys.stdout.write("x" * 10_000_000)  # which nobody has to read
        time.sleep(600)
    """
    result = await one(script(tmp_path, code), tmp_path, timeout=1.0, cwd=tmp_path)
    assert "timeout: not done after 1 s" in str(result.error)
    wait_until_ended(*json.loads((tmp_path / "pids").read_text())["pids"])


async def test_an_agent_that_dies_of_the_limit_is_scored_on_what_there_is(tmp_path: Path) -> None:
    code = """
        messages = BODY["messages"]
        while True:
            messages += [{"role": "assistant", "content": ask(BODY)}]
            messages += [{"role": "user", "content": "and?"}]
    """

    def turns(trajectory: Any, sample: Sample) -> float:
        return len(trajectory.messages)

    result = await one(script(tmp_path, code), tmp_path, score_fn=turns, max_turns=2)
    assert (result.error, result.score.reward) == (None, 5.0)
    assert result.trajectory.stop.limit == "max_turns"
    assert result.trajectory.outcome is not None
    assert result.trajectory.outcome["exit_code"] == 1


async def test_a_policy_that_fails_is_the_item_s_error(tmp_path: Path) -> None:
    async def policy(messages: list[Message]) -> str:
        raise RuntimeError("no GPU")

    code = "try: ask(BODY)\nexcept Exception: pass\nprint('{\"score\": 1}')"
    result = await one(script(tmp_path, code), tmp_path, endpoint=policy)
    assert (result.error_stage, "no GPU" in str(result.error)) == ("endpoint", True)


# --- Requests -----------------------------------------------------------------------------------


async def post(
    access: PolicyAccess, body: Any = ASK, path: str = "/chat/completions", **headers: str
) -> tuple[int, dict[str, Any]]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {access.api_key}", **headers}
    async with (
        aiohttp.ClientSession() as session,
        session.post(access.base_url + path, data=BytesIO(content), headers=headers) as response,
    ):
        return response.status, await response.json()


async def refused(tmp_path: Path, *arguments: Any, **headers: str) -> tuple[EvalResult, Any]:
    """An agent that takes an error for a 0; the result, and the answer that the agent got."""
    requests = []

    async def agent(access: PolicyAccess, sample: Sample) -> dict[str, Any]:
        requests.append(asyncio.create_task(post(access, *arguments, **headers)))
        await asyncio.shield(requests[0])  # which goes on, though the agent is ended
        return {"score": 0.0}

    return await one(agent, tmp_path), await requests[0]


MESSAGES: Any = ASK["messages"]
REFUSED: dict[str, tuple[Any, int, str]] = {
    "no JSON": (b"{", 400, "no JSON"),
    "no object": (b"[]", 400, "no JSON"),
    "nested without end": (b"[" * 100_000, 400, "no JSON"),
    "no model": ({"messages": MESSAGES}, 400, "missing required field `model`"),
    "another model": ({**ASK, "model": "gpt-5"}, 404, "one model here, 'policy'"),
    "no messages": ({**ASK, "messages": []}, 400, "length >= 1"),
    "no role": ({**ASK, "messages": [{"content": "?"}]}, 400, "messages[0]"),
    "another role": ({**ASK, "messages": [{"role": "root", "content": "?"}]}, 400, "role must be"),
    "no text": ({**ASK, "messages": [{"role": "user", "content": 7}]}, 400, "content must be text"),
    "no calls": ({**ASK, "messages": [{"role": "assistant", "tool_calls": 7}]}, 400, "messages[0]"),
    "several choices": ({**ASK, "n": 2}, 400, "n is not honoured"),
    "logprobs": ({**ASK, "logprobs": True}, 400, "logprobs is not honoured"),
    "stop": ({**ASK, "stop": ["\n"]}, 400, "stop is not honoured"),
    "a format": ({**ASK, "response_format": {"type": "json_object"}}, 400, "response_format is"),
    "a forced call": ({**ASK, "tool_choice": "required"}, 400, "tool_choice is not honoured"),
    "an unknown field": ({**ASK, "guided_regex": "a"}, 400, "guided_regex is not honoured"),
    "a tool that is none": ({**ASK, "tools": [{"type": "web_search"}]}, 400, "$.tools[0].type"),
    "a huge body": (b" " * (served.LARGEST_REQUEST + 1), 413, "Too Large"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_request_that_cannot_be_honoured_is_refused_and_the_item_s_error(
    case: str, tmp_path: Path
) -> None:
    body, status, reason = REFUSED[case]
    result, (got, answer) = await refused(tmp_path, body)
    assert got == status
    assert reason in answer["error"]["message"]
    assert reason in str(result.error)


async def test_what_is_tolerated_is_recorded(tmp_path: Path) -> None:
    asks = {**ASK, "stop": ["\n"], "n": 1, "logprobs": None, "user": "me", "seed": 3}

    async def agent(access: PolicyAccess, sample: Sample) -> dict[str, Any]:
        status, _ = await post(access, asks)
        named = {"role": "user", "content": "?", "name": "Ann", "a\r\nb": 1}
        messages = [*MESSAGES, {"role": "assistant", "content": "four"}, named]
        await post(access, {**asks, "messages": messages})
        return {"score": float(status == 200), "key": access.api_key}

    result = await one(agent, tmp_path, tolerate=["stop"])
    assert result.score.reward == 1.0
    assert result.trajectory.outcome is not None
    assert result.trajectory.outcome["report"]["key"] == "[redacted]"
    assert result.trajectory.outcome["not_honoured"] == {
        "messages.a\r\nb": 1,
        "messages.changed_turns": True,
        "messages.name": "'Ann'",
        "seed": 3,
        "stop": "['\\n']",
    }


async def test_nobody_is_answered_without_the_key_of_a_running_attempt(tmp_path: Path) -> None:
    keys: dict[str, PolicyAccess] = {}
    refusals = []

    async def agent(access: PolicyAccess, sample: Sample) -> dict[str, Any]:
        assert access.base_url.startswith("http://127.0.0.1:")
        assert access.api_key not in repr(access)
        keys[sample.id] = access
        [server] = served._servers.values()
        while sample.id == "b" and not ("a" in keys and server.users == 1):
            await asyncio.sleep(0.01)  # until the other item has ended
        if sample.id == "b":
            refusals.append(await post(keys["a"]))
        for headers in (
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Basic {access.api_key}"},
            {"Authorization": ""},
            {"Host": "evil.example"},
            {"Origin": "http://evil.example"},
        ):
            refusals.append(await post(access, **headers))
        assert (await post(access))[0] == 200
        return {"score": 1.0}

    samples = [Sample("a", {"q": "?"}), Sample("b", {"q": "?"})]
    report = await run(agent, tmp_path, samples, max_concurrent=2)
    assert [r.score.reward for r in report.results] == [1.0, 1.0]
    own = [401, 401, 401, 421, 403]
    assert [status for status, _ in refusals] == [*own, 401, *own]
    assert "its attempt has ended" in refusals[5][1]["error"]["message"]


async def test_other_paths_and_compressed_bodies_are_refused(tmp_path: Path) -> None:
    result, (status, _) = await refused(tmp_path, ASK, "/responses")
    assert (status, "POST /v1/responses: Not Found" in str(result.error)) == (404, True)
    result, (status, _) = await refused(tmp_path / "b", ASK, **{"Content-Encoding": "gzip"})
    assert (status, "not compressed" in str(result.error)) == (415, True)


async def test_a_client_that_lost_its_connection_gets_its_turn_when_it_asks_again(
    tmp_path: Path,
) -> None:
    calls = []

    async def slow(messages: list[Message]) -> str:
        calls.append(len(messages))
        await asyncio.sleep(0.2)
        return "4"

    async def agent(access: PolicyAccess, sample: Sample) -> dict[str, Any]:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(post(access), 0.05)
        _, answer = await post(access)
        return {"score": float(answer["choices"][0]["message"]["content"] == "4")}

    result = await one(agent, tmp_path, endpoint=slow)
    assert (result.error, result.score.reward, calls) == (None, 1.0, [1])


# --- Evals --------------------------------------------------------------------------------------


async def test_items_at_once_get_their_own_turns(tmp_path: Path) -> None:
    samples = [Sample(f"s{n}", {"question": str(n)}) for n in range(40)]

    async def echo(messages: list[Message]) -> str:
        await asyncio.sleep(0.001 * (int(messages[0].text) % 7))
        return messages[0].text

    async def agent(access: PolicyAccess, sample: Sample) -> dict[str, Any]:
        own = {"role": "user", "content": sample.input["question"]}
        _, answer = await post(access, {"model": "policy", "messages": [own]})
        got = answer["choices"][0]["message"]["content"]
        return {"score": float(got == sample.input["question"])}

    report = await run(agent, tmp_path, samples, endpoint=echo, max_concurrent=40)
    assert report.summary["mean"] == 1.0


async def test_a_run_is_resumed_with_the_same_agent_and_refused_with_another(
    tmp_path: Path,
) -> None:
    samples = [Sample(f"s{n}", {"question": str(n)}) for n in range(3)]

    async def policy(messages: list[Message]) -> str:
        (tmp_path / "asked").write_text(f"{(tmp_path / 'asked').read_text()}.")
        if (tmp_path / "asked").read_text() in ("..", "..."):
            raise RuntimeError("down")
        return "4"

    (tmp_path / "asked").touch()

    command = script(tmp_path, "print(json.dumps({'score': float(ask(BODY))}))")
    settings = {"endpoint": policy, "max_concurrent": 1}
    first = await run(command, tmp_path, samples, **settings)
    assert [r.error is None for r in first.results] == [True, False, False]
    again = await run(command, tmp_path, samples, resume=True, **settings)
    assert [r.score.reward for r in again.results] == [4.0] * 3
    script(tmp_path, "print(json.dumps({'score': 1 + float(ask(BODY))}))")
    with pytest.raises(ResumeMismatch):
        await run(command, tmp_path, samples, resume=True, **settings)


@pytest.mark.parametrize("beside", [False, True], ids=["in place", "beside"])
def test_a_model_is_evaluated_while_it_trains_and_training_ends_in_the_same_weights(
    beside: bool, tmp_path: Path
) -> None:
    code = """
        words = json.load(sys.stdin)["input"]["question"]
        first = ask({"model": "policy", "messages": [{"role": "user", "content": words}]})
        more = [{"role": "assistant", "content": first}, {"role": "user", "content": "w9"}]
        said = [{"role": "user", "content": words}, *more]
        second = ask({"model": "policy", "messages": said})
        print(json.dumps({"score": len((first + " " + second).split())}))
    """
    samples = [Sample(f"s{n}", {"question": f"w{n} w{n + 1}"}) for n in range(3)]
    definition = serve_policy(samples, script(tmp_path, code))
    runs: list[PeriodicEval] = []

    def train(evaluating: bool) -> Any:
        torch.manual_seed(3)
        random.seed(3)
        model, tokenizer = tiny_model()
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        runs.append(
            PeriodicEval(
                definition,
                live_model(tokenizer, definition, max_new=4, rows=2),
                every_steps=2 if evaluating else 0,
                run_dir=tmp_path / str(len(runs)),
            )
        )
        with AsyncEvalDispatcher(when_full="wait") if beside else nullcontext():
            for step in range(1, 5):
                batch = torch.randint(8, 60, (2, 6))
                model(input_ids=batch, labels=batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                runs[-1].maybe_run(step, model)
        return model, [{"drawn": random.random(), "torch": torch.rand(1).item()}]

    assert_neutral(train)
    points = runs[-1].history
    assert [(point.step, point.skipped, point.n) for point in points] == [
        (2, None, 3),
        (4, None, 3),
    ]
    for point in points:
        assert point.summary is not None
        assert point.summary["n_errors"] == 0
        assert float(point.summary["mean"] or 0) > 0


@pytest.mark.parametrize(
    ("agent", "more", "reason"),
    [
        ("node agent.js", {}, "a command must be a list"),
        ([], {}, "a command must be a list"),
        (["node", 7], {}, "a list of texts"),
        (["no-such-program"], {}, "no program 'no-such-program'"),
        (["./no-such-program"], {}, "no program"),
        (["true"], {"cwd": "/no-such-folder"}, "cwd must be a folder"),
        (lambda access, sample: None, {}, "an async function"),
        (["true"], {"tolerate": "stop"}, "a list of fields"),
        (["true"], {"tolerate": ["messages"]}, "a list of fields"),
    ],
)
def test_what_is_no_agent_is_refused_before_anything_runs(
    agent: Any, more: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        serve_policy([QUESTION], agent, **more)


def test_the_environment_of_this_process_stays_as_it_is() -> None:
    before = dict(os.environ)
    factory: Callable[..., Any] = serve_policy([QUESTION], ["true"]).environment_factory  # type: ignore[assignment]
    factory._environment(PolicyAccess("http://127.0.0.1:1/v1", "k", "policy"))
    assert dict(os.environ) == before
