"""What a model answered: its last words without its reasoning, and in them the LAST statement.

    answer_text      a reply without its reasoning; None where it never got out of it
    final_answer     the same of a trajectory; None where the last turn was cut off
    last_statement   the last `Answer: X`, `\\boxed{X}`, `<answer>X</answer>` or `#### 7` in it
    code_blocks      its fenced code

Nothing is guessed: a text without a statement has none, and a statement that breaks off (a box
that never closes) has no value, although an earlier one would. All scans go once over the text
or are bounded, whatever is in it.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from heldout.reasoning import lowered as lowered_text
from heldout.reasoning import without_reasoning
from heldout.types import Trajectory

# --- The answer ---------------------------------------------------------------------------------


def answer_text(text: str | None) -> str | None:
    """What a reply says after its reasoning; None where it says nothing."""
    return (without_reasoning(text) or None) if text is not None else None


def final_answer(trajectory: Trajectory) -> str | None:
    """The last model turn's answer; None where that turn was cut off or only reasoned.

    Reasoning in a field of its own is never read, not even where there is no other text.
    """
    for message in reversed(trajectory.messages):
        if message.role == "assistant":
            return None if trajectory.stop.truncated else answer_text(message.text)
    return None


# --- Statements ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statement:
    value: str | None
    """What was stated, without markup; None where the statement breaks off."""
    start: int
    kind: Literal["words", "box", "tag", "hashes"]


WORDS: tuple[str, ...] = (
    *("answer", "antwort", "réponse", "reponse", "respuesta", "resposta", "risposta", "antwoord"),
    *("svar", "odpowiedź", "odpověď", "cevap", "yanıt", "jawaban", "ответ", "відповідь"),
    *("απάντηση", "đáp án", "câu trả lời", "答案", "答え", "回答", "解答", "정답", "답변", "답"),
    *("الإجابة", "الاجابة", "الجواب", "إجابة", "उत्तर", "উত্তর", "คำตอบ", "תשובה", "jibu"),
)
"""Words that announce an answer, in lower case."""

_IS = (
    r"is|are|was|would be|should be|must be|will be|ist|sind|lautet|lauten|est|sont|es|son|é|è|são"
    r"|är|er|adalah|ialah|jest|je|ni|là"
)
_SEPARATOR = re.compile(
    r"(?:s|es|en)?"
    r"(?: (?:choice|option|key|letter|value|correcta|correta|corretta|correcte|finale?))?"
    r"(?: ?\([^()\n]{0,40}\))?"
    r"(?P<markup>[*_`~\"'”’\])]{0,8}[ \t]{0,8})"
    r"(?:(?P<colon>[:：=＝][*_]{0,4})"
    r"|(?P<dash>[-–—](?=\s))"
    rf"|(?P<is>(?:(?:to|for|of) [^\n.:?!]{{1,80}}? )?(?:{_IS})(?![\w'’])(?! not\b| still | yet )"
    r"(?: (?:thus|therefore|then|clearly|simply|indeed|just|actually|probably))?[:：]?[*_]{0,4})"
    r"|(?P<particle>(?:应该是|應該是|是|为|為|は|が|는|은|이|가|हैं|है|هي|هو)[:：,，、]?[*_]{0,4})"
    r"|(?P<heading>(?=\n|\Z))"
    r"|(?P<bare>(?<=[\s*_])(?=[(\[*]{0,3}[^\W\d_][)\]*.]{0,4}[ \t]*(?:\n|\Z)"
    r"|[-+−$€£¥]{0,2}[0-9]\S{0,40}[ \t]*(?:\n|\Z))))",
    re.IGNORECASE,
)
_BEFORE = re.compile(  # what may stand before the word where it opens a line
    r"[\s#>*_`~\-•\[(\"'“]{0,12}(?:(?:so|thus|therefore|hence)[, ]{1,3})?"
    r"(?:(?:the|my|our|la|die)\s)?(?:(?:final|correct|short|best|right)\s)?[\s*_`]{0,4}\Z",
    re.IGNORECASE,
)
_NOT_MEANT = ("wrong ", "incorrect ", "false ", "previous ", "earlier ", "another ", "possible ")
_TRIES = 1000  # how many times a word is looked at before it is taken for babble
_LONGEST = 2000  # characters of one line, or of an unclosed tag, that are read


def last_statement(text: str, words: tuple[str, ...] = WORDS) -> Statement | None:
    """The last statement of an answer in a text without reasoning; None where there is none."""
    lowered = lowered_text(text)
    # The searches for one character are much faster than what they spare.
    best = _last_box(text) if "\\" in text or "\b" in text else None
    if "<" in text and (tag := _last_tag(text, lowered)):
        best = tag if best is None or tag.start > best.start else best
    if "#" in text and (hashes := _last_hashes(text)):
        best = hashes if best is None or hashes.start > best.start else best
    floor = best.start + 1 if best else 0
    for word, rare in _with_rare(words):
        if rare and rare not in lowered:
            continue
        at = lowered.rfind(word, floor)
        if at >= 0 and (found := _last_words(text, lowered, word, floor)):
            best, floor = found, found.start + 1
    return best


@lru_cache(maxsize=64)
def _with_rare(words: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Each word with a letter of it that most texts do not have, if it has one."""
    return tuple(
        (word, next((c for c in word if not c.isascii() or c in "jqx"), "")) for word in words
    )


