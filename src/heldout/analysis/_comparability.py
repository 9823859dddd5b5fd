"""What keeps two runs from being compared.

A difference that is not the policy's (other samples, another scorer, a run that did not finish …)
is refused, naming what differs, unless it is allowed by name. Settings that one may want to compare
(a prompt, a temperature) are only reported.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from heldout._core.config import result_changing
from heldout._core.format import samples as count_samples
from heldout.analysis._runs import LoadedRun
from heldout.errors import InvalidInput, NotComparable
from heldout.stats.intervals import Ints
from heldout.store.fingerprint import PARTS, name_changes
from heldout.store.report import EvalReport
from heldout.store.run_config import was_success_assumed
from heldout.store.tables import Labels

DifferenceKind = Literal["samples", "scorer", "environment", "threshold", "incomplete", "cached"]
DIFFERENCE_KINDS: tuple[DifferenceKind, ...] = get_args(DifferenceKind)
"""In what two runs may differ; `allow=` of a comparison takes these."""

IDS_SHOWN = 3
PARTS_SHOWN = 8

# What a report of episodes says in its config, where others have functions.
_EPISODE_SETTINGS: dict[str, DifferenceKind] = {
    "success_is": "scorer",
    "reward": "scorer",
    "env": "environment",
    "max_steps": "environment",
}
_FUNCTIONS: dict[str, DifferenceKind] = {"score_fn": "scorer", "environment_factory": "environment"}
_OF_OTHERS = ("endpoint", "imported", "parent", "baseline", "race")
# Reported elsewhere, or nothing that a reader could act on.
_NOT_SETTINGS = {
    *_EPISODE_SETTINGS,
    *("kind", "num_envs", "seeded", "notes", "samples", "label", "n", "success"),
    *("until", "level", "keep_power", "this_set", "cluster", "order"),
}


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Something that differs between two runs other than the policy.

    Attributes:
        kind: What `allow` calls it.
        text: What differs, for the message of a refusal.
    """

    kind: DifferenceKind
    text: str


class SharedSamples(NamedTuple):
    """The samples that two runs have in common, as aligned indices into their tables."""

    a: Ints
    b: Ints


def _find_shared_samples(a: LoadedRun, b: LoadedRun) -> SharedSamples:
    """Align the samples of two runs by id."""
    # Hashes of 64 bits: that a million ids which differ have the same ones is out of the question.
    if np.array_equal(a.table.id_hash, b.table.id_hash):
        everything = np.arange(len(a.table.id_hash), dtype=np.int64)
        return SharedSamples(everything, everything)
    index = {id: i for i, id in enumerate(b.table.sample_ids)}
    pairs = [(i, index[id]) for i, id in enumerate(a.table.sample_ids) if id in index]
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return SharedSamples(table[:, 0], table[:, 1])


# --- Mismatches ---------------------------------------------------------------------------------


def find_mismatches(
    a: LoadedRun, b: LoadedRun, *, keys: Sequence[str], threshold_matters: bool
) -> tuple[SharedSamples, list[Mismatch]]:
    """Align two runs, and list what differs; `keys` are those of slices and clusters."""
    shared = _find_shared_samples(a, b)
    mismatches: list[Mismatch] = []
    if not unseeded_runs(a, b):  # without seeds, ids say nothing
        mismatches += [*_sample_mismatches(a, b, shared), *_key_mismatches(a, b, shared, keys)]
    for name, kind in {} if ran_one_published_task(a, b) else _FUNCTIONS.items():
        text = describe_function_change(a, b, name)
        if text and a.functions and b.functions and not (kind == "scorer" and same_answers(a, b)):
            mismatches.append(Mismatch(kind, text))
    if "episodes" in (a.config.get("kind"), b.config.get("kind")):
        mismatches += [*_find_old_success(a), *_find_old_success(b)]
        for name, kind in _EPISODE_SETTINGS.items():
            if a.config.get(name) != b.config.get(name):
                text = _describe_change(name, a.config.get(name), b.config.get(name))
                mismatches.append(Mismatch(kind, text))
    thresholds = a.report.pass_threshold, b.report.pass_threshold
    if threshold_matters and thresholds[0] != thresholds[1]:
        mismatches.append(Mismatch("threshold", _describe_change("pass_threshold", *thresholds)))
    return shared, [*mismatches, *find_unfinished(a), *find_unfinished(b)]


