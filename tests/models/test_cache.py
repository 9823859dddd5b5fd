"""The response cache, in front of a server on loopback."""

from __future__ import annotations

import json
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from click.testing import CliRunner

import heldout
import heldout.models.cache as cache_module
from heldout import EvalConfig, EvalReport, Metric, Sample, Sampling, Score
from heldout.cli.cache import command
from heldout.errors import EndpointError, InvalidInput
from heldout.models.cache import ResponseCache, count_turns, default_path
from heldout.types import Completion, Trajectory
from tests.faulty_server import KEY, FaultyServer, Request, answer, status
from tests.models.asking import Tool

Run = Callable[..., Any]
TWO = [Sample("a", {"prompt": "2 + 2?"}), Sample("b", {"prompt": "3 + 3?"})]


def scored(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("said", bool(trajectory.answer), 1.0),))


@pytest.fixture
def config(server: FaultyServer, tmp_path: Path) -> EvalConfig:
    """A server that never says the same twice."""
    server.behave = lambda request: answer(
        f"answer {len(server.requests)}", usage={"prompt_tokens": 5, "completion_tokens": 3}
    )
    return EvalConfig(
        endpoint=f"vllm:m@{server.url}",
        output_dir=str(tmp_path / "runs"),
        max_concurrent=1,
        progress=False,
        max_error_rate=1,
        cache=str(tmp_path / "cache" / "turns.sqlite"),
    )


def evaluated(
    config: EvalConfig, samples: Sequence[Sample] = TWO, **more: Any
) -> Callable[[], Any]:
    async def main() -> EvalReport:
        with anyio.fail_after(60):
            return await heldout.evaluate(samples, config, scored, **more)

    return main


def answers(report: EvalReport) -> list[str]:
    return [result.trajectory.answer for result in report.results]


# --- Hits ---------------------------------------------------------------------------------------


def test_a_second_run_sends_no_request_and_says_so(
    run: Run, server: FaultyServer, config: EvalConfig
) -> None:
    first = run(evaluated(config))
    second = run(evaluated(config))
    assert len(server.requests) == 2
    assert answers(first) == answers(second) == ["answer 1", "answer 2"]
    assert count_turns(first.results) == (0, 2)
    assert count_turns(second.results) == (2, 0)
    timing = second.results[0].trajectory.timing
    assert (timing.requests, timing.cached_turns) == (0, 1)
    assert second.results[0].trajectory.usage == first.results[0].trajectory.usage
    assert second.summary["mean"] == first.summary["mean"] == 1.0


def test_another_request_or_model_is_another_turn(server: FaultyServer, config: EvalConfig) -> None:
    for number, changed in enumerate(
        (
            {},
            {"sampling": Sampling(max_tokens=5)},
            {"sampling": Sampling(extra_body={"top_k": 5})},
            {"sampling": Sampling(seed=1)},
            {"endpoint": f"vllm:m2@{server.url}"},
            {"cache": False},
        ),
        start=1,
    ):
        anyio.run(evaluated(replace(config, **changed)))
        assert len(server.requests) == 2 * number


# --- Repeats ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.0}, {"temperature": 1.0, "seed": 7}])
def test_repeats_never_share_a_turn_and_more_add_to_those_that_are_there(
    server: FaultyServer, config: EvalConfig, settings: dict[str, Any]
) -> None:
    config = replace(config, repeats=2, sampling=Sampling(**settings))
    first = anyio.run(evaluated(config))
    second = anyio.run(evaluated(replace(config, repeats=3)))
    assert len(server.requests) == 6
    assert len(set(answers(second))) == 6
    assert {*answers(first)} < {*answers(second)}
    assert count_turns(second.results) == (4, 2)


