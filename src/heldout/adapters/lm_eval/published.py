"""What names a task of lm-eval in its logs and in runs here alike.

A log has the task's config, which is all of a task but the Python code that its functions use. That
code is lm-eval's, where the task is an installed one; a task that has functions and is one's own is
named by nothing. Where config, version and the way of prompting agree, an imported log and a run
here are of one task.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any


def describe_published(
    task: str,
    *,
    version: str | None,
    config: Mapping[str, Any],
    fewshot_seed: Any,
    chat: bool,
    multiturn: Any,
    system_prompt: str | None,
    rewards: Iterable[str],
) -> dict[str, Any] | None:
    """Return what both sides must share; None where something of it is not known.

    Args:
        task: Its name.
        version: Of lm-eval.
        config: The task's, as lm-eval saves it.
        fewshot_seed: What draws its examples.
        chat: Whether prompts are conversations.
        multiturn: Whether each example is then a turn of its own.
        system_prompt: What precedes each prompt.
        rewards: The metric that is the reward, in all of its forms.
    """
    if not version or not config or fewshot_seed is None:
        return None
    # Of the run, in part: lm-eval adds the arguments of the model to it.
    about = config.get("metadata")
    own = about.get("version") if isinstance(about, Mapping) else None
    parts = {**{k: v for k, v in config.items() if k != "metadata"}, "version": own}
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", json.dumps(parts, sort_keys=True, default=str))
    return {
        "task": task,
        "packages": {"lm_eval": version},
        "config": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16],
        "fewshot_seed": fewshot_seed,
        "chat": chat,
        "multiturn": bool(multiturn) if chat else None,
        "system_prompt": system_prompt or None,
        "rewards": [*rewards],
    }


def has_functions(value: Any) -> bool:
    """Say whether a config has functions, which use code that it does not show."""
    if isinstance(value, Mapping):
        return any(has_functions(part) for part in value.values())
    if isinstance(value, list | tuple):
        return any(has_functions(part) for part in value)
    return callable(value)
