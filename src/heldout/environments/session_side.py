"""The process that keeps a shell or a Python interpreter, in a sandbox. Standard library alone.

    python -I -c CODE shell|python

It reads requests as lines of JSON and answers each with one. The interpreter is its child, with a
terminal for the keys that interrupt, a pipe for output and a pipe on which it says that it is done.
Of the output the beginning and the end are kept, so a gigabyte of it costs nothing. What runs in
the sandbox may end this process or lie to it: all it decides is what the model reads next.
"""

from __future__ import annotations

import ast
import base64
import codeop
import contextlib
import fcntl
import json
import linecache
import os
import pty
import secrets
import selectors
import shlex
import signal
import sys
import tempfile
import termios
import time
import traceback
from typing import Any, NoReturn

DONE = 9
"""The descriptor on which a child says that it is done."""
TICK, STALL = 0.1, 0.5
"""Seconds between two looks at the clock; when one is late by so much, nothing ran meanwhile."""
GRACE = 3.0
"""Seconds between Ctrl-C and SIGKILL."""
LONGEST_TYPED = 4000
"""Bytes of a line that a terminal takes."""
START = 30.0
"""Seconds for an interpreter to start."""
VARIABLES = """
for __heldout_name in $(compgen -v); do
  case " $__heldout_known " in *" $__heldout_name "*) continue;; esac
  case $__heldout_name in __heldout_*|BASH_*|_) ;; *) declare -p "$__heldout_name";; esac
done
declare -f
"""


class Output:
    """The beginning and the end of what is written."""

    def __init__(self, limit: int) -> None:
        self.half = max(limit // 2, 1)
        self.first = bytearray()
        self.last = bytearray()
        self.size = 0

    def add(self, data: bytes) -> None:
        """Take more of it."""
        self.size += len(data)
        room = self.half - len(self.first)
        self.first += data[:room] if room > 0 else b""
        self.last += data[max(room, 0) :]
        if len(self.last) > 2 * self.half:
            del self.last[: -self.half]

    def text(self) -> tuple[str, int]:
        """Return it, and the number of bytes that are left out of its middle."""
        last = self.last[-self.half :]
        left_out = self.size - len(self.first) - len(last)
        if not left_out:
            return (self.first + last).decode(errors="replace"), 0
        first_text, last_text = (part.decode(errors="replace") for part in (self.first, last))
        return f"{first_text}\n[… {left_out} bytes left out …]\n{last_text}", left_out


class Child:
    """An interpreter, from its start to its end."""

    def __init__(self, kind: str, folder: str) -> None:
        self.kind, self.folder = kind, folder
        out_read, out_write = os.pipe()
        done_read, done_write = os.pipe()
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            self._become(out_write, done_write)
        os.close(out_write)
        os.close(done_write)
        self.out, self.done = out_read, done_read
        self.ended = os.pidfd_open(self.pid)
        self.status: int | None = None
        for descriptor in (self.out, self.done):
            os.set_blocking(descriptor, False)
        settings = termios.tcgetattr(self.terminal)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(self.terminal, termios.TCSANOW, settings)

    def _become(self, out: int, done: int) -> NoReturn:
        try:
            spare = fcntl.fcntl(done, fcntl.F_DUPFD, 20)
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.dup2(spare, DONE)
            os.closerange(3, DONE)
            os.closerange(DONE + 1, 256)
            if self.kind == "shell":
                given = {"PS1": "", "PS2": "", "TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"}
                for number in (signal.SIGPIPE, signal.SIGXFSZ):
                    signal.signal(number, signal.SIG_DFL)  # Python ignores them
                words = ["bash", "--noprofile", "--norc", "--noediting", "-i"]
                os.execvpe("bash", words, {**os.environ, **given})
            interpret()
        except BaseException:  # noqa: BLE001 - this is the forked child
            traceback.print_exc()
        finally:
            os._exit(127)

    def type(self, line: str) -> None:
        """Type a line, as at a terminal."""
        os.write(self.terminal, line.encode() + b"\n")

    def command(self, path: str, nonce: str) -> str:
        """Return the line that runs a file, and says that it is done."""
        if self.kind == "python":
            return f"{path} {nonce}"
        return f". {path} </dev/null; {self.report(nonce)}"

    def direct_command(self, text: str, nonce: str) -> str:
        """Return the same where no file can be written, since the disk is full."""
        if self.kind == "python":
            return f"={base64.b64encode(text.encode()).decode()} {nonce}"
        return f"eval {shlex.quote(text)} </dev/null; {self.report(nonce)}"

    def report(self, nonce: str) -> str:
        """Return the line that has a shell say that it is done."""
        return f'printf "%s %d %s\\n" {nonce} "$?" "$PWD" >&{DONE}'

    def kill(self) -> None:
        """Kill it, with what it has started."""
        for pid in sorted(descendants(self.pid), reverse=True):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.reap()

    def reap(self) -> None:
        """Take its exit status, and close what leads to it."""
        if self.status is None:
            _, status = os.waitpid(self.pid, 0)
            self.status = os.waitstatus_to_exitcode(status)
        for descriptor in (self.out, self.done, self.terminal, self.ended):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def descendants(root: int) -> set[int]:
    """List a process, what it has started, and what is in its session."""
    parents: dict[int, int] = {}
    found = {root}
    for name in os.listdir("/proc"):  # noqa: PTH208 - numbers, not paths
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError, ValueError):
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                words = file.read().rpartition(b")")[2].split()
            parents[int(name)] = int(words[1])
            if int(words[3]) == root:
                found.add(int(name))
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


