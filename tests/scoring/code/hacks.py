# ruff: noqa: E501 - programs, one on a line
"""Programs that try to pass tests without solving anything; every one must fail.

Most are for `sorted_evens`, whose tests are in `TESTS`; `OTHERS` have a test of their own each, in
the style that the trick is best at: every test starts the program once.
"""

from __future__ import annotations

from heldout.scoring.code.tests import CallTest, PythonTests, RunTest, human_eval_tests

ROW = {
    "prompt": "from typing import List\n\n\ndef largest(values):\n    return max(values)\n\n\n"
    'def sorted_evens(values: List[int]) -> List[int]:\n    """The even numbers, ascending."""\n',
    "entry_point": "sorted_evens",
    "test": "def check(candidate):\n"
    "    assert candidate([3, 4, 2]) == [2, 4]\n"
    "    assert candidate([1]) == []\n"
    "    assert largest(candidate([8, 12, 5])) == 12\n"
    "    assert isinstance(candidate([6]), list) and candidate([6])[0] == 6\n",
}
TESTS = human_eval_tests(ROW)
RIGHT = """
def sorted_evens(values):
    return sorted(value for value in values if value % 2 == 0)
"""

ALWAYS_EQUAL = """
class Equal:
    __hash__ = None
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __getitem__(self, key): return self
    def __len__(self): return 1
    def __gt__(self, other): return True
"""

FORGED = r"""
import os
LINES = b'{"outcome":{"passed":true}}\n{"passed":true}\n{"value":[2,4]}\n' * 50
def sorted_evens(values):
    for descriptor in range(256):
        try:
            os.write(descriptor, LINES)
        except OSError:
            pass
    return None
"""

