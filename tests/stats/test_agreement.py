"""Agreement, kappa and balanced F1: the numbers others have, and intervals that hold."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from statsmodels.stats.inter_rater import cohens_kappa

from heldout.errors import InvalidInput
from heldout.stats import Agreement, agreement_of, wilson
from tests.slow import figure

TABLES = {
    "two classes": [[40, 9], [6, 45]],
    "three classes": [[44, 5, 1], [7, 20, 3], [9, 5, 6]],
    "one rare class": [[90, 1], [3, 2]],
    "worse than chance": [[2, 20], [30, 3]],
    "a class that no label has": [[40, 5, 2], [6, 30, 1], [0, 0, 0]],
}


def two_by_two(prevalence: float, sensitivity: float, specificity: float) -> np.ndarray:
    yes, no = prevalence, 1 - prevalence
    return np.array(
        [[yes * sensitivity, yes * (1 - sensitivity)], [no * (1 - specificity), no * specificity]]
    )


def agreement_of_table(table: ArrayLike, categories: Sequence[Hashable] | None = None) -> Agreement:
    """Rows are labels, columns verdicts, and cells count items."""
    counts = np.asarray(table)
    cells = np.repeat(np.arange(counts.size), counts.reshape(-1))
    names = [*(range(len(counts)) if categories is None else categories)]
    labels, verdicts = ([names[i] for i in side] for side in np.divmod(cells, len(counts)))
    return agreement_of(labels, verdicts, categories=names)


def kappa_of(p: np.ndarray) -> float:
    p = p / p.sum()
    chance = float(p.sum(axis=0) @ p.sum(axis=1))
    return (float(np.trace(p)) - chance) / (1 - chance)


def balanced_f1_of(p: np.ndarray) -> float:
    """From precision and recall, class by class, over the classes that labels have."""
    found = []
    for c in range(len(p)):
        if p[c].sum() == 0:
            continue
        if p[c, c] == 0:
            found.append(0.0)
            continue
        precision, recall = p[c, c] / p[:, c].sum(), p[c, c] / p[c].sum()
        found.append(2 * precision * recall / (precision + recall))
    return float(np.mean(found))


# --- Values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_kappa_and_its_error_are_those_of_statsmodels(table: list[list[int]]) -> None:
    found, theirs = agreement_of_table(table), cohens_kappa(np.array(table))
    n = found.n
    assert found.kappa.value == pytest.approx(theirs.kappa)
    # Theirs divides by n, ours by n - 1.
    assert found.kappa.stderr == pytest.approx(theirs.std_kappa * math.sqrt(n / (n - 1)))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_balanced_f1_is_the_mean_of_f1_over_classes(table: list[list[int]]) -> None:
    found = agreement_of_table(table)
    assert found.balanced_f1.value == pytest.approx(balanced_f1_of(np.array(table, float)))
    with_labels = [c.f1 for c in found.classes if c.recall.n]
    assert found.balanced_f1.value == pytest.approx(np.mean(with_labels))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_errors_are_those_of_gradients_taken_by_differences(table: list[list[int]]) -> None:
    p = np.array(table, float)
    n, found = int(p.sum()), agreement_of_table(table)
    for estimate, function in ((found.kappa, kappa_of), (found.balanced_f1, balanced_f1_of)):
        # What one item more in a cell would change: the influence of the items in it.
        step, influence = 1e-5, np.zeros_like(p)
        for cell in map(tuple, np.argwhere(p > 0)):
            more = p.copy()
            more[cell] += step
            influence[cell] = (function(more) - function(p)) / step * n
        variance = float((p * influence**2).sum()) / n / (n - 1)
        assert estimate.stderr == pytest.approx(math.sqrt(variance), rel=1e-3)


def test_agreement_is_the_share_with_wilsons_interval() -> None:
    found = agreement_of(["a", "b", "a", "a"], ["a", "b", "b", "a"]).agreement
    assert (found.count, found.n, found.value) == (3, 4, 0.75)
    assert found.interval == wilson(0.75, 4)


def test_each_class_has_its_precision_and_recall_with_their_denominators() -> None:
    found = agreement_of_table([[8, 2], [4, 6]], categories=["yes", "no"])
    yes, no = found.classes
    assert yes.name == "yes"
    assert (yes.precision.count, yes.precision.n) == (8, 12)
    assert (yes.recall.count, yes.recall.n) == (8, 10)
    assert (no.precision.count, no.precision.n, no.recall.n) == (6, 8, 10)
    assert yes.f1 == pytest.approx(16 / 22)


def test_a_class_that_labels_do_not_have_has_no_recall_and_no_part_in_balanced_f1() -> None:
    labels = ["first"] * 10 + ["second"] * 10
    verdicts = ["first"] * 10 + ["second"] * 9 + ["tie"]
    found = agreement_of(labels, verdicts)
    tie = found.classes[2]
    assert (tie.recall.n, tie.recall.value, tie.recall.interval) == (0, None, None)
    assert (tie.precision.value, tie.f1) == (0.0, None)
    assert found.balanced_f1.value == pytest.approx((1 + 18 / 19) / 2)


def test_rows_are_in_the_order_that_was_given_and_classes_nobody_names_are_left_out() -> None:
    found = agreement_of(["b", "a"], ["b", "b"], categories=["a", "unused", "b"])
    assert found.categories == ("a", "b")
    assert found.table == ((0, 1), (0, 1))


# --- What cannot be told ------------------------------------------------------------------------


def test_with_one_class_only_there_is_no_kappa() -> None:
    found = agreement_of(["yes"] * 30, ["yes"] * 30)
    assert (found.kappa.value, found.kappa.stderr, found.kappa.interval) == (None, None, None)
    assert found.agreement.value == 1.0


def test_a_judge_that_always_says_yes_agrees_often_and_has_a_kappa_of_0() -> None:
    found = agreement_of_table([[90, 0], [10, 0]])
    assert found.agreement.value == 0.9
    assert found.kappa.value == 0.0
    assert found.kappa.interval is not None
    assert found.kappa.interval.high < 0.4
    assert found.balanced_f1.value == pytest.approx(0.4737, abs=1e-4)


def test_perfect_agreement_has_an_interval_that_narrows_with_items() -> None:
    for n, least in ((10, 0.3), (50, 0.8), (500, 0.98)):
        found = agreement_of_table([[n // 2, 0], [0, n // 2]])
        for estimate in (found.kappa, found.balanced_f1):
            assert estimate.value == 1.0
            assert estimate.interval is not None
            assert estimate.interval.high == 1.0
            assert least < estimate.interval.low < 1 - 1 / n


def test_where_labels_are_all_alike_kappa_is_hardly_known() -> None:
    found = agreement_of_table([[99, 1], [0, 0]])
    assert found.kappa.value == 0.0
    assert found.kappa.interval is not None
    assert found.kappa.interval.high > 0.6


def test_one_item_or_one_cluster_has_values_without_intervals() -> None:
    assert agreement_of(["a"], ["b"]).kappa.interval is None
    found = agreement_of(["a", "b", "a"], ["a", "b", "b"], clusters=["x"] * 3)
    assert found.kappa.value is not None
    assert found.kappa.interval is None
    assert found.balanced_f1.interval is None


@pytest.mark.parametrize(
    ("labels", "verdicts", "message"),
    [
        ([], [], "0 labels and 0 verdicts"),
        (["a"], [], "1 labels and 0 verdicts"),
        (["a", "x"], ["a", "a"], r"labels\[1\] is 'x', which is none of"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    labels: list[str], verdicts: list[str], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        agreement_of(labels, verdicts, categories=["a", "b"])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4).flatmap(lambda c: st.lists(
    st.lists(st.integers(0, 60), min_size=c, max_size=c), min_size=c, max_size=c
)))  # fmt: skip
def test_any_table_has_values_within_their_intervals_and_bounds(table: list[list[int]]) -> None:
    if sum(map(sum, table)) == 0:
        return
    found = agreement_of_table(table)
    for estimate, least in ((found.kappa, -1.0), (found.balanced_f1, 0.0)):
        if estimate.value is None:
            continue
        assert least - 1e-9 <= estimate.value <= 1 + 1e-9
        if estimate.interval is not None:
            low, high = estimate.interval.low, estimate.interval.high
            assert least - 1e-9 <= low <= estimate.value + 1e-9
            assert estimate.value - 1e-9 <= high <= 1 + 1e-9
            assert high - low > 0


# --- Coverage -----------------------------------------------------------------------------------

# What labels and verdicts are like, as proportions.
WORLDS = {
    "a good judge": two_by_two(0.5, 0.9, 0.9),
    "a very good judge": two_by_two(0.5, 0.98, 0.98),
    "a rare class": two_by_two(0.1, 0.9, 0.9),
    "a rare class, a very good judge": two_by_two(0.1, 0.95, 0.99),
    "at random": two_by_two(0.5, 0.7, 0.3),
    "three classes": np.array([[0.40, 0.03, 0.02], [0.05, 0.25, 0.03], [0.02, 0.02, 0.18]]),
    "nearly always yes": two_by_two(0.6, 0.99, 0.03),
}


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
@pytest.mark.parametrize("n", [50, 100, 500])
def test_intervals_cover_the_truth_about_95_percent_of_the_time(n: int, world: np.ndarray) -> None:
    """91.5% at the least, with 50 items and two errors in a hundred. Cohen's own error, plus and
    minus, covers 52% to 65% there."""
    p = world / world.sum()
    rng = np.random.default_rng(n)
    tables, times = np.unique(rng.multinomial(n, p.ravel(), size=200), axis=0, return_counts=True)
    truths = kappa_of(p), balanced_f1_of(p)
    inside, all_of_them = np.zeros(2), np.zeros(2)
    for table, count in zip(tables, times, strict=True):
        found = agreement_of_table(table.reshape(p.shape))
        for i, estimate in enumerate((found.kappa, found.balanced_f1)):
            if estimate.interval is not None:
                all_of_them[i] += count
                inside[i] += count * (estimate.interval.low <= truths[i] <= estimate.interval.high)
    # 200 draws: give or take 1.5%, a standard error.
    assert figure((inside / all_of_them).min()) > 0.87


# (items, share of the rarer class, how often the judge is right) and what then covers the truth, in
# percent: the intervals of agreement, kappa and balanced F1; and kappa plus and minus 1.96 errors.
COVERAGE = {
    (50, 0.5, 0.99): (91, 91, 91, 39),
    (50, 0.5, 0.98): (92, 92, 92, 64),
    (50, 0.1, 0.9): (97, 93, 93, 90),
    (30, 0.05, 0.9): (97, 83, 75, 68),
    (30, 0.05, 0.8): (96, 85, 73, 68),
}


@pytest.mark.slow
@pytest.mark.parametrize("world", COVERAGE)
def test_what_is_said_of_coverage_is_so(world: tuple[int, float, float]) -> None:
    """Over every table that is not rarer than one in 160,000; docs/judge-check.md has these."""
    n, share, right = world
    p = two_by_two(share, right, right)
    truths = float(np.trace(p)), kappa_of(p), balanced_f1_of(p)
    a, b, c = (axis.ravel() for axis in np.indices((n + 1,) * 3))
    tables = np.stack([a, b, c, n - a - b - c], axis=1)[a + b + c <= n]
    factorials = np.array([math.lgamma(i + 1) for i in range(n + 1)])
    logs = factorials[n] - factorials[tables].sum(axis=1) + tables @ np.log(p.ravel())
    inside, all_of_them = np.zeros(4), np.zeros(4)
    for table, mass in zip(tables[logs > -12], np.exp(logs[logs > -12]), strict=True):
        found = agreement_of_table(table.reshape(2, 2))
        for i, one in enumerate((found.agreement, found.kappa, found.balanced_f1)):
            if one.interval is not None:
                all_of_them[i] += mass
                inside[i] += mass * (one.interval.low <= truths[i] <= one.interval.high)
        if found.kappa.value is not None and found.kappa.stderr is not None:
            all_of_them[3] += mass
            inside[3] += mass * (abs(found.kappa.value - truths[1]) <= 1.96 * found.kappa.stderr)
    assert 100 * inside / all_of_them == pytest.approx(COVERAGE[world], abs=0.6)


def test_items_of_one_cluster_are_not_counted_as_items_of_their_own() -> None:
    """Answers of four criteria each, which a judge gets right or wrong together."""
    rng = np.random.default_rng(5)
    truth = kappa_of(two_by_two(0.5, 0.85, 0.85))
    inside = {"clustered": 0, "alone": 0}
    for _ in range(120):
        labels = rng.random(60) < 0.5
        wrong = rng.random(60) < 0.15
        rows, columns = np.repeat(labels, 4).tolist(), np.repeat(labels ^ wrong, 4).tolist()
        for name, clusters in (("clustered", np.repeat(np.arange(60), 4)), ("alone", None)):
            found = agreement_of(rows, columns, clusters=clusters).kappa.interval
            assert found is not None
            inside[name] += found.low <= truth <= found.high
    assert inside["clustered"] / 120 > 0.9
    assert inside["alone"] / 120 < 0.78


def test_clusters_that_are_all_alike_count_as_one_item_each() -> None:
    def lower_end(copies: int, clustered: bool) -> float:
        classes = np.repeat([0, 1] * 5, copies).tolist()
        groups = np.repeat(np.arange(10), copies) if clustered else None
        found = agreement_of(classes, classes, clusters=groups).kappa.interval
        assert found is not None
        return found.low

    once = lower_end(1, clustered=False)
    assert lower_end(6, clustered=True) == pytest.approx(once, abs=0.05)
    assert lower_end(6, clustered=False) > once + 0.4


def test_copies_in_one_cluster_change_nothing_but_counts() -> None:
    labels, verdicts = [1, 1, 0, 0, 1, 0, 1, 0], [1, 0, 0, 0, 1, 1, 1, 0]
    once = agreement_of(labels, verdicts)
    thrice = agreement_of(labels * 3, verdicts * 3, clusters=[*range(8)] * 3)
    assert thrice.kappa.value == pytest.approx(once.kappa.value)
    assert thrice.kappa.stderr == pytest.approx(once.kappa.stderr)
    assert (thrice.n, thrice.clusters) == (24, 8)
