"""Texts of unknown origin, put before a model so that they cannot pose as instructions.

The lines around them carry a hash of all the texts of a question. To write such a line into one of
them, its author would have to know the hash of what contains it.

Two more ways in are closed: characters that no reader sees (controls, invisible tags, variation
selectors, fillers, bidi marks, halves of surrogate pairs) are spelled out, and what a chat template
would read as the end of a turn (`<|im_end|>`, `[/INST]`) or of reasoning (`</think>`) gets a space
that keeps it from being one.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping

_KEPT = "\n\t\u200c\u200d"
"""Line breaks; and joiners, which are part of words and emoji."""

_UNSEEN = frozenset(
    map(
        chr,
        [
            *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x2800, 0x3164, 0xFFA0),
            *range(0x180B, 0x1810),
            *range(0xFE00, 0xFE0E),  # the two after these choose between text and emoji
            *range(0xFFF0, 0xFFF9),
            *range(0xE0000, 0xE1000),
        ],
    )
)
"""What Unicode calls default-ignorable (and the empty Braille cell) beside those of category Cf,
which are not printable anyway. A text can be hidden in variation selectors, a byte in each."""

_TURN_MARK = re.compile(
    r"<(?=[|｜][^\s<>|｜]{1,40}[|｜]>|\|[a-z_]{1,20}>|[a-z_]{1,20}\|>)"
    r"|<(?=/?s>|(?:start|end)_of_(?:turn|image)>|/?(?:bos|eos|unk|pad|mask)>)"
    r"|<(?=/?(?:seed:)?(?:think|thinking|thought)>)|◁(?=/?think▷)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|THINK|IMG)\])"
    r"|<(?=<(?:/?SYS)>>)"
)


def delimited(texts: Mapping[str, str]) -> str:
    """Each text between two lines with its label, all with a mark that none of them contains."""
    shown = {label: readable(text) for label, text in texts.items()}
    mark = _mark(shown)
    return "\n\n".join(
        f"--- BEGIN {label} {mark} ---\n{text}\n--- END {label} {mark} ---"
        for label, text in shown.items()
    )


def _mark(texts: Mapping[str, str]) -> str:
    content = "\0".join(f"{label} {len(text)} {text}" for label, text in texts.items()).encode()
    number = 0
    while True:
        salt = number.to_bytes(8, "big")
        mark = hashlib.blake2b(content, digest_size=16, salt=salt).hexdigest()
        if not any(mark in text for text in texts.values()):
            return mark
        number += 1  # nobody will ever see this line run; it makes "cannot contain" literally true


def readable(text: str) -> str:
    """The text with what cannot be seen spelled out, and marks of chat templates made harmless."""
    text = text.replace("\r\n", "\n")
    if not (text.isascii() and text.replace("\n", "").isprintable()):
        text = "".join(c if _is_seen(c) else _spelled(c) for c in text)
    return _TURN_MARK.sub(lambda found: found[0] + " ", text)


def one_line(text: str, limit: int) -> str:
    """Readable, in one line, and its beginning only where it is long: for messages."""
    line = " ".join(readable(text[: limit + 1]).split())
    return line if len(text) <= limit and len(line) <= limit else line[: limit - 1] + "…"


def _is_seen(character: str) -> bool:
    if character in _UNSEEN:
        return False
    return character.isprintable() or character in _KEPT or unicodedata.category(character) == "Zs"


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()
