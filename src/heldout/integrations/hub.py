"""What of the Hugging Face hub is on this machine, without importing its packages."""

from __future__ import annotations

import os
from pathlib import Path

_KINDS = ("datasets", "models")


def is_offline() -> bool:
    """Return whether the user has the hub's packages download nothing."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def is_cached(name: str) -> bool:
    """Return whether the cache has anything of a dataset or model."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    return any((hub / f"{kind}--{name.replace('/', '--')}").is_dir() for kind in _KINDS)


def address_of_dataset(name: str) -> str:
    """Return where a dataset is downloaded from."""
    return f"https://huggingface.co/datasets/{name}"
