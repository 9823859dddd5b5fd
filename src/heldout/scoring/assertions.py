"""Whether a sentence asserts an answer: by the clause before it, by its value, and by what follows.

I don't think the answer is A        denied
Some would say the answer is A       reported
The answer is A?                     asked
The answer is 42. It is unique.      42, whatever remarks follow
Answer: 18. No wait, it is 19.       19
"""

from __future__ import annotations

import re
from functools import lru_cache

from heldout.scoring.announcements import is_not_meant
from heldout.scoring.values import first_sentence

# --- Before -------------------------------------------------------------------------------------

_LINK = (
    r"[,:]?(?:\s+that)?[\s*_\"“'(]{0,5}(?:\b(?:the|my|our|its|this)\s)?"
    r"(?:(?:final|correct|right|best|real|true)\s){0,2}[*_]{0,4}\Z"
)
_SAYS = re.compile(
    r"\b(?P<says>says?|said|thinks?|believes?|claims?|argues?|guess(?:es)?|conclude[sd]?|agrees?"
    r"|sure|certain|convinced|confident|true|case|likely|possible|correct|right|mean|be|clear)"
    rf"{_LINK}"
    r"|\b(?P<no>thought|believed|assumed|guessed|claimed|doubt(?:s|ed)?|false|untrue|unlikely|impossible|wrong"
    r"|incorrect|mistake|error|example|e\.g\.|for instance|glance|hope)"
    rf"{_LINK}"
)
_NEGATED = re.compile(r"n['’]t\b|\b(?:not|never|cannot|nobody|none|no|neither|nor|hardly|rarely)\b")
_OTHERS = frozenset(("say", "says", "said", "think", "thinks", "believe", "believes", "claim"))
_OTHERS |= {"claims", "argue", "argues", "guess", "guesses"}
_SELF = re.compile(r"\b(?:i|we|let['’]?s|us|me)\b|['’](?:d|ll)\b")
_NO_LABEL = re.compile(
    r"\b(?:rate|in|of|this|that|alternative|possible|students?['’]?s?|mistake|error)[\s*_]{1,3}\Z"
)
_BETWEEN = frozenset(
    ("the", "my", "our", "its", "this", "final", "correct", "right", "best", "real")
)
_BETWEEN |= {"true", ""}
_SAY = frozenset(
    (
        *(
            "say",
            "sai",
            "thi",
            "tho",
            "bel",
            "cla",
            "arg",
            "gue",
            "con",
            "agr",
            "sur",
            "cer",
            "tru",
        ),
        *("cas", "lik", "pos", "cor", "rig", "mea", "be", "cle", "ass", "dou", "fal", "unt", "unl"),
        *("wro", "inc", "mis", "err", "exa", "e.g", "ins", "gla", "hop", "imp"),
    )
)
"""What the words of the pattern begin with."""


def _may_say(before: str) -> bool:
    linked = False
    for word in reversed(before.split()):
        word = word.strip(",:\"“'*_(.")
        if word == "that":
            linked = True
        elif linked or word not in _BETWEEN:
            return word[:3] in _SAY
    return False


def is_asserted(before: str, *, is_colon: bool) -> bool:
    """Whether the line before an announcing word lets it assert anything."""
    if not before.strip(" *_#>"):
        return True
    if len(before) <= _COMMON:  # `the final `, `so the correct `: most are alike
        return _is_asserted_once(before, is_colon)
    return _is_asserted(before, is_colon)


_COMMON = 48  # characters


def _is_asserted(before: str, is_colon: bool) -> bool:
    if is_not_meant(before[-40:]):
        return False
    if before.rstrip(" *_")[-2:] in ("'s", "’s", "s'", "s’"):
        return False  # the student's answer
    if is_colon and _NO_LABEL.search(before):
        return False
    if not _may_say(before[-60:]):
        return True  # as is seen much sooner than by the pattern
    said = _SAYS.search(before[-80:])
    if not said:
        return True
    before = before[-80:]
    if said["no"]:
        return False
    sentence = re.split(r"[.!?;,]\s|\bbut\b", before[: said.start()])[-1]
    if _NEGATED.search(sentence):
        return False
    return said["says"] not in _OTHERS or _SELF.search(sentence) is not None


_is_asserted_once = lru_cache(maxsize=1024)(_is_asserted)


_IF = re.compile(r"\b(?:if|suppose|supposing|assuming|had)\b[^.!?\n]{1,100}\Z")


def is_supposed(before: str, verb: str) -> bool:
    """Whether a sentence only says what the answer is, or would be, under a condition."""
    may = "if " in before or "suppos" in before or "assum" in before or "had " in before
    return "would" in verb or (may and "," in before and _IF.search(before) is not None)


# --- The value ----------------------------------------------------------------------------------

_DENIED = re.compile(
    r"[\W_]{0,4}[^\s]{1,24}\s(?:(?:is|was|are|were)\s(?:\w+\s)?(?:not|wrong|incorrect|false)\b"
    r"|(?:is|was|are|were)n['’]t\b|would be (?:wrong|incorrect)\b)",
    re.IGNORECASE,
)


