"""Greedy decoding with fixed shapes, so that a GPU can replay it as captured graphs.

Launching the kernels of one step from Python takes ten times as long as running them. So the
reading of the prompts and one decode step are captured once a shape (rows, width, length) and
replayed: tokens, positions, mask and cache are buffers that the step itself moves on. Prompts are
padded on the left up to the width, missing rows are filled up, and ended rows go on unheeded: a
row's tokens do not depend on who else is in the batch. The host looks at the tokens only every
few steps, while the next ones run.

Graphs read the weights where they were captured. Training changes them in place, so graphs stay
right; before each use it is checked that nothing has moved.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from heldout.decoding.fixed import FixedShape, Shape
from heldout.decoding.model import device_of, out_of_memory
from heldout.decoding.suitable import Unsuitable, state_of
from heldout.decoding.turn import Turn

KEPT_SHAPES = 4
LEAST = 64
"""Widths, and rooms for new tokens, are multiples of this: evals meet the same shapes again."""


class FixedShapes:
    """The shapes met last, with their graphs and caches."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Shape, FixedShape] = OrderedDict()
        self._state: tuple[object, ...] | None = None
        self._pool: Any = None
        # One for all: the libraries keep working memory for every stream they have seen.
        self._stream: Any = None

    def clear(self) -> None:
        self._kept.clear()
        self._state = self._pool = None

    def captured(self, model: Any, turns: list[Turn], rows: int) -> bool:
        """Whether this batch needs nothing but a replay."""
        found = self._kept.get(_shape(turns, rows))
        return found is not None and found.way == "captured" and state_of(model) == self._state

    def ready(self, model: Any, turns: list[Turn], rows: int) -> FixedShape:
        """For this batch: captured before, or now."""
        shape = _shape(turns, rows)
        state = state_of(model)
        if state != self._state:
            self.clear()
            self._state = state
        if (found := self._kept.get(shape)) is not None:
            found.new = False
            self._kept.move_to_end(shape)
            return found
        while len(self._kept) >= KEPT_SHAPES:
            self._kept.popitem(last=False)
        if self._stream is None and device_of(model).type == "cuda":
            import torch

            self._stream = torch.cuda.Stream(device_of(model))
        made = FixedShape(model, shape)
        try:
            self._pool = made.prepare(turns, self._pool, self._stream)
        except Exception as problem:
            if out_of_memory(problem) or isinstance(problem, Unsuitable):
                raise
            first = (str(problem).strip() or "no reason given").splitlines()[0]
            raise Unsuitable(f"{type(problem).__name__}: {first}") from problem
        # What a first pass makes (rotary tables, say) is there now; graphs made before lack it.
        if (now := state_of(model)) != state:
            self._kept.clear()
            self._state = now
        self._kept[shape] = made
        return made


def _shape(turns: list[Turn], rows: int) -> Shape:
    width = _rounded(max(len(turn.prompt.ids) for turn in turns))
    return Shape(rows, width, width + _rounded(max(turn.prompt.max_new for turn in turns)))


def _rounded(count: int) -> int:
    """Up to a multiple of 64, or of a fourth of its own magnitude where that is more."""
    step = max(LEAST, 1 << max(0, count.bit_length() - 3))
    return -(-count // step) * step
