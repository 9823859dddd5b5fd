"""Functions and packages that a command is told of by name: loading them runs their code."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heldout.errors import EvalFailed, HeldoutError, InvalidInput


class Missing(EvalFailed):
    """A package or a device that the evaluation needs is not here."""


def look_here_too() -> None:
    """Modules of the working directory are found, as `python -m` finds them."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def imported(given: str, option: str) -> Callable[..., Any]:
    """`module:function`, modules of the working directory included, or `file.py:function`."""
    found = imported_object(given, option)
    if not callable(found):
        module, _, name = given.rpartition(":")
        raise InvalidInput(f"{option}: {module} has no function {name!r}")
    return found  # type: ignore[no-any-return]


def imported_object(given: str, option: str) -> Any:
    """The same for whatever has that name; None where nothing has."""
    module, colon, name = given.rpartition(":")
    if not (module and colon and name):
        raise InvalidInput(f"{option} is module:function or file.py:function, got {given!r}")
    if module.endswith(".py"):
        from heldout.cli.evalfile import load_module

        return _in(load_module(Path(module)), name)
    look_here_too()
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as problem:
        raise not_found(problem, module, f"{option}: {module}") from None
    except Exception as problem:
        raise InvalidInput(f"{option}: {module} could not be loaded: {blame(problem)}") from problem
    return _in(found, name)


def _in(found: Any, name: str) -> Any:
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def package(name: str, need: str, extra: str) -> Any:
    """A package of an extra. One that is there and broken is not missing: no skip hides it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise Missing(
            f"{need} ({missing.name} is missing): pip install 'heldout[{extra}]'"
        ) from None
    except Exception as problem:
        raise EvalFailed(
            f"{need}, which could not be loaded: {blame(problem)}; install it again"
        ) from problem


def not_found(problem: ModuleNotFoundError, module: str, who: str) -> HeldoutError:
    """The module that was asked for is a slip in the command; one that it needs is missing."""
    # gymnasium raises it anew, without the name.
    name = problem.name or getattr(problem.__cause__, "name", None)
    if name and f"{module}.".startswith(f"{name}."):
        return InvalidInput(
            f"{who}: there is no module {module!r} here or among the installed packages"
        )
    if name:
        return Missing(f"{who} needs {name}, which is missing; install it")
    return Missing(f"{who} needs a module that is missing: {one_line(problem)}")


def blame(problem: BaseException) -> str:
    """What was raised, and where, on one line."""
    said = f"{type(problem).__name__}: {one_line(problem)}"
    if isinstance(problem, SyntaxError):  # says itself where
        return said
    first = problem
    while first.__cause__ is not None and type(first.__cause__) is type(problem):
        first = first.__cause__  # raised anew in more words, far from where it happened
    frames = [
        frame
        for frame in traceback.extract_tb(first.__traceback__)
        if not frame.filename.startswith("<frozen ")  # the machinery of import
    ]
    if not frames:
        return said
    return f"{said} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split())
