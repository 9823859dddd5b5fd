# ruff: noqa: E501 - programs, one on a line
"""Programs against tests: the four styles, what cannot score, and what is an error and no 0."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

import heldout
from heldout import Message, Sample, Score, Trajectory
from heldout._core.aio import settle
from heldout.errors import InvalidInput, SandboxError, ScoringFailed
from heldout.sandbox import SandboxPool
from heldout.scoring import (
    CallTest,
    PythonTests,
    Rubric,
    RunTest,
    apps_tests,
    grade_python,
    human_eval_tests,
    live_code_bench_tests,
    mbpp_tests,
    part,
)
from heldout.scoring.grades import Grade
from tests.scoring.code.hacks import HACKS, OTHERS, RIGHT, ROW, TESTS
from tests.scoring.examples import wrong_rows
from tests.scoring.examples.code import EXAMPLES

pytestmark = pytest.mark.integration

Given = Mapping[str, tuple[str, PythonTests]]


def sample_of(tests: Any = None) -> Sample:
    return Sample("1", {"question": "Write it."}, tests)


def grade(reply: str, tests: PythonTests, **options: Any) -> Grade:
    [found] = grade_all({"": (reply, tests)}, **options).values()
    if isinstance(found, Exception):
        raise found
    return found


def grade_all(given: Given, **options: Any) -> dict[str, Grade | Exception]:
    """Grade all at the same time, as an eval does."""
    found: dict[str, Grade | Exception] = {}

    async def grade_one(name: str, reply: str, tests: PythonTests) -> None:
        try:
            found[name] = await grade_python(reply, sample_of(), reply, tests=tests, **options)
        except Exception as problem:
            found[name] = problem

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for name, (reply, tests) in given.items():
                group.start_soon(grade_one, name, reply, tests)

    anyio.run(main)
    return found


# --- What passes --------------------------------------------------------------------------------

MBPP = {
    "test_list": ["assert area(2, 3) == 6", "assert math.isclose(area(0.5, 3), 1.5)"],
    "test_imports": ["import math"],
    "challenge_test_list": ["assert area(0, 3) == 0"],
}
PAIR = {"input": "[3, 1, 2]\n2", "output": "[[1, 2], [3]]", "testtype": "functional"}
CUT = (
    "class Solution:\n    def cut(self, values, size):\n        values = sorted(values)\n"
    "        return tuple(values[i:i + size] for i in range(0, len(values), size))"
)
NODE = (
    "class Node:\n    def __init__(self, value, rest=None):\n        self.value, self.rest = value, rest\n"
    "    def __iter__(self):\n        node = self\n        while node:\n            yield node.value\n"
    "            node = node.rest\n"
    "def link(values):\n    node = None\n    for value in reversed(values):\n"
    "        node = Node(value, node)\n    return node"
)
ERRORS = (
    "class Empty(ValueError):\n    def __init__(self, text, size):\n        super().__init__(text, size)\n"
    "def first(values):\n    if not values:\n        raise Empty('no values', 0)\n    return values[0]"
)
RIGHT_ONES: dict[str, tuple[str, PythonTests]] = {
    "HumanEval, whole function": (f"Sure:\n```python\n{RIGHT}```\nDone.", TESTS),
    "HumanEval, the body alone": (
        "    return sorted(v for v in values if not v % 2)\n\n\nprint('an example')",
        TESTS,
    ),
    "HumanEval, an example behind it": (
        f"```python\n{RIGHT}```\nUse it so:\n```python\nprint(sorted_evens([2]))\n```",
        TESTS,
    ),
    "MBPP": ("```\ndef area(a, b):\n    return a * b\n```", mbpp_tests(MBPP, challenge=True)),
    "APPS, stdin": (
        "n = int(input())\nfor _ in range(n):\n    a, b = map(float, input().split())\n    print(a / b)",
        apps_tests(
            {
                "input_output": json.dumps(
                    {
                        "inputs": ["2\n1 3\n6 2\n", ["1", "1 4"]],
                        "outputs": ["0.333333\n3", ["0.25"]],
                    }
                )
            }
        ),
    ),
    "APPS, function": (
        "def twice(text):\n    return [text * 2]",
        apps_tests(
            {
                "input_output": {
                    "fn_name": "twice",
                    "inputs": [["ab"], [""]],
                    "outputs": [["abab"], [[""]]],
                }
            }
        ),
    ),
    "LiveCodeBench, function": (
        CUT,
        live_code_bench_tests(
            {"public_test_cases": [PAIR], "metadata": json.dumps({"func_name": "cut"})}
        ),
    ),
    "LiveCodeBench, stdin and packed tests": (
        "print(sum(map(int, open(0).read().split())))",
        live_code_bench_tests(
            {
                "public_test_cases": json.dumps(
                    [{"input": "1 2", "output": "3", "testtype": "stdin"}]
                ),
                "private_test_cases": base64.b64encode(
                    zlib.compress(
                        pickle.dumps(
                            json.dumps([{"input": "4\n5\n", "output": "9 ", "testtype": "stdin"}])
                        )
                    )
                ).decode(),
            }
        ),
    ),
    "in place": (
        "def order(values):\n    values.sort()",
        PythonTests(
            code=(
                "values = [[3], [1]]\nassert order(values) is None\nassert values == [[1], [3]]",
            ),
            calls=(CallTest([[2, 1]], [1, 2], in_place=True),),
            entry_point="order",
        ),
    ),
    "several files": (
        "```python shapes.py\nimport sides\ndef area():\n    return sides.A * sides.B\n```\n"
        "```python\nfrom shapes import area\nprint(open('title.txt').read(), area())\n```",
        PythonTests(
            runs=(RunTest("", "Area 12"),),
            code=("from sides import A, B\nassert area() == A * B",),
            files={"sides.py": "A = 3\nB = 4\n", "title.txt": "Area"},
        ),
    ),
    "objects": (
        NODE,
        PythonTests(
            code=(
                "node = link([1, 2, 3])\nassert list(node) == [1, 2, 3]\nnode.rest.value = 5\n"
                "assert [value for value in Node(0, node)] == [0, 1, 5, 3]\nassert node.rest.rest.rest is None",
            )
        ),
    ),
    "exceptions": (
        ERRORS,
        PythonTests(
            code=(
                "import unittest\nclass Firsts(unittest.TestCase):\n    def test_empty(self):\n"
                "        with self.assertRaisesRegex(ValueError, 'no values') as caught:\n"
                "            first([])\n        self.assertEqual(caught.exception.args[1], 0)\n"
                "    def test_one(self):\n        self.assertEqual(first((4,)), 4)",
                "try:\n    first('')\n    assert False\nexcept Empty:\n    pass",
                "def test_missing():\n    try:\n        first()\n    except TypeError:\n        return\n"
                "    assert False",
            )
        ),
    ),
    "functions of the tests": (
        "def compose(*functions):\n    def composed(x):\n        for f in functions:\n            x = f(x)\n"
        "        return x\n    return composed",
        PythonTests(code=("assert compose(lambda x: x + 1, str)(2) == '3'",)),
    ),
    "names that modules have, too": (
        "def copy(x): return x\nclass calendar:\n    days = 7\nimport math",
        PythonTests(
            code=("assert copy(1) == 1", "assert calendar.days == 7", "assert math.pi > copy(3)")
        ),
    ),
    "exceptions of functions of the tests": (
        "def retry(function):\n    for _ in range(2):\n        try:\n            return function()\n"
        "        except KeyError:\n            pass",
        PythonTests(
            code=(
                "calls = []\ndef flaky():\n    calls.append(1)\n"
                "    return {2: 'done'}[len(calls)]\nassert retry(flaky) == 'done'",
            )
        ),
    ),
    "a container with methods": (
        "from collections import OrderedDict\nclass Cache(OrderedDict):\n"
        "    def __init__(self, size):\n        super().__init__()\n        self.size = size\n"
        "    def put(self, key, value):\n        self[key] = value\n"
        "        if len(self) > self.size: self.popitem(last=False)",
        PythonTests(
            code=(
                "cache = Cache(1)\ncache.put(1, 2)\ncache.put(3, 4)\n"
                "assert cache == {3: 4} and cache != {} and len(cache) == 1 and 3 in cache",
            )
        ),
    ),
    "classes": (
        "from enum import Enum\nclass Shape: pass\nclass Square(Shape):\n"
        "    def __repr__(self): return 'Square()'\nclass Color(Enum):\n    RED = 1\n"
        "def paint(shape): return Color.RED\nclass Odd(ValueError): pass\n"
        "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\ndef at(p): return Point(*p)",
        PythonTests(
            code=(
                "square = Square()\nassert isinstance(square, Shape) and issubclass(Square, Shape)\n"
                "assert not isinstance(3, Shape) and repr(square) == 'Square()'\n"
                "assert paint(square) is Color.RED",
                "assert at(at(Point(1, 2))).x == 1 and at(Point(1, 2)) == (1, 2)",
                "assert issubclass(Odd, ValueError)",
            )
        ),
    ),
    "data of every type": (
        "def same(x):\n    return x",
        PythonTests(
            code=(
                "from collections import Counter, OrderedDict, defaultdict, deque\n"
                "from datetime import date, timedelta\nfrom decimal import Decimal\n"
                "from fractions import Fraction\nfrom math import inf\n"
                "for x in (None, True, -0.0, 2**80, inf, 1j, 'é\\ud800', b'a', bytearray(b'b'), (1, [2]),\n"
                "          {1: 'a', (2,): {3}, None: frozenset('x')}, deque([1]), Counter('aab'), range(3),\n"
                "          OrderedDict(b=1, a=2), defaultdict(list, a=[1]), Decimal('1.10'), Fraction(1, 3),\n"
                "          date(2026, 1, 2), timedelta(1, 2)):\n"
                "    assert same(x) == x and type(same(x)) is type(x), x\nassert same(nan := inf - inf) != nan",
            )
        ),
    ),
    "annotations are values": (
        "import dataclasses\n@dataclasses.dataclass\nclass Point:\n    x: int = 0\n"
        "def kind(): return [field.type is int for field in dataclasses.fields(Point)]",
        PythonTests(
            code=(
                "def own(x: int): pass\nassert own.__annotations__['x'] is LIMIT.__annotations__['x']\n"
                "assert kind() == [True]",
            ),
            setup="def LIMIT(x: int): pass",
        ),
    ),
    "its own __future__": (
        "from __future__ import annotations\ndef f(x: Nowhere): return x",
        PythonTests(code=("from __future__ import annotations\nassert f(1) == 1",)),
    ),
    "printed output": (
        "def greet(name):\n    print('Hello', name)",
        PythonTests(
            code=(
                "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as out:\n"
                "    greet('you')\nassert out.getvalue() == 'Hello you\\n'",
            )
        ),
    ),
}


@pytest.mark.needs("bubblewrap")
def test_right_programs_pass_tests_of_every_style() -> None:
    found = grade_all(RIGHT_ONES)
    wrong = {
        name: grade
        for name, grade in found.items()
        if isinstance(grade, Exception) or grade.value != 1.0 or grade.tracked[0].value != 1.0
    }
    assert wrong == {}


@pytest.mark.needs("bubblewrap")
def test_examples_come_out_as_the_docs_say() -> None:
    def grade_example(answer: str, target: Any) -> Grade:
        return anyio.run(lambda: grade_python(answer, sample_of(target)))

    assert wrong_rows(EXAMPLES, grade_example, noted=True) == []


# --- What does not ------------------------------------------------------------------------------


@pytest.mark.needs("bubblewrap")
def test_no_trick_passes_a_test() -> None:
    given = {name: (program, TESTS) for name, program in HACKS.items()}
    found = grade_all({**given, **OTHERS, "right": (RIGHT, TESTS)}, timeout=2.0)
    right = found.pop("right")
    assert isinstance(right, Grade)
    assert right.value == 1.0  # after, and beside, all of these
    scored = {
        name: grade
        for name, grade in found.items()
        if isinstance(grade, Exception) or grade.value != 0.0 or grade.tracked[0].value != 0.0
    }
    assert scored == {}
    assert len(found) >= 60


@pytest.mark.needs("bubblewrap")
def test_the_share_that_passed_is_tracked_and_every_test_has_its_outcome() -> None:
    tests = PythonTests(code=("assert f(1) == 1", "assert f(2) == 4", "assert f(3) == 10"))
    rubric = Rubric(part(grade_python, name="correct", tests=lambda sample: tests))
    trajectory = Trajectory((Message("assistant", "```py\ndef f(x):\n    return x * x\n```"),))

    async def score() -> Score:
        return await settle(rubric(trajectory, sample_of()))

    correct, share = anyio.run(score).metrics
    assert (correct.name, correct.value, correct.weight, correct.rate) == (
        "correct",
        0.0,
        1.0,
        True,
    )
    assert (share.name, share.value, share.weight) == (
        "correct_tests_passed",
        pytest.approx(2 / 3),
        0,
    )
    assert correct.metadata["extracted"] == "def f(x):\n    return x * x"
    assert correct.metadata["note"] == ("2 of 3 tests passed; test 2: AssertionError (test line 1)")
    outcomes = [(t["passed"], t.get("reason")) for t in correct.metadata["tests"]]
    assert outcomes == [(True, None), (True, None), (False, "AssertionError (test line 1)")]
    assert all(0 < t["seconds"] < 60 for t in correct.metadata["tests"])


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    ("program", "tests", "reason"),
    [
        ("x = 1", PythonTests(code=("assert f(1)",)), "the program does not define f"),
        (
            "x = 1",
            PythonTests(calls=(CallTest([], 1),), entry_point="f"),
            "the program does not define f",
        ),
        (
            "f = 1",
            PythonTests(code=("assert f(1)",)),
            "TypeError: 'int' object is not callable (test line 1)",
        ),
        (
            "f = 1",
            PythonTests(calls=(CallTest([], 1),), entry_point="f"),
            "f of the program is neither a function nor a class",
        ),
        (
            "def f(",
            PythonTests(runs=(RunTest("", ""),)),
            "exit code 1: SyntaxError: '(' was never closed",
        ),
        (
            "def f(): return [1, 2.5]",
            PythonTests(calls=(CallTest([], [1, 2]),), entry_point="f"),
            "it returned [1, 2.5], not [1, 2]",
        ),
        (
            "def f(): yield 1",
            PythonTests(calls=(CallTest([], [1]),), entry_point="f"),
            "it returned a generator, which is not data",
        ),
        ("print(1, 2)", PythonTests(runs=(RunTest("", "1\n2"),)), "line 1 is '1 2', not '1'"),
        ("print(1)", PythonTests(runs=(RunTest("", "1\n2"),)), "it printed 1 lines, not 2"),
        (
            "def f(x: Nowhere): return x",
            PythonTests(code=("assert f(1) == 1",)),
            "when it is loaded: NameError: name 'Nowhere' is not defined",
        ),
        (
            "def f(): return f()",
            PythonTests(calls=(CallTest([], 1),), entry_point="f"),
            "RecursionError: maximum recursion depth exceeded",
        ),
    ],
)
def test_a_failed_test_says_why(program: str, tests: PythonTests, reason: str) -> None:
    found = grade(program, tests)
    assert (found.value, found.details["tests"][0]["reason"]) == (0.0, reason)


@pytest.mark.needs("bubblewrap")
def test_what_counts_only_as_both_are_near_0_is_named() -> None:
    doubt = "0 counts for 1e-09, as both are within 1e-06 of 0"
    call = PythonTests(calls=(CallTest([], [0.5, 1e-9]),), entry_point="f")
    found = grade("def f(): return 0.5, 0", call)
    assert (found.value, found.note) == (1.0, f"1 of 1 tests passed; in test 0, {doubt}")
    assert found.details["tests"][0]["doubt"] == doubt
    run = PythonTests(runs=(RunTest("", "0.5 0.000000001"),))
    assert grade("print(0.5, 0)", run).note.endswith(
        "0.0 counts for 1e-09, as both are within 1e-06 of 0"
    )
    assert "counts" not in grade("print(0.5, 1e-9)", run).note
    exact = PythonTests(runs=run.runs, tolerance=0)
    assert grade("print(0.5, 0)", exact).value == 0.0


def test_a_reply_without_a_program_is_a_0() -> None:
    for reply in ("", "  ", "```json\n{}\n```"):
        found = grade(reply, TESTS)
        assert (found.value, found.extracted, found.note) == (0.0, None, "no answer")
        assert found.tracked[0].value == 0.0


@pytest.mark.needs("bubblewrap")
def test_rescoring_runs_only_what_has_not_been_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [
        Sample("double", {"question": "Double it."}, ["assert f(2) == 4"]),
        Sample("square", {"question": "Square it."}, ["assert f(2) == 4", "assert f(3) == 9"]),
    ]
    report = heldout.run(
        samples,
        Rubric(part(grade_python, name="correct")),
        endpoint=lambda messages: "def f(x): return 2 * x",
        experiment_name="programs",
        output_dir=str(tmp_path),
    )
    taken = []
    take = SandboxPool.sandbox

    def count(pool: SandboxPool) -> Any:
        taken.append(pool)
        return take(pool)

    monkeypatch.setattr(SandboxPool, "sandbox", count)

    def only_share(answer: str, sample: Sample) -> Any:
        return grade_python(answer, sample)

    def rescore(name: str, *parts: Any) -> Any:
        config = heldout.EvalConfig(experiment_name=name, output_dir=str(tmp_path))
        return anyio.run(lambda: heldout.rescore(report, Rubric(*parts), config))

    again = rescore("again", part(only_share, name="share", weight=0.5), always)
    assert taken == []
    assert [r.score["share"] for r in again.results] == [1.0, 0.0]
    assert [r.score["share_tests_passed"] for r in again.results] == [1.0, 0.5]
    assert again.results[1].score.metrics[0].metadata == report.results[1].score.metrics[0].metadata
    rescore("other", part(grade_python, name="correct", timeout=9.0))
    assert taken != []  # another time limit may have another outcome


def always(answer: str) -> float:
    return 1.0


# --- What is an error, and no 0 -----------------------------------------------------------------

WRONG_TESTS = {
    "assert f(1) ==": "the tests cannot be compiled: SyntaxError: invalid syntax (test, line 1)",
    "assert f(1) == g(1)": "the test uses g, which neither it nor its setup defines; of the program it "
    "has f alone",
    "import nonesuch\nassert f(1) == 1": "the test is wrong: ModuleNotFoundError: No module named "
    "'nonesuch' (test line 1)",
    "{}['a']\nassert f(1) == 1": "the test is wrong: KeyError: 'a' (test line 1)",
    "assert 1 == 1": "the test does not use the program: any program would pass it",
    "class Own: pass\nf(Own())": "the test passes the program a Own, which is neither data nor a function",
    "while True: pass": "the test did not use the program in 1 s",
    "import os\nos._exit(0)": "the test did not end: its process ended: exit code 0",
}


@pytest.mark.needs("bubblewrap")
def test_a_test_that_no_program_can_pass_is_an_error() -> None:
    given = {
        code: ("def f(x): return 1", PythonTests(code=(code,), entry_point="f"))
        for code in WRONG_TESTS
    }
    found = grade_all(given, timeout=1.0)
    assert {code: (type(e), str(e)) for code, e in found.items()} == {
        code: (ScoringFailed, message) for code, message in WRONG_TESTS.items()
    }


CASE = "import unittest\nassert add(0, 0) == 0\nclass Adding(unittest.TestCase):\n"
DEF = "def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n"
COLLECTED = {
    "a class of pytest": "class TestAdd:\n    def setup_method(self):\n        self.two = 2\n"
    "    def test_add(self):\n        assert add(self.two, 3) == 5\n",
    "what is set up": "import unittest\ndef setup_module(module):\n    global two\n    two = 2\n"
    "class TestAdd:\n    @classmethod\n    def setup_class(cls):\n        cls.three = 3\n"
    "    class TestInner:\n        def test_inner(self):\n            assert add(two, two) == 4\n"
    "    def test_add(self):\n        assert add(two, self.three) == 5\n",
    "a coroutine": "async def test_add():\n    assert add(2, 3) == 5\n",
    "a partial": "import functools\ndef check(a, b, c):\n    assert add(a, b) == c\n"
    "test_add = functools.partial(check, 2, 3, c=5)\n",
    "a lambda": "test_add = lambda: add(2, 3) == 5\n",
    "an answer": "def test_add():\n    return add(2, 3) == 5\n",
    "a name without an underscore": "def testAdd():\n    assert add(2, 3) == 5\n",
    "a TestCase in a class": "import unittest\nclass Outer:\n    class Inner(unittest.TestCase):\n"
    "        def test_add(self):\n            self.assertEqual(add(2, 3), 5)\n",
    "setUpClass": f"{CASE}    @classmethod\n    def setUpClass(cls):\n        cls.five = 5\n"
    "    def test_add(self):\n        self.assertEqual(add(2, 3), self.five)\n",
    "skipped tests": f"{CASE}    {DEF}    @unittest.skip('slow')\n    def test_more(self):\n"
    "        self.assertEqual(add(2, 3), 6)\n@unittest.skip('all')\nclass Others(unittest.TestCase):\n"
    f"    {DEF}class Classes(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls):\n"
    f"        raise unittest.SkipTest('none')\n    {DEF}",
    "an expected failure": f"{CASE}    {DEF}    @unittest.expectedFailure\n"
    "    def test_more(self):\n        self.assertEqual(add(2, 3), 6)\n",
    "coroutines of a TestCase": "import unittest\nclass Adding(unittest.IsolatedAsyncioTestCase):\n"
    "    async def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n",
    "subtests": f"{CASE}    def test_add(self):\n        for a in 1, 2:\n"
    "            with self.subTest(a=a):\n                self.assertEqual(add(a, 3), a + 3)\n",
    "a helper with arguments": "def test_one(a, b):\n    assert add(a, b) == a + b\n"
    "def test_all():\n    for a in 1, 2:\n        test_one(a, 3)\n",
    "what the test calls by itself": "left = [5]\ndef test_add():\n    assert add(2, 3) == left.pop()\n"
    "test_add()\n",
    "a generator of cases": "def test_cases():\n    yield 2, 3, 5\n"
    "for a, b, c in test_cases():\n    assert add(a, b) == c\n",
    "a main block for unittest": f"{CASE}    {DEF}if __name__ == '__main__':\n    unittest.main()\n",
    "a comparison that is to raise": f"{CASE}    def test_add(self):\n"
    "        with self.assertRaises(TypeError):\n            add(2, 3) == 5 < None\n",
}
RIGHT_SUM = "def add(a, b):\n    return a + b"
WRONG_SUMS = {
    "0": "def add(a, b):\n    return 0",
    "an exception": "def add(a, b):\n    if a: raise AssertionError(a)\n    return 0",
    "a skip": "import unittest\ndef add(a, b):\n    if a: raise unittest.SkipTest('no')\n    return 0",
}


@pytest.mark.needs("bubblewrap")
def test_what_is_collected_is_what_runs() -> None:
    programs = {"right": RIGHT_SUM, **WRONG_SUMS}
    found = grade_all(
        {
            f"{name}: {which}": (program, PythonTests(code=(code,), entry_point="add"))
            for name, code in COLLECTED.items()
            for which, program in programs.items()
        }
    )
    scored = {name: getattr(grade, "value", repr(grade)) for name, grade in found.items()}
    assert scored == {name: float(name.endswith(": right")) for name in scored}


SMOKE = "assert add(0, 0) == 0\n"
NEVER_RUN = {
    f"{SMOKE}def test_add(a, b):\n    assert add(a, b) == a + b": "the test never runs test_add (line 2)",
    f"{SMOKE}def check(a):\n    assert add(a, 3) == a + 3": "the test never runs check (line 2)",
    f"{SMOKE}def test_add():\n    assert add(2, 3) == 5\n    yield 1": "test_add is a generator, whose "
    "code does not run",
    f"{CASE}    async {DEF}": "the test never runs test_add (line 4)",
    f"{CASE}    {DEF}    {DEF}": "the test never runs test_add (line 4)",
    f"{CASE}    {DEF}        yield 1": "the test never runs test_add (line 4)",
    f"{SMOKE}class Adding:\n    {DEF}": "the test never runs test_add (line 3)",
    f"{SMOKE}class TestAdd:\n    def __init__(self, a):\n        self.a = a\n    {DEF}": "the test never "
    "runs test_add (line 5)",
    f"{SMOKE}def run():\n  class TestAdd:\n    {DEF}": "the test never runs test_add (line 4)",
    f"import functools\n{SMOKE}def helper(a, b): pass\ntest_add = functools.partial(helper, 2)": "the test "
    "never runs test_add, which takes arguments",
    f"{SMOKE}if __name__ == '__main__':\n    assert add(2, 3) == 5": "line 2 of the test has assertions "
    'under `if __name__ == "__main__"`, which never run',
    f"{SMOKE}assert (add(2, 3) == 5, 'a sum')": "line 2 of the test asserts a tuple, which is always "
    "true: write it without parentheses",
    f"{SMOKE}add(2, 3) == 5": "line 2 of the test compares, and asserts nothing",
    f"{CASE}    def test_add(self):\n        add(0, 0) or self.skipTest('0')\n": "tests.Adding.test_add is "
    "skipped after it has used the program, which so has a say in it: 0",
    f"{SMOKE}raise SystemExit\nassert add(2, 3) == 5": "the test is wrong: SystemExit (test line 2)",
}


@pytest.mark.needs("bubblewrap")
def test_tests_that_would_never_run_are_an_error() -> None:
    found = grade_all(
        {
            f"{which}: {code}": (program, PythonTests(code=(code,), entry_point="add"))
            for code in NEVER_RUN
            for which, program in {"right": RIGHT_SUM, "wrong": WRONG_SUMS["0"]}.items()
        }
    )
    assert not [name for name, grade in found.items() if getattr(grade, "value", 0)]
    errors = {code: found[f"right: {code}"] for code in NEVER_RUN}
    assert {code: str(problem) for code, problem in errors.items()} == NEVER_RUN
    assert {type(problem) for problem in errors.values()} == {ScoringFailed}


@pytest.mark.needs("bubblewrap")
def test_coroutines_of_the_program_are_awaited() -> None:
    program = (
        "import asyncio\nclass Box:\n    async def __aenter__(self): return self\n"
        "    async def __aexit__(self, *_): self.closed = True\n"
        "async def add(a, b):\n    await asyncio.sleep(0)\n    return a + b\n"
        "async def count(n):\n    for i in range(n): yield i\n"
    )
    test = (
        "import asyncio\nasync def test_add():\n    assert await add(2, 3) == {}\n"
        "    assert await asyncio.gather(add(1, 1), add(2, 2)) == [2, 4]\n"
        "    assert [i async for i in count(3)] == [0, 1, 2]\n"
        "    async with Box() as box: pass\n    assert box.closed\n"
    )
    assert grade(program, PythonTests(code=(test.format(5),))).value == 1.0
    found = grade(program, PythonTests(code=(test.format(6),)))
    assert found.details["tests"][0]["reason"] == "AssertionError (test line 3)"


def test_no_program_passes_a_test_that_is_wrong() -> None:
    programs = {"f = 1": "f", "import os\nos._exit(0)": ()}
    given = {
        f"{program}: {code}": (program, PythonTests(code=(code,), entry_point=entry_point))
        for program, entry_point in programs.items()
        for code in WRONG_TESTS
        if "while" not in code
    }
    found = grade_all(given, timeout=5.0)
    assert not [n for n, g in found.items() if isinstance(g, Grade) and g.value]


@pytest.mark.needs("bubblewrap")
def test_a_setup_that_fails_is_an_error() -> None:
    tests = PythonTests(code=("assert f(1) == 1",), setup="import nonesuch")
    with pytest.raises(ScoringFailed, match=r"the tests' setup failed: ModuleNotFoundError"):
        grade("def f(x): return 1", tests)


def test_without_a_sandbox_the_item_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for tests in (TESTS, PythonTests(runs=(RunTest("", "1"),))):
        with pytest.raises(SandboxError):
            grade(RIGHT, tests, pool=SandboxPool())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            None,
            "the target (ground_truth) has the tests: a list of assertions, or an object with code",
        ),
        (
            {"cod": []},
            "the target (ground_truth) cannot be read as tests: Object contains unknown field",
        ),
        ({"code": []}, "there are no tests: code, calls and runs are empty"),
        ({"calls": [{"args": [], "expected": 1}]}, "calls need an entry_point"),
        ({"code": ["1"], "entry_point": "a-b"}, "entry_point must be a name of Python, got 'a-b'"),
        ({"code": ["1"], "files": {"../x": ""}}, "a file's path must be relative"),
        ({"code": ["1"], "tolerance": 2}, "tolerance must be from 0 to 1"),
    ],
)
def test_tests_that_cannot_be_read_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        anyio.run(lambda: grade_python("x = 1", sample_of(given)))
    assert message in str(refused.value)


@pytest.mark.parametrize("options", [{"tests": 5}, {"timeout": 0}, {"timeout": "5"}, {"memory": 5}])
def test_wrong_options_are_refused_when_the_rubric_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="part 'python': (tests|timeout|memory) must be"):
        part(grade_python, **options)


@pytest.mark.needs("bubblewrap")
def test_the_tests_are_found_where_the_sample_has_them() -> None:
    asserts = ["assert f(1) == 1"]
    program = "def f(x): return x"
    by_target = Sample("1", {"q": "?"}, asserts)
    by_metadata = Sample("1", {"q": "?"}, metadata={"tests": {"code": asserts}})
    for sample, tests in ((by_target, None), (by_metadata, "tests")):
        found = anyio.run(lambda: grade_python(program, sample, tests=tests))  # noqa: B023
        assert found.value == 1.0


def test_rows_that_lack_a_column_or_hold_code_are_refused() -> None:
    with pytest.raises(InvalidInput, match="the row has no test and no entry_point; it has prompt"):
        human_eval_tests({"prompt": ROW["prompt"]})
    harmful = base64.b64encode(zlib.compress(pickle.dumps(print))).decode()
    with pytest.raises(InvalidInput, match="a pickle of more than one text, which is not read"):
        live_code_bench_tests({"private_test_cases": harmful})
