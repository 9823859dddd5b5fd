"""Text against text: exact, normalised, contained, by words, by common subsequence, by list.

Normalising folds case, Unicode forms, punctuation, articles and spaces, and no more than that:
`-5` does not become 5, `3.5` not 35, `+` not the same nothing as `-`. A target may be several
texts that are all right; the best one counts.

Token F1 and ROUGE-L read at most `TOKEN_LIMIT` tokens of either text (the note says so), lists
are looked for in the last 20 times as many characters, the
alignment of lists is optimal up to `SPAN_LIMIT` items on either side and greedy beyond; all else
is linear.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from heldout.errors import InvalidInput
from heldout.scoring.answers import answer_text, last_statement, shown
from heldout.scoring.grades import Grade
from heldout.scoring.numbers import parse_number

TOKEN_LIMIT = 10_000
SPAN_LIMIT = 32

Read = Literal["stated", "whole"]
"""What is graded: the last stated answer, or the whole text where none is stated; or always
the whole text."""

Targets = str | Sequence[str]

# --- Normalising --------------------------------------------------------------------------------

_MARKS = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\x7f' + "".join(map(chr, range(32)))
_PUNCTUATION = str.maketrans(dict.fromkeys(_MARKS, " ") | {"'": ""})
_NOT_WORD = re.compile(r"[^\w\s]|_")
_SPECIAL = re.compile(r"\d|[a-z][+#]")
_ARTICLES = frozenset(("a", "an", "the"))
_WORD = re.compile(r"\w+")


def normalised(text: str) -> str:
    """A text with case, Unicode form, punctuation, articles and spaces folded."""
    return " ".join(tokens(text))


def tokens(text: str, limit: int = sys.maxsize) -> list[str]:
    """The words of a normalised text; numbers are one token each, `1,000.0` the same as `1000`.

    Reading stops some way after `limit` words.
    """
    plain = text.isascii()
    if not plain:
        text = unicodedata.normalize("NFKC", text)
    folded = text.casefold()
    if not _SPECIAL.search(folded):
        words = _words(folded, plain)
    else:
        words = []
        folded = " ".join(folded.split())
        at = 0
        while len(words) <= limit and (found := _SPECIAL.search(folded, at)):
            start = folded.rfind(" ", at, found.start()) + 1 or at
            words += _words(folded[at:start], plain)
            at = folded.find(" ", found.start())
            at = len(folded) if at < 0 else at
            words += _special(folded[start:at], plain)
        words += _words(folded[at:], plain)
    kept = [word for word in words if word not in _ARTICLES]
    # Where nothing is left, what was there is the text: "+" is not "-", and "A" not "the".
    return kept or words or folded.split()


def _words(text: str, plain: bool) -> list[str]:
    if plain:
        return text.translate(_PUNCTUATION).split()
    return _NOT_WORD.sub(" ", text.replace("'", "").replace("’", "")).split()


def _special(piece: str, plain: bool) -> list[str]:
    """A piece without spaces whose punctuation matters: a number, as its value, or `c++`."""
    core = piece.strip("\"'()[]{}<>*_`!?;:,“”‘’").rstrip(".")
    if _LANGUAGE.fullmatch(core):
        return [core]
    if core.isdecimal() and core.isascii() and (core == "0" or core[0] != "0"):
        return [core]
    number = parse_number(core) if len(core) <= 64 and not _LETTER.search(core) else None
    if number is None or number.end != len(core):
        return _words(piece, plain)
    return [f"{number.value}{'%' if number.percent else ''}"]


_LANGUAGE = re.compile(r"[a-z]{1,20}(?:\+{1,2}|#)")
_LETTER = re.compile(r"[^\W\d_]|:")


# --- Whole texts --------------------------------------------------------------------------------


def grade_exact(answer: str | None, target: Targets, *, read: Read = "stated") -> Grade:
    """1.0 where the answer is the target, character for character, spaces around it aside."""
    return _best(answer, target, read, lambda text, wanted: float(text == wanted.strip()))


def grade_match(answer: str | None, target: Targets, *, read: Read = "stated") -> Grade:
    """1.0 where the answer is the target once both are normalised."""
    return _best(answer, target, read, _matches)


def _matches(text: str, target: str) -> float:
    wanted = tokens(target)
    reach = 2 * len(target) + 60
    if len(text) > reach:  # most long answers differ before they end
        start = tokens(text[:reach].rpartition(" ")[0])
        if start and (len(start) > len(wanted) or start != wanted[: len(start)]):
            return 0.0
    return float(tokens(text) == wanted)


def grade_includes(answer: str | None, target: Targets, *, read: Read = "whole") -> Grade:
    """1.0 where the normalised target stands in the answer, as whole words."""
    return _best(answer, target, read, _includes)


def _includes(text: str, target: str) -> float:
    wanted = tokens(target)
    plain = text if text.isascii() else unicodedata.normalize("NFKC", text)
    if all(word in _ARTICLES for word in wanted):
        return float(_within(wanted, _words(plain.casefold(), plain=plain.isascii())))
    if not any(c.isalnum() for word in wanted for c in word):
        marks = unicodedata.normalize("NFKC", target).casefold().split()
        return float(" ".join(marks) in " ".join(plain.casefold().split()))
    words = [word for word in wanted if word.isalpha() and word.isascii()]
    if words:  # the rarest word is likely the longest: without it, or around it, all is said
        anchor = max(words, key=len)
        folded = plain.casefold()
        if "'" not in folded and "’" not in folded and anchor not in folded:
            return 0.0
        at = folded.find(anchor)
        near = folded[max(0, at - 20 - 2 * len(target)) : at + 20 + 2 * len(target)]
        near = near.partition(" ")[2].rpartition(" ")[0]
        if at >= 0 and _within(wanted, tokens(near)):
            return 1.0
    return float(_within(wanted, tokens(plain)))


def _within(wanted: list[str], found: list[str]) -> bool:
    return f" {' '.join(wanted)} " in f" {' '.join(found)} "


def grade_f1(answer: str | None, target: Targets, *, read: Read = "stated") -> Grade:
    """The F1 of the answer's normalised words against the target's."""
    return _with_tokens(answer, target, read, token_f1)


def grade_rouge_l(answer: str | None, target: Targets, *, read: Read = "whole") -> Grade:
    """ROUGE-L: the F1 of the longest common subsequence of words (case folded, no stemming)."""
    return _with_tokens(answer, target, read, rouge_l, split=_rouge_tokens)


def _best(
    answer: str | None, target: Targets, read: Read, value: Callable[[str, str], float]
) -> Grade:
    wanted = _targets(target)
    text = _read(answer, read)
    if text is None:
        return Grade(0.0, None, "no answer")
    return Grade(max(value(text, one) for one in wanted), shown(text))


def _limited(text: str) -> list[str]:
    return tokens(text, TOKEN_LIMIT)


def _with_tokens(
    answer: str | None,
    target: Targets,
    read: Read,
    value: Callable[[list[str], list[str]], float],
    *,
    split: Callable[[str], list[str]] = _limited,
) -> Grade:
    wanted = _targets(target)
    text = _read(answer, read)
    if text is None:
        return Grade(0.0, None, "no answer")
    note = ""
    considered = text
    if len(text) > 20 * TOKEN_LIMIT:
        considered = text[: 20 * TOKEN_LIMIT]
    found = split(considered)
    if considered is not text or len(found) > TOKEN_LIMIT:
        found, note = found[:TOKEN_LIMIT], f"only the first {TOKEN_LIMIT} words are graded"
    best = max(value(found, split(one)[:TOKEN_LIMIT]) for one in wanted)
    return Grade(best, shown(text), note)


def _targets(target: Targets) -> Sequence[str]:
    wanted = (target,) if isinstance(target, str) else target
    if not wanted or not all(isinstance(one, str) and one.strip() for one in wanted):
        raise InvalidInput(f"the target is a text or several, none empty, got {target!r:.100}")
    return wanted


def _read(answer: str | None, read: Read) -> str | None:
    text = answer_text(answer)
    if text is None or read == "whole":
        return text
    statement = last_statement(text)
    return statement.value if statement else text


def token_f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    """F1 of two bags of words."""
    if not found or not wanted:
        return float(not found and not wanted)
    left = Counter(wanted)
    common = 0
    for word in found:
        if left.get(word, 0):
            left[word] -= 1
            common += 1
    return 2 * common / (len(found) + len(wanted))


def _rouge_tokens(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def rouge_l(found: Sequence[str], wanted: Sequence[str]) -> float:
    """F1 of the longest common subsequence of two lists of words."""
    if not found or not wanted:
        return 0.0
    return 2 * _common(found, wanted) / (len(found) + len(wanted))


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence, a whole row of the table at a time.

    A bit of `row` is 0 where the table rises, so that a row costs a few operations on one
    integer instead of a loop.
    """
    places: dict[str, int] = {}
    for place, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << place
    full = row = (1 << len(one)) - 1
    for word in other:
        same = row & places.get(word, 0)
        if same:
            row = (row + same | row - same) & full
    return len(one) - row.bit_count()


