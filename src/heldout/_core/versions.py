"""Which version of a package is installed, and whether it is one that an adapter supports."""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError, version

from heldout.errors import InvalidInput


def check_version(package: str, supported: str, *, why: str) -> str:
    """Check that a supported version of a package is installed.

    Args:
        package: The name of the package, as pip knows it.
        supported: The range of versions, as pip reads it.
        why: Why other versions are refused.

    Returns:
        The installed version.

    Raises:
        InvalidInput: The package is missing, or its version is not supported.
    """
    install = f"pip install '{package}{supported}'"
    try:
        installed = version(package)
    except PackageNotFoundError:
        raise InvalidInput(f"the package {package} is not installed: {install}") from None
    from packaging.specifiers import SpecifierSet  # which all these packages depend on

    if not SpecifierSet(supported).contains(installed, prereleases=True):
        raise InvalidInput(
            f"{package} {installed} is installed, but this adapter takes {supported}: {why}. "
            f"{install}"
        )
    return installed


def is_editable(package: Distribution) -> bool:
    """Say whether a package's code may differ from that of its version."""
    origin = json.loads(package.read_text("direct_url.json") or "{}")
    return bool(origin.get("dir_info", {}).get("editable"))
