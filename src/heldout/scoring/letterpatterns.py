"""The patterns that find an option's letter: at the beginning of a value, at its end, in lines.

A letter counts only where it is one: not in `C++`, `A's`, `3.14`, `F = ma` or `C. S. Lewis`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from heldout.scoring.letters import glyphs_of


@dataclass(frozen=True, slots=True)
class Patterns:
    head: re.Pattern[str]
    others: re.Pattern[str]
    lower: re.Pattern[str]
    foreign: re.Pattern[str]
    tail: re.Pattern[str]
    closing: re.Pattern[str]
    marked: re.Pattern[str]
    lines: re.Pattern[str]
    subject: re.Pattern[str]
    checked: re.Pattern[str]


_OPTION = (
    r"(?:option|choice|letter|answer|opción|opção|alternativa|letra|opzione|réponse|respuesta|вариант"
    r"|选项|選項|選択肢|الخيار|विकल्प)"
)
_OPEN, _CLOSE = r"[\s*_`\"'“(\[{（【「《<$✅☑✔👉\ufe0f]{0,8}", r"[*_`\"'”)\]}）】」》>$]{0,8}"
_FONT = r"(?:\\(?:text|textbf|textrm|textsf|mathrm|mathbf|mathsf|bf|rm)\s?)?"
_BARE, _ENDS = r"(?<![A-Za-z0-9_\\])(?<![a-z]['’])", r"(?![A-Za-z0-9_]|['’][a-z])"
# Signs that belong to the letter before them, which is then part of a word.
_VOWELS = (
    "\u0300-\u036f\u05b0-\u05c7\u064b-\u0652\u0900-\u0903\u093a-\u094f\u0981-\u0983"
    "\u09bc-\u09cd\u0e31-\u0e4e"
)
# Names of species, whose first half is no option's letter.
_SPECIES = (
    r"(?:coli|pylori|difficile|elegans|melanogaster|thaliana|subtilis|cerevisiae|anthracis|sapiens"
    r"|albicans|botulinum|tetani|perfringens|influenzae|jejuni|cereus|fragilis|erectus|habilis)\b"
)


@lru_cache(maxsize=256)
def patterns_of(letters: str) -> Patterns:
    glyphs = glyphs_of(letters)
    letter = "[" + re.escape("".join(glyphs)) + "]"
    foreign = "[" + re.escape("".join(g for g in glyphs if not g.isascii()) or "\0") + "]"
    upper = "[" + re.escape(letters) + "]"
    lower = "[" + re.escape(letters.lower()) + "]"
    # Not C++, C#, A's, C-section, B-, B.C., 3.14, F = ma, A^{-1}, B(x), C. S. Lewis or E. coli.
    edge = (
        rf"(?![\w+#'’{_VOWELS}]|-(?:\w|\s*\Z)|\.[A-Za-z](?![A-Za-z])|[.,]\d|\s*[=^]|\([a-z0-9]\)"
        rf"|\.\s?(?-i:[A-Z])\.\s?\w|\.\s(?-i:{_SPECIES}))"
    )
    marks, ends = r"[(\[*_]{0,4}", r"[)\]*_]{0,4}"
    alone = rf"(?<![A-Za-z0-9_'’]){marks}({upper}){ends}"
    is_it = (
        r"(?:\b(?:it|this|that|which|one)(?:['’]s)?\s|(?:correct|right|best)\s(?:\w{2,12}\s){0,2}"
        r"|richtig\s)(?:(?:is|are|has to be|must be|should be|would be|can only be"
        r"|corresponds to|matches|ist|is therefore|is thus|is clearly)\s)?"
    )
    label = (
        r"(?:\A\W*(?:(?:my|the|final|correct|selected|chosen|best|right)\s)*(?:final|correct|right"
        r"|select(?:ed|ion)|solution|result|letter|choice|option|guess|verdict|conclusion|pick)\s?"
        r"[*_]{0,4}[:：][*_]{0,4}\s*)"
    )
    return Patterns(
        head=re.compile(
            rf"{_OPEN}{_FONT}{_OPEN}(?:(?:(?:the|la|el|le|die|a|o)\s|l['’])?{_OPTION}\s?|(?:la|le)\s)?"
            rf"{_OPEN}(?P<letter>{letter})(?P<close>{_CLOSE})"
            rf"(?:{edge}|(?=입니다|です|だ|이다|选?项|選?項|번|['’]d[iıuü]r))"
            r"(?P<end>\s*\Z|[.,:;)。，：；]|\s|입|で|だ|이|选?项|選?項|번|)",
            re.IGNORECASE,
        ),
        others=re.compile(rf"{_BARE}({upper}){_ENDS}"),
        lower=re.compile(rf"{_BARE}({lower}){_ENDS}(?!\s[a-z]{{2}})|\(({lower})\)"),
        foreign=re.compile(rf"(?<!\w)({foreign})(?!\w)"),
        tail=re.compile(  # Paris (C)
            rf"(?:[(\[]\s?(?:{_OPTION}\s)?[*_]{{0,2}}({upper})[*_]{{0,2}}\s?[)\]]"
            rf"|\b{_OPTION},?\s\(?({upper})\)?)[*_.]{{0,4}}\Z",
            re.IGNORECASE,
        ),
        closing=re.compile(  # so it's C
            r"(?:(?:\A|[\s,;:，])(?:so|thus|hence|therefore|it(?:['’]s| is| must be)|say|definitely"
            r"|probably|likely|clearly|choose|pick|select|think|believe|guess|i['’]d answer|👉|✅"
            rf"|=>|->|→)[,:]?\s*(?:it(?:['’]s| is) )?|{is_it}|{label})"
            rf"(?:{_OPTION}\s)?{marks}(?-i:({upper})){ends}\Z",
            re.IGNORECASE,
        ),
        marked=re.compile(rf"^[ \t>*_-]{{0,8}}[(\[]?({upper})[*_]{{0,2}}[).:\]]", re.MULTILINE),
        lines=re.compile(rf"^[ \t>*_(\[]{{0,6}}({upper})[)\].*_ \t\r]{{0,6}}$", re.MULTILINE),
        subject=re.compile(
            rf"{alone}\Z|{alone}(?:[).:\]]+[*_]{{0,3}} (?![^\n]*\b[A-Z]\Z)[^.;,\n]{{1,80}}"
            r"|,[^.;,\n]{1,80},)\Z"
        ),
        checked=re.compile(
            rf"{_BARE}({upper}){_ENDS}[^\n\w]{{0,6}}[✅☑✔]|[✅☑✔][^\n\w]{{0,6}}({upper}){_ENDS}"
        ),
    )


def has_any(text: str, letters: str) -> bool:
    """Whether one of the letters is in a text at all, as is seen much sooner than where."""
    return any(letter in text for letter in letters)
