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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

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
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise InvalidInput(f"price.{name} is a number >= 0 per million tokens: {value!r}")

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Compute what tokens cost.

        Args:
            prompt_tokens: Tokens that the model read.
            completion_tokens: Tokens that it wrote.

        Returns:
            The cost, in the currency of the price.
        """
        return (prompt_tokens * self.input + completion_tokens * self.output) / PER


def prices_file() -> Path:
    """Find the file of prices: HELDOUT_PRICES, or prices.toml in the user's config directory."""
    if path := os.environ.get("HELDOUT_PRICES"):
        return Path(path)
    return (
        Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "heldout/prices.toml"
    )


def load_prices(path: str | Path | None = None) -> dict[str, Price]:
    """Read a file of prices.

    Args:
        path: A TOML file with a table for each model; by default the user's own.

    Returns:
        Prices by model, as `PROVIDER:MODEL` or MODEL; none where the file is not there.

    Raises:
        InvalidInput: The file cannot be read, or an entry is not a price.
    """
    file = prices_file() if path is None else Path(path)
    if path is None and not file.exists():
        return {}
    try:
        return msgspec.toml.decode(file.read_bytes(), type=dict[str, Price])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as problem:
        raise InvalidInput(
            f"{file} is not a table of prices, input and output per million tokens: {problem}"
        ) from None


def find_price(model: str, prices: Mapping[str, Price] | None = None) -> Price | None:
    """Find the price of a model.

    Args:
        model: `PROVIDER:MODEL`; where the table does not have that, its entry for MODEL is taken.
        prices: The table; by default the user's own.

    Returns:
        The price; None where there is none.
    """
    prices = load_prices() if prices is None else prices
    return prices.get(model) or prices.get(model.partition(":")[2])
