"""`heldout run FILE`: evaluate an eval file, a Python file with `load_dataset` and `score_fn`."""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
import msgspec

from heldout._format import count, printable
from heldout.cli._load import describe_error, load_module
from heldout.config import EvalConfig, Sampling, base_config
from heldout.errors import EvalFailed, EvalFileError, InvalidInput
from heldout.types import Sample

if TYPE_CHECKING:
    from heldout.store.report import EvalReport


class _RunCommand(click.Command):
    """A command whose help lists the settings."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Settings (--set KEY=VALUE)"):
            formatter.write_dl(list_settings())
        super().format_epilog(ctx, formatter)


@click.command(
    "run",
    cls=_RunCommand,
    epilog="Options of their own, such as --max-samples, win over --set, and both win over the "
    "config in FILE. sampling.stop takes a comma-separated list, or a JSON list of strings.",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--max-samples", type=int, metavar="N", help="Only the first N samples.")
@click.option("--max-concurrent", type=int, metavar="N", help="Items in flight at once.")
@click.option(
    "--endpoint",
    metavar="E",
    help="The model: PROVIDER:MODEL, openai:MODEL@http://host/v1, hf:PATH or smollm2.",
)
@click.option("--cache", is_flag=True, help="Take model turns from the cache (docs/models.md).")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting (below).")
@click.option("--resume", is_flag=True, help="Continue an unfinished run of this name.")
@click.option("--repair", is_flag=True, help="With --resume: move damaged journal lines aside.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one line of JSON.")
def command(
    file: Path,
    max_samples: int | None,
    max_concurrent: int | None,
    endpoint: str | None,
    cache: bool,
    settings: tuple[str, ...],
    resume: bool,
    repair: bool,
    as_json: bool,
) -> None:
    """Run the eval in FILE and print its report.

    FILE is Python. It defines load_dataset() and score_fn(trajectory, sample), and may define
    config, prepare_messages and environment_factory. Or it defines definition, an EvalDefinition
    such as from_verifiers(...) returns.
    """
    import asyncio

    from heldout.engine import evaluate

    options: dict[str, Any] = {
        "max_samples": max_samples,
        "max_concurrent": max_concurrent,
        "endpoint": endpoint,
        "cache": cache or None,
        "resume": resume or None,
    }
    with stdout_for_json(as_json), _name_exits(file):
        eval_file = load_eval_file(file)
        config = apply_settings(
            eval_file.config, settings, {k: v for k, v in options.items() if v is not None}
        )
        run_dir = Path(config.output_dir) / (config.experiment_name or "")
        if repair:
            if not config.resume:
                raise click.UsageError("--repair goes with --resume, which runs moved lines again")
            from heldout.cli.show import repair_run

            repair_run(run_dir)
        samples = eval_file.load_samples()
        try:
            report = asyncio.run(
                evaluate(
                    samples,
                    config,
                    eval_file.score_fn,
                    eval_file.prepare_messages,
                    eval_file.environment_factory,
                )
            )
        except KeyboardInterrupt:
            has_results = config.experiment_name is not None and run_dir.is_dir()
            report_interrupt(run_dir if has_results else None)
            raise click.exceptions.Exit(130) from None
    if config.cache:
        _print_cache_use(report)
    print_run(report, as_json)


def print_run(report: Any, as_json: bool) -> None:
    """Print the report of a run that was just made.

    Args:
        report: The EvalReport.
        as_json: Print its summary as JSON instead.
    """
    from heldout.cli._tables import print_json, print_report
    from heldout.cli.show import build_report

    if as_json:
        print_json(report.summary)
    else:
        print_report(build_report(report))


def stdout_for_json(as_json: bool) -> AbstractContextManager[Any]:
    """Keep standard output for one line of JSON: what user code prints goes to standard error."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def report_interrupt(run_dir: Path | None) -> None:
    """Say on standard error that a run was interrupted and how to continue it.

    Args:
        run_dir: Where its results are; None if there are none.
    """
    saved = f" Results so far are saved to {run_dir}; continue with --resume." if run_dir else ""
    click.echo(printable(f"Interrupted.{saved}"), err=True)


def _print_cache_use(report: EvalReport) -> None:
    """Say on standard error how many model turns of a run came from the response cache."""
    from heldout.models.cache import count_turns

    cached, sent = count_turns(report.results)
    turns, requests = count(cached, "model turn"), count(sent, "request")
    click.echo(f"From the response cache: {turns}. Sent to the model: {requests}.", err=True)


