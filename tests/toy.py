"""A language without a tokenizer: one token a character, one for each role, one for the end.

And engines that speak it: pure functions of the ids, so that any batch gives the same tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from heldout import Message, Reply, ToolCall
from heldout.rollouts.generating import Generated

END = 1
ROLES = {"system": 2, "user": 3, "assistant": 4, "tool": 5}
FIRST = 10


def encode(text: str) -> list[int]:
    return [FIRST + ord(character) for character in text]


def decode(ids: Sequence[int]) -> str:
    names = {number: f"<{role}>" for role, number in ROLES.items()} | {END: "<end>"}
    return "".join(names.get(i) or chr(i - FIRST) for i in ids)


def plain(ids: Sequence[int]) -> str:
    """A model's turn without the token that ends it."""
    return decode([i for i in ids if i != END])


def parse(text: str) -> Message:
    """`!name {"json": …}` is a tool call."""
    if not text.startswith("!"):
        return Message("assistant", text)
    name, _, arguments = text[1:].partition(" ")
    return Message("assistant", "", tool_calls=(ToolCall("call00000", name, arguments),))


def render(messages: Sequence[Message], add_generation_prompt: bool) -> list[int]:
    ids: list[int] = []
    for message in messages:
        content = message.text
        for call in message.tool_calls:
            content += f"!{call.name} {call.arguments}"
        ids += [ROLES[message.role], *encode(content), END]
    return [*ids, ROLES["assistant"]] if add_generation_prompt else ids


def forgetful(messages: Sequence[Message], add_generation_prompt: bool) -> list[int]:
    """Like many templates of reasoning models: thoughts of earlier turns are dropped."""
    last = max((i for i, m in enumerate(messages) if m.role == "assistant"), default=-1)
    shown = [
        Message(m.role, m.text.split("/")[-1]) if m.role == "assistant" and i <= last else m
        for i, m in enumerate(messages)
    ]
    return render(shown, add_generation_prompt)


def turns_in(ids: Sequence[int]) -> int:
    return sum(1 for i in ids if i == ROLES["assistant"])


def engine(
    say: Callable[[str, int], str], *, logprobs: bool = True
) -> Callable[[list[list[int]], list[int]], list[Generated]]:
    """`say(prompt as text, turn)` is the model; its turn is cut where it may not be longer."""

    def generate(prompts: list[list[int]], max_tokens: list[int]) -> list[Generated]:
        rows = []
        for ids, limit in zip(prompts, max_tokens, strict=True):
            turn = [*encode(say(decode(ids), turns_in(ids))), END][:limit]
            drawn = [-1.0 / (1 + token + place) for place, token in enumerate(turn)]
            finish = "stop" if turn[-1] == END else "length"
            rows.append(Generated(turn, drawn if logprobs else None, plain(turn), finish))
        return rows

    return generate


class Counter:
    """An environment with a tool that adds to a number, and a record of what happened to it."""

    tools = ()

    def __init__(
        self,
        turns: int = 10,
        *,
        slow: int = 0,
        fails_at: int | None = None,
        log: list[str] | None = None,
    ) -> None:
        self.total, self.turn, self.turns = 0, 0, turns
        self.slow, self.fails_at = slow, fails_at
        self.log: list[str] = log if log is not None else []

    def opening(self) -> list[Message]:
        self.log.append("opening")
        return []

    async def reply(self, messages: Sequence[Message]) -> Reply:
        self.turn += 1
        for _ in range(self.slow * self.turn % 7):  # so many others get their turn first
            await anyio.lowlevel.checkpoint()
        if self.turn == self.fails_at:
            raise RuntimeError("the counter is broken")
        said: list[Message] = []
        for call in messages[-1].tool_calls:
            try:
                self.total += int(json.loads(call.arguments)["by"])
                answer = f"total {self.total}"
            except ValueError:
                answer = "that is no JSON"
            said.append(Message("tool", answer, tool_call_id=call.id))
        if not said and self.turn < self.turns:
            said.append(Message("user", f"go on {self.turn}"))
        return Reply(tuple(said), done=self.turn >= self.turns)

    def outcome(self) -> dict[str, Any]:
        return {"total": self.total}

    async def close(self) -> None:
        await anyio.lowlevel.checkpoint()
        self.log.append("closed")
