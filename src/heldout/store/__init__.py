"""The run directory: one journal that is the truth, and files derived from it.

    run.json         config, versions, status; replaced atomically
    results.jsonl    the journal: a header line, then one line a result, appended as it happens
    results.parquet  columns for slicing, in dataset order; derived
    summary.json     the summary; derived

`journal` writes and reads lines, `run_dir` owns the directory, `columns` derives the Parquet file
and the summary, `table` gives all items as columns, `report` is what users hold.
"""