@contextmanager
def _name_exits(file: Path) -> Iterator[None]:
    """Turn an exit of the eval file into an error: its exit code could say that all is well."""
    try:
        yield
    except SystemExit as exit:
        raise EvalFailed(
            f"code of {file} ended the process (SystemExit: {exit}); there is no report"
        ) from exit


# --- Eval files ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EvalFile:
    """What an eval file defines.

    Attributes:
        path: The file.
        config: Its config; the file's name is the experiment name unless it has one.
        load_dataset: A function that returns the samples.
        score_fn: A function (trajectory, sample) -> Score.
        prepare_messages: A function of a sample, or None.
        environment_factory: A function of a sample, or None.
    """

    path: Path
    config: EvalConfig
    load_dataset: Callable[[], Iterable[Sample]]
    score_fn: Callable[..., Any]
    prepare_messages: Callable[..., Any] | None
    environment_factory: Callable[..., Any] | None

    def load_samples(self) -> Iterable[Sample]:
        """Call `load_dataset`.

        Returns:
            The samples: a sequence stays one, anything else is streamed.

        Raises:
            EvalFileError: It raised (the message names the line), or returned no samples.
        """
        try:
            samples = self.load_dataset()
        except Exception as problem:
            raise self._blame(problem) from problem
        if isinstance(samples, str | dict) or not isinstance(samples, Iterable):
            raise EvalFileError(
                f"{self.path}: load_dataset returns a list of samples, got {type(samples).__name__}"
            )
        return samples if isinstance(samples, Sequence) else self._stream(samples)

    def _stream(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        try:
            yield from samples
        except Exception as problem:
            raise self._blame(problem) from problem

    def _blame(self, problem: Exception) -> EvalFileError:
        return EvalFileError(
            f"{self.path}: load_dataset failed: {describe_error(problem, self.path)}"
        )


def load_eval_file(path: Path) -> EvalFile:
    """Load an eval file.

    Args:
        path: A Python file.

    Returns:
        What it defines.

    Raises:
        EvalFileError: It cannot be loaded, or a name in it is missing, misspelled or of the wrong
            type.
    """
    from heldout.rollout import EvalDefinition

    module = load_module(path)
    config = _find_config(module, path)
    if not config.experiment_name:
        config = replace(config, experiment_name=_experiment_name(path))
    definition = getattr(module, "definition", None)
    if isinstance(definition, EvalDefinition):
        for name in ("load_dataset", "score_fn", "prepare_messages", "environment_factory"):
            if getattr(module, name, None) is not None:
                raise EvalFileError(f"{path} has a definition and {name}: give one of the two")
        return EvalFile(
            path,
            config,
            lambda: definition.samples,
            definition.score_fn,
            definition.prepare_messages,
            definition.environment_factory,
        )
    return EvalFile(
        path,
        config,
        _find_function(module, path, "load_dataset", "() -> list[Sample]"),
        _find_function(module, path, "score_fn", "(trajectory, sample) -> Score"),
        _find_optional_function(module, path, "prepare_messages"),
        _find_optional_function(module, path, "environment_factory"),
    )


def _experiment_name(path: Path) -> str:
    allowed = "".join(c if c.isalnum() or c in "._-" else "-" for c in path.stem)
    return allowed.lstrip("._-") or "eval"


def _find_config(module: ModuleType, path: Path) -> EvalConfig:
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


def _find_function(module: ModuleType, path: Path, name: str, shape: str) -> Callable[..., Any]:
    value = getattr(module, name, None)
    if callable(value):
        return value  # type: ignore[no-any-return]
    if value is not None:
        raise EvalFileError(f"{path}: {name} is a function {shape}, got {type(value).__name__}")
    near = difflib.get_close_matches(name, _public_functions(module), n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise EvalFileError(f"{path} defines no function {name}{shape}{hint}")


def _find_optional_function(module: ModuleType, path: Path, name: str) -> Callable[..., Any] | None:
    value = getattr(module, name, None)
    if value is not None and not callable(value):
        raise EvalFileError(f"{path}: {name} is a function, got {type(value).__name__}")
    if value is None:
        # Leaving it out is fine; misspelled, it would run another eval than was meant.
        for near in difflib.get_close_matches(name, _public_functions(module), n=1, cutoff=0.85):
            raise EvalFileError(f"{path} defines {near}, which is not used; is it {name}?")
    return value


def _public_functions(module: ModuleType) -> list[str]:
    return [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]


# --- Settings -----------------------------------------------------------------------------------

Owner = type[EvalConfig] | type[Sampling]
SAMPLING_PREFIX = "sampling."
EXTRA_BODY_PREFIX = "sampling.extra_body."


def apply_settings(
    config: EvalConfig, settings: Iterable[str], options: dict[str, Any]
) -> EvalConfig:
    """Apply settings of the command line to a config, all at once: some are valid only together.

    Args:
        config: The config.
        settings: KEY=VALUE strings; sampling.KEY sets a field of its sampling.
        options: Fields that win over those.

    Returns:
        The new config.

    Raises:
        InvalidInput: A key does not exist, or a value is not of its type.
    """
    values: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    extra_body: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise InvalidInput(f"--set takes KEY=VALUE, got {setting!r}")
        key = key.strip()
        if key.startswith(EXTRA_BODY_PREFIX):
            _set_nested(extra_body, key.removeprefix(EXTRA_BODY_PREFIX), text)
        elif key.startswith(SAMPLING_PREFIX):
            name = key.removeprefix(SAMPLING_PREFIX)
            sampling[name] = _parse_setting(Sampling, name, text, key)
        else:
            values[key] = _parse_setting(EvalConfig, key, text, key)
    if extra_body:
        sampling["extra_body"] = {**(config.sampling.extra_body or {}), **extra_body}
    if sampling:
        values["sampling"] = replace(config.sampling, **sampling)
    return replace(config, **{**values, **options})


def _set_nested(target: dict[str, Any], key: str, text: str) -> None:
    """Set the value of a dotted key; it is JSON, or else the text itself."""
    *outer, last = key.split(".")
    for name in outer:
        target = target.setdefault(name, {})
        if not isinstance(target, dict):
            raise InvalidInput(f"--set …{key}: {name} is set to a value, not to an object")
    try:
        target[last] = msgspec.json.decode(text)
    except msgspec.DecodeError:
        target[last] = text


def _parse_setting(owner: Owner, name: str, text: str, key: str) -> Any:
    types = _field_types(owner)
    if name not in types:
        known = [*_field_types(EvalConfig)]
        known += [SAMPLING_PREFIX + other for other in _field_types(Sampling)]
        near = [other for other in known if other.startswith(key)]  # sampling.temp
        near = near or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise InvalidInput(f"--set {key}: there is no such setting; {hint}")
    kind = types[name]
    if text.lower() in ("none", "null") and type(None) in typing.get_args(kind):
        return None
    try:
        if name == "extra_body":
            return msgspec.json.decode(text, type=kind)
        if typing.get_origin(kind) is tuple:
            # A JSON list can hold what a comma-separated one cannot: a comma, a line break.
            if text.startswith("["):
                return msgspec.json.decode(text, type=kind)
            return tuple(text.split(",")) if text else ()
        return msgspec.convert(text, kind, strict=False)
    except msgspec.MsgspecError:
        name = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
        raise InvalidInput(
            f"--set {key} takes {name.removeprefix('typing.')}, got {text!r}"
        ) from None


def _field_types(owner: Owner) -> dict[str, Any]:
    """Return the fields that can be set, by name: the endpoint as text, sampling by its fields."""
    hints = typing.get_type_hints(owner)
    types = {field.name: hints[field.name] for field in fields(owner) if field.name != "sampling"}
    if "endpoint" in types:
        types["endpoint"] = str
    return types


def list_settings() -> list[tuple[str, str]]:
    """Return each setting with its description and default."""
    rows = []
    owners: tuple[tuple[Owner, str, Any], ...] = (
        (EvalConfig, "", base_config),
        (Sampling, SAMPLING_PREFIX, base_config.sampling),
    )
    for owner, prefix, defaults in owners:
        docstrings = field_docstrings(owner)
        for name in _field_types(owner):
            default = _format_default(getattr(defaults, name))
            if name == "experiment_name":  # load_eval_file fills it in
                default = "the name of FILE"
            text = f" [default: {default}]" if default else ""
            rows.append((prefix + name, docstrings[name] + text))
    return rows


def _format_default(default: Any) -> str:
    if default is None or isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default or default == 0 or "")


def field_docstrings(owner: type) -> dict[str, str]:
    """Return the docstring under each field of a class, which Python itself does not keep.

    Args:
        owner: The class.

    Returns:
        The docstrings by field, on one line each.
    """
    definition = ast.parse(inspect.getsource(owner)).body[0]
    assert isinstance(definition, ast.ClassDef)
    docstrings = {}
    for statement, following in zip(definition.body, definition.body[1:], strict=False):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docstrings[name] = " ".join(text.split())
    return docstrings
