"""`heldout run FILE`: evaluate an eval file, or a task of another package."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import re
import shlex
import sys
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stdout,
    suppress,
)
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
import msgspec
from docstring_parser import parse_from_object

from heldout._core.config import ALIASES, EvalConfig, Sampling, base_config
from heldout._core.format import count, printable
from heldout._core.prices import Price
from heldout._core.secrets import REDACTED
from heldout.adapters.tasks import is_task_name, load_task
from heldout.cli._cluster import ClusterOptions, cluster_options, run_as_job
from heldout.cli._load import add_working_directory, load_module, user_code
from heldout.cli._options import (
    SettingOption,
    count_option,
    epochs_option,
    limit_option,
    name_options,
    parameters_option,
    parse_key_values,
    parse_value,
    settings_options,
)
from heldout.errors import (
    EvalFileError,
    InvalidInput,
    ResumeMismatch,
    RunBusy,
    RunDirectoryError,
)
from heldout.store import runs
from heldout.store.run_dir import ARGUMENT_CHARACTERS, RunDir
from heldout.types import Sample

if TYPE_CHECKING:
    from heldout._evals.rollout import EvalDefinition
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
    epilog="Options win over --set, --set over --config, and that over the config in FILE. "
    "temperature is short for sampling.temperature. sampling.stop takes a comma-separated list, or "
    "a JSON list of strings.",
)
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--model",
    "endpoint",
    cls=SettingOption,
    metavar="MODEL",
    help="PROVIDER:MODEL, openai:MODEL@http://host/v1, hf:PATH or smollm2 (docs/models.md).",
)
@limit_option
@epochs_option
@click.option(
    "--sample-id",
    "ids",
    multiple=True,
    metavar="ID",
    help="Only the sample with this id; may be repeated.",
)
@parameters_option
@count_option("--max-concurrent", help="Items in flight at once.")
@click.option(
    "--until",
    metavar="CLAIM",
    help='Stop when this is settled: "mean>0.8", "±0.02", "better than RUN", "not worse than RUN '
    'by 0.02" (docs/adaptive.md). With --resume, "none" finishes the set.',
)
@click.option("--level", type=float, metavar="P", help="With --until: its error rate.  [0.05]")
@click.option("--keep-power", is_flag=True, help="With --until: stop later, settle more.")
@click.option(
    "--this-set",
    is_flag=True,
    help="With --until: settle what all of these samples would show, not samples like them.",
)
@click.option(
    "--cluster",
    metavar="KEY",
    help="With --until: samples that share a value of this metadata key run as one step.",
)
@name_options(
    name="Name of the run.  [default: the name of FILE]",
    resume="Continue the latest run of this name, if any, with the settings it was begun with.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="WORD",
    help="A tag to find the run by (heldout list --tag); may be repeated. Sets tags.",
)
@click.option("--note", metavar="TEXT", help="A remark that is saved with the run.")
@click.option(
    "--overwrite", is_flag=True, help="Remove the latest run of this name once this one is done."
)
@settings_options
@click.option(
    "--cache",
    is_flag=True,
    help="Take model turns from the response cache (docs/models.md).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as one line of JSON.")
@cluster_options
def command(
    files: tuple[Path, ...],
    config_file: Path | None,
    settings: tuple[str, ...],
    parameters: tuple[str, ...],
    ids: tuple[str, ...],
    overwrite: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run the eval in FILE and print its report; of several, run all and print a table.

    FILE is Python, or a module that can be imported, such as heldout.examples.capitals. It defines
    load_dataset() and score_fn(trajectory, sample), and may define config, prepare_messages and
    environment_factory. Or it defines definition, an EvalDefinition such as from_verifiers(...)
    returns. Or FILE is a task of another package, such as reasoning-gym:chain_sum; `heldout tasks`
    lists them.

    Each run gets a directory of its own, outputs/evals/NAME/TIME; NAME then means the latest.

    Of several files each is read before the first one is run. One that fails does not keep the
    others from running, and the exit code is that of the worst.

    With --until it exits with 0: the claim is true. 1: it is false. 3: inconclusive, the samples
    are used up.
    """
    if overwrite and options["resume"]:
        raise click.UsageError("--resume continues the latest run, --overwrite removes it")
    cluster = ClusterOptions(
        **{name: options.pop(name) for name in ClusterOptions.__dataclass_fields__}
    )
    cluster.check()
    if cluster.remote is not None:
        if len(files) > 1:
            raise click.UsageError("a job on a cluster runs one eval; submit one for each")
        run_as_job(cluster, files[0])
    if len(files) > 1:
        from heldout.cli import _run_many as many

        given = options["experiment_name"] is not None, bool(ids)
        many.refuse_options_of_one(*given)
        with stdout_for_json(as_json):
            prepared = [_prepare(f, config_file, settings, parameters, (), options) for f in files]
            outcomes = many.run_each(prepared, lambda each: _run(each, overwrite, cluster))
        many.print_outcomes(outcomes, as_json)
    with stdout_for_json(as_json):
        prepared_run = _prepare(files[0], config_file, settings, parameters, ids, options)
        report = _run(prepared_run, overwrite, cluster)
    if prepared_run.config.cache:
        _print_cache_use(report)
    print_run(report, as_json)
    if report.settled is not None:
        raise click.exceptions.Exit(report.settled.exit_code)


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """An eval with everything that a command line asks of it; nothing has run."""

    file: Path
    eval_file: EvalFile
    request: RunRequest
    config: EvalConfig


