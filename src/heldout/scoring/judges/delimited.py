"""Texts of unknown origin, put before a model so that they cannot pose as instructions.

The lines around them carry a hash of all the texts of a question. To write such a line into one of
them, its author would have to know the hash of what contains it.

Two more ways in are closed: characters that no reader sees (controls, invisible tags, bidi marks,
halves of surrogate pairs) are spelled out, and what a chat template would read as the end of a turn
(`<|im_end|>`, `[/INST]`) gets a space that keeps it from being one.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping

_KEPT = "\n\t\u200c\u200d"
"""Line breaks; and joiners, which are part of words and emoji."""

_TURN_MARK = re.compile(
    r"<(?=[|｜][^\s<>|｜]{1,40}[|｜]>|\|[a-z_]{1,20}>|[a-z_]{1,20}\|>)"
    r"|<(?=/?s>|(?:start|end)_of_turn>|/?(?:bos|eos)>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS)\])"
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
    return character.isprintable() or character in _KEPT or unicodedata.category(character) == "Zs"


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()
