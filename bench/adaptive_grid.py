"""Errors of evals that stop, over a grid of truths and sizes; adaptive_grid.json is the record.

python bench/adaptive_grid.py --draws 20000

Exact rules are computed: every path between the boundaries is summed up. Score tests are simulated
with the library's critical values and statistics over arrays of draws, beside the same test at one
look of the whole set; the first draws of each cell also go through the library, which has to decide
alike. An error is a decision on the wrong side where the truth is the bound itself.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from heldout.stats.stopping import Plan, Prefix, mean_above, not_worse_than_baseline
from heldout.stats.stopping.choosing import gather
from heldout.stats.stopping.gaussian import critical_values, student_critical
from heldout.stats.stopping.scores import LEAST_UNITS, least_units
from heldout.stats.stopping.walks import walk

RECORD = Path(__file__).with_suffix(".json")
RULES = ("linear", "keep_power")
SIZES = (50, 100, 200, 500, 1000, 2000, 5000)
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
CHECKED = 20
"""Draws of each simulated cell that go through the library, too."""


def spends(plan: Plan) -> tuple[float, ...]:
    return tuple(plan.spent(n) for n in plan.sizes)


# --- Computed -----------------------------------------------------------------------------------


def means() -> Iterator[dict[str, Any]]:
    for rule in RULES:
        for n in SIZES:
            plan = Plan(n, rule)
            for rate in RATES:
                low, high = walk(plan.sizes, spends(plan), rate).ends(rate)
                worst = float(max(low.sum(), high.sum()))
                yield {"rule": rule, "n": n, "rate": rate, "error": round(worst, 6)}


def pairs(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    for rule in RULES:
        for n in SIZES:
            plan = Plan(n, rule)
            steps = [later - size for size, later in pairwise((0, *plan.sizes))]
            for discordance in (0.05, 0.1, 0.2, 0.3, 0.5):
                worst = 0.0
                for _ in range(40):  # given any numbers that differ: the worst of some
                    differ = np.cumsum(rng.binomial(steps, discordance)).tolist()
                    low, high = walk(differ, spends(plan), 0.5).ends(0.5)
                    worst = max(worst, float(low.sum()), float(high.sum()))
                cell = {"rule": rule, "n": n, "discordance": discordance}
                yield cell | {"error": round(worst, 6)}


# --- Simulated ----------------------------------------------------------------------------------


def tango(wins: Any, losses: Any, n: Any, bound: float) -> Any:
    """Return Tango's variance over arrays."""
    linear = (2 * n - wins + losses) * bound - wins - losses
    constant = -losses * bound * (1 - bound)
    root = np.sqrt(np.maximum(0, linear * linear - 8 * n * constant))
    away = np.where(root + linear > 0, root + linear, 1.0)
    losing = np.where(linear <= 0, (root - linear) / (4 * n), -2 * constant / away)
    return 2 * losing + bound * (1 - bound)


def first_crossings(scores: Any, critical: Any) -> Any:
    """Return 1, -1 or 0 for each row of scores, by the first look that crosses."""
    crossed = np.abs(scores) >= critical
    first = crossed.argmax(axis=1)
    sign = np.sign(scores[np.arange(len(scores)), first])
    return np.where(crossed.any(axis=1), sign, 0.0)


def two_sides(found: Any) -> dict[str, float]:
    return {
        "passes": round(float((found > 0).mean()), 4), "fails": round(float((found < 0).mean()), 4)
    }  # fmt: skip


def margins(rng: np.random.Generator, draws: int) -> Iterator[dict[str, Any]]:
    for n in (50, 200, 1000, 5000):
        for discordance in (0.05, 0.1, 0.3, 0.5):
            for margin in (0.01, 0.02, 0.05, 0.1):
                if margin > discordance:
                    continue
                won, lost = (discordance - margin) / 2, (discordance + margin) / 2
                chances = [won, lost, 1 - discordance]
                for rule in RULES:
                    cell = {"rule": rule, "n": n, "discordance": discordance, "margin": margin}
                    yield cell | _margin_cell(rng, draws, Plan(n, rule), margin, chances)


def _margin_cell(
    rng: np.random.Generator, draws: int, plan: Plan, margin: float, chances: list[float]
) -> dict[str, Any]:
    steps = [later - size for size, later in pairwise((0, *plan.sizes))]
    blocks = np.stack([rng.multinomial(step, chances, draws) for step in steps], axis=1)
    wins, losses = blocks[..., 0].cumsum(1), blocks[..., 1].cumsum(1)
    sizes = np.array(plan.sizes, dtype=np.float64)
    apart = (wins - losses) / sizes + margin
    scores = apart / np.sqrt(np.maximum(tango(wins, losses, sizes, -margin), 1e-300) / sizes)
    critical = critical_values(tuple(sizes.tolist()), spends(plan))
    once = critical_values((sizes[-1],), (plan.side,))
    found = first_crossings(scores, critical)
    for block, expected in zip(blocks[:CHECKED], found, strict=False):
        values = np.concatenate([np.repeat([1.0, -1.0, 0.0], counts) for counts in block])
        evidence = gather(plan, not_worse_than_baseline(margin), Prefix.of(values), final=True)
        if evidence.test == "tango" and evidence.decision != {1: True, -1: False}.get(expected):
            raise SystemExit(f"wrong result: {plan} {margin} {evidence.decision} {expected}")
    return {"looks": two_sides(found), "once": two_sides(first_crossings(scores[:, -1:], once))}


