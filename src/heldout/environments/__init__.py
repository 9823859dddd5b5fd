"""Environments to use or to build on.

    ToolEnvironment   Python functions as the policy's tools (tools.py)
    ShellEnvironment  a bash in a sandbox (shell.py)
    PythonEnvironment a Python interpreter in a sandbox (python.py)
    Driven            code that asks a model itself (driven.py)
    serve_policy      agents that ask over HTTP (served.py)
    SimulatedUser     a function or a model that talks to the policy (user.py)
    likelihood_choices  multiple choice by the likelihood of each choice (likelihood.py)

`heldout.environment` has the protocol that an environment follows, and
`heldout.testing.check_environment` checks one against it.

A model turn goes in; a Reply comes out. What an environment shows to the score function is its
`outcome()`. Environments of other packages are in `adapters/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core.lazy import lazy

if TYPE_CHECKING:
    from heldout.environments.driven import Driven as Driven
    from heldout.environments.likelihood import likelihood_choices as likelihood_choices
    from heldout.environments.python import PythonEnvironment as PythonEnvironment
    from heldout.environments.served import serve_policy as serve_policy
    from heldout.environments.shell import ShellEnvironment as ShellEnvironment
    from heldout.environments.tools import Tool as Tool
    from heldout.environments.tools import ToolEnvironment as ToolEnvironment
    from heldout.environments.user import SimulatedUser as SimulatedUser

__all__, __getattr__, __dir__ = lazy(__name__)
