"""The installed package, if it is one that this adapter was made for."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from heldout.errors import InvalidInput

VERSIONS = ">=0.3,<0.4"


def verifiers_package() -> Any:
    """The package, if it is there in a version that has what is adapted here."""
    try:
        found = version("verifiers")
    except PackageNotFoundError:
        raise InvalidInput(
            f"the package verifiers is not installed; pip install 'verifiers{VERSIONS}'"
        ) from None
    if not re.match(r"0\.3(?!\d)", found):
        raise InvalidInput(
            f"verifiers {found} is installed, but this adapter takes {VERSIONS}: 0.4 removed the "
            f"classic environments and rubrics. pip install 'verifiers{VERSIONS}'"
        )
    return import_module("verifiers")
