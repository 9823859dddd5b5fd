"""Decoding in batches of fixed shapes, so that a GPU can replay it as captured graphs.

Launching the kernels of one step from Python takes ten times as long as running them. So one pass
over a chunk of the prompts and one decode step are captured and replayed: tokens, positions and
cache are buffers that the pass itself updates. Every row begins at column 0 of the cache and has a
position of its own, so a graph serves prompts of any length: long ones take several passes, and
what a row's cache holds already (a conversation so far, a system prompt) is not computed again.
Missing rows are filled up, and finished rows run on unused: the tokens of a row do not depend on
the rest of the batch. The host reads the tokens only every few steps, while the next ones run.
Sampled tokens need the kernels of Triton, whose random numbers are a row's own.

Graphs read the weights at the addresses of the capture. Training changes them in place, so graphs
stay valid; `placing.py` checks before each use that nothing has moved.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

from heldout._live.decoding.captured.batch_plan import BatchPlan, Choosing, RowState, Shape
from heldout._live.decoding.captured.capturable import CaptureError
from heldout._live.decoding.captured.fusing import fused_kernels
from heldout._live.decoding.checking import how_far_off, own_logits, rows_to_compare
from heldout._live.decoding.model import HoldsModel, has_full_attention, transformers_model
from heldout._live.decoding.turn import NOT_FINITE, Callbacks, Turn

STEPS_PER_READ = 16
"""Decode steps between two reads of the tokens by the host."""


class StaticBatch(HoldsModel):
    """The buffers of one shape, a pass over prompts and a decode step on them, and their graphs.

    Everything stays in place, so that a step is the same work every time: the token, its position
    and the columns of the cache are tensors that the step reads and updates itself.
    """

    def __init__(self, model: Any, shape: Shape, *, kernels: bool) -> None:
        import torch
        from transformers import DynamicCache, StaticCache

        super().__init__(weakref.ref(model))  # kept between evals, longer maybe than the model
        base = transformers_model(model)
        self.shape, self.kernels = shape, kernels
        rows, length = shape
        first = next(model.parameters())
        self._device, self._dtype = first.device, first.dtype
        self._cuda = self._device.type == "cuda"
        self.way: Literal["captured", "static"] = "captured" if self._cuda else "static"
        self._graphs: dict[tuple[int, Choosing], Any] = {}
        """By the number of tokens in each row: a chunk's, or 1 for the decode step."""
        self.held: list[tuple[int, ...]] = [()] * rows
        """The tokens whose keys and values a row's cache has, from its first column on.

        Emptied before anything is written to the row, and set only afterwards: a failure in between
        must leave a row that is said to hold too little, never too much."""

        def zeros(*size: int) -> Any:
            return torch.zeros(size, dtype=torch.long, device=self._device)

        self._ids, self._lengths = zeros(rows, length), zeros(rows)
        # Tokens of every prompt still unread; chunks align at the prompts' ends.
        self._left = zeros(1)
        self._token, self._made = zeros(rows, 1), zeros(1)
        self._tokens = zeros(length + 1, rows)
        self._host_tokens = torch.zeros(self._tokens.shape, dtype=torch.long, pin_memory=self._cuda)
        positions = getattr(base.config, "max_position_embeddings", None) or 1 << 30
        self._last_position = positions - 1
        self._columns = torch.arange(length, device=self._device)
        # A row ends at its last position, or earlier: then nothing more is computed for it.
        self._state = RowState(known=zeros(rows), position=zeros(rows), end=zeros(rows))
        self._host_ends = torch.zeros(rows, dtype=torch.long, pin_memory=self._cuda)
        # With the kernels of Triton no mask is read, but the model must not make one.
        self._no_mask = torch.zeros((1, 1, 1, 1), dtype=self._dtype, device=self._device)
        has_windows = not has_full_attention(DynamicCache(config=base.config))
        layer_types = getattr(base.config, "layer_types", None)
        self._mask_by_type = has_windows and layer_types is not None
        self._cache = StaticCache(config=base.config, max_cache_len=length)
        self._layers = [_LayerCache(length, self._state, kernels) for _ in self._cache.layers]
        for layer, replacement in zip(self._cache.layers, self._layers, strict=True):
            layer.update = replacement.update
        self._seeds = zeros(rows)
        self._temperatures = torch.zeros(rows, device=self._device)
        self._shares = torch.ones(rows, device=self._device)

    # --- What is captured ---

    def _read_chunk(self, chunk: int, choosing: Choosing) -> Any:
        """Fill the cache from a chunk of every prompt, and choose the tokens that follow it.

        The chunks of a row end at the end of its prompt. So the last token of every prompt is last
        in the last pass, whatever its length, and the logits of that one place are enough. What
        stands before a row's first unknown token is computed and thrown away.
        """
        import torch

        state, length = self._state, self.shape.length
        state.begin = self._lengths - self._left
        columns = state.begin[:, None] + self._columns[:chunk]
        state.columns = torch.where(columns >= state.known[:, None], columns, length)
        positions = columns.clamp(min=0)
        ids = self._ids.gather(1, positions)
        # A token before the beginning attends to the first one: a softmax needs something.
        visible = None if self.kernels else self._columns <= positions[..., None]
        logits = self._forward(ids, self._mask(visible), positions)
        self._left.sub_(chunk)
        state.position.copy_(self._lengths)
        self._made.zero_()
        self._choose(logits, choosing)
        return logits

    def _step(self, choosing: Choosing) -> Any:
        """Decode one more token in every row."""
        import torch

        state = self._state
        position = state.position
        state.columns = torch.where(position < state.end, position, self.shape.length)[:, None]
        visible = None if self.kernels else self._columns <= position[:, None, None]
        # Rows that have ended count on, and a table of positions has no more than these.
        positions = position[:, None].clamp(max=self._last_position)
        logits = self._forward(self._token, self._mask(visible), positions)
        position.add_(1)
        self._choose(logits, choosing)
        return logits

    def _mask(self, visible: Any) -> Any:
        """Turn [rows, new, length] into a mask that is added to attention scores.

        One new token has a mask for each row and key head, as attention of a step wants it.
        """
        import torch

        if visible is None:
            mask = self._no_mask
        else:
            zero = torch.zeros((), dtype=self._dtype, device=self._device)
            mask = torch.where(visible, zero, float("-inf"))[:, None]
            if visible.shape[1] == 1:
                mask = mask.repeat_interleave(self._layers[0].kept[0].shape[1], 0)
        if not self._mask_by_type:
            return mask
        return dict.fromkeys(("full_attention", "sliding_attention"), mask)

    def _forward(self, ids: Any, mask: Any, positions: Any) -> Any:
        """Return the logits of the last position."""
        return self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits

    def _choose(self, logits: Any, choosing: Choosing) -> None:
        import torch

        highest, tokens = self._choose_tokens(logits[:, -1], choosing)
        fine = highest.abs() < float("inf")
        self._tokens.index_copy_(0, self._made, torch.where(fine, tokens, NOT_FINITE)[None])
        # Others in the batch go on: what comes next in this row is some token, and is not read.
        self._token.copy_(torch.where(fine, tokens, 0)[:, None])
        self._made.add_(1)

    def _choose_tokens(self, logits: Any, choosing: Choosing) -> tuple[Any, Any]:
        """Return each row's highest logit, which is NaN if any is, and its token."""
        if choosing == "greedy":
            highest, tokens = logits.max(-1)
            return highest, tokens
        from heldout._live.decoding.captured import kernels

        least = None
        if choosing == "nucleus":
            least = kernels.find_nucleus(logits, self._temperatures, self._shares)
        tokens = kernels.choose(logits, self._temperatures, self._seeds, self._made, least)
        return logits.amax(-1), tokens

    def _fused(self) -> AbstractContextManager[None]:
        return fused_kernels(
            transformers_model(self._model), self._state if self.kernels else None, self._layers
        )

    # --- Preparation ---

    def is_prepared(self, plan: BatchPlan) -> bool:
        """Whether there are graphs for the passes of a plan and the steps that follow them."""
        return all((width, plan.choosing) in self._graphs for width in (plan.passes.chunk, 1))

    def compile_kernels(self, plan: BatchPlan, stream: Any) -> None:
        """Compile the kernels of a pass and a step together: one by one they take seconds.

        Which there are, and for what numbers and types, is known by running the model without them.
        """
        if not (self.kernels and self._cuda):
            return
        from heldout._live.decoding.captured.launching import compile_launches, noted_launches

        self._load(plan)
        with noted_launches() as launches, _on_stream(stream), self._fused():
            self._read_chunk(plan.passes.chunk, plan.choosing)
            self._token.zero_()  # nobody has chosen it, and what is in its memory may be no token
            self._step(plan.choosing)
        compile_launches(launches, self._device)

    def check(self, plan: BatchPlan, stream: Any) -> None:
        """Compare the logits of prompts and first step with the model's own.

        Args:
            plan: The first one of this shape; two of its turns are compared.
            stream: That of captures; None without a GPU.

        Raises:
            CaptureError: They differ.
        """
        self._load(plan)
        chunk, number = plan.passes
        with _on_stream(stream), self._fused():
            logits = [self._read_chunk(chunk, "greedy") for _ in range(number)][-1:]
            tokens = self._token.clone()
            logits.append(self._step("greedy"))
        for one in rows_to_compare([turn.prompt.ids for turn, _, _ in plan.assignments]):
            turn, row, _ = plan.assignments[one]
            own = own_logits(self._model, [*turn.prompt.ids, int(tokens[row])], len(logits))
            for seen, wanted in zip(logits, own, strict=True):
                if (off := how_far_off(self._model, seen[row, -1], wanted)) is not None:
                    raise CaptureError(f"with fixed shapes its logits are {off}")

    def capture(self, plan: BatchPlan, pool: Any, stream: Any) -> Any:
        """Capture what is missing of a pass and a step; without a GPU nothing is captured.

        Args:
            plan: The passes and steps to capture, with turns to warm up with.
            pool: The memory that graphs share; None before the first capture.
            stream: That of captures.

        Returns:
            The pool.
        """
        chunk, choosing = plan.passes.chunk, plan.choosing

        def read() -> Any:
            return self._read_chunk(chunk, choosing)

        def step() -> Any:
            return self._step(choosing)

        if not self._cuda:
            self._graphs |= {(chunk, choosing): None, (1, choosing): None}
            return None
        self._load(plan)
        with self._fused():
            with _on_stream(stream):
                if not self._layers[0].kept:
                    read()  # makes the caches
                    self._left.fill_(chunk)  # no pass may begin behind the prompts
                with _refuse_synchronization():
                    read()
                    step()
            for width, work in ((chunk, read), (1, step)):
                if (width, choosing) not in self._graphs:
                    self._graphs[width, choosing] = _capture(work, pool, stream)
                    pool = self._graphs[width, choosing].pool()
        return pool

    # --- A batch ---

    def read_prompts(self, plan: BatchPlan) -> None:
        """Fill the rows' caches from their prompts."""
        self._load(plan)
        chunk, number = plan.passes
        graph = self._graphs[chunk, plan.choosing]
        with nullcontext() if graph else self._fused():
            for _ in range(number):
                graph.replay() if graph else self._read_chunk(chunk, plan.choosing)
        for turn, row, _ in plan.assignments:
            self.held[row] = turn.prompt.ids

    def decode(self, plan: BatchPlan, callbacks: Callbacks) -> None:
        """Decode all turns together, inside `deterministic_inference`; polls every few steps."""
        self.read_prompts(plan)
        graph = self._graphs[1, plan.choosing]
        with nullcontext() if graph else self._fused():
            made, read = 1, 0
            active = {row: turn for turn, row, _ in plan.assignments}
            while active and callbacks.keep_going():
                wait_for_tokens = self._copy_to_host(read, made)
                limit = max(turn.prompt.max_new for turn in active.values())
                read = made
                # The next steps run while the host reads the tokens of the last ones.
                while made < min(limit, read + STEPS_PER_READ):
                    graph.replay() if graph else self._step(plan.choosing)
                    made += 1
                steps = wait_for_tokens()
                before = len(active)
                for row, turn in list(active.items()):
                    if not callbacks.wanted(turn.index):
                        del active[row]
                        continue
                    if not all(callbacks.take(turn, tokens[row]) for tokens in steps):
                        del active[row]
                if len(active) < before:
                    self._set_ends(active)
        for turn, row, _ in plan.assignments:
            # The last token has been chosen, but its keys and values need not be there.
            self.held[row] = turn.prompt.ids + tuple(turn.ids[:-1])

    def copy_row(self, row: int, source: StaticBatch, source_row: int, count: int) -> None:
        """Take the first columns of a row from a row of this or another batch.

        The row holds nothing until the rest of its prompt is read: neither what it held, nor yet
        what it is about to.
        """
        self.held[row] = ()
        for layer, other in zip(self._layers, source._layers, strict=True):
            for kept, states in zip(layer.make(other.kept), other.kept, strict=True):
                kept[row, :, :count].copy_(states[source_row, :, :count])

    def has_room_for_another(self) -> bool:
        """Whether the GPU has memory for a batch like this one, and as much again."""
        if not self._cuda:
            return True
        import torch

        size = sum(kept.nbytes for layer in self._layers for kept in layer.kept)
        reusable = torch.cuda.memory_reserved(self._device)
        reusable -= torch.cuda.memory_allocated(self._device)
        return bool(torch.cuda.mem_get_info(self._device)[0] + reusable > 2 * size)

    def _load(self, plan: BatchPlan) -> None:
        """Copy the prompts into their buffers; a row without a turn gets one known token."""
        import torch

        rows, length = self.shape
        ids = torch.zeros((rows, length), dtype=torch.long)
        lengths, known = [1] * rows, [1] * rows
        for turn, row, known_tokens in plan.assignments:
            prompt = turn.prompt.ids
            ids[row, : len(prompt)] = torch.tensor(prompt)
            lengths[row], known[row] = len(prompt), known_tokens
            self.held[row] = ()
        self._ids.copy_(ids)
        self._lengths.copy_(torch.tensor(lengths))
        self._state.known.copy_(torch.tensor(known))
        self._left.fill_(plan.passes.chunk * plan.passes.number)
        if not self.kernels:
            # A diverged model leaves NaNs, and a masked NaN is still a NaN.
            for _, row, known_tokens in plan.assignments:
                for layer in self._layers:
                    for kept in layer.kept:
                        kept[row, :, known_tokens:].zero_()
        self._set_ends({row: turn for turn, row, _ in plan.assignments})
        seeds, temperatures, shares = [0] * rows, [0.0] * rows, [1.0] * rows
        for turn, row, _ in plan.assignments:
            seeds[row], temperatures[row] = turn.seed, turn.prompt.temperature
            shares[row] = 1.0 if turn.prompt.top_p is None else turn.prompt.top_p
        self._seeds.copy_(torch.tensor(seeds))
        self._temperatures.copy_(torch.tensor(temperatures))
        self._shares.copy_(torch.tensor(shares))

    def _set_ends(self, active: Mapping[int, Turn]) -> None:
        """Have nothing more computed for rows that are not active, and for others at their end.

        The copy does not wait, and reads the host's buffer when the GPU comes to it. The buffer may
        be written again since the host waits for the GPU in between: in `decode` for the tokens
        that follow, in `_load` for the copies before this one.
        """
        self._host_ends.zero_()
        for row, turn in active.items():
            self._host_ends[row] = len(turn.prompt.ids) + turn.prompt.max_new
        self._state.end.copy_(self._host_ends, non_blocking=True)

    def _copy_to_host(self, first: int, end: int) -> Callable[[], list[list[int]]]:
        """Start copying the new tokens `first` to `end`; the result waits for them."""
        import torch

        self._host_tokens[first:end].copy_(self._tokens[first:end], non_blocking=True)
        event = torch.cuda.Event() if self._cuda else None
        if event is not None:
            event.record()

        def wait_for_tokens() -> list[list[int]]:
            if event is not None:
                event.synchronize()
            tokens: list[list[int]] = self._host_tokens[first:end].tolist()
            return tokens

        return wait_for_tokens