# --- Lists --------------------------------------------------------------------------------------

_ITEM = re.compile(r"\s*(?:[-*•]|\d{1,3}[.)])\s+")
_AND = re.compile(r"\s+(?:and|und|et|y)\s+", re.IGNORECASE)


def split_list(text: str) -> tuple[str, ...]:
    """The items of a list as written: JSON, lines with bullets or numbers, or commas and `and`."""
    text = text.strip()
    if text[:1] == "[":
        try:
            items = msgspec.json.decode(
                text.encode("utf-8", "replace"), type=list[str | int | float]
            )
            return tuple(str(item) for item in items)
        except (msgspec.DecodeError, RecursionError):
            pass
    if text[:1] in "[({" and text[-1:] in "])}":
        text = text[1:-1]
    if "\n" in text:
        lines = [_ITEM.sub("", line, count=1) if _ITEM.match(line) else line
                 for line in text.split("\n")]  # fmt: skip
        return tuple(line.strip() for line in lines if line.strip())
    parts = re.split(r";\s*", text) if ";" in text else re.split(r",\s+|,(?=\D)", text)
    *most, last = parts
    tail = (
        _AND.split(last.removeprefix("and "), maxsplit=1) if most or _AND.search(last) else [last]
    )
    return tuple(item.strip(" .\"'") for item in (*most, *tail) if item.strip(" .\"'"))


