"""Find a text in the lines of a journal, whatever its case, and decode as few of them as possible.

Bytes are compared with the bit set that tells upper from lower case, a megabyte at a time, so that
NumPy does it within the processor's cache, and in several threads. Hits are then placed by the
strings of their lines, between quotes that are not escaped, and by the keys of these. Only where
the keys leave it open is a line decoded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from io import BufferedReader
from pathlib import Path
from threading import Event, Lock
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from heldout.store.journal import JOURNAL
from heldout.store.jsonl import open_to_read, read_line
from heldout.types import Message

BLOCK = 1 << 20
"""Bytes of a journal that are searched at once."""
CASE = 0x20
"""The bit in which upper and lower case differ."""
BACKSLASH, COLON, LINE_END, QUOTE = b'\\:\n"'
INPUT, METADATA, API_TURN = b'"input":', b',"metadata":', b'"api_turn":{'
CONVERSATION, CONVERSATION_END = b',"trajectory":{"messages":[', b'],"stop":{"ended_by":'
SAID, UNSAID, ERROR, OTHER = range(4)
KEYS = {
    **dict.fromkeys((b"content", b"reasoning", b"arguments", b"name"), SAID),
    **dict.fromkeys((b"role", b"tool_call_id", b"id", b"type"), UNSAID),
    b"error": ERROR,
}
"""Keys of a message and of its tool calls whose texts are searched, and whose are not."""
UNSEARCHED, OPEN, SEARCHED = range(3)
"""Where a hit is: in a text that is searched or elsewhere; only the decoded line says it if open.

