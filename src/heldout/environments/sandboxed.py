"""An interpreter that stays, in a sandbox of its own: what `shell.py` and `python.py` share.

The sandbox is opened with the first command and closed with the environment, on every way out. What
the model does wrong is answered; a sandbox that fails is the item's error. What is scored is the
tree of files in /work, read after everything that ran has been killed, or what a check script says
of it in a fresh sandbox that the model never was in.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from typing import Any, Literal

import msgspec

from heldout._core.current_attempt import waiting_for_others
from heldout._core.format import cut
from heldout._reasoning import fenced, without_reasoning
from heldout.environment import Reply, make_snapshot, read_snapshot
from heldout.environments.links import FORBIDDEN, LinkResolver
from heldout.environments.tools import Tool, ToolEnvironment
from heldout.errors import UNREADABLE, EnvironmentFailed, InvalidInput, SandboxError
from heldout.sandbox import (
    Sandbox,
    SandboxLimits,
    SandboxPool,
    SandboxProcess,
    SandboxTree,
    TreeEntry,
)
from heldout.sandbox.sandbox import OpeningSandbox, SandboxSettings, choose_backend
from heldout.sandbox.time_limit import TimeUp, call_in_time
from heldout.types import Message

MIB = 1 << 20
LIMITS = SandboxLimits(timeout=60.0, disk=64 * MIB)
"""What a sandbox of an environment may use; so much fits into a snapshot."""
MARGIN = 30.0
"""Seconds that a session has beyond a command's time limit, to interrupt it and start again."""
MAX_LINE = 64 * MIB
TEXT_BYTES, ALL_TEXT_BYTES = 64 << 10, MIB
"""The largest file whose text is part of the outcome, and all of them together."""
SHOWN = 2000
"""Characters of a check script's output that are kept."""


class SessionReply(msgspec.Struct, frozen=True):
    """What came of a command."""

    output: str
    left_out: int
    """Bytes left out of the middle of the output."""
    reason: Literal["timeout"] | None
    """Why it was interrupted."""
    status: int | None
    """Its exit status; None where there is none."""
    folder: str | None
    """The current folder behind it."""
    restarted: bool
    """Whether the interpreter ended with it, and was started again."""


@cache
def _check_pool(settings: SandboxSettings) -> SandboxPool:
    """Return the sandboxes in which check scripts of such environments run."""
    # The files of a model whose disk is full, and those of the check, have room in it.
    limits = settings.limits
    roomy = replace(limits, disk=2 * limits.disk + 64 * MIB, files=2 * limits.files)
    return SandboxPool(
        backend=settings.backend,
        network=settings.network,
        limits=roomy,
        readable={target: source for source, target in settings.readable},
    )


class _Variables(msgspec.Struct):
    variables: str