def grade_list(answer: str | None, target: Sequence[str], *, partial: bool = False) -> Grade:
    """1.0 where the items are the target's, normalised, in the same order.

    `partial` gives the F1 of the longest common subsequence of items instead.
    """
    return _items(answer, target, lambda a, b: float(a == b), rouge_l if partial else None)


def grade_set(answer: str | None, target: Sequence[str], *, partial: bool = False) -> Grade:
    """1.0 where the items are the target's, normalised, in any order and however often.

    `partial` gives the F1 of the two sets instead.
    """

    def overlap(found: Sequence[str], wanted: Sequence[str]) -> float:
        return token_f1(sorted(set(found)), sorted(set(wanted)))

    return _items(
        answer, target, lambda a, b: float(set(a) == set(b)), overlap if partial else None
    )


Compare = Callable[[Sequence[str], Sequence[str]], float]


def _items(
    answer: str | None, target: Sequence[str], same: Compare, partial: Compare | None
) -> Grade:
    if isinstance(target, str):
        raise InvalidInput(f"the target is a list of texts, got the text {target!r:.100}")
    found = _found_items(answer)
    if found is None:
        return Grade(0.0, None, "no answer")
    folded = [" ".join(_limited(item)) for item in found]
    wanted = [" ".join(_limited(item)) for item in target]
    return Grade((partial or same)(folded, wanted), shown("; ".join(found)))


def _found_items(answer: str | None) -> tuple[str, ...] | None:
    text = answer_text(answer)
    if text is None:
        return None
    text = text[-20 * TOKEN_LIMIT :]
    statement = last_statement(text)
    # A list below `Answer:` goes on to the end of the text.
    if statement and statement.kind == "words":
        line = text.find("\n", statement.start)
        below = text[line:].strip() if line >= 0 else ""
        head = text[statement.start : line].rstrip("*_ \t") if line >= 0 else ""
        if head.endswith((":", "：")) and _ITEM.match(below):
            return split_list(below)[:TOKEN_LIMIT]
    if statement:
        return split_list(statement.value)[:TOKEN_LIMIT] if statement.value else None
    return split_list(text)[:TOKEN_LIMIT]


