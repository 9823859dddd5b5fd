"""What run_remote starts on the cluster: the script, and after it the transfer of its runs.

    python -m heldout.cluster.job run ID -- COMMAND…    in a copy of the folder that was submitted
    python -m heldout.cluster.job pack ID               prints the run directories
    python -m heldout.cluster.job drop ID               removes the copy

Ray shares the folder of a job among jobs with the same files and removes it at the end, so the
script runs in a copy. Run directories are printed as lines of text, since a job's output is what
Ray's job API brings to whoever has submitted it, from any node. Ray keeps one log of both streams:
the standard output of a command with --json goes to a file instead, and is sent with the runs.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from heldout.errors import InvalidInput

CONTENT, END = "@heldout ", "@heldout-end "
"""How lines begin: those with a piece of the archive, and the last, with its hash."""
CHUNK = 12 * 2**10
"""Bytes in one line; Ray sends some twenty thousand characters at a time."""
RUN_FILES = ("run.json", "results.jsonl", "curve.jsonl")
STDOUT = ".stdout"
"""Holds the standard output of a command with --json, in the job's folder and in the archive."""
NO_RUN = 4
"""The exit code where a command ended well but left no run, as in `heldout --help`."""


def job_folder(name: str) -> Path:
    """Return where a job's copy of its folder is, on the node that it ran on.

    Args:
        name: The id of the job.

    Raises:
        InvalidInput: It is no id.
    """
    if not re.fullmatch(r"[\w-]+", name):
        raise InvalidInput(f"a job's id must be letters, digits, _ and -, got {name!r}")
    return Path(tempfile.gettempdir()) / f"heldout-job-{os.getuid()}-{name}"


def run(name: str, command: list[str]) -> int:
    """Run a command in a copy of the working directory.

    Args:
        name: The id of the job.
        command: The command.

    Returns:
        Its exit code; 128 + the number of the signal that has ended it; 4 where it was 0 and no
        run was written.
    """
    folder = job_folder(name)
    folder.mkdir(mode=0o700)
    work = folder / "work"
    shutil.copytree(Path.cwd(), work, symlinks=True)
    before = _stat_runs(work)
    # A script in a folder below may import what is beside that folder.
    path = os.pathsep.join([str(work), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    with (folder / STDOUT).open("wb") if "--json" in command else nullcontext() as output:
        code = subprocess.call(command, cwd=work, env=environment, stdout=output)
    if code == 0 and _stat_runs(work) == before:
        sys.stderr.write(
            "Error: the job ended without writing a run directory below its folder, so there is "
            "nothing to bring home. If the script does its work in the else of `if args.remote:`, "
            "the job still has an option that makes it call run_remote: leave that out of "
            "run_remote(arguments=[…])\n"
        )
        return NO_RUN
    return code if code >= 0 else 128 - code


def _stat_runs(work: Path) -> dict[Path, tuple[int, int]]:
    """Return a snapshot of run files that changes when a run is written."""
    files = [file for run in find_runs(work) for file in list_run(run)]
    return {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in files}


def pack(name: str) -> Iterator[str]:
    """Yield the run directories of a job as lines.

    Args:
        name: The id of the job.

    Yields:
        An archive in base64, piece by piece, and its hash.
    """
    work, archive = job_folder(name) / "work", job_folder(name) / "runs.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for folder in find_runs(work):
            for file in list_run(folder):
                packed.write(file, file.relative_to(work).as_posix())
        if (job_folder(name) / STDOUT).exists():
            packed.write(job_folder(name) / STDOUT, STDOUT)
    digest = hashlib.sha256()
    with archive.open("rb") as opened:
        while content := opened.read(CHUNK):
            digest.update(content)
            yield CONTENT + base64.b64encode(content).decode()
    yield END + digest.hexdigest()


def find_runs(folder: Path) -> list[Path]:
    """Find the run directories below a folder.

    Args:
        folder: Where to look.

    Returns:
        The directories; one within another counts as part of it.
    """
    runs: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if any(name in names for name in RUN_FILES):
            runs.append(Path(root))
            folders.clear()
    return runs


def list_run(run: Path) -> list[Path]:
    """Return the files of a run directory, the journal first and run.json last."""
    files = [file for file in run.rglob("*") if file.is_file() and not file.name.startswith(".")]
    return sorted(files, key=lambda file: (file.name == "run.json", file.suffix != ".jsonl", file))


def main() -> int:
    """Run the subcommand given on the command line."""
    match sys.argv[1:]:
        case ["run", name, "--", *command]:
            return run(name, command)
        case ["pack", name]:
            for line in pack(name):
                sys.stdout.write(line + "\n")
            return 0
        case ["drop", name]:
            shutil.rmtree(job_folder(name), ignore_errors=True)
            return 0
        case arguments:
            raise InvalidInput(f"run, pack or drop, got {arguments}")


if __name__ == "__main__":
    sys.exit(main())
