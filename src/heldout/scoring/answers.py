r"""The answer of a reply: the reply without its reasoning, and the answers stated in it.

An answer is stated by a box (`\boxed{7}`), a tag (`<answer>7</answer>`), a JSON key (`"answer":
7`), four hashes (`#### 7`), a label (`**Answer:** 7`) or a sentence (`the answer is 7`). Graders of
a letter, a number or an expression go through `statements` from the last one backwards and pass
over those that hold nothing of their kind. Every scan is linear in the text or bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from heldout.chat.reasoning import fenced, without_reasoning
from heldout.types import Trajectory

MAX_VALUE = 2000  # characters of a line that are read
_MAX_BOX = 20_000  # characters of a box or tag; a longer one counts as unclosed
_NEAR_END = 500  # characters
_MAX_PLACES = 400  # places that are looked at, from the end of the text

# --- The reply ----------------------------------------------------------------------------------

_END_MARKER = re.compile(
    r"<\|[^<>|]{1,40}\|>|<｜[^<>]{1,40}｜>|</?s>"
    r"|<(?i:(?:eos|bos|pad|unk|eot|eod|end|stop|endoftext|end_of_\w{1,20})(?:_token)?)>"
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
    is_sentence: bool = False


_NEXT_QUESTION = re.compile(r"\n[ \t#*>]{0,6}(?:Question|Q|Problem|User|Human) ?\d{0,3}[*_ ]{0,3}:")


def statements(text: str) -> Iterator[Statement]:
    """Find the answers stated in a reply without reasoning, the last one first.

    Programs in code blocks state nothing. Where the text goes on to make up a next question
    (`Question: …`), it ends there if an answer was stated before it, or nothing but a short line.
    Of a reply that begins as a JSON object and has an answer's key, only such keys count.
    """
    if "\n" in text and (question := _NEXT_QUESTION.search(text)):
        before = text[: question.start()].rstrip()
        if next(_backwards(before), None) is not None:
            text = before
        elif len(before) <= 60 and "\n" not in before and before[-1:] not in ":!":
            return iter([Statement(clean(before), "words")])
    if text.startswith(("{", "```")):
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
    what stands below it. It states nothing with `not`, `if` or `wrong` directly before it (`I don't
    think the answer is A`, `the answer is not A`). A box that never closes is no answer, and no
    earlier statement replaces it.

    Args:
        text: A reply without reasoning.

    Returns:
        The stated answer without the markup around it; None where none is stated.
    """
    statement = last_statement(text)
    return statement.value if statement else None


# What announces an answer, and how many letters of the word stand before it: without its first
# letter, a word is found in either case. Words that ASCII can write, but English does not have,
# count near the end of a text that has nothing else.
_MARKS = {"nswer": 1, "NSWER": 1, "\\boxed": 0, "####": 0}
_LATIN_MARKS = {"Ans:": 0, "ntwort": 1, "espuesta": 1, "sposta": 2}
_OTHER_MARKS = {"éponse": 1, "твет": 1, "答": 0, "正解": 0, "정답": 0, "إجابة": 0, "उत्तर": 0}
_LETTERS_BEFORE = _MARKS | _LATIN_MARKS | _OTHER_MARKS


def _backwards(text: str) -> Iterator[Statement]:
    searched = _without_programs(text)
    # One character is found much faster than several.
    places = [(searched.rfind(mark), mark) for mark in _MARKS if mark[0] in searched]
    if not text.isascii():
        places += [(searched.rfind(mark), mark) for mark in _OTHER_MARKS]
    if not places or max(places)[0] < 0:
        places += [(searched.rfind(mark, -_NEAR_END), mark) for mark in _LATIN_MARKS]
    for _ in range(_MAX_PLACES):
        at, mark = last = max(places)
        if at < 0:
            break
        if mark == "\\boxed":
            statement = _read_box(text, at)
        elif mark == "####":
            hashes = _HASHES.match(text, at)
            statement = Statement(hashes[1], "hashes") if hashes else None
        else:
            statement = _read_word(text, at - _LETTERS_BEFORE[mark])
        if statement:
            yield statement
        places[places.index(last)] = (searched.rfind(mark, 0, at), mark)


