"""`grade_python`: the program of a reply, run against tests in sandboxes.

Three parties, and only data between them:

    the program    in a sandbox, one fresh process for each test, without the tests
    the tests      where they are code, in another sandbox, without the program
    this process   passes lines from one to the other, and compares what is data

So nothing that a program does to its own process (exits, patched modules, objects that equal
everything, forged messages) reaches what decides. It can only fail to give the right data.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from copy import copy
from functools import cache, partial
from importlib import resources
from typing import Any, Literal, NoReturn, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
import msgspec

from heldout._core.current_attempt import stored_metadata, waiting_for_others
from heldout._core.format import cut
from heldout.errors import InvalidInput, SandboxError, ScoringFailed, printable_error
from heldout.sandbox import ProgramOutcome, Sandbox, SandboxPool, SandboxProcess
from heldout.sandbox.time_limit import TimeUp, call_in_time
from heldout.scoring.code import wire
from heldout.scoring.code.compare import compare_output, same_value
from heldout.scoring.code.extract import ExtractedProgram, extract_program, join_program
from heldout.scoring.code.tests import CallTest, PythonTests, RunTest, tests_of
from heldout.scoring.grades import NO_ANSWER, Grade, grader
from heldout.scoring.rubric import run_each
from heldout.types import Metric, Sample

VERSION = 2
MAX_LINE = 16 << 20
"""Bytes of a message between two processes: larger arguments and results are refused."""
MAX_NAME_LINE = 1 << 20
"""The same where it is not the result of a call, but what a name of the program stands for."""
LARGE_LINE = 1 << 18
"""From this size on a message is read in a thread: the event loop goes on meanwhile."""
LEAST_OUTPUT, MAX_OUTPUT = 1 << 20, 64 << 20
"""Bytes that a whole run may print: at least, and at most."""
MIN_START_SECONDS = 10.0
"""Seconds that an interpreter may take to start, where a test has less."""
OUTCOME = b'{"outcome":'
CALL_PREFIXES = (b'{"do":"call"', b'{"do":"method"')
"""How messages of the tests begin: the last one, and those that use the program."""
FIND = b'{"do":"find"'
NO_DATA = (b'{"value":{"t":"object"', b'{"missing"')
"""How a request for a name begins, and replies to it that a test has not used yet."""
LISTED, LONGEST_REASON = 100, 300
"""How many tests a grade lists, failed ones first, and the characters of a reason."""

MODULES = {"program": ("wire",), "tests": ("wire", "collection")}
"""The modules that a side imports, and that are sent with it."""

T = TypeVar("T")
Whose = Literal["program", "tests"]


class TestOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of one test."""

    __test__ = False  # for pytest

    passed: bool
    seconds: float
    reason: str = ""
    doubt: str = ""
    """What passed only because two numbers are near 0."""


def _check(
    *, tests: Any = None, timeout: float = 10.0, memory: int | None = None, **_: object
) -> None:
    if not (tests is None or isinstance(tests, str | PythonTests) or callable(tests)):
        raise InvalidInput(
            "tests must be a function of the sample, the name of a metadata field or "
            "PythonTests, got "
            f"{tests!r:.100}"
        )
    if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise InvalidInput(f"timeout must be a positive number of seconds, got {timeout!r}")
    if memory is not None and (not isinstance(memory, int) or memory < 2**24):
        raise InvalidInput(f"memory must be a number of bytes, at least 16 MiB, got {memory!r}")


