"""`heldout run FILE`: evaluate an eval file, a Python file with `load_dataset` and `score_fn`."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stdout,
    suppress,
)
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
import msgspec

import heldout.examples
from heldout._format import count
from heldout.cli._cluster import Elsewhere, cluster_options, run_as_job
from heldout.cli._load import add_working_directory, describe_error, load_module
from heldout.cli._options import bind_parameters, parse_key_values, parse_value, renamed_option
from heldout.config import EvalConfig, Sampling, base_config
from heldout.errors import (
    EvalFailed,
    EvalFileError,
    InvalidInput,
    ResumeMismatch,
    RunBusy,
    RunDirectoryError,
)
from heldout.prices import Price
from heldout.store.run_dir import RunDir
from heldout.types import Sample

if TYPE_CHECKING:
    from heldout.engine import Executor
    from heldout.store.report import EvalReport

NAMES_COMPARED = 10_000
"""Sample ids among which the nearest to a missing one is looked for."""


FOREIGN_OPTIONS = {
    ("--tasks", "--task"): "name the eval file itself: heldout run FILE",
    ("--model_args", "--model-args", "-M"): (
        "the model is one name, such as --model hf:PATH or openai:MODEL@http://host/v1; settings "
        "are --set temperature=0.7, fields of the request --set sampling.extra_body.KEY=VALUE"
    ),
    ("--model-base-url", "--base-url", "--base_url"): "write --model openai:MODEL@http://host/v1",
    ("--gen_kwargs",): "write --set temperature=0.7, --set top_p=0.9, --set max_tokens=256",
    ("--temperature",): "write --set temperature=0.7",
    ("--top-p", "--top_p"): "write --set top_p=0.9",
    ("--max-tokens", "--max_tokens"): "write --set max_tokens=256",
    ("--seed",): "write --set seed=1",
    ("--stop-seqs", "--stop"): "write --set stop=A,B",
    ("--num_fewshot", "--num-fewshot", "-f"): (
        "put the examples into the messages: prepare_messages(sample) in FILE"
    ),
    ("--batch_size", "--batch-size", "--max-connections", "--max_batch_size", "--num-workers"): (
        "write --max-concurrent N"
    ),
    ("--max-samples", "--max_samples", "-L"): "write --limit N",
    ("--log-dir", "--output_path", "--output-path", "--output_dir"): "write --output-dir DIR",
    ("--log_samples", "--log-samples"): (
        "every item is saved; heldout show RUN --sample ID prints one"
    ),
    ("--use_cache", "--use-cache", "--cache_requests"): "write --cache",
    ("--max-retries",): "write --set retries=N",
    ("--fail-on-error", "--no-fail-on-error"): (
        "write --set on_error=raise to stop at the first error, or --set max_error_rate=0.1"
    ),
    ("--timeout", "--time-limit"): "write --set timeout=SECONDS, for each item",
    ("--message-limit",): "write --set max_turns=N",
    ("--token-limit",): "write --set token_budget=N",
    ("--solver", "--scorer", "--metrics"): (
        "FILE defines score_fn; heldout rescore RUN --scorer file.py:score_fn scores a run again"
    ),
    ("--apply_chat_template", "--apply-chat-template"): "hf: models use theirs always",
    ("--system-message", "--system_instruction", "--system-prompt"): (
        "put it into the messages: prepare_messages(sample) in FILE"
    ),
    ("--metadata", "--tags"): "write --tag WORD, or --note TEXT",
    ("--device", "--trust_remote_code"): "load the model in FILE: config = EvalConfig(endpoint=…)",
    ("--verbosity", "--display", "--log-level"): "write --set progress=false for no progress line",
    ("--output", "-o"): "runs are saved in --output-dir DIR, and --json prints the summary",
}
"""Options of Inspect and lm-eval, with what to write here."""


def explain_foreign_option(name: str) -> str | None:
    """Say what to write instead of an option of another program.

    Args:
        name: The option, such as "--num_fewshot".

    Returns:
        The advice; None if no program is known to have it, or one much like it.
    """
    advice = {known: text for names, text in FOREIGN_OPTIONS.items() for known in names}
    near = difflib.get_close_matches(name, advice, n=1, cutoff=0.85)
    return advice[near[0]] if near else None


class _RunCommand(click.Command):
    """A command whose help lists the settings."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Settings (--set KEY=VALUE)"):
            formatter.write_dl(list_settings())
        super().format_epilog(ctx, formatter)


