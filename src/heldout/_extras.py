"""What is said where a package of an extra is not installed."""

from __future__ import annotations

from heldout.errors import InvalidInput


def install_hint(extra: str) -> str:
    """Return the command that installs what an extra of heldout has."""
    return f"pip install 'heldout[{extra}]'"


def missing_extra(need: str, extra: str) -> InvalidInput:
    """Return the error for a package that is not installed.

    Args:
        need: What needs which package.
        extra: The extra of heldout that has it.
    """
    return InvalidInput(f"{need}: {install_hint(extra)}")
