"""Environments to use or to build on.

    ToolEnvironment   Python functions as the policy's tools (tools.py)
    ShellEnvironment  a bash in a sandbox (shell.py)
    PythonEnvironment a Python interpreter in a sandbox (python.py)
    SimulatedUser     a function or a model that talks to the policy (user.py)
    likelihood_choices  multiple choice by the likelihood of each choice (likelihood.py)

`heldout.environment` has the protocol that an environment follows, and
`heldout.testing.check_environment` checks one against it.
"""

from __future__ import annotations

from heldout.environments.likelihood import likelihood_choices
from heldout.environments.python import PythonEnvironment
from heldout.environments.shell import ShellEnvironment
from heldout.environments.tools import ToolEnvironment
from heldout.environments.user import SimulatedUser

__all__ = [
    "PythonEnvironment",
    "ShellEnvironment",
    "SimulatedUser",
    "ToolEnvironment",
    "likelihood_choices",
]
