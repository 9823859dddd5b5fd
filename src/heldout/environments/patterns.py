"""Patterns as `grep` and the shell have them, matched in one pass over the text.

A model may write any pattern, and with Python's own repetitions some take for ever. Here a
pattern is pieces of a fixed length with anything between them. The first place where a piece fits
leaves the most room for the others, so there is nothing to go back to.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

MAX_PATTERN = 200


class PatternError(Exception):
    """What is wrong with a pattern."""


def wildcard(pattern: str, *, ignore_case: bool = False) -> Callable[[str], bool]:
    """Whether a name matches a shell's `*`, `?` and `[…]`."""
    # fnmatch makes an expression that does not go back from one `*` into another.
    compiled = re.compile(fnmatch.translate(pattern), re.IGNORECASE if ignore_case else 0)
    return lambda name: compiled.match(name) is not None


def line_matcher(pattern: str, flags: Collection[str]) -> Callable[[str], bool]:
    """Whether a line has the pattern: text, `.`, `[…]`, `.*`, `^`, `$` and alternatives.

    The flags are grep's: E (| divides alternatives, not \\|), F (plain text), i, w, x.
    """
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"a pattern has at most {MAX_PATTERN} characters")
    if "F" in flags:
        found = [_Alternative([re.escape(line)]) for line in pattern.split("\n")]
    else:
        found = [_Alternative.of(tokens) for tokens in _alternatives(pattern, "E" in flags)]
    case = re.IGNORECASE if "i" in flags else 0
    try:
        compiled = [
            re.compile(a.expression(word="w" in flags, line="x" in flags), case | re.DOTALL)
            for a in found
        ]
    except re.error as problem:
        raise PatternError(f"{pattern}: {problem.msg}") from None
    return lambda line: any(expression.match(line) for expression in compiled)


@dataclass
class _Alternative:
    """Pieces of Python's syntax, each of a fixed length, with anything between."""

    pieces: list[str]
    at_start: bool = False
    at_end: bool = False

    @classmethod
    def of(cls, tokens: list[str]) -> _Alternative:
        at_start = tokens[:1] == ["^"]
        tokens = tokens[at_start:]
        at_end = tokens[-1:] == ["$"]
        pieces = [""]
        for token in tokens[: len(tokens) - at_end]:
            if token == ANYTHING:
                pieces.append("")
            else:  # elsewhere the anchors are plain text
                pieces[-1] += re.escape(token) if token in ("^", "$") else token
        return cls(pieces, at_start, at_end)

    def expression(self, *, word: bool, line: bool) -> str:
        first, *others = self.pieces
        if word:
            first = rf"(?<!\w){first}"
            if others:
                others[-1] = rf"{others[-1]}(?!\w)"
            else:
                first = rf"{first}(?!\w)"
        at_start, at_end = self.at_start or line, self.at_end or line
        if not others:
            if not at_end:
                return first if at_start else f"(?>.*?{first})"
            # The one place it can end at is the last, so from there backwards.
            return f"{'' if at_start else '.*'}{first}\\Z"
        beginning = first if at_start else f"(?>.*?{first})"
        middle = "".join(f"(?>.*?{piece})" for piece in others[:-1])
        last = f".*{others[-1]}\\Z" if at_end else f"(?>.*?{others[-1]})"
        return beginning + middle + last


ANYTHING = ".*"
_TOKEN = re.compile(r"\.\*|\\.|\[\^?\]?(?:\[:\w+:\]|[^\]])*\]|.", re.DOTALL)


def _alternatives(pattern: str, extended: bool) -> Iterator[list[str]]:
    """Lists of tokens in Python's syntax."""
    tokens: list[str] = []
    for match in _TOKEN.finditer(pattern):
        token = match[0]
        # What is special with -E is so without it after a backslash.
        special = re.fullmatch(r"[+?{}()|]" if extended else r"\\[+?{}()|]", token)
        if special and token[-1] == "|":
            yield tokens
            tokens = []
        elif token == "*" and tokens in ([], ["^"]):
            tokens.append(r"\*")  # with nothing to repeat it is only a star
        elif token == "*" or special:
            raise PatternError(
                f"'{token}' in a pattern is not supported here; there are . [...] .* ^ $ and "
                "alternatives (\\|, or | with -E). With -F the pattern is plain text"
            )
        else:
            tokens.append(_translated(token, pattern))
    yield tokens


_CLASSES = {
    "[:digit:]": "0-9",
    "[:alpha:]": "A-Za-z",
    "[:alnum:]": "A-Za-z0-9",
    "[:space:]": r"\s",
    "[:upper:]": "A-Z",
    "[:lower:]": "a-z",
    "[:punct:]": r"!-/:-@\[-`{-~",
}


def _translated(token: str, pattern: str) -> str:
    if token in (ANYTHING, ".", "^", "$"):
        return token
    if token == "[":
        raise PatternError(f"{pattern}: Unmatched [, [^, [:, [., or [=")
    if token.startswith("["):
        return _bracket(token, pattern)
    if token == "\\":
        raise PatternError(f"{pattern}: Trailing backslash")
    if re.fullmatch(r"\\[wsWS]", token):
        return token
    if re.fullmatch(r"\\[A-Za-z0-9<>]", token):
        raise PatternError(f"{pattern}: '{token}' is not supported here")
    return re.escape(token[-1])


def _bracket(token: str, pattern: str) -> str:
    inverted = token.startswith("[^")
    inner = token[2:-1] if inverted else token[1:-1]
    parts = []
    for part in re.split(r"(\[:\w+:\])", inner):
        if re.fullmatch(r"\[:\w+:\]", part):
            if part not in _CLASSES:
                raise PatternError(f"{pattern}: Invalid character class name")
            parts.append(_CLASSES[part])
        else:
            parts.append(re.sub(r"([\\\[\]^&~|])", r"\\\1", part))
    return f"[{'^' if inverted else ''}{''.join(parts)}]"