def _prepare(
    file: Path,
    config_file: Path | None,
    settings: Iterable[str],
    parameters: Iterable[str],
    ids: tuple[str, ...],
    options: Mapping[str, Any],
) -> PreparedRun:
    """Read an eval file and what it is to be run with."""
    eval_file = load_eval_file(file)
    request = RunRequest.of(config_file, settings, parameters, ids, options)
    if options["resume"]:
        request = complete_request(request, eval_file.config, config_file)
    config = configure(eval_file.config, request.settings)
    if config.endpoint is None:  # said before the dataset is loaded
        from heldout.models.choice import missing_model

        run_file = f"heldout run {shlex.quote(str(file))} --model"
        raise missing_model(f"{file} names no model", lambda model: f"{run_file} {model}")
    return PreparedRun(file, eval_file, request, config)


def _run(prepared: PreparedRun, overwrite: bool, cluster: ClusterOptions) -> EvalReport:
    """Run an eval in a directory of its own."""
    import asyncio

    from heldout._evals.engine import evaluate

    config = prepared.config
    definition = prepared.eval_file.define(prepared.request.dataset, prepared.request.ids)
    earlier = None
    if overwrite:
        with suppress(RunDirectoryError):  # there is none
            earlier = runs.find_latest(Path(config.output_dir) / (config.experiment_name or ""))
    with run_directory(config) as config:
        report = asyncio.run(evaluate(definition, config, executor=cluster.executor))
    if earlier is not None:
        from heldout.cli.list import remove_run

        with suppress(RunBusy):  # another process writes it
            remove_run(earlier)
    cluster.copy(report.path)
    return report


@contextmanager
def run_directory(config: EvalConfig) -> Iterator[EvalConfig]:
    """Give a run a directory of its own, which the config that is yielded names: NAME/TIME."""
    root, name = config.output_dir, config.experiment_name or "eval"
    with runs.run_directory(root, name, resume=config.resume) as path:
        try:
            yield replace(config, experiment_name=str(path.relative_to(root)))
        except KeyboardInterrupt:
            if not RunDir(path).exists():
                raise
            raise KeyboardInterrupt(
                f"Results so far are saved to {path}; continue with --resume."
            ) from None
        except ResumeMismatch as mismatch:
            mismatch.offer("leave out --resume to begin a new run")
            raise


def print_run(report: EvalReport, as_json: bool) -> None:
    """Print the report of a run that was just made."""
    from heldout.cli._tables import print_json, print_report
    from heldout.reporting.summaries import build_report

    assert report.path is not None
    if as_json:
        print_json(describe_run(report), "run" if report.settled is None else "run-until")
    else:
        print_report(build_report(report, info=RunDir(report.path).read_info()))


