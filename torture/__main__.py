"""The driver: `python -m torture`."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

import torture
from torture.trials import BLOCK, STATE, Journal, origin, run_trials, table, write_page

PARTS = {
    "kills": "torture.kills",
    "fuzz": "torture.fuzz",
    "servers": "torture.servers",
    "streams": "torture.streams",
    "http": "torture.http_faults",
    "clock": "torture.clock",
    "shared": "torture.shared",
    "ray": "torture.cluster",
}
"""Modules with a function `make_trials(scale, journal)`."""


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m torture",
        description=torture.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", metavar="PARTS", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the trials to make")
    parser.add_argument(
        "--share", metavar="I/N", default="0/1", help=f"one of N shares of blocks of {BLOCK} trials"
    )
    parser.add_argument(
        "--case", metavar="START", default="", help="only cases whose names begin like this"
    )
    parser.add_argument("--report", action="store_true", help="only write the table")
    parser.add_argument("--retry", action="store_true", help="make trials with faults again")
    parser.add_argument("--forget", action="store_true", help="forget what these parts tried")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if not 0 < given.scale <= 1:
        parser.error(f"--scale must be above 0 and at most 1, got {given.scale}")
    share, of = map(int, given.share.split("/"))
    journal = Journal(STATE / "journal.jsonl")
    if given.forget:
        journal.forget(names)
    if not given.report:
        # Before anything is imported: a process with threads cannot be forked.
        os.environ.update(
            OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", RAY_USAGE_STATS_ENABLED="0"
        )
        for name in names:
            run_trials(
                import_module(PARTS[name]).make_trials(given.scale, journal),
                journal,
                retry=given.retry,
                share=share,
                of=of,
                case=given.case,
            )
    text = table(journal, PARTS)
    print(text)
    write_page(f"{text}\n\n{origin(journal, 'make torture')}")
    faults = sum(len(line["faults"]) for line in journal.lines.values())
    sys.exit(f"{faults} faults" if faults else 0)


if __name__ == "__main__":
    main()