class Session:
    """An interpreter that is started again when it has ended."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        try:
            # Its name is in messages of the shell, which are the same in every sandbox.
            os.mkdir("/tmp/.session", 0o700)  # noqa: PTH102
            self.folder = "/tmp/.session"
        except OSError:
            try:
                self.folder = tempfile.mkdtemp(prefix=".session-")
            except OSError:  # the disk is full: `pass_on` does without
                self.folder = "/nowhere"
        self.child = self.start()

    def start(self) -> Child:
        """Start an interpreter, and wait until it takes commands."""
        child = self.child = Child(self.kind, self.folder)
        if self.kind == "shell":
            # What a shell has by itself is no part of its state.
            first = "unset HISTFILE; __heldout_known=$(compgen -v | tr '\\n' ' ')"
            self.run(first, START, 1000, again=False)
        return child

    def run(self, text: str, seconds: float, limit: int, *, again: bool = True) -> dict[str, Any]:
        """Run code; returns its output and what became of it.

        Args:
            text: The code.
            seconds: Its time limit.
            limit: Bytes of output that are kept.
            again: Whether to start another interpreter where this one has ended.
        """
        child, output = self.child, Output(limit)
        nonce = secrets.token_hex(8)
        text = text.encode("utf-8", "replace").decode()  # without halves of characters
        path = f"{self.folder}/command"
        try:
            with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
                file.write(text + "\n")
            child.type(child.command(path, nonce))
        except OSError as problem:
            lines = child.direct_command(text, nonce)
            if max(map(len, lines.encode().split(b"\n"))) > LONGEST_TYPED:
                shown = f"[too long to be passed on: {problem}]"
                return {
                    **{"output": shown, "left_out": 0, "reason": None, "status": 1},
                    **{"folder": None, "restarted": False},
                }
            child.type(lines)
        report = self._wait(child, output, nonce, seconds)
        reason = None
        if report is None and child.status is None:
            reason = "timeout"
            report = self._interrupt(child, output, nonce)
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108
        shown, left_out = output.text()
        reply: dict[str, Any] = {"output": shown, "left_out": left_out, "reason": reason}
        if report is not None:
            status, _, folder = report.partition(" ")
            return {**reply, "status": int(status), "folder": folder, "restarted": False}
        status_of_end = child.status
        child.kill()
        if again:
            self.start()
        return {**reply, "status": status_of_end, "folder": None, "restarted": True}

    def _interrupt(self, child: Child, output: Output, nonce: str) -> str | None:
        """Press Ctrl-C; returns what the interpreter reports, None where it does not."""
        os.write(child.terminal, b"\x03")
        if self.kind == "shell":
            # The line is gone with what it ran, its report included.
            nonce = secrets.token_hex(8)
            child.type(child.report(nonce))
        return self._wait(child, output, nonce, GRACE)

    def _wait(self, child: Child, output: Output, nonce: str, seconds: float) -> str | None:
        """Collect output until the interpreter reports, ends, or time is up."""
        until = time.monotonic() + seconds
        said = bytearray()
        sign = nonce.encode() + b" "
        with selectors.DefaultSelector() as selector:
            for descriptor in (child.out, child.done, child.ended, child.terminal):
                selector.register(descriptor, selectors.EVENT_READ)
            while (left := until - time.monotonic()) > 0:
                awake = time.monotonic()
                ready = selector.select(min(left, TICK))
                late = time.monotonic() - awake - min(left, TICK)
                if late >= STALL:  # the machine stood still, and the command with it
                    until += late
                for key, _ in ready:
                    if key.fd == child.terminal:
                        if not _read(child.terminal):  # what was echoed; nobody reads it
                            selector.unregister(child.terminal)
                    elif key.fd == child.out:
                        if data := _read(child.out):
                            output.add(data)
                        else:
                            selector.unregister(child.out)
                    elif key.fd == child.done:
                        if data := _read(child.done):
                            said += data
                        else:
                            selector.unregister(child.done)
                    else:
                        self._drain(child, output)
                        _, status = os.waitpid(child.pid, 0)
                        child.status = os.waitstatus_to_exitcode(status)
                        return None
                at = said.find(sign)
                if at >= 0 and b"\n" in said[at:]:
                    self._drain(child, output)
                    return said[at + len(sign) :].partition(b"\n")[0].decode(errors="replace")
        return None

    def _drain(self, child: Child, output: Output) -> None:
        """Take the output that is there: it was written before the report."""
        for _ in range(1000):
            data = _read(child.out)
            if not data:
                return
            output.add(data)

    def variables(self) -> str:
        """Return the variables and functions of a shell, as commands that define them."""
        if self.kind != "shell":
            return ""
        shown: str = self.run(VARIABLES, START, 1 << 20)["output"]
        return shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # there is nothing now, or a terminal without anybody at it
        return b""


# --- Python -------------------------------------------------------------------------------------


def interpret() -> NoReturn:
    """Run cells of Python until the end: the child of a session of kind `python`."""
    commands = os.fdopen(os.dup(0), encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.path.insert(0, os.getcwd())  # noqa: PTH109
    sys.argv = [""]
    scope: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    # Not `compile`, which would give cells this file's own `from __future__`. As at a prompt, they
    # have those of earlier cells.
    compile_cell: Any = codeop.Compile()
    number = 0
    while True:
        try:
            line = commands.readline()
        except KeyboardInterrupt:
            continue  # it came when nothing was running
        if not line:
            os._exit(0)
        path, nonce = line.split()
        number += 1
        if path.startswith("="):
            source = base64.b64decode(path[1:]).decode()
        else:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123
                source = file.read()
        succeeded = False
        try:
            try:
                run_cell(source, f"<cell {number}>", scope, compile_cell)
                succeeded = True
            except BaseException as problem:  # noqa: BLE001 - SystemExit, too: its traceback is the reply
                show(problem)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        except BaseException:  # noqa: BLE001 - the program has broken its streams, or Ctrl-C came late
            sys.stdout = open(1, "w", errors="replace", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", errors="replace", closefd=False)  # noqa: SIM115
        os.write(DONE, f"{nonce} {int(not succeeded)} {os.getcwd()}\n".encode())  # noqa: PTH109


def run_cell(source: str, name: str, scope: dict[str, Any], compile_cell: Any) -> None:
    """Run code, and show the value of its last expression."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile_cell(tree, name, "exec"), scope)
    if last is not None:
        exec(compile_cell(ast.Interactive([last]), name, "single"), scope)


def show(problem: BaseException) -> None:
    """Print a traceback from the cell on."""
    frames = problem.__traceback__
    while frames is not None and not frames.tb_frame.f_code.co_filename.startswith("<cell "):
        frames = frames.tb_next
    traceback.print_exception(type(problem), problem, frames)


def main() -> None:
    """Answer requests until the other side is gone."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    session = Session(sys.argv[1])
    reply: dict[str, Any] = {"ready": True}
    while True:
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()
        line = requests.readline()
        if not line:
            session.child.kill()
            return
        request = json.loads(line)
        if "run" in request:
            reply = session.run(request["run"], request["seconds"], request["limit"])
        else:
            reply = {"variables": session.variables()}


if __name__ == "__main__":
    main()
