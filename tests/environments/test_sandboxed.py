"""A shell and a Python interpreter in a sandbox: state, hangs, what is scored, snapshots, ends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import heldout
from heldout import Message, Metric, Sample, Score, ToolCall, Trajectory
from heldout.environments import PythonEnvironment, ShellEnvironment
from heldout.environments.sandboxed import SandboxEnvironment
from heldout.errors import EnvironmentFailed, InvalidInput, SandboxError
from heldout.rollouts.generating import rollout_batch
from heldout.sandbox import SandboxLimits
from heldout.scoring import PythonTests, grade_python
from heldout.testing import check_environment
from tests.toy import engine, parse, plain, render

pytestmark = pytest.mark.integration

SHELL, PYTHON = "bash", "python"


def call(tool: str, text: str) -> Message:
    name = {"bash": "command", "python": "code"}[tool]
    return Message("assistant", "", (ToolCall("call_0", tool, json.dumps({name: text})),))


def talk(environment: SandboxEnvironment, *commands: str) -> tuple[list[str], dict[str, Any]]:
    """Run commands; return what the model reads, and the outcome."""
    tool = environment.tools[0].name

    async def main() -> tuple[list[str], dict[str, Any]]:
        try:
            shown = []
            for command in commands:
                reply = await environment.reply([call(tool, command)])
                [message] = reply.messages
                shown.append(message.text)
            return shown, await environment.outcome()
        finally:
            await environment.close()

    return anyio.run(main)


def children() -> set[int]:
    """The processes that this one has started."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = stat.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(words[1]) == os.getpid() and words[0] != b"Z":
            found.add(int(stat.parent.name))
    return found


# --- The shell ----------------------------------------------------------------------------------


@pytest.mark.needs("bubblewrap")
def test_a_shell_keeps_its_state_and_says_what_went_wrong() -> None:
    shown, outcome = talk(
        ShellEnvironment(files={"in/a.txt": "one\n", "b.bin": b"\xff\x00"}, timeout=1.0),
        'cd in; x=5; f() { echo "f $x"; }',
        "pwd; f; cat a.txt",
        "ls nowhere; (exit 3)",
        "if",
        "sleep 1000",
        "f",
        "while true; do :; done",
        "echo $x",
        'cat; read line; echo "<$line>"',
        "(sleep 0.1; echo later > later.txt) & wait; cat later.txt",
        "exit 4",
        'echo "<$x>" $PWD',
        "trap '' INT; while true; do sleep 1; done",
        "echo alive > ../alive.txt",
    )
    assert shown[:4] == [
        "[no output]",
        "/work/in\nf 5\none\n",
        "ls: cannot access 'nowhere': No such file or directory\n[exit code 3]",
        "bash: /tmp/.session/command: line 2: syntax error: unexpected end of file\n[exit code 2]",
    ]
    assert shown[4].strip() == "[interrupted: not done after 1 s]"
    assert shown[5] == "f 5\n"
    assert shown[6].strip() == "[interrupted: not done after 1 s]"
    assert shown[7:9] == ["5\n", "<>\n"]
    assert shown[9].endswith("later\n")
    gone = (
        "was started again: variables, functions and the current folder are gone, files are kept]"
    )
    assert shown[10] == f"[the shell ended with exit code 4 and {gone}"
    assert shown[11] == "<> /work\n"
    assert shown[12] == f"[interrupted: not done after 1 s; the shell was killed and {gone}"
    assert outcome == {
        "files": {"in/a.txt": "one\n", "in/later.txt": "later\n"},
        "left_out": {"b.bin": 2},
        "links": {},
    }


@pytest.mark.needs("bubblewrap")
def test_output_loses_its_middle_and_says_so() -> None:
    commands = "seq 1 1000000", "yes | head -c 99"
    shown, _ = talk(ShellEnvironment(output_limit=100, timeout=60.0), *commands)
    first, _, last = shown[0].partition("\n[… 6888796 bytes left out …]\n")
    assert (first[:6], last[-15:]) == ("1\n2\n3\n", "999999\n1000000\n")
    assert len(first) == len(last) == 50
    assert shown[1] == "y\n" * 49 + "y"


