"""Time bootstrap intervals beside rliable's on the same scores, and comparisons of a million pairs.

Both draw 50,000 resamples, rliable's default, and have to agree within the error that so many
resamples leave; CPU time is of the call alone. rliable's probability of improvement would take
twenty minutes, so it is measured with fewer resamples and scaled up.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import numpy as np

from common import child, emit, middle, options, peer, say

REPETITIONS = 50_000
SIZES = {"small": (10, 26), "large": (100, 57)}
CASES = {
    "iqm small": 40.0,
    "iqm large": 3.0,
    "improvement small": 500.0,
    "improvement large": None,
}
"""By statistic and size: how many times rliable's speed it is meant to have."""
PEER_REPETITIONS = {
    "iqm small": REPETITIONS,
    "iqm large": REPETITIONS,
    "improvement small": 500,
    "improvement large": 100,
}
PAIRS = 1_000_000
PAIR_CASES = ("0/1 values", "values from 0 to 1, four repeats a sample", "values of any size")
NORMAL_DENSITY = 0.0584
"""At the 2.5th percentile of a normal distribution, in standard deviations."""


def matrices(case: str) -> tuple[Any, Any]:
    runs, tasks = SIZES[case.split()[1]]
    rng = np.random.default_rng(0)
    difficulty = rng.gamma(2.0, size=tasks)
    x, y = rng.lognormal(sigma=0.5, size=(2, runs, tasks))
    return x * difficulty, 0.95 * y * difficulty


def by_heldout(case: str, repetitions: int) -> dict[str, float]:
    from heldout.stats.resampling import bootstrap, bootstrap_improvement

    x, y = matrices(case)
    start = time.process_time()
    if case.startswith("iqm"):
        found = bootstrap(x, "interquartile_mean", repetitions=repetitions)
    else:
        found = bootstrap_improvement(x, y, repetitions=repetitions)
    spent = time.process_time() - start
    if found.interval is None:
        sys.exit(f"wrong result: no interval for {case}")
    low, high = found.interval.low, found.interval.high
    return {"cpu_s": spent, "value": found.value, "low": low, "high": high}


def by_rliable(case: str, repetitions: int) -> dict[str, float]:
    """Runs in an environment with rliable, and without heldout."""
    from rliable import library, metrics  # type: ignore[import-not-found]

    x, y = matrices(case)
    start = time.process_time()
    if case.startswith("iqm"):
        points, intervals = library.get_interval_estimates(
            {"x": x}, lambda x: np.array([metrics.aggregate_iqm(x)]), reps=repetitions
        )
    else:
        points, intervals = library.get_interval_estimates(
            {"x": [x, y]},
            lambda x, y: np.array([metrics.probability_of_improvement(x, y)]),
            reps=repetitions,
        )
    spent = time.process_time() - start
    low, high = intervals["x"].ravel().tolist()
    return {"cpu_s": spent, "value": float(points["x"][0]), "low": low, "high": high}


def pairs(case: str, n: int) -> dict[str, float]:
    """The difference of so many pairs that are in memory, after a first one that imports."""
    from heldout.stats import paired_difference

    rng = np.random.default_rng(1)
    a, b = rng.random((2, n))
    clusters = None
    if case.startswith("0/1"):
        a, b = (a < 0.5) * 1.0, (b < 0.51) * 1.0
    elif case.startswith("values of any size"):
        a, b = 10 * a - 5, 10 * b - 4.9
    else:
        clusters = np.repeat(np.arange(n // 4), 4)
    paired_difference(a[:1000], b[:1000])
    start = time.perf_counter()
    found = paired_difference(a, b, clusters=clusters, pass_threshold=0.5)
    spent = time.perf_counter() - start
    if found.n != n or found.interval is None or found.wins + found.losses + found.ties != n:
        sys.exit(f"wrong result for {case}: {found}")
    return {"wall_s": spent}


def check(case: str, own: dict[str, float], other: dict[str, float], sizes: list[int]) -> None:
    """Equal points; ends of intervals as near as two sets of resamples let percentiles be."""
    deviation = (own["high"] - own["low"]) / 3.92
    error = math.sqrt(0.025 * 0.975 * sum(1 / size for size in sizes)) / NORMAL_DENSITY * deviation
    near = all(abs(own[end] - other[end]) < 5 * error for end in ("low", "high"))
    if not near or not math.isclose(own["value"], other["value"], rel_tol=1e-10):
        sys.exit(f"wrong result for {case}: {own}, where rliable has {other}")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--heldout", choices=tuple(CASES), help="measure one case")
    parser.add_argument("--rliable", choices=tuple(CASES), help="measure one case of the peer")
    parser.add_argument("--pairs", choices=PAIR_CASES, help="measure one kind of pairs")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    args = parser.parse_args()
    if args.heldout:
        print(json.dumps(by_heldout(args.heldout, args.repetitions)))
        return
    if args.rliable:
        print(json.dumps(by_rliable(args.rliable, args.repetitions)))
        return
    share = 20 if args.quick else 1
    if args.pairs:
        print(json.dumps(pairs(args.pairs, PAIRS // share)))
        return
    python = peer(args.peers_dir, "rliable")
    for case, times in CASES.items():
        say(f"stats, {case}")
        many, fewer = REPETITIONS // share, PEER_REPETITIONS[case] // share
        command = (sys.executable, __file__, "--heldout", case, "--repetitions", str(many))
        rounds = [child(*command) for _ in range(1 if args.quick else 3)]
        theirs = child(python, __file__, "--rliable", case, "--repetitions", str(fewer))
        check(case, rounds[0], theirs, [many, fewer])
        runs, tasks = SIZES[case.split()[1]]
        name = "interquartile mean" if case.startswith("iqm") else "probability of improvement"
        what = f"{name}, {runs} x {tasks}, {many:,} resamples"
        own, other = middle(rounds, "cpu_s"), theirs["cpu_s"] * many / fewer
        emit(f"CPU of {what}", own, "s", target=None if times is None else other / times)
        scaled = "" if fewer == many else f", scaled up from {fewer:,}"
        emit(f"rliable, the same{scaled}", other, "s", ratio=other / own)
    for case in PAIR_CASES:
        say(f"stats, {case}")
        quick = ("--quick",) if args.quick else ()
        rounds = [child(sys.executable, __file__, "--pairs", case, *quick) for _ in range(3)]
        spent = middle(rounds, "wall_s")
        emit(f"paired_difference, {PAIRS // share:,} pairs, {case}", spent, "s", target=1.0)


if __name__ == "__main__":
    main()
