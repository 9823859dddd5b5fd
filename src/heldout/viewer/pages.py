"""What the pages of the viewer show: plain values of runs, comparisons and curves.

Every method of `Pages` answers one request of the page, and knows nothing of HTTP: the server sends
the answers, an export embeds them. Each page has a module of its own; sentences and tables are
those of `heldout.reporting`, which the command line prints, so that page and terminal never
disagree. A run is named by its key in a scan of the roots, and one eval of a curve by NAME@STEP or
NAME@LABEL:STEP; no name is joined to a path.
"""

from __future__ import annotations

import difflib
import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from heldout.errors import HeldoutError, InvalidInput, NotComparable, RunDirectoryError
from heldout.reporting.blocks import plain_blocks
from heldout.reporting.curves import describe_status, read_curve
from heldout.reporting.names import find_step, parse_eval_name
from heldout.store.journal import has_writer
from heldout.store.jsonl import count_lines, open_to_read
from heldout.store.numbers import TIMESTAMP
from heldout.store.run_dir import RunDir
from heldout.store.runs import holds_run, runs_of_name, walk_runs
from heldout.viewer import curve_page, note_page, run_page, sample_page
from heldout.viewer.run_list import describe_entry
from heldout.viewer.values import Plain, UnknownRun
from heldout.viewer.viewed_run import ViewedRun, stamp

if TYPE_CHECKING:
    from heldout.analysis import Comparison
    from heldout.viewer.compare_page import PairTable
    from heldout.viewer.export import ExportedFile

__all__ = ["NotComparable", "Pages", "UnknownRun", "scan_runs"]

DEPTH = 3
"""Folders below a root in which runs are looked for."""
OTHER_RUNS = 200
"""Runs that are offered to be compared with others, and curves to be drawn with them."""
RESCAN_SECONDS = 30.0
"""How long a scan of the roots is good for while none of their folders changes."""


def scan_runs(roots: Sequence[Path]) -> dict[str, Path]:
    """Find run directories in some folders, three levels deep; links are not followed.

    Returns:
        Their paths by name: the path below the root, with the root's own before it where two roots
        have a run of the same name.
    """
    runs: dict[str, Path] = {}
    for root in roots:
        for path in _runs_at(root):
            name = path.relative_to(root).as_posix() if path != root else root.absolute().name
            if TIMESTAMP.fullmatch(name):  # of several runs of a name: the time says nothing alone
                name = f"{path.absolute().parent.name}/{name}"
            if name in runs:
                name = path.as_posix()
            runs[name.encode("utf-8", "replace").decode()] = path
    return runs


def _runs_at(root: Path) -> Iterator[Path]:
    if holds_run(root):
        return runs_of_name(root, follow_links=False)
    return walk_runs(root, DEPTH, follow_links=False)


