"""The same forward pass in fewer kernels, for as long as a context lasts.

A decode step of a small model is hundreds of kernels of a few microseconds each, and their number
is its time. Transformers writes the norm of a layer as eight and the rotation of queries and keys
as ten, and copies keys and values once a query head. Here these are one, four and none. Each is
compared with the model's own on random input first, and left alone where it is not the same up to
rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

ATTENTION = "heldout_decoding"
"""Under this name transformers finds `_attention`."""


@contextmanager
def fewer_kernels(model: Any) -> Iterator[None]:
    """For a transformers model whose attention takes masks as `captured` makes them."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, _attention)
    config = model.config
    usual = config._attn_implementation
    with ExitStack() as undo:
        undo.callback(setattr, config, "_attn_implementation", usual)
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
    """For one new token: the query heads that share a key are the rows of one small problem.

    The mask has a row for each sequence and key head then, [rows * key heads, 1, 1, length], and
    is of numbers to be added: a boolean one would cost another kernel in every layer.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    rows, heads, new, size = query.shape
    if new > 1:
        found: tuple[Any, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=0.0, scaling=scaling, **kwargs
        )
        return found
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


# --- Norms --------------------------------------------------------------------------------------


def _fuse_norms(model: Any, undo: ExitStack) -> None:
    same: dict[type, bool] = {}
    for module in model.modules():
        kind = type(module)
        if not kind.__name__.endswith("RMSNorm") or "forward" in vars(module):
            continue
        if kind not in same:
            same[kind] = _is_plain_norm(module)
        if same[kind]:
            module.forward = _norm(module)
            undo.callback(delattr, module, "forward")


def _norm(module: Any) -> Callable[[Any], Any]:
    import torch

    usual, weight, eps = module.forward, module.weight, _eps(module)

    def forward(hidden: Any) -> Any:
        if hidden.dtype != weight.dtype or torch.is_autocast_enabled(hidden.device.type):
            return usual(hidden)
        return torch.nn.functional.rms_norm(hidden, weight.shape, weight, eps)

    return forward


def _eps(module: Any) -> Any:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


def _is_plain_norm(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() != 1 or not isinstance(_eps(module), float):
        return False
    given = _random(4, weight.shape[0], like=weight)
    return _alike(module(given), _norm(module)(given))


# --- Rotations ----------------------------------------------------------------------------------


def _fuse_rotations(model: Any, undo: ExitStack) -> None:
    """The function that attention modules find by name in the file that defines them."""
    name = "apply_rotary_pos_emb"
    for home in {sys.modules[type(module).__module__] for module in model.modules()}:
        usual = getattr(home, name, None)
        if usual is not None and _is_plain_rotation(usual, next(model.parameters())):
            setattr(home, name, _rotation(usual))
            undo.callback(setattr, home, name, usual)


def _rotation(usual: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    last: list[Any] = [None, None, None]

    def rotate(query: Any, key: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        rows, heads, new, size = query.shape
        shared = key.shape[1]
        plain = new == 1 and cos.shape == (rows, 1, size) and cos.dtype == query.dtype == key.dtype
        if args or kwargs or not plain:
            return usual(query, key, cos, sin, *args, **kwargs)
        if last[0] is not cos:  # once a pass: all layers are given the same
            # Rotating by halves is rolling by half, with the sign in the sine.
            signed = torch.cat([-sin[..., : size // 2], sin[..., size // 2 :]], dim=-1)
            last[:] = (cos, *(_for_each_head(part, heads, shared) for part in (cos, signed)))
        both = torch.cat([query.reshape(-1, size), key.reshape(-1, size)])
        turned = torch.addcmul(both * last[1], both.roll(size // 2, -1), last[2])
        split = rows * heads
        return turned[:split].view(rows, heads, 1, size), turned[split:].view(rows, shared, 1, size)

    return rotate


def _for_each_head(part: Any, heads: int, shared: int) -> Any:
    import torch

    size = part.shape[-1]
    return torch.cat([part.expand(-1, n, -1).reshape(-1, size) for n in (heads, shared)])


def _is_plain_rotation(usual: Callable[..., Any], like: Any) -> bool:
    query, key = _random(3, 4, 1, 16, like=like), _random(3, 2, 1, 16, like=like)
    cos, sin = _random(3, 1, 16, like=like), _random(3, 1, 16, like=like)
    try:
        theirs = usual(query, key, cos, sin)
        ours = _rotation(usual)(query, key, cos, sin)
    except Exception:  # noqa: BLE001 - another function of that name: not to be replaced
        return False
    return all(_alike(a, b) for a, b in zip(theirs, ours, strict=True))


def _random(*shape: int, like: Any) -> Any:
    """Numbers from a stream of their own: the global one is the training's."""
    import torch

    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return numbers.to(device=like.device, dtype=like.dtype)


def _alike(a: Any, b: Any) -> bool:
    import torch

    rounding = 4 * torch.finfo(a.dtype).eps
    return a.dtype == b.dtype and bool(torch.allclose(a, b, rtol=rounding, atol=4 * rounding))
