"""What some tests need of the system, and how a run says what it lacked.

A test names its needs: `@pytest.mark.needs("bubblewrap")`. On a machine without, it is skipped, and
the last line of the run counts such tests. With HELDOUT_SYSTEM_TESTS=1, as in CI, it fails instead.
"""

from __future__ import annotations

import importlib.abc
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache

import anyio
import pytest

from heldout.sandbox import SandboxError, open_sandbox

REASON = "for want of "


def chromium() -> str | None:
    """Return the path of a Chromium: the one HELDOUT_CHROMIUM names, else one on the PATH."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("HELDOUT_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def _without_sandbox() -> str | None:
    async def try_it() -> None:
        async with open_sandbox() as sandbox:
            assert (await sandbox.run(["true"])).exit == 0

    try:
        anyio.run(try_it)
    except SandboxError as problem:
        return str(problem)
    return None


def _without_chromium() -> str | None:
    return None if chromium() else "no Chromium on the PATH, and HELDOUT_CHROMIUM names none"


def _without_node() -> str | None:
    return None if shutil.which("node") else "no node on the PATH"


# Each says why this machine lacks something, or None.
_PROBES: dict[str, Callable[[], str | None]] = {
    "bubblewrap": _without_sandbox,
    "Chromium": _without_chromium,
    "Node": _without_node,
}


@cache
def _lack(need: str) -> str | None:
    return _PROBES[need]()


def require(need: str) -> None:
    """Skip the running test, or fail it in CI, if this machine lacks `need`."""
    problem = _lack(need)
    if problem is None:
        return
    if os.environ.get("HELDOUT_SYSTEM_TESTS") == "1":
        pytest.fail(f"HELDOUT_SYSTEM_TESTS=1, but {problem}")
    pytest.skip(f"{REASON}{need}: {problem}")


class WithoutTorch(importlib.abc.MetaPathFinder):
    """Skips every test that comes to import torch, for `make quick`."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Skip the test, or the whole file while it is collected."""
        if name in ("torch", "transformers"):
            pytest.skip(f"imports {name}", allow_module_level=True)


def say_what_was_lacking(reasons: Iterable[str]) -> str | None:
    """Turn the reasons of skipped tests into the last line of a run, or None."""
    needs = (r.split(REASON, 1)[1].split(":", 1)[0] for r in reasons if REASON in r)
    counts = Counter(needs)
    if not counts:
        return None
    parts = ", ".join(f"{counts[need]} for want of {need}" for need in sorted(counts))
    return f"{counts.total()} tests skipped: {parts}. make system installs all of it (apt)."
