"""What keeps two reports from answering the same question.

Another set of samples, another scorer, another environment, another meaning of "passed", or a run
that did not finish (what ends first is not a fair sample of what was asked) makes a difference
that is not the policy's. Such a comparison is refused, naming what differed, unless it is allowed
by name. Settings that one may well want to compare (a prompt, a temperature) are only noted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from heldout.analysis.opened import Opened
from heldout.config import result_changing
from heldout.errors import InvalidInput, NotComparable
from heldout.stats import Ints
from heldout.store.columns import Labels

Kind = Literal["samples", "scorer", "environment", "threshold", "incomplete"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MOST_PARTS = 8
"""So many differences of two rubrics stand in a message."""
NAMED = 3
"""So many ids stand in a message; of more, how many they are."""

# What a report of episodes says in its config, where others have functions.
_OF_EPISODES: dict[str, Kind] = {
    "success_is": "scorer",
    "env": "environment",
    "max_steps": "environment",
}
_FUNCTIONS: dict[str, Kind] = {"score_fn": "scorer", "environment_factory": "environment"}
# Said elsewhere, or nothing that a reader could act on.
_NOT_SETTINGS = {*_OF_EPISODES, "kind", "num_envs", "seeded", "notes", "samples", "label", "n"}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Something that makes two reports hard to compare."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Shared:
    """The samples that both have: their places in one table and in the other."""

    in_a: Ints
    in_b: Ints


def shared_samples(a: Opened, b: Opened) -> Shared:
    # Hashes of 64 bits: that a million ids which differ have the same ones is out of the question.
    if np.array_equal(a.table.id_hash, b.table.id_hash):
        everything = np.arange(len(a.table.id_hash), dtype=np.int64)
        return Shared(everything, everything)
    ids_a, place = a.table.sample_ids, {id: i for i, id in enumerate(b.table.sample_ids)}
    pairs = [(i, place[id]) for i, id in enumerate(ids_a) if id in place]
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return Shared(table[:, 0], table[:, 1])


# --- What differs -------------------------------------------------------------------------------


def mismatches(
    a: Opened, b: Opened, shared: Shared, *, keys: Sequence[str], threshold_matters: bool
) -> list[Mismatch]:
    found = []
    if not unpairable(a, b):  # their ids mean nothing then
        found += [*_samples(a, b, shared), *_keys(a, b, shared, keys)]
    for name, kind in _FUNCTIONS.items():
        text = _function(name, a.functions.get(name), b.functions.get(name))
        if text and a.functions and b.functions and not (kind == "scorer" and same_answers(a, b)):
            found.append(Mismatch(kind, text))
    if "episodes" in (a.config.get("kind"), b.config.get("kind")):
        for name, kind in _OF_EPISODES.items():
            if a.config.get(name) != b.config.get(name):
                found.append(Mismatch(kind, _changed(name, a.config.get(name), b.config.get(name))))
    of_a, of_b = a.report.pass_threshold, b.report.pass_threshold
    if of_a != of_b and threshold_matters:
        found.append(Mismatch("threshold", _changed("pass_threshold", of_a, of_b)))
    return [*found, *unfinished(a), *unfinished(b)]


def same_answers(a: Opened, b: Opened) -> bool:
    """Whether one scored the other's trajectories again, or both a third's: then another scorer
    is what is compared."""
    scored_again = any(isinstance(side.config.get("parent"), dict) for side in (a, b))
    return bool(scored_again and a.origin and a.origin.get("id") and a.origin == b.origin)


def unpairable(a: Opened, b: Opened) -> str | None:
    """Why samples of the same id are not the same task; None where they are."""
    unseeded = [side.name for side in (a, b) if side.config.get("seeded") is False]
    if not unseeded:
        return None
    return f"the episodes of {' and '.join(unseeded)} began wherever the environment chose"


def refuse_itself(a: Opened, b: Opened) -> None:
    paths = [side.report.path for side in (a, b)]
    if None not in paths and paths[0].resolve() == paths[1].resolve():  # type: ignore[union-attr]
        raise InvalidInput(f"{paths[0]} is compared with itself; name two runs")


def unfinished(one: Opened) -> list[Mismatch]:
    if one.complete:
        return []
    asked = one.report.summary.get("n_asked")
    of = "" if asked is None else f" of {asked}"
    return [
        Mismatch(
            "incomplete",
            f"{one.name} is not finished ({one.report.status}): it has {len(one.table.reward)}{of} "
            "items, and those that end first are not like the others (--resume finishes it)",
        )
    ]


def _samples(a: Opened, b: Opened, shared: Shared) -> list[Mismatch]:
    found = []
    for one, other, places in ((a, b, shared.in_a), (b, a, shared.in_b)):
        missing = len(one.table.sample_ids) - len(places)
        if missing and other.complete:  # else it is for want of an end that it lacks them
            known = set(other.table.sample_ids)
            first = _some(repr(id) for id in one.table.sample_ids if id not in known)
            found.append(f"{_count(missing)} only in {one.name}: {first}")
    content_a, content_b = (np.asarray(one.table.content) for one in (a, b))
    changed = np.flatnonzero(content_a[shared.in_a] != content_b[shared.in_b])
    if len(changed):
        names = _some(repr(a.table.sample_ids[shared.in_a[i]]) for i in changed)
        found.append(f"{_count(len(changed))} with another input or ground truth: {names}")
    return [Mismatch("samples", text) for text in found]


def _keys(a: Opened, b: Opened, shared: Shared, keys: Sequence[str]) -> list[Mismatch]:
    """The same sample in two slices, or in two clusters."""
    found = []
    for key in dict.fromkeys(keys):
        of_a, of_b = a.table.keys[key], b.table.keys[key]
        (codes_a, codes_b), _ = in_common(of_a, of_b)
        moved = np.flatnonzero(codes_a[shared.in_a] != codes_b[shared.in_b])
        if len(moved):
            i, j = int(shared.in_a[moved[0]]), int(shared.in_b[moved[0]])
            text = (
                f"{_count(len(moved))} with another {key}: {a.table.sample_ids[i]!r} has "
                f"{of_a[i]!r:.60} and {of_b[j]!r:.60}"
            )
            found.append(Mismatch("samples", text))
    return found


def in_common(*sides: Labels) -> tuple[list[Ints], list[Any]]:
    """The codes of several sides as numbers into one list of values; the last is None."""
    known: dict[Any, int] = {}
    for side in sides:
        for value in side.values:
            known.setdefault(value, len(known))
    missing = len(known)
    codes = []
    for side in sides:
        numbers = np.array([*(known[value] for value in side.values), missing], dtype=np.int64)
        codes.append(numbers[side.codes])
    return codes, [*known, None]


def _function(name: str, one: Any, other: Any) -> str | None:
    if one == other:
        return None
    if parts := _parts(one, other):
        return f"{name} is not the same rubric: {'; '.join(parts)}"
    names = [f.get("name") if isinstance(f, dict) else None for f in (one, other)]
    if names[0] == names[1]:
        return f"{name} ({names[0]}), or what it uses, is not the same code"
    return _changed(name, *names)


def _parts(one: Any, other: Any) -> list[str]:
    """What two rubrics differ in, part by part; nothing where one of them is no rubric."""
    listed = [f["parts"] for f in (one, other) if isinstance(f, dict) and "parts" in f]
    if len(listed) < 2 or not all(isinstance(each, list) for each in listed):
        return []
    a, b = ({str(p.get("name")): p for p in each if isinstance(p, dict)} for each in listed)
    found = [f"{name!r:.60} is in one only" for name in {**a, **b} if (name in a) != (name in b)]
    for name in a.keys() & b.keys():
        keys = [key for key in {**a[name], **b[name]} if a[name].get(key) != b[name].get(key)]
        found += [
            f"{name!r:.60} is not the same code"
            if key == "source"
            else f"{name!r:.60}: {_changed(key, a[name].get(key), b[name].get(key))}"
            for key in keys
        ]
    if not found:
        moved = listed[0] != listed[1]
        found = ["its parts are in another order" if moved else "it is another kind of rubric"]
    found.sort()
    more = [f"and {len(found) - MOST_PARTS} more"] if len(found) > MOST_PARTS else []
    return [*found[:MOST_PARTS], *more]


def refuse(found: Iterable[Mismatch], allow: Collection[str], what: str) -> None:
    """NotComparable for what was not allowed; `what` is the comparison, in words."""
    unknown = [kind for kind in allow if kind not in KINDS]
    if unknown:
        raise InvalidInput(f"allow takes some of {', '.join(KINDS)}; got {unknown[0]!r}")
    refused = [mismatch for mismatch in found if mismatch.kind not in allow]
    if refused:
        said = "; ".join(f"{mismatch.kind}: {mismatch.text}" for mismatch in refused)
        kinds = tuple(dict.fromkeys(mismatch.kind for mismatch in refused))
        raise NotComparable(
            f"{what}: {said}. If that is meant, allow it: {', '.join(kinds)}", kinds
        )


# --- What is only noted -------------------------------------------------------------------------


def differing_settings(a: Opened, b: Opened) -> list[str]:
    """Settings beside the policy that are not the same."""
    one, other = (_settings(side) for side in (a, b))
    changed = [
        _changed(name, one.get(name), other.get(name))
        for name in {**one, **other}
        if one.get(name) != other.get(name)
    ]
    notes = [f"not the policy alone differs: {'; '.join(changed)}"] if changed else []
    notes += _same_name(a, b)
    if same_answers(a, b):
        changed_in = _function("score_fn", *(side.functions.get("score_fn") for side in (a, b)))
        notes.append(
            "the answers are the same ones, scored twice: a difference is the grader's "
            f"({changed_in or 'score_fn is the same one'})"
        )
    unknown = [side.name for side in (a, b) if _scorer_unknown(side)]
    if unknown:
        were = "were" if len(unknown) > 1 else "was"
        notes.append(f"how {' and '.join(unknown)} {were} scored is not known: it may differ")
    return notes


def _same_name(a: Opened, b: Opened) -> list[str]:
    """Two models under one name: the version of each."""
    endpoints = [side.config.get("endpoint") for side in (a, b)]
    one, other = (given if isinstance(given, dict) else {} for given in endpoints)
    if one.get("model") != other.get("model") or one.get("version") == other.get("version"):
        return []
    versions = [str(each.get("version") or "not known") for each in (one, other)]
    return [
        f"{one.get('model')} is not the same model in both: version {versions[0]} in {a.name}, "
        f"{versions[1]} in {b.name}"
    ]


def _settings(side: Opened) -> dict[str, Any]:
    settings = {
        name: value
        for name, value in result_changing(side.config).items()
        if not name.startswith(("endpoint", "parent")) and name not in _NOT_SETTINGS
    }
    prepare = side.functions.get("prepare_messages")
    if isinstance(prepare, dict):
        settings["prepare_messages"] = f"{prepare.get('name')} {prepare.get('source')!s:.6}"
    return settings


def _scorer_unknown(side: Opened) -> bool:
    return not side.functions.get("score_fn") and side.config.get("kind") != "episodes"


# --- Words --------------------------------------------------------------------------------------


def _changed(name: str, one: Any, other: Any) -> str:
    return f"{name} is {one!r:.60} and {other!r:.60}"


def _count(samples: int) -> str:
    return "1 sample" if samples == 1 else f"{samples} samples"


def _some(names: Iterable[str]) -> str:
    shown: list[str] = []
    for name in names:
        if len(shown) == NAMED:
            return f"{', '.join(shown)}, …"
        shown.append(name[:80])
    return ", ".join(shown)
