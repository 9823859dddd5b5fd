"""The run directory: one journal that is the source of truth, and files derived from it.

    run.json         config, versions, status; replaced atomically
    results.jsonl    the journal: a header line, then one line per result, appended as it happens
    results.parquet  columns, in dataset order, of runs that are large enough; derived
    summary.json     the summary; derived
    tools.jsonl      what the policy could call, named by results; only where there is something
    notes.jsonl      what reviewers say of single answers; no part of the results

`jsonl` appends to and reads files of lines, `journal` knows results as lines, `run_dir` owns the
directory, `resume` knows what a stopped run has finished, `columns` turns results into a summary,
slices and tables, `parquet` and `sql` are DuckDB's part of it, `report` is what users hold, `notes`
reads and writes what reviewers say, and `tools` what policies could call.
"""
