"""A report that is to be compared: its items as columns, and what is known of how it came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.stats import Ints
from heldout.store.report import EvalReport
from heldout.store.run_dir import RunDir
from heldout.store.table import Table, table_of

Comparable = EvalReport | str | Path


@dataclass(frozen=True, slots=True)
class Opened:
    name: str
    report: EvalReport
    table: Table
    functions: dict[str, Any]
    """As run.json has them: name and fingerprint of what prepared and scored; {}: not known."""
    origin: dict[str, Any] | None = None
    """Whose trajectories these are (`heldout rescore`); None: not known."""

    @property
    def config(self) -> dict[str, Any]:
        return self.report.config

    @property
    def complete(self) -> bool:
        return self.report.summary.get("complete") is not False

    @property
    def errored(self) -> int:
        return int(np.isnan(self.table.reward).sum())


def opened(given: Comparable | Opened, keys: Sequence[str] = (), *, name: str) -> Opened:
    """`name` is what to call a report that has no name of its own. One that is open, with these
    keys, is not read again."""
    if isinstance(given, Opened):
        return given
    if isinstance(given, str | Path):
        path = Path(given)
        if RunDir(path).curve.exists():
            raise RunDirectoryError(
                f"{path} is a curve; one of the evals in {path / 'steps'} is what can be compared"
            )
        given = EvalReport.load(path)
    if not isinstance(given, EvalReport):
        raise InvalidInput(
            f"a report, or the path of a run directory, is compared; got {given!r:.100}"
        )
    functions: dict[str, Any] = {}
    origin: dict[str, Any] | None = None
    if given.path is not None:
        home = RunDir(given.path)
        info = home.read_info()
        functions, origin = info.functions, home.origin(info)
    called = given.config.get("experiment_name") or (given.path.name if given.path else name)
    table = table_of(given, [*dict.fromkeys(keys)])
    if len(table.reward) == 0:
        raise InvalidInput(f"{called} has no results: there is nothing to compare")
    if np.isnan(table.reward).all():
        raise InvalidInput(
            f"{called} has no score: all of its {len(table.reward)} items errored. Run it again "
            "(--resume), or see why: heldout show --failures"
        )
    return Opened(str(called), given, table, functions, origin)


def cluster_numbers(table: Table, key: str | None) -> Ints:
    """Of each sample, which cluster: samples that share a value of `key`; of those without, and
    without a key, samples of equal content (clause 7)."""
    labels = None if key is None else table.keys[key]
    if labels is not None and (labels.codes >= 0).all():
        return labels.codes
    of_content = np.unique(table.content, return_inverse=True)[1].astype(np.int64)
    if labels is None:
        return of_content
    return np.where(labels.codes < 0, len(labels.values) + of_content, labels.codes)


def has_copies(table: Table) -> bool:
    """Whether some samples are of equal content, so that they are not independent."""
    return len(np.unique(table.content)) < len(table.sample_ids)
