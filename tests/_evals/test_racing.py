"""Races: models on the same samples in the same order, of which the losers stop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from heldout import EvalConfig, EvalReport, Message, arace, race
from heldout._core.prices import Price
from heldout._evals import racing
from heldout._evals.racing import RaceReport
from heldout._evals.rollout import EvalDefinition
from heldout.analysis import compare
from heldout.errors import InvalidInput, ItemFailed, NotComparable, ResumeMismatch
from heldout.types import Completion, Usage
from tests._evals.test_stopping import SAMPLES, grade, model
from tests.conftest import both_loops, make_samples

RATES = {"A": 0.7, "B": 0.95, "C": 0.4, "D": 0.68}


def configs(
    folder: Path, rates: Mapping[str, float] = RATES, **settings: Any
) -> dict[str, EvalConfig]:
    return {
        name: EvalConfig(
            **{
                "endpoint": model(rate, name, ticks=3),
                "experiment_name": name,
                "output_dir": str(folder),
                "max_concurrent": 8,
                **settings,
            }
        )
        for name, rate in rates.items()
    }


def run_race(
    entrants: dict[str, EvalConfig],
    backend: str = "asyncio",
    samples: Any = SAMPLES,
    **settings: Any,
) -> RaceReport:
    definition = EvalDefinition(samples, grade)
    return anyio.run(partial(racing.run_race, definition, entrants, **settings), backend=backend)


def outcome(report: RaceReport) -> list[Any]:
    """What of a race must not depend on timing."""
    return [report.decision, report.sentence, report.looks_used, report.placed]


@both_loops
def test_the_losers_stop_costing_and_the_best_is_known(tmp_path: Path, backend: str) -> None:
    lines: list[str] = []
    report = run_race(configs(tmp_path), backend, announce=lines.append)
    assert (report.decision, report.exit_code) == ("best_known", 0)
    winner, *losers = report.placed
    assert (winner.name, winner.beaten_by, winner.difference) == ("B", None, None)
    assert winner.interval is not None
    assert winner.interval.low <= winner.mean <= winner.interval.high
    assert losers[-1].name == "C", "the worst is dropped first"
    assert losers[-1].n_decided <= winner.n_decided < 400
    for loser in losers:
        assert loser.beaten_by is not None
        assert loser.difference_interval is not None
        assert loser.difference_interval.high < 0
    assert report.n_spent < 4 * 400
    assert len(lines) == report.looks_used
    assert "out: C" in lines[-1]


def test_every_model_has_a_run_that_says_how_it_came_out(tmp_path: Path) -> None:
    report = run_race(configs(tmp_path))
    by_name = {placed.name: placed for placed in report.placed}
    for name in RATES:
        run = EvalReport.load(tmp_path / name)
        assert run.settled is not None
        assert run.settled.decision == ("true" if name == "B" else "false")
        assert run.summary["n"] == run.settled.n_decided == by_name[name].n_decided
        assert run.summary["ci_low"] is None
        assert run.settled.baseline == by_name[name].beaten_by
    a, b = (EvalReport.load(tmp_path / name) for name in "AB")
    with pytest.raises(NotComparable, match="stopped by a race"):
        compare(a, b, allow=["samples"])


def test_the_race_is_the_same_whatever_the_concurrency(tmp_path: Path) -> None:
    races = [run_race(configs(tmp_path / f"{n}", max_concurrent=n)) for n in (1, 8, 64)]
    assert outcome(races[0]) == outcome(races[1]) == outcome(races[2])


def test_models_that_are_alike_cannot_be_told_apart(tmp_path: Path) -> None:
    report = run_race(configs(tmp_path, {"A": 0.7, "B": 0.7, "C": 0.2}), samples=SAMPLES[:200])
    assert (report.decision, report.exit_code) == ("cannot_tell_apart", 3)
    assert "cannot be told apart: the set is used up, after 200 of 200 items" in report.sentence
    assert report.sentence.endswith("Beaten: C.")
    assert {placed.name for placed in report.placed[:2]} == {"A", "B"}


class Counted:
    """A model that says what its answers took."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0
        self.breaks_after: int | None = None

    async def complete(self, messages: list[Message], sampling: Any, tools: Any) -> Completion:
        self.asked += 1
        if self.breaks_after is not None and self.asked > self.breaks_after:
            raise ValueError("broken")
        answer = await model(0.7, self.name)(messages)
        return Completion(Message("assistant", answer), "stop", Usage(1_000_000, 0))

    def describe(self) -> dict[str, Any]:
        return {"kind": "counted", "model": self.name}


