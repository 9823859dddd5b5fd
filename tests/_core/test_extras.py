"""What people are told to install: packages by name, as the metadata of heldout has them."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from heldout._core import extras
from heldout._core.extras import install_hint

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
USERS = [extra for extra in EXTRAS if not extra.startswith("dev")]


def declared(extra: str) -> Iterator[str]:
    """Yield what pyproject.toml has for an extra, those of heldout in it resolved."""
    for line in EXTRAS[extra]:
        requirement = Requirement(line)
        if requirement.name != "heldout":
            yield str(requirement)
        for inner in sorted(requirement.extras) if requirement.name == "heldout" else ():
            yield from declared(inner)


@pytest.mark.parametrize("extra", USERS)
def test_the_advice_for_an_extra_names_its_packages_and_their_bounds(extra: str) -> None:
    words = shlex.split(install_hint(extra))  # as a shell reads it: no bound is a redirection
    assert words[:2] == ["pip", "install"]
    assert {str(Requirement(word)) for word in words[2:]} == {*declared(extra)}
    assert len(words) == 2 + len({*declared(extra)})


def test_the_advice_can_be_copied_into_a_shell_and_reads_from_the_lower_bound() -> None:
    assert install_hint("lm-eval") == "pip install 'lm-eval>=0.4.13,<0.5'"
    assert install_hint("ray") == "pip install 'ray[default]>=2.50'"
    assert install_hint("frames", only="polars") == "pip install 'polars>=1.0'"


METADATA = [
    "numpy>=1.26",
    "heldout[local]; extra == 'trl'",
    "trl (<2,>=1.16) ; extra == 'trl'",
    'torch>=2.6; python_version >= "3.11" and extra == "local"',
    "torch>=2.6; extra == 'other-local'",
]
"""As several build tools write it: extras unresolved, bounds in brackets, more markers."""


def test_extras_within_extras_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "requires", lambda name: METADATA)
    assert install_hint("trl") == "pip install 'torch>=2.6' 'trl>=1.16,<2'"


def test_without_metadata_the_advice_says_where_the_packages_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def requires(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", requires)
    assert install_hint("trl") == "install the extra trl that heldout's pyproject.toml lists"


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("adapters.lm_eval", "lm-eval"),
        ("adapters.reasoning_gym", "reasoning-gym"),
        ("adapters.step_environments.textarena", "textarena"),
        ("adapters.step_environments.openenv", "openenv"),
        ("adapters.inspect.load", "inspect"),
        ("adapters.verifiers", "verifiers"),
        ("integrations.trl.rollout_func", "trl"),
    ],
)
def test_an_adapter_takes_the_versions_that_its_extra_installs(module: str, extra: str) -> None:
    [bounds] = [r.specifier for r in map(Requirement, declared(extra)) if r.name.startswith(extra)]
    found = import_module(f"heldout.{module}")
    adapter = getattr(found, "ADAPTER", None)
    assert SpecifierSet(found.SUPPORTED if adapter is None else adapter.supported) == bounds
