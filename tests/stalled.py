"""Run a command on a machine that takes the processor away: python -m tests.stalled make test.

Every second or so one thread that runs, of whichever process, is stopped for up to some seconds, as
on a shared machine whose processors have other work. A test that fails here depends on the load.

It needs root, and the freezer of cgroup v1, which stops threads alone. SEED in the environment
repeats a run, as far as a machine repeats anything.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

SHORTEST, LONGEST = 0.5, 2.5
EVERY = 1.0
FREEZER = Path("/sys/fs/cgroup/freezer")


def new_group(name: str) -> Path:
    path = FREEZER / f"stalled-{os.getpid()}-{name}"
    path.mkdir()
    return path


def running_threads(home: Path) -> list[str]:
    found = []
    for thread in (home / "tasks").read_text().split():
        with suppress(OSError):
            state = Path(f"/proc/{thread}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "R":
                found.append(thread)
    return found


def main() -> int:
    if not FREEZER.is_dir():
        print("stalled: there is no freezer of cgroup v1 here", file=sys.stderr)
        return 2
    home, frozen = new_group("home"), new_group("frozen")
    enter = f'echo $$ > {home}/cgroup.procs && exec "$@"'
    chance = random.Random(os.environ.get("SEED", "0"))
    command = subprocess.Popen(["sh", "-c", enter, "sh", *sys.argv[1:]])
    stalls = 0
    try:
        while command.poll() is None:
            time.sleep(chance.uniform(0.2, 1.8) * EVERY)
            threads = running_threads(home)
            if not threads:
                continue
            (frozen / "freezer.state").write_text("FROZEN")
            with suppress(OSError):  # it has ended
                (frozen / "tasks").write_text(chance.choice(threads))
                stalls += 1
                time.sleep(chance.uniform(SHORTEST, LONGEST))
            # A frozen thread cannot be moved.
            (frozen / "freezer.state").write_text("THAWED")
            for thread in (frozen / "tasks").read_text().split():
                with suppress(OSError):
                    (home / "tasks").write_text(thread)
    finally:
        (frozen / "freezer.state").write_text("THAWED")
    for group in (home, frozen):
        with suppress(OSError):  # something that it started still runs
            group.rmdir()
    print(f"stalled: {stalls} times", file=sys.stderr)
    return command.returncode


if __name__ == "__main__":
    sys.exit(main())
