"""Ranks of finished runs, and the interval of each."""

from __future__ import annotations

import numpy as np
import pytest

from heldout.errors import InvalidInput
from heldout.stats import best_of, paired_difference
from heldout.stats.stopping import rank_runs
from tests.slow import figure
from tests.stats.stopping.test_races import scores


def test_ranks_are_by_the_mean_and_their_intervals_by_all_pairs() -> None:
    runs = scores([0.3, 0.6, 0.32, 0.58], 400)
    found = rank_runs(runs)
    assert [each.run for each in found.ranks][2:] == sorted((0, 2), key=lambda i: -runs[i].mean())
    assert {each.run: (each.highest, each.lowest) for each in found.ranks} == {
        1: (1, 2), 3: (1, 2), 0: (3, 4), 2: (3, 4)
    }  # fmt: skip
    assert set(found.best) == {1, 3}
    assert len(found.pairs) == 6


def test_pairs_are_compared_as_two_runs_are_and_corrected_for_their_number() -> None:
    runs = scores([0.5, 0.6, 0.4], 300)
    found = rank_runs(runs)
    for pair in found.pairs:
        alone = paired_difference(runs[pair.other], runs[pair.run])
        assert pair.difference.difference == alone.difference >= 0
        assert pair.difference.p_value == alone.p_value
        assert pair.adjusted_p >= (alone.p_value or 0)
        wide, plain = pair.difference.interval, alone.interval
        assert wide is not None
        assert plain is not None
        assert wide.low <= plain.low
        assert wide.high >= plain.high


def test_the_winner_is_corrected_for_having_been_picked() -> None:
    runs = scores([0.5] * 8, 100)
    found = rank_runs(runs, seed=3)
    assert found.winner == best_of(np.array(runs), seed=3)
    assert found.winner.estimate < found.winner.raw
    assert found.winner.index == found.ranks[0].run


def test_copies_of_samples_are_no_evidence_of_their_own() -> None:
    runs = scores([0.5, 0.55], 60)
    units = np.repeat(np.arange(60), 12)
    copied = [np.repeat(run, 12) for run in runs]
    together = rank_runs(copied, clusters=units)
    assert not together.pairs[0].is_better
    assert rank_runs(copied).pairs[0].is_better


def test_runs_that_are_alike_share_all_ranks() -> None:
    run = scores([0.5], 50)[0]
    found = rank_runs([run, run.copy(), run.copy()])
    assert [(each.run, each.highest, each.lowest) for each in found.ranks] == [
        (0, 1, 3), (1, 1, 3), (2, 1, 3)
    ]  # fmt: skip


def test_one_run_has_no_rank_nor_have_runs_on_other_items() -> None:
    with pytest.raises(InvalidInput, match="two runs or more; got 1"):
        rank_runs([[0.0, 1.0]])
    with pytest.raises(InvalidInput, match="2 to 3 values; they are aligned"):
        rank_runs([[0.0, 1.0], [0.0, 1.0, 1.0]])


@pytest.mark.slow
def test_all_ranks_together_are_in_their_intervals_in_95_percent_of_draws() -> None:
    rates = [0.5, 0.5, 0.55, 0.62, 0.45]
    right = []
    for seed in range(150):
        found = rank_runs(scores(rates, 200, seed))
        held = True
        for each in found.ranks:
            better = sum(rate > rates[each.run] for rate in rates)
            no_worse = sum(rate >= rates[each.run] for rate in rates)
            held &= each.highest <= no_worse and each.lowest >= better + 1
        right.append(held)
    assert figure(np.mean(right)) >= 0.93
