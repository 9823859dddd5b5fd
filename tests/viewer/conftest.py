"""Shared by the tests of the viewer: run directories, made once, and the command line."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heldout import (
    EvalResult,
    Message,
    Metric,
    Sample,
    Score,
    Stop,
    ToolCall,
    ToolSpec,
    Trajectory,
)
from heldout.cli.main import run_cli
from heldout.viewer.pages import Pages
from tests.viewer.runs import (
    make_curve,
    make_damaged,
    make_episodes,
    make_repeated,
    make_rescored,
    make_shop_runs,
    make_unfinished,
    save_results,
)

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[link](javascript:alert(1)) ![image](https://example.com/x.png)",
    "\u202eright to left\u202c and \u0000 and \x1b[31mred",
    "{{7*7}} ${alert(1)} `x` <!-- -->",
    "q/../../etc/passwd?a=b&c#d%2e%2e 100%",
)

Command = Callable[..., str]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run directories of every kind; no test changes them."""
    folder = tmp_path_factory.mktemp("runs")
    make_shop_runs(folder, 120)
    make_repeated(folder)
    make_rescored(folder)
    make_curve(folder, 120, samples=32)
    gc.collect()  # until then the training run holds its curve open, and is listed as running
    make_episodes(folder)
    make_unfinished(folder)
    make_damaged(folder)
    make_hostile(folder)
    return folder


@pytest.fixture(scope="session")
def pages(folder: Path) -> Pages:
    return Pages([folder])


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line in this process, and gives what it printed."""

    def run(*arguments: object) -> str:
        code = run_cli([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return run


@pytest.fixture
def command_json(command: Command) -> Callable[..., Any]:
    return lambda *arguments: json.loads(command(*arguments, "--json"))


def hostile_results() -> list[EvalResult]:
    """One result for each hostile text, which is in every field that has texts."""
    results = []
    for text in HOSTILE:
        call = ToolCall(f"call {text}", text, f'{{"a": {json.dumps(text)}}}')
        messages = (
            Message("system", text),
            Message("user", text),
            Message("assistant", text, (call,), reasoning=text),
            Message("tool", text, tool_call_id=call.id),
            Message("assistant", text, reasoning=text),
        )
        metric = Metric("correct", 0.0, 1.0, {"extracted": text, "note": text, "reply": text})
        sample = Sample(text, {"question": text}, text, {"kind": text, f"key {text}": text})
        tools = (ToolSpec(text, text, {text: text}),)
        score = Score((metric,))
        results.append(EvalResult(text, sample, Trajectory(messages), score, tools=tools))
    broken = Sample("broken", {"question": "?"}, None, {})
    results.append(
        EvalResult("broken", broken, Trajectory((), Stop("error")), error="\n".join(HOSTILE))
    )
    return results


def make_hostile(folder: Path) -> None:
    save_results(
        folder / "hostile", hostile_results(), endpoint={"model": HOSTILE[1], "kind": HOSTILE[0]}
    )
