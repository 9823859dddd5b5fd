"""What a sandbox gives back: outcomes of programs, files and trees; and when it refuses."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import anyio
import pytest

import heldout.sandbox.sandbox as module
from heldout.errors import HeldoutError, InvalidInput
from heldout.sandbox import Sandbox, SandboxError, SandboxLimits, SandboxPool, open_sandbox
from heldout.sandbox.bubblewrap import find_interpreter
from heldout.sandbox.python_files import find_python_files
from heldout.sandbox.seccomp import ARCHITECTURES, build_filter
from tests.conftest import both_loops
from tests.processes import wait_until_ended
from tests.sandbox.conftest import Use

pytestmark = pytest.mark.integration


def test_a_program_has_its_files_its_input_and_an_outcome(use: Use, backend: str) -> None:
    code = "import sys, helper; print(helper.double(sys.stdin.read())); sys.exit(3)"
    files = {"pkg/../helper.py": "def double(text): return text * 2", "main.py": code}

    async def run(sandbox: Sandbox) -> None:
        assert sandbox.backend == "bubblewrap"
        outcome = await sandbox.run(["python", "main.py"], stdin=b"ab", files=files)
        assert (outcome.exit, outcome.stdout, outcome.stderr) == (3, b"abab\n", b"")
        assert outcome.reason is None
        assert 0 < outcome.seconds < 20
        assert await sandbox.read("main.py") == code.encode()

    use(run, backend=backend)


@pytest.mark.parametrize(
    ("script", "exit"),
    [
        ("exit 7", 7),
        ("kill -9 $$", 137),
        ("kill -SEGV $$", 139),
        ("cat; echo $EXTRA $HOME", 0),
        ("./missing", 127),
        ("chmod +x /work/data; ./data", 126),
    ],
)
def test_the_exit_code_is_the_programs(use: Use, script: str, exit: int) -> None:
    async def run(sandbox: Sandbox) -> Any:
        await sandbox.write("data", b"\x7fELF no program")
        return await sandbox.run(["bash", "-c", script], environment={"EXTRA": "a b"})

    assert use(run).exit == exit


def test_files_of_the_sandbox_that_are_no_programs_fail_as_in_a_shell(use: Use) -> None:
    async def run(sandbox: Sandbox) -> None:
        await sandbox.write("no_bits", "#!/bin/sh\n")
        await sandbox.write("no_ruby", "#!/usr/bin/no-ruby\n", mode=0o755)
        for argv, exit in ((["./none"], 127), (["/work/no_bits"], 126), (["./no_ruby"], 126)):
            assert (await sandbox.run(argv)).exit == exit
            assert (await (await sandbox.start(argv)).wait()).exit == exit

    use(run)


def test_a_missing_interpreter_is_an_error_and_no_outcome(use: Use) -> None:
    async def run(sandbox: Sandbox) -> None:
        for name in ("no-such-interpreter", "/usr/bin/no-such-interpreter"):
            with pytest.raises(SandboxError, match=f"{name} could not be started in the sandbox"):
                await sandbox.run([name, "main"])
            process = await sandbox.start([name])
            assert await process.read() != b""  # what bubblewrap says
            with pytest.raises(SandboxError, match="could not be started"):
                await process.wait()

    use(run)


def test_a_timeout_is_the_programs_only_if_a_trivial_program_ran_in_time(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(sandbox: Sandbox) -> None:
        outcome = await sandbox.run(["sleep", "60"], timeout=0.2)
        assert (outcome.exit, outcome.reason) == (None, "timeout")
        # A host on which even that takes too long.
        monkeypatch.setattr(module, "TRIVIAL", ("/bin/sleep", "60"))
        monkeypatch.setattr(module, "TRIVIAL_SECONDS", (0.1, 0.2))
        with pytest.raises(SandboxError, match="did not end in 0.1 s, nor did `true` in 0.1 s"):
            await sandbox.run(["sleep", "60"], timeout=0.1)
        process = await sandbox.start(["sleep", "60"], timeout=0.1)
        with pytest.raises(SandboxError, match="did not end in 0.1 s, nor did `true`"):
            await process.wait()

    use(run)


def test_python_has_no_packages_unless_they_are_made_readable(use: Use) -> None:
    show = "import sys; sys.path.insert(0, sys.argv[1]); import anyio; print('found')"
    packages = "/packages"
    source = Path(anyio.__file__).parents[1]

    async def run(sandbox: Sandbox) -> None:
        for option in (["-c", "import pip"], ["-c", show, packages]):
            outcome = await sandbox.run([sandbox.python, *option])
            assert b"ModuleNotFoundError" in outcome.stderr
        async with open_sandbox(readable={packages: source}) as other:
            outcome = await other.run([sandbox.python, "-c", show, packages])
            assert outcome.stdout == b"found\n", outcome.stderr

    use(run)


@pytest.mark.needs("bubblewrap")
def test_programs_see_of_a_prefix_no_more_than_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is in /usr/local of an image, and in a conda environment."""
    real = Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    files = find_python_files(real, real / "bin" / version)
    # A library that extension modules name, as conda has them; and what is nobody's business.
    library = next(path for path in Path("/usr/lib").rglob("libz.so.1") if path.is_file())
    for source in (*files, library):
        target = tmp_path / ("lib/libz.so.1" if source == library else source.relative_to(real))
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            target.symlink_to(source)
        else:
            shutil.copy(source, target)
    for name in ("etc/key", "bin/terraform", "lib/secret.so.1", "lib/python9.9/site-packages/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("secret")
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    path_of = sysconfig.get_path
    monkeypatch.setattr(
        sysconfig, "get_path", lambda name: path_of(name).replace(str(real), str(tmp_path))
    )
    find_interpreter.cache_clear()
    show = "import os, sys, zlib, ctypes; print(sys.prefix, os.path.isdir(sys.prefix + '/lib'))"

    async def main() -> tuple[bytes, bytes]:
        async with open_sandbox() as sandbox:
            shown = await sandbox.run([sandbox.python, "-c", show])
            listed = await sandbox.run(["find", "/python", "-maxdepth", "2"])
            return shown.stdout + shown.stderr, listed.stdout

    try:
        shown, listed = anyio.run(main)
    finally:
        find_interpreter.cache_clear()
    assert shown == b"/python True\n"
    found = {name.removeprefix("/python").strip("/") for name in listed.decode().split()}
    names = {str(path.relative_to(real)) for path in files}
    assert found == {"", "bin", "lib", "lib/libz.so.1", *names}


def test_a_cancelled_run_has_its_program_killed(use: Use) -> None:
    async def run(sandbox: Sandbox) -> None:
        with anyio.move_on_after(0.3):
            await sandbox.run(["bash", "-c", "sleep 1000 & touch started; wait"])
        assert await sandbox.read("started") == b""
        outcome = await sandbox.run(["bash", "-c", "ls -d /proc/[0-9]* | wc -l"])
        assert int(outcome.stdout) <= 4

    use(run)


@both_loops
def test_a_started_program_is_written_to_and_read_from(use: Use, backend: str) -> None:
    async def run(sandbox: Sandbox) -> None:
        shell = await sandbox.start(["bash"])
        await shell.write(b"cd /tmp; x=5; echo to >&2\n")
        assert await shell.readline() == b"to\n"
        await shell.write(b"echo $x $PWD; echo -n rest; yes | head -c 3000000\n")
        assert await shell.readline(timeout=20) == b"5 /tmp\n"
        assert await shell.readline(4) == b"rest"
        length = 0
        while length < 3_000_000:
            length += len(await shell.read(1 << 20, timeout=20))
        with pytest.raises(TimeoutError):
            await shell.readline(timeout=0.05)
        # Another program in the same sandbox sees the same files.
        await sandbox.write("/work/file", "content")
        await shell.write(b"cat /work/file; exit 4\n")
        assert await shell.read(timeout=20) == b"content"
        assert await shell.read() == b""
        assert (await shell.wait()).exit == 4
        sleeper = await sandbox.start(["sleep", "1000"], merge_stderr=False)
        assert (await sleeper.kill()).reason == "killed"
        with pytest.raises(BrokenPipeError):
            await sleeper.write(b"x")
        assert (
            await (await sandbox.start(["sleep", "60"], timeout=0.1)).wait()
        ).reason == "timeout"

    use(run, backend=backend)


def test_who_reads_from_a_program_is_told_that_its_sandbox_was_closed(bubblewrap: None) -> None:
    async def main() -> None:
        sandbox = await open_sandbox()
        process = await sandbox.start(["cat"])

        async def read() -> None:
            with pytest.raises(SandboxError, match="the sandbox was closed"):
                await process.read()

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            await sandbox.close()
        with pytest.raises(SandboxError, match="the sandbox was closed"):
            await sandbox.run(["true"])

    anyio.run(main)


def test_one_program_that_reached_its_limits_does_not_keep_another_from_starting(use: Use) -> None:
    async def run(sandbox: Sandbox) -> None:
        hog = "import os, time\nfor _ in range(40):\n  if not os.fork(): time.sleep(60)"
        greedy = await sandbox.start(["python", "-c", f"{hog}"])
        await greedy.read()  # the last fork failed, and says so
        assert (await sandbox.run(["true"])).exit == 0

    use(run)


def test_a_tree_is_restored_as_it_was(use: Use) -> None:
    script = """
        mkdir -p a/b; echo one > a/b/one; echo one > same; ln -s a/b/one link; chmod 700 same
        touch 'odd name' $'bad\\xff'; mkdir locked; echo in > locked/in; chmod 0 locked
    """

    async def run(sandbox: Sandbox) -> None:
        assert (await sandbox.run(["bash", "-c", script])).exit == 0
        tree = await sandbox.tree()
        assert tree.read("a/b/one") == tree.read("same") == b"one\n"
        assert tree.read("a") is tree.read("none") is None
        assert len(tree.contents) == 3
        assert "odd name" in tree.paths
        await sandbox.run(["bash", "-c", "chmod 700 locked; rm -r a; echo two > same; mkdir a new"])
        assert await sandbox.tree() != tree
        await sandbox.restore(tree)
        assert await sandbox.tree() == tree
        with pytest.raises(InvalidInput, match="more than 3 files"):
            await sandbox.tree(max_files=3)
        with pytest.raises(InvalidInput, match="more than 5 bytes"):
            await sandbox.tree(max_bytes=5)

    use(run)


def test_what_is_wrong_is_refused_before_anything_runs(use: Use) -> None:
    async def run(sandbox: Sandbox) -> None:
        for argv in (
            "true",
            [],
            ["true", "a\0b"],
            ["true", "x" * 200_000],
            ["true", 5],
            ["\ud800"],
        ):
            with pytest.raises(InvalidInput):
                await sandbox.run(argv)  # type: ignore[arg-type]
        for environment in ({"": "x"}, {"A=B": "x"}, {"A": "x\0"}):
            with pytest.raises(InvalidInput):
                await sandbox.run(["true"], environment=environment)
        for limits in (
            {"timeout": 0},
            {"memory": -1},
            {"cpu": float("nan")},
            {"output_limit": 1.5},
        ):
            with pytest.raises(InvalidInput, match="of a sandbox must be a positive"):
                await sandbox.run(["true"], **limits)
        with pytest.raises(FileNotFoundError, match="there is no none in the sandbox"):
            await sandbox.read("none")
        for path in ("a\0b", "\ud800"):  # the sandbox outlives what is no path
            with pytest.raises(InvalidInput, match="it is no path"):
                await sandbox.write(path, "x")
        await sandbox.write("half.py", "print('\ud800')")
        assert b"SyntaxError" in (await sandbox.run(["python", "half.py"])).stderr
        await sandbox.write("long", b"x" * 100)
        with pytest.raises(InvalidInput, match="it has 100 bytes, and the limit is 50"):
            await sandbox.read("long", 50)
        with pytest.raises(SandboxError, match="disk is full: big"):
            await sandbox.write("big", bytes(9 << 20))

    use(run)
    with pytest.raises(InvalidInput, match="no sandbox backend 'chroot'"):
        anyio.run(open_and_close, "chroot")
    for readable in ("/opt", ["/no/such/path"], {"/work/x": "/usr"}, {"x": "/usr"}, ["/tmp"]):
        with pytest.raises(InvalidInput, match="readable"):
            open_sandbox(readable=readable)  # type: ignore[arg-type]


async def open_and_close(backend: str | None) -> None:
    async with open_sandbox(backend):
        pass


def test_without_a_backend_it_refuses_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SandboxError, match=r"nothing to run programs in safely.*apt install bubble"
    ):
        anyio.run(open_and_close, None)
    with pytest.raises(SandboxError, match="bubblewrap is not installed"):
        anyio.run(open_and_close, "bubblewrap")


