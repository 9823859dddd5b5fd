"""Pass, fail or inconclusive: by whole intervals, never by two means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heldout import EvalReport
from heldout.analysis import Check, gate
from heldout.errors import InvalidInput, NotComparable
from heldout.stats import Interval
from heldout.stats.differences import tango_interval
from tests.analysis.runs import by_hand, knows, run


def rates(passed_a: int, passed_b: int, n: int, *, changed: int = 0) -> list[EvalReport]:
    """Two reports of 0/1 rewards: `changed` samples each way beside the difference."""
    ids = [f"s{i}" for i in range(n)]
    a = [float(i < passed_a) for i in range(n)]
    b = [float(i < passed_b) for i in range(n)]
    for i in range(changed):
        b[i], b[n - 1 - i] = 0.0, 1.0
    levels = {id: {"level": ("easy", "hard")[i % 2]} for i, id in enumerate(ids)}
    return [
        by_hand(dict(zip(ids, values, strict=True)), name=name, metadata=levels)
        for name, values in (("base", a), ("new", b))
    ]


def outcomes(check: Check) -> tuple[str, str]:
    """Without and with errored items."""
    return check.scored.outcome, check.with_errors.outcome


def test_a_run_passes_where_the_whole_interval_is_within_what_is_tolerated() -> None:
    base, new = rates(500, 520, 1000)
    found = gate(new, baseline=base, no_worse_than=0.01)
    assert (found.outcome, found.exit_code) == ("pass", 0)
    (check,) = found.checks
    assert check.interval.low >= -0.01 == check.bound
    assert (check.estimate, check.n, check.needed) == (pytest.approx(0.02), 1000, None)
    assert check.kind == "overall"


def test_a_run_fails_where_the_whole_interval_is_beyond_it() -> None:
    base, new = rates(500, 420, 1000)
    found = gate(new, baseline=base, no_worse_than=0.01)
    assert (found.outcome, found.exit_code) == ("fail", 1)
    assert found.checks[0].interval.high < -0.01


def test_equal_means_of_few_samples_tell_nothing() -> None:
    base, new = rates(20, 20, 40, changed=5)
    found = gate(new, baseline=base, no_worse_than=0.01)
    assert found.checks[0].estimate == 0
    assert (found.outcome, found.exit_code) == ("inconclusive", 3)
    assert found.checks[0].needed is not None
    worst = gate(new, baseline=base, no_worse_than=0.01, min_mean=0.99)
    assert [check.outcome for check in worst.checks] == ["inconclusive", "fail"]
    assert worst.outcome == "fail"
    base, new = rates(50, 40, 100)  # right at the bound no number of samples would tell
    assert gate(new, baseline=base, no_worse_than=0.1).checks[0].needed is None


def test_the_mean_is_held_against_the_least_one_by_its_interval() -> None:
    ids = {f"s{i}": float(i < 60) for i in range(100)}
    report = by_hand(ids)
    assert gate(report, min_mean=0.5, metric="passed", pass_threshold=2).outcome == "fail"
    copies = by_hand(ids, cached=[*ids])
    with pytest.raises(NotComparable, match="measured nothing new"):
        gate(copies, min_mean=0.5)
    assert gate(copies, min_mean=0.5, allow=["cached"]).outcome == "pass"
    assert gate(report, min_mean=0.5).outcome == "pass"
    assert gate(report, min_mean=0.55).outcome == "inconclusive"
    assert gate(report, min_mean=0.75).outcome == "fail"
    (check,) = gate(report, min_mean=0.5).checks
    assert check.interval == Interval(
        pytest.approx(report.summary["ci_low"]), pytest.approx(report.summary["ci_high"])
    )


def test_one_slice_that_is_worse_fails_a_run_that_is_no_worse_on_the_whole() -> None:
    ids = [f"s{i}" for i in range(400)]
    levels = {id: {"level": ("easy", "hard")[i % 2]} for i, id in enumerate(ids)}
    a = by_hand({id: float(i % 4 < 2) for i, id in enumerate(ids)}, name="a", metadata=levels)
    # All easy ones right, all hard ones wrong.
    b = by_hand({id: float(i % 2 == 0) for i, id in enumerate(ids)}, name="b", metadata=levels)
    assert gate(b, baseline=a, no_worse_than=0.15).outcome == "pass"
    found = gate(b, baseline=a, no_worse_than=0.15, by="level")
    assert found.outcome == "fail"
    assert [(c.slice, c.outcome) for c in found.checks[1:]] == [
        ({"level": "easy"}, "pass"),
        ({"level": "hard"}, "fail"),
    ]


def test_a_slice_fails_only_by_an_interval_that_is_corrected_for_all_slices() -> None:
    random = np.random.default_rng(3)
    alarms = 0
    for _ in range(12):
        ids = [f"s{i}" for i in range(200)]
        parts = {id: {"part": i % 20} for i, id in enumerate(ids)}
        a = by_hand({id: float(random.random() < 0.5) for id in ids}, name="a", metadata=parts)
        b = by_hand({id: float(random.random() < 0.5) for id in ids}, name="b", metadata=parts)
        alarms += any(
            check.outcome == "fail"
            for check in gate(b, baseline=a, no_worse_than=0, by="part").checks[1:]
        )
    assert alarms <= 1  # 20 slices at 2.5% each, uncorrected, would be 5


@pytest.mark.parametrize(
    ("errors", "outcome"), [(0, "pass"), (3, "pass"), (100, "errored"), (400, "errored")]
)
def test_errored_items_must_not_decide(errors: int, outcome: str) -> None:
    ids = [f"s{i}" for i in range(1000)]
    base = by_hand(dict.fromkeys(ids, 0.5), name="base")
    new = by_hand(
        {id: None if i < errors else 0.5 + i % 3 / 100 for i, id in enumerate(ids)}, name="new"
    )
    found = gate(new, baseline=base, no_worse_than=0.03)
    assert found.outcome == outcome
    if outcome == "errored":
        assert found.exit_code == 4
        (check,) = found.checks
        assert check.disputed
        assert outcomes(check) == ("pass", "fail")


def test_errored_items_must_not_decide_in_a_slice_either() -> None:
    ids = [f"s{i}" for i in range(1000)]
    levels = {id: {"level": ("easy", "hard")[i % 2]} for i, id in enumerate(ids)}
    base = by_hand(dict.fromkeys(ids, 0.5), name="base", metadata=levels)
    new = by_hand(
        {id: None if i % 10 == 1 else 0.5 + i % 3 / 100 for i, id in enumerate(ids)},
        name="new",
        metadata=levels,
    )
    found = gate(new, baseline=base, no_worse_than=0.04, by="level")
    assert [(c.slice, c.outcome) for c in found.checks[1:]] == [
        ({"level": "easy"}, "pass"),
        ({"level": "hard"}, "errored"),
    ]


def test_a_slice_of_which_all_items_errored_is_a_check_of_its_own() -> None:
    levels = {f"s{i}": {"level": "rare" if i < 8 else "usual"} for i in range(2000)}
    base = by_hand(dict.fromkeys(levels, 1.0), name="base", metadata=levels)
    gone = {id: None if level["level"] == "rare" else 1.0 for id, level in levels.items()}
    found = gate(
        by_hand(gone, name="new", metadata=levels), baseline=base, no_worse_than=0.02, by="level"
    )
    rare = next(check for check in found.checks if check.slice == {"level": "rare"})
    assert (rare.outcome, rare.n, rare.interval) == ("errored", 0, None)
    assert rare.scored is None
    assert rare.with_errors.outcome == "fail"
    assert found.exit_code == 4


def test_a_metric_of_ones_own_does_not_hide_errors() -> None:
    ids = [f"s{i}" for i in range(150)]
    base = by_hand({id: float(i % 2) for i, id in enumerate(ids)}, name="base")
    coward = by_hand({id: None if i % 2 == 0 else 1.0 for i, id in enumerate(ids)}, name="new")
    assert gate(coward, baseline=base, no_worse_than=0.01, metric="r").outcome != "pass"
    assert gate(coward, min_mean=0.9, metric="r").outcome == "errored"


def test_a_mean_of_graded_values_must_bear_zeros_that_were_not_drawn() -> None:
    report = by_hand({f"s{i}": 0.95 + i % 3 / 100 for i in range(100)})
    assert report.summary["ci_low"] > 0.95
    (check,) = gate(report, min_mean=0.95).checks
    assert check.outcome == "inconclusive"
    assert gate(report, min_mean=0.9).outcome == "pass"


def test_how_many_samples_are_needed_looks_at_both_readings() -> None:
    ids = [f"s{i}" for i in range(400)]
    base = {id: float(i % 2) for i, id in enumerate(ids)}
    new = {**base, **{id: 1 - base[id] for id in ids[:40]}}
    fine = gate(by_hand(new, name="new"), baseline=by_hand(base), no_worse_than=0.02).checks[0]
    few = gate(
        by_hand({**new, "s399": None}, name="new"), baseline=by_hand(base), no_worse_than=0.02
    ).checks[0]
    assert fine.outcome == few.outcome == "inconclusive"
    assert few.needed > 1.2 * fine.needed
    # With eight of them as 0 the loss is what is tolerated, and no number of samples would tell.
    lost = {f"s{i}": None for i in range(385, 400, 2)}
    eight = gate(
        by_hand({**new, **lost}, name="new"), baseline=by_hand(base), no_worse_than=0.02
    ).checks[0]
    assert (eight.outcome, eight.needed) == ("inconclusive", None)


def flips(wins: int, losses: int, n: int) -> list[EvalReport]:
    kinds = [(0.0, 1.0)] * wins + [(1.0, 0.0)] * losses + [(1.0, 1.0)] * (n - wins - losses)
    return [
        by_hand({f"s{i}": pair[side] for i, pair in enumerate(kinds)}, name=name)
        for side, name in enumerate(("base", "new"))
    ]


def share_decided(needed: int | None, won: float, lost: float, bound: float) -> float:
    """Draw so many samples again and again: how often would the gate decide?"""
    assert needed is not None
    draws = np.random.default_rng(0).multinomial(needed, [won, lost, 1 - won - lost], size=1000)
    pairs, counts = np.unique(draws[:, :2], axis=0, return_counts=True)
    decided = 0
    for (wins, losses), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        interval = tango_interval(wins, losses, needed, 1.96)
        decided += count * (interval.low >= -bound or interval.high < -bound)
    return decided / 1000


@pytest.mark.parametrize(
    ("wins", "losses", "n", "margin"), [(6, 6, 100, 0.05), (3, 3, 60, 0.05), (3, 9, 100, 0.02)]
)
def test_so_many_samples_as_it_names_decide_with_80_percent_power(
    wins: int, losses: int, n: int, margin: float
) -> None:
    base, new = flips(wins, losses, n)
    (check,) = gate(new, baseline=base, no_worse_than=margin).checks
    assert check.outcome == "inconclusive"
    won, lost = wins / n, losses / n
    assert 0.75 <= share_decided(check.needed, won, lost, margin) <= 0.86
    either = (won + lost) / 2
    assert 0.75 <= share_decided(check.needed_if_equal, either, either, margin) <= 0.86


@pytest.mark.parametrize("n", [20, 380])
def test_a_model_that_answers_all_alike_needs_as_many_samples_whatever_was_measured(n: int) -> None:
    base, new = flips(0, 0, n)
    (check,) = gate(new, baseline=base, no_worse_than=0.01).checks
    assert (check.outcome, check.needed, check.needed_is_least) == ("inconclusive", 381, True)
    base, new = flips(0, 0, check.needed)
    assert gate(new, baseline=base, no_worse_than=0.01).outcome == "pass"


def test_a_mean_without_spread_and_one_of_other_samples_are_promised_no_more_than_holds() -> None:
    (check,) = gate(flips(0, 0, 50)[0], min_mean=0.99).checks
    assert gate(flips(0, 0, check.needed)[0], min_mean=0.99).outcome == "pass"
    assert gate(flips(0, 0, check.needed - 1)[0], min_mean=0.99).outcome == "inconclusive"

    def unpaired(n: int) -> Check:
        other = by_hand({f"t{i}": 1.0 for i in range(n)}, name="other")
        settings = {"no_worse_than": 0.05, "allow": ["samples"]}
        return gate(flips(0, 0, n)[0], baseline=other, **settings).checks[0]

    needed = unpaired(20).needed
    assert (unpaired(needed - 1).outcome, unpaired(needed).outcome) == ("inconclusive", "pass")


def test_graded_values_are_promised_what_holds() -> None:
    random = np.random.default_rng(5)

    def check(n: int, name: str) -> Check:
        a, noise = random.uniform(0.3, 0.7, n), random.normal(0, 0.1, n)
        reports = [
            by_hand({f"s{i}": float(v) for i, v in enumerate(values)}, name=side)
            for side, values in (("base", a), (name, a + noise - noise.mean() * (n == 30)))
        ]
        return gate(reports[1], baseline=reports[0], no_worse_than=0.03).checks[0]

    needed = check(30, "measured").needed
    # Half of them are for losses too rare to have been drawn, so chance hardly matters.
    assert 170 < needed < 230
    outcomes = [check(needed, f"again{i}").outcome for i in range(20)]
    assert outcomes.count("pass") / 20 >= 0.7


def test_less_is_better_where_it_is_said_so() -> None:
    ids = [f"s{i}" for i in range(200)]
    slow = by_hand({id: 10 + i % 5 for i, id in enumerate(ids)}, name="slow")
    fast = by_hand({id: 5 + i % 3 for i, id in enumerate(ids)}, name="fast")
    assert gate(fast, baseline=slow, no_worse_than=0.5).outcome == "fail"
    found = gate(fast, baseline=slow, no_worse_than=0.5, lower_is_better=True)
    assert found.outcome == "pass"
    (check,) = found.checks
    assert check.estimate < 0
    assert check.interval.low < check.estimate < check.interval.high < check.bound == 0.5
    assert gate(slow, baseline=fast, no_worse_than=0.5, lower_is_better=True).outcome == "fail"
    assert gate(fast, max_mean=7).outcome == "pass"
    assert gate(slow, max_mean=7).outcome == "fail"
    assert gate(slow, max_mean=12).outcome == "inconclusive"


def test_where_a_slice_may_fail_the_interval_shown_is_the_corrected_one() -> None:
    base, new = rates(100, 84, 200)
    found = gate(new, baseline=base, no_worse_than=0.05, by="level")
    for check, part in zip(found.checks[1:], found.comparison.slices, strict=True):
        assert check.corrected
        assert check.interval == part.simultaneous_interval
        assert check.outcome == "inconclusive"
        assert check.interval.low < check.bound <= check.interval.high


def test_a_mean_right_at_the_least_one_is_enough() -> None:
    report = by_hand({f"s{i}": float(i % 3) for i in range(30)})
    (check,) = gate(report, min_mean=0.1).checks
    assert gate(report, min_mean=check.interval.low).outcome == "pass"


def test_clusters_widen_what_the_mean_is_known_to() -> None:
    passages = {f"s{i}": {"passage": i // 10} for i in range(100)}
    report = by_hand({id: float(int(id[1:]) < 60) for id in passages}, metadata=passages)
    assert gate(report, min_mean=0.5).outcome == "pass"
    assert gate(report, min_mean=0.5, cluster="passage").outcome == "inconclusive"


def test_an_unfinished_run_is_not_judged(tmp_path: Path) -> None:
    report = run(tmp_path, "new", knows(lambda i: i < 20))
    unfinished = EvalReport(
        report.results, {**report.summary, "complete": False}, report.config, status="running"
    )
    with pytest.raises(NotComparable, match=r"new cannot be judged: incomplete: new is not"):
        gate(unfinished, min_mean=0.1)
    assert gate(unfinished, min_mean=0.1, allow=["incomplete"]).outcome == "pass"


IDS = [f"s{i}" for i in range(40)]
MEASURED = {id: float(i % 4 > 0) for i, id in enumerate(IDS)}
MODEL = {"endpoint": {"kind": "openai", "model": "m"}}
OTHER = {"endpoint": {"kind": "openai", "model": "other"}}


@pytest.mark.parametrize(
    ("of_baseline", "of_run", "settings", "refused"),
    [
        ((), IDS, OTHER, "new measured nothing new: all of its model turns came from"),
        (IDS, IDS, OTHER, "new measured nothing new"),
        # Both have the same model and settings, so these are the run's own answers.
        (IDS, (), MODEL, "base measured nothing new: .* may be the answers of new"),
        # A baseline that was measured before.
        (IDS, (), OTHER, None),
        (IDS, (), {**MODEL, "sampling": {"temperature": 1.0}}, None),
        ((), IDS[1:], MODEL, None),
    ],
)
def test_copies_of_old_answers_are_not_judged_unless_that_is_allowed(
    of_baseline: list[str], of_run: list[str], settings: dict[str, Any], refused: str | None
) -> None:
    base = by_hand(MEASURED, name="base", config=MODEL, cached=of_baseline)
    new = by_hand({**MEASURED, "s39": None}, name="new", config=settings, cached=of_run)
    bounds: dict[str, Any] = {"baseline": base, "no_worse_than": 0.5}
    if refused is not None:
        with pytest.raises(NotComparable, match=refused) as caught:
            gate(new, **bounds)
        assert caught.value.kinds == ("cached",)
    found = gate(new, **bounds, allow=["cached"] if refused else [])
    assert found.comparison.a.measured_nothing == (len(of_baseline) == 40)
    assert (found.run.measured_nothing, found.run.cached) == (len(of_run) == 40, len(of_run))


def test_slices_pass_by_their_own_intervals() -> None:
    """That each is no worse is claimed only if all are: that needs no correction."""
    base, new = rates(1000, 1000, 2000, changed=30)
    found = gate(new, baseline=base, no_worse_than=0.01, by="level", slice_no_worse_than=0.0115)
    for check, part in zip(found.checks[1:], found.comparison.slices, strict=True):
        assert part.simultaneous_interval.low < -0.0115 <= check.interval.low
        assert check.outcome == "pass"


@pytest.mark.parametrize(
    ("attempts", "outcome", "below"),
    [
        ([1.0, 1.0, 1.0, 1.0, 0.0], "pass", None),  # 4 / 5 is 0.8, whatever it is in binary
        ([1.0, 1.0, 1.0, 0.0, 0.0], "fail", (3, 0, 5)),
        ([1.0, 1.0, 1.0, 1.0, None], "pass", None),
        ([1.0, 1.0, 1.0, None, None], "errored", (3, 2, 5)),
        ([1.0, 1.0, 0.0, 0.0, None], "fail", (2, 1, 5)),
        ([None] * 5, "errored", (0, 5, 5)),
    ],
)
def test_each_sample_passes_a_share_of_its_attempts(
    attempts: list[float | None], outcome: str, below: tuple[int, int, int] | None
) -> None:
    report = by_hand({"a": [1.0] * 5, "b": attempts})
    found = gate(report, each_sample=0.8)
    [check] = found.checks
    assert (found.outcome, check.kind, check.bound) == (outcome, "each_sample", 0.8)
    assert check.interval is None  # it says nothing of further attempts
    named = [(s.sample_id, s.passed, s.errored, s.attempts) for s in check.below]
    assert named == ([] if below is None else [("b", *below)])


def test_the_estimate_of_each_sample_is_the_lowest_share() -> None:
    report = by_hand({"a": [1.0, 1.0], "b": [0.4, 0.6], "c": [1.0, 0.0]})
    assert gate(report, each_sample=1).checks[0].estimate == 0.5
    assert len(gate(report, each_sample=1).checks[0].below) == 2
    [check] = gate(report, each_sample=1, pass_threshold=0.1).checks
    assert (check.estimate, [sample.sample_id for sample in check.below]) == (0.5, ["c"])


def test_values_that_say_nothing_about_their_spread_tell_nothing() -> None:
    base = by_hand({f"s{i}": 5.0 for i in range(20)}, name="base")
    new = by_hand({f"s{i}": 7.0 for i in range(20)}, name="new")
    (check,) = gate(new, baseline=base, no_worse_than=0.5).checks
    assert (check.outcome, check.interval) == ("inconclusive", None)


@pytest.mark.parametrize(
    ("options", "parameter", "message"),
    [
        ({}, "no_worse_than", "needs no_worse_than with a baseline, or min_mean"),
        ({"no_worse_than": 0.1}, "no_worse_than", "go together"),
        ({"min_mean": 0.5, "by": "level"}, "no_worse_than", "slices are compared with"),
        ({"min_mean": float("nan")}, "min_mean", "min_mean must be a number"),
        ({"min_mean": 50}, None, "lies between 0 and 1"),
        ({"max_mean": -1}, None, "lies between 0 and 1"),
        ({"baseline": "base", "no_worse_than": -0.1}, "no_worse_than", "loss that is tolerated"),
        ({"baseline": "base", "min_mean": 0.5}, "no_worse_than", "go together"),
        ({"baseline": "base", "no_worse_than": 2}, None, "is 0.02 meant"),
        (
            {"baseline": "base", "no_worse_than": 0.1, "slice_no_worse_than": 0.1},
            "slice_no_worse_than",
            "key to slice by",
        ),
        ({"each_sample": 0}, "each_sample", "above 0 and at most 1"),
        ({"each_sample": 80}, "each_sample", "above 0 and at most 1"),
    ],
)
def test_a_gate_that_asks_for_nothing_sensible_is_refused(
    options: dict[str, Any], parameter: str | None, message: str
) -> None:
    base, new = rates(5, 5, 10)
    if "baseline" in options:
        options = {**options, "baseline": base}
    with pytest.raises(InvalidInput, match=message) as refused:
        gate(new, **options)
    assert refused.value.parameter == parameter