def stated_answer(text: str, words: tuple[str, ...] = WORDS) -> str | None:
    """The value of the last statement, or None."""
    statement = last_statement(text, words)
    return statement.value if statement else None


def _last_words(text: str, lowered: str, word: str, floor: int) -> Statement | None:
    end = len(text)
    for _ in range(_TRIES):
        at = lowered.rfind(word, floor, end)
        if at < 0:
            return None
        end = at + len(word) - 1
        if word[0] < "\u0500" and at and lowered[at - 1].isalnum():
            continue  # inside another word
        said = _SEPARATOR.match(text, at + len(word))
        if not said or lowered.endswith(_NOT_MEANT, 0, at):
            continue
        kind = said.lastgroup
        if kind == "dash" and not said["markup"]:
            continue  # answer-dependent
        if kind in ("dash", "heading", "bare"):
            line = text.rfind("\n", max(0, at - 80), at) + 1
            if not _BEFORE.match(text[max(line, at - 80) : at]):
                continue
        value = _value(text, said.end())
        if value:
            return Statement(value, at, "words")
    return None


def _last_box(text: str) -> Statement | None:
    end = len(text)
    for _ in range(_TRIES):
        at = text.rfind("oxed", 0, end)
        if at < 1:
            return None
        end = at
        if text[at - 1] not in "b\b":  # "\b" is what a careless JSON reader makes of it
            continue
        opened = _BOX.match(text, at + 4)
        if not opened:
            continue
        if opened[1]:
            return Statement(opened[1], at, "box")
        value = _braced(text, opened.end())
        if value is None:
            return Statement(None, at, "box")
        if value := tidied(value):
            return Statement(value, at, "box")
    return None


_BOX = re.compile(r"\s{0,3}(?:\{|(?<=[\sd])([^\W_])(?![\w}]))")
_BRACES = re.compile(r"[{}\\]")


def _braced(text: str, start: int) -> str | None:
    """The text up to the brace that closes the one before `start`; None where none does."""
    depth, escaped = 1, -1
    for mark in _BRACES.finditer(text, start, start + 10 * _LONGEST):
        at = mark.start()
        if at == escaped:
            continue
        if text[at] == "\\":
            escaped = at + 1
        else:
            depth += 1 if text[at] == "{" else -1
            if not depth:
                return text[start:at]
    return None


def _last_tag(text: str, lowered: str) -> Statement | None:
    end = len(text)
    for _ in range(_TRIES):
        at = lowered.rfind("<answer>", 0, end)
        if at < 0:
            return None
        end = at
        start = at + len("<answer>")
        close = lowered.find("</answer>", start)
        # An open tag at the very end: generation was stopped at the closing one.
        inside = text[start:close] if close >= 0 else text[start : start + _LONGEST]
        if value := tidied(inside):
            return Statement(value, at, "tag")
    return None


_HASHES = re.compile(r"####[ \t]{0,4}([-+−$€£]{0,2}\d[\d.,/ ]{0,60}%?(?<![. ]))[ \t]*(?=\n|\Z)")


def _last_hashes(text: str) -> Statement | None:
    at = text.rfind("####")
    if at < 0 or (at and text[at - 1] != "\n"):
        return None
    found = _HASHES.match(text, at)
    return Statement(found[1], at, "hashes") if found else None


# --- Values -------------------------------------------------------------------------------------

