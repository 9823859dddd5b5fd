"""A rollout in tokens: what the model read, what it wrote, and which token is whose.

A `Transcript` grows turn by turn. Whatever has to align is checked here, where tokens are added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from heldout.chat.tool_calls import next_call_number
from heldout.errors import ContextFull, EndpointError
from heldout.rendering.segments import Template, TemplateWithTools
from heldout.types import Completion, Message, TokenTrace, ToolSpec, Usage


class Generated(NamedTuple):
    """A model turn as an engine returns it; a plain tuple (ids, logprobs) will do."""

    ids: Sequence[int]
    """The tokens of the turn, the one that ends it included."""
    logprobs: Sequence[float] | None = None
    """One per id; None if the engine does not report them."""
    message: str | Message | None = None
    """The turn as text, or as a parsed message; None has the ids decoded."""
    finish_reason: str | None = None
    """`stop`, `length`, …; None makes a turn that used all its tokens a `length`, unless it ends
    in a token that is known to end turns."""


class Transcript:
    """The tokens of one rollout as they grow.

    A model turn has at most `per_turn_max_tokens`; `engine_max_len` is for all that the engine
    reads, the next turn included.
    """

    def __init__(
        self, template: Template, *, per_turn_max_tokens: int, engine_max_len: int | None = None
    ) -> None:
        self._template = template
        self._with_tools: TemplateWithTools | None = None
        self._per_turn, self._max_length = per_turn_max_tokens, engine_max_len
        self._messages: list[Message] = []
        """The conversation as it is rendered: the model's turns as it wrote them."""
        self._last_turn = Message("assistant", "")
        """The model's last turn as it was parsed."""
        self._truncated = False
        """Whether that turn was cut off."""
        self._next_call = 0
        """The number of the next tool call: ids are not used twice in a conversation."""
        self._prompt_length = 0
        self._ids: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] | None = None
        self.max_turn_tokens = 0
        """The most tokens that the model's next turn may have."""

    def add_messages(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Add what is new in a conversation, and return all tokens so far for the engine.

        Raises:
            ContextFull: The engine could not read that many; nothing was added.
            RenderMismatch: The template cannot render the messages after the tokens so far.
        """
        new = messages[len(self._messages) :]
        if self._with_tools is None:
            self._with_tools = self._template.with_tools(tools)
            segment = self._with_tools.prompt(new)
        else:
            segment = self._with_tools.segment(
                self._messages, new, self._ids, self._last_turn, truncated=self._truncated
            )
        length = len(self._ids) + len(segment)
        max_tokens = self._per_turn
        if self._max_length is not None:
            max_tokens = min(max_tokens, self._max_length - length)
            if max_tokens < 1:
                raise ContextFull(
                    f"the conversation has {length} tokens, and the engine takes "
                    f"{self._max_length}, the next turn included"
                )
        if not self._ids:
            self._prompt_length = length
        else:
            self._mask += [0] * len(segment)
            if self._logprobs is not None:
                self._logprobs += [0.0] * len(segment)
        self._messages += new
        self._next_call = max(self._next_call, next_call_number(new))
        self._ids += segment
        self.max_turn_tokens = max_tokens
        return list(self._ids)

    def add_turn(self, generated: Generated) -> Completion:
        """Add a turn of the model, up to a stop text, and return it as a parsed message.

        Raises:
            EndpointError: The engine returned too many tokens, or logprobs that do not align.
        """
        ids, logprobs = _read_numbers(generated)
        if not 0 < len(ids) <= self.max_turn_tokens:
            raise EndpointError(
                f"the engine returned {len(ids)} tokens, where 1 to {self.max_turn_tokens} were "
                "asked for"
            )
        if logprobs is not None and len(logprobs) != len(ids):
            raise EndpointError(
                f"the engine returned {len(ids)} tokens and {len(logprobs)} logprobs: one each "
                "is needed"
            )
        if not self._mask:
            self._logprobs = None if logprobs is None else []
        if (logprobs is None) != (self._logprobs is None):
            raise EndpointError("the engine gave logprobs for some turns and none for others")
        filled = len(ids) == self.max_turn_tokens and ids[-1] not in self._template.ends
        finish_reason = generated.finish_reason or ("length" if filled else "stop")
        stop = self._template.ends_early(ids)
        if stop is not None:
            ids, finish_reason = ids[:stop], "stop"
        message, as_written = self._template.read(
            generated.message,
            ids,
            first=self._next_call,
            tools=self._with_tools.tools if self._with_tools is not None else (),
            prompt=self._ids,
        )
        usage = Usage(len(self._ids), len(ids))
        self._last_turn, self._truncated = message, finish_reason == "length"
        self._next_call = max(self._next_call, next_call_number([message]))
        self._messages.append(as_written)
        self._ids += ids
        self._mask += [1] * len(ids)
        if self._logprobs is not None and logprobs is not None:
            self._logprobs += logprobs[: len(ids)]
        return Completion(message, finish_reason, usage)

    def trace(self) -> TokenTrace | None:
        """Return the rollout up to the model's last token; None if it has written none.

        What an environment said after that is left out: the model never read it.
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


def _read_numbers(generated: Generated) -> tuple[list[int], list[float] | None]:
    """Return the ids and logprobs as plain numbers, out of tensors and arrays."""
    try:
        ids = [int(i) for i in generated.ids]
        if generated.logprobs is None:
            return ids, None
        return ids, [float(logprob) for logprob in generated.logprobs]
    except (TypeError, ValueError) as problem:
        raise EndpointError(
            f"the engine returned ids or logprobs that are no numbers: {problem}"
        ) from None
