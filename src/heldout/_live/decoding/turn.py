"""One sequence from its prompt to its end: which token comes next, and whether it was the last.

Stop texts are searched in the last few tokens, since decoding everything at every token would take
time quadratic in the length. A tokenizer may decode part of a sequence differently from the whole,
so a match there is confirmed, and the whole text is searched at every doubling: a turn ends at the
first token with which its text contains a stop, whenever that is noticed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

NOT_FINITE = -1
"""Stands for the token of a row whose logits are NaN or infinite: there is none."""
WINDOW_MARGIN = 8
"""Tokens searched beyond one per character of the longest stop: some tokens have no text."""
FIRST_FULL_SEARCH = 32
"""Tokens after which the whole text is searched for the first time; then at every doubling."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in tokens and how to continue it."""

    ids: tuple[int, ...]
    max_new: int
    """Maximum number of new tokens."""
    stops: tuple[str, ...] = ()
    """Texts that end the turn."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float | None = None
    seed: int | None = None
    """Seed of this prompt's own random stream; None draws one."""
    continued: bool = False
    """Whether it goes on with a conversation that has generated turns."""


@dataclass(frozen=True, slots=True)
class Generation:
    """The continuation of a prompt."""

    ids: tuple[int, ...]
    """The new tokens, including the one that ended the turn."""
    finish: Literal["stop", "length"]
    text: str
    """The ids decoded without special tokens, including a stop text that ended the turn."""


class Callbacks(NamedTuple):
    """How a batch in flight communicates with its caller."""

    keep_going: Callable[[], bool]
    """False stops decoding."""
    wanted: Callable[[int], bool]
    """False for a prompt's index drops its row."""
    done: Callable[[int, Generation], None]
    """Called with a prompt's index and its generation as soon as it is complete."""
    diverged: Callable[[int], None]
    """Called with a prompt's index if there is no next token."""

    def take(self, turn: Turn, token: int) -> bool:
        """Add the next token of a turn; return whether the turn goes on."""
        if token == NOT_FINITE:
            self.diverged(turn.index)
            return False
        generation = turn.add(token)
        if generation is not None:
            self.done(turn.index, generation)
        return generation is None


class Turn:
    """One sequence of a batch while it is decoded."""

    def __init__(
        self, index: int, prompt: Prompt, tokenizer: Any, end_tokens: frozenset[int]
    ) -> None:
        self.index, self.prompt = index, prompt
        self._tokenizer, self._end_tokens = tokenizer, end_tokens
        self.ids: list[int] = []
        """The tokens so far."""
        self._window = max(map(len, prompt.stops), default=0) + WINDOW_MARGIN
        self._next_full_search, self._searched = FIRST_FULL_SEARCH, 0
        self.sampled = prompt.temperature > 0
        """Whether tokens are sampled rather than chosen greedily."""
        self.seed = secrets.randbits(63) if prompt.seed is None else prompt.seed % 2**63
        self._generator: Any = None

    def draw(self) -> float:
        """Draw the next number from this turn's own random stream, in [0, 1)."""
        import torch

        if self._generator is None:
            self._generator = torch.Generator().manual_seed(self.seed)
        return float(torch.rand((), generator=self._generator, dtype=torch.float32))

    def add(self, token: int) -> Generation | None:
        """Append a token; return the generation if it was the last one."""
        self.ids.append(token)
        count = len(self.ids)
        if token in self._end_tokens:
            return self._finish("stop")
        if self.prompt.stops:
            if self._has_stop(self.ids[-self._window :]) and self._has_stop(self.ids):
                return self._finish("stop")
            if count >= self._next_full_search:
                if self._has_stop(self.ids):
                    return self._finish("stop")
                self._searched, self._next_full_search = count, 2 * count
        return self._finish("length") if count >= self.prompt.max_new else None

    def _has_stop(self, ids: Sequence[int]) -> bool:
        text = self._decode(ids)
        return any(stop in text for stop in self.prompt.stops)

    def _finish(self, finish: Literal["stop", "length"]) -> Generation:
        ids = self.ids
        if self.prompt.stops and self._has_stop(ids):
            # Usually complete with the last token; earlier if the window did not show it.
            lengths = range(self._searched + 1, len(ids))
            ids = next((ids[:n] for n in lengths if self._has_stop(ids[:n])), ids)
            finish = "stop"
        return Generation(tuple(ids), finish, self._decode(ids))

    def _decode(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        assert isinstance(text, str)
        return text


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a turn by the model's generation config and the tokenizer."""
    ids: set[int] = set()
    config = getattr(model, "generation_config", None)
    for value in (getattr(config, "eos_token_id", None), tokenizer.eos_token_id):
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(ids)
