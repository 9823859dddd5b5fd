r"""A sandbox: a fresh root with a folder /work, in which programs run that nobody trusts.

    async with open_sandbox() as sandbox:
        outcome = await sandbox.run(["python", "-c", "print(6 * 7)"])
        outcome.exit, outcome.stdout, outcome.reason     # 0, b"42\n", None

What a program does is its outcome. What the sandbox fails to do raises SandboxError, so that an
eval records an error and no score.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
from anyio.to_thread import run_sync

from heldout.errors import InvalidInput, SandboxError
from heldout.sandbox.bubblewrap import (
    INSTALL,
    PYTHON,
    check_readable,
    default_environment,
    find_bubblewrap,
    make_settings,
    make_unsafe_settings,
)
from heldout.sandbox.client import (
    RequestChannel,
    RunningSupervisor,
    close_pipe,
    read_pipe,
    write_pipe,
)
from heldout.sandbox.supervisor.stalls import MAX_STALLED
from heldout.sandbox.values import MIB, ProgramOutcome, SandboxLimits, SandboxTree, TreeEntry

TRIVIAL = ("/bin/true",)
"""What must run in time before a timeout is a program's own."""
TRIVIAL_SECONDS = (2.0, 30.0)
"""The least and the most that it is given; else as long as the program had."""
READ_LIMIT = 16 * MIB
LINE_LIMIT = MIB
TREE_FILES, TREE_BYTES = 20_000, 64 * MIB
Readable = Sequence[str | Path] | Mapping[str, str | Path]
BACKENDS = ("bubblewrap", "docker", "podman", "unsafe")


