"""A model as grader, through any endpoint: its reply is a verdict by the letter, or an error.

    judge = Judge("openai:gpt-5-mini", cache="verdicts.jsonl")
    score_fn = Rubric(judge.equality(), part(is_one_line, weight=0))

prompts    the words, versioned
delimited  judged texts between marks that they cannot contain
replies    one JSON object, or `Malformed`
questions  what is asked and how the reply is read: pure
cache      verdicts in a file
loops      one endpoint for each event loop
standing   whether it is worth asking on
judge      `Judge`: asks, asks again, remembers
samples    what a judge is told of a sample
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
    Malformed,
    Preferred,
    Question,
    criteria_question,
    equality_question,
    pairwise_question,
    three_way_question,
)

__all__ = [
    "Attempted",
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
    "criteria_question",
    "equality_question",
    "pairwise_question",
    "three_way_question",
]
