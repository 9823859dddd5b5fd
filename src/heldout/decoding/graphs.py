"""Greedy decoding in batches of fixed shapes, so that a GPU can replay it as captured graphs.

Launching the kernels of one step from Python takes ten times as long as running them. So the
prefill and one decode step are captured once per shape (rows, width, length) and replayed: tokens,
positions, mask and cache are buffers that the step itself updates. Prompts are padded on the left
up to the width, missing rows are filled up, and finished rows run on unused: the tokens of a row
do not depend on the rest of the batch. The host reads the tokens only every few steps, while the
next ones run.

Graphs read the weights at the addresses of the capture. Training changes them in place, so graphs
stay valid; before each use it is checked that nothing has moved.
"""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

from heldout.decoding.model import (
    CaptureError,
    capture_state,
    device_of,
    is_out_of_memory,
    transformers_model,
)
from heldout.decoding.turn import Callbacks, Turn

MAX_SHAPES = 4
SIZE_STEP = 64
"""Widths and numbers of new tokens are multiples of this, so that evals reuse shapes."""
STEPS_PER_READ = 16
"""Decode steps between two reads of the tokens by the host."""
ATTENTION = "heldout_decoding"
"""The name under which `_attention` is registered with transformers."""


class Shape(NamedTuple):
    """The shape of a batch in tokens."""

    rows: int
    width: int
    """Of the prompts, including padding."""
    length: int
    """Of the whole sequences."""


