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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

from heldout.decoding.fusing import RowPlaces, fused_kernels
from heldout.decoding.model import CaptureError, has_full_attention, transformers_model
from heldout.decoding.turn import Callbacks, Turn

SIZE_STEP = 64
"""Chunks and lengths are multiples of this, so that evals reuse shapes."""
MOST_PER_PASS = 1 << 14
"""Tokens of all rows that one pass over prompts computes, at least a chunk of 64 in each row."""
STEPS_PER_READ = 16
"""Decode steps between two reads of the tokens by the host."""


class Shape(NamedTuple):
    """The shape of a batch in tokens."""

    rows: int
    length: int
    """Of the whole sequences."""


Choosing = Literal["greedy", "sampled", "nucleus"]
"""How the tokens of a batch are chosen: with one sampled row, by the kernel that samples."""


def choosing_of(turns: Sequence[Turn]) -> Choosing:
    """Return the simplest way that serves all turns."""
    sampled = [turn.prompt for turn in turns if turn.sampled]
    if any(prompt.top_p is not None and prompt.top_p < 1 for prompt in sampled):
        return "nucleus"
    return "sampled" if sampled else "greedy"


def round_up(count: int) -> int:
    """Round up to a multiple of 64, or of a fourth of its own magnitude where that is more."""
    step = max(SIZE_STEP, 1 << max(0, count.bit_length() - 3))
    return -(-count // step) * step


class Placed(NamedTuple):
    """A turn in its row, and how many tokens of its prompt that row's cache holds."""

    turn: Turn
    row: int
    known: int


class Passes(NamedTuple):
    """How the unknown part of prompts is computed: passes over a chunk of each row."""

    chunk: int
    number: int

    @classmethod
    def over(cls, placed: Sequence[Placed], rows: int) -> Passes:
        """Return as few passes as `MOST_PER_PASS` allows."""
        new = max(len(place.turn.prompt.ids) - place.known for place in placed)
        number = -(-new // max(SIZE_STEP, MOST_PER_PASS // rows))
        return cls(round_up(-(-new // number)), number)


class StaticBatch:
    """The buffers of one shape, a pass over prompts and a decode step on them, and their graphs.

    Everything stays in place, so that a step is the same work every time: the token, its position
    and the columns of the cache are tensors that the step reads and updates itself.
    """

    def __init__(self, model: Any, shape: Shape, *, kernels: bool) -> None:
        import torch
        from transformers import DynamicCache, StaticCache

        self._model, self._base = model, transformers_model(model)
        self.shape, self.kernels = shape, kernels
        rows, length = shape
        first = next(model.parameters())
        self._device, self._dtype = first.device, first.dtype
        self._cuda = self._device.type == "cuda"
        self.way: Literal["captured", "static"] = "captured" if self._cuda else "static"
        self._graphs: dict[tuple[int, Choosing], Any] = {}
        """By the number of tokens in each row: a chunk's, or 1 for the decode step."""
        self.held: list[tuple[int, ...]] = [()] * rows
        """The tokens whose keys and values a row's cache has, from its first column on."""

        def zeros(*size: int) -> Any:
            return torch.zeros(size, dtype=torch.long, device=self._device)

        self._ids, self._lengths = zeros(rows, length), zeros(rows)
        # How far the next chunk begins before the end of each prompt.
        self._left = zeros(1)
        self._token, self._made = zeros(rows, 1), zeros(1)
        self._tokens = zeros(length + 1, rows)
        self._host_tokens = torch.zeros(self._tokens.shape, dtype=torch.long, pin_memory=self._cuda)
        positions = getattr(self._base.config, "max_position_embeddings", None) or 1 << 30
        self._last_position = positions - 1
        self._columns = torch.arange(length, device=self._device)
        # A row ends at its last position, or earlier: then nothing more is computed for it.
        self._places = RowPlaces(known=zeros(rows), position=zeros(rows), end=zeros(rows))
        self._host_ends = torch.zeros(rows, dtype=torch.long, pin_memory=self._cuda)
        # With the kernels of Triton no mask is read, but the model must not make one.
        self._no_mask = torch.zeros((1, 1, 1, 1), dtype=self._dtype, device=self._device)
        windows = not has_full_attention(DynamicCache(config=self._base.config))
        self._window = self._base.config.sliding_window if windows else None
        self._cache = StaticCache(config=self._base.config, max_cache_len=length)
        self._layers = [_LayerCache(length, self._places, kernels) for _ in self._cache.layers]
        for layer, replacement in zip(self._cache.layers, self._layers, strict=True):
            layer.update = replacement.update
        self._seeds = zeros(rows)
        self._temperatures = torch.zeros(rows, device=self._device)
        self._shares = torch.ones(rows, device=self._device)

    # --- What is captured ---

    def _read_chunk(self, chunk: int, choosing: Choosing) -> Any:
        """Fill the cache from a chunk of every prompt, and choose the tokens that follow it.

        The chunks of a row end at the end of its prompt; what stands before its first unknown token
        is computed and thrown away.
        """
        import torch

        places, length = self._places, self.shape.length
        places.begin = self._lengths - self._left
        columns = places.begin[:, None] + self._columns[:chunk]
        places.columns = torch.where(columns >= places.known[:, None], columns, length)
        positions = columns.clamp(min=0)
        ids = self._ids.gather(1, positions)
        # A token before the beginning attends to the first one: a softmax needs something.
        visible = None if self.kernels else self._columns <= positions[..., None]
        logits = self._forward(ids, self._mask(visible), positions)
        self._left.sub_(chunk)
        places.position.copy_(self._lengths)
        self._made.zero_()
        self._choose(logits, choosing)
        return logits

    def _step(self, choosing: Choosing) -> Any:
        """Decode one more token in every row."""
        import torch

        places = self._places
        position = places.position
        places.columns = torch.where(position < places.end, position, self.shape.length)[:, None]
        visible = None if self.kernels else self._columns <= position[:, None, None]
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
        several = getattr(self._base.config, "layer_types", None)
        if self._window is None or several is None:
            return mask
        return dict.fromkeys(("full_attention", "sliding_attention"), mask)

    def _forward(self, ids: Any, mask: Any, positions: Any, cache: Any = None) -> Any:
        """Return the logits of the last position."""
        return self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache if cache is None else cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits

    def _choose(self, logits: Any, choosing: Choosing) -> None:
        tokens = self._choose_tokens(logits[:, -1], choosing)
        self._tokens.index_copy_(0, self._made, tokens[None])
        self._token.copy_(tokens[:, None])
        self._made.add_(1)

    def _choose_tokens(self, logits: Any, choosing: Choosing) -> Any:
        if choosing == "greedy":
            return logits.argmax(-1)
        from heldout.decoding import kernels

        least = None
        if choosing == "nucleus":
            least = kernels.find_nucleus(logits, self._temperatures, self._shares)
        return kernels.choose(logits, self._temperatures, self._seeds, self._made, least)

    def _fused(self) -> AbstractContextManager[None]:
        return fused_kernels(self._base, self._places if self.kernels else None, self._layers)

    # --- Preparation ---

    def is_prepared(self, passes: Passes, choosing: Choosing) -> bool:
        """Whether there are graphs for these passes and the steps that follow them."""
        return all((width, choosing) in self._graphs for width in (passes.chunk, 1))

    def check(self, placed: Sequence[Placed], passes: Passes, stream: Any) -> None:
        """Compare the logits of prompts and first step with the model's usual ones.

        Args:
            placed: The first turns of this shape. As many are compared as fit into a pass.
            passes: Over their prompts.
            stream: That of captures; None without a GPU.

        Raises:
            CaptureError: They differ.
        """
        import torch

        self._load(placed, passes)
        with _on_stream(stream), self._fused():
            logits = [self._read_chunk(passes.chunk, "greedy") for _ in range(passes.number)][-1:]
            tokens = self._token.clone()
            logits.append(self._step("greedy"))
        longest = max(len(place.turn.prompt.ids) for place in placed)
        compared = placed[: max(1, MOST_PER_PASS // longest)]
        rows = [place.row for place in compared]
        # Autocast computes in half precision where weights have a whole one.
        kinds = {kept.dtype for layer in self._layers for kept in layer.kept}
        tolerance = 0.01 if kinds == {torch.float32} else 0.1
        for a, b in zip(logits, self._usual_logits(compared, tokens[rows]), strict=True):
            a, b = (torch.nan_to_num(logits.float()) for logits in (a[rows], b))
            error = float((a - b).norm() / b.norm().clamp(min=1e-30))
            if error > tolerance:
                raise CaptureError(f"with fixed shapes its logits are {error:.0%} off")

    def _usual_logits(self, placed: Sequence[Placed], tokens: Any) -> Iterator[Any]:
        """Yield the logits of prompts and first step as the model usually computes them."""
        import torch
        from transformers import DynamicCache

        cache = DynamicCache(config=self._base.config)
        prompts = [place.turn.prompt.ids for place in placed]
        width = max(map(len, prompts))
        missing = [width - len(prompt) for prompt in prompts]
        ids = torch.tensor([(0,) * n + p for n, p in zip(missing, prompts, strict=True)])
        columns = torch.arange(width, device=self._device)
        mask = (columns >= torch.tensor(missing, device=self._device)[:, None]).long()
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        for step in (ids.to(self._device), tokens):
            yield self._forward(step, mask, positions, cache)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=-1)
            positions = positions[:, -1:] + 1

    def capture(
        self,
        placed: Sequence[Placed],
        passes: Passes,
        choosing: Choosing,
        pool: Any,
        stream: Any,
    ) -> Any:
        """Capture what is missing of a pass and a step; without a GPU nothing is captured.

        Args:
            placed: Turns to warm up with.
            passes: Over their prompts.
            choosing: How their tokens are chosen.
            pool: The memory that graphs share; None before the first capture.
            stream: That of captures.

        Returns:
            The pool.
        """

        def read() -> Any:
            return self._read_chunk(passes.chunk, choosing)

        def step() -> Any:
            return self._step(choosing)

        if not self._cuda:
            self._graphs |= {(passes.chunk, choosing): None, (1, choosing): None}
            return None
        self._load(placed, passes)
        with self._fused():
            with _on_stream(stream):
                if not self._layers[0].kept:
                    read()  # makes the caches
                    self._left.fill_(passes.chunk)  # no pass may begin behind the prompts
                with _refuse_synchronization():
                    read()
                    step()
            for width, work in ((passes.chunk, read), (1, step)):
                if (width, choosing) not in self._graphs:
                    self._graphs[width, choosing] = _capture(work, pool, stream)
                    pool = self._graphs[width, choosing].pool()
        return pool

    # --- A batch ---

    def read_prompts(self, placed: Sequence[Placed], passes: Passes, choosing: Choosing) -> None:
        """Fill the rows' caches from their prompts."""
        self._load(placed, passes)
        graph = self._graphs[passes.chunk, choosing]
        with nullcontext() if graph else self._fused():
            for _ in range(passes.number):
                graph.replay() if graph else self._read_chunk(passes.chunk, choosing)
        for turn, row, _ in placed:
            self.held[row] = turn.prompt.ids

    def decode(
        self, placed: Sequence[Placed], passes: Passes, choosing: Choosing, callbacks: Callbacks
    ) -> None:
        """Decode all turns together, inside `deterministic_inference`; polls every few steps."""
        self.read_prompts(placed, passes, choosing)
        graph = self._graphs[1, choosing]
        with nullcontext() if graph else self._fused():
            made, read = 1, 0
            active = {row: turn for turn, row, _ in placed}
            while active and callbacks.keep_going():
                wait_for_tokens = self._copy_to_host(read, made)
                limit = max(turn.prompt.max_new for turn in active.values())
                read = made
                # The next steps run while the host reads the tokens of the last ones.
                while made < min(limit, read + STEPS_PER_READ):
                    graph.replay() if graph else self._step(choosing)
                    made += 1
                steps = wait_for_tokens()
                before = len(active)
                for row, turn in list(active.items()):
                    if not callbacks.wanted(turn.index):
                        del active[row]
                        continue
                    for tokens in steps:
                        generation = turn.add(tokens[row])
                        if generation is not None:
                            callbacks.done(turn.index, generation)
                            del active[row]
                            break
                if len(active) < before:
                    self._set_ends(active)
        for turn, row, _ in placed:
            # The last token has been chosen, but its keys and values need not be there.
            self.held[row] = turn.prompt.ids + tuple(turn.ids[:-1])

    def copy_row(self, row: int, source: StaticBatch, source_row: int, count: int) -> None:
        """Take the first columns of a row from a row of this or another batch."""
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

    def _load(self, placed: Sequence[Placed], passes: Passes) -> None:
        """Copy the prompts into their buffers; a row without a turn gets one known token."""
        import torch

        rows, length = self.shape
        ids = torch.zeros((rows, length), dtype=torch.long)
        lengths, known = [1] * rows, [1] * rows
        for turn, row, known_tokens in placed:
            prompt = turn.prompt.ids
            ids[row, : len(prompt)] = torch.tensor(prompt)
            lengths[row], known[row] = len(prompt), known_tokens
            self.held[row] = ()
        self._ids.copy_(ids)
        self._lengths.copy_(torch.tensor(lengths))
        self._places.known.copy_(torch.tensor(known))
        self._left.fill_(passes.chunk * passes.number)
        if not self.kernels:
            # A diverged model leaves NaNs, and a masked NaN is still a NaN.
            for _, row, known_tokens in placed:
                for layer in self._layers:
                    for kept in layer.kept:
                        kept[row, :, known_tokens:].zero_()
        self._set_ends({row: turn for turn, row, _ in placed})
        seeds, temperatures, shares = [0] * rows, [0.0] * rows, [1.0] * rows
        for turn, row, _ in placed:
            seeds[row], temperatures[row] = turn.seed, turn.prompt.temperature
            shares[row] = 1.0 if turn.prompt.top_p is None else turn.prompt.top_p
        self._seeds.copy_(torch.tensor(seeds))
        self._temperatures.copy_(torch.tensor(temperatures))
        self._shares.copy_(torch.tensor(shares))

    def _set_ends(self, active: Mapping[int, Turn]) -> None:
        """Have nothing more computed for rows that are not active, and for others at their end."""
        self._host_ends.zero_()
        for row, turn in active.items():
            self._host_ends[row] = len(turn.prompt.ids) + turn.prompt.max_new
        self._places.end.copy_(self._host_ends, non_blocking=True)

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

    def __init__(self, length: int, places: RowPlaces, kernels: bool) -> None:
        self._length, self._places, self._kernels = length, places, kernels
        self.kept: list[Any] = []
        """Keys and values, [rows, key heads, length + 1, size]; the last column is never read."""

    def make(self, like: Sequence[Any]) -> list[Any]:
        """Return keys and values, made for states like these if they are not there yet."""
        if not self.kept:
            rows = len(self._places.end)
            self.kept = [
                states.new_zeros((rows, states.shape[1], self._length + 1, states.shape[-1]))
                for states in like
            ]
        return self.kept

    def update(self, keys: Any, values: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        kept, columns = self.make((keys, values)), self._places.columns
        if self._kernels:
            from heldout.decoding.kernels import cache

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
