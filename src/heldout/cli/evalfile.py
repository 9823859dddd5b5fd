"""An eval file is plain Python: this finds `config`, `load_dataset`, `score_fn` in it."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from heldout.config import EvalConfig, Sampling, base_config
from heldout.errors import EvalFileError, InvalidInput
from heldout.types import Sample


@dataclass(frozen=True, slots=True)
class EvalFile:
    config: EvalConfig
    load_dataset: Callable[[], Iterable[Sample]]
    score_fn: Callable[..., Any]
    prepare_messages: Callable[..., Any] | None
    environment_factory: Callable[..., Any] | None


def load_eval_file(path: Path) -> EvalFile:
    """Run the file as a module (not as `__main__`, so its main block stays quiet)."""
    if not path.is_file():
        raise EvalFileError(f"there is no eval file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise EvalFileError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Its own folder first, as for a script: eval files import their neighbours.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        line = _line_in(path, problem)
        raise EvalFileError(
            f"{path}{line} could not be loaded: {type(problem).__name__}: {problem}"
        ) from problem
    config = getattr(module, "config", base_config)
    if not isinstance(config, EvalConfig):
        raise EvalFileError(f"{path}: config is an EvalConfig, got {type(config).__name__}")
    return EvalFile(
        config if config.experiment_name else replace(config, experiment_name=_name(path)),
        _function(module, path, "load_dataset", "() -> list[Sample]"),
        _function(module, path, "score_fn", "(trajectory, sample) -> Score"),
        getattr(module, "prepare_messages", None),
        getattr(module, "environment_factory", None),
    )


def _name(path: Path) -> str:
    return (
        "".join(c if c.isalnum() or c in "._-" else "-" for c in path.stem).lstrip("._-") or "eval"
    )


def _function(module: Any, path: Path, name: str, shape: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise EvalFileError(f"{path} defines no function {name}{shape.replace(' ->', ' ->')}{hint}")


def _line_in(path: Path, problem: BaseException) -> str:
    trace, line = problem.__traceback__, None
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(problem, SyntaxError):
        line = problem.lineno
    return f", line {line}," if line else ""


# --- --set key=value ----------------------------------------------------------------------------


def with_settings(config: EvalConfig, settings: Iterable[str]) -> EvalConfig:
    """The config with `key=value` texts applied; `sampling.temperature=0.7` reaches inside."""
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise InvalidInput(f"--set takes key=value, got {setting!r}")
        outer, dot, inner = key.partition(".")
        if dot and outer == "sampling":
            sampling = replace(config.sampling, **{inner: _value(Sampling, inner, text, key)})
            config = replace(config, sampling=sampling)
        else:
            config = replace(config, **{key: _value(EvalConfig, key, text, key)})
    return config


def _value(owner: type[EvalConfig] | type[Sampling], name: str, text: str, key: str) -> Any:
    kinds = settable(owner)
    if name not in kinds:
        every = [*settable(EvalConfig), *(f"sampling.{n}" for n in settable(Sampling))]
        near = difflib.get_close_matches(key, every, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(every)}"
        raise InvalidInput(f"--set {key}: there is no such setting; {hint}")
    if name == "stop":
        return tuple(text.split(",")) if text else ()
    if text.lower() in ("none", "null"):
        text = "null"
    try:
        return msgspec.convert(text, kinds[name], strict=False)
    except msgspec.ValidationError as problem:
        raise InvalidInput(f"--set {key}={text}: {problem}") from None


def settable(owner: type[EvalConfig] | type[Sampling]) -> dict[str, Any]:
    """Field names and types; the endpoint is text here, and sampling is set field by field."""
    import typing

    hints = typing.get_type_hints(owner)
    kinds = {f.name: hints[f.name] for f in fields(owner) if f.name != "sampling"}
    if "endpoint" in kinds:
        kinds["endpoint"] = str
    return kinds
