"""Simulate curves and count verdicts: false alarms on flat ones, power on real trends.

A greedy eval's rewards are 0 or 1. `steady` curves have samples of their own difficulty that flip
at random around it each eval, as nearby checkpoints do; `fresh` ones draw every sample anew each
eval; in `drifting` ones a tenth of the samples is drawn anew and stays so, which no averaging over
evals helps. Beside them, what two bare means would have said. Last, what a verdict costs.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from statistics import NormalDist

import numpy as np

from common import child, emit, middle, options, say
from heldout.stats import best_of, monitor
from heldout.stats.intervals import Floats
from heldout.stats.sequential import WINDOW
from heldout.training import CurveMonitor, CurvePoint
from heldout.training.curve.points import ItemOutcome

CURVES = 300
"""Simulated for each figure: a share of 2% among them has a standard error of 0.8%."""
SHARED = {"steady": 0.9, "less steady": 0.7, "fresh": 0.0}
"""How much of what decides a reward (on a normal scale) is the sample's own, by kind of curve."""


def curve(kind: str, levels: Iterable[float], n: int, rng: np.random.Generator) -> Floats:
    normal = NormalDist()
    cuts = [normal.inv_cdf(level) for level in levels]
    own = rng.standard_normal(n)
    rows = []
    for cut in cuts:
        fresh = rng.standard_normal(n)
        if kind == "drifting":
            latent = own = np.where(rng.random(n) < 0.1, fresh, own)
        else:
            latent = np.sqrt(SHARED[kind]) * own + np.sqrt(1 - SHARED[kind]) * fresh
        rows.append(latent < cut)
    return np.array(rows, dtype=np.float64)


def peeking(rows: Floats) -> bool:
    """Whether any eval is "better" or "worse" than the first by an uncorrected paired z test."""
    differences = rows[1:] - rows[0]
    errors = differences.std(axis=1, ddof=1) / np.sqrt(rows.shape[1])
    return bool((np.abs(differences.mean(axis=1)) > 1.96 * np.maximum(errors, 1e-12)).any())


def flat(curves: int) -> None:
    """False alarms over 50 evals at curves that are truly flat: 3 sizes x 3 rates of each kind."""
    for kind in ("steady", "fresh", "drifting"):
        say(f"monitor, flat, {kind}")
        false, peeked = [], []
        for n in (20, 100, 400):
            for p in (0.05, 0.5, 0.9):
                rng = np.random.default_rng([n, round(100 * p)])
                table = [curve(kind, [p] * 51, n, rng) for _ in range(curves)]
                said = [
                    {verdict.kind for verdict in monitor(rows, effect=0.05, bounds=(0, 1))}
                    for rows in table
                ]
                false.append(np.mean([bool(k & {"improving", "regressing"}) for k in said]))
                peeked.append(np.mean([peeking(rows) for rows in table]))
        what = f"flat {kind} curves, 50 evals"
        emit(f"{what}: false alarms, worst of 9 cases", 100 * float(max(false)), "%", target=5.0)
        emit("the same by an uncorrected test at every eval", 100 * float(max(peeked)), "%")


def trends(curves: int) -> None:
    for gain in (0.05, 0.10, -0.10):
        for kind in ("steady", "less steady", "fresh", "drifting"):
            say(f"monitor, {gain:+.2f}, {kind}")
            rng = np.random.default_rng(7)
            wanted, other = ("improving", "regressing")[:: 1 if gain > 0 else -1]
            table = [curve(kind, 0.5 + np.linspace(0, gain, 21), 200, rng) for _ in range(curves)]
            said = [[v.kind for v in monitor(rows, effect=0.05, bounds=(0, 1))] for rows in table]
            what = f"{100 * gain:+.0f} points over 20 evals, 200 samples, {kind}"
            emit(f"{what}: seen", 100 * float(np.mean([wanted in k for k in said])), "%")
            if any(other in kinds for kinds in said):
                wrong = float(np.mean([other in kinds for kinds in said]))
                emit("the same: called the other way", 100 * wrong, "%", target=5.0)


