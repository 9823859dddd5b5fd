"""Prices: a cost where the user has set one, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from heldout import Completion, EvalConfig, EvalReport, Message, Sample, Usage, evaluate
from heldout._core.prices import Price, find_price, load_prices
from heldout._evals.rescoring import rescore
from heldout.environments import SimulatedUser
from heldout.errors import InvalidInput
from heldout.reporting.summaries import describe_usage
from heldout.scoring import Rubric
from heldout.scoring.judges import Judge
from heldout.store.run_dir import RunDir, hash_ends
from heldout.store.runs import list_runs

TABLE = """
["openai:gpt-4o-mini"]
input = 0.15
output = 0.60

[llama]
input = 1
output = 2
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "prices.toml"
    file.write_text(TABLE)
    monkeypatch.setenv("HELDOUT_PRICES", str(file))
    return file


def answer(messages: list[Message]) -> Completion:
    return Completion(Message("assistant", "Paris"), usage=Usage(1_000_000, 500_000))


def run_eval(folder: Path, name: str, **settings: Any) -> EvalReport:
    samples = [Sample(f"q{i}", {"question": f"Question {i}?"}, "Paris") for i in range(2)]
    config = EvalConfig(
        endpoint=answer, experiment_name=name, output_dir=str(folder / "runs"), **settings
    )
    return anyio.run(evaluate, samples, config, lambda t, s: s.ground_truth in t.answer)


@pytest.mark.usefixtures("table")
def test_a_cost_is_tokens_times_the_price_of_a_million() -> None:
    mini, llama = find_price("openai:gpt-4o-mini"), find_price("vllm:llama")
    assert llama is not None  # its entry names no provider
    assert mini.cost(2_000_000, 1_000_000) == pytest.approx(0.90)
    assert llama.cost(2_000_000, 1_000_000) == 4.0


@pytest.mark.usefixtures("table")
def test_a_model_without_a_price_has_none_rather_than_0() -> None:
    assert find_price("openai:gpt-4o") is None
    assert find_price("openai:gpt-4o-mini@http://localhost:8000/v1") is None


def test_without_a_file_there_are_no_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("HELDOUT_PRICES", raising=False)
    assert load_prices() == {}
    (tmp_path / "heldout").mkdir()
    (tmp_path / "heldout/prices.toml").write_text(TABLE)
    assert load_prices()["llama"] == Price(1, 2)


@pytest.mark.parametrize("text", ["[m]\ninput = 1", "m = 3", "[m]\ninput = -1\noutput = 1", "["])
def test_a_file_that_holds_no_prices_is_refused_by_name(table: Path, text: str) -> None:
    table.write_text(text)
    with pytest.raises(InvalidInput, match=str(table)):
        load_prices()
    with pytest.raises(InvalidInput, match=str(table)):  # a judge may need it, at the end
        run_eval(table.parent, "run", price=Price(1, 2))
    assert not (table.parent / "runs").exists()


def test_a_run_with_a_price_says_what_it_cost_in_summary_json_and_report(tmp_path: Path) -> None:
    report = run_eval(tmp_path, "priced", price={"input": 1.0, "output": 4.0})
    assert report.usage.n == 2
    assert report.usage.prompt_tokens == 2_000_000
    assert report.usage.completion_tokens == 1_000_000
    assert report.usage.cost == 6.0
    stored = json.loads((report.path / "summary.json").read_text())
    share = {"n": 2, "prompt_tokens": 2_000_000, "completion_tokens": 1_000_000, "cost": 6.0}
    policy = {"role": "policy", "model": None, "unknown": 0, **share}
    assert stored["usage"] == {**share, "models": [policy]}
    picked = report.where("sample_id = 'q1'")
    assert picked.usage.cost == 3.0


def test_a_run_without_a_price_has_tokens_and_no_cost(tmp_path: Path) -> None:
    report = run_eval(tmp_path, "free")
    assert report.usage.completion_tokens == 1_000_000
    assert report.usage.cost is None
    in_memory = EvalReport(list(report.results), report.summary, report.config)
    assert in_memory.usage == report.usage


@pytest.mark.usefixtures("table")
def test_the_price_of_a_run_is_kept_when_the_table_changes(tmp_path: Path, table: Path) -> None:
    class Server:
        async def complete(self, messages: Any, sampling: Any, tools: Any) -> Completion:
            return answer(messages)

        def describe(self) -> dict[str, Any]:
            return {"kind": "openai", "model": "llama", "base_url": "http://localhost:8000/v1"}

        async def close(self) -> None: ...

    samples = [Sample("q", {"question": "?"}, "Paris")]
    config = EvalConfig(endpoint=Server(), experiment_name="run", output_dir=str(tmp_path / "runs"))
    report = anyio.run(evaluate, samples, config, lambda t, s: True)
    assert report.usage.cost == 2.0
    table.write_text("[llama]\ninput = 100\noutput = 100")
    assert EvalReport.load(tmp_path / "runs/run").usage.cost == 2.0
    resumed = anyio.run(evaluate, samples, replace(config, resume=True), lambda t, s: True)
    assert resumed.summary == report.summary  # another price does not make it another eval


