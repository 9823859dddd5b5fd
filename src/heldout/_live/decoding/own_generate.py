"""Decoding by the model's own `generate`: slower, and for models with conventions of their own.

`generate` keeps caches, masks and positions as the model wants them. Which token comes next, and
when a turn ends, is decided here, so all settings of a turn mean what they mean elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from heldout._live.decoding.checking import LogitsChecks, WrongLogits, rows_to_compare
from heldout._live.decoding.choosing import choose_tokens
from heldout._live.decoding.model import device_of, transformers_model
from heldout._live.decoding.turn import Callbacks, Prompt, Turn


def decode(model: Any, turns: list[Turn], callbacks: Callbacks, checks: LogitsChecks) -> None:
    """Decode all turns together, padded on the left, inside `deterministic_inference`.

    Raises:
        WrongLogits: The model has no `generate`, or one that gives other logits than its own.
    """
    _generate(model, turns, callbacks, checks, "generate")


def decode_singly(
    model: Any, turns: list[Turn], callbacks: Callbacks, checks: LogitsChecks
) -> None:
    """Decode one turn after the other: RWKV takes no mask, and steps of one row alone.

    Raises:
        WrongLogits: As `decode` does.
    """
    for turn in turns:
        if callbacks.wanted(turn.index):
            _generate(model, [turn], callbacks, checks, "generate, row by row")


def refuse_wrong_generate(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], checks: LogitsChecks
) -> None:
    """Generate two tokens of two prompts, if the `generate` of others is to be relied on.

    Raises:
        WrongLogits: It gives other logits than the model's own.
    """
    if checks.start(model, "generate", prompts) is None:
        return
    chosen = [tuple(prompts[row]) for row in rows_to_compare(prompts)]
    turns = [Turn(n, Prompt(ids, 2), tokenizer, frozenset()) for n, ids in enumerate(chosen)]
    nothing = Callbacks(lambda: True, lambda _: True, lambda *_: None, lambda _: None)
    decode(model, turns, nothing, checks)


def _generate(
    model: Any, turns: list[Turn], callbacks: Callbacks, checks: LogitsChecks, way: str
) -> None:
    import torch
    from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

    can_generate = getattr(transformers_model(model), "can_generate", None)
    if can_generate is None or not can_generate():
        raise WrongLogits("it has no generate")
    if not callbacks.keep_going():
        return
    prompts = [turn.prompt.ids for turn in turns]
    check = checks.start(model, way, prompts)
    device, width = device_of(model), max(map(len, prompts))
    ids = [[0] * (width - len(prompt)) + [*prompt] for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    active = dict(enumerate(turns))

    def choose(_: Any, scores: Any) -> Any:
        rows = list(active)
        logits = scores[rows]
        tokens = choose_tokens(logits, list(active.values()))
        if check is not None:
            check.compare(logits, tokens, rows)
        chosen = [0] * len(turns)
        for row, token in zip(rows, tokens, strict=True):
            chosen[row] = max(token, 0)
            turn = active[row]
            if not (callbacks.wanted(turn.index) and callbacks.take(turn, token)):
                del active[row]
        only = torch.tensor(chosen, device=scores.device)[:, None]
        return torch.full_like(scores, float("-inf")).scatter(1, only, 0.0)

    def stop(ids: Any, *_: Any, **__: Any) -> Any:
        going = callbacks.keep_going()
        ended = [not going or row not in active for row in range(len(turns))]
        return torch.tensor(ended, device=ids.device)

    settings = GenerationConfig(
        max_new_tokens=max(turn.prompt.max_new for turn in turns),
        do_sample=False,
        use_cache=True,
        pad_token_id=0,
    )
    with _without_own_settings(model):
        model.generate(
            input_ids=torch.tensor(ids, device=device),
            attention_mask=torch.tensor(mask, device=device),
            generation_config=settings,
            logits_processor=LogitsProcessorList([choose]),
            stopping_criteria=StoppingCriteriaList([stop]),
        )


@contextmanager
def _without_own_settings(model: Any) -> Iterator[None]:
    """Have `generate` take nothing from the model's own settings: they would change its logits."""
    from transformers import GenerationConfig

    models = {id(each): each for each in (model, transformers_model(model))}.values()
    own = [(each, vars(each)["generation_config"]) for each in models if _has_settings(each)]
    try:
        for each, _ in own:
            each.generation_config = GenerationConfig()
        yield
    finally:
        for each, settings in own:
            each.generation_config = settings


def _has_settings(model: Any) -> bool:
    return "generation_config" in vars(model)
