"""Prompts to generations, in batches that fit.

A batch for which memory does not suffice is done again in two halves, down to single prompts; the
size that fitted is where the next call begins. Which shapes were used is on record, since in half
precision the shape of a batch is part of what makes its tokens come out the same again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from heldout.decoding import eager
from heldout.decoding.captured import FixedShapes
from heldout.decoding.model import attention_of, device_of, out_of_memory, steady, unwrap
from heldout.decoding.suitable import Unsuitable, unsuitable
from heldout.decoding.turn import Generation, Prompt, Turn, end_tokens
from heldout.errors import EndpointError, InvalidInput
from heldout.isolation import NotBeside, is_beside_training

logger = logging.getLogger(__name__)

Result = Generation | Exception | None


def _always(*_: object) -> bool:
    return True


@dataclass(eq=False, slots=True)
class _Call:
    """One call of `decode` while it lasts."""

    prompts: Sequence[Prompt]
    keep_going: Callable[[], bool]
    on_done: Callable[[int, Generation], None] | None
    wanted: Callable[[int], bool]
    results: list[Result]
    ends: frozenset[int]
    why_eager: str | None
    ways: set[str] = field(default_factory=set)
    rows: int = 0
    width: int = 0
    length: int = 0
    splits: int = 0
    fitted: int = 0
    prepared_seconds: float = 0.0

    def done(self, index: int, generation: Generation) -> None:
        self.results[index] = generation
        if self.on_done is not None:
            self.on_done(index, generation)

    def note(self, way: str, rows: int, width: int, length: int) -> None:
        self.ways.add(way)
        self.rows, self.width = max(self.rows, rows), max(self.width, width)
        self.length = max(self.length, length)

    def open(self, indices: Sequence[int]) -> list[int]:
        return [i for i in indices if self.results[i] is None and self.wanted(i)]


class Decoder:
    def __init__(
        self, model: Any, tokenizer: Any, *, rows: int = 32, graphs: bool | None = None
    ) -> None:
        """`rows` is the size of a batch; `graphs` captures steps, if None where that can be done.

        With `graphs=True` batches have fixed shapes on any device, captured or not.
        """
        if rows < 1:
            raise InvalidInput(f"rows must be at least 1, got {rows}")
        self._model, self._tokenizer = model, tokenizer
        self._rows, self._graphs = rows, graphs
        self._shapes = FixedShapes()
        self._refused: str | None = None
        self._last: dict[str, Any] = {}

    def decode(
        self,
        prompts: Sequence[Prompt],
        *,
        keep_going: Callable[[], bool] = _always,
        on_done: Callable[[int, Generation], None] | None = None,
        wanted: Callable[[int], bool] = _always,
    ) -> list[Result]:
        """In the order given. None where it was not finished, as not wanted or told not to go on.

        `keep_going` is asked at every step, every few on a GPU. The model is to be in eval mode.
        An exception is a prompt that did not fit into memory even alone.
        """
        for prompt in prompts:
            if not prompt.ids or prompt.max_new < 1:
                raise InvalidInput("a prompt needs at least one token, and room for one")
        model = unwrap(self._model)
        results: list[Result] = [None] * len(prompts)
        ends = end_tokens(model, self._tokenizer)
        why = self._why_eager(model)
        call = _Call(prompts, keep_going, on_done, wanted, results, ends, why)
        try:
            with steady(model):
                size = self._rows
                for start in range(0, len(prompts), size):
                    self._attempt(call, model, range(start, min(start + size, len(prompts))), size)
        finally:
            self._record(call, model)
        if call.splits and call.fitted:
            self._rows = min(self._rows, call.fitted)
        return results

    def describe(self) -> dict[str, Any]:
        """The way and the largest shape of the last call."""
        return dict(self._last)

    def release(self) -> None:
        """Give back what is kept between calls: graphs and their caches."""
        self._shapes.clear()

    def _why_eager(self, model: Any) -> str | None:
        if self._graphs is False:
            return "graphs=False"
        if self._graphs is None and device_of(model).type != "cuda":
            return f"on {device_of(model).type} there is nothing to capture"
        return self._refused or unsuitable(model)

    def _attempt(self, call: _Call, model: Any, indices: Sequence[int], rows: int) -> None:
        """One batch, of at most `rows`; in smaller ones if it does not fit."""
        waiting = call.open(indices)
        if not waiting or not call.keep_going():
            return
        said = self._batch(call, model, waiting, rows)
        size = rows if call.why_eager is None else min(rows, len(waiting))
        if said is None:
            call.fitted = max(call.fitted, size)
            return
        # The failed batch is gone from memory only now that its exception is.
        self._make_room(model)
        left = call.open(waiting)
        if size == 1:
            for i in left:
                call.results[i] = EndpointError(
                    f"a prompt of {len(call.prompts[i].ids)} tokens and up to "
                    f"{call.prompts[i].max_new} new ones does not fit into memory, even alone: "
                    f"{said}"
                )
            return
        call.splits += 1
        half = (size + 1) // 2
        for start in range(0, len(left), half):
            self._attempt(call, model, left[start : start + half], half)

    def _batch(self, call: _Call, model: Any, indices: list[int], rows: int) -> str | None:
        """What was said of memory if there was too little; then rows may be left undone."""
        how: dict[str, Any] = {
            "keep_going": call.keep_going,
            "wanted": call.wanted,
            "done": call.done,
        }
        turns = self._turns(call, indices)
        try:
            if call.why_eager is None and not any(turn.sampled for turn in turns):
                if self._fixed(call, model, turns, rows, how):
                    return None
                turns = self._turns(call, indices)
            if is_beside_training() and device_of(model).type == "cuda":
                why = call.why_eager or "sampled turns are decoded without graphs"
                raise NotBeside(f"attention kernels are chosen for all threads ({why})")
            eager.decode(model, turns, **how)
        except Exception as problem:
            if not out_of_memory(problem):
                raise
            return str(problem).splitlines()[0]
        width = max(len(turn.prompt.ids) for turn in turns)
        longest = max(len(turn.prompt.ids) + turn.prompt.max_new for turn in turns)
        call.note("eager", len(turns), width, longest)
        return None

    def _turns(self, call: _Call, indices: list[int]) -> list[Turn]:
        return [Turn(i, call.prompts[i], self._tokenizer, call.ends) for i in indices]

    def _fixed(
        self, call: _Call, model: Any, turns: list[Turn], rows: int, how: dict[str, Any]
    ) -> bool:
        """The way of fixed shapes; False if the model turns out not to be made for it."""
        if is_beside_training() and not self._shapes.captured(model, turns, rows):
            raise NotBeside("steps of this shape are not captured yet")
        began = time.perf_counter()
        try:
            shape = self._shapes.ready(model, turns, rows)
        except Unsuitable as problem:
            self._refused = call.why_eager = str(problem)
            self.release()
            logger.warning("steps are not captured, so decoding is slower: %s", problem)
            return False
        if shape.new:
            call.prepared_seconds += time.perf_counter() - began
        shape.decode(turns, **how)
        call.note(shape.way, shape.rows, shape.width, shape.length)
        return True

    def _make_room(self, model: Any) -> None:
        import gc

        import torch

        self.release()
        gc.collect()  # models may keep an exception, and what it saw, in a circle
        if device_of(model).type == "cuda":
            torch.cuda.empty_cache()

    def _record(self, call: _Call, model: Any) -> None:
        self._last = {
            "way": "+".join(sorted(call.ways)) or "none",
            "rows": call.rows,
            "width": call.width,
            "length": call.length,
            "attention": attention_of(model),
            "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
            "splits": call.splits,
            "prepared_seconds": call.prepared_seconds,
        }
        if call.why_eager is not None:
            self._last["why_eager"] = call.why_eager
