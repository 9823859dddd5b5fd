"""Multiple choice: which option an answer names, by its letter or by its words.

A letter counts where it is stated (`**Answer:** C`, `\\boxed{C}`, `the correct option is (C)`),
where the answer is hardly more than the letter, or where it is a line of its own at the end. A
stray letter in running text never counts, nor does the article in `Answer: A dog`, nor do two
letters at once. Letters may be full-width, look-alikes of another script (a Cyrillic С), or
another script's own option letters (ب, ख, ①, 乙). Where the options were shown in another order,
`originals` says which option each shown letter stands for, and grades are in the original ones.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from heldout.errors import InvalidInput
from heldout.scoring.answers import answer_text, last_statement, shown, tidied
from heldout.scoring.grades import Grade

# --- Letters ------------------------------------------------------------------------------------

# What stands for the first, second, … option in other scripts, each unmistakably so.
_ORDERS = (
    *("أبجده", "ابجده", "कखगघङ", "কখগঘঙ", "אבגדה", "กขคงจ", "가나다라마", "ㄱㄴㄷㄹㅁ"),
    *("甲乙丙丁戊", "アイウエオ", "①②③④⑤⑥⑦⑧⑨⑩", "❶❷❸❹❺❻❼❽❾❿"),
)
_SOUNDS = {"अ": "A", "ब": "B", "स": "C", "द": "D", "Б": "B", "Δ": "D"}
# Letters of other scripts that look like Latin ones.
_LIKE = dict(zip("АВСЕНІЈКМОРЅТХΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ABCEHIJKMOPSTXABEZHIKMNOPTYX", strict=True))


@lru_cache(maxsize=256)
def _glyphs(letters: str) -> dict[str, str]:
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


@dataclass(frozen=True, slots=True)
class _Patterns:
    head: re.Pattern[str]
    more: re.Pattern[str]
    marked: re.Pattern[str]
    verdict: re.Pattern[str]


_OPTION = (
    r"(?:option|choice|letter|answer|opción|opção|opzione|вариант|选项|選項|選択肢|الخيار|विकल्प)"
)
_OPEN, _CLOSE = r"[\s*_`\"'“(\[{（【「$]{0,8}", r"[*_`\"'”)\]}）】」$]{0,8}"


@lru_cache(maxsize=256)
def _patterns(letters: str) -> _Patterns:
    letter = "[" + re.escape("".join(_glyphs(letters))) + "]"
    upper = "[" + re.escape(letters) + "]"
    edge = r"(?![\w+#'’]|-\w)"
    return _Patterns(
        head=re.compile(
            rf"{_OPEN}(?:{_OPTION}\s?)?{_OPEN}(?P<letter>{letter})(?P<close>{_CLOSE})"
            rf"(?:{edge}|(?=입니다|です|だ|이다|项|項|번))(?P<end>\s*\Z|[.,:;)。，：；]|\s|입|で|だ|이|项|項|번|)",
            re.IGNORECASE,
        ),
        more=re.compile(
            rf"\s*(?:,|/|&|;|\+|(?:and|or|oder|und|ou|et|y|o)\b|和|或|、)\s*"
            rf"(?:(?:and|or)\s+)?(?:{_OPTION}\s)?[(\[*]{{0,3}}({upper})[)\]*]{{0,3}}"
            rf"(?=\s*(?:\Z|[.,;/&\n]|(?:and|or|are)\b))",
        ),
        marked=re.compile(rf"^[ \t>*_-]{{0,8}}[(\[]?({upper})[*_]{{0,2}}[).:\]]", re.MULTILINE),
        verdict=re.compile(
            rf"(?<![\w'’])[(\[*]{{0,4}}({upper})[)\]*]{{0,4}} (?:is|must be|is therefore|is thus) "
            r"(?:the )?(?:only )?[*_]{0,2}(?:correct|right|best)\b(?! for| to)"
        ),
    )


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


# --- Reading ------------------------------------------------------------------------------------

_PHRASES = (
    "option is",
    "choice is",
    "option:",
    "choice:",
    "选项是",
    "选项：",
    "選項是",
    "選択肢は",
)
_NOT_MEANT = ("wrong ", "incorrect ", "first ", "second ", "third ", "other ", "last ", "next ")
_MARKS, _AROUND = (".", ":", ")", "：", "。"), " .*_`)]}\"'”$。\t\r"
_CLOSED = (")", "]", "）", "】")
_SAYS = re.compile(r"(?:is|are|was|isn|can|could|cannot|seems|would|might|may|has|does|says)\b")
_GOES_ON = re.compile(
    r"\s*(?:[-–—(=]|(?:because|since|as|is|are|and|or|for|due|given|with|which|by|but|"
    r"weil|porque|car|parce)\b)",
    re.IGNORECASE,
)


def read_choice(
    answer: str | None, letters: str = "ABCD", *, options: Sequence[str] = ()
) -> frozenset[str]:
    """The letters an answer names: none where it names none, several where it does not decide.

    `options` are their texts, in the order of the letters, for answers that repeat the text
    instead of the letter.
    """
    text = answer_text(answer)
    if text is None:
        return frozenset()
    statement = last_statement(text)
    if statement:
        value = statement.value or ""
        return _head(value, letters, options) or _worded(value, letters, options)
    if found := _weakly(text, letters, options):
        return found
    if "\n" not in text:
        return _head(text, letters, options, strict=True) or _worded(text, letters, options)
    last = tidied(text[text.rfind("\n") + 1 :][-40:])
    alone = _patterns(letters).head.match(last)
    if alone and alone.end() == len(last) and (found := _head(last, letters, options, strict=True)):
        return found
    found = _head(text[: text.find("\n")], letters, options, strict=True)
    # Where several lines begin with a letter, the options are listed, not chosen from.
    if found and len(set(_patterns(letters).marked.findall(text, 0, 20_000))) <= 1:
        return found
    return frozenset()


def _weakly(text: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The letter that is called the option, or the correct one."""
    lowered = text.lower()
    if len(lowered) != len(text):
        return frozenset()
    at, value = -1, ""
    for phrase in _PHRASES:
        place = lowered.rfind(phrase, at + 1)
        if place >= 0 and not lowered.endswith(_NOT_MEANT, 0, place):
            at, value = place, text[place + len(phrase) : place + len(phrase) + 200]
    verdict = None
    for word in ("correct", "right", "best"):
        place = lowered.rfind(word, at + 1)
        if place > 0:
            near = _patterns(letters).verdict.search(text, max(0, place - 40), place + 12)
            if near:
                at, verdict = place, near[1]
    if verdict:
        return frozenset([verdict])
    return _head(value.partition("\n")[0], letters, options) if value else frozenset()


