"""Run directories where clusters leave them: s3://, gs:// and whatever else fsspec reads.

They are read from a copy on this machine, and written only as a copy of a finished run:
the journal is local, since no object store can append to a file. run.json goes last, so that half a
copy is no run.
"""

from __future__ import annotations

import atexit
from functools import lru_cache
from pathlib import Path
from typing import Any

from heldout._core.extras import missing_extra
from heldout._core.temporary import TemporaryFolder
from heldout.errors import InvalidInput, RunDirectoryError, RunExists, RunReplaced
from heldout.store.jsonl import open_to_read
from heldout.store.run_dir import COPIED, RunDir, now

FILES = (
    *("notes.jsonl", "tools.jsonl", "results.jsonl", "results.jsonl.gz", "results.parquet"),
    *("ahead.jsonl", "summary.json"),
    *("curve.jsonl", "run.json"),
)
"""Of a run directory, in the order they are copied in."""


_urls: dict[Path, str] = {}
"""Where each copy of this process came from."""


def fetch_run(url: str) -> Path:
    """Copy a run directory to this machine; the copy goes when this process ends."""
    copy = _fetch(url.rstrip("/"))
    _urls[copy] = url.rstrip("/")
    return copy


def lasting_name(path: Path) -> str:
    """Name a run directory so that it can be found again: of a copy, by the URL it came from."""
    for copy, url in _urls.items():
        if path.is_relative_to(copy):
            inside = path.relative_to(copy)
            return url if inside == Path() else f"{url}/{inside}"
    return str(path)


@lru_cache(maxsize=64)
def _fetch(url: str) -> Path:
    try:
        return _copy_here(url)
    except RunReplaced:  # once more: then it is the other run, whole
        return _copy_here(url)


def _copy_here(url: str) -> Path:
    """Copy a run; RunReplaced if another run took its place meanwhile."""
    filesystem, path = open_url(url)
    folder = TemporaryFolder("run")
    atexit.register(folder.cleanup)
    copy = Path(folder.name)
    target, again = copy / path.rpartition("/")[2], copy / ".again"
    target.mkdir()
    again.mkdir()
    (target / COPIED).write_text(now())
    run = RunDir(target)
    try:
        # Of a run that is still written: what was derived from a journal is only taken for it where
        # run.json says so, and that is older than the journal here.
        for name in reversed(FILES):
            if filesystem.exists(f"{path}/{name}"):
                filesystem.get_file(f"{path}/{name}", str(target / name))
        if filesystem.isdir(f"{path}/steps"):
            filesystem.get(f"{path}/steps", f"{target}/steps", recursive=True)
        if run.run.exists():
            filesystem.get_file(f"{path}/run.json", str(again / "run.json"))
    except OSError as problem:
        raise RunDirectoryError(f"{url} cannot be read: {problem}") from None
    if not run.exists() and not run.curve.exists():
        raise RunDirectoryError(f"there is no run at {url}: no run.json")
    try:
        is_same = run.read_info().is_same_run(RunDir(again).read_info())
    except RunDirectoryError:  # there is none, or it is damaged: who reads the run says so
        is_same = True
    if not is_same:
        raise RunReplaced(f"{url} was replaced by another run while it was read; read it again")
    return target


def check_target(url: str) -> None:
    """Refuse, before anything is run, a place that a run cannot be copied to."""
    filesystem, path = open_url(url)
    try:
        is_taken = any(
            filesystem.exists(f"{path}/{n}")
            for n in ("run.json", "results.jsonl", "results.jsonl.gz")
        )
    except OSError as problem:
        raise RunDirectoryError(f"{url} cannot be reached: {problem}") from None
    if is_taken:
        raise RunExists(f"{url} already holds a run; copy to another place")


def copy_run(run_dir: Path, url: str) -> None:
    """Copy a run directory: the journal first, run.json last, each file whole or not at all."""
    check_target(url)
    filesystem, path = open_url(url)
    try:
        filesystem.makedirs(path, exist_ok=True)
        for name in FILES:
            if (run_dir / name).exists():
                _put_whole(filesystem, run_dir / name, f"{path}/{name}")
    except OSError as problem:
        raise RunDirectoryError(
            f"{run_dir} could not be copied to {url}: {problem}; the run itself is complete"
        ) from None


def _put_whole(filesystem: Any, file: Path, target: str) -> None:
    """Write under another name and rename, where files appear before they are complete."""
    open_to_read(file).close()  # which refuses a link to something else
    if "file" in filesystem.protocol or "local" in filesystem.protocol:
        folder, _, name = target.rpartition("/")
        temporary = f"{folder}/.{name}.tmp"
        filesystem.put_file(str(file), temporary)
        filesystem.mv(temporary, target)
    else:  # an object is there when its upload is complete
        filesystem.put_file(str(file), target)
    size = filesystem.size(target)
    if size != file.stat().st_size:
        raise OSError(f"{target} has {size} bytes, not {file.stat().st_size}")


def open_url(url: str) -> tuple[Any, str]:
    """Find the file system of a URL, and the path in it; InvalidInput if its package is missing."""
    try:
        import fsspec
    except ImportError:
        raise missing_extra(f"{url} needs fsspec", "remote") from None
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as problem:
        raise InvalidInput(f"{url} cannot be opened: {problem}") from None
    return filesystem, str(path).rstrip("/")
