"""tools.jsonl: what the policy could call, once for all results that name it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from heldout import EvalReport, EvalResult, Message, Sample, ToolSpec, Trajectory
from heldout.store import tools as tools_file
from heldout.store.columns import summarize_results
from heldout.store.journal import JournalWriter

PRICE = ToolSpec("price", "Look it up.", {"type": "object", "properties": {"item": {}}})
SEARCH = ToolSpec("search", "Search for a text.")
PLAIN = EvalResult("a", Sample("a", {"question": "?"}), Trajectory((Message("user", "?"),)))


def results_of(*tools: tuple[ToolSpec, ...]) -> list[EvalResult]:
    return [
        replace(PLAIN, sample_id=f"{i}", sample=replace(PLAIN.sample, id=f"{i}"), tools=each)
        for i, each in enumerate(tools)
    ]


def save(path: Path, results: list[EvalResult]) -> EvalReport:
    EvalReport(results, summarize_results(results), {"repeats": 1}).save(path)
    return EvalReport.load(path)


def test_tools_are_stored_once_and_read_back_with_every_result(tmp_path: Path) -> None:
    results = results_of((PRICE,), (), (PRICE, SEARCH), (PRICE,))
    report = save(tmp_path / "run", results)
    assert list(report.results) == results
    assert report.results[0].tools is report.results[3].tools
    assert (tmp_path / "run" / "tools.jsonl").read_bytes().count(b"Look it up.") == 2
    report.save(tmp_path / "copy")
    assert list(EvalReport.load(tmp_path / "copy").results) == results
    journal = JournalWriter(tmp_path / "run" / "results.jsonl")  # as a resumed run opens it
    journal.append(4, results[2])
    journal.close()
    assert (tmp_path / "run" / "tools.jsonl").read_bytes().count(b"\n") == 3
    assert not (save(tmp_path / "none", results_of(())).path / "tools.jsonl").exists()  # type: ignore[operator]


@pytest.mark.parametrize("damage", ["gone", "a line", "the header"])
def test_results_are_read_without_tools_that_are_lost(tmp_path: Path, damage: str) -> None:
    results = results_of((PRICE,), (SEARCH,))
    save(tmp_path / "run", results)
    file = tmp_path / "run" / "tools.jsonl"
    if damage == "gone":
        file.unlink()
    else:
        place = b"Look it up." if damage == "a line" else b"heldout.tools"
        file.write_bytes(file.read_bytes().replace(place, b"\x00"))
    tools = [result.tools for result in EvalReport.load(tmp_path / "run").results]
    assert (
        tools
        == {
            "gone": [(), ()],
            "a line": [(), (SEARCH,)],
            "the header": [(PRICE,), (SEARCH,)],
        }[damage]
    )


@pytest.mark.parametrize("largest", [*range(100, 160, 5), 400])
def test_tools_that_differ_in_every_sample_stay_with_their_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(tools_file, "LARGEST", largest)
    results = results_of(*((replace(PRICE, name=f"price_{i}"),) for i in range(9)))
    assert list(save(tmp_path / "run", results).results) == results
    file = tmp_path / "run" / "tools.jsonl"
    assert not file.exists() or file.stat().st_size <= largest
