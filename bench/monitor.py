"""Simulate curves and count verdicts: false alarms on flat ones, power on real trends.

A greedy eval's rewards are 0 or 1. `steady` curves have samples of their own difficulty that flip
at random around it each look, as nearby checkpoints do; `fresh` ones draw every sample anew each
look; in `drifting` ones a tenth of the samples is drawn anew and stays so, which no averaging over
looks helps. Beside them, what two bare means would have said.

    python bench/monitor.py [--curves 300] [--flat 300]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from statistics import NormalDist

import numpy as np

from heldout.stats.sequential import Reference, monitor
from heldout.stats.summaries import Floats
from heldout.stats.winner import best_of

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
    """Whether any look is "better" or "worse" than the first by an uncorrected paired z test."""
    differences = rows[1:] - rows[0]
    errors = differences.std(axis=1, ddof=1) / np.sqrt(rows.shape[1])
    return bool((np.abs(differences.mean(axis=1)) > 1.96 * np.maximum(errors, 1e-12)).any())


def emit(**row: object) -> None:
    print(json.dumps(row), flush=True)


def flat(curves: int) -> None:
    for kind in ("steady", "fresh", "drifting"):
        for n in (20, 100, 400):
            for p in (0.05, 0.5, 0.9):
                rng = np.random.default_rng([n, round(100 * p)])
                false = peeked = 0
                for _ in range(curves):
                    rows = curve(kind, [p] * 51, n, rng)
                    kinds = {verdict.kind for verdict in monitor(rows, effect=0.05)}
                    false += bool(kinds & {"improving", "regressing"})
                    peeked += peeking(rows)
                emit(
                    what="flat, 50 looks",
                    curve=kind,
                    n=n,
                    p=p,
                    false_alarms=round(false / curves, 4),
                    uncorrected=round(peeked / curves, 4),
                )


def trends(curves: int) -> None:
    both: tuple[Reference, ...] = ("first", "window")
    for references in (both, ("first",)):
        for gain in (0.05, 0.10, -0.10):
            for kind in ("steady", "less steady", "fresh", "drifting"):
                rng = np.random.default_rng(7)
                wanted, other = ("improving", "regressing")[:: 1 if gain > 0 else -1]
                said = wrong = 0
                looks = []
                for _ in range(curves):
                    rows = curve(kind, 0.5 + np.linspace(0, gain, 21), 200, rng)
                    kinds = [v.kind for v in monitor(rows, effect=0.05, references=references)]
                    said += wanted in kinds
                    wrong += other in kinds
                    looks += [kinds.index(wanted)] if wanted in kinds else []
                emit(
                    what=f"{100 * gain:+.0f} points over 20 looks, n = 200",
                    references=references,
                    curve=kind,
                    power=round(said / curves, 3),
                    wrong_way=round(wrong / curves, 4),
                    median_look=float(np.median(looks)) if looks else None,
                )


def plateaus(curves: int) -> None:
    """Plateau said of a flat curve (right), and of one that climbs by the effect (wrong)."""
    for n in (200, 1000):
        for effect in (0.05, 0.10):
            for name, slope in (("flat", 0.0), ("climbing by the effect", effect / 8)):
                rng = np.random.default_rng(11)
                levels = np.minimum(0.3 + slope * np.arange(31), 0.95)[: 31 if not slope else 25]
                said = sum(
                    any(
                        v.kind == "plateau"
                        for v in monitor(curve("steady", levels, n, rng), effect=effect)
                    )
                    for _ in range(curves)
                )
                emit(
                    what="plateau ever said",
                    curve=name,
                    n=n,
                    effect=effect,
                    looks=len(levels) - 1,
                    share=round(said / curves, 3),
                )


def winners(curves: int) -> None:
    cases = {
        "all equal": [0.5] * 20,
        "one 5 points better": [0.5] * 19 + [0.55],
        "one 10 points better": [0.5] * 19 + [0.6],
        "one 30 points better": [0.5] * 19 + [0.8],
        "a climb from 40% to 60%": list(np.linspace(0.4, 0.6, 20)),
    }
    for name, levels in cases.items():
        for kind in ("fresh", "steady"):
            rng = np.random.default_rng(13)
            covered, raw, corrected, width = 0, 0.0, 0.0, 0.0
            for seed in range(curves):
                found = best_of(curve(kind, levels, 200, rng), seed=seed, draws=2000)
                truth = levels[found.index]
                covered += found.interval.low <= truth <= found.interval.high
                raw += found.raw - truth
                corrected += found.estimate - truth
                width += found.interval.high - found.interval.low
            emit(
                what="best of 20, n = 200",
                truth=name,
                curve=kind,
                coverage=round(covered / curves, 3),
                raw_overstates=round(raw / curves, 4),
                corrected_overstates=round(corrected / curves, 4),
                width=round(width / curves, 3),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curves", type=int, default=300, help="simulated curves a figure")
    parser.add_argument("--flat", type=int, default=300, help="the same, of flat curves")
    chosen = parser.parse_args()
    trends(chosen.curves)
    plateaus(chosen.curves)
    winners(chosen.curves)
    flat(chosen.flat)


if __name__ == "__main__":
    main()