@pytest.mark.needs("bubblewrap")
def test_a_session_that_is_killed_or_stopped_is_started_again() -> None:
    limits = SandboxLimits(memory=128 << 20, disk=16 << 20)
    shown, _ = talk(
        ShellEnvironment(limits=limits),
        "kill -9 $PPID; sleep 60",
        "python3 -c 'x = [bytearray(2**20) for _ in range(10**4)]'; echo $?",
        "echo usable",
    )
    assert shown[0] == (
        "it stopped answering\n[the shell was killed and was started again: variables, functions "
        "and the current folder are gone, files are kept]"
    )
    assert "MemoryError" in shown[1] or "memory" in shown[1]
    assert shown[2] == "usable\n"


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    ("kind", "commands"),
    [
        (
            ShellEnvironment,
            ["cat /dev/zero > /tmp/full; echo", "rm /tmp/full; exit", "echo back > b; cat b"],
        ),
        (
            PythonEnvironment,
            ["import os\ntry: open('/tmp/full', 'wb', 0).write(b'0' * 2**23)\nexcept OSError: pass",
             "os.system('cat /dev/zero >> /tmp/full'); os._exit(1)",
             "import os; os.remove('/tmp/full'); open('b', 'w').write('back\\n'); print('back')"],
        ),
    ],
)  # fmt: skip
def test_a_full_disk_is_the_models_to_clear(kind: Any, commands: list[str]) -> None:
    limits = SandboxLimits(disk=4 << 20)
    shown, outcome = talk(kind(limits=limits, check="grep back b", timeout=20.0), *commands)
    assert shown[2].startswith("back\n")
    assert outcome["check"]["passed"]


@pytest.mark.needs("bubblewrap")
def test_a_full_disk_is_no_error_of_the_item() -> None:
    limits = SandboxLimits(disk=4 << 20)
    fill = "cat /dev/zero > full; cp full full2; exit"
    environment = ShellEnvironment(limits=limits, check="cat /tmp/check/x", check_files={"x": "1"})
    shown, outcome = talk(environment, fill, "echo usable")
    assert "usable" in shown[1]
    assert outcome["check"]["passed"]


CHECK = "grep -qx 42 answer.txt && grep -q secret /tmp/check/key.txt && python -c \"open('key')\""


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    ("command", "passed"),
    [
        ("echo 42 > answer.txt", True),
        ("echo 41 > answer.txt", False),
        ("true", False),
        # The check runs where the model never was: what it left running or changed is not there.
        ("mkdir -p bin; printf '#!/bin/sh\\nexit 0' > bin/grep; chmod +x bin/grep; echo 'exit 0' > "
         ".bashrc; export PATH=/work/bin:$PATH BASH_ENV=/work/.bashrc", False),
        ("(while [ ! -e /tmp/check ]; do sleep 0.01; done; echo 42 > answer.txt) & disown", False),
        ("site=$(python -m site --user-site); mkdir -p $site; "
         "echo 'import os; os._exit(0)' > $site/usercustomize.py; echo 42 > answer.txt; rm key",
         False),
        ("mkfifo answer.txt", False),
        ("ln -s /proc/self/environ answer.txt", False),
        ("ls /tmp/check && echo 42 > answer.txt", False),
    ],
)  # fmt: skip
def test_a_check_script_decides_in_a_sandbox_of_its_own(command: str, passed: bool) -> None:
    limits = SandboxLimits(timeout=5.0, disk=16 << 20)
    environment = ShellEnvironment(
        files={"key": ""}, check=CHECK, check_files={"key.txt": "secret"}, limits=limits
    )
    _, outcome = talk(environment, command)
    assert outcome["check"]["passed"] is passed


@pytest.mark.needs("bubblewrap")
def test_a_check_that_is_no_bash_is_an_error_and_no_0() -> None:
    with pytest.raises(EnvironmentFailed, match="the check is no bash.*syntax error"):
        talk(ShellEnvironment(check="if ("), "true")
    _, outcome = talk(ShellEnvironment(check="exit 2"), "true")
    assert outcome["check"]["exit"] == 2


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize(
    ("kind", "show", "shown"),
    [(ShellEnvironment, "echo $x", "?\n"), (PythonEnvironment, "x", "'?'\n")],
)
def test_half_a_character_does_not_end_the_interpreter(kind: Any, show: str, shown: str) -> None:
    async def main() -> list[str]:
        environment = kind()
        try:
            return [await environment.run("x='\ud800'"), await environment.run(show)]
        finally:
            await environment.close()

    assert anyio.run(main) == ["[no output]", shown]


@pytest.mark.needs("bubblewrap")
def test_a_tree_that_is_too_large_is_a_0_and_no_error() -> None:
    limits = SandboxLimits(disk=4 << 20)
    sparse = "for i in 1 2 3; do truncate -s 3M f$i; echo x >> f$i; done"
    _, outcome = talk(ShellEnvironment(check="true", limits=limits), sparse)
    assert outcome["check"]["passed"] is False or outcome["left_out"]


