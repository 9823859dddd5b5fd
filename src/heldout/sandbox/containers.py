"""Sandboxes in containers of Docker or Podman: one container each, programs run by `exec`.

The client (`docker run`, `docker exec`) is run by a sandbox without isolation, which limits time
and output. Memory, processes and disk are the container's. It waits for the end of its standard
input, so it ends with its client, that with its supervisor, and that with heldout.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from heldout.errors import SandboxError
from heldout.sandbox.client import decode
from heldout.sandbox.sandbox import Sandbox, SandboxSettings, open_sandbox
from heldout.sandbox.supervisor import files
from heldout.sandbox.supervisor.files import encode
from heldout.sandbox.values import MIB, ProgramOutcome, SandboxLimits

ENGINE_SECONDS = 10.0
"""Time for an engine to say that it is there."""
CLIENT_LIMITS = SandboxLimits(timeout=120.0, memory=4096 * MIB, output=1024 * MIB)
"""For what is run here for the sandbox itself."""
PYTHON = "python3"
WAIT = ("sh", "-c", "echo ready; exec cat")
KILL = ("sh", "-c", "kill -9 -1")
"""Kills all in the container but its first process and itself."""


def split_backend(backend: str) -> tuple[str, str]:
    """Return engine and image: of `docker:IMAGE`, or of `docker` the image of this Python."""
    engine, _, image = backend.partition(":")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return engine, image or f"python:{version}-slim"


def describe_missing_engine(engine: str) -> str | None:
    """Return why an engine cannot be used; None if it can."""
    client = shutil.which(engine)
    if client is None:
        return f"{engine} is not installed"
    try:
        answer = subprocess.run([client, "version"], capture_output=True, timeout=ENGINE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"{engine} does not answer: {problem}"
    if answer.returncode == 0:
        return None
    lines = answer.stderr.decode(errors="replace").strip().splitlines() or ["it gives no reason"]
    return f"{engine} does not answer: {lines[-1]}"


def make_run_command(engine: str, name: str, image: str, settings: SandboxSettings) -> list[str]:
    """Return the command that starts the container of a sandbox."""
    limits = settings.limits
    words = [engine, "run", "--interactive", "--rm", "--init", "--pull", "never", "--name", name]
    words += ["--network", "bridge" if settings.network else "none", "--read-only"]
    words += ["--user", "1000:1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    words += ["--memory", str(limits.memory), "--memory-swap", str(limits.memory)]
    words += ["--pids-limit", str(limits.processes + 4), "--ulimit", "core=0"]
    words += ["--ulimit", f"nofile={limits.descriptors}"]
    for folder, mode in (("/work", "755"), ("/tmp", "1777")):
        options = f"rw,exec,nosuid,nodev,size={limits.disk},mode={mode},uid=1000,gid=1000"
        words += ["--tmpfs", f"{folder}:{options}"]
    for source, target in settings.readable:
        words += ["--volume", f"{source}:{target}:ro"]
    return [*words, "--workdir", "/work", image, *WAIT]


def make_exec_command(
    engine: str, name: str, argv: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """Return the command that runs a program in the container."""
    words = [engine, "exec", "--interactive", "--workdir", "/work"]
    for variable, value in environment.items():
        words += ["--env", f"{variable}={value}"]
    return [*words, name, *argv]


@cache
def _file_program() -> str:
    return f"{Path(files.__file__).read_text()}\n\nserve_once('')\n"


class ContainerSandbox(Sandbox):
    """A container; `host` runs the engine's client."""

    def __init__(self, host: Sandbox, engine: str, name: str, limits: SandboxLimits) -> None:
        super().__init__(host._supervisor, engine, limits)
        self._host, self._name = host, name
        self._found: set[str] = set()

    @classmethod
    async def open(cls, settings: SandboxSettings, backend: str) -> ContainerSandbox:
        """Start a container.

        Raises:
            SandboxError: The engine is not there, or has no such image.
        """
        engine, image = split_backend(backend)
        problem = describe_missing_engine(engine)
        if problem is not None:
            raise SandboxError(problem)
        host = await open_sandbox("unsafe", limits=CLIENT_LIMITS)
        try:
            name = f"heldout-{secrets.token_hex(8)}"
            command = make_run_command(engine, name, image, settings)
            client = await host.start(command, environment=dict(os.environ))
            line = await client.readline(timeout=CLIENT_LIMITS.timeout)
            if line.strip() != b"ready":
                text = line.decode(errors="replace").strip()
                raise SandboxError(
                    f"{engine} could not start a container: {text}",
                    hint=f"`{engine} pull {image}` downloads the image",
                )
        except BaseException:
            await host.close()
            raise
        return cls(host, engine, name, settings.limits)

    @property
    def python(self) -> str:
        """The name of a Python in the container."""
        return PYTHON

    def _make_request(
        self, argv: Sequence[str], environment: Mapping[str, str] | None, **given: Any
    ) -> dict[str, Any]:
        request = super()._make_request(argv, environment, **given)
        inside = {"HOME": "/work", "LANG": "C.UTF-8", **(environment or {})}
        request["argv"] = make_exec_command(self.backend, self._name, argv, inside)
        # The client's own; those of programs are the container's.
        request |= {"environment": dict(os.environ), "memory": CLIENT_LIMITS.memory, "cpu": None}
        return request

    async def run(self, argv: Sequence[str], **given: Any) -> ProgramOutcome:
        """Run a program to its end; see `Sandbox.run`. `memory` and `cpu` are the container's."""
        await self._require_program(argv)
        outcome = await super().run(argv, **given)
        if outcome.reason is not None:
            await self._execute(KILL)  # its client is dead, and it is not
        return outcome

    async def _require_program(self, argv: Sequence[str]) -> None:
        """Raise if there is no such program in the image: then `exec` fails like a program."""
        if argv and argv[0] not in self._found and "/work/" not in argv[0] and argv[0][0] != ".":
            found = await self._execute(("sh", "-c", 'command -v -- "$1"', "sh", argv[0]))
            if found.exit != 0:
                raise SandboxError(f"{argv[0]} could not be started in the sandbox: not found")
            self._found.add(argv[0])

    async def _execute(self, argv: Sequence[str], stdin: bytes = b"") -> ProgramOutcome:
        command = make_exec_command(self.backend, self._name, argv, {})
        return await self._host.run(command, stdin=stdin, environment=dict(os.environ))

    async def _ask(
        self, request: dict[str, Any], blob: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        if request["operation"] == "run":
            return await super()._ask(request, blob)
        argv = (PYTHON, "-I", "-S", "-c", _file_program())
        outcome = await self._execute(argv, encode(request, blob))
        if outcome.exit != 0:
            text = outcome.stderr.decode(errors="replace").strip()[-500:]
            raise SandboxError(f"files of the container could not be reached: {text}")
        return self._check(request, *decode(outcome.stdout))

    async def close(self) -> None:
        """Remove the container, with everything in it."""
        self._release()
        await self._host.close()