@click.command(
    "run",
    cls=_RunCommand,
    epilog="Options win over --set, --set over --config, and that over the config in FILE. "
    "model, limit, epochs and name are endpoint, max_samples, repeats and experiment_name; "
    "temperature is short for sampling.temperature. sampling.stop takes a comma-separated list, or "
    "a JSON list of strings.",
)
@click.argument("file", type=click.Path(path_type=Path))
@renamed_option(
    "--model",
    "endpoint",
    formerly=["--endpoint"],
    metavar="MODEL",
    help="PROVIDER:MODEL, openai:MODEL@http://host/v1, hf:PATH or smollm2 (docs/models.md).",
)
@renamed_option(
    "-n",
    "--limit",
    "max_samples",
    formerly=["--max-samples"],
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the first N samples.",
)
@renamed_option(
    "--epochs",
    "repeats",
    formerly=["--repeats"],
    type=click.IntRange(min=1),
    metavar="N",
    help="Attempts of each sample.",
)
@click.option("--sample-id", "ids", multiple=True, metavar="ID", help="Only this sample.")
@click.option(
    "-T",
    "parameters",
    multiple=True,
    metavar="KEY=VALUE",
    help="A parameter of load_dataset in FILE: -T split=test.",
)
@click.option(
    "--max-concurrent", type=click.IntRange(min=1), metavar="N", help="Items in flight at once."
)
@click.option("--name", metavar="NAME", help="Name of the run.  [default: the name of FILE]")
@click.option("--tag", "tags", multiple=True, metavar="WORD", help="A tag; see heldout list --tag.")
@click.option("--note", metavar="TEXT", help="A remark that is saved with the run.")
@click.option("--output-dir", metavar="DIR", help="Where runs are made.  [default: outputs/evals]")
@click.option("--resume", is_flag=True, help="Continue the latest run of this name, if any.")
@click.option(
    "--overwrite", is_flag=True, help="Remove the latest run of this name once this one is done."
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.toml",
    help="Settings in TOML: keys as for --set, and a table [dataset] for -T.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting (below).")
@click.option("--cache", is_flag=True, help="Take model turns from the cache (docs/models.md).")
@click.option("--repair", is_flag=True, help="With --resume: move damaged journal lines aside.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one line of JSON.")
@cluster_options
def command(
    file: Path,
    config_file: Path | None,
    settings: tuple[str, ...],
    parameters: tuple[str, ...],
    ids: tuple[str, ...],
    cache: bool,
    resume: bool,
    overwrite: bool,
    repair: bool,
    as_json: bool,
    tags: tuple[str, ...],
    name: str | None,
    elsewhere: Elsewhere,
    **options: Any,
) -> None:
    """Run the eval in FILE and print its report.

    FILE is Python, or a module that can be imported, such as heldout.examples.capitals. It defines
    load_dataset() and score_fn(trajectory, sample), and may define config, prepare_messages and
    environment_factory. Or it defines definition, an EvalDefinition such as from_verifiers(...)
    returns.

    Each run gets a directory of its own, outputs/evals/NAME/TIME; NAME then means the latest.
    """
    if overwrite and resume:
        raise click.UsageError("--resume continues the latest run, --overwrite removes it")
    if repair and not resume:
        raise click.UsageError("--repair goes with --resume, which runs moved lines again")
    elsewhere.check()
    if elsewhere.remote is not None:
        run_as_job(elsewhere, file)
    options |= {
        "experiment_name": name,
        "tags": tags or None,
        "cache": cache or None,
        "resume": resume or None,
    }
    given = {option: value for option, value in options.items() if value is not None}
    with stdout_for_json(as_json), _name_exits(file):
        eval_file = load_eval_file(file)
        stored, dataset = ({}, {}) if config_file is None else read_settings_file(config_file)
        config = apply_settings(eval_file.config, stored, settings, given)
        dataset |= parse_key_values(parameters, "-T")
        report = _run_eval(
            eval_file,
            config,
            dataset,
            ids,
            repair=repair,
            overwrite=overwrite,
            executor=elsewhere.executor,
        )
    elsewhere.copy(report.path)
    if config.cache:
        _print_cache_use(report)
    print_run(report, as_json)


