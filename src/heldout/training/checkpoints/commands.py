"""Commands of the user: one that converts a checkpoint, and one that serves it.

A command is split as a shell would and run without one. It gets a process group of its own, which
is ended with it. What it prints is kept in a file, for the message when it fails.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from heldout._core.format import cut
from heldout.errors import EvalFailed, InvalidInput

END_SECONDS = 20.0
"""How long a process may take to end after SIGTERM."""
CONVERT_SECONDS = 4 * 3600.0
"""How long a converter may take: one that hangs is a skip, and the next checkpoint is taken."""
TAIL_BYTES = 2000
TAIL_LINES = 3
"""How much of what a failed command printed is shown."""
LONGEST_REPLY = 1_000_000


def split_command(command: str, option: str, *wanted: str) -> list[str]:
    """Split a command into words.

    Args:
        command: The command.
        option: What to call it in messages.
        *wanted: Placeholders that it must have, such as `{path}`.

    Raises:
        InvalidInput: It is empty, a quote is not closed, or a placeholder is missing.
    """
    try:
        words = shlex.split(command)
    except ValueError as problem:
        raise InvalidInput(f"{option} must be a command, got {command!r}: {problem}") from None
    if not words:
        raise InvalidInput(f"{option} must be a command, got {command!r}")
    for name in wanted:
        if not any(name in word for word in words):
            raise InvalidInput(f"{option} has {name} somewhere, got {command!r}")
    return words


def fill_in(words: Sequence[str], **values: object) -> list[str]:
    """Put values in place of `{name}`; other braces stay as they are."""
    filled = list(words)
    for name, value in values.items():
        filled = [word.replace(f"{{{name}}}", str(value)) for word in filled]
    return filled


def convert(words: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
    """Run a converter, and wait for it.

    Raises:
        EvalFailed: It cannot be started, fails, or does not end.
    """
    with _process(words, log, environment) as process:
        try:
            code = process.wait(CONVERT_SECONDS)
        except subprocess.TimeoutExpired:
            late = f"{_shorten(words)} did not end within {CONVERT_SECONDS:g} s"
            raise EvalFailed(f"{late}: {_tail(log)}") from None
    if code != 0:
        raise EvalFailed(f"{_shorten(words)} ended with exit code {code}: {_tail(log)}")


@contextmanager
def serve(words: Sequence[str], port: int, log: Path, timeout: float) -> Iterator[str]:
    """Start a server, wait until it answers, and end it afterwards.

    Args:
        words: Its command.
        port: The port of 127.0.0.1 that it listens at.
        log: A file for what it prints.
        timeout: Seconds until it has to answer.

    Yields:
        The model to ask, as `openai:NAME@http://127.0.0.1:PORT/v1`.

    Raises:
        EvalFailed: It cannot be started, ends by itself, or does not answer in time.
    """
    with _process(words, log) as process:
        address, deadline = f"http://127.0.0.1:{port}/v1", time.monotonic() + timeout
        while (name := _first_model(address)) is None:
            _check_alive(process, log)
            if time.monotonic() > deadline:
                raise EvalFailed(
                    f"the server gave no answer at {address}/models for {timeout:g} s: {_tail(log)}"
                )
            time.sleep(0.2)
        yield f"openai:{name}@{address}"
        # One that could not have its port has ended by now: another process's server has answered.
        _check_alive(process, log)


def _check_alive(process: subprocess.Popen[bytes], log: Path) -> None:
    if (code := process.poll()) is not None:
        raise EvalFailed(f"the server ended with exit code {code}: {_tail(log)}")


def free_port() -> int:
    """Find a port that nothing listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _process(
    words: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a group of its own, and end the whole group afterwards."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # a Ctrl-C in the terminal is not meant for it
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        except OSError as problem:
            raise EvalFailed(f"{_shorten(words)} cannot be started: {problem.strerror}") from None
    try:
        yield process
    finally:
        _signal_group(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        _signal_group(process.pid, signal.SIGKILL)  # what it has started may be left
        process.wait()


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Loaded here: not much may be done between fork and exec."""


def _die_with_parent() -> None:
    """Have the kernel end this process with its parent, so that a `kill -9` leaves no server."""
    assert _libc is not None
    _libc.prctl(1, signal.SIGTERM, 0, 0, 0)  # PR_SET_PDEATHSIG


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _first_model(address: str) -> str | None:
    """Ask a server for the name of its model; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"{address}/models", timeout=5) as reply:
            models = json.loads(reply.read(LONGEST_REPLY))["data"]
        return str(models[0]["id"])
    except (OSError, urllib.error.URLError, ValueError, KeyError, IndexError, TypeError):
        return None


def _shorten(words: Sequence[str]) -> str:
    return cut(shlex.join(words), 80)


def _tail(log: Path) -> str:
    """Return the last lines that a command has printed, and where all of them are."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    last = [line.strip() for line in lines if line.strip()][-TAIL_LINES:]
    return f"{' / '.join(last)} ({log})" if last else "it printed nothing"
