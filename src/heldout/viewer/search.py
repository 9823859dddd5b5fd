"""Find a text in the lines of a journal, whatever its case, and decode as few of them as possible.

Bytes are compared with the bit set that tells upper from lower case, a megabyte at a time, so that
NumPy does it within the processor's cache. A hit is then placed by the keys around it: quotes
inside a JSON string are escaped, so `"content":"` is never part of one. Only where the keys leave
it open is the line decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from heldout.store.journal import JOURNAL
from heldout.store.jsonl import open_to_read, read_line
from heldout.types import Message

BLOCK = 1 << 20
"""Bytes of a journal that are searched at once."""
CASE = 0x20
"""The bit in which upper and lower case differ."""
BACKSLASH, COLON = ord("\\"), ord(":")
CONVERSATION, CONVERSATION_END = b',"trajectory":{"messages":[', b'],"stop":{"ended_by":'
SAID = (b'"content":', b'"reasoning":', b'"arguments":', b'"name":')
"""Keys of a message and of its tool calls whose texts are searched."""
UNSAID = (b'"role":', b'"tool_call_id":', b'"id":', b'"type":')
"""Keys whose texts are not."""
LONGEST_KEY = 16
TRIES = 12
"""Hits of a line that are placed before it is decoded."""

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]
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
            yield f"{call.name} {call.arguments}"
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
    wanted = text.lower()

    def contains(line: bytes) -> bool:
        result = JOURNAL.decode(journal, 0, line, SearchedResult)
        return any(wanted in part.lower() for part in texts_of(result))

    return find_lines(journal, text, contains, by_place=True)


def find_lines(
    journal: Path, text: str, holds: Callable[[bytes], bool], *, by_place: bool = False
) -> Positions:
    """Find where lines begin that have a text somewhere and meet a condition.

    Args:
        journal: The journal.
        text: What every line that meets the condition contains, in upper or lower case.
        holds: The condition.
        by_place: Whether it is that the text is in what `texts_of` gives.

    Raises:
        Abandoned: Nobody waits for it any more.
    """
    needle, is_whole = _fold_needle(text)
    place = _place_hit if by_place and is_whole and needle.isascii() else None
    search, buffer = _Needle(needle), np.empty(BLOCK, dtype=np.uint8)
    stop = abandoned.get()
    found: list[int] = []
    with open_to_read(journal) as file:
        begin = len(file.readline())
        while block := file.read(BLOCK) + read_line(file):
            if stop is not None and stop.is_set():
                raise Abandoned
            data = np.frombuffer(block, dtype=np.uint8)
            if len(buffer) < len(data):
                buffer = np.empty(len(data), dtype=np.uint8)
            hits = search.find(data, np.bitwise_or(data, CASE, out=buffer[: len(data)]))
            if len(hits):
                lines = _select_lines(block, hits, needle, place, holds)
                found += [begin + start for start in lines]
            begin += len(block)
    return np.array(found, dtype=np.int64)


def _select_lines(
    block: bytes,
    hits: Positions,
    needle: bytes,
    place: Callable[[bytes, int, int, int], bool | None] | None,
    holds: Callable[[bytes], bool],
) -> Iterator[int]:
    """Yield where lines of a block begin that have a hit and meet the condition."""
    starts = _line_starts(np.frombuffer(block, dtype=np.uint8))
    lines = np.searchsorted(starts, hits, side="right") - 1
    first = np.flatnonzero(np.diff(lines, prepend=-1))
    bounds = [*first.tolist(), len(hits)]
    places: list[int] = hits.tolist()
    for number, start in enumerate(starts[lines[first]].tolist()):
        held: bool | None = False
        for hit in places[bounds[number] : min(bounds[number + 1], bounds[number] + TRIES)]:
            at = None if place is None else place(block, start, hit, len(needle))
            if at:
                held = True
                break
            held = None if at is None else held
        if held is None or (not held and bounds[number + 1] - bounds[number] > TRIES):
            end = block.find(b"\n", start)
            # Without an end, its writer was killed, or is writing it now.
            held = end >= 0 and holds(block[start:end])
        if held:
            yield start


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

    def find(self, data: Bytes, folded: Bytes) -> Positions:
        """Find where it occurs in a block, and in its bytes with the bit of the case."""
        places = len(data) - len(self._wanted) + 1
        if not len(self._wanted):
            return _line_starts(data)
        if places < 1:
            return NONE
        wanted = self._wanted | CASE
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


def _line_starts(data: Bytes) -> Positions:
    return np.append(0, np.flatnonzero(data[:-1] == ord("\n")) + 1)


def _place_hit(block: bytes, start: int, hit: int, size: int) -> bool | None:
    """Say whether a hit is in a text that is searched, by the keys around it.

    Args:
        block: Lines of a journal.
        start: Where the line of the hit begins.
        hit: Where the hit begins.
        size: How long it is.

    Returns:
        None where the keys leave it open.
    """
    if block[hit - 1] == BACKSLASH or b"\\u" in block[hit - 5 : hit]:  # the rest of an escape
        return None
    conversation = block.find(CONVERSATION, start, hit)
    if conversation < 0:
        if block.find(b'"input":', start, hit) < 0:
            return False  # its number, or its id
        metadata = block.find(b',"metadata":', start, hit)
        if metadata >= 0:
            # The sample's own, unless its input has that key, too.
            end = block.find(CONVERSATION, hit)
            return None if block.find(b',"metadata":', metadata + 1, end) >= 0 else False
    elif block.find(CONVERSATION_END, conversation, hit) >= 0:
        return None if block.find(b'"error":"', conversation, hit) >= 0 else False
    elif block.find(b'"api_turn":{', conversation, hit) >= 0:
        return None
    quote = block.rfind(b'"', start, hit)
    while _is_escaped(block, quote):
        quote = block.rfind(b'"', start, quote)
    before, after = block[quote - 1], block[quote + 1]
    if before != COLON:
        if after == COLON:  # behind a key: a number, say
            return False if conversation >= 0 else None
        return False if after not in b",}]" and _is_key(block, hit + size) else None
    if after in b",:}]":  # the quote ends a text, perhaps
        return None
    if conversation < 0 or block[quote - LONGEST_KEY : quote].endswith(SAID):
        return True
    return False if block[quote - LONGEST_KEY : quote].endswith(UNSAID) else None


def _is_key(block: bytes, at: int) -> bool:
    """Say whether the string that goes on at a place is a key."""
    quote = block.find(b'"', at)
    while _is_escaped(block, quote):
        quote = block.find(b'"', quote + 1)
    return block[quote + 1 : quote + 2] == b":"


def _is_escaped(block: bytes, quote: int) -> bool:
    before = quote
    while block[before - 1] == BACKSLASH:
        before -= 1
    return (quote - before) % 2 == 1
