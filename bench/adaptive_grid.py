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

from heldout.stats.stopping import Claim, Plan, Prefix, mean_above, not_worse_than_baseline
from heldout.stats.stopping.betting import log_stakes
from heldout.stats.stopping.choosing import MIDDLE, gather
from heldout.stats.stopping.claims import better_than_baseline
from heldout.stats.stopping.gaussian import critical_values, student_critical
from heldout.stats.stopping.plans import Spending
from heldout.stats.stopping.scores import first_look, least_units
from heldout.stats.stopping.walks import hypergeometric_weight, reweigh, walk

RECORD = Path(__file__).with_suffix(".json")
RULES: tuple[Spending, ...] = ("linear", "keep_power")
SIZES = (50, 100, 200, 500, 1000, 2000, 5000)
RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
DISCORDANCES = (0.05, 0.1, 0.2, 0.3, 0.5)
MARGINS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
CLUSTERS = (10, 12, 20, 50, 100, 400)
ITEMS = (1, 4, 16)
ALIKE = 2.0
"""How alike the items of a cluster are: as 2 more of them would be, drawn in advance (rho 1/3)."""
CHECKED = 3
"""Draws of each simulated cell that go through the library, too."""
BATCH = 2_000_000
"""Clusters drawn at a time."""


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
            for discordance in DISCORDANCES:
                worst = 0.0
                for _ in range(40):  # given any numbers that differ: the worst of some
                    differ = np.cumsum(rng.binomial(steps, discordance)).tolist()
                    low, high = walk(differ, spends(plan), 0.5).ends(0.5)
                    worst = max(worst, float(low.sum()), float(high.sum()))
                cell = {"rule": rule, "n": n, "discordance": discordance}
                yield cell | {"error": round(worst, 6)}


def sets() -> Iterator[dict[str, Any]]:
    """Yield the errors of forecasts of this very set, which has as many successes as the bound."""
    for rule in RULES:
        for n in SIZES:
            plan = Plan(n, rule, this_set=True)
            for rate in RATES:
                most = math.floor(rate * n + 1e-9)
                near = (most + 0.5) / n
                below, above = (hypergeometric_weight(total, n, near) for total in (most, most + 1))
                found = walk(plan.sizes, spends(plan), near, below=below, above=above)
                low = high = 0.0
                # With the last of the set everything is known, and nothing can err.
                ends = zip(found.sizes[:-1], found.arrivals(near), strict=False)
                for look, (size, (at, density)) in enumerate(ends):
                    high += float(reweigh(density, below(size, at))[at >= found.high[look]].sum())
                    low += float(reweigh(density, above(size, at))[at <= found.low[look]].sum())
                cell = {"rule": rule, "n": n, "rate": rate}
                yield cell | {"error": round(max(low, high), 6)}


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


def check(plan: Plan, claim: Claim, prefix: Prefix, expected: float, test: str) -> None:
    """Refuse a decision that is not the library's, if that holds the same test against them."""
    evidence = gather(plan, claim, prefix, final=True)
    if evidence.test == test and evidence.decision != {1.0: True, -1.0: False}.get(expected):
        raise SystemExit(f"wrong result: {plan} {claim} {evidence.decision} {expected}")


def margins(rng: np.random.Generator, draws: int) -> Iterator[dict[str, Any]]:
    for n in SIZES:
        for discordance in DISCORDANCES:
            for margin in MARGINS:
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
        check(plan, not_worse_than_baseline(margin), Prefix.of(values), expected, "tango")
    return {"looks": two_sides(found), "once": two_sides(first_crossings(scores[:, -1:], once))}


def clusters(rng: np.random.Generator, draws: int) -> Iterator[dict[str, Any]]:
    for units in CLUSTERS:
        for items in ITEMS:
            for rate in (0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.95, 0.99):
                if items == 1 and not MIDDLE <= rate <= 1 - MIDDLE:
                    continue  # bet on
                # With one item a unit, grades between 0 and 1: then the rate is their mean.
                scores: dict[str, list[Any]] = {rule: [] for rule in RULES}
                for batch in _batches(draws, units):
                    hard = rng.beta(ALIKE * rate, ALIKE * (1 - rate), (batch, units))
                    found = hard if items == 1 else rng.binomial(items, hard) / items
                    for rule in RULES:
                        plan = Plan(units, rule)
                        before = sum(map(len, scores[rule]))
                        scores[rule].append(_rate_scores(found, plan, rate))
                        if not before:
                            _check_rates(found, plan, rate, items, scores[rule][0])
                for rule in RULES:
                    cell = {"rule": rule, "clusters": units, "items": items, "rate": rate}
                    found = np.concatenate(scores[rule])
                    yield cell | _cluster_cell(found, Plan(units, rule), rate, paired=False)