# --- Other models than the policy ---


class Served:
    """A model of a server, which says how many tokens it took."""

    kind, base_url = "openai", "http://localhost:8000/v1"

    def __init__(self, model: str, *replies: str, usage: Usage | None = None) -> None:
        self.model, self.replies, self.usage = model, list(replies), usage

    async def complete(self, messages: Any, sampling: Any, tools: Any) -> Completion:
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return Completion(Message("assistant", reply), "stop", self.usage)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "model": self.model, "base_url": self.base_url}

    async def close(self) -> None: ...


CORRECT = '{"reason": "it is", "verdict": "correct"}'


def run_judged(folder: Path, judge: Served, **settings: Any) -> EvalReport:
    """Two samples, a user that says one thing and is done, and a judge."""
    samples = [Sample(f"q{i}", {"question": f"Question {i}?"}, "Paris") for i in range(2)]
    config = EvalConfig(
        endpoint=answer,
        experiment_name="judged",
        output_dir=str(folder / "runs"),
        price=Price(1.0, 4.0),
        max_concurrent=1,
        max_error_rate=1,
        **settings,
    )
    user = Served("llama", "Thanks. [DONE]", usage=Usage(2_000, 1_000))
    return anyio.run(
        evaluate,
        samples,
        config,
        Rubric(Judge(judge, attempts=1).three_way()),
        None,
        lambda sample: SimulatedUser(user, first_message="Hello"),
    )


@pytest.mark.usefixtures("table")
def test_judges_and_users_are_in_tokens_and_cost_each_with_its_share(tmp_path: Path) -> None:
    # The second reply is no verdict: an error, which was paid for all the same.
    judge = Served("llama", CORRECT, "hm", usage=Usage(30_000, 5_000))
    report = run_judged(tmp_path, judge)
    assert report.summary["n_errors"] == 1
    usage = report.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (2_064_000, 1_012_000)
    shares = [(m.role, m.model, m.n, m.prompt_tokens, m.cost) for m in usage.models]
    name = "vllm:llama"
    assert shares == [
        ("policy", None, 2, 2_000_000, 6.0),
        ("judge", name, 2, 60_000, pytest.approx(0.08)),
        ("user", name, 2, 4_000, pytest.approx(0.008)),
    ]
    assert usage.cost == pytest.approx(6.088)
    assert report.path is not None
    assert EvalReport.load(report.path).usage == usage
    in_memory = EvalReport(list(report.results), report.summary, report.config)
    assert in_memory.usage == usage
    assert report.where("sample_id = 'q1'").usage.models[2].prompt_tokens == 2_000
    (entry,) = list_runs(tmp_path / "runs")
    assert (entry.prompt_tokens, entry.cost) == (2_064_000, usage.cost)


def test_there_is_no_cost_where_a_judge_has_no_price_or_does_not_count(tmp_path: Path) -> None:
    report = run_judged(tmp_path, Served("big", CORRECT))
    policy, judge, _ = report.usage.models
    assert (policy.cost, judge.n, judge.unknown, judge.cost) == (6.0, 0, 2, None)
    assert report.usage.cost is None
    assert describe_usage(report) == (
        "tokens: 2,004,000 in, 1,002,000 out (policy: 2,000,000 in, 1,000,000 out, cost 6.00; "
        "judge vllm:big: not reported; "
        "user vllm:llama: 4,000 in, 2,000 out, no price)"
    )


@pytest.mark.usefixtures("table")
def test_rescoring_counts_its_own_judge_and_the_same_user(tmp_path: Path) -> None:
    report = run_judged(tmp_path, Served("llama", CORRECT, usage=Usage(1, 1)))
    judge = Judge(Served("gpt", CORRECT, usage=Usage(7, 1)))
    rescored = anyio.run(rescore, report, Rubric(judge.three_way()))
    roles = [(m.role, m.prompt_tokens) for m in rescored.usage.models]
    assert roles == [("policy", 2_000_000), ("judge", 14), ("user", 4_000)]


def test_usage_of_an_earlier_version_is_the_policys(tmp_path: Path) -> None:
    report = run_eval(tmp_path, "old", price={"input": 1.0, "output": 4.0})
    assert report.path is not None
    run = RunDir(report.path)
    stored = json.loads(run.summary.read_text())
    del stored["usage"]["models"]
    run.summary.write_text(json.dumps(stored))
    info = run.read_info()
    info.summary_hash = hash_ends(run.summary)
    run.write_info(info)
    (policy,) = EvalReport.load(report.path).usage.models
    assert (policy.role, policy.n, policy.cost) == ("policy", 2, 6.0)