@pytest.mark.parametrize(
    ("sampling", "requests"),
    [
        (Sampling(), 1),
        (Sampling(temperature=1.0), 2),
        (Sampling(extra_body={"temperature": 1.0}), 2),
        (Sampling(temperature=1.0, seed=7), 2),
    ],
)
def test_samples_of_one_prompt_share_a_turn_only_where_it_is_greedy(
    server: FaultyServer, config: EvalConfig, sampling: Sampling, requests: int
) -> None:
    twins = [Sample("a", {"prompt": "2 + 2?"}), Sample("b", {"prompt": "2 + 2?"})]
    anyio.run(evaluated(replace(config, sampling=sampling), twins))
    assert len(server.requests) == requests


def test_a_seed_that_the_api_does_not_have_tells_draws_apart_all_the_same(
    server: FaultyServer, config: EvalConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    server.script(status(200, {"content": [{"type": "text", "text": "4"}]}))
    twins = [Sample("a", {"prompt": "2 + 2?"}), Sample("b", {"prompt": "2 + 2?"})]
    seeded = Sampling(temperature=1.0, seed=7)
    config = replace(config, endpoint=f"anthropic:claude@{server.url}", sampling=seeded)
    anyio.run(evaluated(config, twins))
    assert len(server.requests) == 2


def test_a_resumed_run_does_not_take_the_turn_of_another_repeat(
    server: FaultyServer, config: EvalConfig
) -> None:
    config = replace(
        config, experiment_name="run", repeats=2, sampling=Sampling(temperature=1.0), retries=0
    )
    good = server.behave
    server.behave = lambda r: status(400, "no") if len(server.requests) > 1 else good(r)
    with pytest.raises(heldout.errors.EvalFailed):
        anyio.run(evaluated(replace(config, on_error="raise"), TWO[:1]))
    server.behave = good
    report = anyio.run(evaluated(replace(config, resume=True), TWO[:1]))
    assert len(set(answers(report))) == 2


# --- Errors and conversations -------------------------------------------------------------------


def test_errors_are_not_cached(server: FaultyServer, config: EvalConfig) -> None:
    good = server.behave
    server.behave = lambda r: status(400, "no") if r.text == "2 + 2?" else good(r)
    assert anyio.run(evaluated(config)).summary["n_errors"] == 1
    server.behave = good
    report = anyio.run(evaluated(config))
    assert report.summary["n_errors"] == 0
    assert count_turns(report.results) == (1, 1)


def test_a_cached_turn_is_sent_back_with_its_signed_thinking(
    run: Run, server: FaultyServer, config: EvalConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    thinking = {"type": "thinking", "thinking": "Add.", "signature": "c2lnbmVk"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}

    def behave(request: Request) -> Any:
        if "tool_result" in request.text:
            body = {"content": [{"type": "text", "text": "4"}], "stop_reason": "end_turn"}
        else:
            body = {"content": [thinking, call], "stop_reason": "tool_use"}
        return status(200, body)

    server.behave = behave
    config = replace(config, endpoint=f"anthropic:claude@{server.url}")
    run(evaluated(config, TWO[:1], environment_factory=lambda sample: Tool("4")))
    report = run(evaluated(config, TWO[:1], environment_factory=lambda sample: Tool("5")))
    assert count_turns(report.results) == (1, 1)
    assert len(server.requests) == 3
    assert server.requests[2].body["messages"][1]["content"] == [thinking, call]
    assert KEY.encode() not in Path(str(config.cache)).read_bytes()


# --- What is never cached -----------------------------------------------------------------------


class Custom:
    """An endpoint of the user's own: any model may be behind it."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "mine", "version": "1"}

    async def complete(self, messages: Any, sampling: Any, tools: Any) -> Completion:
        raise EndpointError("not asked")

    async def close(self) -> None: ...


@pytest.mark.parametrize("endpoint", [lambda messages: "4", Custom()])
def test_models_that_may_change_under_their_description_are_refused(
    config: EvalConfig, endpoint: Any
) -> None:
    with pytest.raises(InvalidInput, match="for servers and for models loaded from disk"):
        anyio.run(evaluated(replace(config, endpoint=endpoint)))
    assert not Path(str(config.cache)).exists()


def test_a_folder_without_a_model_is_refused_with_the_reason(
    config: EvalConfig, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        anyio.run(evaluated(replace(config, endpoint=f"hf:{tmp_path}")))


def entries(path: Path) -> int:
    with ResponseCache(path) as cache:
        return cache.info().entries


# --- The file -----------------------------------------------------------------------------------


def test_turns_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(cache_module.time, "time", lambda: now[0])
    monkeypatch.setenv("HELDOUT_CACHE_MAX_DAYS", "2")
    with ResponseCache(tmp_path / "c") as cache:
        cache.put(b"old", b"turn")
        now[0] += 2 * 86400 - 1
        assert cache.get(b"old") == b"turn"
        now[0] += 1
        assert cache.get(b"old") is None
        cache.put(b"new", b"turn")
    assert entries(tmp_path / "c") == 1


def test_the_oldest_turns_go_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(cache_module.time, "time", lambda: now[0])
    monkeypatch.setenv("HELDOUT_CACHE_MAX_MB", "0.3")
    with ResponseCache(tmp_path / "c") as cache:
        for number in range(6):
            now[0] += 1
            cache.put(bytes([number]), b"x" * 100_000)
    with ResponseCache(tmp_path / "c") as cache:
        assert [number for number in range(6) if cache.get(bytes([number]))] == [3, 4, 5]
        assert cache.info().bytes < 400_000  # the file has become smaller, too
    monkeypatch.setenv("HELDOUT_CACHE_MAX_MB", "much")
    with pytest.raises(InvalidInput, match="HELDOUT_CACHE_MAX_MB must be a number"):
        ResponseCache(tmp_path / "c")


WRITER = """
import sys
from pathlib import Path
from heldout.models.cache import ResponseCache

with ResponseCache(Path(sys.argv[1])) as cache:
    for i in range(int(sys.argv[2]), int(sys.argv[2]) + 50):
        cache.put(i.to_bytes(4, "big"), b"turn %d" % i)
"""


@pytest.mark.integration
def test_several_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c"
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, first]) for first in ("0", "40")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    with ResponseCache(path) as cache:
        assert cache.info().entries == 90  # they share ten keys
        assert all(cache.get(i.to_bytes(4, "big")) == b"turn %d" % i for i in range(90))


def test_a_turn_that_was_damaged_on_disk_is_asked_again(tmp_path: Path) -> None:
    with ResponseCache(tmp_path / "c") as cache:
        cache.put(b"k", b"The answer is 4.")
    content = (tmp_path / "c").read_bytes()
    (tmp_path / "c").write_bytes(content.replace(b"is 4.", b"is 5."))
    with ResponseCache(tmp_path / "c") as cache:
        assert cache.info().entries == 1
        assert cache.get(b"k") is None


def test_the_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    ResponseCache(tmp_path / "c").close()
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o600


def test_another_file_is_left_as_it_is(tmp_path: Path) -> None:
    text, database = tmp_path / "text", tmp_path / "db"
    text.write_text("not a database, but long enough to look like one " * 40)
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE precious (x)")
    for path in (text, database):
        before = path.read_bytes()
        with pytest.raises(InvalidInput, match=str(path)):
            ResponseCache(path)
        assert path.read_bytes() == before


def test_a_cache_that_fails_costs_a_warning_and_no_result(
    server: FaultyServer, config: EvalConfig, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(str(config.cache))
    ResponseCache(path).close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("ALTER TABLE turns RENAME TO others")
    report = anyio.run(evaluated(config))
    assert report.summary["n_scored"] == 2
    assert [r.message for r in caplog.records if "response cache" in r.message] == [
        f"the response cache {path} fails: no such table: turns"
    ]


# --- The command line ---------------------------------------------------------------------------

EVAL_FILE = """
from heldout import EvalConfig, Metric, Sample, Score

config = EvalConfig(endpoint="vllm:m@{url}", output_dir="{folder}", progress=False)

def load_dataset():
    return [Sample("a", {{"prompt": "2 + 2?"}})]

def score_fn(trajectory, sample):
    return Score((Metric("four", trajectory.answer == "4", 1.0),))
"""


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HELDOUT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_the_command_shows_and_clears_the_cache(own_folder: Path) -> None:
    shown = CliRunner().invoke(command, [])
    assert "no cache yet" in shown.output
    with ResponseCache(default_path()) as cache:
        cache.put(b"k", b"turn")
    shown = CliRunner().invoke(command, [])
    assert f"{default_path()}: 1 turn, 0.0 MB, stored" in shown.output
    for arguments in (["show", "--json"], ["--json", "show"], ["--json"]):
        as_json = CliRunner().invoke(command, arguments)
        assert json.loads(as_json.stdout)["entries"] == 1
    kept = CliRunner().invoke(command, ["clear", "--older-than", "1"])
    assert "removed 0 turns" in kept.output
    cleared = CliRunner().invoke(command, ["clear"])
    assert "removed 1 turn" in cleared.output
    assert entries(default_path()) == 0


def test_every_command_says_what_came_from_the_cache_and_a_gate_refuses_copies(
    server: FaultyServer,
    own_folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from heldout.cli.main import run_cli
    from heldout.viewer.pages import Pages

    def run(*arguments: str) -> tuple[int, str]:
        status = run_cli([*arguments])
        captured = capfd.readouterr()
        return status, " ".join((captured.out + captured.err).split())

    monkeypatch.setenv("COLUMNS", "200")
    server.script(answer("4"))
    text = EVAL_FILE.format(url=server.url, folder=own_folder / "runs")
    file = own_folder / "sums.py"
    file.write_text(
        text.replace(
            "[Sample(", "[Sample(str(i), {'prompt': f'{i}?'}) for i in range(3)] + [Sample("
        )
    )
    one, two = (str(own_folder / "runs" / name) for name in ("one", "two"))
    for name, line in (
        ("one", "From the response cache: 0 model turns. Sent to the model: 4 requests."),
        ("two", "From the response cache: 4 model turns. Sent to the model: 0 requests."),
    ):
        status, said = run("run", str(file), "--cache", "--set", f"experiment_name={name}")
        assert status == 0
        assert line in said
    assert default_path().exists()
    assert "cache" not in run("show", one)[1]
    came = "4 model turns came from the response cache: no item has a new one"
    assert came in run("show", two)[1]
    summary = json.loads(run("show", two, "--json")[1])["summary"]
    assert (summary["n_cached"], summary["cached_turns"]) == (4, 4)
    nothing = "two measured nothing new: all of its model turns came from the response cache"
    for arguments in (["compare", one, two], ["power", two, "--detect", "0.1"]):
        assert nothing in run(*arguments)[1]
    bounds = ["gate", two, "--baseline", one, "--no-worse-than", "0.5"]
    status, said = run(*bounds)
    assert status == 2
    assert "two measured nothing new" in said
    assert "--allow cached" in said
    status, said = run(*bounds, "--allow", "cached")
    assert status in (0, 3)
    assert nothing in said
    pages = Pages([own_folder / "runs"])
    first, second = sorted(row["name"] for row in pages.runs()["runs"])
    assert came in json.dumps(pages.run(second))
    assert "measured nothing new" in json.dumps(pages.compare(first, second, "", "reward", ()))


def test_run_takes_extra_fields_by_dotted_keys(server: FaultyServer, own_folder: Path) -> None:
    from heldout.cli.main import run_cli

    file = own_folder / "sums.py"
    file.write_text(EVAL_FILE.format(url=server.url, folder=own_folder / "runs"))
    settings = [
        "sampling.extra_body.thinking.type=adaptive",
        "sampling.extra_body.top_k=5",
        "sampling.extra_body.temperature=null",
        f"cache={own_folder / 'here'}",
    ]
    arguments = [part for setting in settings for part in ("--set", setting)]
    assert run_cli(["run", str(file), *arguments]) == 0
    body = server.requests[0].body
    assert body["thinking"] == {"type": "adaptive"}
    assert body["top_k"] == 5
    assert "temperature" not in body
    assert (own_folder / "here").exists()