def describe_run(report: EvalReport) -> dict[str, Any]:
    """Return what --json prints of a run: its summary, and where it is."""
    from heldout.cli._tables import decide
    from heldout.cli.show import usage_as_dict
    from heldout.reporting.summaries import conclude_report

    about = {"path": str(report.path), "errors": report.errors, "usage": usage_as_dict(report)}
    if report.settled is not None:
        settled = {**msgspec.structs.asdict(report.settled)}
        decision, sentence = settled.pop("decision"), settled.pop("sentence")
        settled["usage_ahead"] = report.usage_ahead
        return decide(decision, sentence, {**report.summary, **about, **settled})
    text = conclude_report(report, report.summary)
    return decide(report.status, text, {**report.summary, **about})


def stdout_for_json(as_json: bool) -> AbstractContextManager[Any]:
    """Keep standard output for one line of JSON: what user code prints goes to standard error."""
    return redirect_stdout(sys.stderr) if as_json else nullcontext()


def _print_cache_use(report: EvalReport) -> None:
    """Say on standard error how many model turns of a run came from the response cache."""
    from heldout.models.cache import count_turns

    cached, sent = count_turns(report.results)
    turns, requests = count(cached, "model turn"), count(sent, "request")
    click.echo(f"From the response cache: {turns}. Sent to the model: {requests}.", err=True)


