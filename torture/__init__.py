"""A torture run of heldout: kills, spoiled files, hostile servers, floods, clocks, lost clusters.

    python -m torture                                 all of it: hours
    python -m torture --only kills,fuzz --scale 0.1   a part, a tenth of the trials
    python -m torture --report                        only the table, of what was tried so far

Each part is a module that yields trials; `trials.py` runs those that its journal does not have yet,
so a torture run that was stopped goes on where it was. The table is docs/torture.md. It is no part
of CI: it takes long, and the suite has the small test of each defect that it found.
"""
