"""Triton kernels of a decode step and of prompts, on buffers that stay in place.

A step of a small batch is bound by what it reads and by the number of its kernels. Attention here
reads only the positions that a row has, and none for rows that have ended. Products with the same
input are one kernel, normalising, rotating and caching a new key another, and a sum with the norm
that follows a third. Sums are in float32 and their order is fixed, so a step repeats bit for bit.

What is replaced by them, and where, is in `fusing.py`. Triton comes with torch on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from heldout._live.decoding.captured.batch_plan import RowState
from heldout._live.decoding.captured.launching import launch

KEYS_PER_PART = 256
"""Keys that one program reads: a long row is read by several at once."""
KEYS_PER_BLOCK = 64
LARGE_SHARED_MEMORY = 160_000
"""Bytes per processor: those of datacenters have as much, others 100,000."""


def _count_stages(device: Any) -> int:
    """Return how many blocks of keys and values fit into shared memory at a time."""
    if device.type != "cuda":
        return 1
    properties = torch.cuda.get_device_properties(device)
    size = getattr(properties, "shared_memory_per_block_optin", 0)
    return 3 if size >= LARGE_SHARED_MEMORY else 2


# --- Attention ----------------------------------------------------------------------------------


class Scoring(NamedTuple):
    """How the scores of attention are computed, and between which positions."""

    scaling: float
    """What scores are multiplied by."""
    window: int | None = None
    """The number of positions that are attended to, the new one included; None is all."""
    softcap: float | None = None
    """Scores are softcap * tanh(score / softcap); None leaves them alone."""
    sinks: Any = None
    """[heads], a score of its own in each softmax; None has none."""


def attend(query: Any, keys: Any, values: Any, state: RowState, scoring: Scoring) -> Any:
    """Attend from the new tokens of each row to what its row has cached, theirs included.

    Args:
        query: [rows, heads, new, size], where new is 1 in a decode step, else a chunk's length.
        keys: [rows, key heads, length, size], with the new tokens' already in it.
        values: Likewise.
        state: Where the new tokens are. Nothing is read for a row that has ended, or for tokens of
            a chunk that are known, and the result is 0 there.
        scoring: How.

    Returns:
        [rows, new, heads, size].
    """
    attend_from = _attend_from_token if query.shape[2] == 1 else _attend_from_chunk
    return attend_from(query, keys, values, state, scoring)


def _attend_from_token(
    query: Any, keys: Any, values: Any, state: RowState, scoring: Scoring
) -> Any:
    scaling, window, softcap, sinks = scoring
    rows, heads, _, size = query.shape
    shared, length = keys.shape[1], keys.shape[2]
    group = heads // shared
    span = length if window is None else min(window, length)
    parts = triton.cdiv(span, KEYS_PER_PART)
    out = query.new_empty((rows, 1, heads, size))
    sums = query.new_empty((rows * heads, parts, size), dtype=torch.float32)
    scales = query.new_empty((rows * heads, parts, 2), dtype=torch.float32)
    padded = max(16, triton.next_power_of_2(size))  # the least that a product of blocks takes
    launch(_attend_to_part, (rows * shared, parts),
        query, keys, values, state.end, state.position, sums, scales,
        scaling, window or 0, softcap or 0.0, parts,
        query.stride(0), query.stride(1),
        keys.stride(0), keys.stride(1), keys.stride(2),
        values.stride(0), values.stride(1), values.stride(2),
        SHARED=shared, GROUP=group, ROWS=max(16, triton.next_power_of_2(group)),
        SIZE=size, PADDED=padded, PART=KEYS_PER_PART,
        BLOCK=KEYS_PER_BLOCK if padded * query.element_size() <= 512 else KEYS_PER_BLOCK // 2,
        WINDOW=window is not None, CAP=softcap is not None,
        num_warps=4, num_stages=_count_stages(query.device),
    )  # fmt: skip
    launch(_add_parts, (rows * heads,),
        sums, scales, out, sinks if sinks is not None else scales, parts,
        HEADS=heads, SIZE=size, PADDED=padded, SINKS=sinks is not None, AT_ONCE=16,
        num_warps=1 if padded <= 128 else 4,
    )  # fmt: skip
    return out


@triton.jit
def _attend_to_part(
    query, keys, values, ends, position, sums, scales,
    scaling, window, softcap, parts,
    q_row, q_head, k_row, k_head, k_position, v_row, v_head, v_position,
    SHARED: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    SIZE: tl.constexpr, PADDED: tl.constexpr, PART: tl.constexpr, BLOCK: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // SHARED
    head = tl.program_id(0) % SHARED
    part = tl.program_id(1)
    last = tl.load(position + row).to(tl.int32)
    low = part * PART
    if WINDOW:
        low += tl.maximum(last + 1 - window, 0)
    high = tl.minimum(low + PART, last + 1)
    high = tl.where(last >= tl.load(ends + row), low, high)

    # Query heads that share a key head are the rows of one product.
    heads = tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED)
    real = (heads[:, None] < GROUP) & (dims[None, :] < SIZE)
    places = row * q_row + (head * GROUP + heads[:, None]) * q_head + dims[None, :]
    q = tl.load(query + places, mask=real, other=0.0)
    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, PADDED], tl.float32)
    k_base = keys + row.to(tl.int64) * k_row + head * k_head
    v_base = values + row.to(tl.int64) * v_row + head * v_head
    for begin in range(low, high, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        live = at < high
        k = tl.load(
            k_base + at[None, :] * k_position + dims[:, None],
            mask=live[None, :] & (dims[:, None] < SIZE), other=0.0,
        )  # fmt: skip
        scores = tl.dot(q, k, input_precision="ieee") * scaling
        if CAP:
            scores = softcap * _tanh(scores / softcap)
        scores = tl.where(live[None, :], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp(scores - new_best[:, None])
        shrink = tl.exp(best - new_best)
        v = tl.load(
            v_base + at[:, None] * v_position + dims[None, :],
            mask=live[:, None] & (dims[None, :] < SIZE), other=0.0,
        )  # fmt: skip
        total = total * shrink + tl.sum(weights, 1)
        result = result * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        best = new_best
    flat = row * SHARED * GROUP + head * GROUP + heads
    spots = flat * parts + part
    wanted = heads < GROUP
    tl.store(scales + spots * 2, best, mask=wanted)
    tl.store(scales + spots * 2 + 1, total, mask=wanted)
    tl.store(sums + spots[:, None] * SIZE + dims[None, :], result, mask=real & (total[:, None] > 0))


@triton.jit
def _tanh(x):
    grown = tl.exp(-2.0 * tl.abs(x))
    return tl.where(x < 0, -1.0, 1.0) * (1.0 - grown) / (1.0 + grown)


@triton.jit
def _add_parts(
    sums, scales, out, sinks, parts,
    HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, SINKS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    flat = tl.program_id(0)
    dims = tl.arange(0, PADDED)
    highest = float("-inf")
    if SINKS:
        sink = tl.load(sinks + flat % HEADS).to(tl.float32)
        highest = sink
    # Always as many at a time: the order of sums must not depend on how long rows may become.
    for begin in range(0, parts, AT_ONCE):
        part = begin + tl.arange(0, AT_ONCE)
        spots = flat * parts + part
        filled = tl.load(scales + spots * 2 + 1, mask=part < parts, other=0.0) > 0
        best = tl.load(scales + spots * 2, mask=filled, other=float("-inf"))
        highest = tl.maximum(highest, tl.max(best, 0))
    weight = 0.0
    if SINKS:
        weight = tl.exp(sink - highest)
    result = tl.zeros([PADDED], tl.float32)
    for begin in range(0, parts, AT_ONCE):
        part = begin + tl.arange(0, AT_ONCE)
        spots = flat * parts + part
        total = tl.load(scales + spots * 2 + 1, mask=part < parts, other=0.0)
        filled = total > 0  # a part that read nothing has no numbers
        best = tl.load(scales + spots * 2, mask=filled, other=float("-inf"))
        shares = tl.where(filled, tl.exp(best - highest), 0.0)
        weight += tl.sum(shares * total, 0)
        places = spots[:, None] * SIZE + dims[None, :]
        values = tl.load(sums + places, mask=filled[:, None] & (dims[None, :] < SIZE), other=0.0)
        result += tl.sum(values * shares[:, None], 0)
    result = result / tl.where(weight > 0, weight, 1.0)
    tl.store(out + flat * SIZE + dims, result.to(out.dtype.element_ty), mask=dims < SIZE)


def _attend_from_chunk(
    query: Any, keys: Any, values: Any, state: RowState, scoring: Scoring
) -> Any:
    scaling, window, softcap, sinks = scoring
    rows, heads, chunk, size = query.shape
    padded = max(16, triton.next_power_of_2(size))
    out = query.new_empty((rows, chunk, heads, size))
    stages = _count_stages(query.device)
    small = padded * query.element_size() <= 256
    tokens, block = (128 if stages == 3 else 64, 64) if small else (32, 32)
    launch(_attend_in_prompt, (triton.cdiv(chunk, tokens), rows * heads),
        query, keys, values, state.begin, state.known, out,
        sinks if sinks is not None else query, scaling, window or 0, softcap or 0.0, chunk,
        query.stride(0), query.stride(1), query.stride(2),
        keys.stride(0), keys.stride(1), keys.stride(2),
        values.stride(0), values.stride(1), values.stride(2),
        HEADS=heads, GROUP=heads // keys.shape[1], SIZE=size, PADDED=padded,
        TOKENS=tokens, BLOCK=block, WINDOW=window is not None, CAP=softcap is not None,
        SINKS=sinks is not None, num_warps=8 if tokens == 128 else 4, num_stages=stages,
    )  # fmt: skip
    return out


@triton.jit
def _attend_in_prompt(
    query, keys, values, begins, knowns, out, sinks, scaling, window, softcap, chunk,
    q_row, q_head, q_token, k_row, k_head, k_position, v_row, v_head, v_position,
    HEADS: tl.constexpr, GROUP: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    SINKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) // HEADS
    head = tl.program_id(1) % HEADS
    first = tl.program_id(0) * TOKENS
    tokens = first + tl.arange(0, TOKENS)
    dims = tl.arange(0, PADDED)
    real = (tokens[:, None] < chunk) & (dims[None, :] < SIZE)
    begin = tl.load(begins + row).to(tl.int32)
    known = tl.load(knowns + row).to(tl.int32)
    position = begin + tokens
    high = begin + tl.minimum(first + TOKENS, chunk)
    low = 0
    if WINDOW:
        # Blocks of keys begin where they begin for every chunk, so that sums have one order.
        low = tl.maximum(tl.maximum(begin + first, known) + 1 - window, 0) // BLOCK * BLOCK
    low = tl.where(high <= known, high, low)
    row = row.to(tl.int64)
    q_places = row * q_row + head * q_head + tokens[:, None] * q_token + dims[None, :]
    q = tl.load(query + q_places, mask=real, other=0.0)
    best = tl.full([TOKENS], float("-inf"), tl.float32)
    total = tl.zeros([TOKENS], tl.float32)
    result = tl.zeros([TOKENS, PADDED], tl.float32)
    k_base = keys + row * k_row + (head // GROUP) * k_head
    v_base = values + row * v_row + (head // GROUP) * v_head
    for start in range(low, high, BLOCK):
        at = start + tl.arange(0, BLOCK)
        live = at < high
        k = tl.load(
            k_base + at[None, :] * k_position + dims[:, None],
            mask=live[None, :] & (dims[:, None] < SIZE), other=0.0,
        )  # fmt: skip
        scores = tl.dot(q, k, input_precision="ieee") * scaling
        if CAP:
            scores = softcap * _tanh(scores / softcap)
        visible = at[None, :] <= position[:, None]
        if WINDOW:
            visible = visible & (at[None, :] > position[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        # A token may see nothing of a block.
        base = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp(scores - base[:, None])
        shrink = tl.exp(best - base)
        v = tl.load(
            v_base + at[:, None] * v_position + dims[None, :],
            mask=live[:, None] & (dims[None, :] < SIZE), other=0.0,
        )  # fmt: skip
        total = total * shrink + tl.sum(weights, 1)
        result = result * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        best = new_best
    if SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        base = tl.where(best == float("-inf"), sink, best)
        total += tl.exp(sink - base)
    result = result / tl.where(total > 0, total, 1.0)[:, None]
    o_places = (row * chunk + tokens[:, None]) * HEADS * SIZE + head * SIZE + dims[None, :]
    tl.store(out + o_places, result.to(out.dtype.element_ty), mask=real)


# --- Keys and values of a pass into the cache ----------------------------------------------------


def cache(keys: Any, values: Any, kept_keys: Any, kept_values: Any, columns: Any) -> None:
    """Write new keys and values into columns of the cache.

    Args:
        keys: [rows, key heads, new, size].
        values: Likewise, of a size that may be another.
        kept_keys: The cache, [rows, key heads, length, size].
        kept_values: Likewise.
        columns: [rows, new], where to write.
    """
    rows, heads, new, _ = keys.shape
    for states, kept in ((keys, kept_keys), (values, kept_values)):
        size = states.shape[-1]
        launch(_cache, (rows * heads, new),
            states, kept, columns, new, kept.shape[2],
            states.stride(0), states.stride(1), states.stride(2),
            HEADS=heads, SIZE=size, PADDED=triton.next_power_of_2(size), num_warps=1,
        )  # fmt: skip


@triton.jit
def _cache(
    states, kept, columns, new, length, s_row, s_head, s_token,
    HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    token = tl.program_id(1)
    dims = tl.arange(0, PADDED)
    column = tl.load(columns + row * new + token)
    source = states + row.to(tl.int64) * s_row + head * s_head + token * s_token + dims
    target = kept + (tl.program_id(0).to(tl.int64) * length + column) * SIZE + dims
    tl.store(target, tl.load(source, mask=dims < SIZE), mask=dims < SIZE)


# --- New queries, keys and values: normalised, rotated, cached -----------------------------------


def rotate_and_cache(
    query: Any,
    key: Any,
    value: Any,
    cos: Any,
    sin: Any,
    keys: Any,
    values: Any,
    columns: Any,
    *,
    query_norm: Any = None,
    key_norm: Any = None,
    eps: float = 0.0,
) -> Any:
    """Normalise each new query and key, rotate them, and write key and value into the cache.

    Args:
        query: [rows, heads * size].
        key: [rows, key heads * size].
        value: Likewise.
        cos: [rows, size].
        sin: Likewise.
        keys: The cache, [rows, key heads, length, size].
        values: Likewise.
        columns: [rows, 1], where to write.
        query_norm: [size], the weight of an RMS norm; None for a model that has none.
        key_norm: Likewise.
        eps: Of those norms.

    Returns:
        The queries, [rows, heads, 1, size].
    """
    rows, size = cos.shape
    heads, shared, length = query.shape[1] // size, keys.shape[1], keys.shape[2]
    out = query.new_empty((rows, heads, 1, size))
    normed = query_norm is not None
    launch(_rotate_and_cache, (rows, heads + 2 * shared),
        query, key, value, cos, sin, keys, values, columns, out,
        query_norm if normed else cos, key_norm if normed else cos, eps,
        query.stride(0), key.stride(0), value.stride(0), length,
        HEADS=heads, SHARED=shared, SIZE=size, HALF=size // 2,
        PADDED=triton.next_power_of_2(size // 2), NORMED=normed, num_warps=1,
    )  # fmt: skip
    return out


@triton.jit
def _rotate_and_cache(
    query, key, value, cos, sin, keys, values, columns, out, query_norm, key_norm, eps,
    q_row, k_row, v_row, length,
    HEADS: tl.constexpr, SHARED: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr,
    PADDED: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    dims = tl.arange(0, PADDED)
    real = dims < HALF
    last = tl.load(columns + row).to(tl.int64)
    if head >= HEADS + SHARED:
        own = head - HEADS - SHARED
        source = value + row * v_row + own * SIZE + dims
        target = values + ((row * SHARED + own) * length + last) * SIZE + dims
        tl.store(target, tl.load(source, mask=real), mask=real)
        tl.store(target + HALF, tl.load(source + HALF, mask=real), mask=real)
    else:
        is_key = head >= HEADS
        own = tl.where(is_key, head - HEADS, head)
        if is_key:
            source = key + row * k_row + own * SIZE + dims
            target = keys + ((row * SHARED + own) * length + last) * SIZE + dims
            norm = key_norm
        else:
            source = query + row * q_row + own * SIZE + dims
            target = out + (row * HEADS + own) * SIZE + dims
            norm = query_norm
        a = tl.load(source, mask=real, other=0.0).to(tl.float32)
        b = tl.load(source + HALF, mask=real, other=0.0).to(tl.float32)
        if NORMED:
            square = tl.sum(a * a, 0) + tl.sum(b * b, 0)
            shrink = tl.rsqrt(square / SIZE + eps)
            a *= shrink * tl.load(norm + dims, mask=real, other=0.0).to(tl.float32)
            b *= shrink * tl.load(norm + HALF + dims, mask=real, other=0.0).to(tl.float32)
        angles = row * SIZE + dims
        cos_a = tl.load(cos + angles, mask=real, other=0.0).to(tl.float32)
        cos_b = tl.load(cos + angles + HALF, mask=real, other=0.0).to(tl.float32)
        sin_a = tl.load(sin + angles, mask=real, other=0.0).to(tl.float32)
        sin_b = tl.load(sin + angles + HALF, mask=real, other=0.0).to(tl.float32)
        tl.store(target, (a * cos_a - b * sin_a).to(out.dtype.element_ty), mask=real)
        tl.store(target + HALF, (b * cos_b + a * sin_b).to(out.dtype.element_ty), mask=real)


# --- A sum and its norm --------------------------------------------------------------------------


def add_and_normalise(hidden: Any, residual: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    """Return the sum of two [rows, 1, size] and its RMS norm."""
    size = weight.shape[0]
    total, normed = torch.empty_like(residual), torch.empty_like(residual)
    launch(_add_and_normalise, (residual.numel() // size,),
        hidden, residual, weight, total, normed, eps,
        SIZE=size, PADDED=triton.next_power_of_2(size), num_warps=4 if size <= 4096 else 8,
    )  # fmt: skip
    return total, normed


@triton.jit
def _add_and_normalise(
    hidden, residual, weight, total, normed, eps, SIZE: tl.constexpr, PADDED: tl.constexpr
):
    dims = tl.arange(0, PADDED)
    real = dims < SIZE
    places = tl.program_id(0) * SIZE + dims
    a = tl.load(hidden + places, mask=real, other=0.0).to(tl.float32)
    b = tl.load(residual + places, mask=real, other=0.0).to(tl.float32)
    # Rounded as the model's own sum is, so that the norm sees the same numbers.
    together = (a + b).to(total.dtype.element_ty)
    tl.store(total + places, together, mask=real)
    x = together.to(tl.float32)
    shrink = tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
    scaled = x * shrink * tl.load(weight + dims, mask=real, other=0.0).to(tl.float32)
    tl.store(normed + places, scaled.to(normed.dtype.element_ty), mask=real)


# --- Products with the same input ----------------------------------------------------------------

MOST_ROWS = 64
"""Up to here a product is bound by reading its weights, and the kernels below are as fast as it."""


def can_project(weights: Sequence[Any]) -> bool:
    """Whether matrices, each [out, in], have a shape and a type that the kernels below take."""
    first = weights[0]
    plain = all(w.dtype == first.dtype and w.is_contiguous() for w in weights)
    fits = first.shape[1] % 64 == 0 and all(w.shape[0] % 64 == 0 for w in weights)
    return plain and fits and first.dtype in (torch.bfloat16, torch.float16)


def project(hidden: Any, weights: Sequence[Any], biases: Sequence[Any] | None) -> Any:
    """Multiply [rows, in] with three matrices [out, in] at once.

    Returns:
        [rows, all outs], side by side.
    """
    rows, size = hidden.shape
    outs = [weight.shape[0] for weight in weights]
    out = hidden.new_empty((rows, sum(outs)))
    columns = 64 if sum(outs) >= 96 * 64 else 32  # so many that all processors have some
    launch(_project, (sum(outs) // columns,),
        hidden, *weights, *(biases or weights), out, rows, size, hidden.stride(0), *outs,
        ROWS=_pad_rows(rows), COLUMNS=columns, BLOCK=128 if size % 128 == 0 else 64,
        BIASED=biases is not None, num_warps=4, num_stages=5,
    )  # fmt: skip
    return out


@triton.jit
def _project(
    hidden, w0, w1, w2, b0, b1, b2, out, rows, size, stride, n0, n1, n2,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, BIASED: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS
    weight, bias, begin = w0, b0, 0
    if column >= n0 + n1:
        weight, bias, begin = w2, b2, n0 + n1
    elif column >= n0:
        weight, bias, begin = w1, b1, n0
    own = column - begin + tl.arange(0, COLUMNS)
    row, inner = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    x = hidden + row[:, None] * stride + inner[None, :]
    w = weight + own[None, :] * size + inner[:, None]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for _ in range(0, size, BLOCK):
        total = tl.dot(tl.load(x, mask=row[:, None] < rows, other=0.0), tl.load(w), total)
        x += BLOCK
        w += BLOCK
    if BIASED:
        total += tl.load(bias + own).to(tl.float32)[None, :]
    columns = column + tl.arange(0, COLUMNS)
    places = out + row[:, None] * (n0 + n1 + n2) + columns[None, :]
    tl.store(places, total.to(out.dtype.element_ty), mask=row[:, None] < rows)


def project_gated(hidden: Any, gate: Any, up: Any) -> Any:
    """Return silu(hidden @ gate.T) * (hidden @ up.T) of [rows, in] and two [out, in]."""
    rows, size = hidden.shape
    out = hidden.new_empty((rows, gate.shape[0]))
    launch(_project_gated, (gate.shape[0] // 32,),
        hidden, gate, up, out, rows, size, hidden.stride(0), gate.shape[0],
        ROWS=_pad_rows(rows), COLUMNS=32, BLOCK=64, num_warps=4, num_stages=5,
    )  # fmt: skip
    return out


@triton.jit
def _project_gated(
    hidden, gate, up, out, rows, size, stride, count,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row, inner = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    x = hidden + row[:, None] * stride + inner[None, :]
    places = column[None, :] * size + inner[:, None]
    g, u = gate + places, up + places
    gates = tl.zeros([ROWS, COLUMNS], tl.float32)
    ups = tl.zeros([ROWS, COLUMNS], tl.float32)
    for _ in range(0, size, BLOCK):
        block = tl.load(x, mask=row[:, None] < rows, other=0.0)
        gates = tl.dot(block, tl.load(g), gates)
        ups = tl.dot(block, tl.load(u), ups)
        x += BLOCK
        g += BLOCK
        u += BLOCK
    # Rounded where the model's own numbers are.
    kind = out.dtype.element_ty
    gates = gates.to(kind).to(tl.float32)
    gates = (gates / (1.0 + tl.exp(-gates))).to(kind).to(tl.float32)
    result = gates * ups.to(kind).to(tl.float32)
    tl.store(
        out + row[:, None] * count + column[None, :], result.to(kind), mask=row[:, None] < rows
    )


def _pad_rows(rows: int) -> int:
    return max(16, int(triton.next_power_of_2(rows)))


# --- The next token ------------------------------------------------------------------------------

TOKENS_PER_BLOCK = 4096
HALVINGS = 24
"""Of the interval in which the least likely token of a nucleus is looked for."""


def choose(logits: Any, temperatures: Any, seeds: Any, made: Any, least: Any = None) -> Any:
    """Choose the next token of each row: the likeliest, or by chance.

    By chance is the maximum of scores with Gumbel noise. The noise of a token depends on the row's
    seed, on how many tokens the row has, and on the token: neither on the batch nor on its order.

    Args:
        logits: [rows, vocabulary].
        temperatures: [rows] in float32; 0 takes the likeliest.
        seeds: [rows], int64.
        made: [1], how many tokens of an answer there are.
        least: [rows], the lowest logit that may be chosen; None is no limit.

    Returns:
        [rows], int64.
    """
    rows, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, TOKENS_PER_BLOCK)
    best = logits.new_empty((rows, blocks), dtype=torch.float32)
    found = logits.new_empty((rows, blocks), dtype=torch.int32)
    tokens = logits.new_empty((rows,), dtype=torch.long)
    launch(_choose_in_block, (rows, blocks),
        logits, temperatures, seeds, made,
        least if least is not None else temperatures, best, found, vocabulary,
        logits.stride(0), blocks,
        BLOCK=TOKENS_PER_BLOCK, LIMITED=least is not None, num_warps=8,
    )  # fmt: skip
    launch(
        _choose_among_blocks,
        (rows,),
        best,
        found,
        tokens,
        blocks,
        BLOCKS=triton.next_power_of_2(blocks),
        num_warps=1,
    )
    return tokens


@triton.jit
def _choose_in_block(
    logits, temperatures, seeds, made, least, best, found, vocabulary, stride, blocks,
    BLOCK: tl.constexpr, LIMITED: tl.constexpr,
):  # fmt: skip
    row, block = tl.program_id(0), tl.program_id(1)
    token = block * BLOCK + tl.arange(0, BLOCK)
    real = token < vocabulary
    scores = tl.load(logits + row * stride + token, mask=real, other=float("-inf"))
    scores = scores.to(tl.float32)
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        if LIMITED:
            scores = tl.where(scores >= tl.load(least + row), scores, float("-inf"))
        zero = token * 0
        count = zero + tl.load(made).to(tl.int32)
        random, _, _, _ = tl.philox(tl.load(seeds + row), token, count, zero, zero, 7)
        chance = (random.to(tl.uint32, bitcast=True).to(tl.float32) + 0.5) * 2.3283064e-10
        chance = tl.minimum(chance, 0.99999994)
        # -log(1 - chance), also where chance is too small for that.
        wait = tl.where(chance < 1e-3, chance + 0.5 * chance * chance, -tl.log(1.0 - chance))
        scores = scores / temperature - tl.log(wait)
    value, at = tl.max(scores, 0, return_indices=True)
    tl.store(best + row * blocks + block, value)
    tl.store(found + row * blocks + block, block * BLOCK + at)


@triton.jit
def _choose_among_blocks(best, found, tokens, blocks, BLOCKS: tl.constexpr):
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    values = tl.load(best + row * blocks + block, mask=block < blocks, other=float("-inf"))
    _, at = tl.max(values, 0, return_indices=True)
    tl.store(tokens + row, tl.load(found + row * blocks + at).to(tl.int64))


def find_nucleus(logits: Any, temperatures: Any, shares: Any) -> Any:
    """Return the lowest logit of each row's nucleus: the likeliest tokens with that share.

    Tokens that are as likely as the last one that is needed belong to it.

    Args:
        logits: [rows, vocabulary].
        temperatures: [rows] in float32.
        shares: [rows] in float32: top_p.
    """
    rows, vocabulary = logits.shape
    least = temperatures.new_empty((rows,))
    launch(_find_nucleus, (rows,),
        logits, temperatures, shares, least, vocabulary, logits.stride(0),
        BLOCK=TOKENS_PER_BLOCK, HALVINGS=HALVINGS, num_warps=16,
    )  # fmt: skip
    return least


@triton.jit
def _find_nucleus(
    logits, temperatures, shares, least, vocabulary, stride,
    BLOCK: tl.constexpr, HALVINGS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    temperature = tl.maximum(tl.load(temperatures + row), 1e-6)
    offsets = tl.arange(0, BLOCK)
    logits += row * stride
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for begin in range(0, vocabulary, BLOCK):
        x = tl.load(
            logits + begin + offsets, mask=begin + offsets < vocabulary, other=float("-inf")
        )
        highest = tl.maximum(highest, x.to(tl.float32))
    top = tl.max(highest, 0)
    mass = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, vocabulary, BLOCK):
        x = tl.load(
            logits + begin + offsets, mask=begin + offsets < vocabulary, other=float("-inf")
        )
        mass += tl.exp((x.to(tl.float32) - top) / temperature)
    wanted = tl.sum(mass, 0) * tl.load(shares + row)
    # What lies lower than this has no weight in float32.
    low, high = top - 100.0 * temperature, top
    for _ in range(HALVINGS):
        middle = (low + high) * 0.5
        mass = tl.zeros([BLOCK], tl.float32)
        for begin in range(0, vocabulary, BLOCK):
            x = tl.load(
                logits + begin + offsets, mask=begin + offsets < vocabulary, other=float("-inf")
            ).to(tl.float32)
            mass += tl.where(x >= middle, tl.exp((x - top) / temperature), 0.0)
        enough = tl.sum(mass, 0) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    tl.store(least + row, low)
