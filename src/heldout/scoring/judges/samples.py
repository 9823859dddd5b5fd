"""What a judge is told of a sample: what was asked, and what the right answer is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from heldout.chat.messages import messages_of
from heldout.errors import InvalidInput
from heldout.types import Sample

TextOf = Callable[[Sample], str]


def target_text(target: Any, sample: Sample) -> str:
    """A ground truth as a judge reads it: text as it is, anything else as JSON."""
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


def asked_text(sample: Sample, question: TextOf | None = None) -> str:
    """What the policy was asked, in words: the sample's messages, or what `question` gives."""
    if question is not None:
        return given_text(question, sample)
    messages = messages_of(sample.input, f"sample {sample.id!r}: input")
    for message in messages:
        if not isinstance(message.content, str) and any(
            part.get("type") != "text" for part in message.content
        ):
            raise InvalidInput(
                f"sample {sample.id!r}: what was asked is more than text, and a judge would see "
                "the text alone; say what it is to read: question=lambda sample: …"
            )
    if len(messages) == 1:
        return messages[0].text
    return "\n\n".join(f"[{message.role}]\n{message.text}" for message in messages)


def given_text(function: TextOf, sample: Sample) -> str:
    text = function(sample)
    if not isinstance(text, str):
        raise InvalidInput(
            f"sample {sample.id!r}: a function that gives a judge a text returned "
            f"{type(text).__name__}"
        )
    return text
