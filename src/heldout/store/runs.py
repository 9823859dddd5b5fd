"""Runs under an output directory: find one by its name, make a directory for a new one, list all.

`heldout run` gives every run a directory of its own, named by its start in UTC:

    outputs/evals/capitals/2026-11-15T22-08-31/

    capitals                 the latest of them, and of a run in outputs/evals/capitals itself
    capitals@3               the one with that number, which it keeps (numbers.py)
    capitals@2026-11-15      the latest whose time begins so
    a path                   that directory; one that holds no run itself is the latest in it

Listing reads run.json, summary.json and the end of curve.jsonl, and no results.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from heldout._core.format import count
from heldout.errors import HeldoutError, InvalidInput, RunDirectoryError, UnknownFormat
from heldout.store.jsonl import decode, open_to_read
from heldout.store.numbers import TIMESTAMP, number_runs
from heldout.store.run_dir import RunDir, RunInfo
from heldout.store.settled import Settled

ROOT = "outputs/evals"
"""Where runs are made unless a config says otherwise."""
LISTED_DEPTH = 3
"""Directories below the root in which runs are looked for."""
TAIL_BYTES = 2**20
"""Bytes at the end of a curve file that are searched for its last result."""

RunKind = Literal["run", "curve", "episodes"]
ListedStatus = Literal[
    "running", "finished", "stopped", "failed", "interrupted", "newer", "damaged"
]


# --- Names --------------------------------------------------------------------------------------


def find_run(name: str | Path, root: str | Path = ROOT) -> Path:
    """Find the run directory of a path, or of a name under the root.

    A path is that directory, whatever runs of its name were made in it later: a `Path`, or a text
    with a slash. Any other text is a name, as for `find_latest`, and so is a path that holds no run
    itself.
    """
    is_path = not isinstance(name, str) or os.sep in name or name in (os.curdir, os.pardir)
    if is_path and holds_run(Path(name)):
        return Path(name)
    return find_latest(name, root)


def find_latest(name: str | Path, root: str | Path = ROOT) -> Path:
    """Find the latest run of a name.

    NAME is the latest of its runs, NAME@3 the third of them, NAME@2026-11-15 the latest of that
    day. Where there is none, RunDirectoryError names a similar one; InvalidInput is for what
    follows the @ and is neither a number nor the beginning of a time.
    """
    root = Path(root)
    for path in (Path(name), root / name):
        if directory := _latest_in(path):
            return directory
    text, at, selector = str(name).rpartition("@")
    if at and text:
        for path in (Path(text), root / text):
            if history := list_history(path):
                return _select_run(text, history, selector)
            if holds_run(path):
                raise RunDirectoryError(
                    f"{path} is a single run, so there is no @{selector} of it: @ selects one of "
                    "several runs of a name"
                )
    path = Path(text if at and text else name)
    if not path.exists():
        nor = f", nor at {root / path}" if len(path.parts) == 1 else ""
        raise RunDirectoryError(f"there is no run at {path}{nor}", hint=_suggest(path, root))
    inside = [str(run) for run in walk_runs(path, 2)]
    if inside:
        examples = ", ".join(inside[:3]) + (", …" if len(inside) > 3 else "")
        raise RunDirectoryError(f"{path} is not a run itself; name one in it: {examples}")
    raise RunDirectoryError(f"{path} is not a run directory: it has no run.json")


def list_history(path: Path) -> list[Path]:
    """List the run directories that `heldout run` made of one name, the first one first.

    A run in the directory of that name itself, made by `evaluate`, comes where its start puts it.
    """
    if not path.is_dir():
        return []
    runs = [run for run in path.iterdir() if TIMESTAMP.fullmatch(run.name) and holds_run(run)]
    if runs and holds_run(path):
        runs.append(path)
    return sorted(runs, key=_start_of)


def holds_run(path: Path) -> bool:
    """Return whether a directory holds a run or a curve."""
    run = RunDir(path)
    return run.exists() or run.curve.exists()


def new_run_dir(name: str, root: str | Path = ROOT) -> Path:
    """Make `root/name/TIME`, unique to this process; a second run in one second is numbered."""
    directory = Path(root) / name
    start = timestamp()
    number = 1
    while True:
        path = directory / (start if number == 1 else f"{start}-{number}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            if not directory.is_dir():  # a broken link
                raise RunDirectoryError(
                    f"{path} cannot be made: {directory} is no directory"
                ) from None
            number += 1
        except OSError as problem:
            raise RunDirectoryError(f"{path} cannot be made: {problem.strerror}") from None


def allowed_name(text: str) -> str:
    """Make a name of a run of any text."""
    allowed = "".join(c if c.isalnum() or c in "._-" else "-" for c in text)
    return allowed.lstrip("._-") or "eval"


@contextmanager
def run_directory(root: str | Path, name: str, *, resume: bool = False) -> Iterator[Path]:
    """Give a run a directory of its own: a new one, or that of the run to resume.

    Args:
        root: The output directory.
        name: What the run is called; NAME@3 is a run to resume.
        resume: Whether to continue the latest run of that name, if there is one.

    Yields:
        The directory. Removed on exit if the run wrote nothing, together with the directories
        that were made for it.

    Raises:
        InvalidInput: The name has an @ or a /, and there is no such run to resume.
        RunDirectoryError: The directory cannot be made.
    """
    root = Path(root)
    missing = [parent for parent in (root / name, root, root.parent) if not parent.exists()]
    path: Path | None = None
    if resume:
        with suppress(RunDirectoryError):
            path = find_latest(root / name)
    if path is None:
        if "@" in name or "/" in name:
            raise InvalidInput(
                f"the name {name}: @ and / are for a run that exists, and there is none to resume"
            )
        path = new_run_dir(name, root)
    try:
        yield path
    finally:
        for directory in (path, *missing):
            with suppress(OSError):  # it is not empty: there is a run
                directory.rmdir()


def timestamp() -> str:
    """Return the time in UTC as run directories are named."""
    return time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime())


def _latest_in(path: Path) -> Path | None:
    history = list_history(path)
    if history:
        return history[-1]
    return path if holds_run(path) else None


def _select_run(name: str, history: list[Path], selector: str) -> Path:
    if re.fullmatch(r"\d+", selector, re.ASCII):
        return _select_number(name, history, selector)
    if selector == "latest":
        return history[-1]
    if not re.fullmatch(r"\d{4}-[\dT-]*", selector):
        raise InvalidInput(
            f"after the @ of {name} comes a number, a time such as {history[-1].name}, or its "
            f"beginning; got {selector!r}"
        )
    matches = [run for run in history if _time_of(run).startswith(selector)]
    if not matches:
        times = ", ".join(_time_of(run) for run in history[-3:])
        more = "…, " if len(history) > 3 else ""
        raise RunDirectoryError(f"no run of {name} began at {selector}…; there are {more}{times}")
    return matches[-1]


def _select_number(name: str, history: list[Path], selector: str) -> Path:
    numbers = number_runs(history)
    wanted = selector.lstrip("0")
    matches = [run for run, number in numbers.items() if str(number) == wanted]
    if len(matches) > 1:
        times = ", ".join(run.name for run in matches)
        raise RunDirectoryError(
            f"{len(matches)} runs of {name} have the number {selector}, as one was copied here; "
            f"name it by its time: {times}"
        )
    if matches:
        return matches[0]
    known = sorted(numbers.values())
    if not known:
        raise RunDirectoryError(
            f"there is no {name}@{selector}: no run of {name} has had an answer yet"
        )
    ranges: list[list[int]] = []
    for number in known:
        if ranges and number <= ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    told = [f"@{a}" if a == b else f"@{a} to @{b}" for a, b in ranges]
    more = ", …" if len(told) > 6 else ""
    raise RunDirectoryError(
        f"there is no {name}@{selector}; there {'is' if len(known) == 1 else 'are'} "
        f"{', '.join(told[:6])}{more}"
    )


def _time_of(run: Path) -> str:
    """Return the start of a run as a directory is named."""
    if TIMESTAMP.fullmatch(run.name):
        return run.name
    try:
        return RunDir(run).read_info().started.replace(":", "-").removesuffix("Z")
    except HeldoutError:
        return ""


def _start_of(run: Path) -> tuple[str, int]:
    match = TIMESTAMP.fullmatch(_time_of(run))
    return (match[1], int(match[2] or 1)) if match else ("", 0)


def _suggest(path: Path, root: Path) -> str | None:
    """Return the run of the most similar name as a hint."""
    if path.parent not in (Path(), root) or not root.is_dir():
        return None
    names = [child.name for child in root.iterdir() if holds_run(child) or list_history(child)]
    near = difflib.get_close_matches(path.name, sorted(names), n=1)
    return f"did you mean {path.parent / near[0]}?" if near else None


# --- Listing ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run of a list.

    Attributes:
        name: Its path below the root: capitals/2026-11-15T22-08-31.
        path: Its directory.
        kind: A run of samples, the curve of a training run, or episodes of an agent.
        status: "stopped" is a run that `until` or a race ended before its set was used up, so its
            mean is biased; "interrupted" is also a run whose process is gone; "newer" was written
            by a newer version of heldout; "damaged" cannot be read.
        endpoint: The model; of episodes, the policy where it is known.
        environment: Of episodes, the environment.
        mean: Mean reward; of a curve, that of its last result. None where there is none.
        ci_low: Lower end of its 95% interval.
        ci_high: Upper end of that interval.
        n: Items that the mean is of; of a run that has stopped, those that ended. None where that
            is not known.
        asked: Items that were asked for.
        errors: Items that errored.
        step: Of a curve, the step of its last result.
        temperature: What answers were sampled at; None where that is not known.
        attempts: How often each sample was answered; None where that is not known.
        prompt_tokens: Tokens that the model read; None where they are not known.
        completion_tokens: Tokens that the model wrote.
        cost: What these tokens cost; None where the model has no price.
        when: Start, in UTC: 2026-11-15T22:08:31Z.
        finished: End, in UTC.
        tags: Its tags.
        note: Its note.
        commit: The git commit it was run at.
        dirty: Whether files of that commit had been changed.
        reason: Why it did not finish, or cannot be read; of a stopped run, what it settled.
    """

    name: str
    path: Path
    kind: RunKind
    status: ListedStatus
    endpoint: str | None = None
    environment: str | None = None
    mean: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    n: int | None = None
    asked: int | None = None
    errors: int | None = None
    step: int | None = None
    temperature: float | None = None
    attempts: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    when: str | None = None
    finished: str | None = None
    tags: tuple[str, ...] = ()
    note: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    reason: str | None = None