_PROSE = frozenset(("", "json", "text", "txt", "markdown", "md", "latex", "tex", "xml", "yaml"))


def _without_programs(text: str) -> str:
    """Blank out programs in code blocks: `print("Answer:", x)` states nothing."""
    if "`" not in text and "~" not in text:  # one character is found much faster
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
_SPACE = r"(?:[\s$]|\\[()]|\\q?quad)*"
_JOINED = re.compile(rf"{_SPACE}(?:[,;/]|\\(?:text|mbox)\s?\{{\s*(?:and|or)\s*\}}|and|or){_SPACE}")
_PERCENT = re.compile(r"[\s$]{0,4}\\?%")
_HASHES = re.compile(
    r"^####[ \t]{0,4}([-+−$€£]{0,2}\d[\d.,/ ]{0,60}%?(?<![. ]))[. \t]*$", re.MULTILINE
)
_KEY = re.compile(r'"(?:final|correct)?[_ -]?answer"\s{0,20}:\s{0,20}', re.IGNORECASE)
_TAG = re.compile(r"<(?:final[_-]?)?answer>", re.IGNORECASE)
_TAG_END = re.compile(r"</(?:final[_-]?)?answer>", re.IGNORECASE)
_RAW = re.compile(r'"\s{0,9}([^"\n]{0,2000}[^"\s])\s{0,9}"')
_decoder = json.JSONDecoder()


def last_box(text: str) -> tuple[str | None, int] | None:
    r"""Find the last `\boxed{…}`: its content, None where it never closes, and where it ends."""
    at = text.rfind("\\boxed")
    while at >= 0:
        if box := _box_at(text, at):
            return box
        at = text.rfind("\\boxed", 0, at)
    return None


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
    box = _box_at(text, at)
    if box is None or box[0] is None:
        return Statement(None, "box") if box else None
    values = [clean(box[0])]
    if values[0] and "%" not in values[0] and _PERCENT.match(text, box[1]):
        values[0] += "\\%"
    while len(values) < 16:
        before = text.rfind("\\boxed", max(0, at - 260), at)
        box = _box_at(text, before) if before >= 0 else None
        if not box or not box[0] or not _JOINED.fullmatch(text, box[1], at):
            break
        values.insert(0, clean(box[0]))
        at = before
    value = ", ".join(dict.fromkeys(filter(None, values)))
    return Statement(value, "box") if value else None


def _read_key(text: str, at: int) -> Statement | None:
    piece = text[at : at + _MAX_BOX]
    try:
        content, length = _decoder.raw_decode(piece)
    except (ValueError, RecursionError):
        raw = _RAW.match(piece)  # LaTeX with its backslashes as they are
        return Statement(raw[1], "key") if raw else None
    value = content.strip() if isinstance(content, str) else piece[:length]
    return Statement(None if content is None or not value else value, "key")


def _read_tag(text: str, at: int) -> Statement | None:
    close = _TAG_END.search(text, at, at + _MAX_BOX)
    # Without a closing tag, generation was stopped at it.
    value = clean(text[at : close.start() if close else at + MAX_VALUE])
    return Statement(value, "tag") if value else None


# --- Labels and sentences -----------------------------------------------------------------------

