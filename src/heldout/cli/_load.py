"""Load what a command line names: runs, evals of a curve, and Python code.

RUN              a run directory, or a name under outputs/evals: the latest run of that name
RUN@3            the third run of that name; RUN@2026-11-15 the latest of that day
RUN@STEP         the eval of a curve at this step; RUN@last is the last one
RUN@LABEL:STEP   the same, where evals of several labels share a run directory
URL              a run directory that fsspec reads, such as s3://bucket/run
module:name      an object of a module, those of the working directory included
file.py:name     an object of a file; loading either runs its code
"""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from heldout._code import import_file, import_object
from heldout.errors import (
    EvalFailed,
    EvalFileError,
    HeldoutError,
    InvalidInput,
    RunDirectoryError,
)
from heldout.store.remote import fetch_run
from heldout.store.run_dir import RunDir
from heldout.store.runs import ROOT, TIMESTAMP, find_run
from heldout.training.curve import CurvePoint, current_points, read_points

if TYPE_CHECKING:
    from heldout.store.report import EvalReport

LAST = "last"


# --- Runs ---------------------------------------------------------------------------------------


def load_report(run: str) -> EvalReport:
    """Load the report of RUN, RUN@3, RUN@STEP or RUN@last.

    An eval of a curve, or one of several runs of a name, is named as it was given: its own
    directory is named by a step, or a time.
    """
    from heldout.store.report import EvalReport

    path = find_run_directory(run)
    report = EvalReport.load(path)
    if path.parent.name != "steps" and not TIMESTAMP.fullmatch(path.name):
        return report
    name = str(Path(run).relative_to(ROOT)) if Path(run).is_relative_to(ROOT) else run
    return replace(report, config={**report.config, "experiment_name": name})


def find_run_directory(run: str) -> Path:
    """Find the directory of RUN, RUN@3, RUN@STEP or RUN@last."""
    run = _to_local(run)
    # A directory may have an @ in its name.
    exists = Path(run).exists() or (Path(ROOT) / run).exists()
    name, at, selector = (run, "", "") if exists else run.partition("@")
    curve = find_curve(name)
    if curve is None:
        return find_run(run)
    label, colon, step = selector.rpartition(":")
    if at and re.fullmatch(f"[0-9]+|{LAST}", step):
        return find_step(curve, None if step == LAST else int(step), label=label if colon else None)
    steps = list_result_steps(current_points(read_points(curve / "curve.jsonl")))
    raise InvalidInput(
        f"{curve} is a curve of many evals. Name one by its step, {name}@STEP, or the last, "
        f"{name}@{LAST}: {steps}"
    )


def find_curve(run: str | Path) -> Path | None:
    """Find the directory of a training run; None for an ordinary run, or none at all."""
    run = _to_local(str(run))
    for path in (Path(run), Path(ROOT) / run):
        if RunDir(path).curve.exists():
            return path
        if RunDir(path).exists():
            return None
    return None


def _to_local(run: str) -> str:
    """Copy a run that is named by a URL to this machine; RUN@STEP stays as it is."""
    if "://" not in run:
        return run
    folder, _, last = run.rstrip("/").rpartition("/")
    name, at, selector = last.partition("@")
    return f"{fetch_run(f'{folder}/{name}')}{at}{selector}"


# --- Steps of a curve ---------------------------------------------------------------------------


def find_step(path: Path, step: int | None, *, label: str | None = None) -> Path:
    """Find where the eval at a step of a curve is saved; None is the last step with a result."""
    written = read_points(path / "curve.jsonl")
    points = select_label(current_points(written), label)
    matches = [point for point in points if point.step == step]
    if step is None:
        matches = [point for point in points if point.has_result]
        if not matches:
            raise RunDirectoryError(f"{path} has no last eval: no step has a result yet")
    if not matches:
        if any(point.step == step and point.has_result for point in select_label(written, label)):
            raise RunDirectoryError(
                f"step {step} of {path} was superseded by a later attempt of the training run"
            )
        raise RunDirectoryError(f"{path} has no eval at step {step}; {list_result_steps(points)}")
    labels = sorted({point.label for point in matches})
    if len(labels) > 1:
        names = ", ".join(f"RUN@{label}:{LAST if step is None else step}" for label in labels)
        raise InvalidInput(f"{path} has several evals: name one of them, {names}")
    point = max(matches, key=lambda point: point.step)
    directory = saved_eval(path, point)
    if directory is None:
        why = f"; it was skipped: {point.skipped}" if point.skipped else ""
        raise RunDirectoryError(
            f"there is no {path / 'steps'}/{point.step:08d}: the conversations of step "
            f"{point.step} were not saved{why}"
        )
    return directory


def saved_eval(path: Path, point: CurvePoint) -> Path | None:
    """Find the directory of a point's eval; None where its conversations were not saved.

    A curve file may come from anywhere, so what it names is one of the directories under steps/, or
    nothing.
    """
    name = re.fullmatch(f"steps/({point.step:08d}(?:-[0-9]+)?)", point.run or "")
    directory = path / "steps" / name[1] if name else None
    return directory if directory is not None and RunDir(directory).exists() else None


def list_result_steps(points: Iterable[CurvePoint]) -> str:
    """Return the steps with a result as the end of a sentence, a long list without its middle."""
    steps = [str(step) for step in sorted({p.step for p in points if p.has_result})]
    if len(steps) < 2:
        return f"there is only {steps[0]}" if steps else "no step has a result yet"
    if len(steps) > 12:
        steps = [*steps[:6], "…", *steps[-5:]]
    return f"there are {', '.join(steps)}"


