"""What a judge is asked, and how its reply is read: pure functions from texts to a `Question`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import msgspec

from heldout.errors import InvalidInput
from heldout.scoring.judges.delimited import delimited, readable
from heldout.scoring.judges.prompts import (
    CRITERIA,
    DATA,
    EQUALITY,
    PAIRWISE,
    THREE_WAY,
    Prompt,
)
from heldout.scoring.judges.replies import Malformed
from heldout.types import Message

__all__ = [
    "Attempted",
    "Criterion",
    "Malformed",
    "Preferred",
    "Question",
    "criteria_question",
    "equality_question",
    "pairwise_question",
    "three_way_question",
]

V = TypeVar("V")
Attempted = Literal["correct", "incorrect", "not_attempted"]
Preferred = Literal["first", "second", "tie"]

LARGEST_WEIGHT = 1e100
"""Of a criterion: any number of these can be added up."""


@dataclass(frozen=True, slots=True)
class Question(Generic[V]):
    """What is put before a judge. Your own may be asked the same way as those here."""

    prompt: str
    """Kind and version of the words: "equality/1"."""
    messages: tuple[Message, ...]
    inputs: dict[str, Any]
    """What was put in, as JSON has it: with the prompt and the messages, what a verdict is kept
    under."""
    read: Callable[[Any], V] = field(compare=False)
    """The parsed JSON object to the verdict; raises `Malformed` with what is wrong."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that is true of an answer or not. A negative weight is for a bad thing."""

    id: str
    description: str
    weight: float = 1.0
    required: bool = False
    """Where it is not met, the whole is worth 0."""

    def __post_init__(self) -> None:
        for name in ("id", "description"):
            given = getattr(self, name)
            if not isinstance(given, str) or not given.strip():
                raise InvalidInput(
                    f"a criterion's {name} is a text that is not empty, got {given!r}"
                )
        if readable(self.id) != self.id or self.id != self.id.strip() or len(self.id) > 200:
            raise InvalidInput(
                f"criterion {self.id[:50]!r}: a judge has to repeat the id, so it is short and has "
                "nothing in it that cannot be seen"
            )
        weight = self.weight
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise InvalidInput(f"criterion {self.id!r}: weight is a number, got {weight!r}")
        if not abs(weight) <= LARGEST_WEIGHT:  # nan is not
            raise InvalidInput(
                f"criterion {self.id!r}: weight is a number between -{LARGEST_WEIGHT:g} and "
                f"{LARGEST_WEIGHT:g}, got {weight!r:.100}"
            )
        if not isinstance(self.required, bool):
            raise InvalidInput(
                f"criterion {self.id!r}: required is True or False, got {self.required!r:.100}"
            )
        if self.required and weight < 0:
            raise InvalidInput(
                f"criterion {self.id!r} is required and its weight is {weight:g}: required is what "
                "has to be met, and a negative weight is for what should not be. Turn the "
                "description round ('does not …') and make the weight 0 or more"
            )


def equality_question(question: str, answer: str, target: str) -> Question[bool]:
    """Does the answer mean the same as the target?"""
    texts = {"question": question, "answer": answer, "target": target}
    return _question(EQUALITY, texts, _read_equal)


def three_way_question(question: str, answer: str, target: str) -> Question[Attempted]:
    """Is the answer correct, incorrect, or none?"""
    texts = {"question": question, "answer": answer, "target": target}
    return _question(THREE_WAY, texts, _read_attempted)


def criteria_question(
    question: str, answer: str, criteria: Sequence[Criterion], target: str | None = None
) -> Question[dict[str, bool]]:
    """Which of the criteria are met? The judge sees neither weights nor what is required."""
    check_criteria(criteria)
    listed = [{"id": c.id, "description": c.description} for c in criteria]
    texts = {"question": question, "answer": answer}
    if target is not None:
        texts["target"] = target
    texts["criteria"] = json.dumps(listed, ensure_ascii=False, indent=1)
    ids = tuple(c.id for c in criteria)
    return _question(CRITERIA, texts, partial(_read_met, ids=ids))


def pairwise_question(question: str, first: str, second: str) -> Question[Preferred]:
    """Which answer is better? Ask in both orders: many judges prefer a place."""
    texts = {"question": question, "first": first, "second": second}
    return _question(PAIRWISE, texts, _read_preferred)


def check_criteria(criteria: Sequence[Criterion]) -> None:
    if isinstance(criteria, str) or not isinstance(criteria, Sequence) or not criteria:
        raise InvalidInput(f"criteria are a list of at least one Criterion, got {criteria!r:.100}")
    seen: set[str] = set()
    for criterion in criteria:
        if not isinstance(criterion, Criterion):
            raise InvalidInput(f"criteria are Criterion values, got {criterion!r:.100}")
        if criterion.id in seen:
            raise InvalidInput(f"two criteria have the id {criterion.id!r}; ids are unique")
        seen.add(criterion.id)
    if not any(criterion.weight > 0 for criterion in criteria):
        raise InvalidInput(
            "no criterion has a weight above 0, so that nothing could be gained; give one a weight"
        )


def _question(prompt: Prompt, texts: Mapping[str, str], read: Callable[[Any], V]) -> Question[V]:
    for label, text in texts.items():
        if not isinstance(text, str):
            raise InvalidInput(f"the {label} is text, got {type(text).__name__}")
    shown = delimited({label.upper(): text for label, text in texts.items()})
    messages = (
        Message("system", f"{prompt.system}\n\n{DATA}"),
        Message("user", f"{shown}\n\n{prompt.closing}"),
    )
    return Question(prompt.name, messages, dict(texts), read)


# --- What a reply has to be ---------------------------------------------------------------------
# Further keys do no harm. A reason is asked for and not insisted on.


class _Equal(msgspec.Struct):
    verdict: Literal["equal", "different"]


class _Attempted(msgspec.Struct):
    verdict: Attempted


class _Preferred(msgspec.Struct):
    verdict: Preferred


class _Met(msgspec.Struct):
    id: str
    met: bool


class _AllMet(msgspec.Struct):
    criteria: list[_Met]


T = TypeVar("T")


def _read_equal(value: Any) -> bool:
    return _as(_Equal, value).verdict == "equal"


def _read_attempted(value: Any) -> Attempted:
    return _as(_Attempted, value).verdict


def _read_preferred(value: Any) -> Preferred:
    return _as(_Preferred, value).verdict


def _read_met(value: Any, *, ids: tuple[str, ...]) -> dict[str, bool]:
    met: dict[str, bool] = {}
    for each in _as(_AllMet, value).criteria:
        if each.id not in ids:
            raise Malformed(f"there is no criterion {each.id[:100]!r}.")
        if each.id in met:
            raise Malformed(f"criterion {each.id[:100]!r} is there twice.")
        met[each.id] = each.met
    missing = [each for each in ids if each not in met]
    if missing:
        raise Malformed(f"criterion {missing[0][:100]!r} is missing.")
    return {each: met[each] for each in ids}


def _as(shape: type[T], value: Any) -> T:
    try:
        return msgspec.convert(value, shape, strict=True)
    except msgspec.ValidationError as problem:
        raise Malformed(f"{problem}.") from None
