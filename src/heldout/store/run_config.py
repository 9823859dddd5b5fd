"""What the config of a stored run says.

A run directory may come from anywhere, so its config is not taken at its word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def repeats_of(config: Mapping[str, Any]) -> int:
    """Read how often each sample is run; 1 where a config does not say."""
    value = config.get("repeats")
    return value if isinstance(value, int) and value > 0 else 1


def threshold_of(config: Mapping[str, Any]) -> float | None:
    """Read the reward that passes; 0.5 where a config does not say, None where it is a return."""
    if config.get("kind") == "episodes" and config.get("reward") == "return":
        return None
    value = config.get("pass_threshold")
    return float(value) if isinstance(value, int | float) else 0.5


def was_success_assumed(config: Mapping[str, Any]) -> bool:
    """Return whether an old run counted each termination as success though nobody had said so.

    A run that was asked for it (`evaluate_env(success="terminated")`) says so under "success".
    """
    return config.get("success_is") == "terminated" and config.get("success") != "terminated"