class RunScan:
    """The runs under some roots, looked at again and again for little: most never change.

    A folder's time changes whenever a file in it is made or replaced, as run.json is when a run
    begins, is resumed and ends. So of a run that nobody writes, that is all that is looked at.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = roots
        self.runs: dict[str, Path] = {}
        self._folders: dict[Path, int] = {}
        self._changed = self._scanned = -RESCAN_SECONDS
        self._still: dict[Path, tuple[int, RunState]] = {}

    def scan(self) -> dict[str, Path]:
        """Find the runs."""
        self.runs = scan_runs(self._roots)
        folders = {*self._roots, *self.runs.values()}
        for path in {path.parent for path in self.runs.values()}:
            above = (path, *path.parents)
            folders |= {up for up in above for root in self._roots if up.is_relative_to(root)}
        self._folders = {folder: _folder_time(folder) for folder in folders}
        self._scanned = time.monotonic()
        return self.runs

    def refresh(self) -> dict[str, Path]:
        """Find the runs again if there may be others."""
        now = time.monotonic()
        if any(_folder_time(folder) != before for folder, before in self._folders.items()):
            self._changed = now
        # A run may be made in a folder that was new itself.
        if now - self._changed < RESCAN_SECONDS or now - self._scanned > RESCAN_SECONDS:
            return self.scan()
        return self.runs

    def state(self, path: Path) -> RunState:
        """Say which state a run is in."""
        changed = _folder_time(path)
        known = self._still.get(path)
        if known is not None and known[0] == changed:
            return known[1]
        state = RunState(stamp(path), _is_live(path))
        if not state.is_live and not RunDir(path).curve.exists():
            self._still[path] = changed, state
        return state


class RunState(NamedTuple):
    """A state of a run directory."""

    stamp: str
    is_live: bool


def _folder_time(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class Pages:
    """Answers the requests of the page.

    Args:
        roots: Folders that hold runs, and run directories.
        takes_notes: Whether notes may be written.
    """

    def __init__(self, roots: Sequence[Path], *, takes_notes: bool = False) -> None:
        self.roots = list(roots)
        self.takes_notes = takes_notes
        self._made: tuple[tuple[str, ...], ExportedFile] | None = None
        """The last file that was made, and of what."""
        self._scan = RunScan(self.roots)
        self._listing = Lock()

    def close(self) -> None:
        """Close all runs that are open; their temporary tables are removed.

        At the interpreter's end it would be too late for DuckDB, which then says what it leaks.
        """
        _open_run.cache_clear()
        gc.collect()  # a run that is viewed refers to itself

    def warm_up(self) -> None:
        """Read what the first pages need, while the browser starts."""
        self.runs()
        import_module("duckdb")

    def runs(self) -> Plain:
        """List all runs, the newest first."""
        with self._listing:  # what was described for another request is not described again
            state = self.state([])
            rows = [
                describe_entry(name, path, *self._scan.state(path))
                for name, path in self._scan.refresh().items()
            ]
        rows.sort(key=lambda row: (row["started"] or "", row["name"]), reverse=True)
        return {"runs": rows, "roots": [str(root) for root in self.roots], "state": state}

    def path(self, name: str) -> Path:
        """Find the run directory of a name of the list, or of one eval of a curve there."""
        if name not in self._scan.runs and parse_eval_name(name, self._is_curve) is None:
            self._scan.scan()
        known = self._scan.runs
        if name in known:
            return known[name]
        one = parse_eval_name(name, self._is_curve)
        if one is not None:
            return find_step(known[one.curve], one.step, label=one.label)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else None
        raise UnknownRun(f"there is no run {name!r:.200}", hint=hint)

    def _is_curve(self, name: str) -> bool:
        path = self._scan.runs.get(name)
        return path is not None and RunDir(path).curve.exists()

    def open(self, name: str) -> ViewedRun:
        """Open a run as it is now."""
        path = self.path(name)
        if RunDir(path).curve.exists():
            raise InvalidInput(f"{name} is a curve of many evals; name one, {name}@STEP")
        return _open_run(path, stamp(path))

    # --- One run ---

    def run(self, name: str) -> Plain:
        """Give the summary of a run."""
        state = self.state([name])
        return {"name": name, **run_page.describe_run(self.open(name)), "state": state}

    def slices(self, name: str, by: str) -> Plain:
        """Give a summary for each value of a metadata key."""
        return run_page.describe_slices(self.open(name), by)

    def rows(
        self,
        name: str,
        where: str,
        sort: str,
        cols: Sequence[str],
        offset: int,
        limit: int,
        quick: int = 0,
    ) -> Plain:
        """Give some of the samples that a filter holds for; not how many, perhaps, if `quick`."""
        return run_page.describe_rows(
            self.open(name), where, sort, cols, offset, limit, quick=quick > 0
        )

    def table_file(self, name: str, where: str, sort: str, format: str) -> Plain:
        """Give the samples that a filter holds for as CSV or JSONL."""
        return run_page.rows_as_text(self.open(name), where, sort, format)

    def position(self, name: str, where: str, sort: str, id: str, repeat: int) -> Plain:
        """Say where in the filtered list of samples one is, and which are beside it."""
        return run_page.describe_position(self.open(name), where, sort, id, repeat)

    # --- One sample ---

    def sample(self, name: str, id: str, repeat: int) -> Plain:
        """Give one attempt at a sample: the conversation, what graders extracted, and its note."""
        run = self.open(name)
        answer = sample_page.describe_attempt(name, run, id, repeat)
        return answer | note_page.describe_note(run, id, repeat, takes_notes=self.takes_notes)

    def record(self, name: str, id: str, repeat: int) -> Plain:
        """Give one attempt at a sample as JSON."""
        return sample_page.attempt_as_json(name, self.open(name), id, repeat)

    # --- Notes ---

    def notes(self, name: str) -> Plain:
        """Give the notes of a run's reviewers, the newest first."""
        return note_page.describe_notes(self.open(name))

    def write_note(
        self, name: str, id: str, repeat: int, label: str, remark: str, was: tuple[str, str]
    ) -> Plain:
        """Write a note on one attempt at a sample, beside the run's files; "" takes it away.

        `was` is label and remark as the page showed them.
        """
        return note_page.write(name, self.open(name), id, repeat, label, remark, was)

    # --- Two runs, and several ---

    def compare(self, a: str, b: str, by: str, metric: str, allow: Sequence[str]) -> Plain:
        """Compare run B with run A."""
        from heldout.viewer.compare_page import describe_comparison

        comparison = self._compare(a, b, by, metric, allow)
        answer = describe_comparison(comparison, self.open(a), self.open(b))
        return answer | {"a": {"name": a, **answer["a"]}, "b": {"name": b, **answer["b"]}}

    def pairs(
        self,
        a: str,
        b: str,
        metric: str,
        allow: Sequence[str],
        where: str,
        sort: str,
        offset: int,
        limit: int,
    ) -> Plain:
        """Give samples of two runs, with both values and answers."""
        from heldout.viewer.compare_page import describe_pairs

        return describe_pairs(self.pair_table(a, b, metric, allow), where, sort, offset, limit)

    def pair_table(self, a: str, b: str, metric: str, allow: Sequence[str]) -> PairTable:
        """Open the samples that two runs share."""
        from heldout.viewer.compare_page import PairTable

        comparison = self._compare(a, b, "", metric, allow)
        return PairTable(comparison, (self.open(a), self.open(b)))

    def several(self, name: Sequence[str], metric: str, allow: Sequence[str]) -> Plain:
        """Compare several runs with the first of them, corrected for their number."""
        from heldout.viewer.compare_page import MOST_RUNS, describe_several

        names = list(dict.fromkeys(name))
        if not 2 <= len(names) <= MOST_RUNS:
            raise InvalidInput(f"a table compares 2 to {MOST_RUNS} runs, got {len(names)}")
        comparisons = [self._compare(names[0], other, "", metric, allow) for other in names[1:]]
        others = [one for one in self._scan.runs if one not in names and not self._is_curve(one)]
        return describe_several(comparisons, names) | {"others": others[:OTHER_RUNS]}

    def _compare(self, a: str, b: str, by: str, metric: str, allow: Sequence[str]) -> Comparison:
        from heldout.viewer.compare_page import compare_runs

        return compare_runs(self.open(a), self.open(b), (a, b), by, metric, tuple(allow))

    # --- Curves ---

    def curve(self, name: str, label: str, metric: str) -> Plain:
        """Give a curve with its verdict; each point has its numbers, and no outcomes."""
        state = self.state([name])
        path = self.path(name)
        answer = curve_page.describe_curve(name, path, stamp(path), label, metric)
        curve_page.refuse_unmeasured([answer], answer["metric"], name)
        # Words like "40 s ago", and whether a process writes it, change without the file.
        status = plain_blocks([describe_status(read_curve(path))])[0]
        live = _is_live(path)
        others = [other for other in self._scan.runs if other != name and self._is_curve(other)]
        return {
            "name": name,
            **answer,
            "status": status,
            "live": live,
            "others": others[:OTHER_RUNS],
            "state": state,
        }

    def curves(self, name: Sequence[str], label: Sequence[str], metric: str) -> Plain:
        """Give several curves for one chart; each has its label, "" for its first."""
        from heldout.viewer.overlay_page import CurveName, describe_overlay

        state = self.state(name)
        labels = [*label, *[""] * len(name)]
        chosen = [
            CurveName(one, self.path(one), wanted)
            for one, wanted in zip(name, labels, strict=False)
        ]
        others = [other for other in self._scan.runs if other not in name and self._is_curve(other)]
        answer = describe_overlay(chosen, metric)
        return answer | {"others": others[:OTHER_RUNS], "state": state}

    def curve_flips(self, name: str, label: str, from_step: int, to_step: int) -> Plain:
        """Say what changed between two points of a curve."""
        return curve_page.describe_step_flips(self.path(name), label, from_step, to_step)

    def strip(self, name: str, label: str) -> Plain:
        """Give what became of each sample at each step, those that flipped last first."""
        return curve_page.describe_strip(self.path(name), label)

    def history(self, name: str, label: str, id: str) -> Plain:
        """Give one sample at every step of a curve, with its answers where they are saved."""
        return curve_page.describe_history(name, self.path(name), label, id)

    # --- Export ---

    def export(self, name: Sequence[str], samples: str) -> Plain:
        """Make the file of some runs, and say what is in it and how large it is."""
        made = self._export(name, samples)
        return {
            "names": made.names,
            "inside": made.inside,
            "whole": made.whole,
            "bytes": len(made.page),
        }

    def exported(self, name: Sequence[str], samples: str) -> bytes:
        """Give the file that `export` described."""
        return self._export(name, samples).page

    def _export(self, name: Sequence[str], samples: str) -> ExportedFile:
        from heldout.viewer.export import export_pages

        names = list(dict.fromkeys(name))
        for one in names:
            if self.path(one) and one not in self._scan.runs:
                raise InvalidInput(f"{one} is one eval of a curve: export the curve")
        key = (*names, samples, self.state(names))
        if self._made is None or self._made[0] != key:
            reader = Pages(self.roots)  # which takes no notes
            self._made = key, export_pages(reader, names, samples=samples or "failures")
        return self._made[1]

    # --- Events ---

    def state(self, names: Sequence[str]) -> str:
        """Say which state some runs are in, or, of no names, the list of runs."""
        if names:
            parts = []
            for name in names:
                with suppress(HeldoutError):
                    path = self.path(name)
                    parts.append(f"{stamp(path)}:{'w' * _is_live(path)}")
            return "|".join(parts)
        states = [(n, self._scan.state(path)) for n, path in self._scan.refresh().items()]
        return f"{hash(tuple(states)) & 0xFFFFFFFFFFFFFFFF:x}"

    def events(self, names: Sequence[str], seen: str) -> tuple[list[tuple[str, Plain]], str]:
        """Give what has changed since a state, as (event, data), and the state now."""
        now = self.state(names)
        if now == seen:
            return [], now
        if not names:
            return [("runs", {})], now
        changes = []
        for name in names:
            with suppress(HeldoutError):
                path = self.path(name)
                changes.append(("changed", {"name": name, "lines": _count_lines(path)}))
        return changes, now


def _is_live(path: Path) -> bool:
    run = RunDir(path)
    try:
        return has_writer(run.curve if run.curve.exists() else run.journal)
    except OSError:
        return False


def _count_lines(path: Path) -> int:
    """Count the lines of a run's journal, without its header."""
    try:
        with open_to_read(RunDir(path).journal) as file:
            return max(0, count_lines(file) - 1)
    except (OSError, RunDirectoryError):
        return 0


@lru_cache(4)
def _open_run(path: Path, _stamp: str) -> ViewedRun:
    return ViewedRun(path)
