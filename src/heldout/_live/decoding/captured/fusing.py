"""The same forward pass in fewer kernels, for a decode step on buffers that stay in place.

A decode step of a small model is hundreds of kernels of a few microseconds each, and their number
is its time. Transformers implements a norm with eight and the rotation of queries and keys with
ten, and copies keys and values once per query head. Parts of a model are replaced here while its
step is captured: by functions of torch on every device, by the kernels of `kernels.py` where there
is Triton. Single functions are compared with the model's own on random input first, and left alone
where they are not equal up to rounding; the logits of the whole are compared before they are used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from heldout._live.decoding.captured.batch_plan import RowState
from heldout._live.decoding.captured.capturable import windowed_layers

ATTENTION = "heldout_decoding"
"""The name under which attention of a step is registered with transformers."""


@contextmanager
def fused_kernels(
    model: Any, state: RowState | None = None, caches: Sequence[Any] = ()
) -> Iterator[None]:
    """Compute the same forward pass in fewer kernels, for models with masks as made in `graphs.py`.

    Args:
        model: A model of transformers.
        state: For the kernels of Triton; None does without them.
        caches: By layer: `kept` are its keys and values, [rows, key heads, columns, size].
    """
    from transformers import AttentionInterface

    config = model.config
    usual = config._attn_implementation
    attention = _attention if state is None else _live_attention(state, windowed_layers(config))
    with ExitStack() as undo:
        # What is registered stays, and must not keep a batch in memory.
        undo.callback(AttentionInterface.register, ATTENTION, _attention)
        AttentionInterface.register(ATTENTION, attention)
        undo.callback(setattr, config, "_attn_implementation", usual)
        config._attn_implementation = ATTENTION
        _fuse_norms(model, undo)
        _fuse_rotations(model, undo)
        if state is not None:
            _fuse_layers(model, state, caches, undo)
        yield


# --- Without Triton -----------------------------------------------------------------------------


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


# --- With Triton --------------------------------------------------------------------------------


def _live_attention(state: RowState, windowed: set[int]) -> Callable[..., tuple[Any, Any]]:
    """Return attention that reads only the columns that a row has filled, and no mask.

    `windowed` are the layers that have to say how long their window is.
    """
    from heldout._live.decoding.captured import kernels

    def attention(
        module: Any,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        if kwargs.get("position_bias") is not None:
            raise NotImplementedError("attention with position_bias")
        window = kwargs.get("sliding_window")
        if window is None and getattr(module, "layer_idx", None) in windowed:
            raise NotImplementedError("attention with a window that only its mask has")
        scoring = kernels.Scoring(
            query.shape[-1] ** -0.5 if scaling is None else scaling,
            window=window,
            softcap=kwargs.get("softcap"),
            sinks=kwargs.get("s_aux"),
        )
        return kernels.attend(query, key, value, state, scoring), None

    return attention


PLAIN_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
"""Whose attention, gated MLP and decoder layer are those that are written out below."""


def _fuse_layers(model: Any, state: RowState, caches: Sequence[Any], undo: ExitStack) -> None:
    ways: dict[str, Callable[[Any], Callable[..., Any] | None]] = {
        "Attention": partial(_fused_attention, state=state, caches=caches),
        "MLP": _fused_mlp,
        "DecoderLayer": _fused_layer,
    }
    makers = {family + part: make for part, make in ways.items() for family in PLAIN_FAMILIES}
    for module in model.modules():
        kind = type(module)
        make = makers.get(kind.__name__)
        known = kind.__module__.startswith("transformers.models.")
        if make is None or not known or "forward" in vars(module):
            continue
        forward = make(module)
        if forward is not None:
            module.forward = forward
            undo.callback(delattr, module, "forward")


def _is_new_token(hidden: Any) -> bool:
    """Whether this is a decode step, in one precision."""
    import torch

    return hidden.shape[1] == 1 and not torch.is_autocast_enabled(hidden.device.type)


def _fused_attention(
    module: Any, state: RowState, caches: Sequence[Any]
) -> Callable[..., Any] | None:
    from heldout._live.decoding.captured import kernels

    original, linears = module.forward, (module.q_proj, module.k_proj, module.v_proj)
    norms = [getattr(module, name, None) for name in ("q_norm", "k_norm")]
    if any(norm is not None and not _is_plain_norm(norm) for norm in norms):
        return None
    query_norm, key_norm = (None if norm is None else norm.weight for norm in norms)
    eps = 0.0 if norms[0] is None else _norm_eps(norms[0])
    sizes = [linear.weight.shape[0] for linear in linears]
    weights, biases = _plain_weights(linears), [linear.bias for linear in linears]
    # Qwen's modules know their own, Mistral's have that of the config, Llama's have none.
    holder = module if hasattr(module, "sliding_window") else module.config
    window = getattr(holder, "sliding_window", None)

    def forward(hidden_states: Any, **kwargs: Any) -> Any:
        if not _is_new_token(hidden_states):
            return original(hidden_states=hidden_states, **kwargs)
        hidden = hidden_states[:, 0]
        if weights is None or len(hidden) > kernels.MOST_ROWS:
            query, key, value = (linear(hidden) for linear in linears)
        else:
            bias = None if biases[0] is None else biases
            query, key, value = kernels.project(hidden, weights, bias).split(sizes, -1)
        cos, sin = (part[:, 0] for part in kwargs["position_embeddings"])
        keys, values = caches[module.layer_idx].kept
        query = kernels.rotate_and_cache(
            query,
            key,
            value,
            cos,
            sin,
            keys,
            values,
            state.columns,
            query_norm=query_norm,
            key_norm=key_norm,
            eps=eps,
        )
        scoring = kernels.Scoring(module.scaling, window=window)
        out = kernels.attend(query, keys, values, state, scoring)
        return module.o_proj(out.flatten(2)), None

    return forward


def _plain_weights(linears: Sequence[Any]) -> list[Any] | None:
    """Return the weights of linear layers that are nothing else; None for adapters and others."""
    import torch

    from heldout._live.decoding.captured import kernels

    if any(type(linear) is not torch.nn.Linear or "forward" in vars(linear) for linear in linears):
        return None
    if len({linear.bias is None for linear in linears}) > 1:
        return None
    weights = [linear.weight for linear in linears]
    return weights if kernels.can_project(weights) else None


def _fused_mlp(module: Any) -> Callable[..., Any] | None:
    from heldout._live.decoding.captured import kernels

    original = module.forward
    weights = _plain_weights((module.gate_proj, module.up_proj))
    silu = type(module.act_fn).__name__ in ("SiLU", "SiLUActivation")
    if weights is None or not silu or module.gate_proj.bias is not None:
        return None

    def forward(hidden_states: Any) -> Any:
        if not _is_new_token(hidden_states) or len(hidden_states) > kernels.MOST_ROWS:
            return original(hidden_states)
        return module.down_proj(kernels.project_gated(hidden_states[:, 0], *weights)[:, None])

    return forward


def _fused_layer(module: Any) -> Callable[..., Any] | None:
    from heldout._live.decoding.captured import kernels

    original, norm = module.forward, module.post_attention_layernorm
    if not _is_plain_norm(norm):
        return None

    def forward(hidden_states: Any, **kwargs: Any) -> Any:
        if not _is_new_token(hidden_states) or norm.weight.dtype != hidden_states.dtype:
            return original(hidden_states, **kwargs)
        attended, _ = module.self_attn(
            hidden_states=module.input_layernorm(hidden_states), **kwargs
        )
        hidden_states, normed = kernels.add_and_normalise(
            attended, hidden_states, norm.weight, _norm_eps(norm)
        )
        return hidden_states + module.mlp(normed)

    return forward