@grader(version=VERSION, check=_check)
async def grade_python(
    answer: str | None,
    sample: Sample,
    text: str = "",
    *,
    tests: str | PythonTests | Callable[[Sample], Any] | None = None,
    timeout: float = 10.0,
    memory: int | None = None,
    pool: SandboxPool | None = None,
) -> Grade:
    """Grade 1 if the program in the reply passes all tests of the sample.

    The program is the last Python block that defines the entry points, else the last Python block,
    else the whole reply. Every test runs in a process of its own, in a sandbox without the tests;
    tests that are code run in another sandbox, without the program, and the two exchange data. So
    neither an exit, nor output, nor an object that equals everything passes a test.

    A test fails where the program is wrong, raises, ends, or exceeds its time or memory; the reason
    is kept. A sandbox that fails, and a test that no program could pass, are errors of the item.

    Args:
        answer: The reply without its reasoning.
        sample: The sample.
        text: The reply as it was written, for the indentation of a function's body.
        tests: Where the tests are: a function of the sample, the name of a field of its metadata,
            or the same tests for all; by default its ground truth.
        timeout: Seconds for each test, with the program's start.
        memory: Bytes for each process; by default as the sandbox has it.
        pool: Sandboxes; by default those that all calls share, as many as there are cores.

    Returns:
        1.0 if all tests passed, else 0.0; `extracted` has the program, `tests` what came of each.
        The share that passed is tracked as a metric of its own.

    Raises:
        InvalidInput: The sample has no tests, or none that can be read.
        ScoringFailed: A test is wrong: it cannot be compiled, or fails without the program.
        SandboxError: The sandbox failed, and not the program in it.
    """
    suite = tests_of(sample, tests)
    program = extract_program(answer or "", text, suite.entry_points, completes=bool(suite.prompt))
    if program is None:
        return _add_share(NO_ANSWER, 0.0)
    key = _key(program, suite, timeout, memory)
    outcomes = _stored_outcomes(key)
    if outcomes is None:
        outcomes = await _Run(program, suite, timeout, memory, pool or shared_pool()).run()
    return _make_grade(program, outcomes, key)


def _key(program: ExtractedProgram, suite: PythonTests, timeout: float, memory: int | None) -> str:
    """Hash all that decides what comes of the tests."""
    parts = msgspec.to_builtins((VERSION, program, suite, timeout, memory), order="deterministic")
    return hashlib.sha256(wire.dump(parts)).hexdigest()[:32]


def _stored_outcomes(key: str) -> list[TestOutcome] | None:
    """Return what the run that is being rescored says of the same program and tests."""
    stored = stored_metadata("tests_key", key)
    if stored is None or len(stored.get("tests", ())) != stored.get("tests_run"):
        return None
    return msgspec.convert(stored["tests"], list[TestOutcome])


def _make_grade(program: ExtractedProgram, outcomes: Sequence[TestOutcome], key: str) -> Grade:
    passed = sum(outcome.passed for outcome in outcomes)
    first = next((outcome for outcome in outcomes if not outcome.passed), None)
    note = f"{passed} of {len(outcomes)} tests passed"
    if first is not None:
        note += f"; test {outcomes.index(first)}: {first.reason}"
    doubtful = next((outcome for outcome in outcomes if outcome.doubt), None)
    if doubtful is not None:
        note += f"; in test {outcomes.index(doubtful)}, {doubtful.doubt}"
    listed = outcomes
    if len(outcomes) > LISTED:
        listed = sorted(outcomes, key=lambda outcome: outcome.passed)[:LISTED]
    details = {
        "tests": msgspec.to_builtins(listed),
        "tests_run": len(outcomes),
        "tests_key": key,
    }
    grade = Grade(float(first is None), program.source, note, details)
    return _add_share(grade, passed / len(outcomes))


def _add_share(grade: Grade, share: float) -> Grade:
    return msgspec.structs.replace(grade, tracked=(Metric("tests_passed", share, rate=True),))


# --- Running ------------------------------------------------------------------------------------


class _Failed(Exception):
    """The program failed a test; the message says why."""


