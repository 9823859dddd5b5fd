"""A real shell in a sandbox, as the tool of a policy.

environment_factory = lambda sample: ShellEnvironment(
    files=sample.metadata["files"], check="test -s report.txt"
)
score_fn = lambda trajectory, sample: trajectory.outcome["check"]["passed"]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from heldout.environments.sandboxed import (
    LIMITS,
    SandboxEnvironment,
    SandboxSession,
    SessionReply,
)
from heldout.errors import EnvironmentFailed
from heldout.sandbox import SandboxLimits, SandboxTree
from heldout.sandbox.bubblewrap import check_readable
from heldout.sandbox.sandbox import Readable, SandboxSettings
from heldout.types import Message


class ShellEnvironment(SandboxEnvironment):
    """A bash that stays for the whole episode: current folder, variables and jobs are kept.

    The model calls `bash(command)`. A turn without a call ends the episode. A command that hangs is
    interrupted, and the shell goes on; one that cannot be interrupted, or ends the shell, has it
    started again, which the model is told. Snapshots have the files in /work, the current folder,
    and the variables and functions that commands have defined; not what runs in the background.
    """

    env_kind = "shell"
    version = "1.0"
    session_kind = "shell"
    languages = ("bash", "sh", "shell")
    lost = "variables, functions and the current folder"

    def __init__(
        self,
        *,
        files: Mapping[str, str | bytes] | None = None,
        setup: str = "",
        check: str | None = None,
        check_files: Mapping[str, str | bytes] | None = None,
        timeout: float = 30.0,
        output_limit: int = 10_000,
        opening: Iterable[Message] = (),
        blocks: bool = False,
        backend: str | None = None,
        network: bool = False,
        limits: SandboxLimits | None = None,
        readable: Readable = (),
    ) -> None:
        """Make the shell of one episode; the sandbox is opened with the first command.

        Args:
            files: What is in /work at the beginning, by path.
            setup: Commands that run before the first turn; if they fail, the item is an error.
            check: A bash script that says whether the episode succeeded, by exit code 0. It runs in
                /work of a fresh sandbox which has the final files, without anything that still ran.
            check_files: Files for the check alone, in /tmp/check of that sandbox.
            timeout: Seconds until a command is interrupted.
            output_limit: Bytes of a command's output that the model reads: its beginning and end.
            opening: Messages that follow the sample's own.
            blocks: Whether a turn without a call has its ```bash blocks run, for models without
                tool calls.
            backend: As of `open_sandbox`, like the others.
            network: Whether commands may use the host's network.
            limits: What they may use.
            readable: Files and folders of the host that they may read.

        Raises:
            InvalidInput: An argument is not valid.
            SandboxError: There is no sandbox here.
        """
        settings = SandboxSettings(backend, network, limits or LIMITS, check_readable(readable))
        self._setup = setup
        self._folder = ""
        super().__init__(
            [self.bash],
            files=files,
            check=check,
            check_files=check_files,
            timeout=timeout,
            output_limit=output_limit,
            opening=opening,
            blocks=blocks,
            settings=settings,
        )

    async def bash(self, command: str) -> str:
        """Run a command in the shell, which keeps its state, and return its output.

        Args:
            command: one or more lines of bash
        """
        return await self.run(command)

    async def _prepare(self, session: SandboxSession) -> None:
        if self._setup:
            reply = await session.run(self._setup, self._settings.limits.timeout, 2000)
            if reply.status != 0 or reply.reason or reply.restarted:
                raise EnvironmentFailed(
                    f"the shell's setup failed (exit code {reply.status}, "
                    f"{reply.reason or 'not interrupted'}): {reply.output[:500]}"
                )
            self._note(self._setup, reply)

    def _note(self, code: str, reply: SessionReply) -> None:
        self._folder = reply.folder or ""

    async def _state(self, session: SandboxSession) -> dict[str, Any]:
        return {"folder": self._folder, "variables": await session.variables()}

    async def _restore_state(
        self, session: SandboxSession, state: dict[str, Any], tree: SandboxTree
    ) -> None:
        assert self._sandbox is not None
        await self._sandbox.restore(tree)
        await self._sandbox.write("/tmp/.restored", state["variables"])
        self._folder = state["folder"]
        await self._sandbox.write("/tmp/.folder", self._folder or "/work")
        command = 'cd -- "$(cat /tmp/.folder)"; unset OLDPWD; . /tmp/.restored 2>/dev/null'
        await session.run(command, self._settings.limits.timeout, 2000)
        await session.run("rm -f /tmp/.restored /tmp/.folder", self._settings.limits.timeout, 2000)
