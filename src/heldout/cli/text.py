"""Text of unknown origin, made safe to print."""

from __future__ import annotations

import unicodedata

# Controls, formatting such as bidi marks, surrogates, private and unassigned, line separators.
_OBEYED = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# Joiners are part of words and emoji, and do nothing else.
_HARMLESS = "\n\t\u200c\u200d"


def printable(text: str) -> str:
    """The text with what a terminal would obey (escapes, controls, bidi marks) spelled out."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _spelled(c) if unicodedata.category(c) in _OBEYED and c not in _HARMLESS else c
        for c in text.replace("\r\n", "\n")
    )


def _spelled(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