def gains(rng: np.random.Generator, draws: int) -> Iterator[dict[str, Any]]:
    """Yield the errors of differences of clusters: of items that were won, lost or alike."""
    for units in CLUSTERS:
        for items in ITEMS:
            for discordance in (0.05, 0.1, 0.3, 0.5):
                for margin in (0.0, 0.02, 0.05, 0.1, 0.3):
                    if margin > discordance:
                        continue
                    won, lost = (discordance - margin) / 2, (discordance + margin) / 2
                    scores: dict[str, list[Any]] = {rule: [] for rule in RULES}
                    for batch in _batches(draws, 2 * units):
                        won_of, lost_of = _draw_gains(rng, (batch, units), won, lost, items)
                        for rule in RULES:
                            plan = Plan(units, rule)
                            before = sum(map(len, scores[rule]))
                            scores[rule].append(_gain_scores(won_of, lost_of, plan, margin))
                            if not before:
                                _check_gains(won_of, lost_of, plan, margin, items, scores[rule][0])
                    for rule in RULES:
                        cell: dict[str, Any] = {"rule": rule, "clusters": units, "items": items}
                        cell |= {"discordance": discordance, "margin": margin}
                        found = np.concatenate(scores[rule])
                        yield cell | _cluster_cell(found, Plan(units, rule), -margin, paired=True)


