"""Which options a few words name: by letters, or by an option's own text.

An option's whole text goes before any letter (`B cells` may be option D). Two different letters are
two, whatever joins them, unless the second one only explains the first: behind `because`, `not` or
`rather than`, or in a clause that denies it. A letter with words that are another option's is both;
one with words that are no option's is none. What belongs to a formula or a name is no letter: `F =
ma`, `C. S. Lewis`, `B cells`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice, pairwise

from heldout.scoring.letterpatterns import has_any, patterns_of
from heldout.scoring.letters import folded, glyphs_of
from heldout.scoring.optiontexts import by_own_text, named_by_words, plain_text

_MARKS, _AROUND = (".", ":", ")", "：", "。"), " .!*_`)]}>\"'”$。\t\r"
_CLOSED, _DASHES = (")", "]", "）", "】"), ("- ", "– ", "— ")
_SAYS = re.compile(
    r"(?:is|are|was|isn|can|could|cannot|seems|would|might|may|has|does|says)\b"
    r"|I\s(?!\w+\Z)|I['’]|As an\b"
)
_GOES_ON = re.compile(
    r"\s*(?:[-–—(,;/|&+\\]|(?:because|since|as|is|are|and|or|for|due|given|with|which|by|but|rather"
    r"|over|not|instead|at|if|vs|to|then|maybe|weil|porque|car|parce|ist|est|es|é|è|है|हैं)\b|\W)",
    re.IGNORECASE,
)
_EXPLAINS = re.compile(  # what comes behind is about the letter before, or about others
    r"\b(?:because|since|as|not|rather|over|instead|due|given|unlike|whereas|while|weil|porque|car"
    r"|parce|sondern)\b|因为|而不是|[.;]\s+(?:(?:the|other|all|both)\s){0,2}(?:options?|choices?)\b",
    re.IGNORECASE,
)
_DENIES = re.compile(
    r"\b(?:not|never|neither|nor|wrong|incorrect|false|fails?|cannot|excluded?|eliminated?|too)\b"
    r"|n['’]t\b|不|错",
    re.IGNORECASE,
)
_REFUSED = re.compile(  # A is wrong, and what is only supposed or doubted
    r"[\W_]{0,4}(?:is|are|was|would|could|might|can|may|seems)(?:n['’]t)?\b(?:\s\w+)?\s"
    r"(?:not|wrong|incorrect|false|unlikely|impossible)\b"
    r"|[\W_]{0,4}(?:is|was|does|can|could|would)n['’]t\b|[\W_]{0,4}at first\b"
    r"|\s(?:if|unless)\b|\s*\?|[^\n]{0,20}[❌✗✘]|[^\n]{0,12}(?:नहीं|아닙|아니|değil)"
    r"|では(?:あり|な)|じゃ",
    re.IGNORECASE,
)
_COPULA = re.compile(
    r"(?:입니다|이다|です|だ|है|हैं|选?项|選?項|번|['’]d[iıuü]r)\W{0,4}", re.IGNORECASE
)
_SUMMED = re.compile(  # D. A and B; D (all of the above)
    r"[\W_]*(?:both|all|none)\b|\s?[.):–—(-][\W_]*(?P<and>[A-Z](?:,\s?[A-Z])*,?\s(?:and|&)\s[A-Z])\b"
    r"(?:\sonly|\sare\b|\W*\Z)"
)
_UNDECIDED = re.compile(
    r"\b(?:not|never|neither|nor|or|if|whether|unlikely|cannot|between|maybe|might|could|may|wrong"
    r"|incorrect|false|eliminate|exclude|rule|except|consider|why|some|many|people|students?"
    r"|others|they|sure|unclear|know|than)\b"
    r"|n['’]t\b|\?|不|nicht|\bpas\b|\bnon\b|\bno\b",
    re.IGNORECASE,
)
_LISTED = re.compile(r"(?:,\s?[A-Z]\b|,?\s(?:and|or|&)\s[A-Z]\b){1,26}")
_MOST = 30  # letters that are looked at
_SENTENCES = re.compile(
    r"(?<=\w\w)[.!?;]\s|[.!?;]\s(?=(?:I|It|So|The|In|But|Hence|Thus|Therefore)\b)|\n|。"
)
_CLAUSES = re.compile(r"[,;:!?\n，；。]|\.\s")


def named_in(
    value: str, letters: str, options: Sequence[str], *, strict: bool = False
) -> frozenset[str]:
    """The options that what is stated names.

    `strict`: nothing was stated, so that a letter must be alone or marked, as in `C) Paris`.
    """
    if options and (named := named_by_words(value, letters, options)):
        return named
    return named_by_head(value, letters, options, strict=strict)


def named_by_head(
    value: str, letters: str, options: Sequence[str], *, strict: bool = False
) -> frozenset[str]:
    """The letters that the value begins with, and any other in it that is meant as well."""
    if len(value) == 1 and value in letters:  # as most are
        return frozenset(value)
    value = folded(value[:2000])
    found = patterns_of(letters).head.match(value)
    if not found:
        return _several(value, letters)
    written, close, end = found["letter"], found["close"], found["end"]
    letter = glyphs_of(letters)[written]
    behind = value[found.end("close") :]
    rest = behind.strip(_AROUND)
    if "?" in behind[:3]:
        return frozenset()
    if not rest or _COPULA.fullmatch(rest):
        return frozenset(letter)
    if rest[0] not in ".,:;)" and _REFUSED.match(behind):
        return frozenset()
    dashed = rest.startswith(_DASHES)
    spaced = not close and end.isspace() and not (strict and dashed)
    if spaced and _is_word(written, rest) and not _GOES_ON.match(rest):
        return frozenset()  # `A dog`, `I think it's H`
    summed = _SUMMED.match(value, found.end("letter"))
    more: frozenset[str] = frozenset()
    if not summed or _exceeds(summed["and"], letter):
        more = _others(written, letter, behind, letters)
    own = dict(zip(letters, options, strict=False)).get(letter) if options else None
    words = rest.lstrip(".,:;)）：，-–— *_")
    if own is not None and plain_text(own) == plain_text(words):
        return frozenset(letter)
    if strict:
        if spaced and not more and rest[0].isalnum():
            return frozenset()
        marked = dashed or end in _MARKS or close[-1:] in _CLOSED or bool(more)
        marked = marked or not (rest[0].isalnum() or rest[0] in ",;")
        roman = letter == "I" and not close and end in (".", ":")
        if not marked or roman or _SAYS.match(words) or _is_dialogue(letter, end, options):
            return frozenset()
        if (end == ":" or dashed) and words.strip(": ") in tuple(letters):
            return frozenset()  # `A: C` is a dialogue, `A - C` a range
    elif spaced and not more and rest[0].isalpha() and not _GOES_ON.match(rest):
        return frozenset()  # `B cells`: with options, only their own words
    if more or own is None or not words:
        return more | {letter}
    return _agreeing(letter, behind, letters, options)


def _is_dialogue(letter: str, end: str, options: Sequence[str]) -> bool:
    return letter == "A" and end in (":", "：") and not options


def _others(written: str, letter: str, behind: str, letters: str) -> frozenset[str]:
    """Other letters in what follows the first one, which nothing explains or denies."""
    plain = behind.isascii() and not written.islower()
    if len(behind) < 2 or (plain and not has_any(behind, letters)):
        return frozenset()
    patterns, glyphs = patterns_of(letters), glyphs_of(letters)
    if explained := _EXPLAINS.search(behind):
        behind = behind[: explained.start()]
    named: set[str] = set()
    searched = [patterns.others]
    if written.islower():
        searched.append(patterns.lower)
    if not behind.isascii():
        searched.append(patterns.foreign)
    for pattern in searched:
        for one in islice(pattern.finditer(behind), _MOST):
            glyph = one[1] or one[2]
            before, after = behind[: one.start()], behind[one.end() :]
            if before.rstrip()[-1:].isdigit() or (
                glyph in "AI"
                and after[:1] == " "
                and after[1:2].isalpha()
                and after[1:2].islower()
                and not re.match(r"\s(?:or|and|is)\b", after)
            ):
                continue  # 45 J, A dog
            if listed := _LISTED.match(after):
                after = after[listed.end() :]
            clause = _CLAUSES.split(before)[-1] + _CLAUSES.split(after, maxsplit=1)[0]
            if not _DENIES.search(clause):
                named.add(glyphs[glyph])
    return frozenset(named - {letter})


def _exceeds(summed: str | None, letter: str) -> bool:
    """Whether letters that an option may sum up (`D. A and B`) are not all before its own."""
    return any(one.isupper() and one >= letter for one in summed or "")


def _agreeing(letter: str, rest: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The letter, where the words behind it are its option's own, or no words of an option."""
    if explained := _EXPLAINS.search(rest):
        rest = rest[: explained.start()]
    rest = rest.lstrip()
    said = _tokens(rest)
    if not said:
        return frozenset(letter)
    scores = {
        name: len(said & tokens) / len(tokens)
        for name, text in zip(letters, options, strict=False)
        if (tokens := _tokens(text))
    }
    mine = scores.pop(letter, 0.0)
    whole = frozenset(name for name, score in scores.items() if score == 1.0 and mine < 1.0)
    if whole:
        return whole | {letter}
    if mine and mine >= max(scores.values(), default=0.0):
        return frozenset(letter)
    is_text = rest[:1] in (".", ":", ")", "：") or rest[:1].isalnum()
    return frozenset() if is_text else frozenset(letter)


