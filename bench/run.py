"""Run the benchmarks and write what they found into BENCHMARKS.md.

    python bench/run.py                    all, in full: about a quarter of an hour
    python bench/run.py --only engine      one; may be given several times
    python bench/run.py --quick            small sizes, printed and not written

Makes environments for the packages it compares with, in .bench/venvs, from bench/peers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from common import HERE, WORK, Figure, machine, options, say

BENCHMARKS = {
    "engine": "engine.py",
    "memory": "memory.py",
    "http": "http_load.py",
    "reports": "reports.py",
    "rollouts": "rollouts.py",
    "midrun": "midrun.py",
    "dispatcher": "dispatcher.py",
    "sharded": "sharded.py",
    "vector": "vector.py",
    "stats": "stats.py",
    "scoring": "scoring.py",
    "monitor": "monitor.py",
    "adaptive": "adaptive.py",
    "startup": "startup.py",
    "view": "view.py",
    "cluster": "cluster.py",
    "sandbox": "sandbox.py",
}
NEEDS_PEERS = {"engine", "startup", "stats", "view"}
TABLES = HERE.parent / "BENCHMARKS.md"


def make_peers(folder: Path) -> None:
    """An environment for each requirements file that has none yet."""
    for requirements in sorted((HERE / "peers").glob("requirements-*.txt")):
        name = requirements.stem.removeprefix("requirements-")
        venv, done = folder / name, folder / name / ".installed"
        if done.exists() and done.read_text() == requirements.read_text():
            continue
        say(f"installing {requirements.read_text().strip()} into {venv}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        pip: list[str | Path] = [venv / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--requirement", requirements], check=True)
        done.write_text(requirements.read_text())  # last: a broken install is made again


def run(name: str, arguments: list[str | Path]) -> list[Figure]:
    command = [sys.executable, HERE / BENCHMARKS[name], *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"the benchmark {name} failed")
    return [Figure(**json.loads(line)) for line in done.stdout.splitlines()]


# --- Tables -------------------------------------------------------------------------------------


def number(value: float, unit: str) -> str:
    """Three digits that mean something, and the unit."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    separator = " " if unit not in ("x", "/s") else ""
    return f"{value:,.{digits}f}{separator}{unit}"


def table(figures: list[Figure], origin: str) -> str:
    rows = [["", "target", "measured", "met", "against heldout"], ["---", *["---:"] * 4]]
    for figure in figures:
        rows.append(
            [
                figure.what,
                "" if figure.target is None else f"≤ {number(figure.target, figure.unit)}",
                number(figure.value, figure.unit),
                {None: "", True: "yes", False: "**no**"}[figure.met],
                "" if figure.ratio is None else number(figure.ratio, "x"),
            ]
        )
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    missed = [
        f"**Missed:** {figure.what}: {number(figure.value, figure.unit)}, "
        f"where {number(figure.target, figure.unit)} was the most it should be.\n"
        for figure in figures
        if figure.target is not None and not figure.met
    ]
    return "\n".join([*lines, "", *missed, origin])


def write_tables(tables: dict[str, str]) -> None:
    """Put each table between its markers; the text around them is written by hand."""
    text = TABLES.read_text()
    for name, content in tables.items():
        begin, end = f"<!-- {name}: written by bench/run.py -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            sys.exit(f"{TABLES.name} has no place for {name}: {begin} … {end}")
        text = f"{before}{begin}\n{content}\n{end}{after}"
    TABLES.write_text(text)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", action="append", choices=tuple(BENCHMARKS), metavar="NAME")
    args = parser.parse_args()
    names = args.only or list(BENCHMARKS)
    if args.peers_dir == WORK / "venvs" and NEEDS_PEERS & set(names):
        make_peers(args.peers_dir)
    arguments: list[str | Path] = ["--peers-dir", args.peers_dir]
    if args.quick:
        arguments.append("--quick")
    command = " ".join(["python bench/run.py", *(f"--only {name}" for name in args.only or ())])
    tables = {}
    for name in names:
        load = os.getloadavg()[0]
        figures = run(name, arguments)
        origin = (
            f"Measured {time.strftime('%Y-%m-%d')} with `{command}` on {machine()}; "
            f"load average before: {load:.1f}."
        )
        tables[name] = table(figures, origin)
        print(f"\n{name}\n\n{tables[name]}\n", flush=True)
    if args.quick:
        say("small sizes: targets are meant for the full ones, and BENCHMARKS.md is as it was")
    else:
        write_tables(tables)


if __name__ == "__main__":
    main()