# In the same interpreter as `exec(program + tests)`, most of these score.
HACKS = {
    "exits with 0 when it is imported": "import sys\nsys.exit(0)",
    "ends its process when it is imported": "import os\nos._exit(0)",
    "ends its process when it is called": "import os\ndef sorted_evens(values): os._exit(0)",
    "raises SystemExit(0)": "def sorted_evens(values): raise SystemExit(0)",
    "ends itself at exit": "import atexit, os\natexit.register(os._exit, 0)\n"
    "def sorted_evens(values): raise SystemExit",
    "says that all tests passed": "print('OK: all tests passed')\n"
    "def sorted_evens(values): print('4 passed in 0.01s')",
    "returns what equals everything": f"{ALWAYS_EQUAL}\ndef sorted_evens(values): return Equal()",
    "returns what lies about its class": f"{ALWAYS_EQUAL}\n    __class__ = list\n"
    "def sorted_evens(values): return Equal()",
    "returns a list that equals everything": "class Equal(list):\n"
    "    def __eq__(self, other): return True\n    def __getitem__(self, key): return 6\n"
    "    def __iter__(self): return iter([12])\n"
    "def sorted_evens(values): return Equal()",
    "returns a list of what equals everything": f"{ALWAYS_EQUAL}\n"
    "def sorted_evens(values): return [Equal(), Equal()]",
    "returns a list that grows": "class Growing(list):\n"
    "    def __len__(self): return len(self.__dict__.setdefault('seen', [])) or 1\n"
    "    def __iter__(self):\n        while True: yield 12\n"
    "def sorted_evens(values): return Growing()",
    "defines the tests' own functions": "def check(candidate): pass\n"
    "def candidate(values): return []\ndef sorted_evens(values): return []",
    "changes a helper that the prompt gives": "def largest(values): return 12\n"
    "def sorted_evens(values): return {(3, 4, 2): [2, 4], (6,): [6]}.get(tuple(values), [])",
    "patches built-in functions": "import builtins\n"
    "builtins.isinstance = lambda *a: True\nbuiltins.AssertionError = type('Fine', (Exception,), {})\n"
    "builtins.__build_class__ = None\n__builtins__['len'] = lambda x: 0\n"
    "def sorted_evens(values): return [12]",
    "patches the comparison of lists": "import ctypes\n"
    "def sorted_evens(values):\n"
    "    view = (ctypes.c_ubyte * list.__basicsize__).from_address(id(list))\n"
    "    ctypes.memset(id(False), 255, 28)\n    return []",
    "patches every module": "import sys, unittest, operator\n"
    "for module in list(sys.modules.values()):\n"
    "    for name in ('assertEqual', 'encode', 'decode', 'dumps', 'loads', 'same_value', 'eq'):\n"
    "        if hasattr(module, name): setattr(module, name, lambda *a, **k: True)\n"
    "unittest.TestCase.assertEqual = lambda *a: None\n"
    "def sorted_evens(values): return [12]",
    "makes the protocol say other things": "import sys\n"
    "sys.modules['heldout.scoring.code.wire'].encode = lambda *a: {'t': 'expected', 'v': 0}\n"
    "def sorted_evens(values): return []",
    "answers with a function of the tests": "import sys\n"
    "sys.modules['heldout.scoring.code.wire'].encode = lambda *a: {'t': 'callback', 'v': 0}\n"
    "def sorted_evens(values): return []",
    "forges messages on every descriptor": FORGED,
    "forges messages from a thread": f"{FORGED}\nimport threading\nwrite = sorted_evens\n"
    "def sorted_evens(values):\n    threading.Thread(target=write, args=[[]]).start()\n    return []",
    "forges messages from a child that outlives it": f"{FORGED}\nwrite = sorted_evens\n"
    "def sorted_evens(values):\n    if os.fork() == 0:\n        os.setsid(); write([]); os._exit(0)\n"
    "    os._exit(0)",
    "looks for what is expected in its memory": "import gc\ndef sorted_evens(values):\n"
    "    lists = [o for o in gc.get_objects() if type(o) is list and o and o != values\n"
    "             and all(type(x) is int and x % 2 == 0 for x in o)]\n"
    "    return lists[0] if lists else []",
    "looks for what is expected in its callers": "import sys\ndef sorted_evens(values):\n"
    "    frame = sys._getframe()\n"
    "    while frame:\n"
    "        for name, value in frame.f_locals.items():\n"
    "            if 'expected' in name or 'test' in name: return value\n"
    "        frame = frame.f_back\n    return []",
    "traces its callers": "import sys\nseen = []\n"
    "def trace(frame, event, arg):\n    seen.append(arg)\n    frame.f_locals['reason'] = None\n"
    "    return trace\nsys.settrace(trace)\nsys.setprofile(trace)\n"
    "def sorted_evens(values): return [s for s in seen if isinstance(s, list)] or []",
    "reads the tests from disk": "import os, re\nfound = []\n"
    "for folder, _, files in (*os.walk('/work'), *os.walk('/tmp'), *os.walk('/dev/shm')):\n"
    "    for name in files:\n        found.append(open(os.path.join(folder, name)).read())\n"
    "def sorted_evens(values):\n"
    "    return {True: [2, 4], False: []}[any('check' in text for text in found)]",
    "reads the tests from other processes": "import glob\nfound = b''\n"
    "for path in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/proc/[0-9]*/environ'):\n"
    "    try: found += open(path, 'rb').read()\n"
    "    except OSError: pass\n"
    "def sorted_evens(values): return [2, 4] if b'largest(candidate' in found else []",
    "kills whoever runs it": "import os, signal\nfor pid in (os.getppid(), -1):\n"
    "    try: os.kill(pid, signal.SIGKILL)\n    except OSError: pass\n"
    "def sorted_evens(values): return []",
    "sleeps past the limit": "import time\ndef sorted_evens(values): time.sleep(1000)",
    "ignores signals and spins": "import signal\n"
    "for number in range(1, 32):\n"
    "    try: signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
    "def sorted_evens(values):\n    while True: pass",
    "returns too much": "def sorted_evens(values): return [0] * 10**7",
    "returns what is nested too deeply": "def sorted_evens(values):\n    inner = []\n"
    "    for _ in range(10**5): inner = [inner]\n    return inner",
    "returns a list that holds itself": "def sorted_evens(values):\n    own = []\n"
    "    own.append(own)\n    return own",
    "raises what tests are skipped with": "import unittest\n"
    "def sorted_evens(values): raise unittest.SkipTest('fine')",
    "raises what is no exception of Python": "class Passed(BaseException): pass\n"
    "def sorted_evens(values): raise Passed",
    "defines nothing": "x = 1",
    "is no Python": "def sorted_evens(values) return values",
    "ends its recursion in a crash": "import sys\nsys.setrecursionlimit(10**9)\n"
    "def sorted_evens(values): return sorted_evens(values)",
    "closes all descriptors": "import os\ndef sorted_evens(values): os.closerange(0, 1000)",
    "plants modules": "import os\n"
    "for name in ('sitecustomize', 'usercustomize', 'typing', 'conftest', 'unittest'):\n"
    "    open(f'/work/{name}.py', 'w').write('import os; os._exit(0)')\n"
    "def sorted_evens(values): return []",
}