class SandboxSession:
    """An interpreter in a sandbox, as the environment sees it."""

    def __init__(self, sandbox: Sandbox, kind: str, packages: str) -> None:
        self._sandbox, self._kind, self._packages = sandbox, kind, packages
        self._process: SandboxProcess | None = None
        self._has_started = False

    async def run(self, text: str, seconds: float, limit: int) -> SessionReply:
        """Run code in it; where its process is lost, there is another one afterwards."""
        request = {"run": text, "seconds": seconds, "limit": limit}
        try:
            reply: SessionReply = await self._ask(request, SessionReply, seconds + MARGIN)
        except _SessionLost as lost:
            return SessionReply(str(lost), 0, None, None, None, restarted=True)
        return reply

    async def variables(self) -> str:
        """Return what defines the variables and functions of a shell."""
        try:
            reply: _Variables = await self._ask({"variables": True}, _Variables, 2 * MARGIN)
        except _SessionLost:
            return ""
        return reply.variables

    async def end(self) -> None:
        """Kill it, with all that it has started."""
        if self._process is not None:
            process, self._process = self._process, None
            await process.kill()

    async def _ask(self, request: dict[str, Any], kind: type[Any], seconds: float) -> Any:
        if self._process is None:
            try:
                self._process = await self._start()
            except SandboxError as failed:
                if not self._has_started:
                    raise
                # It could be started before the model was here, and other programs still can.
                await self._sandbox.run(["true"])
                raise _SessionLost(str(failed)) from None
            self._has_started = True
        problem = "it stopped answering"
        try:
            line = await call_in_time(
                partial(self._exchange, self._process, request), seconds, [self._sandbox]
            )
            if line.endswith(b"\n"):
                return msgspec.json.decode(line, type=kind)
            outcome = await self._process.kill()
            if outcome.reason not in (None, "killed"):
                problem = f"everything in it was stopped for its {outcome.reason}"
        except (TimeUp, BrokenPipeError, *UNREADABLE):
            pass  # what runs in the sandbox has stopped, ended or faked the session
        await self.end()
        raise _SessionLost(problem)

    @staticmethod
    async def _exchange(process: SandboxProcess, request: dict[str, Any]) -> bytes:
        await process.write(json.dumps(request).encode() + b"\n")
        return await process.readline(MAX_LINE)

    async def _start(self) -> SandboxProcess:
        sandbox = self._sandbox
        argv = [sandbox.python, "-s", "-B", "-c", _session_code(), self._kind]
        environment = {"PYTHONPATH": self._packages} if self._packages else {}
        process = await sandbox.start(argv, environment=environment, merge_stderr=False)
        try:
            ready = await process.readline(timeout=2 * MARGIN)
        except TimeoutError:
            raise SandboxError(
                f"the {self._kind} had not started in the sandbox after {2 * MARGIN:g} s"
            ) from None
        if not ready:
            outcome = await process.wait()
            raise SandboxError(
                f"the {self._kind} did not start in the sandbox (exit code {outcome.exit}, "
                f"{outcome.reason or 'not stopped'})"
            )
        return process


class _SessionLost(Exception):
    """The process of a session is gone."""


@cache
def _session_code() -> str:
    code = (resources.files(__package__ or "") / "session_side.py").read_text(encoding="utf-8")
    # Nothing that a model has written into /work is imported here.
    start = "import sys\nsys.path[:] = [path for path in sys.path if path]\n"
    return f"{start}exec(compile({code!r}, 'session_side.py', 'exec'))\n"


