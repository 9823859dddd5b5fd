"""Which option a few words name: by the letter they begin or end with, or by its whole text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from heldout.scoring.letters import folded, glyphs_of
from heldout.scoring.values import tidied


@dataclass(frozen=True, slots=True)
class Patterns:
    head: re.Pattern[str]
    more: re.Pattern[str]
    tail: re.Pattern[str]
    closing: re.Pattern[str]
    marked: re.Pattern[str]
    subject: re.Pattern[str]
    alone: re.Pattern[str]


_OPTION = (
    r"(?:option|choice|letter|answer|opción|opção|opzione|réponse|respuesta|вариант|选项|選項|選択肢"
    r"|الخيار|विकल्प)"
)
_OPEN, _CLOSE = r"[\s*_`\"'“(\[{（【「《<$]{0,8}", r"[*_`\"'”)\]}）】」》>$]{0,8}"
_FONT = r"(?:\\(?:text|textbf|textrm|textsf|mathrm|mathbf|mathsf|bf|rm)\s?)?"


@lru_cache(maxsize=256)
def patterns_of(letters: str) -> Patterns:
    letter = "[" + re.escape("".join(glyphs_of(letters))) + "]"
    upper = "[" + re.escape(letters) + "]"
    # Not C++, C#, A's, C-section, B-, B.C. or 3.14.
    edge = r"(?![\w+#'’]|-(?:\w|\s*\Z)|\.[A-Za-z](?![A-Za-z])|[.,]\d)"
    marks, ends = r"[(\[*_]{0,4}", r"[)\]*_]{0,4}"
    alone = rf"(?<![A-Za-z0-9_'’]){marks}({upper}){ends}"
    return Patterns(
        head=re.compile(
            rf"{_OPEN}{_FONT}{_OPEN}(?:(?:(?:the|la|el|le|die)\s|l['’])?{_OPTION}\s?|(?:la|le)\s)?"
            rf"{_OPEN}(?P<letter>{letter})(?P<close>{_CLOSE})"
            rf"(?:{edge}|(?=입니다|です|だ|이다|项|項|번))(?P<end>\s*\Z|[.,:;)。，：；]|\s|입|で|だ|이|项|項|번|)",
            re.IGNORECASE,
        ),
        more=re.compile(
            rf"\s*(?:,|/|&|;|\+|(?:and|or|oder|und|ou|et|y|o)\b|和|或|、)\s*"
            rf"(?:(?:and|or)\s+)?(?:{_OPTION}\s)?[(\[*]{{0,3}}({upper})[)\]*]{{0,3}}"
            rf"(?=\s*(?:\Z|[.,;/&\n]|(?:and|or|are)\b))",
        ),
        tail=re.compile(  # Paris (C)
            rf"(?:[(\[]\s?(?:{_OPTION}\s)?[*_]{{0,2}}({upper})[*_]{{0,2}}\s?[)\]]"
            rf"|\b{_OPTION},?\s\(?({upper})\)?)[*_.]{{0,4}}\Z",
            re.IGNORECASE,
        ),
        closing=re.compile(  # so it's C
            r"(?:\A|[\s,;:])(?:so|thus|hence|therefore|it(?:['’]s| is| must be)|say|definitely"
            r"|probably|likely|clearly|choose|pick|select|think|believe|guess|👉|=>|->|→)[,:]?\s*"
            rf"(?:it(?:['’]s| is) )?(?:{_OPTION}\s)?{marks}(?-i:({upper})){ends}\Z",
            re.IGNORECASE,
        ),
        marked=re.compile(rf"^[ \t>*_-]{{0,8}}[(\[]?({upper})[*_]{{0,2}}[).:\]]", re.MULTILINE),
        subject=re.compile(
            rf"{alone}(?:[).:\]]+[*_]{{0,3}} [^.;,\n]{{1,80}}|,[^.;,\n]{{1,80}},)?\Z"
        ),
        alone=re.compile(rf"{alone}(?![\w'’])"),
    )


_MARKS, _AROUND = (".", ":", ")", "：", "。"), " .*_`)]}>\"'”$。\t\r"
_CLOSED, _DASHES = (")", "]", "）", "】"), ("- ", "– ", "— ")
_SAYS = re.compile(r"(?:is|are|was|isn|can|could|cannot|seems|would|might|may|has|does|says)\b")
_GOES_ON = re.compile(
    r"\s*(?:[-–—(=]|(?:because|since|as|is|are|and|or|for|due|given|with|which|by|but|"
    r"weil|porque|car|parce)\b)",
    re.IGNORECASE,
)
_UNDECIDED = re.compile(
    r"\b(?:not|never|neither|nor|or|if|whether|unlikely|cannot|between|maybe)\b|n['’]t\b",
    re.IGNORECASE,
)


def named_by_head(
    value: str, letters: str, options: Sequence[str], *, strict: bool = False
) -> frozenset[str]:
    """The letters at the beginning of what is stated.

    `strict`: nothing was stated, so that a letter must be alone or marked, as in `C) Paris`.
    """
    value = folded(value[:2000])
    patterns = patterns_of(letters)
    found = patterns.head.match(value)
    if not found:
        return _several(value, letters)
    written = found["letter"]
    letter = glyphs_of(letters)[written]
    chosen = [letter]
    at = found.end("close")
    while more := patterns.more.match(value, at):
        chosen.append(more[1])
        at = more.end()
    rest = value[at:].strip(_AROUND)
    if not rest:
        return frozenset(chosen)
    dashed = rest.startswith(_DASHES)
    if strict and (apart := rest.strip(":- ")) in letters and apart:
        # `A: C` is a dialogue, `A - C` a range.
        return frozenset()
    if not found["close"] and found["end"].isspace() and not (strict and dashed):
        if not strict and (not _is_word(written, rest) or _GOES_ON.match(rest)):
            return frozenset(chosen)
        # `Answer: A dog`, unless that is the option's text.
        option = dict(zip(letters, options, strict=False)).get(letter)
        return frozenset(chosen if option is not None and _plain(option) == _plain(rest) else ())
    if strict:
        marked = dashed or found["end"] in _MARKS or found["close"][-1:] in _CLOSED
        return frozenset(chosen if len(chosen) == 1 and marked and not _SAYS.match(rest) else ())
    return frozenset(chosen)


def _is_word(written: str, rest: str) -> bool:
    """Whether a letter before more words is a word itself, as the article in `A dog`."""
    return written.islower() or (written in "AIАЯO" and rest.lstrip()[:1].islower())


def _several(value: str, letters: str) -> frozenset[str]:
    """Letters written as one word, `ACD`: each once and in order, or it is just a word."""
    value = value.strip(" ()[]{}.*")
    rising = all(a < b for a, b in pairwise(value))
    known = value.isalpha() and len(value) <= len(letters) and all(c in letters for c in value)
    return frozenset(value) if known and rising else frozenset()


def named_by_tail(value: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The letter behind an option's words, `Paris (C)`; both, where the words are of another."""
    found = patterns_of(letters).tail.search(value, max(0, len(value) - 60))
    if not found or _UNDECIDED.search(value) or (found[1] or found[2]) not in letters:
        return frozenset()
    words = named_by_words(value[: found.start()].rstrip(" ,*_"), letters, options)
    return words | {found[1] or found[2]}


def named_by_closing(text: str, letters: str) -> frozenset[str]:
    """The one letter that a last sentence comes down to, `I think it's C.`"""
    text = text[-200:].rstrip(" .!*_`\t")
    if text.rstrip(")]")[-1:] not in tuple(letters):
        return frozenset()
    sentence = re.split(r"(?<=\w\w)[.!?;]\s", text)[-1]
    found = patterns_of(letters).closing.search(sentence, max(0, len(sentence) - 45))
    if not found or _UNDECIDED.search(sentence):
        return frozenset()
    others = patterns_of(letters).alone.findall(sentence[: found.start(1)])
    return (frozenset(others) - {"I"}) | {found[1]}  # I think


def named_by_words(value: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The option whose whole text is what is stated."""
    if not options or len(value) > 2000:
        return frozenset()
    plain = _plain(value)
    same = [letter for letter, text in zip(letters, options, strict=False) if _plain(text) == plain]
    return frozenset(same) if len(same) == 1 and plain else frozenset()


def _plain(text: str) -> str:
    return " ".join(folded(tidied(text)).casefold().split())
