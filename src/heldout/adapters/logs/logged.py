"""An eval as another package has logged it, whatever the format; and the run directory made of it.

A log is read as a stream: one attempt at a time goes into the journal, from which the report is
derived as for any run. What a log does not say is not in run.json.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from heldout._core.secrets import redact_values
from heldout._core.version import __version__
from heldout.adapters.logs.own_results import OwnResult, OwnResults
from heldout.errors import HeldoutError, InvalidInput, SystemicFailure, printable_error
from heldout.stats.summary import has_mean
from heldout.store.error_counts import count_errors, explain_no_mean
from heldout.store.journal import JournalWriter, in_order
from heldout.store.report import EvalReport, finish
from heldout.store.run_dir import GitState, RunDir, RunInfo
from heldout.store.runs import list_history
from heldout.types import EvalResult, Score, Stop, Trajectory

Attempts = Iterator[tuple[int, EvalResult]]
"""Results, each with the position of its sample in the dataset."""


@dataclass(frozen=True, slots=True)
class LoggedEval:
    """One eval in a log.

    Attributes:
        format: "inspect", "lm-eval" or "verifiers".
        path: The file.
        task: What was evaluated, in the package's words.
        attempts: Reads the attempts, in any order.
        model: The policy; None where the log does not say.
        reward: The score that is the reward; None where it is the log's only one.
        repeats: Attempts at each sample.
        asked: Attempts that there were to be; None where the log does not say.
        settings: What else goes into the config: sampling, limits, versions of packages.
        functions: What scored and what prepared, as far as the log identifies them.
        versions: Versions of packages that the log names.
        about: Further facts for `imported` of the config.
        own_results: What the log itself reports, to be compared with what its samples give.
        unfinished: Why the log is not of a whole eval; None where it is.
        started: When the eval began, in UTC.
        finished: When it ended.
        git: The commit it ran at.
    """

    format: str
    path: Path
    task: str
    attempts: Callable[[], Attempts]
    model: str | None = None
    reward: str | None = None
    repeats: int = 1
    asked: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    own_results: tuple[OwnResult, ...] = ()
    unfinished: str | None = None
    started: str | None = None
    finished: str | None = None
    git: GitState | None = None

    def describe(self, sha256: str) -> dict[str, Any]:
        """Return what the config of its run says of where it is from; `sha256` is the file's."""
        facts = {"task": self.task, "reward": self.reward, **self.about}
        known = {key: value for key, value in facts.items() if value is not None}
        return {"format": self.format, "file": self.path.name, "sha256": sha256, **known}


