"""Plugins: packages that register tasks, models and loggers, with real metadata on the path."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from heldout._core.config import EvalConfig
from heldout._core.plugins import find_plugins
from heldout.adapters.tasks import list_tasks, load_task
from heldout.cli.main import run_cli
from heldout.errors import InvalidInput
from heldout.training.loggers import Loggers

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "spelling_bee"


def install(folder: Path, name: str, groups: dict[str, dict[str, str]]) -> None:
    """Write what an installer writes of a package: its metadata, with its entry points."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def example(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(site, project["name"], project["entry-points"])
    shutil.copy(EXAMPLE / "spelling_bee.py", site)
    monkeypatch.delitem(sys.modules, "spelling_bee", raising=False)
    return site


def test_the_example_is_installed_by_pip_and_runs_in_a_new_process(tmp_path: Path) -> None:
    """In a folder of its own, with the build backend that is here: nothing is downloaded."""
    source, site = tmp_path / "source", tmp_path / "site"
    shutil.copytree(EXAMPLE, source)  # builds write beside their source
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
    built = subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(site), str(source)],
        env=env,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    assert {path.name for path in site.iterdir()} - {"__pycache__"} == {
        "spelling_bee.py",
        "spelling_bee-1.0.dist-info",
    }
    command = [
        *(sys.executable, "-m", "heldout", "run", "spelling:short"),
        *("--model", "speller:careful", "-T", "upper=false", "--json"),
    ]
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["n"], summary["mean"], summary["metric_letters"]) == (3, 1.0, 1.0)


def test_a_plugin_adds_tasks_a_model_and_a_logger(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {task.name for task in list_tasks("spelling")} == {"spelling:short", "spelling:long"}
    assert run_cli(["run", "spelling:long", "--model", "speller:careless"]) == 0
    assert "0.0" in capsys.readouterr().out
    with Loggers("spelling-log") as loggers:
        loggers.log("words", 30, {"eval_reward": 1.0})
    assert "spelt words at 30" in capsys.readouterr().out


def test_the_example_imports_nothing_private() -> None:
    text = (EXAMPLE / "spelling_bee.py").read_text()
    assert "heldout._" not in text
    assert len(text.splitlines()) <= 50


def test_a_plugin_that_breaks_is_named_and_the_others_are_there(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(example, "broken-thing", {"heldout.tasks": {"broken": "broken_thing:ADAPTER"}})
    (example / "broken_thing.py").write_text("raise OSError('no licence here')\n")
    with pytest.raises(InvalidInput, match=r"'broken' of broken-thing .*OSError: no licence here"):
        load_task("broken:x")
    assert run_cli(["tasks"]) == 0
    table = capsys.readouterr().out
    assert "no licence" in table
    assert "spelling" in table
    assert len(list(list_tasks("spelling"))) == 2


@pytest.mark.parametrize("prefix", ["spelling", "reasoning-gym"])
def test_two_packages_that_claim_a_prefix_are_both_named(example: Path, prefix: str) -> None:
    install(example, "other-bee", {"heldout.tasks": {prefix: "spelling_bee:load"}})
    with pytest.raises(InvalidInput, match=f"other-bee .* both register '{prefix}'"):
        load_task(f"{prefix}:short")


def test_a_prefix_of_heldouts_own_models_cannot_be_claimed(example: Path) -> None:
    install(example, "evil", {"heldout.models": {"smollm2": "spelling_bee:open_speller"}})
    from heldout.models import open_endpoint

    with pytest.raises(InvalidInput, match="evil .* registers 'smollm2'"):
        open_endpoint("smollm2", max_concurrent=1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("spelling_bee:LISTS", "must be a TaskAdapter, got"),
        ("spelling_bee:ADAPTER", "calls itself 'spelling'"),
    ],
)
def test_what_is_no_adapter_is_refused(example: Path, value: str, message: str) -> None:
    install(example, "wrong", {"heldout.tasks": {"wrong": value}})
    with pytest.raises(InvalidInput, match=message):
        load_task("wrong:x")


def test_a_model_is_known_as_long_as_its_plugin_is_installed(example: Path) -> None:
    assert EvalConfig(endpoint="speller:careful").endpoint == "speller:careful"
    with pytest.raises(InvalidInput, match="is not one of openai:MODEL"):
        EvalConfig(endpoint="typesetter:careful")
    with pytest.raises(InvalidInput, match="there is no logger 'nothing'; there are mlflow"):
        Loggers("nothing")


def test_a_package_that_is_on_the_path_twice_is_one(site: Path, tmp_path: Path) -> None:
    for folder in (site, tmp_path):
        install(folder, "twice", {"heldout.tasks": {"twice": "twice:ADAPTER"}})
    sys.path.insert(0, str(tmp_path))
    try:
        assert len(find_plugins("heldout.tasks")["twice"]) == 1
    finally:
        sys.path.remove(str(tmp_path))


def test_what_is_registered_is_what_the_project_says() -> None:
    """It fails where the environment was made before an entry point was added: make .venv/dev."""
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group, entries in stated.items():
        found = {entry.name: entry.value for entry in entry_points(group=group)}
        assert entries.items() <= found.items()
