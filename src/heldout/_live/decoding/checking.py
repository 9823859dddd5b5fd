"""Whether a way of decoding is the model's: its logits beside those of one plain forward pass.

Caches, masks, padding, positions and captured graphs are conventions that a model may have
otherwise: Mamba ignores a cache that is passed under another name, and would answer without any
context. So each way has the logits of its first two tokens compared with the model's own, of the
whole sequence, alone and without a cache. That is done once for a model and shape.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from heldout._live.decoding.model import device_of, forward_state, transformers_model


class WrongLogits(Exception):
    """A way of decoding does not work for this model, and must not be used."""


class LogitsChecks:
    """Which ways and shapes of one model have been found right."""

    def __init__(self) -> None:
        self._passed: set[tuple[object, ...]] = set()
        self._state: tuple[object, ...] | None = None

    def reset_if_changed(self, model: Any) -> None:
        """Forget what was found if it was of other weights' places, adapters or settings."""
        if (state := forward_state(model)) != self._state:
            self._passed.clear()
            self._state = state

    @staticmethod
    def key(way: str, texts: Sequence[Sequence[int]]) -> tuple[object, ...]:
        """Return what batches share where checking one of them is enough.

        That is the way, whether there are several rows, whether they are padded, and the magnitude.
        """
        lengths = {len(text) for text in texts}
        return way, len(texts) > 1, len(lengths) > 1, max(lengths).bit_length()

    def has_passed(self, key: tuple[object, ...]) -> bool:
        """Whether a batch like this one was right."""
        return key in self._passed

    def add(self, key: tuple[object, ...]) -> None:
        """Note that a batch like this one was right."""
        self._passed.add(key)

    def start(self, model: Any, way: str, prompts: Sequence[Sequence[int]]) -> StartCheck | None:
        """Return the check of a batch of prompts; None if one like it has passed."""
        key = self.key(way, prompts)
        return None if self.has_passed(key) else StartCheck(model, prompts, self, key)


class StartCheck:
    """Compares the logits that the first two tokens of a batch are chosen from."""

    def __init__(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        checks: LogitsChecks,
        key: tuple[object, ...],
    ) -> None:
        self._model, self._prompts = model, prompts
        self._checks, self._key = checks, key
        self._rows = rows_to_compare(prompts)
        self._own: dict[int, Any] = {}
        """The model's own logits of the second token."""
        self._has_begun = self.is_over = False

    def compare(self, logits: Any, tokens: Sequence[int], rows: Sequence[int]) -> None:
        """Compare the logits of one step; a third one is not looked at.

        Args:
            logits: [rows still in the batch, vocabulary].
            tokens: What was chosen from them; below 0 where they are not finite.
            rows: The prompts that these rows had in the beginning, by number.

        Raises:
            WrongLogits: They differ.
        """
        if self.is_over:
            return
        places = {row: place for place, row in enumerate(rows)}
        if not self._has_begun:
            for row in self._rows:
                token = tokens[places[row]]
                ids = [*self._prompts[row], *([token] if token >= 0 else [])]
                own = own_logits(self._model, ids, len(ids) - len(self._prompts[row]) + 1)
                self._compare(logits[places[row]], own[0], "after the prompt")
                self._own[row] = own[-1]
            self._has_begun = True
            return
        left = [row for row in self._rows if row in places]
        for row in left:
            self._compare(logits[places[row]], self._own[row], "after the first token")
        if left:
            self._checks.add(self._key)
        self._own.clear()
        self.is_over = True

    def _compare(self, logits: Any, own: Any, where: str) -> None:
        if (off := how_far_off(self._model, logits, own)) is not None:
            raise WrongLogits(f"its logits {where} are {off}")


def rows_to_compare(prompts: Sequence[Sequence[int]]) -> list[int]:
    """Choose the last row, and the one whose length differs most from it."""
    last = len(prompts) - 1
    length = len(prompts[last])
    other = max(range(len(prompts)), key=lambda row: abs(len(prompts[row]) - length))
    return sorted({last, other})


def own_logits(model: Any, ids: Sequence[int], count: int) -> Any:
    """Return the model's own logits of the last `count` tokens of a sequence.

    That is one forward pass over the sequence alone, without a cache, a mask or padding.

    Args:
        model: The unwrapped model.
        ids: The tokens.
        count: How many of the last ones.

    Returns:
        [count, vocabulary].
    """
    import torch

    parameters = inspect.signature(transformers_model(model).forward).parameters
    keep = {"logits_to_keep": count} if "logits_to_keep" in parameters else {}
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids], device=device_of(model)), use_cache=False, **keep)
    return out.logits[0, -count:]


def how_far_off(model: Any, logits: Any, own: Any) -> str | None:
    """Say how far logits are off the model's own; None if that is rounding."""
    error = disagreement(logits, own)
    return f"{error:.0%} off" if error > tolerance(model, own) else None


def disagreement(logits: Any, own: Any) -> float:
    """Return how far logits are off, as a share of how the model's own vary.

    A constant that is added to all logits means nothing, but with it nothing would seem far off:
    GPT-2's logits lie around -100.
    """
    import torch

    a, b = torch.atleast_2d(logits.float()), torch.atleast_2d(own.float().to(logits.device))
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()):
        return float("inf")
    a, b = (torch.where(finite, x, 0.0) for x in (a, b))
    count = finite.sum(-1, keepdim=True).clamp(min=1)
    a, b = (torch.where(finite, x - x.sum(-1, keepdim=True) / count, 0.0) for x in (a, b))
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


def tolerance(model: Any, own: Any) -> float:
    """Return how far logits may be off: 1%, or 10% of what is not computed in float32."""
    import torch

    plain = all(
        weight.dtype == torch.float32 and type(weight.data) is torch.Tensor
        for weight in model.parameters()
    )
    packed = any("quant" in type(module).__module__ for module in model.modules())
    # Autocast computes in half precision where weights have a whole one.
    halves = (torch.bfloat16, torch.float16)
    rounded = any(torch.equal(own.to(half).to(own.dtype), own) for half in halves)
    return 0.01 if plain and not packed and not rounded else 0.1
