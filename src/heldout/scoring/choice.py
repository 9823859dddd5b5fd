"""Multiple choice: the option that an answer names, by its letter or by its text.

Where the options were shown in another order, `originals` says which option each shown letter
stands for, and grades are in the original letters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from heldout.errors import InvalidInput
from heldout.scoring.answers import (
    ASKED,
    MAX_VALUE,
    Agreed,
    Statement,
    Strength,
    agree,
    clean,
    is_denied,
    kept,
    sentence_at,
    statements,
    visible_answer,
)
from heldout.scoring.grades import NO_ANSWER, Grade, grader

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MAX_TEXT = 20_000  # characters at the end that are looked at where nothing is stated
_MAX_LETTERS = 50  # letters in them


# --- Letters ------------------------------------------------------------------------------------


class _Patterns(NamedTuple):
    run: re.Pattern[str]  # capital letters on their own, joined by a comma, `and` or `or`
    small: re.Pattern[str]  # a letter in either case behind `option` or `choice:`
    head: re.Pattern[str]  # letters at the beginning of a value, in either case
    alternative: re.Pattern[str]  # `or B.` behind the text of the first
    marked: re.Pattern[str]  # a letter in brackets, as behind its text
    line: re.Pattern[str]  # one that begins with `C)`, `C.`, `(C)`, `Option C:` or `C because`
    row: re.Pattern[str]  # of a table, with the verdict `correct`


_OPEN, _CLOSE = r"[\s*_`\"'“(\[{（【$]{0,8}+", r"[*_`\"'”)\]}）】$]{0,8}"
_OPTION = r"(?i:(?:(?:the|la)\s)?(?:option|choice|letter|answer|statement|opción|вариант|选项)\s?)?"
_AND = r"(?:and|or|und|oder|et|ou|y|o|also|maybe|[^\x00-\x7f–—]{1,6})"
_END = (  # not C++, A's, C-section, B.C., 3.14, 1,000, F = ma, B(x), A dog
    r"(?=\s*\Z|[.:：,;!)](?!\w)|\n|\s[-–—(]|[。，；、\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]"
    r"|\s(?=[^\x00-\x7f])|\s(?:because|since|as|for|due|given|with|which|by|but|rather|not|and not"
    r"|instead|if|over)\b|\s(?:is|are)(?:[.!]|\s*\Z))"
)
_PHRASE = re.compile(  # directly before a letter
    rf"""
    (?: \b(?:correct|right|best|option|choice|selection|verdict)[*_]{{0,2}}   # the best choice is
        (?: \s?[:：] | \s(?:\w{{1,20}}\s){{0,3}}(?:is|are|be)[:,]? )
      | \b(?:go(?:ing)?\swith|choose|chose|pick|select|leaves|leaving|think|believe|guess|say|meant)
      | \b(?:it|this|that|which)(?:['’]s|\s(?:is|must\sbe|has\sto\sbe|should\sbe|would\sbe))
      | \b(?:therefore|thus|hence|so|actually|rather),?(?=\s)
      | \b(?:no|wait|sorry)[,.:;!…—–-]{{1,3}}(?=\s)                         # No, B is.
      | 选择? | 選
    )
    (?:\s(?:that|clearly|definitely|probably|likely|only))?\s{{0,3}}{_OPTION}{_OPEN}\Z
    """,
    re.IGNORECASE | re.VERBOSE,
)
_CALLED = re.compile(  # directly behind it
    rf"""
    {_CLOSE} (?: [.:)]{{1,2}}[*_]{{0,2}}\ [^.;\n]{{1,80}}? )? [*_]{{0,3}} \s    # B. Paris
    (?: (?:is|are|must\ be|would\ be|as|ist)\s )? (?:therefore\s|thus\s)? (?:the\s)?
    (?:only\s|most\s)? [*_]{{0,2}} (?:correct|right|best|answer|richtig)\b (?!-)  # not best-known
    """,
    re.VERBOSE,
)
_REMARK = (  # about an option: `A) is too small`
    r"(?i:is|isn|are|was|does|doesn|can|cannot|could|would|has|not|too|no|wrong|incorrect|false)\b"
)
_TEXT_COMMAND = re.compile(r"\\(?:text[a-z]{0,4}|math[a-z]{2}|mbox|bf|rm)\s?\{([^{}]*)\}")


@lru_cache(maxsize=256)
def _patterns_of(letters: str) -> _Patterns:
    upper = f"[{re.escape(letters)}]"
    letter = f"[{re.escape(letters + letters.lower())}]"
    further = rf"{_OPEN}{_OPTION}{_OPEN}{letter}{_CLOSE}(?:(?<=[^AaIi])(?![\w'’+^-])|{_END})"
    joined = rf"(?:(?:\s?[,/|&]\s?+|\s(?={_AND}\s))(?:{_AND}\s){{0,2}}|[–—-]){further}"
    return _Patterns(
        run=re.compile(
            rf"""
            {upper} (?<![A-Za-z0-9_'’\\].)                                     # no word's end
            (?: [)\]]? (?:,|\sand|\sor|,\sand|,\sor)\s [(\[]?{upper} )*        # A, B and C
            (?! [A-Za-z0-9_+#'’^] | -\w | \s?= | \.[A-Za-z] )                  # A+, A-level, A = 3
            """,
            re.DOTALL | re.VERBOSE,
        ),
        small=re.compile(rf"(?<=ption|hoice)\s?:?\s?[(*_]{{0,3}}({letter})(?![\w'’^-])"),
        head=re.compile(
            rf"{_OPEN}(?i:either\s|both\s)?{_OPTION}{_OPEN}{letter}{_CLOSE}(?:{joined}){{0,25}}{_END}"
        ),
        alternative=re.compile(
            rf"""
            (?: \bor\s(?:maybe\s|perhaps\s|possibly\s)? | \s/\s )              # or maybe; A / B
            {_OPEN}{_OPTION}({upper}) (?= [).:\]*] | \s[(–—-] | \Z )
            """,
            re.VERBOSE,
        ),
        marked=re.compile(rf"[(\[]\s?({upper})\s?[)\]]"),
        line=re.compile(
            rf"""
            [ \t>*_-]{{0,8}}
            (?: (?!I){upper}[*_]{{0,2}}[,;:]?\s(?:because|since)\b             # B, because; not I
              | (?: (?i:option|choice)\s{letter}[*_]{{0,2}}[).:]               # Option b:
                  | [(\[]{upper}[)\]]                                          # (B)
                  | {upper}[*_]{{0,2}}[).] )                                   # B.
                (?! \w | \W{{1,6}}{_REMARK} ) )                                # B) is too small
            """,
            re.VERBOSE,
        ),
        row=re.compile(
            rf"""
            ^ [ \t|*_`(\[]{{0,12}} ({upper}) [ \t*_`)\]]{{0,8}}                # | **B**
            (?: [.:)\]][^|\n]{{0,200}} )?                                      # . Paris
            (?: \| (?!\s?\w\s?\|) [^|\n]{{0,200}} ){{0,6}}? \|                 # | further cells |
            [ \t*_`]{{0,8}} (?: [✅✔✓☑] | (?i:correct|right)(?i:\sanswer)? )    # ✅, Correct answer
            [ \t*_`.!✅✔✓☑]{{0,8}} (?:\||$)
            """,
            re.MULTILINE | re.VERBOSE,
        ),
    )


# --- Reading ------------------------------------------------------------------------------------


def read_choice(
    answer: str | None, letters: str = "ABCD", *, options: Sequence[str] = ()
) -> Agreed[frozenset[str]]:
    """Find the options that an answer names: none, one, or several if it does not decide."""
    text = kept(visible_answer(answer) or "")
    if not text:
        return Agreed()

    def read(statement: Statement) -> frozenset[str] | None:
        value = (statement.value or "")[:MAX_VALUE]
        if len(value) == 1 and value in letters:  # as most are
            return frozenset(value)
        return _named(value, letters, tuple(options)) or None

    agreed = agree(text, statements(text), read)
    if not any(agreed):
        text = _folded(text[-_MAX_TEXT:], letters)
        agreed = agree(text, _phrases(text, letters), read)
    return agreed if any(agreed) else Agreed(_by_lines(text, letters, tuple(options)) or None)


def _folded(text: str, letters: str) -> str:
    """Write full-width letters as ASCII, where the options have ASCII letters."""
    is_plain = text.isascii() or not letters.isascii()
    return text if is_plain else unicodedata.normalize("NFKC", text)


_EXPLAINED = re.compile(  # what follows is about other options
    r"[;,]?\s(?:(?:and\s)?not|nor|because|since|but|while|(?:al)?though|whereas|unlike|instead|rather)\b|;"
    r"|\b\w+n['’]t\b|\b(?:cannot|never|wrong|incorrect)\b"
)
_SEPARATOR = re.compile(r"[\s.:)：*_\]]*(?:[-–—]\s+)?")  # between a letter and its text


@lru_cache(maxsize=4096)
def _named(value: str, letters: str, options: tuple[str, ...]) -> frozenset[str]:
    """Read the options that a stated value names."""
    if letter := _by_text(value, letters, options):
        return frozenset(letter)
    value = _folded(value, letters)
    if "\\" in value:
        value = re.sub(" +", " ", _TEXT_COMMAND.sub(r"\1", value))
    patterns = _patterns_of(letters)
    head = patterns.head.match(value)
    at = head.end() if head else 0
    behind = value[at:]
    if explained := _EXPLAINED.search(value, at):
        value = value[: explained.start()]
    if head:
        by_text = _by_text(_SEPARATOR.sub("", behind, count=1), letters, options)
        others = (
            *patterns.alternative.findall(value, at),
            *_with_texts(value[at:], letters, options),
        )
        return _letters_in(head[0], letters).union(by_text, others)
    marked = list(patterns.marked.finditer(value))
    if marked and not value[marked[-1].end() :].strip(" .,*_"):
        by_text = _by_text(value[: marked[-1].start()], letters, options)
        return frozenset(match[1] for match in marked).union(by_text)
    word = value.strip(" ()[]{}.*")
    is_several = word.isalpha() and list(word) == sorted(set(word) & set(letters))  # AC
    return frozenset(word) if is_several else frozenset()


def _with_texts(value: str, letters: str, options: tuple[str, ...]) -> set[str]:
    """Find the letters that stand before their own options' texts."""
    plain = _plain(value) if options else ""
    return {
        letter
        for letter, option in zip(letters, options, strict=False)
        if (text := _plain(option))
        and re.search(
            rf"(?<!\w){re.escape(letter.lower())}[).:*\]]*\s?\(?{re.escape(text)}(?!\w)", plain
        )
    }


