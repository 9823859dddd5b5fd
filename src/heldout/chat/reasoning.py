"""What a model said outside of its reasoning, in every convention that open models have.

Reasoning in a field of its own (`Message.reasoning`) is never text; here it is taken out of the
text itself: `<think>` and its kin, channels, brackets. A tag that is only spoken of opens and
closes nothing: one in inline code (`` `<think>` ``), or in a fenced block that closes and is not
the whole reply. All scans go once over the text, or are bounded.
"""

from __future__ import annotations

import re

from heldout.chat.fences import fenced

_TAGS = (
    *("think", "thinking", "thought", "thoughts", "reasoning", "reflection", "scratchpad"),
    *("seed:think", "analysis", "longcat_think", "rationale", "reason", "inner_monologue", "cot"),
    *("antthinking", "inner_thoughts"),
)
_NAMES = "|".join(re.escape(name) for name in _TAGS)
_OPENS = re.compile(
    rf"<(?P<tag>{_NAMES})(?:\s[^<>]{{0,80}})?>|<\|(?:begin_of_thought|START_THINKING|inner_prefix"
    r"|think|thinking)\|>|\[THINK\]|◁think▷|<\|channel>thought|<unused94>thought",
    re.IGNORECASE,
)
_CLOSES = re.compile(
    rf"</(?:{_NAMES})>|<\|(?:end_of_thought|END_THINKING|inner_suffix|/think|/thinking)\|>"
    r"|\[/THINK\]|◁/think▷|<channel\|>|<unused95>",
    re.IGNORECASE,
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
_AROUND = re.compile(  # what stands around the answer itself and is no part of it
    r"<\|(?:begin_of_solution|end_of_solution|START_RESPONSE|END_RESPONSE|im_end|eot_id|end|return"
    r"|endoftext|end_of_text|eom_id|end_of_turn)\|>|</s>|<end_of_turn>|<｜end▁of▁sentence｜>"
)
# A model that does not stop goes on with the next turn; `<|im_start|>` alone may open its own.
_NEXT_TURN = re.compile(
    r"<\|start_header_id\|>|<start_of_turn>|<\|im_start\|>(?=\s*(?:user|system))|<\|(?:user|human)\|>",
    re.IGNORECASE,
)
_OPENED = re.compile(rf"(?:{_OPENS.pattern})\s*\Z", re.IGNORECASE)
_FINAL, _CHANNEL = "<|channel|>final", "<|channel|>"
_DECODED = re.compile(r"(?:assistant)?analysis(?=[A-Z])")  # `analysis of …` is a text like others
_THOUGHT, _RESPONSE = "Here is my thought process:", "Here is my response:"
_CLOSINGS = (*(f"</{name}>" for name in _TAGS), *_PAIRS.values())
# What every tag begins with, in lower case: most texts with a `<` have none.
_BEGINNINGS = tuple(
    f"<{begin}" for name in ("|", "channel", "unused9", *_TAGS) for begin in (name, f"/{name}")
)
_BEGINS = re.compile(
    r"<(?:\||channel|unused9|/?(?:think|thought|re|scra|seed:|ana|ant|longcat|ra|inner|cot))"
)
_FOLDED = ("\u017f", "\u0131", "\u0130", "\u212a")  # letters that are s, i, i and k in another case
_LOOKS = 20  # how many tags are looked at for being code
_BLOCKS = 2000  # a reply with more blocks of reasoning never gets out of it


def without_reasoning(text: str) -> str:
    """What a reply says after its reasoning; "" where it says nothing (semantics, clause 8).

    With a block that never closes it says nothing, whatever stands before it. A closing tag alone
    ends reasoning that the chat template opened in the prompt.
    """
    if "<" in text or "◁" in text or ("[" in text and "think]" in lowered(text)):
        if _CHANNEL in text:  # gpt-oss: only its final channel is meant for people
            at = text.rfind(_FINAL)
            at = text.find("<|message|>", at) if at >= 0 else -1
            if at < 0 or _CHANNEL in text[at:]:
                return ""  # it never got there, or went on to think
            text = text[at + len("<|message|>") :].partition("<|start|>")[0]
        text = _outside(text)
        if "<|" in text or "</s>" in text or "<end_of" in text or "<｜end" in text:
            if (turn := _NEXT_TURN.search(text)) and text[: turn.start()].strip():
                text = text[: turn.start()]
            text = _AROUND.sub("", text)
    elif text.startswith(("analysis", "assistantanalysis")):  # channels, their markers decoded away
        if "assistantfinal" in text:
            text = text.rpartition("assistantfinal")[2]
        elif _DECODED.match(text):
            text = ""
    elif text.startswith(_THOUGHT):
        text = text.partition(_RESPONSE)[2]
    return text.strip()


def opened_reasoning(prompt: str) -> str:
    """The tag at the end of a prompt that opens the model's reasoning for it; "" if there is none.

    Whoever renders a prompt puts it in front of the reply: what follows is reasoning until it is
    closed.
    """
    opened = _OPENED.search(prompt)
    return opened[0] if opened else ""


def is_reasoning_tag(text: str) -> bool:
    """Whether a text is a tag that opens or closes reasoning, and nothing else."""
    return bool(_OPENS.fullmatch(text) or _CLOSES.fullmatch(text))


def _outside(text: str) -> str:
    """The text outside of reasoning blocks, which end at the close of the same kind."""
    low = lowered(text)
    if not _has_tags(text, low):
        return text
    kept: list[str] = []
    at = search = looks = 0
    while opened := _OPENS.search(text, search):
        looks += 1
        if looks > _BLOCKS:
            return ""
        if looks <= _LOOKS and (code := _code_around(text, at, opened)):
            search = code
            continue
        kept.append(text[at : opened.start()])
        tag = opened["tag"]
        close = f"</{tag.lower()}>" if tag else _PAIRS[opened[0].lower()]
        ended = low.find(close, opened.end())
        while ended >= 0 and looks <= _LOOKS and _in_backticks(text, ended, ended + len(close)):
            looks += 1
            ended = low.find(close, ended + 1)
        if ended < 0:
            return ""
        at = search = ended + len(close)
    kept.append(text[at:])
    rest = "".join(kept) if len(kept) > 1 else text
    last = 0
    for looks, orphan in enumerate(_CLOSES.finditer(rest), 1):
        if looks > _LOOKS:  # the last one counts, wherever it is
            low = lowered(rest)
            last = max(low.rfind(close) + len(close) for close in _CLOSINGS if close in low)
            break
        if not _code_around(rest, 0, orphan):
            last = orphan.end()
    return rest[last:]


def _has_tags(text: str, low: str) -> bool:
    """Whether there may be a tag, as is seen much sooner than which."""
    if "think]" in low or "◁" in text:
        return True
    many = low.count("<") > 1000  # the pattern tries each of them
    if any(begin in low for begin in _BEGINNINGS) if many else _BEGINS.search(low):
        return True
    return not text.isascii() and any(letter in text for letter in _FOLDED)


def _code_around(text: str, start: int, tag: re.Match[str]) -> int:
    """Where the code ends that a tag stands in, looked for from `start` on; 0: it is in none."""
    place, behind = tag.span()
    if _in_backticks(text, place, behind):
        return behind
    if "```" in text[start:place] or "~~~" in text[start:place]:
        for block in fenced(text, start):
            if block.start > place:
                break
            if place < block.end:
                alone = not text[: block.start].strip() and not text[block.end :].strip()
                return block.end if block.closed and not alone else 0
    return 0


def _in_backticks(text: str, start: int, end: int) -> bool:
    """Whether a tag is inline code: a backtick of the line is open before it, one closes behind."""
    if "`" not in (text[start - 1 : start], text[end : end + 1]):
        return False
    line = max(text.rfind("\n", max(0, start - 400), start) + 1, start - 400, 0)
    if text.count("`", line, start) % 2 == 0:
        return False
    closes = text.find("`", end, end + 200)
    return closes >= 0 and "\n" not in text[end:closes]


def lowered(text: str) -> str:
    """In lower case, every character at its place."""
    low = text.lower()
    # One letter grows when lowered; places must stay the same in both texts.
    return low if len(low) == len(text) else text.replace("İ", "I").lower()