def _head(
    value: str, letters: str, options: Sequence[str], *, strict: bool = False
) -> frozenset[str]:
    """The letters at the beginning of what is stated.

    `strict`: nothing was stated, so that a letter must be alone or marked, as in `C) Paris`.
    """
    value = value[:2000]
    if not value.isascii():
        value = _folded(value)
    patterns = _patterns(letters)
    found = patterns.head.match(value)
    if not found:
        return _several(value, letters)
    written = found["letter"]
    letter = _glyphs(letters)[written]
    chosen = [letter]
    at = found.end("close")
    while more := patterns.more.match(value, at):
        chosen.append(more[1])
        at = more.end()
    rest = value[at:].strip(_AROUND)
    if not rest:
        return frozenset(chosen)
    if not found["close"] and found["end"].isspace():
        if not strict and (not _is_word(written, rest) or _GOES_ON.match(rest)):
            return frozenset(chosen)
        # `Answer: A dog`, unless that is the option's text.
        option = dict(zip(letters, options, strict=False)).get(letter)
        return frozenset(chosen if option is not None and _plain(option) == _plain(rest) else ())
    if strict:
        marked = found["end"] in _MARKS or found["close"][-1:] in _CLOSED
        return frozenset(chosen if len(chosen) == 1 and marked and not _SAYS.match(rest) else ())
    return frozenset(chosen)


def _is_word(written: str, rest: str) -> bool:
    """Whether a letter before more words is a word itself, as the article in `A dog`."""
    return written.islower() or (written in "AIАЯO" and rest.lstrip()[:1].islower())


def _several(value: str, letters: str) -> frozenset[str]:
    """Letters written as one word, `ACD`: each once and in order, or it is just a word."""
    value = value.strip(" ()[]{}.*")
    rising = all(a < b for a, b in pairwise(value))
    known = bool(value) and len(value) <= len(letters) and all(c in letters for c in value)
    return frozenset(value) if known and rising else frozenset()


def _worded(value: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The option whose whole text is what is stated."""
    if not options or len(value) > 2000:
        return frozenset()
    plain = _plain(value)
    same = [letter for letter, text in zip(letters, options, strict=False) if _plain(text) == plain]
    return frozenset(same) if len(same) == 1 and plain else frozenset()


def _plain(text: str) -> str:
    return " ".join(_folded(tidied(text)).casefold().split())


def _folded(text: str) -> str:
    """Full-width, circled and mathematical letters as plain ones; circled digits as they are."""
    if text.isascii():
        return text
    return "".join(
        c if unicodedata.category(c) == "No" else unicodedata.normalize("NFKC", c) for c in text
    )


# --- Grading ------------------------------------------------------------------------------------


def grade_choice(
    answer: str | None,
    target: str | Collection[str],
    *,
    letters: str = "ABCD",
    options: Sequence[str] = (),
    originals: Mapping[str, str] | None = None,
) -> Grade:
    """1.0 where the answer names the target's letter, or all letters of a collection and no other.

    `letters` and `options` are as shown; `target` is in the original letters, which `originals`
    gives for each shown one.
    """
    shown_letters = letters[: len(options)] if options else letters
    wanted = frozenset([target]) if isinstance(target, str) else frozenset(target)
    known = set(originals.values()) if originals else set(shown_letters)
    if not wanted or not wanted <= known:
        raise InvalidInput(
            f"the target {target!r:.100} is not among the option letters {''.join(sorted(known))!r}"
        )
    found = read_choice(answer, shown_letters, options=options)
    if not found:
        note = "no answer" if answer_text(answer) is None else "no option is named as the answer"
        return Grade(0.0, None, note)
    if originals:
        missing = found - originals.keys()
        if missing:
            raise InvalidInput(f"`originals` says nothing of the shown letters {sorted(missing)}")
        chosen = frozenset(originals[letter] for letter in found)
    else:
        chosen = found
    notes = [f"shown as {', '.join(sorted(found))}"] if originals else []
    if isinstance(target, str) and len(found) > 1:
        notes.append("more than one option is named")
    return Grade(float(chosen == wanted), shown(", ".join(sorted(chosen))), "; ".join(notes))
