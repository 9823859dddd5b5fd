"""The rows of a batch: what is planned for them on the host, where they stand on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from heldout._live.decoding.turn import Turn

SIZE_STEP = 64
"""Chunks and lengths are multiples of this, so that evals reuse shapes."""
MOST_PER_PASS = 1 << 14
"""Tokens of all rows that one pass over prompts computes, at least a chunk of 64 in each row."""


class Shape(NamedTuple):
    """The shape of a batch in tokens."""

    rows: int
    length: int
    """Of the whole sequences. It must be a value of `round_up`: then no chunk is longer."""


def round_up(count: int) -> int:
    """Round up to a multiple of 64, or of a fourth of its own magnitude where that is more."""
    step = max(SIZE_STEP, 1 << max(0, count.bit_length() - 3))
    return -(-count // step) * step


# --- The plan -----------------------------------------------------------------------------------


class RowAssignment(NamedTuple):
    """A turn in its row, and how many tokens of its prompt that row's cache holds.

    `known` must be less than the length of the prompt. The last token is always computed: its
    logits choose the first token of the answer, and logits are not kept.
    """

    turn: Turn
    row: int
    known: int


class Passes(NamedTuple):
    """How the unknown part of prompts is computed: passes over a chunk of each row."""

    chunk: int
    number: int

    @classmethod
    def over(cls, assignments: Sequence[RowAssignment], rows: int) -> Passes:
        """Return as few passes as `MOST_PER_PASS` allows."""
        new = max(len(turn.prompt.ids) - known for turn, _, known in assignments)
        number = -(-new // max(SIZE_STEP, MOST_PER_PASS // rows))
        return cls(round_up(-(-new // number)), number)


Choosing = Literal["greedy", "sampled", "nucleus"]
"""How the tokens of a batch are chosen: with one sampled row, by the kernel that samples."""


def choosing_of(turns: Sequence[Turn]) -> Choosing:
    """Return the simplest way that serves all turns."""
    sampled = [turn.prompt for turn in turns if turn.sampled]
    if any(prompt.top_p is not None and prompt.top_p < 1 for prompt in sampled):
        return "nucleus"
    return "sampled" if sampled else "greedy"


class BatchPlan(NamedTuple):
    """What one batch is going to do.

    A plan is for one batch and for once. It relies on what the rows hold at this moment, so the
    batch must not decode anything else first; and no two turns may have the same row.
    """

    assignments: Sequence[RowAssignment]
    passes: Passes
    choosing: Choosing


# --- The state ----------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class RowState:
    """Where the rows of a batch stand, in tensors that kernels read.

    A captured graph has the addresses of `known`, `position` and `end`: they must be written in
    place. A new tensor under the same name would never be read. `begin` and `columns` are made anew
    inside every pass, and mean nothing outside of it.

    Columns before `known` are never written. What must not be kept (a token that is known already,
    a row that has ended) is written to the column behind the last one, which nothing reads: a graph
    has no way to skip a row.
    """

    known: Any
    """[rows]: how many columns of the cache hold what they should, before prompts are read."""
    position: Any
    """[rows]: the column of the new token in a decode step."""
    end: Any
    """[rows]: the column at which a row has ended."""
    begin: Any = None
    """[rows]: the column of the first token of a pass over prompts; below 0 where the prompt is
    shorter than the passes over the longest one."""
    columns: Any = None
    """[rows, new]: where keys and values of a pass are written."""
