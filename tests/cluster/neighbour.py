"""A file beside an eval file."""

from __future__ import annotations


def last_word(text: str) -> str:
    return text.split()[-1].rstrip("?")
