"""A Python interpreter in a sandbox, as the tool of a policy.

environment_factory = lambda sample: PythonEnvironment(files={"data.csv": sample.input["data"]})
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


class PythonEnvironment(SandboxEnvironment):
    """An interpreter that stays for the whole episode: variables and imports are kept.

    The model calls `python(code)` and reads what the code printed, the value of its last
    expression, or its traceback. A turn without a call ends the episode. Code that hangs is
    interrupted; code that cannot be, or ends the interpreter, has it started again, which the model
    is told. A snapshot has the files in /work and the code so far: to restore one, the code runs
    again, without what was interrupted, and then the files are put in place.
    """

    env_kind = "python"
    version = "1.0"
    session_kind = "python"
    languages = ("python", "py", "python3")
    lost = "variables and imports"

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
        """Make the interpreter of one episode; the sandbox is opened with the first code.

        Args:
            files: What is in /work at the beginning, by path.
            setup: Code that runs before the first turn; if it fails, the item is an error.
            check: A bash script, as of `ShellEnvironment`.
            check_files: Files for the check alone, in /tmp/check of its sandbox.
            timeout: Seconds until code is interrupted.
            output_limit: Bytes of output that the model reads: its beginning and end.
            opening: Messages that follow the sample's own.
            blocks: Whether a turn without a call has its ```python blocks run.
            backend: As of `open_sandbox`, like the others.
            network: Whether code may use the host's network.
            limits: What it may use.
            readable: Files and folders of the host that it may read, which are on the import path.

        Raises:
            InvalidInput: An argument is not valid.
            SandboxError: There is no sandbox here.
        """
        settings = SandboxSettings(backend, network, limits or LIMITS, check_readable(readable))
        self._setup = setup
        self._cells: list[str] = []
        super().__init__(
            [self.python],
            files=files,
            check=check,
            check_files=check_files,
            timeout=timeout,
            output_limit=output_limit,
            opening=opening,
            blocks=blocks,
            settings=settings,
        )

    async def python(self, code: str) -> str:
        """Run Python code in the interpreter, which keeps its state, and return its output.

        Args:
            code: the code; the value of a last expression is shown
        """
        return await self.run(code)

    async def _prepare(self, session: SandboxSession) -> None:
        if self._setup:
            reply = await session.run(self._setup, self._settings.limits.timeout, 2000)
            if reply.status != 0 or reply.reason or reply.restarted:
                raise EnvironmentFailed(f"the interpreter's setup failed: {reply.output[:1000]}")
            self._note(self._setup, reply)

    def _note(self, code: str, reply: SessionReply) -> None:
        if reply.restarted:
            self._cells.clear()
        elif reply.reason is None:
            self._cells.append(code)

    async def _state(self, session: SandboxSession) -> dict[str, Any]:
        return {"cells": [*self._cells]}

    async def _restore_state(
        self, session: SandboxSession, state: dict[str, Any], tree: SandboxTree
    ) -> None:
        assert self._sandbox is not None
        for path, content in self._files.items():
            await self._sandbox.write(path, content)
        for cell in state["cells"]:
            reply = await session.run(cell, self._timeout, 2000)
            self._note(cell, reply)
        await self._sandbox.restore(tree)