def _run_eval(
    eval_file: EvalFile,
    config: EvalConfig,
    dataset: dict[str, Any],
    ids: Sequence[str],
    *,
    repair: bool,
    overwrite: bool,
    executor: Executor | None = None,
) -> EvalReport:
    """Run an eval file in a run directory of its own."""
    import asyncio

    from heldout.engine import evaluate
    from heldout.store.runs import list_history

    base = Path(config.output_dir) / (config.experiment_name or "")
    earlier = list_history(base) or ([base] if RunDir(base).exists() else [])
    samples = eval_file.load_samples(dataset, ids)
    with run_directory(config) as (config, run_dir):
        if repair:
            from heldout.cli.list import repair_run

            repair_run(run_dir)
        report = asyncio.run(
            evaluate(
                samples,
                config,
                eval_file.score_fn,
                eval_file.prepare_messages,
                eval_file.environment_factory,
                executor=executor,
            )
        )
    if overwrite and earlier:
        from heldout.cli.list import remove_run

        with suppress(RunBusy):  # another process writes it
            remove_run(earlier[-1])
    return report


@contextmanager
def run_directory(config: EvalConfig) -> Iterator[tuple[EvalConfig, Path]]:
    """Give a run a directory of its own: a new one, or that of the run to resume.

    Args:
        config: The config; its experiment_name is the name of the run.

    Yields:
        The config with the whole name, NAME/TIME, and the run directory. Where nothing came to
        pass, the directory is taken back at the end.

    Raises:
        InvalidInput: The name has an @ or a /, which are for runs that exist.
        RunDirectoryError: The directory cannot be made.
        ResumeMismatch: The run belongs to other samples or another config.
        KeyboardInterrupt: As raised inside, with where the results so far are.
    """
    from heldout.store.runs import find_run, new_run_dir

    root, name = Path(config.output_dir), config.experiment_name or "eval"
    missing = [parent for parent in (root / name, root, root.parent) if not parent.exists()]
    path: Path | None = None
    if config.resume:
        with suppress(RunDirectoryError):
            path = find_run(root / name)
    if path is None:
        if "@" in name or "/" in name:
            raise InvalidInput(
                f"--name {name}: @ and / are for a run that exists, and there is none to resume"
            )
        path = new_run_dir(name, root)
    config = replace(config, experiment_name=str(path.relative_to(root)))
    try:
        yield config, path
    except KeyboardInterrupt:
        raise interrupted(path if RunDir(path).exists() else None) from None
    except ResumeMismatch as mismatch:
        message = str(mismatch).replace("choose another experiment_name", "leave out --resume")
        raise ResumeMismatch(f"{message} to begin a new run") from None
    finally:
        for directory in (path, *missing):
            with suppress(OSError):  # it is not empty: there is a run
                directory.rmdir()


def print_run(report: EvalReport, as_json: bool) -> None:
    """Print the report of a run that was just made.

    Args:
        report: The report.
        as_json: Print its summary, path and usage as JSON instead.
    """
    from heldout.cli._tables import print_json, print_report
    from heldout.cli.show import build_report, usage_as_dict

    assert report.path is not None
    if as_json:
        about = {"path": str(report.path), "usage": usage_as_dict(report)}
        print_json({**report.summary, **about})
    else:
        print_report(build_report(report, info=RunDir(report.path).read_info()))


def stdout_for_json(as_json: bool) -> AbstractContextManager[Any]:
    """Keep standard output for one line of JSON: what user code prints goes to standard error."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def interrupted(run_dir: Path | None) -> KeyboardInterrupt:
    """Return an interrupt that says how to continue a run.

    Args:
        run_dir: Where its results are; None if there are none.
    """
    if run_dir is None:
        return KeyboardInterrupt()
    return KeyboardInterrupt(f"Results so far are saved to {run_dir}; continue with --resume.")


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
        load_dataset: A function that returns the samples; -T gives its parameters.
        score_fn: A function (trajectory, sample) -> Score.
        prepare_messages: A function of a sample, or None.
        environment_factory: A function of a sample, or None.
    """

    path: Path
    config: EvalConfig
    load_dataset: Callable[..., Iterable[Sample]]
    score_fn: Callable[..., Any]
    prepare_messages: Callable[..., Any] | None
    environment_factory: Callable[..., Any] | None

    def load_samples(self, parameters: dict[str, Any], ids: Sequence[str] = ()) -> Iterable[Sample]:
        """Call `load_dataset`.

        Args:
            parameters: Its arguments by name.
            ids: The samples to keep; all, if there are none.

        Returns:
            The samples: a sequence stays one, anything else is streamed.

        Raises:
            EvalFileError: It raised (the message names the line), or returned no samples.
            InvalidInput: It has no such parameter, or there is no sample of an id.
        """
        load = bind_parameters(self.load_dataset, parameters, "-T")
        try:
            samples = load()
        except Exception as problem:
            raise self._blame(problem) from problem
        if isinstance(samples, str | dict) or not isinstance(samples, Iterable):
            raise EvalFileError(
                f"{self.path}: load_dataset returns a list of samples, got {type(samples).__name__}"
            )
        if ids:
            return _pick_samples(self._stream(samples), ids)
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


