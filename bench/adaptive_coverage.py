"""How often the interval after a stop covers the truth; adaptive_coverage.json is the record.

python bench/adaptive_coverage.py

The interval covers a truth where p(truth), the probability of an end as far up, lies between the
errors of both sides: each draw asks the library for that one number, which is all that its interval
is made of. The first draws of each cell have their whole interval made, which has to say the same.
A cell that covers less than .945 in its first draws has more of them, since .94 is asked for.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from heldout.stats.stopping import (
    Claim,
    Plan,
    Prefix,
    better_than_baseline,
    counts,
    mean_above,
    not_worse_than_baseline,
    scores,
)
from heldout.stats.stopping.choosing import gather
from heldout.stats.stopping.scores import least_units

RECORD = Path(__file__).with_suffix(".json")
RULES = ("linear", "keep_power")
WANTED = 0.94
DOUBTFUL = 0.945
DRAWS, BATCH = 1500, 500
CHECKED = 4
"""Draws of each cell whose whole interval is made."""
ALIKE = 2.0
"""As in adaptive_grid.py."""


@dataclass(frozen=True)
class Cell:
    """A claim, and what is true.

    Attributes:
        kind: The test that holds.
        says: What the cell is about.
        n: Units in the set.
        claim: What is claimed.
        truth: The true mean, or difference.
        draw: Draws the values of a set.
    """

    kind: str
    says: str
    n: int
    claim: Claim
    truth: float
    draw: Callable[[np.random.Generator], Prefix]


class Asked(Exception):
    """Ends the making of an interval once p(truth) is known."""


def covers(cell: Cell, plan: Plan, values: Prefix, *, whole: bool) -> bool:
    """Return whether the interval after the stop has the truth in it.

    Args:
        cell: What is claimed, and what is true.
        plan: When looks are made.
        values: Those of the whole set.
        whole: Whether to make the whole interval.
    """
    evidence = gather(plan, cell.claim, values, final=True)
    n, decision = evidence.crossed or (cell.n, None)
    if n < cell.n:
        evidence = gather(plan, cell.claim, values.first(n), final=False)
    if whole:
        interval = evidence.after_stop()[0]
        assert interval is not None
        return interval.low - 1e-8 <= cell.truth <= interval.high + 1e-8
    # Of counts an end has a chance of its own, which one side counts in and the other does not.
    wanted = 2 if evidence.test == "binomial" else 1
    found: list[float] = []

    def ask(chance: Callable[[float], float], target: float, low: float, high: float) -> float:
        found.append(chance(cell.truth))
        if len(found) == wanted:
            raise Asked
        return low

    asking = (patch.object(module, "solve_probability", ask) for module in (scores, counts))
    with next(asking), next(asking):
        try:
            interval = evidence.after_stop()[0]
        except Asked:
            pass
        else:  # values without spread have no such interval
            return interval is not None and interval.low <= cell.truth <= interval.high
    if decision is None and cell.truth == cell.claim.bound:
        return True
    if decision is not None and decision != (cell.truth > cell.claim.bound):
        return False  # an interval lies on the side that was decided for
    return max(found) >= plan.side and min(found) <= 1 - plan.side


# --- Cells --------------------------------------------------------------------------------------


def flips(n: int, discordance: float, truth: float) -> Callable[[np.random.Generator], Prefix]:
    shares = [(discordance - truth) / 2, 1 - discordance, (discordance + truth) / 2]
    return lambda rng: Prefix.of(rng.choice([-1.0, 0.0, 1.0], n, p=shares))


def outcomes(n: int, rate: float) -> Callable[[np.random.Generator], Prefix]:
    return lambda rng: Prefix.of((rng.random(n) < rate) * 1.0)


def answers(units: int, items: int, rate: float) -> Callable[[np.random.Generator], Prefix]:
    unit = np.repeat(np.arange(units), items)

    def draw(rng: np.random.Generator) -> Prefix:
        hard = rng.beta(ALIKE * rate, ALIKE * (1 - rate), units)
        if items == 1:
            return Prefix.of(hard)
        return Prefix.of((rng.random(units * items) < hard[unit]) * 1.0, units=unit)

    return draw


def gains(
    units: int, items: int, discordance: float, truth: float
) -> Callable[[np.random.Generator], Prefix]:
    unit = np.repeat(np.arange(units), items)
    won, lost = (discordance + truth) / 2, (discordance - truth) / 2
    shares = ALIKE * np.array([won, lost, 1 - discordance])

    def draw(rng: np.random.Generator) -> Prefix:
        up, down, _ = rng.dirichlet(shares, units).T
        if items == 1:
            return Prefix.of(up - down)
        at = rng.random(units * items)
        values = (at < up[unit]) * 1.0 - ((at >= up[unit]) & (at < (up + down)[unit]))
        return Prefix.of(values, units=unit)

    return draw


def cells() -> Iterator[Cell]:
    for n in (50, 400):
        for discordance in (0.1, 0.3):
            detected = 2.8 * math.sqrt(discordance / n)  # about what n samples detect
            for effect in (0.0, 1.0, 2.0):
                truth = round(effect * detected, 4)
                if truth < discordance:
                    yield Cell(
                        "pairs, exact; interval by Tango",
                        f"discordance {discordance}, true difference {truth}",
                        n,
                        better_than_baseline(),
                        truth,
                        flips(n, discordance, truth),
                    )
            margin = round(2 * detected, 4)
            for truth in (-margin, 0.0):
                if margin <= discordance:
                    yield Cell(
                        "margin, Tango",
                        f"discordance {discordance}, margin {margin}, true difference {truth}",
                        n,
                        not_worse_than_baseline(margin),
                        truth,
                        flips(n, discordance, truth),
                    )
        for bound, rate in ((0.5, 0.5), (0.8, 0.85), (0.95, 0.98)):
            says = f"bound {bound}, true rate {rate}"
            yield Cell("mean of 0/1, exact", says, n, mean_above(bound), rate, outcomes(n, rate))
    for units, items in ((10, 4), (20, 4), (50, 4), (200, 4), (50, 16), (400, 1)):
        for bound, rate in ((0.5, 0.5), (0.8, 0.9)):
            if units < least_units(bound, paired=False):
                continue  # refused
            yield Cell(
                "clusters and grades, t",
                f"{items} items, bound {bound}, true rate {rate}",
                units,
                mean_above(bound),
                rate,
                answers(units, items, rate),
            )
        for truth in (0.0, 0.1):
            yield Cell(
                "differences of clusters and grades, t",
                f"{items} items, discordance 0.3, true difference {truth}",
                units,
                better_than_baseline(),
                truth,
                gains(units, items, 0.3, truth),
            )


def measure(cell: Cell, rule: Any, most: int) -> dict[str, Any]:
    rng, plan = np.random.default_rng(11), Plan(cell.n, rule)
    found: list[bool] = []
    while len(found) < most:
        for _ in range(BATCH):
            values = cell.draw(rng)
            covered = covers(cell, plan, values, whole=False)
            if len(found) < CHECKED and covered != covers(cell, plan, values, whole=True):
                sys.exit(f"wrong result: {rule} {cell}")
            found.append(covered)
        share = sum(found) / len(found)
        error = math.sqrt(max(share * (1 - share), 0.02) / len(found))
        if len(found) >= DRAWS and share >= DOUBTFUL:
            break
    row = {"kind": cell.kind, "rule": rule, "n": cell.n, "cell": cell.says}
    return row | {"covers": round(share, 4), "error": round(error, 4), "draws": len(found)}


def summarize(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "cells": len(rows),
        "least": min(row["covers"] for row in rows),
        "mean": round(sum(row["covers"] for row in rows) / len(rows), 4),
        "below .94": sum(row["covers"] < WANTED for row in rows),
        "below .94 by three standard errors": sum(
            row["covers"] + 3 * row["error"] < WANTED for row in rows
        ),
    }


def measure_at(number: int, most: int) -> dict[str, Any]:
    """Measure a cell by its number, which another process can be sent."""
    start = time.process_time()
    cell, rule = [(cell, rule) for cell in cells() for rule in RULES][number]
    row = measure(cell, rule, most)
    print(json.dumps(row), file=sys.stderr, flush=True)
    return {**row, "seconds": round(time.process_time() - start)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=6000, help="draws of a cell at most")
    parser.add_argument("--processes", type=int, default=1, help="cells measured at once")
    given = parser.parse_args()
    most, numbers = given.most, range(len(RULES) * len([*cells()]))
    with ProcessPoolExecutor(given.processes) as pool:
        # The last cells take longest. Each has random numbers of its own, so the order is free.
        rows = [*pool.map(partial(measure_at, most=most), reversed(numbers))][::-1]
    seconds = sum(row.pop("seconds") for row in rows)
    kinds = dict.fromkeys(row["kind"] for row in rows)
    record = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": f"python bench/adaptive_coverage.py --most {most} --processes {given.processes}",
        "seconds of CPU": seconds,
        "summary": {kind: summarize([r for r in rows if r["kind"] == kind]) for kind in kinds},
    }
    text = json.dumps(record, indent=1).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    RECORD.write_text(f'{text},\n "cells": [\n{lines}\n ]\n}}\n')
    print(json.dumps(record["summary"], indent=1))


if __name__ == "__main__":
    main()