def refuse_mismatches(mismatches: Iterable[Mismatch], allow: Collection[str], what: str) -> None:
    """Raise NotComparable for what is not allowed; `what` begins the message."""
    if unknown := [kind for kind in allow if kind not in DIFFERENCE_KINDS]:
        raise InvalidInput(f"allow takes some of {', '.join(DIFFERENCE_KINDS)}; got {unknown[0]!r}")
    refused = [mismatch for mismatch in mismatches if mismatch.kind not in allow]
    if refused:
        texts = "; ".join(f"{mismatch.kind}: {mismatch.text}" for mismatch in refused)
        kinds = tuple(dict.fromkeys(mismatch.kind for mismatch in refused))
        raise NotComparable(
            f"{what}: {texts}. If that is intended, allow it: {', '.join(kinds)}", kinds
        )


def match_runs(
    a: LoadedRun,
    b: LoadedRun,
    allow: Collection[str],
    what: str,
    *,
    keys: Sequence[str] = (),
    threshold_matters: bool,
) -> tuple[SharedSamples, list[Mismatch]]:
    """Align two runs, and list what differs and is allowed to; NotComparable for what is not."""
    path_a, path_b = a.report.path, b.report.path
    if path_a is not None and path_b is not None and path_a.resolve() == path_b.resolve():
        raise InvalidInput(f"{path_a} is compared with itself; name two runs")
    shared, mismatches = find_mismatches(a, b, keys=keys, threshold_matters=threshold_matters)
    refuse_mismatches(mismatches, allow, what)
    return shared, mismatches


def _find_old_success(run: LoadedRun) -> list[Mismatch]:
    """Return a mismatch for a run that counted every termination as success, else None."""
    if not was_success_assumed(run.config):
        return []
    text = (
        f"{run.name} was saved when an episode that terminated counted as a success, which it need "
        "not be (a pole that fell); VectorReport.load(…).save(…) saves it with returns"
    )
    return [Mismatch("scorer", text)]


def find_unfinished(run: LoadedRun) -> list[Mismatch]:
    """Return a mismatch for a run that did not finish, else None."""
    return unfinished_report(run.report, run.name, len(run.table.reward))


def unfinished_report(report: EvalReport, name: str, items: int) -> list[Mismatch]:
    """Return a mismatch for a report that is not finished and has so many items, else None."""
    if report.settled is not None and report.settled.is_early:
        text = (
            f"{name} was stopped by {report.settled.stopped_by} after {report.settled.part}, "
            "because of what they showed, so no ordinary interval of it holds (--resume "
            "--until none finishes it)"
        )
        return [Mismatch("incomplete", text)]
    if report.summary.get("complete") is not False:
        return []
    if report.status == "complete":
        text = (
            f"{name} says of itself that it is complete, but its results.jsonl is not the one "
            "that it was finished with: it was changed, or is another run's"
        )
        return [Mismatch("incomplete", text)]
    asked = report.summary.get("n_asked")
    of = "" if asked is None else f" of {asked}"
    text = (
        f"{name} is not finished ({report.status}): it has {items}{of} items, and those that end "
        "first are not like the others"
    )
    if not report.is_imported:
        text += " (--resume finishes it)"
    return [Mismatch("incomplete", text)]


def find_copies(run: LoadedRun, baseline: LoadedRun | None = None) -> list[Mismatch]:
    """Return a mismatch if the verdict would be on copied answers, else None.

    A baseline measured earlier is not a copy: its turns are the run's own only if the cache is all
    that differs.
    """
    turns = "all of its model turns came from the response cache"
    if run.measured_nothing:
        return [Mismatch("cached", f"{run.name} measured nothing new: {turns}")]
    if baseline is None or not baseline.measured_nothing:
        return []
    if run.config.get("endpoint") != baseline.config.get("endpoint"):
        return []
    if find_changed_settings(baseline, run):
        return []
    text = f"{baseline.name} measured nothing new: {turns}, and may be the answers of {run.name}"
    return [Mismatch("cached", text)]


