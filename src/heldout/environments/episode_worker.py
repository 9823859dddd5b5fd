"""What runs in worker processes: episodes, each made of its sample and its actions.

A worker keeps the episodes it has played last. One that it does not have, since another worker
began it or it was resumed, is played again from the start, and must go as it did before.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from heldout.environments.episodes import EpisodeStep, StepEpisode
from heldout.types import Sample

MOST_KEPT = 64
_kept: OrderedDict[str, tuple[StepEpisode, str]] = OrderedDict()
"""Episodes by their sample and the actions so far, with a hash of how they went."""


def play(
    make_env: str,
    sample: dict[str, Any],
    prompt: list[dict[str, Any]],
    actions: Sequence[str],
    before: str,
) -> tuple[Sequence[Any], str]:
    """Take the last of an episode's actions; begin it where there is none.

    Args:
        make_env: "module:function", which makes the environment of a sample.
        sample: The sample's fields.
        prompt: Its messages.
        actions: All actions so far.
        before: The hash of how the episode went before the last one.

    Returns:
        What came of the last action, and the hash of how the episode went.
    """
    key = json.dumps([make_env, sample, actions[:-1]], sort_keys=True)
    episode, went = _kept.pop(key, (None, "")) if actions else (None, "")
    if episode is None or went != before:
        episode = StepEpisode(_find(make_env), Sample(**sample), prompt)
        step, went = _take(episode.begin(), "")
        for action in actions[:-1]:
            step, went = _take(episode.step(action), went)
        if actions and went != before:
            raise RuntimeError(
                "the episode went another way when it was played again with the same seed and "
                "actions: the environment draws from something else, so it cannot be repeated"
            )
    if actions:
        step, went = _take(episode.step(actions[-1]), went)
    if not step.done:
        _kept[json.dumps([make_env, sample, list(actions)], sort_keys=True)] = episode, went
        if len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)[1][0].close()
    else:
        episode.close()
    return tuple(step), went


def _find(make_env: str) -> Any:
    module, _, name = make_env.partition(":")
    return getattr(importlib.import_module(module), name)


def _take(step: Any, went: str) -> tuple[EpisodeStep, str]:
    if not isinstance(step, EpisodeStep):
        raise TypeError("an environment that is played in a worker has no async methods")
    told = json.dumps([went, *step[:4]], default=repr)
    return step, hashlib.sha256(told.encode()).hexdigest()[:16]


def check(make_env: str) -> None:
    """Raise what importing the function raises, or that there is none."""
    if not callable(_find(make_env)):
        raise TypeError(f"{make_env} is not a function")
