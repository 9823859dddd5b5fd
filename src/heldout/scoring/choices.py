"""Multiple choice: which option an answer names, by its letter or by its words.

A letter counts where it is stated (`**Answer:** C`, `\\boxed{C}`, `the correct option is (C)`, `I
would go with C`), where the answer is hardly more than the letter, or where it is a line of its own
at the end. A stray letter in running text never counts, nor does the article in `Answer: A dog`,
nor do two letters at once. Where letter and words disagree (`C) London`), the letter counts.
Letters may be full-width, look-alikes of another script (a Cyrillic С), or another script's own
option letters (ب, ख, ①, 乙). Where the options were shown in another order, `originals` says which
option each shown letter stands for, and grades are in the original ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from heldout.errors import InvalidInput
from heldout.reasoning import lowered
from heldout.scoring.answers import answer_text, last_statement
from heldout.scoring.grades import NO_ANSWER, Grade, grader
from heldout.scoring.letters import LETTERS, Shuffled, shuffled
from heldout.scoring.options import (
    named_by_closing,
    named_by_head,
    named_by_tail,
    named_by_words,
    patterns_of,
)
from heldout.scoring.values import shown, tidied

__all__ = ["LETTERS", "Shuffled", "grade_choice", "read_choice", "shuffled"]

# --- Reading ------------------------------------------------------------------------------------

_PHRASES = (
    *("option is", "choice is", "option:", "choice:", "option would be", "choice would be"),
    *("option must be", "choice must be", "option should be", "choice should be", "go with"),
    *("going with", "i choose", "i pick", "i select", "i'd choose", "i'd pick", "we choose"),
    *("would choose", "would pick", "would select", "i'll choose", "i'll pick", "richtig ist"),
    *("opción correcta es", "opção correta é", "opzione corretta è", "option correcte est"),
    *("选项是", "选项：", "選項是", "選択肢は", "故选", "故選", "应选", "應選", "所以选", "因此选"),
    *("，选", "选择", "本题选"),
)
_KEYS = ("option", "choice", "cho", "pick", "select", "with", "richtig", "op", "选", "選")
_BY_KEY = {  # most texts have none of the keys, which is sooner seen than that they have no phrase
    key: tuple(p for p in _PHRASES if key in p and not any(k in p for k in _KEYS[:place]))
    for place, key in enumerate(_KEYS)
}
_NOT_MEANT = (
    *("wrong ", "incorrect ", "first ", "second ", "third ", "other ", "last ", "next ", "not "),
    *("n't ", "n’t ", "never ", "if ", "不"),
)
_PRAISE = ("correct", "right", "best", "answer", "appropriate", "正确")
_CALLED = re.compile(
    r" (?:is(?: therefore| thus)?|must be|would be) (?:indeed )?(?:the )?(?:only |most )?[*_]{0,2}"
    r"(?:correct|right|best|answer|appropriate)\b(?![-\w]| for\b| to\b| that\b| in\b)"
    r"|是?正确的?(?:答案|选项)?"
)
_DENIED = re.compile(
    r"\b(?:nor|neither|not|or|if|why|whether|only if)\s+(?:\w{1,8}\s)?[(\[*]{0,4}\Z"
    r"|\b\w[)\]*]{0,4} and [(\[*]{0,4}\Z|n['’]t \Z|不\Z"
    # Plan B, vitamin C: the letter belongs to the word before it.
    r"|\b(?!(?:option|choice|answer|letter|statement|that|so|thus|hence|therefore|then|only|and|but"
    r"|think|believe|say|since|because|while|means|conclude|clear|is)\s)[A-Za-z]+\s[(\[*]{0,4}\Z",
    re.IGNORECASE,
)
_FAR = 20_000  # characters that are looked at where nothing is stated


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
        value = (statement.value or "")[:2000]
        return (
            named_by_head(value, letters, options)
            or named_by_words(value, letters, options)
            or named_by_tail(value, letters, options)
            or named_by_closing(value, letters)
        )
    if found := _phrased(text[-_FAR:], letters, options) or _called(text[-_FAR:], letters, options):
        return found
    if "\n" not in text:
        found = named_by_head(text, letters, options, strict=True)
        return found or named_by_words(text, letters, options) or named_by_closing(text, letters)
    return _by_lines(text, letters, options)


def _by_lines(text: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The letter that the last line is, or that the last or first line begins with."""
    patterns = patterns_of(letters)
    end = text[text.rfind("\n") + 1 :]
    last = tidied(end[-40:])
    alone = patterns.head.match(last)
    found = frozenset[str]()
    if alone and alone.end() == len(last):
        found = named_by_head(last, letters, options, strict=True)
    if found := found or named_by_closing(end[-200:], letters):
        return found
    # Lines that begin with one letter after the other list the options; they choose none.
    marked = patterns.marked.findall(text, 0, _FAR)
    listed = len(set(marked)) > 1 and all(a < b for a, b in pairwise(marked))
    if not listed and (
        found := named_by_head(text[: text.find("\n")], letters, options, strict=True)
    ):
        return found
    return (
        named_by_head(end, letters, options, strict=True) if len(set(marked)) == 1 else frozenset()
    )


def _phrased(text: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The letter that is called the option, or gone with."""
    low = lowered(text).replace("’", "'")
    at, found = -1, frozenset[str]()
    for phrase in (phrase for key in _KEYS if key in low for phrase in _BY_KEY[key]):
        place = len(low)
        for _ in range(20):
            place = low.rfind(phrase, at + 1, place)
            if place < 0:
                break
            start = place + len(phrase)
            if not low.endswith(_NOT_MEANT, 0, place):
                value = text[start : start + 200].partition("\n")[0]
                if named := named_by_head(value, letters, options):
                    at, found = place, named
                    break
    return found


def _called(text: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The letter, or the option, that is called correct; of several, those of the last sentence."""
    found: frozenset[str] = frozenset()
    places: list[int] = []
    for word in _PRAISE:  # searched for by its last word, which is rare
        place = len(text)
        while len(places) < 20 and (place := text.rfind(word, 0, place)) >= 0:
            places.append(place)
    if not places:
        return found
    patterns, behind = patterns_of(letters), len(text)
    for place in sorted(places, reverse=True):
        near = _CALLED.finditer(text, max(0, place - 40), place + 16)
        called = next((one for one in near if one.end() > place), None)
        if not called or called.end() > behind:
            continue
        if found and re.search(r"[.\n]|\bbut\b", text[called.end() : behind]):
            break
        start = max(0, called.start() - 120, text.rfind("\n", 0, called.start()) + 1)
        subject = text[start : called.start()]
        if named := patterns.subject.search(subject):
            if not _DENIED.search(subject[: named.start()][-40:]):
                found |= {named[1]}
        else:
            found |= named_by_words(re.split(r"[.,;:] ?", subject)[-1], letters, options)
        behind = called.start()
    return found


# --- Grading ------------------------------------------------------------------------------------


@grader(version=1)
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
    if not isinstance(target, str | Collection):
        raise InvalidInput(
            f"the target is an option's letter, got {target!r:.100}; of an index, it is "
            f"{letters[:4]!r}[index]"
        )
    wanted = frozenset([target]) if isinstance(target, str) else frozenset(target)
    known = set(originals.values()) if originals else set(shown_letters)
    if not wanted or not wanted <= known:
        raise InvalidInput(
            f"the target {target!r:.100} is not among the option letters {''.join(sorted(known))!r}"
        )
    found = read_choice(answer, shown_letters, options=options)
    if not found:
        nothing = answer_text(answer) is None
        return NO_ANSWER if nothing else Grade(0.0, None, "no option is named as the answer")
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
