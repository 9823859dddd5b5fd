"""What run_remote starts on the cluster: the script, and after it the transfer of its runs.

    python -m heldout.cluster.job run ID -- COMMAND…    in a copy of the folder that was submitted
    python -m heldout.cluster.job pack ID               prints the run directories
    python -m heldout.cluster.job drop ID               removes the copy

Ray shares the folder of a job among jobs with the same files and removes it at the end, so the
script runs in a copy. Run directories are printed as lines of text, since a job's output is what
Ray's job API brings to whoever has submitted it, from any node.
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
from pathlib import Path

from heldout.errors import InvalidInput

CONTENT, END = "@heldout ", "@heldout-end "
"""How lines begin: those with a piece of the archive, and the last, with its hash."""
CHUNK = 12 * 2**10
"""Bytes in one line; Ray sends some twenty thousand characters at a time."""
RUN_FILES = ("run.json", "results.jsonl", "curve.jsonl")


def job_folder(name: str) -> Path:
    """Return where a job's copy of its folder is, on the node that it ran on.

    Args:
        name: The id of the job.

    Returns:
        The folder.

    Raises:
        InvalidInput: It is no id.
    """
    if not re.fullmatch(r"[\w-]+", name):
        raise InvalidInput(f"a job's id is letters, digits, _ and -, got {name!r}")
    return Path(tempfile.gettempdir()) / f"heldout-job-{os.getuid()}-{name}"


def run(name: str, command: list[str]) -> int:
    """Run a command in a copy of the working directory.

    Args:
        name: The id of the job.
        command: The command.

    Returns:
        Its exit code; 128 + the number of the signal that has ended it.
    """
    folder = job_folder(name)
    folder.mkdir(mode=0o700)
    shutil.copytree(Path.cwd(), folder / "work", symlinks=True)
    code = subprocess.call(command, cwd=folder / "work")
    return code if code >= 0 else 128 - code


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
    """Do what the command line says."""
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