_WORD = (
    r"(?:(?<![^\W_])(?<![a-z]_)(?i:answers?|ans|antwort|respuesta|r[ei]sposta|réponse|ответ)"
    r"(?![^\W_])|答[案え]|正解|정답|إجابة|उत्तर)"
)
_GAP = (  # choice, correcta, (in km), to the question; but not (C)
    r"(?: [^\W\d_]{1,12}){0,2}?(?: ?\([^()\n]{2,40}\))?"
    r"(?: (?:to|for|of|in|that|I|we) (?:\"[^\"\n]{1,200}\"|[^\n.:\"]){1,80}?)?"
)
_IS = (
    r"[*_]{0,4}(?: (?:is|IS|are|was|(?:would|should|must|will|has to) be|equals|ist|lautet|es|est|é"
    r"|è)(?![\w'’])|\s?(?:是|为|為|は|은|는|هي|هو))[:：]?[*_]{0,4}"
    r"(?:,? (?:therefore|thus|then|clearly|probably|equal to|as follows|la(?= [(*]{0,3}\w\b))\b"
    r"[,:]?)?"
)
_LINK = re.compile(
    rf"{_WORD}(?:{_GAP}(?:(?P<sentence>{_IS})"
    r"|(?P<label>[*_`\"'”’\])]{0,8}[ \t]{0,8}(?:[:：=】]|->|=>|→| [-–—](?=\s))[*_]{0,4}))"
    r"|(?P<heading>[*_]{0,8}[ \t]{0,8}(?=\n|\Z)))"
)
_DENYING = frozenset(("not", "if", "wrong", "incorrect", "other", "cannot", "nor", "neither"))
_BETWEEN = frozenset(
    (
        *("the", "my", "our", "a", "this", "that", "it", "i", "be", "is", "final", "correct"),
        *("right", "answer", "think", "believe", "say", "go"),
    )
)


def is_denied(before: str) -> bool:
    """Tell whether `not`, `if` or `wrong` ends a text, directly or before words like `the`."""
    before = before[before.rfind("\n") + 1 :]
    for _ in range(6):
        before, _, word = before.rstrip(" ").rpartition(" ")
        bare = word.strip("*_(").lower()
        if bare in _DENYING or bare.endswith(("n't", "n’t")):
            return True
        if bare not in _BETWEEN:
            return False
    return False


def _read_word(text: str, start: int) -> Statement | None:
    """Read the tag, key, label or sentence that has a word for `answer` at a place."""
    mark = text[start + 6 : start + 7]
    if mark == ">":
        tag = _TAG.match(text, max(0, text.rfind("<", 0, start)))
        return _read_tag(text, tag.end()) if tag else None
    if mark == '"' and (key := _KEY.match(text, max(0, text.rfind('"', 0, start)))):
        return _read_key(text, key.end())
    link = _LINK.match(text, max(0, start))
    if link is None:
        return None
    before = text[max(0, start - 80) : start]
    if is_denied(before) or (link.lastgroup == "heading" and len(before.split()) > 3):
        return None
    value, is_sentence = _value_at(text, link.end()), link.lastgroup == "sentence"
    if not value or (is_sentence and value.startswith("not ")):
        return None
    return Statement(value, "words", is_sentence)


_BULLET = re.compile(r"(?:[-*•>+]|\d{1,2}[.)])\s+")
# Neither `St. Louis`, `J. K. Rowling` nor `5 p.m.` ends with its point.
_SENTENCE_END = re.compile(
    r"(?<!\b[^\W\d_])(?<!\b(?:St|Dr|Mr|Ms|Jr|Mt|No|vs))(?<!\bMrs)"
    r"[.!?][\"'”’)*_]{0,4}(?=\s+[^\sa-z\d=+*/<>-])|[。！？](?=.)"
)


def _value_at(text: str, at: int) -> str | None:
    """Read what is stated at a place: the rest of the sentence, or what comes next below."""
    for lines_below in range(5):
        end = text.find("\n", at)
        line = text[at : min(end, at + MAX_VALUE) if end >= 0 else at + MAX_VALUE].strip()
        if line and lines_below:
            below = text[at : at + _MAX_BOX]
            if line.startswith(("```", "~~~")) and (block := next(fenced(below), None)):
                return below[block.inner : block.inner_end] if block.closed else None
            if _BULLET.match(line):
                return _items(below)
        value = first_sentence(line) if line not in ("", "$$", "\\[") else ""
        if value or end < 0:
            return value
        at = end + 1
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
