"""Load what a command line names: Python code, and results that a condition picks.

module:name      an object of a module, those of the working directory included
file.py:name     an object of a file; loading either runs its code

Which run a name means is in `heldout.reporting.names`.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from heldout._core.code import import_file, import_object
from heldout._core.extras import install_hint
from heldout.errors import (
    EvalFailed,
    EvalFileError,
    HeldoutError,
    InvalidInput,
)

if TYPE_CHECKING:
    from heldout.store.report import EvalReport


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
        raise InvalidInput(f"{option} must be module:function or file.py:function, got {spec!r}")
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
            f"{need} ({missing.name} is missing): {install_hint(extra)}"
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


def select_results(report: EvalReport, where: str | None) -> EvalReport:
    """Pick the results that `--where` asks for."""
    return report if where is None else report.where(where)
