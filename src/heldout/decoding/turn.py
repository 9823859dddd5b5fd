"""A turn from its prompt to its end: which token comes next, and whether it was the last.

Stop texts are looked for in the last few tokens, since decoding everything at every token would
take time that grows with the square of the turn. Tokenizers may spell a piece of a turn otherwise
than the whole, so what is found there is confirmed, and the whole is read now and then: a turn
ends at the first token with which its text contains a stop, whenever that is noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

MARGIN = 8
"""Tokens beyond one a character of the longest stop: some tokens have no text of their own."""
FIRST_LOOK = 32
"""Tokens after which the whole text is searched for the first time; then at every doubling."""


@dataclass(frozen=True, slots=True)
class Prompt:
    ids: tuple[int, ...]
    max_new: int
    stops: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    ids: tuple[int, ...]
    """The turn, the token that ended it included."""
    finish: Literal["stop", "length"]
    text: str
    """The ids decoded without special tokens. A stop text, where one ended it, is part of it."""


class Turn:
    """One sequence of a batch while it is decoded."""

    def __init__(self, index: int, prompt: Prompt, tokenizer: Any, ends: frozenset[int]) -> None:
        self.index, self.prompt = index, prompt
        self._tokenizer, self._ends = tokenizer, ends
        self._ids: list[int] = []
        self._window = max(map(len, prompt.stops), default=0) + MARGIN
        self._look_at, self._looked = FIRST_LOOK, 0
        self._generator = _generator(prompt) if prompt.temperature > 0 else None

    @property
    def sampled(self) -> bool:
        return self._generator is not None

    def sample(self, logits: Any) -> int:
        """Draw a token from this turn's own random stream."""
        import torch

        temperature, top_p = self.prompt.temperature, self.prompt.top_p
        probabilities = torch.softmax(logits.float().cpu() / temperature, dim=-1)
        if top_p is not None and top_p < 1:
            ordered, order = probabilities.sort(descending=True)
            outside = ordered.cumsum(-1) - ordered >= top_p
            probabilities[order[outside]] = 0.0
        return int(torch.multinomial(probabilities, 1, generator=self._generator))

    def take(self, token: int) -> Generation | None:
        """One more token; the generation once that was the last."""
        self._ids.append(token)
        count = len(self._ids)
        if token in self._ends:
            return self._finished("stop")
        if self.prompt.stops:
            if self._stopped(self._ids[-self._window :]) and self._stopped(self._ids):
                return self._finished("stop")
            if count >= self._look_at:
                if self._stopped(self._ids):
                    return self._finished("stop")
                self._looked, self._look_at = count, 2 * count
        return self._finished("length") if count >= self.prompt.max_new else None

    def _stopped(self, ids: Sequence[int]) -> bool:
        text = self._text(ids)
        return any(stop in text for stop in self.prompt.stops)

    def _finished(self, finish: Literal["stop", "length"]) -> Generation:
        ids = self._ids
        if self.prompt.stops and self._stopped(ids):
            # Usually with the last token; earlier if the window did not show it.
            shortest = range(self._looked + 1, len(ids))
            ids = next((ids[:n] for n in shortest if self._stopped(ids[:n])), ids)
            finish = "stop"
        return Generation(tuple(ids), finish, self._text(ids))

    def _text(self, ids: Sequence[int]) -> str:
        text = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        assert isinstance(text, str)
        return text


def end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    """What the model's generation settings and its tokenizer say ends a turn."""
    found: set[int] = set()
    settings = getattr(model, "generation_config", None)
    for value in (getattr(settings, "eos_token_id", None), tokenizer.eos_token_id):
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(found)


def _generator(prompt: Prompt) -> Any:
    import torch

    generator = torch.Generator()
    if prompt.seed is not None:
        generator.manual_seed(prompt.seed)
    else:
        generator.seed()
    return generator
