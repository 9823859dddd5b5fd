"""What is planned for the rows of a batch."""

from __future__ import annotations

import pytest

from heldout._live.decoding import Prompt
from heldout._live.decoding.captured.batch_plan import Passes, RowAssignment, round_up
from heldout._live.decoding.turn import Turn


def test_shapes_come_in_few_sizes() -> None:
    assert [round_up(n) for n in (1, 64, 65, 256, 257, 600, 1100, 5000)] == [
        64, 64, 128, 256, 320, 640, 1280, 5120,
    ]  # fmt: skip
    assert len({round_up(n) for n in range(1, 4097)}) == 20


@pytest.mark.parametrize("rows", [1, 32, 1000])
@pytest.mark.parametrize("length", [1, 64, 513, 1000, 5000, 40_000])
def test_passes_cover_what_is_unknown_and_no_chunk_is_longer_than_a_batch(
    rows: int, length: int
) -> None:
    for known in {0, length // 2, length - 1}:
        turn = Turn(0, Prompt(tuple(range(length)), max_new=1), None, frozenset())
        passes = Passes.over([RowAssignment(turn, 0, known)], rows)
        assert passes.chunk * passes.number >= length - known
        assert passes.chunk <= round_up(length + 1)