def utc(value: Any) -> str | None:
    """Return a time of a log, as ISO text or in seconds, as run.json has it; None if it is none."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            time = datetime.fromtimestamp(value, UTC)
        else:
            time = datetime.fromisoformat(value)
        return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def commit_of(commit: Any, dirty: Any) -> GitState | None:
    """Return the commit that a log names; None where it names none."""
    if not isinstance(commit, str) or not re.fullmatch("[0-9a-f]{7,64}", commit):
        return None
    return GitState(commit, dirty if isinstance(dirty, bool) else None)


def errored(result: EvalResult, error: str, stage: str) -> EvalResult:
    """Return a result that has an error in place of its score."""
    return replace(result, score=Score(), error=error, error_stage=stage)


def write_run(
    log: LoggedEval, path: Path, config: Mapping[str, Any], max_error_rate: float | None
) -> EvalReport:
    """Write a log as a run directory, which is removed again where the log cannot be read.

    Args:
        log: The log.
        path: The directory, which holds no run yet.
        config: Name and origin of the run.
        max_error_rate: The share of errored attempts above which there is no mean.

    Raises:
        SystemicFailure: More of them errored; the run is kept, and says so.
        InvalidInput: The log cannot be read.
        RunDirectoryError: The directory cannot be written.
    """
    run = RunDir(path)
    info = RunInfo.new(
        {
            **config,
            # Arguments of tasks and models are in logs as they were given, keys included.
            **redact_values(dict(log.settings)),
            "endpoint": {} if log.model is None else {"model": log.model},
            "repeats": log.repeats,
            "max_error_rate": max_error_rate,
        },
        dict(log.functions),
        log.asked,
    )
    # This process has evaluated nothing: its packages and its commit are not the eval's.
    info.versions, info.git = {"heldout": __version__, **log.versions}, log.git
    info.started = log.started or info.started
    with closing(run.claim()) as journal:
        try:
            run.write_info(info)
            own_results = OwnResults(log.own_results)
            errors, in_scoring = _write_attempts(log, journal, own_results)
            journal.sync()
            if journal.written == 0:
                why = f": {log.unfinished}" if log.unfinished else ""
                raise InvalidInput(f"{log.path} has no samples to import{why}")
            summary = finish(run, info, journal.written)
        except BaseException:
            for file in (run.columns, run.summary):
                file.unlink(missing_ok=True)
            run.remove_empty()
            raise
        info.finished = log.finished
        missing = (log.asked or journal.written) - journal.written
        if log.unfinished or missing > 0:
            info.status = "interrupted"
            # Where the log does not say how many there were to be, the number is unknown: as many
            # as it has would make a run of it that looks whole.
            info.asked = None if log.asked is None else max(log.asked, journal.written)
            info.reason = log.unfinished or f"the log lacks {missing} of its {log.asked} attempts"
        refusal: SystemicFailure | None = None
        if not has_mean(journal.written, errors, max_error_rate):
            rows = in_order(run.journal, log.repeats)
            counts = count_errors((row.sample.id, row.error) for row in rows)
            info.reason = explain_no_mean(journal.written, errors, counts, max_error_rate)
            info.status = "failed"
            ways = [_ACCEPT] * (errors < journal.written) + [_RESCORE] * (in_scoring > 0)
            refusal = SystemicFailure(". ".join([f"{log.path}: {info.reason}", *ways]))
            refusal.run_dir = path
        else:
            compared = own_results.compare(summary)
            if log.asked is not None and journal.written > log.asked:
                why = "the log has attempts that it did not mean to make"
                extra = {"name": "attempts", "log": log.asked, "run": journal.written}
                compared["differ"].append({**extra, "why": why})
            info.config["imported"]["own_results"] = compared
        run.write_info(info)
    if refusal is not None:
        raise refusal
    return EvalReport.load(path)


_ACCEPT = "To accept the errors: --max-error-rate 1, max_error_rate=1"
_RESCORE = "`heldout rescore` can score the saved answers"


def _write_attempts(
    log: LoggedEval, journal: JournalWriter, own_results: OwnResults
) -> tuple[int, int]:
    """Write all attempts of a log; return how many errored, and how many of these in scoring."""
    seen: set[tuple[int, int]] = set()
    errors = in_scoring = 0
    for index, result in log.attempts():
        if (index, result.repeat) in seen:
            raise InvalidInput(
                f"{log.path} has two results of sample {result.sample_id!r}, attempt "
                f"{result.repeat + 1}"
            )
        seen.add((index, result.repeat))
        if result.repeat >= log.repeats:
            raise InvalidInput(
                f"{log.path} says that each sample was run {log.repeats} times, and has attempt "
                f"{result.repeat + 1} of sample {result.sample_id!r}"
            )
        try:
            journal.append(index, result)
        except InvalidInput as problem:  # a value that JSON or a journal cannot hold
            bare = replace(result, trajectory=Trajectory((), Stop("error")), metadata={})
            result = errored(bare, f"store: {printable_error(problem)}", "store")
            journal.append(index, result)
        own_results.add(index, result)
        errors += not result.ok
        in_scoring += result.error_stage == "score_fn"
    return errors, in_scoring


def find_import(directory: Path, sha256: str, reward: str | None) -> Path | None:
    """Find the run that was made of a file before; one that has no mean does not count."""
    for path in reversed(list_history(directory)):
        with suppress(HeldoutError, OSError):  # what cannot be read is no run of it
            info = RunDir(path).read_info()
            imported = info.config.get("imported")
            if not isinstance(imported, dict) or info.status in ("failed", "running"):
                continue
            if (imported.get("sha256"), imported.get("reward")) == (sha256, reward):
                return path
    return None
