"""Format numbers and text for people: the same digits and the same escapes everywhere."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence

# Controls, formatting such as bidi marks, surrogates, private and unassigned, line separators.
_UNSAFE_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# Joiners are part of words and emoji, and do nothing else.
_SAFE_CHARACTERS = "\n\t\u200c\u200d"


# --- Numbers ------------------------------------------------------------------------------------


def number(value: float | None, *, sign: bool = False) -> str:
    """Format a value with three significant decimals, or a dash for None.

    Args:
        value: The number.
        sign: Write a plus before positive values, as for a difference.
    """
    if value is None:
        return "–"
    value += 0.0  # no -0.000
    plus = "+" if sign and value > 0 else ""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{plus}{value:.3f}"
    return f"{plus}{value:.3g}"


def interval(low: float | None, high: float | None) -> str:
    """Format the two ends of an interval, or a dash where there is none."""
    return "–" if low is None else f"{number(low)} … {number(high)}"


def p_value(p: float | None) -> str:
    """Format a p-value; below 0.001 its size says nothing that can be trusted."""
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def percent(share: float) -> str:
    """Format a share as a percentage: 0.95 is 95%."""
    return f"{100 * share:g}%"


def count(n: int, noun: str) -> str:
    """Format a count with its noun: 1 sample, 2 samples."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def duration(seconds: float) -> str:
    """Return a duration in one or two units: "27 s", "12 min 5 s", "3 h 2 min", "2 d 4 h"."""
    whole = round(seconds)
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    parts = []
    for unit, size in units:
        n, whole = divmod(whole, size)
        parts.append((n, unit))
    first = next((i for i, (n, _) in enumerate(parts) if n), len(parts) - 1)
    return " ".join(f"{n} {unit}" for n, unit in parts[first : first + 2] if n) or "0 s"


def samples(n: int) -> str:
    """Format a count of samples."""
    return count(n, "sample")


def pass_rate_keys(summary: Mapping[str, object]) -> dict[str, str]:
    """Return the key of each pass@k and pass^k of a summary, by its label: pass@4, pass^4."""
    matches = [re.fullmatch("pass_(at|hat)_([0-9]+)", key) for key in summary]
    return {f"pass{'@' if m[1] == 'at' else '^'}{m[2]}": m[0] for m in matches if m}


def list_some(texts: Sequence[str], most: int, separator: str = "; ") -> str:
    """Join the first texts of a list, with the number of those left out."""
    more = [f"{len(texts) - most} more"] if len(texts) > most else []
    return separator.join([*texts[:most], *more])


def describe_weight_versions(names: Sequence[str]) -> str:
    """Say that the answers of one run are of several versions of the served weights."""
    shown = list_some([repr(cut(name, 40)) for name in names], 5, ", ")
    return (
        f"the server answered with {len(names)} versions of its weights ({shown}): the mean is of "
        "no single one; update the weights between evals"
    )


# --- Text ---------------------------------------------------------------------------------------


def cut(text: str, longest: int) -> str:
    """Shorten text to at most `longest` characters, the last of them an ellipsis."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def cut_middle(text: str, longest: int) -> str:
    """Shorten text to at most `longest` characters: a quarter of it the beginning, then the end.

    What a prompt asks is at its end, after instructions and examples.
    """
    if len(text) <= longest:
        return text
    head = longest // 4
    return f"{text[:head]}…{text[head + 1 - longest :]}"


def printable(text: str) -> str:
    """Spell out what a terminal would obey: escape sequences, controls, bidi marks."""
    if text.isascii() and text.isprintable():
        return text
    characters = text.replace("\r\n", "\n")
    return "".join(c.encode("unicode_escape").decode() if _is_unsafe(c) else c for c in characters)


def printable_json(text: str) -> str:
    """Escape unsafe characters of a JSON document; they stand in its strings alone."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape_json(c) if _is_unsafe(c) else c for c in text)


def _is_unsafe(character: str) -> bool:
    return (
        unicodedata.category(character) in _UNSAFE_CATEGORIES and character not in _SAFE_CHARACTERS
    )


def _escape_json(character: str) -> str:
    # json.dumps escapes all of them but one.
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