def same_answers(a: LoadedRun, b: LoadedRun) -> bool:
    """Return whether both score the same trajectories, so that scorers are what is compared."""
    rescored = any(isinstance(run.config.get("parent"), dict) for run in (a, b))
    return bool(rescored and a.origin and a.origin.get("id") and a.origin == b.origin)


def ran_one_published_task(a: LoadedRun, b: LoadedRun) -> bool:
    """Return whether one is a log of a published task, and the other ran that very task here.

    Their code is then the package's, of the same version; a log has it by name alone, so that
    fingerprints would never agree.
    """
    logged = [run.config.get("imported") for run in (a, b)]
    scorers = [run.functions.get("score_fn") for run in (a, b)]
    for theirs, ours in ((logged[0], scorers[1]), (logged[1], scorers[0])):
        if not isinstance(theirs, dict) or not isinstance(ours, dict):
            continue
        logs, here = theirs.get("published"), ours.get("published")
        if isinstance(logs, dict) and isinstance(here, dict):
            rewards, reward = logs.get("rewards"), here.get("rewards")
            if isinstance(rewards, list) and isinstance(reward, list):
                is_same_reward = any(name in rewards for name in reward)
                return is_same_reward and {**logs, "rewards": reward} == here
    return False


def unseeded_runs(a: LoadedRun, b: LoadedRun) -> tuple[str, ...]:
    """Name the runs whose episodes had no seeds: their samples of one id are not one task."""
    return tuple(run.name for run in (a, b) if run.config.get("seeded") is False)


def merge_labels(*columns: Labels) -> tuple[list[Ints], list[Any]]:
    """Number the values of several columns with shared codes; the last value returned is None."""
    known: dict[Any, int] = {}
    for column in columns:
        for value in column.values:
            known.setdefault(value, len(known))
    missing = len(known)
    codes = []
    for column in columns:
        numbers = np.array([*(known[value] for value in column.values), missing], dtype=np.int64)
        codes.append(numbers[column.codes])
    return codes, [*known, None]


def _sample_mismatches(a: LoadedRun, b: LoadedRun, shared: SharedSamples) -> list[Mismatch]:
    texts = []
    for run, other, indices in ((a, b, shared.a), (b, a, shared.b)):
        missing = run.table.samples - len(indices)
        if missing and other.complete:  # else "incomplete" says it
            known = set(other.table.sample_ids)
            ids = _list_ids(id for id in run.table.sample_ids if id not in known)
            texts.append(f"{count_samples(missing)} only in {run.name}: {ids}")
    changed = np.flatnonzero(a.table.content[shared.a] != b.table.content[shared.b])
    if len(changed):
        ids = _list_ids(a.table.sample_ids[shared.a[i]] for i in changed)
        texts.append(f"{count_samples(len(changed))} with another input or ground truth: {ids}")
    return [Mismatch("samples", text) for text in texts]


def _key_mismatches(
    a: LoadedRun, b: LoadedRun, shared: SharedSamples, keys: Sequence[str]
) -> list[Mismatch]:
    """Find samples whose slice or cluster differs between the runs."""
    mismatches = []
    for key in dict.fromkeys(keys):
        labels_a, labels_b = a.table.keys[key], b.table.keys[key]
        (codes_a, codes_b), _ = merge_labels(labels_a, labels_b)
        moved = np.flatnonzero(codes_a[shared.a] != codes_b[shared.b])
        if len(moved):
            i, j = int(shared.a[moved[0]]), int(shared.b[moved[0]])
            text = (
                f"{count_samples(len(moved))} with another {key}: {a.table.sample_ids[i]!r} has "
                f"{labels_a[i]!r:.60} and {labels_b[j]!r:.60}"
            )
            mismatches.append(Mismatch("samples", text))
    return mismatches


# --- Functions ----------------------------------------------------------------------------------