@pytest.mark.needs("bubblewrap")
def test_blocks_are_run_where_they_may_be() -> None:
    environment = ShellEnvironment(blocks=True)
    text = "First:\n```bash\nx=1\n```\nthen\n```sh\necho $x\n```\nnot\n```python\nprint(5)\n```"

    async def main() -> list[Any]:
        try:
            return [
                await environment.reply([Message("assistant", text)]),
                await environment.reply([Message("assistant", "Done.")]),
            ]
        finally:
            await environment.close()

    first, second = anyio.run(main)
    assert [m.text for m in first.messages] == ["[no output]\n1\n"]
    assert second.messages == ()


# --- Python -------------------------------------------------------------------------------------


@pytest.mark.needs("bubblewrap")
def test_an_interpreter_keeps_its_state_and_shows_values_and_tracebacks() -> None:
    shown, outcome = talk(
        PythonEnvironment(files={"tools.py": "def twice(x):\n    return 2 * x\n"}, timeout=1.0),
        "from tools import twice\nx = twice(21)",
        "x",
        "print('hi'); None",
        "def fail():\n    raise ValueError(x)\nfail()",
        "1 +",
        "while True: pass",
        "x + 1",
        "import sys; sys.exit(3)",
        "x, input()",
        "import subprocess; subprocess.run(['echo', 'from a child']).returncode",
        "open('out.txt', 'w').write('done')",
        "import os; os._exit(5)",
        "x",
    )
    assert shown[:3] == ["[no output]", "42\n", "hi\n"]
    assert shown[3] == (
        'Traceback (most recent call last):\n  File "<cell 4>", line 3, in <module>\n    fail()\n'
        '  File "<cell 4>", line 2, in fail\n    raise ValueError(x)\nValueError: 42\n'
    )
    assert shown[4].endswith("SyntaxError: invalid syntax\n")
    assert shown[5].endswith("KeyboardInterrupt\n[interrupted: not done after 1 s]")
    assert shown[6] == "43\n"
    assert shown[7].endswith("SystemExit: 3\n")
    assert shown[8].endswith("EOFError: EOF when reading a line\n")
    assert shown[9:11] == ["from a child\n0\n", "4\n"]
    assert shown[11] == (
        "[the python ended with exit code 5 and was started again: variables and imports are gone, "
        "files are kept]"
    )
    assert shown[12].endswith("NameError: name 'x' is not defined\n")
    assert outcome["files"]["out.txt"] == "done"


@pytest.mark.needs("bubblewrap")
def test_annotations_in_cells_are_values_unless_a_cell_says_otherwise() -> None:
    define = "def f(x: {}): pass\nf.__annotations__"
    shown, _ = talk(
        PythonEnvironment(),
        define.format("Nowhere"),
        define.format("int"),
        "from __future__ import annotations",
        define.format("Nowhere"),
    )
    assert shown[0].endswith("NameError: name 'Nowhere' is not defined\n")
    assert shown[1:] == ["{'x': <class 'int'>}\n", "[no output]", "{'x': 'Nowhere'}\n"]


# --- Both ---------------------------------------------------------------------------------------


@pytest.mark.needs("bubblewrap")
def test_a_shell_keeps_the_contract_and_goes_on_from_snapshots() -> None:
    turns = [
        call(SHELL, "cd /tmp; x=$y; g() { echo g$x; }; echo 2 > /work/b"),
        call(SHELL, "pwd; g; cat /work/a /work/b; cd /work; rm a; ls"),
    ]
    check_environment(lambda: ShellEnvironment(files={"a": "1"}, setup="y=7"), turns=turns)


@pytest.mark.needs("bubblewrap")
def test_an_interpreter_goes_on_from_a_snapshot() -> None:
    def make() -> PythonEnvironment:
        return PythonEnvironment(files={"a": "1"}, setup="y = 7", timeout=1.0)

    async def main() -> tuple[str, bool]:
        first, second = make(), make()
        try:
            for code in ("x = y + int(open('a').read())", "while True: pass", "1 / 0"):
                await first.run(code)
            await first.run("open('a', 'a').write('2')")
            snapshot = json.loads(json.dumps(await first.snapshot()))
            await second.restore(snapshot)
            # The files are those of the snapshot, though the code has run again.
            shown = await second.run("x, open('a').read()")
            return shown, {**await second.snapshot()}["state"]["tree"] == snapshot["state"]["tree"]
        finally:
            await first.close()
            await second.close()

    assert anyio.run(main) == ("(8, '12')\n", True)


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("kind", [ShellEnvironment, PythonEnvironment])
def test_a_setup_that_fails_is_an_error_of_the_item(
    kind: Callable[..., SandboxEnvironment],
) -> None:
    with pytest.raises(EnvironmentFailed, match="setup failed"):
        talk(kind(setup="nonesuch"), "x")


