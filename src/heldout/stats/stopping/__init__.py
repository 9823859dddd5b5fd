"""Evals that stop when a claim is settled: looks at prefixes, and what may be said after the stop.

plans       when to look, and how much error may be spent by then
claims      what is claimed, and the values it is held against
looking     a look, and the conclusion after the stop
choosing    which test holds for which claim and values
counts      exact tests of 0/1 values and of pairs that differ
scores      Tango's test of a margin, Student's t on units
betting     tests that hold at any number of looks, and for streams
walks       boundaries of counts: every path that they can take
gaussian    the same for means that are normal
evidence    what every test is
races       several models on the same samples: the losers stop
ranks       several finished runs, with intervals of their ranks
expecting   what a plan will cost, and what a set can settle, before anything runs

(`stats/sequential.py` is about curves of evals, not about one eval.) Arrays of numbers go in, in
the order in which the run has its samples; decisions, intervals and estimates come out.
"""

from __future__ import annotations

from heldout.stats.stopping.claims import (
    Claim,
    Prefix,
    better_than_baseline,
    mean_above,
    mean_below,
    not_worse_than_baseline,
    within,
)
from heldout.stats.stopping.expecting import (
    Expectation,
    check_claim,
    expect_difference,
    expect_mean,
    expect_normal,
    units_needed,
)
from heldout.stats.stopping.looking import Conclusion, Look, conclude, look
from heldout.stats.stopping.plans import Plan, Spending
from heldout.stats.stopping.races import Dropped, Lead, Standing, stand, units_to_race
from heldout.stats.stopping.ranks import Rank, RankedPair, Ranking, rank_runs

__all__ = [
    "Claim",
    "Conclusion",
    "Dropped",
    "Expectation",
    "Lead",
    "Look",
    "Plan",
    "Prefix",
    "Rank",
    "RankedPair",
    "Ranking",
    "Spending",
    "Standing",
    "better_than_baseline",
    "check_claim",
    "conclude",
    "expect_difference",
    "expect_mean",
    "expect_normal",
    "look",
    "mean_above",
    "mean_below",
    "not_worse_than_baseline",
    "rank_runs",
    "stand",
    "units_needed",
    "units_to_race",
    "within",
]
