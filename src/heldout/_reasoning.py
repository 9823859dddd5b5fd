"""Replies without their reasoning, and fenced code in Markdown.

Open models mark reasoning in their text in many ways: `<think>` and similar tags, channels,
brackets. `without_reasoning` knows them all. A tag that is only quoted marks nothing: one in
inline code (`` `<think>` ``), or in a fenced block that closes and is not the whole reply.
Reasoning in a field of its own (`Message.reasoning`) is never part of the text.

Every scan is linear in the text, or bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TAGS = (
    *("think", "thinking", "thought", "thoughts", "reasoning", "reflection", "scratchpad"),
    *("seed:think", "analysis", "longcat_think", "rationale", "reason", "inner_monologue", "cot"),
    *("antthinking", "inner_thoughts"),
)
_NAMES = "|".join(_TAGS)
# For texts in lower case: `re` finds the first characters of these patterns much faster than it
# ignores case.
_OPEN = re.compile(
    rf"<(?P<tag>{_NAMES})(?:\s[^<>]{{0,80}})?>|<\|(?:begin_of_thought|start_thinking|inner_prefix"
    r"|think|thinking)\|>|\[think\]|◁think▷|<\|channel>thought|<unused94>thought"
)
_CLOSE = re.compile(
    rf"</(?:{_NAMES})>|<\|(?:end_of_thought|end_thinking|inner_suffix|/think|/thinking)\|>"
    r"|\[/think\]|◁/think▷|<channel\|>|<unused95>"
)
_PAIRS = {
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|start_thinking|>": "<|end_thinking|>",
    "<|inner_prefix|>": "<|inner_suffix|>",
    "<|think|>": "<|/think|>",
    "<|thinking|>": "<|/thinking|>",
    "<unused94>thought": "<unused95>",
    "[think]": "[/think]",
    "◁think▷": "◁/think▷",
    "<|channel>thought": "<channel|>",
}
_CLOSE_TEXTS = (*(f"</{name}>" for name in _TAGS), *_PAIRS.values())
_OPEN_AT_END = re.compile(rf"(?:{_OPEN.pattern})\s*\Z")
# Markers around the answer that are not part of it.
_WRAPPERS = re.compile(
    r"<\|(?:begin_of_solution|end_of_solution|START_RESPONSE|END_RESPONSE|im_end|eot_id|end|return"
    r"|endoftext|end_of_text|eom_id|end_of_turn)\|>|</s>|<end_of_turn>|<｜end▁of▁sentence｜>"
)
_MARKER = re.compile(r"<(?:\||/s>|end_of|｜end)")
"""How all of these begin: cheaper to search for."""
# A model that does not stop writes the next turn too; `<|im_start|>` alone may open its own.
_NEXT_TURN = re.compile(
    r"<\|start_header_id\|>|<start_of_turn>|<\|im_start\|>(?=\s*(?:user|system))|<\|(?:user|human)\|>",
    re.IGNORECASE,
)
_FINAL, _CHANNEL = "<|channel|>final", "<|channel|>"
_DECODED = re.compile(r"(?:assistant)?analysis(?=[A-Z])")  # `analysis of …` is ordinary text
_THOUGHT, _RESPONSE = "Here is my thought process:", "Here is my response:"
# How tags begin: a test that is much cheaper than the search for tags. Most `<` fail the first set.
_INITIALS = "".join(sorted({name[0] for name in _TAGS}))
_BEGINNING = re.compile(
    rf"<(?=[/|cu{_INITIALS}])(?:\||channel|unused9|/?(?=[{_INITIALS}])(?:{_NAMES}))"
)
_MAX_CODE_CHECKS = 20  # tags that are checked for standing in code
_MAX_BLOCKS = 2000  # a reply with more blocks of reasoning counts as nothing but reasoning


def without_reasoning(text: str) -> str:
    """Remove the reasoning from a reply (semantics, clause 8).

    A block that never closes leaves nothing, whatever precedes it. A closing tag alone ends
    reasoning that the chat template opened in the prompt. What is left is stripped.
    """
    if "<" in text or "◁" in text or ("[" in text and "think]" in lowered(text)):
        if _CHANNEL in text:  # gpt-oss: only the final channel is the answer
            at = text.rfind(_FINAL)
            at = text.find("<|message|>", at) if at >= 0 else -1
            if at < 0 or _CHANNEL in text[at:]:
                return ""  # there is no final channel, or reasoning follows it
            text = text[at + len("<|message|>") :].partition("<|start|>")[0]
        text = _drop_blocks(text)
        if _MARKER.search(text):
            if (turn := _NEXT_TURN.search(text)) and text[: turn.start()].strip():
                text = text[: turn.start()]
            text = _WRAPPERS.sub("", text)
    elif text.startswith(("analysis", "assistantanalysis")):
        # Channels whose markers were decoded away.
        if "assistantfinal" in text:
            text = text.rpartition("assistantfinal")[2]
        elif _DECODED.match(text):
            text = ""
    elif text.startswith(_THOUGHT):
        text = text.partition(_RESPONSE)[2]
    return text.strip()


def opened_reasoning(prompt: str) -> str:
    """Find the tag at the end of a rendered prompt that opens the model's reasoning.

    Put it in front of the reply: the text that follows is reasoning until a tag closes it. "" if
    the prompt ends with none.
    """
    tag = _OPEN_AT_END.search(lowered(prompt))
    return prompt[tag.start() : tag.end()] if tag else ""


def is_reasoning_tag(text: str) -> bool:
    """Return whether a text is a tag that opens or closes reasoning, and nothing else."""
    return bool(_OPEN.fullmatch(text.lower()) or _CLOSE.fullmatch(text.lower()))


def lowered(text: str) -> str:
    """Lower a text without moving any character to another index."""
    low = text.lower()
    # "İ" becomes two characters when lowered.
    return low if len(low) == len(text) else text.replace("İ", "I").lower()


# --- Blocks of reasoning ------------------------------------------------------------------------


def _drop_blocks(text: str) -> str:
    """Remove blocks of reasoning, each up to the closing tag of its own kind."""
    low = lowered(text)
    if not (_BEGINNING.search(low) or ("[" in low and "think]" in low) or "◁" in low):
        return text
    parts: list[str] = []
    start = search = checks = 0
    while tag := _OPEN.search(low, search):
        checks += 1
        if checks > _MAX_BLOCKS:
            return ""
        if checks <= _MAX_CODE_CHECKS and (code_end := _end_of_code_around(text, start, tag)):
            search = code_end
            continue
        parts.append(text[start : tag.start()])
        close = f"</{tag['tag']}>" if tag["tag"] else _PAIRS[tag[0]]
        end = low.find(close, tag.end())
        while end >= 0 and checks <= _MAX_CODE_CHECKS and _is_inline_code(text, end, len(close)):
            checks += 1
            end = low.find(close, end + 1)
        if end < 0:
            return ""
        start = search = end + len(close)
    parts.append(text[start:])
    return _after_last_close("".join(parts))


def _after_last_close(text: str) -> str:
    """Cut off everything up to the last closing tag: its opening tag is in the prompt."""
    start, low = 0, lowered(text)
    for checks, tag in enumerate(_CLOSE.finditer(low), 1):
        if checks > _MAX_CODE_CHECKS:
            start = max(low.rfind(close) + len(close) for close in _CLOSE_TEXTS if close in low)
            break
        if not _end_of_code_around(text, 0, tag):
            start = tag.end()
    return text[start:]


def _end_of_code_around(text: str, start: int, tag: re.Match[str]) -> int:
    """Find where the code ends that quotes a tag; 0 if the tag is not quoted.

    Fences are counted from `start` on: an earlier one belongs to reasoning already removed.
    """
    position, length = tag.start(), len(tag[0])
    if _is_inline_code(text, position, length):
        return tag.end()
    if "```" in text[start:position] or "~~~" in text[start:position]:
        for block in fenced(text[start:]):
            if start + block.start > position:
                break
            end = start + block.end
            if position < end:
                is_whole = not (text[: start + block.start].strip() or text[end:].strip())
                return end if block.closed and not is_whole else 0
    return 0


def _is_inline_code(text: str, start: int, length: int) -> bool:
    """Return whether a tag stands between two backticks of its line."""
    end = start + length
    if "`" not in (text[start - 1 : start], text[end : end + 1]):
        return False
    line_start = max(text.rfind("\n", max(0, start - 400), start) + 1, start - 400, 0)
    if text.count("`", line_start, start) % 2 == 0:
        return False
    closing = text.find("`", end, end + 200)
    return closing >= 0 and "\n" not in text[end:closing]


# --- Fenced code --------------------------------------------------------------------------------

# Possessive, so that a long line that is no fence is not tried again from every character.
_FENCE = re.compile(r"^[ \t]*+(?P<marks>`{3,}+|~{3,}+)(?P<info>[^\r\n]*+)\r?$", re.MULTILINE)


class Fenced(NamedTuple):
    """A fenced block of code: indices into the text it was found in."""

    language: str
    """The first word behind the opening fence, in lower case; "" if there is none."""
    start: int
    """Start of the opening fence's line."""
    inner: int
    """Start of the code."""
    inner_end: int
    """End of the code, without the line end before the closing fence."""
    end: int
    """End of the closing fence's line."""
    closed: bool
    """False if there is no closing fence: the code may be truncated."""


