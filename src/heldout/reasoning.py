"""What a model said outside of its reasoning, in every convention that open models have.

Reasoning in a field of its own (`Message.reasoning`) is never text; here it is taken out of the
text itself: `<think>` and its kin, channels, brackets. All scans go once over the text.
"""

from __future__ import annotations

import re

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
    at = 0
    while opened := _OPENS.search(text, at):
        kept.append(text[at : opened.start()])
        tag = opened["tag"]
        close = f"</{tag.lower()}>" if tag else _PAIRS[opened[0].lower()]
        ended = low.find(close, opened.end())
        if ended < 0:
            return ""
        at = ended + len(close)
    kept.append(text[at:])
    rest = "".join(kept) if len(kept) > 1 else text
    last = 0
    for orphan in _CLOSES.finditer(rest):
        last = orphan.end()
    return rest[last:]


def lowered(text: str) -> str:
    """In lower case, every character at its place."""
    low = text.lower()
    # One letter grows when lowered; places must stay the same in both texts.
    return low if len(low) == len(text) else text.replace("İ", "I").lower()
