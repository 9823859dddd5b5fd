r"""Multiple choice: the option that an answer names, by its letter or by its text.

Letters may be full-width, look-alikes of another script (a Cyrillic С) or another script's own
option letters (ب, ख, ③). Where the options were shown in another order, `originals` says which
option each shown letter stands for, and grades are in the original letters.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from heldout.errors import InvalidInput
from heldout.scoring.answers import MAX_VALUE, answer_text, clean, is_denied, statements
from heldout.scoring.grades import NO_ANSWER, Grade, grader

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MAX_TEXT = 20_000  # characters at the end that are looked at where nothing is stated
_MAX_LETTERS = 50  # letters in them


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Options in the order shown."""

    options: tuple[str, ...]
    originals: Mapping[str, str] = field(default_factory=dict)
    """The original letter of each shown letter."""


def shuffled(options: Sequence[str], key: str, *, letters: str = LETTERS) -> Shuffled:
    """Put options into an order that depends on `key` and nothing else.

    Args:
        options: The options' texts in their original order.
        key: What decides the order: a sample's id and a seed.
        letters: The options' letters.

    Returns:
        The texts as shown, and the original letter of each shown letter.

    Raises:
        InvalidInput: There are more options than letters.
    """
    if len(options) > len(letters):
        raise InvalidInput(f"{len(options)} options, but only {len(letters)} letters for them")

    def place(index: int) -> bytes:
        return hashlib.sha256(f"{index}\0{key}".encode("utf-8", "surrogatepass")).digest()

    order = sorted(range(len(options)), key=place)
    return Shuffled(
        tuple(options[index] for index in order),
        {letters[at]: letters[index] for at, index in enumerate(order)},
    )


# --- Letters ------------------------------------------------------------------------------------

# What stands for the first, second, … option in other scripts, and what looks like a Latin letter.
# A Cyrillic В may be B, or the third of a list.
_ORDERS = ("أبجده", "ابجده", "कखगघङ", "①②③④⑤")
_ALIKE = dict(zip("АСЕНІКМОРТХ", "ACEHIKMOPTX", strict=True))
_CJK = "\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3"  # letters that words stand next to, unspaced
_GLYPHS = _ALIKE | {
    glyph: letter for order in _ORDERS for glyph, letter in zip(order, LETTERS, strict=False)
}
_GLYPH = re.compile(rf"(?<![^\W{_CJK}])[{''.join(_GLYPHS)}](?![^\W{_CJK}])")


def _in_latin(text: str, letters: str) -> str:
    """Write letters that stand alone in Latin, where the options have Latin letters."""
    if text.isascii() or not letters.isascii():
        return text
    return unicodedata.normalize("NFKC", _GLYPH.sub(lambda glyph: _GLYPHS[glyph[0]], text))


class _Patterns(NamedTuple):
    letter: re.Pattern[str]  # a capital letter on its own, anywhere
    head: re.Pattern[str]  # letters at the beginning of a value, joined by `,`, `/`, `and` or `or`
    alternative: re.Pattern[str]  # `or B.` behind the text of the first
    tail: re.Pattern[str]  # a letter in brackets at its end
    line: re.Pattern[str]  # a line that begins with a marked letter, `C)`, `C.` or `(C)`


