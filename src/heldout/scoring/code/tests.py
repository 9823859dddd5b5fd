r"""The tests of a Python program as plain data, and those of four datasets.

    PythonTests(code=["assert add(1, 2) == 3"])                          one test, one process
    PythonTests(calls=[CallTest([1, 2], 3)], entry_point="add")          data in, data out
    PythonTests(runs=[RunTest("1 2\n", "3\n")])                          stdin and stdout

A sample's ground truth or metadata has the same as JSON. `human_eval_tests`, `mbpp_tests`,
`apps_tests` and `live_code_bench_tests` make it of a row of these datasets.
"""

from __future__ import annotations

import base64
import pickletools
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from heldout.datasets import mbpp_entry_points
from heldout.errors import UNENCODABLE, UNREADABLE, InvalidInput
from heldout.types import Sample

_MODULES = """
string re datetime collections heapq bisect copy math random statistics itertools functools operator
io sys json
"""
LIVE_CODE_BENCH_IMPORTS = "\n".join(
    [
        *(f"from {name} import *" for name in (*_MODULES.split(), "builtins", "typing")),
        f"import {', '.join(_MODULES.split())}",
        "sys.setrecursionlimit(50000)",
    ]
)
APPS_IMPORTS = """\
import sys, time, itertools, collections, math, fractions, random, heapq
from itertools import accumulate, product, permutations, combinations
from collections import Counter, OrderedDict, deque, defaultdict, ChainMap
from functools import lru_cache
from math import sqrt, sin, cos, tan, ceil, fabs, floor, gcd, exp, log, log2
from typing import List, Tuple
from heapq import *"""
"""What the harnesses of the two put before programs; but for numpy, which no sandbox has."""
MAX_PRIVATE_BYTES = 2**28
"""Most bytes of LiveCodeBench's private tests, unpacked."""


class CallTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call of the entry point, and what it returns."""

    args: list[Any]
    expected: Any
    alternatives: tuple[Any, ...] = ()
    """Other values that count as well."""
    in_place: bool = False
    """Compare the first argument after the call, and not what the call returns."""


class RunTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A run of the whole program: what it reads, and what it prints."""

    stdin: str
    stdout: str