def test_a_race_ends_at_its_limit_of_cost(tmp_path: Path) -> None:
    entrants = {
        name: replace(config, endpoint=Counted(name), price=Price(1, 0))
        for name, config in configs(tmp_path, {"A": 0.7, "B": 0.7}).items()
    }
    report = run_race(entrants, max_cost=100)
    assert (report.decision, report.exit_code) == ("cost_used_up", 3)
    assert "max_cost is reached" in report.sentence
    assert 100 <= report.n_spent <= 100 + 2 * (20 + 8)
    free = configs(tmp_path / "free", {"A": 0.7, "B": 0.7})
    with pytest.raises(InvalidInput, match="what A costs is not known"):
        run_race(free, max_cost=100)
    assert not (tmp_path / "free").exists(), "nothing ran"


def test_the_limit_of_cost_counts_what_was_spent_before_a_resume(tmp_path: Path) -> None:
    entrants = {
        name: replace(config, endpoint=Counted(name), price=Price(1, 0), on_error="raise")
        for name, config in configs(tmp_path, {"A": 0.7, "B": 0.7}).items()
    }
    entrants["B"].endpoint.breaks_after = 45
    with pytest.raises(ItemFailed):
        run_race(entrants, max_cost=100)
    entrants["B"].endpoint.breaks_after = None
    resuming = {name: replace(config, resume=True) for name, config in entrants.items()}
    report = run_race(resuming, max_cost=100)
    assert report.decision == "cost_used_up"
    assert 100 <= report.n_spent <= 100 + 2 * (20 + 8)
    asked = sum(config.endpoint.asked for config in entrants.values())
    assert outcome(run_race(resuming, max_cost=100)) == outcome(report), "the looks were paid for"
    assert sum(config.endpoint.asked for config in entrants.values()) == asked
    more = run_race(resuming, max_cost=200)
    assert more.looks_used > report.looks_used
    assert 200 <= more.n_spent <= 200 + 2 * (20 + 8)


def test_a_race_that_was_interrupted_goes_on_to_the_same_end(tmp_path: Path) -> None:
    whole = run_race(configs(tmp_path / "whole"))
    breaks = configs(tmp_path / "broken", on_error="raise")
    right, answered = breaks["D"].endpoint, 0

    async def until_it_breaks(messages: list[Message]) -> str:
        nonlocal answered
        answered += 1
        if answered > 30:
            raise ValueError("broken")
        return await right(messages)

    # The same function to a reader of its source: what breaks is beside it.
    broken = {**breaks, "D": replace(breaks["D"], endpoint=Same(until_it_breaks))}
    with pytest.raises(ItemFailed):
        run_race(broken)
    mended = {**breaks, "D": replace(breaks["D"], endpoint=Same(right))}
    resumed = run_race({name: replace(c, resume=True) for name, c in mended.items()})
    assert outcome(resumed) == outcome(whole)
    fewer = {name: replace(c, resume=True) for name, c in mended.items() if name != "A"}
    with pytest.raises(ResumeMismatch, match="models"):
        run_race(fewer)


