"""Multiple choice: which option an answer names, by its letter or by its words.

A letter counts where it is stated (`**Answer:** C`, `\\boxed{C}`, `the correct option is (C)`, `I
would go with C`), where the answer is hardly more than the letter, or where it is a line of its own
at the end. A stray letter in running text never counts, nor does the article in `Answer: A dog`,
nor do two letters at once. Where letter and words disagree (`C) London`), nothing is decided. What
is read of a few words is in `options`.
Letters may be full-width, look-alikes of another script (a Cyrillic С), or another script's own
option letters (ب, ख, ①, 乙). Where the options were shown in another order, `originals` says which
option each shown letter stands for, and grades are in the original ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from heldout.chat.reasoning import lowered
from heldout.errors import InvalidInput
from heldout.scoring._old_answers import answer_text, end_of, last_statement
from heldout.scoring.grades import NO_ANSWER, Grade, grader
from heldout.scoring.letterpatterns import has_any, patterns_of
from heldout.scoring.letters import LETTERS, Shuffled, shuffled
from heldout.scoring.options import named_by_closing, named_by_tail, named_in
from heldout.scoring.optiontexts import named_by_words
from heldout.scoring.values import first_sentence, shown, tidied

__all__ = ["LETTERS", "Shuffled", "grade_choice", "read_choice", "shuffled"]

# --- Reading ------------------------------------------------------------------------------------

_PHRASES = (
    *("option is", "choice is", "option:", "choice:", "option would be", "choice would be"),
    *("option must be", "choice must be", "option should be", "choice should be", "go with"),
    *("going with", "i choose", "i pick", "i select", "i'd choose", "i'd pick", "we choose"),
    *("would choose", "would pick", "would select", "i'll choose", "i'll pick", "richtig ist"),
    *("opción correcta es", "opção correta é", "alternativa correta é", "opzione corretta è"),
    *("option correcte est", "правильный вариант —", "选项是", "选项：", "選項是", "選択肢は"),
    *("选择", "选", "選"),
)
_KEYS: tuple[str, ...] = (
    *("option", "choice", "cho", "pick", "select", "with", "richtig", "op", "alternativa"),
    *("вариант", "选", "選"),
)
_BY_KEY = tuple(  # most texts have none of the keys, as is sooner seen than that of all phrases
    (key, tuple(p for p in _PHRASES if key in p and not any(k in p for k in _KEYS[:place])))
    for place, key in enumerate(_KEYS)
)
_BY_KEY_PLAIN = tuple(
    (key, plain) for key, some in _BY_KEY if (plain := tuple(p for p in some if p.isascii()))
)
_NOT_MEANT = re.compile(
    r"\b(?:wrong|incorrect|first|second|third|other|last|next|not|never|if|why|could|might|some|many"
    r"|people|students?|others|you|they|he|she|cannot)\b[^.\n]{0,24}\Z|n['’]t [^.\n]{0,12}\Z|不\Z"
)
_PRAISE: tuple[str, ...] = (
    *("correct", "right", "best", "answer", "appropriate", "plausible", "true", "likely", "fits"),
    *("works", "remains", "richtig", "正确"),
)
_CALLED = re.compile(
    r" (?:is(?: therefore| thus)?|must be|would be|seems|looks|appears(?: to be)?|ist) (?:indeed )?"
    r"(?:the )?(?:only |most )?[*_]{0,2}(?:correct|right|best|answer|appropriate|plausible|likely"
    r"|true|richtig)\b(?![-\w]| (?:for|to|that|in|when|only|if)\b"
    r"| (?!answer|option|choice|one)[a-z]+ (?!is\b)\w)"
    r"|(?<=[Oo]nly \w) (?:fits|works|remains|is correct)\b|(?:选项)?是?正确的?(?:答案|选项)?"
)
_DENIED = re.compile(
    r"\b(?:nor|neither|not|or|if|why|whether|only if)\s+(?:\w{1,8}\s)?[(\[*]{0,4}\Z"
    r"|\b\w[)\]*]{0,4} and [(\[*]{0,4}\Z|n['’]t \Z|不\Z"
    # Plan B, vitamin C: the letter belongs to the word before it.
    r"|\b(?!(?:option|choice|answer|letter|statement|that|so|thus|hence|therefore|then|only|and|but"
    r"|think|believe|say|since|because|while|means|conclude|clear|is|fact|in|die|antwort)\s)"
    r"[A-Za-z]+\s[(\[*]{0,4}\Z",
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
        found = (
            named_in(value, letters, options)
            or named_by_tail(value, letters, options)
            or named_by_closing(value, letters, options)
        )
        if found and text.find("\n", statement.start) >= 0:
            return found | _beyond(text, statement.start, value, letters, options)
        return found
    if found := _phrased(text[-_FAR:], letters, options) or _called(text[-_FAR:], letters, options):
        return found
    if "✅" in text or "✔" in text:
        checked = patterns_of(letters).checked.findall(text, 0, _FAR)
        if checked and (named := {one or other for one, other in checked}):
            return frozenset(named)
    if "\n" not in text:
        found = named_in(text, letters, options, strict=True)
        return found or named_by_closing(text, letters, options)
    return _by_lines(text, letters, options)


def _beyond(
    text: str, start: int, value: str, letters: str, options: Sequence[str]
) -> frozenset[str]:
    """What else is chosen: by lines that go on with the next letters, or by a phrase behind it."""
    end = text.find("\n", end_of(text, value, start))
    if end < 0:
        return frozenset()
    patterns = patterns_of(letters)
    first = patterns.others.search(value)
    line = text[end + 1 : end + 40].partition("\n")[0]
    if alone := patterns.lines.match(line):
        return frozenset(alone[1])
    goes_on = patterns.marked.match(line)
    if goes_on and first and letters.find(goes_on[1]) == letters.find(first[1]) + 1:
        return frozenset(goes_on[1])
    return _phrased(text[end : end + _FAR], letters, options, only_called=True)


def _by_lines(text: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The letter that the last line is, or that the last or first line begins with."""
    patterns = patterns_of(letters)
    end = text[text.rfind("\n") + 1 :]
    last = tidied(end[-40:])
    alone = patterns.head.match(last)
    found: frozenset[str] = frozenset()
    if alone and alone.end() == len(last):
        found = named_in(last, letters, options, strict=True)
        if found and len(others := set(patterns.lines.findall(text, max(0, len(text) - _FAR)))) > 1:
            return frozenset(others)
    # Lines that begin with one letter after the other list the options; they choose none.
    marked = patterns.marked.findall(text, 0, _FAR)
    steps = {a < b for a, b in pairwise(marked) if a != b}
    listed = len(set(marked)) > 1 and len(steps) == 1
    closing = named_by_closing(end, letters, () if listed else options)
    if found := found or closing:
        return found
    line = text.find("\n")
    first = named_in(text[:line], letters, options, strict=True)
    found = named_in(end, letters, options, strict=True)
    if not first and not found:
        return found
    apart = len(set(marked)) <= 1 or not text[line : line + 2].strip()
    if first and not listed and apart:
        return first
    return found if len(set(marked)) <= 1 else frozenset()


