"""Sandboxes: where programs run that models wrote (docs/sandbox.md).

A program, its files and its limits go in; its output, its tree of files and the reason it ended
come out. Whether the output is right is for `scoring/` to say. A sandbox that fails raises, and is
never taken for a program that does.
"""

from __future__ import annotations

from heldout.errors import SandboxError
from heldout.sandbox.pool import SandboxPool
from heldout.sandbox.sandbox import Sandbox, SandboxProcess, open_sandbox
from heldout.sandbox.values import ProgramOutcome, SandboxLimits, SandboxTree, TreeEntry

__all__ = [
    "ProgramOutcome",
    "Sandbox",
    "SandboxError",
    "SandboxLimits",
    "SandboxPool",
    "SandboxProcess",
    "SandboxTree",
    "TreeEntry",
    "open_sandbox",
]
