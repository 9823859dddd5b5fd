"""A judge's reply as the one JSON object it was asked for; anything else is `Malformed`.

A reply is nothing but the object, or nothing but one fenced block with it, behind reasoning or not.
There is no prose beside it that a verdict could be fished out of: the letter A in "CORRECT: A…" is
none, two objects are none, and a block that a judge quotes from the answer, to say that it does not
follow it, is none either.

Reasoning is a block that opens at the very start and closes. Where only its close is there (the
chat template has opened it, in the prompt), what stands before could be anything: so it is believed
only if nothing in what was judged could have been quoted there, a close of reasoning or a key of
the object. Which verdict it is has no part in that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from heldout.chat.reasoning import without_reasoning

LONGEST_REPLY = 100_000
"""Characters. Verdicts are kept; whatever is longer is no verdict."""

_FENCED = re.compile(r"(`{3,}|~{3,})[ \t]*(?:json)?\s*(\{.*\})\s*\1", re.DOTALL | re.IGNORECASE)
_END_MARKS = re.compile(r"(?:\s*<[^<>\s]{1,30}>)*\s*")
"""What a server may leave behind the last word: <|im_end|>, </s>."""
_REASONING_OPENS = ("<", "[", "◁", "Here is my thought process:")
_CLOSES = re.compile(
    r"< ?/(?:seed:)?(?:think|thought|reason|reflect|scratch|analys|longcat)|[\[◁] ?/think"
    r"|< ?\|(?:end_of_thought|end_thinking|inner_suffix|channel)|< ?channel\||assistantfinal",
    re.IGNORECASE,
)
"""What could be quoted as the end of reasoning, by its first letters."""
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Malformed(ValueError):
    """A reply is not what was asked for. The message says what is wrong with it, for the judge."""


def json_object(
    reply: str, finish_reason: str | None = None, *, judged: Sequence[str] = ()
) -> dict[str, Any]:
    """Parse the object that a reply consists of.

    Args:
        reply: The judge's reply.
        finish_reason: Why it ended; "length" is malformed.
        judged: The texts that it could quote.

    Returns:
        The object.

    Raises:
        Malformed: The reply is anything else.
    """
    if finish_reason == "length":
        raise Malformed("it was cut off at the length limit before it ended. Be shorter.")
    if len(reply) > LONGEST_REPLY:
        raise Malformed(f"it has {len(reply)} characters; at most {LONGEST_REPLY} are read.")
    whole = reply.strip().removeprefix("\ufeff").strip()
    answer = without_reasoning(whole)
    if (text := _strip_fence(whole)) is not None:
        try:
            # Before anything is taken out: a reason may well quote a <think> tag.
            return _decode_object(text)
        except Malformed:
            if answer in ("", whole):
                raise
    if not answer:
        ended = f" (finish reason {finish_reason})" if finish_reason not in (None, "stop") else ""
        what = "reasoning that never ended, or nothing after it" if whole else "no text"
        raise Malformed(f"there was {what}{ended}.")
    text = _strip_fence(answer)
    start = whole.rfind(answer)
    if text is None or start < 0 or not _END_MARKS.fullmatch(whole, start + len(answer)):
        raise Malformed("it is not one JSON object: there is text beside it, or no object at all.")
    parsed = _decode_object(text)
    before = whole[:start].rstrip()
    if before and not _is_reasoning(before) and _could_be_quoted(parsed, judged):
        raise Malformed(
            "there is text before the JSON object, and what was judged has such an object, too. "
            "The object must be all there is."
        )
    return parsed


def _strip_fence(text: str) -> str | None:
    """Return the object, where it is the whole text or all that is in its only fence."""
    if text.startswith("{") and text.endswith("}"):
        return text
    block = _FENCED.fullmatch(text)
    return block[2] if block else None


def _is_reasoning(before: str) -> bool:
    """Tell whether it is blocks that open and close, and nothing else.

    Less its last character, the last block is one that never closes, and then nothing is left. A
    close alone is text without it.
    """
    opens = "<|" if "<|channel|>" in before else _REASONING_OPENS
    return before.startswith(opens) and not without_reasoning(before[:-1])


def _could_be_quoted(parsed: dict[str, Any], judged: Sequence[str]) -> bool:
    keys = [re.escape(json.dumps(key, ensure_ascii=False)[1:-1]) for key in parsed]
    quoted_key = re.compile(f"[\"'](?:{'|'.join(keys)})")
    return any(_CLOSES.search(text) or quoted_key.search(text) for text in judged)


def _decode_object(text: str) -> dict[str, Any]:
    try:
        value = _decode(text)
        # msgspec takes the last of two equal keys: {"verdict": …, "verdict": …} would be a guess.
        json.loads(text, object_pairs_hook=_refuse_repeated_keys, parse_int=str, parse_float=str)
    except Malformed:
        raise
    except (ValueError, msgspec.MsgspecError, RecursionError) as problem:
        raise Malformed(f"it is not a JSON object: {problem}.") from None
    return value


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        raise Malformed("one of its objects has the same key twice.")