@pytest.mark.needs("bubblewrap")
def test_a_sandbox_that_fails_is_an_error_and_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = ShellEnvironment()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentFailed, match="nothing to run programs in safely"):
        talk(environment, "echo")
    with pytest.raises(SandboxError):  # before anything runs
        ShellEnvironment()


@pytest.mark.parametrize("options", [{"timeout": 0}, {"output_limit": 5}, {"backend": "chroot"}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        ShellEnvironment(**options)


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("how", ["timeout", "error", "limit"])
def test_nothing_is_left_on_any_way_out(how: str, tmp_path: Path) -> None:
    before = children()

    def policy(messages: list[Message]) -> Message:
        if how == "error" and len(messages) > 2:
            raise ValueError("the policy failed")
        return call(SHELL, "sleep 1000" if how == "timeout" else "sleep 1000 &")

    report = heldout.run(
        [Sample("a", {"prompt": "Go."}), Sample("fine", {"prompt": "Go."})],
        lambda trajectory, sample: 1.0,
        endpoint=lambda messages: "Done." if messages[0].text == "Fine" else policy(messages),
        prepare_messages=lambda s: [Message("user", "Fine" if s.id == "fine" else "Go.")],
        environment_factory=lambda sample: ShellEnvironment(),
        max_turns=2,
        timeout=2.0 if how == "timeout" else 60.0,
        max_error_rate=0.5,
        output_dir=str(tmp_path),
    )
    error = {"timeout": "timeout: not done after 2 s", "error": "the policy failed", "limit": ""}[
        how
    ]
    assert error in (report.results[0].error or "")
    assert report.summary["n_errors"] == (how != "limit")
    assert children() <= before


@pytest.mark.needs("bubblewrap")
def test_training_rollouts_run_in_shells_and_are_rewarded_by_programs() -> None:
    def say(prompt: str, turn: int) -> str:
        number = 7 if "<user>right" in prompt else 6
        program = f"def f(): return {number}"
        return f'!bash {{"command": "echo {number} > n"}}' if turn == 1 else program

    async def score(trajectory: Trajectory, sample: Sample) -> Score:
        tests = PythonTests(code=("assert f() == 7",))
        grade = await grade_python(trajectory.answer, sample, tests=tests)
        checked = Metric("checked", trajectory.outcome["check"]["passed"], 1.0)
        return Score((*grade.metrics("program", 1.0), checked))

    rollouts = rollout_batch(
        [Sample(name, {"prompt": name}) for name in ("right", "wrong")],
        lambda sample: ShellEnvironment(check="grep -q 7 n"),
        render,
        engine(say),
        3,
        per_turn_max_tokens=60,
        decode=plain,
        parse=parse,
        score_fn=score,
    )
    assert [(r.error, r.reward) for r in rollouts] == [(None, 1.0), (None, 0.0)]


@pytest.mark.needs("bubblewrap")
def test_a_shell_that_was_stopped_goes_on_in_a_resumed_run(tmp_path: Path) -> None:
    commands = ["cd /tmp; x=1", "x=$((x + 1)); echo $x > /work/x", "echo $x$PWD >> /work/x"]

    reached = tmp_path / "reached"

    async def policy(messages: list[Message]) -> Message | str:
        turns = sum(m.role == "assistant" for m in messages)
        if turns == 2 and not reached.exists():
            reached.touch()
            await anyio.sleep_forever()
        return call(SHELL, commands[turns]) if turns < len(commands) else "Done."

    async def evaluate(*, resume: bool) -> Any:
        config = heldout.EvalConfig(
            endpoint=policy,
            save_turns=True,
            resume=resume,
            experiment_name="shell",
            output_dir=str(tmp_path),
        )
        samples = [Sample("a", {"prompt": "Count."})]
        return await heldout.evaluate(samples, config, is_counted, environment_factory=make_shell)

    async def main() -> Any:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(evaluate, resume=False))
            while not reached.exists():
                await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        return await evaluate(resume=True)

    report = anyio.run(main)
    assert report.summary["mean"] == 1.0
    timing = report.results[0].trajectory.timing
    assert timing is not None
    assert timing.restored_turns == 2


def make_shell(sample: Sample) -> ShellEnvironment:
    return ShellEnvironment()


def is_counted(trajectory: Trajectory, sample: Sample) -> bool:
    return bool(trajectory.outcome["files"]["x"] == "2\n2/tmp\n")
