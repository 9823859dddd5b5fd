"""A judge's reply as the one JSON object it was asked for; anything else is `Malformed`.

Accepted are the whole reply (without its reasoning), or its only fenced JSON block. Nothing is
searched for in prose: the letter A in "CORRECT: A…" is no verdict, and two objects are none either.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from heldout.reasoning import without_reasoning
from heldout.scoring.codeblocks import code_blocks

LONGEST_REPLY = 100_000
"""Characters. Verdicts are kept; whatever is longer is no verdict."""

_OBJECT_BEGINS = re.compile(r'\{\s*["}]')
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Malformed(ValueError):
    """A reply is not what was asked for. The message says what is wrong with it, for the judge."""


def json_object(reply: str, finish_reason: str | None = None) -> dict[str, Any]:
    """The object that a reply consists of."""
    if finish_reason == "length":
        raise Malformed("it was cut off at the length limit before it ended. Be shorter.")
    if len(reply) > LONGEST_REPLY:
        raise Malformed(f"it has {len(reply)} characters; at most {LONGEST_REPLY} are read.")
    whole = reply.strip()
    if whole.startswith("{") and whole.endswith("}"):
        try:
            # Before anything is taken out: a reason may well quote a <think> tag.
            return _object(whole)
        except Malformed:
            pass  # said below, if what is left is no object either
    said = without_reasoning(reply)
    if not said:
        ended = f" (finish reason {finish_reason})" if finish_reason not in (None, "stop") else ""
        what = "reasoning that never ended, or nothing after it" if whole else "no text"
        raise Malformed(f"there was {what}{ended}.")
    if said.startswith("{") and said.endswith("}"):
        return _object(said)
    return _object(_only_block(said))


def _only_block(text: str) -> str:
    blocks = code_blocks(text)
    found = [b for b in blocks if b.language == "json"] or [b for b in blocks if not b.language]
    if not found:
        raise Malformed("it is not one JSON object: there is text beside it, or no object at all.")
    if len(found) > 1:
        raise Malformed("it has several code blocks; there must be one JSON object.")
    if not found[0].closed:
        raise Malformed("its code block never ends.")
    code = found[0].code
    if len(_OBJECT_BEGINS.findall(text)) != len(_OBJECT_BEGINS.findall(code)):
        raise Malformed("there is another JSON object beside its code block.")
    return code


def _object(text: str) -> dict[str, Any]:
    try:
        value = _decode(text)
        # msgspec takes the last of two equal keys: {"verdict": …, "verdict": …} would be a guess.
        json.loads(text, object_pairs_hook=_no_key_twice, parse_int=str, parse_float=str)
    except Malformed:
        raise
    except (ValueError, msgspec.MsgspecError, RecursionError) as problem:
        raise Malformed(f"it is not a JSON object: {problem}.") from None
    return value


def _no_key_twice(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) < len(pairs):
        raise Malformed("one of its objects has the same key twice.")
