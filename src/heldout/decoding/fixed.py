"""Batches of one shape: their buffers, the two pieces of work on them, and the graphs of those.

Keeping everything in place is what makes a step the same work every time: the token, its position,
the mask and the place in the cache are tensors that the step reads and moves on itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from heldout.decoding.kernels import fewer_kernels
from heldout.decoding.model import transformers_model
from heldout.decoding.suitable import Unsuitable
from heldout.decoding.turn import Generation, Turn

STEPS = 16
"""Steps between two looks at the tokens."""


class Shape(NamedTuple):
    rows: int
    width: int
    length: int


class FixedShape:
    def __init__(self, model: Any, shape: Shape) -> None:
        import torch
        from transformers import StaticCache

        self._model, self._base = model, transformers_model(model)
        self.rows, self.width, self.length = shape
        self.new = True
        first = next(model.parameters())
        self._device, self._dtype = first.device, first.dtype
        self._cuda = self._device.type == "cuda"
        self.way = "captured" if self._cuda else "static"
        self._graphs: list[Any] = []

        def whole(*size: int) -> Any:
            return torch.zeros(size, dtype=torch.long, device=self._device)

        self._ids, self._starts = whole(self.rows, self.width), whole(self.rows)
        self._token, self._position, self._place = (
            whole(self.rows, 1),
            whole(self.rows, 1),
            whole(1),
        )
        # The token that stands at a place of the sequences, prompts not filled in.
        self._tokens = whole(self.length + 1, self.rows)
        self._seen = torch.zeros(self._tokens.shape, dtype=torch.long, pin_memory=self._cuda)
        self._last_position = (
            getattr(self._base.config, "max_position_embeddings", None) or 1 << 30
        ) - 1
        self._mask: Any = None
        self._cache = StaticCache(config=self._base.config, max_cache_len=self.length)
        self._layers = [_Layer(self.width, self.length, self._place) for _ in self._cache.layers]
        for theirs, ours in zip(self._cache.layers, self._layers, strict=True):
            theirs.update = ours.update

    # --- What is captured ---

    def _read(self) -> Any:
        """The prompts: fills the cache and chooses the first tokens."""
        import torch

        columns = torch.arange(self.length, device=self._device)
        within, starts = columns[: self.width], self._starts[:, None]
        real = within >= starts
        causal = within[:, None] >= within
        # A padding token sees itself, since a softmax over nothing is not a number.
        sees = (causal & real[:, None]) | (within[:, None] == within)
        positions = (within - starts).clamp(min=0)
        out = self._model(
            input_ids=self._ids,
            attention_mask=self._added(sees)[:, None],
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        heads = self._layers[0].kept[0].shape[1]
        if self._mask is None:
            size = (self.rows * heads, 1, 1, self.length)
            self._mask = torch.empty(size, dtype=self._dtype, device=self._device)
        sees = (columns >= starts) & (columns < self.width)
        self._mask.copy_(self._added(sees).repeat_interleave(heads, 0)[:, None, None])
        self._position.copy_(positions[:, -1:])
        self._place.fill_(self.width)
        self._choose(out.logits)
        return out.logits

    def _advance(self) -> Any:
        """One token more in every row."""
        self._mask.index_fill_(-1, self._place, 0.0)
        out = self._model(
            input_ids=self._token,
            attention_mask=self._mask,
            position_ids=self._position,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._place.add_(1)
        self._choose(out.logits)
        return out.logits

    def _choose(self, logits: Any) -> None:
        chosen = logits[:, -1].argmax(-1)
        self._tokens.index_copy_(0, self._place, chosen[None])
        self._token.copy_(chosen[:, None])
        # Rows that are past their end go on, and must not leave a table of positions.
        self._position.add_(1).clamp_(max=self._last_position)

    def _added(self, sees: Any) -> Any:
        import torch

        none = torch.zeros((), dtype=self._dtype, device=self._device)
        return torch.where(sees, none, float("-inf"))

    # --- Preparation ---

    def prepare(self, turns: list[Turn], pool: Any, stream: Any) -> Any:
        """Check that it is right for this model, then capture; the memory that graphs share."""
        import torch

        self._fill(turns)
        with _beside(stream), fewer_kernels(self._base):
            ours = [self._read()]
            token = self._token.clone()
            ours.append(self._advance())
        for a, b in zip(ours, self._plainly(token), strict=True):
            a, b = (torch.nan_to_num(logits[: len(turns)].float()) for logits in (a, b))
            apart = float((a - b).norm() / b.norm().clamp(min=1e-30))
            if apart > (0.01 if self._dtype == torch.float32 else 0.1):
                raise Unsuitable(f"with fixed shapes its logits are {apart:.0%} off")
        if not self._cuda:
            return None
        with fewer_kernels(self._base):
            with _beside(stream), _without_waiting():
                self._read()
                self._advance()
            for work in (self._read, self._advance):
                self._graphs.append(_captured(work, pool, stream))
                pool = self._graphs[-1].pool()
        return pool

    def _plainly(self, token: Any) -> Iterator[Any]:
        """The logits of the first two steps by the model's usual way."""
        import torch
        from transformers import DynamicCache

        cache = DynamicCache(config=self._base.config)
        mask = (torch.arange(self.width, device=self._device) >= self._starts[:, None]).long()
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        for ids in (self._ids, token):
            yield self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=-1)
            positions = positions[:, -1:] + 1

    # --- A batch ---

    def decode(
        self,
        turns: list[Turn],
        *,
        keep_going: Callable[[], bool],
        wanted: Callable[[int], bool],
        done: Callable[[int, Generation], None],
    ) -> None:
        read_prompts, step = self._read, self._advance
        if self._graphs:
            read_prompts, step = (graph.replay for graph in self._graphs)
        self._fill(turns)
        with nullcontext() if self._graphs else fewer_kernels(self._base):
            read_prompts()
            made, read = 1, 0
            going = dict(enumerate(turns))
            while going and keep_going():
                look = self._copy_out(read, made)
                most = max(turn.prompt.max_new for turn in going.values())
                fresh, read = range(read, made), made
                # The next steps run while the host looks at the last ones.
                while made < min(most, read + STEPS):
                    step()
                    made += 1
                tokens = look()
                for row, turn in list(going.items()):
                    if not wanted(turn.index):
                        del going[row]
                        continue
                    for place in range(len(fresh)):
                        generation = turn.take(tokens[place][row])
                        if generation is not None:
                            done(turn.index, generation)
                            del going[row]
                            break

    def _fill(self, turns: list[Turn]) -> None:
        import torch

        blank = (0,) * self.width  # a row that is missing has one token, of no interest
        prompts = [turn.prompt.ids for turn in turns] + [(0,)] * (self.rows - len(turns))
        ids = [blank[len(prompt) :] + prompt for prompt in prompts]
        self._ids.copy_(torch.tensor(ids))
        self._starts.copy_(torch.tensor([self.width - len(prompt) for prompt in prompts]))

    def _copy_out(self, first: int, end: int) -> Callable[[], list[list[int]]]:
        """Tokens number `first` to `end`, on their way to the host; call for them."""
        import torch

        there = slice(self.width + first, self.width + end)
        self._seen[there].copy_(self._tokens[there], non_blocking=True)
        event = torch.cuda.Event() if self._cuda else None
        if event is not None:
            event.record()

        def look() -> list[list[int]]:
            if event is not None:
                event.synchronize()
            found: list[list[int]] = self._seen[there].tolist()
            return found

        return look


