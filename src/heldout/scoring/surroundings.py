r"""What may stand around a number without changing it.

A stated value is a number where it is nothing but one: a head (`about`, `the total is`, `x =`), the
number, and a unit or a remark (`km/h`, `apples in all`, `, since …`). Letters and operators that
make an expression of it (`3x`, `x + 2`, `\ln 2`, `5!`), bounds (`at least 5`, `5 or more`),
denials, questions and conditions do not leave it the number it is. What is not known to be harmless
in LaTeX is not taken for it; what is not known in prose is, if it is made of words.
"""

from __future__ import annotations

import re
from functools import lru_cache

from heldout.scoring.magnitudes import LIKE_A_SCALE, MINUS, SCALES

# --- Words --------------------------------------------------------------------------------------


def _listed(words: str) -> list[str]:
    return words.split()


_ONES = _listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
)
_TENS = _listed("twenty thirty forty fifty sixty seventy eighty ninety")
NUMBER_WORDS = {word: value for value, word in enumerate(_ONES)}
NUMBER_WORDS |= {word: 10 * value for value, word in enumerate(_TENS, 2)}
NUMBER_WORDS |= {
    f"{ten}{joint}{one}": 10 * tens + ones
    for tens, ten in enumerate(_TENS, 2)
    for ones, one in enumerate(_ONES[1:10], 1)
    for joint in "- "
}
_WORD_NUMBER = "|".join([*_ONES[2:], *_TENS, "hundred", "thousand", "million", "billion", "dozen"])
_PARTS = (
    r"hal(?:f|ves)|quarters?|(?:third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh"
    r"|twelfth|twentieth|hundredth|thousandth|millionth)s?"
)
_DENIAL = (
    r"not|never|cannot|none|neither|nor|\w{1,8}n['’]t|except|wrong|incorrect|false|impossible"
    r"|mistake|no(?![.\w])"
)
_MORE = (
    r"more|less|fewer|greater|higher|lower|larger|smaller|bigger|above|below|over|under|up|beyond"
)
_FUNCTIONS = (
    r"log|ln|lg|sin|cos|tan|cot|sec|arc\w{3}|exp|sqrt|mod|gcd|lcm|root|squared?|cubed?|factorial"
    r"|power|inverse|reciprocal|opposite|twice|thrice|double[ds]?|tripled?|halved?|multiple|divisible"
)
# Words before a number that leave it unknown what it is. (Looked up, as that is fast.)
_CHANGING = frozenset(
    _listed(
        "not never cannot none neither nor except wrong incorrect false impossible mistake no than "
        "least most over under above below beyond exceed exceeds exceeding between from almost "
        "nearly either until within other if unless anything instead log ln lg sin cos tan cot sec "
        "exp sqrt arcsin arccos arctan mod gcd lcm root square squared cube cubed factorial power "
        "inverse reciprocal opposite twice thrice double doubled triple tripled halved multiple "
        "divisible half halves quarter quarters third thirds fourth fifth sixth seventh eighth "
        "ninth tenth hundred thousand million billion dozen"
    )
    + _ONES[2:]
    + _TENS
)
_LABELS = frozenset(
    _listed(
        "step problem question part case page figure fig equation eq example section chapter "
        "exercise table version item line statement"
    )
)
_TOTALS = frozenset(  # of what a number is itself
    _listed(
        "total amount value average mean median minimum maximum cost price profit loss result rate "
        "probability answer sum speed length distance age area score"
    )
)
_LATIN = re.compile(r"[a-z]+")
_BEHIND = re.compile(  # the same behind it
    rf"\b(?:(?:is|are|was|were|be|seems?|looks?) (?:{_DENIAL})"
    rf"|(?:{_DENIAL}) (?:the|correct|right|it)|isn['’]t|aren['’]t|wasn['’]t|wrong"
    rf"|incorrect|(?:or|and) (?:{_MORE})|at (?:least|most)|if|unless"
    rf"|(?:or|and|to|maybe|perhaps|possibly|,)\s(?:{_WORD_NUMBER}))\b",
    re.IGNORECASE,
)
_CHANGES = re.compile(  # the first word behind it, which would change it
    rf"(?:{_PARTS}|(?!square\Z)(?:{_FUNCTIONS})|{_WORD_NUMBER}|p(?:er|ro)\s?mil\w{{0,2}}|per\s?cent\w?|pct|prozent|choose|plus"
    r"|minus|divided|over|pi|or|and|to|through|bis|oder|und|maybe|perhaps|possibly|mod"
    r"|remainder|if|unless|wrong|incorrect|false)\Z",
    re.IGNORECASE,
)

