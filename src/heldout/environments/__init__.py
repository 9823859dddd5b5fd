"""Environments to use or to build on.

    ToolEnvironment   Python functions as the policy's tools (tools.py)
    SimulatedUser     a function or a model that talks to the policy (user.py)
    Calculator        one tool, bounded arithmetic (calculator.py)
    FileSystem        puzzles in a file tree in memory, with five tools (files.py)

`heldout.environment` has the protocol that an environment follows, and
`heldout.testing.check_environment` checks one against it.
"""

from __future__ import annotations

from heldout.environments.calculator import Calculator
from heldout.environments.files import FileSystem
from heldout.environments.tools import ToolEnvironment
from heldout.environments.user import SimulatedUser

__all__ = ["Calculator", "FileSystem", "SimulatedUser", "ToolEnvironment"]
