"""Ready-made graders, and one way to compose them. Names are loaded when they are first used.

rubric        Rubric, part: named functions with weights, as one score function
answers       the answer of a reply, and what it states
choice, number, text, lists, math, regex, json_schema, formats, tool_calls    graders
judges        a model as grader
process_pool  processes for work that must be killable
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._lazy import lazy

if TYPE_CHECKING:
    from heldout.scoring.answers import final_answer, last_code_block
    from heldout.scoring.choice import grade_choice
    from heldout.scoring.formats import (
        has_boxed,
        has_code_block,
        has_length,
        has_tags,
        is_json,
        is_one_line,
    )
    from heldout.scoring.grades import Grade, grader
    from heldout.scoring.json_schema import grade_json
    from heldout.scoring.judges import Criterion, Judge
    from heldout.scoring.lists import grade_list, grade_set, grade_spans
    from heldout.scoring.math import grade_math, grade_math_sync
    from heldout.scoring.number import grade_number
    from heldout.scoring.regex import grade_captured, grade_pattern
    from heldout.scoring.rubric import Part, Rubric, part
    from heldout.scoring.text import (
        grade_exact,
        grade_f1,
        grade_includes,
        grade_match,
        grade_rouge_l,
    )
    from heldout.scoring.tool_calls import (
        compare_calls,
        grade_calls,
        read_calls,
        same_calls,
        schema_accuracy,
    )

_HOME = {
    "heldout.scoring.rubric": ("Part", "Rubric", "part"),
    "heldout.scoring.grades": ("Grade", "grader"),
    "heldout.scoring.answers": ("final_answer", "last_code_block"),
    "heldout.scoring.choice": ("grade_choice",),
    "heldout.scoring.number": ("grade_number",),
    "heldout.scoring.text": (
        "grade_exact", "grade_f1", "grade_includes", "grade_match", "grade_rouge_l",
    ),
    "heldout.scoring.lists": ("grade_list", "grade_set", "grade_spans"),
    "heldout.scoring.math": ("grade_math", "grade_math_sync"),
    "heldout.scoring.regex": ("grade_captured", "grade_pattern"),
    "heldout.scoring.json_schema": ("grade_json",),
    "heldout.scoring.formats": (
        "has_boxed", "has_code_block", "has_length", "has_tags", "is_json", "is_one_line",
    ),
    "heldout.scoring.tool_calls": (
        "compare_calls", "grade_calls", "read_calls", "same_calls", "schema_accuracy",
    ),
    "heldout.scoring.judges": ("Criterion", "Judge"),
}  # fmt: skip

__all__ = [
    "Criterion",
    "Grade",
    "Judge",
    "Part",
    "Rubric",
    "compare_calls",
    "final_answer",
    "grade_calls",
    "grade_captured",
    "grade_choice",
    "grade_exact",
    "grade_f1",
    "grade_includes",
    "grade_json",
    "grade_list",
    "grade_match",
    "grade_math",
    "grade_math_sync",
    "grade_number",
    "grade_pattern",
    "grade_rouge_l",
    "grade_set",
    "grade_spans",
    "grader",
    "has_boxed",
    "has_code_block",
    "has_length",
    "has_tags",
    "is_json",
    "is_one_line",
    "last_code_block",
    "part",
    "read_calls",
    "same_calls",
    "schema_accuracy",
]

__getattr__, __dir__ = lazy(__name__, _HOME)
