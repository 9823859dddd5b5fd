"""Why an eval has no result, in the words of an exception."""

from __future__ import annotations

from heldout.errors import EvalFailed, InvalidInput, ResumeMismatch, printable_error


def describe(problem: BaseException) -> str:
    """Describe an exception, as the reason of a skip.

    Those that heldout raises for people say it all; of others the type says half.
    """
    message = printable_error(problem)
    if isinstance(problem, EvalFailed | InvalidInput | ResumeMismatch):
        return message[:2000]
    return f"{type(problem).__name__}: {message}"[:2000]
