"""A race of finished runs: who would have been dropped where, and for which share of the calls.

The looks are those that `heldout race` would have made: at prefixes of the same order, with the
same tests. What the runs have beyond a model's drop has no part in it; `rank` uses all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from heldout._core.config import DEFAULT_LEVEL
from heldout._evals.racing import RaceReport, conclude_race, place
from heldout._evals.stopping import ORDER_KEY, prefix_of
from heldout.analysis._runs import (
    REWARD,
    Measure,
    RunOrPath,
    clusters_if_any,
    load_run,
    within_unit,
)
from heldout.analysis.ranking import align_runs
from heldout.datasets import ordered_by_id
from heldout.errors import InvalidInput
from heldout.stats.intervals import Ints
from heldout.stats.stopping import Plan, stand
from heldout.types import Sample


def race_runs(
    runs: Sequence[RunOrPath],
    *,
    level: float = DEFAULT_LEVEL,
    keep_power: bool = False,
    cluster: str | None = None,
    allow: Collection[str] = (),
) -> RaceReport:
    """Race finished runs, whose rewards must lie between 0 and 1.

    Args:
        runs: Reports, or paths of run directories: two or more.
        level: How often a best run is dropped.
        keep_power: Whether error is spent late.
        cluster: See `compare`.
        allow: As for `compare`.

    Raises:
        NotComparable: Something differs that is not allowed to.
        InvalidInput: There are fewer than two runs, or a reward is not between 0 and 1.
    """
    if len(runs) < 2:
        raise InvalidInput("a race is between two runs or more")
    keys = [] if cluster is None else [cluster]
    loaded = [load_run(run, keys, name=f"run {i + 1}") for i, run in enumerate(runs)]
    names = [run.name for run in loaded]
    if len({*names}) < len(names):
        names = [str(run.report.path or f"run {i + 1}") for i, run in enumerate(loaded)]
    measure = Measure(REWARD, None)
    if not within_unit(*(measure.item_values(run) for run in loaded)):
        raise InvalidInput("a race is for rewards between 0 and 1")
    shared, _ = align_runs(loaded, allow, measure, keys, given=True)
    table = loaded[0].table
    clusters = clusters_if_any(table, cluster)
    order, units = _order(
        [table.sample_ids[row] for row in shared[0].tolist()],
        shared[0] if clusters is None else clusters[shared[0]],
    )
    prefixes = [
        prefix_of(
            measure.sample_values(run, errors_as=0.0)[rows][order],
            measure.sample_values(run, errors_as=1.0)[rows][order],
            units,
        )
        for run, rows in zip(loaded, shared, strict=True)
    ]
    plan = Plan(
        n=int(units[-1]) + 1, spending="keep_power" if keep_power else "linear", level=level
    )
    looks = 0
    for size in plan.sizes:
        looks += 1
        standing = stand(plan, [prefix.first(size) for prefix in prefixes])
        if standing.is_over:
            break
    repeats = loaded[0].report.repeats
    ends = {each.model: each.n for each in standing.dropped}
    counted = [
        int(np.searchsorted(units, ends.get(model, standing.n))) * repeats
        for model in range(len(names))
    ]
    models = [*standing.survivors, *(each.model for each in reversed(standing.dropped))]
    placed = tuple(
        place(names, names[model], standing, counted[model], loaded[model].report)
        for model in models
    )
    return conclude_race(
        placed,
        by_cost=False,
        level=level,
        looks_used=looks,
        looks_planned=len(plan.sizes),
        n_asked=len(units) * repeats,
        n_spent=sum(counted),
    )


def _order(ids: Sequence[str], clusters: Ints) -> tuple[Ints, Ints]:
    """Return the places of samples in the order of a race, and the unit of each in that order."""
    places = {id: place for place, id in enumerate(ids)}
    members: dict[int, list[int]] = {}
    for sample in ordered_by_id([Sample(id, {}) for id in ids], ORDER_KEY):
        members.setdefault(int(clusters[places[sample.id]]), []).append(places[sample.id])
    order = np.array([place for group in members.values() for place in group], dtype=np.int64)
    units = np.repeat(np.arange(len(members)), [len(group) for group in members.values()])
    return order, units.astype(np.int64)