def _tokens(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[^\W_]+", folded(text).casefold()))


def _is_word(written: str, rest: str) -> bool:
    """Whether a letter before more words is a word itself, as the article in `A dog`."""
    return written.islower() or (written in "AIАЯO" and "a" <= rest.lstrip()[:1] <= "z")


def _several(value: str, letters: str) -> frozenset[str]:
    """Letters written as one word, `ACD`: each once and in order, or it is just a word."""
    value = value.strip(" ()[]{}.*")
    if not value.isalpha() or len(value) > len(letters):
        return frozenset()
    rising = all(a < b for a, b in pairwise(value))
    return frozenset(value) if rising and all(c in letters for c in value) else frozenset()


def named_by_tail(value: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The letter behind an option's words, `Paris (C)`; both, where the words are of another."""
    found = patterns_of(letters).tail.search(value, max(0, len(value) - 60))
    if not found or _UNDECIDED.search(value) or (found[1] or found[2]) not in letters:
        return frozenset()
    words = named_by_words(value[: found.start()].rstrip(" ,*_"), letters, options)
    return words | {found[1] or found[2]}


def named_by_closing(text: str, letters: str, options: Sequence[str] = ()) -> frozenset[str]:
    """The one option that a last sentence comes down to: `I think it's C.`, `So it is Paris.`"""
    text = text[-300:].rstrip(" .!*_`\t\r\n。")
    is_letter = text.rstrip(")]")[-1:] in tuple(letters)
    if not (is_letter or options):
        return frozenset()
    sentence = _SENTENCES.split(text)[-1]
    if _UNDECIDED.search(sentence):
        return frozenset()
    if is_letter and (found := patterns_of(letters).closing.search(sentence)):
        others = patterns_of(letters).others.findall(sentence[: found.start(1)])
        return (frozenset(others) - {"I"}) | {found[1]}  # I think
    return by_own_text(sentence, letters, options) if options else frozenset()
