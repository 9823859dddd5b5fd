"""Text of unknown origin, made safe to print."""

from __future__ import annotations

import struct
import unicodedata

# Controls, formatting such as bidi marks, surrogates, private and unassigned, line separators.
_OBEYED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# Joiners are part of words and emoji, and do nothing else.
_HARMLESS = "\n\t\u200c\u200d"


def printable(text: str) -> str:
    """The text with what a terminal would obey (escapes, controls, bidi marks) spelled out."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(c) if _is_obeyed(c) else c for c in text.replace("\r\n", "\n"))


def printable_json(text: str) -> str:
    """The same of JSON, which stays the same value: such characters stand in its strings alone."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if _is_obeyed(c) else c for c in text)


def _is_obeyed(character: str) -> bool:
    return unicodedata.category(character) in _OBEYED and character not in _HARMLESS


def _escaped(character: str) -> str:
    units = struct.iter_unpack(">H", character.encode("utf-16-be"))
    return "".join(f"\\u{unit:04x}" for (unit,) in units)


def _spelled(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
