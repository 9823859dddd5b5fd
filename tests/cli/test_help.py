"""What the help says, and what is said to commands that are none."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib.metadata import version

import click

from heldout import EvalConfig, Sampling
from heldout.cli import rescore, run, tool_calls
from heldout.cli.run import list_settings
from heldout.prices import Price
from tests.cli.conftest import Heldout


def test_the_help_names_every_command(heldout: Heldout) -> None:
    outcome = heldout("--help")
    assert outcome.code == 0
    for name in ("run", "list", "show", "curve", "check"):
        assert re.search(rf"^  {name} +[A-Z]", outcome.out, re.MULTILINE)
    assert heldout().out == outcome.out
    assert heldout("-h").out == outcome.out


def test_the_version_is_that_of_the_package(heldout: Heldout) -> None:
    outcome = heldout("--version")
    assert (outcome.code, outcome.out) == (0, f"heldout {version('heldout')}\n")


def test_a_command_that_is_not_there_is_refused_with_the_nearest(heldout: Heldout) -> None:
    outcome = heldout("shwo")
    assert outcome.code == 2
    assert "there is no command 'shwo'; did you mean show?" in outcome.err
    assert "there are run, tasks, list, show, compare" in heldout("xyzzy").err
    assert "did you mean run quiz.py?" in heldout("quiz.py").err


def test_an_option_that_sets_a_setting_says_which() -> None:
    settings = {field.name for field in fields(EvalConfig)}
    for command in (run.command, rescore.command, tool_calls.command):
        for option in command.params:
            if isinstance(option, click.Option) and option.name in settings:
                assert f"Sets {option.name}." in (option.help or ""), (command.name, option.opts)
    renamed = {option.name for option in run.command.params} & settings
    assert renamed >= {"endpoint", "max_samples", "repeats", "experiment_name"}


def test_the_help_of_run_lists_every_setting_with_its_text_and_default(heldout: Heldout) -> None:
    out = heldout("run", "--help").out
    settings = out.partition("Settings (--set KEY=VALUE):\n")[2]
    assert settings
    flat = " ".join(settings.split())
    names = [f.name for f in fields(EvalConfig) if f.name not in ("sampling", "price")]
    names += [f"sampling.{f.name}" for f in fields(Sampling)]
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
