"""The finished run that a claim compares with: its values, sample by sample.

It is opened before anything runs, and refused if a comparison afterwards would be: it must be a
whole ordinary run, with the same samples, scored by the same function in the same environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heldout._core.format import list_some
from heldout.errors import InvalidInput, NotComparable, RunDirectoryError
from heldout.stats.intervals import Floats
from heldout.store.fingerprint import PARTS, name_changes
from heldout.store.journal import content_hash, id_hash
from heldout.store.report import EvalReport
from heldout.store.tables import ResultTable, table_of
from heldout.types import Sample

CLAIM_KEYS = ("until", "level", "keep_power", "this_set", "cluster", "baseline", "race")
"""What run.json's config says of a claim; without these it is that of an ordinary run."""
IDS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Baseline:
    """A finished run that another one is compared with while that runs.

    Attributes:
        name: What the user calls it.
        id: Its unique id.
        table: Its items.
    """

    name: str
    id: str | None
    table: ResultTable

    def values(self, samples: Sequence[Sample]) -> tuple[Floats, Floats]:
        """Return the lowest and the highest value that each of these samples may have in it.

        Args:
            samples: In any order.

        Returns:
            The mean over a sample's attempts, with those that errored as 0, and as 1.

        Raises:
            NotComparable: It lacks a sample, or has another one of that id.
        """
        table = self.table
        places = {id: place for place, id in enumerate(table.id_hash.tolist())}
        found = [places.get(id_hash(sample.id) & _ALL_BITS) for sample in samples]
        missing = [s.id for s, place in zip(samples, found, strict=True) if place is None]
        rows = np.array([place for place in found if place is not None], dtype=np.int64)
        if not missing:
            content = table.content[rows].tolist()
            missing = [
                sample.id
                for sample, there in zip(samples, content, strict=True)
                if content_hash(sample.id, sample.input, sample.ground_truth) & _ALL_BITS != there
            ]
        if missing:
            raise NotComparable(
                f"{self.name} does not have {len(missing)} of these {len(samples)} samples, or "
                f"another input or ground truth under their ids: {list_some(missing, IDS_SHOWN)}",
                (),
            )
        errored = np.isnan(table.reward)
        return (
            _means(table, np.where(errored, 0.0, table.reward))[rows],
            _means(table, np.where(errored, 1.0, table.reward))[rows],
        )


_ALL_BITS = 2**64 - 1


def _means(table: ResultTable, values: Floats) -> Floats:
    sums = np.bincount(table.sample, weights=values, minlength=table.samples)
    return np.asarray(sums / np.bincount(table.sample, minlength=table.samples))


def open_baseline(name: str, run_name: str | None, functions: Mapping[str, Any]) -> Baseline:
    """Open the run that a claim compares with.

    Args:
        name: As for `EvalReport.load`.
        run_name: What the run that makes the claim is called.
        functions: Its functions, as run.json has them.

    Raises:
        RunDirectoryError: There is no such run.
        NotComparable: It is not whole, was stopped early, or was scored in another way.
        InvalidInput: The name would mean another run once this one is there.
    """
    if run_name is not None and name == run_name.partition("/")[0]:
        raise InvalidInput(
            f"{name} means the latest run of that name, which this run is going to be; name the "
            f"baseline by its number, such as {name}@1"
        )
    try:
        report = EvalReport.load(name)
    except RunDirectoryError as problem:
        raise RunDirectoryError(
            f"until compares with a baseline that is not there: {problem}", hint=problem.hint
        ) from None
    problems = _describe_problems(report, functions)
    if problems:
        raise NotComparable(
            f"{name} cannot be the baseline: {'; '.join(problems)}", ("incomplete",)
        )
    table = table_of(report.results)
    values = table.reward[~np.isnan(table.reward)]
    if len(values) and (values.min() < 0 or values.max() > 1):
        raise NotComparable(
            f"{name} cannot be the baseline: its rewards go from {values.min():g} to "
            f"{values.max():g}, and until is for rewards between 0 and 1",
            (),
        )
    return Baseline(name, None if report.info is None else report.info.id, table)


def _describe_problems(report: EvalReport, functions: Mapping[str, Any]) -> list[str]:
    problems = []
    settled = report.settled
    if not report.is_finished or report.lacks_mean or report.summary.get("mean") is None:
        problems.append(f"it is {report.status}, and has no mean of all its samples")
    elif settled is not None and settled.is_early:
        problems.append(
            f"it was stopped by {settled.stopped_by} after {settled.part}; `--resume --until none` "
            "finishes it"
        )
    if report.config.get("kind") == "episodes":
        problems.append("it has episodes of an environment")
    own = {} if report.info is None else report.info.functions
    for key, noun in (("score_fn", "score function"), ("environment_factory", "environment")):
        if own and functions and own.get(key) != functions.get(key):
            parts = [(each.get(PARTS) or {}).get(key) for each in (own, functions)]
            changes = name_changes(*parts)
            problems.append(f"it has another {noun}" + (f": {changes}" if changes else ""))
    return problems
