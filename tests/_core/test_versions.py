"""Which versions of a package an adapter takes."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError

import pytest

from heldout._core import versions
from heldout.errors import InvalidInput


def check(found: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(versions, "version", version)
    versions.check_version("thing", ">=1.16,<2", why="it moves")


@pytest.mark.parametrize("found", ["1.16.0", "1.17.0.dev0", "1.100"])
def test_versions_that_were_tested_are_taken(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(found, monkeypatch)


@pytest.mark.parametrize("found", ["0.24.0", "1.15.9", "1.16rc1", "2.0.0.dev0", "2.0"])
def test_others_are_refused(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = f"thing {found} is installed, .* takes >=1.16,<2: it moves. pip install 'thing>=1.16,<2'"
    with pytest.raises(InvalidInput, match=said):
        check(found, monkeypatch)


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="pip install 'thing>=1.16,<2'"):
        check(None, monkeypatch)
