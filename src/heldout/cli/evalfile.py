"""An eval file is plain Python: this finds `config`, `load_dataset`, `score_fn` in it.

Or `definition`, an `EvalDefinition`, in the place of those functions.
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from heldout.config import EvalConfig, base_config
from heldout.errors import EvalFileError, HeldoutError
from heldout.rollout import EvalDefinition
from heldout.types import Sample


@dataclass(frozen=True, slots=True)
class EvalFile:
    path: Path
    config: EvalConfig
    load_dataset: Callable[[], Iterable[Sample]]
    score_fn: Callable[..., Any]
    prepare_messages: Callable[..., Any] | None
    environment_factory: Callable[..., Any] | None

    def samples(self) -> Iterable[Sample]:
        """What `load_dataset` returns; what goes wrong in it is an error with its line."""
        try:
            found = self.load_dataset()
        except Exception as problem:
            raise _blamed(self.path, "load_dataset failed", problem) from problem
        if isinstance(found, str | dict) or not isinstance(found, Iterable):
            raise EvalFileError(
                f"{self.path}: load_dataset returns a list of samples, got {type(found).__name__}"
            )
        # A list is looked through before anything runs, so it stays one.
        return found if isinstance(found, Sequence) else self._streamed(found)

    def _streamed(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        try:
            yield from samples
        except Exception as problem:
            raise _blamed(self.path, "load_dataset failed", problem) from problem


def load_eval_file(path: Path) -> EvalFile:
    module = load_module(path)
    config = _config(module, path)
    if not config.experiment_name:
        config = replace(config, experiment_name=_name(path))
    whole = getattr(module, "definition", None)
    if isinstance(whole, EvalDefinition):
        parts = ("load_dataset", "score_fn", "prepare_messages", "environment_factory")
        for name in parts:
            if getattr(module, name, None) is not None:
                raise EvalFileError(f"{path} has a definition and {name}: give one of the two")
        return EvalFile(
            path,
            config,
            lambda: whole.samples,
            whole.score_fn,
            whole.prepare_messages,
            whole.environment_factory,
        )
    return EvalFile(
        path,
        config,
        _function(module, path, "load_dataset", "() -> list[Sample]"),
        _function(module, path, "score_fn", "(trajectory, sample) -> Score"),
        _optional(module, path, "prepare_messages"),
        _optional(module, path, "environment_factory"),
    )


def load_module(path: Path) -> ModuleType:
    """Run the file as a module (not as `__main__`, so its main block stays quiet)."""
    if not path.is_file():
        what = "is a folder, not an eval file" if path.is_dir() else "does not exist"
        raise EvalFileError(f"{path} {what}")
    # Not under its plain name: an eval file may be called json.py.
    name = f"heldout_eval_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise EvalFileError(f"{path} is not a Python file: its name has to end in .py")
    module = importlib.util.module_from_spec(spec)
    # Its own folder first, as for a script: eval files import their neighbours.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        raise _blamed(path, "could not be loaded", problem) from problem
    return module


def _name(path: Path) -> str:
    return (
        "".join(c if c.isalnum() or c in "._-" else "-" for c in path.stem).lstrip("._-") or "eval"
    )


def _config(module: ModuleType, path: Path) -> EvalConfig:
    if not hasattr(module, "config"):
        for name, value in vars(module).items():
            # Running with the defaults instead would be a surprise.
            if isinstance(value, EvalConfig) and value is not base_config:
                raise EvalFileError(
                    f"{path} has an EvalConfig called {name}, and no config; rename it to config"
                )
        return base_config
    if not isinstance(module.config, EvalConfig):
        raise EvalFileError(f"{path}: config is an EvalConfig, got {type(module.config).__name__}")
    return module.config


def _function(module: ModuleType, path: Path, name: str, shape: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    if found is not None:
        raise EvalFileError(f"{path}: {name} is a function {shape}, got {type(found).__name__}")
    names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise EvalFileError(f"{path} defines no function {name}{shape}{hint}")


def _optional(module: ModuleType, path: Path, name: str) -> Callable[..., Any] | None:
    found = getattr(module, name, None)
    if found is not None and not callable(found):
        raise EvalFileError(f"{path}: {name} is a function, got {type(found).__name__}")
    if found is None:
        # Left out is fine; misspelt would run another eval than was meant.
        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        for near in difflib.get_close_matches(name, names, n=1, cutoff=0.85):
            raise EvalFileError(f"{path} defines {near}, which is not used; is it {name}?")
    return found


def _blamed(path: Path, what: str, problem: Exception) -> EvalFileError:
    """The error with the line to look at: the last one of the eval file that was under way."""
    if isinstance(problem, SyntaxError) and problem.filename and problem.lineno:
        # Of the eval file, or of a file that it imports.
        same = _same_file(problem.filename, path)
        where = f"{path if same else problem.filename}, line {problem.lineno}"
        return EvalFileError(f"{where}: {what}: {type(problem).__name__}: {problem.msg}")
    trace, line = problem.__traceback__, None
    while trace is not None:
        if _same_file(trace.tb_frame.f_code.co_filename, path):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f"{path}, line {line}" if line else f"{path}"
    kind = "" if isinstance(problem, HeldoutError) else f"{type(problem).__name__}: "
    return EvalFileError(f"{where}: {what}: {kind}{problem}")


def _same_file(name: str, path: Path) -> bool:
    return Path(name).resolve() == path.resolve()
