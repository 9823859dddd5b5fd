"""Ready-made graders, and one way to compose them. Names are loaded when they are first used.

rubric        Rubric, part: named functions with weights, as one score function
answers       the answer of a reply, and what it states
choice, number, text, lists, math, regex, json_schema, formats, tool_calls    graders
code          programs, run against tests in sandboxes
judges        a model as grader
process_pool  processes for work that must be killable

A trajectory and its sample go in; a Score comes out, or an error, which is never a 0. Graders see
nothing else, so saved trajectories can be scored again. Means over samples belong to `stats/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core.lazy import lazy

if TYPE_CHECKING:
    from heldout.scoring.answers import final_answer as final_answer
    from heldout.scoring.answers import last_code_block as last_code_block
    from heldout.scoring.choice import grade_choice as grade_choice
    from heldout.scoring.code.grader import grade_python as grade_python
    from heldout.scoring.code.tests import CallTest as CallTest
    from heldout.scoring.code.tests import PythonTests as PythonTests
    from heldout.scoring.code.tests import RunTest as RunTest
    from heldout.scoring.code.tests import apps_tests as apps_tests
    from heldout.scoring.code.tests import human_eval_tests as human_eval_tests
    from heldout.scoring.code.tests import live_code_bench_tests as live_code_bench_tests
    from heldout.scoring.code.tests import mbpp_tests as mbpp_tests
    from heldout.scoring.formats import has_boxed as has_boxed
    from heldout.scoring.formats import has_code_block as has_code_block
    from heldout.scoring.formats import has_length as has_length
    from heldout.scoring.formats import has_tags as has_tags
    from heldout.scoring.formats import is_json as is_json
    from heldout.scoring.formats import is_one_line as is_one_line
    from heldout.scoring.grades import Grade as Grade
    from heldout.scoring.grades import grader as grader
    from heldout.scoring.json_schema import grade_json as grade_json
    from heldout.scoring.judges import Criterion as Criterion
    from heldout.scoring.judges import Judge as Judge
    from heldout.scoring.judges import Malformed as Malformed
    from heldout.scoring.judges import Question as Question
    from heldout.scoring.lists import grade_list as grade_list
    from heldout.scoring.lists import grade_set as grade_set
    from heldout.scoring.lists import grade_spans as grade_spans
    from heldout.scoring.math import grade_math as grade_math
    from heldout.scoring.math import grade_math_sync as grade_math_sync
    from heldout.scoring.number import grade_number as grade_number
    from heldout.scoring.regex import grade_captured as grade_captured
    from heldout.scoring.regex import grade_pattern as grade_pattern
    from heldout.scoring.rubric import Part as Part
    from heldout.scoring.rubric import Rubric as Rubric
    from heldout.scoring.rubric import part as part
    from heldout.scoring.text import grade_exact as grade_exact
    from heldout.scoring.text import grade_f1 as grade_f1
    from heldout.scoring.text import grade_includes as grade_includes
    from heldout.scoring.text import grade_match as grade_match
    from heldout.scoring.text import grade_rouge_l as grade_rouge_l
    from heldout.scoring.tool_calls import compare_calls as compare_calls
    from heldout.scoring.tool_calls import grade_calls as grade_calls
    from heldout.scoring.tool_calls import read_calls as read_calls
    from heldout.scoring.tool_calls import same_calls as same_calls
    from heldout.scoring.tool_calls import schema_accuracy as schema_accuracy

__all__, __getattr__, __dir__ = lazy(__name__)
