"""What the command line and the viewer share: runs by name, and reports as rows and sentences.

`names.py` finds what a name means. `summaries.py`, `comparisons.py`, `curves.py` and `flips.py` put
results into words and tables, made of the values of `blocks.py`. Nothing here prints: a terminal,
Markdown and the viewer's page each render them.

Reports and curves go in; rows, tables and sentences come out. No number is computed here.
"""
