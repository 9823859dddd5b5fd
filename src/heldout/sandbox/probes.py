"""What sandboxes there are on this machine, and whether they hold: `heldout check sandbox`."""

from __future__ import annotations

import os
import secrets
import socket
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from anyio.to_thread import run_sync

from heldout.errors import HeldoutError, InvalidInput, SandboxError
from heldout.sandbox.bubblewrap import find_bubblewrap
from heldout.sandbox.containers import describe_missing_engine
from heldout.sandbox.sandbox import Sandbox, choose_backend, open_sandbox
from heldout.sandbox.values import MIB, ProgramOutcome, SandboxLimits

LIMITS = SandboxLimits(timeout=30, memory=128 * MIB, disk=8 * MIB, processes=16, output=10_000)
STARTS = 10
"""Programs that are started to see how long that takes."""


@dataclass(frozen=True)
class BackendStatus:
    """Whether a backend can be used here."""

    name: str
    problem: str | None
    """Why not; None if it can."""


@dataclass(frozen=True)
class SandboxProbe:
    """Something that a sandbox must do or prevent, and whether it does."""

    name: str
    ok: bool
    detail: str


async def find_backends() -> list[BackendStatus]:
    """Return all backends that isolate, and whether they are here."""
    missing = None if find_bubblewrap() else "bubblewrap is not installed"
    if missing is None:
        try:
            async with open_sandbox("bubblewrap") as sandbox:
                await sandbox.run(["true"])
        except SandboxError as problem:
            missing = str(problem)
    engines = [
        BackendStatus(engine, await run_sync(describe_missing_engine, engine))
        for engine in ("docker", "podman")
    ]
    return [BackendStatus("bubblewrap", missing), *engines]


async def probe_sandbox(backend: str) -> list[SandboxProbe]:
    """Run programs that try to get out of a sandbox, or to use more than they may.

    Raises:
        SandboxError: No sandbox could be opened.
        InvalidInput: The backend is none that isolates.
    """
    if choose_backend(backend) == "unsafe":
        raise InvalidInput("the backend 'unsafe' isolates nothing: there is nothing to probe")
    async with open_sandbox(backend, limits=LIMITS) as sandbox:
        return [await _run_probe(sandbox, name, probe) for name, probe in _PROBES.items()]


async def _run_probe(
    sandbox: Sandbox, name: str, probe: Callable[[Sandbox], Awaitable[str | None]]
) -> SandboxProbe:
    """Run a probe, which returns what it found wrong, or a text that begins with "ok"."""
    try:
        found = await probe(sandbox) or "ok"
    except HeldoutError as problem:
        found = str(problem)
    ok, _, detail = found.partition(": ") if found.startswith("ok") else ("", "", found)
    return SandboxProbe(name, ok == "ok", detail)


async def _python(sandbox: Sandbox, code: str, **limits: float) -> ProgramOutcome:
    return await sandbox.run([sandbox.python, "-I", "-c", code], **limits)  # type: ignore[arg-type]


async def _probe_start(sandbox: Sandbox) -> str | None:
    times = [(await sandbox.run(["true"])).seconds for _ in range(STARTS)]
    outcome = await _python(sandbox, "import sys; print(sys.version.split()[0])")
    if outcome.exit != 0:
        return f"Python does not run: {outcome.stderr.decode(errors='replace')[-200:]}"
    version = outcome.stdout.decode().strip()
    return f"ok: {statistics.median(times) * 1000:.0f} ms for `true`; Python {version}"


async def _probe_files(sandbox: Sandbox) -> str | None:
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_text("a secret of the host")
        paths = [str(secret), "/etc/shadow", "/etc/ssh", "/var", "/run", "/boot", "/sys/kernel"]
        paths += [str(path) for path in Path.home().glob(".*") if path.name in (".ssh", ".cache")]
        code = f"import os; print([p for p in {paths!r} if os.path.exists(p)])"
        outcome = await _python(sandbox, code)
    found = outcome.stdout.decode().strip()
    return None if found == "[]" else f"programs see {found}"


