"""A model as grader, through any endpoint: its reply is a verdict, read strictly, or an error.

    judge = Judge("openai:gpt-5-mini", cache="verdicts.db")
    score_fn = Rubric(judge.equality(), part(is_one_line, weight=0))

prompts    what is asked: the words, versioned, and how judged texts are set apart from them
judge      `Judge`: asks, reads the reply, asks again, caches
graders    the four kinds as parts of a rubric, and what each shows of a sample or trajectory
"""

from __future__ import annotations

from heldout.scoring.judges.judge import Judge, JudgeVerdict
from heldout.scoring.judges.prompts import (
    CRITERIA,
    EQUALITY,
    PAIRWISE,
    THREE_WAY,
    Criterion,
    Malformed,
    Question,
    make_question,
)

__all__ = [
    "CRITERIA",
    "EQUALITY",
    "PAIRWISE",
    "THREE_WAY",
    "Criterion",
    "Judge",
    "JudgeVerdict",
    "Malformed",
    "Question",
    "make_question",
]
