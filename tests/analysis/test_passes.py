"""pass@k, pass^k and clustered error bars of one report."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heldout import EvalReport
from heldout.analysis import (
    compare,
    count_three_way,
    gate,
    group_by,
    pass_at_k,
    pass_hat_k,
    plan,
    score_matrix,
    summarize,
)
from heldout.analysis.passes import summarize_report
from heldout.errors import InvalidInput, RunDirectoryError
from heldout.stats import Moments
from heldout.store.columns import summarize_results
from heldout.store.run_config import repeats_of
from heldout.store.run_dir import RunDir
from tests.analysis.runs import Rewards, by_hand


def passages(count: int = 24, each: int = 4, *, missing: int = 0, repeats: int = 1) -> EvalReport:
    """Questions about passages, which are easy or hard as a whole."""
    rng = random.Random(7)
    rewards, metadata = {}, {}
    for i in range(count * each):
        passage = i % count  # those of one passage are far apart
        right = passage % 3 > 0
        rewards[f"q{i}"] = [float(right != (rng.random() < 0.1)) for _ in range(repeats)]
        metadata[f"q{i}"] = {"passage": f"p{passage}", "half": i % 2}
        if i < missing:
            metadata[f"q{i}"] = {"half": i % 2}
    return by_hand(rewards, metadata=metadata, config={"repeats": repeats})


# --- pass@k -------------------------------------------------------------------------------------

THREE: Rewards = {"a": [1.0, 0.0, 0.0], "b": [1.0, 1.0, 0.0], "c": [0.0, 0.0, 0.0]}


def test_pass_at_k_is_the_unbiased_mean_over_samples() -> None:
    report = by_hand(THREE)
    assert pass_at_k(report, 1).value == pytest.approx((1 / 3 + 2 / 3 + 0) / 3)
    assert pass_at_k(report, 2).value == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert pass_at_k(report, 3).value == pytest.approx(2 / 3)
    assert pass_hat_k(report, 2).value == pytest.approx((0 + 1 / 3 + 0) / 3)
    assert pass_hat_k(report, 3).value == 0.0
    assert pass_at_k(report, 2).questions == 3


def test_pass_at_1_is_the_pass_rate_with_its_interval() -> None:
    report = passages(repeats=3)
    rate, summary = pass_at_k(report, 1), report.summary
    assert rate.value == pytest.approx(summary["pass_rate"])
    assert rate.interval.low == pytest.approx(summary["pass_rate_ci_low"])
    assert rate.interval.high == pytest.approx(summary["pass_rate_ci_high"])


def test_what_passes_is_the_reports_threshold_or_the_one_given() -> None:
    report = by_hand({"a": [0.6, 0.2], "b": [0.4, 0.4]}, config={"pass_threshold": 0.3})
    assert pass_at_k(report, 2).value == 1.0
    assert pass_at_k(report, 2, pass_threshold=0.5).value == 0.5
    assert pass_at_k(list(report.results), 2).value == 0.5  # no report, so 0.5


def test_samples_of_too_few_attempts_are_named() -> None:
    report = by_hand({"a": [1.0, 0.0], "b": [1.0], "c": [0.0]})
    with pytest.raises(InvalidInput, match="k is 2, .* 'b', 'c'"):
        pass_at_k(report, 2)


def test_where_nothing_has_a_score_there_is_no_pass_rate() -> None:
    report = by_hand({"a": [None, None]}, config={"repeats": 2})
    with pytest.raises(InvalidInput, match="none of 2 items has a score"):
        pass_hat_k(report, 1)
    assert summarize_report(report)["pass_at_2"] is None


def test_pass_at_k_can_be_clustered() -> None:
    report = passages(repeats=2)
    alone, clustered = pass_at_k(report, 2), pass_at_k(report, 2, cluster="passage")
    assert (alone.clusters, clustered.clusters) == (96, 24)
    assert clustered.value == alone.value
    assert (clustered.stderr or 0) > 1.5 * (alone.stderr or 0)


# --- Clusters -----------------------------------------------------------------------------------


def test_clustering_changes_error_bars_and_nothing_else() -> None:
    report = passages()
    clustered = summarize(report.results, cluster="passage")
    assert clustered["clustered_by"] == "passage"
    assert (clustered["n_clusters"], clustered["n_without_cluster"]) == (24, 0)
    for key in report.summary:
        if "ci_" in key or "stderr" in key:
            assert clustered[key] != report.summary[key], key
        else:
            assert clustered[key] == pytest.approx(report.summary[key]), key
    assert clustered["stderr"] > 1.5 * report.summary["stderr"]


def test_the_clustered_error_is_that_of_the_formula() -> None:
    report = passages()
    rewards = np.array([r.score.reward for r in report.results])
    groups = np.array([int(r.metadata["passage"][1:]) for r in report.results])
    sums = np.bincount(groups, weights=rewards - rewards.mean())
    expected = np.sqrt(24 / 23 * (sums**2).sum()) / len(rewards)
    assert summarize(report.results, cluster="passage")["stderr"] == pytest.approx(expected)
    assert Moments.of(rewards, groups).stderr == pytest.approx(expected)


def test_repeats_of_a_sample_stay_in_its_cluster() -> None:
    report = passages(repeats=3)
    assert summarize(report.results, cluster="passage")["n_clusters"] == 24
    moods = [replace(r, metadata={"mood": r.repeat}) for r in report.results]
    with pytest.raises(InvalidInput, match="'mood' is not the same in all repeats of sample 'q0'"):
        summarize(moods, cluster="mood")


def test_a_sample_without_a_value_is_a_cluster_of_its_own() -> None:
    summary = summarize(passages(missing=5).results, cluster="passage")
    assert summary["n_without_cluster"] == 5
    assert summary["n_clusters"] == 24 + 5


def test_slices_are_clustered_too_and_say_how_many_clusters_each_has(tmp_path: Path) -> None:
    report = passages(missing=1)
    report.save(tmp_path / "run")
    loaded = EvalReport.load(tmp_path / "run")
    slices, total = loaded.slices_and_total("half", cluster="passage")
    plain, plain_total = loaded.slices_and_total("half")
    assert set(slices) == set(plain) == {(0,), (1,)}
    assert [slices[(i,)]["n_clusters"] for i in (0, 1)] == [13, 12]
    assert [slices[(i,)]["n_without_cluster"] for i in (0, 1)] == [1, 0]
    assert total == summarize(loaded.results, cluster="passage")
    for label, summary in slices.items():
        same = [r for r in report.results if r.metadata["half"] == label[0]]
        assert summary == summarize(same, cluster="passage")
        assert summary["mean"] == pytest.approx(plain[label]["mean"])
    assert total["n"] == plain_total["n"]


def test_slices_of_many_values_are_those_of_each(tmp_path: Path) -> None:
    rewards = {f"q{i}": [float(i % 3 == 0), float(i % 5 == 0)] for i in range(60)}
    metadata = {id: {"kind": i * 7 % 20, "page": i % 6} for i, id in enumerate(rewards)}
    by_hand(rewards, metadata=metadata, config={"repeats": 2}).save(tmp_path / "run")
    loaded = EvalReport.load(tmp_path / "run")
    slices, _ = loaded.slices_and_total("kind", "repeat", cluster="page")
    assert list(slices)[:3] == [(0, 0), (0, 1), (1, 0)]
    assert len(slices) == 40
    for (kind, repeat), summary in slices.items():
        same = [r for r in loaded.results if (r.metadata["kind"], r.repeat) == (kind, repeat)]
        assert summary == summarize(same, cluster="page")
    whole, _ = loaded.slices_and_total("kind")
    for (kind,), summary in whole.items():
        same = [r for r in loaded.results if r.metadata["kind"] == kind]
        assert summary == summarize(same)


# --- The summary of a report --------------------------------------------------------------------


def test_a_report_with_repeats_has_pass_at_their_number() -> None:
    report = passages(repeats=3)
    summary = summarize_report(report)
    extra = {key for key in summary if key not in report.summary}
    assert extra == {
        f"{name}_3{end}"
        for name in ("pass_at", "pass_hat")
        for end in ("", "_n", "_stderr", "_ci_low", "_ci_high")
    }
    rate = pass_at_k(report, 3)
    assert (summary["pass_at_3"], summary["pass_at_3_n"]) == (rate.value, 96)
    assert summary["pass_at_3_ci_high"] == rate.interval.high
    assert summary["pass_hat_3"] == pass_hat_k(report, 3).value


@pytest.mark.parametrize(
    ("repeats", "threshold"), [(-1, float("inf")), ("2", "1")], ids=["negative", "text"]
)
def test_a_config_that_makes_no_sense_is_read_as_if_it_were_not_there(
    repeats: object, threshold: object, tmp_path: Path
) -> None:
    passages(repeats=2).save(tmp_path / "run")
    run = RunDir(tmp_path / "run")
    info = run.read_info()
    info.config |= {"repeats": repeats, "pass_threshold": threshold}
    run.write_info(info)
    run.summary.unlink()
    loaded = EvalReport.load(run.path)
    assert (repeats_of(loaded.config), loaded.pass_threshold) == (1, 0.5)
    assert summarize_report(loaded, cluster="passage")["pass_rate"] == loaded.summary["pass_rate"]
    assert loaded.slices_and_total("half")[1] == loaded.summary


def test_of_an_unfinished_report_what_cannot_be_said_yet_is_none_and_counted() -> None:
    whole = by_hand({"a": [1.0, 1.0], "b": [1.0, 0.0], "c": [1.0]}, config={"repeats": 2})
    report = replace(
        whole, summary={**summarize_results(whole.results), "complete": False, "n_asked": 6}
    )
    summary = summarize_report(report, pass_at=[1, 2])
    assert summary["pass_at_1"] == pytest.approx((1 + 0.5 + 1) / 3)
    assert [summary[f"pass_{name}_2{end}"] for name in ("at", "hat") for end in ("", "_n")] == [
        None
    ] * 4
    assert summary["pass_at_2_short"] == 1


def test_a_finished_report_that_has_fewer_attempts_than_it_says_is_shown_all_the_same() -> None:
    report = by_hand(THREE, config={"repeats": 4})
    summary = summarize_report(report, pass_at=[3])
    assert summary["pass_at_3"] == pytest.approx(2 / 3)
    assert (summary["pass_at_4"], summary["pass_at_4_short"]) == (None, 3)


# --- Groups -------------------------------------------------------------------------------------


def test_a_clustered_summary_of_an_unfinished_report_says_that_it_is_unfinished() -> None:
    report = passages()
    report = replace(report, summary={**report.summary, "complete": False, "n_asked": 120})
    summary = summarize_report(report, cluster="passage")
    assert (summary["complete"], summary["n_asked"], summary["n"]) == (False, 120, 96)


def test_groups_are_the_slices_of_a_summary() -> None:
    report = by_hand(
        {"a": [1.0, None], "b": [0.0, 1.0], "c": [1.0, 1.0]},
        metadata={"a": {"level": 2, "tags": ["x"]}, "b": {"level": 1.5}},
    )
    groups = group_by(report, "level")
    assert {value: [r.sample_id for r in group] for value, group in groups.items()} == {
        1.5: ["b", "b"],
        2.0: ["a", "a"],
        None: ["c", "c"],
    }
    for key in ("level", "tags", "ok", "repeat", lambda result: result.sample_id > "a"):
        slices = report.summarize(by=key)
        groups = group_by(list(report.results), key)
        assert [*groups] == [*slices]
        assert {value: summarize(group) for value, group in groups.items()} == slices
    assert len(group_by([*report.results, *report.results], "repeat")[0]) == 6
    with pytest.raises(RunDirectoryError, match="no key 'lvl'; its samples have level, tags"):
        group_by(report, "lvl")


# --- Selected by outcome ------------------------------------------------------------------------

FOUR: Rewards = {f"q{i}": [1.0, float(i % 2)] if i else [1.0, None] for i in range(8)}
READERS: dict[str, Callable[[EvalReport], object]] = {
    "compare": lambda report: compare(by_hand(FOUR), report),
    "compare with": lambda report: compare(report, by_hand(FOUR)),
    "gate": lambda report: gate(report, min_mean=0.1),
    "plan": lambda report: plan(report, detect=0.1),
    "score_matrix": lambda report: score_matrix([report, by_hand(FOUR)]),
    "pass_at_k": lambda report: pass_at_k(report, 1),
    "pass_hat_k": lambda report: pass_hat_k(report, 1),
    "count_three_way": count_three_way,
    "slices": lambda report: report.slices_and_total("kind", cluster="kind"),
}


@pytest.fixture(params=["memory", "directory"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> EvalReport:
    report = by_hand(FOUR, metadata={id: {"kind": id < "q4"} for id in FOUR})
    if request.param == "memory":
        return report
    report.save(tmp_path / "run")
    return EvalReport.load(tmp_path / "run")


@pytest.mark.parametrize("reader", READERS)
def test_results_picked_by_outcome_are_refused(reader: str, whole: EvalReport) -> None:
    picked = whole.where("reward = 1")
    with pytest.raises(InvalidInput, match="by what came out"):
        READERS[reader](picked)


@pytest.mark.parametrize("reader", [*READERS][:7])
def test_a_report_from_which_results_were_taken_is_refused(reader: str, whole: EvalReport) -> None:
    scored = [result for result in whole.results if result.ok]
    for taken in (
        replace(whole, results=scored),
        *([replace(whole, results=scored, summary=summarize(scored))] if whole.path else []),
    ):
        with pytest.raises(InvalidInput, match="15 results .* of 16; .*where"):
            READERS[reader](taken)


def test_results_of_a_selection_by_outcome_have_means_without_intervals(tmp_path: Path) -> None:
    by_hand(FOUR).save(tmp_path / "run")
    picked = EvalReport.load(tmp_path / "run").where("reward = 1").results
    assert summarize(picked)["mean"] == 1.0
    assert summarize(picked)["ci_low"] is None
    with pytest.raises(InvalidInput, match="by what came out"):
        pass_at_k(picked, 1)


def test_results_that_lack_attempts_have_no_pass_at_k(whole: EvalReport) -> None:
    assert pass_at_k(list(whole.results), 1) == pass_at_k(whole, 1)
    for taken in ([r for r in whole.results if r.ok], [*whole.results][1:]):
        with pytest.raises(InvalidInput, match="'q0' has 1 of 2 attempts"):
            pass_at_k(taken, 1)


def test_a_selection_by_outcome_is_not_saved_as_a_run(whole: EvalReport, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="by what came out.*to_parquet"):
        whole.where("reward = 1").save(tmp_path / "picked")
    whole.where("metadata.kind").save(tmp_path / "picked")
    assert compare(whole, tmp_path / "picked", allow=["samples"]).a.samples == 8
