"""The logs at a path with their formats, and the runs that are made of them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from heldout._core.config import MAX_ERROR_RATE
from heldout.adapters.logs import lm_eval, verifiers
from heldout.adapters.logs.archive import hash_file
from heldout.adapters.logs.inspect import read_inspect_log
from heldout.adapters.logs.lm_eval import read_lm_eval_log
from heldout.adapters.logs.logged import LoggedEval, find_import, write_run
from heldout.adapters.logs.verifiers import read_classic_results, read_traces
from heldout.errors import HeldoutError, InvalidInput, RunDirectoryError, printable_error
from heldout.reporting.summaries import describe_own_results
from heldout.store.jsonl import open_to_read
from heldout.store.report import EvalReport
from heldout.store.runs import ROOT, run_directory

FORMATS = (
    "Inspect's .eval and .json, lm-eval's samples_*.jsonl (--log_samples), and verifiers' "
    "results.jsonl and traces.jsonl"
)
SNIFFED_BYTES = 2**12
log = logging.getLogger("heldout")


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log, and how to read it."""

    path: Path
    open: Callable[..., LoggedEval]


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """The run of a log; `is_new` is False where it was imported before."""

    report: EvalReport
    is_new: bool


def import_log(
    path: str | Path,
    *,
    name: str | None = None,
    output_dir: str | Path = ROOT,
    score: str | None = None,
    max_error_rate: float | None = MAX_ERROR_RATE,
) -> EvalReport:
    """Make a run of one log of Inspect, lm-eval or verifiers.

    A log that has been imported already is not imported again: its run is returned. Where the
    log's own results are other numbers than the run's, a warning says which and why; they are in
    `report.config["imported"]["own_results"]`, too.

    Args:
        path: The file; or a folder in which there is one log.
        name: Name of the run; by default the task's.
        output_dir: Where its directory is made: NAME/TIME.
        score: The score that is the reward; by default the log's first one.
        max_error_rate: The share of errored attempts above which the run has no mean; 1 accepts
            any.

    Raises:
        InvalidInput: There is no log, or there are several, or it cannot be read.
        SystemicFailure: Too many attempts errored. The run is kept, and says so.
        RunDirectoryError: The run cannot be written.
    """
    logs = find_logs([path])
    if len(logs) > 1:
        names = ", ".join(str(log.path) for log in logs[:3])
        raise InvalidInput(
            f"{path} has {len(logs)} logs ({names}{', …' if len(logs) > 3 else ''}); name one: "
            "find_logs lists them"
        )
    run = import_file(
        logs[0], name=name, output_dir=output_dir, score=score, max_error_rate=max_error_rate
    )
    for note in describe_own_results(run.report):
        log.warning("%s: %s", logs[0].path, note)
    return run.report


def import_file(
    file: LogFile,
    *,
    name: str | None = None,
    output_dir: str | Path = ROOT,
    score: str | None = None,
    max_error_rate: float | None = MAX_ERROR_RATE,
) -> ImportedRun:
    """Make a run of a log that `find_logs` found; arguments and errors as of `import_log`."""
    try:
        return _import(file, name, Path(output_dir), score, max_error_rate)
    except HeldoutError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as problem:
        # Of the many shapes that a line may have, one that the package does not write.
        text = f"{type(problem).__name__}: {printable_error(problem)}"
        raise InvalidInput(f"{file.path} is not as its package writes it: {text}") from problem


def _import(
    file: LogFile, name: str | None, root: Path, score: str | None, max_error_rate: float | None
) -> ImportedRun:
    logged = file.open(file.path, score=score)
    name = name or _name_run(logged.task)
    if not re.fullmatch(r"\w[\w.+= -]*", name):
        raise InvalidInput(
            f"the name {name!r} becomes a directory: letters, digits and . _ - + =, starting with "
            "a letter or digit"
        )
    sha256 = hash_file(file.path)
    before = find_import(root / name, sha256, logged.reward)
    if before is not None:
        return ImportedRun(EvalReport.load(before), is_new=False)
    with run_directory(root, name) as directory:
        config = {
            "experiment_name": str(directory.relative_to(root)),
            "output_dir": str(root),
            "pass_threshold": 0.5,
            "imported": logged.describe(sha256),
        }
        return ImportedRun(write_run(logged, directory, config, max_error_rate), is_new=True)


def _name_run(task: str) -> str:
    allowed = "".join(c if c.isalnum() or c in "._-" else "-" for c in task)
    return allowed.lstrip("._-")[:100] or "imported"


# --- Formats ------------------------------------------------------------------------------------


def find_logs(paths: Sequence[str | Path]) -> list[LogFile]:
    """Find the logs at paths: files, or folders with everything in them.

    Raises:
        InvalidInput: There is none, or a file is of no known format.
    """
    found: dict[Path, LogFile] = {}
    for given in paths:
        path = Path(given)
        if path.is_dir():
            inside = _find_in_folder(path)
            if not inside:
                raise InvalidInput(f"{path} has no logs in it; there are {FORMATS}")
        elif path.exists():
            # A link that was named is meant; in a folder, links are left out.
            inside = [_recognize(path.resolve() if path.is_symlink() else path)]
        else:
            raise InvalidInput(f"there is no file {path}")
        found |= {log.path: log for log in inside}
    return [*found.values()]


def _find_in_folder(folder: Path) -> list[LogFile]:
    if (folder / "run.json").exists():
        raise InvalidInput(f"{folder} is a run directory of heldout's: there is nothing to import")
    logs = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        likely = path.suffix in (".eval", ".json", ".jsonl")
        if likely and (log := _guess(path)) is not None:
            logs.append(log)
    return logs


def _recognize(path: Path) -> LogFile:
    if (log := _guess(path)) is not None:
        return log
    hint = None
    if path.name == verifiers.METADATA or path.name.startswith("results_"):
        hint = f"Name the folder, {path.parent}, or the file of samples beside it"
    raise InvalidInput(f"{path} is no log that can be imported; there are {FORMATS}", hint=hint)


def _guess(path: Path) -> LogFile | None:
    """Tell the format of a file by its name and its beginning; None where it is none of them."""
    head = _read_head(path)
    if path.suffix == ".eval" or head.startswith(b"PK\x03\x04"):
        return LogFile(path, read_inspect_log)
    if path.suffix == ".json":
        is_log = re.match(rb'\s*\{\s*"version":\s*\d+,\s*"status":', head) is not None
        return LogFile(path, read_inspect_log) if is_log else None
    if path.suffix != ".jsonl":
        return None
    if path.name == verifiers.TRACES or b'"traces":' in head:
        return LogFile(path, read_traces)
    if lm_eval.FILE.fullmatch(path.name) or (b'"doc_id"' in head and b'"resps"' in head):
        return LogFile(path, read_lm_eval_log)
    if b'"example_id"' in head or (path.with_name(verifiers.METADATA).exists() and b"{" in head):
        return LogFile(path, read_classic_results)
    return None


def _read_head(path: Path) -> bytes:
    try:
        with open_to_read(path) as file:
            return file.read(SNIFFED_BYTES)
    except (OSError, RunDirectoryError) as problem:
        raise InvalidInput(f"{path} cannot be read: {problem}") from None
