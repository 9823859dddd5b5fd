"""An environment that counts down, and an endpoint that is known by no function of its own."""

from __future__ import annotations

from typing import Any

import anyio

from heldout import Completion, Message, Reply, ToolSpec
from heldout.environment import make_snapshot


class Counting:
    """An environment that asks twice and then says it is over."""

    tools: tuple[ToolSpec, ...] = ()

    def __init__(self, replies: int, log: list[str]) -> None:
        self.left, self.log = replies, log

    def opening(self) -> list[Message]:
        return [Message("user", "what is 1?")]

    async def reply(self, messages: Any) -> Reply:
        self.log.append(f"reply to {messages[-1].text}")
        self.left -= 1
        if self.left == 0:
            return Reply(done=True)
        return Reply((Message("user", f"what is {10 * self.left}?"),))

    async def close(self) -> None:
        await anyio.sleep(0)
        self.log.append("closed")


class Saved(Counting):
    """One that can be put away between two turns. Its restore() trusts what it is given."""

    env_kind = "counting"
    version = "1.0"

    def snapshot(self) -> dict[str, Any]:
        return make_snapshot(self, {"left": self.left})

    def restore(self, snapshot: dict[str, Any]) -> None:
        self.left = snapshot["state"]["left"]


class Recorded:
    """An endpoint object; described the same, whatever function it wraps."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.closed = False

    async def complete(self, messages: Any, sampling: Any, tools: Any) -> Any:
        return Completion(Message("assistant", await self.function(list(messages))), "stop")

    def describe(self) -> dict[str, Any]:
        return {"kind": "recorded"}

    async def close(self) -> None:
        self.closed = True
