"""Sandboxes: where programs run that models wrote (docs/sandbox.md)."""

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
