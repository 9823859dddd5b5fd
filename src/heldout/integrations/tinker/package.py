"""The installed package, if it is one that this adapter was made for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from heldout.integrations.versions import check_version

FIRST = "0.5.8"


def cookbook(module: str) -> Any:
    """A module of the package, such as `renderers`, if the package is there in a version whose
    evaluators and loops are the ones that are adapted here."""
    check_version("tinker-cookbook", FIRST, why="how its loops call evaluators is not promised")
    return import_module(f"tinker_cookbook.{module}")


def sdk() -> Any:
    """The package that talks to the service, which comes with it."""
    cookbook("eval.evaluators")
    return import_module("tinker")
