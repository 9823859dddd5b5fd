"""Two reports side by side: what is paired, what is refused, what errored items count as."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from heldout import EvalReport, Metric, Sample, Sampling, Score, Trajectory
from heldout.analysis import compare
from heldout.errors import InvalidInput, NotComparable, RunDirectoryError
from heldout.reporting.comparisons import notes
from heldout.stats import PairedDifference, UnpairedDifference, paired_difference
from tests.analysis.runs import by_hand, knows, lenient, run, samples


def two(tmp_path: Path) -> tuple[EvalReport, EvalReport]:
    """Of 40 questions one answers 20 right, the other those and the next 10 but the first 2."""
    before = run(tmp_path, "before", knows(lambda i: i < 20))
    after = run(tmp_path, "after", knows(lambda i: 2 <= i < 30))
    return before, after


# --- Pairs --------------------------------------------------------------------------------------


def test_samples_are_paired_by_id_and_the_difference_is_what_b_gained(tmp_path: Path) -> None:
    before, after = two(tmp_path)
    found = compare(before, after)
    assert isinstance(found.overall, PairedDifference)
    assert (found.overall.n, found.overall.mean_a, found.overall.mean_b) == (40, 0.5, 0.7)
    assert found.overall.difference == pytest.approx(0.2)
    assert (found.overall.wins, found.overall.losses, found.overall.ties) == (10, 2, 28)
    assert [change.id for change in found.gained] == [f"s{i}" for i in range(20, 30)]
    assert [(change.id, change.a, change.b) for change in found.lost] == [
        ("s0", 1.0, 0.0),
        ("s1", 1.0, 0.0),
    ]
    assert found.verdict == "b_better"
    assert compare(after, before).verdict == "a_better"
    assert found.mismatches == ()
    assert notes(found) == []


def test_passed_and_metrics_can_be_compared_too() -> None:
    one = by_hand({f"s{i}": 0.4 for i in range(20)}, name="a")
    other = by_hand({f"s{i}": 0.6 for i in range(20)}, name="b")
    passed = compare(one, other, metric="passed")
    assert (passed.overall.mean_a, passed.overall.mean_b) == (0.0, 1.0)
    assert passed.verdict == "b_better"
    assert compare(one, other, metric="r").overall == compare(one, other).overall
    assert compare(one, other, metric="passed", pass_threshold=0.7).overall.mean_b == 0
    with pytest.raises(InvalidInput, match="no metric 'speed'; it has reward, .*, r$"):
        compare(one, other, metric="speed")


def test_the_minimum_detectable_effect_is_detected_with_80_percent_power(tmp_path: Path) -> None:
    found = compare(*two(tmp_path))
    assert found.minimum_detectable is not None
    random, difference, losses = np.random.default_rng(0), found.minimum_detectable, 2 / 40
    won, lost = (random.random((2000, 40)) < share for share in (losses + difference, losses))
    lost &= ~won
    wins, losts = won.sum(axis=1), lost.sum(axis=1)
    tails = scipy_stats.binom.cdf(losts, wins + losts, 0.5)  # of the exact test
    # A little more, since in these two as many samples rise as before, whatever the difference.
    assert 0.78 <= ((tails < 0.025) & (wins > losts)).mean() <= 0.92


def test_few_pairs_that_differ_do_not_make_small_differences_visible() -> None:
    rewards = {f"s{i}": 1.0 for i in range(100)}
    one, other = by_hand(rewards, name="a"), by_hand({**rewards, "s0": 0.0}, name="b")
    found = compare(one, other).minimum_detectable
    assert 0.05 < found < 0.1
    same = compare(one, by_hand(rewards, name="b")).minimum_detectable
    assert same <= found


def test_samples_that_share_a_cluster_are_not_independent() -> None:
    ids = [f"s{i}" for i in range(40)]
    passages = {id: {"passage": i // 10} for i, id in enumerate(ids)}
    one = by_hand(dict.fromkeys(ids, 0.0), name="a", metadata=passages)
    other = by_hand({id: float(i < 20) for i, id in enumerate(ids)}, name="b", metadata=passages)
    alone, together = compare(one, other), compare(one, other, cluster="passage")
    assert together.overall.clusters == 4
    assert together.overall.difference == alone.overall.difference
    assert alone.verdict == "b_better"
    assert together.verdict == "inconclusive"


def test_rewards_beyond_0_and_1_are_not_taken_for_rates_because_their_means_lie_there() -> None:
    one = by_hand({f"s{i}": [2.0, -1.0] for i in range(9)}, name="a")
    other = by_hand({f"s{i}": [2.0, -1.0 + i / 10] for i in range(9)}, name="b")
    assert compare(one, other).overall.test == "t"
    assert compare(one, other, paired=False).overall.test == "welch"


def test_a_metric_of_ones_own_is_higher_or_lower_and_has_both_readings() -> None:
    ids = [f"s{i}" for i in range(60)]
    one = by_hand({id: 0.5 + i % 3 / 10 for i, id in enumerate(ids)}, name="a")
    more = {id: 0.8 + i % 3 / 10 for i, id in enumerate(ids)}
    assert compare(one, by_hand(more, name="b"), metric="r").verdict == "b_higher"
    assert compare(by_hand(more, name="b"), one, metric="r").verdict == "a_higher"
    broken = compare(one, by_hand({**more, **dict.fromkeys(ids[:30])}, name="b"), metric="r")
    assert broken.errors_as == 0
    assert broken.with_errors is not None
    assert broken.verdict == "inconclusive"


def test_a_metric_that_a_scored_item_did_not_report_is_no_error() -> None:
    def made(name: str, lengths: list[float | None]) -> EvalReport:
        report = by_hand({f"s{i}": 1.0 for i in range(len(lengths))} | {"e": None}, name=name)
        results = [
            r
            if not r.ok or length is None
            else replace(r, score=Score((Metric("length", length),)))
            for r, length in zip(report.results, [*lengths, None], strict=True)
        ]
        return replace(report, results=results)

    found = compare(made("a", [3.0, 4.0, None]), made("b", [5.0, 6.0, 7.0]), metric="length")
    assert found.overall.n == 2
    assert found.with_errors.n == 3
    assert found.with_errors.mean_a == pytest.approx(7 / 3)


def test_where_rewards_can_be_negative_what_errored_counts_as_the_least() -> None:
    """0 would be better than a failure, and erring on failures would look like a gain."""
    random = np.random.default_rng(9)
    a = random.choice([-1.0, 1.0], 400)
    fails = np.where(random.random(400) < 0.2, random.choice([-1.0, 1.0], 400), a)
    b = [None if x < 0 and random.random() < 0.5 else float(x) for x in fails]
    one = by_hand({f"s{i}": float(x) for i, x in enumerate(a)}, name="a")
    found = compare(one, by_hand({f"s{i}": x for i, x in enumerate(b)}, name="b"))
    assert found.errors_as == -1
    assert abs(found.with_errors.difference) < 0.1
    assert found.verdict == "inconclusive"


def test_pass_at_k_is_compared_over_samples() -> None:
    one = by_hand({"x": [1.0, 0.0, 0.0], "y": [0.0, 0.0, 0.0], "z": [1.0, 1.0, 1.0]}, name="a")
    other = by_hand({"x": [1.0, 1.0, 0.0], "y": [0.0, 0.0, 1.0], "z": [1.0, 1.0, 1.0]}, name="b")
    found = compare(one, other, metric="pass@2").overall
    assert found.mean_a == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert found.mean_b == pytest.approx((1 + 2 / 3 + 1) / 3)
    assert compare(one, other, metric="pass^2").overall.mean_a == pytest.approx(1 / 3)
    with pytest.raises(InvalidInput, match="pass@4 needs 4 attempts .* a has 3 at 'x'"):
        compare(one, other, metric="pass@4")


def test_errored_attempts_are_left_out_of_pass_at_k_or_have_not_passed() -> None:
    one = by_hand({"x": [1.0, None, 0.0], "y": [None, None, 1.0], "z": [1.0, 1.0, 1.0]}, name="a")
    found = compare(one, by_hand({id: [1.0] * 3 for id in "xyz"}, name="b"), metric="pass@2")
    assert found.overall.n == 2
    assert found.overall.mean_a == pytest.approx((1 + 1) / 2)
    assert found.with_errors.mean_a == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_flips_are_by_reward_whatever_is_compared() -> None:
    rewards = {f"s{i}": float(i) for i in range(100)}
    turned = {id: 99 - reward for id, reward in rewards.items()}
    one, other = (
        by_hand(given, name=name, config={"pass_threshold": 50})
        for name, given in (("a", rewards), ("b", turned))
    )
    for metric in ("reward", "passed", "r"):
        found = compare(one, other, metric=metric)
        assert (len(found.gained), len(found.lost)) == (50, 50)
        assert (found.overall.gained, found.overall.lost) == (50, 50)
        assert (found.gained[0].id, found.gained[0].a, found.gained[0].b) == ("s0", 0.0, 99.0)


def test_a_metric_that_is_called_as_a_measure_is_reached_by_its_whole_name() -> None:
    def made(name: str, value: float) -> EvalReport:
        report = by_hand({"x": 1.0, "y": 1.0}, name=name)
        results = [
            replace(r, score=Score((*r.score.metrics, Metric("passed", value))))
            for r in report.results
        ]
        return replace(report, results=results)

    one, other = made("a", 0.0), made("b", 1.0)
    assert compare(one, other, metric="passed").overall.difference == 0
    assert compare(one, other, metric="metric.passed").overall.difference == 1


def test_a_slice_without_a_value_on_both_sides_is_named_and_was_looked_at() -> None:
    levels = {f"s{i}": {"level": "rare" if i < 4 else "usual"} for i in range(40)}
    one = by_hand({id: float(int(id[1:]) % 2) for id in levels}, name="a", metadata=levels)
    gone = {id: None if level["level"] == "rare" else 1.0 for id, level in levels.items()}
    found = compare(one, by_hand(gone, name="b", metadata=levels), by="level")
    assert found.slices_not_compared == (("rare",),)
    (usual,) = found.slices
    assert usual.adjusted_p_value == pytest.approx(min(1.0, 2 * (usual.difference.p_value or 0)))
    assert {part.label for part in found.slices_with_errors} == {("rare",), ("usual",)}


def test_means_of_the_same_rewards_in_another_order_are_ties() -> None:
    random = np.random.default_rng(1)
    values = random.choice([0.1, 0.2, 0.3, 0.7], size=(30, 256))
    one = by_hand({f"s{i}": row.tolist() for i, row in enumerate(values)}, name="a")
    shuffled = random.permuted(values, axis=1)
    other = by_hand({f"s{i}": row.tolist() for i, row in enumerate(shuffled)}, name="b")
    found = compare(one, other).overall
    assert (found.wins, found.losses, found.p_value) == (0, 0, 1.0)


# --- Slices -------------------------------------------------------------------------------------


def test_slices_are_corrected_for_how_many_there_are(tmp_path: Path) -> None:
    found = compare(*two(tmp_path), by="level")
    assert {part.label: part.difference.n for part in found.slices} == {
        ("easy",): 20,
        ("hard",): 20,
    }
    for part in found.slices:
        alone, together = part.difference.interval, part.simultaneous_interval
        assert together.low < alone.low < alone.high < together.high
        assert part.adjusted_p_value >= part.difference.p_value


def test_several_keys_make_slices_of_their_combinations() -> None:
    metadata = {f"s{i}": {"level": i % 2, "topic": "ab"[i // 2 % 2]} for i in range(8)}
    one = by_hand(dict.fromkeys(metadata, 0.0), name="a", metadata=metadata)
    other = by_hand(dict.fromkeys(metadata, 1.0), name="b", metadata=metadata)
    found = compare(one, other, by=("level", "topic"))
    assert {part.label for part in found.slices} == {(0, "a"), (1, "a"), (0, "b"), (1, "b")}
    assert found.by == ("level", "topic")


# --- Errors -------------------------------------------------------------------------------------


def test_errored_items_are_left_out_in_one_reading_and_0_in_the_other() -> None:
    one = by_hand({"x": 1.0, "y": 1.0, "z": 0.0, "w": [None, 1.0]}, name="a")
    other = by_hand({"x": 1.0, "y": None, "z": 1.0, "w": [1.0, 1.0]}, name="b")
    found = compare(one, other)
    assert isinstance(found.overall, PairedDifference)
    assert isinstance(found.with_errors, PairedDifference)
    assert (found.overall.n, found.with_errors.n) == (3, 4)
    assert found.overall.mean_a == pytest.approx(2 / 3)
    assert found.with_errors.mean_a == pytest.approx(2.5 / 4)
    assert found.with_errors.mean_b == pytest.approx(3 / 4)
    assert (found.a.errored, found.b.errored) == (1, 1)
    assert (found.a.left_out, found.b.left_out) == (1, 1)


# --- What is not comparable ---------------------------------------------------------------------


X = by_hand({"x": 1.0, "y": 0.0})


@pytest.mark.parametrize(
    ("a", "b", "settings", "said"),
    [
        (X, {"x": 1.0, "y": 0.0}, {"allow": ["all"]}, "allow takes some of samples, .*got 'all'"),
        (X, {"x": 1e200, "y": 0.0}, {}, r"b\[0\] is 1e\+200"),
        (X, {"x": None, "y": None}, {}, "b has no score: all of its 2 items errored"),
        (by_hand({"x": None, "y": 1}), {"x": 1, "y": None}, {}, "no sample with a reward on both"),
        (3, {"x": 1.0}, {}, "a report, or the path of a run directory"),
    ],
)
def test_what_cannot_be_compared_is_said(
    a: Any, b: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        compare(a, by_hand(b, name="b"), **settings)


def test_a_run_is_compared_by_its_path_and_not_with_itself(tmp_path: Path) -> None:
    before, after = two(tmp_path)
    assert compare(before.path, str(after.path)) == compare(before, after)
    with pytest.raises(InvalidInput, match="compared with itself"):
        compare(before, before.path)
    (tmp_path / "curve.jsonl").touch()
    with pytest.raises(RunDirectoryError, match="is a curve"):
        compare(tmp_path, tmp_path)


def test_other_samples_are_refused_and_named(tmp_path: Path) -> None:
    before = run(tmp_path, "before", knows(lambda i: i < 20))
    after = run(tmp_path, "after", knows(lambda i: i < 30), of=50)
    with pytest.raises(NotComparable, match="10 samples only in after: 's40', 's41', 's42', …"):
        compare(before, after)
    found = compare(before, after, allow=["samples"])
    assert found.overall.n == 40
    assert found.b.left_out == 10
    assert [mismatch.kind for mismatch in found.mismatches] == ["samples"]
    assert found.shared_samples == 40


@pytest.mark.parametrize("field", ["input", "ground_truth"])
def test_the_same_id_with_another_content_is_another_sample(tmp_path: Path, field: str) -> None:
    changed = samples(40)
    new = {"input": {"question": "3 "}, "ground_truth": "33"}[field]
    changed[3] = replace(changed[3], **{field: new})
    before = run(tmp_path, "before", lambda messages: "3")
    after = run(tmp_path, "after", lambda messages: "3", of=changed)
    with pytest.raises(NotComparable, match="1 sample with another input or ground truth: 's3'"):
        compare(before, after)


def test_metadata_may_change_unless_it_is_what_the_slices_are_made_of(tmp_path: Path) -> None:
    changed = samples(40)
    changed[3] = replace(changed[3], metadata={"level": "easy"})
    before = run(tmp_path, "before", knows(lambda i: i < 20))
    after = run(tmp_path, "after", knows(lambda i: i < 20), of=changed)
    assert compare(before, after).overall.difference == 0
    with pytest.raises(NotComparable, match="another level: 's3' has 'hard' and 'easy'"):
        compare(before, after, by="level")


def test_a_scorer_of_the_same_name_and_other_code_is_another_scorer(tmp_path: Path) -> None:
    def long(trajectory: Trajectory, sample: Sample, *, at_least: int) -> Score:
        enough = len(str(trajectory.messages[-1].content)) >= at_least
        return Score((Metric("long", float(enough), 1.0),))

    endpoint = knows(lambda i: i < 20)
    before = run(tmp_path, "before", endpoint, score=partial(long, at_least=1))
    after = run(tmp_path, "after", endpoint, score=partial(long, at_least=2))
    with pytest.raises(NotComparable, match="the code of .*, or of something it uses, differs"):
        compare(before, after)


def test_another_meaning_of_passed_is_refused_unless_it_is_stated(tmp_path: Path) -> None:
    before = run(tmp_path, "before", knows(lambda i: i < 20))
    after = run(tmp_path, "after", knows(lambda i: i < 20), pass_threshold=0.9)
    with pytest.raises(NotComparable, match="pass_threshold is 0.5 and 0.9"):
        compare(before, after, metric="passed")
    assert compare(before, after, metric="passed", pass_threshold=0.9).pass_threshold == 0.9
    assert compare(before, after, metric="passed", allow=["threshold"]).pass_threshold == 0.5
    said = notes(compare(before, after))
    assert "pass_threshold is 0.5 and 0.9; flips are by the first" in said


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    before = run(tmp_path, "before", knows(lambda i: i < 20))
    after = run(tmp_path, "after", knows(lambda i: i < 20))
    journal = after.path / "results.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:31]))
    info = json.loads((after.path / "run.json").read_bytes())
    (after.path / "run.json").write_text(json.dumps({**info, "status": "interrupted"}))
    with pytest.raises(NotComparable, match=r"after is not finished \(interrupted\): it has 30"):
        compare(before.path, after.path)
    found = compare(before.path, after.path, allow=["incomplete"])
    assert found.overall.n == 30


def test_everything_that_differed_is_said_at_once(tmp_path: Path) -> None:
    before = run(tmp_path, "before", knows(lambda i: i < 20))
    after = run(tmp_path, "after", knows(lambda i: i < 20), of=30, score=lenient)
    with pytest.raises(NotComparable, match=r"samples: .*scorer: .*allow it: samples, scorer$"):
        compare(before, after)


def test_settings_that_one_may_want_to_compare_are_noted(tmp_path: Path) -> None:
    before = run(tmp_path, "before", knows(lambda i: i < 20))
    after = run(
        tmp_path, "after", knows(lambda i: i < 20), max_turns=3, sampling=Sampling(temperature=0.7)
    )
    found = compare(before, after)
    assert found.changed_settings == {"max_turns": (16, 3), "sampling.temperature": (0.0, 0.7)}
    (note,) = notes(found)
    assert note.startswith("settings differ, too: ")
    assert "max_turns (A: 16, B: 3)" in note
    assert "sampling.temperature" in note


def test_another_prompt_is_noted_and_another_environment_refused(tmp_path: Path) -> None:
    before, after = two(tmp_path)
    assert before.path is not None
    place = after.path / "run.json"
    info = json.loads(place.read_bytes())
    info["functions"]["prepare_messages"] = {"name": "ask_nicely", "source": "abcdef01"}
    place.write_text(json.dumps(info))
    (note,) = notes(compare(before.path, after.path))
    assert "prepare_messages (A: 'ask " in note
    assert ", B: 'ask_nicely abcdef')" in note
    info["functions"]["environment_factory"] = {"name": "Maze", "source": "ab"}
    place.write_text(json.dumps(info))
    with pytest.raises(NotComparable, match="environment: environment_factory is None and 'Maze'"):
        compare(before.path, after.path)


def test_a_run_whose_scorer_is_not_known_is_compared_with_a_note(tmp_path: Path) -> None:
    before, after = two(tmp_path)
    place = after.path / "run.json"
    place.write_text(json.dumps({**json.loads(place.read_bytes()), "functions": {}}))
    found = compare(before, after.path)
    assert found.unknown_scorers == ("after",)
    assert "how after was scored is unknown: it may differ" in notes(found)
    by_hands = notes(compare(X, by_hand({"x": 0, "y": 0}, name="b")))
    assert by_hands == ["how by hand and b were scored is unknown: it may differ"]


def test_two_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    one = run(tmp_path / "one", "same", knows(lambda i: i < 20))
    other = run(tmp_path / "other", "same", knows(lambda i: i < 20))
    found = compare(one, other)
    assert (found.a.name, found.b.name) == (str(one.path), str(other.path))
    hand = compare(by_hand({"x": 1, "y": 0}), by_hand({"x": 0, "y": 0}))
    assert (hand.a.name, hand.b.name) == ("A", "B")


# --- Without pairs ------------------------------------------------------------------------------


def test_samples_with_nothing_in_common_are_compared_unpaired_with_a_warning() -> None:
    one = by_hand({f"a{i}": float(i < 10) for i in range(40)}, name="a")
    other = by_hand({f"b{i}": float(i < 30) for i in range(40)}, name="b")
    with pytest.raises(NotComparable, match="40 samples only in a"):
        compare(one, other)
    found = compare(one, other, allow=["samples"])
    assert isinstance(found.overall, UnpairedDifference)
    assert not found.paired
    assert found.gained == found.lost == ()
    assert found.shared_samples == 0
    assert any("not paired: no sample is in both" in note for note in notes(found))
    assert found.verdict == "b_better"
    assert found.minimum_detectable is not None


def test_where_samples_differ_slices_and_clusters_are_each_sides_own() -> None:
    def made(name: str, count: int) -> EvalReport:
        ids = [f"{name}{i}" for i in range(count)]
        metadata = {id: {"level": i % 2, "passage": i // 5} for i, id in enumerate(ids)}
        rewards = {id: float(i % 3 == 0) for i, id in enumerate(ids)}
        return by_hand(rewards, name=name, metadata=metadata)

    found = compare(made("a", 40), made("b", 60), allow=["samples"], by="level", cluster="passage")
    assert isinstance(found.overall, UnpairedDifference)
    assert (found.overall.clusters_a, found.overall.clusters_b) == (8, 12)
    counts = {part.label: (part.difference.n_a, part.difference.n_b) for part in found.slices}
    assert counts == {(0,): (20, 30), (1,): (20, 30)}
    for paired in (True, False):
        found = compare(made("a", 1), made("b", 60), allow=["samples"], by="level", paired=paired)
        assert [part.label for part in found.slices] == [(0,)]
        assert found.slices_not_compared == ((1,),)


def test_pairing_can_be_declined(tmp_path: Path) -> None:
    before, after = two(tmp_path)
    alone = compare(before, after, paired=False, by="level")
    assert isinstance(alone.overall, UnpairedDifference)
    assert alone.overall.difference == pytest.approx(compare(before, after).overall.difference)
    assert len(alone.slices) == 2


def test_episodes_that_could_not_be_seeded_are_not_paired() -> None:
    config = {"kind": "episodes", "env": "E", "seeded": False, "success_is": "a win"}
    one = by_hand({f"e{i}": i % 2 for i in range(20)}, name="a", config=config)
    other = by_hand({f"e{i}": 1 for i in range(20)}, name="b", config=config)
    found = compare(one, other)
    assert not found.paired
    assert found.unseeded == ("a", "b")
    assert "the episodes of a and b had no seeds" in notes(found)[0]
    more = by_hand({f"e{i}": 1 for i in range(30)}, name="b", config=config)
    assert compare(one, more).overall.n_b == 30
    with pytest.raises(NotComparable, match="success_is is 'a win' and 'a goal'"):
        compare(one, by_hand({"e0": 1}, config={**config, "success_is": "a goal"}))


# --- As JSON ------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_pure_function() -> None:
    random = np.random.default_rng(7)
    a, b = random.normal(size=50), random.normal(0.3, size=50)
    one = by_hand({f"s{i}": float(x) for i, x in enumerate(a)}, name="a")
    other = by_hand({f"s{i}": float(x) for i, x in enumerate(b)}, name="b")
    assert compare(one, other).overall == paired_difference(a, b, pass_threshold=0.5)
