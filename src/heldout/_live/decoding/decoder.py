"""Prompts to generations, in batches that fit into memory.

A batch that does not fit is run again in two halves, down to single prompts; the size that fitted
is where the next call begins. The shapes used are on record, since in half precision the tokens of
a batch repeat only in the same shape.
"""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heldout._live.decoding import eager, own_generate
from heldout._live.decoding.checking import LogitsChecks, WrongLogits
from heldout._live.decoding.model import (
    HoldsModel,
    describe_numerics,
    deterministic_inference,
    device_of,
    explain_not_finite,
    is_out_of_memory,
    unwrap,
)
from heldout._live.decoding.turn import Callbacks, Generation, Prompt, Turn, end_tokens
from heldout._live.isolation import NeedsTrainerThread, is_background_thread
from heldout.errors import EndpointError, FatalEndpointError, InvalidInput

if TYPE_CHECKING:
    from heldout._live.decoding.captured import BatchCache

logger = logging.getLogger(__name__)

DecodeResult = Generation | Exception | None
PLAIN_WAYS = (
    ("eager", eager.decode),
    ("generate", own_generate.decode),
    ("generate, row by row", own_generate.decode_singly),
)
"""From the fastest to the one that asks least of a model."""


def _always(*_: object) -> bool:
    return True


@dataclass(eq=False, slots=True)
class _DecodeCall:
    """State of one call of `decode`."""

    model: Any
    prompts: Sequence[Prompt]
    callbacks: Callbacks
    results: list[DecodeResult]
    end_tokens: frozenset[int]
    why_eager: str | None
    why_no_kernels: str | None = None
    why_generate: str | None = None
    ways: set[str] = field(default_factory=set)
    rows: int = 0
    width: int = 0
    length: int = 0
    splits: int = 0
    fitted: int = 0
    prepared_seconds: float = 0.0
    known: int = 0

    def record_batch(self, way: str, rows: int, width: int, length: int) -> None:
        self.ways.add(way)
        self.rows, self.width = max(self.rows, rows), max(self.width, width)
        self.length = max(self.length, length)

    def pending(self, indices: Sequence[int]) -> list[int]:
        return [i for i in indices if self.results[i] is None and self.callbacks.wanted(i)]

    def describe(self) -> dict[str, Any]:
        described = {
            "way": "+".join(sorted(self.ways)) or "none",
            "rows": self.rows,
            "width": self.width,
            "length": self.length,
            **describe_numerics(self.model),
            "splits": self.splits,
            "prepared_seconds": self.prepared_seconds,
        }
        if self.known:
            described["known_tokens"] = self.known
        if self.why_generate is not None:
            described["why_generate"] = self.why_generate
        if self.why_eager is not None:
            described["why_eager"] = self.why_eager
        elif self.why_no_kernels is not None:
            described["why_no_kernels"] = self.why_no_kernels
        return described


