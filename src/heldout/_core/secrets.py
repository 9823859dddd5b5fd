"""What is a secret: by the name of a variable, option or field, and by how a text looks.

The only list of secrets: redaction, export checks and worker environments all use it.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

REDACTED = "[redacted]"
PLACEHOLDER_LENGTH = 12
"""Shorter keys of models ("EMPTY", "none") are no secret, and may be words of an answer."""
SHORTEST = 8
"""Shorter values of variables ("EMPTY", "none") are no secret, and may be words of a text."""

_NAME = re.compile(
    r"\w[._-]?key$|api[._-]?key|private[._-]?key|secret|password|passwd|passphrase|credential"
    r"|(?:^|[._-])pwd$|token$|(?:^|[._-])(?:auth|authorization|dsn)$",
    re.IGNORECASE,
)
_NO_SECRETS = {"PWD", "OLDPWD"}
"""Working directories, as shells set them."""

LOOKS_LIKE_KEY = re.compile(
    r"\b(?:(?:sk|pk|rk|hf|gh[pousr]|github_pat|glpat|xox[abp]|gsk|tgp|r8|nvapi)[-_]|AKIA|AIza)"
    r"[A-Za-z0-9_-]{16,}|\bBearer\s+\S+|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+"
)
"""What is redacted: too much rather than too little."""
IS_KEY = re.compile(
    r"sk-[A-Za-z0-9_-]{20,}|hf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{36}|github_pat_\w{40,}"
    r"|AKIA[0-9A-Z]{16}|AIza[0-9A-Za-z_-]{35}|xox[abprs]-[0-9A-Za-z-]{10,}|glpat-[\w-]{20}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"
)
"""Keys of model providers, code hosts and clouds in full: what is refused must not be a word."""
URL_PASSWORD = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def is_secret_name(name: str) -> bool:
    """Return whether what has this name is a secret: PGPASSWORD, OPENAI_APIKEY, --api-key."""
    return name not in _NO_SECRETS and _NAME.search(name) is not None


def environment_secrets(shortest: int = SHORTEST) -> list[str]:
    """List the values of variables whose names say that they are secrets, longest first."""
    values = {
        value
        for name, value in os.environ.items()
        if len(value) >= shortest and is_secret_name(name)
    }
    return sorted(values, key=len, reverse=True)


def redact_text(text: str) -> str:
    """Replace what looks like a key, a password in a URL, and what secret variables hold."""
    text = remove_secrets(text, environment_secrets(), REDACTED)
    return URL_PASSWORD.sub(REDACTED, LOOKS_LIKE_KEY.sub(REDACTED, text))


def redact_values(value: Any) -> Any:
    """Copy plain values with the secrets in them replaced: by their keys, and by how they look."""
    if isinstance(value, dict):
        return {
            key: REDACTED if is_secret_name(str(key)) and part else redact_values(part)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_values(part) for part in value]
    return redact_text(value) if isinstance(value, str) else value


# --- A secret that comes back -------------------------------------------------------------------
#
# Whoever was sent a key may send it back: whole, without its last characters, escaped as JSON
# escapes texts, percent-encoded, or in base64. A part of a key is a leak, too, so runs of its
# characters are looked for. Any run of 15 characters of a text has 8 characters that begin at a
# multiple of 8; these are looked up in the set of all 8 characters in a row that a form of the
# secret has. So the time is linear in the text, and does not depend on the length of the secret.

LEAKED_RUN = 16
"""So many characters of a secret in a row are removed like the whole, of shorter ones the whole."""
_GRAM = 8
_PIECE, _OVERLAP = 1 << 20, 4096
"""Long texts are searched in pieces, for memory, and so that no call keeps other threads waiting.
Pieces overlap by more than a run takes when every character of it is escaped several times."""
_ESCAPE = re.compile(rb"\\+(?:u00([2-7][0-9a-fA-F])|(.))|%(?:25){0,4}([2-7][0-9a-fA-F])", re.DOTALL)
"""A character that JSON or a URL has escaped, also several times."""
_HEX = {
    digits.encode(): bytes((code,))
    for code in range(0x20, 0x7F)
    for digits in (f"{code:02x}", f"{code:02X}")
}


def remove_secret(content: bytes, secret: str, replacement: bytes) -> bytes:
    """Remove a secret from what somebody sent who knows it, in the forms it may come back in.

    It must be done before anything is cut or decoded.

    Args:
        content: A text, JSON or not.
        secret: What is removed, with every run of `LEAKED_RUN` characters of it.
        replacement: What is put in its place.
    """
    if not secret:
        return content
    content = content.replace(secret.encode(), replacement)
    forms = _forms_of(secret)
    pieces: list[bytes] = []
    done = 0
    for start, end in _merge(_find_runs(content, forms)):
        # A backslash before it would escape the replacement.
        while start > done and content[start - 1] == ord("\\"):
            start -= 1
        pieces += [content[done:start], replacement]
        done = end
    return b"".join([*pieces, content[done:]]) if pieces else content


def remove_secrets(text: str, secrets: Iterable[str], replacement: str) -> str:
    """Remove secrets from a text; see `remove_secret`."""
    content = before = text.encode("utf-8", "surrogatepass")
    for secret in secrets:
        content = remove_secret(content, secret, replacement.encode())
    return text if content == before else content.decode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class _Forms:
    """What a secret looks like: as it is, and as base64 has it at each of three alignments."""

    grams: dict[int, list[tuple[bytes, int]]]
    """Eight characters in a row, as a number, to the forms that have them, and where."""
    short: list[bytes]
    """Forms too short to be cut: only the whole is looked for."""

    def are_in(self, text: bytes) -> bool:
        """Return whether there may be one in a text without escapes."""
        if any(form in text for form in self.short):
            return True
        return not self.grams.keys().isdisjoint(_numbers(text))


@lru_cache(maxsize=256)
def _forms_of(secret: str) -> _Forms:
    plain = secret.encode()
    if secret[0] in "/.~" and secret.count("/") > 2:
        return _Forms({}, [plain])  # a variable with the path of a key: other paths begin like it
    whole = [plain[skip : len(plain) - (len(plain) - skip) % 3] for skip in range(3)]
    encoded = [encode(p) for p in whole for encode in (base64.b64encode, base64.urlsafe_b64encode)]
    grams: dict[int, list[tuple[bytes, int]]] = {}
    short: list[bytes] = []
    for form in dict.fromkeys([_Unescaped(plain).text, *encoded]):
        if len(form) < LEAKED_RUN:
            short.append(form)
            continue
        for start in range(len(form) - _GRAM + 1):
            gram = int.from_bytes(form[start : start + _GRAM], sys.byteorder)
            grams.setdefault(gram, []).append((form, start))
    return _Forms(grams, short)


def _is_escaped(piece: bytes) -> bool:
    return b"u00" in piece or b"%" in piece or b"\\/" in piece


def _unescape(piece: bytes) -> bytes:
    """Undo the escapes of a text, without an account of where they were, which takes longer."""
    text = piece.translate(None, b"\\")
    for _ in range(4):
        text = text.replace(b"%25", b"%")
    for mark in (b"u00", b"%"):
        first, *parts = text.split(mark)
        text = b"".join([first, *[_HEX.get(p[:2], mark + p[:2]) + p[2:] for p in parts]])
    return text


class _Unescaped:
    """A text with its escaped characters as they are meant, and where each of them was."""

    def __init__(self, content: bytes) -> None:
        self._at, self._origins = [0], [0]
        parts: list[bytes] = []
        length = done = 0
        for match in _ESCAPE.finditer(content):
            start, end = match.span()
            code = match[1] or match[3]
            parts += [content[done:start], match[2] or bytes((int(code, 16),))]
            length += start - done
            self._at += [length, length + 1]
            self._origins += [start, end]
            length, done = length + 1, end
        self.text = b"".join([*parts, content[done:]])

    def origin(self, position: int) -> int:
        """Return where a character of the text was."""
        index = bisect_right(self._at, position) - 1
        return self._origins[index] + position - self._at[index]


def _find_runs(content: bytes, forms: _Forms) -> Iterator[tuple[int, int]]:
    """Find where a form of a secret is, or a run of it."""
    for begin in range(0, max(len(content), 1), _PIECE):
        piece = content[begin : begin + _PIECE + _OVERLAP]
        for start, end in _find_in_plain(piece, forms):
            yield begin + start, begin + end
        if _is_escaped(piece) and forms.are_in(_unescape(piece)):
            unescaped = _Unescaped(piece)
            for start, end in _find_in_plain(unescaped.text, forms):
                yield begin + unescaped.origin(start), begin + unescaped.origin(end)


def _find_in_plain(text: bytes, forms: _Forms) -> Iterator[tuple[int, int]]:
    for form in forms.short:
        start = text.find(form)
        while start >= 0:
            yield start, start + len(form)
            start = text.find(form, start + len(form))
    numbers = _numbers(text)
    if not forms.grams.keys().isdisjoint(numbers):
        yield from _runs_at(text, numbers, forms)


def _numbers(text: bytes) -> memoryview:
    """Read a text as numbers of eight characters each."""
    return memoryview(text)[: len(text) // _GRAM * _GRAM].cast("Q")


def _runs_at(text: bytes, numbers: memoryview, forms: _Forms) -> Iterator[tuple[int, int]]:
    done = 0
    for index, number in enumerate(numbers):
        position = index * _GRAM
        if position < done or number not in forms.grams:
            continue
        for form, offset in forms.grams[number]:
            start, end = position, position + _GRAM
            while start > 0 and offset > 0 and text[start - 1] == form[offset - 1]:
                start, offset = start - 1, offset - 1
            while (
                end < len(text)
                and offset + end - start < len(form)
                and text[end] == form[offset + end - start]
            ):
                end += 1
            if end - start >= LEAKED_RUN:
                done = end
                yield start, end


def _merge(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
