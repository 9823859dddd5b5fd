"""Decoding in batches of fixed shapes, so that a GPU can replay it as captured graphs.

Launching the kernels of one step from Python takes ten times as long as running them. So the
prefill and one decode step are captured once per shape (rows, width, length) and replayed: tokens,
positions, mask and cache are buffers that the step itself updates. Prompts are padded on the left
up to the width, missing rows are filled up, and finished rows run on unused: the tokens of a row
do not depend on the rest of the batch. The host reads the tokens only every few steps, while the
next ones run. Sampled tokens need the kernels of Triton, whose random numbers are a row's own.

Graphs read the weights at the addresses of the capture. Training changes them in place, so graphs
stay valid; before each use it is checked that nothing has moved.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

from heldout.decoding.fusing import LiveRows, fused_kernels, why_no_triton
from heldout.decoding.model import (
    CaptureError,
    capture_state,
    device_of,
    has_full_attention,
    is_out_of_memory,
    transformers_model,
)
from heldout.decoding.turn import Callbacks, Turn

MAX_SHAPES = 4
SIZE_STEP = 64
"""Widths and numbers of new tokens are multiples of this, so that evals reuse shapes."""
STEPS_PER_READ = 16
"""Decode steps between two reads of the tokens by the host."""


class Shape(NamedTuple):
    """The shape of a batch in tokens."""

    rows: int
    width: int
    """Of the prompts, including padding."""
    length: int
    """Of the whole sequences."""


Choosing = Literal["greedy", "sampled", "nucleus"]
"""How the tokens of a batch are chosen: with one sampled row, by the kernel that samples."""


def _choosing_of(turns: list[Turn]) -> Choosing:
    sampled = [turn.prompt for turn in turns if turn.sampled]
    if any(prompt.top_p is not None and prompt.top_p < 1 for prompt in sampled):
        return "nucleus"
    return "sampled" if sampled else "greedy"


class GraphCache:
    """The most recent shapes, with their graphs and key-value caches."""

    def __init__(self) -> None:
        self._batches: OrderedDict[tuple[Shape, Choosing], StaticBatch] = OrderedDict()
        self._state: tuple[object, ...] | None = None
        self._pool: Any = None
        # One stream for all captures: CUDA libraries keep a workspace for every stream they meet.
        self._stream: Any = None
        self.why_no_kernels: str | None = None
        """Why the kernels of Triton are not used for the model."""

    def clear(self) -> None:
        """Free all graphs and caches."""
        self._batches.clear()
        self._state = self._pool = None

    def find(self, model: Any, turns: list[Turn], rows: int) -> StaticBatch | None:
        """Return the batch prepared for this shape, if still valid for the model."""
        key = _shape_of(turns, rows), _choosing_of(turns)
        batch = self._batches.get(key)
        if batch is None or capture_state(model) != self._state:
            return None
        self._batches.move_to_end(key)
        return batch

    def prepare(self, model: Any, turns: list[Turn], rows: int) -> StaticBatch | None:
        """Check fixed shapes on these turns, capture their graphs on a GPU, and keep the batch.

        Returns:
            The batch; None for sampled turns where there are no kernels for them.

        Raises:
            CaptureError: This model has to be decoded eagerly.
        """
        state = capture_state(model)
        if state != self._state:
            self.clear()
            self._state = state
        while len(self._batches) >= MAX_SHAPES:
            self._batches.popitem(last=False)
        if self._stream is None and device_of(model).type == "cuda":
            import torch

            self._stream = torch.cuda.Stream(device_of(model))
        shape, choosing = _shape_of(turns, rows), _choosing_of(turns)
        self.why_no_kernels = self.why_no_kernels or why_no_triton(device_of(model))
        batch: StaticBatch | None = None
        if self.why_no_kernels is None:
            try:
                batch = self._prepare(StaticBatch(model, shape, choosing, kernels=True), turns)
            except CaptureError as problem:
                self.why_no_kernels = str(problem)
        if batch is None:
            if choosing != "greedy":
                return None
            batch = self._prepare(StaticBatch(model, shape, choosing, kernels=False), turns)
        # Buffers that a first pass creates (rotary tables, say) exist now; older graphs lack them.
        if (new_state := capture_state(model)) != state:
            self._batches.clear()
            self._state = new_state
        self._batches[shape, choosing] = batch
        return batch

    def _prepare(self, batch: StaticBatch, turns: list[Turn]) -> StaticBatch:
        try:
            self._pool = batch.prepare(turns, self._pool, self._stream)
        except CaptureError:
            raise
        except Exception as error:
            # The model's own code runs here, under capture: anything may be raised.
            if is_out_of_memory(error):
                raise
            reason = (str(error).strip() or "no reason given").splitlines()[0]
            raise CaptureError(f"{type(error).__name__}: {reason}") from error
        return batch


def _shape_of(turns: list[Turn], rows: int) -> Shape:
    width = _round_up(max(len(turn.prompt.ids) for turn in turns))
    return Shape(rows, width, width + _round_up(max(turn.prompt.max_new for turn in turns)))


def _round_up(count: int) -> int:
    """Round up to a multiple of 64, or of a fourth of its own magnitude where that is more."""
    step = max(SIZE_STEP, 1 << max(0, count.bit_length() - 3))
    return -(-count // step) * step


class StaticBatch:
    """The buffers of one shape, prefill and decode step on them, and the graphs of those.

    Everything stays in place, so that a step is the same work every time: the token, its position,
    the mask and the position in the cache are tensors that the step reads and updates itself.
    """

    def __init__(self, model: Any, shape: Shape, choosing: Choosing, *, kernels: bool) -> None:
        import torch
        from transformers import DynamicCache, StaticCache

        self._model, self._base = model, transformers_model(model)
        self.shape, self._choosing = shape, choosing
        rows, width, length = shape
        first = next(model.parameters())
        self._device, self._dtype = first.device, first.dtype
        self._cuda = self._device.type == "cuda"
        self.way: Literal["captured", "static"] = "captured" if self._cuda else "static"
        self._graphs: list[Any] = []

        def zeros(*size: int) -> Any:
            return torch.zeros(size, dtype=torch.long, device=self._device)

        self._ids, self._starts = zeros(rows, width), zeros(rows)
        self._token, self._position = zeros(rows, 1), zeros(rows, 1)
        self._cache_position = zeros(1)
        # Tokens by their position in the sequence; those of the prompts are not filled in.
        self._tokens = zeros(length + 1, rows)
        self._host_tokens = torch.zeros(self._tokens.shape, dtype=torch.long, pin_memory=self._cuda)
        positions = getattr(self._base.config, "max_position_embeddings", None) or 1 << 30
        self._last_position = positions - 1
        self._mask: Any = None
        windows = not has_full_attention(DynamicCache(config=self._base.config))
        self._window = self._base.config.sliding_window if windows else None
        self._cache = StaticCache(config=self._base.config, max_cache_len=length)
        self._layers = [
            _LayerCache(width, length, self._cache_position) for _ in self._cache.layers
        ]
        for layer, replacement in zip(self._cache.layers, self._layers, strict=True):
            layer.update = replacement.update
        self._seeds = zeros(rows)
        self._temperatures = torch.zeros(rows, device=self._device)
        self._shares = torch.ones(rows, device=self._device)
        # A row ends at its last position, or earlier: then nothing more is computed for it.
        self._ends = zeros(rows)
        self._host_ends = torch.zeros(rows, dtype=torch.long, pin_memory=self._cuda)
        self._live: LiveRows | None = None
        if kernels:
            self._live = LiveRows(self._starts, self._ends, self._cache_position, self._layers)

    # --- What is captured ---

    def _prefill(self) -> Any:
        """Fill the cache from the prompts and choose the first tokens."""
        import torch

        rows, width, length = self.shape
        columns = torch.arange(length, device=self._device)
        prompt, starts = columns[:width], self._starts[:, None]
        causal = prompt[:, None] >= prompt
        # A padding token attends to itself, since a softmax over nothing is not a number.
        itself = prompt[:, None] == prompt
        visible = (causal & (prompt >= starts)[:, None]) | itself
        masks = {"full_attention": self._additive(visible)[:, None]}
        if self._window is not None:
            near = prompt[:, None] - prompt < self._window
            masks["sliding_attention"] = self._additive(visible & near)[:, None]
        positions = (prompt - starts).clamp(min=0)
        logits = self._forward(self._ids, self._by_layer(masks), positions)
        heads = self._layers[0].kept[0].shape[1]
        if self._mask is None:
            size = (rows * heads, 1, 1, length)
            self._mask = torch.empty(size, dtype=self._dtype, device=self._device)
        visible = (columns >= starts) & (columns < width)
        self._mask.copy_(self._additive(visible).repeat_interleave(heads, 0)[:, None, None])
        self._position.copy_(positions[:, -1:])
        self._cache_position.fill_(width)
        self._choose(logits)
        return logits

    def _step(self) -> Any:
        """Decode one more token in every row."""
        if self._live is None:
            self._mask.index_fill_(-1, self._cache_position, 0.0)
        # The kernels of Triton know what is visible, and read no mask.
        masks = dict.fromkeys(("full_attention", "sliding_attention"), self._mask)
        logits = self._forward(self._token, self._by_layer(masks), self._position)
        self._cache_position.add_(1)
        self._choose(logits)
        return logits

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

    def _by_layer(self, masks: dict[str, Any]) -> Any:
        """Return the mask of all layers, or of each type of layer where a model has several."""
        if self._window is None:
            return masks["full_attention"]
        several = getattr(self._base.config, "layer_types", None)
        return masks["sliding_attention"] if several is None else masks

    def _choose(self, logits: Any) -> None:
        tokens = self._choose_tokens(logits[:, -1])
        self._tokens.index_copy_(0, self._cache_position, tokens[None])
        self._token.copy_(tokens[:, None])
        # Finished rows run on, and must not leave a table of position embeddings.
        self._position.add_(1).clamp_(max=self._last_position)

    def _choose_tokens(self, logits: Any) -> Any:
        if self._choosing == "greedy":
            return logits.argmax(-1)
        from heldout.decoding import kernels

        least = None
        if self._choosing == "nucleus":
            least = kernels.find_nucleus(logits, self._temperatures, self._shares)
        return kernels.choose(
            logits,
            self._temperatures,
            self._seeds,
            self._cache_position,
            self.shape.width,
            least,
        )

    def _additive(self, visible: Any) -> Any:
        """Turn a boolean mask into one that is added to attention scores."""
        import torch

        zero = torch.zeros((), dtype=self._dtype, device=self._device)
        return torch.where(visible, zero, float("-inf"))

    def _fused(self) -> AbstractContextManager[None]:
        return fused_kernels(self._base, self._live)

    # --- Preparation ---

    def prepare(self, turns: list[Turn], pool: Any, stream: Any) -> Any:
        """Compare the logits with the model's usual ones, then capture on a GPU.

        `pool`, the memory that graphs share, is None before the first capture, and `stream` without
        a GPU. Returns the pool.

        Raises:
            CaptureError: The logits differ.
        """
        import torch

        self._load(turns)
        with _on_stream(stream), self._fused():
            logits = [self._prefill()]
            token = self._token.clone()
            logits.append(self._step())
        # Autocast computes in half precision where weights have a whole one.
        kinds = {kept.dtype for layer in self._layers for kept in layer.kept}
        tolerance = 0.01 if kinds == {torch.float32} else 0.1
        for a, b in zip(logits, self._reference_logits(token), strict=True):
            a, b = (torch.nan_to_num(logits[: len(turns)].float()) for logits in (a, b))
            error = float((a - b).norm() / b.norm().clamp(min=1e-30))
            if error > tolerance:
                raise CaptureError(f"with fixed shapes its logits are {error:.0%} off")
        if not self._cuda:
            return None
        with self._fused():
            with _on_stream(stream), _refuse_synchronization():
                self._prefill()
                self._step()
            for work in (self._prefill, self._step):
                self._graphs.append(_capture(work, pool, stream))
                pool = self._graphs[-1].pool()
        return pool

    def _reference_logits(self, token: Any) -> Iterator[Any]:
        """Yield the logits of prefill and first step as the model usually computes them."""
        import torch
        from transformers import DynamicCache

        cache = DynamicCache(config=self._base.config)
        columns = torch.arange(self.shape.width, device=self._device)
        mask = (columns >= self._starts[:, None]).long()
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        for ids in (self._ids, token):
            yield self._forward(ids, mask, positions, cache)
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=-1)
            positions = positions[:, -1:] + 1

    # --- A batch ---

    def decode(self, turns: list[Turn], callbacks: Callbacks) -> None:
        """Decode all turns together, inside `deterministic_inference`; polls every few steps."""
        prefill, step = self._prefill, self._step
        if self._graphs:
            prefill, step = (graph.replay for graph in self._graphs)
        self._load(turns)
        with nullcontext() if self._graphs else self._fused():
            prefill()
            made, read = 1, 0
            active = dict(enumerate(turns))
            while active and callbacks.keep_going():
                wait_for_tokens = self._copy_to_host(read, made)
                limit = max(turn.prompt.max_new for turn in active.values())
                read = made
                # The next steps run while the host reads the tokens of the last ones.
                while made < min(limit, read + STEPS_PER_READ):
                    step()
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

    def _load(self, turns: list[Turn]) -> None:
        """Copy the prompts into their buffers; a missing row gets a prompt of one token."""
        import torch

        rows, width, _ = self.shape
        padding = (0,) * width
        prompts = [turn.prompt.ids for turn in turns] + [(0,)] * (rows - len(turns))
        ids = [padding[len(prompt) :] + prompt for prompt in prompts]
        self._ids.copy_(torch.tensor(ids))
        self._starts.copy_(torch.tensor([width - len(prompt) for prompt in prompts]))
        self._set_ends(dict(enumerate(turns)))
        if self._choosing == "greedy":
            return
        self._seeds[: len(turns)].copy_(torch.tensor([turn.seed for turn in turns]))
        temperatures = [turn.prompt.temperature for turn in turns]
        self._temperatures[: len(turns)].copy_(torch.tensor(temperatures))
        shares = [1.0 if turn.prompt.top_p is None else turn.prompt.top_p for turn in turns]
        self._shares[: len(turns)].copy_(torch.tensor(shares))

    def _set_ends(self, active: Mapping[int, Turn]) -> None:
        """Have nothing more computed for rows that are not active, and for others at their end."""
        width = self.shape.width
        self._host_ends.zero_()
        for row, turn in active.items():
            self._host_ends[row] = width + turn.prompt.max_new
        self._ends.copy_(self._host_ends, non_blocking=True)

    def _copy_to_host(self, first: int, end: int) -> Callable[[], list[list[int]]]:
        """Start copying the new tokens `first` to `end`; the result waits for them."""
        import torch

        part = slice(self.shape.width + first, self.shape.width + end)
        self._host_tokens[part].copy_(self._tokens[part], non_blocking=True)
        event = torch.cuda.Event() if self._cuda else None
        if event is not None:
            event.record()

        def wait_for_tokens() -> list[list[int]]:
            if event is not None:
                event.synchronize()
            tokens: list[list[int]] = self._host_tokens[part].tolist()
            return tokens

        return wait_for_tokens


class _LayerCache:
    """Keys and values of one layer, and how new ones are written at the next position.

    It refers neither to the cache nor to the batch: in a reference cycle a released cache would
    stay in memory until the next garbage collection.
    """

    def __init__(self, width: int, length: int, position: Any) -> None:
        self._width, self._length, self._position = width, length, position
        self.kept: list[Any] = []

    def update(self, keys: Any, values: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        new = (keys, values)
        if not self.kept:
            self.kept = [
                states.new_zeros((*states.shape[:2], self._length, states.shape[-1]))
                for states in new
            ]
        if keys.shape[2] == 1:
            for kept, states in zip(self.kept, new, strict=True):
                kept.index_copy_(2, self._position, states)
            return self.kept[0], self.kept[1]
        for kept, states in zip(self.kept, new, strict=True):
            kept[:, :, : self._width].copy_(states)
            # A diverged model leaves NaNs here, and a masked NaN is still a NaN.
            kept[:, :, self._width :].zero_()
        return new


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
