"""Is what is trained on in the held-out set, too? By id, and by what the samples ask."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from heldout.errors import InvalidInput
from heldout.store.journal import UNENCODABLE, plain_value
from heldout.types import Sample

NAMED = 5
"""So many ids stand in a message; of more, how many they are."""


class Overlap(NamedTuple):
    """A training sample that is in the held-out set, too."""

    trained: str
    held_out: str
    same_input: bool


def overlaps(samples: Iterable[Sample], held_out: Iterable[Sample]) -> list[Overlap]:
    """Every sample that has the id or the input of a held-out one."""
    held = list(held_out)
    for each in held:
        if not isinstance(each, Sample):
            raise InvalidInput(f"held_out takes Samples, got {each!r:.200}")
    ids = {sample.id for sample in held}
    by_input: dict[bytes, str] = {}
    for sample in held:
        content, whole = content_of(sample.input)
        # Two questions about two images are not the same for being worded alike.
        if whole:
            by_input.setdefault(content, sample.id)
    found = []
    for sample in samples if held else ():
        content, whole = content_of(sample.input)
        twin = by_input.get(content) if whole else None
        if twin is not None:
            found.append(Overlap(sample.id, twin, same_input=True))
        elif sample.id in ids:
            found.append(Overlap(sample.id, sample.id, same_input=False))
    return found


class Content(NamedTuple):
    """What a value says, whatever the order of its keys."""

    text: bytes
    whole: bool
    """False where something in it has no words in JSON (an image, say) and counts by its type."""


def content_of(value: Any) -> Content:
    whole = True

    def words(other: Any) -> Any:
        nonlocal whole
        try:
            return plain_value(other)
        except (NotImplementedError, TypeError, ValueError):
            whole = False
            return type(other).__qualname__  # not its repr, which has an address in it

    try:
        plain = msgspec.to_builtins(value, str_keys=True, order="deterministic", enc_hook=words)
        return Content(json.dumps(plain).encode(), whole)
    except (*UNENCODABLE, ValueError):  # keys that are no names, or a list that holds itself
        return Content(type(value).__qualname__.encode(), whole=False)


def refuse_overlaps(found: list[Overlap]) -> None:
    """Training on the test set makes a curve that rises and means nothing."""
    if not found:
        return
    same = [
        repr(o.trained) + (f" (held out as {o.held_out!r})" if o.held_out != o.trained else "")
        for o in found
        if o.same_input
    ]
    named_alike = [repr(o.trained) for o in found if not o.same_input]
    said = []
    if same:
        said.append(f"{len(same)} with the input of a held-out one: {some_of(same)}")
    if named_alike:
        said.append(
            f"{len(named_alike)} with the id of a held-out one, though another input: "
            f"{some_of(named_alike)} (if they are other questions, give them ids of their own)"
        )
    raise InvalidInput(
        "training samples are in the held-out set: "
        + "; ".join(said)
        + ". Leave them out of one of the two"
    )


def some_of(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
