r"""The answer of a reply: the reply without its reasoning, and the answers stated in it.

    answer_text      the reply without reasoning and end markers; None where nothing is left
    final_answer     the same for a trajectory; None where its last turn was truncated
    statements       every stated answer, the last one first
    last_statement   the stated answer that counts for a grader of free text
    stated_answer    its value

An answer is stated by a box (`\boxed{7}`), a tag (`<answer>7</answer>`), a JSON key (`"answer":
7`), four hashes (`#### 7`), a label (`**Answer:** 7`) or a sentence (`the answer is 7`). Graders of
a letter, a number or an expression go through `statements` from the last one backwards and pass
over those that hold nothing of their kind. Every scan is linear in the text or bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple

from heldout._format import cut
from heldout.chat.reasoning import fenced, lowered, without_reasoning
from heldout.types import Trajectory

MAX_VALUE = 2000
"""Characters of one line, or of an unclosed tag, that are read."""
_MAX_BOX = 20_000  # characters of a box; a longer one counts as unclosed
_TAIL = 400  # characters at the end of a text in another script that are looked at first
_MAX_PLACES = 200  # places of each kind that are looked at, from the end of the text

# --- The reply ----------------------------------------------------------------------------------

_END_MARKER = re.compile(
    r"<\|[^<>|]{1,40}\|>|<｜[^<>]{1,40}｜>|</?s>"
    r"|<(?:eos|bos|pad|unk|eot|eod|end|stop|endoftext|end_of_\w{1,20})(?:_token)?>",
    re.IGNORECASE,
)


def answer_text(text: str | None) -> str | None:
    """Take reasoning and end markers out of a reply.

    Args:
        text: The reply as the model wrote it.

    Returns:
        What is left, without blank space around it; None where nothing is left.
    """
    if text is None:
        return None
    answer = without_reasoning(text)
    while answer.endswith(">"):
        marker = _END_MARKER.fullmatch(answer, max(0, answer.rfind("<")))
        if marker is None:
            break
        answer = answer[: marker.start()].rstrip()
    return answer or None


def final_answer(trajectory: Trajectory) -> str | None:
    """Return the answer of the last model turn.

    Args:
        trajectory: The conversation. Reasoning in a field of its own is never read.

    Returns:
        The turn's text without reasoning; None where it was truncated or only reasoned.
    """
    turn = trajectory.last_turn
    return None if turn is None or trajectory.stop.truncated else answer_text(turn.text)


def shown(text: str, limit: int = 500) -> str:
    """Shorten a text to what a metric keeps of it."""
    return cut(text, limit)


# --- Statements ---------------------------------------------------------------------------------


class Statement(NamedTuple):
    """One stated answer."""

    value: str | None
    """The answer without the markup around it; None where the statement breaks off."""
    kind: Literal["words", "box", "tag", "hashes", "key"]
    start: int
    """Where the statement begins in the text."""
    end: int
    """Where the search for the value ended: behind a box or tag, else near the value."""
    is_sentence: bool = False
    """Whether it is a sentence (`the answer is …`), which may be a remark about the answer."""


def statements(text: str) -> Iterator[Statement]:
    """Find the answers stated in a text.

    A statement is denied by `not`, `if`, `wrong` or `incorrect` directly before the answer, by `is
    wrong` behind it, or by a question mark. Programs in code blocks, struck out text and comments
    state nothing. Where the text goes on to make up a next question (`Question: …`), it ends there
    if an answer was stated before.

    Args:
        text: A reply without reasoning (`answer_text`).

    Yields:
        Each statement, the last one first.
    """
    text = visible_text(text)
    if "\n" in text and (":" in text or "：" in text):
        for question in islice(_NEXT_QUESTION.finditer(text, 0, 20_000), 20):
            before = text[: question.start()].strip()
            if before and next(_backwards(before), None) is not None:
                yield from _backwards(before)
                return
            if before and len(before) <= 60 and "\n" not in before and before[-1] not in ":：!":
                yield Statement(clean(before), "words", 0, len(before))
                break
    yield from _backwards(text)


_NEXT_QUESTION = re.compile(
    r"\n[ \t#*>]{0,6}(?:Question|Q|Problem|Exercise|User|Human)\b ?\d{0,3}[*_ ]{0,3}[:：]"
)


def last_statement(text: str) -> Statement | None:
    """Find the stated answer that counts where any text may be one.

    Args:
        text: A reply without reasoning.

    Returns:
        The last box, tag, key, `####` or label; without those, the last sentence (`the answer is
        …`), which is otherwise taken for a remark; None where nothing is stated.
    """
    sentence = None
    for statement in statements(text):
        if not statement.is_sentence:
            return statement
        sentence = sentence or statement
    return sentence


def stated_answer(text: str) -> str | None:
    r"""Return the answer that a text states.

    It looks for the last `\boxed{…}`, `<answer>…</answer>`, `"answer": …` (also `final_answer` and
    `correct_answer`), `#### 7` or `Answer: …`, whichever comes last, and without any of those for
    the last sentence `the answer is …`. A label or sentence states the rest of its sentence, or
    what stands below it. It is denied by `not`, `if` or `wrong` directly before the answer, by `is
    wrong` behind it, or by a question mark. A box that never closes is no answer, and no earlier
    statement replaces it.

    Args:
        text: A reply without reasoning.

    Returns:
        The stated answer without the markup around it; None where none is stated.
    """
    statement = last_statement(text)
    return statement.value if statement else None


_Reader = Callable[[str, int], Statement | None]


def _backwards(text: str) -> Iterator[Statement]:
    searched = _without_programs(text)
    if text[:1] in ("{", "`") and _JSON.fullmatch(text):  # its other keys state nothing
        read = (reader(text, at) for at, reader in _places(searched, 0))
        if keys := [statement for statement in read if statement and statement.kind == "key"]:
            yield from keys
            return
    # Searching other scripts is slow, and their end mostly has the answer.
    starts = (0,) if text.isascii() or len(text) <= _TAIL else (len(text) - _TAIL, 0)
    limit = len(text)
    for start in starts:
        for at, reader in _places(searched, start):
            if at < limit and (statement := reader(text, at)):
                limit = statement.start
                yield statement


def _places(text: str, start: int) -> list[tuple[int, _Reader]]:
    """Find where a statement may be, the last place first, and what reads it there."""
    low = lowered(text[start:])
    pieces: list[tuple[str, _Reader]] = [("answer", _read_answer)] if "answer" in low else []
    if "ox" in low:
        pieces += [("oxed", _read_box), ("fbox", _read_box)]
    if "#" in low:
        pieces.append(("####", _read_hashes))
    if "answer" not in low or not text.isascii():
        for guard, words in _ASCII_WORDS if text.isascii() else _ALL_WORDS:
            if guard in low:
                pieces += [(word, _READERS[word]) for word in words]
    places = [(start + at, reader) for piece, reader in pieces for at in _find_all(low, piece)]
    places.sort(key=_place, reverse=True)
    return places


def _place(place: tuple[int, _Reader]) -> int:
    return place[0]


def _find_all(text: str, piece: str) -> list[int]:
    """Find the last places of a piece."""
    places: list[int] = []
    at = len(text)
    while len(places) < _MAX_PLACES and (at := text.rfind(piece, 0, at)) >= 0:
        places.append(at)
    return places


# --- Boxes --------------------------------------------------------------------------------------

_OPENED = re.compile(r"\s{0,3}(?:\{|(?<=[\sd])([^\W_])(?![\w}]))")
_BRACES = re.compile(r"[{}]|\\.", re.DOTALL)
_JOINED = re.compile(
    r"(?:[\s$]|\\[()])*(?:[,;/|]|\\q?quad|\\lor|,?\s*(?:and|or|\\(?:text|mbox)\s?\{\s*(?:and|or)\s*\})"
    r"(?:\s(?:maybe|possibly|perhaps|also))?)(?:[\s$]|\\[()]|\\q?quad"
    r"|\\(?:text|mbox)\s?\{\s*(?:and|or)\s*\})*",
    re.IGNORECASE,
)
_MAX_GAP, _MAX_JOINED = 60, 16


class Box(NamedTuple):
    r"""One `\boxed{…}`."""

    inside: str | None
    """The content, without blank space around it; None where the box never closes."""
    start: int
    end: int


def last_box(text: str) -> Box | None:
    r"""Find the last `\boxed{…}` with its backslash and braces, as a format check wants it."""
    for at in _find_all(text, "\\boxed"):
        if box := _box_at(text, at + 2):
            return box
    return None


def _box_at(text: str, name: int) -> Box | None:
    r"""Read the box whose `oxed`, or `fbox`, stands at a place."""
    start = name - 1
    if text.startswith("b", start) and text.startswith("\\", start - 1):
        start -= 1
    # `\b` is what a careless JSON reader makes of the beginning, and others drop the backslash.
    if start < 0 or text[start] not in ("\\b\b" if text[name] == "o" else "\\"):
        return None
    opened = _OPENED.match(text, name + 4)
    if opened is None:
        return None
    if opened[1]:  # without a backslash, `boxed a gift` is no box
        return Box(opened[1], start, opened.end()) if text[start] != "b" else None
    depth = 1
    for brace in _BRACES.finditer(text, opened.end(), opened.end() + _MAX_BOX):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if not depth:
            return Box(text[opened.end() : brace.start()].strip(), start, brace.end())
    return Box(None, start, len(text))


def _read_box(text: str, at: int) -> Statement | None:
    r"""Read a box, with those joined to it: `\boxed{1} \text{ and } \boxed{2}` is `1, 2`."""
    box = _box_at(text, at)
    if box is None:
        return None
    if box.inside is None:
        return Statement(None, "box", box.start, box.end)
    values = [clean(box.inside)]
    first = box
    while len(values) < _MAX_JOINED and (before := _joined_box(text, first)):
        first = before
        values.insert(0, clean(before.inside or ""))
    value = ", ".join(dict.fromkeys(filter(None, values)))
    return Statement(value, "box", first.start, box.end) if value else None


def _joined_box(text: str, box: Box) -> Box | None:
    """Find the box that is joined to another, if any is."""
    if "}" not in text[max(0, box.start - _MAX_GAP) : box.start]:
        return None
    window = max(0, box.start - _MAX_GAP - 200)
    name = max(text.rfind("oxed", window, box.start), text.rfind("fbox", window, box.start))
    before = _box_at(text, name) if name > 0 else None
    if before is None or before.inside is None or not 0 < box.start - before.end <= _MAX_GAP:
        return None
    return before if _JOINED.fullmatch(text, before.end, box.start) else None


# --- Hashes, keys and tags ----------------------------------------------------------------------

_HASHES = re.compile(r"####[ \t]{0,4}([-+−$€£]{0,2}\d[\d.,/ ]{0,60}%?(?<![. ]))[. \t]*(?=\n|\Z)")
_KEY = re.compile(r"([\"'])(?:final|correct)?[_ -]?answer\1\s{0,20}:\s{0,20}", re.IGNORECASE)
_JSON = re.compile(r"(?:`{3,9}(?:json)?\s{0,9})?\{.*\}\s{0,9}`{0,9}", re.DOTALL | re.IGNORECASE)
_IS_KEY = re.compile(r"[\"']\s{0,20}:")
_TAG = re.compile(r"<((?:final[_-]?)?answer)>", re.IGNORECASE)
_decoder = json.JSONDecoder()


def _read_hashes(text: str, at: int) -> Statement | None:
    hashes = _HASHES.match(text, at) if at == 0 or text[at - 1] == "\n" else None
    return Statement(hashes[1], "hashes", at, hashes.end()) if hashes else None


def _read_key(text: str, at: int) -> Statement | None:
    start = max(text.rfind('"', max(0, at - 10), at), text.rfind("'", max(0, at - 10), at), 0)
    key = _KEY.match(text, start)
    if key is None:
        return None
    piece = text[key.end() : key.end() + 5 * MAX_VALUE]
    if piece[:1] == "'":
        close = piece.find("'", 1)
        value = piece[1:close].strip() if close > 0 else ""
        return Statement(value or None, "key", start, key.end() + max(close, 0))
    try:
        content, length = _decoder.raw_decode(piece)
    except (ValueError, RecursionError):
        return None
    value = content.strip() if isinstance(content, str) else piece[:length]
    end = key.end() + length
    return Statement(None if content is None or not value else value, "key", start, end)


def _read_tag(text: str, at: int) -> Statement | None:
    opened = _TAG.match(text, max(0, text.rfind("<", max(0, at - 8), at)))
    if opened is None or opened.end() <= at:
        return None
    start, end = opened.span()
    inside = text[end : end + 10 * MAX_VALUE]
    # Without a closing tag, generation was stopped at it.
    close = lowered(inside).find(f"</{opened[1].lower()}>")
    value = clean(inside[: close if close >= 0 else MAX_VALUE])
    return Statement(value, "tag", start, end + max(close, 0)) if value else None


# --- Labels and sentences -----------------------------------------------------------------------

# Words that announce an answer besides `answer`, by a part of them that most texts do not have.
_ASCII_WORDS = (
    *(("ans", ("ans",)), ("antwo", ("antwort", "antwoord")), ("svar", ("svar",))),
    *(("sposta", ("resposta", "risposta")), ("respuesta", ("respuesta",))),
    *(("cevap", ("cevap",)), ("jawaban", ("jawaban",))),
)
_ALL_WORDS = (
    *_ASCII_WORDS,
    *(("é", ("réponse",)), ("odpow", ("odpowiedź",)), ("odpov", ("odpověď",))),
    *(("ı", ("yanıt",)), ("ответ", ("ответ",)), ("відп", ("відповідь",)), ("ά", ("απάντηση",))),
    *(("đ", ("đáp án",)), ("â", ("câu trả lời",)), ("解", ("解答", "正解"))),
    *(("答", ("答案", "答え", "回答", "正答", "答")), ("답", ("정답", "답변", "답"))),
    *(("ج", ("الإجابة", "الاجابة", "الجواب", "إجابة")), ("उ", ("उत्तर",)), ("উ", ("উত্তর",))),
    *(("ค", ("คำตอบ",)), ("ת", ("תשובה",))),
)
_IS = (
    r"is|are|was|(?:would|should|must|will|has to|have to|seems to|appears to|turns out to) be"
    r"|comes (?:out )?to(?: be)?|becomes|equals|ist|sind|lautet|lauten|est|sont|es|son|é|è|são|är"
    r"|er|adalah|ialah|jest|je|ni|là|είναι"
)
_ADVERBS = (
    r"thus|therefore|then|clearly|simply|indeed|just|actually|(?:most )?(?:probably|likely)|now"
    r"|definitely|obviously|certainly|exactly|equal to|in fact"
)
_QUALIFIERS = (
    r"choice|option|key|letter|value|here|correct[ae]|correta|corretta|exact[ae]|esatta|juste"
    r"|finale?|yang (?:benar|tepat)|sahihi|đúng|cuối cùng|الصحيحة|الصحيح|النهائية|הנכונה|הסופית"
)
_SEPARATOR = re.compile(
    rf"(?:s|es|en|et|nya|\(s\)|ที่ถูกต้อง)?(?:[ _](?:{_QUALIFIERS})){{0,2}}"
    r"(?: ?\((?![^\W\d_]\))[^()\n]{0,40}\))?"  # (in km), but not (C)
    r"(?P<markup>[*_`~\"'”’\])]{0,8}[ \t]{0,8})"
    r"(?:(?P<colon>(?:(?<=\s)(?:in|for|to|of) [^\n.:?!]{1,40}(?=[:：]))?"
    r"(?:[:：=＝]|->|=>|→|⇒|】[:：]?)(?:</?[biu]>|</?strong>)?[*_]{0,4})"
    r"|(?P<dash>[-–—](?=\s))"
    r"|(?P<is>(?:,? (?:then|therefore|thus|in [^\n,.:]{1,30}), )?"
    r"(?:(?:to|for|of|in|that|from|among|I|we|you) "
    r"(?:[^\n.:?!\"“]{0,30}(?:\"[^\"\n]{1,200}\"|“[^”\n]{1,200}”)|[^\n.:?!\"“]{1,80}?) )?"
    rf"(?:{_IS})(?![\w'’])(?! not\b| still | yet )"
    rf"(?:,? (?:{_ADVERBS})\b,?)?(?: ?[:：])?[*_]{{0,4}}"
    r"(?: (?:la|le|el|a|o|η|die)(?= [(\[*]{0,4}[^\W\d_](?!\w)))?)"
    r"|(?P<particle>(?:应该是|應該是|应该选|应为|應為|是|为|為|选择|选|選|は|が|는|은|이|가|हैं|है|هي|هو"
    r"|คือ|হল|হলো|היא|הוא)[:：,，、]?[*_]{0,4})"
    r"|(?P<copula>(?<=\s)(?=[(\[*]{0,3}[^\W_]{1,3}[)\]*]{0,3} (?:है|हैं)(?!\w)))"
    r"|(?P<cell>\|(?=[^|\n]{0,2000}\w)(?![^\n]{0,2000}\n[ \t|:]{0,200}--))"
    r"|(?P<heading>(?=\n|\Z))"
    r"|(?P<bare>(?<=[\s*_])(?=[(\[*]{0,3}[^\W\d_][)\]*.]{0,4}[ \t]*(?:\n|\Z)"
    r"|[-+−$€£¥]{0,2}[0-9]\S{0,40}[ \t]*(?:\n|\Z))))",
    re.IGNORECASE,
)
_SENTENCES = ("is", "particle", "copula")
_DETERMINER = (
    r"(?:the|my|our|la|le|die|de|el|and|so|thus|hence|therefore|final|correct|short|best|right|is)"
)
_LINE_START = re.compile(  # what may stand before a heading, a dash or a table cell
    rf"[\s#>*_`~\-•|\[(\"'“]{{0,12}}(?:{_DETERMINER}[\s,*_`]{{1,4}}){{0,4}}\Z", re.IGNORECASE
)
_LABEL_START = re.compile(rf"(?:\A|[^\w\s]|\b{_DETERMINER})\Z", re.IGNORECASE)
_DENYING = frozenset(("not", "if", "wrong", "incorrect", "cannot"))
_BETWEEN = frozenset(
    ("the", "my", "our", "a", "an", "this", "that", "final", "correct", "right", "be", "is")
)
_DENIED_BEHIND = re.compile(
    r"\S{1,24}\s(?:is|was|are)(?:n['’]t|\s(?:\w{1,12}\s)?(?:not|wrong|incorrect))\b", re.IGNORECASE
)


def _read_answer(text: str, at: int) -> Statement | None:
    behind = text[at + 6 : at + 7]
    if behind == ">":
        return _read_tag(text, at)
    if behind in ('"', "'") and _IS_KEY.match(text, at + 6):
        return _read_key(text, at)
    return _read_words(text, at, "answer")


def _make_reader(word: str) -> _Reader:
    def read(text: str, at: int) -> Statement | None:
        is_answer = word == "ans" and text[at : at + 6].lower() == "answer"
        return None if is_answer else _read_words(text, at, word)

    return read


_READERS = {word: _make_reader(word) for _, words in _ALL_WORDS for word in words}


def _read_words(text: str, at: int, word: str) -> Statement | None:
    """Read the label or sentence that a word at a place announces."""
    plain = word.isascii()
    if plain and at and text[at - 1].isalnum():
        return None  # part of another word
    separator = _SEPARATOR.match(text, at + len(word))
    if separator is None:
        return None
    kind = separator.lastgroup
    if kind == "dash" and not separator["markup"]:
        return None  # answer-dependent
    before = text[max(text.rfind("\n", max(0, at - 80), at) + 1, at - 80, 0) : at]
    if before and not before.isspace():
        if kind == "colon":
            fits = not plain or bool(_LABEL_START.search(before.rstrip(" *_`\t")))
        elif kind in _SENTENCES or (kind == "dash" and not plain):
            fits = True
        else:
            fits = bool(_LINE_START.match(before))
        if not fits or _is_denied(before):
            return None
    end = separator.end()
    close = text.find("|", end, end + MAX_VALUE) if kind == "cell" else -1
    value = clean(text[end:close]) if close >= 0 else _value_at(text, end)
    is_sentence = kind in _SENTENCES
    if not value or _DENIED_BEHIND.match(value):
        return None
    if value[-1] == "?" and len(value) > 1 and (is_sentence or " " not in value):
        return None
    return Statement(value, "words", at, end, is_sentence)


def _is_denied(before: str) -> bool:
    """Tell whether `not`, `if` or `wrong` stands directly before an announcing word."""
    for word in reversed(before.split()[-4:]):
        word = word.strip("*_").lower()
        if word in _DENYING or word.endswith(("n't", "n’t")):
            return True
        if word not in _BETWEEN:
            return False
    return False


# --- Values -------------------------------------------------------------------------------------

_BULLET = re.compile(r"(?:[-*•>+]|\d{1,2}[.)])\s+")
_STOP = re.compile("[.!?。！？]")
_SENTENCE_END = re.compile(r"[.!?][\"'”’)*_]{0,4}(?=\s)|[。！？](?=.)")
_ABBREVIATIONS = frozenset(
    ("st", "dr", "mr", "mrs", "ms", "jr", "sr", "prof", "vs", "etc", "mt", "ft", "inc", "co", "ltd")
)
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")  # p.m, U.S, C
_NEXT_SENTENCE = re.compile(
    r"\s*[*_]{0,3}(?:the|it|its|it's|this|that|these|he|she|they|we|i|you|there|in|so|but|because"
    r"|since|however|therefore|thus|hence|note|as|options?)\b",
    re.IGNORECASE,
)
_BELOW = re.compile(r"(?:as follows|the following|below|here)\W{0,4}\Z", re.IGNORECASE)


def _value_at(text: str, at: int) -> str | None:
    """Read what is stated at a place: the rest of the sentence, or what comes next below."""
    line, end = _line_at(text, at)
    if len(line) < 4 and line.isalnum():
        return line
    value = first_sentence(line)
    if value and not _BELOW.match(value):
        return value
    for _ in range(4):
        if end < 0:
            return None
        at = end + 1
        line, end = _line_at(text, at)
        if line.startswith(("```", "~~~")):
            block = next(fenced(text[at : at + 10 * MAX_VALUE]), None)
            if block:
                return text[at + block.inner : at + block.inner_end] if block.closed else None
        if line in ("$$", "\\["):
            close = text.find("$$" if line == "$$" else "\\]", at + len(line))
            return clean(text[at + len(line) : close]) if close >= 0 else None
        if _BULLET.match(line):
            return _items(text[at : at + 10 * MAX_VALUE])
        if value := first_sentence(line):
            return value
    return None


def _line_at(text: str, at: int) -> tuple[str, int]:
    end = text.find("\n", at)
    return text[at : min(end if end >= 0 else len(text), at + MAX_VALUE)].strip(), end


def _items(text: str) -> str | None:
    """Read a list, one item per line: the first item alone would be half an answer."""
    items: list[str] = []
    for line in text.split("\n"):
        bullet = _BULLET.match(line.strip())
        if bullet:
            items.append(first_sentence(line.strip()[bullet.end() :]))
        elif line.strip():
            break
    return "\n".join(filter(None, items)) or None


@lru_cache(maxsize=4096)  # answers are short, and few of them differ
def first_sentence(line: str) -> str:
    """Return the first sentence of a line, without the markup around it."""
    close = line.find("</")
    if close >= 0 and line[close:].lower().startswith("</answer>"):
        line = line[:close]
    if _STOP.search(line, 0, len(line) - 1):
        for stop in islice(_SENTENCE_END.finditer(line), 20):
            if _ends_sentence(line, stop):
                return clean(line[: stop.end()])
    return clean(line)


def _ends_sentence(line: str, stop: re.Match[str]) -> bool:
    """Tell a full stop from that of `St. Louis`, `5 p.m.`, `No. 5` or `5! = 120`."""
    words = line[max(0, stop.start() - 80) : stop.start()].split()
    word = words[-1].lower().lstrip("(*_\"'") if words else ""
    behind = line[stop.end() : stop.end() + 40].lstrip()
    if not word or word in _ABBREVIATIONS or (word == "no" and behind[:1].isdigit()):
        return False
    if line[stop.start()] == "!" and word[-1:].isdigit() and behind[:1] in tuple("=+-×/*<>"):
        return False
    return not _INITIALS.fullmatch(word) or bool(_NEXT_SENTENCE.match(behind))


_HTML = re.compile(
    r"</?(?:b|i|u|em|strong|p|br|code|span|mark|div|li|td|sup|sub|h[1-6])\s{0,3}/?>", re.IGNORECASE
)
_PAIRS = {'"': '"', "“": "”", "'": "'", "‘": "’", "$": "$", "_": "_", "«": "»", "「": "」"}
_LATEX = (
    *(("\\(", "\\)"), ("\\[", "\\]"), ("\\text{", "}"), ("\\mathrm{", "}")),
    *(("\\textbf{", "}"), ("\\mathbf{", "}")),
)
_STOPS = ".。,;"
_FIRST, _LAST = frozenset((*_PAIRS, *"*`\\<.,;:- ")), frozenset((*_STOPS, *"*`_> "))


def clean(value: str) -> str:
    """Take markup, quotes, math delimiters and the full stop from around a value.

    Args:
        value: A piece of an answer.

    Returns:
        The bare value; "" where there is nothing but marks.
    """
    value = value.strip()
    if _is_bare(value):  # as most are
        return value
    if value.count(".") > 1 and not value.strip(" .*_`"):
        return ""
    for _ in range(12):  # each round takes one layer off
        before = value
        value = value.strip().strip("*`").strip()
        if len(value) > 1 and value[-1] in _STOPS:
            value = value[:-1]
        if len(value) > 1 and value[-1] == "_" and value.count("_") == 1:
            value = value[:-1]
        first = value[:1]
        if len(value) > 1 and _PAIRS.get(first) == value[-1] and _wraps(value, first):
            value = value[1:-1]
        elif first == "\\":
            value = _without_latex(value)
        elif first == "<" and (tag := _HTML.match(value)):
            value = value[tag.end() :]
        if value[-1:] == ">" and (tag := _HTML.fullmatch(value, max(0, value.rfind("<")))):
            value = value[: tag.start()]
        if _is_bare(value):
            return value
        if value == before:
            break
    return value if value.strip(".,;:-*_`\"'$ ") or value in ("-", ",", ".", ";", ":") else ""


def _is_bare(value: str) -> bool:
    return bool(value) and value[0] not in _FIRST and value[-1] not in _LAST


def _wraps(value: str, mark: str) -> bool:
    """Tell whether the marks at both ends belong together, as they do not in `"a" and "b"`."""
    return _PAIRS[mark] not in value[1:-1] or value == mark * 2 or value[1:2] == mark


def _without_latex(value: str) -> str:
    for opening, closing in _LATEX:
        if value.startswith(opening) and value.endswith(closing):
            inner = value[len(opening) : -len(closing)]
            if closing not in inner:
                return inner
    return value


# --- What states nothing ------------------------------------------------------------------------

_STRUCK = re.compile(r"(?<!~)~~(?![\s~])[^~\n]{1,400}(?<!\s)~~(?!~)")
_PROSE = frozenset(
    (
        "",
        "json",
        "text",
        "txt",
        "plaintext",
        "markdown",
        "md",
        "latex",
        "tex",
        "math",
        "xml",
        "yaml",
    )
)


def visible_text(text: str) -> str:
    """Blank out what is struck out or a comment, every other character at its place."""
    if "~" in text and "~~" in text:
        text = _STRUCK.sub(lambda struck: " " * len(struck[0]), text)
    if "<" not in text or "<!--" not in text:
        return text
    parts: list[str] = []
    at = 0
    while (start := text.find("<!--", at)) >= 0 and (end := text.find("-->", start)) >= 0:
        parts += (text[at:start], " " * (end + 3 - start))
        at = end + 3
    return "".join((*parts, text[at:]))


def _without_programs(text: str) -> str:
    """Blank out programs in code blocks: `print("Answer:", x)` states nothing."""
    if ("`" not in text or "```" not in text) and ("~" not in text or "~~~" not in text):
        return text
    parts: list[str] = []
    at = 0
    for block in fenced(text):
        if block.language not in _PROSE:
            parts += (text[at : block.inner], " " * (block.inner_end - block.inner))
            at = block.inner_end
    return "".join((*parts, text[at:])) if at else text


# --- Code blocks --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A fenced code block."""

    language: str
    """In lower case; "" where none is named."""
    code: str
    closed: bool = True
    """False where the fence never closes: the code may be cut off."""


def code_blocks(text: str) -> tuple[CodeBlock, ...]:
    """Return the fenced code blocks of a text, in order; the last one may be unclosed."""
    return tuple(
        CodeBlock(block.language, text[block.inner : block.inner_end], block.closed)
        for block in fenced(text)
    )


def last_code_block(text: str, *languages: str) -> str | None:
    """Return the code of the last closed block.

    Args:
        text: The text.
        *languages: The block's language is one of these, where any is given.

    Returns:
        The code; None where there is no such block.
    """
    names = {language.lower() for language in languages}
    code = None
    for block in fenced(text):
        if block.closed and (not names or block.language in names):
            code = text[block.inner : block.inner_end]
    return code
