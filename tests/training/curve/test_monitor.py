"""The monitor of a growing curve: the verdicts of the whole one, late results, and when to stop."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest

from heldout.errors import InvalidInput
from heldout.stats.intervals import Floats
from heldout.stats.sequential import Analysis
from heldout.training import CurveMonitor
from heldout.training.curve import verdicts
from heldout.training.curve.points import CurvePoint, current_points
from heldout.training.curve.verdicts import (
    Judgement,
    Rewards,
    StepVerdict,
    Terms,
    best_checkpoint,
    judge_points,
)
from tests.training.curves import CLIMB, FLAT, curve, look, rising


def watched(points: list[CurvePoint], monitor: CurveMonitor | None = None) -> list[Judgement]:
    """Each point as it comes."""
    monitor = monitor or CurveMonitor()
    return [monitor(points[: i + 1]) for i in range(len(points))]


def said(judgements: list[Judgement]) -> list[StepVerdict | None]:
    return [judgement.verdict for judgement in judgements]


@pytest.mark.parametrize("rows", [CLIMB, FLAT, 5 * CLIMB - 2])
def test_a_curve_that_grows_is_judged_as_the_whole_one_is(rows: Floats) -> None:
    rows = rows.copy()
    rows[np.random.default_rng(1).random(rows.shape) < 0.05] = np.nan
    points = curve(rows)
    points[0] = look(0, [o.reward for o in points[0].outcomes[:8]], of=200)
    assert said(watched(points)) == judge_points(points)


def test_points_that_were_there_at_a_restart_are_judged_first() -> None:
    points = curve(CLIMB)
    assert CurveMonitor()(points) == watched(points)[-1]


def test_the_best_checkpoint_comes_with_it() -> None:
    found, best = watched(curve(FLAT))[-1].best, best_checkpoint(curve(FLAT))
    assert (found.step, found.raw, found.candidates) == (best.step, best.raw, best.candidates)
    assert found.estimate == pytest.approx(best.estimate, abs=0.005)


def test_a_long_curve_has_a_best_step_without_numbers_that_would_take_long() -> None:
    rows = rising([0.5] * 105, 20)
    best = CurveMonitor()(curve(rows)).best
    assert best.step == 10 * int(rows.mean(axis=1).argmax())
    assert (best.estimate, best.interval, best.candidates) == (None, None, 105)


def test_nothing_is_drawn_from_global_random_state() -> None:
    random.seed(0), np.random.seed(0)
    before = random.getstate(), np.random.get_state()[1].tolist()
    once = CurveMonitor()(curve(CLIMB))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert CurveMonitor()(curve(CLIMB)) == once


# --- Late and repeated results ------------------------------------------------------------------


def test_a_late_result_has_no_verdict_and_the_next_one_uses_it() -> None:
    points, monitor = curve(CLIMB), CurveMonitor()
    late = points[5]
    in_time = [p for p in points[:12] if p is not late]
    before = watched(in_time, monitor)[-1].verdict
    assert monitor(points[:12]) == Judgement()
    after = monitor(points[:13]).verdict
    assert before is not None
    # Its row is in the comparison: 13 looks there are, of which 12 were made.
    assert after.verdict.index == 12
    expected = judge_points(points[:13])[-1].verdict.comparisons[0].gain
    assert after.verdict.comparisons[0].gain.estimate == expected.estimate
    whole = judge_points(in_time + points[12:13])[-1]
    assert after.verdict.alpha_spent == whole.verdict.alpha_spent


def test_a_step_that_is_measured_again_is_another_look() -> None:
    points, monitor = curve(CLIMB), CurveMonitor()
    part = look(190, [o.reward for o in points[-1].outcomes[:50]], of=200)
    first = watched([*points[:-1], part], monitor)[-1].verdict
    final = monitor([*points[:-1], points[-1]]).verdict
    assert (first.step, final.step) == (190, 190)
    assert final.verdict.alpha_spent > first.verdict.alpha_spent
    assert monitor([*points[:-1], points[-1]]) == Judgement()


def test_a_training_that_went_back_is_judged_without_what_it_went_back_on() -> None:
    points, monitor = curve(CLIMB), CurveMonitor()
    watched(points, monitor)
    again = msgspec.structs.replace(look(95, CLIMB[2].tolist()), session="b")
    now = current_points([*points, again])
    assert [p.step for p in now][-2:] == [90, 95]
    assert monitor(now) == CurveMonitor()(now)


def test_a_row_of_rewards_is_made_once_however_often_its_point_is_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monitor, points, made = CurveMonitor(), curve(CLIMB), []
    watched(points[:-1], monitor)
    new_row = verdicts._PointRow
    monkeypatch.setattr(verdicts, "_PointRow", lambda *row: made.append(row) or new_row(*row))
    monitor(points)
    assert len(made) == 1


# --- Stopping -----------------------------------------------------------------------------------


def test_by_default_nothing_stops() -> None:
    for rows in (CLIMB[::-1], rising([0.5] * 20, 1000)):
        assert {judgement.stop for judgement in watched(curve(rows))} == {None}


def test_it_asks_to_stop_after_so_many_verdicts_in_a_row_and_names_the_evidence() -> None:
    found = watched(curve(CLIMB[::-1]), CurveMonitor(stop_on_regression=3))
    kinds = [judgement.verdict.kind for judgement in found if judgement.verdict]
    first = kinds.index("regressing")
    assert kinds[first : first + 3] == ["regressing"] * 3
    assert [judgement.stop is not None for judgement in found[: first + 3]] == (
        [False] * (first + 2) + [True]
    )
    decided = found[first + 2]
    assert decided.stop == f"{decided.verdict.sentence()}, at 3 evals in a row"
    assert "paired on 200 samples" in decided.stop


def test_a_step_that_is_measured_twice_has_one_verdict() -> None:
    points = curve(CLIMB[::-1])
    kinds = [one.kind for one in judge_points(points)]
    first = kinds.index("regressing")
    monitor = CurveMonitor(stop_on_regression=2)
    watched(points[: first + 1], monitor)
    for seconds in (5.0, 6.0, 7.0):
        again = msgspec.structs.replace(points[first], seconds=seconds)
        judgement = monitor([*points[:first], again])
        assert (judgement.verdict.kind, judgement.stop) == ("regressing", None)
    assert monitor([*points[:first], again, points[first + 1]]).stop is not None


def test_of_looks_only_the_last_is_kept() -> None:
    """A look holds a number for each sample; a training may make thousands of them."""
    monitor = CurveMonitor()
    watched(curve(CLIMB), monitor)
    assert not any(isinstance(part, Analysis) for made in monitor._made for part in made)


def test_what_is_new_is_all_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, points = CurveMonitor(), curve(CLIMB)
    watched(points, monitor)
    monkeypatch.setattr(Rewards, "table", None)
    assert monitor(points) == Judgement()


def test_settings_may_be_numbers_of_numpy_and_bounds_are_kept() -> None:
    given: Any = np.int64(2)
    monitor = CurveMonitor(window=given, stop_on_regression=given, bounds=(-1, 3))
    assert monitor.terms == Terms(window=2, bounds=(-1.0, 3.0))
    stored = monitor(curve(CLIMB)).as_dict()
    assert stored["bounds"] == [-1.0, 3.0]


def test_a_plateau_stops_only_who_asked_for_that() -> None:
    points = curve(rising([0.5] * 20, 1000))
    assert not any(j.stop for j in watched(points, CurveMonitor(0.1, stop_on_regression=1)))
    reasons = [j.stop for j in watched(points, CurveMonitor(0.1, stop_on_plateau=1)) if j.stop]
    assert reasons[0].startswith(
        "plateau since step 0: +0.002 (-0.007 … 0.010) from steps 0–40 to 50–90, paired on 1000 "
        "samples; no gain as large as 0.100"
    )


def test_settings_that_make_no_sense_are_refused_before_training() -> None:
    for wrong in ({"effect": 0.0}, {"stop_on_plateau": 0}, {"stop_on_regression": 1.5}):
        with pytest.raises(InvalidInput):
            CurveMonitor(**wrong)


def test_a_judgement_as_a_point_stores_it() -> None:
    judgement = CurveMonitor()(curve(CLIMB))
    stored = judgement.as_dict()
    assert stored == {
        **judgement.verdict.as_dict(),
        "best_step": judgement.best.step,
        "best_estimate": judgement.best.estimate,
        "best_ci_low": judgement.best.interval.low,
        "best_ci_high": judgement.best.interval.high,
        "best_text": judgement.best.sentence(),
    }
    alone = CurveMonitor()([look(1, [1.0])]).as_dict()
    assert (alone["best_step"], alone["best_estimate"]) == (1, 0.5)  # one sample says little
    assert Judgement().as_dict() is None