def test_a_sandbox_whose_process_was_killed_is_an_error_and_a_pool_replaces_it(
    bubblewrap: None,
) -> None:
    async def main() -> None:
        pool = SandboxPool(1)
        async with pool.sandbox() as sandbox:
            sandbox._supervisor._process.kill()
            sandbox._supervisor._process.wait()
            with pytest.raises(SandboxError):
                await sandbox.run(["true"])
        async with pool.sandbox() as sandbox:
            assert (await sandbox.run(["true"])).exit == 0
        await pool.close()
        with pytest.raises(SandboxError, match="was closed"):
            async with pool.sandbox():
                pass

    anyio.run(main)


def test_unsafe_is_had_only_by_name_limits_time_and_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with Sandbox.unsafe(limits=SandboxLimits(memory=64 << 20, output=1000)) as sandbox:
            assert sandbox.backend == "unsafe"
            code = "import os; print(os.getcwd())"
            outcome = await sandbox.run([sys.executable, "m.py"], files={"m.py": code})
            folder = Path(outcome.stdout.decode().strip())
            assert (folder / "m.py").read_text() == code
            assert (await sandbox.run(["bash", "-c", "kill -9 $$"])).exit == 137
            left = "setsid sleep 1000 >&- 2>&- & echo $!"
            pid = int((await sandbox.run(["bash", "-c", left])).stdout)
            wait_until_ended(pid)
            bomb = "a = []\nwhile True: a.append(bytearray(1 << 20))"
            assert (await sandbox.run([sys.executable, "-c", bomb])).reason == "memory"
            assert (await sandbox.run(["yes"])).reason == "output"
            assert (await sandbox.run(["sleep", "60"], timeout=0.1)).reason == "timeout"
            with pytest.raises(SandboxError, match="could not be started"):
                await sandbox.run(["no-such-program"])
        assert not folder.exists()

    anyio.run(main)


