"""The texts that a judge is shown: taken from a sample or a trajectory, and delimited.

A judged text must not pose as an instruction. The lines around the texts carry a hash of all texts
of the question: to forge such a line, a text would have to contain a hash of itself. Two more ways
in are closed: characters that no reader sees (controls, invisible tags, variation selectors,
fillers, bidi marks, lone surrogates) are spelled out, and what a chat template would read as the
end of a turn (`<|im_end|>`, `[/INST]`) or of reasoning (`</think>`) gets a space.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from heldout.chat.messages import messages_of
from heldout.chat.reasoning import without_reasoning
from heldout.errors import InvalidInput
from heldout.types import Message, Sample, Trajectory

TextOf = Callable[[Sample], str]
Scope = Literal["answer", "trajectory", "turn"]


# --- From samples and trajectories ----------------------------------------------------------------


def target_text(target: Any, sample: Sample) -> str:
    """Return a ground truth as a judge reads it: text as it is, anything else as JSON."""
    if isinstance(target, str):
        text = target
    elif target is None:
        text = ""
    else:
        try:
            text = json.dumps(target, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError):
            raise InvalidInput(
                f"sample {sample.id!r}: its ground truth is text or JSON values for a judge, got "
                f"{type(target).__name__}"
            ) from None
    if not text.strip():
        raise InvalidInput(
            f"sample {sample.id!r} has no ground truth, which the judge is to compare with"
        )
    return text


def asked_text(sample: Sample, messages: Sequence[Message] | None = None) -> str:
    """Return what the model was asked: these messages, by default the sample's."""
    if messages is None:
        messages = messages_of(sample.input, f"sample {sample.id!r}: input")
    for message in messages:
        _check_is_text(message, sample, "say what it is to read: question=lambda sample: …")
    if len(messages) == 1:
        return messages[0].text
    return "\n\n".join(f"[{message.role}]\n{message.text}" for message in messages)


def text_from(function: TextOf, sample: Sample) -> str:
    """Call a user's function of a sample, and refuse anything but text."""
    text = function(sample)
    if not isinstance(text, str):
        raise InvalidInput(
            f"sample {sample.id!r}: a function that gives a judge a text returned "
            f"{type(text).__name__}"
        )
    return text


@dataclass(frozen=True, slots=True)
class Blocks:
    """A trajectory, or one turn of it, as labelled texts: judged instead of an answer."""

    scope: Scope
    texts: Mapping[str, str]


def model_turns(trajectory: Trajectory) -> tuple[int, ...]:
    """List the indices of the model's turns in `trajectory.messages`."""
    if trajectory.model_turns is not None:
        return trajectory.model_turns
    return tuple(i for i, each in enumerate(trajectory.messages) if each.role == "assistant")


def trajectory_blocks(trajectory: Trajectory, sample: Sample) -> Blocks:
    """Show everything from the model's first turn on: messages, tool calls and their results.

    Args:
        trajectory: A trajectory with at least one model turn.
        sample: The sample, for error messages.

    Returns:
        A block for each message, and one for its tool calls.

    Raises:
        InvalidInput: A message holds more than text.
    """
    first = model_turns(trajectory)[0]
    texts = _message_texts(trajectory, sample, range(first, len(trajectory.messages)), "message")
    return Blocks("trajectory", texts)


def turn_blocks(trajectory: Trajectory, turn: int, sample: Sample) -> Blocks:
    """Show one turn of the model and what came before it.

    Args:
        trajectory: The trajectory.
        turn: The index of the turn in `trajectory.messages`.
        sample: The sample, for error messages.

    Returns:
        The turn and its tool calls, after the messages between the question and the turn.

    Raises:
        InvalidInput: A message holds more than text.
    """
    first = model_turns(trajectory)[0]
    texts = _message_texts(trajectory, sample, range(first, turn), "before")
    own = _message_texts(trajectory, sample, range(turn, turn + 1), "turn")
    texts |= {"turn calls" if label.endswith("calls") else "turn": own[label] for label in own}
    return Blocks("turn", texts)


