"""Logs of evals that other packages ran, as runs: of Inspect, lm-eval and verifiers.

    report = import_log("logs/2026-11-18T10-41-46_gsm8k.eval")
    export_inspect(report, "capitals.eval")

`formats.py` tells the formats apart and makes the run directory, with a module for each format.
"""

from __future__ import annotations

from heldout.adapters.logs.formats import find_logs, import_file, import_log
from heldout.adapters.logs.inspect_export import export_inspect

__all__ = ["export_inspect", "find_logs", "import_file", "import_log"]