_BULLET = re.compile(r"[-*•>]\s+")
_SENTENCE = re.compile(r"[.!?][\"'”’)*_]{0,4}(?=\s)|[。！？](?=.)")
_ABBREVIATIONS = frozenset(
    (
        *("st", "dr", "mr", "mrs", "ms", "jr", "sr", "prof", "vs", "etc", "mt", "ft", "inc"),
        *("co", "ltd", "approx", "fig"),
    )
)
_PAIRED = {'"': '"', "“": "”", "'": "'", "‘": "’", "$": "$", "_": "_", "«": "»", "「": "」"}
_LATEX = (
    *(("\\(", "\\)"), ("\\[", "\\]"), ("\\text{", "}"), ("\\mathrm{", "}")),
    *(("\\textbf{", "}"), ("\\mathbf{", "}")),
)


def _value(text: str, at: int) -> str | None:
    """What is stated at a place: the rest of the line, or what comes next below it."""
    end = text.find("\n", at)
    line = text[at : min(end if end >= 0 else len(text), at + _LONGEST)]
    if value := _first_sentence(line):
        return value
    for _ in range(4):
        if end < 0:
            return None
        at = end + 1
        end = text.find("\n", at)
        line = text[at : min(end if end >= 0 else len(text), at + _LONGEST)].strip()
        if line.startswith(("```", "~~~")):
            blocks = code_blocks(text[at : at + 10 * _LONGEST])
            return blocks[0].code if blocks and blocks[0].closed else None
        if line in ("$$", "\\["):
            close = text.find("$$" if line == "$$" else "\\]", at + len(line))
            return tidied(text[at + len(line) : close]) if close >= 0 else None
        if bullet := _BULLET.match(line):
            line = line[bullet.end() :]
        if value := _first_sentence(line):
            return value
    return None


def _first_sentence(line: str) -> str:
    lowered_close = line.find("</")
    if lowered_close >= 0 and line[lowered_close:].lower().startswith("</answer>"):
        line = line[:lowered_close]
    for stop in _SENTENCE.finditer(line):
        words = line[: stop.start()].split(None, 40)
        word = words[-1].lower().lstrip("(*_\"'") if words else ""
        if word and word not in _ABBREVIATIONS and not (len(word) == 1 and word.isalpha()):
            return tidied(line[: stop.end()])
        if stop.start() > 400:
            break
    return tidied(line)


def tidied(value: str) -> str:
    """Without the markup, quotes, maths signs and full stop around it."""
    for _ in range(12):  # each round takes one layer off
        before = value
        value = value.strip().strip("*`").strip()
        if len(value) > 1 and value[-1] in ".。,;":
            value = value[:-1]
        if len(value) > 1 and value[-1] == "_" and value.count("_") == 1:
            value = value[:-1]
        first = value[:1]
        if len(value) > 1 and _PAIRED.get(first) == value[-1] and _wraps(value, first):
            value = value[1:-1]
        if first == "\\":
            for opening, closing in _LATEX:
                if value.startswith(opening) and value.endswith(closing):
                    inner = value[len(opening) : -len(closing)]
                    if closing not in inner:
                        value = inner
        if value == before:
            break
    return value if value.strip(".,;:-*_`\"'$ ") or value in ("-", ",", ".", ";", ":") else ""


def _wraps(value: str, mark: str) -> bool:
    """Whether the marks at both ends belong together, as they do not in `"a" and "b"`."""
    return _PAIRED[mark] not in value[1:-1] or value == mark * 2 or value[1:2] == mark


def shown(text: str, limit: int = 500) -> str:
    """A text as it is kept in a metric: its beginning, where it is very long."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


# --- Code ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CodeBlock:
    language: str
    code: str
    closed: bool
    """False where the fence never closes: the code may be cut off."""


_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)


def code_blocks(text: str) -> tuple[CodeBlock, ...]:
    """The last thousand fenced code blocks, in order; a fence closes with one as long or longer."""
    blocks: deque[tuple[str, str, bool]] = deque(maxlen=_TRIES)
    fence, language, start = "", "", 0
    for mark in _FENCE.finditer(text):
        if not fence:
            if "`" not in mark[2]:
                fence, start = mark[1], min(mark.end() + 1, len(text))
                language = (mark[2].split(None, 1) or [""])[0].lower()
        elif mark[1].startswith(fence) and not mark[2].strip():
            blocks.append((language, text[start : mark.start()].rstrip("\n"), True))
            fence = ""
    if fence:
        blocks.append((language, text[start:], False))
    return tuple(CodeBlock(*block) for block in blocks)


def last_code_block(text: str, *languages: str) -> str | None:
    """The code of the last closed block, of one of `languages` where any is named."""
    for block in reversed(code_blocks(text)):
        if block.closed and (not languages or block.language in languages):
            return block.code
    return None