def list_runs(root: str | Path = ROOT) -> list[RunEntry]:
    """List the runs below a directory, the earliest first, those that cannot be read as well."""
    root = Path(root)
    paths = walk_runs(root, LISTED_DEPTH)
    entries = [read_entry(path, str(path.relative_to(root))) for path in paths]
    return sorted(entries, key=lambda entry: (entry.when or "", entry.name))


def read_entry(path: Path, name: str | None = None) -> RunEntry:
    """Read what a list says of the run in a directory; `name` is what to call it, else its path."""
    return read_files(path, name)[0]


def read_files(
    path: Path, name: str | None = None
) -> tuple[RunEntry, RunInfo | None, Mapping[str, Any] | None]:
    """Read what a list says of a run, its run.json, and its summary where that is current."""
    name = str(path) if name is None else name
    run = RunDir(path)
    kind: RunKind = "curve" if run.curve.exists() else "run"
    try:
        info = run.read_info()
    except (HeldoutError, OSError) as problem:
        is_newer = isinstance(problem, UnknownFormat) and problem.is_newer
        status: ListedStatus = "newer" if is_newer else "damaged"
        return RunEntry(name, path, kind, status, reason=str(problem)), None, None
    if info.config.get("kind") == "episodes":
        kind = "episodes"
    step, usage, whole = None, None, None
    summary: Mapping[str, Any] = {}
    temperature, attempts = sampling_of(info.config)
    if kind == "curve":
        last = _read_last_point(run.curve)
        if last is not None:
            step, summary = last.step, last.summary or {}
            temperature = temperature_of(last.decoding)
            attempts = attempts_of(outcome.repeat for outcome in last.outcomes)
    else:
        with suppress(HeldoutError, OSError):
            if stored := run.read_summary(info):
                summary, usage = stored.summary, stored.usage
                whole = stored.summary
            elif info.status in ("failed", "interrupted"):
                summary = {"n": info.ended, "n_errors": info.errors}
    stopped = _what_stopped(info)
    tags = info.config.get("tags")
    note, environment = info.config.get("note"), info.config.get("env")
    entry = RunEntry(
        name,
        path,
        kind,
        _status_of(run, info),
        endpoint=describe_model(info.config),
        environment=environment if isinstance(environment, str) else None,
        mean=summary.get("mean"),
        ci_low=summary.get("ci_low"),
        ci_high=summary.get("ci_high"),
        n=summary.get("n"),
        asked=info.asked if stopped is None else stopped.n_asked,
        errors=summary.get("n_errors"),
        step=step,
        temperature=temperature,
        attempts=attempts,
        prompt_tokens=usage.prompt_tokens if usage and usage.n else None,
        completion_tokens=usage.completion_tokens if usage and usage.n else None,
        cost=usage.cost if usage and usage.n else None,
        when=info.started,
        finished=info.finished,
        tags=tuple(map(str, tags)) if isinstance(tags, list) else (),
        note=note if isinstance(note, str) else None,
        commit=info.git.commit if info.git else None,
        dirty=info.git.dirty if info.git else None,
        reason=info.reason if stopped is None else stopped.sentence,
    )
    return entry, info, whole


