"""Processes to be killed: forks of this one, which has imported what they need.

This process itself never runs an eval, opens a database or starts a thread, so that a fork of it is
a clean beginning; what looks at results is a fork, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

WARM = (
    *("aiohttp", "anyio._backends._asyncio", "duckdb", "gymnasium", "numpy", "rich.table"),
    "torch._dynamo",  # which optimizers import
    *("heldout.cli.agent", "heldout.cli.compare", "heldout.cli.list", "heldout.cli.rescore"),
    *("heldout.cli.run", "heldout.cli.show", "heldout.cli.sql", "heldout.cli.view"),
    *(
        "heldout._evals.engine",
        "heldout.models.http",
        "heldout.models.cache",
        "heldout._evals.rescoring",
    ),
    *("heldout.store.sql", "heldout.training", "heldout.viewer.export", "heldout.viewer.server"),
)
"""What this process imports so that its children need not."""
GRACE_SECONDS = 10.0
"""How long processes that a killed one had started may take to notice."""
LOOK_SECONDS = 0.005
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended."""

    code: int | None
    """Its exit code, negative for a signal; None if it was still there at the deadline."""
    out: str
    err: str
    seconds: float
    peak_mb: float

    @property
    def hung(self) -> bool:
        return self.code is None

    def explain(self) -> str:
        return (
            f"exit code {self.code} after {self.seconds:.1f} s\n{self.out[-500:]}{self.err[-3000:]}"
        )


@cache
def _warm_up() -> None:
    for name in WARM:
        import_module(name)


class Child:
    """A fork that calls a function in a folder and ends with what it returns.

    Args:
        call: What it does; its exit code, or None for 0.
        folder: Its working directory. Its output goes into files there.
        environment: Variables that it has besides those of this process.
    """

    def __init__(
        self,
        call: Callable[[], int | None],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        _warm_up()
        if threading.active_count() > 1:
            raise RuntimeError("a process with threads cannot be forked safely")
        self._folder = folder.resolve()
        number = len(list(folder.glob(".out-*")))
        self._out, self._err = folder / f".out-{number}", folder / f".err-{number}"
        sys.stdout.flush()
        sys.stderr.flush()
        self._started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            self._become(call, folder, environment or {})

    def _become(
        self, call: Callable[[], int | None], folder: Path, environment: Mapping[str, str]
    ) -> None:
        code = 70
        try:
            os.setsid()
            if sys.platform == "linux":  # it ends with this process, however that ends
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for path, fd in ((self._out, 1), (self._err, 2)):
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(file, fd)
                os.close(file)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.chdir(folder)
            os.environ.update(environment)
            sys.path.insert(0, str(folder))
            code = call() or 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 71
        except BaseException:  # noqa: BLE001 - whatever it is belongs into the child's stderr
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    @property
    def lines_out(self) -> list[str]:
        """What it has printed so far."""
        return self._out.read_text(errors="replace").splitlines() if self._out.exists() else []

    def kill(self) -> None:
        """Send SIGKILL to this process alone, not to those that it started."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> Ended:
        """Wait for its end; at the deadline it is killed."""
        deadline = time.monotonic() + seconds
        status: int | None = None
        usage: Any = None
        while status is None:
            pid, found, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                status = os.waitstatus_to_exitcode(found)
            elif time.monotonic() > deadline:
                break
            else:
                time.sleep(LOOK_SECONDS)
        elapsed = time.monotonic() - self._started
        if status is None:
            self._kill_all()
            usage = os.wait4(self.pid, 0)[2]
        texts = [
            path.read_text(errors="replace") if path.exists() else ""
            for path in (self._out, self._err)
        ]
        return Ended(status, texts[0], texts[1], elapsed, usage.ru_maxrss * 1024 / 1e6)

    def _kill_all(self) -> None:
        """Kill its session, which it may have filled with processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def leftovers(self, but: frozenset[int] = frozenset()) -> list[int]:
        """Processes in its folder that outlive it by more than the grace; they are killed.

        Args:
            but: Processes that may be there.
        """
        deadline = time.monotonic() + GRACE_SECONDS
        while left := [pid for pid in _pids_in(self._folder) if pid not in but]:
            if time.monotonic() > deadline:
                for pid in left:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                break
            time.sleep(LOOK_SECONDS)
        return left


def _pids_in(folder: Path) -> list[int]:
    """Processes whose working directory this is, sessions of their own included; on Linux."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found


def run_child(
    call: Callable[[], int | None],
    folder: Path,
    *,
    seconds: float,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a function in a fork to its end."""
    return Child(call, folder, environment=environment).wait(seconds)


def ask_child(call: Callable[[], Any], folder: Path, *, seconds: float) -> Any:
    """What a function returns, as JSON, when it is called in a fork.

    Raises:
        RuntimeError: If it returns nothing.
    """
    place = folder / ".answer.json"
    place.unlink(missing_ok=True)

    def write() -> None:
        place.write_text(json.dumps(call()))

    ended = run_child(write, folder, seconds=seconds)
    if ended.code != 0:
        raise RuntimeError(ended.explain())
    return json.loads(place.read_text())
