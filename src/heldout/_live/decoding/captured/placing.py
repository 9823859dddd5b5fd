"""Which batch takes a call's turns, which row each turn gets, and what is known of its prompt.

Batches are kept with their graphs and caches. While weights stay the same, the keys and values in
those caches are those of conversations that may go on: a turn whose prompt begins with what a row
holds gets that row, or a copy of it, and only the rest of its prompt is computed. A beginning that
the prompts of a batch share is computed once, in a batch of one row.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence, Set
from typing import Any

from heldout._live.decoding.captured.batch_plan import (
    BatchPlan,
    Passes,
    RowAssignment,
    Shape,
    choosing_of,
    round_up,
)
from heldout._live.decoding.captured.capturable import (
    CaptureError,
    why_no_triton,
    why_not_capturable,
)
from heldout._live.decoding.captured.graphs import StaticBatch
from heldout._live.decoding.eager import common_prefix
from heldout._live.decoding.model import (
    describe_error,
    device_of,
    forward_state,
    is_out_of_memory,
    transformers_model,
)
from heldout._live.decoding.turn import Prompt, Turn
from heldout._live.isolation import NeedsTrainerThread, is_background_thread

logger = logging.getLogger(__name__)

MAX_BATCHES = 4
WORTH_SHARING = 1 << 15
"""Tokens that a common beginning has to save: its pass over one row is captured, too."""
WORTH_KEEPING = 64
"""Known tokens from which on a row is kept for a turn, or copied."""


class BatchCache:
    """The most recent batches, with their graphs and key-value caches."""

    def __init__(self) -> None:
        self._batches: list[StaticBatch] = []  # the latest last
        # One row, with what all prompts of a batch began with.
        self._beginning: StaticBatch | None = None
        self._state: tuple[object, ...] | None = None
        # With or without kernels, rows and chunk: whose logits were compared with the model's own.
        self._checked: set[tuple[bool, int, int]] = set()
        self._pool: Any = None
        self._stream: Any = None
        self.prepared_seconds = 0.0
        """How long checks and captures have taken in all."""
        self.refused: str | None = None
        """Why steps of the model are not captured at all, once that has been tried."""
        self.why_no_kernels: str | None = None
        """Why the kernels of Triton are not used for the model."""

    def clear(self) -> None:
        """Free all graphs and caches."""
        self._batches.clear()
        self._beginning = self._pool = None

    def forget(self) -> None:
        """Take no keys and values from before: the weights may have changed."""
        for batch in self._all():
            batch.held = [()] * batch.shape.rows

    def _all(self) -> list[StaticBatch]:
        return [*self._batches, *([self._beginning] if self._beginning else [])]

    def why_not(self, model: Any) -> str | None:
        """Say why the steps of an unwrapped model cannot be captured; None if they may be."""
        self.why_no_kernels = self.why_no_kernels or why_no_triton(device_of(model))
        return self.refused or why_not_capturable(model, kernels=self.why_no_kernels is None)

    def prepare(
        self, model: Any, turns: Sequence[Turn], rows: int
    ) -> tuple[StaticBatch, BatchPlan] | None:
        """Plan a batch of turns; check its logits and capture its graphs where that is new.

        Returns:
            The batch and what it is to do; None if the model was `refused`, or for sampled turns
            where there are no kernels for them.

        Raises:
            NeedsTrainerThread: In the background of a training run, something has to be captured.
        """
        is_sampled = choosing_of(turns) != "greedy"
        if is_sampled and self.why_no_kernels is not None:
            return None
        # What did not work is given up for good, since every trial costs seconds: the kernels of
        # Triton first, capturing without them next.
        try:
            self._follow(model)
            if self.why_no_kernels is None:
                try:
                    return self._prepare(model, turns, rows)
                except CaptureError as problem:
                    self._give_up_kernels(model, problem)
            return None if is_sampled else self._prepare(model, turns, rows)
        except CaptureError as problem:
            self.refused = str(problem)
            self.clear()
            logger.warning("steps are not captured, so decoding is slower: %s", problem)
            return None

    def _give_up_kernels(self, model: Any, problem: CaptureError) -> None:
        self.why_no_kernels = str(problem)
        self.clear()  # all batches so far compute with them
        if (why := why_not_capturable(model)) is not None:  # it has windows, say
            raise CaptureError(f"{problem}, and without kernels {why}") from None

    def _follow(self, model: Any) -> None:
        """Let go of graphs that are not of this model as it is now.

        A graph reads weights at the addresses of its capture. Replayed after they have moved, it
        would read freed memory, and give tokens without an error.
        """
        state = forward_state(model)
        if state != self._state:
            _refuse_in_background()
            self.clear()
            self._checked.clear()
            self._state = state
        if self._stream is None and device_of(model).type == "cuda":
            self._stream = _capture_stream(device_of(model))

    def _prepare(
        self, model: Any, turns: Sequence[Turn], rows: int
    ) -> tuple[StaticBatch, BatchPlan]:
        if shared := self._count_shared(turns):
            self._read_beginning(model, turns[0].prompt.ids[:shared])
        # Counted once, before rows are copied: `_assign` leaves out what it overwrites.
        known = _KnownTokens(turns, self._all())
        shape = Shape(rows, _length_for(turns, model))
        batch = self._find(turns, shape, known)
        if batch is None:
            _refuse_in_background()
            while len(self._batches) >= MAX_BATCHES:
                self._batches.pop(0)
            batch = StaticBatch(model, shape, kernels=self.why_no_kernels is None)
        else:
            self._batches.remove(batch)
        self._batches.append(batch)
        assignments = self._assign(turns, batch, known)
        self._drop_outgrown(batch)
        plan = BatchPlan(assignments, Passes.over(assignments, rows), choosing_of(turns))
        self._capture(model, batch, plan)
        return batch, plan

    def _capture(self, model: Any, batch: StaticBatch, plan: BatchPlan) -> None:
        """Check and capture what has not been."""
        if batch.is_prepared(plan):
            if batch.way != "captured":
                # Every step patches the model again, and training would meet the patches.
                _refuse_in_background()
            return
        _refuse_in_background()
        began = time.perf_counter()
        key = batch.kernels, batch.shape.rows, plan.passes.chunk
        try:
            if key not in self._checked:
                batch.compile_kernels(plan, self._stream)
                batch.check(plan, self._stream)
                self._checked.add(key)
            self._pool = batch.capture(plan, self._pool, self._stream)
        except CaptureError:
            raise
        except Exception as error:
            # The model's own code runs here, under capture: anything may be raised. Memory is no
            # reason to give captures up: the decoder tries again with fewer rows.
            if is_out_of_memory(error):
                raise
            raise CaptureError(describe_error(error)) from error
        finally:
            self.prepared_seconds += time.perf_counter() - began
        # Buffers that a first pass creates (rotary tables, say) exist now; older graphs lack them.
        if (state := forward_state(model)) != self._state:
            self._batches = [batch] if batch in self._batches else []
            self._beginning = None
            self._state = state

    # --- Which batch, and which rows ---

    def _find(self, turns: Sequence[Turn], shape: Shape, known: _KnownTokens) -> StaticBatch | None:
        """Return the batch that knows most of the turns; among equals the shortest.

        Without one the turns would get a batch of that shape.
        """
        needed = max(len(turn.prompt.ids) + turn.prompt.max_new for turn in turns)
        # With the kernels of Triton, columns that are not filled cost nothing but memory.
        fitting = [
            batch
            for batch in self._batches
            if batch.shape.rows == shape.rows
            and batch.shape.length >= needed
            and (batch.kernels or batch.shape == shape)
        ]
        if not fitting:
            return None
        best = min(fitting, key=lambda batch: (-known.sum_in(batch), batch.shape.length))
        continued = any(turn.prompt.continued for turn in turns)
        if known.sum_in(best) or not continued or not any(best.held):
            return best
        # Other conversations are in it, and will go on: where there is memory, one batch more.
        more = len(self._batches) < MAX_BATCHES and best.has_room_for_another()
        return None if more and not is_background_thread() else best

    def _assign(
        self, turns: Sequence[Turn], batch: StaticBatch, known: _KnownTokens
    ) -> list[RowAssignment]:
        """Give each turn a row: the one that knows it, or one that its beginning is copied to."""
        found: dict[int, RowAssignment] = {}
        taken: set[int] = set()
        for number in sorted(range(len(turns)), key=lambda n: -known.best(n, batch, set())[1]):
            row, count = known.best(number, batch, taken)
            # A row that has only its beginning in common is another conversation's.
            if count >= WORTH_KEEPING and 2 * count >= len(batch.held[row]):
                found[number] = RowAssignment(turns[number], row, count)
                taken.add(row)
        # What holds the least is overwritten first: the rest may be asked for in a later call.
        free = sorted(set(range(batch.shape.rows)) - taken, key=lambda row: len(batch.held[row]))
        # A row must not be copied after it was overwritten. Rows of other batches are only read
        # here. Of this batch, `overwritten` are all rows that this loop is going to write, so none
        # of them is a source, not even before its turn: which comes first would decide what a turn
        # knows.
        overwritten = set(free[: len(turns) - len(found)])
        moved: list[tuple[StaticBatch, int]] = []
        for number, turn in enumerate(turns):
            if number in found:
                continue
            row, count = free.pop(0), 0
            for other in self._all():
                there = known.best(number, other, overwritten if other is batch else set())
                if there[1] > count:
                    source, (source_row, count) = other, there
            if count >= WORTH_KEEPING:
                batch.copy_row(row, source, source_row, count)
                if count == len(source.held[source_row]) and source is not self._beginning:
                    # The conversation goes on here. Forgotten only after the loop: another turn may
                    # go on from the same row.
                    moved.append((source, source_row))
            found[number] = RowAssignment(turn, row, count if count >= WORTH_KEEPING else 0)
        for source, source_row in moved:
            source.held[source_row] = ()
        return [found[number] for number in range(len(turns))]

    def _drop_outgrown(self, batch: StaticBatch) -> None:
        """Free shorter batches whose conversations went on in this one."""
        rows, length = batch.shape
        self._batches = [
            other
            for other in self._batches
            if any(other.held) or other.shape.rows != rows or other.shape.length >= length
            or not batch.kernels
        ]  # fmt: skip

    # --- A common beginning ---

    def _count_shared(self, turns: Sequence[Turn]) -> int:
        """Count the tokens that all turns begin with, if computing them once is worth it."""
        shared = common_prefix([turn.prompt.ids for turn in turns]) if len(turns) > 1 else 0
        if shared * (len(turns) - 1) < WORTH_SHARING:
            return 0
        known = _KnownTokens(turns, self._all())
        missing = [max(0, shared - known.longest(number)) for number in range(len(turns))]
        return shared if sum(missing) - shared >= WORTH_SHARING else 0

    def _read_beginning(self, model: Any, ids: tuple[int, ...]) -> None:
        """Compute the keys and values of what prompts begin with."""
        batch = self._beginning
        if batch is None or batch.shape.length <= len(ids):
            _refuse_in_background()
            shape = Shape(1, round_up(len(ids) + 1))
            batch = StaticBatch(model, shape, kernels=self.why_no_kernels is None)
        assignments = [RowAssignment(Turn(0, Prompt(ids, 1), None, frozenset()), 0, 0)]
        plan = BatchPlan(assignments, Passes.over(assignments, 1), "greedy")
        self._capture(model, batch, plan)
        batch.read_prompts(plan)
        self._beginning = batch


class _KnownTokens:
    """How many tokens of each turn's prompt the rows of batches hold, from its first one on."""

    def __init__(self, turns: Sequence[Turn], batches: Sequence[StaticBatch]) -> None:
        self._turns = turns
        self._counts = {batch: self._count(batch) for batch in batches if any(batch.held)}

    def _count(self, batch: StaticBatch) -> Any:
        """Return [turns, rows]."""
        import numpy as np

        lengths = np.array([len(held) for held in batch.held])
        held = np.full((len(lengths), lengths.max() + 1), -1)
        for row, ids in enumerate(batch.held):
            held[row, : len(ids)] = ids
        counts = np.zeros((len(self._turns), len(lengths)), int)
        for number, turn in enumerate(self._turns):
            # The last token is always computed: what follows it is asked for.
            wanted = np.array((*turn.prompt.ids[:-1], -2))[: held.shape[1]]
            counts[number] = (held[:, : len(wanted)] != wanted).argmax(1)
        return counts

    def best(self, number: int, batch: StaticBatch, exclude: Set[int]) -> tuple[int, int]:
        """Return the row of a batch that knows most of a turn, and how much."""
        if batch not in self._counts:
            return 0, 0
        counts = self._counts[batch][number].copy()
        counts[list(exclude)] = 0
        row = int(counts.argmax())
        return row, int(counts[row])

    def longest(self, number: int) -> int:
        """Return how much of a turn is known in any row."""
        return max((int(counts[number].max()) for counts in self._counts.values()), default=0)

    def sum_in(self, batch: StaticBatch) -> int:
        """Return how many tokens of all turns the rows of a batch know."""
        if batch not in self._counts:
            return 0
        counts = self._counts[batch].max(1)
        return int(counts[counts >= WORTH_KEEPING].sum())


def _length_for(turns: Sequence[Turn], model: Any) -> int:
    """Return the length of a batch; conversations that go on get room to grow."""
    needed = max(len(turn.prompt.ids) + turn.prompt.max_new for turn in turns)
    length = round_up(needed)
    if any(turn.prompt.continued for turn in turns):
        context = getattr(transformers_model(model).config, "max_position_embeddings", None)
        # Rounded up, too: the chunks of a prompt have to fit.
        length = max(length, round_up(min(1 << needed.bit_length(), context or length)))
    return length


@functools.cache
def _capture_stream(device: Any) -> Any:
    """Return the stream that all captures on a device share.

    CUDA's libraries keep a workspace of 32 MiB for every stream they meet, until the process ends:
    with a stream for each decoder, every curve would take that much from training.
    """
    import torch

    return torch.cuda.Stream(device)


def _refuse_in_background() -> None:
    if is_background_thread():
        raise NeedsTrainerThread("steps of this shape are not captured yet")