_OPEN, _CLOSE = r"[\s*_`\"'“(\[{（【$]{0,8}+", r"[*_`\"'”)\]}）】$]{0,8}"
_OPTION = r"(?i:(?:(?:the|la)\s)?(?:option|choice|letter|answer|statement|opción|вариант|选项)\s?)?"
_AND = r"(?:and|or|und|oder|et|ou|y|o|also|maybe|[^\x00-\x7f–—]{1,6})"
_BEHIND = "because|since|as|for|due|given|with|which|by|but|rather|not|and not|instead|if|over"
_PHRASE = re.compile(  # directly before a letter
    r"(?:\b(?:correct|right|best|option|choice|selection|verdict)[*_]{0,2}"
    r"(?:\s?[:：]|\s(?:\w{1,20}\s){0,3}(?:is|are|be)[:,]?)"
    r"|\b(?:go(?:ing)? with|choose|chose|pick|select|leaves|leaving|think|believe|guess)"
    r"|\b(?:it|this|that|which)(?:['’]s|\s(?:is|must be|has to be|should be|would be))"
    r"|\b(?:therefore|thus|hence|so),?(?=\s)|选择?|選)"
    rf"(?:\s(?:that|clearly|definitely|probably|likely|only))?\s{{0,3}}{_OPTION}{_OPEN}\Z",
    re.IGNORECASE,
)
_CALLED = re.compile(  # directly behind it
    rf"{_CLOSE}(?:[.:)]{{1,2}}[*_]{{0,2}} [^.;\n]{{1,80}}?)?[*_]{{0,3}}\s"
    r"(?:(?:is|are|must be|would be|seems|as|ist)\s)?(?:therefore\s|thus\s)?(?:the\s)?"
    r"(?:only\s|most\s)?[*_]{0,2}(?:correct|right|best|likely|true|answer|richtig)\b(?!-)"
)
_NAME = re.compile(  # Vitamin C, Plan B: the letter belongs to the word before it
    r"\b(?!(?:Option|Choice|Answer|Statement|So|Thus|Hence|Therefore|That|Only|And|But|Both)\s)"
    r"[A-Z][a-z]+\s[(\[*]{0,3}\Z"
)
_BOTH = re.compile(r"(?<!\w)(\w)\)?\s(?:and|&)\s\(?\Z")
_TEXT_COMMAND = re.compile(r"\\(?:text[a-z]{0,4}|math[a-z]{2}|mbox|bf|rm)\s?\{([^{}]*)\}")


@lru_cache(maxsize=256)
def _patterns_of(letters: str) -> _Patterns:
    upper = f"[{re.escape(letters)}]"
    letter = f"[{re.escape(letters + letters.lower())}]"
    # Not C++, A's, C-section, B.C., 3.14, 1,000, F = ma, B(x), A dog.
    end = (
        r"(?=\s*\Z|[.:：,;!](?!\w)|\)(?!\w|\s(?:is|are|was|could|would|might)\b)|\n|\s[-–—(]"
        rf"|[。，；、{_CJK}]|\s(?:{_BEHIND})\b|\s(?=[^\x00-\x7f]))"
    )
    further = rf"{_OPEN}{_OPTION}{_OPEN}{letter}{_CLOSE}(?:(?<=[^AaIi])(?![\w'’+^-])|{end})"
    joined = rf"(?:(?:\s?[,/|&]\s?+|\s(?={_AND}\s))(?:{_AND}\s){{0,2}}|[–—-]){further}"
    return _Patterns(
        letter=re.compile(
            rf"({upper})(?<![A-Za-z0-9_'’\\].)(?![A-Za-z0-9_+#'’^]|-\w|\s?=|\.[A-Za-z])", re.DOTALL
        ),
        head=re.compile(
            rf"{_OPEN}(?i:either\s|both\s)?{_OPTION}{_OPEN}{letter}{_CLOSE}(?:{joined}){{0,25}}{end}"
        ),
        alternative=re.compile(rf"\bor\s{_OPEN}{_OPTION}({upper})(?=[).:\]*]|\Z)"),
        tail=re.compile(rf"[(\[]\s?({upper})\s?[)\]]\W{{0,4}}\Z"),
        line=re.compile(rf"[ \t>*_-]{{0,8}}(?:[(\[]({upper})[)\]]|({upper})[*_]{{0,2}}[).])(?!\w)"),
    )


# --- Reading ------------------------------------------------------------------------------------


def read_choice(
    answer: str | None, letters: str = "ABCD", *, options: Sequence[str] = ()
) -> frozenset[str]:
    """Find the options that an answer names: none, one, or several where it does not decide."""
    text = answer_text(answer)
    if text is None:
        return frozenset()
    for statement in statements(text):
        value = statement.value
        if value is None:
            return frozenset()
        if len(value) == 1 and value in letters:  # as most are
            return frozenset(value)
        named = _named(value[:MAX_VALUE], letters, tuple(options))
        bare = value.strip("()[]*")
        if named or (len(bare) == 1 and bare.isalpha()):  # a letter that is no option
            return named
    text = _in_latin(text[-_MAX_TEXT:], letters)
    if _patterns_of(letters).letter.search(text):
        return _called_right(text, letters) or _by_lines(text, letters, tuple(options))
    return _by_last_sentence(text[text.rfind("\n") + 1 :], letters, tuple(options))


