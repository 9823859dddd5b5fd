"""The run directory: one journal that is the source of truth, and files derived from it.

    run.json         config, versions, status; replaced atomically
    results.jsonl    the journal: a header line, then one line per result, appended as it happens
    results.parquet  columns, in dataset order, of runs that are large enough; derived
    summary.json     the summary; derived
    tools.jsonl      what the policy could call, named by results; only where there is something
    notes.jsonl      what reviewers say of single answers; no part of the results
    ahead.jsonl      results of a run with `until` beyond its next look; no part of its numbers

`jsonl` appends to and reads files of lines, `journal` knows results as lines, `ahead` keeps back
what the next look is not about, `run_dir` owns the directory, `settled` says how a claim stopped a
run, `resume` knows what a stopped run has finished, `results` decodes what is asked for, `columns`
turns results into a summary and a Parquet file, `tables` groups these by samples, `parquet`,
`database` and `sql` are DuckDB's part of it, `report` is what users hold, `notes` reads and writes
what reviewers say, `spent` adds up what was paid for, and `tools` has what policies could call.

Results go in one by one; a report comes out, the same after any number of crashes. The numbers of
a summary are computed in `stats/`. Nothing here asks a model, and nothing read from disk is run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heldout._core.lazy import lazy

if TYPE_CHECKING:
    from heldout.store.report import EvalReport as EvalReport
    from heldout.store.sql import query as query

__all__, __getattr__, __dir__ = lazy(__name__)