class _LayerCache:
    """Keys and values of one layer, and how those of a pass are written into their columns.

    It refers neither to the cache nor to the batch: in a reference cycle a released cache would
    stay in memory until the next garbage collection.
    """

    def __init__(self, length: int, state: RowState, kernels: bool) -> None:
        self._length, self._state, self._kernels = length, state, kernels
        self.kept: list[Any] = []
        """Keys and values, [rows, key heads, length + 1, size]; the last column is never read."""

    def make(self, like: Sequence[Any]) -> list[Any]:
        """Return keys and values, made for states like these if they are not there yet."""
        if not self.kept:
            rows = len(self._state.end)
            self.kept = [
                states.new_zeros((rows, states.shape[1], self._length + 1, states.shape[-1]))
                for states in like
            ]
        return self.kept

    def update(self, keys: Any, values: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        kept, columns = self.make((keys, values)), self._state.columns
        if self._kernels:
            from heldout._live.decoding.captured.kernels import cache

            cache(keys, values, kept[0], kept[1], columns)
            return kept[0], kept[1]
        import torch

        rows = torch.arange(len(columns), device=columns.device)[:, None]
        for states, new in zip(kept, (keys, values), strict=True):
            states[rows, :, columns] = new.transpose(1, 2)
        return kept[0][:, :, : self._length], kept[1][:, :, : self._length]


# --- Capturing ----------------------------------------------------------------------------------


@contextmanager
def _on_stream(stream: Any) -> Iterator[None]:
    """Run on the stream of captures, where everything to be captured has to be warmed up."""
    if stream is None:
        yield
        return
    import torch

    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        current.wait_stream(stream)


@contextmanager
def _refuse_synchronization() -> Iterator[None]:
    """Raise where code waits for the GPU: in a capture that fails too, and harms the allocator."""
    import torch

    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode")  # a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _capture(work: Callable[[], object], pool: Any, stream: Any) -> Any:
    import torch

    graph = torch.cuda.CUDAGraph()
    # Other threads (pinning, collectives) may use the GPU meanwhile.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph
