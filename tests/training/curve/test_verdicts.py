"""What is said of a curve: steps and samples as points have them, in words that claim no more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from heldout import Sample
from heldout.errors import InvalidInput
from heldout.stats import Interval, best_of, monitor
from heldout.stats.intervals import Floats
from heldout.training.curve.points import CurvePoint, ItemOutcome
from heldout.training.curve.publishing import PointPublisher
from heldout.training.curve.stored_verdicts import (
    answers,
    short_verdict,
    stored_kind,
    terms_of,
    with_verdicts,
)
from heldout.training.curve.verdicts import (
    BestPoint,
    CurveMonitor,
    StepVerdict,
    Terms,
    best_checkpoint,
    judge_points,
)
from tests.training.curves import CLIMB, FLAT, Rewards, curve, look, point, rising
from tests.training.toys import Model, periodic, questions


def last(rows: Floats | Sequence[Rewards], **terms: Any) -> StepVerdict:
    return judge_points(curve(rows), **terms)[-1]


# --- The same numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [CLIMB, FLAT, CLIMB[::-1]])
def test_verdicts_are_those_of_the_rewards_looks_by_samples(rows: Floats) -> None:
    said = judge_points(curve(rows), effect=0.1)
    assert [one.verdict for one in said] == list(monitor(rows, effect=0.1, bounds=(0.0, 1.0)))
    assert [one.step for one in said] == list(range(0, 200, 10))


def test_rewards_beyond_0_and_1_have_the_bounds_that_were_seen() -> None:
    rows = 10 * CLIMB - 3
    said = judge_points(curve(rows), effect=1.0, window=4)
    assert [one.verdict for one in said] == list(monitor(rows, effect=1.0, window=4))


def test_rewards_that_all_lie_between_0_and_1_are_taken_to_be_bounded_there() -> None:
    said = last([[0.5] * 400] * 12)
    assert said.verdict == monitor([[0.5] * 400] * 12, effect=0.05, bounds=(0.0, 1.0))[-1]
    assert said.kind == "plateau"
    assert last([[5.0] * 400] * 12).kind == "inconclusive"


def test_errored_items_and_what_a_smaller_eval_left_out_have_no_reward() -> None:
    rows = CLIMB.copy()
    rows[3, 5] = np.nan
    points = curve(rows)
    assert points[3].outcomes[5].error is not None
    rows[7, 50:] = np.nan
    points[7] = look(70, rows[7, :50].tolist(), of=200)
    said = judge_points(points)
    assert [one.verdict for one in said] == list(monitor(rows, effect=0.05, bounds=(0.0, 1.0)))


def test_samples_that_come_later_join_and_the_others_stay_paired() -> None:
    rows = CLIMB.copy()
    rows[0, 8:] = np.nan
    points = [look(0, rows[0, :8].tolist(), of=200), *curve(rows)[1:]]
    said = judge_points(points)
    expected = monitor(rows, effect=0.05, bounds=(0.0, 1.0))
    assert [one.verdict for one in said[1:]] == list(expected[1:])
    assert said[1].verdict.decided.n == 8
    few = [look(10 * i, row[:8].tolist(), of=200) for i, row in enumerate(CLIMB[:2])]
    _, second, _ = judge_points([*few, look(20, CLIMB[2].tolist())])
    assert second.verdict.decided.n == 8


def repeated(step: int, pairs: Sequence[tuple[float | None, float | None]]) -> CurvePoint:
    outcomes = [
        ItemOutcome(f"s{i}", r, k, error=None if r is not None else "it broke")
        for i, pair in enumerate(pairs)
        for k, r in enumerate(pair)
    ]
    return point(step, 0.5, outcomes=tuple(outcomes))


def test_repeats_of_a_sample_are_one_reward() -> None:
    points = [
        repeated(1, [(0.0, 1.0), (None, 1.0), (None, None)]),
        repeated(2, [(1.0, 1.0), (0.0, 0.0), (1.0, 1.0)]),
    ]
    rows = [[0.5, 1.0, np.nan], [1.0, 0.0, 1.0]]
    assert judge_points(points)[1].verdict == monitor(rows, effect=0.05, bounds=(0, 1))[1]


def test_copies_of_a_sample_make_no_verdict_more_certain(tmp_path: Path) -> None:
    """Eight questions, twenty times each, of which three more are known at every point."""
    samples = [
        Sample(f"{q.id}-{copy}", q.input, q.ground_truth)
        for q in questions(8)
        for copy in range(20)
    ]

    def last_verdict(name: str, samples: list[Sample]) -> dict[str, Any]:
        evals = periodic(tmp_path / name, samples=samples)
        for number, knows in enumerate((1, 4, 7), start=1):
            evals.maybe_run(10 * number, Model(knows))
        assert evals.points[-1].verdict is not None
        return evals.points[-1].verdict

    once, copied = last_verdict("once", questions(8)), last_verdict("copied", samples)
    assert (copied["kind"], copied["ci_low"]) == (once["kind"], once["ci_low"])
    assert once["n"] == copied["n"] == 8


def test_skips_and_results_without_outcomes_are_no_looks() -> None:
    points = [look(10, [1.0, 0.0]), point(20, None), point(30), look(40, [1.0, 1.0])]
    said = judge_points(points)
    assert [(one.step, one.verdict.index) for one in said] == [(10, 0), (40, 1)]
    assert judge_points([point(10, None)]) == []


def test_points_of_several_evals_are_refused() -> None:
    with pytest.raises(InvalidInput, match="several labels: a, b"):
        judge_points([look(1, [1.0], label="a"), look(2, [1.0], label="b")])


def test_rewards_whose_squares_overflow_are_refused() -> None:
    with pytest.raises(InvalidInput, match="step 2 is 1e"):
        judge_points([look(1, [1.0, 0.0]), look(2, [1e300, 0.0])])


# --- Words --------------------------------------------------------------------------------------


def test_a_climb_is_improving_from_the_first_steps_of_its_window_to_the_last() -> None:
    said = last(CLIMB)
    assert (said.kind, said.since) == ("improving", 100)
    gain = said.verdict.gain
    assert said.sentence() == (
        f"improving: {gain.estimate:+.3f} ({gain.interval.low:.3f} … {gain.interval.high:.3f}) "
        "from steps 100–140 to 150–190, paired on 200 samples"
    )
    assert gain.estimate == pytest.approx(CLIMB[15:].mean() - CLIMB[10:15].mean())
    assert short_verdict(said.as_dict()) == f"improving {gain.estimate:+.3f}"


def test_a_fall_is_regressing_by_a_gain_below_zero() -> None:
    said = last(CLIMB[::-1])
    assert said.sentence().startswith("regressing: -0.")
    two = last(CLIMB[[0, 19]])
    assert " from step 0 to step 10, paired" in two.sentence()


def test_a_plateau_names_the_effect_that_it_is_without() -> None:
    said = last(rising([0.5] * 20, 1000), effect=0.1, window=6)
    around = said.verdict.gain.interval
    assert said.sentence() == (
        f"plateau since step 140: {said.verdict.gain.estimate:+.3f} ({around.low:.3f} … "
        f"{around.high:.3f}) from steps 140–160 to 170–190, paired on 1000 samples; "
        "no gain as large as 0.100"
    )
    assert short_verdict(said.as_dict()) == "plateau"


def test_an_inconclusive_verdict_says_what_it_could_have_detected() -> None:
    said = last(rising([0.5] * 5, 100))
    assert said.kind == "inconclusive"
    assert said.since is None
    gain, decided = said.verdict.gain, said.verdict.decided
    assert decided.alpha < 0.01  # of the 0.05 that the whole curve has
    assert said.sentence() == (
        f"inconclusive: {gain.estimate:.3f} ({gain.interval.low:.3f} … {gain.interval.high:.3f}) "
        "from steps 10–20 to 30–40, paired on 100 samples; "
        f"a gain of {gain.minimum_detectable:.3f} would have been seen"
    )


def test_too_little_to_go_by_is_said_as_that() -> None:
    for rows, sentence in (
        ([[1.0, 0.0]], "inconclusive: there is one eval"),
        (
            [[1.0, 0.0], [1.0, 0.0]],
            "inconclusive: 0.000 (-1.000 … 1.000) from step 0 to step 10, paired on 2 samples; "
            "no gain could have been seen",
        ),
        ([[7.0, 7.0], [7.0, 7.0]], "inconclusive: too few rewards to compare, or all alike"),
        ([[1.0], [0.0]], "inconclusive: too few rewards to compare, or all alike"),
    ):
        assert last(rows).sentence() == sentence


def test_a_verdict_as_a_point_stores_it() -> None:
    said = last(CLIMB, effect=0.2, alpha=0.01, window=8)
    gain, start = said.verdict.gain, said.verdict.start.gain
    assert said.as_dict() == {
        "kind": "improving",
        "text": said.sentence(),
        "since": 120,
        "reference": "previous",
        "gain": gain.estimate,
        "ci_low": gain.interval.low,
        "ci_high": gain.interval.high,
        "from_first": 120,
        "from_last": 150,
        "to_first": 160,
        "to_last": 190,
        "minimum_detectable": gain.minimum_detectable,
        "n": 200,
        "since_start": "improved",
        "since_start_gain": start.estimate,
        "since_start_ci_low": start.interval.low,
        "since_start_ci_high": start.interval.high,
        "since_start_text": said.since_start.sentence(),
        "errored": 0,
        "errored_as": None,
        "effect": 0.2,
        "alpha": 0.01,
        "window": 8,
        "bounds": [0.0, 1.0],
    }


# --- The three answers --------------------------------------------------------------------------

RISE = rising([*np.linspace(0.2, 0.7, 8), *[0.7] * 3], 200)
"""Evals at steps 0, 10 … 100, of which the last four are equally good."""


def test_a_point_answers_whether_it_still_improves_whether_it_has_and_which_step_is_best() -> None:
    stored = CurveMonitor()(curve(RISE)).as_dict()
    now, since_start, best = answers(stored)
    recent = judge_points(curve(RISE))[-1].verdict.decided
    assert (stored["kind"], stored["reference"]) == ("inconclusive", "recent")
    assert " from steps 70–80 to 90–100, paired on 200 samples; a gain of " in now
    assert now.endswith(f"{recent.gain.minimum_detectable:.3f} would have been seen")
    gain, low = stored["since_start_gain"], stored["since_start_ci_low"]
    assert stored["since_start"] == "improved"
    assert since_start.startswith(f"improved since its start: {gain:+.3f} ({low:.3f} … ")
    assert since_start.endswith("from steps 0–40 to 60–100, paired on 200 samples")
    assert best == stored["best_text"]
    assert best.startswith("best so far: step ")
    assert (
        answers(CurveMonitor()(curve(RISE[:1])).as_dict())[0] == "inconclusive: there is one eval"
    )


def test_a_curve_that_is_lower_than_at_its_start_says_so_whatever_it_does_now() -> None:
    start = last(np.vstack([RISE[::-1], RISE[:2]])).since_start
    assert start.kind == "declined"
    assert start.sentence().startswith("worse than at its start: -0.")


def test_a_stored_verdict_is_the_one_that_every_reader_gets() -> None:
    points = curve(CLIMB)
    monitor, growing = CurveMonitor(), []
    for one in points:
        verdict = monitor([*growing, one]).as_dict()
        growing.append(msgspec.structs.replace(one, verdict=verdict))
    assert with_verdicts(growing) == growing
    marked = {**growing[-1].verdict, "text": "as it was written"}
    growing[-1] = msgspec.structs.replace(growing[-1], verdict=marked)
    assert with_verdicts(growing)[-1].verdict == marked
    # A process that ended before its verdict, and one that an earlier version stored.
    lost = [*growing[:-1], msgspec.structs.replace(growing[-1], verdict=None)]
    assert with_verdicts(lost)[-1].verdict == CurveMonitor()(points).as_dict()
    assert with_verdicts(lost)[:-1] == growing[:-1]
    old = {k: v for k, v in marked.items() if not k.startswith("since_start")}
    older = [*growing[:-1], msgspec.structs.replace(growing[-1], verdict=old)]
    assert with_verdicts(older)[-1].verdict == CurveMonitor()(points).as_dict()
    other = with_verdicts(growing, Terms(effect=0.2), anew=True)
    assert {point.verdict["effect"] for point in other} == {0.2}


@pytest.mark.parametrize("n", [16, 64])
def test_a_stop_on_a_plateau_that_so_few_samples_cannot_show_is_named_as_such(
    n: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = CurveMonitor(stop_on_plateau=2)
    periodic(tmp_path, samples=questions(n), monitor=monitor)
    assert f"stop_on_plateau=2 can never ask to stop with {n} samples" in caplog.text
    enough = int(caplog.text.split("Use ")[1].split()[0])
    flat = CurveMonitor(stop_on_plateau=1)
    flat_curve = curve(np.repeat([[1.0, 0.0] * ((enough + 1) // 2)], 10, axis=0))
    assert flat(flat_curve).verdict.kind == "plateau"
    few = curve(np.repeat([([1.0, 0.0] * enough)[: enough - 2]], 10, axis=0))
    assert judge_points(few)[-1].kind == "inconclusive"
    assert CurveMonitor(stop_on_plateau=2).why_no_plateau(enough) is None
    assert CurveMonitor(0.5, stop_on_plateau=2).why_no_plateau(64) is None
    assert CurveMonitor().why_no_plateau(2) is None
    unbounded = CurveMonitor(stop_on_plateau=1).why_no_plateau(10_000, is_bounded=False)
    assert "pass bounds=" in unbounded
    known = CurveMonitor(10, bounds=(0, 500), stop_on_plateau=1)
    assert known.why_no_plateau(10_000, is_bounded=False) is None


def test_bounds_that_are_declared_hold_for_the_intervals_of_points(tmp_path: Path) -> None:
    monitor = CurveMonitor(bounds=(0, 0.9))
    half = {"mean": 0.875, "ci_low": -0.1, "ci_high": 1.2, "mean_scored": None, "n": 8}
    publisher = PointPublisher("e", monitor)
    assert publisher.within_bounds(half) == {**half, "ci_low": 0.0, "ci_high": 0.9}
    beyond = {**half, "mean": 0.95}
    assert publisher.within_bounds(beyond)["ci_high"] == 0.95  # an interval contains its mean
    assert PointPublisher("e").within_bounds(half) == half
    evals = periodic(tmp_path, samples=questions(8), monitor=CurveMonitor(bounds=(0, 4)))
    evals.maybe_run(10, Model(7))
    assert evals.points[0].ci == (evals.points[0].ci[0], min(4, evals.points[0].ci[1]))


# --- Terms --------------------------------------------------------------------------------------


def test_terms_are_checked_and_may_be_numbers_of_numpy() -> None:
    for given in ((0.0, 0.05, 8), (0.1, 1.5, 8), (0.1, 0.05, 1), (0.1, 0.05, 2.5), ("x", 0.05, 8)):
        with pytest.raises(InvalidInput):
            Terms(*given)
    for bounds in ((1, 0), (0, float("inf")), (0,), (0, "x"), 1):
        with pytest.raises(InvalidInput, match="bounds are the minimum and maximum possible"):
            Terms(bounds=bounds)
    terms = Terms(np.float32(0.5), np.float64(0.05), np.int64(4))
    assert terms == Terms(0.5, 0.05, 4)
    assert [type(n) for n in (terms.effect, terms.alpha, terms.window)] == [float, float, int]


def test_the_terms_of_a_curve_are_those_of_its_last_verdict_that_can_be_meant() -> None:
    first = look(1, [1.0], verdict={"effect": 0.02, "alpha": 0.1, "window": 5})
    odd = [{"effect": "rm -rf"}, {"effect": None, "alpha": 1, "window": []}, {"effect": -1e999}]
    odd += [{"effect": 10**400, "alpha": 0.05, "window": 8}]
    rest = [look(2 + i, [1.0], verdict=verdict) for i, verdict in enumerate(odd)]
    assert terms_of([first, *rest]) == Terms(0.02, 0.1, 5)
    usual = {"effect": 0.02, "alpha": 0.1, "window": 5}
    for stored, bounds in (([0.0, 1.0], None), ([-1, 4], (-1.0, 4.0)), (None, None)):
        found = terms_of([look(1, [1.0], verdict={**usual, "bounds": stored})])
        assert found == Terms(0.02, 0.1, 5, bounds)
    assert terms_of([look(1, [1.0], verdict={**usual, "bounds": "x" * 2})]) == Terms()
    assert terms_of(rest) == Terms()


# --- Errors ---------------------------------------------------------------------------------------


def broken_from(rows: Floats, first: int, samples: slice) -> Floats:
    rows = rows.copy()
    rows[first:, samples] = np.nan
    return rows


def test_a_training_that_collapses_into_errors_is_regressing() -> None:
    """Of a hundred samples half are right, until most of those error: no reward has fallen."""
    rows = broken_from(np.repeat([[1.0] * 50 + [0.0] * 50], 12, axis=0), 8, slice(48))
    said = last(rows, effect=0.1)
    assert said.readings[0] != "improving"
    assert (said.kind, said.errored, said.errored_as) == ("regressing", 192, 0.0)
    expected = monitor(np.nan_to_num(rows), effect=0.1, bounds=(0, 1))[-1].gain
    assert said.verdict.gain.estimate == pytest.approx(expected.estimate)
    assert said.sentence().endswith(", paired on 100 samples, with 192 errored items as 0")


def test_where_every_item_errors_that_is_a_look_too() -> None:
    rows = broken_from(rising([0.6] * 20, 100), 10, slice(None))
    kinds = [one.kind for one in judge_points(curve(rows))]
    assert len(kinds) == 20
    assert "regressing" in kinds[10:]
    assert last([[None, None], [None, None]]).kind == "inconclusive"
    assert best_checkpoint(curve([[None, None], [None, None]])) is None


def test_no_gain_is_claimed_that_errors_alone_make() -> None:
    """Samples that would fail error instead: those that are left are better, and nothing is."""
    rows = rising([0.5] * 20, 100)
    for i in range(20):
        rows[i, (rows[i] == 0) & (np.arange(100) < 5 * i)] = np.nan
    assert last(rows).kind in ("inconclusive", "plateau")
    swapped = CLIMB.copy()
    swapped[14:, 100:] = np.nan
    said = last(swapped)
    assert said.readings[0] == "improving"
    assert said.kind == "inconclusive"
    assert "errored items as 0" in said.sentence()
    assert "improving without" in said.sentence()


def test_no_plateau_is_claimed_while_errors_spread() -> None:
    rows = np.repeat([[1.0, 0.0] * 200], 20, axis=0)
    rows[14:, ::8] = np.nan
    said = last(rows, effect=0.1)
    assert said.readings[0] == "plateau"
    assert said.kind != "plateau"


def test_errors_that_go_away_are_no_improvement() -> None:
    rows = rising([0.6] * 20, 200)
    rows[:18, :100] = np.nan
    said = last(rows)
    assert said.readings[1] == "improving"
    assert said.kind != "improving"
    assert said.sentence().startswith("inconclusive")
    start = said.since_start
    assert start.kind == "unclear"
    assert start.comparison.gain.sign == 0
    assert start.sentence().startswith("not seen to have changed since its start: ")


def test_where_rewards_are_negative_an_error_counts_as_the_least_one_seen() -> None:
    rows = rising([0.5] * 14, 100) - 2.0
    rows[10:, :60] = np.nan
    said = last(rows)
    assert (said.kind, said.errored_as) == ("regressing", -2.0)
    assert said.sentence().endswith("errored items as -2")


def test_a_rise_that_the_latest_eval_contradicts_is_said_as_both() -> None:
    rows = np.vstack([CLIMB[:14], CLIMB[8]])
    said = last(rows)
    assert (said.kind, said.since) == ("inconclusive", None)
    rise = rows[10:].mean() - rows[5:10].mean()
    fall = rows[14].mean() - rows[13].mean()
    assert said.sentence() == (
        f"inconclusive: {rise:+.3f} from steps 50–90 to 100–140, "
        f"but {fall:+.3f} from step 130 to step 140"
    )
    assert short_verdict(said.as_dict()) == "inconclusive"


def test_a_curve_that_has_fallen_from_its_peak_is_regressing_though_it_is_above_its_start() -> None:
    rows = np.vstack([CLIMB[:14], CLIMB[7], CLIMB[7]])
    said = last(rows)
    assert said.kind == "regressing"
    assert rows[-1].mean() > rows[0].mean() + 0.1
    best = best_checkpoint(curve(rows))
    assert best.step == 130
    assert best.sentence().startswith("best so far: step 130, 0.")


def test_the_word_of_earlier_versions_is_inconclusive() -> None:
    for stored, kind in (
        ({"kind": "cannot tell"}, "inconclusive"),
        ({"kind": "plateau"}, "plateau"),
        ({"kind": ["x"]}, None),
        (None, None),
    ):
        assert stored_kind(point(1, 0.5, verdict=stored)) == kind


# --- Bounds -------------------------------------------------------------------------------------


def test_bounds_that_are_given_allow_a_plateau_beyond_0_and_1() -> None:
    rows = 4 * rising([0.5] * 20, 1000)
    assert last(rows, effect=0.4).kind == "inconclusive"
    said = last(rows, effect=0.4, bounds=(0, 4))
    assert (said.kind, said.as_dict()["bounds"]) == ("plateau", [0.0, 4.0])
    with pytest.raises(InvalidInput, match="outside the bounds"):
        last(rows, bounds=(0, 1))


# --- The best eval ------------------------------------------------------------------------


def test_the_best_checkpoint_is_that_of_the_rewards() -> None:
    best, won = best_checkpoint(curve(FLAT)), best_of(FLAT, seed=0, bounds=(0.0, 1.0))
    assert best == BestPoint(
        step=10 * won.index,
        raw=won.raw,
        estimate=won.estimate,
        interval=won.interval,
        candidates=20,
        left_out=(),
        n=200,
    )
    assert best.estimate is not None
    assert best.estimate < best.raw


def test_an_eval_of_fewer_samples_is_no_candidate_and_is_counted() -> None:
    points = curve(FLAT)
    points[4] = look(40, [1.0] * 20, of=200, partial="max_seconds=60")
    best = best_checkpoint(points)
    assert (best.step != 40, best.candidates, best.left_out) == (True, 19, (40,))
    assert best.sentence().endswith("on 200 samples; left out, with fewer samples: step 40")
    for step in range(50, 110, 10):
        points[step // 10] = look(step, [1.0] * 20, of=200, partial="max_seconds=60")
    ending = "; left out, with fewer samples: steps 40, 50, 60, 70, 80, 2 more"
    assert best_checkpoint(points).sentence().endswith(ending)


def test_where_a_budget_cut_most_evals_they_are_compared_on_the_part_that_those_share() -> None:
    """The final one, on all samples, would else be the only candidate."""
    rows = rising([0.2, 0.7, 0.4, 0.3], 64)
    points = [look(10 * i, row[:32].tolist(), of=64) for i, row in enumerate(rows[:3])]
    points = [look(0, rows[0, :8].tolist(), of=64), *points[1:], look(30, rows[3].tolist())]
    best = best_checkpoint(points)
    assert (best.step, best.candidates, best.left_out, best.n) == (10, 3, (0,), 32)
    assert best.raw == rows[1, :32].mean()


def test_an_eval_that_broke_is_not_the_best_for_the_few_answers_it_has() -> None:
    broken = [1.0, 1.0, 1.0] + [None] * 97
    best = best_checkpoint(curve([[1.0] * 60 + [0.0] * 40, broken]))
    assert (best.step, best.raw, best.n, best.errored) == (0, 0.6, 100, 0)
    only = best_checkpoint(curve([broken, [0.0] * 100]))
    assert (only.step, only.raw, only.n, only.errored) == (0, 0.03, 100, 97)
    assert only.sentence().endswith(", on 100 samples, 97 of them with errored items, counted as 0")


def test_where_rewards_are_negative_an_error_is_no_way_to_the_top() -> None:
    best = best_checkpoint(curve([[-1.0, -2.0, -1.0], [None, None, -1.0]]))
    assert (best.step, best.raw) == (0, pytest.approx(-4 / 3))
    last = best_checkpoint(curve([[-4.0, -4.0, -4.0], [None, -1.0, -1.0]]))
    assert (last.step, last.raw) == (10, -2.0)
    assert last.sentence().endswith("1 of them with errored items, counted as -4")


def test_errored_repeats_count_too() -> None:
    points = [
        repeated(1, [(1.0, None), (1.0, 1.0)]),
        repeated(2, [(1.0, 0.0), (0.0, 0.0)]),
    ]
    best = best_checkpoint(points)
    assert (best.step, best.raw, best.errored) == (1, 0.75, 1)


def test_a_long_curve_has_a_best_eval_that_says_it_is_not_corrected() -> None:
    best = best_checkpoint(curve(FLAT), most=10)
    assert best.estimate is None
    assert "as measured, not corrected for picking the best of 20, on" in best.sentence()


def test_the_sentence_of_the_best_says_what_picking_it_did() -> None:
    best = BestPoint(120, 0.64, 0.61, Interval(0.55, 0.67), 14, (), 64)
    assert best.sentence() == (
        "best so far: step 120, 0.610 (0.550 … 0.670, corrected for picking the best of 14; "
        "0.640 as measured), on 64 samples"
    )


def test_an_eval_that_was_not_picked_from_others_has_its_points_interval() -> None:
    rewards: list[float | None] = [0.52, 0.54] * 20
    whole = look(10, rewards, summary={"mean": 0.53, "ci_low": 0.509, "ci_high": 0.556})
    part = look(20, rewards[:10], summary={})
    for points in ([whole], [whole, part]):
        alone = best_checkpoint(points)
        assert (alone.raw, alone.estimate, alone.n) == (whole.reward, whole.reward, 40)
        assert (alone.interval.low, alone.interval.high) == whole.ci
        assert "the only one to pick from, on 40 samples" in alone.sentence()


def test_rewards_that_are_all_alike_and_unbounded_have_no_interval() -> None:
    best = best_checkpoint(curve([[5.0, 5.0], [5.0, 5.0]]))
    assert (best.step, best.raw, best.estimate, best.interval) == (0, 5.0, None, None)
    assert best.sentence() == (
        "best so far: step 0 (before training), 5.000 as measured, "
        "not corrected for picking the best of 2, on 2 samples"
    )


def test_there_is_no_best_where_nothing_can_be_compared() -> None:
    assert best_checkpoint([]) is None
    assert best_checkpoint([point(1), point(2, None)]) is None


def test_of_a_single_sample_the_best_is_picked_and_not_corrected() -> None:
    best = best_checkpoint(curve([[0.0], [1.0], [0.5]]))
    assert (best.step, best.raw, best.estimate, best.interval) == (10, 1.0, None, None)