# --- Eval files ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EvalFile:
    """An eval file, or a task of another package; what it is called is the experiment's name."""

    path: Path
    config: EvalConfig
    load: Callable[..., EvalDefinition]
    """Makes the eval, given the parameters of `load_dataset`, or of the task."""

    def define(self, parameters: Mapping[str, Any], ids: Sequence[str] = ()) -> EvalDefinition:
        """Load the eval, and pick samples by `ids`; what is not a sequence is streamed."""
        with self._blame():
            definition = self.load(**parameters)
        samples = definition.samples
        if isinstance(samples, str | dict) or not isinstance(samples, Iterable):
            raise EvalFileError(
                f"{self.path}: load_dataset returns a list of samples, got {type(samples).__name__}"
            )
        if ids:
            picked = [sample for sample in self._stream(samples) if sample.id in ids]
            if missing := {*ids} - {sample.id for sample in picked}:
                raise InvalidInput(f"--sample-id: the dataset has no {', '.join(sorted(missing))}")
            return replace(definition, samples=picked)
        if isinstance(samples, Sequence):
            return definition
        return replace(definition, samples=self._stream(samples))

    def _stream(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        with self._blame():
            yield from samples

    def _blame(self) -> AbstractContextManager[None]:
        if is_task_name(str(self.path)):
            return user_code(f"{self.path} could not be loaded")
        return user_code(f"{self.path}: load_dataset failed", self.path)


def find_eval_file(name: Path) -> Path:
    """Find the file of an eval that may be named as a module, such as heldout.examples.capitals."""
    if not name.exists() and name.suffix != ".py" and re.fullmatch(r"\w+(\.\w+)+", str(name)):
        add_working_directory()
        with suppress(ImportError):
            spec = importlib.util.find_spec(str(name))
            if spec is not None and spec.origin is not None:
                return Path(spec.origin)
        raise EvalFileError(f"there is no file {name}, nor a module of that name")
    return name


def load_eval_file(path: Path) -> EvalFile:
    """Load a Python file, a module that can be imported, or a task such as reasoning-gym:gcd."""
    from heldout._evals.rollout import EvalDefinition

    name = str(path)
    if is_task_name(name):
        config = replace(base_config, experiment_name=runs.allowed_name(name))
        return EvalFile(path, config, functools.partial(load_task, name))
    path = find_eval_file(path)
    module = load_module(path)
    config = _find_config(module, path)
    if not config.experiment_name:
        config = replace(config, experiment_name=runs.allowed_name(path.stem))
    definition = getattr(module, "definition", None)
    reference = _find_function(module, path, "reference")
    if isinstance(definition, EvalDefinition):
        definition = replace(definition, reference=reference or definition.reference)
        for name in ("load_dataset", "score_fn", "prepare_messages", "environment_factory"):
            if getattr(module, name, None) is not None:
                raise EvalFileError(f"{path} has a definition and {name}: give one of the two")
        return EvalFile(path, config, lambda: definition)
    load_dataset = _find_function(module, path, "load_dataset", "() -> list[Sample]")
    score_fn = _find_function(module, path, "score_fn", "(trajectory, sample) -> Score")
    assert load_dataset is not None
    hooks = [_find_function(module, path, n) for n in ("prepare_messages", "environment_factory")]

    def define(**given: Any) -> EvalDefinition:
        definition = EvalDefinition.of(load_dataset(**given), score_fn, *hooks)
        return replace(definition, reference=reference)

    return EvalFile(path, config, define)


def _find_config(module: ModuleType, path: Path) -> EvalConfig:
    config = getattr(module, "config", None)
    if isinstance(config, EvalConfig):
        return config
    if config is not None:
        raise EvalFileError(f"{path}: config must be an EvalConfig, got {type(config).__name__}")
    for name, value in vars(module).items():
        # Running with the defaults instead would be a surprise.
        if isinstance(value, EvalConfig) and value is not base_config:
            raise EvalFileError(
                f"{path} has an EvalConfig called {name}, and no config; rename it to config"
            )
    return base_config


def _find_function(
    module: ModuleType, path: Path, name: str, shape: str = ""
) -> Callable[..., Any] | None:
    """Find a function of an eval file; one without a shape may be left out."""
    value = getattr(module, name, None)
    if callable(value):
        return value  # type: ignore[no-any-return]
    if value is not None:
        kind = f"a function {shape}".strip()
        raise EvalFileError(f"{path}: {name} must be {kind}, got {type(value).__name__}")
    functions = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
    near = difflib.get_close_matches(name, functions, n=1, cutoff=0.5 if shape else 0.85)
    if shape:
        hint = f"did you mean {near[0]}?" if near else None
        raise EvalFileError(f"{path} defines no function {name}{shape}", hint=hint)
    if near:  # misspelled, it would run another eval than was meant
        raise EvalFileError(f"{path} defines {near[0]}, which is not used; is it {name}?")
    return None


# --- Settings -----------------------------------------------------------------------------------

SHOWN = {setting: alias for alias, setting in ALIASES.items()}
"""What the command line calls settings that have another name in Python."""
OWNERS = {"": EvalConfig, "sampling.": Sampling, "price.": Price}
"""The classes whose fields are settings, by the prefix of their names."""
EXTRA_BODY = "sampling.extra_body"


@cache
def setting_types() -> dict[str, Any]:
    """Return the type of each setting by its dotted key."""
    types: dict[str, Any] = {}
    for prefix, owner in OWNERS.items():
        types |= {prefix + name: kind for name, kind in typing.get_type_hints(owner).items()}
    del types["sampling"], types["price"], types["sampling.given"]
    return types | {"endpoint": str, "on_error": str}  # EvalConfig says what they can be


def read_settings_file(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a TOML file: settings by dotted key, and the table [dataset] for load_dataset."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"--config {path} cannot be read: {problem}") from None
    parts = {part: tables.pop(part, {}) for part in ("dataset", "sampling", "price")}
    for part, table in parts.items():
        if not isinstance(table, dict):
            raise InvalidInput(
                f"--config {path}: {part} is a table, [{part}] with a line for each key, "
                f"got {table!r:.200}"
            )
    dataset = parts.pop("dataset")
    for part, table in parts.items():
        tables |= {f"{part}.{key}": value for key, value in table.items()}
    return tables, dataset


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a command line of `heldout run` asks for, beside what is in the eval file."""

    settings: Mapping[str, Any]
    """Values by dotted key; a field of extra_body has a key of its own."""
    dataset: Mapping[str, Any]
    """Parameters of load_dataset."""
    ids: tuple[str, ...]
    """Samples to run; all of them if there is none."""

    @classmethod
    def of(
        cls,
        config_file: Path | None,
        settings: Iterable[str],
        parameters: Iterable[str],
        ids: tuple[str, ...],
        options: Mapping[str, Any],
    ) -> RunRequest:
        """Read a command line: options win over --set, and that over the file of --config.

        Args:
            config_file: The file of --config.
            settings: KEY=VALUE of each --set.
            parameters: KEY=VALUE of each -T.
            ids: Each --sample-id.
            options: Values of the options that are fields of `EvalConfig`.

        Returns:
            What is asked for.

        Raises:
            InvalidInput: There is no such setting, or a value is not of its type.
        """
        stored, dataset = ({}, {}) if config_file is None else read_settings_file(config_file)
        values = {
            key: _parse_setting(key, value, f"--config: {name}")
            for key, (name, value) in _find_settings(stored, "--config").items()
        }
        texts: dict[str, str] = {}
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals:
                raise InvalidInput(f"--set takes KEY=VALUE, got {setting!r}")
            texts[name.strip()] = text
        for key, (name, text) in _find_settings(texts, "--set").items():
            is_field = key.startswith(f"{EXTRA_BODY}.")
            values[key] = (
                parse_value(text) if is_field else _parse_setting(key, text, f"--set {name}")
            )
        values |= {name: value for name, value in options.items() if value not in (None, (), False)}
        return cls(values, dataset | parse_key_values(parameters, "-T"), ids)


def complete_request(
    request: RunRequest, config: EvalConfig, config_file: Path | None
) -> RunRequest:
    """Add what the run to resume was asked for, where this command line does not say.

    Args:
        request: What this command line asks for. It alone says which run is resumed.
        config: The eval file's.
        config_file: The file of this command line's --config; if there is one, the run's is not
            read.

    Returns:
        What is asked for by both.

    Raises:
        InvalidInput: A setting of the run was not saved, as it is a key or too long.
    """
    from heldout.models.choice import stored_model

    where = {"output_dir": config.output_dir, "experiment_name": config.experiment_name}
    where = {key: request.settings.get(key, value) for key, value in where.items()}
    try:
        path = runs.find_latest(Path(where["output_dir"] or "") / (where["experiment_name"] or ""))
        info = RunDir(path).read_info()
    except (RunDirectoryError, InvalidInput):  # there is none, or entering it says what is wrong
        return request
    begun_by = f"heldout run {shlex.join(info.run_arguments or ())}"
    # What the run was begun with need not name its model: a script did, or a file that has changed.
    model = stored_model(info.config) if config.endpoint is None else None
    unnamed = {} if model is None else {"endpoint": model}
    try:
        stored = command.make_context("run", info.run_arguments or []).params
    except click.UsageError:  # of a script, or of a version that had other options
        begun_by = shlex.join(info.command or ())
        click.echo(printable(f"Resuming {path}, which was begun by: {begun_by}"), err=True)
        return replace(request, settings={**unnamed, **request.settings})
    options = {name: stored[name] for name in setting_types() if name in stored}
    before = RunRequest.of(
        stored["config_file"] if config_file is None else None,
        stored["settings"],
        stored["parameters"],
        stored["ids"],
        {**options, "resume": False},
    )
    settings = {key: value for key, value in before.settings.items() if key not in where}
    taken = [(key, value) for key, value in settings.items() if key not in request.settings]
    taken += [(key, value) for key, value in before.dataset.items() if key not in request.dataset]
    if lost := [SHOWN.get(key, key) for key, value in taken if _is_incomplete(value)]:
        raise InvalidInput(
            f"{path} was begun with {', '.join(lost)}, of which not all was saved. Type the whole "
            f"command: {begun_by} --resume"
        )
    if taken or (before.ids and not request.ids):
        click.echo(printable(f"Resuming {path}, as it was begun by: {begun_by}"), err=True)
    return RunRequest(
        {**unnamed, **settings, **request.settings},
        {**before.dataset, **request.dataset},
        request.ids or before.ids,
    )


def _is_incomplete(value: Any) -> bool:
    """Return whether the saved command line has less of a value than was typed."""
    text = str(value)
    return REDACTED in text or (text.endswith("…") and len(text) > ARGUMENT_CHARACTERS // 2)


def configure(config: EvalConfig, settings: Mapping[str, Any]) -> EvalConfig:
    """Apply settings by dotted key to a config, all at once: some are valid only together."""
    parts: dict[str, dict[str, Any]] = {"": {}, "sampling": {}, "price": {}, EXTRA_BODY: {}}
    for key, value in settings.items():
        part, _, name = key.rpartition(".")
        if part.startswith(EXTRA_BODY):
            part, name = EXTRA_BODY, key.removeprefix(f"{EXTRA_BODY}.")
        parts[part][name] = value
    changes, sampling = parts[""], parts["sampling"]
    if parts[EXTRA_BODY]:
        body = deepcopy(sampling.get("extra_body", config.sampling.extra_body) or {})
        sampling["extra_body"] = body
        for name, value in parts[EXTRA_BODY].items():
            _set_field(body, name, value)
    if sampling:
        changes["sampling"] = config.sampling.having(**sampling)
    if parts["price"]:
        changes["price"] = replace(config.price or Price(0, 0), **parts["price"])
    try:
        return replace(config, **changes)
    except InvalidInput as problem:  # in the words of the command line
        [said] = problem.args
        said = re.sub(r"\w+", lambda word: SHOWN.get(word[0], word[0]), said, count=1)
        raise InvalidInput(said, hint=problem.hint) from None


def _set_field(body: dict[str, Any], name: str, value: Any) -> None:
    """Set a field of extra_body; `name` is its dotted path."""
    *outer, last = name.split(".")
    for part in outer:
        body = body.setdefault(part, {})
        if not isinstance(body, dict):
            raise InvalidInput(
                f"--set extra_body.{name}: {part} is {body!r:.200} already, and has no fields"
            )
    body[last] = value


def _find_settings(given: Mapping[str, Any], option: str) -> dict[str, tuple[str, Any]]:
    """Find the whole key of each setting, which comes with the name it was given by."""
    found: dict[str, tuple[str, Any]] = {}
    for name, value in given.items():
        key = _find_setting(name, option)
        if key in found:
            both = f"{found[key][0]} and {name}"
            raise InvalidInput(f"{option}: {both} are one setting, and both are given; give one")
        found[key] = name, value
    return found


def _find_setting(name: str, option: str) -> str:
    """Find the whole key of a setting: max_tokens is short for sampling.max_tokens."""
    if option == "--set" and (match := re.fullmatch(r"(?:sampling\.)?(extra_body\..+)", name)):
        return f"sampling.{match[1]}"
    name = ALIASES.get(name, name)
    known = setting_types()
    for key in (name, f"sampling.{name}"):
        if key in known:
            return key
    shown = [SHOWN.get(key, key) for key in known]
    names = [*shown, *(key.removeprefix("sampling.") for key in known)]
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        hint = f"did you mean {near[0]}?"
        raise InvalidInput(f"{option} {name}: there is no such setting", hint=hint)
    raise InvalidInput(f"{option} {name}: there is no such setting; there are {', '.join(shown)}")


def _parse_setting(key: str, value: Any, where: str) -> Any:
    """Convert a value to the type of a setting: text of the command line, or a value of TOML."""
    kind, parsed = setting_types()[key], value
    is_tuple = typing.get_origin(kind) is tuple
    if isinstance(value, str):
        if value.lower() in ("none", "null") and type(None) in typing.get_args(kind):
            return None
        if is_tuple and not value.startswith("["):
            parsed = value.split(",") if value else []
        elif is_tuple or key == EXTRA_BODY:
            parsed = parse_value(value)
    try:
        return msgspec.convert(parsed, kind, strict=False)
    except msgspec.MsgspecError as problem:
        raise InvalidInput(f"{where}={value}: {problem}") from None


def list_settings() -> list[tuple[str, str]]:
    """Return each setting with its description and default."""
    rows = []
    defaults = {"": base_config, "sampling.": base_config.sampling}
    for prefix, owner in OWNERS.items():
        for field in parse_from_object(owner).params:
            key = prefix + field.arg_name
            if key not in setting_types():
                continue
            text = " ".join((field.description or "").split())
            default = getattr(defaults.get(prefix), field.arg_name, ())
            if key == "experiment_name":  # load_eval_file fills it in
                text += " [default: the name of FILE]"
            elif default != () and key != "endpoint":
                text += f" [default: {msgspec.json.encode(default).decode()}]".replace('"', "")
            rows.append((SHOWN.get(key, key), text))
    return rows