A line is the largest of its hits.
"""
FAR = 2**62
"""Behind every line."""
THREADS = min(4, os.cpu_count() or 1)
"""NumPy lets others run while it looks at a block."""

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]
Places = NDArray[np.int8]
Mask = NDArray[np.bool_]
NONE: Positions = np.empty(0, dtype=np.int64)

abandoned: ContextVar[Event | None] = ContextVar("abandoned", default=None)
"""Set when nobody waits for the answer any more."""


class Abandoned(Exception):
    """Nobody waits for this search any more."""


# --- What is searched -----------------------------------------------------------------------------


class SearchedCall(msgspec.Struct, gc=False):
    """A tool call without its id."""

    name: str
    arguments: str


class SearchedMessage(msgspec.Struct, gc=False):
    """The texts of a message."""

    content: str | list[dict[str, Any]]
    reasoning: str | None = None
    tool_calls: tuple[SearchedCall, ...] = ()
    text = Message.text


class SearchedSample(msgspec.Struct, gc=False):
    """What a sample asks, and what is right."""

    input: dict[str, Any]
    ground_truth: Any = None


class SearchedTrajectory(msgspec.Struct, gc=False):
    """A conversation."""

    messages: tuple[SearchedMessage, ...]


class SearchedResult(msgspec.Struct, gc=False):
    """The texts of a result: decoded in a fifth of the time that a result takes."""

    sample: SearchedSample
    trajectory: SearchedTrajectory
    error: str | None = None


def texts_of(result: Any) -> Iterator[str]:
    """Yield what a text search looks at: question, conversation, target and error.

    Args:
        result: A SearchedResult, or an EvalResult.
    """
    yield from _strings(result.sample.input)
    yield from _strings(result.sample.ground_truth)
    for message in result.trajectory.messages:
        yield message.text
        yield message.reasoning or ""
        for call in message.tool_calls:
            yield call.name
            yield call.arguments
    yield result.error or ""


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        for part in value:
            yield from _strings(part)
    elif value is not None:
        yield str(value)


# --- The search -----------------------------------------------------------------------------------


def find_text(journal: Path, text: str) -> Positions:
    """Find where the lines begin whose question, conversation, target or error contains a text.

    Raises:
        Abandoned: Nobody waits for it any more.
    """

    def contains(line: bytes) -> bool:
        return contains_text(JOURNAL.decode(journal, 0, line, SearchedResult), text)

    return find_lines(journal, text, contains, by_place=True)


def contains_text(result: Any, text: str) -> bool:
    """Say whether one of the texts of a result contains a text, whatever its case."""
    wanted = text.lower()
    return any(wanted in part.lower() for part in texts_of(result))


def find_lines(
    journal: Path, text: str, holds: Callable[[bytes], bool], *, by_place: bool = False
) -> Positions:
    """Find where lines begin that have a text in what `texts_of` gives and meet a condition.

    Args:
        journal: The journal.
        text: What every line that meets the condition has there, in upper or lower case.
        holds: The condition.
        by_place: Whether every line that has the text there meets it.

    Raises:
        Abandoned: Nobody waits for it any more.
    """
    needle, is_whole = _fold_needle(text)
    search = _LineSearch(needle, holds, by_place=by_place and is_whole and needle.isascii())
    stop = abandoned.get()
    with open_to_read(journal) as file:
        blocks, lock = _read_blocks(file), Lock()

        def search_blocks() -> list[Positions]:
            found: list[Positions] = []
            while True:
                with lock:
                    begin, block = next(blocks, (0, b""))
                if not block:
                    return found
                if stop is not None and stop.is_set():
                    raise Abandoned
                found.append(begin + search.find(block))

        with ThreadPoolExecutor(THREADS) as pool:
            parts = [pool.submit(search_blocks) for _ in range(THREADS)]
            found = [starts for part in parts for starts in part.result()]
    return np.sort(np.concatenate([NONE, *found]))


def _read_blocks(file: BufferedReader) -> Iterator[tuple[int, bytes]]:
    """Yield where in a journal some whole lines begin, and the lines."""
    begin = len(file.readline())
    while block := file.read(BLOCK) + read_line(file):
        # Without an end, its writer was killed, or is writing it now.
        if whole := block if block.endswith(b"\n") else block[: block.rfind(b"\n") + 1]:
            yield begin, whole
        begin += len(block)


class _LineSearch:
    """Finds the lines of a block that meet a condition; threads share it."""

    def __init__(self, needle: bytes, holds: Callable[[bytes], bool], *, by_place: bool) -> None:
        self._needle, self._holds, self._by_place = _Needle(needle), holds, by_place
        self._is_placed = len(needle) > 0

    def find(self, block: bytes) -> Positions:
        """Find where the lines begin."""
        data = np.frombuffer(block, dtype=np.uint8)
        hits = self._needle.find(data)
        if not len(hits):
            return NONE
        starts, ends = _line_bounds(data)
        lines = np.searchsorted(starts, hits, side="right") - 1
        chosen, numbers = _distinct(lines)
        places = np.full(len(hits), OPEN, dtype=np.int8)
        if self._is_placed and len(chosen) * 2 > len(starts):
            places = place_hits(data, starts, hits, lines)
        elif self._is_placed:  # the few lines alone
            few = b"".join(block[starts[line] : ends[line]] for line in chosen)
            sizes = ends[chosen] - starts[chosen]
            begins = np.cumsum(sizes) - sizes
            moved = hits - starts[lines] + begins[numbers]
            places = place_hits(np.frombuffer(few, dtype=np.uint8), begins, moved, numbers)
        best = np.maximum.reduceat(places, np.searchsorted(numbers, np.arange(len(chosen))))
        held: Mask = best == SEARCHED
        for i in np.flatnonzero(best == OPEN if self._by_place else best != UNSEARCHED).tolist():
            held[i] = self._holds(block[starts[chosen[i]] : ends[chosen[i]] - 1])
        found: Positions = starts[chosen[held]]
        return found


def _distinct(values: Positions) -> tuple[Positions, Positions]:
    """Give the distinct ones of sorted values, and of each value which of them it is."""
    is_new = np.diff(values, prepend=-1) != 0
    return values[is_new], np.cumsum(is_new) - 1


def _fold_needle(text: str) -> tuple[bytes, bool]:
    """Write the part of a text that is looked for as JSON has it, in lower case.

    Returns:
        The longest part whose letters have the same bytes in both cases, apart from the bit that
        is set in all of them; and whether that is the whole text.
    """
    longest = run = b""
    for char in text:
        # As JSON has it: quotes and line ends are escaped, everything else is raw UTF-8.
        forms = [msgspec.json.encode(form)[1:-1] for form in (char.lower(), char.upper())]
        is_one = len({bytes(byte | CASE for byte in form) for form in forms}) == 1
        run = run + forms[0] if is_one else b""
        longest = max(longest, run, key=len)
    return longest, longest == msgspec.json.encode(text.lower())[1:-1]


class _Needle:
    """Bytes that are looked for in blocks of a file, whatever their case."""

    def __init__(self, needle: bytes) -> None:
        self._wanted = np.frombuffer(needle, dtype=np.uint8)
        # Of ASCII, all but letters have to be the same: "[" and "{" differ in that bit, too.
        self._checked = [i for i, byte in enumerate(needle) if byte < 128 and not _is_letter(byte)]
        self._order: list[int] = []

    def find(self, data: Bytes) -> Positions:
        """Find where it occurs in a block; the beginnings of all lines if it is empty."""
        places = len(data) - len(self._wanted) + 1
        if not len(self._wanted):
            return _line_bounds(data)[0]
        if places < 1:
            return NONE
        wanted, folded = self._wanted | CASE, data | CASE
        if not self._order:  # the rarest byte first, as the first block has them
            counts = np.bincount(folded, minlength=256)[wanted]
            self._order = np.argsort(counts, kind="stable").tolist()
        first, *others = self._order
        mask = folded[first : first + places] == wanted[first]
        if others:
            second = others.pop(0)
            mask &= folded[second : second + places] == wanted[second]
        hits = np.flatnonzero(mask)
        for place in others:
            if len(hits):
                hits = hits[folded[hits + place] == wanted[place]]
        for place in self._checked:
            if len(hits):
                hits = hits[data[hits + place] == self._wanted[place]]
        return hits


def _is_letter(byte: int) -> bool:
    return chr(byte).isalpha()


def _line_bounds(data: Bytes) -> tuple[Positions, Positions]:
    """Find where the lines of a block begin, and where the next ones do."""
    ends = np.flatnonzero(data == LINE_END) + 1
    return np.append(0, ends[:-1]), ends


# --- Where a hit is -------------------------------------------------------------------------------


def place_hits(data: Bytes, starts: Positions, hits: Positions, lines: Positions) -> Places:
    """Say of each hit whether it is in a text that is searched, by the quotes and keys around it.

    Args:
        data: Whole lines of a journal.
        starts: Where they begin.
        hits: Where a text occurs that has no quotes but escaped ones.
        lines: Which line each hit is in.

    Returns:
        SEARCHED, UNSEARCHED, or OPEN where only decoding the line says it.
    """
    quotes = _find_quotes(data)
    if len(quotes) % 2 or (np.searchsorted(quotes, starts) % 2).any():  # a damaged line
        return np.full(len(hits), OPEN, dtype=np.int8)
    places = np.full(len(hits), UNSEARCHED, dtype=np.int8)
    # Each hit's own string, if it is in one. Most hits of short texts are in keys, which are none.
    number = np.searchsorted(quotes, hits) - 1
    is_key = number % 2 == 0
    is_key[is_key] = data[quotes[number[is_key] + 1] + 1] == COLON
    rest = np.flatnonzero(~is_key)
    if len(rest):
        strings = _Strings(data, quotes)
        places[rest] = _place_values(strings, data, starts, hits[rest], lines[rest], number[rest])
    return places


def _place_values(
    strings: _Strings,
    data: Bytes,
    starts: Positions,
    hits: Positions,
    lines: Positions,
    number: Positions,
) -> Places:
    """Place hits that are in no key; `number` is that of the last quote before each."""
    inputs = strings.find_key(INPUT, starts)
    metadata = strings.find_key(METADATA, starts)
    talk = strings.find_key(CONVERSATION, starts)
    end = strings.find_key(CONVERSATION_END, starts)
    is_odd = ~talk.is_one | ~end.is_one | (end.first < talk.first)
    is_odd |= (inputs.first > talk.first) | (metadata.first > talk.first)
    # A second one before the conversation: the input has that key, too.
    is_split = metadata.second < talk.first
    api_turn = strings.find_key(API_TURN, starts).first

    is_text = number % 2 == 0
    asked = (hits > inputs.first[lines]) & (hits < talk.first[lines])
    is_before = hits < metadata.first[lines]
    said = (hits > talk.first[lines]) & (hits < end.first[lines])
    texts = np.flatnonzero(is_text & ~asked)
    key = np.full(len(hits), OTHER, dtype=np.int8)
    key[texts] = strings.name_keys(number[texts])

    is_searched = is_text & (asked & is_before | said & (key == SAID))
    is_open = asked & (is_before & ~is_text | ~is_before & is_split[lines])
    is_open |= said & (is_text & (key == OTHER) | (hits > api_turn[lines]))
    is_open |= (hits > end.first[lines]) & (key == ERROR)
    is_open |= is_odd[lines]
    found = np.flatnonzero(is_searched & ~is_open)
    is_open[found] = _follow_escape(data, hits[found])
    places = np.where(is_searched, SEARCHED, UNSEARCHED).astype(np.int8)
    places[is_open] = OPEN
    return places


class _FirstKeys(NamedTuple):
    """Of each line, where a key first is, and where it is again; FAR where it is not."""

    first: Positions
    second: Positions

    @property
    def is_one(self) -> Mask:
        """Of each line, whether it has the key once."""
        held: Mask = (self.first < FAR) & (self.second == FAR)
        return held


class _Strings:
    """The strings of some lines.

    Args:
        data: The lines.
        quotes: Where strings begin and end, in turn.
    """

    def __init__(self, data: Bytes, quotes: Positions) -> None:
        self._data, self._quotes = data, quotes
        self._opens = quotes[::2]
        # As bytes they are compared in a fraction of the time; a key that is meant is short.
        self._sizes = np.minimum(quotes[1::2] - self._opens - 1, 255).astype(np.uint8)
        self._letters = data[self._opens + 1]

    def find_key(self, wanted: bytes, starts: Positions) -> _FirstKeys:
        """Find a key, and what is around it, in each line."""
        before, key, _ = wanted.split(b'"', 2)
        may_be = (self._sizes == len(key)) & (self._letters == key[0])
        at = self._opens[np.flatnonzero(may_be)] - len(before)
        at = at[(at >= 0) & (at + len(wanted) <= len(self._data))]
        windows = sliding_window_view(self._data, len(wanted))[at]
        at = at[windows.view(f"S{len(wanted)}")[:, 0] == wanted]
        at = np.concatenate([at, [FAR, FAR]])
        number = np.searchsorted(at, starts)
        after = np.append(starts[1:], FAR)
        first, second = at[number], at[np.minimum(number + 1, len(at) - 1)]
        return _FirstKeys(
            np.where(first < after, first, FAR), np.where(second < after, second, FAR)
        )

    def name_keys(self, number: Positions) -> Places:
        """Give what KEYS says of the keys of some strings; OTHER where they have none of these."""
        keys = self._quotes[number - 2]
        sizes = self._quotes[number - 1] - keys - 1
        is_value = (number >= 2) & (self._data[self._quotes[number] - 1] == COLON)
        names = np.full(len(number), OTHER, dtype=np.int8)
        for key, name in KEYS.items():
            rows = np.flatnonzero(is_value & (sizes == len(key)))
            for i, byte in enumerate(key, 1):
                rows = rows[self._data[keys[rows] + i] == byte]
            names[rows] = name
        return names


def _find_quotes(data: Bytes) -> Positions:
    """Find the quotes that are not escaped: those behind an even number of backslashes.

    In JSON, nothing but strings has backslashes.
    """
    quotes = np.flatnonzero(data == QUOTE)
    slashes = np.flatnonzero(data == BACKSLASH)
    if not len(slashes):
        return quotes
    runs = slashes[np.diff(slashes, prepend=-2) > 1]  # where backslashes begin
    behind = np.flatnonzero(data[quotes - 1] == BACKSLASH)
    begin = runs[np.searchsorted(runs, quotes[behind]) - 1]
    return np.delete(quotes, behind[(quotes[behind] - begin) % 2 == 1])


def _follow_escape(data: Bytes, hits: Positions) -> Mask:
    """Say of each hit whether it begins within an escape, perhaps."""
    held: Mask = data[hits - 1] == BACKSLASH
    for back in range(1, 5):  # of \u0041
        held |= (data[hits - back] == ord("u")) & (data[hits - back - 1] == BACKSLASH)
    return held
