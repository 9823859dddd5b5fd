"""Examples of `grade_python`: the target has the tests."""

from __future__ import annotations

from tests.scoring.examples import Example

DOUBLE = ["assert double(2) == 4", "assert double('ab') == 'abab'"]
SOURCE = "def double(x):\n    return x + x"
SUM = {"runs": [{"stdin": "1 2\n", "stdout": "3\n"}, {"stdin": "0.1 0.2\n", "stdout": "0.3\n"}]}
ADD = "a, b = map(float, input().split())\nprint(a + b)"
SPLIT = {"entry_point": "split", "calls": [{"args": ["a,b"], "expected": ["a", "b"]}]}
EQUAL = (
    "class Equal:\n    def __eq__(self, other):\n        return True\n\n"
    "def double(x):\n    return Equal()"
)
EXIT = "import os\n\ndef double(x):\n    os._exit(0)"

EXAMPLES = (
    Example(f"Here it is:\n```python\n{SOURCE}\n```", DOUBLE, SOURCE, 1.0),
    Example(SOURCE, DOUBLE, SOURCE, 1.0, "without a block, the whole reply"),
    Example(
        f"```python\n{SOURCE}\n```\nNo, wait:\n```python\ndouble = abs\n```",
        DOUBLE,
        "double = abs",
        0.0,
        "the last block counts",
    ),
    Example("```json\n{}\n```", DOUBLE, None, 0.0, "no block of Python"),
    Example(
        "def double(x):\n    return 4", DOUBLE, "def double(x):\n    return 4", 0.0, "1 of 2 tests"
    ),
    Example(EQUAL, DOUBLE, EQUAL, 0.0, "an object is never compared, data is"),
    Example(EXIT, DOUBLE, EXIT, 0.0, "a process that ends has passed nothing"),
    Example(ADD, SUM, ADD, 1.0, "`3.0` is 3, and 0.30000000000000004 is near enough to 0.3"),
    Example("print(3)", SUM, "print(3)", 0.0, "1 of 2 tests"),
    Example(
        "class Solution:\n    def split(self, text):\n        return tuple(text.split(','))",
        SPLIT,
        "class Solution:\n    def split(self, text):\n        return tuple(text.split(','))",
        1.0,
        "a method of `Solution`; JSON has lists for tuples",
    ),
    Example(
        "def split(text):\n    return text.split()",
        SPLIT,
        "def split(text):\n    return text.split()",
        0.0,
        "it returned another list",
    ),
)