def _message_texts(
    trajectory: Trajectory, sample: Sample, places: Sequence[int], label: str
) -> dict[str, str]:
    texts: dict[str, str] = {}
    for number, place in enumerate(places, 1):
        message = trajectory.messages[place]
        _check_is_text(message, sample, "such a trajectory can only be judged by its last answer")
        text = message.text
        if message.role == "assistant":
            text = without_reasoning(text)
        cut_off = trajectory.stop.truncated and message is trajectory.last_turn
        if text.strip() or not message.tool_calls:
            role = f"{message.role} cut off" if cut_off else message.role
            texts[f"{label} {number} {role}"] = text
        if message.tool_calls:
            calls = [{"name": c.name, "arguments": c.arguments} for c in message.tool_calls]
            texts[f"{label} {number} calls"] = json.dumps(calls, ensure_ascii=False)
    return texts


def _check_is_text(message: Message, sample: Sample, remedy: str) -> None:
    if not isinstance(message.content, str) and any(
        part.get("type") != "text" for part in message.content
    ):
        raise InvalidInput(
            f"sample {sample.id!r}: a message is more than text, and a judge would see the text "
            f"alone; {remedy}"
        )


# --- Delimiters -----------------------------------------------------------------------------------

_KEPT = "\n\t\u200c\u200d"
"""Line breaks; and joiners, which are part of words and emoji."""

_UNSEEN = frozenset(
    map(
        chr,
        [
            *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x2800, 0x3164, 0xFFA0),
            *range(0x180B, 0x1810),
            *range(0xFE00, 0xFE0E),  # the two after these choose between text and emoji
            *range(0xFFF0, 0xFFF9),
            *range(0xE0000, 0xE1000),
        ],
    )
)
"""What Unicode calls default-ignorable (and the empty Braille cell) beside those of category Cf,
which are not printable anyway. A text can be hidden in variation selectors, a byte in each."""

_TURN_MARK = re.compile(
    r"<(?=[|｜][^\s<>|｜]{1,40}[|｜]>|\|[a-z_]{1,20}>|[a-z_]{1,20}\|>)"
    r"|<(?=/?s>|(?:start|end)_of_(?:turn|image)>|/?(?:bos|eos|unk|pad|mask)>)"
    r"|<(?=/?(?:seed:)?(?:think|thinking|thought)>)|◁(?=/?think▷)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|THINK|IMG)\])"
    r"|<(?=<(?:/?SYS)>>)"
)


def delimited(texts: Mapping[str, str]) -> str:
    """Put each text between two lines with its label and a mark that no text contains."""
    shown = {label: readable(text) for label, text in texts.items()}
    content = "\0".join(f"{label} {len(text)} {text}" for label, text in shown.items()).encode()
    mark = hashlib.blake2b(content, digest_size=16).hexdigest()
    return "\n\n".join(
        f"--- BEGIN {label} {mark} ---\n{text}\n--- END {label} {mark} ---"
        for label, text in shown.items()
    )


def readable(text: str) -> str:
    """Spell out what cannot be seen, and make marks of chat templates harmless."""
    text = text.replace("\r\n", "\n")
    if not (text.isascii() and text.replace("\n", "").isprintable()):
        text = "".join(c if _is_seen(c) else c.encode("unicode_escape").decode() for c in text)
    return _TURN_MARK.sub(lambda mark: mark[0] + " ", text)


def one_line(text: str, limit: int) -> str:
    """Shorten a text to one readable line, for messages."""
    line = " ".join(readable(text[: limit + 1]).split())
    return line if len(text) <= limit and len(line) <= limit else line[: limit - 1] + "…"


def _is_seen(character: str) -> bool:
    if character in _UNSEEN:
        return False
    return character.isprintable() or character in _KEPT or unicodedata.category(character) == "Zs"
