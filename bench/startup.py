"""How long a fresh process takes to import heldout, and the command to print its help."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from common import emit, options, peer, say


def best(rounds: int, *command: str | Path) -> float:
    """The quickest of so many fresh processes, from start to exit, files in the disk cache."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    args = options(__doc__).parse_args()
    rounds = 3 if args.quick else 10
    say("startup")
    heldout = Path(sys.executable).parent / "heldout"
    help_s = best(rounds, heldout, "--help")
    inspect_s = best(rounds, peer(args.peers_dir, "inspect", "inspect"), "--help")
    emit("`python -c pass`, for comparison", best(rounds, sys.executable, "-c", "pass"), "s")
    imported = best(rounds, sys.executable, "-c", "import heldout")
    emit("`python -c 'import heldout'`", imported, "s", target=0.15)
    loaded = best(rounds, sys.executable, "-c", "from heldout import evaluate")
    emit("`python -c 'from heldout import evaluate'`, which loads the engine", loaded, "s")
    emit("`heldout --help`", help_s, "s", target=0.4)
    emit("`inspect --help` (inspect-ai)", inspect_s, "s", ratio=inspect_s / help_s)


if __name__ == "__main__":
    main()