def describe_function_change(a: LoadedRun, b: LoadedRun, name: str) -> str | None:
    """Describe how a function of two runs differs; None where it is the same."""
    function_a, function_b = a.functions.get(name), b.functions.get(name)
    if function_a == function_b:
        return None
    if parts := _describe_rubric_changes(function_a, function_b):
        return f"{name} is not the same rubric: {'; '.join(parts)}"
    names = [f.get("name") if isinstance(f, dict) else None for f in (function_a, function_b)]
    if names[0] == names[1]:
        made_of = [(run.functions.get(PARTS) or {}).get(name) for run in (a, b)]
        changes = name_changes(*made_of)
        return f"the code of {names[0] or name}, or of something it uses, differs" + (
            f": {changes}" if changes else ""
        )
    return _describe_change(name, *names)


def _describe_rubric_changes(function_a: Any, function_b: Any) -> list[str]:
    """Describe what two rubrics differ in, part by part; empty where either is no rubric."""
    rubrics = [f["parts"] for f in (function_a, function_b) if isinstance(f, dict) and "parts" in f]
    if len(rubrics) < 2 or not all(isinstance(parts, list) for parts in rubrics):
        return []
    a, b = ({str(p.get("name")): p for p in parts if isinstance(p, dict)} for parts in rubrics)
    texts = [f"{name!r:.60} is in one only" for name in {**a, **b} if (name in a) != (name in b)]
    for name in a.keys() & b.keys():
        texts += [
            f"{name!r:.60} is not the same code"
            if key == "source"
            else f"{name!r:.60}: {_describe_change(key, a[name].get(key), b[name].get(key))}"
            for key in {**a[name], **b[name]}
            if a[name].get(key) != b[name].get(key)
        ]
    if not texts:
        moved = rubrics[0] != rubrics[1]
        return ["its parts are in another order" if moved else "it is another kind of rubric"]
    texts.sort()
    more = [f"and {len(texts) - PARTS_SHOWN} more"] if len(texts) > PARTS_SHOWN else []
    return [*texts[:PARTS_SHOWN], *more]


# --- Settings -----------------------------------------------------------------------------------


def find_changed_settings(a: LoadedRun, b: LoadedRun) -> dict[str, tuple[Any, Any]]:
    """Return the settings other than the policy that differ, with both values."""
    settings_a, settings_b = _comparable_settings(a), _comparable_settings(b)
    if ran_one_published_task(a, b):
        for settings in (settings_a, settings_b):
            settings.pop("prepare_messages", None)  # the package's, like the rest of the task
    return {
        name: (settings_a.get(name), settings_b.get(name))
        for name in {**settings_a, **settings_b}
        if settings_a.get(name) != settings_b.get(name)
    }


def find_model_versions(a: LoadedRun, b: LoadedRun) -> tuple[str, str | None, str | None] | None:
    """Return a model's name and its two versions, where one name stands for two models."""
    endpoints = [run.config.get("endpoint") for run in (a, b)]
    model_a, model_b = (endpoint if isinstance(endpoint, dict) else {} for endpoint in endpoints)
    versions = model_a.get("version"), model_b.get("version")
    if model_a.get("model") != model_b.get("model") or versions[0] == versions[1]:
        return None
    return str(model_a.get("model")), *versions


def find_unknown_scorers(a: LoadedRun, b: LoadedRun) -> tuple[str, ...]:
    """Name the runs that did not record how they were scored."""
    return tuple(
        run.name
        for run in (a, b)
        if not run.functions.get("score_fn") and run.config.get("kind") != "episodes"
    )


def _comparable_settings(run: LoadedRun) -> dict[str, Any]:
    settings = {
        name: value
        for name, value in result_changing(run.config).items()
        if not name.startswith(("endpoint", "imported", "parent", "baseline"))
        and name not in _NOT_SETTINGS
    }
    prepare = run.functions.get("prepare_messages")
    if isinstance(prepare, dict):
        settings["prepare_messages"] = f"{prepare.get('name')} {prepare.get('source')!s:.6}"
    return settings


def _describe_change(name: str, a: Any, b: Any) -> str:
    return f"{name} is {a!r:.60} and {b!r:.60}"


def _list_ids(ids: Iterable[str]) -> str:
    shown = [repr(id)[:80] for id in islice(ids, IDS_SHOWN + 1)]
    more = ["…"] if len(shown) > IDS_SHOWN else []
    return ", ".join([*shown[:IDS_SHOWN], *more])