class SandboxEnvironment(ToolEnvironment):
    """Tools that run in an interpreter in a sandbox. `ShellEnvironment` and `PythonEnvironment`."""

    env_kind = "sandbox"
    version = "1.0"
    session_kind = "shell"
    languages: tuple[str, ...] = ()
    """Of the blocks that are run, where blocks are."""
    lost = "variables"
    """What is gone once the interpreter was started again."""

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        files: Mapping[str, str | bytes] | None,
        check: str | None,
        check_files: Mapping[str, str | bytes] | None,
        timeout: float,
        output_limit: int,
        opening: Iterable[Message],
        blocks: bool,
        settings: SandboxSettings,
    ) -> None:
        super().__init__(tools, opening=opening)
        if not isinstance(timeout, int | float) or not 0 < timeout < 86_400:
            raise InvalidInput(f"timeout must be a number of seconds, got {timeout!r}")
        if not isinstance(output_limit, int) or not 100 <= output_limit <= 16 * MIB:
            raise InvalidInput(
                f"output_limit must be from 100 bytes to 16 MiB, got {output_limit!r}"
            )
        choose_backend(settings.backend)  # without one, it is said before anything runs
        self._files, self._check, self._check_files = files or {}, check, check_files or {}
        self._timeout, self._output_limit, self._blocks = float(timeout), output_limit, blocks
        self._settings = settings
        self._packages = ":".join(target for _, target in settings.readable)
        self._sandbox: Sandbox | None = None
        self._session: SandboxSession | None = None

    # --- Commands ---

    async def _open(self) -> SandboxSession:
        """Open the sandbox, with its files; once."""
        if self._session is None:
            self._sandbox = await OpeningSandbox(self._settings)
            for path, content in self._files.items():
                await self._sandbox.write(path, content)
            self._session = SandboxSession(self._sandbox, self.session_kind, self._packages)
            await self._prepare(self._session)
        return self._session

    async def _prepare(self, session: SandboxSession) -> None:
        """Run what is to run before the first command."""

    async def run(self, code: str) -> str:
        """Run code in the interpreter, and return what the model reads.

        Raises:
            EnvironmentFailed: The sandbox failed.
        """
        try:
            session = await self._open()
            reply = await session.run(code, self._timeout, self._output_limit)
        except SandboxError as problem:
            raise EnvironmentFailed(str(problem)) from problem
        self._note(code, reply)
        return self._describe(reply)

    def _note(self, code: str, reply: SessionReply) -> None:
        """Take note of what was run."""

    def _describe(self, reply: SessionReply) -> str:
        remarks = []
        if reply.reason == "timeout":
            remarks.append(f"interrupted: not done after {self._timeout:g} s")
        if reply.restarted:
            end = "was killed" if reply.status is None or reply.reason else "ended"
            code = "" if reply.status is None or reply.reason else f" with exit code {reply.status}"
            remarks.append(
                f"the {self.session_kind} {end}{code} and was started again: {self.lost} are "
                "gone, files are kept"
            )
        elif reply.status and reply.reason is None and self.session_kind == "shell":
            remarks.append(f"exit code {reply.status}")
        shown = reply.output
        if remarks:
            gap = "" if not shown or shown.endswith("\n") else "\n"
            return f"{shown}{gap}[{'; '.join(remarks)}]"
        return shown or "[no output]"

    async def reply_to_text(self, messages: Sequence[Message]) -> Reply:
        """Run the blocks of a turn, where it may have blocks in place of calls."""
        blocks = self._find_blocks(messages[-1].text) if self._blocks else []
        if not blocks:
            return Reply()
        shown = [await self.run(block) for block in blocks]
        return Reply((Message("user", "\n".join(shown)),))

    def _find_blocks(self, text: str) -> list[str]:
        text = without_reasoning(text)
        return [
            text[block.inner : block.inner_end]
            for block in fenced(text)
            if block.closed and block.language in self.languages
        ]

    # --- What is scored ---

    async def outcome(self) -> dict[str, Any]:
        """Return the files in /work, and what the check script says of them.

        `files` has the texts of files of at most 64 KiB, 1 MiB together, by path; `left_out` the
        sizes of the others; `links` what became of links; `check` whether the script passed, its
        exit code and output.

        Raises:
            EnvironmentFailed: The sandbox failed.
        """
        try:
            await self._open()
            assert self._sandbox is not None
            assert self._session is not None
            await self._session.end()
            try:
                tree = await self._tree()
            except InvalidInput as problem:  # what the model made is too large to be read
                found: dict[str, Any] = {"files": {}, "left_out": {}, "links": {}}
                found["problem"] = str(problem)
                if self._check is not None:
                    found["check"] = {"passed": False, "reason": str(problem)}
                return found
            limits = self._settings.limits
            links = LinkResolver(tree, limits.files, limits.disk)
            tree = links.resolve()
            found = {**_describe_tree(tree), "links": links.records}
            if self._check is not None:
                found["check"] = await self._run_check(tree, links)
            return found
        except SandboxError as problem:
            raise EnvironmentFailed(str(problem)) from problem

    async def _tree(self) -> SandboxTree:
        assert self._sandbox is not None
        limits = self._settings.limits
        return await self._sandbox.tree(max_files=limits.files, max_bytes=limits.disk)

    async def _run_check(self, tree: SandboxTree, links: LinkResolver) -> dict[str, Any]:
        """Run the check script on the tree, where nothing but the tree is the model's."""
        assert self._check is not None
        async with AsyncExitStack() as stack:
            with waiting_for_others():
                pool = _check_pool(self._settings)
                sandbox = await stack.enter_async_context(pool.sandbox())
            await sandbox.restore(await _without_unsafe_links(sandbox, tree, links))
            for path, content in self._check_files.items():
                await sandbox.write(f"/tmp/check/{path}", content)
            argv = ["bash", "--noprofile", "--norc", "-c", self._check]
            # At home, Python and others would start what the model has put there.
            outcome = await sandbox.run(argv, environment={"HOME": "/tmp"})
            if outcome.exit == 2 and (await sandbox.run(["bash", "-n", *argv[3:]])).exit == 2:
                raise SandboxError(
                    f"the check is no bash: {outcome.stderr.decode(errors='replace')[:500]}"
                )
        output = (outcome.stdout + outcome.stderr).decode(errors="replace")
        return {
            "passed": outcome.exit == 0 and outcome.reason is None,
            "exit": outcome.exit,
            "reason": outcome.reason,
            "output": cut(output, SHOWN),
        }

    # --- Snapshots ---

    async def snapshot(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the tree of /work, and what else can be restored.

        Raises:
            EnvironmentFailed: The sandbox failed, or the tree is too large.
        """
        try:
            session = await self._open()
            state = await self._state(session)
            tree = await self._tree()
        except (SandboxError, InvalidInput) as problem:
            raise EnvironmentFailed(f"there is no snapshot: {problem}") from problem
        return make_snapshot(self, {**state, "tree": _tree_as_json(tree)})

    async def restore(self, snapshot: dict[str, Any]) -> None:  # type: ignore[override]
        """Restore a snapshot in a new sandbox.

        Raises:
            SnapshotMismatch: It is of another kind, or of another major version.
            EnvironmentFailed: The sandbox failed, or it is no snapshot.
        """
        state = read_snapshot(self, snapshot)
        try:
            tree = _tree_from_json(state["tree"])
            self._sandbox = await OpeningSandbox(self._settings)
            self._session = SandboxSession(self._sandbox, self.session_kind, self._packages)
            await self._restore_state(self._session, state, tree)
        except (SandboxError, InvalidInput, KeyError, TypeError, ValueError) as problem:
            raise EnvironmentFailed(f"the snapshot could not be restored: {problem}") from problem

    async def _state(self, session: SandboxSession) -> dict[str, Any]:
        raise NotImplementedError

    async def _restore_state(
        self, session: SandboxSession, state: dict[str, Any], tree: SandboxTree
    ) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """End everything in the sandbox; nothing is left of it."""
        await super().close()
        if self._sandbox is not None:
            await self._sandbox.close()


_FIND_REAL_PATHS = """
import json, os, sys
paths = json.load(sys.stdin)
print(json.dumps([os.path.realpath(path) if os.path.exists(path) else "" for path in paths]))
"""


async def _without_unsafe_links(
    sandbox: Sandbox, tree: SandboxTree, links: LinkResolver
) -> SandboxTree:
    """Leave out links to the system that do not end there: it has links of its own."""
    given = [entry for entry in tree.entries if entry.kind == "link"]
    if not given:
        return tree
    outcome = await sandbox.run(
        [sandbox.python, "-I", "-c", _FIND_REAL_PATHS],
        stdin=json.dumps([entry.value for entry in given]).encode(),
        output_limit=MAX_LINE,
    )
    if outcome.exit != 0:
        raise SandboxError(f"links could not be followed: {outcome.stderr.decode()[-500:]}")
    unsafe = set()
    for entry, real in zip(given, json.loads(outcome.stdout), strict=True):
        if not real or real.split("/")[1] in (*FORBIDDEN, "work", ""):
            unsafe.add(entry.path)
            why = "it leads out of the system" if real else "there is nothing where it leads"
            links.drop(entry, why)
    kept = tuple(entry for entry in tree.entries if entry.path not in unsafe)
    return replace(tree, entries=kept)


def _describe_tree(tree: SandboxTree) -> dict[str, Any]:
    files: dict[str, str] = {}
    left_out: dict[str, int] = {}
    room = ALL_TEXT_BYTES
    for entry in tree.entries:
        if entry.kind != "file":
            continue
        content = tree.contents[entry.value]
        path = entry.path.encode("utf-8", "backslashreplace").decode()
        text = None
        if len(content) <= min(TEXT_BYTES, room):
            try:
                text = content.decode()
            except UnicodeDecodeError:
                pass  # it is no text: its size is said
        if text is None:
            left_out[path] = len(content)
        else:
            files[path] = text
            room -= len(content)
    return {"files": files, "left_out": left_out}


def _tree_as_json(tree: SandboxTree) -> dict[str, Any]:
    return {
        "entries": [[e.path, e.kind, e.mode, e.value] for e in tree.entries],
        "contents": {
            name: base64.b64encode(content).decode() for name, content in tree.contents.items()
        },
    }


def _tree_from_json(state: dict[str, Any]) -> SandboxTree:
    try:
        entries = tuple(TreeEntry(*entry) for entry in state["entries"])
        contents = {
            name: base64.b64decode(text, validate=True) for name, text in state["contents"].items()
        }
    except binascii.Error as problem:
        raise ValueError(f"no tree of files: {problem}") from None
    return SandboxTree(entries, contents)
