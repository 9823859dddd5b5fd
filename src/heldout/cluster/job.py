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
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from heldout.errors import InvalidInput

MARK = "@heldout "
CHUNK = 12 * 2**10
"""Bytes in one line; Ray sends some twenty thousand characters at a time."""
RUN_FILES = ("run.json", "results.jsonl", "curve.jsonl")


class FileStart(msgspec.Struct, tag=True):
    """A file begins; lines of data follow."""

    path: str
    """Below the folder that the script ran in."""
    size: int
    sha256: str


class TransferEnd(msgspec.Struct, tag=True):
    """All files were sent."""

    files: int


Header = FileStart | TransferEnd


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
        A header for each file, the lines of its content, and the end.
    """
    work = job_folder(name) / "work"
    files = [file for folder in find_runs(work) for file in list_run(folder)]
    for file in files:
        size = file.stat().st_size  # a journal may still grow
        yield MARK + _encode(FileStart(file.relative_to(work).as_posix(), size, _hash(file, size)))
        yield from _encode_content(file, size)
    yield MARK + _encode(TransferEnd(len(files)))


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


def _hash(file: Path, size: int) -> str:
    digest = hashlib.sha256()
    for content in _read(file, size):
        digest.update(content)
    return digest.hexdigest()


def _read(file: Path, size: int) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while size > 0 and (content := opened.read(min(size, 2**16))):
            size -= len(content)
            yield content


def _encode(header: Header) -> str:
    return msgspec.json.encode(header).decode()


def _encode_content(file: Path, size: int) -> Iterator[str]:
    compress = zlib.compressobj()
    waiting = b""
    for content in _read(file, size):
        waiting += compress.compress(content)
        while len(waiting) >= CHUNK:
            yield MARK + base64.b64encode(waiting[:CHUNK]).decode()
            waiting = waiting[CHUNK:]
    yield MARK + base64.b64encode(waiting + compress.flush()).decode()


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
