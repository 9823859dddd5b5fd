"""What the help says, and what is said to commands that are none."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib.metadata import version

import click

from heldout import EvalConfig
from heldout._core.config import ALIASES, SAMPLING_FIELDS
from heldout._core.prices import Price
from heldout.cli import follow, rescore, run, tool_calls
from heldout.cli.main import COMMANDS
from heldout.cli.run import SHOWN, list_settings
from tests.cli.conftest import Heldout


def test_the_help_names_every_command(heldout: Heldout) -> None:
    outcome = heldout("--help")
    assert outcome.code == 0
    titles = "Run and look|Compare and decide|Training|Judges and tools|Housekeeping"
    _, *parts = re.split(rf"^(?:{titles}|Exit codes of all commands):$", outcome.out, flags=re.M)
    *groups, codes = [re.findall(r"^  ([a-z-]+) +[A-Z]", part, re.MULTILINE) for part in parts]
    assert (len(groups), codes) == (5, [])
    assert [name for group in groups for name in group] == [*COMMANDS]
    assert groups[1] == ["compare", "gate", "race", "power", "aggregate"]
    assert re.search(r"^  check +Check .*sandbox", outcome.out, re.MULTILINE)
    assert max(map(len, outcome.out.splitlines())) <= 80
    starts = {len(m[0]) for m in re.finditer(r"^  [a-z-]+ +(?=[A-Z])", outcome.out, re.MULTILINE)}
    assert len(starts) == 1  # the texts of all groups are aligned
    assert heldout().out == outcome.out
    assert heldout("-h").out == outcome.out


def test_the_version_is_that_of_the_package(heldout: Heldout) -> None:
    outcome = heldout("--version")
    assert (outcome.code, outcome.out) == (0, f"heldout {version('heldout')}\n")


def test_a_command_that_is_not_there_is_refused_with_the_nearest(heldout: Heldout) -> None:
    outcome = heldout("shwo")
    assert outcome.code == 2
    assert "there is no command 'shwo'; did you mean show?" in outcome.err
    assert "there are run, rescore, tasks, list, show" in heldout("xyzzy").err
    assert "did you mean run quiz.py?" in heldout("quiz.py").err


def test_an_option_is_called_as_its_setting_and_its_other_name_is_shown_nowhere(
    heldout: Heldout,
) -> None:
    shown = {f.name: SHOWN.get(f.name, f.name) for f in fields(EvalConfig)}
    for command in (run.command, rescore.command, tool_calls.command, follow.command):
        for option in command.params:
            if isinstance(option, click.Option) and option.name in {*shown} - {"tags"}:
                assert f"--{shown[option.name].replace('_', '-')}" in option.opts, option.opts
        words = ["curve", "follow"] if command is follow.command else [command.name or ""]
        out = heldout(*words, "--help").out
        for other in ALIASES.values():
            assert f"--{other.replace('_', '-')}" not in out
            assert not re.search(rf"^  {other} |Sets {other}", out, re.MULTILINE)
    renamed = {option.name for option in run.command.params} & shown.keys()
    assert renamed >= {"endpoint", "max_samples", "repeats", "experiment_name"}


def test_the_help_of_run_lists_every_setting_with_its_text_and_default(heldout: Heldout) -> None:
    out = heldout("run", "--help").out
    settings = out.partition("Settings (--set KEY=VALUE):\n")[2]
    assert settings
    flat = " ".join(settings.split())
    own = [f.name for f in fields(EvalConfig) if f.name not in ("sampling", "price")]
    names = [SHOWN.get(name, name) for name in own]
    names += [f"sampling.{f.name}" for f in SAMPLING_FIELDS]
    names += [f"price.{f.name}" for f in fields(Price)]
    rows = dict(list_settings())
    assert [*rows] == names
    assert all(text[0] != "[" for text in rows.values())
    for name, text in rows.items():
        assert f"{name} {text}" in flat
    assert rows["max_concurrent"] == "Items in flight at once. [default: 16]"
    assert rows["progress"].endswith("[default: true]")
    assert rows["timeout"].endswith("[default: 600.0]")
    assert rows["sampling.temperature"].startswith("0 is greedy. ")
    assert rows["sampling.temperature"].endswith("[default: 0.0]")
    assert rows["sampling.stop"] == "Stop sequences: texts that end a model turn."
    assert max(map(len, out.splitlines())) <= 80
