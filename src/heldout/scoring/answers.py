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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from typing import Literal, NamedTuple

from heldout._format import cut
from heldout.chat.reasoning import fenced, without_reasoning
from heldout.types import Trajectory

MAX_VALUE = 2000
"""Characters of one line, or of an unclosed tag, that are read."""
_MAX_BOX = 20_000  # characters of a box; a longer one counts as unclosed
_MAX_PLACES = 400  # places that are looked at, from the end of the text


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


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
    is_sentence: bool = False
    """Whether it is a sentence (`the answer is …`), which may be a remark about the answer."""


_NEXT_QUESTION = re.compile(
    r"\n[ \t#*>]{0,6}(?:Question|Q|Problem|Exercise|User|Human)\b ?\d{0,3}[*_ ]{0,3}[:：]"
)


def statements(text: str) -> Iterator[Statement]:
    """Find the answers stated in a text.

    Programs in code blocks, struck out text and comments state nothing. Where the text goes on to
    make up a next question (`Question: …`), it ends there if an answer was stated before; a few
    words that stand alone before it are an answer that goes before all others.

    Args:
        text: A reply without reasoning (`answer_text`).

    Returns:
        The statements, the last one first.
    """
    text = visible_text(text)
    if text.find("\n") != text.rfind("\n"):
        for question in islice(_NEXT_QUESTION.finditer(text, 0, 20_000), 20):
            before = text[: question.start()].strip()
            if before and next(_backwards(before), None) is not None:
                return _backwards(before)
            if before and len(before) <= 60 and "\n" not in before and before[-1] not in ":：!":
                return chain([Statement(clean(before), "words", 0)], _backwards(text))
    if text[:1] in ("{", "`") and _JSON.fullmatch(text):  # its other keys state nothing
        keys = [statement for statement in _backwards(text) if statement.kind == "key"]
        return iter(keys) if keys else _backwards(text)
    return _backwards(text)


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
    what stands below it; of `not A but B` it states B. It states nothing with `not`, `if` or
    `wrong` directly before it (`I don't think the answer is A`), with `is wrong` behind it, or as a
    question. A box that never closes is no answer, and no earlier statement replaces it.

    Args:
        text: A reply without reasoning.

    Returns:
        The stated answer without the markup around it; None where none is stated.
    """
    statement = last_statement(text)
    return statement.value if statement else None


# Parts of what announces an answer, and how many letters of it stand before them: no search has to
# fold case. Words of other scripts are looked for where their first character occurs; other words
# in Latin letters count behind all else, and only where a plain text has no `answer`.
_MARKS = {"nswer": 1, "NSWER": 1, "\\boxed": 0, "####": 0}
_OTHER_WORDS = {
    **{"ans": 0, "Ans": 0, "ntwo": 1, "sposta": 2, "spuesta": 2, "evap": 1, "awaban": 1},
}
_OTHER_SCRIPTS = {
    **{"éponse": 1, "ź": 8, "anıt": 1, "твет": 1, "ідповідь": 1, "πάντηση": 1, "áp án": 1},
    **{
        "答": 0,
        "正解": 0,
        "답": 0,
        "جابة": 0,
        "جواب": 0,
        "उत्तर": 0,
        "উত্তর": 0,
        "คำตอบ": 0,
        "תשובה": 0,
    },
}
_OFFSETS = {**_MARKS, **_OTHER_WORDS, **_OTHER_SCRIPTS}
_JSON = re.compile(r"(?:`{3,9}(?:json)?\s{0,9})?\{.*\}\s{0,9}`{0,9}", re.DOTALL | re.IGNORECASE)


def _backwards(text: str) -> Iterator[Statement]:
    searched = _without_programs(text)
    first = _MARKS
    if not text.isascii():
        first = first | {mark: 0 for mark in _OTHER_SCRIPTS if mark[0] in text}
    has_answer = False
    for group in (first, _OTHER_WORDS):
        if has_answer and text.isascii():
            return
        marks = {mark: at for mark in group if (at := searched.rfind(mark)) >= 0}
        has_answer = "nswer" in marks
        limit = len(text)
        for _ in range(_MAX_PLACES):
            if not marks:
                break
            mark = max(marks, key=marks.__getitem__) if len(marks) > 1 else next(iter(marks))
            at = marks.pop(mark)
            if (before := searched.rfind(mark, 0, at)) >= 0:
                marks[mark] = before
            if at < limit and (statement := _read(text, at, mark)):
                limit = statement.start
                yield statement


def _read(text: str, at: int, mark: str) -> Statement | None:
    if mark == "\\boxed":
        return _read_box(text, at)
    return _read_hashes(text, at) if mark == "####" else _read_word(text, at - _OFFSETS[mark])


# --- Boxes, hashes, keys and tags ---------------------------------------------------------------

_BOX = re.compile(r"\\boxed\s{0,3}(?:\{|(?<=[\sd])([^\W_])(?![\w}]))")
_BRACES = re.compile(r"[{}]|\\.", re.DOTALL)
_AND = r"\\(?:text|mbox)\s?\{\s*(?:and|or)\s*\}"
_JOINED = re.compile(
    rf"(?:[\s$]|\\[()])*(?:[,;/|]|\\q?quad|\\lor|,?\s*(?:and|or|{_AND}))(?:\s\w{{4,8}})?"
    rf"(?:[\s$]|\\[()]|\\q?quad|{_AND})*",
    re.IGNORECASE,
)
_MAX_GAP, _MAX_JOINED = 60, 16
_PERCENT = re.compile(r"[\s$]{0,4}\\?%")
_HASHES = re.compile(r"####[ \t]{0,4}([-+−$€£]{0,2}\d[\d.,/ ]{0,60}%?(?<![. ]))[. \t]*(?=\n|\Z)")
_KEY = re.compile(r'"(?:final|correct)?[_ -]?answer"\s{0,20}:\s{0,20}', re.IGNORECASE)
_TAG = re.compile(r"<((?:final[_-]?)?answer)>", re.IGNORECASE)
_RAW = re.compile(r'"\s{0,9}([^"\n]{0,2000}[^"\s])\s{0,9}"')
_decoder = json.JSONDecoder()


class Box(NamedTuple):
    r"""One `\boxed{…}`."""

    inside: str | None
    """The content, without blank space around it; None where the box never closes."""
    start: int
    end: int


def last_box(text: str) -> Box | None:
    r"""Find the last `\boxed{…}` with its backslash and braces, as a format check wants it."""
    at = len(text)
    for _ in range(_MAX_PLACES):
        at = text.rfind("\\boxed", 0, at)
        if at < 0 or (box := _box_at(text, at)):
            return box if at >= 0 else None
    return None


def _box_at(text: str, at: int) -> Box | None:
    opened = _BOX.match(text, at)
    if opened is None:
        return None
    if opened[1]:
        return Box(opened[1], at, opened.end())
    depth = 1
    for brace in _BRACES.finditer(text, opened.end(), opened.end() + _MAX_BOX):
        if brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth -= 1
        if not depth:
            return Box(text[opened.end() : brace.start()].strip(), at, brace.end())
    return Box(None, at, len(text))


def _read_box(text: str, at: int) -> Statement | None:
    r"""Read a box, with those joined to it: `\boxed{1} \text{ and } \boxed{2}` is `1, 2`."""
    first = last = _box_at(text, at)
    if first is None or last is None:
        return None
    if first.inside is None:
        return Statement(None, "box", first.start)
    values = [clean(first.inside)]
    while len(values) < _MAX_JOINED:
        at = text.rfind("\\boxed", max(0, first.start - _MAX_GAP - 200), first.start)
        before = _box_at(text, at) if at >= 0 else None
        if not before or not before.inside or not 0 < first.start - before.end <= _MAX_GAP:
            break
        if not _JOINED.fullmatch(text, before.end, first.start):
            break
        first = before
        values.insert(0, clean(before.inside))
    value = ", ".join(dict.fromkeys(filter(None, values)))
    if value and "%" not in value and _PERCENT.match(text, last.end):
        value += "\\%"
    return Statement(value, "box", first.start) if value else None


def _read_hashes(text: str, at: int) -> Statement | None:
    hashes = _HASHES.match(text, at) if at == 0 or text[at - 1] == "\n" else None
    return Statement(hashes[1], "hashes", at) if hashes else None


def _read_key(text: str, key: re.Match[str]) -> Statement | None:
    piece = text[key.end() : key.end() + 5 * MAX_VALUE]
    try:
        content, length = _decoder.raw_decode(piece)
    except (ValueError, RecursionError):
        raw = _RAW.match(piece)  # LaTeX with its backslashes as they are
        return Statement(raw[1], "key", key.start()) if raw else None
    value = content.strip() if isinstance(content, str) else piece[:length]
    return Statement(None if content is None or not value else value, "key", key.start())


def _read_tag(text: str, start: int) -> Statement | None:
    opened = _TAG.match(text, start)
    if opened is None:
        return None
    inside = text[opened.end() : opened.end() + 10 * MAX_VALUE]
    close = re.search(f"</{opened[1]}>", inside, re.IGNORECASE)
    # Without a closing tag, generation was stopped at it.
    value = clean(inside[: close.start() if close else MAX_VALUE])
    return Statement(value, "tag", start) if value else None


# --- Labels and sentences -----------------------------------------------------------------------

_WORD = re.compile(
    r"(?<![^\W_])(?:answers?|ans|antwort(?:en)?|antwoord|r[ei]sposta|respuesta|cevap"
    r"|jawaban(?:nya)?|réponse|odpowiedź|yanıt|ответ|відповідь|απάντηση|đáp án)(?![^\W_])"
    r"|答[案え]?|正解|답변?|جابة|جواب|उत्तर|উত্তর|คำตอบ(?:ที่ถูกต้อง)?|תשובה",
    re.IGNORECASE,
)
_GAP = (  # choice, correcta, (in km), to the question; but not (C)
    r"(?:\(s\))?(?:[ _](?!(?:the|this|a|these|it|is|are|was)\b)[^\W\d_]{1,12}){0,2}?"
    r"(?: ?\((?![^\W\d_]\))[^()\n]{0,40}\))?"
    r"(?: (?:to|for|of|in|that|from|I|we) "
    r"(?:[^\n.:?!\"“]|\"[^\"\n]{1,200}\"|“[^”\n]{1,200}”){1,80}?)?"
)
_ADVERB = (
    r"(?:thus|therefore|then|clearly|simply|indeed|just|actually|(?:most )?(?:probably|likely)|now"
    r"|definitely|exactly|equal to)"
)
_LINK = re.compile(
    rf"(?P<sentence>{_GAP}[*_]{{0,4}},? (?:{_ADVERB},? )?"
    r"(?:is|IS|are|was|(?:would|should|must|will|has to|seems to|appears to|turns out to) be"
    r"|becomes|comes (?:out )?to(?: be)?|equals|ist|sind|lautet|est|es|son|é|è|är|er|adalah|jest"
    r"|là|είναι)(?![\w'’])(?! still | yet )"
    rf"(?:,? {_ADVERB}\b,?)?[:：]?[*_]{{0,4}}"
    r"(?: (?:la|le|el|a|o|die)(?= [(*]{0,4}[^\W\d_](?!\w)))?"
    rf"|{_GAP}\s?(?:应该是|應該是|应为|是|为|為|选|選|は|が|는|은|이|가|है|هي|هو|คือ|হল|היא|הוא)"
    r"[:：,，、]?[*_]{0,4}"
    r"|\s(?=[(\[*]{0,3}\w{1,3}[)\]*]{0,3} है))"
    rf"|(?P<label>{_GAP}[*_`~\"'”’\])]{{0,8}}[ \t]{{0,8}}(?:[:：=＝]|->|=>|→|】[:：]?)"
    r"(?:</?[biu]>|</?strong>)?[*_]{0,4})"
    r"|(?P<line>[*_`~]{0,8}[ \t]{1,8}[-–—](?=\s)"
    r"|[*_ ]{0,8}(?P<cell>\|)(?=[^|\n]{0,2000}\w)(?![^\n]{0,2000}\n[ \t|:]{0,200}--)"
    r"|[*_`~]{0,8}[ \t]{0,8}(?=\n|\Z)"
    r"|[*_]{0,8}[ \t]{1,8}[*_]{0,8}"
    r"(?=[(\[]{0,3}(?:[^\W\d_]|[-+−$€£]{0,2}\d\S{0,40})[)\]*_.]{0,4}[ \t]*(?:\n|\Z)))"
)
_DETERMINERS = _words(
    "the my our la le die de el and so thus hence therefore final correct short best right is"
)
_DENYING = _words("not if wrong incorrect cannot")
_BETWEEN = _words("the my our a an this that final correct right be is think believe say")
_DENIED_BEHIND = re.compile(
    r"\S{1,24}\s(?:is|was|are)(?:n['’]t|\s(?:\w{1,12}\s)?(?:not|wrong|incorrect))\b", re.IGNORECASE
)
_NOT = re.compile(r"not\b(?P<but>[^.;\n]{1,60}?\bbut\s+(?:rather\s)?)?", re.IGNORECASE)


def _read_word(text: str, start: int) -> Statement | None:
    """Read the tag, key, label or sentence that has a word for `answer` at a place."""
    mark = text[start + 6 : start + 7]
    if mark == ">":
        return _read_tag(text, max(0, text.rfind("<", max(0, start - 8), start)))
    if mark == '"':
        quote = text.rfind('"', max(0, start - 10), start)
        if key := _KEY.match(text, max(0, quote)):
            return _read_key(text, key)
    word = _WORD.match(text, start) if start >= 0 else None
    if word is None:
        return None
    end = word.end()
    link = _LINK.match(text, end)
    if link is None:
        return None
    kind = link.lastgroup
    before = text[max(text.rfind("\n", max(0, start - 80), start) + 1, start - 80, 0) : start]
    if before.strip(" *_#>\t") and not _is_fit(before, kind, word[0].isascii()):
        return None
    end = link.end()
    if kind == "sentence" and (denied := _NOT.match(text, end + (text[end : end + 1] == " "))):
        if not denied["but"]:
            return None
        end = denied.end()
    close = text.find("|", end, end + MAX_VALUE) if link["cell"] else -1
    value = clean(text[end:close]) if close >= 0 else _value_at(text, end)
    if not value or _DENIED_BEHIND.match(value):
        return None
    is_sentence = kind == "sentence"
    if value[-1] == "?" and len(value) > 1 and (is_sentence or " " not in value):
        return None
    return Statement(value, "words", start, is_sentence)


def _is_fit(before: str, kind: str | None, is_ascii: bool) -> bool:
    """Tell whether what stands before it on its line lets a label or sentence state an answer."""
    words = before.lower().split()
    for word in reversed(words[-6:]):
        if word.strip("*_") in _DENYING or word.endswith(("n't", "n’t")):
            return False
        if word.strip("*_") not in _BETWEEN:
            break
    if kind == "sentence" or not is_ascii:
        return True
    if kind == "label":
        last = before.rstrip(" *_`\t").lower()
        return not last[-1:].isalnum() or last.split()[-1].strip("*_`") in _DETERMINERS
    return all(word.strip("#>*_`~-•|[(\"'“,") in {"", *_DETERMINERS} for word in words)


# --- Values -------------------------------------------------------------------------------------

_BULLET = re.compile(r"(?:[-*•>+]|\d{1,2}[.)])\s+")
_SENTENCE_END = re.compile(r"[.!?][\"'”’)*_]{0,4}(?=\s)|[。！？](?=.)")
_ABBREVIATIONS = _words("st dr mr mrs ms jr sr prof vs etc mt ft inc co no")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")  # p.m, U.S, C
_NEXT_SENTENCE = re.compile(
    r"[*_]{0,3}(?:the|it|its|it's|this|that|these|he|she|they|we|i|you|there|in|so|but|because"
    r"|since|however|therefore|thus|hence|note|as|options?)\b",
    re.IGNORECASE,
)
_BELOW = re.compile(r"(?:as follows|the following|below|here)\W{0,4}\Z", re.IGNORECASE)


def _value_at(text: str, at: int) -> str | None:
    """Read what is stated at a place: the rest of the sentence, or what comes next below."""
    line, end = _line_at(text, at)
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
        if _BULLET.match(line):
            return _items(text[at : at + 10 * MAX_VALUE])
        if line not in ("$$", "\\[") and (value := first_sentence(line)):
            return value
    return None


def _line_at(text: str, at: int) -> tuple[str, int]:
    end = text.find("\n", at)
    return text[at : min(end if end >= 0 else len(text), at + MAX_VALUE)].strip(), end


def _items(text: str) -> str | None:
    """Read a list, one item per line: the first item alone would be half an answer."""
    items: list[str] = []
    for line in map(str.strip, text.split("\n")):
        if bullet := _BULLET.match(line):
            items.append(first_sentence(line[bullet.end() :]))
        elif line:
            break
    return "\n".join(filter(None, items)) or None


@lru_cache(maxsize=4096)  # answers are short, and few of them differ
def first_sentence(line: str) -> str:
    """Return the first sentence of a line, without the markup around it."""
    for stop in islice(_SENTENCE_END.finditer(line), 20):
        if _ends_sentence(line, stop):
            line = line[: stop.end()]
            break
    return clean(line.removesuffix("</answer>"))


def _ends_sentence(line: str, stop: re.Match[str]) -> bool:
    """Tell a full stop from that of `St. Louis`, `5 p.m.`, `No. 5` or `5! = 120`."""
    words = line[max(0, stop.start() - 80) : stop.start()].split()
    word = words[-1].lower().lstrip("(*_\"'") if words else ""
    behind = line[stop.end() : stop.end() + 40].lstrip()
    if not word or (word in _ABBREVIATIONS and (word != "no" or behind[:1].isdigit())):
        return False
    if line[stop.start()] == "!" and word[-1].isdigit() and behind[:1] in tuple("=+-×/*<>"):
        return False
    return not _INITIALS.fullmatch(word) or bool(_NEXT_SENTENCE.match(behind))


_HTML = re.compile(r"</?(?:b|i|u|em|strong|p|br|code|span|mark|div|li|td|sup|sub|h[1-6])\s{0,3}/?>")
_PAIRS = {'"': '"', "“": "”", "'": "'", "‘": "’", "$": "$", "_": "_", "«": "»", "「": "」"}
_LATEX = re.compile(
    r"\\\((.*)\\\)|\\\[(.*)\\\]|\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}", re.DOTALL
)
_STOPS = ".。,;"
_FIRST = frozenset((*_PAIRS, *"*`\\<.,;:- "))
_LAST = frozenset(_STOPS + "*`_> ")


def clean(value: str) -> str:
    """Take markup, quotes, math delimiters and the full stop from around a value.

    Args:
        value: A piece of an answer.

    Returns:
        The bare value; "" where there is nothing but marks.
    """
    value = value.strip()
    for _ in range(12):  # each round takes one layer off
        if value and value[0] not in _FIRST and value[-1] not in _LAST:  # as most are
            return value
        before = value
        value = value.strip(" \n\t\r*`")
        if len(value) > 1 and value[-1] in _STOPS:
            value = value[:-1].strip(".") if value.endswith("..") else value[:-1]
        if len(value) > 1 and value[-1] == "_" and value.count("_") == 1:
            value = value[:-1]
        first = value[:1]
        if first in _PAIRS and len(value) > 1 and value[-1] == _PAIRS[first]:
            inside = value[1:-1]
            if _PAIRS[first] not in inside or inside[:1] == first:  # `"a" and "b"` stays
                value = inside
        elif first == "\\" and (latex := _LATEX.fullmatch(value)):
            value = latex[latex.lastindex or 0]
        elif first == "<" and (tag := _HTML.match(value)):
            value = value[tag.end() :]
        if value[-1:] == ">" and (tag := _HTML.fullmatch(value, max(0, value.rfind("<")))):
            value = value[: tag.start()]
        if value == before:
            break
    return value if value.strip(".,;:-*_`\"'$ ") or value in (*".,;:-",) else ""


# --- What states nothing ------------------------------------------------------------------------

_HIDDEN = re.compile(
    r"(?<!~)~~(?![\s~])[^~\n]{1,400}(?<!\s)~~(?!~)|<!--(?:(?!<!--|-->)[\s\S]){0,2000}-->"
)
_PROSE = _words("json text txt plaintext markdown md latex tex math xml yaml") | {""}


def visible_text(text: str) -> str:
    """Blank out what is struck out or a comment, every other character at its place."""
    if not ("~" in text and "~~" in text) and not ("<" in text and "<!--" in text):
        return text
    return _HIDDEN.sub(lambda hidden: " " * len(hidden[0]), text)


def _without_programs(text: str) -> str:
    """Blank out programs in code blocks: `print("Answer:", x)` states nothing."""
    if "`" not in text and "~" not in text:
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
    blocks = [block for block in code_blocks(text) if block.closed]
    return next((b.code for b in reversed(blocks) if not names or b.language in names), None)
