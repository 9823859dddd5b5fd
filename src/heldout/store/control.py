"""How a run that is running is steered: a file in its directory, which the run reads.

Nothing listens on a port, and nothing is sent: `heldout ctl` writes the file, and the run looks at
it once a second. It is removed when the run ends, and when one is resumed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from heldout.errors import InvalidInput
from heldout.store.jsonl import read_document, replace_file

CONTROL_NAME = "control.json"
CONTROL_FORMAT, CONTROL_VERSION = "heldout.control", 1


class RunControl(msgspec.Struct, frozen=True):
    """What a run is asked to do.

    Attributes:
        paused: Whether no item is begun; those in flight go on.
        max_concurrent: The most items in flight; None for as many as the run was begun with.
        retries: How often it was asked to run again the items that have errored so far.
    """

    format: str = CONTROL_FORMAT
    version: int = CONTROL_VERSION
    paused: bool = False
    max_concurrent: int | None = None
    retries: int = 0


def read_control(run: Path) -> RunControl:
    """Read what a run is asked to do; nothing where there is no such file.

    Raises:
        RunDirectoryError: The file cannot be read.
    """
    try:
        return read_document(run / CONTROL_NAME, RunControl, CONTROL_FORMAT, CONTROL_VERSION)
    except FileNotFoundError:
        return RunControl()


def write_control(run: Path, control: RunControl) -> None:
    """Ask a run to do something else from now on.

    Raises:
        InvalidInput: The number of items is below 1.
    """
    if control.max_concurrent is not None and control.max_concurrent < 1:
        raise InvalidInput(f"max_concurrent must be at least 1, got {control.max_concurrent}")
    replace_file(run / CONTROL_NAME, msgspec.json.format(msgspec.json.encode(control)) + b"\n")


def control_stamp(run: Path) -> tuple[int, int] | None:
    """Return what tells whether the file has changed; None where there is none."""
    try:
        status = (run / CONTROL_NAME).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


def forget_control(run: Path) -> None:
    """Remove the file, which was meant for a run that has ended."""
    (run / CONTROL_NAME).unlink(missing_ok=True)


__all__ = [
    "RunControl",
    "control_stamp",
    "forget_control",
    "read_control",
    "write_control",
]