def sampling_of(config: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Return the temperature and the attempts at each sample of a run; None: not known."""
    repeats = config.get("repeats")
    return temperature_of(config.get("sampling")), repeats if isinstance(repeats, int) else None


def temperature_of(settings: object) -> float | None:
    """Return the temperature of settings of sampling, or of decoding; None: not known."""
    value = settings.get("temperature") if isinstance(settings, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def attempts_of(repeats: Iterable[int]) -> int | None:
    """Return how often samples were answered, of the repeats of items; None: there is none."""
    return max(repeats, default=-1) + 1 or None


def describe_samplings(samplings: Sequence[tuple[float | None, int | None]]) -> list[str]:
    """Return temperatures and attempts in a few words each: "T 0.7, 8 attempts".

    All are empty where none of them differs from another by what is known of both.
    """
    if not any(len({*known} - {None}) > 1 for known in zip(*samplings, strict=True)):
        return [""] * len(samplings)
    texts = []
    for temperature, attempts in samplings:
        parts = [] if temperature is None else [f"T {temperature:g}"]
        texts.append(", ".join(parts if attempts is None else [*parts, count(attempts, "attempt")]))
    return texts


def describe_model(config: dict[str, Any]) -> str | None:
    """Describe what answered in a run: the model and where it is served, or an agent's policy."""
    endpoint = config.get("endpoint")
    if not isinstance(endpoint, dict):
        policy = config.get("policy")
        return policy if isinstance(policy, str) else None
    name = endpoint.get("model") or endpoint.get("name") or endpoint.get("kind")
    where = f" at {endpoint['base_url']}" if endpoint.get("base_url") else ""
    return f"{name}{where}" if name else None


def walk_runs(directory: Path, depth: int, *, follow_links: bool = True) -> Iterator[Path]:
    """Yield the run directories below a directory; what a run has inside is not searched.

    Args:
        directory: Where to look.
        depth: How many levels below it runs may be.
        follow_links: Whether symbolic links to directories are followed.
    """
    try:
        # Not `os.scandir`, whose `is_dir` raises for a link to itself.
        children = sorted(child for child in directory.iterdir() if child.is_dir())
        if not follow_links:
            children = [child for child in children if not child.is_symlink()]
    except OSError:
        return
    for child in children:
        if holds_run(child):
            yield from runs_of_name(child, follow_links=follow_links)
        elif depth > 1:
            yield from walk_runs(child, depth - 1, follow_links=follow_links)


def runs_of_name(run: Path, *, follow_links: bool = True) -> Iterator[Path]:
    """Yield a run that was made without a time, and those of its name that were made with one."""
    yield run
    for other in list_history(run):
        if other != run and (follow_links or not other.is_symlink()):
            yield other


def _what_stopped(info: RunInfo) -> Settled | None:
    """Return what a run has settled that was stopped before its set was used up."""
    return info.settled if info.settled is not None and info.settled.is_early else None


def _status_of(run: RunDir, info: RunInfo) -> ListedStatus:
    if info.status == "complete":
        return "finished" if _what_stopped(info) is None else "stopped"
    if info.status != "running":
        return info.status
    try:
        is_alive = run.may_be_running()
    except (HeldoutError, OSError):
        return "damaged"
    return "running" if is_alive else "interrupted"


class _Outcome(msgspec.Struct):
    repeat: int = 0


class _Point(msgspec.Struct):
    step: int
    summary: dict[str, int | float | bool | None] | None = None
    decoding: Any = None
    outcomes: tuple[_Outcome, ...] = ()


def _read_last_point(path: Path) -> _Point | None:
    """Return the last result in the end of a curve file."""
    try:
        with open_to_read(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except (HeldoutError, OSError):
        return None
    for line in reversed(lines[1:-1]):  # without the header, or a half, and a torn last line
        try:
            point = decode(line, _Point)
        except InvalidInput:
            continue
        if point.summary is not None:
            return point
    return None