class Same:
    """An endpoint that is known by no function of its own."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def complete(self, messages: list[Message], sampling: Any, tools: Any) -> Completion:
        return Completion(Message("assistant", await self.answer(messages)), "stop")

    def describe(self) -> dict[str, Any]:
        return {"kind": "same"}


@both_loops
def test_a_race_is_a_plain_call_with_a_run_for_each_model(tmp_path: Path, backend: str) -> None:
    models = {name: model(rate, name) for name, rate in RATES.items()}
    settings: dict[str, Any] = {
        "models": models,
        "experiment_name": "quiz",
        "output_dir": str(tmp_path),
        "max_concurrent": 8,
    }
    report = race(SAMPLES, grade, **settings)
    assert outcome(report) == outcome(run_race(configs(tmp_path / "below")))
    for placed in report.placed:
        assert placed.report is not None
        assert placed.report.path is not None
        assert placed.report.path.parent == tmp_path / f"quiz-{placed.name}"
    call = partial(arace, SAMPLES, grade, **settings, resume=True)
    assert outcome(anyio.run(call, backend=backend)) == outcome(report)
    assert len([*tmp_path.glob("quiz-*/2*")]) == 4, "nothing was run anew"


def test_a_call_that_names_no_race_is_refused(tmp_path: Path) -> None:
    for settings, match in [
        ({"models": ["smollm2"]}, "two models or more"),
        ({"models": ["smollm2", "smollm2"]}, "smollm2 is in the race twice"),
        ({"models": [model(0.7), model(0.8)]}, "a dict that names functions"),
        ({"models": {"a b": "smollm2", "a-b": "smollm2"}}, "would be called run-a-b"),
        ({"models": ["smollm2", "hf:x"], "until": "mean>0.5"}, "leave out until"),
        ({"models": ["smollm2", "hf:x"], "model": "smollm2"}, "give models"),
        ({"models": ["smollm2", "hf:x"], "epoch": 2}, "epoch"),
    ]:
        with pytest.raises((InvalidInput, TypeError), match=match):
            race(SAMPLES, grade, output_dir=str(tmp_path), **settings)
    assert not any(tmp_path.iterdir())


def test_clusters_of_a_race_are_one_step(tmp_path: Path) -> None:
    samples = [
        replace(sample, metadata={"chapter": n // 4, "book": n // 100})
        for n, sample in enumerate(SAMPLES)
    ]
    report = run_race(configs(tmp_path), samples=samples, cluster="chapter")
    assert report.decision == "best_known"
    assert all(placed.n_decided % 4 == 0 for placed in report.placed)
    run = EvalReport.load(tmp_path / "B")
    seen = [result.sample.metadata["chapter"] for result in run.results]
    assert seen == sorted(seen, key=seen.index)
    assert run.config["cluster"] == "chapter"


def test_bad_input_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="two models or more"):
        run_race(configs(tmp_path, {"A": 0.7}))
    with pytest.raises(InvalidInput, match="how many samples there are"):
        run_race(configs(tmp_path), samples=iter(SAMPLES))
    with pytest.raises(InvalidInput, match="level must be"):
        run_race(configs(tmp_path), level=0)
    with pytest.raises(InvalidInput, match="5 samples cannot show.* of 2 models.* takes 6 or more"):
        run_race(configs(tmp_path, {"A": 0.7, "B": 0.8}), samples=SAMPLES[:5])
    with pytest.raises(InvalidInput, match="7 samples cannot show.* of 4 models.* takes 8 or more"):
        run_race(configs(tmp_path), samples=SAMPLES[:7])
    halves = [replace(sample, metadata={"half": n % 2}) for n, sample in enumerate(SAMPLES)]
    with pytest.raises(InvalidInput, match="2 clusters by half cannot show.* takes 14 or more"):
        run_race(configs(tmp_path), samples=halves, cluster="half")
    assert not any(tmp_path.iterdir())
    limited = run_race(configs(tmp_path, max_samples=40), samples=iter(make_samples(100)))
    assert limited.n_asked == 40
