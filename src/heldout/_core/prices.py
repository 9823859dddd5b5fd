"""Prices of models, which the user sets: heldout knows none by itself, and guesses none.

    # ~/.config/heldout/prices.toml: what a million tokens cost, in whatever currency
    ["openai:gpt-4o-mini"]
    input = 0.15
    output = 0.60

HELDOUT_PRICES names another file. A run keeps the price of its model in run.json, so that its cost
does not change with the file. Where there is no price there is no cost: None, never 0.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from heldout._core.checks import check_number
from heldout.errors import InvalidInput

PER = 1_000_000
"""Tokens that a price is for."""


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens of a model cost."""

    input: float
    """Cost of a million tokens that the model reads."""
    output: float
    """Cost of a million tokens that it writes, its reasoning included."""

    def __post_init__(self) -> None:
        for name in ("input", "output"):
            check_number(f"price.{name}, per million tokens,", getattr(self, name), low=0)

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Price:
        """Make a price of its two fields; InvalidInput where they are others."""
        if plain.keys() != {"input", "output"}:
            raise InvalidInput(f"price has input and output, got {plain!r:.200}")
        return cls(**plain)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Compute what tokens cost.

        Args:
            prompt_tokens: Tokens that the model read.
            completion_tokens: Tokens that it wrote.

        Returns:
            The cost, in the currency of the price.
        """
        return (prompt_tokens * self.input + completion_tokens * self.output) / PER


def find_price(model: str) -> Price | None:
    """Find the price of a model in the user's table.

    Args:
        model: `PROVIDER:MODEL`; where the table does not have that, its entry for MODEL is taken.

    Returns:
        The price; None where there is none.

    Raises:
        InvalidInput: The table cannot be read.
    """
    prices = load_prices()
    return prices.get(model) or prices.get(model.partition(":")[2])


def load_prices() -> dict[str, Price]:
    """Read the table: HELDOUT_PRICES, or prices.toml in the user's config directory."""
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    path = os.environ.get("HELDOUT_PRICES")
    file = Path(path) if path else config / "heldout/prices.toml"
    if not path and not file.exists():
        return {}
    try:
        return msgspec.toml.decode(file.read_bytes(), type=dict[str, Price])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise InvalidInput(
            f"{file} is not a table of prices, input and output per million tokens: {problem}"
        ) from None
