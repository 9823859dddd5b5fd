"""What was spent on a run, also on results that its numbers leave out.

The usage of a report is that of the results that its numbers are of. Those that a stop left over
(`ahead.py`), and attempts that errored and were made again, were paid for, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heldout.store.ahead import ahead_path
from heldout.store.columns import MemoryColumns
from heldout.store.journal import RecordRow, records
from heldout.store.report import add_cost
from heldout.store.run_dir import RunUsage
from heldout.store.token_counts import TOKENS, count_tokens


def usage_ahead(journal: Path, config: Mapping[str, Any]) -> RunUsage | None:
    """Return what the results beyond a run's last look took.

    Args:
        journal: The run's journal.
        config: What run.json says of it, with its price.

    Returns:
        Tokens and cost; None where there are no such results, or none reported its tokens.
    """
    path = ahead_path(journal)
    usage = _usage_of(path, config) if path.exists() else RunUsage()
    return usage if usage.models else None


def cost_so_far(journal: Path, config: Mapping[str, Any]) -> float | None:
    """Return what all results that a run has written did cost.

    Args:
        journal: The run's journal, which need not be there.
        config: What run.json says of it, with its price.

    Returns:
        The cost; None where a model has no price, or did not report its tokens.
    """
    total = 0.0
    for path in (journal, ahead_path(journal)):
        usage = _usage_of(path, config) if path.exists() else RunUsage()
        if usage.models and usage.cost is None:
            return None
        total += usage.cost or 0.0
    return total


def _usage_of(path: Path, config: Mapping[str, Any]) -> RunUsage:
    columns = MemoryColumns.of(records(path, RecordRow), TOKENS)
    return add_cost(count_tokens(columns.read(TOKENS)), config)