@lru_cache(maxsize=4096)
def _named(value: str, letters: str, options: tuple[str, ...]) -> frozenset[str]:
    """Read the options that a stated value names."""
    if letter := _by_text(value, letters, options):
        return frozenset(letter)
    value = _in_latin(value, letters)
    if "\\" in value:
        value = re.sub(" +", " ", _TEXT_COMMAND.sub(r"\1", value))
    patterns = _patterns_of(letters)
    if head := patterns.head.match(value):
        behind = value[head.end() :]
        words = behind.lstrip(" .:)：-–—*_")
        named = {*_letters_in(head[0], letters), *_by_text(words, letters, options)}
        return frozenset(named.union(patterns.alternative.findall(behind)))
    if tail := patterns.tail.search(value, max(0, len(value) - 20)):
        return frozenset((tail[1], *_by_text(value[: tail.start()], letters, options)))
    word = value.strip(" ()[]{}.*")
    if word.isalpha() and set(word) <= set(letters) and list(word) == sorted(set(word)):  # AC
        return frozenset(word)
    return _called_right(value, letters)


def _letters_in(text: str, letters: str) -> frozenset[str]:
    alone = re.findall(r"(?<![A-Za-z0-9])[^\W_](?![A-Za-z0-9])", text)
    named = (letter if letter in letters else letter.upper() for letter in alone)
    return frozenset(letter for letter in named if letter in letters)


def _called_right(text: str, letters: str) -> frozenset[str]:
    """Find the last letter called the answer by a phrase, with others of the same sentence."""
    patterns = _patterns_of(letters)
    named: set[str] = set()
    start = len(text)
    for letter in list(patterns.letter.finditer(text))[: -_MAX_LETTERS - 1 : -1]:
        at, end = letter.span()
        if named and re.search(r"[.;!?\n]\s", text[end:start]):
            break
        before = text[max(0, at - 80) : at]
        phrase = _PHRASE.search(before)
        head = patterns.head.match(text, at) if phrase else None
        if phrase and head:
            before = before[: phrase.start()]
        elif not _CALLED.match(text, end, end + 140) or _NAME.search(before):
            continue
        if not is_denied(before) and not before.rstrip("(*").endswith(" or "):
            named |= _letters_in(head[0], letters) if head else {letter[1]}
            start = at
            if not head and (both := _BOTH.search(before)) and both[1] in letters:
                named.add(both[1])
    return frozenset(named)


def _by_lines(text: str, letters: str, options: tuple[str, ...]) -> frozenset[str]:
    """Read a last line that is a letter, a first or last line like `C) Paris`, or a text."""
    patterns = _patterns_of(letters)
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    alone = [head[0] for line in lines[-2:] if (head := patterns.head.fullmatch(line.rstrip(".")))]
    if alone and patterns.head.fullmatch(lines[-1].rstrip(".")):
        return frozenset().union(*(_letters_in(line, letters) for line in alone))
    marked = {mark[1] or mark[2] for line in lines if (mark := patterns.line.match(line))}
    is_explained = len(marked) > 1 and text.startswith(f"{lines[0]}\n\n")  # the others are, below
    for line in lines[:1] if is_explained else (lines[-1], lines[0]):
        if patterns.line.match(line) and (is_explained or len(marked) == 1):
            return _named(line, letters, options)
    return _by_last_sentence(lines[-1], letters, options) if len(marked) < 2 else frozenset()


def _by_text(value: str, letters: str, options: tuple[str, ...]) -> str:
    """Return the letter of the one option whose text is the value, or its first clause; or ""."""
    if not options:
        return ""
    texts = [_plain(option) for option in options]
    plain = _plain(value)
    for clause in (plain, re.split(r"[,;] | because | since | [–—] ", plain, maxsplit=1)[0]):
        if texts.count(clause) == 1:
            return letters[texts.index(clause)]
    return ""


_DENYING = re.compile(r"\b(?:not|if|wrong|incorrect)\b|n['’]t\b|\?")
_RIGHT = re.compile(r"\s(?:is|are)\s(?:the\s)?(?:correct|right|best)\b.*")