def select_label(points: Sequence[CurvePoint], label: str | None) -> list[CurvePoint]:
    """Pick the points of one label; all of them, if it is None."""
    labels = sorted({point.label for point in points})
    if label is not None and label not in labels:
        known = ", ".join(labels) or "none yet"
        raise InvalidInput(f"the curve has no eval {label!r:.100}; it has {known}")
    return [point for point in points if label in (None, point.label)]


# --- Code ---------------------------------------------------------------------------------------


class MissingDependency(EvalFailed):
    """A package or a device that the evaluation needs is not here."""


def load_function(spec: str, option: str) -> Callable[..., Any]:
    """Load the function that an option names as module:function or file.py:function."""
    value = load_object(spec, option)
    if not callable(value):
        module, _, name = spec.rpartition(":")
        raise InvalidInput(f"{option}: {module} has no function {name!r}")
    return value  # type: ignore[no-any-return]


def load_object(spec: str, option: str) -> Any:
    """Load what an option names as module:name or file.py:name; None if there is no such name."""
    module, _, name = spec.rpartition(":")
    if not module or not name:
        raise InvalidInput(f"{option} is module:function or file.py:function, got {spec!r}")
    subject = f"{option}: {module} could not be loaded"
    if module.endswith(".py"):
        with user_code(subject, Path(module)):
            return import_object(module, name)
    add_working_directory()
    with user_code(subject, module=module):
        return import_object(module, name)


def load_module(path: Path) -> ModuleType:
    """Run a Python file as a module; EvalFileError if it is not there, or its code raises."""
    with user_code(f"{path} could not be loaded", path):
        return import_file(path)


def add_working_directory() -> None:
    """Let modules of the working directory be imported, as `python -m` does."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def import_extra(name: str, need: str, extra: str) -> Any:
    """Import a package of an extra, or say which extra installs it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise MissingDependency(
            f"{need} ({missing.name} is missing): pip install 'heldout[{extra}]'"
        ) from None


@contextmanager
def user_code(subject: str, path: Path | None = None, module: str | None = None) -> Iterator[None]:
    """Raise what the user's code raises as an InvalidInput that names the line, of `path` if given.

    With `module`, the one that is asked for, another module that is missing is a MissingDependency.
    """
    try:
        yield
    except EvalFileError:  # it says where it comes from
        raise
    except Exception as problem:
        if path is None and isinstance(problem, HeldoutError):
            raise
        if module is not None and isinstance(problem, ModuleNotFoundError):
            # gymnasium raises it anew, without the name.
            name = problem.name or getattr(problem.__cause__, "name", None) or "a module"
            if not f"{module}.".startswith(f"{name}."):
                raise MissingDependency(
                    f"{subject}: it needs {name}, which is missing; install it"
                ) from None
            raise InvalidInput(
                f"{subject}: there is no module {module!r} here, and none is installed"
            ) from None
        kind = InvalidInput if path is None else EvalFileError
        raise kind(f"{subject}: {describe_error(problem, path)}") from problem


def describe_error(problem: BaseException, path: Path | None = None) -> str:
    """Return on one line what was raised and where, in `path` if it was there."""
    kind = "" if isinstance(problem, HeldoutError) else f"{type(problem).__name__}: "
    text = kind + one_line(problem)
    if isinstance(problem, SyntaxError):  # its message names the line
        return text
    first = problem
    while first.__cause__ is not None and type(first.__cause__) is type(problem):
        first = first.__cause__  # raised anew in more words, far from where it happened
    frames = [
        frame
        for frame in traceback.extract_tb(first.__traceback__)
        if not frame.filename.startswith("<frozen ")  # the machinery of import
    ]
    own = [frame for frame in frames if path and Path(frame.filename).resolve() == path.resolve()]
    if not frames:
        return text
    frame = (own or frames)[-1]
    return f"{text} ({Path(frame.filename).name}, line {frame.lineno})"


def one_line(problem: BaseException) -> str:
    """Return the message of an error on one line."""
    return " ".join(str(problem).split())


# --- Results ------------------------------------------------------------------------------------


class SampleTexts(NamedTuple):
    """What a sample asks, and what was answered."""

    question: str
    target: str | None
    answer: str
    """Of the first attempt; the error where it has none."""


def read_texts(report: EvalReport, ids: Collection[str]) -> dict[str, SampleTexts]:
    """Read the texts of some samples by id, of the first attempt each, where they have messages."""
    texts: dict[str, SampleTexts] = {}
    for result in report.results if ids else ():
        if result.sample_id in ids and result.sample_id not in texts and result.trajectory.messages:
            target = result.sample.ground_truth
            texts[result.sample_id] = SampleTexts(
                result.question,
                None if target is None else str(target),
                result.trajectory.answer if result.ok else f"error: {result.error}",
            )
            if len(texts) == len(ids):
                break
    return texts


def select_results(report: EvalReport, where: str | None) -> EvalReport:
    """Pick the results that `--where` asks for."""
    return report if where is None else report.where(where)


def describe_selection(report: EvalReport) -> str:
    """Say which results of a run a report holds, and by what they were picked."""
    selection = report.selection
    if selection is None:
        return f"all {report.summary['n']} results"
    picked = f"only results where {selection.condition}: {report.summary['n']} of {selection.of}"
    if selection.by_outcome:
        picked += ", picked by what came out, so that their means have no intervals"
    return picked
