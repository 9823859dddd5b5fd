"""Which versions of a package an adapter supports, and whether one of them is installed."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from heldout.errors import InvalidInput


def supported_versions(first: str, below: str | None = None) -> str:
    """Return a version range as pip reads it.

    Args:
        first: The lowest supported version.
        below: The first version that is not supported; by default the next minor version.

    Returns:
        For example ">=0.5.8,<0.6".
    """
    if below is None:
        major, minor = _numbers(first)[:2]
        below = f"{major}.{minor + 1}"
    return f">={first},<{below}"


def check_version(
    package: str,
    first: str,
    *,
    why: str,
    below: str | None = None,
    install: str | None = None,
) -> None:
    """Check that a supported version of a package is installed.

    Args:
        package: The name of the package, as pip knows it.
        first: The lowest supported version.
        why: Why other versions are refused.
        below: The first version that is not supported; by default the next minor version.
        install: What to give to `pip install`; by default the package with its range.

    Raises:
        InvalidInput: The package is missing, or its version is not supported.
    """
    supported = supported_versions(first, below)
    install = install or f"{package}{supported}"
    try:
        installed = version(package)
    except PackageNotFoundError:
        raise InvalidInput(
            f"the package {package} is not installed; pip install '{install}'"
        ) from None
    upper = _numbers(supported.partition("<")[2])
    if not _numbers(first) <= _numbers(installed) < upper:
        raise InvalidInput(
            f"{package} {installed} is installed, but this adapter takes {supported}: {why}. "
            f"pip install '{install}'"
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with: (0, 5, 8) for "0.5.8.dev1"."""
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()
