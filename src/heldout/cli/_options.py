"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from heldout._core.config import ALIASES
from heldout.errors import InvalidInput

Command = TypeVar("Command", bound=Callable[..., Any])


class SettingOption(click.Option):
    """An option that is a setting, and is taken by its name in Python, too: --endpoint."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser know both names; help and completion know the option's alone."""
        super().add_to_parser(parser, ctx)
        parser.add_option(self, [self._in_python], dest=self._in_python)

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Take the value of either name; UsageError where both are given."""
        if self._in_python in opts:
            if self.name in opts:
                both = f"{self.opts[-1]} and {self._in_python}"
                raise click.UsageError(f"{both} are one setting, and both are given; give one", ctx)
            opts = {**opts, self.name or "": opts[self._in_python]}
        return super().handle_parse_result(ctx, opts, args)

    @property
    def _in_python(self) -> str:
        """The other name, which is no parameter's name, either."""
        return "--" + ALIASES[self.opts[-1].removeprefix("--")].replace("_", "-")


def count_option(
    *names: str,
    help: str,
    default: int | None = None,
    cls: type[click.Option] = click.Option,
) -> Callable[[Command], Command]:
    """Add an option that takes a whole number of at least 1."""
    return click.option(
        *names,
        cls=cls,
        type=click.IntRange(1),
        metavar="N",
        default=default,
        show_default=default is not None,
        help=help,
    )


def json_option(command: Command) -> Command:
    """Add --json, for one line of JSON."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")(command)


limit_option = count_option(
    "-n", "--limit", "max_samples", cls=SettingOption, help="Only the first N samples."
)
epochs_option = count_option(
    "--epochs", "repeats", cls=SettingOption, help="Attempts of each sample."
)


def settings_options(command: Command) -> Command:
    """Add --config and --set, for all that has no option of its own."""
    config = click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE.toml",
        help="Settings in TOML: keys as for --set, and a table [dataset] for -T.",
    )
    each = click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any setting (heldout run --help lists them).",
    )
    return config(each(command))


def name_options(*, name: str, resume: str) -> Callable[[Command], Command]:
    """Add --name, --output-dir and --resume, with what is named and what is continued."""

    def add(command: Command) -> Command:
        named = click.option(
            "--name", "experiment_name", cls=SettingOption, metavar="NAME", help=name
        )
        output_dir = click.option(
            "--output-dir",
            metavar="DIR",
            help="Where run directories are made.  [default: outputs/evals]",
        )
        resumed = click.option("--resume", is_flag=True, help=resume)
        return named(output_dir(resumed(command)))

    return add


def parameters_option(command: Command) -> Command:
    """Add -T, the parameters of a dataset."""
    return click.option(
        "-T",
        "parameters",
        multiple=True,
        metavar="KEY=VALUE",
        help="A parameter of load_dataset in FILE, or of the task: -T split=test.",
    )(command)


def format_options(command: Command) -> Command:
    """Add --json and --markdown, which give `format`: "json", "markdown" or None."""
    json = click.option("--json", "format", flag_value="json", help="Print JSON.")
    markdown = click.option(
        "--markdown", "format", flag_value="markdown", help="Print Markdown for GitHub."
    )
    return json(markdown(command))


def parse_key_values(pairs: Iterable[str], option: str) -> dict[str, Any]:
    """Parse KEY=VALUE arguments of an option; values are as `parse_value` reads them."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise InvalidInput(f"{option} takes KEY=VALUE, got {pair!r}")
        values[key.strip()] = parse_value(text)
    return values


def parse_value(text: str) -> Any:
    """Parse a value of the command line: JSON (3, true, null, [1, 2]), or else the text itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
