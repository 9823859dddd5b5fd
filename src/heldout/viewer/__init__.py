"""heldout view: runs, comparisons and curves in a browser."""
