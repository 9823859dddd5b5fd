"""Races: who is dropped, when, and by whom."""

from __future__ import annotations

import numpy as np
import pytest

from heldout.errors import InvalidInput
from heldout.stats.intervals import Floats
from heldout.stats.stopping import Plan, Prefix, Standing, stand


def scores(rates: list[float], n: int, seed: int = 0) -> list[Floats]:
    """0/1 scores of models on the same samples: what is hard is hard for all."""
    rng = np.random.default_rng(seed)
    hard = rng.random(n)
    return [(0.5 * hard + 0.5 * rng.random(n) < rate).astype(np.float64) for rate in rates]


def race(plan: Plan, models: list[Floats]) -> tuple[Standing, int]:
    """Run as an engine does: after each look the losers stop; return the calls, too."""
    done, have = 0, [0] * len(models)
    standing = None
    while (size := plan.next_size(done)) is not None:
        done = size
        left = standing.survivors if standing else range(len(models))
        for model in left:
            have[model] = size
        standing = stand(plan, [Prefix.of(each[:n]) for each, n in zip(models, have, strict=True)])
        if standing.is_over:
            break
    assert standing is not None
    return standing, sum(have)


def test_the_best_of_four_is_found_and_the_losers_cost_less() -> None:
    models = scores([0.4, 0.6, 0.45, 0.3], 1000)
    standing, calls = race(Plan(1000), models)
    assert standing.winner == 1
    assert {each.model for each in standing.dropped} == {0, 2, 3}
    assert standing.dropped[0].model == 3
    assert calls < 2000
    for each in standing.dropped:
        assert each.n < 1000
    low = min(lead.interval.low for lead in standing.leads if lead.model == 1 and lead.interval)
    assert low > 0


def test_equal_models_cannot_be_told_apart() -> None:
    alike = scores([0.5], 400)[0]
    standing, calls = race(Plan(400), [alike, alike.copy(), alike.copy()])
    assert standing.survivors == (0, 1, 2)
    assert standing.winner is None
    assert standing.is_over
    assert calls == 1200


def test_the_losers_drop_out_and_two_that_are_alike_stay() -> None:
    models = scores([0.6, 0.2], 600)
    standing, _ = race(Plan(600), [models[0], models[0].copy(), models[1]])
    assert set(standing.survivors) == {0, 1}
    assert [each.model for each in standing.dropped] == [2]
    assert standing.winner is None


def test_a_standing_needs_nothing_but_the_values() -> None:
    models = scores([0.4, 0.6, 0.45, 0.3], 1000)
    once, _ = race(Plan(1000), models)
    ran = {each.model: each.n for each in once.dropped}
    again = stand(Plan(1000), [Prefix.of(x[: ran.get(i, once.n)]) for i, x in enumerate(models)])
    assert again == once
    # What a loser ran beyond its end, because it was in flight, is no part of anything.
    beyond = [Prefix.of(x[: min(once.n, ran.get(i, once.n) + 7)]) for i, x in enumerate(models)]
    assert stand(Plan(1000), beyond) == once


def test_the_intervals_of_a_race_are_wider_than_those_of_one_model() -> None:
    models = scores([0.5, 0.52], 500)
    two = stand(Plan(500), [Prefix.of(each) for each in models])
    four = stand(Plan(500), [Prefix.of(each) for each in [*models, *scores([0.5, 0.5], 500, 1)]])
    assert two.intervals[0] is not None
    assert four.intervals[0] is not None
    assert four.intervals[0].low < two.intervals[0].low < two.means[0]


def test_a_loser_cannot_drop_others_once_it_is_out() -> None:
    plan = Plan(40, looks=2)
    best, middle, last = np.ones(40), np.tile([0.0, 1.0], 20), np.zeros(40)
    standing = stand(plan, [Prefix.of(x) for x in (best, middle, last)])
    assert standing.winner == 0
    assert {(each.model, each.by) for each in standing.dropped} <= {(1, 0), (2, 0), (2, 1)}
    assert [each.n for each in standing.dropped] == [20, 20]


def test_errors_of_either_model_keep_a_pair_open() -> None:
    models = scores([0.35, 0.6], 200)
    known = stand(Plan(200), [Prefix.of(each) for each in models])
    assert known.winner == 1
    upper = models[0].copy()
    models[0][:80], upper[:80] = 0.0, 1.0
    unknown = stand(Plan(200), [Prefix.of(models[0], upper), Prefix.of(models[1])])
    assert unknown.winner is None


def test_models_on_other_items_are_refused() -> None:
    one = Prefix.of(np.ones(6), units=[0, 0, 1, 1, 2, 2])
    other = Prefix.of(np.ones(4), units=[0, 0, 1, 2])
    with pytest.raises(InvalidInput, match="same items in the same order"):
        stand(Plan(10), [one, other])
    with pytest.raises(InvalidInput, match="two models or more; got 1"):
        stand(Plan(10), [one])
