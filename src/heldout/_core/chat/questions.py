"""What a sample asks: the one place that decides which field of its input is the question.

    question = question_of(sample)
    question.messages, question.field

A model that is asked the solution scores 1, and one that is asked half of the question scores too
little. So where more than one field could be the question, or text beside it belongs to it, the
sample is refused. `prepare_messages` makes the prompt then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from heldout._core.chat.messages import message_of
from heldout.errors import InvalidInput
from heldout.types import Message, Sample

QUESTION_FIELDS = ("messages", "prompt", "question", "problem", "instruction", "query")
"""Fields of a sample's input that hold what is asked, in any case. A sample has one of them."""
NEEDED_FIELDS = {
    "input", "context", "contexts", "passage", "passages", "article", "document", "documents",
    "paragraph", "paragraphs", "story", "choices", "options", "starter_code",
}  # fmt: skip
"""Fields that are a part of what is asked: the question beside them is not the whole of it."""
_NO_QUESTION = {
    "answer", "answers", "solution", "solutions", "target", "targets", "label", "labels", "truth",
    "groundtruth", "gold", "golden", "reference", "references", "response", "responses", "output",
    "outputs", "completion", "completions", "expected", "correct", "rationale", "explanation",
    "code", "test", "tests", "chosen", "rejected", "id", "ids", "uid", "uuid", "idx", "index",
}  # fmt: skip
"""A field with one of these words in its name is an answer, or an id, and no question."""


class FoundQuestion(NamedTuple):
    """What a sample asks, and the field of its input that it was taken from."""

    field: str
    messages: list[Message]


def question_of(sample: Sample) -> FoundQuestion:
    """Read what a sample asks.

    Its input has one of `messages`, `prompt`, `question`, `problem`, `instruction` and `query`: a
    text from the user, or a list of messages, as chat datasets have it. Without these, its only
    text is the question, unless it is named as an answer or equals the target.

    Args:
        sample: The sample.

    Raises:
        InvalidInput: There is no question, there are several, or a text beside it belongs to it.
    """
    where = f"sample {sample.id!r}: input"
    fields = list_question_fields(sample)
    if len(fields) > 1:
        raise InvalidInput(
            f"{where} has several questions: {_list(fields)}. Leave all but one out, as with "
            f"to_samples(…, input=[{fields[0]!r}]), or pass prepare_messages"
        )
    field = fields[0] if fields else _only_text(sample, where)
    messages = read_opening(sample.input[field], f"{where}[{field!r}]")
    asked = "\n".join(message.text for message in messages)
    for name, value in sample.input.items():
        if _lower(name) in NEEDED_FIELDS and not all(text in asked for text in _texts(value)):
            raise InvalidInput(
                f"{where} has {name!r} beside {field!r}, and the model would be asked "
                f"{field!r} alone",
                hint=f"prepare_messages puts both into the prompt; if {name!r} is not for the "
                "model, it belongs into metadata",
            )
    return FoundQuestion(field, messages)


def likely_question(sample: Sample) -> list[Message]:
    """Return what a sample probably asks, where the policy is asked something else.

    An environment or `prepare_messages` makes its prompt, so nothing is refused: of several
    questions it is the first of `QUESTION_FIELDS`, and none where there is none.

    Args:
        sample: The sample.
    """
    try:
        return question_of(sample).messages
    except InvalidInput:
        for field in sorted(
            list_question_fields(sample), key=lambda field: QUESTION_FIELDS.index(_lower(field))
        ):
            with suppress(InvalidInput):
                return read_opening(sample.input[field], field)
        return []


def list_question_fields(sample: Sample) -> list[str]:
    """List the fields of a sample's input that are named as questions, without empty ones."""
    named = [
        field
        for field, value in sample.input.items()
        if _lower(field) in QUESTION_FIELDS and value is not None
    ]
    return [field for field in named if _is_filled(sample.input[field])] or named


def read_opening(value: Any, where: str) -> list[Message]:
    """Read opening messages: a text from the user, or a list of messages.

    Args:
        value: The text or the list.
        where: Where it stands, for error messages.

    Raises:
        InvalidInput: It is neither.
    """
    if isinstance(value, str):
        return [Message("user", value)]
    if not isinstance(value, Sequence) or not value:
        empty = "an empty " * isinstance(value, Sequence)
        raise InvalidInput(
            f"{where} must be a text or a list of messages, got {empty}{type(value).__name__}"
        )
    return [message_of(message, where) for message in value]


def _only_text(sample: Sample, where: str) -> str:
    """Return the field of the only text in a sample's input, if it may be the question."""
    texts = [field for field, value in sample.input.items() if isinstance(value, str)]
    possible = [field for field in texts if _may_be_question(field, sample)]
    moved = [field for field in sample.metadata if _lower(field) in QUESTION_FIELDS]
    if len(texts) == 1 and possible and not moved:
        return texts[0]
    if moved:
        found = (
            f"{_list(moved)} is in its metadata alone: to_samples(…, metadata=[…]) takes a column "
            f"out of the input unless input=[{moved[0]!r}] names it, too. Name it there"
        )
    elif possible:
        longest = max(possible, key=lambda field: len(sample.input[field]))
        found = (
            f"{_list(texts)} are all texts. Pass the one that is the question, as in "
            f"input={{'question': row[{longest!r}]}}"
        )
    elif texts:
        found = (
            f"{_list(texts)} {'is' if len(texts) == 1 else 'are'} named as an answer or an id, or "
            "equal to the target. Add the question"
        )
    else:
        found = f"its keys are {sorted(map(str, sample.input))}. Add one"
    raise InvalidInput(
        f"{where} has no question ({', '.join(QUESTION_FIELDS)}); {found}, or pass prepare_messages"
    )


def _may_be_question(field: str, sample: Sample) -> bool:
    """Return whether a field of another name may be the question."""
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", str(field))}
    if words & _NO_QUESTION:
        return False
    text = sample.input[field].strip()
    return bool(text) and text not in (target.strip() for target in _texts(sample.ground_truth))


def _lower(field: Any) -> str:
    return str(field).lower()


def _is_filled(value: Any) -> bool:
    return bool(value.strip() if isinstance(value, str) else not isinstance(value, list) or value)


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value, numbers as texts; none of an empty one."""
    if isinstance(value, str):
        if value.strip():
            yield value.strip()
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _list(fields: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(map(repr, fields[:-1])), repr(fields[-1])]))
