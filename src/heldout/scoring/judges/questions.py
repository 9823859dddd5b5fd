"""The questions put to a judge: what it is shown, and how its verdict is read. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import msgspec

from heldout.errors import InvalidInput
from heldout.scoring.judges.prompts import (
    CRITERIA,
    DATA,
    EQUALITY,
    PAIRWISE,
    THREE_WAY,
    Prompt,
    delimited,
    readable,
    scoped,
)
from heldout.scoring.judges.replies import Malformed
from heldout.types import Message

T = TypeVar("T")
V = TypeVar("V")
Attempted = Literal["correct", "incorrect", "not_attempted"]
Preferred = Literal["first", "second", "tie"]
Scope = Literal["answer", "trajectory", "turn"]

MAX_WEIGHT = 1e100
"""Weight of a criterion: any number of these can be added up."""


@dataclass(frozen=True, slots=True)
class Question(Generic[V]):
    """What is put to a judge. Your own may be asked like those here."""

    prompt: str
    """Kind and version of the prompt: "equality/1"."""
    messages: tuple[Message, ...]
    inputs: dict[str, Any]
    """The judged texts by label, or other JSON values. Part of the key of a cached verdict."""
    read: Callable[[Any], V] = field(compare=False)
    """Turns the parsed JSON object into the verdict; raises `Malformed` with what is wrong."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A trajectory, or one turn of it, as labelled texts: judged instead of an answer."""

    scope: Scope
    texts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Criterion:
    """A statement that is true of an answer or not. A negative weight is for a bad thing."""

    id: str
    description: str
    weight: float = 1.0
    required: bool = False
    """Where it is not met, the score is 0."""

    def __post_init__(self) -> None:
        # Checked here since they are read from files of labels, too.
        for name in ("id", "description"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise InvalidInput(f"a criterion's {name} is text that is not empty, got {value!r}")
        if readable(self.id) != self.id or self.id != self.id.strip() or len(self.id) > 200:
            raise InvalidInput(
                f"criterion {self.id[:50]!r}: a judge has to repeat the id, so it is short and has "
                "nothing in it that cannot be seen"
            )
        if not isinstance(self.weight, int | float) or not abs(self.weight) <= MAX_WEIGHT:
            raise InvalidInput(
                f"criterion {self.id!r}: weight is a number between -{MAX_WEIGHT:g} and "
                f"{MAX_WEIGHT:g}, got {self.weight!r:.100}"
            )
        if not isinstance(self.required, bool):
            raise InvalidInput(
                f"criterion {self.id!r}: required is True or False, got {self.required!r:.100}"
            )
        if self.required and self.weight < 0:
            raise InvalidInput(
                f"criterion {self.id!r} is required and its weight is {self.weight:g}: required is "
                "what has to be met, and a negative weight is for what should not be. Turn the "
                "description round ('does not …') and make the weight 0 or more"
            )


def check_criteria(criteria: Sequence[Criterion]) -> None:
    """Check that criteria can be scored.

    Args:
        criteria: The criteria.

    Raises:
        InvalidInput: There are none, two share an id, or none has a positive weight.
    """
    if isinstance(criteria, str) or not criteria:
        raise InvalidInput(f"criteria are a list of at least one Criterion, got {criteria!r:.100}")
    ids: set[str] = set()
    for criterion in criteria:
        if not isinstance(criterion, Criterion):
            raise InvalidInput(f"criteria are Criterion values, got {criterion!r:.100}")
        if criterion.id in ids:
            raise InvalidInput(f"two criteria have the id {criterion.id!r}; ids are unique")
        ids.add(criterion.id)
    if not any(criterion.weight > 0 for criterion in criteria):
        raise InvalidInput(
            "no criterion has a weight above 0, so that nothing could be gained; give one a weight"
        )


# --- Questions ------------------------------------------------------------------------------------


def equality_question(question: str, answer: str | Blocks, target: str) -> Question[bool]:
    """Ask whether an answer means the same as the target.

    Args:
        question: What the model was asked.
        answer: Its answer, or a whole trajectory.
        target: The correct answer.

    Returns:
        The question; its verdict is True where they mean the same.
    """
    return _question(EQUALITY, question, answer, {"target": target}, _read_equal)


def three_way_question(question: str, answer: str | Blocks, target: str) -> Question[Attempted]:
    """Ask whether an answer is correct, incorrect or not attempted.

    Args:
        question: What the model was asked.
        answer: Its answer, or a whole trajectory.
        target: The correct answer.

    Returns:
        The question.
    """
    return _question(THREE_WAY, question, answer, {"target": target}, _read_attempted)


def criteria_question(
    question: str,
    answer: str | Blocks,
    criteria: Sequence[Criterion],
    target: str | None = None,
) -> Question[dict[str, bool]]:
    """Ask which criteria are met. The judge sees neither weights nor what is required.

    Args:
        question: What the model was asked.
        answer: Its answer, a whole trajectory or one turn.
        criteria: What is checked.
        target: A good answer to compare with.

    Returns:
        The question; its verdict says for each id whether it is met.

    Raises:
        InvalidInput: Two criteria share an id, or none has a positive weight.
    """
    check_criteria(criteria)
    listed = [{"id": c.id, "description": c.description} for c in criteria]
    texts = {} if target is None else {"target": target}
    texts["criteria"] = json.dumps(listed, ensure_ascii=False, indent=1)
    read = partial(_read_met, ids=tuple(c.id for c in criteria))
    return _question(CRITERIA, question, answer, texts, read)


def pairwise_question(question: str, first: str, second: str) -> Question[Preferred]:
    """Ask which of two answers is better. Ask in both orders: many judges prefer a position.

    Args:
        question: What the models were asked.
        first: The answer that is shown first.
        second: The other one.

    Returns:
        The question.
    """
    answers = Blocks("answer", {"first": first, "second": second})
    return _question(PAIRWISE, question, answers, {}, _read_preferred)


def _question(
    prompt: Prompt,
    question: str,
    answer: str | Blocks,
    texts: Mapping[str, str],
    read: Callable[[Any], V],
) -> Question[V]:
    blocks = answer if isinstance(answer, Blocks) else Blocks("answer", {"answer": answer})
    prompt = scoped(prompt, blocks.scope)
    inputs = {"question": question, **blocks.texts, **texts}
    data = delimited({label.upper(): text for label, text in inputs.items()})
    messages = (
        Message("system", f"{prompt.system}\n\n{DATA}"),
        Message("user", f"{data}\n\n{prompt.closing}"),
    )
    return Question(prompt.name, messages, inputs, read)


# --- Verdicts: further keys do no harm; a reason is asked for and not required --------------------


class _Verdict(msgspec.Struct, Generic[V]):
    verdict: V


class _Met(msgspec.Struct):
    id: str
    met: bool


class _AllMet(msgspec.Struct):
    criteria: list[_Met]


def _read_equal(value: Any) -> bool:
    return _convert(_Verdict[Literal["equal", "different"]], value).verdict == "equal"


def _read_attempted(value: Any) -> Attempted:
    return _convert(_Verdict[Attempted], value).verdict


def _read_preferred(value: Any) -> Preferred:
    return _convert(_Verdict[Preferred], value).verdict


def _read_met(value: Any, *, ids: tuple[str, ...]) -> dict[str, bool]:
    met: dict[str, bool] = {}
    for criterion in _convert(_AllMet, value).criteria:
        if criterion.id not in ids:
            raise Malformed(f"there is no criterion {criterion.id[:100]!r}.")
        if criterion.id in met:
            raise Malformed(f"criterion {criterion.id[:100]!r} is there twice.")
        met[criterion.id] = criterion.met
    for id in ids:
        if id not in met:
            raise Malformed(f"criterion {id[:100]!r} is missing.")
    return {id: met[id] for id in ids}


def _convert(shape: type[T], value: Any) -> T:
    try:
        return msgspec.convert(value, shape, strict=True)
    except msgspec.ValidationError as problem:
        raise Malformed(f"{problem}.") from None
