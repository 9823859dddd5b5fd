"""Ready-made graders, and one way to compose them. Names are loaded when they are first used.

rubrics       Rubric, part: named functions with weights, as one score function
answers       what a model answered: the last statement in its last words
choices, numbers, texts, lists, mathematics, patterns, schemas, formats, calls    graders
judges        a model as grader
workers       processes for work that must be killable
"""

from __future__ import annotations

from heldout.lazy import lazy

_HOME = {
    "heldout.scoring.rubrics": ("Part", "Rubric", "part"),
    "heldout.scoring.grades": ("Grade", "grader"),
    "heldout.scoring.answers": ("final_answer", "stated_answer"),
    "heldout.scoring.codeblocks": ("code_blocks", "last_code_block"),
    "heldout.scoring.choices": ("grade_choice", "shuffled"),
    "heldout.scoring.numbers": ("grade_number",),
    "heldout.scoring.texts": (
        "grade_exact", "grade_f1", "grade_includes", "grade_match", "grade_rouge_l",
    ),
    "heldout.scoring.lists": ("grade_list", "grade_set", "grade_spans"),
    "heldout.scoring.mathematics": ("grade_math", "grade_math_sync"),
    "heldout.scoring.patterns": ("grade_captured", "grade_pattern"),
    "heldout.scoring.schemas": ("grade_json",),
    "heldout.scoring.formats": (
        "has_boxed", "has_code_block", "has_length", "has_tags", "is_json", "is_one_line",
    ),
    "heldout.scoring.calls": ("compare_calls", "grade_calls", "read_calls", "same_calls"),
    "heldout.scoring.judges": ("Criterion", "Judge"),
}  # fmt: skip

__getattr__, __dir__ = lazy(__name__, _HOME)
