r"""The answer of a reply: the reply without its reasoning, and the answers stated in it.

An answer is stated by a box (`\boxed{7}`), a tag (`<answer>7</answer>`), a JSON key (`"answer":
7`), four hashes (`#### 7`), a label (`**Answer:** 7`) or a sentence (`the answer is 7`). Graders of
a letter, a number or an expression go through `statements` from the last one backwards and pass
over those that hold nothing of their kind. Every scan is linear in the text or bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from heldout.chat.reasoning import fenced, without_reasoning
from heldout.types import Trajectory

MAX_VALUE = 2000  # characters of a line, or of an unclosed tag, that are read
_MAX_BOX = 20_000  # characters of a box; a longer one counts as unclosed
_MAX_PLACES = 400  # occurrences of a mark that are looked at, from the end of the text

# --- The reply ----------------------------------------------------------------------------------

_END_MARKER = re.compile(
    r"<\|[^<>|]{1,40}\|>|<｜[^<>]{1,40}｜>|</?s>"
    r"|<(?:eos|bos|pad|unk|eot|eod|end|stop|endoftext|end_of_\w{1,20})(?:_token)?>",
    re.IGNORECASE,
)


def answer_text(text: str | None) -> str | None:
    """Take reasoning and end markers out of a reply; None where nothing is left."""
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


# --- Statements ---------------------------------------------------------------------------------


class Statement(NamedTuple):
    """One stated answer; None where it breaks off. A sentence may be a remark about the answer."""

    value: str | None
    kind: Literal["words", "box", "tag", "hashes", "key"]
    start: int
    is_sentence: bool = False


_NEXT_QUESTION = re.compile(r"\n[ \t#*>]{0,6}(?:Question|Q|Problem|User|Human) ?\d{0,3}[*_ ]{0,3}:")
_JSON = re.compile(r"(?:`{3,9}(?:json)?\s{0,9})?\{.*\}\s{0,9}`{0,9}", re.DOTALL | re.IGNORECASE)


def statements(text: str) -> Iterator[Statement]:
    """Find the answers stated in a reply without reasoning, the last one first.

    Programs in code blocks state nothing. Where the text goes on to make up a next question
    (`Question: …`), it ends there if an answer was stated before it, or nothing but a short line.
    Of a reply that is a JSON object with an answer's key, only such keys count.
    """
    if question := _NEXT_QUESTION.search(text, 0, 20_000):
        before = text[: question.start()].strip()
        if next(_backwards(before), None) is not None:
            text = before
        elif before and len(before) <= 60 and "\n" not in before and before[-1] not in ":!":
            return iter([Statement(clean(before), "words", 0)])
    if text[:1] in ("{", "`") and _JSON.fullmatch(text):
        keys = [statement for statement in _backwards(text) if statement.kind == "key"]
        if keys:
            return iter(keys)
    return _backwards(text)


def last_statement(text: str) -> Statement | None:
    """Find the stated answer that counts where any text may be one: a sentence may be a remark."""
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


# What announces an answer, and how many letters of the word stand before it: without its first
# letter, a word is found in either case. Other words count where ASCII has none of the first.
_MARKS = {"nswer": 1, "NSWER": 1, "\\boxed": 0, "####": 0}
_OTHER_MARKS = {
    **{"Ans:": 0, "ntwort": 1, "espuesta": 1, "sposta": 2, "éponse": 1, "твет": 1},
    **{"答": 0, "正解": 0, "정답": 0, "إجابة": 0, "उत्तर": 0},
}


def _backwards(text: str) -> Iterator[Statement]:
    searched = _without_programs(text)
    places = _places(searched, _MARKS)
    if not places or not text.isascii():
        places += _places(searched, _OTHER_MARKS)
    limit = len(text)
    for start, mark in sorted(places, reverse=True)[:_MAX_PLACES]:
        if start >= limit:
            continue
        read = _read_box if mark == "\\boxed" else _read_hashes if mark == "####" else _read_word
        if statement := read(text, start):
            limit = statement.start
            yield statement


def _places(text: str, marks: Mapping[str, int]) -> list[tuple[int, str]]:
    """Find marks; of each mark, its last occurrences."""
    places: list[tuple[int, str]] = []
    for mark, length in marks.items():
        if mark[0] not in text or mark not in text:  # one character is found much faster
            continue
        at = text.rfind(mark)
        while at >= 0 and len(places) < _MAX_PLACES:
            places.append((max(0, at - length), mark))
            at = text.rfind(mark, 0, at)
    return places


_PROSE = frozenset(("", "json", "text", "txt", "markdown", "md", "latex", "tex", "xml", "yaml"))


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
    return "".join((*parts, text[at:]))


# --- Boxes, hashes, keys and tags ---------------------------------------------------------------

_BOX = re.compile(r"\\boxed\s{0,3}(?:\{|(?<=[\sd])([^\W_])(?![\w}]))")
_BRACES = re.compile(r"[{}]|\\.", re.DOTALL)
_AND = r"(?:\\(?:text|mbox)\s?\{\s*(?:and|or)\s*\}|and|or)"
_JOINED = re.compile(
    rf"(?:[\s$]|\\[()])*(?:[,;/]|\\q?quad|{_AND})(?:[\s$]|\\[()]|\\q?quad|{_AND})*"
)
_MAX_JOINED, _MAX_JOINED_LENGTH = 16, 260  # boxes that are joined, and characters of each
_PERCENT = re.compile(r"[\s$]{0,4}\\?%")
_HASHES = re.compile(r"####[ \t]{0,4}([-+−$€£]{0,2}\d[\d.,/ ]{0,60}%?(?<![. ]))[. \t]*(?=\n|\Z)")
_KEY = re.compile(r'"(?:final|correct)?[_ -]?answer"\s{0,20}:\s{0,20}', re.IGNORECASE)
_TAG = re.compile(r"<((?:final[_-]?)?answer)>", re.IGNORECASE)
_RAW = re.compile(r'"\s{0,9}([^"\n]{0,2000}[^"\s])\s{0,9}"')
_decoder = json.JSONDecoder()


def last_box(text: str) -> tuple[str | None, int] | None:
    r"""Find the last `\boxed{…}`: its content, None where it never closes, and where it ends."""
    boxes = (_box_at(text, at) for at, _ in _places(text, {"\\boxed": 0}))
    return next(filter(None, boxes), None)


def _box_at(text: str, at: int) -> tuple[str | None, int] | None:
    opened = _BOX.match(text, at)
    if opened is None:
        return None
    if opened[1]:
        return opened[1], opened.end()
    depth = 1
    for brace in _BRACES.finditer(text, opened.end(), opened.end() + _MAX_BOX):
        if brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth -= 1
        if not depth:
            return text[opened.end() : brace.start()].strip(), brace.end()
    return None, len(text)


def _read_box(text: str, at: int) -> Statement | None:
    r"""Read a box, with those joined to it: `\boxed{1} \text{ and } \boxed{2}` is `1, 2`."""
    inside, end = _box_at(text, at) or ("", at)
    if inside is None:
        return Statement(None, "box", at)
    values = [clean(inside)]
    if values[0] and "%" not in values[0] and _PERCENT.match(text, end):
        values[0] += "\\%"
    while len(values) < _MAX_JOINED:
        place = text.rfind("\\boxed", max(0, at - _MAX_JOINED_LENGTH), at)
        inside, end = (place >= 0 and _box_at(text, place)) or ("", 0)
        if not inside or not _JOINED.fullmatch(text, end, at):
            break
        values.insert(0, clean(inside))
        at = place
    value = values[0] if len(values) == 1 else ", ".join(dict.fromkeys(filter(None, values)))
    return Statement(value, "box", at) if value else None


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


def _read_tag(text: str, opened: re.Match[str]) -> Statement | None:
    inside = text[opened.end() : opened.end() + 10 * MAX_VALUE]
    close = re.search(f"</{opened[1]}>", inside, re.IGNORECASE)
    # Without a closing tag, generation was stopped at it.
    value = clean(inside[: close.start() if close else MAX_VALUE])
    return Statement(value, "tag", opened.start()) if value else None


# --- Labels and sentences -----------------------------------------------------------------------

_WORD = re.compile(
    r"(?<![^\W_])(?<![a-z]_)(?:answers?|ans|antwort|respuesta|r[ei]sposta|réponse|ответ)(?![^\W_])"
    r"|答[案え]|正解|정답|إجابة|उत्तर",
    re.IGNORECASE,
)
_GAP = (  # choice, correcta, (in km), to the question; but not (C)
    r"(?: [^\W\d_]{1,12}){0,2}?(?: ?\([^()\n]{2,40}\))?"
    r"(?: (?:to|for|of|in|that|I|we) (?:\"[^\"\n]{1,200}\"|[^\n.:\"]){1,80}?)?"
)
_ADVERB = r"(?:,? (?:thus|therefore|then|clearly|definitely|probably|likely|indeed|simply)\b,?)?"
_LINK = re.compile(
    rf"(?P<sentence>{_GAP}[*_]{{0,4}}{_ADVERB} "
    r"(?:is|IS|are|was|(?:would|should|must|will|has to) be|becomes|equals|ist|lautet|es|est|é|è)"
    rf"(?![\w'’]){_ADVERB}(?: equal to)?[:：]?[*_]{{0,4}}(?: la(?= [(*]{{0,3}}\w\b))?"
    rf"|{_GAP}\s?(?:是|为|為|は|은|는|هي|هو)[:：]?)"
    rf"|(?P<label>{_GAP}[*_`\"'”’\])]{{0,8}}[ \t]{{0,8}}(?:[:：=】]|->|=>|→)[*_]{{0,4}}"
    r"|[*_]{0,8}[ \t]{1,8}[-–—](?=\s))"
    r"|(?P<heading>[*_]{0,8}[ \t]{0,8}(?=\n|\Z)"
    r"|[*_]{0,8}[ \t]{1,8}(?=[(\[]?(?:[A-Z]|[-$]{0,2}\d[\d.,]{0,20})[)\].*]{0,3}(?:\n|\Z)))"
)
DENIED_BEHIND = re.compile(  # a word that is denied, or asked for
    r"[^\s?]{0,24}(?:\s(?:is|was|are)(?:n['’]t|\s(?:not|wrong|incorrect))\b|\?(?!\w))",
    re.IGNORECASE,
)
_NOT = re.compile(r"\s?not\b(?P<but>[^.;\n]{1,60}?\bbut\s+(?:rather\s)?)?", re.IGNORECASE)
_DENYING = frozenset(("not", "if", "wrong", "incorrect", "other", "cannot", "nor", "neither"))
_BETWEEN = frozenset(
    (
        *("the", "my", "our", "a", "this", "that", "it", "i", "be", "is", "final", "correct"),
        *("right", "answer", "think", "believe", "say", "go"),
    )
)


def is_denied(before: str) -> bool:
    """Tell whether `not`, `if` or `wrong` ends a text, directly or before words like `the`."""
    line = before[before.rfind("\n") + 1 :]
    for word in reversed(line.lower().split()[-6:]):
        bare = word.strip("*_(")
        if bare in _DENYING or bare.endswith(("n't", "n’t")):
            return True
        if bare not in _BETWEEN:
            return False
    return False


def _read_word(text: str, start: int) -> Statement | None:
    """Read the tag, key, label or sentence that has a word for `answer` at a place."""
    mark = text[start + 6 : start + 7]
    if mark in (">", '"'):
        opened = max(0, text.rfind("<" if mark == ">" else mark, max(0, start - 10), start))
        if tag := _TAG.match(text, opened):
            return _read_tag(text, tag)
        if key := _KEY.match(text, opened):
            return _read_key(text, key)
    word = _WORD.match(text, start)
    link = _LINK.match(text, word.end()) if word else None
    if link is None:
        return None
    is_sentence = link.lastgroup == "sentence"
    before = text[max(text.rfind("\n", max(0, start - 80), start) + 1, start - 80, 0) : start]
    if is_denied(before) or (link.lastgroup == "heading" and len(before.split()) > 3):
        return None
    at = link.end()
    if is_sentence and (denied := _NOT.match(text, at)):
        if not denied["but"]:
            return None
        at = denied.end()
    value = _value_at(text, at)
    if not value or DENIED_BEHIND.match(value) or (is_sentence and value[-1] == "?"):
        return None
    return Statement(value, "words", start, is_sentence)


_BULLET = re.compile(r"(?:[-*•>+]|\d{1,2}[.)])\s+")
_BELOW = re.compile(r"(?:as follows|the following|below|here)\W{0,4}", re.IGNORECASE)
# Neither `St. Louis`, `J. K. Rowling` nor `5 p.m.` ends with its point.
_SENTENCE_END = re.compile(
    r"(?<!\b[^\W\d_])(?<!\b(?:St|Dr|Mr|Ms|Jr|Mt|No|vs))(?<!\bMrs)"
    r"[.!?][\"'”’)*_]{0,4}(?=\s+[^\sa-z\d=+*/<>-])|[。！？](?=.)"
    r"|(?<=^[A-Z])\.(?!\s+[A-Z]\.|.{0,80}\bor\s[A-Z][.)])(?=(?:\s+\S+){3})"  # C. It is the one
)


def _value_at(text: str, at: int) -> str | None:
    """Read what is stated at a place: the rest of the sentence, or what comes next below."""
    for _ in range(5):
        below = text[at : at + 10 * MAX_VALUE]
        line = below[:MAX_VALUE].partition("\n")[0].strip()
        if line.startswith(("```", "~~~")) and (block := next(fenced(below), None)):
            return below[block.inner : block.inner_end] if block.closed else None
        if _BULLET.match(line) and at and text[at - 1] == "\n":
            return _items(below)
        value = "" if line in ("$$", "\\[") else first_sentence(line)
        if value and not _BELOW.fullmatch(value):
            return value
        at = text.find("\n", at) + 1
        if not at:
            break
    return None


def _items(text: str) -> str | None:
    """Read a list, one item per line, up to the first line at the margin that is no item."""
    items: list[str] = []
    for line in text.split("\n"):
        if bullet := _BULLET.match(line.strip()):
            items.append(first_sentence(line.strip()[bullet.end() :]))
        elif line.strip() and not line[0].isspace():
            break
    return "\n".join(filter(None, items)) or None


@lru_cache(maxsize=4096)  # answers are short, and few of them differ
def first_sentence(line: str) -> str:
    """Return the first sentence of a line, without the markup around it."""
    end = _SENTENCE_END.search(line)
    return clean(line[: end.end()] if end else line.removesuffix("</answer>"))


_MARKUP = " \n\t\r*`"
_WRAPPED = re.compile(
    r"\"([^\"]*)\"|“([^”]*)”|'([^']*)'|_([^_]*)_|\$\$?([^$]*)\$\$?|\\\((.*)\\\)|\\\[(.*)\\\]"
    r"|\\(?:text|textbf|mathrm|mathbf)\{([^{}]*)\}",
    re.DOTALL,
)


def clean(value: str) -> str:
    """Take markup, quotes, math delimiters and the full stop from around a value."""
    value = value.strip(_MARKUP)
    for _ in range(12):  # each round takes one layer off
        if value and value[0].isalnum() and value[-1].isalnum():  # as most are
            return value
        before = value
        if len(value) > 1 and value[-1] in ".。,;":
            value = value[:-1]
        if wrapped := _WRAPPED.fullmatch(value):
            value = wrapped[wrapped.lastindex or 0]
        value = value.strip(_MARKUP)
        if value == before:
            break
    return value if value.strip(".,;:-_\"'$") else ""


# --- Code blocks --------------------------------------------------------------------------------


class CodeBlock(NamedTuple):
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
