from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heldout.training.budget import Budget


def test_subsets_are_halves_down_to_the_smallest() -> None:
    assert Budget(0.05, 256, smallest=30).sizes() == [256, 128, 64, 32]
    assert Budget(0.05, 5).sizes() == [5]
    assert Budget(0.05, 1, smallest=1).sizes() == [1]


def test_the_first_eval_takes_the_smallest_part_to_find_out_what_one_costs() -> None:
    assert Budget(0.05, 64).plan(trained=1000.0) == 8


def test_as_much_is_evaluated_as_training_time_allows() -> None:
    budget = Budget(0.05, 64).spend(8, seconds=4.0)  # half a second each
    # 5% of 1,000 s are 50 s, less the 4 s that are spent: all 64 cost 32 s.
    assert budget.plan(1000.0) == 64
    assert budget.plan(500.0) == 32
    assert budget.plan(200.0) == 8
    assert budget.plan(100.0) == 0


def test_a_batch_that_costs_the_same_half_full_is_not_halved() -> None:
    budget = Budget(0.05, 64, step=32).spend(32, seconds=4.0)
    assert budget.seconds(1) == budget.seconds(32) == 4.0
    assert budget.seconds(33) == 8.0


def test_preparation_is_paid_for_but_not_expected_again() -> None:
    budget = Budget(0.1, 16).spend(16, seconds=20.0, once=4.0)
    assert budget.spent == 20.0
    assert budget.seconds(16) == 16.0


def test_a_skip_costs_time_and_tells_nothing_of_the_price() -> None:
    budget = Budget(0.1, 16).spend(0, seconds=3.0)
    assert budget.spent == 3.0
    assert budget.cost is None
    # … but it must be made up for before the next try.
    assert budget.plan(29.0) == 0
    assert budget.plan(31.0) == 8


@given(
    total=st.integers(1, 500),
    overhead=st.floats(0.001, 0.5),
    cost=st.floats(0.001, 10.0),
    trained=st.lists(st.floats(0.1, 1000.0), min_size=1, max_size=60),
)
def test_after_the_first_eval_the_budget_is_never_passed(
    total: int, overhead: float, cost: float, trained: list[float]
) -> None:
    budget, time = Budget(overhead, total), 0.0
    first: float | None = None
    for more in trained:
        time += more
        samples = budget.plan(time)
        if samples == 0:
            continue
        assert samples in budget.sizes()
        budget = budget.spend(samples, samples * cost)
        if first is None:
            first = budget.spent
        else:
            assert budget.spent <= overhead * time + 1e-6
