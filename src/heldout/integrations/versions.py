"""Which versions of a package an adapter was made for, and whether one of them is installed."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from heldout.errors import InvalidInput


def versions_from(first: str) -> str:
    """Those from `first` on with the same two leading numbers: ">=0.5.8,<0.6" for "0.5.8"."""
    major, minor = _numbers(first)[:2]
    return f">={first},<{major}.{minor + 1}"


def check_version(package: str, first: str, *, why: str) -> None:
    """That one of `versions_from(first)` is installed; `why` says why others will not do."""
    wanted = f"{package}{versions_from(first)}"
    try:
        found = version(package)
    except PackageNotFoundError:
        raise InvalidInput(
            f"the package {package} is not installed; pip install '{wanted}'"
        ) from None
    there, least = _numbers(found), _numbers(first)
    if there[:2] != least[:2] or there < least:
        raise InvalidInput(
            f"{package} {found} is installed, but this adapter takes {versions_from(first)}: "
            f"{why}. pip install '{wanted}'"
        )


def _numbers(version: str) -> tuple[int, ...]:
    """Those it begins with: (0, 5, 8) of "0.5.8.dev1"."""
    leading = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()
