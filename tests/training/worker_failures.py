"""Policies that come to nothing. Torch is not imported here, so that they do so quickly."""

from __future__ import annotations

import sys
import threading
from typing import Any


def raises() -> Any:
    print("one line before")
    raise RuntimeError("no weights to be had")


def leaves() -> Any:
    sys.exit("no GPU")


def swapped() -> Any:
    import torch

    return raises, torch.nn.Linear(1, 1)


def number() -> Any:
    return 5


def never() -> Any:
    print("waiting for godot")
    threading.Event().wait()