def _pick_samples(samples: Iterable[Sample], ids: Sequence[str]) -> list[Sample]:
    picked: list[Sample] = []
    others: list[str] = []
    for sample in samples:
        if sample.id in ids:
            picked.append(sample)
        elif len(others) < NAMES_COMPARED:
            others.append(str(sample.id))
    missing = {*ids} - {sample.id for sample in picked}
    for id in (id for id in ids if id in missing):
        near = difflib.get_close_matches(id, others, n=1)
        hint = f"there is {', '.join(others[:3])}, …"
        hint = f"did you mean {near[0]}?" if near else hint
        raise InvalidInput(f"--sample-id {id}: the dataset has no such sample; {hint}")
    return picked


def find_eval_file(name: Path) -> Path:
    """Find the file of an eval.

    Args:
        name: A file, or a module that can be imported, such as heldout.examples.capitals.

    Returns:
        The file; a name that is neither as it is.

    Raises:
        EvalFileError: There is no such module, or the name is that of an example.
    """
    if name.exists() or name.suffix == ".py" or not re.fullmatch(r"\w+(\.\w+)*", str(name)):
        return name
    add_working_directory()
    try:
        spec = importlib.util.find_spec(str(name))
    except ImportError:
        spec = None
    if spec is not None and spec.origin is not None and "." in str(name):
        return Path(spec.origin)
    example = Path(heldout.examples.__file__).with_name(f"{name}.py")
    hint = f"; did you mean heldout.examples.{name}?" if example.exists() else ""
    raise EvalFileError(f"there is no file {name}, nor a module of that name{hint}")


def load_eval_file(path: Path) -> EvalFile:
    """Load an eval file.

    Args:
        path: A Python file, or a module that can be imported.

    Returns:
        What it defines.

    Raises:
        EvalFileError: It cannot be loaded, or a name in it is missing, misspelled or of the wrong
            type.
    """
    from heldout.rollout import EvalDefinition

    path = find_eval_file(path)
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

Owner = type[EvalConfig] | type[Sampling] | type[Price]
SAMPLING_PREFIX = "sampling."
PRICE_PREFIX = "price."
EXTRA_BODY_PREFIX = "sampling.extra_body."
SETTING_NAMES = {
    "model": "endpoint",
    "limit": "max_samples",
    "epochs": "repeats",
    "name": "experiment_name",
}
"""Settings that are called as the options are."""


