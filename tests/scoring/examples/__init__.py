"""Examples of every grader: its tests run them, and the docs show them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Example:
    answer: str
    target: Any
    extracted: str | None
    value: float
    why: str = ""