SCRIPT = """
import anyio, sys
from heldout.sandbox import Sandbox, open_sandbox

async def main():
    async with open_sandbox({backend!r}) as sandbox:
        process = await sandbox.start(["bash", "-c", "sleep 98765 & echo $PWD; wait"])
        folder = (await process.readline()).decode().strip()
        print(sandbox._supervisor._process.pid, folder, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("backend", ["bubblewrap", "unsafe"])
def test_nothing_is_left_of_a_host_process_that_was_killed(
    bubblewrap: None, number: signal.Signals, backend: str
) -> None:
    script = SCRIPT.format(backend=backend)
    host = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert host.stdout is not None
    supervisor, folder = host.stdout.readline().decode().split()
    tree = find_tree(int(supervisor))
    assert len(tree) >= 3
    host.send_signal(number)
    host.wait()
    host.stdout.close()
    wait_until_ended(*tree)
    assert backend == "bubblewrap" or not Path(folder).exists()
    assert "heldout" not in Path("/proc/mounts").read_text()


def find_tree(root: int) -> list[int]:
    found = [root]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def test_the_filter_is_a_program_for_each_machine() -> None:
    for machine in ARCHITECTURES:
        program = build_filter(machine)
        assert len(program) % 8 == 0
        assert len(program) < 65536
        assert program[-8:] == bytes.fromhex("06000000") + (0x7FFF0000).to_bytes(4, "little")
    assert build_filter("riscv64") == b""
    assert issubclass(SandboxError, HeldoutError)