def _letters_in(text: str, letters: str) -> frozenset[str]:
    alone = re.findall(r"(?<![A-Za-z0-9])[^\W_](?![A-Za-z0-9])", text)
    named = (letter if letter in letters else letter.upper() for letter in alone)
    return frozenset(letter for letter in named if letter in letters)


def _phrases(text: str, letters: str) -> list[Statement]:
    """Find the letters that a phrase before or behind them calls the answer."""
    patterns = _patterns_of(letters)
    found: list[Statement] = []
    if rows := list(patterns.row.finditer(text)) if "|" in text else []:
        value = ", ".join(row[1] for row in rows)
        found.append(Statement(value, Strength.SENTENCE, rows[0].start(), rows[-1].end()))
    runs = list(patterns.run.finditer(text))[-_MAX_LETTERS:]
    if "ption" in text or "hoice" in text:
        runs += [run for run in patterns.small.finditer(text) if run[1].islower()][-_MAX_LETTERS:]
    for run in runs:
        group = run.lastindex or 0
        start, end, value = run.start(group), run.end(), run[group]
        before = text[max(0, start - 80) : start]
        phrase = _PHRASE.search(before)
        head = patterns.head.match(text, start) if phrase else None
        if phrase and head and head.end() >= end:  # not `so A, B and C are wrong`
            before = before[: phrase.start()]
            value, end = sentence_at(text, start)
        elif not _CALLED.match(text, end, end + 140):
            continue
        if not is_denied(before) and not ASKED.match(text, run.end()):
            found.append(Statement(value, Strength.SENTENCE, start, end))
    return sorted(found, key=lambda statement: statement.start)


