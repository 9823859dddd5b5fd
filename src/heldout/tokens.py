"""A rollout's account in tokens: what the model saw, what it wrote, and which is which.

Filled turn by turn by a policy that works in tokens. Everything that must align is checked here,
where it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from heldout.errors import ContextFull, EndpointError
from heldout.rendering.segments import Template, ToldTemplate
from heldout.toolcalls import next_call_number
from heldout.types import Completion, Message, TokenTrace, ToolSpec, Usage


class Generated(NamedTuple):
    """One row of what an engine returns; a plain tuple of ids and logprobs will do."""

    ids: Sequence[int]
    """The model's turn, the token that ends it included."""
    logprobs: Sequence[float] | None = None
    """Of those ids, one each; None if the engine does not say."""
    message: str | Message | None = None
    """The turn as text, or as the message it means; None has the ids decoded."""
    finish_reason: str | None = None
    """`stop`, `length`, …; None reads a turn that used all it was allowed as `length`, unless it
    ends in a token that is known to end turns."""


class Transcript:
    """The tokens of one rollout as they grow."""

    def __init__(
        self, template: Template, *, per_turn_max_tokens: int, engine_max_len: int | None = None
    ) -> None:
        self._template = template
        self._told: ToldTemplate | None = None
        self._per_turn, self._longest = per_turn_max_tokens, engine_max_len
        self._seen: list[Message] = []
        """The conversation as it is rendered: the model's turns as it wrote them."""
        self._meant = Message("assistant", "")
        """The model's last turn as it was understood."""
        self._next_call = 0
        """The number of the next tool call: ids are not used twice in a conversation."""
        self._cut_off = False
        self._ids: list[int] = []
        self._prompt_length = 0
        self._mask: list[int] = []
        self._logprobs: list[float] | None = None
        self.room = 0
        """How many tokens the model's next turn may have."""

    def advance(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Take in what was said since the model's last turn; all ids, for it to go on from.

        Raises `ContextFull` before anything is added that the engine could not read.
        """
        new = messages[len(self._seen) :]
        if self._told is None:
            self._told = self._template.told(tools)
            segment = self._told.prompt(new)
        else:
            segment = self._told.segment(
                self._seen, new, self._ids, self._meant, cut_off=self._cut_off
            )
        length = len(self._ids) + len(segment)
        room = self._per_turn
        if self._longest is not None:
            room = min(room, self._longest - length)
            if room < 1:
                raise ContextFull(
                    f"the conversation has {length} tokens, and the engine takes "
                    f"{self._longest}, the next turn included"
                )
        if not self._ids:
            self._prompt_length = length
        else:
            self._mask += [0] * len(segment)
            if self._logprobs is not None:
                self._logprobs += [0.0] * len(segment)
        self._seen += new
        self._next_call = max(self._next_call, next_call_number(new))
        self._ids += segment
        self.room = room
        return list(self._ids)

    def accept(self, generated: Generated) -> Completion:
        """Add the model's turn."""
        try:
            # Out of tensors and arrays, whose numbers are not equal to numbers.
            ids = [int(i) for i in generated.ids]
            logprobs = None
            if generated.logprobs is not None:
                logprobs = [float(logprob) for logprob in generated.logprobs]
        except (TypeError, ValueError) as problem:
            raise EndpointError(
                f"the engine returned ids or logprobs that are no numbers: {problem}"
            ) from None
        if not 0 < len(ids) <= self.room:
            raise EndpointError(
                f"the engine returned {len(ids)} tokens, where 1 to {self.room} were asked for"
            )
        if logprobs is not None and len(logprobs) != len(ids):
            raise EndpointError(
                f"the engine returned {len(ids)} tokens and {len(logprobs)} logprobs: one each "
                "is needed"
            )
        stopped = self._template.ends_early(ids)
        if stopped is not None:
            ids = ids[:stopped]
            logprobs = None if logprobs is None else logprobs[:stopped]
        if not self._mask:
            self._logprobs = None if logprobs is None else []
        if (logprobs is None) != (self._logprobs is None):
            raise EndpointError("the engine gave logprobs for some turns and none for others")
        message, as_written = self._template.read(
            generated.message,
            ids,
            first=self._next_call,
            tools=self._told.tools if self._told is not None else (),
            prompt=self._ids,
        )
        usage = Usage(len(self._ids), len(ids))
        self._meant = message
        self._next_call = max(self._next_call, next_call_number([message]))
        self._seen.append(as_written)
        self._ids += ids
        self._mask += [1] * len(ids)
        if self._logprobs is not None and logprobs is not None:
            self._logprobs += logprobs
        filled = len(ids) == self.room and ids[-1] not in self._template.ends
        finish = generated.finish_reason or ("length" if filled else "stop")
        if stopped is not None:
            finish = "stop"
        self._cut_off = finish == "length"
        return Completion(message, finish, usage)

    def trace(self) -> TokenTrace | None:
        """The rollout up to the model's last token; None if it has not written any.

        An environment's words that no turn followed are no part of it: the engine never saw them.
        """
        if not self._mask:
            return None
        end = len(self._mask)
        while not self._mask[end - 1]:
            end -= 1
        start = self._prompt_length
        return TokenTrace(
            tuple(self._ids[:start]),
            tuple(self._ids[start : start + end]),
            None if self._logprobs is None else tuple(self._logprobs[:end]),
            tuple(self._mask[:end]),
        )