class Sandbox:
    """One fresh root with a folder /work; open one with `open_sandbox`, or take one of a pool."""

    def __init__(self, supervisor: RunningSupervisor, backend: str, limits: SandboxLimits) -> None:
        self.backend = backend
        """bubblewrap, docker, podman; or unsafe, which isolates nothing."""
        self.limits = limits
        self._supervisor = supervisor
        self._processes: set[SandboxProcess] = set()
        self._closed = False

    @classmethod
    def unsafe(cls, *, limits: SandboxLimits | None = None) -> OpeningSandbox:
        """Open a sandbox that is none: plain processes of this user, in a folder on disk.

        They can read and write what this user can, and use the network. Time, memory and output are
        limited, and what they start is killed with them. Paths below /work are in that folder, in
        which programs start; to them it has another name.
        """
        return open_sandbox("unsafe", limits=limits)

    @property
    def python(self) -> str:
        """The path of a Python in the sandbox: that of heldout, without site-packages."""
        if self.backend == "unsafe":
            return sys.executable
        return PYTHON

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        files: Mapping[str, bytes | str] | None = None,
        timeout: float | None = None,
        memory: int | None = None,
        cpu: float | None = None,
        output_limit: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> ProgramOutcome:
        """Run a program to its end, or until it exceeds a limit; what it has started ends with it.

        Args:
            argv: The program and its arguments. It starts in /work.
            stdin: Its standard input.
            files: Written below /work before it starts.
            timeout: Seconds; like the others, that of the sandbox's limits by default.
            memory: Bytes of all its processes together.
            cpu: Seconds of CPU time of all its processes together.
            output_limit: Bytes of standard output, and of standard error.
            environment: Variables beside PATH, HOME, LANG, TMPDIR and USER; none are the host's.

        Raises:
            SandboxError: The sandbox failed: the program is not there, or could not be started; or
                its time was up, but not even a trivial program ran in time.
            InvalidInput: An argument is not valid.
        """
        for path, data in (files or {}).items():
            await self.write(path, data)
        request = self._make_request(
            argv, environment, timeout=timeout, memory=memory, cpu=cpu, output=output_limit
        )
        outcome = await self._run(request, stdin)
        if outcome.reason == "timeout":
            await self._require_time(outcome, request["timeout"])
        return outcome

    async def _run(self, request: dict[str, Any], stdin: bytes = b"") -> ProgramOutcome:
        reply, blob = await self._ask(request, stdin)
        return _make_outcome(reply, blob)

    async def _require_time(self, outcome: ProgramOutcome, seconds: float) -> None:
        """Raise if a program that exceeded its time may not be to blame."""
        require_short_stall(outcome.stalled, seconds)
        # A program that cannot take long: if it does, so might any.
        least, most = TRIVIAL_SECONDS
        limit = min(max(seconds, least), most)
        outcome = await self._run(self._make_request(TRIVIAL, None, timeout=limit))
        if outcome.reason is not None or outcome.exit != 0:
            raise SandboxError(
                f"a program did not end in {seconds:g} s, nor did `true` in {limit:g} s: the host "
                "is overloaded, and the program may not be to blame"
            )

    async def start(
        self,
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        memory: int | None = None,
        cpu: float | None = None,
        environment: Mapping[str, str] | None = None,
        merge_stderr: bool = True,
    ) -> SandboxProcess:
        """Start a program that stays, to be written to and read from.

        Args:
            argv: The program and its arguments. It starts in /work.
            timeout: Seconds of its whole life; None is no limit.
            memory: Bytes of all its processes together.
            cpu: Seconds of CPU time of all its processes together.
            environment: Variables beside PATH, HOME, LANG, TMPDIR and USER.
            merge_stderr: Whether standard error is read as part of standard output; else it is
                dropped.

        Raises:
            SandboxError: The sandbox failed.
            InvalidInput: An argument is not valid.
        """
        request = self._make_request(argv, environment, timeout=timeout, memory=memory, cpu=cpu)
        if timeout is None:
            request["timeout"] = None
        self._require_open()
        stdin, write = os.pipe()
        read, stdout = os.pipe()
        theirs = [stdin, stdout]
        if not merge_stderr:
            theirs.append(os.open(os.devnull, os.O_WRONLY))
        try:
            os.set_blocking(write, False)
            os.set_blocking(read, False)
            channel = self._supervisor.connect(*theirs)
        except BaseException:
            os.close(write)
            os.close(read)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        process = SandboxProcess(self, channel, write, read, timeout)
        self._processes.add(process)
        try:
            await channel.send(request)
        except BaseException:
            process._close()
            raise
        return process

    def _make_request(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str] | None,
        **given: Any,
    ) -> dict[str, Any]:
        if isinstance(argv, str) or not argv:
            raise InvalidInput(f"argv is a list of a program and its arguments, not {argv!r}")
        for name in environment or {}:
            if not isinstance(name, str) or not name or "=" in name:
                raise InvalidInput(f"no name of a variable: {name!r:.80}")
        words = [*argv, *(environment or {}), *(environment or {}).values()]
        for word in words:
            try:
                size = len(os.fsencode(word))
            except (TypeError, UnicodeEncodeError):
                size = None
            if size is None or not isinstance(word, str) or "\0" in word:
                raise InvalidInput(f"no argument or variable of a program: {word!r:.80}")
            if size >= 128 * 1024:
                raise InvalidInput(
                    "an argument of a program has 128 KiB or more, which the kernel does not take; "
                    "write it to a file"
                )
        settings = {**asdict(self.limits), **{k: v for k, v in given.items() if v is not None}}
        limits = SandboxLimits(**settings)
        return {
            "operation": "run",
            "argv": [*argv],
            "environment": {**default_environment(), **(environment or {})},
            "timeout": limits.timeout,
            "memory": limits.memory,
            "cpu": limits.cpu,
            "output_limit": limits.output,
            "processes": limits.processes,
            "descriptors": limits.descriptors,
        }

    async def stalled_since(self, start: float) -> float:
        """Return for how many seconds its programs could not run since a time.monotonic().

        Raises:
            SandboxError: The sandbox failed, or stands still.
        """
        self._require_open()
        try:
            with anyio.fail_after(MAX_STALLED):
                reply, _ = await self._supervisor.ask({"operation": "stalls", "since": start})
        except TimeoutError:
            raise SandboxError(f"the sandbox has stood still for {MAX_STALLED:g} s") from None
        return float(reply["seconds"])

    async def read(self, path: str, limit: int = READ_LIMIT) -> bytes:
        """Read a file below /work or /tmp; no link leads anywhere else.

        Raises:
            FileNotFoundError: There is no such file.
            InvalidInput: It is no file, too long, or outside.
            SandboxError: The sandbox failed.
        """
        request = {"operation": "read", "path": os.fspath(path), "limit": limit}
        return (await self._ask(request))[1]

    async def write(self, path: str, data: bytes | str, *, mode: int = 0o644) -> None:
        """Write a file below /work or /tmp, and the folders above it.

        Raises:
            InvalidInput: The path is outside, or no file.
            SandboxError: The sandbox failed, or its disk is full.
        """
        # Half a character, which models do write, is for the program to fail on.
        content = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
        request = {"operation": "write", "path": os.fspath(path), "mode": mode}
        await self._ask(request, content)

    async def tree(
        self, *, max_files: int = TREE_FILES, max_bytes: int = TREE_BYTES
    ) -> SandboxTree:
        """Take a snapshot of /work.

        Raises:
            InvalidInput: There are more files, or bytes, than allowed.
            SandboxError: The sandbox failed.
        """
        request = {"operation": "tree", "max_files": max_files, "max_bytes": max_bytes}
        reply, blob = await self._ask(request)
        contents, position = {}, 0
        for name, size in reply["contents"].items():
            contents[name] = blob[position : position + size]
            position += size
        return SandboxTree(tuple(TreeEntry(*entry) for entry in reply["entries"]), contents)

    async def restore(self, tree: SandboxTree) -> None:
        """Make /work what it was when a snapshot was taken."""
        request = {
            "operation": "restore",
            "entries": [[e.path, e.kind, e.mode, e.value] for e in tree.entries],
            "contents": {name: len(content) for name, content in tree.contents.items()},
        }
        await self._ask(request, b"".join(tree.contents.values()))

    async def _ask(
        self, request: dict[str, Any], blob: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        self._require_open()
        return self._check(request, *await self._supervisor.ask(request, blob))

    @staticmethod
    def _check(
        request: dict[str, Any], reply: dict[str, Any], blob: bytes
    ) -> tuple[dict[str, Any], bytes]:
        _raise_error(reply, request)
        return reply, blob

    def _require_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox was closed")

    async def close(self) -> None:
        """End everything in it; nothing is left of it."""
        self._release()
        await self._supervisor.close()

    def _release(self) -> None:
        self._closed = True
        for process in [*self._processes]:
            process._close()

    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _raise_error(reply: dict[str, Any], request: dict[str, Any]) -> None:
    message = reply.get("error")
    if message is None:
        return
    kind, path = reply["kind"], request.get("path", "/work")
    if kind == "missing":
        raise FileNotFoundError(f"there is no {path} in the sandbox")
    if kind == "path":
        raise InvalidInput(f"in the sandbox, {path}: {message}")
    if kind == "full":
        raise SandboxError(f"the sandbox's disk is full: {path} could not be written")
    if kind == "start":
        raise SandboxError(f"{request['argv'][0]} could not be started in the sandbox: {message}")
    raise SandboxError(f"the sandbox failed: {message}")


def require_short_stall(stalled: float, seconds: float) -> None:
    """Raise if a machine stood still so long that nothing can be said of what ran on it."""
    if stalled > MAX_STALLED:
        raise SandboxError(
            f"the machine stood still for {stalled:.0f} s while a program ran that had "
            f"{seconds:g} s: the program may not be to blame"
        )


def _make_outcome(reply: dict[str, Any], blob: bytes) -> ProgramOutcome:
    split = reply["stdout"]
    return ProgramOutcome(
        exit=reply["exit"],
        stdout=blob[:split],
        stderr=blob[split:],
        reason=reply["reason"],
        seconds=reply["seconds"],
        peak_memory=reply["peak_memory"],
        stalled=reply["stalled"],
    )


class SandboxProcess:
    """A program that stays: it is written to and read from until it ends or is killed."""

    def __init__(
        self,
        sandbox: Sandbox,
        channel: RequestChannel,
        stdin: int,
        stdout: int,
        timeout: float | None,
    ) -> None:
        self._sandbox, self._channel, self._timeout = sandbox, channel, timeout
        self._stdin, self._stdout = stdin, stdout
        self._buffer = bytearray()
        self._outcome: ProgramOutcome | None = None
        self._closed = False

    async def write(self, data: bytes) -> None:
        """Write to its standard input, as fast as it reads.

        Raises:
            BrokenPipeError: It has ended, or closed its standard input.
        """
        if self._stdin < 0:
            raise BrokenPipeError("the program's standard input is closed")
        await write_pipe(self._stdin, data)

    def close_stdin(self) -> None:
        """End its standard input."""
        if self._stdin >= 0:
            close_pipe(self._stdin)
            self._stdin = -1

    async def read(self, size: int = 1 << 16, *, timeout: float | None = None) -> bytes:
        """Read what it has written, up to `size` bytes; nothing once it has ended.

        Raises:
            TimeoutError: It wrote nothing in `timeout` seconds.
        """
        if not self._buffer:
            await self._fill(timeout)
        data = bytes(self._buffer[:size])
        del self._buffer[: len(data)]
        return data

    async def readline(self, limit: int = LINE_LIMIT, *, timeout: float | None = None) -> bytes:
        """Read a line, with its newline; without one, it ended or the line is longer than `limit`.

        Raises:
            TimeoutError: There was no line in `timeout` seconds; what came is kept.
        """
        with anyio.fail_after(timeout):
            while (end := self._buffer.find(b"\n", 0, limit) + 1) == 0:
                if len(self._buffer) >= limit or not await self._fill(None):
                    end = min(len(self._buffer), limit)
                    break
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        return line

    async def _fill(self, timeout: float | None) -> bool:
        if self._stdout < 0:
            return False
        with anyio.fail_after(timeout):
            data = await read_pipe(self._stdout, 1 << 16)
        self._buffer += data
        return bool(data)

    async def wait(self) -> ProgramOutcome:
        """Wait until it has ended, with all it has started; its output is not part of the outcome.

        Raises:
            SandboxError: The sandbox failed: the program could not be started; or its time was up,
                but not even a trivial program ran in time.
        """
        if self._outcome is None:
            if self._closed:
                raise SandboxError("the sandbox was closed")
            reply, blob = await self._channel.receive()
            _raise_error(reply, {"argv": ["the program"]})
            outcome = _make_outcome(reply, blob)
            if outcome.reason == "timeout" and self._timeout is not None:
                await self._sandbox._require_time(outcome, self._timeout)
            self._outcome = outcome
        return self._outcome

    async def kill(self) -> ProgramOutcome:
        """Kill it, with all it has started."""
        if self._outcome is None and not self._closed:
            with suppress(SandboxError):  # it is gone
                await self._channel.send({"operation": "kill"})
        return await self.wait()

    def _close(self) -> None:
        """Drop it; the supervisor kills what still runs."""
        self._closed = True
        self._sandbox._processes.discard(self)
        self.close_stdin()
        if self._stdout >= 0:
            close_pipe(self._stdout)
            self._stdout = -1
        self._channel.close()


@dataclass(frozen=True)
class SandboxSettings:
    """How a sandbox is opened."""

    backend: str | None
    network: bool
    limits: SandboxLimits
    readable: tuple[tuple[str, str], ...]
    """Paths of the host, with their paths in the sandbox."""

    def make_supervisor_settings(self, backend: str) -> dict[str, Any]:
        """Return what a supervisor has to know."""
        if backend == "unsafe":
            return make_unsafe_settings(self.limits)
        return make_settings(self.limits, network=self.network, readable=self.readable)


class OpeningSandbox:
    """A sandbox that is not open yet: `await` it, or `async with` it, which closes it, too."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._sandbox: Sandbox | None = None

    async def _open(self) -> Sandbox:
        settings = self._settings
        backend = await run_sync(choose_backend, settings.backend)
        if is_container(backend):
            from heldout.sandbox.containers import ContainerSandbox

            return await ContainerSandbox.open(settings, backend)
        supervisor = await RunningSupervisor.start(settings.make_supervisor_settings(backend))
        return Sandbox(supervisor, backend, settings.limits)

    def __await__(self) -> Generator[Any, None, Sandbox]:
        return self._open().__await__()

    async def __aenter__(self) -> Sandbox:
        self._sandbox = await self._open()
        return self._sandbox

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()


def is_container(backend: str) -> bool:
    """Return whether a backend is an engine of containers, maybe with an image."""
    return backend.partition(":")[0] in ("docker", "podman")


def choose_backend(name: str | None = None) -> str:
    """Return the backend of this name; or the one that is there, which is never the unsafe one.

    Raises:
        SandboxError: There is none.
        InvalidInput: There is none of that name.
    """
    if name is not None:
        if name not in BACKENDS and not is_container(name):
            raise InvalidInput(f"no sandbox backend {name!r}: there are {', '.join(BACKENDS)}")
        return name
    if find_bubblewrap() is not None:
        return "bubblewrap"
    from heldout.sandbox.containers import describe_missing_engine

    for engine in ("docker", "podman"):
        if describe_missing_engine(engine) is None:
            return engine
    raise SandboxError("there is nothing to run programs in safely", hint=INSTALL)


def open_sandbox(
    backend: str | None = None,
    *,
    network: bool = False,
    limits: SandboxLimits | None = None,
    readable: Readable = (),
) -> OpeningSandbox:
    """Open a sandbox, with `await` or with `async with`, which closes it, too.

    Args:
        backend: bubblewrap, docker, podman or docker:IMAGE; by default the one that is there.
        network: Whether programs may use the network of the host.
        limits: What they may use.
        readable: Files and folders of the host that they may read, at the same paths; or by the
            paths that they have in the sandbox: {"/packages": "venv/lib/python3.12/site-packages"}.

    Raises:
        SandboxError: There is no backend, or it does not work here.
    """
    settings = SandboxSettings(
        backend, network, limits or SandboxLimits(), check_readable(readable)
    )
    return OpeningSandbox(settings)