def _by_lines(text: str, letters: str, options: tuple[str, ...]) -> frozenset[str]:
    """Read a reply that is an option's text, a last line that is a letter, or one like `C) Paris`.

    That is the first line, with others only explained below it, or the last one.
    """
    patterns = _patterns_of(letters)
    lines = [line.strip() for line in text.split("\n")]
    if len(lines) == 1 and (letter := _by_text(text, letters, options)):
        return frozenset(letter)
    if patterns.head.fullmatch(lines[-1].rstrip(".!")):
        alone = [line for line in lines if patterns.head.fullmatch(line.rstrip(".!"))]
        named = {_letters_in(line, letters) for line in alone}
        return named.pop() if len(named) == 1 else frozenset()
    marked = [line for line in lines if patterns.line.match(line)]
    own = [line for line in marked if _with_texts(line, letters, options)]  # with their texts
    if marked == [lines[-1]] or (marked[:1] == [lines[0]] and marked[:1] in (marked, own)):
        return _named(marked[0], letters, options)
    return frozenset()


def _by_text(value: str, letters: str, options: Sequence[str]) -> str:
    """Return the letter of the one option whose text is the value, or its first clause; or ""."""
    texts = [_plain(option) for option in options]
    plain = _plain(value) if options else ""
    for clause in (plain, re.split(r"[,;] | because | since | [–—] ", plain, maxsplit=1)[0]):
        if texts.count(clause) == 1:
            return letters[texts.index(clause)]
    return ""