async def _probe_environment(sandbox: Sandbox) -> str | None:
    name, value = "HELDOUT_PROBE_KEY", secrets.token_hex(8)
    os.environ[name] = value
    try:
        outcome = await sandbox.run(["sh", "-c", "env; cat /proc/*/environ 2>/dev/null"])
    finally:
        del os.environ[name]
    return "programs see variables of the host" if value.encode() in outcome.stdout else None


async def _probe_network(sandbox: Sandbox) -> str | None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=3)"
        outcome = await _python(sandbox, code)
    return "programs reach servers of the host" if outcome.exit == 0 else None


async def _probe_writing(sandbox: Sandbox) -> str | None:
    script = "for f in / /usr /etc /dev /bin /lib; do touch $f/x 2>/dev/null && echo $f; done; :"
    written = (await sandbox.run(["sh", "-c", script])).stdout.decode().split()
    return f"programs can write to {', '.join(written)}" if written else None


async def _probe_privileges(sandbox: Sandbox) -> str | None:
    outcome = await sandbox.run(["cat", "/proc/self/status"])
    lines = dict(line.split(":\t", 1) for line in outcome.stdout.decode().splitlines())
    if int(lines["CapEff"], 16) or int(lines["CapPrm"], 16) or lines["Uid"].split()[0] == "0":
        return "programs have privileges"
    if lines.get("NoNewPrivs") != "1":
        return "programs can gain privileges"
    return None if lines.get("Seccomp") == "2" else "no system call is refused: no seccomp filter"


async def _probe_time(sandbox: Sandbox) -> str | None:
    outcome = await sandbox.run(["sleep", "60"], timeout=0.2)
    return None if outcome.reason == "timeout" else f"`sleep` was not stopped: {outcome}"


async def _probe_memory(sandbox: Sandbox) -> str | None:
    code = "a = []\nfor _ in range(512): a.append(bytearray(1 << 20))"
    outcome = await _python(sandbox, code)
    return "a program had 512 MiB where 128 are allowed" if outcome.exit == 0 else None


async def _probe_processes(sandbox: Sandbox) -> str | None:
    code = "import os, time\nfor n in range(40):\n  if not os.fork(): time.sleep(5)"
    outcome = await _python(sandbox, code)
    return "a program had 40 processes where 16 are allowed" if outcome.exit == 0 else None


async def _probe_disk(sandbox: Sandbox) -> str | None:
    outcome = await _python(sandbox, "open('/tmp/x', 'wb').write(bytes(32 << 20))")
    await sandbox.run(["rm", "-f", "/tmp/x"])
    return "a program wrote 32 MiB where 8 are allowed" if outcome.exit == 0 else None


async def _probe_output(sandbox: Sandbox) -> str | None:
    outcome = await _python(sandbox, "print('x' * 1_000_000)")
    return None if outcome.reason == "output" else "the output is not limited"


async def _probe_leftovers(sandbox: Sandbox) -> str | None:
    await sandbox.run(["sh", "-c", "sleep 1000 >/dev/null 2>&1 & :"])
    outcome = await sandbox.run(["sh", "-c", "grep -sl sleep /proc/[0-9]*/comm | wc -l"])
    left = int(outcome.stdout)
    return f"{left} of its processes stayed after a program" if left else None


_PROBES: dict[str, Callable[[Sandbox], Awaitable[str | None]]] = {
    "programs start": _probe_start,
    "no files of the host": _probe_files,
    "no variables of the host": _probe_environment,
    "no network": _probe_network,
    "system is read-only": _probe_writing,
    "no privileges": _probe_privileges,
    "time is limited": _probe_time,
    "memory is limited": _probe_memory,
    "processes are limited": _probe_processes,
    "disk is limited": _probe_disk,
    "output is limited": _probe_output,
    "nothing is left running": _probe_leftovers,
}
