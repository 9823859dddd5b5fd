"""What a model said outside of its reasoning, in every convention that open models have.

Reasoning in a field of its own (`Message.reasoning`) is never text; here it is taken out of the
text itself: `<think>` and its kin, channels, brackets. A tag that is only spoken of opens and
closes nothing: one in inline code (`` `<think>` ``), or in a fenced block that closes and is not
the whole reply. All scans go once over the text, or are bounded.
"""

from __future__ import annotations

import re

from heldout.fences import fenced

_TAGS = (
    *("think", "thinking", "thought", "thoughts", "reasoning", "reflection", "scratchpad"),
    *("seed:think", "analysis", "longcat_think"),
)
_NAMES = "|".join(re.escape(name) for name in _TAGS)
_OPENS = re.compile(
    rf"<(?P<tag>{_NAMES})(?:\s[^<>]{{0,80}})?>|<\|(?:begin_of_thought|START_THINKING|inner_prefix)\|>"
    r"|\[THINK\]|◁think▷|<\|channel>thought",
    re.IGNORECASE,
)
_CLOSES = re.compile(
    rf"</(?:{_NAMES})>|<\|(?:end_of_thought|END_THINKING|inner_suffix)\|>|\[/THINK\]|◁/think▷"
    r"|<channel\|>",
    re.IGNORECASE,
)
_PAIRS = {
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|start_thinking|>": "<|end_thinking|>",
    "<|inner_prefix|>": "<|inner_suffix|>",
    "[think]": "[/think]",
    "◁think▷": "◁/think▷",
    "<|channel>thought": "<channel|>",
}
_AROUND = re.compile(  # what stands around the answer itself and is no part of it
    r"<\|(?:begin_of_solution|end_of_solution|START_RESPONSE|END_RESPONSE|im_end|eot_id|end|return"
    r"|endoftext|end_of_text|eom_id|end_of_turn)\|>|</s>|<end_of_turn>|<｜end▁of▁sentence｜>"
)
_FINAL, _CHANNEL = "<|channel|>final", "<|channel|>"
_THOUGHT, _RESPONSE = "Here is my thought process:", "Here is my response:"
_LOOKS = 20  # how many tags are looked at for being code


def without_reasoning(text: str) -> str:
    """What a reply says after its reasoning; "" where it says nothing (semantics, clause 8).

    With a block that never closes it says nothing, whatever stands before it. A closing tag alone
    ends reasoning that the chat template opened in the prompt.
    """
    if "<" in text or "◁" in text or ("[" in text and "THINK]" in text):
        if _CHANNEL in text:  # gpt-oss: only its final channel is meant for people
            at = text.rfind(_FINAL)
            at = text.find("<|message|>", at) if at >= 0 else -1
            if at < 0:
                return ""
            text = text[at + len("<|message|>") :].partition("<|start|>")[0]
        text = _AROUND.sub("", _outside(text))
    elif text.startswith("analysis") and "assistantfinal" in text:  # the same, markers decoded away
        text = text.rpartition("assistantfinal")[2]
    elif text.startswith(_THOUGHT):
        text = text.partition(_RESPONSE)[2]
    return text.strip()


def _outside(text: str) -> str:
    """The text outside of reasoning blocks, which end at the close of the same kind."""
    low = lowered(text)
    kept: list[str] = []
    at = search = looks = 0
    while opened := _OPENS.search(text, search):
        looks += 1
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
        if looks > _LOOKS or not _code_around(rest, 0, orphan):
            last = orphan.end()
    return rest[last:]


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