def plateaus(curves: int) -> None:
    """Plateau said of a flat curve (right), and of one that climbs by the effect (wrong)."""
    for n in (200, 1000):
        say(f"monitor, plateau, {n}")
        for name, slope, target in (("a flat curve", 0.0, None), ("a climb by 0.05", 0.05, 5.0)):
            rng = np.random.default_rng(11)
            levels = 0.3 + slope / (WINDOW // 2) * np.arange(31)
            table = [curve("steady", levels, n, rng) for _ in range(curves)]
            said = [
                any(v.kind == "plateau" for v in monitor(t, effect=0.05, bounds=(0, 1)))
                for t in table
            ]
            what = f"plateau (effect 0.05) said of {name}, 30 evals, {n} samples"
            emit(what, 100 * float(np.mean(said)), "%", target=target)


TURNS = {
    "then falls by 13 over 6 evals": (6, -0.13),
    "then falls by 13 at once": (1, -0.13),
    "then stays": (1, 0.0),
}
"""What follows a rise: over how many evals, and by how much."""
RISE = 12
AFTER = 8
"""Evals at the last level, once it is reached."""


def turns(curves: int) -> None:
    """The verdict on a curve that has turned: at its peak, at its last level, and afterwards."""
    for name, (evals, change) in TURNS.items():
        for n in (100, 200, 500):
            say(f"monitor, {name}, {n}")
            rng = np.random.default_rng(17)
            turn = 0.6 + change * np.arange(1, evals + 1) / evals
            levels = [*np.linspace(0.4, 0.6, RISE + 1), *turn, *[turn[-1]] * AFTER]
            words = [
                [verdict.kind for verdict in monitor(rows, effect=0.05, bounds=(0, 1))]
                for rows in (curve("steady", levels, n, rng) for _ in range(curves))
            ]
            what = f"+20 points over {RISE} evals, {name}, {n} samples"
            at_peak = float(np.mean([row[RISE] == "improving" for row in words]))
            emit(f"{what}: improving at the peak", 100 * at_peak, "%")
            for later in (0, 2, AFTER):
                for kind in ("improving", "plateau", "regressing"):
                    share = float(np.mean([row[RISE + evals + later] == kind for row in words]))
                    emit(f"the same: {kind} {later} evals after the turn", 100 * share, "%")
            after = [row[RISE + 1 :] for row in words]
            delays = [row.index("regressing") + 1 for row in after if "regressing" in row]
            emit("the same: ever regressing", 100 * len(delays) / curves, "%")
            if delays:
                emit("the same: evals from the peak until then", float(np.median(delays)), "evals")


def winners(curves: int) -> None:
    cases = {
        "all equal": [0.5] * 20,
        "one 10 points better": [0.5] * 19 + [0.6],
        "a climb from 40% to 60%": list(np.linspace(0.4, 0.6, 20)),
    }
    for name, levels in cases.items():
        for kind in ("fresh", "steady"):
            say(f"monitor, best of 20, {name}, {kind}")
            rng = np.random.default_rng(13)
            missed, raw, corrected = 0, 0.0, 0.0
            for seed in range(curves):
                found = best_of(curve(kind, levels, 200, rng), seed=seed, draws=2000)
                truth = levels[found.index]
                missed += not found.interval.low <= truth <= found.interval.high
                raw += found.raw - truth
                corrected += found.estimate - truth
            what = f"best of 20, 200 samples, {name}, {kind}"
            emit(f"{what}: raw mean overstates by", 100 * raw / curves, "points")
            emit("the same, corrected", 100 * corrected / curves, "points")
            emit("the same: interval misses", 100 * missed / curves, "%", target=5.0)


def cost(evals: int) -> float:
    """CPU time of the verdict at the last of so many evals of 500 samples: median of ten."""
    rows = curve("steady", [0.5] * evals, 500, np.random.default_rng(0))
    points = [
        CurvePoint(
            label="eval",
            step=step,
            session="a",
            time="",
            seconds=1.0,
            summary={"mean": float(row.mean())},
            outcomes=tuple(ItemOutcome(f"s{i}", reward) for i, reward in enumerate(row.tolist())),
            asked=500,
            of=500,
        )
        for step, row in enumerate(rows)
    ]
    watching, spent = CurveMonitor(), []
    watching(points[:-10])
    for count in range(evals - 9, evals + 1):
        start = time.process_time()
        watching(points[:count])
        spent.append(time.process_time() - start)
    return float(np.median(spent))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--cost", type=int, metavar="EVALS", help="measure one verdict")
    args = parser.parse_args()
    if args.cost:
        print(json.dumps({"cpu_s": cost(args.cost)}))
        return
    curves = CURVES // 20 if args.quick else CURVES
    flat(curves)
    trends(curves)
    plateaus(curves)
    turns(curves)
    winners(curves)
    # On one core: BLAS threads that wait for each other count as CPU time, too.
    alone = ("env", "OPENBLAS_NUM_THREADS=1", "OMP_NUM_THREADS=1", sys.executable, __file__)
    for evals in (50, 100, 1000):
        rounds = [child(*alone, "--cost", str(evals)) for _ in range(3)]
        what = f"CPU of the verdict at eval {evals:,} of 500 samples"
        emit(what, 1000 * middle(rounds, "cpu_s"), "ms", target=50.0)


if __name__ == "__main__":
    main()
