"""A model as grader, through any endpoint: its reply is a verdict, read strictly, or an error.

    judge = Judge("openai:gpt-5-mini", cache="verdicts.db")
    score_fn = Rubric(judge.equality(), part(is_one_line, weight=0))

prompts    the words, versioned, and how judged texts are set apart from them
questions  what is asked, and how a verdict is read
replies    one JSON object, or `Malformed`
judge      `Judge`: asks, asks again, caches
graders    the four kinds as parts of a rubric, and what each shows of a sample or trajectory
"""

from __future__ import annotations

from heldout.scoring.judges.judge import Judge, Verdict
from heldout.scoring.judges.questions import (
    Criterion,
    Question,
    criteria_question,
    equality_question,
    pairwise_question,
    three_way_question,
)
from heldout.scoring.judges.replies import Malformed

__all__ = [
    "Criterion",
    "Judge",
    "Malformed",
    "Question",
    "Verdict",
    "criteria_question",
    "equality_question",
    "pairwise_question",
    "three_way_question",
]