class _Layer:
    """Keys and values of one layer, and how they are taken: at the place that is next.

    It knows neither the cache nor the shape: in a circle of references a released cache would
    stay in memory until the garbage is collected.
    """

    def __init__(self, width: int, length: int, place: Any) -> None:
        self._width, self._length, self._place = width, length, place
        self.kept: list[Any] = []

    def update(self, keys: Any, values: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        given = (keys, values)
        if not self.kept:
            self.kept = [
                new.new_zeros((*new.shape[:2], self._length, new.shape[-1])) for new in given
            ]
        if keys.shape[2] == 1:
            for kept, new in zip(self.kept, given, strict=True):
                kept.index_copy_(2, self._place, new)
            return self.kept[0], self.kept[1]
        for kept, new in zip(self.kept, given, strict=True):
            kept[:, :, : self._width].copy_(new)
            # A diverged model leaves what is not a number, and nothing times that is not nothing.
            kept[:, :, self._width :].zero_()
        return given


# --- Capturing ----------------------------------------------------------------------------------


@contextmanager
def _beside(stream: Any) -> Iterator[None]:
    """On the stream of captures, where whatever is captured later has to be warmed up."""
    if stream is None:
        yield
        return
    import torch

    usual = torch.cuda.current_stream(stream.device)
    stream.wait_stream(usual)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        usual.wait_stream(stream)


@contextmanager
def _without_waiting() -> Iterator[None]:
    """What waits for the GPU raises: in a capture it would fail too, and harm the allocator."""
    import torch

    usual = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode")  # a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(usual)


def _captured(work: Callable[[], object], pool: Any, stream: Any) -> Any:
    import torch

    graph = torch.cuda.CUDAGraph()
    # Other threads (pinning, collectives) may use the GPU meanwhile.
    with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
        work()
    return graph