def _phrased(
    text: str, letters: str, options: Sequence[str], *, only_called: bool = False
) -> frozenset[str]:
    """The letter that is called the option, or gone with."""
    found: frozenset[str] = frozenset()
    at = -1
    plain = text.isascii()
    low, by_key = lowered(text), _BY_KEY_PLAIN if plain else _BY_KEY
    low = low if plain else low.replace("’", "'")
    phrases = [phrase for key, some in by_key if low.rfind(key) >= 0 for phrase in some]
    for phrase in phrases:
        if only_called and not phrase.endswith((" is", " be", " est", " es", "是")):
            continue
        place = len(low)
        for _ in range(20):
            place = low.rfind(phrase, at + 1, place)
            if place < 0:
                break
            start = place + len(phrase)
            if not _NOT_MEANT.search(low[max(0, place - 40) : place]):
                value = first_sentence(text[start : start + 200].partition("\n")[0])
                if named := named_in(value, letters, options):
                    at, found = place, named
                    break
    return found


def _called(text: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The letters, or the options, that are called correct: all, unless a `but` parts them."""
    found: frozenset[str] = frozenset()
    if not options and not has_any(text, letters):
        return found
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
        if found and re.search(
            r"\b(?:[Bb]ut|[Hh]owever|[Ii]n fact|[Aa]ctually)\b", text[called.end() : behind]
        ):
            break
        start = max(0, called.start() - 120, text.rfind("\n", 0, called.start()) + 1)
        subject = text[start : called.start()]
        if named := patterns.subject.search(subject):
            if not _DENIED.search(subject[: named.start()][-40:]):
                found |= {named[1] or named[2]}
        else:
            found |= named_by_words(re.split(r"[.,;:] ?", subject)[-1], letters, options)
        behind = called.start()
    return found


# --- Grading ------------------------------------------------------------------------------------

_set_of = lru_cache(maxsize=256)(frozenset[str])


def _check(
    *,
    letters: str = "ABCD",
    options: Sequence[str] = (),
    originals: Mapping[str, str] | None = None,
    **_others: object,
) -> None:
    """Letters that are told apart, one for every option, and known originals."""
    if not isinstance(letters, str) or not letters.strip() or len(set(letters)) < len(letters):
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
    if originals is not None and not isinstance(originals, Mapping):
        raise InvalidInput(f"`originals` maps each shown letter to its own, got {originals!r:.100}")


@grader(version=1, check=_check)
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
    gives for each shown one. With `options`, an answer may say an option's text, and a letter must
    agree with the text behind it.
    """
    if options or len(letters) != 4:
        _check(letters=letters, options=options, originals=originals)
    shown_letters = letters[: len(options)] if options else letters
    if not isinstance(target, str) and not isinstance(target, Collection):
        raise InvalidInput(
            f"the target is an option's letter, got {target!r:.100}; of an index, it is "
            f"{letters[:4]!r}[index]"
        )
    wanted = frozenset([target]) if isinstance(target, str) else frozenset(target)
    known = frozenset(originals.values()) if originals else _set_of(shown_letters)
    if not wanted or not wanted <= known:
        raise InvalidInput(
            f"the target {target!r:.100} is not among the option letters {''.join(sorted(known))!r}"
        )
    found = read_choice(answer, shown_letters, options=options)
    if not found:
        nothing = answer_text(answer) is None
        return NO_ANSWER if nothing else Grade(0.0, None, "no option is named as the answer")
    two = isinstance(target, str) and len(found) > 1
    several = "more than one option is named" if two else ""
    if not originals:
        named = ", ".join(sorted(found)) if len(found) > 1 else next(iter(found))
        return Grade(float(found == wanted), shown(named), several)
    missing = found - originals.keys()
    if missing:
        raise InvalidInput(f"`originals` says nothing of the shown letters {sorted(missing)}")
    chosen = frozenset(originals[letter] for letter in found)
    notes = [f"shown as {', '.join(sorted(found))}"]
    if chosen != wanted:
        places = ", ".join(sorted(place for place, letter in originals.items() if letter in wanted))
        notes.append(f"the target {', '.join(sorted(wanted))} was shown as {places}")
    notes += [several] if several else []
    return Grade(float(chosen == wanted), shown(", ".join(sorted(chosen))), "; ".join(notes))