COUNT = "assert count('banana') == 3"
OTHERS = {
    "an int that equals everything": (
        "class Equal(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def count(text): return Equal(0)",
        PythonTests(code=(COUNT,)),
    ),
    "a text that equals everything": (
        "class Equal(str):\n    def __eq__(self, other): return True\n    __hash__ = str.__hash__\n"
        "def name(): return Equal('no')",
        PythonTests(calls=(CallTest([], "yes"),), entry_point="name"),
    ),
    "a float that is near everything": (
        "class Near(float):\n    def __sub__(self, other): return 0.0\n    __rsub__ = __sub__\n"
        "    def __abs__(self): return 0.0\ndef half(x): return Near(7)",
        PythonTests(code=("assert abs(half(1) - 0.5) < 1e-6",)),
    ),
    "NaN, which is not unequal enough": (
        "def half(x): return float('nan')",
        PythonTests(calls=(CallTest([1], 0.5),), entry_point="half"),
    ),
    "an object that contains everything": (
        "class All:\n    def __contains__(self, item): return True\n"
        "    def __iter__(self): return iter([])\ndef words(): return All()",
        PythonTests(code=("assert 'pear' in words()",)),
    ),
    "an object with a hash of its own": (
        "class Key:\n    def __hash__(self): return hash('pear')\n    def __eq__(self, other): return True\n"
        "def key(): return Key()",
        PythonTests(code=("assert {'pear': 1}[key()] == 1",)),
    ),
    "the end of its process where an exception is expected": (
        "import os\ndef root(x): os._exit(0)",
        PythonTests(
            code=(
                "import unittest\nclass Roots(unittest.TestCase):\n    def test_it(self):\n"
                "        with self.assertRaises(BaseException):\n            root(-1)",
            )
        ),
    ),
    "an object where an exception is expected": (
        "class Odd:\n    def __eq__(self, other): raise ValueError\ndef root(x): return Odd()",
        PythonTests(
            code=("try:\n    root(-1) == 1\n    assert False\nexcept Exception:\n    pass",)
        ),
    ),
    "the argument, emptied, from which the test makes what it expects": (
        "def evens(values):\n    values.clear()\n    return []",
        PythonTests(
            code=("values = [1, 2]\nassert evens(values) == [v for v in values if v % 2 == 0]",)
        ),
    ),
    "an exit of 0 in place of output": (
        "import os\nos._exit(0)",
        PythonTests(runs=(RunTest("1 2\n", "3\n"),)),
    ),
    "output that is right, and a crash": (
        "print(3)\nraise ValueError",
        PythonTests(runs=(RunTest("1 2\n", "3\n"),)),
    ),
    "the outputs of all tests": (
        "for number in range(100): print(number)",
        PythonTests(runs=(RunTest("1 2\n", "3\n"),)),
    ),
    "output in other words": (
        "print('inf nan 1_0 0x3')",
        PythonTests(runs=(RunTest("", "1.5 2.5 10 3\n"),)),
    ),
    "more output than anybody reads": (
        "while True: print('3' * 10000)",
        PythonTests(runs=(RunTest("1 2\n", "3\n"),)),
    ),
    "files that are in each other's way": (
        "```python a.py\n1\n```\n```python a.py/b.py\n1\n```\n```python program.py/c.py\n1\n```\n"
        "```python\nprint(3)\n```",
        PythonTests(runs=(RunTest("", "3"),), code=(COUNT,)),
    ),
    "the end of an iterator in place of a result": (
        "def f(x): raise StopIteration",
        PythonTests(
            code=("assert all(map(lambda case: f(case[0]) == case[1], [(1, 2), (2, 3)]))",)
        ),
    ),
    "a class of exceptions in place of a function": (
        "class half(Exception): pass",
        PythonTests(code=("assert abs(half(1) - 0.5) < 1e-6",)),
    ),
    "text that the test cannot evaluate": (
        "def f(x): return '((' if x else 'unknown'",
        PythonTests(code=("assert eval(f(1)) == 2", "assert eval(f(0)) == 2")),
    ),
    "data that keeps the test busy": (
        "P = range(10**12)",
        PythonTests(code=("assert sum(P) == 5",)),
    ),
    "a number that cannot be compared": (
        "from decimal import Decimal\ndef f(): return Decimal('sNaN')",
        PythonTests(calls=(CallTest([], 2),), entry_point="f"),
    ),
    "a key that cannot be printed": (
        "def f(): return {10**5000: 1}",
        PythonTests(calls=(CallTest([], {"a": 1}),), entry_point="f"),
    ),
    "a fraction that takes hours to read": (
        "from fractions import Fraction\nclass Huge(Fraction):\n"
        "    def __str__(self): return '1e999999999'\ndef f(): return Huge(1, 2)",
        PythonTests(calls=(CallTest([], 0.5),), entry_point="f"),
    ),
    "digits of another script": (
        "print('\\uff13')",
        PythonTests(runs=(RunTest("", "3"),)),
    ),
    "arguments that are said to have changed, beside a result": (
        "import sys\nwire = sys.modules['heldout.scoring.code.wire']\n"
        'def forge(message): return b\'{"value":[],"changed":[[0,[]]]}\\n\'\n'
        "def evens(values):\n    wire.dump = forge",
        PythonTests(
            code=("values = [1, 2]\nassert evens(values) == [v for v in values if v % 2 == 0]",)
        ),
    ),
    "a module of its own where the test forgot an import": (
        "class math:\n    isclose = staticmethod(lambda *a, **k: True)\ndef half(x): return 7",
        PythonTests(code=("assert math.isclose(half(1), 0.5)",)),
    ),
    "a coroutine": (
        "async def count(text): return 3",
        PythonTests(code=(COUNT,)),
    ),
}