class PythonTests(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tests of a program. Each entry of `code`, `calls` and `runs` is one test."""

    code: tuple[str, ...] = ()
    """Code that raises where the program is wrong: assertions, a unittest.TestCase, functions and
    classes as pytest collects them. It uses the program's names."""
    calls: tuple[CallTest, ...] = ()
    """Calls of the entry point with plain data."""
    runs: tuple[RunTest, ...] = ()
    """Runs of the whole program."""
    entry_point: str | tuple[str, ...] = ()
    """The names that `code` takes from the program, the first also as `candidate`: a function, a
    class, or a method of a class `Solution`. Without any, every name that `code` and `setup` do
    not define is the program's."""
    setup: str = ""
    """Code that runs before each of `code`, without the program: imports and helpers."""
    prompt: str = ""
    """The beginning of every program, such as imports and a signature to be completed."""
    files: dict[str, str] = {}
    """Files beside the program, by path."""
    tolerance: float = 1e-6
    """How far floats in `calls` and `runs` may be off, relative to what is expected or, near 0,
    absolutely: a 0 counts for 1e-9, which the grade's note then says."""

    def __post_init__(self) -> None:
        if not self.code and not self.calls and not self.runs:
            raise InvalidInput("there are no tests: code, calls and runs are empty")
        if self.calls and not self.entry_points:
            raise InvalidInput("calls need an entry_point: the function that they call")
        if not 0 <= self.tolerance < 1:
            raise InvalidInput(f"tolerance must be from 0 to 1, got {self.tolerance!r}")
        for name in self.entry_points:
            if not all(word.isidentifier() for word in name.split(".")):
                raise InvalidInput(f"entry_point must be a name of Python, got {name!r:.100}")
        for path in self.files:
            check_path(path)

    @property
    def entry_points(self) -> tuple[str, ...]:
        """The entry points as a tuple."""
        names = self.entry_point
        return ((names,) if names else ()) if isinstance(names, str) else names


def check_path(path: str) -> None:
    """Refuse a path that leads out of the program's folder."""
    parts = path.split("/")
    if not path or path.startswith("/") or {"", ".", ".."} & {*parts} or "\0" in path:
        raise InvalidInput(f"a file's path must be relative, without . and .., got {path!r:.100}")


def tests_of(
    sample: Sample, tests: str | PythonTests | Callable[[Sample], Any] | None
) -> PythonTests:
    """Find the tests of a sample.

    Args:
        sample: The sample.
        tests: A function of the sample, the name of a field of its metadata, or the tests
            themselves; None for its ground truth.

    Raises:
        InvalidInput: There are none, or they cannot be read.
    """
    if tests is None:
        found, where = sample.ground_truth, "the target (ground_truth)"
    elif isinstance(tests, str):
        found, where = sample.metadata.get(tests), f"metadata[{tests!r}]"
    elif callable(tests):
        found, where = tests(sample), "tests(sample)"
    else:
        found, where = tests, "tests"
    if isinstance(found, PythonTests):
        return found
    if isinstance(found, list | tuple):  # as MBPP has them
        found = {"code": found}
    if not isinstance(found, Mapping):
        raise InvalidInput(
            f"{where} has the tests: a list of assertions, or an object with code, calls or runs; "
            f"got {found!r:.100}"
        )
    try:
        return msgspec.convert(dict(found), PythonTests)
    except (msgspec.ValidationError, TypeError) as problem:
        raise InvalidInput(f"{where} cannot be read as tests: {problem}") from None


# --- Datasets -----------------------------------------------------------------------------------


Columns = Mapping[str, Any] | Sample
"""A row, or a sample that has its columns as metadata, as those of `heldout.datasets` have."""


def human_eval_tests(row: Columns) -> PythonTests:
    """Make the tests of a row of HumanEval: `prompt`, `test`, `entry_point`.

    A helper that the prompt defines is the prompt's in the tests, whatever the program makes of it.
    """
    prompt, test, entry_point = _columns(row, "prompt", "test", "entry_point")
    return PythonTests(
        code=(f"{test}\n\ncheck(candidate)",),
        entry_point=entry_point,
        setup=prompt,
        prompt=prompt,
    )


def mbpp_tests(row: Columns, *, challenge: bool = False) -> PythonTests:
    """Make the tests of a row of MBPP: `test_list`, and `test_imports` or `test_setup_code`.

    The entry points are in `entry_point`, or the names of the tests that `code` defines. The setup
    may use the program.

    Args:
        row: The row.
        challenge: Add those of `challenge_test_list`.
    """
    columns = _columns_of(row)
    (tests,) = _columns(row, "test_list")
    more = columns.get("challenge_test_list") or () if challenge else ()
    setup = (columns.get("test_setup_code") or "").replace("\r\n", "\n").strip()
    return PythonTests(
        code=tuple(f"{setup}\n{test}" if setup else test for test in (*tests, *more)),
        setup="\n".join(columns.get("test_imports") or ()),
        entry_point=tuple(columns.get("entry_point") or mbpp_entry_points(columns)),
    )


def apps_tests(row: Columns) -> PythonTests:
    """Make the tests of a row of APPS (or TACO): `input_output`, text or read.

    Programs have the imports that the dataset's own harness gives them.
    """
    (found,) = _columns(row, "input_output")
    if not found:
        raise InvalidInput("the row has no tests: its input_output is empty")
    content = _read_json(found, "input_output") if isinstance(found, str) else found
    inputs, outputs = _columns(content, "inputs", "outputs")
    if len(inputs) != len(outputs):
        raise InvalidInput(f"there are {len(inputs)} inputs and {len(outputs)} outputs")
    pairs = list(zip(inputs, outputs, strict=True))
    name = content.get("fn_name")
    if name is None:
        runs = tuple(RunTest(_text(i), _text(o)) for i, o in pairs)
        return PythonTests(runs=runs, prompt=APPS_IMPORTS)
    # An output may be the value, or a list of it.
    calls = [
        CallTest(
            [_with_integers(argument) for argument in i],
            o,
            (o[0],) if isinstance(o, list) and len(o) == 1 else (),
        )
        for i, o in pairs
    ]
    return PythonTests(calls=tuple(calls), entry_point=name, prompt=APPS_IMPORTS)


def _with_integers(argument: Any) -> Any:
    """Return an argument; where it is a dict with integers as keys, which JSON has as texts."""
    if isinstance(argument, dict):
        with suppress(ValueError):
            return {int(key): value for key, value in argument.items()}
    return argument


def live_code_bench_tests(row: Columns) -> PythonTests:
    """Make the tests of a row of LiveCodeBench's code generation.

    Those in `public_test_cases` and `private_test_cases`, as text, packed or read. `metadata` has
    the function's name. Programs have the imports that the dataset's own harness gives them.
    """
    columns = _columns_of(row)
    tests: list[Mapping[str, Any]] = []
    for column in ("public_test_cases", "private_test_cases"):
        found = columns.get(column) or []
        if isinstance(found, str):
            text = found if found.lstrip()[:1] == "[" else _unpack(found, column)
            found = _read_json(text, column)
        tests += found
    about = columns.get("metadata") or {}
    about = _read_json(about, "metadata") if isinstance(about, str) else about
    calls, runs = [], []
    for test in tests:
        given, expected, kind = _columns(test, "input", "output", "testtype")
        if kind == "functional":
            args = [_read_json(line, "input") for line in given.splitlines() if line.strip()]
            calls.append(CallTest(args, _read_json(expected, "output")))
        else:
            runs.append(RunTest(given, expected))
    return PythonTests(
        calls=tuple(calls),
        runs=tuple(runs),
        entry_point=about.get("func_name") or (),
        prompt=LIVE_CODE_BENCH_IMPORTS,
    )


def _columns_of(row: Columns) -> Mapping[str, Any]:
    return row.metadata if isinstance(row, Sample) else row


def _columns(row: Columns, *names: str) -> list[Any]:
    row = _columns_of(row)
    if missing := [name for name in names if row.get(name) is None]:
        raise InvalidInput(
            f"the row has no {' and no '.join(missing)}; it has {', '.join(map(str, row))}"
        )
    return [row[name] for name in names]


def _text(lines: str | Sequence[Any]) -> str:
    return lines if isinstance(lines, str) else "\n".join(map(str, lines))


def _read_json(text: str, where: str) -> Any:
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except UNREADABLE as problem:
        raise InvalidInput(f"{where} is no JSON ({problem}): {text!r:.100}") from None


def _unpack(packed: str, where: str) -> str:
    """Unpack LiveCodeBench's private tests: base64 of zlib of a pickle of one text.

    The pickle is not executed: its only text is read from it.
    """
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(packed, validate=True), MAX_PRIVATE_BYTES)
        if not unpacker.eof:
            raise ValueError("it is cut off, or too large")
        operations = [
            (operation.name, value) for operation, value, _ in pickletools.genops(content)
        ]
    except (*UNENCODABLE, ValueError, zlib.error) as problem:
        raise InvalidInput(f"{where} cannot be unpacked: {problem}") from None
    texts = [value for name, value in operations if "UNICODE" in name]
    others = {name for name, _ in operations if "UNICODE" not in name}
    if len(texts) != 1 or not others <= {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "STOP"}:
        raise InvalidInput(f"{where} is a pickle of more than one text, which is not read")
    return str(texts[0])
