"""The installed package, if it is one that this adapter was made for."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from heldout.errors import InvalidInput

VERSIONS = ">=0.5,<0.6"


def cookbook(module: str) -> Any:
    """A module of the package, such as `renderers`, if the package is there in a version whose
    evaluators and loops are the ones that are adapted here."""
    try:
        found = version("tinker-cookbook")
    except PackageNotFoundError:
        raise InvalidInput(
            f"the package tinker-cookbook is not installed; pip install 'tinker-cookbook{VERSIONS}'"
        ) from None
    if not re.match(r"0\.5(?!\d)", found):
        raise InvalidInput(
            f"tinker-cookbook {found} is installed, but this adapter takes {VERSIONS}: how its "
            f"loops call evaluators is not promised. pip install 'tinker-cookbook{VERSIONS}'"
        )
    return import_module(f"tinker_cookbook.{module}")


def sdk() -> Any:
    """The package that talks to the service, which comes with it."""
    cookbook("eval.evaluators")
    return import_module("tinker")