def clusters(rng: np.random.Generator, draws: int) -> Iterator[dict[str, Any]]:
    for units in (10, 12, 20, 50, 200):
        for items in (1, 4, 16):
            for rate in (0.05, 0.2, 0.5, 0.8, 0.95):
                # With one item a unit, grades between 0 and 1: then the rate is their mean.
                hard = rng.beta(2 * rate, 2 * (1 - rate), (draws, units))
                means = hard if items == 1 else rng.binomial(items, hard) / items
                for rule in RULES:
                    cell = {"rule": rule, "clusters": units, "items": items, "rate": rate}
                    if items == 1 and not 0.2 <= rate <= 0.8:
                        continue  # bet on
                    yield cell | _cluster_cell(means, Plan(units, rule), rate, items)


def _cluster_cell(means: Any, plan: Plan, rate: float, items: int) -> dict[str, Any]:
    units = plan.n or 0
    least = max(LEAST_UNITS, min(least_units(rate, paired=False), units))
    made = [size for size in plan.sizes if size >= least]
    scores = np.zeros((len(means), len(made)))
    for look, size in enumerate(made):
        first = means[:, :size]
        mean = first.mean(axis=1)
        error = first.std(axis=1, ddof=1) / math.sqrt(size)
        spread = mean * (1 - mean)
        varies = (error * math.sqrt(size) > 1e-6) & (spread > 0)
        answers = np.where(varies, spread / np.where(varies, error, 1) ** 2, size)
        scores[:, look] = (mean - rate) / np.sqrt(rate * (1 - rate) / answers)
    normal = critical_values(
        tuple(float(size) for size in made), tuple(plan.spent(size) for size in made)
    )
    critical = [student_critical(z, size - 1) for z, size in zip(normal, made, strict=True)]
    once = [student_critical(critical_values((1.0,), (plan.side,))[0], units - 1)]
    found = first_crossings(scores, critical)
    for row, expected in zip(means[:CHECKED], found, strict=False):
        values = np.concatenate([np.arange(items) < round(share * items) for share in row])
        prefix = Prefix.of(values, units=np.repeat(np.arange(units), items))
        if items == 1:
            prefix = Prefix.of(row)
        decision = gather(plan, mean_above(rate), prefix, final=True).decision
        if decision != {1: True, -1: False}.get(expected):
            raise SystemExit(f"wrong result: {plan} {rate} {decision} {expected}")
    return {"looks": two_sides(found), "once": two_sides(first_crossings(scores[:, -1:], once))}


def summarize(cells: list[dict[str, Any]], draws: int) -> dict[str, Any]:
    """Say what the grid shows: the largest error, and how much worse looks are than one look."""
    if "error" in cells[0]:
        return {"cells": len(cells), "largest error": max(cell["error"] for cell in cells)}
    sides = [(cell, side) for cell in cells for side in ("passes", "fails")]
    worse = [max(0, cell["looks"][side] - max(cell["once"][side], 0.025)) for cell, side in sides]
    noise = 3 * math.sqrt(2 * 0.03 * 0.97 / draws)
    return {
        "cells": len(cells),
        "largest error": max(cell["looks"][side] for cell, side in sides),
        "largest error at one look": max(cell["once"][side] for cell, side in sides),
        "most that looks are worse": round(max(worse), 4),
        "sides worse by more than .01 and three standard errors": sum(
            each > 0.01 + noise for each in worse
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=20_000)
    draws = parser.parse_args().draws
    start = time.process_time()
    rng = np.random.default_rng(0)
    grids = {
        "mean of 0/1, exact": [*means()],
        "pairs, exact": [*pairs(rng)],
        "margin, Tango": [*margins(rng, draws)],
        "clusters and grades, t": [*clusters(rng, draws)],
    }
    summary = {name: summarize(cells, draws) for name, cells in grids.items()}
    record = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": f"python bench/adaptive_grid.py --draws {draws}",
        "seconds of CPU": round(time.process_time() - start),
        "summary": summary,
        "grids": grids,
    }
    text = json.dumps(record, indent=1)
    for cells in grids.values():
        for cell in cells:
            text = text.replace(json.dumps(cell, indent=1).replace("\n", "\n   "), json.dumps(cell))
    RECORD.write_text(text + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
