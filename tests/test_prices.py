"""Prices: a cost where the user has set one, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from heldout import Completion, EvalConfig, EvalReport, Message, Sample, Usage, evaluate
from heldout.errors import InvalidInput
from heldout.prices import Price, find_price, load_prices

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
    assert mini is not None
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


def test_a_run_with_a_price_says_what_it_cost_in_summary_json_and_report(tmp_path: Path) -> None:
    report = run_eval(tmp_path, "priced", price={"input": 1.0, "output": 4.0})
    assert report.usage.n == 2
    assert report.usage.prompt_tokens == 2_000_000
    assert report.usage.completion_tokens == 1_000_000
    assert report.usage.cost == 6.0
    assert report.path is not None
    stored = json.loads((report.path / "summary.json").read_text())
    assert stored["usage"] == {
        "n": 2, "prompt_tokens": 2_000_000, "completion_tokens": 1_000_000, "cost": 6.0,
    }  # fmt: skip
    picked = report.where("id = 'q1'")
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