# --- Units --------------------------------------------------------------------------------------

_LETTERS = "mshglLWVNJ"  # single letters that are units wherever they stand
_SPACED_LETTERS = _LETTERS + "ACFKMTHdPΩµμ"  # and those that are where a space is before them
_SYMBOL = re.compile(
    rf"[{_LETTERS}]|[pnuµμmcdkMGT](?:m|g|s|[lL]|W|V|A|N|J|F|Hz|Pa|eV|mol|Wh|Ω|B|bit|cal|bar)|kg|lbs?"
    r"|oz|ft|in|yd|mi|mph|kph|kmh|hrs?|mins?|secs?|[ap]m|AM|PM|st|nd|rd|th|dB|Hz|Pa|eV|mol|Wh|rpm"
    r"|fps|px|cc|cal|bar|USD|EUR|GBP|CHF|JPY|INR|CNY|RMB|Rs|[a-zé]{4,20}"
)
_SQUARED = re.compile(r"(?:[cmkd]?m|ft|in|yd|mi)[23](?!\w)")
_WORD = re.compile(r"[^\W\d_]+")
_ONE_WORD = re.compile(r" ?([A-Za-z]{2,20})\.?")
_MARKS = " \t\n.,;:)]}*_$\"'”’`。，（(["

# --- LaTeX --------------------------------------------------------------------------------------

_FORMATTING = re.compile(
    r"\\(?:(?:text(?:bf|it|rm|sf|tt)?|math(?:rm|bf|it|sf|tt|normal)|mbox|hbox|rm|bf|displaystyle|left"
    r"|right|q?quad|approx|sim|simeq|circ|degree|deg|mu|Omega)(?![a-zA-Z])|[ ,;:!$%()\[\]])|[{}~]"
)

_TEXTED = re.compile(r"(?:\\[ ,;:!]|[~\s]|\\q?quad)*\\(?:text|math|mbox|rm\b|mu\b|Omega)")
_TAG = re.compile(r"</?[a-z]{1,8}>")


def _plain(text: str) -> str:
    """LaTeX without its formatting; what is left of it with a backslash is more than that."""
    if "<" in text:
        text = _TAG.sub(" ", text)
    return _FORMATTING.sub(" ", text) if "\\" in text or "{" in text or "~" in text else text


# --- Before and behind --------------------------------------------------------------------------

_NAME = re.compile(
    r"(?:[^\W\d]\w{0,30}(?:['’]s?|-[^\W\d_]+)?(?:_\{?\w{1,12}\}?)?(?:\([^()=]{0,30}\))?[\s,:.$]{0,3}"
    r"|\|[^\W\d_]{1,4}\|\s?){1,16}"
)
_GREEK = re.compile(
    r"\\(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|nu|phi|rho|sigma|tau|omega|Delta|angle"
    r"|triangle|overline|ell|hat|bar|vec)(?![a-zA-Z])"
)
_EXPRESSION = re.compile("[√∛^|<>≤≥≠±∈∞]")
_CALCULATION = re.compile(r"[+^√∛π|<>≤≥≠±!?=…→∈∞&\\]")
_OPERATORS = "+*·⋅×÷/⁄^_√∛|&<>≤≥≠±!?=%#…→∈∞\\"
_UP_TO = re.compile(r"(?<!add )(?<!adds )(?<!sum )(?<!sums )\bup to\b")
_HEAD_MARKS = " \t\n*_$\"'“‘`([{#~≈≃:"


def is_name(text: str) -> bool:
    """Whether the left side of an equation is a name of what is on its right: `x`, `the total`."""
    text = _GREEK.sub(" x ", text) if "\\" in text else text
    text = _plain(text).strip(" *_$\"'“`([:\n")
    return bool(text) and bool(_NAME.fullmatch(text)) and _words_allow(text)