class GraphCache:
    """The most recent shapes, with their graphs and key-value caches."""

    def __init__(self) -> None:
        self._batches: OrderedDict[Shape, StaticBatch] = OrderedDict()
        self._state: tuple[object, ...] | None = None
        self._pool: Any = None
        # One stream for all captures: CUDA libraries keep a workspace for every stream they meet.
        self._stream: Any = None

    def clear(self) -> None:
        """Free all graphs and caches."""
        self._batches.clear()
        self._state = self._pool = None

    def find(self, model: Any, turns: list[Turn], rows: int) -> StaticBatch | None:
        """Return the batch prepared for this shape, if still valid for the model."""
        shape = _shape_of(turns, rows)
        batch = self._batches.get(shape)
        if batch is None or capture_state(model) != self._state:
            return None
        self._batches.move_to_end(shape)
        return batch

    def prepare(self, model: Any, turns: list[Turn], rows: int) -> StaticBatch:
        """Check fixed shapes on these turns, capture their graphs on a GPU, and keep the batch.

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
        shape = _shape_of(turns, rows)
        batch = StaticBatch(model, shape)
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
        # Buffers that a first pass creates (rotary tables, say) exist now; older graphs lack them.
        if (new_state := capture_state(model)) != state:
            self._batches.clear()
            self._state = new_state
        self._batches[shape] = batch
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

    def __init__(self, model: Any, shape: Shape) -> None:
        import torch
        from transformers import StaticCache

        self._model, self._base = model, transformers_model(model)
        self.shape = shape
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
        self._cache = StaticCache(config=self._base.config, max_cache_len=length)
        self._layers = [
            _LayerCache(width, length, self._cache_position) for _ in self._cache.layers
        ]
        for layer, replacement in zip(self._cache.layers, self._layers, strict=True):
            layer.update = replacement.update

    # --- What is captured ---

    def _prefill(self) -> Any:
        """Fill the cache from the prompts and choose the first tokens."""
        import torch

        rows, width, length = self.shape
        columns = torch.arange(length, device=self._device)
        prompt, starts = columns[:width], self._starts[:, None]
        causal = prompt[:, None] >= prompt
        # A padding token attends to itself, since a softmax over nothing is not a number.
        visible = (causal & (prompt >= starts)[:, None]) | (prompt[:, None] == prompt)
        positions = (prompt - starts).clamp(min=0)
        logits = self._forward(self._ids, self._additive(visible)[:, None], positions)
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
        self._mask.index_fill_(-1, self._cache_position, 0.0)
        logits = self._forward(self._token, self._mask, self._position)
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

    def _choose(self, logits: Any) -> None:
        tokens = logits[:, -1].argmax(-1)
        self._tokens.index_copy_(0, self._cache_position, tokens[None])
        self._token.copy_(tokens[:, None])
        # Finished rows run on, and must not leave a table of position embeddings.
        self._position.add_(1).clamp_(max=self._last_position)

    def _additive(self, visible: Any) -> Any:
        """Turn a boolean mask into one that is added to attention scores."""
        import torch

        zero = torch.zeros((), dtype=self._dtype, device=self._device)
        return torch.where(visible, zero, float("-inf"))

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
        with _on_stream(stream), fused_kernels(self._base):
            logits = [self._prefill()]
            token = self._token.clone()
            logits.append(self._step())
        for a, b in zip(logits, self._reference_logits(token), strict=True):
            a, b = (torch.nan_to_num(logits[: len(turns)].float()) for logits in (a, b))
            error = float((a - b).norm() / b.norm().clamp(min=1e-30))
            if error > (0.01 if self._dtype == torch.float32 else 0.1):
                raise CaptureError(f"with fixed shapes its logits are {error:.0%} off")
        if not self._cuda:
            return None
        with fused_kernels(self._base):
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
        with nullcontext() if self._graphs else fused_kernels(self._base):
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

    def _load(self, turns: list[Turn]) -> None:
        """Copy the prompts into their buffers; a missing row gets a prompt of one token."""
        import torch

        rows, width, _ = self.shape
        padding = (0,) * width
        prompts = [turn.prompt.ids for turn in turns] + [(0,)] * (rows - len(turns))
        ids = [padding[len(prompt) :] + prompt for prompt in prompts]
        self._ids.copy_(torch.tensor(ids))
        self._starts.copy_(torch.tensor([width - len(prompt) for prompt in prompts]))

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


# --- Fewer kernels ------------------------------------------------------------------------------


@contextmanager
def fused_kernels(model: Any) -> Iterator[None]:
    """Compute the same forward pass in fewer kernels, for models with masks as made above.

    A decode step of a small model is hundreds of kernels of a few microseconds each, and their
    number is its time. Transformers implements a norm with eight and the rotation of queries and
    keys with ten, and copies keys and values once per query head. Here these are one, four and
    none. Each is compared with the model's own on random input first, and left alone where it is
    not equal up to rounding.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attention)
    config = model.config
    with ExitStack() as undo:
        undo.callback(setattr, config, "_attn_implementation", config._attn_implementation)
        config._attn_implementation = ATTENTION
        _fuse_norms(model, undo)
        _fuse_rotations(model, undo)
        yield


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Any, None]:
    """Attend from one new token: query heads that share a key are the rows of one small problem.

    The mask then has one row per sequence and key head, [rows * key heads, 1, 1, length], and is
    additive: a boolean one would cost another kernel in every layer.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    rows, heads, new, size = query.shape
    if new > 1:
        result: tuple[Any, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=0.0, scaling=scaling, **kwargs
        )
        return result
    for name in ("softcap", "s_aux", "position_bias", "sliding_window"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"attention with {name}")
    shared = key.shape[1]
    out = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(rows * shared, 1, heads // shared, size),
        key.flatten(0, 1).unsqueeze(1),
        value.flatten(0, 1).unsqueeze(1),
        attn_mask=attention_mask.expand(-1, -1, heads // shared, -1),
        scale=scaling,
    )
    return out.reshape(rows, 1, heads, value.shape[-1]), None


def _fuse_norms(model: Any, undo: ExitStack) -> None:
    fusible: dict[type, bool] = {}
    for module in model.modules():
        kind = type(module)
        if not kind.__name__.endswith("RMSNorm") or "forward" in vars(module):
            continue
        if kind not in fusible:
            fusible[kind] = _is_plain_norm(module)
        if fusible[kind]:
            module.forward = _fused_norm(module)
            undo.callback(delattr, module, "forward")


def _fused_norm(module: Any) -> Callable[[Any], Any]:
    import torch

    original, weight, eps = module.forward, module.weight, _norm_eps(module)

    def forward(hidden: Any) -> Any:
        if hidden.dtype != weight.dtype or torch.is_autocast_enabled(hidden.device.type):
            return original(hidden)
        return torch.nn.functional.rms_norm(hidden, weight.shape, weight, eps)

    return forward


def _norm_eps(module: Any) -> Any:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def _is_plain_norm(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 1 or not isinstance(_norm_eps(module), float):
        return False
    hidden = _random(4, weight.shape[0], like=weight)
    return _is_close(module(hidden), _fused_norm(module)(hidden))


def _fuse_rotations(model: Any, undo: ExitStack) -> None:
    """Replace the function that attention modules look up by name in their Python module."""
    name = "apply_rotary_pos_emb"
    for source in {sys.modules[type(module).__module__] for module in model.modules()}:
        original = getattr(source, name, None)
        if original is not None and _is_plain_rotation(original, next(model.parameters())):
            setattr(source, name, _fused_rotation(original))
            undo.callback(setattr, source, name, original)


def _fused_rotation(original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    last: list[Any] = [None, None, None]

    def rotate(query: Any, key: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        rows, heads, new, size = query.shape
        shared = key.shape[1]
        plain = new == 1 and cos.shape == (rows, 1, size) and cos.dtype == query.dtype == key.dtype
        if args or kwargs or not plain:
            return original(query, key, cos, sin, *args, **kwargs)
        if last[0] is not cos:  # once per pass: all layers get the same
            # Rotating by halves is rolling by half, with the sign in the sine.
            signed = torch.cat([-sin[..., : size // 2], sin[..., size // 2 :]], dim=-1)
            last[:] = (cos, *(_repeat_per_head(part, heads, shared) for part in (cos, signed)))
        both = torch.cat([query.reshape(-1, size), key.reshape(-1, size)])
        rotated = torch.addcmul(both * last[1], both.roll(size // 2, -1), last[2])
        queries, keys = rotated.split([rows * heads, rows * shared])
        return queries.view(rows, heads, 1, size), keys.view(rows, shared, 1, size)

    return rotate


def _repeat_per_head(part: Any, heads: int, shared: int) -> Any:
    import torch

    size = part.shape[-1]
    return torch.cat([part.expand(-1, n, -1).reshape(-1, size) for n in (heads, shared)])


def _is_plain_rotation(original: Callable[..., Any], like: Any) -> bool:
    query, key = _random(3, 4, 1, 16, like=like), _random(3, 2, 1, 16, like=like)
    cos, sin = _random(3, 1, 16, like=like), _random(3, 1, 16, like=like)
    try:
        expected = original(query, key, cos, sin)
        fused = _fused_rotation(original)(query, key, cos, sin)
    except (TypeError, ValueError, AttributeError, RuntimeError):  # it takes other tensors
        return False
    return all(_is_close(a, b) for a, b in zip(expected, fused, strict=True))


def _random(*shape: int, like: Any) -> Any:
    """Draw numbers from a stream of their own: the global one belongs to training."""
    import torch

    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return numbers.to(device=like.device, dtype=like.dtype)


def _is_close(a: Any, b: Any) -> bool:
    import torch

    rounding = 4 * torch.finfo(a.dtype).eps
    return a.dtype == b.dtype and bool(torch.allclose(a, b, rtol=rounding, atol=4 * rounding))
