"""The dispatcher that is in use here, as a matter of context.

Whoever trains installs one, and a `PeriodicEval` that is called further down measures beside the
training instead of holding it up. No signature on the way has to change.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from heldout.errors import InvalidInput

if TYPE_CHECKING:
    from heldout.training.dispatcher import AsyncEvalDispatcher

_installed: ContextVar[AsyncEvalDispatcher | None] = ContextVar("async_evals", default=None)


def get_async_eval_dispatcher() -> AsyncEvalDispatcher | None:
    """The one that was installed in this context; none of a process that this one was forked from,
    and none where another process evaluates.

    Threads have contexts of their own: those that are started by hand do not see it.
    """
    found = _installed.get()
    ours = found is not None and found.pid == os.getpid() and found.is_first
    return found if ours else None


def evals_run_beside() -> bool:
    """Whether one is installed, also where another process is the one that evaluates."""
    return _installed.get() is not None


def set_async_eval_dispatcher(
    dispatcher: AsyncEvalDispatcher | None,
) -> Token[AsyncEvalDispatcher | None]:
    """Install it. The token's `var.reset(token)` puts back what was there."""
    return _installed.set(dispatcher)


@contextmanager
def use_async_eval_dispatcher(dispatcher: AsyncEvalDispatcher) -> Iterator[AsyncEvalDispatcher]:
    """Installed inside the block; opens and drains nothing."""
    if not hasattr(dispatcher, "schedule_at") or isinstance(dispatcher, type):
        raise InvalidInput(f"what is installed is an AsyncEvalDispatcher, got {dispatcher!r:.100}")
    token = _installed.set(dispatcher)
    try:
        yield dispatcher
    finally:
        _installed.reset(token)
