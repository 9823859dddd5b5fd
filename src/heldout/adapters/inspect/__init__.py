"""Tasks of Inspect as heldout evals.

    await evaluate(from_inspect("inspect_evals/gsm8k"), config)

Inspect is imported when a task is adapted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core.lazy import lazy

if TYPE_CHECKING:
    from heldout.adapters.inspect.installed import list_inspect_downloads as list_inspect_downloads
    from heldout.adapters.inspect.installed import list_inspect_tasks as list_inspect_tasks
    from heldout.adapters.inspect.load import from_inspect as from_inspect

__all__, __getattr__, __dir__ = lazy(__name__)