def head_allows(head: str) -> bool:
    """Whether what stands before a number, in its clause, leaves it a number."""
    marks = head.strip(_HEAD_MARKS)
    if not marks:
        return True
    if head.isascii() and head.replace(" ", "").isalpha():
        return _words_allow(head)
    head = _plain(head)
    if "=" in head:
        left, _, head = head.rpartition("=")
        return is_name(left) and head_allows(head)
    bare = head.rstrip(" *$\"'“‘`~≈≃\n\t")
    if "\\" in head or not bare:
        return not bare
    last = bare[-1]
    if last.isalnum() and head[len(bare) : len(bare) + 1] == "*":  # x*3
        return False
    if last in "([{":
        before = bare.rstrip("([{")[-1:]
        if bare[-2:-1].isalnum() or before in tuple(_OPERATORS):  # f(3), 2*(3
            return False
    elif last in _OPERATORS + MINUS and bare.strip("_# " + MINUS):
        return False
    if _EXPRESSION.search(head):
        return False
    return _words_allow(head)


def _words_allow(head: str) -> bool:
    """Whether the words before a number deny, bound or label nothing."""
    lowered = head.lower()
    if "n't" in lowered or "n’t" in lowered:
        return False
    if "up to" in lowered and _UP_TO.search(lowered):
        return False
    words = _LATIN.findall(lowered)
    if not _CHANGING.isdisjoint(words) and not (
        lowered.rstrip().endswith("no.") and _CHANGING.isdisjoint(words[:-1])
    ):
        return False
    if not words or not lowered.rstrip(" *_$\"'").endswith(words[-1]):
        return True
    if words[-1] == "of":
        return len(words) > 1 and words[-2] in _TOTALS
    return words[-1] not in _LABELS


def tail_allows(tail: str, latex: bool) -> bool:
    """Whether what stands behind a number, in its clause, leaves it a number."""
    if not tail or not tail.strip(" .,;:)]*_$\"'”’`"):
        return not tail.startswith("..")
    if word := _ONE_WORD.fullmatch(tail):  # as most units are
        return is_unit_word(word[1], tail[0] == " ", latex)
    if tail[0] in "([" or tail.startswith(("..", "…")):  # 3(x+1), 0.333...
        return False
    strict = latex and not _TEXTED.match(tail)
    tail = _plain(tail)
    if _CALCULATION.search(tail) or "*" in tail.strip("* "):
        return False
    behind = tail.lstrip(_MARKS)
    spaced = len(behind) < len(tail)
    if not behind:
        return True
    if LIKE_A_SCALE.match(behind):
        return False
    if behind[0] in MINUS:  # 5-year-old, 18 – the total; but not 3 - x
        behind = behind.lstrip(MINUS + " ")
        if len(_first(behind)) < 2:
            return False
        spaced = True
    elif behind[0] in "/⁄×·⋅÷%":  # $5/hour, but not 3/x
        if behind[0] not in "/⁄" or len(_first(behind[1:].lstrip())) < 2:
            return False
        spaced = True
    return _is_unit(behind, spaced, strict) and not _BEHIND.search(tail)


def _first(text: str) -> str:
    word = _WORD.match(text)
    return word[0] if word else ""


def _is_unit(behind: str, spaced: bool, strict: bool) -> bool:
    word = _first(behind)
    if not word:
        return not behind[:1].isdigit()
    if behind.startswith("or so"):
        return True
    if not word[0].isascii() and word[0] not in "µμΩÅ":
        return True  # 5円, 5 лет
    if behind[len(word) : len(word) + 1].isdigit() and not spaced:
        return bool(_SQUARED.match(behind))  # 5m2, but not 5ft7 or 5C2
    return is_unit_word(word, spaced, strict)


@lru_cache(maxsize=1024)
def is_unit_word(word: str, spaced: bool = True, strict: bool = False) -> bool:
    """Whether a word behind a number leaves it alone. `strict`: letters may be variables, too."""
    if word.lower() in SCALES or _CHANGES.match(word) or LIKE_A_SCALE.match(word):
        return False
    if strict:
        return len(word) > 1 and _SYMBOL.fullmatch(word) is not None
    if len(word) == 1:
        return word in (_SPACED_LETTERS if spaced else _LETTERS)
    return spaced or _SYMBOL.fullmatch(word) is not None