class _Peer:
    """A process in a sandbox that speaks the protocol of `wire`."""

    def __init__(self, process: SandboxProcess, whose: Whose) -> None:
        self.process, self.whose = process, whose

    @classmethod
    async def start(
        cls, sandbox: Sandbox, whose: Whose, memory: int | None, environment: dict[str, str]
    ) -> _Peer:
        """Start one; nothing of a program is in it yet."""
        argv = [sandbox.python, "-s", "-B", "-c", _side(whose)]
        process = await sandbox.start(
            argv, memory=memory, environment=environment, merge_stderr=False
        )
        return cls(process, whose)

    async def wait_ready(self, timeout: float) -> None:
        """Wait until it listens.

        Raises:
            SandboxError: It does not in the time of a whole test, so no test could be run in time.
        """
        try:
            ready = await self.process.readline(timeout=max(timeout, MIN_START_SECONDS))
        except TimeoutError:
            raise SandboxError(
                f"Python had not started in the sandbox after {timeout:g} s: the host is "
                "overloaded, and no program is to blame"
            ) from None
        if not ready:
            end = _describe_end(await self.process.wait())
            raise SandboxError(f"Python did not start in the sandbox: {end}")

    async def send(self, line: bytes) -> None:
        with suppress(BrokenPipeError):  # it has ended: `receive` says why
            await self.process.write(line)

    async def receive(self, limit: int = MAX_LINE) -> bytes:
        """Wait for a line.

        Raises:
            _Failed: There is none: it ended, or the line is too long.
        """
        line = await self.process.readline(limit)
        if line.endswith(b"\n"):
            return line
        if len(line) >= limit:
            raise _Failed(f"what it returned takes more than {limit >> 20} MiB")
        raise _Failed(f"its process ended: {_describe_end(await self.process.wait())}")

    async def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message, and read the reply."""
        await self.send(wire.dump(message))
        return await _load(await self.receive())


async def _load(line: bytes) -> dict[str, Any]:
    try:
        if len(line) < LARGE_LINE:
            return wire.load(line)
        return await anyio.to_thread.run_sync(wire.load, line)
    except wire.BadMessage as problem:
        raise _Failed(f"its process sent what is no reply ({problem})") from None


def _describe_end(outcome: ProgramOutcome) -> str:
    if outcome.reason is not None:
        return f"stopped for its {outcome.reason}"
    return f"exit code {outcome.exit}"


@cache
def _side(whose: Whose) -> str:
    """Return the code of a side, with what it imports: a whole program for `python -c`."""
    package = __package__ or ""
    folder = resources.files(package)
    parents = [package.rsplit(".", depth)[0] for depth in range(package.count(".") + 1)]
    lines = [
        "import sys",
        "sys.path[:] = [path for path in sys.path if path]",
        "import types",
        f"for name in {parents}: sys.modules[name] = types.ModuleType(name)",
    ]
    for module in MODULES[whose]:
        name, code = f"{package}.{module}", (folder / f"{module}.py").read_text(encoding="utf-8")
        lines += [
            f"module = types.ModuleType({name!r})",
            f"sys.modules[{package!r}].{module} = sys.modules[{name!r}] = module",
            f"exec(compile({code!r}, '{module}.py', 'exec'), vars(module))",
        ]
    side = (folder / f"{whose}_side.py").read_text(encoding="utf-8")
    return "\n".join([*lines, f"exec(compile({side!r}, '{whose}_side.py', 'exec'))\n"])


class _Run:
    """All tests of one program."""

    def __init__(
        self,
        program: ExtractedProgram,
        suite: PythonTests,
        timeout: float,
        memory: int | None,
        pool: SandboxPool,
    ) -> None:
        self.suite, self.timeout, self.memory, self.pool = suite, timeout, memory, pool
        self.source = join_program(suite.prompt, program.source) if suite.prompt else program.source
        self.files = {**program.files, **suite.files}
        # Of what the sandboxes show of the host, the folders may be packages.
        shown = ":".join(target for _, target in pool.settings.readable)
        self.environment = {"PYTHONPATH": shown} if shown else {}

    async def run(self) -> list[TestOutcome]:
        """Run all tests, as many at a time as there are sandboxes."""
        tests: list[Callable[[Sandbox], Awaitable[str]]] = [
            *(partial(self._run_code, code) for code in self.suite.code),
            *(partial(self._run_call, call) for call in self.suite.calls),
            *(partial(self._run_whole, run) for run in self.suite.runs),
        ]
        outcomes: dict[int, TestOutcome] = {}

        async def run_one(index: int) -> None:
            outcomes[index] = await self._run_test(tests[index])

        await run_each(run_one, range(len(tests)))
        return [outcomes[index] for index in range(len(tests))]

    async def _run_test(self, test: Callable[[Sandbox], Awaitable[str]]) -> TestOutcome:
        """Run a test; it returns what is in doubt although it passed."""
        async with AsyncExitStack() as stack:
            with waiting_for_others():
                sandbox = await stack.enter_async_context(self.pool.sandbox())
            began, reason, doubt = time.perf_counter(), "", ""
            try:
                doubt = cut(await test(sandbox), LONGEST_REASON)
            except _Failed as problem:
                reason = cut(printable_error(problem), LONGEST_REASON) or "it failed"
            return TestOutcome(not reason, round(time.perf_counter() - began, 3), reason, doubt)

    async def _write_files(self, sandbox: Sandbox, files: Mapping[str, str]) -> None:
        for path, content in files.items():
            try:
                await sandbox.write(path, content)
            except InvalidInput as problem:  # the reply has a file where another has a folder
                raise _Failed(f"its file {path} cannot be written: {problem}") from None

    async def _start(self, sandbox: Sandbox, whose: Whose) -> _Peer:
        await self._write_files(sandbox, self.files if whose == "program" else self.suite.files)
        return await _Peer.start(sandbox, whose, self.memory, self.environment)

    # --- Tests that are code ---

    async def _run_code(self, code: str, sandbox: Sandbox) -> str:
        async with _pool_of_tests(self.pool).sandbox() as other:
            program = await self._start(sandbox, "program")
            tests = await self._start(other, "tests")
            for peer in (program, tests):
                await peer.wait_ready(self.timeout)
            exchange = _Exchange(program, tests)
            given = {
                "test": code,
                "setup": self.suite.setup,
                "entry_points": self.suite.entry_points,
                "program": self.source,
                "files": bool(self.files),
            }
            try:
                outcome = await call_in_time(
                    partial(exchange.run, given), self.timeout, (sandbox, other)
                )
            except TimeUp:
                await self._require_time(sandbox, program)
                self._raise_timeout(exchange)
        if "error" in outcome:
            raise ScoringFailed(outcome["error"])
        if "failed" in outcome:
            raise _Failed(outcome["failed"])
        return ""

    def _raise_timeout(self, exchange: _Exchange) -> NoReturn:
        if exchange.in_tests and not exchange.calls:
            raise ScoringFailed(f"the test did not use the program in {self.timeout:g} s")
        where = " (in the test)" if exchange.in_tests else ""
        raise _Failed(f"timeout: not done after {self.timeout:g} s{where}")

    # --- Calls with data ---

    async def _run_call(self, call: CallTest, sandbox: Sandbox) -> str:
        program = await self._start(sandbox, "program")
        await program.wait_ready(self.timeout)
        try:
            return await call_in_time(partial(self._call, program, call), self.timeout, [sandbox])
        except TimeUp:
            await self._require_time(sandbox, program)
            raise _Failed(f"timeout: not done after {self.timeout:g} s") from None

    async def _require_time(self, sandbox: Sandbox, program: _Peer) -> None:
        """Kill a program whose time is up, and see that another one still gets its time.

        Raises:
            SandboxError: It does not: the host is overloaded.
        """
        await program.process.kill()
        await sandbox.run(["true"], timeout=self.timeout)

    async def _call(self, program: _Peer, call: CallTest) -> str:
        name = self.suite.entry_points[0]
        load = {"do": "load", "program": self.source, "files": bool(self.files)}
        _read_value(await program.ask(load))
        found = await program.ask({"do": "find", "name": name})
        if "missing" in found:
            raise _Failed(f"the program does not define {name}")
        entry_point = _read_value(found)
        if not isinstance(entry_point, _Reference):
            raise _Failed(f"{name} of the program is neither a function nor a class")
        await program.send(await anyio.to_thread.run_sync(_encode_call, call, entry_point.number))
        line = await program.receive()
        compare = partial(_compare_call, line, call, self.suite.tolerance)
        return await (
            anyio.to_thread.run_sync(compare) if len(line) > LARGE_LINE else _now(compare)
        )

    # --- Whole runs ---

    async def _run_whole(self, run: RunTest, sandbox: Sandbox) -> str:
        await self._write_files(sandbox, {**self.files, "program.py": self.source})
        outcome = await sandbox.run(
            [sandbox.python, "-B", "program.py"],
            stdin=run.stdin.encode("utf-8", "backslashreplace"),
            timeout=self.timeout,
            memory=self.memory,
            environment=self.environment,
            output_limit=min(max(LEAST_OUTPUT, 2 * len(run.stdout)), MAX_OUTPUT),
        )
        if outcome.reason == "timeout":
            raise _Failed(f"timeout: not done after {self.timeout:g} s")
        if outcome.reason is not None or outcome.exit != 0:
            last = outcome.stderr.decode(errors="replace").rstrip().rpartition("\n")[2]
            raise _Failed(f"{_describe_end(outcome)}{': ' * bool(last)}{last}")
        doubts: list[str] = []
        compare = partial(
            compare_output,
            outcome.stdout.decode(errors="replace"),
            run.stdout,
            self.suite.tolerance,
            doubts,
        )
        is_large = len(outcome.stdout) > LARGE_LINE
        difference = await (anyio.to_thread.run_sync(compare) if is_large else _now(compare))
        if difference is not None:
            raise _Failed(difference)
        return "".join(doubts[:1])


class _Exchange:
    """Lines from the tests to the program and back, until the tests have ended."""

    def __init__(self, program: _Peer, tests: _Peer) -> None:
        self.program, self.tests = program, tests
        self.calls = 0
        self.in_tests = True

    async def run(self, given: dict[str, Any]) -> dict[str, Any]:
        """Have the tests run; returns what came of it.

        Raises:
            ScoringFailed: Their process ended before it had used the program.
            _Failed: It ended later.
        """
        await self.tests.send(wire.dump(given))
        while True:
            try:
                line = await self.tests.receive()
            except _Failed as problem:
                kind = _Failed if self.calls else ScoringFailed
                raise kind(f"the test did not end: {problem}") from None
            if line.startswith(OUTCOME):
                outcome: dict[str, Any] = wire.load(line)["outcome"]
                return outcome
            self.in_tests = False
            self.calls += line.startswith(CALL_PREFIXES)
            await self.program.send(line)
            try:
                is_call = line.startswith(CALL_PREFIXES)
                reply = await self.program.receive(MAX_LINE if is_call else MAX_NAME_LINE)
            except _Failed as problem:
                reply = wire.dump({"gone": str(problem)})
            if line.startswith(FIND) and not reply.startswith(NO_DATA):
                self.calls += 1  # the test has it, and needs no call
            self.in_tests = True
            await self.tests.send(reply)


class _Reference:
    """Something of the program that is not data."""

    def __init__(self, tag: str, content: Any) -> None:
        self.tag = tag
        self.number, self.kind = content[0], str(content[1]) if tag == "object" else tag


def _read_value(reply: dict[str, Any]) -> Any:
    """Read the value of a reply.

    Raises:
        _Failed: The program raised, or its process sent something else.
    """
    try:
        if "raised" in reply:
            raised = reply["raised"]
            name, text = raised["class"][0][1], raised["text"]
            raise _Failed(f"{name}: {text}" if text else f"{name}")
        return wire.decode(reply["value"], _Reference)
    except (wire.BadMessage, TypeError, LookupError) as problem:
        raise _Failed(f"its process sent what is no reply ({problem!r:.100})") from None


def _compare_call(line: bytes, call: CallTest, tolerance: float) -> str:
    try:
        found = _read_value(wire.load(line))
    except wire.BadMessage as problem:
        raise _Failed(f"its process sent what is no reply ({problem})") from None
    if isinstance(found, _Reference):
        raise _Failed(f"it returned a {cut(found.kind, 50)}, which is not data")
    for value in (call.expected, *call.alternatives):
        doubts: list[str] = []
        if same_value(found, value, tolerance, doubts):
            return "".join(doubts[:1])
    raise _Failed(f"it returned {_show(found)}, not {_show(call.expected)}")


def _show(value: Any) -> str:
    try:
        return cut(repr(value), 100)
    except (ValueError, RecursionError):  # an integer of too many digits, or too deep
        return f"a {type(value).__name__}"


def _encode_call(call: CallTest, number: int) -> bytes:
    return wire.dump(
        {
            "do": "call",
            "object": number,
            "args": [wire.encode(argument, _refuse_argument) for argument in call.args],
            "kwargs": {},
            "in_place": call.in_place,
        }
    )


def _refuse_argument(value: Any) -> Any:
    raise InvalidInput(f"an argument of a test is no data: {value!r:.100}")


async def _now(function: Callable[[], T]) -> T:
    return function()


# --- Sandboxes that all calls share -------------------------------------------------------------


@cache
def shared_pool() -> SandboxPool:
    """Return the sandboxes that all calls share."""
    return SandboxPool()


_OF_TESTS: WeakKeyDictionary[SandboxPool, SandboxPool] = WeakKeyDictionary()


def _pool_of_tests(pool: SandboxPool) -> SandboxPool:
    """Return the sandboxes of tests that go with those of programs.

    Whoever has one of a program waits for one of a test, and never the other way round: so no two
    wait for each other.
    """
    return _OF_TESTS.setdefault(pool, copy(pool))
