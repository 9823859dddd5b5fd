"""Judges that say what a test has them say."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from heldout._core.config import Sampling
from heldout.scoring.judges import EQUALITY, PAIRWISE, THREE_WAY, Question, make_question
from heldout.types import Completion, Message, ToolSpec, Usage


def said(verdict: str, **more: Any) -> str:
    return json.dumps({"reasoning": "since it is so", "verdict": verdict, **more})


def equality_question(question: str, answer: str, target: str) -> Question[Any]:
    return make_question(EQUALITY, question, answer, target=target)


def three_way_question(question: str, answer: str, target: str) -> Question[Any]:
    return make_question(THREE_WAY, question, answer, target=target)


def pairwise_question(question: str, first: str, second: str) -> Question[Any]:
    return make_question(PAIRWISE, question, {"first": first, "second": second})


class Scripted:
    """An endpoint that gives these replies, one a request, and then the last of them again.

    A reply is text, a Completion, an exception to raise, or a function of the messages.
    """

    def __init__(self, *replies: Any, name: str = "scripted", usage: Usage | None = None) -> None:
        self.replies, self.name, self.usage = list(replies), name, usage
        self.asked: list[tuple[Message, ...]] = []
        self.samplings: list[Sampling] = []
        self.closed = 0

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        self.asked.append(tuple(messages))
        self.samplings.append(sampling)
        reply = self.replies[min(len(self.asked), len(self.replies)) - 1]
        if callable(reply):
            reply = reply(messages)
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, Completion):
            return reply
        return Completion(Message("assistant", reply), "stop", self.usage)

    def describe(self) -> dict[str, Any]:
        return {"kind": "scripted", "model": self.name}

    async def close(self) -> None:
        self.closed += 1