def _by_last_sentence(line: str, letters: str, options: tuple[str, ...]) -> frozenset[str]:
    """Find the one option whose text a last sentence ends with, as in `So it is Paris`."""
    if not options:
        return frozenset()
    sentence = re.split(r"(?<=\w\w)[.!?;]\s", line[-300:])[-1]
    plain = _RIGHT.sub("", _plain(sentence).replace("*", ""))
    named = [
        letter
        for letter, text in zip(letters, map(_plain, options), strict=False)
        if text and re.search(rf"(?<!\w){re.escape(text)}\Z", plain)
    ]
    return frozenset(named if len(named) == 1 and not _DENYING.search(sentence) else ())


@lru_cache(maxsize=4096)
def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", clean(text)).casefold().split())


# --- Grading ------------------------------------------------------------------------------------


def _check(*, letters: str = "ABCD", options: Sequence[str] = (), **_: object) -> None:
    if not letters.strip() or len(set(letters)) < len(letters):
        raise InvalidInput(
            "`letters` are the options' letters in one text, each once, as 'ABCD'; "
            f"got {letters!r:.100}"
        )
    if isinstance(options, str):
        raise InvalidInput(
            f"`options` is a list of the options' texts, got the text {options!r:.100}"
        )
    if len(options) > len(letters):
        raise InvalidInput(
            f"{len(options)} options, but the {len(letters)} letters {letters!r:.100}: "
            f"say `letters={LETTERS[: len(options)]!r}`"
        )


@grader(version=4, check=_check)
def grade_choice(
    answer: str | None,
    target: str | Collection[str],
    *,
    letters: str = "ABCD",
    options: Sequence[str] = (),
    originals: Mapping[str, str] | None = None,
) -> Grade:
    """Grade the option that an answer names: 1.0 for the target, else 0.0.

    It goes through the stated answers (box, tag, key, `Answer: C`, `the answer is C`) from the last
    one backwards and takes the first that names an option, by its letter or its whole text; one
    that names none is passed over. Where nothing stated names one, it takes the last letter that a
    phrase calls the answer (`I would go with C`, `option C is correct`), a last line that is a
    letter, a first or last line like `C) Paris`, or the option's text at the end of the last
    sentence. A letter in running text never counts, nor does one behind `not`, `if` or `wrong`; of
    `not A but B`, B counts. Two letters joined by a comma, a slash, `and` or `or` are two answers,
    and so are a letter and another option's text: a 0.

    Args:
        answer: The reply.
        target: The right letter, or all right letters, none of which may be missing.
        letters: The letters as shown.
        options: The options' texts as shown.
        originals: The original letter of each shown letter; the target is in original letters.

    Returns:
        The grade; `extracted` is the option's letter, in the original letters.

    Raises:
        InvalidInput: The target is not among the letters, or an option makes no sense.
    """
    if options or len(letters) != 4:
        _check(letters=letters, options=options)
    shown_letters = letters[: len(options)] if options else letters
    correct = _correct_letters(target, shown_letters, originals)
    named = read_choice(answer, shown_letters, options=options)
    if not named:
        nothing = answer_text(answer) is None
        return NO_ANSWER if nothing else Grade(0.0, None, "no option is named as the answer")
    notes = []
    chosen = named
    if originals:
        if missing := named - originals.keys():
            raise InvalidInput(f"`originals` says nothing of the shown letters {sorted(missing)}")
        chosen = frozenset(originals[letter] for letter in named)
        notes.append(f"shown as {', '.join(sorted(named))}")
        if chosen != correct:
            places = sorted(place for place, letter in originals.items() if letter in correct)
            notes.append(
                f"the target {', '.join(sorted(correct))} was shown as {', '.join(places)}"
            )
    if isinstance(target, str) and len(named) > 1:
        notes.append("more than one option is named")
    return Grade(float(chosen == correct), ", ".join(sorted(chosen)), "; ".join(notes))


def _correct_letters(
    target: str | Collection[str], letters: str, originals: Mapping[str, str] | None
) -> frozenset[str]:
    if not isinstance(target, Collection):
        raise InvalidInput(
            f"the target is an option's letter, got {target!r:.100}; of an index, it is "
            f"{letters[:4]!r}[index]"
        )
    correct = frozenset([target]) if isinstance(target, str) else frozenset(target)
    known = frozenset(originals.values() if originals else letters)
    if not correct or not correct <= known:
        raise InvalidInput(
            f"the target {target!r:.100} is not among the option letters {''.join(sorted(known))!r}"
        )
    return correct
