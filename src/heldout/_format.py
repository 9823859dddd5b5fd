"""Numbers and texts as people read them, the same wherever they are said."""

from __future__ import annotations


def number(value: float | None, *, sign: bool = False) -> str:
    """Three digits that mean something; a dash where there is none."""
    if value is None:
        return "–"
    plus = "+" if sign else ""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:{plus}.3f}"
    return f"{value:{plus}.3g}"


def interval(low: float | None, high: float | None) -> str:
    return "–" if low is None else f"{number(low)} … {number(high)}"


def cut(text: str, longest: int) -> str:
    """Its beginning, where it is longer than that."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"
