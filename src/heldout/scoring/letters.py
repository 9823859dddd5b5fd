"""Option letters: what stands for A, B, C in other scripts, and the order options are shown in."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from heldout.errors import InvalidInput

# What stands for the first, second, … option in other scripts, each unmistakably so.
_ORDERS = (
    *("أبجده", "ابجده", "कखगघङ", "কখগঘঙ", "אבגדה", "ΑΒΓΔΕ", "กขคงจ", "가나다라마", "ㄱㄴㄷㄹㅁ"),
    *("甲乙丙丁戊", "アイウエオ", "①②③④⑤⑥⑦⑧⑨⑩", "❶❷❸❹❺❻❼❽❾❿"),
)
_SOUNDS = {"अ": "A", "ब": "B", "स": "C", "द": "D", "Б": "B"}
# Letters of other scripts that look like Latin ones. A Cyrillic В may be B, or the third of a list.
_LIKE = dict(zip("АСЕНІЈКМОРЅТХΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ACEHIJKMOPSTXABEZHIKMNOPTYX", strict=True))


@lru_cache(maxsize=256)
def glyphs_of(letters: str) -> dict[str, str]:
    """Every character that stands for one of the option letters, with that letter."""
    glyphs: dict[str, str] = {}
    latin = letters[0].isascii() and letters[0].isalpha()
    if latin:
        for order in _ORDERS:
            glyphs |= dict(zip(order, letters, strict=False))
        glyphs |= {glyph: letter for glyph, letter in _SOUNDS.items() if letter in letters}
    for glyph, like in _LIKE.items():
        if like in letters:
            glyphs[glyph] = like
        if glyph in letters:  # options shown in that script, answered in Latin
            glyphs[like] = glyph
    glyphs |= {letter: letter for letter in letters}
    return glyphs | {glyph.lower(): letter for glyph, letter in glyphs.items()}


def folded(text: str) -> str:
    """Full-width, circled and mathematical letters as plain ones; circled digits as they are."""
    if text.isascii() or unicodedata.is_normalized("NFKC", text):
        return text
    for character in set(text):
        if not character.isascii() and (plain := _folded(character)) != character:
            text = text.replace(character, plain)
    return text


@lru_cache(maxsize=4096)
def _folded(character: str) -> str:
    is_number = unicodedata.category(character) == "No"
    return character if is_number else unicodedata.normalize("NFKC", character)


# --- Order --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Options in the order shown, and which original letter each shown letter stands for."""

    options: tuple[str, ...]
    originals: Mapping[str, str] = field(default_factory=dict)


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def shuffled(options: Sequence[str], key: str, *, letters: str = LETTERS) -> Shuffled:
    """The options in an order that depends on `key` (a sample's id and a seed) and nothing else."""
    if len(options) > len(letters):
        raise InvalidInput(f"{len(options)} options, but only {len(letters)} letters for them")

    def place(index: int) -> bytes:
        return hashlib.sha256(f"{index}\0{key}".encode("utf-8", "surrogatepass")).digest()

    order = sorted(range(len(options)), key=place)
    return Shuffled(
        tuple(options[index] for index in order),
        {letters[at]: letters[index] for at, index in enumerate(order)},
    )
