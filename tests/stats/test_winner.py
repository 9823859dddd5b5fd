"""The best of several checkpoints: coverage of its true mean, and luck taken off."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from heldout.stats.intervals import Floats
from heldout.stats.winner import Winner, best_of
from tests.slow import figure

N = 200
CURVES = 150


def evals(levels: list[float], n: int, shared: float, rng: np.random.Generator) -> Floats:
    """Checkpoints with these true rates on the same samples, of which `shared` is difficulty."""
    cuts = np.array([NormalDist().inv_cdf(level) for level in levels])
    own, fresh = rng.standard_normal(n), rng.standard_normal((len(levels), n))
    latent = math.sqrt(shared) * own + math.sqrt(1 - shared) * fresh
    return (latent < cuts[:, None]).astype(np.float64)


def simulate(
    levels: list[float], *, shared: float, n: int = N, curves: int = CURVES
) -> list[tuple[Winner, float]]:
    rng = np.random.default_rng(3)
    found = [
        best_of(evals(levels, n, shared, rng), seed=k, draws=1000, bounds=(0, 1))
        for k in range(curves)
    ]
    return [(winner, levels[winner.index]) for winner in found]


def coverage(pairs: list[tuple[Winner, float]]) -> float:
    return figure(np.mean([w.interval.low <= truth <= w.interval.high for w, truth in pairs]))


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0.0, 0.6, 0.9])
@pytest.mark.parametrize("better", [0.0, 0.05, 0.1, 0.3])
def test_the_interval_covers_the_true_mean_of_the_winner_of_twenty(
    shared: float, better: float
) -> None:
    assert coverage(simulate([0.5] * 19 + [0.5 + better], shared=shared)) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize(("n", "p"), [(20, 0.5), (20, 0.05), (20, 0.95), (100, 0.95)])
def test_few_samples_and_extreme_rates_do_not_break_the_interval(n: int, p: float) -> None:
    assert coverage(simulate([p] * 20, shared=0.6, n=n)) >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize("shared", [0.0, 0.6])
def test_the_corrected_estimate_overstates_far_less_than_the_raw_maximum(shared: float) -> None:
    pairs = simulate([0.5] * 20, shared=shared)
    raw = np.mean([w.raw - truth for w, truth in pairs])
    corrected = np.mean([w.estimate - truth for w, truth in pairs])
    assert figure(raw) > 0.045
    assert abs(figure(corrected)) < 0.3 * raw


@pytest.mark.slow
@pytest.mark.parametrize("better", [0.05, 0.1, 0.3])
def test_a_winner_that_is_truly_better_is_not_talked_down_by_much(better: float) -> None:
    pairs = simulate([0.5] * 19 + [0.5 + better], shared=0.6)
    assert abs(figure(np.mean([w.estimate - truth for w, truth in pairs]))) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 10, 20])
def test_few_samples_do_not_make_the_correction_wild(n: int) -> None:
    """Equal checkpoints near the top, whose noise is mostly shared."""
    rng = np.random.default_rng(2)
    biases = []
    for trial in range(100):
        found = best_of(evals([0.9] * 10, n, 0.9, rng), seed=trial, bounds=(0, 1), draws=1000)
        assert 0 <= found.estimate <= found.raw
        biases.append(found.estimate - 0.9)
    assert abs(figure(np.mean(biases))) < 0.08


def test_a_clear_winner_pays_for_no_one_else() -> None:
    rows = evals([0.2] * 19 + [0.8], 400, 0.6, np.random.default_rng(0))
    winner = best_of(rows, seed=0, draws=50_000)
    alone = stats.norm.ppf(0.9875) * math.sqrt(winner.raw * (1 - winner.raw) / 400)
    assert winner.contenders == 1
    assert winner.raw - winner.interval.low < 1.1 * alone
    assert winner.raw - winner.estimate < 0.001


def test_a_single_checkpoint_has_nothing_to_correct() -> None:
    rows = np.random.default_rng(0).standard_normal((1, 300))
    winner = best_of(rows, seed=0, draws=100_000)
    expected = stats.t.ppf(0.975, 299) * stats.sem(rows[0])
    assert winner.raw == winner.estimate
    assert winner.interval.high - winner.raw == pytest.approx(expected, rel=0.06)


def test_clusters_widen_the_interval_and_singletons_change_nothing() -> None:
    rng = np.random.default_rng(1)
    rows = np.repeat(evals([0.5] * 5, 50, 0.5, rng), 4, axis=1)
    plain = best_of(rows, seed=0)
    copies = best_of(rows, np.repeat(np.arange(50), 4).tolist(), seed=0)
    singles = best_of(rows, list(range(200)), seed=0)
    width = [w.interval.high - w.interval.low for w in (plain, copies)]
    assert 1.7 < width[1] / width[0] < 2.4
    assert singles.interval.low == pytest.approx(plain.interval.low)


def test_errored_items_are_left_out_of_their_checkpoint_alone() -> None:
    rows = evals([0.5, 0.9], 100, 0.5, np.random.default_rng(2))
    rows[1, :10] = np.nan
    winner = best_of(rows, seed=0)
    assert (winner.index, winner.n) == (1, 90)
    assert winner.raw == pytest.approx(np.nanmean(rows[1]))


def test_the_same_seed_gives_the_same_numbers_and_leaves_global_state_alone() -> None:
    rows = evals([0.5] * 4, 60, 0.5, np.random.default_rng(2))
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    assert best_of(rows, seed=5) == best_of(rows, seed=5)
    assert best_of(rows, seed=5) != best_of(rows, seed=6)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]


@given(
    st.integers(1, 6), st.integers(2, 30), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 5.0])
)
@settings(max_examples=60, deadline=None)
def test_the_interval_holds_raw_and_the_estimate_is_never_above_it(
    m: int, n: int, seed: int, shift: float
) -> None:
    rows = np.random.default_rng(seed).integers(0, 2, (m, n)) + shift
    winner = best_of(rows, seed=seed, draws=200)
    assert winner.interval.low <= winner.raw <= winner.interval.high
    assert winner.estimate <= winner.raw == rows.mean(axis=1).max()
    assert 1 <= winner.contenders <= m


@pytest.mark.parametrize(
    ("rewards", "clusters", "words"),
    [
        ([1.0, 2.0], None, "a row for each checkpoint"),
        ([[1.0, math.inf]], None, r"rewards\[0, 1\] is inf"),
        ([[1.0, 0.0], [1.0, math.nan]], None, "checkpoint 1 has 1 rewards"),
        ([[1.0, 0.0]], ["a"], "clusters has 1 ids for 2 values"),
        ([[1.0, 0.0]], ["a", "a"], "one cluster"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    rewards: list[float], clusters: list[str] | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        best_of(rewards, clusters, seed=0)