def read_settings_file(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a TOML file of settings.

    Args:
        path: The file.

    Returns:
        Settings by dotted key, and the table [dataset]: parameters of load_dataset.

    Raises:
        InvalidInput: The file cannot be read, or is not TOML.
    """
    import tomllib

    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput(f"--config: there is no file {path}") from None
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"--config {path} cannot be read: {problem}") from None
    dataset = tables.pop("dataset", {})
    settings: dict[str, Any] = {}
    for key, value in tables.items():
        if isinstance(value, dict) and key in ("sampling", "price"):
            settings |= {f"{key}.{inner}": item for inner, item in value.items()}
        else:
            settings[key] = value
    return settings, dataset


def apply_settings(
    config: EvalConfig,
    stored: Mapping[str, Any],
    settings: Iterable[str],
    options: Mapping[str, Any],
) -> EvalConfig:
    """Apply settings to a config, all at once: some are valid only together.

    Args:
        config: The config.
        stored: Settings of a file, by dotted key.
        settings: KEY=VALUE strings of the command line, which win over those.
        options: Fields that win over both.

    Returns:
        The new config.

    Raises:
        InvalidInput: A key does not exist, or a value is not of its type.
    """
    parts: dict[Owner, dict[str, Any]] = {EvalConfig: {}, Sampling: {}, Price: {}}
    extra_body: dict[str, Any] = {}
    for key, value in stored.items():
        owner, name = _find_setting(key, "--config")
        parts[owner][name] = _convert_setting(_field_types(owner)[name], value, f"--config: {key}")
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise InvalidInput(f"--set takes KEY=VALUE, got {setting!r}")
        key = key.strip()
        for prefix in (EXTRA_BODY_PREFIX, EXTRA_BODY_PREFIX.removeprefix(SAMPLING_PREFIX)):
            if key.startswith(prefix):
                _set_nested(extra_body, key.removeprefix(prefix), text)
                break
        else:
            owner, name = _find_setting(key, "--set")
            parts[owner][name] = _parse_setting(owner, name, text, key)
    if extra_body:
        parts[Sampling]["extra_body"] = {**(config.sampling.extra_body or {}), **extra_body}
    values = parts[EvalConfig]
    if parts[Sampling]:
        values["sampling"] = replace(config.sampling, **parts[Sampling])
    if parts[Price]:
        prices = {"input": 0.0, "output": 0.0} if config.price is None else asdict(config.price)
        values["price"] = Price(**{**prices, **parts[Price]})
    return replace(config, **{**values, **options})


def _set_nested(target: dict[str, Any], key: str, text: str) -> None:
    """Set the value of a dotted key; it is JSON, or else the text itself."""
    *outer, last = key.split(".")
    for name in outer:
        target = target.setdefault(name, {})
        if not isinstance(target, dict):
            raise InvalidInput(f"--set …{key}: {name} is set to a value, not to an object")
    target[last] = parse_value(text)


def _find_setting(key: str, option: str) -> tuple[Owner, str]:
    """Find what a key sets: max_tokens is short for sampling.max_tokens."""
    key = SETTING_NAMES.get(key, key)
    owners: tuple[tuple[str, Owner], ...] = (
        (PRICE_PREFIX, Price),
        (SAMPLING_PREFIX, Sampling),
        ("", EvalConfig),
        ("", Sampling),
    )
    for prefix, owner in owners:
        if key.startswith(prefix) and key.removeprefix(prefix) in _field_types(owner):
            return owner, key.removeprefix(prefix)
    known = [*_field_types(EvalConfig)]
    known += [SAMPLING_PREFIX + other for other in _field_types(Sampling)]
    bare = {name.removeprefix(SAMPLING_PREFIX): name for name in known}
    near = [name for name in known if name.startswith(key)]  # sampling.temp
    near = near or [
        bare.get(name, name)
        for name in difflib.get_close_matches(key, [*known, *bare], n=1, cutoff=0.6)
    ]
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    raise InvalidInput(f"{option} {key}: there is no such setting; {hint}")


def _parse_setting(owner: Owner, name: str, text: str, key: str) -> Any:
    kind = _field_types(owner)[name]
    if text.lower() in ("none", "null") and type(None) in typing.get_args(kind):
        return None
    if typing.get_origin(kind) is tuple and not text.startswith("["):
        return tuple(text.split(",")) if text else ()
    is_json = name == "extra_body" or typing.get_origin(kind) is tuple
    return _convert_setting(kind, parse_value(text) if is_json else text, f"--set {key}", text)


def _convert_setting(kind: Any, value: Any, where: str, text: str | None = None) -> Any:
    try:
        return msgspec.convert(value, kind, strict=text is None)
    except msgspec.MsgspecError:
        name = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
        shown = value if text is None else text
        raise InvalidInput(f"{where} takes {name.removeprefix('typing.')}, got {shown!r}") from None


def _field_types(owner: Owner) -> dict[str, Any]:
    """Return the fields that can be set, with their types; the endpoint is set as text."""
    hints = typing.get_type_hints(owner)
    parts = ("sampling", "price")
    types = {field.name: hints[field.name] for field in fields(owner) if field.name not in parts}
    if "endpoint" in types:
        types["endpoint"] = str
    return types


def list_settings() -> list[tuple[str, str]]:
    """Return each setting with its description and default."""
    rows = []
    owners: tuple[tuple[Owner, str, Any], ...] = (
        (EvalConfig, "", base_config),
        (Sampling, SAMPLING_PREFIX, base_config.sampling),
        (Price, PRICE_PREFIX, None),
    )
    for owner, prefix, defaults in owners:
        docstrings = field_docstrings(owner)
        for name in _field_types(owner):
            default = _format_default(getattr(defaults, name, ""))
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