# --- DROP ---------------------------------------------------------------------------------------


def grade_spans(answer: str | None, target: Sequence[Sequence[str]] | Sequence[str]) -> Grade:
    """DROP's F1: spans aligned one to one so that their token F1 is largest, over the longer list.

    `target` is the list of spans, or several such lists that are all right. Spans with different
    numbers do not match at all. The note says whether the spans match exactly.
    """
    if not target or isinstance(target, str):
        raise InvalidInput(f"the target is a list of spans, not empty, got {target!r:.100}")
    lists = [[one] if isinstance(one, str) else list(one) for one in target]
    if all(isinstance(one, str) for one in target):
        lists = [[span for one in lists for span in one]]
    found = _found_items(answer)
    if found is None:
        return Grade(0.0, None, "no answer")
    graded = [(span_f1(found, wanted), span_match(found, wanted)) for wanted in lists]
    value, exact = max(graded)
    note = "exact match" if exact else ""
    if len(found) > SPAN_LIMIT:
        note = f"more than {SPAN_LIMIT} spans are aligned greedily"
    return Grade(value, shown("; ".join(found)), note)


def span_match(found: Sequence[str], wanted: Sequence[str]) -> float:
    """1.0 where both have the same normalised spans, and as many."""
    same = {" ".join(_limited(one)) for one in found} == {" ".join(_limited(one)) for one in wanted}
    return float(same and len(found) == len(wanted))


def span_f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    """The mean token F1 of spans under the best one-to-one alignment, over the longer list."""
    if not found or not wanted:
        return float(not found and not wanted)
    ours = [_limited(span)[:TOKEN_LIMIT] for span in found[: 8 * SPAN_LIMIT]]
    theirs = [_limited(span)[:TOKEN_LIMIT] for span in wanted[: 8 * SPAN_LIMIT]]
    table = [[_span_value(one, other) for other in theirs] for one in ours]
    total = _aligned(table) if max(len(ours), len(theirs)) <= SPAN_LIMIT else _greedy(table)
    return total / max(len(found), len(wanted))


def _span_value(one: list[str], other: list[str]) -> float:
    numbers = {word for word in other if word[:1].isdigit() or word[:1] == "-"}
    if numbers and not numbers & set(one):
        return 0.0
    return token_f1(one, other)


def _greedy(table: list[list[float]]) -> float:
    pairs = sorted(
        ((value, i, j) for i, row in enumerate(table) for j, value in enumerate(row) if value),
        key=lambda pair: (-pair[0], pair[1], pair[2]),
    )
    rows: set[int] = set()
    columns: set[int] = set()
    total = 0.0
    for value, i, j in pairs:
        if i not in rows and j not in columns:
            rows.add(i)
            columns.add(j)
            total += value
    return total


def _aligned(table: list[list[float]]) -> float:
    """The largest sum of values with no row and no column used twice.

    Rows are assigned one after the other, each along the cheapest path of reassignments, with
    prices on rows and columns that keep all reduced costs at 0 or more.
    """
    if len(table) > len(table[0]):
        table = [list(column) for column in zip(*table, strict=True)]
    height, width = len(table), len(table[0])
    row_price, column_price = [0.0] * (height + 1), [0.0] * (width + 1)
    row_of = [0] * (width + 1)  # rows and columns count from 1; 0 is nobody
    for start in range(1, height + 1):
        row_of[0], column = start, 0
        cheapest, came_from = [float("inf")] * (width + 1), [0] * (width + 1)
        done = [False] * (width + 1)
        while row_of[column]:
            done[column] = True
            row, step, following = row_of[column], float("inf"), 0
            for j in range(1, width + 1):
                if done[j]:
                    continue
                cost = -table[row - 1][j - 1] - row_price[row] - column_price[j]
                if cost < cheapest[j]:
                    cheapest[j], came_from[j] = cost, column
                if cheapest[j] < step:
                    step, following = cheapest[j], j
            for j in range(width + 1):
                if done[j]:
                    row_price[row_of[j]] += step
                    column_price[j] -= step
                else:
                    cheapest[j] -= step
            column = following
        while column:
            row_of[column] = row_of[came_from[column]]
            column = came_from[column]
    return sum(table[row_of[j] - 1][j - 1] for j in range(1, width + 1) if row_of[j])