def denied(value: str, *, weak: bool) -> bool:
    """Whether a value takes itself back: `A is wrong`, or a question mark behind it."""
    if value[-1] == "?" and (weak or " " not in value) and len(value) > 1:
        return True
    if len(value) < 3:
        return False
    if not value.isascii() and any(mark in value[:100] for mark in "❌✗✘"):
        return True
    return (" is" in value or " was" in value or " are" in value) and bool(_DENIED.match(value))


_LETTER = re.compile(
    r"[\W_]{0,4}(?:(?:option|choice|letter)\s)?[\W_]{0,4}[^\W\d_](?:[\W_]{0,4}\Z|[).:,]{1,3}[*_]{0,2}\s)",
    re.IGNORECASE,
)
_NUMBER = re.compile(
    r"[\W_]{0,4}[-+−]?[$€£¥]?\d[\d.,/]*\s?(?:%|°)?(?:\s?[^\W\d_]{1,20}\.?){0,2}[\W_]{0,4}\Z"
    r"|[$\\(]{0,3}\\[dt]?frac\s?\{?-?\d+\}?\s?\{?\d+\}?[$\\)]{0,3}\Z"
)


def _shape(value: str) -> str:
    if _LETTER.match(value):
        return "letter"
    if _NUMBER.match(value):
        return "number"
    first = next((character for character in value[:40] if character.isalnum()), "")
    return "name" if first.isupper() else "words"


def is_plain(value: str | None) -> bool:
    """Whether it is a letter or a number, as no remark is."""
    return value is not None and bool(_LETTER.match(value) or _NUMBER.match(value))


def replaces(later: str | None, earlier: str | None, *, weak: bool) -> bool:
    """Whether a sentence about the answer states another one, and is not a remark about it.

    It does where both are a letter, or both a number. An earlier sentence (`weak`) is also
    replaced by words like its own, or by a letter or a number.
    """
    if not later or not earlier:
        return later is not None
    shape = _shape(later)
    if shape in ("letter", "number"):
        return weak or shape == _shape(earlier)
    return weak and shape == _shape(earlier)


# --- Behind -------------------------------------------------------------------------------------

_HINTS_OF = (
    *("wait", "correction", "mistake", "actually", "no,", "no wait", "oops", "sorry", "scratch"),
    *("kidding", "second thought", "i meant", "was wrong", "apolog", "edit:"),
)
_TAKES_BACK = re.compile(
    r"(?:\A|[.!?…\n]|\s[-–—]\s)[\s*_(>\"”)]{0,8}(?:(?:oh|hm+|but|ah|uh|um|and|well)[,.… ]{1,4})*"
    r"(?:(?P<surely>no,? wait|wait,? no\b|correction|scratch that|(?:just )?kidding|oops"
    r"|on second thought|i meant|i was wrong|my mistake|edit:"
    r"|(?:wait|no|actually|hm+)[,.!… ]{1,4}(?:that|this|it)(?:['’]s| is| was) "
    r"(?:wrong|incorrect|not)\b"
    r"|(?:(?:wait|sorry|no|actually)[,.!… ]{1,4})?i(?: have|['’]ve)? made an? (?:mistake|error))"
    r"|(?:wait|no|actually|sorry|apologies)(?=[\s,:.!…—–-]))"
)
_INSTEAD = re.compile(
    r"(?:\bit(?:['’]s| is| should be| must be| has to be| would be)|\b(?:should|must) (?:be|read"
    r"|have been)|\bi meant(?: to say)?"
    r"|\b(?:correct(?:ed)?|right|real|actual|true|final) (?:\w+ ){0,2}"
    r"(?:is|should be|would be)|correction|edit|\bno(?:,? wait)?|\bwait(?:,? no)?|\bactually"
    r"|\bi['’]d say)[,:]?\s+[*_]{0,4}(?=\S)",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"\d[\d.,]*(?<![.,])")
_LETTERS = re.compile(r"(?<![\w'’])[A-Z](?![\w'’])")


def said_instead(behind: str, value: str) -> str | None:
    """What replaces a value by a correction behind it; "" where it is only taken back.

    None where nothing is taken back.
    """
    if not behind.strip(" .!$})\\]*_`\n"):
        return None
    low = behind.lower()
    for hint in _HINTS_OF:
        if hint in low:
            break
    else:
        return None
    back = _TAKES_BACK.search(low)
    if not back or len(low) != len(behind):
        return None
    shape = _shape(value)
    end = len(behind)
    for at in _INSTEAD.finditer(behind, max(0, back.start())):
        line = behind[at.end() : at.end() + 300].partition("\n")[0]
        said = first_sentence(line)
        if said and _shape(said) == shape and (shape != "words" or back["surely"]):
            return said if said != value else None
        end = at.end()
    if back["surely"]:
        return ""
    tokens = {"letter": _LETTERS, "number": _NUMBERS}.get(shape)
    if tokens is None or end == 0:
        return None
    others = [one for one in tokens.findall(behind[back.end() :][:400]) if one != "I"]
    return "" if others and others[-1] not in tokens.findall(value) else None
