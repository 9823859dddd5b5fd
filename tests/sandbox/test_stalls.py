"""A machine that stood still is no slow program, and a program that sleeps is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from heldout import Message, Sample, ToolCall
from heldout.environments import PythonEnvironment, ShellEnvironment
from heldout.environments.sandboxed import SandboxEnvironment
from heldout.errors import SandboxError
from heldout.sandbox import Sandbox, SandboxPool, open_sandbox
from heldout.sandbox.supervisor import stalls
from heldout.sandbox.time_limit import TimeUp, call_in_time
from heldout.scoring import CallTest, PythonTests, RunTest, grade_python
from tests.sandbox.conftest import Use
from tests.sandbox.stall import FIRST, LIMIT, STALL, everything, programs, stalled

pytestmark = [pytest.mark.integration, pytest.mark.needs("bubblewrap")]
Choose = Callable[[], set[int]]
WAIT = f"import os; os.system('{FIRST}')"
SLOW = "sleep 100"
both = pytest.mark.parametrize("choose", [everything, programs])


@both
@pytest.mark.parametrize(("rest", "reason"), [("true", None), (SLOW, "timeout")])
def test_the_limit_of_a_program_is_extended_by_a_stall(
    use: Use, choose: Choose, rest: str, reason: str | None
) -> None:
    async def run(sandbox: Sandbox) -> None:
        with stalled(choose):
            outcome = await sandbox.run(["bash", "-c", f"{FIRST}; {rest}"], timeout=LIMIT)
        assert outcome.reason == reason
        assert outcome.stalled > 0.9 * STALL
        if reason:
            assert STALL + LIMIT - 0.5 < outcome.seconds < 60

    use(run)


def test_a_program_that_stops_itself_is_too_slow(use: Use) -> None:
    async def run(sandbox: Sandbox) -> None:
        outcome = await sandbox.run(["bash", "-c", "kill -STOP 0 $$"], timeout=0.5)
        assert outcome.reason == "timeout"

    use(run)


def test_where_nothing_can_be_said_it_is_an_error(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout.sandbox.sandbox.MAX_STALLED", 1.0)
    monkeypatch.setattr(stalls, "MAX_STALLED", 1.0)

    async def run(sandbox: Sandbox) -> None:
        with stalled(everything), pytest.raises(SandboxError, match=r"stood still for \d+ s"):
            await sandbox.run(["bash", "-c", f"{FIRST}; {SLOW}"], timeout=LIMIT)

    use(run)


TESTS = {
    "calls": PythonTests(calls=[CallTest([1], 1)], entry_point="same"),
    "code": PythonTests(code=["assert same(1) == 1"], entry_point="same"),
    "runs": PythonTests(runs=[RunTest("", "1\n")]),
}
PROGRAM = f"def same(x):\n    {WAIT}\n    return x\n"


@both
@pytest.mark.parametrize("kind", [*TESTS])
def test_a_right_program_passes_on_a_machine_that_stood_still(choose: Choose, kind: str) -> None:
    program = f"{PROGRAM}\nprint(same(1))" if kind == "runs" else PROGRAM

    async def main() -> Any:
        pool = SandboxPool(1)
        try:
            with stalled(choose):
                return await grade_python(
                    program, Sample("1", {}), program, tests=TESTS[kind], timeout=LIMIT, pool=pool
                )
        finally:
            await pool.close()

    grade = anyio.run(main)
    assert grade.value == 1, grade.note


def test_a_slow_program_fails_on_a_machine_that_stood_still() -> None:
    program = f"{PROGRAM.replace(WAIT, f'{WAIT}; os.system({SLOW!r})')}"

    async def main() -> Any:
        pool = SandboxPool(1)
        try:
            with stalled(everything):
                return await grade_python(
                    program, Sample("1", {}), program, tests=TESTS["code"], timeout=LIMIT, pool=pool
                )
        finally:
            await pool.close()

    grade = anyio.run(main)
    assert grade.value == 0
    assert f"timeout: not done after {LIMIT:g} s" in grade.note


@pytest.mark.parametrize("kind", ["bash", "python"])
@pytest.mark.parametrize(
    ("choose", "is_slow"), [(everything, False), (programs, False), (everything, True)]
)
def test_a_command_is_interrupted_for_its_own_time_alone(
    choose: Choose, kind: str, is_slow: bool
) -> None:
    rest = SLOW if is_slow else "true"
    code = f"{FIRST}; {rest}; echo done"
    environment: SandboxEnvironment = ShellEnvironment(timeout=LIMIT)
    name = "command"
    if kind == "python":
        code = f"import os\nos.system('{FIRST}'); os.system('{rest}'); print('done')"
        environment, name = PythonEnvironment(timeout=LIMIT), "code"

    async def main() -> str:
        call = ToolCall("call_0", kind, json.dumps({name: code}))
        try:
            with stalled(choose):
                reply = await environment.reply([Message("assistant", "", (call,))])
            return reply.messages[0].text
        finally:
            await environment.close()

    shown = anyio.run(main)
    if is_slow:
        assert f"interrupted: not done after {LIMIT:g} s" in shown
    else:
        # A shell may say that its job was stopped or ended.
        assert shown.rstrip().endswith("done")
        assert "interrupted" not in shown


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_limit_kept_here_ends_what_is_slow_and_passes_on_what_is_raised(backend: str) -> None:
    async def fail() -> None:
        raise LookupError("of its own")

    async def main() -> None:
        async with open_sandbox() as sandbox:
            assert await call_in_time(lambda: anyio.sleep(0), 1.0, [sandbox]) is None
            with pytest.raises(TimeUp):
                await call_in_time(anyio.sleep_forever, 0.1, [sandbox])
            with pytest.raises(LookupError, match="of its own"):
                await call_in_time(fail, 1.0, [sandbox])

    anyio.run(main, backend=backend)
