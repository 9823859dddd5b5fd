"""`heldout tool-calls` against a real server: what it sends, keeps, goes on with and prints."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import heldout._evals.engine
import heldout.models.retries as retries
import heldout.store.report
import heldout.store.run_dir
from heldout import EvalConfig, EvalReport
from heldout._evals.engine import evaluate
from heldout.analysis.tool_calls import load_requests, opening_messages
from heldout.models.requests import open_requests
from heldout.scoring.tool_calls import score_calls
from tests.cli.conftest import Heldout
from tests.cli.runs import Outcome, command_of, lines_of_journal, wait_for
from tests.faulty_server import (
    KEY,
    Action,
    FaultyServer,
    Request,
    answer,
    hang,
    nothing_from_outside,
    status,
)

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
OSLO = '{"city": "Oslo"}'


def call(arguments: Any = OSLO, name: str = "weather") -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any], reason: str = "tool_calls") -> Action:
    return answer(None, finish_reason=reason, tool_calls=list(calls))


# What the server answers to a request whose last message is this word.
ANSWERS: dict[str, Action] = {
    "good": calling(call()),
    "good2": calling(call('{"city": "Rome"}')),
    "badjson": calling(call('{"city": ')),
    "list": calling(call('["Oslo"]')),
    "rawlist": calling(call(["Oslo"])),
    "unknown": calling(call(OSLO, "wether")),
    "empty": calling(),
    "beside": calling(call(), reason="stop"),
    "silent": answer("It rains."),
    "cut": answer("It r", finish_reason="length"),
    "refused": status(400, {"error": {"message": "no such thing"}}),
    "hostile": calling(call(OSLO, "\x1b[31mred\r\n\u202e")),
    "megabyte": calling(call(json.dumps({"city": "x" * 2**20}))),
}


def by_word(request: Request) -> Action:
    if request.text == "busy":  # 429 once, then fine
        return status(429, "slow down") if request.attempt == 0 else ANSWERS["good"]
    return ANSWERS[request.text]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    nothing_from_outside(monkeypatch)
    monkeypatch.setattr(retries, "_FIRST_WAIT", 0.001)
    with FaultyServer() as server:
        server.behave = by_word
        yield server


def request(word: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "_input", "content": "Be brief."}, {"role": "user", "content": word}]
    return {"model": "their-model", "messages": messages, "tools": [WEATHER], **more}


def write_requests(*words: str | dict[str, Any], name: str = "requests.jsonl") -> Path:
    lines = [json.dumps(w if isinstance(w, dict) else request(w)) for w in words]
    Path(name).write_text("\n".join(lines) + "\n")
    return Path(name)


def results_line(word: str, reason: str, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    """As the K2 Vendor Verifier writes them."""
    prepared = request(word, model="kimi")
    prepared["messages"][0]["role"] = "system"
    message = {"role": "assistant", "content": "", "tool_calls": list(calls) or None}
    response = {"id": "x", "choices": [{"index": 0, "finish_reason": reason, "message": message}]}
    return {
        "request": prepared,
        "response": response,
        "status": "success",
        "finish_reason": reason,
        **more,
    }


def write_results(*rows: dict[str, Any], name: str = "reference.jsonl") -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


@pytest.fixture
def toolcalls(heldout: Heldout, server: FaultyServer) -> Callable[..., Outcome]:
    def run(*arguments: str) -> Outcome:
        return heldout("tool-calls", *arguments, "--model", f"openai:m@{server.url}")

    return run


Toolcalls = Callable[..., Outcome]


def as_json(outcome: Outcome) -> dict[str, Any]:
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- What is sent -------------------------------------------------------------------------------


def test_a_request_is_sent_and_stored_as_it_is_but_for_model_role_and_stream(
    toolcalls: Toolcalls, server: FaultyServer
) -> None:
    given = request(
        "good",
        temperature=0.7,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
        reasoning={"effort": "low"},
        x_extra=[1, 2.0, None],
    )
    write_requests(given)
    assert toolcalls("requests.jsonl", "--name", "run").code == 0
    (result,) = EvalReport.load("outputs/evals/run").results
    assert result.sample.input == given
    assert [m.role for m in result.trajectory.messages] == ["system", "user", "assistant"]
    assert all(
        KEY.encode() not in content for content in files_of(Path("outputs/evals/run")).values()
    )
    (sent,) = server.requests
    wanted = {k: v for k, v in given.items() if k != "stream_options"}
    wanted |= {"model": "m", "stream": False}
    wanted["messages"][0]["role"] = "system"
    assert sent.body == wanted
    assert sent.headers["authorization"] == f"Bearer {KEY}"


def test_identical_lines_are_each_asked(toolcalls: Toolcalls, server: FaultyServer) -> None:
    path = write_requests("good", "good", "silent", "good")
    Path("requests.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert as_json(toolcalls("requests.jsonl.gz", "--name", "run", "--json"))["requests"] == 4
    assert len(server.requests) == 4
    first, second, _, third = [r.sample_id for r in EvalReport.load("outputs/evals/run").results]
    assert (second, third) == (f"{first}#2", f"{first}#3")


def with_tools(*tools: object) -> str:
    return json.dumps({"messages": [{"role": "user"}], "tools": tools})


BAD_LINES = {
    "{": "not JSON",
    "[]": "an object with messages",
    '{"messages": []}': "an object with messages",
    '{"messages": ["hi"]}': "messages[0] is no object with a role",
    with_tools({"name": "a"}): "tools[0] is no function",
    '{"messages": [{"role": "user"}], "tools": 7}': "tools must be a list",
    with_tools({"function": {"name": "a", "parameters": {"type": 7}}}): (
        "the parameters of tool 'a': not a JSON schema"
    ),
    with_tools({"function": {"name": "a"}}, {"function": {"name": "a", "parameters": {}}}): (
        "two tools are named 'a'"
    ),
}


def test_a_bad_line_is_named_before_anything_is_sent(
    toolcalls: Toolcalls, server: FaultyServer
) -> None:
    for line, said in BAD_LINES.items():
        Path("requests.jsonl").write_text(json.dumps(request("good")) + "\n\n" + line + "\n")
        outcome = toolcalls("requests.jsonl")
        assert outcome.code == 2
        assert "requests.jsonl, line 3: " in outcome.err
        assert said in outcome.err
    assert server.requests == []
    assert not Path("outputs").exists()


def test_other_endpoints_an_empty_file_and_a_missing_one_are_refused(heldout: Heldout) -> None:
    write_requests("good")
    outcome = heldout("tool-calls", "requests.jsonl", "--model", "smollm2")
    assert outcome.code == 2
    assert "openai:MODEL@http://host/v1; got 'smollm2'" in outcome.err
    Path("empty.jsonl").write_text("\n")
    outcome = heldout("tool-calls", "empty.jsonl", "--model", "openai:m")
    assert "holds no requests" in outcome.err
    outcome = heldout("tool-calls", "none.jsonl", "--model", "openai:m")
    assert (outcome.code, "there is no file" in outcome.err) == (2, True)


# --- What is measured ---------------------------------------------------------------------------


def test_every_kind_of_answer_is_counted_as_what_it_is(toolcalls: Toolcalls) -> None:
    words = [*ANSWERS, "busy"]
    write_requests(*words)
    found = as_json(toolcalls("requests.jsonl", "--json"))
    assert (found["requests"], found["answered"], found["errored"]) == (14, 13, 1)
    assert found["finish_reasons"] == {"tool_calls": 10, "stop": 2, "length": 1}
    accuracy = found["schema_accuracy"]
    assert (accuracy["count"], accuracy["n"]) == (4, 10)
    assert accuracy["ci_low"] < 0.4 < accuracy["ci_high"]
    assert "finish reason tool_calls, and no calls" in found["problems"]
    assert found["problems"]["wether: no such tool"] == 1
    assert "trigger" not in found


def test_the_summary_of_the_run_has_schema_accuracy_as_a_metric(toolcalls: Toolcalls) -> None:
    write_requests("good", "badjson", "silent", "empty")
    toolcalls("requests.jsonl", "--name", "run")
    report = EvalReport.load("outputs/evals/run")
    summary = report.summary
    assert (summary["metric_valid"], summary["metric_valid_n"]) == (pytest.approx(1 / 3), 3)
    assert (summary["metric_calls"], summary["metric_calls_n"]) == (0.75, 4)
    assert summary["mean"] == 0.5  # of four responses two have nothing wrong with their calls
    good, bad, silent, empty = report.results
    assert good.score.metrics[0].metadata == {"finish_reason": "tool_calls", "tools": ["weather"]}
    assert "not JSON" in bad.score.metrics[1].metadata["note"]
    assert [m.name for m in silent.score.metrics] == ["calls", "sound"]
    assert empty.score.metrics[1].metadata == {"note": "it calls nothing"}


def test_an_errored_request_is_in_no_number_and_is_asked_again(
    toolcalls: Toolcalls, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_requests("good", "refused")
    outcome = toolcalls("requests.jsonl", "--name", "run")
    assert outcome.code == 0
    assert "2 requests: 1 answered, 1 errored" in outcome.out
    assert "1.000  0.207 … 1.000  1/1" in outcome.out
    assert "heldout show outputs/evals/run --failures 5" in outcome.out
    monkeypatch.setitem(ANSWERS, "refused", ANSWERS["good2"])
    again = as_json(toolcalls("requests.jsonl", "--name", "run", "--json"))
    assert [r.text for r in server.requests] == ["good", "refused", "refused"]
    assert (again["answered"], again["errored"]) == (2, 0)


def test_what_a_model_wrote_cannot_move_the_terminal(toolcalls: Toolcalls) -> None:
    write_requests("hostile", "megabyte")
    outcome = toolcalls("requests.jsonl")
    assert outcome.code == 0
    assert "\\x1b[31mred\\r\\n\\u202e: no such tool" in outcome.out
    assert len(outcome.out) < 2000


# --- Against a reference ------------------------------------------------------------------------


def reference() -> str:
    return write_results(
        results_line("good", "tool_calls", call()),
        results_line("good2", "tool_calls", call()),
        results_line("silent", "tool_calls", call()),
        results_line("cut", "stop"),
        results_line("badjson", "stop"),
        results_line("elsewhere", "stop"),
        {**results_line("empty", "tool_calls"), "status": "failed"},
    )


WORDS = ("good", "good2", "silent", "cut", "badjson", "empty")


def test_the_table_against_results_of_the_verifier(toolcalls: Toolcalls) -> None:
    write_requests(*WORDS)
    found = as_json(toolcalls("requests.jsonl", "--baseline", reference(), "--json"))
    trigger = found["trigger"]
    assert [trigger[k] for k in ("tp", "fp", "fn", "tn")] == [2, 1, 1, 1]
    # "elsewhere" was not asked here, and "empty" failed there.
    assert (trigger["matched"], trigger["unmatched"]) == (5, 2)
    assert [trigger[k]["value"] for k in ("precision", "recall", "f1")] == [
        pytest.approx(2 / 3),
        pytest.approx(2 / 3),
        pytest.approx(2 / 3),
    ]
    same = trigger["same_calls"]
    assert (same["count"], same["n"]) == (1, 2)
    assert found["references"][0]["errored"] == 1
    assert found["reference_with_itself"] is None


def test_the_reference_stands_beside_itself(toolcalls: Toolcalls) -> None:
    write_requests(*WORDS)
    again = write_results(
        results_line("good", "tool_calls", call()),
        results_line("good2", "stop"),
        results_line("silent", "tool_calls", call("{}")),
        results_line("cut", "tool_calls", call()),
        name="again.jsonl",
    )
    arguments = ("requests.jsonl", "--baseline", reference(), "--baseline", again)
    itself = as_json(toolcalls(*arguments, "--json"))["reference_with_itself"]
    assert [itself[k] for k in ("tp", "fp", "fn", "tn")] == [2, 1, 1, 0]
    assert (itself["same_calls"]["count"], itself["unmatched"]) == (1, 2)
    outcome = toolcalls(*arguments)
    assert outcome.code == 0
    rows = {
        re.split(r"\s{2,}|\|", line)[0].strip(): line for line in outcome.out.splitlines() if line
    }
    assert "the reference with itself" in outcome.out
    assert "2/3" in rows["trigger precision"]
    assert rows["both call (TP)"].count("2") == 2
    assert "reference again: again.jsonl, 4 requests, 0 errored" in outcome.out


def test_a_run_is_a_reference_by_its_name_its_path_or_its_journal(
    toolcalls: Toolcalls, server: FaultyServer
) -> None:
    write_requests(*WORDS)
    toolcalls("requests.jsonl", "--name", "official")
    # The same questions to another model, under another name of the file's own model.
    other = [{**request(word), "model": "another"} for word in WORDS]
    write_requests(*other, name="other.jsonl")
    for place in ("official", "outputs/evals/official", "outputs/evals/official/results.jsonl"):
        found = as_json(toolcalls("other.jsonl", "--baseline", place, "--json"))
        assert found["trigger"]["f1"]["value"] == 1.0
        assert found["trigger"]["unmatched"] == 0
    assert len(server.requests) == 2 * len(WORDS)


def test_a_reference_run_with_repeats_is_held_against_itself(
    toolcalls: Toolcalls, server: FaultyServer
) -> None:
    write_requests("good", "flaky")
    server.behave = lambda r: ANSWERS["silent" if r.attempt and r.text == "flaky" else "good"]

    async def run_twice() -> None:
        samples = load_requests("requests.jsonl")
        endpoint = open_requests(
            f"openai:m@{server.url}", [s.input for s in samples], max_concurrent=1
        )
        config = EvalConfig(endpoint=endpoint, experiment_name="twice", repeats=2, max_concurrent=1)
        await evaluate(samples, config, score_calls, opening_messages)
        await endpoint.close()

    anyio.run(run_twice)
    found = as_json(toolcalls("requests.jsonl", "--baseline", "twice", "--json"))
    itself = found["reference_with_itself"]
    assert [itself[k] for k in ("tp", "fp", "fn", "tn")] == [1, 0, 1, 0]


def test_results_without_requests_are_matched_by_their_line(toolcalls: Toolcalls) -> None:
    Path("requests.jsonl").write_text(
        "\n" + json.dumps(request("good")) + "\n\n" + json.dumps(request("silent")) + "\n"
    )
    rows = [results_line("", "tool_calls", call(), data_index=n) for n in (4, 2)]
    for row in rows:
        del row["request"]
    found = as_json(toolcalls("requests.jsonl", "--baseline", write_results(*rows), "--json"))
    assert [found["trigger"][k] for k in ("tp", "fp", "fn", "tn")] == [1, 0, 1, 0]
    # Where a second reference does not know the lines, nothing is guessed.
    plain = write_results(results_line("good", "stop"), name="plain.jsonl")
    outcome = toolcalls("requests.jsonl", "--baseline", "reference.jsonl", "--baseline", plain)
    assert outcome.code == 2
    assert "plain.jsonl does not say which line of the file each of its requests was" in outcome.err


def test_a_request_that_failed_there_and_was_asked_again_counts_once(toolcalls: Toolcalls) -> None:
    write_requests("good", "silent")
    failed = {"status": "failed", "response": {"error": "x"}}
    rows = [
        {**results_line("silent", "stop", data_index=2), **failed},
        results_line("good", "tool_calls", call(), data_index=1),
        results_line("silent", "stop", data_index=2),
    ]
    found = as_json(toolcalls("requests.jsonl", "--baseline", write_results(*rows), "--json"))
    assert found["references"][0] == {
        "name": "reference.jsonl",
        "requests": 2,
        "errored": 0,
        "complete": True,
    }
    assert (found["trigger"]["tp"], found["trigger"]["tn"]) == (1, 1)


def test_the_order_of_identical_requests_is_that_of_their_file_and_not_of_the_results(
    toolcalls: Toolcalls, server: FaultyServer
) -> None:
    server.script(ANSWERS["good"], ANSWERS["silent"])
    write_requests("good", "good")
    rows = [
        results_line("good", "stop", data_index=2),
        results_line("good", "tool_calls", call(), data_index=1),
    ]
    arguments = ("--baseline", write_results(*rows), "--max-concurrent", "1", "--json")
    trigger = as_json(toolcalls("requests.jsonl", *arguments))["trigger"]
    assert [trigger[k] for k in ("tp", "fp", "fn", "tn")] == [1, 0, 0, 1]


def test_a_reference_that_is_none_is_refused_before_anything_is_sent(
    toolcalls: Toolcalls, server: FaultyServer, finished: Outcome
) -> None:
    write_requests("good")
    for rows, said in (
        ([results_line("elsewhere", "stop")], "have no requests in common, 1 and 1"),
        ([{"request": request("good")}], 'line 1: a line of results is {"request"'),
        (
            [results_line("good", "stop"), {"response": {}}],
            'line 2: every line has a "request", or else every line a "data_index"',
        ),
        ([], "holds no results"),
    ):
        outcome = toolcalls("requests.jsonl", "--baseline", write_results(*rows))
        assert outcome.code == 2
        assert said in outcome.err
    for arguments, said in (
        (["--name", "../elsewhere"], "'../elsewhere'"),
        (["--baseline", "a"] * 3, "once, or twice"),
        (["--baseline", "six"], "is no request, as `heldout tool-calls` stores them"),
        (["--name", "mine", "--baseline", "mine"], "'mine' is compared with itself"),
        (["--name", "typo", "--resume"], "there is no run at outputs/evals/typo"),
    ):
        outcome = toolcalls("requests.jsonl", *arguments)
        assert outcome.code == 2
        assert said in outcome.err
    assert server.requests == []


def test_a_reference_that_is_not_complete_says_so(
    toolcalls: Toolcalls, server: FaultyServer
) -> None:
    write_requests("good", "silent")
    server.script(ANSWERS["good"], status(401, "no more"))
    stopped = toolcalls("requests.jsonl", "--name", "stopped", "--max-concurrent", "1")
    assert stopped.code == 4
    assert "Results so far are saved to outputs/evals/stopped" in stopped.err
    server.behave = by_word
    outcome = toolcalls("requests.jsonl", "--name", "whole", "--baseline", "stopped")
    assert outcome.code == 0
    assert "outputs/evals/stopped is not complete: it has 2 requests so far" in outcome.out
    assert "reference: outputs/evals/stopped, 2 requests, 1 errored" in outcome.out


# --- Going on -----------------------------------------------------------------------------------


def test_a_complete_run_is_asked_nothing_and_changes_in_no_byte(
    toolcalls: Toolcalls, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_requests(*WORDS)
    first = toolcalls("requests.jsonl")
    (run,) = Path("outputs/evals").iterdir()
    assert run.name == f"requests-m@{server.url[7:-3].replace(':', '-')}"
    before = files_of(run)
    server.requests.clear()
    for module in (heldout._evals.engine, heldout.store.report, heldout.store.run_dir):
        monkeypatch.setattr(module, "now", lambda: "2099-01-01T00:00:00Z")
    second = toolcalls("requests.jsonl")
    assert server.requests == []
    assert files_of(run) == before
    assert second == first
    assert first.code == 0


def test_lines_at_the_end_are_added_and_others_are_refused(
    toolcalls: Toolcalls, server: FaultyServer
) -> None:
    write_requests("good", "silent")
    assert as_json(toolcalls("requests.jsonl", "--limit", "1", "--json"))["requests"] == 1
    assert as_json(toolcalls("requests.jsonl", "--json"))["requests"] == 2
    write_requests("good", "silent", "cut", "empty")
    assert as_json(toolcalls("requests.jsonl", "--json"))["requests"] == 4
    assert [r.text for r in server.requests] == ["good", "silent", "cut", "empty"]
    (run,) = Path("outputs/evals").iterdir()
    assert json.loads((run / "run.json").read_text())["asked"] == 4
    assert json.loads((run / "summary.json").read_text())["summary"]["n"] == 4
    for words in (("silent", "good", "cut", "empty"), ("good", "cut"), ("good2", "silent")):
        write_requests(*words)
        outcome = toolcalls("requests.jsonl")
        assert outcome.code == 2
        assert "choose another --name" in outcome.err
        assert "experiment_name" not in outcome.err
    assert len(server.requests) == 4


# --- In a process of its own --------------------------------------------------------------------


def test_names_are_made_of_whatever_files_and_models_are_called(
    heldout: Heldout, server: FaultyServer
) -> None:
    path = write_requests("good", name=".hidden " + "x" * 200 + ".jsonl")
    outcome = heldout("tool-calls", str(path), "--model", f"openai:org/mod\u00e9l:v1@{server.url}")
    assert outcome.code == 0, outcome.err
    (run,) = Path("outputs/evals").iterdir()
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=@-]+", run.name)
    assert len(run.name) < 200


@pytest.mark.integration
def test_a_run_that_is_interrupted_goes_on_to_the_same_summary(
    toolcalls: Toolcalls, server: FaultyServer
) -> None:
    """In a process of its own, in which a warning is an error."""
    write_requests(*WORDS)
    stuck = {"cut", "badjson", "empty"}
    server.behave = lambda r: hang() if r.text in stuck else by_word(r)
    arguments = ("tool-calls", "requests.jsonl", "--name", "run")
    process = subprocess.Popen(
        command_of(*arguments, "--model", f"openai:m@{server.url}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONWARNINGS": "error"},
    )
    wait_for(lambda: len(server.requests) == 6 and lines_of_journal("run") == 4, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == (b"", 130)
    assert err == (
        b"Interrupted. Responses so far are saved to outputs/evals/run; "
        b"the same command continues.\n"
    )
    server.requests.clear()
    server.behave = by_word
    assert toolcalls("requests.jsonl", "--name", "run").code == 0
    assert sorted(r.text for r in server.requests) == sorted(stuck)
    assert toolcalls("requests.jsonl", "--name", "whole").code == 0
    resumed, whole = (Path(f"outputs/evals/{run}/summary.json") for run in ("run", "whole"))
    assert resumed.read_bytes() == whole.read_bytes()
