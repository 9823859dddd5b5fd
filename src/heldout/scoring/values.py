"""What is stated at a place of a text: up to the end of its sentence, without the markup around it.

Answer: **St. Louis**. It is a city.     St. Louis
## Answer                                42
- 42
{"answer": "St. Louis. Or so"}           St. Louis. Or so
"""

from __future__ import annotations

import json
import re

from heldout._format import cut
from heldout.chat.reasoning import fenced

LONGEST = 2000
"""Characters of one line, or of an unclosed tag, that are read."""

_BULLET = re.compile(r"(?:[-*•>+]|\d{1,2}[.)])\s+")
_SENTENCE = re.compile(r"[.!?][\"'”’)*_]{0,4}(?=\s)|[。！？](?=.)")
_ABBREVIATIONS = frozenset(
    (
        *("st", "dr", "mr", "mrs", "ms", "jr", "sr", "prof", "vs", "etc", "mt", "ft", "inc"),
        *("co", "ltd", "approx", "fig"),
    )
)
_DOTTED = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")  # p.m, U.S, C
_BEGINNINGS = re.compile(
    r"\s*[*_]{0,3}(?:the|it|its|it's|this|that|these|he|she|they|we|i|you|there|in|so|but|because"
    r"|since|however|therefore|thus|hence|note|as)\b",
    re.IGNORECASE,
)
_FOLLOWS = re.compile(r"(?:as follows|the following|below|here)\W{0,4}\Z", re.IGNORECASE)
_STRUCK = re.compile(r"~~[^~\n]+~~")
_HTML = re.compile(
    r"</?(?:b|i|u|em|strong|p|br|code|span|mark|div|li|td|sup|sub|h[1-6])\s{0,3}/?>", re.IGNORECASE
)
_PAIRED = {'"': '"', "“": "”", "'": "'", "‘": "’", "$": "$", "_": "_", "«": "»", "「": "」"}
_LATEX = (
    *(("\\(", "\\)"), ("\\[", "\\]"), ("\\text{", "}"), ("\\mathrm{", "}")),
    *(("\\textbf{", "}"), ("\\mathbf{", "}")),
)
# What a value may begin, or end with, that is no part of it.
_STOPS = ".。,;"
_FIRST, _LAST = frozenset((*_PAIRED, *"*`\\<.,;:-")), frozenset((*_STOPS, *"*`_>"))
_decoder = json.JSONDecoder()


def value_at(text: str, at: int) -> str | None:
    """What is stated at a place: the rest of the line, or what comes next below it."""
    end = text.find("\n", at)
    line = text[at : min(end if end >= 0 else len(text), at + LONGEST)].strip()
    if len(line) < 4 and line.isalnum():  # a letter, or a number
        return line
    value = first_sentence(line)
    if value and not _FOLLOWS.match(value):
        return value
    for _ in range(4):
        if end < 0:
            return None
        at = end + 1
        end = text.find("\n", at)
        line = text[at : min(end if end >= 0 else len(text), at + LONGEST)].strip()
        if line.startswith(("```", "~~~")):
            block = next(fenced(text[at : at + 10 * LONGEST]), None)
            if block:
                return text[at + block.inner : at + block.inner_end] if block.closed else None
        if line in ("$$", "\\["):
            close = text.find("$$" if line == "$$" else "\\]", at + len(line))
            return tidied(text[at + len(line) : close]) if close >= 0 else None
        if _BULLET.match(line):
            return _items(text, at)
        if value := first_sentence(line):
            return value
    return None


def _items(text: str, at: int) -> str | None:
    """The items of a list, a line each: the first alone would be half an answer."""
    items: list[str] = []
    for line in text[at : at + 10 * LONGEST].split("\n"):
        bullet = _BULLET.match(line.strip())
        if bullet:
            items.append(first_sentence(line.strip()[bullet.end() :]))
        elif line.strip():
            break
    return "\n".join(item for item in items if item) or None


def json_value_at(text: str, at: int) -> tuple[bool, str | None]:
    """The JSON value behind a key's colon: whether there is one, and what it says, if anything."""
    piece = text[at : at + 5 * LONGEST].lstrip()
    if piece[:1] == "'":
        close = piece.find("'", 1)
        return close > 0, piece[1:close].strip() or None
    try:
        value, length = _decoder.raw_decode(piece)
    except (ValueError, RecursionError):
        return False, None
    if isinstance(value, str):
        return True, value.strip() or None
    return True, None if value is None else piece[:length]


def first_sentence(line: str) -> str:
    close = line.find("</")
    if close >= 0 and line[close:].lower().startswith("</answer>"):
        line = line[:close]
    if "~~" in line:
        line = _STRUCK.sub("", line)
    stop = _SENTENCE.search(line)
    while stop:
        if _ends(line, stop):
            return tidied(line[: stop.end()])
        if stop.start() > 400:
            break
        stop = _SENTENCE.search(line, stop.end())
    return tidied(line)


def _ends(line: str, stop: re.Match[str]) -> bool:
    """Whether a full stop ends the sentence, as it does not in `St. Louis`, `5 p.m.` or `5! = `."""
    words = line[max(0, stop.start() - 80) : stop.start()].split()
    word = words[-1].lower().lstrip("(*_\"'") if words else ""
    behind = line[stop.end() : stop.end() + 40]
    if not word or word in _ABBREVIATIONS:
        return False
    if (
        line[stop.start()] == "!"
        and word[-1:].isdigit()
        and behind.lstrip()[:1] in tuple("=+-×/*<>")
    ):
        return False
    if word == "no" and behind.lstrip()[:1].isdigit():
        return False
    return not _DOTTED.fullmatch(word) or bool(_BEGINNINGS.match(behind))


def tidied(value: str) -> str:
    """Without the markup, quotes, maths signs and full stop around it."""
    bare = value.strip()
    if bare and bare[0] not in _FIRST:  # as most are, and nothing to take off but a full stop
        if bare[-1] not in _LAST:
            return bare
        shorter = bare[:-1]
        if (
            bare[-1] in _STOPS
            and shorter
            and shorter[-1] not in _LAST
            and not shorter[-1].isspace()
        ):
            return shorter
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
        if len(value) > 1 and _PAIRED.get(first) == value[-1] and _wraps(value, first):
            value = value[1:-1]
        if first == "\\":
            for opening, closing in _LATEX:
                if value.startswith(opening) and value.endswith(closing):
                    inner = value[len(opening) : -len(closing)]
                    if closing not in inner:
                        value = inner
        elif first == "<" and (tag := _HTML.match(value)):
            value = value[tag.end() :]
        if value[-1:] == ">" and (tag := _HTML.fullmatch(value, max(0, value.rfind("<")))):
            value = value[: tag.start()]
        if value == before or value.isalnum():
            break
        if value and value[0] not in _FIRST and value[-1] not in _LAST and value == value.strip():
            return value
    return value if value.strip(".,;:-*_`\"'$ ") or value in ("-", ",", ".", ";", ":") else ""


def _wraps(value: str, mark: str) -> bool:
    """Whether the marks at both ends belong together, as they do not in `"a" and "b"`."""
    return _PAIRED[mark] not in value[1:-1] or value == mark * 2 or value[1:2] == mark


def shown(text: str, limit: int = 500) -> str:
    """A text as it is kept in a metric: its beginning, where it is very long."""
    return cut(text, limit)
