"""Values between processes: what is forged to keep the grader busy is refused at once."""

from __future__ import annotations

from typing import Any

import pytest

from heldout.scoring.code import wire

PRIME = 2**61 - 1
"""Ints that are equal modulo this have the same hash."""
COLLIDING = [{"t": "int", "v": hex(number * PRIME)} for number in range(20_000)]


def refuse(*_: Any) -> Any:
    raise AssertionError("all of it is data")


@pytest.mark.parametrize(
    "forged",
    [
        {"t": "set", "v": COLLIDING},
        {"t": "Counter", "v": [[key, 1] for key in COLLIDING]},
        [{"t": "frozenset", "v": COLLIDING}],
    ],
)
def test_keys_of_one_hash_are_refused(forged: Any) -> None:
    with pytest.raises(wire.BadMessage, match="hashes are the same"):
        wire.decode(forged, refuse)


def test_large_sets_and_dicts_cross() -> None:
    values = [
        set(range(5_000)),
        dict.fromkeys(map(str, range(5_000))),
        {(n, -n) for n in range(2000)},
    ]
    for value in values:
        assert wire.decode(wire.encode(value, refuse), refuse) == value


def test_a_message_of_millions_of_items_is_refused() -> None:
    with pytest.raises(wire.BadMessage, match="more than 2,000,000 items"):
        wire.load(b'{"value":[' + b"[]," * 2_000_001 + b"[]]}")
