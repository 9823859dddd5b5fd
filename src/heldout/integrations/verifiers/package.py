"""The installed package, if it is one that this adapter was made for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from heldout.integrations.versions import check_version, versions_from

FIRST = "0.3"
VERSIONS = versions_from(FIRST)


def verifiers_package() -> Any:
    """The package, if it is there in a version that has what is adapted here."""
    check_version("verifiers", FIRST, why="0.4 removed the classic environments and rubrics")
    return import_module("verifiers")