class Decoder(HoldsModel):
    """Generates with a transformers model in memory, which may be in training meanwhile.

    Args:
        model: The model, wrapped as a trainer holds it or bare. It has to be in eval mode.
        tokenizer: Its tokenizer.
        rows: The maximum size of a batch.
        graphs: Whether to capture steps as CUDA graphs; None does where it is possible. True uses
            fixed shapes on any device, captured or not.

    Raises:
        InvalidInput: `rows` is less than 1.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, rows: int = 32, graphs: bool | None = None
    ) -> None:
        if rows < 1:
            raise InvalidInput(f"rows must be at least 1, got {rows}")
        super().__init__(model)
        self._tokenizer = tokenizer
        self._rows, self._graphs = rows, graphs
        self._cache: BatchCache | None = None
        """For captured steps; None until they are asked for."""
        self._checks = LogitsChecks()
        self._wrong: list[str] = []
        """Why the first of the plain ways cannot be used."""
        self._last: dict[str, Any] = {}

    def decode(
        self,
        prompts: Sequence[Prompt],
        *,
        keep_going: Callable[[], bool] = _always,
        on_done: Callable[[int, Generation], None] | None = None,
        wanted: Callable[[int], bool] = _always,
        same_weights: bool = False,
    ) -> list[DecodeResult]:
        """Generate a continuation of each prompt.

        Args:
            prompts: The prompts.
            keep_going: Polled at every step, every few on a GPU; False stops decoding.
            on_done: Called with a prompt's index and its generation as soon as it is complete.
            wanted: Called with a prompt's index; False drops it.
            same_weights: Whether the weights are those of the call before. Then what is known of
                conversations that go on, and of a common beginning, is not computed again.

        Returns:
            A result for each prompt, in their order: its generation, None if it was dropped or
            decoding stopped before its end, or an exception: it does not fit into memory even
            alone, the model's logits are not finite, or no way of decoding gives the model's own.

        Raises:
            InvalidInput: A prompt has no tokens or no room for new ones.
            NeedsTrainerThread: In the background of a training run, something global would have
                to change.
        """
        for prompt in prompts:
            if not prompt.ids or prompt.max_new < 1:
                raise InvalidInput("a prompt needs at least one token, and room for one")
        model = unwrap(self._model)
        if not same_weights and self._cache is not None:
            self._cache.forget()
        results: list[DecodeResult] = [None] * len(prompts)

        def done(index: int, generation: Generation) -> None:
            results[index] = generation
            if on_done is not None:
                on_done(index, generation)

        explain = functools.cache(_explain_divergence)  # it reads all weights

        def diverged(index: int) -> None:
            results[index] = explain(model)

        callbacks = Callbacks(keep_going, wanted, done, diverged)
        ends = end_tokens(model, self._tokenizer)
        call = _DecodeCall(model, prompts, callbacks, results, ends, self._why_eager(model))
        try:
            with deterministic_inference(model):
                size = self._rows
                for start in range(0, len(prompts), size):
                    self._decode_fitting(call, range(len(prompts))[start : start + size], size)
        finally:
            self._last = call.describe()
        if call.splits and call.fitted:
            self._rows = min(self._rows, call.fitted)
        return results

    def describe(self) -> dict[str, Any]:
        """Return how the last call was decoded, with the largest shape of its batches."""
        return dict(self._last)

    def release(self) -> None:
        """Free what is kept between calls: graphs and their caches."""
        if self._cache is not None:
            self._cache.clear()

    def _why_eager(self, model: Any) -> str | None:
        if self._graphs is False:
            return "graphs=False"
        if self._graphs is None and device_of(model).type != "cuda":
            return f"on {device_of(model).type} there is nothing to capture"
        if self._cache is None:
            # The only import of this package: what is decoded on a CPU does without it.
            from heldout._live.decoding.captured import BatchCache

            self._cache = BatchCache()
        return self._cache.why_not(model)

    def _decode_fitting(self, call: _DecodeCall, indices: Sequence[int], rows: int) -> None:
        """Decode at most `rows` prompts as one batch, or in smaller ones if it does not fit."""
        pending = call.pending(indices)
        if not pending or not call.callbacks.keep_going():
            return
        memory_error = self._decode_batch(call, pending, rows)
        size = rows if call.why_eager is None else min(rows, len(pending))
        if memory_error is None:
            call.fitted = max(call.fitted, size)
            return
        # Only here: until its exception is gone, the failed batch is still in memory.
        self._free_memory(call.model)
        pending = call.pending(pending)
        if size == 1:
            for i in pending:
                prompt = call.prompts[i]
                call.results[i] = EndpointError(
                    f"a prompt of {len(prompt.ids)} tokens and up to {prompt.max_new} new ones "
                    f"does not fit into memory, even alone: {memory_error}"
                )
            return
        call.splits += 1
        half = (size + 1) // 2
        for start in range(0, len(pending), half):
            self._decode_fitting(call, pending[start : start + half], half)

    def _decode_batch(self, call: _DecodeCall, indices: list[int], rows: int) -> str | None:
        """Decode one batch; return the error message if memory ran out."""
        turns = self._make_turns(call, indices)
        try:
            why_plain = call.why_eager or self._decode_captured(call, turns, rows)
            if why_plain is None:
                return None
            if is_background_thread() and device_of(call.model).type == "cuda":
                raise NeedsTrainerThread(
                    f"attention kernels are chosen for all threads ({why_plain})"
                )
            way = self._decode_plainly(call, turns)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return str(error).splitlines()[0]
        width = max(len(turn.prompt.ids) for turn in turns)
        length = max(len(turn.prompt.ids) + turn.prompt.max_new for turn in turns)
        if way is not None:
            call.record_batch(way, len(turns), width, length)
        return None

    def _decode_plainly(self, call: _DecodeCall, turns: list[Turn]) -> str | None:
        """Decode one batch in the first way that gives the model's own logits; return which."""
        self._checks.reset_if_changed(call.model)
        indices = [turn.index for turn in turns]
        while len(self._wrong) < len(PLAIN_WAYS):
            way, decode = PLAIN_WAYS[len(self._wrong)]
            try:
                decode(call.model, turns, call.callbacks, self._checks)
            except WrongLogits as error:
                self._wrong.append(f"{way}: {error}")
                logger.warning("the model is decoded in a slower way: %s: %s", way, error)
                turns = self._make_turns(call, call.pending(indices))
                continue
            call.why_generate = "; ".join(self._wrong) or None
            return way.split(",")[0]
        for index in call.pending(indices):
            call.results[index] = FatalEndpointError(
                "no way of decoding gives the logits of this model's own forward pass "
                f"({'; '.join(self._wrong)})"
            )
        return None

    def _make_turns(self, call: _DecodeCall, indices: list[int]) -> list[Turn]:
        return [Turn(i, call.prompts[i], self._tokenizer, call.end_tokens) for i in indices]

    def _decode_captured(self, call: _DecodeCall, turns: list[Turn], rows: int) -> str | None:
        """Decode one batch with captured steps; return why not if these turns cannot be."""
        cache = self._cache
        assert cache is not None  # it has been asked why not, and had no reason
        before = cache.prepared_seconds
        prepared = cache.prepare(call.model, turns, rows)
        if cache.refused is not None:
            call.why_eager = cache.refused
            return cache.refused
        call.prepared_seconds += cache.prepared_seconds - before
        if prepared is None:
            return f"sampled turns: {cache.why_no_kernels}"
        batch, plan = prepared
        if batch.way == "captured":
            call.why_no_kernels = cache.why_no_kernels
        batch.decode(plan, call.callbacks)
        call.record_batch(batch.way, batch.shape.rows, plan.passes.chunk, batch.shape.length)
        call.known += sum(assignment.known for assignment in plan.assignments)
        return None

    def _free_memory(self, model: Any) -> None:
        import torch

        self.release()
        gc.collect()  # models may keep an exception, and with it a batch, in a reference cycle
        if device_of(model).type == "cuda":
            torch.cuda.empty_cache()


def _explain_divergence(model: Any) -> EndpointError:
    if (reason := explain_not_finite(model)) is not None:
        return FatalEndpointError(reason)
    return EndpointError(
        "the model's logits are not finite, although its weights are: they overflow, or it has "
        "diverged"
    )
