"""`heldout aggregate`: what it prints of several training runs, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from heldout import EvalReport, EvalResult, Metric, Sample, Score, Trajectory
from heldout.store.columns import summarize_results
from heldout.vector.report import Episode, VectorReport
from tests.cli.conftest import Heldout

FEW = ("--repetitions", "500")


def save_run(
    name: str,
    seed: int,
    *,
    worth: float = 0.5,
    games: int = 3,
    folder: Path = Path("outputs/evals"),
) -> None:
    rng = np.random.default_rng([seed, round(worth * 100)])
    results = []
    for i in range(games * 10):
        sample = Sample(f"s{i}", {}, metadata={"game": f"game {i % games}", "seed": i // 10})
        score = Score((Metric("won", rng.random() < worth, 1.0), Metric("moves", 40 + seed)))
        results.append(EvalResult(sample.id, sample, Trajectory(()), score))
    config = {"experiment_name": name}
    EvalReport(results, summarize_results(results), config).save(folder / name)


def save_episodes(name: str, returns: list[float], env: str = "CartPole-v1") -> None:
    table = [Episode(i, None, 0, ret, False, False, False) for i, ret in enumerate(returns)]
    VectorReport({}, table, {"kind": "episodes", "env": env}).save(f"outputs/evals/{name}")


@pytest.fixture
def runs(saved: Path) -> list[str]:
    names = [f"ppo{i}" for i in range(5)]
    if not (saved / "aggregated").exists():
        for seed, name in enumerate(names):
            save_run(name, seed, folder=saved / "aggregated")
    shutil.copytree(saved / "aggregated", "outputs/evals")
    return names


def numbers(out: str, label: str) -> list[float]:
    line = next(line for line in out.splitlines() if line.strip().startswith(label))
    return [float(n) for n in re.findall(r"-?\d+\.\d+", line.strip().removeprefix(label))]


def test_aggregate_prints_each_number_with_its_interval_and_what_it_is_over(
    runs: list[str], heldout: Heldout
) -> None:
    outcome = heldout("aggregate", *runs, "--tasks", "game", *FEW)
    assert outcome.code == 0, outcome.err
    assert outcome.out.splitlines()[0] == "ppo0, ppo1, ppo2, ppo3, ppo4"
    assert "reward over 5 runs x 3 tasks (game 0, game 1, game 2), 150 items" in outcome.out
    for label in ("interquartile mean", "mean", "median", "optimality gap to 1"):
        value, low, high = numbers(outcome.out, label)
        assert low < value < high, label
    assert "500 resamples of runs within each task (seed 0)" in outcome.out
    assert "from 5 runs are too narrow" not in outcome.out
    assert "the interval of a median over tasks is far too narrow" in " ".join(outcome.out.split())


def test_one_run_has_no_interval(runs: list[str], heldout: Heldout) -> None:
    out = heldout("aggregate", runs[0], "--tasks", "game", *FEW).out
    assert re.search(r"interquartile mean +\d\.\d+ +–", out)
    assert "one run does not show how runs differ" in out
    assert "resamples" not in out


def test_one_run_directory_may_hold_several_training_runs(
    runs: list[str], heldout: Heldout
) -> None:
    out = heldout("aggregate", "ppo0", "--runs", "seed", *FEW).out
    assert out.startswith("seed 0, 1, 2\nreward over 3 runs x 1 task, 30 items")
    assert "median of the runs" in out
    assert "3 runs of 1 task have 10 different resamples" in out


def test_against_adds_the_chance_to_beat_those(runs: list[str], heldout: Heldout) -> None:
    worse = [f"old{i}" for i in range(5)]
    for seed, name in enumerate(worse):
        save_run(name, seed, worth=0.2)
    against = [part for name in worse for part in ("--baseline", name)]
    outcome = heldout("aggregate", *runs, "--tasks", "game", *against, *FEW)
    assert "against old0, old1, old2, old3, old4" in outcome.out
    value, low, high = numbers(outcome.out, "probability of improvement")
    assert 0.5 < low <= value <= high <= 1
    shown = json.loads(heldout("aggregate", *runs, "--tasks", "game", *against, *FEW, "--json").out)
    assert round(shown["improvement_probability"], 3) == value
    assert (shown["runs"], shown["against"]["runs"]) == (runs, worse)
    assert np.mean(shown["scores"]) == pytest.approx(shown["mean"])
    # The second table has the baseline's own numbers, and the differences.
    *_, row = (line for line in outcome.out.splitlines() if line.strip().startswith("mean "))
    base, low, high, difference, *ends = numbers(row, "mean")
    assert low < base < high
    assert difference == round(shown["mean_difference"], 3) > 0.2
    assert ends == [round(shown[f"mean_difference_ci_{end}"], 3) for end in ("low", "high")]
    assert base == round(shown["against"]["mean"], 3)
    assert shown["mean_difference"] == pytest.approx(shown["mean"] - shown["against"]["mean"])


def test_what_cannot_be_aggregated_exits_with_1_and_says_why(
    runs: list[str], heldout: Heldout
) -> None:
    save_run("small", 0, games=2)
    for arguments, why in (
        (["ppo0", "small", "--tasks", "game"], "run 'small' has no results on task 'game 2'"),
        (["nowhere"], "there is no run at nowhere"),
        (["ppo0", "ppo1", "--seed", "-1"], "seed must be 0 or more; got -1"),
        (["ppo0", "ppo1", "--optimum", "inf"], "optimum must be a finite number"),
        (["ppo0", "small"], "allow it: samples (--allow samples)"),
        ([], "Missing argument 'RUN"),
    ):
        outcome = heldout("aggregate", *arguments)
        assert outcome.code == 2, arguments
        assert why in outcome.err
        assert outcome.out == ""


def test_what_is_allowed_to_differ_is_printed(runs: list[str], heldout: Heldout) -> None:
    save_run("small", 0, games=2)
    arguments = ("ppo0", "small", "--baseline", "ppo1", "--allow", "samples", *FEW)
    outcome = heldout("aggregate", *arguments)
    assert outcome.code == 0, outcome.err
    assert "allowed to differ: samples: 10 samples only in ppo0" in outcome.out
    notes = json.loads(heldout("aggregate", *arguments, "--json").out)["notes"]
    assert any(note.startswith("allowed to differ: samples: ") for note in notes)


def test_names_from_a_file_are_shown_and_not_obeyed(heldout: Heldout) -> None:
    save_episodes("agent", [1.0], env="\x1b[31mred\nrow")
    out = heldout("aggregate", "agent", *FEW).out
    assert "\x1b" not in out
    assert "red\\nrow" in out
