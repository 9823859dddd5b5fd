"""What reports say: slices, comparisons, gates and plans.

summarize, group_by    over any results
pass_at_k, pass_hat_k  one of k attempts, all of k attempts
count_three_way        correct, incorrect and not attempted, with F1 (three-way judges)
check_eval             do an eval's own answers pass, and no others?
check_judge            a judge against human labels, and against itself
aggregate              several training runs over several tasks (score_matrix)
compare                is B better than A?
gate                   may B replace A?
rank                   which of several runs is best?
time_use               where time, tokens and money went
plan                   how many samples it takes to see a difference

Loaded reports go in; values come out, with what makes them incomparable as an error. The statistics
are those of `stats/`; the words and tables for people are in `reporting/`.
"""

from __future__ import annotations

from heldout.analysis._comparability import DIFFERENCE_KINDS, Mismatch
from heldout.analysis.aggregation import Aggregates, ScoreMatrix, aggregate, score_matrix
from heldout.analysis.comparison import Change, Comparison, Side, compare
from heldout.analysis.eval_check import EvalCheck, Finding, check_eval
from heldout.analysis.gating import Check, Gate, Reading, SampleAttempts, gate
from heldout.analysis.judge_check import JudgeCheck, LabelledAnswer, check_judge, read_labels
from heldout.analysis.passes import group_by, pass_at_k, pass_hat_k, summarize
from heldout.analysis.power import SamplePlan, plan
from heldout.analysis.ranking import RankedRun, RunRanking, rank
from heldout.analysis.three_way import ThreeWayCounts, count_three_way
from heldout.analysis.time_use import SlowAttempt, StageUse, TimeUse, time_use

__all__ = [
    "DIFFERENCE_KINDS",
    "Aggregates",
    "Change",
    "Check",
    "Comparison",
    "EvalCheck",
    "Finding",
    "Gate",
    "JudgeCheck",
    "LabelledAnswer",
    "Mismatch",
    "RankedRun",
    "Reading",
    "RunRanking",
    "SampleAttempts",
    "SamplePlan",
    "ScoreMatrix",
    "Side",
    "SlowAttempt",
    "StageUse",
    "ThreeWayCounts",
    "TimeUse",
    "aggregate",
    "check_eval",
    "check_judge",
    "compare",
    "count_three_way",
    "gate",
    "group_by",
    "pass_at_k",
    "pass_hat_k",
    "plan",
    "rank",
    "read_labels",
    "score_matrix",
    "summarize",
    "time_use",
]
