"""An environment is closed exactly once on every way out of a rollout."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from heldout import Completion, Message, Score, ToolSpec
from heldout.environments import ToolEnvironment
from heldout.errors import EnvironmentFailed, SystemicFailure
from tests.conftest import RunEval, both_loops, make_samples
from tests.environments.conftest import Run, calling, rollout


class Lamp(ToolEnvironment):
    """Counts how often it was closed, and needs the event loop for it."""

    def __init__(self) -> None:
        super().__init__([self.switch, self.break_it, self.wait], ends=["switch"])
        self.closed = 0

    def switch(self) -> str:
        """Switch it on."""
        return "on"

    def break_it(self) -> str:
        """Break it."""
        raise EnvironmentFailed("broken")

    async def wait(self) -> str:
        """Wait for ever."""
        await anyio.sleep_forever()
        return ""

    async def close(self) -> None:
        await anyio.lowlevel.checkpoint()
        await super().close()
        self.closed += 1


async def raising(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Completion:
    raise ValueError("no answer")


PROMPT = [Message("user", "Light, please.")]


def call_of(name: str) -> Any:
    async def policy(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Completion:
        return Completion(calling((name, "{}")))

    return policy


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (call_of("switch"), None),
        (raising, ValueError),
        (call_of("break_it"), EnvironmentFailed),
    ],
    ids=["on completion", "on an error in the policy", "on an error in reply"],
)
def test_it_is_closed_once(run: Run, policy: Any, error: type[Exception] | None) -> None:
    lamp = Lamp()
    with pytest.raises(error) if error else nullcontext():
        run(lambda: rollout(policy, PROMPT, lamp, max_turns=5))
    assert lamp.closed == 1


@both_loops
def test_on_a_timeout(run_eval: RunEval) -> None:
    lamps: list[Lamp] = []

    def factory(sample: Any) -> Lamp:
        lamps.append(Lamp())
        return lamps[-1]

    async def wait(messages: list[Message]) -> Message:
        return calling(("wait", "{}"))

    with pytest.raises(SystemicFailure, match=r"timeout: not done after 0.1 s \(in environment\)"):
        run_eval(make_samples(2), lambda t, s: Score(), None, factory, endpoint=wait, timeout=0.1)
    assert [lamp.closed for lamp in lamps] == [1, 1]


@both_loops
def test_on_cancellation(run: Run) -> None:
    lamp = Lamp()

    async def main() -> bool:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def policy(
                    messages: Sequence[Message], tools: Sequence[ToolSpec]
                ) -> Completion:
                    tasks.start_soon(cancel)
                    return Completion(calling(("wait", "{}")))

                async def cancel() -> None:
                    scope.cancel()

                await rollout(policy, PROMPT, lamp, max_turns=5)
        return scope.cancelled_caught

    assert run(main)
    assert lamp.closed == 1


@pytest.mark.integration
@both_loops
def test_on_ctrl_c(tmp_path: Path, backend: str) -> None:
    program = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have set it to ignore

import anyio
import heldout
from heldout import EvalConfig, Message, Sample, Score, ToolCall
from heldout.environments import ToolEnvironment

class Lamp(ToolEnvironment):
    def __init__(self):
        super().__init__([self.wait])

    async def wait(self) -> str:
        print("waiting", flush=True)
        await anyio.sleep_forever()

    async def close(self):
        await anyio.lowlevel.checkpoint()
        await super().close()
        print("closed", flush=True)

def answer(messages):
    return Message("assistant", "", (ToolCall("a", "wait", "{{}}"),))

async def main():
    samples = [Sample(name, {{"prompt": name}}) for name in "ab"]
    config = EvalConfig(answer, output_dir={str(tmp_path)!r}, progress=False)
    await heldout.evaluate(samples, config, lambda t, s: Score(), None, lambda sample: Lamp())

anyio.run(main, backend={backend!r})
"""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    begun = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert begun == ["waiting\n"] * 2, err
    assert out == "closed\nclosed\n"
    assert err.strip().endswith("KeyboardInterrupt")