@lru_cache(maxsize=4096)
def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", clean(text)).casefold().split())


# --- Grading ------------------------------------------------------------------------------------


def _check(*, letters: str = "ABCD", options: Sequence[str] = (), **_: object) -> None:
    if not letters.strip() or len(set(letters)) < len(letters):
        raise InvalidInput(
            f"`letters` must be the options' letters in one text, each once, as "
            f"'ABCD', got {letters!r}"
        )
    if isinstance(options, str) or len(options) > len(letters):
        raise InvalidInput(
            f"`options` must be a list of the options' texts, at most {len(letters)} of them, got "
            f"{options!r:.100}; for more, say `letters={LETTERS[: len(options)]!r}`"
        )


@grader(version=7, check=_check)
def grade_choice(
    answer: str | None,
    target: str | Collection[str],
    *,
    letters: str = "ABCD",
    options: Sequence[str] = (),
    originals: Mapping[str, str] | None = None,
) -> Grade:
    """Grade 1 if the option that the answer chooses is the target.

    A stated answer (box, tag, key, `Answer: C`, `the answer is C`) chooses an option by its letter
    or its full text; statements that name no option are ignored. If no statement names one, these
    count: a letter that a phrase calls the answer (`I would go with C`, `option C is correct`), a
    row of a table with the verdict `correct`, a reply that is an option's text, a last line that is
    a letter, or a first or last line like `C) Paris`, `Option C: 42` or `C, because …`. Different
    answers are ambiguous and graded 0, unless a later one corrects the earlier ones; what is taken
    back (`Actually, no`) does not count. A letter in running text never counts, nor does one in a
    question, or after `not`, `if` or `wrong`. Two letters joined by a comma, a slash, `and` or `or`
    are two answers, and so are a letter and another option's text: both are graded 0.

    Args:
        answer: The reply.
        target: The correct letter; or several, all of which must be chosen.
        letters: The letters shown to the model.
        options: The texts of the options, in the order shown.
        originals: If options were shuffled: the original letter of each letter shown. The target is
            in original letters.

    Returns:
        The grade; `extracted` is the option's letter, in the original letters.

    Raises:
        InvalidInput: The target is not one of the letters, or an option is invalid.
    """
    if options or len(letters) != 4:
        _check(letters=letters, options=options)
    letters = letters[: len(options)] if options else letters
    known = frozenset(originals.values() if originals else letters)
    several = target if isinstance(target, Collection) else ()
    correct = frozenset([target] if isinstance(target, str) else several)
    if not correct or not correct <= known:
        raise InvalidInput(
            f"the target {target!r:.100} is not among the option letters {''.join(sorted(known))!r}"
            f"; of an index, it is {letters[:4]!r}[index]"
        )
    named, problem = read_choice(answer, letters, options=options)
    if not named:
        if visible_answer(answer) is None:
            return NO_ANSWER
        return Grade(0.0, None, problem or "no option is named as the answer")
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
