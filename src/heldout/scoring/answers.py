r"""The answer of a reply: the reply without its reasoning, and the answers stated in it.

An answer is stated by a box (`\boxed{7}`), a tag (`<answer>7</answer>`), a JSON key (`"answer":
7`), four hashes (`#### 7`), a label (`**Answer:** 7`) or a sentence (`the answer is 7`). `agree`
says which one counts, for every grader: a correction takes back what is stated before it, the
strongest kind of statement goes before the others, and statements of that kind have to agree.
Every scan is linear in the text or bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from enum import IntEnum
from operator import eq
from typing import Generic, NamedTuple, TypeVar

from heldout._reasoning import fenced, lowered, without_reasoning
from heldout.types import Trajectory

MAX_VALUE = 2000  # characters of a line that are read
_MAX_BOX = 20_000  # characters of a box or tag; a longer one counts as unclosed
_MAX_PLACES = 400  # places that are looked at, from the end of the text

Extracted = TypeVar("Extracted")

# --- The reply ----------------------------------------------------------------------------------

_END_MARKER = re.compile(
    r"<\|[^<>|]{1,40}\|>|<｜[^<>]{1,40}｜>|</?s>"
    r"|<(?i:(?:eos|bos|pad|unk|eot|eod|end|stop|endoftext|end_of_\w{1,20})(?:_token)?)>"
)


def answer_text(text: str | None) -> str | None:
    """Take reasoning and end markers out of a reply; None if nothing is left."""
    if text is None:
        return None
    answer = without_reasoning(text)
    while answer.endswith(">"):
        marker = _END_MARKER.fullmatch(answer, max(0, answer.rfind("<")))
        if marker is None:
            break
        answer = answer[: marker.start()].rstrip()
    return answer or None


# Spaces of Unicode, and what shows nothing: zero-width and soft hyphens, marks of direction.
_SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_INVISIBLE = re.compile(
    "[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe0f\ufeff]"
)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


def visible(text: str) -> str:
    """Take out what a reader does not see: comments of HTML, and characters without width."""
    if "<!--" in text:
        text = _COMMENT.sub("", text).strip()
    if text.isascii():
        return text
    return _INVISIBLE.sub("", _SPACES.sub(" ", text)).strip()


def visible_answer(text: str | None) -> str | None:
    """Return what a reader sees of a reply, without its reasoning; None where that is nothing."""
    answer = answer_text(text)
    return visible(answer) or None if answer else None


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


class Strength(IntEnum):
    """How clearly an answer is stated."""

    SENTENCE = 1
    """It may be a remark about the answer."""
    LABEL = 2
    MARKED = 3
    """A box, a tag, a key or four hashes."""


class Statement(NamedTuple):
    """One stated answer, and where it stands; its value is None where it breaks off."""

    value: str | None
    strength: Strength
    start: int
    end: int
    is_final: bool = False
    """Whether it is called final: then it replaces those before it that are not."""


_NEXT_QUESTION = re.compile(r"\n[ \t#*>]{0,6}(?:Question|Q|Problem|User|Human) ?\d{0,3}[*_ ]{0,3}:")


def statements(text: str) -> list[Statement]:
    """Find the answers stated in a reply without reasoning, in order.

    Programs in code blocks state nothing. Where the text goes on to make up a next question
    (`Question: …`), it ends there if an answer was stated before it, or nothing but a short line.
    Of a reply that begins as a JSON object and has an answer's key, only such keys count.
    """
    own = _without_next_question(text)
    found = _find(own)
    if own != text and not found:
        return [Statement(clean(own), Strength.LABEL, 0, len(own))]
    if text.startswith(("{", "```")):
        return [each for each in found if text[each.start] == '"'] or found
    return found


def _without_next_question(text: str) -> str:
    if "\n" in text and (question := _NEXT_QUESTION.search(text)):
        before = text[: question.start()].rstrip()
        is_short = len(before) <= 60 and "\n" not in before and before[-1:] not in ":!"
        if is_short or _find(before):
            return before
    return text


_PAUSE = r"(?:[\s,:;!…—–*_]|\.{2,3}|[.-](?=\s)){1,4}"
_LEAD = rf"(?:wait|actually|hold\son|oops|sorry|apologies|hmm*|correction){_PAUSE}"
_NO = r"(?<![?:*]\s)(?<!\*)(?<!but\s)nop?e?(?!\.\s?\d)"  # not after a question, nor `No. 5`
_CLAUSE = re.compile(r"(?:^|[.,;:!?…—–(\n]|\s-|\b(?i:oh|but|so|well|hmm?))[\s*_]{0,4}\Z")
_RETRACTION = re.compile(
    rf"""
    (?:
        {_LEAD}(?:{_LEAD})?no\b  # Wait, no. But not: Actually no one; Wait, no, that is right
        (?=\s*(?:[.,:;!…—–-]|$)|\s(?:it|that|this|the|wait|I)\b)
        (?!{_PAUSE}(?:that|this|it)(?:['’]s|\sis)\s(?:right|correct|fine|ok))
      | {_NO}{_PAUSE}(?:wait|actually|sorry)\b
      | (?:(?:scratch|strike)\sthat|never\smind|just\skidding|on\ssecond\sthought)\b
      | I\smade\san?\s(?:\w{{1,12}}\s)?(?:mistake|error)\b | let\sme\scorrect\b
      | (?:correction|edit)(?=\s?[:,—–])
      | (?:my\s(?:mistake|bad)|I\s(?:stand\scorrected|was\swrong))\b(?=\s*(?:[.,:;!—–-]|$))
      | (?:{_LEAD}|{_NO}{_PAUSE}|(?:or\srather|I\smean)\s)  # with another answer behind it
        (?: I\smeant\b | (?=
            (?:it|that|this|the\s(?:\w{{1,12}}\s)?answer)\s
            (?:should|must|has\sto)\s(?:have\s)?be(?:en)?\s(?!noted|clear|obvious|mentioned)
          | it(?:['’]s|\sis)\s(?!(?:not|right|correct|true|fine|ok|easy|clear|obvious)\b)
          | that(?:['’]s|\sis)\s(?:wrong|incorrect|not)\b | I\s(?:mis\w|forgot|made\sa)
          | [*_(\[$]{{0,4}}  # B. Oslo. 5 km.
            (?: (?-i:[A-Z]|(?<=[^\w\s]\s)[A-Z]\w{{1,20}}) | -?\d[\d.,/]{{0,20}}(?:\s\w{{1,12}})? )
            [*_)\]$.!]{{0,6}}\s*?$
        ))
    )(?:{_PAUSE})?
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_CUES = (  # how retractions begin, in lower case
    *("wait", "actually", "oops", "sorry", "hmm", "scratch that", "never mind", "just kidding"),
    *("hold on", "apologies", "strike that", "i made a", "let me correct"),
    *("on second", "or rather", "i mean ", "correction", "my mistake", "my bad", "i stand"),
    *("i was wrong", "edit:", "nope", "no,", "no.", "no:", "no!", "no —", "no –", "no wait"),
)


def kept(text: str) -> str:
    """Return what a text says behind its last retraction (`Actually, no`), or all of it.

    In JSON nothing is taken back.
    """
    if not text.startswith(("{", "```")) and (cues := _places(lowered(text), _CUES)):
        own = _without_next_question(text)
        for cue in reversed(cues):
            found = _RETRACTION.match(own, cue.start())
            if found and _CLAUSE.search(own[max(0, cue.start() - 12) : cue.start()]):
                return own[found.end() :].strip()
    return text


def _places(low: str, marks: Sequence[str]) -> list[re.Match[str]]:
    """Find where marks stand in a text in lower case, the last ones."""
    # Few marks are in a text, and `in` finds that out much faster than a pattern of all of them.
    present = [re.escape(mark) for mark in marks if mark in low]
    return list(re.finditer("|".join(present), low))[-_MAX_PLACES:] if present else []


class Agreed(NamedTuple, Generic[Extracted]):
    """What the statements of a reply agree on."""

    reading: Extracted | None = None
    problem: str = ""
    """Why a stated answer could not be read."""


# Takes back what is stated before it. `The answer is actually 5` does not.
_CORRECTION = re.compile(
    r"[\n.,;:!?(—–-]\s*(?:(?:oh|but|hmm)[,.…\s]+)?(?:wait|actually|correction|sorry|oops|rather"
    r"|no(?=[,.:;!—-]|\s+wait))\b|\b(?:mistaken?|scratch that|second thought|corrected|revised?)\b",
    re.IGNORECASE,
)


def agree(
    text: str,
    stated: Sequence[Statement],
    read: Callable[[Statement], Extracted | None],
    same: Callable[[Extracted, Extracted], bool] = eq,
) -> Agreed[Extracted]:
    """Read the answer that the statements of a text agree on.

    Args:
        text: The text in which the statements stand.
        stated: They, in order.
        read: Makes a reading of a statement; None where it holds nothing of the grader's kind.
        same: Tells whether two readings are the same answer.

    Returns:
        The last reading; none with a problem where those of the strongest kind differ, or where
        the last statement breaks off.
    """
    found = standing(text, stated, read)
    if found is None:
        return Agreed(None, "the stated answer breaks off")
    strongest = max((statement.strength for statement, _ in found), default=None)
    final = [each for each in found if each[0].strength == strongest]
    for statement, reading in final[1:]:
        if not same(reading, final[0][1]):
            values = f"{statement.value!r:.100}, then {final[0][0].value!r:.100}"
            return Agreed(None, f"ambiguous: {values}")
    return Agreed(final[0][1]) if final else Agreed()


def standing(
    text: str, stated: Sequence[Statement], read: Callable[[Statement], Extracted | None]
) -> list[tuple[Statement, Extracted]] | None:
    r"""Find the statements that count and their readings, the last one first.

    Those without a reading do not count, nor does a label or a sentence that runs on to one with a
    reading (`The answer is $\boxed{7}$`), nor what stands before a correction (`Wait`, `No,`,
    `Actually`), or before a final answer without being one. None where the last one breaks off.
    """
    found: list[tuple[Statement, Extracted]] = []
    for i in range(len(stated) - 1, -1, -1):
        statement = stated[i]
        if statement.value is None and not found:
            return None
        is_replaced = any(
            statement.end > later.start or (later.is_final and not statement.is_final)
            for later, _ in found[-1:]
        )
        reading = None if statement.value is None or is_replaced else read(statement)
        if reading is not None:
            found.append((statement, reading))
        if i and found and _CORRECTION.search(text, stated[i - 1].start, statement.start):
            break
    return found


_MARKS = (  # in lower case
    *("\\boxed", "####", "ans:", "answer", "antwort", "respuesta", "resposta", "risposta"),
    *("réponse", "ответ", "答案", "答え", "正解", "정답", "إجابة", "उत्तर"),
)
_POINT = re.compile(r"[.!?]\s")


def _find(text: str) -> list[Statement]:
    found: list[Statement] = []
    for mark in _places(lowered(_without_programs(text)), _MARKS):
        statement = _READERS.get(mark[0], _read_word)(text, mark.start())
        if statement is None:
            continue
        last = found.pop() if found else None
        if last and last.strength < Strength.MARKED and statement.start < last.end:
            if _POINT.search(text, last.start, statement.start):  # Answer: A. Answer: B
                value = _POINT.split(last.value or "", maxsplit=1)[0]
                last = last._replace(value=clean(value) or last.value, end=statement.start)
            elif last.is_final:  # Final answer: \boxed{7}
                statement = statement._replace(is_final=True)
        found += _join(text, last, statement) if last else [statement]
    return found


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

BOX = re.compile(r"\\boxed\s{0,3}(?:\{|(?<=[\sd])([^\W_])(?![\w}]))")
_BRACES = re.compile(r"[{}]|\\.", re.DOTALL)
_SPACE = r"(?:[\s$]|\\[()]|\\q?quad)*"
_JOINED = re.compile(
    rf"(?:{_SPACE}(?:[,;/]|\\(?:text|mbox)\s?\{{\s*(?:and|or)\s*\}}|and|or)){{1,2}}{_SPACE}"
    rf"(?:([^\W\d_]\w{{0,8}})\s?={_SPACE})?"  # the second x = of x = 1, x = 2
)
_PERCENT = re.compile(r"[\s$]{0,4}\\?%")
_HASHES = re.compile(
    r"^####[ \t]{0,4}([-+−$€£]{0,2}\d[\d.,/ ]{0,60}%?(?<![. ]))[. \t]*$", re.MULTILINE
)
_KEY = re.compile(r'"(?:final|correct)?[_ -]?answer"\s{0,20}:\s{0,20}', re.IGNORECASE)
_TAG = re.compile(r"<(?:final[_-]?)?answer>", re.IGNORECASE)
_TAG_END = re.compile(r"</(?:final[_-]?)?answer>", re.IGNORECASE)
_RAW = re.compile(r'"\s{0,9}([^"\n]{0,2000}[^"\s])\s{0,9}"')
_decoder = json.JSONDecoder()


def read_box(text: str, opened: re.Match[str]) -> tuple[str | None, int]:
    """Read what is in a box, None where it never closes, and where it ends."""
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
    return None, opened.end()


def _read_box(text: str, at: int) -> Statement | None:
    opened = BOX.match(text, at)
    if opened is None:
        return None
    inside, end = read_box(text, opened)
    value = None if inside is None else clean(inside)
    if value and "%" not in value and _PERCENT.match(text, end):
        value += "\\%"
    return Statement(value, Strength.MARKED, at, end) if value != "" else None


def _join(text: str, first: Statement, second: Statement) -> list[Statement]:
    r"""Make one statement of boxes that are joined: `\boxed{1} \text{ and } \boxed{2}`."""
    are_boxes = all(s.value and text.startswith("\\boxed", s.start) for s in (first, second))
    joined = are_boxes and _JOINED.fullmatch(text, first.end, second.start)
    before = text[max(0, first.start - 20) : first.start].rstrip("= $")
    if not joined or (joined[1] and not re.search(rf"\b{joined[1]}\Z", before)):
        return [first, second]
    values = dict.fromkeys((first.value or "", second.value or ""))
    # Numbers joined by `or` are all solutions; of words, only one is meant.
    is_either = "or" in joined[0] and not re.search(r"\d", "".join(values))
    value = (" or " if is_either else ", ").join(values)
    return [first._replace(value=value, end=second.end)]


def _read_hashes(text: str, at: int) -> Statement | None:
    hashes = _HASHES.match(text, at)
    return Statement(hashes[1], Strength.MARKED, at, hashes.end()) if hashes else None


_READERS = {"\\boxed": _read_box, "####": _read_hashes}


def _read_key(text: str, start: int, at: int) -> Statement | None:
    piece = text[at : at + _MAX_BOX]
    try:
        content, length = _decoder.raw_decode(piece)
    except (ValueError, RecursionError):
        raw = _RAW.match(piece)  # LaTeX with its backslashes as they are
        return Statement(raw[1], Strength.MARKED, start, at + raw.end()) if raw else None
    value = content.strip() if isinstance(content, str) else piece[:length]
    stated = None if content is None or not value else value
    return Statement(stated, Strength.MARKED, start, at + length)


def _read_tag(text: str, start: int, at: int) -> Statement | None:
    close = _TAG_END.search(text, at, at + _MAX_BOX)
    # Without a closing tag, generation was stopped at it.
    end = close.start() if close else min(at + MAX_VALUE, len(text))
    value = clean(text[at:end])
    return Statement(value, Strength.MARKED, start, end) if value else None


# --- Labels and sentences -----------------------------------------------------------------------

_WORD = (
    r"(?:(?<![^\W_])(?<![a-z]_)(?i:answers?|ans|antwort|respuesta|r[ei]sposta|réponse|ответ)"
    r"(?![^\W_]| (?:choices|options)\b)|答[案え]|正解|정답|إجابة|उत्तर)"
)
_GAP = (  # choice, correcta, (in km), to the question; but not (C)
    r"(?: [^\W\d_]{1,12}){0,2}?(?: ?\([^()\n]{2,40}\))?"
    r"(?: (?:to|for|of|in|that|I|we) (?:\"[^\"\n]{1,200}\"|[^\n.:\"]){1,80}?)?"
)
_IS = (
    r"[*_]{0,4}(?: (?:is|IS|are|was|(?:would|should|must|will|has to) be|equals|ist|lautet|es|est|é"
    r"|è)(?![\w'’])|\s?(?:是|为|為|は|은|는|هي|هو))[:：]?[*_]{0,4}"
    r"(?:,? (?:therefore|thus|then|clearly|definitely|probably|equal to|as follows"
    r"|la(?= [(*]{0,3}\w\b))\b[,:]?)?"
)
_LINK = re.compile(
    rf"{_WORD}(?:{_GAP}(?:(?P<sentence>{_IS})"
    r"|(?P<label>[*_`\"'”’\])]{0,8}[ \t]{0,8}(?:[:：=】]|->|=>|→| [-–—](?=\s))[*_]{0,4}))"
    r"|(?P<heading>[*_]{0,8}[ \t]{0,8}(?=\n|\Z)))"
)
_DENYING = re.compile(r"not|never|if|wrong|incorrect|other|cannot|nor|neither|.*n['’]t", re.DOTALL)
_BETWEEN = re.compile(
    "the|my|our|a|this|that|it|i|be|is|final|correct|right|answer|think|believe|say|go"
)


def is_denied(before: str) -> bool:
    """Return whether `not`, `if` or `wrong` ends a text, directly or before words like `the`."""
    before = before[before.rfind("\n") + 1 :]
    for _ in range(6):
        before, _, word = before.rstrip(" ").rpartition(" ")
        bare = word.strip("*_(").lower()
        if _DENYING.fullmatch(bare):
            return True
        if not _BETWEEN.fullmatch(bare):
            return False
    return False


ASKED = re.compile(  # the rest of a question that is not answered with `Yes`
    r"(?:[^.!?\n]|[.!?](?![*_\"')]{0,3}(?:\s|\Z))){0,2000}+\?(?!\W{0,9}(?i:yes|correct)\b)"
)


def _read_word(text: str, start: int) -> Statement | None:
    """Read the tag, key, label or sentence that has a word for `answer` at a place."""
    behind = text[start + 6 : start + 7]
    if behind == ">":
        tag = _TAG.match(text, max(0, text.rfind("<", 0, start)))
        return _read_tag(text, tag.start(), tag.end()) if tag else None
    if behind == '"' and (key := _KEY.match(text, max(0, text.rfind('"', 0, start)))):
        return _read_key(text, key.start(), key.end())
    link = _LINK.match(text, start)
    if link is None:
        return None
    before = text[max(0, start - 80) : start]
    if is_denied(before) or (link.lastgroup == "heading" and len(before.split()) > 3):
        return None
    value, end = _value_at(text, link.end())
    is_sentence = link.lastgroup == "sentence"
    if not value or (is_sentence and (value.startswith("not ") or ASKED.match(text, link.end()))):
        return None
    strength = Strength.SENTENCE if is_sentence else Strength.LABEL
    is_final = before.rstrip(" *_-").lower().endswith(("final", "最终", "最終"))
    return Statement(value, strength, start, end, is_final)


_BULLET = re.compile(r"(?:[-*•>+]|\d{1,2}[.)])\s+")
# Neither `St. Louis`, `J. K. Rowling` nor `5 p.m.` ends with its point.
_SENTENCE_END = re.compile(
    r"(?<!\b[^\W\d_])(?<!\b(?:St|Dr|Mr|Ms|Jr|Mt|No|vs))(?<!\bMrs)"
    r"[.!?][\"'”’)*_]{0,4}(?=\s+[^\sa-z\d=+*/<>-])|[。！？](?=.)"
)


def _value_at(text: str, at: int) -> tuple[str, int]:
    """Read what is stated at a place, up to where: the rest of the sentence, or what is below."""
    for lines_below in range(5):
        line, end = _line_at(text, at)
        if line and lines_below:
            below = text[at : at + _MAX_BOX]
            if line.startswith(("```", "~~~")) and (block := next(fenced(below), None)):
                code = below[block.inner : block.inner_end] if block.closed else ""
                return code, at + block.end
            if _BULLET.match(line):
                return _items(text, at)
        if line not in ("", "$$", "\\["):
            value, sentence_end = sentence_at(text, at)
            if value:
                return value, sentence_end
        if end == len(text):
            break
        at = end + 1
    return "", at


def _line_at(text: str, at: int) -> tuple[str, int]:
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    return text[at : min(end, at + MAX_VALUE)].strip(), end


def _items(text: str, at: int) -> tuple[str, int]:
    """Read a list, one item per line, up to the first line at the margin that is no item."""
    items: list[str] = []
    last = min(len(text), at + _MAX_BOX)
    while at < last:
        line, end = _line_at(text, at)
        if bullet := _BULLET.match(line):
            items.append(sentence_at(line, bullet.end())[0])
        elif line and not text[at].isspace():
            break
        at = end + 1
    return "\n".join(filter(None, items)), min(at, len(text))


def sentence_at(text: str, at: int) -> tuple[str, int]:
    """Read the rest of a sentence on its line, without the markup around it, and up to where."""
    _, line_end = _line_at(text, at)
    line_end = min(line_end, at + MAX_VALUE)
    if found := _SENTENCE_END.search(text, at, line_end):
        return clean(text[at : found.end()]), found.end()
    return clean(text[at:line_end].strip().removesuffix("</answer>")), line_end


_MARKUP = " \n\t\r*`"
_WRAPPED = re.compile(
    r"\\?\"([^\"]*?)\\?\"|“([^”]*)”|'([^']*)'|_([^_]*)_|\$\$?([^$]*)\$\$?|\\\((.*)\\\)|\\\[(.*)\\\]"
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
