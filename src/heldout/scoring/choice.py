r"""Multiple choice: the option that an answer names, by its letter or by its text.

Letters may be full-width, look-alikes of another script (a Cyrillic С) or another script's own
option letters (ب, ख, ③, 乙). Where the options were shown in another order, `originals` says which
option each shown letter stands for, and grades are in the original letters.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from heldout.errors import InvalidInput
from heldout.scoring.answers import MAX_VALUE, answer_text, clean, shown, statements, visible_text
from heldout.scoring.grades import NO_ANSWER, Grade, grader

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MAX_TEXT = 20_000  # characters at the end that are looked at where nothing is stated
_MAX_LETTERS = 50  # letters in them

# --- Letters ------------------------------------------------------------------------------------

# What stands for the first, second, … option in other scripts, each unmistakably so.
_ORDERS = (
    *("أبجده", "ابجده", "कखगघङ", "কখগঘঙ", "אבגדה", "ΑΒΓΔΕ", "กขคงจ", "가나다라마", "ㄱㄴㄷㄹㅁ"),
    *("甲乙丙丁戊", "アイウエオ", "①②③④⑤⑥⑦⑧⑨⑩", "❶❷❸❹❺❻❼❽❾❿"),
)
_SOUNDS = {"अ": "A", "ब": "B", "स": "C", "द": "D", "Б": "B"}
# Letters of other scripts that look like Latin ones. A Cyrillic В may be B, or the third of a list.
_ALIKE = dict(zip("АСЕНІЈКМОРЅТХΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "ACEHIJKMOPSTXABEZHIKMNOPTYX", strict=True))
_CJK = "\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3"  # letters that words stand next to, unspaced


@lru_cache(maxsize=256)
def _glyphs_of(letters: str) -> tuple[dict[str, str], re.Pattern[str]]:
    """Map every character that stands for one of the option letters to that letter."""
    glyphs: dict[str, str] = {}
    if letters[0].isascii() and letters[0].isalpha():
        for order in _ORDERS:
            glyphs |= dict(zip(order, letters, strict=False))
        glyphs |= {glyph: letter for glyph, letter in _SOUNDS.items() if letter in letters}
    for glyph, alike in _ALIKE.items():
        if alike in letters:
            glyphs[glyph] = alike
        if glyph in letters:  # options shown in that script, answered in Latin
            glyphs[alike] = glyph
    glyphs |= {glyph.lower(): letter for glyph, letter in glyphs.items() if glyph.isalpha()}
    glyphs = {glyph: letter for glyph, letter in glyphs.items() if glyph not in letters}
    word = rf"[^\W{_CJK}]"
    return glyphs, re.compile(rf"(?<!{word})[{re.escape(''.join(glyphs))}](?!{word})")


def _in_letters(text: str, letters: str) -> str:
    if text.isascii() and letters.isascii():
        return text
    glyphs, alone = _glyphs_of(letters)
    return alone.sub(lambda glyph: glyphs[glyph[0]], _fold(text))


def _fold(text: str) -> str:
    """Write full-width and styled letters as plain ones; circled digits stay."""
    if text.isascii() or unicodedata.is_normalized("NFKC", text):
        return text
    return "".join(map(_fold_character, text))


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    is_number = unicodedata.category(character) == "No"
    return character if is_number else unicodedata.normalize("NFKC", character)


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


# --- Patterns -----------------------------------------------------------------------------------

_OPEN, _CLOSE = r"[\s*_`\"'“(\[{（【「<$]{0,8}", r"[*_`\"'”)\]}）】」>$]{0,8}"
_OPTION = (
    r"(?:(?:(?i:the|la|el|le|die)\s|l['’])?(?i:option|choice|letter|answer|statement|opción|opção"
    r"|alternativa|letra|opzione|réponse|вариант|选项|選項|選択肢|الخيار|विकल्प)\s?|(?:la|le)\s)?"
)
_AND = r"(?:(?i:and|or|also|maybe|possibly|but|und|oder|et|ou|y|o)|[^\x00-\x7f–—]{1,6})"
_BEHIND = (
    r"is|are|was|and|or|because|since|as|for|due|given|with|which|by|but|rather|not|instead|if|over"
    r"|at|maybe|ist|est|es|weil|porque|car"
)
_PHRASE = re.compile(  # directly before the letter
    r"(?:\b(?:option|choice|letter|correct|selection|verdict|conclusion|pick|guess)[*_]{0,2}\s?[:：]"
    r"|\b(?:corr\w{2,6}|right|best|appropriate|option|choice|letter)[*_]{0,2}\s(?:\w{1,20}\s){0,3}"
    r"(?:is|are|would be|must be|should be|es|é|è|est)"
    r"|\b(?:go(?:ing)? with|choose|chose|pick|select|leaves?|leaving|think|believe|say|guess)"
    r"|\b(?:it|this|that|which)(?:['’]s|\s(?:is|must be|has to be|should be|would be|can only be))"
    r"|\b(?:therefore|thus|hence|so)(?=[\s,])|\brichtig ist|вариант —|选择?|選|选项是|選択肢は"
    r"|=>|->|→|👉)"
    r"(?:\s(?:therefore|thus|clearly|definitely|probably|likely|indeed|that|only))?[:,]?\s{0,3}"
    rf"[*_]{{0,2}}(?:the\s)?{_OPTION}[*_`\"'(\[$]{{0,6}}\Z",
    re.IGNORECASE,
)
_CALLED = re.compile(  # directly behind the letter
    r"[*_`\"')\]}$]{0,6}(?:[.:)]{1,2}[*_]{0,2}\s[^.;\n]{1,80}?|,[^.;,\n]{1,80},)?[*_]{0,3}\s"
    r"(?:(?:is|are|must be|would be|seems|appears(?: to be)?|as|ist)\s)?(?:therefore\s|thus\s)?"
    r"(?:the\s)?(?:(?:only|most)\s)?[*_]{0,2}"
    r"(?:correct|right|best|appropriate|plausible|likely|true|answer|richtig)\b(?!-)"
)
_DENIED = re.compile(
    r"(?:\b(?:not|never|if|wrong|incorrect|nor|neither|or|cannot)|n['’]t)\s"
    r"(?:\w{1,12}\s){0,2}[(\[*\"'\s]{0,4}\Z|不\Z",
    re.IGNORECASE,
)
_BOTH = re.compile(r"(?<!\w)(\w)\)?\s(?:and|&)\s\(?\Z")
_GOES_ON = re.compile(r"[*_)\]]{0,4}\s(?:is|are|was|can|could|would|might|has|does)(?:n['’]t)?\b")
_NAME = re.compile(  # Vitamin C, Plan B: the letter belongs to the word before it
    r"\b(?!(?:Option|Choice|Answer|Letter|Statement|So|Thus|Hence|Therefore|That|Then|Only|And|But"
    r"|Since|Because|While|If|Is|Die|Antwort)\s)[A-Z][a-z]+\s[(\[*]{0,3}\Z"
)
_TEXT_COMMAND = re.compile(r"\\(?:text[a-z]{0,4}|math[a-z]{2}|mbox|bf|rm)\s?\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class _Patterns:
    head: re.Pattern[str]
    """A letter at the beginning of a value."""
    joined: re.Pattern[str]
    """A further letter, behind a comma, a slash, `and` or `or`."""
    spaced: re.Pattern[str]
    """A further letter behind nothing but a space."""
    tail: re.Pattern[str]
    """A letter in brackets at its end."""
    alone: re.Pattern[str]
    """Letters, and nothing else."""
    any: re.Pattern[str]
    """A capital letter on its own, anywhere."""
    marked: re.Pattern[str]
    """A letter with its own mark, `B)`, `B.` or `(B)`."""
    lines: re.Pattern[str]
    """Lines that begin with a marked letter."""


@lru_cache(maxsize=256)
def _patterns_of(letters: str) -> _Patterns:
    upper = "[" + re.escape(letters) + "]"
    letter = "[" + re.escape(letters + letters.lower()) + "]"
    # Not C++, A's, C-section, B.C., 3.14, 1,000, F = ma, A^{-1}, B(x), A dog.
    end = (
        r"(?=\s*\Z|[.:)：](?![^\W\d_]\.|\w)|[,;](?!\d)|[。，；、!？"
        rf"{_CJK}]|\s+(?:{_BEHIND})\b|\s[-–—(&]"
        rf"|\s*[/|&–—-]\s*{letter}(?!\w)|\s+[*(]{{0,3}}{upper}(?!\w)(?!\s*[=^])|\s(?=[^\x00-\x7f])|\n)"
    )
    bare = rf"[*_`\"'(\[{{$]{{0,6}}{letter}{_CLOSE}"
    return _Patterns(
        head=re.compile(
            rf"{_OPEN}(?:(?i:either|both)\s)?{_OPTION}{_OPEN}({letter})(?P<close>{_CLOSE}){end}"
        ),
        joined=re.compile(
            rf"(?:\s*[,/|&]\s*(?:{_AND}\s)?|\s*[(,]?\s*{_AND}\s(?:{_AND}\s)?|[–—-]){_OPEN}{_OPTION}"
            rf"({letter}){_CLOSE}(?:{end}|(?<=[^AaIi])(?![\w'’+^-]))"
        ),
        spaced=re.compile(rf"\s[*(]{{0,3}}({upper}){_CLOSE}{end}"),
        tail=re.compile(rf"[(\[]\s?(?:option\s)?({upper})\s?[)\]][\s.*_]{{0,4}}\Z"),
        alone=re.compile(rf"{_OPTION}{bare}(?:(?:\s?[,/&]\s?|\s(?:and|or)\s){bare}){{0,25}}[.。]?"),
        any=re.compile(
            rf"({upper})(?<![A-Za-z0-9_'’\\].)(?![A-Za-z0-9_+#'’^]|-\w|\s?=|\.[A-Za-z])", re.DOTALL
        ),
        marked=re.compile(rf"(?<![\w'’])(?:\(({upper})\)|({upper})[.):](?!\w))"),
        lines=re.compile(rf"^[ \t>*_-]{{0,8}}[(\[]?({upper})[*_]{{0,2}}[).:\]]", re.MULTILINE),
    )


# --- Reading ------------------------------------------------------------------------------------


def read_choice(
    answer: str | None, letters: str = "ABCD", *, options: Sequence[str] = ()
) -> frozenset[str]:
    """Find the options that an answer names.

    Args:
        answer: The reply.
        letters: The options' letters.
        options: Their texts in the order of the letters, where an answer may repeat the text.

    Returns:
        The letters: none where no option is named, several where the answer does not decide.
    """
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
    text = _in_letters(visible_text(text)[-_MAX_TEXT:], letters)
    return _called_right(text, letters) or _by_lines(text, letters, tuple(options))


@lru_cache(maxsize=4096)
def _named(value: str, letters: str, options: tuple[str, ...]) -> frozenset[str]:
    """Read the options that a stated value names."""
    if letter := _by_text(value, letters, options):
        return frozenset(letter)
    value = _in_letters(value, letters)
    if "\\" in value:
        value = _TEXT_COMMAND.sub(r"\1", value)
    patterns = _patterns_of(letters)
    head = patterns.head.match(value)
    if head is None:
        if tail := patterns.tail.search(value, max(0, len(value) - 20)):
            return frozenset((tail[1], *_by_text(value[: tail.start()], letters, options)))
        word = value.strip(" ()[]{}.*")
        if 1 < len(word) <= len(letters) and word.isalpha() and {*word} <= {*letters}:  # AC
            return frozenset(word if [*word] == sorted({*word}) else ())
        return _called_right(value, letters)
    named = {head[1]}
    at = head.end()
    is_marked = ")" in head["close"] or value[at : at + 1] in (".", ":", "：")
    while joined := patterns.joined.match(value, at) or (
        not is_marked and patterns.spaced.match(value, at)
    ):
        named.add(joined[1])
        at = joined.end()
    if value.startswith((" is ", " are "), at):  # A is correct and B is correct
        named |= _called_right(value[at:], letters)
    words = value[at:].lstrip(" .:)：-–—*_")
    if is_marked:  # behind `C)` is the option's text, in which another marked letter is one
        named.update(map("".join, patterns.marked.findall(words)))
    if words != value[at:]:
        named.update(_by_text(words, letters, options))
    return frozenset(letter if letter in letters else letter.upper() for letter in named)


def _called_right(text: str, letters: str) -> frozenset[str]:
    """Find the last letter called the answer by a phrase, with others of the same sentence."""
    if not any(letter in text for letter in letters):
        return frozenset()
    patterns = _patterns_of(letters)
    named: set[str] = set()
    start = len(text)
    for letter in list(patterns.any.finditer(text))[: -_MAX_LETTERS - 1 : -1]:
        at, end = letter.span()
        if named and re.search(r"[.;!?\n]\s", text[end:start]):
            break
        before = text[max(0, at - 80) : at]
        phrase = _PHRASE.search(before)
        if phrase and patterns.head.match(text, at) and not _GOES_ON.match(text, end):
            before = before[: phrase.start()]
        elif not _CALLED.match(text, end, end + 140) or _NAME.search(before):
            continue
        if not _DENIED.search(before):
            named.add(letter[1])
            start = at
            if (both := _BOTH.search(before)) and both[1] in letters:
                named.add(both[1])
    return frozenset(named)


def _by_lines(text: str, letters: str, options: tuple[str, ...]) -> frozenset[str]:
    """Read last lines that are letters, a first or last line like `C) Paris`, or a text."""
    if not options and not any(letter in text for letter in letters):
        return frozenset()
    patterns = _patterns_of(letters)
    alone: frozenset[str] = frozenset()
    for line in reversed(text.rsplit("\n", 2 * len(letters))):
        if line.strip() and not (len(line) < 60 and patterns.alone.fullmatch(line.strip())):
            break
        alone |= _named(line.strip(), letters, ())
    if alone:
        return alone
    listed = len(set(patterns.lines.findall(text))) > 1
    first, _, rest = text.partition("\n")
    last = text[text.rfind("\n") + 1 :].strip()
    if not listed or rest[:1] in ("", "\n"):
        for line in (first,) if listed else (last, first):
            mark = patterns.lines.match(line)
            if mark and not (mark[1] == "A" and line[mark.end() - 1] == ":"):  # a dialogue
                return _named(line.strip(), letters, options)
    return frozenset() if listed else _by_last_sentence(last, letters, options)


def _by_text(value: str, letters: str, options: tuple[str, ...]) -> str:
    """Return the letter of the one option whose text is the value, or its first clause; or ""."""
    if not options:
        return ""
    texts = [_plain(option) for option in options]
    plain = _plain(value)
    for clause in (plain, re.split(r", | because | since | [–—] ", plain, maxsplit=1)[0]):
        if texts.count(clause) == 1:
            others = [text for text in texts if text not in ("", clause)]
            if clause != plain and any(_is_in(other, plain) for other in others):
                return ""
            return letters[texts.index(clause)]
    return ""


def _by_last_sentence(line: str, letters: str, options: tuple[str, ...]) -> frozenset[str]:
    """Find the one option whose text a last sentence ends with, as in `So it is Paris`."""
    sentence = re.split(r"(?<=\w\w)[.!?;]\s", line[-300:])[-1]
    if not options or re.search(r"\b(?:not|if|wrong|incorrect)\b|n['’]t\b|\?", sentence):
        return frozenset()
    plain = _plain(sentence).replace("*", "")
    plain = re.sub(r"\s(?:is|are)\s(?:the\s)?(?:correct|right|best)\b.*", "", plain)
    named = [i for i, text in enumerate(map(_plain, options)) if text and _is_in(text, plain)]
    is_end = len(named) == 1 and plain.endswith(_plain(options[named[0]]))
    return frozenset(letters[named[0]] if is_end else ())


def _is_in(text: str, sentence: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", sentence) is not None


@lru_cache(maxsize=4096)
def _plain(text: str) -> str:
    return " ".join(_fold(clean(text)).casefold().split())


# --- Grading ------------------------------------------------------------------------------------


def _check(
    *,
    letters: str = "ABCD",
    options: Sequence[str] = (),
    originals: Mapping[str, str] | None = None,
    **_others: object,
) -> None:
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


@grader(version=3, check=_check)
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
    `not A but B`, B counts. Two letters joined by a comma, a slash, a space, `and` or `or` are two
    answers, and so are a letter and another option's text: a 0.

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
        _check(letters=letters, options=options, originals=originals)
    shown_letters = letters[: len(options)] if options else letters
    correct = _correct_letters(target, shown_letters, originals)
    named = read_choice(answer, shown_letters, options=options)
    if not named:
        nothing = answer_text(answer) is None
        return NO_ANSWER if nothing else Grade(0.0, None, "no option is named as the answer")
    if len(named) == 1 and not originals:
        return Grade(float(named == correct), *named)
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
    return Grade(float(chosen == correct), shown(", ".join(sorted(chosen))), "; ".join(notes))


def _correct_letters(
    target: str | Collection[str], letters: str, originals: Mapping[str, str] | None
) -> frozenset[str]:
    if isinstance(target, str) and len(target) == 1 and target in letters and not originals:
        return frozenset(target)
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