def _batches(draws: int, units: int) -> list[int]:
    size = max(CHECKED, BATCH // units)
    return [min(size, draws - start) for start in range(0, draws, size)]


def _draw_gains(
    rng: np.random.Generator, shape: tuple[int, int], won: float, lost: float, items: int
) -> tuple[Any, Any]:
    """Draw the shares of each cluster that were won and lost; of one item, its grade."""
    parts = [
        rng.standard_gamma(ALIKE * chance, shape) if chance > 0 else np.zeros(shape)
        for chance in (won, lost, 1 - won - lost)
    ]
    total = np.maximum(sum(parts), 1e-300)
    up, down = parts[0] / total, parts[1] / total
    if items == 1:  # a graded difference is either won or lost
        return np.maximum(up - down, 0), np.maximum(down - up, 0)
    wins = rng.binomial(items, np.minimum(up, 1))
    rest = np.where(up < 1, down / np.maximum(1 - up, 1e-300), 0)
    losses = rng.binomial(items - wins, np.clip(rest, 0, 1))
    return wins / items, losses / items


def _errors(values: Any, sizes: list[int]) -> tuple[Any, Any]:
    """Return the mean of the first units at each look, and its standard error."""
    n = np.array(sizes, dtype=np.float64)
    last = np.array(sizes) - 1
    mean = np.cumsum(values, axis=1)[:, last] / n
    squares = np.cumsum(values * values, axis=1)[:, last] / n
    return mean, np.sqrt(np.maximum(squares - mean * mean, 0) / (n - 1))


def _rate_scores(values: Any, plan: Plan, rate: float) -> Any:
    sizes = [size for size in plan.sizes if size > 1]
    mean, error = _errors(values, sizes)
    spread = mean * (1 - mean)
    varies = (error * np.sqrt(sizes) > 1e-6) & (spread > 0)
    answers = np.where(varies, spread / np.where(varies, error, 1) ** 2, sizes)
    return (mean - rate) / np.sqrt(rate * (1 - rate) / answers)


def _gain_scores(won_of: Any, lost_of: Any, plan: Plan, margin: float) -> Any:
    sizes = [size for size in plan.sizes if size > 1]
    last, n = np.array(sizes) - 1, np.array(sizes, dtype=np.float64)
    mean, error = _errors(won_of - lost_of, sizes)
    won, lost = (np.cumsum(each, axis=1)[:, last] / n for each in (won_of, lost_of))
    spread = won + lost - (won - lost) ** 2
    varies = (error * np.sqrt(sizes) > 1e-6) & (spread > 0)
    answers = np.where(varies, spread / np.where(varies, error, 1) ** 2, n)
    variance = np.maximum(tango(won * answers, lost * answers, answers, -margin), 1e-12)
    return (mean + margin) / np.sqrt(variance / answers)


def _crossings(scores: Any, plan: Plan, first: int) -> Any:
    """Return 1, -1 or 0 for each row of scores, by the looks from `first` units on and the last."""
    sizes = [size for size in plan.sizes if size > 1]
    made = [look for look, size in enumerate(sizes) if size >= min(first, sizes[-1])]
    times = tuple(float(sizes[look]) for look in made)
    normal = critical_values(times, tuple(plan.spent(sizes[look]) for look in made))
    critical = [student_critical(z, n - 1) for z, n in zip(normal, times, strict=True)]
    return first_crossings(scores[:, made], critical)


def _cluster_cell(scores: Any, plan: Plan, bound: float, *, paired: bool) -> dict[str, Any]:
    once = Plan(plan.n, plan.spending, looks=1)
    cell = {"once": two_sides(_crossings(scores[:, -1:], once, 0))}
    least = least_units(bound, paired=paired)
    if (plan.n or 0) < least:
        return {"refused, needs": least} | cell
    first = first_look(bound, paired=paired)
    return {"looks": two_sides(_crossings(scores, plan, first))} | cell


def _decisions(scores: Any, plan: Plan, bound: float, *, paired: bool) -> Any:
    """Return what the library has to decide about the first draws."""
    if (plan.n or 0) < least_units(bound, paired=paired):
        return np.zeros(CHECKED)
    return _crossings(scores[:CHECKED], plan, first_look(bound, paired=paired))


def _check_rates(values: Any, plan: Plan, rate: float, items: int, scores: Any) -> None:
    found = _decisions(scores, plan, rate, paired=False)
    for row, expected in zip(values, found, strict=False):
        answers = np.concatenate([np.arange(items) < round(share * items) for share in row])
        prefix = Prefix.of(answers, units=np.repeat(np.arange(len(row)), items))
        if items == 1:
            prefix = Prefix.of(row)
        check(plan, mean_above(rate), prefix, expected, "t")


def _check_gains(
    won_of: Any, lost_of: Any, plan: Plan, margin: float, items: int, scores: Any
) -> None:
    found = _decisions(scores, plan, -margin, paired=True)
    claim = not_worse_than_baseline(margin) if margin else better_than_baseline()
    for won, lost, expected in zip(won_of, lost_of, found, strict=False):
        prefix = Prefix.of(won - lost)
        if items > 1:
            wins, losses = np.rint(won * items), np.rint(lost * items)
            places = np.arange(items)
            each = (places < wins[:, None]) * 1.0 - (places >= items - losses[:, None])
            prefix = Prefix.of(each.ravel(), units=np.repeat(np.arange(len(won)), items))
        check(plan, claim, prefix, expected, "t")


def bets(rng: np.random.Generator, draws: int) -> Iterator[dict[str, Any]]:
    """Yield the errors of betting on skewed grades, tuned to the set."""
    for n in (50, 200, 1000):
        for rate in (0.01, 0.05, 0.1, 0.9, 0.99):
            for alike in (0.2, 1.0, ALIKE):
                plan, sides = Plan(n), {"passes": 0, "fails": 0}
                at = np.array(plan.sizes) - 1
                for draw in range(draws):
                    grades = rng.beta(alike * rate, alike * (1 - rate), n)
                    stakes = [
                        log_stakes(values, bound, side=plan.side, tuned_to=n)[at]
                        for values, bound in ((grades, rate), (1 - grades, 1 - rate))
                    ]
                    up, down = (each >= -math.log(plan.side) for each in stakes)
                    look = int((up | down).argmax())
                    sides["passes"] += int(up[look])
                    sides["fails"] += int(down[look] and not up[look])
                    if draw < CHECKED:
                        expected = 1 if up[look] else -1 if down[look] else 0
                        check(plan, mean_above(rate), Prefix.of(grades), expected, "betting")
                shares = {side: round(count / draws, 4) for side, count in sides.items()}
                yield {"n": n, "rate": rate, "beta": alike, "looks": shares}


# --- Summary ------------------------------------------------------------------------------------


def summarize(cells: list[dict[str, Any]], draws: int) -> dict[str, Any]:
    """Say what the grid shows: the largest error, and how much worse looks are than one look."""
    if "error" in cells[0]:
        return {"cells": len(cells), "largest error": max(cell["error"] for cell in cells)}
    refused = [cell for cell in cells if "looks" not in cell]
    sides = [(cell, side) for cell in cells if "looks" in cell for side in ("passes", "fails")]
    largest = {"cells": len(cells), "largest error": max(c["looks"][s] for c, s in sides)}
    if refused:
        largest["refused as too few"] = len(refused)
        largest["largest error of one look in these"] = max(
            max(c["once"].values()) for c in refused
        )
    if "once" not in cells[0]:
        return largest
    literally = [cell["looks"][side] - cell["once"][side] for cell, side in sides]
    worse = [max(0, cell["looks"][side] - max(cell["once"][side], 0.025)) for cell, side in sides]
    noise = 3 * math.sqrt(2 * 0.03 * 0.97 / draws)
    return largest | {
        "largest error at one look": max(cell["once"][side] for cell, side in sides),
        "most that looks are worse": round(max(worse), 4),
        "most that looks are worse, also where one look errs less than .025": round(
            max(literally), 4
        ),
        "sides worse by more than .01 and three standard errors": sum(
            each > 0.01 + noise for each in worse
        ),
        "sides that err more than .035": sum(cell["looks"][side] > 0.035 for cell, side in sides),
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
        "mean of this set, exact": [*sets()],
        "margin, Tango": [*margins(rng, draws)],
        "clusters and grades, t": [*clusters(rng, draws)],
        "differences of clusters and grades, t": [*gains(rng, draws)],
        "skewed grades, betting": [*bets(rng, max(CHECKED, draws // 10))],
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
