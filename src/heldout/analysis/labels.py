"""What people said of answers, for a judge to be measured against: a line of JSON each.

    {"question": "Capital of Chad?", "answer": "I think N'Djamena.", "target": "N'Djamena",
     "label": true}

equality    question, answer, target; label true or false (or "equal", "different")
three-way   the same; label "correct", "incorrect" or "not_attempted"
criteria    question, answer, criteria [{id, description, …}], perhaps a target;
            label {id: true or false} for every criterion
pairwise    question, first, second; label "first", "second" or "tie"

`id` is optional; further keys are passed over. Every bad line is found before anything is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from heldout.errors import InvalidInput

if TYPE_CHECKING:
    from heldout.scoring.judges.questions import Criterion

Kind = Literal["equality", "three-way", "criteria", "pairwise"]
KINDS: tuple[Kind, ...] = get_args(Kind)

EQUAL, DIFFERENT, MET, NOT_MET = "equal", "different", "met", "not met"
CATEGORIES: dict[Kind, tuple[str, ...]] = {
    "equality": (EQUAL, DIFFERENT),
    "three-way": ("correct", "incorrect", "not_attempted"),
    "criteria": (MET, NOT_MET),
    "pairwise": ("first", "second", "tie"),
}
NAMED = 5
"""So many bad lines are named; the rest is a number."""

Label = str | dict[str, bool]


@dataclass(frozen=True, slots=True)
class Labelled:
    """An answer (two, for pairwise) and what a person said of it."""

    id: str
    texts: dict[str, str]
    """By the names above: question, answer, target, first, second."""
    label: Label
    """One of CATEGORIES; for criteria, whether each is met."""
    criteria: tuple[Criterion, ...] = ()


def labelled(rows: Iterable[tuple[str, Any]], kind: Kind) -> list[Labelled]:
    """(where, row) pairs as labelled answers; InvalidInput names every row that is none."""
    check_kind(kind)
    found: list[Labelled] = []
    wrong: list[str] = []
    seen: dict[str, str] = {}
    for where, row in rows:
        try:
            one = _labelled(where, row, kind)
            if one.id in seen:
                raise InvalidInput(f"the id {one.id!r:.100} is also that of {seen[one.id]}")
        except InvalidInput as problem:
            wrong.append(f"{where}: {problem}")
            continue
        seen[one.id] = where
        found.append(one)
    if wrong:
        more = f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        raise InvalidInput("; ".join(wrong[:NAMED]) + more)
    return found


def read_labels(path: str | Path, kind: Kind) -> list[Labelled]:
    """A file of JSON lines."""
    path = Path(path)
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as problem:
        raise InvalidInput(f"{path} cannot be read: {problem.strerror}") from None
    rows = [(f"line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise InvalidInput(f"{path} has no lines; each is a labelled answer, as JSON")
    try:
        return labelled(((where, _decoded(line)) for where, line in rows), kind)
    except InvalidInput as problem:
        raise InvalidInput(f"{path}, {problem}") from None


def check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise InvalidInput(f"kind is {', '.join(KINDS)}; got {kind!r:.100}")


def _decoded(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        return problem


def _labelled(where: str, row: Any, kind: Kind) -> Labelled:
    if isinstance(row, Labelled):
        return _checked(row, kind)
    if isinstance(row, Exception):
        raise InvalidInput(f"it is no JSON ({row})")
    if not isinstance(row, Mapping):
        raise InvalidInput(f"it is an object with keys, got {type(row).__name__}")
    texts = {name: _text(row, name) for name in _texts_of(kind)}
    if kind == "criteria" and row.get("target") is not None:
        texts["target"] = _text(row, "target")
    criteria = _criteria(row) if kind == "criteria" else ()
    given = row.get("id")
    if given is not None and not (isinstance(given, str | int) and not isinstance(given, bool)):
        raise InvalidInput(f"id is a text or a whole number, got {given!r:.100}")
    id = where if given is None else str(given)
    return Labelled(id, texts, _label(row, kind, criteria), criteria)


def _checked(one: Labelled, kind: Kind) -> Labelled:
    """One that was made before, perhaps for another kind."""
    if kind == "criteria" and not one.criteria:
        raise InvalidInput("it has no criteria, which kind='criteria' asks about")
    for name in _texts_of(kind):
        _text(one.texts, name)
    _label({"label": one.label}, kind, one.criteria)
    return one


def _texts_of(kind: Kind) -> tuple[str, ...]:
    """What has to be there."""
    answers = ("first", "second") if kind == "pairwise" else ("answer",)
    return ("question", *answers, *(("target",) if kind in ("equality", "three-way") else ()))


def _text(row: Mapping[str, Any], name: str) -> str:
    """Text as it is; a number, list or object as its JSON."""
    if name not in row:
        raise InvalidInput(f"{name!r} is missing; there are {sorted(map(str, row))!r:.200}")
    given = row[name]
    text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    # An empty answer is one that people may have labelled.
    if given is None or (not text.strip() and name in ("question", "target")):
        raise InvalidInput(f"{name!r} is empty")
    return text


def _criteria(row: Mapping[str, Any]) -> tuple[Criterion, ...]:
    from heldout.scoring.judges.questions import Criterion, check_criteria

    given = row.get("criteria")
    if not isinstance(given, list) or not given:
        raise InvalidInput("'criteria' is a list of {id, description, weight?, required?}")
    known = {"id", "description", "weight", "required"}
    criteria = []
    for each in given:
        if not isinstance(each, dict) or not {"id", "description"} <= set(each) <= known:
            raise InvalidInput(
                f"a criterion has id, description, weight, required; got {each!r:.100}"
            )
        criteria.append(Criterion(**each))
    check_criteria(criteria)
    return tuple(criteria)


_EQUALITY = {True: EQUAL, False: DIFFERENT, EQUAL: EQUAL, DIFFERENT: DIFFERENT}


def _label(row: Mapping[str, Any], kind: Kind, criteria: tuple[Criterion, ...]) -> Label:
    if "label" not in row:
        raise InvalidInput("'label' is missing: what a person said of it")
    given = row["label"]
    if kind == "criteria":
        ids = [criterion.id for criterion in criteria]
        if not isinstance(given, dict) or not all(isinstance(v, bool) for v in given.values()):
            raise InvalidInput(f"'label' says true or false of each criterion, got {given!r:.100}")
        if set(given) != set(ids):
            odd = sorted(set(given) ^ set(ids))
            raise InvalidInput(f"'label' and 'criteria' differ in {', '.join(map(repr, odd)):.200}")
        return {id: given[id] for id in ids}
    if kind == "equality" and isinstance(given, bool | str) and given in _EQUALITY:
        return _EQUALITY[given]
    if kind != "equality" and isinstance(given, str) and given in CATEGORIES[kind]:
        return given
    may = "true or false" if kind == "equality" else ", ".join(CATEGORIES[kind])
    raise InvalidInput(f"'label' is {may}; got {given!r:.100}")
