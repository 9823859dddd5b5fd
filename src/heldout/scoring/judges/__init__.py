"""A model as grader, through any endpoint: its reply is a verdict, read strictly, or an error.

    judge = Judge("openai:gpt-5-mini", cache="verdicts.db")
    score_fn = Rubric(judge.equality(), part(is_one_line, weight=0))

prompts    the words, versioned
texts      what a judge is shown: of samples and trajectories, delimited
questions  what is asked and how the reply is read: pure
replies    one JSON object, or `Malformed`
cache      verdicts in memory or in an SQLite file
judge      `Judge`: asks, asks again, caches
graders    the four kinds, as parts of a rubric
"""

from __future__ import annotations

from heldout.scoring.judges.graders import (
    CriteriaJudge,
    EqualityJudge,
    PairwiseJudge,
    ThreeWayJudge,
)
from heldout.scoring.judges.judge import Judge, Verdict
from heldout.scoring.judges.questions import (
    Attempted,
    Criterion,
    Preferred,
    Question,
    check_criteria,
    criteria_question,
    equality_question,
    pairwise_question,
    three_way_question,
)
from heldout.scoring.judges.replies import Malformed, json_object
from heldout.scoring.judges.texts import Blocks, trajectory_blocks, turn_blocks

__all__ = [
    "Attempted",
    "Blocks",
    "CriteriaJudge",
    "Criterion",
    "EqualityJudge",
    "Judge",
    "Malformed",
    "PairwiseJudge",
    "Preferred",
    "Question",
    "ThreeWayJudge",
    "Verdict",
    "check_criteria",
    "criteria_question",
    "equality_question",
    "json_object",
    "pairwise_question",
    "three_way_question",
    "trajectory_blocks",
    "turn_blocks",
]
