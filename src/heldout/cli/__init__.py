"""The command line: a module for each command, loaded when it is used.

In go words and the user's file; out come lines for people, JSON for programs, and an exit code.
What they say is written in `reporting/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core.lazy import lazy

if TYPE_CHECKING:
    from heldout.cli.main import run_cli as run_cli

__all__, __getattr__, __dir__ = lazy(__name__)
