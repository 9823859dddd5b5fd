"""How to install what an extra of heldout has: its packages by name, with their bounds.

heldout's own name is not in the advice: which heldout an index has, if any, is not known here. What
its extras are is in the metadata of the heldout that is installed, be it a checkout or a wheel.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires

from heldout.errors import InvalidInput

_REQUIREMENT = re.compile(
    r"""(?P<package>[\w.-]+)\ *(\[(?P<extras>[^]]*)\])?\ *\(?(?P<bounds>[^;()]*)\)?\ *"""
    r"""(;.*\bextra\ *==\ *['"](?P<extra>[\w.-]+)['"].*)?""",
    re.VERBOSE,
)
"""A line of the metadata: `trl<2,>=1.16; extra == 'trl'`."""


def install_hint(extra: str, *, only: str | None = None) -> str:
    """Return the command that installs the packages of an extra, to be copied into a shell.

    Args:
        extra: The extra's name.
        only: One of its packages, where the others are not needed.
    """
    packages = {
        package: requirement
        for package, requirement in _requirements(extra)
        if only is None or package == only
    }
    if not packages:  # heldout runs from files that were never installed, or are newer than that
        return f"install the extra {extra} that heldout's pyproject.toml lists"
    return f"pip install {shlex.join(packages.values())}"


def missing_extra(need: str, extra: str) -> InvalidInput:
    """Return the error for a package that is not installed.

    Args:
        need: What needs which package.
        extra: The extra of heldout that has it.
    """
    return InvalidInput(f"{need}: {install_hint(extra)}")


def _requirements(extra: str) -> Iterator[tuple[str, str]]:
    """Yield each package of an extra as pip takes it; heldout's own extras are resolved."""
    try:
        lines = requires("heldout") or []
    except PackageNotFoundError:
        return
    for line in lines:
        match = _REQUIREMENT.fullmatch(line)
        if match is None or match["extra"] != extra:
            continue
        if match["package"] == "heldout":
            for inner in (match["extras"] or "").split(","):
                yield from _requirements(inner.strip())
        else:
            extras = f"[{match['extras']}]" if match["extras"] else ""
            # The metadata may have them in any order: people write the lower bound first.
            bounds = sorted(
                match["bounds"].replace(" ", "").split(","), key=lambda b: b[:1] in "<!"
            )
            yield match["package"], f"{match['package']}{extras}{','.join(bounds)}"