def fenced(text: str) -> Iterator[Fenced]:
    """Find the fenced blocks of a text.

    A block ends at a fence of the same character that is at least as long and has nothing behind
    it, so a block of four backticks may contain one of three. Fences may be indented, as they are
    in a list; one that is four columns further in, as in a docstring, ends nothing. Only the last
    block can be open.
    """
    if "```" not in text and "~~~" not in text:
        return
    marks, language, start, inner, indent = "", "", 0, 0, 0
    for fence in _FENCE.finditer(text):
        info = fence["info"].strip()
        if not marks:
            if fence["marks"][0] == "`" and "`" in info:
                continue  # ```code``` on one line
            marks, start, indent = fence["marks"], fence.start(), _indent(fence)
            language = info.split(None, 1)[0].lower() if info else ""
            inner = min(fence.end() + 1, len(text))
        elif fence["marks"].startswith(marks) and not info and _indent(fence) <= indent + 3:
            inner_end = max(inner, fence.start() - 1)
            if inner_end > inner and text[inner_end - 1] == "\r":
                inner_end -= 1
            yield Fenced(language, start, inner, inner_end, fence.end(), closed=True)
            marks = ""
    if marks:
        yield Fenced(language, start, inner, len(text), len(text), closed=False)


def _indent(fence: re.Match[str]) -> int:
    return len(fence[0][: fence.start("marks") - fence.start()].expandtabs(4))
